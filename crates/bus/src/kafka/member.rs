//! Members of consumer groups: what they read, and atomic steps.
//!
//! A transaction is opened only at the commit. After any answer that leaves its outcome open the member is dead: its producer
//! must be recreated, which fences the old one at the broker.
//!
//! The client library sends a request again by itself if the connection that it was sent on is lost, and reports success once the
//! second one was answered. The first one may still be on its way. Brokers cannot distinguish it from one of a later transaction
//! (KIP-890 is not in the library). An old commit or abort would then end a later transaction in its middle. So after every step
//! during which a connection was lost, and after every abort, the next one begins with a fresh producer.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use eadt_schemas::fnv::Fnv1a;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerGroupMetadata};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaError};
use rdkafka::producer::{BaseProducer, Producer as _};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};

use super::KafkaBus;
use super::client_watch::ConsumerWatch;
use super::context::KafkaContext;
use super::errors::{from_code, from_error, is_fenced, missing_right_message};
use super::fetch::HangingParts;
use super::fetcher::{Fetcher, RebalanceEvent};
use super::producer::{LOOK_EVERY, hand_over, serve_deliveries, wait_until_delivered};
use crate::rights::{AclOperation, AclResource};
use crate::{
    BusError, CommitStep, GroupMember, IsolationLevel, MemberOptions, Membership, PartitionReader, PollEvent, Remedy, Result,
    TopicPartition, TransactionEnd,
};

/// Below the session timeout, so that a dead member's transaction is over before its partitions move.
pub const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
/// The client library's own interval is three seconds.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Error text about a client that gets no answer.
pub const CLIENT_UNANSWERED: &str = "no broker answers this client, although the cluster answers others: recreating it";
/// The broker was away for longer than [`SESSION_TIMEOUT`].
const GIVEN_UP: &str = "the group removed the member: its session timed out";
/// The library emits few events, and all of them are in its queue already.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// A transaction that is not taken back within this time is ended by the next producer of its name: waiting longer is lost time.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Calls that a broker answers.
pub const ANSWER: Duration = Duration::from_secs(30);

struct TransactionalProducer {
    bus: KafkaBus,
    instance: String,
    producer: Arc<BaseProducer<KafkaContext>>,
    context: KafkaContext,
    /// Something of a past transaction may still reach the broker.
    stray: bool,
    /// A request for the id, of this producer or of one before it, was not answered: if it still reaches the broker, it takes the
    /// id away.
    is_id_unsure: bool,
}

impl TransactionalProducer {
    fn new(bus: &KafkaBus, instance: &str) -> Result<Self> {
        let is_id_unsure = bus.end_open_transaction(instance);
        let (producer, context) = bus.transactional_producer(instance)?;
        producer.init_transactions(ANSWER).map_err(|error| begin_error(instance, context.client_name(), &error))?;
        let (bus, instance, producer) = (bus.clone(), instance.to_owned(), Arc::new(producer));
        Ok(Self { bus, instance, producer, context, stray: false, is_id_unsure })
    }

    /// Fences past transactions that are still in flight.
    fn settle_past(&mut self) -> Result<()> {
        if self.stray && !crate::chaos::is_off("fresh-producer") {
            let fresh = Self::new(&self.bus, &self.instance)?;
            *self = Self { is_id_unsure: fresh.is_id_unsure || self.is_id_unsure, ..fresh };
            tracing::info!(
                instance = self.instance,
                "recreating the producer before the next transaction: records of the previous one may still be in flight"
            );
        }
        self.stray = false;
        Ok(())
    }
}

pub struct KafkaMember {
    group: String,
    topics: Vec<Arc<str>>,
    fetcher: Fetcher,
    watch: ConsumerWatch,
    transactional: Option<TransactionalProducer>,
    /// Partitions were reported as revoked; the next poll gives them away.
    leaving: bool,
    /// The reason why nothing more can be committed.
    dead: Option<String>,
    leaves: bool,
}

impl std::fmt::Debug for KafkaMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaMember").field("group", &self.group).finish_non_exhaustive()
    }
}

impl KafkaMember {
    pub fn join(bus: &KafkaBus, options: &MemberOptions) -> Result<Self> {
        let layout = bus.require_topics(&options.topics)?;
        // First of all: it fences older members of the instance, and ends their open transactions.
        let transactional = match &options.membership {
            Membership::Transactional(name) => Some(TransactionalProducer::new(bus, name)?),
            Membership::Static(_) | Membership::Dynamic => None,
        };
        let fetcher = bus.fetcher(&options.group, &membership(&options.membership, &layout), IsolationLevel::ReadCommitted)?;
        let topics: Vec<&str> = options.topics.iter().map(|topic| &**topic).collect();
        fetcher
            .consumer()
            .subscribe(&topics)
            .map_err(|error| from_error(format!("joining group {}", options.group), &error, Remedy::Stop))?;
        let watched_topic = options.topics.first().cloned().unwrap_or_default();
        Ok(Self {
            group: options.group.clone(),
            topics: options.topics.clone(),
            fetcher,
            watch: ConsumerWatch::new(bus, &watched_topic),
            transactional,
            leaving: false,
            dead: None,
            leaves: options.membership == Membership::Dynamic,
        })
    }

