//! Pods become workloads of GPUs, through the kubelet's real protocol on a socket of our own.

#[path = "support/kubelet.rs"]
mod fake;
use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use eadt_collector::kubelet::api::KubeletClient;
use eadt_collector::kubelet::holders::PodKey;
use eadt_collector::kubelet::owners::{PodFacts, PodFactsLookup};
use eadt_collector::source::BoxFuture;
use eadt_nvml::fake::FakeLibrary;
use eadt_schemas::latest::{DeviceHolders, GpuTelemetry};
use eadt_schemas::v1::{PodName, ShareMethod};
use fake::FakeKubelet;
use support::{Running, start, start_with};

/// Returns workload, share and method of the last event of each stay. An unattributed part that has become 0 continues for a
/// while with a share of 0, and is left out.
fn stays(events: &[GpuTelemetry], device: &str) -> BTreeSet<(Option<String>, u32, Option<&'static str>)> {
    let newest = events.iter().filter(|e| e.device == device && !e.last).map(|e| e.time).max();
    let of = events.iter().filter(|e| e.device == device && !e.last && Some(e.time) == newest);
    of.map(|e| {
        let method = e.share_method.map(|method| match method {
            ShareMethod::Equal => "equal",
            ShareMethod::MpsPercentage => "mps",
            ShareMethod::MigSlices => "mig",
            ShareMethod::ProcessUtilization => "processes",
            _ => "another",
        });
        (e.workload.clone(), (e.share.unwrap_or(1.0) * 1000.0).round() as u32, method)
    })
    .filter(|(workload, share, _)| workload.is_some() || *share > 0)
    .collect()
}

/// Returns a collector of these GPUs that asks this kubelet.
fn started(fake: &FakeLibrary, kubelet: &FakeKubelet, folder: &Path) -> Running {
    start(&settings(fake, kubelet, folder))
}

fn settings(fake: &FakeLibrary, kubelet: &FakeKubelet, folder: &Path) -> String {
    let socket = kubelet.serve(folder);
    format!(
        "[progress]\nenabled = false\n[nvml]\nenabled = true\nlibrary_path = \"{}\"\nrate_hertz = 20\nslow_seconds = 0.1\n\
         counter_check_seconds = 0\n[kubelet]\nenabled = true\nsocket = \"{}\"\ninterval_seconds = 0.1\n",
        fake.library().display(),
        socket.display()
    )
}

/// Knows the UIDs of pods.
#[derive(Debug)]
struct Uids(BTreeMap<&'static str, &'static str>);

