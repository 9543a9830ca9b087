//! The EADT matrix: what to do at a power and an efficiency.

use eadt_schemas::v1::{ControllerAction, Workload};

use super::{ControllerSettings, PowerReading};

/// Thresholds in force, dead bands apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Thresholds {
    pub high_watts: f64,
    pub low_watts: f64,
    pub poor: f64,
    pub good: f64,
    pub power_hysteresis: f64,
    pub efficiency_hysteresis: f64,
}

impl Thresholds {
    /// Returns exactly the thresholds of the settings.
    pub fn literal(settings: &ControllerSettings) -> Self {
        Self {
            high_watts: settings.power_high_watts,
            low_watts: settings.power_low_watts,
            poor: settings.efficiency_poor,
            good: settings.efficiency_good,
            power_hysteresis: 0.0,
            efficiency_hysteresis: 0.0,
        }
    }

    /// Returns thresholds with dead bands, lowered to the power that the workload's boards can draw.
    pub fn precise(settings: &ControllerSettings, reading: PowerReading, workload: &Workload, gpus: u32) -> Self {
        let boards = match reading {
            PowerReading::PerGpu => 1.0,
            PowerReading::Total => f64::from(gpus),
        };
        let at_most = |watts: f64, ratio: f64| match workload.gpu_power_limit_watts {
            Some(limit) if limit > 0.0 => watts.min(ratio * limit * boards),
            _ => watts,
        };
        Self {
            high_watts: at_most(settings.power_high_watts, settings.power_high_board_ratio),
            low_watts: at_most(settings.power_low_watts, settings.power_low_board_ratio),
            power_hysteresis: settings.power_hysteresis_ratio,
            efficiency_hysteresis: settings.efficiency_hysteresis_ratio,
            ..Self::literal(settings)
        }
    }

    /// Returns the action of the table. A figure exactly on a threshold is on neither side of it.
    pub fn action(&self, watts: f64, efficiency: f64) -> ControllerAction {
        let (up, down) = (1.0 + self.power_hysteresis, 1.0 - self.power_hysteresis);
        let (better, worse) = (1.0 + self.efficiency_hysteresis, 1.0 - self.efficiency_hysteresis);
        if watts > self.high_watts * up && efficiency < self.poor * worse {
            ControllerAction::Decrease
        } else if watts > self.high_watts * up && efficiency > self.poor * better {
            ControllerAction::ScaleReplicas
        } else if watts < self.low_watts * down && efficiency < self.good * worse {
            ControllerAction::Increase
        } else {
            ControllerAction::Maintain
        }
    }

