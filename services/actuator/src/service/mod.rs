//! The main loop: decisions in, cluster calls at the edge, reports and positions out in one atomic step.
//!
//! A session connects five parts, a file each: the [`decision_queue`], the [`cluster_view`], the [`device_intents`] for node
//! agents, the [`job_directives`], and the [`publisher`]. [`takeover`] reads what earlier actuators published, [`decide`] carries
//! out decisions, [`rollbacks`] rolls back rollouts.

mod cluster_view;
mod decide;
mod decision_queue;
mod device_intents;
mod job_directives;
mod publisher;
mod rollbacks;
mod takeover;
#[cfg(test)]
pub(crate) mod tests;
mod topics;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{
    Bus, BusError, CommitStep, GroupMember, HangingEnds, MemberOptions, Membership, PollEvent, Remedy, RetryBackoff,
    SpareMemberCheck, StartOffset, TopicPartition, partition_for_key, read_to_end,
};
use eadt_cluster::{Cluster, ClusterChanges, ClusterError, ClusterRemedy, ManagedWorkload};
use eadt_schemas::decode;
use eadt_schemas::v1::{ChangeValidation, Decision};
use eadt_service::http::ReadinessFlag;
use eadt_service::{MetricsRegistry, Shutdown};

use crate::ActuatorSettings;
use crate::apply::WrittenWorkload;
use crate::metrics::ActuatorMetrics;
use cluster_view::ClusterView;
use decision_queue::DecisionQueue;
use device_intents::DeviceIntents;
use job_directives::JobDirectives;
use publisher::ActuatorPublisher;
use rollbacks::RollbackRetries;
use topics::{ActuatorTopics, partition_count};

/// Decisions of a partition that are read again at a start for their verdicts on changes. They are many more than arrive while a
/// status is written, even if the API server is unavailable for some minutes.
const VERDICTS: i64 = 10_000;
/// Shorter if a test waits for it.
const STALL: Duration = if cfg!(test) { Duration::from_millis(300) } else { HangingEnds::STALL };
/// Longest wait for the next record; it bounds how late a finished rollout is noticed. Each look costs some 60 µs.
const POLL: Duration = Duration::from_millis(20);

/// The reason why the actuator ended.
#[derive(Debug, thiserror::Error)]
pub enum ActuatorError {
    #[error("cannot start: {0}")]
    Settings(String),
    #[error("the bus refuses the actuator")]
    Bus(#[from] BusError),
}

/// The dependencies of the actuator.
#[derive(Debug, Clone)]
pub struct ActuatorDependencies {
    pub settings: ActuatorSettings,
    pub bus: Arc<dyn Bus>,
    pub cluster: Arc<dyn Cluster>,
    pub shutdown: Shutdown,
    pub metrics: MetricsRegistry,
    /// Set once the present layout of every managed workload is published.
    pub ready: ReadinessFlag,
}

/// Runs until `shutdown`; blocks, so give it a thread.
pub fn run_actuator(deps: &ActuatorDependencies) -> Result<(), ActuatorError> {
    run_with(deps, &ActuatorMetrics::new(&deps.metrics))
}

/// Runs with metrics that are registered already: for one that runs whenever it leads.
pub(crate) fn run_with(deps: &ActuatorDependencies, metrics: &ActuatorMetrics) -> Result<(), ActuatorError> {
    deps.settings.check().map_err(ActuatorError::Settings)?;
    let [least, most] = [deps.settings.retry_min_seconds, deps.settings.retry_max_seconds].map(Duration::from_secs_f64);
    let mut backoff = RetryBackoff::new(least, most);
    while !deps.shutdown.is_cancelled() {
        let began = Instant::now();
        match ActuatorSession::open(deps, metrics).and_then(|mut session| session.run()) {
            Ok(()) => break,
            Err(error) if error.remedy == Remedy::Stop => return Err(error.into()),
            Err(error) => {
                metrics.restarts.inc();
                let what = "restarting from the committed positions";
                if began.elapsed() > most {
                    backoff.on_success(what);
                }
                sleep(&deps.shutdown, backoff.on_failure(what, &error));
            }
        }
        deps.ready.set(false);
    }
    Ok(())
}

fn sleep(shutdown: &Shutdown, time: Duration) {
    let until = Instant::now() + time;
    while !shutdown.is_cancelled() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10).min(time));
    }
}

