//! `eadt report`: figures per workload from a data folder, an archive or a replay.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use eadt_report::{
    DIFFERENT_WORK, EnergyReport, FigurePair, GridDataError, RenderFormat, ReportBreakdown, ReportComparison, ReportSettings,
    Reporter, RunComparison, WorkloadPair, read_carbon, read_prices,
};

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{StartOffset, read_to_end};
use eadt_lake::{Archive, visit_events};
use eadt_schemas::counts::{counted, list_first};
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow};
use eadt_schemas::{DecodeError, Topic, decode};
use eadt_service::files;
use serde_json::json;

use super::{partitions, topic_of};
use crate::atomic_file::AtomicFile;
use crate::cli::{Breakdown, ReportArgs, ReportFormat};
use crate::live::origin_word;
use crate::live::source::name_page;
use crate::output_table::{OutputCell, OutputColumn, OutputFormat, OutputTable, csv_cell};
use crate::settings::{ProgramSettings, TopicSettings};
use crate::{progress, usage_error};

pub fn run(args: &ReportArgs, program: &ProgramSettings) -> anyhow::Result<()> {
    let names = &program.topics;
    // An address of an object store is no missing folder.
    if !args.path.exists() && !args.path.display().to_string().contains("://") {
        anyhow::bail!("{} does not exist: name a data folder, an archive or the output of `eadt replay`", args.path.display());
    }
    if args.path.is_file() {
        let path = args.path.display();
        anyhow::bail!("{path} is a file: for an event log run `eadt replay {path} --out DIR` first, and report on DIR");
    }
    let page = args.html.as_deref().map(|path| AtomicFile::create(path, &[], args.force)).transpose()?;
    let (zone, form) = (args.time_zone.as_ref(), args.time_format.as_deref());
    let column = args.price_column.as_deref();
    let prices = args
        .tariff
        .as_deref()
        .map(|path| read_supply_file(path, |text, name| read_prices(text, column, zone, form, name)))
        .transpose()?;
    let column = args.carbon_column.as_deref();
    let carbon = args
        .carbon
        .as_deref()
        .map(|path| read_supply_file(path, |text, name| read_carbon(text, column, zone, form, name)))
        .transpose()?;
    let settings = ReportSettings {
        prices,
        carbon,
        price_per_kwh: args.price_per_kwh,
        currency: args.currency.clone(),
        carbon_grams_per_kwh: args.carbon_grams_per_kwh,
        baselines: args.baseline.iter().cloned().collect(),
        by: args.by.map(|by| match by {
            Breakdown::Window => ReportBreakdown::Window,
            Breakdown::Span => ReportBreakdown::Span,
        }),
    };
    let report = read(&args.path, names, &settings)?;
    if report.workloads.is_empty() {
        let empty = format!("{} holds no windows yet", args.path.display());
        let log = args.path.join("log");
        let in_use = log.is_dir().then(|| EmbeddedLog::open(&log, EmbeddedOptions::default()).err()).flatten();
        // A running `up` archives its first windows after minutes.
        return Err(match in_use {
            Some(error) => name_page(error.into(), program).context(format!("{empty} that are archived")),
            None => anyhow::Error::msg(empty),
        });
    }
    if let Some(unknown) = settings.baselines.keys().find(|name| !report.workloads.iter().any(|w| w.workload == **name)) {
        let known: Vec<_> = report.workloads.iter().map(|w| w.workload.as_str()).collect();
        let why = format!("it has no windows here; there are: {}", known.join(", "));
        return Err(usage_error::invalid("--baseline <NS/NAME=JOULES>", unknown, why));
    }
    if let Some(other) = &args.compare {
        let other = read(other, names, &settings).with_context(|| format!("--compare {}", other.display()))?;
        return print_comparison(args, page, &RunComparison::of(&report, &other));
    }
    if let Some(page) = page {
        page.write(&report.render(RenderFormat::Html))?;
    }
    if args.csv {
        return crate::output::print_csv(&csv(&report, settings.by)?);
    }
    let form = match args.format {
        _ if args.json => RenderFormat::Json,
        ReportFormat::Text => return crate::output::print(&report.render_text(crate::output::width())),
        ReportFormat::Markdown => RenderFormat::Markdown,
        ReportFormat::Html => RenderFormat::Html,
    };
    crate::output::print(&report.render(form))?;
    Ok(())
}

