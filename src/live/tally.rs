//! State of the views and the closing report, gathered from events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use eadt_report::liveness::{PresentMoment, WindowTimes};
use eadt_report::states::{
    ChangeFate, ChangeFates, ChangeProgress, RunProgress, WindowPresence, WorkloadStatus, decision_takes_back, may_be_changed,
};
use eadt_report::{
    ChangeRecord, GPUS_WITHOUT_WORKLOAD, IdleGpus, IdlePower, ReportBreakdown, ReportSettings, Reporter, SavingSummary,
    WorkloadReport,
};
use eadt_schemas::v1::{
    Actuation, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout, Origin, WindowKind, Workload,
};
use eadt_schemas::{EventTime, Topic, decode};

use super::event_line::is_change;

/// Decisions kept of a workload: those that changed or judged something, and the newest.
const RECENT: usize = 50;
/// Time for updating savings before a frame; the rest follows before the next one.
const REFRESH: Duration = Duration::from_millis(100);
/// State of GPUs without a workload.
const WITHOUT_WORK: &str = "without work";

/// Counts and figures of everything seen so far.
#[derive(Debug, Default)]
pub struct LiveTally {
    pub workloads: BTreeMap<String, WorkloadTally>,
    pub now: Option<EventTime>,
    /// Start of the oldest window.
    pub since: Option<EventTime>,
    pub windows: u64,
    pub decisions: u64,
    pub dead_letters: u64,
    /// Events of an output topic that could not be read; always 0 unless another program writes there.
    pub unreadable: u64,
    /// The record is not written any more: nothing in it runs.
    pub has_ended: bool,
    /// The last moment at which anything was observed.
    observed_end: Option<EventTime>,
    reporter: Reporter,
    /// Workloads with events since their report.
    stale: BTreeSet<String>,
}

/// Saving against the starting layout; negative: a loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkloadSaving {
    pub joules: f64,
    /// Part of the energy that the starting layout would have used.
    pub ratio: f64,
    /// Half of the width of the ratio's 90 % interval.
    pub ratio_error: Option<f64>,
    /// The part of the run's energy that could be compared.
    pub compared_ratio: Option<f64>,
}

impl WorkloadSaving {
    /// Returns the saving that a report states; `None` if it states none.
    pub fn of(report: &WorkloadReport) -> Option<Self> {
        let (joules, ratio) = report.saving_joules.zip(report.saving_ratio)?;
        let ends = report.saving_ratio_low.zip(report.saving_ratio_high);
        let ratio_error = ends.map(|(low, high)| 0.5 * (high - low));
        Some(Self { joules, ratio, ratio_error, compared_ratio: report.compared_energy_ratio })
    }
}

/// Figures of a newest window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NewestFigures {
    pub power_watts: Option<f64>,
    pub samples_per_second: Option<f64>,
    /// Downtime included.
    pub joules_per_sample: Option<f64>,
    /// GPUs with events in it; also if it is not of the present.
    pub gpus: Option<u32>,
}

/// One workload's latest figures: those of its newest window, and its report, which has those of the run.
#[derive(Debug, Default)]
pub struct WorkloadTally {
    newest_window: Option<WindowTimes>,
    /// Figures of its newest window, of whatever time: [`LiveTally::newest_of`] has those of the present.
    newest: NewestFigures,
    /// The newest window has a restart.
    pub restarted: bool,
    pub recent: VecDeque<Decision>,
    pub actuations: VecDeque<Actuation>,
    /// Layout, mode, bounds and settings in force.
    pub declared: Option<Workload>,
    /// The report, as of the last refresh.
    pub report: Option<WorkloadReport>,
    /// Origin of its windows: the least trustworthy one.
    window_origin: Option<Origin>,
    /// Outcomes of its decisions.
    pub fates: ChangeFates,
    last_fate: Option<ChangeFate>,
    pending_validation: bool,
    /// Id of the newest change or verdict, if it takes a change back.
    newest_revert: Option<String>,
    /// Id of the newest change or verdict, if it is a change.
    newest_change: Option<String>,
    run: RunProgress,
    /// GPUs without a workload; absent for workloads.
    idle: Option<IdleGpus>,
}

