//! The driver's loop: answers in, simulated time on, one atomic step out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use eadt_bus::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, HangingEnds, MemberOptions, Membership, PollEvent, ProducerRecord,
    Remedy, RetryBackoff, StartOffset, TopicPartition, partition_for_key, read_to_end,
};
use eadt_cluster::{ClusterError, ClusterRemedy};
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::v1::{Actuation, Decision, Workload};
use eadt_schemas::{DecodeError, EventTime, EventType, Topic, decode, envelope};
use eadt_service::http::ReadinessFlag;
use eadt_service::{MetricsRegistry, Shutdown};
use eadt_simulator::{ClusterSimulation, Scenario, ScenarioError, SimulatedEvent};
use serde::{Deserialize, Serialize};

use crate::gate::{GateTiming, MAX_STEP_SECONDS, TimeGate};
use crate::handle::{self, ClusterCall, ClusterReply, ClusterRequest, CommittedView, SharedSnapshot};
use crate::metrics::SimulatorMetrics;
use crate::records::StateReadError;
use crate::{SimClock, SimulatedCluster, SimulationSpeed, SimulatorSettings, records};

/// Least wall time between two steps, so that steps are worth their commit.
const TICK: Duration = Duration::from_millis(50);
/// Longest poll while an answer is owed: it bounds the delay until a call of the actuator is noticed.
const HELD_POLL: Duration = Duration::from_millis(1);
/// An answer that is owed for so long is worth a warning, and another each time it has passed again.
const WARN: Duration = Duration::from_secs(10);
/// Lost wall time beyond this is not caught up on.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Pauses before another try, the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Name of the repeated action in log lines.
const GOING_ON: &str = "the simulation continues from its last committed state";

/// The reason why the simulation cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    #[error("cannot start: {0}")]
    Settings(String),
    #[error("the bus refuses the simulator")]
    Bus(#[from] BusError),
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error(
        "the log holds a simulation of another scenario or seed (its seed is {seed}): go on with that one by naming neither, or choose another data folder (--data-dir)"
    )]
    OtherScenario { seed: u64 },
    #[error("the state of the simulation in {topic} cannot be read ({detail}): choose another data folder (--data-dir)")]
    State { topic: Arc<str>, detail: String },
    #[error(
        "the state of the simulation in {topic} has form {form}, which this release does not know: it was written by a newer release, start that one"
    )]
    NewerState { topic: Arc<str>, form: u8 },
    #[error("a simulated {what} would be refused by its readers ({refusal}): correct the scenario")]
    InvalidEvent { what: &'static str, refusal: DecodeError },
    #[error("jobs on a real cluster cannot be simulated at speed max: name a number, 1 is real time")]
    NoSpeed,
}

/// End of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulationEnd {
    /// Its duration is over.
    Duration,
    /// It was asked to stop; started again, it goes on.
    Shutdown,
}

/// The part that runs; make it with [`SimulationDriver::new`] together with the handle for the actuator.
#[derive(Debug)]
pub struct SimulationDriver {
    settings: SimulatorSettings,
    rules: GateTiming,
    clock: SimClock,
    commands: Receiver<ClusterCall>,
    shared: Arc<SharedSnapshot>,
}

/// Everything that must survive, as JSON. Fields may come within it, with a default for what was written without them. Its first
/// byte names the form, as in the processor's state: what means something else by the same text gets a form of its own.
#[derive(Debug, Serialize, Deserialize)]
struct DriverState {
    cluster: ClusterSimulation,
    gate: TimeGate,
}

impl SimulationDriver {
    /// Returns a driver and the cluster that it drives. `clock` shows its time; give the embedded log the same one.
    pub fn new(settings: SimulatorSettings, clock: SimClock) -> Result<(Self, SimulatedCluster), SimulatorError> {
        settings.check().map_err(SimulatorError::Settings)?;
        let (cluster, commands, shared) = handle::connect(clock.clone());
        let rules = GateTiming::new(&settings);
        Ok((Self { settings, rules, clock, commands, shared }, cluster))
    }

