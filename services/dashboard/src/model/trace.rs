//! Power and J/sample of a workload over its whole record, in a bounded number of points.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::EfficiencyWindow;

/// Points of a trace; with one more it is halved.
const POINTS: usize = 192;

/// Time in which a workload, or a GPU without work, took power, and its energy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PowerSpan {
    from: EventTime,
    to: EventTime,
    /// `None` if unknown.
    joules: Option<f64>,
}

impl PowerSpan {
    /// Returns the part of a window in which anything was observed, at the window's power: in the rest the workload was not there.
    pub fn observed(window: &EfficiencyWindow) -> Self {
        let within = |time: EventTime| time.max(window.window_start).min(window.window_end);
        let from = within(window.observed_start.unwrap_or(window.window_start));
        let to = within(window.observed_end.unwrap_or(window.window_end)).max(from);
        Self { from, to, joules: window.mean_power_watts.map(|watts| watts * to.seconds_since(from)) }
    }

    /// Divides it into the part in the window's run and the rest, whose energy is unknown if it is none. If the job was
    /// `started_again`, its run is the end of it, else the begin.
    pub fn split(self, window: &EfficiencyWindow, started_again: bool) -> (Self, Self) {
        let seconds = window.run_seconds.min(self.seconds());
        let micros = (1e6 * seconds).round() as i64;
        let ratio = match (window.run_energy_joules, window.energy_joules) {
            (Some(run), Some(all)) if all > 0.0 => (run / all).clamp(0.0, 1.0),
            (None, Some(_)) => 0.0,
            _ => seconds / self.seconds().max(f64::MIN_POSITIVE),
        };
        let run_joules = self.joules.filter(|_| window.run_energy_joules.is_some()).map(|joules| joules * ratio);
        let rest_joules = self.joules.map(|joules| joules * (1.0 - ratio)).filter(|joules| *joules > 0.0);
        if started_again {
            let edge = self.to.plus_micros(-micros);
            (Self { from: edge, joules: run_joules, ..self }, Self { to: edge, joules: rest_joules, ..self })
        } else {
            let edge = self.from.plus_micros(micros);
            (Self { to: edge, joules: run_joules, ..self }, Self { from: edge, joules: rest_joules, ..self })
        }
    }

    fn seconds(&self) -> f64 {
        self.to.seconds_since(self.from)
    }
}

/// A number in which an interval is summed: 4 bytes for one of the many workloads, 8 for sums over many devices, which lose the
/// small windows otherwise.
pub trait TraceNumber: Copy + Default + PartialOrd + std::ops::Add<Output = Self> + std::ops::AddAssign + Into<f64> {
    fn of(value: f64) -> Self;
}

impl TraceNumber for f32 {
    fn of(value: f64) -> Self {
        value as Self
    }
}

impl TraceNumber for f64 {
    fn of(value: f64) -> Self {
        value
    }
}

/// Sums over one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct TraceInterval<N> {
    /// Energy of the time with known power, in joules.
    watt_seconds: N,
    /// That time; of several devices, the sum of the times of each.
    seconds: N,
    /// Time within the workload's life of which no power is known.
    unknown_seconds: N,
    /// Energy and samples of windows with a J/sample, those with a restart left out.
    joules: N,
    samples: N,
    restarted: bool,
}

impl<N: TraceNumber> TraceInterval<N> {
    fn merge(self, other: Self) -> Self {
        Self {
            watt_seconds: self.watt_seconds + other.watt_seconds,
            seconds: self.seconds + other.seconds,
            unknown_seconds: self.unknown_seconds + other.unknown_seconds,
            joules: self.joules + other.joules,
            samples: self.samples + other.samples,
            restarted: self.restarted || other.restarted,
        }
    }
}

/// Intervals of equal length; twice as long each time that there are too many.
#[derive(Debug, Clone, Default)]
pub struct WorkloadTimeline<N = f32> {
    /// Microseconds of an interval; 0 before the first window.
    width: i64,
    /// Number of the first interval since the epoch.
    first: i64,
    intervals: VecDeque<TraceInterval<N>>,
    /// Begin and end of its power, in microseconds since the epoch.
    life: Option<(i64, i64)>,
}

/// One interval of a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TracePoint {
    pub start: EventTime,
    pub end: EventTime,
    /// Over the time with known power.
    pub power_watts: Option<f32>,
    /// J/sample without windows that have a restart.
    pub joules_per_sample: Option<f32>,
    pub restarted: bool,
}

