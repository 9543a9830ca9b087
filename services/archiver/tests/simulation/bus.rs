//! The log as a process sees it, and its group: a member that joins gets every partition; the others lose theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use eadt_bus::simulation::{PARTITIONS, SimCursor, SimCursors, batch_runs, set_paused, topics};
use eadt_bus::{
    Bus, BusError, CommitStep, GroupMember, IsolationLevel, MemberOptions, Membership, PartitionReader, PollEvent, Producer,
    Remedy, Result, StartOffset, TopicPartition, TopicSpec, WatermarkOffsets,
};

use super::TOPICS;
use super::world::{Flaw, Process, World};

#[derive(Debug)]
pub struct SimBus(pub Arc<Process>);

const COMMITTING: &str = "committing";

/// A call of the log, after which nothing is allowed any more that was before.
fn call<T>(process: &Process, what: &str, remedy: Remedy, effect: impl FnOnce(&mut World) -> Result<T>) -> Result<T> {
    process.allow(false);
    let one_in = if what == COMMITTING { 10 } else { 60 };
    process.call(what, one_in, |why| BusError::new(remedy, what, why), || {}, || effect(&mut process.story.world()))
}

/// Fails a call that an archiver never makes.
fn never<T>(what: &str) -> Result<T> {
    Err(BusError::new(Remedy::Stop, what, "an archiver has no use for it"))
}

impl Bus for SimBus {
    fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>> {
        call(&self.0, "listing topics", Remedy::Retry, |_| Ok(topics(prefix)))
    }
    fn create_topic(&self, _: &TopicSpec) -> Result<()> {
        never("creating a topic")
    }
    fn alter_topic(&self, _: &str, _: &BTreeMap<String, String>) -> Result<()> {
        never("altering a topic")
    }
    fn add_partitions(&self, _: &str, _: i32) -> Result<()> {
        never("adding partitions")
    }
    fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets> {
        call(&self.0, "asking for watermarks", Remedy::Retry, |world| Ok(WatermarkOffsets { low: 0, high: world.log.high(at) }))
    }
    fn producer(&self, _: &str) -> Result<Box<dyn Producer>> {
        never("producing")
    }
    fn reader(&self, from: &[(TopicPartition, StartOffset)], _: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
        let cursor = |start: &StartOffset| SimCursor::at(if let StartOffset::At(offset) = start { *offset } else { 0 });
        let cursors = from.iter().map(|(at, start)| (at.clone(), cursor(start))).collect();
        call(&self.0, "opening a reader", Remedy::Retry, |_| Ok(()))?;
        Ok(Box::new(SimReader { process: Arc::clone(&self.0), cursors }))
    }
    fn member(&self, options: MemberOptions) -> Result<Box<dyn GroupMember>> {
        let Membership::Static(name) = options.membership else { return never("joining without a name") };
        call(&self.0, "joining", Remedy::Retry, |world| {
            world.members += 1;
            world.newest.insert(name.clone(), world.members);
            let process = Arc::clone(&self.0);
            let id = world.members;
            let member: Box<dyn GroupMember> = Box::new(SimMember {
                process,
                name,
                id,
                generation: 0,
                leaving: None,
                away: BTreeSet::new(),
                cursors: SimCursors::new(),
                accepts_batches: false,
            });
            Ok(member)
        })
    }
    fn committed(&self, _: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        call(&self.0, "asking for positions", Remedy::Retry, |world| {
            Ok(of.iter().map(|at| world.committed.get(at).copied()).collect())
        })
    }
}

#[derive(Debug)]
struct SimReader {
    process: Arc<Process>,
    cursors: SimCursors,
}

impl PartitionReader for SimReader {
    fn poll(&mut self, max: usize, _: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        call(&self.process, "reading", Remedy::Retry, |world| {
            for (at, cursor) in &mut self.cursors {
                cursor.take(&world.log, at, max, into);
            }
            Ok(())
        })
    }
    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        set_paused(&mut self.cursors, at, true);
        Ok(())
    }
    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        set_paused(&mut self.cursors, at, false);
        Ok(())
    }
}

#[derive(Debug)]
struct SimMember {
    process: Arc<Process>,
    name: String,
    id: u64,
    /// In which it has its partitions.
    generation: u64,
    /// A partition that it is about to give away.
    leaving: Option<i32>,
    /// Partitions that an idle member owns for a while.
    away: BTreeSet<i32>,
    cursors: SimCursors,
    accepts_batches: bool,
}

fn of_partitions(partitions: impl Iterator<Item = i32>) -> Vec<TopicPartition> {
    partitions.flat_map(|partition| TOPICS.map(|topic| eadt_bus::simulation::place(topic, partition))).collect()
}

impl SimMember {
    fn check(&self, world: &World) -> Result<()> {
        let newest = world.newest.get(&self.name);
        if newest == Some(&self.id) {
            Ok(())
        } else {
            Err(BusError::new(Remedy::Stop, "working for the group", "fenced on purpose"))
        }
    }

