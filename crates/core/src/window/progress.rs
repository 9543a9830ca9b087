//! Counts progress from one source's counters: new, redone and unknown steps.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Origin, TrainingProgress};
use serde::Deserialize;

use super::{SliceEdges, slice_mut, spread_over_slices};

/// Samples, tokens, steps.
pub const COUNTERS: usize = 3;
pub const SAMPLES: usize = 0;

/// The counters of an event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProgressCounters {
    pub time: EventTime,
    pub totals: [Option<f64>; COUNTERS],
    pub rates: [Option<f64>; COUNTERS],
}

impl ProgressCounters {
    pub fn from_event(event: &TrainingProgress) -> Self {
        Self {
            time: event.time,
            totals: [event.samples_total, event.tokens_total, event.steps_total],
            rates: [event.samples_per_second, event.tokens_per_second, None],
        }
    }
}

/// Longest time between two values of one counter of a source, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgressGaps {
    /// For totals: a total that is away for longer is no longer waited for.
    pub total: i64,
    /// For rates: if two are further apart, the time between them counts as unknown.
    pub rate: i64,
}

/// A value and the time of its event.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct TimedValue {
    #[serde(rename = "t")]
    pub time: EventTime,
    #[serde(rename = "v")]
    pub value: f64,
}

/// The last values of one counter of a source. Events that do not name the counter leave it alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CounterState {
    #[serde(rename = "c")]
    pub total: Option<TimedValue>,
    #[serde(rename = "r")]
    pub rate: Option<TimedValue>,
    /// Amount that rates have added since the last total, and the time up to which they did.
    #[serde(rename = "a")]
    pub added: Option<TimedValue>,
    /// The total is not waited for: the source fell silent after it, or went on without it for too long. The time at which the
    /// difference to the next total was made is unknown.
    #[serde(rename = "i")]
    pub idle: bool,
}

impl CounterState {
    /// Takes a total and a rate of one time; the gain since the former ones and since when.
    fn take_values(
        &mut self,
        time: EventTime,
        total: Option<f64>,
        rate: Option<f64>,
        done: f64,
        gaps: ProgressGaps,
    ) -> (CounterGain, EventTime) {
        let near = |known: &TimedValue| time.micros() - known.time.micros() <= gaps.rate;
        let by_rate = match (self.rate.filter(near), rate) {
            (Some(before), Some(after)) => (CounterGain::Rate(before.value, after), before.time),
            _ => (CounterGain::Unknown, time),
        };
        let gain = match (self.total, total) {
            (Some(before), Some(after)) if after < before.value => (CounterGain::Fall, time),
            (Some(before), Some(after)) => {
                let (from, added) = self.added.map_or((before.time, 0.0), |added| (added.time, added.value));
                (CounterGain::Counter((before.value + added).min(after), after, done), from)
            }
            // The next total includes the work done meanwhile; a rate counts only if that total comes late.
            (Some(before), None) if near(&before) && !self.idle => (CounterGain::Unknown, time),
            (Some(_), None) => {
                if let (CounterGain::Rate(..), from) = by_rate {
                    let amount = by_rate.0.amounts_between(0.0, 1.0, time.seconds_since(from)).0;
                    let before = self.added.map_or(0.0, |added| added.value);
                    self.added = Some(TimedValue { time, value: before + amount });
                }
                by_rate
            }
            (None, _) => by_rate,
        };
        if let Some(value) = total {
            (self.total, self.added) = (Some(TimedValue { time, value }), None);
        }
        if let Some(value) = rate {
            self.rate = Some(TimedValue { time, value });
        }
        gain
    }

    /// Returns whether the total, and whether the rate was reported at this time.
    pub fn reported_at(&self, time: EventTime) -> (bool, bool) {
        let at = |known: Option<TimedValue>| known.is_some_and(|known| known.time == time);
        (at(self.total), at(self.rate))
    }

