//! Sources that fall silent while the job goes on, and jobs that begin anew without an end.

use crate::support;

use eadt_core::FoldSettings;
use eadt_schemas::v1::{CounterScope, EfficiencyWindow, JobLifecycle, Layout, Precision, TrainingProgress, Workload};
use eadt_testing::cases;
use proptest::prelude::*;
use support::{Bench, Item, gpu, layout, phase, rank, round};

/// Returns the windows of these events in the order of their times, each with a stamp equal to its time; equal to those with a restart
/// from committed state before every seventh event.
fn windows(rules: u32, events: &[Item]) -> Vec<EfficiencyWindow> {
    let settings = FoldSettings { window_rules: rules, ..FoldSettings::default() };
    let mut events = events.to_vec();
    events.sort_by_key(|item| item.event().time());
    let (mut straight, mut restarted, mut committed) = (Bench::new(settings.clone()), Bench::new(settings), Vec::new());
    for (i, event) in events.iter().enumerate() {
        straight.put(event.clone());
        if i % 7 == 0 {
            restarted.crash(&mut committed);
        }
        restarted.put(event.clone());
    }
    straight.finish();
    restarted.finish();
    assert_eq!(restarted.windows, straight.windows);
    straight.windows
}

/// GPUs at 100 W, sampled each 10 s up to 600 s, the last of them up to `until`; a job of 10 samples/s.
fn devices(count: usize, silent: usize, until: i32) -> Vec<Item> {
    let mut events = Vec::new();
    for second in (0..=600).step_by(10) {
        let now = f64::from(second);
        for device in 0..count {
            if device < count - silent || second <= until {
                events.push(gpu(&format!("GPU-{device}"), now, now * 100.0).into());
            }
        }
        events.push(rank(0, now, now * 10.0).into());
    }
    events
}

/// Returns GPUs, coverage and J/sample of the last whole window.
fn energy(windows: &[EfficiencyWindow]) -> (u32, f64, Option<f64>) {
    let last = windows.iter().rfind(|window| window.progress_coverage_ratio == 1.0).unwrap();
    (last.gpus, round(last.energy_coverage_ratio), last.joules_per_sample.map(round))
}

#[test]
fn a_device_whose_telemetry_died_is_expected_whatever_setting_changes() {
    let running = Layout { replicas: Some(2), power_limit_watts: Some(400.0), ..Layout::default() };
    let of = |second, generation, gpus, layout: &Layout| Workload {
        gpus: Some(gpus),
        layout: layout.clone(),
        ..support::layout(second, generation)
    };
    let expected = (2, 0.5, Some(20.0));
    for (what, gpus, layout, figures) in [
        ("nothing", 2, running.clone(), expected),
        ("a cap", 2, Layout { power_limit_watts: Some(390.0), ..running.clone() }, expected),
        ("a clock", 2, Layout { sm_clock_mhz: Some(1200.0), ..running.clone() }, expected),
        ("a precision", 2, Layout { precision: Some(Precision::Bf16), ..running.clone() }, expected),
        ("frozen layers", 2, Layout { frozen_prefix_layers: Some(2), ..running.clone() }, expected),
        ("shares, replicas kept", 2, Layout { mps_thread_percentage: Some(50), ..running.clone() }, expected),
        ("half of the replicas, on as many GPUs", 2, Layout { replicas: Some(1), ..running.clone() }, expected),
        ("half of replicas and GPUs", 1, Layout { replicas: Some(1), ..running.clone() }, (1, 1.0, Some(10.0))),
    ] {
        let mut events = devices(2, 1, 100);
        events.extend([of(1.0, 1, 2, &running).into(), of(301.0, 2, gpus, &layout).into()]);
        assert_eq!(energy(&windows(7, &events)), figures, "{what}");
        assert_eq!(energy(&windows(6, &events)), (1, 1.0, Some(10.0)), "{what}, by earlier rules");
    }
}

#[test]
fn a_new_device_is_in_the_place_of_one_whose_telemetry_died() {
    let mut events = devices(4, 2, 100);
    for second in (300..=600).step_by(10) {
        events.push(gpu("GPU-9", f64::from(second), f64::from(second) * 100.0).into());
    }
    assert_eq!(energy(&windows(7, &events)), (4, 0.75, Some(40.0)));
    assert_eq!(energy(&windows(6, &events)), (3, 1.0, Some(30.0)), "by earlier rules");
}

/// One GPU at 400 W and four ranks of 2.5 samples/s each, sampled each 10 s up to 600 s; those from `silent` on up to 100 s.
fn ranks(silent: u32) -> Vec<Item> {
    let mut events = Vec::new();
    for second in (0..=600).step_by(10) {
        let now = f64::from(second);
        events.push(gpu("a", now, now * 400.0).into());
        for number in (0..4).filter(|number| *number < silent || second <= 100) {
            events.push(of_rank(number, now).into());
        }
    }
    events
}

