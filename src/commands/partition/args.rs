//! Arguments of `eadt partition`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::number;

#[derive(Debug, Subcommand)]
pub enum PartitionCommand {
    /// The experiment of the paper on SM allocation: how well throughput and power are predicted, and what the choices are worth.
    Evaluate(PartitionEvaluateArgs),
    /// Choose the partition of a GPU for workloads that were measured alone.
    Choose(PartitionChooseArgs),
    /// Learn from co-runs how workloads slow each other down.
    Train(PartitionTrainArgs),
    /// Write simulated measurements as tables: what `evaluate`, `train` and `choose` read.
    Simulate(PartitionSimulateArgs),
}

#[derive(Debug, Args)]
pub struct SoloTableArgs {
    /// Table of workloads alone (CSV): `workload`, `gpu_model`, `mps_thread_percentage`, `samples_per_second`, `power_watts`,
    /// counters.
    #[arg(long, value_name = "CSV")]
    pub solo: PathBuf,
    /// Power of the GPU while its processes wait, where the table has no row with 0 %.
    #[arg(long, value_name = "WATTS", value_parser = number::at_least_zero)]
    pub idle_watts: Option<f64>,
}

#[derive(Debug, Clone, Copy, Args)]
pub struct ForestArgs {
    /// Trees of each forest.
    #[arg(long, default_value_t = 100, value_parser = |text: &str| number::count(text, 10_000_u32))]
    pub trees: u32,
    /// Least number of rows in a leaf.
    #[arg(long, value_name = "ROWS", default_value_t = 3, value_parser = |text: &str| number::count(text, 1_000_000_u32))]
    pub leaf_min: u32,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 0, value_parser = number::seed)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct PartitionEvaluateArgs {
    /// Table of workloads alone (CSV) [default: simulated measurements of the paper's 16 workloads on a V100].
    #[arg(long, value_name = "CSV", requires = "co_runs")]
    pub solo: Option<PathBuf>,
    /// Table of co-runs (CSV).
    #[arg(long, value_name = "CSV", requires = "solo")]
    pub co_runs: Option<PathBuf>,
    /// Power of the GPU while its processes wait, where the table has no row with 0 %.
    #[arg(long, value_name = "WATTS", requires = "solo", value_parser = number::at_least_zero)]
    pub idle_watts: Option<f64>,
    /// Part of the groups to learn from, above 0 and below 1; may be repeated.
    #[arg(long, value_name = "RATIO", default_values_t = [0.1, 0.2, 0.3, 0.4, 0.5], value_parser = |text: &str| number::open_fraction(text, 0.0))]
    pub training: Vec<f64>,
    /// Random splits for each of these parts.
    #[arg(long, default_value_t = 10, value_parser = |text: &str| number::count(text, 10_000_u32))]
    pub repeats: u32,
    /// The paper's experiment only, without what goes beyond it.
    #[arg(long)]
    pub paper_only: bool,
    #[command(flatten)]
    pub growth: ForestArgs,
    /// Write a page, too.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Replace the output if it exists.
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PartitionChooseArgs {
    #[command(flatten)]
    pub measured: SoloTableArgs,
    /// Workloads that share the GPU.
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', required = true)]
    pub workloads: Vec<String>,
    /// Model made by `eadt partition train` [default: what the workloads do alone, added].
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Quantity to maximize per watt.
    #[arg(long, value_enum, default_value_t = PartitionObjective::Progress)]
    pub objective: PartitionObjective,
    /// Part of the model's trees that may expect less than what counts, or `mean`.
    #[arg(long, value_name = "QUANTILE", default_value = "0.25", value_parser = risk)]
    pub risk: RiskQuantile,
    /// Each workload keeps at least this part of its progress at equal shares; 0: no floor.
    #[arg(long, value_name = "RATIO", default_value_t = 0.5, value_parser = number::fraction)]
    pub floor: f64,
    /// No workload becomes slower than alone on the whole GPU by more than this part.
    #[arg(long, value_name = "RATIO", value_parser = number::at_least_zero)]
    pub max_slowdown: Option<f64>,
    /// Equal shares stay unless another partition gains at least this part.
    #[arg(long, value_name = "RATIO", default_value_t = 0.01, value_parser = number::at_least_zero)]
    pub min_gain: f64,
    /// Shares are multiples of this percentage.
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = |text: &str| number::whole(text, 1_u32, 100))]
    pub step: u32,
    /// Choose a clock, too, among those at which every workload was measured.
    #[arg(long)]
    pub clocks: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

/// A quantile of what the model's trees expect; `None`: their mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RiskQuantile(pub Option<f64>);

fn risk(text: &str) -> Result<RiskQuantile, String> {
    if text == "mean" {
        return Ok(RiskQuantile(None));
    }
    number::fraction(text).map(|quantile| RiskQuantile(Some(quantile))).map_err(|why| format!("{why}, or `mean`"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PartitionObjective {
    /// Throughput of each as a part of its throughput alone, added.
    Progress,
    /// Sum of throughputs regardless of units, as in the paper; it starves workloads that count in large units.
    Sum,
}

#[derive(Debug, Args)]
pub struct PartitionTrainArgs {
    #[command(flatten)]
    pub measured: SoloTableArgs,
    /// Table of co-runs (CSV): `co_run`, `workload`, `mps_thread_percentage`, `samples_per_second`, `power_watts`.
    #[arg(long, value_name = "CSV")]
    pub co_runs: PathBuf,
    /// Model to write.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Replace the output if it exists.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub growth: ForestArgs,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct PartitionSimulateArgs {
    /// Folder for `solo.csv` and `co_runs.csv`; new, or empty.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace the output if it exists.
    #[arg(long)]
    pub force: bool,
    /// SM clocks to measure at, in MHz [default: the board's highest].
    #[arg(long, value_name = "MHZ,…", value_delimiter = ',', value_parser = number::positive)]
    pub clocks: Vec<f64>,
    /// Seed of the instruments' noise.
    #[arg(long, default_value_t = 0, value_parser = number::seed)]
    pub seed: u64,
}
