//! Tests the observed part of a window: the length of a recording without a reported run.

use crate::support;

use eadt_core::FoldSettings;
use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};
use support::{Bench, at, gpu, last, power, rank};

fn observed(bench: &Bench) -> Vec<(f64, Option<(f64, f64)>)> {
    let second = |time: eadt_schemas::EventTime| time.seconds_since(at(0.0));
    let seen = |w: &eadt_schemas::v1::EfficiencyWindow| w.observed_start.zip(w.observed_end).map(|(a, b)| (second(a), second(b)));
    bench.windows.iter().map(|w| (second(w.window_start), seen(w))).collect()
}

fn recording() -> Bench {
    Bench::new(FoldSettings { max_future: None, idle_grace: None, ..FoldSettings::default() })
}

#[test]
fn from_the_first_to_the_last_sample_in_each_window() {
    let mut bench = recording();
    for second in 47..=72 {
        bench.put(gpu("a", f64::from(second), f64::from(second)));
    }
    bench.put(last(gpu("a", 72.5, 73.0))).finish();
    assert_eq!(observed(&bench), [(0.0, Some((47.0, 60.0))), (60.0, Some((60.0, 72.5)))]);
}

#[test]
fn progress_is_seen_as_power_is() {
    let mut bench = recording();
    bench.put(power("a", 10.0, 100.0)).put(rank(0, 8.0, 0.0)).put(power("a", 12.0, 100.0)).put(rank(0, 30.0, 5.0)).finish();
    assert_eq!(observed(&bench), [(0.0, Some((8.0, 30.0)))]);
}

#[test]
fn one_sample_is_a_moment() {
    let mut bench = recording();
    bench.put(gpu("a", 17.0, 1.0)).finish();
    assert_eq!(observed(&bench), [(0.0, Some((17.0, 17.0)))]);
    // Also on a window's edge, where it opens the next.
    let mut bench = recording();
    bench.put(gpu("a", 55.0, 1.0)).put(gpu("a", 60.0, 6.0)).finish();
    assert_eq!(observed(&bench), [(0.0, Some((55.0, 60.0))), (60.0, Some((60.0, 60.0)))]);
    let mut bench = recording();
    bench.put(TrainingProgress { samples_total: None, loss: Some(1.0), ..rank(0, 17.0, 0.0) }).finish();
    assert_eq!(observed(&bench), [(0.0, Some((17.0, 17.0)))]);
}

#[test]
fn windows_within_a_long_step_are_seen_whole() {
    let mut bench = recording();
    bench.put(gpu("a", 50.0, 0.0)).put(gpu("a", 200.0, 150.0)).finish();
    assert_eq!(
        observed(&bench),
        [(0.0, Some((50.0, 60.0))), (60.0, Some((60.0, 120.0))), (120.0, Some((120.0, 180.0))), (180.0, Some((180.0, 200.0)))]
    );
}

/// A restart between two samples changes nothing of it.
#[test]
fn it_survives_a_crash() {
    let (mut straight, mut crashed, mut committed) = (recording(), recording(), Vec::new());
    for second in [5.0, 20.0, 59.0, 60.0, 75.0, 130.0] {
        straight.put(gpu("a", second, second)).put(rank(0, second, second));
        crashed.put(gpu("a", second, second)).put(rank(0, second, second));
        crashed.crash(&mut committed);
    }
    straight.finish();
    crashed.finish();
    assert_eq!(observed(&straight), observed(&crashed));
    assert_eq!(observed(&straight)[0], (0.0, Some((5.0, 60.0))));
}

/// Each window names the devices that others were on in it, however often it was committed meanwhile.
#[test]
fn windows_name_the_devices_that_were_shared() {
    let shared = |second: f64, tenants: u32| GpuTelemetry { tenants: Some(tenants), ..gpu("a", second, second) };
    let (mut straight, mut crashed, mut committed) = (recording(), recording(), Vec::new());
    let events = [
        gpu("a", 10.0, 10.0),
        gpu("b", 10.0, 10.0),
        shared(50.0, 2),
        gpu("b", 50.0, 50.0),
        shared(70.0, 3),
        shared(110.0, 2),
        gpu("a", 130.0, 130.0),
        gpu("b", 170.0, 170.0),
        gpu("a", 175.0, 175.0),
    ];
    for event in events {
        straight.put(event.clone());
        crashed.put(event);
        crashed.crash(&mut committed);
    }
    straight.finish();
    crashed.finish();
    let tenancy = |bench: &Bench| -> Vec<_> {
        bench.windows.iter().map(|window| (window.tenants, window.shared_devices.join(","))).collect()
    };
    assert_eq!(tenancy(&straight), [(Some(2), "a".into()), (Some(3), "a".into()), (None, String::new())]);
    assert_eq!(tenancy(&straight), tenancy(&crashed));
}
