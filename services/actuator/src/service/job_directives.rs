//! Directives to jobs: the request to each job, whether it follows, and the checkpoints that restarts wait for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use eadt_bus::BusError;
use eadt_cluster::{ClusterError, ClusterRemedy, ManagedWorkload};
use eadt_schemas::EventTime;
use eadt_schemas::decode;
use eadt_schemas::v1::{Decision, Origin};

use super::ActuatorDependencies;
use super::cluster_view::ClusterView;
use super::topics::{ActuatorTopics, partition_count};
use crate::checkpoint::{CheckpointGate, CheckpointWait};
use crate::directives::{self, DirectiveUpdate, JobRequestTracker, PublishedDirectives};
use crate::job::ProgressTopic;

/// Interval between checks whether jobs follow their directives.
pub const JOB_POLL: Duration = Duration::from_millis(200);

pub struct JobDirectives<'a> {
    deps: &'a ActuatorDependencies,
    topics: ActuatorTopics,
    published: PublishedDirectives,
    /// Jobs whose changes wait for them, or are in force as long as they follow them.
    request_tracker: JobRequestTracker,
    poll_not_before: Option<Instant>,
    /// Time of the next read after an error.
    retry_not_before: Option<Instant>,
    /// Decisions that wait for a checkpoint, by their id.
    checkpoints: BTreeMap<String, CheckpointWait>,
}

impl<'a> JobDirectives<'a> {
    pub fn new(deps: &'a ActuatorDependencies, topics: ActuatorTopics) -> Self {
        Self {
            deps,
            topics,
            published: PublishedDirectives::default(),
            request_tracker: JobRequestTracker::default(),
            poll_not_before: None,
            retry_not_before: None,
            checkpoints: BTreeMap::new(),
        }
    }

    /// Takes the published directive of a workload from the log; `None` for a tombstone.
    pub fn set_published(&mut self, workload: &str, value: Option<&[u8]>) {
        // An unreadable directive requests nothing; the wanted one is published over it.
        self.published.set_from_log(workload, value.and_then(|value| decode(value).ok()));
    }

    /// Forgets pending waits, and the workloads of another actuator.
    pub fn on_revoked(&mut self, is_own: impl Fn(&str) -> bool) {
        self.checkpoints.clear();
        self.request_tracker = JobRequestTracker::default();
        self.published.retain_workloads(is_own);
    }

    /// Returns the workloads whose jobs have a directive.
    pub fn workloads(&self) -> impl Iterator<Item = &String> {
        self.published.workloads()
    }

    /// Returns the directive to publish for a workload, if it differs from the published one; it counts as published.
    pub fn take_update(&mut self, workload: &str, managed: Option<&ManagedWorkload>) -> Option<DirectiveUpdate> {
        let waiting =
            self.checkpoints.iter().find(|(_, wait)| wait.workload() == workload).map(|(decision, _)| decision.as_str());
        let wanted = managed.and_then(|managed| directives::build_directive(managed, waiting));
        self.published.take_update(workload, wanted, self.deps.cluster.now())
    }

    /// Returns whether a job is restarted without a checkpoint: a simulated one keeps its own work.
    pub fn is_checkpoint_waived(&self, origin: Origin) -> bool {
        self.deps.settings.checkpoint_wait_seconds == 0.0 || origin == Origin::Simulated
    }

