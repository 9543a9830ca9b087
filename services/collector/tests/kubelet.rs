//! Pods become workloads of GPUs, through the kubelet's real protocol on a socket of our own.

#[path = "support/kubelet.rs"]
mod fake;
mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use eadt_collector::kubelet::api::Kubelet;
use eadt_nvml::fake::FakeLibrary;
use eadt_schemas::latest::GpuTelemetry;
use eadt_schemas::v1::ShareMethod;
use fake::FakeKubelet;
use support::start;

/// Workload, share and method of the last event of each stay.
fn stays(events: &[GpuTelemetry], device: &str) -> BTreeSet<(Option<String>, u32, Option<&'static str>)> {
    let newest = events.iter().filter(|e| e.device == device && !e.last).map(|e| e.time).max();
    let of = events.iter().filter(|e| e.device == device && !e.last && Some(e.time) == newest);
    of.map(|e| {
        let method = e.share_method.map(|method| match method {
            ShareMethod::Equal => "equal",
            ShareMethod::MpsPercentage => "mps",
            _ => "another",
        });
        (e.workload.clone(), (e.share.unwrap_or(1.0) * 1000.0).round() as u32, method)
    })
    .collect()
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
    let socket = kubelet.serve(folder.path());
    let running = start(&format!(
        "[progress]\nenabled = false\n[nvml]\nenabled = true\nlibrary_path = \"{}\"\nrate_hertz = 20\ncounter_check_seconds = 0\n\
         [kubelet]\nenabled = true\nsocket = \"{}\"\ninterval_seconds = 0.1\n",
        fake.library().display(),
        socket.display()
    ));
    let whole = |name: &str| BTreeSet::from([(Some(format!("team/{name}")), 1000, None)]);
    let half = |name: &str| (Some(format!("team/{name}")), 500, Some("equal"));
    let shared = BTreeSet::from([half("eval"), half("sweep")]);
    let nobody = BTreeSet::from([(None, 1000, None)]);
    running
        .until("the pods", |events| stays(events, "GPU-fake-0") == whole("llama") && stays(events, "GPU-fake-1") == shared)
        .await;
    assert_eq!(stays(&running.bus.telemetry(), "GPU-fake-2"), nobody);
    assert_eq!(running.metric("eadt_collector_kubelet_up "), Some(1.0));
    assert_eq!(running.metric("eadt_collector_kubelet_unmatched "), Some(1.0), "a MIG instance is no GPU of ours");

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
async fn what_is_offered_can_be_asked_and_a_missing_socket_says_so() {
    let (folder, kubelet) = (tempfile::tempdir().unwrap(), FakeKubelet::default());
    let socket = kubelet.serve(folder.path());
    let connection = Kubelet::connect(&socket, Duration::from_secs(10)).await.unwrap();
    let replicas = eadt_collector::kubelet::holders::replicas(&connection.allocatable().await.unwrap());
    assert_eq!(replicas.into_iter().collect::<Vec<_>>(), [("GPU-fake-1".to_owned(), 2)]);
    kubelet.broken(true);
    let error = connection.list().await.unwrap_err();
    assert!(error.contains("on purpose"), "{error}");
    let error = Kubelet::connect(&folder.path().join("nothing"), Duration::from_secs(10)).await.unwrap_err();
    assert!(error.contains("No such file"), "{error}");
}
