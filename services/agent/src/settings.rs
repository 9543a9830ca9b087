//! Settings as an operator writes them ([`RawSettings`]) and as the agent uses them ([`AgentSettings`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{Config, Environment, File, FileFormat};
use eadt_bus::kafka::{FetchPath, Secret, SecuritySettings, hide, is_secret_variable, property_of_variable, secret_in_file};
use eadt_service::files;
use eadt_service::logs::LogFormat;
use eadt_service::redact::SecretRedactor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gpu::AllowedSettings;
use crate::intents::IntentSource;
use crate::mps::{MpsDaemon, default_pipe_directory};

/// Settings as written in a file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawSettings {
    /// Connection to the log.
    pub bus: RawBus,
    /// Names of the topics.
    pub topics: RawTopics,
    /// Log lines on standard error.
    pub log: RawLog,
    /// The operational endpoints.
    pub http: RawHttp,
    /// Settings of the agent itself.
    pub agent: RawAgent,
}

/// Connection to the log.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawBus {
    /// Kafka bootstrap servers, `host:port` separated by commas. The variable `KAFKA_BROKERS` sets it, too.
    pub brokers: String,
    /// Client that reads records from Kafka: `native` or `librdkafka`. Default: `native`.
    pub fetch: FetchPath,
    /// Authentication between this process and Kafka's brokers.
    pub security: SecuritySettings,
    /// Further librdkafka properties, for example `linger.ms`; secrets among them by variable only.
    #[serde(serialize_with = "hide")]
    pub properties: BTreeMap<String, String>,
}

/// Names of the topics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawTopics {
    /// Put before every topic name.
    pub prefix: String,
}

impl Default for RawTopics {
    fn default() -> Self {
        Self { prefix: "eadt.".to_owned() }
    }
}

/// Log lines on standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawLog {
    /// `text` or `json`.
    #[schemars(with = "String")]
    pub format: LogFormat,
    /// A level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as `info,eadt_bus=debug`.
    pub filter: String,
}

impl Default for RawLog {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: "info".to_owned() }
    }
}

/// The operational endpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawHttp {
    /// Address of `/metrics`, `/healthz` and `/readyz`; port 0 takes a free one.
    pub address: String,
}

impl Default for RawHttp {
    fn default() -> Self {
        Self { address: "127.0.0.1:9465".to_owned() }
    }
}

/// Settings of the agent itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawAgent {
    /// Node whose intents it follows: in Kubernetes the node's name. Unset: the host's name.
    pub node: Option<String>,
    /// Folder of the original settings; it must outlive the process and the container.
    pub state_dir: PathBuf,
    /// A file with one intent, instead of the log: without Kafka, or if a batch system's prologue writes the settings. Without
    /// the file nothing is requested.
    pub intents_file: Option<PathBuf>,
    /// Whether power caps may be set on this node.
    pub power_limits: bool,
    /// Whether SM clocks may be bounded on this node. Locked clocks cannot be read: where another tool locks them, switch
    /// this off, for the agent would put them back as unlocked.
    pub clocks: bool,
    /// GPUs that it may change, by NVML index. Unset: all.
    pub gpus: Option<Vec<u32>>,
    /// Path or name of the NVML library. Unset: the system's.
    pub library_path: Option<PathBuf>,
    /// Seconds between two looks at each device. 0.05 to 60.
    pub check_seconds: f64,
    /// A device that does not answer for this long is reported as stuck, in seconds. 0.1 to 60.
    pub call_timeout_seconds: f64,
    /// Seconds until a lost device is tried again. 0.1 to 3600.
    pub retry_seconds: f64,
    /// Longest wait of a stop until everything is put back, in seconds; below the grace period of the process. 0.1 to 600.
    pub stop_seconds: f64,
    /// MPS control daemons.
    pub mps: RawMps,
}

impl Default for RawAgent {
    fn default() -> Self {
        Self {
            node: None,
            state_dir: PathBuf::from("/var/lib/eadt-agent"),
            intents_file: None,
            power_limits: true,
            clocks: true,
            gpus: None,
            library_path: None,
            check_seconds: 1.0,
            call_timeout_seconds: 5.0,
            retry_seconds: 10.0,
            stop_seconds: 20.0,
            mps: RawMps::default(),
        }
    }
}

/// MPS control daemons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawMps {
    /// Whether their default thread percentage may be changed on this node, where every tenant's policy allows it.
    pub enabled: bool,
    /// Pipe folders of the daemons, one each; NVIDIA's device plugin has `/run/nvidia/mps/RESOURCE/pipe`.
    pub pipe_directories: Vec<PathBuf>,
    /// NVIDIA's control program.
    pub control_program: PathBuf,
    /// Time limit of one command to a daemon, in seconds. 0.1 to 60.
    pub timeout_seconds: f64,
}

