//! How fast rows become Parquet and come back, in rows per second of this thread's CPU time.
//!
//! `cargo xtask bench lake -- [ROWS]`. Telemetry of 64 GPUs as JSON of about 600 bytes with all
//! headers, from four collectors whose events interleave, so that rows must be sorted by time.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use eadt_lake::{Archive, ArchiveRow, ArchiveWriter, RollLimits};
use eadt_schemas::envelope::{Envelope, EventType};
use eadt_schemas::v1::{GpuTelemetry, Origin};
use eadt_schemas::{EventTime, Topic};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

fn rows(count: usize, start: usize, random: &mut Pcg64Mcg) -> Vec<ArchiveRow> {
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    (start..start + count)
        .map(|n| {
            let gpu = n % 64;
            // Each collector is a little behind by an own amount.
            let micros =
                1_767_312_000_000_000 + (n / 64) as i64 * 100_000 - (gpu / 16) as i64 * 30_000 + (uniform() * 900.0) as i64;
            let tenth = |value: f64| Some((value * 10.0).round() / 10.0);
            let event = GpuTelemetry {
                time: EventTime::from_micros(micros),
                workload: Some(format!("eadt/training-{}", gpu / 8)),
                device: format!("GPU-{gpu:08x}-1f2e-4d3c-8b7a-0123456789ab"),
                collector: format!("collector-{}", gpu / 16),
                origin: Origin::Simulated,
                node: Some(format!("node-{}", gpu / 8)),
                gpu_index: Some((gpu % 8) as u32),
                gpu_model: Some("NVIDIA A100-SXM4-80GB".to_owned()),
                power_watts: Some((250_000.0 + uniform() * 100_000.0).round() / 1000.0),
                energy_joules_total: Some(((n / 64) as f64 * 30_000.0 + uniform() * 1_000.0).round() / 1000.0),
                utilization_ratio: tenth(uniform()),
                memory_utilization_ratio: tenth(uniform()),
                memory_used_bytes: Some(60_000_000_000 + (uniform() * 100.0) as u64 * 1_048_576),
                memory_total_bytes: Some(85_899_345_920),
                sm_clock_mhz: Some((1_200.0 + (uniform() * 14.0).round() * 15.0).round()),
                memory_clock_mhz: Some(1_593.0),
                temperature_celsius: Some((50.0 + uniform() * 20.0).round()),
                power_limit_watts: Some(400.0),
                processes: Some(2),
                mig_enabled: Some(false),
                mps_enabled: Some(true),
                ..GpuTelemetry::default()
            };
            let envelope = Envelope {
                id: format!("collector-{}-{n}", gpu / 16),
                source: format!("/collector/node-{}", gpu / 8),
                kind: EventType::GpuTelemetry,
                time: event.time,
                subject: event.device.clone(),
            };
            ArchiveRow {
                topic: Topic::GpuTelemetry,
                partition: 0,
                offset: n as i64,
                stamp: EventTime::from_millis(micros / 1000 + 5),
                key: event.workload.clone().map(Bytes::from),
                value: Some(serde_json::to_vec(&event).expect("JSON").into()),
                headers: envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect(),
            }
        })
        .collect()
}

/// Nanoseconds that this thread was on a CPU.
fn cpu() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts the CPU time of threads");
    text.split_whitespace().next().and_then(|first| first.parse().ok()).expect("a number")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let total: usize = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse())?;
    let folder = std::env::temp_dir().join(format!("lake-bench-{}", std::process::id()));
    let archive = Archive::folder(&folder)?;
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits { age_micros: i64::MAX, ..RollLimits::default() });
    let mut random = Pcg64Mcg::new(7);
    let (mut push, mut roll, mut json, mut bytes, mut files) = (0, 0, 0, 0, 0);
    for start in (0..total).step_by(50_000) {
        let rows = rows(50_000.min(total - start), start, &mut random);
        json += rows.iter().filter_map(|row| row.value.as_ref().map(Bytes::len)).sum::<usize>();
        let began = cpu();
        for row in &rows {
            writer.push(row, row.stamp)?;
        }
        push += cpu() - began;
        let last = start + rows.len() >= total;
        while let Some((topic, partition)) = writer.due(EventTime::default()).or(last.then_some((Topic::GpuTelemetry, 0))) {
            let began = cpu();
            let written = writer.roll(topic, partition)?;
            roll += cpu() - began;
            match written {
                Some(written) => (bytes, files) = (bytes + written.bytes, files + 1),
                None => break,
            }
        }
    }
    let rate = |nanos: u64| total as f64 / (nanos as f64 / 1e9) / 1e6;
    let each = |nanos: u64| nanos as f64 / total as f64;
    println!(
        "{total} rows, {} bytes of JSON a row, {files} files, {} bytes a row in Parquet",
        json / total,
        bytes / total as u64
    );
    println!("write: {:.3} M rows/CPU-s ({:.0} ns columns, {:.0} ns files, a row)", rate(push + roll), each(push), each(roll));
    let listing = archive.files()?;
    let began = cpu();
    let read = archive.rows(&listing, Topic::GpuTelemetry, 0).try_fold(0, |count, row| row.map(|_| count + 1))?;
    println!("read: {:.3} M rows/CPU-s ({read} rows)", rate(cpu() - began));
    fs::remove_dir_all(&folder)?;
    Ok(())
}
