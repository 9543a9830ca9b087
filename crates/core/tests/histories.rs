//! One history of arrivals or crashes for each rule of the fold.

use crate::support;

use eadt_core::FoldSettings;
use eadt_core::controller::ControllerSettings;
use eadt_core::settings::SECOND;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, CounterScope, DeadLetterReason, EnergyMethod, GpuTelemetry, JobLifecycle, Layout, Meter, Origin,
    TrainingProgress, UpdateMode, Workload,
};
use support::{Bench, Item, JOB, at, gpu, last, layout, phase, power, rank, round};

/// Samples of 100 W at a steady beat, from `from` to `to` (included), each with a stamp equal to its time.
fn steady(bench: &mut Bench, device: &str, from: i32, to: i32, step: usize) {
    for second in (from..=to).step_by(step) {
        bench.put(gpu(device, f64::from(second), f64::from(second) * 100.0));
    }
}

#[test]
fn a_window_closes_when_every_live_source_has_reached_its_end() {
    let mut bench = Bench::default();
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("b", 1.0, 0.0));
    bench.put(gpu("a", 30.0, 3000.0)).put(gpu("a", 60.0, 6000.0)).put(gpu("a", 70.0, 7000.0));
    assert_eq!(bench.starts(), Vec::<f64>::new(), "b has not reached the edge");
    bench.put(gpu("b", 61.0, 600.0));
    // b: from 1 s on, 10 W.
    assert_eq!(bench.energies(), [(0.0, Some(6590.0))]);
    let window = &bench.windows[0];
    assert_eq!((window.gpus, window.energy_method), (2, EnergyMethod::Counter));
    assert_eq!(round(window.energy_coverage_ratio), round(119.0 / 120.0));
    assert_eq!(window.id, format!("{JOB}/tumbling/{}", at(0.0)));
    assert_eq!(bench.decisions.len(), 1);
}

#[test]
fn one_fast_clock_closes_nobodys_window() {
    let mut bench = Bench::default();
    for second in 0..100 {
        let second = f64::from(second);
        bench.stamped(second, gpu("right", second, second));
        bench.stamped(second, gpu("fast", second + 50.0, second));
    }
    assert_eq!(bench.starts(), [0.0], "at a stamp of 60 s, not of 10 s");
    assert_eq!(bench.reasons(), []);
    // Its energy counts at the times it reports.
    assert_eq!(bench.energies(), [(0.0, Some(60.0 + 10.0))]);
}

#[test]
fn a_time_too_far_ahead_of_the_log_is_refused_and_off_means_off() {
    let mut bench = Bench::default();
    bench.stamped(0.0, gpu("a", 60.0, 0.0)).stamped(0.0, gpu("a", 60.000_001, 1.0));
    assert_eq!(bench.reasons(), [DeadLetterReason::FutureTime]);
    let mut bench = Bench::new(FoldSettings { max_future: None, ..FoldSettings::default() });
    bench.stamped(0.0, gpu("a", 9_000.0, 0.0));
    assert_eq!(bench.reasons(), []);
    // The end of its window cannot be written.
    bench.stamped(0.0, GpuTelemetry { time: EventTime::MAX, ..gpu("b", 0.0, 0.0) });
    assert_eq!(bench.reasons(), [DeadLetterReason::InvalidValue]);
    bench.finish();
}

#[test]
fn a_slow_clock_holds_its_workload_and_no_other_until_it_has_lagged_too_long() {
    let mut bench = Bench::default();
    for second in (0..=400).step_by(10) {
        let second = f64::from(second);
        bench.stamped(second, gpu("right", second, second));
        bench.stamped(second, gpu("slow", second - 300.0, second));
        let other = GpuTelemetry { workload: Some("team/other".to_owned()), ..gpu("else", second, second) };
        bench.stamped(second, other);
    }
    let of = |workload: &str| bench.windows.iter().filter(|w| w.workload == workload).map(|w| w.window_start).collect::<Vec<_>>();
    assert_eq!(of("team/other"), [0.0, 60.0, 120.0, 180.0, 240.0, 300.0].map(at));
    // Waited for until it had lagged for 120 s; then its own clock's windows close, then the right one's go on.
    let own = of(JOB);
    assert_eq!((own.first(), own.last()), (Some(&at(-300.0)), Some(&at(300.0))));
    assert!(bench.reasons().iter().all(|reason| *reason == DeadLetterReason::Late), "{:?}", bench.refused);
    assert!(!bench.reasons().is_empty());
}

#[test]
fn a_dead_source_holds_its_workload_for_the_grace_only() {
    let mut bench = Bench::default();
    bench.put(gpu("dead", 5.0, 0.0));
    steady(&mut bench, "a", 0, 120, 5);
    assert_eq!(bench.starts(), Vec::<f64>::new());
    steady(&mut bench, "a", 125, 125, 5);
    assert_eq!(bench.starts(), [0.0, 60.0], "120 s after its last event");
    // Until a layout has no place for it the silent device is missed.
    assert!(bench.windows[1].energy_coverage_ratio < 0.6, "{}", bench.windows[1].energy_coverage_ratio);
    let of = |second, generation, gpus| Workload { gpus: Some(gpus), ..layout(second, generation) };
    bench.put(of(126.0, 1, 2)).put(of(127.0, 2, 1));
    steady(&mut bench, "a", 130, 245, 5);
    assert_eq!(bench.windows.last().map(|w| (w.gpus, w.energy_coverage_ratio)), Some((1, 1.0)));
}

#[test]
fn a_brokers_outage_idles_nobody() {
    let mut bench = Bench::default();
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("b", 0.0, 0.0)).put(gpu("a", 20.0, 20.0)).put(gpu("b", 20.0, 20.0));
    // An hour without a stamp, then both go on: the counter's difference lies in the windows, nothing is unassigned.
    bench.put(gpu("a", 3620.0, 3620.0)).put(gpu("b", 3620.0, 3620.0));
    assert_eq!(bench.windows.len(), 60);
    assert!(bench.windows.iter().all(|w| w.unassigned_energy_joules == 0.0 && w.energy_coverage_ratio == 1.0));
    assert_eq!(round(bench.windows.iter().filter_map(|w| w.energy_joules).sum::<f64>()), 7200.0);
}

#[test]
fn heartbeats_close_the_windows_of_a_job_that_died() {
    let mut bench = Bench::default();
    steady(&mut bench, "a", 0, 70, 10);
    assert_eq!(bench.starts(), [0.0]);
    for second in (80..=180).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    assert_eq!(bench.starts(), [0.0]);
    bench.heartbeat(190.0);
    assert_eq!(bench.starts(), [0.0, 60.0], "none live: the open window closes");
    assert_eq!(bench.energies()[1], (60.0, Some(1000.0)));
    // Closed-through is the last of them.
    bench.stamped(191.0, gpu("b", 119.0, 0.0));
    assert_eq!(bench.reasons(), [DeadLetterReason::Late]);
}

#[test]
fn the_energy_of_an_idle_gap_goes_whole_to_the_next_windows_unassigned() {
    let mut bench = Bench::default();
    steady(&mut bench, "a", 0, 70, 10);
    for second in (80..=300).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    bench.put(gpu("a", 310.0, 31_000.0)).put(gpu("a", 370.0, 37_000.0));
    assert_eq!(bench.energies(), [(0.0, Some(6000.0)), (60.0, Some(1000.0)), (300.0, Some(5000.0))]);
    assert_eq!(bench.windows[2].unassigned_energy_joules, 24_000.0);
    let whole: f64 = bench.windows.iter().map(|w| w.energy_joules.unwrap() + w.unassigned_energy_joules).sum();
    assert_eq!(round(whole + 1000.0), 37_000.0, "the last 10 s lie in the open window");
}

#[test]
fn a_window_waits_for_those_who_join_late() {
    let mut bench = Bench::default();
    bench.put(gpu("a", 55.0, 0.0)).put(gpu("a", 61.0, 600.0));
    assert_eq!(bench.starts(), Vec::<f64>::new(), "6 s after the first event");
    bench.put(gpu("b", 64.0, 0.0)).stamped(64.5, gpu("c", 59.0, 0.0));
    assert_eq!(bench.reasons(), []);
    bench.put(gpu("a", 65.0, 1000.0));
    assert_eq!(bench.starts(), Vec::<f64>::new(), "c is behind the edge");
    bench.put(gpu("c", 66.0, 10.0));
    assert_eq!(bench.starts(), [0.0]);
}

#[test]
fn a_mark_of_the_last_event_counts_and_a_duplicates_does_too() {
    let mut bench = Bench::default();
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("b", 0.0, 0.0)).put(gpu("b", 10.0, 0.0));
    bench.put(gpu("a", 40.0, 40.0)).stamped(41.0, last(gpu("b", 10.0, 0.0))).put(gpu("a", 60.0, 60.0));
    assert_eq!(bench.starts(), [0.0], "b is not waited for");
    assert_eq!((bench.windows[0].duplicates, bench.windows[0].stale), (1, 0));
    bench.put(last(gpu("a", 70.0, 70.0)));
    assert_eq!(bench.starts(), [0.0, 60.0], "none live");
}

#[test]
fn duplicates_are_counted_older_ones_are_stale_and_neither_changes_a_figure() {
    let mut bench = Bench::default();
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("a", 20.0, 2000.0));
    bench.stamped(21.0, gpu("a", 20.0, 2000.0)).stamped(22.0, gpu("a", 10.0, 9_999.0));
    bench.put(gpu("a", 60.0, 6000.0));
    assert_eq!(bench.energies(), [(0.0, Some(6000.0))]);
    assert_eq!((bench.windows[0].duplicates, bench.windows[0].stale, bench.windows[0].events), (1, 1, 2));
    assert_eq!(bench.partition.tally().duplicates, 1);
    assert_eq!(bench.reasons(), [DeadLetterReason::Stale]);
}

#[test]
fn what_was_sent_again_counts_once_and_is_never_stale() {
    let run = |again: bool| {
        let mut bench = Bench::default();
        bench.put(gpu("a", 0.0, 0.0)).put(rank(0, 5.0, 0.0));
        bench.put(gpu("a", 20.0, 2000.0)).put(rank(0, 25.0, 250.0)).put(gpu("a", 40.0, 4000.0)).put(rank(0, 45.0, 450.0));
        if again {
            // The log has all of these already, but not the next one.
            bench.put_again(gpu("a", 20.0, 2000.0)).put_again(rank(0, 25.0, 250.0)).put_again(gpu("a", 40.0, 4000.0));
            bench.put_again(gpu("a", 50.0, 5000.0));
        } else {
            bench.put(gpu("a", 50.0, 5000.0));
        }
        bench.put(gpu("a", 70.0, 7000.0)).put(rank(0, 75.0, 750.0));
        bench
    };
    let (once, twice) = (run(false), run(true));
    assert_eq!(twice.reasons(), []);
    let counts = |bench: &Bench| (bench.windows[0].duplicates, bench.windows[0].stale, bench.windows[0].events);
    assert_eq!((counts(&once).0, counts(&once).1), (0, 0));
    assert_eq!(counts(&twice), (3, 0, counts(&once).2));
    assert_eq!((twice.energies(), twice.partition.tally().stale), (once.energies(), 0));
    let unmarked = || {
        let mut bench = Bench::default();
        bench.put(gpu("a", 0.0, 0.0)).put(gpu("a", 20.0, 2000.0)).stamped(21.0, gpu("a", 10.0, 1000.0));
        bench.reasons()
    };
    assert_eq!(unmarked(), [DeadLetterReason::Stale], "without a mark it is");
}

#[test]
fn late_is_exactly_what_lies_in_a_closed_window_and_its_energy_is_not_lost() {
    let mut bench = Bench::default();
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("b", 0.0, 0.0)).put(gpu("b", 40.0, 400.0));
    bench.put(last(gpu("b", 41.0, 410.0))).put(gpu("a", 61.0, 61.0));
    assert_eq!(bench.starts(), [0.0]);
    // b wakes in closed time: its event is late, the next one is not.
    bench.stamped(62.0, gpu("b", 59.0, 590.0)).stamped(63.0, gpu("b", 60.0, 600.0)).stamped(64.0, gpu("b", 65.0, 650.0));
    assert_eq!(bench.reasons(), [DeadLetterReason::Late]);
    bench.put(gpu("b", 120.0, 1200.0)).put(gpu("a", 121.0, 121.0));
    let window = &bench.windows[1];
    assert_eq!((window.late, round(window.unassigned_energy_joules)), (1, 10.0), "59 s to 60 s");
    assert_eq!(window.energy_joules.map(round), Some(660.0));
}

