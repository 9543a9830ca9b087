//! The actuator on a real API server with real controllers: the seed's flow, and what goes wrong on the way.

use crate::actuator;

use std::sync::Arc;
use std::time::{Duration, Instant};

use actuator::{NODES, Rig, crashes, energy_policy, environment, layout, now, owners, training};
use eadt_cluster::{Cluster, ClusterRemedy, PolicyEdit, PolicyWriter, WorkloadChange};
use eadt_schemas::v1::{
    ActuationOutcome, ChangeValidation, ControllerAction, Decision, Directive, Layout, Origin, Precision, TrainingProgress,
    UpdateMode,
};
use eadt_schemas::{EventTime, EventType, Topic};
use serde_json::{Value, json};

/// A job that is enforced, and its actuator.
fn enforced(prefix: &str) -> Rig {
    let mut rig = Rig::new(prefix);
    rig.apply(&training());
    rig.apply(&energy_policy("Enforce"));
    rig.start(120.0);
    rig.ready_with(&layout(6, 50, 2));
    rig
}

#[test]
fn the_seeds_flow_runs_on_a_real_api_server_and_everything_is_as_before_once_the_policy_is_gone() {
    let mut rig = enforced("flow");
    let before = {
        rig.eventually("its fields are taken over", || {
            rig.set("llm-training")["metadata"]["annotations"]["eadt.dev/taken-over"].as_str().map(str::to_owned)
        })
    };
    assert!(before.contains("kubectl-client-side-apply"), "{before}");

    let mut id = 0;
    let mut change = |action, to: (u32, u32, u32)| {
        id += 1;
        rig.change(&format!("d-{id}"), action, layout(to.0, to.1, to.2), ActuationOutcome::Ready);
        let set = rig.set("llm-training");
        let env = environment(&set);
        let expected = [to.1.to_string(), to.0.to_string(), to.2.to_string()];
        let names = ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "WORLD_SIZE", "LOCAL_WORLD_SIZE"];
        assert_eq!(names.map(|name| env[name].clone()), expected);
        assert_eq!(set["spec"]["replicas"], to.0);
        assert_eq!(env["DATA"], "/data", "what is not EADT's stays");
        rig.ready_with(&layout(to.0, to.1, to.2));
    };
    change(ControllerAction::Decrease, (6, 40, 2));
    change(ControllerAction::ScaleReplicas, (9, 35, 3));
    change(ControllerAction::Increase, (9, 45, 3));
    change(ControllerAction::Increase, (3, 100, 1));
    change(ControllerAction::Revert, (9, 45, 3));

    // Verified savings add up over all processes that report them.
    let evidence = |before: f64| [("gain_ratio".to_owned(), 0.1), ("before_joules_per_sample".to_owned(), before)].into();
    for (concerns, before, saved) in [("d-4", 4.0, "10.0 %"), ("d-5", 3.6, "19.0 %")] {
        let decision = rig.decision(&format!("kept-{concerns}"), ControllerAction::Maintain, layout(9, 45, 3));
        let origin = Origin::Simulated;
        let concerns = Some(concerns.to_owned());
        rig.decide(&Decision { validation: ChangeValidation::Kept, concerns, evidence: evidence(before), origin, ..decision });
        let status = rig.eventually("it is reported", || {
            let status = rig.policy("llm")["status"].clone();
            (status["effect"]["summary"] == format!("{saved} (simulated)")).then_some(status)
        });
        assert_eq!(status["effect"]["joulesPerSampleBefore"].as_f64(), Some(4.0));
        rig.stop();
        rig.start(120.0);
    }
    let history = rig.policy("llm")["status"]["history"].clone();
    let past: Vec<_> =
        history.as_array().unwrap().iter().map(|past| format!("{} {}", past["decisionId"], past["outcome"])).collect();
    let names = [(5, "Kept"), (4, "Kept"), (3, "Applied"), (2, "Applied"), (1, "Applied")];
    assert_eq!(past, names.map(|(number, outcome)| format!("\"d-{number}\" \"{outcome}\"")));

    // No decision made more than one generation, and every one is reported once.
    for decision in 1..=5 {
        assert_eq!(rig.outcomes(&format!("d-{decision}")), [ActuationOutcome::Applied, ActuationOutcome::Ready]);
    }
    let events = rig.kubectl(&["get", "events.events.k8s.io", "-o", "json"]);
    assert!(events.contains("(decision d-2)") && events.contains("eadt.dev/actuator"), "{events}");

    rig.kubectl(&["delete", "energypolicy", "llm"]);
    let set = rig.given_back();
    assert_eq!(set["spec"]["replicas"], 6);
    assert_eq!(environment(&set)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "50");
    assert_eq!(environment(&set)["WORLD_SIZE"], "6");
    let owners = set["metadata"]["managedFields"].to_string();
    assert!(!owners.contains("eadt-") && owners.contains("kubectl-client-side-apply"), "{owners}");
    // The object's author applies it again without a conflict.
    rig.apply(&training());
    rig.stop();
}

