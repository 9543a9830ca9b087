//! Saving of the changes: measured J/sample against the J/sample of the starting layout, with a 90 % interval.
//!
//! docs/use/report.md has the method for readers. In short:
//!
//! 1. Every tumbling window of the run has a setting (`timeline`): layout, power cap and clocks. The first one is the starting
//!    setting; one that is set from outside is the starting setting from then on.
//! 2. Undisturbed windows are put into phases of the work (`phases`) without asking any controller.
//! 3. A phase's baseline is the mean power and throughput of its undisturbed windows at the starting setting.
//! 4. Compared are all windows at the starting setting, with themselves; and all others whose phase has a baseline: the starting
//!    setting would have drawn the baseline's power and had its throughput for the same time. Restarts, failed trials, redone work and
//!    the windows around them are among those others. A window without a baseline is in no figure of the saving, and counted.
//!    A pause of the job (evaluation, checkpoint, wait for data) is neither a gain nor a loss of a change: in a window that fits no
//!    phase, and that no change explains, the change acts on the time in which the job ran.
//! 5. `saving_ratio` is 1 − (energy ÷ samples) ÷ (baseline energy ÷ baseline samples), all of the compared windows.
//!
//! The interval has four parts: the scatter of the baseline's windows and of as many as were compared with them; the age of the
//! baseline, as a random walk; a trend within the baseline's windows; and a floor for what none of them shows.
//!
//! A baseline that the user gives is a fixed figure for the whole run and has no interval.

mod phases;
mod timeline;

use std::collections::BTreeMap;

use crate::figures::divide_known;
use crate::reporter::{ReportWindow, WorkloadEvents, sum_known};
use eadt_schemas::counts::counted;
use phases::{WindowObservation, assign_phases};
use timeline::{SettingTimeline, WindowSetting};

/// Baseline that a window is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct WindowBaseline {
    /// Number of the phase, from 0; `None` if unknown.
    pub(crate) phase: Option<usize>,
    /// Energy that the starting layout would have taken in the window's time; `None` if it is not comparable.
    pub(crate) baseline_joules: Option<f64>,
    pub(crate) baseline_samples: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct SavingEstimate {
    /// J/sample.
    pub(crate) baseline: Option<f64>,
    pub(crate) joules: Option<f64>,
    pub(crate) ratio: Option<f64>,
    /// Ends of the 90 % interval of the ratio.
    pub(crate) interval: Option<(f64, f64)>,
    /// Samples over those of the starting layout in the same time.
    pub(crate) throughput_ratio: Option<f64>,
    /// Energy of the windows that are compared. Energy and samples in no window are in no figure of the saving: of which time and
    /// of which work they are is not known.
    pub(crate) compared_joules: Option<f64>,
    /// Energy that the starting layout would have taken for the samples of these windows.
    pub(crate) expected_joules: Option<f64>,
    /// J/sample of the windows that are compared.
    pub(crate) compared: Option<f64>,
    /// The setting was changed, and there is no baseline.
    pub(crate) lacks_baseline: bool,
    /// One for each window of the run, in its order.
    pub(crate) windows: Vec<WindowBaseline>,
}

const GOOD_COVERAGE: f64 = 0.9;
/// Least time of pauses of which the power is believed.
const PAUSE_SECONDS: f64 = 300.0;
/// Windows without a phase of their own belong to that of the windows around them, no further away than this.
const NEIGHBOUR_SECONDS: f64 = 7200.0;
/// Quantile of the normal distribution that leaves 5 % on each side.
const Z_90: f64 = 1.645;
/// Relative deviation of one window's power and throughput that is assumed, and the number of windows it weighs as much as.
const PRIOR_DEVIATION: (f64, f64) = (0.01, 0.02);
const PRIOR_WINDOWS: f64 = 2.0;
/// A baseline may wander by this part in an hour, and by its root in more.
const DRIFT_PER_ROOT_HOUR: f64 = 0.005;
/// Least relative uncertainty of a comparison with a measured baseline.
const FLOOR: f64 = 0.008;
/// A baseline of few windows may be of other work than it seems: this part, over their number.
const LONELY: f64 = 0.03;

