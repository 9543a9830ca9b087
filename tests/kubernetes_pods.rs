//! GPUs are reported with the workloads of the pods that hold them: the kubelet lists which pods, the owners at a real API server
//! whose they are, to an account with exactly what the chart grants, of which every right is used.

#[path = "../services/collector/tests/support/kubelet.rs"]
mod fake;
#[path = "../src/services/pods.rs"]
mod pods;
#[path = "../services/collector/tests/support/mod.rs"]
mod support;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_kubernetes::api::pods::{FOLLOWED_OWNERS, PodFactsReader};
use eadt_nvml::fake::FakeLibrary;
use eadt_schemas::latest::GpuTelemetry;
use eadt_schemas::v1::ShareMethod;
use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::client;
use eadt_tests::kubernetes::rights::{Right, granted};
use fake::FakeKubelet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use pods::OwnerByApiServer;
use serde_json::{Value, json};
use support::start_with;

const NAME: &str = "eadt-collector";
const RULES: &str = include_str!("../deploy/helm/eadt/files/collector-rules.yaml");
const WITHIN: Duration = Duration::from_mins(3);

/// A kind of an operator that is not there; its objects are.
fn definition(group: &str, version: &str, kind: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": version, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]
        }
    })
}

fn template(name: &str, percentage: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, "restartPolicy": "Always", "containers": [
            {"name": "logs", "image": "example.invalid/logs:1"},
            {"name": "train", "image": "example.invalid/train:1", "resources": {"limits": {"nvidia.com/gpu": "1"}},
                "env": [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": percentage}]}
        ]}
    })
}

struct Rig {
    kubernetes: &'static Kubernetes,
    namespace: String,
}

impl Rig {
    fn apply(&self, object: &Value) {
        self.kubernetes.apply(&self.namespace, &object.to_string()).unwrap_or_else(|error| panic!("{error:#}\n{object}"));
    }