/// A job, or a policy of it, under another name.
fn named(mut object: serde_json::Value, name: &str, target: &str) -> serde_json::Value {
    object["metadata"]["name"] = json!(name);
    if object["kind"] == "EnergyPolicy" {
        object["spec"]["targetRef"]["name"] = json!(target);
    } else {
        // Pods do not matter here.
        object["spec"]["replicas"] = json!(0);
        let labels = json!({"app": name});
        object["spec"]["selector"]["matchLabels"] = labels.clone();
        object["spec"]["template"]["metadata"]["labels"] = labels;
    }
    object
}

#[test]
fn what_cannot_be_is_reported_by_a_condition_and_nothing_is_touched() {
    let mut rig = Rig::new("conditions");
    let job = |name: &str| named(training(), name, name);
    let policy = |name: &str, target: &str| named(energy_policy("Enforce"), name, target);
    // An environment that EADT cannot read, and a mark that is none of its own.
    let mut foreign = job("foreign");
    foreign["spec"]["template"]["spec"]["containers"][1]["env"][1]["value"] = json!("50%");
    let mut marked = job("marked");
    marked["metadata"]["annotations"] = json!({"eadt.dev/applied": "by hand"});
    let mut nothing_asked = policy("nothing-asked", "plain");
    nothing_asked["metadata"]["annotations"] = json!({"eadt.dev/approved": " "});
    let mut unknown = policy("unknown", "plain-two");
    unknown["spec"]["targetRef"] = json!({"apiVersion": "example.com/v1", "kind": "Oven", "name": "plain-two"});
    // A job that another one with a policy manages.
    rig.apply(&job("outer"));
    let outer = rig.set("outer");
    let mut inner = job("inner");
    inner["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "outer", "uid": outer["metadata"]["uid"], "controller": true,
    }]);
    let jobs = [foreign, marked, job("plain"), job("twice"), inner];
    for job in &jobs {
        rig.apply(job);
    }
    let names = ["outer", "foreign", "marked", "plain", "twice", "inner"];
    let state =
        |rig: &Rig| names.map(|name| rig.set(name)).map(|set| (set["spec"].clone(), set["metadata"]["annotations"].clone()));
    let before = state(&rig);
    let policies = [
        policy("missing", "nobody"),
        unknown,
        policy("first", "twice"),
        policy("second", "twice"),
        policy("of-outer", "outer"),
        policy("of-inner", "inner"),
        policy("of-foreign", "foreign"),
        policy("of-marked", "marked"),
        nothing_asked,
    ];
    for policy in &policies {
        rig.apply(policy);
    }
    rig.start(120.0);
    for (name, kind, expected) in [
        ("missing", "TargetFound", "False TargetNotFound"),
        ("unknown", "TargetFound", "False UnsupportedKind"),
        ("first", "Ready", "False TargetConflict"),
        ("second", "Ready", "False TargetConflict"),
        ("of-outer", "Ready", "False OwnerConflict"),
        ("of-inner", "Ready", "False OwnerConflict"),
        ("of-foreign", "Ready", "False WorkloadNotUnderstood"),
        ("of-marked", "Ready", "False WorkloadNotUnderstood"),
        ("nothing-asked", "Ready", "False MalformedAnnotation"),
    ] {
        rig.eventually(&format!("{name}: {kind} is {expected}, not {:?}", rig.condition(name, kind)), || {
            (rig.condition(name, kind) == expected).then_some(())
        });
        let conditions = rig.policy(name)["status"]["conditions"].as_array().unwrap().clone();
        let found = conditions.iter().find(|condition| condition["type"] == kind).unwrap();
        assert!(found["message"].as_str().unwrap().len() > 20, "{name}: it names what, and of what: {found}");
    }
    assert_eq!(state(&rig), before, "nothing is touched");

    // The label alone lets a workload be observed, and no more.
    rig.kubectl(&["label", "statefulset", "twice", "eadt.dev/observe=true"]);
    for policy in ["first", "second"] {
        rig.kubectl(&["delete", "energypolicy", policy]);
    }
    let name = format!("{}/twice", rig.namespace);
    rig.eventually("it is observed", || {
        let last = rig.layouts().into_iter().rfind(|workload| workload.workload == name)?;
        (last.mode == eadt_schemas::v1::UpdateMode::Observe).then_some(())
    });
    // Between the two deletions one policy was alone, and in force.
    rig.eventually("nothing of it stays", || (state(&rig) == before).then_some(()));
}

