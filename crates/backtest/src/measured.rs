//! Runs controllers on measured boards: the plant is a sweep of a power cap or a clock.
//!
//! In: tables of settings with the time and energy of a fixed amount of work. Out: what each controller saves and what it
//! costs in throughput, beside the best setting of the same board. Between two measured settings time and power go in a
//! straight line; beyond them nothing is known, so a board has no setting there. Instrument readings have noise by
//! seed; counts have none. A table has no figures of other layouts: a change to one is refused.
//!
//! It never touches a bus, a clock or a file: the same arguments give the same bytes.

use eadt_core::controller::{ControllerContext, ControllerName, ControllerSettings, ControllerState, decide};
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ControllerAction, Decision, EfficiencyWindow, Layout, LayoutBounds, Origin, Workload,
};
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;
use rayon::prelude::*;
use serde::Serialize;

use crate::Contender;
use crate::answer::answer;
use crate::summary::SeedSpread;

/// The knob that the settings of a table are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SweepKnob {
    SmClockMhz,
    PowerLimitWatts,
}

/// The work of the table at one setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SweepPoint {
    /// Setting in MHz or watts.
    pub setting: f64,
    pub duration_seconds: f64,
    pub energy_joules: f64,
}

/// A board with one job, as a table has it.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredBoard {
    name: String,
    knob: SweepKnob,
    /// The highest setting first; at least two.
    points: Vec<SweepPoint>,
    /// Its rows are of a simulated GPU.
    simulated: bool,
}

/// A plant that cannot be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TestbedError {
    #[error("{board}: {} only; a plant needs at least 2", counted(*found, "setting"))]
    TooFew { board: String, found: usize },
    #[error("{board}: setting {setting} has a time or an energy that is not above 0")]
    Value { board: String, setting: f64 },
    #[error("days is {0}, but must be above 0 and at most 3660")]
    Days(f64),
    #[error("seeds is {0}, but must be 1 to 100000")]
    Seeds(u64),
    #[error("controller settings: {0}")]
    Settings(String),
    #[error("a table of one job has no power budget to share: leave power-budget out")]
    Budget,
}

/// Samples per second at the highest setting; a table names none, and only ratios are compared.
const REFERENCE_RATE: f64 = 100.0;
/// Standard deviation of the power that a window shows.
const POWER_NOISE: f64 = 0.005;
/// Standard deviation of the throughput that a window shows.
const RATE_NOISE: f64 = 0.015;
/// Throughput below the floor, over that at the highest setting, that still counts as on it: of controllers and of the oracle.
const FLOOR_TOLERANCE: f64 = 0.01;
const WINDOW_SECONDS: f64 = 60.0;
const DAY_SECONDS: f64 = 86_400.0;
/// 2026-01-01, so that nothing outside decides.
const START_SECONDS: f64 = 1_767_225_600.0;

impl MeasuredBoard {
    /// Takes the settings in any order; each once.
    pub fn new(name: impl Into<String>, knob: SweepKnob, mut points: Vec<SweepPoint>) -> Result<Self, TestbedError> {
        let board = name.into();
        points.sort_by(|a, b| b.setting.total_cmp(&a.setting));
        points.dedup_by_key(|point| point.setting);
        if points.len() < 2 {
            return Err(TestbedError::TooFew { board, found: points.len() });
        }
        let whole = |value: f64| value.is_finite() && value > 0.0;
        let wrong = |point: &&SweepPoint| ![point.setting, point.duration_seconds, point.energy_joules].into_iter().all(whole);
        if let Some(SweepPoint { setting, .. }) = points.iter().find(wrong) {
            return Err(TestbedError::Value { board, setting: *setting });
        }
        Ok(Self { name: board, knob, points, simulated: false })
    }

    /// Returns the same board, marked as simulated if its rows are.
    #[must_use]
    pub fn simulated(self, simulated: bool) -> Self {
        Self { simulated, ..self }
    }

    /// Returns whether its knob is the clock.
    pub fn is_of_clocks(&self) -> bool {
        self.knob == SweepKnob::SmClockMhz
    }

    fn top(&self) -> SweepPoint {
        self.points[0]
    }

    fn least(&self) -> SweepPoint {
        self.points[self.points.len() - 1]
    }