    /// Runs until the duration is over or `shutdown`; blocks, so give it a thread.
    pub fn run(
        self,
        bus: &dyn Bus,
        shutdown: &Shutdown,
        metrics: &MetricsRegistry,
        ready: &ReadinessFlag,
    ) -> Result<SimulationEnd, SimulatorError> {
        let metrics = SimulatorMetrics::new(metrics);
        let mut end = None;
        let mut backoff = RetryBackoff::new(RETRY.0, RETRY.1);
        let ended = loop {
            if shutdown.is_cancelled() {
                break Ok(SimulationEnd::Shutdown);
            }
            let session = DriverSession::open(&self, bus, shutdown, &metrics, &mut end, &mut backoff);
            match session.and_then(|mut session| session.run(ready)) {
                Ok(ended) => break Ok(ended),
                Err(SimulatorError::Bus(error)) if error.remedy != Remedy::Stop => {
                    metrics.restarts.inc();
                    let until = Instant::now() + backoff.on_failure(GOING_ON, &error);
                    while !shutdown.is_cancelled() && Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.shared.end();
        ended
    }
}

/// Session of a driver, from joining the group to the first error.
struct DriverSession<'a> {
    driver: &'a SimulationDriver,
    metrics: &'a SimulatorMetrics,
    shutdown: &'a Shutdown,
    topics: SimulatorTopics,
    member: Box<dyn GroupMember>,
    state: DriverState,
    state_partition: i32,
    /// Positions read and not committed yet.
    positions: BTreeMap<TopicPartition, i64>,
    outputs: Vec<ProducerRecord>,
    /// The state changed since the last commit.
    changed: bool,
    unanswered: Vec<PendingReply>,
    end: Option<EventTime>,
    pace: Option<SimulationPace>,
    backoff: &'a mut RetryBackoff,
}

/// A call that was carried out; it is answered when that is durable.
struct PendingReply {
    reply: SyncSender<Result<ClusterReply, ClusterError>>,
    result: Option<Result<ClusterReply, ClusterError>>,
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        // Without a commit the change is lost.
        let failed = || Err(ClusterError::new(ClusterRemedy::Retry, "the bus did not take the change"));
        // The caller may have gone with its own shutdown.
        drop(self.reply.send(self.result.take().unwrap_or_else(failed)));
    }
}

struct SimulatorTopics {
    telemetry: Arc<str>,
    progress: Arc<str>,
    decisions: Arc<str>,
    actuations: Arc<str>,
    workloads: Arc<str>,
    state: Arc<str>,
}

impl<'a> DriverSession<'a> {
    fn open(
        driver: &'a SimulationDriver,
        bus: &dyn Bus,
        shutdown: &'a Shutdown,
        metrics: &'a SimulatorMetrics,
        end: &mut Option<EventTime>,
        backoff: &'a mut RetryBackoff,
    ) -> Result<Self, SimulatorError> {
        let settings = &driver.settings;
        let full = |topic: Topic| -> Arc<str> { format!("{}{topic}", settings.prefix).into() };
        let topics = SimulatorTopics {
            telemetry: full(Topic::GpuTelemetry),
            progress: full(Topic::TrainingProgress),
            decisions: full(Topic::Decisions),
            actuations: full(Topic::Actuations),
            workloads: full(Topic::Workloads),
            state: full(Topic::SimulatorState),
        };
        let specs = bus.topics(&settings.prefix)?;
        let partitions = |topic: &Arc<str>| {
            specs.iter().find(|spec| spec.name == *topic).map(|spec| spec.partitions).ok_or_else(|| {
                let detail = "the topic does not exist; create the topics with eadt topics apply";
                BusError::new(Remedy::Stop, format!("simulating with topic {topic}"), detail)
            })
        };
        let inputs = [topics.decisions.clone(), topics.actuations.clone(), topics.workloads.clone()];
        let expected = inputs.iter().map(&partitions).sum::<Result<i32, _>>()? as usize;
        let state_partition = partition_for_key(records::STATE_KEY.as_bytes(), partitions(&topics.state)?);

        // Joining fences an older driver, so that records read from here on are final.
        let mut member = bus.member(MemberOptions {
            group: settings.group.clone(),
            membership: Membership::Transactional(settings.instance.clone()),
            topics: inputs.to_vec(),
        })?;
        let mut assigned = Vec::new();
        let mut polled = Vec::new();
        while assigned.len() < expected && !shutdown.is_cancelled() {
            member.poll(1, Duration::from_millis(50), &mut polled)?;
            for item in polled.drain(..) {
                match item {
                    PollEvent::Assigned(mut parts) => assigned.append(&mut parts),
                    PollEvent::Revoked(_) | PollEvent::Lost(_) => assigned.clear(),
                    PollEvent::Record(_) | PollEvent::Batch(_) | PollEvent::End { .. } => {}
                }
            }
        }
        // Reading a record twice changes nothing.
        let committed = HangingEnds::default().fetch_positions(&mut *member, &assigned)?;
        let stored = read_state(bus, &TopicPartition::new(topics.state.clone(), state_partition), shutdown)?;
        for (at, position) in assigned.iter().zip(committed) {
            let start = match position {
                Some(position) => position,
                None => bus.watermarks(at)?.low,
            };
            member.start(at, start)?;
        }

        let changed = stored.is_none();
        let state = match stored {
            Some(state) if !settings.adopt && *state.cluster.scenario() != settings.scenario => {
                return Err(SimulatorError::OtherScenario { seed: state.cluster.scenario().noise.seed });
            }
            Some(state) => state,
            None => initial_state(&settings.scenario, settings.aligned_start())?,
        };
        let now = state.cluster.now();
        if let (None, Some(duration)) = (&end, settings.duration_seconds) {
            let planned = driver.rules.align_to_effect(now.plus_seconds(duration), state.cluster.start());
            *end = Some(state.cluster.instant_at_or_after(planned));
        }
        tracing::info!(%now, speed = %settings.speed, seed = state.cluster.scenario().noise.seed, "simulation runs");
        Ok(Self {
            driver,
            metrics,
            shutdown,
            topics,
            member,
            state,
            state_partition,
            positions: BTreeMap::new(),
            outputs: Vec::new(),
            changed,
            unanswered: Vec::new(),
            end: *end,
            pace: None,
            backoff,
        })
    }

