//! `MLPerf` Inference: `mlperf_log_detail.txt`, whose times are in UTC, and the power analyser's `spl.txt`, whose times are in
//! the zone of its host.
//!
//! `power_begin` and `power_end` become the phases. Samples are queries × samples per query. In Offline they are the log's own
//! rate times the time between, because `LoadGen` pads its query: `effective_samples_per_query` is what was asked for, not what
//! was done. Where one of the two is absent, the other counts. Tokens are the log's own rate times the time of these samples. The
//! counters are written at both ends only. If two figures of the log differ by more than 5 %, a note has both.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::{CounterScope, JobLifecycle};
use serde_json::Value;

use crate::clock::{ParsedTime, TimeParser};
use crate::error::quote;
use crate::lines::LineReader;
use crate::mlperf::{DAMAGED_ENTRY, NO_READING_WATTS, damaged_entry, number, parse_line};
use crate::overlap::{self, TimeRange};
use crate::recording::{FileId, ProgressMark, RecordedDevice, Recording, RecordingSource, SourceId, SourceKind};
use crate::row_times::RowTimes;
use crate::units::{NumberCell, parse_cell};
use crate::{ImportError, ImportOptions, ReadingField, TimeFormat};

/// Keys of samples per second, the best first: Offline's, then Server's.
const SAMPLE_RATES: [&str; 3] =
    ["result_samples_per_second", "result_completed_samples_per_second", "result_completed_samples_per_sec"];
/// Keys of queries per second, of `SingleStream`.
const QUERY_RATES: [&str; 2] = ["result_qps_with_loadgen_overhead", "result_qps_without_loadgen_overhead"];
const TOKEN_RATES: [&str; 5] = [
    "result_tokens_per_second",
    "result_completed_tokens_per_second",
    "result_completed_tokens_per_sec",
    "result_token_throughput_with_loadgen_overhead",
    "result_token_throughput",
];
const SAMPLES_PER_QUERY: &str = "effective_samples_per_query";
const QUERIES: &str = "result_query_count";
const PERFORMANCE_SET: [&str; 2] = ["effective_performance_sample_count", "qsl_reported_performance_count"];
/// Scenarios in which each query is of one sample.
const SCENARIOS_OF_SINGLE_SAMPLES: [&str; 2] = ["Server", "SingleStream"];
/// Latency of the one query in Offline: the duration of the run.
const LATENCY: &str = "result_max_latency_ns";
const OTHERS: [&str; 5] = [SAMPLES_PER_QUERY, QUERIES, PERFORMANCE_SET[0], PERFORMANCE_SET[1], LATENCY];

/// `LoadGen`'s word for a result that complies with the rules.
const VALID: &str = "VALID";

/// Lines of `mlperf_log_summary.txt`, each with the key of the detail log for the same figure.
const SUMMARY: [(&str, &str); 6] = [
    ("Samples per second", SAMPLE_RATES[0]),
    ("Completed samples per second", SAMPLE_RATES[1]),
    ("QPS w/ loadgen overhead", QUERY_RATES[0]),
    ("Tokens per second", TOKEN_RATES[0]),
    ("Completed tokens per second", TOKEN_RATES[1]),
    ("samples_per_query", SAMPLES_PER_QUERY),
];

/// Two figures of one thing differ if they are further apart than this part of the greater one.
pub(crate) const CONTRADICTION_RATIO: f64 = 0.05;

/// Returns whether two figures of one thing are too far apart to be the same.
pub(crate) fn differ_too_much(a: f64, b: f64) -> bool {
    (a - b).abs() > CONTRADICTION_RATIO * a.abs().max(b.abs())
}

type TimedLine = (FileId, u64, EventTime);

#[derive(Default)]
struct DetailLog {
    begin: Option<TimedLine>,
    end: Option<TimedLine>,
    scenario: Option<String>,
    /// `LoadGen`'s word for its result, if that is not [`VALID`].
    validity: Option<String>,
    /// Number of errors that `LoadGen` counted.
    errors: f64,
    /// Figures by their key in the detail log.
    figures: BTreeMap<&'static str, f64>,
    /// The same from the summary.
    summary: BTreeMap<&'static str, f64>,
}