    /// Returns whether the job of a change that restarts it has a recent checkpoint. A job that reports checkpoints gets a
    /// request for one: its directive may change by this.
    pub fn checkpoint_gate(&mut self, decision: &Decision, now: EventTime) -> Result<CheckpointGate, ClusterError> {
        let settings = &self.deps.settings;
        let unread = |error: BusError| {
            ClusterError::new(ClusterRemedy::Retry, format!("reading the progress of {}: {error}", decision.workload))
        };
        let (mut wait, is_waiting) = if let Some(mut wait) = self.checkpoints.remove(&decision.id) {
            wait.poll_reports().map_err(unread)?;
            (wait, true)
        } else {
            let stopped = || self.deps.shutdown.is_cancelled();
            let topic = &self.topics.progress;
            let partitions = partition_count(self.deps, topic).map_err(unread)?;
            let progress = ProgressTopic { bus: &*self.deps.bus, topic, partitions };
            let begun = CheckpointWait::begin(progress, &decision.workload, now, stopped).map_err(unread)?;
            (begun.ok_or_else(|| ClusterError::new(ClusterRemedy::Stopped, "stopping"))?, false)
        };
        let gate = wait.check_gate(now, settings);
        if gate == CheckpointGate::Wait {
            self.checkpoints.insert(decision.id.clone(), wait);
            if !is_waiting {
                tracing::info!(
                    workload = decision.workload,
                    decision = decision.id,
                    "decision waits for a checkpoint of the job"
                );
            }
        }
        Ok(gate)
    }

    /// Stops waiting for a checkpoint for the sake of a decision; returns whether it was waited for.
    pub fn stop_waiting(&mut self, decision: &Decision) -> bool {
        self.checkpoints.remove(&decision.id).is_some()
    }

    /// Drops the waits that no decision needs any more; returns their workloads.
    pub fn drop_abandoned(&mut self) -> Vec<String> {
        let abandoned = self.checkpoints.extract_if(.., |_, wait| wait.is_abandoned());
        abandoned.map(|(_, wait)| wait.workload().to_owned()).collect()
    }

    /// Reports to the cluster which jobs follow their change now. `pause`: until an error is retried.
    pub fn poll_jobs(&mut self, view: &ClusterView, pause: Duration) {
        let paused = self.retry_not_before.is_some_and(|not_before| Instant::now() < not_before);
        if paused || !view.has_changes_to_follow() && self.request_tracker.is_idle() {
            return;
        }
        if let Err(error) = self.follow_jobs(view) {
            // The jobs report it again later.
            tracing::warn!(%error, "job reports cannot be read; retrying");
            self.request_tracker = JobRequestTracker::default();
            self.retry_not_before = Some(Instant::now() + pause);
        }
    }

    fn follow_jobs(&mut self, view: &ClusterView) -> Result<(), BusError> {
        let early = self.poll_not_before.is_some_and(|not_before| Instant::now() < not_before);
        let rolling = view.rolling().filter_map(|(name, managed)| Some((name, managed.rolling_out()?)));
        let followed = view.followed_by_jobs().filter_map(|(name, managed)| Some((name, managed.applied.as_ref()?)));
        let changes: Vec<_> = rolling.chain(followed).filter(|(_, applied)| applied.job_request().is_some()).collect();
        // Starts before the request is published, so that no answer is missed.
        if early && self.request_tracker.follows_exactly(&changes) {
            return Ok(());
        }
        let topic = &self.topics.progress;
        let partitions = if changes.is_empty() { 0 } else { partition_count(self.deps, topic)? };
        self.request_tracker.set_changes(ProgressTopic { bus: &*self.deps.bus, topic, partitions }, &changes)?;
        if early {
            return Ok(());
        }
        self.poll_not_before = Some(Instant::now() + JOB_POLL);
        for (workload, decision) in self.request_tracker.poll_followers()? {
            self.deps.cluster.on_job_follows(&workload, &decision);
        }
        Ok(())
    }

    /// Returns why a job refused the request of a decision's change, or took it back.
    pub fn refusal(&self, decision: &str) -> Option<&str> {
        self.request_tracker.refusal(decision)
    }

    /// Returns the parts of a decision's change that the job has not made, as text; `withdrawn`: they are no longer requested.
    pub fn describe_missing(&self, decision: &str, withdrawn: bool) -> Option<String> {
        self.request_tracker.describe_missing(decision, withdrawn)
    }
}
