//! The loop: decisions in, cluster calls at the edge, reports and positions out in one atomic step.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{
    Bus, BusError, Member, MemberOptions, Membership, Outgoing, Patience, Polled, Reader, Record, Remedy, Standby, Start, Step,
    TopicPartition, chaos, partition_for_key, read_to_end,
};
use eadt_cluster::{Changes, Cluster, ClusterError, ClusterRemedy, Devices, Managed};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{
    Action, DeadLetterReason, Decision, DeviceHolders, DeviceIntent, DeviceState, Origin, Outcome, UpdateMode, Validation,
    Workload,
};
use eadt_schemas::{Envelope, EventTime, EventType, Refusal as Unreadable, Topic, decode};
use eadt_service::http::Ready;
use eadt_service::{Metrics, Shutdown};

use crate::check::{Refusal, Verdict, check};
use crate::checkpoint::{Gate, Wait};
use crate::dereference::{View, dereference};
use crate::devices::{Due, Published};
use crate::directives::{self, Following, Standing};
use crate::job::Progress;
use crate::metrics::ActuatorMetrics;
use crate::plan::{Plan, plan};
use crate::report::{self, Report};
use crate::{Settings, apply, watch};

/// Decisions of one partition that wait; beyond it the partition is paused, so memory is bounded.
const MAX_QUEUED: usize = 1000;
/// So many decisions of a partition are read again for what they found of changes: many more than come while a status is written, also
/// where the API server is away for some minutes.
const VERDICTS: i64 = 10_000;
/// Longest wait for the next record; it bounds how late a finished rollout is noticed. Each look costs some 60 µs.
const POLL: Duration = Duration::from_millis(20);
/// Whether intents must be said again is looked at so often, in wall time.
const LOOK_AT_INTENTS: Duration = Duration::from_secs(1);
/// How often is looked whether a job has done what it was asked for.
const LOOK_AT_JOB: Duration = Duration::from_millis(200);
const SOURCE: &str = "/actuator";

/// Why the actuator ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start: {0}")]
    Settings(String),
    #[error("the bus refuses the actuator")]
    Bus(#[from] BusError),
}

/// What the actuator works with.
#[derive(Debug, Clone)]
pub struct Service {
    pub settings: Settings,
    pub bus: Arc<dyn Bus>,
    pub cluster: Arc<dyn Cluster>,
    pub shutdown: Shutdown,
    pub metrics: Metrics,
    /// Set once the present layout of every managed workload is published.
    pub ready: Ready,
}

/// Runs until `shutdown`; blocks, so give it a thread.
pub fn run(service: &Service) -> Result<(), Error> {
    run_with(service, &ActuatorMetrics::new(&service.metrics))
}

/// The same with metrics that are registered already: for one that runs whenever it leads.
pub(crate) fn run_with(service: &Service, metrics: &ActuatorMetrics) -> Result<(), Error> {
    service.settings.check().map_err(Error::Settings)?;
    let [least, most] = [service.settings.retry_min_seconds, service.settings.retry_max_seconds].map(Duration::from_secs_f64);
    let mut patience = Patience::new(least, most);
    while !service.shutdown.is_cancelled() {
        let began = Instant::now();
        match Session::open(service, metrics).and_then(|mut session| session.run()) {
            Ok(()) => break,
            Err(error) if error.remedy == Remedy::Stop => return Err(error.into()),
            Err(error) => {
                metrics.restarts.inc();
                let what = "beginning anew from the committed positions";
                if began.elapsed() > most {
                    patience.worked(what);
                }
                sleep(&service.shutdown, patience.failed(what, &error));
            }
        }
        service.ready.set(false);
    }
    Ok(())
}

fn sleep(shutdown: &Shutdown, time: Duration) {
    let until = Instant::now() + time;
    while !shutdown.is_cancelled() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10).min(time));
    }
}

/// A record of `decisions.v1` that is not finished with.
#[derive(Debug)]
struct Waiting {
    record: Record,
    /// `Err`: unreadable.
    decision: Result<Decision, Unreadable>,
    /// Failed attempts so far.
    attempts: u32,
    /// Why the last of them failed.
    trouble: Option<String>,
    not_before: Option<Instant>,
}

/// An assigned partition. Decisions are finished in order; one that cannot be finished yet holds back only its partition.
#[derive(Debug, Default)]
struct Assigned {
    waiting: VecDeque<Waiting>,
    /// First offset that is not finished with and not committed yet.
    position: i64,
    committed: i64,
    paused: bool,
}

