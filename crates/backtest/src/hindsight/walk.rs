//! One controller through one workload's record, window by window.

use std::collections::{BTreeMap, BTreeSet};

use eadt_core::controller::{ControllerContext, ControllerName, ControllerSettings, ControllerState, decide};
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted_as;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ControllerAction, Decision, EfficiencyWindow, Layout, Origin, UpdateMode, WindowKind, Workload,
};

use super::evidence::{Estimate, InsufficientEvidence, RecordEvidence, WindowMeasurement, same_layout};
use super::{CounterfactualChange, HindsightInput, HindsightRow, RefusedChange};
use crate::answer::answer;

/// One workload of the record, its events in order of time, each once.
#[derive(Debug)]
pub struct RecordedJob<'a> {
    name: &'a str,
    windows: Vec<&'a EfficiencyWindow>,
    tables: Vec<&'a Workload>,
    actuations: Vec<&'a Actuation>,
}

/// Returns the workloads that have tumbling windows. GPUs without a workload have no decisions.
pub fn jobs(record: &HindsightInput) -> Vec<RecordedJob<'_>> {
    let mut windows: BTreeMap<&str, BTreeMap<(EventTime, &str), &EfficiencyWindow>> = BTreeMap::new();
    for window in record.windows.iter().filter(|w| w.kind == WindowKind::Tumbling && w.workload.contains('/')) {
        windows.entry(&window.workload).or_default().insert((window.window_end, &window.id), window);
    }
    let mut jobs: Vec<RecordedJob<'_>> = Vec::with_capacity(windows.len());
    for (name, windows) in windows {
        let mut tables: Vec<&Workload> = record.workloads.iter().filter(|table| table.workload == name).collect();
        tables.sort_by_key(|table| (table.time, table.generation));
        let mut actuations: Vec<&Actuation> = record.actuations.iter().filter(|it| it.workload == name).collect();
        actuations.sort_by_key(|actuation| actuation.time);
        jobs.push(RecordedJob { name, windows: windows.into_values().collect(), tables, actuations });
    }
    jobs
}

/// The layout that the controller would have.
#[derive(Debug)]
struct CounterfactualLayout {
    layout: Layout,
    /// The decision that set it: the controller's own if `is_imagined`.
    decision_id: Option<String>,
    /// The controller has changed something. Until then the layout is that of other writers than the record's controller.
    is_imagined: bool,
    /// The window's number from which on it is in force and warm enough to be compared.
    ready_from: usize,
    /// The change to it replaces processes.
    restarts: bool,
    /// Part of the time of such a change in which the job runs.
    running_ratio: f64,
    /// Downtime in seconds that was not reported to the controller yet.
    unreported_downtime: Option<f64>,
    /// The reason why its effect is not known at present.
    unknown: Option<InsufficientEvidence>,
}

impl CounterfactualLayout {
    /// Returns a layout that is in force from window `ready_from` on, without a restart.
    fn new(layout: Layout, decision_id: Option<String>, is_imagined: bool, ready_from: usize) -> Self {
        Self {
            layout,
            decision_id,
            is_imagined,
            ready_from,
            restarts: false,
            running_ratio: 1.0,
            unreported_downtime: None,
            unknown: None,
        }
    }
}

/// Windows that count only if restarts do: the record restarts in them, or the controller would.
#[derive(Debug, Default)]
struct RestartWindows {
    recorded: Vec<WindowMeasurement>,
    factual: Vec<WindowMeasurement>,
    estimated: BTreeMap<usize, usize>,
}

struct HindsightWalk<'a> {
    job: &'a RecordedJob<'a>,
    evidence: RecordEvidence,
    coverage_min_ratio: f64,
    board_watts: Option<f64>,
    /// Grows with every change of the layout that the controller is shown.
    generation: u64,
    last_layout: Option<Layout>,
    /// `None` before the first window.
    current: Option<CounterfactualLayout>,
    actuation: Option<Actuation>,
    /// Number of times that windows of a group were used.
    turns: BTreeMap<usize, usize>,
    factual: Vec<WindowMeasurement>,
    recorded: Vec<WindowMeasurement>,
    estimated: BTreeMap<usize, usize>,
    around_restarts: RestartWindows,
    unknown: u64,
    it: HindsightRow,
}

