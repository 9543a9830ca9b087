use serde::{Deserialize, Serialize};

/// What bounds a workload's speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The SMs: a lower clock costs time.
    Compute,
    /// The memory: a lower clock costs little time.
    Memory,
    Balanced,
    /// Neither: the GPU waits for host, input or network.
    Waiting,
}

impl Phase {
    pub const ALL: [Self; 4] = [Self::Compute, Self::Memory, Self::Balanced, Self::Waiting];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory",
            Self::Balanced => "balanced",
            Self::Waiting => "waiting",
        }
    }
}

/// Where one phase ends and another begins; ratios of time, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Thresholds {
    /// `sm_active` below which the GPU waits. Default 0.2.
    pub waiting_sm_active_ratio: f64,
    /// `dram_active` from which the memory bounds. Default 0.5.
    pub memory_dram_active_ratio: f64,
    /// `dram_active` below which the SMs bound, if `sm_active` is above half. Default 0.35.
    pub compute_dram_active_ratio: f64,
    /// Distance that a value must go past a threshold to leave a phase. Default 0.05.
    pub hysteresis_ratio: f64,
    /// Windows in a row that must say the same before the phase changes. Default 2.
    pub windows: u32,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            waiting_sm_active_ratio: 0.2,
            memory_dram_active_ratio: 0.5,
            compute_dram_active_ratio: 0.35,
            hysteresis_ratio: 0.05,
            windows: 2,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum InvalidThresholds {
    #[error("{name} is {value}; it must be within 0 and 1")]
    Ratio { name: &'static str, value: f64 },
    #[error("compute_dram_active_ratio is above memory_dram_active_ratio: a value between them would be both")]
    Order,
    #[error("windows is 0; it must be at least 1")]
    Windows,
}

/// SM activity of compute-bound work; below it something else takes part.
const COMPUTE_SM_ACTIVE_RATIO: f64 = 0.5;

/// Tells phases by SM and DRAM activity, with hysteresis in value and time.
///
/// `gpu_utilization` is not used: it says that some kernel ran, and is near 100 % for memory-bound work, too.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PhaseDetector {
    phase: Option<Phase>,
    next: Option<Phase>,
    seen: u32,
}

impl Thresholds {
    pub fn check(&self) -> Result<(), InvalidThresholds> {
        for (name, value) in [
            ("waiting_sm_active_ratio", self.waiting_sm_active_ratio),
            ("memory_dram_active_ratio", self.memory_dram_active_ratio),
            ("compute_dram_active_ratio", self.compute_dram_active_ratio),
            ("hysteresis_ratio", self.hysteresis_ratio),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(InvalidThresholds::Ratio { name, value });
            }
        }
        if self.compute_dram_active_ratio > self.memory_dram_active_ratio {
            return Err(InvalidThresholds::Order);
        }
        if self.windows == 0 { Err(InvalidThresholds::Windows) } else { Ok(()) }
    }

    /// The phase of one window, the present one held on to by the hysteresis.
    fn phase(&self, now: Option<Phase>, sm_active: f64, dram_active: f64) -> Phase {
        let held = |phase: Phase| if now == Some(phase) { self.hysteresis_ratio } else { 0.0 };
        let waiting = self.waiting_sm_active_ratio + held(Phase::Waiting);
        if sm_active < waiting && dram_active < waiting {
            return Phase::Waiting;
        }
        if dram_active >= self.memory_dram_active_ratio - held(Phase::Memory) {
            return Phase::Memory;
        }
        let held = held(Phase::Compute);
        let compute = sm_active >= COMPUTE_SM_ACTIVE_RATIO - held && dram_active < self.compute_dram_active_ratio + held;
        if compute { Phase::Compute } else { Phase::Balanced }
    }
}

impl PhaseDetector {
    /// The phase as far as it is known.
    pub fn phase(&self) -> Option<Phase> {
        self.phase
    }

    /// Takes the mean activities of a window; a window without them says nothing and changes nothing.
    pub fn observe(&mut self, thresholds: &Thresholds, sm_active: Option<f64>, dram_active: Option<f64>) -> Option<Phase> {
        let (Some(sm), Some(dram)) = (sm_active.filter(|v| v.is_finite()), dram_active.filter(|v| v.is_finite())) else {
            return self.phase;
        };
        let said = thresholds.phase(self.phase, sm, dram);
        if self.phase == Some(said) {
            (self.next, self.seen) = (None, 0);
            return self.phase;
        }
        self.seen = if self.next == Some(said) { self.seen + 1 } else { 1 };
        self.next = Some(said);
        // The first phase has nothing to be held on to.
        if self.phase.is_none() || self.seen >= thresholds.windows {
            *self = Self { phase: Some(said), next: None, seen: 0 };
        }
        self.phase
    }
}

