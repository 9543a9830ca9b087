//! Checks that reading from columns gives the same as decoding the built row.

use std::sync::Arc;

use bytes::Bytes;
use eadt_schemas::Topic;
use eadt_schemas::decode::{DecodableEvent, decode};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::row;
use crate::ArchiveRow;
use crate::columns::RowBatchBuilder;
use crate::stored::{StoredBatch, StoredRow, StoredRun};

fn run(rows: &[ArchiveRow]) -> StoredRun {
    let mut columns = RowBatchBuilder::new(rows[0].topic);
    for row in rows {
        columns.push(&row.view(), row.header_views());
    }
    let opened = Arc::new(StoredBatch::new(rows[0].topic, columns.take()));
    let places = (0..rows.len()).map(|at| opened.place(at).unwrap()).collect();
    StoredRun::new(&opened, 0, places)
}

fn stored(rows: &[ArchiveRow]) -> Vec<StoredRow> {
    run(rows).rows().collect()
}

/// Returns whether the row was read from its columns; if so, as its bytes are.
fn agrees<T: DecodableEvent + PartialEq + std::fmt::Debug>(
    stored: &StoredRow,
    row: &ArchiveRow,
    into: &mut T,
    read: impl Fn(&StoredRow, &mut T) -> bool,
) -> bool {
    assert_eq!(
        (stored.topic(), stored.partition(), stored.offset(), stored.stamp()),
        (row.topic, row.partition, row.offset, row.stamp)
    );
    assert_eq!(stored.key(), row.key.as_deref());
    let built = stored.row().unwrap();
    assert_eq!((built.partition, built.offset, &built.headers), (row.partition, row.offset, &row.headers));
    let good = read(stored, into);
    if good {
        assert_eq!(built.header(header::TYPE), Some(row.topic.event_type().name()));
        assert_eq!(decode::<T>(built.value.as_deref().unwrap()).as_ref(), Ok(&*into));
        assert_eq!(decode::<T>(row.value.as_deref().unwrap()).as_ref(), Ok(&*into));
    }
    good
}

fn telemetry() -> Value {
    serde_json::from_str(include_str!("../../../../schemas/samples/v1/gpu.telemetry.json")).unwrap()
}

fn progress() -> Value {
    serde_json::from_str(include_str!("../../../../schemas/samples/v1/training.progress.json")).unwrap()
}

#[test]
fn full_and_sparse_events_are_read_from_their_columns() {
    let sparse = json!({"time": telemetry()["time"], "device": "GPU-1", "collector": "c"});
    let rows: Vec<ArchiveRow> =
        [telemetry(), sparse, telemetry()].iter().zip(0..).map(|(value, n)| row(Topic::GpuTelemetry, 1, n, n, value)).collect();
    let mut event = GpuTelemetry::default();
    for (stored, row) in stored(&rows).iter().zip(&rows) {
        assert!(agrees(stored, row, &mut event, StoredRow::telemetry));
        assert!(!stored.progress(&mut TrainingProgress::default()), "of another type");
    }
    let sparse = json!({"time": progress()["time"], "workload": "a/b", "collector": "c"});
    let rows: Vec<ArchiveRow> =
        [progress(), sparse, progress()].iter().zip(0..).map(|(value, n)| row(Topic::TrainingProgress, 1, n, n, value)).collect();
    let mut event = TrainingProgress::default();
    for (stored, row) in stored(&rows).iter().zip(&rows) {
        assert!(agrees(stored, row, &mut event, StoredRow::progress));
    }
}