    /// Returns samples per second and watts at a setting, in a straight line between the measured ones.
    fn at(&self, setting: f64) -> (f64, f64) {
        let setting = setting.clamp(self.least().setting, self.top().setting);
        let above = self.points.iter().rposition(|point| point.setting >= setting).unwrap_or(0);
        let (a, b) = (self.points[above], self.points[(above + 1).min(self.points.len() - 1)]);
        let part = if a.setting > b.setting { (a.setting - setting) / (a.setting - b.setting) } else { 0.0 };
        let seconds = a.duration_seconds + part * (b.duration_seconds - a.duration_seconds);
        let (power_a, power_b) = (a.energy_joules / a.duration_seconds, b.energy_joules / b.duration_seconds);
        (REFERENCE_RATE * self.top().duration_seconds / seconds, power_a + part * (power_b - power_a))
    }

    /// Returns the setting of least energy per sample among those that keep the throughput, measured ones and those between.
    fn best(&self, max_slowdown_ratio: f64) -> f64 {
        let floor = REFERENCE_RATE * (1.0 - max_slowdown_ratio);
        let joules_per_sample = |setting: f64| {
            let (rate, watts) = self.at(setting);
            watts / rate
        };
        // Time × power, each in a straight line, is least at an end of the line: at a measured setting, or at the floor.
        let at_floor = |pair: &[SweepPoint]| {
            let (a, b) = (pair[0], pair[1]);
            let longest_seconds = REFERENCE_RATE * self.top().duration_seconds / floor;
            let part = (longest_seconds - a.duration_seconds) / (b.duration_seconds - a.duration_seconds);
            (part > 0.0 && part < 1.0).then_some(a.setting + part * (b.setting - a.setting))
        };
        let between = self.points.windows(2).filter_map(at_floor);
        let all = self.points.iter().map(|point| point.setting).chain(between);
        let keeps = |setting: &f64| self.at(*setting).0 >= floor - 1e-9;
        let best = all.filter(keeps).min_by(|a, b| joules_per_sample(*a).total_cmp(&joules_per_sample(*b)));
        best.unwrap_or(self.top().setting)
    }

    /// Returns the job as its objects would have it: one process on one GPU, and the range of the table as bounds.
    fn workload(&self, setting: Option<f64>, generation: u64, decision_id: Option<String>, ready: EventTime) -> Workload {
        let (least, top) = (self.least().setting, self.top().setting);
        let layout = Layout {
            replicas: Some(1),
            mps_thread_percentage: Some(100),
            world_size: Some(1),
            local_world_size: Some(1),
            ..Layout::default()
        };
        let bounds = LayoutBounds {
            replicas_min: Some(1),
            replicas_max: Some(1),
            mps_thread_percentage_min: Some(100),
            mps_thread_percentage_max: Some(100),
            ..LayoutBounds::default()
        };
        let (layout, bounds, limit) = match self.knob {
            SweepKnob::PowerLimitWatts => (
                Layout { power_limit_watts: setting, ..layout },
                LayoutBounds { power_limit_watts_min: Some(least), power_limit_watts_max: Some(top), ..bounds },
                Some(top),
            ),
            SweepKnob::SmClockMhz => (
                Layout { sm_clock_mhz: setting, ..layout },
                LayoutBounds { sm_clock_mhz_min: Some(least), sm_clock_mhz_max: Some(top), ..bounds },
                None,
            ),
        };
        Workload {
            workload: self.name.clone(),
            origin: Origin::Simulated,
            kind: "StatefulSet".to_owned(),
            generation,
            layout,
            bounds,
            gpus: Some(1),
            gpu_power_limit_watts: limit,
            global_batch_size: Some(1),
            decision_id,
            ready_time: Some(ready),
            ..Workload::default()
        }
    }
}

/// Controllers on measured boards.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredBacktestPlan {
    pub boards: Vec<MeasuredBoard>,
    pub contenders: Vec<Contender>,
    pub days: f64,
    /// Seeds 0 up to this; they change the noise of the instruments.
    pub seeds: u64,
    pub settings: ControllerSettings,
    /// Time from a decision to its effect, in seconds.
    pub delay_seconds: f64,
}

/// One contender on one board with one seed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct MeasuredRun {
    energy_joules: f64,
    samples: f64,
    turns: u64,
    refused: u64,
    /// Setting in force at the end.
    setting: f64,
}

