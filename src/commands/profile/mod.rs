//! `eadt profile`: runs a job at each setting and writes its time and energy: the table that `eadt tune` reads.

mod agent;
mod simulated;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eadt_schemas::counts::counted;
use eadt_service::Shutdown;
use eadt_tune::plan::{SweepSettings, SweepStep, plan};

use crate::atomic_file::AtomicFile;
use crate::output::print_line;
use crate::progress::ProgressMeter;
use crate::usage_error;

#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Knob to vary.
    #[arg(long, value_enum)]
    pub knob: ProfileKnob,
    /// Settings to measure: a list `1410,1305,1200`, or `705:1410:15` from, to and step [default: simulated GPUs only: from half
    /// to all of what the board has].
    #[arg(long, value_name = "SETTINGS")]
    pub settings: Option<SweepSettings>,
    /// Runs of each setting; the warm-up run before them is discarded.
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Seed of the random order.
    #[arg(long, default_value_t = 0, value_parser = crate::number::seed)]
    pub seed: u64,
    /// Name of the workload in the table.
    #[arg(long, default_value = "job")]
    pub workload: String,
    /// A simulated GPU and job instead of a real one: `V100`, `A100`, `H100`, `H200`, with `compute`, `memory`, `host` or `mid`,
    /// for example `A100:compute`.
    #[arg(long, value_name = "BOARD:JOB", conflicts_with_all = ["gpu", "intents_file", "command"])]
    pub simulate: Option<String>,
    /// Index of the GPU that the command uses, as NVML counts.
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    pub gpu: u32,
    /// The file that this node's agent follows (`intents_file` in its settings): clocks and caps are set through it, and restored
    /// by it.
    #[arg(long, value_name = "FILE")]
    pub intents_file: Option<PathBuf>,
    /// How long the agent may take to set a device, and how long the device rests before each run, for example `5s`.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = eadt_recordings::parse_interval)]
    pub settle: std::time::Duration,
    /// Path of NVML [default: found by the system's loader].
    #[arg(long, value_name = "FILE")]
    pub library: Option<PathBuf>,
    /// Table to write.
    #[arg(long, value_name = "POINTS.csv")]
    pub out: PathBuf,
    /// Replace the output if it exists.
    #[arg(long)]
    pub force: bool,
    /// The job: the same amount of work in every run.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProfileKnob {
    /// Upper bound of the SM clock.
    #[value(name = "sm_clock_mhz")]
    SmClockMhz,
    /// Power cap.
    #[value(name = "power_limit_watts")]
    PowerLimitWatts,
    /// Share of the SMs by MPS (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of the command); alone on the GPU.
    #[value(name = "mps_thread_percentage")]
    MpsThreadPercentage,
}

impl ProfileKnob {
    const fn name(self) -> &'static str {
        match self {
            Self::SmClockMhz => "sm_clock_mhz",
            Self::PowerLimitWatts => "power_limit_watts",
            Self::MpsThreadPercentage => "mps_thread_percentage",
        }
    }
}

/// The measurements of one run.
#[derive(Debug)]
struct RunMeasurement {
    duration_seconds: f64,
    energy_joules: f64,
    /// Mean over the run; `None`: not known.
    sm_clock_mhz: Option<f64>,
    temperature_celsius: Option<f64>,
}

/// Runs the job at a setting. Its changes are restored when it is dropped.
trait ProfileRunner {
    fn gpu_model(&self) -> &str;
    /// Returns `measured` or `simulated`.
    fn origin(&self) -> &'static str;
    fn run(&mut self, step: SweepStep) -> anyhow::Result<RunMeasurement>;
}

pub fn run(args: &ProfileArgs, stop: &Shutdown) -> anyhow::Result<()> {
    let target = AtomicFile::create(&args.out, &[], args.force)?;
    let (settings, mut rig): (SweepSettings, Box<dyn ProfileRunner>) = if let Some(text) = &args.simulate {
        let rig = simulated::SimulatedRunner::new(text, args.knob, args.seed)?;
        (args.settings.clone().unwrap_or_else(|| rig.settings()), Box::new(rig))
    } else {
        let needed = "--settings is needed: name the settings to measure, the highest among them";
        let settings = args.settings.clone().ok_or_else(|| usage_error::impossible(needed))?;
        (settings, Box::new(agent::AgentRunner::new(args)?))
    };
    check(&settings, args.knob)?;
    let steps = plan(&settings, args.runs, args.seed);
    let mut table = csv_head(args.knob);
    let meter = ProgressMeter::steps(steps.len() as u64, "runs");
    for (done, step) in steps.iter().enumerate() {
        if stop.is_cancelled() {
            bail!(
                "interrupted after {done} of {}: nothing is written, and what was set is restored",
                counted(steps.len(), "run")
            );
        }
        let what = if step.run == 0 { "cold run, thrown away".to_owned() } else { format!("run {}", step.run) };
        crate::output::note!("{}/{}: {} {}, {what}", done + 1, steps.len(), args.knob.name(), step.setting);
        let measured = rig.run(*step).with_context(|| format!("{} {}, {what}", args.knob.name(), step.setting))?;
        if step.run > 0 {
            push(&mut table, args, rig.as_ref(), *step, &measured);
        }
        meter.add(1);
    }
    meter.finish();
    let origin = rig.origin();
    // Puts the original settings back before the end is reported.
    drop(rig);
    let mut out = target.writer()?;
    std::io::Write::write_all(&mut out, table.as_bytes()).with_context(|| format!("cannot write {}", args.out.display()))?;
    target.finish(out)?;
    let (runs, measured) = (counted(steps.len() - 1, "run"), counted(settings.0.len(), "setting"));
    print_line!("{runs} at {measured} ({origin}) written to {}", args.out.display());
    if args.knob != ProfileKnob::MpsThreadPercentage {
        print_line!("next: eadt tune {} --by workload,gpu_model --max-slowdown 0.05", shown(&args.out));
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    if text.contains(' ') { format!("'{text}'") } else { text }
}

fn check(settings: &SweepSettings, knob: ProfileKnob) -> anyhow::Result<()> {
    if let Some(setting) = settings.0.iter().find(|setting| knob == ProfileKnob::MpsThreadPercentage && **setting > 100.0) {
        let why = format!("{setting} is no percentage; name values from 1 to 100");
        let all = settings.0.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
        return Err(usage_error::invalid("--settings <SETTINGS>", all, why));
    }
    if settings.0.len() < 2 {
        let why = "a choice needs several settings, at least five for the robust method";
        let only = settings.0.first().map_or(String::new(), f64::to_string);
        return Err(usage_error::invalid("--settings <SETTINGS>", only, why));
    }
    Ok(())
}

fn csv_head(knob: ProfileKnob) -> String {
    format!(
        "workload,gpu_model,{},run,duration_seconds,energy_joules,mean_sm_clock_mhz,temperature_celsius,origin\n",
        knob.name()
    )
}

fn push(table: &mut String, args: &ProfileArgs, rig: &dyn ProfileRunner, step: SweepStep, measured: &RunMeasurement) {
    let optional = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
    let row = [
        quoted(&args.workload),
        quoted(rig.gpu_model()),
        step.setting.to_string(),
        step.run.to_string(),
        format!("{:.6}", measured.duration_seconds),
        format!("{:.3}", measured.energy_joules),
        optional(measured.sm_clock_mhz),
        optional(measured.temperature_celsius),
        rig.origin().to_owned(),
    ];
    table.push_str(&row.join(","));
    table.push('\n');
}

/// Quotes a text for CSV.
fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