/// Prints two runs side by side. In CSV, notes on workloads are apart.
fn print_comparison(args: &ReportArgs, page: Option<AtomicFile>, comparison: &RunComparison<'_>) -> anyhow::Result<()> {
    if let Some(page) = page {
        page.write(&comparison.render_html())?;
    }
    let text = match args.format {
        _ if args.json => format!("{}\n", comparison_json(comparison)),
        _ if args.csv => {
            // Unreadable records were reported during the read, and are in the table.
            for note in comparison.notes().iter().skip(comparison.source_notes.len()) {
                crate::output::note!("note: {note}");
            }
            comparison_table(comparison).render(OutputFormat::Csv, None)?
        }
        ReportFormat::Text => comparison.render_text(crate::output::width()),
        ReportFormat::Markdown => comparison.render_markdown(),
        ReportFormat::Html => comparison.render_html(),
    };
    if args.csv && !args.json { crate::output::print_csv(&text) } else { crate::output::print(&text) }
}

/// Reports on a data folder, an archive or a replay's output. What could not be read is noted with each workload, since its workload
/// is unknown.
pub fn read(path: &Path, names: &TopicSettings, settings: &ReportSettings) -> anyhow::Result<EnergyReport> {
    let mut reporter = Reporter::default();
    let log = path.join("log");
    let found = super::find_archive(path, &TOPICS).map_err(anyhow::Error::from);
    let archived = found.and_then(|archive| read_archive(archive, &mut reporter));
    if archived.is_err() {
        // An archive that cannot be read to its end is not reported on at all.
        reporter = Reporter::default();
    }
    let notes = if log.is_dir() { add_log(&log, names, &mut reporter, archived)? } else { archived?.into_notes() };
    Ok(reporter.build_report(settings).with_source_notes(notes))
}

/// Adds what the log beside an archive has, and returns the notes on both. Records that the archive does not hold yet are in the log;
/// those in both count once.
fn add_log(
    log: &Path,
    names: &TopicSettings,
    reporter: &mut Reporter,
    archived: anyhow::Result<ArchiveNotes>,
) -> anyhow::Result<Vec<String>> {
    let mut notes = Vec::new();
    match EmbeddedLog::open(log, EmbeddedOptions::default()) {
        Ok(bus) => logged(&bus, names, reporter)?,
        Err(error) => notes.push(warn(format!("only what is archived is reported: {error}"))),
    }
    match archived {
        Ok(mut archived) => {
            for note in &mut archived.missing {
                note.push_str(", unless the log beside it still has it");
            }
            notes.extend(archived.into_notes());
        }
        Err(error) if super::is_absent(&error) => tracing::debug!(%error, "no archive yet"),
        Err(error) => {
            notes.push(warn(format!("the archive cannot be read, and only what its log still has is reported: {error:#}")));
        }
    }
    Ok(notes)
}

/// Notes on the parts of an archive that were read.
#[derive(Debug, Default)]
struct ArchiveNotes {
    /// Topics that are not in the archive, and may be in a log.
    missing: Vec<String>,
    others: Vec<String>,
}

impl ArchiveNotes {
    fn into_notes(self) -> Vec<String> {
        [self.missing, self.others].concat()
    }
}

/// Prints a warning, and returns it for the notes.
fn warn(text: String) -> String {
    crate::output::note!("warning: {text}");
    text
}

