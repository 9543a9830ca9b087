//! Groups: one member has all partitions of its topics; a newer member of the same instance fences the older.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::append::{Positions, append};
use super::reader::{Cursors, poll};
use super::store::{Survives, position_key};
use super::topic::{Partition, decode_i64};
use super::{EmbeddedLog, Shared, lock};
use crate::{BusError, Member, MemberOptions, Membership, Polled, Reader, Remedy, Result, Step, TopicPartition};

/// Who is in which group.
#[derive(Debug, Default)]
pub struct Groups {
    owners: HashMap<String, Owner>,
    /// Instances are fenced across groups, as transactional ids are.
    epochs: HashMap<String, u64>,
    last_epoch: u64,
}

#[derive(Debug)]
struct Owner {
    name: Option<String>,
    epoch: u64,
}

#[derive(Debug)]
pub struct EmbeddedMember {
    log: EmbeddedLog,
    options: MemberOptions,
    epoch: u64,
    cursors: Cursors,
    /// Changes of the topics seen, so that new partitions are noticed.
    checked: Option<u64>,
}

impl EmbeddedMember {
    pub fn join(log: EmbeddedLog, options: MemberOptions) -> Result<Self> {
        for topic in &options.topics {
            log.shared.topic(topic)?;
        }
        let mut groups = lock(&log.shared.groups);
        if let Some(owner) = groups.owners.get(&options.group)
            && (owner.name.is_none() || owner.name.as_deref() != options.membership.name())
        {
            return Err(BusError::new(
                Remedy::Stop,
                format!("joining group {}", options.group),
                format!(
                    "it has a member already (instance {}), and the embedded log gives one member all partitions: stop the other, or use Kafka (--kafka)",
                    owner.name.as_deref().unwrap_or("without a name")
                ),
            ));
        }
        groups.last_epoch += 1;
        let epoch = groups.last_epoch;
        let name = options.membership.name().map(ToOwned::to_owned);
        if let Membership::Transactional(name) = &options.membership {
            groups.epochs.insert(name.clone(), epoch);
        }
        groups.owners.insert(options.group.clone(), Owner { name, epoch });
        drop(groups);
        Ok(Self { log, options, epoch, cursors: Cursors::default(), checked: None })
    }

    fn check_fence(&self, groups: &Groups) -> Result<()> {
        let newest = match &self.options.membership {
            Membership::Transactional(name) => groups.epochs.get(name).copied(),
            Membership::Static(_) | Membership::Dynamic => groups.owners.get(&self.options.group).map(|owner| owner.epoch),
        };
        if newest == Some(self.epoch) {
            return Ok(());
        }
        Err(BusError::new(
            Remedy::Stop,
            format!("working for group {}", self.options.group),
            "fenced: a newer member of the same instance has taken over; where both are to run, give each an instance name of its own",
        ))
    }

    /// Partitions that this member does not know yet.
    fn unknown(&self) -> Result<Vec<Arc<Partition>>> {
        let mut unknown = Vec::new();
        for topic in &self.options.topics {
            let partitions = self.log.shared.topic(topic)?.partitions();
            unknown.extend(partitions.into_iter().filter(|partition| !self.cursors.has(&partition.at)));
        }
        Ok(unknown)
    }
}

impl Drop for EmbeddedMember {
    fn drop(&mut self) {
        let mut groups = lock(&self.log.shared.groups);
        if groups.owners.get(&self.options.group).is_some_and(|owner| owner.epoch == self.epoch) {
            groups.owners.remove(&self.options.group);
        }
    }
}

impl Reader for EmbeddedMember {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<Polled>) -> Result<()> {
        self.check_fence(&lock(&self.log.shared.groups))?;
        let generation = self.log.shared.topic_generation();
        if self.checked != Some(generation) {
            self.checked = Some(generation);
            let unknown = self.unknown()?;
            if !unknown.is_empty() {
                into.push(Polled::Assigned(unknown.iter().map(|partition| partition.at.clone()).collect()));
                for partition in unknown {
                    self.cursors.add(partition);
                }
                return Ok(());
            }
        }
        poll(&self.log.shared, &mut self.cursors, max, timeout, into)
    }

    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.cursors.set_paused(at, true)
    }

    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.cursors.set_paused(at, false)
    }
}

impl Member for EmbeddedMember {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        self.cursors.seek(&self.log.shared, at, offset)
    }

    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        committed(&self.log.shared, &self.options.group, of)
    }

    fn commit(&mut self, step: Step) -> Result<()> {
        // Held throughout: a newer member either finds this step done or fences it.
        let groups = lock(&self.log.shared.groups);
        self.check_fence(&groups)?;
        if !self.options.membership.is_transactional() && !step.outputs.is_empty() {
            return Err(BusError::new(
                Remedy::Stop,
                format!("committing for group {}", self.options.group),
                "a member that is not transactional commits positions only, never outputs",
            ));
        }
        let positions = Positions { group: &self.options.group, of: &step.positions };
        append(&self.log.shared, &step.outputs, Some(positions), Survives::PowerCut)
    }
}

pub fn committed(shared: &Shared, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
    of.iter()
        .map(|at| {
            let partition = shared.partition(at)?;
            let row = shared.store.meta(&position_key(group, partition.topic, at.partition))?;
            Ok(row.as_deref().and_then(decode_i64))
        })
        .collect()
}
