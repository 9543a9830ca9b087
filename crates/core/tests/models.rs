//! Learned models come with the log, survive a crash, are named in decisions, and change nothing if they are not understood.

use crate::support;

use eadt_core::{FoldSettings, PartitionFold};
use eadt_schemas::v1::{GpuTelemetry, Layout, Model, UpdateMode, Workload};
use serde_json::{Value, json};
use support::{Bench, JOB, at, gpu, layout, rank, stored};

const BOARD: &str = "A100-SXM4-40GB";

fn power_model(second: f64, version: &str, base_watts: f64) -> Model {
    let range = [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]];
    let model = json!({
        "base_watts": base_watts, "compute_linear_watts": 100.0, "compute_cubic_watts": 150.0, "memory_watts": 60.0,
        "io_watts_per_gigabyte_per_second": 0.0, "quality": {"r_squared": 0.99, "mape_ratio": 0.01, "count": 100}, "range": range,
    });
    Model {
        time: at(second),
        name: format!("power/{BOARD}"),
        version: version.into(),
        parameters: json!({"format": "eadt.power-model.v1", "clock_max_mhz": 1410.0, "model": model}),
        ..Model::default()
    }
}

fn cap_curve(second: f64, board: &str) -> Model {
    let law = json!({"a": 3.0, "b": 0.5, "offset_watts": 80.0, "r_squared": 0.99, "mape_ratio": 0.01,
        "peak_watts": 160.0, "peak_measured": false});
    let curve = json!({"power_law": {"a": 1.0, "b": 0.7, "r_squared": 0.9, "mape_ratio": 0.02}, "offset_power_law": law,
        "verdict": "informative", "watts_range": [180.0, 390.0], "count": 80});
    Model {
        time: at(second),
        name: format!("cap-curve/{JOB}"),
        version: "5".into(),
        parameters: json!({"format": "eadt.cap-curve.v1", "gpu_model": board, "layout": [1, 100, null, null], "curve": curve}),
        ..Model::default()
    }
}

fn managed(second: f64) -> Workload {
    Workload {
        mode: UpdateMode::Enforce,
        gpus: Some(1),
        gpu_model: Some(BOARD.into()),
        gpu_power_limit_watts: Some(400.0),
        layout: Layout { replicas: Some(1), mps_thread_percentage: Some(100), ..Layout::default() },
        ..layout(second, 1)
    }
}

/// Returns a sample that has what the power model needs.
fn busy(second: f64) -> GpuTelemetry {
    let (active, dram, clock) = (Some(0.8), Some(0.4), Some(1200.0));
    GpuTelemetry { sm_active_ratio: active, dram_active_ratio: dram, sm_clock_mhz: clock, ..gpu("a", second, second * 300.0) }
}

/// Twenty minutes of a job; `models` come at their times, and every `crash` seconds everything but what was committed is lost.
fn run(models: &[Model], crash: Option<u32>) -> Bench {
    let mut bench = Bench::new(FoldSettings::default());
    let mut committed = Vec::new();
    bench.put(managed(-5.0));
    for second in (0..=1_200).step_by(10) {
        let now = f64::from(second);
        for model in models.iter().filter(|model| model.time > at(now - 10.0) && model.time <= at(now)) {
            bench.put(model.clone());
        }
        bench.put(busy(now)).put(rank(0, now, now * 30.0));
        if crash.is_some_and(|every| second % every == 0) {
            bench.crash(&mut committed);
        }
    }
    bench
}

fn text(bench: &Bench) -> String {
    serde_json::to_string(&(&bench.windows, &bench.decisions)).unwrap()
}

#[test]
fn decisions_name_the_versions_of_their_time_also_after_crashes() {
    let models = [power_model(200.0, "1", 50.0), cap_curve(310.0, BOARD), power_model(700.0, "2", 60.0)];
    let bench = run(&models, None);
    let named = |second: f64| {
        let decision = bench.decisions.iter().find(|decision| decision.time == at(second)).unwrap();
        (decision.model_version.clone().unwrap_or_default(), decision.evidence.get("model_power_per_gpu_watts").copied())
    };
    assert_eq!(named(120.0), (String::new(), None));
    let phi: f64 = 1200.0 / 1410.0;
    let watts = 0.8 * (100.0 * phi + 150.0 * phi.powi(3)) + 60.0 * 0.4;
    let near = |found: (String, Option<f64>), name: &str, expected: f64| {
        assert_eq!(found.0, name);
        assert!((found.1.unwrap() - expected).abs() < 1e-6, "{found:?}, {expected}");
    };
    near(named(240.0), &format!("power/{BOARD}@1"), 50.0 + watts);
    near(named(360.0), &format!("power/{BOARD}@1, cap-curve/{JOB}@5"), 50.0 + watts);
    near(named(720.0), &format!("power/{BOARD}@2, cap-curve/{JOB}@5"), 60.0 + watts);
    assert_eq!(bench.partition.tally().models, 3);
    assert_eq!(bench.partition.tally().models_ignored, eadt_core::partition::ModelsIgnored::default());
    for every in [10, 70, 400] {
        assert_eq!(text(&run(&models, Some(every))), text(&bench), "a crash every {every} s");
    }
}

