//! The program: arguments, settings, and putting the services together. It decides nothing itself.

mod atomic_file;
mod bus;
mod cli;
mod commands;
mod data_dir;
mod duration;
mod help;
mod live;
mod number;
mod output;
mod output_table;
mod progress;
mod rights;
mod services;
mod up;
mod usage_error;

use std::path::PathBuf;
use std::process::ExitCode;

use eadt::{scenario, settings};
use eadt_service::Shutdown;
use eadt_service::logs::{self, LogFormat};
use eadt_service::redact::SecretRedactor;

use cli::{Cli, CliCommand, ConfigCommand};
use services::StandaloneService;
use settings::{EnvVariables, ProgramSettings};

/// The exit status of a process that ended in good order, and whose collector, replay or import left events out.
const LOST: u8 = 3;

fn main() -> ExitCode {
    // Variables that are not UTF-8 are no settings.
    let variables: EnvVariables =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect();
    let secrets = settings::secrets(&variables);
    let cli = match help::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return refuse_command_line(&error, &secrets),
    };
    match run(cli, variables, &secrets) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_note(&secrets.redact(&format!("error: {error:#}")));
            match () {
                () if left_events_out(&error) => ExitCode::from(LOST),
                () if usage_error::is_usage_error(&error) => ExitCode::from(usage_error::STATUS),
                () => ExitCode::FAILURE,
            }
        }
    }
}

/// Prints why a command line is not possible, or the help that it asks for. A refusal names values, and a value may be an address
/// with a password in it.
fn refuse_command_line(error: &clap::Error, secrets: &SecretRedactor) -> ExitCode {
    let text = error.render().to_string();
    let shown = secrets.redact(&text);
    if !error.use_stderr() || shown == text {
        error.exit();
    }
    output::print_note(shown.trim_end());
    ExitCode::from(usage_error::STATUS)
}

/// Returns whether everything was done, but for events that are missing.
fn left_events_out(error: &anyhow::Error) -> bool {
    error.is::<services::LostEvents>()
        || error.is::<up::NothingArchived>()
        || error.is::<commands::replay::MissingEvents>()
        || error.is::<commands::replay::UncomparedDecisions>()
        || error.is::<eadt_recordings::RefusedLines>()
}

fn run(cli: Cli, mut variables: EnvVariables, secrets: &SecretRedactor) -> anyhow::Result<()> {
    let mut overrides: Vec<(&str, toml::Value)> = Vec::new();
    if let Some(brokers) = &cli.kafka {
        overrides.push(("bus.brokers", brokers.clone().into()));
    }
    if let Some(dir) = &cli.data_dir {
        overrides.push(("bus.data_dir", dir.display().to_string().into()));
    }
    if let Some(filter) = &cli.log {
        overrides.push(("log.filter", filter.clone().into()));
    }
    if cli.log_json {
        overrides.push(("log.format", "json".into()));
    }
    // Commands that need no settings must not fail on them.
    match &cli.command {
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut help::command(), "eadt", &mut script);
            return output::print(&String::from_utf8_lossy(&script));
        }
        CliCommand::Config(ConfigCommand::Reference) => {
            crate::output::print(&settings::reference_markdown())?;
            return Ok(());
        }
        CliCommand::Config(ConfigCommand::Scenario { reference }) => {
            let text = if *reference { scenario::reference()? } else { scenario::built_in()? };
            return output::print(&text);
        }
        CliCommand::Policy(command) => return commands::policy::run(command),
        CliCommand::Man { folder } => return commands::man::run(folder),
        _ => {}
    }
    let mut lines = Vec::new();
    if let CliCommand::Up(args) = &cli.command {
        lines.extend(up::kafka::take_brokers(&mut variables, cli.kafka.as_deref()));
        let prefix = up::kafka::topic_prefix(args, cli.kafka.as_deref(), &eadt_collector::host_name());
        overrides.extend(prefix.map(|prefix| ("topics.prefix", prefix.into())));
    }
    let mut settings = settings::load(cli.config.as_deref(), &variables, &overrides);
    if let (Ok(settings), false) = (&mut settings, matches!(cli.command, CliCommand::Up(_))) {
        settings::carry_prefix(settings);
    }
    if let Err(error) = &settings {
        // There is no log yet.
        for line in error.warnings() {
            output::print_note(&format!("warning: {line}"));
        }
    }
    if let CliCommand::Doctor(args) = &cli.command {
        if let Ok(settings) = &settings {
            start_logs(&cli.command, settings, secrets)?;
        }
        return commands::doctor::run(args, settings, secrets);
    }
    let mut settings = settings?;
    if let CliCommand::Up(args) = &cli.command {
        lines.extend(up::kafka::confine(&mut settings, args, cli.kafka.as_deref())?);
    }
    lines.append(&mut settings.warnings);
    start_logs(&cli.command, &settings, secrets)?;
    for line in lines {
        tracing::warn!("{line}");
        // The live view has the terminal, and the log is a file.
        if matches!(&cli.command, CliCommand::Up(args) if up::wants_view(args)) {
            output::print_note(&format!("warning: {line}"));
        }
    }
    dispatch(cli.command, settings, cli.config, secrets)
}

