//! Partitions being read: positions, pauses and ends, over the consumer's one queue.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::types::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use super::errors::{explain, from_error, is_denied, is_fenced, lacks};
use super::events::{Event, Events};
use crate::rights::{Operation, Resource};
use crate::{BusError, Polled, Remedy, Result, TopicPartition};

/// What a paused partition may hold here before the broker is asked to pause, too: that costs fetching again.
const HOLD_BYTES: usize = 2 << 20;
/// Asking for watermarks in an error message.
const ASK: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Part {
    at: TopicPartition,
    /// The next offset expected from the broker; `None`: not started.
    next: Option<i64>,
    paused: bool,
    /// Paused at the broker as well.
    stopped: bool,
    /// Where the end was told last.
    told_end: Option<i64>,
    /// Came while paused.
    held: VecDeque<Polled>,
    held_bytes: usize,
}

/// What [`Fetcher::poll`] leaves to its owner.
#[derive(Debug)]
pub enum Rebalance {
    Assign(Vec<TopicPartition>),
    Revoke(Vec<TopicPartition>),
}

#[derive(Debug)]
pub struct Fetcher {
    events: Events,
    group: String,
    parts: Vec<Part>,
    /// Where the last record belonged: records come in runs.
    last: usize,
    /// Starts not yet passed on.
    dirty: bool,
    /// Unpaused parts may hold items.
    released: bool,
}

impl Fetcher {
    pub fn new(events: Events, group: &str) -> Self {
        Self { events, group: group.to_owned(), parts: Vec::new(), last: 0, dirty: false, released: false }
    }

    pub fn consumer(&self) -> &rdkafka::consumer::BaseConsumer<super::context::Context> {
        self.events.consumer()
    }

    /// Replaces the partitions; nothing of them is delivered before [`Self::start`].
    pub fn set_partitions(&mut self, partitions: &[TopicPartition]) -> Result<()> {
        let part = |at: &TopicPartition| Part {
            at: at.clone(),
            next: None,
            paused: false,
            stopped: false,
            told_end: None,
            held: VecDeque::new(),
            held_bytes: 0,
        };
        self.parts = partitions.iter().map(part).collect();
        (self.last, self.dirty, self.released) = (0, false, false);
        self.assign_started()
    }

    /// Gives everything away.
    pub fn clear(&mut self) -> Result<()> {
        self.parts.clear();
        (self.last, self.dirty, self.released) = (0, false, false);
        self.consumer().unassign().map_err(|error| from_error("giving partitions away", &error, Remedy::Restart))
    }