impl PodFactsLookup for Uids {
    fn facts<'a>(&'a self, pod: &'a PodKey) -> BoxFuture<'a, Result<PodFacts, String>> {
        let uid = self.0.get(&*pod.name).map(|uid| (*uid).to_owned());
        let workload = format!("{}/{}", pod.namespace, pod.name);
        Box::pin(async move { Ok(PodFacts { workload, uid, mps_thread_percentage: None }) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_follow_the_pods_that_hold_them() {
    let (fake, folder, kubelet) = (FakeLibrary::new(""), tempfile::tempdir().unwrap(), FakeKubelet::default());
    kubelet.set(
        "team",
        &[
            ("llama-0", "nvidia.com/gpu", &["GPU-fake-0"]),
            ("eval-5d4f8c7b9-x2x4z", "nvidia.com/gpu.shared", &["GPU-fake-1::0"]),
            ("sweep-0-x2x4z", "nvidia.com/gpu.shared", &["GPU-fake-1::1"]),
            ("mig-0", "nvidia.com/mig-1g.10gb", &["MIG-7"]),
        ],
    );
    let running = started(&fake, &kubelet, folder.path());
    let whole = |name: &str| BTreeSet::from([(Some(format!("team/{name}")), 1000, None)]);
    let half = |name: &str| (Some(format!("team/{name}")), 500, Some("equal"));
    let shared = BTreeSet::from([half("eval"), half("sweep")]);
    let nobody = BTreeSet::from([(None, 1000, None)]);
    running
        .until("the pods", |events| stays(events, "GPU-fake-0") == whole("llama") && stays(events, "GPU-fake-1") == shared)
        .await;
    assert_eq!(stays(&running.bus.telemetry(), "GPU-fake-2"), nobody);
    assert_eq!(running.metric("eadt_collector_kubelet_up "), Some(1.0));
    assert_eq!(running.metric("eadt_collector_kubelet_unmatched "), Some(1.0), "an instance that no GPU has");

    let published = || -> Vec<DeviceHolders> {
        let records = running.bus.records().into_iter().filter(|record| record.topic.ends_with("device-holders.v1"));
        records.map(|record| eadt_schemas::decode(record.value.as_ref().unwrap()).unwrap()).collect()
    };
    let newest_holders = || {
        let event = published().pop().expect("one is published");
        let names =
            |pods: &[PodName]| pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect::<Vec<_>>().join(" ");
        let devices: Vec<_> = event.devices.iter().map(|held| (held.device.clone(), names(&held.pods))).collect();
        (event.node, devices, names(&event.unplaced))
    };
    let held = |gpu: &str, pods: &str| (gpu.to_owned(), pods.to_owned());
    let (node, devices, unplaced) = newest_holders();
    let both = held("GPU-fake-1", "team/eval-5d4f8c7b9-x2x4z team/sweep-0-x2x4z");
    assert_eq!((devices, &*unplaced), (vec![held("GPU-fake-0", "team/llama-0"), both], "team/mig-0"));
    assert!(!node.is_empty());
    let board = |event: DeviceHolders| {
        let first = &event.devices[0];
        (first.gpu_model.as_deref(), first.default_power_limit_watts) == (Some("Fake H100"), Some(700.0))
            && first.pods[0].workload.as_deref() == Some("team/llama")
    };
    running.until("what board it is, and whose", |_| published().pop().is_some_and(board)).await;

    // A pod goes, another comes; the stays end and begin.
    kubelet.set(
        "team",
        &[("eval-5d4f8c7b9-x2x4z", "nvidia.com/gpu.shared", &["GPU-fake-1::0"]), ("bert-0", "nvidia.com/gpu", &["GPU-fake-2"])],
    );
    running
        .until("the new ones", |events| {
            stays(events, "GPU-fake-0") == nobody
                && stays(events, "GPU-fake-1") == whole("eval")
                && stays(events, "GPU-fake-2") == whole("bert")
        })
        .await;
    let now = vec![held("GPU-fake-1", "team/eval-5d4f8c7b9-x2x4z"), held("GPU-fake-2", "team/bert-0")];
    assert_eq!(newest_holders(), (node, now, String::new()));
    let changes = |pair: &[DeviceHolders]| (&pair[0].devices, &pair[0].unplaced) != (&pair[1].devices, &pair[1].unplaced);
    assert!(published().windows(2).all(changes), "only what changes is published: {:#?}", published());
    let events = running.bus.telemetry();
    let ended: BTreeSet<_> = events.iter().filter(|e| e.last).filter_map(|e| e.workload.as_deref()).collect();
    assert_eq!(ended, BTreeSet::from(["team/llama", "team/sweep"]));

    // A kubelet that does not answer changes nothing for a while.
    kubelet.broken(true);
    running.until("it is seen", |_| running.metric("eadt_collector_kubelet_up ") == Some(0.0)).await;
    assert_eq!(stays(&running.bus.telemetry(), "GPU-fake-2"), whole("bert"));
    kubelet.broken(false);
    running.until("it is back", |_| running.metric("eadt_collector_kubelet_up ") == Some(1.0)).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mig_instances_are_slices_of_their_gpu() {
    let (fake, folder, kubelet) = (FakeLibrary::new("1 mig 421\n"), tempfile::tempdir().unwrap(), FakeKubelet::default());
    kubelet.set(
        "team",
        &[
            ("llama-0", "nvidia.com/mig-4g.40gb", &["MIG-fake-1-1"]),
            ("eval-0", "nvidia.com/mig-1g.10gb.shared", &["MIG-fake-1-3::0"]),
            ("whole-0", "nvidia.com/gpu", &["GPU-fake-0"]),
        ],
    );
    let running = started(&fake, &kubelet, folder.path());
    let nobody = |thousandths| (None, thousandths, Some("mig"));
    let cut = BTreeSet::from([
        (Some("team/llama".to_owned()), 571, Some("mig")),
        (Some("team/eval".to_owned()), 143, Some("mig")),
        nobody(286),
    ]);
    running.until("the slices", |events| stays(events, "GPU-fake-1") == cut).await;
    running.until("all are matched", |_| running.metric("eadt_collector_kubelet_unmatched ") == Some(0.0)).await;
    assert!(running.bus.telemetry().iter().any(|event| event.device == "GPU-fake-1" && event.mig_enabled == Some(true)));

    // The same instance is another one after it was made anew.
    fake.set("1 mig 7\n");
    kubelet.set("team", &[("llama-0", "nvidia.com/mig-7g.80gb", &["MIG-fake-1-1"])]);
    let all = BTreeSet::from([(Some("team/llama".to_owned()), 1000, Some("mig"))]);
    running.until("the new cut", |events| stays(events, "GPU-fake-1") == all).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_that_is_shared_by_time_is_cut_by_what_each_pods_processes_use() {
    let (fake, folder, kubelet) = (
        FakeLibrary::new("1 sm_76 60\n1 sm_77 20\n1 sm_78 20\n1 garbage 1\n"),
        tempfile::tempdir().unwrap(),
        FakeKubelet::default(),
    );
    let (first, second) = ("0f3c1c2e-8a5b-4f6d-9c11-2b7d1f0e4a55", "1f3c1c2e-8a5b-4f6d-9c11-2b7d1f0e4a55");
    for (process, uid) in [(76, first), (77, second)] {
        let directory = folder.path().join(process.to_string());
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("cgroup"), format!("0::/kubepods/burstable/pod{uid}/c\n")).unwrap();
    }
    kubelet.set(
        "team",
        &[("llama", "nvidia.com/gpu.shared", &["GPU-fake-1::0"]), ("eval", "nvidia.com/gpu.shared", &["GPU-fake-1::1"])],
    );
    let directory = folder.path().display();
    let settings =
        settings(&fake, &kubelet, folder.path()) + &format!("api_server = true\nprocess_directory = \"{directory}\"\n");
    let running = start_with(&settings, Some(Arc::new(Uids(BTreeMap::from([("llama", first), ("eval", second)])))));
    let part = |name: Option<&str>, thousandths| (name.map(str::to_owned), thousandths, Some("processes"));
    // A process outside of pods is unattributed.
    let used = BTreeSet::from([part(Some("team/llama"), 600), part(Some("team/eval"), 200), part(None, 200)]);
    running.until("what they use", |events| stays(events, "GPU-fake-1") == used).await;

    // A workload that alone computes gets all of it; other holders of the GPU get nothing meanwhile.
    fake.set("1 sm_77 30\n");
    let used = BTreeSet::from([part(Some("team/llama"), 0), part(Some("team/eval"), 1000)]);
    running.until("one is idle", |events| stays(events, "GPU-fake-1") == used).await;

    // No process computes: the GPU counts for both.
    fake.set("");
    let equal = |name: Option<&str>, thousandths| (name.map(str::to_owned), thousandths, Some("equal"));
    let both = BTreeSet::from([equal(Some("team/llama"), 500), equal(Some("team/eval"), 500)]);
    running.until("both are idle", |events| stays(events, "GPU-fake-1") == both).await;
    running.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_offered_can_be_asked_and_a_missing_socket_is_reported() {
    let (folder, kubelet) = (tempfile::tempdir().unwrap(), FakeKubelet::default());
    let socket = kubelet.serve(folder.path());
    let connection = KubeletClient::connect(&socket, Duration::from_secs(10)).await.unwrap();
    let replicas = eadt_collector::kubelet::holders::replicas(&connection.allocatable().await.unwrap());
    assert_eq!(replicas.into_iter().collect::<Vec<_>>(), [("GPU-fake-1".to_owned(), 2)]);
    kubelet.broken(true);
    let error = connection.list().await.unwrap_err();
    assert!(error.contains("on purpose"), "{error}");
    let error = KubeletClient::connect(&folder.path().join("nothing"), Duration::from_secs(10)).await.unwrap_err();
    assert!(error.contains("No such file"), "{error}");
}

/// Panics instead of an answer.
#[derive(Debug)]
struct Panics;

impl PodFactsLookup for Panics {
    fn facts<'a>(&'a self, _: &'a PodKey) -> BoxFuture<'a, Result<PodFacts, String>> {
        Box::pin(async { panic!("on purpose") })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_about_a_pod_that_panics_is_counted_and_holds_up_nobody() {
    let (fake, folder, kubelet) = (FakeLibrary::new(""), tempfile::tempdir().unwrap(), FakeKubelet::default());
    kubelet.set("team", &[("llama-0", "nvidia.com/gpu", &["GPU-fake-0"])]);
    let running = start_with(&settings(&fake, &kubelet, folder.path()), Some(Arc::new(Panics)));
    let failures = || running.metric("eadt_service_task_failures_total{task=\"pod-facts\"}").unwrap_or_default();
    running.until("the panic", |_| failures() >= 1.0).await;
    let before = running.bus.telemetry().len();
    running
        .until("further samples of a GPU that is nobody's", |events| {
            events[before.min(events.len())..].iter().any(|event| event.device == "GPU-fake-0" && event.workload.is_none())
        })
        .await;
    running.stop().await.unwrap();
}
