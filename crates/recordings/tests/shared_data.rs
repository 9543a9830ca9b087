//! Real recordings against figures that were computed independently. Skipped, with a message, where they are absent.

use crate::support;

use std::fs::File;
use std::time::Duration;

use eadt_recordings::{ImportOptions, ImportedRecording, RecordingFile, RecordingFormat, import};
use eadt_schemas::v1::{GpuTelemetry, JobLifecycle, TrainingProgress};
use eadt_schemas::{EventTime, Topic};
use eadt_testing::shared_data;
use support::read;

/// A reader's view of the events.
struct Seen {
    power: Vec<(EventTime, f64)>,
    progress: Vec<TrainingProgress>,
    devices: Vec<GpuTelemetry>,
}

fn see(imported: &ImportedRecording) -> Seen {
    let mut seen = Seen { power: Vec::new(), progress: Vec::new(), devices: Vec::new() };
    for event in imported.events() {
        let data = event.data.as_ref().unwrap().get().as_bytes();
        match event.topic() {
            Some(Topic::GpuTelemetry) => {
                let sample: GpuTelemetry = eadt_schemas::decode(data).unwrap();
                if let Some(watts) = sample.power_watts {
                    seen.power.push((sample.time, watts));
                }
                seen.devices.push(sample);
            }
            _ => seen.progress.push(eadt_schemas::decode(data).unwrap()),
        }
    }
    seen
}

impl Seen {
    /// Plain trapezoid, interpolated at both ends, over what is covered.
    fn joules(&self, from: EventTime, to: EventTime) -> f64 {
        let mut sum = 0.0;
        for pair in self.power.windows(2) {
            let ((a, wa), (b, wb)) = (pair[0], pair[1]);
            let (low, high) = (a.max(from), b.min(to));
            if high > low {
                let at = |t: EventTime| wa + (wb - wa) * t.seconds_since(a) / b.seconds_since(a);
                sum += f64::midpoint(at(low), at(high)) * high.seconds_since(low);
            }
        }
        sum
    }

    fn run(&self) -> (EventTime, EventTime) {
        let at = |phase| self.progress.iter().find(|event| event.phase == phase).unwrap().time;
        (at(JobLifecycle::Started), at(JobLifecycle::Finished))
    }

    fn run_joules(&self) -> f64 {
        let (from, to) = self.run();
        self.joules(from, to)
    }

    fn samples(&self) -> f64 {
        self.progress.iter().rev().find_map(|event| event.samples_total).unwrap()
    }

    /// Name, samples, seconds and joules of every named span.
    fn spans(&self) -> Vec<(String, f64, f64, f64)> {
        let mut spans = Vec::new();
        let mut open: Option<(String, EventTime, Option<f64>)> = None;
        for event in &self.progress {
            let Some(span) = &event.span else { continue };
            if let Some((name, from, before)) = open.take() {
                let samples = event.samples_total.zip(before).map_or(f64::NAN, |(after, before)| after - before);
                spans.push((name, samples, event.time.seconds_since(from), self.joules(from, event.time)));
            }
            if !span.is_empty() {
                open = Some((span.clone(), event.time, event.samples_total));
            }
        }
        spans
    }
}

fn near(got: f64, expected: f64, relative: f64) {
    assert!((got / expected - 1.0).abs() <= relative, "{got} instead of {expected}");
}

const TRAINING: &str = "mlperf-train-v4.0-smc-8xH100";

fn training(files: &[&str]) -> Option<(ImportedRecording, Seen)> {
    let imported = read(RecordingFormat::Mlperf, &shared_data(TRAINING)?, files, &ImportOptions::default());
    let seen = see(&imported);
    Some((imported, seen))
}

#[test]
fn bert_5119() {
    let run = "result_5119-240510190348838227199_06";
    let files = [format!("bert/{run}.txt"), format!("bert/power/{run}/node_0.txt")];
    let Some((imported, seen)) = training(&[&files[0], &files[1]]) else { return };
    let (from, to) = seen.run();
    near(to.seconds_since(from), 277.048, 1e-9);
    near(seen.run_joules(), 1_878_755.6, 1e-6);
    assert_eq!(seen.samples(), 2_100_792.0);
    near(seen.run_joules() / seen.samples(), 0.894_308, 1e-6);
    for (minute, watts) in [6638.41, 6785.93, 6809.92, 6830.30].into_iter().enumerate() {
        let start = from.plus_seconds(60.0 * minute as f64);
        near(seen.joules(start, start.plus_seconds(60.0)) / 60.0, watts, 1e-5);
    }
    let report = &imported.report;
    assert_eq!((report.telemetry_events, report.duplicates, report.same_stamp, report.gaps.len()), (192, 0, 0, 0));
    assert_eq!((report.rows, report.out_of_order), (495 + 194, 0));
    assert_eq!(seen.spans().len(), 1);
}

