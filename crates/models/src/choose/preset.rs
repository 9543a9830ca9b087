use serde::{Deserialize, Serialize};

use super::ChoiceRefusal;

/// Limits by workload, as a file has them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitPreset {
    #[serde(default)]
    pub workloads: Vec<WorkloadLimits>,
}

/// Limits of one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadLimits {
    /// Name as in the table's column `workload`; letter case does not matter.
    pub workload: String,
    /// Time over the reference's, less 1.
    pub max_slowdown: f64,
    /// Lowest setting over the highest.
    #[serde(default)]
    pub min_ratio: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidPreset {
    #[error("workload={workload} is there twice")]
    Twice { workload: String },
    #[error("workload={workload}: {refusal}")]
    Limits { workload: String, refusal: ChoiceRefusal },
}

impl LimitPreset {
    pub fn check(&self) -> Result<(), InvalidPreset> {
        for (index, limits) in self.workloads.iter().enumerate() {
            let workload = || limits.workload.clone();
            if self.workloads[..index].iter().any(|other| other.is(&limits.workload)) {
                return Err(InvalidPreset::Twice { workload: workload() });
            }
            let as_limits = super::ChoiceLimits {
                max_slowdown_ratio: limits.max_slowdown,
                min_setting_ratio: limits.min_ratio,
                objective: super::ChoiceObjective::Energy,
                reference_second_setting: None,
            };
            as_limits.check().map_err(|refusal| InvalidPreset::Limits { workload: workload(), refusal })?;
        }
        Ok(())
    }

    pub fn of(&self, workload: &str) -> Option<&WorkloadLimits> {
        self.workloads.iter().find(|limits| limits.is(workload))
    }
}

impl WorkloadLimits {
    fn is(&self, workload: &str) -> bool {
        self.workload.eq_ignore_ascii_case(workload)
    }
}