impl LiveTally {
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

    /// Returns the figures so far.
    pub fn report(&self) -> eadt_report::EnergyReport {
        self.reporter.build_report(&ReportSettings::default())
    }

    /// Returns the report on one workload, window by window.
    pub fn by_window(&self, workload: &str) -> Option<WorkloadReport> {
        self.reporter.report_of(workload, &ReportSettings { by: Some(ReportBreakdown::Window), ..ReportSettings::default() })
    }

    /// Returns every change that was decided for a workload, and every verdict on one, by time.
    pub fn changes(&self, workload: &str) -> Vec<ChangeRecord> {
        self.reporter.changes_of(workload)
    }

    /// Brings the reports up to date; for every frame, not for every event. If there are very many, the rest follows at later
    /// calls.
    pub fn refresh(&mut self) {
        let begun = Instant::now();
        while let Some(name) = self.stale.pop_first() {
            self.refresh_one(&name);
            if begun.elapsed() >= REFRESH {
                break;
            }
        }
    }

    /// Brings every report up to date.
    pub fn refresh_all(&mut self) {
        while let Some(name) = self.stale.pop_first() {
            self.refresh_one(&name);
        }
    }

    fn refresh_one(&mut self, name: &str) {
        let report = self.reporter.report_of(name, &ReportSettings::default());
        if let Some(row) = self.workloads.get_mut(name) {
            row.report = report;
        }
    }

    /// Returns the J/sample of a workload's run, as its report has it.
    pub fn run_joules_per_sample(&self, workload: &str) -> Option<f64> {
        self.workloads.get(workload)?.report.as_ref()?.joules_per_sample
    }

    /// Returns the J/sample of a workload's newest window; `None` if that is not of the present.
    pub fn newest_joules_per_sample(&self, workload: &str) -> Option<f64> {
        self.newest_of(self.workloads.get(workload)?).joules_per_sample
    }

    /// Returns whether a workload's newest window is of about the time of the newest one of all.
    fn is_live(&self, row: &WorkloadTally) -> bool {
        row.newest_window.zip(self.now).is_some_and(|(newest, now)| !newest.is_silent(now))
    }

    /// Returns the moment that figures of the present are of.
    fn moment(&self) -> Option<PresentMoment> {
        self.now.map(|now| PresentMoment { now, record_end: self.observed_end.filter(|_| self.has_ended) })
    }

    /// Returns whether the figures of a workload's newest window are of the present.
    fn runs_now(&self, row: &WorkloadTally) -> bool {
        row.newest_window.zip(self.moment()).is_some_and(|(newest, moment)| row.run.runs_now(&newest, moment))
    }

    /// Returns the power and the number of GPUs that are without work; of a record that has ended, those of its end.
    fn idle_power(&self, idle: &IdleGpus) -> IdlePower {
        match self.moment() {
            Some(moment) if !self.has_ended => idle.power_at(moment, |_| true),
            _ => idle.last_power(),
        }
    }

    /// Returns the figures of the present of a workload, or of the GPUs without one. Those of a record that has ended are the last
    /// ones.
    pub fn newest_of(&self, row: &WorkloadTally) -> NewestFigures {
        if let Some(idle) = &row.idle {
            let IdlePower { power_watts, devices } = self.idle_power(idle);
            return NewestFigures { power_watts, gpus: Some(devices), ..NewestFigures::default() };
        }
        if self.has_ended || self.runs_now(row) {
            row.newest
        } else {
            NewestFigures { gpus: row.newest.gpus, ..NewestFigures::default() }
        }
    }

    /// Returns the power in the newest windows of all workloads that run; `None` if none is known. That of GPUs without a
    /// workload is not in it, nor that of GPUs whose job has ended.
    pub fn power(&self) -> Option<f64> {
        let running = self.workloads.values().filter(|row| row.idle.is_none() && self.runs_now(row));
        running.filter_map(|row| row.newest.power_watts).reduce(|sum, watts| sum + watts)
    }

