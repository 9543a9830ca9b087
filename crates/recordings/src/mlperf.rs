//! `MLPerf` Training: `:::MLLOG` lines of the console log and of the power logs of nodes and switches.
//!
//! | log entry | event |
//! |---|---|
//! | `power_reading` | power in watts, one device a file and host; see [`power`] |
//! | `run_start`, `run_stop` | phase `started`, `finished` |
//! | `epoch_*`, or `block_*` where the log has one epoch only | span `epoch N`, `block N` |
//! | `eval_start`, `eval_stop` outside such a span | span `evaluation N` |
//! | count of samples, see below | `samples_total` |
//! | `step_num` × `global_batch_size` at `run_stop`, if that is more than the last count | `samples_total` |
//!
//! The count of samples is `samples_count`; else for BERT `epoch_num` (which counts sequences there, unless its numbers are
//! smaller than a batch); else, but for BERT, epochs done × `train_samples`; else `step_num` × `global_batch_size`; else the parts of
//! an epoch that `epoch_num` counts (0.05, 0.1, …) × `train_samples`.
//!
//! A line that begins like an entry and is no whole one is refused and counted. If the log's own `throughput` contradicts the
//! count, a note has both.

mod power;

use std::collections::BTreeSet;

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::{CounterScope, JobLifecycle};
use serde::Deserialize;
use serde_json::Value;

use self::power::PowerLogs;
use crate::error::quote;
use crate::lines::LineReader;
use crate::mlperf_inference::differ_too_much;
use crate::recording::{FileId, ProgressMark, Recording, SourceKind};
use crate::{ImportError, ReadingField};

#[derive(Deserialize)]
pub(crate) struct LogLine {
    pub(crate) time_ms: f64,
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) value: Value,
    #[serde(default)]
    pub(crate) metadata: Value,
}

const MARKER: &str = ":::MLLOG";

/// Reason for refusing a line that begins like an entry.
pub(crate) const DAMAGED_ENTRY: &str = "damaged log entry";

/// Returns the reason for which a damaged line is refused.
pub(crate) fn damaged_entry(recording: &Recording, file: FileId, line: u64, text: &str) -> ImportError {
    recording.error(file, line, format!("{DAMAGED_ENTRY}: {}", quote(text.trim())), "restore the line or take it out")
}

/// Value that `PTDaemon` writes if the analyser had no reading.
pub(crate) const NO_READING_WATTS: f64 = -1.0;

/// Splits a line into the text before the marker (a rank prefix such as `0:`) and the entry.
pub(crate) fn parse_line(text: &str) -> Option<(&str, Result<LogLine, serde_json::Error>)> {
    let (prefix, json) = text.split_once(MARKER)?;
    let json = json.trim();
    // Terminals' colours end behind the entry.
    let json = json.split_once("}\u{1b}[").map_or(json, |(entry, _)| &json[..=entry.len()]);
    let entry =
        serde_json::from_str(json).or_else(|error| without_nan(json).map_or(Err(error), |json| serde_json::from_str(&json)));
    Some((prefix, entry))
}

/// Returns the entry with `null` for the numbers that Python writes and JSON does not know; `None` if it has none of them.
fn without_nan(json: &str) -> Option<String> {
    let mut text = String::with_capacity(json.len());
    let (mut in_text, mut escaped, mut replaced) = (false, false, false);
    let mut rest = json;
    while let Some(c) = rest.chars().next() {
        let word = (!in_text).then(|| ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word))).flatten();
        if let Some(word) = word {
            text.push_str("null");
            replaced = true;
            rest = &rest[word.len()..];
            continue;
        }
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            _ => {}
        }
        text.push(c);
        rest = &rest[c.len_utf8()..];
    }
    replaced.then_some(text)
}

