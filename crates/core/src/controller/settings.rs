use eadt_models::choose;
use eadt_schemas::decode::DecodeError;
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::Workload;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Which power the matrix compares with its thresholds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PowerReading {
    /// Mean power of one GPU.
    PerGpu,
    /// Power of the whole workload: the literal reading.
    Total,
}

/// Objective that a controller minimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ControllerObjective {
    /// Energy per sample.
    #[default]
    Energy,
    /// Energy per sample times time per sample: the energy-delay product.
    Edp,
    /// Energy per sample times the square of time per sample.
    Ed2p,
}

impl ControllerObjective {
    /// Returns the cost of a sample, in J, J·s or J·s²; less is better.
    pub fn score(self, joules_per_sample: f64, seconds_per_sample: f64) -> f64 {
        choose::ChoiceObjective::from(self).score(joules_per_sample, seconds_per_sample)
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    pub const fn is_energy(&self) -> bool {
        matches!(self, Self::Energy)
    }

    /// Formats the objective as ` for the energy-delay product`, if it is another than energy.
    pub(super) fn purpose_suffix(self) -> String {
        if self.is_energy() { String::new() } else { format!(" for the {}", self.display_name()) }
    }

    /// Returns the change of the objective, as `, energy-delay product -3.1 %`; empty for energy, which is given in joules
    /// elsewhere.
    pub(super) fn change_in_words(self, gain_ratio: f64) -> String {
        if self.is_energy() {
            return String::new();
        }
        format!(", {} {}", self.display_name(), format_signed_percent(-gain_ratio, 1))
    }

    /// Returns its name in words.
    pub const fn display_name(self) -> &'static str {
        match self {
            Self::Energy => "energy",
            Self::Edp => "energy-delay product",
            Self::Ed2p => "energy-delay² product",
        }
    }
}

impl From<ControllerObjective> for choose::ChoiceObjective {
    fn from(objective: ControllerObjective) -> Self {
        match objective {
            ControllerObjective::Energy => Self::Energy,
            ControllerObjective::Edp => Self::Edp,
            ControllerObjective::Ed2p => Self::Ed2p,
        }
    }
}

