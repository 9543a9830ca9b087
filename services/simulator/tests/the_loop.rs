//! The loop closes: samples, windows, decisions, changes, outcomes, over one embedded log.

mod common;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{LLM, Run, VISION, at, events, layout, outcomes, resumed, script, values};
use eadt_bus::embedded::EmbeddedLog;
use eadt_bus::{
    Bus, BusError, CommitStep, GroupMember, IsolationLevel, MemberOptions, PartitionReader, PollEvent, Producer, ProducerRecord,
    Remedy, StartOffset, TopicPartition, TopicSpec, WatermarkOffsets,
};
use eadt_cluster::{Cluster, ClusterError, ClusterRemedy, ManagedWorkload, RollbackRequest, WorkloadChange};
use eadt_schemas::v1::ActuationOutcome::{Applied, Ready, Refused};
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ControllerAction, Decision, GpuTelemetry, TrainingProgress, UpdateMode, Workload,
};
use eadt_schemas::{EventTime, Topic};
use eadt_simulator_service::{Fault, JobSuspension, Scenario, SimClock, SimulationEnd, SimulatorError, WorkloadScenario};

/// The topics that a history consists of.
const HISTORY: [Topic; 5] = [Topic::GpuTelemetry, Topic::TrainingProgress, Topic::Workloads, Topic::Actuations, Topic::Decisions];

fn history(log: &EmbeddedLog) -> Vec<Vec<Bytes>> {
    HISTORY.map(|topic| values(log, topic)).to_vec()
}

/// Returns where two histories part.
fn assert_same(found: &[Vec<Bytes>], expected: &[Vec<Bytes>], when: &str) {
    for ((topic, found), expected) in HISTORY.iter().zip(found).zip(expected) {
        let parted = found.iter().zip(expected).position(|(a, b)| a != b);
        assert!(
            parted.is_none(),
            "{when}: {topic} parts at {parted:?}: {:?} instead of {:?}",
            found[parted.unwrap()],
            expected[parted.unwrap()]
        );
        assert_eq!(found.len(), expected.len(), "{when}: {topic}");
    }
}

fn tempdir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn decisions_take_effect_at_a_fixed_delay_and_every_one_has_an_outcome() {
    let dir = tempdir();
    let (ended, log) = Run::new(dir.path(), 900.0, script).run();
    assert_eq!(ended, SimulationEnd::Duration);
    assert_eq!(
        outcomes(&log, LLM),
        [
            (120.0, Applied, 130.0, 2),
            (120.0, Ready, 250.0, 2),
            (480.0, Applied, 490.0, 3),
            (480.0, Ready, 610.0, 3),
            (660.0, Refused, 670.0, 3),
            (720.0, Refused, 730.0, 3),
        ]
    );
    assert_eq!(outcomes(&log, VISION), [(120.0, Applied, 130.0, 2), (120.0, Ready, 130.0, 2)]);
    let reasons: Vec<_> =
        events::<Actuation>(&log, Topic::Actuations).into_iter().filter(|a| a.outcome == Refused).map(|a| a.reason).collect();
    assert!(reasons[0].contains("do not divide the global batch of 576"), "{reasons:?}");
    assert!(reasons[1].contains("made for generation 1, in force is 3"), "{reasons:?}");

    let workloads: Vec<_> = events::<Workload>(&log, Topic::Workloads)
        .into_iter()
        .filter(|w| w.workload == LLM)
        .map(|w| (w.time, w.generation, w.ready_time.is_some(), w.layout.replicas))
        .collect();
    let since = |seconds: f64| at(seconds);
    assert_eq!(
        workloads,
        [
            (since(0.0), 1, true, Some(6)),
            (since(130.0), 2, false, Some(6)),
            (since(250.0), 2, true, Some(6)),
            (since(490.0), 3, false, Some(9)),
            (since(610.0), 3, true, Some(9)),
        ]
    );

    // One sample per GPU and second, none twice; the run went on to the effect of its last window.
    let mut seconds: BTreeMap<String, Vec<EventTime>> = BTreeMap::new();
    for sample in events::<GpuTelemetry>(&log, Topic::GpuTelemetry) {
        seconds.entry(sample.device).or_default().push(sample.time);
    }
    assert_eq!(seconds.len(), 5);
    for times in seconds.values() {
        assert_eq!(*times, (0..910).map(|second| at(f64::from(second))).collect::<Vec<_>>());
    }
    // A decision for every workload and window, in time.
    assert_eq!(events::<Decision>(&log, Topic::Decisions).len(), 2 * 15);
    let redone: Vec<_> = events::<TrainingProgress>(&log, Topic::TrainingProgress)
        .into_iter()
        .filter(|p| p.workload == LLM)
        .map(|p| p.samples_total.unwrap())
        .collect();
    assert_eq!(redone.windows(2).filter(|pair| pair[1] < pair[0]).count(), 2, "each restart loses some work");
}

