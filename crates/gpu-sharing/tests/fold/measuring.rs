//! Tests measurements of workloads alone: at which shares they are made, and how each workload gets its own share back.

use eadt_core::FoldSettings;
use eadt_schemas::counts::counted_as;
use eadt_schemas::v1::{ActuationOutcome, ControllerAction, EfficiencyWindow, UpdateMode, Workload};

use super::site::{Change, Job, Site, at, in_turn, job, settings_with};

/// Alone for good.
fn alone() -> Vec<Job> {
    vec![job("a/steep", 0.95, &[0..1000])]
}

fn without_probes() -> FoldSettings {
    settings_with(|own| own.probe_percentages = vec![])
}

/// Without changes of its share a job is alone at one share only, which shows nothing of the others.
#[test]
fn without_measuring_at_other_shares_nothing_is_known() {
    let mut site = Site::with(without_probes(), in_turn());
    site.run(120);
    assert!(site.changes().is_empty());
    site.assert_reason("b/flat", "a/steep was not measured enough while it was alone");
    site.assert_reason("b/flat", "at 100 %");
}

#[test]
fn who_must_not_be_measured_at_other_shares_stays_and_the_reason_is_given() {
    let one = "it has not exactly one GPU and one process";
    let cases: [(Change<Workload>, &str); 6] = [
        (|workload| workload.gpus = Some(2), one),
        (|workload| workload.layout.replicas = Some(2), one),
        (|workload| workload.layout.mps_thread_percentage = None, "it has no MPS thread percentage"),
        (|workload| workload.bounds.mps_thread_percentage_max = Some(60), "its bounds exclude 100 %"),
        (|workload| workload.mode = UpdateMode::Recommend, "only in mode enforce"),
        (|workload| workload.paused = true, "while it is not paused"),
    ];
    for (change, reason) in cases {
        let mut jobs = alone();
        change(&mut jobs[0].workload);
        let mut site = Site::new(jobs);
        site.run(20);
        assert_eq!(site.changes().len(), 0, "{reason}");
        site.assert_reason("a/steep", reason);
    }
}

/// Bounds that leave out 100 % once it is known are no hindrance.
#[test]
fn what_is_known_of_the_whole_gpu_stays_known_under_narrower_bounds() {
    let mut site = Site::new(alone());
    site.until(0, 100).run(3);
    site.change(0, |workload| workload.bounds.mps_thread_percentage_max = Some(60));
    site.run(20);
    assert_eq!(site.asked(), [100, 20, 50]);
}

#[test]
fn windows_that_show_nothing_about_a_workload_alone_are_named_by_what_they_lack() {
    let cases: [(Change<EfficiencyWindow>, &str); 4] = [
        (|window| window.layout.as_mut().unwrap().power_limit_watts = Some(100.0), "power or clock are limited"),
        (|window| window.layout.as_mut().unwrap().sm_clock_mhz = Some(900.0), "power or clock are limited"),
        (|window| window.layout.as_mut().unwrap().replicas = Some(2), "several processes of it share the GPU"),
        (|window| window.samples_per_second = None, "board, throughput or power is unknown"),
    ];
    for (change, lacks) in cases {
        let mut site = Site::new(alone());
        site.on_the_way(change);
        site.run(20);
        let reason = format!("alone on its GPU: its windows do not show it alone: {lacks}");
        assert_eq!((&site.last("a/steep").reason, site.changes().len()), (&reason, 0));
    }
}

#[test]
fn how_many_windows_a_share_needs_and_how_much_of_each_is_set() {
    let settings = settings_with(|own| (own.windows_min, own.coverage_min_ratio) = (5, 0.5));
    let mut site = Site::with(settings, alone());
    site.on_the_way(|window| window.energy_coverage_ratio = 0.5);
    site.run(5);
    site.assert_reason("a/steep", "measured at 50 %, 4 of 5 windows");
    site.run(1);
    assert_eq!(site.asked(), [100]);
}

#[test]
fn who_waits_for_windows_that_count_gets_the_reason_why_the_newest_does_not() {
    let cases: [(Change<EfficiencyWindow>, &str); 4] = [
        (|window| window.restarted = true, "it restarted, or inputs are missing"),
        (|window| window.energy_coverage_ratio = 0.5, "too little energy or progress is known"),
        (|window| window.energy_coverage_ratio = f64::NAN, "too little energy or progress is known"),
        (|window| window.progress_coverage_ratio = f64::NAN, "too little energy or progress is known"),
    ];
    for (change, lacks) in cases {
        let mut site = Site::new(alone());
        site.on_the_way(change);
        site.run(4);
        site.assert_reason("a/steep", &format!("measured at 50 %, 0 of 3 windows; the newest does not count: {lacks}"));
        site.run(12);
        site.assert_reason("a/steep", &format!("no usable window in the last 600 s; the newest does not count: {lacks}"));
        assert_eq!(site.changes().len(), 0);
    }
    // One that counts makes it forgotten. A look knows the windows that ended before it.
    let mut site = Site::new(alone());
    site.on_the_way(|window| window.gap = window.window_end == at(2));
    for progress in
        ["1 of 3 windows", "1 of 3 windows; the newest does not count: it restarted, or inputs are missing", "2 of 3 windows"]
    {
        site.run(if progress == "1 of 3 windows" { 2 } else { 1 });
        let reason = &site.last("a/steep").reason;
        assert!(reason.ends_with(&format!("measured at 50 %, {progress}")), "{reason}");
    }
}