    fn run(&mut self, ready: &ReadinessFlag) -> Result<SimulationEnd, SimulatorError> {
        self.driver.clock.set(self.state.cluster.now());
        self.commit()?;
        ready.set(true);
        let mut wait = Duration::ZERO;
        let mut held: Option<(Instant, Instant)> = None;
        loop {
            if self.shutdown.is_cancelled() {
                self.commit()?;
                return Ok(SimulationEnd::Shutdown);
            }
            self.poll_answers(wait)?;
            self.execute_calls();
            let now = self.state.cluster.now();
            if self.driver.settings.gate {
                let pending = self.state.gate.pending_answers(&self.driver.rules, &self.state.cluster.managed(), now);
                self.metrics.pending_answers.set(pending.len() as i64);
                if let Some(first) = pending.first() {
                    // Events that wait for an answer must be visible to the services that give it.
                    if self.changed {
                        self.commit()?;
                    }
                    let (since, warned) = held.get_or_insert_with(|| (Instant::now(), Instant::now()));
                    if warned.elapsed() >= WARN {
                        *warned = Instant::now();
                        let seconds = since.elapsed().as_secs();
                        tracing::warn!(%now, seconds, pending = pending.len(), waits_for = %first, "simulated time waits for answers of the services");
                    }
                    wait = HELD_POLL;
                    continue;
                }
                if let Some((since, _)) = held.take() {
                    self.metrics.held_seconds.inc_by(since.elapsed().as_secs_f64());
                }
            }
            if self.end.is_some_and(|end| now >= end) {
                self.commit()?;
                tracing::info!(%now, "the simulation's duration is over");
                return Ok(SimulationEnd::Duration);
            }
            let (to, pause) = self.next_step(now);
            if to > now {
                self.advance(to)?;
                self.commit()?;
            } else if self.changed {
                self.commit()?;
            }
            wait = pause;
        }
    }

