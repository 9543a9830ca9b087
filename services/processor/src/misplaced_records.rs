//! Records that lie in another partition than their key belongs to, because their producer has another partitioner. The
//! events of one workload are then folded in two partitions, each of which knows half.

use eadt_bus::{Bus, RecordView, Result, TopicPartition, partition_for_key};
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::DeadLetterReason;
use eadt_schemas::{EventType, Topic};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metrics::ProcessorMetrics;
use crate::positions::INPUTS;

/// Handling of records that are not in the partition of their key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MisplacedRecordPolicy {
    /// They are folded where they lie, and counted.
    #[default]
    Process,
    /// They are refused, and counted.
    DeadLetter,
}

/// Number of partitions of each input, 0 if it is not known.
pub type PartitionCounts = [i32; INPUTS.len()];

/// Asks the log for the number of partitions of each input.
pub fn partition_counts(bus: &dyn Bus, prefix: &str) -> Result<PartitionCounts> {
    let counts = bus.partition_counts(prefix)?;
    Ok(INPUTS.map(|topic| counts.get(&*format!("{prefix}{topic}")).copied().unwrap_or(0)))
}

/// Returns the partition that a key belongs to, if the record lies in another one. Heartbeats, records without a key and
/// models, which every partition has, lie where they should.
pub fn belongs_to(topic: Topic, record: &RecordView<'_>, partitions: i32) -> Option<i32> {
    home_partition(topic, record, partitions).filter(|partition| *partition != record.partition)
}

/// Returns the partition that a key belongs to; `None` if any will do.
fn home_partition(topic: Topic, record: &RecordView<'_>, partitions: i32) -> Option<i32> {
    let key = record.key.filter(|key| !key.is_empty())?;
    let anywhere = topic == Topic::Models || record.raw_event_type == Some(EventType::Heartbeat.name().as_bytes());
    (partitions > 0 && !anywhere).then(|| partition_for_key(key, partitions))
}

/// The check of one partition's records.
#[derive(Debug)]
pub struct MisplacedRecordCheck {
    policy: MisplacedRecordPolicy,
    counts: PartitionCounts,
    warned: [bool; INPUTS.len()],
    /// Last key that lay in its right partition, with that partition, by input: the next record often has the same.
    checked: [(Vec<u8>, i32); INPUTS.len()],
}

impl MisplacedRecordCheck {
    pub fn new(setting: MisplacedRecordPolicy, counts: PartitionCounts) -> Self {
        Self { policy: setting, counts, warned: [false; INPUTS.len()], checked: Default::default() }
    }

    /// Counts a record that lies in a partition that its key does not belong to, with one warning a topic. Returns why it is
    /// refused, if the settings refuse it.
    pub fn check(
        &mut self,
        input: usize,
        at: &TopicPartition,
        record: &RecordView<'_>,
        metrics: &ProcessorMetrics,
    ) -> Option<DecodeError> {
        let topic = INPUTS[input];
        let (checked, checked_partition) = &mut self.checked[input];
        if record.key == Some(checked.as_slice()) && record.partition == *checked_partition {
            return None;
        }
        let partition = home_partition(topic, record, self.counts[input])?;
        if partition == record.partition {
            checked.clear();
            checked.extend_from_slice(record.key.unwrap_or_default());
            *checked_partition = partition;
            return None;
        }
        metrics.misplaced_record(topic);
        let key = String::from_utf8_lossy(record.key.unwrap_or_default());
        if !std::mem::replace(&mut self.warned[input], true) {
            tracing::warn!(
                %at, offset = record.offset, %key, belongs_to = partition,
                "a record lies in another partition than its key belongs to: its producer needs the partitioner murmur2_random; further ones are only counted"
            );
        }
        (self.policy == MisplacedRecordPolicy::DeadLetter).then(|| DecodeError {
            reason: DeadLetterReason::WrongKey,
            field: None,
            detail: format!(
                "the record lies in partition {}, its key {key:?} belongs to {partition} of {}: its producer has another partitioner than murmur2_random",
                record.partition, self.counts[input]
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use eadt_bus::{ConsumerRecord, RecordHeaders};
    use eadt_schemas::envelope::header;

    use super::*;
    use crate::scripted::{place, seconds};

    fn record(topic: Topic, partition: i32, key: Option<&str>, kind: Option<&str>) -> ConsumerRecord {
        let headers: Vec<_> =
            kind.map(|kind| (header::TYPE.into(), Bytes::copy_from_slice(kind.as_bytes()))).into_iter().collect();
        ConsumerRecord {
            at: place(topic, partition),
            offset: 7,
            stamp: seconds(0),
            key: key.map(|key| Bytes::copy_from_slice(key.as_bytes())),
            value: None,
            headers: RecordHeaders::from(headers),
        }
    }

    #[test]
    fn a_record_belongs_to_the_partition_of_the_murmur2_of_its_key() {
        let home = partition_for_key(b"lab/bert", 6);
        let away = (home + 1) % 6;
        let heartbeat = Some(EventType::Heartbeat.name());
        for (topic, partition, key, kind, partitions, expected) in [
            (Topic::GpuTelemetry, home, Some("lab/bert"), None, 6, None),
            (Topic::GpuTelemetry, away, Some("lab/bert"), None, 6, Some(home)),
            (Topic::TrainingProgress, away, Some("lab/bert"), None, 6, Some(home)),
            (Topic::Workloads, away, Some("lab/bert"), None, 6, Some(home)),
            (Topic::Models, away, Some("lab/bert"), None, 6, None),
            (Topic::GpuTelemetry, away, None, None, 6, None),
            (Topic::GpuTelemetry, away, Some(""), None, 6, None),
            (Topic::GpuTelemetry, away, Some("lab/bert"), heartbeat, 6, None),
            (Topic::GpuTelemetry, 0, Some("lab/bert"), None, 1, None),
            (Topic::GpuTelemetry, away, Some("lab/bert"), None, 0, None),
        ] {
            assert_eq!(
                belongs_to(topic, &record(topic, partition, key, kind).view(), partitions),
                expected,
                "{topic} {key:?} {partitions}"
            );
        }
    }
    #[test]
    fn a_key_that_lay_right_once_is_found_elsewhere_all_the_same() {
        let home = partition_for_key(b"lab/bert", 6);
        let away = (home + 1) % 6;
        let metrics = ProcessorMetrics::new(&eadt_service::MetricsRegistry::default());
        let mut check = MisplacedRecordCheck::new(MisplacedRecordPolicy::DeadLetter, [6; INPUTS.len()]);
        let telemetry = INPUTS.iter().position(|topic| *topic == Topic::GpuTelemetry).unwrap();
        let mut refused = |partition: i32, key: &str, kind: Option<&str>| {
            let record = record(Topic::GpuTelemetry, partition, Some(key), kind);
            check.check(telemetry, &record.at, &record.view(), &metrics).is_some()
        };
        // A heartbeat lies anywhere, and proves nothing of its key.
        assert!(!refused(away, "lab/bert", Some(EventType::Heartbeat.name())));
        assert!(refused(away, "lab/bert", None));
        assert!(!refused(home, "lab/bert", None));
        assert!(!refused(home, "lab/bert", None));
        assert!(refused(away, "lab/bert", None));
        let other =
            (0..100).map(|number| format!("lab/{number}")).find(|key| partition_for_key(key.as_bytes(), 6) != home).unwrap();
        assert!(refused(home, &other, None));
        assert!(!refused(home, "lab/bert", None));
    }
}