/// One contender on one board.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredRow {
    pub board: String,
    pub controller: Contender,
    /// 1 − J/sample over that at the highest setting: above 0 saves.
    pub saving_ratio: SeedSpread,
    /// 1 − throughput over that at the highest setting: above 0 is slower.
    pub slowdown_ratio: SeedSpread,
    /// Setting in force at the end, mean over the seeds, in MHz or watts.
    pub final_setting: f64,
    pub turns_per_day: f64,
    /// Changes of layout that a table knows nothing of.
    pub refused: u64,
}

/// A contender over all boards.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredMean {
    pub controller: Contender,
    pub boards: usize,
    pub saving_ratio: SeedSpread,
    pub slowdown_ratio: SeedSpread,
    /// Its mean saving over the oracle's; absent if the oracle saves nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_oracle_ratio: Option<f64>,
    /// Boards on which it is slower than the floor by more than a point.
    pub below_floor: usize,
    /// Boards on which it takes more energy per sample than the highest setting, by more than half a point.
    pub costs_energy: usize,
}

/// Result of a backtest on measured tables.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MeasuredReport {
    /// `measured-table`: time and power are measured, the course of events is simulated. `simulated-table`: so are time and power
    /// of a board.
    pub origin: &'static str,
    pub days: f64,
    pub seeds: u64,
    pub max_slowdown_ratio: f64,
    pub means: Vec<MeasuredMean>,
    pub rows: Vec<MeasuredRow>,
}

impl MeasuredBacktestPlan {
    /// Checks the settings; the error is the first fault.
    pub fn check(&self) -> Result<(), TestbedError> {
        if !(self.days > 0.0 && self.days <= 3660.0) {
            return Err(TestbedError::Days(self.days));
        }
        if self.seeds == 0 || self.seeds > 100_000 {
            return Err(TestbedError::Seeds(self.seeds));
        }
        if self.contenders.contains(&Contender::Budget) {
            return Err(TestbedError::Budget);
        }
        self.settings.check().map_err(TestbedError::Settings)
    }

    /// Runs everything, on as many cores as there are; calls `done` after each board. The result does not depend on the cores.
    pub fn run(&self, done: &(dyn Fn() + Sync)) -> Result<MeasuredReport, TestbedError> {
        self.check()?;
        let rows: Vec<Vec<MeasuredRow>> = self
            .boards
            .par_iter()
            .map(|board| {
                let rows = self.contenders.iter().filter_map(|contender| self.row(board, *contender)).collect();
                done();
                rows
            })
            .collect();
        let rows: Vec<MeasuredRow> = rows.into_iter().flatten().collect();
        let means = self.contenders.iter().filter_map(|contender| self.mean(*contender, &rows)).collect();
        let (days, seeds, max_slowdown_ratio) = (self.days, self.seeds, self.settings.max_slowdown_ratio);
        let simulated = self.boards.iter().any(|board| board.simulated);
        let origin = if simulated { SIMULATED_TABLE } else { "measured-table" };
        Ok(MeasuredReport { origin, days, seeds, max_slowdown_ratio, means, rows })
    }

    fn row(&self, board: &MeasuredBoard, contender: Contender) -> Option<MeasuredRow> {
        let runs: Vec<MeasuredRun> = (0..self.seeds).map(|seed| self.simulate(board, contender, seed)).collect();
        let (rate, watts) = board.at(board.top().setting);
        let seconds = self.windows() as f64 * WINDOW_SECONDS;
        let saving = |run: &MeasuredRun| 1.0 - run.energy_joules / run.samples / (watts / rate);
        let slowdown = |run: &MeasuredRun| 1.0 - run.samples / (rate * seconds);
        Some(MeasuredRow {
            board: board.name.clone(),
            controller: contender,
            saving_ratio: SeedSpread::of(&runs.iter().map(saving).collect::<Vec<_>>(), false)?,
            slowdown_ratio: SeedSpread::of(&runs.iter().map(slowdown).collect::<Vec<_>>(), true)?,
            final_setting: runs.iter().map(|run| run.setting).sum::<f64>() / runs.len() as f64,
            turns_per_day: runs.iter().map(|run| run.turns as f64).sum::<f64>() / runs.len() as f64 / self.days,
            refused: runs.iter().map(|run| run.refused).sum(),
        })
    }

