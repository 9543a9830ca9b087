//! Records of one input that wait for their turn in the merge: single ones, and batches whose records stay in their block.

use std::collections::VecDeque;

use eadt_bus::{ConsumerRecord, RecordBatch, RecordView};

/// Records of one input in the order of their offsets. The first one that was not taken is the head.
#[derive(Debug, Default)]
pub struct ArrivedRecords {
    waiting: VecDeque<InputChunk>,
    /// Number of records that were taken from the first batch.
    taken_count: usize,
}

const IN_STEP: &str = "the merge has an entry for each record";

#[derive(Debug)]
enum InputChunk {
    Record(ConsumerRecord),
    Batch(RecordBatch),
}

impl InputChunk {
    fn len(&self) -> usize {
        match self {
            Self::Record(_) => 1,
            Self::Batch(batch) => batch.len(),
        }
    }
}

impl ArrivedRecords {
    pub fn push(&mut self, record: ConsumerRecord) {
        self.waiting.push_back(InputChunk::Record(record));
    }

    pub fn push_batch(&mut self, batch: RecordBatch) {
        if !batch.is_empty() {
            self.waiting.push_back(InputChunk::Batch(batch));
        }
    }

    /// Returns the head.
    ///
    /// # Panics
    ///
    /// If it is empty. Callers have taken a record from the merge, which has one entry for each record.
    pub fn head(&self) -> RecordView<'_> {
        let view = match self.first() {
            InputChunk::Record(record) => Some(record.view()),
            InputChunk::Batch(batch) => batch.view(self.taken_count),
        };
        view.expect(IN_STEP)
    }

    /// Returns the head with all that belongs to it, for a dead letter. Panics as [`Self::head`] does.
    pub fn head_record(&self) -> ConsumerRecord {
        let record = match self.first() {
            InputChunk::Record(record) => Some(record.clone()),
            InputChunk::Batch(batch) => batch.record(self.taken_count),
        };
        record.expect(IN_STEP)
    }

    fn first(&self) -> &InputChunk {
        self.waiting.front().expect(IN_STEP)
    }

    /// Takes the head.
    pub fn advance(&mut self) {
        self.taken_count += 1;
        if self.waiting.front().is_some_and(|first| first.len() <= self.taken_count) {
            self.waiting.pop_front();
            self.taken_count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::Topic;

    use super::*;
    use crate::scripted::ScriptedBus;

    #[test]
    fn single_records_and_those_of_batches_come_in_their_order() {
        let bus = ScriptedBus::default();
        let records: Vec<_> = (0..6).map(|n| bus.put(Topic::GpuTelemetry, 0, n, "key", format!("{n}").as_str())).collect();
        let mut arrived = ArrivedRecords::default();
        arrived.push(records[0].clone());
        arrived.push_batch(RecordBatch::pack(&records[1..4]).unwrap());
        arrived.push(records[4].clone());
        arrived.push_batch(RecordBatch::pack(&records[5..]).unwrap());
        for record in &records {
            assert_eq!((arrived.head(), &arrived.head_record()), (record.view(), record));
            arrived.advance();
        }
        assert!(arrived.waiting.is_empty() && arrived.taken_count == 0);
    }
}
