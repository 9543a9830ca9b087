//! Nanoseconds of the fold alone: 512 GPUs and their job at 10 Hz, decoded events, windows of 10 s. No allocation is counted
//! out: outputs, closing and deciding are in it. `cargo bench -p eadt-core --bench fold`

#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::time::Instant;

use eadt_core::settings::SECOND;
use eadt_core::{FoldSettings, InputEvent, InputRecord, PartitionFold};
use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};
use eadt_schemas::{EventTime, Topic};

const GPUS: usize = 512;
const TICKS: i64 = 4_000;

fn main() {
    let settings = FoldSettings { window: 10 * SECOND, ..FoldSettings::default() };
    let base = 1_700_000_040 * SECOND;
    let mut gpus: Vec<GpuTelemetry> = (0..GPUS)
        .map(|i| GpuTelemetry {
            workload: Some(format!("team/job-{}", i / 8)),
            device: format!("GPU-{i:08}-aaaa-bbbb-cccc-dddddddddddd"),
            collector: format!("nvml/node-{}", i / 8),
            power_watts: Some(300.0),
            utilization_ratio: Some(0.9),
            sm_active_ratio: Some(0.6),
            dram_active_ratio: Some(0.4),
            sm_clock_mhz: Some(1400.0),
            temperature_celsius: Some(60.0),
            ..GpuTelemetry::default()
        })
        .collect();
    let mut jobs: Vec<TrainingProgress> = (0..GPUS / 8)
        .map(|i| TrainingProgress {
            workload: format!("team/job-{i}"),
            collector: format!("http/node-{i}"),
            ..TrainingProgress::default()
        })
        .collect();
    for run in 1..=3 {
        let mut partition = PartitionFold::new(settings.clone());
        let mut out = Vec::new();
        let (mut events, mut outputs) = (0_u64, 0_u64);
        let began = Instant::now();
        for tick in 0..TICKS {
            let time = EventTime::from_micros(base + tick * SECOND / 10);
            for gpu in &mut gpus {
                gpu.time = time;
                gpu.energy_joules_total = Some(tick as f64 * 30.0);
                let key = gpu.workload.as_deref();
                let (topic, event) = (Topic::GpuTelemetry, InputEvent::Telemetry(gpu));
                partition.fold(&InputRecord { topic, stamp: time, key, is_sent_again: false, event }, &mut out);
                events += 1;
            }
            if tick % 10 == 0 {
                for job in &mut jobs {
                    job.time = time;
                    job.samples_total = Some(tick as f64);
                    let input = InputRecord {
                        topic: Topic::TrainingProgress,
                        stamp: time,
                        key: Some(&job.workload),
                        is_sent_again: false,
                        event: InputEvent::Progress(job),
                    };
                    partition.fold(&input, &mut out);
                    events += 1;
                }
            }
            outputs += out.len() as u64;
            out.clear();
        }
        let spent = began.elapsed();
        let state: usize = partition.take_changes().iter().filter_map(|record| record.value.as_ref().map(Vec::len)).sum();
        println!(
            "run {run}: {events} events, {outputs} outputs, {:.0} ns/event, {:.2} M events/s, {state} bytes of state",
            spent.as_nanos() as f64 / events as f64,
            events as f64 / spent.as_secs_f64() / 1e6
        );
    }
}