    /// A reference to what owns, which is there already.
    fn owner(&self, api_version: &str, kind: &str, name: &str) -> Value {
        let get = ["-n", &*self.namespace, "get", kind, name, "-o", "jsonpath={.metadata.uid}"];
        let uid = self.kubernetes.kubectl(&get).unwrap();
        json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}])
    }

    fn stateful_set(&self, name: &str, app: &str, start: u32, percentage: &str, owners: &Value) {
        self.apply(&json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "ownerReferences": owners},
            "spec": {"serviceName": "group", "replicas": 1, "ordinals": {"start": start},
                "selector": {"matchLabels": {"app": app}}, "template": template(app, percentage)}
        }));
    }

    /// The name of the only pod with this label, once it is there.
    async fn pod(&self, api: &Api<Pod>, app: &str) -> String {
        let begun = Instant::now();
        loop {
            let found = api.list(&ListParams::default().labels(&format!("app={app}"))).await.unwrap();
            if let [pod] = &found.items[..] {
                return pod.metadata.name.clone().unwrap();
            }
            assert!(begun.elapsed() < WITHIN, "no pod of {app}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The collector's account, once its rights are in force.
    async fn account(&self) -> kube::Client {
        let (namespace, api) = (&self.namespace, "apiVersion: rbac.authorization.k8s.io/v1");
        let cluster = format!("{NAME}-{namespace}");
        let manifests = [
            format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {NAME}}}\n"),
            format!("{api}\nkind: ClusterRole\nmetadata: {{name: {cluster}}}\nrules:\n{RULES}"),
            format!(
                "{api}\nkind: ClusterRoleBinding\nmetadata: {{name: {cluster}}}\n\
                 roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {cluster}}}\n\
                 subjects: [{{kind: ServiceAccount, name: {NAME}, namespace: {namespace}}}]\n"
            ),
        ];
        self.kubernetes.apply(namespace, &manifests.join("---\n")).unwrap();
        // The harness has a runtime of its own for this.
        let (kubernetes, of) = (self.kubernetes, namespace.clone());
        let kubeconfig = tokio::task::spawn_blocking(move || kubernetes.service_account(&of, NAME).unwrap()).await.unwrap();
        let account = client(&kubeconfig).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(account.clone(), namespace);
        let begun = Instant::now();
        while let Err(error) = pods.get_opt("nobody").await {
            assert!(begun.elapsed() < WITHIN, "the account has no rights: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        account
    }
}

/// Workload, share in percent and method of the newest sample of a GPU.
fn newest(events: &[GpuTelemetry], device: &str) -> HashSet<(Option<String>, u32, Option<ShareMethod>)> {
    let of = || events.iter().filter(|event| event.device == device && !event.last);
    let newest = of().map(|event| event.time).max();
    let of = of().filter(|event| Some(event.time) == newest);
    of.map(|event| (event.workload.clone(), (event.share.unwrap_or(1.0) * 100.0).round() as u32, event.share_method)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_are_of_the_workloads_of_their_pods_owners() {
    let (kubernetes, namespace) = tokio::task::spawn_blocking(|| {
        let kubernetes = Kubernetes::shared();
        (kubernetes, kubernetes.namespace("pods").unwrap())
    })
    .await
    .unwrap();
    let rig = Rig { kubernetes, namespace };
    let admin = kubernetes.client().await.unwrap();
    let api: Api<Pod> = Api::namespaced(admin, &rig.namespace);
    let none = json!([]);

    let definitions = [
        ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
        ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
        ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
        ("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"),
    ]
    .map(|(group, version, kind, plural)| definition(group, version, kind, plural).to_string());
    kubernetes.define(&definitions.join("\n---\n")).unwrap();

    // Deployment → ReplicaSet → pod.
    rig.apply(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "serve-7"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "serve"}}, "template": template("serve", "30")}
    }));
    // LeaderWorkerSet → StatefulSet → leader → StatefulSet → worker.
    rig.apply(&json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "group"}}));
    rig.stateful_set("group", "leader", 0, "50", &rig.owner("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "group"));
    assert_eq!(rig.pod(&api, "leader").await, "group-0");
    rig.stateful_set("group-0", "worker", 1, "50", &rig.owner("v1", "Pod", "group-0"));
    // TrainJob → JobSet → Job → pod.
    rig.apply(&json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "tune"}}));
    let owners = rig.owner("trainer.kubeflow.org/v1alpha1", "TrainJob", "tune");
    rig.apply(&json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "tune-set", "ownerReferences": owners}
    }));
    let owners = rig.owner("jobset.x-k8s.io/v1alpha2", "JobSet", "tune-set");
    let mut job = template("tune", "100");
    job["spec"]["restartPolicy"] = json!("Never");
    rig.apply(&json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "tune-set-node-0", "ownerReferences": owners},
        "spec": {"template": job}
    }));
    // PyTorchJob → pod.
    rig.apply(&json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "bert"}}));
    let mut pod = template("bert", "100");
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"] = json!({"name": "bert-worker-0", "ownerReferences": rig.owner("kubeflow.org/v1", "PyTorchJob", "bert")});
    rig.apply(&pod);
    // Owned by no other object.
    rig.apply(&json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "plain", "ownerReferences": none},
        "spec": {"serviceName": "plain", "replicas": 1, "selector": {"matchLabels": {"app": "plain"}}, "template": template("plain", "10")}
    }));

    let [serve, worker, tune, plain] =
        [rig.pod(&api, "serve").await, rig.pod(&api, "worker").await, rig.pod(&api, "tune").await, rig.pod(&api, "plain").await];
    assert_eq!(worker, "group-0-1");
    let shared = "nvidia.com/gpu.shared";
    let kubelet = FakeKubelet::default();
    kubelet.set(
        &rig.namespace,
        &[
            (&serve, shared, &["GPU-fake-0::0"]),
            (&worker, shared, &["GPU-fake-0::1"]),
            (&tune, "nvidia.com/gpu", &["GPU-fake-1"]),
            ("bert-worker-0", "nvidia.com/gpu", &["GPU-fake-2"]),
        ],
    );

    let (library, folder) = (FakeLibrary::new(""), tempfile::tempdir().unwrap());
    let socket = kubelet.serve(folder.path());
    let owners = OwnerByApiServer::new(PodFactsReader::new(rig.account().await));
    let running = start_with(
        &format!(
            "[progress]\nenabled = false\n[nvml]\nenabled = true\nlibrary_path = \"{}\"\nrate_hertz = 10\ncounter_check_seconds = 0\n\
             [kubelet]\nenabled = true\nsocket = \"{}\"\ninterval_seconds = 0.2\napi_server = true\n",
            library.library().display(),
            socket.display()
        ),
        Some(Arc::new(owners)),
    );
    let part = |name: &str, percent| (Some(format!("{}/{name}", rig.namespace)), percent, Some(ShareMethod::MpsPercentage));
    let whole = |name: &str| HashSet::from([(Some(format!("{}/{name}", rig.namespace)), 100, None)]);
    let first = HashSet::from([part("serve-7", 30), part("group", 50), (None, 20, Some(ShareMethod::MpsPercentage))]);
    running
        .until("the owners are known", |events| {
            newest(events, "GPU-fake-0").len() == 3
                && newest(events, "GPU-fake-1") == whole("tune")
                && newest(events, "GPU-fake-2") == whole("bert")
        })
        .await;
    assert_eq!(newest(&running.bus.telemetry(), "GPU-fake-0"), first, "by their MPS percentages; the rest is nobody's");

    // One that the API server does not know beside one that it does.
    kubelet.set(&rig.namespace, &[(&plain, shared, &["GPU-fake-0::0"]), ("nobody-0", shared, &["GPU-fake-0::1"])]);
    running.until("the new one is known", |events| newest(events, "GPU-fake-0").contains(&part_equal(&rig, "plain"))).await;
    assert_eq!(running.metric("eadt_collector_kubelet_unknown_pods "), Some(1.0));
    running.stop().await.unwrap();

    let account = format!("{}/{NAME}", rig.namespace);
    let own: Vec<_> = kubernetes.requests().unwrap().into_iter().filter(|request| request.account == account).collect();
    let used: BTreeSet<Right> = own
        .iter()
        .filter(|request| request.code < 300)
        .map(|request| (request.group.clone(), request.resource.clone(), request.verb.clone()))
        .collect();
    assert_eq!(granted(RULES), used, "granted, and used");
    let followed = FOLLOWED_OWNERS.map(|(group, _, plural)| (group.to_owned(), plural.to_owned(), "get".to_owned()));
    assert_eq!(granted(RULES), BTreeSet::from(followed));
    // Refused until the rights were in force, which was waited for with pods.
    let refused: Vec<_> = own.iter().filter(|request| request.code == 403 && request.resource != "pods").collect();
    assert!(refused.is_empty(), "not granted, but asked for: {refused:#?}");
}

/// The only one known of two.
fn part_equal(rig: &Rig, name: &str) -> (Option<String>, u32, Option<ShareMethod>) {
    (Some(format!("{}/{name}", rig.namespace)), 50, Some(ShareMethod::Equal))
}
