//! One job, one seed, one contender, from the first window to the last.

use std::fmt;
use std::str::FromStr;

use eadt_cluster::{RollbackRequest, WorkloadChange};
use eadt_core::controller::{ControllerContext, ControllerName, ControllerSettings, ControllerState, decide};
use eadt_core::power_budget::allocation::{self, BudgetSettings, BudgetState, BudgetedWorkload, CapMeasurements, PowerPoint};
use eadt_report::Reporter;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ControllerAction, Decision, EfficiencyWindow, Layout, LayoutBounds, Origin, Workload,
};
use eadt_simulator::{ClusterSimulation, FastForwardTotals, Scenario, ScenarioError, WorkloadScenario};
use rayon::prelude::*;
use serde::Serialize;

use crate::answer::answer;
use crate::{come_and_go, even_phases, oracle, random_days};

/// A participant of a contest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Contender {
    /// The layout at the start, never touched.
    Fixed,
    /// The best layout and cap of each phase at once, without any restart.
    Oracle,
    /// The controller `power-budget`: all jobs of the scenario share [`BacktestPlan::power_budget_watts`].
    Budget,
    Controller(ControllerName),
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fixed => "fixed",
            Self::Oracle => "oracle",
            Self::Budget => allocation::CONTROLLER,
            Self::Controller(name) => name.as_str(),
        })
    }
}

impl FromStr for Contender {
    type Err = BacktestError;

    fn from_str(name: &str) -> Result<Self, BacktestError> {
        match name {
            "fixed" => Ok(Self::Fixed),
            "oracle" => Ok(Self::Oracle),
            allocation::CONTROLLER => Ok(Self::Budget),
            _ => {
                let known = name.parse::<ControllerName>().map(Self::Controller);
                known.map_err(|unknown| BacktestError::new(format!("{unknown}, and beside them fixed and oracle")))
            }
        }
    }
}

impl Serialize for Contender {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The source of a simulated scenario.
#[derive(Debug, Clone, PartialEq)]
pub enum ScenarioSource {
    /// One scenario; seeds change its noise.
    Scenario { name: String, scenario: Box<Scenario> },
    /// [`random_days`]; seeds change the work, too.
    RandomDays,
    /// [`even_phases`] of so many minutes; seeds change the work, too.
    EvenPhases { minutes: u32 },
    /// [`come_and_go`]; seeds change the work and the absences, too.
    ComeAndGo,
}

impl ScenarioSource {
    pub fn name(&self) -> &str {
        match self {
            Self::Scenario { name, .. } => name,
            Self::RandomDays => "random-days",
            Self::EvenPhases { minutes: 60 } => "hour-phases",
            Self::EvenPhases { minutes: 5 } => "five-minute-phases",
            Self::EvenPhases { .. } => "even-phases",
            Self::ComeAndGo => "come-and-go",
        }
    }

    pub(crate) fn scenario(&self, seed: u64, days: f64) -> Scenario {
        match self {
            Self::RandomDays => random_days(seed, days),
            Self::EvenPhases { minutes } => even_phases(seed, days, *minutes),
            Self::ComeAndGo => come_and_go(seed, days),
            Self::Scenario { scenario, .. } => {
                let mut scenario = (**scenario).clone();
                scenario.noise.seed = scenario.noise.seed.wrapping_add(seed);
                scenario
            }
        }
    }
}

/// Whether processes may together hold more than 100 % of a GPU's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Oversubscription {
    /// Limited by the scenario's bounds alone.
    Allowed,
    /// At most 100 %, even if the bounds allow more.
    Clamped,
}

impl fmt::Display for Oversubscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allowed => "allowed",
            Self::Clamped => "clamped",
        })
    }
}

/// A contest that cannot be held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct BacktestError {
    detail: String,
}

impl BacktestError {
    fn new(detail: impl Into<String>) -> Self {
        Self { detail: detail.into() }
    }
}

impl From<ScenarioError> for BacktestError {
    fn from(error: ScenarioError) -> Self {
        Self::new(error.to_string())
    }
}

