//! Facts from a workload's tables and from its job's own reports: layouts, actuations, runs, spans.

use std::collections::VecDeque;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, ActuationOutcome, Layout, Workload};
use serde::{Deserialize, Serialize};

use crate::controller::ControllerSettings;
use crate::window::summary::IntervalTotals;

/// Layouts remembered beyond what open windows need; more in one open window are dropped, the oldest first.
const MAX_LAYOUTS: usize = 64;

/// The layouts of a workload in the order of their times, and the outcomes of its decisions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LayoutHistory {
    layouts: VecDeque<Workload>,
    /// Controller settings that the newest layout declares.
    #[serde(skip)]
    settings: Option<Box<ControllerSettings>>,
    last_actuation: Option<Box<Actuation>>,
    /// Times at which layouts were changed, ready or taken back.
    changes: VecDeque<EventTime>,
}

impl LayoutHistory {
    /// Returns the newest layout.
    pub fn newest(&self) -> Option<&Workload> {
        self.layouts.back()
    }

    /// Returns the controller settings that it declares.
    pub fn settings(&self) -> Option<&ControllerSettings> {
        self.settings.as_deref()
    }

    /// Reads the settings that are kept in the layouts only.
    #[must_use]
    pub fn with_settings_read_again(mut self) -> Self {
        self.settings = self.newest().and_then(|newest| ControllerSettings::from_workload(newest).ok()?).map(Box::new);
        self
    }

    pub fn last_actuation(&self) -> Option<&Actuation> {
        self.last_actuation.as_deref()
    }

    pub fn is_empty(&self) -> bool {
        self.layouts.is_empty()
    }

    /// Returns the layout in force at a time.
    pub fn at(&self, time: EventTime) -> Option<&Workload> {
        self.layouts.iter().rev().find(|layout| layout.time <= time)
    }

    /// Takes a layout and the controller settings that it declares; true if it is a new generation of the newest one.
    pub fn put(&mut self, layout: &Workload, settings: Option<ControllerSettings>) -> bool {
        if self.newest().is_none_or(|newest| newest.time <= layout.time) {
            self.settings = settings.map(Box::new);
        }
        let renewed = self.newest().is_some_and(|newest| layout.generation > newest.generation);
        let place = self.layouts.partition_point(|other| other.time < layout.time);
        match self.layouts.get_mut(place) {
            Some(same) if same.time == layout.time => *same = layout.clone(),
            _ => self.layouts.insert(place, layout.clone()),
        }
        if self.layouts.len() > MAX_LAYOUTS {
            self.layouts.pop_front();
        }
        renewed
    }

    /// Notes that the workload is no longer managed.
    pub fn clear(&mut self) {
        self.layouts.clear();
        self.settings = None;
    }

    pub fn note_actuation(&mut self, actuation: &Actuation) {
        if matches!(
            actuation.outcome,
            ActuationOutcome::Applied | ActuationOutcome::Ready | ActuationOutcome::RolledBack | ActuationOutcome::Failed
        ) {
            let (Ok(place) | Err(place)) = self.changes.binary_search(&actuation.time);
            self.changes.insert(place, actuation.time);
            if self.changes.len() > MAX_LAYOUTS {
                self.changes.pop_front();
            }
        }
        if self.last_actuation.as_ref().is_none_or(|last| last.time <= actuation.time) {
            self.last_actuation = Some(Box::new(actuation.clone()));
        }
    }

    /// Returns whether the layout changed, rolled out or restarted in `(start, end]`.
    pub fn was_restarted_between(&self, start: EventTime, end: EventTime) -> bool {
        let within = |time: EventTime| start < time && time <= end;
        let mut generation = None;
        for layout in self.layouts.iter().filter(|layout| layout.time <= end) {
            if within(layout.time) && generation.is_some_and(|before| before != layout.generation) {
                return true;
            }
            generation = Some(layout.generation);
        }
        // A layout that a decision made is rolling out until it is ready.
        let rolling = self.at(end).is_some_and(|now| now.ready_time.map_or(now.decision_id.is_some(), |ready| ready > start));
        rolling && self.at(end).is_some_and(|now| now.ready_time.is_none_or(|ready| ready <= end))
            || self.changes.iter().any(|time| within(*time))
    }

    /// Returns whether all changes in `(start, end]` are of settings without a restart: power caps, clocks, and those that a
    /// job changes itself.
    ///
    /// Returns false if nothing changed, or if the layout before a change is not available any more.
    pub fn only_settings_changed(&self, start: EventTime, end: EventTime) -> bool {
        let within = |time: EventTime| start < time && time <= end;
        let mut before: Option<&Workload> = None;
        let mut generation: Option<&Workload> = None;
        let mut found = false;
        for layout in self.layouts.iter().filter(|layout| layout.time <= end) {
            if generation.is_none_or(|first| first.generation != layout.generation) {
                before = generation.replace(layout);
            }
            let changed = generation.is_some_and(|first| within(first.time));
            if !within(layout.time) || before.is_none() && !changed {
                continue;
            }
            match before {
                Some(before) if differ_in_settings_only(before, layout) => found = true,
                _ => return false,
            }
        }
        found
    }

