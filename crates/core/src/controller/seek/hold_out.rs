//! Hold-outs: a knob returns to the starting setting for a few windows now and then, so that what it saves is compared with a
//! fresh baseline. Bounded by the energy that they may cost.

use eadt_schemas::EventTime;
use serde::{Deserialize, Serialize};

use super::knob::SeekKnob;
use super::phase::{JobPhase, OperatingPoint};

/// Windows at the starting setting.
const WINDOWS: u32 = 3;
/// A baseline younger than this needs no hold-out, in seconds.
const AGE_SECONDS: f64 = 2.0 * 3600.0;

/// Energy that hold-outs cost so far, and the present hold-out.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HoldOuts {
    /// Energy of all usable windows.
    joules: f64,
    /// Energy that hold-outs took beyond that of the held setting.
    extra_joules: f64,
    /// Power beyond that of the held setting while the present one goes on.
    extra_watts: f64,
    /// Usable windows that are left of the present one.
    windows_left: u32,
    /// The decision that begins one, until it is applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    proposed: Option<String>,
}

impl HoldOuts {
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    /// Counts a usable window.
    pub fn count(&mut self, joules: f64, seconds: f64) {
        self.joules += joules;
        if self.windows_left > 0 {
            self.windows_left -= 1;
            self.extra_joules += self.extra_watts * seconds;
        }
    }

    /// Notes the decision that begins one, and the power that it takes beyond the held setting.
    pub fn propose(&mut self, decision_id: &str, extra_watts: f64) {
        (self.proposed, self.extra_watts) = (Some(decision_id.to_owned()), extra_watts);
    }

    /// Returns whether an applied change begins a hold-out.
    pub fn begin(&mut self, decision_id: &str) -> bool {
        let begins = self.proposed.take_if(|id| id == decision_id).is_some();
        self.windows_left = if begins { WINDOWS } else { 0 };
        begins
    }

    pub fn end(&mut self) {
        (self.windows_left, self.proposed) = (0, None);
    }

    /// Keeps the energy spent so far: the bound is the job's.
    pub fn of_new_start(self) -> Self {
        Self { joules: self.joules, extra_joules: self.extra_joules, ..Self::default() }
    }

    /// Returns why nothing is decided while one goes on.
    pub fn status_message(&self) -> Option<String> {
        let left = self.windows_left;
        (left > 0)
            .then(|| format!("hold-out: measures the baseline at the starting setting again, {left} of {WINDOWS} windows left"))
    }

    /// Returns what a hold-out takes beyond the held setting, in watts, and why it is due: the baseline of this phase is old, and
    /// the bound on energy allows it.
    pub fn due_hold_out(
        &self,
        phase: &JobPhase,
        operating_point: OperatingPoint,
        knob: &SeekKnob,
        energy_ratio: f64,
        now: EventTime,
    ) -> Option<(f64, String)> {
        let here = phase.measured_setting(operating_point)?;
        let free =
            phase.points.iter().find(|point| point.layout_key == operating_point.layout_key && point.setting >= knob.top)?;
        let age = now.seconds_since(phase.start_measured_at?);
        let extra = (free.watts - here.watts).max(0.0);
        // A minute a window, and one until the knob is back.
        let cost = extra * 60.0 * f64::from(WINDOWS + 1);
        let allowed = energy_ratio * self.joules - self.extra_joules;
        let due = operating_point.setting < knob.top && age >= AGE_SECONDS && cost <= allowed;
        due.then(|| {
            let (top, unit, minutes) = (knob.top, knob.unit(), age / 60.0);
            let why = format!(
                "hold-out: {top:.0} {unit} for {WINDOWS} windows, to measure the baseline at the starting setting again; last measured {minutes:.0} min ago"
            );
            (extra, why)
        })
    }
}