/// Returns a number, also one that is written as text.
pub(crate) fn number(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    number.filter(|number: &f64| number.is_finite())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MllogKey {
    RunStart,
    RunStop,
    EpochStart,
    EpochStop,
    BlockStart,
    BlockStop,
    EvalStart,
    EvalStop,
    TrainSamples,
    Other,
}

/// An entry of the training log.
struct MllogEntry {
    time: EventTime,
    line: u64,
    rank: Option<u32>,
    key: MllogKey,
    value: Option<f64>,
    epoch_num: Option<f64>,
    samples_count: Option<f64>,
    /// Optimizer steps done so far.
    step_num: Option<f64>,
    /// Samples per second, of `tracked_stats`.
    throughput: Option<f64>,
    /// Outcome of the run, in `run_stop`.
    status: Option<String>,
}

impl MllogEntry {
    /// Returns the epochs done so far in a log that counts their parts.
    fn epochs_counted(&self) -> Option<f64> {
        let is_evaluation = matches!(self.key, MllogKey::EvalStart | MllogKey::EvalStop);
        self.epoch_num.filter(|epochs| is_evaluation || is_part(*epochs))
    }
}

/// The status of a run that reached its target.
const SUCCESS: &str = "success";

#[derive(Default)]
struct TrainingLog {
    file: FileId,
    benchmark: Option<String>,
    global_batch_size: Option<f64>,
    entries: Vec<MllogEntry>,
}

/// Returns a time in milliseconds since 1970; `None` if it is none of the years 1970 to 9999: a damaged stamp must not become an
/// event.
fn time_of(time_ms: f64) -> Option<EventTime> {
    (time_ms > 0.0 && time_ms < 2.5e14).then(|| EventTime::from_micros((time_ms * 1000.0).round() as i64))
}

pub(crate) fn read(files: Vec<(FileId, LineReader<'_>)>, recording: &mut Recording) -> Result<(), ImportError> {
    recording.columns.insert(ReadingField::PowerWatts, "value".to_owned());
    let mut trainings: Vec<TrainingLog> = Vec::new();
    let mut power = PowerLogs::default();
    for (file, mut lines) in files {
        let training = read_file(file, &mut lines, &mut power, recording)?;
        if training.entries.iter().any(|entry| entry.key != MllogKey::Other) {
            trainings.push(training);
        }
    }
    power.note_copies(recording);
    if let [first, second, ..] = trainings.as_slice() {
        let problem = format!("is a second training log beside {}", recording.files[first.file]);
        let remedy = "one call imports one run: give one training log and the power logs of its nodes";
        return Err(ImportError::in_file(&recording.files[second.file], problem, remedy));
    }
    if let Some(training) = trainings.pop() {
        let run = write_progress(training, recording)?;
        return power.compare_with_run(&run, recording);
    }
    recording.notes.push("no training log among the files: power without phases and progress".to_owned());
    Ok(())
}

fn read_file(
    file: FileId,
    lines: &mut LineReader<'_>,
    power: &mut PowerLogs,
    recording: &mut Recording,
) -> Result<TrainingLog, ImportError> {
    let mut training = TrainingLog { file, ..TrainingLog::default() };
    let mut power_log_open = false;
    while let Some((line, text)) = lines.next_line()? {
        let Some((prefix, parsed)) = parse_line(&text) else {
            if !text.trim().is_empty() {
                recording.skip_line(file, line, "not an MLLOG entry");
            }
            continue;
        };
        recording.rows += 1;
        let time = parsed.as_ref().ok().and_then(|entry| time_of(entry.time_ms));
        let (Ok(entry), Some(time)) = (parsed, time) else {
            let error = damaged_entry(recording, file, line, &text);
            recording.refuse_row(DAMAGED_ENTRY, error);
            continue;
        };
        let key = match entry.key.as_str() {
            "power_reading" => {
                power.read(file, line, time, &entry, recording);
                continue;
            }
            "run_start" => MllogKey::RunStart,
            "run_stop" => MllogKey::RunStop,
            "epoch_start" => MllogKey::EpochStart,
            "epoch_stop" => MllogKey::EpochStop,
            "block_start" => MllogKey::BlockStart,
            "block_stop" => MllogKey::BlockStop,
            "eval_start" => MllogKey::EvalStart,
            "eval_stop" => MllogKey::EvalStop,
            "train_samples" => MllogKey::TrainSamples,
            "tracked_stats" => MllogKey::Other,
            // Some logs count their samples nowhere else.
            "eval_accuracy" if entry.metadata.get("samples_count").is_some() => MllogKey::Other,
            "eval_accuracy" if entry.metadata.get("epoch_num").and_then(number).is_some_and(is_part) => MllogKey::Other,
            "power_measurement_start" => {
                power_log_open = true;
                continue;
            }
            "power_measurement_stop" => {
                power_log_open = false;
                continue;
            }
            other => {
                match other {
                    "submission_benchmark" => training.benchmark = entry.value.as_str().map(str::to_owned),
                    "global_batch_size" => {
                        let batch = number(&entry.value).filter(|batch| *batch > 0.0);
                        if let (Some(before), Some(batch)) = (training.global_batch_size, batch)
                            && before != batch
                        {
                            recording.notes.push(format!(
                                "global_batch_size is {before}, and {batch} at line {line}: samples that are counted by steps are counted \
                                 with {batch} throughout"
                            ));
                        }
                        training.global_batch_size = batch;
                    }
                    _ => recording.skip_line(file, line, "log entry about neither progress nor power"),
                }
                continue;
            }
        };
        let field = |name: &str| entry.metadata.get(name).or_else(|| entry.value.get(name)).and_then(number);
        training.entries.push(MllogEntry {
            time,
            line,
            rank: prefix.trim().trim_end_matches(':').parse().ok(),
            key,
            value: number(&entry.value),
            epoch_num: field("epoch_num"),
            samples_count: field("samples_count"),
            step_num: field("step_num"),
            throughput: field("throughput").filter(|_| key == MllogKey::Other),
            status: entry.metadata.get("status").and_then(Value::as_str).map(str::to_owned),
        });
    }
    if power_log_open {
        recording.notes.push(format!("{} ends without power_measurement_stop: it may be truncated", recording.files[file]));
    }
    Ok(training)
}

/// Source of the count of samples in a log.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SampleCounting {
    SamplesCount,
    EpochNum,
    /// Epochs done times the samples of one.
    Epochs(f64),
    /// Steps done times the samples of one.
    Steps(f64),
    /// `epoch_num`, which counts parts of an epoch, times the samples of one.
    EpochParts(f64),
    Unknown,
}

/// Entries that name the spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpanLevel {
    Epochs,
    Blocks,
}

