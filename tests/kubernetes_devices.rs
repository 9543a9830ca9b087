//! Power caps on a real API server: asked of the agents of the nodes, answered by them, withdrawn. In the first test the agents' answers
//! are simulated; in the second a real agent holds a GPU library of the tests' own.

use crate::actuator;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use actuator::agents::{answer, cap, history, intents, nodes, outgoing, sees_all_pods};
use actuator::kinds::{define, every_right_was_used, report};
use actuator::{Rig, WITHIN, energy_policy, layout, now, training};
use eadt_agent::{AgentDependencies, AgentError, AgentSummary, LazyBus, RawSettings};
use eadt_bus::Bus;
use eadt_nvml::fake::{FakeLibrary, FakeMps, FakeSettings};
use eadt_schemas::Topic;
use eadt_schemas::v1::{
    ActuationOutcome, ControllerAction, DeviceHolders, DeviceIntent, DeviceState, HeldDevice, Layout, PodName, SettingOutcome,
};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use eadt_tests::kubernetes::proxy::{Answer, Fault, Passed};
use http::Method;
use serde_json::{Value, json};

/// The node's collector reports which pods hold which GPU.
fn hold(rig: &Rig, node: &str, gpus: &[(&str, Vec<String>)]) {
    let name = |name: &String| {
        let workload = name.starts_with("llm-training-").then(|| rig.workload());
        PodName { namespace: rig.namespace.clone(), name: name.clone(), workload }
    };
    let held = |(gpu, pods): &(&str, Vec<String>)| HeldDevice {
        device: (*gpu).to_owned(),
        gpu_model: Some("NVIDIA A100-SXM4-80GB".into()),
        default_power_limit_watts: Some(400.0),
        pods: pods.iter().map(name).collect(),
    };
    // Of pods that have only just come a report has nothing, and this one is not repeated.
    std::thread::sleep(Duration::from_secs(3));
    let devices = gpus.iter().map(held).collect();
    let event = DeviceHolders { time: now(), node: node.to_owned(), devices, unplaced: Vec::new() };
    let mut producer = rig.log.producer("collectors").unwrap();
    producer.send(outgoing(Topic::DeviceHolders, node, &event)).unwrap();
    assert!(producer.flush(WITHIN).unwrap());
}

/// Starts another tenant's pod on a node, with a GPU.
fn intrude(rig: &Rig, node: &str) {
    rig.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"},
        "spec": {"nodeName": node, "containers": [
            {"name": "c", "image": "example.invalid/c:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        ]},
    }));
}

/// The job's pods on a node.
fn on(pods: &[Value], node: &str) -> Vec<String> {
    let there = pods.iter().filter(|pod| pod["spec"]["nodeName"] == node);
    there.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// Waits until exactly these nodes are asked for so much by this decision.
fn asked(rig: &Rig, nodes: &BTreeSet<String>, decision: &str, watts: f64) {
    rig.eventually(&format!("{watts} W are asked for"), || {
        let standing = intents(rig);
        let right = |intent: &DeviceIntent| {
            let devices = intent.devices.as_deref().unwrap_or_default();
            let [device] = devices else { return false };
            let whole = device.device.is_none() && device.power_limit_watts == Some(watts);
            whole && intent.decision_id == decision && intent.time_to_live_seconds > 0.0
        };
        (standing.keys().eq(nodes) && standing.values().all(right)).then_some(())
    });
}

fn withdrawn(rig: &Rig) {
    rig.eventually("the intents are withdrawn", || intents(rig).is_empty().then_some(()));
}

fn uids(pods: &[Value]) -> BTreeSet<String> {
    pods.iter().map(|pod| pod["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
}

/// The node of the test with a real agent. Every test has nodes of its own: who else holds GPUs there matters.
const NODE: &str = "gpu-7";

/// A job whose pods run on these nodes, its policy, and the actuator, which sees all pods.
fn started(mut rig: Rig, nodes: &[&str]) -> Rig {
    sees_all_pods(&rig);
    let mut job = training();
    let there = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]});
    job["spec"]["template"]["spec"]["affinity"] =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [there]}}});
    rig.apply(&job);
    let mut policy = energy_policy("Enforce");
    policy["spec"]["bounds"]["powerLimitWatts"] = json!({"min": 100, "max": 600});
    policy["spec"]["bounds"]["smClockMegahertz"] = json!({"min": 500, "max": 1900});
    rig.apply(&policy);
    rig.start(60.0);
    rig.ready_with(&layout(6, 50, 2));
    rig
}

