//! Actuators that die between a change and the step that reports it, or whose step a broker forgot in part, and those that come
//! after them.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::simulation::ForgetfulBus;
use eadt_bus::{
    Bus, ConsumerRecord, IsolationLevel, MemberOptions, Membership, PollEvent, ProducerRecord, StartOffset, TopicPartition,
    TransactionEnd, topics,
};
use eadt_cluster::{AppliedDecision, Cluster, ClusterError, ClusterRemedy, ManagedWorkload, RollbackRequest, WorkloadChange};
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, Layout, TrainingProgress, UpdateMode, Workload,
};
use eadt_schemas::{Envelope, EventTime, EventType, Topic, decode};
use eadt_service::{HealthRegistry, MetricsRegistry, ServiceClock, Shutdown};

use super::ActuatorDependencies;
use crate::declared_jobs::DeclaredJobs;
use crate::{ActuatorSettings, DeclaredJob, JobController};

pub const WITHIN: Duration = Duration::from_mins(1);
const NAME: &str = "n/w";
/// A workload of the same partition whose decisions may have to wait.
const OTHER: &str = "n/other";

/// A workload that remembers its last change, as objects do; changes are ready at once.
#[derive(Debug)]
struct Object {
    managed: Mutex<(u64, ManagedWorkload)>,
    /// The process that makes the next change dies before it can publish it.
    deadly: AtomicBool,
    /// Decisions that were reported to it as having found a change to help.
    verified: Mutex<Vec<String>>,
    /// The time of the newest decision, at which simulated time stops.
    time: Mutex<EventTime>,
    /// It is not yet the turn of [`OTHER`]'s decisions.
    holds_other: AtomicBool,
}

fn place(topic: Topic) -> TopicPartition {
    TopicPartition::new(format!("t.{topic}"), 0)
}

fn now() -> EventTime {
    EventTime::from_seconds(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64())
}

impl Object {
    fn new() -> Self {
        let state = Workload {
            workload: NAME.into(),
            time: now(),
            generation: 1,
            ready_time: Some(now()),
            mode: UpdateMode::Enforce,
            layout: Layout { power_limit_watts: Some(400.0), ..Layout::default() },
            ..Workload::default()
        };
        let managed = ManagedWorkload { state, applied: None, mps_default_thread_percentage: None, restarts: vec![] };
        Self {
            managed: Mutex::new((1, managed)),
            deadly: AtomicBool::new(false),
            verified: Mutex::default(),
            time: Mutex::new(now()),
            holds_other: AtomicBool::new(false),
        }
    }
}

impl Cluster for Object {
    fn now(&self) -> EventTime {
        *self.time.lock().unwrap()
    }
    fn effect_time(&self, decision: &Decision) -> Option<EventTime> {
        let is_held = decision.workload == OTHER && self.holds_other.load(Ordering::SeqCst);
        (!is_held).then(|| self.now())
    }
    fn revision(&self) -> u64 {
        self.managed.lock().unwrap().0
    }
    fn workloads(&self) -> Result<Vec<ManagedWorkload>, ClusterError> {
        Ok(vec![self.managed.lock().unwrap().1.clone()])
    }
    fn apply(&self, change: &WorkloadChange) -> Result<ManagedWorkload, ClusterError> {
        let mut held = self.managed.lock().unwrap();
        let (revision, managed) = &mut *held;
        assert_eq!(change.generation, managed.state.generation, "it is fenced");
        *revision += 1;
        managed.applied = Some(AppliedDecision {
            decision_id: change.decision_id.clone(),
            decision_time: change.decision_time,
            generation: change.generation + 1,
            time: now(),
            layout: change.layout.clone(),
            before: managed.state.layout.clone(),
            ready_by: now().plus_seconds(60.0),
            ready_time: Some(now()),
            rolled_back: None,
            approved_by: None,
        });
        managed.state.generation += 1;
        managed.state.layout = change.layout.clone();
        (managed.state.time, managed.state.ready_time) = (now(), Some(now()));
        if self.deadly.swap(false, Ordering::SeqCst) {
            return Err(ClusterError::new(ClusterRemedy::Stopped, "killed"));
        }
        Ok(managed.clone())
    }
    fn roll_back(&self, _: &RollbackRequest) -> Result<ManagedWorkload, ClusterError> {
        unreachable!("everything is ready at once")
    }
    fn recommend(&self, _: &Decision) -> Result<(), ClusterError> {
        unreachable!("it may be changed")
    }
    fn on_verified_decision(&self, decision: &Decision) {
        self.verified.lock().unwrap().push(decision.id.clone());
    }
}