    fn check_alive(&self) -> Result<()> {
        self.dead.as_ref().map_or(Ok(()), |why| {
            Err(BusError::new(Remedy::Restart, self.description(), format!("the outcome of an earlier step is open: {why}")))
        })
    }

    /// Returns an error if the group assigns a partition of a topic that this member did not ask for.
    fn check_assigned(&self, partitions: &[TopicPartition]) -> Result<()> {
        match partitions.iter().find(|at| !self.topics.contains(&at.topic)) {
            Some(at) if !crate::chaos::is_off("member-name") => {
                let detail =
                    format!("the group gave it {at}, of another member's subscription: does another application use this group?");
                Err(BusError::new(Remedy::Restart, format!("joining group {}", self.group), detail))
            }
            _ => Ok(()),
        }
    }

    fn description(&self) -> String {
        format!("committing for group {}", self.group)
    }

    /// Returns an error to join again by, in place of a fence that an outage may have brought about.
    fn join_again_after_outage(&self, error: BusError) -> BusError {
        if !error.is_fenced() || crate::chaos::is_off("join-again") || !self.watch.may_join_again(&self.group) {
            return error;
        }
        let detail = format!("{}; the brokers were away shortly before: it joins once more", error.detail);
        BusError::new(Remedy::Restart, error.what, detail)
    }

    fn commit_positions(&self, positions: &TopicPartitionList) -> Result<()> {
        if positions.count() == 0 {
            return Ok(());
        }
        let consumer = self.fetcher.consumer();
        let given_up = || BusError::new(Remedy::Restart, self.description(), GIVEN_UP);
        // Without an id until it has joined again, it would be answered as if a newer member had fenced it.
        if consumer.assignment_lost() {
            return Err(given_up());
        }
        let Some(set) = set_positions(consumer, positions) else {
            let detail = format!("no broker answered within {ANSWER:?}");
            return Err(BusError::new(Remedy::Restart, self.description(), detail));
        };
        // Setting a position twice is harmless, so an open outcome only asks for another look at the committed ones.
        set.map_err(|error| match consumer.client().fatal_error() {
            // The session ran out while the request waited for the broker, and the request was sent without an id.
            Some((code, _)) if is_fenced(code) && consumer.assignment_lost() => given_up(),
            // An error that a heartbeat received before is not repeated, such as that a newer member of the name has joined.
            Some((code, detail)) => from_code(self.description(), code, &detail, Remedy::Restart),
            None => from_error(self.description(), &error, Remedy::Restart),
        })
    }

    fn commit_transaction(&mut self, step: &CommitStep, positions: &TopicPartitionList) -> Result<()> {
        let begun = Instant::now();
        let Err(error) = self.try_transaction(step, positions) else { return Ok(()) };
        let is_fenced = self.is_fenced();
        let is_id_unsure = self.transactional.as_ref().is_some_and(|transactional| transactional.is_id_unsure);
        // Causes other than a newer member may have fenced it.
        let detail = if is_taken_back(&error, is_fenced, begun.elapsed()) {
            format!("it took longer than {TRANSACTION_TIMEOUT:?}, and the broker took it back")
        } else if is_fenced && is_id_unsure {
            "a late InitProducerId request of its own fenced it".to_owned()
        } else {
            return Err(error);
        };
        if self.is_replaced() {
            return Err(error);
        }
        Err(BusError::new(Remedy::Restart, error.what, detail))
    }

    /// Returns whether the producer cannot go on because another one, or the broker itself, has ended its transaction.
    fn is_fenced(&self) -> bool {
        let fatal = self.transactional.as_ref().and_then(|transactional| transactional.producer.client().fatal_error());
        fatal.is_some_and(|(code, _)| is_fenced(code))
    }

    /// Returns whether a newer member of this instance has joined: then the group takes nothing from the older one. Offers the
    /// committed positions as they are, so that nothing changes if the group takes them.
    fn is_replaced(&self) -> bool {
        let consumer = self.fetcher.consumer();
        // A heartbeat may have received that error already, and then nothing else is answered.
        let is_fatal = || consumer.client().fatal_error().is_some_and(|(code, _)| is_fenced(code));
        // A member whose session ran out is unknown to the group, which answers as if a newer one had fenced it.
        if is_fatal() || consumer.assignment_lost() {
            return is_fatal();
        }
        let mut positions = TopicPartitionList::new();
        let mut assigned = TopicPartitionList::new();
        for (at, _) in self.fetcher.positions() {
            assigned.add_partition(&at.topic, at.partition);
        }
        if assigned.count() > 0
            && let Ok(committed) = consumer.committed_offsets(assigned, ANSWER)
        {
            for element in committed.elements() {
                if let Offset::Offset(offset) = element.offset() {
                    // The list takes every offset that was committed before.
                    drop(positions.add_partition_offset(element.topic(), element.partition(), Offset::Offset(offset)));
                }
            }
        }
        if positions.count() > 0 {
            match set_positions(consumer, &positions).map(|set| set.map_err(|error| error.rdkafka_error_code())) {
                Some(Ok(())) => return false,
                Some(Err(Some(code))) if is_fenced(code) => return !consumer.assignment_lost() || is_fatal(),
                Some(Err(_)) | None => {}
            }
        }
        // The request could not be sent; the next heartbeat repeats it.
        let begun = Instant::now();
        while begun.elapsed() < HEARTBEAT && !is_fatal() {
            std::thread::sleep(Duration::from_millis(50));
        }
        is_fatal()
    }

