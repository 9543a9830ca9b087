//! Checks that the page agrees with the report of the same events, and stays within bounds.

use eadt_dashboard::{
    DashboardModel, DecisionQuery, FleetQuery, OtherRun, RetentionLimits, SavingPartKind, SavingParts, SharingQuery, SortKey,
    SourceFacts, SourceKind,
};
use eadt_report::{ReportSettings, Reporter, SavingSummary, SavingVerdict};
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, GpuTelemetry, Layout, Origin,
    UpdateMode, Workload, refusal_reason,
};

use crate::support::{Event, actuation, at, capped, decision, facts, model, serve_runs, story, take, window};

/// Returns the model and the report of the same events.
fn both(names: &[&str]) -> (DashboardModel, eadt_report::EnergyReport) {
    let (mut model, mut reporter) = (model(), Reporter::default());
    for name in names {
        story(name, &mut |event| {
            take(&mut model, &event);
            match &event {
                Event::Window(event) => reporter.add_window(event),
                Event::Decision(event) => reporter.add_decision(event),
                Event::Actuation(event) => reporter.add_actuation(event),
                Event::Workload(_) => {}
            }
        });
    }
    while model.refresh(8) {}
    (model, reporter.build_report(&ReportSettings::default()))
}

#[test]
fn every_figure_of_a_row_is_the_reports() {
    let (model, report) = both(&["team/a", "team/b"]);
    let page = model.fleet(&FleetQuery { sort: SortKey::Name, ..FleetQuery::default() }).unwrap();
    assert_eq!(page.rows.len(), report.workloads.len());
    for (row, wanted) in page.rows.iter().zip(&report.workloads) {
        assert_eq!(row.workload, wanted.workload);
        assert_eq!((row.energy_joules, row.saving_joules), (wanted.energy_joules, wanted.saving_joules));
        assert_eq!(
            (row.saving_ratio, row.saving_ratio_low, row.saving_ratio_high),
            (wanted.saving_ratio, wanted.saving_ratio_low, wanted.saving_ratio_high)
        );
        assert!(row.saving_ratio.is_some_and(|ratio| ratio > 0.05), "{row:?}");
        let summary = SavingSummary::of([wanted]);
        assert_eq!((row.saving_verdict, row.saving_is_whole), (summary.verdict(), summary.is_whole()));
        let detail = model.workload_detail(&row.workload).unwrap().report.unwrap();
        assert_eq!(detail.notes, wanted.notes);
        assert_eq!(detail.joules_per_sample, wanted.joules_per_sample);
    }
    let (totals, summary) = (model.overview().totals, SavingSummary::of(&report.workloads));
    assert_eq!((totals.energy_joules, totals.saving_joules), (summary.energy_joules, summary.saving_joules()));
    assert_eq!((totals.saving_ratio, totals.compared_energy_ratio), (summary.saving_ratio(), summary.compared_ratio()));
    assert_eq!((totals.saving_verdict, totals.saving_is_whole), (SavingVerdict::Saved, true));
    let width = totals.saving_ratio_high.zip(totals.saving_ratio_low).map(|(high, low)| 0.5 * (high - low));
    assert!(width.zip(summary.ratio_error()).is_some_and(|(a, b)| (a - b).abs() < 1e-12), "{totals:?}");
}

/// Returns the parts of a saving and the report's figure: ten windows, then ten under a cap that saves a fifth. `change` makes
/// other events of these.
fn parts_of(change: impl FnOnce(&mut Vec<Event>)) -> (SavingParts, f64) {
    let (mut model, mut events) = (model(), Vec::new());
    story("team/a", &mut |event| {
        // Up to the verdict.
        if !matches!(&event, Event::Decision(decision) if decision.time > at(20)) {
            events.push(event);
        }
    });
    change(&mut events);
    for event in &events {
        take(&mut model, event);
    }
    let detail = model.workload_detail("team/a").unwrap();
    (detail.saving_parts.unwrap(), detail.report.unwrap().saving_joules.unwrap())
}

#[test]
fn the_parts_of_a_saving_add_up_and_are_of_the_change_in_force() {
    use SavingPartKind::{HoldOuts, Limits, Restarts, TakenBack};
    type Change<'a> = &'a dyn Fn(&mut Vec<Event>);
    type PartEnergies<'a> = &'a [(SavingPartKind, f64)];
    let hold_out = |events: &mut Vec<Event>| {
        for event in events {
            if let Event::Decision(decision) = event {
                decision.evidence.insert("hold_out".to_owned(), 1.0);
            }
        }
    };
    let restart = |events: &mut Vec<Event>| {
        for event in events {
            if let Event::Window(window) = event
                && window.window_start == at(10)
            {
                (window.restarted, window.samples) = (true, Some(0.0));
                (window.joules_per_sample, window.samples_per_second) = (None, Some(0.0));
            }
        }
    };
    let taken_back = |events: &mut Vec<Event>| {
        events.retain(|event| !matches!(event, Event::Decision(decision) if decision.time == at(20)));
        let revert = decision("team/a", 15, ControllerAction::Revert, ChangeValidation::Failed, Some("team/a/d10"));
        let revert = Decision { from: capped(300.0), to: Layout::default(), ..revert };
        events.push(Event::Actuation(actuation("team/a", 15, &revert.id, ActuationOutcome::Applied)));
        events.push(Event::Decision(revert));
        for event in events {
            if let Event::Window(back) = event
                && back.window_start >= at(15)
            {
                *back = window("team/a", (back.window_start.seconds_since(at(0)) / 60.0) as i64, 36_000.0, &Layout::default());
            }
        }
    };
    let slower = |events: &mut Vec<Event>| {
        for event in events {
            if let Event::Window(window) = event
                && window.window_start >= at(10)
            {
                (window.samples, window.samples_per_second) = (Some(5700.0), Some(95.0));
                window.joules_per_sample = Some(28_800.0 / 5700.0);
            }
        }
    };
    let cases: [(&str, Change<'_>, PartEnergies<'_>); 5] = [
        ("a cap", &|_| (), &[(Limits, 72_000.0)]),
        ("a hold-out", &hold_out, &[(HoldOuts, 72_000.0)]),
        // It takes as much as before, and does nothing.
        ("a restart", &restart, &[(Limits, 64_800.0), (Restarts, -28_800.0)]),
        ("a cap that is taken back", &taken_back, &[(TakenBack, 36_000.0)]),
        // Samples that were not done would have taken 6 J each.
        ("a cap that slows", &slower, &[(Limits, 72_000.0 - 10.0 * 300.0 * 6.0)]),
    ];
    for (name, change, wanted) in cases {
        let (SavingParts { baseline_joules, parts, actual_joules }, saving) = parts_of(change);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-6 * baseline_joules;
        let sum: f64 = parts.iter().map(|part| part.joules).sum();
        assert!(near(baseline_joules - sum, actual_joules) && near(sum, saving), "{name}: {parts:?} for {saving}");
        let found: Vec<(SavingPartKind, f64)> = parts.iter().map(|part| (part.kind, part.joules)).collect();
        let same = found.len() == wanted.len() && found.iter().zip(wanted).all(|(a, b)| a.0 == b.0 && near(a.1, b.1));
        assert!(same, "{name}: {found:?} instead of {wanted:?}");
    }
}

