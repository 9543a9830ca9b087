//! Takes over partitions: reads what earlier actuators published of them.

use eadt_bus::{BusError, Remedy, StartOffset, TopicPartition, TransactionEnd};
use eadt_schemas::envelope::header;

use super::ActuatorSession;
use super::decision_queue::MAX_QUEUED;

/// Outcomes of a partition that are looked through for those that are not to be repeated: of all decisions that were finished while
/// an earlier one waited. A decision has four at most.
const OUTCOMES: i64 = 4 * MAX_QUEUED as i64;

impl ActuatorSession<'_> {
    /// Reads the published events about the workloads of these partitions, and the intents of node agents. Joining the group
    /// has fenced older writers, so the present ends are final. Hanging transactions of an earlier step are aborted: their
    /// events are published again from the cluster's state.
    pub(super) fn read_published(&mut self, parts: &[TopicPartition]) -> Result<(), BusError> {
        let Self { deps, topics, member, hanging, intents, directives, publisher, .. } = self;
        let numbers = || parts.iter().map(|at| at.partition);
        let workloads = numbers().map(|number| TopicPartition::new(topics.workloads.clone(), number));
        let jobs = numbers().map(|number| TopicPartition::new(topics.directives.clone(), number));
        let mut places: Vec<_> = workloads.chain(jobs).collect();
        if let Some(intents) = intents {
            places.extend(intents.begin_reading()?);
        }
        let from: Vec<_> = places.into_iter().map(|at| (at, StartOffset::Earliest)).collect();
        let stopped = || deps.shutdown.is_cancelled();
        let read = hanging.read_to_end(&*deps.bus, &mut **member, &from, TransactionEnd::Abort, stopped, |record| {
            let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default());
            let value = record.value.as_deref();
            if record.at.topic == topics.workloads {
                publisher.set_published(&key, value);
            } else if record.at.topic == topics.directives {
                directives.set_published(&key, value);
            } else if let Some(intents) = intents {
                intents.set_published(&key, value);
            }
            Ok::<_, BusError>(())
        })?;
        // A part of it would be taken for the whole.
        read.ok_or_else(|| BusError::new(Remedy::Retry, "taking over", "stopped before all that was published was read"))?;
        if let Some(intents) = intents {
            intents.on_read();
        }
        match self.read_outcomes(parts) {
            Err(error) if error.remedy == Remedy::Stop => {
                tracing::warn!(%error, "the newest outcomes cannot be read: some may be published twice");
                Ok(())
            }
            read => read,
        }
    }

    /// Reads the newest outcomes of these partitions to their ends, so that they are not repeated: the decision may be read again, or
    /// a part of their transaction was aborted. Commits a part that hangs: once it is in the log, it is not published again.
    fn read_outcomes(&mut self, parts: &[TopicPartition]) -> Result<(), BusError> {
        let Self { deps, topics, member, hanging, publisher, .. } = self;
        let mut from = Vec::new();
        for part in parts {
            let at = TopicPartition::new(topics.actuations.clone(), part.partition);
            let marks = deps.bus.watermarks(&at)?;
            from.push((at, StartOffset::At(marks.low.max(marks.high - OUTCOMES))));
        }
        let stopped = || deps.shutdown.is_cancelled();
        let read = hanging.read_to_end(&*deps.bus, &mut **member, &from, TransactionEnd::Commit, stopped, |record| {
            if let Some(id) = record.header(header::ID) {
                publisher.set_outcome(id);
            }
            Ok::<_, BusError>(())
        })?;
        read.ok_or_else(|| BusError::new(Remedy::Retry, "taking over", "stopped before the newest outcomes were read"))?;
        Ok(())
    }
}
