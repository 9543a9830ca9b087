//! Real recordings through the pure pipeline: import, fold, report, against figures that were computed independently.
//! Skipped, with a message, where they are absent.

use crate::support;

use eadt_core::{FoldOutput, FoldSettings, InputEvent, InputRecord, PartitionFold};
use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFormat};
use eadt_report::{ReportBreakdown, ReportSettings, Reporter, WorkloadReport};
use eadt_schemas::Topic;
use eadt_schemas::v1::{EfficiencyWindow, WindowKind};
use eadt_testing::shared_data;
use support::{maps, read, read_texts};

/// As a replay of a log without stamps does it.
fn fold(imported: &ImportedRecording, align_to_run: bool) -> Vec<EfficiencyWindow> {
    fold_all(&[imported], align_to_run)
}

/// As a replay of several logs does it.
fn fold_all(imported: &[&ImportedRecording], align_to_run: bool) -> Vec<EfficiencyWindow> {
    let settings = FoldSettings { max_future: None, idle_grace: None, align_to_run, ..FoldSettings::default() };
    let mut partition = PartitionFold::new(settings);
    let mut out = Vec::new();
    let mut events: Vec<_> = imported.iter().flat_map(|imported| imported.events()).collect();
    events.sort_by_key(|event| event.time);
    for event in events {
        let data = event.data.as_ref().unwrap().get().as_bytes();
        let key = event.key.as_deref();
        let topic = event.topic().unwrap();
        if topic == Topic::GpuTelemetry {
            let sample = eadt_schemas::decode(data).unwrap();
            let (stamp, event) = (event.time, InputEvent::Telemetry(&sample));
            partition.fold(&InputRecord { topic, stamp, key, is_sent_again: false, event }, &mut out);
        } else {
            let progress = eadt_schemas::decode(data).unwrap();
            let (stamp, event) = (event.time, InputEvent::Progress(&progress));
            partition.fold(&InputRecord { topic, stamp, key, is_sent_again: false, event }, &mut out);
        }
    }
    partition.finish(&mut out);
    let window = |output| match output {
        FoldOutput::Window(window) => Some(*window),
        FoldOutput::Decision(_) => None,
        FoldOutput::Refused(refusal) => panic!("refused: {refusal}"),
    };
    out.into_iter().filter_map(window).collect()
}

fn report(windows: &[EfficiencyWindow]) -> WorkloadReport {
    let mut reporter = Reporter::default();
    for window in windows {
        reporter.add_window(window);
    }
    let settings = ReportSettings { by: Some(ReportBreakdown::Span), ..ReportSettings::default() };
    let mut workloads = reporter.build_report(&settings).workloads;
    assert_eq!(workloads.len(), 1);
    workloads.remove(0)
}

fn near(got: Option<f64>, expected: f64, relative: f64) {
    let got = got.expect("known");
    assert!((got / expected - 1.0).abs() <= relative, "{got} instead of {expected}");
}

fn training(benchmark: &str, run: &str, node: &str) -> Option<(Vec<EfficiencyWindow>, WorkloadReport)> {
    let files = [format!("{benchmark}/{run}.txt"), format!("{benchmark}/power/{run}/{node}.txt")];
    let folder = shared_data("mlperf-train-v4.0-smc-8xH100")?;
    let imported = read(RecordingFormat::Mlperf, &folder, &[&files[0], &files[1]], &ImportOptions::default());
    let windows = fold(&imported, false);
    let report = report(&windows);
    Some((windows, report))
}

#[test]
fn bert() {
    for (run, seconds, joules, samples) in [
        ("result_5119-240510190348838227199_06", 277.048, 1_878_755.6, 2_100_792.0),
        ("result_5120-240510190402846980797_07", 318.2, 2_204_818.6, 2_400_396.0),
    ] {
        let Some((_, it)) = training("bert", run, "node_0") else { return };
        near(it.duration_seconds, seconds, 1e-9);
        near(it.energy_joules, joules, 1e-5);
        near(it.samples, samples, 1e-9);
        near(it.joules_per_sample, joules / samples, 1e-5);
        near(it.mean_power_watts, joules / seconds, 1e-5);
        near(it.coverage_ratio, 1.0, 1e-9);
    }
}

