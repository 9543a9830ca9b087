//! `eadt get` and `eadt describe`: lists the objects of a record like kubectl.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use eadt_report::states::ChangeFates;
use eadt_report::units;
use eadt_schemas::Topic;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::{Actuation, Decision};
use eadt_service::Shutdown;

use crate::cli::{DescribeArgs, GetArgs, GetKind, GetSource};
use crate::live::dashboard_log;
use crate::live::event_line::is_change;
use crate::live::frame::{self, DecidedChange, WorkloadDetails, WorkloadRow};
use crate::live::gpus::{GpuSamples, GpuSnapshot};
use crate::live::keys::SortKey;
use crate::live::source::{self, ReadExtent, ReadRange, SpanEnd, TOPICS};
use crate::live::tally::{LiveTally, NewestFigures, WorkloadTally};
use crate::live::{decided_text, decision_text, layout_text, layout_words, origin_word, saving_text, wire_name};
use crate::output_table::{OutputCell, OutputColumn, OutputFormat, OutputTable, csv_cell};
use crate::settings::ProgramSettings;
use crate::usage_error;

/// Reads a place, or the log behind a page, to its present end.
fn read(
    source: &GetSource,
    settings: &ProgramSettings,
    topics: &[Topic],
    shutdown: &Shutdown,
    take: &mut dyn FnMut(Topic, &[u8]),
) -> anyhow::Result<ReadExtent> {
    match source.page.page()? {
        Some(page) => {
            dashboard_log::read(&page, source.since, topics, shutdown, take)?;
            Ok(ReadExtent { end: SpanEnd::Newest(None), is_archive_only: false, has_ended: false })
        }
        None => source::read(source.from.as_deref(), settings, topics, ReadRange::last(source.since), shutdown, take),
    }
}

