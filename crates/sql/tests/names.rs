//! What events name is data to a query, whatever it holds.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use eadt_lake::{Archive, Limits, Row, Writer};
use eadt_schemas::decode::Check;
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, GpuTelemetry, WindowKind};
use eadt_schemas::{EventTime, Topic, decode};
use serde_json::{Map, Value, json};

/// Workloads that the schemas accept, and devices, which may be called anything.
const HOSTILE: [&str; 5] = [
    "lab/x'; DROP TABLE windows; --",
    "lab/x' OR '1'='1",
    "lab/\"; DELETE FROM efficiency_windows_v1; --",
    "lab/$1 ?1 :name {{workload}} \\'",
    "lab/efficiency_windows_v1",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A full sample with these fields instead of its own, as a service would accept it.
fn event<T: Check>(sample: &str, fields: &Value) -> Bytes {
    let text = fs::read(root().join("schemas/samples/v1").join(sample)).unwrap();
    let mut event: Map<String, Value> = serde_json::from_slice(&text).unwrap();
    event.extend(fields.as_object().unwrap().clone());
    let bytes = serde_json::to_vec(&event).unwrap();
    decode::<T>(&bytes).unwrap_or_else(|refusal| panic!("{sample} with {fields}: {refusal:?}"));
    bytes.into()
}

/// An archive in which every name is hostile.
fn archive(place: &Path) {
    let mut writer = Writer::new(Archive::folder(place).unwrap(), Limits::default());
    let now = EventTime::from_micros(1_800_000_000_000_000);
    for (offset, name) in (0..).zip(HOSTILE) {
        let id = json!({"id": name, "workload": name, "decision_id": name});
        let own = |more: Value| {
            let mut fields = id.as_object().unwrap().clone();
            fields.extend(more.as_object().unwrap().clone());
            Value::Object(fields)
        };
        for (topic, value) in [
            (
                Topic::EfficiencyWindows,
                event::<EfficiencyWindow>("efficiency.window.json", &own(json!({"kind": WindowKind::Tumbling, "span": null}))),
            ),
            (Topic::Decisions, event::<Decision>("decision.json", &id)),
            (Topic::Actuations, event::<Actuation>("actuation.json", &id)),
            (Topic::GpuTelemetry, event::<GpuTelemetry>("gpu.telemetry.json", &own(json!({"device": name})))),
        ] {
            let key = Some(Bytes::from_static(name.as_bytes()));
            let row = Row { topic, partition: 0, offset, stamp: now, key, value: Some(value), headers: Vec::new() };
            writer.push(&row, now).unwrap();
        }
    }
    writer.roll_all().unwrap();
}

fn rows(place: &Path, query: &str) -> Vec<Map<String, Value>> {
    let answer = eadt_sql::query(place, query).unwrap_or_else(|error| panic!("{query}: {error}"));
    serde_json::from_str(&answer.json().unwrap()).unwrap()
}

fn column(rows: &[Map<String, Value>], name: &str) -> BTreeSet<String> {
    rows.iter().map(|row| row[name].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_in_a_name_is_never_part_of_a_query() {
    let folder = tempfile::tempdir().unwrap();
    archive(folder.path());
    let named = BTreeSet::from(HOSTILE.map(str::to_owned));
    let mut asked = 0;
    for entry in fs::read_dir(root().join("docs/sql")).unwrap() {
        let file = entry.unwrap().path();
        let rows = rows(folder.path(), &fs::read_to_string(&file).unwrap());
        let by = if file.ends_with("devices.sql") { "device" } else { "workload" };
        assert_eq!(column(&rows, by), named, "{}", file.display());
        asked += 1;
    }
    assert!(asked >= 4, "only {asked} queries");

    // Tables are called after the topics that EADT has, and after nothing in them.
    let tables = rows(folder.path(), "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'");
    let topics = ["actuations_v1", "decisions_v1", "efficiency_windows_v1", "gpu_telemetry_v1"];
    assert_eq!(column(&tables, "table_name"), BTreeSet::from(topics.map(str::to_owned)));
    // Each is found by its whole name, and nothing else is.
    for name in HOSTILE {
        let quoted = name.replace('\'', "''");
        let found = rows(folder.path(), &format!("SELECT workload FROM efficiency_windows_v1 WHERE workload = '{quoted}'"));
        assert_eq!(column(&found, "workload"), BTreeSet::from([name.to_owned()]));
    }
}