#[test]
fn counters_that_fall_fall_back_to_power_and_a_change_of_tenure_is_no_difference() {
    let mut bench = Bench::default();
    let both = |second: f64, joules: f64| GpuTelemetry { power_watts: Some(50.0), ..gpu("a", second, joules) };
    bench.put(both(0.0, 1000.0)).put(both(30.0, 4000.0)).put(both(40.0, 10.0)).put(both(60.0, 2010.0));
    let window = &bench.windows[0];
    assert_eq!(window.energy_joules.map(round), Some(3000.0 + 500.0 + 2000.0));
    assert_eq!((window.energy_method, window.energy_coverage_ratio), (EnergyMethod::Mixed, 1.0));
    let mut bench = Bench::default();
    let stay = |second: f64, joules: f64, tenure| GpuTelemetry { tenure: Some(tenure), ..gpu("a", second, joules) };
    bench.put(stay(0.0, 0.0, 1)).put(stay(20.0, 200.0, 1)).put(stay(30.0, 9_000.0, 2)).put(stay(60.0, 9_300.0, 2));
    let window = &bench.windows[0];
    assert_eq!((window.energy_joules.map(round), round(window.energy_coverage_ratio)), (Some(500.0), round(50.0 / 60.0)));
    assert!(bench.windows[0].energy_largest_gap_seconds == 30.0);
}

/// A GPU that comes back to a workload whose windows closed as it left, and whose counter is away twice in closed time.
#[test]
fn what_a_counter_reports_of_closed_time_is_unassigned_however_often_it_was_away() {
    for away in [vec![], vec![12], vec![12, 13], vec![13, 15], vec![58, 59, 60, 61]] {
        let mut bench = Bench::default();
        let stay = |second: i32, tenure| GpuTelemetry {
            tenure: Some(tenure),
            energy_joules_total: (!away.contains(&second)).then_some(f64::from(second) * 10.0),
            ..gpu("a", f64::from(second), 0.0)
        };
        bench.put(stay(1, 1)).put(last(stay(10, 1)));
        for second in 11..=70 {
            bench.put(stay(second, 2));
        }
        bench.finish();
        let sum: f64 = bench.windows.iter().map(|w| w.energy_joules.unwrap_or(0.0) + w.unassigned_energy_joules).sum();
        assert_eq!(round(sum), 90.0 + 590.0, "away at {away:?}");
    }
}

#[test]
fn two_collectors_of_one_gpu_do_not_double_its_energy() {
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        let second = f64::from(second);
        let exporter = GpuTelemetry { collector: "dcgm/node-1".to_owned(), ..gpu("a", second, second * 99.0) };
        bench.put(exporter).put(gpu("a", second, second * 100.0));
    }
    bench.put(GpuTelemetry { collector: "dcgm/node-1".to_owned(), ..gpu("a", 61.0, 61.0 * 99.0) });
    assert_eq!(bench.energies(), [(0.0, Some(6000.0))]);
    assert_eq!(bench.windows[0].gpus, 1);
    // Integrated power gives way to a counter from any collector.
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        let second = f64::from(second);
        let exporter = GpuTelemetry { collector: "dcgm/node-1".to_owned(), ..gpu("a", second, second * 99.0) };
        bench.put(exporter).put(power("a", second, 100.0));
    }
    assert_eq!(bench.energies(), [(0.0, Some(5940.0))]);
}

#[test]
fn the_energy_of_a_gap_that_another_collector_covered_is_not_counted_again() {
    let mut bench = Bench::default();
    let exporter = |second: f64| GpuTelemetry { collector: "dcgm/node-1".to_owned(), ..gpu("a", second, second * 100.0) };
    for second in (0..=600).step_by(10) {
        let second = f64::from(second);
        bench.put(exporter(second));
        if !(100.0..500.0).contains(&second) {
            bench.put(gpu("a", second, second * 100.0));
        }
    }
    let sum: f64 = bench.windows.iter().map(|w| w.energy_joules.unwrap() + w.unassigned_energy_joules).sum();
    assert_eq!((bench.windows.len(), round(sum)), (10, 60_000.0));
}

#[test]
fn a_wall_meter_is_not_added_to_the_gpus_behind_it() {
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        let second = f64::from(second);
        bench.put(GpuTelemetry { meter: Meter::Wall, ..gpu("wall", second, second * 300.0) });
        bench.put(gpu("a", second, second * 100.0));
    }
    assert_eq!((bench.windows[0].meter, bench.windows[0].energy_joules.map(round)), (Meter::Gpu, Some(6000.0)));
}

#[test]
fn a_fall_of_the_progress_counter_is_a_restart_and_never_speed() {
    let mut bench = Bench::default();
    for (second, samples) in [(0.0, 0.0), (20.0, 200.0), (30.0, 50.0), (60.0, 350.0)] {
        bench.put(gpu("a", second, second)).put(rank(0, second, samples));
    }
    let window = &bench.windows[0];
    assert_eq!((window.samples, window.samples_redone), (Some(350.0), 150.0));
    assert_eq!(round(window.progress_coverage_ratio), round(50.0 / 60.0));
    assert!(window.restarted);
    let mut bench = Bench::default();
    for (second, samples, at_phase) in [
        (0.0, 0.0, JobLifecycle::Started),
        (20.0, 200.0, JobLifecycle::Finished),
        (30.0, 0.0, JobLifecycle::Started),
        (60.0, 300.0, JobLifecycle::Progress),
    ] {
        bench.put(phase(second, samples, at_phase));
    }
    bench.put(rank(0, 70.0, 400.0));
    assert_eq!((bench.windows[0].samples, bench.windows[0].samples_redone), (Some(500.0), 0.0), "a new job redoes nothing");
}

fn loss(second: f64) -> TrainingProgress {
    TrainingProgress { samples_total: None, loss: Some(2.0), ..rank(0, second, 0.0) }
}

/// Returns the progress figures of the windows.
fn progress(bench: &Bench) -> Vec<(f64, f64, f64, Option<f64>)> {
    let part = |w: &eadt_schemas::v1::EfficiencyWindow| {
        let samples = (w.samples.map_or(0.0, round), round(w.unassigned_samples));
        (samples.0, samples.1, w.progress_coverage_ratio, w.joules_per_sample.map(round))
    };
    bench.windows.iter().map(part).collect()
}

#[test]
fn an_event_that_leaves_a_counter_out_loses_nothing_of_it() {
    let run = |every: i32, losses: bool| {
        let mut bench = Bench::default();
        for second in 0..=250 {
            let now = f64::from(second);
            bench.put(gpu("a", now, now * 100.0));
            if second % every == 0 {
                bench.put(TrainingProgress {
                    tokens_total: (second % 50 == 0).then_some(now * 512.0),
                    ..rank(0, now, now * 10.0)
                });
            } else if losses && second % 3 == 1 {
                bench.put(loss(now));
            }
        }
        bench
    };
    for every in [10, 25, 50] {
        let (with, without) = (run(every, true), run(every, false));
        assert_eq!(with.starts(), [0.0, 60.0, 120.0, 180.0], "every {every} s");
        assert_eq!(progress(&with), progress(&without), "every {every} s");
        assert_eq!(progress(&with), [(600.0, 0.0, 1.0, Some(10.0)); 4], "every {every} s");
        let tokens = |bench: &Bench| bench.windows.iter().map(|w| w.tokens).collect::<Vec<_>>();
        assert_eq!((tokens(&with), tokens(&with)[0]), (tokens(&without), Some(60.0 * 512.0)));
        let gap = |bench: &Bench| bench.windows.iter().map(|w| w.progress_largest_gap_seconds).collect::<Vec<_>>();
        assert_eq!(gap(&with), gap(&without));
        assert_eq!(with.windows[0].mean_loss, Some(2.0));
    }
}

#[test]
fn a_counter_that_stays_away_holds_the_windows_as_long_as_a_silent_source_and_its_rest_is_unassigned() {
    let mut bench = Bench::default();
    bench.put(rank(0, 0.0, 0.0)).put(rank(0, 50.0, 500.0));
    for second in (55..=165).step_by(5) {
        bench.put(loss(f64::from(second)));
    }
    assert_eq!(bench.starts(), Vec::<f64>::new());
    bench.put(loss(170.0));
    assert_eq!(bench.starts(), [0.0, 60.0]);
    bench.put(rank(0, 175.0, 1750.0)).put(rank(0, 185.0, 1850.0));
    // Whether others' events closed the windows before the counter came back makes no difference.
    assert_eq!(progress(&bench), [(500.0, 0.0, 50.0 / 60.0, None), (0.0, 0.0, 0.0, None), (50.0, 1250.0, 5.0 / 60.0, None)]);
    // Rates that follow show when again.
    let mut bench = Bench::default();
    let rate = |second: f64| TrainingProgress { samples_total: None, samples_per_second: Some(10.0), ..rank(0, second, 0.0) };
    bench.put(rank(0, 0.0, 0.0)).put(rate(110.0)).put(loss(120.0)).put(rate(125.0)).put(rate(240.0)).put(rank(0, 250.0, 2800.0));
    bench.finish();
    let figures = bench.windows.iter().map(|w| (w.samples.map(round), w.unassigned_samples)).collect::<Vec<_>>();
    assert_eq!(figures, [(None, 0.0), (Some(100.0), 0.0), (Some(600.0), 0.0), (Some(600.0), 0.0), (None, 1500.0)]);
    // Across a silence the difference has no time, whatever came first after it.
    let mut bench = Bench::default();
    bench.put(rank(0, 0.0, 0.0)).put(rank(0, 50.0, 500.0));
    for second in (60..=240).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    bench.put(loss(245.0)).put(rank(0, 250.0, 900.0)).put(rank(0, 300.0, 1400.0));
    assert_eq!(
        bench.windows.iter().map(|w| (w.samples, w.unassigned_samples)).collect::<Vec<_>>(),
        [(Some(500.0), 0.0), (Some(500.0), 400.0)]
    );
}

#[test]
fn a_second_event_of_one_instant_brings_the_counter_that_the_first_left_out() {
    let mut bench = Bench::default();
    bench.put(rank(0, 0.0, 0.0)).put(loss(60.0));
    assert_eq!(bench.starts(), Vec::<f64>::new());
    bench.put(rank(0, 60.0, 600.0)).put(rank(0, 60.0, 600.0)).put(rank(0, 120.0, 1200.0));
    assert_eq!(progress(&bench), [(600.0, 0.0, 1.0, None); 2]);
    assert_eq!(bench.windows.iter().map(|w| w.duplicates).sum::<u64>(), 1);
}

#[test]
fn a_sample_without_the_energy_counter_does_not_divide_its_difference() {
    // One failed read with power, one without anything; power readings are 20 % off.
    for watts in [Some(120.0), None] {
        let mut bench = Bench::default();
        for second in (0..=180).step_by(10) {
            let now = f64::from(second);
            let failed = matches!(second, 30 | 60 | 110 | 120 | 130);
            let event = GpuTelemetry { power_watts: watts, ..gpu("a", now, now * 100.0) };
            bench.put(if failed { GpuTelemetry { energy_joules_total: None, ..event } } else { event });
        }
        assert_eq!(bench.energies(), [(0.0, Some(6000.0)), (60.0, Some(6000.0)), (120.0, Some(6000.0))], "{watts:?}");
        assert!(bench.windows.iter().all(|w| w.energy_method == EnergyMethod::Counter && w.energy_coverage_ratio == 1.0));
        assert!(bench.windows.iter().all(|w| w.unassigned_energy_joules == 0.0));
    }
}

#[test]
fn a_counter_that_stays_away_too_long_gives_way_to_power_and_the_whole_stays_whole() {
    for (watts, energies) in [(Some(80.0), [6000.0, 4800.0, 4800.0, 5200.0]), (None, [6000.0, 0.0, 0.0, 2000.0])] {
        let mut bench = Bench::default();
        for second in (0..=240).step_by(10) {
            let now = f64::from(second);
            let event = GpuTelemetry { power_watts: watts, ..gpu("a", now, now * 100.0) };
            bench.put(if (70..220).contains(&second) { GpuTelemetry { energy_joules_total: None, ..event } } else { event });
        }
        let seen: Vec<f64> = bench.windows.iter().map(|w| w.energy_joules.map_or(0.0, round)).collect();
        assert_eq!(seen, energies, "{watts:?}");
        let whole: f64 = bench.windows.iter().map(|w| w.energy_joules.unwrap_or(0.0) + w.unassigned_energy_joules).sum();
        assert_eq!(round(whole), 24_000.0, "{watts:?}");
    }
    // The windows close while the counter is away: what power gave for closed time counts once.
    let mut bench = Bench::default();
    let read = |second: f64| GpuTelemetry { power_watts: Some(80.0), ..gpu("a", second, second * 100.0) };
    let failed = |second: f64| GpuTelemetry { energy_joules_total: None, ..read(second) };
    bench.put(read(0.0)).put(read(50.0)).put(last(failed(70.0)));
    assert_eq!(bench.energies(), [(0.0, Some(5800.0)), (60.0, Some(800.0))]);
    let mut bench = Bench::default();
    bench.put(read(0.0)).put(read(50.0)).put(failed(70.0));
    for second in (80..=200).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    bench.put(failed(210.0)).put(read(220.0)).put(read(240.0));
    let parts: Vec<_> = bench.windows.iter().map(|w| (w.energy_joules.map(round), round(w.unassigned_energy_joules))).collect();
    assert_eq!(parts, [(Some(5800.0), 0.0), (Some(800.0), 0.0), (Some(2800.0), 14_600.0)]);
}