/// From joining the group to the first error.
struct Session<'a> {
    service: &'a Service,
    metrics: &'a ActuatorMetrics,
    topics: Topics,
    partitions: i32,
    member: Box<dyn Member>,
    assigned: BTreeMap<i32, Assigned>,
    standby: Standby,
    /// The last published event of each workload.
    published: BTreeMap<String, Workload>,
    view: View,
    /// Those of `view` whose last change is on its way.
    rolling: BTreeSet<String>,
    /// Revision of the cluster that `view` shows; `None`: nothing was seen yet.
    revision: Option<u64>,
    /// Look whatever the revision is.
    look_again: bool,
    /// When everything was looked at last, not only what changed.
    looked: Instant,
    look_not_before: Option<Instant>,
    failures: u32,
    /// Rollouts that could not be taken back.
    given_up: BTreeSet<String>,
    /// Rollouts whose way back failed: how often, and when it is tried again.
    put_off: BTreeMap<String, (u32, Instant)>,
    /// Decisions that wait for a checkpoint, by their id.
    checkpoints: BTreeMap<String, Wait>,
    /// What jobs are asked for, as it stands in the log.
    standing: Standing,
    /// Jobs whose changes wait for them.
    following: Following,
    /// When is listened to them next.
    following_not_before: Option<Instant>,
    /// When it is tried again after trouble.
    not_following_before: Option<Instant>,
    /// When approved recommendations are looked at again without news: one of them waits for a checkpoint.
    approvals_not_before: Option<Instant>,
    outputs: Vec<Outgoing>,
    /// What was found of changes before this session, to be told once the workloads are known.
    verdicts: Vec<Decision>,
    /// Workloads of which something is said, or finished with, that is not committed. The object remembers its last change only: a
    /// further one would hide what a successor needs to know in order to say it.
    unsettled: BTreeSet<String>,
    /// Where the cluster has node agents.
    agents: Option<Agents>,
}

/// What is said to node agents, and by them.
struct Agents {
    published: Published,
    states: Box<dyn Reader>,
    /// What was wanted when it was looked at last, and when.
    wanted: Option<(Arc<Vec<DeviceIntent>>, Instant)>,
}

struct Topics {
    decisions: Arc<str>,
    workloads: Arc<str>,
    actuations: Arc<str>,
    dead_letters: Arc<str>,
    device_intents: Arc<str>,
    device_states: Arc<str>,
    device_holders: Arc<str>,
    directives: Arc<str>,
    progress: Arc<str>,
}

/// How a decision went through the steps.
enum Decided {
    Done(Option<Report>),
    /// The job's checkpoint is waited for.
    Wait,
    /// What was said of the workload is committed first.
    Unsettled,
}

/// What became of one attempt at a decision.
enum Attempt {
    Done,
    /// Not its turn yet, or the cluster did not answer.
    Later,
    /// The cluster is going away.
    Stopped,
}

impl<'a> Session<'a> {
    fn open(service: &'a Service, metrics: &'a ActuatorMetrics) -> Result<Self, BusError> {
        let Settings { prefix, group, instance, .. } = &service.settings;
        let full = |topic: Topic| -> Arc<str> { format!("{prefix}{topic}").into() };
        let topics = Topics {
            decisions: full(Topic::Decisions),
            workloads: full(Topic::Workloads),
            actuations: full(Topic::Actuations),
            dead_letters: full(Topic::DeadLetters),
            device_intents: full(Topic::DeviceIntents),
            device_states: full(Topic::DeviceStates),
            device_holders: full(Topic::DeviceHolders),
            directives: full(Topic::Directives),
            progress: full(Topic::TrainingProgress),
        };
        let partitions = service
            .bus
            .topics(prefix)?
            .into_iter()
            .find(|spec| spec.name == topics.decisions)
            .map(|spec| spec.partitions)
            .ok_or_else(|| {
                let what = format!("reading topic {}", topics.decisions);
                BusError::new(Remedy::Stop, what, "there is no such topic; create the topics with eadt topics apply")
            })?;
        let (group, decisions) = (group.clone(), topics.decisions.clone());
        let member = service.bus.member(MemberOptions {
            group: group.clone(),
            membership: Membership::Transactional(instance.clone()),
            topics: vec![topics.decisions.clone()],
        })?;
        Ok(Self {
            service,
            metrics,
            topics,
            partitions,
            member,
            assigned: BTreeMap::new(),
            standby: Standby::new(group, decisions),
            published: BTreeMap::new(),
            view: View::new(),
            rolling: BTreeSet::new(),
            revision: None,
            look_again: false,
            looked: Instant::now(),
            look_not_before: None,
            failures: 0,
            given_up: BTreeSet::new(),
            put_off: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            standing: Standing::default(),
            following: Following::default(),
            following_not_before: None,
            not_following_before: None,
            approvals_not_before: None,
            outputs: Vec::new(),
            verdicts: Vec::new(),
            unsettled: BTreeSet::new(),
            agents: None,
        })
    }

    fn run(&mut self) -> Result<(), BusError> {
        let mut polled = Vec::new();
        self.meet_agents()?;
        while !self.service.shutdown.is_cancelled() {
            self.member.poll(256, POLL, &mut polled)?;
            for item in polled.drain(..) {
                self.take(item)?;
            }
            self.hear_agents()?;
            let in_place = self.standby.is_ready(self.assigned.len(), &*self.service.bus);
            if self.assigned.is_empty() {
                self.service.ready.set(in_place);
                continue;
            }
            let seen = self.look();
            if !self.act() {
                break;
            }
            self.tell_agents();
            self.hear_jobs();
            self.forget_abandoned();
            self.commit()?;
            if seen {
                self.service.ready.set(true);
            }
            self.make_room()?;
        }
        Ok(())
    }

