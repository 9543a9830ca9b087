//! Choice of another layout that is worth a restart.
//!
//! Layouts are compared by the energy, or whatever the objective names, that they are expected to save. This phase counts for as
//! long as it is likely to go on, then the other phases. Counted against it is the time that its restart costs, and that of the
//! way back if it was never tried. Measured figures count as measured. A layout that was never tried in this phase is expected to
//! do what it did in others, against the best known one. If nothing is known, it is given a chance that shrinks with every other
//! layout that was tried.
//!
//! A layout that was never tried is gone to only from the best one that was measured in this phase, so its way back leads to the
//! best one. One restart is kept for that way back, and for the one to the starting layout.

use super::curve::{BestSetting, LayoutKey, MeasuredSetting};
use super::hourly_throughput::HOUR_SECONDS;
use super::phase::JobPhase;
use super::{SeekPlanner, SeekStep};
use crate::controller::knobs::{self, MatrixKnobs};

/// Longest remaining time that is assumed for a job that does not report it, in seconds.
const FUTURE_SECONDS_MAX: f64 = 7.0 * 86_400.0;
/// While a layout is being explored it may still become better by this part.
const EXPLORATION_BONUS: f64 = 0.05;
/// A layout that lacks more than this factor of throughput at its first setting is given up.
const TOO_SLOW: f64 = 1.2;
/// Two phases whose power differs by this, as a logarithm, weigh a third as much for each other as equal ones.
const ALIKE: f64 = 0.15;
/// Prior weight of an unmeasured phase, as a part of the weight of an equal one.
const CHANCE: f64 = 0.5;
/// Throughput below this part of the floor is too slow beyond noise.
const FAST_ENOUGH: f64 = 0.98;
/// A trial that lacks no more than this factor may be fast enough without a limit.
const NEAR_FLOOR: f64 = 1.05;
/// Threads in all below this part of the starting layout's are fewer.
const FEWER_THREADS: f64 = 0.95;
/// It is not worth going back to the starting layout for a time shorter than this, in seconds.
const SEE_SECONDS_MIN: f64 = 900.0;
/// Part by which an hour may lie below the floor of its settings.
const HOUR_SLACK: f64 = 0.01;
/// Part by which the throughput of an hour differs from its mean by chance.
const HOUR_NOISE: f64 = 0.005;
/// Factor by which a layout is assumed to be ahead of the starting one if no phase shows it.
const AHEAD: f64 = 1.1;

/// Score of a layout in a phase, at its best.
#[derive(Debug, Clone, Copy)]
struct MeasuredLayout {
    score: f64,
    setting: f64,
    /// It is fast enough. If it is not, its score is what more speed would cost at least.
    feasible: bool,
}

#[derive(Debug)]
struct LayoutCandidate {
    to: LayoutKey,
    setting: f64,
    measured: bool,
    /// It is gone to for comparison only.
    compares: bool,
    /// Part that is saved in this phase.
    gain: f64,
    /// Saving in seconds of the present layout's energy, or of another figure that the objective names, less the cost of the
    /// restart.
    worth: f64,
}

impl LayoutCandidate {
    /// Returns the one of two to go to. What was measured to be better here is gone to before anything is tried.
    fn better(self, other: Self) -> Self {
        let known = |candidate: &Self| candidate.measured && candidate.gain > 0.0;
        let ahead = known(&other).cmp(&known(&self)).then(other.worth.total_cmp(&self.worth));
        if ahead.is_gt() { other } else { self }
    }

    /// Returns why it is gone to from a layout of this score.
    fn describe(&self, score: f64) -> String {
        let (layout, percent) = (describe_layout(self.to), 100.0 * self.gain.min(1.0));
        if self.compares {
            format!("the layout with {layout} was never measured in this phase: a measurement may save {percent:.1} %")
        } else if score.is_infinite() {
            let verb = if self.measured { "is not" } else { "may not be" };
            format!("this layout is too slow in this phase, {layout} {verb}")
        } else if self.measured && self.gain > 0.0 {
            format!("{layout} is better by {percent:.1} %")
        } else if self.measured || self.gain <= 0.0 {
            format!("{layout} is better over all phases, though not in this one")
        } else {
            format!("{layout} is expected to save {percent:.1} %, which is worth a restart")
        }
    }
}

/// Samples of the last hour beyond its floor.
#[derive(Debug, Clone, Copy)]
struct RestartReserve {
    /// What a restart takes.
    needed: f64,
    /// The most that the present layout can have.
    reachable: f64,
}

