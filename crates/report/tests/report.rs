//! Figures, savings and renderings.

use eadt_report::{EnergyReport, RenderFormat, ReportBreakdown, ReportSettings, Reporter, report};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, EnergyMethod, Layout, Meter,
    Origin, WindowKind,
};
use eadt_testing::cases;
use proptest::prelude::*;

const MINUTE: i64 = 60_000_000;
const NAME: &str = "eadt/llm-training";

fn at(minute: i64) -> EventTime {
    EventTime::from_micros(1_700_000_000_000_000 + minute * MINUTE)
}

fn window(minute: i64, joules: f64, samples: f64) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("{NAME}/{minute}"),
        workload: NAME.to_owned(),
        window_start: at(minute),
        window_end: at(minute + 1),
        origin: Origin::Simulated,
        energy_joules: Some(joules),
        energy_coverage_ratio: 1.0,
        run_seconds: 60.0,
        run_energy_joules: Some(joules),
        run_coverage_ratio: 1.0,
        samples: Some(samples),
        progress_coverage_ratio: 1.0,
        ..EfficiencyWindow::default()
    }
}

fn decision(minute: i64, action: ControllerAction) -> Decision {
    Decision {
        id: format!("d{minute}"),
        workload: NAME.to_owned(),
        time: at(minute),
        action,
        validation: if action == ControllerAction::Revert { ChangeValidation::Failed } else { ChangeValidation::None },
        reason: "too much power for the samples".to_owned(),
        origin: Origin::Simulated,
        ..Decision::default()
    }
}

#[test]
fn a_decision_counts_once_whatever_it_becomes_and_its_reason_is_beside_its_window() {
    let mut reporter = Reporter::default();
    (0..3).for_each(|minute| reporter.add_window(&window(minute, 600.0, 100.0)));
    let named = |minute: i64, action, reason: &str| Decision {
        id: format!("{NAME}@{}/hybrid", at(minute)),
        reason: reason.to_owned(),
        ..decision(minute, action)
    };
    for minute in 1..=3 {
        reporter.add_decision(&named(minute, ControllerAction::Maintain, "holds 200 W"));
    }
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let counts = |reporter: &Reporter| {
        let report = reporter.report_of(NAME, &settings).unwrap();
        let rows = report.by_window.unwrap();
        let reasons: Vec<String> = rows.into_iter().filter_map(|row| row.reason).collect();
        (report.decisions, report.decided_changes, reasons.join("; "))
    };
    assert_eq!(counts(&reporter), (3, 0, "holds 200 W; holds 200 W; holds 200 W".to_owned()));
    reporter.add_decision(&named(2, ControllerAction::SetPowerLimit, "tries 150 W"));
    assert_eq!(counts(&reporter), (3, 1, "holds 200 W; tries 150 W; holds 200 W".to_owned()));
    reporter.add_decision(&named(2, ControllerAction::Maintain, "holds 150 W"));
    assert_eq!(counts(&reporter), (3, 0, "holds 200 W; holds 150 W; holds 200 W".to_owned()));
    // Another controller's of the same time is another one.
    reporter.add_decision(&Decision { id: format!("{NAME}@{}/layers", at(2)), ..named(2, ControllerAction::Maintain, "waits") });
    let between = reporter.workload_between(NAME, at(0), at(3), &settings).unwrap();
    assert_eq!((counts(&reporter).0, between.decisions), (4, 3), "the last one is later");
}

fn applied(minute: i64) -> Actuation {
    Actuation {
        id: format!("a{minute}"),
        decision_id: format!("d{minute}"),
        workload: NAME.to_owned(),
        time: at(minute),
        outcome: ActuationOutcome::Applied,
        ..Actuation::default()
    }
}

/// Returns three windows at 10 J/sample, a change, a restart, two windows at 8 J/sample.
fn story() -> (Vec<EfficiencyWindow>, Vec<Decision>, Vec<Actuation>) {
    let mut windows = vec![window(0, 1000.0, 100.0), window(1, 1000.0, 100.0), window(2, 1000.0, 100.0)];
    windows.push(EfficiencyWindow {
        restarted: true,
        samples: Some(20.0),
        progress_coverage_ratio: 0.3,
        ..window(3, 600.0, 0.0)
    });
    windows.extend([window(4, 800.0, 100.0), window(5, 800.0, 100.0)]);
    let decisions = vec![
        decision(1, ControllerAction::Maintain),
        decision(2, ControllerAction::Maintain),
        decision(3, ControllerAction::Decrease),
        decision(6, ControllerAction::Revert),
    ];
    (windows, decisions, vec![applied(3)])
}

