//! The tutorial of docs/operate/kubernetes.md, its commands as they are there, on a real control plane. Pods cannot run anything here, so
//! the services that the chart installs are played by `eadt up --kubernetes` beside the cluster.

use crate::support;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::tools;
use serde_json::Value;
use support::{Running, eadt, signal};

const PAGE: &str = include_str!("../docs/operate/kubernetes.md");
const WITHIN: Duration = Duration::from_mins(5);

/// The shell blocks of the section with this title, in order.
fn blocks(title: &str) -> Vec<String> {
    let section = PAGE.split("\n## ").find(|section| section.starts_with(title)).expect("the page has this section");
    let fenced = section.split("```").skip(1).step_by(2);
    fenced.filter_map(|block| block.strip_prefix("sh\n")).map(str::to_owned).collect()
}

struct Reader<'a> {
    kubernetes: &'a Kubernetes,
    path: String,
}

impl Reader<'_> {
    /// Returns the output of a block.
    fn run(&self, block: &str) -> String {
        let output = Command::new("bash")
            .args(["-e", "-o", "pipefail", "-c", block])
            .current_dir(eadt_tests::root())
            .env("PATH", &self.path)
            .env("KUBECONFIG", self.kubernetes.admin_kubeconfig())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, complaint) = (text(&output.stdout), text(&output.stderr));
        println!("$ {}\n{out}{complaint}", block.trim_end());
        assert!(output.status.success(), "{block}\n{out}{complaint}");
        out
    }

    fn get(&self, what: &str) -> Value {
        serde_json::from_str(&self.kubernetes.kubectl(&["-n", "training", "get", what, "-o", "json"]).unwrap()).unwrap()
    }

    fn until(&self, what: &str, services: &mut Running, data: &Path, look: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !look(self) {
            if begun.elapsed() > WITHIN || services.0.try_wait().unwrap().is_some() {
                let log = std::fs::read_to_string(data.join("stderr")).unwrap_or_default();
                panic!("not within {} s: {what}\n{log}\n{:#}", WITHIN.as_secs(), self.get("energypolicies"));
            }
            std::thread::sleep(Duration::from_millis(250));
        }
    }
}

#[test]
fn the_tutorials_commands_do_what_it_promises() {
    let kubernetes = Kubernetes::start().unwrap();
    let bin = tempfile::tempdir().unwrap();
    let tools = tools().unwrap();
    for (name, program) in [("kubectl", tools.kubectl.as_path()), ("helm", &tools.helm), ("eadt", eadt_tests::program())] {
        symlink(program, bin.path().join(name)).unwrap();
    }
    let path = format!("{}:{}", bin.path().display(), std::env::var("PATH").unwrap_or_default());
    let reader = Reader { kubernetes: &kubernetes, path };
    // Nodes with GPUs have it.
    let class = "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia}\nhandler: nvidia\n";
    kubernetes.apply("default", class).unwrap();
    let all = blocks("A tutorial");
    let [install, apply, read, enforce, watch, pause, delete, uninstall] = all.as_slice() else {
        panic!("the tutorial has other steps than this test: {all:#?}");
    };

    assert!(reader.run(install).contains("It changes nothing yet"));
    let installed = kubernetes.kubectl(&["get", "sts,ds", "-n", "eadt", "-o", "name"]).unwrap();
    for part in ["processor", "actuator", "archiver", "collector"] {
        assert!(installed.contains(&format!("eadt-{part}")), "no {part} in\n{installed}");
    }
    reader.run(apply);
    let before = reader.get("statefulset/llm-training");
    assert_eq!(before["spec"]["replicas"], 6);

    let data = tempfile::tempdir().unwrap();
    let mut command = eadt(data.path(), &["up", "--kubernetes", "--speed", "60", "--no-view"]);
    command.env("KUBECONFIG", kubernetes.admin_kubeconfig());
    command.env("EADT_KUBERNETES__NAMESPACE", "eadt").env("EADT_KUBERNETES__ONLY_NAMESPACE", "training");
    let errors = std::fs::File::create(data.path().join("stderr")).unwrap();
    let mut services = Running(command.stdout(Stdio::null()).stderr(errors).spawn().unwrap());
    reader.until("something is recommended", &mut services, data.path(), |reader| {
        reader.get("energypolicy/llm")["status"]["recommendation"]["summary"].is_string()
    });
    let printed = reader.run(read);
    for word in ["Recommend", "eadt policy approve llm", "simulated"] {
        assert!(printed.contains(word), "no {word} in\n{printed}");
    }
    let unchanged = reader.get("statefulset/llm-training");
    assert_eq!((&unchanged["spec"], &unchanged["metadata"]["generation"]), (&before["spec"], &before["metadata"]["generation"]));

    reader.run(enforce);
    // A change back to the start, for a hold-out or after a trial, may follow at any time.
    reader.until("a change is ready", &mut services, data.path(), |reader| {
        let set = reader.get("statefulset/llm-training");
        let mark = &set["metadata"]["annotations"]["eadt.dev/applied"];
        set["spec"] != before["spec"] && mark.as_str().is_some_and(|mark| mark.contains("\"ready_time\":\""))
    });
    let printed = reader.run(watch);
    assert!(printed.contains("Applied") && printed.contains("Ready"), "{printed}");

    assert!(reader.run(pause).contains("paused: "));
    let paused = reader.get("statefulset/llm-training");
    assert_eq!(paused["metadata"]["annotations"]["eadt.dev/paused"], "true");
    // Ten windows, in which it would be decided about.
    std::thread::sleep(std::time::Duration::from_secs(10));
    let still = reader.get("statefulset/llm-training");
    assert_eq!((&still["spec"], &still["metadata"]["generation"]), (&paused["spec"], &paused["metadata"]["generation"]));

    let printed = reader.run(delete);
    assert!(printed.contains("deleted"), "{printed}");
    reader.until("everything is as before", &mut services, data.path(), |reader| {
        let now = reader.get("statefulset/llm-training");
        let own = now["metadata"]["annotations"].as_object().unwrap().keys().any(|name| name.starts_with("eadt.dev/"));
        now["spec"] == before["spec"] && !own
    });
    signal(&services.0, "-INT");
    let status = services.0.wait().unwrap();
    assert!(status.success(), "{}", std::fs::read_to_string(data.path().join("stderr")).unwrap());
    reader.run(uninstall);
    let left =
        kubernetes.kubectl(&["get", "sts,ds,svc,cm,netpol,pdb", "-n", "eadt", "-l", "app.kubernetes.io/name=eadt", "-o", "name"]);
    assert_eq!(left.unwrap(), "");
}
