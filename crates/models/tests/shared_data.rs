//! Measurements by others against figures that were computed independently (their READMEs). Skipped, with a message, if
//! they are absent.

use std::collections::BTreeMap;
use std::path::Path;

use eadt_models::choose::{
    BatchPoint, ChoiceLimits, ChoiceMethod, ChoiceObjective, EpochsToTarget, RobustSettings, SettingChoice, SettingChoices,
    SettingMeasurement, TuningKnob, choose, energy_to_accuracy,
};
use eadt_models::energy::{
    CarbonIntensity, EnergyInterval, IntegrationRule, JOULES_PER_KWH, OpenEi, PowerSample, PowerSeries, Tariff,
};
use eadt_models::fit::{CapCurve, CapCurveVerdict, CapPoint, GpuActivity, PowerModel, PowerObservation};
use eadt_recordings::{ImportOptions, RecordingFile, RecordingFormat, import};
use eadt_schemas::v1::GpuTelemetry;
use eadt_schemas::{EventTime, Topic};
use eadt_testing::shared_data;

type Row = BTreeMap<String, String>;

fn rows(path: &Path) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    reader.deserialize().map(|row| row.unwrap()).collect()
}

fn number(row: &Row, column: &str) -> f64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column}: {:?}", row[column]))
}

fn near(what: &str, got: f64, expected: f64, tolerance: f64) {
    assert!((got - expected).abs() <= tolerance, "{what}: {got}, expected {expected} within {tolerance}");
}

fn by<'a>(rows: &'a [Row], columns: &[&str]) -> BTreeMap<Vec<&'a str>, Vec<&'a Row>> {
    let mut groups: BTreeMap<Vec<&str>, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        groups.entry(columns.iter().map(|column| row[*column].as_str()).collect()).or_default().push(row);
    }
    groups
}

fn limits(max_slowdown_ratio: f64) -> ChoiceLimits {
    ChoiceLimits {
        max_slowdown_ratio,
        min_setting_ratio: None,
        objective: ChoiceObjective::Energy,
        reference_second_setting: None,
    }
}

fn measured(knob: TuningKnob, points: &[SettingMeasurement], max_slowdown_ratio: f64) -> SettingChoices {
    choose(knob, points, &limits(max_slowdown_ratio), ChoiceMethod::Measured).unwrap()
}

fn clocks(rows: &[&Row], setting: &str, seconds: &str) -> Vec<SettingMeasurement> {
    rows.iter()
        .map(|row| SettingMeasurement {
            setting: number(row, setting),
            second_setting: None,
            duration_seconds: number(row, seconds),
            energy_joules: number(row, seconds) * number(row, "power_usage"),
            row: 0,
        })
        .collect()
}

/// Returns what robust promises must hold in the very measurements that it was made from.
fn robust_keeps_its_limit(knob: TuningKnob, points: &[SettingMeasurement], max: f64, what: &str) -> Option<SettingChoice> {
    match choose(knob, points, &limits(max), ChoiceMethod::Robust(RobustSettings::default())) {
        Ok(choices) => {
            let best = choices.constrained;
            let time = |setting: f64| points.iter().find(|m| m.setting == setting).unwrap().duration_seconds;
            let slowdown = time(best.setting) / time(choices.reference.setting) - 1.0;
            assert!(slowdown <= max + 1e-9, "{what}: {best:?} is slower by {slowdown}");
            if choices.feasible && points.len() < 10 {
                let fitted = best.fitted_slowdown_ratio.unwrap();
                eprintln!(
                    "{what}: fitted {fitted:.4}, at most {:.4}, measured {:.4}",
                    best.slowdown_upper_ratio.unwrap(),
                    best.slowdown_ratio
                );
            }
            assert!(best.slowdown_upper_ratio.unwrap() <= max + 1e-9 || !choices.feasible, "{what}: {best:?}");
            Some(best)
        }
        Err(refusal) => {
            eprintln!("{what}: {refusal}");
            None
        }
    }
}

