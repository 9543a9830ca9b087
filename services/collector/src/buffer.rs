//! The bounded buffer between the sources and the log.
//!
//! Offering never blocks: a full buffer gives up its oldest sample. Marks (events that begin or end something) are
//! given up only when nothing else is left, because no later event makes up for them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_bus::{ProducerRecord, RecordHeader, chaos};

/// Limits of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferLimits {
    pub events: usize,
    /// Bytes of the events in memory.
    pub bytes: usize,
}

/// Counts of events offered and discarded since the buffer was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferCounts {
    pub offered: u64,
    /// Events discarded because the buffer was full.
    pub evicted: u64,
    /// Offered after the end.
    pub too_late: u64,
    /// Waiting now.
    pub events: usize,
    pub bytes: usize,
}

/// Result of offering an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferOutcome {
    /// It is in; so many others were given up for it.
    Evicting(u64),
    /// It is larger than the whole buffer and was given up itself.
    TooLarge,
    /// The buffer is closed.
    TooLate,
}

/// Result of [`EventBuffer::take`].
#[derive(Debug)]
pub enum TakeOutcome {
    Event(ProducerRecord),
    /// No event came in time.
    Empty,
    /// Closed and empty: nothing will ever come.
    Ended,
}

#[derive(Debug)]
struct BufferedEvent {
    number: u64,
    bytes: usize,
    event: ProducerRecord,
}

#[derive(Debug, Default)]
struct BufferState {
    samples: VecDeque<BufferedEvent>,
    marks: VecDeque<BufferedEvent>,
    next: u64,
    counts: BufferCounts,
    closed: Option<Instant>,
    /// A mark is in it, which waits for no company.
    urgent: bool,
}

impl BufferState {
    /// Returns whether company is not worth waiting for: a mark is there, or half the room is gone.
    fn presses(&self, limits: BufferLimits) -> bool {
        self.urgent || 2 * self.counts.events >= limits.events || 2 * self.counts.bytes >= limits.bytes
    }
}

/// See the module.
#[derive(Debug)]
pub struct EventBuffer {
    limits: BufferLimits,
    state: Mutex<BufferState>,
    changed: Condvar,
}

/// Bytes of the allocator and of the reference counts, for each text.
const ALLOCATION: usize = 32;

/// Returns the memory that an event takes, in bytes: its texts, and what holds them. For small values the two are about equal.
fn size(event: &ProducerRecord) -> usize {
    let text = |text: &Option<bytes::Bytes>| text.as_ref().map_or(0, |text| text.len() + ALLOCATION);
    let header = |(name, value): &RecordHeader| size_of::<RecordHeader>() + name.len() + value.len() + 2 * ALLOCATION;
    size_of::<BufferedEvent>() + text(&event.key) + text(&event.value) + event.headers.iter().map(header).sum::<usize>()
}