    fn mean(&self, controller: Contender, rows: &[MeasuredRow]) -> Option<MeasuredMean> {
        let of = |controller: Contender| rows.iter().filter(move |row| row.controller == controller);
        let saving: Vec<f64> = of(controller).map(|row| row.saving_ratio.mean).collect();
        let slowdown: Vec<f64> = of(controller).map(|row| row.slowdown_ratio.mean).collect();
        let oracle: Vec<f64> = of(Contender::Oracle).map(|row| row.saving_ratio.mean).collect();
        let oracle = oracle.iter().sum::<f64>() / oracle.len() as f64;
        let saving_ratio = SeedSpread::of(&saving, false)?;
        // The oracle is on this bound, but for rounding.
        let tolerated = self.settings.max_slowdown_ratio + FLOOR_TOLERANCE + 1e-9;
        Some(MeasuredMean {
            controller,
            boards: saving.len(),
            saving_ratio,
            slowdown_ratio: SeedSpread::of(&slowdown, true)?,
            of_oracle_ratio: (oracle > 1e-9).then_some(saving_ratio.mean / oracle),
            below_floor: slowdown.iter().filter(|slower| **slower > tolerated).count(),
            costs_energy: saving.iter().filter(|saving| **saving < -0.005).count(),
        })
    }

    fn windows(&self) -> u64 {
        (self.days * DAY_SECONDS / WINDOW_SECONDS).ceil() as u64
    }

    fn simulate(&self, board: &MeasuredBoard, contender: Contender, seed: u64) -> MeasuredRun {
        let mut plant = MeasuredTestbed::new(board, contender, self, seed);
        for _ in 0..self.windows() {
            plant.window();
        }
        MeasuredRun {
            energy_joules: plant.energy_joules,
            samples: plant.samples,
            turns: plant.turns,
            refused: plant.refused,
            setting: plant.setting.unwrap_or(board.top().setting),
        }
    }
}

/// A measured board in the hands of one contender.
struct MeasuredTestbed<'a> {
    board: &'a MeasuredBoard,
    controller: Option<ControllerName>,
    settings: ControllerSettings,
    delay_seconds: f64,
    chance: Pcg64Mcg,
    now: EventTime,
    /// Setting in force; `None` if the board is not limited.
    setting: Option<f64>,
    generation: u64,
    /// The decision that set it, and the time since which it is in force.
    decision_id: Option<String>,
    ready: EventTime,
    state: ControllerState,
    actuation: Option<Actuation>,
    pending: Option<Decision>,
    energy_joules: f64,
    samples: f64,
    turns: u64,
    refused: u64,
}

impl<'a> MeasuredTestbed<'a> {
    fn new(board: &'a MeasuredBoard, contender: Contender, contest: &MeasuredBacktestPlan, seed: u64) -> Self {
        let mut settings = contest.settings.clone();
        if board.knob == SweepKnob::SmClockMhz {
            let (least, top) = (board.least().setting, board.top().setting);
            settings.sm_clock_mhz_max = Some(top);
            settings.sm_clock_min_ratio = settings.sm_clock_min_ratio.max(least / top);
        }
        let best = board.best(settings.max_slowdown_ratio + FLOOR_TOLERANCE);
        Self {
            board,
            controller: match contender {
                Contender::Controller(name) => Some(name),
                Contender::Fixed | Contender::Oracle | Contender::Budget => None,
            },
            settings,
            delay_seconds: contest.delay_seconds.clamp(0.0, WINDOW_SECONDS),
            chance: Pcg64Mcg::seed_from_u64(seed ^ 0x7377_6565_7073),
            now: EventTime::from_seconds(START_SECONDS),
            setting: (contender == Contender::Oracle).then_some(best),
            generation: 1,
            decision_id: None,
            ready: EventTime::from_seconds(START_SECONDS),
            state: ControllerState::default(),
            actuation: None,
            pending: None,
            energy_joules: 0.0,
            samples: 0.0,
            turns: 0,
            refused: 0,
        }
    }

    fn workload(&self) -> Workload {
        self.board.workload(self.setting, self.generation, self.decision_id.clone(), self.ready)
    }

