//! An embedded log whose stamps the test sets, and a replay of a processor's inputs in it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
use eadt_bus::{Bus as _, BusError, ConsumerRecord, Producer, ProducerRecord, StartOffset, TopicPartition, read_to_end, topics};
use eadt_core::settings::SECOND;
use eadt_processor::ProcessorSettings;
use eadt_processor::offline::{
    OpenWindowPolicy, RawRecord, RecordSource, ReplayCounts, ReplayOutput, ReplayRecord, ReplaySource, replay,
};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, Topic};
use serde::de::DeserializeOwned;

const BASE: i64 = 1_700_000_040;
pub const PARTITIONS: i32 = 2;

pub fn at(seconds: f64) -> EventTime {
    EventTime::from_micros(BASE * SECOND).plus_seconds(seconds)
}

pub struct Log {
    pub bus: EmbeddedLog,
    pub now: Arc<AtomicI64>,
    producer: Box<dyn Producer>,
}

impl Log {
    pub fn open(dir: &Path) -> Self {
        let now = Arc::new(AtomicI64::new(at(0.0).micros()));
        let clock = now.clone();
        let stamps = StampSource::Injected(Arc::new(move || EventTime::from_micros(clock.load(Ordering::SeqCst))));
        let bus = EmbeddedLog::open(dir, EmbeddedOptions { stamps, ..EmbeddedOptions::default() }).unwrap();
        for topic in topics::desired("eadt.", PARTITIONS, 1) {
            bus.create_topic(&topic).unwrap();
        }
        let producer = bus.producer("test").unwrap();
        Self { bus, now, producer }
    }

    pub fn set(&self, seconds: f64) {
        self.now.store(at(seconds).micros(), Ordering::SeqCst);
    }

    /// Appends at a stamp of this second; without a partition, where the key belongs.
    pub fn send(&mut self, seconds: f64, topic: Topic, key: &str, partition: Option<i32>, value: impl Into<Bytes>) {
        self.set(seconds);
        let (topic, key) = (format!("eadt.{topic}").into(), Some(Bytes::copy_from_slice(key.as_bytes())));
        self.producer.send(ProducerRecord { topic, partition, key, value: Some(value.into()), headers: vec![] }).unwrap();
        assert!(self.producer.flush(Duration::from_mins(3)).unwrap());
    }

    pub fn read(&self, topic: Topic) -> Vec<ConsumerRecord> {
        let from: Vec<_> =
            (0..PARTITIONS).map(|p| (TopicPartition::new(format!("eadt.{topic}"), p), StartOffset::Earliest)).collect();
        let mut records = Vec::new();
        let each = |record| {
            records.push(record);
            Ok::<(), BusError>(())
        };
        read_to_end(&self.bus, &from, || false, each).unwrap();
        records
    }

    pub fn events<T: DeserializeOwned>(&self, topic: Topic) -> Vec<T> {
        self.read(topic).iter().map(|r| serde_json::from_slice(r.value.as_ref().unwrap()).unwrap()).collect()
    }

    /// Returns the windows and decisions of a replay of the processor's inputs, the same however many threads it has.
    pub fn replayed(&self, settings: &ProcessorSettings) -> (Vec<EfficiencyWindow>, Vec<Decision>, ReplayCounts) {
        let inputs: Vec<(Topic, Vec<ConsumerRecord>)> = Topic::PROCESSOR_INPUTS.map(|topic| (topic, self.read(topic))).into();
        let replayed = replay_with(settings, &inputs, 1);
        for threads in [2, 8] {
            let again = replay_with(settings, &inputs, threads);
            assert_eq!(again, replayed, "with {threads} threads");
        }
        let ReplayedLog { windows, decisions, counts, .. } = replayed;
        (windows, decisions, counts)
    }
}

#[derive(Debug, PartialEq)]
struct ReplayedLog {
    windows: Vec<EfficiencyWindow>,
    decisions: Vec<Decision>,
    /// The partitions to which these outputs belong.
    partitions: BTreeSet<(String, i32)>,
    counts: ReplayCounts,
}

fn replay_with(settings: &ProcessorSettings, inputs: &[(Topic, Vec<ConsumerRecord>)], threads: usize) -> ReplayedLog {
    let mut sources: Vec<Box<dyn ReplaySource>> = Vec::new();
    for (topic, records) in inputs {
        for partition in 0..PARTITIONS {
            let own: Vec<_> = records
                .iter()
                .filter(|record| record.at.partition == partition)
                .map(|r| {
                    let (key, value) = (r.key.as_deref().unwrap_or_default(), r.value.as_deref());
                    let (topic, kind, stamp) = (*topic, r.header(header::TYPE), r.stamp);
                    let is_sent_again = r.view().is_sent_again;
                    let raw = RawRecord { topic, kind, key, value, stamp, is_sent_again };
                    ReplayRecord::new(raw, Some(partition), Some(r.offset))
                })
                .collect();
            sources.push(Box::new(RecordSource::new(own.into_iter(), Some(partition))));
        }
    }
    let (mut windows, mut decisions, mut partitions) = (Vec::new(), Vec::new(), BTreeSet::new());
    let counts = replay(&settings.fold_settings(), sources, OpenWindowPolicy::AsLive, threads, |positions, replayed| {
        match replayed {
            ReplayOutput::Window(window) => {
                partitions.insert((window.id.clone(), positions.partition));
                windows.push(*window);
            }
            ReplayOutput::Decision(decision) => {
                partitions.insert((decision.id.clone(), positions.partition));
                decisions.push(*decision);
            }
            ReplayOutput::Refused { refusal, .. } => return Err(refusal.into()),
            ReplayOutput::UnclosedWindows(_) => {}
        }
        Ok(())
    })
    .unwrap();
    // Those of one workload stay in their order.
    windows.sort_by(|a, b| a.workload.cmp(&b.workload));
    decisions.sort_by(|a, b| a.workload.cmp(&b.workload));
    ReplayedLog { windows, decisions, partitions, counts }
}

/// In an order of their own, so that they compare byte for byte.
pub fn text(mut decisions: Vec<Decision>) -> String {
    decisions.sort_by(|a, b| (&a.workload, a.time).cmp(&(&b.workload, b.time)));
    serde_json::to_string(&decisions).unwrap()
}
