//! Runs and spans: where they begin and end within what is read already, and what lies around them.

use crate::support;

use eadt_core::FoldSettings;
use eadt_schemas::v1::{CounterScope, DeadLetterReason, EfficiencyWindow, JobLifecycle, TrainingProgress};
use support::{Bench, at, gpu, last, layout, phase, power, rank, round};

fn second(time: eadt_schemas::EventTime) -> f64 {
    round(time.seconds_since(at(0.0)))
}

/// Start, end and energy of each window.
fn windows(bench: &Bench) -> Vec<(f64, f64, Option<f64>)> {
    bench.windows.iter().map(|w| (second(w.window_start), second(w.window_end), w.energy_joules.map(round))).collect()
}

/// Windows begin with the run, and event times alone count.
fn aligned() -> Bench {
    Bench::new(FoldSettings { align_to_run: true, max_future: None, ..FoldSettings::default() })
}

/// Lets a minute of log time pass.
fn minute(bench: &mut Bench, from: f64) {
    for ten in 1..=6 {
        bench.heartbeat(from + 10.0 * f64::from(ten));
    }
}

#[test]
fn a_start_that_is_reported_after_the_samples_around_it_keeps_their_figures() {
    let mut bench = aligned();
    bench
        .put(gpu("a", 70.0, 7_000.0))
        .put(gpu("a", 80.0, 8_000.0))
        .stamped(81.0, phase(75.0, 0.0, JobLifecycle::Started))
        .finish();
    assert_eq!(windows(&bench), [(60.0, 75.0, Some(500.0)), (75.0, 135.0, Some(500.0))]);
}

#[test]
fn a_sample_at_the_very_start_is_the_runs() {
    let mut bench = aligned();
    bench.put(gpu("a", 75.0, 0.0)).put(phase(75.0, 0.0, JobLifecycle::Started)).put(gpu("a", 85.0, 900.0)).finish();
    assert_eq!(windows(&bench), [(75.0, 135.0, Some(900.0))]);
}

#[test]
fn what_is_summed_before_a_start_keeps_its_window() {
    // b holds the window open; a ends, summed, before the run.
    let mut bench = aligned();
    bench.stamped(0.0, gpu("b", 76.0, 0.0));
    minute(&mut bench, 0.0);
    bench.stamped(65.0, gpu("a", 61.0, 0.0)).stamped(65.0, last(gpu("a", 63.0, 200.0)));
    bench.stamped(66.0, phase(75.0, 0.0, JobLifecycle::Started)).finish();
    assert_eq!(windows(&bench)[0], (60.0, 75.0, Some(200.0)));
    // The same of progress.
    let mut bench = aligned();
    let done = |second: f64, samples: f64| TrainingProgress { scope: CounterScope::Rank, ..rank(1, second, samples) };
    bench.stamped(0.0, gpu("b", 76.0, 0.0)).stamped(1.0, done(61.0, 0.0));
    bench.stamped(2.0, TrainingProgress { last: true, ..done(63.0, 20.0) });
    bench.stamped(3.0, TrainingProgress { scope: CounterScope::Rank, ..phase(75.0, 0.0, JobLifecycle::Started) }).finish();
    assert_eq!((windows(&bench)[0], bench.windows[0].samples), ((60.0, 75.0, None), Some(20.0)));
}

#[test]
fn who_reported_last_in_closed_time_may_still_report_of_the_time_before_a_start() {
    let of = |number: u32, second: f64| TrainingProgress { scope: CounterScope::Rank, ..rank(number, second, second * 10.0) };
    let begun = |is_reported: bool| {
        let mut bench = aligned();
        bench.put(gpu("a", 40.0, 0.0)).put(last(gpu("a", 59.5, 100.0)));
        assert_eq!(bench.starts(), [0.0]);
        if is_reported {
            bench.stamped(62.0, of(1, 59.0));
            assert_eq!(bench.reasons(), [DeadLetterReason::Late]);
        }
        bench.put(TrainingProgress { phase: JobLifecycle::Started, ..of(0, 75.0) }).put(of(1, 80.0)).finish();
        bench.windows[1..].iter().map(|w| (second(w.window_start), w.samples.map(round))).collect::<Vec<_>>()
    };
    assert_eq!(begun(true), [(60.0, Some(150.0)), (75.0, Some(50.0))]);
    assert_eq!(begun(false), [(75.0, None)], "who ended reports nothing more");
}