#[test]
fn a_rollout_that_never_becomes_ready_is_rolled_back_with_its_broken_pod() {
    let mut rig = Rig::new("never-ready");
    let mut set = training();
    set["spec"]["template"]["metadata"]["annotations"] =
        json!({"test.eadt.dev/crash-when": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40"});
    rig.apply(&set);
    rig.apply(&energy_policy("Enforce"));
    rig.start(1.0);
    rig.ready_with(&layout(6, 50, 2));
    let back = rig.runs_out("d-1", ControllerAction::Decrease, layout(6, 40, 2), |pods| pods.iter().any(crashes));
    assert!(back.reason.contains("CrashLoopBackOff"), "{}", back.reason);
    rig.ready_with(&layout(6, 50, 2));
    assert_eq!(rig.outcomes("d-1"), [ActuationOutcome::Applied, ActuationOutcome::RolledBack]);
    rig.give_rollouts(120.0);
    // It can be changed again.
    rig.change("d-2", ControllerAction::Decrease, layout(6, 45, 2), ActuationOutcome::Ready);
    rig.eventually("the policy reports it", || (rig.condition("llm", "Degraded") == "False AsExpected").then_some(()));
}

/// One process a node is allowed here.
#[test]
fn a_rollout_whose_pods_find_no_node_goes_back_and_reports_the_schedulers_reason() {
    let mut rig = Rig::new("pending");
    let mut set = training();
    set["spec"]["template"]["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "llm"}}},
    ]}});
    rig.apply(&set);
    rig.apply(&energy_policy("Enforce"));
    rig.start(1.0);
    rig.ready_with(&layout(6, 50, 2));
    let no_node = format!("0/{NODES} nodes are available");
    // Reported of those that wait, once nothing else is wrong with any pod.
    let pending = |pods: &[Value]| {
        let conditions = |pod: &Value| pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = |pod: &Value| conditions(pod).iter().any(|is| is["type"] == "Ready" && is["status"] == "True");
        let waits = |pod: &Value| {
            let message = |is: &Value| is["message"].as_str().is_some_and(|text| text.contains(&no_node));
            conditions(pod).iter().any(|is| is["type"] == "PodScheduled" && is["status"] == "False" && message(is))
        };
        let stays = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_null() && (ready(pod) || waits(pod));
        pods.len() == 12 && pods.iter().all(stays) && pods.iter().any(waits)
    };
    // More than there are nodes.
    let back = rig.runs_out("d-1", ControllerAction::ScaleReplicas, layout(12, 25, 4), pending);
    for word in ["cannot be scheduled", &no_node] {
        assert!(back.reason.contains(word), "{word}: {}", back.reason);
    }
    rig.ready_with(&layout(6, 50, 2));
    let set = rig.set("llm-training");
    assert_eq!((&set["spec"]["replicas"], &*environment(&set)["WORLD_SIZE"]), (&json!(6), "6"));
    assert_eq!(rig.outcomes("d-1"), [ActuationOutcome::Applied, ActuationOutcome::RolledBack]);
}

#[test]
fn what_the_update_strategy_keeps_from_pods_is_refused_before_anything_is_touched() {
    let rolling = |partition: u32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
    for (strategy, why) in
        [(json!({"type": "OnDelete"}), "its update strategy is OnDelete"), (rolling(2), "set the partition to 0")]
    {
        let mut rig = Rig::new("strategy");
        let mut set = training();
        set["spec"]["updateStrategy"] = strategy;
        rig.apply(&set);
        rig.apply(&energy_policy("Enforce"));
        rig.start(120.0);
        rig.ready_with(&layout(6, 50, 2));
        let before = rig.set("llm-training");
        let refused = rig.change("d-1", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Refused);
        assert!(refused.reason.contains(why), "{}", refused.reason);
        assert_eq!(rig.set("llm-training")["spec"], before["spec"], "nothing was touched");
        // Once its owner lets changes reach all pods, they do.
        let held = rig.published().unwrap().generation;
        rig.patch("llm-training", &json!({"spec": {"updateStrategy": rolling(0)}}));
        rig.eventually("that is seen", || {
            rig.published().filter(|workload| workload.generation > held && workload.ready_time.is_some())
        });
        rig.change("d-2", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Ready);
        rig.ready_with(&layout(6, 40, 2));
    }
}

#[test]
fn nothing_is_touched_in_mode_recommend_until_somebody_approves() {
    let mut rig = Rig::new("recommend");
    rig.apply(&training());
    rig.apply(&energy_policy("Recommend"));
    rig.start(120.0);
    rig.ready_with(&layout(6, 50, 2));
    let untouched = rig.set("llm-training");
    rig.change("d-1", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Recommended);
    rig.eventually("the recommendation is shown", || {
        let policy = rig.policy("llm");
        (policy["status"]["recommendation"]["summary"] == "threads 50 % → 40 %").then_some(())
    });
    let set = rig.set("llm-training");
    assert_eq!((&set["metadata"]["annotations"], &set["spec"]), (&untouched["metadata"]["annotations"], &untouched["spec"]));
    let editor = rig.policy_editor();
    let change = |change: PolicyEdit, by: &str| editor.edit_policy(&rig.workload(), "StatefulSet", &change, by);
    let refused = change(PolicyEdit::Approve("d-0".into()), "alice").unwrap_err();
    assert!(
        refused.remedy == ClusterRemedy::Refused && refused.detail.contains("the current recommendation is d-1"),
        "{refused}"
    );
    assert_eq!(change(PolicyEdit::Approve("d-1".into()), "alice"), Ok(true));
    rig.outcome("d-1", ActuationOutcome::Ready);
    rig.ready_with(&layout(6, 40, 2));
    let applied = rig.outcome("d-1", ActuationOutcome::Applied);
    assert_eq!(applied.reason, "approved by eadt-page:alice");
    // Once: the next one is only recommended again.
    rig.change("d-2", ControllerAction::Decrease, layout(6, 30, 2), ActuationOutcome::Recommended);
    assert_eq!(rig.published().unwrap().layout, layout(6, 40, 2));
    rig.stop();
}

