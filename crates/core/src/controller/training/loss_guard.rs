//! Guard of the validation loss of a job with frozen blocks, by the trend before them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::trend::{LossTrend, TRUSTED};

/// The newest evaluations whose mean is compared, besides that of fewer of them.
const AVERAGED: usize = 4;
/// Evaluations that are kept for the trend.
const KEPT_EVALUATIONS: usize = 64;
/// Evaluations before this part of the steps follow no curve yet: loss falls fast.
const UNSETTLED: f64 = 0.1;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LossGuard {
    trend: Option<LossTrend>,
    /// Steps of the last evaluation that the trend was made of.
    anchor_steps: f64,
    /// Excess of the loss over the trend before this one, as a ratio, when this trend began, and its uncertainty.
    carried_ratio: f64,
    carried_uncertainty_ratio: f64,
    /// Steps of the last evaluation that the guard compared.
    guarded_steps: f64,
    /// Excesses of the newest evaluations over the trend, as ratios, oldest first.
    excesses: VecDeque<f64>,
    /// Excess of the last evaluation that the guard compared with this trend or the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared_ratio: Option<f64>,
}

/// How far the mean loss of the newest evaluations is above the trend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LossRise {
    pub evaluations: usize,
    /// As a part of the loss.
    pub ratio: f64,
    /// Limit of what an unchanged job may show in 95 % of cases: the trend's uncertainty and the scatter of the evaluations.
    pub uncertainty_ratio: f64,
}

impl LossRise {
    /// Returns whether the rise exceeds a limit by more than its uncertainty.
    pub fn exceeds(&self, limit_ratio: f64) -> bool {
        self.certain_ratio() > limit_ratio
    }

    fn certain_ratio(&self) -> f64 {
        self.ratio - self.uncertainty_ratio
    }
}

/// Returns the least rise of the loss, as a ratio, that the mean of the newest evaluations can detect at the end of a trend over
/// `steps` steps.
pub(super) fn resolution_ratio(trend: &LossTrend, steps: f64) -> f64 {
    trend.uncertainty_ratio(TRUSTED * steps).hypot(trend.scatter_ratio / (AVERAGED as f64).sqrt())
}

/// Returns the evaluations, each of steps and loss, that may follow a curve.
pub(super) fn settled(evaluations: &VecDeque<(f64, f64)>) -> Vec<(f64, f64)> {
    let last = evaluations.back().map_or(0.0, |(steps, _)| *steps);
    evaluations.iter().copied().filter(|(steps, _)| *steps >= UNSETTLED * last).collect()
}

/// Removes an evaluation if they are too many: one that has not settled, or the one with the nearest neighbours.
pub(super) fn thin_out(evaluations: &mut VecDeque<(f64, f64)>) {
    let (Some((first, _)), Some((last, _))) = (evaluations.front(), evaluations.back()) else { return };
    if evaluations.len() <= KEPT_EVALUATIONS {
        return;
    }
    if *first < UNSETTLED * last {
        evaluations.pop_front();
        return;
    }
    let neighbours = evaluations.iter().zip(evaluations.iter().skip(2)).map(|((before, _), (after, _))| after - before);
    if let Some((before, _)) = neighbours.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b)) {
        evaluations.remove(before + 1);
    }
}

impl LossGuard {
    /// Begins to compare with a trend that ends at so many steps.
    pub fn begin(&mut self, trend: LossTrend, steps: f64) {
        *self = Self { trend: Some(trend), anchor_steps: steps, guarded_steps: self.guarded_steps, ..Self::default() };
    }

    pub fn trend(&self) -> Option<LossTrend> {
        self.trend
    }

    /// Returns how far a loss is above the trend, as a part of it; `None` before the trend's end.
    pub fn excess(&self, steps: f64, loss: f64) -> Option<f64> {
        let excess = self.carried_ratio + loss / self.trend?.at(steps) - 1.0;
        (steps > self.anchor_steps && excess.is_finite()).then_some(excess)
    }

    /// Compares a new evaluation: returns the rise that is the most certain one; `None` if it was compared before.
    pub fn compare(&mut self, steps: f64, loss: f64) -> Option<LossRise> {
        let excess = self.excess(steps, loss).filter(|_| steps > self.guarded_steps)?;
        (self.guarded_steps, self.compared_ratio) = (steps, Some(excess));
        self.excesses.push_back(excess);
        if self.excesses.len() > AVERAGED {
            self.excesses.pop_front();
        }
        let rises = (1..=self.excesses.len()).filter_map(|evaluations| self.rise(evaluations, steps));
        rises.max_by(|a, b| a.certain_ratio().total_cmp(&b.certain_ratio()))
    }

    /// Returns the excess of the last evaluation that was compared, if it is after so many steps.
    pub fn compared_after(&self, steps: f64) -> Option<f64> {
        self.compared_ratio.filter(|_| self.guarded_steps > steps)
    }

    /// Returns the mean rise of the newest evaluations.
    fn rise(&self, evaluations: usize, steps: f64) -> Option<LossRise> {
        let trend = self.trend?;
        let count = evaluations as f64;
        let ratio = self.excesses.iter().rev().take(evaluations).sum::<f64>() / count;
        let of_mean = trend.scatter_ratio / count.sqrt();
        let uncertainty_ratio = self.carried_uncertainty_ratio.hypot(trend.uncertainty_ratio(steps)).hypot(of_mean);
        Some(LossRise { evaluations, ratio, uncertainty_ratio })
    }

