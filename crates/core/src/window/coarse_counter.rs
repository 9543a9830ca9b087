//! Energy counters in coarse steps, as of power distribution units and smart plugs: power counts between two rises that are far
//! apart, and each rise corrects it.

use super::counter::{COARSE_SECONDS, CounterStep, EnergyCounterVerdict, LONG_RUN_FACTOR, MIN_EVIDENCE_WATTS};

/// Part of the difference between a coarse counter and power beyond one step that the power until the next rise makes up for. A rise
/// is early or late by up to the time between two samples, so that the whole difference would move windows to and fro.
const CORRECTED_PART: f64 = 0.25;

/// Two rises are of one step if the larger one is a whole multiple of the smaller one, to this part of it. A counter that is renewed
/// seldom stalls, too, but its rises have any size.
const STEP_TOLERANCE: f64 = 1e-3;
/// Most steps in a rise that shows the size of a step.
const MAX_MULTIPLE: f64 = 100.0;
/// Rises after a long stall that show that a counter has steps.
const RISES_OF_A_STEP: u32 = 3;
/// Rises in a row after shorter waits than the longest gap of power, after which a counter counts itself again.
const SOONER_RISES: u32 = 5;
/// A counter that does not rise for so many of its steps is stuck.
const STEPS_OF_STALL: f64 = 2.0;

/// Returns the step that two rises have in common; `None` if none shows.
fn common_step(a: f64, b: f64) -> Option<f64> {
    let (small, large) = (a.min(b), a.max(b));
    let steps = (large / small).round();
    let is_multiple = small > 0.0 && steps <= MAX_MULTIPLE && (large - steps * small).abs() <= STEP_TOLERANCE * small;
    is_multiple.then_some(small)
}

/// Returns whether a step ends a wait for the counter of at least [`COARSE_SECONDS`], without a silence.
fn is_coarse_wait(step: &CounterStep) -> bool {
    step.seconds >= COARSE_SECONDS && step.waiting && step.is_live
}

/// What is known about the steps of one source's counter.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CoarseCounter {
    /// The counter has not risen although power was drawn.
    pub is_stalled: bool,
    /// Power counts instead of the counter.
    pub counts_by_power: bool,
    /// Size of its steps, in joules of the whole device; 0 if none is known. It is a guess until [`RISES_OF_A_STEP`] rises had it.
    pub coarse_step: f64,
    /// Rises after a long stall that were whole multiples of it.
    pub step_rises: u32,
    /// Rises in a row that came sooner than after the longest gap of power.
    pub sooner_rises: u32,
    /// Joules of the whole device by a coarse counter beyond those that power gave. Up to one step of the counter is no difference.
    pub unsettled: f64,
    /// Part by which power counts more until its next rise, to make up for the difference.
    pub correction: f64,
}

impl CoarseCounter {
    /// Takes note of a step of the counter, by `raw` joules of the whole device. Returns whether it is a rise of a counter with steps
    /// so coarse that power counts until then. `power_known`: power is known since the rise before. `gap_seconds`: the longest
    /// gap of power; rises that come sooner replace power themselves.
    pub fn take_step(
        &mut self,
        step: &CounterStep,
        raw: f64,
        verdict: EnergyCounterVerdict,
        power_known: bool,
        gap_seconds: f64,
    ) -> bool {
        match verdict {
            EnergyCounterVerdict::Stalled => self.is_stalled = true,
            EnergyCounterVerdict::Contradicted => {
                self.step_rises = 0;
                self.count_by_counter();
            }
            EnergyCounterVerdict::Believed | EnergyCounterVerdict::FirstRise if raw > 0.0 => {
                let waited = self.is_stalled && is_coarse_wait(step);
                self.take_step_size(raw, waited);
                let waits_long = waited && power_known && step.seconds > gap_seconds;
                self.sooner_rises = if waits_long { 0 } else { self.sooner_rises.saturating_add(1) };
                if waits_long && self.step_rises >= RISES_OF_A_STEP {
                    self.counts_by_power = true;
                } else if self.sooner_rises >= SOONER_RISES {
                    self.count_by_counter();
                }
                let is_evidence = step.integral.is_some_and(|joules| joules >= MIN_EVIDENCE_WATTS * step.seconds);
                let is_usable = power_known && step.is_live && is_evidence && verdict == EnergyCounterVerdict::Believed;
                return self.counts_by_power && is_usable;
            }
            EnergyCounterVerdict::Believed | EnergyCounterVerdict::FirstRise => {}
        }
        false
    }

    /// Takes note of the size of the counter's steps from a rise; `waited`: after a long stall.
    fn take_step_size(&mut self, raw: f64, waited: bool) {
        if let Some(size) = common_step(raw, self.coarse_step) {
            self.coarse_step = size;
            self.step_rises = self.step_rises.saturating_add(u32::from(waited));
        } else {
            self.count_by_counter();
            (self.coarse_step, self.step_rises) = if waited { (raw, 1) } else { (0.0, 0) };
        }
    }

    /// Counts by the counter from now on.
    fn count_by_counter(&mut self) {
        (self.counts_by_power, self.correction) = (false, 0.0);
    }

    /// Forgets what counter and power differ by: the device has another tenant, or ended.
    pub fn forget_difference(&mut self) {
        self.count_by_counter();
        self.unsettled = 0.0;
    }

    /// Returns whether a wait for the counter, in which power gave so many joules, is no longer than its steps explain; `share`: of
    /// the device. A counter that is stuck or lost corrects power no more.
    pub fn check_wait(&mut self, by_power: f64, share: f64) -> bool {
        let is_usual = self.step_rises >= RISES_OF_A_STEP && by_power <= self.coarse_step * share * STEPS_OF_STALL;
        if !is_usual {
            self.correction = 0.0;
        }
        is_usual
    }

    /// Returns the factor on power: 1 unless a coarse counter corrects it.
    pub fn power_factor(&self) -> f64 {
        if self.counts_by_power { 1.0 + self.correction } else { 1.0 }
    }

    /// Counts a rise of a coarse counter, `share` of the device, for whose time power gave `by_power`, and corrects power until the
    /// next rise by a part of the difference that exceeds one step.
    pub fn settle(&mut self, rise: f64, by_power: f64, share: f64) {
        if share <= 0.0 {
            return;
        }
        self.unsettled += (rise - by_power) / share;
        let excess = (self.unsettled.abs() - self.coarse_step).max(0.0).copysign(self.unsettled);
        let uncorrected = by_power / self.power_factor() / share;
        let factor = 1.0 + CORRECTED_PART * excess / uncorrected.max(self.coarse_step);
        self.correction = factor.clamp(LONG_RUN_FACTOR.recip(), LONG_RUN_FACTOR) - 1.0;
    }
}