/// Limits and thresholds of the controllers.
///
/// `matrix` uses all down to `literal_interval_seconds`; `matrix-literal` only `power`, `power_high_watts`, `power_low_watts`,
/// `efficiency_poor`, `efficiency_good`, `literal_interval_seconds`, `coverage_min_ratio` and `expiry_seconds`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ControllerSettings {
    /// Objective per sample, minimised: `energy`; `edp`, energy times time; `ed2p`, energy times time squared. By it changes are
    /// judged and settings and layouts compared; wherever a gain or a saving is named below, it is of this. The table of `matrix`
    /// itself, and `matrix-literal`, do not ask. Default: `energy`.
    #[serde(skip_serializing_if = "ControllerObjective::is_energy")]
    pub objective: ControllerObjective,
    /// Power that is compared with the thresholds: `per_gpu` or `total`. Default: `per_gpu` for `matrix`, `total` for
    /// `matrix-literal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerReading>,
    /// Above this power a workload draws much, in watts. Above `power_low_watts`. Default 250.
    pub power_high_watts: f64,
    /// Below this power a workload draws little, in watts. Above 0. Default 200.
    pub power_low_watts: f64,
    /// The high threshold is at most this part of the board's default power limit, where that is known, so that a 250 W
    /// board can exceed it, too. Above 0, at most 1 (1: watts alone count). Default 0.625, which is 250 W of 400 W.
    pub power_high_board_ratio: f64,
    /// The low threshold is at most this part of the board's default power limit, where that is known. Above 0, at most 1.
    /// Default 0.5, which is 200 W of 400 W.
    pub power_low_board_ratio: f64,
    /// Below this a workload that draws much is inefficient, above it efficient, in samples/s/W. Above 0. Default 0.1.
    pub efficiency_poor: f64,
    /// Below this a workload that draws little is inefficient, in samples/s/W. Above 0. Default 0.2.
    pub efficiency_good: f64,
    /// Dead band around the power thresholds, as a part of them. 0 to 0.5. Default 0.02.
    pub power_hysteresis_ratio: f64,
    /// Dead band around the efficiency thresholds, as a part of them. 0 to 0.5. Default 0.05.
    pub efficiency_hysteresis_ratio: f64,
    /// The median of this many usable windows is compared. 1 to 60. Default 5.
    pub median_windows: u32,
    /// Usable windows that are left out after a restart while the job warms up. 0 to 60. Default 1.
    pub warm_up_windows: u32,
    /// A change is judged by the median of this many windows. 1 to 60. Default 3.
    pub validation_windows: u32,
    /// A change is kept if what `objective` names fell by at least this part. 0 to 1. Default 0.01.
    pub validation_gain_ratio: f64,
    /// A change is kept if throughput is at least this part of what it was. 0 to 1. Default 0.9.
    pub validation_throughput_ratio: f64,
    /// A window with less known energy or progress than this part of its time decides nothing. 0 to 1. Default 0.9.
    pub coverage_min_ratio: f64,
    /// After a change that did not help nothing is tried for this long, doubling with every further one, in seconds.
    /// Above 0. Default 3600.
    pub hold_seconds: f64,
    /// The doubling ends here, in seconds. At least `hold_seconds`. Default 86400.
    pub hold_max_seconds: f64,
    /// A change that did not help is not tried again from the same layout for this time, in seconds. Above 0. Default 86400.
    pub tabu_seconds: f64,
    /// Lowest MPS thread percentage, if the workload's bounds name none. 1 to 100. Default 25.
    pub thread_percentage_min: u32,
    /// Most processes per GPU, if the workload's bounds do not limit its replicas. 1 to 48. Default 4.
    pub replicas_per_gpu_max: u32,
    /// Largest sum of thread percentages on one GPU, if the workload's bounds name none. 100 to 200. Default 100.
    pub oversubscription_percentage_max: u32,
    /// Restarts within 24 h, if the workload's bounds name no limit; one of them is kept for the way back. 0 to 1000. Default 8.
    pub restarts_per_day_max: u32,
    /// Part that a change is expected to gain until this workload's own kept changes give a better figure. 0 to 1. Default 0.05.
    pub expected_saving_ratio: f64,
    /// Time that a job is taken to go on for if it reports none, in seconds. Above 0. Default 14400.
    pub horizon_seconds: f64,
    /// Time that a restart is taken to cost until one was measured, in seconds. At least 0. Default 120.
    pub restart_seconds: f64,
    /// Work that a restart is taken to repeat although the job is asked for a checkpoint first, in seconds; less where the
    /// job's last checkpoint is younger. At least 0. Default 60.
    pub redone_seconds: f64,
    /// A decision that was not applied within this time after its window is void, in seconds. Above 0. Default 300.
    #[serde(rename = "expiry_seconds")]
    pub decision_expiry_seconds: f64,
    /// Time between two evaluations of `matrix-literal`, in seconds. At least 0 (every window). Default 300.
    pub literal_interval_seconds: f64,
    /// `power-cap`, `frequency` and `hybrid` give up at most this part of the throughput that the layout found at the start had
    /// without a cap in the same phase of the job. 0 to 0.9. Default 0.07.
    pub max_slowdown_ratio: f64,
    /// Throughput below which these controllers choose no setting in any phase, in samples/s; absent: `max_slowdown_ratio` is the
    /// only floor. Above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second_min: Option<f64>,
    /// Lowest power cap that is tried, as a part of the board's default limit, if the workload's bounds name none. Above 0, at
    /// most 1. Default 0.3.
    pub power_limit_min_ratio: f64,
    /// Highest SM clock in MHz that `frequency` sets; absent: the highest that was seen without a limit. Above 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz_max: Option<f64>,
    /// Lowest SM clock that `frequency` tries, as a part of the highest. Above 0, at most 1. Default 0.5.
    pub sm_clock_min_ratio: f64,
    /// Usable windows that these controllers measure at each setting. 1 to 60. Default 3.
    pub seek_windows: u32,
    /// Usable windows that they measure without a cap in each phase of the job, for what throughput is compared with. 1 to 60.
    /// Default 8.
    pub reference_windows: u32,
    /// A found setting is changed for another one that is expected to gain at least this part. 0 to 0.5.
    /// Default 0.01.
    pub seek_gain_ratio: f64,
    /// Throughput, power or memory traffic per sample that differ by more than this from what is known of a setting, three
    /// windows running, are another phase of the job. 0.01 to 1. Default 0.08.
    pub phase_change_ratio: f64,
    /// No cap and no clock is raised while a GPU is as hot as this, in °C. Above 0. Default 83.
    pub temperature_celsius_max: f64,
    /// `power-cap`, `frequency` and `hybrid` return to the starting setting for three windows now and then, where it was not
    /// measured in the present phase for two hours, so that what is saved is compared with a fresh baseline. All of it together
    /// takes at most this part of the job's energy; 0: never. 0 to 0.1. Default 0.01.
    pub hold_out_energy_ratio: f64,
    /// `hybrid` changes the layout for another one that gains at least this part. 0 to 0.5. Default 0.02.
    pub layout_gain_ratio: f64,
    /// `hybrid` restarts at most so often in 24 h, one of them kept for the way back; the lesser of this and the restarts that
    /// are allowed anyway. 0 to 1000. Default 5.
    pub hybrid_restarts_per_day_max: u32,
    /// `layers` freezes nothing before this part of the job's steps. 0 to 1. Default 0.25.
    pub freeze_start_ratio: f64,
    /// `layers` freezes blocks whose plasticity was below this part of its own peak in three reports running. 0 to 1.
    /// Default 0.1.
    pub plasticity_ratio: f64,
    /// `layers` asks for no freeze that is expected to save less than this part of the energy that is left. 0 to 1. Default 0.03.
    pub freeze_gain_ratio: f64,
    /// Time that a checkpoint is taken to cost, in seconds: a freeze has to save five of them. At least 0. Default 30.
    pub checkpoint_seconds: f64,
    /// The last freeze is taken back if validation loss is above its trend by more than this part and what is uncertain. 0 to 1.
    /// Default 0.005.
    pub validation_loss_rise_ratio: f64,
    /// All freezes are taken back, and nothing is frozen any more in this run, if validation loss is above its trend by more than
    /// this part and what is uncertain. 0 to 1. Default 0.01.
    pub validation_loss_stop_ratio: f64,
    /// `precision` leaves FP16 if more than this part of the steps overflow and are skipped after the warm-up. 0 to 1.
    /// Default 0.01.
    pub overflow_skip_ratio: f64,
    /// `precision` compares FP16 with BF16 over so many windows each, and keeps it for 2 % less energy outside noise; 0: it never
    /// asks for FP16. 0 to 60. Default 0.
    pub precision_trial_windows: u32,
}

