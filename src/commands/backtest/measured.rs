//! `eadt backtest --plant measured`: runs controllers on measured boards.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eadt_backtest::{MeasuredBacktestPlan, MeasuredBoard, SweepKnob, SweepPoint, render_measured_report};
use eadt_models::choose::{ChoiceMethod, ChoiceObjective, TuningKnob};
use eadt_tune::{TuningRequest, points, tune};

use crate::cli::BacktestArgs;
use crate::commands::tune::{KnobName, PointTableArgs, knobs_of, open};
use crate::progress::ProgressMeter;
use crate::settings::ProgramSettings;

/// What the controllers work on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TestbedName {
    /// The simulated cluster.
    Simulated,
    /// The tables of `--table`.
    Measured,
}

#[derive(Debug, Args)]
pub struct MeasuredTestbedArgs {
    /// System under control: the simulated cluster, or boards as a table has them.
    #[arg(long, value_enum, default_value_t = TestbedName::Simulated, requires_if("measured", "table"))]
    pub plant: TestbedName,
    /// Table of operating points (CSV), as `eadt tune` reads it: a clock or a power cap, with time and energy of a fixed amount
    /// of work; may be repeated.
    #[arg(long, value_name = "POINTS.csv")]
    pub table: Vec<PathBuf>,
    /// Which column was turned [default: the one that the table has].
    #[arg(long, value_enum)]
    pub knob: Option<KnobName>,
    #[command(flatten)]
    pub columns: PointTableArgs,
}

impl MeasuredTestbedArgs {
    /// Returns the first given option about the reading of a table.
    pub fn option_of_a_table(&self) -> Option<&'static str> {
        let options = [
            ("--table", !self.table.is_empty()),
            ("--knob", self.knob.is_some()),
            ("--map", !self.columns.map.is_empty()),
            ("--decimal", self.columns.decimal.is_some()),
            ("--by", !self.columns.by.is_empty()),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

pub fn run(args: &BacktestArgs, settings: &ProgramSettings) -> anyhow::Result<()> {
    if args.power_budget.is_some() {
        let why = "--power-budget shares watts among the jobs of a cluster; a table has one job a board";
        return Err(crate::usage_error::impossible(why));
    }
    let mut boards = Vec::new();
    for path in &args.measured.table {
        boards.extend(read(path, &args.measured)?);
    }
    if boards.is_empty() {
        bail!("no group of the table has the two settings that a plant needs");
    }
    let mut names = super::or_default(&args.controller, &super::CONTROLLERS);
    // The usual controllers know no clock.
    if boards.iter().any(MeasuredBoard::is_of_clocks) && !names.iter().any(|name| name == "frequency") {
        names.push("frequency".to_owned());
    }
    let contest = MeasuredBacktestPlan {
        boards,
        contenders: super::contenders(&names)?,
        days: args.days.unwrap_or(1.0),
        seeds: args.seeds.unwrap_or(3),
        settings: settings.processor.controller_settings.clone(),
        delay_seconds: f64::from(settings.simulator.effect_delay_seconds),
    };
    contest.check()?;
    let meter = ProgressMeter::steps(contest.boards.len() as u64, super::RUNS);
    let report = contest.run(&|| meter.add(1));
    meter.finish();
    let report = report?;
    if args.json {
        crate::output::print(&(serde_json::to_string_pretty(&report)? + "\n"))
    } else {
        crate::output::print(&render_measured_report(&report))
    }
}

/// Reads one board for each group of a table; warns of what looks wrong in it.
fn read(path: &std::path::Path, plant: &MeasuredTestbedArgs) -> anyhow::Result<Vec<MeasuredBoard>> {
    let knob_names: Vec<KnobName> = plant.knob.into_iter().collect();
    let knobs = knobs_of(path, &plant.columns, &knob_names)?;
    let knob = match knobs.first {
        TuningKnob::SmClockMhz => SweepKnob::SmClockMhz,
        TuningKnob::PowerLimitWatts => SweepKnob::PowerLimitWatts,
        other @ (TuningKnob::MemoryClockMhz | TuningKnob::BatchSize) => bail!("no controller turns {}", other.name()),
    };
    let request = TuningRequest {
        maps: plant.columns.map.clone(),
        decimal: plant.columns.decimal.map(Into::into),
        by: plant.columns.by.clone(),
        knobs,
        reference_second_setting: None,
        max_slowdown_ratio: Some(0.0),
        min_ratio: None,
        preset: None,
        objective: ChoiceObjective::Energy,
        method: ChoiceMethod::Measured,
        min_settings: 2,
        max_power_watts: plant.columns.max_power_watts,
    };
    let name = path.display().to_string();
    let groups = points::read(&name, open(path)?, &request)?;
    let tuning = tune(&name, &groups, &request);
    for note in &tuning.notes {
        crate::output::note!("note: {}", note.text);
    }
    for skipped in &tuning.skipped {
        crate::output::note!("warning: left out: {}: {}", points::name(&skipped.by), skipped.reason);
    }
    let stem = path.file_stem().map_or(name.clone(), |stem| stem.to_string_lossy().into_owned());
    let board = |group: &eadt_tune::TuningGroup| {
        let glitches: Vec<f64> = group.choices.glitches.iter().map(|glitch| glitch.setting).collect();
        let usable = group.points.iter().filter(|[setting, ..]| !glitches.contains(setting));
        let points =
            usable.map(|&[setting, duration_seconds, energy_joules]| SweepPoint { setting, duration_seconds, energy_joules });
        let name = if group.by.is_empty() { stem.clone() } else { format!("{stem} {}", points::name(&group.by)) };
        MeasuredBoard::new(name, knob, points.collect()).map(|board| board.simulated(group.is_simulated()))
    };
    tuning.groups.iter().map(board).collect::<Result<_, _>>().with_context(|| format!("{name} makes no plant"))
}