/// Samples by the steps that `run_stop` counts.
fn samples_by_steps(training: &TrainingLog) -> Option<f64> {
    let stop = training.entries.iter().find(|entry| entry.key == MllogKey::RunStop && entry.step_num.is_some())?;
    Some(stop.step_num? * training.global_batch_size?)
}

/// Returns whether a number of epochs has a part of one.
fn is_part(epochs: f64) -> bool {
    epochs.fract() != 0.0
}

/// Returns the last count of epochs in a log whose evaluations or blocks come within the first epoch; `None` if none of them does.
fn epochs_in_parts(training: &TrainingLog) -> Option<f64> {
    let counts = || training.entries.iter().filter_map(MllogEntry::epochs_counted);
    let is_in_first = |epochs: f64| epochs > 0.0 && epochs < 1.0;
    counts().any(is_in_first).then(|| counts().fold(0.0, f64::max))
}

/// The benchmark whose `epoch_num` counts sequences.
const BERT: &str = "bert";

/// No batch of [`BERT`] is smaller, where the log does not have its size.
const LEAST_BATCH: f64 = 16.0;

/// Returns whether a log of [`BERT`] counts sequences: its `epoch_num` reaches a batch, or never goes on by one, or `train_samples`
/// comes within the run. Smaller numbers are those of epochs.
fn counts_sequences(training: &TrainingLog) -> bool {
    let entries = &training.entries;
    let batch = training.global_batch_size.unwrap_or(LEAST_BATCH);
    let start = entries.iter().filter(|entry| entry.key == MllogKey::RunStart).map(|entry| entry.time).min();
    let is_count = |entry: &MllogEntry| {
        let is_total = entry.key == MllogKey::TrainSamples && entry.value.is_some() && Some(entry.time) > start;
        is_total || entry.epoch_num.is_some_and(|sequences| sequences >= batch)
    };
    entries.iter().any(is_count) || go_on_by_more_than_one(entries.iter().filter_map(|entry| entry.epoch_num))
}

