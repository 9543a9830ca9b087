//! Exchanges data with node agents: reads their reports and those of collectors, and determines the intents to publish.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{BusError, ConsumerRecord, PartitionReader, PollEvent, StartOffset, TopicPartition, read_to_end};
use eadt_cluster::DeviceAgents;
use eadt_schemas::EventTime;
use eadt_schemas::decode;
use eadt_schemas::v1::{DeviceHolders, DeviceIntent, DeviceState};

use super::ActuatorDependencies;
use super::topics::{ActuatorTopics, partition_count};
use crate::published_intents::{IntentUpdate, PublishedIntents};

/// Whether intents must be renewed is checked this often, in wall time.
const RENEWAL_CHECK: Duration = Duration::from_secs(1);

pub struct DeviceIntents<'a> {
    deps: &'a ActuatorDependencies,
    topics: ActuatorTopics,
    agents: &'a dyn DeviceAgents,
    published: PublishedIntents,
    /// Whether the published intents were read once.
    has_taken_over: bool,
    reports: Box<dyn PartitionReader>,
    /// The wanted intents that were compared last, and when.
    compared: Option<(Arc<Vec<DeviceIntent>>, Instant)>,
}

impl<'a> DeviceIntents<'a> {
    /// Reads all reports until now: without them every cap would be refused for want of an agent. `None` if the cluster has
    /// no agents, or the process is stopping.
    pub fn open(deps: &'a ActuatorDependencies, topics: &ActuatorTopics) -> Result<Option<Self>, BusError> {
        let Some(agents) = deps.cluster.devices() else { return Ok(None) };
        let mut all = Vec::new();
        for topic in [&topics.device_states, &topics.device_holders] {
            let partitions = partition_count(deps, topic)?;
            all.extend((0..partitions).map(|p| (TopicPartition::new(topic.clone(), p), StartOffset::Earliest)));
        }
        let reports = read_to_end(
            &*deps.bus,
            &all,
            || deps.shutdown.is_cancelled(),
            |record| {
                take_report(agents, &topics.device_holders, &record);
                Ok::<_, BusError>(())
            },
        )?;
        let Some(reports) = reports else { return Ok(None) };
        let (topics, published) = (topics.clone(), PublishedIntents::default());
        Ok(Some(Self { deps, topics, agents, published, has_taken_over: false, reports, compared: None }))
    }

    pub fn poll_device_reports(&mut self) -> Result<(), BusError> {
        let mut polled = Vec::new();
        self.reports.poll(256, Duration::ZERO, &mut polled)?;
        for item in polled {
            if let PollEvent::Record(record) = item {
                take_report(self.agents, &self.topics.device_holders, &record);
            }
        }
        Ok(())
    }

    /// Forgets the published intents that were read; returns the partitions to read them from.
    pub fn begin_reading(&mut self) -> Result<Vec<TopicPartition>, BusError> {
        self.published = PublishedIntents::default();
        self.compared = None;
        let topic = &self.topics.device_intents;
        let partitions = partition_count(self.deps, topic)?;
        Ok((0..partitions).map(|partition| TopicPartition::new(topic.clone(), partition)).collect())
    }

    /// Takes the published intent of a node from the log; `None` for a tombstone.
    pub fn set_published(&mut self, node: &str, value: Option<&[u8]>) {
        // An unreadable one holds nothing: agents do not follow it.
        self.published.set_from_log(node, value.and_then(|value| decode(value).ok()));
    }

    /// Notes that all published intents were read.
    pub fn on_read(&mut self) {
        if !std::mem::replace(&mut self.has_taken_over, true) {
            self.agents.on_takeover(&self.published.intents().cloned().collect::<Vec<_>>());
        }
    }

    /// Returns the intents to publish so that agents keep exactly the wanted settings; they count as published.
    pub fn take_updates(&mut self, now: EventTime) -> Vec<IntentUpdate> {
        let Some(wanted) = self.agents.wanted_intents() else { return Vec::new() };
        let unchanged =
            |(last, at): &(Arc<Vec<DeviceIntent>>, Instant)| Arc::ptr_eq(last, &wanted) && at.elapsed() < RENEWAL_CHECK;
        if self.compared.as_ref().is_some_and(unchanged) {
            return Vec::new();
        }
        let updates = self.published.take_updates(&wanted, now);
        self.compared = Some((wanted, Instant::now()));
        updates
    }
}

/// Hands a report to the cluster. `holders`: the topic of collectors; agents' otherwise.
fn take_report(agents: &dyn DeviceAgents, holders: &str, record: &ConsumerRecord) {
    let Some(value) = record.value.as_deref() else { return };
    let result = if *record.at.topic == *holders {
        // The log's clock counts: a report from a node whose clock is ahead must not count for longer.
        decode::<DeviceHolders>(value).map(|holders| agents.on_device_holders(DeviceHolders { time: record.stamp, ..holders }))
    } else {
        decode::<DeviceState>(value).map(|state| agents.on_device_state(state))
    };
    if let Err(refusal) = result {
        tracing::warn!(at = %record.at, offset = record.offset, detail = refusal.detail, "a report of a node cannot be read");
    }
}
