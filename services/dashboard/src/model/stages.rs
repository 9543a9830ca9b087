//! Progress of each stage of the pipeline by the times of its events, and whether it has stopped.

use eadt_schemas::EventTime;
use serde::Serialize;

use super::{DashboardModel, SourceKind};

/// Length of a window if the source does not name it.
const WINDOW_SECONDS: f64 = 60.0;
/// A stage that is more windows behind than these has stopped, or has more to do than it can.
const STALLED_WINDOWS: f64 = 3.0;
/// Windows count as stalled only if they are behind by more than one window and this time. The processor waits two minutes for a
/// silent source; one minute is for everything else.
const WINDOWS_SLACK_SECONDS: f64 = 180.0;
/// Outcomes are called stalled only after so long: a restart may wait for a checkpoint.
const LEAST_OUTCOME_SECONDS: f64 = 600.0;
/// A sample that is later than the log's stamp by more than this has a wrong clock.
const CLOCK_SKEW_SECONDS: f64 = 5.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StageName {
    /// Samples of GPUs, by collectors.
    Samples,
    /// Windows, by the processor.
    Windows,
    /// Decisions, by the processor.
    Decisions,
    /// Outcomes of decisions, by the actuator.
    Actuations,
}

/// One stage of the pipeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageProgress {
    pub stage: StageName,
    /// Time of its newest event; of a window, its end.
    pub newest_ms: Option<i64>,
    /// For windows: seconds that they end before the newest sample. For decisions: seconds that the oldest one has waited for its
    /// outcome. Absent if there is nothing to be behind of.
    pub behind_seconds: Option<f64>,
    /// Text on a stage that has stopped, with the remedy; absent if none has, and for an archive.
    pub stalled: Option<String>,
}

/// Times of the newest events.
#[derive(Debug, Default)]
pub(super) struct StageTimes {
    /// The log's stamp of the newest record; `None` if no log was read.
    pub stamp: Option<EventTime>,
    /// The log's stamp of the newest record with a sample or a window; `None` if there was none.
    pub figures: Option<EventTime>,
    /// Length of the newest window that was read; `None` if there was none.
    pub window_seconds: Option<f64>,
    first_sample: Option<EventTime>,
    sample: Option<EventTime>,
    pub decision: Option<EventTime>,
    pub actuation: Option<EventTime>,
}

impl StageTimes {
    /// Takes the time of a sample; one of a clock that is ahead of the log's is left out.
    pub fn take_sample(&mut self, time: EventTime) {
        if self.stamp.is_some_and(|stamp| time.seconds_since(stamp) > CLOCK_SKEW_SECONDS) {
            return;
        }
        self.sample = self.sample.max(Some(time));
        self.first_sample = self.first_sample.or(Some(time));
    }
}

impl DashboardModel {
    /// Returns the stages in the order of the pipeline.
    pub(super) fn stages(&self) -> Vec<StageProgress> {
        let times = &self.times;
        let window = self.window_seconds().unwrap_or(WINDOW_SECONDS);
        let windows_limit = (STALLED_WINDOWS * window).max(window + WINDOWS_SLACK_SECONDS);
        let outcomes_limit = (STALLED_WINDOWS * window).max(LEAST_OUTCOME_SECONDS);
        let follows = self.source.kind == SourceKind::Live && self.caught_up;
        let is_stalled = |behind: Option<f64>, limit: f64| follows && behind.is_some_and(|behind| behind > limit);
        let window_lag = times.sample.zip(self.now.or(times.first_sample));
        let window_lag = window_lag.map(|(sample, end)| sample.seconds_since(end).max(0.0));
        // The text has no seconds: a screen reader would read it out with each change.
        let no_windows = || {
            "windows are far behind the samples: the processor has stopped or cannot keep up, or a source of samples holds the time \
             back; `eadt doctor` looks for what stops it"
                .to_owned()
        };
        let waits: Vec<f64> = self.unanswered_seconds().collect();
        let longest_wait = waits.iter().copied().reduce(f64::max);
        let no_outcomes = || {
            let decisions = match waits.iter().filter(|wait| **wait > outcomes_limit).count() {
                1 => "a decision has had no outcome".to_owned(),
                several => format!("{several} decisions have had no outcome"),
            };
            format!(
                "{decisions} for long: the actuator has stopped, is not there, or waits for a checkpoint; `eadt doctor` looks \
                 for what stops it"
            )
        };
        let stage = |stage, newest: Option<EventTime>, behind_seconds: Option<f64>, stalled: Option<String>| StageProgress {
            stage,
            newest_ms: newest.map(EventTime::millis),
            behind_seconds,
            stalled,
        };
        vec![
            stage(StageName::Samples, times.sample, None, None),
            stage(StageName::Windows, self.now, window_lag, is_stalled(window_lag, windows_limit).then(no_windows)),
            stage(StageName::Decisions, times.decision, None, None),
            stage(
                StageName::Actuations,
                times.actuation,
                longest_wait,
                is_stalled(longest_wait, outcomes_limit).then(no_outcomes),
            ),
        ]
    }

    /// Returns the seconds that each running workload's newest change has waited for its outcome.
    fn unanswered_seconds(&self) -> impl Iterator<Item = f64> {
        let running = self.workloads.values().filter(move |state| state.is_reporting(self.now));
        running.filter_map(move |state| Some(self.now?.seconds_since(state.unanswered_since()?).max(0.0)))
    }
}
