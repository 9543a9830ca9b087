//! Takes back changes that did not become ready in time, or that the job refused or took back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use eadt_cluster::{ClusterError, ClusterRemedy, ManagedWorkload, RollbackRequest};
use eadt_schemas::EventTime;

use super::ActuatorSession;
use crate::{apply, directives, overdue_rollouts, report};

/// Failed rollbacks, by the decision whose change they revert.
#[derive(Debug, Default)]
pub struct RollbackRetries {
    given_up: BTreeSet<String>,
    /// Failures of each rollback, and the time of the next attempt.
    retries: BTreeMap<String, (u32, Instant)>,
}

impl RollbackRetries {
    /// Returns whether a rollback is not to be tried now.
    fn must_wait(&self, decision: &str) -> bool {
        self.given_up.contains(decision) || self.retries.get(decision).is_some_and(|(_, not_before)| Instant::now() < *not_before)
    }

    fn failures(&self, decision: &str) -> u32 {
        self.retries.get(decision).map_or(0, |(failures, _)| *failures)
    }

    fn retry_after(&mut self, decision: String, pause: Duration) {
        let failures = self.failures(&decision).saturating_add(1);
        self.retries.insert(decision, (failures, Instant::now() + pause));
    }
}

impl ActuatorSession<'_> {
    pub(super) fn roll_back_changes(&mut self) {
        if !self.view.has_changes_to_follow() {
            self.rollbacks.retries.clear();
            return;
        }
        let now = self.deps.cluster.now();
        let mut due = self.overdue_rollouts(now);
        due.extend(self.taken_back_changes());
        for back in due {
            if self.rollbacks.must_wait(&back.decision_id) {
                continue;
            }
            tracing::warn!(
                workload = back.workload,
                decision = back.decision_id,
                reason = back.reason,
                "rolling back a decision"
            );
            match apply::roll_back(&*self.deps.cluster, &back) {
                Ok(written) => {
                    self.rollbacks.retries.remove(&back.decision_id);
                    self.on_written(written);
                }
                Err(error) => self.on_rollback_failure(back, &error, now),
            }
        }
    }

    /// Returns the rollbacks of rollouts that the job refused, or whose deadline has passed.
    fn overdue_rollouts(&self, now: EventTime) -> Vec<RollbackRequest> {
        let refused = |managed: &ManagedWorkload| {
            self.directives.refusal(&managed.rolling_out()?.decision_id)?;
            overdue_rollouts::refused_rollout(managed)
        };
        let rolling = self.view.rolling();
        let overdue = rolling.filter_map(|(_, managed)| {
            let mut back = refused(managed).or_else(|| overdue_rollouts::overdue_rollout(managed, now))?;
            let withdrawn = directives::build_directive(managed, None).is_none();
            if let Some(missing) = self.directives.describe_missing(&back.decision_id, withdrawn) {
                back.reason = format!("{}: {missing}", back.reason);
            }
            Some(back)
        });
        overdue.collect()
    }

    /// Returns the rollbacks of changes that jobs made, and took back later.
    fn taken_back_changes(&self) -> Vec<RollbackRequest> {
        let followed = self.view.followed_by_jobs();
        let taken_back = followed.filter_map(|(_, managed)| {
            let why = self.directives.refusal(&managed.applied.as_ref()?.decision_id)?;
            overdue_rollouts::taken_back_change(managed, why)
        });
        taken_back.collect()
    }

    fn on_rollback_failure(&mut self, back: RollbackRequest, error: &ClusterError, now: EventTime) {
        match error.remedy {
            ClusterRemedy::Refused => {
                let report = self.view.get(&back.workload).and_then(|m| report::failed_report(m, &error.detail, now));
                if let Some(report) = report {
                    self.publisher.publish(report);
                }
                self.rollbacks.given_up.insert(back.decision_id);
            }
            ClusterRemedy::Conflict | ClusterRemedy::Retry => {
                self.metrics.retries.inc();
                self.view.request_refresh();
                let pause = self.retry_pause(self.rollbacks.failures(&back.decision_id));
                tracing::warn!(
                    workload = back.workload,
                    decision = back.decision_id,
                    %error,
                    pause_seconds = pause.as_secs_f64(),
                    "a change cannot be rolled back; it is tried again"
                );
                self.rollbacks.retry_after(back.decision_id, pause);
            }
            ClusterRemedy::Stopped => {}
        }
    }
}
