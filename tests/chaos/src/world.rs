//! Brokers, topics and processes of one run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::{Bus, IsolationLevel, PollEvent, StartOffset, TopicPartition, WatermarkOffsets, topics};
use eadt_processor::ProcessorSettings;
use eadt_schemas::Topic;
use eadt_tests::Kafka;
use eadt_tests::kafka::fetch_path;
use eadt_tests::ports::free_ports;

use crate::part::{Faults, Part, Service, Task, processor_settings};
use crate::proxy::Proxy;
use crate::row::Outcome;
use crate::story::Story;
use crate::verify::{self, Findings};

pub const PARTITIONS: i32 = 2;
/// How long anything may take that must happen; longer only means that the machine is busy.
pub const LIMIT: Duration = Duration::from_mins(2);

/// Which brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    One,
    /// One, with a proxy in front of what the processes see.
    Proxied,
    /// One that looks every moment for records that are older than their topic keeps them.
    Forgetful,
    /// Three, everything replicated to all, two of them needed to write.
    Three,
}

#[derive(Debug)]
pub struct World {
    pub brokers: Vec<Kafka>,
    pub proxy: Option<Proxy>,
    pub bus: KafkaBus,
    pub prefix: String,
    pub dir: tempfile::TempDir,
    /// The mitigation that is switched off in every process started.
    pub off: Option<&'static str>,
    pub properties: BTreeMap<String, String>,
    /// Every started process plays the next minor version of itself.
    pub next: std::cell::Cell<bool>,
    /// How far the clock of whatever is started is ahead of the machine's, in seconds.
    pub clock_ahead_seconds: std::cell::Cell<i64>,
    started: std::cell::Cell<u32>,
}

impl World {
    pub fn start(cluster: Cluster, off: Option<&'static str>) -> Result<Self> {
        Self::start_with(cluster, off, if cluster == Cluster::Three { 3 } else { 1 })
    }

