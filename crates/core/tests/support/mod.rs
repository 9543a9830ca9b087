//! A partition under test: events by seconds, outputs by kind.
#![allow(dead_code)]

use std::path::PathBuf;

use eadt_core::settings::SECOND;
use eadt_core::{FoldOutput, FoldSettings, InputEvent, InputRecord, PartitionFold, StateRecord};
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::{
    DeadLetterReason, Decision, EfficiencyWindow, GpuTelemetry, JobLifecycle, Model, TrainingProgress, WindowKind, Workload,
};
use eadt_schemas::{EventTime, Topic};

pub const JOB: &str = "team/job";
/// Event times lie here: a time of 0 counts as missing.
pub const BASE: i64 = 1_700_000_040;

pub fn at(seconds: f64) -> EventTime {
    EventTime::from_micros(BASE * SECOND).plus_seconds(seconds)
}

pub fn gpu(device: &str, seconds: f64, joules: f64) -> GpuTelemetry {
    GpuTelemetry {
        time: at(seconds),
        workload: Some(JOB.to_owned()),
        device: device.to_owned(),
        collector: "nvml/node-1".to_owned(),
        energy_joules_total: Some(joules),
        ..GpuTelemetry::default()
    }
}

pub fn power(device: &str, seconds: f64, watts: f64) -> GpuTelemetry {
    GpuTelemetry { energy_joules_total: None, power_watts: Some(watts), ..gpu(device, seconds, 0.0) }
}

pub fn rank(rank: u32, seconds: f64, samples: f64) -> TrainingProgress {
    TrainingProgress {
        time: at(seconds),
        workload: JOB.to_owned(),
        rank,
        collector: "http/node-1".to_owned(),
        samples_total: Some(samples),
        ..TrainingProgress::default()
    }
}

pub fn phase(seconds: f64, samples: f64, phase: JobLifecycle) -> TrainingProgress {
    TrainingProgress { phase, ..rank(0, seconds, samples) }
}

pub fn layout(seconds: f64, generation: u64) -> Workload {
    Workload { time: at(seconds), workload: JOB.to_owned(), generation, ..Workload::default() }
}

/// An owned record.
#[derive(Debug, Clone)]
pub enum Item {
    Gpu(GpuTelemetry),
    Rank(TrainingProgress),
    Layout(Workload),
    Learned(Model),
    Heartbeat,
    Gone,
}

impl Item {
    pub fn event(&self) -> InputEvent<'_> {
        match self {
            Self::Gpu(event) => InputEvent::Telemetry(event),
            Self::Rank(event) => InputEvent::Progress(event),
            Self::Layout(event) => InputEvent::Workload(event),
            Self::Learned(event) => InputEvent::Model(event),
            Self::Heartbeat => InputEvent::Heartbeat,
            Self::Gone => InputEvent::WorkloadGone,
        }
    }

    pub fn topic(&self) -> Topic {
        match self {
            Self::Gpu(_) | Self::Heartbeat => Topic::GpuTelemetry,
            Self::Rank(_) => Topic::TrainingProgress,
            Self::Layout(_) | Self::Gone => Topic::Workloads,
            Self::Learned(_) => Topic::Models,
        }
    }
}

impl From<GpuTelemetry> for Item {
    fn from(event: GpuTelemetry) -> Self {
        Self::Gpu(event)
    }
}

impl From<TrainingProgress> for Item {
    fn from(event: TrainingProgress) -> Self {
        Self::Rank(event)
    }
}

impl From<Model> for Item {
    fn from(event: Model) -> Self {
        Self::Learned(event)
    }
}

impl From<Workload> for Item {
    fn from(event: Workload) -> Self {
        Self::Layout(event)
    }
}

#[derive(Debug)]
pub struct Bench {
    pub partition: PartitionFold,
    pub windows: Vec<EfficiencyWindow>,
    pub spans: Vec<EfficiencyWindow>,
    pub decisions: Vec<Decision>,
    pub refused: Vec<DecodeError>,
}

impl Default for Bench {
    fn default() -> Self {
        Self::new(FoldSettings::default())
    }
}

impl Bench {
    pub fn new(settings: FoldSettings) -> Self {
        Self {
            partition: PartitionFold::new(settings),
            windows: Vec::new(),
            spans: Vec::new(),
            decisions: Vec::new(),
            refused: Vec::new(),
        }
    }

