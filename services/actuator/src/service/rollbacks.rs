//! Takes back changes that did not become ready in time, or that the job refused.

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
    pub(super) fn roll_back_overdue(&mut self) {
        if !self.view.has_rollouts() {
            self.rollbacks.retries.clear();
            return;
        }
        let now = self.deps.cluster.now();
        let refused = |managed: &ManagedWorkload| {
            self.directives.refusal(&managed.rolling_out()?.decision_id)?;
            overdue_rollouts::refused_rollout(managed)
        };
        let rolling = self.view.rolling();
        let overdue: Vec<_> = rolling
            .filter_map(|(_, managed)| refused(managed).or_else(|| overdue_rollouts::overdue_rollout(managed, now)))
            .collect();
        for mut back in overdue {
            let managed = self.view.get(&back.workload);
            let withdrawn = managed.is_some_and(|managed| directives::build_directive(managed, None).is_none());
            if let Some(missing) = self.directives.describe_missing(&back.decision_id, withdrawn) {
                back.reason = format!("{}: {missing}", back.reason);
            }
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
                    "a rollout cannot be rolled back; it is tried again"
                );
                self.rollbacks.retry_after(back.decision_id, pause);
            }
            ClusterRemedy::Stopped => {}
        }
    }
}
