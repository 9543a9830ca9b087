//! Settings of the controller `sm-partition`, which decides about all workloads of a shared GPU together, in a stage of
//! its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::controller::ControllerName;

/// The controller's name in decisions.
pub const CONTROLLER: &str = ControllerName::SmPartition.as_str();

/// How workloads that share a GPU under MPS get their parts of the SMs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSharingSettings {
    /// Whether the processor decides about workloads whose controller is `sm-partition`; without it they stay as they
    /// are, also at a share at which they were being measured: empty `probe_percentages` for a while before it is
    /// switched off. Default false.
    pub enabled: bool,
    /// Shares that a workload is measured at while it has its GPU to itself, in this order, in percent of the SMs; each
    /// takes a restart. 100 and a smaller one are needed, and no share below the least one is ever chosen. Empty: only
    /// what it happens to run at is measured. Each 1 to 100. Default 100, 50, 20.
    pub probe_percentages: Vec<u32>,
    /// A share is known after so many windows alone. 1 to 100. Default 3.
    pub windows_min: u32,
    /// A partition is judged by so many windows of each workload before and after it. 1 to 16. Default 3.
    pub validation_windows: usize,
    /// Shares are multiples of this percentage. 1 to 50. Default 10.
    pub step_percentage: u32,
    /// Every workload keeps at least this part of the progress that equal shares would give it. 0 to 1. Default 0.5.
    pub floor_ratio: f64,
    /// No workload becomes slower by more than this part of its throughput alone on the whole GPU. Absent: no limit. 0
    /// to 1. Default: absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slowdown_ratio: Option<f64>,
    /// A partition stays unless another one promises at least this much more work per watt. Of shares that sum to more
    /// than 100 % nothing can be promised: they are left for equal shares, or for what promises this much more than
    /// those. 0 to 1. Default 0.02.
    pub gain_min_ratio: f64,
    /// Restarts in 24 h for each workload, those to measure it alone included, if its bounds set no limit; one is kept
    /// for the way back. 0 to 1,000. Default 8.
    pub restarts_per_day_max: u32,
    /// Nothing is changed for so long after a partition came into force, in seconds; doubled with each one in a row that did not
    /// help, up to a day. 0 to 604,800. Default 3,600.
    pub hold_seconds: f64,
    /// A partition that is not in force after this time is given up, in seconds. Above 0, at most 86,400. Default 1,800.
    pub give_up_seconds: f64,
    /// A window with less known energy or progress than this part of its time is not used. 0 to 1. Default 0.9.
    pub coverage_min_ratio: f64,
    /// While a workload had no usable window for so long, in event time, nothing is changed on its GPU, in seconds.
    /// Above 0, at most 86,400. Default 600.
    pub silence_seconds: f64,
    /// A decision that was not applied within this time is void, in seconds. Above 0, at most 86,400. Default 300.
    #[serde(rename = "expiry_seconds")]
    pub decision_expiry_seconds: f64,
}

impl Default for GpuSharingSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            probe_percentages: vec![100, 50, 20],
            windows_min: 3,
            validation_windows: 3,
            step_percentage: 10,
            floor_ratio: 0.5,
            max_slowdown_ratio: None,
            gain_min_ratio: 0.02,
            restarts_per_day_max: 8,
            hold_seconds: 3_600.0,
            give_up_seconds: 1_800.0,
            coverage_min_ratio: 0.9,
            silence_seconds: 600.0,
            decision_expiry_seconds: 300.0,
        }
    }
}

