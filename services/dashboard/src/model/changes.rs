//! Number of changes that were decided, that were only recommended, and that were made.

use std::ops::AddAssign;

use eadt_report::WorkloadReport;
use eadt_schemas::v1::ControllerAction;
use serde::Serialize;

use super::workload::DecisionRecord;

/// Changes of one workload or of all, as the report counts them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ChangeCounts {
    /// Decisions to change something, reverts included, whether or not they were applied.
    pub decided_changes: u64,
    /// Number of these that were recommended and not applied.
    pub recommendations: u64,
    /// Number of these that were applied, reverts included.
    pub changes: u64,
    /// Reverts that were applied.
    pub reverts: u64,
}

impl AddAssign for ChangeCounts {
    fn add_assign(&mut self, other: Self) {
        self.decided_changes += other.decided_changes;
        self.recommendations += other.recommendations;
        self.changes += other.changes;
        self.reverts += other.reverts;
    }
}

impl ChangeCounts {
    /// Returns these counts after a part of them has changed.
    #[must_use]
    pub fn replaced(self, before: Self, after: Self) -> Self {
        Self {
            decided_changes: self.decided_changes - before.decided_changes + after.decided_changes,
            recommendations: self.recommendations - before.recommendations + after.recommendations,
            changes: self.changes - before.changes + after.changes,
            reverts: self.reverts - before.reverts + after.reverts,
        }
    }
}

impl From<&WorkloadReport> for ChangeCounts {
    fn from(report: &WorkloadReport) -> Self {
        Self {
            decided_changes: report.decided_changes,
            recommendations: report.recommendations,
            changes: report.changes,
            reverts: report.reverts,
        }
    }
}

/// Counts one decision by what actuators reported of it, as the report does if it has actuations.
impl From<&DecisionRecord> for ChangeCounts {
    fn from(record: &DecisionRecord) -> Self {
        if record.decision.action == ControllerAction::Maintain {
            return Self::default();
        }
        let applied = record.was_applied();
        Self {
            decided_changes: 1,
            recommendations: u64::from(record.is_only_recommended()),
            changes: u64::from(applied),
            reverts: u64::from(applied && record.decision.takes_back()),
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_report::{ReportSettings, Reporter};
    use eadt_schemas::v1::{Actuation, ActuationOutcome, ChangeValidation, Decision};

    use super::*;
    use crate::model::WorkloadState;
    use crate::model::records::SharedTexts;

    /// Every sequence of outcomes up to three, for a change, a revert and a decision to maintain.
    #[test]
    fn a_decision_counts_as_in_the_report() {
        const OUTCOMES: [ActuationOutcome; 6] = [
            ActuationOutcome::Recommended,
            ActuationOutcome::Applied,
            ActuationOutcome::Ready,
            ActuationOutcome::RolledBack,
            ActuationOutcome::Refused,
            ActuationOutcome::Failed,
        ];
        let mut histories: Vec<Vec<ActuationOutcome>> = vec![Vec::new()];
        for length in 0..3 {
            let longest: Vec<_> = histories.iter().filter(|history| history.len() == length).cloned().collect();
            histories.extend(longest.iter().flat_map(|history| OUTCOMES.map(|outcome| [&history[..], &[outcome]].concat())));
        }
        let reverts = [ChangeValidation::Failed, ChangeValidation::None].map(|validation| (ControllerAction::Revert, validation));
        let others = [ControllerAction::SetPowerLimit, ControllerAction::Maintain].map(|action| (action, ChangeValidation::None));
        for (action, validation) in reverts.into_iter().chain(others) {
            for outcomes in &histories {
                let decision = Decision { id: "d".into(), workload: "a/b".into(), action, validation, ..Decision::default() };
                let actuation = |(number, outcome): (usize, &ActuationOutcome)| Actuation {
                    id: number.to_string(),
                    decision_id: "d".into(),
                    workload: "a/b".into(),
                    outcome: *outcome,
                    ..Actuation::default()
                };
                let actuations: Vec<Actuation> = outcomes.iter().enumerate().map(actuation).collect();
                let mut reporter = Reporter::default();
                reporter.add_decision(&decision);
                for actuation in &actuations {
                    reporter.add_actuation(actuation);
                }
                let report = reporter.workload_report("a/b", &ReportSettings::default()).unwrap();
                let mut state = WorkloadState::default();
                let mut texts = SharedTexts::default();
                state.decision(&decision, &"a/b".into(), &mut texts);
                for actuation in &actuations {
                    state.actuation(actuation, &mut texts);
                }
                assert_eq!(state.change_counts(), ChangeCounts::from(&report), "{action:?} {validation:?} {outcomes:?}");
                state.keep_decisions(0);
                assert_eq!(state.change_counts(), ChangeCounts::from(&report), "{action:?} {outcomes:?}");
            }
        }
    }
}
