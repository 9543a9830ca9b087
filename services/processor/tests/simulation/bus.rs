//! A log in memory that reveals its records bit by bit, and crashes its user, makes it retry and rebalances it, all from one
//! seed. It has no threads and no clock, so a seed always gives the same story.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use eadt_bus::simulation::{PARTITIONS, ScheduledRecord};
use eadt_bus::simulation::{SimCursor, SimCursors, SimLog, batch_runs, place as of_topic, set_paused, topics};
use eadt_bus::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, IsolationLevel, MemberOptions, PartitionReader, PollEvent, Producer,
    ProducerCounts, ProducerRecord, Remedy, Result, StartOffset, TopicPartition, TopicSpec, WatermarkOffsets, partition_for_key,
};
use eadt_schemas::Topic;
use eadt_service::Shutdown;
pub use eadt_testing::stories::Chance;

/// Effect of a crash in the middle of a step on the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    PositionsWithoutOutputs,
    StateWithoutTheRest,
    /// State of some partitions or of all is lost; if it is all, other parts may be, too.
    WithoutState,
    WithoutPositions,
}

#[derive(Debug)]
struct World {
    chance: Chance,
    log: SimLog,
    committed: BTreeMap<TopicPartition, i64>,
    /// The offsets of a state whose step lost its positions.
    state_positions: BTreeMap<TopicPartition, i64>,
    /// Partitions of the state that lost their last step.
    torn: BTreeSet<i32>,
    epoch: u64,
    /// Faults left: a story ends.
    faults: usize,
    /// Crashes so far.
    crashes: usize,
    shutdown: Shutdown,
    flaw: Option<Flaw>,
}

impl World {
    /// Takes one of the faults that are left, now and then.
    fn strikes(&mut self, one_in: usize) -> bool {
        let strikes = self.faults > 0 && self.chance.one_in(one_in);
        self.faults -= usize::from(strikes);
        strikes
    }

    /// The process is gone in the middle of a call, or it lives and the outcome is unknown to it: then it has to
    /// begin anew, and whatever member it has is of no use any more.
    fn crash(&mut self, what: &str) -> BusError {
        self.crashes += 1;
        if self.chance.one_in(2) {
            return BusError::new(Remedy::Stop, what, "crashed on purpose");
        }
        self.epoch += 1;
        BusError::new(Remedy::Restart, what, "the answer was lost on purpose")
    }

    /// Such a call fails now and then, in a process that is gone or in one that lives.
    fn may_crash(&mut self, one_in: usize, what: &str) -> Result<()> {
        if self.strikes(one_in) { Err(self.crash(what)) } else { Ok(()) }
    }

    /// Whether a member of this epoch is the newest one.
    fn is_newest(&self, epoch: u64, what: &str) -> Result<()> {
        if self.epoch == epoch { Ok(()) } else { Err(BusError::new(Remedy::Stop, what, "fenced")) }
    }

    /// Of a step what went to some of the partitions, at least one left out if it `must` be.
    fn some_partitions(&mut self, records: Vec<ProducerRecord>, must: bool) -> Vec<ProducerRecord> {
        let mut kept: BTreeMap<TopicPartition, bool> = records.iter().map(|record| (place(record), false)).collect();
        for kept in kept.values_mut() {
            *kept = self.chance.one_in(2);
        }
        if let Some(lost) = kept.values_mut().next().filter(|_| must) {
            *lost = false;
        }
        records.into_iter().filter(|record| kept[&place(record)]).collect()
    }

    fn apply(&mut self, outputs: impl IntoIterator<Item = ProducerRecord>, positions: Vec<(TopicPartition, i64)>) {
        let stamp = self.log.now();
        let mut touched = BTreeSet::new();
        for record in outputs {
            let at = place(&record);
            if is_state(&record) {
                self.torn.remove(&at.partition);
            }
            touched.insert(at.clone());
            self.log.append(at, stamp, record);
        }
        // As in Kafka, the end of a step takes an offset.
        for at in touched {
            self.log.burn(at);
        }
        self.committed.extend(positions);
    }
}

fn is_state(record: &ProducerRecord) -> bool {
    record.topic.ends_with(&*Topic::ProcessorState.to_string())
}

fn place(record: &ProducerRecord) -> TopicPartition {
    let key = record.key.as_deref().unwrap_or_default();
    TopicPartition::new(record.topic.clone(), record.partition.unwrap_or_else(|| partition_for_key(key, PARTITIONS)))
}

#[derive(Debug, Clone)]
pub struct SimBus(Arc<Mutex<World>>);