    /// With another number of copies of every topic.
    pub fn start_with(cluster: Cluster, off: Option<&'static str>, copies: i32) -> Result<Self> {
        let (brokers, proxy) = match cluster {
            Cluster::One => (vec![Kafka::start()?], None),
            Cluster::Forgetful => (vec![Kafka::start_with(&["log.retention.check.interval.ms=300"])?], None),
            Cluster::Three => {
                (Kafka::start_cluster(3, &["broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500"])?, None)
            }
            Cluster::Proxied => {
                let [free] = free_ports()?;
                let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], free)))?;
                let lines = [
                    format!(
                        "listeners=PLAINTEXT://127.0.0.1:@PORT@,PROXIED://127.0.0.1:{free},CONTROLLER://127.0.0.1:@CONTROLLER_PORT@"
                    ),
                    format!("advertised.listeners=PLAINTEXT://127.0.0.1:@PORT@,PROXIED://127.0.0.1:{}", proxy.port()),
                    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT".to_owned(),
                ];
                let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
                (vec![Kafka::start_with(&lines)?], Some(proxy))
            }
        };
        let addresses: Vec<String> = brokers.iter().map(Kafka::brokers).collect();
        let options = KafkaOptions {
            brokers: addresses.join(","),
            properties: BTreeMap::new(),
            client_id: "chaos-harness".into(),
            fetch: fetch_path(),
        };
        let bus = KafkaBus::connect(options)?;
        let prefix = "chaos.".to_owned();
        for topic in topics::desired(&prefix, PARTITIONS, copies) {
            bus.create_topic(&topic)?;
        }
        Ok(Self {
            brokers,
            proxy,
            bus,
            prefix,
            dir: tempfile::tempdir()?,
            off,
            properties: BTreeMap::new(),
            next: std::cell::Cell::new(false),
            clock_ahead_seconds: std::cell::Cell::new(0),
            started: std::cell::Cell::new(0),
        })
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn topic(&self, topic: Topic) -> String {
        format!("{}{topic}", self.prefix)
    }

    pub fn task(&self, service: Service) -> Task {
        let direct = || self.brokers.iter().map(Kafka::brokers).collect::<Vec<_>>().join(",");
        Task {
            brokers: self.proxy.as_ref().map_or_else(direct, |proxy| format!("127.0.0.1:{}", proxy.port())),
            properties: self.properties.clone(),
            fetch: fetch_path(),
            prefix: self.prefix.clone(),
            service,
            clock_ahead_seconds: self.clock_ahead_seconds.get(),
        }
    }

    pub fn settings(&self) -> ProcessorSettings {
        processor_settings(&self.prefix)
    }

    /// A processor of which all that it holds is in use ([`Faults::returns_memory`]).
    pub fn measured_processor(&self, settings: ProcessorSettings) -> Result<Part> {
        let faults = Faults { returns_memory: true, ..self.faults(None) };
        self.start_part(Service::Processor(Box::new(settings)), &faults)
    }

    /// A processor with these settings; names of files never repeat.
    pub fn processor(&self, settings: ProcessorSettings, wait: Option<(&'static str, u64)>) -> Result<Part> {
        self.part(Service::Processor(Box::new(settings)), wait)
    }

    pub fn part(&self, service: Service, wait: Option<(&'static str, u64)>) -> Result<Part> {
        self.start_part(service, &self.faults(wait))
    }

    fn faults(&self, wait: Option<(&'static str, u64)>) -> Faults {
        Faults { off: self.off, wait, next: self.next.get(), returns_memory: false }
    }

    fn start_part(&self, service: Service, faults: &Faults) -> Result<Part> {
        self.started.set(self.started.get() + 1);
        let name = format!("part-{}", self.started.get());
        Part::start(self.dir(), &name, &self.task(service), faults)
    }

    pub fn inputs(&self) -> Vec<TopicPartition> {
        let of = |topic: &Topic| (0..PARTITIONS).map(|partition| TopicPartition::new(self.topic(*topic), partition)).collect();
        Topic::PROCESSOR_INPUTS.iter().flat_map(|topic| -> Vec<_> { of(topic) }).collect()
    }

    /// Returns the present begins and ends of inputs.
    fn ends(&self, inputs: &[TopicPartition]) -> Result<Vec<WatermarkOffsets>> {
        inputs.iter().map(|at| Ok(self.bus.watermarks(at)?)).collect()
    }

    /// Records before these ends that the processor has not folded for good yet.
    fn missing(&self, inputs: &[TopicPartition], ends: &[WatermarkOffsets]) -> Result<u64> {
        let positions = self.bus.committed("processor", inputs)?;
        let missing = ends.iter().zip(positions).map(|(ends, position)| (ends.high - position.unwrap_or(ends.low)).max(0) as u64);
        Ok(missing.sum())
    }

    /// Records that the processor has not folded for good yet.
    pub fn behind(&self) -> Result<u64> {
        let inputs = self.inputs();
        self.missing(&inputs, &self.ends(&inputs)?)
    }

    /// Waits until everything that is in the inputs by now is folded, heartbeats of later left aside; false if that is not
    /// reached.
    pub fn await_folded(&self, limit: Duration) -> Result<bool> {
        let (begun, inputs) = (Instant::now(), self.inputs());
        let mut ends: Option<Vec<WatermarkOffsets>> = None;
        loop {
            // Brokers may be on their way back.
            let missing = match &ends {
                Some(ends) => self.missing(&inputs, ends),
                None => self.ends(&inputs).map(|found| {
                    ends = Some(found);
                    u64::MAX
                }),
            };
            if matches!(missing, Ok(0)) {
                return Ok(true);
            }
            if begun.elapsed() > limit {
                let positions = self.bus.committed("processor", &inputs);
                eprintln!("not folded: {missing:?}; of {inputs:?} there are {ends:?}, committed is {positions:?}");
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Compares the processor's outputs with a story that has ended, once it has folded all of it.
    pub fn judge(&self, story: &Story) -> Result<Findings> {
        verify::processor(&self.bus, &self.prefix, story, &self.settings().fold_settings(), PARTITIONS)
    }

    /// The same, without the windows of some workloads and their decisions.
    pub fn judge_except(&self, story: &Story, is_left_out: impl Fn(&str) -> bool) -> Result<Findings> {
        verify::processor_except(&self.bus, &self.prefix, story, &self.settings().fold_settings(), PARTITIONS, is_left_out)
    }

    /// Watches windows appear.
    pub fn watch(&self) -> Result<Watch> {
        Watch::start(&self.bus, &self.topic(Topic::EfficiencyWindows))
    }
}

/// When windows could be read, and of which partition.
#[derive(Debug)]
pub struct Watch {
    seen: Arc<Mutex<Vec<(Instant, i32)>>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn start(bus: &KafkaBus, topic: &str) -> Result<Self> {
        let from: Vec<_> =
            (0..PARTITIONS).map(|partition| (TopicPartition::new(topic, partition), StartOffset::Earliest)).collect();
        let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
        let (seen, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(std::sync::atomic::AtomicBool::new(false)));
        let (kept, asked) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut polled = Vec::new();
            while !asked.load(std::sync::atomic::Ordering::SeqCst) {
                // A broker that is away comes back, or the row ends.
                drop(reader.poll(1000, Duration::from_millis(20), &mut polled));
                let now = Instant::now();
                let partitions = polled.drain(..).filter_map(|item| match item {
                    PollEvent::Record(record) => Some((now, record.at.partition)),
                    _ => None,
                });
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend(partitions);
            }
        });
        Ok(Self { seen, stop, thread: Some(thread) })
    }

    pub fn count(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// How many of one partition.
    pub fn count_of(&self, partition: i32) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().filter(|(_, of)| *of == partition).count()
    }

    /// When the first one after this moment came; `None`: not yet.
    pub fn first_after(&self, moment: Instant) -> Option<Instant> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(seen, _)| *seen).find(|seen| *seen > moment)
    }

    /// Whether every partition had one after this moment.
    pub fn has_all_after(&self, moment: Instant) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (0..PARTITIONS).all(|partition| seen.iter().any(|(seen, of)| *of == partition && *seen > moment))
    }

    /// Waits until every partition had one after this moment; returns false if that takes longer than the limit.
    pub fn await_all_after(&self, moment: Instant, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        while !self.has_all_after(moment) {
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        true
    }

    /// Waits for a window after this moment; how long after it that was.
    pub fn await_next(&self, moment: Instant) -> Result<Duration> {
        let begun = Instant::now();
        loop {
            if let Some(seen) = self.first_after(moment) {
                return Ok(seen - moment);
            }
            ensure!(begun.elapsed() < LIMIT, "no window came within {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A context for errors of parts.
pub fn process_output(part: &Part) -> String {
    format!("the process wrote:\n{}", part.tail())
}

/// Fails unless a part still runs.
pub fn runs(part: &mut Part) -> Result<()> {
    let ended = part.ended()?;
    ensure!(ended.is_none(), "a process ended by itself: {}", process_output(part));
    Ok(())
}

/// Starts a part again, counted, if it ended for what looked like another one of its name ([`Part::was_fenced`]); whether it
/// did.
pub fn supervise(part: &mut Part, again: impl FnOnce() -> Result<Part>, outcome: &mut Outcome) -> Result<bool> {
    const FENCED: &str =
        "times that a lost answer to its joining looked like another process of its name, and its supervisor started it again";
    let fenced = part.was_fenced()?;
    if fenced {
        outcome.count(FENCED, 1);
        *part = again()?;
    }
    Ok(fenced)
}

/// As [`Context::context`], with the output of the part.
pub fn explain<T>(result: Result<T>, part: &Part) -> Result<T> {
    result.with_context(|| process_output(part))
}