impl DetailLog {
    /// Keeps a figure if it is one of those that count.
    fn put(&mut self, key: &str, value: &Value) -> bool {
        let known = SAMPLE_RATES.iter().chain(&QUERY_RATES).chain(&TOKEN_RATES).chain(&OTHERS).find(|known| **known == key);
        let (Some(key), Some(figure)) = (known, number(value).filter(|figure| *figure >= 0.0)) else { return known.is_some() };
        self.figures.insert(key, figure);
        true
    }

    /// Keeps a line of the summary, `NAME : VALUE`, if its figure is one of those that count.
    fn put_summary(&mut self, text: &str) -> bool {
        let Some((name, value)) = text.split_once(':') else { return false };
        let (name, value) = (name.trim(), value.trim());
        if name == "Scenario" && self.scenario.is_none() {
            self.scenario = Some(value.to_owned());
            return true;
        }
        if name == "Result is" {
            self.note_validity(value);
            return true;
        }
        let Some((_, key)) = SUMMARY.iter().find(|(known, _)| *known == name) else { return false };
        let Some(figure) = value.parse::<f64>().ok().filter(|figure| figure.is_finite() && *figure >= 0.0) else { return false };
        self.summary.insert(key, figure);
        true
    }

    fn note_validity(&mut self, text: &str) {
        if text != VALID {
            self.validity = Some(text.to_owned());
        }
    }

