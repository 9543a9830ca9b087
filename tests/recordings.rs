//! Real recordings through the program: import → replay → report, against figures that were computed independently.

use crate::support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use eadt_schemas::Topic;
use eadt_schemas::v1::EfficiencyWindow;
use serde_json::Value;
use support::{eadt, json, near, shared_data, status, text};

/// Results of a run.
struct Through {
    imported: Value,
    /// Of its only workload.
    report: Value,
    /// Joules of all windows, those around the run included, and what belongs to none of them.
    windows: f64,
    unassigned: f64,
}

/// Imports, replays and reports one run.
fn through(dir: &Path, import: &[&str], files: &[PathBuf], replay: &[&str], by: &str) -> Through {
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
    for count in ["refused", "late", "stale", "duplicates", "late_tables"] {
        assert_eq!(replayed[count], 0, "{count}: {replayed}");
    }
    for nothing in ["refused_by_reason", "passed_over"] {
        assert_eq!(replayed[nothing].as_object().map(serde_json::Map::len), Some(0), "{replayed}");
    }
    let archive = eadt_lake::Archive::find(&out).unwrap();
    let events = eadt_lake::read_events::<EfficiencyWindow>(&archive, Topic::EfficiencyWindows).unwrap().events;
    let (spans, tumbling): (Vec<_>, Vec<_>) = events.iter().partition(|window| window.span.is_some());
    assert_eq!(replayed["windows"].as_u64(), Some(tumbling.len() as u64), "{replayed}");
    assert_eq!(replayed["spans"].as_u64(), Some(spans.len() as u64), "{replayed}");
    let report = json(eadt(dir, &["report", out.to_str().unwrap(), "--json", "--by", by]));
    let workloads = report["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 1, "{report}");
    assert_eq!(workloads[0]["origin"], "imported");
    assert!(workloads[0]["notes"].is_array(), "{report}");
    Through {
        imported,
        report: workloads[0].clone(),
        windows: tumbling.iter().filter_map(|window| window.energy_joules).sum(),
        unassigned: tumbling.iter().map(|window| window.unassigned_energy_joules).sum(),
    }
}

fn mlperf(model: &str, run: &str, node: &str, by: &str) -> Option<Value> {
    let data = shared_data()?.join("mlperf-train-v4.0-smc-8xH100").join(model);
    let dir = tempfile::tempdir().unwrap();
    let power = data.join(format!("power/result_{run}/{node}.txt"));
    let files = [data.join(format!("result_{run}.txt")), power.clone()];
    let through = through(dir.path(), &["mlperf"], &files, &[], by);
    let whole = trapezoid(power_readings(&power));
    near("windows and unassigned of the whole log", &Value::from(through.windows + through.unassigned), whole, 1e-9);
    Some(through.report)
}

/// Seconds and watts of a node's log, read without the importer.
fn power_readings(path: &Path) -> Vec<(f64, f64)> {
    let text = std::fs::read_to_string(path).unwrap();
    let entries = text.lines().filter_map(|line| line.split_once(":::MLLOG ").map(|(_, json)| json));
    let entries = entries.map(|json| serde_json::from_str::<Value>(json).unwrap());
    let readings = entries.filter(|entry| entry["key"] == "power_reading");
    readings.map(|entry| (entry["time_ms"].as_f64().unwrap() / 1e3, entry["value"].as_f64().unwrap())).collect()
}

/// Joules from the first to the last reading; readings of one time are averaged.
fn trapezoid(mut readings: Vec<(f64, f64)>) -> f64 {
    readings.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = |group: &[(f64, f64)]| (group[0].0, group.iter().map(|(_, watts)| watts).sum::<f64>() / group.len() as f64);
    let points: Vec<(f64, f64)> = readings.chunk_by(|a, b| a.0 == b.0).map(mean).collect();
    assert!(points.len() > 10);
    points.windows(2).map(|pair| f64::midpoint(pair[0].1, pair[1].1) * (pair[1].0 - pair[0].0)).sum()
}

/// Energies in the windows and what fits in none of them are the whole.
fn windows_sum_to_the_whole(report: &Value) {
    let windows: f64 = report["by_window"].as_array().unwrap().iter().filter_map(|w| w["energy_joules"].as_f64()).sum();
    let unassigned = report["unassigned_energy_joules"].as_f64().unwrap_or(0.0);
    near("windows and unassigned", &Value::from(windows + unassigned), report["energy_joules"].as_f64().unwrap(), 1e-6);
}

#[test]
fn mlperf_bert_5119_06() {
    let Some(report) = mlperf("bert", "5119-240510190348838227199_06", "node_0", "window") else { return };
    near("energy", &report["energy_joules"], 1_878_755.6, 0.001);
    near("duration", &report["duration_seconds"], 277.048, 0.001);
    near("power", &report["mean_power_watts"], 6781.34, 0.001);
    near("samples", &report["samples"], 2_100_792.0, 1e-9);
    near("J/sequence", &report["joules_per_sample"], 0.894_308, 0.001);
    windows_sum_to_the_whole(&report);
}

#[test]
fn mlperf_bert_5120_07() {
    let Some(report) = mlperf("bert", "5120-240510190402846980797_07", "node_0", "window") else { return };
    near("energy", &report["energy_joules"], 2_204_818.6, 0.001);
    near("duration", &report["duration_seconds"], 318.2, 0.001);
    near("samples", &report["samples"], 2_400_396.0, 1e-9);
    near("J/sequence", &report["joules_per_sample"], 0.918_523, 0.001);
}

#[test]
fn mlperf_on_eight_b200() {
    let Some(data) = shared_data() else { return };
    for (model, seconds, joules, per_sample) in
        [("bert", 220.176, 2_142_302.6, 0.840_29), ("llama2_70b_lora", 655.908, 6_285_160.2, 2045.95)]
    {
        let folder = data.join("mlperf-train-v5.0-lenovo-8xB200").join(model);
        if !folder.exists() {
            eprintln!("skipped: {} is not there", folder.display());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let files = [folder.join("result_0.txt"), folder.join("power/result_0/node_0.txt")];
        let through = through(dir.path(), &["mlperf"], &files, &[], "window");
        near(model, &through.report["duration_seconds"], seconds, 1e-6);
        near(model, &through.report["energy_joules"], joules, 1e-6);
        near(model, &through.report["joules_per_sample"], per_sample, 1e-5);
        assert_eq!(through.imported["notes"].as_array().map(Vec::len), Some(0), "{}", through.imported["notes"]);
    }
}

#[test]
fn mlperf_llama_and_its_training_blocks() {
    let Some(report) = mlperf("llama2_70b_lora", "5027-240510020224961918558_3", "node_0", "span") else { return };
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
    let Some(report) = mlperf("resnet", "5762-240517075402404624683_3", "node_1", "span") else { return };
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
    let through = through(dir.path(), &["mlperf-inference"], &files, &[], "window");
    let report = through.report;
    near("energy", &report["energy_joules"], 3_646_359.8, 0.001);
    near("duration", &report["duration_seconds"], 659.229, 0.001);
    near("power", &report["mean_power_watts"], 5531.249, 0.001);
    near("samples/J", &report["samples_per_joule"], 9.77414, 0.001);
    let rate = report["samples"].as_f64().unwrap() / report["duration_seconds"].as_f64().unwrap();
    near("samples/s", &Value::from(rate), 54_063.2, 0.001);
    assert_eq!(report["meter"], "wall");
    windows_sum_to_the_whole(&report);
    // The power analyser's whole log, read without the importer: Time,MM-DD-YYYY HH:MM:SS.mmm,Watts,…
    let text = std::fs::read_to_string(data.join("spl.txt")).unwrap();
    let reading = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let (_, clock) = cells[1].split_once(' ').unwrap();
        let clock: Vec<f64> = clock.split(':').map(|part| part.parse().unwrap()).collect();
        (clock[0] * 3600.0 + clock[1] * 60.0 + clock[2], cells[3].parse().unwrap())
    };
    let readings: Vec<(f64, f64)> = text.lines().filter(|line| line.starts_with("Time,")).map(reading).collect();
    assert!(readings.len() >= 735, "{}", readings.len());
    near("windows and unassigned", &Value::from(through.windows + through.unassigned), trapezoid(readings), 1e-9);
}

/// Watts of the rows of a dcgmi log, read without the importer.
fn dcgmi_watts(path: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let head: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    // The header begins with "#Entity" or "# Entity", rows with "GPU 0".
    let power = head.iter().rev().position(|name| *name == "POWER").unwrap();
    let rows = text.lines().map(str::trim_start).filter(|line| line.starts_with("GPU"));
    rows.map(|line| line.split_whitespace().rev().nth(power).unwrap().parse().unwrap()).collect()
}

#[test]
fn dcgmi_counters_are_exact_and_compared_with_the_integral() {
    let Some(data) = shared_data() else { return };
    for (file, rows, joules, estimate) in [
        ("GA100-bfs-1410-1", 592_u32, 1353.012, 1332.649),
        ("GA100-bfs-1005-0", 608, 1136.845, 1128.900),
        ("GA100-bfs-510-0", 729, 1291.573, 1284.262),
        ("GA100-lud-1410-0", 590, 2623.599, 2604.087),
        ("GA100-lud-1005-0", 662, 2081.828, 2060.512),
        ("GA100-lud-510-0", 1150, 2831.456, 2808.834),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = data.join("a100-dcgmi-raw").join(format!("{file}.txt"));
        let through = through(dir.path(), &["dcgmi", "--interval", "20ms"], std::slice::from_ref(&path), &[], "window");
        let report = &through.report;
        near(file, &report["energy_joules"], joules, 1e-9);
        near(file, &Value::from(through.windows + through.unassigned), joules, 1e-9);
        // The log is so long, not as long as the windows that it touches.
        let seconds = f64::from(rows - 1) * 0.02;
        near("duration", &report["duration_seconds"], seconds, 1e-9);
        near("coverage", &report["coverage_ratio"], 1.0, 1e-9);
        near("power", &report["mean_power_watts"], joules / seconds, 1e-6);
        let of_rows: f64 =
            report["by_window"].as_array().unwrap().iter().map(|row| row["duration_seconds"].as_f64().unwrap()).sum();
        near("duration of the rows", &Value::from(of_rows), seconds, 1e-9);

        // The README's estimate is the plain sum; the trapezoid has half of the first and of the last row less.
        let watts = dcgmi_watts(&path);
        assert_eq!(watts.len(), rows as usize, "{file}");
        let integral = estimate - 0.02 * f64::midpoint(watts[0], watts[watts.len() - 1]);
        let counters = through.imported["counters"].as_array().unwrap();
        assert_eq!(counters.len(), 1, "{}", through.imported);
        near("integral", &counters[0]["integral_joules"], integral, 1e-6);
        near("counter", &counters[0]["counter_joules"], joules, 1e-9);
        let difference = counters[0]["difference_ratio"].as_f64().unwrap();
        assert!((difference - (joules / integral - 1.0)).abs() < 2e-6, "{file}: {difference}");
    }
}

#[test]
fn a_request_trace_has_tokens_gaps_and_empty_windows() {
    let Some(data) = shared_data() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = data.join("azure-llm-trace-2023/AzureLLMInferenceTrace_code.csv");
    let import = ["csv", "--map", "samples=*", "--map", "tokens=GeneratedTokens"];
    let through = through(dir.path(), &import, std::slice::from_ref(&path), &["--align", "run"], "window");
    let report = &through.report;
    let rows = report["by_window"].as_array().unwrap();
    let column = |name: &str| -> Vec<f64> { rows.iter().map(|w| w[name].as_f64().unwrap_or(0.0)).collect() };
    let (samples, tokens) = (column("samples"), column("tokens"));
    assert_eq!(samples.len(), 58);
    assert_eq!(samples.iter().filter(|samples| **samples == 0.0).count(), 12, "{samples:?}");
    assert_eq!((samples[0], tokens[0]), (63.0, 1478.0));
    let busiest = (0..tokens.len()).max_by(|a, b| tokens[*a].total_cmp(&tokens[*b])).unwrap();
    assert_eq!((busiest, tokens[busiest]), (14, 16_642.0));
    assert_eq!((report["samples"].as_f64(), report["tokens"].as_f64()), (Some(8819.0), Some(245_896.0)));
    near("duration", &report["duration_seconds"], 3435.948, 1e-6);
    for unknown in ["energy_joules", "tokens_per_joule", "samples_per_joule", "joules_per_sample", "meter", "mean_power_watts"] {
        assert!(report[unknown].is_null(), "no power was recorded: unknown, not zero: {unknown} is {}", report[unknown]);
    }
    let shown = text(eadt(dir.path(), &["report", dir.path().join("replayed").to_str().unwrap()])).0;
    assert!(shown.contains("tokens") && shown.contains("245,896"), "{shown}");

    // Silences of at least a minute and ten median intervals, read without the importer.
    let raw = std::fs::read_to_string(&path).unwrap();
    let second = |line: &str| -> f64 {
        let clock = line.split(',').next().unwrap().split(' ').nth(1).unwrap();
        clock.split(':').fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
    };
    let mut times: Vec<f64> = raw.lines().skip(1).map(second).collect();
    times.sort_by(f64::total_cmp);
    let mut steps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let silent: Vec<f64> = steps.iter().copied().filter(|step| *step > 60.0).collect();
    steps.sort_by(f64::total_cmp);
    assert!(steps[steps.len() / 2] < 6.0, "a minute is more than ten median intervals");
    let gaps: Vec<f64> =
        through.imported["gaps"].as_array().unwrap().iter().map(|gap| gap["seconds"].as_f64().unwrap()).collect();
    assert_eq!(gaps.len(), silent.len(), "{gaps:?} instead of {silent:?}");
    assert!(!gaps.is_empty());
    for (gap, step) in gaps.iter().zip(&silent) {
        assert!((gap - step).abs() < 1e-5, "{gap} instead of {step}");
    }

    // The prompts' tokens are in another column of the same trace.
    let dir = tempfile::tempdir().unwrap();
    let import = ["csv", "--map", "samples=*", "--map", "tokens=ContextTokens"];
    let through = self::through(dir.path(), &import, &[path], &["--align", "run"], "window");
    assert_eq!(through.report["tokens"].as_f64(), Some(18_059_974.0));
}

/// Joules of a workload up to a time by its devices' counters, or by their power if they have none; read from the log's lines
/// alone.
fn joules_until(samples: &[&Value], end: f64) -> f64 {
    let number = |event: &Value, name: &str| event["data"][name].as_f64();
    let mut devices: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    for event in samples {
        let name = |field: &str| event["data"][field].as_str().unwrap();
        devices.entry((name("device"), name("collector"))).or_default().push(event);
    }
    let mut sum = 0.0;
    for events in devices.values() {
        for pair in events.windows(2) {
            let (from, to) = (seconds(&pair[0]["data"]["time"]), seconds(&pair[1]["data"]["time"]));
            let part = (end.min(to) - from) / (to - from);
            if to <= from || part <= 0.0 || pair[0]["data"]["tenure"] != pair[1]["data"]["tenure"] {
                continue;
            }
            let both = |name: &str| number(pair[0], name).zip(number(pair[1], name));
            let (first, second) = both("share").unwrap_or((1.0, 1.0));
            sum += match (both("energy_joules_total"), both("power_watts")) {
                (Some((before, after)), _) if after >= before => (after - before) * part * (first + second) / 2.0,
                (_, Some((before, after))) => {
                    let (before, after) = (before * first, after * second);
                    (before + (before + (after - before) * part)) / 2.0 * (to - from) * part
                }
                _ => 0.0,
            };
        }
    }
    sum
}

/// Seconds since 1970 of a time as the events have it.
fn seconds(time: &Value) -> f64 {
    let time: eadt_schemas::EventTime = time.as_str().unwrap().parse().unwrap();
    time.seconds_since(eadt_schemas::EventTime::from_micros(0))
}

#[test]
fn windows_and_unassigned_of_a_simulated_log_are_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    json(eadt(dir.path(), &["up", "--speed", "max", "--duration", "90m", "--json", "--no-view", "--seed", "11"]));
    let log = dir.path().join("record.jsonl");
    let (_, err, good) = text(eadt(dir.path(), &["record", "--out", log.to_str().unwrap()]));
    assert!(good, "{err}");
    let events: Vec<Value> =
        std::fs::read_to_string(&log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str, workload: &str| -> Vec<&Value> {
        events.iter().filter(|e| e["type"] == kind && e["data"]["workload"] == workload).collect()
    };
    for workload in ["eadt/llm-training", "eadt/vision-pretraining"] {
        let windows = of("io.eadt.efficiency.window.v1", workload);
        let windows: Vec<&Value> = windows.into_iter().filter(|w| w["data"]["span"].is_null()).collect();
        assert!(windows.len() >= 80, "{workload}: {}", windows.len());
        let sum = |name: &str| windows.iter().filter_map(|w| w["data"][name].as_f64()).sum::<f64>();
        let known = sum("energy_joules") + sum("unassigned_energy_joules");
        let end = windows.iter().map(|w| seconds(&w["data"]["window_end"])).fold(f64::MIN, f64::max);
        let whole = joules_until(&of("io.eadt.gpu.telemetry.v1", workload), end);
        near(workload, &Value::from(known), whole, 1e-9);
        assert!(windows.iter().any(|w| w["data"]["restarted"] == true), "nothing was changed: the easy case only");
    }
}

#[test]
fn an_import_is_explained_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let smi = dir.path().join("smi.csv");
    let rows = (0..5).map(|second| format!("2025/07/03 12:00:0{second}.000, 0, 100.00 W, P0\n")).collect::<Vec<_>>().concat();
    std::fs::write(&smi, format!("timestamp, index, power.draw [W], pstate\n{rows}")).unwrap();
    let smi = smi.to_str().unwrap();
    let run = |arguments: &[&str], zone: &str| {
        let mut command = eadt(dir.path(), arguments);
        command.env("TZ", zone);
        text(command)
    };
    let (out, err, good) = run(&["import", "--explain", smi], "CET-1CEST,M3.5.0,M10.5.0/3");
    assert!(good, "{out}{err}");
    for part in [
        "format: nvidia-smi",
        "UTF-8 text",
        "separator: ','",
        "left out: pstate",
        "read as CET-1CEST",
        "boards: 1",
        "5 readings, 2025-07-03T10:00:00",
        "nothing is written",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (out, _, good) = run(&["import", "--dry-run", "nvidia-smi", smi, "--time-zone", "-07:00"], "");
    assert!(good && out.contains("2025-07-03T19:00:00"), "{out}");
    let (out, _, good) = run(&["import", "csv", smi, "--explain"], "");
    assert!(good && out.contains("if so: --map 'power_watts=power.draw [W]'"), "{out}");
    let (_, err, good) = run(&["import", smi, "--out", "x.jsonl"], "");
    assert!(!good && err.contains("looks like nvidia-smi, so use `eadt import nvidia-smi"), "{err}");
    let (_, err, good) = run(&["import", "nvidia-smi", smi, "--time-zone", "Nowhere", "--out", "x.jsonl"], "");
    assert!(!good && err.contains("\"Nowhere\" is not known here; for example Europe/Berlin"), "{err}");
    let files =
        std::fs::read_dir(dir.path()).unwrap().filter_map(Result::ok).filter(|f| f.path().extension() != Some("csv".as_ref()));
    assert!(files.filter(|file| file.path().is_file()).count() == 0, "something was written");
}

/// Rows of a log of one board, a second apart, and a further line.
fn smi(column: &str, id: &str, watts: u32, line: &str) -> String {
    let row = |second: u32| format!("2025/07/03 12:00:{second:02}.000, {id}, {watts}.00 W\n");
    format!("timestamp, {column}, power.draw [W]\n{}{line}", (0..=40).map(row).collect::<String>())
}

#[test]
fn an_import_that_refused_rows_ends_with_a_status_of_its_own_and_its_log_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let torn = "2025/07/03 12:00:41.000, GPU-1\n";
    let rows = "2025/07/03 12:00:41.000, GPU-1, many W\n".repeat(50);
    for (what, line, expected, message) in [
        ("whole", "", Some(0), ""),
        ("absent", "2025/07/03 12:00:41.000, GPU-1, [N/A]\n", Some(0), ""),
        ("header", "# noise\ntimestamp, uuid, power.draw [W]\n", Some(0), ""),
        ("torn", torn, Some(3), "the events lack what was refused, 1 line: "),
        ("most", rows.as_str(), Some(1), "\"many W\" is not a number"),
    ] {
        let (csv, log) = (dir.path().join(format!("{what}.csv")), dir.path().join(format!("{what}.jsonl")));
        std::fs::write(&csv, smi("uuid", "GPU-1", 100, line)).unwrap();
        let import = |more: &[&str]| {
            let arguments = ["import", "nvidia-smi", csv.to_str().unwrap(), "--workload", "lab/run"];
            eadt(dir.path(), &[&arguments[..], more].concat())
        };
        let (err, code) = status(import(&["--out", log.to_str().unwrap()]));
        assert_eq!(code, expected, "{what}: {err}");
        assert!(err.contains(message) && err.contains("refused") == (expected == Some(3)), "{what}: {err}");
        assert_eq!(log.exists(), expected != Some(1), "{what}");
        if expected == Some(1) {
            continue;
        }
        // `--explain` ends with success, and programs can read the refusals.
        assert_eq!(status(import(&["--explain"])).1, Some(0), "{what}");
        let output = import(&["--json", "--force", "--out", log.to_str().unwrap()]).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let refused: Vec<_> = report["refused"].as_array().unwrap().iter().map(|one| one["first_line"].as_u64()).collect();
        let lines = if expected == Some(3) { vec![Some(43)] } else { Vec::new() };
        assert_eq!((output.status.code(), refused), (expected, lines), "{what}: {report}");
        let replayed = json(eadt(dir.path(), &["replay", log.to_str().unwrap(), "--close", "--json"]));
        assert_eq!((&replayed["events"], &replayed["refused"]), (&Value::from(41), &Value::from(0)), "{what}");
    }
}