    fn try_transaction(&mut self, step: &CommitStep, positions: &TopicPartitionList) -> Result<()> {
        let what = self.description();
        let Some(transactional) = &mut self.transactional else { return Ok(()) };
        if let Err(error) = transactional.settle_past() {
            self.dead = Some(error.to_string());
            return Err(error);
        }
        let TransactionalProducer { producer, context, stray, .. } = transactional;
        context.forget_failures();
        let disconnects = context.disconnects();
        if let Some((code, detail)) = producer.client().fatal_error() {
            return Err(from_code(what, code, &detail, Remedy::Restart));
        }
        producer.begin_transaction().map_err(|error| from_error(&what, &error, Remedy::Restart))?;
        crate::chaos::reach("step.begun");
        // Everything before the request to commit can be aborted for certain.
        if let Err(error) = fill_transaction(producer, context, step, positions, &self.fetcher, &what) {
            // A fatal error purges the records in flight, and the delivery reports contain only the purge.
            if let Some((code, detail)) = producer.client().fatal_error() {
                self.dead = Some(detail.clone());
                return Err(from_code(what, code, &detail, Remedy::Restart));
            }
            *stray = true;
            if let Err(not_aborted) = abort(producer) {
                self.dead = Some(not_aborted.to_string());
            }
            return Err(error);
        }
        match producer.commit_transaction(ANSWER) {
            Ok(()) => {
                crate::chaos::reach("step.committed");
                *stray = !drain_events(producer) || context.disconnects() != disconnects;
                Ok(())
            }
            Err(KafkaError::Transaction(error)) if error.txn_requires_abort() => {
                *stray = true;
                if let Err(not_aborted) = abort(producer) {
                    self.dead = Some(not_aborted.to_string());
                }
                Err(transaction_error(&what, &error))
            }
            Err(error) => {
                self.dead = Some(error.to_string());
                Err(from_error(&what, &error, Remedy::Restart))
            }
        }
    }
}

/// Returns the name of a member in the group: its own, and a mark of its topics. While the session lasts, the group gives a
/// member of a known name its former partitions, for any topics. So a member that reads other topics, or topics with other
/// partitions, needs another name.
fn membership(own: &Membership, layout: &[(Arc<str>, i32)]) -> Membership {
    match own {
        Membership::Dynamic => Membership::Dynamic,
        Membership::Static(name) => Membership::Static(member_name(name, layout)),
        Membership::Transactional(name) => Membership::Transactional(member_name(name, layout)),
    }
}

fn member_name(name: &str, layout: &[(Arc<str>, i32)]) -> String {
    if crate::chaos::is_off("member-name") {
        return name.to_owned();
    }
    // It need only differ, and be the same in every version.
    let mut mark = Fnv1a::default();
    for (topic, partitions) in layout {
        mark.write(topic.as_bytes());
        mark.write(&[0]);
        mark.write(&partitions.to_be_bytes());
    }
    let mark = mark.finish();
    format!("{name}-{:08x}", mark as u32 ^ (mark >> 32) as u32)
}

/// Returns whether a step that took so long may have been ended for its age: the broker then answers as if a newer producer had
/// fenced it, and only the group knows better.
fn is_taken_back(error: &BusError, is_fenced: bool, lasted: Duration) -> bool {
    error.remedy == Remedy::Stop && is_fenced && lasted >= TRANSACTION_TIMEOUT
}

fn begin_error(instance: &str, who: &str, error: &KafkaError) -> BusError {
    let what = format!("starting transactions of {instance}");
    if error.rdkafka_error_code() == Some(RDKafkaErrorCode::TransactionalIdAuthorizationFailed) {
        let id = AclResource::TransactionalId(instance.to_owned());
        return BusError::new(Remedy::Stop, what, missing_right_message(who, AclOperation::Write, &id));
    }
    from_error(what, error, Remedy::Restart)
}

