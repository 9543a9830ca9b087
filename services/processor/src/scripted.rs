//! A bus of which a test lays down every word: what the log holds, what a member is told poll by poll, and which calls fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use eadt_bus::simulation::batch_runs;
use eadt_bus::{
    Bus, BusError, Header, Headers, Isolation, Member, MemberOptions, Outgoing, Polled, Producer, ProducerCounts, Reader, Record,
    Remedy, Result, Start, Step, TopicPartition, TopicSpec, Watermarks,
};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{GpuTelemetry, Phase, TrainingProgress};
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_service::{Health, Metrics, Shutdown};

use crate::{HeartbeatClock, ProcessorService, ProcessorSettings};

/// Partitions of every topic, but where a test says otherwise.
pub const PARTITIONS: i32 = 2;
/// A member that is asked more often than this after its script has ended is told so.
const PATIENCE: usize = 20;

/// What the next poll of a member does.
pub enum Turn {
    Say(Vec<Polled>),
    Fail(Remedy),
    /// Looks how things stand, or changes them; nothing is said.
    Do(Box<dyn FnOnce() + Send>),
}

impl Turn {
    pub fn look(look: impl FnOnce() + Send + 'static) -> Self {
        Self::Do(Box::new(look))
    }
}

#[derive(Default)]
pub struct Script {
    pub log: BTreeMap<TopicPartition, Vec<Record>>,
    /// Where partitions begin of which retention has deleted something.
    pub lows: BTreeMap<TopicPartition, i64>,
    pub partitions: BTreeMap<Topic, i32>,
    pub committed: BTreeMap<TopicPartition, i64>,
    pub turns: VecDeque<Turn>,
    /// How the next polls of a reader fail.
    pub reads: VecDeque<Remedy>,
    /// How the next commits fail, none of which takes place.
    pub commits: VecDeque<Remedy>,
    /// How the next records of a producer fail.
    pub sends: VecDeque<Remedy>,
    pub steps: Vec<Step>,
    pub sent: Vec<Outgoing>,
    pub started: Vec<(TopicPartition, i64)>,
    /// `pause` and `resume`, in order.
    pub paused: Vec<(&'static str, TopicPartition)>,
    /// The log keeps no batches.
    pub is_unbatched: bool,
    /// The member takes batches.
    pub accepts_batches: bool,
    /// Attempts to commit.
    pub attempts: usize,
    beyond: usize,
}

#[derive(Clone, Default)]
pub struct Scripted {
    script: Arc<Mutex<Script>>,
    /// Microseconds.
    pub now: Arc<AtomicI64>,
    /// Cancelled where the script ends.
    pub shutdown: Shutdown,
    pub metrics: Metrics,
    pub health: Health,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

pub fn place(topic: Topic, number: i32) -> TopicPartition {
    TopicPartition::new(format!("eadt.{topic}"), number)
}

pub fn seconds(seconds: i64) -> EventTime {
    EventTime::from_micros(seconds * 1_000_000)
}

pub fn gpu(workload: &str, device: &str, at: i64) -> Vec<u8> {
    let event = GpuTelemetry {
        time: seconds(at),
        workload: Some(workload.to_owned()),
        device: device.to_owned(),
        collector: "nvml/n".to_owned(),
        energy_joules_total: Some(at as f64 * 100.0),
        ..GpuTelemetry::default()
    };
    serde_json::to_vec(&event).unwrap()
}

pub fn rank(workload: &str, at: i64) -> Vec<u8> {
    let event = TrainingProgress {
        time: seconds(at),
        workload: workload.to_owned(),
        collector: "http/n".to_owned(),
        samples_total: Some(at as f64 * 3.0),
        phase: if at == 0 { Phase::Started } else { Phase::Progress },
        ..TrainingProgress::default()
    };
    serde_json::to_vec(&event).unwrap()
}

impl Scripted {
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn turns(&self, turns: impl IntoIterator<Item = Turn>) {
        self.script().turns.extend(turns);
    }

