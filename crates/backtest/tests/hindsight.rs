//! Looking back: a controller on records of which the truth is known.

use eadt_backtest::{
    HindsightInput, HindsightRow, InsufficientEvidence, evaluate_record, hindsight_html, render_hindsight_report,
};
use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{ControllerAction, EfficiencyWindow, Layout, LayoutBounds, Origin, UpdateMode, Workload};

const NAME: &str = "lab/job";

fn at(minute: usize) -> EventTime {
    EventTime::from_micros(1_700_000_040_000_000).plus_seconds(60.0 * minute as f64)
}

fn layout(percent: u32) -> Layout {
    Layout {
        replicas: Some(6),
        mps_thread_percentage: Some(percent),
        world_size: Some(6),
        local_world_size: Some(2),
        ..Layout::default()
    }
}

/// A minute of a job: thread percentage, watts, samples/s, memory activity.
type Minute = (u32, f64, f64, f64);

fn record(minutes: &[Minute]) -> HindsightInput {
    let mut record = HindsightInput::default();
    for (minute, (percent, watts, rate, dram)) in minutes.iter().enumerate() {
        // Each window a little different, as measurements are.
        let wobble = 1.0 + 0.002 * (minute % 3) as f64;
        record.windows.push(EfficiencyWindow {
            id: format!("{NAME}@{minute}"),
            workload: NAME.to_owned(),
            window_start: at(minute),
            window_end: at(minute + 1),
            origin: Origin::Imported,
            energy_coverage_ratio: 1.0,
            progress_coverage_ratio: 1.0,
            mean_power_watts: Some(watts * wobble),
            mean_power_per_gpu_watts: Some(watts * wobble / 3.0),
            samples_per_second: Some(*rate),
            samples: Some(rate * 60.0),
            energy_joules: Some(watts * wobble * 60.0),
            joules_per_sample: Some(watts * wobble / rate),
            samples_per_joule: Some(rate / (watts * wobble)),
            mean_dram_active_ratio: Some(*dram),
            layout: Some(layout(*percent)),
            generation: Some(u64::from(*percent)),
            gpus: 3,
            ranks: 6,
            ..EfficiencyWindow::default()
        });
    }
    record.workloads.push(Workload {
        time: at(0),
        workload: NAME.to_owned(),
        origin: Origin::Imported,
        kind: "StatefulSet".to_owned(),
        generation: 50,
        layout: layout(50),
        mode: UpdateMode::Recommend,
        bounds: LayoutBounds { oversubscription_percentage_max: Some(200), ..LayoutBounds::default() },
        gpus: Some(3),
        backend: Some("gloo".to_owned()),
        global_batch_size: Some(576),
        ..Workload::default()
    });
    record
}

/// 280 W at 0.08 samples/s/W, where the literal table wants 40 % instead of 50 %.
const BEFORE: Minute = (50, 280.0, 22.4, 0.224);
/// The same work at 40 %, with a tenth of a sample's memory activity as before: 240 W, with no further change.
const AFTER: Minute = (40, 240.0, 22.0, 0.22);