#[test]
fn a_cap_is_asked_of_the_agents_of_the_jobs_nodes_and_withdrawn_with_its_policy() {
    let mut rig = started(Rig::new("devices"), &["gpu-0", "gpu-1", "gpu-2", "gpu-3"]);
    let pods = rig.pods();
    let nodes = nodes(&rig);
    let spec = rig.set("llm-training")["spec"].clone();

    let refused = rig.change("d-1", ControllerAction::Decrease, cap(300.0), ActuationOutcome::Refused);
    assert!(refused.reason.contains("no agent has reported"), "{refused:?}");
    answer(&rig, &nodes, SettingOutcome::Untouched, "");
    // Reports are read before the decisions that follow them.
    let refused = rig.change("d-2", ControllerAction::Decrease, cap(240.0), ActuationOutcome::Refused);
    assert!(refused.reason.contains("from 250 to 700 W, not 240"), "{refused:?}");
    assert_eq!(intents(&rig), BTreeMap::new(), "nobody is asked for what is refused");

    rig.change("d-3", ControllerAction::Decrease, cap(300.0), ActuationOutcome::Applied);
    asked(&rig, &nodes, "d-3", 300.0);
    assert_eq!(
        rig.outcomes("d-3"),
        [ActuationOutcome::Applied],
        "it is ready when the agents report it: {:#?}\n{:#}",
        rig.actuations(),
        rig.set("llm-training")
    );
    answer(&rig, &nodes, SettingOutcome::Held, "");
    let ready = rig.outcome("d-3", ActuationOutcome::Ready);
    assert_eq!(ready.layout, Layout { power_limit_watts: Some(300.0), ..layout(6, 50, 2) });

    rig.ready_with(&ready.layout);
    rig.change("d-4", ControllerAction::Increase, cap(350.0), ActuationOutcome::Applied);
    asked(&rig, &nodes, "d-4", 350.0);
    answer(&rig, &nodes, SettingOutcome::Refused, "agent.power_limits is off");
    let back = rig.outcome("d-4", ActuationOutcome::RolledBack);
    assert!(back.reason.contains("agent.power_limits is off"), "{back:?}");
    rig.ready_with(&ready.layout);
    asked(&rig, &nodes, "d-4", 300.0);
    assert_eq!((uids(&rig.pods()), &rig.set("llm-training")["spec"]), (uids(&pods), &spec), "no pod was touched");

    // Another actuator asks for the same: nothing is withdrawn in between, and a pause is seen by it.
    rig.stop();
    let withdrawals = |rig: &Rig| history(rig).iter().filter(|(_, intent)| intent.is_none()).count();
    let before = withdrawals(&rig);
    rig.start(60.0);
    asked(&rig, &nodes, "d-4", 300.0);
    assert_eq!(withdrawals(&rig), before, "nothing is withdrawn in between");
    rig.patch("llm-training", &json!({"metadata": {"annotations": {"eadt.dev/paused": "true"}}}));
    withdrawn(&rig);
    rig.patch("llm-training", &json!({"metadata": {"annotations": {"eadt.dev/paused": null}}}));
    asked(&rig, &nodes, "d-4", 300.0);

    // A pod of another tenant on one of the nodes: its GPUs are not only the job's any more.
    let shared = nodes.first().unwrap().clone();
    intrude(&rig, &shared);
    withdrawn(&rig);
    let refused = rig.change("d-5", ControllerAction::Increase, cap(400.0), ActuationOutcome::Refused);
    assert!(refused.reason.contains("/other holds GPUs of node"), "{refused:?}");
    // Unless the workloads of the GPUs are known.
    let gpu = format!("GPU-{shared}");
    hold(&rig, &shared, &[(&gpu, on(&pods, &shared)), ("GPU-other", vec!["other".into()])]);
    rig.eventually("the job's own GPU is asked for, and the other nodes as they were", || {
        let standing = intents(&rig);
        let devices = |intent: &DeviceIntent| -> Vec<_> {
            intent.devices.iter().flatten().map(|device| (device.device.clone(), device.power_limit_watts)).collect()
        };
        let right =
            |(node, intent): (&String, &DeviceIntent)| devices(intent) == [((*node == shared).then(|| gpu.clone()), Some(300.0))];
        (standing.keys().eq(&nodes) && standing.iter().all(right)).then_some(())
    });
    rig.eventually("it is published what boards it runs on", || {
        let published = rig.published()?;
        (published.gpu_model.as_deref() == Some("NVIDIA A100-SXM4-80GB") && published.gpu_power_limit_watts == Some(400.0))
            .then_some(())
    });
    hold(&rig, &shared, &[(&gpu, [on(&pods, &shared), vec!["other".into()]].concat())]);
    withdrawn(&rig);
    rig.kubectl(&["delete", "pod", "other", "--grace-period=0", "--force"]);
    asked(&rig, &nodes, "d-4", 300.0);

    rig.kubectl(&["delete", "epol", "llm"]);
    withdrawn(&rig);
    rig.eventually("its marks are gone", || {
        rig.set("llm-training")["metadata"]["annotations"]["eadt.dev/applied"].is_null().then_some(())
    });
    assert_eq!(uids(&rig.pods()), uids(&pods), "no pod was touched");
}