fn set_mode(shown: UpdateMode, mode: UpdateMode) -> PolicyEdit {
    PolicyEdit::SetMode { mode, shown }
}

#[test]
fn who_paused_and_who_set_the_mode_is_published() {
    let mut rig = Rig::new("terms");
    rig.apply(&training());
    rig.apply(&energy_policy("Enforce"));
    rig.start(120.0);
    rig.ready_with(&layout(6, 50, 2));
    let published = rig.published().unwrap();
    assert_eq!((&published.mode_set_by, &published.pause_set_by), (&Some("kubectl-client-side-apply".to_owned()), &None));
    let editor = rig.policy_editor();
    let workload = rig.workload();
    let change = |change: PolicyEdit, by: &str| editor.edit_policy(&workload, "StatefulSet", &change, by);
    let terms = |rig: &Rig, mode: UpdateMode, paused: bool, by: (&str, &str)| {
        rig.eventually("the terms are published", || {
            let state = rig.published()?;
            let found = (state.mode_set_by.as_deref()?, state.pause_set_by.as_deref()?);
            (state.mode == mode && state.paused == paused && found == by).then_some(())
        });
    };
    let (alice, bob) = ("eadt-page:alice", "eadt-page:bob@example.org");
    assert_eq!(change(set_mode(UpdateMode::Enforce, UpdateMode::Recommend), "alice"), Ok(true));
    assert_eq!(change(set_mode(UpdateMode::Enforce, UpdateMode::Recommend), "bob@example.org"), Ok(false), "it was so already");
    assert_eq!(change(PolicyEdit::Pause, "bob@example.org"), Ok(true));
    terms(&rig, UpdateMode::Recommend, true, (alice, bob));
    assert_eq!(change(PolicyEdit::Resume, "alice"), Ok(true));
    terms(&rig, UpdateMode::Recommend, false, (alice, alice));
    // A change outside of the page is named by the field manager that made it.
    rig.kubectl(&["annotate", "statefulset", "llm-training", "eadt.dev/paused=true", "--overwrite"]);
    terms(&rig, UpdateMode::Recommend, true, (alice, "kubectl-annotate"));
    let stale = change(set_mode(UpdateMode::Observe, UpdateMode::Enforce), "alice").unwrap_err();
    assert!(stale.detail.contains("changed just now"), "{stale}");
    let unknown = editor.edit_policy(&workload, "Job", &PolicyEdit::Pause, "alice").unwrap_err();
    assert!(unknown.detail.contains("is for Job llm-training"), "{unknown}");
    rig.kubectl(&["patch", "energypolicy", "llm", "--type=merge", "-p", r#"{"spec":{"bounds":null}}"#]);
    let refused = change(set_mode(UpdateMode::Recommend, UpdateMode::Enforce), "alice").unwrap_err();
    assert!(refused.remedy == ClusterRemedy::Refused && refused.detail.contains("bounds"), "{refused}");
    rig.stop();
}

#[test]
fn somebody_who_takes_a_field_back_is_named_and_not_fought() {
    const THREADS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    let threads = |percentage: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "llm-training"},
            "spec": {"template": {"spec": {"containers": [
                {"name": "train", "env": [{"name": THREADS, "value": percentage}]}
            ]}}},
        })
    };
    let mut rig = enforced("gitops");
    rig.change("d-1", ControllerAction::ScaleReplicas, layout(9, 35, 3), ActuationOutcome::Ready);
    rig.apply_as("gitops", "llm-training", &threads("60"));
    rig.ready_with(&layout(9, 60, 3));
    let named = format!("{THREADS} of container train");
    rig.await_taken_back(&named, "gitops");
    let refused = rig.change("d-2", ControllerAction::Decrease, layout(9, 45, 3), ActuationOutcome::Refused);
    assert!(refused.reason.contains("gitops") && refused.reason.contains("took fields back"), "{}", refused.reason);
    assert_eq!(environment(&rig.set("llm-training"))[THREADS], "60");
    let last = |rig: &Rig| rig.policy("llm")["status"]["lastDecision"].clone();
    // A decision without an outcome is no news, nor is one to leave everything as it is: the second would not be written after the first.
    rig.eventually("the policy shows the refusal", || (last(&rig)["outcome"] == "Refused").then_some(()));
    // Neither a decision to leave everything as it is nor another process makes it good.
    rig.decide(&rig.decision("d-3", ControllerAction::Maintain, layout(9, 60, 3)));
    rig.eventually("the policy shows the decision", || (last(&rig)["decisionId"] == "d-3").then_some(()));
    rig.await_taken_back(&named, "gitops");
    rig.stop();
    rig.start(120.0);
    rig.eventually("another process reports it", || {
        (rig.condition("llm", "TelemetryFresh") == "Unknown NoWindowYet").then_some(())
    });
    rig.await_taken_back(&named, "gitops");

    // EADT's fields are restored; fields that others took back stay theirs.
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    let set = rig.given_back();
    let env = environment(&set);
    assert_eq!((&set["spec"]["replicas"], &*env["WORLD_SIZE"], &*env["LOCAL_WORLD_SIZE"]), (&json!(6), "6", "2"));
    assert_eq!((&*env[THREADS], owners(&set, THREADS)), ("60", vec!["gitops".to_owned()]));
    assert_eq!(owners(&set, "f:replicas"), ["kubectl-client-side-apply"]);

    // With the policy made again it is EADT's; also if that is so soon that nothing was given back before.
    rig.apply(&energy_policy("Enforce"));
    let as_expected = |rig: &Rig| {
        rig.eventually("nobody took anything back", || (rig.condition("llm", "Degraded") == "False AsExpected").then_some(()));
    };
    as_expected(&rig);
    rig.ready_with(&layout(6, 60, 2));
    rig.change("d-4", ControllerAction::Decrease, layout(6, 45, 2), ActuationOutcome::Ready);
    rig.apply_as("gitops", "llm-training", &threads("55"));
    rig.ready_with(&layout(6, 55, 2));
    rig.await_taken_back(&named, "gitops");
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    rig.apply(&energy_policy("Enforce"));
    as_expected(&rig);
    rig.change("d-5", ControllerAction::Decrease, layout(6, 50, 2), ActuationOutcome::Ready);
    assert_eq!(owners(&rig.set("llm-training"), THREADS), ["eadt-actuator"]);
}

