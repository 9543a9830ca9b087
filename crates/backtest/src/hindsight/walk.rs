//! One controller through one workload's record, window by window.

use std::collections::{BTreeMap, BTreeSet};

use eadt_core::controller::{ControllerContext, ControllerName, ControllerSettings, ControllerState, decide};
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted_as;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ControllerAction, Decision, EfficiencyWindow, Layout, Origin, UpdateMode, WindowKind, Workload,
};

use super::evidence::{InsufficientEvidence, RecordEvidence, WindowMeasurement, same_layout};
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

/// The workloads that have tumbling windows; GPUs without one have nobody to decide for them.
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
    /// The window's number from which on it is in force and warm enough to be compared.
    ready_from: usize,
    /// Downtime in seconds that was not reported to the controller yet.
    unreported_downtime: Option<f64>,
}

struct HindsightWalk<'a> {
    job: &'a RecordedJob<'a>,
    evidence: RecordEvidence,
    coverage_min_ratio: f64,
    board_watts: Option<f64>,
    /// Grows with every change of the layout that the controller is shown.
    generation: u64,
    last_layout: Option<Layout>,
    imagined: Option<CounterfactualLayout>,
    actuation: Option<Actuation>,
    /// How often windows of a group were lent.
    turns: BTreeMap<usize, usize>,
    factual: Vec<WindowMeasurement>,
    recorded: Vec<WindowMeasurement>,
    estimated: BTreeMap<usize, usize>,
    unknown: u64,
    it: HindsightRow,
}

/// Time that a rollout takes where the record has none.
fn downtime_seconds(job: &RecordedJob<'_>, settings: &ControllerSettings) -> f64 {
    let mut known: Vec<f64> = job.actuations.iter().filter_map(|it| it.downtime_seconds).filter(|s| *s > 0.0).collect();
    known.sort_by(f64::total_cmp);
    known.get(known.len() / 2).copied().unwrap_or(settings.restart_seconds)
}

/// Lets a controller loose on a job.
pub fn walk(job: &RecordedJob<'_>, name: ControllerName, settings: &ControllerSettings) -> HindsightRow {
    let declared = job.tables.last().and_then(|table| ControllerSettings::from_workload(table).ok().flatten());
    let settings = declared.as_ref().unwrap_or(settings);
    let layouts: Vec<Option<Layout>> = job.windows.iter().map(|window| layout_of(job, window).cloned()).collect();
    let board_watts = job.tables.iter().rev().find_map(|table| table.gpu_power_limit_watts);
    let changes = layouts.windows(2).filter(|pair| pair[0].is_some() && pair[0] != pair[1]).count();
    let mut walk = HindsightWalk {
        job,
        evidence: RecordEvidence::new(&job.windows, &layouts, settings.coverage_min_ratio, board_watts),
        coverage_min_ratio: settings.coverage_min_ratio,
        board_watts,
        generation: 0,
        last_layout: None,
        imagined: None,
        actuation: None,
        turns: BTreeMap::new(),
        factual: Vec::new(),
        recorded: Vec::new(),
        estimated: BTreeMap::new(),
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
    };
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
        if decision.action != ControllerAction::Maintain && decision.from != decision.to {
            walk.evaluate_change(index, &decision, downtime);
        }
    }
    walk.finish(downtime)
}

/// The newest table event up to the window's end.
fn table_of<'a>(job: &RecordedJob<'a>, window: &EfficiencyWindow) -> Option<&'a Workload> {
    let known = job.tables.partition_point(|table| table.time <= window.window_end);
    job.tables[..known].last().copied()
}

fn layout_of<'a>(job: &RecordedJob<'a>, window: &'a EfficiencyWindow) -> Option<&'a Layout> {
    window.layout.as_ref().or_else(|| table_of(job, window).map(|table| &table.layout))
}

