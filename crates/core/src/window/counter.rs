//! Checks whether an energy counter is valid: compares each rise with the integral of power over the same time, and with the
//! board's maximum.
//!
//! A counter is better than power wherever both are sound: it sees what happens between two readings. So a counter is refused
//! only if no power curve through the readings explains its rise. Every bound is generous; rises within them count unchanged.

use eadt_schemas::v1::Meter;
use serde::Deserialize;

use super::coarse_counter::CoarseCounter;

/// Mean power below which a power reading is no evidence, in watts. Every board that is on draws more: less is a
/// reading that is not supported, or a board that sleeps, and then its counter may not move.
const MIN_EVIDENCE_WATTS: f64 = 1.0;

/// Most that the counter may show, as a multiple of the power limit in force. Boards keep the limit within a second, but it may
/// have been higher when the step began. Caps go down to a quarter of the board's power (100 of 400 W on an A100).
const LIMIT_FACTOR: f64 = 4.0;

/// Ratio of counter and power that is within what averaging and sampling of power make of a sound pair over any length
/// of time. Boards that sample power a quarter of the time, or whose counter covers the whole module, stay below it.
const LONG_RUN_FACTOR: f64 = 3.0;

/// Ratio of a counter's first rise to power from which on it may contain energy of the time before its first sample.
const FIRST_RISE_FACTOR: f64 = 2.0;
/// And the joules beyond power from which on it may: boards renew their counters each 20 to 100 ms.
const FIRST_RISE_JOULES: f64 = 1_000.0;

/// Readings after which older evidence counts half: a counter that was repaired is believed again within some minutes.
const MAX_STEPS: u32 = 240;

/// Returns the most power that a metered device may draw if its limit is unknown, in watts: several times that of today's
/// devices.
fn ceiling_watts(meter: Meter) -> f64 {
    match meter {
        Meter::Gpu | Meter::Module => 10e3,
        Meter::Node => 200e3,
        Meter::Wall => 10e6,
    }
}

/// Returns the ratio up to which counter and power may differ over so many steps between two power readings. All of them may have
/// met the board idle while it worked in between.
///
/// The probability that `n` readings all miss work that takes the share `d` of the time is `(1 - d)^n`. It is below one in a
/// thousand from about `d = 7 / (n + 6)` on.
fn allowed_ratio(meter: Meter, steps: u32) -> f64 {
    let missed = (7.0 / (f64::from(steps) + 6.0)).min(1.0);
    (1.0 + (meter.highest_over_idle() - 1.0) * missed).max(LONG_RUN_FACTOR)
}

/// The metered thing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeteredBoard {
    pub meter: Meter,
    /// Power limit in force, in watts.
    pub limit_watts: Option<f64>,
}

impl MeteredBoard {
    /// Returns the power limit in force, in watts. One of 0 W is none.
    fn known_limit(&self) -> Option<f64> {
        self.limit_watts.filter(|watts| *watts > 0.0)
    }
}

/// The rules in force for counters whose rises are far apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CounterRules {
    /// See [`crate::FoldSettings::starts_coarse_counters_at_a_rise`].
    pub starts_at_a_rise: bool,
    /// See [`crate::FoldSettings::counts_coarse_counters_by_power`].
    pub counts_by_power: bool,
}

/// A change of the counter since its last valid reading, and the other readings of the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CounterStep {
    pub joules: f64,
    pub seconds: f64,
    /// Integral of power over the same time, in joules; if power is unknown in some of it, the newest reading of power over all
    /// of it by rules 6, and `None` before.
    pub integral: Option<f64>,
    /// Steps between two samples in it.
    pub steps: u32,
    /// An earlier sample of the same value was left out already.
    pub waiting: bool,
    /// The source was not silent in it.
    pub is_live: bool,
    /// The integral is that of a reading that is not of this time.
    pub is_held: bool,
    pub rules: CounterRules,
}

