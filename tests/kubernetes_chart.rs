//! `helm test` of the installed chart. Nodes here run no containers, so this test does what a kubelet would: it runs the pod's command
//! with the pod's settings, as a process, and reports how it ended.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use eadt_tests::kubernetes::tools;
use eadt_tests::{Kafka, Kubernetes};
use serde_json::{Value, json};

const SETTINGS: &str = "/etc/eadt";
const WITHIN: Duration = Duration::from_mins(2);

struct Installed<'a> {
    kubernetes: &'a Kubernetes,
    namespace: String,
    /// Helm's own folder.
    home: tempfile::TempDir,
}

impl Installed<'_> {
    fn helm(&self, arguments: &[&str]) -> Child {
        let mut command = Command::new(tools().unwrap().helm);
        command.args(arguments).args(["-n", &self.namespace]).current_dir(eadt_tests::root());
        for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(name, self.home.path());
        }
        command.env("KUBECONFIG", self.kubernetes.admin_kubeconfig());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn get(&self, what: &[&str]) -> Option<Value> {
        let json = self.kubernetes.kubectl(&[&["-n", &self.namespace, "get", "-o", "json"], what].concat()).ok()?;
        Some(serde_json::from_str(&json).unwrap())
    }

    /// Runs the only container of a pod as its node would.
    fn play(&self, pod: &Value) -> Output {
        let folder = tempfile::tempdir().unwrap();
        let settings = self.get(&["configmap", "eadt-settings"]).unwrap();
        for (name, text) in settings["data"].as_object().unwrap() {
            std::fs::write(folder.path().join(name), text.as_str().unwrap()).unwrap();
        }
        let container = &pod["spec"]["containers"][0];
        let mount = container["volumeMounts"].as_array().unwrap().iter().find(|mount| mount["mountPath"] == SETTINGS);
        assert!(mount.is_some(), "{container:#}");
        let mut command = Command::new(eadt_tests::program());
        command.env_clear().stdin(Stdio::null()).current_dir(folder.path());
        for variable in container["env"].as_array().unwrap() {
            let value = variable["value"].as_str().unwrap().replace(SETTINGS, folder.path().to_str().unwrap());
            command.env(variable["name"].as_str().unwrap(), value);
        }
        command.args(container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()));
        command.output().unwrap()
    }

    /// `helm test`: whether it passed, and its output.
    fn test(&self) -> (bool, String) {
        let mut helm = self.helm(&["test", "eadt", "--timeout", "120s"]);
        let begun = Instant::now();
        let pod = loop {
            // The next test replaces the pod of the one before.
            let pod = self.get(&["pod", "eadt-test"]);
            if let Some(pod) =
                pod.filter(|pod| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null())
            {
                break pod;
            }
            assert!(begun.elapsed() < WITHIN && helm.try_wait().unwrap().is_none(), "helm starts no pod");
            std::thread::sleep(Duration::from_millis(100));
        };
        let ran = self.play(&pod);
        let phase = if ran.status.success() { "Succeeded" } else { "Failed" };
        let status = json!({"status": {"phase": phase}}).to_string();
        let patch = ["-n", &self.namespace, "patch", "pod", "eadt-test", "--subresource=status", "--type=merge", "-p", &status];
        self.kubernetes.kubectl(&patch).unwrap();
        let helm_output = helm.wait_with_output().unwrap();
        let logs = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert_eq!(helm_output.status.success(), ran.status.success(), "{}", String::from_utf8_lossy(&helm_output.stderr));
        (helm_output.status.success(), logs)
    }
}

#[test]
fn helm_test_passes_once_the_topics_are_there_and_lists_what_is_missing_before() {
    let kafka = Kafka::start().unwrap();
    let kubernetes = Kubernetes::shared();
    let definitions = std::fs::read_to_string(eadt_tests::root().join("deploy/crds/energypolicies.yaml"));
    kubernetes.define(&definitions.unwrap()).unwrap();
    let namespace = kubernetes.namespace("chart").unwrap();
    let installed = Installed { kubernetes, namespace, home: tempfile::tempdir().unwrap() };
    let brokers = format!("kafka.brokers={}", kafka.brokers().replace(',', "\\,"));
    let install = ["install", "eadt", "deploy/helm/eadt", "--skip-crds", "--set", "topics.replication=1", "--set", &brokers];
    let helm_output = installed.helm(&install).wait_with_output().unwrap();
    assert!(helm_output.status.success(), "{}", String::from_utf8_lossy(&helm_output.stderr));

    let (passed, logs) = installed.test();
    assert!(!passed && logs.contains("eadt.decisions.v1") && logs.contains("eadt topics apply"), "{logs}");

    let jobs = installed.get(&["jobs"]).unwrap();
    let job = jobs["items"].as_array().unwrap().iter().find(|job| job["metadata"]["name"].as_str().unwrap().contains("topics"));
    let made = installed.play(&job.unwrap()["spec"]["template"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (passed, logs) = installed.test();
    assert!(passed && logs.contains("match the settings"), "{logs}");
}
