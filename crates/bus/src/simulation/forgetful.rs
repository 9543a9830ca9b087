//! A log whose broker forgets to mark transactions: nothing after them is readable as committed, until they are ended from
//! outside.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, GroupMemberDescription, IsolationLevel, MemberOptions,
    PartitionReader, PollEvent, Producer, Remedy, Result, StartOffset, TopicPartition, TopicSpec, TransactionEnd,
    WatermarkOffsets,
};

/// A transaction of these offsets of a partition that a broker forgot to mark.
#[derive(Debug, Clone, Copy)]
struct Hanging {
    first: i64,
    end: i64,
    /// Whether a member that ends its own ends it.
    is_own: bool,
    ended: Option<TransactionEnd>,
}

type HangingByPartition = BTreeMap<TopicPartition, Hanging>;

/// Hides hanging transactions of a log. Clones share it.
#[derive(Debug, Clone)]
pub struct ForgetfulBus<B> {
    pub inner: B,
    hanging: Arc<Mutex<HangingByPartition>>,
    positions: Arc<Mutex<HangingPositions>>,
    /// Sum of the offsets that readers that began at an offset had before them.
    pub asked: Arc<AtomicI64>,
}

/// A group's positions, of which a transaction hangs.
#[derive(Debug, Default)]
struct HangingPositions {
    /// Positions before the transaction.
    before: BTreeMap<TopicPartition, i64>,
    hang: bool,
}

impl<B: Bus> ForgetfulBus<B> {
    pub fn new(inner: B) -> Self {
        Self { inner, hanging: Arc::default(), positions: Arc::default(), asked: Arc::default() }
    }

    /// Makes the records that `append` appends to these partitions part of a transaction that hangs.
    pub fn hang(&self, partitions: &[TopicPartition], is_own: bool, append: impl FnOnce()) {
        let end = |at: &TopicPartition| self.inner.watermarks(at).unwrap().high;
        let firsts: Vec<_> = partitions.iter().map(end).collect();
        append();
        let open = |(at, first): (&TopicPartition, i64)| (at.clone(), Hanging { first, end: end(at), is_own, ended: None });
        self.hanging.lock().unwrap().extend(partitions.iter().zip(firsts).map(open));
    }

    /// Ends a member's own transactions in these partitions.
    pub fn end_own(&self, partitions: &[TopicPartition], end: TransactionEnd) {
        let mut hanging = self.hanging.lock().unwrap();
        for at in partitions {
            if let Some(hanging) = hanging.get_mut(at).filter(|hanging| hanging.is_own) {
                hanging.ended = Some(end);
            }
        }
    }

    /// Makes the newest positions of the only group hang; `before` are the positions before them.
    pub fn hang_positions(&self, before: &[(TopicPartition, i64)]) {
        *self.positions.lock().unwrap() = HangingPositions { before: before.iter().cloned().collect(), hang: true };
    }

    pub fn is_hanging(&self, at: &TopicPartition) -> bool {
        self.hanging.lock().unwrap().get(at).is_some_and(|hanging| hanging.ended.is_none())
    }

    /// Returns the end of the transaction in this partition; `None` if it hangs, or there is none.
    pub fn ended(&self, at: &TopicPartition) -> Option<TransactionEnd> {
        self.hanging.lock().unwrap().get(at).and_then(|hanging| hanging.ended)
    }
}

impl<B: Bus + Clone + 'static> Bus for ForgetfulBus<B> {
    fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>> {
        self.inner.topics(prefix)
    }
    fn create_topic(&self, topic: &TopicSpec) -> Result<()> {
        self.inner.create_topic(topic)
    }
    fn alter_topic(&self, name: &str, settings: &BTreeMap<String, String>) -> Result<()> {
        self.inner.alter_topic(name, settings)
    }
    fn add_partitions(&self, name: &str, partitions: i32) -> Result<()> {
        self.inner.add_partitions(name, partitions)
    }
    fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets> {
        self.inner.watermarks(at)
    }
    fn producer(&self, name: &str) -> Result<Box<dyn Producer>> {
        self.inner.producer(name)
    }
    fn reader(&self, from: &[(TopicPartition, StartOffset)], isolation: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
        for (at, start) in from {
            if let StartOffset::At(start) = start {
                self.asked.fetch_add(self.inner.watermarks(at)?.high - start, Ordering::SeqCst);
            }
        }
        let inner = self.inner.reader(from, isolation)?;
        Ok(match isolation {
            IsolationLevel::ReadUncommitted => inner,
            IsolationLevel::ReadCommitted => Box::new(CommittedReader { inner, hanging: self.hanging.lock().unwrap().clone() }),
        })
    }
    fn member(&self, options: MemberOptions) -> Result<Box<dyn GroupMember>> {
        Ok(Box::new(ForgetfulMember { inner: self.inner.member(options)?, bus: self.clone() }))
    }
    fn committed(&self, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        self.inner.committed(group, of)
    }
    fn group_members(&self, group: &str) -> Result<Vec<GroupMemberDescription>> {
        self.inner.group_members(group)
    }
}

/// Reads committed records.
#[derive(Debug)]
struct CommittedReader {
    inner: Box<dyn PartitionReader>,
    hanging: HangingByPartition,
}

impl PartitionReader for CommittedReader {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        self.inner.poll(max, timeout, into)?;
        into.retain(|item| match item {
            PollEvent::Record(ConsumerRecord { at, offset, .. }) => match self.hanging.get(at) {
                Some(hanging) if *offset >= hanging.first => match hanging.ended {
                    None => false,
                    Some(TransactionEnd::Abort) => *offset >= hanging.end,
                    Some(TransactionEnd::Commit) => true,
                },
                _ => true,
            },
            PollEvent::End { at, .. } => self.hanging.get(at).is_none_or(|hanging| hanging.ended.is_some()),
            _ => true,
        });
        Ok(())
    }
    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.inner.pause(at)
    }
    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.inner.resume(at)
    }
}

#[derive(Debug)]
struct ForgetfulMember<B> {
    inner: Box<dyn GroupMember>,
    bus: ForgetfulBus<B>,
}

impl<B: Bus> PartitionReader for ForgetfulMember<B> {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        self.inner.poll(max, timeout, into)
    }
    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.inner.pause(at)
    }
    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.inner.resume(at)
    }
}

impl<B: Bus> GroupMember for ForgetfulMember<B> {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        self.inner.start(at, offset)
    }
    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        let positions = self.bus.positions.lock().unwrap();
        if positions.hang {
            return Err(BusError::new(Remedy::Retry, "fetching positions", "a transaction is open in them"));
        }
        let committed = self.inner.committed(of)?;
        Ok(of.iter().zip(committed).map(|(at, committed)| positions.before.get(at).copied().or(committed)).collect())
    }
    fn commit(&mut self, step: &CommitStep) -> Result<()> {
        self.inner.commit(step)?;
        let mut positions = self.bus.positions.lock().unwrap();
        positions.before.retain(|at, _| step.positions.iter().all(|(committed, _)| committed != at));
        Ok(())
    }
    fn end_hanging(&mut self, outputs: &[TopicPartition], with_positions: bool, end: TransactionEnd) -> Result<()> {
        self.bus.end_own(outputs, end);
        let mut positions = self.bus.positions.lock().unwrap();
        if with_positions && positions.hang {
            positions.hang = false;
            if end == TransactionEnd::Commit {
                positions.before.clear();
            }
        }
        Ok(())
    }
}
