//! From the event that closes a window to the decision that a reader sees, on any log.
//!
//! 500 GPUs at 20 Hz, spread over time, and eight jobs; a job's progress is the last event its window waits for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use eadt_bus::{Bus, IsolationLevel, PollEvent, StartOffset, TopicPartition};
use eadt_core::settings::SECOND;
use eadt_processor::{HeartbeatClock, ProcessorDependencies, ProcessorSettings, run_processor};
use eadt_schemas::v1::{Decision, TrainingProgress};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};

use super::{Maker, PARTITIONS, WORKLOADS, metric, send, workload};

const GPUS: usize = 500;
const PERIOD_MILLISECONDS: i64 = 50;
/// GPUs that are sampled together, every millisecond another group.
const GROUP: usize = 10;
/// The first windows are not measured: files and caches are cold.
const WARM_UP: i64 = 3;

type Error = Box<dyn std::error::Error>;
/// Workload and end of the window, in seconds.
type Closing = (String, i64);

/// Measured latencies.
#[derive(Debug)]
pub struct Measured {
    pub events_per_second: f64,
    /// Milliseconds in which events were handed over more than five milliseconds late.
    pub late: u64,
    /// From when the closing event could be read.
    pub acknowledged: Times,
    /// Times since the event was handed to its producer, including its linger.
    pub given: Times,
    /// Mean of the processor's commits, in milliseconds.
    pub commit_milliseconds: f64,
}

/// Durations, sorted.
#[derive(Debug)]
pub struct Times(Vec<Duration>);

impl Times {
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns milliseconds; NaN without measurements.
    pub fn at(&self, quantile: f64) -> f64 {
        let last = self.0.len().max(1) - 1;
        self.0.get((last as f64 * quantile) as usize).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms ({})", self.at(0.5), self.at(0.99), self.at(1.0), self.count())
    }
}

pub fn now() -> EventTime {
    EventTime::from_micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64)
}

/// Runs a processor on the log, whose topics are there, and feeds it for so long.
pub fn measure(bus: &Arc<dyn Bus>, seconds: i64, window_seconds: f64) -> Result<Measured, Error> {
    let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
    let service = ProcessorDependencies {
        settings: ProcessorSettings { window_seconds, join_grace_seconds: 0.0, ..ProcessorSettings::default() },
        bus: bus.clone(),
        clock: HeartbeatClock::default(),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("processor"),
    };
    let processor = std::thread::spawn(move || run_processor(&service));
    let handed: Arc<Mutex<HashMap<Closing, Instant>>> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (bus, handed, stop) = (bus.clone(), handed.clone(), stop.clone());
        std::thread::spawn(move || watch(&*bus, &handed, &stop))
    };

    let mut producer = bus.producer("bench")?;
    let mut maker = Maker::new(GPUS);
    for record in maker.tables(now()) {
        send(&mut *producer, &record);
    }
    // The first whole second.
    let start = (now().micros() / SECOND + 2) * SECOND;
    let (mut late, mut sent) = (0, 0_u64);
    for millisecond in 0..seconds * 1000 {
        let due = start + millisecond * 1000;
        let ahead = due - now().micros();
        late += u64::from(ahead < -5_000);
        std::thread::sleep(Duration::from_micros(ahead.max(0) as u64));
        let tick = (millisecond / PERIOD_MILLISECONDS) as u64;
        for gpu in 0..GROUP {
            let record =
                maker.telemetry((millisecond % PERIOD_MILLISECONDS) as usize * GROUP + gpu, tick, EventTime::from_micros(due));
            send(&mut *producer, &record);
        }
        sent += GROUP as u64;
        // After every GPU's first sample of the second, one job after another; then nothing else is missing.
        let (second, of_second) = (millisecond / 1000, millisecond % 1000);
        if of_second >= 150 && of_second % 100 == 50 && of_second / 100 <= WORKLOADS as i64 {
            let job = (of_second / 100 - 1) as usize;
            let time = EventTime::from_micros(start + second * SECOND);
            let record = maker.progress(job, second as f64, time);
            handed.lock().expect("nobody panics with it").insert((workload(job), time.micros() / SECOND), Instant::now());
            send(&mut *producer, &record);
            sent += 1;
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    stop.store(true, Ordering::Relaxed);
    shutdown.cancel();
    processor.join().map_err(|_| "the processor panicked")??;
    let (acknowledged, given) = watcher.join().map_err(|_| "the watcher panicked")?;
    if acknowledged.is_empty() {
        return Err(format!("no decision was measured in {seconds} s with windows of {window_seconds} s").into());
    }
    let events_per_second = sent as f64 / seconds as f64;
    let text = metrics.text();
    let of_commits = |what: &str| metric(&text, &format!("eadt_processor_commit_seconds_{what}"));
    let commit_milliseconds = of_commits("sum") / of_commits("count") * 1e3;
    Ok(Measured {
        events_per_second,
        late,
        acknowledged: Times::new(acknowledged),
        given: Times::new(given),
        commit_milliseconds,
    })
}

/// Reads progress and decisions as they come, and reports how long each decision took since its closing event was read, and
/// since that was handed over.
fn watch(bus: &dyn Bus, handed: &Mutex<HashMap<Closing, Instant>>, stop: &AtomicBool) -> (Vec<Duration>, Vec<Duration>) {
    let from: Vec<_> = [Topic::TrainingProgress, Topic::Decisions]
        .iter()
        .flat_map(|topic| (0..PARTITIONS).map(move |p| (TopicPartition::new(format!("eadt.{topic}"), p), StartOffset::Earliest)))
        .collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted).expect("the topics are there");
    let (mut read, mut polled) = (HashMap::<Closing, Instant>::new(), Vec::new());
    let (mut acknowledged, mut given) = (Vec::new(), Vec::new());
    let mut first = i64::MAX;
    while !stop.load(Ordering::Relaxed) {
        reader.poll(100, Duration::from_millis(100), &mut polled).expect("a readable log");
        let seen = Instant::now();
        for item in polled.drain(..) {
            let PollEvent::Record(record) = item else { continue };
            let value = record.value.as_deref().unwrap_or_default();
            if record.at.topic.ends_with(&*Topic::TrainingProgress.to_string()) {
                let event: TrainingProgress = serde_json::from_slice(value).expect("an event");
                first = first.min(event.time.micros() / SECOND);
                read.insert((event.workload, event.time.micros() / SECOND), seen);
            } else {
                let decision: Decision = serde_json::from_slice(value).expect("a decision");
                let closing = (decision.workload, decision.time.micros() / SECOND);
                let handed = handed.lock().expect("nobody panics with it").get(&closing).copied();
                if let (Some(at), Some(handed)) = (read.get(&closing), handed)
                    && closing.1 >= first + WARM_UP
                {
                    acknowledged.push(seen - *at);
                    given.push(seen - handed);
                }
            }
        }
    }
    (acknowledged, given)
}
