//! Windows, and the decisions that come with them.

use std::collections::BTreeSet;

use eadt_core::joint::{JointFold, LATE_SECONDS};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{ActuationOutcome, ControllerAction, Origin, UpdateMode, Workload};

use super::site::{GPU, Site, at, in_turn, job, settings_with, window};

/// Decisions of measuring, of a partition that helps, and of one that does not.
#[test]
fn every_decision_names_who_made_it_what_it_starts_from_and_when_it_is_void() {
    let mut decisions = Vec::new();
    for contention in [(|_| 0.95) as fn(&[u32]) -> f64, |shares| if shares == [50, 50] { 0.95 } else { 0.4 }] {
        let mut site = Site::with(settings_with(|own| own.decision_expiry_seconds = 200.0), in_turn());
        site.contention = contention;
        site.run(140);
        decisions.extend(site.decisions);
    }
    let versions: BTreeSet<&str> = decisions.iter().map(|decision| decision.controller_version.as_str()).collect();
    assert!(versions.len() == 1 && !versions.contains(""), "{versions:?}");
    let actions: Vec<ControllerAction> = decisions.iter().map(|decision| decision.action).collect();
    for action in [ControllerAction::Maintain, ControllerAction::Decrease, ControllerAction::Increase, ControllerAction::Revert] {
        assert!(actions.contains(&action), "{action:?}");
    }
    for decision in decisions {
        let (from, to) = (decision.from.mps_thread_percentage.unwrap(), decision.to.mps_thread_percentage.unwrap());
        assert_eq!(decision.id, format!("{}@{}/sm-partition", decision.workload, decision.time));
        assert_eq!((&*decision.controller, decision.expires), ("sm-partition", decision.time.plus_seconds(200.0)));
        assert!(decision.generation.is_some() && !decision.reason.is_empty(), "{decision:?}");
        let fits = match decision.action {
            ControllerAction::Maintain => to == from,
            ControllerAction::Decrease => to < from,
            ControllerAction::Increase => to > from,
            _ => to != from,
        };
        assert!(fits && decision.restarts == (to != from), "{decision:?}");
        let shared = decision.reason.starts_with("sharing");
        assert_eq!(decision.evidence.contains_key("workloads"), shared, "{decision:?}");
        if decision.action == ControllerAction::Maintain {
            assert_eq!(decision.evidence["mps_thread_percentage"], f64::from(from), "{decision:?}");
        }
    }
}

#[test]
fn a_decision_is_no_more_real_than_its_workload_and_its_windows() {
    let origins = [Origin::Measured, Origin::Imported, Origin::Simulated];
    for (of_workload, of_windows) in origins.into_iter().flat_map(|one| origins.map(|other| (one, other))) {
        let worst = of_workload.max(of_windows);
        let mut jobs = in_turn();
        for job in &mut jobs {
            job.workload.origin = of_workload;
        }
        let mut site = Site::new(jobs);
        site.on_the_way(move |window| window.origin = of_windows);
        site.run(100);
        assert!(site.decisions.iter().all(|decision| decision.origin == worst), "{of_workload:?} {of_windows:?}");
        assert_eq!(site.shares(), [80, 20]);
        // One that comes after its look, of a workload that came after it, too.
        let mut late = job("c/late", 0.5, &[]).workload;
        late.origin = of_workload;
        site.declare(&late);
        let mut window = window("c/late", site.minute, 1, &[]);
        window.origin = of_windows;
        site.see(&window);
        site.assert_reason("c/late", "this window came after the evaluation at its end");
        assert_eq!(site.last("c/late").origin, worst);
    }
}

#[test]
fn a_window_that_comes_again_neither_counts_nor_gets_another_decision() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400])]);
    let figures = |minute: i64, site: &Site| {
        let mut window = window("a/steep", minute, 1, &[]);
        (window.samples_per_second, window.mean_power_watts) = (Some(5.0), Some(100.0));
        window.mean_power_per_gpu_watts = window.mean_power_watts;
        window.layout = Some(site.jobs[0].workload.layout.clone());
        window
    };
    site.run(2);
    for again in [2, 2, 1] {
        site.see(&figures(again, &site));
    }
    assert_eq!(site.decisions.len(), 2);
    site.run(1);
    site.assert_reason("a/steep", "measured at 50 %, 2 of 3 windows");
    // Nor if the workload was gone for a moment.
    site.gone("a/steep");
    site.declare(&Workload { time: at(3).plus_micros(1), ..site.jobs[0].workload.clone() });
    site.see(&figures(3, &site));
    assert_eq!(site.decisions.len(), 3);
}

#[test]
fn windows_without_a_device_do_not_show_where_a_workload_is() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400])]);
    site.run(2);
    site.on_the_way(|window| window.gpus = 0);
    site.run(1);
    site.assert_reason("a/steep", "alone on its GPU");
    site.run(2);
    assert_eq!(site.last("a/steep").reason, "its GPU is not known: it has no new window");
    assert_eq!(site.last("a/steep").time, at(5));
}

