//! The actuator when the API server refuses, is slow, loses answers, forgets watches or is gone: nothing is lost, nothing is done twice.

use crate::actuator;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use actuator::{Rig, WITHIN, energy_policy, environment, kubernetes, layout, now, training};
use eadt_kubernetes::policy::EnergyPolicy;
use eadt_schemas::v1::{ActuationOutcome, ControllerAction, Layout, Workload};
use eadt_tests::kubernetes::Component;
use eadt_tests::kubernetes::proxy::{Answer, Fault, Passed, fault, pauses};
use eadt_tests::kubernetes::training::{foreign, without_pods};
use futures::{StreamExt, stream};
use http::Method;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Api, ListParams, PostParams};
use serde_json::{Value, json};

/// Locked for reading by tests that need the control plane, and for writing by those that stop it.
static CONTROL_PLANE: RwLock<()> = RwLock::new(());
const SETS: &str = "/statefulsets/";

fn in_peace() -> RwLockReadGuard<'static, ()> {
    CONTROL_PLANE.read().unwrap_or_else(PoisonError::into_inner)
}

/// An enforced workload without pods, whose actuator reaches the API server through a proxy.
fn enforced(prefix: &str) -> Rig {
    let mut rig = Rig::behind_proxy(prefix);
    rig.apply(&without_pods());
    rig.apply(&energy_policy("Enforce"));
    rig.start(120.0);
    taken_over(&rig);
    rig
}

fn taken_over(rig: &Rig) {
    rig.eventually("its fields are taken over", || {
        let taken = rig.set("llm-training")["metadata"]["annotations"]["eadt.dev/taken-over"].is_string();
        (taken && rig.published()?.ready_time.is_some()).then_some(())
    });
}

fn generation(rig: &Rig) -> u64 {
    rig.set("llm-training")["metadata"]["generation"].as_u64().unwrap()
}

/// The present layout with this percentage.
fn threads(rig: &Rig, percentage: u32) -> Layout {
    Layout { mps_thread_percentage: Some(percentage), ..rig.published().unwrap().layout }
}

/// Decides, waits until it is ready, and proves that it was done once.
fn changed_once(rig: &Rig, id: &str, percentage: u32) {
    let before = generation(rig);
    rig.change(id, ControllerAction::Decrease, threads(rig, percentage), ActuationOutcome::Ready);
    done_once(rig, id, percentage, before);
}

fn done_once(rig: &Rig, id: &str, percentage: u32, before: u64) {
    assert_eq!(rig.outcomes(id), [ActuationOutcome::Applied, ActuationOutcome::Ready], "{id}");
    let set = rig.set("llm-training");
    assert_eq!(set["metadata"]["generation"].as_u64(), Some(before + 1), "{id}");
    assert_eq!(environment(&set)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], percentage.to_string(), "{id}");
}

fn patches(passed: &[Passed]) -> Vec<Passed> {
    passed.iter().filter(|request| request.method == Method::PATCH && request.path.contains(SETS)).cloned().collect()
}

