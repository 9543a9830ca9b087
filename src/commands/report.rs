//! `eadt report`: figures per workload from a data folder, an archive or a replay.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use eadt_report::{By, Comparison, FigurePair, Form, Reporter, Settings, SupplyError, read_carbon, read_prices, units};

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Start, read_to_end};
use eadt_schemas::{Topic, decode};

use super::{partitions, topic_of};
use crate::cli::{Breakdown, Report, ReportFormat};
use crate::live::origin_word;
use crate::settings::TopicSettings;
use crate::sheet::{Cell, Column, Sheet, SheetForm};
use crate::usage;

pub fn run(args: &Report, names: &TopicSettings) -> anyhow::Result<()> {
    if !args.path.exists() {
        anyhow::bail!("{} does not exist: name a data folder, an archive or the output of `eadt replay`", args.path.display());
    }
    if args.path.is_file() {
        let path = args.path.display();
        anyhow::bail!("{path} is a file: for an event log run `eadt replay {path} --out DIR` first, and report on DIR");
    }
    let zone = &args.time_zone;
    let prices = args.tariff.as_deref().map(|path| supply(path, |text, name| read_prices(text, zone, name))).transpose()?;
    let column = args.carbon_column.as_deref();
    let carbon =
        args.carbon.as_deref().map(|path| supply(path, |text, name| read_carbon(text, column, zone, name))).transpose()?;
    let settings = Settings {
        prices,
        carbon,
        price_per_kwh: args.price_per_kwh,
        currency: args.currency.clone(),
        carbon_grams_per_kwh: args.carbon_grams_per_kwh,
        baselines: args.baseline.iter().cloned().collect(),
        by: args.by.map(|by| match by {
            Breakdown::Window => By::Window,
            Breakdown::Span => By::Span,
        }),
    };
    let reporter = read(&args.path, names)?;
    let report = reporter.report(&settings);
    if report.workloads.is_empty() {
        anyhow::bail!("{} holds no windows yet", args.path.display());
    }
    if let Some(unknown) = settings.baselines.keys().find(|name| !report.workloads.iter().any(|w| w.workload == **name)) {
        let known: Vec<_> = report.workloads.iter().map(|w| w.workload.as_str()).collect();
        let why = format!("it has no windows here; there are: {}", known.join(", "));
        return Err(usage::invalid("--baseline <NS/NAME=JOULES>", unknown, why));
    }
    if let Some(other) = &args.compare {
        let other = read(other, names).with_context(|| format!("--compare {}", other.display()))?.report(&settings);
        return crate::output::print(&comparison(&report, &other)?);
    }
    if args.csv {
        return crate::output::print(&csv(&report, settings.by)?);
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

/// The events of a data folder, an archive or a replay's output.
fn read(path: &Path, names: &TopicSettings) -> anyhow::Result<Reporter> {
    let mut reporter = Reporter::default();
    let log = path.join("log");
    let archived = archived(path, &mut reporter);
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
    Ok(reporter)
}

/// The rows of a report with raw figures. What a row has several of, such as notes, is left out.
fn csv(report: &eadt_report::Report, by: Option<By>) -> anyhow::Result<String> {
    let mut rows: Vec<serde_json::Map<String, serde_json::Value>> = Vec::new();
    for workload in &report.workloads {
        let mut add = |row: serde_json::Value| {
            if let serde_json::Value::Object(mut row) = row {
                row.insert("workload".to_owned(), workload.workload.clone().into());
                row.retain(|_, value| !value.is_array());
                rows.push(row);
            }
        };
        match by {
            None => add(serde_json::to_value(workload)?),
            Some(By::Window) => {
                for row in workload.by_window.iter().flatten() {
                    add(serde_json::to_value(row)?);
                }
            }
            Some(By::Span) => {
                for row in workload.by_span.iter().flatten() {
                    add(serde_json::to_value(row)?);
                }
            }
        }
    }
    let mut columns: Vec<String> = rows.iter().flat_map(|row| row.keys().cloned()).collect();
    // The name first, the others by the alphabet, so that a column stays where it is when another one comes.
    columns.sort_by_key(|name| (name != "workload", name.clone()));
    columns.dedup();
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&columns)?;
    for row in &rows {
        writer.write_record(columns.iter().map(|name| match row.get(name) {
            None | Some(serde_json::Value::Null) => String::new(),
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// Two runs side by side, by workload; what only one of them has is named.
fn comparison(report: &eadt_report::Report, other: &eadt_report::Report) -> anyhow::Result<String> {
    let columns = vec![
        Column::text("WORKLOAD", "workload"),
        Column::figure("J/SAMPLE OTHER", "other_joules_per_sample"),
        Column::figure("THIS", "joules_per_sample"),
        Column::figure("CHANGE", "joules_per_sample_change_ratio"),
        Column::figure("SAMPLES/S OTHER", "other_samples_per_second"),
        Column::figure("THIS", "samples_per_second"),
        Column::figure("CHANGE", "samples_per_second_change_ratio"),
        Column::figure("ENERGY OTHER", "other_energy_joules"),
        Column::figure("THIS", "energy_joules"),
        Column::text("ORIGINS", "origins"),
    ];
    let change = |pair: FigurePair| Cell::figure(pair.change_ratio, |ratio| format!("{:+.1} %", 100.0 * ratio));
    let mut rows = Vec::new();
    let mut alone: Vec<String> = Vec::new();
    for this in report.by_energy() {
        let Some(that) = other.workloads.iter().find(|that| that.workload == this.workload) else {
            alone.push(format!("{} is only in this run", this.workload));
            continue;
        };
        let Comparison { joules_per_sample, samples_per_second, energy_joules, .. } = Comparison::of(this, that);
        rows.push(vec![
            Cell::text(this.workload.clone()),
            Cell::figure(joules_per_sample.other, units::joules_per_sample),
            Cell::figure(joules_per_sample.this, units::joules_per_sample),
            change(joules_per_sample),
            Cell::figure(samples_per_second.other, units::count),
            Cell::figure(samples_per_second.this, units::count),
            change(samples_per_second),
            Cell::figure(energy_joules.other, units::joules),
            Cell::figure(energy_joules.this, units::joules),
            Cell::text(format!("{} / {}", origin_word(that.origin), origin_word(this.origin))),
        ]);
    }
    let here = |name: &String| report.workloads.iter().any(|this| this.workload == *name);
    let there = other.workloads.iter().map(|that| &that.workload).filter(|name| !here(name));
    alone.extend(there.map(|name| format!("{name} is only in the other run")));
    let mut text = Sheet { columns, rows }.render(SheetForm::Wide, None)?;
    for line in alone {
        writeln!(text, "note: {line}").expect("writing to a String");
    }
    text += "note: whole runs are compared, restarts and trials included; that they did the same work is not checked\n";
    Ok(text)
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
    super::say_missing(windows.missing.iter().chain(&decisions.missing).chain(&actuations.missing));
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
