//! The whole collector: several sources, one log, one stop.

use crate::support;

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use eadt_schemas::latest::{JobLifecycle, TrainingProgress};
use support::start;

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/metrics")
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exporter_a_job_and_reports_of_another_end_marked_and_balanced() {
    let started = std::time::Instant::now();
    let exporter = get(move || async move {
        let labels = "gpu=\"0\",UUID=\"GPU-x\",modelName=\"Tesla T4\",Hostname=\"n1\",namespace=\"n\",pod=\"train-0\"";
        let energy = 1000 + started.elapsed().as_millis();
        format!("DCGM_FI_DEV_POWER_USAGE{{{labels}}} 70\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}\nbroken{{\n")
    });
    let job =
        get(move || async move { format!("training_samples_total {}\ntraining_loss 0.5\n", started.elapsed().as_millis()) });
    let (exporter, job) =
        (serve(Router::new().route("/metrics", exporter)).await, serve(Router::new().route("/metrics", job)).await);
    let port = free_port();
    let running = start(&format!(
        "[progress]\nlisten = \"127.0.0.1:{port}\"\n[[dcgm]]\nurl = \"{exporter}\"\ninterval_seconds = 0.1\n\
         [[jobs]]\nurl = \"{job}\"\nworkload = \"n/train\"\ninterval_seconds = 0.1\n"
    ));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://127.0.0.1:{port}/v1/progress");
    let mut status = 0;
    for _ in 0..100 {
        let post =
            client.post(&url).header("content-type", "application/json").body(r#"{"workload":"n/other","phase":"started"}"#);
        if let Ok(response) = post.send().await {
            status = response.status().as_u16();
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(status, 202);
    running.until("some samples", |events| events.len() > 5).await;
    assert!(
        running.metric(&format!("eadt_collector_scrape_skipped_total{{target=\"{exporter}\",kind=\"malformed\"}}")).unwrap()
            > 4.0
    );
    let (bus, metrics) = (running.bus.clone(), running.metrics.clone());
    let summary = running.stop().await.unwrap();
    let records = bus.records();
    assert_eq!((summary.sampled, summary.sent, summary.dropped.total()), (records.len() as u64, records.len() as u64, 0));
    assert!(metrics.text().contains(&format!("eadt_collector_events_sent_total {}", records.len())));

    let telemetry = bus.telemetry();
    assert!(telemetry.iter().all(|e| e.workload.as_deref() == Some("n/train") && e.collector == "dcgm/host"));
    assert!(telemetry.windows(2).all(|pair| pair[0].time <= pair[1].time));
    assert_eq!(telemetry.iter().map(|e| e.last).filter(|last| *last).count(), 1);
    assert!(telemetry.last().unwrap().last);
    let progress: Vec<TrainingProgress> = records
        .iter()
        .filter(|r| &*r.topic == "eadt.training.progress.v1")
        .map(|r| eadt_schemas::decode(r.value.as_ref().unwrap()).unwrap())
        .collect();
    let of = |workload: &str| progress.iter().filter(|e| e.workload == workload).collect::<Vec<_>>();
    let (train, other) = (of("n/train"), of("n/other"));
    assert!(train.len() > 2 && train.iter().all(|e| e.collector == "job/host" && e.loss == Some(0.5)));
    assert_eq!(train.iter().filter(|e| e.last).count(), 1);
    let seen: Vec<_> = other.iter().map(|e| (e.phase, e.last, e.collector.as_str())).collect();
    assert_eq!(seen, [(JobLifecycle::Started, false, "progress/host"), (JobLifecycle::Progress, true, "progress/host")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exporter_that_is_away_stops_nothing_and_is_counted() {
    let running = start(&format!(
        "[progress]\nenabled = false\n[[dcgm]]\nurl = \"http://127.0.0.1:{}/metrics\"\ninterval_seconds = 0.05\n",
        free_port()
    ));
    for _ in 0..100 {
        if running.metrics.text().contains("outcome=\"unreachable\"} 3") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(running.metrics.text().contains("outcome=\"unreachable\""), "{}", running.metrics.text());
    assert_eq!(running.stop().await.unwrap(), eadt_collector::CollectorSummary::default());
}

/// Labels that a Prometheus server adds for its target, the exporter.
const TARGET: &str = "namespace=\"gpu-operator\",pod=\"nvidia-dcgm-exporter-x7k2p\",job=\"nvidia-dcgm-exporter\"";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_exporter_names_the_owners_of_its_gpus_and_silent_ones_are_counted() {
    let watts = |labels: String, watts: u32| format!("DCGM_FI_DEV_POWER_USAGE{{{labels}}} {watts}\n");
    let hpc = |job: &str, gpu: u32| watts(format!("gpu=\"{gpu}\",UUID=\"GPU-hpc{gpu}\",hpc_job=\"{job}\""), 120);
    let federated = |gpu: u32, labels: &str| watts(format!("gpu=\"{gpu}\",UUID=\"GPU-fed{gpu}\",{labels}{TARGET}"), 500);
    let pods = hpc("48213", 0) + &hpc("48214", 1) + &hpc("48215", 1);
    let federation = federated(0, "exported_namespace=\"lab\",exported_pod=\"llama-0\",") + &federated(1, "");
    let old = "dcgm_power_usage{gpu=\"0\",uuid=\"GPU-old0\",pod_name=\"train-0\",pod_namespace=\"lab\"} 90\n";
    let router = Router::new()
        .route("/hpc", get(move || async move { pods }))
        .route("/federate", get(move || async move { federation }))
        .route("/old", get(move || async move { old }))
        .route("/metrics", get(|| async { "node_load1 0.5\n" }));
    let none = serve(router).await;
    let at = |path: &str| none.replace("/metrics", path);
    let (hpc, federate, old) = (at("/hpc"), at("/federate?match[]=x"), at("/old"));
    let running = start(&format!(
        "[progress]\nenabled = false\n\
         [[dcgm]]\nurl = \"{hpc}\"\nworkload_label = \"hpc_job\"\nworkload_namespace = \"hpc\"\n\
         [[dcgm]]\nurl = \"{hpc}\"\nworkload_label = \"hpc_job\"\n\
         [[dcgm]]\nurl = \"{federate}\"\n[[dcgm]]\nurl = \"{old}\"\n[[dcgm]]\nurl = \"{none}\"\n\
         [[jobs]]\nurl = \"{none}\"\nworkload = \"n/train\"\n"
    ));
    let useless = format!("eadt_collector_scrape_skipped_total{{target=\"{none} (dcgm[4])\",kind=\"no_usable_series\"}}");
    running.until("each exporter", |events| events.len() >= 8).await;
    for _ in 0..100 {
        if running.metric(&useless).is_some_and(|count| count >= 2.0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(running.metric(&useless).is_some_and(|count| count >= 2.0), "{}", running.metrics.text());
    let unnamed = format!("eadt_collector_scrape_skipped_total{{target=\"{hpc} (dcgm[1])\",kind=\"no_workload\"}}");
    assert!(running.metric(&unnamed).is_some_and(|count| count >= 3.0), "{}", running.metrics.text());
    // A source that is configured and silent has a series, so that an alert can name it; so has each loss before the first one.
    let sampled = |source: &str| running.metric(&format!("eadt_collector_events_sampled_total{{source=\"{source}\"}}"));
    assert_eq!([sampled("job"), sampled("progress"), sampled("nvml")], [Some(0.0), None, None]);
    for reason in ["buffer_full", "delivery_failed", "unconfirmed", "shutdown", "refused"] {
        let dropped = running.metric(&format!("eadt_collector_events_dropped_total{{reason=\"{reason}\"}}"));
        assert_eq!(dropped, Some(0.0), "{reason}");
    }
    let bus = running.bus.clone();
    running.stop().await.unwrap();
    let seen: std::collections::BTreeSet<_> = bus
        .telemetry()
        .into_iter()
        .map(|event| (event.device, event.workload.unwrap_or_default(), event.share.map(|share| (share * 100.0) as u32)))
        .collect();
    let expected = [
        ("GPU-fed0", "lab/llama", None),
        ("GPU-fed1", "", None),
        ("GPU-hpc0", "", None),
        ("GPU-hpc0", "hpc/48213", None),
        ("GPU-hpc1", "", None),
        ("GPU-hpc1", "hpc/48214", Some(50)),
        ("GPU-hpc1", "hpc/48215", Some(50)),
        ("GPU-old0", "lab/train", None),
    ];
    let expected = expected.map(|(device, workload, share)| (device.to_owned(), workload.to_owned(), share));
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), expected);
}
