//! Keeps the positions, responses and leaders of partitions: decides the next request, and interprets responses. Nothing here
//! waits.

use std::collections::{HashMap, VecDeque};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::batch::{BatchHeader, BatchStream, end_of_batches};
use super::messages::{BrokerAddress, FetchLimits, FetchPosition, NO_TOPIC_ID, PartitionResponse};
use super::options::FetchOptions;
use crate::TopicPartition;

/// Pause of a partition after a broker could not serve it.
const BACKOFF: Duration = Duration::from_millis(100);
/// Duration of reading from a recommended broker, before the leader is asked for a recommendation again.
const PREFERRED: Duration = Duration::from_mins(5);
/// While a partition is full, those at their end are asked for no more often than this. The pause is made here and not at the
/// broker: the reader may make room at any moment, and a request that waits there cannot be called back.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// Pause of a partition that may not be read.
const DENIED_PAUSE: Duration = Duration::from_secs(1);

/// Error codes of the protocol that mean something of their own here.
pub mod code {
    pub const OFFSET_OUT_OF_RANGE: i16 = 1;
    pub const UNKNOWN_TOPIC: i16 = 3;
    pub const TOPIC_DENIED: i16 = 29;
    pub const UNKNOWN_TOPIC_ID: i16 = 100;
    pub const INCONSISTENT_TOPIC_ID: i16 = 103;
    /// Codes that end a session, and nothing else.
    pub const OF_SESSIONS: [i16; 3] = [70, 71, 106];
}

/// A failure that the reader must know of; everything else is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchFailure {
    /// The log does not have this position.
    OutOfRange {
        at: TopicPartition,
        position: i64,
    },
    /// The log was cut off before this position after it had been read.
    Truncated {
        at: TopicPartition,
        position: i64,
        end: i64,
    },
    Denied {
        topic: String,
    },
    UnknownTopic {
        at: TopicPartition,
    },
    /// The topic was deleted and made anew since it was first read.
    Recreated {
        at: TopicPartition,
        position: i64,
    },
    /// A thread has failed, or could not be started.
    Thread,
}

/// The end of a chunk that is older than a pause: the partition may have gone on, and a later answer has its end.
pub const UNKNOWN_END: i64 = i64::MAX;

/// Records of a partition from one answer.
#[derive(Debug)]
pub struct FetchedChunk {
    pub slot: usize,
    pub batches: BatchStream,
    /// End of the partition that readers may see.
    pub end: i64,
    pub bytes: usize,
}

#[derive(Debug)]
pub struct PartitionFetch {
    pub at: TopicPartition,
    pub topic_id: [u8; 16],
    /// Changes with every start, so that an answer to an older request is known.
    pub start: u64,
    /// The next offset to ask for; `None` if not started, or abandoned after a failure.
    pub next: Option<i64>,
    pub last_epoch: i32,
    pub leader: Option<(i32, i32)>,
    pub preferred: Option<(i32, Instant)>,
    pub is_paused: bool,
    /// No answer has come since the start, or since a pause.
    pub is_fresh: bool,
    pub reported_end: Option<i64>,
    pub wait_until: Option<Instant>,
    pub unknown_since: Option<Instant>,
    pub chunks: VecDeque<FetchedChunk>,
    pub chunk_bytes: usize,
}

impl PartitionFetch {
    pub fn new(at: &TopicPartition) -> Self {
        Self {
            at: at.clone(),
            topic_id: NO_TOPIC_ID,
            start: 0,
            next: None,
            last_epoch: -1,
            leader: None,
            preferred: None,
            is_paused: false,
            is_fresh: true,
            reported_end: None,
            wait_until: None,
            unknown_since: None,
            chunks: VecDeque::new(),
            chunk_bytes: 0,
        }
    }

    /// Returns the broker to ask.
    fn broker_to_fetch_from(&self, now: Instant) -> Option<i32> {
        match self.preferred {
            Some((node, until)) if until > now => Some(node),
            _ => self.leader.map(|(node, _)| node),
        }
    }
}

