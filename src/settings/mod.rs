//! Settings: defaults, then a TOML file, then `EADT_…` variables, then flags. Unknown keys are refused.

pub mod kafka_names;
mod origins;
mod otlp;
mod reference;
mod renamed;
mod unknown;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use config::{Config, Environment, File, FileFormat};
use eadt_bus::kafka::{FetchPath, Secret, SecuritySettings, hide, is_secret_variable, property_of_variable, secret_in_file};
use eadt_service::address;
use eadt_service::files;
use eadt_service::logs::LogFormat;
use eadt_service::redact::{SecretRedactor, secrets_within};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use kafka_names::carry_prefix;
use origins::SettingSources;
pub use otlp::{OTLP_CERTIFICATE, OTLP_HEADERS, OtlpSettings};
pub use reference::markdown as reference_markdown;
pub use unknown::{find_unknown_key, resolve};

/// Names the settings file, as `--config` does.
const CONFIG_FILE: &str = "EADT_CONFIG_FILE";
/// Sets `bus.brokers`, too.
const BROKERS: &str = "KAFKA_BROKERS";
/// Read by the Python package in training jobs, and no settings of this program.
const PACKAGE: [&str; 7] =
    ["EADT_URL", "EADT_WORKLOAD", "EADT_TOKEN_FILE", "EADT_CA_FILE", "EADT_DIRECTIVES_FILE", "EADT_DISABLED", "EADT_RANK"];
const USERNAME: &str = "EADT_BUS__SECURITY__USERNAME";
const PASSWORD: &str = "EADT_BUS__SECURITY__PASSWORD";
const KEY_PASSWORD: &str = "EADT_BUS__SECURITY__KEY_PASSWORD";
/// Taken as they are written, not as the numbers that they may look like; and no error about settings can show them.
const VERBATIM: [&str; 3] = [USERNAME, PASSWORD, KEY_PASSWORD];
/// Variables start with this; `__` separates levels: `EADT_PROCESSOR__WINDOW_SECONDS=30`.
pub const ENV_PREFIX: &str = "EADT";

static SCHEMA: LazyLock<schemars::Schema> = LazyLock::new(|| schemars::schema_for!(ProgramSettings));

/// Longest prefix of topics and groups.
pub const PREFIX_BYTES: usize = 100;

/// Returns the permitted form of a prefix, to follow "it may hold" or "give".
pub fn prefix_form() -> String {
    format!("letters, digits, '.', '_' and '-' only, at most {PREFIX_BYTES}")
}

/// Returns whether a text can be the prefix of names of topics and groups.
pub fn is_prefix(text: &str) -> bool {
    text.len() <= PREFIX_BYTES && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// Everything that can be set. Each field's comment is its manual.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct ProgramSettings {
    /// Kafka or the embedded log.
    pub bus: BusSettings,
    /// Names and layout of the topics.
    pub topics: TopicSettings,
    /// Log lines on standard error.
    pub log: LogSettings,
    /// The operational endpoints `/metrics`, `/healthz`, `/readyz`.
    pub http: HttpSettings,
    /// Metrics by workload and GPU.
    pub metrics: MetricsSettings,
    /// GPU telemetry and training progress.
    pub collector: eadt_collector::RawSettings,
    /// Windows and decisions.
    pub processor: eadt_processor::ProcessorSettings,
    /// Applying decisions.
    pub actuator: eadt_actuator::ActuatorSettings,
    /// Kubernetes, where decisions are applied to it.
    pub kubernetes: eadt_kubernetes::KubernetesSettings,
    /// Parquet.
    pub archiver: eadt_archiver::ArchiverSettings,
    /// Learning models from the archive.
    pub optimizer: eadt_optimizer::OptimizerSettings,
    /// The simulated cluster.
    pub simulator: eadt_simulator_service::SimulatorSettings,
    /// The web page.
    pub dashboard: eadt_dashboard::DashboardSettings,
    /// Warnings about how these were given, such as keys under an old name.
    #[serde(skip)]
    #[schemars(skip)]
    pub warnings: Vec<String>,
}

