//! Energy from one source's samples: the counter's difference, else the integral of power, else nothing.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{GpuTelemetry, Meter, Origin};
use serde::Deserialize;

use super::{SliceEdges, slice_at, slice_mut, spread_over_slices};

/// The part of a sample that the next step needs.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct EnergySample {
    pub time: EventTime,
    pub energy: Option<f64>,
    pub power: Option<f64>,
    pub average: Option<f64>,
    pub share: f64,
    pub tenure: Option<u64>,
}

impl EnergySample {
    pub fn from_event(event: &GpuTelemetry) -> Self {
        Self {
            time: event.time,
            energy: event.energy_joules_total,
            power: event.power_watts,
            average: event.power_average_watts,
            share: event.share.unwrap_or(1.0),
            tenure: event.tenure,
        }
    }
}

impl EnergySample {
    /// Returns whether it has power, of a moment or as a mean.
    pub fn has_power(&self) -> bool {
        self.power.is_some() || self.average.is_some()
    }

    /// Leaves out power that the device cannot draw.
    pub fn leave_out_impossible_power(&mut self, meter: Meter) {
        for watts in [&mut self.power, &mut self.average] {
            *watts = watts.filter(|watts| meter.can_draw(*watts));
        }
    }
}

/// Basis of the energy of one step, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub enum EnergyBasis {
    #[serde(rename = "c")]
    Counter,
    #[serde(rename = "i")]
    Instant,
    #[serde(rename = "a")]
    Average,
}

/// Attributed power between two samples, straight from `from` to `to` watts.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct PowerSegment {
    pub kind: EnergyBasis,
    pub from: f64,
    pub to: f64,
    /// Time at which it was `from`; it was `to` the duration later, in microseconds.
    pub start: EventTime,
    pub duration: i64,
}

impl PowerSegment {
    /// Returns the power between two samples of one source; `None` if nothing is known about it.
    pub fn between(a: &EnergySample, b: &EnergySample, power_gap: i64) -> Option<Self> {
        let duration = b.time.micros() - a.time.micros();
        if a.tenure != b.tenure || duration <= 0 {
            return None;
        }
        let segment = |kind, from, to| Some(Self { kind, from, to, start: a.time, duration });
        if let (Some(before), Some(after)) = (a.energy, b.energy)
            && after >= before
        {
            let watts = (after - before) / (duration as f64 / 1e6) * (a.share + b.share) * 0.5;
            return segment(EnergyBasis::Counter, watts, watts);
        }
        if duration > power_gap {
            return None;
        }
        if let (Some(before), Some(after)) = (a.power, b.power) {
            return segment(EnergyBasis::Instant, before * a.share, after * b.share);
        }
        let (before, after) = (a.average?, b.average?);
        segment(EnergyBasis::Average, before * a.share, after * b.share)
    }

    /// Returns the same counted power all the time.
    pub fn constant(watts: f64, start: EventTime, end: EventTime) -> Self {
        Self { kind: EnergyBasis::Counter, from: watts, to: watts, start, duration: end.micros() - start.micros() }
    }

    /// Returns joules from `from` to `to`, both within the step.
    pub fn joules_between(&self, from: EventTime, to: EventTime) -> f64 {
        let seconds = (to.micros() - from.micros()) as f64 / 1e6;
        if self.kind == EnergyBasis::Counter {
            return self.from * seconds;
        }
        let slope = (self.to - self.from) / self.duration as f64;
        let at = |time: EventTime| self.from + slope * (time.micros() - self.start.micros()) as f64;
        (at(from) + at(to)) * 0.5 * seconds
    }

    /// Returns the segment by power readings alone, whatever the counters show.
    pub fn of_power(a: &EnergySample, b: &EnergySample, power_gap: i64) -> Option<Self> {
        Self::between(&EnergySample { energy: None, ..*a }, &EnergySample { energy: None, ..*b }, power_gap)
    }

    /// Returns joules from `from`, a time within the step, to its end.
    pub fn joules_since(&self, from: EventTime) -> f64 {
        self.joules_between(from, self.start.plus_micros(self.duration))
    }

    /// Returns joules of the whole step.
    pub fn total_joules(&self) -> f64 {
        self.joules_since(self.start)
    }
}

/// A sample and the step that led to it, not summed yet: a run or a span may still begin or end within it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct PendingStep {
    #[serde(rename = "f")]
    pub from: EventTime,
    #[serde(rename = "t")]
    pub to: EventTime,
    #[serde(rename = "p")]
    pub power: Option<PowerSegment>,
    #[serde(rename = "o")]
    pub origin: Origin,
    /// Gauges of the sample at `to`; `None` if the sample counts nowhere.
    #[serde(rename = "g", default)]
    pub gauges: Option<Gauges>,
    /// The energy counter is there, but contradicts power or the board.
    #[serde(rename = "c", default)]
    pub contradicted: bool,
}

