//! Events of the sources, second by second, and their required outputs.
//!
//! Times are event times: windows depend on them alone (`max_future` is off in these runs), so that the expected outputs do not
//! depend on the times of the run. The model of windows and decisions below knows nothing of the code under test: counters are
//! taken as lines between samples, cut at the windows' edges, and the matrix is the table of the paper.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use eadt_bus::{ProducerRecord, RecordHeader, partition_for_key};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{ControllerAction, CounterScope, GpuTelemetry, Layout, TrainingProgress, Workload};
use eadt_schemas::{EventTime, EventType, Topic};

use crate::chance::Chance;

/// Begin of the first window, unless a story sets another one.
pub const BASE_SECONDS: i64 = 1_700_000_040;
/// Length of a window.
pub const WINDOW_SECONDS: i64 = 10;

/// One event and where it goes.
#[derive(Debug, Clone)]
pub struct StoryEvent {
    pub topic: Topic,
    pub key: String,
    pub value: Vec<u8>,
    pub kind: EventType,
    pub time: EventTime,
}

impl StoryEvent {
    pub fn partition(&self, partitions: i32) -> i32 {
        partition_for_key(self.key.as_bytes(), partitions)
    }

    pub fn outgoing(&self, prefix: &str) -> ProducerRecord {
        let headers: Vec<RecordHeader> = vec![
            (header::SPEC_VERSION.into(), Bytes::from_static(b"1.0")),
            (header::TYPE.into(), Bytes::from_static(self.kind.name().as_bytes())),
        ];
        ProducerRecord {
            topic: format!("{prefix}{}", self.topic).into(),
            partition: None,
            key: Some(self.key.clone().into()),
            value: Some(self.value.clone().into()),
            headers,
        }
    }
}

/// The required content of a window, and the matrix controller's answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    pub workload: String,
    /// Seconds since the epoch.
    pub start: i64,
    pub energy_joules: f64,
    pub samples: f64,
    pub action: ControllerAction,
    /// Its clocks fell back for a moment: windows may count what is of no use.
    pub fell_back: bool,
}

/// A counter as it was reported: seconds since the base, and the total then.
type Line = Vec<(f64, f64)>;

/// Reporter of a workload's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reporter {
    Gpu(usize),
    /// The job's progress as a whole.
    Job,
    /// One rank's progress, if each reports its own.
    Rank(u32),
}

#[derive(Debug, Clone)]
struct Source {
    workload: usize,
    reporter: Reporter,
    /// Its samples come this long after the full second.
    phase: f64,
    /// How far its clock is ahead.
    skew: f64,
    rate: f64,
    line: Line,
}

#[derive(Debug, Clone)]
pub struct Story {
    chance: Chance,
    base_seconds: i64,
    /// Workloads of which nothing is taken in, because their clocks are impossible.
    impossible: Vec<usize>,
    /// Samples sent with a clock that had fallen back for a moment, by workload.
    pub fallen_back: BTreeMap<usize, u64>,
    sources: Vec<Source>,
    workloads: Range<usize>,
    /// Requirements of another story that was played beside this one.
    beside: Vec<Expected>,
    second: i64,
    ended: bool,
    /// Everything sent so far.
    pub events: Vec<StoryEvent>,
}

const GPUS: usize = 2;
/// From here on a clock is impossible, in seconds: the processor's `max_future_seconds`.
pub const MOST_SKEW: f64 = 60.0;

impl Story {
    pub fn new(seed: u64, workloads: usize) -> Self {
        Self::with_clocks(seed, 0..workloads, BASE_SECONDS, |_| 0, |_, _| 0.0)
    }

    /// Of these workloads, from another begin, a multiple of a window, on; `ranks`: how many of a workload report their own progress, 0:
    /// the job reports it; `skew`: how many seconds a reporter's clock is ahead. A clock that is [`MOST_SKEW`] ahead is impossible.
    pub fn with_clocks(
        seed: u64,
        workloads: Range<usize>,
        base_seconds: i64,
        ranks: impl Fn(usize) -> u32,
        skew: impl Fn(usize, Reporter) -> f64,
    ) -> Self {
        let mut chance = Chance::new(seed);
        let mut sources = Vec::new();
        for workload in workloads.clone() {
            let job = (ranks(workload) == 0).then_some(Reporter::Job);
            for reporter in (0..GPUS).map(Reporter::Gpu).chain(job).chain((0..ranks(workload)).map(Reporter::Rank)) {
                // Milliseconds, so that times are exact on the wire.
                let phase = (50 + chance.below(850)) as f64 / 1000.0;
                let skew = skew(workload, reporter);
                sources.push(Source { workload, reporter, phase, skew, rate: 0.0, line: Vec::new() });
            }
        }
        // In a second, events come in this order.
        sources.sort_by(|a, b| a.phase.total_cmp(&b.phase));
        let impossible = |workload: &usize| sources.iter().any(|source| source.workload == *workload && source.skew >= MOST_SKEW);
        let impossible = workloads.clone().filter(impossible).collect();
        let (events, fallen_back, beside) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut story =
            Self { chance, base_seconds, impossible, fallen_back, sources, workloads, beside, second: 0, ended: false, events };
        story.layouts();
        story
    }