/// As often as its bounds allow, but for one restart that is kept for the way back.
#[test]
fn of_the_restarts_of_a_day_one_is_kept_for_the_way_back() {
    for (allowed, asked) in [(1, &[][..]), (2, &[100, 50]), (3, &[100, 20, 50])] {
        let mut jobs = alone();
        jobs[0].workload.bounds.restarts_per_day_max = Some(allowed);
        let mut site = Site::new(jobs);
        // A layout that is corrected at once was never in force, and however often one is declared it counts once.
        let workload = site.jobs[0].workload.clone();
        let decision_id = Some("a/steep@1970-01-01T00:00:00.000000Z/sm-partition".to_owned());
        site.declare(&Workload { generation: 2, decision_id, time: at(0).plus_micros(1), ..workload.clone() });
        site.declare(&Workload { time: at(0).plus_micros(1), ..workload });
        for _ in 0..40 {
            site.minute();
            site.declare(&site.jobs[0].workload.clone());
        }
        assert_eq!((site.asked(), site.shares()), (asked.to_vec(), vec![50]), "{allowed}");
        let enough = counted_as(asked.len(), "restart in 24 h: too few", "restarts in 24 h: too few");
        site.assert_reason("a/steep", if allowed < 3 { &enough } else { "all shares that are needed are measured" });
    }
}

#[test]
fn company_that_comes_while_a_job_is_measured_puts_it_back() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400]), job("b/flat", 0.05, &[8..400])]);
    site.run(8);
    assert_eq!(site.shares(), [100, 50]);
    site.run(10);
    assert_eq!(site.shares(), [50, 50]);
    assert!(site.changes().last().unwrap().reason.contains("not alone on its GPU any more"));
}

/// No actuator applies a decision. The last decision may have been applied without its layout having been declared yet: also
/// this is waited for only until the decision expires.
#[test]
fn a_share_that_does_not_come_into_force_is_asked_for_until_it_is_given_up_and_again_after_a_rest() {
    for applied in [false, true] {
        let mut site = Site::new(alone());
        site.delay = 1_000;
        site.run(34);
        if applied {
            let last = site.changes().last().unwrap().id.clone();
            site.answer("a/steep", &last, ActuationOutcome::Applied, at(34).plus_micros(1));
        }
        for minute in 35..95 {
            site.run(1);
            let waits = format!("100 %, at which it was to be measured, may still come into force until {}", at(40));
            let rests = format!("was refused or gave no usable window, so that none is tried before {}", at(95));
            site.assert_reason("a/steep", if minute < 40 { &waits } else { &rests });
        }
        site.run(2);
        let asked: Vec<i64> = (4..=34).chain(95..=96).collect();
        assert_eq!(site.asked_at(), asked, "for half an hour, and once more an hour after it was given up");
    }
}

/// Measured alone at 20 % of the SMs, where it stays only for as long as its windows show something.
fn measured_at_20() -> Site {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..1000]), job("b/flat", 0.05, &[])]);
    site.until(0, 20);
    site
}

#[test]
fn who_falls_silent_while_it_is_measured_gets_its_share_back() {
    let mut site = measured_at_20();
    site.jobs[0].mute = true;
    site.run(20);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
}

/// The other one, on a GPU of its own, causes the evaluations.
#[test]
fn whose_windows_stop_while_it_is_measured_gets_its_share_back() {
    let mut site = measured_at_20();
    site.jobs[0].here.clear();
    (site.jobs[1].here, site.jobs[1].gpu) = (vec![0..1000], "GPU-1");
    site.change(1, |workload| workload.mode = UpdateMode::Observe);
    let changes = site.changes().len();
    site.run(10);
    assert_eq!(site.changes().len(), changes, "it may be that they come late");
    // Then it is published at once: no window is expected with which it could come.
    site.run(1);
    let back = site.changes()[changes];
    assert_eq!((back.action, back.time, back.to.mps_thread_percentage), (ControllerAction::Revert, at(site.minute), Some(50)));
    assert!(back.reason.starts_with("no usable window in the last 600 s: back to 50 %"), "{}", back.reason);
    site.run(10);
    assert_eq!((site.shares()[0], site.changes().len()), (50, changes + 1));
}

#[test]
fn who_is_capped_while_it_is_measured_gets_its_share_back() {
    let mut site = measured_at_20();
    let since = site.minute;
    site.change(0, |workload| workload.layout.power_limit_watts = Some(100.0));
    site.run(20);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
    let back = site.changes().last().copied().unwrap();
    assert!(back.reason.contains("gave no usable window") && back.time == at(since + 11), "{back:?}");
    let changes = site.changes().len();
    site.run(120);
    assert_eq!(site.changes().len(), changes, "capped, it is not measured again");
}

