//! Groups: one member has all partitions of its topics; a newer member of the same instance fences the older.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::append::{GroupPositions, append};
use super::reader::{PartitionCursors, poll};
use super::store::{DurabilityLevel, position_key};
use super::topic::{EmbeddedPartition, decode_i64};
use super::{EmbeddedLog, EmbeddedLogState, lock};
use crate::{
    BusError, CommitStep, FENCED, GroupMember, GroupMemberDescription, MemberOptions, Membership, PartitionReader, PollEvent,
    Remedy, Result, TopicPartition,
};

/// Owners of consumer groups, and epochs of their instances.
#[derive(Debug, Default)]
pub struct GroupRegistry {
    owners: HashMap<String, GroupOwner>,
    /// Instances are fenced across groups, as transactional ids are.
    epochs: HashMap<String, u64>,
    last_epoch: u64,
}

#[derive(Debug)]
struct GroupOwner {
    name: Option<String>,
    epoch: u64,
    topics: Vec<Arc<str>>,
}

impl GroupRegistry {
    /// Describes the member of a group to others; `None` if it has none.
    pub fn member(&self, group: &str) -> Option<GroupMemberDescription> {
        let owner = self.owners.get(group)?;
        let name = owner.name.clone().unwrap_or_else(|| "a member without a name".to_owned());
        Some(GroupMemberDescription { name, topics: owner.topics.iter().map(ToString::to_string).collect() })
    }
}