/// The contenders, scenarios and length of a contest.
#[derive(Debug, Clone, PartialEq)]
pub struct BacktestPlan {
    pub subjects: Vec<ScenarioSource>,
    pub contenders: Vec<Contender>,
    pub oversubscription: Vec<Oversubscription>,
    pub days: f64,
    /// Seeds 0 up to this.
    pub seeds: u64,
    /// Settings of workloads that declare none.
    pub settings: ControllerSettings,
    /// Time from a decision to its effect, in seconds.
    pub delay_seconds: f64,
    /// Power that the GPUs of all jobs of a scenario share; [`Contender::Budget`] needs it.
    pub power_budget_watts: Option<f64>,
}

/// The result of one workload under one contender with one seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BacktestRun {
    pub scenario: String,
    pub workload: String,
    pub oversubscription: Oversubscription,
    pub controller: Contender,
    pub seed: u64,
    pub seconds: f64,
    pub energy_joules: f64,
    pub samples: f64,
    /// Changes that replaced processes.
    pub restarts: u64,
    /// Most of them within any 24 h.
    pub restarts_worst_day: u64,
    /// Changes that did not.
    pub turns: u64,
    /// Decisions that the cluster refused.
    pub refused: u64,
    /// Highest mean power that the GPUs of all jobs together drew in any window from the sixth on, in watts.
    pub cluster_power_watts_max: f64,
}

/// Windows in which a budget is brought into force: they do not count against it.
const BUDGET_BEGINS: u32 = 5;
const WINDOW_SECONDS: f64 = 60.0;
const DAY_SECONDS: f64 = 86_400.0;
/// 2026-01-01, so that a contest depends on nothing outside.
const START_SECONDS: f64 = 1_767_225_600.0;
/// Rollouts that take longer are rolled back; the actuator's default.
const READY_WITHIN_SECONDS: f64 = 600.0;

struct BacktestTask<'a> {
    subject: &'a ScenarioSource,
    oversubscription: Oversubscription,
    contender: Contender,
    seed: u64,
}

impl BacktestPlan {
    /// Checks the plan; the error is the first fault.
    pub fn check(&self) -> Result<(), BacktestError> {
        if !(self.days > 0.0 && self.days <= 3660.0) {
            return Err(BacktestError::new(format!("days is {}, but must be above 0 and at most 3660", self.days)));
        }
        if self.seeds == 0 || self.seeds > 100_000 {
            return Err(BacktestError::new(format!("seeds is {}, but must be 1 to 100000", self.seeds)));
        }
        self.settings.check().map_err(BacktestError::new)?;
        if self.contenders.contains(&Contender::Budget) && !self.power_budget_watts.is_some_and(|watts| watts > 0.0) {
            return Err(BacktestError::new("power-budget needs a budget above 0 W: name it with --power-budget"));
        }
        for subject in &self.subjects {
            let scenario = subject.scenario(0, self.days);
            scenario.check().map_err(|error| BacktestError::new(format!("{}: {error}", subject.name())))?;
            if scenario.has_tenants() {
                let detail = "jobs that share GPUs cannot be played here: simulate them with eadt up";
                return Err(BacktestError::new(format!("{}: {detail}", subject.name())));
            }
            for job in &scenario.workloads {
                let declared = Workload { controller_settings: job.controller_settings.clone(), ..Workload::default() };
                ControllerSettings::from_workload(&declared).map_err(|refusal| {
                    BacktestError::new(format!("{}: workload {}: {}", subject.name(), job.name, refusal.detail))
                })?;
            }
        }
        Ok(())
    }

