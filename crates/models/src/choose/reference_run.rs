//! The distance of the reference from what the settings below it leave, for [`super::single_run`].
//!
//! Below the reference, time and power continue to it: by the line through the next two, of clocks also by the parabola through the next
//! three. A time above it goes with less power, as the board does less in a second, so that the energy is about the same. A clock may
//! also be above the knee of the voltage. From there its power rises up to the fourth power of the clock, and ever faster. A cap that
//! binds may be above the power that the work can use: from there time flattens, and power is still the cap.

use super::TuningKnob;
use super::glitch::{GlitchQuantity, NeighbourReach};
use super::single_run::SweepSetting;

/// Least distance of a contradiction, as a logarithm. Published references are up to 5.4 % above.
const DISTANCE_MIN: f64 = 0.055;
/// A time that is so far above that of the next lower setting contradicts it, whatever the board drew. Published ones are up to 7.0 %
/// above.
const SLOWER_DISTANCE_MIN: f64 = 0.08;
/// If a board draws less than this part of the next cap, no cap holds it, and other things than the cap decide its times.
const IDLE_RATIO: f64 = 0.25;
/// A step that is wider, as a logarithm, has room for a knee: of a clock in both time and power, of a cap in time.
const STEP_MAX: f64 = 0.15;
/// Largest exponent of the clock by which power follows it.
const LARGEST_EXPONENT: f64 = 4.0;
/// If a step of power, in watts per megahertz, is at most so many times the one below it, the voltage may have its floor there.
const FLOOR_RATIO: f64 = 1.2;

/// Time or power of a reference above what the settings below it leave, as logarithms.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReferenceExcess {
    pub(super) quantity: GlitchQuantity,
    /// The most that they leave.
    pub(super) most: f64,
    /// Distance of the quantity or of the energy, the lesser.
    pub(super) above: f64,
}

/// Returns how far the highest setting of a sweep is above what the others leave; `None` if it is within the least distance. A usual
/// reference continues as below; a possible one may be above a knee.
pub(super) fn reference_excess(
    knob: TuningKnob,
    sweep: &[SweepSetting],
    quantity: GlitchQuantity,
    reach: NeighbourReach,
) -> Option<ReferenceExcess> {
    let [first, rest @ ..] = sweep else { return None };
    let continued = |value: fn(&SweepSetting) -> f64| continued(knob, rest, first.setting, value);
    let is_cap = knob == TuningKnob::PowerLimitWatts;
    let next = rest.first()?;
    if is_cap && next.power < next.setting + IDLE_RATIO.ln() {
        return None;
    }
    if quantity == GlitchQuantity::Duration && first.duration - next.duration > SLOWER_DISTANCE_MIN {
        return Some(ReferenceExcess { quantity, most: next.duration, above: first.duration - next.duration });
    }
    if reach == NeighbourReach::Possible && first.setting - next.setting > STEP_MAX {
        return None;
    }
    let power = continued(|setting| setting.power)?;
    let most = match quantity {
        // Above two knees, of the voltage and of the memory, both are above.
        GlitchQuantity::Duration if !is_cap && first.power - power > DISTANCE_MIN => return None,
        GlitchQuantity::Duration => continued(|setting| setting.duration)?,
        GlitchQuantity::Power if is_cap || reach == NeighbourReach::Usual => power,
        GlitchQuantity::Power => power.max(steepest_power(rest, first.setting)?),
    };
    let energy = energy(first) - continued(energy)?;
    let above = energy.min(first.value(quantity) - most);
    (above > DISTANCE_MIN).then_some(ReferenceExcess { quantity, most, above })
}

fn energy(setting: &SweepSetting) -> f64 {
    setting.duration + setting.power
}

/// Returns the value to which the highest settings of a sweep continue at one above them.
fn continued(knob: TuningKnob, sweep: &[SweepSetting], at: f64, value: fn(&SweepSetting) -> f64) -> Option<f64> {
    let through = |count: usize| Some(polynomial(sweep.get(..count)?, at, value));
    let line = through(2)?;
    Some(if knob == TuningKnob::PowerLimitWatts { line } else { line.max(through(3)?) })
}

/// Returns the value at a setting by the polynomial through those at these settings.
fn polynomial(through: &[SweepSetting], at: f64, value: fn(&SweepSetting) -> f64) -> f64 {
    let term = |own: &SweepSetting| {
        let others = through.iter().map(|other| other.setting).filter(|other| *other != own.setting);
        others.fold(value(own), |term, other| term * (at - other) / (own.setting - other))
    };
    through.iter().map(term).sum()
}

/// Returns the most power of a clock above a sweep. The exponent by which power follows the clock grows from step to step as it did
/// below, or the voltage begins to rise with the clock.
fn steepest_power(sweep: &[SweepSetting], at: f64) -> Option<f64> {
    let steps: Vec<PowerStep> = sweep.windows(2).filter_map(PowerStep::of).collect();
    let [last, before, first, ..] = steps.as_slice() else { return None };
    let exponent = if last.is_as_flat_as(*before) || before.is_as_flat_as(*first) {
        LARGEST_EXPONENT
    } else {
        let growth = (last.exponent / before.exponent).max(before.exponent / first.exponent);
        LARGEST_EXPONENT.min(growth * last.exponent)
    };
    let highest = sweep.first()?;
    Some(highest.power + exponent * (at - highest.setting))
}

/// A step of power between two neighbours.
#[derive(Debug, Clone, Copy)]
struct PowerStep {
    /// Exponent of the clock by which power follows it.
    exponent: f64,
    watts_per_megahertz: f64,
}

impl PowerStep {
    fn of(pair: &[SweepSetting]) -> Option<Self> {
        let [high, low] = pair else { return None };
        Some(Self {
            exponent: (high.power - low.power) / (high.setting - low.setting),
            watts_per_megahertz: (high.power.exp() - low.power.exp()) / (high.setting.exp() - low.setting.exp()),
        })
    }

    /// Returns whether power rises about as the clock, as it does at one voltage.
    fn is_as_flat_as(self, below: Self) -> bool {
        below.watts_per_megahertz <= 0.0 || self.watts_per_megahertz <= FLOOR_RATIO * below.watts_per_megahertz
    }
}