/// One session on the bus, from joining the group to the first error.
struct ActuatorSession<'a> {
    deps: &'a ActuatorDependencies,
    metrics: &'a ActuatorMetrics,
    topics: ActuatorTopics,
    /// Number of partitions of the decisions.
    partitions: i32,
    member: Box<dyn GroupMember>,
    hanging: HangingEnds,
    queue: DecisionQueue,
    standby: SpareMemberCheck,
    view: ClusterView,
    /// `None` if the cluster has no node agents.
    intents: Option<DeviceIntents<'a>>,
    directives: JobDirectives<'a>,
    publisher: ActuatorPublisher<'a>,
    rollbacks: RollbackRetries,
    /// Time at which approved recommendations are tried again without news: one of them waits for a checkpoint.
    approvals_not_before: Option<Instant>,
    /// Decisions of before this session that found a change to help, for the cluster once the workloads are known.
    verdicts: Vec<Decision>,
}

impl<'a> ActuatorSession<'a> {
    fn open(deps: &'a ActuatorDependencies, metrics: &'a ActuatorMetrics) -> Result<Self, BusError> {
        let ActuatorSettings { prefix, group, instance, .. } = &deps.settings;
        let topics = ActuatorTopics::new(prefix);
        let partitions = partition_count(deps, &topics.decisions)?;
        let member = deps.bus.member(MemberOptions {
            group: group.clone(),
            membership: Membership::Transactional(instance.clone()),
            topics: vec![topics.decisions.clone()],
        })?;
        Ok(Self {
            deps,
            metrics,
            partitions,
            member,
            hanging: HangingEnds::after(STALL),
            queue: DecisionQueue::new(topics.decisions.clone()),
            standby: SpareMemberCheck::new(group.clone(), topics.decisions.clone(), vec![topics.decisions.clone()]),
            view: ClusterView::new(),
            intents: None,
            directives: JobDirectives::new(deps, topics.clone()),
            publisher: ActuatorPublisher::new(deps, metrics, topics.clone()),
            rollbacks: RollbackRetries::default(),
            approvals_not_before: None,
            verdicts: Vec::new(),
            topics,
        })
    }

    fn run(&mut self) -> Result<(), BusError> {
        let mut polled = Vec::new();
        self.intents = DeviceIntents::open(self.deps, &self.topics)?;
        while !self.deps.shutdown.is_cancelled() {
            self.member.poll(256, POLL, &mut polled)?;
            for item in polled.drain(..) {
                self.take(item)?;
            }
            if let Some(intents) = &mut self.intents {
                intents.poll_device_reports()?;
            }
            let in_place = self.standby.is_ready(self.queue.len(), &*self.deps.bus);
            if self.queue.is_empty() {
                self.deps.ready.set(in_place);
                continue;
            }
            let revision_before = self.reconcile();
            if !self.finish_decisions() {
                break;
            }
            self.publish_intents();
            self.directives.poll_jobs(&self.view, self.retry_pause(3));
            for workload in self.directives.drop_abandoned() {
                self.publish_directive(&workload);
            }
            self.commit()?;
            if revision_before {
                self.deps.ready.set(true);
            }
            self.queue.apply_backpressure(&mut *self.member)?;
        }
        Ok(())
    }

    fn take(&mut self, item: PollEvent) -> Result<(), BusError> {
        match item {
            PollEvent::Record(record) => self.queue.push(record),
            PollEvent::Batch(_) | PollEvent::End { .. } => {}
            PollEvent::Assigned(parts) => self.on_assigned(&parts)?,
            PollEvent::Revoked(parts) | PollEvent::Lost(parts) => {
                // Every loop ends with a commit, so nothing is held here that is worth committing now.
                for at in parts {
                    self.queue.remove_partition(at.partition);
                }
                self.view.clear();
                let (queue, partitions) = (&self.queue, self.partitions);
                self.directives.on_revoked(|workload| queue.has_partition(partition_for_key(workload.as_bytes(), partitions)));
                self.publisher.clear();
            }
        }
        Ok(())
    }

    fn on_assigned(&mut self, parts: &[TopicPartition]) -> Result<(), BusError> {
        let committed = self.hanging.fetch_positions(&mut *self.member, parts)?;
        self.read_published(parts)?;
        for (at, committed) in parts.iter().zip(committed) {
            let start = match committed {
                Some(position) => position,
                None => self.deps.bus.watermarks(at)?.low,
            };
            self.member.start(at, start)?;
            self.read_verdicts(at, start)?;
            self.queue.add_partition(at.partition, start);
        }
        self.view.forget_revision();
        Ok(())
    }

    /// Reads the verdicts on changes shortly before `start`.
    fn read_verdicts(&mut self, at: &TopicPartition, start: i64) -> Result<(), BusError> {
        let from = self.deps.bus.watermarks(at)?.low.max(start - VERDICTS);
        if from >= start {
            return Ok(());
        }
        let (verdicts, passed) = (&mut self.verdicts, Cell::new(false));
        read_to_end(
            &*self.deps.bus,
            &[(at.clone(), StartOffset::At(from))],
            || passed.get() || self.deps.shutdown.is_cancelled(),
            |record| {
                passed.set(record.offset >= start - 1);
                let decision = record.value.as_deref().filter(|_| record.offset < start).map(decode::<Decision>);
                verdicts.extend(decision.and_then(Result::ok).filter(|decision| decision.validation == ChangeValidation::Kept));
                Ok::<_, BusError>(())
            },
        )?;
        Ok(())
    }