#[test]
fn the_same_seed_gives_the_same_bytes_however_often_it_is_stopped_and_started() {
    let (whole, pieces) = (tempdir(), tempdir());
    let (_, log) = Run::new(whole.path(), 940.0, script).run();
    let expected = history(&log);
    drop(log);
    let mut stops = 0_u32;
    while let Some(mut run) = resumed(pieces.path(), 940.0, script) {
        run.stop_after = Some(940.0 * f64::from(10 + 4 * stops) / 100.0);
        let (ended, log) = run.run();
        stops += 1;
        if ended == SimulationEnd::Duration {
            assert_same(&history(&log), &expected, &format!("after {stops} starts"));
        }
        assert!(stops < 100, "no progress");
    }
    assert!(stops >= 2, "it was stopped at least once");

    let other = tempdir();
    let mut run = Run::new(other.path(), 900.0, script);
    run.settings.scenario.noise.seed = 1;
    let (_, log) = run.run();
    assert!(history(&log) != expected, "another seed is another history");
}

/// Checks that after a kill of all processes at any moment, the final state is that of an undisturbed run.
#[test]
fn killed_at_any_moment_it_goes_on_without_a_trace() {
    let whole = tempdir();
    let begun = Instant::now();
    assert!(process(whole.path()).status().unwrap().success());
    let undisturbed = begun.elapsed();
    let expected = history(&common::open(whole.path(), &SimClock::new(at(0.0))));
    // A run that ends before it was killed often enough, since this host has become faster, is killed sooner in another
    // folder.
    let mut kills = 0;
    for story in 1..=10 {
        let killed = tempdir();
        kills += kill_until_it_ends(killed.path(), undisturbed, story);
        let log = common::open(killed.path(), &SimClock::new(at(0.0)));
        assert_same(&history(&log), &expected, &format!("after {kills} kills in {story} folders"));
        if kills >= 3 {
            return;
        }
    }
    panic!("it was killed {kills} times only");
}

/// Returns how often it was killed before it came to its end; in later stories sooner.
fn kill_until_it_ends(dir: &std::path::Path, undisturbed: Duration, story: u32) -> u32 {
    let marks = tempdir();
    let mark = marks.path().join("mark");
    for kills in 0..200 {
        let percent = 10 + kills * 37 % 20;
        let after = 640.0 * f64::from(percent) / 100.0 / f64::from(story);
        let mut child = process(dir).env("EADT_TEST_AFTER", after.to_string()).env("EADT_TEST_MARK", &mark).spawn().unwrap();
        if kills % 2 == 0 {
            // By simulated time, so that it gets to the end however much of its time a start takes.
            while !mark.exists() && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
        } else {
            // Maybe while it starts.
            std::thread::sleep(undisturbed * percent / 100 / story);
        }
        child.kill().unwrap();
        let status = child.wait().unwrap();
        if status.success() {
            return kills;
        }
        assert_eq!(status.signal(), Some(9), "after {kills} kills: {status}");
        std::fs::remove_file(&mark).ok();
    }
    panic!("no progress");
}

fn process(dir: &std::path::Path) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_process_that_is_killed", "--ignored", "--nocapture"]);
    command.env("EADT_TEST_DIR", dir).stdout(std::process::Stdio::null());
    command
}

/// Run by the test above in processes of their own.
#[test]
#[ignore = "a part of killed_at_any_moment_it_goes_on_without_a_trace"]
fn the_process_that_is_killed() {
    let Some(dir) = std::env::var_os("EADT_TEST_DIR") else { return };
    if let Some(mut run) = resumed(std::path::Path::new(&dir), 640.0, script) {
        run.stop_after = std::env::var("EADT_TEST_AFTER").ok().map(|after| after.parse().unwrap());
        run.mark = std::env::var_os("EADT_TEST_MARK").map(Into::into);
        assert_eq!(run.run().0, SimulationEnd::Duration);
    }
}