    /// Of two partitions, one has the even workloads and the other one the odd.
    pub fn name(workload: usize) -> String {
        let names = (0..).map(|number| format!("chaos/job-{workload}-{number}"));
        let mut fitting = names.filter(|name| partition_for_key(name.as_bytes(), 2) == (workload % 2) as i32);
        fitting.next().expect("some name falls into either partition")
    }

    fn layouts(&mut self) {
        for workload in self.workloads.clone() {
            // If all clocks of a workload are wrong, the one of who declares it is too.
            let skews = self.sources.iter().filter(|source| source.workload == workload).map(|source| source.skew);
            let skew = skews.reduce(f64::max).filter(|skew| *skew < 0.0).unwrap_or(0.0);
            let time = self.at(skew);
            let settings = serde_json::json!({"literal_interval_seconds": 0.0});
            let event = Workload {
                time,
                workload: Self::name(workload),
                generation: 1,
                layout: Layout { replicas: Some(4), mps_thread_percentage: Some(50), ..Layout::default() },
                controller: Some("matrix-literal".into()),
                controller_settings: settings.as_object().cloned(),
                gpus: Some(GPUS as u32),
                ..Workload::default()
            };
            self.push_event(Topic::Workloads, Self::name(workload), &event, time);
        }
    }

    fn push_event(&mut self, topic: Topic, key: String, event: &impl serde::Serialize, time: EventTime) {
        let value = serde_json::to_vec(event).expect("events have string keys");
        self.events.push(StoryEvent { topic, key, value, kind: topic.event_type(), time });
    }

    fn at(&self, seconds: f64) -> EventTime {
        EventTime::from_micros(self.base_seconds * 1_000_000).plus_micros((seconds * 1e6).round() as i64)
    }

    /// The next second; returns how many events were before it.
    pub fn tick(&mut self) -> usize {
        self.tick_with(None)
    }

    /// The same; the clocks of one workload have fallen back by so many seconds. What they send is of no use.
    pub fn tick_with(&mut self, fallen: Option<(usize, f64)>) -> usize {
        let before = self.events.len();
        let last = self.ended;
        for i in 0..self.sources.len() {
            let turn = self.second % WINDOW_SECONDS == 0;
            let Self { chance, sources, second, .. } = self;
            let source = &mut sources[i];
            if turn {
                source.rate = match source.reporter {
                    Reporter::Gpu(_) => chance.between(60.0, 220.0).round(),
                    Reporter::Job => chance.between(5.0, 70.0).round(),
                    Reporter::Rank(_) => chance.between(2.0, 35.0).round(),
                };
            }
            let now = *second as f64 + source.phase + source.skew;
            let total = source.line.last().map_or(1000.0, |(then, total)| total + source.rate * (now - then));
            let total = (total * 1000.0).round() / 1000.0;
            let back = fallen.filter(|(workload, _)| *workload == source.workload).map(|(_, seconds)| seconds);
            if back.is_some() {
                *self.fallen_back.entry(source.workload).or_default() += 1;
            } else {
                source.line.push((now, total));
            }
            let (workload, reporter) = (Self::name(source.workload), source.reporter);
            let now = now - back.unwrap_or(0.0);
            if let Reporter::Gpu(device) = reporter {
                let event = GpuTelemetry {
                    time: self.at(now),
                    workload: Some(workload.clone()),
                    device: format!("GPU-{workload}-{device}"),
                    collector: "nvml/chaos".into(),
                    energy_joules_total: Some(total),
                    last,
                    ..GpuTelemetry::default()
                };
                self.push_event(Topic::GpuTelemetry, workload, &event, self.at(now));
            } else {
                let event = TrainingProgress {
                    time: self.at(now),
                    workload: workload.clone(),
                    rank: if let Reporter::Rank(rank) = reporter { rank } else { 0 },
                    scope: if reporter == Reporter::Job { CounterScope::Global } else { CounterScope::Rank },
                    collector: "http/chaos".into(),
                    samples_total: Some(total),
                    last,
                    ..TrainingProgress::default()
                };
                self.push_event(Topic::TrainingProgress, workload, &event, self.at(now));
            }
        }
        self.second += 1;
        before
    }

