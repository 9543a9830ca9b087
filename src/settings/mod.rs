//! Settings: defaults, then a TOML file, then `EADT_…` variables, then flags. Unknown keys are refused.

mod reference;
mod unknown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use config::{Config, Environment, File, FileFormat};
use eadt_service::logs::LogFormat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use reference::markdown as reference_markdown;
pub use unknown::resolve;

/// Names the settings file, as `--config` does.
const CONFIG_FILE: &str = "EADT_CONFIG_FILE";
/// Variables start with this; `__` separates levels: `EADT_PROCESSOR__WINDOW_SECONDS=30`.
pub const ENV_PREFIX: &str = "EADT";

/// Everything that can be set. Each field's comment is its manual.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Where the log is.
    pub bus: BusSettings,
    /// Names and layout of the topics.
    pub topics: TopicSettings,
    /// Log lines on standard error.
    pub log: LogSettings,
    /// The operational endpoints `/metrics`, `/healthz`, `/readyz`.
    pub http: HttpSettings,
    /// GPU telemetry and training progress.
    pub collector: eadt_collector::RawSettings,
    /// Windows and decisions.
    pub processor: eadt_processor::Settings,
    /// Applying decisions.
    pub actuator: eadt_actuator::Settings,
    /// Kubernetes, where decisions are applied to it.
    pub kubernetes: eadt_kubernetes::Settings,
    /// Parquet.
    pub archiver: eadt_archiver::Settings,
    /// Learning models from the archive.
    pub optimizer: eadt_optimizer::Settings,
    /// The simulated cluster.
    pub simulator: eadt_simulator_service::Settings,
}

/// Where the log is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BusSettings {
    /// Kafka bootstrap servers, `host:port` separated by commas. Empty: the embedded log in `data_dir`. Default: empty.
    /// The variable `KAFKA_BROKERS` sets it, too.
    pub brokers: String,
    /// Folder of the embedded log, and of the archive under `archive`. Default: `eadt-data`.
    pub data_dir: PathBuf,
    /// Further librdkafka properties, for example `security.protocol`. Default: none.
    pub properties: BTreeMap<String, String>,
}

impl Default for BusSettings {
    fn default() -> Self {
        Self { brokers: String::new(), data_dir: PathBuf::from("eadt-data"), properties: BTreeMap::new() }
    }
}

/// Names and layout of the topics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TopicSettings {
    /// Put before every topic name. Default: `eadt.`.
    pub prefix: String,
    /// Partitions of every keyed topic, 1 to 1000. Default: 4.
    pub partitions: i32,
    /// Copies of every partition on Kafka, 1 to 7. Default: 1.
    pub replication: i32,
}

impl Default for TopicSettings {
    fn default() -> Self {
        Self { prefix: "eadt.".to_owned(), partitions: 4, replication: 1 }
    }
}

