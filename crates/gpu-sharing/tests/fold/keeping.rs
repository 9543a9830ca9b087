//! Tests the state that is kept from one commit to the next, and for how long.

use std::collections::BTreeMap;

use eadt_core::joint::{JointEvent, JointFold};
use eadt_core::{FoldSettings, StateError, partition};
use eadt_gpu_sharing::GpuSharingFold;
use eadt_schemas::v1::{ControllerAction, Decision, Workload};
use eadt_testing::cases;
use proptest::prelude::*;

use super::models::{crowding, learned};
use super::site::{Site, at, in_turn, job, settings, window};

/// The sample `tests/state/NAME.jsonl`, lines of key and JSON. With `EADT_WRITE_STATE_SAMPLE` one that is missing is made of
/// `present`; one that is there never changes.
fn stored(name: &str, present: &mut GpuSharingFold) -> Vec<(String, Option<String>)> {
    let file = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/state/{name}.jsonl"));
    if std::env::var_os("EADT_WRITE_STATE_SAMPLE").is_some() && !file.exists() {
        let text = |value: Option<Vec<u8>>| String::from_utf8(value.expect("nothing is deleted")).expect("JSON");
        let records = present.take_changes().into_iter();
        let lines: String = records.map(|r| serde_json::to_string(&(r.key, text(r.value))).expect("texts") + "\n").collect();
        std::fs::write(&file, lines).expect("a writable folder");
    }
    let line = |line: &str| -> (String, Option<String>) { serde_json::from_str(line).expect("key and value") };
    std::fs::read_to_string(file).expect("a sample of each version").lines().map(line).collect()
}

/// In the middle of a change: probes are done, a partition was found and is not in force yet.
#[test]
fn state_that_any_release_kept_goes_on_as_if_nothing_had_happened() {
    let mut site = Site::new(in_turn());
    (site.contention, site.profiled) = (crowding, true);
    site.learn(&learned());
    site.run(85);
    let state = stored("v1", &mut site.stage);
    let before = site.decisions.len();
    let (jobs, minute, coming) = (site.jobs.clone(), site.minute, site.coming.clone());
    site.run(60);
    assert_eq!(site.shares(), [70, 30], "{:#?}", site.changes().last());
    let mut restored = Site::new(Vec::new());
    (restored.contention, restored.profiled) = (crowding, true);
    (restored.jobs, restored.minute, restored.coming) = (jobs, minute, coming);
    restored.stage = GpuSharingFold::restore(settings(), state.clone()).unwrap();
    restored.run(60);
    assert!(
        site.decisions[before..].iter().any(|decision| decision.action != ControllerAction::Maintain),
        "something is decided"
    );
    assert_eq!(site.decisions[before..], restored.decisions);
    // All kinds of keys are in it, and of each a newer form is refused; a newer kind, too.
    let keys: Vec<&str> = state.iter().map(|(key, _)| key.as_str()).collect();
    let members = ["#gpu//member//a/steep", "#gpu//member//b/flat"];
    assert_eq!(keys, ["#gpu//", "#gpu//model//partition/board", members[0], members[1], "#gpu//device//GPU-0"]);
    let restore = |key: &str, value: &[u8]| GpuSharingFold::restore(settings(), [(key, Some(value))]).map(drop);
    for (key, value) in &state {
        let newer = [&[2], value.as_deref().unwrap().as_bytes()].concat();
        let error = restore(key, &newer).unwrap_err();
        assert!(matches!(error, StateError::Newer { form: 2, .. }) && error.to_string().contains(&format!("{key:?}")), "{error}");
    }
    assert!(matches!(restore("#gpu//later//x", b"{}"), Err(StateError::NewKind { .. })));
    // Others' records are theirs to judge.
    restore("a/steep#0", &[9]).unwrap();
    restore("#cluster//later//x", &[9]).unwrap();
}

/// GPUs of other workloads come and go. Without a member they are never evaluated, but must be forgotten, however far apart
/// their windows are.
#[test]
fn gpus_of_others_are_forgotten_though_there_are_no_members() {
    for minutes in [1, 7, 11, 30] {
        let mut site = Site::new(vec![]);
        let mut log = BTreeMap::new();
        for i in 0..300 {
            let window = window(&format!("a/{i}"), i * minutes, 2, &[&format!("GPU-{i}")]);
            site.see(&window);
            log.extend(site.stage.take_changes().into_iter().map(|record| (record.key, record.value.is_some())));
        }
        let kept = log.values().filter(|kept| **kept).count();
        assert!(kept < 30, "{kept} records of 300 GPUs, one every {minutes} min");
        assert_eq!(site.stage.tally().evaluations, 0);
    }
}

