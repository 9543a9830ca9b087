//! `eadt policy` against a real API server.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Once;

use eadt_tests::Kubernetes;
use serde_json::{Value, json};

const POLICY: &str = "\
apiVersion: eadt.dev/v1alpha1
kind: EnergyPolicy
metadata: {name: llm}
spec:
  targetRef: {apiVersion: apps/v1, kind: StatefulSet, name: llm-training}
  bounds: {replicas: {min: 3, max: 9}}
";
const WORKLOAD: &str = "\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: llm-training}
spec:
  replicas: 0
  serviceName: llm
  selector: {matchLabels: {app: llm}}
  template:
    metadata: {labels: {app: llm}}
    spec: {containers: [{name: train, image: example.invalid/train:1}]}
";

fn kubernetes() -> &'static Kubernetes {
    static ONCE: Once = Once::new();
    let kubernetes = Kubernetes::shared();
    ONCE.call_once(|| {
        let definition = eadt(Path::new("/nowhere"), &["policy", "crd"]);
        kubernetes.define(&String::from_utf8(definition.stdout).unwrap()).unwrap();
    });
    kubernetes
}

fn eadt(kubeconfig: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(eadt_tests::program());
    command.args(arguments).env_clear().env("KUBECONFIG", kubeconfig).output().unwrap()
}

fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn annotation(kubernetes: &Kubernetes, what: &[&str], name: &str) -> String {
    let path = format!("jsonpath={{.metadata.annotations.{}}}", name.replace('.', "\\."));
    kubernetes.kubectl(&[&["get"], what, &["-o", &path]].concat()).unwrap()
}

/// Writes a recommendation as the actuator would.
fn recommend(kubernetes: &Kubernetes, namespace: &str, expires: &str) {
    let status = json!({"status": {
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "InForce", "message": "",
            "lastTransitionTime": "2026-01-02T03:00:00.000000Z"
        }],
        "current": {"joulesPerSample": 1.25, "origin": "simulated", "settings": {"replicas": 6}},
        "recommendation": {
            "decisionId": "d-60", "time": "2026-01-02T03:04:00.000000Z", "expires": expires,
            "summary": "replicas 6 → 9", "reason": "three more ranks raise throughput more than power", "restarts": true,
            "from": {"replicas": 6}, "to": {"replicas": 9}
        }
    }});
    let patch = ["patch", "epol", "llm", "-n", namespace, "--subresource=status", "--type=merge", "-p", &status.to_string()];
    kubernetes.kubectl(&patch).unwrap();
}

#[test]
fn without_a_cluster_the_error_names_the_remedy() {
    let error = complaint(&eadt(Path::new("/nowhere/config"), &["policy", "list"]));
    assert!(error.contains("cannot connect to a cluster") && error.contains("KUBECONFIG"), "{error}");
    let error = complaint(&eadt(&Kubernetes::shared().admin_kubeconfig(), &["policy", "list", "--context", "elsewhere"]));
    assert!(error.contains("elsewhere"), "{error}");
    let error = complaint(&eadt(Path::new("/nowhere/config"), &["policy", "pause"]));
    assert!(error.contains("NAME") || error.contains("--all"), "{error}");
}

#[test]
fn policies_are_listed_and_explained() {
    let kubernetes = kubernetes();
    let (config, namespace) = (kubernetes.admin_kubeconfig(), kubernetes.namespace("list").unwrap());
    let empty = stdout_of(&eadt(&config, &["policy", "list", "-n", &namespace]));
    assert_eq!(empty, format!("there is no policy in namespace {namespace}\n"));
    let error = complaint(&eadt(&config, &["policy", "explain", "llm", "-n", &namespace]));
    assert!(error.contains(&format!("there is no policy llm in namespace {namespace}")), "{error}");

    kubernetes.apply(&namespace, POLICY).unwrap();
    let waiting = stdout_of(&eadt(&config, &["policy", "explain", "llm", "-n", &namespace]));
    assert!(waiting.contains("there is no StatefulSet llm-training in this namespace"), "{waiting}");
    kubernetes.apply(&namespace, WORKLOAD).unwrap();
    recommend(kubernetes, &namespace, "2099-01-01T00:00:00.000000Z");

    let table = stdout_of(&eadt(&config, &["policy", "list", "-A"]));
    let row = table.lines().find(|line| line.starts_with(&namespace)).unwrap_or_else(|| panic!("{table}"));
    for cell in ["llm", "StatefulSet llm-training", "Recommend", "in force", "1.25", "replicas 6 → 9"] {
        assert!(row.contains(cell), "{cell:?} is not in {row:?}");
    }
    let explained = stdout_of(&eadt(&config, &["policy", "explain", "llm", "-n", &namespace]));
    for words in ["bounds        replicas 3 to 9", "three more ranks", "(simulated)", "eadt policy approve llm"] {
        assert!(explained.contains(words), "{words:?} is not in\n{explained}");
    }
    let list: Value = serde_json::from_str(&stdout_of(&eadt(&config, &["policy", "list", "-n", &namespace, "--json"]))).unwrap();
    assert_eq!(list["policies"][0]["status"]["recommendation"]["decisionId"], "d-60");
    let one: Value =
        serde_json::from_str(&stdout_of(&eadt(&config, &["policy", "explain", "llm", "-n", &namespace, "--json"]))).unwrap();
    assert_eq!((&one["paused"], &one["target_found"], &one["state"]), (&json!(false), &json!(true), &json!("in force")));
}