#[test]
fn another_scenario_in_the_same_folder_is_refused() {
    let dir = tempdir();
    Run::new(dir.path(), 70.0, script).run();
    let settings = eadt_simulator_service::SimulatorSettings {
        scenario: Scenario { ambient_celsius: 20.0, ..Scenario::default() },
        ..eadt_simulator_service::SimulatorSettings::default()
    };
    let clock = SimClock::new(settings.start);
    let log = common::open(dir.path(), &clock);
    let (driver, _) = eadt_simulator_service::SimulationDriver::new(settings, clock).unwrap();
    let health = eadt_service::HealthRegistry::default();
    let error = driver
        .run(&log, &eadt_service::Shutdown::new(), &eadt_service::MetricsRegistry::default(), &health.part("simulator"))
        .unwrap_err();
    assert!(matches!(error, SimulatorError::OtherScenario { .. }), "{error}");
}

/// The sample of the state's first form; `EADT_WRITE_STATE_SAMPLE=1` writes it if it is missing, and never changes it.
const STATE_SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/state/v1.json");
/// When it was taken.
const SAMPLED: f64 = 550.0;

/// Returns a job that shares the GPUs of another one and was away, and one of every fault, some of them going on.
fn eventful() -> Scenario {
    let mut scenario = Scenario::default();
    let of = |name: &str| scenario.workloads.iter().find(|workload| workload.name == name).unwrap();
    let guest = WorkloadScenario {
        name: "eadt/guest".into(),
        opted_in: false,
        board: of(VISION).board,
        gpus: of(VISION).gpus,
        replicas: of(VISION).gpus,
        mps_thread_percentage: 30,
        planned_samples: Some(1e9),
        shares_gpus_of: Some(VISION.into()),
        away: vec![JobSuspension { from_seconds: 200.0, until_seconds: 300.0 }],
        ..WorkloadScenario::default()
    };
    scenario.workloads.push(guest);
    scenario.faults = vec![
        Fault::NeverReady { workload: VISION.into(), from_seconds: 600.0, until_seconds: 700.0 },
        Fault::DeviceLost { workload: LLM.into(), gpu: 1, from_seconds: 530.0, until_seconds: None },
        Fault::CounterReset { workload: VISION.into(), gpu: 0, at_seconds: 400.0 },
        Fault::Gap { workload: VISION.into(), from_seconds: 420.0, until_seconds: 440.0 },
    ];
    scenario
}

/// Starts a driver over a log whose newest state is this value; nothing is decided.
fn from_state(value: Vec<u8>, seconds: f64) -> (Result<SimulationEnd, SimulatorError>, EmbeddedLog, tempfile::TempDir) {
    let (dir, clock) = (tempdir(), SimClock::new(at(0.0)));
    let log = common::open(dir.path(), &clock);
    let mut producer = log.producer("test").unwrap();
    let (topic, key) = (common::full(Topic::SimulatorState).into(), Some("simulator".into()));
    producer.send(ProducerRecord { topic, partition: None, key, value: Some(value.into()), headers: vec![] }).unwrap();
    assert!(producer.flush(Duration::from_mins(1)).unwrap());
    let settings = eadt_simulator_service::SimulatorSettings {
        adopt: true,
        gate: false,
        speed: eadt_simulator_service::SimulationSpeed::Max,
        duration_seconds: Some(seconds),
        ..eadt_simulator_service::SimulatorSettings::default()
    };
    let (driver, _) = eadt_simulator_service::SimulationDriver::new(settings, clock).unwrap();
    let (metrics, health) = (eadt_service::MetricsRegistry::default(), eadt_service::HealthRegistry::default());
    let ended = driver.run(&log, &eadt_service::Shutdown::new(), &metrics, &health.part("simulator"));
    (ended, log, dir)
}