/// Returns the time that a rollout takes if the record has none.
fn downtime_seconds(job: &RecordedJob<'_>, settings: &ControllerSettings) -> f64 {
    let mut known: Vec<f64> = job.actuations.iter().filter_map(|it| it.downtime_seconds).filter(|s| *s > 0.0).collect();
    known.sort_by(f64::total_cmp);
    known.get(known.len() / 2).copied().unwrap_or(settings.restart_seconds)
}

/// Lets a controller loose on a job; `on_decision` sees each of its decisions.
pub fn walk(
    job: &RecordedJob<'_>,
    name: ControllerName,
    settings: &ControllerSettings,
    on_decision: &mut dyn FnMut(&Decision),
) -> HindsightRow {
    let declared = job.tables.last().and_then(|table| ControllerSettings::from_workload(table).ok().flatten());
    let settings = declared.as_ref().unwrap_or(settings);
    let layouts: Vec<Option<Layout>> = job.windows.iter().map(|window| layout_of(job, window).cloned()).collect();
    let mut walk = HindsightWalk::new(job, name, settings, &layouts);
    let mut state = ControllerState::default();
    let downtime = downtime_seconds(job, settings);
    for (index, (recorded, layout)) in job.windows.iter().zip(&layouts).enumerate() {
        let Some(table) = table_of(job, recorded) else { continue };
        let (window, workload) = walk.controller_view(index, table, layout.as_ref());
        let context = ControllerContext {
            workload: Some(&workload),
            last_actuation: walk.actuation.as_ref(),
            remaining_seconds: None,
            checkpoint_time: None,
            training: None,
            settings,
            models: None,
        };
        let decision = decide(name, &mut state, &window, &context);
        on_decision(&decision);
        if decision.action != ControllerAction::Maintain && decision.from != decision.to {
            walk.evaluate_change(index, &decision, downtime);
        }
    }
    walk.finish(downtime)
}

/// Returns the newest table event up to the window's end.
fn table_of<'a>(job: &RecordedJob<'a>, window: &EfficiencyWindow) -> Option<&'a Workload> {
    let known = job.tables.partition_point(|table| table.time <= window.window_end);
    job.tables[..known].last().copied()
}

fn layout_of<'a>(job: &RecordedJob<'a>, window: &'a EfficiencyWindow) -> Option<&'a Layout> {
    window.layout.as_ref().or_else(|| table_of(job, window).map(|table| &table.layout))
}

impl<'a> HindsightWalk<'a> {
    /// `layouts`: the layout in force in each window, `None` if it is not known.
    fn new(job: &'a RecordedJob<'a>, name: ControllerName, settings: &ControllerSettings, layouts: &[Option<Layout>]) -> Self {
        let board_watts = job.tables.iter().rev().find_map(|table| table.gpu_power_limit_watts);
        let changes = layouts.windows(2).filter(|pair| pair[0].is_some() && pair[0] != pair[1]).count();
        Self {
            job,
            evidence: RecordEvidence::new(&job.windows, layouts, settings.coverage_min_ratio, board_watts),
            coverage_min_ratio: settings.coverage_min_ratio,
            board_watts,
            generation: 0,
            last_layout: None,
            current: None,
            actuation: None,
            turns: BTreeMap::new(),
            factual: Vec::new(),
            recorded: Vec::new(),
            estimated: BTreeMap::new(),
            around_restarts: RestartWindows::default(),
            unknown: 0,
            it: HindsightRow {
                workload: job.name.to_owned(),
                controller: name,
                origin: job.windows.iter().map(|window| window.origin).max().unwrap_or(Origin::Measured),
                windows: job.windows.len() as u64,
                windows_as_recorded: 0,
                windows_estimated: 0,
                windows_unknown: 0,
                known_ratio: None,
                recorded_joules_per_sample: None,
                joules_per_sample_change: None,
                changes: Vec::new(),
                refused: Vec::new(),
                restarts: 0,
                recorded_changes: changes as u64,
                notes: Vec::new(),
            },
        }
    }