    /// Returns the number of runs; [`Self::run`] reports each one that is done.
    pub fn len(&self) -> usize {
        self.tasks().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn tasks(&self) -> Vec<BacktestTask<'_>> {
        let mut tasks = Vec::new();
        for subject in &self.subjects {
            let scenario = subject.scenario(0, self.days);
            let above = |bounds: &LayoutBounds| bounds.oversubscription_percentage_max.unwrap_or(100) > 100;
            let differs = scenario.workloads.iter().any(|job| above(&job.bounds));
            for (index, oversubscription) in self.oversubscription.iter().enumerate() {
                // If no limit is above 100 % anyway, both are the same.
                if index > 0 && !differs {
                    continue;
                }
                for contender in &self.contenders {
                    for seed in 0..self.seeds {
                        tasks.push(BacktestTask { subject, oversubscription: *oversubscription, contender: *contender, seed });
                    }
                }
            }
        }
        tasks
    }

    /// Simulates everything, on as many cores as there are; calls `done` after each run. The result does not depend on the cores.
    pub fn run(&self, done: &(dyn Fn() + Sync)) -> Result<Vec<BacktestRun>, BacktestError> {
        self.check()?;
        let runs: Result<Vec<Vec<BacktestRun>>, BacktestError> = self
            .tasks()
            .par_iter()
            .map(|task| {
                let runs = self.simulate(task);
                done();
                runs
            })
            .collect();
        Ok(runs?.into_iter().flatten().collect())
    }

    fn simulate(&self, task: &BacktestTask<'_>) -> Result<Vec<BacktestRun>, BacktestError> {
        let mut scenario = task.subject.scenario(task.seed, self.days);
        for job in &mut scenario.workloads {
            if task.oversubscription == Oversubscription::Clamped {
                job.bounds.oversubscription_percentage_max = Some(100);
            }
        }
        let end = EventTime::from_seconds(START_SECONDS + self.days * DAY_SECONDS);
        let mut plant = SimulatedTestbed::new(scenario, task.contender, self)?;
        while plant.now() < end {
            plant.window()?;
        }
        let (name, most) = (task.subject.name(), plant.power_watts_max);
        let finish = |job: BacktestJob| job.finish(name, task.oversubscription, task.contender, task.seed, most);
        Ok(plant.jobs.into_iter().map(finish).collect())
    }
}

/// A report's view of one workload's run.
pub(crate) struct ReportedRun {
    pub workload: String,
    pub reporter: Reporter,
    /// Start, energy and samples of each window, as instruments have them.
    pub windows: Vec<(EventTime, f64, f64)>,
}

/// Runs one contender on one subject with one seed, and records the input of a report.
pub(crate) fn record(
    contest: &BacktestPlan,
    subject: &ScenarioSource,
    contender: Contender,
    seed: u64,
) -> Result<Vec<ReportedRun>, BacktestError> {
    let end = EventTime::from_seconds(START_SECONDS + contest.days * DAY_SECONDS);
    let mut plant = SimulatedTestbed::new(subject.scenario(seed, contest.days), contender, contest)?;
    for job in &mut plant.jobs {
        let workload = job.scenario.name.clone();
        job.recording = Some(Box::new(ReportedRun { workload, reporter: Reporter::default(), windows: Vec::new() }));
    }
    while plant.now() < end {
        plant.window()?;
    }
    Ok(plant.jobs.into_iter().filter_map(|job| job.recording).map(|recording| *recording).collect())
}

/// The simulated cluster and one contender for each of its jobs.
struct SimulatedTestbed {
    cluster: ClusterSimulation,
    jobs: Vec<BacktestJob>,
    contender: Contender,
    delay_seconds: f64,
    budget: Option<(BudgetSettings, BudgetState)>,
    windows: u32,
    power_watts_max: f64,
}

struct BacktestJob {
    scenario: WorkloadScenario,
    settings: ControllerSettings,
    state: ControllerState,
    actuation: Option<Actuation>,
    pending: Option<Decision>,
    /// The best layouts that the oracle found, by phase name.
    best: Vec<(String, Layout)>,
    started: Layout,
    total: FastForwardTotals,
    /// Totals since the last window.
    glide: FastForwardTotals,
    changed: bool,
    restarts: Vec<EventTime>,
    turns: u64,
    refused: u64,
    last_decision: Option<Decision>,
    last_window: Option<EfficiencyWindow>,
    /// Power of a GPU and throughput at the caps of the last hours.
    cap_measurements: CapMeasurements,
    recording: Option<Box<ReportedRun>>,
}