    /// Returns the state of a workload in a word, in the words of the web page.
    pub fn state(&self, row: &WorkloadTally) -> &'static str {
        if let Some(idle) = row.idle.as_ref().filter(|_| !self.has_ended) {
            let is_any_idle = self.idle_power(idle).devices > 0;
            return if is_any_idle { WITHOUT_WORK } else { WorkloadStatus::Silent.word() };
        }
        let window = match row.newest_window {
            _ if self.has_ended => WindowPresence::Ended,
            None => WindowPresence::None,
            Some(_) if row.run.is_over() => WindowPresence::Ended,
            Some(_) if !self.is_live(row) => WindowPresence::Silent,
            Some(_) => WindowPresence::Live { restarted: row.restarted },
        };
        let is_paused = row.declared.as_ref().is_some_and(|declared| declared.paused);
        WorkloadStatus::of(window, is_paused, row.change_progress()).word()
    }

    /// Sums of all workloads, as of the last refresh.
    pub fn summary(&self) -> SavingSummary {
        SavingSummary::of(self.workloads.values().filter_map(|row| row.report.as_ref()))
    }

    /// Returns the origin of every figure shown; `None` if they differ, or if there is none.
    pub fn origin(&self) -> Option<Origin> {
        let mut origins = self.workloads.values().filter_map(WorkloadTally::origin);
        let first = origins.next()?;
        origins.all(|origin| origin == first).then_some(first)
    }

    /// Returns whether figures of different origins are shown side by side.
    pub fn is_mixed(&self) -> bool {
        self.origin().is_none() && self.workloads.values().any(|row| row.origin().is_some())
    }

    fn read<T: eadt_schemas::decode::DecodableEvent>(&mut self, value: &[u8], take: fn(&mut Self, &T)) {
        match decode::<T>(value) {
            Ok(event) => take(self, &event),
            Err(_) => self.unreadable += 1,
        }
    }

    fn row(&mut self, workload: &str) -> &mut WorkloadTally {
        self.stale.insert(workload.to_owned());
        self.workloads.entry(workload.to_owned()).or_default()
    }

    pub fn window(&mut self, window: &EfficiencyWindow) {
        self.reporter.add_window(window);
        if window.kind != WindowKind::Tumbling {
            return;
        }
        self.windows += 1;
        self.now = self.now.max(Some(window.window_end));
        self.since = Some(self.since.map_or(window.window_start, |since| since.min(window.window_start)));
        let times = WindowTimes::from(window);
        self.observed_end = self.observed_end.max(Some(times.observed_end()));
        let row = self.row(&window.workload);
        if row.newest_window.is_none_or(|newest| newest.start <= times.start) {
            row.newest_window = Some(times);
        }
        row.window_origin = row.window_origin.max(Some(window.origin));
        if window.workload == GPUS_WITHOUT_WORKLOAD {
            row.idle.get_or_insert_default().add(window);
            return;
        }
        row.newest = NewestFigures {
            power_watts: window.mean_power_watts,
            samples_per_second: window.samples_per_second,
            joules_per_sample: window.energy_per_sample(),
            gpus: window.meter.is_of_gpu().then_some(window.gpus),
        };
        row.restarted = window.has_restart();
        row.run.add(window);
    }

    pub fn decision(&mut self, decision: &Decision) {
        self.decisions += 1;
        self.reporter.add_decision(decision);
        let row = self.row(&decision.workload);
        row.pending_validation = decision.validation == ChangeValidation::Pending;
        if is_change(decision) {
            row.newest_revert = decision_takes_back(decision).then(|| decision.id.clone());
            row.newest_change = (decision.action != ControllerAction::Maintain).then(|| decision.id.clone());
        }
        // Only the newest of consecutive plain `maintain`s is kept.
        if row.recent.back().is_some_and(|newest| !is_change(newest)) {
            row.recent.pop_back();
        }
        row.recent.push_back(decision.clone());
        row.recent.keep_last(RECENT);
    }

    pub fn actuation(&mut self, actuation: &Actuation) {
        self.reporter.add_actuation(actuation);
        let row = self.row(&actuation.workload);
        row.last_fate = Some(ChangeFate::from(actuation));
        row.fates.add(actuation);
        // An archive may have the actuations before the decisions, so that these do not show which fates are needed.
        row.fates.keep_newest(2 * RECENT);
        row.actuations.push_back(actuation.clone());
        row.actuations.keep_last(RECENT);
    }

    pub fn workload(&mut self, workload: &Workload) {
        self.row(&workload.workload).declared = Some(workload.clone());
    }
}

