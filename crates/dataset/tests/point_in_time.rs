//! Checks that no feature of a row is from after its time, and that the joined columns are right.

use eadt_dataset::{ColumnCells, ColumnRole, Dataset, DatasetBuilder, DatasetTable};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout, WindowKind,
};
use proptest::prelude::*;

const WORKLOAD: &str = "team/job";

fn minute(n: i64) -> EventTime {
    EventTime::from_micros(1_767_225_600_000_000 + n * 60_000_000)
}

fn window(n: i64, generation: u64, joules: f64, samples: f64) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("{WORKLOAD}/{n}"),
        workload: WORKLOAD.to_owned(),
        window_start: minute(n),
        window_end: minute(n + 1),
        energy_joules: Some(joules),
        samples: Some(samples),
        samples_per_second: Some(samples / 60.0),
        mean_power_watts: Some(joules / 60.0),
        joules_per_sample: Some(joules / samples),
        energy_coverage_ratio: 1.0,
        progress_coverage_ratio: 1.0,
        generation: Some(generation),
        layout: Some(Layout { replicas: Some(6), ..Layout::default() }),
        ..EfficiencyWindow::default()
    }
}

fn decision(at: i64, generation: u64, change: bool) -> Decision {
    let from = Layout { replicas: Some(6), ..Layout::default() };
    Decision {
        id: format!("{WORKLOAD}@{at}"),
        workload: WORKLOAD.to_owned(),
        time: minute(at),
        action: if change { ControllerAction::Decrease } else { ControllerAction::Maintain },
        from: from.clone(),
        to: if change { Layout { replicas: Some(3), ..Layout::default() } } else { from },
        generation: Some(generation),
        ..Decision::default()
    }
}

fn actuation(decision: &Decision, outcome: ActuationOutcome, at: EventTime, generation: u64) -> Actuation {
    Actuation {
        id: format!("{}/{outcome:?}", decision.id),
        decision_id: decision.id.clone(),
        workload: WORKLOAD.to_owned(),
        time: at,
        outcome,
        generation,
        downtime_seconds: (outcome == ActuationOutcome::Ready).then_some(90.0),
        ..Actuation::default()
    }
}

#[derive(Debug, Clone, Default)]
struct Events {
    windows: Vec<EfficiencyWindow>,
    decisions: Vec<Decision>,
    actuations: Vec<Actuation>,
}

impl Events {
    fn build(&self) -> Dataset {
        let mut builder = DatasetBuilder::default();
        self.windows.iter().cloned().for_each(|event| builder.window(event));
        self.decisions.iter().cloned().for_each(|event| builder.decision(event));
        self.actuations.iter().cloned().for_each(|event| builder.actuation(event));
        builder.build()
    }

    /// Returns the part of a record that ends at `time`.
    fn until(&self, time: EventTime) -> Self {
        Self {
            windows: self.windows.iter().filter(|window| window.window_end <= time).cloned().collect(),
            decisions: self.decisions.iter().filter(|decision| decision.time <= time).cloned().collect(),
            actuations: self.actuations.iter().filter(|actuation| actuation.time < time).cloned().collect(),
        }
    }
}

fn cell(table: &DatasetTable, column: &str, row: usize) -> String {
    match &table.column(column).unwrap_or_else(|| panic!("no column {column}")).cells {
        ColumnCells::Text(cells) => format!("{:?}", cells[row]),
        ColumnCells::Time(cells) => format!("{:?}", cells[row]),
        ColumnCells::Int(cells) => format!("{:?}", cells[row]),
        ColumnCells::Float(cells) => format!("{:?}", cells[row]),
        ColumnCells::Bool(cells) => format!("{:?}", cells[row]),
    }
}

fn float(table: &DatasetTable, column: &str, row: usize) -> Option<f64> {
    match &table.column(column).unwrap_or_else(|| panic!("no column {column}")).cells {
        ColumnCells::Float(cells) => cells[row],
        other => panic!("{column} is {}", other.kind()),
    }
}

/// Returns the cells that may be learned from, by row.
fn known_then(table: &DatasetTable, time: &str, until: EventTime) -> Vec<Vec<String>> {
    let ColumnCells::Time(times) = &table.column(time).expect("the time column").cells else { panic!("{time} is a time") };
    let rows = (0..table.rows()).filter(|row| times[*row].is_some_and(|at| at <= until));
    let features = || table.columns.iter().filter(|c| !matches!(c.role, ColumnRole::Outcome | ColumnRole::Label));
    rows.map(|row| features().map(|column| cell(table, column.name, row)).collect()).collect()
}

