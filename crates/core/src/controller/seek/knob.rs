//! The knob that is turned while the job runs: the power cap or the clock of its GPUs.

use eadt_schemas::v1::{ControllerAction, EfficiencyWindow, Layout, Workload};

use super::super::ControllerSettings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeekKnobKind {
    PowerLimit,
    Clock,
}

/// A knob with its range. Its top is where nothing is held back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SeekKnob {
    turned: SeekKnobKind,
    pub top: f64,
    pub least: f64,
    /// Distance of two settings.
    step: f64,
    /// Its top is no limit at all: how high the clock may be is only known while none is set.
    unlimited: bool,
}

impl SeekKnob {
    /// Returns the power cap of one GPU, or why none can be sought.
    pub fn power_limit(workload: &Workload, own: Option<f64>, settings: &ControllerSettings) -> Result<Self, String> {
        let bounds = &workload.bounds;
        let board = workload.gpu_power_limit_watts.filter(|watts| *watts > 0.0);
        let top = [board, bounds.power_limit_watts_max, own].into_iter().flatten().reduce(f64::min);
        let Some(top) = top else {
            return Err("neither the board's power limit nor a bound of the workload is known: no cap can be chosen".into());
        };
        let least = bounds.power_limit_watts_min.unwrap_or(settings.power_limit_min_ratio * board.unwrap_or(top));
        Self { turned: SeekKnobKind::PowerLimit, top, least, step: 1.0, unlimited: false }.validate_range()
    }

    /// Returns the SM clock of the GPUs, or why none can be sought. `highest` is the highest that was seen without a limit.
    pub fn clock(own: Option<f64>, highest: Option<f64>, settings: &ControllerSettings) -> Result<Self, String> {
        let top = settings.sm_clock_mhz_max.or(highest).map(|top| own.map_or(top, |own| own.min(top)));
        let Some(top) = top.filter(|top| *top > 0.0) else {
            return Err("the SM clock of its GPUs is not known: no clock can be chosen".into());
        };
        let unlimited = own.is_none() && settings.sm_clock_mhz_max.is_none();
        Self { turned: SeekKnobKind::Clock, top, least: settings.sm_clock_min_ratio * top, step: 15.0, unlimited }
            .validate_range()
    }

    fn validate_range(self) -> Result<Self, String> {
        let Self { top, least, .. } = self;
        if least > top || least.is_nan() {
            return Err(format!("the bounds exclude every setting: at least {least} {}, at most {top}", self.unit()));
        }
        Ok(self)
    }

