//! `eadt backtest`: controllers on simulated days, against the untouched layout and an oracle, or in hindsight on a record.

use std::io::IsTerminal;
use std::path::Path;

use anyhow::Context;
use eadt_backtest::{Contender, Contest, Oversubscription, Record, Report, Subject, hindsight_text, html, text};
use eadt_core::controller::ControllerName;
use eadt_lake::Archive;
use eadt_schemas::Topic;
use eadt_schemas::decode::Check;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::{Backtest, BacktestOversubscription};
use crate::settings::Settings;

pub fn run(args: &Backtest, settings: &Settings) -> anyhow::Result<()> {
    if let Some(path) = &args.archive {
        return look_back(args, path, settings);
    }
    let mut names = args.controller.clone();
    if args.power_budget.is_some() {
        names.push(eadt_core::power_budget::allocation::CONTROLLER.to_owned());
    }
    let contest = Contest {
        subjects: args.scenario.iter().map(|name| subject(name)).collect::<anyhow::Result<_>>()?,
        contenders: contenders(&names)?,
        oversubscription: match args.oversubscription {
            BacktestOversubscription::Both => vec![Oversubscription::Allowed, Oversubscription::Clamped],
            BacktestOversubscription::Allowed => vec![Oversubscription::Allowed],
            BacktestOversubscription::Clamped => vec![Oversubscription::Clamped],
        },
        days: args.days,
        seeds: args.seeds,
        settings: settings.processor.controller_settings.clone(),
        delay_seconds: f64::from(settings.simulator.effect_delay_seconds),
        power_budget_watts: args.power_budget,
    };
    contest.check()?;
    let bar = progress(contest.len() as u64, !args.json);
    let runs = contest.hold(&|| bar.inc(1));
    bar.finish_and_clear();
    let report = Report::of(&runs?, args.days, args.seeds);
    if let Some(path) = &args.html {
        std::fs::write(path, html(&report)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        crate::output::print(&(serde_json::to_string_pretty(&report)? + "\n"))
    } else {
        crate::output::print(&text(&report))
    }
}

/// What the controllers would have decided on a record.
fn look_back(args: &Backtest, path: &Path, settings: &Settings) -> anyhow::Result<()> {
    let controllers: Vec<ControllerName> = args.controller.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let archive = Archive::find(path)?;
    let record = Record {
        windows: events(&archive, Topic::EfficiencyWindows)?,
        workloads: events(&archive, Topic::Workloads)?,
        actuations: events(&archive, Topic::Actuations)?,
    };
    let all = eadt_backtest::look_back(&record, &controllers, &settings.processor.controller_settings);
    if all.is_empty() {
        anyhow::bail!("{} holds no windows of a workload: there is nothing to look back on", path.display());
    }
    if args.json {
        crate::output::print(&(serde_json::to_string_pretty(&serde_json::json!({ "hindsight": all }))? + "\n"))
    } else {
        crate::output::print(&hindsight_text(&all))
    }
}

fn events<T: Check>(archive: &Archive, topic: Topic) -> anyhow::Result<Vec<T>> {
    let read = eadt_lake::read_events(archive, topic)?;
    for (partition, offset, refusal) in &read.refused {
        eprintln!("warning: an event of {topic} was left out, partition {partition} offset {offset}: {refusal}");
    }
    Ok(read.events)
}

/// On a terminal; nothing of it goes to standard output.
fn progress(runs: u64, wanted: bool) -> ProgressBar {
    if !wanted || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} runs, {eta} left");
    ProgressBar::new(runs).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A scenario by its built-in name, or from a file.
fn subject(name: &str) -> anyhow::Result<Subject> {
    match name {
        "random-days" => return Ok(Subject::RandomDays),
        "default" => return Ok(Subject::Scenario { name: name.into(), scenario: Box::default() }),
        _ => {}
    }
    let path = Path::new(name);
    let scenario = crate::scenario::load(path).context("built in are random-days and default")?;
    let name = path.file_stem().map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned());
    Ok(Subject::Scenario { name, scenario: Box::new(scenario) })
}

/// The named controllers, after the layout that they are compared with and the oracle.
fn contenders(names: &[String]) -> anyhow::Result<Vec<Contender>> {
    let mut all = vec![Contender::Fixed, Contender::Oracle];
    for name in names {
        let contender: Contender = name.parse()?;
        if !all.contains(&contender) {
            all.push(contender);
        }
    }
    Ok(all)
}