    /// Folds one record with a stamp at this second.
    pub fn stamped(&mut self, stamp: f64, item: impl Into<Item>) -> &mut Self {
        self.fold(stamp, &item.into(), false)
    }

    /// Folds one record whose stamp is its event time, and which its producer sent again.
    pub fn put_again(&mut self, item: impl Into<Item>) -> &mut Self {
        let item = item.into();
        let stamp = item.event().time().expect("an event with a time").seconds_since(at(0.0));
        self.fold(stamp, &item, true)
    }

    fn fold(&mut self, stamp: f64, item: &Item, is_sent_again: bool) -> &mut Self {
        let mut out = Vec::new();
        let input = InputRecord { topic: item.topic(), stamp: at(stamp), key: None, is_sent_again, event: item.event() };
        self.partition.fold(&input, &mut out);
        self.keep(out);
        self
    }

    /// Folds one record whose stamp is its event time.
    pub fn put(&mut self, item: impl Into<Item>) -> &mut Self {
        let item = item.into();
        let stamp = item.event().time().expect("an event with a time").seconds_since(at(0.0));
        self.stamped(stamp, item)
    }

    pub fn heartbeat(&mut self, stamp: f64) -> &mut Self {
        self.stamped(stamp, Item::Heartbeat)
    }

    pub fn finish(&mut self) -> &mut Self {
        let mut out = Vec::new();
        self.partition.finish(&mut out);
        self.keep(out);
        self
    }

    pub fn keep(&mut self, out: Vec<FoldOutput>) {
        for output in out {
            match output {
                FoldOutput::Window(window) if window.kind == WindowKind::Span => self.spans.push(*window),
                FoldOutput::Window(window) => self.windows.push(*window),
                FoldOutput::Decision(decision) => self.decisions.push(*decision),
                FoldOutput::Refused(refusal) => self.refused.push(refusal),
            }
        }
    }

    /// Starts, in second, and energy of the closed windows.
    pub fn energies(&self) -> Vec<(f64, Option<f64>)> {
        self.windows.iter().map(|w| (w.window_start.seconds_since(at(0.0)), w.energy_joules.map(round))).collect()
    }

    pub fn starts(&self) -> Vec<f64> {
        self.windows.iter().map(|w| w.window_start.seconds_since(at(0.0))).collect()
    }

    pub fn reasons(&self) -> Vec<DeadLetterReason> {
        self.refused.iter().map(|refusal| refusal.reason).collect()
    }

    /// Commits, crashes, and starts again from what was committed.
    pub fn crash(&mut self, committed: &mut Vec<(String, Option<Vec<u8>>)>) {
        committed.extend(self.partition.take_changes().into_iter().map(|record| (record.key, record.value)));
        let settings = self.partition.settings().clone();
        self.partition = PartitionFold::restore(settings, committed.clone()).expect("what was written can be read");
    }
}

/// To a millionth: sums of parts are not exact to the last bit.
pub fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

pub fn last(mut event: GpuTelemetry) -> GpuTelemetry {
    event.last = true;
    event
}

/// State as a restart reads it.
pub type Stored = Vec<(String, Option<Vec<u8>>)>;

/// The sample `tests/state/NAME.jsonl`. With `EADT_WRITE_STATE_SAMPLE` one that is missing is made of `present`; one that is
/// there never changes.
pub fn stored(name: &str, present: impl FnOnce() -> Vec<StateRecord>) -> Stored {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/state/{name}.jsonl"));
    if std::env::var_os("EADT_WRITE_STATE_SAMPLE").is_some() && !file.exists() {
        let hex = |bytes: Vec<u8>| bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let line = |StateRecord { key, value }| {
            serde_json::to_string(&(key, hex(value.expect("nothing is deleted")))).expect("texts") + "\n"
        };
        std::fs::write(&file, present().into_iter().map(line).collect::<String>()).expect("a writable folder");
    }
    let unhex = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("two digits")).collect()
    };
    let line = |line: &str| -> (String, Option<Vec<u8>>) {
        let (key, value): (String, String) = serde_json::from_str(line).expect("key and value");
        (key, Some(unhex(&value)))
    };
    std::fs::read_to_string(file).expect("a sample of each version").lines().map(line).collect()
}
