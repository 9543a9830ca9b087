//! Checks bytes from outside: no input makes a reader panic, and accepted inputs are valid.
//!
//! Each function is a target. `cargo xtask fuzz` looks for new inputs; the test of this crate runs the kept ones (`corpus/`).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use eadt_collector::assignments::{self, AssignmentTable, GpuAssignment};
use eadt_collector::progress::kubeflow::{self, StatusUpdate};
use eadt_collector::progress::service_accounts::TokenClaims;
use eadt_collector::progress::wire::ClockSkewLimits;
use eadt_collector::progress::{job, tokens, wire};
use eadt_collector::{dcgm, prometheus_text};
use eadt_core::gpu_sharing::GpuSharingSettings;
use eadt_core::power_budget::allocation::BudgetSettings;
use eadt_core::{FoldSettings, InputEvent, JointFold, PartitionFold, PowerBudgetFold, joint};
use eadt_gpu_sharing::tables::{read_co_runs, read_solo, write_solo};
use eadt_gpu_sharing::{GpuMeasurements, GpuSharingFold};
use eadt_kubernetes::objects::kinds::WORKLOAD_KINDS;
use eadt_kubernetes::objects::object::WorkloadObject;
use eadt_kubernetes::objects::{change, owners};
use eadt_kubernetes::policy::{self, EnergyPolicy};
use eadt_models::choose::{ChoiceMethod, ChoiceObjective, RobustSettings, TuningKnob};
use eadt_recordings::{ImportOptions, LogReader, RecordingFile, RecordingFormat, TimeFormat, import};
use eadt_schemas::decode::{DecodableEvent, decode};
use eadt_schemas::v1::{self, CounterScope, EfficiencyWindow, GpuTelemetry, TrainingProgress, UpdateMode, Workload};
use eadt_schemas::{EventTime, EventType};
use eadt_tune::{TuningRequest, points};
use serde::Serialize;
use serde_json::Value;

/// Processes an input.
pub type Target = fn(&[u8]);

/// The targets by their names, but for `settings`, which needs the whole program: it lies in `program/`, so that the others are built
/// without it.
pub const TARGETS: [(&str, Target); 8] = [
    ("events", events),
    ("exporter-text", exporter_text),
    ("fetch", fetch),
    ("imports", imports),
    ("ingest", ingest),
    ("objects", objects),
    ("state", state),
    ("tables", tables),
];

/// Answers of Kafka, their batches and how they are packed. The first byte selects one of them.
pub fn fetch(data: &[u8]) {
    eadt_bus::kafka::read_foreign_bytes(data);
}

/// Values of events. The first byte is the place of their type in the list of those that have one; with another one both ways of
/// reading telemetry are compared.
pub fn events(data: &[u8]) {
    macro_rules! readers {
        ($($event:ident)*) => { [$(event::<v1::$event>),*] };
    }
    let readers: [fn(&[u8]); EventType::TYPED.len()] = eadt_schemas::for_typed_events!(readers);
    let Some((kind, value)) = data.split_first() else { return };
    if let Some(read) = readers.get(usize::from(*kind)) {
        return read(value);
    }
    let plain = serde_json::from_slice::<GpuTelemetry>(value).ok().filter(|event| event.check().is_ok());
    if let (Some(plain), Ok(read)) = (plain, decode::<GpuTelemetry>(value)) {
        assert_eq!(plain, read);
    }
}

fn event<T: DecodableEvent + Serialize + PartialEq + Debug>(value: &[u8]) {
    let Ok(read) = decode::<T>(value) else { return };
    let written = serde_json::to_vec(&read).expect("an event that was read can be written");
    match decode::<T>(&written) {
        Ok(again) => assert_eq!(read, again),
        Err(refusal) => panic!("what was accepted is refused when it is written again: {refusal:?}"),
    }
}

/// Answers of exporters and of jobs' Prometheus endpoints.
pub fn exporter_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = prometheus_text::parse_samples(text).count();
    assert!(lines <= text.split('\n').count());
    let scraped = dcgm::reading::read(text, &dcgm::reading::AttributionRules::default());
    assert!(scraped.devices.len() <= lines);
    drop(job::read(text, "n/w", 0, CounterScope::Global, &BTreeMap::new(), EventTime::from_seconds(1e9)));
}

