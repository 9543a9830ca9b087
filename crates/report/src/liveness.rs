//! Time after which a workload or a GPU counts as silent, and whether the figures of a newest window are of the present: the same
//! in terminals, on the web page and in metrics.

use eadt_schemas::EventTime;
use eadt_schemas::v1::EfficiencyWindow;

/// A GPU is silent if its newest sample is so much older than the newest of all, in seconds; so is a workload by its windows.
pub const SILENT_SECONDS: f64 = 900.0;
/// A sample so much older than the newest one of its GPU is of a workload that has left the GPU, though no event reported so, in
/// seconds.
pub const ABSENT_SECONDS: f64 = 60.0;
/// A window of one workload closes so many seconds after those of others if a source of it is silent: a processor waits two
/// minutes by default, and a window begins and ends a minute later.
const OPEN_SECONDS: f64 = 180.0;
/// The last samples before the end of a record are up to so many seconds apart, unless sources are sampled less often.
const CUT_SECONDS: f64 = 30.0;
/// The same of sources that are sampled less often, in intervals of their samples, and the most of it in seconds.
const CUT_INTERVALS: f64 = 1.5;
const LONGEST_CUT_SECONDS: f64 = 120.0;

/// Returns how much older than the newest window of all a workload's newest window may be before the workload is silent, in
/// seconds. Windows of two workloads may end a whole window apart.
pub fn silence_limit_seconds(window_seconds: f64) -> f64 {
    SILENT_SECONDS.max(2.0 * window_seconds)
}

/// Returns how much older than the newest window of all a newest window may be while the next one is likely to be open still, in
/// seconds. Later, the next window is overdue.
fn open_limit_seconds(window_seconds: f64) -> f64 {
    OPEN_SECONDS.max(2.0 * window_seconds)
}

/// The mean time between two samples of a workload, or of a GPU, by its windows in order of time. Newer windows count for more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SampleInterval {
    /// 0 if it is unknown.
    mean_micros: i64,
    /// Observed time of the newest windows in which no sample came.
    micros_without_sample: i64,
}

impl SampleInterval {
    /// Takes the newest window. One that is not observed up to its end shows no interval.
    pub(crate) fn add(&mut self, window: &EfficiencyWindow) {
        let observed = window.observed_start.zip(window.observed_end).filter(|(_, to)| *to >= window.window_end);
        let Some((from, to)) = observed else {
            self.micros_without_sample = 0;
            return;
        };
        let micros = (to.seconds_since(from).max(0.0) * 1e6) as i64;
        self.micros_without_sample = self.micros_without_sample.saturating_add(micros);
        let events = i64::try_from(window.events).unwrap_or(i64::MAX);
        if events == 0 {
            return;
        }
        let interval = std::mem::take(&mut self.micros_without_sample).saturating_mul(i64::from(window.gpus.max(1))) / events;
        let is_first = self.mean_micros == 0;
        self.mean_micros = if is_first { interval } else { i64::midpoint(self.mean_micros, interval) };
    }

    /// Returns the longest time from the last sample to the end of a record that cut the next one off, in seconds.
    fn cut_seconds(self) -> f64 {
        (CUT_INTERVALS * self.mean_micros as f64 / 1e6).clamp(CUT_SECONDS, LONGEST_CUT_SECONDS)
    }
}

/// Times of a newest window, which show whether its figures are of the present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowTimes {
    pub start: EventTime,
    pub end: EventTime,
    /// The last moment at which anything was observed in it, if that lies before its end.
    left: Option<EventTime>,
    interval: SampleInterval,
}

impl From<&EfficiencyWindow> for WindowTimes {
    fn from(window: &EfficiencyWindow) -> Self {
        let left = window.observed_end.filter(|observed| *observed < window.window_end);
        Self { start: window.window_start, end: window.window_end, left, interval: SampleInterval::default() }
    }
}

impl WindowTimes {
    /// Returns the same times for a workload, or a GPU, with this interval of its samples.
    #[must_use]
    pub(crate) fn sampled_each(self, interval: SampleInterval) -> Self {
        Self { interval, ..self }
    }

    /// Returns its length in seconds.
    pub fn seconds(&self) -> f64 {
        self.end.seconds_since(self.start)
    }

    /// Returns the time from its end to the newest window of all, in seconds.
    fn quiet_seconds(&self, now: EventTime) -> f64 {
        now.seconds_since(self.end)
    }

    /// Returns the last moment at which anything was observed in it.
    pub fn observed_end(&self) -> EventTime {
        self.left.unwrap_or(self.end)
    }

    /// Returns whether it is so old that its workload is silent.
    pub fn is_silent(&self, now: EventTime) -> bool {
        self.quiet_seconds(now) > silence_limit_seconds(self.seconds())
    }

    /// Returns whether nothing was observed at its end: whatever it is of has ended, has left its GPUs, or is silent. The last
    /// windows of a record end with the record: there, what was observed until shortly before `record_end` was present.
    fn ends_unobserved(&self, record_end: Option<EventTime>) -> bool {
        self.left.is_some_and(|left| record_end.is_none_or(|end| end.seconds_since(left) > self.interval.cut_seconds()))
    }

    /// Returns whether its figures are of the present: the next window is not overdue, and something was observed at its end.
    /// `quiet_seconds` is the time from its end to the newest window of all.
    fn is_current(&self, quiet_seconds: f64, record_end: Option<EventTime>) -> bool {
        quiet_seconds <= open_limit_seconds(self.seconds()) && !self.ends_unobserved(record_end)
    }
}

/// The moment that figures of the present are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresentMoment {
    /// End of the newest window of all.
    pub now: EventTime,
    /// The last moment at which anything was observed, if the record ends there; `None` if it goes on.
    pub record_end: Option<EventTime>,
}

impl PresentMoment {
    /// Returns whether the figures of a newest window are of this moment.
    pub fn has(&self, newest: &WindowTimes) -> bool {
        newest.is_current(newest.quiet_seconds(self.now), self.record_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_the_present_until_the_next_window_is_overdue_or_nothing_is_observed() {
        let at = EventTime::from_seconds;
        let window = |observed: Option<f64>| {
            WindowTimes::from(&EfficiencyWindow {
                window_start: at(0.0),
                window_end: at(60.0),
                observed_end: observed.map(at),
                ..EfficiencyWindow::default()
            })
        };
        for (observed, now, record_end, expected) in [
            (Some(60.0), 60.0, None, true),
            (Some(60.0), 240.0, None, true),
            (Some(60.0), 241.0, None, false),
            (Some(50.0), 60.0, None, false),
            // The record was cut off: others were observed ten and forty seconds longer.
            (Some(50.0), 60.0, Some(60.0), true),
            (Some(20.0), 60.0, Some(60.0), false),
            // By an earlier release.
            (None, 60.0, None, true),
        ] {
            let moment = PresentMoment { now: at(now), record_end: record_end.map(at) };
            assert_eq!(moment.has(&window(observed)), expected, "{observed:?} {now} {record_end:?}");
        }
    }
}
