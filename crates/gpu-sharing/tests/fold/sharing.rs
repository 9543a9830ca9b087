//! Several workloads on one GPU: when its partition is turned, and the reason if it is not.

use std::collections::BTreeSet;

use eadt_core::gpu_sharing::GpuSharingSettings;
use eadt_schemas::v1::{ChangeValidation, ControllerAction, Decision, EfficiencyWindow, LayoutBounds, UpdateMode};

use super::site::{Change, GPU, Job, Site, in_turn, job, settings_with, window};

#[test]
fn workloads_are_measured_alone_and_partitioned_together() {
    let mut site = Site::new(in_turn());
    site.run(40);
    let probes: Vec<_> = site.changes().iter().map(|probe| (probe.action, probe.to.mps_thread_percentage.unwrap())).collect();
    let expected = [(ControllerAction::Increase, 100), (ControllerAction::Decrease, 20), (ControllerAction::Revert, 50)];
    assert_eq!(probes, expected, "at its own share first, which takes no restart, and back to it in the end");
    assert_eq!(site.shares(), [50, 50]);
    site.assert_reason("a/steep", "all shares that are needed are measured");
    site.run(40);
    site.run(40);
    assert_eq!(site.shares(), [80, 20], "{:#?}", site.last("a/steep"));
    let (down, up) = (site.changes()[6].clone(), site.changes()[7].clone());
    assert_eq!(
        (down.action, &*down.workload, up.action, &*up.workload),
        (ControllerAction::Decrease, "b/flat", ControllerAction::Increase, "a/steep")
    );
    assert!(down.reason.contains("with a/steep 80 %") && down.reason.contains("the additive model"), "{}", down.reason);
    assert!(down.evidence["expected_gain_ratio"] > 0.02 && down.model_version.is_none(), "{down:?}");
    assert!(
        site.decisions.iter().any(|decision| decision.validation == ChangeValidation::Kept && decision.reason.contains("kept"))
    );
    // Every window has one decision.
    let ids: BTreeSet<_> = site.decisions.iter().map(|decision| &decision.id).collect();
    assert_eq!((ids.len(), site.decisions.len()), (40 + 40 + 80, 160));
}

/// The case in which profiles cannot be gathered: jobs that were never alone.
#[test]
fn who_was_never_alone_is_left_as_it_is_and_the_reason_is_given() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400]), job("b/flat", 0.05, &[0..400])]);
    site.run(300);
    assert_eq!((site.changes().len(), site.shares()), (0, vec![50, 50]));
    let reason = &site.last("b/flat").reason;
    assert_eq!(reason, "sharing GPU-0 with a/steep: a/steep was not measured alone yet");
}

#[test]
fn what_must_not_be_turned_stays_and_gives_the_reason() {
    let turns = |change: fn(&mut Vec<Job>)| {
        let mut jobs = in_turn();
        change(&mut jobs);
        let mut site = Site::new(jobs);
        site.run(80);
        let before = site.changes().len();
        site.run(40);
        (site.changes().len() - before, site)
    };
    let assert_unchanged = |change, words: &str| {
        let (changes, site) = turns(change);
        site.assert_reason("b/flat", words);
        assert_eq!(changes, 0, "{words}");
    };
    assert_unchanged(|jobs| jobs[0].workload.mode = UpdateMode::Recommend, "a/steep is not in mode enforce");
    assert_unchanged(
        |jobs| jobs[0].workload.controller = Some("hybrid".into()),
        "a/steep does not use the controller sm-partition",
    );
    assert_unchanged(|jobs| jobs[1].workload.bounds.restarts_per_day_max = Some(4), "b/flat has no restart left in 24 h");
    assert_unchanged(
        |jobs| jobs[1].workload.bounds = LayoutBounds { mps_thread_percentage_max: Some(60), ..LayoutBounds::default() },
        "b/flat was not measured enough",
    );
    assert_unchanged(
        |jobs| jobs[0].workload.gpu_model = Some("other".into()),
        "both must be measured on the GPU that they share",
    );
    // With one restart more there is one for the partition and one for the way back.
    let (changes, site) = turns(|jobs| jobs[1].workload.bounds.restarts_per_day_max = Some(5));
    assert_eq!((changes, site.shares()), (2, vec![80, 20]));
}

#[test]
fn limits_of_the_settings_are_kept_to() {
    let assert_in_force = |change: fn(&mut GpuSharingSettings), words: &str| {
        let mut site = Site::with(settings_with(change), in_turn());
        site.run(120);
        assert_eq!(site.shares(), [50, 50], "{words}");
        site.assert_reason("b/flat", words);
    };
    assert_in_force(|own| own.floor_ratio = 1.0, "the partition in force is the best");
    assert_in_force(|own| own.max_slowdown_ratio = Some(0.05), "no partition satisfies the limits");
    assert_in_force(|own| own.gain_min_ratio = 1.0, "the partition in force is the best");
}