#[test]
fn energy_of_a_sample_is_of_all_ranks_also_if_some_are_silent() {
    for (rules, silent, later) in [(7, 3, 40.0), (7, 1, 40.0), (7, 4, 40.0), (6, 3, round(160.0 / 3.0))] {
        // A layout with another cap leaves the rank expected.
        let mut events = ranks(silent);
        let capped = Layout { power_limit_watts: Some(300.0), ..Layout::default() };
        events.extend([layout(1.0, 1).into(), Workload { layout: capped, ..layout(301.0, 2) }.into()]);
        let windows = windows(rules, &events);
        let figures = |window: &EfficiencyWindow| (window.samples.map(round), window.joules_per_sample.map(round));
        assert_eq!(figures(&windows[0]), (Some(600.0), Some(40.0)));
        let before_cap = &windows[3];
        assert_eq!(figures(before_cap), (Some(150.0 * f64::from(silent)), Some(later)), "{silent} ranks, rules {rules}");
        assert_eq!(before_cap.samples_per_second.map(round), Some(10.0));
        if rules == 7 {
            let last = &windows[8];
            assert_eq!((last.ranks, figures(last)), (before_cap.ranks, figures(before_cap)), "{silent} ranks, after the cap");
            let share = 1.0 - f64::from(silent) / 4.0;
            assert_eq!((last.progress_silent_ratio, last.progress_coverage_ratio), (share, 1.0 - share));
            assert_eq!(last.samples_per_joule.map(round), Some(0.025));
        }
    }
}

#[test]
fn ranks_that_are_silent_together_are_down_and_their_energy_counts() {
    let windows = windows(7, &ranks(0));
    // They end at 100 s: 4/6 of the window's samples, and all of its energy.
    let window = &windows[1];
    assert_eq!((window.samples.map(round), window.joules_per_sample.map(round)), (Some(400.0), Some(60.0)));
    assert!(windows.iter().all(|window| window.progress_silent_ratio == 0.0));
}

#[test]
fn a_killed_job_that_begins_anew_redoes_nothing_and_one_that_goes_on_does() {
    let run = |start: f64| {
        let mut events: Vec<Item> = vec![phase(0.0, 0.0, JobLifecycle::Started).into()];
        for second in (0..=590).step_by(10) {
            events.push(gpu("a", f64::from(second), f64::from(second) * 400.0).into());
        }
        for second in (10..=300).step_by(10) {
            events.push(rank(0, f64::from(second), f64::from(second) * 10.0).into());
        }
        events.push(phase(306.0, start, JobLifecycle::Started).into());
        for second in (310..=590).step_by(10) {
            events.push(rank(0, f64::from(second), start + f64::from(second - 306) * 10.0).into());
        }
        let windows = windows(7, &events);
        let sum = |of: fn(&EfficiencyWindow) -> f64| round(windows.iter().map(of).sum());
        let restarted = windows.iter().position(|window| window.restarted);
        (sum(|window| window.samples.unwrap_or(0.0)), sum(|window| window.samples_redone), restarted)
    };
    assert_eq!(run(0.0), (3_000.0 + 2_840.0, 0.0, Some(5)), "another job");
    assert_eq!(run(1_000.0), (3_000.0 + 840.0, 2_000.0, Some(5)), "from a checkpoint");
}

#[test]
fn ranks_of_a_job_that_begins_anew_redo_nothing_either() {
    let of = |number: u32, second: f64, samples: f64, phase: JobLifecycle| -> Item {
        TrainingProgress { phase, scope: CounterScope::Rank, ..rank(number, second, samples) }.into()
    };
    let mut events = Vec::new();
    for (number, delay) in [(0, 0.0), (1, 0.5)] {
        events.push(of(number, delay, 0.0, JobLifecycle::Started));
        events.push(of(number, 100.0, 1_000.0, JobLifecycle::Progress));
        events.push(of(number, 106.0 + delay, 0.0, JobLifecycle::Started));
        events.push(of(number, 170.0, 640.0, JobLifecycle::Progress));
    }
    let windows = windows(7, &events);
    let sum = |of: fn(&EfficiencyWindow) -> f64| round(windows.iter().map(of).sum());
    assert_eq!((sum(|window| window.samples.unwrap_or(0.0)), sum(|window| window.samples_redone)), (3_280.0, 0.0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..cases(24) })]

    /// Whatever settings change, and however often a layout comes again: energy and progress are those without any change.
    #[test]
    fn a_layout_of_the_same_size_changes_no_figure(
        ends in prop::collection::vec(10..700_i32, 1..5),
        changes in prop::collection::vec((2..600_i32, 0..3_u8), 0..6),
    ) {
        let mut events: Vec<Item> = vec![layout(1.0, 1).into()];
        for second in (0..=600).step_by(10) {
            let now = f64::from(second);
            events.extend([gpu("GPU", now, now * 100.0).into(), of_rank(0, now).into()]);
            for (number, _) in (1..).zip(&ends).filter(|(_, end)| second <= **end) {
                events.extend([gpu(&format!("GPU-{number}"), now, now * 100.0).into(), of_rank(number, now).into()]);
            }
        }
        let figures = |events: &[Item]| -> Vec<String> {
            let of = |window: &EfficiencyWindow| {
                let parts = (window.gpus, window.energy_joules, window.energy_coverage_ratio, window.ranks, window.samples);
                format!("{parts:?} {:?} {}", window.joules_per_sample, window.progress_silent_ratio)
            };
            windows(7, events).iter().map(of).collect()
        };
        let unchanged = figures(&events);
        for (generation, (second, kind)) in (2..).zip(changes) {
            let time = f64::from(second) + 0.5;
            let settings = match kind {
                0 => Layout::default(),
                1 => Layout { power_limit_watts: Some(time), ..Layout::default() },
                _ => Layout { mps_thread_percentage: Some(50), ..Layout::default() },
            };
            events.push(Workload { layout: settings, ..layout(time, generation) }.into());
        }
        prop_assert_eq!(figures(&events), unchanged);
    }
}

fn of_rank(number: u32, second: f64) -> TrainingProgress {
    TrainingProgress { scope: CounterScope::Rank, ..rank(number, second, second * 2.5) }
}
