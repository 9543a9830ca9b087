//! A bus that a test scripts: the records of the log, what a member receives poll by poll, and the calls that fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use eadt_bus::simulation::batch_runs;
use eadt_bus::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, IsolationLevel, MemberOptions, PartitionReader, PollEvent, Producer,
    ProducerCounts, ProducerRecord, RecordHeader, RecordHeaders, Remedy, Result, StartOffset, TopicPartition, TopicSpec,
    WatermarkOffsets,
};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{GpuTelemetry, JobLifecycle, TrainingProgress};
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};

use crate::{HeartbeatClock, ProcessorDependencies, ProcessorSettings};

/// Partitions of every topic, unless a test sets another number.
pub const PARTITIONS: i32 = 2;
/// A member that is polled more often than this after its script has ended returns an error.
const PATIENCE: usize = 20;

/// The effect of the next poll of a member.
pub enum ScriptedPoll {
    Deliver(Vec<PollEvent>),
    Fail(Remedy),
    /// Inspects the state or changes it; the poll returns nothing.
    Do(Box<dyn FnOnce() + Send>),
}

impl ScriptedPoll {
    pub fn look(look: impl FnOnce() + Send + 'static) -> Self {
        Self::Do(Box::new(look))
    }
}

#[derive(Default)]
pub struct Script {
    pub log: BTreeMap<TopicPartition, Vec<ConsumerRecord>>,
    /// Low watermarks of partitions from which retention has deleted records.
    pub lows: BTreeMap<TopicPartition, i64>,
    pub partitions: BTreeMap<Topic, i32>,
    pub committed: BTreeMap<TopicPartition, i64>,
    pub turns: VecDeque<ScriptedPoll>,
    /// Errors of the next polls of a reader.
    pub reads: VecDeque<Remedy>,
    /// Errors of the next commits; none of them takes place.
    pub commits: VecDeque<Remedy>,
    /// Errors of the next records of a producer.
    pub sends: VecDeque<Remedy>,
    /// Number of polls for delivery reports.
    pub delivery_polls: usize,
    /// Faults of the next looks.
    pub delivery_faults: VecDeque<Remedy>,
    pub steps: Vec<CommitStep>,
    pub sent: Vec<ProducerRecord>,
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
pub struct ScriptedBus {
    script: Arc<Mutex<Script>>,
    /// Microseconds.
    pub now: Arc<AtomicI64>,
    /// Cancelled where the script ends.
    pub shutdown: Shutdown,
    pub metrics: MetricsRegistry,
    pub health: HealthRegistry,
}

impl fmt::Debug for ScriptedBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedBus")
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
        phase: if at == 0 { JobLifecycle::Started } else { JobLifecycle::Progress },
        ..TrainingProgress::default()
    };
    serde_json::to_vec(&event).unwrap()
}

impl ScriptedBus {
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn turns(&self, turns: impl IntoIterator<Item = ScriptedPoll>) {
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
    ) -> ConsumerRecord {
        let place = place(topic, number);
        let mut script = self.script();
        let low = script.lows.get(&place).copied().unwrap_or(0);
        let log = script.log.entry(place.clone()).or_default();
        let headers: Vec<RecordHeader> =
            headers.iter().map(|(name, value)| (Arc::from(*name), Bytes::copy_from_slice(value.as_bytes()))).collect();
        let record = ConsumerRecord {
            at: place,
            offset: low + log.len() as i64,
            stamp: seconds(at),
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value: value.map(Bytes::copy_from_slice),
            headers: RecordHeaders::from(headers),
        };
        log.push(record.clone());
        record
    }

    pub fn put(&self, topic: Topic, number: i32, at: i64, key: &str, value: impl AsRef<[u8]>) -> ConsumerRecord {
        self.append(topic, number, at, key, Some(value.as_ref()), &[])
    }

    pub fn heartbeat(&self, number: i32, at: i64) -> ConsumerRecord {
        self.append(Topic::GpuTelemetry, number, at, "", Some(b"{}"), &[(header::TYPE, EventType::Heartbeat.name())])
    }

    /// Returns the event that assigns these partitions of all inputs to this member.
    pub fn assigned(numbers: &[i32]) -> PollEvent {
        PollEvent::Assigned(inputs(numbers))
    }

    /// Returns the end events of all inputs of these partitions.
    pub fn ends(&self, numbers: &[i32]) -> Vec<PollEvent> {
        let end = |at: TopicPartition| PollEvent::End { position: self.high(&at), at };
        inputs(numbers).into_iter().map(end).collect()
    }