impl SimulatedTestbed {
    fn new(scenario: Scenario, contender: Contender, contest: &BacktestPlan) -> Result<Self, BacktestError> {
        let settings = &contest.settings;
        let jobs = scenario.workloads.clone();
        let cluster = ClusterSimulation::new(scenario, EventTime::from_seconds(START_SECONDS))?;
        let managed = cluster.managed();
        let jobs = jobs
            .into_iter()
            .map(|job| {
                let state = managed.iter().find(|managed| managed.state.workload == job.name);
                let state = state.ok_or_else(|| BacktestError::new(format!("workload {} did not opt in", job.name)))?;
                let declared = ControllerSettings::from_workload(&state.state).ok().flatten();
                Ok(BacktestJob {
                    settings: declared.unwrap_or_else(|| settings.clone()),
                    state: ControllerState::default(),
                    actuation: None,
                    pending: None,
                    best: Vec::new(),
                    started: state.state.layout.clone(),
                    total: FastForwardTotals::default(),
                    glide: FastForwardTotals::default(),
                    changed: false,
                    restarts: Vec::new(),
                    turns: 0,
                    refused: 0,
                    last_decision: None,
                    last_window: None,
                    cap_measurements: CapMeasurements::default(),
                    recording: None,
                    scenario: job,
                })
            })
            .collect::<Result<_, BacktestError>>()?;
        let budget = contest.power_budget_watts.filter(|_| contender == Contender::Budget).map(|budget_watts| {
            let ControllerSettings { power_limit_min_ratio, max_slowdown_ratio, decision_expiry_seconds, .. } = *settings;
            let own = BudgetSettings {
                budget_watts: Some(budget_watts),
                power_limit_min_ratio,
                max_slowdown_ratio,
                decision_expiry_seconds,
                // A decision takes effect at one moment here, or never.
                settle_seconds: 0.0,
                ..BudgetSettings::default()
            };
            (own, BudgetState::default())
        });
        let delay_seconds = contest.delay_seconds;
        Ok(Self { cluster, jobs, contender, delay_seconds, budget, windows: 0, power_watts_max: 0.0 })
    }

    fn now(&self) -> EventTime {
        self.cluster.now()
    }

    fn glide(&mut self, to: EventTime) {
        let mut parts = vec![FastForwardTotals::default(); self.jobs.len()];
        while self.cluster.now() < to {
            let stop = self.cluster.next_transition().map_or(to, |next| next.min(to));
            self.cluster.fast_forward(stop, &mut parts);
            self.roll_back_overdue();
        }
        for (job, part) in self.jobs.iter_mut().zip(&parts) {
            add(&mut job.glide, part);
            add(&mut job.total, part);
        }
    }

    fn roll_back_overdue(&mut self) {
        let now = self.cluster.now();
        for managed in self.cluster.managed() {
            let Some(applied) = managed.rolling_out().filter(|applied| now >= applied.ready_by) else { continue };
            let workload = managed.state.workload.clone();
            let back = RollbackRequest {
                workload: workload.clone(),
                decision_id: applied.decision_id.clone(),
                generation: managed.state.generation,
                by_job: false,
                reason: format!("not ready within {READY_WITHIN_SECONDS} s"),
            };
            let Ok(after) = self.cluster.roll_back(&back) else { continue };
            if let Some(job) = self.jobs.iter_mut().find(|job| job.scenario.name == workload) {
                job.changed = true;
                job.restarts.push(now);
                job.actuation = Some(Actuation {
                    decision_id: back.decision_id,
                    workload,
                    time: now,
                    outcome: ActuationOutcome::RolledBack,
                    reason: back.reason,
                    layout: after.state.layout,
                    generation: after.state.generation,
                    ..Actuation::default()
                });
            }
        }
    }

