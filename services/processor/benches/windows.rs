//! The window path on the embedded log: read, decode, merge, fold, decide, commit; windows of 10 s.
//!
//! `cargo bench -p eadt-processor --bench windows [-- SECONDS [RUNS [GPUS [WORKLOADS [WINDOW]]]]]`. A process fills a log with SECONDS of
//! 512 GPUs at 10 Hz and their eight jobs; then for each run a fresh process works through a copy of it, so that CPU and memory
//! are the processor's and the log's alone. `-- sizes [RUNS]` does that for fleets of several sizes, each with about as many
//! events, and prints the cost of an event beside that of the first. `-- panes [RUNS]` does that for windows of 60 s and of 5 s,
//! whose sums are sliding windows of 60 s, every 5 s.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use common::{Maker, PARTITIONS, WORKLOADS, cpu_seconds, metric, peak_mib, send};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
use eadt_bus::{Bus, topics};
use eadt_core::settings::SECOND;
use eadt_processor::{HeartbeatClock, ProcessorDependencies, ProcessorSettings, run_processor};
use eadt_schemas::EventTime;
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};

#[allow(dead_code, reason = "each benchmark uses its part")]
mod common;

const HERTZ: u64 = 10;
const WINDOW: u64 = 10;
const BASE: i64 = 1_700_000_040 * SECOND;

type Error = Box<dyn std::error::Error>;

/// Size of the work.
#[derive(Debug, Clone, Copy)]
struct Load {
    seconds: u64,
    gpus: usize,
    workloads: usize,
    /// Length of the windows, in seconds.
    window: u64,
}

/// Lengths of windows whose cost is compared, in seconds.
const PANES: [u64; 2] = [60, 5];

/// GPUs and workloads of the fleets whose cost is compared: what most have, then fewer and more of one of them.
const SIZES: [[usize; 2]; 6] = [[512, 8], [8, 1], [512, 1], [512, 100], [1500, 1500], [10_000, 100]];
/// About how many events each of these gets.
const EVENTS: u64 = 2_000_000;

impl Load {
    /// Reads seconds, GPUs, workloads and the length of windows; what is missing has its default.
    fn read([seconds, gpus, workloads, window]: [Option<&String>; 4]) -> Result<Self, Error> {
        let number = |text: Option<&String>, default: u64| text.map_or(Ok(default), |text| text.parse());
        let (gpus, workloads) = (number(gpus, 512)?, number(workloads, WORKLOADS as u64)?);
        let (seconds, window) = (number(seconds, 500)?, number(window, WINDOW)?);
        Ok(Self { seconds, gpus: gpus as usize, workloads: workloads as usize, window })
    }

    fn with_size([gpus, workloads]: [usize; 2]) -> Self {
        let a_second = gpus as u64 * HERTZ + workloads as u64;
        Self { seconds: (EVENTS / a_second / WINDOW * WINDOW).max(3 * WINDOW), gpus, workloads, window: WINDOW }
    }

    const fn events(self) -> u64 {
        self.workloads as u64 + self.seconds * (self.gpus as u64 * HERTZ + self.workloads as u64)
    }