#[test]
fn a_pause_holds_at_the_next_step() {
    let rig = enforced("pause");
    rig.kubectl(&["annotate", "statefulset", "llm-training", "eadt.dev/paused=true"]);
    rig.eventually("it is paused", || rig.published().filter(|workload| workload.paused));
    let refused = rig.change("d-1", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Refused);
    assert!(refused.reason.contains("paused"), "{}", refused.reason);
    rig.eventually("the policy reports it", || (rig.condition("llm", "Ready") == "False Paused").then_some(()));
    rig.kubectl(&["annotate", "statefulset", "llm-training", "eadt.dev/paused-"]);
    rig.eventually("it goes on", || rig.published().filter(|workload| !workload.paused));
    rig.change("d-2", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Ready);

    // The same for all workloads of its namespace.
    rig.kubectl(&["annotate", "namespace", &rig.namespace, "eadt.dev/paused=true"]);
    rig.eventually("it is paused", || rig.published().filter(|workload| workload.paused));
    let refused = rig.change("d-3", ControllerAction::Decrease, layout(6, 35, 2), ActuationOutcome::Refused);
    assert!(refused.reason.contains("paused"), "{}", refused.reason);
    assert_eq!(environment(&rig.set("llm-training"))["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "40");
    rig.kubectl(&["annotate", "namespace", &rig.namespace, "eadt.dev/paused-"]);
    rig.eventually("it goes on", || rig.published().filter(|workload| !workload.paused));
    rig.change("d-4", ControllerAction::Decrease, layout(6, 35, 2), ActuationOutcome::Ready);
}

#[test]
fn an_autoscaler_on_the_same_object_is_not_fought_either() {
    let rig = enforced("autoscaler");
    rig.change("d-1", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Ready);
    // There are no metrics, but the bounds hold without them.
    rig.apply(&json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "llm"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm-training"},
            "minReplicas": 7, "maxReplicas": 8,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        },
    }));
    rig.eventually("what it made is not understood", || {
        (rig.condition("llm", "Ready") == "False WorkloadNotUnderstood").then_some(())
    });
    let present = rig.eventually("it is only observed", || {
        rig.published().filter(|workload| workload.mode == eadt_schemas::v1::UpdateMode::Observe)
    });
    let mut decision = rig.decision("d-2", ControllerAction::Decrease, layout(6, 30, 2));
    decision.from = present.layout;
    rig.decide(&decision);
    rig.outcome("d-2", ActuationOutcome::Refused);
    assert_eq!(rig.set("llm-training")["spec"]["replicas"], 7);
    rig.await_taken_back("replicas", "kube-controller-manager");
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    let set = rig.given_back();
    let env = environment(&set);
    assert_eq!((&*env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], &*env["WORLD_SIZE"]), ("50", "6"));
    assert_eq!((&set["spec"]["replicas"], owners(&set, "f:replicas")), (&json!(7), vec!["kube-controller-manager".to_owned()]));
}