    fn take(&mut self, item: Polled) -> Result<(), BusError> {
        match item {
            Polled::Record(record) => {
                let Some(assigned) = self.assigned.get_mut(&record.at.partition) else { return Ok(()) };
                let decision = match (record.header(header::TYPE), &record.value) {
                    (Some(kind), _) if kind != EventType::Decision.name() => Err(Unreadable {
                        reason: DeadLetterReason::UnexpectedType,
                        field: None,
                        detail: format!("{kind} is not {}", EventType::Decision.name()),
                    }),
                    (_, None) => {
                        let detail = "a decision without a value".into();
                        Err(Unreadable { reason: DeadLetterReason::Malformed, field: None, detail })
                    }
                    (_, Some(value)) => decode(value),
                };
                assigned.waiting.push_back(Waiting { record, decision, attempts: 0, trouble: None, not_before: None });
            }
            Polled::End { .. } => {}
            Polled::Assigned(parts) => self.assign(&parts)?,
            Polled::Revoked(parts) | Polled::Lost(parts) => {
                // Every loop ends with a commit, so nothing is held here that is worth committing now.
                for at in parts {
                    self.assigned.remove(&at.partition);
                }
                self.view.clear();
                self.rolling.clear();
                self.revision = None;
                self.checkpoints.clear();
                self.following = Following::default();
                let (assigned, partitions) = (&self.assigned, self.partitions);
                self.standing.retain(|workload| assigned.contains_key(&partition_for_key(workload.as_bytes(), partitions)));
                self.outputs.clear();
                self.unsettled.clear();
            }
        }
        Ok(())
    }

    fn assign(&mut self, parts: &[TopicPartition]) -> Result<(), BusError> {
        let committed = self.member.committed(parts)?;
        for (at, committed) in parts.iter().zip(committed) {
            self.read_published(at.partition)?;
            self.read_directives(at.partition)?;
            let start = match committed {
                Some(position) => position,
                None => self.service.bus.watermarks(at)?.low,
            };
            self.member.start(at, start)?;
            self.read_verdicts(at, start)?;
            self.assigned.insert(at.partition, Assigned { position: start, committed: start, ..Assigned::default() });
        }
        self.read_intents()?;
        self.revision = None;
        Ok(())
    }

    /// Reads what was found of changes shortly before `start`.
    fn read_verdicts(&mut self, at: &TopicPartition, start: i64) -> Result<(), BusError> {
        let from = self.service.bus.watermarks(at)?.low.max(start - VERDICTS);
        if from >= start {
            return Ok(());
        }
        let (verdicts, passed) = (&mut self.verdicts, Cell::new(false));
        read_to_end(
            &*self.service.bus,
            &[(at.clone(), Start::At(from))],
            || passed.get() || self.service.shutdown.is_cancelled(),
            |record| {
                passed.set(record.offset >= start - 1);
                let decision = record.value.as_deref().filter(|_| record.offset < start).map(decode::<Decision>);
                verdicts.extend(decision.and_then(Result::ok).filter(|decision| decision.validation == Validation::Kept));
                Ok::<_, BusError>(())
            },
        )?;
        Ok(())
    }

    /// Reads what was published about the workloads of a partition. Joining the group has fenced older writers, so the
    /// end that is noted now is the end.
    fn read_published(&mut self, partition: i32) -> Result<(), BusError> {
        let published = &mut self.published;
        read_keys(self.service, &self.topics.workloads, partition, |workload, value| {
            match value.map(decode::<Workload>) {
                Some(Ok(event)) => {
                    published.insert(event.workload.clone(), event);
                }
                None => {
                    published.remove(workload);
                }
                // A heartbeat, or not ours; what the cluster says is published over it.
                Some(Err(_)) => {}
            }
        })
    }

    /// Reads what the jobs of a partition are asked for.
    fn read_directives(&mut self, partition: i32) -> Result<(), BusError> {
        let standing = &mut self.standing;
        read_keys(self.service, &self.topics.directives, partition, |workload, value| {
            // One that cannot be read asks for nothing; what is wanted is said over it.
            standing.read(workload, value.and_then(|value| decode(value).ok()));
        })
    }

    /// Reads what agents said until now. Without it every cap would be refused for want of an agent.
    fn meet_agents(&mut self) -> Result<(), BusError> {
        let Some(devices) = self.service.cluster.devices() else { return Ok(()) };
        let mut all = Vec::new();
        for topic in [&self.topics.device_states, &self.topics.device_holders] {
            let partitions = self.partitions_of(topic)?;
            all.extend((0..partitions).map(|p| (TopicPartition::new(topic.clone(), p), Start::Earliest)));
        }
        let holders = self.topics.device_holders.clone();
        let states = read_to_end(
            &*self.service.bus,
            &all,
            || self.service.shutdown.is_cancelled(),
            |record| {
                hear(devices, &holders, &record);
                Ok::<_, BusError>(())
            },
        )?;
        // Whoever led before may say more until this one has joined; then it is read again.
        let published = self.published_intents()?;
        if states.is_some() {
            devices.met(&published.intents().cloned().collect::<Vec<_>>());
        }
        self.agents = states.map(|states| Agents { published, states, wanted: None });
        Ok(())
    }

    fn published_intents(&self) -> Result<Published, BusError> {
        let mut published = Published::default();
        for partition in 0..self.partitions_of(&self.topics.device_intents)? {
            read_keys(self.service, &self.topics.device_intents, partition, |node, value| {
                // An unreadable one holds nothing: agents do not follow it.
                published.read(node, value.and_then(|value| decode(value).ok()));
            })?;
        }
        Ok(published)
    }