#[test]
fn global_progress_counts_once_and_ranks_are_summed() {
    for (scope, samples) in [(CounterScope::Global, 600.0), (CounterScope::Rank, 1200.0)] {
        let mut bench = Bench::default();
        for second in (0..=60).step_by(10) {
            let second = f64::from(second);
            for r in 0..2 {
                bench.put(TrainingProgress { scope, ..rank(r, second, second * 10.0) });
            }
        }
        let window = &bench.windows[0];
        assert_eq!(window.samples.map(round), Some(samples), "{scope:?}");
        assert_eq!(window.samples_per_second.map(round), Some(samples / 60.0), "{scope:?}");
        assert_eq!(window.progress_coverage_ratio, 1.0);
        assert_eq!(window.ranks, if scope == CounterScope::Global { 1 } else { 2 });
    }
}

#[test]
fn energy_and_time_of_a_run_are_exact_and_power_around_it_does_not_count() {
    let mut bench = Bench::default();
    for second in 0..=200 {
        let now = f64::from(second);
        if second == 75 {
            bench.put(phase(75.25, 0.0, JobLifecycle::Started));
        }
        if second == 100 {
            bench.put(rank(0, 100.0, 500.0));
        }
        if second == 131 {
            bench.put(TrainingProgress { last: true, ..phase(130.75, 1000.0, JobLifecycle::Finished) });
        }
        // 10 W, 100 W while the job runs.
        let joules = if second < 75 { now * 10.0 } else { 750.0 + (now - 75.0) * 100.0 };
        bench.put(gpu("a", now, joules));
    }
    let runs: Vec<_> = bench.windows.iter().map(|w| (w.run_declared, w.run_seconds, w.run_energy_joules.map(round))).collect();
    assert_eq!(runs[0], (false, 60.0, Some(600.0)), "nothing was declared yet");
    assert_eq!(runs[1], (true, 44.75, Some(4475.0)));
    assert_eq!(runs[2], (true, 10.75, Some(1075.0)));
    assert_eq!(bench.windows[1].run_coverage_ratio, 1.0);
    // Efficiency is that of the run: idle time before it is left out.
    assert_eq!(bench.windows[2].mean_power_watts.map(round), Some(100.0));
}

#[test]
fn a_span_is_exact_to_its_ends_over_windows_and_the_remainder_belongs_to_the_next() {
    let mut bench = Bench::default();
    let span = |second: f64, name: &str| TrainingProgress { span: Some(name.to_owned()), ..rank(0, second, second * 2.0) };
    for second in 0..=300 {
        let now = f64::from(second);
        match second {
            10 => drop(bench.put(span(9.5, "epoch 1"))),
            151 => drop(bench.put(span(150.25, "epoch 2"))),
            171 => drop(bench.put(span(170.5, ""))),
            _ if second % 20 == 0 => drop(bench.put(rank(0, now, now * 2.0))),
            _ => {}
        }
        bench.put(power("a", now, 100.0));
    }
    bench.put(rank(0, 301.0, 602.0));
    let spans: Vec<_> = bench
        .spans
        .iter()
        .map(|s| (s.span.clone().unwrap(), s.window_start, s.window_end, round(s.energy_joules.unwrap()), s.samples.map(round)))
        .collect();
    assert_eq!(
        spans,
        [
            ("epoch 1".to_owned(), at(9.5), at(150.25), 14_075.0, Some(281.5)),
            ("epoch 2".to_owned(), at(150.25), at(170.5), 2025.0, Some(40.5)),
        ]
    );
    assert_eq!(bench.spans[0].energy_coverage_ratio, 1.0);
    assert_eq!(round(bench.spans[0].joules_per_sample.unwrap()), 50.0);
    assert_eq!(bench.spans[0].late_tables + bench.windows.iter().map(|w| w.late_tables).sum::<u64>(), 0);
}

#[test]
fn a_span_that_several_ranks_name_is_published_once_in_the_words_of_the_first() {
    let mut bench = Bench::default();
    for second in 0..=120 {
        let now = f64::from(second);
        for number in 0..2 {
            // The second rank names everything a second later.
            let span = match second {
                10 => Some("epoch 1"),
                50 => Some(""),
                _ => None,
            };
            let event = rank(number, now + f64::from(number), now * 2.0);
            if span.is_some() || second % 20 == 0 {
                bench.put(TrainingProgress { span: span.map(ToOwned::to_owned), ..event });
            }
        }
        bench.put(power("a", now, 100.0));
    }
    let spans: Vec<_> = bench.spans.iter().map(|s| (s.span.as_deref(), s.window_start, s.window_end)).collect();
    assert_eq!(spans, [(Some("epoch 1"), at(10.0), at(50.0))]);
}

#[test]
fn every_gauge_has_its_mean_in_the_window() {
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        let gauge = |n: u32| Some(f64::from(n) / 10.0);
        bench.put(GpuTelemetry {
            utilization_ratio: gauge(1),
            memory_utilization_ratio: gauge(2),
            sm_active_ratio: gauge(3),
            sm_occupancy_ratio: gauge(4),
            tensor_active_ratio: gauge(5),
            dram_active_ratio: gauge(6),
            sm_clock_mhz: Some(1_000.0 + f64::from(second)),
            temperature_celsius: Some(60.0 + f64::from(second) / 10.0),
            ..gpu("a", f64::from(second), f64::from(second) * 100.0)
        });
    }
    let window = &bench.windows[0];
    let means = [
        window.mean_utilization_ratio,
        window.mean_memory_utilization_ratio,
        window.mean_sm_active_ratio,
        window.mean_sm_occupancy_ratio,
        window.mean_tensor_active_ratio,
        window.mean_dram_active_ratio,
    ];
    assert_eq!(means.map(|mean| mean.map(round)), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6].map(Some));
    // Samples at 0 to 50 s lie in it, the one at its end in the next.
    assert_eq!((window.mean_sm_clock_mhz.map(round), window.mean_temperature_celsius.map(round)), (Some(1_025.0), Some(62.5)));
    assert_eq!(window.max_temperature_celsius, Some(65.0));
}

#[test]
fn power_readings_far_apart_show_nothing_about_the_time_between() {
    let mut bench = Bench::new(FoldSettings { idle_grace: None, ..FoldSettings::default() });
    bench.put(power("a", 0.0, 100.0)).put(power("a", 60.0, 100.0)).put(power("a", 300.0, 100.0)).put(power("a", 360.0, 100.0));
    let coverage: Vec<f64> = bench.windows.iter().map(|w| w.energy_coverage_ratio).collect();
    assert_eq!(coverage, [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    assert_eq!(bench.windows[1].energy_joules, None, "unknown is not zero");
}

#[test]
fn a_gpu_without_a_workload_has_windows_and_no_decisions() {
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        let second = f64::from(second);
        bench.put(GpuTelemetry { workload: None, ..gpu("GPU-1", second, second * 20.0) });
        bench.put(GpuTelemetry { workload: None, ..gpu("GPU-2", second, second * 20.0) });
    }
    assert_eq!((bench.windows.len(), bench.decisions.len()), (2, 0));
    assert!(bench.windows.iter().all(|w| w.workload == "gpus" && w.energy_joules.map(round) == Some(1200.0)));
    assert_ne!(bench.windows[0].id, bench.windows[1].id);
}

#[test]
fn layouts_prices_and_restarts_are_those_of_the_windows_end() {
    let mut bench = Bench::default();
    let priced = |second: f64, generation, price| Workload {
        price_per_kwh: Some(price),
        carbon_grams_per_kwh: Some(400.0),
        layout: Layout { replicas: Some(generation as u32), ..Layout::default() },
        origin: Origin::Simulated,
        ..layout(second, generation)
    };
    bench.put(priced(-5.0, 1, 0.2));
    steady(&mut bench, "a", 0, 60, 10);
    bench.put(priced(61.0, 2, 0.4));
    let note = |second: f64, outcome| Actuation { time: at(second), workload: JOB.to_owned(), outcome, ..Actuation::default() };
    let ready = note(130.0, ActuationOutcome::Ready);
    for second in (70..=240).step_by(10) {
        if second == 130 {
            let mut out = Vec::new();
            let input = eadt_core::InputRecord {
                topic: eadt_schemas::Topic::Actuations,
                stamp: at(130.0),
                key: Some(JOB),
                is_sent_again: false,
                event: eadt_core::InputEvent::Actuation(&ready),
            };
            bench.partition.fold(&input, &mut out);
            bench.keep(out);
        }
        steady(&mut bench, "a", second, second, 10);
    }
    let seen: Vec<_> =
        bench.windows.iter().map(|w| (w.layout.clone().and_then(|l| l.replicas), w.restarted, w.cost.map(round))).collect();
    let kwh = 6000.0 / 3.6e6;
    assert_eq!(seen[0], (Some(1), false, Some(round(kwh * 0.2))));
    assert_eq!(seen[1], (Some(2), true, Some(round(kwh * 0.4))));
    assert_eq!((seen[2].1, seen[3].1), (true, false), "ready in the third window");
    assert_eq!(bench.windows[0].co2_grams.map(round), Some(round(kwh * 400.0)));
}

#[test]
fn a_layout_that_comes_late_is_counted() {
    let mut bench = Bench::default();
    steady(&mut bench, "a", 0, 30, 10);
    bench.stamped(31.0, layout(15.0, 1));
    steady(&mut bench, "a", 40, 60, 10);
    assert_eq!(bench.windows[0].late_tables, 1);

    // Also if only GPUs report, and where nothing was summed yet it is not late.
    let mut bench = Bench::default();
    for second in [0.0, 10.0, 20.0, 30.0] {
        bench.put(gpu("a", second, second));
    }
    bench.stamped(31.0, layout(15.0, 1));
    bench.stamped(31.0, layout(45.0, 2));
    for second in [40.0, 50.0, 60.0, 121.0] {
        bench.put(gpu("a", second, second));
    }
    assert_eq!(bench.windows[0].late_tables, 1);
}

#[test]
fn the_name_in_a_record_must_be_its_key() {
    let mut bench = Bench::default();
    let event = gpu("a", 0.0, 0.0);
    let mut out = Vec::new();
    let input = eadt_core::InputRecord {
        topic: eadt_schemas::Topic::GpuTelemetry,
        stamp: at(0.0),
        key: Some("team/other"),
        is_sent_again: false,
        event: eadt_core::InputEvent::Telemetry(&event),
    };
    bench.partition.fold(&input, &mut out);
    bench.keep(out);
    assert_eq!(bench.reasons(), [DeadLetterReason::WrongKey]);
}

#[test]
fn new_sources_and_workloads_beyond_the_caps_are_refused_and_old_ones_go_on() {
    let settings = FoldSettings { max_sources: 3, max_sources_per_workload: 2, max_workloads: 2, ..FoldSettings::default() };
    let mut bench = Bench::new(settings);
    let of = |workload: &str, device: &str, second: f64| GpuTelemetry {
        workload: Some(workload.to_owned()),
        ..gpu(device, second, second)
    };
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("b", 0.0, 0.0)).put(gpu("c", 0.0, 0.0));
    bench.put(of("team/two", "d", 0.0)).put(of("team/two", "e", 0.0)).put(of("team/three", "f", 0.0));
    assert_eq!(bench.reasons(), [DeadLetterReason::StateLimit; 3]);
    bench.put(gpu("a", 60.0, 60.0)).put(gpu("b", 60.0, 60.0));
    assert_eq!(bench.energies(), [(0.0, Some(120.0))]);
}

