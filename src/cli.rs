//! The commands and options of the program.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use eadt_core::controller::ControllerName;
use eadt_recordings::{
    AcceptedFinding, Date, DecimalMark, FieldMap, NamedTimeZone, RecordingFormat, SameTimeRule, TimeFormat, parse_day,
    parse_interval,
};
use eadt_report::{TimeZone, grid_time_format, parse_baseline, parse_currency, time_zone};
use eadt_schemas::v1::Meter;
use eadt_schemas::{EventTime, Topic};
use eadt_simulator_service::SimulationSpeed;
use reqwest::Url;

use crate::live::dashboard_log::{DashboardClient, page_url};
use crate::live::keys::SortKey;
use crate::output_table::OutputFormat;
use crate::rights::AclRole;
use crate::settings::{is_prefix, prefix_form};
use crate::{duration, number};

fn controllers() -> PossibleValuesParser {
    PossibleValuesParser::new(ControllerName::NAMED.map(ControllerName::as_str))
}

/// Parses a level or a filter of log lines.
fn log_filter(text: &str) -> Result<String, String> {
    match eadt_service::logs::check(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; give a level such as info, or a filter such as info,eadt_bus=debug")),
    }
}

/// Parses an address to listen on.
fn address(text: &str) -> Result<String, eadt_service::address::InvalidAddress> {
    eadt_service::address::parse(text).map(|_| text.to_owned())
}

/// Parses a UTC date.
fn date(text: &str) -> Result<String, String> {
    let is_date = text.len() == 10 && format!("{text}T00:00:00Z").parse::<EventTime>().is_ok();
    if is_date { Ok(text.to_owned()) } else { Err("give a date such as 2026-01-31".to_owned()) }
}

/// Parses a namespace that a token may be for.
fn namespace(text: &str) -> Result<String, String> {
    eadt_collector::progress::tokens::check_namespace(text).map(|()| text.to_owned())
}

/// Parses the length of windows, within the limits of the processor.
fn window_seconds(text: &str) -> Result<f64, String> {
    let window_seconds = text.trim().parse().map_err(|_| "give a number of seconds".to_owned())?;
    eadt_processor::ProcessorSettings { window_seconds, ..Default::default() }.check().map(|()| window_seconds)
}

/// Parses a prefix for the names of topics or groups.
fn prefix(text: &str) -> Result<String, String> {
    if is_prefix(text) { Ok(text.to_owned()) } else { Err(format!("give {}", prefix_form())) }
}

/// Brokers of a Kafka.
fn brokers(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("give host:port, several with commas between".to_owned()) } else { Ok(text.to_owned()) }
}