#[derive(Debug)]
pub struct EmbeddedMember {
    log: EmbeddedLog,
    options: MemberOptions,
    epoch: u64,
    cursors: PartitionCursors,
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
        groups.owners.insert(options.group.clone(), GroupOwner { name, epoch, topics: options.topics.clone() });
        drop(groups);
        Ok(Self { log, options, epoch, cursors: PartitionCursors::default(), checked: None })
    }

    fn check_fence(&self, groups: &GroupRegistry) -> Result<()> {
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
            format!(
                "{FENCED}a newer member of the same instance has taken over; where both are to run, give each an instance name of its own"
            ),
        ))
    }

    /// Partitions that this member does not know yet.
    fn new_partitions(&self) -> Result<Vec<Arc<EmbeddedPartition>>> {
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

impl PartitionReader for EmbeddedMember {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        self.check_fence(&lock(&self.log.shared.groups))?;
        let generation = self.log.shared.topic_generation();
        if self.checked != Some(generation) {
            self.checked = Some(generation);
            let unknown = self.new_partitions()?;
            if !unknown.is_empty() {
                into.push(PollEvent::Assigned(unknown.iter().map(|partition| partition.at.clone()).collect()));
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

impl GroupMember for EmbeddedMember {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        self.cursors.seek(&self.log.shared, at, offset)
    }

    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        committed(&self.log.shared, &self.options.group, of)
    }

    fn commit(&mut self, step: &CommitStep) -> Result<()> {
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
        let positions = GroupPositions { group: &self.options.group, of: &step.positions };
        append(&self.log.shared, &step.outputs, Some(positions), DurabilityLevel::PowerCut)
    }
}

pub fn committed(shared: &EmbeddedLogState, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
    of.iter()
        .map(|at| {
            let partition = shared.partition(at)?;
            let row = shared.store.meta(&position_key(group, partition.topic, at.partition))?;
            Ok(row.as_deref().and_then(decode_i64))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::tests::{log, record, topic};
    use crate::{Bus, ProducerRecord};

    fn join(log: &EmbeddedLog, group: &str, membership: Membership) -> Result<EmbeddedMember> {
        let options = MemberOptions { group: group.into(), membership, topics: vec!["t".into()] };
        EmbeddedMember::join(log.clone(), options)
    }

    fn named(name: &str) -> Membership {
        Membership::Static(name.into())
    }

    fn polled(member: &mut EmbeddedMember) -> Result<Vec<PollEvent>> {
        let mut items = Vec::new();
        member.poll(10, Duration::ZERO, &mut items).map(|()| items)
    }

    #[test]
    fn a_group_has_one_member_and_only_a_newer_one_of_its_name_takes_it_over() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let refused = |membership| join(&log, "g", membership).unwrap_err();
        let nameless = join(&log, "g", Membership::Dynamic).unwrap();
        for membership in [Membership::Dynamic, named("a"), Membership::Transactional("a".into())] {
            let error = refused(membership);
            assert_eq!(error.remedy, Remedy::Stop);
            assert!(error.detail.starts_with("it has a member already (instance without a name), and"), "{error}");
        }
        drop(join(&log, "another", Membership::Dynamic).unwrap());
        drop(nameless);
        let mut older = join(&log, "g", named("a")).unwrap();
        for membership in [Membership::Dynamic, named("b")] {
            let error = refused(membership);
            assert!(error.detail.starts_with("it has a member already (instance a), and"), "{error}");
        }
        let mut newer = join(&log, "g", named("a")).unwrap();
        assert!(polled(&mut older).unwrap_err().is_fenced());
        assert!(polled(&mut newer).is_ok());
        // The end of the older one leaves the group to the newer.
        drop(older);
        refused(named("b"));
        assert!(polled(&mut newer).is_ok());
        drop(newer);
        assert!(join(&log, "g", named("b")).is_ok());
    }

    #[test]
    fn a_transactional_member_is_fenced_by_its_name_in_any_group() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let transactional = |group, name: &str| join(&log, group, Membership::Transactional(name.into())).unwrap();
        let (mut one, mut other) = (transactional("g", "a"), transactional("h", "b"));
        let mut newer = transactional("i", "a");
        let error = one.commit(&CommitStep::default()).unwrap_err();
        assert!(error.is_fenced(), "{error}");
        other.commit(&CommitStep::default()).unwrap();
        newer.commit(&CommitStep::default()).unwrap();
    }

    #[test]
    fn new_partitions_are_assigned_once_and_nothing_is_delivered_of_them_before_they_are_started() {
        let (_dir, log) = log();
        topic(&log, "t", 2, &[]);
        let at = [0, 1, 2].map(|partition| TopicPartition::new("t", partition));
        let mut member = join(&log, "g", named("a")).unwrap();
        assert_eq!(polled(&mut member).unwrap(), [PollEvent::Assigned(at[..2].to_vec())]);
        assert_eq!(polled(&mut member).unwrap(), []);
        // Another topic is none of its business.
        topic(&log, "u", 1, &[]);
        assert_eq!(polled(&mut member).unwrap(), []);
        log.add_partitions("t", 3).unwrap();
        assert_eq!(polled(&mut member).unwrap(), [PollEvent::Assigned(at[2..].to_vec())]);
        assert_eq!(polled(&mut member).unwrap(), []);
        member.start(&at[2], 0).unwrap();
        assert_eq!(polled(&mut member).unwrap(), [PollEvent::End { at: at[2].clone(), position: 0 }]);
    }

    #[test]
    fn a_member_delivers_nothing_of_what_it_paused_until_it_resumes() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        append(&log.shared, &[record("t", "k", "v")], None, DurabilityLevel::Process).unwrap();
        let at = TopicPartition::new("t", 0);
        let mut member = join(&log, "g", named("a")).unwrap();
        polled(&mut member).unwrap();
        member.start(&at, 0).unwrap();
        member.pause(std::slice::from_ref(&at)).unwrap();
        assert_eq!(polled(&mut member).unwrap(), []);
        member.resume(std::slice::from_ref(&at)).unwrap();
        let items = polled(&mut member).unwrap();
        assert!(matches!(&items[..], [PollEvent::Record(_), PollEvent::End { position: 1, .. }]), "{items:?}");
    }

    #[test]
    fn positions_are_those_of_their_group_and_partition() {
        let (_dir, log) = log();
        topic(&log, "t", 3, &[]);
        let at = [2, 0, 1].map(|partition| TopicPartition::new("t", partition));
        let mut member = join(&log, "g", named("a")).unwrap();
        member.commit(&CommitStep { outputs: vec![], positions: vec![(at[0].clone(), 7), (at[2].clone(), 9)] }).unwrap();
        assert_eq!(member.committed(&at).unwrap(), [Some(7), None, Some(9)]);
        assert_eq!(log.committed("g", &at).unwrap(), [Some(7), None, Some(9)]);
        assert_eq!(log.committed("h", &at).unwrap(), [None; 3]);
    }

    #[test]
    fn outputs_are_committed_by_transactional_members_only_and_positions_by_all() {
        let (_dir, log) = log();
        topic(&log, "t", 1, &[]);
        let at = TopicPartition::new("t", 0);
        let outputs = |count| vec![ProducerRecord { partition: Some(0), ..record("t", "k", "v") }; count];
        for (n, membership) in [(1, Membership::Dynamic), (2, named("a")), (3, Membership::Transactional("a".into()))] {
            let transactional = membership.is_transactional();
            let mut member = join(&log, "g", membership).unwrap();
            member.commit(&CommitStep { outputs: vec![], positions: vec![(at.clone(), n)] }).unwrap();
            assert_eq!(member.committed(std::slice::from_ref(&at)).unwrap(), [Some(n)]);
            let committed = member.commit(&CommitStep { outputs: outputs(2), positions: vec![] });
            assert_eq!(committed.is_ok(), transactional, "{committed:?}");
        }
        // Two records, and the offset that a step burns.
        assert_eq!(log.watermarks(&at).unwrap().high, 3);
    }
}
