//! The processor on the embedded log: exactly once over crashes, dead letters, heartbeats, gaps, replay of what it read.

use crate::support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use eadt_bus::embedded::EmbeddedLog;
use eadt_bus::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, IsolationLevel, MemberOptions, Membership, PartitionReader,
    PollEvent, Producer, ProducerRecord, Remedy, Result, StartOffset, TopicPartition, TopicSpec, WatermarkOffsets,
};
use eadt_core::settings::SECOND;
use eadt_processor::{HeartbeatClock, ProcessorDependencies, ProcessorSettings, run_processor};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Decision, EfficiencyWindow, GpuTelemetry, JobLifecycle, TrainingProgress, dead_letter_header};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use support::{Log, at, text};

struct Rig {
    log: Log,
    clock_is_stopped: bool,
}

impl std::ops::Deref for Rig {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

fn settings() -> ProcessorSettings {
    ProcessorSettings {
        prefix: "eadt.".into(),
        linger_milliseconds: 1,
        commit_seconds: 0.05,
        dead_letter_seconds: 0.05,
        retry_seconds: 0.01,
        ..ProcessorSettings::default()
    }
}

impl Rig {
    fn open(dir: &Path) -> Self {
        Self { log: Log::open(dir), clock_is_stopped: true }
    }

    fn send(&mut self, seconds: f64, topic: Topic, key: &str, value: impl Into<Bytes>) {
        self.log.send(seconds, topic, key, None, value);
    }

    fn gpu(&mut self, workload: &str, seconds: f64) {
        let event = GpuTelemetry {
            time: at(seconds),
            workload: Some(workload.to_owned()),
            device: "GPU-1".to_owned(),
            collector: "nvml/n".to_owned(),
            energy_joules_total: Some(seconds * 100.0),
            ..GpuTelemetry::default()
        };
        self.send(seconds, Topic::GpuTelemetry, workload, serde_json::to_vec(&event).unwrap());
    }

    fn rank(&mut self, workload: &str, seconds: f64, samples: f64) {
        let event = TrainingProgress {
            time: at(seconds),
            workload: workload.to_owned(),
            collector: "http/n".to_owned(),
            samples_total: Some(samples),
            phase: if seconds == 0.0 { JobLifecycle::Started } else { JobLifecycle::Progress },
            ..TrainingProgress::default()
        };
        self.send(seconds, Topic::TrainingProgress, workload, serde_json::to_vec(&event).unwrap());
    }

    /// Runs a processor until `done`; it is drained then.
    fn process(&self, bus: Arc<dyn Bus>, settings: ProcessorSettings, done: impl Fn(&Self) -> bool) -> MetricsRegistry {
        let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
        let now = self.now.clone();
        let stopped_at = self.clock_is_stopped.then(|| now.load(Ordering::SeqCst));
        let clock = HeartbeatClock::new(move || EventTime::from_micros(stopped_at.unwrap_or_else(|| now.load(Ordering::SeqCst))));
        let service = ProcessorDependencies {
            settings,
            bus,
            clock,
            shutdown: shutdown.clone(),
            metrics: metrics.clone(),
            ready: health.part("processor"),
        };
        let thread = std::thread::spawn(move || run_processor(&service));
        let until = Instant::now() + Duration::from_mins(3);
        // A step that failed after it took place makes the session begin anew: done, and not ready for a moment.
        while !done(self) || !health.waiting().is_empty() {
            assert!(!thread.is_finished(), "the processor ended: {:?}", thread.join());
            assert!(Instant::now() < until, "not done in time; {}", metrics.text());
            std::thread::sleep(Duration::from_millis(5));
        }
        shutdown.cancel();
        thread.join().unwrap().unwrap();
        metrics
    }

    fn windows(&self) -> Vec<EfficiencyWindow> {
        self.events(Topic::EfficiencyWindows)
    }

    fn decisions(&self) -> Vec<Decision> {
        self.events(Topic::Decisions)
    }

    fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.bus.clone())
    }
}

