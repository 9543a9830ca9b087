//! The window path on the embedded log: read, decode, merge, fold, decide, commit; windows of 10 s.
//!
//! `cargo bench -p eadt-processor --bench windows [-- SECONDS [RUNS]]`. A process fills a log with SECONDS of 512 GPUs at
//! 10 Hz and their eight jobs; then for each run a fresh process works through a copy of it, so that CPU and memory are the
//! processor's and the log's alone.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use common::{Maker, PARTITIONS, WORKLOADS, cpu_seconds, peak_mib, send};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, Stamps};
use eadt_bus::{Bus, topics};
use eadt_core::settings::SECOND;
use eadt_processor::{HeartbeatClock, ProcessorService, ProcessorSettings, run_processor};
use eadt_schemas::EventTime;
use eadt_service::{Health, Metrics, Shutdown};

#[allow(dead_code, reason = "each benchmark uses its part")]
mod common;

const GPUS: usize = 512;
const HERTZ: u64 = 10;
const WINDOW: u64 = 10;
const BASE: i64 = 1_700_000_040 * SECOND;

type Error = Box<dyn std::error::Error>;

fn events(seconds: u64) -> u64 {
    WORKLOADS as u64 + seconds * (GPUS as u64 * HERTZ + WORKLOADS as u64)
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |i: usize, default: u64| arguments.get(i).map_or(Ok(default), |text| text.parse());
    match arguments.first().map(String::as_str) {
        Some("fill") => fill(Path::new(&arguments[1]), number(2, 500)?),
        Some("run") => work(Path::new(&arguments[1]), number(2, 500)?),
        _ => {
            let (seconds, runs) = (number(0, 500)?, number(1, 3)?);
            let dir = tempfile::tempdir()?;
            let full = dir.path().join("full");
            again(&["fill", &full.display().to_string(), &seconds.to_string()])?;
            for _ in 0..runs {
                let copy = dir.path().join("copy");
                let copied = Command::new("cp").arg("-r").arg(&full).arg(&copy).status()?;
                assert!(copied.success());
                again(&["run", &copy.display().to_string(), &seconds.to_string()])?;
                std::fs::remove_dir_all(copy)?;
            }
            Ok(())
        }
    }
}

fn again(arguments: &[&str]) -> Result<(), Error> {
    let status = Command::new(std::env::current_exe()?).args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(format!("{arguments:?}: {status}").into()) }
}

fn fill(dir: &Path, seconds: u64) -> Result<(), Error> {
    let now = Arc::new(AtomicI64::new(BASE));
    let clock = now.clone();
    let stamps = Stamps::Injected(Arc::new(move || EventTime::from_micros(clock.load(Ordering::Relaxed))));
    let linger = Duration::from_millis(1);
    let log = EmbeddedLog::open(dir, EmbeddedOptions { stamps, linger, ..EmbeddedOptions::default() })?;
    for topic in topics::desired("eadt.", PARTITIONS, 1) {
        log.create_topic(&topic)?;
    }
    let mut producer = log.producer("bench")?;
    let mut maker = Maker::new(GPUS);
    let start = EventTime::from_micros(BASE);
    for record in maker.tables(start) {
        send(&mut *producer, &record);
    }
    let began = Instant::now();
    for tick in 0..seconds * HERTZ {
        let time = start.plus_micros(tick as i64 * SECOND / HERTZ as i64);
        // A tick's records are appended as one, 5 ms later.
        now.store(time.micros() + 5_000, Ordering::Relaxed);
        for gpu in 0..GPUS {
            // Collectors are not in step.
            let time = time.plus_micros((gpu / 8) as i64 * 50);
            let record = maker.telemetry(gpu, tick, time);
            send(&mut *producer, &record);
        }
        if tick % HERTZ == 0 {
            for job in 0..WORKLOADS {
                let record = maker.progress(job, (tick / HERTZ) as f64, time);
                send(&mut *producer, &record);
            }
        }
        while producer.counts().acknowledged < producer.counts().taken {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    producer.flush(Duration::from_mins(1))?;
    let counts = producer.counts();
    assert_eq!((counts.acknowledged, counts.failed), (events(seconds), 0));
    println!("filled with {} events in {:.1} s", counts.acknowledged, began.elapsed().as_secs_f64());
    Ok(())
}

/// The value of a counter in the metrics' text.
fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

fn work(dir: &Path, seconds: u64) -> Result<(), Error> {
    let log = EmbeddedLog::open(dir, EmbeddedOptions::default())?;
    let (shutdown, metrics, health) = (Shutdown::new(), Metrics::default(), Health::default());
    let settings = ProcessorSettings { window_seconds: WINDOW as f64, ..ProcessorSettings::default() };
    // It stands: nothing is quiet.
    let clock = HeartbeatClock::new(|| EventTime::from_micros(BASE));
    let service = ProcessorService {
        settings,
        bus: Arc::new(log),
        clock,
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("processor"),
    };
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let thread = std::thread::spawn(move || run_processor(&service));
    let expected = events(seconds) as f64;
    while metric(&metrics.text(), "eadt_processor_events_total") < expected {
        assert!(!thread.is_finished(), "the processor ended: {:?}", thread.join());
        std::thread::sleep(Duration::from_millis(10));
    }
    shutdown.cancel();
    thread.join().map_err(|_| "the processor panicked")??;
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let text = metrics.text();
    let count = |name: &str| metric(&text, &format!("eadt_processor_{name}"));
    // The last window stays open.
    assert_eq!(count("windows_total"), ((seconds - 1) / WINDOW * WORKLOADS as u64) as f64, "{text}");
    assert_eq!((count("late_total"), count("stale_total"), count("duplicates_total")), (0.0, 0.0, 0.0));
    println!(
        "window path: {expected} events, {:.3} M events/CPU-s, {:.0} ns CPU/event, {:.3} M events/s, {} windows, {} decisions, {} commits, {:.1} MB of state written, peak {:.1} MiB",
        expected / cpu / 1e6,
        cpu * 1e9 / expected,
        expected / wall / 1e6,
        count("windows_total"),
        count("decisions_total"),
        count("commit_seconds_count"),
        count("state_bytes_total") / 1e6,
        peak_mib()
    );
    Ok(())
}
