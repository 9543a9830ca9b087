//! The joint stage of the controller `power-budget`: the fold of the workloads that share a power budget.
//!
//! In: efficiency windows, workloads, actuations and models, in the order that the log gives them. Out: decisions of the
//! workloads whose controller is `power-budget`, its *members*. Their windows come from the first stage, which leaves deciding
//! to this one. Like that it reads no clock, never awaits, does no I/O.
//!
//! **Time of an allocation.** One allocation is made at the end of every window that any member has. The first window that ends
//! later than all before it starts it, for the state at that time. An evaluation at `T` goes by what was so before `T`: windows
//! that end before it, layouts and actuations of times up to it. So it never waits: a member that fell silent holds up no
//! decision of another, and in which order the windows of one time come in makes no difference. Figures are one window old for
//! that, which costs nothing if they are means of hours.
//!
//! **When it publishes.** A member's decision of `T` comes with its own window that ends at `T`, so that every window has one
//! decision, as in the first stage. A change of a member whose window does not come is emitted at the next evaluation, or at once
//! if none was coming anyway.
//!
//! **The limit.** Watts are given out by [`allocation::allocate`], by caps, not by what was measured: what may come into force
//! counts. A reduction counts once `workloads.v1` shows it ready; a raise from the moment it is decided until it is refused,
//! overtaken or too old to be applied. A silent member is left as it is and counts in full.
//!
//! Input that came after the evaluation it belonged to is used from the next evaluation on, and counted: a replay, which merges
//! by event time, may differ there.

pub mod allocation;
mod member;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use eadt_models::published::CAP_CURVE_PREFIX;
use eadt_schemas::EventTime;
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::{Actuation, ActuationOutcome, DeadLetterReason, Decision, EfficiencyWindow, Model, WindowKind, Workload};
use serde::{Deserialize, Serialize};

use crate::joint::{JointFold, LATE_SECONDS};
use crate::models::{ModelOutcome, ModelRegistry};
use crate::settings::FoldSettings;
use crate::state::{StateError, StateRecord};
use allocation::{BudgetSettings, BudgetState, BudgetedWorkload, PowerPoint};
use member::BudgetMember;

/// Counts over the life of this value, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PowerBudgetTally {
    pub evaluations: u64,
    /// Events that came after the evaluation that they belonged to.
    pub late: u64,
    /// Power of all GPUs if every cap that may come into force did and were reached, at the last evaluation; `None` if a cap is
    /// unknown.
    pub exposed_watts: Option<f64>,
    /// Evaluations at which the sum of the members' lowest caps was above the budget.
    pub infeasible: u64,
}

/// State that belongs to no member.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct PowerBudgetHead {
    /// Time of the last evaluation.
    #[serde(rename = "looked")]
    evaluated: Option<EventTime>,
    /// Its outcome, in words.
    reason: String,
    /// The least time of the events since the last evaluation that belong to an earlier one.
    late: Option<EventTime>,
    /// A workload beyond the cap of workloads: while its power is not counted, no workload gets more.
    crowded_by: Option<String>,
}

/// State of the joint stage of the power budget.
#[derive(Debug)]
pub struct PowerBudgetFold {
    settings: FoldSettings,
    budget: BudgetSettings,
    head: PowerBudgetHead,
    members: BTreeMap<String, BudgetMember>,
    grants: BudgetState,
    models: ModelRegistry,
    /// Names of members and models that came, changed or went since the last commit.
    changed: BTreeSet<String>,
    changed_models: BTreeSet<String>,
    tally: PowerBudgetTally,
}

impl PowerBudgetFold {
    /// Builds the stage. Without a budget in its settings it has no members.
    pub fn new(settings: FoldSettings) -> Self {
        Self {
            budget: settings.power_budget.unwrap_or_default(),
            settings,
            head: PowerBudgetHead::default(),
            members: BTreeMap::new(),
            grants: BudgetState::default(),
            models: ModelRegistry::default(),
            changed: BTreeSet::new(),
            changed_models: BTreeSet::new(),
            tally: PowerBudgetTally::default(),
        }
    }

    fn note_late(&mut self, time: EventTime) {
        if self.head.evaluated.is_some_and(|evaluated| time <= evaluated) {
            self.tally.late += 1;
            self.head.late = Some(self.head.late.map_or(time, |late| late.min(time)));
        }
    }