fn sorted(mut windows: Vec<EfficiencyWindow>) -> Vec<String> {
    windows.sort_by(|a, b| (&a.workload, a.window_start).cmp(&(&b.workload, b.window_start)));
    windows.iter().map(|window| serde_json::to_string(window).unwrap()).collect()
}

fn feed(rig: &mut Rig, from: i32, to: i32) {
    for second in (from..to).step_by(5) {
        let second = f64::from(second);
        for workload in ["team/one", "team/two", "team/three"] {
            rig.gpu(workload, second);
            rig.rank(workload, second, second * 3.0);
        }
    }
}

#[test]
fn windows_and_decisions_come_out_with_headers_of_their_origin() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(dir.path());
    feed(&mut rig, 0, 130);
    let metrics = rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 6 && rig.decisions().len() == 6);
    for window in rig.windows() {
        assert_eq!((window.energy_joules.map(f64::round), window.samples.map(f64::round)), (Some(6000.0), Some(180.0)));
        assert_eq!((window.run_seconds, window.late, window.energy_coverage_ratio), (60.0, 0, 1.0));
    }
    let records = rig.read(Topic::EfficiencyWindows);
    let window: EfficiencyWindow = serde_json::from_slice(records[0].value.as_ref().unwrap()).unwrap();
    assert_eq!(records[0].header(header::ID), Some(&*window.id));
    assert_eq!(records[0].header(header::TIME), Some(&*window.window_end.to_string()));
    let positions: serde_json::Value = serde_json::from_str(records[0].header("eadt_input_positions").unwrap()).unwrap();
    assert!(positions["gpu.telemetry.v1"].as_i64() > Some(0), "{positions}");
    assert_eq!(records[0].key.as_deref(), Some(window.workload.as_bytes()));
    let text = metrics.text();
    assert!(text.contains("eadt_processor_windows_total 6"), "{text}");
    assert!(text.contains("eadt_processor_late_total 0"), "{text}");
}

/// A bus that fails at chosen commits, before or after they take place.
#[derive(Debug)]
struct Flaky {
    log: EmbeddedLog,
    commits: Arc<AtomicU64>,
}

#[derive(Debug)]
struct FlakyMember {
    inner: Box<dyn GroupMember>,
    commits: Arc<AtomicU64>,
}

impl Bus for Flaky {
    fn topics(&self, prefix: &str) -> Result<Vec<TopicSpec>> {
        self.log.topics(prefix)
    }
    fn create_topic(&self, topic: &TopicSpec) -> Result<()> {
        self.log.create_topic(topic)
    }
    fn alter_topic(&self, name: &str, settings: &std::collections::BTreeMap<String, String>) -> Result<()> {
        self.log.alter_topic(name, settings)
    }
    fn add_partitions(&self, name: &str, partitions: i32) -> Result<()> {
        self.log.add_partitions(name, partitions)
    }
    fn watermarks(&self, at: &TopicPartition) -> Result<WatermarkOffsets> {
        self.log.watermarks(at)
    }
    fn producer(&self, name: &str) -> Result<Box<dyn Producer>> {
        self.log.producer(name)
    }
    fn reader(&self, from: &[(TopicPartition, StartOffset)], isolation: IsolationLevel) -> Result<Box<dyn PartitionReader>> {
        self.log.reader(from, isolation)
    }
    fn member(&self, options: MemberOptions) -> Result<Box<dyn GroupMember>> {
        Ok(Box::new(FlakyMember { inner: self.log.member(options)?, commits: self.commits.clone() }))
    }
    fn committed(&self, group: &str, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        self.log.committed(group, of)
    }
}

impl PartitionReader for FlakyMember {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> Result<()> {
        // Small, slow batches: many commits between the windows.
        std::thread::sleep(Duration::from_millis(5));
        self.inner.poll(max.min(7), timeout, into)
    }
    fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.inner.pause(at)
    }
    fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
        self.inner.resume(at)
    }
}

