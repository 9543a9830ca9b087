//! Tests which source counts in a window if several report the same.

use crate::support;

use eadt_schemas::v1::{CounterScope, GpuTelemetry, Meter, Origin, TrainingProgress};
use support::{Bench, gpu, last, power, rank, round};

fn blind(device: &str, second: f64) -> GpuTelemetry {
    GpuTelemetry { energy_joules_total: None, utilization_ratio: Some(0.5), ..gpu(device, second, 0.0) }
}

fn wall(event: GpuTelemetry) -> GpuTelemetry {
    GpuTelemetry { meter: Meter::Wall, ..event }
}

#[test]
fn the_narrowest_meter_that_knows_energy_counts() {
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        let second = f64::from(second);
        bench.put(blind("a", second)).put(blind("b", second)).put(wall(gpu("wall", second, second * 300.0)));
    }
    let window = &bench.windows[0];
    assert_eq!((window.meter, window.gpus, window.energy_joules.map(round)), (Meter::Wall, 1, Some(18_000.0)));
}

#[test]
fn where_no_meter_knows_energy_the_narrowest_counts() {
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        bench.put(wall(blind("wall", f64::from(second))));
    }
    let window = &bench.windows[0];
    assert_eq!((window.meter, window.gpus, window.energy_joules), (Meter::Wall, 1, None));
}

#[test]
fn devices_that_all_leave_are_missed_until_the_window_ends() {
    let mut bench = Bench::default();
    for device in ["a", "b"] {
        bench.put(gpu(device, 0.0, 0.0));
    }
    for device in ["a", "b"] {
        bench.put(last(gpu(device, 30.0, 3_000.0)));
    }
    let window = &bench.windows[0];
    assert_eq!((window.energy_joules, window.energy_coverage_ratio), (Some(6_000.0), 0.5));
}

/// Returns a window with these events at its begin and end: samples, ranks.
fn progress(events_at: impl Fn(f64) -> Vec<TrainingProgress>) -> (Option<f64>, u32) {
    let mut bench = Bench::default();
    for second in [0.0, 30.0, 60.0] {
        for event in events_at(second) {
            bench.put(event);
        }
    }
    (bench.windows[0].samples.map(round), bench.windows[0].ranks)
}

#[test]
fn one_who_speaks_for_the_whole_job_counts_where_he_knows_anything() {
    let of = |number: u32, second: f64, per_second: f64| TrainingProgress {
        scope: CounterScope::Rank,
        ..rank(number, second, second * per_second)
    };
    let knows = |second: f64| rank(0, second, second * 50.0);
    let loss = |second: f64| TrainingProgress { samples_total: None, loss: Some(1.0), ..rank(0, second, 0.0) };
    assert_eq!(progress(|now| vec![knows(now), of(1, now, 10.0), of(2, now, 20.0)]), (Some(3_000.0), 1));
    assert_eq!(progress(|now| vec![loss(now), of(1, now, 10.0), of(2, now, 20.0)]), (Some(1_800.0), 2));
    assert_eq!(progress(|now| vec![loss(now)]), (None, 1), "there is nobody else");
}

#[test]
fn a_window_has_the_worst_origin_of_what_lies_in_it() {
    let mut bench = Bench::default();
    let of = |second: f64, origin| GpuTelemetry { origin, ..gpu("a", second, second) };
    bench.put(of(0.0, Origin::Simulated)).put(of(30.0, Origin::Measured)).put(of(60.0, Origin::Measured));
    bench.put(of(90.0, Origin::Imported)).put(of(120.0, Origin::Measured)).put(of(180.0, Origin::Measured));
    let origins: Vec<_> = bench.windows.iter().map(|w| w.origin).collect();
    assert_eq!(origins, [Origin::Simulated, Origin::Imported, Origin::Measured]);
}

#[test]
fn no_more_than_64_shared_devices_are_named() {
    for (devices, named) in [(64, 64), (65, 0)] {
        let mut bench = Bench::default();
        for second in [0.0, 60.0] {
            for device in 0..devices {
                let name = format!("GPU-{device}");
                bench.put(GpuTelemetry { tenants: (second == 0.0).then_some(2), ..power(&name, second, 100.0) });
            }
        }
        let window = &bench.windows[0];
        assert_eq!((window.shared_devices.len(), window.tenants), (named, Some(2)), "of {devices}");
    }
}