impl SimBus {
    pub fn new(chance: Chance, coming: Vec<ScheduledRecord>, faults: usize, flaw: Option<Flaw>) -> Self {
        let world = World {
            chance,
            log: SimLog::new(coming),
            committed: BTreeMap::new(),
            state_positions: BTreeMap::new(),
            torn: BTreeSet::new(),
            epoch: 0,
            faults,
            crashes: 0,
            shutdown: Shutdown::new(),
            flaw,
        };
        Self(Arc::new(Mutex::new(world)))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new process: what stops it once everything is folded.
    pub fn process(&self) -> Shutdown {
        let mut world = self.world();
        world.shutdown = Shutdown::new();
        world.shutdown.clone()
    }

    /// Returns whether every record was revealed and folded for good.
    pub fn is_done(&self, group_inputs: &[TopicPartition]) -> bool {
        let world = self.world();
        let newest = |at: &TopicPartition| world.committed.get(at).max(world.state_positions.get(at)).copied();
        let folded = |at: &TopicPartition| newest(at).unwrap_or(0) >= world.log.high(at);
        world.log.is_revealed() && world.torn.is_empty() && group_inputs.iter().all(folded)
    }

    pub fn crashes(&self) -> usize {
        self.world().crashes
    }

    /// Returns the records of a topic, partition by partition, in order.
    pub fn records(&self, topic: Topic) -> Vec<ConsumerRecord> {
        let world = self.world();
        (0..PARTITIONS).flat_map(|partition| world.log.from(&of_topic(topic, partition), 0)).flatten().cloned().collect()
    }
}

impl Bus for SimBus {
    fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>> {
        self.world().may_crash(100, "listing topics")?;
        Ok(topics(prefix))
    }
    fn create_topic(&self, _: &TopicSpec) -> Result<()> {
        Ok(())
    }
    fn alter_topic(&self, _: &str, _: &BTreeMap<String, String>) -> Result<()> {
        Ok(())
    }
    fn add_partitions(&self, _: &str, _: i32) -> Result<()> {
        Ok(())
    }
    fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets> {
        let mut world = self.world();
        world.may_crash(200, "asking for watermarks")?;
        Ok(WatermarkOffsets { low: 0, high: world.log.high(at) })
    }
    fn producer(&self, _: &str) -> Result<Box<dyn Producer>> {
        self.world().may_crash(100, "making a producer")?;
        Ok(Box::new(Silent))
    }
    fn reader(&self, from: &[(TopicPartition, StartOffset)], _: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
        self.world().may_crash(100, "making a reader")?;
        let cursor = |start: &StartOffset| SimCursor::at(if let StartOffset::At(offset) = start { *offset } else { 0 });
        let cursors = from.iter().map(|(at, start)| (at.clone(), cursor(start))).collect();
        let follows = from.iter().any(|(at, _)| at.topic != from[0].0.topic);
        Ok(Box::new(SimReader { bus: self.clone(), cursors, follows }))
    }
    fn member(&self, options: MemberOptions) -> Result<Box<dyn GroupMember>> {
        let mut world = self.world();
        world.may_crash(100, "joining")?;
        world.epoch += 1;
        let epoch = world.epoch;
        drop(world);
        Ok(Box::new(SimMember {
            bus: self.clone(),
            epoch,
            topics: options.topics,
            away: (0..PARTITIONS).collect(),
            cursors: BTreeMap::new(),
            accepts_batches: false,
        }))
    }
    fn committed(&self, _: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        let world = self.world();
        Ok(of.iter().map(|at| world.committed.get(at).copied()).collect())
    }
}

/// The heartbeats' producer: nothing is quiet, because no clock goes on.
#[derive(Debug)]
struct Silent;

impl Producer for Silent {
    fn send(&mut self, record: ProducerRecord) -> Result<()> {
        Err(BusError::new(Remedy::Stop, "sending", format!("nothing should be sent to {}", record.topic)))
    }
    fn counts(&self) -> ProducerCounts {
        ProducerCounts::default()
    }
    fn flush(&mut self, _: Duration) -> Result<bool> {
        Ok(true)
    }
}

#[derive(Debug)]
struct SimReader {
    bus: SimBus,
    cursors: SimCursors,
    /// Reads several topics: only new records.
    follows: bool,
}

/// Returns some of the available records; true if any were returned. An input that has been at its end gets newer records
/// before any other continues; one that is known to have more may keep the rest waiting.
fn take_some(cursors: &mut SimCursors, world: &mut World, into: &mut Vec<PollEvent>) -> bool {
    let mut took_any = false;
    for (at, cursor) in cursors {
        if cursor.reported_end || !world.chance.one_in(4) {
            let max = 1 + world.chance.below(30);
            took_any |= cursor.take(&world.log, at, max, into);
        }
    }
    took_any
}

/// Everything that was there was read: more comes, or nothing ever.
fn go_on(cursors: &SimCursors, world: &mut World) {
    if cursors.iter().all(|(at, cursor)| cursor.is_at_end(&world.log, at)) {
        if world.log.is_revealed() {
            world.shutdown.cancel();
        } else {
            world.log.reveal(1);
        }
    }
}

impl PartitionReader for SimReader {
    fn poll(&mut self, max: usize, _: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        let mut world = self.bus.world();
        world.may_crash(100, "reading")?;
        if self.follows {
            if !take_some(&mut self.cursors, &mut world, into) {
                go_on(&self.cursors, &mut world);
            }
            return Ok(());
        }
        for (at, cursor) in &mut self.cursors {
            cursor.take(&world.log, at, max, into);
        }
        Ok(())
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
    bus: SimBus,
    epoch: u64,
    topics: Vec<Arc<str>>,
    /// Partitions that another member owns.
    away: BTreeSet<i32>,
    cursors: SimCursors,
    accepts_batches: bool,
}

impl SimMember {
    fn of_partition(&self, partition: i32) -> Vec<TopicPartition> {
        self.topics.iter().map(|topic| TopicPartition::new(topic.clone(), partition)).collect()
    }
}

impl PartitionReader for SimMember {
    fn poll(&mut self, _: usize, _: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        let mut world = self.bus.world();
        world.is_newest(self.epoch, "polling")?;
        if let Some(partition) = self.away.first().copied().filter(|_| world.chance.one_in(2)) {
            self.away.remove(&partition);
            let all = self.of_partition(partition);
            self.cursors.extend(all.iter().map(|at| (at.clone(), SimCursor::default())));
            into.push(PollEvent::Assigned(all));
            return Ok(());
        }
        world.may_crash(60, "polling")?;
        if world.strikes(60) {
            let partition = world.chance.below(PARTITIONS as usize) as i32;
            if self.away.insert(partition) {
                let all = self.of_partition(partition);
                self.cursors.retain(|at, _| at.partition != partition);
                let lost = world.chance.one_in(4);
                into.push(if lost { PollEvent::Lost(all) } else { PollEvent::Revoked(all) });
                return Ok(());
            }
        }
        if world.chance.one_in(2) {
            let count = world.chance.below(40);
            world.log.reveal(count);
        }
        let before = into.len();
        if !take_some(&mut self.cursors, &mut world, into) && self.away.is_empty() {
            go_on(&self.cursors, &mut world);
        }
        if self.accepts_batches {
            batch_runs(into, before);
        }
        Ok(())
    }