/// Kafka or the embedded log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BusSettings {
    /// Kafka bootstrap servers, `host:port` separated by commas. Empty: the embedded log in `data_dir`. Default: empty.
    /// The variable `KAFKA_BROKERS` sets it, too.
    pub brokers: String,
    /// Folder of the embedded log, and of the archive under `archive`. Default: `eadt-data`.
    pub data_dir: PathBuf,
    /// Client that reads records from Kafka: `native`, a fetch path of our own, or `librdkafka`, which also reads from Kafka
    /// older than 3.0 and knows Kerberos. Groups, transactions and what is written are librdkafka's with both. Default: `native`.
    pub fetch: FetchPath,
    /// TLS and authentication with Kafka's brokers.
    pub security: SecuritySettings,
    /// Further librdkafka properties, for example `linger.ms`; secrets among them by variable only. Each has a variable of its
    /// own: `EADT_BUS__PROPERTIES__LINGER__MS` sets `linger.ms`. Default: none.
    #[serde(serialize_with = "hide")]
    pub properties: BTreeMap<String, String>,
}

impl Default for BusSettings {
    fn default() -> Self {
        Self {
            brokers: String::new(),
            data_dir: PathBuf::from("eadt-data"),
            fetch: FetchPath::default(),
            security: SecuritySettings::default(),
            properties: BTreeMap::new(),
        }
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

/// Metrics by workload and GPU, of `eadt exporter` and `eadt up`. Each workload has about 20 series, each GPU about 7.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsSettings {
    /// Whether `eadt up` has them at `/metrics`, too; `eadt exporter` always does. Default: false.
    pub by_workload: bool,
    /// Workloads with series of their own. Further ones are counted, and their energy and savings on record have one series
    /// together. One that is silent makes room for others. Default: 200.
    pub workloads_max: usize,
    /// GPUs with series; further ones are only counted. One that is silent makes room for others. Default: 1000.
    pub gpus_max: usize,
    /// OTLP receiver of the same metrics.
    pub otlp: OtlpSettings,
}

impl Default for MetricsSettings {
    fn default() -> Self {
        Self { by_workload: false, workloads_max: 200, gpus_max: 1000, otlp: OtlpSettings::default() }
    }
}

/// The operational endpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSettings {
    /// Address of `/metrics`, `/healthz` and `/readyz`: an IP address or `localhost`, with a port; port 0 takes a free one, and
    /// `eadt up` the next that is free. Default: `127.0.0.1:9464`.
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
    #[error("unknown setting {key}{from}; {advice}")]
    Unknown { key: String, from: String, advice: String },
    #[error("setting {key}{from}: {detail}")]
    Invalid { key: String, from: String, detail: String },
    /// A part's own check; names the key.
    #[error("setting {0}")]
    Refused(String),
    /// One of these, with settings under old names: notes on those that the error is about, warnings about all.
    #[error("{error}{notes}")]
    UnderOldNames { error: Box<SettingsError>, notes: String, warnings: Vec<String> },
}

impl SettingsError {
    /// Returns the warnings about how the settings were given.
    pub fn warnings(&self) -> &[String] {
        match self {
            Self::UnderOldNames { warnings, .. } => warnings,
            _ => &[],
        }
    }
}

/// The process environment, passed in so that tests need not change their own.
pub type EnvVariables = std::collections::HashMap<String, String>;

/// Returns the secrets among variables, which are hidden wherever a text leaves the process.
pub fn secrets(variables: &EnvVariables) -> SecretRedactor {
    let own = variables.iter().filter(|(name, _)| is_secret_variable(name)).map(|(_, value)| value.clone());
    let headers = variables.get(OTLP_HEADERS).into_iter().flat_map(|text| text.split(','));
    let headers = headers.filter_map(|pair| Some(pair.split_once('=')?.1.trim().to_owned()));
    let within = variables.iter().filter(|(name, _)| name.starts_with(ENV_PREFIX) || *name == BROKERS);
    SecretRedactor::new(own.chain(headers).chain(within.flat_map(|(_, value)| secrets_within(value))))
}

/// Reads settings: defaults, `file`, `variables`, then `overrides` (key path, TOML value) from flags.
pub fn load(
    file: Option<&Path>,
    variables: &EnvVariables,
    overrides: &[(&str, toml::Value)],
) -> Result<ProgramSettings, SettingsError> {
    let text = file.map(|path| {
        let unreadable = |error: std::io::Error| SettingsError::Unreadable { path: path.to_owned(), detail: error.to_string() };
        files::read_text(path, files::TEXT_BYTES).map_err(unreadable)
    });
    let text = text.transpose()?;
    read(file.zip(text.as_deref()), variables, overrides)
}

