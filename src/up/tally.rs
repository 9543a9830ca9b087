//! What the live view and the closing report know, gathered from the events on the bus.

use std::collections::{BTreeMap, VecDeque};

use eadt_report::Reporter;
use eadt_schemas::v1::{
    Action, Actuation, Decision, EfficiencyWindow, Layout, Origin, Outcome, Validation, WindowKind, Workload,
};
use eadt_schemas::{EventTime, Topic, decode};

/// Windows kept for the sparkline of a workload.
const HISTORY: usize = 120;
/// Decisions shown for a workload: the last that changed or judged something, and the newest.
const RECENT: usize = 5;

/// Counts and figures of everything seen so far.
#[derive(Debug, Default)]
pub struct Tally {
    pub workloads: BTreeMap<String, WorkloadTally>,
    pub now: Option<EventTime>,
    pub windows: u64,
    pub decisions: u64,
    pub changes: u64,
    pub reverts: u64,
    pub dead_letters: u64,
    /// Events of an output topic that could not be read; always 0 unless another program writes there.
    pub unreadable: u64,
    reporter: Reporter,
}

/// What was saved against the starting layout; negative: lost.
#[derive(Debug, Clone, Copy)]
pub struct Saving {
    pub joules: f64,
    /// Of what the starting layout would have used.
    pub ratio: f64,
    /// Half of the width of the ratio's 90 % interval.
    pub ratio_error: Option<f64>,
    /// The part of the run's energy that could be compared.
    pub compared_ratio: Option<f64>,
}

/// One workload's latest figures.
#[derive(Debug, Default)]
pub struct WorkloadTally {
    pub power_watts: Option<f64>,
    pub samples_per_second: Option<f64>,
    pub joules_per_sample: Option<f64>,
    pub layout: Option<Layout>,
    pub recent: VecDeque<Decision>,
    saving: Option<Saving>,
    origin: Option<Origin>,
    rolling: bool,
    validating: bool,
    history: VecDeque<f64>,
}

impl Tally {
    /// Takes one record's value; events of other topics are ignored.
    pub fn take(&mut self, topic: Topic, value: &[u8]) {
        match topic {
            Topic::EfficiencyWindows => self.read(value, Self::window),
            Topic::Decisions => self.read(value, Self::decision),
            Topic::Actuations => self.read(value, Self::actuation),
            Topic::Workloads => self.read(value, Self::workload),
            Topic::DeadLetters => self.dead_letters += 1,
            _ => {}
        }
    }

    /// The figures so far.
    pub fn report(&self) -> eadt_report::Report {
        self.reporter.report(&eadt_report::Settings::default())
    }

    /// Brings the savings up to date; for every frame, not for every event.
    pub fn refresh(&mut self) {
        for workload in self.report().workloads {
            if let Some(row) = self.workloads.get_mut(&workload.workload) {
                let known = workload.saving_joules.zip(workload.saving_ratio);
                let compared_ratio = workload.compared_energy_ratio;
                let ends = workload.saving_ratio_low.zip(workload.saving_ratio_high);
                let ratio_error = ends.map(|(low, high)| 0.5 * (high - low));
                row.saving = known.map(|(joules, ratio)| Saving { joules, ratio, ratio_error, compared_ratio });
            }
        }
    }

    /// The least trustworthy origin of any figure shown.
    pub fn origin(&self) -> Option<Origin> {
        self.workloads.values().filter_map(|row| row.origin).max()
    }

    fn read<T: eadt_schemas::decode::Check>(&mut self, value: &[u8], take: fn(&mut Self, &T)) {
        match decode::<T>(value) {
            Ok(event) => take(self, &event),
            Err(_) => self.unreadable += 1,
        }
    }

    fn row(&mut self, workload: &str) -> &mut WorkloadTally {
        self.workloads.entry(workload.to_owned()).or_default()
    }

    fn window(&mut self, window: &EfficiencyWindow) {
        self.reporter.window(window);
        if window.kind != WindowKind::Tumbling {
            return;
        }
        self.windows += 1;
        self.now = self.now.max(Some(window.window_end));
        let row = self.row(&window.workload);
        row.power_watts = window.mean_power_watts;
        row.samples_per_second = window.samples_per_second;
        row.joules_per_sample = window.joules_per_sample;
        row.origin = row.origin.max(Some(window.origin));
        if let Some(joules) = window.joules_per_sample {
            row.history.push_back(joules);
            row.history.keep_last(HISTORY);
        }
    }

    fn decision(&mut self, decision: &Decision) {
        self.decisions += 1;
        self.reverts += u64::from(decision.action == Action::Revert);
        self.reporter.decision(decision);
        let row = self.row(&decision.workload);
        row.validating = decision.validation == Validation::Pending;
        // Of a row of plain `maintain`s only the newest says anything.
        let idle = |d: &Decision| d.action == Action::Maintain && d.validation != Validation::Kept;
        if row.recent.back().is_some_and(idle) {
            row.recent.pop_back();
        }
        row.recent.push_back(decision.clone());
        row.recent.keep_last(RECENT);
    }

    fn actuation(&mut self, actuation: &Actuation) {
        self.changes += u64::from(actuation.outcome == Outcome::Applied);
        self.reporter.actuation(actuation);
        self.row(&actuation.workload).rolling = actuation.outcome == Outcome::Applied;
    }

    fn workload(&mut self, workload: &Workload) {
        let row = self.row(&workload.workload);
        row.origin = row.origin.max(Some(workload.origin));
        row.layout = Some(workload.layout.clone());
    }
}

impl WorkloadTally {
    pub fn saving(&self) -> Option<Saving> {
        self.saving
    }

    pub fn state(&self) -> &'static str {
        match (self.rolling, self.validating) {
            (true, _) => "rolling out",
            (_, true) => "validating",
            _ => "steady",
        }
    }

    /// The last `width` values of J/sample, scaled between their least and greatest.
    pub fn sparkline(&self, width: usize) -> Vec<u64> {
        let values: Vec<f64> = self.history.iter().rev().take(width).rev().copied().collect();
        let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
        values.iter().map(|v| if high > low { 1 + ((v - low) / (high - low) * 99.0) as u64 } else { 50 }).collect()
    }
}

trait KeepLast {
    fn keep_last(&mut self, keep: usize);
}

impl<T> KeepLast for VecDeque<T> {
    fn keep_last(&mut self, keep: usize) {
        self.drain(..self.len().saturating_sub(keep));
    }
}
