//! Labels as exporters and Prometheus servers write them, and whose board it is: one table for the import and the collector.

use super::*;
use crate::prometheus_text::parse_sample;

fn labels(text: &str) -> HashMap<String, String> {
    let line = format!("m{{{text}}} 1");
    let sample = parse_sample(&line).unwrap().unwrap();
    sample.labels.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

/// The workload, or what is missing in angle brackets.
fn whose(rules: &AttributionRules, all: &[&str], index: usize) -> String {
    let mut exporters = ExporterPods::default();
    for text in all {
        exporters.add_exporter(&labels(text));
    }
    match attribute_series(&labels(all[index]), rules, &exporters) {
        SeriesAttribution::Workload { workload, .. } => workload,
        SeriesAttribution::Unattributed => "<nobody>".to_owned(),
        SeriesAttribution::NoNamespace(name) => format!("<no namespace: {name}>"),
        SeriesAttribution::NotAWorkload(name) => format!("<no workload: {name}>"),
    }
}

const OWN: &str = r#"namespace="gpu-operator",pod="nvidia-dcgm-exporter-x7k2p",container="nvidia-dcgm-exporter""#;

#[test]
fn a_board_belongs_to_the_pod_that_the_exporter_names_and_never_to_the_exporter() {
    let owner = AttributionRules::default();
    for (text, expected) in [
        // Scraped directly.
        (r#"namespace="lab",pod="llama-0",container="main""#, "lab/llama"),
        (r#"namespace="",pod="",container="""#, "<nobody>"),
        (r#"gpu="0""#, "<nobody>"),
        (r#"pod="llama-0""#, "<no namespace: llama>"),
        (r#"namespace="lab""#, "<nobody>"),
        // Exporters of 2020.
        (r#"pod_namespace="lab",pod_name="train-0",container_name="c""#, "lab/train"),
        (r#"pod_namespace="lab",pod_name="train-0",namespace="mon",pod="dcgm-x2x4z""#, "lab/train"),
        // Prometheus with honor_labels: false.
        (&format!(r#"exported_namespace="lab",exported_pod="llama-0",{OWN}"#), "lab/llama"),
        (r#"exported_pod="llama-0",namespace="lab""#, "lab/llama"),
        (r#"exported_namespace="lab",pod="llama-0",namespace="mon""#, "lab/llama"),
        (&format!(r#"exported_pod_namespace="lab",exported_pod_name="a-1",{OWN}"#), "lab/a"),
        (OWN, "<nobody>"),
        // With honor_labels: true, labels of the target replace empty labels of the exporter.
        (&format!(r#"{OWN},service="nvidia-dcgm-exporter",job="nvidia-dcgm-exporter",instance="10.0.0.1:9400""#), "<nobody>"),
        (r#"namespace="mon",pod="gpu-metrics-x2x4z",service="gpu-metrics""#, "<nobody>"),
        (r#"namespace="mon",pod="gpu-metrics-x2x4z",job="mon/gpu-metrics""#, "<nobody>"),
        (r#"namespace="mon",pod="gpu-metrics-abcde",service="gpu-metrics""#, "<nobody>"),
        (r#"namespace="mon",pod="metrics-x2x4z",Hostname="metrics-x2x4z""#, "<nobody>"),
        (r#"namespace="mon",pod="nvidia-gpu-exporter-5d4f8c7b9-x2x4z""#, "<nobody>"),
        (r#"namespace="mon",pod="dcgm-exporter-1699999999-abcde""#, "<nobody>"),
        // A federation over another one: what was moved is moved again.
        (&format!(r#"exported_{},namespace="mon",pod="prometheus-0""#, OWN.replace(",pod", ",exported_pod")), "<nobody>"),
        // Jobs with a name that only resembles one.
        (r#"namespace="lab",pod="model-exporter-0""#, "lab/model-exporter"),
        (r#"namespace="lab",pod="gpu-burn-0",job="gpu""#, "lab/gpu-burn"),
        (r#"namespace="lab",pod="bert-x2x4z",container="bert",job="dcgm""#, "lab/bert"),
    ] {
        assert_eq!(whose(&owner, &[text], 0), expected, "{text}");
    }
    // Beside a series of its own target, an exporter of any name is known, on every node.
    let busy = r#"exported_namespace="lab",exported_pod="a-0",namespace="mon",pod="watcher-x2x4z""#;
    let idle = r#"namespace="mon",pod="watcher-abcde""#;
    let other = r#"namespace="lab",pod="watcher-b5b5b""#;
    let all = [busy, idle, other];
    assert_eq!([0, 1, 2].map(|index| whose(&owner, &all, index)), ["lab/a", "<nobody>", "lab/watcher"]);
    assert_eq!(whose(&owner, &[idle], 0), "mon/watcher-abcde", "by itself nothing shows it");
    let pods = AttributionRules { pods: PodRule::Pod, ..AttributionRules::default() };
    assert_eq!(whose(&pods, &[r#"namespace="lab",pod="llama-0""#], 0), "lab/llama-0");
    let ignore = AttributionRules { pods: PodRule::Ignore, ..AttributionRules::default() };
    assert_eq!(whose(&ignore, &[r#"namespace="lab",pod="llama-0""#], 0), "<nobody>");
}

#[test]
fn a_workload_label_goes_first_and_needs_a_namespace() {
    let label = |namespace: Option<&str>| AttributionRules {
        workload_label: Some("hpc_job".into()),
        workload_namespace: namespace.map(str::to_owned),
        pods: PodRule::Owner,
    };
    for (text, namespace, expected) in [
        (r#"hpc_job="48213",Hostname="c001""#, None, "<no namespace: 48213>"),
        (r#"hpc_job="48213",Hostname="c001""#, Some("hpc"), "hpc/48213"),
        (r#"hpc_job="lab/bert""#, None, "lab/bert"),
        (r#"hpc_job="lab/bert""#, Some("hpc"), "lab/bert"),
        (r#"hpc_job="a/b/c""#, Some("hpc"), "<no workload: a/b/c>"),
        (r#"hpc_job="x",namespace="lab",pod="p-0""#, None, "lab/x"),
        (r#"hpc_job="x",namespace="lab",pod="p-0""#, Some("hpc"), "hpc/x"),
        (r#"hpc_job="x",namespace="lab""#, None, "lab/x"),
        (r#"exported_hpc_job="x",hpc_job="target",exported_namespace="lab",namespace="mon""#, None, "lab/x"),
        (&format!(r#"hpc_job="48213",{OWN}"#), None, "<no namespace: 48213>"),
        (&format!(r#"hpc_job="48213",{OWN}"#), Some("slurm"), "slurm/48213"),
        (r#"hpc_job="",namespace="lab",pod="p-0""#, Some("hpc"), "lab/p"),
        (r#"gpu="0""#, Some("hpc"), "<nobody>"),
    ] {
        assert_eq!(whose(&label(namespace), &[text], 0), expected, "{text}");
    }
}

#[test]
fn owners_as_kubernetes_names_pods() {
    for (pod, expected) in [
        ("llm-training-0", "llm-training"),
        ("llm-training-11", "llm-training"),
        ("serve-5d4f8c7b9-x2x4z", "serve"),
        ("serve-5d4f8c7b96-x2x4z", "serve"),
        ("llama-node-0-1-x2x4z", "llama-node"),
        ("sweep-3-x2x4z", "sweep"),
        ("bert-x2x4z", "bert"),
        ("web-24567", "web"),
        ("plain", "plain"),
        ("my-model", "my-model"),
        ("-0", "-0"),
        ("bert-large", "bert-large"),
    ] {
        assert_eq!(owner(pod), expected, "{pod}");
    }
}

#[test]
fn a_board_has_one_name_whoever_exports_it() {
    let uuid = "6d5c0ac5-74d7-3130-46f1-e93ed57f469a";
    for (text, device) in [
        (format!(r#"UUID="GPU-{uuid}",gpu="0",Hostname="n1""#), Some(format!("GPU-{uuid}"))),
        (format!(r#"uuid="GPU-{uuid}",minor_number="0",name="Tesla T4""#), Some(format!("GPU-{uuid}"))),
        (format!(r#"gpu_uuid="GPU-{uuid}""#), Some(format!("GPU-{uuid}"))),
        (format!(r#"uuid="{uuid}""#), Some(format!("GPU-{uuid}"))),
        (r#"gpu="1",Hostname="n1""#.to_owned(), Some("n1/gpu1".to_owned())),
        (r#"gpu="1",instance="10.0.0.1:9400""#.to_owned(), Some("10.0.0.1:9400/gpu1".to_owned())),
        // A UUID that is none, and the board's file where no label has the index.
        (r#"UUID="N/A",gpu="1",Hostname="n1""#.to_owned(), Some("n1/gpu1".to_owned())),
        (r#"device="nvidia1",Hostname="n1""#.to_owned(), Some("n1/gpu1".to_owned())),
        (r#"device="nvidia1",gpu="0",Hostname="n1""#.to_owned(), Some("n1/gpu0".to_owned())),
        (r#"device="sda",Hostname="n1""#.to_owned(), None),
        (r#"Hostname="n1""#.to_owned(), None),
        (r#"gpu="0""#.to_owned(), None),
    ] {
        assert_eq!(board(&labels(&text)).map(|board| board.device), device, "{text}");
    }
}

/// Workload and share of each tenant, of series `(workload, pod, MIG instance, profile, activity)`.
fn shares(series: &[(&str, &str, &str, &str, Option<f64>)]) -> (Vec<(String, Option<f64>)>, Option<ShareMethod>) {
    let mut holders = BoardHolders::default();
    for (workload, pod, instance, profile, activity) in series {
        let instance = mig_instance(&labels(&format!(r#"GPU_I_ID="{instance}",GPU_I_PROFILE="{profile}""#)));
        let attribution = match *workload {
            "" => SeriesAttribution::Unattributed,
            workload => SeriesAttribution::Workload { workload: workload.into(), pod: (*pod).into() },
        };
        holders.add(&attribution, instance.as_ref());
        if let (Some(instance), Some(activity)) = (instance, activity) {
            assert!(holders.set_activity(&instance.id, *activity));
        }
    }
    let tenants = holders.tenants();
    let method = tenants.first().and_then(|tenant| tenant.method);
    (tenants.into_iter().map(|tenant| (tenant.workload, tenant.share)).collect(), method)
}

#[test]
fn the_energy_of_one_board_is_shared_out_and_never_multiplied() {
    let whole = |workload: &'static str, pod: &'static str| (workload, pod, "", "", None);
    let mig = |workload: &'static str, id: &'static str, profile: &'static str| (workload, "p", id, profile, None);
    let active =
        |workload: &'static str, id: &'static str, profile: &'static str, ratio: f64| (workload, "p", id, profile, Some(ratio));
    let third = Some(1.0 / 3.0);
    let is = |list: &[(&str, Option<f64>)]| list.iter().map(|(w, s)| ((*w).to_owned(), *s)).collect::<Vec<_>>();
    for (series, expected, method) in [
        (vec![], is(&[]), None),
        (vec![whole("n/a", "a-0")], is(&[("n/a", None)]), None),
        // Time slicing.
        (
            vec![whole("n/a", "a"), whole("n/b", "b"), whole("n/c", "c")],
            is(&[("n/a", third), ("n/b", third), ("n/c", third)]),
            Some(ShareMethod::Equal),
        ),
        (
            vec![whole("n/a", "a-0"), whole("n/a", "a-1"), whole("n/b", "b")],
            is(&[("n/a", Some(2.0 / 3.0)), ("n/b", third)]),
            Some(ShareMethod::Equal),
        ),
        (vec![whole("n/a", "a-0"), whole("n/a", "a-1")], is(&[("n/a", None)]), None),
        // Several jobs of a batch system, which has no pods.
        (
            vec![whole("hpc/1", ""), whole("hpc/2", "")],
            is(&[("hpc/1", Some(0.5)), ("hpc/2", Some(0.5))]),
            Some(ShareMethod::Equal),
        ),
        // MIG.
        (
            vec![mig("n/a", "1", "3g.40gb"), mig("n/b", "2", "1g.10gb+me"), mig("", "3", "3g.40gb")],
            is(&[("n/a", Some(3.0 / 7.0)), ("n/b", Some(1.0 / 7.0))]),
            Some(ShareMethod::MigSlices),
        ),
        (
            vec![mig("n/a", "1", "1c.3g.40gb"), mig("n/b", "2", "1g.10gb")],
            is(&[("n/a", Some(0.75)), ("n/b", Some(0.25))]),
            Some(ShareMethod::MigSlices),
        ),
        (
            vec![mig("n/a", "1", ""), mig("n/b", "2", "3g.40gb")],
            is(&[("n/a", Some(0.5)), ("n/b", Some(0.5))]),
            Some(ShareMethod::Equal),
        ),
        (vec![mig("n/a", "1", "3g.40gb")], is(&[("n/a", Some(1.0))]), Some(ShareMethod::MigSlices)),
        (
            vec![mig("n/a", "1", "3g.40gb"), mig("n/b", "1", "3g.40gb"), mig("", "2", "3g.40gb")],
            is(&[("n/a", Some(0.25)), ("n/b", Some(0.25))]),
            Some(ShareMethod::MigSlices),
        ),
        (
            vec![active("n/a", "1", "3g.40gb", 0.9), active("n/b", "2", "2g.20gb", 0.3), active("", "3", "1g.10gb", 0.0)],
            is(&[("n/a", Some(2.7 / 3.3)), ("n/b", Some(0.6 / 3.3))]),
            Some(ShareMethod::Profiling),
        ),
    ] {
        let (got, by) = shares(&series);
        assert_eq!(by, method, "{series:?}");
        assert_eq!(got.len(), expected.len(), "{series:?}");
        for ((workload, share), (other, wanted)) in got.iter().zip(&expected) {
            assert_eq!(workload, other, "{series:?}");
            assert!((share.unwrap_or(-1.0) - wanted.unwrap_or(-1.0)).abs() < 1e-12, "{series:?}: {share:?}");
        }
        assert!(got.iter().filter_map(|(_, share)| *share).sum::<f64>() <= 1.0 + 1e-12);
    }
}

#[test]
fn series_of_every_exporter_become_our_fields_in_our_units() {
    for (name, value, field, ours) in [
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5000.0, ReadingField::EnergyJoulesTotal, 5.0),
        ("dcgm_total_energy_consumption", 5000.0, ReadingField::EnergyJoulesTotal, 5.0),
        ("dcgm_power_usage", 31.737, ReadingField::PowerWatts, 31.737),
        ("dcgm_gpu_utilization", 50.0, ReadingField::UtilizationRatio, 0.5),
        ("nvidia_smi_power_draw_watts", 87.5, ReadingField::PowerWatts, 87.5),
        ("nvidia_smi_utilization_gpu_ratio", 0.5, ReadingField::UtilizationRatio, 0.5),
        ("nvidia_smi_clocks_current_sm_clock_hz", 1.41e9, ReadingField::SmClockMhz, 1410.0),
        ("nvidia_gpu_power_usage_milliwatts", 13_240.0, ReadingField::PowerWatts, 13.24),
        ("nvidia_gpu_duty_cycle", 90.0, ReadingField::UtilizationRatio, 0.9),
        ("nv_energy_consumption", 12.5, ReadingField::EnergyJoulesTotal, 12.5),
        ("nv_gpu_utilization", 0.25, ReadingField::UtilizationRatio, 0.25),
        ("DCGM_FI_DEV_FB_USED", 2.0, ReadingField::MemoryUsedBytes, 2_097_152.0),
    ] {
        let metric = device_metric(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((metric.field, metric.to_base_unit(value)), (field, ours), "{name}");
    }
    for name in ["dcgm_unknown", "node_hwmon_power_watt", "nvidia_smi_gpu_info", "DCGM_FI_DEV_XID_ERRORS", ""] {
        assert_eq!(device_metric(name), None, "{name}");
    }
}

#[test]
fn texts_for_no_value_are_absent() {
    let power = device_metric("DCGM_FI_DEV_POWER_USAGE").unwrap();
    for value in
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, 9.223_372_036_854_776e18, 2_147_483_632.0, 140_737_488_355_330.0]
    {
        assert!(power.is_absent(value), "{value}");
    }
    assert!(!power.is_absent(68.244));
    let energy = device_metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION").unwrap();
    assert!(!energy.is_absent(2_147_483_634.0) && energy.is_absent(140_737_488_355_328.0) && energy.is_absent(0.0));
    let utilization = device_metric("DCGM_FI_DEV_GPU_UTIL").unwrap();
    assert!(!utilization.is_absent(0.0));
}
