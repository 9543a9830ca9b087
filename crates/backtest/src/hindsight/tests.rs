//! Controllers on the record of a simulated run by another one, beside their own runs of the same seed.

use std::collections::BTreeMap;

use eadt_core::controller::{ControllerName, ControllerSettings};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, ControllerAction, Decision, Origin, Workload};
use eadt_simulator::{ClusterSimulation, Scenario};

use super::evidence::same_layout;
use super::{Estimate, HindsightInput, HindsightRow, evaluate_record, hindsight_html, walk};
use crate::{BacktestPlan, Contender, Oversubscription, ScenarioSource, trace};

const START_SECONDS: f64 = 1_767_225_600.0;
/// Time from the start of a window to the effect of the decision before it.
const DELAY_SECONDS: f64 = 10.0;
const SEEDS: [u64; 3] = [7, 11, 12];
const CHANGED_FROM_OUTSIDE: [&str; 2] = ["changed from outside", "the layout was changed"];

fn subject() -> ScenarioSource {
    ScenarioSource::Scenario { name: "default".into(), scenario: Box::new(Scenario::default()) }
}

/// Adds what an actuator would have published of a change that came into force in this window.
fn add_change(record: &mut HindsightInput, last: &Workload, decision: &Decision, changed: Workload) {
    let applied = same_layout(&decision.to, &changed.layout, last.gpu_power_limit_watts);
    let outcome = if applied { ActuationOutcome::Applied } else { ActuationOutcome::RolledBack };
    // The record's decisions have ids of their own, independent of the controller that is tested on it.
    let decision_id = format!("recorded/{}", decision.id);
    record.actuations.push(Actuation {
        id: format!("{decision_id}/{outcome:?}/{}", changed.generation),
        decision_id: decision_id.clone(),
        workload: changed.workload.clone(),
        time: changed.time,
        outcome,
        layout: changed.layout.clone(),
        generation: changed.generation,
        ..Actuation::default()
    });
    record.workloads.push(Workload { decision_id: applied.then_some(decision_id), ..changed });
}

/// Returns the record of three hours of the default scenario under a controller.
fn record(controller: ControllerName, seed: u64) -> HindsightInput {
    let plan = BacktestPlan {
        subjects: Vec::new(),
        contenders: Vec::new(),
        oversubscription: vec![Oversubscription::Allowed],
        days: 0.125,
        seeds: 1,
        settings: ControllerSettings::default(),
        delay_seconds: DELAY_SECONDS,
        power_budget_watts: None,
    };
    let start = EventTime::from_seconds(START_SECONDS);
    let cluster = ClusterSimulation::new(subject().scenario(seed, plan.days), start).unwrap();
    let mut declared: BTreeMap<String, Workload> = BTreeMap::new();
    for managed in cluster.managed() {
        declared.insert(managed.state.workload.clone(), Workload { time: start, ..managed.state });
    }
    let mut record = HindsightInput { workloads: declared.values().cloned().collect(), ..HindsightInput::default() };
    let mut last_change: BTreeMap<String, Decision> = BTreeMap::new();
    trace(&plan, &subject(), Contender::Controller(controller), seed, &mut |decision, window| {
        let last = declared[&window.workload].clone();
        let (layout, generation) = (window.layout.clone().unwrap(), window.generation.unwrap());
        if generation != last.generation {
            let time = window.window_start.plus_seconds(DELAY_SECONDS);
            let changed = Workload { time, layout, generation, ..last.clone() };
            declared.insert(window.workload.clone(), changed.clone());
            add_change(&mut record, &last, &last_change[&window.workload], changed);
        }
        if decision.action != ControllerAction::Maintain {
            last_change.insert(window.workload.clone(), decision.clone());
        }
        record.windows.push(window.clone());
    })
    .unwrap();
    record
}

/// Returns the J/sample of each workload's run, its restarts included.
fn joules_per_sample(record: &HindsightInput) -> BTreeMap<String, f64> {
    let mut totals: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for window in &record.windows {
        let (joules, samples) = totals.entry(window.workload.clone()).or_default();
        *joules += window.run_energy_joules.unwrap();
        *samples += window.samples.unwrap();
    }
    totals.into_iter().map(|(workload, (joules, samples))| (workload, joules / samples)).collect()
}