impl PendingStep {
    /// Returns a sample that no step leads to.
    pub fn without_step(time: EventTime, origin: Origin, gauges: Option<Gauges>) -> Self {
        Self { from: time, to: time, power: None, origin, gauges, contradicted: false }
    }

    /// Returns its duration in microseconds.
    pub fn micros(&self) -> i64 {
        self.to.micros() - self.from.micros()
    }

    /// Returns joules of the step.
    pub fn joules(&self) -> f64 {
        self.power.map_or(0.0, |segment| segment.joules_between(self.from, self.to))
    }
}

/// The newest sample with the energy counter, while samples without it follow: the next one with it may replace the joules
/// by their power.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct LastCounterSample {
    #[serde(rename = "s")]
    pub sample: EnergySample,
    /// Joules since it that are summed by power already.
    #[serde(rename = "j")]
    pub summed: f64,
    /// The source was silent for too long since.
    #[serde(rename = "i", default)]
    pub idle: bool,
}

/// The gauges of one sample, each in its place; a sample has some of them. Of each source a second of these waits: they take little
/// more than their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(from = "[Option<f64>; GAUGES]")]
pub struct Gauges {
    /// A bit for each that is there.
    present: u8,
    /// 0 if there is none.
    values: [f64; GAUGES],
}

impl Gauges {
    /// Returns those that are there, with their places.
    pub fn iter(&self) -> impl Iterator<Item = (usize, f64)> {
        self.values.into_iter().enumerate().filter(|(i, _)| self.present & (1 << i) != 0)
    }

    /// Returns a bit for each that is there.
    pub const fn present(&self) -> u8 {
        self.present
    }
}

impl From<[Option<f64>; GAUGES]> for Gauges {
    fn from(gauges: [Option<f64>; GAUGES]) -> Self {
        let present = (0..GAUGES).filter(|i| gauges[*i].is_some()).fold(0, |present, i| present | 1 << i);
        Self { present, values: gauges.map(Option::unwrap_or_default) }
    }
}

/// Number of gauges whose mean a window has, and the place of each.
pub const GAUGES: usize = 8;
pub const UTILIZATION: usize = 0;
pub const MEMORY_UTILIZATION: usize = 1;
pub const SM_ACTIVE: usize = 2;
pub const SM_OCCUPANCY: usize = 3;
pub const TENSOR: usize = 4;
pub const DRAM: usize = 5;
pub const SM_CLOCK: usize = 6;
pub const TEMPERATURE: usize = 7;

/// Returns the gauges of a sample, each in its place.
pub fn gauges(event: &GpuTelemetry) -> Gauges {
    Gauges::from([
        event.utilization_ratio,
        event.memory_utilization_ratio,
        event.sm_active_ratio,
        event.sm_occupancy_ratio,
        event.tensor_active_ratio,
        event.dram_active_ratio,
        event.sm_clock_mhz,
        event.temperature_celsius,
    ])
}

/// One source's part of one slice.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GpuSums {
    /// Attributed energy, in joules.
    #[serde(rename = "j")]
    pub joules: f64,
    /// Microseconds of known energy by [`EnergyBasis`].
    #[serde(rename = "c")]
    pub covered: [i64; 3],
    /// The part of the slice between this source's first and last sample; equal if there is none, or only one: its time.
    #[serde(rename = "f")]
    pub from: EventTime,
    #[serde(rename = "t")]
    pub to: EventTime,
    /// The longest step, clipped to the slice, in microseconds.
    #[serde(rename = "g")]
    pub largest: i64,
    #[serde(rename = "e")]
    pub events: u64,
    #[serde(rename = "o")]
    pub origin: Origin,
    #[serde(rename = "s")]
    pub sums: [f64; GAUGES],
    #[serde(rename = "n")]
    pub counts: [u32; GAUGES],
    #[serde(rename = "h")]
    pub hottest: Option<f64>,
    /// Joules that samples of this slice report, and that belong to no known or to closed time.
    #[serde(rename = "u")]
    pub unassigned: f64,
    /// Microseconds in which the energy counter contradicts power or the board.
    #[serde(rename = "x")]
    pub contradicted: i64,
    /// Joules of the energy counter less those of power, of waits that count by power and end in this slice.
    #[serde(rename = "d")]
    pub counter_difference: f64,
}

impl GpuSums {
    /// Microseconds with known energy.
    pub fn known_micros(&self) -> i64 {
        self.covered.iter().sum()
    }

