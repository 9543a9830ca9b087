//! Reading Kafka without the client library: a fetch path that keeps batches as they come and gives views of them.
//!
//! In: an assignment and positions, from the reader or from the group that the client library keeps up. Out: records in
//! the order of their partitions, and ends. Group membership, transactions, producing and administration stay with the
//! client library; [`open_transaction`] alone asks something for them.
//!
//! A stage is a file: [`connection`] (socket, TLS, SASL, versions), [`session`] (what the broker remembers), [`batch`]
//! (heads, checksums, transactions that were taken back), [`decompress`], [`records`]. [`broker`] has the threads,
//! [`shared`] and [`state`] what they and the reader share.
//!
//! Batches stay compressed until the reader comes to them; read ahead is what the byte budget allows. A partition that
//! is paused is not asked for, and asked for its end once it is resumed. Where a partition ends is known from the last
//! stable offset in the answer that brings its last record.

mod batch;
mod broker;
mod connection;
mod decompress;
#[cfg(feature = "conformance")]
mod foreign;
mod messages;
mod open_transaction;
mod options;
mod records;
#[cfg(feature = "kafka-tls")]
mod sasl;
mod security;
mod session;
mod shared;
mod state;
#[cfg(feature = "kafka-tls")]
mod tls;
mod wire;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;

use super::errors::missing_right_message;
use super::events::{ConsumerEvent, ConsumerQueue, REFUSED};
use super::fetcher::{RebalanceEvent, group_failure, lost_position};
use crate::rights::{AclOperation, AclResource};
use crate::{BusError, PollEvent, RecordBatch, Remedy, Result, TopicPartition, chaos};
use batch::{BatchError, OpenBatch};
pub use broker::fetch_topic_ids;
use decompress::Unpacker;
#[cfg(feature = "conformance")]
pub use foreign::read_foreign_bytes;
pub use open_transaction::{HangingParts, OpenTransactionEnd, end_hanging_transaction, end_open_transaction};
pub use options::FetchOptions;
pub use records::header_ranges;
#[cfg(any(test, feature = "simulation"))]
pub use records::put_varint;
use shared::SharedFetchState;
use state::{FetchFailure, FetchedChunk, UNKNOWN_END};

/// The group's events are looked at so often while nothing comes.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A partition as the reader has it.
#[derive(Debug)]
struct PartitionReadState {
    at: TopicPartition,
    /// The next offset to be delivered; `None` if not started.
    next: Option<i64>,
    is_paused: bool,
    /// The offset at which the end was last reported.
    reported_end: Option<i64>,
    chunk: Option<FetchedChunk>,
    open: Option<OpenBatch>,
    /// The damage that ends reading until a new start.
    damage: Option<String>,
}

impl PartitionReadState {
    /// Delivers some of the buffered records; returns true once all are delivered. An end is reported unless
    /// `has_more`: later records lie behind it.
    fn deliver(
        &mut self,
        unpacker: &mut Unpacker,
        delivery: &mut PollBuffer<'_>,
        has_more: impl FnOnce() -> bool,
    ) -> Result<bool> {
        if let Some(damage) = &self.damage {
            return Err(BusError::new(Remedy::Stop, format!("reading {}", self.at), damage));
        }
        self.deliver_open_batch(unpacker, delivery, has_more).map_err(|(offset, error)| {
            let damage = format!("the batch at offset {offset} cannot be read: {error}");
            let error = BusError::new(Remedy::Stop, format!("reading {}", self.at), &damage);
            // A batch behind the damaged one must not be taken for the next one.
            self.damage = Some(damage);
            error
        })
    }

    fn deliver_open_batch(
        &mut self,
        unpacker: &mut Unpacker,
        delivery: &mut PollBuffer<'_>,
        has_more: impl FnOnce() -> bool,
    ) -> Result<bool, (i64, BatchError)> {
        let Self { at, next: Some(next), chunk, open, reported_end, .. } = self else {
            (self.chunk, self.open) = (None, None);
            return Ok(true);
        };
        if let Some(batch) = open {
            if deliver_batch(at, batch, next, delivery, reported_end)? {
                *open = None;
            }
            return Ok(false);
        }
        let Some(fetched) = chunk else { return Ok(true) };
        if let Some(batch) = fetched.batches.next_batch(unpacker, next)? {
            *open = Some(batch);
            return Ok(false);
        }
        if *next >= fetched.end && *reported_end != Some(*next) && !has_more() {
            *reported_end = Some(*next);
            delivery.take_end(at, *next);
        }
        *chunk = None;
        Ok(true)
    }
}