    pub fn unit(&self) -> &'static str {
        match self.turned {
            SeekKnobKind::PowerLimit => "W",
            SeekKnobKind::Clock => "MHz",
        }
    }

    pub fn name(&self) -> &'static str {
        match self.turned {
            SeekKnobKind::PowerLimit => "cap",
            SeekKnobKind::Clock => "clock",
        }
    }

    /// Returns the action that turns it to a setting. Only a revert takes a limit away.
    pub fn action(&self, to: f64) -> ControllerAction {
        match self.turned {
            _ if self.removes_limit(to) => ControllerAction::Revert,
            SeekKnobKind::PowerLimit => ControllerAction::SetPowerLimit,
            SeekKnobKind::Clock => ControllerAction::SetClocks,
        }
    }

    /// Returns the setting of a layout; the top if it has none.
    pub fn setting_of(&self, layout: &Layout) -> f64 {
        let set = match self.turned {
            SeekKnobKind::PowerLimit => layout.power_limit_watts,
            SeekKnobKind::Clock => layout.sm_clock_mhz,
        };
        set.unwrap_or(self.top)
    }

    fn removes_limit(&self, to: f64) -> bool {
        self.unlimited && to >= self.top
    }

    /// Returns a layout with this setting.
    pub fn with_setting(&self, layout: &Layout, to: f64) -> Layout {
        match self.turned {
            SeekKnobKind::PowerLimit => Layout { power_limit_watts: Some(to), ..layout.clone() },
            SeekKnobKind::Clock => Layout { sm_clock_mhz: Some(to).filter(|to| !self.removes_limit(*to)), ..layout.clone() },
        }
    }

    /// Returns the quantity that the setting limits, in this window: power of a GPU in watts, or its clock in MHz.
    pub fn limited_quantity(&self, window: &EfficiencyWindow, watts_per_gpu: f64) -> f64 {
        match self.turned {
            SeekKnobKind::PowerLimit => watts_per_gpu,
            SeekKnobKind::Clock => window.mean_sm_clock_mhz.unwrap_or(self.top),
        }
    }

    /// Returns a setting that can be set: on a step, inside the range.
    pub fn round_to_step(&self, wanted: f64) -> f64 {
        if wanted >= self.top {
            return self.top;
        }
        ((wanted / self.step).round() * self.step).clamp(self.least, self.top)
    }

    /// Returns the exponents of throughput and power over the setting that hold before anything is measured. Only the first step
    /// depends on them.
    pub fn prior_exponents(&self) -> (f64, f64) {
        match self.turned {
            SeekKnobKind::PowerLimit => (0.5, 1.0),
            SeekKnobKind::Clock => (0.9, 1.5),
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::LayoutBounds;

    use super::*;

    fn power_limit(board: Option<f64>, min: Option<f64>, max: Option<f64>) -> Result<(f64, f64), String> {
        let bounds = LayoutBounds { power_limit_watts_min: min, power_limit_watts_max: max, ..LayoutBounds::default() };
        let workload = Workload { gpu_power_limit_watts: board, bounds, ..Workload::default() };
        SeekKnob::power_limit(&workload, None, &ControllerSettings::default()).map(|knob| (knob.least, knob.top))
    }

    #[test]
    fn a_knob_is_known_by_its_name() {
        let workload = Workload { gpu_power_limit_watts: Some(400.0), ..Workload::default() };
        let knob = SeekKnob::power_limit(&workload, None, &ControllerSettings::default()).unwrap();
        assert_eq!((knob.name(), knob.unit()), ("cap", "W"));
    }

    #[test]
    fn a_cap_goes_from_its_lowest_to_the_least_of_what_limits_it() {
        assert_eq!(power_limit(Some(400.0), None, None), Ok((120.0, 400.0)));
        assert_eq!(power_limit(Some(400.0), Some(150.0), Some(300.0)), Ok((150.0, 300.0)));
        assert_eq!(power_limit(Some(0.0), None, Some(300.0)), Ok((90.0, 300.0)), "a board's limit of nothing is none");
        assert!(power_limit(Some(0.0), None, None).unwrap_err().contains("no cap can be chosen"));
        assert_eq!(power_limit(Some(400.0), Some(300.0), Some(300.0)), Ok((300.0, 300.0)), "one setting is a range");
        for excluded in [Some(301.0), Some(f64::NAN)] {
            assert!(power_limit(Some(400.0), excluded, Some(300.0)).unwrap_err().contains("exclude every setting"));
        }
    }

    #[test]
    fn a_clock_goes_from_half_to_the_highest_that_was_seen_in_steps_of_15_mhz() {
        let clock = |own, highest| SeekKnob::clock(own, highest, &ControllerSettings::default());
        let knob = clock(None, Some(1_410.0)).unwrap();
        assert_eq!((knob.least, knob.top, knob.name(), knob.unit()), (705.0, 1_410.0, "clock", "MHz"));
        for (wanted, settable) in [(100.0, 705.0), (1_000.0, 1_005.0), (997.0, 990.0), (1_409.0, 1_410.0), (2_000.0, 1_410.0)] {
            assert_eq!(knob.round_to_step(wanted), settable, "{wanted} MHz");
        }
        assert_eq!(clock(Some(1_200.0), Some(1_410.0)).map(|knob| knob.top), Ok(1_200.0));
        for unknown in [None, Some(0.0)] {
            assert!(clock(None, unknown).unwrap_err().contains("no clock can be chosen"));
        }
    }
}
