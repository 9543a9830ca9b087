//! Runs the program against a real API server like a new user: the seed's flow, decided by the processor from the power of
//! simulated GPUs under the pods that really run there.

use crate::support;

use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::tools;
use serde_json::{Value, json};
use support::{Running, eadt, signal};

/// The flow takes some 140 simulated minutes.
const SPEED: &str = "60";
const WITHIN: Duration = Duration::from_mins(10);

/// Processes, thread percentage, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`.
type Layout = (u64, String, String, String);

fn layout(replicas: u64, percentage: u32, local: u32) -> Layout {
    (replicas, percentage.to_string(), replicas.to_string(), local.to_string())
}

struct Place<'a> {
    kubernetes: &'a Kubernetes,
    namespace: String,
}

impl Place<'_> {
    fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubernetes.kubectl(&[&["-n", &*self.namespace], arguments].concat()).unwrap()
    }

    fn apply(&self, object: &Value) {
        let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        self.kubectl(&["apply", "-f", file.path().to_str().unwrap()]);
    }

    /// A job of two processes a GPU, and the policy that lets it be changed.
    fn job(&self, name: &str, percentage: &str, least_percentage: u32) {
        self.apply(&json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
            "spec": {
                "replicas": 6, "serviceName": name, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                        "name": "train", "image": "example.invalid/train:1",
                        "env": [
                            {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": percentage},
                            {"name": "WORLD_SIZE", "value": "6"}, {"name": "LOCAL_WORLD_SIZE", "value": "2"},
                        ],
                        "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    }]},
                },
            },
        }));
        self.apply(&json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": name},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name}, "updateMode": "Enforce",
                "controller": {"name": "matrix"},
                "bounds": {
                    "mpsThreadPercentage": {"min": least_percentage, "max": 100}, "replicas": {"min": 3, "max": 12},
                    "maxOversubscriptionPercentage": 200,
                },
                "cooldown": "0s", "restartBudget": {"perDay": 100},
                "training": {"globalBatchSize": 576, "backend": "gloo"},
            },
        }));
    }

    fn set(&self, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", "statefulset", name, "-o", "json"])).unwrap()
    }

    /// Every state of the jobs from now on: a layout may last for a few seconds only, in which a busy machine does not look.
    fn watch(&self) -> (Running, Receiver<Value>) {
        let mut command = Command::new(tools().unwrap().kubectl);
        command.args(["-n", &*self.namespace, "get", "statefulsets", "--watch", "-o", "json"]);
        command.env("KUBECONFIG", self.kubernetes.admin_kubeconfig()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut watch = Running(command.spawn().unwrap());
        let output = BufReader::new(watch.0.stdout.take().expect("it is piped"));
        // More than the jobs have states.
        let (sender, layouts) = sync_channel(100_000);
        std::thread::spawn(move || {
            let sets = serde_json::Deserializer::from_reader(output).into_iter::<Value>();
            for set in sets.map_while(Result::ok) {
                if sender.send(set).is_err() {
                    break;
                }
            }
        });
        (watch, layouts)
    }
}

fn read(set: &Value) -> Layout {
    let env = &set["spec"]["template"]["spec"]["containers"][0]["env"];
    let value = |at: usize| env[at]["value"].as_str().unwrap().to_owned();
    (set["spec"]["replicas"].as_u64().unwrap(), value(0), value(1), value(2))
}

/// The last change is in force with all its pods.
fn is_ready(set: &Value) -> bool {
    let mark = set["metadata"]["annotations"]["eadt.dev/applied"].as_str().unwrap_or("{}");
    serde_json::from_str::<Value>(mark).unwrap()["applied"]["ready_time"].is_string()
}

/// Notes the layout of a job that has all its pods.
fn note(set: &Value, names: [&str; 2], seen: &mut [Vec<Layout>; 2]) {
    let Some(job) = names.iter().position(|name| set["metadata"]["name"] == *name) else { return };
    let now = read(set);
    // The initial object has no mark.
    if seen[job].last() != Some(&now) && (seen[job].is_empty() || is_ready(set)) {
        println!("{} {now:?}", names[job]);
        seen[job].push(now);
    }
}

/// Whether the first steps are among the second, in their order.
fn within(expected: &[Layout], seen: &[Layout]) -> bool {
    let mut seen = seen.iter();
    expected.iter().all(|step| seen.any(|there| there == step))
}

/// The events of a topic, as the program's log holds them.
fn events(data: &Path, topic: &str, workload: &str) -> Vec<Value> {
    let (out, errors, good) =
        support::text(eadt(data, &["tail", topic, "--from-start", "--until-end", "--json", "--key", workload]));
    assert!(good, "{errors}");
    out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].clone()).collect()
}