#[test]
fn a100_clocks_of_thirteen_applications() {
    let Some(folder) = shared_data("a100-dvfs-apps") else { return };
    // Least energy, at most 5 % slower, at most 10 % slower, EDP, ED²P.
    let expected = [
        ("LAMMPS", [795.0, 1215.0, 1110.0, 1110.0, 1215.0]),
        ("LSTM", [810.0; 5]),
        ("dgemm", [1080.0, 1350.0, 1290.0, 1095.0, 1350.0]),
        ("bplustree", [1110.0, 1275.0, 1185.0, 1110.0, 1335.0]),
        ("cutcp", [1110.0, 1290.0, 1230.0, 1110.0, 1290.0]),
        ("histo", [690.0, 1410.0, 1290.0, 1410.0, 1410.0]),
        ("lavamd", [630.0, 1125.0, 915.0, 1065.0, 1125.0]),
        ("lbm", [1110.0, 1305.0, 1200.0, 1110.0, 1305.0]),
        ("lud", [1080.0, 1245.0, 1155.0, 1200.0, 1260.0]),
        ("nw", [1170.0, 1335.0, 1275.0, 1350.0, 1410.0]),
        ("spmv", [675.0, 825.0, 765.0, 1020.0, 1020.0]),
        ("srad", [1080.0, 1155.0, 1080.0, 1080.0, 1155.0]),
        ("tpacf", [1110.0, 1305.0, 1200.0, 1230.0, 1380.0]),
    ];
    let mut all = Vec::new();
    for file in ["LAMMPS", "LSTM", "dgemm", "accel"] {
        let suffix = if file == "accel" { "__subset" } else { "" };
        all.extend(rows(&folder.join(format!("GA100-dvfs-{file}-dcgm{suffix}.csv"))));
    }
    let groups = by(&all, &["application"]);
    assert_eq!(groups.len(), expected.len());
    let mut savings = Vec::new();
    for (application, wanted) in expected {
        let points = clocks(&groups[&vec![application]], "sm_app_clock", "run_time");
        assert_eq!(points.len(), 61, "{application}");
        let (five, ten) = (measured(TuningKnob::SmClockMhz, &points, 0.05), measured(TuningKnob::SmClockMhz, &points, 0.10));
        let got = [five.min_energy, five.constrained, ten.constrained, five.min_edp, five.min_ed2p].map(|choice| choice.setting);
        assert_eq!(got, wanted, "{application}");
        if let Some(best) = robust_keeps_its_limit(TuningKnob::SmClockMhz, &points, 0.10, application) {
            savings.push((application, best.setting, best.saving_ratio));
        }
    }
    eprintln!("robust at 10 %: {savings:?}");
    assert!(savings.len() >= 10, "robust must answer for most: {savings:?}");
    // The authors' own published figures.
    let lammps = measured(TuningKnob::SmClockMhz, &clocks(&groups[&vec!["LAMMPS"]], "sm_app_clock", "run_time"), 0.05);
    near("LAMMPS time by EDP", lammps.min_edp.duration_seconds, 21.3, 0.05);
    near("LAMMPS energy by EDP", lammps.min_edp.energy_joules, 4205.0, 0.5);
    near("LAMMPS time by ED²P", lammps.min_ed2p.duration_seconds, 20.3, 0.05);
    near("LAMMPS energy by ED²P", lammps.min_ed2p.energy_joules, 4588.7, 0.5);
    near("LAMMPS time at 1410 MHz", lammps.reference.duration_seconds, 19.5, 0.05);
    near("LAMMPS energy at 1410 MHz", lammps.reference.energy_joules, 6401.0, 0.5);
    let lstm = measured(TuningKnob::SmClockMhz, &clocks(&groups[&vec!["LSTM"]], "sm_app_clock", "run_time"), 0.05);
    near("LSTM time", lstm.min_edp.duration_seconds, 25.1, 0.05);
    near("LSTM energy", lstm.min_edp.energy_joules, 1618.4, 0.5);
}

