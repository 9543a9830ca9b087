//! Authentication between a client and the brokers: TLS, SCRAM, client certificates.
//!
//! In: settings, and the files that they name. Out: properties of the client library. Settings that cannot be meant are
//! refused here, since the client library would go on without them or report nothing of use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::secret::Secret;
use crate::{BusError, Remedy, Result};

/// Whether this build knows TLS and SASL (the feature `kafka-tls`).
pub const TLS: bool = cfg!(feature = "kafka-tls");

/// Protocol that protects a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SecurityProtocol {
    #[default]
    Plaintext,
    Ssl,
    SaslSsl,
}

/// How a user proves the password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum SaslMechanism {
    #[default]
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    #[serde(rename = "PLAIN")]
    Plain,
}

impl SaslMechanism {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::Plain => "PLAIN",
        }
    }
}

/// How the brokers know this client, and it them. Secrets come from files or variables, never from the settings file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SecuritySettings {
    /// `plaintext`, `ssl` (TLS; the client is known by its certificate) or `sasl_ssl` (TLS; the client is known by user and
    /// password). All but `plaintext` need a build with the feature `kafka-tls`. Default: `plaintext`.
    pub protocol: SecurityProtocol,
    /// `SCRAM-SHA-512`, `SCRAM-SHA-256` or `PLAIN`, with `sasl_ssl`. Default: `SCRAM-SHA-512`.
    pub mechanism: SaslMechanism,
    /// User, with `sasl_ssl`. Default: empty.
    pub username: String,
    /// File that holds the user's password; a line break at its end is left out. Read at every start. Default: unset.
    pub password_file: Option<PathBuf>,
    /// The user's password, by the variable only; refused in a settings file. Default: unset.
    pub password: Option<Secret>,
    /// File with the certificates (PEM) of the authorities that brokers' certificates are trusted by. Default: unset, which
    /// trusts those of the system.
    pub ca_file: Option<PathBuf>,
    /// File with this client's certificate (PEM) and those up to its authority. Default: unset.
    pub certificate_file: Option<PathBuf>,
    /// File with the private key (PEM) of the certificate. Default: unset.
    pub key_file: Option<PathBuf>,
    /// File that holds the password of the private key. Default: unset.
    pub key_password_file: Option<PathBuf>,
    /// The password of the private key, by the variable only; refused in a settings file. Default: unset.
    pub key_password: Option<Secret>,
}

impl SecuritySettings {
    /// Returns the properties of the client library that this means. Reads the files of secrets, and looks whether the others can
    /// be.
    pub fn properties(&self) -> Result<BTreeMap<String, String>> {
        let mut properties = BTreeMap::new();
        let mut set = |name: &str, value: String| properties.insert(name.to_owned(), value);
        if self.protocol == SecurityProtocol::Plaintext {
            return match self.first_given() {
                None => Ok(properties),
                Some(key) => Err(security_error(format!(
                    "bus.security.{key} is set, but bus.security.protocol is plaintext, which would send everything in the clear: set it to sasl_ssl or ssl"
                ))),
            };
        }
        if !TLS {
            return Err(security_error("this build has no TLS: build with --features kafka-tls".to_owned()));
        }
        if let Some(file) = &self.ca_file {
            set("ssl.ca.location", check_readable("ca_file", file)?);
        }
        match (&self.certificate_file, &self.key_file) {
            (Some(certificate), Some(key)) => {
                set("ssl.certificate.location", check_readable("certificate_file", certificate)?);
                set("ssl.key.location", check_readable("key_file", key)?);
            }
            (None, None) => {}
            (Some(_), None) => {
                return Err(security_error("bus.security.certificate_file needs bus.security.key_file".to_owned()));
            }
            (None, Some(_)) => {
                return Err(security_error("bus.security.key_file needs bus.security.certificate_file".to_owned()));
            }
        }
        let key_password = secret("key_password", self.key_password.as_ref(), self.key_password_file.as_deref())?;
        if let Some(password) = key_password {
            if self.key_file.is_none() {
                return Err(security_error("bus.security.key_password is set without bus.security.key_file".to_owned()));
            }
            set("ssl.key.password", password.expose().to_owned());
        }
        let password = secret("password", self.password.as_ref(), self.password_file.as_deref())?;
        match self.protocol {
            SecurityProtocol::Plaintext => {}
            SecurityProtocol::Ssl => {
                if password.is_some() || !self.username.is_empty() {
                    let detail =
                        "bus.security has a user, but protocol ssl identifies clients by certificate: set it to sasl_ssl";
                    return Err(security_error(detail.to_owned()));
                }
                set("security.protocol", "ssl".to_owned());
            }
            SecurityProtocol::SaslSsl => {
                if self.username.is_empty() {
                    return Err(security_error("bus.security.username is empty: sasl_ssl needs a user".to_owned()));
                }
                let password = password.ok_or_else(|| {
                    security_error(
                        "there is no password: set bus.security.password_file, or EADT_BUS__SECURITY__PASSWORD".to_owned(),
                    )
                })?;
                set("security.protocol", "sasl_ssl".to_owned());
                set("sasl.mechanism", self.mechanism.name().to_owned());
                set("sasl.username", self.username.clone());
                set("sasl.password", password.expose().to_owned());
            }
        }
        Ok(properties)
    }

    /// Files that hold secrets.
    pub fn secret_files(&self) -> impl Iterator<Item = &Path> {
        [&self.password_file, &self.key_file, &self.key_password_file].into_iter().flatten().map(PathBuf::as_path)
    }