    /// Returns a sentence that compares power and efficiency with the thresholds, as the reason for `action`.
    pub fn explain(&self, action: ControllerAction, whose: &str, watts: f64, efficiency: f64) -> String {
        let Self { high_watts, low_watts, poor, good, .. } = *self;
        match action {
            ControllerAction::Decrease => {
                format!(
                    "{watts:.0} W {whose} is above {high_watts:.0} W at only {efficiency:.4} samples/s/W (poor is under {poor})"
                )
            }
            ControllerAction::ScaleReplicas => {
                format!("{watts:.0} W {whose} is above {high_watts:.0} W at a good {efficiency:.4} samples/s/W (over {poor})")
            }
            ControllerAction::Increase => {
                format!("{watts:.0} W {whose} is below {low_watts:.0} W at only {efficiency:.4} samples/s/W (good is {good})")
            }
            _ => format!("{watts:.0} W {whose} at {efficiency:.4} samples/s/W calls for no change"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_with_every_boundary() {
        let table = Thresholds::literal(&ControllerSettings::default());
        let just = |value: f64, up: bool| if up { value.next_up() } else { value.next_down() };
        let rows = [
            (280.0, 0.08, ControllerAction::Decrease),
            (270.0, 0.22, ControllerAction::ScaleReplicas),
            (180.0, 0.08, ControllerAction::Increase),
            // 45 samples/s at 250 W.
            (250.0, 45.0 / 250.0, ControllerAction::Maintain),
            (280.0, 0.1, ControllerAction::Maintain),
            (280.0, just(0.1, false), ControllerAction::Decrease),
            (280.0, just(0.1, true), ControllerAction::ScaleReplicas),
            (250.0, 0.05, ControllerAction::Maintain),
            (250.0, 0.3, ControllerAction::Maintain),
            (just(250.0, true), 0.05, ControllerAction::Decrease),
            (just(250.0, true), 0.3, ControllerAction::ScaleReplicas),
            (200.0, 0.05, ControllerAction::Maintain),
            (just(200.0, false), 0.05, ControllerAction::Increase),
            (just(200.0, false), 0.2, ControllerAction::Maintain),
            (just(200.0, false), just(0.2, false), ControllerAction::Increase),
            (just(200.0, false), 0.1, ControllerAction::Increase),
            (225.0, 0.01, ControllerAction::Maintain),
            (100.0, 0.5, ControllerAction::Maintain),
        ];
        for (watts, efficiency, action) in rows {
            assert_eq!(table.action(watts, efficiency), action, "{watts} W, {efficiency}");
        }
    }

    #[test]
    fn dead_bands_widen_every_threshold() {
        let table = Thresholds::precise(&ControllerSettings::default(), PowerReading::PerGpu, &Workload::default(), 1);
        let rows = [
            (254.0, 0.05, ControllerAction::Maintain),
            (254.0, 0.3, ControllerAction::Maintain),
            (255.1, 0.05, ControllerAction::Decrease),
            (255.1, 0.096, ControllerAction::Maintain),
            (255.1, 0.104, ControllerAction::Maintain),
            (255.1, 0.106, ControllerAction::ScaleReplicas),
            (197.0, 0.05, ControllerAction::Maintain),
            (195.9, 0.05, ControllerAction::Increase),
            (195.9, 0.191, ControllerAction::Maintain),
            (195.9, 0.189, ControllerAction::Increase),
        ];
        for (watts, efficiency, action) in rows {
            assert_eq!(table.action(watts, efficiency), action, "{watts} W, {efficiency}");
        }
    }

    #[test]
    fn thresholds_follow_small_boards_only() {
        let on = |limit, reading, gpus| {
            let workload = Workload { gpu_power_limit_watts: limit, ..Workload::default() };
            let table = Thresholds::precise(&ControllerSettings::default(), reading, &workload, gpus);
            (table.high_watts, table.low_watts)
        };
        assert_eq!(on(None, PowerReading::PerGpu, 3), (250.0, 200.0));
        assert_eq!(on(Some(400.0), PowerReading::PerGpu, 3), (250.0, 200.0));
        assert_eq!(on(Some(250.0), PowerReading::PerGpu, 3), (156.25, 125.0));
        assert_eq!(on(Some(700.0), PowerReading::PerGpu, 3), (250.0, 200.0));
        assert_eq!(on(Some(250.0), PowerReading::Total, 2), (250.0, 200.0));
        assert_eq!(on(Some(0.0), PowerReading::PerGpu, 3), (250.0, 200.0), "a limit of nothing is none");
    }

    #[test]
    fn what_the_table_decides_is_explained_by_the_thresholds_that_were_passed() {
        let table = Thresholds::literal(&ControllerSettings::default());
        for (watts, efficiency, words) in [
            (280.0, 0.08, "280 W in all is above 250 W at only 0.0800 samples/s/W (poor is under 0.1)"),
            (270.0, 0.22, "270 W in all is above 250 W at a good 0.2200 samples/s/W (over 0.1)"),
            (180.0, 0.08, "180 W in all is below 200 W at only 0.0800 samples/s/W (good is 0.2)"),
            (225.0, 0.08, "225 W in all at 0.0800 samples/s/W calls for no change"),
        ] {
            assert_eq!(table.explain(table.action(watts, efficiency), "in all", watts, efficiency), words);
        }
    }
}