#[test]
fn one_who_invents_names_fills_his_own_share_and_newcomers_of_others_have_room() {
    let settings = FoldSettings {
        max_workloads: 12,
        max_workloads_per_namespace: 3,
        max_sources: 40,
        max_sources_per_namespace: 6,
        retention: 600 * SECOND,
        ..FoldSettings::default()
    };
    let mut bench = Bench::new(settings.clone());
    let of = |workload: String, device: String| GpuTelemetry { workload: Some(workload), ..gpu(&device, 0.0, 0.0) };
    let loose = |device: String, collector: &str| GpuTelemetry {
        workload: None,
        collector: collector.to_owned(),
        ..gpu(&device, 0.0, 0.0)
    };
    for n in 0..10 {
        bench.put(of(format!("greedy/{n}"), format!("w{n}"))).put(loose(format!("d{n}"), "nvml/greedy"));
        bench.put(of("wide/job".to_owned(), format!("g{n}")));
    }
    // 7 of each are too many, and 4 of the sources of `wide`.
    assert_eq!(bench.reasons(), [DeadLetterReason::StateLimit; 7 + 7 + 4]);
    for (at, words) in [
        (0, "3 workloads of the namespace \"greedy\" is reached (processor.max_workloads_per_namespace)"),
        (1, "3 workloads of the collector \"nvml/greedy\" is reached"),
        (8, "6 sources of the namespace \"wide\" is reached (processor.max_sources_per_namespace)"),
    ] {
        assert!(bench.refused[at].detail.contains(words), "{}", bench.refused[at].detail);
    }
    // Newcomers of others, and what was known, go on; so it is after a restore.
    let records: Vec<_> = bench.partition.take_changes().into_iter().map(|record| (record.key, record.value)).collect();
    bench.partition = eadt_core::PartitionFold::restore(settings, records).unwrap();
    bench.refused.clear();
    bench.put(gpu("mine", 0.0, 0.0)).put(loose("loose".to_owned(), "nvml/other")).put(of("wide/job".to_owned(), "g1".to_owned()));
    assert_eq!(bench.reasons(), []);
    bench.put(of("greedy/new".to_owned(), "w".to_owned())).put(loose("new".to_owned(), "nvml/greedy"));
    bench.put(of("wide/job".to_owned(), "new".to_owned()));
    assert_eq!(bench.reasons(), [DeadLetterReason::StateLimit; 3]);
    // Forgotten workloads make room.
    for ten in 1..90 {
        bench.heartbeat(f64::from(ten) * 10.0);
    }
    bench.refused.clear();
    for n in 10..13 {
        let stamp = 900.0;
        bench.stamped(stamp, GpuTelemetry { time: at(stamp), ..of(format!("greedy/{n}"), "w".to_owned()) });
        bench.stamped(stamp, GpuTelemetry { time: at(stamp), ..loose(format!("d{n}"), "nvml/greedy") });
    }
    assert_eq!(bench.reasons(), []);
}

#[test]
fn few_events_of_many_sources_take_no_room_for_all_that_one_of_them_has_cut() {
    let settings = FoldSettings { max_sources_per_namespace: 100, ..FoldSettings::default() };
    let room = settings.max_sums_per_namespace();
    assert_eq!(room, 4_000);
    let mut bench = Bench::new(settings);
    // One rank of a job reports that it began, again and again, which cuts its window each time.
    for n in 0..1_000 {
        bench.put(phase(1.0 + f64::from(n) / 1e3, 0.0, JobLifecycle::Started));
    }
    assert_eq!(bench.reasons(), [], "that is what it reported itself");
    // Others speak at both ends of the window: each would have sums for every one of these stretches.
    for number in 1..50 {
        bench.put(rank(number, 0.5, 0.0));
    }
    assert_eq!(bench.reasons().len(), 49, "two sources of 1,002 cuts are more than the half that cuts and newcomers may have");
    assert_eq!(bench.reasons()[0], DeadLetterReason::StateLimit);
    let detail = &bench.refused[0].detail;
    assert!(
        detail.contains("of the namespace \"team\" would be more than 2000 (by processor.max_sources_per_namespace)"),
        "{detail}"
    );
    // Nor may that one go on to cut, and others are not concerned.
    bench.refused.clear();
    for n in 1_000..2_000 {
        bench.put(phase(1.0 + f64::from(n) / 1e3, 0.0, JobLifecycle::Started));
    }
    assert_eq!(bench.reasons().last(), Some(&DeadLetterReason::StateLimit));
    bench.refused.clear();
    bench.put(GpuTelemetry { workload: Some("other/job".to_owned()), ..gpu("b", 3.0, 0.0) });
    assert_eq!(bench.reasons(), []);
    // Windows open all the same, and what has closed makes room.
    bench.refused.clear();
    bench.put(rank(0, 61.0, 10.0)).put(rank(77, 62.0, 0.0));
    assert_eq!((bench.reasons(), bench.starts()), (vec![], vec![0.0]));
}

#[test]
fn one_event_of_a_far_future_opens_no_years_of_windows() {
    let mut bench = Bench::new(FoldSettings { max_future: None, ..FoldSettings::default() });
    bench.put(gpu("a", 0.0, 0.0)).stamped(1.0, gpu("b", 1e9, 0.0)).put(gpu("a", 60.0, 60.0));
    assert_eq!((bench.reasons(), bench.starts()), (vec![], vec![0.0]));
    // No window of another source closes before its time.
    bench.put(gpu("a", 121.0, 121.0)).stamped(122.0, gpu("b", 1e9 + 1.0, 0.0)).put(gpu("a", 180.0, 180.0));
    assert_eq!((bench.reasons(), bench.starts()), (vec![], vec![0.0, 60.0, 120.0]));
    // With the log's clock to hold it against, it is refused.
    let mut bench = Bench::default();
    bench.put(gpu("a", 0.0, 0.0)).stamped(1.0, gpu("b", 1e9, 0.0)).put(gpu("b", 2.0, 0.0));
    assert_eq!(bench.reasons(), [DeadLetterReason::FutureTime]);
}

#[test]
fn an_import_of_several_sources_into_a_live_log_goes_on_after_a_gap_of_weeks() {
    for window in [1, 60] {
        let settings = FoldSettings { max_future: None, window: window * SECOND, join_grace: 0, ..FoldSettings::default() };
        let mut bench = Bench::new(settings);
        let mut stamp = 0.0;
        for begin in [0.0, 40.0 * DAY] {
            for second in (0..=120).step_by(10) {
                for device in ["a", "b", "c"] {
                    let now = begin + f64::from(second);
                    let ends = begin > 0.0 && second == 120;
                    bench.stamped(stamp, GpuTelemetry { last: ends, ..gpu(device, now, now) });
                    bench.stamped(stamp, TrainingProgress { last: ends, ..rank(0, now, now * 2.0) });
                    // At the greatest rate of a log.
                    stamp += 0.001;
                }
            }
        }
        assert_eq!(bench.reasons(), [], "windows of {window} s");
        assert_eq!(energy_of(&bench), (3.0 * 240.0, 3.0 * (40.0 * DAY - 120.0)), "windows of {window} s");
        assert!(bench.windows.len() < 250, "none for the time between: {}", bench.windows.len());
    }
}

const DAY: f64 = 86_400.0;

/// Returns energy in windows, energy unassigned.
fn energy_of(bench: &Bench) -> (f64, f64) {
    let joules = bench.windows.iter().filter_map(|w| w.energy_joules).sum::<f64>();
    (round(joules), round(bench.windows.iter().map(|w| w.unassigned_energy_joules).sum::<f64>()))
}

#[test]
fn after_a_gap_of_weeks_in_a_file_its_readings_go_on() {
    let mut bench = Bench::new(FoldSettings { max_future: None, idle_grace: None, ..FoldSettings::default() });
    for begin in [0.0, 40.0 * DAY] {
        for second in (0..=120).step_by(10) {
            for device in ["a", "b"] {
                let second = begin + f64::from(second);
                bench.put(gpu(device, second, second)).put(rank(0, second, second * 2.0));
            }
        }
    }
    bench.finish();
    assert_eq!(bench.reasons(), []);
    let starts = [0.0, 40.0 * DAY].map(|begin| [0.0, 60.0, 120.0].map(|second| begin + second)).concat();
    assert_eq!(bench.starts(), starts, "none between");
    assert_eq!(energy_of(&bench), (480.0, 2.0 * (40.0 * DAY - 120.0)), "the gap's is whole in unassigned");
    assert_eq!(round(bench.windows.iter().map(|w| w.unassigned_samples).sum::<f64>()), 2.0 * (40.0 * DAY - 120.0));
    assert_eq!(bench.windows[0].energy_coverage_ratio, 1.0);
}

#[test]
fn after_days_without_a_log_its_stamps_vouch_for_the_time_even_of_short_windows() {
    let mut bench = Bench::new(FoldSettings { window: 5 * SECOND, ..FoldSettings::default() });
    let gap = 36.0 * 3600.0;
    for begin in [0.0, gap] {
        for second in 0..=30 {
            let second = begin + f64::from(second);
            bench.put(gpu("a", second, second)).put(gpu("b", second, second));
        }
    }
    assert_eq!(bench.reasons(), []);
    assert_eq!((bench.windows.len(), energy_of(&bench)), (13, (120.0, 2.0 * (gap - 30.0))));
}

#[test]
fn nobodys_windows_close_before_their_time_where_one_source_leaps() {
    let mut bench = Bench::new(FoldSettings { max_future: None, idle_grace: None, ..FoldSettings::default() });
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("b", 0.0, 0.0)).put(gpu("b", 10.0 * DAY, 10.0 * DAY));
    assert_eq!((bench.reasons(), bench.starts()), (vec![], vec![]));
    for second in (10..=300).step_by(10) {
        bench.put(gpu("a", f64::from(second), f64::from(second)));
    }
    assert_eq!(bench.starts(), [0.0, 60.0, 120.0, 180.0, 240.0], "one after the other");
    // Into the middle of the unopened windows, then to the other.
    bench.put(gpu("a", 5.0 * DAY, 5.0 * DAY)).put(gpu("a", 5.0 * DAY + 60.0, 5.0 * DAY + 60.0));
    assert_eq!(bench.starts()[5..], [300.0, 5.0 * DAY]);
    bench.put(gpu("a", 10.0 * DAY + 60.0, 10.0 * DAY + 60.0)).put(gpu("b", 10.0 * DAY + 60.0, 10.0 * DAY + 60.0));
    assert_eq!(bench.starts()[7..], [5.0 * DAY + 60.0, 10.0 * DAY]);
    bench.finish();
    let (assigned, unassigned) = energy_of(&bench);
    assert_eq!((assigned, bench.reasons()), (300.0 + 60.0 + 60.0, vec![]));
    assert_eq!(assigned + unassigned, 2.0 * (10.0 * DAY + 60.0));
    // Windows in between are closed.
    bench.put(gpu("c", 9.0 * DAY, 0.0));
    assert_eq!(bench.reasons(), [DeadLetterReason::Late]);
}

#[test]
fn windows_before_the_open_ones_are_opened_over_a_gap_too() {
    let mut bench = Bench::new(FoldSettings { max_future: None, idle_grace: None, ..FoldSettings::default() });
    bench.put(gpu("a", 40.0 * DAY, 0.0)).put(gpu("b", 0.0, 0.0)).put(gpu("b", 60.0, 60.0)).put(gpu("b", 40.0 * DAY + 1.0, 100.0));
    bench.finish();
    assert_eq!((bench.reasons(), bench.starts()), (vec![], vec![0.0, 60.0, 40.0 * DAY]));
    assert_eq!(energy_of(&bench), (60.0, 40.0));
}

#[test]
fn a_source_that_does_not_move_lets_no_more_windows_be_open_than_the_cap() {
    let settings = FoldSettings { max_future: None, idle_grace: None, max_open_windows: 10, ..FoldSettings::default() };
    let mut bench = Bench::new(settings);
    bench.put(gpu("still", 0.0, 0.0));
    for n in 0..12 {
        bench.put(gpu("a", f64::from(n) * 60.0, 0.0));
    }
    assert_eq!(bench.reasons(), [DeadLetterReason::StateLimit; 2]);
    assert!(bench.refused[0].detail.contains("at most 10 may be open"), "{}", bench.refused[0].detail);
    bench.put(last(gpu("still", 1.0, 0.0))).put(gpu("a", 720.0, 0.0));
    assert_eq!((bench.reasons().len(), bench.windows.len()), (2, 12));
}

#[test]
fn windows_of_another_length_leave_a_gap_a_gap() {
    let settings = FoldSettings { max_future: None, idle_grace: None, ..FoldSettings::default() };
    let mut bench = Bench::new(settings.clone());
    bench.put(gpu("a", 0.0, 0.0)).put(gpu("b", 0.0, 0.0)).put(gpu("b", 40.0 * DAY, 1.0));
    let mut committed = Vec::new();
    for window in [7, 3600] {
        let written = bench.partition.take_changes().into_iter().map(|record| (record.key, record.value));
        committed.extend(written);
        let other = FoldSettings { window: window * SECOND, ..settings.clone() };
        bench.partition = eadt_core::PartitionFold::restore(other, committed.clone()).unwrap();
    }
    bench.put(gpu("a", 40.0 * DAY, 1.0));
    bench.finish();
    assert!(bench.windows.len() < 20, "{:?}", bench.starts());
    // The longer windows have no silence; energy outside of them is unassigned.
    let (assigned, unassigned) = energy_of(&bench);
    assert_eq!((assigned < 0.01, round(assigned + unassigned)), (true, 2.0));
}