    /// Simulates one window of every job, and the decision of its contender.
    fn window(&mut self) -> Result<(), BacktestError> {
        let start = self.now();
        let end = start.plus_seconds(WINDOW_SECONDS);
        if self.contender == Contender::Oracle {
            self.apply_oracle_layouts(start)?;
        }
        let effect = start.plus_seconds(self.delay_seconds.clamp(0.0, WINDOW_SECONDS));
        if self.jobs.iter().any(|job| job.pending.is_some()) {
            self.glide(effect);
            self.apply();
        }
        self.glide(end);
        self.windows += 1;
        if self.windows > BUDGET_BEGINS {
            let joules: f64 = self.jobs.iter().map(|job| job.glide.energy_joules).sum();
            self.power_watts_max = self.power_watts_max.max(joules / WINDOW_SECONDS);
        }
        let managed = self.cluster.managed();
        for job in &mut self.jobs {
            let Some(managed) = managed.iter().find(|managed| managed.state.workload == job.scenario.name) else { continue };
            job.close(start, end, &managed.state, self.contender);
        }
        self.share_budget(end);
        Ok(())
    }

    fn share_budget(&mut self, now: EventTime) {
        let Some((settings, state)) = &mut self.budget else { return };
        let mut workloads: Vec<Workload> = self.cluster.managed().into_iter().map(|managed| managed.state).collect();
        workloads.sort_by(|a, b| a.workload.cmp(&b.workload));
        let points = |workload: &Workload| -> Vec<PowerPoint> {
            let job = self.jobs.iter().find(|job| job.scenario.name == workload.workload);
            job.map(|job| job.cap_measurements.points()).unwrap_or_default()
        };
        let points: Vec<Vec<PowerPoint>> = workloads.iter().map(points).collect();
        let consumers: Vec<BudgetedWorkload<'_>> =
            workloads.iter().zip(&points).map(|(workload, points)| BudgetedWorkload::new(workload, points)).collect();
        for decision in allocation::allocate(state, now, &consumers, settings, None).decisions {
            if let Some(job) = self.jobs.iter_mut().find(|job| job.scenario.name == decision.workload) {
                job.last_decision = Some(decision.clone());
                job.pending = Some(decision);
            }
        }
    }

    /// Lets the oracle set every job to the best layout of its phase.
    fn apply_oracle_layouts(&mut self, now: EventTime) -> Result<(), BacktestError> {
        let elapsed = now.seconds_since(self.cluster.start());
        let ambient = self.cluster.scenario().ambient_celsius;
        for job in &mut self.jobs {
            let phase = job.scenario.schedule.at(elapsed).0;
            if !job.best.iter().any(|(name, _)| *name == phase.name) {
                let found = oracle::best(&job.scenario, &job.started, phase.profile, job.settings.max_slowdown_ratio, ambient);
                job.best.push((phase.name.clone(), found));
            }
            let present = self.cluster.managed().into_iter().find(|managed| managed.state.workload == job.scenario.name);
            let wanted = job.best.iter().find(|(name, _)| *name == phase.name).map(|(_, layout)| layout);
            if let (Some(wanted), Some(present)) = (wanted, present)
                && *wanted != present.state.layout
            {
                let set = self.cluster.replace(&job.scenario.name, wanted);
                set.map_err(|error| BacktestError::new(format!("the oracle cannot change {}: {error}", job.scenario.name)))?;
            }
        }
        Ok(())
    }

