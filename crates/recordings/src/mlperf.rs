//! `MLPerf` Training: `:::MLLOG` lines of the console log and of the nodes' power logs.
//!
//! | log entry | event |
//! |---|---|
//! | `power_reading` | node power in watts, one device a file |
//! | `run_start`, `run_stop` | phase `started`, `finished` |
//! | `epoch_*`, or `block_*` where the log has one epoch only | span `epoch N`, `block N` |
//! | `eval_start`, `eval_stop` outside such a span | span `evaluation N` |
//! | `samples_count`; else for BERT `epoch_num` (which counts sequences there); else epochs done × `train_samples` | `samples_total` |

use std::collections::BTreeSet;

use eadt_schemas::EventTime;
use eadt_schemas::v1::Phase;
use serde::Deserialize;
use serde_json::Value;

use crate::error::quote;
use crate::lines::Lines;
use crate::recording::{Device, FileId, Mark, Recording, SourceId, SourceKind};
use crate::{Field, ImportError};

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

/// The entry in a line: what stands before the marker (a rank prefix such as `0:`), and the entry itself.
pub(crate) fn parse_line(text: &str) -> Option<(&str, Result<LogLine, serde_json::Error>)> {
    let (prefix, json) = text.split_once(MARKER)?;
    Some((prefix, serde_json::from_str(json.trim())))
}

pub(crate) fn damaged(recording: &Recording, file: FileId, line: u64, text: &str, error: &serde_json::Error) -> ImportError {
    let problem = format!("log entry {} is truncated or damaged: {error}", quote(text));
    recording.error(file, line, problem, "restore the line, or take it out if the loss is acceptable")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
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
struct Entry {
    time: EventTime,
    line: u64,
    rank: Option<u32>,
    key: Key,
    value: Option<f64>,
    epoch_num: Option<f64>,
    samples_count: Option<f64>,
}

#[derive(Default)]
struct Training {
    file: FileId,
    benchmark: Option<String>,
    global_batch_size: Option<f64>,
    entries: Vec<Entry>,
}

fn time_of(recording: &Recording, file: FileId, line: u64, time_ms: f64) -> Result<EventTime, ImportError> {
    // Microseconds of the years 1970 to 9999; a damaged stamp must not become an event.
    if time_ms > 0.0 && time_ms < 2.5e14 {
        Ok(EventTime::from_micros((time_ms * 1000.0).round() as i64))
    } else {
        let problem = format!("time_ms {time_ms} is not a time in milliseconds since 1970");
        Err(recording.error(file, line, problem, "correct the line or take it out").column("time_ms"))
    }
}

pub(crate) fn read(files: Vec<(FileId, Lines<'_>)>, recording: &mut Recording) -> Result<(), ImportError> {
    recording.columns.insert(Field::PowerWatts, "value".to_owned());
    let mut trainings: Vec<Training> = Vec::new();
    for (file, mut lines) in files {
        let training = read_file(file, &mut lines, recording)?;
        if training.entries.iter().any(|entry| entry.key != Key::Other) {
            trainings.push(training);
        }
    }
    if let [first, second, ..] = trainings.as_slice() {
        let problem = format!("is a second training log beside {}", recording.files[first.file]);
        let remedy = "one call imports one run: give one training log and the power logs of its nodes";
        return Err(ImportError::whole(&recording.files[second.file], problem, remedy));
    }
    if let Some(training) = trainings.pop() {
        return tell_progress(training, recording);
    }
    recording.notes.push("no training log among the files: power without phases and progress".to_owned());
    Ok(())
}

fn read_file(file: FileId, lines: &mut Lines<'_>, recording: &mut Recording) -> Result<Training, ImportError> {
    let mut training = Training { file, ..Training::default() };
    let mut power: Option<SourceId> = None;
    let mut power_log_open = false;
    while let Some((line, text)) = lines.next_line()? {
        let Some((prefix, parsed)) = parse_line(&text) else {
            if !text.trim().is_empty() {
                recording.skip(file, line, "not an MLLOG entry");
            }
            continue;
        };
        let entry = parsed.map_err(|error| damaged(recording, file, line, &text, &error))?;
        recording.rows += 1;
        let time = time_of(recording, file, line, entry.time_ms)?;
        if entry.key == "power_reading" {
            let watts = entry.value.as_f64().ok_or_else(|| {
                let problem = format!("power_reading {} is not a number", entry.value);
                recording.error(file, line, problem, "restore the line or take it out").column("value")
            })?;
            let source = *power.get_or_insert_with(|| {
                let name = recording.stem(file);
                recording.add_device(file, Device { node: Some(name.clone()), name, ..Device::default() })
            });
            recording.push(source, time, line, &[(Field::PowerWatts, watts)], None);
            continue;
        }
        let key = match entry.key.as_str() {
            "run_start" => Key::RunStart,
            "run_stop" => Key::RunStop,
            "epoch_start" => Key::EpochStart,
            "epoch_stop" => Key::EpochStop,
            "block_start" => Key::BlockStart,
            "block_stop" => Key::BlockStop,
            "eval_start" => Key::EvalStart,
            "eval_stop" => Key::EvalStop,
            "train_samples" => Key::TrainSamples,
            "tracked_stats" => Key::Other,
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
                    "global_batch_size" => training.global_batch_size = entry.value.as_f64(),
                    _ => recording.skip(file, line, "log entry about neither progress nor power"),
                }
                continue;
            }
        };
        let number = |name: &str| entry.metadata.get(name).or_else(|| entry.value.get(name)).and_then(Value::as_f64);
        training.entries.push(Entry {
            time,
            line,
            rank: prefix.trim().trim_end_matches(':').parse().ok(),
            key,
            value: entry.value.as_f64(),
            epoch_num: number("epoch_num"),
            samples_count: number("samples_count"),
        });
    }
    if power_log_open {
        recording.notes.push(format!("{} ends without power_measurement_stop: it may be truncated", recording.files[file]));
    }
    Ok(training)
}