/// Returns whether numbers go on by more than one each time, as those of epochs do not.
fn go_on_by_more_than_one(numbers: impl Iterator<Item = f64>) -> bool {
    let mut numbers: Vec<f64> = numbers.filter(|number| *number > 0.0).chain([0.0]).collect();
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    numbers.len() > 1 && numbers.windows(2).all(|pair| pair[1] - pair[0] > 1.0)
}

/// Returns how the log counts samples, with a note if `train_samples` turns out to count batches.
fn detect_counting(training: &TrainingLog, notes: &mut Vec<String>) -> SampleCounting {
    let entries = &training.entries;
    if entries.iter().any(|entry| entry.samples_count.is_some()) {
        return SampleCounting::SamplesCount;
    }
    let train_samples = entries.iter().find(|entry| entry.key == MllogKey::TrainSamples).and_then(|entry| entry.value);
    let epochs = entries.iter().filter(|entry| entry.key == MllogKey::EpochStop);
    let last_epoch = epochs.clone().filter_map(|entry| entry.epoch_num).next_back();
    let is_bert = training.benchmark.as_deref() == Some(BERT);
    if is_bert && counts_sequences(training) || last_epoch.is_some() && last_epoch == train_samples {
        return SampleCounting::EpochNum;
    }
    if is_bert && entries.iter().any(|entry| entry.epoch_num.is_some()) {
        notes.push("epoch_num is less than a batch: it numbers epochs, and does not count the sequences".to_owned());
    }
    // The epochs of BERT are not run to their end.
    let epochs = if is_bert { 0.0 } else { epochs.count() as f64 };
    match (train_samples, training.global_batch_size) {
        (Some(samples), Some(batch)) if epochs > 0.0 => {
            let steps = samples_by_steps(training).map(|samples| samples / batch);
            if batch > 1.0 && steps.is_some_and(|steps| steps > 0.0 && !differ_too_much(steps, epochs * samples)) {
                notes.push(format!("train_samples {samples} counts batches, by the steps at run_stop: each is {batch} samples"));
                return SampleCounting::Epochs(samples * batch);
            }
            SampleCounting::Epochs(samples)
        }
        (Some(samples), None) if epochs > 0.0 => SampleCounting::Epochs(samples),
        (_, Some(batch)) if entries.iter().any(|entry| entry.step_num.is_some()) => SampleCounting::Steps(batch),
        (Some(samples), _) if !is_bert => match epochs_in_parts(training) {
            Some(last) => {
                notes.push(format!(
                    "samples are counted by epoch_num, in parts of an epoch of {samples} (train_samples), up to {last:.6}: any after \
                     the last count are not counted"
                ));
                SampleCounting::EpochParts(samples)
            }
            None => SampleCounting::Unknown,
        },
        _ => SampleCounting::Unknown,
    }
}

/// Start and end of a run, `None` if the log does not have its end, with the file and line that report it.
pub(crate) struct MlperfRun {
    pub(crate) file: FileId,
    pub(crate) line: u64,
    pub(crate) start: EventTime,
    pub(crate) stop: Option<EventTime>,
    /// The last entry of the log.
    pub(crate) last: EventTime,
}

/// Returns the seconds between the starts and stops of a kind of span inside the run.
fn seconds_in(entries: &[&MllogEntry], start: MllogKey, stop: MllogKey) -> f64 {
    let mut open = None;
    let mut seconds = 0.0;
    for entry in entries {
        if entry.key == start {
            open = Some(entry.time);
        } else if let Some(from) = (entry.key == stop).then(|| open.take()).flatten() {
            seconds += entry.time.seconds_since(from);
        }
    }
    seconds
}