const ESTIMATE: &str = "the saving is an estimate, with a 90 % interval: each window is compared with what the starting layout did in the \
     same phase of the job (docs/use/report.md). Only --baseline compares with a fixed figure";
const NO_BASELINE: &str =
    "the saving is not known: in no phase of the job in which the layout was another one was the starting layout measured";

pub(crate) fn estimate_saving(
    collected: &WorkloadEvents<'_>,
    stated_baseline: Option<f64>,
    notes: &mut Vec<String>,
) -> SavingEstimate {
    let windows: Vec<&ReportWindow> = collected.run().collect();
    if let Some(baseline) = stated_baseline {
        return saving_against(&windows, baseline, notes);
    }
    let timeline = SettingTimeline::of(collected, &windows);
    let shared = windows.iter().any(|window| window.shared);
    let compared = compare(&windows, &timeline);
    if !timeline.changed {
        let windows = compared.windows.iter().map(|it| WindowBaseline { phase: it.phase, ..WindowBaseline::default() }).collect();
        return SavingEstimate { windows, ..SavingEstimate::default() };
    }
    let result = compared.estimate_saving(&windows);
    if compared.others == 0 {
        notes.push(NO_BASELINE.to_owned());
        return SavingEstimate { windows: result.windows, lacks_baseline: true, ..SavingEstimate::default() };
    }
    if compared.without_baseline > 0 {
        notes.push(format!(
            "the saving leaves out {} of phases in which the starting layout was not measured: nothing is comparable there",
            counted(compared.without_baseline, "window")
        ));
    }
    if compared.unknown > 0 {
        notes.push(format!(
            "the saving leaves out {} without enough known energy or progress",
            counted(compared.unknown, "window")
        ));
    }
    if shared {
        notes.push("the saving leaves out the time in which it shared its GPUs with other workloads".to_owned());
    }
    notes.push(ESTIMATE.to_owned());
    result
}

/// Compares the whole run with a fixed figure.
fn saving_against(windows: &[&ReportWindow], baseline: f64, notes: &mut Vec<String>) -> SavingEstimate {
    let mut compared = BaselineComparison::default();
    for window in windows {
        let expected = window.samples.unwrap_or(0.0) * baseline;
        let known = counts_for_saving(window);
        compared.unknown += u64::from(!known);
        compared.windows.push(WindowBaseline {
            phase: None,
            baseline_joules: known.then_some(expected),
            baseline_samples: known.then(|| window.samples.unwrap_or(0.0)),
        });
    }
    if compared.unknown > 0 {
        notes.push(format!(
            "the saving leaves out {} without enough known energy or progress",
            counted(compared.unknown, "window")
        ));
    }
    SavingEstimate { baseline: Some(baseline), throughput_ratio: None, interval: None, ..compared.estimate_saving(windows) }
}

#[derive(Debug, Default)]
struct BaselineComparison {
    windows: Vec<WindowBaseline>,
    /// Windows that were compared with something else than themselves.
    others: u64,
    without_baseline: u64,
    unknown: u64,
    /// Relative variance of the baseline J/sample.
    variance: f64,
}