/// Partitions being read by the fetch path of our own. The client library's consumer fetches nothing: it is a member of
/// the group.
#[derive(Debug)]
pub struct NativeFetcher {
    events: ConsumerQueue,
    group: String,
    shared: Arc<SharedFetchState>,
    partitions: Vec<PartitionReadState>,
    unpacker: Unpacker,
    /// The partition that is looked at first.
    turn: usize,
    accepts_batches: bool,
}

impl NativeFetcher {
    pub fn new(events: ConsumerQueue, group: &str, options: FetchOptions) -> Self {
        let shared = Arc::new(SharedFetchState::new(options));
        broker::start_threads(&shared);
        let (partitions, unpacker) = (Vec::new(), Unpacker::default());
        Self { events, group: group.to_owned(), shared, partitions, unpacker, turn: 0, accepts_batches: false }
    }

    pub const fn accept_batches(&mut self) {
        self.accepts_batches = true;
    }

    pub const fn events(&self) -> &ConsumerQueue {
        &self.events
    }

    /// Returns for how long no broker has answered.
    pub fn unanswered(&self) -> Option<Duration> {
        self.shared.unanswered(Instant::now())
    }

    /// Returns for how long one of the brokers that are read from has not answered.
    pub fn silent_broker(&self) -> Option<Duration> {
        self.shared.silent_broker(Instant::now())
    }

    pub fn positions(&self) -> impl Iterator<Item = (&TopicPartition, Option<i64>)> {
        self.partitions.iter().map(|partition| (&partition.at, partition.next))
    }

    /// Replaces the partitions; nothing of them is delivered before [`Self::start`].
    pub fn set_partitions(&mut self, partitions: &[TopicPartition]) {
        let read = |at: &TopicPartition| PartitionReadState {
            at: at.clone(),
            next: None,
            is_paused: false,
            reported_end: None,
            chunk: None,
            open: None,
            damage: None,
        };
        self.partitions = partitions.iter().map(read).collect();
        self.turn = 0;
        self.shared.set_partitions(partitions);
    }

    pub fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        let slot = self.find_partition(at, "starting")?;
        let partition = &mut self.partitions[slot];
        (partition.next, partition.reported_end) = (Some(offset), None);
        (partition.chunk, partition.open, partition.damage) = (None, None, None);
        self.shared.start(slot, offset);
        Ok(())
    }

    pub fn set_paused(&mut self, at: &[TopicPartition], is_paused: bool) -> Result<()> {
        for at in at {
            let slot = self.find_partition(at, if is_paused { "pausing" } else { "resuming" })?;
            if self.partitions[slot].is_paused != is_paused {
                let partition = &mut self.partitions[slot];
                partition.is_paused = is_paused;
                if !is_paused {
                    partition.reported_end = None;
                    if let Some(chunk) = &mut partition.chunk {
                        chunk.end = UNKNOWN_END;
                    }
                }
                self.shared.set_paused(slot, is_paused);
            }
        }
        Ok(())
    }

    fn find_partition(&self, at: &TopicPartition, what: &str) -> Result<usize> {
        self.partitions.iter().position(|partition| partition.at == *at).ok_or_else(|| BusError::unassigned(what, at))
    }

    /// Appends at most `max` items, a batch counting as its records; a rebalance ends the call at once.
    pub fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<Option<RebalanceEvent>> {
        let (begun, before) = (Instant::now(), into.len());
        let mut delivery = PollBuffer { into, room: max, accepts_batches: self.accepts_batches };
        loop {
            if let Some(failure) = self.shared.take_failure() {
                return Err(self.to_bus_error(failure));
            }
            if let Some(rebalance) = self.look_at_group()? {
                return Ok(Some(rebalance));
            }
            while delivery.room > 0 && self.deliver(&mut delivery)? {}
            let left = timeout.saturating_sub(begun.elapsed());
            if delivery.into.len() > before || left.is_zero() {
                return Ok(None);
            }
            self.shared.wait_for_arrival(left.min(LOOK_EVERY));
        }
    }

    /// Polls the events of the group.
    fn look_at_group(&mut self) -> Result<Option<RebalanceEvent>> {
        while let Some(event) = self.events.next(Duration::ZERO) {
            match event {
                ConsumerEvent::Assign(partitions) => return Ok(Some(RebalanceEvent::Assign(partitions))),
                ConsumerEvent::Revoke(partitions) => return Ok(Some(RebalanceEvent::Revoke(partitions))),
                ConsumerEvent::Failed { code, detail, fatal, at } => {
                    if let Some(error) = group_failure(self.events.consumer(), &self.group, code, &detail, fatal, at.as_ref()) {
                        return Err(error);
                    }
                }
                // Nothing is assigned that it could fetch.
                ConsumerEvent::Record(_) | ConsumerEvent::End { .. } => {}
            }
        }
        Ok(None)
    }

    /// Delivers some buffered items; returns false if there are none.
    fn deliver(&mut self, delivery: &mut PollBuffer<'_>) -> Result<bool> {
        let count = self.partitions.len();
        let has_part =
            |partition: &PartitionReadState| !partition.is_paused && (partition.open.is_some() || partition.chunk.is_some());
        let slot = (0..count).map(|n| (self.turn + n) % count).find(|slot| has_part(&self.partitions[*slot]));
        let slot = if let Some(slot) = slot {
            slot
        } else {
            let Some(chunk) = self.shared.take_chunk(self.turn) else { return Ok(false) };
            let slot = chunk.slot;
            self.partitions[slot].chunk = Some(chunk);
            slot
        };
        let partition = &mut self.partitions[slot];
        let is_done = partition.deliver(&mut self.unpacker, delivery, || self.shared.has_chunk(slot))?;
        if is_done {
            // The others first, now.
            self.turn = (slot + 1) % count;
        }
        Ok(true)
    }

    fn to_bus_error(&self, failure: FetchFailure) -> BusError {
        let consumer = self.events.consumer();
        match failure {
            FetchFailure::OutOfRange { at, position } => lost_position(consumer, &at, position, "the position is out of range"),
            FetchFailure::Truncated { at, position, end } => BusError::new(
                Remedy::Stop,
                format!("reading {at} from {position}"),
                format!(
                    "the log was cut off at {end} after more of it had been read: records were lost, and others have their offsets"
                ),
            ),
            FetchFailure::Recreated { at, position } => BusError::new(
                Remedy::Stop,
                format!("reading {at} from {position}"),
                "the topic was deleted and recreated: the position belongs to another log",
            ),
            FetchFailure::Denied { topic } => {
                let what = format!("reading topic {topic}");
                BusError::new(
                    Remedy::Stop,
                    what,
                    missing_right_message(consumer.context().client_name(), AclOperation::Read, &AclResource::Topic(topic)),
                )
            }
            FetchFailure::UnknownTopic { at } => {
                let detail = "the topic or partition does not exist: run `eadt topics apply`";
                BusError::new(Remedy::Retry, format!("reading {at}"), detail)
            }
            FetchFailure::Thread => {
                BusError::new(Remedy::Restart, format!("reading from Kafka for group {}", self.group), "a thread of it failed")
            }
        }
    }
}

