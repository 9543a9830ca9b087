//! `eadt report`: figures per workload from a data folder, an archive or a replay.

use std::path::Path;

use anyhow::Context;
use eadt_report::{
    By, Form, Reporter, Settings, SupplyError, parse_baseline, parse_currency, read_carbon, read_prices, time_zone,
};

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Start, read_to_end};
use eadt_schemas::{Topic, decode};

use super::{partitions, topic_of};
use crate::cli::{Breakdown, Report, ReportFormat};
use crate::settings::TopicSettings;

pub fn run(args: &Report, names: &TopicSettings) -> anyhow::Result<()> {
    if !args.path.exists() {
        anyhow::bail!("{} does not exist: name a data folder, an archive or the output of `eadt replay`", args.path.display());
    }
    if args.path.is_file() {
        let path = args.path.display();
        anyhow::bail!("{path} is a file: for an event log run `eadt replay {path} --out DIR` first, and report on DIR");
    }
    for (flag, value) in [("--price-per-kwh", args.price_per_kwh), ("--carbon-grams-per-kwh", args.carbon_grams_per_kwh)] {
        if value.is_some_and(|value| !value.is_finite()) {
            anyhow::bail!("{flag} is not a finite number");
        }
    }
    let zone = time_zone(&args.time_zone).context("--time-zone")?;
    let prices = args.tariff.as_deref().map(|path| supply(path, |text, name| read_prices(text, &zone, name))).transpose()?;
    let column = args.carbon_column.as_deref();
    let carbon =
        args.carbon.as_deref().map(|path| supply(path, |text, name| read_carbon(text, column, &zone, name))).transpose()?;
    let settings = Settings {
        prices,
        carbon,
        price_per_kwh: args.price_per_kwh,
        currency: args.currency.as_deref().map(parse_currency).transpose()?,
        carbon_grams_per_kwh: args.carbon_grams_per_kwh,
        baselines: args.baseline.iter().map(|text| parse_baseline(text)).collect::<Result<_, _>>()?,
        by: args.by.map(|by| match by {
            Breakdown::Window => By::Window,
            Breakdown::Span => By::Span,
        }),
    };
    let mut reporter = Reporter::default();
    let log = args.path.join("log");
    let archived = archived(&args.path, &mut reporter);
    if log.is_dir() {
        // What the archive does not hold yet is in the log; what both hold counts once.
        match EmbeddedLog::open(&log, EmbeddedOptions::default()) {
            Ok(bus) => logged(&bus, names, &mut reporter)?,
            Err(error) => crate::output::note!("warning: only what is archived is reported: {error}"),
        }
        if let Err(error) = archived {
            tracing::debug!(%error, "no archive yet");
        }
    } else {
        archived?;
    }
    let report = reporter.report(&settings);
    if report.workloads.is_empty() {
        anyhow::bail!("{} holds no windows yet", args.path.display());
    }
    if let Some(unknown) = settings.baselines.keys().find(|name| !report.workloads.iter().any(|w| w.workload == **name)) {
        let known: Vec<_> = report.workloads.iter().map(|w| w.workload.as_str()).collect();
        anyhow::bail!("--baseline names workload={unknown}, which has no windows here; there are: {}", known.join(", "));
    }
    let form = match args.format {
        _ if args.json => Form::Json,
        ReportFormat::Text => return crate::output::print(&report.text(crate::output::width())),
        ReportFormat::Markdown => Form::Markdown,
        ReportFormat::Html => Form::Html,
    };
    crate::output::print(&report.render(form))?;
    Ok(())
}

/// Reads a file of prices or carbon intensities; its name stands in the notes.
fn supply<T>(path: &Path, read: impl FnOnce(&str, &str) -> Result<T, SupplyError>) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    read(&text, &name).with_context(|| path.display().to_string())
}

/// Everything in the archive under `path`; an error where there is none.
fn archived(path: &std::path::Path, reporter: &mut Reporter) -> anyhow::Result<()> {
    let windows = eadt_lake::read_windows(path)?;
    let decisions = eadt_lake::read_decisions(path)?;
    let actuations = eadt_lake::read_actuations(path)?;
    for (partition, offset, refusal) in windows.refused.iter().chain(&decisions.refused).chain(&actuations.refused) {
        crate::output::note!("warning: an event was left out, partition {partition} offset {offset}: {refusal}");
    }
    windows.events.iter().for_each(|event| reporter.window(event));
    decisions.events.iter().for_each(|event| reporter.decision(event));
    actuations.events.iter().for_each(|event| reporter.actuation(event));
    Ok(())
}

/// Everything that the embedded log still has.
fn logged(bus: &EmbeddedLog, names: &TopicSettings, reporter: &mut Reporter) -> anyhow::Result<()> {
    let from = partitions(bus, names, &[Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations], Start::Earliest)?;
    read_to_end(
        bus,
        &from,
        || false,
        |record| {
            let Some(value) = &record.value else { return Ok(()) };
            match topic_of(&record, &names.prefix) {
                Some(Topic::EfficiencyWindows) => reporter.window(&decode(value)?),
                Some(Topic::Decisions) => reporter.decision(&decode(value)?),
                Some(Topic::Actuations) => reporter.actuation(&decode(value)?),
                _ => {}
            }
            anyhow::Ok(())
        },
    )?;
    Ok(())
}