#[test]
fn imports_made_apart_of_files_of_one_name_are_replayed_as_two_boards() {
    let dir = tempfile::tempdir().unwrap();
    // Each from within its folder, as on its node.
    let logs: Vec<String> = [("n1", 100), ("n2", 300)]
        .map(|(node, watts)| {
            let folder = dir.path().join(node);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("smi.csv"), smi("index", "0", watts, "")).unwrap();
            let mut import = eadt(&folder, &["import", "nvidia-smi", "smi.csv", "--workload", "lab/run", "--out", "log.jsonl"]);
            import.current_dir(&folder);
            let (err, code) = status(import);
            assert_eq!(code, Some(0), "{err}");
            folder.join("log.jsonl").to_str().unwrap().to_owned()
        })
        .to_vec();
    for (what, logs, watts) in [("two nodes", &logs[..], 400.0), ("one twice", &[logs[0].clone(), logs[0].clone()][..], 100.0)] {
        let out = dir.path().join(what);
        let mut arguments = vec!["replay", "--close", "--json", "--out", out.to_str().unwrap()];
        arguments.extend(logs.iter().map(String::as_str));
        let replayed = json(eadt(dir.path(), &arguments));
        let report = json(eadt(dir.path(), &["report", out.to_str().unwrap(), "--json"]));
        near(what, &report["workloads"][0]["energy_joules"], 40.0 * watts, 1e-9);
        assert_eq!(replayed["duplicates"], if what == "two nodes" { 0 } else { 41 }, "{replayed}");
    }
}