impl BaselineComparison {
    fn estimate_saving(&self, windows: &[&ReportWindow]) -> SavingEstimate {
        let mut sums = SavingSums::default();
        for (window, compared) in windows.iter().zip(&self.windows) {
            if let (Some(joules), Some(samples)) = (compared.baseline_joules, compared.baseline_samples) {
                sums.baseline_joules = sum_known([sums.baseline_joules, Some(joules)].into_iter());
                sums.baseline_samples = sum_known([sums.baseline_samples, Some(samples)].into_iter());
                sums.joules = sum_known([sums.joules, window.run_energy].into_iter());
                sums.samples = sum_known([sums.samples, window.samples].into_iter());
            }
        }
        let baseline = divide_known(sums.baseline_joules, sums.baseline_samples);
        let expected = baseline.zip(sums.samples).map(|(baseline, samples)| baseline * samples);
        let energies = expected.zip(sums.joules).filter(|(expected, joules)| (expected - joules).is_finite());
        let (expected, compared) = energies.unzip();
        let joules = energies.map(|(expected, compared)| expected - compared);
        let ratio = divide_known(joules, expected);
        let interval = ratio.map(|ratio| {
            let half = Z_90 * self.variance.max(0.0).sqrt() * (1.0 - ratio).abs();
            (ratio - half, ratio + half)
        });
        SavingEstimate {
            baseline,
            joules,
            ratio,
            interval,
            throughput_ratio: divide_known(sums.samples, sums.baseline_samples).filter(|_| joules.is_some()),
            compared_joules: compared,
            expected_joules: expected,
            compared: divide_known(compared, sums.samples),
            lacks_baseline: false,
            windows: self.windows.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct SavingSums {
    joules: Option<f64>,
    samples: Option<f64>,
    baseline_joules: Option<f64>,
    baseline_samples: Option<f64>,
}

/// One phase at one starting setting.
#[derive(Debug, Default)]
struct PhaseBaseline {
    /// Undisturbed windows: index, watts and samples per second.
    windows: Vec<(usize, f64, f64)>,
    /// Windows that are compared with it: index, seconds of power, seconds of progress.
    users: Vec<(usize, f64, f64)>,
}

impl PhaseBaseline {
    fn means(&self) -> Option<(f64, f64)> {
        let count = self.windows.len();
        let mean = |of: fn(&(usize, f64, f64)) -> f64| self.windows.iter().map(of).sum::<f64>() / count as f64;
        (count > 0).then(|| (mean(|it| it.1), mean(|it| it.2)))
    }
}

fn compare(windows: &[&ReportWindow], timeline: &SettingTimeline) -> BaselineComparison {
    let settings = &timeline.settings;
    let found = find_phases(windows, settings);
    let mut comparison =
        BaselineComparison { windows: vec![WindowBaseline::default(); windows.len()], ..BaselineComparison::default() };
    let around = NeighbourPhases::of(windows, &found);
    let mut measured = MeasuredPhases::of(windows, settings, &found);
    measured.add_pauses(windows, settings, &found, &around);
    for (index, window) in windows.iter().enumerate() {
        let setting = &settings[index];
        let near = around.phases(index);
        comparison.windows[index].phase = found[index].or(near.filter(|(a, b)| a == b).map(|(a, _)| a));
        if !counts_for_saving(window) || window.shared {
            comparison.unknown += u64::from(!window.shared);
            continue;
        }
        let compared = &mut comparison.windows[index];
        if setting.is_start && !setting.disturbed {
            (compared.baseline_joules, compared.baseline_samples) = (window.run_energy, Some(window.samples.unwrap_or(0.0)));
            continue;
        }
        let expected = match (found[index].map(|phase| (phase, phase)).or(near), found[index]) {
            (Some(around), None) if is_interlude(window, setting) => measured.expected_of_interlude(window, setting, around),
            (Some(around), _) => measured.expected_of_phases(window, setting, around),
            (None, _) => Vec::new(),
        };
        if expected.is_empty() {
            comparison.without_baseline += 1;
            continue;
        }
        let part = 1.0 / expected.len() as f64;
        compared.baseline_joules = Some(part * expected.iter().map(|it| it.joules).sum::<f64>());
        compared.baseline_samples = Some(part * expected.iter().map(|it| it.samples).sum::<f64>());
        comparison.others += 1;
        for of in expected.iter().filter(|it| it.seconds.0 > 0.0) {
            measured.baselines[of.baseline].1.users.push((index, part * of.seconds.0, part * of.seconds.1));
        }
    }
    comparison.variance = variance(&measured.baselines, &comparison, windows);
    comparison
}

/// Returns the phase of each window; `None` if it is disturbed, or fits none.
fn find_phases(windows: &[&ReportWindow], settings: &[WindowSetting]) -> Vec<Option<usize>> {
    let clean = |index: &usize| is_comparable(windows[*index]) && !settings[*index].disturbed;
    let observed: Vec<usize> = (0..windows.len()).filter(clean).collect();
    let is_pause = |index: usize| {
        let window = windows.get(index).filter(|window| counts_for_saving(window) && !window.restarted);
        window.is_some_and(|window| power_and_rate(window).1 <= 0.0)
    };
    let observation = |index: &usize| {
        let beside_pause = is_pause(index + 1) || index.checked_sub(1).is_some_and(is_pause);
        Some(WindowObservation { beside_pause, ..window_observation(windows[*index], &settings[*index])? })
    };
    let observations: Vec<WindowObservation> = observed.iter().filter_map(observation).collect();
    let mut found: Vec<Option<usize>> = vec![None; windows.len()];
    if observations.len() == observed.len() {
        for (index, phase) in observed.iter().zip(assign_phases(&observations)) {
            found[*index] = phase;
        }
    }
    found
}

/// Returns true if a window that fits no phase is so without any change: the job paused, or did something else for a moment.
fn is_interlude(window: &ReportWindow, setting: &WindowSetting) -> bool {
    !setting.disturbed && !window.restarted && !window.redone
}

/// What the phases did at each setting.
#[derive(Debug, Default)]
struct MeasuredPhases {
    /// By starting setting and phase.
    baselines: Vec<((usize, usize), PhaseBaseline)>,
    /// Number of windows and sums of watts and of samples per second, by setting and phase.
    sums: BTreeMap<(usize, usize), (f64, f64, f64)>,
    /// Joules and seconds of the job's pauses within a phase, by setting and phase.
    pauses: BTreeMap<(usize, usize), (f64, f64)>,
}

/// What the starting setting would have taken and done in the time of a window, by one baseline.
#[derive(Debug, Clone, Copy)]
struct ExpectedFigures {
    baseline: usize,
    joules: f64,
    samples: f64,
    /// Seconds of the baseline's power and of its progress in it.
    seconds: (f64, f64),
}

impl MeasuredPhases {
    fn of(windows: &[&ReportWindow], settings: &[WindowSetting], found: &[Option<usize>]) -> Self {
        let mut measured = Self::default();
        for (index, phase) in found.iter().enumerate().filter_map(|(index, phase)| Some((index, (*phase)?))) {
            let setting = &settings[index];
            let (watts, rate) = power_and_rate(windows[index]);
            let sums = measured.sums.entry((setting.index, phase)).or_default();
            *sums = (sums.0 + 1.0, sums.1 + watts, sums.2 + rate);
            if setting.is_start {
                let place = baseline_index(&mut measured.baselines, (setting.start, phase));
                measured.baselines[place].1.windows.push((index, watts, rate));
            }
        }
        measured
    }

    /// Returns a phase's baseline at a starting setting, and its mean power and throughput.
    fn baseline(&self, start: usize, phase: usize) -> Option<(usize, (f64, f64))> {
        let position = self.baselines.iter().position(|(of, _)| *of == (start, phase))?;
        Some((position, self.baselines[position].1.means()?))
    }

    /// Returns the baselines of the phases before and after, for all of the window's time; none if one of them is not measured.
    fn expected_of_phases(&self, window: &ReportWindow, setting: &WindowSetting, around: (usize, usize)) -> Vec<ExpectedFigures> {
        let seconds = known_seconds(window);
        let expected = |phase: usize| {
            let (baseline, (watts, rate)) = self.baseline(setting.start, phase)?;
            Some(ExpectedFigures { baseline, joules: seconds.0 * watts, samples: seconds.1 * rate, seconds })
        };
        [around.0, around.1].into_iter().map(expected).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Returns mean watts and samples per second of a phase at a setting.
    fn running(&self, setting: usize, phase: usize) -> Option<(f64, f64)> {
        let (count, watts, rate) = *self.sums.get(&(setting, phase))?;
        Some((watts / count, rate / count))
    }

    /// Adds what the job took in interludes beyond the time in which it ran.
    fn add_pauses(
        &mut self,
        windows: &[&ReportWindow],
        settings: &[WindowSetting],
        found: &[Option<usize>],
        around: &NeighbourPhases,
    ) {
        for (index, window) in windows.iter().enumerate() {
            let setting = &settings[index];
            let is_known = counts_for_saving(window) && !window.shared && is_interlude(window, setting);
            let near = around.phases(index).filter(|(a, b)| a == b && found[index].is_none() && is_known);
            let Some((phase, running)) = near.and_then(|(phase, _)| Some((phase, self.running(setting.index, phase)?))) else {
                continue;
            };
            let (joules, seconds) = pause_of(window, running);
            let sums = self.pauses.entry((setting.index, phase)).or_default();
            *sums = (sums.0 + joules, sums.1 + seconds);
        }
    }

    /// Returns the power of pauses at the starting setting over that at another, no further from 1 than that of running; 1 if too few
    /// are measured.
    fn pause_power_ratio(&self, setting: &WindowSetting, phase: usize, running_ratio: f64) -> f64 {
        let watts = |setting: usize| {
            let (joules, seconds) = *self.pauses.get(&(setting, phase))?;
            (seconds >= PAUSE_SECONDS && joules > 0.0).then_some(joules / seconds)
        };
        let ratio = watts(setting.start).zip(watts(setting.index)).map_or(1.0, |(start, here)| start / here);
        ratio.clamp(running_ratio.min(1.0), running_ratio.max(1.0))
    }

    /// Returns the same for an interlude: the change acts on the part of the time in which the job ran, which its samples show. In the
    /// rest, the starting setting would have paused as long.
    fn expected_of_interlude(
        &self,
        window: &ReportWindow,
        setting: &WindowSetting,
        around: (usize, usize),
    ) -> Vec<ExpectedFigures> {
        let (energy, samples) = (window.run_energy.unwrap_or(0.0), window.samples.unwrap_or(0.0));
        let seconds = known_seconds(window);
        let expected = |phase: usize| {
            let (baseline, start) = self.baseline(setting.start, phase)?;
            let running = self.running(setting.index, phase)?;
            let ran = divide_known(Some(samples), Some(seconds.1 * running.1))?;
            let ran_seconds = ran.min(1.0) * seconds.0;
            let ratio = self.pause_power_ratio(setting, phase, start.0 / running.0);
            Some(ExpectedFigures {
                baseline,
                joules: energy + ran_seconds * (start.0 - running.0) + (ratio - 1.0) * pause_of(window, running).0,
                samples: samples * start.1 / running.1,
                seconds: (ran_seconds, ran * seconds.1),
            })
        };
        [around.0, around.1].into_iter().filter_map(expected).collect()
    }
}

/// Returns the joules and seconds of a window in which the job did not run, by watts and samples per second of running.
fn pause_of(window: &ReportWindow, running: (f64, f64)) -> (f64, f64) {
    let seconds = known_seconds(window);
    let ran = divide_known(window.samples, Some(seconds.1 * running.1)).unwrap_or(0.0).min(1.0);
    let joules = window.run_energy.unwrap_or(0.0) - ran * seconds.0 * running.0;
    (joules.max(0.0), (1.0 - ran) * seconds.0)
}

fn baseline_index(baselines: &mut Vec<((usize, usize), PhaseBaseline)>, of: (usize, usize)) -> usize {
    baselines.iter().position(|(known, _)| *known == of).unwrap_or_else(|| {
        baselines.push((of, PhaseBaseline::default()));
        baselines.len() - 1
    })
}

/// Returns the relative variance of baseline energy over baseline samples.
fn variance(baselines: &[((usize, usize), PhaseBaseline)], comparison: &BaselineComparison, windows: &[&ReportWindow]) -> f64 {
    let all = |of: fn(&WindowBaseline) -> Option<f64>| comparison.windows.iter().filter_map(of).sum::<f64>();
    let (joules, samples) = (all(|it| it.baseline_joules), all(|it| it.baseline_samples));
    if joules <= 0.0 || samples <= 0.0 {
        return 0.0;
    }
    let mut variance = 0.0;
    for (_, baseline) in baselines {
        let Some((watts, rate)) = baseline.means().filter(|_| !baseline.users.is_empty()) else { continue };
        let seconds = baseline.users.iter().fold((0.0, 0.0), |(a, b), user| (a + user.1, b + user.2));
        let weights = (seconds.0 / joules, seconds.1 / samples);
        let count = baseline.windows.len() as f64;
        let scatter: f64 =
            baseline.windows.iter().map(|(_, one, other)| (weights.0 * (one - watts) - weights.1 * (other - rate)).powi(2)).sum();
        let prior = (weights.0 * watts * PRIOR_DEVIATION.0).powi(2) + (weights.1 * rate * PRIOR_DEVIATION.1).powi(2);
        let one = (scatter + PRIOR_WINDOWS * prior) / (count - 1.0 + PRIOR_WINDOWS);
        let users = baseline.users.len().max(2) as f64 / 2.0;
        let part = f64::midpoint(weights.0 * watts, weights.1 * rate);
        let ages = baseline.users.iter().map(|(user, ..)| age_hours(baseline, windows, *user));
        let age = ages.sum::<f64>() / baseline.users.len() as f64;
        let floor = FLOOR + LONELY / count;
        let deviation = |(_, one, other): &(usize, f64, f64)| weights.0 * (one - watts) - weights.1 * (other - rate);
        let trend = trend_error(baseline, windows, deviation, one);
        let drift = part.powi(2) * DRIFT_PER_ROOT_HOUR.powi(2) * age;
        variance += one * (1.0 / count + 1.0 / users) + drift + trend.powi(2) + (part * floor).powi(2);
    }
    variance
}

/// Returns the error that a trend within the baseline's windows leaves in what is compared with it: the slope that chance does not
/// explain, times the hours between the middle of both, but no further than the baseline is long. `variance`: of one window's deviation.
fn trend_error(
    baseline: &PhaseBaseline,
    windows: &[&ReportWindow],
    deviation: impl Fn(&(usize, f64, f64)) -> f64,
    variance: f64,
) -> f64 {
    let Some((first, ..)) = baseline.windows.first() else { return 0.0 };
    let hours = |index: usize| windows[index].start.seconds_since(windows[*first].start) / 3600.0;
    let (count, users) = (baseline.windows.len() as f64, baseline.users.len() as f64);
    let middle = baseline.windows.iter().map(|(index, ..)| hours(*index)).sum::<f64>() / count;
    let of_users = baseline.users.iter().map(|(index, ..)| hours(*index)).sum::<f64>() / users;
    let spread: f64 = baseline.windows.iter().map(|(index, ..)| (hours(*index) - middle).powi(2)).sum();
    if spread <= 0.0 {
        return 0.0;
    }
    let slope = baseline.windows.iter().map(|one| (hours(one.0) - middle) * deviation(one)).sum::<f64>() / spread;
    let beyond_chance = (slope.powi(2) - Z_90.powi(2) * variance / spread).max(0.0).sqrt();
    let length = baseline.windows.iter().map(|(index, ..)| hours(*index)).fold(0.0, f64::max);
    beyond_chance * (of_users - middle).abs().min(length)
}

/// Hours to the nearest window of a baseline.
fn age_hours(baseline: &PhaseBaseline, windows: &[&ReportWindow], user: usize) -> f64 {
    let after = baseline.windows.partition_point(|(index, ..)| *index < user);
    let near = baseline.windows[after.saturating_sub(1)..].iter().take(2);
    let apart = near.map(|(index, ..)| windows[*index].start.seconds_since(windows[user].start).abs());
    apart.fold(f64::INFINITY, f64::min) / 3600.0
}

/// The phases of the nearest windows that have one, before and after each window.
struct NeighbourPhases {
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
}

impl NeighbourPhases {
    fn of(windows: &[&ReportWindow], found: &[Option<usize>]) -> Self {
        let walk = |indices: &mut dyn Iterator<Item = usize>| {
            let mut near = vec![None; found.len()];
            let mut last: Option<(usize, usize)> = None;
            for index in indices {
                if let Some(phase) = found[index] {
                    last = Some((index, phase));
                }
                let close = |(from, _): &(usize, usize)| {
                    windows[index].start.seconds_since(windows[*from].start).abs() <= NEIGHBOUR_SECONDS
                };
                near[index] = last.filter(close).map(|(_, phase)| phase);
            }
            near
        };
        Self { before: walk(&mut (0..found.len())), after: walk(&mut (0..found.len()).rev()) }
    }

    fn phases(&self, index: usize) -> Option<(usize, usize)> {
        match (self.before[index], self.after[index]) {
            (Some(before), Some(after)) => Some((before, after)),
            (one, other) => one.or(other).map(|phase| (phase, phase)),
        }
    }
}

/// Returns watts and samples per second of a good window.
fn power_and_rate(window: &ReportWindow) -> (f64, f64) {
    let seconds = known_seconds(window);
    let over = |value: Option<f64>, seconds: f64| divide_known(value, Some(seconds)).unwrap_or(0.0);
    (over(window.run_energy, seconds.0), over(window.samples, seconds.1))
}

/// Returns the seconds in which the energy of a window is known, and in which its progress is. A restart makes none, and counts
/// as known.
fn known_seconds(window: &ReportWindow) -> (f64, f64) {
    let progress = if window.restarted { window.run_seconds } else { window.progress_seconds() };
    (window.covered_seconds(), progress)
}

fn window_observation(window: &ReportWindow, setting: &WindowSetting) -> Option<WindowObservation> {
    let (watts, rate) = power_and_rate(window);
    let gpus = f64::from(window.gpus.max(1));
    let of_sample = |ratio: Option<f64>| ratio.filter(|ratio| *ratio > 0.0).map(|ratio| (ratio * gpus / rate).ln());
    let cycles = window.sm_active.zip(window.sm_clock_mhz).map(|(active, clock)| active * clock);
    (watts > 0.0 && rate > 0.0).then(|| WindowObservation {
        start: window.start,
        end: window.end,
        setting: setting.index,
        processes: setting.processes,
        limits: setting.limits,
        rate: rate.ln(),
        watts: watts.ln(),
        memory: of_sample(window.dram_active),
        cycles: of_sample(cycles),
        clock: window.sm_clock_mhz.filter(|clock| *clock > 0.0).map(f64::ln),
        beside_pause: false,
    })
}

/// Returns true if a window can be compared with others of its setting.
fn is_comparable(window: &ReportWindow) -> bool {
    let known = counts_for_saving(window) && !window.restarted && !window.redone && window.progress_coverage >= GOOD_COVERAGE;
    let (watts, rate) = power_and_rate(window);
    known && !window.shared && watts > 0.0 && rate > 0.0
}

fn counts_for_saving(window: &ReportWindow) -> bool {
    let known = window.run_energy.is_some() && window.run_coverage >= GOOD_COVERAGE && !window.gap;
    known && (window.restarted || (window.samples.is_some() && window.progress_coverage >= GOOD_COVERAGE))
}