    /// Reads the answers.
    fn poll_answers(&mut self, wait: Duration) -> Result<(), SimulatorError> {
        let mut polled = Vec::new();
        self.member.poll(1000, wait, &mut polled)?;
        for item in polled {
            match item {
                PollEvent::Record(record) => {
                    self.on_answer(&record);
                    self.positions.insert(record.at, record.offset + 1);
                    self.changed = true;
                }
                PollEvent::Batch(_) | PollEvent::End { .. } => {}
                PollEvent::Assigned(parts) | PollEvent::Revoked(parts) | PollEvent::Lost(parts) => {
                    // New partitions, or another member in the group: restart with the partitions assigned then.
                    let what = format!("simulating as group {}", self.driver.settings.group);
                    return Err(BusError::new(Remedy::Restart, what, format!("{} partitions moved", parts.len())).into());
                }
            }
        }
        Ok(())
    }

    fn on_answer(&mut self, record: &ConsumerRecord) {
        let kind = record.header(envelope::header::TYPE).and_then(EventType::from_name);
        let Some(value) = record.value.as_deref().filter(|_| kind != Some(EventType::Heartbeat)) else { return };
        let gate = &mut self.state.gate;
        let read = if record.at.topic == self.topics.decisions {
            read::<Decision>(value).map(|decision| gate.on_decision(&decision))
        } else if record.at.topic == self.topics.actuations {
            read::<Actuation>(value).map(|actuation| gate.on_actuation(&actuation))
        } else {
            read::<Workload>(value).map(|workload| gate.on_layout(&workload.workload))
        };
        if let Err(detail) = read {
            // Its dead letter is written by the service that owes an answer to it.
            self.metrics.unreadable.inc();
            tracing::warn!(at = %record.at, offset = record.offset, detail, "a decision, actuation or layout cannot be read");
        }
    }

    /// Carries out the actuator's calls; they are answered by the next commit.
    fn execute_calls(&mut self) {
        while let Ok(ClusterCall { request, reply }) = self.driver.commands.try_recv() {
            let cluster = &mut self.state.cluster;
            let result = match request {
                ClusterRequest::Apply(change) => cluster.apply(&change).map(|managed| ClusterReply::Managed(Box::new(managed))),
                ClusterRequest::RollBack(back) => {
                    cluster.roll_back(&back).map(|managed| ClusterReply::Managed(Box::new(managed)))
                }
                ClusterRequest::Recommend(decision) => cluster.recommend(&decision).map(|()| ClusterReply::Recommended),
                ClusterRequest::EditPolicy { workload, change, by } => {
                    cluster.change_terms(&workload, &change, &by).map(ClusterReply::PolicyEdited)
                }
            };
            self.changed = true;
            self.unanswered.push(PendingReply { reply, result: Some(result) });
        }
    }

    /// Returns the time up to which simulated time may advance now, and the wait after that.
    fn next_step(&mut self, now: EventTime) -> (EventTime, Duration) {
        let DriverSession { driver, state, end, .. } = self;
        let mut stop = now.plus_seconds(MAX_STEP_SECONDS);
        if driver.settings.gate {
            stop = stop.min(state.gate.next_stop(&driver.rules, now));
        }
        stop = stop.min(state.cluster.next_transition().unwrap_or(stop)).min(end.unwrap_or(stop));
        // A moment between two samples comes with the next sample.
        let stop = state.cluster.instant_at_or_after(stop);
        let SimulationSpeed::Times(speed) = driver.settings.speed else { return (stop, Duration::ZERO) };
        let wall = Instant::now();
        let pace = self.pace.get_or_insert(SimulationPace { wall, simulated: now, speed });
        pace.drop_backlog(wall, now);
        let tick = now.plus_seconds(TICK.as_secs_f64() * speed);
        let due = state.cluster.instant_at_or_after(tick.max(now.plus_micros(1))).min(stop);
        let due_wall = pace.wall_at(due);
        if wall < due_wall {
            // Short enough for the actuator's calls, which do not wake a poll.
            return (now, (due_wall - wall).min(Duration::from_millis(20)));
        }
        // The last sample that is due by now.
        let allowed = state.cluster.instant_at_or_after(pace.simulated_at(wall).plus_micros(1));
        (allowed.min(stop).max(due), Duration::ZERO)
    }

