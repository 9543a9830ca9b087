//! Records of several partitions in the order of their time, in bounded memory.
//!
//! A partition keeps its own order. The next record is the earliest of those at the fronts, once every partition that was not
//! read to its end has one. A partition whose front waits for others is paused, so no partition is read far ahead.

use std::collections::{HashMap, VecDeque};

use eadt_bus::{ConsumerRecord, PartitionReader, TopicPartition};
use eadt_schemas::EventTime;
use eadt_schemas::envelope::header;

/// Records of one partition that may wait before it is paused, and their bytes.
const MOST_RECORDS: usize = 1_000;
const MOST_BYTES: usize = 1 << 20;

/// Records of one partition that wait for those of others.
#[derive(Debug)]
struct WaitingRecords {
    at: TopicPartition,
    records: VecDeque<(EventTime, ConsumerRecord)>,
    bytes: usize,
    /// It was not read to its end yet, so an earlier record may come.
    is_awaited: bool,
    is_paused: bool,
}

impl WaitingRecords {
    fn is_full(&self) -> bool {
        self.records.len() >= MOST_RECORDS || self.bytes >= MOST_BYTES
    }
}

/// Orders the records of partitions by their time.
#[derive(Debug)]
pub struct TimeOrder {
    partitions: Vec<WaitingRecords>,
    index: HashMap<TopicPartition, usize>,
}

impl TimeOrder {
    /// Orders these partitions. `is_awaited`: they are read from an earlier record to their ends; without it records are ordered
    /// as far as they come together.
    pub fn of(partitions: impl IntoIterator<Item = TopicPartition>, is_awaited: bool) -> Self {
        let waiting = |at| WaitingRecords { at, records: VecDeque::new(), bytes: 0, is_awaited, is_paused: false };
        let partitions: Vec<WaitingRecords> = partitions.into_iter().map(waiting).collect();
        let index = partitions.iter().enumerate().map(|(number, waiting)| (waiting.at.clone(), number)).collect();
        Self { partitions, index }
    }

    /// Takes a record; those of one partition in its order.
    pub fn add(&mut self, record: ConsumerRecord) {
        let Some(waiting) = self.index.get(&record.at).map(|number| &mut self.partitions[*number]) else { return };
        waiting.bytes += size_of_record(&record);
        waiting.records.push_back((time_of(&record), record));
    }

    /// Notes that a partition was read to its end.
    pub fn end(&mut self, at: &TopicPartition) {
        if let Some(number) = self.index.get(at) {
            self.partitions[*number].is_awaited = false;
        }
    }

    /// Returns whether records wait for others.
    pub fn has_waiting(&self) -> bool {
        self.partitions.iter().any(|waiting| !waiting.records.is_empty())
    }

    /// No longer waits for partitions of which nothing comes, such as those without a broker.
    pub fn stop_waiting(&mut self) {
        self.partitions.iter_mut().for_each(|waiting| waiting.is_awaited = false);
    }

    /// Returns the next record; `None` if an earlier one may come, or none is left.
    pub fn next_record(&mut self) -> Option<ConsumerRecord> {
        let mut first: Option<(EventTime, EventTime, usize)> = None;
        for (number, waiting) in self.partitions.iter().enumerate() {
            match waiting.records.front() {
                Some((time, record)) => {
                    let front = (*time, record.stamp, number);
                    first = Some(first.map_or(front, |first| first.min(front)));
                }
                None if waiting.is_awaited => return None,
                None => {}
            }
        }
        let (.., number) = first?;
        let waiting = &mut self.partitions[number];
        let (_, record) = waiting.records.pop_front()?;
        waiting.bytes -= size_of_record(&record);
        Some(record)
    }

    /// Pauses partitions with enough waiting records, and resumes those with room again.
    pub fn hold_back(&mut self, reader: &mut dyn PartitionReader) -> eadt_bus::Result<()> {
        for waiting in &mut self.partitions {
            let is_full = waiting.is_full();
            if is_full == waiting.is_paused {
                continue;
            }
            let at = std::slice::from_ref(&waiting.at);
            if is_full {
                reader.pause(at)?;
            } else {
                reader.resume(at)?;
            }
            waiting.is_paused = is_full;
        }
        Ok(())
    }
}

/// Returns the time of a record's event; if the record has none, that of the log.
fn time_of(record: &ConsumerRecord) -> EventTime {
    record.header(header::TIME).and_then(|text| text.parse().ok()).unwrap_or(record.stamp)
}

