//! What came of one input and waits for its turn in the merge: single records, and batches whose records stay where they lie.

use std::collections::VecDeque;

use eadt_bus::{Record, RecordBatch, RecordView};

/// Records of one input in the order of their offsets. The first one that was not taken is the head.
#[derive(Debug, Default)]
pub struct ArrivedRecords {
    waiting: VecDeque<Arrived>,
    /// Of the first batch, how many records were taken.
    taken: usize,
}

#[derive(Debug)]
enum Arrived {
    Record(Record),
    Batch(RecordBatch),
}

impl Arrived {
    fn len(&self) -> usize {
        match self {
            Self::Record(_) => 1,
            Self::Batch(batch) => batch.len(),
        }
    }
}

impl ArrivedRecords {
    pub fn push(&mut self, record: Record) {
        self.waiting.push_back(Arrived::Record(record));
    }

    pub fn push_batch(&mut self, batch: RecordBatch) {
        if !batch.is_empty() {
            self.waiting.push_back(Arrived::Batch(batch));
        }
    }

    pub fn head(&self) -> Option<RecordView<'_>> {
        match self.waiting.front()? {
            Arrived::Record(record) => Some(record.view()),
            Arrived::Batch(batch) => batch.view(self.taken),
        }
    }

    /// Returns the head with all that belongs to it, for a dead letter.
    pub fn head_record(&self) -> Option<Record> {
        match self.waiting.front()? {
            Arrived::Record(record) => Some(record.clone()),
            Arrived::Batch(batch) => batch.record(self.taken),
        }
    }

    /// Takes the head.
    pub fn advance(&mut self) {
        self.taken += 1;
        if self.waiting.front().is_some_and(|first| first.len() <= self.taken) {
            self.waiting.pop_front();
            self.taken = 0;
        }
    }
}