impl GroupMember for FlakyMember {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> Result<()> {
        self.inner.start(at, offset)
    }
    fn committed(&mut self, of: &[TopicPartition]) -> Result<Vec<Option<i64>>> {
        self.inner.committed(of)
    }
    fn commit(&mut self, step: &CommitStep) -> Result<()> {
        let error = |remedy| BusError::new(remedy, "committing", "on purpose");
        match self.commits.fetch_add(1, Ordering::SeqCst) % 5 {
            1 => Err(error(Remedy::Restart)),
            2 => {
                self.inner.commit(step)?;
                Err(error(Remedy::Restart))
            }
            3 => Err(error(Remedy::Retry)),
            _ => self.inner.commit(step),
        }
    }
}

#[test]
fn steps_that_fail_before_or_after_they_took_place_lose_and_double_nothing() {
    let straight = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(straight.path());
    feed(&mut rig, 0, 250);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 12);
    let (expected, decisions) = (sorted(rig.windows()), rig.decisions().len());

    let flaky = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(flaky.path());
    feed(&mut rig, 0, 250);
    let commits = Arc::new(AtomicU64::new(0));
    let bus: Arc<dyn Bus> = Arc::new(Flaky { log: rig.bus.clone(), commits: commits.clone() });
    let fast = ProcessorSettings { commit_seconds: 0.01, ..settings() };
    rig.process(bus, fast, |rig| rig.windows().len() >= 12);
    assert!(commits.load(Ordering::SeqCst) > 10, "commits failed at many places");
    assert_eq!(sorted(rig.windows()), expected);
    assert_eq!(rig.decisions().len(), decisions);
}

#[test]
fn a_restart_goes_on_in_the_middle_of_a_window() {
    let whole = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(whole.path());
    feed(&mut rig, 0, 250);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 12);
    let expected = sorted(rig.windows());

    let parts = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(parts.path());
    for (from, to, windows) in [(0, 90, 3), (90, 100, 3), (100, 195, 9), (195, 250, 12)] {
        feed(&mut rig, from, to);
        rig.process(rig.bus(), settings(), |rig| rig.windows().len() >= windows && rig.all_folded());
    }
    assert_eq!(sorted(rig.windows()), expected);
}

#[test]
fn positions_that_fall_behind_the_state_double_nothing() {
    let whole = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(whole.path());
    feed(&mut rig, 0, 250);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 12);
    let expected = sorted(rig.windows());

    let torn = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(torn.path());
    feed(&mut rig, 0, 70);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 3 && rig.all_folded());
    let inputs: Vec<_> = Topic::PROCESSOR_INPUTS
        .iter()
        .flat_map(|topic| (0..2).map(move |p| TopicPartition::new(format!("eadt.{topic}"), p)))
        .collect();
    let before = rig.bus.committed("processor", &inputs).unwrap();
    feed(&mut rig, 70, 100);
    rig.process(rig.bus(), settings(), Rig::all_folded);
    assert_ne!(rig.bus.committed("processor", &inputs).unwrap(), before);
    // As if the outputs and the state of steps are there, and their positions are not.
    let options = MemberOptions {
        group: "processor".into(),
        membership: Membership::Dynamic,
        topics: vec!["eadt.gpu.telemetry.v1".into()],
    };
    let positions = inputs.iter().cloned().zip(before).filter_map(|(at, position)| Some((at, position?))).collect();
    rig.bus.member(options).unwrap().commit(&CommitStep { outputs: vec![], positions }).unwrap();
    feed(&mut rig, 100, 250);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 12);
    assert_eq!(sorted(rig.windows()), expected, "nothing is called stale or a duplicate that was sent once");
}