/// Energy of an interval, of the part of it in which there is a trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceEnergy {
    /// Begin and end of that part, in microseconds since the epoch.
    pub from: i64,
    pub to: i64,
    pub joules: f64,
    /// Time with known power. In the rest of the part, without the unknown time, nothing took power.
    pub known_seconds: f64,
    pub unknown_seconds: f64,
}

impl<N: TraceNumber> WorkloadTimeline<N> {
    /// Adds a window with the power of its run. If it `follows_end`, the job was started again: between its runs it took no power.
    /// Otherwise its power in a silence before this window is unknown.
    pub fn add(&mut self, window: &EfficiencyWindow, power: PowerSpan, follows_end: bool) {
        let interval = self.interval_of(window);
        interval.restarted |= window.has_restart();
        if let (Some(joules), Some(samples), false) = (window.energy_per_sample(), window.samples, window.restarted) {
            interval.joules += N::of(joules * samples);
            interval.samples += N::of(samples);
        }
        if let Some((_, end)) = self.life.filter(|_| !follows_end) {
            self.spread(end, power.from.micros(), |interval, seconds| interval.unknown_seconds += N::of(seconds));
        }
        self.add_power(power);
    }

    /// Adds the power of a device without work. The windows of several devices come in any order.
    pub fn add_device(&mut self, window: &EfficiencyWindow, power: PowerSpan) {
        if power.joules.is_some() {
            self.set_width(window);
            self.add_power(power);
        }
    }

    fn add_power(&mut self, power: PowerSpan) {
        let (from, to) = (power.from.micros(), power.to.micros());
        if to <= from {
            return;
        }
        let watts = power.joules.map(|joules| joules / power.seconds());
        self.spread(from, to, |interval, seconds| match watts {
            Some(watts) => {
                interval.watt_seconds += N::of(watts * seconds);
                interval.seconds += N::of(seconds);
            }
            None => interval.unknown_seconds += N::of(seconds),
        });
        self.life = Some(self.life.map_or((from, to), |(begin, end)| (begin.min(from), end.max(to))));
    }

    /// Adds to each interval in this time, with the seconds of it that are in the interval.
    fn spread(&mut self, from: i64, to: i64, add: impl Fn(&mut TraceInterval<N>, f64)) {
        if to <= from {
            return;
        }
        self.extend_to(from, to);
        let (width, first) = (self.width, self.first);
        let skipped = (from.div_euclid(width) - first) as usize;
        for (index, interval) in self.intervals.iter_mut().enumerate().skip(skipped) {
            let start = (first + index as i64) * width;
            let micros = to.min(start + width) - from.max(start);
            if micros <= 0 {
                break;
            }
            add(interval, micros as f64 / 1e6);
        }
    }

    /// Sets the length of the intervals to that of the first window.
    fn set_width(&mut self, window: &EfficiencyWindow) {
        if self.width == 0 {
            let length = window.window_end.micros().saturating_sub(window.window_start.micros());
            self.width = length.max(1_000_000);
        }
    }

    /// Returns the interval in which a window begins.
    fn interval_of(&mut self, window: &EfficiencyWindow) -> &mut TraceInterval<N> {
        self.set_width(window);
        let start = window.window_start.micros();
        self.extend_to(start, start + 1);
        &mut self.intervals[(start.div_euclid(self.width) - self.first) as usize]
    }

    /// Makes all intervals of a time that lack, before those that are there or after them.
    fn extend_to(&mut self, from: i64, to: i64) {
        loop {
            let (begin, end) = (from.div_euclid(self.width), (to - 1).div_euclid(self.width) + 1);
            if self.intervals.is_empty() {
                self.first = begin;
            }
            let first = begin.min(self.first);
            let end = end.max(self.first + self.intervals.len() as i64);
            if end - first <= POINTS as i64 {
                (first..self.first).for_each(|_| self.intervals.push_front(TraceInterval::default()));
                self.first = first;
                self.intervals.resize((end - first) as usize, TraceInterval::default());
                return;
            }
            self.halve();
        }
    }