/// Parses a workload by namespace and name.
fn workload(text: &str) -> Result<String, String> {
    match eadt_recordings::check_workload(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Energy-adaptive distributed training: joules per sample, measured, decided, applied, verified.
#[derive(Debug, Parser)]
#[command(name = "eadt", version = crate::help::VERSION, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// Settings file (TOML); see `eadt config reference`.
    #[arg(long, global = true, value_name = "FILE", env = "EADT_CONFIG_FILE")]
    pub config: Option<PathBuf>,
    /// Kafka bootstrap servers, `host:port,…`; for all commands but `up`, `KAFKA_BROKERS` names them, too. Services
    /// need a Kafka; the other commands use the embedded log without one.
    #[arg(long, global = true, value_name = "BROKERS", value_parser = brokers)]
    pub kafka: Option<String>,
    /// Folder of the embedded log and the archive [default: eadt-data].
    #[arg(long, global = true, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Level or filter of the log lines on standard error [default: info].
    #[arg(long, global = true, value_name = "FILTER", value_parser = log_filter)]
    pub log: Option<String>,
    /// Log lines as JSON.
    #[arg(long, global = true)]
    pub log_json: bool,
    #[command(subcommand)]
    pub command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Run everything in one process: collector or simulated cluster, processor, actuator, archiver.
    Up(UpArgs),
    /// Publish GPU telemetry and training progress to Kafka.
    ///
    /// It needs a Kafka (`--kafka` or `KAFKA_BROKERS`). Without one, `eadt up --gpus nvml` collects, computes and
    /// archives in one process.
    Collector {
        /// Publish these event logs once instead of reading devices and jobs; their order and times are kept.
        #[arg(long, value_name = "LOG", num_args = 1..)]
        recording: Vec<PathBuf>,
    },
    /// Compute windows, decide, validate.
    ///
    /// It needs a Kafka (`--kafka` or `KAFKA_BROKERS`). Without one, `eadt up` runs everything in one process, and
    /// `eadt replay` computes windows and decisions of a recording.
    Processor,
    /// Apply decisions: to Kubernetes, or to a simulated cluster that runs inside.
    ///
    /// It needs a Kafka (`--kafka` or `KAFKA_BROKERS`). Without one, `eadt up` runs everything in one process.
    Actuator(ActuatorArgs),
    /// Write every topic to Parquet.
    ///
    /// It needs a Kafka (`--kafka` or `KAFKA_BROKERS`). Without one, `eadt up` archives what it does, and `eadt record`
    /// writes an event log.
    Archiver,
    /// Serve metrics by workload and GPU for Prometheus: power, energy, samples, savings, outcomes of decisions.
    ///
    /// It needs a Kafka (`--kafka` or `KAFKA_BROKERS`). Without one, `eadt up` serves them if `metrics.by_workload` is set.
    Exporter,
    /// Learn models from the archive and publish those that predict unseen data better.
    ///
    /// As a service it needs a Kafka. `--dry-run` needs an archive only, and `--once` takes the embedded log of `eadt up`, too.
    Optimizer(OptimizerArgs),
    /// Merge the small files of an archive; print SQL views of it.
    #[command(subcommand)]
    Archive(ArchiveCommand),
    /// Make data sets for learning.
    #[command(subcommand)]
    Dataset(DatasetCommand),
    /// Compare controllers on simulated days or on a record: energy per sample, throughput and restarts of each.
    Backtest(BacktestArgs),
    /// List and explain policies on Kubernetes, pause and resume their workloads, approve recommendations.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Run a job at each setting of a GPU and write the table that `eadt tune` reads.
    Profile(crate::commands::profile::ProfileArgs),
    /// Choose clocks, power caps and batch sizes from measurements.
    Tune(Box<crate::commands::tune::TuneArgs>),
    /// Turn a `training_config.yaml` into a policy, and state the effect of each key.
    ///
    /// It prints an `EnergyPolicy` for `kubectl apply -f -`, with a comment for each key: what it sets, or why it has
    /// no effect. An unknown key is refused, and the nearest known one is named.
    TrainingConfig(crate::commands::training_config::TrainingConfigArgs),
    /// Predict and choose the SM shares of workloads on one GPU.
    #[command(subcommand)]
    Partition(crate::commands::partition::PartitionCommand),
    /// Create or check the topics.
    #[command(subcommand)]
    Topics(TopicsCommand),
    /// Create, list and revoke tokens with which training jobs report their progress.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Convert recordings of other tools into an event log.
    Import(ImportArgs),
    /// Copy events from the bus into an event log.
    Record(RecordArgs),
    /// Compute windows and decisions from an event log or an archive.
    Replay(ReplayArgs),
    /// Energy, samples, joules per sample and savings per workload.
    Report(ReportArgs),
    /// The live view of a running pipeline: workloads, power, savings, decisions.
    ///
    /// The same view as in `eadt up`. It reads the Kafka of `--kafka`, or a running `eadt up` through its web page:
    /// `eadt top --url http://127.0.0.1:9580`. Where standard output is no terminal: one line a minute.
    Top(TopArgs),
    /// List workloads, decisions or GPUs.
    Get(GetArgs),
    /// Show one workload: its power and energy, savings, layout, and the last decisions with their reasons.
    Describe(DescribeArgs),
    /// Show events as they arrive.
    Tail(TailArgs),
    /// Serve the web page: of an archive, or of a pipeline that runs on Kafka.
    ///
    /// It reads only: outside of any consumer group, so no other process is disturbed. `eadt up` serves the same page by itself.
    Dashboard(DashboardArgs),
    /// Check what a start needs: settings, brokers, topics, rights, clocks, disk, folders, log, archive.
    Doctor(DoctorArgs),
    /// Show settings and their reference.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Show every metric with unit and labels, as Markdown.
    Metrics,
    /// Print a completion script.
    Completions {
        /// Shell that the script is for.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, a file for each command.
    Man {
        /// Folder to write `eadt.1`, `eadt-up.1`, … into; it exists already.
        folder: PathBuf,
    },
}

#[derive(Debug, Clone, Args)]
pub struct ActuatorArgs {
    /// Change the workloads of this context's cluster; without a name, of the current context, or of the cluster it runs in.
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, default_missing_value = "")]
    pub kubernetes: Option<String>,
    #[command(flatten)]
    pub simulation: SimulationArgs,
}