/// Writes everything of a step but its commit.
fn fill_transaction(
    producer: &Arc<BaseProducer<KafkaContext>>,
    context: &KafkaContext,
    step: &CommitStep,
    positions: &TopicPartitionList,
    fetcher: &Fetcher,
    what: &str,
) -> Result<()> {
    let deadline = Instant::now() + TRANSACTION_TIMEOUT;
    let late = || BusError::new(Remedy::Restart, what, "the broker did not take the outputs in time; they were taken back");
    for (number, output) in step.outputs.iter().enumerate() {
        if number.is_multiple_of(LOOK_EVERY) {
            // Delivered records take memory until their reports are read.
            producer.poll(Duration::ZERO);
        }
        let mut begun = None;
        while !hand_over(producer, output).map_err(|error| from_error(what, &error, Remedy::Restart))? {
            let now = Instant::now();
            if now >= deadline {
                return Err(late());
            }
            serve_deliveries(producer, *begun.get_or_insert(now));
        }
    }
    if !wait_until_delivered(producer, deadline) {
        return Err(late());
    }
    if let Some(error) = context.take_failure(|| what.to_owned(), || None, Remedy::Restart) {
        return Err(error);
    }
    crate::chaos::reach("step.filled");
    if positions.count() > 0 {
        let membership = fetcher
            .consumer()
            .group_metadata()
            .ok_or_else(|| BusError::new(Remedy::Restart, what, "the member is not in its group any more"))?;
        // A member whose session ran out, with the broker away for longer, has no id until it has joined again; the broker
        // answers as if a newer member had fenced it. Checked after the id, because it is lost together with the partitions.
        if fetcher.consumer().assignment_lost() {
            return Err(BusError::new(Remedy::Restart, what, GIVEN_UP));
        }
        send_positions(producer, positions, membership).ok_or_else(late)?.map_err(|error| match error {
            KafkaError::Transaction(error) => positions_error(what, context.client_name(), positions, &error),
            error => from_error(what, &error, Remedy::Restart),
        })?;
    }
    crate::chaos::reach("step.ready");
    Ok(())
}

/// Sends positions. Returns `None` if no answer came. Then nothing else can be asked of this producer: the library (2.12) waits
/// without end if the group's coordinator is lost at the wrong moment.
fn send_positions(
    producer: &Arc<BaseProducer<KafkaContext>>,
    positions: &TopicPartitionList,
    membership: ConsumerGroupMetadata,
) -> Option<KafkaResult<()>> {
    let (producer, positions) = (Arc::clone(producer), positions.clone());
    answer_within(TRANSACTION_TIMEOUT + DRAIN_TIMEOUT, move || {
        producer.send_offsets_to_transaction(&positions, &membership, TRANSACTION_TIMEOUT)
    })
}

/// Sets positions outside of transactions. Returns `None` if no answer came within [`ANSWER`]: the library (2.12) asks again and
/// again for as long as the broker is silent.
fn set_positions(consumer: &Arc<BaseConsumer<KafkaContext>>, positions: &TopicPartitionList) -> Option<KafkaResult<()>> {
    let (consumer, positions) = (Arc::clone(consumer), positions.clone());
    answer_within(ANSWER, move || consumer.commit(&positions, CommitMode::Sync))
}

/// Makes a request that has no limit of its own. Returns `None` if it was not answered in time. Then it still goes on, on a thread
/// that is left behind.
fn answer_within<T: Send + 'static>(limit: Duration, request: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // The receiver may have timed out.
    let asking = eadt_tasks::KAFKA_POSITIONS.thread(move || drop(sender.send(request())));
    asking.is_ok().then(|| receiver.recv_timeout(limit).ok()).flatten()
}

/// Reads all events that the library has emitted so far. They are on a queue, and a lost connection is known only once they were
/// read. Returns false if more events keep coming for longer than [`DRAIN_TIMEOUT`].
fn drain_events(producer: &BaseProducer<KafkaContext>) -> bool {
    let begun = Instant::now();
    // Events that were not read yet count as in flight.
    while producer.in_flight_count() > 0 {
        if begun.elapsed() > DRAIN_TIMEOUT {
            return false;
        }
        producer.poll(Duration::ZERO);
    }
    true
}

fn abort(producer: &BaseProducer<KafkaContext>) -> Result<(), KafkaError> {
    let begun = Instant::now();
    loop {
        producer.poll(Duration::ZERO);
        match producer.abort_transaction(ABORT_TIMEOUT) {
            Err(KafkaError::Transaction(error)) if error.is_retriable() && begun.elapsed() < ABORT_TIMEOUT => {}
            outcome => return outcome,
        }
    }
}

/// Makes the error of a refused request to set positions. It requires the right to read the topics.
fn positions_error(what: &str, who: &str, positions: &TopicPartitionList, error: &RDKafkaError) -> BusError {
    let detail = error.to_string();
    let elements = positions.elements();
    match elements.iter().map(rdkafka::topic_partition_list::TopicPartitionListElem::topic).find(|topic| detail.contains(topic)) {
        Some(topic) if error.code() == RDKafkaErrorCode::TopicAuthorizationFailed => BusError::new(
            Remedy::Stop,
            what,
            missing_right_message(who, AclOperation::Read, &AclResource::Topic(topic.to_owned())),
        ),
        _ => transaction_error(what, error),
    }
}