/// Returns whether joules by power over so many seconds are evidence for or against a counter.
pub fn is_evidence(joules: f64, seconds: f64) -> bool {
    joules >= MIN_EVIDENCE_WATTS * seconds
}

impl CounterStep {
    /// Returns the integral of power if it is evidence for or against a counter.
    pub fn evidence(&self) -> Option<f64> {
        self.integral.filter(|joules| is_evidence(*joules, self.seconds))
    }
}

/// A counter that moves more often is fine enough: a source that is read faster than its counter is renewed sees standstills, too.
pub(super) const COARSE_SECONDS: f64 = 10.0;

/// The verdict on a sample's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnergyCounterVerdict {
    Believed,
    /// It has not moved while power was drawn: as if the sample had no counter. The next rise shows whether it is slow
    /// or stuck.
    Stalled,
    /// It rose for the first time, after it had stood still: how much of that rise is of the time before its first sample
    /// is not known. Power counts, and the counter goes on from here.
    FirstRise,
    /// It fell, or it rose by what power and the board rule out: power counts, and the counter goes on from here.
    Contradicted,
}

/// The state of one source's counter.
///
/// By rules 4 `steps` is 0 until a rise was seen. `integral` is then what power gave while the counter stood still, and
/// 0 if it did not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct CounterCheck {
    /// Joules by the counter, and by power over the same time, in so many steps.
    #[serde(rename = "c")]
    pub counted: f64,
    #[serde(rename = "i")]
    pub integral: f64,
    #[serde(rename = "n")]
    pub steps: u32,
    /// Steps since the newest sample whose counter was believed.
    #[serde(rename = "w")]
    pub waiting_steps: u32,
    /// Power is unknown in some of these; by rules 7 also if none that follows can show it.
    #[serde(rename = "b")]
    pub power_unknown: bool,
    /// How far apart its rises are. No record in JSON has it.
    #[serde(skip)]
    pub coarse: CoarseCounter,
}

impl CounterCheck {
    /// Compares one change of the counter with power and the board, then all of the recent ones together.
    pub fn check_step(&mut self, step: &CounterStep, board: &MeteredBoard) -> EnergyCounterVerdict {
        let evidence = step.evidence();
        if step.joules < 0.0 {
            return EnergyCounterVerdict::Contradicted;
        }
        if step.joules == 0.0 {
            return self.check_standstill(step, evidence, board);
        }
        if let Some(integral) = evidence.filter(|integral| self.is_first_rise(step, *integral)) {
            // The rise itself is no evidence, for or against the counter.
            if self.steps == 0 {
                (self.counted, self.integral, self.steps) = (integral, integral, step.steps);
            }
            return EnergyCounterVerdict::FirstRise;
        }
        let limit = board.known_limit().map(|watts| watts * LIMIT_FACTOR);
        if step.joules > limit.unwrap_or_else(|| ceiling_watts(board.meter)) * step.seconds {
            return EnergyCounterVerdict::Contradicted;
        }
        let Some(integral) = evidence else { return EnergyCounterVerdict::Believed };
        let agree = |counted: f64, integral: f64, steps: u32| {
            let allowed = allowed_ratio(board.meter, steps);
            counted <= integral * allowed && integral <= counted * allowed
        };
        if !agree(step.joules, integral, step.steps) {
            return EnergyCounterVerdict::Contradicted;
        }
        if self.steps >= MAX_STEPS {
            (self.counted, self.integral, self.steps) = (self.counted * 0.5, self.integral * 0.5, self.steps / 2);
        }
        self.counted += step.joules;
        self.integral += integral;
        self.steps = self.steps.saturating_add(step.steps);
        if agree(self.counted, self.integral, self.steps) {
            EnergyCounterVerdict::Believed
        } else {
            EnergyCounterVerdict::Contradicted
        }
    }