/// Recordings of others: the first byte is the place of the format in `ALL`. With another one, event logs.
pub fn imports(data: &[u8]) {
    let Some((format, bytes)) = data.split_first() else { return };
    let Some(format) = RecordingFormat::ALL.get(usize::from(*format)).copied() else {
        let Ok(mut reader) = LogReader::new("l", bytes) else { return };
        // Each call takes something off.
        for _ in 0..=bytes.len() {
            if let Ok(None) = reader.next_event() {
                return;
            }
        }
        panic!("the reader does not end");
    };
    let maps = ["power_watts=w:mW", "samples=*", "tokens=n", "loss=#1"];
    let options = ImportOptions {
        maps: if format == RecordingFormat::Csv {
            maps.iter().map(|map| map.parse().expect("a map")).collect()
        } else {
            Vec::new()
        },
        interval: (format == RecordingFormat::Dcgmi).then_some(Duration::from_millis(20)),
        time_format: (format == RecordingFormat::Csv).then_some(TimeFormat::Unix),
        ..ImportOptions::default()
    };
    if let Ok(imported) = import(format, vec![RecordingFile::new("f", bytes)], &options) {
        let events: Vec<_> = imported.events().collect();
        assert_eq!(events.len() as u64, imported.report.events);
        assert!(events.is_sorted_by_key(|event| event.time));
    }
}

/// Inputs from senders of progress: bodies of `POST /v1/progress` and of Kubeflow's contract, tokens of service accounts; and
/// the files that list senders and assign GPUs. The first byte selects one.
pub fn ingest(data: &[u8]) {
    let Some((what, body)) = data.split_first() else { return };
    let now = EventTime::from_seconds(1.7e9);
    match what % 5 {
        0 => {
            let Ok(request) = wire::events(body, 100) else { return };
            assert!(request.records.len() <= 100);
            for sent in request.records.into_iter().flatten() {
                if wire::check(&sent.event, now, ANY).and_then(|()| wire::check_content(&sent.event)).is_ok() {
                    sendable(&sent.event);
                }
            }
        }
        1 => {
            let Ok(update) = wire::parse::<StatusUpdate>(body, None) else { return };
            let first = kubeflow::event(&update, "n/w".to_owned(), None, now);
            let known = TrainingProgress { workload: "n/w".to_owned(), ..TrainingProgress::default() };
            for event in [kubeflow::event(&update, "n/w".to_owned(), Some(&known), now), first].into_iter().flatten() {
                let event = TrainingProgress { collector: "c".to_owned(), ..event };
                if wire::check(&event, now, ANY).is_ok() {
                    sendable(&event);
                }
            }
        }
        2 => {
            let Some(claims) = std::str::from_utf8(body).ok().and_then(TokenClaims::read) else { return };
            let _asked: bool = claims.are_worth_asking("eadt", now);
        }
        3 => {
            if let Ok(tokens) = tokens::parse(body) {
                assert!(tokens.verify("eadt_a_b", now).is_none(), "no such token was ever made");
            }
        }
        _ => {
            let Ok(list) = assignments::read(body) else { return };
            let of = AssignmentTable::new(&list);
            for GpuAssignment { device, .. } in &list {
                let tenants = of.of(device, Some(0)).expect("it was assigned");
                let whole: f64 = tenants.iter().filter_map(|tenant| tenant.share).sum();
                assert!(whole <= 1.0 + 1e-6, "{device}: {whole}");
            }
        }
    }
}

const ANY: ClockSkewLimits = ClockSkewLimits { past: None, future: None };

/// Checks that an event accepted by the endpoint is accepted by its readers.
fn sendable(event: &TrainingProgress) {
    let event = TrainingProgress { collector: "c".to_owned(), ..event.clone() };
    let written = serde_json::to_vec(&event).expect("an event that was read can be written");
    if let Err(refusal) = decode::<TrainingProgress>(&written) {
        panic!("what was accepted is refused by its readers: {refusal:?}");
    }
}