    /// Returns the window and the workload as the controller would have seen them.
    fn controller_view(&mut self, index: usize, table: &Workload, recorded: Option<&Layout>) -> (EfficiencyWindow, Workload) {
        let current = self.follow_others(index, table, recorded);
        let mut current = self.follow_rollback(index, current);
        let mut window = self.window_seen(index, &mut current, recorded);
        if self.last_layout.as_ref() != Some(&current.layout) {
            self.generation += 1;
            self.last_layout = Some(current.layout.clone());
        }
        (window.layout, window.generation) = (Some(current.layout.clone()), Some(self.generation));
        let workload = Workload {
            layout: current.layout.clone(),
            generation: self.generation,
            // The record's decision made the record's layout. Under that decision's id, the controller would take its own
            // change for a foreign one.
            decision_id: current.decision_id.clone(),
            // The question is which decisions the controller would have made if it had been allowed to.
            mode: UpdateMode::Enforce,
            paused: false,
            ..table.clone()
        };
        self.current = Some(current);
        (window, workload)
    }

    /// Returns the controller's layout. As long as it has changed nothing, that is the record's, without the changes by the
    /// record's controller: they would not have been made.
    fn follow_others(&mut self, index: usize, table: &Workload, recorded: Option<&Layout>) -> CounterfactualLayout {
        let layout = recorded.unwrap_or(&table.layout);
        let by_controller = table.decision_id.is_some() || self.is_rolled_back(table) || self.is_next_decided(index, layout);
        let stays = |it: &CounterfactualLayout| {
            it.is_imagined || by_controller || (it.layout == *layout && it.decision_id == table.decision_id)
        };
        let set_by_others = || CounterfactualLayout::new(layout.clone(), table.decision_id.clone(), false, index);
        self.current.take().filter(stays).unwrap_or_else(set_by_others)
    }

    /// Returns whether a window has the layout of a decision that is published after the window's end.
    fn is_next_decided(&self, index: usize, layout: &Layout) -> bool {
        let end = self.job.windows[index].window_end;
        let next = self.job.tables.iter().find(|table| table.time > end);
        next.is_some_and(|table| table.decision_id.is_some() && table.layout == *layout)
    }

    /// Returns whether the record's actuator made this layout by undoing a change.
    fn is_rolled_back(&self, table: &Workload) -> bool {
        let undoes = |it: &&Actuation| {
            it.outcome == ActuationOutcome::RolledBack && it.generation == table.generation && it.layout == table.layout
        };
        self.job.actuations.iter().any(undoes)
    }

    /// Undoes the controller's change if the record made the same decision, and its actuator undid it.
    fn follow_rollback(&mut self, index: usize, current: CounterfactualLayout) -> CounterfactualLayout {
        let until = self.job.windows[index].window_end;
        let is_undone = |it: &&Actuation| {
            matches!(it.outcome, ActuationOutcome::RolledBack | ActuationOutcome::Failed)
                && it.time <= until
                && current.decision_id.as_ref() == Some(&it.decision_id)
        };
        let undone = self.job.actuations.iter().copied().find(is_undone).filter(|_| current.is_imagined);
        let Some(undone) = undone else { return current };
        self.actuation = Some(Actuation { generation: self.generation + 1, ..undone.clone() });
        CounterfactualLayout::new(undone.layout.clone(), None, true, index + 1)
    }

