//! State that the reader shares with the threads that fetch for it: positions, fetched records, and leaders.

use std::net::{Shutdown, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::messages::{BrokerAddress, ClusterMetadata, FetchResponse, NO_TOPIC_ID};
use super::options::FetchOptions;
use super::state::{FetchFailure, FetchPlan, FetchState, FetchedChunk, PartitionFetch, code};
use crate::TopicPartition;

/// Time for which a topic may be unknown before it is reported to the reader: brokers learn of new topics one after the other.
const UNKNOWN: Duration = Duration::from_secs(5);
/// A thread that has nothing to ask looks around so often.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct SharedFetchState {
    pub options: FetchOptions,
    state: Mutex<FetchState>,
    /// Something is there for the reader.
    arrival: Condvar,
    /// Something is there to do for the threads.
    work: Condvar,
}

impl SharedFetchState {
    pub fn new(options: FetchOptions) -> Self {
        Self { options, state: Mutex::default(), arrival: Condvar::new(), work: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // The reader's side.

    pub fn set_partitions(&self, partitions: &[TopicPartition]) {
        let mut state = self.lock();
        state.partitions = partitions.iter().map(PartitionFetch::new).collect();
        state.buffered_bytes = 0;
        state.failures.clear();
        state.needs_metadata |= !partitions.is_empty();
        self.work.notify_all();
    }

    pub fn start(&self, slot: usize, offset: i64) {
        let mut state = self.lock();
        state.starts += 1;
        let start = state.starts;
        let Some(partition) = state.partitions.get_mut(slot) else { return };
        let dropped = std::mem::take(&mut partition.chunk_bytes);
        partition.chunks.clear();
        (partition.start, partition.next, partition.last_epoch) = (start, Some(offset), -1);
        (partition.is_fresh, partition.reported_end, partition.wait_until) = (true, None, None);
        let at = partition.at.clone();
        state.buffered_bytes -= dropped;
        state.failures.retain(|failure| !matches!(failure, FetchFailure::OutOfRange { at: of, .. } | FetchFailure::Truncated { at: of, .. } if *of == at));
        self.work.notify_all();
    }

    pub fn set_paused(&self, slot: usize, is_paused: bool) {
        self.lock().set_paused(slot, is_paused);
        self.work.notify_all();
    }

    pub fn take_failure(&self) -> Option<FetchFailure> {
        self.lock().failures.pop_front()
    }

    /// Returns the chunk of the first unpaused partition from `turn` on, in a circle.
    pub fn take_chunk(&self, turn: usize) -> Option<FetchedChunk> {
        let mut state = self.lock();
        let count = state.partitions.len();
        let slot = (0..count).map(|n| (turn + n) % count).find(|slot| {
            let partition = &state.partitions[*slot];
            !partition.is_paused && !partition.chunks.is_empty()
        })?;
        let partition = &mut state.partitions[slot];
        let chunk = partition.chunks.pop_front()?;
        partition.chunk_bytes -= chunk.bytes;
        state.buffered_bytes -= chunk.bytes;
        self.work.notify_all();
        Some(chunk)
    }

    /// Returns whether more came for this partition than was taken.
    pub fn has_chunk(&self, slot: usize) -> bool {
        self.lock().partitions.get(slot).is_some_and(|partition| !partition.chunks.is_empty())
    }

    /// Waits until something comes, at most so long.
    pub fn wait_for_arrival(&self, timeout: Duration) {
        let state = self.lock();
        let is_idle = |state: &mut FetchState| {
            state.failures.is_empty()
                && !state.partitions.iter().any(|partition| !partition.is_paused && !partition.chunks.is_empty())
        };
        drop(self.arrival.wait_timeout_while(state, timeout, is_idle));
    }

    /// Returns for how long no broker has answered; `None` if the last request was answered.
    pub fn unanswered(&self, now: Instant) -> Option<Duration> {
        self.lock().unanswered_since.map(|since| now.saturating_duration_since(since))
    }

    /// Returns for how long one of the brokers that are read from has not answered.
    pub fn silent_broker(&self, now: Instant) -> Option<Duration> {
        self.lock().silent_broker(now)
    }

    /// Ends the threads, also if they wait for a broker.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        state.partitions.clear();
        for (_, socket) in state.sockets.drain() {
            // A socket that is closed already needs no shutdown.
            drop(socket.shutdown(Shutdown::Both));
        }
        self.work.notify_all();
    }

    // The threads' side.

    pub fn report_failure(&self, failure: FetchFailure) {
        let mut state = self.lock();
        if !state.failures.contains(&failure) {
            state.failures.push_back(failure);
        }
        self.arrival.notify_all();
    }

    /// Notes that partitions of this broker are requested from it now.
    pub fn note_request(&self, node: i32, asked: Instant) {
        self.lock().unanswered_nodes.entry(node).or_insert(asked);
    }

    /// Notes whether a broker answered a request that was made at `asked`. `node`: the broker that partitions were requested from.
    pub fn note_answer(&self, node: Option<i32>, asked: Instant, is_answered: bool) {
        let mut state = self.lock();
        if let Some(node) = node.filter(|_| is_answered) {
            state.unanswered_nodes.remove(&node);
        }
        state.unanswered_since = if is_answered { None } else { state.unanswered_since.or(Some(asked)) };
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }

    /// Keeps a socket of a thread, so that [`Self::stop`] can end it.
    pub fn keep_socket(&self, node: i32, socket: &TcpStream) {
        let mut state = self.lock();
        if state.is_stopped {
            drop(socket.shutdown(Shutdown::Both));
        } else if let Ok(socket) = socket.try_clone() {
            state.sockets.insert(node, socket);
        }
    }

    pub fn forget_socket(&self, node: i32) {
        self.lock().sockets.remove(&node);
    }

    /// Waits for so long; false once everything ends.
    pub fn pause_thread(&self, pause: Duration) -> bool {
        let state = self.lock();
        let waited = self.work.wait_timeout_while(state, pause, |state| !state.is_stopped);
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }

    pub fn address(&self, node: i32) -> Option<BrokerAddress> {
        self.lock().brokers.get(&node).cloned()
    }

    pub fn addresses(&self) -> Vec<BrokerAddress> {
        self.lock().brokers.values().cloned().collect()
    }

    /// Requests new metadata, and no longer prefers this broker.
    pub fn lose_broker(&self, node: i32) {
        let mut state = self.lock();
        for partition in &mut state.partitions {
            partition.preferred = partition.preferred.filter(|(preferred, _)| *preferred != node);
        }
        state.needs_metadata = true;
        self.work.notify_all();
    }

    /// Requests new metadata, after no broker could answer.
    pub fn need_layout(&self) {
        self.lock().needs_metadata = true;
    }

    /// Waits until a reader needs the leaders of topics, and returns these topics; returns `None` at shutdown.
    pub fn wait_for_layout_need(&self) -> Option<Vec<String>> {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if state.needs_metadata && !state.partitions.is_empty() {
                state.needs_metadata = false;
                let mut topics: Vec<_> = state.partitions.iter().map(|partition| partition.at.topic.to_string()).collect();
                topics.sort();
                topics.dedup();
                return Some(topics);
            }
            let waited = self.work.wait_timeout(state, IDLE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes new leaders; returns the brokers that need a thread.
    pub fn take_layout(&self, layout: &ClusterMetadata, now: Instant) -> Vec<i32> {
        let mut state = self.lock();
        let state = &mut *state;
        state.brokers = layout.brokers.iter().map(|broker| (broker.node, broker.clone())).collect();
        let mut failures = Vec::new();
        for partition in &mut state.partitions {
            let topic = layout.topics.iter().find(|topic| *topic.name == *partition.at.topic);
            let found = topic.and_then(|topic| topic.partitions.iter().find(|found| found.partition == partition.at.partition));
            match (topic, found) {
                (Some(topic), _) if topic.error == code::TOPIC_DENIED => {
                    failures.push(FetchFailure::Denied { topic: topic.name.clone() });
                }
                (Some(topic), Some(found)) if topic.error == 0 && found.node >= 0 => {
                    // A broker that is behind may report an older leader.
                    let is_older =
                        partition.topic_id == topic.id && partition.leader.is_some_and(|(_, epoch)| found.epoch < epoch);
                    if partition.topic_id != NO_TOPIC_ID && topic.id != partition.topic_id {
                        let position = partition.next.take().unwrap_or(-1);
                        failures.push(FetchFailure::Recreated { at: partition.at.clone(), position });
                    }
                    if !is_older {
                        (partition.topic_id, partition.leader) = (topic.id, Some((found.node, found.epoch)));
                    }
                    partition.unknown_since = None;
                }
                (Some(topic), _) if topic.error == code::UNKNOWN_TOPIC || topic.error == 0 => {
                    let since = *partition.unknown_since.get_or_insert(now);
                    state.needs_metadata = true;
                    if found.is_none() && now.duration_since(since) > UNKNOWN {
                        partition.unknown_since = Some(now);
                        failures.push(FetchFailure::UnknownTopic { at: partition.at.clone() });
                    }
                }
                _ => state.needs_metadata = true,
            }
        }
        for failure in failures {
            if !state.failures.contains(&failure) {
                state.failures.push_back(failure);
            }
        }
        let mut needed: Vec<i32> =
            state.partitions.iter().filter_map(|partition| partition.leader).map(|(node, _)| node).collect();
        needed.sort_unstable();
        needed.dedup();
        needed.retain(|node| !state.threads.contains(node));
        state.threads.extend_from_slice(&needed);
        self.arrival.notify_all();
        self.work.notify_all();
        needed
    }

    /// Returns whether this broker needs a thread that it does not have, and records that it has one now.
    fn needs_thread(state: &mut FetchState, node: i32) -> bool {
        let is_new = !state.threads.contains(&node);
        if is_new {
            state.threads.push(node);
        }
        is_new
    }

    /// Waits until there is something to ask a broker for; `None` once everything ends.
    pub fn wait_for_plan(&self, node: i32) -> Option<FetchPlan> {
        let mut state = self.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            let now = Instant::now();
            let (plan, wake) = state.plan(&self.options, node, now);
            if plan.is_some() {
                return plan;
            }
            let pause = wake.map_or(IDLE, |wake| wake.saturating_duration_since(now).min(IDLE));
            state = self.work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes in an answer; returns brokers that need a thread of their own now.
    pub fn take_response(&self, node: i32, plan: &FetchPlan, answer: &FetchResponse<'_>, now: Instant) -> Vec<i32> {
        let mut state = self.lock();
        let mut needed = Vec::new();
        for part in &answer.partitions {
            let index = plan.positions.iter().position(|position| {
                position.partition == part.partition
                    && if part.topic.is_empty() { position.topic_id == part.topic_id } else { *position.topic == *part.topic }
            });
            let Some(index) = index else { continue };
            let (start, offset) = (plan.starts[index], plan.positions[index].offset);
            let is_asked = |partition: &PartitionFetch| partition.start == start && partition.next == Some(offset);
            let Some(slot) = state.partitions.iter().position(is_asked) else { continue };
            if let Some(replica) = state.take_part(slot, node, part, self.options.is_committed_only, now)
                && Self::needs_thread(&mut state, replica)
            {
                needed.push(replica);
            }
        }
        if state.needs_metadata {
            self.work.notify_all();
        }
        self.arrival.notify_all();
        needed
    }
}
