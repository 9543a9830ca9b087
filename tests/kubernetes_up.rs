//! The program against a real API server, as somebody who tries it would run it.

mod support;

use std::process::Stdio;
use std::time::{Duration, Instant};

use eadt_tests::Kubernetes;
use serde_json::{Value, json};
use support::{Running, eadt, signal};

const WITHIN: Duration = Duration::from_mins(3);

fn apply(kubernetes: &Kubernetes, namespace: &str, object: &Value) {
    let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
    std::fs::write(file.path(), object.to_string()).unwrap();
    kubernetes.kubectl(&["-n", namespace, "apply", "-f", file.path().to_str().unwrap()]).unwrap();
}

#[test]
fn up_changes_what_runs_on_a_real_cluster_and_lets_go_of_it() {
    let kubernetes = Kubernetes::shared();
    kubernetes.define(include_str!("../deploy/crds/energypolicies.yaml")).unwrap();
    let namespace = kubernetes.namespace("up").unwrap();
    apply(
        kubernetes,
        &namespace,
        &json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "llm-training"},
            "spec": {
                "replicas": 6, "serviceName": "llm", "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": "llm"}},
                "template": {
                    "metadata": {"labels": {"app": "llm"}},
                    "spec": {"terminationGracePeriodSeconds": 1, "containers": [{
                        "name": "train", "image": "example.invalid/train:1",
                        "env": [
                            {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "50"},
                            {"name": "WORLD_SIZE", "value": "6"}, {"name": "LOCAL_WORLD_SIZE", "value": "2"},
                        ],
                        "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    }]},
                },
            },
        }),
    );
    apply(
        kubernetes,
        &namespace,
        &json!({
            "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": "llm"},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm-training"}, "updateMode": "Enforce",
                "bounds": {
                    "mpsThreadPercentage": {"min": 25, "max": 100}, "replicas": {"min": 3, "max": 12},
                    "maxOversubscriptionPercentage": 200,
                },
                "training": {"globalBatchSize": 576, "backend": "gloo"},
            },
        }),
    );
    let data = tempfile::tempdir().unwrap();
    let mut command =
        eadt(data.path(), &["up", "--kubernetes", "--speed", "30", "--controller", "matrix", "--no-view", "--json"]);
    command.env("KUBECONFIG", kubernetes.admin_kubeconfig());
    command.env("EADT_KUBERNETES__NAMESPACE", &namespace).env("EADT_KUBERNETES__ONLY_NAMESPACE", &namespace);
    let errors = std::fs::File::create(data.path().join("stderr")).unwrap();
    let mut running = Running(command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap());
    let began = Instant::now();
    let get = |what: &str| kubernetes.kubectl(&["-n", &namespace, "get", what, "-o", "json"]).unwrap();
    let changed = loop {
        let set: Value = serde_json::from_str(&get("statefulset/llm-training")).unwrap();
        let mark = set["metadata"]["annotations"]["eadt.dev/applied"].as_str().unwrap_or_default().to_owned();
        if mark.contains("\"ready_time\":\"") {
            break set;
        }
        if began.elapsed() > WITHIN || running.0.try_wait().unwrap().is_some() {
            let log = std::fs::read_to_string(data.path().join("stderr")).unwrap();
            panic!("no change in {} s\n{log}\n{}", WITHIN.as_secs(), get("energypolicy/llm"));
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let env = changed["spec"]["template"]["spec"]["containers"][0]["env"].to_string();
    assert!(!env.contains("\"value\":\"50\"") || changed["spec"]["replicas"] != 6, "{env}");
    println!("changed after {:.1} s: {env}", began.elapsed().as_secs_f64());
    println!("{}", kubernetes.kubectl(&["-n", &namespace, "get", "energypolicies", "-o", "wide"]).unwrap());
    println!("{}", kubernetes.kubectl(&["-n", &namespace, "get", "events"]).unwrap());
    println!("{}", kubernetes.kubectl(&["-n", &namespace, "get", "energypolicy", "llm", "-o", "yaml"]).unwrap());

    kubernetes.kubectl(&["-n", &namespace, "delete", "energypolicy", "llm"]).unwrap();
    let began = Instant::now();
    loop {
        let set: Value = serde_json::from_str(&get("statefulset/llm-training")).unwrap();
        if !set["metadata"]["annotations"].to_string().contains("eadt.dev/") {
            assert_eq!(set["spec"]["replicas"], 6);
            assert!(set.to_string().contains("\"value\":\"50\""));
            break;
        }
        if began.elapsed() > WITHIN {
            let log = std::fs::read_to_string(data.path().join("stderr")).unwrap();
            panic!("not given back in {} s\n{log}", WITHIN.as_secs());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    signal(&running.0, "-INT");
    let status = running.0.wait().unwrap();
    let log = std::fs::read_to_string(data.path().join("stderr")).unwrap();
    assert!(status.success(), "{log}");
    println!("{log}");
}