/// Returns everything that the views show.
fn tally(source: &GetSource, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<(LiveTally, ReadExtent)> {
    let mut tally = LiveTally::default();
    let extent = read(source, settings, &TOPICS, shutdown, &mut |topic, value| tally.take(topic, value))?;
    warn_unreadable(source, tally.unreadable);
    tally.refresh_all();
    tally.has_ended = extent.has_ended;
    Ok((tally, extent))
}

/// Warns of records that are no valid events: nothing shows them. A page counts its own.
fn warn_unreadable(source: &GetSource, records: u64) {
    if records > 0 && source.page.url.is_none() {
        crate::output::note!("warning: {} left out: they are not valid events of their topics", counted(records, "record"));
    }
}

/// A list, and the text that is printed if it is empty.
struct GetListing {
    table: OutputTable,
    extent: ReadExtent,
    /// Names of the record from which the asked ones are chosen.
    known: BTreeSet<String>,
}

/// Refuses the folder of a record given as a name, if there is no other source.
fn refuse_folder(args: &GetArgs, settings: &ProgramSettings) -> anyhow::Result<()> {
    let has_source = args.source.from.is_some() || args.source.page.url.is_some() || !settings.bus.brokers.is_empty();
    let folder = args.names.iter().find(|name| Path::new(name).is_dir());
    match folder.filter(|_| !has_source && !settings.bus.data_dir.is_dir()) {
        Some(folder) => Err(usage_error::impossible(format!("{folder} is a folder, and no name: --from {folder} reads it"))),
        None => Ok(()),
    }
}

pub fn run(args: &GetArgs, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    refuse_folder(args, settings)?;
    let (listing, what) = match args.kind {
        GetKind::Workloads => (workloads(args, settings, shutdown)?, "workloads"),
        GetKind::Decisions => (decisions(args, settings, shutdown)?, "decisions"),
        GetKind::Gpus => (gpus(args, settings, shutdown)?, "GPUs"),
    };
    let GetListing { table: mut sheet, extent, mut known } = listing;
    let of_namespace = args.namespace.as_deref().filter(|_| args.kind != GetKind::Gpus);
    let is_listed = |name: &String| of_namespace.is_none_or(|wanted| name.split_once('/').is_some_and(|(of, _)| of == wanted));
    known.retain(is_listed);
    if args.kind != GetKind::Gpus && args.names.iter().any(|name| !has_name(&known, name)) {
        add_names_of_record(&args.source, settings, shutdown, &mut known)?;
        known.retain(is_listed);
    }
    let missing: Vec<&String> = args.names.iter().filter(|name| !has_name(&known, name)).collect();
    let found = sheet.rows.len();
    let limit = args.limit.unwrap_or(usize::MAX);
    if args.kind == GetKind::Decisions {
        // The newest are the last.
        sheet.rows.drain(..found.saturating_sub(limit));
    } else {
        sheet.rows.truncate(limit);
    }
    if found == 0 && matches!(args.output, OutputFormat::Table | OutputFormat::Wide) {
        if missing.is_empty() {
            let within = args.source.since.map_or_else(String::new, |since| format!(" {}", extent.end.describe(since)));
            crate::output::note!("no {what} found{within}");
        }
    } else {
        print(args.output, &sheet.render(args.output, crate::output::width())?)?;
    }
    if found > sheet.rows.len() {
        crate::output::note!("{} of {found} {what} shown: --limit", sheet.rows.len());
    }
    refuse_missing(args, &missing, &known, extent)
}

/// Returns an error if names were asked for that the record does not have.
fn refuse_missing(args: &GetArgs, missing: &[&String], known: &BTreeSet<String>, extent: ReadExtent) -> anyhow::Result<()> {
    let Some(first) = missing.first() else { return Ok(()) };
    let kind = if args.kind == GetKind::Gpus { "GPU or node" } else { "workload" };
    let searched = if extent.is_archive_only { "in what is archived" } else { "in the whole record" };
    let within = args.namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    let names: Vec<String> = missing.iter().map(|name| format!("{name:?}")).collect();
    anyhow::bail!(
        "no {kind} is named {}{within} {searched}; {}",
        names.join(" or "),
        super::nearest_names(first, known.iter().map(String::as_str))
    )
}

/// Returns whether a name is one of these, with or without its namespace.
fn has_name(known: &BTreeSet<String>, name: &str) -> bool {
    known.contains(name) || known.iter().any(|known| known.split_once('/').is_some_and(|(_, short)| short == name))
}

/// The workload that an event is of.
#[derive(serde::Deserialize)]
struct EventOfWorkload {
    workload: String,
}

/// Adds the workloads of the whole record, whatever `--since` leaves out.
fn add_names_of_record(
    source: &GetSource,
    settings: &ProgramSettings,
    shutdown: &Shutdown,
    known: &mut BTreeSet<String>,
) -> anyhow::Result<()> {
    let whole = GetSource { since: None, from: source.from.clone(), page: source.page.clone() };
    let topics = [Topic::Workloads, Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations];
    read(&whole, settings, &topics, shutdown, &mut |_, value| {
        known.extend(serde_json::from_slice::<EventOfWorkload>(value).map(|event| event.workload));
    })?;
    Ok(())
}

/// Returns whether a workload is asked for.
fn wanted(args: &GetArgs, workload: &str) -> bool {
    let (namespace, name) = workload.split_once('/').unwrap_or(("", workload));
    args.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
        && (args.names.is_empty() || args.names.iter().any(|wanted| wanted == workload || wanted == name))
}

/// Returns the columns of workloads. Power and speed are of the newest window, as in the live view; of a record that has ended they
/// are the last ones. The sums are of the run, or of the last so much time of it.
fn workload_columns(powered: bool, has_ended: bool, since: Option<Duration>) -> Vec<OutputColumn> {
    let [power, per_sample, speed] = if has_ended {
        ["LAST POWER", "LAST J/SAMPLE", "LAST SAMPLES/S"]
    } else {
        ["POWER NOW", "J/SAMPLE NOW", "SAMPLES/S NOW"]
    };
    let speed = OutputColumn::figure(speed, "samples_per_second");
    let of_last = since.map(|since| format!(" OF LAST {}", units::format_duration(since.as_secs_f64()).to_uppercase()));
    let summed = |heading: &'static str, of_run: &str, name: &'static str| {
        OutputColumn::figure(heading, name).headed(format!("{heading}{}", of_last.as_deref().unwrap_or(of_run)))
    };
    vec![
        OutputColumn::text("WORKLOAD", "workload"),
        OutputColumn::figure(power, "power_watts"),
        summed("J/SAMPLE", " OF RUN", "joules_per_sample"),
        OutputColumn::figure(per_sample, "newest_joules_per_sample").wide(),
        OutputColumn::figure("SAVED OF RUN", "saving_ratio"),
        OutputColumn::figure("ERROR", "saving_ratio_error").wide(),
        OutputColumn::figure("COMPARED", "compared_energy_ratio").wide(),
        OutputColumn::figure("SAVED J", "saving_joules").wide(),
        summed("ENERGY", "", "energy_joules").wide(),
        // If no power is known, as with `up --gpus none`, the speed is the only figure.
        if powered { speed.wide() } else { speed },
        OutputColumn::figure("GPUS", "gpus"),
        OutputColumn::text("MODE", "mode"),
        OutputColumn::text("STATE", "state"),
        OutputColumn::text("ORIGIN", "origin"),
        summed("CHANGES", "", "changes").wide(),
        summed("REVERTS", "", "reverts").wide(),
        OutputColumn::text("LAYOUT", "layout").wide(),
    ]
}

fn workloads(args: &GetArgs, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<GetListing> {
    let (tally, extent) = tally(&args.source, settings, shutdown)?;
    let known = tally.workloads.keys().cloned().collect();
    let mut rows = frame::rows(&tally);
    for row in &mut rows {
        // Beside the sums of the run is the figure of the run; that of the newest window has a column of its own.
        row.joules_per_sample = tally.run_joules_per_sample(&row.name);
    }
    let mut rows: Vec<&WorkloadRow> = rows.iter().filter(|row| wanted(args, &row.name)).collect();
    args.sort.unwrap_or(SortKey::Name).sort(&mut rows, false);
    let powered = rows.iter().any(|row| row.power_watts.is_some() || row.energy_joules.is_some());
    let columns = workload_columns(powered, extent.has_ended, args.source.since);
    let partial = args.source.since.is_some();
    let percent = |ratio: f64| format!("{:.1} %", 100.0 * ratio);
    let row = |row: &&WorkloadRow| {
        let saving = row.saving.filter(|_| !partial);
        vec![
            OutputCell::text(row.name.clone()),
            OutputCell::figure(row.power_watts, units::format_watts),
            OutputCell::figure(row.joules_per_sample, units::joules_per_sample),
            OutputCell::figure(tally.newest_joules_per_sample(&row.name), units::joules_per_sample),
            OutputCell {
                shown: saving.map_or_else(|| units::UNKNOWN.to_owned(), saving_text),
                value: saving.map(|saving| saving.ratio).into(),
            },
            OutputCell::figure(saving.and_then(|saving| saving.ratio_error), percent),
            OutputCell::figure(saving.and_then(|saving| saving.compared_ratio), percent),
            OutputCell::figure(saving.map(|saving| saving.joules), units::format_joules),
            OutputCell::figure(row.energy_joules, units::format_joules),
            OutputCell::figure(row.samples_per_second, units::format_count),
            OutputCell::count(row.gpus.map(u64::from)),
            OutputCell::optional_text(row.mode.clone()),
            OutputCell::text(row.state),
            OutputCell::optional_text(row.origin.map(|origin| origin_word(origin).to_owned())),
            OutputCell::count(Some(row.changes)),
            OutputCell::count(Some(row.reverts)),
            OutputCell::optional_text(row.layout.clone()),
        ]
    };
    Ok(GetListing { table: OutputTable { columns, rows: rows.iter().map(row).collect() }, extent, known })
}

fn decisions(args: &GetArgs, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<GetListing> {
    let (mut decisions, mut fates): (Vec<Decision>, ChangeFates) = (Vec::new(), ChangeFates::default());
    let topics = [Topic::Decisions, Topic::Actuations];
    let (mut unreadable, mut known) = (0, BTreeSet::new());
    let extent = read(&args.source, settings, &topics, shutdown, &mut |topic, value| {
        if topic == Topic::Decisions {
            match eadt_schemas::decode::<Decision>(value) {
                Ok(decision) => {
                    if !known.contains(&decision.workload) {
                        known.insert(decision.workload.clone());
                    }
                    if wanted(args, &decision.workload) && (args.all || is_change(&decision)) {
                        decisions.push(decision);
                    }
                }
                Err(_) => unreadable += 1,
            }
        } else {
            match eadt_schemas::decode::<Actuation>(value) {
                Ok(actuation) => fates.add(&actuation),
                Err(_) => unreadable += 1,
            }
        }
    })?;
    warn_unreadable(&args.source, unreadable);
    decisions.sort_by(|a, b| (a.time, &a.workload).cmp(&(b.time, &b.workload)));
    let columns = vec![
        OutputColumn::text("TIME", "time"),
        OutputColumn::text("WORKLOAD", "workload"),
        OutputColumn::text("ACTION", "action"),
        // Verdict on the change before: otherwise a row would seem to judge its own change.
        OutputColumn::text("VERDICT ON LAST", "validation"),
        OutputColumn::text("OUTCOME", "outcome"),
        OutputColumn::text("ORIGIN", "origin"),
        OutputColumn::text("CONTROLLER", "controller").wide(),
        OutputColumn::text("FROM", "from").wide(),
        OutputColumn::text("TO", "to").wide(),
        OutputColumn::text("ID", "id").wide(),
        OutputColumn::text("CONCERNS", "concerns").wide(),
        OutputColumn::text("REASON", "reason"),
    ];
    let row = |decision: &Decision| {
        let outcome = fates.get(&decision.id).map(|fate| fate.outcome().to_owned());
        let layout = |layout| OutputCell { shown: layout_text(layout), value: serde_json::to_value(layout).unwrap_or_default() };
        vec![
            OutputCell { shown: format!("{}Z", &decision.time.to_string()[..19]), value: decision.time.to_string().into() },
            OutputCell::text(decision.workload.clone()),
            OutputCell { shown: decision_text(decision).into_owned(), value: wire_name(&decision.action).into() },
            OutputCell::text(wire_name(&decision.validation)),
            OutputCell::optional_text(outcome),
            OutputCell::text(origin_word(decision.origin)),
            OutputCell::text(decision.controller.clone()),
            layout(&decision.from),
            layout(&decision.to),
            OutputCell::text(decision.id.clone()),
            OutputCell::optional_text(decision.concerns.clone()),
            OutputCell::text(decision.reason.clone()),
        ]
    };
    Ok(GetListing { table: OutputTable { columns, rows: decisions.iter().map(row).collect() }, extent, known })
}

const GPU_COLUMNS: [OutputColumn; 14] = [
    OutputColumn::text("GPU", "device"),
    OutputColumn::text("NODE", "node"),
    OutputColumn::figure("INDEX", "gpu_index"),
    OutputColumn::text("MODEL", "gpu_model"),
    OutputColumn::figure("POWER", "power_watts"),
    OutputColumn::figure("CAP", "power_limit_watts"),
    OutputColumn::figure("BUSY", "utilization_ratio"),
    OutputColumn::figure("SM ACTIVE", "sm_active_ratio").wide(),
    OutputColumn::figure("CLOCK MHZ", "sm_clock_mhz").wide(),
    OutputColumn::figure("°C", "temperature_celsius").wide(),
    OutputColumn::text("COLLECTOR", "collector").wide(),
    OutputColumn::text("SEEN", "time").wide(),
    OutputColumn::text("ORIGIN", "origin"),
    OutputColumn::text("WORKLOADS", "workloads"),
];

fn gpu_row(gpu: &GpuSnapshot<'_>) -> Vec<OutputCell> {
    let sample = gpu.newest;
    let percent = |ratio: f64| format!("{:.0} %", 100.0 * ratio);
    let tenant = |(name, share): &(&str, Option<f64>)| match share {
        Some(share) if gpu.tenants.len() > 1 => format!("{name} {:.0} %", 100.0 * share),
        _ => (*name).to_owned(),
    };
    let silent = if gpu.is_silent { " (silent)" } else { "" };
    let workloads: Vec<serde_json::Value> =
        gpu.tenants.iter().map(|(name, share)| serde_json::json!({"workload": name, "share": share})).collect();
    vec![
        OutputCell::text(sample.device.clone()),
        OutputCell::optional_text(sample.node.clone()),
        OutputCell::count(sample.gpu_index.map(u64::from)),
        OutputCell::optional_text(sample.gpu_model.clone()),
        OutputCell::figure(sample.usable_power_watts(), units::format_watts),
        OutputCell::figure(sample.power_limit_watts, units::format_watts),
        OutputCell::figure(sample.utilization_ratio, percent),
        OutputCell::figure(sample.sm_active_ratio, percent),
        OutputCell::figure(sample.sm_clock_mhz, |mhz| format!("{mhz:.0}")),
        OutputCell::figure(sample.temperature_celsius, |degrees| format!("{degrees:.0}")),
        OutputCell::text(sample.collector.clone()),
        OutputCell::text(sample.time.to_string()),
        OutputCell::text(origin_word(sample.origin)),
        OutputCell {
            shown: format!("{}{silent}", gpu.tenants.iter().map(tenant).collect::<Vec<_>>().join(", ")),
            value: workloads.into(),
        },
    ]
}

fn gpus(args: &GetArgs, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<GetListing> {
    if args.source.page.url.is_some() {
        return Err(usage_error::impossible(
            "--url does not go with gpus: a page passes on no samples of GPUs; its page GPUs shows them",
        ));
    }
    if args.source.since.is_some() {
        return Err(usage_error::impossible(
            "--since does not go with gpus: the newest sample of each is shown, with its time in -o wide; leave --since out",
        ));
    }
    let mut gpus = GpuSamples::default();
    let path = args.source.from.as_deref();
    let mut read = |range| {
        source::read(path, settings, &[Topic::GpuTelemetry], range, shutdown, &mut |topic, value| gpus.take(topic, value))
            .map(|extent| (extent, gpus.names()))
    };
    let (mut extent, mut known) = read(ReadRange::Newest)?;
    if args.names.iter().any(|name| !has_name(&known, name)) {
        // One that went long ago has no sample among the newest.
        (extent, known) = read(ReadRange::Whole)?;
    }
    let is_selected = |gpu: &GpuSnapshot<'_>| {
        let named = |name: &String| *name == gpu.newest.device || gpu.newest.node.as_ref() == Some(name);
        (args.names.is_empty() || args.names.iter().any(named))
            && args.namespace.as_deref().is_none_or(|namespace| {
                gpu.tenants.iter().any(|(workload, _)| workload.split_once('/').is_some_and(|(of, _)| of == namespace))
            })
    };
    Ok(GetListing {
        table: OutputTable {
            columns: GPU_COLUMNS.to_vec(),
            rows: gpus.by_index().iter().filter(|gpu| is_selected(gpu)).map(gpu_row).collect(),
        },
        extent,
        known,
    })
}

/// Decisions that `describe` shows, unless all kept ones are requested.
const DECISIONS: usize = 12;

pub fn describe(args: &DescribeArgs, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let source = GetSource { from: args.from.clone(), page: args.page.clone(), since: None };
    let (tally, _) = tally(&source, settings, shutdown)?;
    let matching: Vec<&String> = tally
        .workloads
        .keys()
        .filter(|name| **name == args.name || name.split_once('/').is_some_and(|(_, short)| short == args.name))
        .collect();
    let name = match matching.as_slice() {
        [one] => (*one).clone(),
        [] => anyhow::bail!(
            "no workload is named {:?} here; {}; `eadt get workloads` lists them",
            args.name,
            super::nearest_names(&args.name, tally.workloads.keys().map(String::as_str))
        ),
        several => {
            let names: Vec<&str> = several.iter().map(|name| name.as_str()).collect();
            anyhow::bail!("{:?} is in several namespaces: name one of {}", args.name, names.join(", "))
        }
    };
    let row = &tally.workloads[&name];
    let details = WorkloadDetails::of(&tally, &name).unwrap_or_else(|| unreachable!("it is one of the tally's"));
    let state = tally.state(row);
    let output = if args.json { OutputFormat::Json } else { args.output };
    let text = match output {
        OutputFormat::Table => description(&details, &tally, row, DECISIONS),
        OutputFormat::Wide => description(&details, &tally, row, details.decisions.len()),
        OutputFormat::Json => {
            let document = serde_json::json!({
                "workload": name,
                "state": state,
                "report": row.report,
                "declared": row.declared,
                "decisions": row.recent,
                "earlier_decisions": details.earlier,
                "actuations": row.actuations,
            });
            format!("{}\n", serde_json::to_string_pretty(&document)?)
        }
        OutputFormat::Csv => figures_table(row, state)?.render(OutputFormat::Csv, None)?,
    };
    print(output, &text)
}

/// Prints what was rendered in this form.
fn print(form: OutputFormat, text: &str) -> anyhow::Result<()> {
    if form == OutputFormat::Csv { crate::output::print_csv(text) } else { crate::output::print(text) }
}

/// Returns the figures of a workload, one a row, under the names of the report. Lists have commands of their own.
fn figures_table(row: &WorkloadTally, state: &str) -> anyhow::Result<OutputTable> {
    let mut figures: Vec<(String, serde_json::Value)> = vec![("state".to_owned(), state.into())];
    if let Some(declared) = &row.declared {
        figures.push(("mode".to_owned(), wire_name(&declared.mode).into()));
        figures.push(("controller".to_owned(), declared.controller.clone().into()));
        figures.push(("layout".to_owned(), layout_words(&declared.layout).into()));
    }
    if let serde_json::Value::Object(report) = serde_json::to_value(&row.report)? {
        figures.extend(report.into_iter().filter(|(_, value)| !value.is_array() && !value.is_object()));
    }
    let cell = |value: serde_json::Value| OutputCell { shown: csv_cell(&value), value };
    Ok(OutputTable {
        columns: vec![OutputColumn::text("FIGURE", "figure"), OutputColumn::text("VALUE", "value")],
        rows: figures.into_iter().map(|(name, value)| vec![OutputCell::text(name), cell(value)]).collect(),
    })
}

/// Returns the same as `-o json`, for people, with the last `decisions` decisions.
fn description(details: &WorkloadDetails, tally: &LiveTally, row: &WorkloadTally, decisions: usize) -> String {
    let NewestFigures { power_watts, samples_per_second, joules_per_sample, .. } = tally.newest_of(row);
    let mut lines: Vec<(String, String)> = vec![("Workload".into(), details.name.clone())];
    let mut add = |name: &str, value: String| lines.push((name.to_owned(), value));
    add("Origin", row.origin().map_or(units::UNKNOWN, origin_word).to_owned());
    let report = &details.report;
    add("Verdict", eadt_report::SavingSummary::of([report]).sentence());
    add("State", tally.state(row).to_owned());
    add("Layout", details.layout.clone().unwrap_or_else(|| units::UNKNOWN.to_owned()));
    if let Some(declared) = &row.declared {
        add("Kind", declared.kind.clone());
        add("Mode", format!("{}{}", wire_name(&declared.mode), if declared.paused { ", paused" } else { "" }));
        add("Controller", declared.controller.clone().unwrap_or_else(|| "the processor's default".to_owned()));
        let gpus = declared.gpus.map_or_else(|| units::UNKNOWN.to_owned(), |gpus| gpus.to_string());
        add("GPUs", format!("{gpus} {}", declared.gpu_model.as_deref().unwrap_or_default()));
    }
    let figure = |value: Option<f64>, text: fn(f64) -> String| value.map_or_else(|| units::UNKNOWN.to_owned(), text);
    add("Power", format!("{} in the newest window", figure(power_watts, units::format_watts)));
    let now = figure(joules_per_sample, units::joules_per_sample);
    add(
        "J/sample",
        format!("{now} in the newest window, {} of the run", figure(report.joules_per_sample, units::joules_per_sample)),
    );
    add(
        "Samples",
        format!("{} ({} a second)", figure(report.samples, units::format_count), figure(samples_per_second, units::format_count)),
    );
    add("Duration", figure(report.duration_seconds, units::format_duration));
    add("Coverage", figure(report.coverage_ratio, |ratio| format!("{:.1} % of the time has known power", 100.0 * ratio)));
    add(
        "Decisions",
        format!("{}, {}, {}", report.decisions, counted(report.changes, "change"), counted(report.reverts, "revert")),
    );
    if report.decided_changes > report.changes {
        let (decided, recommended) = (report.decided_changes, report.recommendations);
        add(
            "Not made",
            format!("{} of {decided} changes that were decided, {recommended} of them recommended", decided - report.changes),
        );
    }
    let wide = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) + 1;
    let mut text: String =
        lines.iter().map(|(name, value)| format!("{:wide$}  {value}\n", format!("{name}:"))).collect::<Vec<_>>().concat();
    for note in &report.notes {
        writeln!(text, "{:wide$}  {note}", "Note:").expect("writing to a String");
    }
    text += "\nLast decisions:\n";
    if let Some(earlier) = details.earlier_line(decisions) {
        writeln!(text, "  {earlier}").expect("writing to a String");
    }
    text += &decision_lines(details.decisions.iter().rev().take(decisions).rev());
    text
}

/// Returns the decisions, one a line, with a column for their action.
fn decision_lines<'a>(decisions: impl Iterator<Item = &'a DecidedChange>) -> String {
    let decisions: Vec<(&Decision, Cow<'static, str>)> =
        decisions.map(|decided| (&decided.decision, decided_text(decided))).collect();
    let wide = decisions.iter().map(|(_, text)| units::display_width(text)).max().unwrap_or(0);
    let line = |(decision, text): &(&Decision, Cow<'static, str>)| {
        let change = if decision.from == decision.to {
            String::new()
        } else {
            format!("{} → {}: ", layout_text(&decision.from), layout_text(&decision.to))
        };
        let time = decision.time.to_string();
        let reason = eadt_service::redact::escape_line(&decision.reason);
        format!("  {}Z  {}  {change}{reason}\n", &time[..19], units::padded(text, wide))
    };
    let lines: Vec<String> = decisions.iter().map(line).collect();
    if lines.is_empty() { "  none yet\n".to_owned() } else { lines.concat() }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::EventTime;
    use eadt_schemas::v1::EfficiencyWindow;

    use super::*;

    #[test]
    fn a_description_has_the_newest_figures_of_the_list() {
        let mut tally = LiveTally::default();
        let mut add = |workload: &str, minute: i64, run_seconds: f64| {
            let at = |minute: i64| EventTime::from_micros(minute * 60_000_000);
            tally.window(&EfficiencyWindow {
                id: format!("{workload}@{minute}"),
                workload: workload.to_owned(),
                window_start: at(minute),
                window_end: at(minute + 1),
                run_declared: true,
                run_seconds,
                mean_power_watts: Some(300.0),
                samples_per_second: Some(2.0),
                ..EfficiencyWindow::default()
            });
        };
        (0..2).for_each(|minute| add("t/silent", minute, 60.0));
        (38..40).for_each(|minute| add("t/ended", minute, if minute == 38 { 60.0 } else { 20.0 }));
        (38..40).for_each(|minute| add("t/runs", minute, 60.0));
        tally.refresh_all();
        for row in crate::live::frame::rows(&tally) {
            let details = WorkloadDetails::of(&tally, &row.name).unwrap();
            let text = description(&details, &tally, &tally.workloads[&row.name], DECISIONS);
            let power = row.power_watts.map_or_else(|| units::UNKNOWN.to_owned(), units::format_watts);
            assert_eq!(row.power_watts.is_some(), row.name == "t/runs", "{row:?}");
            for line in [format!("{power} in the newest window"), row.state.to_owned()] {
                assert!(text.lines().any(|shown| shown.trim_end().ends_with(&line)), "{line}: {text}");
            }
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash_for_people_and_nothing_for_programs() {
        let columns = vec![OutputColumn::text("OUTCOME", "outcome"), OutputColumn::text("ORIGIN", "origin")];
        let row = vec![OutputCell::optional_text(None), OutputCell::optional_text(Some("measured".to_owned()))];
        let sheet = OutputTable { columns, rows: vec![row] };
        let render = |form| sheet.render(form, None).unwrap();
        assert_eq!(render(OutputFormat::Csv), "outcome,origin\n,measured\n");
        assert_eq!(render(OutputFormat::Table), "OUTCOME   ORIGIN\n–         measured\n");
        let json: serde_json::Value = serde_json::from_str(&render(OutputFormat::Json)).unwrap();
        assert_eq!(json, serde_json::json!([{"outcome": null, "origin": "measured"}]));
        // A text is a text, whatever it is.
        assert_eq!(OutputCell::optional_text(Some(units::UNKNOWN.to_owned())).value, units::UNKNOWN);
    }
}