fn transaction_error(what: &str, error: &RDKafkaError) -> BusError {
    from_code(what, error.code(), &error.to_string(), Remedy::Restart)
}

impl PartitionReader for KafkaMember {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        self.check_alive()?;
        if std::mem::take(&mut self.leaving) {
            self.fetcher.clear()?;
        }
        let before = into.len();
        let rebalance = self.fetcher.poll(max, timeout, into).map_err(|error| self.join_again_after_outage(error))?;
        let received = rebalance.is_some() || self.fetcher.is_of_library() && into.len() > before;
        if self.watch.is_replacement_due(self.fetcher.consumer(), received) {
            return Err(BusError::new(Remedy::Restart, format!("reading for group {}", self.group), CLIENT_UNANSWERED));
        }
        match rebalance {
            None => {}
            Some(RebalanceEvent::Assign(partitions)) => {
                self.check_assigned(&partitions)?;
                self.fetcher.set_partitions(&partitions)?;
                into.push(PollEvent::Assigned(partitions));
            }
            Some(RebalanceEvent::Revoke(partitions)) if self.fetcher.consumer().assignment_lost() => {
                self.fetcher.clear()?;
                into.push(PollEvent::Lost(partitions));
            }
            Some(RebalanceEvent::Revoke(partitions)) => {
                self.leaving = true;
                into.push(PollEvent::Revoked(partitions));
            }
        }
        Ok(())
    }

    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.fetcher.pause(at)
    }

    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.fetcher.resume(at)
    }

    fn accept_batches(&mut self) {
        self.fetcher.accept_batches();
    }

    fn silent_broker(&self) -> Option<Duration> {
        self.fetcher.silent_broker()
    }
}

impl GroupMember for KafkaMember {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        self.fetcher.start(at, offset)
    }

    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        super::committed(self.fetcher.consumer(), &self.group, of)
    }

    fn end_hanging(&mut self, outputs: &[TopicPartition], with_positions: bool, end: TransactionEnd) -> Result<()> {
        self.check_alive()?;
        if self.transactional.is_none() {
            return Ok(());
        }
        // A replaced member must not take the id from its successor. It learns of that with a heartbeat.
        let (mut begun, mut last) = (Instant::now(), Instant::now());
        loop {
            if let Some((code, detail)) = self.fetcher.consumer().client().fatal_error() {
                return Err(self.join_again_after_outage(from_code(self.description(), code, &detail, Remedy::Restart)));
            }
            if begun.elapsed() >= HEARTBEAT {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
            // A process that was paused had no heartbeat meanwhile.
            if last.elapsed() > Duration::from_secs(1) {
                begun = Instant::now();
            }
            last = Instant::now();
        }
        let Some(transactional) = &mut self.transactional else { return Ok(()) };
        // The request takes the id from the producer.
        transactional.stray = true;
        let group = with_positions.then_some(self.group.as_str());
        let parts = HangingParts { outputs, group, is_committed: end == TransactionEnd::Commit };
        transactional.bus.end_hanging_transaction(&transactional.instance, parts).map_err(|(error, is_late)| {
            transactional.is_id_unsure |= is_late;
            error
        })
    }

    fn commit(&mut self, step: &CommitStep) -> Result<()> {
        self.check_alive()?;
        if step.outputs.is_empty() && step.positions.is_empty() {
            return Ok(());
        }
        let mut positions = TopicPartitionList::with_capacity(step.positions.len());
        for (at, offset) in &step.positions {
            positions
                .add_partition_offset(&at.topic, at.partition, Offset::Offset(*offset))
                .map_err(|error| from_error(format!("{}, {at}", self.description()), &error, Remedy::Stop))?;
        }
        if self.transactional.is_some() {
            return self.commit_transaction(step, &positions).map_err(|error| self.join_again_after_outage(error));
        }
        if !step.outputs.is_empty() {
            return Err(BusError::new(
                Remedy::Stop,
                self.description(),
                "a member that is not transactional commits positions only, never outputs",
            ));
        }
        self.commit_positions(&positions).map_err(|error| self.join_again_after_outage(error))
    }
}