#[derive(Debug, Default)]
pub struct FetchState {
    pub is_stopped: bool,
    pub partitions: Vec<PartitionFetch>,
    pub starts: u64,
    pub buffered_bytes: usize,
    pub brokers: HashMap<i32, BrokerAddress>,
    pub needs_metadata: bool,
    /// Brokers with a thread.
    pub threads: Vec<i32>,
    /// Time of the last request to each broker.
    pub last_requests: HashMap<i32, Instant>,
    pub sockets: HashMap<i32, TcpStream>,
    pub failures: VecDeque<FetchFailure>,
    /// Time of the first request since the last answer of any broker; `None` if the last request was answered.
    pub unanswered_since: Option<Instant>,
    /// For each broker the time of its first request since its last answer.
    pub unanswered_nodes: HashMap<i32, Instant>,
}

/// A request to be made.
#[derive(Debug)]
pub struct FetchPlan {
    pub limits: FetchLimits,
    /// Every partition is to be reported by the broker, also one without news.
    pub is_fresh: bool,
    pub positions: Vec<FetchPosition>,
    /// The start of each position's partition.
    pub starts: Vec<u64>,
}

impl FetchState {
    /// Pauses a partition: requests stop. After a pause the end is requested anew, and answers to requests from before it are
    /// dropped, as after a start: the partition may have gone on.
    pub fn set_paused(&mut self, slot: usize, is_paused: bool) {
        let Some(partition) = self.partitions.get_mut(slot) else { return };
        partition.is_paused = is_paused;
        if !is_paused {
            self.starts += 1;
            (partition.start, partition.is_fresh, partition.reported_end) = (self.starts, true, None);
            for chunk in &mut partition.chunks {
                chunk.end = UNKNOWN_END;
            }
        }
    }

    /// Returns for how long one of the brokers that partitions are read from has not answered. One that leads none any more does not
    /// count.
    pub fn silent_broker(&mut self, now: Instant) -> Option<Duration> {
        let partitions = &self.partitions;
        let is_read_from = |node: i32| {
            let mut started = partitions.iter().filter(|partition| partition.next.is_some());
            started.any(|partition| partition.broker_to_fetch_from(now) == Some(node))
        };
        self.unanswered_nodes.retain(|node, _| is_read_from(*node));
        self.unanswered_nodes.values().map(|since| now.saturating_duration_since(*since)).max()
    }

    /// Returns the next fetch request, or the time of the next attempt if there is none.
    pub fn plan(&mut self, options: &FetchOptions, node: i32, now: Instant) -> (Option<FetchPlan>, Option<Instant>) {
        let (mut positions, mut starts, mut wake) = (Vec::new(), Vec::new(), None::<Instant>);
        let (mut is_fresh, mut is_full, mut is_at_end) = (false, false, true);
        let is_over_budget = self.buffered_bytes >= options.budget_bytes;
        for partition in &self.partitions {
            let Some(offset) =
                partition.next.filter(|_| !partition.is_paused && partition.broker_to_fetch_from(now) == Some(node))
            else {
                continue;
            };
            if let Some(until) = partition.wait_until.filter(|until| *until > now) {
                wake = Some(wake.map_or(until, |wake| wake.min(until)));
                continue;
            }
            // A partition without records is requested in any case, else the others' bytes could block all.
            if !partition.chunks.is_empty() && (is_over_budget || partition.chunk_bytes >= options.partition_bytes) {
                is_full = true;
                continue;
            }
            is_fresh |= partition.is_fresh;
            is_at_end &= partition.reported_end == Some(offset);
            positions.push(FetchPosition {
                topic: partition.at.topic.clone(),
                topic_id: partition.topic_id,
                partition: partition.at.partition,
                offset,
                leader_epoch: partition.leader.map_or(-1, |(_, epoch)| epoch),
                last_epoch: partition.last_epoch,
            });
            starts.push(partition.start);
        }
        if positions.is_empty() {
            return (None, wake);
        }
        let is_only_news = is_full && is_at_end && !is_fresh;
        if is_only_news {
            let next = self.last_requests.get(&node).map_or(now, |last_request| *last_request + FULL_PAUSE);
            if next > now {
                return (None, Some(wake.map_or(next, |wake| wake.min(next))));
            }
        }
        self.last_requests.insert(node, now);
        // If the end is not known, the broker must not hold back its answer.
        let max_wait = match (is_fresh || is_only_news, is_full) {
            (true, _) => Duration::ZERO,
            (false, true) => options.max_wait.min(FULL_PAUSE),
            (false, false) => options.max_wait,
        };
        let room = options.budget_bytes.saturating_sub(self.buffered_bytes).max(options.partition_bytes);
        let limits = FetchLimits {
            max_wait_ms: max_wait.as_millis() as i32,
            max_bytes: i32::try_from(room).unwrap_or(i32::MAX),
            partition_max_bytes: i32::try_from(options.partition_bytes).unwrap_or(i32::MAX),
            is_committed_only: options.is_committed_only,
        };
        (Some(FetchPlan { limits, is_fresh, positions, starts }), None)
    }