impl Default for RawMps {
    fn default() -> Self {
        Self {
            enabled: false,
            pipe_directories: vec![default_pipe_directory().to_owned()],
            control_program: PathBuf::from("nvidia-cuda-mps-control"),
            timeout_seconds: 5.0,
        }
    }
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("cannot read settings file={path:?}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("settings: {0}")]
    Unusable(String),
    #[error("setting {key}: {detail}")]
    Invalid { key: &'static str, detail: String },
}

/// Checked settings.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSettings {
    pub(crate) node: String,
    pub(crate) state_dir: PathBuf,
    pub(crate) source: IntentSource,
    pub(crate) prefix: String,
    pub(crate) allowed: AllowedSettings,
    pub(crate) gpus: Option<BTreeSet<u32>>,
    pub(crate) library_path: Option<PathBuf>,
    pub(crate) check: Duration,
    pub(crate) call_timeout: Duration,
    pub(crate) retry: Duration,
    pub(crate) stop: Duration,
    /// Empty where defaults may not be changed.
    pub(crate) daemons: Vec<MpsDaemon>,
}

/// The process environment, passed in so that tests need not change their own.
pub type EnvVariables = std::collections::HashMap<String, String>;

/// Returns the secrets among variables, which are hidden in errors and log lines.
pub fn secrets(variables: &EnvVariables) -> SecretRedactor {
    SecretRedactor::new(variables.iter().filter(|(name, _)| is_secret_variable(name)).map(|(_, value)| value.clone()))
}

/// Reads settings: defaults, then `file`, then `EADT_…` variables (`EADT_AGENT__NODE=node-1`), then `overrides`.
pub fn load(file: Option<&Path>, variables: &EnvVariables, overrides: &[(&str, String)]) -> Result<RawSettings, SettingsError> {
    let text = file.map(|path| {
        files::read_text(path, files::SMALL_BYTES).map_err(|source| SettingsError::Unreadable { path: path.to_owned(), source })
    });
    read(text.transpose()?.as_deref(), variables, overrides)
}

/// Loads the settings as [`load`] does, from the text of the file.
pub fn read(file: Option<&str>, variables: &EnvVariables, overrides: &[(&str, String)]) -> Result<RawSettings, SettingsError> {
    let unusable = |error: config::ConfigError| SettingsError::Unusable(error.to_string());
    let mut builder = Config::builder();
    if let Some(text) = file {
        let tree: Option<serde_json::Value> = text.parse::<toml::Table>().ok().and_then(|table| serde_json::to_value(table).ok());
        if let Some(key) = tree.and_then(|tree| secret_in_file(&tree)) {
            return Err(SettingsError::Unusable(format!(
                "{key} is a secret, and settings files are copied and shown: name a file with bus.security.password_file or key_password_file, or set the variable EADT_{}",
                key.replace('.', "__").to_uppercase()
            )));
        }
        builder = builder.add_source(File::from_str(text, FileFormat::Toml));
    }
    if let Some(brokers) = variables.get("KAFKA_BROKERS") {
        builder = builder.set_override("bus.brokers", brokers.clone()).map_err(unusable)?;
    }
    // Tests of this project read EADT_TEST_… variables; they are no settings.
    let own = |name: &str| {
        name.starts_with("EADT_")
            && !name.starts_with("EADT_TEST_")
            && !VERBATIM.contains(&name)
            && property_of_variable(name).is_none()
    };
    let own = variables.iter().filter(|(name, _)| own(name)).map(|(name, value)| (name.clone(), value.clone())).collect();
    let environment = Environment::with_prefix("EADT").prefix_separator("_").separator("__").try_parsing(true);
    let environment = environment.list_separator(",").with_list_parse_key("agent.mps.pipe_directories");
    builder = builder.add_source(environment.source(Some(own)));
    for (key, value) in overrides {
        builder = builder.set_override(*key, value.clone()).map_err(unusable)?;
    }
    let mut settings: RawSettings = builder.build().and_then(Config::try_deserialize).map_err(unusable)?;
    let properties = variables.iter().filter_map(|(name, value)| Some((property_of_variable(name)?, value.clone())));
    settings.bus.properties.extend(properties);
    let [username, password, key_password] = VERBATIM.map(|name| variables.get(name).cloned());
    let security = &mut settings.bus.security;
    (security.password, security.key_password) = (password.map(Secret::new), key_password.map(Secret::new));
    if let Some(username) = username {
        security.username = username;
    }
    Ok(settings)
}

/// Variables that are taken as text, even if they look like numbers; no error about settings can show them.
const VERBATIM: [&str; 3] = ["EADT_BUS__SECURITY__USERNAME", "EADT_BUS__SECURITY__PASSWORD", "EADT_BUS__SECURITY__KEY_PASSWORD"];

fn seconds(key: &'static str, value: f64, low: f64, high: f64) -> Result<Duration, SettingsError> {
    if (low..=high).contains(&value) {
        return Ok(Duration::from_secs_f64(value));
    }
    Err(SettingsError::Invalid { key, detail: format!("{value} is not between {low} and {high}") })
}

impl RawSettings {
    /// Checks every value. `host` is used if no node is given.
    pub fn validate(&self, host: &str) -> Result<AgentSettings, SettingsError> {
        let Self { agent, topics, .. } = self;
        let node = agent.node.clone().unwrap_or_else(|| host.to_owned());
        if node.is_empty() || node.len() > 253 || node.chars().any(char::is_control) {
            let detail = format!("{node:?} is not a name of 1 to 253 bytes without control characters");
            return Err(SettingsError::Invalid { key: "agent.node", detail });
        }
        if topics.prefix.len() > 100 || !topics.prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            let detail = format!("{:?} may hold letters, digits, '.', '_' and '-' only, at most 100", topics.prefix);
            return Err(SettingsError::Invalid { key: "topics.prefix", detail });
        }
        let timeout = seconds("agent.mps.timeout_seconds", agent.mps.timeout_seconds, 0.1, 60.0)?;
        let daemon = |pipe_directory: &PathBuf| MpsDaemon {
            program: agent.mps.control_program.clone(),
            pipe_directory: pipe_directory.clone(),
            timeout,
        };
        if agent.mps.enabled && agent.mps.pipe_directories.is_empty() {
            let detail = "is empty: name the daemons' folders, or set agent.mps.enabled to false".to_owned();
            return Err(SettingsError::Invalid { key: "agent.mps.pipe_directories", detail });
        }
        Ok(AgentSettings {
            node,
            state_dir: agent.state_dir.clone(),
            source: agent.intents_file.clone().map_or(IntentSource::Log, IntentSource::File),
            prefix: topics.prefix.clone(),
            allowed: AllowedSettings { power: agent.power_limits, clocks: agent.clocks },
            gpus: agent.gpus.clone().map(|gpus| gpus.into_iter().collect()),
            library_path: agent.library_path.clone(),
            check: seconds("agent.check_seconds", agent.check_seconds, 0.05, 60.0)?,
            call_timeout: seconds("agent.call_timeout_seconds", agent.call_timeout_seconds, 0.1, 60.0)?,
            retry: seconds("agent.retry_seconds", agent.retry_seconds, 0.1, 3600.0)?,
            stop: seconds("agent.stop_seconds", agent.stop_seconds, 0.1, 600.0)?,
            daemons: if agent.mps.enabled { agent.mps.pipe_directories.iter().map(daemon).collect() } else { Vec::new() },
        })
    }

