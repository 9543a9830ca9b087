//! Sums over the windows of one workload. They stay exact if the windows are not kept.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Meter, Origin};

use crate::WorkloadReport;
use crate::figures::{GPUS_WITHOUT_WORKLOAD, JOULES_PER_KWH, divide_known};
use crate::reporter::{EventTimeRange, ReportWindow, part_of, sum_known};

/// Note of a report that is made of sums alone.
const ONLY_SUMS: &str = "its record is longer than what is kept of windows here: no saving is computed, and notes on windows are left out; \
                         `eadt report` has both";

/// Sums over windows, in the order of their starts.
#[derive(Debug, Default, Clone)]
pub(crate) struct WindowSums {
    windows: u64,
    pub(crate) samples: AmountSum,
    pub(crate) tokens: AmountSum,
    samples_redone: f64,
    observed: Option<EventTimeRange>,
    /// Windows whose job has reported when its run began or ended.
    declared: RunSums,
    /// All others. They lie before the run if there are declared ones.
    undeclared: RunSums,
    has_declared: bool,
    /// The reason why no energy was known when the windows were dropped.
    why_no_energy: Option<String>,
}

/// An amount in windows, and the part that became known later and is of no window.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct AmountSum {
    pub(crate) in_windows: Option<f64>,
    unassigned: f64,
}

impl AmountSum {
    fn add(&mut self, in_window: Option<f64>, unassigned: f64) {
        self.in_windows = sum_known([self.in_windows, in_window].into_iter());
        self.unassigned += unassigned;
    }

    /// Returns the part that is of no window; `None` if there is none.
    pub(crate) fn unassigned(&self) -> Option<f64> {
        (self.unassigned > 0.0).then_some(self.unassigned)
    }

    /// Returns both parts together.
    pub(crate) fn total(&self) -> Option<f64> {
        sum_known([self.in_windows, self.unassigned()].into_iter())
    }
}

/// Energy, and the samples or tokens of the same windows. Downtime is in it; windows without known energy, and amounts in no
/// window, are not. If energy is known for a part of a window's progress, or progress of a part of the ranks, it is extrapolated as in
/// the window's own figure.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct MatchedTotals {
    joules: Option<f64>,
    progress: Option<f64>,
}

impl MatchedTotals {
    pub(crate) fn of<'a>(windows: impl Iterator<Item = &'a ReportWindow>, progress: fn(&ReportWindow) -> Option<f64>) -> Self {
        let mut all = Self::default();
        windows.for_each(|window| all.add(window, progress(window)));
        all
    }

    fn add(&mut self, window: &ReportWindow, progress: Option<f64>) {
        if window.run_energy.is_some() {
            self.joules = sum_known([self.joules, window.energy_of_progress()].into_iter());
            let progress = progress.map(|progress| window.with_silent_ranks(progress));
            self.progress = sum_known([self.progress, progress].into_iter());
        }
    }

    pub(crate) fn joules_per(&self) -> Option<f64> {
        divide_known(self.joules, self.progress)
    }

    pub(crate) fn per_joule(&self) -> Option<f64> {
        divide_known(self.progress, self.joules)
    }
}

/// The time of a window inside the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunSpan {
    start: EventTime,
    end: EventTime,
    run_seconds: f64,
    declared: bool,
    /// The run goes on while nothing is observed.
    runs_on: bool,
}

impl RunSpan {
    pub(crate) fn of(window: &ReportWindow) -> Self {
        let ReportWindow { start, end, run_seconds, declared, .. } = *window;
        Self { start, end, run_seconds, declared, runs_on: window.runs_on() }
    }

    /// Returns the seconds inside the run; if the job has reported nothing about its run, inside the observed time.
    pub(crate) fn seconds_in(&self, observed: EventTimeRange) -> f64 {
        if self.declared || self.run_seconds == 0.0 {
            return self.run_seconds;
        }
        self.end.min(observed.1).seconds_since(self.start.max(observed.0)).clamp(0.0, self.run_seconds)
    }
}

/// Sums over the windows that overlap the run.
#[derive(Debug, Default, Clone)]
pub(crate) struct RunSums {
    pub(crate) energy: AmountSum,
    /// Energy before the run began and after it ended, also of windows that do not overlap it.
    outside: Option<f64>,
    pub(crate) of_samples: MatchedTotals,
    pub(crate) of_tokens: MatchedTotals,
    covered_seconds: f64,
    /// Energy and seconds of windows with known power.
    powered_joules: Option<f64>,
    powered_seconds: f64,
    /// Seconds of all windows but the last, and of silences between them.
    seconds: f64,
    last: Option<RunSpan>,
}