#[test]
fn mean_power_extrapolates_each_device_over_time_and_none_to_another() {
    let mut bench = Bench::default();
    let blind = |second: f64| GpuTelemetry { energy_joules_total: None, utilization_ratio: Some(0.5), ..gpu("e", second, 0.0) };
    for second in (0..=60).step_by(10) {
        let second = f64::from(second);
        for (device, watts) in [("a", 400.0), ("b", 400.0), ("c", 300.0)] {
            bench.put(gpu(device, second, second * watts));
        }
        // Half of the window only.
        if second >= 30.0 {
            bench.put(gpu("d", second, second * 200.0));
        }
        bench.put(blind(second));
    }
    let window = &bench.windows[0];
    assert_eq!((window.gpus, window.energy_joules.map(round)), (5, Some(72_000.0)));
    assert_eq!((window.mean_power_watts.map(round), window.mean_power_per_gpu_watts.map(round)), (Some(1300.0), Some(325.0)));
    assert_eq!(round(window.energy_coverage_ratio), 0.7);
}

#[test]
fn a_workload_is_forgotten_only_after_the_inputs_retention() {
    let settings = FoldSettings { retention: 1000 * SECOND, ..FoldSettings::default() };
    let mut bench = Bench::new(settings);
    bench.put(gpu("a", 0.0, 0.0)).put(last(gpu("a", 60.0, 60.0)));
    let mut committed = Vec::new();
    bench.crash(&mut committed);
    for second in (70..1000).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    assert_eq!(bench.partition.workload_and_source_counts(), (1, 1));
    for second in (1000..2000).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    assert_eq!(bench.partition.workload_and_source_counts(), (0, 0));
    let deleted: Vec<_> = bench.partition.take_changes().into_iter().filter(|r| r.value.is_none()).map(|r| r.key).collect();
    assert_eq!(deleted, [format!("{JOB}#0")]);
}

#[test]
fn a_workload_that_is_managed_no_more_is_forgotten_only_after_the_inputs_retention() {
    let mut bench = Bench::new(FoldSettings { retention: 1000 * SECOND, ..FoldSettings::default() });
    bench.put(layout(0.0, 1));
    let mut out = Vec::new();
    let input = eadt_core::InputRecord {
        topic: eadt_schemas::Topic::Workloads,
        stamp: at(1.0),
        key: Some(JOB),
        is_sent_again: false,
        event: Item::Gone.event(),
    };
    bench.partition.fold(&input, &mut out);
    for second in (10..900).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    assert_eq!(bench.partition.workload_and_source_counts(), (1, 0));
    for second in (900..2000).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    assert_eq!(bench.partition.workload_and_source_counts(), (0, 0));
}

#[test]
fn power_that_is_a_mean_over_time_is_integrated_like_that_of_an_instant() {
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        let average = GpuTelemetry { power_watts: None, power_average_watts: Some(200.0), ..power("a", f64::from(second), 0.0) };
        bench.put(average);
    }
    assert_eq!(bench.energies(), [(0.0, Some(12_000.0))]);
    assert_eq!(bench.windows[0].energy_method, EnergyMethod::Integral);
}

#[test]
fn a_device_that_left_is_not_missed_as_long_as_another_stays() {
    let mut bench = Bench::default();
    for second in (0..=60).step_by(10) {
        let second = f64::from(second);
        if second <= 30.0 {
            let sample = gpu("b", second, second * 50.0);
            bench.put(if second == 30.0 { last(sample) } else { sample });
        }
        bench.put(gpu("a", second, second * 100.0));
    }
    assert_eq!(bench.energies(), [(0.0, Some(7_500.0))]);
    assert_eq!(bench.windows[0].energy_coverage_ratio, 1.0);
}

#[test]
fn windows_whose_inputs_retention_deleted_are_marked() {
    let mut bench = Bench::default();
    steady(&mut bench, "a", 0, 70, 10);
    bench.partition.mark_gap();
    steady(&mut bench, "a", 130, 250, 10);
    let gaps: Vec<bool> = bench.windows.iter().map(|w| w.gap).collect();
    assert_eq!(gaps, [false, true, true, false]);
}

#[test]
fn state_of_many_sources_is_written_in_blocks_and_a_missing_one_is_reported() {
    let mut bench = Bench::default();
    for i in 0..600 {
        bench.put(gpu(&format!("GPU-{i}"), 0.0, 0.0));
    }
    for r in 0..5 {
        bench.put(rank(r, 0.0, 0.0));
    }
    let records = bench.partition.take_changes();
    assert_eq!(records.len(), 1 + 3);
    assert!(records.iter().all(|record| record.value.as_ref().is_some_and(|value| value.len() < 400_000)));
    assert_eq!(bench.partition.take_changes().len(), 1, "nothing changed since");
    let partial = records.iter().filter(|record| record.key != format!("{JOB}#1")).map(|r| (r.key.clone(), r.value.clone()));
    let error = eadt_core::PartitionFold::restore(FoldSettings::default(), partial).unwrap_err().to_string();
    assert!(error.contains("2 of 3 records"), "{error}");
    let restored =
        eadt_core::PartitionFold::restore(FoldSettings::default(), records.into_iter().map(|r| (r.key, r.value))).unwrap();
    assert_eq!(restored.workload_and_source_counts(), (1, 605));
}

#[test]
fn windows_of_another_length_take_over_after_a_restart() {
    let mut bench = Bench::default();
    steady(&mut bench, "a", 0, 130, 10);
    assert_eq!(bench.starts(), [0.0, 60.0]);
    let records: Vec<_> = bench.partition.take_changes().into_iter().map(|r| (r.key, r.value)).collect();
    let shorter = FoldSettings { window: 20 * SECOND, ..FoldSettings::default() };
    bench.partition = eadt_core::PartitionFold::restore(shorter, records).unwrap();
    steady(&mut bench, "a", 140, 200, 10);
    assert_eq!(bench.starts()[2..], [120.0, 140.0, 160.0, 180.0]);
    assert!(bench.windows[2..].iter().all(|w| w.energy_joules.map(round) == Some(2000.0)));
}

#[test]
fn a_tombstone_ends_the_management_only() {
    let mut bench = Bench::default();
    bench.put(layout(0.0, 1));
    let mut out = Vec::new();
    let input = eadt_core::InputRecord {
        topic: eadt_schemas::Topic::Workloads,
        stamp: at(1.0),
        key: Some(JOB),
        is_sent_again: false,
        event: Item::Gone.event(),
    };
    bench.partition.fold(&input, &mut out);
    steady(&mut bench, "a", 0, 60, 10);
    assert_eq!((bench.windows[0].layout.clone(), bench.windows.len()), (None, 1));
}

#[test]
fn windows_can_begin_with_the_run() {
    let mut bench = Bench::new(FoldSettings { align_to_run: true, ..FoldSettings::default() });
    for second in 0..=200 {
        let now = f64::from(second);
        if second == 75 {
            bench.put(phase(75.0, 0.0, JobLifecycle::Started));
        }
        if second > 75 {
            bench.put(rank(0, now, now));
        }
        bench.put(gpu("a", now, now * 100.0));
    }
    let seen: Vec<_> = bench.windows.iter().map(|w| (w.window_start, w.window_end, w.energy_joules.map(round))).collect();
    assert_eq!(
        seen,
        [
            (at(0.0), at(60.0), Some(6000.0)),
            (at(60.0), at(75.0), Some(1500.0)),
            (at(75.0), at(135.0), Some(6000.0)),
            (at(135.0), at(195.0), Some(6000.0)),
        ]
    );
}

#[test]
fn before_a_run_that_nobody_watched_there_is_no_window() {
    let edges = |bench: &Bench| -> Vec<_> {
        let of = |time: eadt_schemas::EventTime| round(time.seconds_since(at(0.0)));
        bench.windows.iter().map(|w| (of(w.window_start), of(w.window_end), w.energy_joules.map(round))).collect()
    };
    let aligned = || Bench::new(FoldSettings { align_to_run: true, max_future: None, ..FoldSettings::default() });
    let mut bench = aligned();
    bench.put(phase(75.0, 0.0, JobLifecycle::Started)).put(gpu("a", 75.0, 0.0));
    for second in (85..=185).step_by(10) {
        let now = f64::from(second);
        bench.put(rank(0, now, now)).put(gpu("a", now, now));
    }
    assert_eq!(edges(&bench), [(75.0, 135.0, Some(135.0))]);
    // A device that was seen in it keeps it, though its energy is yet to come.
    let mut bench = aligned();
    bench.put(gpu("a", 70.0, 700.0)).put(phase(75.0, 0.0, JobLifecycle::Started)).put(gpu("a", 80.0, 800.0));
    bench.put(rank(0, 140.0, 9.0)).put(gpu("a", 140.0, 1400.0));
    assert_eq!(edges(&bench), [(60.0, 75.0, Some(50.0)), (75.0, 135.0, Some(600.0))]);
    // A later event of an earlier time opens it again, in the run's windows.
    let mut bench = aligned();
    bench.put(phase(75.0, 0.0, JobLifecycle::Started)).stamped(75.0, gpu("a", 10.0, 0.0)).stamped(75.0, gpu("a", 80.0, 70.0));
    bench.finish();
    assert_eq!(edges(&bench), [(-45.0, 15.0, Some(5.0)), (15.0, 75.0, Some(60.0)), (75.0, 135.0, Some(5.0))]);
    // A stub that was kept may be preceded by windows, too.
    let mut bench = aligned();
    bench.put(gpu("b", 70.0, 0.0)).put(phase(75.0, 0.0, JobLifecycle::Started));
    bench.stamped(75.0, gpu("a", 10.0, 0.0)).stamped(75.0, gpu("a", 80.0, 70.0));
    bench.finish();
    assert_eq!(bench.windows.iter().filter_map(|w| w.energy_joules).map(round).sum::<f64>(), 70.0);
}