#[test]
fn bert_windows_from_the_start_of_the_run() {
    let folder = shared_data("mlperf-train-v4.0-smc-8xH100");
    let Some(folder) = folder else { return };
    let run = "result_5119-240510190348838227199_06";
    let files = [format!("bert/{run}.txt"), format!("bert/power/{run}/node_0.txt")];
    let windows = fold(&read(RecordingFormat::Mlperf, &folder, &[&files[0], &files[1]], &ImportOptions::default()), true);
    let inside: Vec<_> = windows.iter().filter(|w| w.kind == WindowKind::Tumbling && w.run_seconds == 60.0).collect();
    assert_eq!(inside.len(), 4);
    for (window, watts) in inside.into_iter().zip([6638.41, 6785.93, 6809.92, 6830.30]) {
        near(window.run_energy_joules.map(|joules| joules / 60.0), watts, 1e-5);
    }
}

#[test]
fn llama2_blocks() {
    let Some((_, it)) = training("llama2_70b_lora", "result_5027-240510020224961918558_3", "node_0") else { return };
    near(it.energy_joules, 12_091_999.0, 1e-5);
    near(it.samples, 3072.0, 1e-9);
    near(it.joules_per_sample, 3936.198, 1e-5);
    let spans = it.by_span.unwrap();
    let blocks: Vec<_> = spans.iter().filter(|span| span.span.starts_with("block")).collect();
    let expected = [
        (1536.0, 754.958, 5_383_136.4),
        (384.0, 184.332, 1_336_888.6),
        (384.0, 183.922, 1_334_031.4),
        (384.0, 183.759, 1_333_719.8),
        (384.0, 184.032, 1_329_547.6),
    ];
    assert_eq!(blocks.len(), expected.len());
    for (block, (samples, seconds, joules)) in blocks.into_iter().zip(expected) {
        near(block.samples, samples, 1e-9);
        near(Some(block.duration_seconds), seconds, 1e-5);
        near(block.energy_joules, joules, 1e-5);
    }
}

#[test]
fn resnet_epochs() {
    let Some((_, it)) = training("resnet", "result_5762-240517075402404624683_3", "node_1") else { return };
    near(it.duration_seconds, 802.035, 1e-9);
    near(it.energy_joules, 5_678_892.6, 1e-5);
    near(it.coverage_ratio, 0.997_76, 1e-5);
    near(it.samples, 35.0 * 1_281_167.0, 1e-9);
    let spans = it.by_span.unwrap();
    let epochs: Vec<_> = spans.iter().filter(|span| span.span.starts_with("epoch")).collect();
    assert_eq!(epochs.len(), 35);
    near(epochs[1].energy_joules, 160_998.4, 1e-5);
    let total =
        |figure: fn(&eadt_report::SpanRow) -> Option<f64>| epochs[1..34].iter().filter_map(|span| figure(span)).sum::<f64>();
    near(Some(total(|span| span.samples) / total(|span| span.energy_joules)), 7.92417, 1e-5);
}

#[test]
fn inference_at_the_wall() {
    let Some(folder) = shared_data("mlperf-inf-v4.1-8xH200-MaxQ") else { return };
    let files = ["bert-99__Offline/mlperf_log_detail.txt", "bert-99__Offline/spl.txt"];
    let it = report(&fold(&read(RecordingFormat::MlperfInference, &folder, &files, &ImportOptions::default()), false));
    near(it.duration_seconds, 659.229, 1e-9);
    near(it.energy_joules, 3_646_359.8, 1e-5);
    near(it.joules_per_sample, 1.0 / 9.77414, 1e-5);
}