    /// A last second, in which every source ends; returns how many events were before it.
    pub fn end(&mut self) -> usize {
        self.ended = true;
        self.tick()
    }

    /// Takes in another story, of other workloads, that has ended.
    pub fn add(&mut self, other: Self) {
        self.beside.extend(other.expected());
        self.events.extend(other.events);
    }

    /// Returns the required outputs once all sources have ended.
    pub fn expected(&self) -> Vec<Expected> {
        let mut expected = self.beside.clone();
        for workload in self.workloads.clone().filter(|workload| !self.impossible.contains(workload)) {
            let lines = |gpus: bool| -> Vec<&Line> {
                let of = self
                    .sources
                    .iter()
                    .filter(|source| source.workload == workload && matches!(source.reporter, Reporter::Gpu(_)) == gpus);
                of.map(|source| &source.line).collect()
            };
            let (energy, progress) = (lines(true), lines(false));
            let ends = energy.iter().chain(&progress).filter_map(|line| Some((line.first()?.0, line.last()?.0)));
            let (oldest, newest) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), (c, d)| (a.min(c), b.max(d)));
            let first = (oldest / WINDOW_SECONDS as f64).floor() as i64;
            for start in (first..).map(|n| n * WINDOW_SECONDS).take_while(|start| (*start as f64) <= newest) {
                let (from, to) = (start as f64, (start + WINDOW_SECONDS) as f64);
                let sum = |lines: &[&Line]| {
                    lines.iter().map(|line| cut(line, from, to)).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1))
                };
                let ((joules, device_seconds), (samples, seconds)) = (sum(&energy), sum(&progress));
                // A GPU that is there counts for the whole window, or to its end if others stay for longer.
                let last = |line: &Line| line.last().map_or(f64::NEG_INFINITY, |(time, _)| *time);
                let some_stay = energy.iter().any(|line| last(line) >= to);
                let there = energy.iter().filter(|line| line.first().is_some_and(|(time, _)| *time < to) && last(line) >= from);
                let (mut due, mut filled) = (0.0, 0.0);
                for line in there {
                    let own = if some_stay { last(line).min(to) - from } else { to - from };
                    let (joules, time) = cut(line, from, to);
                    due += own;
                    filled += joules * own / time.max(1e-9);
                }
                let watts = filled / (to - from);
                // Each rank that is there is to report on the whole window.
                let ranks = progress.iter().filter(|line| line.first().is_some_and(|(time, _)| *time < to) && last(line) >= from);
                let ranks = ranks.count() as f64;
                // Times are sums of fractions of seconds here, and whole microseconds in the fold.
                let covers = |seconds: f64, of: f64| seconds / of >= 0.9 - 1e-9;
                let known = covers(device_seconds, due) && covers(seconds, ranks * (to - from));
                let action = if known { table(watts, ranks * samples / seconds / watts) } else { ControllerAction::Maintain };
                expected.push(Expected {
                    workload: Self::name(workload),
                    start: self.base_seconds + start,
                    energy_joules: joules,
                    samples,
                    action,
                    fell_back: self.fallen_back.contains_key(&workload),
                });
            }
        }
        expected
    }

    /// Events of workloads whose clocks are impossible.
    pub fn impossible(&self) -> u64 {
        let names: Vec<_> = self.impossible.iter().map(|workload| Self::name(*workload)).collect();
        let of = |event: &&StoryEvent| event.topic != Topic::Workloads && names.contains(&event.key);
        self.events.iter().filter(of).count() as u64
    }
}

/// Seconds of a story from [`BASE_SECONDS`] on.
pub fn at(seconds: f64) -> EventTime {
    EventTime::from_micros(BASE_SECONDS * 1_000_000).plus_micros((seconds * 1e6).round() as i64)
}

/// How much a counter rose between two times, and for how long of that it is known.
fn cut(line: &[(f64, f64)], from: f64, to: f64) -> (f64, f64) {
    let parts = line.windows(2).map(|pair| {
        let ((t0, v0), (t1, v1)) = (pair[0], pair[1]);
        let (a, b) = (t0.max(from), t1.min(to));
        if b <= a { (0.0, 0.0) } else { ((v1 - v0) * (b - a) / (t1 - t0), b - a) }
    });
    parts.fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
}

/// The paper's table, with its thresholds.
fn table(watts: f64, efficiency: f64) -> ControllerAction {
    if watts > 250.0 && efficiency < 0.1 {
        ControllerAction::Decrease
    } else if watts > 250.0 && efficiency > 0.1 {
        ControllerAction::ScaleReplicas
    } else if watts < 200.0 && efficiency < 0.2 {
        ControllerAction::Increase
    } else {
        ControllerAction::Maintain
    }
}