impl Drop for KafkaMember {
    fn drop(&mut self) {
        if let Err(error) = self.fetcher.clear() {
            tracing::debug!(%error, "leaving group {}", self.group);
        }
        // A member with a name keeps its place for its next life.
        if self.leaves {
            self.fetcher.consumer().unsubscribe();
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::types::RDKafkaApiKey as ApiKey;
    use rdkafka::types::RDKafkaRespErr::*;

    use super::super::mock::{MockBrokers, at, describe_items, options, outgoing, poll, step, until};
    use super::*;
    use crate::Bus;

    fn producer(member: &KafkaMember) -> *const BaseProducer<KafkaContext> {
        Arc::as_ptr(&member.transactional.as_ref().unwrap().producer)
    }

    fn high(brokers: &MockBrokers) -> i64 {
        brokers.bus.watermarks(&TopicPartition { topic: "out".into(), partition: 0 }).unwrap().high
    }

    #[test]
    fn a_request_that_nobody_answers_is_left_behind() {
        let (answer, answered) = mpsc::sync_channel(0);
        let (end, ended) = mpsc::sync_channel(1);
        let request = move || {
            let answer: i32 = answered.recv().unwrap();
            end.send(()).unwrap();
            answer
        };
        assert_eq!(answer_within(Duration::ZERO, request), None);
        answer.send(1).unwrap();
        ended.recv().unwrap();
        assert_eq!(answer_within(ANSWER, || 2), Some(2));
    }

    #[test]
    fn while_nothing_goes_wrong_every_step_has_the_same_producer() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        let first = producer(&member);
        for position in 1..4 {
            member.commit(&step(position)).unwrap();
            assert!(!member.transactional.as_ref().unwrap().stray && !member.is_fenced());
            assert_eq!(producer(&member), first);
        }
        // Outputs alone, positions alone, and nothing at all.
        member.commit(&CommitStep { positions: Vec::new(), ..step(9) }).unwrap();
        member.commit(&CommitStep { outputs: Vec::new(), ..step(4) }).unwrap();
        member.commit(&CommitStep { outputs: Vec::new(), positions: Vec::new() }).unwrap();
        assert_eq!(high(&brokers), 4);
        assert_eq!(format!("{member:?}"), "KafkaMember { group: \"group\", .. }");
    }

    #[test]
    fn a_step_of_more_than_the_buffer_takes_waits_for_room() {
        let brokers = MockBrokers::start_with(&[("queue.buffering.max.messages", "10")]);
        let mut member = brokers.transactional();
        let outputs = (0..100).map(|number| outgoing("out", 0, &number.to_string())).collect();
        member.commit(&CommitStep { outputs, ..step(1) }).unwrap();
        assert_eq!(high(&brokers), 100);
    }

    #[test]
    fn what_brokers_mend_by_themselves_is_not_reported() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        for (position, (api, answers)) in (1..).zip([
            (ApiKey::EndTxn, vec![RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS, RD_KAFKA_RESP_ERR_NOT_COORDINATOR]),
            (ApiKey::EndTxn, vec![RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS]),
            (ApiKey::AddOffsetsToTxn, vec![RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE]),
            (ApiKey::TxnOffsetCommit, vec![RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS]),
            (ApiKey::Produce, vec![RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION]),
        ]) {
            brokers.cluster.request_errors(api, &answers);
            member.commit(&step(position)).unwrap();
            assert_eq!(high(&brokers), position, "{answers:?}");
        }
    }