pub struct Rig {
    log: ForgetfulBus<EmbeddedLog>,
    object: Arc<Object>,
    _data: tempfile::TempDir,
}

impl Rig {
    pub fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(data.path(), EmbeddedOptions::default()).unwrap();
        let plan = topics::plan(&[], &topics::desired("t.", 1, 1), topics::PartitionGrowthPolicy::Refuse);
        topics::apply(&log, &plan).unwrap();
        Self { log: ForgetfulBus::new(log), object: Arc::new(Object::new()), _data: data }
    }

    pub fn decide(&self, id: &str, generation: u64, from: f64, to: f64) {
        self.decide_after(ChangeValidation::None, id, generation, from, to);
    }

    fn decide_after(&self, validation: ChangeValidation, id: &str, generation: u64, from: f64, to: f64) {
        self.decide_for(NAME, validation, id, generation, [from, to]);
    }

    fn decide_for(&self, workload: &str, validation: ChangeValidation, id: &str, generation: u64, [from, to]: [f64; 2]) {
        let cap = |watts| Layout { power_limit_watts: Some(watts), ..Layout::default() };
        let decision = Decision {
            id: id.into(),
            workload: workload.into(),
            time: now(),
            action: if from == to { ControllerAction::Maintain } else { ControllerAction::SetPowerLimit },
            validation,
            reason: "the test wants it".into(),
            from: cap(from),
            to: cap(to),
            generation: Some(generation),
            expires: now().plus_seconds(300.0),
            ..Decision::default()
        };
        *self.object.time.lock().unwrap() = decision.time;
        self.send_decision(&decision);
    }

    fn send_decision(&self, decision: &Decision) {
        let Decision { id, workload, time, .. } = decision;
        let (source, kind) = ("/test".to_owned(), EventType::Decision);
        let envelope = Envelope { id: id.clone(), source, kind, time: *time, subject: workload.clone() };
        self.send(ProducerRecord::event(&place(Topic::Decisions).topic, workload, &envelope, decision));
    }

    fn send_report(&self, report: &TrainingProgress) {
        let (source, kind) = ("/test".to_owned(), EventType::TrainingProgress);
        let (id, subject) = (report.time.micros().to_string(), report.workload.clone());
        let envelope = Envelope { id, source, kind, time: report.time, subject };
        self.send(ProducerRecord::event(&place(Topic::TrainingProgress).topic, &report.workload, &envelope, report));
    }

    fn send(&self, record: ProducerRecord) {
        let mut producer = self.log.producer("test").unwrap();
        producer.send(record).unwrap();
        assert!(producer.flush(WITHIN).unwrap());
    }

    /// Runs an actuator of `jobs` while this report is repeated, until the outcome of a decision is published.
    fn live_with_jobs(&self, jobs: DeclaredJobs, report: impl Fn() -> TrainingProgress, id: &str, until: ActuationOutcome) {
        let shutdown = Shutdown::new();
        let service = ActuatorDependencies { cluster: Arc::new(jobs), ..self.dependencies(&shutdown) };
        std::thread::scope(|scope| {
            let life = scope.spawn(move || super::run_actuator(&service));
            let begun = Instant::now();
            while !life.is_finished() {
                assert!(begun.elapsed() < WITHIN, "{:?}", self.actuations());
                self.send_report(&report());
                if self.became(id).contains(&until) {
                    shutdown.cancel();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            life.join().unwrap().unwrap();
        });
    }

    /// Lives until it dies by its next change, or, if it is not to die, until this decision is reported as ready.
    fn live(&self, until: Option<&str>) {
        self.object.deadly.store(until.is_none(), Ordering::SeqCst);
        let shutdown = Shutdown::new();
        let service = self.dependencies(&shutdown);
        std::thread::scope(|scope| {
            let life = scope.spawn(move || super::run_actuator(&service));
            let begun = Instant::now();
            while !life.is_finished() {
                assert!(begun.elapsed() < WITHIN, "{:?}", self.actuations());
                if until.is_some_and(|id| self.became(id).contains(&ActuationOutcome::Ready)) {
                    shutdown.cancel();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            life.join().unwrap().unwrap();
        });
    }

    pub fn dependencies(&self, shutdown: &Shutdown) -> ActuatorDependencies {
        ActuatorDependencies {
            settings: ActuatorSettings { prefix: "t.".into(), change_interval_seconds: 0.0, ..ActuatorSettings::default() },
            bus: Arc::new(self.log.clone()),
            cluster: self.object.clone(),
            shutdown: shutdown.clone(),
            metrics: MetricsRegistry::default(),
            ready: HealthRegistry::default().part("actuator"),
        }
    }

    pub fn wait_until_ready(&self, decision: &str) {
        let begun = Instant::now();
        while !self.became(decision).contains(&ActuationOutcome::Ready) {
            assert!(begun.elapsed() < WITHIN, "{:?}", self.actuations());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Joins as another process of the actuator's name does.
    pub fn fence(&self) {
        let ActuatorSettings { group, instance, .. } = ActuatorSettings::default();
        let (membership, topics) = (Membership::Transactional(instance), vec![place(Topic::Decisions).topic]);
        drop(self.log.member(MemberOptions { group, membership, topics }).unwrap());
    }

    fn actuations(&self) -> Vec<Actuation> {
        self.read(Topic::Actuations).iter().map(|record| decode(record.value.as_deref().unwrap()).unwrap()).collect()
    }

    /// Returns everything committed; nothing while a transaction hangs in it.
    fn read(&self, topic: Topic) -> Vec<ConsumerRecord> {
        let at = place(topic);
        if self.log.is_hanging(&at) {
            return Vec::new();
        }
        let mut reader = self.log.reader(&[(at, StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
        let (mut found, mut polled, mut ended) = (Vec::new(), Vec::new(), false);
        while !ended {
            reader.poll(100, Duration::from_millis(20), &mut polled).unwrap();
            for item in polled.drain(..) {
                match item {
                    PollEvent::Record(record) => found.push(record),
                    PollEvent::End { .. } => ended = true,
                    other => panic!("a reader returned {other:?}"),
                }
            }
        }
        found
    }

    fn became(&self, id: &str) -> Vec<ActuationOutcome> {
        self.actuations().into_iter().filter(|a| a.decision_id == id).map(|a| a.outcome).collect()
    }
}

#[test]
fn a_change_that_was_not_published_is_published_before_the_next_one_hides_it() {
    let rig = Rig::new();
    rig.decide("d-1", 1, 400.0, 350.0);
    rig.live(None);
    assert_eq!(rig.became("d-1"), []);
    // It finds d-1 made, and dies over d-2: the object remembers only that one.
    rig.decide("d-2", 2, 350.0, 300.0);
    rig.live(None);
    rig.live(Some("d-2"));
    for id in ["d-1", "d-2"] {
        assert_eq!(rig.became(id), [ActuationOutcome::Applied, ActuationOutcome::Ready], "{id}: {:#?}", rig.actuations());
    }
}

fn freeze(id: &str, generation: u64, layers: u32) -> Decision {
    Decision {
        id: id.into(),
        workload: NAME.into(),
        time: now(),
        action: ControllerAction::FreezeLayers,
        reason: "the test wants it".into(),
        to: Layout { frozen_prefix_layers: Some(layers), ..Layout::default() },
        generation: Some(generation),
        expires: now().plus_seconds(300.0),
        ..Decision::default()
    }
}

/// Returns a report of a job that answered a directive.
fn answer(decision: &str, layers: u32, refused: Option<&str>) -> TrainingProgress {
    TrainingProgress {
        time: now(),
        workload: NAME.into(),
        collector: "test".into(),
        decision_id: Some(decision.into()),
        directive_refused: refused.map(str::to_owned),
        frozen_prefix_layers: Some(layers),
        ..TrainingProgress::default()
    }
}

#[test]
fn a_freeze_that_the_job_takes_back_later_is_rolled_back_once_by_whoever_acts_then() {
    let (rig, folder) = (Rig::new(), tempfile::tempdir().unwrap());
    let declared = DeclaredJob {
        workload: NAME.into(),
        mode: UpdateMode::Enforce,
        controller: JobController::Layers,
        frozen_prefix_layers_max: 3,
        precisions: Vec::new(),
    };
    let jobs = || {
        DeclaredJobs::open(&folder.path().join("jobs.json"), std::slice::from_ref(&declared), ServiceClock::machine()).unwrap()
    };
    let taken_back = || answer("d-1", 0, Some("frozen weights moved"));
    rig.send_decision(&freeze("d-1", 1, 2));
    rig.live_with_jobs(jobs(), || answer("d-1", 2, None), "d-1", ActuationOutcome::Ready);
    rig.live_with_jobs(jobs(), taken_back, "d-1", ActuationOutcome::RolledBack);
    let undone = rig.actuations().into_iter().find(|actuation| actuation.outcome == ActuationOutcome::RolledBack).unwrap();
    assert_eq!(undone.reason, "taken back by the job: frozen weights moved");
    assert_eq!((undone.layout, undone.generation), (Layout::default(), 3));
    assert_eq!(rig.read(Topic::Directives).last().unwrap().value, None, "nothing is requested any more");
    // The job repeats its refusal until it is asked for something else.
    rig.send_decision(&freeze("d-2", 9, 1));
    rig.live_with_jobs(jobs(), taken_back, "d-2", ActuationOutcome::Refused);
    rig.send_decision(&freeze("d-3", 3, 1));
    let is_late = Cell::new(false);
    let late_or_new = || {
        if is_late.replace(!is_late.get()) {
            TrainingProgress { frozen_prefix_layers: None, ..taken_back() }
        } else {
            answer("d-3", 1, None)
        }
    };
    rig.live_with_jobs(jobs(), late_or_new, "d-3", ActuationOutcome::Ready);
    assert_eq!(rig.became("d-1"), [ActuationOutcome::Applied, ActuationOutcome::Ready, ActuationOutcome::RolledBack]);
    assert_eq!(rig.became("d-3"), [ActuationOutcome::Applied, ActuationOutcome::Ready], "a refusal of an older change");
    let workloads = rig.read(Topic::Workloads);
    let last: Workload = decode(workloads.last().unwrap().value.as_deref().unwrap()).unwrap();
    assert_eq!((last.generation, last.layout.frozen_prefix_layers), (4, Some(1)));
}

#[test]
fn the_verdict_on_a_change_is_published_by_whoever_acts_next() {
    let rig = Rig::new();
    rig.decide("d-1", 1, 400.0, 350.0);
    rig.live(Some("d-1"));
    rig.decide_after(ChangeValidation::Kept, "v-1", 2, 350.0, 350.0);
    rig.decide_after(ChangeValidation::Failed, "v-2", 2, 350.0, 350.0);
    rig.decide("d-2", 2, 350.0, 300.0);
    rig.live(Some("d-2"));
    // The first one may have gone before it reported it to people.
    assert_eq!(*rig.object.verified.lock().unwrap(), [""; 0]);
    rig.decide("d-3", 3, 300.0, 250.0);
    rig.live(Some("d-3"));
    assert_eq!(*rig.object.verified.lock().unwrap(), ["v-1"]);
}

#[test]
fn what_is_published_of_a_change_once_is_not_repeated_if_a_part_of_its_step_hangs() {
    for hangs in [
        &[(Topic::Workloads, TransactionEnd::Abort)][..],
        &[(Topic::Workloads, TransactionEnd::Abort), (Topic::Actuations, TransactionEnd::Commit)],
    ] {
        let rig = Rig::new();
        let places: Vec<_> = hangs.iter().map(|(topic, _)| place(*topic)).collect();
        rig.decide("d-0", 1, 400.0, 380.0);
        rig.live(Some("d-0"));
        rig.decide("d-1", 2, 380.0, 350.0);
        rig.log.hang(&places, true, || rig.live(Some("d-1")));
        rig.decide("d-2", 3, 350.0, 300.0);
        rig.live(Some("d-2"));
        for (topic, end) in hangs {
            assert_eq!(rig.log.ended(&place(*topic)), Some(*end));
        }
        for id in ["d-0", "d-1", "d-2"] {
            assert_eq!(rig.became(id), [ActuationOutcome::Applied, ActuationOutcome::Ready], "{id}: {:#?}", rig.actuations());
        }
        let workloads = rig.read(Topic::Workloads);
        let generations = workloads.iter().map(|record| decode::<Workload>(record.value.as_deref().unwrap()).unwrap().generation);
        assert!(generations.clone().is_sorted() && generations.max() == Some(4), "{workloads:?}");
    }
}

#[test]
fn a_refusal_is_published_once_if_the_positions_hang() {
    let rig = Rig::new();
    rig.decide("d-1", 7, 400.0, 350.0);
    rig.decide("d-2", 1, 400.0, 380.0);
    rig.live(Some("d-2"));
    assert_eq!(rig.became("d-1"), [ActuationOutcome::Refused]);
    rig.log.hang_positions(&[(place(Topic::Decisions), 0)]);
    rig.decide("d-3", 2, 380.0, 350.0);
    rig.live(Some("d-3"));
    assert_eq!(rig.became("d-1"), [ActuationOutcome::Refused]);
    for id in ["d-2", "d-3"] {
        assert_eq!(rig.became(id), [ActuationOutcome::Applied, ActuationOutcome::Ready], "{id}");
    }
}

#[test]
fn a_decision_that_waits_holds_back_no_other_workload_and_what_is_finished_behind_it_is_not_repeated() {
    let rig = Rig::new();
    rig.object.holds_other.store(true, Ordering::SeqCst);
    rig.decide_for(OTHER, ChangeValidation::None, "o-1", 1, [400.0, 350.0]);
    rig.decide("d-1", 1, 400.0, 350.0);
    rig.decide("d-2", 7, 350.0, 340.0);
    rig.decide("d-3", 2, 350.0, 300.0);
    rig.live(Some("d-3"));
    // Another actuator reads all of them again: the object remembers the last change only.
    rig.decide("d-4", 3, 300.0, 250.0);
    rig.live(Some("d-4"));
    assert_eq!(rig.became("o-1"), []);
    rig.object.holds_other.store(false, Ordering::SeqCst);
    rig.decide("d-5", 4, 250.0, 200.0);
    rig.live(Some("d-5"));
    for id in ["d-1", "d-3", "d-4", "d-5"] {
        assert_eq!(rig.became(id), [ActuationOutcome::Applied, ActuationOutcome::Ready], "{id}: {:#?}", rig.actuations());
    }
    for id in ["o-1", "d-2"] {
        assert_eq!(rig.became(id), [ActuationOutcome::Refused], "{id}: {:#?}", rig.actuations());
    }
}