    /// Returns the window that the controller would have seen, and counts it.
    fn window_seen(&mut self, index: usize, current: &mut CounterfactualLayout, recorded: Option<&Layout>) -> EfficiencyWindow {
        let own = self.job.windows[index];
        let figures = WindowMeasurement::of(own, self.coverage_min_ratio);
        let same = recorded.is_none_or(|recorded| same_layout(recorded, &current.layout, self.board_watts));
        let rolling = index < current.ready_from;
        if let Some(downtime) = current.unreported_downtime.take_if(|_| !rolling) {
            self.ready(own.window_end, downtime);
        }
        if rolling || figures.is_none() {
            self.add_restart(index, current, figures, same);
        }
        // If the record restarts, or the window is not usable, nothing is decided, as while the imagined change rolls out.
        let Some(figures) = figures.filter(|_| !rolling) else {
            return EfficiencyWindow { restarted: own.restarted || current.is_imagined || !same, ..own.clone() };
        };
        let window = if same {
            self.it.windows_as_recorded += 1;
            self.factual.push(figures);
            own.clone()
        } else {
            match self.evidence.find_group(&current.layout, self.evidence.phase(index)) {
                Ok(group) => self.borrowed_window(index, group),
                Err(unknown) => {
                    self.unknown += 1;
                    if current.unknown.as_ref() != Some(&unknown) {
                        current.unknown = Some(unknown.clone());
                        self.lose_layout(own.window_end, &current.layout, recorded, unknown);
                    }
                    return without_figures(own);
                }
            }
        };
        current.unknown = None;
        self.recorded.push(figures);
        window
    }

    /// Returns a window of a group in the place of one of the record.
    fn borrowed_window(&mut self, index: usize, group: usize) -> EfficiencyWindow {
        let own = self.job.windows[index];
        let turn = self.turns.entry(group).or_default();
        let lent = self.job.windows[self.evidence.window(group, *turn)];
        *turn += 1;
        self.it.windows_estimated += 1;
        *self.estimated.entry(group).or_default() += 1;
        EfficiencyWindow { id: own.id.clone(), window_start: own.window_start, window_end: own.window_end, ..lent.clone() }
    }

    /// Counts a window in which the record restarts, or the controller would, for the figure with restarts. `same`: the record
    /// runs the controller's layout.
    fn add_restart(&mut self, index: usize, current: &CounterfactualLayout, figures: Option<WindowMeasurement>, same: bool) {
        let own = self.job.windows[index];
        let restarting = index < current.ready_from && current.restarts;
        let Some(recorded) = WindowMeasurement::with_downtime(own, self.coverage_min_ratio) else { return };
        if figures.is_some() || !own.has_restart() {
            // Only the controller restarts. A restart of the record's own at another window is not counted twice.
            if figures.is_some() && restarting && !same {
                let samples_per_second = recorded.samples_per_second * current.running_ratio;
                self.around_restarts.recorded.push(recorded);
                self.around_restarts.factual.push(WindowMeasurement { samples_per_second, ..recorded });
            }
        } else if same || restarting {
            self.around_restarts.recorded.push(recorded);
            self.around_restarts.factual.push(recorded);
        } else if let Ok(group) = self.evidence.find_group(&current.layout, self.phase_before(index)) {
            self.around_restarts.recorded.push(recorded);
            *self.around_restarts.estimated.entry(group).or_default() += 1;
        }
    }

    /// Returns the phase of the job in a window, or the last known one before it.
    fn phase_before(&self, index: usize) -> Option<usize> {
        (0..=index).rev().find_map(|index| self.evidence.phase(index))
    }

    /// Completes the imagined rollout.
    fn ready(&mut self, time: EventTime, downtime: f64) {
        if let Some(actuation) = &mut self.actuation {
            actuation.outcome = ActuationOutcome::Ready;
            actuation.time = time;
            actuation.downtime_seconds = (downtime > 0.0).then_some(downtime);
        }
    }