#[test]
fn energy_that_is_summed_already_is_divided_by_time_and_counted() {
    let mut bench = Bench::new(FoldSettings { max_future: None, ..FoldSettings::default() });
    // From 100 W to 200 W in 30 s: 4,500 J. A minute after its first sample the start report of a job is no longer waited
    // for.
    bench.stamped(0.0, power("a", 0.0, 100.0));
    minute(&mut bench, 0.0);
    bench.stamped(61.0, power("a", 30.0, 200.0)).stamped(61.0, phase(15.0, 0.0, JobLifecycle::Started)).finish();
    let window = &bench.windows[0];
    assert_eq!((window.energy_joules, window.run_energy_joules, window.late_tables), (Some(4_500.0), Some(2_250.0), 1));
    // Within the minute the run has what it used.
    let mut bench = Bench::new(FoldSettings { max_future: None, ..FoldSettings::default() });
    bench.stamped(0.0, power("a", 0.0, 100.0)).stamped(59.0, power("a", 30.0, 200.0));
    bench.stamped(59.0, phase(15.0, 0.0, JobLifecycle::Started)).finish();
    let window = &bench.windows[0];
    assert_eq!((window.energy_joules, window.run_energy_joules, window.late_tables), (Some(4_500.0), Some(2_625.0), 0));
}

#[test]
fn progress_that_is_summed_already_is_divided_by_time_and_counted() {
    let mut bench = Bench::default();
    let of =
        |number: u32, second: f64, samples: f64| TrainingProgress { scope: CounterScope::Rank, ..rank(number, second, samples) };
    let epoch = |second: f64, name: &str| TrainingProgress { span: Some(name.to_owned()), ..of(0, second, 0.0) };
    bench.put(gpu("a", 0.0, 0.0)).put(of(1, 0.0, 0.0)).put(of(1, 30.0, 300.0));
    bench.stamped(30.0, epoch(10.0, "epoch 1")).stamped(30.0, epoch(20.0, "")).finish();
    assert_eq!((bench.windows[0].samples, bench.windows[0].late_tables), (Some(300.0), 2));
    assert_eq!(bench.spans.iter().map(|span| span.samples.map(round)).collect::<Vec<_>>(), [Some(100.0)]);
}

#[test]
fn a_start_in_closed_time_is_late_and_its_run_is_known() {
    let mut bench = Bench::default();
    for second in (0..=70).step_by(10) {
        bench.put(gpu("a", f64::from(second), f64::from(second)));
    }
    bench.stamped(71.0, phase(50.0, 0.0, JobLifecycle::Started));
    assert_eq!((bench.starts(), bench.reasons()), (vec![0.0], vec![DeadLetterReason::Late]));
    bench.finish();
    let runs: Vec<_> = bench.windows.iter().map(|w| (w.run_declared, w.run_seconds)).collect();
    assert_eq!(runs, [(false, 60.0), (true, 60.0)]);
}

