//! Step 2: translates a decision into a plan for the present object. Pure.

use eadt_bus::chaos;
use eadt_cluster::ManagedWorkload;
use eadt_schemas::v1::{ControllerAction, Decision, Layout};

/// The necessary action for a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum DecisionPlan {
    /// `maintain`: nothing, and nothing to report.
    Nothing,
    /// It is the one that the object carries already: applied before a restart of the actuator.
    AppliedAlready,
    /// A change, not checked yet.
    Change(PlannedChange),
}

/// A change that was not checked yet.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedChange {
    pub layout: Layout,
    /// Processes are replaced.
    pub restarts: bool,
}

/// Compares a decision with its object.
pub fn plan_decision(decision: &Decision, managed: &ManagedWorkload) -> DecisionPlan {
    if decision.action == ControllerAction::Maintain {
        return DecisionPlan::Nothing;
    }
    let is_applied = managed.applied.as_ref().is_some_and(|applied| applied.decision_id == decision.id);
    if is_applied && !chaos::is_off("recognition") {
        return DecisionPlan::AppliedAlready;
    }
    let mut layout = merge_layouts(&decision.to, &managed.state.layout);
    if decision.action == ControllerAction::Revert {
        // Only then can a job return to its starting settings, and its GPUs to their uncapped power.
        (layout.precision, layout.frozen_prefix_layers) = decision.to.asked_of_job();
        (layout.power_limit_watts, layout.sm_clock_mhz) = (decision.to.power_limit_watts, decision.to.sm_clock_mhz);
    }
    let restarts = needs_restart(&managed.state.layout, &layout);
    DecisionPlan::Change(PlannedChange { layout, restarts })
}

/// Returns the decision's knobs over the present ones: a knob that it does not name stays as it is.
fn merge_layouts(to: &Layout, present: &Layout) -> Layout {
    Layout {
        replicas: to.replicas.or(present.replicas),
        mps_thread_percentage: to.mps_thread_percentage.or(present.mps_thread_percentage),
        world_size: to.world_size.or(present.world_size),
        local_world_size: to.local_world_size.or(present.local_world_size),
        power_limit_watts: to.power_limit_watts.or(present.power_limit_watts),
        sm_clock_mhz: to.sm_clock_mhz.or(present.sm_clock_mhz),
        precision: to.precision.or(present.precision),
        frozen_prefix_layers: to.frozen_prefix_layers.or(present.frozen_prefix_layers),
    }
}

/// Returns true if the change needs a restart. Number, world and thread percentage of processes are fixed when they start;
/// everything else turns while they run.
fn needs_restart(from: &Layout, to: &Layout) -> bool {
    let of_processes = |l: &Layout| (l.replicas, l.mps_thread_percentage, l.world_size, l.local_world_size);
    of_processes(from) != of_processes(to)
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::Precision;

    use super::*;
    use crate::check::tests::{decision, managed};

    #[test]
    fn a_knob_that_is_not_named_stays() {
        let mut managed = managed();
        managed.state.layout.power_limit_watts = Some(300.0);
        let DecisionPlan::Change(planned) = plan_decision(&decision(), &managed) else { panic!("a change was decided") };
        assert_eq!((planned.layout.mps_thread_percentage, planned.layout.power_limit_watts), (Some(40), Some(300.0)));
        assert!(planned.restarts);
    }

    #[test]
    fn a_cap_alone_restarts_nothing() {
        let mut decision = decision();
        decision.to = Layout { power_limit_watts: Some(250.0), ..Layout::default() };
        let DecisionPlan::Change(planned) = plan_decision(&decision, &managed()) else { panic!("a change was decided") };
        assert!(!planned.restarts);
    }

    #[test]
    fn only_a_revert_lets_a_job_go_back_to_what_it_was_started_with() {
        let mut managed = managed();
        managed.state.layout.precision = Some(Precision::Bf16);
        let planned = |action| match plan_decision(&Decision { action, ..decision() }, &managed) {
            DecisionPlan::Change(planned) => planned.layout.precision,
            other => panic!("not a change: {other:?}"),
        };
        assert_eq!((planned(ControllerAction::Decrease), planned(ControllerAction::Revert)), (Some(Precision::Bf16), None));
    }

    #[test]
    fn a_revert_lifts_a_cap_that_it_does_not_name() {
        let mut managed = managed();
        (managed.state.layout.power_limit_watts, managed.state.layout.sm_clock_mhz) = (Some(250.0), Some(1200.0));
        let back = Decision {
            action: ControllerAction::Revert,
            to: Layout { mps_thread_percentage: Some(50), ..Layout::default() },
            ..decision()
        };
        let DecisionPlan::Change(planned) = plan_decision(&back, &managed) else { panic!("a change was decided") };
        assert_eq!((planned.layout.power_limit_watts, planned.layout.sm_clock_mhz), (None, None));
        assert!(planned.layout.replicas.is_some(), "what processes are made of stays");
    }

    #[test]
    fn maintain_means_nothing() {
        let maintain = Decision { action: ControllerAction::Maintain, ..decision() };
        assert_eq!(plan_decision(&maintain, &managed()), DecisionPlan::Nothing);
    }
}