    /// Returns whether anything of the source touches the slice.
    pub fn has_data(&self) -> bool {
        self.events > 0 || self.from < self.to
    }

    fn extend_to(&mut self, from: EventTime, to: EventTime) {
        if self.from >= self.to {
            (self.from, self.to) = (from, to);
        } else {
            self.from = self.from.min(from);
            self.to = self.to.max(to);
        }
        self.largest = self.largest.max(to.micros() - from.micros());
    }

    /// Counts a sample taken in this slice.
    fn add_sample(&mut self, gauges: &Gauges, origin: Origin, time: EventTime) {
        if self.events == 0 && self.from >= self.to {
            (self.from, self.to) = (time, time);
        }
        self.events += 1;
        self.origin = self.origin.max(origin);
        for (i, value) in gauges.iter() {
            self.sums[i] += value;
            self.counts[i] += 1;
            if i == TEMPERATURE {
                self.hottest = Some(self.hottest.map_or(value, |hottest| hottest.max(value)));
            }
        }
    }

    /// Divides a slice `[start, end]` at `at`. Returns the part after it, and whether the division went through what was summed
    /// already (its energy is then divided by time).
    pub fn split(&mut self, at: EventTime) -> (Self, bool) {
        if self.from >= self.to || self.to <= at {
            return (Self::default(), false);
        }
        if self.from >= at {
            return (std::mem::take(self), false);
        }
        let right = (self.to.micros() - at.micros()) as f64 / (self.to.micros() - self.from.micros()) as f64;
        let mut after = Self { joules: self.joules * right, from: at, to: self.to, largest: self.largest, ..Self::default() };
        after.origin = self.origin;
        for (mine, theirs) in self.covered.iter_mut().zip(&mut after.covered) {
            *theirs = (*mine as f64 * right).round() as i64;
            *mine -= *theirs;
        }
        after.contradicted = (self.contradicted as f64 * right).round() as i64;
        self.contradicted -= after.contradicted;
        after.counter_difference = self.counter_difference * right;
        self.counter_difference -= after.counter_difference;
        self.joules -= after.joules;
        self.to = at;
        (after, true)
    }
}