    fn partitions_of(&self, topic: &Arc<str>) -> Result<i32, BusError> {
        let specs = self.service.bus.topics(&self.service.settings.prefix)?;
        specs.into_iter().find(|spec| spec.name == *topic).map(|spec| spec.partitions).ok_or_else(|| {
            let detail = "there is no such topic; create the topics with eadt topics apply";
            BusError::new(Remedy::Stop, format!("reading topic {topic}"), detail)
        })
    }

    fn hear_agents(&mut self) -> Result<(), BusError> {
        let (Some(devices), Some(agents)) = (self.service.cluster.devices(), &mut self.agents) else { return Ok(()) };
        let mut polled = Vec::new();
        agents.states.poll(256, Duration::ZERO, &mut polled)?;
        for item in polled {
            if let Polled::Record(record) = item {
                hear(devices, &self.topics.device_holders, &record);
            }
        }
        Ok(())
    }

    /// Reads the intents that stand. Joining the group has fenced older writers, so the end that is noted now is the end.
    fn read_intents(&mut self) -> Result<(), BusError> {
        if self.agents.is_none() {
            return Ok(());
        }
        let published = self.published_intents()?;
        if let Some(agents) = &mut self.agents {
            (agents.published, agents.wanted) = (published, None);
        }
        Ok(())
    }

    /// Says what agents are to hold, in the same step as what is said of the changes that ask for it.
    fn tell_agents(&mut self) {
        let (Some(devices), Some(agents)) = (self.service.cluster.devices(), &mut self.agents) else { return };
        // A node's wish is a whole: only whoever has all workloads may say it.
        if self.assigned.len() != usize::try_from(self.partitions).unwrap_or(usize::MAX) {
            return;
        }
        let Some(wanted) = devices.wanted() else { return };
        let unchanged =
            |(last, looked): &(Arc<Vec<DeviceIntent>>, Instant)| Arc::ptr_eq(last, &wanted) && looked.elapsed() < LOOK_AT_INTENTS;
        if agents.wanted.as_ref().is_some_and(unchanged) {
            return;
        }
        for due in agents.published.due(&wanted, self.service.cluster.now()) {
            let topic = self.topics.device_intents.clone();
            self.outputs.push(match due {
                Due::Say(intent) => {
                    tracing::debug!(node = intent.node, decision = intent.decision_id, "an agent is asked");
                    let envelope = Envelope {
                        id: format!("{}/{}", intent.node, intent.time.micros()),
                        source: SOURCE.into(),
                        kind: EventType::DeviceIntent,
                        time: intent.time,
                        subject: intent.node.clone(),
                    };
                    Outgoing::event(&topic, &intent.node, &envelope, &intent)
                }
                Due::Withdraw(node) => {
                    tracing::info!(node, "an agent's intent is withdrawn");
                    Outgoing::tombstone(&topic, &node)
                }
            });
        }
        agents.wanted = Some((wanted, Instant::now()));
    }

