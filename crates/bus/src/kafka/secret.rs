//! Texts that are never shown.

use std::fmt;

use eadt_schemas::secret_names::{is_place_name, is_secret_name};
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;
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

    /// Returns the text itself, to pass it to a client.
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

/// Returns whether the value of a property may be shown: the client library has a property of this name, and it is neither a secret
/// nor the text of a PEM file, which may have a key in it. Under an unknown name, anything may have been meant.
pub fn is_shown_property(name: &str) -> bool {
    let set = ClientConfig::new().set(name, "").create_native_config();
    let is_unknown = matches!(set, Err(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..) | KafkaError::Nul(_)));
    !is_unknown && !is_secret_name(name) && !name.ends_with("pem")
}

/// Returns the value of a property as it may be shown.
pub fn shown_property<'a>(name: &str, value: &'a str) -> &'a str {
    if is_shown_property(name) { value } else { HIDDEN }
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
    if is_place_name(&name) {
        return false;
    }
    // The whole table is never a valid value, and it may hold secrets.
    let properties = name == "eadt_bus.properties";
    properties
        || (cloud && ["key", "connection_string"].iter().any(|part| name.contains(part)))
        // A text of a PEM file may have a key in it. No setting that counts tokens has a variable.
        || ((cloud || name.starts_with("eadt_"))
            && (is_secret_name(&name) || name.contains("token") || name.ends_with("pem")))
}

/// Serialises properties for settings that are shown: secrets, and values under unknown names, are hidden.
pub fn hide<S: Serializer>(properties: &std::collections::BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(properties.iter().map(|(name, value)| (name, shown_property(name, value))))
}

/// Returns the key of the first secret among the settings of a file, which must have none: files are copied, committed and shown.
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
    names.into_iter().find(|name| is_secret_name(name)).map(|name| format!("bus.properties.{name}"))
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
            ("EADT_BUS__PROPERTIES__SASL__PASWORD", Some("sasl.pasword"), true),
            (
                "EADT_BUS__PROPERTIES__SASL__OAUTHBEARER__ASSERTION__PRIVATE__KEY__PASSPHRASE",
                Some("sasl.oauthbearer.assertion.private.key.passphrase"),
                true,
            ),
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
    fn values_of_properties_are_shown_under_known_names_that_are_no_secrets() {
        for (name, shown) in [
            ("linger.ms", true),
            ("security.protocol", true),
            ("session.timeout.ms", true),
            ("ssl.key.location", true),
            ("sasl.username", true),
            ("transactional.id", true),
            ("debug", true),
            // Of topics.
            ("compression.type", true),
            ("acks", true),
            ("message.timeout.ms", true),
            // Settings that the library marks as sensitive, except names of users and files.
            ("ssl.key.password", false),
            ("ssl.key.pem", false),
            ("ssl_key", false),
            ("ssl.ca.pem", false),
            ("ssl.keystore.password", false),
            ("sasl.password", false),
            ("sasl.oauthbearer.config", false),
            ("sasl.oauthbearer.client.secret", false),
            ("sasl.oauthbearer.client.credentials.client.secret", false),
            ("sasl.oauthbearer.assertion.private.key.passphrase", false),
            ("sasl.oauthbearer.assertion.private.key.pem", false),
            // Settings that the library does not have.
            ("sasl.pasword", false),
            ("sasl.jaas.config", false),
            ("lingerms", false),
            ("no.such.property", false),
            ("", false),
            ("nul\0", false),
        ] {
            assert_eq!(is_shown_property(name), shown, "{name}");
        }
        let properties = std::collections::BTreeMap::from(
            [("linger.ms", "5"), ("no.such", "hunter2")].map(|(name, value)| (name.to_owned(), value.to_owned())),
        );
        let shown = hide(&properties, serde_json::value::Serializer).unwrap();
        assert_eq!(shown, serde_json::json!({"linger.ms": "5", "no.such": HIDDEN}));
    }

    #[test]
    fn secrets_in_a_file_are_found_by_name_in_every_spelling() {
        for (file, key) in [
            (r#"{"bus": {"security": {"password": "x"}}}"#, "bus.security.password"),
            (r#"{"bus": {"security": {"key_password": "x"}}}"#, "bus.security.key_password"),
            (r#"{"bus": {"properties": {"sasl.password": "x"}}}"#, "bus.properties.sasl.password"),
            (r#"{"bus": {"properties": {"ssl": {"key": {"pem": "x"}}}}}"#, "bus.properties.ssl.key.pem"),
            (r#"{"bus": {"properties": {"sasl.pasword": "x"}}}"#, "bus.properties.sasl.pasword"),
            (r#"{"bus": {"properties": {"a.private.key.passphrase": "x"}}}"#, "bus.properties.a.private.key.passphrase"),
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
