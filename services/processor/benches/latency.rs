//! From the event that closes a window to the decision that a reader sees: the embedded log at 10,000 events/s, windows of 10 s
//! unless a second argument sets another.
//!
//! `cargo bench -p eadt-processor --bench latency [-- SECONDS [WINDOW]]`. Two times of each decision: from the moment that the
//! closing event could be read (the log has acknowledged it), and from the moment that it was handed to its producer, which
//! includes the producer's linger. Log, processor, producers and reader share this process, so CPU and memory are of all of them.

use std::sync::Arc;

use common::closing::measure;
use common::{PARTITIONS, cpu_seconds, peak_mib};
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, topics};

#[allow(dead_code, reason = "each benchmark uses its part")]
mod common;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).filter(|text| text != "--bench");
    let seconds: i64 = arguments.next().map_or(Ok(90), |text| text.parse())?;
    let window_seconds: f64 = arguments.next().map_or(Ok(10.0), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default())?;
    for topic in topics::desired("eadt.", PARTITIONS, 1) {
        log.create_topic(&topic)?;
    }
    let bus: Arc<dyn Bus> = Arc::new(log);
    let measured = measure(&bus, seconds, window_seconds)?;
    println!(
        "{:.0} events/s, {} ms late, {:.1} % of a core, peak {:.1} MiB, all parts together",
        measured.events_per_second,
        measured.late,
        cpu_seconds() / seconds as f64 * 100.0,
        peak_mib()
    );
    println!("acknowledged to decision readable: {}", measured.acknowledged);
    println!("handed over to decision readable: {}", measured.given);
    Ok(())
}