    #[test]
    fn a_step_that_was_refused_before_its_commit_is_taken_back_and_the_next_one_has_a_fresh_producer() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        for (position, (api, answer, remedy, detail)) in (1..).zip([
            (ApiKey::Produce, RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, Remedy::Stop, "a record is larger than the topic allows"),
            (ApiKey::Produce, RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, Remedy::Stop, "lacks the right Write on topic out"),
            (ApiKey::TxnOffsetCommit, RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED, Remedy::Stop, "denied by the broker"),
            (
                ApiKey::TxnOffsetCommit,
                RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED,
                Remedy::Stop,
                "lacks the right Read on topic in",
            ),
            (ApiKey::TxnOffsetCommit, RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION, Remedy::Restart, ""),
            (ApiKey::TxnOffsetCommit, RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID, Remedy::Restart, ""),
            // Here the commit itself was refused for certain.
            (ApiKey::EndTxn, RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID, Remedy::Restart, ""),
            (ApiKey::EndTxn, RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING, Remedy::Restart, ""),
        ]) {
            let first = producer(&member);
            brokers.cluster.request_errors(api, &[answer]);
            let error = member.commit(&step(100)).unwrap_err();
            assert_eq!((error.remedy, error.what.as_str()), (remedy, "committing for group group"), "{answer:?}: {error}");
            assert!(error.detail.contains(detail), "{answer:?}: {error}");
            assert_eq!(producer(&member), first);
            member.commit(&step(position)).unwrap();
            assert_ne!(producer(&member), first, "{answer:?}");
        }
    }

    #[test]
    fn a_connection_that_was_lost_during_a_step_gives_the_next_one_a_fresh_producer() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        member.commit(&step(1)).unwrap();
        let first = producer(&member);
        // The library asks again by itself, and all is well; the first request may be on its way still.
        brokers.cluster.request_errors(ApiKey::EndTxn, &[RD_KAFKA_RESP_ERR__TRANSPORT]);
        member.commit(&step(2)).unwrap();
        assert_eq!(producer(&member), first);
        member.commit(&step(3)).unwrap();
        let second = producer(&member);
        assert_ne!(second, first);
        member.commit(&step(4)).unwrap();
        assert_eq!((producer(&member), high(&brokers)), (second, 4));
    }

    #[test]
    fn after_an_answer_that_leaves_the_outcome_open_nothing_more_is_taken_or_read() {
        for answer in [RD_KAFKA_RESP_ERR_PRODUCER_FENCED, RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED] {
            let brokers = MockBrokers::start();
            let mut member = brokers.transactional();
            brokers.cluster.request_errors(ApiKey::EndTxn, &[answer]);
            let error = member.commit(&step(1)).unwrap_err();
            assert_eq!(error.remedy, Remedy::Stop, "{error}");
            let again = member.commit(&step(1)).unwrap_err();
            assert_eq!((again.remedy, again.what.as_str()), (Remedy::Restart, "committing for group group"));
            assert!(again.detail.starts_with("the outcome of an earlier step is open: "), "{again}");
            let mut polled = Vec::new();
            assert_eq!(member.poll(1, Duration::ZERO, &mut polled).unwrap_err().detail, again.detail);
        }
    }

    #[test]
    fn a_producer_that_was_fenced_while_it_wrote_can_be_used_no_more() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        brokers.cluster.request_errors(ApiKey::Produce, &[RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH]);
        brokers.cluster.request_errors(ApiKey::AddPartitionsToTxn, &[RD_KAFKA_RESP_ERR_PRODUCER_FENCED]);
        let error = member.commit(&step(1)).unwrap_err();
        assert!(error.is_fenced(), "{error}");
        assert!(member.is_fenced());
        assert!(member.commit(&step(1)).unwrap_err().detail.starts_with("the outcome of an earlier step is open: "));
    }

    #[test]
    fn an_error_names_the_right_that_a_transactional_id_lacks() {
        let brokers = MockBrokers::start();
        let join = || KafkaMember::join(&brokers.bus, &options(Membership::Transactional("instance".into()))).unwrap_err();
        let answer = RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
        brokers.cluster.request_errors(ApiKey::InitProducerId, &[answer]);
        let error = join();
        assert_eq!((error.remedy, error.what.as_str()), (Remedy::Stop, "starting transactions of instance"));
        assert!(error.detail.contains("lacks the right Write on transactional id instance"), "{error}");
        brokers.cluster.request_errors(ApiKey::InitProducerId, &[RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED]);
        let error = join();
        assert!(error.remedy == Remedy::Stop && !error.detail.contains("lacks the right"), "{error}");
    }

    #[test]
    fn what_cannot_be_taken_back_in_time_is_left_to_the_next_producer_of_the_name() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        brokers.cluster.request_errors(ApiKey::Produce, &[RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE]);
        brokers.cluster.request_errors(ApiKey::EndTxn, &vec![RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE; 10_000]);
        let begun = Instant::now();
        let error = member.commit(&step(1)).unwrap_err();
        assert!(begun.elapsed() >= ABORT_TIMEOUT, "it was tried");
        assert!(error.detail.starts_with("a record is larger"), "what went wrong first: {error}");
        assert!(member.commit(&step(1)).unwrap_err().detail.starts_with("the outcome of an earlier step is open: "));
    }

    #[test]
    fn only_a_newer_member_of_the_name_replaces_one() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        assert_eq!(describe_items(&poll(&mut member, 2)).len(), 2);
        // Nothing was committed yet, so that nothing can be asked: heartbeats show it.
        assert!(!member.is_replaced());
        member.commit_positions(&one_position()).unwrap();
        assert!(!member.is_replaced());
        assert_eq!(member.committed(&[at(0)]).unwrap(), [Some(1)], "asking changes nothing");
        // Neither an answer of another kind …
        brokers.cluster.request_errors(ApiKey::OffsetCommit, &[RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED]);
        assert!(!member.is_replaced());
        brokers.cluster.request_errors(ApiKey::OffsetCommit, &[RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID]);
        assert!(member.is_replaced());
    }

    #[test]
    fn a_member_that_a_heartbeat_reported_as_replaced_asks_nobody() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        member.commit(&step(1)).unwrap();
        brokers.cluster.request_errors(ApiKey::Heartbeat, &[RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID]);
        let mut polled = Vec::new();
        until(|| member.poll(1, Duration::from_millis(50), &mut polled).is_err());
        assert!(member.is_replaced());
        let error = member.commit_positions(&one_position()).unwrap_err();
        assert!(error.is_fenced(), "{error}");
    }

    #[test]
    fn a_member_that_is_fenced_shortly_after_an_outage_joins_again_and_any_other_ends() {
        let brokers = MockBrokers::start();
        for (has_outage, remedy) in [(true, Remedy::Restart), (false, Remedy::Stop)] {
            let mut member = brokers.transactional();
            if has_outage {
                member.watch.remember_outage();
            }
            brokers.cluster.request_errors(ApiKey::Heartbeat, &[RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID]);
            let (mut polled, mut fenced) = (Vec::new(), None);
            until(|| {
                fenced = member.poll(1, Duration::from_millis(50), &mut polled).err();
                fenced.is_some()
            });
            let error = fenced.unwrap();
            assert!(error.remedy == remedy && error.detail.starts_with("fenced: "), "{error}");
            assert_eq!(error.detail.contains("joins once more"), has_outage, "{error}");
        }
    }

    #[test]
    fn a_member_that_can_ask_nobody_waits_for_a_heartbeat_to_answer() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        assert_eq!(describe_items(&poll(&mut member, 2)).len(), 2);
        brokers.cluster.request_errors(ApiKey::Heartbeat, &[RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID]);
        assert!(member.is_replaced());
    }

    #[test]
    fn a_member_that_its_group_has_given_up_is_not_taken_for_a_replaced_one() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        assert_eq!(describe_items(&poll(&mut member, 2)).len(), 2);
        member.commit_positions(&one_position()).unwrap();
        brokers.cluster.request_errors(ApiKey::Heartbeat, &[RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID]);
        until(|| {
            std::thread::sleep(Duration::from_millis(20));
            member.fetcher.consumer().assignment_lost()
        });
        // A group answers unknown members like this: as if a newer member had come.
        brokers.cluster.request_errors(ApiKey::OffsetCommit, &[RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID]);
        assert!(!member.is_replaced());
        let error = member.commit_positions(&one_position()).unwrap_err();
        assert!(error.remedy == Remedy::Restart && error.detail == GIVEN_UP, "{error}");
    }

    #[test]
    fn partitions_that_the_group_gave_away_without_asking_are_lost_and_not_revoked() {
        let brokers = MockBrokers::start();
        let mut member = brokers.transactional();
        brokers.cluster.request_errors(ApiKey::Heartbeat, &[RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID]);
        let mut polled = Vec::new();
        until(|| {
            member.poll(10, Duration::from_millis(50), &mut polled).unwrap();
            polled.iter().any(|polled| matches!(polled, PollEvent::Lost(_) | PollEvent::Revoked(_)))
        });
        assert!(polled.contains(&PollEvent::Lost(vec![at(0), at(1)])), "{polled:?}");
    }

    #[test]
    fn a_fence_after_the_time_of_a_transaction_may_be_its_age() {
        let error = |remedy| BusError::new(remedy, "committing", "fenced");
        let (short, long) = (TRANSACTION_TIMEOUT.mul_f64(0.99), TRANSACTION_TIMEOUT);
        assert!(is_taken_back(&error(Remedy::Stop), true, long));
        assert!(!is_taken_back(&error(Remedy::Stop), true, short));
        assert!(!is_taken_back(&error(Remedy::Stop), false, long));
        assert!(!is_taken_back(&error(Remedy::Restart), true, long));
    }

    fn one_position() -> TopicPartitionList {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset("in", 0, Offset::Offset(1)).unwrap();
        list
    }

    #[test]
    fn a_paused_partition_of_a_member_waits_and_goes_on() {
        let brokers = MockBrokers::start();
        brokers.append("in", 0, 0..2);
        brokers.append("in", 1, 0..1);
        let mut member = brokers.transactional();
        member.pause(&[at(0)]).unwrap();
        let mut polled = describe_items(&poll(&mut member, 2));
        polled.sort();
        assert_eq!(polled, ["in-1/0", "in-1/e1"]);
        member.resume(&[at(0)]).unwrap();
        assert_eq!(describe_items(&poll(&mut member, 3)), ["in-0/0", "in-0/1", "in-0/e2"]);
    }

    #[test]
    fn a_member_that_reads_something_else_has_another_name_in_the_group() {
        let layout = |topics: &[(&str, i32)]| -> Vec<(Arc<str>, i32)> {
            topics.iter().map(|(topic, partitions)| (Arc::from(*topic), *partitions)).collect()
        };
        let one = member_name("archiver", &layout(&[("a.x", 4), ("a.y", 4)]));
        assert_eq!(one, member_name("archiver", &layout(&[("a.x", 4), ("a.y", 4)])));
        assert!(one.starts_with("archiver-") && one.len() == "archiver-".len() + 8, "{one}");
        for other in
            [&[("b.x", 4), ("b.y", 4)][..], &[("a.x", 4), ("a.y", 8)], &[("a.x", 4)], &[("a.x", 4), ("a.y", 4), ("a.z", 4)]]
        {
            assert_ne!(one, member_name("archiver", &layout(other)), "{other:?}");
        }
        // The producer's name stays: it is what fences an older process.
        assert_eq!(membership(&Membership::Dynamic, &layout(&[("a.x", 4)])), Membership::Dynamic);
    }

    #[test]
    fn partitions_of_a_topic_that_was_not_asked_for_are_not_taken() {
        let brokers = MockBrokers::start();
        let member = brokers.member(Membership::Dynamic);
        let foreign = TopicPartition { topic: "other".into(), partition: 0 };
        assert!(member.check_assigned(&[at(0), at(1)]).is_ok());
        let error = member.check_assigned(&[at(0), foreign]).unwrap_err();
        assert_eq!(error.remedy, Remedy::Restart);
        assert!(error.detail.contains("other"), "{}", error.detail);
    }
}