#[test]
fn state_that_was_ever_written_is_read_and_the_simulation_goes_on_from_it() {
    if std::env::var_os("EADT_WRITE_STATE_SAMPLE").is_some() && !std::path::Path::new(STATE_SAMPLE).exists() {
        let dir = tempdir();
        let mut run = Run::new(dir.path(), SAMPLED, script);
        run.settings.scenario = eventful();
        let (_, log) = run.run();
        std::fs::write(STATE_SAMPLE, values(&log, Topic::SimulatorState).last().unwrap()).unwrap();
    }
    let sample = std::fs::read(STATE_SAMPLE).unwrap();
    let before: serde_json::Value = serde_json::from_slice(&sample).unwrap();
    let (ended, log, _dir) = from_state(sample, 120.0);
    assert_eq!(ended.unwrap(), SimulationEnd::Duration);
    let after: serde_json::Value = serde_json::from_slice(values(&log, Topic::SimulatorState).last().unwrap()).unwrap();
    for same in ["scenario", "start"] {
        assert_eq!(after["cluster"][same], before["cluster"][same], "{same}");
    }
    // The running rollout has ended, and no new one begins.
    let generations = |of: &serde_json::Value| -> Vec<u64> {
        let workloads = of["cluster"]["workloads"].as_array().unwrap().iter();
        workloads.map(|workload| workload["managed"]["state"]["generation"].as_u64().unwrap()).collect()
    };
    assert_eq!((generations(&before), generations(&after)), (vec![3, 2, 1], vec![3, 2, 1]));
    let ready = |of: &serde_json::Value| of["cluster"]["workloads"][0]["managed"]["state"]["ready_time"].clone();
    assert_eq!((ready(&before), ready(&after)), (serde_json::Value::Null, serde_json::json!(at(610.0))));
    // Every device that is not lost goes on with the next sample, and with its counter.
    let mut samples: BTreeMap<(String, String), Vec<(EventTime, f64)>> = BTreeMap::new();
    for sample in events::<GpuTelemetry>(&log, Topic::GpuTelemetry) {
        let counter = sample.energy_joules_total.unwrap();
        samples.entry((sample.workload.unwrap(), sample.device)).or_default().push((sample.time, counter));
    }
    assert_eq!(samples.len(), 2 + 2 + 2, "one of three is lost, two are shared: {:?}", samples.keys());
    for ((workload, device), found) in &samples {
        let times: Vec<_> = found.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, (0..120).map(|second| at(SAMPLED + f64::from(second))).collect::<Vec<_>>(), "{workload} {device}");
        assert!(found[0].1 > 10_000.0 && found.is_sorted_by(|a, b| a.1 <= b.1), "{workload} {device}: {:?}", found[0]);
    }
    let totals: Vec<_> = events::<TrainingProgress>(&log, Topic::TrainingProgress)
        .into_iter()
        .filter(|progress| progress.workload == VISION)
        .map(|progress| progress.samples_total.unwrap())
        .collect();
    let known = before["cluster"]["workloads"][1]["job"]["samples"].as_f64().unwrap();
    assert!(known > 0.0 && totals[0] >= known && totals.is_sorted(), "{known}: {totals:?}");
}

#[test]
fn a_state_that_is_larger_than_a_record_is_kept_and_gone_on_from() {
    let dir = tempdir();
    let template = Scenario::default().workloads[0].clone();
    let workload = |number| WorkloadScenario { name: format!("eadt/job-{number}"), gpus: 8, replicas: 8, ..template.clone() };
    let scenario = Scenario { workloads: (0..200).map(workload).collect(), ..Scenario::default() };
    let seen = [3.0, 2.0].map(|seconds| {
        let settings = eadt_simulator_service::SimulatorSettings {
            scenario: scenario.clone(),
            gate: false,
            speed: eadt_simulator_service::SimulationSpeed::Max,
            duration_seconds: Some(seconds),
            ..eadt_simulator_service::SimulatorSettings::default()
        };
        let clock = SimClock::new(settings.start);
        let log = common::open(dir.path(), &clock);
        let (driver, _) = eadt_simulator_service::SimulationDriver::new(settings, clock).unwrap();
        let (metrics, health) = (eadt_service::MetricsRegistry::default(), eadt_service::HealthRegistry::default());
        let ended = driver.run(&log, &eadt_service::Shutdown::new(), &metrics, &health.part("simulator"));
        assert_eq!(ended.unwrap(), SimulationEnd::Duration);
        let state = values(&log, Topic::SimulatorState);
        assert!(state.iter().map(Bytes::len).max().unwrap() < 1 << 20, "each record is within the limit");
        values(&log, Topic::GpuTelemetry).len()
    });
    assert_eq!(seen, [3, 5].map(|seconds| seconds * 200 * 8));
}

#[test]
fn state_of_a_newer_release_is_refused_as_such_and_garbage_as_garbage() {
    let decode_error = |value: &[u8]| {
        let (ended, log, _dir) = from_state(value.to_vec(), 1.0);
        assert_eq!(values(&log, Topic::SimulatorState).len(), 1, "it is left as it is");
        ended.unwrap_err()
    };
    let sample = std::fs::read(STATE_SAMPLE).unwrap();
    let error = decode_error(&[&[2], &sample[..]].concat());
    assert!(matches!(error, SimulatorError::NewerState { form: 2, .. }), "{error}");
    assert!(error.to_string().ends_with("was written by a newer release, start that one"), "{error}");
    for garbage in [&b""[..], b"{", b"{}"] {
        let error = decode_error(garbage).to_string();
        assert!(error.contains("cannot be read") && error.contains("choose another data folder"), "{error}");
    }
}