#[test]
fn the_seeds_flow_is_decided_and_carried_out_on_a_real_cluster_that_is_then_as_before() {
    // One of its own: its jobs need up to 15 GPUs, and jobs of other tests stay where they are.
    let kubernetes = Kubernetes::start().unwrap();
    kubernetes.define(include_str!("../deploy/crds/energypolicies.yaml")).unwrap();
    let place = Place { kubernetes: &kubernetes, namespace: kubernetes.namespace("up").unwrap() };
    let names = ["llm-training", "pretraining"];
    place.job(names[0], "50", 35);
    place.job(names[1], "90", 25);
    let before = names.map(|name| place.set(name)["spec"].clone());
    let (_watch, states) = place.watch();
    let mut seen: [Vec<Layout>; 2] = Default::default();
    while seen.iter().any(Vec::is_empty) {
        note(&states.recv_timeout(WITHIN).unwrap(), names, &mut seen);
    }

    let data = tempfile::tempdir().unwrap();
    let scenario = data.path().join("flow.toml");
    std::fs::write(&scenario, include_str!("scenarios/seed_flow.toml").replace("NAMESPACE", &place.namespace)).unwrap();
    let flags = ["up", "--kubernetes", "--speed", SPEED, "--scenario", scenario.to_str().unwrap(), "--no-view", "--json"];
    let mut command = eadt(data.path(), &flags);
    command.env("KUBECONFIG", kubernetes.admin_kubeconfig());
    command.env("EADT_KUBERNETES__NAMESPACE", &place.namespace).env("EADT_KUBERNETES__ONLY_NAMESPACE", &place.namespace);
    // Simulated time runs fast, and pods start in real time: what is a minute there is an hour here.
    command.env("EADT_ACTUATOR__ROLLOUT_DEADLINE_SECONDS", "7200");
    let errors = std::fs::File::create(data.path().join("stderr")).unwrap();
    let mut running = Running(command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap());
    let log = || std::fs::read_to_string(data.path().join("stderr")).unwrap();

    let expected = [
        [layout(6, 50, 2), layout(6, 40, 2), layout(9, 35, 3), layout(12, 35, 4), layout(9, 35, 3), layout(9, 45, 3)].to_vec(),
        [layout(6, 90, 2), layout(3, 100, 1)].to_vec(),
    ];
    let began = Instant::now();
    while !(0..2).all(|job| within(&expected[job], &seen[job])) {
        match states.recv_timeout(Duration::from_millis(100)) {
            Ok(set) => note(&set, names, &mut seen),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("the watch ended"),
        }
        let ended = running.0.try_wait().unwrap();
        assert!(
            began.elapsed() < WITHIN && ended.is_none(),
            "{ended:?}\n{}\n{seen:#?}\n{}",
            log(),
            place.kubectl(&["get", "events"])
        );
    }
    println!("{}", place.kubectl(&["get", "energypolicies", "-o", "wide"]));

    for name in names {
        place.kubectl(&["delete", "energypolicy", name]);
    }
    let began = Instant::now();
    while names.iter().any(|name| place.set(name)["metadata"]["annotations"].to_string().contains("eadt.dev/")) {
        assert!(began.elapsed() < WITHIN, "not given back in {} s\n{}", WITHIN.as_secs(), log());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(names.map(|name| place.set(name)["spec"].clone()), before);
    signal(&running.0, "-INT");
    let status = running.0.wait().unwrap();
    assert!(status.success(), "{}", log());

    // Why each step was taken, and that what followed was measured under it.
    let workload = format!("{}/{}", place.namespace, names[0]);
    let decisions = events(data.path(), "decisions.v1", &workload);
    let steps: Vec<(&str, &str)> = decisions
        .iter()
        .map(|decision| (decision["action"].as_str().unwrap(), decision["validation"].as_str().unwrap()))
        .filter(|step| *step != ("maintain", "none") && step.1 != "pending")
        .collect();
    println!("{steps:?}");
    let mut all = steps.iter();
    for step in [
        ("decrease", "none"),
        ("maintain", "kept"),
        ("scale_replicas", "none"),
        ("maintain", "kept"),
        ("revert", "failed"),
        ("increase", "none"),
    ] {
        assert!(all.any(|there| *there == step), "{step:?} is not in its place in {steps:?}");
    }
    assert!(decisions.iter().all(|decision| decision["origin"] == "simulated"));
    let windows = events(data.path(), "efficiency.windows.v1", &workload);
    let watts = |layout: (u64, u64)| {
        let of = windows.iter().filter(|window| {
            (window["layout"]["replicas"].as_u64(), window["layout"]["mps_thread_percentage"].as_u64())
                == (Some(layout.0), Some(layout.1))
                && window["restarted"] == false
        });
        let watts: Vec<f64> = of.filter_map(|window| window["mean_power_per_gpu_watts"].as_f64()).collect();
        assert!(watts.len() >= 3, "{} windows of {layout:?}", watts.len());
        watts[..3].iter().sum::<f64>() / 3.0
    };
    assert!(watts((6, 40)) < 0.95 * watts((6, 50)), "fewer threads draw less: the plant follows the pods");
    let downtime = |actuation: &Value| actuation["downtime_seconds"].as_f64();
    let actuations = events(data.path(), "actuations.v1", &workload);
    assert!(actuations.iter().filter_map(downtime).filter(|seconds| *seconds > 0.0).count() >= 5, "{actuations:#?}");
    let idle = windows.iter().filter(|window| window["restarted"] == true).count();
    assert!(idle >= 5, "restarts show in {idle} windows");
}