/// Notes if the log's own throughput contradicts its count of samples.
fn compare_rates(inside: &[&MllogEntry], samples: f64, run_seconds: f64, batch: Option<f64>, notes: &mut Vec<String>) {
    let mut rates: Vec<f64> = inside.iter().filter_map(|entry| entry.throughput).filter(|rate| *rate > 0.0).collect();
    if rates.is_empty() || run_seconds <= 0.0 {
        return;
    }
    rates.sort_by(f64::total_cmp);
    let rate = rates[rates.len() / 2];
    let spans = [(MllogKey::BlockStart, MllogKey::BlockStop), (MllogKey::EpochStart, MllogKey::EpochStop)];
    let training = spans.into_iter().map(|(start, stop)| seconds_in(inside, start, stop)).filter(|seconds| *seconds > 0.0);
    // Evaluations may count or not: the log's figure may lie anywhere between.
    let slowest = samples / run_seconds;
    let fastest = training.map(|seconds| samples / seconds).fold(slowest, f64::max);
    let agrees = (slowest..=fastest).contains(&rate) || !differ_too_much(rate, slowest) || !differ_too_much(rate, fastest);
    if agrees {
        return;
    }
    let why = match batch {
        Some(batch) if samples > 0.0 && (rate / fastest / batch - 1.0).abs() < 0.25 => {
            format!("; the log seems to count batches of {batch}")
        }
        _ => String::new(),
    };
    notes.push(format!(
        "the log's own throughput of {rate:.6} samples/s contradicts its count of {samples} samples in {run_seconds:.3} s, \
         {slowest:.6} samples/s{why}"
    ));
}