    /// Takes in the answer for one partition; returns the broker that is to be asked instead, if there is one.
    pub fn take_part(
        &mut self,
        slot: usize,
        node: i32,
        part: &PartitionResponse<'_>,
        is_committed_only: bool,
        now: Instant,
    ) -> Option<i32> {
        let partition = &mut self.partitions[slot];
        let position = partition.next.unwrap_or(-1);
        let at = partition.at.clone();
        if part.error != 0 {
            self.take_error(slot, node, part.error, now);
            return None;
        }
        partition.is_fresh = false;
        if let Some(end) = part.diverging_offset {
            partition.next = None;
            self.failures.push_back(FetchFailure::Truncated { at, position, end });
            return None;
        }
        if part.preferred_replica >= 0 && part.preferred_replica != node {
            partition.preferred = Some((part.preferred_replica, now + PREFERRED));
            partition.is_fresh = true;
            return Some(part.preferred_replica);
        }
        let end = if is_committed_only && part.last_stable >= 0 { part.last_stable } else { part.high_watermark };
        match (end_of_batches(part.records), BatchHeader::read(part.records)) {
            (Some((next, epoch)), _) => (partition.next, partition.last_epoch) = (Some(next.max(position)), epoch),
            // The reader finds and reports the error.
            (None, Err(_)) => partition.next = None,
            (None, Ok(_)) if end <= position && partition.reported_end != Some(position) => {}
            (None, Ok(_)) => return None,
        }
        if partition.next.is_some_and(|next| next >= end) {
            partition.reported_end = partition.next;
        }
        let bytes = part.records.len();
        let batches = BatchStream::new(Bytes::copy_from_slice(part.records), part.aborted.clone(), is_committed_only);
        partition.chunks.push_back(FetchedChunk { slot, batches, end, bytes });
        partition.chunk_bytes += bytes;
        self.buffered_bytes += bytes;
        None
    }

