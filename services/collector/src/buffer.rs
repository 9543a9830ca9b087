//! The bounded buffer between the sources and the log.
//!
//! Offering never blocks: a full buffer gives up its oldest sample. Marks (events that begin or end something) are
//! given up only when nothing else is left, because no later event makes up for them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_bus::Outgoing;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub events: usize,
    /// Keys, values and headers.
    pub bytes: usize,
}

/// What was offered and given up, since creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferCounts {
    pub offered: u64,
    /// Given up for want of room.
    pub evicted: u64,
    /// Offered after the end.
    pub too_late: u64,
    /// Waiting now.
    pub events: usize,
    pub bytes: usize,
}

/// What offering an event cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// It is in; so many others were given up for it.
    Evicting(u64),
    /// It is larger than the whole buffer and was given up itself.
    TooLarge,
    /// The buffer is closed.
    TooLate,
}

/// What [`Buffer::take`] found.
#[derive(Debug)]
pub enum Taken {
    Event(Outgoing),
    /// Nothing came in time.
    Empty,
    /// Closed and empty: nothing will ever come.
    Ended,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    bytes: usize,
    event: Outgoing,
}

#[derive(Debug, Default)]
struct State {
    samples: VecDeque<Entry>,
    marks: VecDeque<Entry>,
    next: u64,
    counts: BufferCounts,
    closed: Option<Instant>,
}

/// See the module.
#[derive(Debug)]
pub struct Buffer {
    limits: Limits,
    state: Mutex<State>,
    changed: Condvar,
}

fn size(event: &Outgoing) -> usize {
    let headers: usize = event.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    event.key.as_ref().map_or(0, bytes::Bytes::len) + event.value.as_ref().map_or(0, bytes::Bytes::len) + headers
}

impl Buffer {
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event in, giving up older ones where there is no room.
    pub fn offer(&self, event: Outgoing, mark: bool) -> Offered {
        let bytes = size(&event);
        let mut state = self.lock();
        state.counts.offered += 1;
        if state.closed.is_some() {
            state.counts.too_late += 1;
            return Offered::TooLate;
        }
        if bytes > self.limits.bytes {
            state.counts.evicted += 1;
            return Offered::TooLarge;
        }
        let mut evicted = 0;
        while state.counts.events >= self.limits.events || state.counts.bytes + bytes > self.limits.bytes {
            let Some(oldest) = state.samples.pop_front().or_else(|| state.marks.pop_front()) else { break };
            state.counts.events -= 1;
            state.counts.bytes -= oldest.bytes;
            evicted += 1;
        }
        state.counts.evicted += evicted;
        let entry = Entry { number: state.next, bytes, event };
        state.next += 1;
        state.counts.events += 1;
        state.counts.bytes += bytes;
        if mark {
            state.marks.push_back(entry);
        } else {
            state.samples.push_back(entry);
        }
        drop(state);
        self.changed.notify_one();
        Offered::Evicting(evicted)
    }

    /// The oldest event, waiting at most `timeout` for one.
    pub fn take(&self, timeout: Duration) -> Taken {
        let idle = |state: &mut State| state.counts.events == 0 && state.closed.is_none();
        let (mut state, _) = self.changed.wait_timeout_while(self.lock(), timeout, idle).unwrap_or_else(PoisonError::into_inner);
        let mark_first = match (state.marks.front(), state.samples.front()) {
            (Some(mark), Some(sample)) => mark.number < sample.number,
            (mark, _) => mark.is_some(),
        };
        let entry = if mark_first { state.marks.pop_front() } else { state.samples.pop_front() };
        match entry {
            Some(entry) => {
                state.counts.events -= 1;
                state.counts.bytes -= entry.bytes;
                Taken::Event(entry.event)
            }
            None if state.closed.is_some() => Taken::Ended,
            None => Taken::Empty,
        }
    }

    /// Takes nothing in any more.
    pub fn close(&self) {
        self.lock().closed.get_or_insert_with(Instant::now);
        self.changed.notify_all();
    }

    /// Throws away what is waiting; returns how much that was.
    pub fn abandon(&self) -> u64 {
        let mut state = self.lock();
        let waiting = state.counts.events as u64;
        state.samples.clear();
        state.marks.clear();
        (state.counts.events, state.counts.bytes) = (0, 0);
        waiting
    }

    /// Since when it is closed.
    pub fn closed(&self) -> Option<Instant> {
        self.lock().closed
    }

    pub fn counts(&self) -> BufferCounts {
        self.lock().counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(number: u32) -> Outgoing {
        let value = Some(bytes::Bytes::from(number.to_string()));
        Outgoing { topic: "t".into(), partition: None, key: None, value, headers: Vec::new() }
    }

    fn drain(buffer: &Buffer) -> Vec<u32> {
        std::iter::from_fn(|| match buffer.take(Duration::ZERO) {
            Taken::Event(event) => Some(std::str::from_utf8(&event.value.unwrap()).unwrap().parse().unwrap()),
            Taken::Empty | Taken::Ended => None,
        })
        .collect()
    }

    #[test]
    fn the_oldest_sample_goes_first_and_marks_stay() {
        let buffer = Buffer::new(Limits { events: 3, bytes: 1000 });
        for (number, mark) in [(1, true), (2, false), (3, false), (4, false), (5, true)] {
            buffer.offer(event(number), mark);
        }
        assert_eq!(drain(&buffer), [1, 4, 5]);
        assert_eq!(buffer.counts().evicted, 2);
    }

    #[test]
    fn bytes_are_bounded_and_an_event_larger_than_all_is_given_up_itself() {
        let buffer = Buffer::new(Limits { events: 100, bytes: 4 });
        assert_eq!(buffer.offer(event(12_345), false), Offered::TooLarge);
        buffer.offer(event(11), false);
        buffer.offer(event(22), false);
        assert_eq!(buffer.offer(event(333), false), Offered::Evicting(2));
        assert_eq!((buffer.counts().bytes, drain(&buffer)), (3, vec![333]));
    }

    #[test]
    fn after_the_end_nothing_is_taken_in() {
        let buffer = Buffer::new(Limits { events: 3, bytes: 1000 });
        buffer.offer(event(1), false);
        buffer.close();
        assert_eq!(buffer.offer(event(2), true), Offered::TooLate);
        assert_eq!(drain(&buffer), [1]);
        assert!(matches!(buffer.take(Duration::from_mins(1)), Taken::Ended));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn nothing_is_lost_uncounted_and_order_is_kept(steps in prop::collection::vec(prop::option::of(any::<bool>()), 0..200), events in 1usize..8, bytes in 3usize..20) {
            let buffer = Buffer::new(Limits { events, bytes });
            let (mut number, mut taken) = (0, Vec::new());
            for step in steps {
                match step {
                    Some(mark) => { number += 1; buffer.offer(event(number), mark); }
                    None => taken.extend(match buffer.take(Duration::ZERO) { Taken::Event(e) => Some(String::from_utf8(e.value.unwrap().to_vec()).unwrap().parse::<u32>().unwrap()), _ => None }),
                }
                let counts = buffer.counts();
                prop_assert!(counts.events <= events && counts.bytes <= bytes);
            }
            taken.extend(drain(&buffer));
            prop_assert!(taken.is_sorted());
            let counts = buffer.counts();
            prop_assert_eq!(counts.offered, taken.len() as u64 + counts.evicted);
        }
    }
}