impl Default for ControllerSettings {
    fn default() -> Self {
        Self {
            objective: ControllerObjective::Energy,
            power: None,
            power_high_watts: 250.0,
            power_low_watts: 200.0,
            power_high_board_ratio: 0.625,
            power_low_board_ratio: 0.5,
            efficiency_poor: 0.1,
            efficiency_good: 0.2,
            power_hysteresis_ratio: 0.02,
            efficiency_hysteresis_ratio: 0.05,
            median_windows: 5,
            warm_up_windows: 1,
            validation_windows: 3,
            validation_gain_ratio: 0.01,
            validation_throughput_ratio: 0.9,
            coverage_min_ratio: 0.9,
            hold_seconds: 3600.0,
            hold_max_seconds: 86_400.0,
            tabu_seconds: 86_400.0,
            thread_percentage_min: 25,
            replicas_per_gpu_max: 4,
            oversubscription_percentage_max: 100,
            restarts_per_day_max: 8,
            expected_saving_ratio: 0.05,
            horizon_seconds: 14_400.0,
            restart_seconds: 120.0,
            redone_seconds: 60.0,
            decision_expiry_seconds: 300.0,
            literal_interval_seconds: 300.0,
            max_slowdown_ratio: 0.07,
            samples_per_second_min: None,
            power_limit_min_ratio: 0.3,
            sm_clock_mhz_max: None,
            sm_clock_min_ratio: 0.5,
            seek_windows: 3,
            reference_windows: 8,
            seek_gain_ratio: 0.01,
            phase_change_ratio: 0.08,
            temperature_celsius_max: 83.0,
            hold_out_energy_ratio: 0.01,
            layout_gain_ratio: 0.02,
            hybrid_restarts_per_day_max: 5,
            freeze_start_ratio: 0.25,
            plasticity_ratio: 0.1,
            freeze_gain_ratio: 0.03,
            checkpoint_seconds: 30.0,
            validation_loss_rise_ratio: 0.005,
            validation_loss_stop_ratio: 0.01,
            overflow_skip_ratio: 0.01,
            precision_trial_windows: 0,
        }
    }
}