    /// Looks at what changed in the cluster, and notes what is to be said; true once it was seen.
    fn look(&mut self) -> bool {
        let Service { cluster, settings, .. } = self.service;
        if self.look_not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return self.is_seen();
        }
        let stale = self.looked.elapsed().as_secs_f64() >= settings.reconcile_seconds;
        if self.look_again || stale || self.revision != Some(cluster.revision()) {
            match cluster.changes(self.revision.filter(|_| !stale)) {
                Ok(changes) => self.see_changes(changes),
                Err(error) => {
                    self.put_off_looking(&error, "the cluster cannot be looked at");
                    return self.is_seen();
                }
            }
        }
        if self.approvals_not_before.is_some_and(|not_before| not_before <= Instant::now()) {
            self.approvals_not_before = None;
            self.approved();
        }
        for decision in std::mem::take(&mut self.verdicts) {
            cluster.verified(&decision);
        }
        self.take_back_overdue();
        true
    }

    /// What is to be known of the cluster is known.
    fn is_seen(&self) -> bool {
        self.revision.is_some() && !self.look_again
    }

    fn see_changes(&mut self, changes: Changes) {
        let Changes { revision, all, workloads, gone } = changes;
        if all {
            self.view.clear();
            self.rolling.clear();
            self.looked = Instant::now();
        }
        for name in &gone {
            self.view.remove(name);
            self.rolling.remove(name);
        }
        // Those that are gone are asked for nothing any more.
        let asked: Vec<_> = if all { self.standing.workloads().cloned().collect() } else { gone };
        let mine = |m: &Managed| self.assigned.contains_key(&partition_for_key(m.state.workload.as_bytes(), self.partitions));
        for managed in workloads.into_iter().filter(mine).collect::<Vec<_>>() {
            let name = managed.state.workload.clone();
            self.see(managed);
            self.say_changes(&name);
        }
        for name in asked {
            self.tell_job(&name);
        }
        self.revision = Some(revision);
        self.look_again = false;
        self.failures = 0;
        self.look_not_before = None;
        self.approved();
        self.metrics.workloads.set(self.view.len() as i64);
        self.metrics.rollouts.set(self.rolling.len() as i64);
    }

    /// A workload as it is now.
    fn see(&mut self, managed: Managed) {
        let name = managed.state.workload.clone();
        if managed.rolling_out().is_some() {
            self.rolling.insert(name.clone());
        } else {
            self.rolling.remove(&name);
        }
        self.view.insert(name, managed);
    }

    fn put_off_looking(&mut self, error: &ClusterError, what: &'static str) {
        self.metrics.retries.inc();
        let pause = self.pause(self.failures);
        self.failures += 1;
        tracing::warn!(%error, pause_seconds = pause.as_secs_f64(), "{what}; it is tried again");
        self.look_not_before = Some(Instant::now() + pause);
    }

    fn pause(&self, attempts: u32) -> Duration {
        let Settings { retry_min_seconds, retry_max_seconds, .. } = self.service.settings;
        Duration::from_secs_f64((retry_min_seconds * 2_f64.powi(attempts.min(30) as i32)).min(retry_max_seconds))
    }

    fn take_back_overdue(&mut self) {
        if self.rolling.is_empty() {
            self.put_off.clear();
            return;
        }
        let now = self.service.cluster.now();
        let rolling = self.rolling.iter().filter_map(|name| self.view.get(name));
        let overdue: Vec<_> = rolling.filter_map(|managed| watch::overdue(managed, now)).collect();
        for mut back in overdue {
            let managed = self.view.get(&back.workload);
            let withdrawn = managed.is_some_and(|managed| directives::wanted(managed, None).is_none());
            if let Some(missing) = self.following.missing(&back.decision_id, withdrawn) {
                back.reason = format!("{}: {missing}", back.reason);
            }
            let early = self.put_off.get(&back.decision_id).is_some_and(|(_, not_before)| Instant::now() < *not_before);
            if early || self.given_up.contains(&back.decision_id) {
                continue;
            }
            tracing::warn!(workload = back.workload, decision = back.decision_id, reason = back.reason, "rolling back");
            match apply::roll_back(&*self.service.cluster, &back) {
                Ok(written) => {
                    self.put_off.remove(&back.decision_id);
                    self.written(written);
                }
                Err(error) => match error.remedy {
                    ClusterRemedy::Refused => {
                        if let Some(report) = self.view.get(&back.workload).and_then(|m| report::failed(m, &error.detail, now)) {
                            self.say(report);
                        }
                        self.given_up.insert(back.decision_id);
                    }
                    ClusterRemedy::Conflict | ClusterRemedy::Retry => {
                        self.metrics.retries.inc();
                        self.look_again = true;
                        let failures = self.put_off.get(&back.decision_id).map_or(0, |(failures, _)| *failures);
                        let pause = self.pause(failures);
                        tracing::warn!(
                            workload = back.workload,
                            decision = back.decision_id,
                            %error,
                            pause_seconds = pause.as_secs_f64(),
                            "a rollout cannot be taken back; it is tried again"
                        );
                        self.put_off.insert(back.decision_id, (failures.saturating_add(1), Instant::now() + pause));
                    }
                    ClusterRemedy::Stopped => {}
                },
            }
        }
    }

    /// Finishes what can be finished; false when the cluster is going away.
    fn act(&mut self) -> bool {
        if !self.is_seen() {
            return true;
        }
        for partition in self.assigned.keys().copied().collect::<Vec<_>>() {
            while let Some(mut head) = self.assigned.get_mut(&partition).and_then(|assigned| assigned.waiting.pop_front()) {
                let early = head.not_before.is_some_and(|not_before| Instant::now() < not_before);
                match if early { Attempt::Later } else { self.attempt(&mut head) } {
                    Attempt::Done => {
                        if let Some(assigned) = self.assigned.get_mut(&partition) {
                            assigned.position = head.record.offset + 1;
                        }
                    }
                    Attempt::Later => {
                        if let Some(assigned) = self.assigned.get_mut(&partition) {
                            assigned.waiting.push_front(head);
                        }
                        break;
                    }
                    Attempt::Stopped => return false,
                }
            }
        }
        true
    }

    fn attempt(&mut self, waiting: &mut Waiting) -> Attempt {
        let decision = match &waiting.decision {
            Ok(decision) => decision,
            Err(unreadable) => {
                self.metrics.dead_letters.inc();
                self.outputs.push(Outgoing::dead_letter(&self.topics.dead_letters, &waiting.record, unreadable, "actuator"));
                return Attempt::Done;
            }
        };
        let Some(now) = self.service.cluster.turn(decision) else { return Attempt::Later };
        // The object may have changed while the decision waited for its turn.
        if (self.look_again || self.revision != Some(self.service.cluster.revision())) && !self.look() {
            return Attempt::Later;
        }
        if waiting.attempts == 0 {
            self.metrics.decisions.inc();
            self.service.cluster.decided(decision);
        }
        match self.decide(decision, waiting.trouble.as_deref(), now) {
            Ok(Decided::Done(report)) => {
                self.stop_waiting(decision);
                if let Some(report) = report {
                    self.say(report);
                }
                Attempt::Done
            }
            Ok(Decided::Unsettled) => {
                waiting.attempts = waiting.attempts.max(1);
                Attempt::Later
            }
            Ok(Decided::Wait) => {
                waiting.attempts = waiting.attempts.max(1);
                waiting.not_before = Some(Instant::now() + LOOK_AT_JOB);
                Attempt::Later
            }
            Err(error) => match error.remedy {
                ClusterRemedy::Stopped => Attempt::Stopped,
                remedy if remedy == ClusterRemedy::Refused || chaos::is_off("retries") => {
                    self.stop_waiting(decision);
                    let refusal = Refusal::new("cluster", format!("the cluster refuses it: {error}"));
                    self.refuse(decision, &refusal, now);
                    Attempt::Done
                }
                // Look again: it may have taken effect, or somebody else changed the object.
                _ => {
                    self.look_again = true;
                    self.metrics.retries.inc();
                    let pause = self.pause(waiting.attempts);
                    tracing::warn!(
                        workload = decision.workload,
                        decision = decision.id,
                        %error,
                        pause_seconds = pause.as_secs_f64(),
                        "a change was not written; it is tried again until it expires"
                    );
                    waiting.attempts += 1;
                    waiting.trouble = Some(error.to_string());
                    waiting.not_before = Some(Instant::now() + pause);
                    Attempt::Later
                }
            },
        }
    }

    /// Applies recommendations that people approved; one that cannot be applied now is approved until it is no longer recommended.
    fn approved(&mut self) {
        for decision in self.service.cluster.approved() {
            let Some(managed) = self.view.get(&decision.workload) else { continue };
            let state = &managed.state;
            // Applied once, and only while it is but recommended.
            if state.mode != UpdateMode::Recommend || managed.applied.as_ref().is_some_and(|a| a.decision_id == decision.id) {
                continue;
            }
            let mut allowed = managed.clone();
            allowed.state.mode = UpdateMode::Enforce;
            let now = self.service.cluster.now();
            let Plan::Change(planned) = plan(&decision, &allowed) else { continue };
            let checked = match check(&planned, &decision, &allowed, now, &self.service.settings) {
                Ok(Verdict::Apply(checked)) => checked,
                Ok(Verdict::Recommend) => continue,
                Err(refusal) => {
                    self.stop_waiting(&decision);
                    self.refuse(&decision, &refusal, now);
                    continue;
                }
            };
            if self.unsettled.contains(&decision.workload) {
                self.approvals_not_before = Some(Instant::now());
                continue;
            }
            let gate = if planned.restarts { self.gate(&decision, allowed.state.origin, now) } else { Ok(Gate::Open) };
            let written = match gate {
                Ok(Gate::Open) => apply::apply(&*self.service.cluster, &checked),
                Ok(Gate::Wait) => {
                    self.approvals_not_before = Some(Instant::now() + LOOK_AT_JOB);
                    continue;
                }
                Ok(Gate::Shut { reason }) => {
                    self.refuse(&decision, &Refusal::new("checkpoint", reason), now);
                    continue;
                }
                Err(error) => Err(error),
            };
            match written {
                Ok(written) => {
                    tracing::info!(workload = decision.workload, decision = decision.id, "applied, as approved");
                    self.written(written);
                }
                Err(error) if error.remedy == ClusterRemedy::Refused => {
                    self.refuse(&decision, &Refusal::new("cluster", format!("the cluster refuses it: {error}")), now);
                }
                Err(error) => self.put_off_looking(&error, "an approved change was not written"),
            }
        }
    }

    /// dereference → plan → check → apply. `trouble`: why it could not be written until now.
    fn decide(&mut self, decision: &Decision, trouble: Option<&str>, now: EventTime) -> Result<Decided, ClusterError> {
        let cluster = &self.service.cluster;
        let managed = match dereference(decision, &self.view) {
            Ok(managed) => managed,
            Err(_) if decision.action == Action::Maintain => return Ok(Decided::Done(None)),
            Err(refusal) => {
                self.refuse(decision, &refusal, now);
                return Ok(Decided::Done(None));
            }
        };
        let planned = match plan(decision, managed) {
            Plan::Nothing => return Ok(Decided::Done(None)),
            // What it did is said by the difference between what was published and what is.
            Plan::AppliedAlready(_) => {
                self.unsettled.insert(decision.workload.clone());
                return Ok(Decided::Done(None));
            }
            Plan::Change(planned) => planned,
        };
        if planned.restarts
            && decision.action != Action::Revert
            && managed.state.mode == UpdateMode::Enforce
            && let Some(barred) = cluster.restarts_barred(&decision.workload)
        {
            self.refuse(decision, &Refusal::new("schedule", barred), now);
            return Ok(Decided::Done(None));
        }
        match check(&planned, decision, managed, now, &self.service.settings) {
            Ok(Verdict::Recommend) => {
                cluster.recommend(decision)?;
                Ok(Decided::Done(Some(report::recommended(decision, managed, now))))
            }
            Ok(Verdict::Apply(_)) if self.unsettled.contains(&decision.workload) => Ok(Decided::Unsettled),
            Ok(Verdict::Apply(checked)) => {
                let origin = managed.state.origin;
                if planned.restarts {
                    match self.gate(decision, origin, now)? {
                        Gate::Open => {}
                        Gate::Wait => return Ok(Decided::Wait),
                        Gate::Shut { reason } => {
                            self.refuse(decision, &Refusal::new("checkpoint", reason), now);
                            return Ok(Decided::Done(None));
                        }
                    }
                }
                let written = apply::apply(&*self.service.cluster, &checked)?;
                tracing::info!(workload = decision.workload, decision = decision.id, reason = decision.reason, "applied");
                self.written(written);
                Ok(Decided::Done(None))
            }
            Err(mut refusal) => {
                if let Some(trouble) = trouble {
                    refusal.reason = format!("{}; until then it could not be written: {trouble}", refusal.reason);
                }
                self.refuse(decision, &refusal, now);
                Ok(Decided::Done(None))
            }
        }
    }

    /// Whether the job of a change that restarts it has a checkpoint to go on from; where it reports checkpoints, it is asked for one.
    fn gate(&mut self, decision: &Decision, origin: Origin, now: EventTime) -> Result<Gate, ClusterError> {
        let settings = &self.service.settings;
        // A simulated job keeps what it did by itself.
        if settings.checkpoint_wait_seconds == 0.0 || origin == Origin::Simulated {
            return Ok(Gate::Open);
        }
        let unread = |error: BusError| {
            ClusterError::new(ClusterRemedy::Retry, format!("reading the progress of {}: {error}", decision.workload))
        };
        let (mut wait, asked) = if let Some(mut wait) = self.checkpoints.remove(&decision.id) {
            wait.hear().map_err(unread)?;
            (wait, true)
        } else {
            let stopped = || self.service.shutdown.is_cancelled();
            let progress = self.progress().map_err(unread)?;
            let begun = Wait::begin(progress, &decision.workload, now, stopped).map_err(unread)?;
            (begun.ok_or_else(|| ClusterError::new(ClusterRemedy::Stopped, "stopping"))?, false)
        };
        let gate = wait.gate(now, settings);
        if gate == Gate::Wait {
            self.checkpoints.insert(decision.id.clone(), wait);
            if !asked {
                tracing::info!(workload = decision.workload, decision = decision.id, "waiting for a checkpoint");
            }
        }
        // It is asked once, and what it was asked is withdrawn when nobody waits any more: a restarted job must not take it for news.
        self.tell_job(&decision.workload);
        Ok(gate)
    }

    /// Forgets the waits that nobody asks about any more.
    fn forget_abandoned(&mut self) {
        let abandoned = self.checkpoints.extract_if(.., |_, wait| wait.is_abandoned());
        let abandoned: Vec<_> = abandoned.map(|(_, wait)| wait.workload().to_owned()).collect();
        for workload in &abandoned {
            self.tell_job(workload);
        }
    }

    /// No checkpoint is waited for any more for the sake of this decision.
    fn stop_waiting(&mut self, decision: &Decision) {
        if self.checkpoints.remove(&decision.id).is_some() {
            self.tell_job(&decision.workload);
        }
    }

    fn refuse(&mut self, decision: &Decision, refusal: &Refusal, now: EventTime) {
        tracing::info!(workload = decision.workload, decision = decision.id, reason = refusal.reason, "refused");
        self.metrics.refusal(refusal.kind);
        let report = report::refused(decision, refusal, self.view.get(&decision.workload), now);
        self.say(report);
    }

    fn written(&mut self, written: apply::Written) {
        let name = written.0.state.workload.clone();
        self.see(written.0);
        self.say_changes(&name);
    }

    fn say_changes(&mut self, workload: &str) {
        let Some(managed) = self.view.get(workload) else { return };
        for report in report::changes(self.published.get(workload), managed) {
            self.say(report);
        }
        self.tell_job(workload);
    }

    /// Says what a job is asked for, in the same step as what is said of the change that asks for it.
    fn tell_job(&mut self, workload: &str) {
        let waiting =
            self.checkpoints.iter().find(|(_, wait)| wait.workload() == workload).map(|(decision, _)| decision.as_str());
        let wanted = self.view.get(workload).and_then(|managed| directives::wanted(managed, waiting));
        let Some(due) = self.standing.due(workload, wanted, self.service.cluster.now()) else { return };
        let topic = self.topics.directives.clone();
        self.outputs.push(match due {
            directives::Due::Say(directive) => {
                tracing::info!(
                    workload,
                    decision = directive.decision_id,
                    precision = directive.precision,
                    frozen_prefix_layers = directive.frozen_prefix_layers,
                    checkpoint_now = directive.checkpoint_now,
                    "the job is asked"
                );
                let envelope = Envelope {
                    id: format!("{workload}/{}", directive.time.micros()),
                    source: SOURCE.into(),
                    kind: EventType::Directive,
                    time: directive.time,
                    subject: workload.to_owned(),
                };
                Outgoing::event(&topic, workload, &envelope, &directive)
            }
            directives::Due::Withdraw => {
                tracing::info!(workload, "the job is asked for nothing any more");
                Outgoing::tombstone(&topic, workload)
            }
        });
    }

    /// Tells the cluster which jobs do by now what a change asked of them.
    fn hear_jobs(&mut self) {
        let paused = self.not_following_before.is_some_and(|not_before| Instant::now() < not_before);
        if paused || self.rolling.is_empty() && self.following.is_idle() {
            return;
        }
        if let Err(error) = self.follow_jobs() {
            // What they said meanwhile they say again.
            tracing::warn!(%error, "what jobs report cannot be read; it is tried again");
            self.following = Following::default();
            self.not_following_before = Some(Instant::now() + self.pause(3));
        }
    }

    fn follow_jobs(&mut self) -> Result<(), BusError> {
        let early = self.following_not_before.is_some_and(|not_before| Instant::now() < not_before);
        let rolling = self.rolling.iter().filter_map(|name| Some((name, self.view.get(name)?.rolling_out()?)));
        let waiting: Vec<_> = rolling.filter(|(_, applied)| applied.asked().is_some()).collect();
        // Begun before the job is asked, so that none of its answers is missed.
        if early && self.following.is_of(&waiting) {
            return Ok(());
        }
        let topic = &self.topics.progress;
        let partitions = if waiting.is_empty() { 0 } else { self.partitions_of(topic)? };
        self.following.follow(Progress { bus: &*self.service.bus, topic, partitions }, &waiting)?;
        if early {
            return Ok(());
        }
        self.following_not_before = Some(Instant::now() + LOOK_AT_JOB);
        for (workload, decision) in self.following.hear()? {
            self.service.cluster.followed(&workload, &decision);
        }
        Ok(())
    }

    fn progress(&self) -> Result<Progress<'_>, BusError> {
        let topic = &self.topics.progress;
        Ok(Progress { bus: &*self.service.bus, topic, partitions: self.partitions_of(topic)? })
    }

    fn say(&mut self, report: Report) {
        match report {
            Report::Actuation(actuation) => {
                if actuation.outcome == Outcome::RolledBack || actuation.outcome == Outcome::Failed {
                    tracing::warn!(
                        workload = actuation.workload,
                        decision = actuation.decision_id,
                        reason = actuation.reason,
                        "undone"
                    );
                }
                self.metrics.outcome(actuation.outcome);
                self.unsettled.insert(actuation.workload.clone());
                self.service.cluster.told(&actuation);
                let envelope = Envelope {
                    id: actuation.id.clone(),
                    source: SOURCE.into(),
                    kind: EventType::Actuation,
                    time: actuation.time,
                    subject: actuation.workload.clone(),
                };
                self.outputs.push(Outgoing::event(&self.topics.actuations, &actuation.workload, &envelope, &*actuation));
            }
            Report::Workload(workload) => {
                let envelope = Envelope {
                    id: format!("{}/{}/{}", workload.workload, workload.generation, workload.time.micros()),
                    source: SOURCE.into(),
                    kind: EventType::Workload,
                    time: workload.time,
                    subject: workload.workload.clone(),
                };
                self.outputs.push(Outgoing::event(&self.topics.workloads, &workload.workload, &envelope, &*workload));
                self.published.insert(workload.workload.clone(), *workload);
            }
        }
    }

    fn commit(&mut self) -> Result<(), BusError> {
        let decisions = &self.topics.decisions;
        let positions: Vec<_> = self
            .assigned
            .iter()
            .filter(|(_, assigned)| assigned.position != assigned.committed)
            .map(|(partition, assigned)| (TopicPartition::new(decisions.clone(), *partition), assigned.position))
            .collect();
        if positions.is_empty() && self.outputs.is_empty() {
            return Ok(());
        }
        self.member.commit(&Step { outputs: std::mem::take(&mut self.outputs), positions })?;
        self.unsettled.clear();
        for assigned in self.assigned.values_mut() {
            assigned.committed = assigned.position;
        }
        Ok(())
    }

    fn make_room(&mut self) -> Result<(), BusError> {
        for (partition, assigned) in &mut self.assigned {
            let full = assigned.waiting.len() >= MAX_QUEUED;
            if full != assigned.paused {
                let at = [TopicPartition::new(self.topics.decisions.clone(), *partition)];
                if full {
                    self.member.pause(&at)?;
                } else {
                    self.member.resume(&at)?;
                }
                assigned.paused = full;
            }
        }
        Ok(())
    }
}