    /// Returns whether a total above 0 was reported at this time.
    pub fn counts_from(&self, time: EventTime) -> bool {
        self.total.is_some_and(|total| total.time == time && total.value > 0.0)
    }

    /// Returns the time up to which the counter is known, if more of it is about to come.
    fn awaited_from(&self, time: EventTime, gaps: ProgressGaps) -> Option<EventTime> {
        let total = self.total.filter(|_| !self.idle).map(|total| (self.added.unwrap_or(total), gaps.total));
        let (known, gap) = total.or(self.rate.map(|rate| (rate, gaps.rate)))?;
        let silent = time.micros() - known.time.micros();
        (0 < silent && silent < gap).then_some(known.time)
    }

    /// Returns whether the total was left out for so long that an event at `time` without it is not waited for any more.
    fn is_given_up(&self, time: EventTime, gaps: ProgressGaps) -> bool {
        self.added.or(self.total).is_some_and(|known| time.micros() - known.time.micros() >= gaps.total)
    }
}

/// Returns up to when every counter that a source gives is known, if an event at `time` left one out. An event without a
/// counter leaves it unknown, so a source that goes on with such events alone is waited for as if it were silent.
pub fn awaited_from(counters: &[CounterState; COUNTERS], time: EventTime, gaps: ProgressGaps) -> Option<EventTime> {
    counters.iter().filter_map(|memory| memory.awaited_from(time, gaps)).min()
}

/// One counter between two events.
#[derive(Debug, Clone, Copy, PartialEq)]
enum CounterGain {
    Unknown,
    /// It began anew.
    Fall,
    /// A gain from the first value to the second. Work up to the third value was done before.
    Counter(f64, f64, f64),
    /// A rate from the first value to the second, per second.
    Rate(f64, f64),
}

impl CounterGain {
    /// Returns the new and redone amount between two fractions of the step of `seconds`.
    fn amounts_between(self, from: f64, to: f64, seconds: f64) -> (f64, f64) {
        match self {
            Self::Unknown | Self::Fall => (0.0, 0.0),
            Self::Counter(a, b, done) => {
                let at = |fraction: f64| if fraction >= 1.0 { b } else { a + (b - a) * fraction };
                let (low, high) = (at(from), at(to));
                let redone = (high.min(done) - low).max(0.0);
                (high - low - redone, redone)
            }
            Self::Rate(a, b) => ((a + (b - a) * (from + to) * 0.5) * (to - from) * seconds, 0.0),
        }
    }
}

/// One source's part of one slice.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RankSums {
    /// New amounts, by counter.
    #[serde(rename = "a")]
    pub amounts: [f64; COUNTERS],
    /// Amounts done again.
    #[serde(rename = "r")]
    pub redone: [f64; COUNTERS],
    /// Microseconds of known progress, by counter.
    #[serde(rename = "c")]
    pub covered: [i64; COUNTERS],
    /// Start, as in the sums of energy.
    #[serde(rename = "f")]
    pub from: EventTime,
    #[serde(rename = "t")]
    pub to: EventTime,
    #[serde(rename = "g")]
    pub largest: i64,
    #[serde(rename = "e")]
    pub events: u64,
    #[serde(rename = "o")]
    pub origin: Origin,
    #[serde(rename = "l")]
    pub loss: f64,
    #[serde(rename = "m")]
    pub losses: u32,
    /// A counter fell in this slice: the job started again.
    #[serde(rename = "d")]
    pub fell: bool,
    /// New amounts that events of this slice reported, and that belong to no known or to closed time.
    #[serde(rename = "u")]
    pub unassigned: [f64; COUNTERS],
}

impl RankSums {
    /// Microseconds with any known progress.
    pub fn known_micros(&self) -> i64 {
        self.covered.iter().copied().max().unwrap_or(0)
    }

    pub fn has_data(&self) -> bool {
        self.events > 0 || self.from < self.to
    }