/// Requests for pods since the last call.
fn for_pods(rig: &Rig) -> Vec<Passed> {
    rig.proxy().passed().into_iter().filter(|request| request.path.ends_with("/pods")).collect()
}

#[test]
fn a_cap_that_is_held_asks_nothing_of_the_api_server_and_misses_nothing() {
    let rig = started(Rig::behind_proxy("rest"), &["gpu-4", "gpu-5", "gpu-6"]);
    assert!(for_pods(&rig).iter().all(|request| !request.is_watch()), "who has no caps does not pay for them");
    let first = nodes(&rig);
    answer(&rig, &first, SettingOutcome::Untouched, "");
    rig.change("d-1", ControllerAction::Decrease, cap(300.0), ActuationOutcome::Applied);
    asked(&rig, &first, "d-1", 300.0);
    answer(&rig, &first, SettingOutcome::Held, "");
    rig.outcome("d-1", ActuationOutcome::Ready);

    // More than two of the rounds in which everything is looked at.
    let quiet = |rig: &Rig| {
        let rest = |request: &Passed| request.path.contains("/leases");
        rig.eventually("everything is reported", || {
            std::thread::sleep(Duration::from_secs(2));
            rig.proxy().passed().iter().all(rest).then_some(())
        });
        std::thread::sleep(Duration::from_secs(35));
        let passed = rig.proxy().passed().into_iter().filter(|request| !rest(request));
        let (watches, others): (Vec<_>, Vec<_>) = passed.partition(Passed::is_watch);
        assert!(others.is_empty(), "{} requests in 35 s: {others:#?}", others.len());
        // The API server ends each after some minutes.
        let paths: BTreeSet<_> = watches.iter().map(|watch| &watch.path).collect();
        assert_eq!(paths.len(), watches.len(), "{watches:#?}");
    };
    quiet(&rig);

    // Another tenant comes and goes without a watch, for each way in which the watch ended.
    let place = first.first().unwrap();
    for answer in [None, Some(Answer::Gone), Some(Answer::Refused { code: 410, retry_after: None })] {
        let cut = || {
            if let Some(answer) = &answer {
                let path = "/api/v1/pods".to_owned();
                rig.proxy().interfere(Fault { method: Method::GET, path, watch: true, answer: answer.clone(), times: 1 });
            }
            rig.proxy().cut_watches();
        };
        cut();
        intrude(&rig, place);
        withdrawn(&rig);
        cut();
        rig.kubectl(&["delete", "pod", "other", "--grace-period=0", "--force"]);
        asked(&rig, &first, "d-1", 300.0);
        assert_eq!(rig.proxy().left(), 0);
    }

    // Pods that go to other nodes have the cap follow.
    rig.kubectl(&["cordon", place]);
    let moved = on(&rig.pods(), place);
    rig.kubectl(&[&["delete", "pod", "--wait=false"], &*moved.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    let second = rig.eventually("its pods are elsewhere", || {
        let nodes: BTreeSet<_> = rig.pods().iter().map(|pod| pod["spec"]["nodeName"].as_str().map(str::to_owned)).collect();
        let nodes: Option<BTreeSet<String>> = nodes.into_iter().collect();
        nodes.filter(|nodes| rig.pods().len() == 6 && !nodes.contains(place))
    });
    asked(&rig, &second, "d-1", 300.0);
    rig.kubectl(&["uncordon", place]);
    answer(&rig, &second, SettingOutcome::Held, "");
    quiet(&rig);

    rig.kubectl(&["delete", "epol", "llm"]);
    withdrawn(&rig);
    rig.eventually("its marks are gone", || {
        rig.set("llm-training")["metadata"]["annotations"]["eadt.dev/applied"].is_null().then_some(())
    });
    rig.proxy().passed();
    rig.proxy().cut_watches();
    rig.eventually("the others are watched again", || rig.proxy().passed().iter().any(Passed::is_watch).then_some(()));
    std::thread::sleep(Duration::from_secs(2));
    assert!(for_pods(&rig).is_empty(), "nobody watches pods any more");
}

/// The agent of a node, in this process.
struct Agent {
    stop: Shutdown,
    task: tokio::task::JoinHandle<Result<AgentSummary, AgentError>>,
}

impl Agent {
    fn start(rig: &Rig, node: &str, fake: &FakeLibrary, state: &Path, allow: impl Fn(&mut RawSettings)) -> Self {
        let mut raw = RawSettings::default();
        raw.topics.prefix = "t.".into();
        raw.agent.node = Some(node.into());
        state.clone_into(&mut raw.agent.state_dir);
        raw.agent.library_path = Some(fake.library());
        raw.agent.check_seconds = 0.05;
        allow(&mut raw);
        let (bus, stop): (Arc<dyn Bus>, _) = (Arc::new(rig.log.clone()), Shutdown::new());
        let log = LazyBus::new(move || Ok(bus.clone()));
        let environment = AgentDependencies::new(Some(log), MetricsRegistry::default(), HealthRegistry::default(), stop.clone());
        let settings = raw.validate("host").unwrap();
        Self { stop, task: rig.runtime.spawn(eadt_agent::run(settings, environment)) }
    }

    fn stop(self, rig: &Rig) {
        self.stop.cancel();
        let summary = rig.runtime.block_on(self.task).unwrap().unwrap();
        assert!(summary.unrestored.is_empty(), "{summary:?}");
    }
}

/// Waits until every GPU has these settings: power cap in milliwatts, bound of the clock in MHz.
fn set_to(rig: &Rig, fake: &FakeLibrary, power_milliwatts: u32, lock_mhz: u32) {
    let wanted = FakeSettings { power_milliwatts, lock_mhz, ..FakeSettings::default() };
    rig.eventually(&format!("{wanted:?}"), || (0..4).all(|gpu| fake.settings(gpu) == wanted).then_some(()));
}

/// Waits until the agent has published what its devices take: until then nothing is asked of it.
fn await_device_states(rig: &Rig) {
    rig.eventually("the agent has spoken", || {
        let last = rig.read::<DeviceState>(Topic::DeviceStates).pop()?;
        (!last.stopped && !last.devices.is_empty()).then_some(())
    });
}

#[test]
fn a_real_agent_holds_what_is_decided_and_puts_everything_back() {
    let mut rig = started(Rig::new("agent"), &[NODE]);
    let (fake, state) = (FakeLibrary::new(""), tempfile::tempdir().unwrap());
    let untouched = FakeSettings::default();
    let as_before = |rig: &Rig| set_to(rig, &fake, untouched.power_milliwatts, untouched.lock_mhz);
    let pods = uids(&rig.pods());
    let agent = Agent::start(&rig, NODE, &fake, state.path(), |_| {});
    await_device_states(&rig);
    let refused = rig.change("d-1", ControllerAction::Decrease, cap(150.0), ActuationOutcome::Refused);
    assert!(refused.reason.contains("from 200 to 700 W, not 150"), "{refused:?}");
    let both = Layout { sm_clock_mhz: Some(1417.0), ..cap(400.0) };
    let ready = rig.change("d-2", ControllerAction::Decrease, both, ActuationOutcome::Ready);
    assert_eq!(ready.layout, Layout { power_limit_watts: Some(400.0), sm_clock_mhz: Some(1417.0), ..layout(6, 50, 2) });
    // The library knows 1410 MHz, and nothing between it and 1417.
    set_to(&rig, &fake, 400_000, 1410);
    rig.ready_with(&ready.layout);

    // An agent that goes away puts everything back; the next one gets what is still in force.
    agent.stop(&rig);
    as_before(&rig);
    let agent = Agent::start(&rig, NODE, &fake, state.path(), |_| {});
    set_to(&rig, &fake, 400_000, 1410);

    rig.kubectl(&["annotate", "statefulset", "llm-training", "eadt.dev/paused=true"]);
    as_before(&rig);
    rig.kubectl(&["annotate", "statefulset", "llm-training", "eadt.dev/paused-"]);
    set_to(&rig, &fake, 400_000, 1410);
    rig.eventually("it goes on", || rig.published().filter(|workload| !workload.paused));

    // Another job's GPUs on the same node are left alone.
    let own = on(&rig.pods(), NODE);
    intrude(&rig, NODE);
    as_before(&rig);
    hold(&rig, NODE, &[("GPU-fake-0", own), ("GPU-fake-1", vec!["other".into()])]);
    rig.eventually("only the job's GPU is capped", || {
        let capped = FakeSettings { power_milliwatts: 400_000, lock_mhz: 1410, ..untouched };
        (fake.settings(0) == capped && (1..4).all(|gpu| fake.settings(gpu) == untouched)).then_some(())
    });
    rig.kubectl(&["delete", "pod", "other", "--grace-period=0", "--force"]);
    set_to(&rig, &fake, 400_000, 1410);

    // It refuses settings that its node does not allow, and the change is rolled back.
    agent.stop(&rig);
    let agent = Agent::start(&rig, NODE, &fake, state.path(), |raw| raw.agent.clocks = false);
    set_to(&rig, &fake, 400_000, 0);
    await_device_states(&rig);
    let back = rig.change(
        "d-3",
        ControllerAction::Decrease,
        Layout { sm_clock_mhz: Some(1200.0), ..cap(350.0) },
        ActuationOutcome::RolledBack,
    );
    assert!(back.reason.contains("agent.clocks"), "{back:?}");
    set_to(&rig, &fake, 400_000, 0);

    rig.kubectl(&["delete", "epol", "llm"]);
    as_before(&rig);
    assert_eq!(uids(&rig.pods()), pods, "no pod was touched");
    rig.stop();
    agent.stop(&rig);
}

#[test]
fn gpus_of_jobs_that_cannot_be_changed_are_capped_and_only_their_annotations_written() {
    define("trainer.kubeflow.org", "v1alpha1", "TrainJob");
    define("jobset.x-k8s.io", "v1alpha2", "JobSet");
    let of_set = |set: &str| {
        let template = json!({
            "metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": set}},
            "spec": {
                "restartPolicy": "Never", "nodeSelector": {"kubernetes.io/hostname": "gpu-9"},
                "containers": [{
                    "name": "train", "image": "example.invalid/train:1", "env": [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "50"}],
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                }],
            },
        });
        json!({"parallelism": 2, "completions": 2, "template": template})
    };
    let sets_job = json!({"name": "train", "replicas": 1, "template": {"spec": of_set("llm-training")}});
    let train = json!({"runtimeRef": {"name": "torch-distributed"}, "trainer": {
        "numNodes": 2, "env": [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "50"}], "resourcesPerNode": {"limits": {"nvidia.com/gpu": "1"}},
    }});
    let ready = json!({"replicatedJobsStatus": [{"name": "train", "ready": 1, "active": 2, "succeeded": 0, "failed": 0, "suspended": 0}]});
    for (api_version, kind, spec, status) in [
        ("batch/v1", "Job", of_set("none"), None),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", json!({"suspend": false, "replicatedJobs": [sets_job]}), Some(ready)),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", train, None),
    ] {
        let mut rig = Rig::new(&format!("capped-{}", kind.to_lowercase()));
        sees_all_pods(&rig);
        rig.apply(&json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "llm-training"}, "spec": spec}));
        if let Some(status) = status {
            report(&rig, kind, &status);
        }
        if kind != "Job" {
            // Its operator's.
            rig.apply(&json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "llm-training-train-0"}, "spec": of_set("llm-training"),
            }));
        }
        let mut policy = energy_policy("Enforce");
        policy["spec"]["targetRef"] = json!({"apiVersion": api_version, "kind": kind, "name": "llm-training"});
        policy["spec"]["bounds"]["powerLimitWatts"] = json!({"min": 100, "max": 600});
        rig.apply(&policy);
        rig.start(120.0);
        rig.ready_with(&Layout { replicas: Some(2), mps_thread_percentage: Some(50), ..Layout::default() });
        let object = || -> Value { serde_json::from_str(&rig.kubectl(&["get", kind, "llm-training", "-o", "json"])).unwrap() };
        let untouched = object();
        rig.eventually("its pods run", || {
            let pods = rig.pods();
            (pods.len() == 2 && pods.iter().all(|pod| pod["status"]["phase"] == "Running")).then_some(())
        });
        answer(&rig, &nodes(&rig), SettingOutcome::Untouched, "");
        rig.change("d-1", ControllerAction::SetPowerLimit, cap(300.0), ActuationOutcome::Applied);
        rig.eventually("its agents are asked", || (!intents(&rig).is_empty()).then_some(()));
        answer(&rig, &nodes(&rig), SettingOutcome::Held, "");
        rig.outcome("d-1", ActuationOutcome::Ready);
        assert_eq!(object()["spec"], untouched["spec"]);
        rig.kubectl(&["delete", "energypolicy", "llm"]);
        withdrawn(&rig);
        rig.eventually("its annotations are gone", || {
            (object()["metadata"]["annotations"] == untouched["metadata"]["annotations"]).then_some(())
        });
        every_right_was_used(&rig, kind);
        rig.stop();
        // The next one has the node for itself.
        rig.kubectl(&["delete", "jobs", "--all", "--cascade=foreground"]);
    }
}

