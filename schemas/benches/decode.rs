//! Measures the cost of decoding one event: the general parser, `decode`, and `decode_into` the event before, in turn, in one
//! run. Ratios are what counts.

#![allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use eadt_schemas::decode::{DecodableEvent, decode, decode_into};
use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};
use serde::Serialize;

const EVENTS: usize = 400_000;
const ROUNDS: usize = 5;

/// The sample with numbers that differ from event to event, as compact JSON.
fn events<T: DecodableEvent + Serialize>(sample: &str, change: impl Fn(&mut T, f64)) -> Vec<Vec<u8>> {
    let make = |n: usize| {
        let mut event: T = serde_json::from_str(sample).expect("a sample");
        change(&mut event, n as f64);
        serde_json::to_vec(&event).expect("plain JSON")
    };
    (0..1000).map(make).collect()
}

/// Nanoseconds for one event.
fn time(events: &[Vec<u8>], mut read: impl FnMut(&[u8])) -> f64 {
    let start = Instant::now();
    for n in 0..EVENTS {
        read(&events[n % events.len()]);
    }
    start.elapsed().as_secs_f64() * 1e9 / EVENTS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare<T: DecodableEvent>(name: &str, events: &[Vec<u8>]) {
    let (mut general, mut checked, mut again) = (Vec::new(), Vec::new(), Vec::new());
    let mut event = T::default();
    for _ in 0..ROUNDS {
        general.push(time(events, |bytes| drop(black_box(serde_json::from_slice::<T>(black_box(bytes)).expect("valid")))));
        checked.push(time(events, |bytes| drop(black_box(decode::<T>(black_box(bytes)).expect("valid")))));
        again.push(time(events, |bytes| decode_into(black_box(&mut event), black_box(bytes)).expect("valid")));
    }
    let bytes = events.iter().map(Vec::len).sum::<usize>() / events.len();
    let (general, checked, again) = (median(general), median(checked), median(again));
    println!(
        "{name}: {bytes} B; serde_json {general:.0} ns, decode with checks {checked:.0} ns, ratio {:.2}, into the one before {again:.0} ns",
        general / checked
    );
}

fn main() {
    let full = events::<GpuTelemetry>(include_str!("../samples/v1/gpu.telemetry.json"), |event, n| {
        event.power_watts = Some(250.0 + n * 0.137);
        event.energy_joules_total = Some(9.1e8 + n * 28.34);
    });
    compare::<GpuTelemetry>("telemetry, every field", &full);
    let usual = events::<GpuTelemetry>(include_str!("../samples/v1/gpu.telemetry.minimal.json"), |event, n| {
        event.workload = Some("eadt/llm-training".to_owned());
        event.node = Some("node-1".to_owned());
        event.gpu_index = Some(0);
        event.power_watts = Some(250.0 + n * 0.137);
        event.energy_joules_total = Some(9.1e8 + n * 28.34);
        event.utilization_ratio = Some(0.97);
        event.memory_utilization_ratio = Some(0.41);
        event.sm_active_ratio = Some(0.83);
        event.dram_active_ratio = Some(0.44);
        event.sm_clock_mhz = Some(1380.0);
        event.temperature_celsius = Some(61.0);
    });
    compare::<GpuTelemetry>("telemetry, 15 fields", &usual);
    let progress = events::<TrainingProgress>(include_str!("../samples/v1/training.progress.json"), |event, n| {
        event.samples_total = Some(n * 576.0);
        event.loss = Some(2.7 + n * 0.001);
    });
    compare::<TrainingProgress>("progress, every field", &progress);
}