impl SeekPlanner<'_> {
    /// Returns the layout to go to, if one is worth it. `settled`: the present one is at its best.
    pub(super) fn other_layout(&self, phase: &JobPhase, floor: f64, here: &BestSetting, settled: bool) -> Option<SeekStep> {
        let gpus = self.workload.gpus.unwrap_or(self.gpus);
        let from = MatrixKnobs::from_layout(&self.workload.layout).ok().filter(|_| gpus > 0)?;
        let settings = self.context.settings;
        let layout_key = self.operating_point.layout_key;
        let hope = if settled { 1.0 } else { 1.0 - EXPLORATION_BONUS };
        // A layout that is a little too slow at a setting meant for another one may be fast enough at a higher setting, for more
        // energy. One that stays too slow is no candidate, so any layout that is fast enough is better.
        let short = floor / here.expected.samples_per_second;
        let feasible = here.feasible && short < 1.02;
        let here_score = here.expected.score(settings.objective);
        let score = match (feasible, settled) {
            (true, _) => here_score * hope,
            (false, false) if short < TOO_SLOW && here.setting > self.operating_point.setting => here_score * short * hope,
            _ => f64::INFINITY,
        };

        let mut spots: Vec<LayoutKey> = knobs::alternative_knobs(from, gpus, self.workload, settings)
            .into_iter()
            .map(|knobs| LayoutKey { replicas: knobs.replicas, threads: knobs.threads })
            .collect();
        let visited = phase.points.iter().map(|point| point.layout_key).chain(self.seek.base.map(|base| base.layout_key));
        for known in visited {
            if !spots.contains(&known) {
                spots.push(known);
            }
        }
        spots.retain(|to| *to != layout_key && self.may_restart_into(*to, phase, here.feasible));
        let back = self.seek.base.filter(|base| settled && spots.contains(&base.layout_key));
        let comparison = back.and_then(|base| self.comparison(base.layout_key, phase, floor, here_score));
        let candidates = spots.into_iter().filter_map(|to| self.candidate(to, phase, floor, score, settled)).chain(comparison);
        let best = candidates.filter(|candidate| candidate.worth > 0.0).reduce(LayoutCandidate::better)?;
        Some(SeekStep::Move { to: best.to, setting: best.setting, why: best.describe(score) })
    }

    /// Returns whether a restart into a layout is allowed now: by the restarts of a day, by the floor, and by the last hour.
    /// `feasible`: the present layout is fast enough.
    fn may_restart_into(&self, to: LayoutKey, phase: &JobPhase, feasible: bool) -> bool {
        let restores = self.restores(to);
        let restarts = self.state.restarts.len() as u32 + if restores { 1 } else { 2 };
        // An hour of the present layout must be able to have the time for it. Otherwise it would wait for ever.
        let affordable =
            restores || !feasible || self.restart_reserve(phase).is_none_or(|reserve| reserve.needed <= reserve.reachable);
        restarts <= self.restarts_allowed()
            && affordable
            && self.fast_enough_elsewhere(to)
            && !self.seek.barred.iter().any(|barred| barred.layout_key == to)
    }

    /// Returns whether a layout is the one before the present trial.
    fn reverts_trial(&self, to: LayoutKey) -> bool {
        self.seek.trial.as_ref().is_some_and(|trial| !trial.revert && super::layout_key(&trial.from) == to)
    }

    /// Returns whether a restart into a layout is a way back: to the starting one, or to the one before the present trial.
    fn restores(&self, to: LayoutKey) -> bool {
        self.reverts_trial(to) || self.seek.base.is_some_and(|base| base.layout_key == to)
    }

    /// Restarts within 24 h.
    fn restarts_allowed(&self) -> u32 {
        let settings = self.context.settings;
        let allowed = self.workload.bounds.restarts_per_day_max.unwrap_or(settings.restarts_per_day_max);
        allowed.min(settings.hybrid_restarts_per_day_max)
    }

    /// Returns whether a layout keeps the floor of throughput in the phases that may come: not if it was too slow in one of
    /// them. One with fewer processes or threads than the starting one may be slow in any phase in which it was not measured.
    /// So it is tried only if a long time has shown no such phase.
    fn fast_enough_elsewhere(&self, to: LayoutKey) -> bool {
        let (settings, phases) = (self.context.settings, &self.seek.phases);
        let Some(base) = self.seek.base.map(|base| base.layout_key).filter(|base| *base != to) else { return true };
        let free = |phase: &JobPhase, layout_key: LayoutKey| phase.free_rate(layout_key, self.knob, settings.seek_windows);
        let mut measured_everywhere = true;
        for other in phases.others() {
            match (free(other, to), free(other, base)) {
                (Some(there), Some(reference)) if there < FAST_ENOUGH * self.seek.throughput_floor(reference, settings) => {
                    return false;
                }
                (Some(_), Some(_)) => {}
                _ => measured_everywhere = false,
            }
        }
        let threads = |layout_key: LayoutKey| f64::from(layout_key.replicas) * f64::from(layout_key.threads);
        let fewer = to.replicas < base.replicas || threads(to) < FEWER_THREADS * threads(base);
        let long = self.now.seconds_since(self.seek.began) >= settings.horizon_seconds;
        !fewer || (measured_everywhere && long)
    }

    /// Goes to the starting layout if it was never measured in this phase: its throughput is needed for the floor.
    pub(super) fn visit_starting_layout(&self, phase: &JobPhase, base: super::StartingLayout) -> Option<SeekStep> {
        let layout_key = self.operating_point.layout_key;
        let short = |seconds: Option<f64>| seconds.is_some_and(|seconds| seconds < SEE_SECONDS_MIN);
        let used = self.state.restarts.len() as u32;
        let most = self.restarts_allowed();
        let barred = self.seek.barred.iter().any(|barred| barred.layout_key == base.layout_key);
        if short(self.context.remaining_seconds) || short(self.seek.phases.dwell_seconds(self.now)) || used >= most || barred {
            return None;
        }
        let why = format!(
            "the layout with {} was never measured in this phase: its throughput is needed for the throughput floor",
            describe_layout(base.layout_key)
        );
        let step = SeekStep::Move { to: base.layout_key, setting: self.knob.top, why };
        let fewer = layout_key.replicas < base.layout_key.replicas
            || layout_key.replicas * layout_key.threads < base.layout_key.replicas * base.layout_key.threads;
        Some(self.when_affordable(step, phase, !fewer))
    }

    /// Leaves a trial at once if its throughput is below the floor.
    pub(super) fn leave_slow_trial(&self, phase: &JobPhase, base: super::StartingLayout) -> Option<SeekStep> {
        let settings = self.context.settings;
        // The way back is no trial: there is nowhere else to go.
        let here = self.operating_point.layout_key;
        let trial = self.seek.trial.as_ref().filter(|trial| !trial.revert && super::layout_key(&trial.to) == here)?;
        let from = super::layout_key(&trial.from);
        let used = self.state.restarts.len() as u32;
        if here == base.layout_key
            || used >= self.restarts_allowed()
            || self.seek.barred.iter().any(|barred| barred.layout_key == from)
        {
            return None;
        }
        let reference = phase.free_rate(base.layout_key, self.knob, settings.seek_windows)?;
        let floor = self.seek.throughput_floor(reference, settings);
        let rate = phase.measured_setting(self.operating_point)?.samples_per_second;
        if rate >= FAST_ENOUGH * floor {
            return None;
        }
        let part = 100.0 * rate / reference;
        // A layout that was fast enough at another setting has only been turned down too far.
        let enough =
            |p: &MeasuredSetting| p.layout_key == here && p.windows >= settings.seek_windows && p.samples_per_second >= floor;
        let before = phase.points.iter().any(enough).then(|| phase.curve(here, self.knob)).flatten();
        let raised = match before.map(|curve| curve.best_measured(floor, settings.objective)) {
            Some(best) => Some(if best.feasible { best.setting } else { self.knob.top }),
            None => (rate * NEAR_FLOOR >= floor).then_some(self.knob.top),
        };
        if let Some(to) = raised.filter(|to| *to > self.operating_point.setting && self.may_raise()) {
            return Some(self.turn(to, format!("{part:.0} % of the throughput is too low: the limit is raised")));
        }
        let (to, setting) = (from, self.knob.setting_of(&trial.from));
        let why = format!("{} has only {part:.0} % of the throughput: it is reverted at once", describe_layout(here));
        Some(SeekStep::Move { to, setting, why })
    }

    /// Returns the part of the starting layout's work that must be done in any hour, a little below the floor of one setting.
    fn hour_part(&self) -> f64 {
        1.0 - self.context.settings.max_slowdown_ratio - HOUR_SLACK
    }

    fn in_first_hour(&self) -> bool {
        self.now.seconds_since(self.seek.began) < HOUR_SECONDS
    }

    /// Returns whether the knob can be turned up.
    fn may_raise(&self) -> bool {
        self.operating_point.setting < self.knob.top && self.seek.knob_barred.is_none() && !self.hot
    }

    /// Returns the throughput of the present layout with nothing held back, or at the present setting if that cannot be turned
    /// up. `None` if it was not measured.
    fn reachable_rate(&self, phase: &JobPhase) -> Option<f64> {
        if self.may_raise() {
            return phase.free_rate(self.operating_point.layout_key, self.knob, 1);
        }
        phase.measured_setting(self.operating_point).map(|point| point.samples_per_second)
    }

    /// Returns what a restart takes of an hour, and what an hour of the present layout can have; `None` if nothing is owed.
    fn restart_reserve(&self, phase: &JobPhase) -> Option<RestartReserve> {
        let settings = self.context.settings;
        let due_rate = self.seek.hour.due_rate.filter(|_| !self.in_first_hour())?;
        let seconds = self.state.rollout_seconds.unwrap_or(settings.restart_seconds) + settings.redone_seconds;
        let spare = |rate: f64| (rate - self.hour_part() * due_rate) * HOUR_SECONDS;
        Some(RestartReserve { needed: due_rate * seconds, reachable: self.reachable_rate(phase).map_or(f64::INFINITY, spare) })
    }

    /// Returns a restart now, if the last hour has the throughput for it in reserve, or as much as this layout can have.
    /// Otherwise nothing is held back until it has. `feasible`: the present layout is fast enough, so that there is time.
    pub(super) fn when_affordable(&self, step: SeekStep, phase: &JobPhase, feasible: bool) -> SeekStep {
        let Some(due_rate) = self.seek.hour.due_rate else { return step };
        let Some(reserve) = self.restart_reserve(phase).filter(|_| feasible) else { return step };
        let noise = HOUR_NOISE * due_rate * HOUR_SECONDS;
        if self.seek.hour.spare_samples(self.hour_part()) >= reserve.needed.min(reserve.reachable - noise) {
            return step;
        }
        let SeekStep::Move { to, why, .. } = step else { return step };
        let why = format!("a restart waits until the throughput of the last hour allows it: {why}");
        if self.may_raise() {
            self.turn(self.knob.top, why)
        } else if self.restores(to) {
            // The trial is judged when it is left.
            SeekStep::Measure(why)
        } else {
            SeekStep::Stay(why)
        }
    }

    /// Holds nothing back if the last hour is behind its floor, unless this layout cannot do more.
    pub(super) fn make_up(&self, phase: &JobPhase) -> Option<SeekStep> {
        let ratio = self.seek.hour.ratio().filter(|_| !self.in_first_hour())?;
        let free = self.operating_point.setting >= self.knob.top;
        let floor = 1.0 - self.context.settings.max_slowdown_ratio;
        let reachable = self.reachable_rate(phase).zip(self.seek.hour.due_rate).map_or(f64::INFINITY, |(rate, due)| rate / due);
        if ratio >= (floor + if free { HOUR_SLACK } else { -0.5 * HOUR_SLACK }).min(reachable - HOUR_NOISE) {
            return None;
        }
        let why = format!("compensates for the cost of restarts: {:.1} % of the throughput in the last hour", 100.0 * ratio);
        Some(if free { SeekStep::Stay(why) } else { self.turn(self.knob.top, why) })
    }

    fn candidate(&self, to: LayoutKey, phase: &JobPhase, floor: f64, score: f64, settled: bool) -> Option<LayoutCandidate> {
        let settings = self.context.settings;
        let phases = &self.seek.phases;
        let known = self.measured_score(phase, to, Some(floor)).filter(|known| known.feasible);
        // A layout that is still being explored is only left for one that was measured to be better.
        if known.is_none() && (!settled || self.was_tried(phase, to)) {
            return None;
        }
        let (estimate, setting) = match known {
            Some(known) => (known.score, known.setting),
            None => self.estimated_score(phase, to, floor)?,
        };
        let gain_in = |there: f64, here: f64| if here.is_finite() { 1.0 - there / here } else { 1.0 };
        let gain = gain_in(estimate, score);
        let total = self.future_seconds();
        let dwell = phases.dwell_seconds(self.now).unwrap_or(settings.horizon_seconds).min(total);
        // The other phases count if both layouts were measured in them.
        let elsewhere: f64 = phases
            .others()
            .filter_map(|other| {
                let (there, here) =
                    (self.measured_score(other, to, None)?, self.measured_score(other, self.operating_point.layout_key, None)?);
                Some(phases.time_share(other, self.now) * gain_in(there.score, here.score))
            })
            .sum();
        let mean = phases.time_share(phase, self.now) * gain.min(1.0) + elsewhere;
        let saved = gain.min(1.0) * dwell + mean * (total - dwell);
        let restart = self.state.rollout_seconds.unwrap_or(settings.restart_seconds) + settings.redone_seconds;
        let cost = if known.is_some() { restart } else { 2.0 * restart };
        // A trial that does not help is left for whatever is worth the restart.
        let least = if known.is_some() && self.reverts_trial(to) { 0.0 } else { settings.layout_gain_ratio };
        let enough = gain.max(saved / total.max(1.0)) >= least;
        (enough && saved.is_finite()).then_some(LayoutCandidate {
            to,
            setting,
            measured: known.is_some(),
            compares: false,
            gain,
            worth: saved - cost,
        })
    }

    /// Going to the starting layout to see what throughput it would have in this phase. If that is not known, more is demanded
    /// than perhaps need be, and energy is spent on it.
    fn comparison(&self, base: LayoutKey, phase: &JobPhase, floor: f64, score: f64) -> Option<LayoutCandidate> {
        let settings = self.context.settings;
        let phases = &self.seek.phases;
        if phase.free_rate(base, self.knob, settings.reference_windows).is_some() {
            return None;
        }
        let free = |phase: &JobPhase, layout_key: LayoutKey| phase.free_rate(layout_key, self.knob, settings.seek_windows);
        let (mut sum, mut weights) = (AHEAD.ln(), 1.0);
        for other in phases.others() {
            let (Some(there), Some(here)) = (free(other, self.operating_point.layout_key), free(other, base)) else { continue };
            let weight = phase_similarity(phase, other, self.knob.top);
            sum += weight * (there / here).ln();
            weights += weight;
        }
        let ahead = (sum / weights).exp();
        let relaxed = phase.curve(self.operating_point.layout_key, self.knob)?.best(floor / ahead.max(1.0), settings.objective);
        let gain = 1.0 - relaxed.expected.score(settings.objective) / score;
        let total = self.future_seconds();
        let dwell = phases.dwell_seconds(self.now).unwrap_or(settings.horizon_seconds).min(total);
        let restart = self.state.rollout_seconds.unwrap_or(settings.restart_seconds) + settings.redone_seconds;
        // While it is compared, energy is spent as without any controller.
        let window = 60.0 * f64::from(settings.reference_windows + settings.warm_up_windows);
        let cost = 2.0 * restart + 0.3 * window;
        let saved = gain * dwell + gain * phases.time_share(phase, self.now) * (total - dwell);
        let enough = gain >= settings.layout_gain_ratio;
        let compares =
            LayoutCandidate { to: base, setting: self.knob.top, measured: false, compares: true, gain, worth: saved - cost };
        enough.then_some(compares)
    }

    /// Returns the seconds that the job will go on: as it reports, else as long as it has gone on, at least the horizon.
    fn future_seconds(&self) -> f64 {
        let horizon = self.context.settings.horizon_seconds;
        let lasted = self.now.seconds_since(self.seek.began).clamp(horizon, FUTURE_SECONDS_MAX.max(horizon));
        self.context.remaining_seconds.filter(|seconds| seconds.is_finite()).unwrap_or(lasted).max(0.0)
    }

    fn was_tried(&self, phase: &JobPhase, layout_key: LayoutKey) -> bool {
        phase.points.iter().any(|p| p.layout_key == layout_key && p.windows >= self.context.settings.seek_windows)
    }

    /// Returns the measured score of a layout in a phase; `None` if it was not measured there.
    fn measured_score(&self, phase: &JobPhase, layout_key: LayoutKey, floor: Option<f64>) -> Option<MeasuredLayout> {
        if !self.was_tried(phase, layout_key) {
            return None;
        }
        let base = self.seek.base?;
        let settings = self.context.settings;
        let floor = match floor {
            Some(floor) => floor,
            None => {
                self.seek.throughput_floor(self.seek.reference_throughput(phase, base.layout_key, self.knob, settings)?, settings)
            }
        };
        let curve = phase.curve(layout_key, self.knob)?;
        let best = curve.best_measured(floor, settings.objective);
        if best.feasible {
            return Some(MeasuredLayout {
                score: best.expected.score(settings.objective),
                setting: best.setting,
                feasible: true,
            });
        }
        let fastest = curve.fastest();
        let short = floor / fastest.samples_per_second;
        Some(MeasuredLayout { score: fastest.score(settings.objective) * short.powi(2), setting: best.setting, feasible: false })
    }

    /// Returns the estimated score of a layout that was never tried in this phase, and the setting to begin with. The estimate
    /// is from other phases, those that draw alike before the others, and a chance that shrinks with every other layout that
    /// was tried.
    fn estimated_score(&self, phase: &JobPhase, to: LayoutKey, floor: f64) -> Option<(f64, f64)> {
        let mut spots: Vec<LayoutKey> = phase.points.iter().map(|point| point.layout_key).collect();
        spots.sort_by_key(|layout_key| (layout_key.replicas, layout_key.threads));
        spots.dedup();
        let barred = |layout_key: &LayoutKey| self.seek.barred.iter().any(|barred| barred.layout_key == *layout_key);
        let measured = spots
            .iter()
            .filter(|layout_key| !barred(layout_key))
            .filter_map(|layout_key| Some((*layout_key, self.measured_score(phase, *layout_key, Some(floor))?)));
        let (anchor, known) = measured.min_by(|(_, a), (_, b)| a.score.total_cmp(&b.score))?;
        let tried = spots.len().saturating_sub(1) as i32;
        let chance = (1.0 - self.context.settings.expected_saving_ratio * 0.5_f64.powi(tried)).ln();
        let (mut sum, mut weights) = (CHANCE * chance, CHANCE);
        for other in self.seek.phases.others() {
            let (Some(there), Some(here)) = (self.measured_score(other, to, None), self.measured_score(other, anchor, None))
            else {
                continue;
            };
            let weight = phase_similarity(phase, other, self.knob.top);
            sum += weight * (there.score / here.score).ln();
            weights += weight;
        }
        Some((known.score * (sum / weights).exp(), known.setting))
    }
}