    /// Simulates up to `to`. An event that its readers would refuse is an error: simulated time would wait for ever for an
    /// answer.
    fn advance(&mut self, to: EventTime) -> Result<(), SimulatorError> {
        let DriverState { cluster, gate } = &mut self.state;
        gate.close_due_windows(&self.driver.rules, &cluster.managed(), cluster.now());
        let mut events = Vec::new();
        cluster.step(to, &mut events);
        for event in &events {
            gate.on_event(&self.driver.rules, event);
            check_event(event)?;
            self.outputs.push(records::event(&self.topics.telemetry, &self.topics.progress, event));
        }
        self.metrics.events.inc_by(events.len() as u64);
        self.driver.clock.set(to);
        self.changed = true;
        Ok(())
    }

    /// Makes everything since the last commit durable, shows it, and answers the calls.
    fn commit(&mut self) -> Result<(), SimulatorError> {
        if self.changed {
            let now = self.state.cluster.now();
            let mut outputs = std::mem::take(&mut self.outputs);
            outputs.extend(records::state(&self.topics.state, self.state_partition, now, &self.state));
            let positions = std::mem::take(&mut self.positions).into_iter().collect();
            if let Err(error) = self.member.commit(&CommitStep { outputs, positions }) {
                for unanswered in &mut self.unanswered {
                    unanswered.result = None;
                }
                return Err(error.into());
            }
            self.metrics.steps.inc();
            self.backoff.on_success(GOING_ON);
            self.changed = false;
        }
        let DriverState { cluster, gate } = &self.state;
        let now = cluster.now();
        self.metrics.simulated_seconds.set(now.seconds_since(cluster.start()));
        let turns = self.driver.settings.gate.then(|| gate.decision_horizons(&self.driver.rules, now));
        self.driver.shared.publish(CommittedView {
            now,
            managed: cluster.managed(),
            approved: cluster.approved(),
            decision_horizons: turns,
        });
        self.unanswered.clear();
        Ok(())
    }
}

impl Drop for DriverSession<'_> {
    fn drop(&mut self) {
        // Uncommitted changes did not happen.
        for unanswered in &mut self.unanswered {
            unanswered.result = None;
        }
    }
}

fn check_event(event: &SimulatedEvent) -> Result<(), SimulatorError> {
    let (what, checked) = match event {
        SimulatedEvent::Telemetry(sample) => ("sample of a GPU", sample.check()),
        SimulatedEvent::Progress(report) => ("report of a job", report.check()),
    };
    checked.map_err(|refusal| SimulatorError::InvalidEvent { what, refusal })
}

fn read<T: DecodableEvent>(value: &[u8]) -> Result<T, String> {
    decode(value).map_err(|refusal| refusal.detail)
}

fn initial_state(scenario: &Scenario, start: EventTime) -> Result<DriverState, SimulatorError> {
    let cluster = ClusterSimulation::new(scenario.clone(), start)?;
    let workloads = scenario.workloads.iter().map(|workload| (workload.name.clone(), workload.opted_in));
    let gate = TimeGate::new(workloads, start);
    Ok(DriverState { cluster, gate })
}

/// Returns the newest state on the topic.
fn read_state(bus: &dyn Bus, at: &TopicPartition, shutdown: &Shutdown) -> Result<Option<DriverState>, SimulatorError> {
    let mut newest = BTreeMap::new();
    let read = read_to_end(
        bus,
        &[(at.clone(), StartOffset::Earliest)],
        || shutdown.is_cancelled(),
        |record| {
            match (record.key, record.value) {
                (Some(key), Some(value)) => drop(newest.insert(key, value)),
                (Some(key), None) => drop(newest.remove(&key)),
                (None, _) => {}
            }
            Ok::<_, BusError>(())
        },
    )?;
    if read.is_none() {
        // A part of it, or none, would be taken for the whole.
        return Err(BusError::new(Remedy::Retry, format!("reading {at}"), "stopped before the state was read").into());
    }
    let unreadable = |detail| SimulatorError::State { topic: at.topic.clone(), detail };
    let value = records::whole_state(&newest).map_err(|why| match why {
        StateReadError::Damaged(detail) => unreadable(detail),
        StateReadError::Newer(form) => SimulatorError::NewerState { topic: at.topic.clone(), form },
    })?;
    value.map(|value| serde_json::from_slice(&value).map_err(|error| unreadable(error.to_string()))).transpose()
}