    /// Simulates one window, and the controller's decision on it.
    fn window(&mut self) {
        let start = self.now;
        let end = start.plus_seconds(WINDOW_SECONDS);
        let mut slices = vec![(self.setting, WINDOW_SECONDS)];
        let mut changed = false;
        if let Some(decision) = self.pending.take() {
            slices[0].1 = self.delay_seconds;
            changed = self.apply(&decision, start.plus_seconds(self.delay_seconds));
            slices.push((self.setting, WINDOW_SECONDS - self.delay_seconds));
        }
        let (mut joules, mut samples, mut clock) = (0.0, 0.0, 0.0);
        for (setting, seconds) in slices {
            let setting = setting.unwrap_or(self.board.top().setting);
            let (rate, watts) = self.board.at(setting);
            joules += watts * seconds;
            samples += rate * seconds;
            clock += setting * seconds / WINDOW_SECONDS;
        }
        self.now = end;
        self.energy_joules += joules;
        self.samples += samples;
        let Some(name) = self.controller else { return };
        let noisy = self.seen(start, end, (joules, samples, clock), changed);
        let workload = self.workload();
        let context = ControllerContext {
            workload: Some(&workload),
            last_actuation: self.actuation.as_ref(),
            remaining_seconds: None,
            checkpoint_time: None,
            training: None,
            settings: &self.settings,
            models: None,
        };
        let decision = decide(name, &mut self.state, &noisy, &context);
        if decision.action != ControllerAction::Maintain {
            self.pending = Some(decision);
        }
    }

    /// Returns the window as instruments with noise would show it.
    fn seen(
        &mut self,
        start: EventTime,
        end: EventTime,
        (joules, samples, clock): (f64, f64, f64),
        changed: bool,
    ) -> EfficiencyWindow {
        let joules = joules * (1.0 + POWER_NOISE * normal(&mut self.chance));
        let samples = samples * (1.0 + RATE_NOISE * normal(&mut self.chance));
        let workload = self.workload();
        EfficiencyWindow {
            id: format!("{}@{end}", self.board.name),
            workload: self.board.name.clone(),
            window_start: start,
            window_end: end,
            origin: Origin::Simulated,
            energy_joules: Some(joules),
            energy_coverage_ratio: 1.0,
            samples: Some(samples),
            progress_coverage_ratio: 1.0,
            samples_per_second: Some(samples / WINDOW_SECONDS),
            joules_per_sample: Some(joules / samples),
            samples_per_joule: Some(samples / joules),
            mean_power_watts: Some(joules / WINDOW_SECONDS),
            mean_power_per_gpu_watts: Some(joules / WINDOW_SECONDS),
            mean_sm_clock_mhz: (self.board.knob == SweepKnob::SmClockMhz).then_some(clock),
            layout: Some(workload.layout),
            generation: Some(self.generation),
            restarted: changed,
            gpus: 1,
            ranks: 1,
            ..EfficiencyWindow::default()
        }
    }

    /// Puts a decision in force, if it is about the knob of the table alone. Returns whether the setting changed.
    fn apply(&mut self, decision: &Decision, now: EventTime) -> bool {
        let present = self.workload().layout;
        let requested = match self.board.knob {
            SweepKnob::PowerLimitWatts => decision.to.power_limit_watts,
            SweepKnob::SmClockMhz => decision.to.sm_clock_mhz,
        };
        let only = match self.board.knob {
            SweepKnob::PowerLimitWatts => Layout { power_limit_watts: requested, ..present.clone() },
            SweepKnob::SmClockMhz => Layout { sm_clock_mhz: requested, ..present.clone() },
        };
        let known = decision.to == only;
        let (outcome, reason) = if known {
            let (least, top) = (self.board.least().setting, self.board.top().setting);
            self.setting = requested.map(|setting| setting.clamp(least, top));
            self.generation += 1;
            self.turns += 1;
            (self.decision_id, self.ready) = (Some(decision.id.clone()), now);
            // A cap or a clock is in force at once.
            (ActuationOutcome::Ready, String::new())
        } else {
            self.refused += 1;
            (ActuationOutcome::Refused, "the table has no other layouts".to_owned())
        };
        self.actuation = Some(Actuation {
            time: now,
            origin: Origin::Simulated,
            downtime_seconds: known.then_some(0.0),
            ..answer(decision, outcome, reason, self.workload().layout, self.generation)
        });
        known
    }
}

/// Returns a nearly normal random number: a sum of twelve even draws.
fn normal(chance: &mut Pcg64Mcg) -> f64 {
    use rand::RngExt;
    (0..12).map(|_| chance.random::<f64>()).sum::<f64>() - 6.0
}

