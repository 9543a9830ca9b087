//! The archive as analysts read it: pyarrow, `DuckDB` and Polars see the rows, types and sums that were written.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use eadt_lake::{Archive, ArchiveRow, ArchiveWriter, RollLimits};
use eadt_schemas::envelope::Envelope;
use eadt_schemas::v1::{Decision, EfficiencyWindow, GpuTelemetry, Layout, dead_letter_header};
use eadt_schemas::{EventTime, Topic};
use serde::Serialize;
use serde_json::json;

fn time(seconds: i64) -> EventTime {
    EventTime::from_micros((1_767_312_000 + seconds) * 1_000_000)
}

fn row(topic: Topic, partition: i32, offset: i64, at: i64, value: &impl Serialize) -> ArchiveRow {
    let envelope = Envelope {
        id: format!("{partition}-{offset}"),
        source: "/tests".to_owned(),
        kind: topic.event_type(),
        time: time(at),
        subject: "ns/job".to_owned(),
    };
    ArchiveRow {
        topic,
        partition,
        offset,
        stamp: EventTime::from_millis(time(at).millis() + 5),
        key: Some(Bytes::from_static(b"ns/job")),
        value: Some(serde_json::to_vec(value).expect("JSON").into()),
        headers: envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect(),
    }
}

fn telemetry(offset: i64) -> ArchiveRow {
    let event = GpuTelemetry {
        time: time(offset * 40),
        workload: Some("ns/job".to_owned()),
        device: format!("GPU-{}", offset % 8),
        collector: "/collector/a".to_owned(),
        power_watts: (offset % 5 != 0).then(|| 200.0 + offset as f64 / 7.0),
        memory_used_bytes: Some(1 << 33),
        throttle_reasons: (offset % 3 == 0).then(|| "sw_power_cap".to_owned()),
        last: offset == 3_999,
        ..GpuTelemetry::default()
    };
    row(Topic::GpuTelemetry, (offset % 2) as i32, offset, offset * 40, &event)
}

fn window(offset: i64) -> ArchiveRow {
    let event = EfficiencyWindow {
        id: format!("w{offset}"),
        workload: "ns/job".to_owned(),
        window_start: time(offset * 60),
        window_end: time(offset * 60 + 60),
        energy_joules: Some(offset as f64 * 1.5),
        layout: (offset % 2 == 0).then(|| Layout { replicas: Some(6), ..Layout::default() }),
        ..EfficiencyWindow::default()
    };
    row(Topic::EfficiencyWindows, 0, offset, offset * 60 + 60, &event)
}

fn decision(offset: i64) -> ArchiveRow {
    let event = Decision {
        id: format!("d{offset}"),
        workload: "ns/job".to_owned(),
        time: time(offset),
        reason: "say \"why\", in words\n".to_owned(),
        evidence: [("power_watts".to_owned(), 280.0)].into(),
        ..Decision::default()
    };
    row(Topic::Decisions, 0, offset * 2, offset, &event)
}

fn dead_letter(offset: i64) -> ArchiveRow {
    let mut row = row(Topic::DeadLetters, 0, offset, offset, &json!(null));
    row.value = Some(Bytes::from(vec![0xff, 0x00, offset as u8]));
    let origin = (Arc::from(dead_letter_header::ORIGIN_OFFSET), Bytes::from(offset.to_string()));
    row.headers.extend([(Arc::from(dead_letter_header::REASON), Bytes::from_static(b"malformed")), origin]);
    row
}

#[test]
fn pyarrow_duckdb_and_polars_read_what_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("archive");
    let archive = Archive::folder(&root).expect("an archive");
    let mut writer = ArchiveWriter::new(archive, RollLimits { rows: 900, ..RollLimits::default() });
    let telemetry: Vec<ArchiveRow> = (0..4_000).map(telemetry).collect();
    let power: f64 = (0..4_000).filter(|n| n % 5 != 0).map(|n| 200.0 + f64::from(n) / 7.0).sum();
    let others = (0..100).map(window).chain((0..50).map(decision)).chain((0..10).map(dead_letter));
    for row in telemetry.into_iter().chain(others) {
        writer.push(&row, EventTime::default()).expect("a row");
        while let Some((topic, partition)) = writer.due(EventTime::default()) {
            writer.roll(topic, partition).expect("a file");
        }
    }
    writer.roll_all().expect("files");
    let expected = json!({
        "gpu.telemetry.v1": {
            "rows": 4_000, "dates": ["2026-01-02", "2026-01-03"],
            "sums": {"power_watts": power, "kafka_offset": 7_998_000, "memory_used_bytes": 4_000_i64 << 33},
            "counts": {"power_watts": 3_200, "throttle_reasons": 1_334, "last": 4_000, "extra_json": 0, "value": 0},
            "types": {
                "time": "time", "ce_time": "time", "kafka_timestamp": "time", "power_watts": "float",
                "memory_used_bytes": "int", "kafka_offset": "int", "last": "bool", "device": "text", "value": "bytes"
            }
        },
        "efficiency.windows.v1": {
            "rows": 100, "dates": ["2026-01-02"],
            "sums": {"energy_joules": 7_425.0, "layout_replicas": 300},
            "counts": {"layout_replicas": 50, "layout_world_size": 0},
            "types": {"window_start": "time", "layout_replicas": "int", "energy_method": "text", "gap": "bool"}
        },
        "decisions.v1": {
            "rows": 50, "dates": ["2026-01-02"],
            "sums": {"kafka_offset": 2_450},
            "counts": {"evidence": 50, "reason": 50, "from_replicas": 0},
            "types": {"evidence": "text", "expires": "time", "restarts": "bool", "from_replicas": "int"}
        },
        "dead-letters.v1": {
            "rows": 10, "dates": ["2026-01-02"],
            "sums": {"origin_offset": 45},
            "counts": {"value": 10, "reason": 10, "detail": 0, "headers_json": 0},
            "types": {"value": "bytes", "origin_offset": "int", "origin_timestamp": "time"}
        }
    });
    let file = folder.path().join("expected.json");
    fs::write(&file, expected.to_string()).expect("a file");
    let script = eadt_tests::root().join("tests/python/read_archive.py");
    let output = eadt_tests::python::script(&script, &[&root, &file]).expect("a readable archive");
    assert!(output.contains("4 topics agree"), "{output}");
}