fn near(got: Option<f64>, expected: f64) {
    let got = got.expect("known");
    assert!((got - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{got} instead of {expected}");
}

#[test]
fn adds_up_and_compares_with_the_starting_layout() {
    let (windows, decisions, actuations) = story();
    let report = report(&windows, &decisions, &actuations, &ReportSettings::default());
    let it = &report.workloads[0];
    near(it.energy_joules, 5200.0);
    near(it.energy_kwh, 5200.0 / 3.6e6);
    near(it.samples, 520.0);
    near(it.joules_per_sample, 10.0);
    near(it.duration_seconds, 360.0);
    near(it.mean_power_watts, 5200.0 / 360.0);
    near(it.coverage_ratio, 1.0);
    assert_eq!((it.windows, it.decisions, it.decided_changes), (6, 4, 2));
    assert_eq!((it.changes, it.reverts), (1, 0), "the revert at the end of the record is not applied yet");
    assert_eq!(it.origin, Origin::Simulated);
    near(it.baseline_joules_per_sample, 10.0);
    // 220 samples would have taken 2200 J and took 600 + 800 + 800: the restart ate the gain.
    near(it.saving_joules, 0.0);
    near(it.saving_ratio, 0.0);
    assert_eq!((it.cost, it.co2_grams, it.unassigned_energy_joules), (None, None, None));
}

#[test]
fn a_loss_is_a_negative_saving() {
    let (mut windows, decisions, actuations) = story();
    windows[5].run_energy_joules = Some(1200.0);
    let it = report(&windows, &decisions, &actuations, &ReportSettings::default()).workloads.remove(0);
    near(it.saving_joules, -400.0);
    near(it.saving_ratio, -400.0 / 5200.0);
    let (low, high) = (it.saving_ratio_low.unwrap(), it.saving_ratio_high.unwrap());
    assert!(low < -400.0 / 5200.0 && high > -400.0 / 5200.0);
    let interval = format!("{:+.1} to {:+.1} %", 100.0 * low, 100.0 * high);
    let text = EnergyReport { workloads: vec![it], ..EnergyReport::default() }.render(RenderFormat::Text);
    assert!(text.contains("-7.69 %") && text.contains(&interval), "{text}");
}

#[test]
fn a_given_baseline_is_compared_with_the_whole_run() {
    let (windows, decisions, _) = story();
    let mut settings = ReportSettings::default();
    settings.baselines.insert(NAME.to_owned(), 12.0);
    let it = report(&windows, &decisions, [], &settings).workloads.remove(0);
    near(it.saving_joules, 520.0 * 12.0 - 5200.0);

    let earlier = report(&windows[..3], [], [], &ReportSettings::default());
    let mut settings = ReportSettings::default();
    settings.compare_with(&earlier);
    assert_eq!(settings.baselines[NAME], 10.0);
}

#[test]
fn without_a_change_nothing_is_reported_about_a_saving() {
    let (windows, decisions, _) = story();
    let it = report(&windows, &decisions, [], &ReportSettings::default()).workloads.remove(0);
    assert_eq!((it.saving_joules, it.saving_ratio, it.baseline_joules_per_sample), (None, None, None));
    // A refused change is none, and a first change without a window before it leaves nothing to compare with.
    let refused = Actuation { outcome: ActuationOutcome::Refused, ..applied(3) };
    let it = report(&windows, &decisions, [&refused], &ReportSettings::default()).workloads.remove(0);
    assert_eq!((it.saving_joules, it.notes.len()), (None, 0));
    let it = report(&windows, &decisions, [&applied(0)], &ReportSettings::default()).workloads.remove(0);
    assert_eq!(it.saving_joules, None);
    assert!(it.notes[0].contains("the saving is not known"), "{:?}", it.notes);
}

#[test]
fn without_an_actuator_the_generation_shows_the_change() {
    let (mut windows, ..) = story();
    for (index, window) in windows.iter_mut().enumerate() {
        window.generation = Some(if index < 3 { 7 } else { 8 });
    }
    near(report(&windows, [], [], &ReportSettings::default()).workloads[0].saving_joules, 0.0);
}

#[test]
fn windows_with_little_known_energy_do_not_flatter_the_saving() {
    let (mut windows, decisions, actuations) = story();
    windows[5].run_coverage_ratio = 0.2;
    windows[5].run_energy_joules = Some(160.0);
    let it = report(&windows, &decisions, &actuations, &ReportSettings::default()).workloads.remove(0);
    near(it.saving_joules, 120.0 * 10.0 - 1400.0);
    assert!(it.notes.iter().any(|note| note.contains("leaves out 1 window")), "{:?}", it.notes);
}

#[test]
fn unknown_is_null_and_never_zero() {
    let blank = EfficiencyWindow {
        id: "x".to_owned(),
        workload: "lab/dark".to_owned(),
        window_start: at(0),
        window_end: at(1),
        run_seconds: 60.0,
        ..EfficiencyWindow::default()
    };
    let report = report([&blank], [], [], &ReportSettings::default());
    let json: serde_json::Value = serde_json::from_str(&report.render(RenderFormat::Json)).unwrap();
    let it = &json["workloads"][0];
    for field in [
        "energy_joules",
        "energy_kwh",
        "samples",
        "joules_per_sample",
        "mean_power_watts",
        "cost",
        "co2_grams",
        "saving_joules",
        "saving_ratio",
        "meter",
        "tokens",
        "samples_per_joule",
        "tokens_per_joule",
        "currency",
    ] {
        assert!(it.get(field).is_some_and(serde_json::Value::is_null), "{field}: {}", it[field]);
    }
    assert_eq!((it["duration_seconds"].as_f64(), it["coverage_ratio"].as_f64()), (Some(60.0), Some(0.0)));
    assert_eq!((it["windows"].as_u64(), it["decisions"].as_u64(), it["reverts"].as_u64()), (Some(1), Some(0), Some(0)));
    assert_eq!(it["origin"], "measured");
    assert_eq!(report.workloads[0].notes.len(), 1);
    assert!(report.workloads[0].notes[0].starts_with("no energy is known: no device that is assigned to it"));
    assert!(!report.render(RenderFormat::Text).contains("Saving"), "nothing to report about it");
    assert_eq!(serde_json::from_value::<EnergyReport>(json).unwrap().workloads[0].workload, "lab/dark");
}

#[test]
fn only_the_run_counts_and_unassigned_energy_belongs_to_it() {
    let mut first = window(0, 500.0, 50.0);
    (first.run_seconds, first.run_energy_joules) = (30.0, Some(250.0));
    let mut second = window(1, 500.0, 50.0);
    second.unassigned_energy_joules = 25.0;
    let mut after = window(2, 400.0, 0.0);
    (after.run_seconds, after.run_energy_joules, after.samples) = (0.0, None, None);
    after.unassigned_energy_joules = 99.0;
    for window in [&mut first, &mut second, &mut after] {
        window.cost = Some(2.0);
    }
    let it = report([&first, &second, &after], [], [], &ReportSettings::default()).workloads.remove(0);
    near(it.energy_joules, 775.0);
    near(it.unassigned_energy_joules, 25.0);
    near(it.duration_seconds, 90.0);
    near(it.mean_power_watts, 750.0 / 90.0);
    // 1 for half of the first window and 2 for the second, for 750 J.
    near(it.cost, 3.0 * 775.0 / 750.0);
    let settings = ReportSettings { price_per_kwh: Some(0.3), carbon_grams_per_kwh: Some(400.0), ..ReportSettings::default() };
    let it = report([&first, &second, &after], [], [], &settings).workloads.remove(0);
    near(it.cost, 775.0 / 3.6e6 * 0.3);
    near(it.co2_grams, 775.0 / 3.6e6 * 400.0);
    // One window without a price: the sum would be too small.
    second.cost = None;
    assert_eq!(report([&first, &second], [], [], &ReportSettings::default()).workloads[0].cost, None);
}

#[test]
fn energy_and_samples_of_a_sample_are_of_one_span() {
    // The power log ends in the second window, the job goes on.
    let mut partial = window(1, 750.0, 100.0);
    partial.run_coverage_ratio = 0.25;
    let dark = |minute| EfficiencyWindow {
        energy_joules: None,
        run_energy_joules: None,
        run_coverage_ratio: 0.0,
        ..window(minute, 0.0, 100.0)
    };
    let it =
        report([&window(0, 3000.0, 100.0), &partial, &dark(2), &dark(3)], [], [], &ReportSettings::default()).workloads.remove(0);
    near(it.energy_joules, 3750.0);
    near(it.samples, 400.0);
    near(it.joules_per_sample, 30.0);
    near(it.samples_per_joule, 1.0 / 30.0);
    assert!(
        it.notes
            .iter()
            .any(|note| note.contains("leaves out 2 windows without known energy") && note.contains("the samples there"))
    );
    // A counter rose over the windows without energy.
    let back = EfficiencyWindow { unassigned_energy_joules: 6000.0, ..window(4, 3000.0, 100.0) };
    let it = report([&dark(2), &dark(3), &back], [], [], &ReportSettings::default()).workloads.remove(0);
    near(it.energy_joules, 9000.0);
    let note =
        "the total leaves out 2 windows without known energy, but for what counters rose by, and J/sample the samples there";
    assert!(it.notes.iter().any(|own| own == note), "{:?}", it.notes);
    // The samples of unassigned energy are in no window.
    let mut after = window(1, 3000.0, 100.0);
    after.unassigned_energy_joules = 9e6;
    let it = report([&window(0, 3000.0, 100.0), &after], [], [], &ReportSettings::default()).workloads.remove(0);
    near(it.energy_joules, 9_006_000.0);
    near(it.joules_per_sample, 30.0);
    // Downtime counts.
    let down = EfficiencyWindow { samples: None, progress_coverage_ratio: 0.0, ..window(1, 600.0, 0.0) };
    let it = report([&window(0, 3000.0, 100.0), &down], [], [], &ReportSettings::default()).workloads.remove(0);
    near(it.joules_per_sample, 36.0);
    let it = report([&dark(0)], [], [], &ReportSettings::default()).workloads.remove(0);
    assert_eq!((it.samples, it.joules_per_sample, it.samples_per_joule), (Some(100.0), None, None));
}

#[test]
fn windows_that_closed_before_the_job_spoke_are_not_the_run() {
    let mut windows: Vec<EfficiencyWindow> = (0..4).map(|minute| window(minute, 1000.0, 100.0)).collect();
    windows[0].samples = None;
    // Without reported phases everything counts.
    near(report(&windows, [], [], &ReportSettings::default()).workloads[0].energy_joules, 4000.0);
    for window in &mut windows[1..] {
        window.run_declared = true;
    }
    (windows[1].run_seconds, windows[1].run_energy_joules) = (45.0, Some(750.0));
    let it = report(&windows, [], [], &ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() })
        .workloads
        .remove(0);
    near(it.energy_joules, 2750.0);
    near(it.duration_seconds, 165.0);
    assert_eq!(it.by_window.unwrap()[0].energy_joules, None);
    assert_eq!(it.windows, 4);
    // The meter read 4,000 J: a window before the run, and a quarter of the one in which it began.
    near(it.outside_run_energy_joules, 1250.0);
    let note = "1.25 kJ more were taken before its run began or after it ended, in 1 min 15 s: they are in none of its figures";
    assert!(it.notes.iter().any(|text| text == note), "{:?}", it.notes);
    // Without reported phases nothing is outside.
    assert_eq!(
        report([&window(0, 1000.0, 100.0)], [], [], &ReportSettings::default()).workloads[0].outside_run_energy_joules,
        None
    );
}

#[test]
fn a_hold_out_is_a_change_and_takes_nothing_back() {
    let limited = Layout { sm_clock_mhz: Some(1200.0), ..Layout::default() };
    let hold_out = |minute, validation| Decision {
        validation,
        concerns: Some("d2".to_owned()),
        from: limited.clone(),
        evidence: [("hold_out".to_owned(), 1.0)].into(),
        ..decision(minute, ControllerAction::Revert)
    };
    let decisions = [
        Decision { to: limited.clone(), ..decision(2, ControllerAction::SetClocks) },
        hold_out(4, ChangeValidation::None),
        // It also judges the change before.
        hold_out(6, ChangeValidation::Failed),
        Decision { concerns: Some("d2".to_owned()), from: limited.clone(), ..decision(8, ControllerAction::Revert) },
    ];
    let windows: Vec<EfficiencyWindow> = (0..10).map(|minute| window(minute, 1000.0, 100.0)).collect();
    let counts = |decisions: &[Decision]| {
        let it = report(&windows, decisions, &[2, 4, 6, 8].map(applied), &ReportSettings::default()).workloads.remove(0);
        (it.changes, it.reverts)
    };
    assert_eq!((counts(&decisions[..3]), counts(&decisions)), ((3, 0), (4, 1)));
    let mut reporter = Reporter::default();
    for decision in &decisions {
        reporter.add_decision(decision);
    }
    let takes_back: Vec<bool> = reporter.changes_of(NAME).iter().map(|change| change.takes_back).collect();
    assert_eq!(takes_back, [false, false, false, true]);
    let html = report(&windows, &decisions[..3], &[2, 4, 6].map(applied), &ReportSettings::default()).render(RenderFormat::Html);
    assert_eq!(html.matches("<strong>remove SM clock limit</strong>").count(), 2, "{html}");
    assert!(!html.contains("<strong>Reverted</strong>") && !html.contains("←</text>"), "{html}");
}

/// A log of 12.14 s in a window of 60.
#[test]
fn without_a_declared_run_the_duration_is_what_was_observed() {
    let observed = |minute: i64, from: f64, to: f64, joules: f64| EfficiencyWindow {
        observed_start: Some(at(minute).plus_seconds(from)),
        observed_end: Some(at(minute).plus_seconds(to)),
        run_coverage_ratio: (to - from) / 60.0,
        progress_coverage_ratio: (to - from) / 60.0,
        ..window(minute, joules, 10.0)
    };
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let it = report([&observed(0, 0.0, 12.14, 1214.0)], [], [], &settings).workloads.remove(0);
    near(it.duration_seconds, 12.14);
    near(it.coverage_ratio, 1.0);
    near(it.mean_power_watts, 100.0);
    near(it.energy_joules, 1214.0);
    let row = &it.by_window.unwrap()[0];
    assert_eq!((row.duration_seconds, row.coverage_ratio, row.progress_coverage_ratio), (12.14, 1.0, 1.0));

    // From the middle of one window to the middle of another: a silence between is part of it, and not covered.
    let mut silent = window(1, 0.0, 0.0);
    (silent.run_energy_joules, silent.run_coverage_ratio) = (None, 0.0);
    let windows = [observed(0, 45.0, 60.0, 1500.0), silent, observed(2, 30.0, 36.0, 600.0)];
    let it = report(&windows, [], [], &settings).workloads.remove(0);
    near(it.duration_seconds, 15.0 + 60.0 + 36.0);
    near(it.coverage_ratio, 21.0 / 111.0);
    near(it.mean_power_watts, 100.0);
    let seconds: Vec<f64> = it.by_window.unwrap().iter().map(|row| row.duration_seconds).collect();
    assert_eq!(seconds, [15.0, 60.0, 36.0]);

    // A last sample on a window's edge opens a window and adds no time.
    let windows = [observed(0, 0.0, 60.0, 6000.0), observed(1, 0.0, 0.0, 0.0)];
    near(report(&windows, [], [], &settings).workloads[0].duration_seconds, 60.0);

    // Of a silence of a day no window is written: it is part of the duration all the same.
    let day = 1_440;
    for (second, seconds, whole) in [(day + 60, 30.0, 90_030.0), (2 * day, 60.0, 172_860.0), (30 * day, 1.0, 2_592_001.0)] {
        let windows = [observed(0, 0.0, 60.0, 6000.0), observed(second, 0.0, seconds, 100.0 * seconds)];
        let it = report(&windows, [], [], &settings).workloads.remove(0);
        near(it.duration_seconds, whole);
        near(it.coverage_ratio, (60.0 + seconds) / whole);
        near(it.mean_power_watts, 100.0);
        assert!(it.notes.iter().any(|note| note.contains("no window was written")), "{:?}", it.notes);
    }
    // Within a declared run, too; between two runs it is none of them.
    let declared = |minute: i64, from: f64, to: f64, run_seconds: f64| EfficiencyWindow {
        run_declared: true,
        run_seconds,
        ..observed(minute, from, to, 6000.0)
    };
    for (first, second, whole) in [
        (declared(0, 30.0, 31.0, 30.0), declared(day, 10.0, 12.0, 12.0), 30.0 + 86_340.0 + 12.0),
        (declared(0, 0.0, 60.0, 60.0), declared(day, 0.0, 60.0, 60.0), 86_460.0),
        (declared(0, 10.0, 40.0, 30.0), declared(day, 10.0, 40.0, 30.0), 60.0),
        (declared(0, 0.0, 60.0, 60.0), declared(day, 10.0, 40.0, 30.0), 90.0),
    ] {
        near(report([&first, &second], [], [], &settings).workloads[0].duration_seconds, whole);
    }

    // A job that reports when it runs is believed.
    let mut declared = observed(0, 1.0, 59.0, 5800.0);
    (declared.run_declared, declared.run_seconds, declared.run_coverage_ratio) = (true, 20.0, 1.0);
    let it = report([&declared], [], [], &settings).workloads.remove(0);
    near(it.duration_seconds, 20.0);
    near(it.coverage_ratio, 1.0);
}

#[test]
fn tokens_and_what_a_joule_does() {
    let mut windows = [window(0, 1000.0, 10.0), window(1, 1000.0, 30.0)];
    windows[0].tokens = Some(4000.0);
    windows[1].tokens = Some(8000.0);
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let whole = report(&windows, [], [], &settings);
    let it = &whole.workloads[0];
    near(it.tokens, 12_000.0);
    near(it.tokens_per_joule, 6.0);
    near(it.samples_per_joule, 0.02);
    assert_eq!(it.by_window.as_ref().unwrap()[1].tokens, Some(8000.0));
    let text = whole.render(RenderFormat::Text);
    assert!(text.contains("tokens/J") && text.contains("12,000") && text.contains("8,000"), "{text}");
    // With unknown energy, the saving is unknown, too.
    for window in &mut windows {
        (window.energy_joules, window.run_energy_joules) = (None, None);
    }
    let it = report(&windows, [], [], &settings).workloads.remove(0);
    assert_eq!((it.tokens, it.tokens_per_joule, it.samples_per_joule), (Some(12_000.0), None, None));
    // Nothing reports tokens: no column of dashes.
    assert!(!report([&window(0, 1.0, 1.0)], [], [], &settings).render(RenderFormat::Text).contains("tokens"));
}

#[test]
fn a_cost_names_its_currency_or_reports_that_none_was_given() {
    let settings = ReportSettings { price_per_kwh: Some(0.25), ..ReportSettings::default() };
    let unnamed = report([&window(0, 3.6e6, 1.0)], [], [], &settings);
    assert_eq!((unnamed.workloads[0].cost, &unnamed.workloads[0].currency), (Some(0.25), &None));
    assert!(unnamed.render(RenderFormat::Text).contains("--currency"));
    let json: serde_json::Value = serde_json::from_str(&unnamed.render(RenderFormat::Json)).unwrap();
    assert!(json["workloads"][0].get("currency").is_some_and(serde_json::Value::is_null));
    let settings = ReportSettings { currency: Some("EUR".to_owned()), ..settings };
    let named = report([&window(0, 3.6e6, 1.0)], [], [], &settings);
    assert_eq!(named.workloads[0].currency.as_deref(), Some("EUR"));
    for form in [RenderFormat::Text, RenderFormat::Markdown, RenderFormat::Html] {
        assert!(named.render(form).contains("cost EUR"), "{form:?}");
    }
    assert!(!named.render(RenderFormat::Text).contains("--currency"));
    // No cost, no currency.
    let settings = ReportSettings { price_per_kwh: None, ..settings };
    assert_eq!(report([&window(0, 3.6e6, 1.0)], [], [], &settings).workloads[0].currency, None);
}

#[test]
fn cost_and_carbon_by_the_time_of_the_energy() {
    let (mut first, mut second) = (window(0, 3.6e6, 1.0), window(1, 7.2e6, 1.0));
    // Costs in the windows are ignored.
    (first.cost, second.cost) = (Some(9.0), Some(9.0));
    let at = |time: EventTime, value: f64| format!("{time},{value}\n");
    let table = |unit: &str, last: bool| {
        let rows = at(first.window_start, 0.2) + &if last { at(second.window_start, 0.5) } else { String::new() };
        format!("datetime,{unit}\n{rows}")
    };
    let zone = eadt_report::time_zone("UTC").unwrap();
    let prices = eadt_report::read_prices(&table("EUR/kWh", true), None, Some(&zone), None, "prices.csv").unwrap();
    let carbon = eadt_report::read_carbon(&table("gCO2/kWh", true), None, Some(&zone), None, "grid.csv").unwrap();
    let settings = ReportSettings { prices: Some(prices), carbon: Some(carbon), ..ReportSettings::default() };
    let it = report([&first, &second], [], [], &settings).workloads.remove(0);
    near(it.cost, 0.2 + 2.0 * 0.5);
    near(it.co2_grams, 0.2 + 2.0 * 0.5);
    assert_eq!(it.currency.as_deref(), Some("EUR"), "the file names it");
    assert!(it.notes.iter().any(|note| note.contains("prices.csv")) && it.notes.iter().any(|note| note.contains("grid.csv")));
    // A flat price goes before; energy in no window has the mean price.
    second.unassigned_energy_joules = 1.08e6;
    near(report([&first, &second], [], [], &settings).workloads[0].cost, 1.2 * 1.1);
    let flat = ReportSettings { price_per_kwh: Some(1.0), ..settings.clone() };
    near(report([&first, &second], [], [], &flat).workloads[0].cost, 3.3);
    // A part of the sum is not the sum.
    let first_only =
        format!("datetime,EUR/kWh\n{}{}", at(first.window_start.plus_seconds(-60.0), 0.2), at(first.window_start, 0.2));
    let prices = eadt_report::read_prices(&first_only, None, Some(&zone), None, "prices.csv").unwrap();
    let it = report([&first, &second], [], [], &ReportSettings { prices: Some(prices), ..ReportSettings::default() })
        .workloads
        .remove(0);
    assert_eq!((it.cost, it.currency), (None, None));
    assert!(it.notes.iter().any(|note| note.starts_with("no cost is given: 66.7 % of the energy")), "{:?}", it.notes);
    assert!(eadt_report::time_zone("Mars/Base").is_err());
}

#[test]
fn a_note_that_many_workloads_share_is_reported_once() {
    let windows: Vec<EfficiencyWindow> = (0..5)
        .map(|index| EfficiencyWindow {
            workload: format!("lab/job-{index}"),
            energy_joules: None,
            run_energy_joules: None,
            ..window(0, 0.0, 1.0)
        })
        .collect();
    let report = report(&windows, [], [], &ReportSettings::default());
    assert!(matches!(report.workloads[4].notes.as_slice(), [one] if one.starts_with("no energy is known: ")));
    for form in [RenderFormat::Text, RenderFormat::Markdown, RenderFormat::Html] {
        assert_eq!(report.render(form).matches("no energy is known").count(), 1, "{form:?}");
    }
    let text = report.render(RenderFormat::Text);
    assert!(text.contains("note: 5 workloads (lab/job-0, lab/job-1, lab/job-2 and 2 more): no energy is known"), "{text}");
}

#[test]
fn no_spans_are_reported_in_words_and_in_json() {
    let settings = ReportSettings { by: Some(ReportBreakdown::Span), ..ReportSettings::default() };
    let without = report([&window(0, 1.0, 1.0)], [], [], &settings);
    for form in [RenderFormat::Text, RenderFormat::Markdown, RenderFormat::Html, RenderFormat::Json] {
        assert!(without.render(form).contains("the job named no spans"), "{form:?}");
    }
    assert_eq!(without.workloads[0].by_span.as_deref(), Some(&[][..]));
    // Without a request there is nothing to report.
    let json = report([&window(0, 1.0, 1.0)], [], [], &ReportSettings::default()).render(RenderFormat::Json);
    assert!(json.contains("\"notes\": []"), "{json}");
}

#[test]
fn every_figure_fits_into_a_narrow_terminal_whole() {
    let (windows, decisions, actuations) = story();
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let report = report(&windows, &decisions, &actuations, &settings);
    let wide = report.render_text(None);
    assert_eq!(wide, report.render(RenderFormat::Text));
    let words = |text: &str| -> std::collections::BTreeSet<String> { text.split_whitespace().map(str::to_owned).collect() };
    for width in [40, 60, 80, 120] {
        let narrow = report.render_text(Some(width));
        let tables = narrow.lines().filter(|line| line.starts_with("  "));
        for line in tables {
            // The first column and one more are always side by side.
            assert!(line.chars().count() <= width.max(50), "{width}: {line:?}");
        }
        assert_eq!(words(&narrow), words(&wide), "{width}");
    }
    assert!(report.render_text(Some(60)).lines().count() > wide.lines().count());
}

#[test]
fn windows_whose_counter_contradicts_power_are_counted_in_a_note() {
    let mut windows: Vec<_> = (0..3).map(|minute| window(minute, 1000.0, 100.0)).collect();
    let notes = |windows: &[EfficiencyWindow]| report(windows, [], [], &ReportSettings::default()).workloads.remove(0).notes;
    assert_eq!(notes(&windows), Vec::<String>::new());
    (windows[0].counter_contradicted_seconds, windows[2].counter_contradicted_seconds) = (60.0, 15.4);
    // How the energy of the rest was determined, its covered time, and the expected note.
    for (method, covered, expected) in [
        (EnergyMethod::Integral, 1.0, "energy is the integral of power: an energy counter contradicted it"),
        (EnergyMethod::Mixed, 1.0, "energy is the integral of power: an energy counter contradicted it"),
        (EnergyMethod::Mixed, 0.9, "energy is the integral of power, and unknown where no power is on record: an energy counter"),
        (
            EnergyMethod::Counter,
            0.75,
            "energy is not known, for no power is on record beside the energy counter (`--map power_watts",
        ),
        (EnergyMethod::None, 0.0, "energy is not known, for no power is on record beside the energy counter (`--map power_watts"),
    ] {
        for window in &mut windows {
            (window.energy_method, window.energy_coverage_ratio) = (method, covered);
        }
        let notes = notes(&windows);
        let wanted = format!("in 2 windows, for 75 s of device time, {expected}");
        assert!(notes.len() == 1 && notes[0].starts_with(&wanted), "{method:?}, {covered}: {notes:?}");
    }
}

#[test]
fn a_counter_that_differs_from_the_power_that_counts_is_noted_if_its_steps_do_not_explain_it() {
    // A step of the counter each ten minutes.
    let notes = |difference: &dyn Fn(i64) -> f64| {
        let of = |minute: i64| EfficiencyWindow {
            counter_difference_joules: if minute % 10 == 9 { difference(minute / 10) } else { 0.0 },
            ..window(minute, 60e3, 100.0)
        };
        let windows: Vec<_> = (0..60).map(of).collect();
        report(&windows, [], [], &ReportSettings::default()).workloads.remove(0).notes
    };
    for (what, difference) in [
        ("late and early by turns", (|rise| if rise % 2 == 0 { 60e3 } else { -60e3 }) as fn(i64) -> f64),
        ("one step at an edge", |rise| if rise == 5 { 600e3 } else { 0.0 }),
        ("4 % more", |_| 24e3),
    ] {
        assert_eq!(notes(&|rise| difference(rise)), Vec::<String>::new(), "{what}");
    }
    let wanted = "energy is the integral of power where an energy counter rises seldom, and the counter gives";
    for (joules, text) in [(60e3, "360 kJ more, of 3.60 MJ in all"), (-300e3, "1.80 MJ less, of 3.60 MJ in all")] {
        assert_eq!(notes(&|_| joules), [format!("{wanted} {text}: one of the two is wrong")]);
    }
}

/// Returns a window as the fold makes it of readings this far apart, of one device.
fn read_every(minute: i64, seconds: f64) -> EfficiencyWindow {
    EfficiencyWindow {
        energy_joules: None,
        energy_coverage_ratio: 0.0,
        run_energy_joules: None,
        run_coverage_ratio: 0.0,
        observed_start: Some(at(minute)),
        observed_end: Some(at(minute + 1)),
        energy_largest_gap_seconds: seconds.min(60.0),
        events: if seconds <= 60.0 { (60.0 / seconds) as u64 } else { u64::from(minute % (seconds / 60.0) as i64 == 0) },
        samples: None,
        gpus: 1,
        ..window(minute, 0.0, 0.0)
    }
}

#[test]
fn unknown_energy_comes_with_the_reason_and_what_would_change_it() {
    type Change = fn(&mut EfficiencyWindow);
    let nothing: Change = |_| {};
    for (minutes, apart, change, expected) in [
        (30, 300.0, nothing, ["readings of its devices are about 3", "replay with EADT_PROCESSOR__POWER_GAP_SECONDS=3"]),
        (30, 1.0, nothing, ["no two readings of its devices have an energy counter", "power_watts=COLUMN:W"]),
        (2, 60.0, nothing, ["or power no further apart than processor.power_gap_seconds, 120", "energy_joules_total=COLUMN:J"]),
        (
            30,
            300.0,
            |it| it.ranks = 1,
            ["either readings of its devices are 120 s or more apart", "; or no two readings of its devices have"],
        ),
        (30, 1.0, |it| it.ranks = 1, ["no two readings of its devices have an energy counter", "[N/A]"]),
        (1, 1.0, |it| it.observed_end = it.observed_start, ["reported at one moment only", "two readings"]),
        (9, 1.0, |it| (it.gpus, it.ranks) = (0, 1), ["reported. For a live job, have a collector", "the same `--workload`"]),
        (9, 1.0, |it| it.counter_contradicted_seconds = 60.0, ["its energy counter cannot be believed", "power_watts=COLUMN:W"]),
        (9, 1.0, |it| it.energy_joules = Some(9.0), ["what is known lies outside of the run", "`--time-zone`"]),
        // Its run is over before any window, or not begun.
        (9, 1.0, |it| (it.energy_joules, it.run_seconds) = (Some(9.0), 0.0), ["what is known lies outside of the run", "clocks"]),
    ] {
        let windows: Vec<_> = (0..minutes)
            .map(|minute| {
                let mut window = read_every(minute, apart);
                change(&mut window);
                window
            })
            .collect();
        let it = report(&windows, [], [], &ReportSettings::default()).workloads.remove(0);
        let notes = it.notes;
        let why = notes.iter().filter(|note| note.starts_with("no energy is known: ")).collect::<Vec<_>>();
        assert!(why.len() == 1 && expected.iter().all(|part| why[0].contains(part)), "{expected:?}: {notes:?}");
        assert_eq!(why[0].strip_prefix("no energy is known: "), it.why_no_energy.as_deref());
    }
    // Energy of no window is energy.
    let mut window = read_every(0, 300.0);
    window.unassigned_energy_joules = 5.0;
    let it = report([&window], [], [], &ReportSettings::default()).workloads.remove(0);
    assert!(it.energy_joules == Some(5.0) && !it.notes.iter().any(|note| note.contains("no energy is known")), "{:?}", it.notes);
    assert_eq!(it.why_no_energy, None);
}

#[test]
fn changes_are_those_that_were_made() {
    let layout = |watts: f64| Layout { power_limit_watts: Some(watts), ..Layout::default() };
    // Three decisions, the last of which takes the second one back.
    let decide = |minute, action, watts| Decision { to: layout(watts), ..decision(minute, action) };
    let decisions = [
        decision(1, ControllerAction::Maintain),
        decide(2, ControllerAction::SetPowerLimit, 300.0),
        decide(4, ControllerAction::SetPowerLimit, 250.0),
        decide(6, ControllerAction::Revert, 300.0),
    ];
    let outcome = |outcome| -> Vec<Actuation> {
        [2, 4, 6].map(|minute| Actuation { id: format!("a{minute}"), outcome, ..applied(minute) }).into()
    };
    let windows = |of: &dyn Fn(i64) -> Option<f64>| -> Vec<EfficiencyWindow> {
        (0..8).map(|minute| EfficiencyWindow { layout: of(minute).map(layout), ..window(minute, 1000.0, 100.0) }).collect()
    };
    let untouched = windows(&|_| Some(400.0));
    let changed = windows(&|minute| Some([400.0, 400.0, 300.0, 300.0, 250.0, 250.0, 300.0, 300.0][minute as usize]));
    let once = windows(&|minute| Some(if minute < 3 { 400.0 } else { 300.0 }));
    let unnamed = windows(&|_| None);
    let mut generations = unnamed.clone();
    for (minute, window) in generations.iter_mut().enumerate() {
        window.generation = Some(if minute < 4 { 1 } else { 2 });
    }
    let mixed: Vec<Actuation> = outcome(ActuationOutcome::Recommended)
        .into_iter()
        .take(1)
        .chain(outcome(ActuationOutcome::Refused).split_off(1))
        .collect();
    let none = "nothing was changed, so nothing was saved: 3 changes were ";
    for (name, windows, actuations, wanted, expected) in [
        (
            "recommend",
            &untouched,
            outcome(ActuationOutcome::Recommended),
            (3, 3, 0, 0),
            format!("{none}recommended, and none was made; "),
        ),
        (
            "observe",
            &untouched,
            outcome(ActuationOutcome::Refused),
            (3, 0, 0, 0),
            format!("{none}decided, and the record shows none of them made; "),
        ),
        ("both", &untouched, mixed, (3, 1, 0, 0), format!("{none}decided, 1 of them recommended, and none was made; ")),
        ("enforce", &changed, outcome(ActuationOutcome::Applied), (3, 0, 3, 1), String::new()),
        ("rolled back", &untouched, outcome(ActuationOutcome::RolledBack), (3, 0, 3, 1), String::new()),
        (
            "no actuator, nothing moves",
            &untouched,
            vec![],
            (3, 0, 0, 0),
            format!("{none}decided, and the record shows none of them made; "),
        ),
        (
            "no actuator, nothing is reported",
            &unnamed,
            vec![],
            (3, 0, 0, 0),
            format!("{none}decided, and the record shows none of them made; "),
        ),
        ("no actuator, layouts move", &changed, vec![], (3, 0, 3, 1), String::new()),
        ("no actuator, one move", &once, vec![], (3, 0, 1, 0), String::new()),
        ("no actuator, generations", &generations, vec![], (3, 0, 1, 0), String::new()),
    ] {
        let report = report(windows, &decisions, &actuations, &ReportSettings::default());
        let it = &report.workloads[0];
        assert_eq!((it.decided_changes, it.recommendations, it.changes, it.reverts), wanted, "{name}");
        let headline = report.headline().remove(0);
        assert_eq!(headline.contains("nothing was changed"), !expected.is_empty(), "{name}: {headline}");
        assert!(headline.contains(&expected), "{name}: {headline}");
        assert_eq!(report.render(RenderFormat::Html).matches("class=\"change\"").count() > 0, wanted.2 > 0, "{name}");
        let text = report.render(RenderFormat::Text);
        assert_eq!(text.contains("changes decided"), wanted.0 > wanted.2, "{name}: {text}");
        assert_eq!(text.contains("recommended  changes"), wanted.1 > 0, "{name}: {text}");
    }
}

/// Two boards of 96.7 W, of which the second one is lost in the second window; the run ends in the middle of the third.
#[test]
fn mean_power_means_the_same_in_event_row_and_total() {
    let whole = EfficiencyWindow { gpus: 2, mean_power_watts: Some(193.4), ..window(0, 60.0 * 193.4, 100.0) };
    let lost = EfficiencyWindow {
        gpus: 2,
        energy_coverage_ratio: 0.5,
        run_coverage_ratio: 0.5,
        mean_power_watts: Some(96.7),
        ..window(1, 60.0 * 96.7, 100.0)
    };
    // 30 s of run at 220 W, and 30 s at 150 W after it.
    let ends = EfficiencyWindow {
        gpus: 2,
        run_seconds: 30.0,
        run_energy_joules: Some(6600.0),
        mean_power_watts: Some(185.0),
        ..window(2, 11_100.0, 50.0)
    };
    let events = [whole, lost, ends];
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let report = report(&events, [], [], &settings);
    let it = &report.workloads[0];
    for (row, event) in it.by_window.as_ref().unwrap().iter().zip(&events) {
        assert_eq!(row.mean_power_watts, event.mean_power_watts);
    }
    let run: Vec<f64> = it.by_window.as_ref().unwrap().iter().filter_map(|row| row.run_mean_power_watts).collect();
    assert_eq!(run, [193.4, 96.7, 220.0]);
    near(it.mean_power_watts, (60.0 * 193.4 + 60.0 * 96.7 + 6600.0) / 150.0);
    let text = report.render(RenderFormat::Text);
    assert!(text.contains("mean power  mean power in run  coverage"), "{text}");
    let text = eadt_report::report(&events[..2], [], [], &settings).render(RenderFormat::Text);
    assert!(!text.contains("in run"), "{text}");
    // Boards without a workload have a window each: a lost one adds nothing.
    let mut boards: Vec<EfficiencyWindow> = (0..3)
        .map(|board| EfficiencyWindow {
            id: format!("gpus/{board}"),
            workload: "gpus".into(),
            mean_power_watts: Some(100.0),
            ..window(0, 6000.0, 0.0)
        })
        .collect();
    (boards[2].energy_joules, boards[2].run_energy_joules, boards[2].mean_power_watts) = (None, None, None);
    (boards[2].energy_coverage_ratio, boards[2].run_coverage_ratio) = (0.0, 0.0);
    near(eadt_report::report(&boards, [], [], &settings).workloads[0].mean_power_watts, 200.0);
}

#[test]
fn breaks_down_by_window_and_by_span() {
    let (mut windows, decisions, actuations) = story();
    windows.push(EfficiencyWindow {
        id: "span".to_owned(),
        kind: WindowKind::Span,
        span: Some("epoch 2".to_owned()),
        ..window(1, 1500.0, 150.0)
    });
    let by = |by| report(&windows, &decisions, &actuations, &ReportSettings { by: Some(by), ..ReportSettings::default() });
    let it = &by(ReportBreakdown::Window).workloads[0];
    let rows = it.by_window.as_ref().unwrap();
    assert_eq!((rows.len(), it.windows), (6, 6));
    assert_eq!((rows[2].action, rows[4].action), (Some(ControllerAction::Decrease), None));
    near(rows[4].joules_per_sample, 8.0);
    // The restart's downtime is in, and it is marked.
    near(rows[3].joules_per_sample, 30.0);
    assert_eq!(rows.iter().map(|row| row.restarted).collect::<Vec<_>>(), [false, false, false, true, false, false]);
    assert!(by(ReportBreakdown::Window).render(RenderFormat::Text).contains("-, restart"));
    assert!(it.by_span.is_none());
    let spans = by(ReportBreakdown::Span);
    let row = &spans.workloads[0].by_span.as_ref().unwrap()[0];
    assert_eq!((row.span.as_str(), row.duration_seconds), ("epoch 2", 60.0));
    near(row.joules_per_sample, 10.0);
    near(spans.workloads[0].energy_joules, 5200.0);
    assert!(spans.render(RenderFormat::Text).contains("Spans of eadt/llm-training (simulated)"));
}

#[test]
fn every_rendering_shows_simulated_beside_every_heading() {
    let (windows, decisions, actuations) = story();
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let report = report(&windows, &decisions, &actuations, &settings);
    let html = report.render(RenderFormat::Html);
    for heading in html.split("<h2>").skip(1) {
        assert!(heading.split("</h2>").next().unwrap().contains("(simulated)"), "{heading}");
    }
    assert!(html.matches("<h2>").count() >= 4 && html.contains("<polyline") && html.contains("class=\"change\""));
    for line in report.render(RenderFormat::Markdown).lines().filter(|line| line.starts_with("## ")) {
        assert!(line.contains("(simulated)"), "{line}");
    }
    let text = report.render(RenderFormat::Text);
    assert!(text.starts_with("simulated: eadt/llm-training: no clear saving: 0.0 % ± "), "{text}");
    assert!(text.contains("\nEnergy by workload (simulated)\n"), "{text}");
    assert_eq!(text.matches("(simulated)").count(), 4);
    let empty = EnergyReport::default();
    assert_eq!(
        empty.render(RenderFormat::Text),
        "No workload has a window yet. A window is there once its time is over (processor.window_seconds, 60 s unless set).\n"
    );
    assert_eq!(empty.render(RenderFormat::Json), "{\n  \"workloads\": []\n}\n");
}

#[test]
fn a_page_has_verdict_contents_and_a_chart_that_restarts_do_not_scale() {
    let (mut windows, mut decisions, mut actuations) = story();
    let revert =
        Decision { concerns: Some(decisions[2].id.clone()), reason: "no better".into(), ..decision(5, ControllerAction::Revert) };
    decisions.push(revert);
    actuations.push(applied(3));
    let html = report(&windows, &decisions, &actuations, &ReportSettings::default()).render(RenderFormat::Html);
    for part in [
        "<p class=\"verdict\">simulated: eadt/llm-training: no clear saving",
        "<main>",
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Energy by workload (simulated)\">",
        "url(#hatch)",
        "class=\"baseline\"",
        "class=\"power\"",
        "default-src 'none'",
        "<strong>Reverted</strong>",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
    // 30 J/sample of the restart are not in the scale, 10 are.
    assert!(html.contains(">10.50</text>"), "{html}");
    assert!(!html.contains("<nav"));
    for index in 0..40 {
        windows.push(EfficiencyWindow { workload: format!("lab/job-{index}"), ..window(0, 1e6 + f64::from(index), 1.0) });
    }
    let html = report(&windows, &decisions, &actuations, &ReportSettings::default()).render(RenderFormat::Html);
    assert_eq!(html.matches("<li><a href=\"#w").count(), 41);
    assert!(html.contains("<li><a href=\"#w0\">lab/job-39</a> 1 MJ</li>"), "those that used most come first");
    assert_eq!(html.matches("id=\"hatch\"").count(), 1);
}

/// One workload measured, one simulated, one that was simulated first and measured then.
#[test]
fn measured_figures_are_never_under_simulated_and_simulated_ones_are_always_marked() {
    let named = |name: &str, minute, origin| EfficiencyWindow {
        workload: name.to_owned(),
        id: format!("{name}/{minute}"),
        origin,
        ..window(minute, 1000.0, 100.0)
    };
    let mut windows = Vec::new();
    for minute in 0..4 {
        windows.push(named("real/job", minute, Origin::Measured));
        windows.push(named("toy/job", minute, Origin::Simulated));
        windows.push(named("both/job", minute, if minute < 2 { Origin::Simulated } else { Origin::Measured }));
    }
    let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
    let report = report(&windows, [], [], &settings);
    // A row names a workload or a minute; below a marked heading all rows are simulated.
    let check = |rows: &mut dyn Iterator<Item = (bool, String)>| {
        let (mut section, mut rows_seen) = (String::new(), 0);
        for (is_heading, line) in rows {
            if is_heading {
                section = line;
                continue;
            }
            if line.contains("total") {
                assert!(line.contains("mixed"), "{line}");
                continue;
            }
            let of = |name: &str| line.contains(name) || section.contains(name);
            let early = line.contains("22:13") || line.contains("22:14");
            let simulated = of("toy/job") || (of("both/job") && (line.contains("both/job") || early));
            assert_eq!(line.contains("simulated"), simulated, "{section}: {line}");
            assert_eq!(line.contains("measured"), !simulated, "{section}: {line}");
            assert_eq!(section.contains("(simulated)"), section.contains("toy/job"), "{section}");
            rows_seen += 1;
        }
        assert_eq!(rows_seen, 3 + 3 + 12);
    };
    let text = report.render(RenderFormat::Text);
    let body = |line: &&str| !line.is_empty() && !line.starts_with("note") && !line.starts_with("  w");
    check(&mut text.lines().filter(body).map(|line| (!line.starts_with(' '), line.to_owned())));
    let markdown = report.render(RenderFormat::Markdown);
    let lines = markdown.lines().filter(|line| line.starts_with("## ") || line.starts_with("| "));
    let body = lines.filter(|line| !line.starts_with("| w"));
    check(&mut body.map(|line| (line.starts_with('#'), line.to_owned())));
    let html = report.render(RenderFormat::Html);
    let body =
        html.lines().filter(|line| line.starts_with("<tr><td") || (line.starts_with("<h2") && !line.contains("over time")));
    check(&mut body.map(|line| (line.starts_with("<h2"), line.to_owned())));
    // The curve of the mixed one changes its stroke, and explains what the strokes mean.
    let charts: Vec<&str> = html.split("<section").filter(|part| part.contains("over time")).collect();
    let chart = |name: &str| *charts.iter().find(|chart| chart.contains(name)).unwrap();
    assert!(chart("toy/job").contains("over time (simulated)"));
    assert!(!chart("real/job").contains("simulated"));
    assert!(chart("both/job").contains(">simulated<") && chart("both/job").contains(">measured<"), "{}", chart("both/job"));
    assert!(!chart("both/job").contains("(simulated)"));

    let json: serde_json::Value = serde_json::from_str(&report.render(RenderFormat::Json)).unwrap();
    let both = json["workloads"].as_array().unwrap().iter().find(|w| w["workload"] == "both/job").unwrap();
    let origins: Vec<&str> = both["by_window"].as_array().unwrap().iter().map(|row| row["origin"].as_str().unwrap()).collect();
    assert_eq!(origins, ["simulated", "simulated", "measured", "measured"]);
    assert_eq!(both["notes"][0], "the totals mix windows of different origins: 2 measured, 2 simulated");
}

#[test]
fn the_wall_meter_and_the_weakest_origin_win() {
    let mut a = window(0, 1.0, 1.0);
    (a.origin, a.meter) = (Origin::Measured, Meter::Gpu);
    let mut b = window(1, 1.0, 1.0);
    (b.origin, b.meter) = (Origin::Imported, Meter::Wall);
    let it = report([&a, &b], [], [], &ReportSettings::default()).workloads.remove(0);
    assert_eq!((it.origin, it.meter), (Origin::Imported, Some(Meter::Wall)));
    let note = "the totals mix windows whose energy is of different meters: 1 gpu, 1 wall";
    assert!(it.notes.iter().any(|own| own == note), "{:?}", it.notes);
}

#[test]
fn a_window_of_one_moment_lacks_no_energy() {
    let mut last = window(1, 0.0, 0.0);
    (last.energy_joules, last.run_energy_joules, last.samples) = (None, None, None);
    let notes_of = |last: &EfficiencyWindow| {
        let mut first = window(0, 3000.0, 100.0);
        (first.observed_start, first.observed_end) = (Some(at(0)), Some(at(1)));
        report([&first, last], [], [], &ReportSettings::default()).workloads.remove(0).notes
    };
    let is_noted = |notes: &[String]| notes.iter().any(|note| note.contains("leaves out 1 window without known energy"));
    assert!(is_noted(&notes_of(&last)));
    (last.observed_start, last.observed_end) = (Some(at(1)), Some(at(1)));
    assert!(!is_noted(&notes_of(&last)), "{:?}", notes_of(&last));
}

fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("<script>alert(1)</script>".to_owned()),
        Just("a|b\n# c".to_owned()),
        Just("\" onload=\"x".to_owned()),
        Just("\u{1b}[31mred".to_owned()),
        "\\PC{0,20}",
        any::<String>(),
    ]
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn the_whole_is_the_sum_of_its_windows(
        figures in proptest::collection::vec((0.0..1e6_f64, 0.0..1e4_f64, 0.0..1e3_f64), 1..30),
        seed in any::<u64>(),
    ) {
        let mut windows: Vec<EfficiencyWindow> = figures.iter().enumerate().map(|(minute, (joules, samples, extra))| {
            EfficiencyWindow { unassigned_energy_joules: *extra, ..window(minute as i64, *joules, *samples) }
        }).collect();
        let settings = ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() };
        let straight = report(&windows, [], [], &settings);
        let it = &straight.workloads[0];
        let rows: f64 = it.by_window.as_ref().unwrap().iter().filter_map(|row| row.energy_joules).sum();
        let whole = rows + it.unassigned_energy_joules.unwrap_or(0.0);
        prop_assert!((it.energy_joules.unwrap() - whole).abs() <= 1e-9 * whole.max(1.0));
        let samples: f64 = figures.iter().map(|(_, samples, _)| samples).sum();
        prop_assert!((it.samples.unwrap() - samples).abs() <= 1e-9 * samples.max(1.0));
        // Order and repetition change nothing.
        let turn = seed as usize % windows.len();
        windows.rotate_left(turn);
        windows.push(windows[0].clone());
        prop_assert_eq!(report(&windows, [], [], &settings), straight);
    }

    #[test]
    fn nothing_in_a_name_becomes_markup(name in hostile(), reason in hostile(), span in hostile()) {
        let mut reporter = Reporter::default();
        for minute in 0..3 {
            reporter.add_window(&EfficiencyWindow { workload: name.clone(), ..window(minute, 10.0, 5.0) });
        }
        let spans = EfficiencyWindow { workload: name.clone(), kind: WindowKind::Span, span: Some(span), ..window(1, 10.0, 5.0) };
        reporter.add_window(&spans);
        reporter.add_decision(&Decision { workload: name.clone(), reason, ..decision(1, ControllerAction::Increase) });
        reporter.add_actuation(&Actuation { workload: name, ..applied(1) });
        for by in [ReportBreakdown::Window, ReportBreakdown::Span] {
            let report = reporter.build_report(&ReportSettings { by: Some(by), ..ReportSettings::default() });
            let html = report.render(RenderFormat::Html);
            let known = ["!DOCTYPE", "html", "head", "meta", "title", "style", "body", "h1", "h2", "div", "table", "thead", "tbody",
                "tr", "th", "td", "ul", "li", "svg", "line", "text", "polyline", "circle", "main", "section", "p", "h3", "defs", "pattern",
                "rect", "details", "summary", "ol", "strong"];
            for tag in html.split('<').skip(1) {
                let name = tag.trim_start_matches('/').split([' ', '>', '/']).next().unwrap();
                prop_assert!(known.contains(&name), "<{}", tag);
            }
            prop_assert!(!html.contains("onload=\"") && !html.contains("<script"));
            let markdown = report.render(RenderFormat::Markdown);
            prop_assert!(!markdown.contains('<'));
            let text = report.render(RenderFormat::Text);
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
            let json: EnergyReport = serde_json::from_str(&report.render(RenderFormat::Json)).unwrap();
            prop_assert_eq!(json.workloads.len(), 1);
        }
    }
}