    pub fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        let part = self.part(at, "starting")?;
        part.next = Some(offset);
        part.told_end = None;
        part.held.clear();
        part.held_bytes = 0;
        self.dirty = true;
        Ok(())
    }

    pub fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        for at in at {
            self.part(at, "pausing")?.paused = true;
        }
        Ok(())
    }

    pub fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        for at in at {
            self.part(at, "resuming")?.paused = false;
        }
        self.released = true;
        Ok(())
    }

    fn part(&mut self, at: &TopicPartition, what: &str) -> Result<&mut Part> {
        self.parts
            .iter_mut()
            .find(|part| part.at == *at)
            .ok_or_else(|| BusError::new(Remedy::Stop, format!("{what} {at}"), "it is not assigned here"))
    }

    fn assign_started(&mut self) -> Result<()> {
        let mut list = TopicPartitionList::new();
        for part in &mut self.parts {
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
    pub fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<Polled>) -> Result<Option<Rebalance>> {
        let (begun, before) = (Instant::now(), into.len());
        if self.dirty {
            self.assign_started()?;
        }
        if self.released {
            self.release(max, into)?;
        }
        while into.len() - before < max {
            let wait = if into.len() == before { timeout.saturating_sub(begun.elapsed()) } else { Duration::ZERO };
            let Some(event) = self.events.next(wait) else {
                if into.len() > before || begun.elapsed() >= timeout {
                    break;
                }
                continue;
            };
            match event {
                Event::Record(record) => {
                    let bytes = record.value.as_ref().map_or(0, bytes::Bytes::len) + 256;
                    let Some(part) = self.find(&record.at) else { continue };
                    // What was fetched before a new start, or twice around a pause.
                    if part.next.is_none_or(|next| record.offset < next) {
                        continue;
                    }
                    part.next = Some(record.offset + 1);
                    part.told_end = None;
                    self.deliver(Polled::Record(record), bytes, into)?;
                }
                Event::End { at, position } => {
                    let Some(part) = self.find(&at) else { continue };
                    if part.next.is_none_or(|next| position < next) || part.told_end == Some(position) {
                        continue;
                    }
                    part.next = Some(position);
                    part.told_end = Some(position);
                    self.deliver(Polled::End { at, position }, 64, into)?;
                }
                Event::Assign(partitions) => return Ok(Some(Rebalance::Assign(partitions))),
                Event::Revoke(partitions) => return Ok(Some(Rebalance::Revoke(partitions))),
                Event::Failed { code, said, fatal, at } => {
                    if let Some(error) = self.failure(code, &said, fatal, at.as_ref()) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Finds a started part and remembers it for [`Self::deliver`].
    fn find(&mut self, at: &TopicPartition) -> Option<&mut Part> {
        let is = |part: &Part| part.at.partition == at.partition && part.at.topic == at.topic;
        if !self.parts.get(self.last).is_some_and(is) {
            self.last = self.parts.iter().position(is)?;
        }
        self.parts.get_mut(self.last)
    }

    fn deliver(&mut self, item: Polled, bytes: usize, into: &mut Vec<Polled>) -> Result<()> {
        let part = &mut self.parts[self.last];
        if !part.paused && part.held.is_empty() {
            into.push(item);
            return Ok(());
        }
        part.held.push_back(item);
        part.held_bytes += bytes;
        if part.held_bytes > HOLD_BYTES && !part.stopped {
            part.stopped = true;
            let list = one(&part.at);
            self.consumer().pause(&list).map_err(|error| from_error("pausing", &error, Remedy::Restart))?;
        }
        Ok(())
    }

    /// Hands out what was held while paused.
    fn release(&mut self, max: usize, into: &mut Vec<Polled>) -> Result<()> {
        let end = into.len() + max;
        let mut emptied = Vec::new();
        for part in self.parts.iter_mut().filter(|part| !part.paused) {
            while into.len() < end
                && let Some(item) = part.held.pop_front()
            {
                into.push(item);
            }
            if part.held.is_empty() {
                part.held_bytes = 0;
                if part.stopped {
                    part.stopped = false;
                    emptied.push(one(&part.at));
                }
            }
        }
        self.released = self.parts.iter().any(|part| !part.paused && !part.held.is_empty());
        for list in emptied {
            self.consumer().resume(&list).map_err(|error| from_error("resuming", &error, Remedy::Restart))?;
        }
        Ok(())
    }

    /// What the caller must hear of; everything else is tried again by the client library.
    fn failure(&self, code: Code, said: &str, fatal: bool, at: Option<&TopicPartition>) -> Option<BusError> {
        let of = || at.map_or_else(|| "reading".to_owned(), |at| format!("reading {at}"));
        match code {
            Code::AutoOffsetReset => Some(self.lost_position(at, said)),
            Code::TopicAuthorizationFailed | Code::GroupAuthorizationFailed => {
                let resource = match (code, at) {
                    (Code::TopicAuthorizationFailed, Some(at)) => Resource::Topic(at.topic.to_string()),
                    (Code::GroupAuthorizationFailed, _) => Resource::Group(self.group.clone()),
                    _ => return Some(BusError::new(Remedy::Stop, of(), explain(code, said))),
                };
                let who = self.consumer().context().who();
                Some(BusError::new(Remedy::Stop, of(), lacks(who, Operation::Read, &resource)))
            }
            code if fatal || is_fenced(code) || is_denied(code) => Some(BusError::new(Remedy::Stop, of(), explain(code, said))),
            Code::PollExceeded => Some(BusError::new(
                Remedy::Restart,
                of(),
                format!("the member was away for longer than max.poll.interval.ms and has lost its partitions ({said})"),
            )),
            Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
                Some(BusError::new(Remedy::Retry, of(), explain(code, said)))
            }
            code => {
                tracing::warn!(?code, partition = at.map(ToString::to_string), "{said}");
                None
            }
        }
    }

    fn lost_position(&self, at: Option<&TopicPartition>, said: &str) -> BusError {
        let Some(at) = at else {
            return BusError::new(Remedy::Stop, "reading", format!("retention has deleted what was there ({said})"));
        };
        let position = self.parts.iter().find(|part| part.at == *at).and_then(|part| part.next).unwrap_or(-1);
        let what = format!("reading {at} from {position}");
        match self.consumer().fetch_watermarks(&at.topic, at.partition, ASK) {
            Ok((_, high)) if position > high => BusError::new(
                Remedy::Stop,
                what,
                format!(
                    "the partition ends at {high}: the position belongs to another log, or records were lost; was the topic made anew?"
                ),
            ),
            Ok((low, _)) => BusError::new(
                Remedy::Stop,
                what,
                format!("retention has deleted what was there: go on at {low}, and treat what lies between as a gap"),
            ),
            Err(_) => BusError::new(Remedy::Stop, what, format!("retention has deleted what was there ({said})")),
        }
    }
}

fn one(at: &TopicPartition) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(&at.topic, at.partition);
    list
}