/// Ten minutes at 10 J/sample, a change that takes two minutes, then 8 J/sample at 0.9 of the speed.
fn a_change_that_helps() -> Events {
    let mut events = Events::default();
    events.windows.extend((0..10).map(|n| window(n, 1, 6000.0, 600.0)));
    let change = decision(10, 1, true);
    events.actuations.push(actuation(&change, ActuationOutcome::Applied, minute(10).plus_seconds(5.0), 2));
    events.actuations.push(actuation(&change, ActuationOutcome::Ready, minute(11).plus_seconds(30.0), 2));
    events.windows.extend((10..12).map(|n| EfficiencyWindow { restarted: true, ..window(n, 2, 3000.0, 30.0) }));
    // Warm-up is no part of the verdict.
    events.windows.push(window(12, 2, 9000.0, 300.0));
    events.windows.extend((13..20).map(|n| window(n, 2, 4320.0, 540.0)));
    let mut kept = decision(16, 2, false);
    kept.validation = ChangeValidation::Kept;
    kept.concerns = Some(change.id.clone());
    events.decisions.extend([change, kept]);
    events
}

#[test]
fn a_change_is_joined_with_what_came_of_it() {
    let dataset = a_change_that_helps().build();
    let table = &dataset.decisions;
    assert_eq!(table.rows(), 2);
    assert_eq!(cell(table, "outcome", 0), "Some(\"ready\")");
    assert_eq!(cell(table, "from_replicas", 0), "Some(6)");
    assert_eq!(cell(table, "to_replicas", 0), "Some(3)");
    assert_eq!(cell(table, "before_windows", 0), "Some(3)");
    assert_eq!(float(table, "before_joules_per_sample", 0), Some(10.0));
    assert_eq!(cell(table, "label_after_windows", 0), "Some(3)");
    assert_eq!(float(table, "label_after_joules_per_sample", 0), Some(8.0));
    assert!((float(table, "label_saving_ratio", 0).unwrap() - 0.2).abs() < 1e-12);
    assert!((float(table, "label_throughput_ratio", 0).unwrap() - 0.9).abs() < 1e-12);
    assert_eq!(float(table, "downtime_seconds", 0), Some(90.0));
    assert_eq!(cell(table, "label_kept", 0), "Some(true)");
    assert_eq!(cell(table, "label_kept", 1), "None");
    assert_eq!(float(table, "seconds_since_last_change", 0), None);
    assert_eq!(float(table, "seconds_since_last_change", 1), Some(355.0));
    assert_eq!(cell(table, "changes_in_24h", 1), "Some(1)");

    let windows = &dataset.windows;
    assert_eq!(windows.rows(), 20);
    assert_eq!(cell(windows, "decision_id", 9), format!("{:?}", Some(format!("{WORKLOAD}@10"))));
    assert_eq!(cell(windows, "outcome", 9), "Some(\"ready\")");
    assert_eq!(cell(windows, "decision_id", 8), "None");
    assert_eq!(float(windows, "trailing_median_joules_per_sample", 13), Some(10.0), "two of ten, one of thirty, one of eight");
    assert_eq!(cell(windows, "trailing_windows", 13), "Some(3)");
    assert_eq!(float(windows, "label_next_joules_per_sample", 9), None, "the next one has a restart");
    assert_eq!(float(windows, "label_next_joules_per_sample", 8), Some(10.0));
}

#[test]
fn a_planted_leak_is_seen_in_labels_only() {
    let events = a_change_that_helps();
    let mut leaking = events.clone();
    // After the decision all events differ.
    for window in leaking.windows.iter_mut().filter(|window| window.window_end > minute(10)) {
        window.energy_joules = window.energy_joules.map(|joules| joules * 3.0);
        window.joules_per_sample = window.joules_per_sample.map(|joules| joules * 3.0);
    }
    leaking.actuations[1].downtime_seconds = Some(1.0);
    let (unchanged, leaked) = (events.build(), leaking.build());
    assert_eq!(
        known_then(&unchanged.decisions, "decision_time", minute(10)),
        known_then(&leaked.decisions, "decision_time", minute(10))
    );
    assert_ne!(
        float(&unchanged.decisions, "label_after_joules_per_sample", 0),
        float(&leaked.decisions, "label_after_joules_per_sample", 0)
    );
    assert_ne!(unchanged.fingerprint, leaked.fingerprint);
}

#[test]
fn what_did_not_come_to_rest_has_no_label() {
    let mut rolled_back = a_change_that_helps();
    let change = rolled_back.decisions[0].clone();
    rolled_back.actuations[1] = actuation(&change, ActuationOutcome::RolledBack, minute(11).plus_seconds(30.0), 3);
    let dataset = rolled_back.build();
    assert_eq!(cell(&dataset.decisions, "outcome", 0), "Some(\"rolled_back\")");
    assert_eq!(float(&dataset.decisions, "label_saving_ratio", 0), None);

    // The layout was changed from outside again at once: later windows show nothing about this change.
    let mut changed_again = a_change_that_helps();
    changed_again.windows.iter_mut().filter(|w| w.window_start >= minute(12)).for_each(|w| w.generation = Some(3));
    assert_eq!(float(&changed_again.build().decisions, "label_saving_ratio", 0), None);
}