    fn halve(&mut self) {
        let mut halved = VecDeque::with_capacity(POINTS / 2 + 1);
        let first = self.first.div_euclid(2);
        for (index, interval) in self.intervals.iter().enumerate() {
            let at = ((self.first + index as i64).div_euclid(2) - first) as usize;
            if halved.len() <= at {
                halved.resize(at + 1, TraceInterval::default());
            }
            halved[at] = halved[at].merge(*interval);
        }
        (self.width, self.first, self.intervals) = (self.width * 2, first, halved);
    }

    pub fn is_empty(&self) -> bool {
        self.intervals.is_empty()
    }

    /// Returns the begin of its power.
    pub fn begin(&self) -> Option<EventTime> {
        self.life.map(|(begin, _)| EventTime::from_micros(begin))
    }

    /// Returns the energy of the intervals in order of time.
    pub fn energies(&self) -> impl Iterator<Item = TraceEnergy> {
        let (begin, end) = self.life.unwrap_or_default();
        self.intervals.iter().enumerate().filter_map(move |(index, interval)| {
            let start = (self.first + index as i64) * self.width;
            let (from, to) = (start.max(begin), (start + self.width).min(end));
            (from < to).then(|| TraceEnergy {
                from,
                to,
                joules: interval.watt_seconds.into(),
                // Several devices at once count once.
                known_seconds: interval.seconds.into().min((to - from) as f64 / 1e6),
                unknown_seconds: interval.unknown_seconds.into(),
            })
        })
    }

    /// Returns the intervals in order of time; those without a window have no figures.
    pub fn points(&self) -> impl DoubleEndedIterator<Item = TracePoint> {
        self.intervals.iter().enumerate().map(|(index, interval)| {
            let start = EventTime::from_micros((self.first + index as i64) * self.width);
            let ratio = |value: N, divisor: N| (divisor.into() > 0.0).then(|| (value.into() / divisor.into()) as f32);
            TracePoint {
                start,
                end: start.plus_micros(self.width),
                power_watts: ratio(interval.watt_seconds, interval.seconds),
                joules_per_sample: ratio(interval.joules, interval.samples),
                restarted: interval.restarted,
            }
        })
    }

