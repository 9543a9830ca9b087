//! Reads the models in force from the bus, and writes new ones to every partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, ProducerRecord, Remedy, StartOffset, TopicPartition, read_to_end};
use eadt_schemas::v1::Model;
use eadt_schemas::{Envelope, EventType, Topic};

use crate::service::OptimizerError;

const TIMEOUT: Duration = Duration::from_mins(1);
/// Limit of unacknowledged bytes.
const BUFFER_BYTES: usize = 4 << 20;

/// The models topic, and the models in each of its partitions.
pub(crate) struct PublishedModels {
    topic: Arc<str>,
    /// Models in the log, by partition and name.
    partitions: Vec<BTreeMap<String, Model>>,
}

fn number(model: &Model) -> u64 {
    model.version.parse().unwrap_or(0)
}

impl PublishedModels {
    pub(crate) fn read(bus: &dyn Bus, prefix: &str) -> Result<Self, OptimizerError> {
        let topic: Arc<str> = format!("{prefix}{}", Topic::Models).into();
        let missing = || OptimizerError::NoTopic { topic: topic.to_string() };
        let count = bus.topics(prefix)?.into_iter().find(|spec| spec.name == topic).ok_or_else(missing)?.partitions;
        let from: Vec<_> = (0..count).map(|p| (TopicPartition::new(topic.clone(), p), StartOffset::Earliest)).collect();
        let mut partitions = vec![BTreeMap::new(); from.len()];
        let until = Instant::now() + TIMEOUT;
        let read = read_to_end(
            bus,
            &from,
            || Instant::now() > until,
            |record| {
                let of: &mut BTreeMap<String, Model> = &mut partitions[record.at.partition as usize];
                let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok()).unwrap_or_default();
                match record.value.as_deref().map(eadt_schemas::decode::<Model>) {
                    None => drop(of.remove(key)),
                    Some(Ok(model)) => drop(of.insert(model.name.clone(), model)),
                    Some(Err(refusal)) => {
                        tracing::warn!(at = %record.at, offset = record.offset, %refusal, "a model cannot be read and counts as none");
                    }
                }
                Ok::<_, BusError>(())
            },
        )?;
        if read.is_none() {
            let detail = format!("no end was reached within {} s; is the broker there?", TIMEOUT.as_secs());
            return Err(BusError::new(Remedy::Retry, format!("reading {topic}"), detail).into());
        }
        Ok(Self { topic, partitions })
    }

    /// Returns the newest version of every model.
    pub(crate) fn in_force(&self) -> BTreeMap<String, Model> {
        let mut newest: BTreeMap<String, Model> = BTreeMap::new();
        for model in self.partitions.iter().flat_map(BTreeMap::values) {
            if newest.get(&model.name).is_none_or(|known| number(known) < number(model)) {
                newest.insert(model.name.clone(), model.clone());
            }
        }
        newest
    }

    /// Writes `new`, and the models that an interrupted run left out: afterwards every partition has the same models.
    pub(crate) fn write(&self, bus: &dyn Bus, new: &[Model]) -> Result<usize, OptimizerError> {
        let mut wanted = self.in_force();
        wanted.extend(new.iter().map(|model| (model.name.clone(), model.clone())));
        let mut producer = bus.producer("optimizer")?;
        let (mut sent, mut buffered, mut done) = (0, 0, true);
        for (partition, has) in self.partitions.iter().enumerate() {
            for model in wanted.values().filter(|model| has.get(&model.name) != Some(model)) {
                let record = self.record(partition, model);
                buffered += record.value.as_ref().map_or(0, bytes::Bytes::len);
                producer.send(record)?;
                sent += 1;
                // Partition models are large, and a producer takes no more than its buffer.
                if buffered > BUFFER_BYTES {
                    done &= producer.flush(TIMEOUT)?;
                    buffered = 0;
                }
            }
        }
        if sent == 0 {
            return Ok(0);
        }
        done &= producer.flush(TIMEOUT)?;
        let counts = producer.counts();
        if !done || counts.acknowledged < counts.accepted {
            let detail = format!(
                "{} of {} records were acknowledged; the rest is written at the next round",
                counts.acknowledged, counts.accepted
            );
            return Err(BusError::new(Remedy::Retry, format!("publishing to {}", self.topic), detail).into());
        }
        Ok(sent)
    }

    fn record(&self, partition: usize, model: &Model) -> ProducerRecord {
        let envelope = Envelope {
            id: format!("{}@{}", model.name, model.version),
            source: "/optimizer".to_owned(),
            kind: EventType::Model,
            time: model.time,
            subject: model.name.clone(),
        };
        ProducerRecord { partition: Some(partition as i32), ..ProducerRecord::event(&self.topic, &model.name, &envelope, model) }
    }
}
