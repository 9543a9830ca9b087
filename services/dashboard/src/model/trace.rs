//! Power and J/sample of a workload over its whole record, in a bounded number of points.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::EfficiencyWindow;

/// Points of a trace; with one more it is halved.
const POINTS: usize = 192;

/// Sums of the windows that begin in one interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct TraceInterval {
    /// Mean power times seconds, of windows with known power.
    watt_seconds: f32,
    seconds: f32,
    /// Energy and samples of windows with a J/sample, those with a restart left out.
    joules: f32,
    samples: f32,
    restarted: bool,
}

impl TraceInterval {
    fn merge(self, other: Self) -> Self {
        Self {
            watt_seconds: self.watt_seconds + other.watt_seconds,
            seconds: self.seconds + other.seconds,
            joules: self.joules + other.joules,
            samples: self.samples + other.samples,
            restarted: self.restarted || other.restarted,
        }
    }
}

/// Intervals of equal length; twice as long each time that there are too many.
#[derive(Debug, Clone, Default)]
pub struct WorkloadTimeline {
    /// Microseconds of an interval; 0 before the first window.
    width: i64,
    /// Number of the first interval since the epoch.
    first: i64,
    intervals: VecDeque<TraceInterval>,
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

impl WorkloadTimeline {
    /// Adds a window; one that begins before the trace is left out.
    pub fn add(&mut self, window: &EfficiencyWindow) {
        let seconds = window.window_end.seconds_since(window.window_start);
        let Some(interval) = self.interval_of(window) else { return };
        let mut added = TraceInterval { restarted: window.has_restart(), ..TraceInterval::default() };
        if let Some(watts) = window.mean_power_watts {
            (added.watt_seconds, added.seconds) = ((watts * seconds) as f32, seconds as f32);
        }
        if let (Some(joules), Some(samples), false) = (window.energy_per_sample(), window.samples, window.restarted) {
            (added.joules, added.samples) = ((joules * samples) as f32, samples as f32);
        }
        *interval = interval.merge(added);
    }

    /// Adds the power of one of several devices. Their time counts once: with the window that `is_first` to begin then.
    pub fn add_device(&mut self, window: &EfficiencyWindow, is_first: bool) {
        let seconds = window.window_end.seconds_since(window.window_start);
        let (Some(watts), Some(interval)) = (window.mean_power_watts, self.interval_of(window)) else { return };
        interval.watt_seconds += (watts * seconds) as f32;
        if is_first {
            interval.seconds += seconds as f32;
        }
    }

    /// Returns the interval in which a window begins; `None`: it lies before the trace.
    fn interval_of(&mut self, window: &EfficiencyWindow) -> Option<&mut TraceInterval> {
        if self.width == 0 {
            self.width = window.window_end.micros().saturating_sub(window.window_start.micros()).max(1_000_000);
            self.first = window.window_start.micros().div_euclid(self.width);
        }
        let mut number = window.window_start.micros().div_euclid(self.width);
        if number < self.first {
            return None;
        }
        while number - self.first >= POINTS as i64 {
            self.halve();
            number = window.window_start.micros().div_euclid(self.width);
        }
        let index = (number - self.first) as usize;
        if self.intervals.len() <= index {
            self.intervals.resize(index + 1, TraceInterval::default());
        }
        self.intervals.get_mut(index)
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

    /// Returns the intervals in order of time; those without a window have no figures.
    pub fn points(&self) -> impl DoubleEndedIterator<Item = TracePoint> {
        self.intervals.iter().enumerate().map(|(index, interval)| {
            let start = EventTime::from_micros((self.first + index as i64) * self.width);
            let ratio = |value: f32, divisor: f32| (divisor > 0.0).then(|| value / divisor);
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

    #[test]
    fn a_long_record_keeps_its_means_in_few_points() {
        let mut trace = WorkloadTimeline::default();
        for minute in 0..10_000 {
            trace.add(&window(minute, if minute % 2 == 0 { 100.0 } else { 300.0 }, false));
        }
        let points: Vec<TracePoint> = trace.points().collect();
        assert!(points.len() <= POINTS && points.len() > POINTS / 2 - 1, "{}", points.len());
        assert_eq!(points[0].start, EventTime::from_micros(0));
        for point in &points[..points.len() - 1] {
            assert_eq!((point.power_watts, point.joules_per_sample), (Some(200.0), Some(20.0)), "{point:?}");
        }
    }

    #[test]
    fn the_power_of_devices_in_the_same_time_adds_up() {
        let mut trace = WorkloadTimeline::default();
        for (minute, watts, is_first) in [(0, 60.0, true), (0, 70.0, false), (1, 60.0, true)] {
            trace.add_device(&window(minute, watts, false), is_first);
        }
        let watts: Vec<Option<f32>> = trace.points().map(|point| point.power_watts).collect();
        assert_eq!(watts, [Some(130.0), Some(60.0)]);
    }

    #[test]
    fn a_gap_is_no_zero_and_a_restart_no_energy_per_sample() {
        let mut trace = WorkloadTimeline::default();
        for (minute, restarted) in [(0, false), (1, true), (5, false)] {
            trace.add(&window(minute, 100.0, restarted));
        }
        let points: Vec<TracePoint> = trace.points().collect();
        assert_eq!(points.len(), 6);
        assert_eq!((points[1].power_watts, points[1].joules_per_sample, points[1].restarted), (Some(100.0), None, true));
        assert_eq!((points[3].power_watts, points[3].joules_per_sample), (None, None));
        assert_eq!(trace.sparkline(9), [10.0, 10.0]);
        trace.add(&window(-3, 100.0, false));
        assert_eq!(trace.points().count(), 6, "a window from before the record changes nothing");
    }
}