#[test]
fn what_does_not_become_ready_is_rolled_back_at_its_deadline() {
    let dir = tempdir();
    let mut run = Run::new(dir.path(), 1020.0, |workload, seconds, decision| {
        if workload.workload == LLM && seconds == 120.0 {
            decision.action = ControllerAction::ScaleReplicas;
            decision.to = layout(9, 35);
        }
    });
    run.settings.scenario.faults = vec![Fault::NeverReady { workload: LLM.into(), from_seconds: 0.0, until_seconds: 200.0 }];
    let (_, log) = run.run();
    assert_eq!(
        outcomes(&log, LLM),
        [(120.0, ActuationOutcome::Applied, 130.0, 2), (120.0, ActuationOutcome::RolledBack, 730.0, 3)]
    );
    let last = events::<Workload>(&log, Topic::Workloads).into_iter().rfind(|w| w.workload == LLM).unwrap();
    assert_eq!((last.generation, last.layout, last.ready_time), (3, layout(6, 50), Some(at(850.0))));
}

#[test]
fn lost_devices_and_gaps_do_not_stop_simulated_time() {
    let dir = tempdir();
    let mut run = Run::new(dir.path(), 900.0, script);
    run.settings.scenario.faults = vec![
        Fault::DeviceLost { workload: LLM.into(), gpu: 1, from_seconds: 200.0, until_seconds: None },
        Fault::Gap { workload: VISION.into(), from_seconds: 300.0, until_seconds: 500.0 },
    ];
    let (ended, log) = run.run();
    assert_eq!(ended, SimulationEnd::Duration);
    // The lost device holds the windows of its workload open until it counts as dead; the change of 480 s is not late.
    let llm = outcomes(&log, LLM);
    assert!(llm.contains(&(480.0, ActuationOutcome::Applied, 490.0, 3)), "{llm:?}");
}

#[test]
fn mode_recommend_changes_nothing_and_reports_it() {
    let dir = tempdir();
    let mut run = Run::new(dir.path(), 300.0, script);
    run.settings.scenario.workloads[0].mode = UpdateMode::Recommend;
    run.settings.scenario.workloads[1].opted_in = false;
    let (_, log) = run.run();
    assert_eq!(outcomes(&log, LLM), [(120.0, ActuationOutcome::Recommended, 130.0, 1)]);
    assert_eq!(outcomes(&log, VISION), []);
    assert_eq!(events::<Workload>(&log, Topic::Workloads).len(), 1);
}

/// The actuator dies between the change and its commit, again and again.
#[test]
fn a_change_whose_report_was_lost_is_not_made_twice() {
    let (dir, undisturbed) = (tempdir(), tempdir());
    let mut run = Run::new(dir.path(), 900.0, script);
    run.bus_of_actuator = |log| Arc::new(Dying { log, commits: AtomicUsize::new(0) });
    let (_, log) = run.run();
    let (_, reference) = Run::new(undisturbed.path(), 900.0, script).run();
    assert_same(&history(&log), &history(&reference), "no event twice, none lost, no second generation");
    assert!(DEATHS.load(Ordering::Relaxed) > 10, "it died between a change and its report");
}

/// The cluster answers late, or carries a change out and loses the answer.
#[test]
fn a_cluster_that_fails_now_and_then_is_asked_again() {
    let (dir, undisturbed) = (tempdir(), tempdir());
    let mut run = Run::new(dir.path(), 900.0, script);
    run.cluster_of_actuator = |cluster| Arc::new(Flaky { cluster, calls: AtomicUsize::new(0) });
    let (_, log) = run.run();
    let (_, reference) = Run::new(undisturbed.path(), 900.0, script).run();
    assert_same(&history(&log), &history(&reference), "the same history in spite of it");
}

#[derive(Debug)]
struct Flaky {
    cluster: Arc<dyn Cluster>,
    calls: AtomicUsize,
}