    fn accept_batches(&mut self) {
        self.accepts_batches = true;
    }

    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.bus.world().may_crash(60, "pausing")?;
        set_paused(&mut self.cursors, at, true);
        Ok(())
    }

    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.bus.world().may_crash(60, "resuming")?;
        set_paused(&mut self.cursors, at, false);
        Ok(())
    }
}

impl GroupMember for SimMember {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        let mut world = self.bus.world();
        world.is_newest(self.epoch, "starting")?;
        world.may_crash(300, "starting")?;
        self.cursors.insert(at.clone(), SimCursor::at(offset));
        Ok(())
    }

    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        let mut world = self.bus.world();
        world.is_newest(self.epoch, "fetching positions")?;
        if world.strikes(100) {
            return Err(BusError::new(Remedy::Retry, "fetching positions", "not now, on purpose"));
        }
        world.may_crash(100, "fetching positions")?;
        Ok(of.iter().map(|at| world.committed.get(at).copied()).collect())
    }

    fn commit(&mut self, step: &CommitStep) -> Result<()> {
        let step = step.clone();
        let mut world = self.bus.world();
        world.is_newest(self.epoch, "committing")?;
        if world.strikes(60) {
            return Err(BusError::new(Remedy::Retry, "committing", "not now, on purpose"));
        }
        if world.strikes(8) {
            let error = world.crash("committing");
            let (state, mut others): (Vec<_>, Vec<_>) = step.outputs.into_iter().partition(is_state);
            let took_place = world.chance.one_in(2);
            match world.flaw {
                Some(Flaw::PositionsWithoutOutputs) => world.apply(state, step.positions),
                Some(Flaw::StateWithoutTheRest) => world.apply(state, Vec::new()),
                Some(Flaw::WithoutState) => {
                    let mut lost: BTreeSet<i32> = state.iter().filter_map(|record| record.partition).collect();
                    let left = world.some_partitions(state, true);
                    if left.is_empty() {
                        others = world.some_partitions(others, false);
                    }
                    let partitions: BTreeSet<i32> = left.iter().filter_map(|record| record.partition).collect();
                    lost.retain(|number| !partitions.contains(number));
                    world
                        .state_positions
                        .extend(step.positions.iter().filter(|(at, _)| partitions.contains(&at.partition)).cloned());
                    world.apply(others.into_iter().chain(left), if took_place { step.positions } else { Vec::new() });
                    world.torn.extend(lost);
                }
                Some(Flaw::WithoutPositions) => {
                    world.state_positions.extend(step.positions);
                    world.apply(others.into_iter().chain(state), Vec::new());
                }
                // Before it took place, or after.
                None if !took_place => {}
                None => world.apply(others.into_iter().chain(state), step.positions),
            }
            return Err(error);
        }
        world.apply(step.outputs, step.positions);
        Ok(())
    }
}