#[test]
fn bert_5120() {
    let run = "result_5120-240510190402846980797_07";
    let files = [format!("bert/{run}.txt"), format!("bert/power/{run}/node_0.txt")];
    let Some((imported, seen)) = training(&[&files[0], &files[1]]) else { return };
    let (from, to) = seen.run();
    near(to.seconds_since(from), 318.2, 1e-9);
    near(seen.run_joules(), 2_204_818.6, 1e-6);
    assert_eq!(seen.samples(), 2_400_396.0);
    near(seen.run_joules() / seen.samples(), 0.918_523, 1e-6);
    assert!(imported.report.skipped.iter().all(|skipped| skipped.lines > 0));
}

#[test]
fn llama2_blocks() {
    let run = "result_5027-240510020224961918558_3";
    let files = [format!("llama2_70b_lora/{run}.txt"), format!("llama2_70b_lora/power/{run}/node_0.txt")];
    let Some((_, seen)) = training(&[&files[0], &files[1]]) else { return };
    near(seen.run_joules(), 12_091_999.0, 1e-6);
    assert_eq!(seen.samples(), 3072.0);
    near(seen.run_joules() / 3072.0, 3936.198, 1e-6);
    let spans = seen.spans();
    let blocks: Vec<_> = spans.iter().filter(|(name, ..)| name.starts_with("block")).collect();
    let expected = [
        (1536.0, 754.958, 5_383_136.4),
        (384.0, 184.332, 1_336_888.6),
        (384.0, 183.922, 1_334_031.4),
        (384.0, 183.759, 1_333_719.8),
        (384.0, 184.032, 1_329_547.6),
    ];
    assert_eq!(blocks.len(), expected.len());
    for ((_, samples, seconds, joules), expected) in blocks.into_iter().zip(expected) {
        assert_eq!(*samples, expected.0);
        near(*seconds, expected.1, 1e-5);
        near(*joules, expected.2, 1e-5);
    }
    assert_eq!(spans.iter().filter(|(name, ..)| name.starts_with("evaluation")).count(), 5);
}

#[test]
fn resnet_epochs() {
    let run = "result_5762-240517075402404624683_3";
    let files = [format!("resnet/{run}.txt"), format!("resnet/power/{run}/node_1.txt")];
    let Some((_, seen)) = training(&[&files[0], &files[1]]) else { return };
    let (from, to) = seen.run();
    near(to.seconds_since(from), 802.035, 1e-9);
    near(seen.run_joules(), 5_678_892.6, 1e-6);
    let covered = seen.power.last().unwrap().0.min(to).seconds_since(seen.power[0].0.max(from));
    near(covered / to.seconds_since(from), 0.997_76, 1e-5);
    let epochs: Vec<_> = seen.spans().into_iter().filter(|(name, ..)| name.starts_with("epoch")).collect();
    assert_eq!(epochs.len(), 35);
    near(epochs[1].3, 160_998.4, 1e-6);
    let inner = &epochs[1..34];
    let (images, joules) = inner.iter().fold((0.0, 0.0), |sum, epoch| (sum.0 + epoch.1, sum.1 + epoch.3));
    assert_eq!(images, 33.0 * 1_281_167.0);
    near(images / joules, 7.92417, 1e-6);
    assert_eq!(seen.samples(), 35.0 * 1_281_167.0);
}

#[test]
fn inference_at_the_wall() {
    let Some(folder) = shared_data("mlperf-inf-v4.1-8xH200-MaxQ") else { return };
    let files = ["bert-99__Offline/mlperf_log_detail.txt", "bert-99__Offline/spl.txt"];
    let imported = read(RecordingFormat::MlperfInference, &folder, &files, &ImportOptions::default());
    let seen = see(&imported);
    let (from, to) = seen.run();
    near(to.seconds_since(from), 659.229, 1e-9);
    near(seen.run_joules(), 3_646_359.8, 1e-6);
    near(seen.run_joules() / to.seconds_since(from), 5531.249, 1e-6);
    near(seen.samples() / seen.run_joules(), 9.77414, 1e-5);
    near(seen.samples() / to.seconds_since(from), 54_063.2, 1e-5);
    let inside = seen.power.iter().filter(|(time, _)| (from..=to).contains(time)).count();
    assert_eq!(inside, 659);
    let idle: Vec<f64> = seen.power.iter().filter(|(time, _)| *time < from).map(|(_, watts)| *watts).collect();
    near(idle.iter().sum::<f64>() / idle.len() as f64, 2497.23, 1e-3);
    assert_eq!(imported.report.telemetry_events, 735);
}