impl RunSums {
    /// Adds a window; `observed` is the observed time so far.
    fn add(&mut self, window: &ReportWindow, observed: EventTimeRange) {
        self.outside = sum_known([self.outside, window.outside_energy].into_iter());
        if window.run_seconds <= 0.0 {
            return;
        }
        self.energy.add(window.run_energy, window.unassigned);
        self.of_samples.add(window, window.samples);
        self.of_tokens.add(window, window.tokens);
        self.covered_seconds += window.covered_seconds();
        let powered = window.powered_seconds();
        if let Some(joules) = window.run_energy.filter(|_| powered > 0.0) {
            self.powered_joules = Some(self.powered_joules.unwrap_or(0.0) + joules);
            self.powered_seconds += powered;
        }
        let span = RunSpan::of(window);
        if let Some(last) = self.last.replace(span) {
            self.seconds += last.seconds_in((observed.0, last.end));
            if last.end < span.start && last.runs_on && span.runs_on {
                self.seconds += span.start.seconds_since(last.end);
            }
        }
    }

    fn duration(&self, observed: EventTimeRange) -> Option<f64> {
        self.last.map(|last| self.seconds + last.seconds_in(observed))
    }
}

impl WindowSums {
    pub(crate) fn of(windows: &[ReportWindow]) -> Self {
        let mut all = Self::default();
        for window in windows {
            all.add(window);
        }
        all
    }

    /// Sets the reason why no energy is known of the windows so far.
    #[must_use]
    pub(crate) fn with_why_no_energy(mut self, why: Option<String>) -> Self {
        self.why_no_energy = why;
        self
    }

    /// Adds a window that is not older than those before it.
    pub(crate) fn add(&mut self, window: &ReportWindow) {
        self.windows += 1;
        let own = window.observed.unwrap_or((window.start, window.end));
        let observed = self.observed.map_or(own, |known| (known.0.min(own.0), known.1.max(own.1)));
        self.observed = Some(observed);
        self.samples.add(window.samples, window.unassigned_progress.0);
        self.tokens.add(window.tokens, window.unassigned_progress.1);
        self.samples_redone += window.samples_redone;
        self.has_declared |= window.declared;
        let part = if window.declared { &mut self.declared } else { &mut self.undeclared };
        part.add(window, observed);
    }

    /// Returns the sums of the run. A window that closes before a job reports its start is part of it only if none reports one.
    pub(crate) fn run(&self) -> &RunSums {
        if self.has_declared { &self.declared } else { &self.undeclared }
    }

    /// Returns the energy before the run began and after it ended.
    fn outside_run(&self) -> Option<f64> {
        let before = self.undeclared.energy.in_windows.filter(|_| self.has_declared);
        sum_known([self.declared.outside, self.undeclared.outside, before].into_iter())
    }

    /// Returns the report that needs no windows: without a saving, cost, CO₂ and decisions.
    pub(crate) fn report(&self, name: &str, origin: Origin, meter: Option<Meter>) -> WorkloadReport {
        let run = self.run();
        let energy = run.energy.total();
        // Several GPUs without a workload have windows of the same time.
        let is_one = name != GPUS_WITHOUT_WORKLOAD;
        let duration = run.duration(self.observed.unwrap_or_default()).filter(|_| is_one);
        WorkloadReport {
            workload: name.to_owned(),
            energy_joules: energy,
            energy_kwh: energy.map(|joules| joules / JOULES_PER_KWH),
            samples: self.samples.total(),
            tokens: self.tokens.total(),
            joules_per_sample: run.of_samples.joules_per(),
            samples_per_joule: run.of_samples.per_joule(),
            tokens_per_joule: run.of_tokens.per_joule(),
            duration_seconds: duration,
            mean_power_watts: divide_known(run.powered_joules, Some(run.powered_seconds)).filter(|_| is_one),
            coverage_ratio: duration.map(|seconds| part_of(run.covered_seconds, seconds)),
            windows: self.windows,
            origin,
            meter: meter.filter(|_| energy.is_some()),
            unassigned_energy_joules: run.energy.unassigned(),
            outside_run_energy_joules: self.outside_run(),
            unassigned_samples: self.samples.unassigned(),
            unassigned_tokens: self.tokens.unassigned(),
            samples_redone: (self.samples_redone > 0.0).then_some(self.samples_redone),
            notes: vec![ONLY_SUMS.to_owned()],
            why_no_energy: self.why_no_energy.clone().filter(|_| energy.is_none()),
            // It is not known whether something was changed. Nothing changes GPUs without a workload.
            lacks_baseline: is_one,
            ..WorkloadReport::default()
        }
    }
}