fn write_progress(mut training: TrainingLog, recording: &mut Recording) -> Result<MlperfRun, ImportError> {
    let file = training.file;
    let starts = training.entries.iter().filter(|entry| entry.key == MllogKey::RunStart);
    let Some(rank) = starts.map(|entry| entry.rank).min() else {
        let is_damaged = |refused: &&crate::DroppedLines| refused.kind == DAMAGED_ENTRY && refused.file == recording.files[file];
        let problem = match recording.refusals.by_kind.iter().find(is_damaged) {
            Some(damaged) => format!(
                "the training log has no run_start; {}, the first at {}",
                counted(damaged.lines, "damaged line"),
                damaged.first_line
            ),
            None => "the training log has no run_start".to_owned(),
        };
        return Err(ImportError::in_file(&recording.files[file], problem, "give the whole console log of the run"));
    };
    training.entries.retain(|entry| {
        let ours = entry.rank == rank;
        if !ours {
            recording.skip_line(file, entry.line, "written by another rank, too");
        }
        ours
    });
    let only = |key: MllogKey| -> Result<Option<(usize, &MllogEntry)>, ImportError> {
        let mut found = training.entries.iter().enumerate().filter(|(_, entry)| entry.key == key);
        let first = found.next();
        match found.next() {
            Some((_, second)) => {
                let problem = "a second run starts or stops here";
                Err(recording.error(file, second.line, problem, "one call imports one run: split the log"))
            }
            None => Ok(first),
        }
    };
    let (start, start_line) = only(MllogKey::RunStart)?.map(|(_, entry)| (entry.time, entry.line)).unwrap_or_default();
    let stopped = only(MllogKey::RunStop)?;
    let status = stopped.and_then(|(_, entry)| entry.status.clone()).filter(|status| !status.eq_ignore_ascii_case(SUCCESS));
    let stop = stopped.map(|(_, entry)| entry.time);
    if stop.is_none() {
        recording
            .notes
            .push(format!("{} has no run_stop: the run did not finish, or the log is truncated", recording.files[file]));
    }
    let mut notes = Vec::new();
    notes.extend(status.map(|status| {
        format!("run_stop is {}: the run did not reach its target, and its energy is not that of a training", quote(&status))
    }));
    let counting = detect_counting(&training, &mut notes);
    if counting == SampleCounting::Unknown {
        recording.notes.push("the training log does not state how many samples were processed".to_owned());
    }
    let epochs = training.entries.iter().filter(|entry| entry.key == MllogKey::EpochStart).count();
    let blocks = training.entries.iter().any(|entry| entry.key == MllogKey::BlockStart);
    let level = if epochs > 1 || !blocks { SpanLevel::Epochs } else { SpanLevel::Blocks };

    let mut newest = EventTime::MIN;
    for entry in &training.entries {
        recording.out_of_order += u64::from(entry.time < newest);
        newest = newest.max(entry.time);
    }
    training.entries.sort_by_key(|entry| entry.time);

    let last = training.entries.last().map_or(start, |entry| entry.time);
    let by_steps = samples_by_steps(&training);
    if by_steps.is_none() && training.entries.iter().any(|entry| entry.key == MllogKey::RunStop && entry.step_num.is_some()) {
        notes.push(
            "run_stop counts steps, but the log has no global_batch_size: how many samples they are is not known".to_owned(),
        );
    }
    let source = recording.add_source(
        file,
        None,
        SourceKind::Job { rank: rank.unwrap_or(0), irregular: true, scope: CounterScope::Global },
    );
    let mut walk = RunWalk {
        counting,
        by_steps,
        level,
        trains_in_blocks: blocks,
        known: None,
        counted: None,
        epochs_done: 0.0,
        epoch_open: false,
        block_open: false,
        blocks: 0,
        evaluations: 0,
    };
    let mut written = BTreeSet::new();
    for entry in &training.entries {
        if entry.time < start || stop.is_some_and(|stop| entry.time > stop) {
            // The number of samples of an epoch may come before the run.
            if entry.key != MllogKey::TrainSamples {
                recording.skip_line(file, entry.line, "outside the run");
            }
            continue;
        }
        let (mut values, mark) = walk.next(entry);
        if entry.key == MllogKey::RunStart
            && let Some(batch) = training.global_batch_size
        {
            values.push((ReadingField::GlobalBatchSize, batch));
        }
        if values.is_empty() && mark.is_none() {
            recording.skip_line(file, entry.line, "log entry about neither progress nor power");
        }
        written.extend(values.iter().map(|(field, _)| *field));
        recording.push(source, entry.time, entry.line, &values, mark);
    }
    if counting != SampleCounting::Unknown && !written.contains(&ReadingField::SamplesTotal) {
        recording.notes.push("no count of samples lies inside the run".to_owned());
    }
    let inside: Vec<&MllogEntry> =
        training.entries.iter().filter(|entry| entry.time >= start && stop.is_none_or(|stop| entry.time <= stop)).collect();
    if let Some(((samples, counted_at), by_steps)) =
        walk.counted.zip(by_steps).filter(|((samples, _), by_steps)| differ_too_much(*samples, *by_steps))
    {
        // Samples that were trained after the last count are in the steps only: as many as the time allows.
        let counted_seconds = counted_at.seconds_since(start);
        let run_seconds = stop.unwrap_or(last).seconds_since(start);
        let explained = if counted_seconds > 0.0 { samples * run_seconds / counted_seconds } else { f64::INFINITY };
        if by_steps < samples || by_steps > explained && differ_too_much(by_steps, explained) {
            let counted = samples.max(by_steps);
            notes.push(format!(
                "run_stop counts steps that make {by_steps} samples, the log's other entries {samples}; counted are {counted}"
            ));
        }
    }
    if let Some(samples) = walk.known {
        let run_seconds = stop.unwrap_or(last).seconds_since(start);
        compare_rates(&inside, samples, run_seconds, training.global_batch_size, &mut notes);
    }
    recording.notes.extend(notes);
    Ok(MlperfRun { file, line: start_line, start, stop, last })
}

/// Walks through the entries of one run in time order.
struct RunWalk {
    counting: SampleCounting,
    /// Samples by the steps that `run_stop` counts.
    by_steps: Option<f64>,
    level: SpanLevel,
    /// The log has training blocks: nothing is processed outside them.
    trains_in_blocks: bool,
    /// The last count that an entry gave.
    known: Option<f64>,
    /// The same without the steps that `run_stop` counts, and when the count rose to it.
    counted: Option<(f64, EventTime)>,
    epochs_done: f64,
    epoch_open: bool,
    block_open: bool,
    blocks: u32,
    evaluations: u32,
}

