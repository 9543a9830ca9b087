//! The processor and the archiver as benchmarks on Apache Kafka run them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::Bus;
use eadt_processor::{HeartbeatClock, OptionalSeconds};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};

use crate::common::{WORKLOADS, metric};

/// Of windows, in seconds.
pub const WINDOW: u64 = 10;
/// Beyond it a process does not end by itself.
pub const PATIENCE: Duration = Duration::from_mins(10);

pub type Error = Box<dyn std::error::Error>;

/// The sum of a counter over its labels.
pub fn total(text: &str, name: &str) -> f64 {
    let of = |line: &str| line.strip_prefix(name)?.strip_prefix('{')?.rsplit(' ').next()?.parse::<f64>().ok();
    text.lines().filter_map(of).sum()
}

/// A processor of these topics, whose group has this name, and what ends it.
pub fn processor(
    bus: Arc<dyn Bus>,
    prefix: &str,
    name: &str,
    metrics: &MetricsRegistry,
) -> (eadt_processor::ProcessorDependencies, Shutdown) {
    let (shutdown, health) = (Shutdown::new(), HealthRegistry::default());
    let settings = eadt_processor::ProcessorSettings {
        prefix: prefix.to_owned(),
        group: format!("{name}processor"),
        instance: format!("{name}processor-0"),
        window_seconds: WINDOW as f64,
        // The log is filled within seconds of its own time, and stamped years after these events.
        join_grace_seconds: 0.0,
        // A run that takes longer would have its last window closed by heartbeats, which the answer has open.
        idle_grace_seconds: 3_600.0,
        max_future_seconds: OptionalSeconds(None),
        ..eadt_processor::ProcessorSettings::default()
    };
    let service = eadt_processor::ProcessorDependencies {
        settings,
        bus,
        clock: HeartbeatClock::machine(),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("processor"),
    };
    (service, shutdown)
}

/// Folds so many events, and ends once everything that they make is committed.
pub fn windows(bus: Arc<dyn Bus>, prefix: &str, name: &str, events: u64, windows: u64) -> Result<(), Error> {
    let metrics = MetricsRegistry::default();
    let (service, shutdown) = processor(bus, prefix, name, &metrics);
    let began = Instant::now();
    let thread = std::thread::spawn(move || eadt_processor::run_processor(&service));
    let expected = events as f64;
    while metric(&metrics.text(), "eadt_processor_events_total") < expected {
        assert!(!thread.is_finished(), "the processor ended: {:?}", thread.join());
        assert!(began.elapsed() < PATIENCE, "not everything was folded: {}", metrics.text());
        std::thread::sleep(Duration::from_millis(10));
    }
    shutdown.cancel();
    thread.join().map_err(|_| "the processor panicked")??;
    let text = metrics.text();
    let count = |name: &str| metric(&text, &format!("eadt_processor_{name}"));
    // The last window stays open.
    assert_eq!(count("windows_total"), (windows * WORKLOADS as u64) as f64, "{text}");
    assert_eq!((count("late_total"), count("stale_total"), count("duplicates_total")), (0.0, 0.0, 0.0));
    Ok(())
}

/// Archives at least so many rows into a folder, and ends once they are all in files.
pub fn archive(bus: Arc<dyn Bus>, prefix: &str, group: &str, events: u64, place: &str) -> Result<(), Error> {
    let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
    let settings = eadt_archiver::ArchiverSettings {
        location: place.to_owned(),
        group: group.to_owned(),
        ..eadt_archiver::ArchiverSettings::default()
    };
    let service = eadt_archiver::ArchiverDependencies {
        settings,
        prefix: prefix.to_owned(),
        bus,
        clock: eadt_archiver::ServiceClock::machine(),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        new_archive_id: 1,
        ready: health.part("archiver"),
    };
    let began = Instant::now();
    let thread = std::thread::spawn(move || eadt_archiver::run(&service));
    let expected = events as f64;
    loop {
        let text = metrics.text();
        let waiting = metric(&text, "eadt_archiver_waiting_rows");
        if waiting + total(&text, "eadt_archiver_rows_total") >= expected {
            break;
        }
        assert!(!thread.is_finished(), "the archiver ended: {:?}", thread.join());
        assert!(began.elapsed() < PATIENCE, "not everything was archived: {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The end writes what waits.
    shutdown.cancel();
    thread.join().map_err(|_| "the archiver panicked")??;
    let rows = total(&metrics.text(), "eadt_archiver_rows_total");
    // The processor's own outputs in these topics come on top.
    assert!(rows >= expected, "{rows} rows of {expected}: {}", metrics.text());
    Ok(())
}