/// Walks a controller through every workload of a record, and checks that it takes none of its own changes for foreign changes.
fn check_reasons(record: &HindsightInput, controller: ControllerName) {
    for job in walk::jobs(record) {
        walk::walk(&job, controller, &ControllerSettings::default(), &mut |decision| {
            let foreign = CHANGED_FROM_OUTSIDE.iter().any(|words| decision.reason.contains(words));
            assert!(!foreign, "{controller} at {}: {}", decision.time, decision.reason);
        });
    }
}

#[test]
fn a_controller_never_takes_an_imagined_change_for_one_from_outside() {
    for recorded in [ControllerName::Hybrid, ControllerName::PowerCap] {
        let record = record(recorded, SEEDS[0]);
        for controller in ControllerName::ALL {
            check_reasons(&record, controller);
        }
    }
}

#[test]
fn a_controller_does_on_its_own_record_what_it_did_whatever_the_ids_of_the_decisions_are() {
    let record = record(ControllerName::PowerCap, SEEDS[0]);
    let rows = evaluate_record(&record, &[ControllerName::PowerCap], &ControllerSettings::default());
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row.recorded_changes > 2, "{row:#?}");
        assert_eq!((row.windows_estimated, row.windows_unknown), (0, 0), "{row:#?}");
        // A decision at the end is in no window of the record.
        let made = row.changes.len() as u64;
        assert!((row.recorded_changes..=row.recorded_changes + 1).contains(&made), "{row:#?}");
    }
}

#[test]
fn no_estimate_contradicts_a_run_of_the_other_controller() {
    let pairs = [
        (ControllerName::Hybrid, ControllerName::PowerCap),
        (ControllerName::PowerCap, ControllerName::Hybrid),
        (ControllerName::Frequency, ControllerName::PowerCap),
    ];
    for seed in SEEDS {
        for (recorded, controller) in pairs {
            let record = record(recorded, seed);
            let (own, other) = (joules_per_sample(&record), joules_per_sample(&self::record(controller, seed)));
            for row in evaluate_record(&record, &[controller], &ControllerSettings::default()) {
                let truth = other[&row.workload] / own[&row.workload] - 1.0;
                if let Some(change) = row.joules_per_sample_change {
                    let contradicts = (change.low > 0.0 && truth < 0.0) || (change.high < 0.0 && truth > 0.0);
                    assert!(!contradicts, "seed {seed}, {controller}: {change:?} instead of {truth}");
                }
                // Nothing is stated of a controller that the record holds back.
                assert!(row.refused.is_empty() || row.joules_per_sample_change.is_none(), "{row:#?}");
            }
        }
    }
}

/// Returns a row whose estimate, if any, is given as value, low and high.
fn row(controller: ControllerName, change: Option<[f64; 3]>) -> HindsightRow {
    HindsightRow {
        workload: "lab/a".into(),
        controller,
        origin: Origin::Simulated,
        windows: 10,
        windows_as_recorded: 5,
        windows_estimated: 5,
        windows_unknown: 0,
        known_ratio: Some(1.0),
        recorded_joules_per_sample: Some(2.0),
        joules_per_sample_change: change.map(|[value, low, high]| Estimate { value, low, high, confidence_saves_ratio: 0.5 }),
        changes: Vec::new(),
        refused: Vec::new(),
        restarts: 0,
        recorded_changes: 0,
        notes: Vec::new(),
    }
}

#[test]
fn the_verdict_names_a_controller_as_best_only_if_its_interval_excludes_no_saving() {
    let verdict = |changes: [Option<[f64; 3]>; 2]| {
        let [cap, clocks] = changes;
        let page = hindsight_html(&[row(ControllerName::PowerCap, cap), row(ControllerName::Frequency, clocks)]);
        let start = page.split_once("<p class=\"verdict\">").unwrap().1;
        start.split_once("</p>").unwrap().0.to_owned()
    };
    let wide = Some([-0.10, -0.25, 0.05]);
    let cases = [
        ([None, None], "the record does not show"),
        (
            [Some([0.02, 0.01, 0.03]), wide],
            "none of these controllers would clearly have saved energy; lowest estimate: frequency, -10.0 %",
        ),
        ([Some([-0.05, -0.06, -0.04]), Some([-0.01, -0.02, 0.0])], "power-cap would have saved most: -5.0 %"),
        ([Some([-0.05, -0.06, -0.04]), wide], "power-cap would have saved energy, but not clearly more than frequency: -5.0 %"),
    ];
    for (changes, expected) in cases {
        let text = verdict(changes);
        assert!(text.starts_with(&format!("lab/a (simulated): {expected}")), "{text}");
    }
}