#[test]
fn a_change_that_is_refused_for_the_moment_or_whose_answer_is_lost_is_done_once() {
    let _peace = in_peace();
    let rig = enforced("refused");
    let refused = |code, retry_after| Answer::Refused { code, retry_after };
    let faults = [
        ("one conflict", refused(409, None), 1),
        // More than one attempt makes by itself.
        ("conflicts", refused(409, None), 12),
        ("errors", refused(500, None), 3),
        ("not available", refused(503, None), 2),
        ("too many", refused(429, Some(2)), 2),
        ("no rights yet", refused(403, None), 3),
        ("lost", Answer::Lost, 1),
        ("no answer", Answer::Nothing, 1),
    ];
    let others = foreign(&rig.set("llm-training"));
    for (round, (name, answer, times)) in faults.into_iter().enumerate() {
        rig.proxy().passed();
        // A change whose answer was lost was made.
        let accepted = if matches!(answer, Answer::Lost) { 0 } else { times };
        rig.proxy().interfere(fault(Method::PATCH, SETS, answer, times));
        let decided = Instant::now();
        changed_once(&rig, name, 40 + round as u32);
        let ready = decided.elapsed();
        assert_eq!(rig.proxy().left(), 0, "{name}: it went wrong as often as it was to");
        let patches = patches(&rig.proxy().passed());
        assert_eq!(patches.iter().filter(|patch| patch.faulty).count(), times, "{name}");
        assert!(patches[..times].iter().all(|patch| patch.faulty), "{name}: the first ones");
        if name == "too many" {
            let pauses = pauses(&patches);
            assert!(pauses[..times].iter().all(|pause| *pause >= Duration::from_secs(2)), "{pauses:?}");
        }
        assert_eq!(foreign(&rig.set("llm-training")), others, "{name}: what is others' stays");
        println!(
            "{name} ({times}): the accepted patch {:.2} s after the decision, ready after {:.2} s",
            patches[accepted].at.duration_since(decided).as_secs_f64(),
            ready.as_secs_f64()
        );
    }
    // Reading, which follows a conflict, is no better off.
    for (percentage, code) in [(60, 500), (61, 403)] {
        rig.proxy().interfere(fault(Method::PATCH, SETS, refused(409, None), 3));
        rig.proxy().interfere(fault(Method::GET, SETS, refused(code, None), 3));
        changed_once(&rig, &format!("reads {code}"), percentage);
        assert_eq!(rig.proxy().left(), 0);
    }
    assert_eq!(foreign(&rig.set("llm-training")), others);
}

/// The same with an argument so long in the container that EADT does not change.
fn padded(mut set: Value, bytes: usize) -> Value {
    set["metadata"]["name"] = json!("llm-training");
    set["spec"]["template"]["spec"]["containers"][0]["args"] = json!(["x".repeat(bytes)]);
    set
}

#[test]
fn a_workload_of_a_mebibyte_is_changed_like_any_other() {
    let _peace = in_peace();
    let mut rig = Rig::new("large");
    let mut set = padded(training(), 1 << 20);
    set["spec"]["replicas"] = json!(3);
    let env = &mut set["spec"]["template"]["spec"]["containers"][1]["env"];
    (env[2]["value"], env[3]["value"]) = (json!("3"), json!("1"));
    let sets: Api<StatefulSet> = Api::namespaced(rig.client.clone(), &rig.namespace);
    let set = serde_json::from_value(set).unwrap();
    rig.runtime.block_on(sets.create(&PostParams::default(), &set)).expect("the API server takes it");
    rig.apply(&energy_policy("Enforce"));
    rig.start(120.0);
    rig.ready_with(&layout(3, 50, 1));
    taken_over(&rig);
    let (others, before) = (foreign(&rig.set("llm-training")), generation(&rig));
    changed_once(&rig, "d-1", 40);
    rig.change("d-2", ControllerAction::ScaleReplicas, layout(6, 40, 2), ActuationOutcome::Ready);
    assert_eq!(generation(&rig), before + 2);
    assert_eq!(foreign(&rig.set("llm-training")), others);
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    rig.eventually("everything is as before", || {
        let set = rig.set("llm-training");
        let restored = set["spec"]["replicas"] == 3 && environment(&set)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50";
        (restored && set["metadata"]["annotations"]["eadt.dev/taken-over"].is_null()).then_some(())
    });
}