#[test]
fn a_partition_that_does_not_help_is_taken_back() {
    let mut site = Site::new(in_turn());
    site.contention = |shares| if shares == [50, 50] { 0.95 } else { 0.4 };
    site.run(80 + 60);
    assert_eq!(site.shares(), [50, 50]);
    let reverts: Vec<_> = site.changes().into_iter().filter(|decision| decision.validation == ChangeValidation::Failed).collect();
    assert_eq!(reverts.len(), 2, "{reverts:#?}");
    assert!(reverts[0].reason.contains("is reverted"), "{}", reverts[0].reason);
}

#[test]
fn while_windows_of_a_workload_show_nothing_its_gpu_is_left_as_it_is() {
    const LEAST: f64 = 0.9;
    let ways: [(&str, Change<EfficiencyWindow>); 5] = [
        ("restarted", |window| window.restarted = true),
        ("inputs are missing", |window| window.gap = true),
        ("too little energy", |window| window.energy_coverage_ratio = LEAST.next_down()),
        ("too little progress", |window| window.progress_coverage_ratio = LEAST.next_down()),
        ("no numbers", |window| (window.energy_coverage_ratio, window.progress_coverage_ratio) = (f64::NAN, f64::NAN)),
    ];
    let reasons = |change: Change<EfficiencyWindow>| {
        let jobs = vec![job("a/steep", 0.95, &[0..400]), job("b/flat", 0.05, &[0..400])];
        let mut site = Site::with(settings_with(|own| own.coverage_min_ratio = LEAST), jobs);
        site.run(5).on_the_way(move |window| {
            if window.workload == "a/steep" {
                change(window);
            }
        });
        [10, 1].map(|minutes| site.run(minutes).last("b/flat").reason.clone())
    };
    let beside = "sharing GPU-0 with a/steep: a/steep was not measured alone yet";
    for (way, change) in ways {
        let silent = "sharing GPU-0 with a/steep: a/steep had no usable window in the last 600 s";
        assert_eq!(reasons(change), [beside, silent], "{way}: ten minutes are not too long, eleven are");
    }
    let just_enough = reasons(|window| (window.energy_coverage_ratio, window.progress_coverage_ratio) = (LEAST, LEAST));
    assert_eq!(just_enough, [beside, beside]);
}

/// Its throughput beside the other is unknown.
#[test]
fn windows_in_which_nothing_was_done_do_not_count_for_a_partition() {
    for rate in [0.0, -1.0] {
        let mut site = Site::new(in_turn());
        site.run(80).on_the_way(move |window| {
            if window.workload == "a/steep" {
                window.samples_per_second = Some(rate);
            }
        });
        site.run(40);
        assert_eq!(site.changes().len(), 6);
        site.assert_reason("b/flat", "3 windows of each workload are needed at the shares in force");
    }
}

#[test]
fn who_shares_several_gpus_is_left_as_it_is() {
    for (devices, reason) in
        [(&["GPU-0", "GPU-1"][..], "it shares 2 GPUs, and has one share"), (&[], "it shares more than 64 GPUs")]
    {
        let mut site = Site::new(vec![job("a/steep", 0.95, &[])]);
        for minute in 1..=3 {
            site.see(&EfficiencyWindow { gpus: 2, ..window("a/steep", minute, 2, devices) });
        }
        assert_eq!((site.decisions.len(), site.changes().len()), (3, 0));
        site.assert_reason("a/steep", reason);
    }
}

/// Others are known by their windows, and for as long as these come.
#[test]
fn others_on_the_gpu_are_named_while_they_are_there() {
    let mut jobs = vec![job("a/steep", 0.95, &[0..60]), job("b/flat", 0.05, &[0..60]), job("c/other", 0.5, &[0..60])];
    for other in &mut jobs[1..] {
        other.workload.controller = Some("hybrid".into());
    }
    let mut site = Site::new(jobs);
    site.run(30);
    let reason = "sharing GPU-0: 3 workloads share the GPU: b/flat, c/other do not use the controller sm-partition";
    assert_eq!(site.last("a/steep").reason, reason);
    assert_eq!(site.last("a/steep").evidence["workloads"], 3.0);
    // One of them reports nothing any more, though its processes run.
    let silence = GpuSharingSettings::default().silence_seconds as i64 / 60;
    let mut reasons = Vec::new();
    for minute in 31..=30 + silence + 2 {
        for name in ["a/steep", "b/flat"] {
            site.see(&window(name, minute, 3, &[GPU]));
        }
        reasons.push(site.last("a/steep").reason.contains("c/other"));
    }
    let until: Vec<bool> = (31..=30 + silence + 2).map(|minute| minute <= 30 + silence).collect();
    assert_eq!(reasons, until, "{}", site.last("a/steep").reason);
}

/// The others that came first are named, for as long as their windows come.
#[test]
fn of_many_others_on_a_gpu_64_are_named() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[])]);
    let names: Vec<String> = (10..80).map(|i| format!("c/{i}")).collect();
    let named = |decision: &Decision| names.iter().filter(|name| decision.reason.contains(*name)).count();
    for minute in 1..=30 {
        for name in ["a/steep"].into_iter().chain(names.iter().map(String::as_str)) {
            site.see(&window(name, minute, 71, &[GPU]));
        }
        assert_eq!(named(site.last("a/steep")), if minute == 1 { 0 } else { 64 });
    }
}