    fn arguments(self) -> [String; 4] {
        [self.seconds.to_string(), self.gpus.to_string(), self.workloads.to_string(), self.window.to_string()]
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runs = |i: usize| arguments.get(i).map_or(Ok(3), |text| text.parse::<usize>());
    let load = |places: [usize; 4]| Load::read(places.map(|i| arguments.get(i)));
    match arguments.first().map(String::as_str) {
        Some("fill") => fill(Path::new(&arguments[1]), load([2, 3, 4, 5])?),
        Some("run") => work(Path::new(&arguments[1]), load([2, 3, 4, 5])?),
        Some("panes") => {
            let mut first = None;
            for window in PANES {
                let cost = compare(Load { seconds: 480, gpus: 512, workloads: WORKLOADS, window }, runs(1)?)?;
                let beside = cost / *first.get_or_insert(cost);
                println!("windows of {window} s: {cost:.0} ns CPU/event, {beside:.2} × that of the first\n");
            }
            Ok(())
        }
        Some("sizes") => {
            let mut first = None;
            for load in SIZES.map(Load::with_size) {
                let cost = compare(load, runs(1)?)?;
                let beside = cost / *first.get_or_insert(cost);
                println!(
                    "{} GPUs, {} workloads: {cost:.0} ns CPU/event, {beside:.2} × that of the first\n",
                    load.gpus, load.workloads
                );
            }
            Ok(())
        }
        _ => compare(load([0, 2, 3, 4])?, runs(1)?).map(drop),
    }
}

/// Fills a log and works through copies of it; returns the median cost of an event in nanoseconds of CPU.
fn compare(load: Load, runs: usize) -> Result<f64, Error> {
    let dir = tempfile::tempdir()?;
    let (full, copy) = (dir.path().join("full"), dir.path().join("copy"));
    again("fill", &full, load)?;
    let mut costs = Vec::new();
    for _ in 0..runs {
        let copied = Command::new("cp").arg("-r").arg(&full).arg(&copy).status()?;
        assert!(copied.success());
        let output = again("run", &copy, load)?;
        let cost = output.split(" ns CPU/event").next().and_then(|text| text.rsplit(' ').next()?.parse::<f64>().ok());
        costs.push(cost.ok_or("a run did not print what an event costs")?);
        std::fs::remove_dir_all(&copy)?;
    }
    costs.sort_by(f64::total_cmp);
    Ok(costs.get(costs.len() / 2).copied().unwrap_or(f64::NAN))
}

/// Starts this program for a part of the work; returns what it printed.
fn again(what: &str, dir: &Path, load: Load) -> Result<String, Error> {
    let output =
        Command::new(std::env::current_exe()?).arg(what).arg(dir).args(load.arguments()).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    if output.status.success() { Ok(text) } else { Err(format!("{what} of {load:?}: {}", output.status).into()) }
}

fn fill(dir: &Path, load: Load) -> Result<(), Error> {
    let now = Arc::new(AtomicI64::new(BASE));
    let clock = now.clone();
    let stamps = StampSource::Injected(Arc::new(move || EventTime::from_micros(clock.load(Ordering::Relaxed))));
    let linger = Duration::from_millis(1);
    let log = EmbeddedLog::open(dir, EmbeddedOptions { stamps, linger, ..EmbeddedOptions::default() })?;
    for topic in topics::desired("eadt.", PARTITIONS, 1) {
        log.create_topic(&topic)?;
    }
    let mut producer = log.producer("bench")?;
    let mut maker = Maker::with_workloads(load.gpus, load.workloads, "eadt.");
    let start = EventTime::from_micros(BASE);
    for record in maker.tables(start) {
        send(&mut *producer, &record);
    }
    let began = Instant::now();
    for tick in 0..load.seconds * HERTZ {
        let time = start.plus_micros(tick as i64 * SECOND / HERTZ as i64);
        // A tick's records are appended as one, 5 ms later.
        now.store(time.micros() + 5_000, Ordering::Relaxed);
        for gpu in 0..load.gpus {
            // Collectors are not in step.
            let time = time.plus_micros((gpu / 8) as i64 * 50);
            let record = maker.telemetry(gpu, tick, time);
            send(&mut *producer, &record);
        }
        if tick % HERTZ == 0 {
            for job in 0..load.workloads {
                let record = maker.progress(job, (tick / HERTZ) as f64, time);
                send(&mut *producer, &record);
            }
        }
        while producer.counts().acknowledged < producer.counts().accepted {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    producer.flush(Duration::from_mins(1))?;
    let counts = producer.counts();
    assert_eq!((counts.acknowledged, counts.failed), (load.events(), 0));
    println!("filled with {} events in {:.1} s", counts.acknowledged, began.elapsed().as_secs_f64());
    Ok(())
}

fn work(dir: &Path, load: Load) -> Result<(), Error> {
    let log = EmbeddedLog::open(dir, EmbeddedOptions::default())?;
    let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
    let settings = ProcessorSettings { window_seconds: load.window as f64, ..ProcessorSettings::default() };
    // It does not move: nothing is quiet.
    let clock = HeartbeatClock::new(|| EventTime::from_micros(BASE));
    let service = ProcessorDependencies {
        settings,
        bus: Arc::new(log),
        clock,
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("processor"),
    };
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let thread = std::thread::spawn(move || run_processor(&service));
    let expected = load.events() as f64;
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
    assert_eq!(count("windows_total"), ((load.seconds - 1) / load.window * load.workloads as u64) as f64, "{text}");
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