#[test]
fn a_workload_that_has_no_room_for_a_record_is_not_touched_and_its_policy_reports_why() {
    // etcd's own limit of a request.
    const LIMIT: usize = 3 << 19;
    let _peace = in_peace();
    let mut rig = Rig::new("full");
    let sets: Api<StatefulSet> = Api::namespaced(rig.client.clone(), &rig.namespace);
    let fits = |less: &usize| {
        let set = serde_json::from_value(padded(without_pods(), LIMIT - less)).unwrap();
        rig.runtime.block_on(sets.create(&PostParams::default(), &set)).is_ok()
    };
    let less = (0..8192).step_by(256).find(fits).expect("it fits at some size");
    let full = rig.set("llm-training");
    rig.apply(&energy_policy("Enforce"));
    rig.start(120.0);
    rig.eventually("the policy reports it", || (rig.condition("llm", "Degraded") == "True CannotChange").then_some(()));
    let policy = rig.policy("llm");
    let degraded = policy["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Degraded").unwrap();
    let message = degraded["message"].as_str().unwrap();
    println!("{less} bytes below etcd's limit: {message}");
    assert!(message.contains("taking over the fields of") && message.contains("too large"), "{message}");
    let now = rig.set("llm-training");
    assert_eq!((&now["spec"], &now["metadata"]["annotations"]), (&full["spec"], &full["metadata"]["annotations"]));
    assert_eq!(foreign(&now), foreign(&full));

    // With enough room it continues by itself.
    let container = json!({"name": "logs", "args": ["x"]});
    rig.patch("llm-training", &json!({"spec": {"template": {"spec": {"containers": [container]}}}}));
    taken_over(&rig);
    rig.eventually("the policy reports it", || (rig.condition("llm", "Degraded") == "False AsExpected").then_some(()));
    changed_once(&rig, "d-1", 40);
}

#[test]
fn a_decision_that_expires_while_nothing_can_be_written_reports_why_it_waited() {
    let _peace = in_peace();
    let rig = enforced("expires");
    let before = generation(&rig);
    let answer = Answer::Refused { code: 500, retry_after: None };
    rig.proxy().interfere(fault(Method::PATCH, SETS, answer, usize::MAX));
    rig.stop_clock();
    let mut decision = rig.decision("d-1", ControllerAction::Decrease, threads(&rig, 40));
    decision.expires = decision.time.plus_seconds(1.0);
    rig.decide(&decision);
    rig.eventually("it is tried", || patches(&rig.proxy().passed()).iter().any(|patch| patch.faulty).then_some(()));
    rig.let_clock_run();
    let refused = rig.outcome("d-1", ActuationOutcome::Refused);
    assert!(refused.reason.contains("expired") && refused.reason.contains("the proxy says 500"), "{}", refused.reason);
    rig.proxy().heal();
    assert_eq!(generation(&rig), before);
    // Later changes are not delayed by it.
    changed_once(&rig, "d-2", 45);
}

#[test]
fn requests_that_get_no_answer_hold_nothing_up_for_ever() {
    let _peace = in_peace();
    let mut rig = Rig::behind_proxy("silent");
    rig.apply(&without_pods());
    rig.apply(&energy_policy("Enforce"));
    let silent = |method, path, times| fault(method, path, Answer::Nothing, times);
    rig.proxy().interfere(silent(Method::PATCH, SETS, 1));
    rig.proxy().interfere(silent(Method::POST, "/events", 1));
    rig.start(120.0);
    // The take-over is the first patch.
    taken_over(&rig);
    rig.proxy().interfere(silent(Method::PATCH, SETS, 1));
    changed_once(&rig, "d-1", 40);
    rig.eventually("Events of it are written", || {
        let events = rig.kubectl(&["get", "events.events.k8s.io", "-o", "json"]);
        (events.contains("applied") && events.contains("all processes are ready")).then_some(())
    });
    assert_eq!(rig.proxy().left(), 0);
}

#[test]
fn a_target_that_cannot_be_read_at_first_is_read_later() {
    let _peace = in_peace();
    let mut rig = Rig::behind_proxy("unread");
    rig.apply(&without_pods());
    rig.start(120.0);
    // It did not opt in when it was listed, so a policy that comes later has it read by itself.
    for (method, code) in [(Method::GET, 500), (Method::GET, 403), (Method::PATCH, 403)] {
        let answer = Answer::Refused { code, retry_after: None };
        rig.proxy().interfere(fault(method, "/statefulsets/llm-training", answer, 2));
    }
    rig.apply(&energy_policy("Enforce"));
    taken_over(&rig);
    assert_eq!(rig.proxy().left(), 0);
}