    fn extend_to(&mut self, from: EventTime, to: EventTime) {
        if self.from >= self.to {
            (self.from, self.to) = (from, to);
        } else {
            (self.from, self.to) = (self.from.min(from), self.to.max(to));
        }
    }

    /// Counts an event of this slice.
    pub fn count_event(&mut self, event: &TrainingProgress, fell: bool) {
        if self.events == 0 && self.from >= self.to {
            (self.from, self.to) = (event.time, event.time);
        }
        self.events += 1;
        self.origin = self.origin.max(event.origin);
        self.fell |= fell;
        if let Some(loss) = event.loss {
            self.loss += loss;
            self.losses += 1;
        }
    }

    /// Like [`super::energy::GpuSums::split`].
    pub fn split(&mut self, at: EventTime) -> (Self, bool) {
        if self.from >= self.to || self.to <= at {
            return (Self::default(), false);
        }
        if self.from >= at {
            return (std::mem::take(self), false);
        }
        let right = (self.to.micros() - at.micros()) as f64 / (self.to.micros() - self.from.micros()) as f64;
        let mut after = Self { from: at, to: self.to, largest: self.largest, origin: self.origin, ..Self::default() };
        for i in 0..COUNTERS {
            after.amounts[i] = self.amounts[i] * right;
            self.amounts[i] -= after.amounts[i];
            after.redone[i] = self.redone[i] * right;
            self.redone[i] -= after.redone[i];
            after.covered[i] = (self.covered[i] as f64 * right).round() as i64;
            self.covered[i] -= after.covered[i];
        }
        self.to = at;
        (after, true)
    }
}

/// A step of one source: each counter from its last known value to the present one.
#[derive(Debug, Clone, Copy)]
pub struct ProgressStep {
    to: EventTime,
    gains: [(CounterGain, EventTime); COUNTERS],
    /// Counters whose gain lies in an idle gap.
    idle: [bool; COUNTERS],
    /// A counter fell.
    pub fell: bool,
}

impl ProgressStep {
    /// Returns the step from the known state to an event, and adds the event to both. `done` holds the largest totals before the
    /// event. `idle`: the source was silent for too long before it.
    pub fn advance_to(
        counters: &mut [CounterState; COUNTERS],
        count: &ProgressCounters,
        done: &mut [f64; COUNTERS],
        idle: bool,
        gaps: ProgressGaps,
    ) -> Self {
        let mut idles = [idle; COUNTERS];
        let gains = std::array::from_fn(|i| {
            let memory = &mut counters[i];
            let unnamed = memory.total.is_some() && count.totals[i].is_none();
            memory.idle |= memory.total.is_some() && idle;
            let gain = memory.take_values(count.time, count.totals[i], count.rates[i], done[i], gaps);
            // Rates between two received events give the time of the gain.
            idles[i] |= memory.idle && matches!(gain.0, CounterGain::Counter(..));
            memory.idle = unnamed && (memory.idle || memory.is_given_up(count.time, gaps));
            gain
        });
        note_done(done, count);
        let fell = gains.iter().any(|(gain, _)| *gain == CounterGain::Fall);
        Self { to: count.time, gains, idle: idles, fell }
    }

    /// Returns the new and redone amount of counter `i` over the whole step.
    pub fn total_amounts(&self, i: usize) -> (f64, f64) {
        let (gain, from) = self.gains[i];
        gain.amounts_between(0.0, 1.0, self.to.seconds_since(from))
    }