    /// Forgets layouts that no window from `open` on can need.
    pub fn prune(&mut self, open: EventTime) {
        while self.layouts.get(1).is_some_and(|second| second.time <= open) {
            self.layouts.pop_front();
        }
        while self.changes.front().is_some_and(|time| *time <= open) {
            self.changes.pop_front();
        }
    }
}

/// Returns whether two layouts have the same processes and other settings.
fn differ_in_settings_only(before: &Workload, after: &Workload) -> bool {
    let processes = |layout: &Layout| {
        let Layout { replicas, mps_thread_percentage, world_size, local_world_size, .. } = layout;
        (*replicas, *mps_thread_percentage, *world_size, *local_world_size)
    };
    processes(&before.layout) == processes(&after.layout) && before.layout != after.layout
}

/// GPUs and processes that a layout declares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayoutSize {
    pub gpus: Option<u32>,
    pub processes: Option<u32>,
}

impl LayoutSize {
    pub fn of(workload: &Workload) -> Self {
        Self { gpus: workload.gpus, processes: workload.layout.world_size.or(workload.layout.replicas) }
    }

    /// Returns whether it has fewer processes than `before`.
    pub fn has_fewer_processes(self, before: Self) -> bool {
        self.processes.zip(before.processes).is_some_and(|(now, before)| now < before)
    }

    /// Returns whether it has fewer GPUs than `before`; if either does not declare them, whether it has fewer processes.
    pub fn has_fewer_gpus(self, before: Self) -> bool {
        let declared = self.gpus.zip(before.gpus);
        declared.map_or_else(|| self.has_fewer_processes(before), |(now, before)| now < before)
    }
}

/// One run of a job; open ends are not known (yet).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct JobRun {
    pub start: Option<EventTime>,
    pub end: Option<EventTime>,
    /// Another job began with it: the counters of the run before it are of other work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_another_job: bool,
}

/// The runs that a job declared, in order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRuns(Vec<JobRun>);

