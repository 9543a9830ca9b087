//! Carries out decisions: dereference → plan → check → apply, and the recommendations that people approved.

use std::collections::BTreeSet;
use std::time::Instant;

use eadt_bus::chaos;
use eadt_cluster::{ApprovedDecision, ClusterError, ClusterRemedy};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{ControllerAction, Decision, Origin, UpdateMode};

use super::ActuatorSession;
use super::decision_queue::QueuedDecision;
use super::job_directives::JOB_POLL;
use crate::apply;
use crate::check::{CheckVerdict, DecisionRefusal, check};
use crate::checkpoint::CheckpointGate;
use crate::find_workload::find_workload;
use crate::plan::{DecisionPlan, plan_decision};
use crate::report::{self, ActuatorEvent};

/// The result of a decision's steps.
enum DecisionOutcome {
    Done(Option<ActuatorEvent>),
    /// The job's checkpoint is waited for.
    WaitsForCheckpoint,
    /// The published events of the workload must be committed first.
    WaitsForCommit,
}

/// The result of one attempt at a decision.
enum AttemptResult {
    Done,
    /// Not its turn yet, or its job writes a checkpoint: it holds back its workload.
    Waits,
    /// The cluster did not answer, or a commit is needed first: it holds back its partition.
    Later,
    /// The cluster is going away.
    Stopped,
}