    fn assign(&mut self, partitions: impl Iterator<Item = i32>) -> PollEvent {
        let all = of_partitions(partitions);
        self.cursors.extend(all.iter().map(|at| (at.clone(), SimCursor::default())));
        PollEvent::Assigned(all)
    }

    /// Returns the group's changes since the last call; true if there were any.
    fn rebalance(&mut self, world: &mut World, into: &mut Vec<PollEvent>) -> bool {
        if self.generation != world.generation {
            if self.cursors.is_empty() {
                world.generation += 1;
                self.generation = world.generation;
                self.away.clear();
                into.push(self.assign(0..PARTITIONS));
            } else {
                let lost = std::mem::take(&mut self.cursors);
                into.push(PollEvent::Lost(lost.into_keys().collect()));
            }
            self.leaving = None;
            return true;
        }
        if let Some(partition) = self.leaving.take() {
            self.give_away(partition);
        } else if let Some(partition) = self.away.first().copied().filter(|_| world.chance.one_in(2)) {
            self.away.remove(&partition);
            into.push(self.assign(partition..=partition));
            return true;
        }
        if !world.strikes(40) {
            return false;
        }
        let partition = world.chance.below(PARTITIONS as usize) as i32;
        if self.away.contains(&partition) {
            return false;
        }
        let all = of_partitions(partition..=partition);
        if world.chance.one_in(3) {
            world.note(&format!("partition {partition} is lost"));
            self.give_away(partition);
            into.push(PollEvent::Lost(all));
        } else {
            world.note(&format!("partition {partition} is revoked"));
            self.leaving = Some(partition);
            into.push(PollEvent::Revoked(all));
        }
        true
    }

    fn give_away(&mut self, partition: i32) {
        self.away.insert(partition);
        self.cursors.retain(|at, _| at.partition != partition);
    }

    /// Some of what is there; if that is everything more comes, or nothing ever.
    fn deliver(&mut self, world: &mut World, into: &mut Vec<PollEvent>) -> bool {
        let mut took_any = false;
        for (at, cursor) in &mut self.cursors {
            if !world.chance.one_in(4) {
                let max = 1 + world.chance.below(5);
                took_any |= cursor.take(&world.log, at, max, into);
            }
        }
        if !took_any && self.away.is_empty() && self.cursors.iter().all(|(at, cursor)| cursor.is_at_end(&world.log, at)) {
            if world.log.is_revealed() {
                self.process.shutdown.cancel();
            } else {
                world.log.reveal(1);
            }
        }
        took_any
    }
}

impl PartitionReader for SimMember {
    fn poll(&mut self, _: usize, wait: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        let process = Arc::clone(&self.process);
        call(&process, "polling", Remedy::Retry, |world| {
            self.check(world)?;
            if self.rebalance(world, into) {
                return Ok(());
            }
            if world.chance.one_in(2) {
                let count = world.chance.below(5);
                world.log.reveal(count);
            }
            let before = into.len();
            if !self.deliver(world, into) {
                process.timer.wait(wait);
            }
            // Some calls give batches and some give records.
            if self.accepts_batches && (into.len() - before).is_multiple_of(2) {
                batch_runs(into, before);
            }
            if world.is_nested() && world.chance.one_in(12) {
                process.shutdown.cancel();
            }
            Ok(())
        })
    }

    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        call(&self.process, "pausing", Remedy::Retry, |_| {
            set_paused(&mut self.cursors, at, true);
            Ok(())
        })
    }

    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        call(&self.process, "resuming", Remedy::Retry, |_| {
            set_paused(&mut self.cursors, at, false);
            Ok(())
        })
    }

    fn accept_batches(&mut self) {
        self.accepts_batches = true;
    }
}

impl GroupMember for SimMember {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        call(&self.process, "starting", Remedy::Retry, |_| {
            if let Some(cursor) = self.cursors.get_mut(at) {
                *cursor = SimCursor::at(offset);
            }
            Ok(())
        })
    }

    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        call(&self.process, "fetching positions", Remedy::Retry, |world| {
            Ok(of.iter().map(|at| world.committed.get(at).copied()).collect())
        })
    }

    fn commit(&mut self, step: &CommitStep) -> Result<()> {
        let unknown = self.process.story.world().chance.one_in(3);
        let remedy = if unknown { Remedy::Restart } else { Remedy::Retry };
        call(&self.process, COMMITTING, remedy, |world| {
            let is_mine = |(at, _): &(TopicPartition, i64)| self.cursors.contains_key(at);
            let mine = self.generation == world.generation && step.positions.iter().all(is_mine);
            let checked = self.check(world).and_then(|()| {
                let gone = || BusError::new(Remedy::Restart, COMMITTING, "the partition is somebody else's, on purpose");
                mine.then_some(()).ok_or_else(gone)
            });
            if checked.is_ok() {
                world.committed.extend(step.positions.iter().cloned());
            } else if world.flaw != Some(Flaw::Ownership) {
                return checked;
            }
            self.process.allow(true);
            Ok(())
        })
    }
}