/// Spreads one step over the slices and counts its sample; what lies before the first of them is not summed.
pub fn add_step(slices: &mut VecDeque<GpuSums>, slice_edges: &SliceEdges, step: &PendingStep) {
    spread_over_slices(slice_edges, step.from, step.to, |i, a, b| {
        let sums = slice_mut(slices, i);
        sums.extend_to(a, b);
        sums.origin = sums.origin.max(step.origin);
        if step.contradicted {
            sums.contradicted = sums.contradicted.saturating_add(b.micros() - a.micros());
        }
        if let Some(segment) = &step.power {
            sums.joules += segment.joules_between(a, b);
            sums.covered[segment.kind as usize] += b.micros() - a.micros();
        }
    });
    if let (Some(gauges), Some(i)) = (&step.gauges, slice_at(slice_edges, step.to)) {
        slice_mut(slices, i).add_sample(gauges, step.origin, step.to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: i64, energy: Option<f64>, power: Option<f64>) -> EnergySample {
        let time = EventTime::from_micros(seconds * 1_000_000);
        EnergySample { time, energy, power, average: None, share: 1.0, tenure: None }
    }

    #[test]
    fn the_counter_wins_a_fall_falls_back_to_power_and_a_change_of_tenure_knows_nothing() {
        let flow =
            |a: &EnergySample, b: &EnergySample| PowerSegment::between(a, b, 120_000_000).map(|f| (f.kind, f.total_joules()));
        let a = sample(0, Some(100.0), Some(10.0));
        assert_eq!(flow(&a, &sample(10, Some(400.0), Some(20.0))), Some((EnergyBasis::Counter, 300.0)));
        assert_eq!(flow(&a, &sample(10, Some(4.0), Some(20.0))), Some((EnergyBasis::Instant, 150.0)));
        assert_eq!(flow(&a, &sample(10, Some(4.0), None)), None);
        assert_eq!(flow(&a, &sample(200, None, Some(20.0))), None, "two readings 200 s apart");
        let moved = EnergySample { tenure: Some(2), ..sample(10, Some(400.0), Some(20.0)) };
        assert_eq!(flow(&a, &moved), None);
    }

    #[test]
    fn shares_of_all_tenants_add_up_to_the_device() {
        let whole = PowerSegment::between(&sample(0, Some(0.0), None), &sample(10, Some(50.0), None), 1).unwrap().total_joules();
        let parts: f64 = [0.25, 0.75]
            .map(|share| {
                let of = |s: EnergySample| EnergySample { share, ..s };
                PowerSegment::between(&of(sample(0, Some(0.0), None)), &of(sample(10, Some(50.0), None)), 1)
                    .unwrap()
                    .total_joules()
            })
            .iter()
            .sum();
        assert!((whole - parts).abs() < 1e-9);
    }

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn of_a_share_of_a_device_so_much_of_its_power_counts_at_each_end() {
        let shared = |seconds, power, average, share| EnergySample { average, share, ..sample(seconds, None, power) };
        let flow = |a: &EnergySample, b: &EnergySample| {
            PowerSegment::between(a, b, 120_000_000).map(|flow| (flow.kind, flow.from, flow.to))
        };
        let (a, b) = (shared(0, Some(100.0), None, 0.25), shared(10, Some(200.0), None, 0.5));
        assert_eq!(flow(&a, &b), Some((EnergyBasis::Instant, 25.0, 100.0)));
        let (a, b) = (shared(0, None, Some(100.0), 0.25), shared(10, None, Some(200.0), 0.5));
        assert_eq!(flow(&a, &b), Some((EnergyBasis::Average, 25.0, 100.0)));
        let counted = |seconds, joules, share| EnergySample { share, ..sample(seconds, Some(joules), None) };
        // 300 J in 10 s, of which a quarter is ours at first and half in the end.
        assert_eq!(flow(&counted(0, 0.0, 0.25), &counted(10, 300.0, 0.5)), Some((EnergyBasis::Counter, 11.25, 11.25)));
    }

    #[test]
    fn power_is_known_over_a_gap_of_exactly_the_longest() {
        let flow = |micros| {
            let b = EnergySample { time: EventTime::from_micros(micros), ..sample(0, None, Some(20.0)) };
            PowerSegment::between(&sample(0, None, Some(10.0)), &b, 120_000_000).map(|flow| flow.total_joules())
        };
        assert_eq!(flow(120_000_000), Some(1_800.0));
        assert_eq!(flow(120_000_001), None);
        assert_eq!(flow(0), None, "nothing lies between two samples of one time");
    }

    #[test]
    fn steady_power_is_that_of_its_whole_time() {
        assert_eq!(PowerSegment::constant(100.0, at(10), at(30)).total_joules(), 2_000.0);
    }

    #[test]
    fn a_sample_or_time_touches_a_stretch() {
        assert!(!GpuSums::default().has_data());
        assert!(!GpuSums { unassigned: 5.0, from: at(3), to: at(3), ..GpuSums::default() }.has_data());
        assert!(GpuSums { events: 1, ..GpuSums::default() }.has_data());
        assert!(GpuSums { from: at(3), to: at(4), ..GpuSums::default() }.has_data());
    }

    #[test]
    fn known_is_the_time_of_every_kind_together() {
        assert_eq!(GpuSums { covered: [1, 20, 300], ..GpuSums::default() }.known_micros(), 321);
        assert_eq!(GpuSums::default().known_micros(), 0);
    }

    #[test]
    fn a_stretch_that_is_divided_keeps_its_whole() {
        let whole = GpuSums {
            joules: 90.0,
            covered: [15_000_000, 9_000_000, 6_000_000],
            from: at(10),
            to: at(40),
            largest: 5_000_000,
            events: 7,
            origin: Origin::Simulated,
            contradicted: 12_000_000,
            counter_difference: -9.0,
            ..GpuSums::default()
        };
        let mut before = whole.clone();
        let (after, divided) = before.split(at(20));
        assert!(divided);
        // A third of the time, with a third of the sums; the events are those before the cut.
        let left = GpuSums {
            joules: 30.0,
            covered: [5_000_000, 3_000_000, 2_000_000],
            to: at(20),
            contradicted: 4_000_000,
            counter_difference: -3.0,
            ..whole.clone()
        };
        let right = GpuSums {
            joules: 60.0,
            covered: [10_000_000, 6_000_000, 4_000_000],
            from: at(20),
            events: 0,
            contradicted: 8_000_000,
            counter_difference: -6.0,
            ..whole.clone()
        };
        assert_eq!((&before, &after), (&left, &right));
        // At an edge or outside, nothing is divided.
        assert_eq!(before.split(at(20)), (GpuSums::default(), false));
        assert_eq!(before.split(at(30)), (GpuSums::default(), false));
        assert_eq!(before, left);
        assert_eq!(before.split(at(10)), (left, false));
        assert_eq!(before, GpuSums::default());
        let mut moment = GpuSums { from: at(10), to: at(10), events: 1, ..GpuSums::default() };
        assert_eq!(moment.split(at(5)), (GpuSums::default(), false), "a sample alone stays where it is");
        assert_eq!(moment.events, 1);
    }
}
