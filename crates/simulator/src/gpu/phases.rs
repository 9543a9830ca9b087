use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::WorkloadProfile;

/// A stretch of a job's life in which it uses the GPU in one way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkloadPhase {
    pub name: String,
    /// How long it lasts, in seconds. Above 0.
    pub seconds: f64,
    pub profile: WorkloadProfile,
}

/// Phases one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PhaseSchedule {
    /// At least one.
    pub phases: Vec<WorkloadPhase>,
    /// Begins anew after the last phase; otherwise the last phase goes on. Default true.
    #[serde(default = "yes")]
    pub repeat: bool,
}

const fn yes() -> bool {
    true
}

impl PhaseSchedule {
    /// Returns one profile for ever.
    pub fn constant(name: &str, profile: WorkloadProfile) -> Self {
        Self { phases: vec![WorkloadPhase { name: name.into(), seconds: 3600.0, profile }], repeat: true }
    }

    /// Returns the phase `elapsed` seconds after the job's start, and the seconds after the start at which it ends; `None`
    /// for never. Times before the start count as the start.
    ///
    /// # Panics
    /// Without any phase; see [`Self::check`].
    pub fn at(&self, elapsed: f64) -> (&WorkloadPhase, Option<f64>) {
        let cycle: f64 = self.phases.iter().map(|phase| phase.seconds).sum();
        let elapsed = elapsed.max(0.0);
        let mut end = if self.repeat { (elapsed / cycle).floor() * cycle } else { 0.0 };
        for (index, phase) in self.phases.iter().enumerate() {
            end += phase.seconds;
            let last = index + 1 == self.phases.len();
            if elapsed < end || last {
                return (phase, (self.repeat || !last).then_some(end));
            }
        }
        unreachable!("a schedule has at least one phase")
    }

    /// Returns an error if the schedule is not valid.
    pub fn check(&self) -> Result<(), String> {
        if self.phases.is_empty() {
            return Err("a schedule needs at least one phase".into());
        }
        for phase in &self.phases {
            if !(phase.seconds > 0.0 && phase.seconds.is_finite()) {
                return Err(format!("phase {:?} lasts {} seconds, but must last longer than 0", phase.name, phase.seconds));
            }
            phase.profile.check().map_err(|wrong| format!("phase {:?}: {wrong}", phase.name))?;
        }
        Ok(())
    }
}

fn phase(name: &str, minutes: u32, profile: WorkloadProfile) -> WorkloadPhase {
    WorkloadPhase { name: name.into(), seconds: f64::from(minutes) * 60.0, profile }
}

/// Returns the default scenario's language model, meant for 3 A100s, 6 replicas of 50 %.
///
/// Short sequences are bound by the SMs and worth their power. Long ones are bound by the memory: more SMs than it can
/// feed only cost energy. While data are prepared the GPUs mostly wait, and what they do wants all SMs at once.
pub fn llm_training_phases() -> PhaseSchedule {
    let long_sequences = WorkloadProfile {
        host_ratio: 0.03,
        dram_ratio: 0.88,
        energy_intensity: 1.0,
        sensitivity: 0.2,
        ..WorkloadProfile::MEMORY
    };
    let preparation = WorkloadProfile {
        host_ratio: 0.55,
        sm_coverage_ratio: 0.98,
        dram_ratio: 0.05,
        energy_intensity: 0.4,
        sensitivity: 0.1,
        ..WorkloadProfile::HOST
    };
    PhaseSchedule {
        phases: vec![
            phase("short sequences", 60, WorkloadProfile::COMPUTE.at_rate(60.0)),
            phase("long sequences", 90, long_sequences.at_rate(20.0)),
            phase("data preparation", 90, preparation.at_rate(12.0)),
        ],
        repeat: true,
    }
}

/// Returns the default scenario's power-heavy second job, meant for 2 H100s, 4 replicas of 50 %.
///
/// Large images cost much energy each and need all SMs; small ones need few SMs and much of the host, so that more
/// processes side by side get more done.
pub fn vision_pretraining_phases() -> PhaseSchedule {
    let thumbnails = WorkloadProfile {
        host_ratio: 0.6,
        sm_coverage_ratio: 0.3,
        dram_ratio: 0.08,
        energy_intensity: 1.2,
        sensitivity: 0.2,
        ..WorkloadProfile::HOST
    };
    PhaseSchedule {
        phases: vec![
            phase("high resolution", 75, WorkloadProfile::COMPUTE.at_rate(40.0)),
            phase("thumbnails", 105, thumbnails.at_rate(25.0)),
        ],
        repeat: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other_and_repeat() {
        let mut schedule = PhaseSchedule {
            phases: vec![phase("a", 1, WorkloadProfile::HOST), phase("b", 2, WorkloadProfile::MID)],
            repeat: true,
        };
        let at = |schedule: &PhaseSchedule, seconds| {
            let (phase, end) = schedule.at(seconds);
            (phase.name.clone(), end)
        };
        assert_eq!(at(&schedule, -5.0), ("a".into(), Some(60.0)));
        assert_eq!(at(&schedule, 59.9), ("a".into(), Some(60.0)));
        assert_eq!(at(&schedule, 60.0), ("b".into(), Some(180.0)));
        assert_eq!(at(&schedule, 180.0), ("a".into(), Some(240.0)));
        assert_eq!(at(&schedule, 250.0), ("b".into(), Some(360.0)));
        schedule.repeat = false;
        assert_eq!(at(&schedule, 250.0), ("b".into(), None));
    }

    #[test]
    fn a_schedule_that_cannot_run_is_refused_with_the_field() {
        assert!(PhaseSchedule { phases: vec![], repeat: true }.check().is_err());
        let mut schedule = llm_training_phases();
        assert_eq!(schedule.check(), Ok(()));
        schedule.phases[0].profile.dram_ratio = f64::NAN;
        assert!(schedule.check().unwrap_err().contains("dram_ratio"));
        schedule.phases[0].seconds = 0.0;
        assert!(schedule.check().unwrap_err().contains("lasts 0 seconds"));
        assert_eq!(vision_pretraining_phases().check(), Ok(()));
    }
}