/// Log lines on standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// `text` or `json`. Default: `text`.
    #[schemars(with = "String")]
    pub format: LogFormat,
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,eadt_bus=debug`.
    /// Default: `info`, and of the embedded store warnings only.
    pub filter: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info,fjall=warn,lsm_tree=warn".to_owned() }
    }
}

/// The operational endpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// Address of `/metrics`, `/healthz` and `/readyz`; port 0 takes a free one. Default: `127.0.0.1:9464`.
    pub address: String,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self { address: "127.0.0.1:9464".to_owned() }
    }
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read settings file={path:?}: {detail}")]
    Unreadable { path: PathBuf, detail: String },
    #[error("unknown setting key={key}; {advice}")]
    Unknown { key: String, advice: String },
    #[error("setting {detail}")]
    Invalid { detail: String },
}

/// The process environment, passed in so that tests need not change their own.
pub type Variables = std::collections::HashMap<String, String>;

/// Reads settings: defaults, `file`, `variables`, then `overrides` (key path, TOML value) from flags.
pub fn load(file: Option<&Path>, variables: &Variables, overrides: &[(&str, toml::Value)]) -> Result<Settings, SettingsError> {
    let mut builder = Config::builder();
    if let Some(path) = file {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable { path: path.to_owned(), detail: error.to_string() })?;
        let table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| SettingsError::Unreadable { path: path.to_owned(), detail: error.to_string() })?;
        let flattened = toml::to_string(&table)
            .map_err(|error| SettingsError::Unreadable { path: path.to_owned(), detail: error.to_string() })?;
        builder = builder.add_source(File::from_str(&flattened, FileFormat::Toml));
    }
    let invalid = |error: config::ConfigError| SettingsError::Invalid { detail: error.to_string() };
    let empty = overrides.iter().any(|(key, value)| *key == "bus.brokers" && value.as_str().is_some_and(|v| v.trim().is_empty()));
    if empty {
        return Err(SettingsError::Invalid {
            detail: "--kafka is empty: give the brokers, or leave it out for the embedded log".to_owned(),
        });
    }
    if variables.get("KAFKA_BROKERS").is_some_and(|brokers| brokers.trim().is_empty()) {
        let detail = "KAFKA_BROKERS is empty: set it to the brokers, or unset it for the embedded log";
        return Err(SettingsError::Invalid { detail: detail.to_owned() });
    }
    if let Some(brokers) = variables.get("KAFKA_BROKERS") {
        builder = builder.set_override("bus.brokers", brokers.clone()).map_err(invalid)?;
    }
    // Tests of this project read EADT_TEST_… variables; they are no settings.
    let own: Variables = variables
        .iter()
        .filter(|(name, _)| name.starts_with("EADT_") && !name.starts_with("EADT_TEST_") && *name != CONFIG_FILE)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    builder = builder.add_source(
        Environment::with_prefix(ENV_PREFIX).prefix_separator("_").separator("__").try_parsing(true).source(Some(own)),
    );
    for (key, value) in overrides {
        builder = builder.set_override(*key, from_toml(value)).map_err(invalid)?;
    }
    let merged = builder.build().map_err(invalid)?;
    let tree: serde_json::Value = merged.clone().try_deserialize().map_err(invalid)?;
    let schema = schemars::schema_for!(Settings);
    if let Some((key, advice)) = unknown::first(&tree, schema.as_value()) {
        return Err(SettingsError::Unknown { key, advice });
    }
    let mut settings: Settings = merged.try_deserialize().map_err(invalid)?;
    for prefix in [&mut settings.processor.prefix, &mut settings.actuator.prefix, &mut settings.simulator.prefix] {
        prefix.clone_from(&settings.topics.prefix);
    }
    if settings.archiver.location == eadt_archiver::Settings::default().location {
        settings.archiver.location = settings.bus.data_dir.join("archive").display().to_string();
    }
    if settings.optimizer.location.is_empty() {
        settings.optimizer.location.clone_from(&settings.archiver.location);
    }
    validate(settings)
}

fn from_toml(value: &toml::Value) -> config::Value {
    match value {
        toml::Value::String(text) => text.clone().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) => (*number).into(),
        toml::Value::Boolean(flag) => (*flag).into(),
        other => other.to_string().into(),
    }
}

fn validate(settings: Settings) -> Result<Settings, SettingsError> {
    let invalid = |detail: String| Err(SettingsError::Invalid { detail });
    if !(1..=1000).contains(&settings.topics.partitions) {
        return invalid(format!("topics.partitions={} is not between 1 and 1000", settings.topics.partitions));
    }
    if !(1..=7).contains(&settings.topics.replication) {
        return invalid(format!("topics.replication={} is not between 1 and 7", settings.topics.replication));
    }
    let prefix = &settings.topics.prefix;
    if prefix.len() > 100 || !prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        return invalid(format!("topics.prefix={prefix:?} may hold letters, digits, '.', '_' and '-' only, at most 100"));
    }
    if settings.http.address.parse::<std::net::SocketAddr>().is_err() {
        return invalid(format!(
            "http.address={:?} is not an address with a port, such as 127.0.0.1:9464",
            settings.http.address
        ));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Variables {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn with_file(text: &str) -> Result<Settings, SettingsError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eadt.toml");
        std::fs::write(&path, text).unwrap();
        load(Some(&path), &Variables::new(), &[])
    }

    #[test]
    fn later_sources_win() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eadt.toml");
        std::fs::write(&path, "[topics]\nprefix = \"a.\"\npartitions = 8\nreplication = 3\n").unwrap();
        let env = variables(&[("EADT_TOPICS__PARTITIONS", "12"), ("EADT_TOPICS__PREFIX", "b."), ("KAFKA_BROKERS", "k:9092")]);
        let settings = load(Some(&path), &env, &[("topics.prefix", "c.".into())]).unwrap();
        assert_eq!((settings.topics.replication, settings.topics.partitions, &*settings.topics.prefix), (3, 12, "c."));
        assert_eq!(settings.bus.brokers, "k:9092");
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest() {
        let message = with_file("[topics]\npartition = 8\n").unwrap_err().to_string();
        assert_eq!(message, "unknown setting key=topics.partition; did you mean topics.partitions?");
        let error = load(None, &variables(&[("EADT_TOPIC__PREFIX", "x")]), &[]).unwrap_err().to_string();
        assert_eq!(error, "unknown setting key=topic.prefix; did you mean topics.prefix?");
        let message =
            with_file("[[collector.jobs]]\nworkload = \"a/b\"\n[[collector.jobs]]\nworklod = \"a/b\"\n").unwrap_err().to_string();
        assert_eq!(message, "unknown setting key=collector.jobs[1].worklod; did you mean collector.jobs[].workload?");
    }

    #[test]
    fn unknown_keys_that_are_near_to_none_are_told_what_there_is() {
        let message = with_file("[up]\nspeed = 3\n").unwrap_err().to_string();
        assert!(message.starts_with("unknown setting key=up.speed; known sections are actuator, archiver, bus, "), "{message}");
        let message = with_file("[topics]\ncleanup_of_old_things = true\n").unwrap_err().to_string();
        assert!(message.ends_with("known in topics are partitions, prefix, replication"), "{message}");
    }

    #[test]
    fn free_maps_take_any_key() {
        let settings = with_file("[bus.properties]\n\"security.protocol\" = \"SASL_SSL\"\n").unwrap();
        assert_eq!(settings.bus.properties.get("security.protocol").map(String::as_str), Some("SASL_SSL"));
    }

    #[test]
    fn impossible_values_name_the_key() {
        for (text, part) in [
            ("[topics]\npartitions = 0", "topics.partitions=0"),
            ("[topics]\nprefix = \"../x\"", "topics.prefix"),
            ("[http]\naddress = \"here\"", "http.address"),
            ("[topics]\npartitions = \"many\"", "partitions"),
            ("[topics", "cannot read settings file"),
        ] {
            let message = with_file(text).unwrap_err().to_string();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn brokers_that_are_given_are_not_empty() {
        let error = load(None, &Variables::new(), &[("bus.brokers", "".into())]).unwrap_err().to_string();
        assert!(error.contains("--kafka is empty"), "{error}");
        let error = load(None, &variables(&[("KAFKA_BROKERS", " ")]), &[]).unwrap_err().to_string();
        assert!(error.contains("KAFKA_BROKERS is empty"), "{error}");
    }

    #[test]
    fn every_file_in_configs_is_valid() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
        let mut seen = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "toml") {
                load(Some(&path), &Variables::new(), &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                seen += 1;
            }
        }
        assert!(seen > 0);
    }
}