/// The window of the workload whose share is to be reduced never comes.
#[test]
fn a_change_whose_window_never_came_is_published_at_the_next_look() {
    let mut usual = Site::new(in_turn());
    usual.run(120);
    let first = usual.changes()[6].clone();
    let mut site = Site::new(in_turn());
    let lost = first.time;
    site.lose(move |window| window.workload == "b/flat" && window.window_end == lost);
    while at(site.minute) < lost {
        site.minute();
    }
    assert_eq!(site.changes().len(), 6);
    site.run(1);
    assert_eq!(*site.changes()[6], first);
    site.run(40);
    assert_eq!(site.shares(), [80, 20]);
}

#[test]
fn looks_and_what_they_found_are_counted() {
    let mut site = Site::new(in_turn());
    let counts = |site: &Site| {
        let tally = site.stage.tally();
        (tally.evaluations, tally.late, tally.shared_gpus, tally.measured)
    };
    site.run(40);
    assert_eq!(counts(&site), (40, 0, 0, 1), "a/steep was measured alone");
    site.run(60);
    assert_eq!(counts(&site), (100, 0, 1, 2), "one look for both windows of a minute");
    // Windows of others are not evaluated.
    site.see(&window("c/other", 105, 2, &[GPU]));
    assert_eq!(counts(&site), (100, 0, 1, 2));
}

#[test]
fn what_comes_after_a_look_that_it_belonged_to_is_counted_and_the_next_decisions_show_it() {
    let mut site = Site::new(in_turn());
    site.run(30);
    let layout = site.jobs[0].workload.clone();
    let late = |site: &Site| site.stage.tally().late;
    for (minute, count) in [(31, 0), (30, 1), (20, 2), (25, 3)] {
        site.declare(&Workload { time: at(minute), ..layout.clone() });
        assert_eq!(late(&site), count, "{minute}");
    }
    // Answers, too, but for those that matter nothing here: that processes are ready, and those to decisions of others.
    let answers = [
        ("a/steep", ActuationOutcome::Ready, 3),
        ("a/steep", ActuationOutcome::Refused, 4),
        ("c/other", ActuationOutcome::Refused, 4),
        ("c/other", ActuationOutcome::Ready, 4),
    ];
    for (name, outcome, count) in answers {
        site.answer(name, &format!("{name}@{}/sm-partition", at(1)), outcome, at(26));
        assert_eq!(late(&site), count, "{name} {outcome:?}");
    }
    // And windows of members, but for the one that goes with the last look.
    for (minute, count) in [(30, 4), (29, 5)] {
        site.see(&window("b/flat", minute, 1, &[]));
        assert_eq!(late(&site), count, "{minute}");
    }
    site.crash();
    site.minute();
    assert_eq!(site.last("a/steep").evidence.get(LATE_SECONDS), Some(&660.0), "by the least of them");
    site.minute();
    assert_eq!(site.last("a/steep").evidence.get(LATE_SECONDS), None);
}

/// Windows that end between those of another workload, as when windows begin with the run.
#[test]
fn where_a_workload_is_stays_known_for_one_and_a_half_windows() {
    let mut site = Site::new(["a/steep", "b/flat"].map(|name| job(name, 0.5, &[])).to_vec());
    let see = |site: &mut Site, name: &str, seconds: i64| {
        let time = |seconds: i64| EventTime::from_micros(seconds * 1_000_000);
        let mut window = window(name, 1, 2, &[GPU]);
        (window.window_start, window.window_end) = (time(seconds - 60), time(seconds));
        site.see(&window);
    };
    for (name, seconds) in [("a/steep", 60), ("b/flat", 80), ("a/steep", 120), ("b/flat", 140)] {
        see(&mut site, name, seconds);
    }
    let beside = "sharing GPU-0 with a/steep: 3 windows of each workload are needed at the shares in force";
    assert_eq!(site.last("b/flat").reason, beside);
    // No window of a/steep comes any more: the newest ended 80 s before this one, and 140 s before the next.
    see(&mut site, "b/flat", 200);
    assert_eq!(site.last("b/flat").reason, beside);
    see(&mut site, "b/flat", 260);
    assert_eq!(site.last("b/flat").reason, "sharing GPU-0: 2 workloads share the GPU: the others have no new windows");
}

/// A workload of another controller is new on the GPU, and its window comes twice.
#[test]
fn whose_window_of_a_look_comes_first_makes_no_difference() {
    let reasons = |order: &[&str]| -> Vec<String> {
        let mut member = job("a/steep", 0.95, &[]);
        member.workload.mode = UpdateMode::Observe;
        let mut site = Site::new(vec![member]);
        site.see(&window("a/steep", 1, 2, &[GPU]));
        for minute in 2..=3 {
            for name in order {
                site.see(&window(name, minute, 2, &[GPU]));
            }
        }
        site.decisions.into_iter().map(|decision| decision.reason).collect()
    };
    let expected = [
        "its GPU is not known: it has no new window",
        "sharing GPU-0: 2 workloads share the GPU: the others have no new windows",
        "sharing GPU-0: 2 workloads share the GPU: c/other does not use the controller sm-partition",
    ];
    assert_eq!(reasons(&["a/steep", "c/other", "c/other"]), expected);
    assert_eq!(reasons(&["c/other", "c/other", "a/steep"]), expected);
}