    /// Address of the operational endpoints.
    pub fn address(&self) -> Result<SocketAddr, SettingsError> {
        eadt_service::address::parse(&self.http.address)
            .map_err(|error| SettingsError::Invalid { key: "http.address", detail: format!("{:?}: {error}", self.http.address) })
    }
}

/// Returns this host's name; `localhost` if it cannot be read.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str, variables: &[(&str, &str)]) -> Result<AgentSettings, SettingsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        std::fs::write(&path, text).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let raw = load(Some(&path), &variables, &[])?;
        raw.address()?;
        raw.validate("host")
    }

    #[test]
    fn a_file_then_variables() {
        let settings =
            given("[agent]\nnode = \"a\"\nclocks = false", &[("EADT_AGENT__NODE", "b"), ("EADT_TEST_X", "1")]).unwrap();
        assert_eq!((settings.node.as_str(), settings.allowed), ("b", AllowedSettings { power: true, clocks: false }));
        let lists = [("EADT_AGENT__MPS__ENABLED", "true"), ("EADT_AGENT__MPS__PIPE_DIRECTORIES", "/a/pipe,/b/pipe")];
        let settings = given("", &lists).unwrap();
        let folders: Vec<_> = settings.daemons.iter().map(|daemon| daemon.pipe_directory.display().to_string()).collect();
        assert_eq!(folders, ["/a/pipe", "/b/pipe"]);
        assert_eq!((given("", &[]).unwrap().node.as_str(), given("", &[]).unwrap().daemons.len()), ("host", 0));
    }

    #[test]
    fn each_refusal_names_its_key() {
        for (text, expected) in [
            ("[agent]\nchek_seconds = 1", "chek_seconds"),
            ("[collector]\nx = 1", "collector"),
            ("[agent]\ncheck_seconds = 0", "agent.check_seconds"),
            ("[agent]\nnode = \"\"", "agent.node"),
            ("[topics]\nprefix = \"a/b\"", "topics.prefix"),
            ("[http]\naddress = \"here\"", "http.address"),
            ("[agent.mps]\nenabled = true\npipe_directories = []", "agent.mps.pipe_directories"),
            ("[agent", "settings"),
        ] {
            let error = given(text, &[]).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    fn leaves(value: &serde_json::Value, path: &str, into: &mut Vec<(String, String)>) {
        match value {
            serde_json::Value::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    leaves(value, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, into);
                }
            }
            serde_json::Value::Null => into.push((path.to_owned(), "unset".to_owned())),
            other => into.push((path.to_owned(), format!("`{other}`"))),
        }
    }

    /// The page lists every setting with its default.
    #[test]
    fn the_page_names_every_setting() {
        let page = include_str!("../../../docs/operate/agent.md");
        let mut all = Vec::new();
        leaves(&serde_json::to_value(RawSettings::default()).unwrap(), "", &mut all);
        assert!(all.len() > 15);
        for (key, default) in all {
            let row = format!("| `{key}` | {default} |");
            assert!(page.contains(&row), "docs/operate/agent.md lacks the row {row}");
        }
    }
}