#[test]
fn state_that_falls_behind_the_output_loses_and_doubles_nothing() {
    let whole = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(whole.path());
    feed(&mut rig, 0, 250);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 12);
    let (expected, decisions) = (sorted(rig.windows()), rig.decisions().len());

    let torn = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(torn.path());
    feed(&mut rig, 0, 70);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 3 && rig.all_folded());
    let before = rig.read(Topic::ProcessorState);
    feed(&mut rig, 70, 130);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 6 && rig.all_folded());
    // As if outputs and positions of steps are there, and their state is not.
    let mut producer = rig.bus().producer("torn").unwrap();
    for record in before {
        let headers = record.headers.to_vec();
        let partition = Some(record.at.partition);
        producer
            .send(ProducerRecord { topic: record.at.topic, partition, key: record.key, value: record.value, headers })
            .unwrap();
    }
    assert!(producer.flush(Duration::from_mins(3)).unwrap());
    feed(&mut rig, 130, 250);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() >= 12 && rig.all_folded());
    assert_eq!(sorted(rig.windows()), expected, "every window once, with the energy of the events whose state was lost");
    assert_eq!(rig.decisions().len(), decisions);
}

impl Rig {
    /// Returns whether the committed positions have reached the end of the telemetry.
    fn all_folded(&self) -> bool {
        let inputs: Vec<_> = (0..2).map(|p| TopicPartition::new("eadt.gpu.telemetry.v1", p)).collect();
        let committed = self.bus.committed("processor", &inputs).unwrap();
        inputs.iter().zip(committed).all(|(at, position)| {
            let high = self.bus.watermarks(at).unwrap().high;
            high == 0 || position.is_some_and(|position| position >= high)
        })
    }
}

#[test]
fn what_cannot_be_is_a_dead_letter_with_its_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(dir.path());
    let bad: [(&str, Bytes); 7] = [
        ("malformed", Bytes::from_static(b"{")),
        ("malformed", Bytes::from_static(b"\xff\xfe")),
        ("malformed", Bytes::from(vec![b'['; 100_000])),
        ("malformed", Bytes::from(format!("{{\"device\":\"{}\"", "x".repeat(900_000)))),
        (
            "invalid_value",
            Bytes::from_static(
                br#"{"time":"2023-11-14T22:14:00Z","workload":"team/one","device":"d","collector":"c","power_watts":-5}"#,
            ),
        ),
        (
            "future_time",
            Bytes::from_static(br#"{"time":"2024-11-14T22:14:00Z","workload":"team/one","device":"d","collector":"c"}"#),
        ),
        (
            "wrong_key",
            Bytes::from_static(br#"{"time":"2023-11-14T22:14:00Z","workload":"team/else","device":"d","collector":"c"}"#),
        ),
    ];
    for (_, value) in &bad {
        rig.send(1.0, Topic::GpuTelemetry, "team/one", value.clone());
    }
    feed(&mut rig, 0, 70);
    let metrics =
        rig.process(rig.bus(), settings(), |rig| rig.read(Topic::DeadLetters).len() >= bad.len() && rig.windows().len() == 3);
    let letters = rig.read(Topic::DeadLetters);
    let found: Vec<_> =
        letters.iter().map(|r| (r.header(dead_letter_header::REASON).unwrap(), r.value.clone().unwrap())).collect();
    assert_eq!(found, bad);
    assert_eq!(letters[4].header(dead_letter_header::FIELD), Some("power_watts"));
    assert_eq!(letters[4].header(dead_letter_header::ORIGIN_TOPIC), Some("eadt.gpu.telemetry.v1"));
    assert_eq!(letters[4].header(dead_letter_header::ORIGIN_KEY), Some("team/one"));
    assert_eq!(letters[4].key.as_deref(), Some(&b"eadt.gpu.telemetry.v1"[..]));
    assert!(metrics.text().contains("eadt_processor_dead_letters_total{reason=\"malformed\"} 4"), "{}", metrics.text());
}

#[test]
fn a_quiet_log_is_kept_going_by_heartbeats_until_the_windows_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(dir.path());
    feed(&mut rig, 0, 30);
    rig.clock_is_stopped = false;
    let now = rig.now.clone();
    let ticking = Shutdown::new();
    let stop = ticking.clone();
    // Simulated time: 2 s every millisecond.
    let clock = std::thread::spawn(move || {
        while !stop.is_cancelled() {
            now.fetch_add(2 * SECOND, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 3);
    ticking.cancel();
    clock.join().unwrap();
    assert!(rig.windows().iter().all(|w| w.window_start == at(0.0) && w.energy_joules.map(f64::round) == Some(2500.0)));
}

#[test]
fn no_two_heartbeats_have_one_id_even_where_the_clock_falls_back_with_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(dir.path());
    rig.clock_is_stopped = false;
    let ids = |rig: &Rig| -> Vec<String> {
        let records = rig.read(Topic::GpuTelemetry);
        let text = |record: &ConsumerRecord, name: &str| record.header(name).unwrap().to_owned();
        records.iter().map(|r| format!("{} {}", text(r, header::SOURCE), text(r, header::ID))).collect()
    };
    for round in 1..=3 {
        rig.set(0.0);
        let (now, ticking) = (rig.now.clone(), Shutdown::new());
        let stop = ticking.clone();
        let clock = std::thread::spawn(move || {
            while !stop.is_cancelled() {
                now.fetch_add(10 * SECOND, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(4));
            }
        });
        rig.process(rig.bus(), settings(), |rig| ids(rig).len() >= 40 * round);
        ticking.cancel();
        clock.join().unwrap();
    }
    let all = ids(&rig);
    let distinct: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(distinct.len(), all.len(), "{all:?}");
}

#[test]
fn positions_that_retention_has_deleted_mark_the_windows() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(dir.path());
    feed(&mut rig, 0, 70);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 3 && rig.all_folded());
    feed(&mut rig, 70, 100);
    let retention = std::collections::BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]);
    for topic in [Topic::GpuTelemetry, Topic::TrainingProgress] {
        rig.bus.alter_topic(&format!("eadt.{topic}"), &retention).unwrap();
    }
    feed(&mut rig, 150, 160);
    rig.bus.maintain(at(152.0)).unwrap();
    let deleted = (0..2).any(|p| rig.bus.watermarks(&TopicPartition::new("eadt.gpu.telemetry.v1", p)).unwrap().low > 0);
    assert!(deleted, "the test needs records that are gone");
    for topic in [Topic::GpuTelemetry, Topic::TrainingProgress] {
        let keep = std::collections::BTreeMap::from([("retention.ms".to_owned(), "1000000000".to_owned())]);
        rig.bus.alter_topic(&format!("eadt.{topic}"), &keep).unwrap();
    }
    feed(&mut rig, 160, 250);
    let metrics = rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 12);
    let gaps: Vec<bool> = rig.windows().iter().filter(|w| w.workload == "team/one").map(|w| w.gap).collect();
    assert_eq!(gaps, [false, true, true, false]);
    assert!(!metrics.text().contains("eadt_processor_gaps_total 0"));
}