    /// Appends a record with these headers; `None` is a tombstone.
    pub fn append(
        &self,
        topic: Topic,
        number: i32,
        at: i64,
        key: &str,
        value: Option<&[u8]>,
        headers: &[(&str, &str)],
    ) -> Record {
        let place = place(topic, number);
        let mut script = self.script();
        let low = script.lows.get(&place).copied().unwrap_or(0);
        let log = script.log.entry(place.clone()).or_default();
        let headers: Vec<Header> =
            headers.iter().map(|(name, value)| (Arc::from(*name), Bytes::copy_from_slice(value.as_bytes()))).collect();
        let record = Record {
            at: place,
            offset: low + log.len() as i64,
            stamp: seconds(at),
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value: value.map(Bytes::copy_from_slice),
            headers: Headers::from(headers),
        };
        log.push(record.clone());
        record
    }

    pub fn put(&self, topic: Topic, number: i32, at: i64, key: &str, value: impl AsRef<[u8]>) -> Record {
        self.append(topic, number, at, key, Some(value.as_ref()), &[])
    }

    pub fn heartbeat(&self, number: i32, at: i64) -> Record {
        self.append(Topic::GpuTelemetry, number, at, "", Some(b"{}"), &[(header::TYPE, EventType::Heartbeat.name())])
    }

    /// That these partitions of all inputs are this member's now.
    pub fn assigned(numbers: &[i32]) -> Polled {
        Polled::Assigned(inputs(numbers))
    }

    /// That all inputs of these partitions end where the log does.
    pub fn ends(&self, numbers: &[i32]) -> Vec<Polled> {
        let end = |at: TopicPartition| Polled::End { position: self.high(&at), at };
        inputs(numbers).into_iter().map(end).collect()
    }

    fn high(&self, at: &TopicPartition) -> i64 {
        let script = self.script();
        script.lows.get(at).copied().unwrap_or(0) + script.log.get(at).map_or(0, Vec::len) as i64
    }

    pub fn service(&self, settings: &ProcessorSettings) -> ProcessorService {
        let now = self.now.clone();
        ProcessorService {
            settings: settings.clone(),
            bus: Arc::new(self.clone()),
            clock: HeartbeatClock::new(move || EventTime::from_micros(now.load(Ordering::SeqCst))),
            shutdown: self.shutdown.clone(),
            metrics: self.metrics.clone(),
            ready: self.health.part("stage"),
        }
    }

