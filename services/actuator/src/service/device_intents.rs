//! Exchange with node agents: reads what they and the collectors report, and works out which intents to publish.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{BusError, ConsumerRecord, PartitionReader, PollEvent, StartOffset, TopicPartition, read_to_end};
use eadt_cluster::DeviceAgents;
use eadt_schemas::EventTime;
use eadt_schemas::decode;
use eadt_schemas::v1::{DeviceHolders, DeviceIntent, DeviceState};

use super::ActuatorDependencies;
use super::topics::{ActuatorTopics, partition_count, read_keys};
use crate::published_intents::{IntentUpdate, PublishedIntents};

/// Whether intents must be renewed is checked this often, in wall time.
const RENEWAL_CHECK: Duration = Duration::from_secs(1);

pub struct DeviceIntents<'a> {
    deps: &'a ActuatorDependencies,
    topics: ActuatorTopics,
    agents: &'a dyn DeviceAgents,
    published: PublishedIntents,
    reports: Box<dyn PartitionReader>,
    /// The wanted intents that were compared last, and when.
    compared: Option<(Arc<Vec<DeviceIntent>>, Instant)>,
}

impl<'a> DeviceIntents<'a> {
    /// Reads all reports until now: without them every cap would be refused for want of an agent. `None`: the cluster has no
    /// agents, or the process is stopping.
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
        // The leader before may publish more until this one has joined; then it is read again.
        let published = read_published(deps, topics)?;
        let Some(reports) = reports else { return Ok(None) };
        agents.on_takeover(&published.intents().cloned().collect::<Vec<_>>());
        Ok(Some(Self { deps, topics: topics.clone(), agents, published, reports, compared: None }))
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

    /// Reads the published intents again. Joining the group has fenced older writers, so the end that is noted now is the end.
    pub fn reread_published(&mut self) -> Result<(), BusError> {
        self.published = read_published(self.deps, &self.topics)?;
        self.compared = None;
        Ok(())
    }

    /// Returns the intents to publish so that agents hold exactly what the cluster wants; they count as published.
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

fn read_published(deps: &ActuatorDependencies, topics: &ActuatorTopics) -> Result<PublishedIntents, BusError> {
    let mut published = PublishedIntents::default();
    for partition in 0..partition_count(deps, &topics.device_intents)? {
        read_keys(deps, &topics.device_intents, partition, |node, value| {
            // An unreadable one holds nothing: agents do not follow it.
            published.set_from_log(node, value.and_then(|value| decode(value).ok()));
        })?;
    }
    Ok(published)
}

/// Hands a report to the cluster. `holders`: the topic of collectors; agents' otherwise.
fn take_report(agents: &dyn DeviceAgents, holders: &str, record: &ConsumerRecord) {
    let Some(value) = record.value.as_deref() else { return };
    let result = if *record.at.topic == *holders {
        // By the log's clock: a report from a node whose clock is ahead must not count for longer.
        decode::<DeviceHolders>(value).map(|holders| agents.on_device_holders(DeviceHolders { time: record.stamp, ..holders }))
    } else {
        decode::<DeviceState>(value).map(|state| agents.on_device_state(state))
    };
    if let Err(refusal) = result {
        tracing::warn!(at = %record.at, offset = record.offset, detail = refusal.detail, "a report of a node cannot be read");
    }
}
