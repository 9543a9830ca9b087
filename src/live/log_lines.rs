//! The log that the page passes on to terminals: the topics of the views, as lines of an event log.

use std::sync::Arc;

use eadt_bus::{Bus, ConsumerRecord, StartOffset, TopicPartition};
use eadt_dashboard::LogLines;
use eadt_recordings::{Compression, LogWriter};
use eadt_schemas::{EventTime, LoggedEvent, Topic};

use super::source::{self, ReadRange, TOPICS};
use crate::commands::logged;
use crate::settings::TopicSettings;

const IN_MEMORY: &str = "memory takes every line";

/// Reads the topics of the views from a log.
#[derive(Debug)]
pub struct ViewTopicReader {
    pub bus: Arc<dyn Bus>,
    pub names: TopicSettings,
}

impl LogLines for ViewTopicReader {
    fn starts(&self, since: Option<EventTime>) -> Result<Vec<(TopicPartition, StartOffset)>, String> {
        let span = since.map_or(ReadRange::Whole, ReadRange::Since);
        source::starts(&*self.bus, &self.names, &TOPICS, span).map_err(|error| format!("{error:#}"))
    }

    fn encode(&self, records: &[(Topic, ConsumerRecord)]) -> Vec<u8> {
        if records.is_empty() {
            return Vec::new();
        }
        let mut log = LogWriter::new(Vec::new(), Compression::None).expect(IN_MEMORY);
        for (topic, record) in records {
            if let Some(event) = event_of(record, *topic) {
                log.write(&event).expect(IN_MEMORY);
            }
        }
        log.finish().expect(IN_MEMORY)
    }
}

/// Returns a record as an event log has it. A value that is no JSON, as dead letters have, is a string: views count it.
fn event_of(record: &ConsumerRecord, topic: Topic) -> Option<LoggedEvent> {
    logged(record, topic).or_else(|| {
        let text = String::from_utf8_lossy(record.value.as_deref()?);
        let value = serde_json::to_vec(&text).ok()?;
        logged(&ConsumerRecord { value: Some(value.into()), ..record.clone() }, topic)
    })
}

#[cfg(test)]
mod tests {
    use eadt_bus::conformance::read_all;
    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
    use eadt_bus::{IsolationLevel, ProducerRecord, RecordHeaders, topics};
    use eadt_recordings::LogReader;
    use eadt_schemas::envelope::header;

    use super::*;

    fn record(topic: Topic, offset: i64, value: Option<&'static [u8]>) -> ConsumerRecord {
        let kind = (Arc::from(header::TYPE), topic.event_type().name().as_bytes().into());
        ConsumerRecord {
            at: TopicPartition::new(topic.base_name(), 1),
            offset,
            stamp: EventTime::from_millis(5),
            key: Some(b"team/a".as_slice().into()),
            value: value.map(Into::into),
            headers: RecordHeaders::from(vec![kind]),
        }
    }

    fn view_log(bus: EmbeddedLog) -> ViewTopicReader {
        ViewTopicReader { bus: Arc::new(bus), names: TopicSettings { prefix: String::new(), ..TopicSettings::default() } }
    }

    fn empty_log(folder: &tempfile::TempDir) -> EmbeddedLog {
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        EmbeddedLog::open(folder.path(), options).unwrap()
    }

    #[test]
    fn lines_are_an_event_log_and_a_dead_letter_that_is_no_json_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let log = view_log(empty_log(&folder));
        let records = [
            (Topic::Decisions, record(Topic::Decisions, 7, Some(b"{\"a\":\n1}"))),
            (Topic::Workloads, record(Topic::Workloads, 8, None)),
            (Topic::DeadLetters, record(Topic::DeadLetters, 9, Some(b"{\xff"))),
        ];
        let text = log.encode(&records);
        let mut reader = LogReader::new("lines", &*text).unwrap();
        let mut read = Vec::new();
        while let Some(event) = reader.next_event().unwrap() {
            let value = event.value().map(|value| String::from_utf8(value.to_vec()).unwrap());
            read.push((event.topic().unwrap(), event.partition, event.offset, value));
        }
        let expected = [
            (Topic::Decisions, Some(1), Some(7), Some("{\"a\": 1}".to_owned())),
            (Topic::Workloads, Some(1), Some(8), None),
            (Topic::DeadLetters, Some(1), Some(9), Some("\"{\u{fffd}\"".to_owned())),
        ];
        assert_eq!(read, expected);
        assert_eq!(log.encode(&[]), b"");
    }

    #[test]
    fn a_span_leaves_out_old_records_but_no_declaration_of_a_workload() {
        let folder = tempfile::tempdir().unwrap();
        let bus = empty_log(&folder);
        for spec in topics::desired("", 1, 1) {
            bus.create_topic(&spec).unwrap();
        }
        let mut producer = bus.producer("test").unwrap();
        for topic in [Topic::Workloads, Topic::Decisions] {
            let value = Some(b"{}".as_slice().into());
            let record = ProducerRecord {
                topic: Arc::from(topic.base_name()),
                partition: None,
                key: Some(b"team/a".as_slice().into()),
                value,
                headers: Vec::new(),
            };
            // More than the first step back from the end.
            for part in 0..15 {
                (0..100).for_each(|_| producer.send(record.clone()).unwrap());
                assert!(producer.flush(std::time::Duration::from_secs(30)).unwrap());
                if part % 4 == 3 {
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            }
        }
        let log = view_log(bus);
        let offset = |since, topic: Topic| {
            let starts = log.starts(since).unwrap();
            starts.into_iter().find(|(at, _)| *at.topic == *topic.base_name()).unwrap().1
        };
        assert_eq!(offset(None, Topic::Decisions), StartOffset::Earliest);
        // Every record is older than that.
        let future = Some(EventTime::from_millis(i64::from(i32::MAX) * 1000));
        assert_eq!(offset(future, Topic::Decisions), StartOffset::At(1500));
        assert_eq!(offset(future, Topic::Workloads), StartOffset::Earliest);
        let past = Some(EventTime::from_millis(0));
        assert_eq!(offset(past, Topic::Decisions), StartOffset::At(0));
        // A span begins at its first record, wherever that is.
        let records = read_all(&*log.bus, &Arc::from(Topic::Decisions.base_name()), 1, IsolationLevel::ReadCommitted);
        let stamps: std::collections::BTreeSet<EventTime> = records.iter().map(|record| record.stamp).collect();
        assert!(stamps.len() > 1, "the records have one stamp");
        for cut in stamps {
            let first = records.iter().find(|record| record.stamp >= cut).unwrap();
            assert_eq!(offset(Some(cut), Topic::Decisions), StartOffset::At(first.offset), "{cut}");
        }
    }
}