impl ActuatorSession<'_> {
    /// Finishes the decisions that can be finished; false when the cluster is going away.
    pub(super) fn finish_decisions(&mut self) -> bool {
        if !self.view.is_current() {
            return true;
        }
        for partition in self.queue.partitions() {
            // Workloads whose first decision waits.
            let mut held = BTreeSet::new();
            let mut first_wait = None;
            let mut from = 0;
            while let Some((place, mut queued)) = self.queue.take(partition, from, &held) {
                let early = queued.not_before.is_some_and(|not_before| Instant::now() < not_before);
                let result = match early {
                    true if queued.trouble.is_some() => AttemptResult::Later,
                    true => AttemptResult::Waits,
                    false => self.attempt(&mut queued, &mut first_wait),
                };
                match result {
                    AttemptResult::Done => self.queue.finish(partition, &queued),
                    AttemptResult::Waits => {
                        held.extend(queued.decision.as_ref().ok().map(|decision| decision.workload.clone()));
                        self.queue.put_back(partition, place, queued);
                    }
                    AttemptResult::Later => {
                        self.queue.put_back(partition, place, queued);
                        break;
                    }
                    AttemptResult::Stopped => return false,
                }
                from = place;
            }
        }
        true
    }

    /// `first_wait`: the time at which it was not yet the turn of one of these decisions. Once time has gone on since, that one is
    /// asked again first, so that the order does not depend on the host's speed.
    fn attempt(&mut self, queued: &mut QueuedDecision, first_wait: &mut Option<EventTime>) -> AttemptResult {
        let decision = match &queued.decision {
            Ok(decision) => decision,
            Err(unreadable) => {
                self.publisher.publish_dead_letter(&queued.record, unreadable);
                return AttemptResult::Done;
            }
        };
        if self.publisher.is_answered(decision) && !chaos::is_off("recognition") {
            // Applied before a restart, it may lack the other parts of its step.
            self.publisher.mark_unsettled(&decision.workload);
            return AttemptResult::Done;
        }
        let asked = self.deps.cluster.now();
        let Some(now) = self.deps.cluster.effect_time(decision) else {
            first_wait.get_or_insert(asked);
            return AttemptResult::Waits;
        };
        if first_wait.is_some_and(|first| first != now) {
            return AttemptResult::Later;
        }
        // The object may have changed while the decision waited for its turn.
        if self.view.is_behind(&*self.deps.cluster) && !self.reconcile() {
            return AttemptResult::Later;
        }
        if queued.attempts == 0 {
            self.metrics.decisions.inc();
            self.deps.cluster.on_decision(decision);
        }
        match self.advance_decision(decision, queued.trouble.as_deref(), now) {
            Ok(DecisionOutcome::Done(report)) => {
                self.stop_waiting(decision);
                if let Some(report) = report {
                    self.publisher.publish(report);
                }
                AttemptResult::Done
            }
            Ok(DecisionOutcome::WaitsForCommit) => {
                queued.attempts = queued.attempts.max(1);
                AttemptResult::Later
            }
            Ok(DecisionOutcome::WaitsForCheckpoint) => {
                queued.attempts = queued.attempts.max(1);
                queued.not_before = Some(Instant::now() + JOB_POLL);
                AttemptResult::Waits
            }
            Err(error) => match error.remedy {
                ClusterRemedy::Stopped => AttemptResult::Stopped,
                remedy if remedy == ClusterRemedy::Refused || chaos::is_off("retries") => {
                    self.stop_waiting(decision);
                    self.refuse(decision, &refused_by_cluster(&error), now);
                    AttemptResult::Done
                }
                // Look again: it may have taken effect, or another manager changed the object.
                _ => {
                    self.view.request_refresh();
                    self.metrics.retries.inc();
                    let pause = self.retry_pause(queued.attempts);
                    tracing::warn!(
                        workload = decision.workload,
                        decision = decision.id,
                        %error,
                        pause_seconds = pause.as_secs_f64(),
                        "a change was not written; it is tried again until it expires"
                    );
                    queued.attempts += 1;
                    queued.trouble = Some(error.to_string());
                    queued.not_before = Some(Instant::now() + pause);
                    AttemptResult::Later
                }
            },
        }
    }

    /// Takes a decision through its steps. `trouble`: why it could not be written until now.
    fn advance_decision(
        &mut self,
        decision: &Decision,
        trouble: Option<&str>,
        now: EventTime,
    ) -> Result<DecisionOutcome, ClusterError> {
        let cluster = &self.deps.cluster;
        let managed = match find_workload(decision, self.view.workloads()) {
            Ok(managed) => managed,
            Err(_) if decision.action == ControllerAction::Maintain => return Ok(DecisionOutcome::Done(None)),
            Err(refusal) => {
                self.refuse(decision, &refusal, now);
                return Ok(DecisionOutcome::Done(None));
            }
        };
        let planned = match plan_decision(decision, managed) {
            DecisionPlan::Nothing => return Ok(DecisionOutcome::Done(None)),
            // Its effect is published as the difference between the published and the present state.
            DecisionPlan::AppliedAlready => {
                self.publisher.mark_unsettled(&decision.workload);
                return Ok(DecisionOutcome::Done(None));
            }
            DecisionPlan::Change(planned) => planned,
        };
        if planned.restarts
            && decision.action != ControllerAction::Revert
            && managed.state.mode == UpdateMode::Enforce
            && let Some(barred) = cluster.restarts_barred(&decision.workload)
        {
            self.refuse(decision, &DecisionRefusal::new("schedule", barred), now);
            return Ok(DecisionOutcome::Done(None));
        }
        match check(&planned, decision, managed, now, &self.deps.settings) {
            Ok(CheckVerdict::Recommend) => {
                cluster.recommend(decision)?;
                Ok(DecisionOutcome::Done(Some(report::recommended_report(decision, managed, now))))
            }
            Ok(CheckVerdict::Apply(_)) if self.publisher.is_unsettled(&decision.workload) => Ok(DecisionOutcome::WaitsForCommit),
            Ok(CheckVerdict::Apply(checked)) => {
                let origin = managed.state.origin;
                if planned.restarts {
                    match self.checkpoint_gate(decision, origin, now)? {
                        CheckpointGate::Open => {}
                        CheckpointGate::Wait => return Ok(DecisionOutcome::WaitsForCheckpoint),
                        CheckpointGate::Shut { reason } => {
                            self.refuse(decision, &DecisionRefusal::new("checkpoint", reason), now);
                            return Ok(DecisionOutcome::Done(None));
                        }
                    }
                }
                let written = apply::write_change(&*self.deps.cluster, &checked)?;
                tracing::info!(
                    workload = decision.workload,
                    decision = decision.id,
                    reason = decision.reason,
                    "decision applied"
                );
                self.on_written(written);
                Ok(DecisionOutcome::Done(None))
            }
            Err(mut refusal) => {
                if let Some(trouble) = trouble {
                    refusal.reason = format!("{}; until then it could not be written: {trouble}", refusal.reason);
                }
                self.refuse(decision, &refusal, now);
                Ok(DecisionOutcome::Done(None))
            }
        }
    }

    /// Applies recommendations that people approved; one that cannot be applied now is approved until it is no longer recommended.
    pub(super) fn apply_approved(&mut self) {
        for ApprovedDecision { decision, by } in self.deps.cluster.approved_decisions() {
            let Some(managed) = self.view.get(&decision.workload) else { continue };
            let state = &managed.state;
            // Applied once, and only while it is but recommended.
            if state.mode != UpdateMode::Recommend || managed.applied.as_ref().is_some_and(|a| a.decision_id == decision.id) {
                continue;
            }
            let mut allowed = managed.clone();
            allowed.state.mode = UpdateMode::Enforce;
            let now = self.deps.cluster.now();
            let DecisionPlan::Change(planned) = plan_decision(&decision, &allowed) else { continue };
            let checked = match check(&planned, &decision, &allowed, now, &self.deps.settings) {
                Ok(CheckVerdict::Apply(checked)) => checked.approved_by(by),
                Ok(CheckVerdict::Recommend) => continue,
                Err(refusal) => {
                    self.stop_waiting(&decision);
                    self.refuse(&decision, &refusal, now);
                    continue;
                }
            };
            if self.publisher.is_unsettled(&decision.workload) {
                self.approvals_not_before = Some(Instant::now());
                continue;
            }
            let gate = if planned.restarts {
                self.checkpoint_gate(&decision, allowed.state.origin, now)
            } else {
                Ok(CheckpointGate::Open)
            };
            let written = match gate {
                Ok(CheckpointGate::Open) => apply::write_change(&*self.deps.cluster, &checked),
                Ok(CheckpointGate::Wait) => {
                    self.approvals_not_before = Some(Instant::now() + JOB_POLL);
                    continue;
                }
                Ok(CheckpointGate::Shut { reason }) => {
                    self.refuse(&decision, &DecisionRefusal::new("checkpoint", reason), now);
                    continue;
                }
                Err(error) => Err(error),
            };
            match written {
                Ok(written) => {
                    tracing::info!(workload = decision.workload, decision = decision.id, "decision applied, as approved");
                    self.on_written(written);
                }
                Err(error) if error.remedy == ClusterRemedy::Refused => {
                    self.refuse(&decision, &refused_by_cluster(&error), now);
                }
                Err(error) => self.on_cluster_failure(&error, "an approved change was not written"),
            }
        }
    }

    /// Returns whether the job of a change that restarts it has a recent checkpoint.
    fn checkpoint_gate(&mut self, decision: &Decision, origin: Origin, now: EventTime) -> Result<CheckpointGate, ClusterError> {
        if self.directives.is_checkpoint_waived(origin) {
            return Ok(CheckpointGate::Open);
        }
        let gate = self.directives.checkpoint_gate(decision, now)?;
        // The request is made once, and withdrawn when no decision waits any more: a restarted job must not take it for a new
        // one.
        self.publish_directive(&decision.workload);
        Ok(gate)
    }

    /// Stops waiting for a checkpoint for the sake of this decision.
    fn stop_waiting(&mut self, decision: &Decision) {
        if self.directives.stop_waiting(decision) {
            self.publish_directive(&decision.workload);
        }
    }

    fn refuse(&mut self, decision: &Decision, refusal: &DecisionRefusal, now: EventTime) {
        self.publisher.publish_refusal(decision, refusal, self.view.get(&decision.workload), now);
    }
}

fn refused_by_cluster(error: &ClusterError) -> DecisionRefusal {
    DecisionRefusal::new("cluster", format!("the cluster refuses it: {error}"))
}