/// Reads a partition to its present end: keys and values, `None` for a tombstone.
fn read_keys(
    service: &Service,
    topic: &Arc<str>,
    partition: i32,
    mut each: impl FnMut(&str, Option<&[u8]>),
) -> Result<(), BusError> {
    let at = TopicPartition::new(topic.clone(), partition);
    read_to_end(
        &*service.bus,
        &[(at, Start::Earliest)],
        || service.shutdown.is_cancelled(),
        |record| {
            let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default());
            each(&key, record.value.as_deref());
            Ok::<_, BusError>(())
        },
    )?;
    Ok(())
}

/// `holders`: the topic of collectors; agents' otherwise.
fn hear(devices: &dyn Devices, holders: &str, record: &Record) {
    let Some(value) = record.value.as_deref() else { return };
    let heard = if *record.at.topic == *holders {
        // By the log's clock: a node whose own is ahead must not be believed for longer.
        decode::<DeviceHolders>(value).map(|holders| devices.held(DeviceHolders { time: record.stamp, ..holders }))
    } else {
        decode::<DeviceState>(value).map(|state| devices.said(state))
    };
    if let Err(refusal) = heard {
        tracing::warn!(at = %record.at, offset = record.offset, detail = refusal.detail, "a report of a node cannot be read");
    }
}