#[test]
fn whose_controller_is_another_one_gets_its_share_back() {
    for alone in [true, false] {
        let mut site = measured_at_20();
        if !alone {
            site.jobs[1].here = vec![0..1000];
        }
        site.change(0, |workload| workload.controller = Some("hybrid".into()));
        // At once: its windows are those of another controller's workload.
        site.run(1);
        let back = site.changes().last().copied().cloned().unwrap();
        assert_eq!((&*back.workload, back.action, &*back.controller), ("a/steep", ControllerAction::Revert, "sm-partition"));
        assert_eq!(back.time, at(site.minute));
        site.run(9);
        assert_eq!(site.shares()[0], 50, "{alone}");
        let before = site.decisions.len();
        site.run(10);
        let more = site.decisions[before..].iter().filter(|decision| decision.workload == "a/steep").count();
        assert_eq!(more, 0, "nothing else is decided about it");
    }
}

#[test]
fn who_must_not_be_changed_for_a_while_gets_its_share_back_after_it() {
    let changes: [Change<Workload>; 2] = [|workload| workload.paused = true, |workload| workload.mode = UpdateMode::Observe];
    for change in changes {
        let mut site = measured_at_20();
        site.change(0, change);
        site.run(30);
        assert_eq!(site.shares()[0], 20);
        site.assert_reason("a/steep", "gets its 50 % back once it may be changed");
        site.change(0, |workload| (workload.paused, workload.mode) = (false, UpdateMode::Enforce));
        site.run(10);
        assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
    }
}

/// A workload that only takes recommendations gets one.
#[test]
fn who_takes_recommendations_is_recommended_to_go_back() {
    let mut site = measured_at_20();
    site.change(0, |workload| workload.mode = UpdateMode::Recommend);
    site.run(10);
    let back = site.changes().last().copied().unwrap();
    assert_eq!((back.action, back.to.mps_thread_percentage), (ControllerAction::Revert, Some(50)));
}

#[test]
fn bounds_that_no_longer_allow_the_former_share_give_the_nearest() {
    let mut site = measured_at_20();
    site.change(0, |workload| workload.bounds.mps_thread_percentage_max = Some(40));
    site.run(20);
    assert_eq!(site.shares()[0], 40, "{:?}", site.last("a/steep").reason);
}

/// The budget of restarts is cut while it is measured at 100 %: there is none left to measure it further, and the way back is
/// free.
#[test]
fn who_may_not_be_restarted_any_more_gets_its_share_back() {
    let mut site = Site::new(alone());
    site.until(0, 100);
    site.change(0, |workload| workload.bounds.restarts_per_day_max = Some(0));
    site.run(20);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
}

/// Probes that are not asked for any more are not waited for.
#[test]
fn settings_without_probes_give_the_share_back() {
    let mut site = measured_at_20();
    site.settings = without_probes();
    site.crash();
    site.run(3);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
}

#[test]
fn what_somebody_else_chose_while_it_was_measured_is_left_to_them() {
    let mut site = measured_at_20();
    site.change(0, |workload| workload.layout.mps_thread_percentage = Some(70));
    site.run(60);
    assert_eq!(site.shares()[0], 70, "{:?}", site.last("a/steep").reason);
}

/// A share to measure it at comes into force when others are there already: it is given back.
#[test]
fn a_change_that_comes_late_does_not_leave_a_share_behind() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400]), job("b/flat", 0.05, &[4..400])]);
    site.delay = 3;
    site.run(5);
    assert!(site.shares()[0] == 50 && !site.changes().is_empty(), "asked for, and not yet in force");
    site.run(3);
    assert_eq!(site.shares()[0], 100, "in force with two on the GPU");
    site.run(15);
    assert_eq!(site.shares(), [50, 50], "{}", site.last("a/steep").reason);
}

/// It was requested for a layout that has been changed from outside since.
#[test]
fn a_change_that_cannot_come_any_more_is_not_waited_for() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400]), job("b/flat", 0.05, &[4..400])]);
    site.delay = 1_000;
    site.run(6);
    site.assert_reason("b/flat", "a/steep: 100 %, at which it was to be measured, may still come into force");
    site.change(0, |workload| workload.layout.power_limit_watts = Some(300.0));
    site.run(1);
    site.assert_reason("b/flat", "a/steep was not measured enough while it was alone");
}

/// It is gone for a moment, as when its label is lost, and comes back as it was: what was measured counts, and so do restarts.
#[test]
fn who_comes_back_as_it_was_measured_goes_on_from_there_and_gets_its_share_back() {
    for (share, allowed, asked) in [(20, None, &[100, 20, 50][..]), (100, Some(2), &[100, 50])] {
        let mut jobs = alone();
        jobs[0].workload.bounds.restarts_per_day_max = allowed;
        let mut site = Site::new(jobs);
        let workload = site.until(0, share).jobs[0].workload.clone();
        site.gone("a/steep");
        site.run(2);
        site.declare(&Workload { time: at(site.minute).plus_micros(5), ..workload });
        site.run(20);
        assert_eq!((site.asked(), site.shares()), (asked.to_vec(), vec![50]), "{:?}", site.last("a/steep").reason);
    }
}