#[test]
fn an_actuator_that_starts_while_the_api_server_answers_nobody_goes_on_once_it_answers() {
    let _peace = in_peace();
    let mut rig = Rig::behind_proxy("starts");
    rig.apply(&without_pods());
    rig.apply(&energy_policy("Enforce"));
    // Whether these kinds are served, which they are not here, is unknown for now.
    for group in ["/apis/kubeflow.org/", "/apis/jobset.x-k8s.io/"] {
        rig.proxy().interfere(fault(Method::GET, group, Answer::Refused { code: 500, retry_after: None }, usize::MAX));
    }
    rig.start(120.0);
    let mut asked = 0;
    rig.eventually("it asks again and again", || {
        asked += rig.proxy().passed().iter().filter(|request| request.faulty).count();
        (asked > 10).then_some(())
    });
    assert!(rig.published().is_none(), "it acts before it knows everything");
    rig.proxy().heal();
    taken_over(&rig);
    changed_once(&rig, "d-1", 40);
}

#[test]
fn a_resource_that_is_refused_is_asked_for_ever_less_often() {
    let _peace = in_peace();
    let mut rig = Rig::behind_proxy("refused-list");
    rig.apply(&without_pods());
    rig.apply(&energy_policy("Enforce"));
    rig.proxy().interfere(fault(Method::GET, "/jobs", Answer::Refused { code: 403, retry_after: None }, usize::MAX));
    rig.start(120.0);
    std::thread::sleep(Duration::from_secs(12));
    let asked: Vec<_> = rig.proxy().passed().into_iter().filter(|request| request.path.ends_with("/jobs")).collect();
    // 0.2 s, doubled, and up to as much again by chance: six to eight in this time.
    assert!((3..=10).contains(&asked.len()), "{} times in 12 s", asked.len());
}

#[test]
fn watches_that_break_off_or_have_run_out_miss_nothing() {
    let _peace = in_peace();
    let rig = enforced("watches");
    let paused = |paused: bool| {
        rig.eventually("the pause is seen", || rig.published().filter(|workload| workload.paused == paused));
    };
    let answers = [
        None,
        Some(Answer::Gone),
        Some(Answer::Refused { code: 410, retry_after: None }),
        Some(Answer::Refused { code: 500, retry_after: None }),
    ];
    for answer in answers {
        for (what, value) in [("eadt.dev/paused=true", true), ("eadt.dev/paused-", false)] {
            if let Some(answer) = &answer {
                for path in ["/statefulsets", "/energypolicies"] {
                    let path = path.to_owned();
                    rig.proxy().interfere(Fault { method: Method::GET, path, watch: true, answer: answer.clone(), times: 1 });
                }
            }
            rig.proxy().cut_watches();
            rig.kubectl(&["annotate", "statefulset", "llm-training", what]);
            paused(value);
            rig.eventually("the watches went wrong", || (rig.proxy().left() == 0).then_some(()));
        }
    }
    changed_once(&rig, "d-1", 40);
    // The deletion of a policy without a watch is noticed, too.
    for path in ["/statefulsets", "/energypolicies"] {
        let path = path.to_owned();
        rig.proxy().interfere(Fault { method: Method::GET, path, watch: true, answer: Answer::Gone, times: 1 });
    }
    rig.proxy().cut_watches();
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    let set = rig.eventually("everything is as before", || {
        let set = rig.set("llm-training");
        let annotations = set["metadata"]["annotations"].as_object().unwrap();
        (!annotations.keys().any(|name| name.starts_with("eadt.dev/"))).then_some(set)
    });
    assert_eq!(environment(&set)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "50");
}

