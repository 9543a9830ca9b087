//! From the event that closes a window to the decision that a reader sees: the embedded log at 10,000 events/s, windows of 10 s unless a second argument says otherwise.
//!
//! `cargo bench -p eadt-processor --bench latency [-- SECONDS]`. 500 GPUs at 20 Hz, spread over time, and eight jobs; a job's
//! progress is the last event its window waits for. Two times of each decision: from the moment that the closing event
//! could be read (the log has acknowledged it), and from the moment that it was handed to its producer, which includes the
//! producer's linger. Log, processor, producers and reader share this process, so CPU and memory are of all of them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{Maker, PARTITIONS, WORKLOADS, cpu_seconds, peak_mib, send, workload};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, Isolation, Polled, Start, TopicPartition, topics};
use eadt_core::settings::SECOND;
use eadt_processor::{HeartbeatClock, Service, Settings, run};
use eadt_schemas::v1::{Decision, TrainingProgress};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{Health, Metrics, Shutdown};

mod common;

const GPUS: usize = 500;
const PERIOD_MILLISECONDS: i64 = 50;
/// GPUs that are sampled together, every millisecond another group.
const GROUP: usize = 10;
/// The first windows are not measured: files and caches are cold.
const WARM_UP: i64 = 3;

type Error = Box<dyn std::error::Error>;
/// Workload and end of the window, in seconds.
type Closing = (String, i64);

fn now() -> EventTime {
    EventTime::from_micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as i64)
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).filter(|text| text != "--bench");
    let seconds: i64 = arguments.next().map_or(Ok(90), |text| text.parse())?;
    let window_seconds: f64 = arguments.next().map_or(Ok(10.0), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default())?;
    for topic in topics::desired("eadt.", PARTITIONS, 1) {
        log.create_topic(&topic)?;
    }
    let (shutdown, metrics, health) = (Shutdown::new(), Metrics::default(), Health::default());
    let service = Service {
        settings: Settings { window_seconds, join_grace_seconds: 0.0, ..Settings::default() },
        bus: Arc::new(log.clone()),
        clock: HeartbeatClock::default(),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("processor"),
    };
    let processor = std::thread::spawn(move || run(&service));
    let handed: Arc<Mutex<HashMap<Closing, Instant>>> = Arc::default();
    let stop = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (log, handed, stop) = (log.clone(), handed.clone(), stop.clone());
        std::thread::spawn(move || watch(&log, &handed, &stop))
    };

    let mut producer = log.producer("bench")?;
    let mut maker = Maker::new(GPUS);
    for record in maker.tables(now()) {
        send(&mut *producer, &record);
    }
    // The first whole second.
    let start = (now().micros() / SECOND + 2) * SECOND;
    let cpu = cpu_seconds();
    let (mut late, mut sent) = (0, 0_u64);
    for millisecond in 0..seconds * 1000 {
        let due = start + millisecond * 1000;
        let ahead = due - now().micros();
        late += i64::from(ahead < -5_000);
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
    std::thread::sleep(Duration::from_millis(200));
    let (cpu, wall) = (cpu_seconds() - cpu, seconds as f64);
    stop.store(true, Ordering::Relaxed);
    shutdown.cancel();
    processor.join().map_err(|_| "the processor panicked")??;
    let (mut acknowledged, mut given) = watcher.join().map_err(|_| "the watcher panicked")?;
    println!(
        "{:.0} events/s, {} decisions, {late} ms late, {:.1} % of a core, peak {:.1} MiB, all parts together",
        sent as f64 / wall,
        given.len(),
        cpu / wall * 100.0,
        peak_mib()
    );
    for (name, times) in [("acknowledged", &mut acknowledged), ("handed over", &mut given)] {
        times.sort_unstable();
        let at = |q: f64| times.get(((times.len().max(1) - 1) as f64 * q) as usize).map_or(f64::NAN, |t| t.as_secs_f64() * 1e3);
        println!("{name} to decision readable: p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", at(0.5), at(0.99), at(1.0));
    }
    Ok(())
}

/// Reads progress and decisions as they come, and says how long each decision took since its closing event was read, and
/// since that was handed over.
fn watch(log: &EmbeddedLog, handed: &Mutex<HashMap<Closing, Instant>>, stop: &AtomicBool) -> (Vec<Duration>, Vec<Duration>) {
    let from: Vec<_> = [Topic::TrainingProgress, Topic::Decisions]
        .iter()
        .flat_map(|topic| (0..PARTITIONS).map(move |p| (TopicPartition::new(format!("eadt.{topic}"), p), Start::Earliest)))
        .collect();
    let mut reader = log.reader(&from, Isolation::ReadCommitted).expect("the topics are there");
    let (mut read, mut polled) = (HashMap::<Closing, Instant>::new(), Vec::new());
    let (mut acknowledged, mut given) = (Vec::new(), Vec::new());
    let mut first = i64::MAX;
    while !stop.load(Ordering::Relaxed) {
        reader.poll(100, Duration::from_millis(100), &mut polled).expect("a readable log");
        let seen = Instant::now();
        for item in polled.drain(..) {
            let Polled::Record(record) = item else { continue };
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