    /// Spreads the step over the slices; returns the new amounts that lie before the first of them or at no known time.
    pub fn add_to_slices(&self, slices: &mut VecDeque<RankSums>, slice_edges: &SliceEdges) -> [f64; COUNTERS] {
        std::array::from_fn(|i| {
            let (gain, from) = self.gains[i];
            if matches!(gain, CounterGain::Unknown | CounterGain::Fall) {
                return 0.0;
            }
            if self.idle[i] || from == self.to {
                return self.total_amounts(i).0;
            }
            let duration = (self.to.micros() - from.micros()) as f64;
            let fraction = |time: EventTime| (time.micros() - from.micros()) as f64 / duration;
            let before = spread_over_slices(slice_edges, from, self.to, |s, a, b| {
                let (new, redone) = gain.amounts_between(fraction(a), fraction(b), duration / 1e6);
                let sums = slice_mut(slices, s);
                sums.extend_to(a, b);
                sums.amounts[i] += new;
                sums.redone[i] += redone;
                sums.covered[i] += b.micros() - a.micros();
            });
            gain.amounts_between(0.0, before as f64 / duration, duration / 1e6).0
        })
    }
}

/// Notes the time between two events of a source.
pub fn add_time(slices: &mut VecDeque<RankSums>, slice_edges: &SliceEdges, from: EventTime, to: EventTime, origin: Origin) {
    spread_over_slices(slice_edges, from, to, |i, a, b| {
        let sums = slice_mut(slices, i);
        sums.extend_to(a, b);
        sums.largest = sums.largest.max(b.micros() - a.micros());
        sums.origin = sums.origin.max(origin);
    });
}