#[test]
fn a_workload_and_a_namespace_are_paused_and_resumed() {
    let kubernetes = kubernetes();
    let (config, namespace) = (kubernetes.admin_kubeconfig(), kubernetes.namespace("pause").unwrap());
    kubernetes.apply(&namespace, POLICY).unwrap();
    let error = complaint(&eadt(&config, &["policy", "pause", "llm", "-n", &namespace]));
    assert!(error.contains("StatefulSet") && error.contains("does not exist"), "{error}");
    kubernetes.apply(&namespace, WORKLOAD).unwrap();

    let workload = ["sts", "llm-training", "-n", &namespace];
    let run = |words: &[&str]| stdout_of(&eadt(&config, &[&["policy"], words, &["-n", &namespace]].concat()));
    assert!(run(&["pause", "llm"]).starts_with("paused: "));
    assert!(run(&["pause", "llm"]).starts_with("paused already: "));
    assert_eq!(annotation(kubernetes, &workload, "eadt.dev/paused"), "true");
    assert!(run(&["list"]).contains("paused"));
    assert!(run(&["resume", "llm"]).starts_with("resumed: "));
    assert!(run(&["resume", "llm"]).starts_with("not paused: "));
    // A pause that cannot be read is one, and is resumed like one.
    kubernetes.kubectl(&["-n", &namespace, "annotate", "statefulset", "llm-training", "eadt.dev/paused=yes"]).unwrap();
    assert!(run(&["list"]).contains("paused"));
    assert!(run(&["resume", "llm"]).starts_with("resumed: "));
    assert_eq!(annotation(kubernetes, &workload, "eadt.dev/paused"), "");

    assert!(run(&["pause", "--all"]).contains("every workload of namespace"));
    assert_eq!(annotation(kubernetes, &["ns", &namespace], "eadt.dev/paused"), "true");
    assert!(run(&["explain", "llm"]).contains("state         paused"));
    assert!(run(&["resume", "llm"]).starts_with("still paused: "), "by its namespace");
    let answer: Value = serde_json::from_str(&run(&["resume", "--all", "--json"])).unwrap();
    assert_eq!((&answer["changed"], &answer["paused"]), (&json!(true), &json!(false)));
}

#[test]
fn a_recommendation_is_approved_once_and_only_what_was_seen() {
    let kubernetes = kubernetes();
    let (config, namespace) = (kubernetes.admin_kubeconfig(), kubernetes.namespace("approve").unwrap());
    kubernetes.apply(&namespace, POLICY).unwrap();
    let approve = |words: &[&str]| eadt(&config, &[&["policy", "approve", "llm", "-n", &namespace], words].concat());
    assert!(complaint(&approve(&[])).contains("recommends nothing at present"));
    recommend(kubernetes, &namespace, "2026-01-02T03:09:00.000000Z");
    assert!(complaint(&approve(&[])).contains("expired"));
    recommend(kubernetes, &namespace, "2099-01-01T00:00:00.000000Z");
    assert!(complaint(&approve(&["--decision", "d-0"])).contains("the current recommendation is d-60"));
    let approved = stdout_of(&approve(&["--decision", "d-60"]));
    assert!(approved.starts_with("approved d-60: replicas 6 → 9"), "{approved}");
    assert_eq!(annotation(kubernetes, &["epol", "llm", "-n", &namespace], "eadt.dev/approved"), "d-60");

    for (mode, why) in [("Enforce", "applied anyway"), ("Observe", "nothing is changed")] {
        let spec = json!({"spec": {"updateMode": mode}}).to_string();
        kubernetes.kubectl(&["patch", "epol", "llm", "-n", &namespace, "--type=merge", "-p", &spec]).unwrap();
        assert!(complaint(&approve(&[])).contains(why), "{mode}");
    }
}

#[test]
fn the_program_understands_the_charts_settings_and_commands() {
    let more = [
        "--set=actuator.onlyNamespace=training",
        "--set=kafka.properties.security\\.protocol=SASL_SSL",
        "--set=optimizer.enabled=true",
        "--set=optimizer.settings.windows_min=30",
    ];
    let rendered = eadt_tests::kubernetes::chart::template(&more).unwrap();
    let (_, after) = rendered.split_once("eadt.toml: |\n").expect("a settings file");
    let lines = after.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let settings: Vec<&str> = lines.map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), settings.join("\n")).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(eadt_tests::program());
        command.env_clear().env("EADT_CONFIG_FILE", file.path()).env("EADT_HTTP__ADDRESS", "0.0.0.0:9464");
        command.env("EADT_KUBERNETES__IDENTITY", "eadt-actuator-0").env("EADT_COLLECTOR__NODE", "gpu-0");
        stdout_of(&command.args(arguments).output().unwrap())
    };
    let shown = run(&["config", "show"]);
    for wanted in [
        "kafka-bootstrap:9092",
        "only_namespace = \"training\"",
        "\"security.protocol\" = \"SASL_SSL\"",
        "identity = \"eadt-actuator-0\"",
        "windows_min = 30",
    ] {
        assert!(shown.contains(wanted), "{wanted} is not in force:\n{shown}");
    }
    let mut commands: Vec<&str> =
        rendered.lines().filter_map(|line| line.trim().strip_prefix("args: [")?.strip_suffix(']')).collect();
    commands.sort_unstable();
    commands.dedup();
    assert!(commands.len() >= 7, "{commands:?}");
    for command in commands {
        let mut arguments: Vec<&str> = command.split(", ").collect();
        arguments.push("--help");
        run(&arguments);
    }
}
