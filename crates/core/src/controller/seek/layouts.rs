//! Which other layout is worth a restart.
//!
//! Compared is the energy, or whatever the objective names, that a layout is expected to save, in this phase for as long as it is likely to go on and in the
//! other phases after that, with the time that its restart costs, and that of the way back where it was never tried. What was
//! measured counts as measured; a layout that was never tried in this phase is expected to do what it did in others, against
//! the best known one; and where nothing is known it is given a chance that shrinks with every other one that was tried.

use super::curve::{Best, Spot};
use super::phase::Phase;
use super::{Step, View};
use crate::controller::target::{self, Knobs};

/// The time that a job is taken to go on for where it does not say is no longer than this.
const FUTURE_SECONDS_MAX: f64 = 7.0 * 86_400.0;
/// While a layout is being explored it may still become better by this part.
const HOPE: f64 = 0.05;
/// A layout that lacks more than this factor of throughput at its first setting is given up.
const TOO_SLOW: f64 = 1.2;
/// Two phases whose power differs by this, as a logarithm, say a third as much about each other as equal ones.
const ALIKE: f64 = 0.15;
/// What nothing is known about weighs as much as this part of an equal phase.
const CHANCE: f64 = 0.5;
/// What a layout is taken to be ahead of the starting one by where no phase says.
const AHEAD: f64 = 1.1;

/// Score of a layout in a phase, at its best.
#[derive(Debug, Clone, Copy)]
struct Known {
    score: f64,
    setting: f64,
    /// It is fast enough. Where it is not, its score is what more speed would cost at least.
    feasible: bool,
}

#[derive(Debug)]
struct Candidate {
    to: Spot,
    setting: f64,
    measured: bool,
    /// It is gone to for comparison only.
    compares: bool,
    /// Part that is saved in this phase.
    gain: f64,
    /// Seconds of the present layout's energy, or whatever the objective names, that are saved, less what the restart costs.
    worth: f64,
}