/// Simulated time against wall time.
#[derive(Debug)]
struct SimulationPace {
    wall: Instant,
    simulated: EventTime,
    speed: f64,
}

impl SimulationPace {
    fn wall_at(&self, simulated: EventTime) -> Instant {
        self.wall + Duration::from_secs_f64((simulated.seconds_since(self.simulated) / self.speed).max(0.0))
    }

    fn simulated_at(&self, wall: Instant) -> EventTime {
        self.simulated.plus_seconds((wall - self.wall).as_secs_f64() * self.speed)
    }

    /// Time lost to a long wait is not caught up on.
    fn drop_backlog(&mut self, wall: Instant, now: EventTime) {
        if wall.saturating_duration_since(self.wall_at(now)) > CATCH_UP {
            (self.wall, self.simulated) = (wall, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_bus::TopicSpec;
    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
    use eadt_schemas::v1::TrainingProgress;

    use super::*;

    #[test]
    fn an_event_that_its_readers_would_refuse_is_an_error_and_no_wait() {
        let report = TrainingProgress {
            time: EventTime::from_seconds(1_767_225_600.0),
            workload: "a/b".into(),
            collector: "simulator".into(),
            decision_id: Some("d".repeat(1024)),
            ..TrainingProgress::default()
        };
        let event = |report: TrainingProgress| SimulatedEvent::Progress(Box::new(report));
        assert!(check_event(&event(report.clone())).is_ok());
        let error = check_event(&event(TrainingProgress { workload: "a".into(), ..report })).unwrap_err().to_string();
        assert!(error.starts_with("a simulated report of a job would be refused") && error.contains("workload"), "{error}");
    }

    #[test]
    fn state_that_was_not_read_to_its_end_is_not_taken_for_none() {
        let data = tempfile::tempdir().unwrap();
        let bus = EmbeddedLog::open(data.path(), EmbeddedOptions::default()).unwrap();
        let at = TopicPartition::new("simulator-state", 0);
        let topic = TopicSpec { name: at.topic.clone(), partitions: 1, replication: 1, settings: BTreeMap::new() };
        bus.create_topic(&topic).unwrap();
        let start = EventTime::from_seconds(1_767_225_600.0);
        let state = initial_state(&Scenario::default(), start).unwrap();
        let mut producer = bus.producer("test").unwrap();
        for record in records::state(&at.topic, 0, start, &state) {
            producer.send(record).unwrap();
        }
        assert!(producer.flush(Duration::from_mins(1)).unwrap());
        let shutdown = Shutdown::new();
        let read = read_state(&bus, &at, &shutdown).unwrap();
        assert_eq!(read.map(|state| state.cluster.now()), Some(start));
        shutdown.cancel();
        assert!(matches!(read_state(&bus, &at, &shutdown), Err(SimulatorError::Bus(error)) if error.remedy == Remedy::Retry));
    }

    #[test]
    fn simulated_time_runs_sixty_times_faster_than_real_time_unless_set_otherwise() {
        let SimulationSpeed::Times(speed) = SimulatorSettings::default().speed else { panic!("a number by default") };
        let (wall, simulated) = (Instant::now(), EventTime::from_micros(1_767_225_600_000_000));
        let pace = SimulationPace { wall, simulated, speed };
        assert_eq!(pace.simulated_at(wall + Duration::from_secs(2)), simulated.plus_seconds(120.0));
        assert_eq!(pace.wall_at(simulated.plus_seconds(3600.0)), wall + Duration::from_mins(1));
        let real = SimulationPace { speed: 1.0, ..pace };
        assert_eq!(real.simulated_at(wall + Duration::from_secs(2)), simulated.plus_seconds(2.0));
    }
}