    /// Allocates the budget for the state at `time`.
    fn decide_at(&mut self, time: EventTime, out: &mut Vec<Decision>) {
        let forgotten: Vec<String> = self
            .members
            .iter_mut()
            .filter_map(|(name, member)| {
                out.extend(member.pending_decision.take_overdue());
                member.advance_to(time, name, &mut self.grants);
                (member.is_gone(&self.settings) && self.grants.grants_of(name).is_none()).then(|| name.clone())
            })
            .collect();
        for name in forgotten {
            self.members.remove(&name);
            self.changed.insert(name);
        }
        let present: Vec<(&String, &BudgetMember, &Workload)> = self
            .members
            .iter()
            .filter_map(|(name, member)| Some((name, member, member.present_layout(&self.settings)?)))
            .collect();
        let points: Vec<(Vec<PowerPoint>, Option<String>)> =
            present.iter().map(|(_, member, workload)| member.points(workload, &self.models)).collect();
        let consumers: Vec<BudgetedWorkload<'_>> = present
            .iter()
            .zip(&points)
            .map(|((_, member, workload), (points, model))| BudgetedWorkload {
                model_version: model.as_deref(),
                cap_change: member.cap_change_state(time, &self.budget),
                lingering_watts: member.lingering_watts(),
                ..BudgetedWorkload::new(workload, points)
            })
            .collect();
        let crowded = self
            .head
            .crowded_by
            .as_ref()
            .map(|name| format!("{name} shares the budget, and the cap of workloads is reached (processor.max_workloads)"));
        let outcome = allocation::allocate(&mut self.grants, time, &consumers, &self.budget, crowded);
        let mut changes: BTreeMap<String, Decision> =
            outcome.decisions.into_iter().map(|decision| (decision.workload.clone(), decision)).collect();
        let decided: Vec<(String, Decision)> = present
            .iter()
            .map(|(name, member, workload)| {
                let mut decision =
                    changes.remove(*name).unwrap_or_else(|| member.maintain(workload, time, &self.budget, &outcome.reason));
                decision.origin = decision.origin.max(member.origin());
                decision.evidence.insert("members".into(), consumers.len() as f64);
                decision.evidence.extend(outcome.exposed_watts.map(|watts| ("cluster_exposed_watts".to_owned(), watts)));
                // A replay, which merges by time, may have evaluated otherwise from then on.
                let late = self.head.late.map(|late| (LATE_SECONDS.to_owned(), time.seconds_since(late)));
                decision.evidence.extend(late);
                ((*name).clone(), decision)
            })
            .collect();
        for (name, decision) in decided {
            let Some(member) = self.members.get_mut(&name) else { continue };
            let is_awaited = member.is_awaited(time, &self.budget);
            out.extend(member.pending_decision.queue_decision(decision, is_awaited));
        }
        self.head = PowerBudgetHead {
            evaluated: Some(time),
            reason: outcome.reason,
            late: None,
            crowded_by: self.head.crowded_by.take(),
        };
        self.changed.extend(self.members.keys().cloned());
        self.tally.evaluations += 1;
        self.tally.infeasible += u64::from(outcome.infeasible);
        self.tally.exposed_watts = outcome.exposed_watts;
    }
}

impl JointFold for PowerBudgetFold {
    type Tally = PowerBudgetTally;

    fn restore<K: AsRef<str>, V: AsRef<[u8]>>(
        settings: FoldSettings,
        records: impl IntoIterator<Item = (K, Option<V>)>,
    ) -> Result<Self, StateError> {
        state::restore(Self::new(settings), records)
    }

    fn on_window(&mut self, window: &EfficiencyWindow, out: &mut Vec<Decision>) {
        let (name, end) = (&window.workload, window.window_end);
        if window.kind != WindowKind::Tumbling
            || !self.members.get(name).is_some_and(|member| member.shares_budget(&self.settings))
        {
            return;
        }
        if self.head.evaluated.is_none_or(|evaluated| evaluated < end) {
            self.decide_at(end, out);
        } else if self.head.evaluated > Some(end) {
            self.note_late(end);
        }
        let Some(member) = self.members.get_mut(name) else { return };
        member.add_window(window, &self.budget);
        let reason = format!("this window came after the allocation at its end: {}", self.head.reason);
        out.extend(member.decision_for(window, &self.budget, &reason));
        self.changed.insert(name.clone());
    }

    fn on_workload(&mut self, event: &Workload) -> Result<(), DecodeError> {
        // The first stage refuses it.
        if crate::controller::ControllerSettings::from_workload(event).is_err() {
            return Ok(());
        }
        let name = &event.workload;
        let known = self.members.contains_key(name);
        if !known && !self.settings.shares_budget(event) {
            return Ok(());
        }
        if !known && self.members.len() >= self.settings.max_workloads {
            let detail = format!(
                "workload {name:?} is refused: the cap of {} workloads that share the power budget is reached; until it is accepted \
                 no workload gets more power (processor.max_workloads)",
                self.settings.max_workloads
            );
            self.head.crowded_by = Some(name.clone());
            return Err(DecodeError { reason: DeadLetterReason::StateLimit, field: None, detail });
        }
        if self.head.crowded_by.as_ref() == Some(name) {
            self.head.crowded_by = None;
        }
        self.note_late(event.time);
        self.members.entry(name.clone()).or_default().set_layout(event);
        self.changed.insert(name.clone());
        Ok(())
    }

    /// Notes a tombstone. It has no time of its own: it counts from the next allocation on.
    fn on_workload_gone(&mut self, name: &str) {
        if let Some(member) = self.members.get_mut(name) {
            // The granted power may still come into force if the workload is back soon.
            *member = BudgetMember::default();
            self.changed.insert(name.to_owned());
        }
        if self.head.crowded_by.as_deref() == Some(name) {
            self.head.crowded_by = None;
        }
    }

    fn on_actuation(&mut self, event: &Actuation) {
        if event.outcome != ActuationOutcome::Refused || !self.members.contains_key(&event.workload) {
            return;
        }
        self.note_late(event.time);
        if let Some(member) = self.members.get_mut(&event.workload) {
            member.on_refused(event.time, &event.decision_id);
            self.changed.insert(event.workload.clone());
        }
    }

    fn on_model(&mut self, event: &Model) {
        if event.name.starts_with(CAP_CURVE_PREFIX) && self.models.put(event) == ModelOutcome::InForce {
            self.note_late(event.time);
            self.changed_models.insert(event.name.clone());
        }
    }

    fn on_model_gone(&mut self, name: &str) {
        if self.models.withdraw(name) {
            self.changed_models.insert(name.to_owned());
        }
    }

    fn max_future(&self) -> Option<i64> {
        self.settings.max_future
    }

    fn take_changes(&mut self) -> Vec<StateRecord> {
        state::take_changes(self)
    }

    fn member_count(&self) -> usize {
        self.members.len()
    }

    fn tally(&self) -> PowerBudgetTally {
        self.tally
    }
}