impl ControllerSettings {
    /// Returns the settings that a workload declares, with defaults for the others.
    pub fn from_workload(by: &Workload) -> Result<Option<Self>, DecodeError> {
        let Some(declared) = &by.controller_settings else { return Ok(None) };
        let refused = |detail: String| DecodeError::invalid("controller_settings", detail);
        let settings = Self::deserialize(Value::Object(declared.clone())).map_err(|error| refused(error.to_string()))?;
        settings.check().map_err(refused)?;
        Ok(Some(settings))
    }

    /// Checks all fields; the error names the first that is out of its range, with the expected range.
    pub fn check(&self) -> Result<(), String> {
        const LONG: f64 = 366.0 * 86_400.0;
        let ranges = [
            ("power_high_watts", self.power_high_watts, self.power_low_watts, 1e9),
            ("power_low_watts", self.power_low_watts, 1e-9, 1e9),
            ("power_high_board_ratio", self.power_high_board_ratio, 1e-3, 1.0),
            ("power_low_board_ratio", self.power_low_board_ratio, 1e-3, self.power_high_board_ratio),
            ("efficiency_poor", self.efficiency_poor, 1e-12, 1e9),
            ("efficiency_good", self.efficiency_good, 1e-12, 1e9),
            ("power_hysteresis_ratio", self.power_hysteresis_ratio, 0.0, 0.5),
            ("efficiency_hysteresis_ratio", self.efficiency_hysteresis_ratio, 0.0, 0.5),
            ("median_windows", f64::from(self.median_windows), 1.0, 60.0),
            ("warm_up_windows", f64::from(self.warm_up_windows), 0.0, 60.0),
            ("validation_windows", f64::from(self.validation_windows), 1.0, 60.0),
            ("validation_gain_ratio", self.validation_gain_ratio, 0.0, 1.0),
            ("validation_throughput_ratio", self.validation_throughput_ratio, 0.0, 1.0),
            ("coverage_min_ratio", self.coverage_min_ratio, 0.0, 1.0),
            ("hold_seconds", self.hold_seconds, 1.0, LONG),
            ("hold_max_seconds", self.hold_max_seconds, self.hold_seconds, LONG),
            ("tabu_seconds", self.tabu_seconds, 1.0, LONG),
            ("thread_percentage_min", f64::from(self.thread_percentage_min), 1.0, 100.0),
            ("replicas_per_gpu_max", f64::from(self.replicas_per_gpu_max), 1.0, 48.0),
            ("oversubscription_percentage_max", f64::from(self.oversubscription_percentage_max), 100.0, 200.0),
            ("restarts_per_day_max", f64::from(self.restarts_per_day_max), 0.0, 1000.0),
            ("expected_saving_ratio", self.expected_saving_ratio, 0.0, 1.0),
            ("horizon_seconds", self.horizon_seconds, 1.0, LONG),
            ("restart_seconds", self.restart_seconds, 0.0, LONG),
            ("redone_seconds", self.redone_seconds, 0.0, LONG),
            ("expiry_seconds", self.decision_expiry_seconds, 1.0, LONG),
            ("literal_interval_seconds", self.literal_interval_seconds, 0.0, LONG),
            ("max_slowdown_ratio", self.max_slowdown_ratio, 0.0, 0.9),
            ("samples_per_second_min", self.samples_per_second_min.unwrap_or(1.0), 1e-12, 1e12),
            ("power_limit_min_ratio", self.power_limit_min_ratio, 1e-3, 1.0),
            ("sm_clock_mhz_max", self.sm_clock_mhz_max.unwrap_or(1.0), 1e-3, 1e6),
            ("sm_clock_min_ratio", self.sm_clock_min_ratio, 1e-3, 1.0),
            ("seek_windows", f64::from(self.seek_windows), 1.0, 60.0),
            ("reference_windows", f64::from(self.reference_windows), 1.0, 60.0),
            ("seek_gain_ratio", self.seek_gain_ratio, 0.0, 0.5),
            ("phase_change_ratio", self.phase_change_ratio, 0.01, 1.0),
            ("temperature_celsius_max", self.temperature_celsius_max, 1.0, 1000.0),
            ("hold_out_energy_ratio", self.hold_out_energy_ratio, 0.0, 0.1),
            ("layout_gain_ratio", self.layout_gain_ratio, 0.0, 0.5),
            ("hybrid_restarts_per_day_max", f64::from(self.hybrid_restarts_per_day_max), 0.0, 1000.0),
            ("freeze_start_ratio", self.freeze_start_ratio, 0.0, 1.0),
            ("plasticity_ratio", self.plasticity_ratio, 0.0, 1.0),
            ("freeze_gain_ratio", self.freeze_gain_ratio, 0.0, 1.0),
            ("checkpoint_seconds", self.checkpoint_seconds, 0.0, LONG),
            ("validation_loss_rise_ratio", self.validation_loss_rise_ratio, 0.0, 1.0),
            ("validation_loss_stop_ratio", self.validation_loss_stop_ratio, 0.0, 1.0),
            ("overflow_skip_ratio", self.overflow_skip_ratio, 0.0, 1.0),
            ("precision_trial_windows", f64::from(self.precision_trial_windows), 0.0, 60.0),
        ];
        match ranges.iter().find(|(_, value, low, high)| !(*low..=*high).contains(value)) {
            Some((name, value, low, high)) => Err(format!("{name} is {value}, but must be within {low} and {high}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_their_ranges_and_others_are_named() {
        assert_eq!(ControllerSettings::default().check(), Ok(()));
        let named = |change: fn(&mut ControllerSettings)| {
            let mut settings = ControllerSettings::default();
            change(&mut settings);
            settings.check().unwrap_err()
        };
        assert!(named(|s| s.power_high_watts = 150.0).starts_with("power_high_watts is 150,"));
        assert!(named(|s| s.efficiency_poor = f64::NAN).starts_with("efficiency_poor"));
        assert!(named(|s| s.oversubscription_percentage_max = 201).starts_with("oversubscription_percentage_max"));
        assert!(named(|s| s.hold_max_seconds = 60.0).starts_with("hold_max_seconds"));
    }

    #[test]
    fn unknown_settings_are_refused() {
        assert!(serde_json::from_str::<ControllerSettings>(r#"{"power":"total","median_windows":3}"#).is_ok());
        assert!(serde_json::from_str::<ControllerSettings>(r#"{"median_window":3}"#).is_err());
    }
}