    /// Reads changes of the cluster, and rolls back what is overdue or taken back by its job; returns true once the cluster was
    /// read.
    fn reconcile(&mut self) -> bool {
        let ActuatorDependencies { cluster, settings, .. } = self.deps;
        if self.view.is_paused() {
            return self.view.is_current();
        }
        match self.view.read_changes(&**cluster, settings.reconcile_seconds) {
            Ok(Some(changes)) => self.on_changes(changes),
            Ok(None) => {}
            Err(error) => {
                self.on_cluster_failure(&error, "the cluster cannot be read");
                return self.view.is_current();
            }
        }
        if self.approvals_not_before.is_some_and(|not_before| not_before <= Instant::now()) {
            self.approvals_not_before = None;
            self.apply_approved();
        }
        for decision in std::mem::take(&mut self.verdicts) {
            cluster.on_verified_decision(&decision);
        }
        self.roll_back_changes();
        true
    }

    fn on_changes(&mut self, changes: ClusterChanges) {
        let ClusterChanges { revision, all, workloads, removed } = changes;
        self.view.begin_changes(all, &removed);
        // Workloads that are gone get no directives any more.
        let withdrawn: Vec<_> = if all { self.directives.workloads().cloned().collect() } else { removed };
        for managed in workloads {
            if self.queue.has_partition(partition_for_key(managed.state.workload.as_bytes(), self.partitions)) {
                self.put_workload(managed);
            }
        }
        for name in withdrawn {
            self.publish_directive(&name);
        }
        self.view.end_changes(revision);
        self.apply_approved();
        self.metrics.workloads.set(self.view.workloads().len() as i64);
        self.metrics.rollouts.set(self.view.rollout_count() as i64);
    }

    /// Stores the present state of a workload, and publishes changes.
    fn put_workload(&mut self, managed: ManagedWorkload) {
        let name = managed.state.workload.clone();
        self.publisher.publish_changes(&managed);
        self.view.put(managed);
        self.publish_directive(&name);
    }

    fn on_written(&mut self, written: WrittenWorkload) {
        self.put_workload(written.0);
    }

    /// Publishes the directive of a job, in the same step as the change that requires it.
    fn publish_directive(&mut self, workload: &str) {
        if let Some(update) = self.directives.take_update(workload, self.view.get(workload)) {
            self.publisher.publish_directive(workload, update);
        }
    }

    /// Publishes what agents are to hold, in the same step as the changes that ask for it.
    fn publish_intents(&mut self) {
        // A node's intent is a whole: only an actuator with all workloads may publish it.
        if self.queue.len() != usize::try_from(self.partitions).unwrap_or(usize::MAX) {
            return;
        }
        let Some(intents) = &mut self.intents else { return };
        for update in intents.take_updates(self.deps.cluster.now()) {
            self.publisher.publish_intent(update);
        }
    }

    fn on_cluster_failure(&mut self, error: &ClusterError, what: &'static str) {
        self.metrics.retries.inc();
        let settings = &self.deps.settings;
        let pause = self.view.on_failure(|failures| retry_pause(settings, failures));
        if error.remedy == ClusterRemedy::Stopped {
            // It ends with this process, which drains.
            tracing::debug!(%error, "{what}");
            return;
        }
        tracing::warn!(%error, pause_seconds = pause.as_secs_f64(), "{what}; it is tried again");
    }

    fn retry_pause(&self, attempts: u32) -> Duration {
        retry_pause(&self.deps.settings, attempts)
    }

    fn commit(&mut self) -> Result<(), BusError> {
        let positions = self.queue.positions_to_commit();
        if positions.is_empty() && !self.publisher.has_outputs() {
            // Decisions that were read again behind a waiting one: all their outputs are committed.
            self.publisher.on_committed();
            return Ok(());
        }
        self.member.commit(&CommitStep { outputs: self.publisher.take_outputs(), positions })?;
        self.publisher.on_committed();
        self.queue.on_committed();
        Ok(())
    }
}

/// Returns the pause before a failed call is tried again; it doubles with every failure in a row.
fn retry_pause(settings: &ActuatorSettings, attempts: u32) -> Duration {
    let ActuatorSettings { retry_min_seconds, retry_max_seconds, .. } = settings;
    Duration::from_secs_f64((retry_min_seconds * 2_f64.powi(attempts.min(30) as i32)).min(*retry_max_seconds))
}