#[test]
fn a_replay_of_the_log_gives_the_same_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::open(dir.path());
    feed(&mut rig, 0, 250);
    rig.process(rig.bus(), settings(), |rig| rig.windows().len() == 12);
    let (windows, decisions, counts) = rig.replayed(&settings());
    assert_eq!((counts.windows, counts.decisions, counts.refused, counts.events), (12, 12, 0, 50 * 6));
    assert_eq!(sorted(windows), sorted(rig.windows()));
    assert_eq!(text(decisions), text(rig.decisions()));
}

#[test]
fn state_that_cannot_be_read_stops_with_words() {
    let newer = "a newer release, start that one";
    for (key, value, words) in [
        ("team/one#0", &b"{\"what\":1}"[..], "missing field `workload`"),
        ("team/one#0", &[9, 1], newer),
        ("#", &[9, 1], newer),
        ("#models//power/A100", &[9, 1], newer),
        ("#later//x", b"{}", newer),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut rig = Rig::open(dir.path());
        rig.send(0.0, Topic::ProcessorState, key, Bytes::from_static(value));
        let service = ProcessorDependencies {
            settings: settings(),
            bus: rig.bus(),
            clock: HeartbeatClock::default(),
            shutdown: Shutdown::new(),
            metrics: MetricsRegistry::default(),
            ready: HealthRegistry::default().part("processor"),
        };
        let error = run_processor(&service).unwrap_err();
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!(text.contains(&format!("{key:?}")) && text.contains(words) && text.contains("to give it up"), "{text}");
    }
}