#[derive(Debug, Clone, Args)]
pub struct SimulationArgs {
    /// How much faster than real time simulated time runs: a number from 0.001 to 1000000, or `max` [default: 60].
    #[arg(long, value_name = "FACTOR")]
    pub speed: Option<SimulationSpeed>,
    /// Stop after this time since the start: `90s`, `15m`, `6h`, `2d`; a bare number is seconds. Simulated time, and real time
    /// with `--gpus nvml`. Where simulated time would end while decisions of a closed window are on their way, it ends when
    /// they take effect: at most 10 s later.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub duration: Option<Duration>,
    /// Seed of the simulated noise [default: 0].
    #[arg(long, value_parser = number::seed)]
    pub seed: Option<u64>,
    /// Scenario file (TOML) [default: the built-in scenario].
    #[arg(long, value_name = "FILE")]
    pub scenario: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    #[command(flatten)]
    pub simulation: SimulationArgs,
    /// Source of GPU telemetry.
    #[arg(long, value_enum, default_value_t = TelemetrySource::Simulated)]
    pub gpus: TelemetrySource,
    /// With `--gpus nvml`: the job that all GPUs of this machine work for, `namespace/name` as it reports itself (`EADT_WORKLOAD`, or
    /// `local/` and the script's name). For several jobs, `collector.assignments` names each one's GPUs.
    #[arg(long, value_name = "WORKLOAD", value_parser = workload)]
    pub workload: Option<String>,
    /// Change the workloads of this context's cluster (without a name: of the current context), with simulated GPUs under them
    /// whose power follows what really runs there; `--speed` is 1 then.
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, default_missing_value = "")]
    pub kubernetes: Option<String>,
    /// Controller that decides where a workload names none; docs/use/controllers.md describes each [default: hybrid].
    #[arg(long, value_name = "NAME", value_parser = controllers())]
    pub controller: Option<String>,
    /// With `--kafka`: put before the names of the topics [default: `up.` and this host's name, as in `up.node-1.`].
    /// Neither a settings file nor a variable sets it for `up`.
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub topic_prefix: Option<String>,
    /// With `--kafka`: put before the names of consumer groups and transactions [default: as of the topics]. With an
    /// empty one `up` takes the place of the services that run there under these names.
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub group_prefix: Option<String>,
    /// Print log lines instead of the live view, also on a terminal.
    #[arg(long)]
    pub no_view: bool,
    /// Print the closing report as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TelemetrySource {
    /// The simulated cluster.
    Simulated,
    /// This machine's GPUs, observed through NVML.
    Nvml,
    /// None: what jobs report is measured, and their energy is unknown.
    None,
}