#[test]
fn devices_side_by_side_share_their_time_and_add_up_their_power() {
    let mut windows = Vec::new();
    for minute in 0..2 {
        for device in 0..4 {
            let mut window = window(minute, 60.0 * 325.0, 0.0);
            window.workload = "gpus".into();
            window.id = format!("gpus//GPU-{device}/tumbling/{minute}");
            windows.push(window);
        }
    }
    let report = eadt_report::report(&windows, &[], &[], &ReportSettings::default());
    let gpus = &report.workloads[0];
    near(gpus.duration_seconds, 120.0);
    near(gpus.mean_power_watts, 1300.0);
    near(gpus.energy_joules, 2.0 * 4.0 * 60.0 * 325.0);
}

#[test]
fn progress_of_no_window_is_counted_and_reported() {
    let silent = EfficiencyWindow { unassigned_samples: 500_010.0, unassigned_tokens: 2_048.0, ..window(1500, 1000.0, 100.0) };
    let windows = [window(0, 1000.0, 100.0), silent];
    let mut reporter = Reporter::default();
    for window in &windows {
        reporter.add_window(window);
    }
    let report = reporter.build_report(&ReportSettings::default());
    let note = "500010 samples, 2048 tokens of the totals are of no window, so in no power, J/sample or saving";
    assert!(report.workloads[0].notes.iter().any(|text| text.starts_with(note)), "{:?}", report.workloads[0].notes);
    let it = &report.workloads[0];
    assert_eq!((it.samples, it.unassigned_samples), (Some(500_210.0), Some(500_010.0)));
    assert_eq!((it.tokens, it.unassigned_tokens), (Some(2_048.0), Some(2_048.0)));
    near(it.joules_per_sample, 10.0);
    // A counter of energy and one of samples that both go on over a silence of 26 h: both totals hold it.
    let second = |minute| EfficiencyWindow {
        unassigned_energy_joules: 9.33e6,
        unassigned_samples: 93_300.0,
        ..window(minute, 6000.0, 60.0)
    };
    let it =
        eadt_report::report([&window(0, 6000.0, 60.0), &second(1560)], [], [], &ReportSettings::default()).workloads.remove(0);
    near(it.energy_joules.zip(it.samples).map(|(joules, samples)| joules / samples), 100.0);
    near(it.joules_per_sample, 100.0);
    let has_note = |part: &str| it.notes.iter().any(|note| note.contains(part));
    assert!(has_note("9.33 MJ, 93300 samples of the totals are of no window") && !has_note("nothing is known"), "{:?}", it.notes);
    let mut quiet = Reporter::default();
    quiet.add_window(&windows[0]);
    assert!(!quiet.build_report(&ReportSettings::default()).render(RenderFormat::Text).contains("of no window"));
}

