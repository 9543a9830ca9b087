//! Sources: one device's telemetry from one collector, or one rank's progress from one collector.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Meter, Scope};
use serde::{Deserialize, Serialize};

use crate::settings::FoldSettings;
use crate::window::Cuts;
use crate::window::energy::{GpuSums, Pending, Sample, add_step};
use crate::window::progress::{COUNTERS, Count, RankSums};

/// Whether a workload waits for a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    Live,
    /// Silent for longer than the grace, in log time.
    Idle,
    /// Its events have lagged their stamps for longer than the grace.
    Lagging,
    /// Its last event was marked so.
    Ended,
}

/// When a source was heard.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pulse {
    /// Time of its newest event.
    pub last: EventTime,
    /// The same, not ahead of the log.
    pub capped: EventTime,
    /// Log clock at its newest event.
    pub clock: i64,
    /// Log clock since which each event lagged its stamp by more than the grace.
    pub lagging_since: Option<i64>,
    pub life: Life,
    /// Nobody expects it back: it ended, or the job was laid out anew while it was silent.
    pub gone: bool,
}

impl Pulse {
    pub fn new(last: EventTime, capped: EventTime, clock: i64) -> Self {
        Self { last, capped, clock, lagging_since: None, life: Life::Live, gone: false }
    }

    /// Takes a new event.
    pub fn beat(&mut self, time: EventTime, capped: EventTime, stamp: EventTime, clock: i64, settings: &FoldSettings) {
        self.last = time;
        self.capped = self.capped.max(capped);
        self.clock = clock;
        self.gone = false;
        let lags =
            settings.max_future.is_some() && settings.idle_grace.is_some_and(|grace| stamp.micros() - time.micros() > grace);
        self.lagging_since = lags.then(|| self.lagging_since.unwrap_or(clock));
        self.life = if self.lagged_out(clock, settings) { Life::Lagging } else { Life::Live };
    }

    fn lagged_out(&self, clock: i64, settings: &FoldSettings) -> bool {
        matches!((self.lagging_since, settings.idle_grace), (Some(since), Some(grace)) if clock - since >= grace)
    }

    /// Brings `life` up to the log clock.
    pub fn age(&mut self, clock: i64, settings: &FoldSettings) {
        if self.life == Life::Ended || self.life == Life::Idle {
            return;
        }
        if settings.idle_grace.is_some_and(|grace| clock - self.clock >= grace) {
            self.life = Life::Idle;
        } else if self.lagged_out(clock, settings) {
            self.life = Life::Lagging;
        }
    }

    /// The log clock at which `life` changes if nothing is heard.
    pub fn due(&self, settings: &FoldSettings) -> Option<i64> {
        let grace = settings.idle_grace?;
        match self.life {
            Life::Live => Some(self.lagging_since.unwrap_or(self.clock).min(self.clock) + grace),
            Life::Lagging => Some(self.clock + grace),
            Life::Idle | Life::Ended => None,
        }
    }

    pub fn is_live(&self) -> bool {
        self.life == Life::Live
    }

    /// Silent, and still expected to speak.
    pub fn is_missing(&self) -> bool {
        self.life == Life::Idle && !self.gone
    }

    pub fn end(&mut self) {
        self.life = Life::Ended;
        self.gone = true;
    }
}

/// A device seen by a collector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuSource {
    pub device: Box<str>,
    pub collector: Box<str>,
    pub meter: Meter,
    pub pulse: Pulse,
    pub sample: Sample,
    /// By open stretch; shorter than the workload's where nothing came yet.
    pub stretches: VecDeque<GpuSums>,
    /// Steps that are not in `stretches` yet, in order.
    #[serde(default)]
    pub pending: VecDeque<Pending>,
    /// Joules of closed time since the last window.
    pub unassigned: f64,
    /// The device's energy of the newest closed window that has any came from here.
    pub primary: bool,
}

/// Most steps of one source that wait; beyond it the oldest are summed, and a run or span that begins within them later is
/// divided by time and counted.
const MAX_PENDING: usize = 1_024;

impl GpuSource {
    /// Takes a step; what lies in closed time is unassigned.
    pub fn step(&mut self, mut step: Pending, cuts: &Cuts, settled: EventTime) {
        let open = cuts.front().map_or(step.to, |first| (*first).clamp(step.from, step.to));
        if open > step.from {
            self.unassigned += step.flow.map_or(0.0, |flow| flow.joules(step.from, open));
            step.from = open;
        }
        self.pending.push_back(step);
        while self.pending.front().is_some_and(|step| step.to < settled) || self.pending.len() > MAX_PENDING {
            if let Some(step) = self.pending.pop_front() {
                add_step(&mut self.stretches, cuts, &step);
            }
        }
    }

