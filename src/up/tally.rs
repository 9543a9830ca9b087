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
    /// Downtime included.
    pub joules_per_sample: Option<f64>,
    /// The newest window has a restart.
    pub restarted: bool,
    pub layout: Option<Layout>,
    pub recent: VecDeque<Decision>,
    saving: Option<Saving>,
    /// Of its windows: the least trustworthy one.
    window_origin: Option<Origin>,
    /// As the workload itself was declared, for as long as it has no window.
    declared_origin: Option<Origin>,
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

    /// The origin of every figure shown; `None` if they differ, or if there is none.
    pub fn origin(&self) -> Option<Origin> {
        let mut origins = self.workloads.values().filter_map(WorkloadTally::origin);
        let first = origins.next()?;
        origins.all(|origin| origin == first).then_some(first)
    }

    /// Returns whether figures of different origins are shown side by side.
    pub fn is_mixed(&self) -> bool {
        self.origin().is_none() && self.workloads.values().any(|row| row.origin().is_some())
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
        row.joules_per_sample = window.energy_per_sample();
        row.restarted = window.restarted;
        row.window_origin = row.window_origin.max(Some(window.origin));
        // A restart would flatten everything else.
        if let Some(joules) = row.joules_per_sample.filter(|_| !window.restarted) {
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
        row.declared_origin = Some(workload.origin);
        row.layout = Some(workload.layout.clone());
    }
}

impl WorkloadTally {
    pub fn saving(&self) -> Option<Saving> {
        self.saving
    }

    /// The origin of its figures: its windows decide, whatever else is declared of it.
    pub fn origin(&self) -> Option<Origin> {
        self.window_origin.or(self.declared_origin)
    }

    pub fn state(&self) -> &'static str {
        match (self.rolling, self.restarted, self.validating) {
            (true, ..) => "rolling out",
            (_, true, _) => "restarted",
            (_, _, true) => "validating",
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

#[cfg(test)]
mod tests {
    use eadt_core::{Event, FoldSettings, Input, Output, Partition};
    use eadt_dataset::Cells;
    use eadt_schemas::v1::{GpuTelemetry, TrainingProgress};

    use super::*;

    const NAME: &str = "team/job";

    fn at(second: i64) -> EventTime {
        EventTime::from_micros((1_700_000_040 + second) * 1_000_000)
    }

    /// Four minutes of a GPU and of a job that is down from 70 to 110 s and does some samples again.
    fn windows(window_rules: u32) -> Vec<EfficiencyWindow> {
        let mut partition = Partition::new(FoldSettings { window_rules, ..FoldSettings::default() });
        let mut out = Vec::new();
        for second in 0..=240 {
            let (time, now) = (at(second), second as f64);
            let workload = Some(NAME.to_owned());
            let sample = GpuTelemetry {
                time,
                workload,
                device: "GPU-1".into(),
                collector: "nvml/n".into(),
                power_watts: Some(317.0 + now / 7.0),
                ..GpuTelemetry::default()
            };
            let progress = TrainingProgress {
                time,
                workload: NAME.into(),
                collector: "http/n".into(),
                samples_total: Some(if second < 110 { now * 3.7 } else { 240.0 + (now - 110.0) * 3.9 }),
                ..TrainingProgress::default()
            };
            let input = |topic, event| Input { topic, stamp: time, key: None, event };
            partition.fold(&input(Topic::GpuTelemetry, Event::Telemetry(&sample)), &mut out);
            if !(71..110).contains(&second) {
                partition.fold(&input(Topic::TrainingProgress, Event::Progress(&progress)), &mut out);
            }
        }
        partition.finish(&mut out);
        let window = |output| if let Output::Window(window) = output { Some(*window) } else { None };
        out.into_iter().filter_map(window).collect()
    }

    #[test]
    fn the_live_view_the_windows_the_report_and_the_data_set_agree_to_the_last_digit() {
        let events = windows(2);
        let own: Vec<Option<f64>> = events.iter().map(|window| window.joules_per_sample).collect();
        assert!(own.len() >= 4 && own.iter().take(4).all(Option::is_some), "{own:?}");
        let restarts: Vec<bool> = events.iter().map(|window| window.restarted).collect();
        assert_eq!(restarts.iter().filter(|restarted| **restarted).count(), 1, "{restarts:?}");
        // Windows of a release before, in which downtime was left out, are shown as those of this one.
        for events in [events, windows(1)] {
            let mut tally = Tally::default();
            let mut reporter = Reporter::default();
            let mut dataset = eadt_dataset::Builder::default();
            let mut shown = Vec::new();
            for window in &events {
                tally.take(Topic::EfficiencyWindows, &serde_json::to_vec(window).unwrap());
                shown.push((tally.workloads[NAME].joules_per_sample, tally.workloads[NAME].restarted));
                reporter.window(window);
                dataset.window(window.clone());
            }
            let by = Some(eadt_report::By::Window);
            let report = reporter.report(&eadt_report::Settings { by, ..eadt_report::Settings::default() });
            let rows = report.workloads[0].by_window.as_ref().unwrap();
            let reported: Vec<_> = rows.iter().map(|row| (row.joules_per_sample, row.restarted)).collect();
            let dataset = dataset.build();
            let Cells::Float(learned) = &dataset.windows.column("joules_per_sample").unwrap().cells else { panic!("numbers") };
            assert_eq!(shown, own.iter().copied().zip(restarts.iter().copied()).collect::<Vec<_>>());
            assert_eq!((&reported, learned), (&shown, &own));
            // All but the restart are sums of parts of the whole.
            let all = report.workloads[0].joules_per_sample.unwrap();
            let samples: f64 = rows.iter().filter_map(|row| row.samples).sum();
            let joules: f64 = rows.iter().filter_map(|row| Some(row.joules_per_sample? * row.samples?)).sum();
            assert!((joules / samples - all).abs() < all * 1e-9, "{} instead of {all}", joules / samples);
        }
    }
}