#[test]
fn a_rollout_whose_deadline_passed_while_nobody_looked_is_judged_by_how_it_ended() {
    let _peace = in_peace();
    let (mut rig, ahead) = (Rig::new("away"), Arc::new(AtomicU32::new(0)));
    let shift = ahead.clone();
    rig.clock = Arc::new(move || now().plus_seconds(shift.load(Ordering::SeqCst).into()));
    rig.apply(&training());
    rig.apply(&energy_policy("Enforce"));
    rig.start(300.0);
    rig.ready_with(&layout(6, 50, 2));
    taken_over(&rig);
    let before = generation(&rig);
    // While there is no room for another pod none that is replaced comes back.
    rig.apply(&json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": {"pods": "5"}},
    }));
    rig.eventually("the quota is counted", || {
        rig.kubectl(&["get", "resourcequota", "full", "-o", "jsonpath={.status.used}"]).contains("\"6\"").then_some(())
    });
    rig.change("d-1", ControllerAction::Decrease, threads(&rig, 40), ActuationOutcome::Applied);
    rig.stop();
    assert_eq!(rig.outcomes("d-1"), [ActuationOutcome::Applied], "a pod is missing");
    rig.kubectl(&["delete", "resourcequota", "full"]);
    rig.eventually("the controllers have finished", || {
        let set = rig.set("llm-training");
        let status = &set["status"];
        let all = |name: &str| status[name] == 6;
        let observed = status["observedGeneration"] == set["metadata"]["generation"];
        (observed && all("updatedReplicas") && all("readyReplicas") && all("replicas")).then_some(())
    });
    ahead.store(400, Ordering::SeqCst);
    rig.start(300.0);
    rig.outcome("d-1", ActuationOutcome::Ready);
    done_once(&rig, "d-1", 40, before);
}