    /// Returns the first key that is set.
    fn first_given(&self) -> Option<&'static str> {
        [
            ("username", !self.username.is_empty()),
            ("password_file", self.password_file.is_some()),
            ("password", self.password.is_some()),
            ("ca_file", self.ca_file.is_some()),
            ("certificate_file", self.certificate_file.is_some()),
            ("key_file", self.key_file.is_some()),
            ("key_password_file", self.key_password_file.is_some()),
            ("key_password", self.key_password.is_some()),
        ]
        .into_iter()
        .find_map(|(key, is_set)| is_set.then_some(key))
    }
}

fn security_error(detail: String) -> BusError {
    BusError::new(Remedy::Stop, "securing the connection to Kafka", detail)
}

fn cannot_read(key: &str, file: &Path, error: &std::io::Error) -> BusError {
    security_error(format!("cannot read bus.security.{key}={}: {error}", file.display()))
}

fn check_readable(key: &str, file: &Path) -> Result<String> {
    // For a missing file the client library only reports that TLS could not be set up.
    let size = std::fs::File::open(file).and_then(|file| file.metadata()).map_err(|error| cannot_read(key, file, &error))?;
    if !size.is_file() {
        return Err(security_error(format!("bus.security.{key}={} is not a file", file.display())));
    }
    Ok(file.display().to_string())
}

/// The most bytes of a file with a secret, a key or certificates.
pub(super) const FILE_BYTES: u64 = 1024 * 1024;

/// Returns a secret from its variable or its file.
fn secret(key: &str, value: Option<&Secret>, file: Option<&Path>) -> Result<Option<Secret>> {
    let found = match (value, file) {
        (Some(_), Some(_)) => {
            return Err(security_error(format!("bus.security.{key} and bus.security.{key}_file are both set: leave one out")));
        }
        (Some(value), None) => value.clone(),
        (None, Some(file)) => {
            let text =
                eadt_files::read_text(file, FILE_BYTES).map_err(|error| cannot_read(&format!("{key}_file"), file, &error))?;
            Secret::new(text.trim_end_matches(['\r', '\n']))
        }
        (None, None) => return Ok(None),
    };
    if found.expose().is_empty() {
        return Err(security_error(format!("bus.security.{key} is empty")));
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_user() -> SecuritySettings {
        SecuritySettings {
            protocol: SecurityProtocol::SaslSsl,
            username: "alice".into(),
            password: Some(Secret::new("hunter2")),
            ..SecuritySettings::default()
        }
    }

    #[test]
    fn nothing_set_means_nothing() {
        assert_eq!(SecuritySettings::default().properties().unwrap(), BTreeMap::new());
    }

    #[test]
    fn a_password_is_never_sent_in_the_clear() {
        let error =
            SecuritySettings { protocol: SecurityProtocol::Plaintext, ..with_user() }.properties().unwrap_err().to_string();
        assert!(error.contains("username") && error.contains("plaintext") && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn debug_output_hides_every_secret() {
        let shown = format!("{:?}", SecuritySettings { key_password: Some(Secret::new("other")), ..with_user() });
        assert!(shown.contains("alice") && !shown.contains("hunter2") && !shown.contains("other"), "{shown}");
    }

    #[cfg(not(feature = "kafka-tls"))]
    #[test]
    fn a_build_without_tls_reports_that() {
        let error = with_user().properties().unwrap_err().to_string();
        assert!(error.contains("--features kafka-tls"), "{error}");
    }

    #[cfg(feature = "kafka-tls")]
    #[test]
    fn users_and_passwords_become_properties() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "from a file\n").unwrap();
        let from_file = SecuritySettings { password: None, password_file: Some(file), ..with_user() };
        for (security, password) in [(with_user(), "hunter2"), (from_file, "from a file")] {
            let properties = security.properties().unwrap();
            assert_eq!(properties["security.protocol"], "sasl_ssl");
            assert_eq!(properties["sasl.mechanism"], "SCRAM-SHA-512");
            assert_eq!((&*properties["sasl.username"], &*properties["sasl.password"]), ("alice", password));
        }
    }

    #[cfg(feature = "kafka-tls")]
    #[test]
    fn what_cannot_be_meant_is_refused_with_its_key() {
        let missing = || Some(PathBuf::from("/nowhere/file"));
        for (security, part) in [
            (SecuritySettings { username: String::new(), ..with_user() }, "username is empty"),
            (SecuritySettings { password: None, ..with_user() }, "password_file"),
            (SecuritySettings { password: Some(Secret::new("")), ..with_user() }, "password is empty"),
            (SecuritySettings { password_file: missing(), ..with_user() }, "both set"),
            (SecuritySettings { password: None, password_file: missing(), ..with_user() }, "/nowhere/file"),
            (SecuritySettings { password: None, password_file: Some("/dev/zero".into()), ..with_user() }, "more than 1 MiB"),
            (SecuritySettings { ca_file: missing(), ..with_user() }, "ca_file=/nowhere/file"),
            (SecuritySettings { ca_file: Some("/tmp".into()), ..with_user() }, "is not a file"),
            (SecuritySettings { certificate_file: missing(), ..with_user() }, "needs bus.security.key_file"),
            (SecuritySettings { key_file: missing(), ..with_user() }, "needs bus.security.certificate_file"),
            (SecuritySettings { key_password: Some(Secret::new("x")), ..with_user() }, "without bus.security.key_file"),
            (SecuritySettings { protocol: SecurityProtocol::Ssl, ..with_user() }, "identifies clients by certificate"),
        ] {
            let error = security.properties().unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("hunter2"), "{error}");
        }
    }
}