    /// Notes a step in which the counter did not move.
    fn check_standstill(&mut self, step: &CounterStep, evidence: Option<f64>, board: &MeteredBoard) -> EnergyCounterVerdict {
        // A board draws power all the time: without any reading of it, what was drawn shows at the next rise. A machine may be off.
        let is_board = matches!(board.meter, Meter::Gpu | Meter::Module) || board.known_limit().is_some();
        let is_unknown = step.rules.counts_by_power && step.integral.is_none() && is_board;
        if !step.waiting && evidence.is_none() && !is_unknown {
            return EnergyCounterVerdict::Believed;
        }
        if let Some(integral) = evidence.filter(|_| step.rules.starts_at_a_rise && self.steps == 0) {
            self.integral = integral;
        }
        EnergyCounterVerdict::Stalled
    }

    /// Returns whether a rise is the first one of a counter that did not move for long before, or is more than power explains: some
    /// of it may be of the time before the first sample.
    fn is_first_rise(&self, step: &CounterStep, integral: f64) -> bool {
        if !(step.rules.starts_at_a_rise && step.is_live && self.has_not_risen()) {
            return false;
        }
        let was_constant = if self.steps == 0 { self.integral > 0.0 } else { self.coarse.stalled_seconds > 0.0 };
        let has_stalled = step.seconds >= COARSE_SECONDS && step.waiting && was_constant;
        let is_measured = step.rules.counts_by_power && !step.is_held;
        let may_replace = is_measured || !step.rules.counts_by_power;
        let is_more = step.joules > (integral * FIRST_RISE_FACTOR).max(integral + FIRST_RISE_JOULES);
        may_replace && has_stalled || is_measured && (self.begins_anew_coarse() || is_more)
    }

    /// Returns whether it has not risen yet, of a coarse counter since it began anew: where a fine one began is known.
    fn has_not_risen(&self) -> bool {
        self.steps == 0 || self.begins_anew_coarse()
    }

    fn begins_anew_coarse(&self) -> bool {
        self.coarse.begins_anew && self.coarse.rise_after_stall > 0.0
    }

    /// Returns whether power may count for a rise once it is known: power counts already, the rise comes late, or it is the first one
    /// after a standstill.
    pub fn may_be_replaced(&self, step: &CounterStep, gap_seconds: f64) -> bool {
        let is_first = self.coarse.stalled_seconds > 0.0 && self.has_not_risen();
        step.joules > 0.0 && (step.seconds > gap_seconds || self.coarse.counts_by_power || is_first)
    }

    /// Counts a step at whose end the counter is still not believed.
    pub fn count_waiting_step(&mut self, power_known: bool) {
        self.waiting_steps = self.waiting_steps.saturating_add(1);
        self.power_unknown |= !power_known;
    }

    /// Notes a verdict by which the counter goes on from the sample: the next rise is of the time since its newest one.
    pub fn note_standstill(&mut self, step: &CounterStep, verdict: EnergyCounterVerdict) {
        self.coarse.still_seconds = match verdict {
            EnergyCounterVerdict::Stalled => self.coarse.still_seconds,
            EnergyCounterVerdict::Believed if step.joules == 0.0 => self.coarse.still_seconds + step.seconds,
            _ => 0.0,
        };
    }

    /// Begins anew with a device that is another one's since, or after its end: the next rise is the first one.
    pub fn begin_anew(&mut self) {
        self.reset();
        (self.coarse.balance, self.coarse.still_seconds, self.coarse.begins_anew) = (0.0, 0.0, self.steps > 0);
        (self.coarse.withheld_since, self.coarse.expected) = (None, 0.0);
    }