    fn first_figure(&self, keys: &[&'static str]) -> Option<(&'static str, f64)> {
        let of = |figures: &BTreeMap<&'static str, f64>| keys.iter().find_map(|key| Some((*key, *figures.get(key)?)));
        of(&self.figures).or_else(|| of(&self.summary))
    }

    fn figure(&self, key: &'static str) -> Option<f64> {
        self.first_figure(&[key]).map(|(_, figure)| figure)
    }

    fn is_offline(&self) -> bool {
        self.scenario.as_deref().is_none_or(|scenario| scenario.eq_ignore_ascii_case("offline"))
    }

    /// Samples per second by the log's own figure, and the key of it.
    fn samples_per_second(&self) -> Option<(&'static str, f64)> {
        let queries = || {
            let (key, rate) = self.first_figure(&QUERY_RATES)?;
            Some((key, rate * self.figure(SAMPLES_PER_QUERY).unwrap_or(1.0)))
        };
        self.first_figure(&SAMPLE_RATES).or_else(queries)
    }

    /// Returns true if the scenario is one in which each query is of one sample.
    fn has_single_samples(&self) -> bool {
        let scenario = self.scenario.as_deref().unwrap_or_default();
        SCENARIOS_OF_SINGLE_SAMPLES.iter().any(|known| scenario.eq_ignore_ascii_case(known))
    }

    /// Samples that were asked for. But for Offline, whose query `LoadGen` pads, these are the samples that were done.
    fn queried(&self) -> Option<f64> {
        let of_query = self.figure(SAMPLES_PER_QUERY).or(self.has_single_samples().then_some(1.0))?;
        Some(self.figure(QUERIES)? * of_query)
    }
}

/// The times of a run, as two programs write them.
struct RunClocks {
    /// `LoadGen`'s, in UTC.
    detail: TimeFormat,
    /// The power analyser's, in the zone of its host.
    power: TimeParser,
}

pub(crate) fn read(
    files: Vec<(FileId, LineReader<'_>)>,
    recording: &mut Recording,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    recording.columns.insert(ReadingField::PowerWatts, "Watts".to_owned());
    let detail_format = TimeFormat::Pattern("%m-%d-%Y %H:%M:%S%.f".to_owned());
    let power = TimeParser::new(Some(detail_format.clone()), options.time_zone.clone());
    let clocks = RunClocks { detail: detail_format, power };
    let mut detail = DetailLog::default();
    let mut readings: Vec<(FileId, TimeRange)> = Vec::new();
    for (file, mut lines) in files {
        let range = read_file(file, &mut lines, &clocks, &mut detail, recording)?;
        readings.extend(range.map(|range| (file, range)));
    }
    refuse_copies(recording)?;
    write_phases(&detail, &readings, recording)
}

/// Fewer readings than this may be equal by chance.
const LEAST_EQUAL: usize = 10;

/// Returns an error if two files have the same readings at the same times: a copy would count the energy twice. Readings that never
/// change are no evidence, and are noted, as are the same readings at other times.
fn refuse_copies(recording: &mut Recording) -> Result<(), ImportError> {
    let mut notes = Vec::new();
    for (at, source) in recording.sources.iter().enumerate() {
        let of = |source: &RecordingSource| {
            source.readings.iter().map(|reading| (reading.time, reading.values.clone())).collect::<Vec<_>>()
        };
        let own = of(source);
        let is_constant = own.iter().all(|(_, values)| *values == own[0].1);
        let have_same_watts = |other: &[(EventTime, _)]| {
            own.len() == other.len() && own.iter().zip(other).all(|(own, other)| own.1 == other.1) && *own != *other
        };
        for other in
            recording.sources[..at].iter().filter(|other| !is_constant && own.len() >= LEAST_EQUAL && have_same_watts(&of(other)))
        {
            notes.push(format!(
                "{} and {} have the same {} readings at other times: one may be a copy of the other; the energy counts both",
                recording.files[other.file],
                recording.files[source.file],
                own.len()
            ));
        }
        for other in recording.sources[..at].iter().filter(|other| own.len() > 1 && of(other) == own) {
            let (copy, original) = (&recording.files[source.file], &recording.files[other.file]);
            if !is_constant {
                let remedy = "leave one of the two out: a copy would count the energy twice";
                return Err(ImportError::in_file(copy, format!("has the same readings as {original}"), remedy));
            }
            notes.push(format!(
                "{original} and {copy} have the same {} readings: one may be a copy of the other; the energy counts both",
                own.len()
            ));
        }
    }
    recording.notes.extend(notes);
    Ok(())
}

/// Returns the time that the file's power readings cover.
fn read_file(
    file: FileId,
    lines: &mut LineReader<'_>,
    clocks: &RunClocks,
    detail: &mut DetailLog,
    recording: &mut Recording,
) -> Result<Option<TimeRange>, ImportError> {
    let mut power: Option<SourceId> = None;
    let mut range: Option<TimeRange> = None;
    let mut first_damaged: Option<ImportError> = None;
    let (mut damaged, mut good) = (0, 0);
    let mut times = RowTimes::new(true);
    while let Some((line, text)) = lines.next_line()? {
        if text.starts_with("Time,") {
            recording.rows += 1;
            match power_line(&text, &clocks.power) {
                Ok((stamp, watts)) => {
                    let settled = times.resolve_time(0, line, stamp);
                    let time = settled.map_err(|unsettled| recording.error(file, line, unsettled.problem, unsettled.remedy))?;
                    good += 1;
                    let Some(watts) = watts else {
                        recording.absent += 1;
                        continue;
                    };
                    let source = *power.get_or_insert_with(|| {
                        let name = recording.board_file_name(file);
                        recording.add_device(file, RecordedDevice { name, ..RecordedDevice::default() })
                    });
                    range = Some(range.map_or((time, time), |(from, to)| (from.min(time), to.max(time))));
                    recording.push(source, time, line, &[(ReadingField::PowerWatts, watts)], None);
                }
                Err((column, problem)) => {
                    let remedy = "give the power analyser's log as it was written";
                    let error = recording.error(file, line, format!("{problem}: {}", quote(&text)), remedy).with_column(column);
                    first_damaged.get_or_insert_with(|| error.clone());
                    damaged += 1;
                    recording.refuse_row("power reading", error);
                }
            }
        } else if let Some((_, parsed)) = parse_line(&text) {
            recording.rows += 1;
            let Ok(entry) = parsed else {
                let error = damaged_entry(recording, file, line, &text);
                recording.refuse_row(DAMAGED_ENTRY, error);
                continue;
            };
            let at = |recording: &Recording| {
                let text = entry.value.as_str().unwrap_or_default();
                let time = clocks.detail.parse(text).map_err(|problem| {
                    recording
                        .error(file, line, format!("{} is {problem}", quote(text)), "restore the line")
                        .with_column(&entry.key)
                });
                time.map(|time| (file, line, time))
            };
            match entry.key.as_str() {
                "power_begin" => set_once(recording, &mut detail.begin, at(recording)?)?,
                "power_end" => set_once(recording, &mut detail.end, at(recording)?)?,
                "effective_scenario" => detail.scenario = entry.value.as_str().map(str::to_owned),
                "result_validity" => detail.note_validity(entry.value.as_str().unwrap_or_default()),
                "num_errors" => detail.errors = number(&entry.value).unwrap_or_default(),
                key if detail.put(key, &entry.value) => {}
                key => {
                    if key.starts_with("error_") {
                        let value = quote(&entry.value.to_string());
                        recording.notes.push(format!("the detail log reports an error: {key} {value}"));
                    }
                    recording.skip_line(file, line, "log entry about neither progress nor power");
                }
            }
        } else if !text.trim().is_empty() && !detail.put_summary(&text) {
            recording.skip_line(file, line, "neither a power reading nor an MLLOG entry");
        }
    }
    times.check().map_err(|unsettled| recording.error(file, unsettled.line, unsettled.problem, unsettled.remedy))?;
    match first_damaged {
        // One line that the analyser did not finish is no reason to refuse the others; a file of such lines is another format.
        Some(error) if damaged > good => Err(error),
        _ => Ok(range),
    }
}

fn set_once(recording: &Recording, slot: &mut Option<TimedLine>, found: TimedLine) -> Result<(), ImportError> {
    if slot.is_some() {
        let remedy = "one call imports one run: give one mlperf_log_detail.txt and its spl.txt";
        return Err(recording.error(found.0, found.1, "a second run begins or ends here", remedy));
    }
    *slot = Some(found);
    Ok(())
}

/// Parses `Time,…,Watts,…` with further pairs; the first `Watts` is the total, `None` if the analyser had no reading.
fn power_line(text: &str, clock: &TimeParser) -> Result<(ParsedTime, Option<f64>), (&'static str, String)> {
    let mut parts = text.split(',');
    let mut after = |name: &str| {
        parts.find(|part| *part == name)?;
        parts.next()
    };
    let time = after("Time").ok_or_else(|| ("Time", "no time in the power reading".to_owned()))?;
    let time = clock.read(time).map_err(|problem| ("Time", format!("{} is {problem}", quote(time))))?;
    let watts = after("Watts").ok_or_else(|| ("Watts", "no Watts in the power reading".to_owned()))?;
    match parse_cell(watts) {
        NumberCell::Number(watts) if watts == NO_READING_WATTS => Ok((time, None)),
        NumberCell::Number(watts) if watts >= 0.0 => Ok((time, Some(watts))),
        NumberCell::Absent => Ok((time, None)),
        _ => Err(("Watts", format!("{} is not a power in watts", quote(watts)))),
    }
}

/// Returns how many samples were done in so many seconds, and adds notes on contradictions in the log.
fn samples_done(detail: &DetailLog, seconds: f64, notes: &mut Vec<String>) -> Option<f64> {
    let queried = detail.queried();
    match (detail.samples_per_second(), queried) {
        (Some(rate), Some(queried)) if !detail.is_offline() => {
            let by_rate = rate.1 * seconds;
            if differ_too_much(queried, by_rate) {
                notes.push(format!(
                    "{} {} over the run makes {by_rate:.0} samples, the queries {queried:.0}: counted are the queries, which are those that \
                     LoadGen has counted",
                    rate.0, rate.1
                ));
            }
            Some(queried)
        }
        (Some(rate), _) => Some(samples_by_rate(detail, rate, seconds, notes)),
        (None, _) => {
            if queried.is_some() && detail.is_offline() {
                notes.push(
                    "the detail log has no result_samples_per_second: samples are those of the queries, without LoadGen's padding"
                        .to_owned(),
                );
            }
            queried
        }
    }
}

/// Returns the samples by a rate of the log, and its key, and notes what of the log contradicts them.
fn samples_by_rate(detail: &DetailLog, (key, rate): (&str, f64), seconds: f64, notes: &mut Vec<String>) -> f64 {
    let mut done = rate * seconds;
    let latency = detail.figure(LATENCY).map(|nanoseconds| nanoseconds / 1e9).filter(|_| detail.is_offline());
    if let Some(ran) = latency.filter(|ran| *ran > 0.0 && differ_too_much(*ran, seconds)) {
        // Outside the run nothing was done.
        done = rate * seconds.min(ran);
        notes.push(format!(
            "the run took {ran:.3} s, but {seconds:.3} s lie between power_begin and power_end: samples are those of {:.3} s",
            seconds.min(ran)
        ));
    }
    if let Some(queried) = detail.queried().filter(|queried| differ_too_much(*queried, done)) {
        let set = PERFORMANCE_SET.iter().find_map(|key| detail.figure(key)).filter(|set| *set > 0.0);
        let padded = set.map(|set| (set, (queried / set).ceil() * set)).filter(|(_, padded)| !differ_too_much(*padded, done));
        let why = match padded {
            Some((set, padded)) => format!("LoadGen padded them to {padded}, a multiple of the performance set of {set}"),
            None => "the log does not show which of the two is right".to_owned(),
        };
        notes.push(format!(
            "{key} {rate} over the run makes {done:.0} samples, the queries {queried:.0}: {why}; counted are {done:.0}"
        ));
    }
    done
}

/// Notes figures of the summary that contradict the detail log: the summary of another run, perhaps.
fn compare_summary(detail: &DetailLog, notes: &mut Vec<String>) {
    for (key, figure) in &detail.summary {
        if let Some(own) = detail.figures.get(key).filter(|own| differ_too_much(**own, *figure)) {
            notes
                .push(format!("{key} is {own} in the detail log and {figure} in the summary: the summary may be of another run"));
        }
    }
}

fn write_phases(detail: &DetailLog, readings: &[(FileId, TimeRange)], recording: &mut Recording) -> Result<(), ImportError> {
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
    let is_apart = |range: TimeRange| overlap::are_apart(range, (begin, end));
    let mut notes = Vec::new();
    match readings.first() {
        Some((_, first)) if readings.iter().all(|(_, range)| is_apart(*range)) => {
            let problem =
                format!("no power reading lies between power_begin and power_end: {}", overlap::describe(*first, (begin, end)));
            let remedy = overlap::zone_of_readings(*first, (begin, end)).map_or_else(
                || "give the spl.txt of this run, or import the power log alone".to_owned(),
                |zone| format!("if the power analyser's times are local, give its zone: --time-zone {zone}"),
            );
            return Err(recording.error(file, begin_line, problem, remedy));
        }
        Some(_) => {
            for (of, range) in readings.iter().filter(|(_, range)| is_apart(*range)) {
                notes.push(format!(
                    "no reading of {} lies between power_begin and power_end: none of its energy is in the run; {}",
                    recording.files[*of],
                    overlap::describe(*range, (begin, end))
                ));
            }
        }
        None => notes.push("no power reading among the files (spl.txt): samples without energy".to_owned()),
    }
    let seconds = end.seconds_since(begin);
    compare_summary(detail, &mut notes);
    if let Some(validity) = &detail.validity {
        notes.push(format!(
            "LoadGen reports that the result is {}: it broke a rule of the benchmark, or the run failed",
            quote(validity)
        ));
    }
    if detail.errors > 0.0 {
        notes.push(format!("LoadGen counted {}: samples may be counted that failed", counted(detail.errors, "error")));
    }
    let samples = samples_done(detail, seconds, &mut notes);
    if samples.is_none() {
        notes.push("the detail log does not state how many samples were processed".to_owned());
    }
    // Tokens come at the same pace as samples: for as long as there were some.
    let rate = detail.samples_per_second().map(|(_, rate)| rate).filter(|rate| *rate > 0.0);
    let active = samples.zip(rate).map_or(seconds, |(samples, rate)| samples / rate);
    let tokens = detail.first_figure(&TOKEN_RATES).map(|(_, rate)| rate * active);
    recording.notes.extend(notes);
    let source = recording.add_source(file, None, SourceKind::Job { rank: 0, irregular: true, scope: CounterScope::Global });
    let totals = [(ReadingField::SamplesTotal, samples), (ReadingField::TokensTotal, tokens)];
    let last: Vec<(ReadingField, f64)> = totals.into_iter().filter_map(|(field, total)| Some((field, total?))).collect();
    let first: Vec<(ReadingField, f64)> = last.iter().map(|(field, _)| (*field, 0.0)).collect();
    let mark = |phase| Some(ProgressMark { phase, span: None });
    recording.push(source, begin, begin_line, &first, mark(JobLifecycle::Started));
    recording.push(source, end, end_line, &last, mark(JobLifecycle::Finished));
    Ok(())
}
