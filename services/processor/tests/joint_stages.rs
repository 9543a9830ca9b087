//! The joint stage of the power budget on the embedded log: with the first stage before it, over restarts, and against a replay.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{Bus as _, CommitStep, MemberOptions, Membership, TopicPartition};
use eadt_core::gpu_sharing::GpuSharingSettings;
use eadt_core::power_budget::allocation::BudgetSettings;
use eadt_processor::{
    GPU_SHARING_STAGE, HeartbeatClock, POWER_BUDGET_STAGE, ProcessorDependencies, ProcessorSettings, run_processor,
};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{
    ControllerAction, Decision, EfficiencyWindow, GpuTelemetry, JobLifecycle, Layout, TrainingProgress, UpdateMode, Workload,
};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use support::{Log, PARTITIONS, at, text};

const BUDGET_WATTS: f64 = 1_000.0;
const JOBS: [&str; 3] = ["team/one", "team/two", "team/three"];

fn settings() -> ProcessorSettings {
    ProcessorSettings {
        prefix: "eadt.".into(),
        commit_seconds: 0.05,
        retry_seconds: 0.01,
        power_budget: BudgetSettings { budget_watts: Some(BUDGET_WATTS), ..BudgetSettings::default() },
        ..ProcessorSettings::default()
    }
}

/// A cluster of three jobs with two GPUs each, and its actuator.
struct Site {
    log: Log,
    workloads: BTreeMap<&'static str, Workload>,
    energy_joules: BTreeMap<&'static str, f64>,
    samples: BTreeMap<&'static str, f64>,
    applied: usize,
    /// Partition of telemetry and progress; `None` for the partitions of their keys.
    events_partition: Option<i32>,
}

impl Site {
    fn open(log: Log) -> Self {
        let workload = |name: &'static str| Workload {
            time: at(0.0),
            workload: name.to_owned(),
            controller: Some("power-budget".into()),
            mode: UpdateMode::Enforce,
            gpus: Some(2),
            gpu_power_limit_watts: Some(400.0),
            generation: 1,
            layout: Layout { power_limit_watts: (name != JOBS[0]).then_some(150.0), ..Layout::default() },
            ready_time: Some(at(0.0)),
            ..Workload::default()
        };
        let workloads: BTreeMap<_, _> = JOBS.iter().map(|name| (*name, workload(name))).collect();
        let mut site =
            Self { log, workloads, energy_joules: BTreeMap::new(), samples: BTreeMap::new(), applied: 0, events_partition: None };
        for name in JOBS {
            site.declare(0.0, name);
        }
        site
    }

    fn declare(&mut self, seconds: f64, name: &str) {
        let value = serde_json::to_vec(&self.workloads[name]).unwrap();
        self.log.send(seconds, Topic::Workloads, name, None, value);
    }

    /// Feeds the jobs' events of these seconds, every five seconds.
    fn feed(&mut self, from: i32, to: i32) {
        for second in (from..to).step_by(5) {
            let seconds = f64::from(second);
            for name in JOBS {
                let cap = self.workloads[name].layout.power_limit_watts.unwrap_or(400.0);
                let exponent = if name == JOBS[0] { 0.05 } else { 0.9 };
                let samples = self.samples.entry(name).or_default();
                *samples += 5.0 * cap.powf(exponent);
                let progress = TrainingProgress {
                    time: at(seconds),
                    workload: name.to_owned(),
                    collector: "http/n".to_owned(),
                    samples_total: Some(*samples),
                    phase: if second == 0 { JobLifecycle::Started } else { JobLifecycle::Progress },
                    ..TrainingProgress::default()
                };
                self.log.send(
                    seconds,
                    Topic::TrainingProgress,
                    name,
                    self.events_partition,
                    serde_json::to_vec(&progress).unwrap(),
                );
                let energy = self.energy_joules.entry(name).or_default();
                *energy += 5.0 * cap;
                for gpu in ["GPU-1", "GPU-2"] {
                    let sample = GpuTelemetry {
                        time: at(seconds),
                        workload: Some(name.to_owned()),
                        device: format!("{gpu}-{name}"),
                        collector: "nvml/n".to_owned(),
                        energy_joules_total: Some(*energy),
                        ..GpuTelemetry::default()
                    };
                    self.log.send(
                        seconds,
                        Topic::GpuTelemetry,
                        name,
                        self.events_partition,
                        serde_json::to_vec(&sample).unwrap(),
                    );
                }
            }
        }
    }

    /// Applies the decisions since the last call.
    fn act(&mut self, seconds: f64) {
        let decisions = self.decisions();
        for decision in decisions.iter().skip(self.applied).filter(|d| d.action == ControllerAction::SetPowerLimit) {
            let workload = self.workloads.get_mut(decision.workload.as_str()).unwrap();
            if decision.generation == Some(workload.generation) {
                workload.layout = decision.to.clone();
                workload.generation += 1;
                workload.decision_id = Some(decision.id.clone());
                (workload.time, workload.ready_time) = (at(seconds), Some(at(seconds)));
                self.declare(seconds, &decision.workload);
            }
        }
        self.applied = decisions.len();
    }

    fn watts(&self) -> f64 {
        self.workloads.values().map(|w| 2.0 * w.layout.power_limit_watts.unwrap_or(400.0)).sum()
    }

    fn windows(&self) -> Vec<EfficiencyWindow> {
        self.log.events(Topic::EfficiencyWindows)
    }

    fn decisions(&self) -> Vec<Decision> {
        let mut decisions: Vec<Decision> = self.log.events(Topic::Decisions);
        decisions.sort_by_key(|decision| decision.time);
        decisions
    }

    fn service(
        &self,
        settings: &ProcessorSettings,
        shutdown: &Shutdown,
        metrics: &MetricsRegistry,
        health: &HealthRegistry,
        part: &'static str,
    ) -> ProcessorDependencies {
        ProcessorDependencies {
            settings: settings.clone(),
            bus: Arc::new(self.log.bus.clone()),
            clock: HeartbeatClock::new(|| EventTime::from_micros(0)),
            shutdown: shutdown.clone(),
            metrics: metrics.clone(),
            ready: health.part(part),
        }
    }

    /// Runs both stages until there are so many decisions.
    fn process(&self, settings: &ProcessorSettings, decisions: usize) -> String {
        let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
        let first = self.service(settings, &shutdown, &metrics, &health, "processor");
        let second = self.service(settings, &shutdown, &metrics, &health, "power-budget");
        let threads =
            [std::thread::spawn(move || run_processor(&first)), std::thread::spawn(move || (POWER_BUDGET_STAGE.run)(&second))];
        let until = Instant::now() + Duration::from_mins(3);
        while self.decisions().len() < decisions {
            assert!(Instant::now() < until, "{} of {decisions} decisions; {}", self.decisions().len(), metrics.text());
            std::thread::sleep(Duration::from_millis(5));
        }
        let page = metrics.text();
        shutdown.cancel();
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        page
    }
}