#[test]
fn what_is_not_understood_is_counted_and_changes_nothing() {
    let without = text(&run(&[], None));
    let other = |second: f64, change: &dyn Fn(&mut Model)| {
        let mut model = power_model(second, "1", 50.0);
        change(&mut model);
        model
    };
    let format = |model: &mut Model| model.parameters["format"] = "eadt.power-model.v2".into();
    let hole = |model: &mut Model| model.parameters["model"]["base_watts"] = Value::Null;
    let negative = |model: &mut Model| model.parameters["model"]["base_watts"] = (-3.0).into();
    let foreign = |model: &mut Model| model.name = "somebody/elses".into();
    let board = |model: &mut Model| model.name = "power/H100".into();
    let models = [
        other(100.0, &format),
        other(110.0, &hole),
        other(120.0, &negative),
        other(130.0, &foreign),
        other(140.0, &board),
        cap_curve(150.0, "V100"),
    ];
    let bench = run(&models, Some(60));
    assert_eq!(text(&bench), without);
    // After the last crash the counts begin anew, so they are taken from a run without one.
    let ignored = run(&models, None).partition.tally().models_ignored;
    assert_eq!((ignored.version, ignored.damaged, ignored.older), (1, 2, 0));
    assert!(ignored.gpu >= 15, "every decision since has another board than the curve: {ignored:?}");
    // Windows that are closed by the clock and not by an event are decided about, too.
    let mut bench = run(&models, None);
    let (before, decided) = (bench.partition.tally().models_ignored.gpu, bench.decisions.len());
    for second in (1_210..=1_400).step_by(10) {
        bench.heartbeat(f64::from(second));
    }
    assert_eq!((bench.decisions.len() - decided, bench.partition.tally().models_ignored.gpu - before), (1, 1));
    // One that is damaged does not displace one that is in force; an older one neither.
    let bench = run(&[power_model(100.0, "7", 50.0), other(200.0, &negative)], None);
    let last = bench.decisions.last().unwrap();
    assert_eq!(last.model_version.as_deref(), Some(format!("power/{BOARD}@7").as_str()));
}

#[test]
fn a_withdrawn_model_is_forgotten_for_good() {
    let mut bench = run(&[power_model(100.0, "1", 50.0)], None);
    let mut committed = Vec::new();
    bench.crash(&mut committed);
    assert!(committed.iter().any(|(key, value)| key == &format!("#models//power/{BOARD}") && value.is_some()));
    let name = format!("power/{BOARD}");
    let (topic, event) = (eadt_schemas::Topic::Models, eadt_core::InputEvent::ModelGone);
    let input = eadt_core::InputRecord { topic, stamp: at(1_210.0), key: Some(&name), is_sent_again: false, event };
    bench.partition.fold(&input, &mut Vec::new());
    bench.crash(&mut committed);
    for second in (1_210..=1_400).step_by(10) {
        let now = f64::from(second);
        bench.put(busy(now)).put(rank(0, now, now * 30.0));
    }
    let named: Vec<bool> = bench.decisions.iter().map(|decision| decision.model_version.is_some()).collect();
    assert!(named.starts_with(&[false, true]) && named.ends_with(&[true, false, false, false]), "{named:?}");
    assert!(PartitionFold::restore(FoldSettings::default(), committed).is_ok());
}

/// Stored learned models, in the format of every release: `tests/state/models.vN.jsonl`.
#[test]
fn models_that_any_release_kept_are_in_force_as_if_nothing_had_happened() {
    let learned = || run(&[power_model(200.0, "1", 50.0), cap_curve(310.0, BOARD)], None);
    let after = |bench: &mut Bench| {
        for second in (1_210..=1_800).step_by(10) {
            let now = f64::from(second);
            let mut sample = gpu("a", now, now * 300.0);
            (sample.sm_active_ratio, sample.dram_active_ratio, sample.sm_clock_mhz) = (Some(0.8), Some(0.4), Some(1200.0));
            bench.put(sample).put(rank(0, now, now * 30.0));
        }
    };
    let state = stored("models.v1", || learned().partition.take_changes());
    let keys: Vec<&str> = state.iter().map(|(key, _)| key.as_str()).filter(|key| key.starts_with("#models//")).collect();
    assert_eq!(keys, [format!("#models//cap-curve/{JOB}"), format!("#models//power/{BOARD}")]);
    let mut straight = learned();
    let (windows, decisions) = (straight.windows.len(), straight.decisions.len());
    after(&mut straight);
    let partition = PartitionFold::restore(FoldSettings::default(), state).unwrap();
    let mut bench = Bench { partition, ..Bench::default() };
    after(&mut bench);
    assert!(bench.decisions.last().unwrap().model_version.is_some(), "{:?}", bench.decisions.last());
    let rest = (&straight.windows[windows..], &straight.decisions[decisions..]);
    assert_eq!(serde_json::to_string(&rest).unwrap(), text(&bench));
}