    /// Records that the record has no data for the controller's layout in the phase that has begun. The controller keeps that
    /// layout: given the record's layout, it would assume a foreign change.
    fn lose_layout(&mut self, time: EventTime, held: &Layout, recorded: Option<&Layout>, unknown: InsufficientEvidence) {
        let to = recorded.cloned().unwrap_or_default();
        self.refuse(ControllerAction::Maintain, held.clone(), to, time, unknown);
    }

    fn refuse(&mut self, action: ControllerAction, from: Layout, to: Layout, time: EventTime, unknown: InsufficientEvidence) {
        let same = |it: &&mut RefusedChange| it.action == action && it.from == from && it.to == to && it.unknown == unknown;
        if let Some(known) = self.it.refused.iter_mut().find(same) {
            known.count += 1;
            return;
        }
        let reason = if action == ControllerAction::Maintain {
            format!("not followed any further in this phase: {unknown}")
        } else {
            unknown.to_string()
        };
        self.it.refused.push(RefusedChange { action, from, to, count: 1, time, unknown, reason });
    }

    /// Evaluates a decision to change something.
    fn evaluate_change(&mut self, index: usize, decision: &Decision, downtime: f64) {
        let phase = self.phase_before(index);
        let window = self.job.windows[index];
        let seconds = window.window_end.seconds_since(window.window_start).max(1e-3);
        let rolling = if decision.restarts { (downtime / seconds).ceil() as usize } else { 0 };
        // The window in which the change comes into force holds some of either.
        let ready_from = index + 2 + rolling;
        let evidence = self.evidence.find_group(&decision.to, phase);
        match evidence {
            // A change that the record made itself is evaluated, however short.
            Err(unknown) if !self.is_next_of_record(index, &decision.to, ready_from) => {
                let reason = format!("the record does not show it: {unknown}");
                self.actuation =
                    Some(answer(decision, ActuationOutcome::Refused, reason, decision.from.clone(), self.generation));
                self.refuse(decision.action, decision.from.clone(), decision.to.clone(), decision.time, unknown);
            }
            evidence => {
                let to = evidence.ok();
                let from = self.evidence.find_group(&decision.from, phase).ok();
                self.it.changes.push(CounterfactualChange {
                    time: decision.time,
                    action: decision.action,
                    from: decision.from.clone(),
                    to: decision.to.clone(),
                    phase: phase.unwrap_or_default(),
                    reason: decision.reason.clone(),
                    windows: to.map_or(0, |to| self.evidence.windows(to)),
                    effect: from.zip(to).map(|(from, to)| self.evidence.effect(from, to, index as u64)),
                });
                self.it.restarts += u64::from(decision.restarts);
                let downtime = if decision.restarts { downtime } else { 0.0 };
                self.actuation =
                    Some(answer(decision, ActuationOutcome::Applied, String::new(), decision.to.clone(), self.generation + 1));
                self.current = Some(CounterfactualLayout {
                    restarts: decision.restarts,
                    running_ratio: (1.0 - downtime / (seconds * (rolling + 1) as f64)).max(0.0),
                    unreported_downtime: Some(downtime),
                    ..CounterfactualLayout::new(decision.to.clone(), Some(decision.id.clone()), true, ready_from)
                });
            }
        }
    }

    /// Returns whether the record has the controller's layout in this window, and its actuator applied this one by the window
    /// `until`.
    fn is_next_of_record(&self, index: usize, to: &Layout, until: usize) -> bool {
        let windows = &self.job.windows;
        let same = |a: &Layout, b: &Layout| same_layout(a, b, self.board_watts);
        let recorded = layout_of(self.job, windows[index]);
        let is_on_record = self.current.as_ref().is_none_or(|it| recorded.is_some_and(|at| same(at, &it.layout)));
        let times = windows[index].window_end..=windows[until.min(windows.len() - 1)].window_end;
        let applies =
            |it: &Actuation| it.outcome == ActuationOutcome::Applied && times.contains(&it.time) && same(&it.layout, to);
        is_on_record && self.job.actuations.iter().any(|it| applies(it))
    }