impl HindsightWalk<'_> {
    /// The window and the workload as the controller would have seen them.
    fn controller_view(&mut self, index: usize, table: &Workload, recorded: Option<&Layout>) -> (EfficiencyWindow, Workload) {
        let own = self.job.windows[index];
        let figures = WindowMeasurement::of(own, self.coverage_min_ratio);
        let mut window = own.clone();
        let layout = match self.imagined.take() {
            None => {
                if let Some(figures) = figures {
                    self.it.windows_as_recorded += 1;
                    self.factual.push(figures);
                    self.recorded.push(figures);
                }
                recorded.cloned().unwrap_or_else(|| table.layout.clone())
            }
            Some(mut imagined) => {
                let rolling = index < imagined.ready_from;
                let same = recorded.is_some_and(|recorded| same_layout(recorded, &imagined.layout, self.board_watts));
                let group = self.evidence.find_group(&imagined.layout, self.evidence.phase(index));
                let mut lost = false;
                // Where the record restarts, or knows nothing, nothing is decided, as while the imagined change rolls out.
                match (figures.filter(|_| !rolling), same, group) {
                    (None, ..) => window.restarted = true,
                    (Some(figures), true, _) => {
                        self.it.windows_as_recorded += 1;
                        self.factual.push(figures);
                        self.recorded.push(figures);
                    }
                    (Some(figures), false, Ok(group)) => {
                        let turn = self.turns.entry(group).or_default();
                        let lent = self.job.windows[self.evidence.window(group, *turn)];
                        *turn += 1;
                        window = EfficiencyWindow {
                            id: own.id.clone(),
                            window_start: own.window_start,
                            window_end: own.window_end,
                            ..lent.clone()
                        };
                        self.it.windows_estimated += 1;
                        *self.estimated.entry(group).or_default() += 1;
                        self.recorded.push(figures);
                    }
                    (Some(_), false, Err(unknown)) => {
                        self.unknown += 1;
                        self.abandon_layout(own.window_end, &imagined.layout, recorded, unknown);
                        lost = true;
                    }
                }
                if lost {
                    self.actuation = None;
                    recorded.cloned().unwrap_or_else(|| table.layout.clone())
                } else {
                    if !rolling && let Some(downtime) = imagined.unreported_downtime.take() {
                        self.ready(own.window_end, downtime);
                    }
                    let layout = imagined.layout.clone();
                    self.imagined = Some(imagined);
                    layout
                }
            }
        };
        if self.last_layout.as_ref() != Some(&layout) {
            self.generation += 1;
            self.last_layout = Some(layout.clone());
        }
        (window.layout, window.generation) = (Some(layout.clone()), Some(self.generation));
        let workload = Workload {
            layout,
            generation: self.generation,
            // What is asked is what it would have done had it been allowed to.
            mode: UpdateMode::Enforce,
            paused: false,
            ..table.clone()
        };
        (window, workload)
    }

    /// The imagined rollout is complete.
    fn ready(&mut self, time: EventTime, downtime: f64) {
        if let Some(actuation) = &mut self.actuation {
            actuation.outcome = ActuationOutcome::Ready;
            actuation.time = time;
            actuation.downtime_seconds = (downtime > 0.0).then_some(downtime);
        }
    }

    /// The record does not know the imagined layout in the phase that has begun: the controller goes on where the record is.
    fn abandon_layout(&mut self, time: EventTime, imagined: &Layout, recorded: Option<&Layout>, unknown: InsufficientEvidence) {
        let to = recorded.cloned().unwrap_or_default();
        self.refuse(ControllerAction::Maintain, imagined.clone(), to, time, unknown);
    }

    fn refuse(&mut self, action: ControllerAction, from: Layout, to: Layout, time: EventTime, unknown: InsufficientEvidence) {
        let same = |it: &&mut RefusedChange| it.action == action && it.from == from && it.to == to && it.unknown == unknown;
        if let Some(known) = self.it.refused.iter_mut().find(same) {
            known.count += 1;
            return;
        }
        let reason = if action == ControllerAction::Maintain {
            format!("not followed any further: {unknown}")
        } else {
            unknown.to_string()
        };
        self.it.refused.push(RefusedChange { action, from, to, count: 1, time, unknown, reason });
    }

    /// What becomes of a decision to change something.
    fn evaluate_change(&mut self, index: usize, decision: &Decision, downtime: f64) {
        let phase = self.evidence.phase(index).or_else(|| (0..index).rev().find_map(|before| self.evidence.phase(before)));
        let window = self.job.windows[index];
        let seconds = window.window_end.seconds_since(window.window_start).max(1e-3);
        let rolling = if decision.restarts { (downtime / seconds).ceil() as usize } else { 0 };
        // The window in which the change comes into force holds some of either.
        let ready_from = index + 2 + rolling;
        let evidence = self.evidence.find_group(&decision.to, phase);
        match evidence {
            // What the record did itself is seen, however short.
            Err(unknown) if !self.is_next_of_record(index, &decision.to, ready_from) => {
                let reason = format!("the record cannot tell: {unknown}");
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
                self.imagined =
                    Some(CounterfactualLayout { layout: decision.to.clone(), ready_from, unreported_downtime: Some(downtime) });
            }
        }
    }

    /// Returns whether the record has the controller's layout in this window, and its actuator applied this one by the window
    /// `until`.
    fn is_next_of_record(&self, index: usize, to: &Layout, until: usize) -> bool {
        let windows = &self.job.windows;
        let same = |a: &Layout, b: &Layout| same_layout(a, b, self.board_watts);
        let recorded = layout_of(self.job, windows[index]);
        let is_on_record = self.imagined.as_ref().is_none_or(|it| recorded.is_some_and(|at| same(at, &it.layout)));
        let times = windows[index].window_end..=windows[until.min(windows.len() - 1)].window_end;
        let applies =
            |it: &Actuation| it.outcome == ActuationOutcome::Applied && times.contains(&it.time) && same(&it.layout, to);
        is_on_record && self.job.actuations.iter().any(|it| applies(it))
    }

    fn finish(mut self, downtime: f64) -> HindsightRow {
        let mut it = self.it;
        it.windows_unknown = self.unknown;
        let known = it.windows_as_recorded + it.windows_estimated;
        let usable = known + it.windows_unknown;
        it.known_ratio = (usable > 0).then(|| known as f64 / usable as f64);
        let total = |of: fn(&WindowMeasurement) -> f64| self.recorded.iter().map(of).sum::<f64>();
        let (watts, rate) = (total(|f| f.watts), total(|f| f.samples_per_second));
        it.recorded_joules_per_sample = (rate > 0.0).then(|| watts / rate);
        if !self.estimated.is_empty() {
            let estimated: Vec<(usize, usize)> = std::mem::take(&mut self.estimated).into_iter().collect();
            it.joules_per_sample_change = Some(self.evidence.total_effect(&self.factual, &estimated, &self.recorded, 0));
        }
        if self.job.tables.is_empty() {
            it.notes.push("nobody managed this workload: without its layout and bounds on record nothing is decided".to_owned());
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
                "restarts are in no J/sample here: {} at {downtime:.0} s each stand beside the record's own",
                counted_as(it.restarts, "imagined one", "imagined ones")
            ));
        }
        it
    }
}

const fn mode(mode: UpdateMode) -> &'static str {
    match mode {
        UpdateMode::Observe => "Observe",
        UpdateMode::Recommend => "Recommend",
        UpdateMode::Enforce => "Enforce",
    }
}