/// Objects that tenants of a cluster write: policies, and workloads with their annotations. The first byte selects the kind.
pub fn objects(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else { return };
    let Ok(object) = serde_json::from_slice::<Value>(text) else { return };
    let Some(kind) = WORKLOAD_KINDS.get(usize::from(*kind) % (WORKLOAD_KINDS.len() + 1)) else {
        if let Ok(policy) = serde_json::from_value::<EnergyPolicy>(object) {
            drop(policy::resolve_policy(&policy));
        }
        return;
    };
    let Ok(seen) = WorkloadObject::read(kind, &object) else { return };
    let now = EventTime::from_seconds(1.7e9);
    for field in seen.take_over.iter().flat_map(|taken| &taken.fields) {
        drop(change::current_value(&seen, &field.field));
        drop(owners::field_owners(&object["metadata"]["managedFields"], kind, &field.field));
    }
    drop(change::plan_ready(&seen, now, 1));
    drop(change::plan_resume(&seen, 1));
}

/// The processor's stored state, as all of its stages read it. Everything up to the first line break is the record's key.
pub fn state(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (key, value) = data.split_at(end);
    let Ok(key) = std::str::from_utf8(key) else { return };
    let value = value.get(1..).unwrap_or_default();
    if let Ok(mut partition) = PartitionFold::restore(FoldSettings::default(), [(key, Some(value))]) {
        // It can be folded into, and written again.
        partition.finish(&mut Vec::new());
        drop(partition.take_changes());
    }
    let settings = FoldSettings {
        power_budget: Some(BudgetSettings { budget_watts: Some(1_000.0), ..BudgetSettings::default() }),
        gpu_sharing: Some(GpuSharingSettings { enabled: true, ..GpuSharingSettings::default() }),
        ..FoldSettings::default()
    };
    joint::<PowerBudgetFold>(&settings, key, value);
    joint::<GpuSharingFold>(&settings, key, value);
}

/// A workload of a stored member declares itself and has a window, upon which all of the stage's state is looked at.
fn joint<T: JointFold>(settings: &FoldSettings, key: &str, value: &[u8]) {
    let Ok(mut stage) = T::restore(settings.clone(), [(key, Some(value))]) else { return };
    let (time, name) = (EventTime::from_seconds(1.7e9), key.rsplit("//").next().unwrap_or_default());
    for controller in ["power-budget", "sm-partition"] {
        let declared = Workload {
            time,
            workload: name.to_owned(),
            controller: Some(controller.to_owned()),
            mode: UpdateMode::Enforce,
            gpus: Some(1),
            gpu_power_limit_watts: Some(400.0),
            ready_time: Some(time),
            ..Workload::default()
        };
        let window = EfficiencyWindow {
            workload: name.to_owned(),
            window_start: time,
            window_end: time.plus_seconds(60.0),
            energy_coverage_ratio: 1.0,
            progress_coverage_ratio: 1.0,
            samples_per_second: Some(10.0),
            mean_power_watts: Some(300.0),
            mean_power_per_gpu_watts: Some(300.0),
            gpus: 1,
            ..EfficiencyWindow::default()
        };
        for event in [joint::JointEvent::Input(InputEvent::Workload(&declared)), joint::JointEvent::Window(&window)] {
            drop(stage.fold(event, Some(name), time, &mut Vec::new()));
        }
    }
    drop(stage.take_changes());
}

/// Tables of measurements, from which settings and partitions are chosen. The first byte selects one.
pub fn tables(data: &[u8]) {
    let Some((what, bytes)) = data.split_first() else { return };
    match what % 3 {
        0 => {
            let request = TuningRequest {
                maps: Vec::new(),
                decimal: None,
                by: vec!["workload".to_owned()],
                knobs: TuningKnob::SmClockMhz.into(),
                reference_second_setting: None,
                max_slowdown_ratio: Some(0.05),
                min_ratio: None,
                preset: None,
                objective: ChoiceObjective::Energy,
                method: if what & 0x80 == 0 { ChoiceMethod::Measured } else { ChoiceMethod::Robust(RobustSettings::default()) },
                min_settings: 3,
                max_power_watts: 3_000.0,
            };
            if let Ok(groups) = points::read("f", bytes, &request) {
                drop(eadt_tune::tune("f", &groups, &request));
            }
        }
        1 => {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let Ok(solo) = read_solo("f", text) else { return };
            let origin = solo.origin;
            if let Some(Ok(measured)) = solo.idle_watts.map(|watts| GpuMeasurements::new(watts, solo.profiles, Vec::new())) {
                let again = read_solo("f", &write_solo(&measured, origin)).expect("what was written can be read");
                assert!(again.profiles.iter().eq(measured.profiles().values()));
            }
        }
        _ => {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            drop(read_co_runs("f", text));
        }
    }
}