#[test]
fn azure_windows_have_their_requests_and_their_gaps() {
    let Some(folder) = shared_data("azure-llm-trace-2023") else { return };
    let maps = ["samples=*", "tokens=GeneratedTokens"].map(|map| map.parse().unwrap()).to_vec();
    let imported = read(
        RecordingFormat::Csv,
        &folder,
        &["AzureLLMInferenceTrace_code.csv"],
        &ImportOptions { maps, ..ImportOptions::default() },
    );
    let all = fold(&imported, true);
    let windows: Vec<_> = all.iter().filter(|window| window.run_seconds > 0.0).collect();
    assert_eq!(windows.len(), 58);
    assert_eq!(windows.iter().filter(|window| window.samples == Some(0.0)).count(), 12);
    near(windows[0].samples, 63.0, 1e-9);
    near(windows[0].tokens, 1478.0, 1e-9);
    near(windows[14].tokens, 16_642.0, 1e-9);
    assert!(windows.iter().all(|window| window.energy_joules.is_none()));
    let it = report(&all);
    near(it.samples, 8819.0, 1e-9);
    near(it.duration_seconds, 3435.948, 1e-6);
    assert_eq!((it.energy_joules, it.coverage_ratio, it.joules_per_sample), (None, Some(0.0), None));
}

#[test]
fn dcgmi_windows_and_unassigned_add_up_to_the_counter() {
    let Some(folder) = shared_data("a100-dcgmi-raw") else { return };
    let options = ImportOptions { interval: Some(std::time::Duration::from_millis(20)), ..ImportOptions::default() };
    for (file, joules) in [("GA100-bfs-1410-1.txt", 1353.012), ("GA100-lud-510-0.txt", 2831.456)] {
        let it = report(&fold(&read(RecordingFormat::Dcgmi, &folder, &[file], &options), false));
        near(it.energy_joules, joules, 1e-9);
    }
}

