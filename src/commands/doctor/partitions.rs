//! Checks whether records lie in the partition of their key, for the newest ones of each input.

use std::collections::BTreeMap;

use eadt_bus::{Bus, BusError, StartOffset, TopicPartition, read_to_end};
use eadt_processor::misplaced_records::belongs_to;
use eadt_schemas::Topic;

use super::Findings;
use crate::settings::ProgramSettings;

/// Records of each partition that are looked at.
const NEWEST: i64 = 200;

/// Findings in one topic.
#[derive(Debug, Default, PartialEq, Eq)]
struct KeyPlacement {
    records: u64,
    foreign: u64,
    /// Key and partition of the first of them, and where it belongs.
    first: Option<(String, i32, i32)>,
}

pub fn keys(bus: &dyn Bus, settings: &ProgramSettings, findings: &mut Findings) {
    match samples(bus, &settings.topics.prefix) {
        Ok(samples) => report(&samples, findings),
        Err(error) => findings.unchecked("keys", error.to_string()),
    }
}

fn samples(bus: &dyn Bus, prefix: &str) -> Result<BTreeMap<&'static str, KeyPlacement>, BusError> {
    let (mut from, mut counts) = (Vec::new(), BTreeMap::new());
    for spec in bus.topics(prefix)? {
        let topic = Topic::from_name(&spec.name, prefix);
        let Some(topic) = topic.filter(|topic| Topic::PROCESSOR_INPUTS.contains(topic) && *topic != Topic::Models) else {
            continue;
        };
        counts.insert(spec.name.clone(), (topic, spec.partitions));
        for partition in 0..spec.partitions {
            let at = TopicPartition { topic: spec.name.clone(), partition };
            let marks = bus.watermarks(&at)?;
            if marks.high > marks.low {
                from.push((at, StartOffset::At(marks.low.max(marks.high - NEWEST))));
            }
        }
    }
    let mut samples: BTreeMap<&'static str, KeyPlacement> = BTreeMap::new();
    read_to_end(
        bus,
        &from,
        || false,
        |record| {
            if let Some((topic, partitions)) = counts.get(&record.at.topic) {
                let sample = samples.entry(topic.base_name()).or_default();
                sample.records += 1;
                if let Some(home) = belongs_to(*topic, &record.view(), *partitions) {
                    sample.foreign += 1;
                    let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned();
                    sample.first.get_or_insert((key, record.at.partition, home));
                }
            }
            Ok::<(), BusError>(())
        },
    )?;
    Ok(samples)
}

fn report(samples: &BTreeMap<&'static str, KeyPlacement>, findings: &mut Findings) {
    let records: u64 = samples.values().map(|sample| sample.records).sum();
    let mut good = true;
    for (topic, sample) in samples {
        let Some((key, partition, home)) = &sample.first else { continue };
        good = false;
        findings.wrong(
            "keys",
            format!(
                "{} of the {} newest records of {topic} lie outside the partition that their key belongs to: {key:?} lies in {partition} and \
                 belongs to {home}, so that a workload's events meet only in part",
                sample.foreign, sample.records
            ),
            "give their producer the partitioner of the JVM clients (librdkafka: partitioner=murmur2_random); \
             after a change of the number of partitions wait until retention has deleted the old records",
        );
    }
    if good {
        findings.ok("keys", format!("the {records} newest records lie where their keys belong"));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
    use eadt_bus::{ProducerRecord, partition_for_key};

    use super::*;

    #[test]
    fn records_of_another_partitioner_are_found_in_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
        for spec in eadt_bus::topics::desired("eadt.", 3, 1) {
            log.create_topic(&spec).unwrap();
        }
        let mut producer = log.producer("test").unwrap();
        let home = partition_for_key(b"lab/bert", 3);
        for (topic, partition) in [("gpu.telemetry.v1", home), ("training.progress.v1", (home + 1) % 3)] {
            for _ in 0..5 {
                let record = ProducerRecord {
                    topic: format!("eadt.{topic}").into(),
                    partition: Some(partition),
                    key: Some("lab/bert".into()),
                    value: Some("{}".into()),
                    headers: Vec::new(),
                };
                producer.send(record).unwrap();
            }
        }
        assert!(producer.flush(Duration::from_mins(3)).unwrap());
        let samples = samples(&log, "eadt.").unwrap();
        let first = Some(("lab/bert".to_owned(), (home + 1) % 3, home));
        assert_eq!(samples["gpu.telemetry.v1"], KeyPlacement { records: 5, foreign: 0, first: None });
        assert_eq!(samples["training.progress.v1"], KeyPlacement { records: 5, foreign: 5, first });
        let mut findings = Findings::default();
        report(&samples, &mut findings);
        assert_eq!(findings.wrong_count(), 1);
    }
}
