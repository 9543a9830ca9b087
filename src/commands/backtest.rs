//! `eadt backtest`: controllers on simulated days, against the untouched layout and an oracle, or in hindsight on a record.

pub mod measured;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use eadt_backtest::{
    BacktestPlan, BacktestReport, Calibration, Contender, HindsightInput, Oversubscription, ScenarioSource, calibration_html,
    hindsight_html, html, render_calibration_report, render_hindsight_report, text,
};
use eadt_core::controller::ControllerName;
use eadt_lake::Archive;
use eadt_schemas::Topic;
use eadt_schemas::decode::DecodableEvent;

use crate::atomic_file::AtomicFile;
use crate::cli::{BacktestArgs, BacktestOversubscription};
use crate::progress::{self, ProgressMeter};
use crate::settings::ProgramSettings;
use crate::usage_error;

pub fn run(args: &BacktestArgs, settings: &ProgramSettings) -> anyhow::Result<()> {
    check_options(args)?;
    if let Some(path) = &args.archive {
        return look_back(args, path, settings);
    }
    if args.measured.plant == measured::TestbedName::Measured {
        return measured::run(args, settings);
    }
    if args.calibrate {
        return calibrate(args, settings);
    }
    let (days, seeds) = (args.days.unwrap_or(DAYS), args.seeds.unwrap_or(SEEDS));
    let mut names = or_default(&args.controller, &CONTROLLERS);
    if args.power_budget.is_some() {
        names.push(eadt_core::power_budget::allocation::CONTROLLER.to_owned());
    }
    let contest = BacktestPlan {
        subjects: subjects(&or_default(&args.scenario, &["random-days"]))?,
        contenders: contenders(&names)?,
        oversubscription: match args.oversubscription {
            BacktestOversubscription::Both => vec![Oversubscription::Allowed, Oversubscription::Clamped],
            BacktestOversubscription::Allowed => vec![Oversubscription::Allowed],
            BacktestOversubscription::Clamped => vec![Oversubscription::Clamped],
        },
        days,
        seeds,
        settings: settings.processor.controller_settings.clone(),
        delay_seconds: f64::from(settings.simulator.effect_delay_seconds),
        power_budget_watts: args.power_budget,
    };
    contest.check()?;
    // Before hours of simulation, not after them.
    let page = args.html.as_deref().map(|path| AtomicFile::create(path, &[], args.force)).transpose()?;
    let meter = ProgressMeter::steps(contest.len() as u64, RUNS);
    let runs = contest.run(&|| meter.add(1));
    meter.finish();
    let report = BacktestReport::of(&runs?, days, seeds);
    if let Some(page) = page {
        page.write(&html(&report))?;
    }
    if args.json {
        crate::output::print(&(serde_json::to_string_pretty(&report)? + "\n"))
    } else {
        crate::output::print(&text(&report))
    }
}

/// Returns an error if an option has no effect on the kind of backtest that is run.
fn check_options(args: &BacktestArgs) -> anyhow::Result<()> {
    if args.archive.is_some() && args.power_budget.is_some() {
        return Err(usage_error::impossible(
            "--power-budget is of simulated jobs, --archive of a record: leave one of the two out",
        ));
    }
    if args.measured.plant == measured::TestbedName::Simulated {
        return match args.measured.option_of_a_table() {
            Some(option) => Err(usage_error::impossible(format!("{option} is for tables of boards: use --plant measured, too"))),
            None => Ok(()),
        };
    }
    let of_others = [
        ("--archive", args.archive.is_some()),
        ("--calibrate", args.calibrate),
        ("--scenario", !args.scenario.is_empty()),
        ("--oversubscription", args.oversubscription != BacktestOversubscription::Both),
        ("--html", args.html.is_some()),
    ];
    match of_others.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => {
            Err(usage_error::impossible(format!("{option} has no effect with --plant measured: leave one of the two out")))
        }
        None => Ok(()),
    }
}

/// Steps of the progress of a backtest.
const RUNS: &str = "runs";
/// Controllers of a contest, and days of a run, if none are named.
const CONTROLLERS: [&str; 4] = ["hybrid", "power-cap", "matrix", "matrix-literal"];
const DAYS: f64 = 14.0;
const SEEDS: u64 = 20;
/// The same of a calibration.
const CALIBRATED: [&str; 5] = ["matrix", "matrix-literal", "power-cap", "frequency", "hybrid"];
const CALIBRATION_SCENARIOS: [&str; 5] = ["default", "random-days", "come-and-go", "hour-phases", "five-minute-phases"];
const CALIBRATION_DAYS: f64 = 1.0;

fn or_default(named: &[String], default: &[&str]) -> Vec<String> {
    if named.is_empty() { default.iter().map(|name| (*name).to_owned()).collect() } else { named.to_vec() }
}

/// Prints reported savings beside the true ones.
fn calibrate(args: &BacktestArgs, settings: &ProgramSettings) -> anyhow::Result<()> {
    let controllers = controllers(&or_default(&args.controller, &CALIBRATED))?;
    note_idle(&controllers);
    let calibration = Calibration {
        subjects: subjects(&or_default(&args.scenario, &CALIBRATION_SCENARIOS))?,
        controllers,
        days: args.days.unwrap_or(CALIBRATION_DAYS),
        seeds: args.seeds.unwrap_or(SEEDS),
        settings: settings.processor.controller_settings.clone(),
        delay_seconds: f64::from(settings.simulator.effect_delay_seconds),
    };
    calibration.check()?;
    let page = args.html.as_deref().map(|path| AtomicFile::create(path, &[], args.force)).transpose()?;
    let meter = ProgressMeter::steps(calibration.len() as u64, RUNS);
    let report = calibration.run(&|| meter.add(1));
    meter.finish();
    let report = report?;
    if let Some(page) = page {
        page.write(&calibration_html(&report))?;
    }
    if args.json {
        crate::output::print(&(serde_json::to_string_pretty(&report)? + "\n"))
    } else {
        crate::output::print(&render_calibration_report(&report))
    }
}