/// The *frequency plan*'s own rule: utilisation over 80 and DRAM activity below 0.3 is compute-bound, utilisation below 50
/// and DRAM activity over 0.6 memory-bound, all else balanced.
///
/// Kept for comparison, and not the default: it sets a percentage beside a fraction, and its memory-bound case is
/// nearly unreachable, because a GPU that moves data for 60 % of the time runs a kernel for at least as long.
pub fn literal_phase(gpu_utilization_percent: f64, dram_active_ratio: f64) -> Phase {
    if gpu_utilization_percent > 80.0 && dram_active_ratio < 0.3 {
        Phase::Compute
    } else if gpu_utilization_percent < 50.0 && dram_active_ratio > 0.6 {
        Phase::Memory
    } else {
        Phase::Balanced
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(values: &[(f64, f64)]) -> Vec<Option<Phase>> {
        let (mut detector, thresholds) = (PhaseDetector::default(), Thresholds::default());
        values.iter().map(|&(sm, dram)| detector.observe(&thresholds, Some(sm), Some(dram))).collect()
    }

    #[test]
    fn tells_phases_by_what_bounds() {
        let one = |sm, dram| run(&[(sm, dram)])[0].unwrap();
        assert_eq!(one(0.95, 0.2), Phase::Compute);
        assert_eq!(one(0.95, 0.7), Phase::Memory);
        assert_eq!(one(0.7, 0.42), Phase::Balanced);
        assert_eq!(one(0.3, 0.1), Phase::Balanced);
        assert_eq!(one(0.03, 0.002), Phase::Waiting, "the LSTM of the A100 measurements");
    }

    #[test]
    fn a_single_window_and_a_value_near_a_threshold_change_nothing() {
        let compute = Some(Phase::Compute);
        assert_eq!(run(&[(0.9, 0.2), (0.9, 0.7), (0.9, 0.2), (0.9, 0.7)]), [compute; 4], "one window at a time");
        assert_eq!(run(&[(0.9, 0.2), (0.9, 0.7), (0.9, 0.7)])[2], Some(Phase::Memory));
        let near: Vec<(f64, f64)> = (0..20).map(|i| (0.9, if i % 4 < 2 { 0.34 } else { 0.39 })).collect();
        assert!(run(&near).iter().all(|phase| *phase == compute), "{:?}", run(&near));
        let (mut detector, thresholds) = (PhaseDetector::default(), Thresholds::default());
        detector.observe(&thresholds, Some(0.9), Some(0.2));
        assert_eq!(detector.observe(&thresholds, None, Some(0.9)), compute, "no telemetry is no phase");
        assert_eq!(PhaseDetector::default().observe(&thresholds, None, None), None);
    }

    #[test]
    fn the_literal_rule_hardly_ever_finds_memory_bound_work() {
        // Memory-bound spmv at 1410 MHz: a kernel runs all the time.
        assert_eq!(literal_phase(95.0, 0.75), Phase::Balanced);
        assert_eq!(literal_phase(95.0, 0.2), Phase::Compute);
        assert_eq!(literal_phase(49.0, 0.61), Phase::Memory);
    }

    #[test]
    fn thresholds_that_overlap_are_refused() {
        let wrong = Thresholds { compute_dram_active_ratio: 0.6, ..Thresholds::default() };
        assert_eq!(wrong.check(), Err(InvalidThresholds::Order));
        let percent = Thresholds { waiting_sm_active_ratio: 20.0, ..Thresholds::default() };
        assert!(percent.check().unwrap_err().to_string().contains("waiting_sm_active_ratio is 20"));
        assert!(Thresholds::default().check().is_ok());
    }

    proptest! {
        #[test]
        fn a_phase_is_held_for_at_least_as_many_windows_as_it_takes_to_change(
            values in prop::collection::vec((0.0..1.0, 0.0..1.0), 1..60),
        ) {
            let phases = run(&values);
            let changes: Vec<usize> = (1..phases.len()).filter(|&i| phases[i] != phases[i - 1]).collect();
            prop_assert!(changes.windows(2).all(|pair| pair[1] - pair[0] >= 2), "{phases:?}");
        }
    }
}