#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Data folder, archive or output of `replay`; without it, the pipeline on the Kafka of `--kafka`.
    pub path: Option<PathBuf>,
    /// Address of the page [default: 127.0.0.1:9580, or the setting `dashboard.address`].
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub address: Option<String>,
    /// Another run that people compare this one with, workload by workload: a data folder, an archive or the output of `replay`;
    /// may be repeated. It is read once, at the start.
    #[arg(long, value_name = "OTHER")]
    pub compare: Vec<PathBuf>,
    /// Let people pause, approve and set modes through the page, in this context's cluster; without a name, in that of
    /// the current context, or in the cluster it runs in.
    #[arg(long, value_name = "CONTEXT", num_args = 0..=1, default_missing_value = "", conflicts_with = "path")]
    pub kubernetes: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum ArchiveCommand {
    /// Merge the small files of past days; loses no offset.
    Compact {
        /// Archive folder [default: `archive` in the data folder].
        path: Option<PathBuf>,
        /// Days before this UTC date, `YYYY-MM-DD` [default: today].
        #[arg(long, value_name = "DATE", value_parser = date)]
        before: Option<String>,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print SQL that makes one view for each topic of an archive, for DuckDB from 2.0 on.
    Views {
        /// Data folder, archive or object-store URL [default: the archive of the settings].
        path: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct OptimizerArgs {
    /// Read the archive once and end. Without it: at every interval, on Kafka.
    #[arg(long)]
    pub once: bool,
    /// Print what would be published; needs the archive only. Implies --once.
    #[arg(long)]
    pub dry_run: bool,
    /// Print what was found as JSON; only with --once or --dry-run.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BacktestArgs {
    /// Compute what the controllers would have decided on a record, as far as the record shows, instead of simulating. A data
    /// folder or an archive.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["scenario", "days", "seeds", "oversubscription"])]
    pub archive: Option<PathBuf>,
    /// Compare the savings that `eadt report` states with the true ones: the same scenario and seed without any change.
    /// Without `--scenario` on the five built-in ones, without `--controller` of matrix, matrix-literal, power-cap,
    /// frequency and hybrid, without `--days` over one day.
    #[arg(long, conflicts_with_all = ["archive", "oversubscription", "power_budget", "table"])]
    pub calibrate: bool,
    /// `random-days`, `default`, `come-and-go`, `hour-phases`, `five-minute-phases` or scenario files (TOML) [default:
    /// random-days].
    #[arg(long, value_name = "NAME|FILE", num_args = 1.., value_delimiter = ',')]
    pub scenario: Vec<String>,
    /// Controllers; the untouched layout and the oracle take part in any case [default: hybrid,power-cap,matrix,matrix-literal].
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub controller: Vec<String>,
    /// Power that the GPUs of all jobs of a scenario share, in watts; the controller `power-budget` takes part then.
    #[arg(long, value_name = "WATTS", value_parser = number::positive)]
    pub power_budget: Option<f64>,
    /// Simulated days of each run [default: 14; 1 with --plant measured].
    #[arg(long, value_name = "DAYS", value_parser = number::positive)]
    pub days: Option<f64>,
    /// Runs of each controller, each with another seed [default: 20; 3 with --plant measured].
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| number::count(text, 100_000_u64))]
    pub seeds: Option<u64>,
    #[command(flatten)]
    pub measured: crate::commands::backtest::measured::MeasuredTestbedArgs,
    /// Whether processes may hold more than 100 % of a GPU's threads: as the scenario allows, never, or a table of each.
    #[arg(long, value_enum, default_value_t = BacktestOversubscription::Both)]
    pub oversubscription: BacktestOversubscription,
    /// Also write the tables with plots into one HTML file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Replace the output if it exists.
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BacktestOversubscription {
    Both,
    Allowed,
    Clamped,
}

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// Join windows, decisions and what came of them into Parquet tables with a datasheet.
    Build {
        /// Data folder, archive or output of `replay`.
        archive: PathBuf,
        /// Folder to write; new, or empty.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Replace what a former build left there.
        #[arg(long)]
        force: bool,
        /// Print counts and the fingerprint as JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum TopicsCommand {
    /// Create missing topics and set their settings; prints each change.
    Apply {
        /// Print what would be done, do nothing.
        #[arg(long)]
        dry_run: bool,
        /// Add partitions to topics that hold data, too: keys move, and their history stays behind.
        #[arg(long)]
        repartition: bool,
        /// Print the changes as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check the topics: fails if one is missing or differs, and names it; changes nothing.
    Check {
        /// Print what is wrong as JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the existing topics.
    List {
        /// Print the list as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the desired topics; connects to no log.
    Desired {
        /// Print them as JSON.
        #[arg(long, conflicts_with = "strimzi")]
        json: bool,
        /// Print them as `KafkaTopic` objects for Strimzi's topic operator, of this Kafka cluster.
        #[arg(long, value_name = "CLUSTER")]
        strimzi: Option<String>,
    },
    /// Show, write or grant the rights that each part needs on a Kafka with access lists.
    Acls(AclsArgs),
}

#[derive(Debug, Args)]
pub struct AclsArgs {
    /// Only these parts [default: all].
    #[arg(value_enum)]
    pub parts: Vec<AclRole>,
    /// Allow this principal (`User:NAME`) what the parts need; as a user who may alter the cluster.
    #[arg(long, value_name = "PRINCIPAL", conflicts_with_all = ["json", "strimzi"])]
    pub grant: Option<String>,
    /// With --grant: print what would be allowed, do nothing.
    #[arg(long, requires = "grant")]
    pub dry_run: bool,
    /// Print them as `KafkaUser` objects for Strimzi's user operator, of this Kafka cluster.
    #[arg(long, value_name = "CLUSTER", conflicts_with = "json")]
    pub strimzi: Option<String>,
    /// Print them as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// On Kafka: the parts that this user runs, for their rights [default: collector, processor, actuator, archiver].
    #[arg(value_enum)]
    pub parts: Vec<AclRole>,
    /// Print the findings as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token and print it once; the file stores its hash. Running collectors accept it within a second.
    Create {
        /// Namespaces whose workloads its bearer may report for; `*` is every one. May be repeated.
        #[arg(long, value_name = "NAME", required = true, value_delimiter = ',', value_parser = namespace)]
        namespace: Vec<String>,
        /// Time until it expires: `12h`, `90d` [default: it never expires].
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        expires: Option<Duration>,
        /// Tokens file [default: the setting `collector.progress.tokens_file`].
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print id, token, namespaces and expiry as JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the tokens: ids, namespaces, times.
    List {
        /// Tokens file [default: the setting `collector.progress.tokens_file`].
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print the list as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token: collectors refuse it within a second.
    Revoke {
        /// Its id, as `list` prints it: the part between the two underscores.
        id: String,
        /// Tokens file [default: the setting `collector.progress.tokens_file`].
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// How the rows of recordings are read.
#[derive(Debug, Args)]
pub struct ReadingArgs {
    /// Which column holds a field, for example `power_watts=Power:mW`, `gpu0=A` or `power_watts=A+B`; may be repeated.
    /// Columns of numbered boards need one pattern (docs/use/import.md).
    #[arg(long, value_name = "FIELD=COLUMN[:UNIT]")]
    pub map: Vec<FieldMap>,
    /// Format of the times: `rfc3339`, `unix`, `unix_ms`, `unix_us`, `unix_ns` or a strptime format.
    #[arg(long, value_name = "FORMAT")]
    pub time_format: Option<TimeFormat>,
    /// Zone of times without an offset, `Europe/Berlin` or `+02:00` [default: `TZ` of the environment, else UTC].
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true, value_parser = crate::commands::import::zone)]
    pub time_zone: Option<NamedTimeZone>,
    /// Day of the first row, if times are times of day only, for example `2025-02-03`; later rows may pass midnight.
    #[arg(long, value_name = "DATE", value_parser = parse_day)]
    pub date: Option<Date>,
    /// Time between the rows of a board in a recording without times, for example `20ms`.
    #[arg(long, value_name = "TIME", value_parser = parse_interval)]
    pub interval: Option<Duration>,
    /// Scope of power and energy [default: node for mlperf, wall for mlperf-inference, else gpu].
    #[arg(long, value_enum)]
    pub meter: Option<ImportMeter>,
    /// Decimal mark of numbers [default: inferred from the numbers].
    #[arg(long, value_enum)]
    pub decimal: Option<ImportDecimal>,
    /// How to read rows of one time [default: rows of one board that differ are refused].
    #[arg(long, value_enum)]
    pub same_time: Option<ImportSameTime>,
    /// Findings that do not stop the reading of a file; may be repeated.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub accept: Vec<ImportTolerance>,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    #[arg(value_name = "FORMAT", help = format!("Format of the recording, one of {}; with --explain it may be left out", RecordingFormat::names()))]
    pub format: FormatOrFile,
    /// Files of one run.
    pub files: Vec<PathBuf>,
    /// Print how the files would be read, and write nothing: format, columns used and left out, units, time zone,
    /// boards, gaps.
    #[arg(long, alias = "dry-run")]
    pub explain: bool,
    /// Event log to write, `.jsonl` or `.jsonl.zst`.
    #[arg(long, value_name = "LOG", required_unless_present = "explain")]
    pub out: Option<PathBuf>,
    /// Workload that the run belongs to, `namespace/name` [default: `imported/` and the first file's name].
    #[arg(long, value_name = "NS/NAME", value_parser = workload)]
    pub workload: Option<String>,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// How to combine several files [default: nodes if their times overlap, else parts].
    #[arg(long, value_enum)]
    pub files_are: Option<ImportFilesAre>,
    /// Replace the log if it exists.
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// The first argument of an import: a format, or a file whose format is guessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormatOrFile {
    Format(RecordingFormat),
    File(PathBuf),
}

impl std::str::FromStr for FormatOrFile {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::File(PathBuf::from(text)), Self::Format))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportMeter {
    /// One GPU board.
    Gpu,
    /// A module of several chips.
    Module,
    /// A whole node.
    Node,
    /// Everything behind a meter at the wall.
    Wall,
}

impl From<ImportMeter> for Meter {
    fn from(meter: ImportMeter) -> Self {
        match meter {
            ImportMeter::Gpu => Self::Gpu,
            ImportMeter::Module => Self::Module,
            ImportMeter::Node => Self::Node,
            ImportMeter::Wall => Self::Wall,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportDecimal {
    Point,
    Comma,
}

impl From<ImportDecimal> for DecimalMark {
    fn from(mark: ImportDecimal) -> Self {
        match mark {
            ImportDecimal::Point => Self::Point,
            ImportDecimal::Comma => Self::Comma,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportSameTime {
    /// Readings of one board: their mean.
    Mean,
    /// Readings of several boards without an id, in the same order each time.
    Boards,
}

impl From<ImportSameTime> for SameTimeRule {
    fn from(same_time: ImportSameTime) -> Self {
        match same_time {
            ImportSameTime::Mean => Self::Mean,
            ImportSameTime::Boards => Self::Boards,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportFilesAre {
    /// Each file is a node with boards of its own, or a rank whose progress counts beside the others'.
    Nodes,
    /// Parts of one record, such as rotated logs.
    Parts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ImportTolerance {
    /// Rows in any order: they are sorted, even if the clock went back.
    Unordered,
    /// Amounts of rows may grow like a running total.
    GrowingSteps,
    /// Rows that contain others, by their time or as their sum, and rows that overlap count in full.
    NestedRows,
    /// A device that has, or follows, the sum of the figures of others counts beside them.
    Sums,
    /// A running total may restart repeatedly.
    FallingTotals,
}

impl From<ImportTolerance> for AcceptedFinding {
    fn from(accept: ImportTolerance) -> Self {
        match accept {
            ImportTolerance::Unordered => Self::Unordered,
            ImportTolerance::GrowingSteps => Self::GrowingSteps,
            ImportTolerance::NestedRows => Self::NestedRows,
            ImportTolerance::Sums => Self::Sums,
            ImportTolerance::FallingTotals => Self::FallingTotals,
        }
    }
}

#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Event log to write, `.jsonl` or `.jsonl.zst`.
    #[arg(long, value_name = "LOG")]
    pub out: PathBuf,
    /// Topics without prefix [default: all but processor-state and simulator-state].
    #[arg(long, value_name = "TOPIC", value_delimiter = ',', value_parser = crate::commands::topic)]
    pub topics: Vec<Topic>,
    /// Continue after the current end until interrupted; the file exists from the start and grows.
    #[arg(long)]
    pub follow: bool,
    /// Replace the log if it exists.
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct ReplayArgs {
    /// Event logs (`.jsonl`, `.jsonl.zst`) or archive folders.
    #[arg(required = true)]
    pub logs: Vec<PathBuf>,
    /// Decide with this controller instead of the one in force at the time.
    #[arg(long, value_name = "NAME", value_parser = controllers())]
    pub controller: Option<String>,
    /// Write windows and decisions under this folder, in the archive's layout.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the output of an earlier replay in --out.
    #[arg(long)]
    pub force: bool,
    /// Close every window at the record's end, as if every source had ended there; otherwise windows that a live processor would
    /// keep open stay open, and are counted.
    #[arg(long, conflicts_with = "check")]
    pub close: bool,
    /// Alignment of windows: multiples of their length since 1970, or each workload's start.
    #[arg(long, value_enum, default_value_t = WindowAlignment::Epoch)]
    pub align: WindowAlignment,
    /// Length of the windows in seconds [default: 60].
    #[arg(long, value_name = "SECONDS", value_parser = window_seconds)]
    pub window: Option<f64>,
    /// Compare with the record's own windows and decisions; exit 1 where they differ.
    #[arg(long)]
    pub check: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WindowAlignment {
    /// Multiples of the windows' length since 1970.
    Epoch,
    /// Each workload's own start.
    Run,
}

#[derive(Debug, Args)]
pub struct ReportArgs {
    /// Data folder, archive or output of `replay`.
    pub path: PathBuf,
    /// Break the figures down.
    #[arg(long, value_enum)]
    pub by: Option<Breakdown>,
    /// Joules per sample to compare with, `NS/NAME=VALUE`; may be repeated [default: an estimate before and after each change].
    #[arg(long, value_name = "NS/NAME=JOULES", value_parser = parse_baseline)]
    pub baseline: Vec<(String, f64)>,
    /// Price of electricity per kWh, in place of the record's.
    #[arg(long, value_name = "PRICE", value_parser = number::any)]
    pub price_per_kwh: Option<f64>,
    /// Prices by hour (CSV, or a rate document of OpenEI) or by time (CSV), in place of the record's.
    #[arg(long, value_name = "FILE", conflicts_with = "price_per_kwh")]
    pub tariff: Option<PathBuf>,
    /// Column of the prices [default: the one whose name fits best; several that fit alike are refused].
    #[arg(long, value_name = "COLUMN", requires = "tariff")]
    pub price_column: Option<String>,
    /// Zone of the tariff's hours, and of times without a zone in both files, such as Europe/Berlin [default: UTC].
    #[arg(long, value_name = "ZONE", allow_hyphen_values = true, value_parser = time_zone)]
    pub time_zone: Option<TimeZone>,
    /// Form of times or dates in both files whose day or month may come first, a strptime format such as `%m/%d/%Y %H:%M`.
    #[arg(long, value_name = "FORMAT", value_parser = grid_time_format)]
    pub time_format: Option<String>,
    /// Currency of the prices, a code such as EUR.
    #[arg(long, value_name = "CODE", value_parser = parse_currency)]
    pub currency: Option<String>,
    /// Carbon intensity in g/kWh, in place of the record's.
    #[arg(long, value_name = "GRAMS", value_parser = number::at_least_zero)]
    pub carbon_grams_per_kwh: Option<f64>,
    /// Carbon intensities by time (CSV, as Electricity Maps, WattTime and others publish them), in place of the record's.
    #[arg(long, value_name = "FILE", conflicts_with = "carbon_grams_per_kwh")]
    pub carbon: Option<PathBuf>,
    /// Column of the carbon intensities [default: the one whose name fits best, life-cycle figures first].
    #[arg(long, value_name = "COLUMN", requires = "carbon")]
    pub carbon_column: Option<String>,
    /// Another run to compare with: data folder, archive or output of `replay`.
    #[arg(long, value_name = "OTHER", conflicts_with = "by")]
    pub compare: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text, conflicts_with = "json")]
    pub format: ReportFormat,
    /// Write the page of `--format html` too, one HTML file.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Replace the page if it exists.
    #[arg(long, requires = "html")]
    pub force: bool,
    /// Print raw figures as CSV: a row a workload, with --by a row a window or span.
    #[arg(long, conflicts_with_all = ["json", "format"])]
    pub csv: bool,
    /// Print the figures as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Breakdown {
    /// A row for every window.
    Window,
    /// A row for every epoch or training block that the job named.
    Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Markdown,
    Html,
}

/// The web page of a running pipeline.
#[derive(Debug, Clone, Args)]
pub struct PageSource {
    /// Read through the web page of a running `eadt up` or `eadt dashboard`, by the address that it prints, such as
    /// `http://127.0.0.1:9580`; goes before `--kafka` and `--data-dir`.
    #[arg(long, value_name = "URL", value_parser = page_url)]
    pub url: Option<Url>,
    /// File with a token of the page, if it asks for one; the first token in it is sent, so the file of
    /// `dashboard.token_file` fits.
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
}

impl PageSource {
    /// Returns the page that is asked, if there is one.
    pub fn page(&self) -> anyhow::Result<Option<DashboardClient>> {
        self.url.as_ref().map(|url| DashboardClient::new(url, self.token_file.as_deref())).transpose()
    }
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub page: PageSource,
    /// Read only the events of the last `6h`, `2d`, and so on: counted from now on Kafka; with --url, and in a log
    /// that no process writes, from the newest event, whose time may be simulated. Savings need the whole record and are not shown
    /// then.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub since: Option<Duration>,
    /// Sort order of the workloads.
    #[arg(long, value_enum, default_value_t = SortKey::Energy)]
    pub sort: SortKey,
    /// Print lines instead of the live view, also on a terminal.
    #[arg(long)]
    pub plain: bool,
    /// Print one line with the current state and exit; implies --plain.
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GetKind {
    #[value(alias = "workload", alias = "wl")]
    Workloads,
    /// Changes, each with the verdict on the one before; with --all also those to leave everything as it is.
    #[value(alias = "decision")]
    Decisions,
    /// The newest sample of each.
    #[value(alias = "gpu")]
    Gpus,
}

/// Where events are read from.
#[derive(Debug, Args)]
pub struct GetSource {
    /// Data folder, archive or output of `replay` [default: the Kafka of `--kafka`, else the data folder].
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub page: PageSource,
    /// Read only the events of the last `6h`, `2d`, and so on: counted from now on Kafka; in data folders, archives
    /// and replays, and with --url, from the newest event, whose time may be simulated. Savings need the whole record and are not
    /// shown then.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub since: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// Kind to list.
    #[arg(value_enum, value_name = "KIND")]
    pub kind: GetKind,
    /// Only these: workloads with or without their namespace; GPUs by UUID or node.
    pub names: Vec<String>,
    #[command(flatten)]
    pub source: GetSource,
    /// Only objects of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
    /// Sort order of workloads [default: name].
    #[arg(long, value_enum)]
    pub sort: Option<SortKey>,
    /// Maximum number of rows; of decisions the newest.
    #[arg(long, value_name = "ROWS")]
    pub limit: Option<usize>,
    /// Also list `maintain` decisions.
    #[arg(long)]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct DescribeArgs {
    /// Kind to describe.
    #[arg(value_enum, value_name = "KIND")]
    pub kind: DescribeKind,
    /// Its name, with or without its namespace.
    pub name: String,
    /// Data folder, archive or output of `replay` [default: the Kafka of `--kafka`, else the data folder].
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub page: PageSource,
    /// Output format: text with the last decisions, or with `wide` all that are kept; everything as JSON; the figures as CSV, one a row.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table, conflicts_with = "json")]
    pub output: OutputFormat,
    /// Print everything as JSON, as `-o json` does.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DescribeKind {
    #[value(alias = "workloads", alias = "wl")]
    Workload,
}

#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct TailArgs {
    /// Topics without prefix [default: decisions.v1, actuations.v1].
    #[arg(value_parser = crate::commands::topic)]
    pub topics: Vec<Topic>,
    /// Start at the oldest retained event instead of the next one.
    #[arg(long)]
    pub from_start: bool,
    /// Stop at the current end of the log instead of waiting for more.
    #[arg(long)]
    pub until_end: bool,
    /// Only events of this workload or device.
    #[arg(long, value_name = "KEY", alias = "workload")]
    pub key: Option<String>,
    /// Only changes and verdicts: no `maintain` decisions, no windows without a restart.
    #[arg(long)]
    pub changes: bool,
    /// Output format of a line [default: readable on a terminal, else raw].
    #[arg(short, long, value_enum, value_name = "FORM", conflicts_with = "json")]
    pub output: Option<TailForm>,
    /// One CloudEvents JSON object a line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TailForm {
    /// Time, workload and what happened, with units.
    Readable,
    /// Stamp, topic, partition, offset, key, and the value as it is.
    Raw,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Every setting with default, meaning and variable, as Markdown.
    Reference,
    /// The built-in scenario as TOML, to start from; see `--scenario` of `eadt up`.
    Scenario {
        /// Every key with its meaning instead, as Markdown.
        #[arg(long)]
        reference: bool,
    },
    /// The settings in force, as TOML.
    Show {
        /// As JSON instead of TOML.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// List all policies: their workloads, modes, energy per sample, recommendations and savings.
    List {
        /// List those of every namespace.
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        #[command(flatten)]
        cluster: ClusterOptions,
        /// Print the list as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what one policy allows, its decisions with their reasons, and their outcomes.
    Explain {
        /// Name of the policy.
        name: String,
        #[command(flatten)]
        cluster: ClusterOptions,
        /// Print everything as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Pause: no changes from the next step on, until `resume`.
    Pause(PolicyPause),
    /// Resume after `pause`.
    Resume(PolicyPause),
    /// Apply the current recommendation of a policy in mode Recommend once.
    Approve {
        /// Name of the policy.
        name: String,
        /// Approve only if this is the current recommendation.
        #[arg(long, value_name = "ID")]
        decision: Option<String>,
        #[command(flatten)]
        cluster: ClusterOptions,
        /// Print the approved recommendation as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the definition of `EnergyPolicy` for `kubectl apply -f -`.
    Crd,
}

#[derive(Debug, Args)]
pub struct PolicyPause {
    /// The policy whose workload is meant.
    #[arg(required_unless_present = "all")]
    pub name: Option<String>,
    /// Every workload of the namespace.
    #[arg(long, conflicts_with = "name")]
    pub all: bool,
    #[command(flatten)]
    pub cluster: ClusterOptions,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Cluster to read.
#[derive(Debug, Args)]
pub struct ClusterOptions {
    /// Context of the kubeconfig [default: the current one, or the cluster that this runs in].
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
    /// Namespace [default: the context's].
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn up_lists_the_controllers_and_which_one_decides() {
        let mut up = Cli::command().find_subcommand("up").unwrap().clone();
        let help = up.render_long_help().to_string();
        for name in ControllerName::NAMED {
            assert!(help.contains(name.as_str()), "{name:?}: {help}");
        }
        assert!(help.contains(&format!("[default: {}]", ControllerName::default().as_str())), "{help}");
        let error = Cli::try_parse_from(["eadt", "up", "--controller", "matrx"]).unwrap_err().to_string();
        assert!(error.contains("matrx") && error.contains("'matrix'"), "{error}");
    }
}