#[test]
fn devices_that_join_a_run_are_noted_unless_its_layout_changed() {
    let of = |minute: i64, gpus: u32| EfficiencyWindow {
        gpus,
        generation: Some(1),
        observed_start: Some(at(minute)),
        observed_end: Some(at(minute + 1)),
        ..window(minute, 600.0, 100.0)
    };
    let note = |windows: &[EfficiencyWindow]| {
        let mut reporter = Reporter::default();
        for window in windows {
            reporter.add_window(window);
        }
        let notes = reporter.report_of(NAME, &ReportSettings::default()).unwrap().notes;
        notes.into_iter().find(|note| note.contains("J/sample is too low"))
    };
    let late = note(&[of(0, 1), of(1, 0), of(2, 2), of(3, 2)]).unwrap();
    assert!(late.starts_with(&format!("energy is of 1 device until {} and of 2 then", at(2))), "{late}");
    let restarted = EfficiencyWindow { restarted: true, ..of(1, 2) };
    let scaled = EfficiencyWindow { generation: Some(2), ..of(1, 2) };
    for windows in [[of(0, 2), of(1, 2)], [of(0, 2), of(1, 1)], [of(0, 1), restarted], [of(0, 1), scaled]] {
        assert_eq!(note(&windows), None);
    }
    // A device that was away, and a start that the first window has a part of.
    assert_eq!(note(&[of(0, 8), of(1, 7), of(2, 8)]), None);
    let part = EfficiencyWindow { observed_start: Some(at(0).plus_micros(50_000_000)), ..of(0, 9) };
    assert_eq!(note(&[part, of(1, 16), of(2, 16)]), None);
    let mut long: Vec<EfficiencyWindow> = (1..200).map(|minute| of(minute, 16)).collect();
    long.insert(0, of(0, 15));
    assert_eq!(note(&long), None, "a device minute of 3,200");
}