#[test]
fn what_quotas_and_disruption_budgets_do_not_allow_is_refused_before_anything_is_touched() {
    let rig = enforced("limits");
    let generation = || rig.set("llm-training")["metadata"]["generation"].clone();
    let before = generation();
    rig.apply(&json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "team"}, "spec": {"hard": {"requests.nvidia.com/gpu": "8"}},
    }));
    rig.eventually("the quota is counted", || {
        let used = rig.kubectl(&["get", "resourcequota", "team", "-o", "jsonpath={.status.used}"]);
        used.contains("\"6\"").then_some(())
    });
    let refused = rig.change("d-1", ControllerAction::ScaleReplicas, layout(9, 35, 3), ActuationOutcome::Refused);
    for word in ["quota team", "allows 8 of requests.nvidia.com/gpu", "6 are in use"] {
        assert!(refused.reason.contains(word), "{word}: {}", refused.reason);
    }
    rig.kubectl(&["delete", "resourcequota", "team"]);
    // A quota that counts other pods does not matter, and one that counts these does.
    for (name, scope, used) in [("short", "Terminating", "\"0\""), ("best-effort", "BestEffort", "\"6\"")] {
        rig.apply(&json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": {"hard": {"pods": "6"}, "scopes": [scope]},
        }));
        rig.eventually("the quota is counted", || {
            let now = rig.kubectl(&["get", "resourcequota", name, "-o", "jsonpath={.status.used}"]);
            now.contains(used).then_some(())
        });
    }
    let refused = rig.change("d-1-scoped", ControllerAction::ScaleReplicas, layout(9, 35, 3), ActuationOutcome::Refused);
    assert!(refused.reason.contains("quota best-effort allows 6 of pods, 6 are in use"), "{}", refused.reason);
    rig.kubectl(&["delete", "resourcequota", "best-effort"]);
    rig.apply(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "calm"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "llm"}}},
    }));
    let refused = rig.change("d-2", ControllerAction::ScaleReplicas, layout(9, 35, 3), ActuationOutcome::Refused);
    assert!(refused.reason.contains("PodDisruptionBudget calm lets 1 of 6 pods"), "{}", refused.reason);
    assert_eq!(generation(), before, "nothing was touched");
    // One pod after another is what both allow.
    rig.change("d-3", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Ready);
    rig.kubectl(&["delete", "poddisruptionbudget", "calm"]);
    rig.ready_with(&layout(6, 40, 2));
    rig.change("d-4", ControllerAction::ScaleReplicas, layout(9, 35, 3), ActuationOutcome::Ready);
    // A budget that came since does not bar the way back.
    rig.apply(&json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "calm"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "llm"}}},
    }));
    rig.ready_with(&layout(9, 35, 3));
    rig.change("d-5", ControllerAction::Revert, layout(6, 40, 2), ActuationOutcome::Ready);
}

#[test]
fn decisions_that_are_stale_expired_or_for_another_layout_change_nothing() {
    let rig = enforced("stale");
    let first = rig.decision("d-1", ControllerAction::Decrease, layout(6, 40, 2));
    let mut expired = rig.decision("d-2", ControllerAction::Decrease, layout(6, 40, 2));
    expired.expires = expired.time.plus_seconds(-1.0);
    rig.decide(&expired);
    assert!(rig.outcome("d-2", ActuationOutcome::Refused).reason.contains("expired"));
    rig.decide(&first);
    rig.outcome("d-1", ActuationOutcome::Ready);
    rig.ready_with(&layout(6, 40, 2));
    let generation = rig.set("llm-training")["metadata"]["generation"].clone();
    // Seen again, made for the generation before, and older than the last one.
    rig.decide(&first);
    let mut stale = rig.decision("d-3", ControllerAction::Decrease, layout(6, 30, 2));
    stale.generation = stale.generation.map(|generation| generation - 1);
    rig.decide(&stale);
    assert!(rig.outcome("d-3", ActuationOutcome::Refused).reason.contains("generation"));
    let mut older = rig.decision("d-4", ControllerAction::Decrease, layout(6, 30, 2));
    older.time = first.time.plus_seconds(-1.0);
    rig.decide(&older);
    assert!(rig.outcome("d-4", ActuationOutcome::Refused).reason.contains("not newer"));
    assert_eq!(rig.set("llm-training")["metadata"]["generation"], generation);
    assert_eq!(rig.outcomes("d-1"), [ActuationOutcome::Applied, ActuationOutcome::Ready]);
}

#[test]
fn an_actuator_whose_clock_is_an_hour_off_changes_nothing_and_one_with_a_right_clock_takes_over() {
    for (skew_seconds, why) in [(3600.0, "expired"), (-3600.0, "clock")] {
        let mut rig = Rig::new("skew");
        rig.clock = Arc::new(move || now().plus_seconds(skew_seconds));
        rig.apply(&training());
        rig.apply(&energy_policy("Enforce"));
        rig.start(120.0);
        rig.ready_with(&layout(6, 50, 2));
        let generation = rig.set("llm-training")["metadata"]["generation"].clone();
        // Decisions as the processor publishes them, with a right clock; one is new, the other expired long ago.
        for (id, age_seconds) in [("fresh", 0.0), ("old", 1800.0)] {
            let time = now().plus_seconds(-age_seconds);
            let decision = rig.decision(id, ControllerAction::Decrease, layout(6, 40, 2));
            rig.decide(&Decision { time, expires: time.plus_seconds(300.0), ..decision });
            let refused = rig.outcome(id, ActuationOutcome::Refused);
            assert!(refused.reason.contains(why), "{skew_seconds} s: {}", refused.reason);
        }
        assert_eq!(rig.set("llm-training")["metadata"]["generation"], generation);
        // The leader is elected without wall clocks.
        rig.freeze();
        rig.clock = Arc::new(now);
        rig.start(120.0);
        rig.change("right", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Ready);
    }
}