#[test]
fn dcgmi_counters_are_exact() {
    let Some(folder) = shared_data("a100-dcgmi-raw") else { return };
    let options = ImportOptions { interval: Some(Duration::from_millis(20)), ..ImportOptions::default() };
    for (file, rows, counter, estimate) in [
        ("GA100-bfs-1410-1.txt", 592, 1353.012, 1332.649),
        ("GA100-bfs-1005-0.txt", 608, 1136.845, 1128.900),
        ("GA100-bfs-510-0.txt", 729, 1291.573, 1284.262),
        ("GA100-lud-1410-0.txt", 590, 2623.599, 2604.087),
        ("GA100-lud-1005-0.txt", 662, 2081.828, 2060.512),
        ("GA100-lud-510-0.txt", 1150, 2831.456, 2808.834),
    ] {
        let imported = read(RecordingFormat::Dcgmi, &folder, &[file], &options);
        let seen = see(&imported);
        assert_eq!(seen.devices.len(), rows, "{file}");
        let total = |row: &GpuTelemetry| row.energy_joules_total.unwrap();
        let energy = total(&seen.devices[rows - 1]) - total(&seen.devices[0]);
        assert!((energy - counter).abs() < 1e-6, "{file}: {energy} instead of {counter}");
        let sum: f64 = seen.power.iter().map(|(_, watts)| watts * 0.02).sum();
        assert!((sum - estimate).abs() < 1e-3, "{file}: {sum} instead of {estimate}");
        let check = &imported.report.counters[0];
        assert!((check.counter_joules - counter).abs() < 1e-6);
        // The trapezoid has one interval less than the plain sum.
        near(check.integral_joules, estimate, 3e-3);
        assert!(imported.report.to_string().contains("difference +"), "{}", imported.report);
    }
    let active = |file: &str| {
        let seen = see(&read(RecordingFormat::Dcgmi, &folder, &[file], &options));
        let busy: Vec<f64> =
            seen.devices.iter().filter(|row| row.graphics_active_ratio > Some(0.0)).map(|row| row.power_watts.unwrap()).collect();
        (busy.len(), busy.iter().sum::<f64>() / busy.len() as f64)
    };
    let (rows, watts) = active("GA100-bfs-1410-1.txt");
    assert_eq!(rows, 213);
    near(watts, 140.3478, 1e-6);
    let (rows, watts) = active("GA100-lud-1410-0.txt");
    assert_eq!(rows, 401);
    near(watts, 274.4126, 1e-6);
}

#[test]
fn zeus_sample_is_in_milliwatts() {
    let Some(folder) = shared_data("zeus-nvml-sample") else { return };
    let options = ImportOptions { maps: vec!["power_watts=Power:mW".parse().unwrap()], ..ImportOptions::default() };
    let imported = read(RecordingFormat::Csv, &folder, &["sample.csv"], &options);
    let seen = see(&imported);
    assert_eq!(seen.power.len(), 19);
    let (from, to) = (seen.power[0].0, seen.power[18].0);
    assert!((to.seconds_since(from) - 0.958_482).abs() < 2e-6);
    near(seen.joules(from, to), 31.004_155, 1e-5);
    let wrong = ImportOptions { maps: vec!["power_watts=Power".parse().unwrap()], ..ImportOptions::default() };
    let input = RecordingFile::new("sample.csv", File::open(folder.join("sample.csv")).unwrap());
    let error = import(RecordingFormat::Csv, vec![input], &wrong).unwrap_err().to_string();
    assert!(error.starts_with("sample.csv:2: column \"Power\": 32402 W is more than"), "{error}");
}

#[test]
fn azure_requests_fill_46_of_58_windows() {
    let Some(folder) = shared_data("azure-llm-trace-2023") else { return };
    let maps = ["samples=*", "tokens=GeneratedTokens"].map(|map| map.parse().unwrap()).to_vec();
    let imported = read(
        RecordingFormat::Csv,
        &folder,
        &["AzureLLMInferenceTrace_code.csv"],
        &ImportOptions { maps, ..ImportOptions::default() },
    );
    assert_eq!(imported.report.rows, 8819);
    let seen = see(&imported);
    let last = seen.progress.last().unwrap();
    assert_eq!((last.samples_total, last.tokens_total), (Some(8819.0), Some(245_896.0)));
    let start = seen.progress[0].time;
    near(last.time.seconds_since(start), 3435.948, 1e-6);
    // A counter read just before each edge of a 60 s window that begins with the first row.
    let at = |edge: EventTime| {
        let before = seen.progress.iter().rev().find(|event| event.time <= edge);
        before.map_or((0.0, 0.0), |event| (event.samples_total.unwrap(), event.tokens_total.unwrap()))
    };
    let windows: Vec<(f64, f64)> = (0..58)
        .map(|window| {
            let from = start.plus_seconds(60.0 * f64::from(window));
            let (low, high) = (at(from), at(from.plus_seconds(60.0)));
            (high.0 - low.0, high.1 - low.1)
        })
        .collect();
    assert_eq!(windows.iter().filter(|window| window.0 == 0.0).count(), 12);
    assert_eq!(windows[0], (63.0, 1478.0));
    // The README's 16,642 is beside the window with most tokens.
    let busiest = (0..58).max_by(|a, b| windows[*a].1.total_cmp(&windows[*b].1)).unwrap();
    assert_eq!((busiest, windows[busiest].1), (14, 16_642.0));
    assert!(!imported.report.gaps.is_empty());
}