/// What counts samples in this log.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Counting {
    SamplesCount,
    EpochNum,
    /// Epochs done times the samples of one.
    Epochs(f64),
    Unknown,
}

/// Which entries name the spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Epochs,
    Blocks,
}

fn counting(training: &Training) -> Counting {
    let entries = &training.entries;
    if entries.iter().any(|entry| entry.samples_count.is_some()) {
        return Counting::SamplesCount;
    }
    let train_samples = entries.iter().find(|entry| entry.key == Key::TrainSamples).and_then(|entry| entry.value);
    let epochs = entries.iter().filter(|entry| entry.key == Key::EpochStop);
    let last_epoch = epochs.clone().filter_map(|entry| entry.epoch_num).next_back();
    if training.benchmark.as_deref() == Some("bert") || last_epoch.is_some() && last_epoch == train_samples {
        return Counting::EpochNum;
    }
    match train_samples {
        Some(samples) if epochs.count() > 0 => Counting::Epochs(samples),
        _ => Counting::Unknown,
    }
}

fn tell_progress(mut training: Training, recording: &mut Recording) -> Result<(), ImportError> {
    let file = training.file;
    let starts = training.entries.iter().filter(|entry| entry.key == Key::RunStart);
    let Some(rank) = starts.map(|entry| entry.rank).min() else {
        let problem = "the training log has no run_start";
        return Err(ImportError::whole(&recording.files[file], problem, "give the whole console log of the run"));
    };
    training.entries.retain(|entry| {
        let ours = entry.rank == rank;
        if !ours {
            recording.skip(file, entry.line, "told by another rank, too");
        }
        ours
    });
    let only = |key: Key| -> Result<Option<(usize, &Entry)>, ImportError> {
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
    let start = only(Key::RunStart)?.map(|(_, entry)| entry.time).unwrap_or_default();
    let stop = only(Key::RunStop)?.map(|(_, entry)| entry.time);
    if stop.is_none() {
        recording
            .notes
            .push(format!("{} has no run_stop: the run did not finish, or the log is truncated", recording.files[file]));
    }
    let counting = counting(&training);
    if counting == Counting::Unknown {
        recording.notes.push("the training log does not say how many samples were processed".to_owned());
    }
    let epochs = training.entries.iter().filter(|entry| entry.key == Key::EpochStart).count();
    let blocks = training.entries.iter().any(|entry| entry.key == Key::BlockStart);
    let level = if epochs > 1 || !blocks { Level::Epochs } else { Level::Blocks };

    let mut newest = EventTime::MIN;
    for entry in &training.entries {
        recording.out_of_order += u64::from(entry.time < newest);
        newest = newest.max(entry.time);
    }
    training.entries.sort_by_key(|entry| entry.time);

    let source = recording.add_source(file, None, SourceKind::Job { rank: rank.unwrap_or(0), irregular: true });
    let mut teller = Teller {
        counting,
        level,
        trains_in_blocks: blocks,
        known: None,
        epochs_done: 0.0,
        epoch_open: false,
        block_open: false,
        blocks: 0,
        evaluations: 0,
    };
    let mut told = BTreeSet::new();
    for entry in &training.entries {
        if entry.time < start || stop.is_some_and(|stop| entry.time > stop) {
            // The number of samples of an epoch may be told before the run.
            if entry.key != Key::TrainSamples {
                recording.skip(file, entry.line, "outside the run");
            }
            continue;
        }
        let (mut values, mark) = teller.tell(entry);
        if entry.key == Key::RunStart
            && let Some(batch) = training.global_batch_size
        {
            values.push((Field::GlobalBatchSize, batch));
        }
        if values.is_empty() && mark.is_none() {
            recording.skip(file, entry.line, "log entry about neither progress nor power");
        }
        told.extend(values.iter().map(|(field, _)| *field));
        recording.push(source, entry.time, entry.line, &values, mark);
    }
    if counting != Counting::Unknown && !told.contains(&Field::SamplesTotal) {
        recording.notes.push("no count of samples lies inside the run".to_owned());
    }
    Ok(())
}

/// Walks through the entries of one run in time order.
struct Teller {
    counting: Counting,
    level: Level,
    /// The log has training blocks: nothing is processed outside them.
    trains_in_blocks: bool,
    /// The last count that an entry gave.
    known: Option<f64>,
    epochs_done: f64,
    epoch_open: bool,
    block_open: bool,
    blocks: u32,
    evaluations: u32,
}

impl Teller {
    fn tell(&mut self, entry: &Entry) -> (Vec<(Field, f64)>, Option<Mark>) {
        let training = if self.trains_in_blocks { self.block_open } else { self.epoch_open };
        match entry.key {
            Key::EpochStart => self.epoch_open = true,
            Key::EpochStop => {
                self.epoch_open = false;
                self.epochs_done += 1.0;
            }
            Key::BlockStart => self.block_open = true,
            Key::BlockStop => self.block_open = false,
            _ => {}
        }
        let mut values = Vec::new();
        // While nothing is trained the count stays what it was.
        let samples = self.samples(entry).or(self.known.filter(|_| !training));
        self.known = samples.or(self.known);
        if let Some(samples) = samples {
            values.push((Field::SamplesTotal, samples));
        }
        if matches!(self.counting, Counting::Epochs(_)) && entry.key == Key::EpochStop {
            values.push((Field::Epoch, self.epochs_done));
        }
        let span = self.span(entry);
        let phase = match entry.key {
            Key::RunStart => Phase::Started,
            Key::RunStop => Phase::Finished,
            _ => Phase::Progress,
        };
        let mark = (phase != Phase::Progress || span.is_some()).then_some(Mark { phase, span });
        (values, mark)
    }

    /// The count of samples at this entry, where the log knows it.
    fn samples(&self, entry: &Entry) -> Option<f64> {
        if entry.key == Key::RunStart {
            return (self.counting != Counting::Unknown).then_some(0.0);
        }
        match self.counting {
            Counting::SamplesCount => entry.samples_count,
            Counting::EpochNum if entry.key == Key::TrainSamples => entry.value,
            Counting::EpochNum => entry.epoch_num,
            // Inside an epoch only its end is known.
            Counting::Epochs(samples) => (!self.epoch_open || entry.key == Key::EpochStart).then_some(self.epochs_done * samples),
            Counting::Unknown => None,
        }
    }

    fn span(&mut self, entry: &Entry) -> Option<String> {
        let none = || Some(String::new());
        let span_open = match self.level {
            Level::Epochs => self.epoch_open,
            Level::Blocks => self.block_open,
        };
        match (entry.key, self.level) {
            (Key::EpochStart, Level::Epochs) => {
                let number = entry.epoch_num.filter(|number| number.fract() == 0.0).unwrap_or(self.epochs_done + 1.0);
                Some(format!("epoch {number}"))
            }
            (Key::BlockStart, Level::Blocks) => {
                self.blocks += 1;
                Some(format!("block {}", self.blocks))
            }
            (Key::EpochStop, Level::Epochs) | (Key::BlockStop, Level::Blocks) | (Key::RunStop, _) => none(),
            (Key::EvalStart, _) => {
                self.evaluations += 1;
                (!span_open).then(|| format!("evaluation {}", self.evaluations))
            }
            (Key::EvalStop, _) if !span_open => none(),
            _ => None,
        }
    }
}