#[test]
fn what_rows_count_has_the_time_of_the_energy_that_they_add() {
    let clock = |seconds: u32| format!("2025-02-03T10:{:02}:{:02}Z", seconds / 60, seconds % 60);
    let amounts = |row: u32| format!("{},{}", 18 * (1000 + 100 * (row % 3)), 1000 + 100 * (row % 3));
    let table = |header: &str, row: &dyn Fn(u32) -> String| format!("{header}\n{}", (1..=6).map(row).collect::<String>());
    let since_before = |offset: u32| table("time,j,n", &|row| format!("{},{}\n", clock(60 * row + offset), amounts(row)));
    let duration = table("finished,duration,j,n", &|row| format!("{},60,{}\n", clock(60 * row), amounts(row)));
    let both_ends = table("start,end,j,n", &|row| format!("{},{},{}\n", clock(60 * row - 60), clock(60 * row), amounts(row)));
    let requests = table("time,j,n", &|row| format!("{},{}\n", clock(57 + 40 * row), amounts(row)));
    for (what, text, time) in [
        ("on edges of windows", since_before(0), "time=time"),
        ("beside them", since_before(7), "time=time"),
        ("durations", duration, "time=finished"),
        ("starts and ends", both_ends, "time=start"),
        ("shorter than a window", requests, "time=time"),
    ] {
        let options = maps(&[time, "energy_joules=j:J", "samples=n"]);
        let imported =
            read_texts(RecordingFormat::Csv, &[("t.csv", &text)], &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        let windows = fold(&imported, false);
        let it = report(&windows);
        near(it.samples, 6600.0, 1e-9);
        near(it.joules_per_sample, 18.0, 1e-6);
        let counted = windows.iter().filter(|window| window.kind == WindowKind::Tumbling);
        let counted: Vec<(f64, f64)> = counted.filter_map(|window| window.energy_joules.zip(window.samples)).collect();
        assert!(counted.len() >= 4, "{what}: {counted:?}");
        assert!(counted.iter().all(|(joules, samples)| (joules - 18.0 * samples).abs() < 0.1), "{what}: {counted:?}");
    }
}

#[test]
fn what_rows_count_without_energy_has_the_time_since_the_row_before_or_its_own() {
    let clock = |seconds: u32| format!("2025-02-03T10:{:02}:{:02}Z", seconds / 60, seconds % 60);
    let csv = RecordingFormat::Csv;
    let read = |text: &str, options: &[&str]| read_texts(csv, &[("t.csv", text)], &maps(options)).unwrap();
    // 300 W and 250 samples a second.
    for (what, every, before) in [("epochs", 200, 5), ("steps", 20, 0), ("batches", 1, 0)] {
        let last = 600 - before;
        let is_row = |second: u32| second > 0 && (second + before).is_multiple_of(every);
        let rows = |row: &dyn Fn(u32) -> Option<String>| (0..=last).filter_map(row).collect::<String>();
        let power = rows(&|second| Some(format!("{},300\n", clock(second))));
        let power = read(&format!("time,w\n{power}"), &["power_watts=w:W"]);
        let amount = |second: u32| if is_row(second) { (250 * every).to_string() } else { String::new() };
        let length = |second: u32| if is_row(second) { every.min(second).to_string() } else { String::new() };
        let own = |second: u32| {
            let start = second.saturating_sub(every);
            is_row(second).then(|| format!("{},{},{}\n", clock(start), clock(second), amount(second)))
        };
        let own = format!("start_time,end_time,n\n{}", rows(&own));
        let plain = rows(&|second| is_row(second).then(|| format!("{},{}\n", clock(second), amount(second))));
        let beside = rows(&|second| Some(format!("{},300,{}\n", clock(second), amount(second))));
        let both = rows(&|second| Some(format!("{},300,{},{}\n", clock(second), length(second), amount(second))));
        let with_power = ["power_watts=w:W", "samples=n"];
        for (times, windows) in [
            ("none", fold_all(&[&power, &read(&format!("time,n\n{plain}"), &["samples=n"])], false)),
            ("starts", fold_all(&[&power, &read(&own, &["time=start_time", "samples=n"])], false)),
            ("ends", fold_all(&[&power, &read(&own, &["time=end_time", "samples=n"])], false)),
            ("none, beside power", fold(&read(&format!("time,w,n\n{beside}"), &with_power), false)),
            ("durations beside power", fold(&read(&format!("time,w,duration,n\n{both}"), &with_power), false)),
        ] {
            let it = report(&windows);
            near(it.samples, 150_000.0, 1e-9);
            near(it.joules_per_sample, 1.2, 0.01);
            let tumbling = windows.iter().filter(|window| window.kind == WindowKind::Tumbling);
            let with_energy: Vec<(f64, f64)> = tumbling
                .filter_map(|window| window.energy_joules.zip(window.samples))
                .filter(|(joules, _)| *joules > 3000.0)
                .collect();
            assert_eq!(with_energy.len(), 10, "{what}, {times}: {with_energy:?}");
            let is_right = |(joules, samples): &(f64, f64)| (joules / samples - 1.2).abs() < 0.06;
            assert!(with_energy.iter().all(is_right), "{what}, {times}: {with_energy:?}");
        }
    }
}

#[test]
fn what_rows_of_several_nodes_count_has_the_time_since_the_row_before_of_each() {
    let clock = |millis: u32| {
        let seconds = millis / 1000;
        format!("2025-02-03T10:{:02}:{:02}.{:03}Z", seconds / 60, seconds % 60, millis % 1000)
    };
    let read = |text: &str, options: &[&str]| read_texts(RecordingFormat::Csv, &[("t.csv", text)], &maps(options)).unwrap();
    let rows: Vec<String> = (0..=600).map(|second| format!("{},300\n", clock(1000 * second))).collect();
    let power = read(&format!("time,w\n{}", rows.concat()), &["power_watts=w:W"]);
    for (column, map) in [("node", &["node=node", "samples=n"][..]), ("rank", &["samples=n"][..])] {
        for millis in [0, 4, 300] {
            let row = |second: u32, node: u32| format!("{},{node},{}\n", clock(1000 * second + millis * node), 25_000 + node);
            let rows = [195, 395, 595].into_iter().flat_map(|second| [row(second, 0), row(second, 1)]);
            let progress = read(&format!("time,{column},n\n{}", rows.collect::<String>()), map);
            let it = report(&fold_all(&[&power, &progress], false));
            near(it.samples, 150_003.0, 1e-9);
            near(it.joules_per_sample, 1.2, 0.01);
        }
    }
}

#[test]
fn what_a_row_counts_after_a_pause_is_not_of_the_pause() {
    let clock = |seconds: u32| format!("2025-02-03T{:02}:{:02}:{:02}Z", 10 + seconds / 3600, seconds / 60 % 60, seconds % 60);
    let row = |row: u32| format!("{},600\n", clock(60 * row + if row > 10 { 7200 } else { 0 }));
    let text = format!("time,n\n{}", (1..=20).map(row).collect::<String>());
    let imported = read_texts(RecordingFormat::Csv, &[("t.csv", &text)], &maps(&["samples=n"])).unwrap();
    let windows = fold(&imported, false);
    let counted: Vec<f64> = windows.iter().filter_map(|window| window.samples).filter(|samples| *samples > 0.0).collect();
    assert_eq!(counted.len(), 20, "{counted:?}");
    assert!(counted.iter().all(|samples| (samples - 600.0).abs() < 1.0), "{counted:?}");
}

#[test]
fn readings_without_power_leave_the_energy_of_those_with_it() {
    let clock = |seconds: u32| format!("10:{:02}:{:02}", seconds / 60, seconds % 60);
    let smi = |second: u32| {
        let power = if second.is_multiple_of(2) { "300.00 W" } else { "[N/A]" };
        format!("2025/02/03 {}.000, 0, {power}, 97 %\n", clock(second))
    };
    let smi = (0..=120).map(smi).collect::<String>();
    let smi = format!("timestamp, index, power.draw.instant [W], utilization.gpu [%]\n{smi}");
    let csv = |row: u32| format!("2025-02-03T{}Z,{},60\n", clock(2 * row), if row.is_multiple_of(5) { "300" } else { "" });
    let csv = format!("time,power,temp\n{}", (0..=60).map(csv).collect::<String>());
    let series = |name: &str, labels: &str, value: &str, offset: u32, count: u32| {
        let value = |i: u32| format!("[{},\"{value}\"]", 1_738_576_800 + 15 * i + offset);
        let values = (0..count).map(value).collect::<Vec<_>>().join(",");
        format!("{{\"metric\":{{\"__name__\":\"{name}\",{labels}}},\"values\":[{values}]}}")
    };
    let power = series("DCGM_FI_DEV_POWER_USAGE", "\"gpu\":\"0\",\"UUID\":\"GPU-a\"", "300", 0, 9);
    let utilization = series("nvidia_smi_utilization_gpu_ratio", "\"uuid\":\"GPU-a\"", "0.5", 7, 8);
    let prometheus =
        format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":[{power},{utilization}]}}}}");
    let columns = maps(&["power_watts=power:W", "temperature_celsius=temp"]);
    for (format, text, options) in [
        (RecordingFormat::NvidiaSmi, smi, ImportOptions::default()),
        (RecordingFormat::Csv, csv, columns),
        (RecordingFormat::Prometheus, prometheus, ImportOptions::default()),
    ] {
        let imported = read_texts(format, &[("file", &text)], &options).unwrap_or_else(|error| panic!("{format:?}: {error}"));
        let it = report(&fold(&imported, false));
        near(it.energy_joules, 36_000.0, 1e-9);
    }
}