/// Returns the weight of one phase for another: 1 if both draw the same power with nothing held back, as far as is known.
fn phase_similarity(a: &JobPhase, b: &JobPhase, top: f64) -> f64 {
    let watts = |phase: &JobPhase| phase.points.iter().filter(|p| p.setting >= top).map(|p| p.watts).reduce(f64::max);
    watts(a).zip(watts(b)).map_or(1.0, |(a, b)| (-(a / b).ln().abs() / ALIKE).exp())
}

fn describe_layout(layout_key: LayoutKey) -> String {
    format!("{} replicas at {} %", layout_key.replicas, layout_key.threads)
}

#[cfg(test)]
mod tests {
    use eadt_schemas::EventTime;
    use eadt_schemas::v1::LayoutBounds;

    use super::super::by_hand::{FREE, HERE, OTHER, SeekFixture, SettingFigures, THIRD, phases};
    use super::super::{SeekChange, TabuLayout};
    use super::*;
    use crate::controller::testing::layout;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9 * b.abs().max(1.0)
    }

    /// 12 J/sample here without a cap, 10 J in the other layout.
    const BOTH: &[SettingFigures] = &[(HERE, FREE, 1_200.0, 100.0, 8), (OTHER, FREE, 1_200.0, 120.0, 8)];
    const FREE_HERE: &[SettingFigures] = &[(HERE, FREE, 1_200.0, 100.0, 8)];

    /// At the starting layout without a cap, in the first of these phases, with so many seconds of the job left.
    fn desk(remaining: f64, all: &[&[SettingFigures]]) -> SeekFixture {
        let mut desk = SeekFixture::new(FREE, all);
        desk.bench.remaining_seconds = Some(remaining);
        desk.bench.workload.bounds = LayoutBounds::default();
        desk
    }

    /// How long the phases lasted on past visits; the present one has just begun.
    fn lasted(desk: &mut SeekFixture, seconds: &[f64]) {
        let mut phases = serde_json::to_value(&desk.seek.phases).unwrap();
        for (phase, seconds) in phases["all"].as_array_mut().unwrap().iter_mut().zip(seconds) {
            phase["seconds"] = (*seconds).into();
            phase["visits"] = 1.into();
            phase["entered"] = serde_json::to_value(desk.bench.now).unwrap();
        }
        desk.seek.phases = serde_json::from_value(phases).unwrap();
    }

    /// Returns the worth of changing to a layout from here, where a sample takes 12 J.
    fn candidate(desk: &SeekFixture, to: LayoutKey, settled: bool) -> Option<LayoutCandidate> {
        desk.view(|view| view.candidate(to, view.seek.phases.present().unwrap(), 93.0, 12.0, settled))
    }

    #[test]
    fn a_job_goes_on_as_it_reports_or_as_long_as_it_has_gone_on() {
        let future = |remaining: Option<f64>, began: f64, horizon: f64| {
            let mut desk = desk(0.0, &[FREE_HERE]);
            desk.bench.remaining_seconds = remaining;
            desk.bench.settings.horizon_seconds = horizon;
            desk.seek.began = desk.bench.now.plus_seconds(-began);
            desk.view(|view| view.future_seconds())
        };
        assert_eq!(
            [Some(5_000.0), Some(-1.0), Some(1e9)].map(|remaining| future(remaining, 20_000.0, 14_400.0)),
            [5_000.0, 0.0, 1e9]
        );
        for unknown in [None, Some(f64::INFINITY), Some(f64::NAN)] {
            assert_eq!(future(unknown, 20_000.0, 14_400.0), 20_000.0);
        }
        assert_eq!(future(None, 100.0, 14_400.0), 14_400.0);
        assert_eq!(future(None, 1e7, 14_400.0), 604_800.0, "a week at the most");
        assert_eq!(future(None, 1e7, 700_000.0), 700_000.0);
    }

    #[test]
    fn phases_are_alike_by_their_power_with_nothing_held_back() {
        let alike = |other: &[SettingFigures]| {
            let desk = desk(0.0, &[BOTH, other]);
            desk.view(|view| {
                phase_similarity(view.seek.phases.present().unwrap(), view.seek.phases.others().next().unwrap(), FREE)
            })
        };
        let drawing = |watts| (HERE, FREE, watts, 50.0, 3);
        assert!(near(alike(&[drawing(1_200.0)]), 1.0));
        for factor in [0.15_f64.exp(), (-0.15_f64).exp()] {
            assert!(near(alike(&[drawing(1_200.0 * factor)]), (-1.0_f64).exp()));
        }
        // Its greatest power counts, and not that under a cap.
        assert!(near(alike(&[drawing(600.0), (OTHER, FREE, 1_200.0, 60.0, 3), (THIRD, 399.0, 2_000.0, 60.0, 3)]), 1.0));
        assert!(near(alike(&[(HERE, 300.0, 600.0, 50.0, 3)]), 1.0), "nothing is known of it");
    }

    #[test]
    fn what_is_known_of_a_layout_is_its_best_setting_or_what_more_speed_would_cost() {
        let measured: &[SettingFigures] =
            &[(HERE, FREE, 1_200.0, 100.0, 8), (HERE, 330.0, 990.0, 95.0, 3), (OTHER, FREE, 1_200.0, 120.0, 2)];
        let known = |spot, floor| {
            let found = desk(0.0, &[measured]).view(|view| view.measured_score(view.seek.phases.present().unwrap(), spot, floor));
            found.map(|known| (known.score, known.setting, known.feasible))
        };
        let (score, setting, feasible) = known(HERE, Some(95.0)).unwrap();
        assert!(near(score, 990.0 / 95.0) && setting == 330.0 && feasible, "{score} {setting}");
        // 5 % too slow even without a cap: 1.05² of its energy.
        let (score, setting, feasible) = known(HERE, Some(105.0)).unwrap();
        assert!(near(score, 12.0 * 1.05_f64.powi(2)) && setting == FREE && !feasible, "{score} {setting}");
        // Without a required throughput, 93 % of the starting layout's is required.
        assert_eq!(known(HERE, None), known(HERE, Some(93.0)));
        assert_eq!((known(OTHER, Some(93.0)), known(THIRD, Some(93.0))), (None, None), "two windows are too few");
    }

    #[test]
    fn a_layout_that_was_never_tried_has_a_chance_that_shrinks_and_does_what_it_did_elsewhere() {
        let estimate = |all: &[&[SettingFigures]]| {
            desk(0.0, all).view(|view| view.estimated_score(view.seek.phases.present().unwrap(), THIRD, 93.0))
        };
        // 5 % less than the best one, half as much once another one was tried.
        let (score, setting) = estimate(&[FREE_HERE]).unwrap();
        assert!(near(score, 12.0 * 0.95) && setting == FREE, "{score}");
        assert!(near(estimate(&[BOTH]).unwrap().0, 10.0 * 0.975));
        // In a phase with the same power it took half of this one's time: that counts twice as much as the chance.
        let half = [(HERE, FREE, 1_200.0, 100.0, 8), (THIRD, FREE, 1_200.0, 200.0, 3)];
        let expected = 12.0 * ((0.5 * 0.95_f64.ln() + 0.5_f64.ln()) / 1.5).exp();
        assert!(near(estimate(&[FREE_HERE, &half]).unwrap().0, expected));
        // One that draws 15 % more weighs a third as much.
        let more = 0.15_f64.exp();
        let unlike = half.map(|(spot, setting, watts, rate, windows)| (spot, setting, watts * more, rate, windows));
        let part = (-1.0_f64).exp();
        let expected = 12.0 * ((0.5 * 0.95_f64.ln() + part * 0.5_f64.ln()) / (0.5 + part)).exp();
        assert!(near(estimate(&[FREE_HERE, &unlike]).unwrap().0, expected));
        assert!(estimate(&[&[(HERE, FREE, 1_200.0, 100.0, 2)]]).is_none(), "there is nothing to compare it with");
    }

    #[test]
    fn a_change_is_worth_what_it_saves_in_the_time_that_is_left_less_its_restarts() {
        // A sixth of 10,000 s, less 120 s for the restart and 60 s of work that is done again.
        let known = candidate(&desk(10_000.0, &[BOTH]), OTHER, true).unwrap();
        assert!(known.measured && !known.compares && known.to == OTHER && known.setting == FREE, "{known:?}");
        assert!(near(known.gain, 1.0 / 6.0) && near(known.worth, 10_000.0 / 6.0 - 180.0), "{known:?}");
        // One that was never tried may have to be taken back.
        let unknown = candidate(&desk(10_000.0, &[BOTH]), THIRD, true).unwrap();
        let gain = 1.0 - 9.75 / 12.0;
        assert!(!unknown.measured && near(unknown.gain, gain) && near(unknown.worth, 10_000.0 * gain - 360.0), "{unknown:?}");
        // Restarts take as long as they did last.
        let mut measured = desk(10_000.0, &[BOTH]);
        measured.bench.state.rollout_seconds = Some(500.0);
        assert!(near(candidate(&measured, OTHER, true).unwrap().worth, 10_000.0 / 6.0 - 560.0));
        // While this one is still being explored, only a measured better one is chosen.
        assert!(candidate(&desk(10_000.0, &[BOTH]), OTHER, false).is_some());
        assert!(candidate(&desk(10_000.0, &[BOTH]), THIRD, false).is_none());
        // One that was tried and is too slow is no choice, and one that gains less than 2 % is not worth a word.
        let slow = [BOTH[0], (OTHER, FREE, 900.0, 90.0, 8)];
        assert!(candidate(&desk(10_000.0, &[&slow]), OTHER, true).is_none());
        let rate = |joules: f64| [BOTH[0], (OTHER, FREE, 1_200.0, 1_200.0 / joules, 8)];
        assert!(candidate(&desk(1e6, &[&rate(11.77)]), OTHER, true).is_none());
        assert!(candidate(&desk(1e6, &[&rate(11.75)]), OTHER, true).is_some());
    }

    #[test]
    fn the_time_after_this_phase_is_that_of_all_phases() {
        // In the other phase the other layout takes a fifth more, and it made up three quarters of the time.
        let elsewhere = [(HERE, FREE, 1_000.0, 100.0, 8), (OTHER, FREE, 1_200.0, 100.0, 8)];
        let mut desk = desk(10_000.0, &[BOTH, &elsewhere]);
        lasted(&mut desk, &[1_000.0, 3_000.0]);
        let found = candidate(&desk, OTHER, true).unwrap();
        // 1,000 s as this phase lasted before, and then 9,000 s of a quarter of a sixth saved and three quarters of a fifth lost.
        let saved = 1_000.0 / 6.0 + 9_000.0 * (0.25 / 6.0 - 0.75 * 0.2);
        assert!(near(found.gain, 1.0 / 6.0) && near(found.worth, saved - 180.0), "{found:?}, not {saved}");
        // A layout that was not measured in a phase has no figures there.
        desk.seek.phases = phases(0, &[BOTH, &elsewhere[..1]]);
        lasted(&mut desk, &[1_000.0, 3_000.0]);
        let found = candidate(&desk, OTHER, true).unwrap();
        assert!(near(found.worth, 1_000.0 / 6.0 + 9_000.0 * 0.25 / 6.0 - 180.0), "{found:?}");
    }

    #[test]
    fn a_layout_is_worth_a_lot_where_this_one_cannot_be_fast_enough() {
        let desk = desk(10_000.0, &[BOTH]);
        let found =
            desk.view(|view| view.candidate(OTHER, view.seek.phases.present().unwrap(), 110.0, f64::INFINITY, true)).unwrap();
        assert!(near(found.gain, 1.0) && near(found.worth, 10_000.0 - 180.0), "{found:?}");
    }

    /// A layout that is not the starting one, which is faster than need be.
    const PRESENT: &[SettingFigures] =
        &[(OTHER, FREE, 1_200.0, 120.0, 8), (OTHER, 330.0, 990.0, 114.0, 8), (OTHER, 270.0, 810.0, 108.0, 8)];

    /// Returns the worth of comparing with the starting layout, where 110 samples/s are required and a sample takes 10 J.
    fn comparison(others: &[&[SettingFigures]]) -> Option<LayoutCandidate> {
        let all: Vec<_> = std::iter::once(PRESENT).chain(others.iter().copied()).collect();
        desk(10_000.0, &all).at(OTHER).view(|view| view.comparison(HERE, view.seek.phases.present().unwrap(), 112.0, 9.0))
    }

    #[test]
    fn the_starting_layout_is_gone_to_where_knowing_it_may_allow_more() {
        // This one is a tenth ahead of it, if no phase shows it: 101.8 samples/s would be demanded instead of 112.
        let found = comparison(&[]).unwrap();
        assert!(found.compares && !found.measured && found.to == HERE && found.setting == FREE, "{found:?}");
        let relaxed = |floor: f64| {
            let desk = desk(0.0, &[PRESENT]);
            let knob = desk.knob();
            let curve = desk.seek.phases.present().unwrap().curve(OTHER, &knob).unwrap();
            curve.best(floor, crate::controller::ControllerObjective::Energy).expected.joules_per_sample()
        };
        let gain = |ahead: f64| 1.0 - relaxed(112.0 / ahead) / 9.0;
        assert!(near(found.gain, gain(1.1)) && found.gain > 0.1, "{found:?}");
        // Less two restarts with work done again, and nine windows at a third more power.
        assert!(near(found.worth, 10_000.0 * found.gain - 2.0 * 180.0 - 0.3 * 540.0), "{found:?}");
        // 1,000 s as this phase lasted before, and a quarter of the time after it.
        let mut later = desk(10_000.0, &[PRESENT, &[(HERE, 300.0, 900.0, 95.0, 8)]]).at(OTHER);
        lasted(&mut later, &[1_000.0, 3_000.0]);
        let worth = later.view(|view| view.comparison(HERE, view.seek.phases.present().unwrap(), 112.0, 9.0)).unwrap().worth;
        assert!(near(worth, 3_250.0 * found.gain - 2.0 * 180.0 - 0.3 * 540.0), "{worth}");
        // A phase in which it was ahead by less weighs as much as that guess.
        let ahead = |rate| [(OTHER, FREE, 1_200.0, rate, 3), (HERE, FREE, 1_200.0, 100.0, 3)];
        let mean = |rate: f64| (1.1 * rate / 100.0).sqrt();
        assert!(near(comparison(&[&ahead(104.0)]).unwrap().gain, gain(mean(104.0))));
        // If it was behind there, no more than its throughput is required.
        assert!(near(comparison(&[&ahead(60.0)]).unwrap().gain, gain(1.0)));
        // A measured layout needs no comparison.
        let mut measured = desk(10_000.0, &[BOTH]).at(OTHER);
        assert!(measured.view(|view| view.comparison(HERE, view.seek.phases.present().unwrap(), 112.0, 10.0)).is_none());
        measured.seek.phases = phases(0, &[&[BOTH[1], (HERE, FREE, 1_200.0, 100.0, 7)]]);
        assert!(measured.view(|view| view.comparison(HERE, view.seek.phases.present().unwrap(), 112.0, 100.0)).is_some());
    }

    /// Returns the next layout, at 12 J/sample and without a better setting.
    fn other_layout(desk: &SeekFixture, feasible: bool, settled: bool) -> Option<(LayoutKey, f64, String)> {
        let knob = desk.knob();
        let phase = desk.seek.phases.present().unwrap();
        let expected = phase.curve(desk.operating_point.layout_key, &knob).unwrap().estimate_at(desk.operating_point.setting);
        let here = BestSetting { setting: desk.operating_point.setting, expected, feasible, settled };
        match desk.view(|view| view.other_layout(view.seek.phases.present().unwrap(), 93.0, &here, settled)) {
            Some(SeekStep::Move { to, setting, why }) => Some((to, setting, why)),
            None => None,
            step => panic!("{step:?}"),
        }
    }

    #[test]
    fn the_layout_of_the_greatest_worth_is_gone_to_and_the_reason_is_given() {
        let (to, setting, why) = other_layout(&desk(10_000.0, &[FREE_HERE]), true, true).unwrap();
        assert_eq!((to, setting), (THIRD, FREE));
        assert_eq!(why, "9 replicas at 30 % is expected to save 5.0 %, which is worth a restart");
        // What was measured to be better comes before what may be better still.
        for remaining in [5_000.0, 10_000.0, 1e6] {
            let (to, _, why) = other_layout(&desk(remaining, &[BOTH]), true, true).unwrap();
            assert_eq!((to, why.as_str()), (OTHER, "6 replicas at 100 % is better by 16.7 %"));
        }
        // Nothing is worth the restarts in half an hour.
        assert_eq!(other_layout(&desk(1_000.0, &[BOTH]), true, true), None);
        // While this one is explored, it may still become better by a twentieth.
        let (to, _, why) = other_layout(&desk(10_000.0, &[BOTH]), true, false).unwrap();
        assert_eq!((to, why.as_str()), (OTHER, "6 replicas at 100 % is better by 12.3 %"));
        let (_, _, why) = other_layout(&desk(10_000.0, &[BOTH]), false, true).unwrap();
        assert_eq!(why, "this layout is too slow in this phase, 6 replicas at 100 % is not");
        let (_, _, why) = other_layout(&desk(10_000.0, &[FREE_HERE]), false, true).unwrap();
        assert_eq!(why, "this layout is too slow in this phase, 9 replicas at 30 % may not be");
    }

    #[test]
    fn a_layout_that_is_better_in_other_phases_is_gone_to_though_it_is_not_in_this_one() {
        let here = [(HERE, FREE, 1_200.0, 100.0, 8), (OTHER, FREE, 1_250.0, 100.0, 8)];
        let elsewhere = [(HERE, FREE, 1_200.0, 100.0, 8), (OTHER, FREE, 600.0, 100.0, 8)];
        let mut desk = desk(100_000.0, &[&here, &elsewhere]);
        lasted(&mut desk, &[1_000.0, 3_000.0]);
        desk.seek.barred =
            [THIRD, LayoutKey { replicas: 3, threads: 100 }, LayoutKey { replicas: 12, threads: 25 }].map(bar).to_vec();
        let (to, _, why) = other_layout(&desk, true, true).unwrap();
        assert_eq!((to, why.as_str()), (OTHER, "6 replicas at 100 % is better over all phases, though not in this one"));
    }

    #[test]
    fn a_layout_that_was_not_tried_here_may_be_gone_to_for_what_it_saves_elsewhere() {
        // It takes 5 % more than this one where as much is drawn, and a quarter of its energy in the phase that lasts.
        let alike = [(HERE, FREE, 1_200.0, 100.0, 8), (THIRD, FREE, 1_200.0, 95.0, 8)];
        let elsewhere = [(HERE, FREE, 12_000.0, 100.0, 8), (THIRD, FREE, 12_000.0, 400.0, 8)];
        let mut desk = desk(100_000.0, &[FREE_HERE, &alike, &elsewhere]);
        lasted(&mut desk, &[1_000.0, 1_000.0, 10_000.0]);
        desk.seek.barred =
            [OTHER, LayoutKey { replicas: 3, threads: 100 }, LayoutKey { replicas: 12, threads: 25 }].map(bar).to_vec();
        let (to, _, why) = other_layout(&desk, true, true).unwrap();
        assert_eq!((to, why.as_str()), (THIRD, "9 replicas at 30 % is better over all phases, though not in this one"));
    }

    #[test]
    fn the_starting_layout_is_seen_in_a_phase_in_which_it_never_was() {
        let desk = |barred: &[LayoutKey]| {
            let mut desk = desk(10_000.0, &[&[BOTH[1]]]).at(OTHER);
            desk.seek.barred = barred.iter().copied().map(bar).collect();
            desk.operating_point.setting = 395.0;
            desk
        };
        let others = [
            THIRD,
            LayoutKey { replicas: 3, threads: 100 },
            LayoutKey { replicas: 12, threads: 25 },
            LayoutKey { replicas: 6, threads: 50 },
        ];
        let goes = |barred: &[LayoutKey]| {
            let desk = desk(barred);
            let knob = desk.knob();
            let expected = desk.seek.phases.present().unwrap().curve(OTHER, &knob).unwrap().estimate_at(FREE);
            let here = BestSetting { setting: FREE, expected, feasible: true, settled: true };
            match desk.view(|view| view.other_layout(view.seek.phases.present().unwrap(), 112.0, &here, true)) {
                Some(SeekStep::Move { to, why, .. }) => Some((to, why)),
                _ => None,
            }
        };
        let (to, why) = goes(&others[..3]).unwrap();
        assert_eq!(to, HERE);
        assert!(why.starts_with("the layout with 6 replicas at 50 % was never measured in this phase: "), "{why}");
        assert_eq!(goes(&others), None);
    }

    #[test]
    fn without_gpus_there_is_no_other_layout() {
        let mut none = desk(5_000.0, &[BOTH]);
        none.bench.workload.gpus = Some(0);
        assert_eq!(other_layout(&none, true, true), None);
    }

    /// At a layout of this throughput without a limit, after an hour of it.
    fn after_an_hour(rate: f64) -> SeekFixture {
        let others = [BOTH[0], (OTHER, FREE, 1_500.0, rate, 8), (THIRD, FREE, 1_100.0, 100.0, 8)];
        let mut desk = desk(100_000.0, &[&others]).at(OTHER);
        let (end, due) = (desk.bench.now, 100.0);
        desk.seek.hour.due_rate = Some(due);
        for minute in (0..60).rev() {
            let start = end.plus_seconds(-60.0 * f64::from(minute + 1));
            desk.seek.hour.add(start, start.plus_seconds(60.0), 60.0 * rate, 60.0 * due);
        }
        desk
    }

    #[test]
    fn a_restart_waits_for_no_more_than_an_hour_of_this_layout_can_have() {
        // 180 s of work are needed, and 0.92 of an hour are owed.
        let leaves = |desk: &SeekFixture, to: LayoutKey| {
            desk.view(|view| {
                let phase = view.seek.phases.present().unwrap();
                let step = SeekStep::Move { to, setting: FREE, why: "it is better".into() };
                (view.may_restart_into(to, phase, true), view.when_affordable(step, phase, true))
            })
        };
        let goes = |rate: f64, to: LayoutKey| {
            let (may, step) = leaves(&after_an_hour(rate), to);
            may && matches!(step, SeekStep::Move { .. })
        };
        assert!(goes(98.0, HERE) && goes(98.0, THIRD));
        // At 95 % no hour has it: only the way back is gone.
        assert!(goes(95.0, HERE) && !goes(95.0, THIRD) && goes(92.5, HERE));
        // Restarts of five minutes fit into no hour of any layout.
        let mut slow = after_an_hour(100.0);
        slow.bench.settings.restart_seconds = 300.0;
        assert!(!leaves(&slow, THIRD).0 && leaves(&slow, HERE).0);
        // A way back waits while the hour is worse than this layout, and its trial is not judged until it is left.
        let mut behind = after_an_hour(95.0);
        let (now, due) = (behind.bench.now, 6_000.0);
        behind.seek.hour.add(now.plus_seconds(-180.0), now, 0.0, 3.0 * due);
        let (_, step) = leaves(&behind, HERE);
        assert!(matches!(&step, SeekStep::Measure(why) if why.starts_with("a restart waits until")), "{step:?}");
        behind.operating_point.setting = 380.0;
        assert!(matches!(leaves(&behind, HERE).1, SeekStep::Turn { to, .. } if to == FREE));
        // A hot GPU is not turned up.
        let hot = behind.view(|view| {
            view.hot = true;
            view.may_raise()
        });
        assert!(!hot);
    }

    #[test]
    fn a_slow_layout_does_not_make_up_for_what_it_can_never_do() {
        let makes_up = |desk: &SeekFixture| desk.view(|view| view.make_up(view.seek.phases.present().unwrap()).is_some());
        assert!(!makes_up(&after_an_hour(95.0)) && !makes_up(&after_an_hour(93.0)));
        let mut faster = after_an_hour(93.0);
        faster.seek.phases = phases(0, &[&[BOTH[0], (OTHER, FREE, 1_500.0, 96.0, 8)]]);
        assert!(makes_up(&faster));
    }

    #[test]
    fn a_trial_that_was_turned_down_too_far_is_turned_up_and_not_reverted() {
        let leaves = |windows: u32, rate: f64| {
            let points = [BOTH[0], (OTHER, 339.0, 1_000.0, 97.0, windows), (OTHER, 254.0, 760.0, rate, 1)];
            let mut desk = desk(100_000.0, &[&points]).at(OTHER);
            desk.operating_point.setting = 254.0;
            desk.seek.trial = Some(SeekChange {
                id: "t".into(),
                from: layout(6, 50, 3),
                to: layout(6, 100, 3),
                generation: 1,
                hold_out: false,
                revert: false,
            });
            desk.view(|view| view.leave_slow_trial(view.seek.phases.present().unwrap(), view.seek.base.unwrap()))
        };
        let step = leaves(3, 75.0).unwrap();
        let SeekStep::Turn { to, why } = &step else { panic!("{step:?}") };
        assert!((300.0..=339.0).contains(to) && why == "75 % of the throughput is too low: the limit is raised", "{step:?}");
        assert!(matches!(leaves(2, 75.0), Some(SeekStep::Move { to: HERE, .. })), "it was never fast enough");
        assert_eq!(leaves(3, 93.0), None);
    }

    fn bar(spot: LayoutKey) -> TabuLayout {
        TabuLayout { layout_key: spot, until: EventTime::from_seconds(0.0), why: String::new() }
    }

    #[test]
    fn one_restart_is_kept_for_the_way_back_and_what_is_barred_is_not_gone_to() {
        let restarts = |used: u32, allowed: Option<u32>, of_hybrid: u32| {
            let mut desk = desk(5_000.0, &[BOTH]);
            for n in 0..used {
                desk.bench.state.count_restart(desk.bench.now, n.to_string());
            }
            desk.bench.workload.bounds.restarts_per_day_max = allowed;
            desk.bench.settings.hybrid_restarts_per_day_max = of_hybrid;
            desk
        };
        let goes = |desk: &SeekFixture| other_layout(desk, true, true).map(|(to, ..)| to);
        assert_eq!((goes(&restarts(3, None, 5)), goes(&restarts(4, None, 5))), (Some(OTHER), None));
        assert_eq!((goes(&restarts(1, Some(3), 5)), goes(&restarts(2, Some(3), 5))), (Some(OTHER), None), "the lesser of both");
        assert_eq!(goes(&restarts(0, Some(8), 1)), None);
        // The rollback goes to the kept layout.
        let mut back = restarts(4, None, 5);
        back.seek.trial = Some(SeekChange {
            id: "t".into(),
            from: layout(6, 100, 3),
            to: layout(6, 50, 3),
            generation: 1,
            hold_out: false,
            revert: false,
        });
        assert_eq!(goes(&back), Some(OTHER));
        // A trial that was reverted is no layout to go back to.
        if let Some(trial) = &mut back.seek.trial {
            trial.revert = true;
        }
        assert_eq!(goes(&back), None);
        let mut barred = restarts(0, None, 5);
        barred.seek.barred = vec![bar(OTHER)];
        assert_eq!(goes(&barred), None, "a tabu layout promises nothing of the others");
        barred.bench.remaining_seconds = Some(100_000.0);
        assert_eq!(goes(&barred), Some(THIRD), "the next best");
        // The last one is for the starting layout, too.
        let costly = [BOTH[0], (OTHER, FREE, 1_500.0, 100.0, 8), (THIRD, FREE, 1_100.0, 100.0, 8)];
        let mut other = desk(100_000.0, &[&costly]).at(OTHER);
        assert_eq!(goes(&other), Some(THIRD));
        for n in 0..4 {
            other.bench.state.count_restart(other.bench.now, n.to_string());
        }
        assert_eq!(goes(&other), Some(HERE));
        other.bench.state.count_restart(other.bench.now, "4".into());
        assert_eq!(goes(&other), None);
    }

    #[test]
    fn a_little_too_slow_a_layout_is_taken_at_the_price_of_more_speed_while_it_is_explored() {
        // 12 J/sample at 95 % of the required throughput, with higher settings still to try.
        let step = |setting: f64, floor: f64, settled: bool| {
            let desk = desk(1e6, &[&[(HERE, 350.0, 1_200.0, 100.0, 8), (OTHER, FREE, 1_300.0, 130.0, 8)]]);
            let phase = desk.seek.phases.present().unwrap();
            let knob = desk.knob();
            let expected = phase.curve(HERE, &knob).unwrap().estimate_at(350.0);
            let here = BestSetting { setting, expected, feasible: false, settled };
            let mut desk = desk;
            desk.operating_point.setting = 350.0;
            match desk.view(|view| view.other_layout(view.seek.phases.present().unwrap(), floor, &here, settled)) {
                Some(SeekStep::Move { why, .. }) => why,
                step => format!("{step:?}"),
            }
        };
        // 10 J of 12 J · 1.05 · 0.95.
        assert_eq!(step(FREE, 105.0, false), "6 replicas at 100 % is better by 16.5 %");
        assert_eq!(
            step(FREE, 119.0, false),
            format!("6 replicas at 100 % is better by {:.1} %", 100.0 - 1_000.0 / (12.0 * 1.19 * 0.95))
        );
        let given_up = "this layout is too slow in this phase, 6 replicas at 100 % is not";
        assert_eq!(step(350.0, 105.0, false), given_up, "it is no higher");
        assert_eq!(step(FREE, 121.0, false), given_up, "a fifth is too much");
        assert_eq!(step(FREE, 105.0, true), given_up, "it is at its best");
    }
}
