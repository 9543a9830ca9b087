//! Real recordings through the program: import → replay → report, against figures that were computed independently.

mod support;

use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{eadt, json, near, shared_data};

/// Imports, replays and reports one run; the report of its only workload.
fn through(dir: &Path, import: &[&str], files: &[PathBuf], replay: &[&str], by: &str) -> (Value, Value) {
    let log = dir.join("run.jsonl.zst");
    let mut arguments = vec!["import"];
    arguments.extend(import);
    arguments.extend(files.iter().map(|f| f.to_str().unwrap()));
    arguments.extend(["--workload", "lab/run", "--json", "--out", log.to_str().unwrap()]);
    let imported = json(eadt(dir, &arguments));
    let out = dir.join("replayed");
    let mut arguments = vec!["replay", log.to_str().unwrap(), "--json", "--out", out.to_str().unwrap()];
    arguments.extend(replay);
    let replayed = json(eadt(dir, &arguments));
    assert_eq!(replayed["refused"], 0, "{replayed}");
    assert_eq!(replayed["late"], 0, "{replayed}");
    let report = json(eadt(dir, &["report", out.to_str().unwrap(), "--json", "--by", by]));
    let workloads = report["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 1, "{report}");
    assert_eq!(workloads[0]["origin"], "imported");
    (imported, workloads[0].clone())
}

fn mlperf(model: &str, run: &str, node: &str, by: &str) -> Option<(Value, Value)> {
    let data = shared_data()?.join("mlperf-train-v4.0-smc-8xH100").join(model);
    let dir = tempfile::tempdir().unwrap();
    let files = [data.join(format!("result_{run}.txt")), data.join(format!("power/result_{run}/{node}.txt"))];
    Some(through(dir.path(), &["mlperf"], &files, &[], by))
}

/// Energies in the windows and what fits in none of them are the whole.
fn windows_sum_to_the_whole(report: &Value) {
    let windows: f64 = report["by_window"].as_array().unwrap().iter().filter_map(|w| w["energy_joules"].as_f64()).sum();
    let unassigned = report["unassigned_energy_joules"].as_f64().unwrap_or(0.0);
    near("windows and unassigned", &Value::from(windows + unassigned), report["energy_joules"].as_f64().unwrap(), 1e-6);
}

#[test]
fn mlperf_bert_5119_06() {
    let Some((_, report)) = mlperf("bert", "5119-240510190348838227199_06", "node_0", "window") else { return };
    near("energy", &report["energy_joules"], 1_878_755.6, 0.001);
    near("duration", &report["duration_seconds"], 277.048, 0.001);
    near("power", &report["mean_power_watts"], 6781.34, 0.001);
    near("samples", &report["samples"], 2_100_792.0, 1e-9);
    near("J/sequence", &report["joules_per_sample"], 0.894_308, 0.001);
    windows_sum_to_the_whole(&report);
}

#[test]
fn mlperf_bert_5120_07() {
    let Some((_, report)) = mlperf("bert", "5120-240510190402846980797_07", "node_0", "window") else { return };
    near("energy", &report["energy_joules"], 2_204_818.6, 0.001);
    near("duration", &report["duration_seconds"], 318.2, 0.001);
    near("samples", &report["samples"], 2_400_396.0, 1e-9);
    near("J/sequence", &report["joules_per_sample"], 0.918_523, 0.001);
}

#[test]
fn mlperf_llama_and_its_training_blocks() {
    let Some((_, report)) = mlperf("llama2_70b_lora", "5027-240510020224961918558_3", "node_0", "span") else { return };
    near("energy", &report["energy_joules"], 12_091_999.0, 0.001);
    near("duration", &report["duration_seconds"], 1685.183, 0.001);
    near("J/sample", &report["joules_per_sample"], 3936.198, 0.001);
    let blocks: Vec<&Value> =
        report["by_span"].as_array().unwrap().iter().filter(|span| span["span"].as_str().unwrap().starts_with("block")).collect();
    let expected = [
        (1536.0, 754.958, 5_383_136.4),
        (384.0, 184.332, 1_336_888.6),
        (384.0, 183.922, 1_334_031.4),
        (384.0, 183.759, 1_333_719.8),
        (384.0, 184.032, 1_329_547.6),
    ];
    assert_eq!(blocks.len(), expected.len(), "{blocks:?}");
    for (block, (samples, seconds, joules)) in blocks.iter().zip(expected) {
        near("samples of a block", &block["samples"], samples, 0.001);
        near("seconds of a block", &block["duration_seconds"], seconds, 0.001);
        near("joules of a block", &block["energy_joules"], joules, 0.001);
    }
}

#[test]
fn mlperf_resnet_and_its_epochs() {
    let Some((_, report)) = mlperf("resnet", "5762-240517075402404624683_3", "node_1", "span") else { return };
    near("energy", &report["energy_joules"], 5_678_892.6, 0.001);
    near("coverage", &report["coverage_ratio"], 0.99776, 0.001);
    let epochs: Vec<&Value> = report["by_span"].as_array().unwrap().iter().collect();
    let energy = |span: &Value| span["energy_joules"].as_f64().unwrap();
    let second = epochs.iter().find(|s| s["span"] == "epoch 2").unwrap();
    near("epoch 2", &second["energy_joules"], 160_998.4, 0.001);
    let (mut joules, mut images) = (0.0, 0.0);
    for number in 2..=34 {
        let epoch = epochs.iter().find(|s| s["span"] == format!("epoch {number}")).unwrap();
        joules += energy(epoch);
        images += epoch["samples"].as_f64().unwrap();
    }
    near("images/J of epochs 2 to 34", &Value::from(images / joules), 7.92417, 0.001);
}

#[test]
fn mlperf_inference_with_wall_power() {
    let Some(data) = shared_data() else { return };
    let data = data.join("mlperf-inf-v4.1-8xH200-MaxQ/bert-99__Offline");
    let dir = tempfile::tempdir().unwrap();
    let files = ["mlperf_log_detail.txt", "mlperf_log_summary.txt", "spl.txt"].map(|name| data.join(name));
    let (_, report) = through(dir.path(), &["mlperf-inference"], &files, &[], "window");
    near("energy", &report["energy_joules"], 3_646_359.8, 0.001);
    near("duration", &report["duration_seconds"], 659.229, 0.001);
    near("power", &report["mean_power_watts"], 5531.249, 0.001);
    near("samples/J", &Value::from(1.0 / report["joules_per_sample"].as_f64().unwrap()), 9.77414, 0.001);
    assert_eq!(report["meter"], "wall");
    windows_sum_to_the_whole(&report);
}

#[test]
fn dcgmi_counters_are_exact() {
    let Some(data) = shared_data() else { return };
    for (file, joules) in [
        ("GA100-bfs-1410-1", 1353.012),
        ("GA100-bfs-1005-0", 1136.845),
        ("GA100-bfs-510-0", 1291.573),
        ("GA100-lud-1410-0", 2623.599),
        ("GA100-lud-1005-0", 2081.828),
        ("GA100-lud-510-0", 2831.456),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = data.join("a100-dcgmi-raw").join(format!("{file}.txt"));
        let (imported, report) = through(dir.path(), &["dcgmi", "--interval", "20ms"], &[path], &[], "window");
        near(file, &report["energy_joules"], joules, 1e-9);
        // Counter and integral are compared, and the difference is reported.
        assert_eq!(imported["counters"].as_array().unwrap().len(), 1, "{imported}");
    }
}

#[test]
fn a_request_trace_has_gaps_and_empty_windows() {
    let Some(data) = shared_data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = data.join("azure-llm-trace-2023/AzureLLMInferenceTrace_code.csv");
    let import = ["csv", "--map", "samples=*", "--map", "tokens=GeneratedTokens"];
    let (imported, report) = through(dir.path(), &import, &[path], &["--align", "run"], "window");
    assert!(!imported["gaps"].as_array().unwrap().is_empty());
    let windows: Vec<f64> =
        report["by_window"].as_array().unwrap().iter().map(|w| w["samples"].as_f64().unwrap_or(0.0)).collect();
    assert_eq!(windows.len(), 58);
    assert_eq!(windows.iter().filter(|samples| **samples == 0.0).count(), 12, "{windows:?}");
    assert_eq!(windows[0], 63.0);
    assert_eq!(report["samples"], 8819.0);
    assert!(report["energy_joules"].is_null(), "no power was recorded: unknown, not zero");
}