/// Returns the rows of a report with raw figures, and the notes on their workload in one cell. What else a row has several of is left
/// out.
fn csv(report: &EnergyReport, by: Option<ReportBreakdown>) -> anyhow::Result<String> {
    let mut rows: Vec<serde_json::Map<String, serde_json::Value>> = Vec::new();
    for workload in &report.workloads {
        let mut add = |row: serde_json::Value| {
            if let serde_json::Value::Object(mut row) = row {
                row.insert("workload".to_owned(), workload.workload.clone().into());
                row.retain(|_, value| !value.is_array());
                row.insert("notes".to_owned(), workload.notes.join("; ").into());
                rows.push(row);
            }
        };
        match by {
            None => add(serde_json::to_value(workload)?),
            Some(ReportBreakdown::Window) => {
                for row in workload.by_window.iter().flatten() {
                    add(serde_json::to_value(row)?);
                }
            }
            Some(ReportBreakdown::Span) => {
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
        writer.write_record(columns.iter().map(|name| row.get(name).map_or_else(String::new, csv_cell)))?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// Returns two runs side by side with the keys of the page's `compare-run`: every workload that both have, and the names of all
/// others; and the sums over the former.
fn comparison_json(comparison: &RunComparison<'_>) -> serde_json::Value {
    let row = |pair: &WorkloadPair<'_>| {
        json!({
            "workload": pair.this.workload,
            "this_origin": pair.this.origin,
            "other_origin": pair.other.origin,
            "figures": pair.figures,
            "refusal": null,
        })
    };
    let only = |names: &[&str]| json!({"count": names.len(), "names": names});
    let different_work = comparison.has_different_samples().then(|| DIFFERENT_WORK.to_owned());
    let energy = comparison.energy_note();
    let notes = comparison.source_notes.iter().chain(&different_work).chain(&energy);
    json!({
        "matching": comparison.pairs.len(),
        "totals": comparison.totals(),
        "rows": comparison.pairs.iter().map(row).collect::<Vec<_>>(),
        "only_this": only(&comparison.only_this),
        "only_other": only(&comparison.only_other),
        "notes": notes.chain(comparison.notes().last()).collect::<Vec<_>>(),
    })
}

/// Returns two runs side by side with raw figures, by workload.
fn comparison_table(comparison: &RunComparison<'_>) -> OutputTable {
    let figure = |name: &'static str| OutputColumn::figure(name, name);
    let columns = vec![
        OutputColumn::text("workload", "workload"),
        figure("other_joules_per_sample"),
        figure("joules_per_sample"),
        figure("joules_per_sample_change_ratio"),
        figure("other_samples_per_second"),
        figure("samples_per_second"),
        figure("samples_per_second_change_ratio"),
        figure("other_energy_joules"),
        figure("energy_joules"),
        OutputColumn::text("origins", "origins"),
        figure("energy_joules_change_ratio"),
        figure("other_saving_ratio"),
        figure("saving_ratio"),
        figure("other_cost"),
        figure("cost"),
        figure("other_co2_grams"),
        figure("co2_grams"),
        OutputColumn::text("notes", "notes"),
    ];
    let notes = |figures: &ReportComparison| {
        let notes: Vec<&str> = comparison.source_notes.iter().chain(&figures.refusals).map(String::as_str).collect();
        notes.join("; ")
    };
    let raw = |value: Option<f64>| OutputCell::figure(value, |value| value.to_string());
    let row = |WorkloadPair { this, other, figures }: &WorkloadPair<'_>| {
        let ReportComparison { joules_per_sample, samples_per_second, energy_joules, cost, co2_grams, .. } = figures;
        let with_change = |pair: &FigurePair| [pair.other, pair.this, pair.change_ratio].map(raw);
        let mut cells = vec![OutputCell::text(this.workload.clone())];
        cells.extend(with_change(joules_per_sample));
        cells.extend(with_change(samples_per_second));
        cells.extend([raw(energy_joules.other), raw(energy_joules.this)]);
        cells.push(OutputCell::text(format!("{} / {}", origin_word(other.origin), origin_word(this.origin))));
        cells.extend([energy_joules.change_ratio, other.saving_ratio, this.saving_ratio].map(raw));
        cells.extend([cost.other, cost.this, co2_grams.other, co2_grams.this].map(raw));
        cells.push(OutputCell::text(notes(figures)));
        cells
    };
    OutputTable { columns, rows: comparison.pairs.iter().map(row).collect() }
}

/// Reads a file of prices or carbon intensities; its name appears in the notes.
fn read_supply_file<T>(path: &Path, read: impl FnOnce(&str, &str) -> Result<T, GridDataError>) -> anyhow::Result<T> {
    let text = files::read_text(path, files::TEXT_BYTES).with_context(|| format!("cannot read {}", path.display()))?;
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    read(&text, &name).with_context(|| path.display().to_string())
}

/// Topics of a report.
const TOPICS: [Topic; 3] = [Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations];

/// Reads everything in an archive, and returns the notes on it.
fn read_archive(archive: Archive, reporter: &mut Reporter) -> anyhow::Result<ArchiveNotes> {
    let listing = archive.files()?;
    let (archive, meter) = progress::over_archive(archive, &TOPICS)?;
    let windows = visit_events::<EfficiencyWindow>(&archive, Topic::EfficiencyWindows, |event| reporter.add_window(&event))?;
    let decisions = visit_events::<Decision>(&archive, Topic::Decisions, |event| reporter.add_decision(&event))?;
    let actuations = visit_events::<Actuation>(&archive, Topic::Actuations, |event| reporter.add_actuation(&event))?;
    meter.finish();
    let mut notes = ArchiveNotes::default();
    let missing: Vec<_> = windows.missing.iter().chain(&decisions.missing).chain(&actuations.missing).collect();
    super::warn_missing(missing.iter().copied());
    notes.missing.extend(missing.into_iter().map(|(topic, partition, from, to)| {
        format!(
            "the archive lacks offsets {from} to {to} of {topic} partition {partition}: a file was removed, and figures may lack what it held"
        )
    }));
    let unrecorded = super::describe_unrecorded(&listing, &TOPICS);
    notes.missing.extend(unrecorded.map(|about| format!("the archive {about}, and figures may lack what one held")));
    let identity = super::describe_identity(&archive, &listing);
    notes.others.extend(identity.into_iter().map(|about| format!("the archive {about}")));
    for (topic, passed_over) in TOPICS.into_iter().zip([&windows.passed_over, &decisions.passed_over, &actuations.passed_over]) {
        super::warn_passed_over(topic, passed_over);
        notes.others.extend(note_passed_over(topic, passed_over));
    }
    for (topic, refused) in TOPICS.into_iter().zip([&windows.refused, &decisions.refused, &actuations.refused]) {
        for (partition, offset, refusal) in refused {
            crate::output::note!("warning: an event was left out, partition {partition} offset {offset}: {refusal}");
        }
        notes.others.extend(note_refused(topic, refused));
    }
    Ok(notes)
}

/// Types that a note names.
const TYPES_SHOWN: usize = 5;

/// Returns the note on records of types that a topic does not take.
fn note_passed_over(topic: Topic, passed_over: &BTreeMap<String, u64>) -> Option<String> {
    let kinds: Vec<String> = passed_over.keys().map(|kind| format!("{kind:?}")).collect();
    let records = counted(passed_over.values().sum::<u64>(), "record");
    let named = list_first(&kinds, TYPES_SHOWN);
    (!kinds.is_empty()).then(|| format!("{records} of {topic} left out, of types that this topic does not take: {named}"))
}

/// Returns the note on records that are no valid events.
fn note_refused(topic: Topic, refused: &[(i32, i64, DecodeError)]) -> Option<String> {
    let (partition, offset, refusal) = refused.first()?;
    let events = counted(refused.len() as u64, "event");
    Some(format!("{events} of {topic} left out, the first one at partition {partition} offset {offset}: {refusal}"))
}

/// Reads everything that the embedded log still has.
fn logged(bus: &EmbeddedLog, names: &TopicSettings, reporter: &mut Reporter) -> anyhow::Result<()> {
    let from = partitions(bus, names, &TOPICS, StartOffset::Earliest)?;
    let meter = super::meter_of_log(bus, &from)?;
    read_to_end(
        bus,
        &from,
        || false,
        |record| {
            meter.add(1);
            let Some(value) = &record.value else { return Ok(()) };
            match topic_of(&record, &names.prefix) {
                Some(Topic::EfficiencyWindows) => reporter.add_window(&decode(value)?),
                Some(Topic::Decisions) => reporter.add_decision(&decode(value)?),
                Some(Topic::Actuations) => reporter.add_actuation(&decode(value)?),
                _ => {}
            }
            anyhow::Ok(())
        },
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use eadt_bus::conformance::{join, outgoing};
    use eadt_bus::{Bus, CommitStep};
    use eadt_lake::{ArchiveRow, ArchiveWriter, RollLimits};
    use eadt_report::WorkloadReport;
    use eadt_schemas::envelope::header;
    use eadt_schemas::v1::Meter;
    use eadt_schemas::{EventTime, EventType};

    use super::*;

    /// Returns an event of the first minute.
    fn window() -> String {
        let (window_start, window_end) = (EventTime::from_millis(60_000), EventTime::from_millis(120_000));
        let (id, workload) = ("lab/job/1".to_owned(), "lab/job".to_owned());
        let window = EfficiencyWindow { id, workload, window_start, window_end, ..EfficiencyWindow::default() };
        serde_json::to_string(&window).unwrap()
    }

    /// Writes windows of partition 0: types and values.
    fn archive(folder: &Path, records: &[(&str, &str)]) {
        let mut writer = ArchiveWriter::new(Archive::folder(folder).unwrap().with_new_id(1), RollLimits::default());
        for ((kind, value), offset) in records.iter().zip(0..) {
            let row = ArchiveRow {
                topic: Topic::EfficiencyWindows,
                partition: 0,
                offset,
                stamp: EventTime::from_millis(offset),
                key: None,
                value: Some(Bytes::copy_from_slice(value.as_bytes())),
                headers: vec![(Arc::from(header::TYPE), Bytes::copy_from_slice(kind.as_bytes()))],
            };
            writer.push(&row, row.stamp).unwrap();
        }
        writer.roll_all().unwrap();
    }

    /// Returns every form of the report on a folder, with its spaces made alike.
    fn forms(folder: &Path) -> Vec<String> {
        let program = crate::settings::load(None, &crate::settings::EnvVariables::default(), &[]).unwrap();
        let by_window = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
        let report = read(folder, &program.topics, &by_window).unwrap();
        let forms = [RenderFormat::Text, RenderFormat::Json, RenderFormat::Markdown, RenderFormat::Html];
        let mut texts: Vec<String> = forms.into_iter().map(|form| report.render(form)).collect();
        texts.extend([None, Some(ReportBreakdown::Window)].map(|by| csv(&report, by).unwrap()));
        texts.into_iter().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    /// Returns every form of the comparison of a run with itself, with its spaces made alike.
    fn compared_forms(folder: &Path) -> Vec<String> {
        let program = crate::settings::load(None, &crate::settings::EnvVariables::default(), &[]).unwrap();
        let run = read(folder, &program.topics, &ReportSettings::default()).unwrap();
        let comparison = RunComparison::of(&run, &run);
        let texts = [
            comparison.render_text(None),
            comparison.render_markdown(),
            comparison.render_html(),
            comparison_json(&comparison).to_string(),
            comparison_table(&comparison).render(OutputFormat::Csv, None).unwrap(),
        ];
        texts.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")).to_vec()
    }

    fn assert_noted(folder: &Path, note: &str) {
        for text in forms(folder) {
            assert!(text.contains(note), "{note}: {text}");
        }
        for text in compared_forms(folder) {
            for run in ["this run", "the other run"] {
                assert!(text.contains(&format!("{run}: {note}")), "{run}: {note}: {text}");
            }
        }
    }

    #[test]
    fn an_archive_that_cannot_be_read_is_noted_in_every_form() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let bus = EmbeddedLog::open(&folder.path().join("log"), options).unwrap();
        for spec in eadt_bus::topics::desired("eadt.", 1, 1) {
            bus.create_topic(&spec).unwrap();
        }
        let (mut member, _) = join(&bus, "tests", Some("one"), &["eadt.gpu.telemetry.v1".into()]);
        let outputs = vec![outgoing(&"eadt.efficiency.windows.v1".into(), "lab/job", &window())];
        member.commit(&CommitStep { outputs, positions: Vec::new() }).unwrap();
        drop((member, bus));
        let foreign = folder.path().join("archive/topic=decisions.v1/date=2026-01-01");
        std::fs::create_dir_all(&foreign).unwrap();
        std::fs::write(foreign.join("other.parquet"), "no Parquet of ours").unwrap();
        assert_noted(folder.path(), "the archive cannot be read, and only what its log still has is reported");
    }

    #[test]
    fn what_is_left_out_of_an_archive_and_what_nobody_knows_of_it_is_noted_in_every_form() {
        let folder = tempfile::tempdir().unwrap();
        let own = EventType::EfficiencyWindow.name();
        archive(folder.path(), &[(own, &window()), (own, "{}"), ("com.example.row", "{}")]);
        assert_noted(folder.path(), "1 event of efficiency.windows.v1 left out, the first one at partition 0 offset 1");
        assert_noted(folder.path(), "1 record of efficiency.windows.v1 left out, of types that this topic does not take");
        let unrecorded = "the archive has no record of its id";
        assert!(forms(folder.path()).iter().all(|text| !text.contains(unrecorded)));
        std::fs::remove_file(folder.path().join(format!("_archived/id+{:032x}", 1))).unwrap();
        assert_noted(folder.path(), unrecorded);
    }

    fn run_of(joules: f64, names: &[&str]) -> EnergyReport {
        let of = |name: &&str| {
            let mut report = WorkloadReport::default();
            report.workload = (*name).to_owned();
            (report.energy_joules, report.samples) = (Some(joules), Some(1000.0));
            (report.joules_per_sample, report.duration_seconds) = (Some(joules / 1000.0), Some(100.0));
            report
        };
        EnergyReport { workloads: names.iter().map(of).collect(), ..EnergyReport::default() }
    }

    #[test]
    fn no_name_of_a_csv_is_a_formula() {
        let text = csv(&run_of(3000.0, &["=cmd/x", "a/b"]), None).unwrap();
        assert!(text.contains("\n'=cmd/x,") && text.contains("\na/b,"), "{text}");
    }

    #[test]
    fn two_runs_are_compared_in_every_form() {
        let (this, other) = (run_of(3000.0, &["a/both", "a/new"]), run_of(4000.0, &["a/both", "a/old"]));
        let comparison = RunComparison::of(&this, &other);
        let csv = comparison_table(&comparison).render(OutputFormat::Csv, None).unwrap();
        let mut rows = csv::Reader::from_reader(csv.as_bytes());
        assert_eq!(&rows.headers().unwrap()[1], "other_joules_per_sample");
        let row = rows.records().next().unwrap().unwrap();
        assert_eq!((&row[0], &row[1], &row[2], &row[3]), ("a/both", "4.0", "3.0", "-0.25"));
        assert_eq!(rows.records().count(), 0, "{csv}");
        let notes = comparison.notes();
        assert!(notes.iter().any(|note| note == "a/old is only in the other run"), "{notes:?}");
        let document = comparison_json(&comparison);
        assert_eq!(
            document["rows"][0]["figures"]["joules_per_sample"],
            json!({"this": 3.0, "other": 4.0, "change_ratio": -0.25})
        );
        assert_eq!(document["totals"]["energy_joules"]["change_ratio"], -0.25, "{document}");
        assert_eq!(document["rows"].as_array().map(Vec::len), Some(1), "{document}");
        let unmatched = |name: &str| json!({"count": 1, "names": [name]});
        assert_eq!((&document["only_this"], &document["only_other"]), (&unmatched("a/new"), &unmatched("a/old")));
        assert!(document["matching"] == 1 && document["notes"][0].as_str().is_some_and(|note| note.ends_with("is not checked")));
    }

    #[test]
    fn a_change_between_different_work_is_refused_with_its_reason_in_every_form() {
        let (this, mut other) = (run_of(3000.0, &["a/both"]), run_of(4000.0, &["a/both"]));
        other.workloads[0].samples = Some(2000.0);
        let comparison = RunComparison::of(&this, &other);
        let document = comparison_json(&comparison);
        let figures = &document["rows"][0]["figures"];
        assert!(
            figures["energy_joules"]["change_ratio"].is_null() && document["totals"]["energy_joules"]["change_ratio"].is_null()
        );
        assert_eq!((&figures["refusals"], &document["notes"][0]), (&json!([DIFFERENT_WORK]), &json!(DIFFERENT_WORK)));
        let csv = comparison_table(&comparison).render(OutputFormat::Csv, None).unwrap();
        assert!(csv.contains(DIFFERENT_WORK), "{csv}");
        assert_eq!(comparison.notes()[0], format!("a/both: {DIFFERENT_WORK}"));
    }

    #[test]
    fn a_change_between_different_meters_is_refused_with_its_reason() {
        let (mut this, mut other) = (run_of(3000.0, &["a/both"]), run_of(4000.0, &["a/both"]));
        this.workloads[0].meter = Some(Meter::Gpu);
        for (meter, is_noted) in [(Meter::Gpu, false), (Meter::Wall, true)] {
            other.workloads[0].meter = Some(meter);
            let comparison = RunComparison::of(&this, &other);
            let (table, notes) = (comparison_table(&comparison), comparison.notes());
            assert_eq!(
                notes.iter().any(|note| note.contains("a/both: ") && note.contains("not be a saving")),
                is_noted,
                "{notes:?}"
            );
            assert_eq!(table.rows[0][3].value.is_null(), is_noted, "{table:?}");
        }
    }
}