#[test]
fn a_run_and_a_span_that_are_reported_after_the_telemetry_are_exact_all_the_same() {
    // An import into a live log: the telemetry was read before the progress. Power rises from 10 W to 1 kW at the start.
    let in_order = |late: bool| {
        let mut bench = Bench::new(FoldSettings { max_future: None, ..FoldSettings::default() });
        let mut telemetry: Vec<(f64, Item)> = Vec::new();
        for second in 0..200 {
            let now = f64::from(second);
            telemetry.push((now, power("node", now, if second < 76 { 10.0 } else { 1000.0 + now }).into()));
        }
        let progress = [
            TrainingProgress { span: Some("epoch 1".to_owned()), ..phase(75.5, 0.0, JobLifecycle::Started) },
            rank(0, 110.0, 100.0),
            TrainingProgress { last: true, ..phase(170.25, 500.0, JobLifecycle::Finished) },
        ];
        let mut all: Vec<(f64, Item)> = progress.into_iter().map(|p| (p.time.seconds_since(at(0.0)), p.into())).collect();
        if late {
            telemetry.extend(all);
            all = telemetry;
        } else {
            all.extend(telemetry);
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        for (_, item) in all {
            bench.stamped(0.0, item);
        }
        bench.finish();
        bench
    };
    let (late, right) = (in_order(true), in_order(false));
    assert_eq!(late.windows.iter().map(|w| w.late_tables).sum::<u64>(), 0);
    let text = |bench: &Bench| serde_json::to_string(&(&bench.windows, &bench.spans)).unwrap();
    assert_eq!(text(&late), text(&right));
    assert_eq!((right.spans.len(), right.spans[0].window_start, right.spans[0].window_end), (1, at(75.5), at(170.25)));
}

/// Returns a workload that declares these settings of its controller, if any.
fn declaring(second: f64, generation: u64, settings: Option<serde_json::Value>) -> Workload {
    let controller_settings = settings.and_then(|settings| settings.as_object().cloned());
    Workload { controller_settings, mode: UpdateMode::Enforce, gpus: Some(1), ..layout(second, generation) }
}

#[test]
fn a_replay_decides_by_the_controller_settings_of_the_record_whatever_its_own_are() {
    let declared = serde_json::json!({ "median_windows": 1, "warm_up_windows": 0, "expiry_seconds": 77.0 });
    let run = |own: ControllerSettings, declared: Option<serde_json::Value>, crash: bool| {
        let mut bench = Bench::new(FoldSettings { controller_settings: own, ..FoldSettings::default() });
        let mut committed = Vec::new();
        bench.put(declaring(-5.0, 1, declared.clone()));
        for second in (0..=400).step_by(10) {
            if second == 200 {
                // A late table does not bring older settings back.
                bench.put(declaring(195.0, 2, declared.clone())).stamped(199.0, declaring(-3.0, 1, None));
            }
            let now = f64::from(second);
            bench.put(gpu("a", now, now * 300.0)).put(rank(0, now, now * 3.0));
            if crash && second == 150 {
                bench.crash(&mut committed);
            }
        }
        assert_eq!((bench.windows.len(), bench.reasons()), (6, vec![]));
        serde_json::to_string(&bench.decisions).unwrap()
    };
    let live = run(ControllerSettings::default(), Some(declared.clone()), false);
    let other = ControllerSettings {
        power_high_watts: 1000.0,
        power_low_watts: 900.0,
        decision_expiry_seconds: 50.0,
        ..Default::default()
    };
    assert_eq!(run(other.clone(), Some(declared.clone()), false), live);
    assert_eq!(run(other.clone(), Some(declared), true), live, "after a restart");
    let own = run(ControllerSettings::default(), None, false);
    assert_ne!(own, live, "what is declared counts");
    assert_ne!(run(other, None, false), own, "where nothing is declared the processor's own do");
}

#[test]
fn controller_settings_that_are_none_are_refused_with_the_event() {
    let mut bench = Bench::default();
    let settings = |value| declaring(0.0, 1, Some(value));
    bench.put(settings(serde_json::json!({ "median_window": 3 }))).put(settings(serde_json::json!({ "median_windows": 0 })));
    assert_eq!(bench.reasons(), [DeadLetterReason::InvalidValue; 2]);
    assert!(bench.refused.iter().all(|refusal| refusal.field == Some("controller_settings")));
    assert!(bench.refused[0].detail.contains("unknown field `median_window`"), "{:?}", bench.refused[0]);
    assert!(bench.refused[1].detail.contains("median_windows is 0, but must be within 1 and 60"), "{:?}", bench.refused[1]);
    assert_eq!(bench.partition.workload_and_source_counts(), (0, 0));
    bench.put(settings(serde_json::json!({})));
    assert_eq!((bench.refused.len(), bench.partition.workload_and_source_counts()), (2, (1, 0)));
}

/// A GPU whose counter and power are these functions of the second, sampled from second 0 to 600.
struct Metered {
    step: f64,
    joules: fn(f64) -> Option<f64>,
    watts: fn(f64) -> Option<f64>,
}

impl Metered {
    /// Returns the windows; `every`: a crash after so many samples, each time.
    fn windows(&self, rules: u32, every: Option<usize>) -> Vec<eadt_schemas::v1::EfficiencyWindow> {
        let mut bench = Bench::new(FoldSettings { window_rules: rules, ..FoldSettings::default() });
        let mut committed = Vec::new();
        for i in 0..=(600.0 / self.step) as usize {
            let second = i as f64 * self.step;
            let sample = GpuTelemetry {
                energy_joules_total: (self.joules)(second),
                power_watts: (self.watts)(second),
                ..gpu("a", second, 0.0)
            };
            bench.put(sample);
            if every.is_some_and(|every| i % every == 0) {
                bench.crash(&mut committed);
            }
        }
        bench.finish();
        bench.windows
    }
}

/// Returns energy of all windows, in and beside them, and seconds in which the counter was contradicted.
fn totals(windows: &[eadt_schemas::v1::EfficiencyWindow]) -> (f64, f64) {
    windows.iter().fold((0.0, 0.0), |(joules, seconds), window| {
        let energy = window.energy_joules.unwrap_or(0.0) + window.unassigned_energy_joules;
        (joules + energy, seconds + window.counter_contradicted_seconds)
    })
}

#[test]
fn a_counter_that_contradicts_power_gives_way_to_it_and_one_that_does_not_is_believed() {
    let steady = |_| Some(300.0);
    let metered = |step, joules, watts| Metered { step, joules, watts };
    // (what, the meter, energy, seconds in which the counter is contradicted), of 600 s at 300 W.
    let cases: Vec<(&str, Metered, f64, f64)> = vec![
        ("sound", metered(5.0, |s| Some(s * 300.0), steady), 180_000.0, 0.0),
        ("does not move", metered(15.0, |_| Some(5_198_685.762), steady), 180_000.0, 600.0),
        ("does not move at 0", metered(5.0, |_| Some(0.0), steady), 180_000.0, 600.0),
        ("stops", metered(5.0, |s| Some(s.min(300.0) * 300.0), steady), 180_000.0, 300.0),
        // If it goes on, it has risen by far too little for the time.
        ("stops for 200 s", metered(5.0, |s| Some((s - (s - 200.0).clamp(0.0, 200.0)) * 300.0), steady), 180_000.0, 205.0),
        // It is slow for a while, then catches up: nothing is wrong.
        ("lags", metered(5.0, |s| Some(if (200.0..260.0).contains(&s) { 60_000.0 } else { s * 300.0 }), steady), 180_000.0, 0.0),
        ("leaps by 183 kW", metered(5.0, |s| Some(s * 300.0 + if s > 301.0 { 915_000.0 } else { 0.0 }), steady), 180_000.0, 5.0),
        ("one wrong value", metered(5.0, |s| Some(if s == 300.0 { 9e9 } else { s * 300.0 }), steady), 180_000.0, 10.0),
        ("one value of 0", metered(5.0, |s| Some(if s == 300.0 { 0.0 } else { s * 300.0 + 4e6 }), steady), 180_000.0, 10.0),
        ("begins anew", metered(5.0, |s| Some(if s > 301.0 { s - 300.0 } else { s } * 300.0), steady), 180_000.0, 5.0),
        ("wraps", metered(5.0, |s| Some((s * 300.0 + 4_200_000.0) % 4_294_967.296), steady), 180_000.0, 5.0),
        ("millijoules as joules", metered(5.0, |s| Some(s * 300_000.0), steady), 180_000.0, 600.0),
        ("joules as millijoules", metered(5.0, |s| Some(s * 0.3), steady), 180_000.0, 600.0),
        // A factor that one step may have shows in time: a minute or so at a sample a second.
        ("five times too fast", metered(1.0, |s| Some(s * 1_500.0), steady), 180_000.0 + 44.0 * 1_200.0, 556.0),
        ("five times too slow", metered(1.0, |s| Some(s * 60.0), steady), 180_000.0 - 44.0 * 240.0, 556.0),
        // No fault: the counter counts.
        ("a fifth below power", metered(5.0, |s| Some(s * 240.0), steady), 144_000.0, 0.0),
        ("idle at 0 W", metered(5.0, |_| Some(7.0), |_| Some(0.0)), 0.0, 0.0),
        ("power of 0 W", metered(5.0, |s| Some(s * 300.0), |_| Some(0.0)), 180_000.0, 0.0),
        ("no power", metered(5.0, |s| Some(s * 300.0), |_| None), 180_000.0, 0.0),
        ("no power, does not move", metered(5.0, |_| Some(7.0), |_| None), 0.0, 0.0),
        ("no counter", metered(5.0, |_| None, steady), 180_000.0, 0.0),
        // It moves every 20 s or every 100 ms, or in steps of 1 kJ. What it owes in the end is power's.
        ("every 20 s", metered(5.0, |s| Some((s / 20.0).floor() * 6_000.0), steady), 180_000.0, 0.0),
        ("every 100 ms", metered(0.05, |s| Some((s * 10.0 + 0.001).floor() * 30.0), steady), 180_000.0, 0.0),
        ("in steps of 1 kJ", metered(1.0, |s| Some((s * 0.3 + 1e-6).floor() * 1_000.0), steady), 180_000.0, 0.0),
        // Power readings meet the board idle, the counter sees the work between them.
        ("bursts", metered(5.0, |s| Some(s * 300.0), |_| Some(120.0)), 180_000.0, 0.0),
    ];
    for (what, metered, joules, contradicted) in cases {
        let windows = metered.windows(2, None);
        let (energy, seconds) = totals(&windows);
        assert!((energy - joules).abs() <= joules * 1e-6, "{what}: {energy} J instead of {joules}");
        assert!((seconds - contradicted).abs() < 1.0, "{what}: contradicted for {seconds} s instead of {contradicted}");
        assert!(windows.iter().all(|window| window.energy_coverage_ratio == 1.0 || window.energy_method == EnergyMethod::None));
        if metered.step >= 1.0 {
            assert_eq!(metered.windows(2, Some(3)), windows, "{what}: with crashes");
        }
    }
}

/// 300 W for 600 s with a counter in steps of 36 kJ, which are 120 s each; the first sample lies 80 s behind a step.
#[test]
fn a_coarse_counter_counts_from_its_first_rise_on() {
    let coarse = Metered { step: 5.0, joules: |s| Some(((s + 80.0) / 120.0).floor() * 36_000.0), watts: |_| Some(300.0) };
    let joules = |rules| totals(&coarse.windows(rules, None)).0;
    // Records of earlier rules replay with what they had: the 24 kJ before the first sample are in.
    assert_eq!([2, 3, 4].map(|rules| joules(rules).round()), [204_000.0, 204_000.0, 180_000.0]);
    assert_eq!(coarse.windows(4, Some(3)), coarse.windows(4, None), "with crashes");
    // A counter that is five times too high and often falls keeps its record of contradictions.
    let convicted = Metered { joules: |s| Some((s % 200.0) * 1_500.0), ..coarse };
    assert_eq!(convicted.windows(4, None), convicted.windows(3, None));
    // Every other rule about counters is as it was.
    for metered in [
        Metered { step: 5.0, joules: |s| Some(s * 300.0), watts: |_| Some(300.0) },
        Metered { step: 5.0, joules: |s| Some(s * 240.0), watts: |_| Some(300.0) },
        Metered { step: 1.0, joules: |s| (s % 10.0 == 0.0).then_some(s * 240.0), watts: |_| Some(300.0) },
        Metered { step: 1.0, joules: |s| Some((s / 5.0).floor() * 1_500.0), watts: |_| Some(300.0) },
    ] {
        assert_eq!(metered.windows(4, None), metered.windows(3, None));
    }
}

/// Joules of a counter whose steps are `step`, of a device that drew so much.
fn in_steps(joules: f64, step: f64) -> f64 {
    (joules / step + 1e-9).floor() * step
}

/// A node of constant power, as its meter shows it at each second: the register of its energy counter, and power.
struct Meters<C, P> {
    watts: f64,
    /// Between two samples.
    seconds: usize,
    counter: C,
    power: P,
}

impl<C: Fn(f64) -> Option<f64>, P: Fn(f64) -> Option<f64>> Meters<C, P> {
    fn put(&self, bench: &mut Bench, second: u32) {
        let now = f64::from(second);
        let event = GpuTelemetry {
            meter: Meter::Node,
            power_watts: (self.power)(now),
            energy_joules_total: (self.counter)(now),
            ..gpu("a", now, 0.0)
        };
        bench.put(event);
    }

    fn windows(&self, hours: f64) -> Vec<eadt_schemas::v1::EfficiencyWindow> {
        let mut bench = Bench::default();
        for second in (0..=(hours * 3_600.0) as u32).step_by(self.seconds) {
            self.put(&mut bench, second);
        }
        bench.finish();
        bench.windows
    }

    /// Returns the energy of so many hours as a part of what was drawn.
    fn ratio(&self, hours: f64) -> f64 {
        totals(&self.windows(hours)).0 / (self.watts * hours * 3_600.0)
    }
}

const WATT_HOURS_10: f64 = 36_000.0;
const KILOWATT_HOUR_TENTH: f64 = 360_000.0;

#[test]
fn a_coarse_counter_and_power_together_give_what_each_gives_alone() {
    // (watts, seconds between two samples, joules of a step of the counter): smart plugs, power distribution units, servers.
    let mut cases = Vec::new();
    for watts in [255.0, 300.0, 650.0, 1_300.0, 2_105.0] {
        for seconds in [10, 30, 60] {
            cases.extend([3_600.0, WATT_HOURS_10, KILOWATT_HOUR_TENTH].map(|step| (watts, 6.0, seconds, step)));
        }
    }
    cases.push((300.0, 72.0, 60, KILOWATT_HOUR_TENTH));
    for (watts, hours, seconds, step) in cases {
        // Two sensors differ by some percent.
        for factor in [0.9, 0.97, 1.0, 1.03, 1.1] {
            let counter = |now: f64| Some(in_steps(now * watts + step * 0.4, step));
            let windows = Meters { watts, seconds, counter, power: |_| Some(watts * factor) }.windows(hours);
            let what = format!("{watts} W each {seconds} s in steps of {step} J, power × {factor}");
            let whole = hours * 3_600.0 * watts;
            let (energy, _) = totals(&windows);
            let (least, most) = (whole * factor.min(1.0), whole * factor.max(1.0));
            let allowed = step.max(0.004 * whole);
            assert!((least - allowed..=most + allowed).contains(&energy), "{what}: {energy} J instead of {whole}");
            let known: f64 = windows.iter().filter_map(|window| window.energy_joules).sum();
            assert!((energy - known).abs() <= step, "{what}: {} J in no window", energy - known);
            // Rises that come sooner replace power.
            let waits_long = step > watts * (120.0 + 2.0 * seconds as f64);
            for window in windows[30..windows.len() - 1].iter().filter(|_| waits_long) {
                let mean = window.energy_joules.unwrap_or(0.0) / 60.0;
                assert!((mean / watts / factor - 1.0).abs() < 0.01, "{what}: {mean} W in a window");
                assert_eq!(window.counter_contradicted_seconds, 0.0, "{what}");
            }
        }
    }
}

/// Returns whether a sample at a second has a reading.
type Reads = Box<dyn Fn(f64) -> bool>;

#[test]
fn power_counts_beside_a_coarse_counter_also_where_some_samples_have_none() {
    let always = |_: f64| true;
    let every = |n: f64| move |now: f64| now % n == 0.0;
    // What is read when: (watts, step, seconds between samples, whether a sample has power, whether it has the counter).
    let cases: Vec<(&str, f64, f64, usize, Reads, Reads)> = vec![
        ("100 of 300 s without power", 280.0, WATT_HOURS_10, 10, Box::new(|now| now % 300.0 < 200.0), Box::new(always)),
        ("every second sample", 1_300.0, KILOWATT_HOUR_TENTH, 60, Box::new(every(120.0)), Box::new(always)),
        ("every third sample", 280.0, WATT_HOURS_10, 10, Box::new(every(30.0)), Box::new(always)),
        ("90 of 600 s without power", 700.0, KILOWATT_HOUR_TENTH, 30, Box::new(|now| now % 600.0 < 510.0), Box::new(always)),
        ("150 of 300 s without power", 280.0, WATT_HOURS_10, 10, Box::new(|now| now % 300.0 < 150.0), Box::new(always)),
        ("200 of 450 s without power", 280.0, WATT_HOURS_10, 10, Box::new(|now| now % 450.0 < 250.0), Box::new(always)),
        ("180 of 600 s without power", 1_300.0, KILOWATT_HOUR_TENTH, 30, Box::new(|now| now % 600.0 < 420.0), Box::new(always)),
        ("in turn", 280.0, WATT_HOURS_10, 5, Box::new(every(10.0)), Box::new(|now| now % 10.0 == 5.0)),
        ("a fine counter each 5 min", 300.0, 1.0, 30, Box::new(every(60.0)), Box::new(|now| now % 300.0 == 30.0)),
        ("a fine counter each 3 min", 300.0, 1.0, 10, Box::new(every(60.0)), Box::new(|now| now % 180.0 == 50.0)),
        ("counter each 3 min", 280.0, WATT_HOURS_10, 60, Box::new(always), Box::new(every(180.0))),
        ("counter each 15 min", 1_300.0, KILOWATT_HOUR_TENTH, 60, Box::new(always), Box::new(every(900.0))),
        ("counter each hour", 700.0, 10.0 * KILOWATT_HOUR_TENTH, 60, Box::new(always), Box::new(every(3_600.0))),
    ];
    for (what, watts, step, seconds, has_power, has_counter) in cases {
        let counter = |now: f64| has_counter(now).then(|| in_steps(now * watts + step * 0.3, step));
        let power = |now: f64| has_power(now).then_some(watts);
        let ratio = Meters { watts, seconds, counter, power }.ratio(12.0);
        let allowed = (step / (watts * 12.0 * 3_600.0)).max(0.01);
        assert!((ratio - 1.0).abs() <= allowed, "{what}: {ratio} of what was drawn");
    }
}

#[test]
fn silences_beside_a_coarse_counter_lose_nothing() {
    for (watts, step, seconds, silent, of) in
        [(1_300.0, KILOWATT_HOUR_TENTH, 30, 300.0, 1_830.0), (280.0, WATT_HOURS_10, 10, 200.0, 1_270.0)]
    {
        let mut bench = Bench::default();
        for second in (0..=24 * 3_600).step_by(seconds).filter(|second| f64::from(*second) % of >= silent) {
            let now = f64::from(second);
            bench.put(GpuTelemetry {
                meter: Meter::Node,
                power_watts: Some(watts),
                ..gpu("a", now, in_steps(now * watts, step))
            });
            bench.heartbeat(now);
        }
        bench.finish();
        let (silences, whole) = (24.0 * 3_600.0 / of, 24.0 * 3_600.0 * watts);
        let (energy, _) = totals(&bench.windows);
        let allowed = step * (1.0 + silences / 4.0);
        assert!((energy - whole).abs() < allowed, "{watts} W, {step} J: {energy} J of {whole}, {silences} silences");
    }
}

#[test]
fn registers_of_any_kind_whose_rises_are_far_apart_add_nothing_to_power() {
    let single = |joules: f64, from: f64| f64::from((joules / 3.6e6 + from) as f32) * 3.6e6;
    for (what, watts, step, seconds, register) in [
        (
            "a float of 32 bits",
            280.0,
            WATT_HOURS_10,
            60,
            Box::new(move |joules| single(joules, 12_345.0)) as Box<dyn Fn(f64) -> f64>,
        ),
        ("a float of 32 bits", 2_105.0, KILOWATT_HOUR_TENTH, 60, Box::new(move |joules| single(joules, 123_456.0))),
        ("96 pulses a kWh in kJ", 280.0, 37_500.0, 60, Box::new(|joules| (joules / 1e3).round() * 1e3)),
        ("renewed each 131 s", 900.0, 131.0 * 900.0, 30, Box::new(|joules| joules)),
        ("renewed each 307 s", 900.0, 307.0 * 900.0, 60, Box::new(|joules| joules)),
    ] {
        let counter = |now: f64| Some(register(in_steps(now * watts, step)));
        let ratio = Meters { watts, seconds, counter, power: |_| Some(watts) }.ratio(6.0);
        assert!((ratio - 1.0).abs() <= 0.01, "{what}: {ratio} of what was drawn");
    }
}

#[test]
fn a_short_job_beside_a_coarse_counter_takes_what_power_shows_wherever_it_begins() {
    for (watts, step, seconds, minutes) in [
        (1_300.0, KILOWATT_HOUR_TENTH, 60, 15.0),
        (1_300.0, KILOWATT_HOUR_TENTH, 30, 15.0),
        (1_300.0, 1e6, 60, 15.0),
        (280.0, WATT_HOURS_10, 60, 60.0),
        (280.0, WATT_HOURS_10, 30, 15.0),
        (1_300.0, KILOWATT_HOUR_TENTH, 60, 5.0),
        (1_000.0, WATT_HOURS_10, 3, 5.0),
    ] {
        let ratios = (0..40).map(|phase| {
            let counter = |now: f64| Some(in_steps(now * watts + step * f64::from(phase) / 40.0, step));
            Meters { watts, seconds, counter, power: |_| Some(watts) }.ratio(minutes / 60.0)
        });
        let ratios: Vec<f64> = ratios.collect();
        let mean = ratios.iter().sum::<f64>() / 40.0;
        let worst = ratios.iter().map(|ratio| (ratio - 1.0).abs()).fold(0.0, f64::max);
        assert!(
            (mean - 1.0).abs() < 0.015 && worst < 0.06,
            "{watts} W, {step} J, {seconds} s, {minutes} min: {mean}, worst {worst}"
        );
    }
}

#[test]
fn power_that_was_wrong_beside_a_coarse_counter_leaves_nothing_to_make_up_for() {
    // 1,300 W are read as 3,250 W for six hours, and then as they are.
    let counter = |now: f64| Some(in_steps(now * 1_300.0, KILOWATT_HOUR_TENTH));
    let power = |now: f64| Some(if now < 6.0 * 3_600.0 { 3_250.0 } else { 1_300.0 });
    let windows = Meters { watts: 1_300.0, seconds: 30, counter, power }.windows(8.0);
    let means: Vec<f64> = windows.iter().map(|window| window.energy_joules.unwrap_or(0.0) / 60.0).collect();
    assert!(means[30..355].iter().all(|mean| (mean - 3_250.0).abs() < 1.0), "{means:?}");
    assert!(means[365..479].iter().all(|mean| (mean - 1_300.0).abs() < 1.0), "{means:?}");
}

#[test]
fn a_coarse_counter_without_power_gives_all_of_its_energy_and_no_windows_of_0_joules() {
    for (meter, watts, step, seconds, limit) in [
        (Meter::Gpu, 1_300.0, KILOWATT_HOUR_TENTH, 1, None),
        (Meter::Gpu, 1_300.0, KILOWATT_HOUR_TENTH, 30, None),
        (Meter::Gpu, 280.0, WATT_HOURS_10, 1, None),
        (Meter::Node, 1_300.0, KILOWATT_HOUR_TENTH, 1, Some(700.0)),
        (Meter::Gpu, 300.0, 3_600.0, 1, Some(400.0)),
    ] {
        let mut bench = Bench::default();
        for second in (0..=4 * 3_600).step_by(seconds) {
            let now = f64::from(second);
            bench.put(GpuTelemetry { meter, power_limit_watts: limit, ..gpu("a", now, in_steps(now * watts, step)) });
        }
        bench.finish();
        let what = format!("{meter:?}, {watts} W, {step} J, {seconds} s");
        let (energy, contradicted) = totals(&bench.windows);
        let whole = watts * 4.0 * 3_600.0;
        assert!((energy - whole).abs() <= step + seconds as f64 * watts && contradicted == 0.0, "{what}: {energy} J of {whole}");
        assert!(bench.windows.iter().all(|window| window.energy_joules.is_none_or(|joules| joules > 0.0)), "{what}");
    }
}

#[test]
fn a_machine_may_be_off_while_its_coarse_counter_does_not_rise() {
    let counter = |now: f64| Some(in_steps(now * 280.0, WATT_HOURS_10));
    let windows = Meters { watts: 280.0, seconds: 10, counter, power: |_| None }.windows(4.0);
    let known: f64 = windows.iter().filter_map(|window| window.energy_joules).sum();
    assert!((known - 4.0 * 3_600.0 * 280.0).abs() <= WATT_HOURS_10, "{known} J");
    assert!(windows.iter().all(|window| window.unassigned_energy_joules == 0.0));
}

#[test]
fn a_coarse_counter_alone_gives_way_to_power_of_another_collector() {
    let mut bench = Bench::default();
    for second in (0..=3 * 3_600).step_by(10) {
        let now = f64::from(second);
        let counter = in_steps(now * 1_000.0, KILOWATT_HOUR_TENTH);
        bench.put(GpuTelemetry {
            collector: "bmc/n1".into(),
            power_watts: Some(1_000.0),
            energy_joules_total: None,
            ..gpu("a", now, 0.0)
        });
        bench.put(GpuTelemetry { collector: "pdu/n1".into(), ..gpu("a", now, counter) });
    }
    bench.finish();
    let (energy, _) = totals(&bench.windows);
    assert!((energy - 10.8e6).abs() < 1.0, "{energy} J");
    assert!(bench.windows[..179].iter().all(|window| window.energy_joules == Some(60_000.0)), "{:?}", bench.energies());
}

#[test]
fn a_crash_while_a_coarse_counter_is_waited_for_changes_no_window() {
    // The meter leaps by 50 kJ once, and is not read in some minutes.
    let leap = |now: f64| if now > 6_260.0 { 50e3 } else { 0.0 };
    let counter = |now: f64| (now % 4_000.0 > 600.0).then(|| in_steps(now * 1_300.0, KILOWATT_HOUR_TENTH) + leap(now));
    let power = |now: f64| (now % 900.0 > 200.0).then_some(1_040.0);
    let meters = Meters { watts: 1_300.0, seconds: 30, counter, power };
    let (mut bench, mut committed) = (Bench::default(), Vec::new());
    for second in (0..=3 * 3_600).step_by(30) {
        meters.put(&mut bench, second);
        bench.crash(&mut committed);
    }
    bench.finish();
    assert_eq!(bench.windows, meters.windows(3.0));
}

/// Returns windows by rules 6 and 7 of a board with these functions of the second, for an hour.
fn by_both_rules(
    step: usize,
    joules: impl Fn(f64) -> f64,
    watts: impl Fn(f64) -> f64,
) -> [Vec<eadt_schemas::v1::EfficiencyWindow>; 2] {
    [6, 7].map(|window_rules| {
        let mut bench = Bench::new(FoldSettings { window_rules, ..FoldSettings::default() });
        for second in (0..=3_600).step_by(step) {
            let now = f64::from(second);
            bench.put(GpuTelemetry { power_watts: Some(watts(now)), ..gpu("a", now, joules(now)) });
        }
        bench.finish();
        bench.windows
    })
}

#[test]
fn a_counter_that_is_renewed_seldom_or_hangs_is_no_coarse_one() {
    // 80 and 700 W by turns of 7.3 s, and ever more.
    fn watts(second: f64) -> f64 {
        0.03 * second + if (second / 7.3).floor() % 2.0 == 0.0 { 80.0 } else { 700.0 }
    }
    fn joules(second: f64) -> f64 {
        let turns = (second / 14.6).floor();
        let rest = second - turns * 14.6;
        0.015 * second * second + turns * 5_694.0 + rest.min(7.3) * 80.0 + (rest - 7.3).max(0.0) * 700.0
    }
    // An exporter that reads both each 30 s, and is read each 15 s.
    let held = |second: f64| ((second - 11.0) / 30.0).floor().max(0.0) * 30.0;
    let [before, now] = by_both_rules(15, |s| joules(held(s)), |s| watts(held(s)));
    for (now, before) in now.iter().zip(&before) {
        assert_eq!((now.window_start, now.energy_joules), (before.window_start, before.energy_joules));
    }
    // A counter of the module, 2.5 times the power of the GPU, that hangs for a minute each five.
    let hangs = |s: f64| if s % 300.0 < 60.0 && s >= 300.0 { s - s % 300.0 } else { s };
    let [before, now] = by_both_rules(5, |s| hangs(s) * 750.0 + s * 1e-3, |_| 300.0);
    // Of a first rise of over twice the power, the part before the first sample is not known: power counts for 5 s.
    let ((now, by_power), (before, contradicted)) = (totals(&now), totals(&before));
    assert_eq!((before - now).round(), 5.0 * 450.0);
    assert_eq!(by_power, contradicted);
}

#[test]
fn a_coarse_counter_counts_itself_while_it_rises_fast() {
    // Idle for 20 minutes, then 400 and 2,000 W by turns of 20 s: a step of 1 Wh takes seconds.
    let drawn = |s: f64| {
        if s < 1_200.0 {
            60.0
        } else if (s / 20.0).floor() % 2.0 == 0.0 {
            400.0
        } else {
            2_000.0
        }
    };
    let joules = |s: f64| {
        let whole: f64 = (0..s as u32).map(|second| drawn(f64::from(second))).sum();
        in_steps(whole, 3_600.0)
    };
    let [before, now] = by_both_rules(30, joules, drawn);
    for (now, before) in now.iter().zip(&before).skip(25) {
        assert_eq!((now.window_start, now.energy_joules), (before.window_start, before.energy_joules));
    }
    assert!((totals(&now).0 / totals(&before).0 - 1.0).abs() < 0.005, "{} {}", totals(&now).0, totals(&before).0);
}

/// 300 W for 600 s, with power in even seconds and the counter in odd ones.
#[test]
fn a_counter_whose_samples_have_no_power_is_tested_against_the_newest_reading() {
    type At = fn(f64) -> Option<f64>;
    fn odd(second: f64, joules: f64) -> Option<f64> {
        (second % 2.0 == 1.0).then_some(joules)
    }
    let even: At = |s| (s % 2.0 == 0.0).then_some(300.0);
    let seldom: At = |s| (s % 2.0 == 0.0 && s % 6.0 != 2.0).then_some(300.0);
    // (what, the counter, power, energy by rules 5, energy now, seconds in which the counter is contradicted). A step into a sample
    // with the counter alone takes a second of every two.
    // 60 W at the start, 400 W from then on.
    let rare: At = |s| (s % 100.0 == 0.0).then_some(if s == 0.0 { 60.0 } else { 400.0 });
    let cases: [(&str, At, At, f64, f64, f64); 7] = [
        ("sound, one reading of power in 100 s", |s| odd(s, s * 400.0), rare, 239_200.0, 239_200.0, 0.0),
        ("sound", |s| odd(s, s * 300.0), even, 179_700.0, 179_700.0, 0.0),
        ("a fifth below power", |s| odd(s, s * 240.0), even, 143_820.0, 143_820.0, 0.0),
        // It shows in half a minute.
        ("ten times too slow", |s| odd(s, s * 30.0), even, 18_240.0, 171_060.0, 283.0),
        ("ten times too slow, power is rarer", |s| odd(s, s * 30.0), seldom, 17_940.0, 165_900.0, 274.0),
        ("does not move", |s| odd(s, 7.0), even, 180_000.0, 180_000.0, 299.0),
        ("leaps by 18.5 kJ", |s| odd(s, s * 300.0 + if s > 300.0 { 18_500.0 } else { 0.0 }), even, 198_200.0, 179_400.0, 1.0),
    ];
    for (what, joules, watts, before, now, contradicted) in cases {
        let metered = Metered { step: 1.0, joules, watts };
        let windows = metered.windows(6, None);
        let rounded = |(joules, seconds): (f64, f64)| (joules.round(), seconds.round());
        assert_eq!(rounded(totals(&metered.windows(5, None))).0, before, "{what}, by rules 5");
        assert_eq!(rounded(totals(&windows)), (now, contradicted), "{what}");
        assert_eq!(metered.windows(6, Some(3)), windows, "{what}: with crashes");
    }
}

#[test]
fn by_the_first_rules_a_counter_is_believed_whatever_power_shows() {
    let metered = Metered { step: 15.0, joules: |_| Some(5_198_685.762), watts: |_| Some(300.0) };
    assert_eq!(totals(&metered.windows(1, None)), (0.0, 0.0));
    let (stuck, by_power) = (&metered.windows(1, None)[0], &metered.windows(2, None)[0]);
    assert_eq!((stuck.energy_method, by_power.energy_method), (EnergyMethod::Counter, EnergyMethod::Integral));
}

#[test]
fn by_the_third_rules_power_that_no_such_device_can_draw_is_no_reading() {
    let glitch = |watts: f64| move |second: f64| Some(if second == 300.0 { watts } else { 300.0 });
    // Seconds of which nothing is known: those beside the reading.
    let windows = |rules, watts: f64| {
        let glitch = glitch(watts);
        let mut bench = Bench::new(FoldSettings { window_rules: rules, ..FoldSettings::default() });
        for step in 0..=120 {
            let second = f64::from(step) * 5.0;
            bench.put(GpuTelemetry { energy_joules_total: None, power_watts: glitch(second), ..gpu("a", second, 0.0) });
        }
        bench.finish();
        bench.windows
    };
    for watts in [300_000.0, 0.0] {
        let believed = 180_000.0 + (watts - 300.0) * 5.0;
        assert!((totals(&windows(2, watts)).0 - believed).abs() < 1.0, "by the rules before, {watts} W are believed");
        let now = windows(3, watts);
        assert!((totals(&now).0 - 177_000.0).abs() < 1.0, "{watts} W: {}", totals(&now).0);
        assert!(now.iter().any(|window| window.energy_coverage_ratio < 1.0), "{watts} W");
        assert!((totals(&windows(5, watts)).0 - 180_000.0).abs() < 1.0, "{watts} W, by the readings around it");
    }
    assert_eq!(windows(3, 450.0), windows(2, 450.0), "what a board can draw is believed");
}

#[test]
fn readings_without_power_between_two_with_it_change_no_energy() {
    type PowerAt = fn(f64) -> Option<f64>;
    fn watts(second: f64) -> f64 {
        200.0 + second / 10.0
    }
    let cases: [(&str, PowerAt, f64, f64); 5] = [
        ("each has power", |s| Some(watts(s)), 138_000.0, 138_000.0),
        ("every other one", |s| (s % 4.0 == 0.0).then(|| watts(s)), 138_000.0, 0.0),
        ("nine of ten", |s| (s % 20.0 != 6.0).then(|| watts(s)), 138_000.0, 110_448.0),
        ("one in 100 s", |s| (s % 100.0 == 0.0).then(|| watts(s)), 138_000.0, 0.0),
        // That is more than the gap.
        ("one in 150 s", |s| (s % 150.0 == 0.0).then(|| watts(s)), 0.0, 0.0),
    ];
    for (what, watts, joules, by_earlier_rules) in cases {
        let metered = Metered { step: 2.0, joules: |_| None, watts };
        let windows = metered.windows(5, None);
        assert!((totals(&windows).0 - joules).abs() < 1.0, "{what}: {} J", totals(&windows).0);
        assert!(windows.iter().all(|window| window.energy_coverage_ratio == 1.0 || window.energy_joules.is_none()), "{what}");
        assert!(windows.iter().all(|window| window.unassigned_energy_joules == 0.0), "{what}");
        assert_eq!(metered.windows(5, Some(3)), windows, "{what}: with crashes");
        let earlier = totals(&metered.windows(4, None)).0;
        assert!((earlier - by_earlier_rules).abs() < 1.0, "{what}: {earlier} J by rules 4");
    }
    // A device whose power is missing from some time on is not waited for, and what was known before stays.
    let lost = Metered { step: 2.0, joules: |_| None, watts: |s| (s <= 300.0).then(|| watts(s)) };
    assert!((totals(&lost.windows(5, None)).0 - 64_500.0).abs() < 1.0);
    assert_eq!(totals(&lost.windows(5, None)), totals(&lost.windows(4, None)));
}

#[test]
fn two_exporters_of_one_board_are_as_good_as_the_one_with_power() {
    // Power each 15 s; utilization 7 s later.
    let energies = |both: bool| {
        let mut bench = Bench::default();
        for second in (0..=300).step_by(15) {
            let now = f64::from(second);
            bench.put(power("a", now, 300.0));
            if both && second < 300 {
                bench.put(GpuTelemetry { power_watts: None, utilization_ratio: Some(0.5), ..power("a", now + 7.0, 0.0) });
            }
        }
        bench.finish().energies()
    };
    assert_eq!(energies(true), energies(false));
    assert_eq!(energies(true)[..5], [0.0, 60.0, 120.0, 180.0, 240.0].map(|start| (start, Some(18_000.0))));
}

/// Returns samples of a board at 100 W, five seconds apart; the newest is marked `last`.
fn stay(device: &str, from: i32, to: i32) -> Vec<GpuTelemetry> {
    let sample = |second: i32| {
        let now = f64::from(second);
        GpuTelemetry { last: second == to, ..gpu(device, now, now * 100.0) }
    };
    (from..=to).step_by(5).map(sample).collect()
}

#[test]
fn in_files_what_begins_or_goes_on_in_a_window_whose_sources_have_all_ended_belongs_to_it() {
    let run = |idle_grace, stays: &[Vec<GpuTelemetry>], every: Option<usize>| {
        let mut bench = Bench::new(FoldSettings { idle_grace, ..FoldSettings::default() });
        let mut committed = Vec::new();
        for (i, sample) in stays.concat().into_iter().enumerate() {
            bench.put(sample);
            if every.is_some_and(|every| i % every == 0) {
                bench.crash(&mut committed);
            }
        }
        let refused = bench.refused.len();
        bench.finish();
        (bench.windows.iter().map(|window| window.energy_joules.unwrap_or(0.0)).sum::<f64>(), refused, bench.windows)
    };
    for (what, stays, joules) in [
        ("one board, then another", vec![stay("a", 0, 20), stay("b", 25, 45)], 4_000.0),
        ("the same board comes back", vec![stay("a", 0, 20), stay("a", 30, 50)], 4_000.0),
        ("three in a row", vec![stay("a", 0, 15), stay("b", 20, 35), stay("c", 40, 55)], 4_500.0),
        ("across the end of a window", vec![stay("a", 0, 20), stay("b", 25, 90)], 8_500.0),
        ("in the next window", vec![stay("a", 0, 20), stay("b", 65, 90)], 4_500.0),
        ("an hour later", vec![stay("a", 0, 20), stay("b", 3_605, 3_625)], 4_000.0),
    ] {
        let (energy, refused, windows) = run(None, &stays, None);
        assert_eq!((energy, refused), (joules, 0), "{what}");
        assert_eq!(run(None, &stays, Some(2)).2, windows, "{what}: with crashes");
    }
    // Live, a job that is done gets its last window at once, and what comes then is late.
    let grace = FoldSettings::default().idle_grace;
    let (energy, refused, _) = run(grace, &[stay("a", 0, 20), stay("b", 25, 45)], None);
    assert_eq!((energy, refused), (2_000.0, 5));
}

#[test]
fn a_restart_is_not_the_best_efficiency_ever() {
    let window = |window_rules| {
        let mut bench = Bench::new(FoldSettings { window_rules, ..FoldSettings::default() });
        for second in (0..=180).step_by(10) {
            let now = f64::from(second);
            bench.put(gpu("a", now, now * 100.0));
            // Ten samples a second; it is down from 70 to 110 s and does ten samples again.
            if !(80..110).contains(&second) {
                bench.put(rank(0, now, if second < 110 { now * 10.0 } else { 690.0 + (now - 110.0) * 10.0 }));
            }
        }
        bench.windows.swap_remove(1)
    };
    let of =
        |window: &eadt_schemas::v1::EfficiencyWindow| (window.joules_per_sample.map(round), window.joules_per_sample_running);
    let (before, now) = (window(1), window(2));
    assert_eq!((before.samples, before.energy_joules.map(round), before.restarted), (Some(190.0), Some(6_000.0), true));
    // 100 W over 9.5 samples a second while it ran; 6 kJ over 190 samples.
    assert_eq!((of(&before), of(&now)), ((Some(10.526_316), None), (Some(31.578_947), None)));
    assert_eq!((now.samples_per_joule.map(round), now.restarted), (Some(round(190.0 / 6_000.0)), true));
}
