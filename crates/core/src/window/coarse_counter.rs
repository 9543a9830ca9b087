//! Energy counters whose rises are far apart, as of power distribution units and smart plugs: where power is known, it counts instead.
//!
//! A rise shows when a step was full, not when its energy was drawn. It comes early or late by up to the time between two samples, or
//! by a step of the counter. So power known throughout a wait gives its energy better than the rise at its end. Taking the larger of
//! both, or one of them by turns, would count too much: a balance over all rises shows how far the energy that counted is from the
//! counter's, and rises that count later make up for it.

use eadt_schemas::EventTime;

use super::counter::{COARSE_SECONDS, CounterStep, EnergyCounterVerdict};

/// Rises in a row after no more than the longest gap of power, after which a counter counts itself again. With fewer, early rises would
/// count by the counter and late ones by power, and windows would differ by their turns.
const SOONER_RISES: u32 = 20;
/// A counter that does not rise for so many of its steps is stuck.
const STEPS_OF_STALL: f64 = 2.0;
/// Step of a counter that has not risen yet, at most, in joules: 0.1 kWh. Until then it is not known to be stuck.
const UNSEEN_STEP_JOULES: f64 = 360e3;
/// Most of a rise that makes up for the balance: a rise in a window of its own leaves energy in it.
const MOST_OF_RISE: f64 = 0.5;

/// What is known about how far apart the rises of one source's counter are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CoarseCounter {
    /// Seconds for which the counter has not risen although power was drawn; 0: it rose last.
    pub stalled_seconds: f64,
    /// Power counts instead of the counter.
    pub counts_by_power: bool,
    /// Its newest rise after a standstill of [`COARSE_SECONDS`] or longer, in joules of the whole device; 0 if there was none.
    pub rise_after_stall: f64,
    /// Rises in a row that came no later than after the longest gap of power.
    pub sooner_rises: u32,
    /// Joules that counted beyond those of the counter, up to its newest rise; negative if fewer did. At most one rise.
    pub balance: f64,
    /// Seconds of standstill before its newest believed sample: its next rise is of this time as well.
    pub still_seconds: f64,
    /// Joules that the next reading of power is expected to show up to its newest rise, and that count as given.
    pub expected: f64,
    /// When a rise was withheld first since its newest believed sample, until power shows the time up to it.
    pub withheld_since: Option<EventTime>,
    /// It has not risen since the source began anew, for example for another tenure.
    pub begins_anew: bool,
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
            EnergyCounterVerdict::Stalled => self.stalled_seconds = step.seconds,
            EnergyCounterVerdict::Contradicted => (self.counts_by_power, self.balance) = (false, 0.0),
            EnergyCounterVerdict::Believed | EnergyCounterVerdict::FirstRise if raw > 0.0 => {
                self.note_rise(step, raw);
                let is_late = step.seconds > gap_seconds;
                let may_replace = power_known && step.is_live;
                if is_late && may_replace && self.stalled_seconds >= COARSE_SECONDS {
                    (self.counts_by_power, self.sooner_rises) = (true, 0);
                } else if !is_late {
                    self.sooner_rises = self.sooner_rises.saturating_add(1);
                }
                let evidence = step.evidence().filter(|_| self.counts_by_power && may_replace);
                self.counts_by_power &= self.sooner_rises < SOONER_RISES;
                return self.count_by_power(step.joules, evidence, verdict);
            }
            EnergyCounterVerdict::Believed | EnergyCounterVerdict::FirstRise => {}
        }
        false
    }

    /// Keeps the size of the newest rise after a standstill, while rises are not far smaller.
    fn note_rise(&mut self, step: &CounterStep, raw: f64) {
        if self.stalled_seconds > 0.0 && step.seconds >= COARSE_SECONDS {
            self.rise_after_stall = raw;
        } else if raw < self.rise_after_stall * 0.5 {
            self.rise_after_stall = 0.0;
        }
    }

    /// Adds a wait that may count by power, and the rise at its end, to the balance. Returns whether it counts by power.
    fn count_by_power(&mut self, rise: f64, by_power: Option<f64>, verdict: EnergyCounterVerdict) -> bool {
        self.begins_anew = false;
        if verdict == EnergyCounterVerdict::FirstRise {
            // How much of it is of the time before the first sample is not known.
            self.balance = 0.0;
            return false;
        }
        if let Some(joules) = by_power {
            let most = self.most_balance(rise);
            self.balance = (self.balance + joules - rise).clamp(-most, most);
        }
        by_power.is_some()
    }

    /// Returns the most joules of a balance, at a rise: a step of the counter.
    fn most_balance(&self, rise: f64) -> f64 {
        if self.rise_after_stall > 0.0 { self.rise_after_stall } else { rise.max(0.0) }
    }

    /// Takes a rise that counts in the place of power. Returns the joules by which less of it counts, or more if negative.
    pub fn take_off(&mut self, rise: f64) -> f64 {
        // Only a counter in coarse steps has any: one that was away for long is exact from then on.
        let most = if self.rise_after_stall > 0.0 { rise * MOST_OF_RISE } else { 0.0 };
        let taken = self.balance.clamp(-most, most);
        self.balance -= taken;
        taken
    }

    /// Takes a rise after a wait that is too long for it to replace power, or in which the source was silent. Power gave `known` joules
    /// in it. Returns the joules that the rise adds.
    pub fn take_excess(&mut self, rise: f64, known: f64) -> f64 {
        let new = rise - known - self.balance;
        self.balance = (-new).clamp(0.0, self.most_balance(rise));
        new.max(0.0)
    }

    /// Takes note that a reading of power showed the time up to its newest rise, or that none came in time.
    pub fn settle_expected(&mut self, came: bool) {
        let missing = std::mem::take(&mut self.expected);
        if !came {
            self.balance -= missing;
        }
    }

    /// Returns whether a standstill, in which power gave so many joules, is no longer than the counter's steps explain; `share`: of
    /// the device; `has_risen`: its steps could have shown.
    pub fn explains_standstill(&self, by_power: f64, share: f64, has_risen: bool) -> bool {
        let step = if has_risen { self.rise_after_stall * STEPS_OF_STALL } else { UNSEEN_STEP_JOULES };
        by_power <= step * share
    }
}