    /// What a metric's series says, by its whole name; `None`: it is not there.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let text = self.metrics.text();
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        text.lines().find_map(value)
    }
}

pub fn inputs(numbers: &[i32]) -> Vec<TopicPartition> {
    numbers.iter().flat_map(|number| Topic::PROCESSOR_INPUTS.map(|topic| place(topic, *number))).collect()
}

pub fn on_purpose(remedy: Remedy) -> BusError {
    BusError::new(remedy, "calling", "failed on purpose")
}

impl Bus for Scripted {
    fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>> {
        let script = self.script();
        let spec = |topic| TopicSpec {
            name: format!("{prefix}{topic}").into(),
            partitions: script.partitions.get(&topic).copied().unwrap_or(PARTITIONS),
            replication: 1,
            settings: BTreeMap::new(),
        };
        Ok(Topic::ALL.into_iter().map(spec).filter(|spec| spec.partitions > 0).collect())
    }
    fn create_topic(&self, _: &TopicSpec) -> Result<()> {
        Err(on_purpose(Remedy::Stop))
    }
    fn alter_topic(&self, _: &str, _: &BTreeMap<String, String>) -> Result<()> {
        Err(on_purpose(Remedy::Stop))
    }
    fn add_partitions(&self, _: &str, _: i32) -> Result<()> {
        Err(on_purpose(Remedy::Stop))
    }
    fn watermarks(&self, at: &TopicPartition) -> Result<Watermarks> {
        let low = self.script().lows.get(at).copied().unwrap_or(0);
        Ok(Watermarks { low, high: self.high(at) })
    }
    fn producer(&self, _: &str) -> Result<Box<dyn Producer>> {
        Ok(Box::new(self.clone()))
    }
    fn reader(&self, from: &[(TopicPartition, Start)], _: Isolation) -> Result<Box<dyn Reader>> {
        let first = |start: &Start| if let Start::At(offset) = start { *offset } else { 0 };
        let next = from.iter().map(|(at, start)| (at.clone(), first(start))).collect();
        Ok(Box::new(Reading { bus: self.clone(), next, ended: BTreeSet::new() }))
    }
    fn member(&self, _: MemberOptions) -> Result<Box<dyn Member>> {
        Ok(Box::new(self.clone()))
    }
    fn committed(&self, _: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        let script = self.script();
        Ok(of.iter().map(|at| script.committed.get(at).copied()).collect())
    }
}

impl Producer for Scripted {
    fn send(&mut self, record: Outgoing) -> Result<()> {
        let mut script = self.script();
        if let Some(remedy) = script.sends.pop_front() {
            return Err(on_purpose(remedy));
        }
        script.sent.push(record);
        Ok(())
    }
    fn counts(&self) -> ProducerCounts {
        ProducerCounts::default()
    }
    fn flush(&mut self, _: Duration) -> Result<bool> {
        Ok(true)
    }
}

/// A member.
impl Reader for Scripted {
    fn poll(&mut self, _: usize, _: Duration, into: &mut Vec<Polled>) -> Result<()> {
        let turn = self.script().turns.pop_front();
        match turn {
            Some(Turn::Say(said)) => {
                let before = into.len();
                into.extend(said);
                let script = self.script();
                if script.accepts_batches && !script.is_unbatched {
                    batch_runs(into, before);
                }
            }
            Some(Turn::Fail(remedy)) => return Err(on_purpose(remedy)),
            Some(Turn::Do(look)) => look(),
            None => {
                self.shutdown.cancel();
                let mut script = self.script();
                script.beyond += 1;
                if script.beyond > PATIENCE {
                    return Err(BusError::new(Remedy::Stop, "polling", "the script has ended"));
                }
            }
        }
        Ok(())
    }
    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.script().paused.extend(at.iter().map(|at| ("pause", at.clone())));
        Ok(())
    }
    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.script().paused.extend(at.iter().map(|at| ("resume", at.clone())));
        Ok(())
    }
    fn accept_batches(&mut self) {
        self.script().accepts_batches = true;
    }
}

impl Member for Scripted {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        self.script().started.push((at.clone(), offset));
        Ok(())
    }
    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        Bus::committed(self, "", of)
    }
    fn commit(&mut self, step: &Step) -> Result<()> {
        let mut script = self.script();
        script.attempts += 1;
        if let Some(remedy) = script.commits.pop_front() {
            return Err(on_purpose(remedy));
        }
        script.committed.extend(step.positions.iter().cloned());
        script.steps.push(step.clone());
        Ok(())
    }
}

#[derive(Debug)]
struct Reading {
    bus: Scripted,
    next: BTreeMap<TopicPartition, i64>,
    ended: BTreeSet<TopicPartition>,
}

impl Reader for Reading {
    fn poll(&mut self, max: usize, _: Duration, into: &mut Vec<Polled>) -> Result<()> {
        let script = self.bus.script().reads.pop_front();
        if let Some(remedy) = script {
            return Err(on_purpose(remedy));
        }
        for (at, next) in &mut self.next {
            let script = self.bus.script();
            let new: Vec<Record> =
                script.log.get(at).into_iter().flatten().filter(|r| r.offset >= *next).take(max).cloned().collect();
            drop(script);
            if let Some(last) = new.last() {
                *next = last.offset + 1;
                into.extend(new.into_iter().map(Polled::Record));
                self.ended.remove(at);
            }
            if *next >= self.bus.high(at) && self.ended.insert(at.clone()) {
                into.push(Polled::End { at: at.clone(), position: *next });
            }
        }
        Ok(())
    }
    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.bus.pause(at)
    }
    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.bus.resume(at)
    }
}