impl GpuSharingSettings {
    /// Checks all fields; the error names the first that is out of its range, with the expected range.
    pub fn check(&self) -> Result<(), String> {
        const DAY: f64 = 86_400.0;
        if let Some(share) = self.probe_percentages.iter().find(|share| !(1..=100).contains(*share)) {
            return Err(format!("probe_percentages holds {share}, but each must be within 1 and 100"));
        }
        if self.probe_percentages.contains(&100) != self.probe_percentages.iter().any(|share| *share < 100) {
            return Err("probe_percentages must hold 100 and a smaller share, or be empty".to_owned());
        }
        let ranges = [
            ("windows_min", f64::from(self.windows_min), 1.0, 100.0),
            ("validation_windows", self.validation_windows as f64, 1.0, 16.0),
            ("step_percentage", f64::from(self.step_percentage), 1.0, 50.0),
            ("floor_ratio", self.floor_ratio, 0.0, 1.0),
            ("max_slowdown_ratio", self.max_slowdown_ratio.unwrap_or(0.0), 0.0, 1.0),
            ("gain_min_ratio", self.gain_min_ratio, 0.0, 1.0),
            ("restarts_per_day_max", f64::from(self.restarts_per_day_max), 0.0, 1_000.0),
            ("hold_seconds", self.hold_seconds, 0.0, 7.0 * DAY),
            ("give_up_seconds", self.give_up_seconds, 1e-3, DAY),
            ("coverage_min_ratio", self.coverage_min_ratio, 0.0, 1.0),
            ("silence_seconds", self.silence_seconds, 1e-3, DAY),
            ("expiry_seconds", self.decision_expiry_seconds, 1e-3, DAY),
        ];
        match ranges.iter().find(|(_, value, low, high)| !(*low..=*high).contains(value)) {
            Some((name, value, low, high)) => Err(format!("{name} is {value}, but must be within {low} and {high}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_out_of_their_range_are_refused_by_name() {
        let check = |name: &str, value: serde_json::Value| {
            serde_json::from_value::<GpuSharingSettings>(json!({ name: value })).unwrap().check()
        };
        for (name, low, high) in [
            ("floor_ratio", 0.0, 1.0),
            ("max_slowdown_ratio", 0.0, 1.0),
            ("gain_min_ratio", 0.0, 1.0),
            ("hold_seconds", 0.0, 604_800.0),
            ("give_up_seconds", 0.001, 86_400.0),
            ("coverage_min_ratio", 0.0, 1.0),
            ("silence_seconds", 0.001, 86_400.0),
            ("expiry_seconds", 0.001, 86_400.0),
        ] {
            for value in [low, high] {
                assert_eq!(check(name, json!(value)), Ok(()), "{name} {value}");
            }
            for value in [f64::next_down(low), f64::next_up(high)] {
                let refused = check(name, json!(value)).unwrap_err();
                assert!(refused.starts_with(&format!("{name} is {value}, ")), "{refused}");
            }
        }
        for (name, low, high) in [
            ("windows_min", 1, 100),
            ("validation_windows", 1, 16),
            ("step_percentage", 1, 50),
            ("restarts_per_day_max", 0, 1_000),
        ] {
            for value in [low, high] {
                assert_eq!(check(name, json!(value)), Ok(()), "{name} {value}");
            }
            for value in [low - 1, high + 1].into_iter().filter(|value| *value >= 0) {
                let refused = check(name, json!(value)).unwrap_err();
                assert!(refused.starts_with(&format!("{name} is {value}, ")), "{refused}");
            }
        }
    }

    #[test]
    fn alone_a_workload_is_measured_at_the_whole_gpu_and_at_a_part_of_it_or_not_at_all() {
        let check =
            |shares: &[u32]| GpuSharingSettings { probe_percentages: shares.to_vec(), ..GpuSharingSettings::default() }.check();
        for allowed in [&[][..], &[100, 1], &[20, 100], &[100, 50, 20]] {
            assert_eq!(check(allowed), Ok(()), "{allowed:?}");
        }
        for one_kind in [&[100][..], &[50], &[50, 20]] {
            assert!(check(one_kind).unwrap_err().contains("100 and a smaller share"), "{one_kind:?}");
        }
        assert!(check(&[100, 0]).unwrap_err().starts_with("probe_percentages holds 0, "));
        assert!(check(&[101, 50]).unwrap_err().starts_with("probe_percentages holds 101, "));
    }
}
