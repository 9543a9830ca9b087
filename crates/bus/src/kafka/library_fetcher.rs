//! Partitions being read by the client library: positions, pauses and ends, over the consumer's one queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use super::context::KafkaContext;
use super::errors::from_error;
use super::events::{ConsumerEvent, ConsumerQueue};
use super::fetcher::{RebalanceEvent, group_failure, lost_position};
use crate::{BusError, PollEvent, Remedy, Result, TopicPartition};

/// Bytes that a paused partition may hold here before it is paused at the broker, too. A pause at the broker costs fetching
/// again.
const HOLD_BYTES: usize = 2 << 20;
/// Asking for the end of a partition that was resumed.
const ASK: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct LibraryPartition {
    at: TopicPartition,
    /// The next offset expected from the broker; `None` if not started.
    next: Option<i64>,
    paused: bool,
    /// Paused at the broker as well.
    stopped: bool,
    /// Position of the last reported end.
    reported_end: Option<i64>,
    /// It was resumed: that end is due again once the queue has nothing more of it.
    is_end_due: bool,
    /// Came while paused.
    held: VecDeque<PollEvent>,
    held_bytes: usize,
}

impl LibraryPartition {
    fn forget_held_end(&mut self) {
        if matches!(self.held.back(), Some(PollEvent::End { .. })) {
            self.held.pop_back();
        }
    }
}

#[derive(Debug)]
pub struct LibraryFetcher {
    events: ConsumerQueue,
    group: String,
    partitions: Vec<LibraryPartition>,
    /// Index of the last record's partition: records come in runs.
    last: usize,
    /// Starts not yet passed on.
    dirty: bool,
    /// Unpaused parts may hold items.
    released: bool,
}

impl LibraryFetcher {
    pub fn new(events: ConsumerQueue, group: &str) -> Self {
        Self { events, group: group.to_owned(), partitions: Vec::new(), last: 0, dirty: false, released: false }
    }

    pub fn positions(&self) -> impl Iterator<Item = (&TopicPartition, Option<i64>)> {
        self.partitions.iter().map(|part| (&part.at, part.next))
    }

    pub fn consumer(&self) -> &Arc<BaseConsumer<KafkaContext>> {
        self.events.consumer()
    }

    /// Replaces the partitions; nothing of them is delivered before [`Self::start`].
    pub fn set_partitions(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        let part = |at: &TopicPartition| LibraryPartition {
            at: at.clone(),
            next: None,
            paused: false,
            stopped: false,
            reported_end: None,
            is_end_due: false,
            held: VecDeque::new(),
            held_bytes: 0,
        };
        self.partitions = partitions.iter().map(part).collect();
        (self.last, self.dirty, self.released) = (0, false, false);
        self.assign_started()
    }

    /// Gives everything away.
    pub fn clear(&mut self) -> Result<()> {
        self.partitions.clear();
        (self.last, self.dirty, self.released) = (0, false, false);
        self.consumer().unassign().map_err(|error| from_error("giving partitions away", &error, Remedy::Restart))
    }