    /// Applies the decision now.
    fn apply(&mut self) {
        let now = self.cluster.now();
        let managed = self.cluster.managed();
        for job in &mut self.jobs {
            let Some(decision) = job.pending.take() else { continue };
            let Some(before) = managed.iter().find(|managed| managed.state.workload == job.scenario.name) else { continue };
            let layout = before.state.layout.clone();
            let restarts =
                (decision.to.replicas, decision.to.mps_thread_percentage) != (layout.replicas, layout.mps_thread_percentage);
            let mps = before.mps_default_thread_percentage.unwrap_or(100);
            let report = |outcome, reason: String, after: &Workload| Actuation {
                time: now,
                origin: Origin::Simulated,
                ..answer(&decision, outcome, reason, after.layout.clone(), after.generation)
            };
            if decision.to.mps_thread_percentage.is_some_and(|percentage| percentage > mps) {
                let reason = format!("the node's MPS default of {mps} % is lower than what is asked for");
                job.refused += 1;
                job.actuation = Some(report(ActuationOutcome::Refused, reason, &before.state));
                continue;
            }
            let change = WorkloadChange {
                workload: decision.workload.clone(),
                decision_id: decision.id.clone(),
                decision_time: decision.time,
                generation: decision.generation.unwrap_or(0),
                layout: decision.to.clone(),
                restarts,
                reverts: decision.action == ControllerAction::Revert,
                ready_within_seconds: READY_WITHIN_SECONDS,
                approved_by: None,
            };
            match self.cluster.apply(&change) {
                Ok(after) => {
                    job.changed = true;
                    if restarts {
                        job.restarts.push(now);
                    } else {
                        job.turns += 1;
                    }
                    job.actuation = Some(report(ActuationOutcome::Applied, String::new(), &after.state));
                }
                Err(error) => {
                    job.refused += 1;
                    job.actuation = Some(report(ActuationOutcome::Refused, error.detail, &before.state));
                }
            }
        }
    }
}

impl BacktestJob {
    /// Closes a window, and decides.
    fn close(&mut self, start: EventTime, end: EventTime, state: &Workload, contender: Contender) {
        let glide = std::mem::take(&mut self.glide);
        let changed = std::mem::take(&mut self.changed);
        if glide.seconds <= 0.0 {
            // The job is away: it reports nothing.
            (self.last_decision, self.last_window) = (None, None);
            return;
        }
        let rolling = state.ready_time.is_none_or(|ready| ready > start && state.decision_id.is_some());
        if let Some(recording) = &mut self.recording {
            let window = window(&glide, start, end, state, changed || rolling);
            recording.windows.push((start, glide.metered_joules, window.samples.unwrap_or(0.0)));
            recording.reporter.add_window(&window);
            if let Some(actuation) = &self.actuation {
                recording.reporter.add_actuation(actuation);
            }
        }
        let name = match contender {
            Contender::Controller(name) => name,
            Contender::Budget => {
                let window = window(&glide, start, end, state, changed);
                if !changed {
                    self.cap_measurements.add_window(&window, &state.layout, state.gpu_power_limit_watts);
                }
                self.last_window = Some(window);
                return;
            }
            Contender::Fixed | Contender::Oracle => return,
        };
        if let (Some(ready), Some(actuation)) = (state.ready_time, &mut self.actuation)
            && actuation.outcome == ActuationOutcome::Applied
            && actuation.generation == state.generation
            && ready > start
        {
            let downtime = ready.seconds_since(actuation.time);
            *actuation = Actuation {
                outcome: ActuationOutcome::Ready,
                time: ready,
                downtime_seconds: Some(downtime),
                ..actuation.clone()
            };
        }
        let window = window(&glide, start, end, state, changed || rolling);
        let remaining = self.scenario.planned_samples.and_then(|planned| {
            let rate = window.samples_per_second.filter(|rate| *rate > 0.0)?;
            Some((planned - self.total.samples).max(0.0) / rate)
        });
        let context = ControllerContext {
            workload: Some(state),
            last_actuation: self.actuation.as_ref(),
            remaining_seconds: remaining,
            checkpoint_time: None,
            training: None,
            settings: &self.settings,
            models: None,
        };
        let decision = decide(name, &mut self.state, &window, &context);
        if let Some(recording) = &mut self.recording {
            recording.reporter.add_decision(&decision);
        }
        if decision.action != ControllerAction::Maintain {
            self.pending = Some(decision.clone());
        }
        self.last_decision = Some(decision);
        self.last_window = Some(window);
    }