#[test]
fn a_budget_is_kept_over_restarts_and_a_replay_gives_the_same_to_the_byte() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::open(Log::open(dir.path()));
    let settings = settings();
    assert_eq!(site.watts(), 1_400.0);
    let mut from = 0;
    for minute in 1..=8 {
        site.feed(from, minute * 60 + 5);
        from = minute * 60 + 5;
        let page = site.process(&settings, 3 * minute as usize);
        assert!(page.contains("eadt_power_budget_active 1"), "{page}");
        site.act(f64::from(minute * 60 + 6));
    }
    // One decision a window, all of them the cluster's.
    let (windows, decisions) = (site.windows(), site.decisions());
    assert_eq!((windows.len(), decisions.len()), (24, 24));
    let ids: std::collections::BTreeSet<_> = decisions.iter().map(|decision| &decision.id).collect();
    assert_eq!(ids.len(), 24);
    assert!(decisions.iter().all(|decision| decision.controller == "power-budget"));
    assert!(site.watts() <= BUDGET_WATTS, "{} W", site.watts());
    assert!(site.watts() > 0.9 * BUDGET_WATTS, "{} W", site.watts());
    for record in site.log.read(Topic::Decisions) {
        let positions: serde_json::Value = serde_json::from_str(record.header(header::INPUT_POSITIONS).unwrap()).unwrap();
        assert_eq!(positions[Topic::EfficiencyWindows.base_name()].as_array().unwrap().len(), PARTITIONS as usize);
        assert!(record.header(header::SETTINGS).unwrap().contains("\"budget_watts\":1000.0"));
    }
    let (replayed_windows, replayed, counts) = site.log.replayed(&settings);
    assert_eq!((replayed_windows.len(), counts.late_for_power_budget), (24, 0));
    assert_eq!(text(replayed), text(decisions));
}

/// As if producers had another partitioner than the service that declares the workloads.
#[test]
fn a_replay_shares_the_budget_among_members_whose_events_lie_in_another_partition_than_their_tables() {
    for partition in 0..PARTITIONS {
        let dir = tempfile::tempdir().unwrap();
        let mut site = Site::open(Log::open(dir.path()));
        site.events_partition = Some(partition);
        site.feed(0, 185);
        let (windows, decisions, _) = site.log.replayed(&settings());
        assert_eq!(windows.len(), 9);
        for name in JOBS {
            let shared = |decision: &&Decision| decision.workload == name && decision.evidence.contains_key("budget_watts");
            assert_eq!(decisions.iter().filter(shared).count(), 3, "{name}, events in partition {partition}");
        }
    }
}