impl RunWalk {
    /// Returns the progress in an entry, and the phase or span that begins there.
    fn next(&mut self, entry: &MllogEntry) -> (Vec<(ReadingField, f64)>, Option<ProgressMark>) {
        let training = if self.trains_in_blocks { self.block_open } else { self.epoch_open };
        match entry.key {
            MllogKey::EpochStart => self.epoch_open = true,
            MllogKey::EpochStop => {
                self.epoch_open = false;
                self.epochs_done += 1.0;
            }
            MllogKey::BlockStart => self.block_open = true,
            MllogKey::BlockStop => self.block_open = false,
            _ => {}
        }
        let mut values = Vec::new();
        // While nothing is trained the count stays the same.
        let samples = self.samples(entry).or(self.known.filter(|_| !training));
        if let Some(samples) = samples.filter(|samples| self.counted.is_none_or(|(known, _)| *samples > known)) {
            self.counted = Some((samples, entry.time));
        }
        // The samples since the last count are known by the steps at the end.
        let at_stop = self.by_steps.filter(|_| entry.key == MllogKey::RunStop);
        let samples = at_stop.filter(|by_steps| samples.or(self.known).is_none_or(|known| *by_steps > known)).or(samples);
        self.known = samples.or(self.known);
        if let Some(samples) = samples {
            values.push((ReadingField::SamplesTotal, samples));
        }
        if matches!(self.counting, SampleCounting::Epochs(_)) && entry.key == MllogKey::EpochStop {
            values.push((ReadingField::Epoch, self.epochs_done));
        }
        let span = self.span_name(entry);
        let phase = match entry.key {
            MllogKey::RunStart => JobLifecycle::Started,
            MllogKey::RunStop => JobLifecycle::Finished,
            _ => JobLifecycle::Progress,
        };
        let mark = (phase != JobLifecycle::Progress || span.is_some()).then_some(ProgressMark { phase, span });
        (values, mark)
    }

    /// Returns the count of samples at this entry, where the log knows it.
    fn samples(&self, entry: &MllogEntry) -> Option<f64> {
        if entry.key == MllogKey::RunStart {
            return (self.counting != SampleCounting::Unknown).then_some(0.0);
        }
        match self.counting {
            SampleCounting::SamplesCount => entry.samples_count,
            SampleCounting::EpochNum if entry.key == MllogKey::TrainSamples => entry.value,
            // Beside counts of sequences, a number of an epoch is less than any of them.
            SampleCounting::EpochNum => entry.epoch_num.filter(|count| self.known.is_none_or(|known| *count >= known)),
            // Inside an epoch only its end is known.
            SampleCounting::Epochs(samples) => {
                (!self.epoch_open || entry.key == MllogKey::EpochStart).then_some(self.epochs_done * samples)
            }
            SampleCounting::Steps(batch) => entry.step_num.map(|steps| steps * batch),
            // The run stops after the evaluation that reaches the target.
            SampleCounting::EpochParts(_) if entry.key == MllogKey::RunStop => self.known,
            SampleCounting::EpochParts(samples) => {
                let count = entry.epochs_counted().map(|epochs| (epochs * samples).round());
                count.filter(|count| self.known.is_none_or(|known| *count >= known))
            }
            SampleCounting::Unknown => None,
        }
    }

    fn span_name(&mut self, entry: &MllogEntry) -> Option<String> {
        let none = || Some(String::new());
        let span_open = match self.level {
            SpanLevel::Epochs => self.epoch_open,
            SpanLevel::Blocks => self.block_open,
        };
        match (entry.key, self.level) {
            (MllogKey::EpochStart, SpanLevel::Epochs) => {
                let number = entry.epoch_num.filter(|number| number.fract() == 0.0).unwrap_or(self.epochs_done + 1.0);
                Some(format!("epoch {number}"))
            }
            (MllogKey::BlockStart, SpanLevel::Blocks) => {
                self.blocks += 1;
                Some(format!("block {}", self.blocks))
            }
            (MllogKey::EpochStop, SpanLevel::Epochs) | (MllogKey::BlockStop, SpanLevel::Blocks) | (MllogKey::RunStop, _) => {
                none()
            }
            (MllogKey::EvalStart, _) => {
                self.evaluations += 1;
                (!span_open).then(|| format!("evaluation {}", self.evaluations))
            }
            (MllogKey::EvalStop, _) if !span_open => none(),
            _ => None,
        }
    }
}