    /// Resets the check: the counter was believed, or goes on from here.
    pub fn reset(&mut self) {
        (self.waiting_steps, self.power_unknown) = (0, false);
        self.coarse.stalled_seconds = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: MeteredBoard = MeteredBoard { meter: Meter::Gpu, limit_watts: None };
    const RULES_4: CounterRules = CounterRules { starts_at_a_rise: true, counts_by_power: false };
    const STEP: CounterStep = CounterStep {
        joules: 0.0,
        seconds: 1.0,
        integral: None,
        steps: 1,
        waiting: false,
        is_live: true,
        is_held: false,
        rules: RULES_4,
    };

    /// A counter in steps of 36 kJ that does not move for 40 s at 300 W, rises, and rises again 120 s later.
    #[test]
    fn the_first_rise_after_a_standstill_counts_by_power_and_the_next_by_the_counter() {
        use EnergyCounterVerdict::{Believed, FirstRise, Stalled};
        let verdicts = |starts_at_a_rise, falls| {
            let mut check = CounterCheck::default();
            let mut judge = |joules, seconds, waiting| {
                let step = CounterStep {
                    joules,
                    seconds,
                    integral: Some(300.0 * seconds),
                    steps: seconds as u32 / 10,
                    waiting,
                    rules: CounterRules { starts_at_a_rise, ..RULES_4 },
                    ..STEP
                };
                check.check_step(&step, &GPU)
            };
            if falls {
                judge(36_000.0, 120.0, true);
                assert_eq!(judge(-1.0, 10.0, false), EnergyCounterVerdict::Contradicted);
            }
            let steps =
                [(0.0, 10.0, false), (0.0, 30.0, true), (36_000.0, 40.0, true), (0.0, 10.0, false), (36_000.0, 120.0, true)];
            steps.map(|(joules, seconds, waiting)| judge(joules, seconds, waiting))
        };
        let anew = [Stalled, Stalled, FirstRise, Stalled, Believed];
        assert_eq!(verdicts(true, false), anew);
        let as_before = [Stalled, Stalled, Believed, Stalled, Believed];
        assert_eq!(verdicts(true, true), as_before, "a counter that fell keeps what is known against it");
        assert_eq!(verdicts(false, false), as_before, "by rules 3");
    }

    #[test]
    fn a_first_rise_without_power_across_a_silence_or_soon_is_the_counters() {
        let still = CounterStep { seconds: 10.0, integral: Some(3_000.0), ..STEP };
        let rise = CounterStep { joules: 12_000.0, seconds: 40.0, integral: Some(12_000.0), steps: 4, waiting: true, ..STEP };
        let cases = [
            (rise, EnergyCounterVerdict::FirstRise),
            (CounterStep { integral: None, ..rise }, EnergyCounterVerdict::Believed),
            (CounterStep { is_live: false, ..rise }, EnergyCounterVerdict::Believed),
            (CounterStep { joules: 2_700.0, seconds: 9.0, integral: Some(2_700.0), ..rise }, EnergyCounterVerdict::Believed),
        ];
        for (rise, verdict) in cases {
            let mut check = CounterCheck::default();
            assert_eq!(check.check_step(&still, &GPU), EnergyCounterVerdict::Stalled);
            assert_eq!(check.check_step(&rise, &GPU), verdict, "{rise:?}");
        }
        // Samples without the counter are no standstill.
        assert_eq!(CounterCheck::default().check_step(&rise, &GPU), EnergyCounterVerdict::Believed);
    }

    /// Returns the verdict on one step of so many joules in so many seconds, at so many watts of power.
    fn verdict(board: MeteredBoard, joules: f64, seconds: f64, watts: Option<f64>) -> EnergyCounterVerdict {
        let integral = watts.map(|watts| watts * seconds);
        let step = CounterStep { joules, seconds, integral, ..STEP };
        CounterCheck::default().check_step(&step, &board)
    }

    #[test]
    fn one_step_is_refused_if_no_board_and_no_power_curve_could_have_made_it() {
        let capped = |watts| MeteredBoard { limit_watts: Some(watts), ..GPU };
        let node = MeteredBoard { meter: Meter::Node, limit_watts: None };
        for (board, joules, seconds, watts, expected, why) in [
            (GPU, 3_000.0, 10.0, Some(300.0), EnergyCounterVerdict::Believed, "as power shows"),
            (GPU, 2_400.0, 10.0, Some(300.0), EnergyCounterVerdict::Believed, "a fifth below power"),
            (GPU, 5_000.0, 10.0, Some(60.0), EnergyCounterVerdict::Believed, "busy between two idle readings"),
            (GPU, 0.0, 10.0, Some(300.0), EnergyCounterVerdict::Stalled, "no movement at 300 W"),
            (GPU, 0.0, 10.0, Some(0.0), EnergyCounterVerdict::Believed, "idle at 0 W"),
            (GPU, 0.0, 10.0, None, EnergyCounterVerdict::Believed, "power is missing"),
            (GPU, 3_000.0, 10.0, Some(0.0), EnergyCounterVerdict::Believed, "power of 0 W is no evidence"),
            (GPU, 3_000.0, 10.0, None, EnergyCounterVerdict::Believed, "power is missing"),
            (GPU, 915_000.0, 5.0, Some(300.0), EnergyCounterVerdict::Contradicted, "183 kW"),
            (GPU, 915_000.0, 5.0, None, EnergyCounterVerdict::Contradicted, "183 kW, power is missing"),
            (node, 915_000.0, 5.0, Some(5_000.0), EnergyCounterVerdict::Contradicted, "183 kW of a server at 5 kW"),
            (node, 700_000.0, 5.0, Some(130_000.0), EnergyCounterVerdict::Believed, "a rack that is one node"),
            (GPU, 3_000_000.0, 10.0, Some(300.0), EnergyCounterVerdict::Contradicted, "millijoules taken as joules"),
            (GPU, 20_000.0, 10.0, Some(2.0), EnergyCounterVerdict::Contradicted, "the same of a small board"),
            (GPU, 3.0, 10.0, Some(300.0), EnergyCounterVerdict::Contradicted, "joules taken as millijoules"),
            (capped(400.0), 15_000.0, 10.0, Some(100.0), EnergyCounterVerdict::Believed, "the cap was higher before"),
            (capped(400.0), 17_000.0, 10.0, Some(300.0), EnergyCounterVerdict::Contradicted, "over four times the limit"),
            (capped(0.0), 5_000.0, 10.0, Some(300.0), EnergyCounterVerdict::Believed, "a limit of 0 W is none"),
            (GPU, -5.0, 10.0, Some(300.0), EnergyCounterVerdict::Contradicted, "a reset, or a wrap"),
        ] {
            assert_eq!(verdict(board, joules, seconds, watts), expected, "{why}");
        }
    }

    /// Returns how many of `n` equal steps of a second are accepted, and of the next `m` steps of another ratio.
    fn believed(n: u32, ratio: f64, m: u32, then: f64) -> (u32, u32) {
        let mut check = CounterCheck::default();
        let mut run = |count: u32, ratio: f64| {
            let step = CounterStep { joules: 300.0 * ratio, seconds: 1.0, integral: Some(300.0), ..STEP };
            (0..count).filter(|_| check.check_step(&step, &GPU) == EnergyCounterVerdict::Believed).count() as u32
        };
        (run(n, ratio), run(m, then))
    }

    #[test]
    fn a_factor_that_one_step_could_have_is_refused_if_it_lasts() {
        assert_eq!(believed(1_000, 1.0, 0, 1.0), (1_000, 0));
        assert_eq!(believed(1_000, 0.8, 0, 1.0), (1_000, 0), "slower than power by a fifth");
        assert_eq!(believed(1_000, 2.5, 0, 1.0), (1_000, 0), "a module's counter beside the GPU's power");
        // Five times too fast or too slow, as when the time between samples is taken for another one.
        assert_eq!((believed(1_000, 5.0, 0, 1.0).0, believed(1_000, 0.2, 0, 1.0).0), (44, 44));
        assert_eq!(believed(1_000, 50.0, 1_000, 1.0), (0, 1_000), "steps that are refused alone are no evidence");
        let (_, again) = believed(300, 5.0, 1_000, 1.0);
        assert!((600..1_000).contains(&again), "a repaired counter is believed again: {again}");
    }
}