/// As if a broker forgot the positions of a step, and has its outputs and its state.
#[test]
fn positions_that_fall_behind_the_stages_state_make_nothing_late() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::open(Log::open(dir.path()));
    let settings = settings();
    let inputs: Vec<_> = [Topic::Workloads, Topic::Actuations, Topic::Models, Topic::EfficiencyWindows]
        .iter()
        .flat_map(|topic| (0..PARTITIONS).map(move |p| TopicPartition::new(format!("eadt.{topic}"), p)))
        .collect();
    site.feed(0, 65);
    site.process(&settings, 3);
    let before = site.log.bus.committed("processor-cluster", &inputs).unwrap();
    site.act(66.0);
    site.feed(65, 125);
    site.process(&settings, 6);
    assert_ne!(site.log.bus.committed("processor-cluster", &inputs).unwrap(), before);
    let membership = Membership::Dynamic;
    let options = MemberOptions { group: "processor-cluster".into(), membership, topics: vec!["eadt.workloads.v1".into()] };
    let positions = inputs.iter().cloned().zip(before).filter_map(|(at, position)| Some((at, position?))).collect();
    site.log.bus.member(options).unwrap().commit(&CommitStep { outputs: vec![], positions }).unwrap();
    site.act(126.0);
    site.feed(125, 185);
    site.process(&settings, 9);
    let (_, replayed, counts) = site.log.replayed(&settings);
    assert_eq!(counts.late_for_power_budget, 0, "no window is taken for a late one");
    assert_eq!(text(replayed), text(site.decisions()), "each is decided about once, and as if nothing had happened");
}

#[test]
fn without_a_budget_there_is_no_second_stage_and_the_first_reports_why_nothing_happens() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::open(Log::open(dir.path()));
    site.feed(0, 65);
    let page = site.process(&ProcessorSettings { power_budget: BudgetSettings::default(), ..settings() }, 3);
    assert!(!page.contains("eadt_power_budget"), "{page}");
    for decision in site.decisions() {
        assert_eq!((decision.action, decision.controller.as_str()), (ControllerAction::Maintain, "power-budget"));
        assert!(decision.reason.contains("processor.power_budget.budget_watts"), "{}", decision.reason);
    }
}

/// A budget that is given to a log of many windows decides about the present, not about every minute of the past.
#[test]
fn a_first_start_passes_over_what_would_have_expired() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::open(Log::open(dir.path()));
    let before = ProcessorSettings { power_budget: BudgetSettings::default(), ..settings() };
    // Windows are stamped when they are written: those of the first ten minutes, then those of the next twenty.
    site.feed(0, 10 * 60 + 5);
    site.process(&before, 30);
    site.feed(10 * 60 + 5, 30 * 60 + 5);
    site.process(&before, 90);
    site.process(&settings(), 90 + 60);
    let shared = |decision: &&Decision| decision.evidence.contains_key("budget_watts");
    let times: Vec<EventTime> = site.decisions().iter().filter(shared).map(|decision| decision.time).collect();
    assert_eq!((times.len(), times[0]), (60, at(11.0 * 60.0)));
}

#[test]
fn state_of_a_newer_release_stops_the_stage_that_it_is_of_with_words() {
    let settings =
        ProcessorSettings { gpu_sharing: GpuSharingSettings { enabled: true, ..GpuSharingSettings::default() }, ..settings() };
    for (key, value, own) in [
        ("#cluster//", &[9, 1][..], POWER_BUDGET_STAGE),
        ("#cluster//member//team/one", &[9, 1], POWER_BUDGET_STAGE),
        ("#cluster//later//x", b"{}", POWER_BUDGET_STAGE),
        ("#gpu//", &[9, 1], GPU_SHARING_STAGE),
        ("#gpu//device//GPU-1", &[9, 1], GPU_SHARING_STAGE),
        ("#gpu//later//x", b"{}", GPU_SHARING_STAGE),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut site = Site::open(Log::open(dir.path()));
        site.log.send(0.0, Topic::ProcessorState, key, Some(0), value);
        let (shutdown, metrics, health) = (Shutdown::new(), MetricsRegistry::default(), HealthRegistry::default());
        let error = (own.run)(&site.service(&settings, &shutdown, &metrics, &health, "stage")).unwrap_err();
        let text = std::error::Error::source(&error).unwrap().to_string();
        assert!(text.contains(&format!("{key:?}")) && text.contains("a newer release, start that one"), "{text}");
        assert!(text.contains("to give it up") && site.decisions().is_empty(), "{text}");
    }
}
