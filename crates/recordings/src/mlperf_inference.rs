//! `MLPerf` Inference: `mlperf_log_detail.txt` and the power analyser's `spl.txt`, which share one clock.
//!
//! `power_begin` and `power_end` become the phases. Samples are queries × samples per query, or, where the detail log
//! lacks either, the reported rate times the time between; the counter is told at both ends only.

use eadt_schemas::EventTime;
use eadt_schemas::v1::Phase;
use serde_json::Value;

use crate::error::quote;
use crate::lines::Lines;
use crate::mlperf::{damaged, parse_line};
use crate::recording::{Device, FileId, Mark, Recording, SourceId, SourceKind};
use crate::units::{Cell, cell};
use crate::{Field, ImportError, TimeFormat};

#[derive(Default)]
struct Detail {
    begin: Option<(FileId, u64, EventTime)>,
    end: Option<(FileId, u64, EventTime)>,
    samples_per_query: Option<f64>,
    queries: Option<f64>,
    samples_per_second: Option<f64>,
}

pub(crate) fn read(files: Vec<(FileId, Lines<'_>)>, recording: &mut Recording) -> Result<(), ImportError> {
    recording.columns.insert(Field::PowerWatts, "Watts".to_owned());
    let clock = TimeFormat::Pattern("%m-%d-%Y %H:%M:%S%.f".to_owned());
    let mut detail = Detail::default();
    for (file, mut lines) in files {
        let mut power: Option<SourceId> = None;
        while let Some((line, text)) = lines.next_line()? {
            if text.starts_with("Time,") {
                recording.rows += 1;
                let (time, watts) = power_line(&text, &clock).map_err(|(column, problem)| {
                    let remedy = "restore the line, or take it out if it is the truncated end of the log";
                    recording.error(file, line, format!("{problem}: {}", quote(&text)), remedy).column(column)
                })?;
                let source = *power.get_or_insert_with(|| {
                    let name = recording.stem(file);
                    recording.add_device(file, Device { name, ..Device::default() })
                });
                recording.push(source, time, line, &[(Field::PowerWatts, watts)], None);
            } else if let Some((_, parsed)) = parse_line(&text) {
                let entry = parsed.map_err(|error| damaged(recording, file, line, &text, &error))?;
                recording.rows += 1;
                let at = |recording: &Recording| {
                    let text = entry.value.as_str().unwrap_or_default();
                    let time = clock.parse(text).map_err(|problem| {
                        recording
                            .error(file, line, format!("{} is {problem}", quote(text)), "restore the line")
                            .column(&entry.key)
                    });
                    time.map(|time| (file, line, time))
                };
                match entry.key.as_str() {
                    "power_begin" => once(recording, &mut detail.begin, at(recording)?)?,
                    "power_end" => once(recording, &mut detail.end, at(recording)?)?,
                    "effective_samples_per_query" => detail.samples_per_query = entry.value.as_f64(),
                    "result_query_count" => detail.queries = entry.value.as_f64(),
                    "result_samples_per_second" | "result_completed_samples_per_sec" => {
                        detail.samples_per_second = entry.value.as_f64();
                    }
                    key => {
                        if key.starts_with("error_") {
                            recording.notes.push(format!("the detail log reports an error: {key} {}", short(&entry.value)));
                        }
                        recording.skip(file, line, "log entry about neither progress nor power");
                    }
                }
            } else if !text.trim().is_empty() {
                recording.skip(file, line, "neither a power reading nor an MLLOG entry");
            }
        }
    }
    tell_phases(&detail, recording)
}

fn short(value: &Value) -> String {
    quote(&value.to_string())
}

type Moment = (FileId, u64, EventTime);

fn once(recording: &Recording, slot: &mut Option<Moment>, found: Moment) -> Result<(), ImportError> {
    if slot.is_some() {
        let remedy = "one call imports one run: give one mlperf_log_detail.txt and its spl.txt";
        return Err(recording.error(found.0, found.1, "a second run begins or ends here", remedy));
    }
    *slot = Some(found);
    Ok(())
}

/// `Time,…,Watts,…` with further pairs; the first `Watts` is the total.
fn power_line(text: &str, clock: &TimeFormat) -> Result<(EventTime, f64), (&'static str, String)> {
    let mut parts = text.split(',');
    let mut after = |name: &str| {
        parts.find(|part| *part == name)?;
        parts.next()
    };
    let time = after("Time").ok_or_else(|| ("Time", "no time in the power reading".to_owned()))?;
    let time = clock.parse(time).map_err(|problem| ("Time", format!("{} is {problem}", quote(time))))?;
    let watts = after("Watts").ok_or_else(|| ("Watts", "no Watts in the power reading".to_owned()))?;
    match cell(watts) {
        Cell::Number(watts) => Ok((time, watts)),
        _ => Err(("Watts", format!("{} is not a power in watts", quote(watts)))),
    }
}

fn tell_phases(detail: &Detail, recording: &mut Recording) -> Result<(), ImportError> {
    let (Some((file, begin_line, begin)), Some((_, end_line, end))) = (detail.begin, detail.end) else {
        recording.notes.push(
            "no power_begin and power_end among the files (mlperf_log_detail.txt): power without phases and samples".to_owned(),
        );
        return Ok(());
    };
    if end <= begin {
        return Err(recording.error(
            file,
            end_line,
            format!("power_end {end} is not after power_begin {begin}"),
            "check the log",
        ));
    }
    let counted = detail.samples_per_query.zip(detail.queries).map(|(per_query, queries)| per_query * queries);
    let samples = counted.or_else(|| detail.samples_per_second.map(|rate| rate * end.seconds_since(begin)));
    if samples.is_none() {
        recording.notes.push("the detail log does not say how many samples were processed".to_owned());
    }
    let source = recording.add_source(file, None, SourceKind::Job { rank: 0, irregular: true });
    let total = |value: f64| samples.map(|_| (Field::SamplesTotal, value));
    let mark = |phase| Some(Mark { phase, span: None });
    recording.push(source, begin, begin_line, total(0.0).as_slice(), mark(Phase::Started));
    recording.push(source, end, end_line, total(samples.unwrap_or(0.0)).as_slice(), mark(Phase::Finished));
    Ok(())
}