/// Origin of a report on boards of which one at least is simulated.
const SIMULATED_TABLE: &str = "simulated-table";

/// Boards above which only the means are shown.
const BOARDS_SHOWN: usize = 12;

/// Returns a table for a terminal.
pub fn render_measured_report(report: &MeasuredReport) -> String {
    use std::fmt::Write;
    // No "-0.0 %".
    let percent = |ratio: f64| format!("{:+.1} %", (1000.0 * ratio).round() / 10.0 + 0.0);
    let mut out = format!(
        "{} boards, simulated course of events: {}, {}; against the highest setting of each table, floor {:.1} % less \
         throughput\n\n",
        if report.origin == SIMULATED_TABLE { "simulated" } else { "measured" },
        counted(report.days, "day"),
        counted(report.seeds, "seed"),
        100.0 * report.max_slowdown_ratio
    );
    let mut line = |text: std::fmt::Arguments<'_>| {
        writeln!(out, "{text}").expect("a String takes every write");
    };
    let of = |ratio: Option<f64>| ratio.map_or("–".to_owned(), |ratio| format!("{:.0} %", (100.0 * ratio).round() + 0.0));
    line(format_args!(
        "{:<16}{:>7}{:>18}{:>11}{:>20}{:>14}{:>14}",
        "controller", "boards", "saving (worst)", "of oracle", "slowdown (worst)", "below floor", "costs energy"
    ));
    for mean in &report.means {
        line(format_args!(
            "{:<16}{:>7}{:>18}{:>11}{:>20}{:>14}{:>14}",
            mean.controller,
            mean.boards,
            format!("{} ({})", percent(mean.saving_ratio.mean), percent(mean.saving_ratio.worst)),
            of(mean.of_oracle_ratio),
            format!("{} ({})", percent(mean.slowdown_ratio.mean), percent(mean.slowdown_ratio.worst)),
            mean.below_floor,
            mean.costs_energy
        ));
    }
    let boards = report.means.first().map_or(0, |mean| mean.boards);
    if boards > BOARDS_SHOWN {
        line(format_args!("\n{boards} boards; --json has each of them"));
        return out;
    }
    for rows in report.rows.chunk_by(|a, b| a.board == b.board) {
        line(format_args!(
            "\n{}\n{:<16}{:>10}{:>10}{:>10}{:>11}{:>9}",
            rows[0].board, "controller", "saving", "slowdown", "setting", "turns/day", "refused"
        ));
        for row in rows {
            line(format_args!(
                "{:<16}{:>10}{:>10}{:>10.0}{:>11.1}{:>9}",
                row.controller,
                percent(row.saving_ratio.mean),
                percent(row.slowdown_ratio.mean),
                row.final_setting,
                row.turns_per_day,
                row.refused
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(setting: f64, duration_seconds: f64, watts: f64) -> SweepPoint {
        SweepPoint { setting, duration_seconds, energy_joules: watts * duration_seconds }
    }

    fn caps() -> MeasuredBoard {
        let points = [(250.0, 10.0, 240.0), (200.0, 10.3, 199.0), (150.0, 11.8, 149.0), (100.0, 19.0, 101.0)];
        let points = points.map(|(setting, seconds, watts)| point(setting, seconds, watts)).to_vec();
        MeasuredBoard::new("lab/caps", SweepKnob::PowerLimitWatts, points).unwrap()
    }

    fn clocks() -> MeasuredBoard {
        let points = (0..11).map(|step| {
            let setting = 1410.0 - 60.0 * f64::from(step);
            let ratio = setting / 1410.0;
            point(setting, 10.0 * (0.6 + 0.4 / ratio), 90.0 + 210.0 * ratio.powi(3))
        });
        MeasuredBoard::new("lab/clocks", SweepKnob::SmClockMhz, points.collect()).unwrap()
    }

    fn contest(boards: Vec<MeasuredBoard>, names: &[&str]) -> MeasuredBacktestPlan {
        MeasuredBacktestPlan {
            boards,
            contenders: names.iter().map(|name| name.parse().unwrap()).collect(),
            days: 0.5,
            seeds: 2,
            settings: ControllerSettings::default(),
            delay_seconds: 10.0,
        }
    }

    #[test]
    fn a_board_is_what_was_measured_and_a_straight_line_between() {
        let board = caps();
        assert_eq!(board.at(250.0), (100.0, 240.0));
        assert_eq!(board.at(200.0), (1000.0 / 10.3, 199.0));
        let (rate, watts) = board.at(225.0);
        assert!((rate - 1000.0 / 10.15).abs() < 1e-9 && (watts - 219.5).abs() < 1e-9);
        assert_eq!(board.at(20.0), board.at(100.0), "nothing is known below");
        assert_eq!(board.at(900.0), board.at(250.0));
        assert_eq!((board.best(0.2), board.best(0.0)), (150.0, 250.0));
        let at_floor = 200.0 - 50.0 * (10.0 / 0.93 - 10.3) / 1.5;
        assert!((board.best(0.07) - at_floor).abs() < 1e-9, "between the settings of 10.3 s and 11.8 s: {}", board.best(0.07));
        assert!(MeasuredBoard::new("x", SweepKnob::SmClockMhz, vec![point(1.0, 1.0, 1.0); 3]).is_err());
        let wrong = vec![point(2.0, 1.0, 1.0), point(1.0, f64::NAN, 1.0)];
        assert!(matches!(MeasuredBoard::new("x", SweepKnob::SmClockMhz, wrong), Err(TestbedError::Value { .. })));
    }

    #[test]
    fn controllers_save_on_their_knob_and_nobody_beats_the_oracle_within_the_floor() {
        let names = ["fixed", "oracle", "hybrid", "power-cap", "frequency", "matrix"];
        let report = contest(vec![caps(), clocks()], &names).run(&|| ()).unwrap();
        assert_eq!(report, contest(vec![caps(), clocks()], &names).run(&|| ()).unwrap(), "the same bytes");
        let row = |board: &str, controller: &str| {
            let is = |row: &&MeasuredRow| row.board == board && row.controller.to_string() == controller;
            report.rows.iter().find(is).unwrap()
        };
        for board in ["lab/caps", "lab/clocks"] {
            let fixed = row(board, "fixed");
            assert!(fixed.saving_ratio.mean.abs() < 1e-9 && fixed.slowdown_ratio.mean.abs() < 1e-9 && fixed.turns_per_day == 0.0);
            let oracle = row(board, "oracle");
            assert!(oracle.saving_ratio.mean > 0.1 && oracle.slowdown_ratio.worst <= 0.08 + 1e-9, "{oracle:?}");
            assert!(row(board, "matrix").saving_ratio.mean.abs() < 1e-9, "a table has no other layouts");
        }
        for (board, controller, idle) in [("lab/caps", "power-cap", "frequency"), ("lab/clocks", "frequency", "power-cap")] {
            let own = row(board, controller);
            let oracle = row(board, "oracle");
            let of_oracle = own.saving_ratio.mean / oracle.saving_ratio.mean;
            assert!(of_oracle > 0.5 && of_oracle <= 1.0, "{own:?} {oracle:?}");
            assert!(own.slowdown_ratio.worst < 0.09, "{own:?}");
            assert!(row(board, idle).turns_per_day == 0.0, "it has no such knob there");
        }
        assert!(row("lab/caps", "hybrid").saving_ratio.mean > 0.05);
        let text = render_measured_report(&report);
        assert!(text.contains("lab/clocks") && text.contains("of oracle"), "{text}");
        assert!(text.starts_with("measured boards") && report.origin == "measured-table", "{text}");
    }

    #[test]
    fn a_table_of_a_simulated_board_is_not_called_measured() {
        let boards = vec![caps(), clocks().simulated(true)];
        let report = contest(boards, &["fixed", "oracle"]).run(&|| ()).unwrap();
        assert_eq!(report.origin, "simulated-table");
        assert!(render_measured_report(&report).starts_with("simulated boards"));
    }

    #[test]
    fn what_cannot_be_held_is_named() {
        let with = |change: fn(&mut MeasuredBacktestPlan)| {
            let mut contest = contest(vec![caps()], &["fixed", "oracle"]);
            change(&mut contest);
            contest.run(&|| ()).unwrap_err().to_string()
        };
        assert!(with(|contest| contest.days = 0.0).starts_with("days is 0"));
        assert!(with(|contest| contest.seeds = 0).starts_with("seeds is 0"));
        assert!(with(|contest| contest.contenders.push(Contender::Budget)).contains("power-budget"));
        assert!(with(|contest| contest.settings.seek_windows = 0).starts_with("controller settings"));
    }
}
