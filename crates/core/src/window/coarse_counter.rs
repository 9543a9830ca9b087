//! Energy counters whose rises are far apart, as of power distribution units and smart plugs: where power is known, it counts instead.
//!
//! A rise shows when a step was full, not when its energy was drawn. It comes early or late by up to the time between two samples, or
//! by a step of the counter. So power known throughout a wait gives its energy better than the rise at its end. Taking the larger of
//! both, or one of them by turns, would count too much.

use super::counter::{COARSE_SECONDS, CounterStep, EnergyCounterVerdict};

/// Rises in a row after no more than the longest gap of power, after which a counter counts itself again. Fewer would let early rises
/// count by the counter and late ones by power, and so too much.
const SOONER_RISES: u32 = 20;
/// A counter that does not rise for so many of its steps is stuck.
const STEPS_OF_STALL: f64 = 2.0;
/// Step of a counter that has not risen yet, at most, in joules: 0.1 kWh. Until then it is not known to be stuck.
const UNSEEN_STEP_JOULES: f64 = 360e3;

/// What is known about how far apart the rises of one source's counter are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CoarseCounter {
    /// The counter has not risen although power was drawn.
    pub is_stalled: bool,
    /// Power counts instead of the counter.
    pub counts_by_power: bool,
    /// Its newest rise after a standstill of [`COARSE_SECONDS`] or longer, in joules of the whole device; 0 if there was none.
    pub rise_after_stall: f64,
    /// Rises in a row that came no later than after the longest gap of power.
    pub sooner_rises: u32,
    /// Joules by power beyond those of the counter over long waits, at most one rise: the next rise includes less that is new.
    pub surplus: f64,
    /// Power was unknown since its newest rise, or right before it: the next rise has joules of that time.
    pub after_unknown: bool,
}

impl CoarseCounter {
    /// Takes note of a step of the counter, by `raw` joules of the whole device. Returns whether power counts for the time since
    /// the rise before. `power_known`: it is known all of that time. `gap_seconds`: the longest gap of power.
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
            EnergyCounterVerdict::Contradicted => self.counts_by_power = false,
            EnergyCounterVerdict::Believed | EnergyCounterVerdict::FirstRise if raw > 0.0 => {
                self.note_rise(step, raw);
                let is_late = step.seconds > gap_seconds;
                let may_replace = power_known && step.is_live && !std::mem::take(&mut self.after_unknown);
                if is_late && may_replace && self.is_stalled {
                    (self.counts_by_power, self.sooner_rises) = (true, 0);
                } else if !is_late {
                    self.sooner_rises = self.sooner_rises.saturating_add(1);
                }
                let is_by_power = self.counts_by_power && may_replace && step.evidence().is_some();
                self.counts_by_power &= self.sooner_rises < SOONER_RISES;
                return is_by_power && verdict == EnergyCounterVerdict::Believed;
            }
            EnergyCounterVerdict::Believed | EnergyCounterVerdict::FirstRise => {}
        }
        false
    }

    /// Keeps the size of the newest rise after a standstill, while rises are not far smaller.
    fn note_rise(&mut self, step: &CounterStep, raw: f64) {
        if self.is_stalled && step.seconds >= COARSE_SECONDS {
            self.rise_after_stall = raw;
        } else if raw < self.rise_after_stall * 0.5 {
            self.rise_after_stall = 0.0;
        }
    }

    /// Takes a rise after a wait that is too long for it to replace power, and in which power gave `known` joules. Returns the joules
    /// that the rise adds.
    pub fn take_excess(&mut self, rise: f64, known: f64) -> f64 {
        let new = rise - known - self.surplus;
        self.surplus = (-new).clamp(0.0, rise.max(0.0));
        new.max(0.0)
    }

    /// Returns whether a standstill, in which power gave so many joules, is no longer than the counter's steps explain; `share`: of
    /// the device; `has_risen`: its steps could have shown.
    pub fn explains_standstill(&self, by_power: f64, share: f64, has_risen: bool) -> bool {
        let step = if has_risen { self.rise_after_stall * STEPS_OF_STALL } else { UNSEEN_STEP_JOULES };
        by_power <= step * share
    }
}