/// Starts logs on standard error; beside the live view, in the data folder.
fn start_logs(command: &CliCommand, settings: &ProgramSettings, secrets: &SecretRedactor) -> anyhow::Result<()> {
    let file = match command {
        CliCommand::Up(args) if up::wants_view(args) => {
            std::fs::create_dir_all(&settings.bus.data_dir)?;
            Some(std::fs::OpenOptions::new().create(true).append(true).open(settings.bus.data_dir.join("eadt.log"))?)
        }
        CliCommand::Top(args) if commands::top::wants_view(args) => Some(view_log()?),
        _ => None,
    };
    let format = if settings.log.format == LogFormat::Json { LogFormat::Json } else { LogFormat::Text };
    logs::start_on(|| Box::new(progress::StderrBesideBar), format, &settings.log.filter, file, secrets.clone())?;
    Ok(())
}

/// Opens the file for log lines while the view of another pipeline has the terminal.
fn view_log() -> anyhow::Result<std::fs::File> {
    let path = std::env::temp_dir().join(format!("eadt-top-{}.log", std::process::id()));
    output::print_note(&format!("log lines are in {}", path.display()));
    Ok(std::fs::OpenOptions::new().create_new(true).append(true).open(path)?)
}

fn dispatch(
    command: CliCommand,
    settings: ProgramSettings,
    config: Option<PathBuf>,
    secrets: &SecretRedactor,
) -> anyhow::Result<()> {
    let shutdown = Shutdown::new();
    let on_runtime = |future: std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>>| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let result = runtime.block_on(async {
            services::watch_signals(shutdown.clone());
            future.await
        });
        // Reading for a viewer that has gone is not waited for.
        runtime.shutdown_timeout(std::time::Duration::from_secs(10));
        result
    };
    match command {
        CliCommand::Up(args) => {
            let stop = shutdown.clone();
            on_runtime(Box::pin(async move { up::run(&args, settings, stop).await }))
        }
        CliCommand::Collector { recording } if !recording.is_empty() => {
            commands::publish::readable(&recording)?;
            let bus = bus::shared(&settings)?;
            let stop = shutdown.clone();
            on_runtime(Box::pin(async move {
                tokio::task::spawn_blocking(move || commands::publish::run(&recording, &*bus, &settings.topics, &stop)).await?
            }))
        }
        CliCommand::Collector { .. } => {
            on_runtime(Box::pin(services::run(StandaloneService::Collector, settings, shutdown.clone())))
        }
        CliCommand::Processor => on_runtime(Box::pin(services::run(StandaloneService::Processor, settings, shutdown.clone()))),
        CliCommand::Actuator(flags) => {
            on_runtime(Box::pin(services::run(StandaloneService::Actuator(flags), settings, shutdown.clone())))
        }
        CliCommand::Archiver => on_runtime(Box::pin(services::run(StandaloneService::Archiver, settings, shutdown.clone()))),
        CliCommand::Exporter => on_runtime(Box::pin(services::run(StandaloneService::Exporter, settings, shutdown.clone()))),
        CliCommand::Optimizer(args) if args.once || args.dry_run => commands::optimizer::run(&args, &settings, &shutdown),
        CliCommand::Optimizer(args) if args.json => {
            Err(usage_error::impossible("--json needs --once or --dry-run: a service prints no result"))
        }
        CliCommand::Optimizer(_) => on_runtime(Box::pin(services::run(StandaloneService::Optimizer, settings, shutdown.clone()))),
        CliCommand::Archive(command) => commands::archive::run(&command, &settings),
        CliCommand::Backtest(args) => commands::backtest::run(&args, &settings),
        CliCommand::Dashboard(args) => on_runtime(Box::pin(commands::dashboard::run(args, settings, config, shutdown.clone()))),
        CliCommand::Dataset(command) => commands::dataset::run(&command),
        CliCommand::Topics(cli::TopicsCommand::Desired { json, strimzi }) => {
            commands::topics::desired(json, strimzi.as_deref(), &settings.topics)
        }
        CliCommand::Topics(cli::TopicsCommand::Acls(args)) => commands::acls::run(&args, &settings),
        CliCommand::Profile(args) => {
            let stop = shutdown.clone();
            on_runtime(Box::pin(async move { tokio::task::spawn_blocking(move || commands::profile::run(&args, &stop)).await? }))
        }
        CliCommand::Tune(args) => commands::tune::run(*args),
        CliCommand::TrainingConfig(args) => commands::training_config::print_translation(&args),
        CliCommand::Partition(command) => commands::partition::run(&command),
        CliCommand::Token(command) => commands::token::run(&command, &settings),
        CliCommand::Topics(command) => commands::topics::run(&command, &*bus::open(&settings)?, &settings.topics),
        CliCommand::Import(args) => commands::import::run(&args),
        CliCommand::Replay(args) => commands::replay::run(&args, &settings),
        CliCommand::Report(args) => commands::report::run(&args, &settings),
        CliCommand::Record(args) => {
            let bus = bus::open(&settings)?;
            let stop = shutdown.clone();
            on_runtime(Box::pin(async move {
                tokio::task::spawn_blocking(move || commands::record::run(&args, &*bus, &settings, &stop)).await?
            }))
        }
        CliCommand::Top(args) => {
            let stop = shutdown.clone();
            on_runtime(Box::pin(async move {
                if commands::top::wants_view(&args) {
                    live::screen::watch_continues();
                }
                tokio::task::spawn_blocking(move || commands::top::run(&args, &settings, &stop)).await?
            }))
        }
        CliCommand::Get(args) => {
            let stop = shutdown.clone();
            on_runtime(Box::pin(async move {
                tokio::task::spawn_blocking(move || commands::get::run(&args, &settings, &stop)).await?
            }))
        }
        CliCommand::Describe(args) => {
            let stop = shutdown.clone();
            on_runtime(Box::pin(async move {
                tokio::task::spawn_blocking(move || commands::get::describe(&args, &settings, &stop)).await?
            }))
        }
        CliCommand::Tail(args) => {
            let bus = bus::open(&settings)?;
            let stop = shutdown.clone();
            on_runtime(Box::pin(async move {
                tokio::task::spawn_blocking(move || commands::tail::run(&args, &*bus, &settings, &stop)).await?
            }))
        }
        CliCommand::Config(ConfigCommand::Show { json }) => {
            let text = if json { format!("{}\n", serde_json::to_string_pretty(&settings)?) } else { toml::to_string(&settings)? };
            output::print(&secrets.redact(&text))
        }
        CliCommand::Metrics => {
            crate::output::print(&commands::metrics::reference())?;
            Ok(())
        }
        CliCommand::Config(ConfigCommand::Reference | ConfigCommand::Scenario { .. })
        | CliCommand::Completions { .. }
        | CliCommand::Man { .. }
        | CliCommand::Doctor(_)
        | CliCommand::Policy(_) => Ok(()),
    }
}