/// So that it resumes if it comes back, and no longer than inputs about it are kept.
#[test]
fn who_is_gone_is_remembered_for_as_long_as_inputs_are_kept() {
    let settings = FoldSettings { retention: 600 * 1_000_000, ..settings() };
    let mut looking = job("b/flat", 0.05, &[0..400]);
    looking.gpu = "GPU-1";
    let mut site = Site::with(settings, vec![job("a/steep", 0.95, &[0..3]), looking]);
    site.run(3).gone("a/steep");
    site.run(10);
    assert_eq!(site.stage.member_count(), 2, "its newest window ended 600 s ago");
    drop(site.stage.take_changes());
    site.run(1);
    assert_eq!(site.stage.member_count(), 1);
    let deleted: Vec<_> = site.stage.take_changes().into_iter().filter(|record| record.value.is_none()).collect();
    assert!(deleted.len() == 1 && deleted[0].key == "#gpu//member//a/steep", "{deleted:?}");
}

#[test]
fn there_is_room_for_so_many_and_who_is_gone_makes_room() {
    let settings = FoldSettings { max_workloads: 1, ..settings() };
    let mut site = Site::with(settings, vec![job("a/steep", 0.95, &[0..400])]);
    let other = job("b/flat", 0.05, &[]).workload;
    let mut out = Vec::new();
    let declare_other = |site: &mut Site, out: &mut Vec<Decision>| {
        site.stage.fold(JointEvent::Input(partition::InputEvent::Workload(&other)), Some("b/flat"), at(1), out)
    };
    let refusal = declare_other(&mut site, &mut out).unwrap_err();
    assert!(refusal.detail.contains("processor.max_workloads"), "{}", refusal.detail);
    site.gone("a/steep");
    declare_other(&mut site, &mut out).unwrap();
    assert_eq!(site.stage.member_count(), 1);
}

#[test]
fn of_those_who_are_gone_what_was_measured_longest_ago_makes_room() {
    let settings = FoldSettings { max_workloads: 2, ..settings() };
    let mut site = Site::with(settings, vec![job("a/steep", 0.95, &[3..5]), job("b/flat", 0.05, &[0..3])]);
    site.run(5);
    site.gone("a/steep");
    site.gone("b/flat");
    site.declare(&Workload { time: at(5), ..job("c/other", 0.5, &[]).workload });
    let known: BTreeMap<_, _> =
        site.stage.take_changes().into_iter().map(|record| (record.key, record.value.is_some())).collect();
    let is_known = |name: &str| known[&format!("#gpu//member//{name}")];
    assert_eq!((is_known("a/steep"), is_known("b/flat"), is_known("c/other")), (true, false, true));
    assert_eq!(site.stage.member_count(), 2);
}

proptest! {
    #![proptest_config(cases(24))]

    /// Wherever the state is written and read again, what is decided is the same; and shares in force never sum to more than the
    /// GPU while all tenants are there, but for one that was just measured alone.
    #[test]
    fn restarts_of_the_stage_change_nothing(
        crashes in prop::collection::btree_set(0_i64..160, 0..12),
        exponents in (0.05..1.0_f64, 0.05..1.0_f64),
        slow in prop::bool::ANY,
    ) {
        let jobs = || vec![job("a/one", exponents.0, &[0..40, 80..400]), job("b/two", exponents.1, &[40..400])];
        let (mut straight, mut crashed) = (Site::new(jobs()), Site::new(jobs()));
        for site in [&mut straight, &mut crashed] {
            site.contention = if slow { |shares| 1.0 - f64::from(shares[0]) / 250.0 } else { |_| 0.9 };
        }
        for minute in 0..160 {
            if crashes.contains(&minute) {
                crashed.crash();
            }
            straight.minute();
            crashed.minute();
            if minute > 84 {
                prop_assert!(straight.shares().iter().sum::<u32>() <= 100, "{:?}", straight.shares());
            }
        }
        prop_assert_eq!(straight.decisions, crashed.decisions);
    }
}