    fn finish(self, downtime: f64) -> HindsightRow {
        let change = self.total_change();
        let mut it = self.it;
        it.windows_unknown = self.unknown;
        let known = it.windows_as_recorded + it.windows_estimated;
        let usable = known + it.windows_unknown;
        it.known_ratio = (usable > 0).then(|| known as f64 / usable as f64);
        let total = |of: fn(&WindowMeasurement) -> f64| self.recorded.iter().map(of).sum::<f64>();
        let (watts, rate) = (total(|f| f.watts), total(|f| f.samples_per_second));
        it.recorded_joules_per_sample = (rate > 0.0).then(|| watts / rate);
        if it.refused.is_empty() {
            it.joules_per_sample_change = change;
        } else {
            let name = it.controller;
            it.notes.push(format!("the record does not show what {name} would have used: it lacks changes that {name} makes"));
        }
        if self.job.tables.is_empty() {
            it.notes.push("this workload was not managed: without its layout and bounds on record nothing is decided".to_owned());
        }
        let modes: BTreeSet<&str> =
            self.job.tables.iter().filter(|t| t.mode != UpdateMode::Enforce).map(|t| mode(t.mode)).collect();
        if !modes.is_empty() {
            let modes: Vec<&str> = modes.into_iter().collect();
            it.notes.push(format!("the record was in mode {}; here the controller decides as in Enforce", modes.join(" and ")));
        }
        if !ControllerName::ALL.contains(&it.controller) {
            it.notes.push(format!(
                "{} decides nothing here: it needs the jobs beside this one, or what the job reports of its training",
                it.controller
            ));
        }
        if it.restarts > 0 || it.recorded_changes > 0 {
            it.notes.push(format!(
                "restarts are in no J/sample here, but the interval of its change holds the change with them, too: {} at \
                 {downtime:.0} s each, instead of the record's own",
                counted_as(it.restarts, "imagined one", "imagined ones")
            ));
        }
        it
    }

    /// Returns the change of J/sample in the windows that are known; `None` if nothing is estimated. The interval holds the
    /// change without restarts and the one with them.
    fn total_change(&self) -> Option<Estimate> {
        if self.estimated.is_empty() {
            return None;
        }
        let total = |factual: &[WindowMeasurement], estimated: &BTreeMap<usize, usize>, recorded: &[WindowMeasurement]| {
            let estimated: Vec<(usize, usize)> = estimated.iter().map(|(group, windows)| (*group, *windows)).collect();
            self.evidence.total_effect(factual, &estimated, recorded, 0)
        };
        let without = total(&self.factual, &self.estimated, &self.recorded);
        let around = &self.around_restarts;
        if around.recorded.is_empty() {
            return Some(without);
        }
        let mut estimated = self.estimated.clone();
        for (group, windows) in &around.estimated {
            *estimated.entry(*group).or_default() += windows;
        }
        let factual = [&self.factual[..], &around.factual[..]].concat();
        let recorded = [&self.recorded[..], &around.recorded[..]].concat();
        Some(without.spanning(total(&factual, &estimated, &recorded)))
    }
}

/// Returns a window of a layout without figures in this phase.
fn without_figures(window: &EfficiencyWindow) -> EfficiencyWindow {
    EfficiencyWindow {
        id: window.id.clone(),
        workload: window.workload.clone(),
        window_start: window.window_start,
        window_end: window.window_end,
        origin: window.origin,
        gpus: window.gpus,
        ranks: window.ranks,
        ..EfficiencyWindow::default()
    }
}

const fn mode(mode: UpdateMode) -> &'static str {
    match mode {
        UpdateMode::Observe => "Observe",
        UpdateMode::Recommend => "Recommend",
        UpdateMode::Enforce => "Enforce",
    }
}