#[test]
fn a_span_that_begins_within_what_devices_reported_already_is_exact() {
    // Power rises by 1 W a second; the rank is 7.5 s behind.
    let mut bench = Bench::default();
    for second in (0..=240).step_by(5) {
        let now = f64::from(second);
        let span = match second {
            100 => Some("epoch 1".to_owned()),
            150 => Some(String::new()),
            _ => None,
        };
        bench.put(power("a", now, 100.0 + now));
        bench.stamped(now, TrainingProgress { span, ..rank(0, now - 7.5, now) });
    }
    bench.finish();
    // From 92.5 s to 142.5 s: 217.5 W on average.
    let spans: Vec<_> =
        bench.spans.iter().map(|s| (second(s.window_start), second(s.window_end), s.energy_joules.map(round))).collect();
    assert_eq!(spans, [(92.5, 142.5, Some(50.0 * 217.5))]);
    assert_eq!(bench.windows.iter().map(|w| w.late_tables).sum::<u64>(), 0);
}

/// Returns the windows of rank 0's spans, from these events.
fn spans(events: &[TrainingProgress]) -> Vec<EfficiencyWindow> {
    let mut bench = Bench::default();
    for event in events {
        bench.put(gpu("a", second(event.time), second(event.time) * 100.0)).put(event.clone());
    }
    bench.finish();
    bench.spans
}

fn named(second: f64, name: &str) -> TrainingProgress {
    TrainingProgress { span: Some(name.to_owned()), ..rank(0, second, second) }
}

#[test]
fn the_end_of_a_job_and_that_of_a_source_end_its_span() {
    let ends = |end: TrainingProgress| {
        let ended = spans(&[rank(0, 0.0, 0.0), named(10.0, "epoch 1"), end, rank(0, 50.0, 50.0)]);
        ended.iter().map(|s| (second(s.window_start), second(s.window_end))).collect::<Vec<_>>()
    };
    assert_eq!(ends(phase(40.0, 40.0, JobLifecycle::Finished)), [(10.0, 40.0)]);
    assert_eq!(ends(TrainingProgress { last: true, ..rank(0, 40.0, 40.0) }), [(10.0, 40.0)]);
    assert_eq!(ends(named(40.0, "")), [(10.0, 40.0)]);
    assert_eq!(ends(rank(0, 40.0, 40.0)), [], "it goes on");
}

#[test]
fn a_span_is_restarted_where_a_counter_fell_or_the_layout_changed_in_it() {
    let quiet = spans(&[named(10.0, "epoch 1"), rank(0, 20.0, 20.0), named(40.0, "")]);
    let fell = spans(&[named(10.0, "epoch 1"), rank(0, 20.0, 5.0), named(40.0, "")]);
    assert_eq!((quiet[0].restarted, fell[0].restarted), (false, true));
    let mut bench = Bench::default();
    bench.put(layout(0.0, 1)).put(gpu("a", 5.0, 0.0)).put(named(10.0, "before")).put(named(20.0, "epoch 1"));
    bench.put(layout(30.0, 2)).put(named(40.0, "after")).put(named(50.0, "")).put(gpu("a", 55.0, 500.0)).finish();
    let restarted: Vec<_> = bench.spans.iter().map(|span| (span.span.as_deref(), span.restarted)).collect();
    assert_eq!(restarted, [(Some("before"), false), (Some("epoch 1"), true), (Some("after"), false)]);
}

#[test]
fn a_span_whose_inputs_are_missing_is_marked() {
    let mut bench = Bench::default();
    bench.put(gpu("a", 0.0, 0.0)).put(named(10.0, "before")).put(named(40.0, "epoch 1"));
    bench.put(gpu("a", 61.0, 61.0)).put(rank(0, 61.0, 61.0));
    assert_eq!(bench.starts(), [0.0]);
    bench.partition.mark_gap();
    bench.put(gpu("a", 75.0, 75.0)).put(named(80.0, "")).put(named(130.0, "after"));
    bench.put(gpu("a", 190.0, 190.0)).put(named(190.0, "")).finish();
    let gaps: Vec<_> = bench.spans.iter().map(|span| (span.span.as_deref(), span.gap)).collect();
    assert_eq!(gaps, [(Some("before"), false), (Some("epoch 1"), true), (Some("after"), false)]);
}