#[test]
fn what_is_missing_is_counted_and_reported() {
    let mut events = a_change_that_helps();
    events.windows.remove(3);
    events.windows.push(EfficiencyWindow { kind: WindowKind::Span, span: Some("epoch 1".to_owned()), ..window(0, 1, 1.0, 1.0) });
    events.actuations.push(actuation(&decision(99, 1, true), ActuationOutcome::Refused, minute(99), 1));
    let mut builder = DatasetBuilder::default();
    events.windows.iter().chain(&events.windows[..1]).cloned().for_each(|event| builder.window(event));
    events.decisions.iter().cloned().for_each(|event| builder.decision(event));
    events.actuations.iter().cloned().for_each(|event| builder.actuation(event));
    builder.refused();
    builder.removed(236);
    let dataset = builder.build();
    let counts = &dataset.counts;
    assert_eq!((counts.spans_left_out, counts.repeated_events, counts.refused_events), (1, 1, 1));
    assert_eq!((counts.actuations_without_decision, counts.removed_offsets), (1, 236));
    assert_eq!((counts.workloads[WORKLOAD].holes, counts.workloads[WORKLOAD].windows), (1, 19));
    assert_eq!(float(&dataset.windows, "label_next_joules_per_sample", 2), None, "no label across a hole");
    let sheet = dataset.datasheet("here");
    assert!(sheet.contains("| `team/job` | 19 | 17 | 0 | 1 |"), "{sheet}");
    assert!(sheet.contains("removed from the archive, and in no row: 236 offsets"), "{sheet}");
    for column in dataset.windows.columns.iter().chain(&dataset.decisions.columns) {
        assert!(sheet.contains(&format!("| `{}` |", column.name)), "{} is not described", column.name);
        assert!(column.description.len() > 5, "{} is not described", column.name);
    }
    assert_eq!(dataset.manifest("here")["tables"]["windows"]["rows"], 19);
}

fn any_events() -> impl Strategy<Value = Events> {
    let one = (0..6_u8, 0..40_i64, 0..3_u64, 1..50_u32, any::<bool>(), 0..60_i64);
    prop::collection::vec(one, 1..120).prop_map(|steps| {
        let mut events = Events::default();
        for (what, at, generation, value, flag, seconds) in steps {
            match what {
                0..=2 => {
                    let mut window = window(at, generation, f64::from(value) * 100.0, 100.0);
                    window.restarted = flag && value % 3 == 0;
                    events.windows.push(window);
                }
                3 => events.decisions.push(decision(at, generation, flag)),
                _ => {
                    let outcomes = [
                        ActuationOutcome::Applied,
                        ActuationOutcome::Ready,
                        ActuationOutcome::Refused,
                        ActuationOutcome::RolledBack,
                    ];
                    let outcome = outcomes[value as usize % outcomes.len()];
                    let time = minute(at).plus_seconds(seconds as f64);
                    events.actuations.push(actuation(&decision(at, generation, flag), outcome, time, generation + 1));
                }
            }
        }
        // One event an id, as in a log.
        let mut seen = std::collections::BTreeSet::new();
        events.windows.retain(|window| seen.insert(window.id.clone()));
        events.decisions.retain(|decision| seen.insert(decision.id.clone()));
        events.actuations.retain(|actuation| seen.insert(actuation.id.clone()));
        events
    })
}

proptest! {
    #[test]
    fn a_record_that_ends_earlier_has_the_same_features(events in any_events(), end in 0..42_i64) {
        let (whole, cut) = (events.build(), events.until(minute(end)).build());
        for (table, cut, time) in
            [(&whole.windows, &cut.windows, "window_end"), (&whole.decisions, &cut.decisions, "decision_time")]
        {
            prop_assert_eq!(known_then(table, time, minute(end)), known_then(cut, time, minute(end)));
        }
    }

    #[test]
    fn order_and_repetition_change_nothing(events in any_events(), turn in 0..100_usize) {
        let mut turned = events.clone();
        let by = |len: usize| if len == 0 { 0 } else { turn % len };
        turned.windows.rotate_left(by(events.windows.len()));
        turned.decisions.reverse();
        turned.actuations.rotate_right(by(events.actuations.len()));
        turned.actuations.extend(events.actuations.clone());
        turned.windows.extend(events.windows.clone());
        let (a, b) = (events.build(), turned.build());
        prop_assert_eq!(&a.windows, &b.windows);
        prop_assert_eq!(&a.decisions, &b.decisions);
        prop_assert_eq!(a.fingerprint, b.fingerprint);
    }
}