impl Drop for NativeFetcher {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// The output of one call.
struct PollBuffer<'a> {
    into: &'a mut Vec<PollEvent>,
    /// Most records and ends that may still be added.
    room: usize,
    accepts_batches: bool,
}

impl PollBuffer<'_> {
    fn take_end(&mut self, at: &TopicPartition, position: i64) {
        self.into.push(PollEvent::End { at: at.clone(), position });
        self.room = self.room.saturating_sub(1);
    }

    fn take_records(&mut self, batch: RecordBatch) {
        self.room = self.room.saturating_sub(batch.len());
        if self.accepts_batches && !chaos::is_off("unknown-fields") {
            self.into.push(PollEvent::Batch(batch));
            return;
        }
        self.into.extend((0..batch.len()).map_while(|index| batch.record(index)).map(|mut record| {
            record.value = record.value.map(|value| if chaos::is_refused(&value) { REFUSED.into() } else { value });
            PollEvent::Record(record)
        }));
    }
}

/// Delivers records of a batch until there are enough; true once all of it is.
fn deliver_batch(
    at: &TopicPartition,
    batch: &mut OpenBatch,
    next: &mut i64,
    delivery: &mut PollBuffer<'_>,
    reported_end: &mut Option<i64>,
) -> Result<bool, (i64, BatchError)> {
    let (mut records, mut is_done) = (Vec::with_capacity(batch.unread_count().min(delivery.room)), false);
    while records.len() < delivery.room && !is_done {
        match batch.next_record() {
            // A start within a batch.
            Ok(Some(found)) if found.offset < *next => {}
            Ok(Some(found)) => {
                *next = found.offset + 1;
                records.push(found);
            }
            Ok(None) => is_done = true,
            // It is found again after those before it.
            Err(_) if !records.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    if !records.is_empty() {
        *reported_end = None;
        delivery.take_records(RecordBatch::new(at.clone(), batch.unpacked.clone(), records));
    }
    if is_done {
        *next = batch.next_offset().max(*next);
    }
    Ok(is_done)
}