impl JobRuns {
    pub fn is_declared(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the number of runs that are kept.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Notes that the job started; returns true if another job begins: after a finished one, or if `begins_anew`.
    pub fn start(&mut self, time: EventTime, begins_anew: bool) -> bool {
        if let Some(run) = self.0.last_mut().filter(|run| run.end.is_none_or(|end| time < end)) {
            if !begins_anew || run.end.is_some() || run.start.is_some_and(|start| time <= start) {
                // A rank that reports its start later, or a restart within the run.
                run.start = run.start.map(|start| start.min(time));
                return false;
            }
            // The job before it was killed.
            run.end = Some(time);
        }
        let is_of_another_job = begins_anew || !self.0.is_empty();
        self.0.push(JobRun { start: Some(time), end: None, is_of_another_job });
        is_of_another_job
    }

    pub fn finish(&mut self, time: EventTime) {
        match self.0.last_mut() {
            Some(run) => run.end = Some(run.end.map_or(time, |end| end.max(time))),
            None => self.0.push(JobRun { start: None, end: Some(time), is_of_another_job: false }),
        }
    }

    /// Returns whether the newest run has ended.
    pub fn is_finished(&self) -> bool {
        self.0.last().is_some_and(|run| run.end.is_some())
    }

    /// Returns when the present run began; `None` if it is not declared.
    pub fn last_start(&self) -> Option<EventTime> {
        self.0.last()?.start
    }

    /// Returns when the present job began, if it is not the first one.
    pub fn other_job_start(&self) -> Option<EventTime> {
        self.0.last().filter(|run| run.is_of_another_job)?.start
    }

    /// Returns whether a slice lies in a run; runs begin and end at slice edges.
    pub fn contains_slice(&self, from: EventTime, to: EventTime) -> bool {
        self.0.iter().any(|run| run.start.is_none_or(|start| start <= from) && run.end.is_none_or(|end| to <= end))
    }

    /// Forgets runs that ended before `open`, the last one apart.
    pub fn prune(&mut self, open: EventTime) {
        let keep = self.0.iter().position(|run| run.end.is_none_or(|end| end > open)).unwrap_or(self.0.len());
        self.0.drain(..keep.min(self.0.len().saturating_sub(1)));
    }
}

/// A span that a source named.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenSpan {
    pub rank: u32,
    pub collector: Box<str>,
    pub name: Box<str>,
    pub start: EventTime,
    pub end: Option<EventTime>,
    /// Totals of the closed windows.
    pub totals: IntervalTotals,
    /// Inputs of it are missing for good.
    pub gap: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> EventTime {
        EventTime::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn runs_of_ranks_that_disagree_and_of_jobs_that_follow_each_other() {
        let mut runs = JobRuns::default();
        assert!(!runs.start(at(10), false));
        assert!(!runs.start(at(9), false), "another rank started earlier");
        assert!(!runs.start(at(50), false), "a restart within the run");
        runs.finish(at(100));
        runs.finish(at(101));
        assert!(runs.contains_slice(at(9), at(101)));
        assert!(!runs.contains_slice(at(8), at(20)) && !runs.contains_slice(at(101), at(102)));
        assert!(runs.start(at(200), false), "a new job");
        assert!(runs.contains_slice(at(300), at(400)));
    }

    #[test]
    fn a_change_of_the_layout_marks_exactly_its_windows() {
        let mut tables = LayoutHistory::default();
        let layout = |seconds, generation| Workload { time: at(seconds), generation, ..Workload::default() };
        tables.put(&layout(5, 1), None);
        assert!(!tables.was_restarted_between(at(0), at(60)), "the first known layout is no change");
        assert!(tables.put(&layout(70, 2), None));
        assert!(tables.was_restarted_between(at(60), at(120)) && !tables.was_restarted_between(at(120), at(180)));
        tables.put(&Workload { ready_time: Some(at(130)), ..layout(131, 2) }, None);
        assert!(tables.was_restarted_between(at(120), at(180)), "it became ready in this window");
        assert!(!tables.was_restarted_between(at(180), at(240)));
        assert_eq!(tables.at(at(69)).map(|l| l.generation), Some(1));
    }

    fn layout(seconds: i64, generation: u64) -> Workload {
        Workload { time: at(seconds), generation, ..Workload::default() }
    }

    fn actuation(seconds: i64, outcome: ActuationOutcome, decision: &str) -> Actuation {
        Actuation { time: at(seconds), outcome, decision_id: decision.to_owned(), ..Actuation::default() }
    }

    /// Times of the layouts that are kept, with their generations.
    fn kept(tables: &LayoutHistory) -> Vec<(i64, u64)> {
        tables.layouts.iter().map(|layout| (layout.time.micros() / 1_000_000, layout.generation)).collect()
    }

    #[test]
    fn what_happens_at_an_edge_belongs_to_the_window_that_ends_there() {
        let mut tables = LayoutHistory::default();
        tables.put(&layout(5, 1), None);
        tables.put(&layout(60, 2), None);
        assert!(tables.was_restarted_between(at(0), at(60)) && !tables.was_restarted_between(at(60), at(120)));
        tables.note_actuation(&actuation(240, ActuationOutcome::Ready, "d"));
        assert!(tables.was_restarted_between(at(180), at(240)) && !tables.was_restarted_between(at(240), at(300)));
        let mut tables = LayoutHistory::default();
        tables.put(&Workload { ready_time: Some(at(120)), ..layout(100, 1) }, None);
        assert!(tables.was_restarted_between(at(60), at(120)) && !tables.was_restarted_between(at(120), at(180)));
    }

    #[test]
    fn what_restarts_nothing_is_distinguished_from_what_does() {
        let running = Layout { replicas: Some(4), power_limit_watts: Some(300.0), ..Layout::default() };
        let of = |seconds, generation, layout: &Layout| Workload { layout: layout.clone(), ..self::layout(seconds, generation) };
        let capped = Layout { power_limit_watts: Some(250.0), ..running.clone() };
        let clocked = Layout { sm_clock_mhz: Some(1200.0), ..capped.clone() };
        let fewer = Layout { replicas: Some(2), ..capped.clone() };
        let tables = |layouts: &[Workload]| {
            let mut tables = LayoutHistory::default();
            for layout in layouts {
                tables.put(layout, None);
                tables.note_actuation(&Actuation { time: layout.time, ..actuation(0, ActuationOutcome::Applied, "d") });
            }
            tables
        };
        for (what, layouts, restarted, settings) in [
            ("nothing", vec![of(5, 1, &running)], false, false),
            ("a cap", vec![of(5, 1, &running), of(70, 2, &capped)], true, true),
            ("a cap and a clock", vec![of(5, 1, &running), of(70, 2, &capped), of(80, 3, &clocked)], true, true),
            ("a cap that is ready later", vec![of(5, 1, &running), of(70, 2, &capped), of(75, 2, &capped)], true, true),
            ("replicas", vec![of(5, 1, &capped), of(70, 2, &fewer)], true, false),
            ("a cap, then replicas", vec![of(5, 1, &running), of(70, 2, &capped), of(90, 3, &fewer)], true, false),
            ("a new generation of the same layout", vec![of(5, 1, &running), of(70, 2, &running)], true, false),
            ("unknown before", vec![of(70, 2, &capped)], true, false),
            ("in the window before", vec![of(5, 1, &running), of(50, 2, &capped)], false, false),
        ] {
            let tables = tables(&layouts);
            assert_eq!(tables.was_restarted_between(at(60), at(120)), restarted, "{what}");
            assert_eq!(tables.only_settings_changed(at(60), at(120)), settings, "{what}");
        }
    }

    #[test]
    fn layouts_are_kept_in_the_order_of_their_times_and_one_of_the_same_time_replaces_the_other() {
        let mut tables = LayoutHistory::default();
        assert!(tables.is_empty());
        assert!(!tables.put(&layout(20, 2), None));
        assert!(!tables.is_empty());
        assert!(!tables.put(&layout(10, 1), None), "an older generation");
        assert_eq!(kept(&tables), [(10, 1), (20, 2)]);
        assert!(!tables.put(&layout(30, 2), None), "the same generation");
        assert!(tables.put(&layout(20, 3), None), "a newer one, though its time is not");
        assert_eq!(kept(&tables), [(10, 1), (20, 3), (30, 2)]);
    }

    #[test]
    fn so_many_layouts_and_changes_are_kept_and_of_more_the_oldest_go() {
        let mut tables = LayoutHistory::default();
        for n in 0..MAX_LAYOUTS as i64 {
            tables.put(&layout(n, 1), None);
            tables.note_actuation(&actuation(n, ActuationOutcome::Applied, "d"));
        }
        assert_eq!((tables.layouts.len(), tables.layouts[0].time), (64, at(0)));
        assert_eq!((tables.changes.len(), tables.changes[0]), (64, at(0)));
        tables.put(&layout(64, 1), None);
        tables.note_actuation(&actuation(64, ActuationOutcome::Applied, "d"));
        assert_eq!((tables.layouts.len(), tables.layouts[0].time), (64, at(1)));
        assert_eq!((tables.changes.len(), tables.changes[0]), (64, at(1)));
    }

    #[test]
    fn the_newest_actuation_is_remembered_and_what_changed_nothing_marks_no_window() {
        let mut tables = LayoutHistory::default();
        let last = |tables: &LayoutHistory| tables.last_actuation().map(|last| last.decision_id.clone());
        assert_eq!(last(&tables), None);
        tables.note_actuation(&actuation(20, ActuationOutcome::Ready, "one"));
        tables.note_actuation(&actuation(10, ActuationOutcome::Applied, "older"));
        assert_eq!(last(&tables).as_deref(), Some("one"));
        tables.note_actuation(&actuation(20, ActuationOutcome::Refused, "same time, reported later"));
        assert_eq!(last(&tables).as_deref(), Some("same time, reported later"));
        assert_eq!(tables.changes, [at(10), at(20)], "in order, and nothing was changed by what was refused");
    }

    #[test]
    fn what_is_in_force_at_the_oldest_open_window_stays() {
        let mut tables = LayoutHistory::default();
        for second in [10, 20, 30] {
            tables.put(&layout(second, 1), None);
            tables.note_actuation(&actuation(second, ActuationOutcome::Applied, "d"));
        }
        tables.prune(at(19));
        assert_eq!((kept(&tables).len(), tables.changes.len()), (3, 2));
        tables.prune(at(20));
        assert_eq!((kept(&tables), tables.changes.clone()), (vec![(20, 1), (30, 1)], VecDeque::from([at(30)])));
    }

    #[test]
    fn a_job_that_starts_when_the_former_one_ends_is_a_new_one_and_old_runs_are_forgotten() {
        let mut runs = JobRuns::default();
        runs.start(at(0), false);
        runs.finish(at(10));
        assert!(!runs.start(at(9), false) && runs.0.len() == 1, "before it ended");
        assert!(runs.start(at(10), false) && runs.0.len() == 2);
        runs.finish(at(20));
        runs.start(at(30), false);
        runs.prune(at(19));
        assert_eq!(runs.0.len(), 2, "the second one ends in open time");
        runs.prune(at(20));
        assert_eq!(runs.0, [JobRun { start: Some(at(30)), end: None, is_of_another_job: true }]);
        runs.finish(at(40));
        runs.prune(at(1_000));
        assert_eq!(
            runs.0,
            [JobRun { start: Some(at(30)), end: Some(at(40)), is_of_another_job: true }],
            "the last one shows that runs are declared"
        );
    }
}