/// Another node with a real agent.
const MPS_NODE: &str = "gpu-8";

/// A job of one process on the node of the test about MPS defaults, and its policy, which turns nothing.
fn tenant(rig: &Rig, name: &str, percentage: u32) {
    let mut job = training();
    job["metadata"]["name"] = json!(name);
    job["spec"]["selector"]["matchLabels"] = json!({"app": name});
    // News of its pods and of itself come apart: that a pod is replaced is seen before it is gone.
    job["spec"]["template"]["metadata"] = json!({"labels": {"app": name}, "annotations": {"test.eadt.dev/ends-after": "1s"}});
    job["spec"]["replicas"] = json!(1);
    let pod = &mut job["spec"]["template"]["spec"];
    pod["nodeSelector"] = json!({"kubernetes.io/hostname": MPS_NODE});
    // It asks for no share of its own.
    pod["containers"][1]["env"] = json!([{"name": "WORLD_SIZE", "value": "1"}, {"name": "LOCAL_WORLD_SIZE", "value": "1"}]);
    rig.apply(&job);
    rig.apply(&json!({
        "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": name},
        "spec": {
            "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
            "updateMode": "Enforce", "mpsDefaultThreadPercentage": percentage,
        },
    }));
}

#[test]
fn a_node_has_the_mps_default_that_all_its_jobs_policies_name() {
    let mut rig = Rig::new("mps");
    sees_all_pods(&rig);
    let (fake, mps, state) = (FakeLibrary::new(""), FakeMps::new("100.0"), tempfile::tempdir().unwrap());
    let agent = Agent::start(&rig, MPS_NODE, &fake, state.path(), |raw| {
        raw.agent.mps.enabled = true;
        raw.agent.mps.pipe_directories = vec![mps.pipe_directory()];
        raw.agent.mps.control_program = mps.program();
    });
    let is = |rig: &Rig, what: &str, default: f64| {
        rig.eventually(what, || (mps.default().parse() == Ok(default)).then_some(()));
    };
    let degraded = |rig: &Rig, name: &str, word: &str| {
        let why = || {
            let policy = rig.kubectl(&["get", "epol", name, "-o", "json"]);
            let policy: Value = serde_json::from_str(&policy).unwrap();
            let conditions = policy["status"]["conditions"].as_array()?.clone();
            let degraded = conditions.into_iter().find(|condition| condition["type"] == "Degraded")?;
            let why = format!("{}: {}", degraded["reason"].as_str()?, degraded["message"].as_str()?);
            why.contains(word).then_some(())
        };
        rig.eventually(&format!("{name} shows {word}"), why);
    };
    tenant(&rig, "first", 40);
    rig.start(60.0);
    await_device_states(&rig);
    is(&rig, "its job is alone there", 40.0);
    degraded(&rig, "first", "AsExpected");
    // While the only pod there is replaced it stays.
    rig.kubectl(&["rollout", "restart", "statefulset", "first"]);
    rig.kubectl(&["rollout", "status", "statefulset", "first"]);
    assert_eq!(mps.set_defaults(), ["40"]);

    // One that names another, then the same.
    tenant(&rig, "second", 60);
    is(&rig, "they do not agree", 100.0);
    degraded(&rig, "first", "MpsDefaultNotSet: the MPS default of node gpu-8 is not requested: the policy of");
    degraded(&rig, "second", "names 60 %, not 40 %");
    rig.kubectl(&["patch", "epol", "second", "--type=merge", "-p", r#"{"spec": {"mpsDefaultThreadPercentage": 40}}"#]);
    is(&rig, "they agree", 40.0);
    let asked = intents(&rig).remove(MPS_NODE).unwrap();
    let tenants: Vec<_> = asked.mps_tenants.unwrap().into_iter().map(|tenant| tenant.workload).collect();
    assert_eq!(tenants, ["first", "second"].map(|name| format!("{}/{name}", rig.namespace)));
    degraded(&rig, "second", "AsExpected");

    // A pause of one ends it for all, and so does a pod without a workload.
    rig.kubectl(&["annotate", "statefulset", "second", "eadt.dev/paused=true"]);
    is(&rig, "it is paused", 100.0);
    rig.kubectl(&["annotate", "statefulset", "second", "eadt.dev/paused-"]);
    is(&rig, "it goes on", 40.0);
    intrude(&rig, MPS_NODE);
    is(&rig, "somebody else is there", 100.0);
    degraded(&rig, "first", "another workload holds GPUs there, too (pod");
    rig.kubectl(&["delete", "pod", "other", "--grace-period=0", "--force"]);
    is(&rig, "it is gone", 40.0);

    // An agent that may not is reported, and deleting the policies ends it.
    agent.stop(&rig);
    is(&rig, "the agent has stopped", 100.0);
    let agent = Agent::start(&rig, MPS_NODE, &fake, state.path(), |_| {});
    degraded(&rig, "first", "agent.mps.enabled");
    rig.kubectl(&["delete", "epol", "--all"]);
    withdrawn(&rig);
    rig.stop();
    agent.stop(&rig);
}