    /// Forgets the newest evaluations, which were made with other blocks frozen.
    pub fn forget_excesses(&mut self) {
        self.excesses.clear();
    }

    /// Returns whether the trend does not hold that far ahead.
    pub fn is_trend_spent(&self, steps: f64) -> bool {
        steps >= TRUSTED * self.anchor_steps
    }

    /// Goes on with a new trend; the mean rise of the newest evaluations is carried over.
    pub fn continue_with(&mut self, trend: LossTrend, steps: f64) {
        if let Some(rise) = self.rise(self.excesses.len().max(1), steps) {
            self.carried_ratio = rise.ratio.max(0.0);
            self.carried_uncertainty_ratio = rise.uncertainty_ratio;
        }
        self.excesses.clear();
        (self.trend, self.anchor_steps) = (Some(trend), steps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::training::learning_curves::{Curve, Noise, family};

    const RISE: f64 = 0.005;
    const STEPS: f64 = 4_000.0;

    /// A job that evaluates at constant distances and freezes as soon as the guard can see a rise, after a quarter of its steps.
    struct GuardedRun {
        curve: Curve,
        evaluations: u32,
        noise: f64,
        /// Part by which loss is higher after the freeze.
        excess: f64,
        seed: u64,
    }

    #[derive(Debug, Default)]
    struct RunOutcome {
        froze: bool,
        /// Evaluations after the freeze until it was reverted.
        reverted_after: Option<u32>,
    }

    impl GuardedRun {
        fn run(&self) -> RunOutcome {
            let (mut noise, mut guard) = (Noise(self.seed), LossGuard::default());
            let (mut known, mut outcome, mut compared) = (VecDeque::new(), RunOutcome::default(), 0);
            for k in 1..=self.evaluations {
                let steps = STEPS * f64::from(k) / f64::from(self.evaluations);
                let excess = if outcome.froze { self.excess } else { 0.0 };
                let loss = self.curve.at(steps) * (1.0 + excess) * (1.0 + self.noise * noise.next());
                compared += u32::from(outcome.froze);
                if guard.compare(steps, loss).is_some_and(|rise| rise.exceeds(RISE)) {
                    outcome.reverted_after = Some(compared);
                    return outcome;
                }
                known.push_back((steps, loss));
                thin_out(&mut known);
                let may_freeze = !outcome.froze && (0.25 * STEPS..0.9 * STEPS).contains(&steps);
                if !(may_freeze || outcome.froze && guard.is_trend_spent(steps)) {
                    continue;
                }
                let Some(trend) = LossTrend::fit(&settled(&known)) else { continue };
                if outcome.froze {
                    guard.continue_with(trend, steps);
                } else if resolution_ratio(&trend, steps) <= RISE {
                    guard.begin(trend, steps);
                    outcome.froze = true;
                }
            }
            outcome
        }
    }

    /// Returns the runs of the family that froze.
    fn runs(noise: f64, excess: f64, evaluations: u32, seed: u64) -> Vec<RunOutcome> {
        let curves = family(STEPS / 4.0).into_iter().zip(seed..);
        let all = curves.map(|(curve, seed)| GuardedRun { curve, evaluations, noise, excess, seed: seed * 7_919 }.run());
        all.filter(|outcome| outcome.froze).collect()
    }

    fn reverted(all: &[RunOutcome]) -> usize {
        all.iter().filter(|outcome| outcome.reverted_after.is_some()).count()
    }

    #[test]
    fn a_job_that_is_as_good_as_before_is_left_alone() {
        for (noise, most) in [(0.0, 0.0), (0.0002, 0.0), (0.0005, 0.01), (0.001, 0.02)] {
            let all: Vec<_> = [(40, 1), (120, 1_000)].into_iter().flat_map(|(n, seed)| runs(noise, 0.0, n, seed)).collect();
            let reverts = reverted(&all);
            println!("noise {noise}: {reverts} of {} runs were reverted", all.len());
            assert!(all.len() > 100 && reverts as f64 <= most * all.len() as f64, "{noise}: {reverts} of {}", all.len());
        }
    }

    #[test]
    fn a_loss_that_is_higher_is_found_within_four_evaluations() {
        for (noise, excess, least) in [(0.0, 0.01, 1.0), (0.0005, 0.01, 0.98), (0.001, 0.01, 0.9), (0.001, 0.015, 0.98)] {
            let all = runs(noise, excess, 40, 1);
            let found = all.iter().filter(|outcome| outcome.reverted_after.is_some_and(|after| after <= 4)).count();
            println!("noise {noise}, {excess} higher: {found} of {} runs were reverted within 4 evaluations", all.len());
            assert!(all.len() > 50 && found as f64 >= least * all.len() as f64, "{noise}, {excess}: {found} of {}", all.len());
        }
    }

    #[test]
    fn what_scatters_more_than_the_guard_can_see_is_not_frozen() {
        assert!(runs(0.01, 0.0, 40, 1).is_empty());
    }

    #[test]
    fn evaluations_are_thinned_out_evenly() {
        let mut known = VecDeque::new();
        for k in 1..=1_000 {
            known.push_back((f64::from(k), 1.0));
            thin_out(&mut known);
        }
        assert_eq!((known.len(), known.back()), (KEPT_EVALUATIONS, Some(&(1_000.0, 1.0))));
        let kept = settled(&known);
        let gap = kept.windows(2).map(|pair| pair[1].0 - pair[0].0).fold(0.0, f64::max);
        assert!(kept.len() > 30 && kept[0].0 < 200.0 && gap <= 64.0, "{} {kept:?}", kept.len());
    }
}