/// Takes an event's totals into the largest totals so far.
pub fn note_done(done: &mut [f64; COUNTERS], count: &ProgressCounters) {
    for (done, total) in done.iter_mut().zip(count.totals) {
        *done = total.map_or(*done, |total| done.max(total));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * 1_000_000)
    }

    fn total(seconds: i64, samples: f64) -> ProgressCounters {
        ProgressCounters { time: at(seconds), totals: [Some(samples), None, None], rates: [None; COUNTERS] }
    }

    fn rate(seconds: i64, rate: f64) -> ProgressCounters {
        ProgressCounters { time: at(seconds), totals: [None; COUNTERS], rates: [Some(rate), None, None] }
    }

    const GAPS: ProgressGaps = ProgressGaps { total: 120_000_000, rate: 60_000_000 };

    /// Fell, new and redone samples of each event.
    fn steps(counts: &[ProgressCounters]) -> Vec<(bool, f64, f64)> {
        let (mut memory, mut done) = (Default::default(), [0.0; COUNTERS]);
        let steps = counts.iter().map(|count| ProgressStep::advance_to(&mut memory, count, &mut done, false, GAPS));
        steps.map(|step| (step.fell, step.total_amounts(SAMPLES).0, step.total_amounts(SAMPLES).1)).collect()
    }

    #[test]
    fn a_stretch_that_is_divided_keeps_its_whole() {
        let whole = RankSums {
            amounts: [30.0; COUNTERS],
            redone: [3.0; COUNTERS],
            covered: [30_000_000; COUNTERS],
            from: at(10),
            to: at(40),
            ..RankSums::default()
        };
        let mut before = whole.clone();
        let (after, divided) = before.split(at(20));
        assert!(divided);
        assert_eq!((before.from, before.to, after.from, after.to), (at(10), at(20), at(20), at(40)));
        assert_eq!((before.amounts, after.amounts), ([10.0; COUNTERS], [20.0; COUNTERS]));
        assert_eq!((before.redone, after.redone), ([1.0; COUNTERS], [2.0; COUNTERS]));
        assert_eq!((before.covered, after.covered), ([10_000_000; COUNTERS], [20_000_000; COUNTERS]));
        // At an edge or outside, nothing is divided.
        let (after, divided) = before.split(at(20));
        assert_eq!((after, divided), (RankSums::default(), false));
        let (after, divided) = before.split(at(5));
        assert_eq!((after.amounts, divided, before), ([10.0; COUNTERS], false, RankSums::default()));
    }

    #[test]
    fn a_fall_adds_nothing_and_what_is_redone_counts_apart_until_the_former_maximum() {
        let seen = steps(&[total(0, 1000.0), total(10, 800.0), total(20, 1100.0)]);
        assert_eq!(seen, [(false, 0.0, 0.0), (true, 0.0, 0.0), (false, 100.0, 200.0)]);
    }

    #[test]
    fn a_rate_is_integrated() {
        assert_eq!(steps(&[rate(0, 10.0), rate(10, 20.0)])[1], (false, 150.0, 0.0));
        assert_eq!(steps(&[rate(0, 10.0), rate(61, 20.0)])[1], (false, 0.0, 0.0), "too far apart");
    }

    #[test]
    fn an_event_without_the_counter_changes_nothing_and_a_rate_counts_only_where_the_counter_is_long_in_coming() {
        let loss = ProgressCounters { rates: [None; COUNTERS], ..rate(5, 0.0) };
        assert_eq!(steps(&[total(0, 0.0), loss, total(10, 100.0)])[2].1, 100.0);
        assert_eq!(steps(&[rate(0, 10.0), loss, rate(10, 20.0)])[2].1, 150.0);
        let seen = steps(&[total(0, 0.0), rate(50, 9.0), rate(100, 9.0), rate(110, 9.0), total(120, 1000.0), total(121, 1001.0)]);
        assert_eq!(seen.iter().map(|step| step.1).collect::<Vec<_>>(), [0.0, 0.0, 450.0, 90.0, 460.0, 1.0]);
        let seen = steps(&[total(0, 0.0), rate(50, 9.0), rate(100, 9.0), total(120, 400.0)]);
        assert_eq!(seen[3], (false, 0.0, 0.0), "a rate that was too high is no fall");
    }

    #[test]
    fn what_is_divided_keeps_its_origin_and_its_longest_step() {
        let largest = 7_000_000;
        let whole = RankSums { from: at(10), to: at(40), largest, origin: Origin::Simulated, events: 4, ..RankSums::default() };
        let (after, _) = whole.clone().split(at(20));
        assert_eq!((after.largest, after.origin, after.events), (largest, Origin::Simulated, 0));
    }

    #[test]
    fn a_counter_that_does_not_move_has_not_fallen() {
        assert_eq!(steps(&[total(0, 100.0), total(10, 100.0)])[1], (false, 0.0, 0.0));
    }

    #[test]
    fn a_rate_waits_for_the_total_that_is_about_to_come() {
        // The rate is 9 a second, the total that follows gives 10.
        let seen = steps(&[total(0, 0.0), rate(10, 9.0), rate(20, 9.0), total(30, 300.0)]);
        assert_eq!(seen.iter().map(|step| step.1).collect::<Vec<_>>(), [0.0, 0.0, 0.0, 300.0]);
    }

    #[test]
    fn what_a_total_adds_beyond_the_rate_of_the_same_time_belongs_to_no_known_time() {
        let (mut memory, mut done) = (Default::default(), [0.0; COUNTERS]);
        let edges: SliceEdges = [0, 60, 120].map(at).into();
        let mut slices = VecDeque::new();
        let mut add = |count: &ProgressCounters| {
            ProgressStep::advance_to(&mut memory, count, &mut done, false, GAPS).add_to_slices(&mut slices, &edges)[SAMPLES]
        };
        // By rate 450, as the total is long in coming.
        assert_eq!([total(0, 0.0), rate(50, 9.0), rate(100, 9.0)].map(|count| add(&count)), [0.0; 3]);
        assert_eq!(add(&total(100, 1_000.0)), 550.0);
        assert_eq!(slices.iter().map(|sums| sums.amounts[SAMPLES]).collect::<Vec<_>>(), [90.0, 360.0]);
    }

    #[test]
    fn a_counter_is_awaited_after_it_was_named_and_before_the_gap_is_over() {
        let awaited =
            |memory: CounterState, seconds| memory.awaited_from(at(seconds), GAPS).map(|from| from.micros() / 1_000_000);
        let known = |seconds| Some(TimedValue { time: at(seconds), value: 1.0 });
        let counted = CounterState { total: known(100), ..CounterState::default() };
        let seen = [100, 101, 219, 220, 300].map(|seconds| awaited(counted, seconds));
        assert_eq!(seen, [None, Some(100), Some(100), None, None]);
        // Rates have reported more since; a total that is given up is not awaited, rates are for their own gap.
        assert_eq!(awaited(CounterState { added: known(150), ..counted }, 200), Some(150));
        let given_up = CounterState { idle: true, rate: known(150), ..counted };
        assert_eq!([150, 151, 209, 210].map(|seconds| awaited(given_up, seconds)), [None, Some(150), Some(150), None]);
    }

    #[test]
    fn total_and_rate_are_reported_at_a_time_each_by_itself() {
        let mut memory = CounterState::default();
        assert_eq!(memory.reported_at(at(0)), (false, false));
        memory.take_values(at(10), Some(1.0), None, 0.0, GAPS);
        assert_eq!((memory.reported_at(at(10)), memory.reported_at(at(9))), ((true, false), (false, false)));
        memory.take_values(at(20), None, Some(1.0), 0.0, GAPS);
        assert_eq!((memory.reported_at(at(20)), memory.reported_at(at(10))), ((false, true), (true, false)));
    }

    #[test]
    fn a_part_of_a_rate_is_that_of_its_own_time() {
        // From 10 to 20 a second in 10 s: the second half has 17.5 a second.
        assert_eq!(CounterGain::Rate(10.0, 20.0).amounts_between(0.5, 1.0, 10.0), (87.5, 0.0));
    }

    #[test]
    fn what_was_done_before_the_first_cut_is_handed_back() {
        let (mut memory, mut done) = (Default::default(), [0.0; COUNTERS]);
        let edges: SliceEdges = [40, 60, 140].map(at).into();
        ProgressStep::advance_to(&mut memory, &total(0, 0.0), &mut done, false, GAPS);
        let step = ProgressStep::advance_to(&mut memory, &total(100, 500.0), &mut done, false, GAPS);
        let mut slices = VecDeque::new();
        assert_eq!(step.add_to_slices(&mut slices, &edges), [200.0, 0.0, 0.0]);
        assert_eq!(slices.iter().map(|sums| sums.amounts[SAMPLES]).collect::<Vec<_>>(), [100.0, 200.0]);
        // The same of a rate, from 10 to 20 a second in 32 s: 12.5 a second in the first half, 17.5 in the second.
        let (mut memory, mut slices) = (Default::default(), VecDeque::new());
        ProgressStep::advance_to(&mut memory, &rate(24, 10.0), &mut done, false, GAPS);
        let step = ProgressStep::advance_to(&mut memory, &rate(56, 20.0), &mut done, false, GAPS);
        assert_eq!(step.add_to_slices(&mut slices, &edges), [200.0, 0.0, 0.0]);
        assert_eq!(slices[0].amounts[SAMPLES], 280.0);
    }

    #[test]
    fn an_event_or_time_touches_a_stretch_and_an_event_alone_is_a_moment() {
        let event = |seconds| TrainingProgress { time: at(seconds), ..TrainingProgress::default() };
        let mut sums = RankSums::default();
        assert!(!sums.has_data());
        sums.count_event(&event(10), false);
        sums.count_event(&event(10), false);
        assert_eq!((sums.has_data(), sums.from, sums.to, sums.events), (true, at(10), at(10), 2));
        let mut sums = RankSums { from: at(5), to: at(30), ..RankSums::default() };
        assert!(sums.has_data());
        sums.count_event(&event(30), false);
        assert_eq!((sums.from, sums.to), (at(5), at(30)), "the time is not forgotten");
        let mut sums = RankSums { events: 1, from: at(10), to: at(10), ..RankSums::default() };
        sums.count_event(&event(20), true);
        assert_eq!((sums.from, sums.fell), (at(10), true));
    }
}