impl EventBuffer {
    pub fn new(limits: BufferLimits) -> Self {
        Self { limits, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event in, giving up older ones if there is no room.
    pub fn offer(&self, event: ProducerRecord, mark: bool) -> OfferOutcome {
        let bytes = size(&event);
        let mut state = self.lock();
        state.counts.offered += 1;
        if state.closed.is_some() {
            state.counts.too_late += 1;
            return OfferOutcome::TooLate;
        }
        if bytes > self.limits.bytes {
            state.counts.evicted += 1;
            return OfferOutcome::TooLarge;
        }
        let mut evicted = 0;
        while state.counts.events >= self.limits.events || state.counts.bytes + bytes > self.limits.bytes {
            let Some(oldest) = state.samples.pop_front().or_else(|| state.marks.pop_front()) else { break };
            state.counts.events -= 1;
            state.counts.bytes -= oldest.bytes;
            evicted += 1;
        }
        state.counts.evicted += if chaos::is_off("drop-counts") { 0 } else { evicted };
        let entry = BufferedEvent { number: state.next, bytes, event };
        state.next += 1;
        // Wakes the reader only for the first event or under pressure, since each notice costs a system call.
        let (first, pressed) = (state.counts.events == 0, state.presses(self.limits));
        state.counts.events += 1;
        state.counts.bytes += bytes;
        state.urgent |= mark;
        let wake = first || (!pressed && state.presses(self.limits));
        if mark {
            state.marks.push_back(entry);
        } else {
            state.samples.push_back(entry);
        }
        drop(state);
        if wake {
            self.changed.notify_one();
        }
        OfferOutcome::Evicting(evicted)
    }

    /// Takes the oldest event, waiting at most `timeout` for one. After a wait it waits `linger` longer for further events,
    /// unless it is a mark or the buffer fills up.
    pub fn take(&self, timeout: Duration, linger: Duration) -> TakeOutcome {
        let idle = |state: &mut BufferState| state.counts.events == 0 && state.closed.is_none();
        let mut state = self.lock();
        if idle(&mut state) {
            state = self.changed.wait_timeout_while(state, timeout, idle).unwrap_or_else(PoisonError::into_inner).0;
            if state.counts.events > 0 {
                let alone = |state: &mut BufferState| state.closed.is_none() && !state.presses(self.limits);
                state = self.changed.wait_timeout_while(state, linger, alone).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        let mark_first = match (state.marks.front(), state.samples.front()) {
            (Some(mark), Some(sample)) => mark.number < sample.number,
            (mark, _) => mark.is_some(),
        };
        let entry = if mark_first { state.marks.pop_front() } else { state.samples.pop_front() };
        match entry {
            Some(entry) => {
                state.counts.events -= 1;
                state.counts.bytes -= entry.bytes;
                state.urgent &= state.counts.events > 0;
                TakeOutcome::Event(entry.event)
            }
            None if state.closed.is_some() => TakeOutcome::Ended,
            None => TakeOutcome::Empty,
        }
    }

    /// Takes nothing in any more.
    pub fn close(&self) {
        self.lock().closed.get_or_insert_with(Instant::now);
        self.changed.notify_all();
    }

    /// Drops all waiting events; returns their number.
    pub fn abandon(&self) -> u64 {
        let mut state = self.lock();
        let waiting = state.counts.events as u64;
        state.samples.clear();
        state.marks.clear();
        (state.counts.events, state.counts.bytes) = (0, 0);
        waiting
    }

    /// Returns the time at which the buffer was closed.
    pub fn closed(&self) -> Option<Instant> {
        self.lock().closed
    }

    pub fn counts(&self) -> BufferCounts {
        self.lock().counts
    }
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    fn event(number: u32) -> ProducerRecord {
        event_of(number.to_string().into())
    }

    fn event_of(value: bytes::Bytes) -> ProducerRecord {
        ProducerRecord { topic: "t".into(), partition: None, key: None, value: Some(value), headers: Vec::new() }
    }

    fn drain(buffer: &EventBuffer) -> Vec<u32> {
        std::iter::from_fn(|| match buffer.take(Duration::ZERO, Duration::ZERO) {
            TakeOutcome::Event(event) => Some(std::str::from_utf8(&event.value.unwrap()).unwrap().parse().unwrap()),
            TakeOutcome::Empty | TakeOutcome::Ended => None,
        })
        .collect()
    }

    #[test]
    fn the_oldest_sample_goes_first_and_marks_stay() {
        let buffer = EventBuffer::new(BufferLimits { events: 3, bytes: 10_000 });
        for (number, mark) in [(1, true), (2, false), (3, false), (4, false), (5, true)] {
            buffer.offer(event(number), mark);
        }
        assert_eq!(drain(&buffer), [1, 4, 5]);
        assert_eq!(buffer.counts().evicted, 2);
    }

    #[test]
    fn bytes_are_bounded_and_an_event_larger_than_all_is_given_up_itself() {
        let (small, large) = (size(&event(11)), size(&event(1_000_333)));
        let buffer = EventBuffer::new(BufferLimits { events: 100, bytes: 2 * small });
        assert_eq!(buffer.offer(event_of("1".repeat(2 * small).into()), false), OfferOutcome::TooLarge);
        buffer.offer(event(11), false);
        buffer.offer(event(22), false);
        assert_eq!(buffer.offer(event(1_000_333), false), OfferOutcome::Evicting(2));
        assert_eq!((buffer.counts().bytes, drain(&buffer)), (large, vec![1_000_333]));
    }

    #[test]
    fn what_holds_an_event_counts_as_its_texts_do() {
        let headers = vec![("ce_id".into(), bytes::Bytes::from_static(b"7")); 8];
        let bare = ProducerRecord { headers, ..event(1) };
        let texts = 1 + 8 * 6;
        assert!(size(&bare) >= texts + size_of::<ProducerRecord>() + 8 * size_of::<RecordHeader>(), "{}", size(&bare));
    }

    #[test]
    fn neither_marks_nor_a_buffer_that_fills_up_wait_for_company() {
        for (events, limit) in
            [(&[(1, true)][..], 100), (&[(1, false), (2, true)], 100), (&[(1, false), (2, false)], 4), (&[(1, false)], 1)]
        {
            let buffer = EventBuffer::new(BufferLimits { events: limit, bytes: 1 << 20 });
            let came = std::thread::scope(|scope| {
                let taking = scope.spawn(|| buffer.take(Duration::from_hours(1), Duration::from_hours(1)));
                // So that it waits by then; if it does not, it finds the events there.
                std::thread::sleep(Duration::from_millis(20));
                for (number, mark) in events {
                    buffer.offer(event(*number), *mark);
                }
                let deadline = Instant::now() + Duration::from_secs(30);
                while !taking.is_finished() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let came = taking.is_finished();
                buffer.close();
                assert!(matches!(taking.join().unwrap(), TakeOutcome::Event(_)));
                came
            });
            assert!(came, "{events:?} in room for {limit}");
        }
    }

    #[test]
    fn after_the_end_nothing_is_taken_in() {
        let buffer = EventBuffer::new(BufferLimits { events: 3, bytes: 10_000 });
        buffer.offer(event(1), false);
        buffer.close();
        assert_eq!(buffer.offer(event(2), true), OfferOutcome::TooLate);
        assert_eq!(drain(&buffer), [1]);
        assert!(matches!(buffer.take(Duration::from_mins(1), Duration::ZERO), TakeOutcome::Ended));
    }

    proptest! {
        #![proptest_config(cases(128))]
        #[test]
        fn exactly_what_has_no_room_is_given_up_and_counted(
            steps in prop::collection::vec(prop::option::of((any::<bool>(), 0usize..40)), 0..200), events in 1usize..8, room in 1usize..6,
        ) {
            let bytes = room * size(&event(100_000));
            let buffer = EventBuffer::new(BufferLimits { events, bytes });
            // Number, mark and size of what must be in it, oldest first.
            let (mut model, mut number, mut evicted): (Vec<(u32, bool, usize)>, _, _) = (Vec::new(), 100_000, 0);
            for step in steps {
                if let Some((mark, zeros)) = step {
                    number += 1;
                    let offered = event_of(format!("{}{number}", "0".repeat(zeros)).into());
                    let taken = size(&offered);
                    buffer.offer(offered, mark);
                    while taken <= bytes && (model.len() >= events || model.iter().map(|(_, _, size)| size).sum::<usize>() + taken > bytes) {
                        let Some(oldest) = model.iter().position(|(_, mark, _)| !mark).or((!model.is_empty()).then_some(0)) else { break };
                        model.remove(oldest);
                        evicted += 1;
                    }
                    if taken <= bytes { model.push((number, mark, taken)) } else { evicted += 1 }
                } else {
                    let taken = match buffer.take(Duration::ZERO, Duration::ZERO) {
                        TakeOutcome::Event(event) => std::str::from_utf8(&event.value.unwrap()).unwrap().parse::<u32>().ok(),
                        _ => None,
                    };
                    prop_assert_eq!(taken, (!model.is_empty()).then(|| model.remove(0).0));
                }
                let counts = buffer.counts();
                prop_assert_eq!((counts.events, counts.bytes), (model.len(), model.iter().map(|(_, _, size)| size).sum()));
                prop_assert_eq!(counts.evicted, evicted);
            }
            let left: Vec<u32> = model.iter().map(|(number, _, _)| *number).collect();
            prop_assert_eq!(drain(&buffer), left);
            prop_assert_eq!((buffer.counts().events, buffer.counts().bytes), (0, 0));
        }
    }
}