#[test]
fn what_columns_do_not_hold_is_left_to_the_decoder() {
    let with = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut value = telemetry();
        change(value.as_object_mut().unwrap());
        row(Topic::GpuTelemetry, 0, 0, 0, &value)
    };
    let mut tombstone = with(&|_| {});
    tombstone.value = None;
    let mut other_type = with(&|_| {});
    for (name, value) in &mut other_type.headers {
        if &**name == header::TYPE {
            *value = Bytes::from_static(b"io.eadt.heartbeat.v1");
        }
    }
    let mut typed_twice = with(&|_| {});
    typed_twice.headers.push((Arc::from(header::TYPE), Bytes::from_static(b"io.eadt.heartbeat.v1")));
    // The mark is a header, which a replay reads from the built row.
    let mut sent_again = with(&|_| {});
    sent_again.headers.push((Arc::from(header::SENT_AGAIN), Bytes::from_static(b"1")));
    assert_eq!(stored(std::slice::from_ref(&sent_again))[0].row().unwrap().header(header::SENT_AGAIN), Some("1"));
    for row in [
        with(&|event| drop(event.insert("of_tomorrow".into(), json!(1)))),
        with(&|event| drop(event.insert("meter".into(), json!("thumb")))),
        with(&|event| drop(event.insert("gpu_index".into(), json!(-1)))),
        with(&|event| drop(event.insert("processes".into(), json!(1_u64 << 40)))),
        with(&|event| drop(event.insert("power_watts".into(), json!(-5.0)))),
        with(&|event| drop(event.remove("time"))),
        with(&|event| drop(event.insert("power_watts".into(), json!("5")))),
        tombstone,
        other_type,
        typed_twice,
        sent_again,
    ] {
        assert!(!stored(std::slice::from_ref(&row))[0].telemetry(&mut GpuTelemetry::default()), "{row:?}");
    }
}

fn odd() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0..100_u32).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0.0..1.0).prop_map(Value::from),
        Just(json!(-0.0)),
        "[ -~é]{0,9}".prop_map(Value::from),
        prop::sample::select(vec![
            "gpu",
            "node",
            "measured",
            "global",
            "rank",
            "started",
            "profiling",
            "2026-01-02T03:04:05Z",
            "a/b"
        ])
        .prop_map(Value::from),
        Just(json!({"a": [1]})),
    ]
}

/// Reads all rows as one run, into events that hold old values, beside what decoding each gives.
fn as_one_run<E: DecodableEvent + Clone + PartialEq + std::fmt::Debug>(
    rows: &[ArchiveRow],
    full: &E,
    alone: impl Fn(&StoredRow, &mut E) -> bool,
    together: impl Fn(&StoredRun, &mut [&mut E]) -> Vec<bool>,
) {
    let run = run(rows);
    let mut events = vec![full.clone(); rows.len()];
    let good = together(&run, &mut events.iter_mut().collect::<Vec<_>>());
    assert_eq!((run.len(), good.len()), (rows.len(), rows.len()));
    for (((stored, row), event), good) in run.rows().zip(rows).zip(&events).zip(good) {
        assert_eq!(stored.offset(), row.offset);
        assert_eq!(good, alone(&stored, &mut full.clone()));
        assert!(!good || decode::<E>(row.value.as_deref().unwrap()).as_ref() == Ok(event), "{event:?}");
    }
}

proptest! {
    /// One event's memory is used for the next, whatever that one lacks.
    #[test]
    fn changed_events_are_read_as_they_decode(
        changes in vec(vec((any::<prop::sample::Index>(), prop::option::of(odd())), 0..4), 1..6),
    ) {
        fn rows(sample: &Value, topic: Topic, changes: &[Vec<(prop::sample::Index, Option<Value>)>]) -> Vec<ArchiveRow> {
            let of = |(n, changes): (usize, &Vec<(prop::sample::Index, Option<Value>)>)| {
                let mut value = sample.clone();
                let fields = value.as_object_mut().unwrap();
                let names: Vec<String> = fields.keys().cloned().collect();
                for (which, change) in changes {
                    match change {
                        Some(change) => drop(fields.insert(which.get(&names).clone(), change.clone())),
                        None => drop(fields.remove(which.get(&names))),
                    }
                }
                row(topic, 0, n as i64, n as i64, &value)
            };
            changes.iter().enumerate().map(of).collect()
        }
        let sampled = rows(&telemetry(), Topic::GpuTelemetry, &changes);
        let mut event = GpuTelemetry::default();
        for (stored, row) in stored(&sampled).iter().zip(&sampled) {
            agrees(stored, row, &mut event, StoredRow::telemetry);
        }
        let full: GpuTelemetry = serde_json::from_value(telemetry()).unwrap();
        as_one_run(&sampled, &full, StoredRow::telemetry, StoredRun::telemetry);
        let reported = rows(&progress(), Topic::TrainingProgress, &changes);
        let mut event = TrainingProgress::default();
        for (stored, row) in stored(&reported).iter().zip(&reported) {
            agrees(stored, row, &mut event, StoredRow::progress);
        }
        let full: TrainingProgress = serde_json::from_value(progress()).unwrap();
        as_one_run(&reported, &full, StoredRow::progress, StoredRun::progress);
    }
}