/// Returns the report of these windows, and its note that contains a text.
fn noted(windows: &[EfficiencyWindow], text: &str) -> (eadt_report::WorkloadReport, Option<String>) {
    let report = report(windows, [], [], &ReportSettings::default()).workloads.remove(0);
    let note = report.notes.iter().find(|note| note.contains(text)).cloned();
    (report, note)
}

#[test]
fn devices_of_an_imported_log_that_end_before_others_are_noted() {
    let of = |minute: i64, gpus: u32, origin: Origin| EfficiencyWindow {
        gpus,
        origin,
        observed_start: Some(at(minute)),
        observed_end: Some(at(minute + 1)),
        ..window(minute, 600.0, 100.0)
    };
    let note = |gpus: &[u32], origin: Origin| {
        let windows: Vec<EfficiencyWindow> = (0..).zip(gpus).map(|(minute, gpus)| of(minute, *gpus, origin)).collect();
        noted(&windows, "went on on all of them").1
    };
    let early = note(&[2, 2, 1, 1], Origin::Imported).unwrap();
    assert!(early.starts_with(&format!("energy is of 2 devices until {} and of 1 then", at(2))), "{early}");
    assert_eq!(note(&[2, 2, 1, 1], Origin::Measured), None, "a live device reports its end");
    assert_eq!(note(&[1, 2, 2, 2], Origin::Imported), None);
}