    /// Sums every step up to `end`; one that goes on beyond it is divided there.
    pub fn settle(&mut self, cuts: &Cuts, end: EventTime) {
        while let Some(step) = self.pending.front_mut().filter(|step| step.from < end) {
            if step.to <= end {
                add_step(&mut self.stretches, cuts, step);
                self.pending.pop_front();
            } else {
                add_step(&mut self.stretches, cuts, &Pending { to: end, gauges: None, ..*step });
                step.from = end;
                break;
            }
        }
    }
}

/// A rank seen by a collector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankSource {
    pub rank: u32,
    pub collector: Box<str>,
    pub scope: Scope,
    pub pulse: Pulse,
    pub count: Count,
    /// Largest totals so far: up to these, work is done again.
    pub done: [f64; COUNTERS],
    pub stretches: VecDeque<RankSums>,
    pub unassigned: [f64; COUNTERS],
    /// What it does now.
    pub span: Option<Box<str>>,
    /// It has named a span at least once.
    pub names_spans: bool,
    pub remaining_seconds: Option<f64>,
    pub checkpoint: Option<EventTime>,
}

/// Sources by name without an allocation per look-up.
#[derive(Clone, Default)]
pub struct Index {
    table: hashbrown::HashTable<u32>,
    hasher: foldhash::fast::FixedState,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Index({})", self.table.len())
    }
}

impl Index {
    fn hash(&self, key: &impl std::hash::Hash) -> u64 {
        use std::hash::BuildHasher;
        self.hasher.hash_one(key)
    }

    /// The place of the item with this key, where `is` confirms it.
    pub fn find(&self, key: &impl std::hash::Hash, is: impl Fn(usize) -> bool) -> Option<usize> {
        self.table.find(self.hash(key), |i| is(*i as usize)).map(|i| *i as usize)
    }

    /// Adds a place under a key; `hash_of` gives the key's hash input of each place for growing.
    pub fn insert<K: std::hash::Hash>(&mut self, place: usize, key_of: impl Fn(usize) -> K) {
        let hasher = self.hasher.clone();
        let hash = |i: &u32| {
            use std::hash::BuildHasher;
            hasher.hash_one(key_of(*i as usize))
        };
        self.table.insert_unique(hash(&(place as u32)), place as u32, hash);
    }

    pub fn remove(&mut self, key: &impl std::hash::Hash, place: usize) {
        let hash = self.hash(key);
        if let Ok(entry) = self.table.find_entry(hash, |i| *i as usize == place) {
            entry.remove();
        }
    }

    pub fn clear(&mut self) {
        self.table.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SECOND;

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * SECOND)
    }

    #[test]
    fn idle_once_the_log_is_the_grace_past_its_last_event() {
        let settings = FoldSettings::default();
        let mut pulse = Pulse::new(at(0), at(0), 0);
        pulse.age(119 * SECOND, &settings);
        assert_eq!((pulse.life, pulse.due(&settings)), (Life::Live, Some(120 * SECOND)));
        pulse.age(120 * SECOND, &settings);
        assert_eq!((pulse.life, pulse.due(&settings)), (Life::Idle, None));
    }

    #[test]
    fn a_clock_that_lags_for_long_is_not_waited_for_until_it_recovers() {
        let settings = FoldSettings::default();
        let mut pulse = Pulse::new(at(0), at(0), 0);
        for clock in [0, 60, 119] {
            pulse.beat(at(clock - 300), at(clock - 300), at(clock), clock * SECOND, &settings);
            assert_eq!(pulse.life, Life::Live, "after {clock} s");
        }
        pulse.beat(at(-179), at(-179), at(120), 120 * SECOND, &settings);
        assert_eq!(pulse.life, Life::Lagging);
        pulse.beat(at(121), at(121), at(121), 121 * SECOND, &settings);
        assert_eq!(pulse.life, Life::Live);
        let off = FoldSettings { max_future: None, ..settings };
        let mut pulse = Pulse::new(at(0), at(0), 0);
        pulse.beat(at(1), at(1), at(9_000), 0, &off);
        pulse.beat(at(2), at(2), at(9_200), 119 * SECOND, &off);
        assert_eq!(pulse.lagging_since, None);
    }
}