impl WorkloadTally {
    pub fn saving(&self) -> Option<WorkloadSaving> {
        WorkloadSaving::of(self.report.as_ref()?)
    }

    pub fn layout(&self) -> Option<&Layout> {
        self.declared.as_ref().map(|declared| &declared.layout)
    }

    /// Returns the origin of its figures: its windows decide, whatever else is declared of it.
    pub fn origin(&self) -> Option<Origin> {
        self.window_origin.or(self.declared.as_ref().map(|declared| declared.origin))
    }

    /// Returns the progress of its newest changes.
    fn change_progress(&self) -> ChangeProgress {
        let is_not_made = |id: &String| self.fates.get(id).is_some_and(ChangeFate::is_not_made);
        ChangeProgress {
            last_fate: self.last_fate,
            is_pending: self.pending_validation,
            is_reverted: self.newest_revert.as_ref().is_some_and(|id| !is_not_made(id)),
            is_unanswered: self.declared.as_ref().is_some_and(may_be_changed)
                && self.newest_change.as_ref().is_some_and(|id| self.fates.get(id).is_none()),
        }
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
    use eadt_core::{FoldOutput, FoldSettings, InputEvent, InputRecord, PartitionFold};
    use eadt_dataset::ColumnCells;
    use eadt_schemas::v1::{ActuationOutcome, GpuTelemetry, TrainingProgress, refusal_reason};

    use super::*;
    use crate::live::chart::ChartMark;
    use crate::live::frame::WorkloadDetails;

    const NAME: &str = "team/job";

    fn at(second: i64) -> EventTime {
        EventTime::from_micros((1_700_000_040 + second) * 1_000_000)
    }

    /// Four minutes of a GPU and of a job that is down from 70 to 110 s and does some samples again.
    fn windows(window_rules: u32) -> Vec<EfficiencyWindow> {
        let mut partition = PartitionFold::new(FoldSettings { window_rules, ..FoldSettings::default() });
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
            let input = |topic, event| InputRecord { topic, stamp: time, key: None, is_sent_again: false, event };
            partition.fold(&input(Topic::GpuTelemetry, InputEvent::Telemetry(&sample)), &mut out);
            if !(71..110).contains(&second) {
                partition.fold(&input(Topic::TrainingProgress, InputEvent::Progress(&progress)), &mut out);
            }
        }
        partition.finish(&mut out);
        let window = |output| if let FoldOutput::Window(window) = output { Some(*window) } else { None };
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
            let mut tally = LiveTally::default();
            let mut reporter = Reporter::default();
            let mut dataset = eadt_dataset::DatasetBuilder::default();
            let (mut shown, mut power) = (Vec::new(), Vec::new());
            for window in &events {
                tally.take(Topic::EfficiencyWindows, &serde_json::to_vec(window).unwrap());
                let row = &tally.workloads[NAME];
                shown.push((row.newest.joules_per_sample, row.restarted));
                power.push(row.newest.power_watts);
                reporter.add_window(window);
                dataset.window(window.clone());
            }
            let by = Some(eadt_report::ReportBreakdown::Window);
            let report = reporter.build_report(&eadt_report::ReportSettings { by, ..eadt_report::ReportSettings::default() });
            let rows = report.workloads[0].by_window.as_ref().unwrap();
            let reported: Vec<_> = rows.iter().map(|row| (row.joules_per_sample, row.restarted)).collect();
            let dataset = dataset.build();
            let ColumnCells::Float(learned) = &dataset.windows.column("joules_per_sample").unwrap().cells else {
                panic!("numbers")
            };
            assert_eq!(shown, own.iter().copied().zip(restarts.iter().copied()).collect::<Vec<_>>());
            assert_eq!((&reported, learned), (&shown, &own));
            let ColumnCells::Float(learned) = &dataset.windows.column("mean_power_watts").unwrap().cells else {
                panic!("numbers")
            };
            let reported: Vec<_> = rows.iter().map(|row| row.mean_power_watts).collect();
            assert_eq!((&reported, learned), (&power, &power));
            // All but the restart are sums of parts of the whole.
            let all = report.workloads[0].joules_per_sample.unwrap();
            let samples: f64 = rows.iter().filter_map(|row| row.samples).sum();
            let joules: f64 = rows.iter().filter_map(|row| Some(row.joules_per_sample? * row.samples?)).sum();
            assert!((joules / samples - all).abs() < all * 1e-9, "{} instead of {all}", joules / samples);
            // The run's and the newest window's are two figures, each under a name of its own.
            tally.refresh_all();
            tally.has_ended = true;
            assert_eq!(tally.run_joules_per_sample(NAME), Some(all));
            assert_eq!(tally.newest_joules_per_sample(NAME), own.last().copied().flatten());
            assert_ne!(tally.run_joules_per_sample(NAME), tally.newest_joules_per_sample(NAME));
        }
    }

    /// Half an hour with a change after six minutes and its restart. Of the minutes 14 to 16 there is no window, and the next one
    /// carries what a counter rose by over them.
    fn changed_run() -> (Vec<EfficiencyWindow>, Decision, [Actuation; 2]) {
        let window = |minute: i64| {
            let joules = if minute < 6 { 36_000.1 } else { 28_800.3 };
            let samples = (minute != 6).then_some(6000.7);
            let is_after_silence = minute == 17;
            EfficiencyWindow {
                id: format!("{NAME}/{minute}"),
                workload: NAME.into(),
                window_start: at(60 * minute),
                window_end: at(60 * minute + 60),
                energy_joules: Some(joules),
                energy_coverage_ratio: 1.0,
                run_seconds: 60.0,
                run_energy_joules: Some(joules),
                run_coverage_ratio: 1.0,
                samples,
                progress_coverage_ratio: samples.map_or(0.1, |_| 1.0),
                restarted: samples.is_none(),
                mean_power_watts: Some(joules / 60.0),
                unassigned_energy_joules: if is_after_silence { 2_280_525.3 } else { 0.0 },
                unassigned_samples: if is_after_silence { 223_728.0 } else { 0.0 },
                ..EfficiencyWindow::default()
            }
        };
        let change = Decision {
            id: "change".into(),
            workload: NAME.into(),
            time: at(360),
            action: ControllerAction::Decrease,
            ..Decision::default()
        };
        let answer = |outcome, second| Actuation {
            id: format!("change/{second}"),
            decision_id: change.id.clone(),
            workload: NAME.into(),
            time: at(second),
            outcome,
            ..Actuation::default()
        };
        let answers = [answer(ActuationOutcome::Applied, 363), answer(ActuationOutcome::Ready, 400)];
        ((0..14).chain(17..30).map(window).collect(), change, answers)
    }

    #[test]
    fn every_view_has_the_saving_of_the_report_to_the_last_digit() {
        let (windows, change, answers) = changed_run();
        let metrics = eadt_service::MetricsRegistry::default();
        let exporter = crate::live::exporter::Exporter::new(&metrics, crate::settings::MetricsSettings::default());
        let mut tally = LiveTally::default();
        let mut take = |topic, value: serde_json::Value| {
            let bytes = value.to_string().into_bytes();
            tally.take(topic, &bytes);
            exporter.take(topic, &bytes);
        };
        for window in &windows {
            take(Topic::EfficiencyWindows, serde_json::to_value(window).unwrap());
        }
        take(Topic::Decisions, serde_json::to_value(&change).unwrap());
        for answer in &answers {
            take(Topic::Actuations, serde_json::to_value(answer).unwrap());
        }
        tally.refresh_all();
        while exporter.refresh() {}

        let report = eadt_report::report(&windows, [&change], &answers, &ReportSettings::default());
        let it = &report.workloads[0];
        assert!(it.saving_ratio.is_some_and(|ratio| (0.05..0.2).contains(&ratio)), "{it:?}");
        assert!(it.compared_energy_ratio.is_some_and(|part| part < 0.3), "the silence's energy is not compared: {it:?}");
        let figures = (it.saving_joules, it.saving_ratio, it.compared_energy_ratio);
        for summary in [SavingSummary::of(&report.workloads), tally.summary()] {
            assert_eq!((summary.saving_joules(), summary.saving_ratio(), summary.compared_ratio()), figures);
            assert_eq!((Some(summary.compared_joules), summary.energy_joules), (it.compared_energy_joules, it.energy_joules));
        }
        let totals = eadt_report::ReportTotals::of(&report.workloads);
        assert_eq!((totals.saving_joules, totals.saving_ratio, totals.compared_energy_ratio), figures);
        let row = crate::live::frame::rows(&tally).remove(0);
        let saving = row.saving.unwrap();
        assert_eq!((Some(saving.joules), Some(saving.ratio), saving.compared_ratio), figures);
        let described = WorkloadDetails::of(&tally, NAME).unwrap().report;
        assert_eq!((described.saving_joules, described.saving_ratio, described.compared_energy_ratio), figures);

        let exported = |name: &str| -> Option<f64> {
            let series = format!("eadt_workload_{name}{{namespace=\"team\",workload=\"job\",origin=\"measured\"}} ");
            metrics.text().lines().find_map(|line| line.strip_prefix(&*series)?.parse().ok())
        };
        let exporteds = ["saving_joules", "compared_joules", "expected_joules", "record_energy_joules"].map(exported);
        let wanted = [it.saving_joules, it.compared_energy_joules, it.expected_energy_joules, it.energy_joules];
        assert_eq!(exporteds, wanted);
        let [joules, samples] = ["progress_energy_joules_total", "samples_total"].map(exported);
        let per_sample = joules.zip(samples).map(|(joules, samples)| joules / samples);
        assert_eq!((per_sample, tally.run_joules_per_sample(NAME)), (it.joules_per_sample, it.joules_per_sample));
    }

    #[test]
    fn every_change_and_verdict_is_marked_and_those_that_are_not_listed_are_counted() {
        let mut tally = LiveTally::default();
        let decide = |minute: i64, action, validation| Decision {
            id: format!("d{minute}"),
            workload: NAME.into(),
            time: at(60 * minute),
            action,
            validation,
            ..Decision::default()
        };
        tally.decision(&decide(1, ControllerAction::SetPowerLimit, ChangeValidation::None));
        // A verdict is no plain `maintain`: the next one does not take its place.
        tally.decision(&decide(2, ControllerAction::Maintain, ChangeValidation::Failed));
        tally.decision(&decide(3, ControllerAction::Maintain, ChangeValidation::None));
        tally.decision(&decide(4, ControllerAction::Maintain, ChangeValidation::None));
        let details = |tally: &LiveTally| WorkloadDetails::of(tally, NAME).unwrap();
        let listed = |details: &WorkloadDetails| -> Vec<String> {
            details.decisions.iter().map(|decided| decided.decision.id.clone()).collect()
        };
        let first = details(&tally);
        assert_eq!((listed(&first), first.earlier_line(50)), (vec!["d1".to_owned(), "d2".into(), "d4".into()], None));
        assert_eq!(first.marks, [(at(60), ChartMark::Changed), (at(120), ChartMark::NoGain)]);
        for minute in 5..65 {
            tally.decision(&decide(minute, ControllerAction::SetPowerLimit, ChangeValidation::None));
        }
        let all = details(&tally);
        assert_eq!((all.marks.len(), all.marks[0]), (62, (at(60), ChartMark::Changed)));
        assert_eq!((all.decisions.len(), all.earlier), (50, 12));
        assert_eq!(all.earlier_line(50).as_deref(), Some("12 earlier: eadt get decisions team/job"));
        assert_eq!(all.earlier_line(10).as_deref(), Some("52 earlier: eadt get decisions team/job"));
    }

    #[test]
    fn gpus_without_a_workload_have_a_row_and_are_no_workload() {
        let mut tally = LiveTally::default();
        for (workload, watts) in [("team/job", 100.0), ("gpus", 60.0), ("gpus", 70.0)] {
            tally.window(&EfficiencyWindow {
                id: format!("{workload}/{watts}"),
                workload: workload.into(),
                window_start: at(0),
                window_end: at(60),
                mean_power_watts: Some(watts),
                ..EfficiencyWindow::default()
            });
        }
        let frame = crate::live::frame::ViewFrame::of(&tally, None);
        assert_eq!((frame.rows.len(), frame.load()), (2, ["1 workload".to_owned(), "100 W".to_owned()]));
        let gpus = &frame.rows[0];
        assert_eq!((&*gpus.name, gpus.power_watts, gpus.gpus, gpus.state), ("gpus", Some(130.0), Some(2), "without work"));
        let details = WorkloadDetails::of(&tally, "gpus").unwrap();
        let powers: Vec<_> = details.report.by_window.unwrap().into_iter().map(|row| row.mean_power_watts).collect();
        assert_eq!(powers, [Some(130.0)], "one sum a window in the chart");
    }

    #[test]
    fn gpus_without_a_workload_and_without_known_power_are_counted_and_not_silent() {
        let mut tally = LiveTally::default();
        let mut add = |workload: &str, device: i64, minute: i64, mean_power_watts| {
            tally.window(&EfficiencyWindow {
                id: format!("{workload}/{device}@{minute}"),
                workload: workload.into(),
                window_start: at(60 * minute),
                window_end: at(60 * minute + 60),
                mean_utilization_ratio: Some(0.0),
                mean_power_watts,
                ..EfficiencyWindow::default()
            });
            let row = crate::live::frame::rows(&tally).remove(0);
            (row.gpus, row.power_watts, row.state)
        };
        add("gpus", 0, 0, None);
        assert_eq!(add("gpus", 1, 0, None), (Some(2), None, "without work"));
        assert_eq!(add("gpus", 2, 0, Some(70.0)), (Some(3), Some(70.0), "without work"), "of one of three it is known");
        assert_eq!(add("team/job", 0, 9, Some(300.0)), (Some(0), None, "silent"), "they work for the job");
    }

    #[test]
    fn a_change_that_was_not_made_looks_like_none_that_was() {
        use ActuationOutcome::{Ready, Recommended, Refused, RolledBack};
        let text = "set power limit to 352 W";
        for (outcome, reason, paused, state, note, mark) in [
            (Recommended, "", false, "steady", " (recommended)", ChartMark::NotMade),
            (Refused, refusal_reason::OBSERVED, false, "steady", " (not made)", ChartMark::NotMade),
            (Refused, refusal_reason::PAUSED, true, "paused", " (not made)", ChartMark::NotMade),
            (Refused, "a quota", false, "refused", " (refused)", ChartMark::NotMade),
            (RolledBack, "not ready", false, "refused", " (rolled back)", ChartMark::Changed),
            (Ready, "", false, "validating", "", ChartMark::Changed),
        ] {
            let mut tally = LiveTally::default();
            let workload = || NAME.to_owned();
            tally.workload(&Workload { workload: workload(), paused, ..Workload::default() });
            tally.window(&EfficiencyWindow {
                workload: workload(),
                window_start: at(0),
                window_end: at(60),
                ..EfficiencyWindow::default()
            });
            let change = Decision {
                id: "change".into(),
                workload: workload(),
                time: at(60),
                action: ControllerAction::SetPowerLimit,
                to: Layout { power_limit_watts: Some(352.0), ..Layout::default() },
                ..Decision::default()
            };
            let waits = Decision {
                id: "waits".into(),
                time: at(120),
                action: ControllerAction::Maintain,
                validation: ChangeValidation::Pending,
                to: Layout::default(),
                ..change.clone()
            };
            tally.decision(&change);
            tally.decision(&waits);
            tally.actuation(&Actuation {
                decision_id: change.id.clone(),
                workload: workload(),
                outcome,
                reason: reason.into(),
                ..Actuation::default()
            });
            assert_eq!(tally.state(&tally.workloads[NAME]), state, "{outcome:?} {reason}");
            let details = WorkloadDetails::of(&tally, NAME).unwrap();
            assert_eq!(crate::live::decided_text(&details.decisions[0]), format!("{text}{note}"));
            assert_eq!(crate::live::decided_text(&details.decisions[1]), "maintain");
            assert_eq!(details.marks, [(at(60), mark)], "{outcome:?} {reason}");
        }
    }

    #[test]
    fn a_job_takes_no_power_from_the_window_in_which_it_ends() {
        let metrics = eadt_service::MetricsRegistry::default();
        let exporter = crate::live::exporter::Exporter::new(&metrics, crate::settings::MetricsSettings::default());
        let mut tally = LiveTally::default();
        // One GPU, and jobs one after the other: each ends 10 s into its second window.
        for minute in 0..20 {
            for (job, run_seconds) in [(minute - 1, 10.0), (minute, 50.0)].into_iter().filter(|(job, _)| *job >= 0) {
                let value = serde_json::to_vec(&EfficiencyWindow {
                    id: format!("q/{job:02}@{minute}"),
                    workload: format!("q/{job:02}"),
                    window_start: at(60 * minute),
                    window_end: at(60 * minute + 60),
                    run_declared: true,
                    run_seconds,
                    mean_power_watts: Some(300.0),
                    samples_per_second: Some(2.0),
                    ..EfficiencyWindow::default()
                });
                let value = value.unwrap();
                tally.take(Topic::EfficiencyWindows, &value);
                exporter.take(Topic::EfficiencyWindows, &value);
            }
            let rows = crate::live::frame::rows(&tally);
            let running: Vec<_> = rows.iter().filter(|row| row.power_watts.is_some()).collect();
            let is_over = |row: &&crate::live::frame::WorkloadRow| row.state == "ended";
            assert!(running.len() == 1 && !running.iter().any(is_over), "{minute}: {rows:?}");
            assert!(rows.iter().filter(is_over).all(|row| row.samples_per_second.is_none()), "{minute}: {rows:?}");
        }
        while exporter.refresh() {}
        let text = metrics.text();
        let exported: Vec<&str> = text.lines().filter(|line| line.starts_with("eadt_workload_power_watts{")).collect();
        let last = "eadt_workload_power_watts{namespace=\"q\",workload=\"19\",origin=\"measured\"} 300.0";
        assert_eq!((exported, tally.power()), (vec![last], Some(300.0)));
    }

    #[test]
    fn a_state_separates_what_runs_from_what_is_silent_or_over() {
        let window = |workload: &str, minute: i64, minutes: i64| EfficiencyWindow {
            id: format!("{workload}@{minute}"),
            workload: workload.into(),
            window_start: at(60 * minute),
            window_end: at(60 * (minute + minutes)),
            mean_power_watts: Some(100.0),
            ..EfficiencyWindow::default()
        };
        let mut tally = LiveTally::default();
        tally.workload(&Workload { workload: "t/declared".into(), ..Workload::default() });
        for (workload, minute, minutes) in [("t/gone", 0, 1), ("t/short", 14, 1), ("t/slow", -20, 20), ("t/now", 29, 1)] {
            tally.window(&window(workload, minute, minutes));
        }
        let states = |tally: &LiveTally| -> Vec<(String, &'static str, Option<f64>)> {
            let rows = crate::live::frame::rows(tally);
            rows.into_iter().map(|row| (row.name, row.state, row.power_watts)).collect()
        };
        let state = |name: &str, state, watts| (name.to_owned(), state, watts);
        assert_eq!(
            states(&tally),
            [
                state("t/declared", "waiting", None),
                state("t/gone", "silent", None),
                state("t/now", "steady", Some(100.0)),
                // It is not silent yet, and its next window is overdue: its power is not known.
                state("t/short", "steady", None),
                // Its windows are long, so that the newest one may be this old.
                state("t/slow", "steady", Some(100.0)),
            ]
        );
        assert_eq!(tally.power(), Some(200.0));
        let run = |run_seconds| EfficiencyWindow { run_declared: true, run_seconds, ..window("t/now", 29, 1) };
        tally.window(&run(60.0));
        assert_eq!(states(&tally)[2].1, "steady");
        tally.window(&run(0.0));
        assert_eq!(
            (&states(&tally)[2], tally.power()),
            (&state("t/now", "ended", None), Some(100.0)),
            "its job has ended, and its GPU is without work"
        );
        tally.has_ended = true;
        let ended = states(&tally);
        assert!(ended.iter().all(|(_, state, _)| *state == "ended"), "{ended:?}");
        assert_eq!(ended[1].2, Some(100.0), "the last figure of each is shown: {ended:?}");
    }
}