impl View<'_> {
    /// The layout to go to, where one is worth it. `settled`: the present one is at its best.
    pub(super) fn other_layout(&self, phase: &Phase, floor: f64, here: &Best, settled: bool) -> Option<Step> {
        let gpus = self.workload.gpus.unwrap_or(self.gpus);
        let from = Knobs::of(&self.workload.layout).ok().filter(|_| gpus > 0)?;
        let settings = self.context.settings;
        let spot = self.stand.spot;
        let hope = if settled { 1.0 } else { 1.0 - HOPE };
        // What is a little too slow at a setting that was not meant for it may be fast enough at a higher one, at the price of
        // energy; what stays too slow is no choice, so anything that is fast enough is better.
        let short = floor / here.expected.samples_per_second;
        let feasible = here.feasible && short < 1.02;
        let here_score = here.expected.score(settings.objective);
        let score = match (feasible, settled) {
            (true, _) => here_score * hope,
            (false, false) if short < TOO_SLOW && here.setting > self.stand.setting => here_score * short * hope,
            _ => f64::INFINITY,
        };

        let used = self.state.restarts.len() as u32;
        let allowed = self.workload.bounds.restarts_per_day_max.unwrap_or(settings.restarts_per_day_max);
        let most = allowed.min(settings.hybrid_restarts_per_day_max);
        let came_from = self.seek.trial.as_ref().map(|trial| super::spot(&trial.from));

        let mut spots: Vec<Spot> = target::alternatives(from, gpus, self.workload, settings)
            .into_iter()
            .map(|knobs| Spot { replicas: knobs.replicas, threads: knobs.threads })
            .collect();
        let visited = phase.points.iter().map(|point| point.spot).chain(self.seek.base.map(|base| base.spot));
        for known in visited {
            if !spots.contains(&known) {
                spots.push(known);
            }
        }
        let mut best: Option<Candidate> = None;
        for to in spots {
            let affordable = used + if came_from == Some(to) { 1 } else { 2 } <= most;
            if to == spot || !affordable || self.seek.barred.iter().any(|barred| barred.spot == to) {
                continue;
            }
            let back = self.seek.base.filter(|base| base.spot == to && settled);
            let candidate = self.candidate(to, phase, floor, score, settled);
            let comparison = back.and_then(|base| self.comparison(base.spot, phase, floor, here_score));
            let better = |a: Candidate, b: Candidate| if b.worth > a.worth { b } else { a };
            let Some(candidate) = candidate.into_iter().chain(comparison).reduce(better) else { continue };
            if best.as_ref().is_none_or(|best| candidate.worth > best.worth) {
                best = Some(candidate);
            }
        }
        let best = best.filter(|best| best.worth > 0.0)?;
        let why = if best.compares {
            format!(
                "what {} would do in this phase was never measured: knowing it may save {:.1} %",
                words(best.to),
                100.0 * best.gain
            )
        } else if score.is_infinite() {
            format!("this layout is too slow here, {} {}", words(best.to), if best.measured { "is not" } else { "may not be" })
        } else if best.measured && best.gain > 0.0 {
            format!("{} is better by {:.1} %", words(best.to), 100.0 * best.gain.min(1.0))
        } else if best.measured || best.gain <= 0.0 {
            format!("{} is better over all phases, though not in this one", words(best.to))
        } else {
            format!("{} is expected to save {:.1} %, which is worth a restart", words(best.to), 100.0 * best.gain.min(1.0))
        };
        Some(Step::Move { to: best.to, setting: best.setting, why })
    }

    fn candidate(&self, to: Spot, phase: &Phase, floor: f64, score: f64, settled: bool) -> Option<Candidate> {
        let settings = self.context.settings;
        let phases = &self.seek.phases;
        let known = self.known(phase, to, Some(floor)).filter(|known| known.feasible);
        // A layout that is still being explored is only left for one that is known to be better.
        if known.is_none() && (!settled || self.tried(phase, to)) {
            return None;
        }
        let (estimate, setting) = match known {
            Some(known) => (known.score, known.setting),
            None => self.estimate(phase, to, floor)?,
        };
        let gain_in = |there: f64, here: f64| if here.is_finite() { 1.0 - there / here } else { 1.0 };
        let gain = gain_in(estimate, score);
        let total = self.future_seconds();
        let dwell = phases.dwell_seconds(self.now).unwrap_or(settings.horizon_seconds).min(total);
        // Of the other phases counts what was measured in both layouts.
        let elsewhere: f64 = phases
            .others()
            .filter_map(|other| {
                let (there, here) = (self.known(other, to, None)?, self.known(other, self.stand.spot, None)?);
                Some(phases.share(other, self.now) * gain_in(there.score, here.score))
            })
            .sum();
        let mean = phases.share(phase, self.now) * gain.min(1.0) + elsewhere;
        let saved = gain.min(1.0) * dwell + mean * (total - dwell);
        let restart = self.state.rollout_seconds.unwrap_or(settings.restart_seconds) + settings.redone_seconds;
        let cost = if known.is_some() { restart } else { 2.0 * restart };
        let enough = gain.max(saved / total.max(1.0)) >= settings.layout_gain_ratio;
        (enough && saved.is_finite()).then_some(Candidate {
            to,
            setting,
            measured: known.is_some(),
            compares: false,
            gain,
            worth: saved - cost,
        })
    }

    /// Going to the starting layout to see what throughput it would have in this phase. Where that is not known, more is
    /// demanded than perhaps need be, and energy is spent on it.
    fn comparison(&self, base: Spot, phase: &Phase, floor: f64, score: f64) -> Option<Candidate> {
        let settings = self.context.settings;
        let phases = &self.seek.phases;
        if phase.free_rate(base, self.knob, settings.reference_windows).is_some() {
            return None;
        }
        let free = |phase: &Phase, spot: Spot| phase.free_rate(spot, self.knob, settings.seek_windows);
        let (mut sum, mut weights) = (AHEAD.ln(), 1.0);
        for other in phases.others() {
            let (Some(there), Some(here)) = (free(other, self.stand.spot), free(other, base)) else { continue };
            let weight = alike(phase, other, self.knob.top);
            sum += weight * (there / here).ln();
            weights += weight;
        }
        let ahead = (sum / weights).exp();
        let relaxed = phase.curve(self.stand.spot, self.knob)?.best(floor / ahead.max(1.0), settings.objective);
        let gain = 1.0 - relaxed.expected.score(settings.objective) / score;
        let total = self.future_seconds();
        let dwell = phases.dwell_seconds(self.now).unwrap_or(settings.horizon_seconds).min(total);
        let restart = self.state.rollout_seconds.unwrap_or(settings.restart_seconds) + settings.redone_seconds;
        // While it is compared, energy is spent as without any controller.
        let window = 60.0 * f64::from(settings.reference_windows + settings.warm_up_windows);
        let cost = 2.0 * restart + 0.3 * window;
        let saved = gain * dwell + gain * phases.share(phase, self.now) * (total - dwell);
        let enough = gain >= settings.layout_gain_ratio;
        let compares = Candidate { to: base, setting: self.knob.top, measured: false, compares: true, gain, worth: saved - cost };
        enough.then_some(compares)
    }

    /// How long the job will go on: as it says, else as long as it has gone on, at least the horizon.
    fn future_seconds(&self) -> f64 {
        let horizon = self.context.settings.horizon_seconds;
        let lasted = self.now.seconds_since(self.seek.began).clamp(horizon, FUTURE_SECONDS_MAX.max(horizon));
        self.context.remaining_seconds.filter(|seconds| seconds.is_finite()).unwrap_or(lasted).max(0.0)
    }

    fn tried(&self, phase: &Phase, spot: Spot) -> bool {
        phase.points.iter().any(|p| p.spot == spot && p.windows >= self.context.settings.seek_windows)
    }

    /// What a layout was measured to do in a phase; `None` where it was not.
    fn known(&self, phase: &Phase, spot: Spot, floor: Option<f64>) -> Option<Known> {
        if !self.tried(phase, spot) {
            return None;
        }
        let base = self.seek.base?;
        let settings = self.context.settings;
        let floor = match floor {
            Some(floor) => floor,
            None => self.seek.floor(self.seek.reference(phase, base.spot, self.knob, settings)?, settings),
        };
        let curve = phase.curve(spot, self.knob)?;
        let best = curve.best_measured(floor, settings.objective);
        if best.feasible {
            return Some(Known { score: best.expected.score(settings.objective), setting: best.setting, feasible: true });
        }
        let fastest = curve.fastest();
        let short = floor / fastest.samples_per_second;
        Some(Known { score: fastest.score(settings.objective) * short.powi(2), setting: best.setting, feasible: false })
    }

    /// What a layout that was never tried in this phase may do, and the setting to begin with: what it did in other phases,
    /// those that draw alike before the others, and a chance that shrinks with every other layout that was tried.
    fn estimate(&self, phase: &Phase, to: Spot, floor: f64) -> Option<(f64, f64)> {
        let mut spots: Vec<Spot> = phase.points.iter().map(|point| point.spot).collect();
        spots.sort_by_key(|spot| (spot.replicas, spot.threads));
        spots.dedup();
        let measured = spots.iter().filter_map(|spot| Some((*spot, self.known(phase, *spot, Some(floor))?)));
        let (anchor, known) = measured.min_by(|(_, a), (_, b)| a.score.total_cmp(&b.score))?;
        let tried = spots.len().saturating_sub(1) as i32;
        let chance = (1.0 - self.context.settings.expected_saving_ratio * 0.5_f64.powi(tried)).ln();
        let (mut sum, mut weights) = (CHANCE * chance, CHANCE);
        for other in self.seek.phases.others() {
            let (Some(there), Some(here)) = (self.known(other, to, None), self.known(other, anchor, None)) else { continue };
            let weight = alike(phase, other, self.knob.top);
            sum += weight * (there.score / here.score).ln();
            weights += weight;
        }
        Some((known.score * (sum / weights).exp(), known.setting))
    }
}

/// How much one phase says about another: 1 where both draw the same power with nothing held back, as far as is known.
fn alike(a: &Phase, b: &Phase, top: f64) -> f64 {
    let watts = |phase: &Phase| phase.points.iter().filter(|p| p.setting >= top).map(|p| p.watts).reduce(f64::max);
    watts(a).zip(watts(b)).map_or(1.0, |(a, b)| (-(a / b).ln().abs() / ALIKE).exp())
}

fn words(spot: Spot) -> String {
    format!("{} replicas at {} %", spot.replicas, spot.threads)
}