    fn high(&self, at: &TopicPartition) -> i64 {
        let script = self.script();
        script.lows.get(at).copied().unwrap_or(0) + script.log.get(at).map_or(0, Vec::len) as i64
    }

    pub fn service(&self, settings: &ProcessorSettings) -> ProcessorDependencies {
        let now = self.now.clone();
        ProcessorDependencies {
            settings: settings.clone(),
            bus: Arc::new(self.clone()),
            clock: HeartbeatClock::new(move || EventTime::from_micros(now.load(Ordering::SeqCst))),
            shutdown: self.shutdown.clone(),
            metrics: self.metrics.clone(),
            ready: self.health.part("stage"),
        }
    }

    /// Returns the value of a metric's series, by its whole name; `None` if it is not there.
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

impl Bus for ScriptedBus {
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
    fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets> {
        let low = self.script().lows.get(at).copied().unwrap_or(0);
        Ok(WatermarkOffsets { low, high: self.high(at) })
    }
    fn producer(&self, _: &str) -> Result<Box<dyn Producer>> {
        Ok(Box::new(self.clone()))
    }
    fn reader(&self, from: &[(TopicPartition, StartOffset)], _: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
        let first = |start: &StartOffset| if let StartOffset::At(offset) = start { *offset } else { 0 };
        let next = from.iter().map(|(at, start)| (at.clone(), first(start))).collect();
        Ok(Box::new(ScriptedReader { bus: self.clone(), next, ended: BTreeSet::new() }))
    }
    fn member(&self, _: MemberOptions) -> Result<Box<dyn GroupMember>> {
        Ok(Box::new(self.clone()))
    }
    fn committed(&self, _: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        let script = self.script();
        Ok(of.iter().map(|at| script.committed.get(at).copied()).collect())
    }
}

impl Producer for ScriptedBus {
    fn send(&mut self, record: ProducerRecord) -> Result<()> {
        let mut script = self.script();
        if let Some(remedy) = script.sends.pop_front() {
            return Err(on_purpose(remedy));
        }
        script.sent.push(record);
        Ok(())
    }
    fn poll_deliveries(&mut self) -> Result<()> {
        let mut script = self.script();
        script.delivery_polls += 1;
        script.delivery_faults.pop_front().map_or(Ok(()), |remedy| Err(on_purpose(remedy)))
    }
    fn counts(&self) -> ProducerCounts {
        ProducerCounts::default()
    }
    fn flush(&mut self, _: Duration) -> Result<bool> {
        Ok(true)
    }
}

/// A member.
impl PartitionReader for ScriptedBus {
    fn poll(&mut self, _: usize, _: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        let turn = self.script().turns.pop_front();
        match turn {
            Some(ScriptedPoll::Deliver(events)) => {
                let before = into.len();
                into.extend(events);
                let script = self.script();
                if script.accepts_batches && !script.is_unbatched {
                    batch_runs(into, before);
                }
            }
            Some(ScriptedPoll::Fail(remedy)) => return Err(on_purpose(remedy)),
            Some(ScriptedPoll::Do(look)) => look(),
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

impl GroupMember for ScriptedBus {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        self.script().started.push((at.clone(), offset));
        Ok(())
    }
    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        Bus::committed(self, "", of)
    }
    fn commit(&mut self, step: &CommitStep) -> Result<()> {
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
struct ScriptedReader {
    bus: ScriptedBus,
    next: BTreeMap<TopicPartition, i64>,
    ended: BTreeSet<TopicPartition>,
}

impl PartitionReader for ScriptedReader {
    fn poll(&mut self, max: usize, _: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        let script = self.bus.script().reads.pop_front();
        if let Some(remedy) = script {
            return Err(on_purpose(remedy));
        }
        for (at, next) in &mut self.next {
            let script = self.bus.script();
            let new: Vec<ConsumerRecord> =
                script.log.get(at).into_iter().flatten().filter(|r| r.offset >= *next).take(max).cloned().collect();
            drop(script);
            if let Some(last) = new.last() {
                *next = last.offset + 1;
                into.extend(new.into_iter().map(PollEvent::Record));
                self.ended.remove(at);
            }
            if *next >= self.bus.high(at) && self.ended.insert(at.clone()) {
                into.push(PollEvent::End { at: at.clone(), position: *next });
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