    pub fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        let part = self.find_partition(at, "starting")?;
        part.next = Some(offset);
        (part.reported_end, part.is_end_due) = (None, false);
        part.held.clear();
        part.held_bytes = 0;
        self.dirty = true;
        Ok(())
    }

    pub fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        for at in at {
            self.find_partition(at, "pausing")?.paused = true;
        }
        Ok(())
    }

    pub fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        for at in at {
            let part = self.find_partition(at, "resuming")?;
            if part.paused && part.reported_end.is_some() {
                // The library reports an end once, and this one may be outdated.
                part.forget_held_end();
                part.is_end_due = true;
            }
            part.paused = false;
        }
        self.released = true;
        Ok(())
    }

    fn find_partition(&mut self, at: &TopicPartition, what: &str) -> Result<&mut LibraryPartition> {
        self.partitions.iter_mut().find(|part| part.at == *at).ok_or_else(|| BusError::unassigned(what, at))
    }

    fn assign_started(&mut self) -> Result<()> {
        let mut list = TopicPartitionList::new();
        for part in &mut self.partitions {
            // The broker's pause ends with the assignment.
            part.stopped = false;
            if let Some(next) = part.next {
                list.add_partition_offset(&part.at.topic, part.at.partition, Offset::Offset(next))
                    .map_err(|error| from_error(format!("starting {} at {next}", part.at), &error, Remedy::Stop))?;
            }
        }
        self.dirty = false;
        self.consumer().assign(&list).map_err(|error| from_error("starting partitions", &error, Remedy::Restart))
    }

    /// Appends at most `max` items; a rebalance ends the call at once.
    pub fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<Option<RebalanceEvent>> {
        let (begun, before) = (Instant::now(), into.len());
        if self.dirty {
            self.assign_started()?;
        }
        if self.released {
            self.deliver_held(max, into)?;
        }
        while into.len() - before < max {
            let has_due_end = self.partitions.iter().any(|part| part.is_end_due);
            let is_urgent = into.len() > before || has_due_end;
            let wait = if is_urgent { Duration::ZERO } else { timeout.saturating_sub(begun.elapsed()) };
            let Some(event) = self.events.next(wait) else {
                if has_due_end {
                    self.report_due_ends(into);
                }
                if into.len() > before || begun.elapsed() >= timeout {
                    break;
                }
                continue;
            };
            match event {
                ConsumerEvent::Record(record) => {
                    let bytes = record.value.as_ref().map_or(0, bytes::Bytes::len) + 256;
                    let Some(part) = self.find(&record.at) else { continue };
                    // Records that were fetched before a new start, or twice around a pause.
                    if part.next.is_none_or(|next| record.offset < next) {
                        continue;
                    }
                    part.next = Some(record.offset + 1);
                    part.reported_end = None;
                    self.deliver(PollEvent::Record(record), bytes, into)?;
                }
                ConsumerEvent::End { at, position } => {
                    let Some(part) = self.find(&at) else { continue };
                    if part.next.is_none_or(|next| position < next) || part.reported_end == Some(position) {
                        continue;
                    }
                    part.next = Some(position);
                    part.reported_end = Some(position);
                    self.deliver(PollEvent::End { at, position }, 64, into)?;
                }
                ConsumerEvent::Assign(partitions) => return Ok(Some(RebalanceEvent::Assign(partitions))),
                ConsumerEvent::Revoke(partitions) => return Ok(Some(RebalanceEvent::Revoke(partitions))),
                ConsumerEvent::Failed { code, detail, fatal, at } => {
                    if let Some(error) = self.to_caller_error(code, &detail, fatal, at.as_ref()) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Finds a started part and remembers it for [`Self::deliver`].
    fn find(&mut self, at: &TopicPartition) -> Option<&mut LibraryPartition> {
        let is = |part: &LibraryPartition| part.at.partition == at.partition && part.at.topic == at.topic;
        if !self.partitions.get(self.last).is_some_and(is) {
            self.last = self.partitions.iter().position(is)?;
        }
        self.partitions.get_mut(self.last)
    }

    fn deliver(&mut self, item: PollEvent, bytes: usize, into: &mut Vec<PollEvent>) -> Result<()> {
        let part = &mut self.partitions[self.last];
        if !part.paused && part.held.is_empty() {
            into.push(item);
            return Ok(());
        }
        // An end that records follow is none.
        part.forget_held_end();
        part.held.push_back(item);
        part.held_bytes += bytes;
        if part.held_bytes > HOLD_BYTES && !part.stopped {
            part.stopped = true;
            let list = single_partition_list(&part.at);
            self.consumer().pause(&list).map_err(|error| from_error("pausing", &error, Remedy::Restart))?;
        }
        Ok(())
    }

    /// Reports the ends of resumed partitions that have nothing more. If they have, the library reports their end itself.
    fn report_due_ends(&mut self, into: &mut Vec<PollEvent>) {
        let consumer = self.events.consumer();
        for part in self.partitions.iter_mut().filter(|part| part.is_end_due && !part.paused && part.held.is_empty()) {
            let Some(position) = part.reported_end else {
                part.is_end_due = false;
                continue;
            };
            // Without an answer it is asked again at the next poll.
            if let Ok((_, end)) = consumer.fetch_watermarks(&part.at.topic, part.at.partition, ASK) {
                part.is_end_due = false;
                into.extend((end <= position).then(|| PollEvent::End { at: part.at.clone(), position }));
            }
        }
    }

    /// Delivers the records held during a pause.
    fn deliver_held(&mut self, max: usize, into: &mut Vec<PollEvent>) -> Result<()> {
        let end = into.len() + max;
        let mut emptied = Vec::new();
        for part in self.partitions.iter_mut().filter(|part| !part.paused) {
            while into.len() < end
                && let Some(item) = part.held.pop_front()
            {
                into.push(item);
            }
            if part.held.is_empty() {
                part.held_bytes = 0;
                if part.stopped {
                    part.stopped = false;
                    emptied.push(single_partition_list(&part.at));
                }
            }
        }
        self.released = self.partitions.iter().any(|part| !part.paused && !part.held.is_empty());
        for list in emptied {
            self.consumer().resume(&list).map_err(|error| from_error("resuming", &error, Remedy::Restart))?;
        }
        Ok(())
    }
}

impl LibraryFetcher {
    /// Returns an error if the caller must handle it; the client library tries again after all others.
    fn to_caller_error(&self, code: Code, detail: &str, fatal: bool, at: Option<&TopicPartition>) -> Option<BusError> {
        match (code, at) {
            (Code::AutoOffsetReset, Some(at)) => {
                let position = self.partitions.iter().find(|part| part.at == *at).and_then(|part| part.next).unwrap_or(-1);
                Some(lost_position(self.consumer(), at, position, detail))
            }
            _ => group_failure(self.consumer(), &self.group, code, detail, fatal, at),
        }
    }
}

fn single_partition_list(at: &TopicPartition) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(&at.topic, at.partition);
    list
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use eadt_schemas::EventTime;
    use rdkafka::config::{ClientConfig, FromClientConfigAndContext};
    use rdkafka::consumer::BaseConsumer;

    use super::super::context::KafkaContext;
    use super::super::fetcher::Fetcher;
    use super::super::mock::{self, MockBrokers, at, describe_items};
    use super::*;
    use crate::conformance::send_all;
    use crate::{Bus, ConsumerRecord, IsolationLevel, Membership, StartOffset};

    /// Returns a fetcher of a consumer that gets no answer.
    fn fetcher(partitions: &[i32]) -> LibraryFetcher {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1").set("group.id", "group");
        let consumer = BaseConsumer::from_config_and_context(&config, KafkaContext::new("User:eadt".into())).unwrap();
        let mut fetcher = LibraryFetcher::new(ConsumerQueue::new(consumer).unwrap(), "group");
        fetcher.set_partitions(&partitions.iter().map(|partition| at(*partition)).collect::<Vec<_>>()).unwrap();
        for partition in partitions {
            fetcher.start(&at(*partition), 0).unwrap();
        }
        fetcher
    }

    fn record(partition: i32, offset: i64, bytes: usize) -> PollEvent {
        let stamp = EventTime::from_millis(0);
        let value = Some(Bytes::from(vec![b'x'; bytes]));
        PollEvent::Record(ConsumerRecord { at: at(partition), offset, stamp, key: None, value, headers: Vec::new().into() })
    }

    /// Returns a fetcher of these brokers' partitions, none of which is started.
    fn reading(brokers: &MockBrokers, partitions: &[i32]) -> LibraryFetcher {
        let Fetcher::Library(mut fetcher) =
            brokers.bus.fetcher("reader", &Membership::Dynamic, IsolationLevel::ReadCommitted).unwrap()
        else {
            panic!("the path is another one")
        };
        fetcher.set_partitions(&partitions.iter().map(|partition| at(*partition)).collect::<Vec<_>>()).unwrap();
        *fetcher
    }

    #[test]
    fn of_what_goes_wrong_a_reader_returns_what_its_caller_can_do_something_about() {
        let fetcher = fetcher(&[0]);
        let detail = |code, fatal, at: Option<&TopicPartition>| {
            let error = fetcher.to_caller_error(code, "the detail", fatal, at)?;
            Some((error.remedy, error.what, error.detail))
        };
        let one = at(0);
        let lacks =
            |resource: &str| format!("denied: User:eadt lacks the right Read on {resource}: grant it, see `eadt topics acls`");
        for (code, at, what, expected) in [
            (Code::TopicAuthorizationFailed, Some(&one), "reading in-0", lacks("topic in")),
            (Code::GroupAuthorizationFailed, None, "reading", lacks("group group")),
            (Code::GroupAuthorizationFailed, Some(&one), "reading in-0", lacks("group group")),
        ] {
            assert_eq!(detail(code, false, at), Some((Remedy::Stop, what.to_owned(), expected)), "{code:?}");
        }
        for (code, fatal, remedy, expected) in [
            (Code::TopicAuthorizationFailed, false, Remedy::Stop, "denied by the broker (the detail)"),
            (Code::SaslAuthenticationFailed, false, Remedy::Stop, "denied by the broker (the detail)"),
            (Code::FencedInstanceId, false, Remedy::Stop, "fenced: "),
            (Code::Fail, true, Remedy::Stop, "the detail"),
            (Code::PollExceeded, false, Remedy::Restart, "the member was away for longer than max.poll.interval.ms"),
            (Code::UnknownTopicOrPartition, false, Remedy::Retry, "the topic or partition does not exist (the detail)"),
            (Code::UnknownTopic, false, Remedy::Retry, "the topic or partition does not exist (the detail)"),
            (Code::UnknownPartition, false, Remedy::Retry, "the partition does not exist, or all its brokers are unavailable"),
            (Code::AutoOffsetReset, false, Remedy::Stop, "retention has deleted what was there (the detail)"),
        ] {
            let (found, what, detail) = detail(code, fatal, None).unwrap_or_else(|| panic!("{code:?}"));
            assert_eq!((found, what.as_str()), (remedy, "reading"), "{code:?}");
            assert!(detail.starts_with(expected), "{code:?}: {detail}");
        }
        // The library tries again by itself.
        for code in [Code::BrokerTransportFailure, Code::AllBrokersDown, Code::Fail] {
            assert_eq!(detail(code, false, Some(&one)), None, "{code:?}");
        }
    }

    #[test]
    fn what_came_during_a_pause_is_handed_out_after_it_in_order_and_no_more_than_asked_for() {
        let mut fetcher = fetcher(&[0, 1]);
        let mut into = Vec::new();
        let deliver = |fetcher: &mut LibraryFetcher, partition, offset, into: &mut Vec<PollEvent>| {
            fetcher.find(&at(partition)).unwrap();
            fetcher.deliver(record(partition, offset, 1), 1, into).unwrap();
        };
        fetcher.pause(&[at(0)]).unwrap();
        for offset in 0..5 {
            deliver(&mut fetcher, 0, offset, &mut into);
            deliver(&mut fetcher, 1, offset, &mut into);
        }
        assert_eq!(describe_items(&into), ["in-1/0", "in-1/1", "in-1/2", "in-1/3", "in-1/4"]);
        into.clear();
        fetcher.deliver_held(100, &mut into).unwrap();
        assert!(into.is_empty(), "it is paused");
        fetcher.resume(&[at(0)]).unwrap();
        into.push(record(1, 5, 1));
        fetcher.deliver_held(2, &mut into).unwrap();
        assert_eq!(describe_items(&into), ["in-1/5", "in-0/0", "in-0/1"]);
        assert!(fetcher.released);
        // Later records wait for their turn.
        deliver(&mut fetcher, 0, 5, &mut into);
        into.clear();
        fetcher.deliver_held(100, &mut into).unwrap();
        assert_eq!(describe_items(&into), ["in-0/2", "in-0/3", "in-0/4", "in-0/5"]);
        assert!(!fetcher.released);
        into.clear();
        deliver(&mut fetcher, 0, 6, &mut into);
        assert_eq!(describe_items(&into), ["in-0/6"]);
        assert_eq!(fetcher.partitions[0].held_bytes, 0);
        assert_eq!(single_partition_list(&at(0)).elements_for_topic("in").len(), 1);
        assert_eq!(format!("{:?}", fetcher.events), "ConsumerQueue { topics: [], .. }");
    }

    #[test]
    fn a_pause_holds_so_much_before_the_broker_is_asked_to_pause_too() {
        let mut fetcher = fetcher(&[0]);
        let mut into = Vec::new();
        fetcher.pause(&[at(0)]).unwrap();
        fetcher.find(&at(0)).unwrap();
        fetcher.deliver(record(0, 0, 1), HOLD_BYTES - 1, &mut into).unwrap();
        fetcher.deliver(record(0, 1, 1), 1, &mut into).unwrap();
        assert!(!fetcher.partitions[0].stopped, "it is full, and no more");
        fetcher.deliver(record(0, 2, 1), 1, &mut into).unwrap();
        assert!(fetcher.partitions[0].stopped);
        fetcher.resume(&[at(0)]).unwrap();
        fetcher.deliver_held(2, &mut into).unwrap();
        assert!(fetcher.partitions[0].stopped, "one is held still");
        fetcher.deliver_held(2, &mut into).unwrap();
        assert_eq!((into.len(), fetcher.partitions[0].stopped, fetcher.partitions[0].held_bytes), (3, false, 0));
        // An assignment ends the broker's pause, and a start drops the held records.
        fetcher.pause(&[at(0)]).unwrap();
        fetcher.deliver(record(0, 3, 1), HOLD_BYTES + 1, &mut into).unwrap();
        fetcher.start(&at(0), 3).unwrap();
        fetcher.assign_started().unwrap();
        let LibraryPartition { stopped, held_bytes, .. } = fetcher.partitions[0];
        assert_eq!((stopped, held_bytes, fetcher.partitions[0].held.len()), (false, 0, 0));
    }

    #[test]
    fn only_what_is_assigned_can_be_started_paused_and_resumed() {
        let mut fetcher = fetcher(&[0]);
        for (error, doing) in [
            (fetcher.start(&at(1), 0).unwrap_err(), "starting"),
            (fetcher.pause(&[at(1)]).unwrap_err(), "pausing"),
            (fetcher.resume(&[at(1)]).unwrap_err(), "resuming"),
        ] {
            assert_eq!((error.remedy, error.to_string()), (Remedy::Stop, format!("{doing} in-1: it is not assigned here")));
        }
    }

    #[test]
    fn a_poll_appends_as_many_as_asked_for_to_what_is_there() {
        let brokers = MockBrokers::start();
        brokers.append("in", 0, 0..10);
        let mut reader = brokers.reader();
        let mut polled = Vec::new();
        for most in [1, 3, 2] {
            let before = polled.len();
            reader.poll(most, mock::WAIT, &mut polled).unwrap();
            assert!((1..=most).contains(&(polled.len() - before)), "{most}: {}", polled.len());
        }
        polled.extend(mock::poll(&mut *reader, 11 - polled.len()));
        let all: Vec<String> = (0..10).map(|offset| format!("in-0/{offset}")).chain(["in-0/e10".to_owned()]).collect();
        assert_eq!(describe_items(&polled), all);
    }

    #[test]
    fn a_poll_waits_for_the_first_record_and_for_no_second_one() {
        let brokers = MockBrokers::start();
        let mut reader = brokers.reader();
        assert_eq!(describe_items(&mock::poll(&mut *reader, 1)), ["in-0/e0"]);
        let bus = brokers.bus.clone();
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            send_all(&bus, &[mock::outgoing("in", 0, "late")]);
        });
        let (mut polled, begun) = (Vec::new(), Instant::now());
        reader.poll(100, mock::WAIT, &mut polled).unwrap();
        assert!(describe_items(&polled)[0] == "in-0/0" && begun.elapsed() < mock::WAIT, "{polled:?}");
        late.join().unwrap();
    }

    #[test]
    fn a_partition_that_starts_makes_no_other_one_deliver_anything_again() {
        let brokers = MockBrokers::start();
        brokers.append("in", 0, 0..3);
        brokers.append("in", 1, 0..2);
        let mut fetcher = reading(&brokers, &[0, 1]);
        let mut polled = Vec::new();
        let mut poll = |fetcher: &mut LibraryFetcher, count: usize| {
            mock::until(|| {
                assert!(fetcher.poll(100, Duration::from_millis(100), &mut polled).unwrap().is_none());
                polled.len() >= count
            });
            // Independent of the rest of the new assignment.
            fetcher.poll(100, Duration::from_secs(1), &mut polled).unwrap();
            describe_items(&std::mem::take(&mut polled))
        };
        fetcher.start(&at(0), 0).unwrap();
        let mut two = Vec::new();
        while two.len() < 2 {
            fetcher.poll(1, mock::WAIT, &mut two).unwrap();
        }
        assert_eq!(describe_items(&two), ["in-0/0", "in-0/1"]);
        fetcher.start(&at(1), 1).unwrap();
        let mut rest = poll(&mut fetcher, 4);
        rest.sort();
        assert_eq!(rest, ["in-0/2", "in-0/e3", "in-1/1", "in-1/e2"]);
        fetcher.start(&at(1), 0).unwrap();
        assert_eq!(poll(&mut fetcher, 3), ["in-1/0", "in-1/1", "in-1/e2"]);
        // A partition that starts anew reports its end again.
        fetcher.start(&at(0), 2).unwrap();
        assert_eq!(poll(&mut fetcher, 2), ["in-0/2", "in-0/e3"]);
    }

    #[test]
    fn records_of_several_topics_keep_their_own() {
        let brokers = MockBrokers::start();
        brokers.append("out", 0, 0..2);
        brokers.append("other", 0, 0..2);
        let from = ["out", "other"].map(|topic| (TopicPartition { topic: topic.into(), partition: 0 }, StartOffset::Earliest));
        let mut reader = brokers.bus.reader(&from, IsolationLevel::ReadCommitted).unwrap();
        let mut polled = describe_items(&mock::poll(&mut *reader, 6));
        polled.sort();
        assert_eq!(polled, ["other-0/0", "other-0/1", "other-0/e2", "out-0/0", "out-0/1", "out-0/e2"]);
    }

    #[test]
    fn a_position_that_is_not_there_is_reported_as_past_or_as_never_written() {
        let brokers = MockBrokers::start();
        brokers.append("in", 0, 0..3);
        let mut fetcher = reading(&brokers, &[1, 0]);
        let mut detail = |position: Option<i64>| {
            if let Some(position) = position {
                fetcher.start(&at(0), position).unwrap();
            }
            let error = fetcher.to_caller_error(Code::AutoOffsetReset, "the detail", false, Some(&at(0))).unwrap();
            assert_eq!(error.remedy, Remedy::Stop);
            error.to_string()
        };
        let gone = "retention deleted these records: continue at 0, and treat the offsets between as a gap";
        assert_eq!(detail(None), format!("reading in-0 from -1: {gone}"));
        assert_eq!(detail(Some(3)), format!("reading in-0 from 3: {gone}"));
        let never =
            "the partition ends at 3: the position belongs to another log, or records were lost; was the topic recreated?";
        assert_eq!(detail(Some(4)), format!("reading in-0 from 4: {never}"));
        brokers.cluster.broker_down(1).unwrap();
        assert_eq!(detail(None), "reading in-0 from 4: retention has deleted what was there (the detail)");
    }

    #[test]
    fn brokers_that_are_away_are_waited_for() {
        let brokers = MockBrokers::start();
        let mut reader = brokers.reader();
        assert_eq!(describe_items(&mock::poll(&mut *reader, 1)), ["in-0/e0"]);
        brokers.cluster.broker_down(1).unwrap();
        let mut polled = Vec::new();
        for _ in 0..20 {
            reader.poll(1, Duration::from_millis(100), &mut polled).unwrap();
        }
        brokers.cluster.broker_up(1).unwrap();
        brokers.append("in", 0, 0..1);
        assert_eq!(describe_items(&mock::poll(&mut *reader, 1))[0], "in-0/0");
    }
}
