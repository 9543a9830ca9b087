//! The node agent's program: arguments, settings, signals.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use eadt_agent::ledger::Ledger;
use eadt_agent::{AgentDependencies, AgentSummary, LazyBus, RawSettings, settings};
use eadt_bus::Bus;
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_nvml::NvmlDriver;
use eadt_nvml::set::SettableDriver;
use eadt_service::redact::SecretRedactor;
use eadt_service::supervise::{on_signals, spawn_detached};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown, http, logs, redact, tasks};
use serde_json::json;

/// The version and the commit that the program was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SOURCE_COMMIT"), ")");
/// The variable that names the settings file, as for `eadt`.
const CONFIG_FILE: &str = "EADT_CONFIG_FILE";
/// Its old name.
const OLD_CONFIG_FILE: &str = "EADT_CONFIG";
const EXAMPLE: &str = "eadt-agent --kafka kafka:9092 --state-dir /var/lib/eadt-agent";
const EXIT_STATUSES: [(&str, &str); 3] = [
    ("0", "it did what was asked, and put every setting back"),
    ("1", "it failed, or a setting is not restored yet; the reason is on standard error"),
    ("2", "invalid command line; nothing was done"),
];

/// Holds power caps, clocks and MPS defaults on this node as intents ask for, and always puts them back.
#[derive(Debug, Parser)]
#[command(name = "eadt-agent", version = VERSION, after_help = format!("Example:\n  {EXAMPLE}"))]
struct Cli {
    /// Settings file (TOML). Later wins: defaults, this file, `EADT_…` variables, flags.
    #[arg(long, global = true, env = CONFIG_FILE, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Kafka bootstrap servers, host:port separated by commas.
    #[arg(long, global = true, value_name = "BROKERS")]
    kafka: Option<String>,
    /// Node whose intents are followed; default: the host's name.
    #[arg(long, global = true, value_name = "NAME")]
    node: Option<String>,
    /// Follow the intent in this file instead of the log's.
    #[arg(long, global = true, value_name = "FILE")]
    intents: Option<PathBuf>,
    /// Folder of the original settings.
    #[arg(long, global = true, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<AgentCommand>,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Follow intents until stopped, then put everything back (the default).
    Run,
    /// Put back what an agent that died left behind, and end.
    Restore,
    /// Show each GPU, what it allows, and what is to be put back; changes nothing.
    Show,
    /// Write the manual page.
    #[command(hide = true)]
    Man {
        /// Folder to write `eadt-agent.1` into; it exists already.
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut variables: settings::EnvVariables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect();
    // The file's own name is no setting.
    for name in [CONFIG_FILE, OLD_CONFIG_FILE] {
        variables.remove(name);
    }
    let secrets = settings::secrets(&variables);
    match start(&cli, &variables, &secrets) {
        Ok(code) => code,
        Err(error) => {
            print_error(&secrets.redact(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line on standard error. What cannot be written is dropped: there is nowhere left to report it.
fn print_error(text: &str) {
    drop(writeln!(std::io::stderr(), "error: {}", redact::escape_lines(text)));
}

fn start(cli: &Cli, variables: &settings::EnvVariables, secrets: &SecretRedactor) -> anyhow::Result<ExitCode> {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let overrides: Vec<(&str, String)> = [
        ("bus.brokers", cli.kafka.clone()),
        ("agent.node", cli.node.clone()),
        ("agent.intents_file", path(&cli.intents)),
        ("agent.state_dir", path(&cli.state_dir)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect();
    let raw = settings::load(settings_file(cli, std::env::var_os(OLD_CONFIG_FILE)).as_deref(), variables, &overrides)?;
    logs::start(raw.log.format, &raw.log.filter, None, secrets.clone())?;
    // The devices have threads of their own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    match cli.command.as_ref().unwrap_or(&AgentCommand::Run) {
        AgentCommand::Run => runtime.block_on(run(&raw)),
        AgentCommand::Restore => runtime.block_on(restore(&raw)),
        AgentCommand::Show => show(&raw),
        AgentCommand::Man { folder } => write_manual(folder),
    }
}

/// Returns the settings file of `--config` or of the variable, else that of the variable's old name.
fn settings_file(cli: &Cli, old: Option<OsString>) -> Option<PathBuf> {
    cli.config.clone().or_else(|| old.map(PathBuf::from))
}

/// Writes the manual page into a folder that exists.
fn write_manual(folder: &Path) -> anyhow::Result<ExitCode> {
    let command = Cli::command().disable_help_subcommand(true);
    let mut further = Roff::new();
    further.control("SH", ["COMMANDS"]);
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        further.control("TP", []).text([bold(sub.get_name())]).text([roman(about)]);
    }
    further.control("SH", ["EXAMPLES"]).control("nf", []).text([roman(EXAMPLE)]).control("fi", []);
    further.control("SH", ["EXIT STATUS"]);
    for (status, meaning) in EXIT_STATUSES {
        further.control("TP", []).text([bold(status)]).text([roman(meaning)]);
    }
    further.control("SH", ["VERSION"]).text([roman(VERSION)]);
    let page = Man::new(command);
    let mut text: Vec<u8> = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    further.to_writer(&mut text)?;
    let path = folder.join(page.get_filename());
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the log of the settings; `None` if intents come from a file and nothing is published.
fn log(raw: &RawSettings) -> anyhow::Result<Option<LazyBus>> {
    if raw.bus.brokers.is_empty() {
        anyhow::ensure!(
            raw.agent.intents_file.is_some(),
            "nothing to follow: give --kafka BROKERS (or set KAFKA_BROKERS), or --intents FILE"
        );
        return Ok(None);
    }
    let options =
        KafkaOptions::secured(&*raw.bus.brokers, &raw.bus.properties, &raw.bus.security, "eadt-agent")?.with_fetch(raw.bus.fetch);
    Ok(Some(LazyBus::new(move || Ok(Arc::new(KafkaBus::connect(options.clone())?) as Arc<dyn Bus>))))
}

async fn run(raw: &RawSettings) -> anyhow::Result<ExitCode> {
    let settings = raw.validate(&settings::host_name())?;
    let log = log(raw)?;
    let shutdown = Shutdown::new();
    spawn_detached(&tasks::SIGNALS, on_signals(shutdown.clone(), || ()));
    let (metrics, health) = (MetricsRegistry::default(), HealthRegistry::default());
    let routes = http::routes(metrics.clone(), health.clone());
    // Ends with the process, so that it also serves while settings are put back.
    let (bound, server) = eadt_service::serve(raw.address()?, routes, Shutdown::new()).await?;
    tracing::info!(address = %bound, "metrics and health");
    spawn_detached(&tasks::HTTP, server);
    let summary = eadt_agent::run(settings, AgentDependencies::new(log, metrics, health, shutdown)).await?;
    Ok(print_unrestored(&summary))
}

async fn restore(raw: &RawSettings) -> anyhow::Result<ExitCode> {
    let settings = raw.validate(&settings::host_name())?;
    let deps = AgentDependencies::new(None, MetricsRegistry::default(), HealthRegistry::default(), Shutdown::new());
    Ok(print_unrestored(&eadt_agent::restore(settings, deps).await?))
}

fn print_unrestored(summary: &AgentSummary) -> ExitCode {
    for unit in &summary.unrestored {
        print_error(&format!("not restored, retried at the next start: {unit}"));
    }
    if summary.unrestored.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(raw: &RawSettings) -> anyhow::Result<ExitCode> {
    raw.validate(&settings::host_name())?;
    let mut out = std::io::stdout().lock();
    let driver = NvmlDriver::load(raw.agent.library_path.as_deref(), "agent.library_path")?;
    let mut written = Ok(());
    for index in 0..SettableDriver::gpu_count(&driver)? {
        let shown = driver.with_settable_gpu(index, &mut |gpu| {
            let identity = gpu.identity().clone();
            let limits = gpu.limits().clone();
            let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
            let line = json!({
                "device": identity.uuid, "gpu_index": identity.index, "gpu_model": identity.model, "persistence_mode": gpu.persistent(),
                "power_limit_watts": gpu.power_limit_milliwatts().ok().map(watts),
                "power_limit_watts_min": limits.power.map(|range| watts(range.min_milliwatts)),
                "power_limit_watts_max": limits.power.map(|range| watts(range.max_milliwatts)),
                "clocks": limits.clock.as_ref().map(|range| format!("{:?}", range.mechanism).to_lowercase()),
                "sm_clock_mhz_min": limits.clock.as_ref().and_then(|range| range.supported_mhz.first().copied()),
                "sm_clock_mhz_max": limits.clock.as_ref().and_then(|range| range.supported_mhz.last().copied()),
            });
            written = writeln!(out, "{line}");
        });
        if let Err(error) = shown {
            writeln!(out, "{}", json!({"gpu_index": index, "error": error.to_string()}))?;
        }
    }
    written?;
    for record in Ledger::open_read_only(&raw.agent.state_dir).changed()? {
        match record {
            Ok(record) => writeln!(out, "{}", json!({"to_be_put_back": record}))?,
            Err(error) => writeln!(out, "{}", json!({"error": error.to_string()}))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