impl Flaky {
    /// Fails before the call, fails after it, or succeeds, in no regular order.
    fn call<T>(&self, call: impl FnOnce() -> Result<T, ClusterError>) -> Result<T, ClusterError> {
        let failed = || Err(ClusterError::new(ClusterRemedy::Retry, "connection reset"));
        let call_number = self.calls.fetch_add(1, Ordering::Relaxed) as u32;
        match (call_number.wrapping_mul(2_654_435_761) >> 16) % 3 {
            0 => failed(),
            1 => call().and_then(|_| failed()),
            _ => call(),
        }
    }
}

impl Cluster for Flaky {
    fn now(&self) -> EventTime {
        self.cluster.now()
    }
    fn effect_time(&self, decision: &Decision) -> Option<EventTime> {
        self.cluster.effect_time(decision)
    }
    fn revision(&self) -> u64 {
        self.cluster.revision()
    }
    fn workloads(&self) -> Result<Vec<ManagedWorkload>, ClusterError> {
        self.call(|| self.cluster.workloads())
    }
    fn apply(&self, change: &WorkloadChange) -> Result<ManagedWorkload, ClusterError> {
        self.call(|| self.cluster.apply(change))
    }
    fn roll_back(&self, roll_back: &RollbackRequest) -> Result<ManagedWorkload, ClusterError> {
        self.call(|| self.cluster.roll_back(roll_back))
    }
    fn recommend(&self, decision: &Decision) -> Result<(), ClusterError> {
        self.call(|| self.cluster.recommend(decision))
    }
}

static DEATHS: AtomicUsize = AtomicUsize::new(0);

/// A bus on which two of three commits that report something do not take place.
#[derive(Debug)]
struct Dying {
    log: EmbeddedLog,
    commits: AtomicUsize,
}

#[derive(Debug)]
struct DyingMember {
    member: Box<dyn GroupMember>,
    fails: bool,
}

impl Bus for Dying {
    fn topics(&self, prefix: &str) -> eadt_bus::Result<Vec<TopicSpec>> {
        self.log.topics(prefix)
    }
    fn create_topic(&self, topic: &TopicSpec) -> eadt_bus::Result<()> {
        self.log.create_topic(topic)
    }
    fn alter_topic(&self, name: &str, settings: &BTreeMap<String, String>) -> eadt_bus::Result<()> {
        self.log.alter_topic(name, settings)
    }
    fn add_partitions(&self, name: &str, partitions: i32) -> eadt_bus::Result<()> {
        self.log.add_partitions(name, partitions)
    }
    fn watermarks(&self, at: &TopicPartition) -> eadt_bus::Result<WatermarkOffsets> {
        self.log.watermarks(at)
    }
    fn producer(&self, name: &str) -> eadt_bus::Result<Box<dyn Producer>> {
        self.log.producer(name)
    }
    fn reader(
        &self,
        from: &[(TopicPartition, StartOffset)],
        isolation: IsolationLevel,
    ) -> eadt_bus::Result<Box<dyn PartitionReader>> {
        self.log.reader(from, isolation)
    }
    fn member(&self, options: MemberOptions) -> eadt_bus::Result<Box<dyn GroupMember>> {
        let fails = !self.commits.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
        Ok(Box::new(DyingMember { member: self.log.member(options)?, fails }))
    }
    fn committed(&self, group: &str, of: &[TopicPartition]) -> eadt_bus::Result<Vec<Option<i64>>> {
        self.log.committed(group, of)
    }
}

impl PartitionReader for DyingMember {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> eadt_bus::Result<()> {
        self.member.poll(max, timeout, into)
    }
    fn pause(&mut self, at: &[TopicPartition]) -> eadt_bus::Result<()> {
        self.member.pause(at)
    }
    fn resume(&mut self, at: &[TopicPartition]) -> eadt_bus::Result<()> {
        self.member.resume(at)
    }
}

impl GroupMember for DyingMember {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> eadt_bus::Result<()> {
        self.member.start(at, offset)
    }
    fn committed(&mut self, of: &[TopicPartition]) -> eadt_bus::Result<Vec<Option<i64>>> {
        self.member.committed(of)
    }
    fn commit(&mut self, step: &CommitStep) -> eadt_bus::Result<()> {
        if step.outputs.is_empty() {
            return self.member.commit(step);
        }
        // A member that reported once dies at its next report; others die at their first.
        if std::mem::replace(&mut self.fails, true) {
            DEATHS.fetch_add(1, Ordering::Relaxed);
            return Err(BusError::new(Remedy::Restart, "committing a step", "the process died"));
        }
        self.member.commit(step)
    }
}