#[test]
fn a100_power_from_counters() {
    let Some(folder) = shared_data("a100-dvfs-apps") else { return };
    let all = rows(&folder.join("GA100-dvfs-accel-dcgm__subset.csv"));
    let observation = |row: &Row| PowerObservation {
        activity: GpuActivity {
            sm_active_ratio: number(row, "sm_active"),
            clock_ratio: number(row, "sm_clock") / 1410.0,
            dram_active_ratio: number(row, "dram_active"),
            io_gigabytes_per_second: (number(row, "pcie_tx_bytes") + number(row, "pcie_rx_bytes")) / 1e9,
        },
        watts: number(row, "power_usage"),
    };
    // Each application's own model; then one for all, which has to show that it is worse.
    let groups = by(&all, &["application"]);
    let mut errors = Vec::new();
    for (application, rows) in &groups {
        let observations: Vec<PowerObservation> = rows.iter().map(|row| observation(row)).collect();
        let (train, held): (Vec<(usize, &PowerObservation)>, Vec<_>) =
            observations.iter().enumerate().partition(|(i, _)| i % 2 == 0);
        let model = PowerModel::fit(&train.into_iter().map(|(_, o)| *o).collect::<Vec<_>>()).unwrap();
        let error: f64 =
            held.iter().map(|(_, o)| (model.predict(&o.activity).watts / o.watts - 1.0).abs()).sum::<f64>() / held.len() as f64;
        eprintln!("{application:?}: R² {:?}, MAPE on clocks held back {:.2} %", model.quality.r_squared, 100.0 * error);
        assert!(error < 0.05, "{application:?}: {error}");
        errors.push(error);
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(mean < 0.03, "mean over applications: {mean}");
    let together = PowerModel::fit(&all.iter().map(observation).collect::<Vec<_>>()).unwrap();
    eprintln!("one model for all: {together:?}");
    assert!(together.quality.mape_ratio > mean && together.quality.r_squared.unwrap() > 0.5, "{together:?}");
}

#[test]
fn perseus_pipeline_stages() {
    let Some(folder) = shared_data("perseus-sosp24-freq") else { return };
    let all = rows(&folder.join("gpt3-175b+a100_sxm_bf16.csv"));
    let groups = by(&all, &["stage", "instruction"]);
    let points = |key: [&str; 2]| -> Vec<SettingMeasurement> {
        groups[&key.to_vec()]
            .iter()
            .map(|row| SettingMeasurement {
                setting: number(row, "frequency"),
                second_setting: None,
                duration_seconds: number(row, "time"),
                energy_joules: number(row, "energy"),
                row: 0,
            })
            .collect()
    };
    let forward = points(["0", "forward"]);
    let (five, ten) = (measured(TuningKnob::SmClockMhz, &forward, 0.05), measured(TuningKnob::SmClockMhz, &forward, 0.10));
    assert_eq!((five.reference.setting, five.min_energy.setting), (1410.0, 1080.0));
    near("least energy saves", 100.0 * five.min_energy.saving_ratio, 26.43, 0.005);
    near("least energy costs", 100.0 * five.min_energy.slowdown_ratio, 23.68, 0.005);
    assert_eq!((five.constrained.setting, ten.constrained.setting, five.min_edp.setting), (1290.0, 1230.0, 1170.0));
    near("5 % saves", 100.0 * five.constrained.saving_ratio, 8.84, 0.005);
    near("10 % saves", 100.0 * ten.constrained.saving_ratio, 16.75, 0.005);
    let backward = measured(TuningKnob::SmClockMhz, &points(["0", "backward"]), 0.10);
    assert_eq!(backward.constrained.setting, 1215.0);
    near("backward saves", 100.0 * backward.constrained.saving_ratio, 18.88, 0.005);
    for key in groups.keys() {
        let robust = robust_keeps_its_limit(TuningKnob::SmClockMhz, &points([key[0], key[1]]), 0.10, &format!("{key:?}"));
        assert!(robust.is_some_and(|choice| choice.saving_ratio > 0.10), "{key:?}: {robust:?}");
    }
}

const ZEUS_GROUP: [&str; 4] = ["dataset", "network", "optimizer", "batch_size"];

fn zeus_points(rows: &[&Row]) -> Vec<SettingMeasurement> {
    rows.iter()
        .map(|row| SettingMeasurement {
            setting: number(row, "power_limit"),
            second_setting: None,
            duration_seconds: number(row, "time_per_epoch"),
            energy_joules: number(row, "time_per_epoch") * number(row, "average_power"),
            row: 0,
        })
        .collect()
}

#[test]
fn zeus_power_limits_of_two_boards() {
    let Some(folder) = shared_data("zeus-nsdi23") else { return };
    for (board, count, unconstrained, constrained) in [("v100", 68, 21.360, 14.748), ("rtx6000", 51, 20.514, 15.552)] {
        let all = rows(&folder.join(format!("summary_power_{board}.csv")));
        let groups = by(&all, &ZEUS_GROUP);
        let (mut least, mut within, mut robust, mut answered) = (0.0, 0.0, 0.0, 0);
        let mut found = 0;
        for (name, rows) in &groups {
            let points = zeus_points(rows);
            if points.len() < 3 {
                continue;
            }
            found += 1;
            let choices = measured(TuningKnob::PowerLimitWatts, &points, 0.10);
            least += choices.min_energy.saving_ratio;
            within += choices.constrained.saving_ratio;
            if let Some(choice) = robust_keeps_its_limit(TuningKnob::PowerLimitWatts, &points, 0.10, &format!("{board} {name:?}"))
            {
                robust += choice.saving_ratio;
                answered += 1;
            }
        }
        assert_eq!(found, count, "{board}");
        near(board, 100.0 * least / f64::from(count), unconstrained, 0.001);
        near(board, 100.0 * within / f64::from(count), constrained, 0.001);
        eprintln!("{board}: robust answers for {answered} of {count}, mean saving {:.2} %", 100.0 * robust / f64::from(answered));
    }
    let all = rows(&folder.join("summary_power_v100.csv"));
    let groups = by(&all, &ZEUS_GROUP);
    let named = |key: [&str; 4]| {
        let (name, rows) = groups.iter().find(|(name, _)| key.iter().zip(*name).all(|(a, b)| a.is_empty() || a == b)).unwrap();
        (format!("{name:?}"), measured(TuningKnob::PowerLimitWatts, &zeus_points(rows), 0.10))
    };
    // Least energy: setting, saving and slowdown; at most 10 % slower: setting, saving and slowdown. NaN: not stated.
    let unknown = f64::NAN;
    for (key, least, within) in [
        (["imagenet", "resnet50", "", "256"], (150.0, 22.51, 18.03), (175.0, 17.22, 9.59)),
        (["cifar100", "shufflenetv2", "adadelta", "1024"], (100.0, 31.45, unknown), (175.0, 20.72, unknown)),
        (["squad", "", "", "32"], (150.0, unknown, unknown), (200.0, 10.92, unknown)),
        (["librispeech", "", "", "192"], (100.0, unknown, unknown), (175.0, 11.28, unknown)),
    ] {
        let (name, choices) = named(key);
        for (choice, (setting, saving, slowdown)) in [(choices.min_energy, least), (choices.constrained, within)] {
            assert_eq!(choice.setting, setting, "{name}");
            for (got, wanted) in [(choice.saving_ratio, saving), (choice.slowdown_ratio, slowdown)] {
                assert!(wanted.is_nan() || (100.0 * got - wanted).abs() <= 0.005, "{name}: {choice:?}, expected {wanted}");
            }
        }
    }
    let imagenet = groups.iter().find(|(name, _)| name[0] == "imagenet" && name[3] == "256").unwrap();
    let points: Vec<CapPoint> = imagenet
        .1
        .iter()
        .map(|row| CapPoint { watts: number(row, "average_power"), throughput: 1.0 / number(row, "time_per_epoch") })
        .collect();
    let curve = CapCurve::fit(&points).unwrap();
    near("b", curve.power_law.b, 0.789, 0.0005);
    near("R²", curve.power_law.r_squared.unwrap(), 0.917, 0.0005);
    assert_eq!(curve.verdict, CapCurveVerdict::Informative);
}

#[test]
fn zeus_energy_to_accuracy() {
    let Some(folder) = shared_data("zeus-nsdi23") else { return };
    let power = rows(&folder.join("summary_power_v100.csv"));
    let train = rows(&folder.join("summary_train.csv"));
    for (dataset, target, batch_size, watts, kilojoules, tolerance) in [
        ("imagenet", 0.65, 360, 150.0, 12_498.7, 0.05),
        ("cifar100", 0.60, 128, 100.0, 28.48, 0.005),
        ("librispeech", 40.0, 32, 100.0, 5451.2, 0.05),
        ("squad", 84.0, 8, 125.0, 1175.0, 0.05),
        ("sentiment140", 0.84, 32, 125.0, 2029.5, 0.05),
        ("movielens-1m", 0.41, 16_384, 150.0, 1.079, 0.0005),
    ] {
        let of = |rows: &'_ [Row]| -> Vec<Row> { rows.iter().filter(|row| row["dataset"] == dataset).cloned().collect() };
        let runs: Vec<Row> = of(&train).into_iter().filter(|row| (number(row, "target_metric") - target).abs() < 1e-9).collect();
        let optimizers: Vec<&String> = runs.iter().map(|row| &row["optimizer"]).collect();
        let points: Vec<BatchPoint> = of(&power)
            .iter()
            .filter(|row| optimizers.contains(&&row["optimizer"]))
            .map(|row| BatchPoint {
                batch_size: number(row, "batch_size") as u64,
                setting: number(row, "power_limit"),
                seconds_per_epoch: number(row, "time_per_epoch"),
                joules_per_epoch: number(row, "time_per_epoch") * number(row, "average_power"),
            })
            .collect();
        let runs: Vec<EpochsToTarget> = runs
            .iter()
            .map(|row| EpochsToTarget {
                batch_size: number(row, "batch_size") as u64,
                epochs: row["target_epoch"].parse().ok().filter(|epochs: &f64| epochs.is_finite()),
            })
            .collect();
        let best = energy_to_accuracy(&points, &runs).min_energy.unwrap();
        assert_eq!((best.batch_size, best.setting), (batch_size, watts), "{dataset}: {best:?}");
        near(dataset, best.energy_joules / 1000.0, kilojoules, tolerance);
    }
}

/// Points of a power-limit sweep, and throughput against mean power per GPU.
fn sweep(path: &Path) -> (Vec<SettingMeasurement>, Vec<CapPoint>) {
    let mut points = Vec::new();
    let mut curve = Vec::new();
    for row in rows(path) {
        let seconds = number(&row, "elapsed_time");
        let energies: Vec<f64> = row.keys().filter(|key| key.ends_with("_energy")).map(|key| number(&row, key)).collect();
        let joules: f64 = energies.iter().sum();
        let limit = row["window_name"].rsplit('_').next().unwrap().parse().unwrap();
        points.push(SettingMeasurement {
            setting: limit,
            second_setting: None,
            duration_seconds: seconds,
            energy_joules: joules,
            row: 0,
        });
        curve.push(CapPoint { watts: joules / seconds, throughput: 1.0 / seconds });
    }
    (points, curve)
}

#[test]
fn zeus_power_limit_sweeps() {
    let Some(folder) = shared_data("zeus-powerlimit-profiles") else { return };
    // Least energy, at most 10 % slower, EDP: settings; then savings and slowdown in percent if stated.
    let nan = f64::NAN;
    for (file, settings, least, within) in [
        ("V100+bert-base-uncased+gpu0", [125.0, 200.0, 150.0], (20.51, 45.16), (10.09, nan)),
        ("V100+resnet18+gpu0", [125.0, 150.0, 150.0], (nan, nan), (23.71, nan)),
        ("V100+resnet18+gpu0,1", [100.0, 100.0, 100.0], (35.93, 0.10), (35.93, 0.10)),
        ("V100+resnet50+gpu0", [150.0, 200.0, 175.0], (nan, nan), (11.05, nan)),
        ("V100+resnet50+gpu0,1", [125.0, 175.0, 175.0], (nan, nan), (17.56, nan)),
        ("V100+shufflenetv2+gpu0", [100.0, 125.0, 100.0], (nan, nan), (24.36, nan)),
    ] {
        let (points, curve) = sweep(&folder.join(format!("{file}.csv")));
        let choices = measured(TuningKnob::PowerLimitWatts, &points, 0.10);
        assert_eq!(choices.reference.setting, 250.0);
        let got = [choices.min_energy, choices.constrained, choices.min_edp].map(|choice| choice.setting);
        assert_eq!(got, settings, "{file}");
        for (choice, (saving, slowdown)) in [(choices.min_energy, least), (choices.constrained, within)] {
            for (got, wanted) in [(choice.saving_ratio, saving), (choice.slowdown_ratio, slowdown)] {
                assert!(f64::is_nan(wanted) || (100.0 * got - wanted).abs() <= 0.005, "{file}: {choice:?}, expected {wanted}");
            }
        }
        let fitted = CapCurve::fit(&curve).unwrap();
        match file {
            "V100+bert-base-uncased+gpu0" => {
                near("b", fitted.power_law.b, 0.75459, 0.000_005);
                near("R²", fitted.power_law.r_squared.unwrap(), 0.9093, 0.000_05);
                assert_eq!(fitted.verdict, CapCurveVerdict::Informative);
            }
            "V100+resnet18+gpu0,1" => {
                near("b", fitted.power_law.b, 0.05236, 0.000_005);
                near("R²", fitted.power_law.r_squared.unwrap(), 0.166, 0.0005);
                assert!(matches!(fitted.verdict, CapCurveVerdict::NoInformation(_)), "{fitted:?}");
            }
            _ => {}
        }
        let robust = robust_keeps_its_limit(TuningKnob::PowerLimitWatts, &points, 0.10, file);
        eprintln!("{file}: robust {robust:?}");
    }
}

fn power(
    format: RecordingFormat,
    folder: &Path,
    files: &[&str],
    options: &ImportOptions,
) -> (Vec<(EventTime, f64)>, Vec<GpuTelemetry>) {
    let inputs = files.iter().map(|file| RecordingFile::new(*file, std::fs::File::open(folder.join(file)).unwrap())).collect();
    let imported = import(format, inputs, options).unwrap_or_else(|error| panic!("{error}"));
    let telemetry: Vec<GpuTelemetry> = imported
        .events()
        .filter(|event| event.topic() == Some(Topic::GpuTelemetry))
        .map(|event| eadt_schemas::decode(event.data.as_ref().unwrap().get().as_bytes()).unwrap())
        .collect();
    (telemetry.iter().filter_map(|sample| Some((sample.time, sample.power_watts?))).collect(), telemetry)
}

fn series(power: &[(EventTime, f64)]) -> (EventTime, PowerSeries) {
    let origin = power[0].0;
    let samples = power.iter().map(|(time, watts)| PowerSample { seconds: time.seconds_since(origin), watts: *watts });
    (origin, PowerSeries::new(samples).unwrap())
}

/// Time in ms of the first line with this key.
fn event_millis(path: &Path, key: &str) -> f64 {
    let text = std::fs::read_to_string(path).unwrap();
    let wanted = format!("\"key\": \"{key}\"");
    let line = text.lines().find(|line| line.contains(&wanted)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
    json["time_ms"].as_f64().unwrap()
}

#[test]
fn mlperf_training_energies() {
    let Some(folder) = shared_data("mlperf-train-v4.0-smc-8xH100") else { return };
    for (result, node, seconds, joules, units, joules_per_unit) in [
        (
            "bert/result_5119-240510190348838227199_06.txt",
            "bert/power/result_5119-240510190348838227199_06/node_0.txt",
            277.048,
            1_878_755.6,
            2_100_792.0,
            0.894_308,
        ),
        (
            "bert/result_5120-240510190402846980797_07.txt",
            "bert/power/result_5120-240510190402846980797_07/node_0.txt",
            318.200,
            2_204_818.6,
            2_400_396.0,
            0.918_523,
        ),
        (
            "llama2_70b_lora/result_5027-240510020224961918558_3.txt",
            "llama2_70b_lora/power/result_5027-240510020224961918558_3/node_0.txt",
            1685.183,
            12_091_999.0,
            3072.0,
            3936.198,
        ),
    ] {
        let (readings, _) = power(RecordingFormat::Mlperf, &folder, &[result, node], &ImportOptions::default());
        let (origin, series) = series(&readings);
        let at = |key| EventTime::from_micros((event_millis(&folder.join(result), key) * 1000.0) as i64).seconds_since(origin);
        let (from, to) = (at("run_start"), at("run_stop"));
        near(result, to - from, seconds, 0.0005);
        let energy = series.energy_between(from, to, IntegrationRule::Trapezoid, None);
        near(result, energy.joules, joules, joules * 1e-7);
        near(result, energy.joules / units, joules_per_unit, joules_per_unit * 1e-6);
        // The rectangle rule is close here, where readings are many, and still not the same.
        let rectangle = series.energy_between(from, to, IntegrationRule::Rectangle, None);
        assert!((rectangle.joules / energy.joules - 1.0).abs() < 0.01 && rectangle.joules != energy.joules);
    }
}

#[test]
fn mlperf_inference_energy() {
    let Some(folder) = shared_data("mlperf-inf-v4.1-8xH200-MaxQ") else { return };
    let run = folder.join("bert-99__Offline");
    let inputs = ["spl.txt", "mlperf_log_detail.txt", "mlperf_log_summary.txt"];
    let (readings, _) = power(RecordingFormat::MlperfInference, &run, &inputs, &ImportOptions::default());
    // Both clocks are the analyser's text; whatever zone it is in, it is the same.
    let (origin, series) = series(&readings);
    let detail = std::fs::read_to_string(run.join("mlperf_log_detail.txt")).unwrap();
    let stamp = |key: &str| {
        let line = detail.lines().find(|line| line.contains(&format!("\"{key}\""))).unwrap();
        let json: serde_json::Value = serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
        let text = json["value"].as_str().unwrap();
        let (date, time) = text.split_once(' ').unwrap();
        let parts: Vec<&str> = date.split('-').collect();
        format!("{}-{}-{}T{}Z", parts[2], parts[0], parts[1], time).parse::<EventTime>().unwrap()
    };
    let (from, to) = (stamp("power_begin"), stamp("power_end"));
    near("window", to.seconds_since(from), 659.229, 0.0005);
    let energy = series.energy_between(from.seconds_since(origin), to.seconds_since(origin), IntegrationRule::Trapezoid, None);
    near("energy", energy.joules, 3_646_359.8, 0.4);
    near("mean", energy.mean_watts().unwrap(), 5531.249, 0.001);
    near("samples/J", 54_063.2 * energy.covered_seconds / energy.joules, 9.774_14, 0.00002);
}

#[test]
fn a_reading_in_milliwatts() {
    let Some(folder) = shared_data("zeus-nvml-sample") else { return };
    let options = ImportOptions { maps: vec!["power_watts=Power:mW".parse().unwrap()], ..ImportOptions::default() };
    let (readings, _) = power(RecordingFormat::Csv, &folder, &["sample.csv"], &options);
    let (_, series) = series(&readings);
    assert_eq!(series.samples().len(), 19);
    near("span", series.samples()[18].seconds - series.samples()[0].seconds, 0.958_482, 1e-6);
    // Events have microseconds, the file nanoseconds.
    near("energy", series.energy(IntegrationRule::Trapezoid).unwrap().joules, 31.004_155, 5e-5);
}

#[test]
fn integrals_against_the_hardware_counter() {
    let Some(folder) = shared_data("a100-dcgmi-raw") else { return };
    for (file, rows, counter, estimate) in [
        ("bfs-1410-1", 592, 1353.012, 1332.649),
        ("bfs-1005-0", 608, 1136.845, 1128.900),
        ("bfs-510-0", 729, 1291.573, 1284.262),
        ("lud-1410-0", 590, 2623.599, 2604.087),
        ("lud-1005-0", 662, 2081.828, 2060.512),
        ("lud-510-0", 1150, 2831.456, 2808.834),
    ] {
        let options = ImportOptions { interval: Some(std::time::Duration::from_millis(20)), ..ImportOptions::default() };
        let (readings, telemetry) = power(RecordingFormat::Dcgmi, &folder, &[&format!("GA100-{file}.txt")], &options);
        let (_, series) = series(&readings);
        assert_eq!(telemetry.len(), rows, "{file}");
        let counters: Vec<f64> = telemetry.iter().filter_map(|sample| sample.energy_joules_total).collect();
        near(file, counters[counters.len() - 1] - counters[0], counter, 0.0005);
        // Their estimate counts every row for 20 ms; the rectangle rule leaves the first one out.
        let rectangle = series.energy(IntegrationRule::Rectangle).unwrap().joules + series.samples()[0].watts * 0.02;
        near(file, rectangle, estimate, 0.001);
        let trapezoid = series.energy(IntegrationRule::Trapezoid).unwrap().joules;
        assert!((0.9854..=1.0326).contains(&(counter / trapezoid)), "{file}: {trapezoid}");
    }
}

#[test]
fn carbon_and_price_of_a_training_run() {
    let Some(folder) = shared_data("carbon-and-price") else { return };
    let joules = 12_092_000.0;
    near("kWh", joules / JOULES_PER_KWH, 3.358_89, 0.000_005);
    let at = |text: &str| text.parse().unwrap();
    let run = [EnergyInterval { from: at("2024-05-10T02:02:24Z"), to: at("2024-05-10T02:30:29Z"), joules }];
    let mut regions = csv::Reader::from_path(folder.join("cloud_impact.csv")).unwrap();
    let header: Vec<String> =
        regions.headers().unwrap().iter().map(|name| name.trim_start_matches('\u{feff}').to_owned()).collect();
    let column = |name: &str| header.iter().position(|head| head == name).unwrap();
    let (provider, region, impact) = (column("provider"), column("region"), column("impact"));
    let mut found = 0;
    for row in regions.records() {
        let row = row.unwrap();
        let expected = match (&row[provider], &row[region]) {
            ("gcp", "asia-east1") => 1514.86,
            ("gcp", "europe-west1") => 409.78,
            ("gcp", "us-west1") => 315.74,
            _ => continue,
        };
        let carbon = CarbonIntensity::constant(row[impact].parse().unwrap()).unwrap().carbon(&run);
        near(&row[region], carbon.grams, expected, 0.005);
        found += 1;
    }
    assert_eq!(found, 3);
    let document: OpenEi = serde_json::from_str(&std::fs::read_to_string(folder.join("price_ann_arbor.json")).unwrap()).unwrap();
    let tariff = Tariff::from_open_ei(&document).unwrap();
    let zone = jiff::tz::TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").unwrap();
    let price = 0.1056 + 0.029_681;
    near("price", tariff.price_at(run[0].from, &zone), price, 1e-12);
    near("cost", tariff.cost(&run, &zone), joules / JOULES_PER_KWH * price, 1e-9);
}