    fn take_error(&mut self, slot: usize, node: i32, error: i16, now: Instant) {
        let partition = &mut self.partitions[slot];
        let position = partition.next.unwrap_or(-1);
        let is_follower = partition.leader.is_some_and(|(leader, _)| leader != node);
        partition.preferred = None;
        match error {
            code::OFFSET_OUT_OF_RANGE if !is_follower => {
                partition.next = None;
                let at = partition.at.clone();
                self.failures.push_back(FetchFailure::OutOfRange { at, position });
            }
            code::TOPIC_DENIED => {
                partition.wait_until = Some(now + DENIED_PAUSE);
                let failure = FetchFailure::Denied { topic: partition.at.topic.to_string() };
                self.failures.push_back(failure);
            }
            code::UNKNOWN_TOPIC | code::UNKNOWN_TOPIC_ID | code::INCONSISTENT_TOPIC_ID => {
                // The topic may have been deleted and created again under this name.
                (partition.leader, partition.wait_until) = (None, Some(now + BACKOFF));
                self.needs_metadata = true;
            }
            _ => {
                tracing::debug!(at = %partition.at, node, error, "a partition cannot be read now");
                partition.wait_until = Some(now + BACKOFF);
                self.needs_metadata = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::config::ClientConfig;

    use super::*;

    const NODE: i32 = 1;

    /// Partitions of one broker, read up to 10; 10 is also their end.
    fn at_their_end(count: i32) -> FetchState {
        let partition = |number| PartitionFetch {
            next: Some(10),
            leader: Some((NODE, 0)),
            is_fresh: false,
            reported_end: Some(10),
            ..PartitionFetch::new(&TopicPartition::new("t", number))
        };
        FetchState { partitions: (0..count).map(partition).collect(), ..FetchState::default() }
    }

    fn fill(state: &mut FetchState, slot: usize, bytes: usize) {
        let batches = BatchStream::new(Bytes::new(), Vec::new(), true);
        let partition = &mut state.partitions[slot];
        partition.chunks.push_back(FetchedChunk { slot, batches, end: 1_000, bytes });
        (partition.chunk_bytes, partition.reported_end) = (bytes, None);
        state.buffered_bytes += bytes;
    }

    fn asked(plan: Option<&FetchPlan>) -> Option<(Vec<i32>, i32)> {
        plan.map(|plan| (plan.positions.iter().map(|position| position.partition).collect(), plan.limits.max_wait_ms))
    }

    #[test]
    fn the_broker_that_is_silent_for_longest_counts_while_partitions_are_read_from_it() {
        let (mut state, begun) = (at_their_end(2), Instant::now());
        let later = begun + Duration::from_secs(6);
        assert_eq!(state.silent_broker(later), None);
        state.unanswered_nodes = HashMap::from([(NODE, begun + Duration::from_secs(5)), (NODE + 1, begun)]);
        assert_eq!(state.silent_broker(later), Some(Duration::from_secs(1)), "nothing is read from the other one");
        state.unanswered_nodes.insert(NODE + 1, begun);
        state.partitions[1].leader = Some((NODE + 1, 0));
        assert_eq!(state.silent_broker(later), Some(Duration::from_secs(6)));
        state.unanswered_nodes.remove(&(NODE + 1));
        assert_eq!(state.silent_broker(later), Some(Duration::from_secs(1)));
        state.partitions[0].leader = Some((NODE + 1, 0));
        assert_eq!(state.silent_broker(later), None);
    }

    #[test]
    fn a_broker_is_not_waited_for_while_the_reader_may_make_room() {
        let options = FetchOptions::read(&ClientConfig::new()).unwrap();
        let mut state = at_their_end(2);
        let now = Instant::now();
        assert_eq!(
            asked(state.plan(&options, NODE, now).0.as_ref()),
            Some((vec![0, 1], 100)),
            "all at their end: the broker waits for news"
        );
        fill(&mut state, 0, options.partition_bytes);
        let (plan, wake) = state.plan(&options, NODE, now);
        assert_eq!((asked(plan.as_ref()), wake), (None, Some(now + FULL_PAUSE)), "the one at its end was asked for a moment ago");
        let later = now + FULL_PAUSE;
        assert_eq!(
            asked(state.plan(&options, NODE, later).0.as_ref()),
            Some((vec![1], 0)),
            "and is asked for again, without a wait at the broker"
        );
        state.partitions[0].chunks.clear();
        assert_eq!(
            asked(state.plan(&options, NODE, later).0.as_ref()),
            Some((vec![0, 1], 100)),
            "room was made: asked for at once"
        );
    }
}