#[test]
fn samples_of_silent_ranks_are_in_joules_a_sample_and_in_a_note() {
    // A rank of four is silent in the second window, which has 75 of 100 samples.
    let silent = EfficiencyWindow {
        ranks: 4,
        progress_coverage_ratio: 0.75,
        progress_silent_ratio: 0.25,
        tokens: Some(750.0),
        ..window(1, 600.0, 75.0)
    };
    let (report, note) = noted(&[window(0, 600.0, 100.0), silent.clone()], "reported no progress");
    near(report.joules_per_sample, 6.0);
    near(report.samples, 175.0);
    near(report.tokens_per_joule, 1_000.0 / 1_200.0);
    let note = note.unwrap();
    assert!(note.starts_with(&format!("in 1 window from {} on, 1 of 4 ranks reported no progress", at(1))), "{note}");
    assert_eq!(noted(&[window(0, 600.0, 100.0)], "reported no progress").1, None);
    // Energy is known for half of the time, too.
    let half = EfficiencyWindow { run_coverage_ratio: 0.5, energy_coverage_ratio: 0.5, ..silent };
    near(noted(&[half], "").0.joules_per_sample, 12.0);
}

#[test]
fn work_that_is_done_again_is_counted_and_noted_if_it_is_much() {
    let again = |redone: f64| EfficiencyWindow { samples_redone: redone, ..window(1, 600.0, 100.0) };
    let (report, note) = noted(&[window(0, 600.0, 100.0), again(100.0)], "done again");
    near(report.samples_redone, 100.0);
    near(report.samples, 200.0);
    let note = note.unwrap();
    assert!(note.starts_with(&format!("100 samples from {} on were done again", at(1))), "{note}");
    let (report, note) = noted(&[window(0, 600.0, 100.0), again(20.0)], "done again");
    assert_eq!((report.samples_redone, note), (Some(20.0), None), "a restart from a checkpoint");
    let (report, _) = noted(&[window(0, 600.0, 100.0)], "");
    assert_eq!(report.samples_redone, None);
}