/// The job reports when its last checkpoint was complete.
fn checkpoint(rig: &Rig, checkpoint_time: EventTime) {
    let (time, workload) = (now(), rig.workload());
    let progress = TrainingProgress {
        time,
        workload: workload.clone(),
        collector: "node-1".into(),
        checkpoint_time: Some(checkpoint_time),
        ..TrainingProgress::default()
    };
    let id = format!("p-{}", time.micros());
    rig.publish(Topic::TrainingProgress, EventType::TrainingProgress, &id, time, &workload, &progress);
}

#[test]
fn a_restart_waits_for_the_jobs_checkpoint_and_is_refused_where_none_comes() {
    let mut rig = Rig::new("checkpoint");
    rig.origin = Origin::Measured;
    rig.apply(&training());
    rig.apply(&energy_policy("Enforce"));
    rig.start(120.0);
    rig.ready_with(&layout(6, 50, 2));
    // A job that reports none is not waited for.
    rig.change("d-1", ControllerAction::Decrease, layout(6, 45, 2), ActuationOutcome::Ready);
    rig.ready_with(&layout(6, 45, 2));
    let generation = || rig.set("llm-training")["metadata"]["generation"].clone();
    let before = generation();

    checkpoint(&rig, now().plus_seconds(-600.0));
    rig.decide(&rig.decision("d-2", ControllerAction::Decrease, layout(6, 40, 2)));
    let asked = rig.eventually("the job is asked for a checkpoint", || rig.read::<Directive>(Topic::Directives).pop());
    assert_eq!((asked.workload, &*asked.decision_id, asked.checkpoint_now), (rig.workload(), "d-2", true));
    assert_eq!((generation(), rig.outcomes("d-2")), (before, vec![]), "nothing is touched before it is there");
    checkpoint(&rig, now());
    rig.outcome("d-2", ActuationOutcome::Ready);
    rig.ready_with(&layout(6, 40, 2));
    assert_eq!(rig.read::<Directive>(Topic::Directives).len(), 1, "it is asked once");
    assert_eq!(self::asked(&rig), None, "a restarted job does not take it for news");

    rig.stop_acting();
    rig.checkpoint_wait_seconds = 1.0;
    rig.act(60.0);
    checkpoint(&rig, now().plus_seconds(-600.0));
    let refused = rig.change("d-3", ControllerAction::Decrease, layout(6, 35, 2), ActuationOutcome::Refused);
    assert!(refused.reason.contains("none came within 1 s"), "{}", refused.reason);
    assert_eq!(environment(&rig.set("llm-training"))["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "40");
}

/// The job reports its precision and its frozen blocks; as any job, more than once.
fn doing(rig: &Rig, precision: &str, frozen_prefix_layers: u32) {
    for _ in 0..2 {
        does(rig, precision, frozen_prefix_layers);
    }
}

fn does(rig: &Rig, precision: &str, frozen_prefix_layers: u32) {
    let (time, workload) = (now(), rig.workload());
    let progress = TrainingProgress {
        time,
        workload: workload.clone(),
        collector: "node-1".into(),
        precision: Some(precision.into()),
        frozen_prefix_layers: Some(frozen_prefix_layers),
        ..TrainingProgress::default()
    };
    let id = format!("p-{}", time.micros());
    rig.publish(Topic::TrainingProgress, EventType::TrainingProgress, &id, time, &workload, &progress);
}

/// Returns the request to the job, as a job that starts now would read it.
fn asked(rig: &Rig) -> Option<(Option<String>, Option<u32>, String)> {
    let directive: Option<Directive> = rig.last(Topic::Directives, &rig.workload());
    directive.map(|asked| (asked.precision, asked.frozen_prefix_layers, asked.decision_id))
}

#[test]
fn a_job_is_asked_for_precision_and_frozen_layers_and_where_it_does_not_follow_the_request_is_taken_back() {
    let mut rig = Rig::new("asked");
    rig.apply(&training());
    let mut policy = energy_policy("Enforce");
    policy["spec"]["bounds"]["precisions"] = json!(["bf16", "fp16"]);
    policy["spec"]["bounds"]["maxFrozenPrefixLayers"] = json!(12);
    rig.apply(&policy);
    rig.start(120.0);
    let plain = layout(6, 50, 2);
    rig.ready_with(&plain);
    let generation = rig.set("llm-training")["metadata"]["generation"].clone();
    let pods = rig.pods().len();

    let bf16 = Layout { precision: Some(Precision::Bf16), ..plain.clone() };
    rig.decide(&rig.decision("d-1", ControllerAction::SetPrecision, bf16.clone()));
    let request = rig.eventually("the job is asked", || asked(&rig));
    assert_eq!(request, (Some("bf16".into()), None, "d-1".into()));
    let message = rig.eventually("the status shows what is waited for", || {
        let policy = rig.policy("llm");
        let conditions = policy["status"]["conditions"].as_array()?;
        let progressing = conditions.iter().find(|condition| condition["type"] == "Progressing")?;
        progressing["message"].as_str().filter(|message| message.contains("job")).map(str::to_owned)
    });
    assert_eq!(message, "the job is asked for precision bf16, and has not reported it yet");
    doing(&rig, "fp16", 0);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(rig.outcomes("d-1"), [ActuationOutcome::Applied], "it is not ready before the job does it");
    // The next leader goes on waiting.
    rig.give_rollouts(120.0);
    let again = || {
        doing(&rig, "bf16", 0);
        rig.outcomes("d-1").contains(&ActuationOutcome::Ready).then_some(())
    };
    rig.eventually("the job has taken it up", again);
    rig.ready_with(&bf16);

    // A job that does something else: everything is as it was before that decision, and it reports why.
    rig.give_rollouts(1.0);
    rig.stop_clock();
    let frozen = Layout { frozen_prefix_layers: Some(8), ..bf16.clone() };
    rig.decide(&rig.decision("d-2", ControllerAction::FreezeLayers, frozen));
    rig.eventually("the job is asked for both", || asked(&rig).filter(|asked| asked.1 == Some(8) && asked.0.is_some()));
    doing(&rig, "bf16", 0);
    // Five times a second the actuator reads what jobs report.
    std::thread::sleep(Duration::from_secs(5));
    rig.let_clock_run();
    let back = rig.outcome("d-2", ActuationOutcome::RolledBack);
    assert!(back.reason.contains("8 frozen layers") && back.reason.contains("reports bf16 and 0 frozen"), "{}", back.reason);
    rig.eventually("the request is taken back", || asked(&rig).filter(|asked| asked.0.is_some() && asked.1.is_none()));
    rig.ready_with(&bf16);

    rig.give_rollouts(120.0);
    // Back to what it was started with: that it cannot report, and it is asked for nothing.
    rig.change("d-2b", ControllerAction::Revert, plain.clone(), ActuationOutcome::Ready);
    assert_eq!(asked(&rig), None);
    rig.ready_with(&plain);

    let more = Layout { frozen_prefix_layers: Some(13), ..plain.clone() };
    assert!(rig.change("d-3", ControllerAction::FreezeLayers, more, ActuationOutcome::Refused).reason.contains("above 12"));
    let wide = Layout { precision: Some(Precision::Fp32), ..plain.clone() };
    assert!(rig.change("d-4", ControllerAction::SetPrecision, wide, ActuationOutcome::Refused).reason.contains("bf16, fp16"));

    // Another actuator goes on with what is in force; a pause and the end of the policy end it.
    rig.give_rollouts(120.0);
    let fp16 = Layout { precision: Some(Precision::Fp16), ..plain };
    rig.decide(&rig.decision("d-5", ControllerAction::SetPrecision, fp16));
    rig.eventually("the job is asked for another one", || asked(&rig).filter(|asked| asked.0.as_deref() == Some("fp16")));
    doing(&rig, "fp16", 0);
    rig.outcome("d-5", ActuationOutcome::Ready);
    let set = rig.set("llm-training");
    assert_eq!((&set["metadata"]["generation"], rig.pods().len()), (&generation, pods), "no pod was touched");
    rig.kubectl(&["annotate", "statefulset", "llm-training", "eadt.dev/paused=true"]);
    rig.eventually("nothing is asked while it is paused", || asked(&rig).is_none().then_some(()));
    rig.kubectl(&["annotate", "statefulset", "llm-training", "eadt.dev/paused-"]);
    rig.eventually("it is asked again", || asked(&rig));
    rig.kubectl(&["delete", "energypolicy", "llm"]);
    rig.eventually("nothing is asked any more", || asked(&rig).is_none().then_some(()));
    rig.eventually("nothing of EADT's is left", || {
        rig.set("llm-training")["metadata"]["annotations"]["eadt.dev/applied"].is_null().then_some(())
    });
}

#[test]
fn a_second_actuator_takes_over_and_the_first_ones_late_writes_do_no_harm() {
    let mut rig = enforced("two");
    rig.change("d-1", ControllerAction::Decrease, layout(6, 40, 2), ActuationOutcome::Ready);
    rig.ready_with(&layout(6, 40, 2));
    let old = rig.cluster();
    let stale = WorkloadChange {
        workload: rig.workload(),
        decision_id: "late".into(),
        decision_time: (rig.clock)(),
        generation: rig.published().unwrap().generation,
        layout: layout(6, 30, 2),
        restarts: true,
        reverts: false,
        ready_within_seconds: 60.0,
        approved_by: None,
    };
    // It renews no more and gives nothing back, as if it was stopped by a signal.
    rig.freeze();
    let began = Instant::now();
    rig.start(60.0);
    let taken_over = began.elapsed();
    println!("taken over after {:.1} s", taken_over.as_secs_f64());
    // 15 s without a renewal, and the 2 s between two looks, are promised; the rest is for a busy machine.
    assert!(taken_over <= Duration::from_mins(1), "{taken_over:?}");
    rig.change("d-2", ControllerAction::Increase, layout(6, 45, 2), ActuationOutcome::Ready);
    let refused = std::thread::spawn(move || old.apply(&stale)).join().unwrap();
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(environment(&rig.set("llm-training"))["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "45");
}
