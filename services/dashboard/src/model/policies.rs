//! Policy of each workload as declared in the log: mode, bounds, pause, and their last change.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{ActuationOutcome, ControllerAction, LayoutBounds, UpdateMode, Workload};
use serde::{Deserialize, Serialize};

use super::decisions::{DecisionRow, decision_row};
use super::fleet::InvalidQuery;
use super::workload::WorkloadState;
use super::{DEFAULT_ROWS, DashboardModel, rows_of_page};

/// Selection of workloads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyQuery {
    /// A part of the name, in either case.
    pub q: String,
    /// Only `observe`, `recommend`, `enforce`, `paused`, or `none`: without a declaration.
    pub mode: String,
    /// Number of rows to skip, by name.
    pub skip: usize,
    pub limit: Option<usize>,
}

/// Policy in force for a workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EffectivePolicy {
    pub mode: UpdateMode,
    pub paused: bool,
    /// The user who set the mode, and the one who paused or resumed it, if known.
    pub mode_set_by: Option<String>,
    pub pause_set_by: Option<String>,
    /// Absent: the processor's default.
    pub controller: Option<String>,
    /// Settings of that controller, if the declaration carries them.
    pub controller_settings: Option<serde_json::Map<String, serde_json::Value>>,
    pub bounds: LayoutBounds,
}

impl From<&Workload> for EffectivePolicy {
    fn from(declared: &Workload) -> Self {
        Self {
            mode: declared.mode,
            paused: declared.paused,
            mode_set_by: declared.mode_set_by.clone(),
            pause_set_by: declared.pause_set_by.clone(),
            controller: declared.controller.clone(),
            controller_settings: declared.controller_settings.clone(),
            bounds: declared.bounds.clone(),
        }
    }
}

/// The last time that something of the terms changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyChange {
    pub time_ms: i64,
    /// The terms before it.
    pub before: EffectivePolicy,
}

impl PolicyChange {
    /// Returns the change between two declarations; `None` if the policy is the same.
    pub fn between(before: &Workload, after: &Workload) -> Option<Self> {
        let terms = EffectivePolicy::from(before);
        // The same terms in another's name are no change.
        let without_editors = |terms: EffectivePolicy| EffectivePolicy { mode_set_by: None, pause_set_by: None, ..terms };
        let same = without_editors(terms.clone()) == without_editors(EffectivePolicy::from(after));
        (!same).then(|| Self { time_ms: after.time.millis(), before: terms })
    }
}

/// One workload's policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyRow {
    pub workload: String,
    /// Absent if the workload is not declared: then nothing of it is ever changed.
    pub terms: Option<EffectivePolicy>,
    pub kind: Option<String>,
    /// Time of the newest declaration.
    pub declared_ms: Option<i64>,
    /// Absent: none since the oldest declaration that the log still has.
    pub changed: Option<PolicyChange>,
    /// The newest decision to change something, or its verdict.
    pub decision: Option<DecisionRow>,
    /// A recommendation without a reaction that has not expired.
    pub recommended: Option<DecisionRow>,
}

/// Workloads by policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PolicyCounts {
    pub observe: usize,
    pub recommend: usize,
    pub enforce: usize,
    /// Number of these that are paused.
    pub paused: usize,
    pub undeclared: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyPage {
    pub rows: Vec<PolicyRow>,
    pub counts: PolicyCounts,
    pub matching: usize,
}

/// Returns the filter for a mode.
fn filter(mode: &str) -> Result<fn(&WorkloadState) -> bool, InvalidQuery> {
    Ok(match mode {
        "" => |_| true,
        "observe" => |state| state.mode() == Some(UpdateMode::Observe),
        "recommend" => |state| state.mode() == Some(UpdateMode::Recommend),
        "enforce" => |state| state.mode() == Some(UpdateMode::Enforce),
        "paused" => WorkloadState::is_paused,
        "none" => |state| state.declaration.is_none(),
        other => return Err(InvalidQuery(format!("mode={other:?}: there are observe, recommend, enforce, paused and none"))),
    })
}

impl DashboardModel {
    /// Returns the kind of a workload and its policy; `None` if it is not declared.
    pub(crate) fn declared_terms(&self, workload: &str) -> Option<(String, EffectivePolicy)> {
        let declared = self.workloads.get(workload)?.declaration.as_deref()?;
        Some((declared.kind.clone(), EffectivePolicy::from(declared)))
    }

    /// Policies by the names of their workloads.
    pub fn policies(&self, query: &PolicyQuery) -> Result<PolicyPage, InvalidQuery> {
        let fits = filter(&query.mode)?;
        let wanted = query.q.to_lowercase();
        let mut counts = PolicyCounts::default();
        for state in self.workloads.values() {
            counts.paused += usize::from(state.is_paused());
            *match state.mode() {
                Some(UpdateMode::Observe) => &mut counts.observe,
                Some(UpdateMode::Recommend) => &mut counts.recommend,
                Some(UpdateMode::Enforce) => &mut counts.enforce,
                None => &mut counts.undeclared,
            } += 1;
        }
        let found = || self.workloads.iter().filter(|(name, state)| fits(state) && name.to_lowercase().contains(&wanted));
        let limit = rows_of_page(query.limit, DEFAULT_ROWS);
        let rows = found().skip(query.skip).take(limit).map(|(name, state)| policy_row(name, state, self.now)).collect();
        Ok(PolicyPage { rows, counts, matching: found().count() })
    }
}

fn policy_row(name: &str, state: &WorkloadState, now: Option<EventTime>) -> PolicyRow {
    let declaration = state.declaration.as_deref();
    let open = |record: &&super::workload::DecisionRecord| {
        let decision = &record.decision;
        decision.action != ControllerAction::Maintain
            && record.actuations.last().is_some_and(|actuation| actuation.outcome == ActuationOutcome::Recommended)
            && now.is_none_or(|now| decision.expires > now)
    };
    PolicyRow {
        workload: name.to_owned(),
        terms: declaration.map(EffectivePolicy::from),
        kind: declaration.map(|declared| declared.kind.clone()),
        declared_ms: declaration.map(|declared| declared.time.millis()),
        changed: state.policy_change.as_deref().cloned(),
        decision: state.newest_change().map(decision_row),
        recommended: state.newest_change().filter(open).map(decision_row),
    }
}