    fn finish(
        self,
        scenario: &str,
        oversubscription: Oversubscription,
        controller: Contender,
        seed: u64,
        cluster_power_watts_max: f64,
    ) -> BacktestRun {
        let within_a_day = |from: &EventTime| {
            self.restarts.iter().filter(|time| (0.0..DAY_SECONDS).contains(&time.seconds_since(*from))).count() as u64
        };
        BacktestRun {
            scenario: scenario.to_owned(),
            workload: self.scenario.name,
            oversubscription,
            controller,
            seed,
            seconds: self.total.seconds,
            energy_joules: self.total.energy_joules,
            samples: self.total.samples,
            restarts: self.restarts.len() as u64,
            restarts_worst_day: self.restarts.iter().map(within_a_day).max().unwrap_or(0),
            turns: self.turns,
            refused: self.refused,
            cluster_power_watts_max,
        }
    }
}

fn add(sum: &mut FastForwardTotals, part: &FastForwardTotals) {
    sum.seconds += part.seconds;
    sum.energy_joules += part.energy_joules;
    sum.metered_joules += part.metered_joules;
    sum.samples += part.samples;
    sum.sm_active_seconds += part.sm_active_seconds;
    sum.dram_active_seconds += part.dram_active_seconds;
    sum.clock_mhz_seconds += part.clock_mhz_seconds;
    sum.busy_seconds += part.busy_seconds;
    sum.celsius_max = sum.celsius_max.max(part.celsius_max);
}

/// Returns the window as the processor would have it.
fn window(glide: &FastForwardTotals, start: EventTime, end: EventTime, state: &Workload, restarted: bool) -> EfficiencyWindow {
    let gpus = state.gpus.unwrap_or(1);
    let samples = glide.samples.max(0.0);
    let covered = (glide.seconds / end.seconds_since(start)).min(1.0);
    let watts = glide.metered_joules / glide.seconds;
    let mean = |sum: f64| (glide.busy_seconds > 0.0).then(|| sum / glide.busy_seconds);
    EfficiencyWindow {
        id: format!("{}@{end}", state.workload),
        workload: state.workload.clone(),
        window_start: start,
        window_end: end,
        origin: Origin::Simulated,
        energy_joules: Some(glide.metered_joules),
        energy_coverage_ratio: covered,
        run_seconds: WINDOW_SECONDS,
        run_energy_joules: Some(glide.metered_joules),
        run_coverage_ratio: covered,
        samples: Some(samples),
        progress_coverage_ratio: covered,
        samples_per_second: Some(samples / glide.seconds),
        joules_per_sample: (samples > 0.0).then(|| glide.metered_joules / samples),
        samples_per_joule: (glide.metered_joules > 0.0).then(|| samples / glide.metered_joules),
        mean_power_watts: Some(watts),
        mean_power_per_gpu_watts: Some(watts / f64::from(gpus)),
        mean_sm_active_ratio: mean(glide.sm_active_seconds),
        mean_dram_active_ratio: mean(glide.dram_active_seconds),
        mean_sm_clock_mhz: mean(glide.clock_mhz_seconds),
        max_temperature_celsius: Some(glide.celsius_max),
        layout: Some(state.layout.clone()),
        generation: Some(state.generation),
        restarted,
        gpus,
        ranks: 1,
        ..EfficiencyWindow::default()
    }
}

/// Lets one contender work on one subject with one seed, and shows every decision with the window that led to it.
pub fn trace(
    contest: &BacktestPlan,
    subject: &ScenarioSource,
    contender: Contender,
    seed: u64,
    see: &mut dyn FnMut(&Decision, &EfficiencyWindow),
) -> Result<(), BacktestError> {
    contest.check()?;
    let end = EventTime::from_seconds(START_SECONDS + contest.days * DAY_SECONDS);
    let scenario = subject.scenario(seed, contest.days);
    let mut plant = SimulatedTestbed::new(scenario, contender, contest)?;
    while plant.now() < end {
        plant.window()?;
        for job in &plant.jobs {
            if let (Some(decision), Some(window)) = (&job.last_decision, &job.last_window) {
                see(decision, window);
            }
        }
    }
    Ok(())
}
