//! Changes that were applied. A decision alone changes nothing: in mode `recommend` it is a text for people.

use std::collections::{BTreeMap, BTreeSet};

use eadt_report::states::decision_takes_back;
use eadt_schemas::v1::Decision;

/// Decisions to change something and reports that one was applied, each kept until the other is read: the two topics are read
/// side by side, in no order.
#[derive(Debug, Default)]
pub struct UnmatchedChanges {
    /// Outcome of each decision if it is applied, by the decision's id.
    decided: BTreeMap<String, &'static str>,
    /// Ids of applied decisions that were not read yet.
    applied: BTreeSet<String>,
}

impl UnmatchedChanges {
    /// Takes a decision to change something. Returns its outcome if it is known to be applied.
    pub fn on_decision(&mut self, decision: &Decision) -> Option<&'static str> {
        let outcome = if decision_takes_back(decision) { "reverted" } else { "changed" };
        if self.applied.remove(&decision.id) {
            return Some(outcome);
        }
        self.decided.insert(decision.id.clone(), outcome);
        None
    }

    /// Takes a report that a decision was applied. Returns its outcome if the decision is known.
    pub fn on_applied(&mut self, decision_id: &str) -> Option<&'static str> {
        let outcome = self.decided.remove(decision_id);
        if outcome.is_none() {
            self.applied.insert(decision_id.to_owned());
        }
        outcome
    }

    /// Forgets all but so many of each kind, the oldest first: ids of one workload begin with its name and the time.
    pub fn keep_newest(&mut self, most: usize) {
        while self.decided.len() > most {
            self.decided.pop_first();
        }
        while self.applied.len() > most {
            self.applied.pop_first();
        }
    }
}