#[test]
fn a_series_has_the_reports_windows_and_in_fewer_points_their_means_and_ends() {
    let (model, report) = both(&["team/a"]);
    let whole = model.series("team/a", &serde_json::from_str("{}").unwrap()).unwrap();
    assert_eq!((whole.time_ms.len(), whole.windows_per_point), (20, 1));
    assert_eq!(whole.joules_per_sample[0], Some(6.0));
    assert_eq!(whole.joules_per_sample[19], Some(4.8));
    assert!(whole.baseline_joules_per_sample[19].is_some_and(|joules| (joules - 6.0).abs() < 1e-9), "{whole:?}");
    let few = model.series("team/a", &serde_json::from_str(r#"{"points": 2}"#).unwrap()).unwrap();
    assert_eq!((few.time_ms.len(), few.windows_per_point), (2, 10));
    assert_eq!(
        (few.joules_per_sample[0], few.joules_per_sample_min[1], few.joules_per_sample_max[1]),
        (Some(6.0), Some(4.8), Some(4.8))
    );
    let samples = report.workloads[0].samples.unwrap();
    let mean = few.joules_per_sample.iter().flatten().sum::<f64>() / 2.0;
    assert!((mean - report.workloads[0].energy_joules.unwrap() / samples).abs() < 1e-9);
    let range = format!(r#"{{"from_ms": {}, "to_ms": {}}}"#, at(5).millis(), at(8).millis());
    let part = model.series("team/a", &serde_json::from_str(&range).unwrap()).unwrap();
    assert_eq!(part.time_ms.len(), 3);
    assert_eq!((part.first_ms, part.last_ms), (whole.first_ms, whole.last_ms), "of the whole record, for the scrubber");
}

#[test]
fn no_point_and_no_line_of_a_series_lies_in_a_silence() {
    let mut model = model();
    for minute in (0..4).chain(29..33).chain(34..36) {
        model.window(&window("team/a", minute, 36_000.0, &Layout::default()));
    }
    let series = |query: &str| model.series("team/a", &serde_json::from_str(query).unwrap()).unwrap();
    let minutes = |series: &[i64]| -> Vec<f64> { series.iter().map(|time| (time - at(0).millis()) as f64 / 60_000.0).collect() };
    let whole = series("{}");
    let expected = [0.5, 1.5, 2.5, 3.5, 4.5, 28.5, 29.5, 30.5, 31.5, 32.5, 33.5, 34.5, 35.5];
    assert_eq!((minutes(&whole.time_ms), whole.windows_per_point), (expected.to_vec(), 1));
    let unknown = |values: &[Option<f64>]| -> Vec<usize> { (0..values.len()).filter(|at| values[*at].is_none()).collect() };
    for values in [&whole.power_watts, &whole.power_watts_min, &whole.joules_per_sample, &whole.samples_per_second] {
        assert_eq!(unknown(values), [4, 5, 10], "{whole:?}");
    }
    assert_eq!(whole.phase.len(), whole.restarted.len());
    // Three windows a point: none is of both sides. The shorter of the two silences is one too many.
    let few = series(r#"{"points": 4}"#);
    assert_eq!(few.windows_per_point, 3);
    assert_eq!(minutes(&few.time_ms), [1.5, 3.5, 4.5, 27.5, 30.5, 34.0]);
    assert_eq!(unknown(&few.power_watts), [2, 3], "{few:?}");
}

#[test]
fn a_hold_out_is_no_revert_and_no_fault() {
    let mut model = model();
    (0..12).for_each(|minute| model.window(&window("team/a", minute, 28_800.0, &Layout::default())));
    model.decision(&decision("team/a", 3, ControllerAction::SetClocks, ChangeValidation::Pending, None));
    let limited = Layout { sm_clock_mhz: Some(1_200.0), ..Layout::default() };
    let hold_out = decision("team/a", 11, ControllerAction::Revert, ChangeValidation::None, None);
    let evidence = [("hold_out".to_owned(), 1.0)].into();
    model.decision(&Decision { from: limited, to: Layout::default(), evidence, ..hold_out });
    for minute in [3, 11] {
        model.actuation(&actuation("team/a", minute, &format!("team/a/d{minute}"), ActuationOutcome::Ready));
    }
    while model.refresh(8) {}
    let overview = model.overview();
    assert_eq!((overview.needing_attention, overview.status.as_str()), (0, "The only workload is well"));
    assert_eq!((overview.counts.changes.changes, overview.counts.changes.reverts), (2, 0));
    let row = &model.decision_page(&DecisionQuery::default()).unwrap().rows[0];
    assert_eq!((&*row.action_text, row.takes_back), ("remove SM clock limit", false));
    let power = serde_json::to_value(model.power_history(None, None)).unwrap();
    let kinds: Vec<_> = power["marks"].as_array().unwrap().iter().map(|mark| mark["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["change", "change"]);
}

/// Returns a job of five minutes whose GPUs continue at 128 W, and one that continues.
fn with_one_that_ended() -> DashboardModel {
    let mut model = model();
    for minute in 0..20 {
        let after = window("team/early", minute, 7_680.0, &Layout::default());
        let run = |joules, run_seconds| EfficiencyWindow {
            run_declared: true,
            run_seconds,
            run_energy_joules: Some(joules).filter(|joules| *joules > 0.0),
            samples: (run_seconds > 0.0).then_some(6000.0),
            ..after.clone()
        };
        model.window(&if minute < 5 { run(7_680.0, 60.0) } else { run(0.0, 0.0) });
        model.window(&window("team/on", minute, 36_000.0, &Layout::default()));
    }
    while model.refresh(8) {}
    model
}

#[test]
fn a_job_that_has_ended_leaves_its_gpus_without_work_and_no_energy_is_hidden() {
    let mut model = with_one_that_ended();
    let overview = model.overview();
    assert_eq!((overview.running, overview.power_watts, overview.power_known), (1, Some(600.0), 1));
    assert_eq!((overview.idle_power_watts, overview.idle_devices), (Some(128.0), 2));
    assert_eq!(overview.status, "1 of 2 workloads is well: 1 ended");
    let detail = model.workload_detail("team/early").unwrap();
    assert_eq!((serde_json::to_value(detail.row.state).unwrap(), detail.row.power_watts), ("ended".into(), None));
    let (report, series) = (detail.report.unwrap(), model.series("team/early", &serde_json::from_str("{}").unwrap()).unwrap());
    let charted: f64 = series.power_watts.iter().flatten().map(|watts| watts * 60.0).sum();
    let outside = report.outside_run_energy_joules.unwrap();
    assert!((charted - report.energy_joules.unwrap() - outside).abs() < 1e-6, "{charted}: {report:?}");
    assert_eq!((outside, overview.totals.outside_run_energy_joules), (15.0 * 7_680.0, Some(outside)));
    assert!(report.notes.iter().any(|note| note.starts_with("115 kJ more were taken")), "{:?}", report.notes);
    let power = model.power_history(None, None).unwrap();
    let idle = power.layers.last().unwrap();
    let named = serde_json::to_value(&power.layers).unwrap();
    assert_eq!((&named[0]["kind"], &named[2]["kind"], power.layers.len()), (&"workload".into(), &"idle".into(), 3));
    assert_eq!((idle.power_watts[4], idle.power_watts[5]), (None, Some(128.0)));
    let early = power.layers.iter().find(|layer| layer.workload.as_deref() == Some("team/early")).unwrap();
    assert_eq!((early.power_watts[4], early.power_watts[5]), (Some(128.0), None), "each watt is in one layer");
    // Its collector still assigns the GPU to it.
    let sample = GpuTelemetry {
        time: at(20),
        workload: Some("team/early".into()),
        device: "GPU-1".into(),
        collector: "nvml/a".into(),
        power_watts: Some(64.0),
        ..GpuTelemetry::default()
    };
    model.telemetry(&sample);
    let page = model.sharing(&SharingQuery::default());
    assert_eq!((page.totals.idle, page.totals.unassigned_power_watts, page.totals.metered_power_watts), (1, 64.0, 0.0));
    assert!(page.devices[0].tenants.is_empty() && page.devices[0].unknown[0].starts_with("team/early has ended"), "{page:?}");
    // It is started again.
    let again = EfficiencyWindow { run_declared: true, ..window("team/early", 20, 7_680.0, &Layout::default()) };
    model.window(&again);
    assert_eq!(model.overview().running, 2);
}

/// One GPU of 300 W in windows of a minute, and jobs of `length` seconds on it, one after the other.
fn queue(length: i64, minutes: i64, model: &mut DashboardModel, mut after_each: impl FnMut(&DashboardModel, i64)) {
    for minute in 0..minutes {
        let (start, end) = (60 * minute, 60 * minute + 60);
        // One that ends with a window has another one, in which nothing but its end was reported.
        for job in (start - 1).max(0) / length..=(end - 1) / length {
            let (from, to) = (start.max(job * length), end.min(job * length + length));
            let seconds = (to - from) as f64;
            let joules = Some(300.0 * seconds).filter(|joules| *joules > 0.0);
            model.window(&EfficiencyWindow {
                run_declared: true,
                run_seconds: seconds,
                observed_start: Some(at(0).plus_seconds(from as f64)),
                observed_end: Some(at(0).plus_seconds(to as f64)),
                energy_joules: joules,
                run_energy_joules: joules,
                mean_power_watts: joules.map(|_| 300.0),
                ..window(&format!("queue/job-{job:03}"), minute, 0.0, &Layout::default())
            });
        }
        after_each(model, minute);
    }
}

#[test]
fn jobs_that_follow_each_other_on_a_gpu_draw_its_power_once() {
    // Of those of 45 s, some begin and end within one window.
    for length in [45, 130] {
        let mut model = model();
        queue(length, 120, &mut model, |model, minute| {
            let what = format!("jobs of {length} s, minute {minute}");
            let overview = model.overview();
            assert_eq!((overview.power_watts, overview.power_known, overview.running), (Some(300.0), 1, 1), "{what}");
            let rows = model.fleet(&FleetQuery { limit: Some(200), ..FleetQuery::default() }).unwrap().rows;
            let powers: Vec<f64> = rows.iter().filter_map(|row| row.power_watts).collect();
            assert_eq!(powers, [300.0], "{what}");
            let power = model.power_history(None, None).unwrap();
            assert_eq!(power.edges_ms.last(), Some(&at(minute + 1).millis()), "it goes to the newest window: {what}");
        });
        while model.refresh(8) {}
        for from in [None, Some(at(75)), Some(at(100))] {
            let power = model.power_history(from, None).unwrap();
            for index in 0..power.edges_ms.len() - 1 {
                let sum: f32 = power.layers.iter().filter_map(|layer| layer.power_watts[index]).sum();
                assert!((sum - 300.0).abs() < 0.1, "{sum} W in interval {index} from {from:?} of jobs of {length} s");
            }
        }
    }
}

#[test]
fn the_energy_under_the_chart_of_power_is_what_was_used() {
    let mut model = model();
    // So long that its intervals hold several jobs each; then GPUs of a job that has ended, and one without a workload.
    queue(130, 1_440, &mut model, |_, _| {});
    for minute in 1_440..1_500 {
        let run_seconds = match minute {
            ..1_445 => 60.0,
            1_445 => 15.0,
            _ => 0.0,
        };
        let run = Some(128.0 * run_seconds).filter(|joules| *joules > 0.0);
        model.window(&EfficiencyWindow {
            run_declared: true,
            run_seconds,
            run_energy_joules: run,
            ..window("team/early", minute, 7_680.0, &Layout::default())
        });
        model.window(&EfficiencyWindow { id: "gpus/GPU-9".into(), ..window("gpus", minute, 3_000.0, &Layout::default()) });
    }
    model.window(&window("team/on", 1_499, 6_000.0, &Layout::default()));
    let power = model.power_history(None, None).unwrap();
    let edges = power.edges_ms.windows(2).map(|edges| (edges[1] - edges[0]) as f64 / 1e3);
    let charted: f64 = edges
        .enumerate()
        .map(|(index, seconds)| {
            let watts = power.layers.iter().filter_map(|layer| layer.power_watts[index]);
            seconds * watts.map(f64::from).sum::<f64>()
        })
        .sum();
    let used = 300.0 * 86_400.0 + 60.0 * (7_680.0 + 3_000.0) + 6_000.0;
    assert!((charted - used).abs() < 1e-4 * used, "{charted} J instead of {used} J");
    assert_eq!(power.edges_ms.last(), Some(&at(1_500).millis()));
}

#[test]
fn the_chart_of_power_waits_for_open_windows_and_for_nobody_who_is_gone() {
    let mut model = model();
    for minute in 0..30 {
        model.window(&window("team/on", minute, 600.0, &Layout::default()));
        if minute < 20 {
            model.window(&window("team/gone", minute, 600.0, &Layout::default()));
        }
        if minute < 28 {
            model.window(&window("team/late", minute, 600.0, &Layout::default()));
        }
    }
    let end = |model: &DashboardModel| model.power_history(None, None).unwrap().edges_ms.pop();
    assert_eq!(end(&model), Some(at(28).millis()));
    (28..30).for_each(|minute| model.window(&window("team/late", minute, 600.0, &Layout::default())));
    assert_eq!(end(&model), Some(at(30).millis()));
    let facts = SourceFacts { kind: SourceKind::Archive, ..facts() };
    let mut ended = DashboardModel::new(facts, RetentionLimits::default());
    (0..30).for_each(|minute| ended.window(&window("team/on", minute, 600.0, &Layout::default())));
    (0..29).for_each(|minute| ended.window(&window("team/early", minute, 600.0, &Layout::default())));
    ended.set_caught_up();
    assert_eq!(end(&ended), Some(at(30).millis()), "nothing is open any more");
}

#[test]
fn a_job_that_is_started_again_under_its_name_runs() {
    let mut model = model();
    let run = [60.0, 60.0, 30.0, 20.0, 60.0];
    let states: Vec<serde_json::Value> = (0..)
        .zip(run)
        .map(|(minute, run_seconds)| {
            let run_energy_joules = Some(300.0 * run_seconds);
            let window = window("team/a", minute, 18_000.0, &Layout::default());
            model.window(&EfficiencyWindow { run_declared: true, run_seconds, run_energy_joules, ..window });
            serde_json::to_value(model.fleet(&FleetQuery::default()).unwrap().rows[0].state).unwrap()
        })
        .collect();
    assert_eq!(states, ["steady", "steady", "ended", "steady", "steady"]);
    let power = model.power_history(None, None).unwrap();
    let shown: Vec<_> = power.layers.iter().map(|layer| layer.power_watts.clone()).collect();
    assert_eq!(shown[0], [300.0, 300.0, 150.0, 100.0, 300.0].map(Some));
    assert_eq!(shown[1], [None, None, Some(150.0), Some(200.0), None], "between its runs its GPUs were without work");
}

#[test]
fn a_change_that_no_actuator_answered_is_counted_apart() {
    let mut model = model();
    model.declaration(&Workload { workload: "team/a".into(), mode: UpdateMode::Enforce, ..Workload::default() });
    (0..3).for_each(|minute| model.window(&window("team/a", minute, 600.0, &Layout::default())));
    model.decision(&decision("team/a", 2, ControllerAction::SetPowerLimit, ChangeValidation::None, None));
    // It waits for that.
    let waits = decision("team/a", 3, ControllerAction::Maintain, ChangeValidation::Pending, Some("team/a/d2"));
    let state = |model: &DashboardModel| {
        let row = model.fleet(&FleetQuery::default()).unwrap().rows.remove(0);
        (serde_json::to_value(row.state).unwrap(), row.is_unanswered, model.overview().unanswered)
    };
    assert_eq!(state(&model), ("rolling_out".into(), true, 1));
    model.decision(&waits);
    assert_eq!(state(&model), ("rolling_out".into(), true, 1));
    model.actuation(&actuation("team/a", 3, "team/a/d2", ActuationOutcome::Ready));
    assert_eq!(state(&model), ("validating".into(), false, 0));
}

#[test]
fn a_decision_shows_what_became_of_it() {
    let (model, _) = both(&["team/a"]);
    let kept = model.decision_detail("team/a", "team/a/d10").unwrap();
    let text = serde_json::to_value(&kept).unwrap();
    assert_eq!(text["actuations"].as_array().unwrap().len(), 2);
    assert_eq!(text["actuations"][1]["outcome"], "ready");
    assert_eq!(text["verdict"]["validation"], "kept");
    assert_eq!(text["evidence"]["joules_per_sample"], 6.0);
    let reverted = serde_json::to_value(model.decision_detail("team/a", "team/a/d24").unwrap()).unwrap();
    assert_eq!(
        (&reverted["judged"]["id"], &reverted["newer"], &reverted["older"]),
        (&"team/a/d21".into(), &serde_json::Value::Null, &"team/a/d21".into())
    );
    assert!(model.decision_detail("team/b", "team/a/d10").is_none());
    assert!(model.overview().status.contains("1 had the last change reverted"), "{}", model.overview().status);
}

#[test]
fn what_is_only_recommended_is_no_change_and_takes_nothing_back() {
    let mut model = model();
    story("team/a", &mut |event| take(&mut model, &event));
    (20..30).for_each(|minute| model.window(&window("team/a", minute, 28_800.0, &capped(300.0))));
    let kinds = |model: &DashboardModel| -> Vec<String> {
        let power = serde_json::to_value(model.power_history(None, None)).unwrap();
        power["marks"].as_array().unwrap().iter().map(|mark| mark["kind"].as_str().unwrap().to_owned()).collect()
    };
    let state = |model: &DashboardModel| {
        serde_json::to_value(&model.fleet(&FleetQuery::default()).unwrap().rows[0]).unwrap()["state"].clone()
    };
    assert_eq!(kinds(&model), ["change", "kept", "change", "revert"]);
    assert_eq!(state(&model), "reverted");
    for minute in [21, 24] {
        model.actuation(&actuation("team/a", minute, &format!("team/a/d{minute}"), ActuationOutcome::Recommended));
    }
    assert_eq!(kinds(&model), ["change", "kept", "recommended", "recommended"]);
    assert_eq!(state(&model), "steady");
    // Nothing of it has an effect that could be checked.
    let waiting = decision("team/a", 25, ControllerAction::Maintain, ChangeValidation::Pending, Some("team/a/d24"));
    model.decision(&waiting);
    assert_eq!(state(&model), "steady");
    // The first one was approved after all.
    model.actuation(&actuation("team/a", 26, "team/a/d21", ActuationOutcome::Applied));
    assert_eq!(kinds(&model), ["change", "kept", "change", "recommended"]);
}

#[test]
fn what_the_user_does_not_want_changed_is_no_alarm() {
    for (mode, paused, reason, state, fate, kinds) in [
        (UpdateMode::Observe, false, refusal_reason::OBSERVED, "steady", "not_allowed", &["not_made"][..]),
        (UpdateMode::Enforce, true, refusal_reason::PAUSED, "paused", "not_allowed", &["not_made"]),
        (UpdateMode::Enforce, false, "the quota of the namespace is used up", "refused", "refused", &["not_made", "refused"]),
    ] {
        let mut model = model();
        model.declaration(&Workload { time: at(0), workload: "team/a".into(), mode, paused, ..Workload::default() });
        (0..3).for_each(|minute| model.window(&window("team/a", minute, 600.0, &Layout::default())));
        model.decision(&decision("team/a", 2, ControllerAction::SetPowerLimit, ChangeValidation::None, None));
        let refused = actuation("team/a", 2, "team/a/d2", ActuationOutcome::Refused);
        model.actuation(&Actuation { reason: reason.to_owned(), ..refused });
        let row = serde_json::to_value(&model.fleet(&FleetQuery::default()).unwrap().rows[0]).unwrap();
        assert_eq!(row["state"], state, "{reason}");
        let overview = model.overview();
        let is_well = overview.needing_attention == 0 && overview.status == "The only workload is well";
        assert_eq!(is_well, state != "refused", "{overview:?}");
        let decided = serde_json::to_value(&model.decision_page(&DecisionQuery::default()).unwrap().rows[0]).unwrap();
        assert_eq!((&decided["outcome"], &decided["fate"]), (&"refused".into(), &fate.into()), "{reason}");
        let power = serde_json::to_value(model.power_history(None, None)).unwrap();
        let marks: Vec<&str> = power["marks"].as_array().unwrap().iter().map(|mark| mark["kind"].as_str().unwrap()).collect();
        assert_eq!(marks, kinds, "{reason}");
    }
}

#[test]
fn a_change_without_gain_that_is_left_as_it_is_has_its_verdict() {
    let mut model = model();
    story("team/a", &mut |event| take(&mut model, &event));
    (20..31).for_each(|minute| model.window(&window("team/a", minute, 28_800.0, &capped(300.0))));
    model.decision(&decision("team/a", 26, ControllerAction::SetPowerLimit, ChangeValidation::Pending, None));
    model.decision(&decision("team/a", 29, ControllerAction::Maintain, ChangeValidation::Failed, Some("team/a/d26")));
    // As in every window after it.
    model.decision(&decision("team/a", 30, ControllerAction::Maintain, ChangeValidation::None, None));
    let detail = serde_json::to_value(model.decision_detail("team/a", "team/a/d26").unwrap()).unwrap();
    assert_eq!((&detail["verdict"]["id"], &detail["verdict"]["validation"]), (&"team/a/d29".into(), &"failed".into()));
    let power = serde_json::to_value(model.power_history(None, None)).unwrap();
    let kinds: Vec<_> = power["marks"].as_array().unwrap().iter().map(|mark| mark["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["change", "kept", "change", "revert", "change", "no_gain"]);
}

/// Decisions and actuations are two topics: a reader that begins late may get all of one before the other.
#[test]
fn an_actuation_that_is_read_before_its_decision_is_still_its_own() {
    let (in_order, _) = both(&["team/a"]);
    let mut events = Vec::new();
    story("team/a", &mut |event| events.push(event));
    events.sort_by_key(|event| matches!(event, Event::Decision(_)));
    let mut model = model();
    for event in &events {
        take(&mut model, event);
    }
    while model.refresh(8) {}
    let outcomes = |model: &DashboardModel| {
        let page = model.decision_page(&DecisionQuery::default()).unwrap();
        page.rows.into_iter().map(|row| (row.id, row.outcome)).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&model), outcomes(&in_order));
    assert!(outcomes(&model).contains(&("team/a/d10".to_owned(), Some(ActuationOutcome::Ready))), "{:?}", outcomes(&model));
    assert_eq!(model.decision_detail("team/a", "team/a/d10"), in_order.decision_detail("team/a", "team/a/d10"));
}

#[test]
fn actuations_whose_decisions_never_come_are_kept_within_bounds() {
    let limits = RetentionLimits { decisions: 10, ..RetentionLimits::default() };
    let mut model = DashboardModel::new(facts(), limits);
    for minute in 0..100 {
        let lost = format!("team/a/d{minute:03}");
        model.actuation(&actuation("team/a", minute, &lost, ActuationOutcome::Applied));
    }
    let late = |minute| {
        let id = format!("team/a/d{minute:03}");
        Decision { id, ..decision("team/a", minute, ControllerAction::SetPowerLimit, ChangeValidation::Pending, None) }
    };
    model.decision(&late(20));
    model.decision(&late(99));
    let page = model.decision_page(&DecisionQuery::default()).unwrap();
    let outcomes: Vec<_> = page.rows.iter().map(|row| row.outcome).collect();
    assert_eq!(outcomes, [Some(ActuationOutcome::Applied), None], "the newest are kept");
}

#[test]
fn an_actuation_of_a_decision_that_was_dropped_is_not_kept() {
    let mut model = DashboardModel::new(facts(), RetentionLimits { decisions: 8, ..RetentionLimits::default() });
    let made = |minute| {
        let id = format!("team/a/d{minute:03}");
        Decision { id, ..decision("team/a", minute, ControllerAction::SetPowerLimit, ChangeValidation::Pending, None) }
    };
    (0..20).for_each(|minute| model.decision(&made(minute)));
    assert_eq!(model.counts().decisions_dropped, 12);
    for minute in [5, 20] {
        model.actuation(&actuation("team/a", minute, &made(minute).id, ActuationOutcome::Applied));
        model.decision(&made(minute));
    }
    let page = model.decision_page(&DecisionQuery::default()).unwrap();
    let outcome = |minute| page.rows.iter().find(|row| row.id == made(minute).id).unwrap().outcome;
    assert_eq!(
        (outcome(5), outcome(20)),
        (None, Some(ActuationOutcome::Applied)),
        "the one that was dropped, and one that was not read yet"
    );
}

#[test]
fn a_stage_that_has_stopped_is_named_with_how_far_it_is_behind() {
    let stages = |model: &DashboardModel| serde_json::to_value(model.overview()).unwrap()["stages"].clone();
    let sample = |minute| GpuTelemetry { time: at(minute), device: "GPU-1".into(), ..GpuTelemetry::default() };
    for kind in [SourceKind::Live, SourceKind::Archive] {
        let mut model = DashboardModel::new(SourceFacts { kind, ..facts() }, RetentionLimits::default());
        story("team/a", &mut |event| take(&mut model, &event));
        let enforced = Workload { time: at(20), workload: "team/a".into(), mode: UpdateMode::Enforce, ..Workload::default() };
        model.declaration(&enforced);
        model.set_caught_up();
        model.telemetry(&sample(21));
        let [samples, windows, decisions, actuations] = [0_usize, 1, 2, 3].map(|number| stages(&model)[number].clone());
        assert_eq!((&samples["stage"], &samples["newest_ms"]), (&"samples".into(), &at(21).millis().into()));
        assert_eq!(
            (&windows["behind_seconds"], &windows["stalled"]),
            (&60.0.into(), &serde_json::Value::Null),
            "a window is open"
        );
        assert_eq!((&decisions["newest_ms"], &actuations["newest_ms"]), (&at(24).millis().into(), &at(10).millis().into()));
        assert_eq!(actuations["stalled"], serde_json::Value::Null, "it was decided just now");
        // The last decision stays without an outcome, and then windows stay out.
        (20..35).for_each(|minute| model.window(&window("team/a", minute, 28_800.0, &Layout::default())));
        model.stamp(at(40));
        model.telemetry(&sample(39));
        assert_eq!(stages(&model)[1]["stalled"], serde_json::Value::Null, "the processor waits for a silent source");
        model.telemetry(&sample(40));
        model.telemetry(&sample(90));
        let [samples, windows, _, actuations] = [0_usize, 1, 2, 3].map(|number| stages(&model)[number].clone());
        assert_eq!(samples["newest_ms"], at(40).millis(), "a clock that is ahead counts for nothing");
        assert_eq!((&windows["behind_seconds"], &actuations["behind_seconds"]), (&300.0.into(), &660.0.into()));
        let texts = [&windows, &actuations].map(|stage| stage["stalled"].as_str().unwrap_or_default());
        let live = kind == SourceKind::Live;
        assert_eq!(texts.map(|text| text.contains("windows are far behind the samples")), [live, false], "{texts:?}");
        assert_eq!(texts.map(|text| text.contains("a decision has had no outcome for long")), [false, live], "{texts:?}");
        model.actuation(&actuation("team/a", 29, "team/a/d24", ActuationOutcome::Applied));
        assert_eq!(stages(&model)[3]["behind_seconds"], serde_json::Value::Null);
    }
    // The processor's windows are longer than those of the page's own settings.
    let mut model = model();
    model.window(&EfficiencyWindow { window_end: at(10), ..window("team/a", 0, 600.0, &Layout::default()) });
    model.set_caught_up();
    model.telemetry(&sample(25));
    assert_eq!((&stages(&model)[1]["behind_seconds"], &stages(&model)[1]["stalled"]), (&900.0.into(), &serde_json::Value::Null));
    assert_eq!(model.overview().source.window_seconds, Some(600.0));
}

#[test]
fn the_power_budget_in_force_is_a_line_of_the_chart() {
    let mut model = model();
    (0..20).for_each(|minute| model.window(&window("team/a", minute, 36_000.0, &Layout::default())));
    assert_eq!(model.power_history(None, None).unwrap().budget, None, "no budget, no line");
    for minute in 1..20 {
        let watts = if minute < 10 { 900.0 } else { 700.0 };
        let evidence = [("budget_watts".to_owned(), watts), ("members".to_owned(), 1.0)].into();
        let maintain = decision("team/a", minute, ControllerAction::Maintain, ChangeValidation::None, None);
        model.decision(&Decision { controller: "power-budget".into(), expires: at(minute + 5), evidence, ..maintain });
    }
    let power = model.power_history(None, None).unwrap();
    let budget = power.budget.unwrap();
    assert_eq!((budget.power_watts.len(), budget.workloads), (power.edges_ms.len() - 1, Some(1)));
    let shown = [0, 1, 9, 10, 19].map(|interval| budget.power_watts[interval]);
    assert_eq!(shown, [None, Some(900.0), Some(900.0), Some(700.0), Some(700.0)]);
}

#[test]
fn the_chart_of_power_marks_every_change_and_counts_those_that_are_too_many() {
    let mut model = model();
    (0..1_300).for_each(|minute| model.window(&window("team/a", minute, 600.0, &Layout::default())));
    let mut marked = |minutes: std::ops::Range<i64>| {
        // The newest first, as a reader of several partitions may get them.
        for minute in minutes.rev() {
            model.decision(&decision("team/a", minute, ControllerAction::SetPowerLimit, ChangeValidation::Pending, None));
        }
        model.actuation(&actuation("team/a", 5, "team/a/d5", ActuationOutcome::Refused));
        let power = serde_json::to_value(model.power_history(None, None)).unwrap();
        let marks: Vec<_> = power["marks"].as_array().unwrap().iter().map(|mark| mark["time_ms"].as_i64().unwrap()).collect();
        assert!(marks.is_sorted(), "{marks:?}");
        (marks.len(), power["marks_left_out"].as_u64().unwrap())
    };
    assert_eq!(marked(0..400), (401, 0), "of each of them, and of what was refused");
    assert_eq!(marked(400..1_200), (1_000, 201));
}

#[test]
fn an_event_that_comes_twice_counts_once() {
    let (once, _) = both(&["team/a"]);
    let mut twice = model();
    for _ in 0..2 {
        story("team/a", &mut |event| take(&mut twice, &event));
    }
    while twice.refresh(8) {}
    assert_eq!(once.counts().windows, twice.counts().windows);
    assert_eq!(once.overview().totals, twice.overview().totals);
    assert_eq!(once.counts().decisions, twice.counts().decisions);
}

#[test]
fn changes_and_reverts_count_when_they_are_made_as_in_the_report() {
    let counts = |model: &DashboardModel| {
        let counted = model.counts().changes;
        (counted.decided_changes, counted.recommendations, counted.changes, counted.reverts)
    };
    let (mut model, report) = both(&["team/a", "team/b"]);
    let sum = SavingSummary::of(&report.workloads);
    assert_eq!(counts(&model), (sum.decided_changes, sum.recommendations, sum.changes, sum.reverts));
    assert_eq!(counts(&model), (6, 0, 2, 0), "both reverts were decided, and nobody made them");
    // Too many windows for a report: the decisions and what became of them are counted.
    let mut long = DashboardModel::new(facts(), RetentionLimits { windows: 10, ..RetentionLimits::default() });
    for name in ["team/a", "team/b"] {
        story(name, &mut |event| take(&mut long, &event));
    }
    for model in [&mut model, &mut long] {
        model.actuation(&actuation("team/b", 21, "team/b/d21", ActuationOutcome::Recommended));
        let made = actuation("team/a", 24, "team/a/d24", ActuationOutcome::Applied);
        (0..2).for_each(|_| model.actuation(&made));
        while model.refresh(8) {}
        assert_eq!(counts(model), (6, 1, 3, 1));
        let shown = serde_json::to_value(model.overview()).unwrap();
        assert_eq!((&shown["counts"]["changes"], &shown["counts"]["reverts"]), (&3.into(), &1.into()));
    }
    assert_eq!(long.counts().without_saving, 2);
}

#[test]
fn each_cause_of_unknown_energy_is_shown_apart() {
    let mut model = model();
    let known = window("team/known", 0, 36_000.0, &Layout::default());
    let unknown = EfficiencyWindow {
        workload: "team/unknown".to_owned(),
        id: "unknown".to_owned(),
        energy_joules: None,
        run_energy_joules: None,
        mean_power_watts: None,
        joules_per_sample: None,
        energy_coverage_ratio: 0.0,
        run_coverage_ratio: 0.0,
        gpus: 0,
        ..known.clone()
    };
    model.window(&known);
    model.window(&unknown);
    let detail = model.workload_detail("team/unknown").unwrap();
    assert_eq!(detail.report.unwrap().energy_joules, None);
    let why = detail.why_no_energy.expect("the report begins this note as the page expects");
    assert!(why.starts_with("no device that is assigned to it") && why.contains("--map power_watts"), "{why}");
    assert_eq!(model.workload_detail("team/known").unwrap().why_no_energy, None);
    // Of workloads whose windows are not kept, too.
    for limit in [usize::MAX, 0] {
        let mut model = DashboardModel::new(facts(), RetentionLimits { windows: limit, ..RetentionLimits::default() });
        let reason = |model: &DashboardModel, name: &str| model.workload_detail(name).and_then(|detail| detail.why_no_energy);
        for minute in 0..3 {
            let times = EfficiencyWindow { window_start: at(minute), window_end: at(minute + 1), ..unknown.clone() };
            for name in ["team/one", "team/two"] {
                let id = format!("{name}/{minute}");
                model.window(&EfficiencyWindow { id, workload: name.to_owned(), ..times.clone() });
            }
        }
        while model.refresh(8) {}
        assert_eq!([reason(&model, "team/one"), model.overview().totals.why_no_energy], [Some(why.clone()), Some(why.clone())]);
        (3..5).for_each(|minute| model.window(&window("team/one", minute, 36_000.0, &Layout::default())));
        while model.refresh(8) {}
        assert_eq!([reason(&model, "team/one"), model.overview().totals.why_no_energy], [None, None], "some is known: {limit}");
        assert_eq!(reason(&model, "team/two"), Some(why.clone()));
    }
}

#[test]
fn what_is_kept_is_bounded_and_what_is_left_out_is_shown() {
    let limits = RetentionLimits { windows: 50, decisions: 12, workloads: 4, ..RetentionLimits::default() };
    let mut model = DashboardModel::new(facts(), limits);
    for name in ["t/a", "t/b", "t/c", "t/d", "t/e"] {
        story(name, &mut |event| take(&mut model, &event));
    }
    (30..60).for_each(|minute| model.window(&window("t/a", minute, 28_800.0, &Layout::default())));
    while model.refresh(8) {}
    let overview = model.overview();
    assert_eq!(overview.workloads, 4);
    assert!(overview.counts.beyond_limit > 20, "{:?}", overview.counts);
    assert!(overview.counts.without_saving >= 2, "{:?}", overview.counts);
    let page = model.fleet(&FleetQuery::default()).unwrap();
    let left: Vec<_> = page.rows.iter().filter(|row| row.saving_left_out).map(|row| (&row.workload, row.saving_ratio)).collect();
    assert!(left.iter().all(|(_, ratio)| ratio.is_none()) && left.iter().any(|(name, _)| *name == "t/a"), "{left:?}");
    // The chart of one that is left out has means, and shows it.
    let series = model.series("t/a", &serde_json::from_str("{}").unwrap()).unwrap();
    assert!(series.coarse && series.joules_per_sample.iter().flatten().count() > 20);
}

#[test]
fn energy_is_the_reports_however_few_windows_are_kept() {
    let idle = |device: &str, minute| EfficiencyWindow {
        id: format!("gpus//{device}/tumbling/{}", at(minute)),
        samples: None,
        ..window("gpus", minute, 3_000.0, &Layout::default())
    };
    let early = |minute| EfficiencyWindow { run_declared: false, ..window("team/b", minute, 1_800.0, &Layout::default()) };
    let declared = |minute| EfficiencyWindow {
        run_declared: true,
        unassigned_energy_joules: 70.0,
        unassigned_samples: 5.0,
        ..window("team/b", minute, 30_000.0, &Layout::default())
    };
    let part = |minute| EfficiencyWindow {
        observed_start: Some(at(minute).plus_seconds(20.0)),
        observed_end: Some(at(minute).plus_seconds(50.0)),
        run_coverage_ratio: 0.5,
        ..window("team/c", minute, 6_000.0, &Layout::default())
    };
    let mut events: Vec<EfficiencyWindow> =
        (0..40).map(|minute| window("team/a", minute, 36_000.0, &Layout::default())).collect();
    events.extend((0..3).map(early).chain((3..20).map(declared)).chain((30..50).map(declared)));
    events.extend([0, 1, 2, 4, 9].map(part));
    events.extend((0..6).flat_map(|minute| ["GPU-1", "GPU-2"].map(|device| idle(device, minute))));
    events.sort_by_key(|event| event.window_start);
    for limit in [usize::MAX, 60, 10, 0] {
        let limits = RetentionLimits { windows: limit, ..RetentionLimits::default() };
        let (mut model, mut reporter) = (DashboardModel::new(facts(), limits), Reporter::default());
        for event in &events {
            reporter.add_window(event);
            // A log may repeat it.
            (0..2).for_each(|_| model.window(event));
        }
        while model.refresh(8) {}
        let report = reporter.build_report(&ReportSettings::default());
        let overview = model.overview();
        let totals = eadt_report::ReportTotals::of(&report.workloads);
        assert_eq!((overview.totals.energy_joules, overview.totals.without_energy), (totals.energy_joules, 0), "{limit}");
        assert_eq!(overview.totals.unassigned_energy_joules, totals.unassigned_energy_joules);
        if limit == usize::MAX {
            assert_eq!(
                (overview.totals.saving_verdict, totals.saving_verdict),
                (SavingVerdict::Unchanged, SavingVerdict::Unchanged)
            );
            assert_eq!(overview.totals.saving_is_whole, totals.saving_is_whole);
            assert_eq!(overview.totals.compared_energy_ratio, totals.compared_energy_ratio);
        }
        assert_eq!(overview.energy_without_work_joules, Some(36_000.0));
        for wanted in report.workloads.iter().filter(|wanted| wanted.workload != "gpus") {
            let detail = model.workload_detail(&wanted.workload).unwrap();
            let shown = detail.report.unwrap();
            assert_eq!((shown.energy_joules, shown.samples, shown.tokens), (wanted.energy_joules, wanted.samples, wanted.tokens));
            assert_eq!((shown.joules_per_sample, shown.windows), (wanted.joules_per_sample, wanted.windows));
            assert_eq!(shown.outside_run_energy_joules, wanted.outside_run_energy_joules);
            assert_eq!((shown.duration_seconds, shown.coverage_ratio), (wanted.duration_seconds, wanted.coverage_ratio));
            let power = shown.mean_power_watts.zip(wanted.mean_power_watts);
            assert!(power.is_some_and(|(shown, wanted)| (shown - wanted).abs() < 1e-9 * wanted), "{shown:?}");
            assert_eq!(
                (detail.row.energy_joules, detail.row.run_joules_per_sample),
                (wanted.energy_joules, wanted.joules_per_sample)
            );
            if detail.row.saving_left_out {
                assert_eq!(detail.row.saving_verdict, SavingVerdict::Unknown, "it is not known whether something was changed");
                assert!(shown.notes.iter().any(|note| note.contains("no saving is computed")), "{:?}", shown.notes);
            }
        }
        let left_out = [(usize::MAX, 0), (60, 1), (10, 2), (0, 3)].into_iter().find(|(of, _)| *of == limit).unwrap().1;
        assert_eq!(overview.counts.without_saving, left_out, "{limit}");
    }
}

#[test]
fn gpus_without_work_are_apart_and_no_window_yet_is_no_zero() {
    let mut model = model();
    assert!(model.overview().waiting_for.unwrap().contains("existing records of the log"));
    model.set_caught_up();
    assert!(model.overview().waiting_for.unwrap().contains("first workload"));
    assert_eq!((model.overview().power_watts, model.overview().totals.saving_ratio), (None, None));
    for (device, joules) in [("gpu-0", 3000.0), ("gpu-1", 4200.0)] {
        let idle = EfficiencyWindow { id: device.to_owned(), ..window("gpus", 3, joules, &Layout::default()) };
        model.window(&idle);
    }
    let overview = model.overview();
    assert_eq!((overview.workloads, overview.idle_devices, overview.idle_power_watts), (0, 2, Some(120.0)));
    assert_eq!(overview.power_watts, None);
    let unknown = |device: &str, minute| EfficiencyWindow {
        id: device.to_owned(),
        mean_power_watts: None,
        ..window("gpus", minute, 0.0, &Layout::default())
    };
    model.window(&unknown("gpu-2", 3));
    let overview = model.overview();
    assert_eq!((overview.idle_devices, overview.idle_power_watts), (3, Some(120.0)), "power of one of three is unknown");
    model.window(&unknown("gpu-2", 4));
    let overview = model.overview();
    assert_eq!((overview.idle_devices, overview.idle_power_watts), (3, Some(120.0)), "the other two close their windows later");
}

#[test]
fn gpus_without_work_count_whatever_order_their_windows_come_in() {
    let mut model = model();
    let idle = |device: &str, minute: i64, joules: f64| EfficiencyWindow {
        id: format!("gpus//{device}/tumbling/{}", at(minute)),
        ..window("gpus", minute, joules, &Layout::default())
    };
    for minute in 0..10 {
        model.window(&window("team/a", minute, 18_000.0, &Layout::default()));
        model.window(&idle("GPU-A", minute, 3_000.0));
        // Another collector is late by two minutes.
        if minute >= 2 {
            model.window(&idle("GPU-B", minute - 2, 4_200.0));
            let overview = model.overview();
            assert_eq!((overview.idle_power_watts, overview.idle_devices), (Some(120.0), 2), "minute {minute}");
        }
    }
    let power = model.power_history(None, None).unwrap();
    assert_eq!(power.edges_ms.last(), Some(&at(8).millis()), "a window of GPU-B is open");
    let last: f32 = power.layers.iter().filter_map(|layer| layer.power_watts.last().copied().flatten()).sum();
    assert!((last - 420.0).abs() < 0.01, "{last}");
    // GPU-A gets a job, by its samples and then by its window.
    let telemetry =
        GpuTelemetry { time: at(10), device: "GPU-A".into(), workload: Some("team/b".into()), ..GpuTelemetry::default() };
    model.telemetry(&telemetry);
    assert_eq!(model.overview().idle_devices, 1);
    model.window(&EfficiencyWindow { observed_end: Some(at(10)), ..idle("GPU-A", 10, 3_000.0) });
    model.window(&window("team/a", 10, 18_000.0, &Layout::default()));
    assert_eq!((model.overview().idle_power_watts, model.overview().idle_devices), (Some(70.0), 1));
}

/// Returns a window of a GPU without work.
fn idle_window(device: &str, minute: i64, watts: f64) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("gpus//{device}/tumbling/{}", at(minute)),
        samples: None,
        ..window("gpus", minute, 60.0 * watts, &Layout::default())
    }
}

/// Returns the joules below the whole chart of power.
fn charted_joules(model: &DashboardModel) -> f64 {
    let power = model.power_history(None, None).unwrap();
    let seconds: Vec<f64> = power.edges_ms.windows(2).map(|edges| (edges[1] - edges[0]) as f64 / 1e3).collect();
    let layers = power.layers.iter().flat_map(|layer| layer.power_watts.iter().zip(&seconds));
    layers.map(|(watts, seconds)| f64::from(watts.unwrap_or(0.0)) * seconds).sum()
}

#[test]
fn the_chart_of_power_has_all_energy_in_whatever_order_gpus_without_work_are_read() {
    // One job after the other ends and leaves its GPU without work, up to minute 60.
    let gpus: Vec<Vec<EfficiencyWindow>> = (0..4)
        .map(|number| {
            let device = format!("GPU-{number}");
            (10 + 12 * number..60).map(|minute| idle_window(&device, minute, 40.0 + number as f64)).collect()
        })
        .collect();
    let read = |order: [usize; 4]| {
        let source = SourceFacts { kind: SourceKind::Archive, ..facts() };
        let mut model = DashboardModel::new(source, RetentionLimits::default());
        for number in 0..4 {
            let job = format!("team/{number}");
            (0..10 + 12 * number).for_each(|minute| model.window(&window(&job, minute, 18_000.0, &Layout::default())));
        }
        // A log may repeat some of it.
        let windows = order.into_iter().flat_map(|number| gpus[number].iter().chain(&gpus[number][..3]));
        windows.for_each(|window| model.window(window));
        while model.refresh(8) {}
        model.set_caught_up();
        model
    };
    let first = read([0, 1, 2, 3]);
    let energy = first.overview().totals.energy_joules.unwrap();
    assert!((charted_joules(&first) - energy).abs() < 1e-4 * energy, "{energy} {}", charted_joules(&first));
    let wanted = first.power_history(None, None).unwrap();
    let idle = &wanted.layers.last().unwrap().power_watts;
    let known: Vec<Option<f32>> = [9, 10, 22, 34, 59].map(|minute| idle[minute]).into();
    assert_eq!(known, [None, Some(40.0), Some(81.0), Some(123.0), Some(166.0)]);
    for order in [[3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1], [3, 0, 2, 1]] {
        let model = read(order);
        assert_eq!(model.power_history(None, None).unwrap(), wanted, "{order:?}");
        assert_eq!(model.overview().totals.energy_joules, Some(energy), "{order:?}");
    }
}

#[test]
fn a_record_begins_with_its_first_window_of_a_workload_or_of_a_gpu_without_one() {
    for has_job in [false, true] {
        let source = SourceFacts { kind: SourceKind::Archive, window_seconds: None, ..facts() };
        let mut model = DashboardModel::new(source, RetentionLimits::default());
        if has_job {
            (60..90).for_each(|minute| model.window(&window("team/late", minute, 18_000.0, &Layout::default())));
        }
        for minute in 0..120 {
            let idle = EfficiencyWindow { origin: Origin::Measured, ..idle_window("GPU-A", minute, 50.0) };
            model.window(&idle);
        }
        while model.refresh(8) {}
        model.set_caught_up();
        let (overview, power) = (model.overview(), model.power_history(None, None).unwrap());
        assert_eq!((overview.first_ms, overview.source.window_seconds), (Some(at(0).millis()), Some(60.0)));
        assert_eq!((power.edges_ms.first(), power.edges_ms.last()), (Some(&at(0).millis()), Some(&at(120).millis())));
        let energy = overview.totals.energy_joules.unwrap();
        assert_eq!(energy, 120.0 * 3_000.0 + if has_job { 30.0 * 18_000.0 } else { 0.0 });
        assert!((charted_joules(&model) - energy).abs() < 1e-4 * energy, "{energy} {power:?}");
        let origin = if has_job { (None, true) } else { (Some(Origin::Measured), false) };
        assert_eq!((overview.origin, overview.mixed_origins), origin, "of the job simulated");
    }
}

#[test]
fn a_gpu_counts_once_for_all_jobs_that_have_ended_on_it() {
    let ended = |workload: &str, shared: &[&str], tenants, gpus| EfficiencyWindow {
        run_declared: true,
        run_seconds: 0.0,
        run_energy_joules: None,
        tenants,
        gpus,
        shared_devices: shared.iter().map(|device| (*device).to_owned()).collect(),
        ..window(workload, 1, 6_000.0, &Layout::default())
    };
    let begun = |workload: &str| EfficiencyWindow { run_declared: true, ..window(workload, 0, 6_000.0, &Layout::default()) };
    let idle = |windows: &[EfficiencyWindow]| {
        let mut model = model();
        for window in windows {
            model.window(&begun(&window.workload));
            model.window(window);
        }
        (model.overview().idle_devices, model.overview().idle_power_watts)
    };
    let [x, y] = ["z/x", "z/y"].map(|workload| ended(workload, &["GPU-S"], Some(2), 1));
    assert_eq!(idle(&[x.clone(), y.clone()]), (1, Some(200.0)));
    // One of its GPUs is shared, and the job beside it runs.
    let runs = EfficiencyWindow { run_declared: true, run_seconds: 60.0, ..y };
    assert_eq!(idle(&[ended("z/x", &["GPU-S"], Some(2), 3), runs]), (2, Some(100.0)));
    assert_eq!(idle(&[ended("z/x", &[], Some(2), 70), ended("z/y", &[], Some(2), 70)]), (70, Some(200.0)), "none is named");
}

#[test]
fn the_layers_of_power_add_up() {
    let (mut model, _) = both(&["team/a", "team/b"]);
    for number in 0..12 {
        (0..20).for_each(|minute| {
            model.window(&window(&format!("more/{number}"), minute, 600.0 * f64::from(number + 1), &Layout::default()));
        });
    }
    let power = model.power_history(None, None).unwrap();
    assert_eq!((power.layers.len(), power.others), (9, 6));
    assert_eq!(power.edges_ms.len(), power.layers[0].power_watts.len() + 1);
    let sum: f32 = power.layers.iter().filter_map(|layer| layer.power_watts[0]).sum();
    let wanted: f32 = 2.0 * 600.0 + (1..=12).map(|number| 10.0 * number as f32).sum::<f32>();
    assert!((sum - wanted).abs() < 0.01, "{sum} instead of {wanted}");
    assert!(model.power_history(Some(at(500)), None).is_none());
    // So many that the largest take little of all: their namespaces have the layers. GPUs without work have one of their own.
    for number in 0..200 {
        model.window(&window(&format!("many-{}/{number}", number % 10), 5, 36_000.0, &Layout::default()));
    }
    for device in ["gpu-0", "gpu-1"] {
        model.window(&EfficiencyWindow { id: device.into(), ..window("gpus", 5, 3_000.0, &Layout::default()) });
    }
    let power = model.power_history(None, None).unwrap();
    let layers = serde_json::to_value(&power.layers).unwrap();
    assert_eq!((power.layers.len(), power.others), (10, 4), "`more`, `team` and six of the ten have layers");
    assert!(layers[0]["namespace"].is_string() && layers[0]["workload"].is_null(), "{layers}");
    assert_eq!(
        (&layers[8]["kind"], &layers[9]["kind"], &layers[9]["power_watts"][5]),
        (&"others".into(), &"idle".into(), &100.0.into())
    );
}

#[test]
fn two_workloads_and_two_times_are_compared_by_the_reports_figures() {
    let (model, report) = both(&["team/a", "team/b"]);
    let query = |text: String| serde_json::from_str::<eadt_dashboard::CompareQuery>(&text).unwrap();
    let page = model.compare(&query(r#"{"a": "team/a", "b": "team/b"}"#.into())).unwrap();
    assert_eq!(page.figures, eadt_report::ReportComparison::of(&report.workloads[1], &report.workloads[0]));
    assert_eq!((page.a.report.saving_ratio, page.a.part), (report.workloads[0].saving_ratio, false));
    assert_eq!((page.a.saving_verdict, page.a.saving_is_whole), (SavingVerdict::Saved, true));
    // Ten minutes at 6 J a sample, then ten at 4.8.
    let times = |from: i64, to: i64, side: char| {
        format!(r#""{side}": "team/a", "{side}_from_ms": {}, "{side}_to_ms": {}"#, at(from).millis(), at(to).millis())
    };
    let page = model.compare(&query(format!("{{{}, {}}}", times(0, 10, 'a'), times(10, 20, 'b')))).unwrap();
    let pair = page.figures.joules_per_sample;
    assert_eq!((pair.other, pair.this), (Some(6.0), Some(4.8)));
    assert!((pair.change_ratio.unwrap() + 0.2).abs() < 1e-9);
    assert_eq!((page.a.report.windows, page.b.report.windows, page.a.report.saving_joules), (10, 10, None));
    assert_eq!((page.a.report.changes, page.b.report.changes), (0, 1));
    let sum = page.a.report.energy_joules.zip(page.b.report.energy_joules).map(|(a, b)| a + b);
    assert_eq!(sum, report.workloads[0].energy_joules, "the two times are all of the record");
    for (text, wanted) in [
        (r#"{"a": "team/x", "b": "team/a"}"#.to_owned(), "team/x"),
        (format!("{{{}, {}}}", times(3, 3, 'a'), times(10, 20, 'b')), "before it begins"),
        (format!("{{{}, {}}}", times(90, 95, 'a'), times(10, 20, 'b')), "no window"),
    ] {
        let refused = model.compare(&query(text)).unwrap_err().to_string();
        assert!(refused.contains(wanted), "{refused}");
    }
}

/// Returns the report on another run: the same story, each window with so many joules more.
fn other_run(names: &[&str], more_joules: f64, origin: Origin) -> eadt_report::EnergyReport {
    let mut reporter = Reporter::default();
    for name in names {
        story(name, &mut |event| match event {
            Event::Window(mut window) => {
                let joules = window.energy_joules.unwrap() + more_joules;
                (window.energy_joules, window.run_energy_joules) = (Some(joules), Some(joules));
                (window.mean_power_watts, window.joules_per_sample) = (Some(joules / 60.0), Some(joules / 6000.0));
                window.origin = origin;
                reporter.add_window(&window);
            }
            Event::Decision(event) => reporter.add_decision(&Decision { origin, ..event }),
            Event::Actuation(event) => reporter.add_actuation(&Actuation { origin, ..event }),
            Event::Workload(_) => {}
        });
    }
    reporter.build_report(&ReportSettings::default())
}

#[tokio::test]
async fn two_runs_are_compared_by_the_figures_of_report_compare() {
    let (mut model, report) = both(&["team/a", "team/b", "team/new"]);
    let mut other = other_run(&["team/a", "team/b", "team/old"], 3_600.0, Origin::Simulated);
    // GPUs without work are in the energy of both.
    let idle = window("gpus", 0, 500.0, &Layout::default());
    let mut reporter = Reporter::default();
    reporter.add_window(&idle);
    model.window(&idle);
    other.workloads.extend(reporter.build_report(&ReportSettings::default()).workloads);
    let energy = |run: &eadt_report::EnergyReport| SavingSummary::of(&run.workloads).energy_joules.unwrap();
    let wanted = [energy(&report) + 500.0, energy(&other)];
    let noted = other.clone().with_source_notes(vec!["the archive lacks a file".to_owned()]);
    let served = serve_runs(model, vec![OtherRun::new("before/run".to_owned(), noted)]).await;
    let runs = served.get("/api/v1/runs").await.json();
    assert_eq!((&runs["runs"][0]["name"], &runs["runs"][0]["workloads"]), (&"before/run".into(), &3.into()));
    let page = served.get("/api/v1/compare-run?run=before%2Frun").await.json();
    assert_eq!(page["matching"], 2, "{page}");
    let shown = ["this", "other"].map(|run| page[run]["energy_joules"].as_f64().unwrap());
    assert!(shown.iter().zip(wanted).all(|(shown, wanted)| (shown - wanted).abs() < 1e-6 * wanted), "{shown:?} {wanted:?}");
    for row in page["rows"].as_array().unwrap() {
        let of =
            |run: &eadt_report::EnergyReport| run.workloads.iter().find(|it| row["workload"] == *it.workload).cloned().unwrap();
        let wanted = eadt_report::ReportComparison::of(&of(&report), &of(&other));
        assert_eq!(row["figures"], serde_json::to_value(&wanted).unwrap());
        assert!(wanted.joules_per_sample.change_ratio.is_some_and(|ratio| (-0.2..-0.05).contains(&ratio)), "{wanted:?}");
    }
    assert_eq!((&page["only_this"]["names"][0], &page["only_other"]["names"][0]), (&"team/new".into(), &"team/old".into()));
    assert!(page["notes"][0].as_str().unwrap().contains("is not checked"), "{page}");
    assert_eq!(page["notes"][1], "the other run: the archive lacks a file");
    let some = served.get("/api/v1/compare-run?run=before%2Frun&q=B&limit=1").await.json();
    assert_eq!((&some["matching"], &some["rows"][0]["workload"]), (&1.into(), &"team/b".into()));
    for (path, words) in [("/api/v1/compare-run?run=after", "before/run"), ("/api/v1/compare-run?colour=red", "colour")] {
        let refused = served.get(path).await;
        let text = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(refused.status == 400 && text.contains(words), "{path}: {text}");
    }
}

#[tokio::test]
async fn a_comparison_of_runs_that_cannot_be_made_is_refused_with_its_reason() {
    let (model, _) = both(&["team/a"]);
    let measured = other_run(&["team/a"], 0.0, Origin::Measured);
    let run = |name: &str, report| OtherRun::new(name.to_owned(), report);
    let served = serve_runs(model, vec![run("real", measured), run("empty", eadt_report::EnergyReport::default())]).await;
    let page = served.get("/api/v1/compare-run?run=real").await.json();
    let row = &page["rows"][0];
    assert!(row["figures"]["refusals"][0].as_str().unwrap().contains("are measured, here simulated"), "{row}");
    assert_eq!(row["figures"]["energy_joules"]["change_ratio"], serde_json::Value::Null);
    assert!(row["figures"]["energy_joules"]["this"].is_number(), "the figures themselves are shown: {row}");
    assert_eq!(served.get("/api/v1/compare-run?run=empty").await.json()["only_this"]["count"], 1);
    // Too many windows for a report: the row shows it, and what does it.
    let mut long = DashboardModel::new(facts(), RetentionLimits { windows: 10, ..RetentionLimits::default() });
    story("team/a", &mut |event| take(&mut long, &event));
    while long.refresh(8) {}
    let other = other_run(&["team/a"], 0.0, Origin::Simulated);
    let served = serve_runs(long, vec![run("other", other)]).await;
    let page = served.get("/api/v1/compare-run?run=other").await.json();
    let refusal = page["rows"][0]["refusal"].as_str().unwrap();
    assert!(refusal.contains("eadt report --compare") && page["rows"][0]["figures"].is_null(), "{page}");
    let alone = serve_runs(crate::support::model(), Vec::new()).await;
    let refused = alone.get("/api/v1/compare-run?run=x").await;
    assert!(refused.status == 400 && String::from_utf8_lossy(&refused.body).contains("--compare OTHER"));
    assert_eq!(alone.get("/api/v1/runs").await.json()["runs"], serde_json::json!([]));
}

#[test]
fn a_record_that_has_ended_is_distinguished_from_one_that_goes_on() {
    for (kind, until, goes_on, has_ended) in [
        (SourceKind::Archive, None, false, true),
        // Another process has its log, an earlier moment of it, and a log that grows.
        (SourceKind::Archive, None, true, false),
        (SourceKind::Archive, Some(at(30)), false, false),
        (SourceKind::Live, None, false, false),
    ] {
        let mut model = DashboardModel::new(SourceFacts { kind, ..facts() }, RetentionLimits::default());
        if let Some(time) = until {
            model = model.as_of(time);
        }
        if goes_on {
            model.set_goes_on();
        }
        story("team/a", &mut |event| take(&mut model, &event));
        assert_eq!(model.overview().running, 1, "it is being read");
        model.set_caught_up();
        let overview = model.overview();
        let of_state = |state: &str| model.fleet(&FleetQuery { state: state.into(), ..FleetQuery::default() }).unwrap().matching;
        assert_eq!((of_state("ended"), of_state("reverted")), if has_ended { (1, 0) } else { (0, 1) });
        assert_eq!((overview.running, overview.needing_attention), if has_ended { (0, 0) } else { (1, 1) });
        assert_eq!(overview.power_watts, Some(480.0), "that of the newest windows");
        let status = "The record of 1 workload ended at 2026-01-01 00:20:00 UTC";
        assert_eq!(overview.status == status, has_ended, "{}", overview.status);
        let cut = "Only what was archived until 2026-01-01 00:20:00 UTC is shown: the log beside it cannot be opened";
        assert_eq!(overview.status.contains(cut), goes_on, "{}", overview.status);
    }
    let mut empty = DashboardModel::new(SourceFacts { kind: SourceKind::Archive, ..facts() }, RetentionLimits::default());
    empty.set_caught_up();
    assert_eq!((empty.overview().status.as_str(), empty.overview().waiting_for), ("The record holds no workload", None));
}

#[test]
fn decisions_read_as_in_terminals_and_reports() {
    let (model, report) = both(&["team/a"]);
    let page = model.decision_page(&DecisionQuery::default()).unwrap();
    let texts: Vec<&str> = page.rows.iter().map(|row| &*row.action_text).collect();
    assert_eq!(texts, ["revert", "set power limit to 300 W", "keep", "set power limit to 300 W"]);
    let html = report.render(eadt_report::RenderFormat::Html);
    assert!(html.contains("<strong>set power limit to 300 W</strong>: decided at minute 10"), "{html}");
    let settings = ReportSettings { by: Some(eadt_report::ReportBreakdown::Window), ..ReportSettings::default() };
    let mut reporter = Reporter::default();
    story("team/a", &mut |event| match &event {
        Event::Window(event) => reporter.add_window(event),
        Event::Decision(event) => reporter.add_decision(event),
        Event::Actuation(_) | Event::Workload(_) => {}
    });
    let text = reporter.build_report(&settings).render(eadt_report::RenderFormat::Text);
    assert!(text.contains("  set power limit to 300 W  ") && text.contains("  keep  "), "{text}");
}