    /// Returns the last `count` known J/sample, oldest first.
    pub fn sparkline(&self, count: usize) -> Vec<f32> {
        let mut values: Vec<f32> = self.points().rev().filter_map(|point| point.joules_per_sample).take(count).collect();
        values.reverse();
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(minute: i64, watts: f64, restarted: bool) -> EfficiencyWindow {
        let start = EventTime::from_micros(minute * 60_000_000);
        EfficiencyWindow {
            window_start: start,
            window_end: start.plus_micros(60_000_000),
            mean_power_watts: Some(watts),
            joules_per_sample: Some(watts / 10.0),
            samples: Some(600.0),
            restarted,
            ..EfficiencyWindow::default()
        }
    }

    fn add(trace: &mut WorkloadTimeline, window: &EfficiencyWindow) {
        trace.add(window, PowerSpan::observed(window), false);
    }

    /// Joules, and the seconds of which no power is known.
    fn sums(trace: &WorkloadTimeline) -> (f64, f64) {
        trace.energies().fold((0.0, 0.0), |(joules, unknown), energy| (joules + energy.joules, unknown + energy.unknown_seconds))
    }

    #[test]
    fn a_silence_is_unknown_and_the_time_between_two_runs_takes_nothing() {
        for (follows_end, unknown) in [(false, 240.0), (true, 0.0)] {
            let mut trace = WorkloadTimeline::default();
            add(&mut trace, &window(0, 100.0, false));
            let again = window(5, 100.0, false);
            trace.add(&again, PowerSpan::observed(&again), follows_end);
            assert_eq!(sums(&trace), (12_000.0, unknown));
        }
    }

    #[test]
    fn only_the_part_of_a_window_in_which_something_was_observed_takes_power() {
        let at = |second: i64| Some(EventTime::from_micros(second * 1_000_000));
        let mut trace = WorkloadTimeline::default();
        let begin = EfficiencyWindow { observed_start: at(20), ..window(0, 300.0, false) };
        let end = EfficiencyWindow { observed_end: at(70), ..window(1, 300.0, false) };
        add(&mut trace, &begin);
        add(&mut trace, &end);
        assert_eq!(sums(&trace), (15_000.0, 0.0));
        let ends: Vec<(i64, i64)> = trace.energies().map(|energy| (energy.from, energy.to)).collect();
        assert_eq!(ends, [(20_000_000, 60_000_000), (60_000_000, 70_000_000)]);
    }

    #[test]
    fn a_window_in_which_a_run_ends_or_begins_again_is_divided() {
        let window = EfficiencyWindow {
            run_declared: true,
            run_seconds: 20.0,
            run_energy_joules: Some(6_000.0),
            energy_joules: Some(10_000.0),
            ..window(0, 10_000.0 / 60.0, false)
        };
        let parts = |started_again| {
            let (run, rest) = PowerSpan::observed(&window).split(&window, started_again);
            [run, rest].map(|part| (part.from.micros() / 1_000_000, part.to.micros() / 1_000_000, part.joules.map(f64::round)))
        };
        assert_eq!(parts(false), [(0, 20, Some(6_000.0)), (20, 60, Some(4_000.0))]);
        assert_eq!(parts(true), [(40, 60, Some(6_000.0)), (0, 40, Some(4_000.0))]);
    }

    #[test]
    fn a_long_record_keeps_its_means_in_few_points() {
        let mut trace = WorkloadTimeline::default();
        for minute in 0..10_000 {
            add(&mut trace, &window(minute, if minute % 2 == 0 { 100.0 } else { 300.0 }, false));
        }
        let points: Vec<TracePoint> = trace.points().collect();
        assert!(points.len() <= POINTS && points.len() > POINTS / 2 - 1, "{}", points.len());
        assert_eq!(points[0].start, EventTime::from_micros(0));
        for point in &points[..points.len() - 1] {
            assert_eq!((point.power_watts, point.joules_per_sample), (Some(200.0), Some(20.0)), "{point:?}");
        }
    }

    #[test]
    fn the_power_of_devices_adds_up_in_whatever_order_their_windows_come() {
        // Each device is without work from another minute on, the last one for so long that the trace is halved.
        let devices: [Vec<EfficiencyWindow>; 3] = [(2, 5, 60.0), (40, 50, 70.0), (4, 500, 80.0)]
            .map(|(from, to, watts)| (from..to).map(|minute| window(minute, watts, false)).collect());
        let trace_of = |order: [usize; 3]| {
            let mut trace = WorkloadTimeline::default();
            for window in order.into_iter().flat_map(|device| &devices[device]) {
                trace.add_device(window, PowerSpan::observed(window));
            }
            trace
        };
        let energies = |trace: &WorkloadTimeline<f64>| -> Vec<(i64, i64, i64, i64)> {
            let energies = trace.energies();
            energies.map(|part| (part.from, part.to, part.joules.round() as i64, part.known_seconds.round() as i64)).collect()
        };
        let wanted = energies(&trace_of([0, 1, 2]));
        for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let trace = trace_of(order);
            assert!(trace.intervals.len() <= POINTS, "{}", trace.intervals.len());
            assert_eq!(
                (energies(&trace), trace.begin()),
                (wanted.clone(), Some(EventTime::from_micros(120_000_000))),
                "{order:?}"
            );
        }
        let joules: i64 = wanted.iter().map(|(_, _, joules, _)| joules).sum();
        assert_eq!(joules, 60 * (3 * 60 + 10 * 70 + 496 * 80));
        assert!(wanted.iter().all(|(from, to, _, known)| 1_000_000 * known == to - from), "time counts once: {wanted:?}");
    }

    #[test]
    fn small_windows_of_very_many_devices_add_up() {
        let (mut trace, window) = (WorkloadTimeline::<f64>::default(), window(0, 57.3, false));
        (0..1_000_000).for_each(|_| trace.add_device(&window, PowerSpan::observed(&window)));
        let joules: f64 = trace.energies().map(|energy| energy.joules).sum();
        assert!((joules / (1e6 * 60.0 * 57.3) - 1.0).abs() < 1e-9, "{joules}");
    }

    #[test]
    fn a_gap_is_no_zero_and_a_restart_no_energy_per_sample() {
        let mut trace = WorkloadTimeline::default();
        for (minute, restarted) in [(0, false), (1, true), (5, false)] {
            add(&mut trace, &window(minute, 100.0, restarted));
        }
        let points: Vec<TracePoint> = trace.points().collect();
        assert_eq!(points.len(), 6);
        assert_eq!((points[1].power_watts, points[1].joules_per_sample, points[1].restarted), (Some(100.0), None, true));
        assert_eq!((points[3].power_watts, points[3].joules_per_sample), (None, None));
        assert_eq!(trace.sparkline(9), [10.0, 10.0]);
    }
}