fn size_of_record(record: &ConsumerRecord) -> usize {
    [&record.key, &record.value].into_iter().flatten().map(bytes::Bytes::len).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use eadt_bus::PollEvent;

    use super::*;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new("eadt.decisions.v1", partition)
    }

    fn record(partition: i32, second: i64) -> ConsumerRecord {
        ConsumerRecord {
            at: at(partition),
            offset: second,
            stamp: EventTime::from_millis(1000 * second),
            key: None,
            value: Some(Bytes::from_static(b"{}")),
            headers: Vec::new().into(),
        }
    }

    fn seconds(order: &mut TimeOrder) -> Vec<i64> {
        std::iter::from_fn(|| order.next_record()).map(|record| record.offset).collect()
    }

    #[test]
    fn records_of_several_partitions_come_by_time_and_none_overtakes_an_earlier_one() {
        let mut order = TimeOrder::of([at(0), at(1), at(2)], true);
        for (partition, second) in [(0, 1), (0, 4), (0, 5), (1, 2), (1, 3)] {
            order.add(record(partition, second));
        }
        // Of the third partition an earlier one may come.
        assert!(seconds(&mut order).is_empty());
        order.end(&at(2));
        assert_eq!(seconds(&mut order), [1, 2, 3], "the second may go on with 4");
        order.end(&at(1));
        assert_eq!(seconds(&mut order), [4, 5]);
        order.add(record(0, 7));
        order.end(&at(0));
        // Records appended after an end are delivered at once, earlier ones, too.
        order.add(record(2, 6));
        assert_eq!(seconds(&mut order), [6, 7]);
        order.add(record(1, 1));
        assert_eq!(seconds(&mut order), [1]);
        // A partition without a broker is not waited for for ever.
        let mut order = TimeOrder::of([at(0), at(1)], true);
        order.add(record(0, 1));
        assert!(seconds(&mut order).is_empty());
        order.stop_waiting();
        assert_eq!(seconds(&mut order), [1]);
        // Followed from the newest on, nothing is waited for.
        let mut order = TimeOrder::of([at(0), at(1)], false);
        order.add(record(1, 9));
        assert_eq!(seconds(&mut order), [9]);
    }

    /// Delivers the records of partitions that are not paused, the first partition first, as a folder does.
    #[derive(Debug)]
    struct WholePartitions {
        left: Vec<(TopicPartition, VecDeque<ConsumerRecord>, bool)>,
    }

    impl PartitionReader for WholePartitions {
        fn poll(&mut self, max: usize, _: Duration, into: &mut Vec<PollEvent>) -> eadt_bus::Result<()> {
            for (at, records, is_paused) in &mut self.left {
                while !*is_paused && into.len() < max {
                    let Some(record) = records.pop_front() else {
                        into.push(PollEvent::End { at: at.clone(), position: 0 });
                        break;
                    };
                    into.push(PollEvent::Record(record));
                }
            }
            Ok(())
        }

        fn pause(&mut self, at: &[TopicPartition]) -> eadt_bus::Result<()> {
            self.left.iter_mut().filter(|(of, ..)| at.contains(of)).for_each(|(.., is_paused)| *is_paused = true);
            Ok(())
        }

        fn resume(&mut self, at: &[TopicPartition]) -> eadt_bus::Result<()> {
            self.left.iter_mut().filter(|(of, ..)| at.contains(of)).for_each(|(.., is_paused)| *is_paused = false);
            Ok(())
        }
    }

    #[test]
    fn a_long_record_is_ordered_in_bounded_memory() {
        let count = 20 * MOST_RECORDS as i64;
        let partition = |number: i32| {
            let records = (0..count).map(|step| record(number, 3 * step + i64::from(number))).collect();
            (at(number), records, false)
        };
        let mut reader = WholePartitions { left: (0..3).map(partition).collect() };
        let mut order = TimeOrder::of((0..3).map(at), true);
        let (mut batch, mut printed, mut most) = (Vec::new(), Vec::new(), 0);
        while (printed.len() as i64) < 3 * count {
            order.hold_back(&mut reader).unwrap();
            reader.poll(500, Duration::ZERO, &mut batch).unwrap();
            for polled in batch.drain(..) {
                match polled {
                    PollEvent::Record(record) => order.add(record),
                    PollEvent::End { at, .. } => order.end(&at),
                    _ => {}
                }
            }
            most = most.max(order.partitions.iter().map(|waiting| waiting.records.len()).sum());
            printed.extend(seconds(&mut order));
        }
        assert!(printed.iter().copied().eq(0..3 * count), "in the order of time");
        assert!(most <= 3 * (MOST_RECORDS + 500), "{most} waited");
    }
}