fn literal(record: &HindsightInput) -> HindsightRow {
    let mut all = evaluate_record(record, &[ControllerName::MatrixLiteral], &ControllerSettings::default());
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn a_change_that_the_record_ran_later_is_reported_with_its_effect() {
    let mut minutes = vec![BEFORE; 60];
    minutes.extend(vec![AFTER; 30]);
    let it = literal(&record(&minutes));
    let change = &it.changes[0];
    assert_eq!(
        (change.action, change.to.mps_thread_percentage, change.phase),
        (ControllerAction::Decrease, Some(40), 1),
        "{it:#?}"
    );
    assert_eq!(change.windows, 30);
    // 240 / 22 against 280 / 22.4, and the windows hardly differ among themselves.
    let truth = (240.0 / 22.0) / (280.0 / 22.4) - 1.0;
    let effect = change.effect.unwrap();
    assert!((effect.value - truth).abs() < 1e-3, "{effect:?} instead of {truth}");
    assert!(effect.low <= effect.value && effect.value <= effect.high && effect.high - effect.low < 0.005, "{effect:?}");
    assert_eq!(effect.confidence_saves_ratio, 1.0);
    assert!(it.refused.is_empty(), "{:?}", it.refused);
    assert_eq!((it.windows, it.recorded_changes, it.known_ratio), (90, 1, Some(1.0)));
    // From the change to minute 60 it would have saved that; after it the record runs the same.
    assert!(it.windows_estimated > 40, "{it:?}");
    assert!(it.windows_as_recorded >= 30, "{it:?}");
    let (n, m) = (it.windows_estimated as f64, it.windows_as_recorded as f64);
    assert!(n + m < 90.0, "the imagined rollout takes a few windows, which count nowhere");
    let early = m - 30.0;
    let recorded = (280.0 * (n + early) + 240.0 * 30.0) / (22.4 * (n + early) + 22.0 * 30.0);
    assert!((it.recorded_joules_per_sample.unwrap() / recorded - 1.0).abs() < 3e-3);
    let imagined = (280.0 * early + 240.0 * (n + 30.0)) / (22.4 * early + 22.0 * (n + 30.0));
    let total = it.joules_per_sample_change.unwrap();
    assert!((total.value - (imagined / recorded - 1.0)).abs() < 1e-3, "{total:?}");
    let page = hindsight_html(std::slice::from_ref(&it));
    for part in ["<p class=\"verdict\">", " would have saved most: -", "6 × 50 % → 6 × 40 % in phase 1: -12.7 %"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let text = render_hindsight_report(&[it]);
    assert!(text.contains("6 × 50 % → 6 × 40 % in phase 1: -12.7 %"), "{text}");
    assert!(text.contains("imported record") && text.contains("mode Recommend"), "{text}");
}

#[test]
fn a_layout_that_the_record_never_ran_is_refused() {
    let it = literal(&record(&[BEFORE; 60]));
    assert!(it.changes.is_empty(), "{:?}", it.changes);
    let refused = &it.refused[0];
    assert_eq!((refused.action, refused.to.mps_thread_percentage), (ControllerAction::Decrease, Some(40)));
    assert_eq!(refused.unknown, InsufficientEvidence::NeverObserved { phase: 1, windows: 0 });
    assert!(refused.count > 1, "it asks again: {refused:?}");
    assert_eq!((it.windows_estimated, it.windows_as_recorded, it.joules_per_sample_change), (0, 60, None));
    assert!(render_hindsight_report(&[it]).contains("never observed in phase 1"));
}

#[test]
fn another_phase_of_the_job_shows_nothing() {
    let mut minutes = vec![BEFORE; 40];
    // The same power and throughput, but a sample moves twice as much: other work.
    minutes.extend(vec![(40, 240.0, 22.0, 0.44); 40]);
    let it = literal(&record(&minutes));
    assert!(it.changes.is_empty(), "{:?}", it.changes);
    assert_eq!(it.refused[0].unknown, InsufficientEvidence::NeverObserved { phase: 1, windows: 0 });
    // Without memory activity the phase is unknown.
    let mut record = record(&[vec![BEFORE; 40], vec![AFTER; 40]].concat());
    for window in &mut record.windows {
        window.mean_dram_active_ratio = None;
    }
    let it = literal(&record);
    assert_eq!((it.changes.len(), &it.refused[0].unknown), (0, &InsufficientEvidence::NoPhase));
}

#[test]
fn a_phase_that_the_imagined_layout_was_never_in_ends_the_path() {
    let other = (50, 300.0, 100.0, 3.0);
    let minutes = [vec![BEFORE; 20], vec![AFTER; 10], vec![(50, 280.0, 22.4, 0.224); 10], vec![other; 20]].concat();
    let it = literal(&record(&minutes));
    assert!(!it.changes.is_empty());
    let lost = it.refused.iter().find(|refused| refused.action == ControllerAction::Maintain).expect("the path ends");
    assert!(lost.reason.starts_with("not followed any further"), "{lost:?}");
    assert!(it.windows_unknown >= 1 && it.known_ratio.unwrap() < 1.0, "{it:?}");
}

#[test]
fn a_refused_change_leaves_no_figure_of_the_controller_itself() {
    let other = (50, 300.0, 100.0, 3.0);
    let minutes = [vec![BEFORE; 30], vec![AFTER; 10], vec![other; 20]].concat();
    let it = literal(&record(&minutes));
    assert!(!it.refused.is_empty() && it.joules_per_sample_change.is_none(), "{it:#?}");
    assert!(it.windows_estimated > 0 && it.changes[0].effect.is_some(), "what the record shows is reported: {it:#?}");
    // It waits at its layout: the record's is nothing that it set.
    assert_eq!(it.windows_unknown, 20, "{it:#?}");
    assert!(it.notes.iter().any(|note| note.contains("does not show what matrix-literal would have used")), "{:?}", it.notes);
    let text = render_hindsight_report(&[it]);
    assert!(text.contains("unknown with the controller") && !text.contains("saves with"), "{text}");
}

#[test]
fn the_interval_holds_the_change_with_restarts() {
    // The job crashes for three minutes: the controller's does not, but its own change takes two.
    let crash = (50, 200.0, 0.0, 0.01);
    let minutes = [vec![BEFORE; 57], vec![crash; 3], vec![AFTER; 30]].concat();
    let mut record = record(&minutes);
    for window in &mut record.windows[57..60] {
        window.restarted = true;
    }
    let it = literal(&record);
    assert!(it.refused.is_empty() && it.windows_estimated > 40, "{it:#?}");
    let (n, early) = (it.windows_estimated as f64, it.windows_as_recorded as f64 - 30.0);
    // The imagined change takes three windows, in a third of which the job runs.
    let own = (280.0 * (n + early + 3.0) + 240.0 * 30.0 + 200.0 * 3.0) / (22.4 * (n + early + 3.0) + 22.0 * 30.0);
    let imagined = (280.0 * (early + 3.0) + 240.0 * (n + 33.0)) / (22.4 * (early + 1.0) + 22.0 * (n + 33.0));
    let total = it.joules_per_sample_change.unwrap();
    let with_restarts = imagined / own - 1.0;
    assert!((total.low - 2e-3..=total.high + 2e-3).contains(&with_restarts), "{with_restarts} is not in {total:?}");
    assert!(total.low <= total.value && total.value <= total.high, "{total:?}");
    assert!(total.high - total.low > (total.value - with_restarts).abs() - 2e-3, "{total:?}");
}

/// The record's controller changes the layout: another one, which is refused, keeps the layout of the start.
#[test]
fn changes_by_the_controller_of_the_record_are_not_taken_over() {
    let elsewhere = (70, 240.0, 22.0, 0.22);
    let mut record = record(&[vec![BEFORE; 20], vec![elsewhere; 20]].concat());
    let start = record.workloads[0].clone();
    let by_others = literal(&record);
    assert_eq!((by_others.windows_as_recorded, by_others.windows_unknown), (40, 0), "{by_others:#?}");
    record.workloads.push(Workload {
        time: at(20),
        generation: 70,
        layout: layout(70),
        decision_id: Some(format!("{NAME}@20/hybrid")),
        ..start
    });
    let it = literal(&record);
    assert_eq!((it.windows_as_recorded, it.windows_estimated), (20, 20), "{it:#?}");
}

#[test]
fn order_and_repetition_of_the_events_change_nothing() {
    let minutes = [vec![BEFORE; 30], vec![AFTER; 30]].concat();
    let straight = record(&minutes);
    let mut turned = straight.clone();
    turned.windows.reverse();
    turned.windows.push(straight.windows[7].clone());
    turned.workloads.push(straight.workloads[0].clone());
    let all = |record: &HindsightInput| evaluate_record(record, &ControllerName::ALL, &ControllerSettings::default());
    assert_eq!(all(&straight), all(&turned));
    assert_eq!(all(&straight).len(), ControllerName::ALL.len());
}

#[test]
fn a_controller_that_has_nothing_to_decide_by_is_noted() {
    let record = record(&[(50, 300.0, 100.0, 0.4); 12]);
    for (name, is_noted) in
        [(ControllerName::Layers, true), (ControllerName::SmPartition, true), (ControllerName::PowerCap, false)]
    {
        let all = evaluate_record(&record, &[name], &ControllerSettings::default());
        let is_idle = |note: &String| note.starts_with(&format!("{name} decides nothing here"));
        assert_eq!(all[0].notes.iter().any(is_idle), is_noted, "{:?}", all[0].notes);
        assert!(!render_hindsight_report(&all).contains("would have been the same") || !is_noted);
    }
}

#[test]
fn a_workload_that_nobody_managed_is_reported_as_one() {
    let mut record = record(&[BEFORE; 10]);
    record.workloads.clear();
    let it = literal(&record);
    assert!(it.notes[0].contains("this workload was not managed"), "{:?}", it.notes);
    assert_eq!((it.changes.len(), it.refused.len(), it.known_ratio), (0, 0, None));
    assert!(evaluate_record(&HindsightInput::default(), &ControllerName::ALL, &ControllerSettings::default()).is_empty());
}
