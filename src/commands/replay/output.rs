//! Windows and decisions as an archive.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use bytes::Bytes;
use eadt_lake::{Archive, Limits, Row, Writer};
use eadt_processor::offline::Replayed;
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

/// Windows and decisions in the archive's layout; offsets count from 0 in each partition.
pub struct Output {
    writer: Writer,
    next: BTreeMap<(Topic, i32), i64>,
    /// The greatest event time so far: the stamps of this output never fall.
    stamp: EventTime,
}

impl Output {
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let filled = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        if filled {
            bail!("{} is not empty: name a new folder, or delete it", path.display());
        }
        std::fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        let limits = Limits { age_micros: i64::MAX, ..Limits::default() };
        Ok(Self { writer: Writer::new(Archive::folder(path)?, limits), next: BTreeMap::new(), stamp: EventTime::MIN })
    }

    pub fn write(&mut self, partition: i32, replayed: &Replayed) -> anyhow::Result<()> {
        let (topic, key, value, envelope) = match replayed {
            Replayed::Window(window) => (
                Topic::EfficiencyWindows,
                &window.workload,
                serde_json::to_vec(window)?,
                envelope(&window.id, EventType::EfficiencyWindow, window.window_end, &window.workload),
            ),
            Replayed::Decision(decision) => (
                Topic::Decisions,
                &decision.workload,
                serde_json::to_vec(decision)?,
                envelope(&decision.id, EventType::Decision, decision.time, &decision.workload),
            ),
            Replayed::Refused { .. } => return Ok(()),
        };
        let offset = self.next.entry((topic, partition)).or_insert(0);
        self.stamp = self.stamp.max(envelope.time);
        let row = Row {
            topic,
            partition,
            offset: *offset,
            stamp: self.stamp,
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value: Some(value.into()),
            headers: envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect(),
        };
        *offset += 1;
        self.writer.push(&row, self.stamp)?;
        while let Some((topic, partition)) = self.writer.due(self.stamp) {
            self.writer.roll(topic, partition)?;
        }
        Ok(())
    }

    pub fn finish(mut self) -> anyhow::Result<()> {
        self.writer.roll_all()?;
        Ok(())
    }
}

fn envelope(id: &str, kind: EventType, time: EventTime, subject: &str) -> Envelope {
    Envelope { id: id.to_owned(), source: "/processor".to_owned(), kind, time, subject: subject.to_owned() }
}
