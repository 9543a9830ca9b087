//! Texts that are never shown.

use std::fmt;

use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Text in place of a secret.
const HIDDEN: &str = "…";

/// A password. It is wiped from memory when dropped; neither `Debug` nor serialisation shows it.
#[derive(Clone, Default)]
pub struct Secret(SecretString);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(SecretString::from(text.into()))
    }

    /// Returns the text itself, for whoever hands it on.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

impl JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string"})
    }
}

/// Returns whether a property of the client library of this name holds a secret.
pub fn is_secret(name: &str) -> bool {
    ["password", "secret", "key.pem", "sasl.oauthbearer.config", "sasl.jaas.config", "token"]
        .iter()
        .any(|part| name.contains(part))
}

/// Sets one property of the client library: the rest of the name is the property's, with `__` or `.` between its words.
const PROPERTY: &str = "EADT_BUS__PROPERTIES__";

/// Returns the property of the client library that a variable sets: `EADT_BUS__PROPERTIES__SASL__PASSWORD` sets `sasl.password`.
pub fn property_of_variable(name: &str) -> Option<String> {
    let rest = name.strip_prefix(PROPERTY).filter(|rest| !rest.is_empty())?;
    Some(rest.to_lowercase().replace("__", "."))
}

/// Returns whether the value of a variable is a secret: a setting's, or an object store's key. The name of a file is none.
pub fn is_secret_variable(name: &str) -> bool {
    let name = name.to_lowercase().replace("__", ".");
    let cloud = ["aws_", "azure_", "google_"].iter().any(|prefix| name.starts_with(prefix));
    if name.ends_with("_file") || name.ends_with(".location") {
        return false;
    }
    // The whole table is never a valid value, and it may hold secrets.
    let properties = name == "eadt_bus.properties";
    properties
        || (cloud && ["key", "connection_string"].iter().any(|part| name.contains(part)))
        || ((cloud || name.starts_with("eadt_")) && is_secret(&name))
}

/// Serialises properties with their secrets hidden, for settings that are shown.
pub fn hide<S: Serializer>(properties: &std::collections::BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(properties.iter().map(|(name, value)| (name, if is_secret(name) { HIDDEN } else { value })))
}

/// Returns the key of the first secret among the settings of a file, where none belongs: files are copied, committed and shown.
/// Its value is left out.
pub fn secret_in_file(settings: &Value) -> Option<String> {
    let bus = settings.get("bus")?;
    let typed = bus.get("security").and_then(Value::as_object).into_iter().flatten();
    let mut typed = typed.filter(|(name, _)| matches!(name.as_str(), "password" | "key_password"));
    if let Some((name, _)) = typed.next() {
        return Some(format!("bus.security.{name}"));
    }
    let mut names = Vec::new();
    dotted_names(bus.get("properties")?, String::new(), &mut names);
    names.into_iter().find(|name| is_secret(name)).map(|name| format!("bus.properties.{name}"))
}

/// Collects dotted names, however deep the file nests them.
fn dotted_names(value: &Value, path: String, names: &mut Vec<String>) {
    match value.as_object() {
        None => names.push(path),
        Some(map) => {
            for (name, child) in map {
                dotted_names(child, if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, names);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_neither_shown_nor_written() {
        let secret: Secret = serde_json::from_str(r#""hunter2""#).unwrap();
        assert_eq!(secret.expose(), "hunter2");
        assert!(!format!("{secret:?} {secret:#?}").contains("hunter2"));
        assert!(!serde_json::to_string(&secret).unwrap().contains("hunter2"));
    }

    #[test]
    fn variables_that_hold_secrets_and_properties_are_known_by_name() {
        for (name, property, secret) in [
            ("EADT_BUS__PROPERTIES__SASL__PASSWORD", Some("sasl.password"), true),
            ("EADT_BUS__PROPERTIES__SSL.KEY.PEM", Some("ssl.key.pem"), true),
            ("EADT_BUS__PROPERTIES__LINGER__MS", Some("linger.ms"), false),
            ("EADT_BUS__PROPERTIES__SSL__KEY__LOCATION", Some("ssl.key.location"), false),
            ("EADT_BUS__PROPERTIES", None, true),
            ("EADT_BUS__SECURITY__PASSWORD", None, true),
            ("EADT_BUS__SECURITY__PASSWORD_FILE", None, false),
            ("EADT_COLLECTOR__PROGRESS__TOKENS_FILE", None, false),
            ("AWS_SECRET_ACCESS_KEY", None, true),
            ("AZURE_STORAGE_ACCOUNT_KEY", None, true),
            ("AZURE_STORAGE_CONNECTION_STRING", None, true),
            ("AZURE_STORAGE_SAS_TOKEN", None, true),
            ("AWS_SESSION_TOKEN", None, true),
            ("AWS_REGION", None, false),
            ("HOME", None, false),
        ] {
            assert_eq!((property_of_variable(name).as_deref(), is_secret_variable(name)), (property, secret), "{name}");
        }
    }

    #[test]
    fn secrets_in_a_file_are_found_by_name_in_every_spelling() {
        for (file, key) in [
            (r#"{"bus": {"security": {"password": "x"}}}"#, "bus.security.password"),
            (r#"{"bus": {"security": {"key_password": "x"}}}"#, "bus.security.key_password"),
            (r#"{"bus": {"properties": {"sasl.password": "x"}}}"#, "bus.properties.sasl.password"),
            (r#"{"bus": {"properties": {"ssl": {"key": {"pem": "x"}}}}}"#, "bus.properties.ssl.key.pem"),
            (
                r#"{"bus": {"properties": {"sasl.oauthbearer.client.secret": "x"}}}"#,
                "bus.properties.sasl.oauthbearer.client.secret",
            ),
        ] {
            assert_eq!(secret_in_file(&serde_json::from_str(file).unwrap()).as_deref(), Some(key));
        }
        for fine in [
            r#"{"bus": {"security": {"password_file": "/run/p", "username": "u"}, "properties": {"linger.ms": "2"}}}"#,
            r#"{"bus": {"brokers": "k:9092"}}"#,
            "{}",
        ] {
            assert_eq!(secret_in_file(&serde_json::from_str(fine).unwrap()), None, "{fine}");
        }
    }
}
