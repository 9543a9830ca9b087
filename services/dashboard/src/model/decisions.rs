//! Decisions: lists, and one with its evidence and its outcome.

use std::borrow::Cow;
use std::collections::BTreeMap;

use eadt_report::states::ChangeFate;
use eadt_schemas::v1::{ActuationOutcome, ChangeValidation, ControllerAction, Layout, Origin};
use serde::{Deserialize, Serialize};

use super::fleet::InvalidQuery;
use super::records::StoredActuation;
use super::workload::DecisionRecord;
use super::{DEFAULT_ROWS, DashboardModel, rows_of_page};

/// Selection of decisions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DecisionQuery {
    /// Only of this workload.
    pub workload: Option<String>,
    /// Number of decisions to skip, newest first.
    pub skip: usize,
    pub limit: Option<usize>,
}

/// A decision in one line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecisionRow {
    pub id: String,
    pub workload: String,
    pub time_ms: i64,
    pub action: ControllerAction,
    /// Text of the action.
    pub action_text: Cow<'static, str>,
    /// It takes back a change that failed. A hold-out's revert takes none back.
    pub takes_back: bool,
    pub validation: ChangeValidation,
    pub reason: String,
    pub controller: String,
    pub origin: Origin,
    pub from: Layout,
    pub to: Layout,
    /// Outcome that an actuator reported last.
    pub outcome: Option<ActuationOutcome>,
    /// The same, with refusals by the workload's mode or pause apart.
    pub fate: Option<ChangeFate>,
    /// The decision that this one judges.
    pub concerns: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecisionPage {
    pub rows: Vec<DecisionRow>,
    pub matching: usize,
    /// Older ones that are no longer kept.
    pub dropped: u64,
}

/// One decision with everything about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecisionDetail {
    #[serde(flatten)]
    pub row: DecisionRow,
    pub controller_version: String,
    pub model_version: Option<String>,
    pub restarts: bool,
    pub generation: Option<u64>,
    pub expires_ms: i64,
    pub hold_until_ms: Option<i64>,
    /// The figures that led to it, by name; units are in the names.
    pub evidence: BTreeMap<String, f64>,
    pub actuations: Vec<ActuationRow>,
    /// The decision that judged it, with the figures of the outcome.
    pub verdict: Option<Box<DecisionDetail>>,
    /// The decision that it judges.
    pub judged: Option<Box<DecisionRow>>,
    /// The one before it and the one after it, of the same workload.
    pub older: Option<String>,
    pub newer: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ActuationRow {
    pub time_ms: i64,
    pub outcome: ActuationOutcome,
    pub reason: String,
    pub layout: Layout,
    pub generation: u64,
    pub downtime_seconds: Option<f64>,
    pub origin: Origin,
}

impl From<&StoredActuation> for ActuationRow {
    fn from(event: &StoredActuation) -> Self {
        Self {
            time_ms: event.time.millis(),
            outcome: event.outcome,
            reason: event.reason.to_string(),
            layout: (*event.layout).clone(),
            generation: event.generation,
            downtime_seconds: event.downtime_seconds,
            origin: event.origin,
        }
    }
}

pub(super) fn decision_row(record: &DecisionRecord) -> DecisionRow {
    let decision = &record.decision;
    DecisionRow {
        id: decision.id.to_string(),
        workload: decision.workload.to_string(),
        time_ms: decision.time.millis(),
        action: decision.action,
        action_text: decision.action_text(),
        takes_back: decision.takes_back(),
        validation: decision.validation,
        reason: decision.reason.to_string(),
        controller: decision.controller.to_string(),
        origin: decision.origin,
        from: (*decision.from).clone(),
        to: (*decision.to).clone(),
        outcome: record.actuations.last().map(|actuation| actuation.outcome),
        fate: record.fate(),
        concerns: decision.concerns.as_deref().map(str::to_owned),
    }
}

fn detail_row(record: &DecisionRecord) -> DecisionDetail {
    let decision = &record.decision;
    DecisionDetail {
        row: decision_row(record),
        controller_version: decision.controller_version.to_string(),
        model_version: decision.model_version.as_deref().map(str::to_owned),
        restarts: decision.restarts,
        generation: decision.generation,
        expires_ms: decision.expires.millis(),
        hold_until_ms: decision.hold_until.map(eadt_schemas::EventTime::millis),
        evidence: decision.evidence(),
        actuations: record.actuations.iter().map(ActuationRow::from).collect(),
        verdict: None,
        judged: None,
        older: None,
        newer: None,
    }
}

impl DashboardModel {
    /// Decisions of one workload or of all, newest first.
    pub fn decision_page(&self, query: &DecisionQuery) -> Result<DecisionPage, InvalidQuery> {
        let mut records: Vec<&DecisionRecord> = match &query.workload {
            Some(name) if !self.workloads.contains_key(name.as_str()) => {
                return Err(InvalidQuery::no_workload(name));
            }
            Some(name) => self.decisions_of(name).collect(),
            None => self.workloads.values().flat_map(super::WorkloadState::decisions).collect(),
        };
        records.sort_by(|a, b| b.decision.time.cmp(&a.decision.time).then_with(|| a.decision.id.cmp(&b.decision.id)));
        let limit = rows_of_page(query.limit, DEFAULT_ROWS);
        let rows = records.iter().skip(query.skip).take(limit).map(|record| decision_row(record)).collect();
        Ok(DecisionPage { rows, matching: records.len(), dropped: self.counts.decisions_dropped })
    }

    /// Returns one decision; `None` if it is not kept.
    pub fn decision_detail(&self, workload: &str, id: &str) -> Option<DecisionDetail> {
        let all: Vec<&DecisionRecord> = self.decisions_of(workload).collect();
        let at = all.iter().position(|record| *record.decision.id == *id)?;
        let record = all[at];
        let verdict = all.iter().find(|other| other.decision.concerns.as_deref() == Some(id));
        let judged = record.decision.concerns.as_deref();
        let judged = judged.and_then(|judged| all.iter().find(|other| *other.decision.id == *judged));
        let id_of = |record: &&DecisionRecord| record.decision.id.to_string();
        Some(DecisionDetail {
            verdict: verdict.map(|verdict| Box::new(detail_row(verdict))),
            judged: judged.map(|judged| Box::new(decision_row(judged))),
            older: all.get(at + 1).map(id_of),
            newer: at.checked_sub(1).and_then(|newer| all.get(newer)).map(id_of),
            ..detail_row(record)
        })
    }
}