/// Like [`load`], with the text of the file; errors call the file by its name.
pub fn read(
    file: Option<(&Path, &str)>,
    variables: &EnvVariables,
    overrides: &[(&str, toml::Value)],
) -> Result<ProgramSettings, SettingsError> {
    let mut old_names = Vec::new();
    merge(file, variables, overrides, &mut old_names).map_err(|error| renamed::with_old_names(error, &old_names))
}

fn merge(
    file: Option<(&Path, &str)>,
    variables: &EnvVariables,
    overrides: &[(&str, toml::Value)],
    old_names: &mut Vec<renamed::OldName>,
) -> Result<ProgramSettings, SettingsError> {
    let mut builder = Config::builder();
    let mut variables = variables.clone();
    renamed::rename_variables(&mut variables, old_names)?;
    let variables = &variables;
    let mut table = None;
    if let Some((path, text)) = file {
        let unreadable = |detail: String| SettingsError::Unreadable { path: path.to_owned(), detail };
        let mut read: toml::Table = text.parse().map_err(|error: toml::de::Error| unreadable(parse_error(text, &error)))?;
        if let Some(key) = serde_json::to_value(&read).ok().and_then(|tree| secret_in_file(&tree)) {
            return Err(SettingsError::Refused(format!(
                "{key} is a secret, and settings files are copied and shown: name a file with bus.security.password_file or key_password_file, or set the variable {}",
                variable_of(&key)
            )));
        }
        renamed::rename_in_file(&mut read, &path.display().to_string(), old_names)?;
        let flattened = toml::to_string(&read).map_err(|error| unreadable(error.to_string()))?;
        builder = builder.add_source(File::from_str(&flattened, FileFormat::Toml));
        table = Some(read);
    }
    let (path, old_names) = (file.map(|(path, _)| path), &*old_names);
    let origins = SettingSources { file: table.as_ref().zip(path), variables, overrides, old_names };
    for (name, option_value, other) in [
        (
            "--kafka",
            overrides.iter().find(|(key, _)| *key == "bus.brokers").and_then(|(_, value)| value.as_str()),
            "leave it out",
        ),
        (BROKERS, variables.get(BROKERS).map(String::as_str), "unset it"),
    ] {
        if option_value.is_some_and(|brokers| brokers.trim().is_empty()) {
            let detail = format!("{name} is empty: give the brokers, or {other} for the embedded log");
            return Err(SettingsError::Refused(detail));
        }
    }
    let unusable = |error: config::ConfigError| SettingsError::Refused(error.to_string());
    if let Some(brokers) = variables.get(BROKERS) {
        builder = builder.set_override("bus.brokers", brokers.clone()).map_err(unusable)?;
    }
    let own: EnvVariables = variables.iter().filter(|(name, _)| is_setting(name)).map(|(k, v)| (k.clone(), v.clone())).collect();
    builder = builder.add_source(
        Environment::with_prefix(ENV_PREFIX).prefix_separator("_").separator("__").try_parsing(true).source(Some(own)),
    );
    for (key, value) in overrides {
        builder = builder.set_override(*key, from_toml(value)).map_err(unusable)?;
    }
    let merged = builder.build().map_err(unusable)?;
    let tree: serde_json::Value = merged.clone().try_deserialize().map_err(unusable)?;
    if let Some((key, advice)) = unknown::find_unknown_key(&tree, SCHEMA.as_value()) {
        let from = origins.of(&key);
        return Err(SettingsError::Unknown { key, from, advice });
    }
    let mut settings: ProgramSettings = merged.try_deserialize().map_err(|error| origins.explain(&tree, &error))?;
    settings.warnings = old_names.iter().map(renamed::OldName::warning).collect();
    let verbatim = |name: &str| variables.get(name).cloned();
    let properties = variables.iter().filter_map(|(name, value)| Some((property_of_variable(name)?, value.clone())));
    settings.bus.properties.extend(properties);
    settings.metrics.otlp.headers = verbatim(OTLP_HEADERS).map(Secret::new);
    // Empty is as good as unset, as OpenTelemetry has it.
    settings.metrics.otlp.certificate = verbatim(OTLP_CERTIFICATE).filter(|file| !file.is_empty()).map(PathBuf::from);
    let security = &mut settings.bus.security;
    security.password = verbatim(PASSWORD).map(Secret::new);
    security.key_password = verbatim(KEY_PASSWORD).map(Secret::new);
    if let Some(username) = verbatim(USERNAME) {
        security.username = username;
    }
    for prefix in [&mut settings.processor.prefix, &mut settings.actuator.prefix, &mut settings.simulator.prefix] {
        prefix.clone_from(&settings.topics.prefix);
    }
    if settings.archiver.location == eadt_archiver::ArchiverSettings::default().location {
        settings.archiver.location = settings.bus.data_dir.join("archive").display().to_string();
    }
    if settings.optimizer.location.is_empty() {
        settings.optimizer.location.clone_from(&settings.archiver.location);
    }
    validate(settings, &origins)
}

