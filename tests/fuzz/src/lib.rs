//! What may come from outside, as bytes: nothing of it makes a reader panic, and what is accepted is what it says.
//!
//! Each function is a target. `cargo xtask fuzz` looks for new inputs; the test of this crate runs the kept ones (`corpus/`).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use eadt_collector::progress::{job, wire};
use eadt_collector::{dcgm, prometheus_text};
use eadt_core::{FoldSettings, Partition};
use eadt_recordings::{Format, Input, LogReader, Options, TimeFormat, import};
use eadt_schemas::EventTime;
use eadt_schemas::decode::{Check, decode};
use eadt_schemas::v1::{
    Actuation, Decision, DeviceHolders, DeviceIntent, DeviceState, Directive, EfficiencyWindow, GpuTelemetry, Model, Scope,
    TrainingProgress, Workload,
};
use serde::Serialize;

/// What is done with an input.
pub type Target = fn(&[u8]);

/// The targets by their names.
pub const TARGETS: [(&str, Target); 6] = [
    ("events", events),
    ("exporter-text", exporter_text),
    ("imports", imports),
    ("ingest", ingest),
    ("settings", settings),
    ("state", state),
];

/// Values of events. The first byte says of which.
pub fn events(data: &[u8]) {
    let Some((kind, value)) = data.split_first() else { return };
    match kind % 12 {
        0 => event::<GpuTelemetry>(value),
        1 => event::<TrainingProgress>(value),
        2 => event::<Workload>(value),
        3 => event::<EfficiencyWindow>(value),
        4 => event::<Decision>(value),
        5 => event::<Actuation>(value),
        6 => event::<Directive>(value),
        7 => event::<DeviceIntent>(value),
        8 => event::<DeviceState>(value),
        9 => event::<DeviceHolders>(value),
        10 => event::<Model>(value),
        _ => {
            // Both ways of reading one are one.
            let plain = serde_json::from_slice::<GpuTelemetry>(value).ok().filter(|event| event.check().is_ok());
            if let (Some(plain), Ok(read)) = (plain, decode::<GpuTelemetry>(value)) {
                assert_eq!(plain, read);
            }
        }
    }
}

fn event<T: Check + Serialize + PartialEq + Debug>(value: &[u8]) {
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
    let lines = prometheus_text::samples(text).count();
    assert!(lines <= text.split('\n').count());
    let scraped = dcgm::reading::read(text, &dcgm::reading::Rules::default());
    assert!(scraped.devices.len() <= lines);
    drop(job::read(text, "n/w", 0, Scope::Global, &BTreeMap::new(), EventTime::from_seconds(1e9)));
}

/// Recordings of others, and event logs. The first byte says of which format.
pub fn imports(data: &[u8]) {
    let Some((format, bytes)) = data.split_first() else { return };
    let Some(format) = Format::ALL.get(usize::from(*format) % (Format::ALL.len() + 1)).copied() else {
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
    let options = Options {
        maps: if format == Format::Csv { maps.iter().map(|map| map.parse().expect("a map")).collect() } else { Vec::new() },
        interval: (format == Format::Dcgmi).then_some(Duration::from_millis(20)),
        time_format: (format == Format::Csv).then_some(TimeFormat::Unix),
        ..Options::default()
    };
    if let Ok(imported) = import(format, vec![Input::new("f", bytes)], &options) {
        let events: Vec<_> = imported.events().collect();
        assert_eq!(events.len() as u64, imported.report.events);
        assert!(events.is_sorted_by_key(|event| event.time));
    }
}

/// Bodies of `POST /v1/progress`.
pub fn ingest(data: &[u8]) {
    let Ok(sent) = wire::events(data, 100) else { return };
    assert!(sent.len() <= 100);
    for sent in sent {
        drop(wire::check_content(&sent.event));
    }
}

/// Settings of services.
pub fn settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(settings) = toml::from_str::<eadt_processor::Settings>(text) {
        drop(settings.check());
    }
    if let Ok(settings) = toml::from_str::<eadt_actuator::Settings>(text) {
        drop(settings.check());
    }
}

/// The processor's stored state. Everything up to the first line break is the record's key.
pub fn state(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (key, value) = data.split_at(end);
    let Ok(key) = std::str::from_utf8(key) else { return };
    let value = value.get(1..).unwrap_or_default();
    if let Ok(mut partition) = Partition::restore(FoldSettings::default(), [(key, Some(value))]) {
        // It can be folded into, and written again.
        partition.finish(&mut Vec::new());
        drop(partition.take_changes());
    }
}
