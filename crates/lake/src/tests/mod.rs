//! Tests of the parts together, on disks that die and on rows of every shape.

mod archive;
mod compaction;
mod crash;
mod damage;
mod identity;
mod oversize;
mod round_trip;
mod stored;

use std::sync::Arc;

use bytes::Bytes;
use eadt_schemas::envelope::Envelope;
use eadt_schemas::{EventTime, Topic};
use serde::Serialize;

use crate::{Archive, ArchiveRow, ArchiveWriter, PartitionRows, RollLimits};

/// 2026-01-02T00:00:00Z.
pub(crate) const START: i64 = 1_767_312_000_000_000;

pub(crate) fn time(seconds: i64) -> EventTime {
    EventTime::from_micros(START + seconds * 1_000_000)
}

pub(crate) fn row(topic: Topic, partition: i32, offset: i64, at: i64, value: &impl Serialize) -> ArchiveRow {
    let envelope = Envelope {
        id: format!("e-{partition}-{offset}"),
        source: "/tests".to_owned(),
        kind: topic.event_type(),
        time: time(at),
        subject: "ns/job".to_owned(),
    };
    ArchiveRow {
        topic,
        partition,
        offset,
        stamp: EventTime::from_millis(time(at).millis() + 3),
        key: Some(Bytes::from_static(b"ns/job")),
        value: Some(serde_json::to_vec(value).unwrap().into()),
        headers: envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect(),
    }
}

pub(crate) fn telemetry(partition: i32, offset: i64, at: i64) -> ArchiveRow {
    let event = eadt_schemas::v1::GpuTelemetry {
        time: time(at),
        workload: Some("ns/job".to_owned()),
        device: format!("GPU-{}", offset % 3),
        collector: "/collector/a".to_owned(),
        power_watts: Some(250.0 + (offset % 17) as f64 / 7.0),
        energy_joules_total: Some(offset as f64 * 25.1),
        memory_used_bytes: Some(1 << 34),
        ..Default::default()
    };
    row(Topic::GpuTelemetry, partition, offset, at, &event)
}

/// Archives telemetry of these offsets in both partitions, ten rows a file.
pub(crate) fn write_in_tens(archive: &Archive, offsets: std::ops::Range<i64>) {
    let mut writer = ArchiveWriter::new(archive.clone(), RollLimits { rows: 10, ..RollLimits::default() });
    for offset in offsets {
        for partition in 0..2 {
            let row = telemetry(partition, offset, offset);
            writer.push(&row, row.stamp).unwrap();
            while let Some((topic, partition)) = writer.due(row.stamp) {
                writer.roll(topic, partition).unwrap();
            }
        }
    }
    writer.roll_all().unwrap();
}

/// Returns all rows of a partition, or the first error.
pub(crate) fn all(archive: &Archive, topic: Topic, partition: i32) -> crate::Result<Vec<ArchiveRow>> {
    let rows: PartitionRows = archive.rows(&archive.files()?, topic, partition);
    rows.collect()
}