#[test]
fn an_api_server_that_is_killed_and_an_etcd_that_is_restarted_delay_decisions_and_no_more() {
    let mut rig = Rig::new("outage");
    let _war = CONTROL_PLANE.write().unwrap_or_else(PoisonError::into_inner);
    rig.apply(&training());
    rig.apply(&energy_policy("Enforce"));
    rig.start(300.0);
    rig.ready_with(&layout(6, 50, 2));
    taken_over(&rig);
    let mut percentage = 40;
    let mut through = |component: Component, down: &dyn Fn(&Rig)| {
        let (before, id) = (generation(&rig), format!("d-{percentage}"));
        kubernetes().kill(component).unwrap();
        let began = Instant::now();
        let mut decision = rig.decision(&id, ControllerAction::Decrease, threads(&rig, percentage));
        decision.expires = decision.time.plus_seconds(1800.0);
        rig.decide(&decision);
        down(&rig);
        assert_eq!(rig.outcomes(&id), [], "nothing became of it meanwhile");
        kubernetes().start_again(component).unwrap();
        let away = began.elapsed();
        rig.outcome(&id, ActuationOutcome::Ready);
        done_once(&rig, &id, percentage, before);
        println!(
            "{component:?} away for {:.1} s, the change ready after {:.1} s",
            away.as_secs_f64(),
            began.elapsed().as_secs_f64()
        );
        percentage += 1;
    };
    through(Component::ApiServer, &|_| {});
    through(Component::Etcd, &|_| {});
    // For longer than a leader trusts itself; for minutes: `cargo xtask chaos api-server-away`.
    through(Component::ApiServer, &|rig| {
        let leading = rig.cluster().subscribe_leadership();
        let begun = Instant::now();
        while *leading.borrow() {
            assert!(begun.elapsed() < WITHIN, "it leads although it cannot know that it does");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    rig.stop();
}

#[test]
fn hundreds_of_workloads_are_watched_in_pages_changed_once_each_and_then_left_alone() {
    const COUNT: usize = 300;
    let _peace = in_peace();
    let mut rig = Rig::behind_proxy("hundreds");
    let sets: Api<StatefulSet> = Api::namespaced(rig.client.clone(), &rig.namespace);
    let policies: Api<EnergyPolicy> = Api::namespaced(rig.client.clone(), &rig.namespace);
    rig.runtime.block_on(async {
        let made = stream::iter(0..COUNT).map(|number| {
            let (sets, policies) = (sets.clone(), policies.clone());
            async move {
                let (mut set, mut policy) = (without_pods(), energy_policy("Enforce"));
                set["metadata"]["name"] = json!(format!("w-{number}"));
                policy["metadata"]["name"] = json!(format!("p-{number}"));
                policy["spec"]["targetRef"]["name"] = json!(format!("w-{number}"));
                sets.create(&PostParams::default(), &serde_json::from_value(set).unwrap()).await.unwrap();
                policies.create(&PostParams::default(), &serde_json::from_value(policy).unwrap()).await.unwrap();
            }
        });
        made.buffer_unordered(8).collect::<Vec<()>>().await;
    });
    rig.start(600.0);
    let all = || {
        let listed = rig.runtime.block_on(sets.list(&ListParams::default())).unwrap().items;
        listed.into_iter().map(|set| serde_json::to_value(set).unwrap()).collect::<Vec<_>>()
    };
    let until = |what: &str, look: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !look() {
            assert!(begun.elapsed() < 2 * WITHIN, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(500));
        }
    };
    until("all are taken over", &|| all().iter().all(|set| set["metadata"]["annotations"]["eadt.dev/taken-over"].is_string()));
    let generations = |sets: Vec<Value>| -> BTreeMap<String, u64> {
        let named = sets
            .iter()
            .map(|set| (set["metadata"]["name"].as_str().unwrap().to_owned(), set["metadata"]["generation"].as_u64().unwrap()));
        named.collect()
    };
    let before = generations(all());
    let published = || -> BTreeMap<String, Workload> {
        rig.layouts().into_iter().map(|workload| (workload.workload.clone(), workload)).collect()
    };
    until("all are published", &|| published().values().filter(|workload| workload.ready_time.is_some()).count() == COUNT);
    let now = (rig.clock)();
    for (name, present) in published() {
        let mut decision = rig_decision(&name, &present, now);
        decision.id = format!("d-{name}");
        rig.decide(&decision);
    }
    until("all are changed", &|| {
        rig.actuations().iter().filter(|actuation| actuation.outcome == ActuationOutcome::Ready).count() == COUNT
    });
    let mut outcomes: BTreeMap<String, Vec<ActuationOutcome>> = BTreeMap::new();
    for actuation in rig.actuations() {
        outcomes.entry(actuation.decision_id).or_default().push(actuation.outcome);
    }
    assert_eq!(outcomes.len(), COUNT);
    assert!(outcomes.values().all(|outcomes| *outcomes == [ActuationOutcome::Applied, ActuationOutcome::Ready]), "{outcomes:?}");
    let after = generations(all());
    assert!(before.iter().all(|(name, generation)| after[name] == generation + 1), "one generation each");

    let passed = rig.proxy().passed();
    let read = passed.iter().filter(|request| request.method == Method::GET && !request.is_watch());
    let mut pages = read.filter(|request| request.path.ends_with("/statefulsets"));
    assert!(pages.next().is_some_and(|first| !first.query.contains("continue=")));
    // A watch that a busy machine lost begins anew with another list.
    let further = pages.take_while(|page| page.query.contains("continue=")).count();
    assert_eq!(1 + further, COUNT / 100, "the list came in pages");
    // Once everything is reported, only the lease is left to look after.
    until("silence", &|| rig.proxy().passed().iter().all(|request| request.path.contains("/leases")));
}

fn rig_decision(name: &str, present: &Workload, now: eadt_schemas::EventTime) -> eadt_schemas::v1::Decision {
    eadt_schemas::v1::Decision {
        workload: name.into(),
        time: now,
        action: ControllerAction::Decrease,
        reason: "the test wants it".into(),
        from: present.layout.clone(),
        to: Layout { mps_thread_percentage: Some(40), ..present.layout.clone() },
        generation: Some(present.generation),
        restarts: true,
        expires: now.plus_seconds(600.0),
        ..eadt_schemas::v1::Decision::default()
    }
}