/// Prints the decisions that the controllers would have made on a record.
fn look_back(args: &BacktestArgs, path: &Path, settings: &ProgramSettings) -> anyhow::Result<()> {
    let controllers = controllers(&or_default(&args.controller, &CONTROLLERS))?;
    let page = args.html.as_deref().map(|path| AtomicFile::create(path, &[], args.force)).transpose()?;
    let topics = [Topic::EfficiencyWindows, Topic::Workloads, Topic::Actuations];
    let (archive, meter) = progress::over_archive(super::find_archive(path, &topics)?, &topics)?;
    let record = HindsightInput {
        windows: events(&archive, Topic::EfficiencyWindows)?,
        workloads: events(&archive, Topic::Workloads)?,
        actuations: events(&archive, Topic::Actuations)?,
    };
    meter.finish();
    let workloads: BTreeSet<&str> = record.windows.iter().map(|window| window.workload.as_str()).collect();
    let meter = ProgressMeter::steps((workloads.len() * controllers.len()) as u64, "records");
    let defaults = &settings.processor.controller_settings;
    let all = eadt_backtest::evaluate_record_counted(&record, &controllers, defaults, &|| meter.add(1));
    meter.finish();
    if all.is_empty() {
        anyhow::bail!("{} holds no windows of a workload: there is nothing to look back on", path.display());
    }
    if let Some(page) = page {
        page.write(&hindsight_html(&all))?;
    }
    if args.json {
        crate::output::print(&(serde_json::to_string_pretty(&serde_json::json!({ "hindsight": all }))? + "\n"))
    } else {
        crate::output::print(&render_hindsight_report(&all))
    }
}

fn events<T: DecodableEvent>(archive: &Archive, topic: Topic) -> anyhow::Result<Vec<T>> {
    let read = eadt_lake::read_events(archive, topic)?;
    super::warn_missing(&read.missing);
    super::warn_passed_over(topic, &read.passed_over);
    for (partition, offset, refusal) in &read.refused {
        crate::output::note!("warning: an event of {topic} was left out, partition {partition} offset {offset}: {refusal}");
    }
    Ok(read.events)
}

fn subjects(names: &[String]) -> anyhow::Result<Vec<ScenarioSource>> {
    names.iter().map(|name| subject(name)).collect()
}

/// Returns a scenario by its built-in name, or from a file.
fn subject(name: &str) -> anyhow::Result<ScenarioSource> {
    match name {
        "random-days" => return Ok(ScenarioSource::RandomDays),
        "come-and-go" => return Ok(ScenarioSource::ComeAndGo),
        "hour-phases" => return Ok(ScenarioSource::EvenPhases { minutes: 60 }),
        "five-minute-phases" => return Ok(ScenarioSource::EvenPhases { minutes: 5 }),
        "default" => return Ok(ScenarioSource::Scenario { name: name.into(), scenario: Box::default() }),
        _ => {}
    }
    let path = Path::new(name);
    if !path.exists() {
        let built_in =
            "there is no such file, and built in are random-days, default, come-and-go, hour-phases and five-minute-phases";
        return Err(usage_error::invalid("--scenario <NAME|FILE>", name, built_in));
    }
    let scenario = crate::scenario::load(path)?;
    let name = path.file_stem().map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok(ScenarioSource::Scenario { name, scenario: Box::new(scenario) })
}

/// Returns the named controllers, each once.
fn controllers(names: &[String]) -> anyhow::Result<Vec<ControllerName>> {
    let mut all = Vec::with_capacity(names.len());
    add_named(&mut all, names)?;
    Ok(all)
}

/// Adds each name of `--controller` that is not there yet.
fn add_named<T: FromStr<Err: Display> + PartialEq>(all: &mut Vec<T>, names: &[String]) -> anyhow::Result<()> {
    for name in names {
        let named: T = name.parse().map_err(|error| usage_error::invalid("--controller <NAME>", name, error))?;
        if !all.contains(&named) {
            all.push(named);
        }
    }
    Ok(())
}

/// Notes controllers that a backtest gives nothing to decide by.
fn note_idle(controllers: &[ControllerName]) {
    for name in controllers.iter().filter(|name| !ControllerName::ALL.contains(name)) {
        crate::output::note!(
            "note: {name} changes nothing here: it needs the jobs beside a job, or what a job reports of its training"
        );
    }
}

/// Returns the named controllers, after the layout that they are compared with and the oracle.
fn contenders(names: &[String]) -> anyhow::Result<Vec<Contender>> {
    let mut all = vec![Contender::Fixed, Contender::Oracle];
    add_named(&mut all, names)?;
    let named = |contender: &Contender| if let Contender::Controller(name) = contender { Some(*name) } else { None };
    note_idle(&all.iter().filter_map(named).collect::<Vec<_>>());
    Ok(all)
}