/// Returns whether a variable means a setting. Tests of this project read `EADT_TEST_…`.
fn is_setting(name: &str) -> bool {
    name.starts_with("EADT_")
        && !name.starts_with("EADT_TEST_")
        && name != CONFIG_FILE
        && !PACKAGE.contains(&name)
        && !VERBATIM.contains(&name)
        && property_of_variable(name).is_none()
}

/// Returns why a file is no TOML, and where. Without the line itself, which may hold a secret.
fn parse_error(text: &str, error: &toml::de::Error) -> String {
    let line = error.span().and_then(|span| text.get(..span.start)).map(|before| before.lines().count().max(1));
    line.map_or_else(|| error.message().to_owned(), |line| format!("line {line}: {}", error.message()))
}

/// Returns the variable that sets this key.
fn variable_of(key: &str) -> String {
    format!("{ENV_PREFIX}_{}", key.replace('.', "__").to_uppercase())
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

fn validate(settings: ProgramSettings, origins: &SettingSources<'_>) -> Result<ProgramSettings, SettingsError> {
    let invalid = |key: &str, value: &dyn std::fmt::Debug, detail: &str| {
        Err(SettingsError::Invalid { key: format!("{key}={value:?}"), from: origins.of(key), detail: detail.to_owned() })
    };
    let TopicSettings { prefix, partitions, replication } = &settings.topics;
    if !(1..=1000).contains(partitions) {
        return invalid("topics.partitions", partitions, "it is not between 1 and 1000");
    }
    if !(1..=7).contains(replication) {
        return invalid("topics.replication", replication, "it is not between 1 and 7");
    }
    if !is_prefix(prefix) {
        return invalid("topics.prefix", prefix, &format!("it may hold {}", prefix_form()));
    }
    // They are shown and logged, also by the client library.
    if settings.bus.brokers.contains('@') {
        let from = origins.of("bus.brokers");
        return Err(SettingsError::Refused(format!(
            "bus.brokers{from} has an @: brokers are host:port,…, their user is bus.security.username, and the password is in a file, \
             bus.security.password_file, or in the variable {PASSWORD}"
        )));
    }
    let address = &settings.http.address;
    if let Err(error) = address::parse(address) {
        return invalid("http.address", address, &error.to_string());
    }
    settings.metrics.otlp.check().map_err(SettingsError::Refused)?;
    settings.collector.check().map_err(|wrong| SettingsError::Refused(format!("collector.{}: {}", wrong.field, wrong.detail)))?;
    settings.processor.check().map_err(SettingsError::Refused)?;
    settings.actuator.check().map_err(SettingsError::Refused)?;
    settings.archiver.check().map_err(SettingsError::Refused)?;
    settings.optimizer.check().map_err(SettingsError::Refused)?;
    settings.kubernetes.check().map_err(SettingsError::Refused)?;
    settings.dashboard.check().map_err(SettingsError::Refused)?;
    kafka_names::check(&settings).map_err(SettingsError::Refused)?;
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> EnvVariables {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn with_file(text: &str) -> Result<ProgramSettings, SettingsError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("eadt.toml");
        std::fs::write(&path, text).unwrap();
        load(Some(&path), &EnvVariables::new(), &[])
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
        assert!(message.starts_with("unknown setting topics.partition from "), "{message}");
        assert!(message.ends_with("eadt.toml; did you mean topics.partitions?"), "{message}");
        let error = load(None, &variables(&[("EADT_TOPIC__PREFIX", "x")]), &[]).unwrap_err().to_string();
        assert_eq!(error, "unknown setting topic.prefix from EADT_TOPIC__PREFIX; did you mean topics.prefix?");
        let message =
            with_file("[[collector.jobs]]\nworkload = \"a/b\"\n[[collector.jobs]]\nworklod = \"a/b\"\n").unwrap_err().to_string();
        assert!(message.starts_with("unknown setting collector.jobs[1].worklod from "), "{message}");
        assert!(message.ends_with("; did you mean collector.jobs[].workload?"), "{message}");
    }

    #[test]
    fn unknown_keys_that_are_near_to_none_list_what_there_is() {
        let message = with_file("[up]\nspeed = 3\n").unwrap_err().to_string();
        assert!(message.contains("; known sections are actuator, archiver, bus, "), "{message}");
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
            ("[topics]\npartitions = \"many\"", "eadt.toml: invalid type: string \"many\", expected a whole number"),
            ("[processor]\nwindow_seconds = 0", "processor.window_seconds is 0"),
            ("[collector.progress]\nrequest_seconds = 0", "setting collector.progress.request_seconds: 0 is not between"),
            ("[kubernetes]\nlease = \"\"", "kubernetes.lease must not be empty"),
            ("[topics", "cannot read settings file"),
        ] {
            let message = with_file(text).unwrap_err().to_string();
            assert!(message.contains(part) && !message.contains("setting setting"), "{text}: {message}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_used_is_reported_with_its_key_its_origin_and_what_is_possible() {
        let wrong = |pairs: &[(&str, &str)]| load(None, &variables(pairs), &[]).unwrap_err().to_string();
        assert_eq!(
            wrong(&[("EADT_LOG__FORMAT", "xml")]),
            "setting log.format=\"xml\" from EADT_LOG__FORMAT: unknown variant `xml`, expected `text` or `json`"
        );
        let controller = wrong(&[("EADT_PROCESSOR__CONTROLLER", "matrx")]);
        assert!(
            controller.starts_with("setting processor.controller=\"matrx\" from EADT_PROCESSOR__CONTROLLER: "),
            "{controller}"
        );
        assert!(controller.contains("`matrix`") && controller.contains("`hybrid`"), "{controller}");
        let rate = wrong(&[("EADT_COLLECTOR__NVML__RATE_HERTZ", "fast")]);
        assert!(rate.contains("EADT_COLLECTOR__NVML__RATE_HERTZ") && rate.ends_with("expected a number"), "{rate}");
        let speed = wrong(&[("EADT_SIMULATOR__SPEED", "0")]);
        assert!(speed.contains("simulator.speed=0 from EADT_SIMULATOR__SPEED: ") && speed.contains("or max"), "{speed}");
        let file = with_file("[[collector.jobs]]\nrank = -1\n").unwrap_err().to_string();
        assert!(file.starts_with("setting collector.jobs[0].rank=-1 from ") && file.contains("eadt.toml: "), "{file}");
        let flag = load(None, &EnvVariables::new(), &[("log.format", "xml".into())]).unwrap_err().to_string();
        assert!(flag.starts_with("setting log.format=\"xml\" from a flag: "), "{flag}");
        let partitions = wrong(&[("EADT_TOPICS__PARTITIONS", "0")]);
        assert_eq!(partitions, "setting topics.partitions=0 from EADT_TOPICS__PARTITIONS: it is not between 1 and 1000");
    }

    #[test]
    fn a_variable_sets_a_property_of_the_client_library_as_it_is() {
        let env = variables(&[
            ("EADT_BUS__PROPERTIES__SASL__PASSWORD", "0123"),
            ("EADT_BUS__PROPERTIES__LINGER.MS", "5"),
            ("EADT_BUS__PROPERTIES__DEBUG", "all"),
        ]);
        let properties = load(None, &env, &[]).unwrap().bus.properties;
        let pairs: Vec<(&str, &str)> = properties.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(pairs, [("debug", "all"), ("linger.ms", "5"), ("sasl.password", "0123")]);
    }

    /// Returns every key of the reference except those of items of lists, which have no variable.
    fn keys() -> Vec<String> {
        let reference = reference_markdown();
        let tables = reference.split("\n## ").filter(|table| !table.starts_with("`[["));
        let rows = tables.flat_map(str::lines).filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        rows.map(|(key, _)| key.to_owned()).filter(|key| key != "key").collect()
    }

    #[test]
    fn a_secret_in_any_setting_is_shown_neither_by_errors_nor_by_config_show() {
        const MARK: &str = "Mark3d-s3cret";
        let keys = keys();
        assert!(keys.len() > 80, "{keys:?}");
        let mut tried = 0;
        let mut check = |env: EnvVariables, what: &str| {
            let secrets = secrets(&env);
            let texts = match load(None, &env, &[]) {
                Ok(settings) => {
                    let json = serde_json::to_string_pretty(&settings).unwrap();
                    vec![toml::to_string(&settings).unwrap(), json, format!("{settings:?}")]
                }
                Err(error) => vec![error.to_string()],
            };
            for text in texts {
                let shown = secrets.redact(&text).into_owned();
                assert!(!shown.contains(MARK), "{what}: {shown}");
            }
            tried += 1;
        };
        // A URL with a password anywhere, and a password where it belongs.
        for key in &keys {
            let variable = variable_of(key);
            for value in [
                format!("https://user:{MARK}@host:1/x?token={MARK}"),
                format!("s3://{MARK}@bucket/a"),
                format!("https://us%40er:%7B{MARK}%2F@host:1/x"),
                format!("https://user:it's|{MARK}@host:1/x"),
                format!("https://user:a\"b<{MARK}>@host:1/x"),
                format!("https://user:a,{MARK}@host:1/x"),
                format!("https://user:a b{MARK}@host:1/x"),
                format!("az://container/p?sv=1&sig=a'b{MARK}%3D"),
                format!("https://host/x?password={MARK}&AWS_SECRET_ACCESS_KEY={MARK}#access_token={MARK}"),
                format!("AccountName=a;AccountKey={MARK}=="),
                format!("user:{MARK}@host:9092"),
                format!("key:a/{MARK}@bucket/p"),
                format!("s3://key:a/{MARK}@bucket/a"),
                format!("s3://bucket/a?access_key_id=x&secret_access_key={MARK}"),
                format!("SASL://user:{MARK}@host:9092"),
                format!("host:9092?password={MARK}"),
                format!("a:9092,host:9092;sasl.password={MARK}"),
                format!("/data/archive?secret={MARK}"),
                format!("password={MARK}"),
            ] {
                check(variables(&[(&variable, &value)]), &format!("{variable}={value}"));
            }
        }
        for (variable, value) in [
            ("EADT_BUS__SECURITY__PASSWORD", MARK.to_owned()),
            ("EADT_BUS__SECURITY__KEY_PASSWORD", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES", format!("{{\"sasl.password\": \"{MARK}\"}}")),
            ("EADT_BUS__PROPERTIES", format!("sasl.password={MARK}")),
            ("EADT_BUS__PROPERTIES__SASL__PASSWORD", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SASL.PASSWORD", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SSL__KEY__PEM", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SASL__OAUTHBEARER__CLIENT__SECRET", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SASL__OAUTHBEARER__CONFIG", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SASL__OAUTHBEARER__CLIENT__CREDENTIALS__CLIENT__SECRET", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SASL__OAUTHBEARER__ASSERTION__PRIVATE__KEY__PASSPHRASE", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SASL__OAUTHBEARER__ASSERTION__PRIVATE__KEY__PEM", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SSL__KEYSTORE__PASSWORD", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SSL_KEY", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SSL__CA__PEM", MARK.to_owned()),
            // Misspelt.
            ("EADT_BUS__PROPERTIES__SASL__PASWORD", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SASL__PWD", MARK.to_owned()),
            ("EADT_BUS__PROPERTIES__SASL__OAUTHBEARER__CLIENT__SECRT", MARK.to_owned()),
            ("EADT_BUS__SECURITY__PASSWORT", MARK.to_owned()),
            ("EADT_BUS__SECURITY__PASSWORD__X", MARK.to_owned()),
            ("EADT_BUS__BROKERS", format!("user:{MARK}@host:9092")),
            ("KAFKA_BROKERS", format!("a:9092,user:{MARK}@host:9092")),
        ] {
            check(variables(&[(variable, &value)]), variable);
        }
        assert!(tried > 160, "{tried}");
        for file in [
            format!("[bus.security]\npassword = \"{MARK}\"\n"),
            format!("[bus.security]\npassword = \"{MARK}\n"),
            format!("[bus]\nproperties = \"sasl.password={MARK}\"\n"),
            format!("[bus.properties]\n\"sasl.pasword\" = \"{MARK}\"\n"),
            format!("[bus.properties]\n\"sasl.oauthbearer.assertion.private.key.passphrase\" = \"{MARK}\"\n"),
            format!("[bus.security]\nkey_pasword = \"{MARK}\"\n"),
            format!("[bus.properties]\nsasl.password = [\"{MARK}\"]\n"),
            format!("[archiver]\nlocation = \"s3://key:{MARK}@bucket\"\nroll_seconds = -1\n"),
            format!("[archiver]\nlocation = [\"s3://bucket?secret={MARK}\"]\n"),
            format!("[bus]\nbrokers = [\"host:9092?password={MARK}\"]\n"),
        ] {
            let text = with_file(&file).unwrap_err().to_string();
            let shown = SecretRedactor::default().redact(&text).into_owned();
            assert!(!shown.contains(MARK), "{file}: {shown}");
        }
    }

    #[test]
    fn a_value_of_a_property_that_does_not_exist_is_not_shown_from_a_file_either() {
        let settings = with_file("[bus.properties]\n\"no.such\" = \"Mark3d\"\n\"linger.ms\" = \"7\"\n").unwrap();
        for shown in [toml::to_string(&settings).unwrap(), serde_json::to_string(&settings).unwrap()] {
            assert!(!shown.contains("Mark3d") && shown.contains("no.such"), "{shown}");
        }
    }

    #[test]
    fn localhost_is_an_address_to_listen_on() {
        let env = variables(&[("EADT_HTTP__ADDRESS", "localhost:9464"), ("EADT_COLLECTOR__PROGRESS__LISTEN", "localhost:9477")]);
        let settings = load(None, &env, &[]).unwrap();
        assert_eq!(settings.http.address, "localhost:9464");
        assert_eq!(settings.collector.progress.listen.to_string(), "127.0.0.1:9477");
        let error = load(None, &variables(&[("EADT_COLLECTOR__PROGRESS__LISTEN", "here:1")]), &[]).unwrap_err().to_string();
        assert!(error.contains("collector.progress.listen") && error.contains("localhost:9464"), "{error}");
    }

    #[test]
    fn brokers_that_are_given_are_not_empty() {
        let error = load(None, &EnvVariables::new(), &[("bus.brokers", "".into())]).unwrap_err().to_string();
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
                load(Some(&path), &EnvVariables::new(), &[]).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                seen += 1;
            }
        }
        assert!(seen > 0);
    }

    #[test]
    fn two_services_in_one_consumer_group_are_refused() {
        let env = variables(&[("EADT_PROCESSOR__GROUP", "team"), ("EADT_ARCHIVER__GROUP", "team")]);
        let error = load(None, &env, &[]).unwrap_err().to_string();
        assert!(error.starts_with("setting processor.group and archiver.group are both \"team\", one consumer group"), "{error}");
        let env = variables(&[("EADT_TOPICS__PREFIX", "lab."), ("EADT_PROCESSOR__GROUP", "lab.archiver")]);
        assert!(load(None, &env, &[]).unwrap_err().to_string().contains("are both \"lab.archiver\""));
    }

    #[test]
    fn names_in_kafka_carry_the_prefix_of_the_topics_and_once_only() {
        let names = |text: &str| {
            let mut settings = with_file(text).unwrap();
            carry_prefix(&mut settings);
            [settings.processor.group, settings.processor.instance, settings.archiver.group, settings.actuator.instance]
        };
        assert_eq!(names(""), ["processor", "processor-0", "archiver", "actuator-0"]);
        assert_eq!(names("[topics]\nprefix = \"lab.\""), ["lab.processor", "lab.processor-0", "lab.archiver", "lab.actuator-0"]);
        let given = "[topics]\nprefix = \"lab.\"\n[processor]\ngroup = \"lab.mine\"\ninstance = \"one\"";
        assert_eq!(names(given)[..2], ["lab.mine", "lab.one"]);
    }
}
