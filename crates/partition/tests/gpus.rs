//! The stage of shared GPUs by itself: windows and layouts in, decisions out, with a plant that carries them out.

#![allow(clippy::single_range_in_vec_init, reason = "the stays of a job, often one")]

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use eadt_core::joint::{Event, Joint, LATE_SECONDS};
use eadt_core::sharing::SmPartitionSettings;
use eadt_core::{FoldSettings, StateError, partition};
use eadt_partition::published::PartitionDocument;
use eadt_partition::{CoRun, Counters, Gpus, Measurements, Metric, SlowdownModel, SoloPoint, SoloProfile, Tenant};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Action, Actuation, Bounds, Decision, EfficiencyWindow, Layout, Model, Outcome, UpdateMode, Validation, Workload,
};
use eadt_testing::cases;
use proptest::prelude::*;

const GPU: &str = "GPU-0";
const IDLE_WATTS: f64 = 50.0;
/// Minutes from a change to the processes that it starts.
const RESTART: i64 = 2;

fn settings() -> FoldSettings {
    let sm_partition = SmPartitionSettings { enabled: true, ..SmPartitionSettings::default() };
    FoldSettings { sm_partition: Some(sm_partition), ..FoldSettings::default() }
}

fn at(minute: i64) -> EventTime {
    EventTime::from_micros(minute * 60 * 1_000_000)
}

/// A job whose throughput grows with a power of its share.
#[derive(Debug, Clone)]
struct Job {
    workload: Workload,
    exponent: f64,
    watts: f64,
    /// Minutes in which it holds the GPU.
    here: Vec<std::ops::Range<i64>>,
    /// Its processes run from this minute on.
    up: i64,
    /// It reports no progress.
    mute: bool,
}

fn job(name: &str, exponent: f64, here: &[std::ops::Range<i64>]) -> Job {
    let workload = Workload {
        time: at(0),
        workload: name.into(),
        controller: Some("sm-partition".into()),
        mode: UpdateMode::Enforce,
        generation: 1,
        gpus: Some(1),
        gpu_model: Some("board".into()),
        layout: Layout { replicas: Some(1), mps_thread_percentage: Some(50), ..Layout::default() },
        ready_time: Some(at(0)),
        ..Workload::default()
    };
    Job { workload, exponent, watts: 100.0, here: here.to_vec(), up: 0, mute: false }
}

struct Site {
    stage: Gpus,
    settings: FoldSettings,
    jobs: Vec<Job>,
    minute: i64,
    said: Vec<Decision>,
    /// How much of their throughput alone tenants keep at a partition.
    contention: fn(&[u32]) -> f64,
    /// Decisions are refused.
    refuses: bool,
    /// Decisions are carried out so many minutes late, and refused where the layout is another one by then.
    delay: Option<i64>,
    coming: Vec<(i64, Decision)>,
    /// Windows say how busy the SMs were.
    profiled: bool,
    /// State as the log has it.
    log: BTreeMap<String, Option<Vec<u8>>>,
}

impl Site {
    fn new(jobs: Vec<Job>) -> Self {
        Self::with(settings(), jobs)
    }

    fn with(settings: FoldSettings, jobs: Vec<Job>) -> Self {
        let mut site = Self {
            stage: Gpus::new(settings.clone()),
            settings,
            jobs: Vec::new(),
            minute: 0,
            said: Vec::new(),
            contention: |_| 0.95,
            refuses: false,
            delay: None,
            coming: Vec::new(),
            profiled: false,
            log: BTreeMap::new(),
        };
        for job in &jobs {
            site.tell(&job.workload);
        }
        site.jobs = jobs;
        site
    }

    fn tell(&mut self, workload: &Workload) {
        let event = Event::Input(partition::Event::Workload(workload));
        self.stage.fold(event, Some(&workload.workload), workload.time, &mut self.said).unwrap();
    }

    fn learn(&mut self, event: &Model) {
        self.stage.fold(Event::Input(partition::Event::Model(event)), Some(&event.name), event.time, &mut self.said).unwrap();
    }

    /// The windows of one minute, and what becomes of the decisions that come with them.
    fn minute(&mut self) {
        let (begin, end) = (self.minute, at(self.minute + 1));
        let here: Vec<usize> =
            (0..self.jobs.len()).filter(|i| self.jobs[*i].here.iter().any(|stay| stay.contains(&begin))).collect();
        let running: Vec<u32> = here.iter().map(|i| self.jobs[*i].workload.layout.mps_thread_percentage.unwrap()).collect();
        let first = self.said.len();
        for i in &here {
            let job = &self.jobs[*i];
            let share = f64::from(job.workload.layout.mps_thread_percentage.unwrap()) / 100.0;
            let speed = share.powf(job.exponent) * if here.len() > 1 { (self.contention)(&running) } else { 1.0 };
            let idle = IDLE_WATTS / here.len() as f64;
            let window = EfficiencyWindow {
                id: format!("{}/{begin}", job.workload.workload),
                workload: job.workload.workload.clone(),
                window_start: at(begin),
                window_end: end,
                energy_coverage_ratio: 1.0,
                progress_coverage_ratio: if job.mute { 0.0 } else { 1.0 },
                samples_per_second: Some(10.0 * speed),
                mean_power_watts: Some(idle + job.watts * share.powf(job.exponent)),
                mean_power_per_gpu_watts: Some(idle + job.watts * share.powf(job.exponent)),
                mean_sm_active_ratio: self.profiled.then_some(share),
                layout: Some(job.workload.layout.clone()),
                restarted: begin < job.up,
                gpus: 1,
                tenants: (here.len() > 1).then_some(here.len() as u32),
                shared_devices: if here.len() > 1 { vec![GPU.into()] } else { vec![] },
                ..EfficiencyWindow::default()
            };
            let name = window.workload.clone();
            self.stage.fold(Event::Window(&window), Some(&name), end, &mut self.said).unwrap();
        }
        self.minute += 1;
        for i in 0..self.jobs.len() {
            if self.jobs[i].workload.ready_time.is_none() && self.jobs[i].up <= self.minute {
                self.jobs[i].workload.ready_time = Some(end);
                self.jobs[i].workload.time = end.plus_micros(1);
                self.tell(&self.jobs[i].workload.clone());
            }
        }
        let due = self.minute + self.delay.unwrap_or(0);
        self.coming.extend(self.said[first..].iter().map(|decision| (due, decision.clone())));
        let (now, later) = std::mem::take(&mut self.coming).into_iter().partition(|(due, _)| *due <= self.minute);
        self.coming = later;
        for (_, decision) in now {
            self.carry_out(&decision);
        }
    }

    /// Somebody else changes a workload: as its generation says, its layout, too.
    fn change(&mut self, job: usize, change: impl FnOnce(&mut Workload)) {
        let workload = &mut self.jobs[job].workload;
        let before = workload.layout.clone();
        change(workload);
        workload.time = at(self.minute).plus_micros(3);
        if workload.layout != before {
            workload.generation += 1;
            workload.decision_id = None;
        }
        let workload = workload.clone();
        self.tell(&workload);
    }

    /// Goes on until a job runs in a share.
    fn until(&mut self, job: usize, share: u32) -> &mut Self {
        for _ in 0..100 {
            let workload = &self.jobs[job].workload;
            if workload.layout.mps_thread_percentage == Some(share) && workload.ready_time.is_some() {
                return self;
            }
            self.minute();
        }
        panic!("never {share} %: {:?}", self.changes());
    }

    fn carry_out(&mut self, decision: &Decision) {
        let up = self.minute + RESTART;
        let Some(job) = self.jobs.iter_mut().find(|job| job.workload.workload == decision.workload) else { return };
        if decision.action == Action::Maintain {
            return;
        }
        let time = at(self.minute).plus_micros(2);
        let fits = decision.generation == Some(job.workload.generation) && job.workload.ready_time.is_some();
        if self.refuses || !fits {
            let refused = Actuation {
                id: "a".into(),
                decision_id: decision.id.clone(),
                workload: decision.workload.clone(),
                time,
                outcome: Outcome::Refused,
                ..Actuation::default()
            };
            let event = Event::Input(partition::Event::Actuation(&refused));
            self.stage.fold(event, Some(&decision.workload), time, &mut self.said).unwrap();
            return;
        }
        job.workload.layout = decision.to.clone();
        job.workload.generation += 1;
        job.workload.decision_id = Some(decision.id.clone());
        (job.workload.time, job.workload.ready_time) = (time, None);
        job.up = up;
        let workload = job.workload.clone();
        self.tell(&workload);
    }

    fn run(&mut self, minutes: i64) -> &mut Self {
        (0..minutes).for_each(|_| self.minute());
        self
    }

    /// Writes the state, and goes on from what was written.
    fn crash(&mut self) {
        for record in self.stage.take_changes() {
            self.log.insert(record.key, record.value);
        }
        self.stage = Gpus::restore(self.settings.clone(), self.log.clone()).unwrap();
    }

    fn shares(&self) -> Vec<u32> {
        self.jobs.iter().map(|job| job.workload.layout.mps_thread_percentage.unwrap()).collect()
    }

    fn changes(&self) -> Vec<&Decision> {
        self.said.iter().filter(|decision| decision.action != Action::Maintain).collect()
    }

    fn last(&self, name: &str) -> &Decision {
        self.said.iter().rev().find(|decision| decision.workload == name).unwrap()
    }
}

/// One is alone first, then the other, then both are there.
fn in_turn() -> Vec<Job> {
    vec![job("a/steep", 0.95, &[0..40, 80..400]), job("b/flat", 0.05, &[40..400])]
}

#[test]
fn workloads_are_measured_alone_and_partitioned_together() {
    let mut site = Site::new(in_turn());
    site.run(40);
    let probes: Vec<_> = site.changes().iter().map(|d| d.to.mps_thread_percentage.unwrap()).collect();
    assert_eq!(probes, [100, 20, 50], "at its own share first, which takes no restart, and back to it in the end");
    assert_eq!(site.shares(), [50, 50]);
    assert!(site.last("a/steep").reason.contains("what it does there is known"), "{}", site.last("a/steep").reason);
    site.run(40);
    site.run(40);
    assert_eq!(site.shares(), [80, 20], "{:#?}", site.last("a/steep"));
    let (down, up) = (site.changes()[6].clone(), site.changes()[7].clone());
    assert_eq!(
        (down.action, &*down.workload, up.action, &*up.workload),
        (Action::Decrease, "b/flat", Action::Increase, "a/steep")
    );
    assert!(down.reason.contains("with a/steep 80 %") && down.reason.contains("the additive model"), "{}", down.reason);
    assert!(down.evidence["expected_gain_ratio"] > 0.02 && down.model_version.is_none(), "{down:?}");
    assert!(site.said.iter().any(|decision| decision.validation == Validation::Kept && decision.reason.contains("kept")));
    // Every window has one decision.
    let ids: std::collections::BTreeSet<_> = site.said.iter().map(|decision| &decision.id).collect();
    assert_eq!((ids.len(), site.said.len()), (40 + 40 + 80, 160));
}

/// The case in which profiles cannot be gathered: jobs that were never alone.
#[test]
fn who_was_never_alone_is_left_as_it_is_and_told_so() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400]), job("b/flat", 0.05, &[0..400])]);
    site.run(300);
    assert_eq!((site.changes().len(), site.shares()), (0, vec![50, 50]));
    let reason = &site.last("b/flat").reason;
    assert_eq!(reason, "sharing GPU-0 with a/steep: a/steep was not measured alone yet");
}

/// Without changes of its share a job is alone at one share only, which tells nothing of the others.
#[test]
fn without_measuring_at_other_shares_nothing_can_be_told() {
    let sm_partition = SmPartitionSettings { enabled: true, probe_percentages: vec![], ..SmPartitionSettings::default() };
    let mut site = Site::with(FoldSettings { sm_partition: Some(sm_partition), ..FoldSettings::default() }, in_turn());
    site.run(120);
    assert!(site.changes().is_empty());
    let reason = &site.last("b/flat").reason;
    assert!(reason.contains("a/steep was not measured enough while it was alone") && reason.contains("at 100 %"), "{reason}");
}

#[test]
fn company_that_comes_while_a_job_is_measured_puts_it_back() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400]), job("b/flat", 0.05, &[8..400])]);
    site.run(8);
    assert_eq!(site.shares(), [100, 50]);
    site.run(10);
    assert_eq!(site.shares(), [50, 50]);
    assert!(site.changes().last().unwrap().reason.contains("not alone on its GPU any more"));
}

#[test]
fn what_must_not_be_turned_stays_and_says_why() {
    let reason = |change: fn(&mut Vec<Job>)| {
        let mut jobs = in_turn();
        change(&mut jobs);
        let mut site = Site::new(jobs);
        site.run(80);
        let before = site.changes().len();
        site.run(40);
        assert_eq!(site.changes().len(), before);
        site.last("b/flat").reason.clone()
    };
    let says = |change, part: &str| {
        let reason = reason(change);
        assert!(reason.contains(part), "{reason}");
    };
    says(|jobs| jobs[0].workload.mode = UpdateMode::Recommend, "a/steep is not in mode enforce");
    says(|jobs| jobs[0].workload.controller = Some("hybrid".into()), "a/steep is not decided about by sm-partition");
    says(
        |jobs| jobs[1].workload.bounds = Bounds { restarts_per_day_max: Some(4), ..Bounds::default() },
        "b/flat was restarted as often",
    );
    says(
        |jobs| jobs[1].workload.bounds = Bounds { mps_thread_percentage_max: Some(60), ..Bounds::default() },
        "b/flat was not measured enough",
    );
    says(|jobs| jobs[0].workload.gpu_model = Some("other".into()), "both must be measured on the GPU that they share");
}

#[test]
fn what_is_refused_is_not_asked_for_again_for_a_while() {
    let mut site = Site::new(in_turn());
    site.refuses = true;
    site.run(40);
    assert_eq!(site.changes().len(), 1);
    assert!(
        site.last("a/steep").reason.contains("was refused or told nothing, nothing is tried before"),
        "{}",
        site.last("a/steep").reason
    );
    let mut site = Site::new(in_turn());
    site.run(80);
    site.refuses = true;
    let before = site.changes().len();
    site.run(40);
    assert_eq!(site.changes().len(), before + 1);
    assert!(site.last("a/steep").reason.contains("nothing is tried before"), "{}", site.last("a/steep").reason);
}

#[test]
fn a_partition_that_does_not_help_is_taken_back() {
    let mut site = Site::new(in_turn());
    site.contention = |shares| if shares == [50, 50] { 0.95 } else { 0.4 };
    site.run(80 + 60);
    assert_eq!(site.shares(), [50, 50]);
    let reverts: Vec<_> = site.changes().into_iter().filter(|decision| decision.validation == Validation::Failed).collect();
    assert_eq!(reverts.len(), 2, "{reverts:#?}");
    assert!(reverts[0].reason.contains("is taken back"), "{}", reverts[0].reason);
}

/// Jobs with large shares hold each other up: adding up does not know that.
fn crowding(shares: &[u32]) -> f64 {
    if shares.iter().any(|share| *share >= 80) { 0.6 } else { 0.97 }
}

/// What other pairs taught about it.
fn learned() -> Model {
    let exponents: [f64; 6] = [0.02, 0.1, 0.3, 0.6, 0.9, 1.0];
    let part = |share: u32, i: usize| (f64::from(share) / 100.0).powf(exponents[i]);
    let point = |share: u32, i: usize| SoloPoint {
        mps_thread_percentage: share,
        sm_clock_mhz: None,
        samples_per_second: 10.0 * part(share, i),
        power_watts: IDLE_WATTS + 100.0 * part(share, i),
        counters: Counters::of(|metric| (metric == Metric::SmActiveRatio).then_some(f64::from(share) / 100.0)),
    };
    let profile = |i: usize| {
        let points = [20, 50, 100].map(|share| point(share, i)).to_vec();
        SoloProfile::new(format!("t/{i}"), "board".into(), points).unwrap()
    };
    let run = |a: usize, b: usize, share: u32| {
        let shares = [share, 100 - share];
        let tenant = |i: usize, share: u32| Tenant {
            workload: format!("t/{i}"),
            mps_thread_percentage: share,
            samples_per_second: 10.0 * part(share, i) * crowding(&shares),
        };
        let power_watts = IDLE_WATTS + 100.0 * (part(shares[0], a) + part(shares[1], b));
        CoRun { tenants: vec![tenant(a, shares[0]), tenant(b, shares[1])], sm_clock_mhz: None, power_watts }
    };
    let pairs = (0..6).flat_map(|a| (0..6).filter(move |b| *b != a).map(move |b| (a, b)));
    let runs = pairs.flat_map(|(a, b)| [20, 30, 40, 50, 60, 70, 80].map(|share| run(a, b, share))).collect();
    let measured = Measurements::new(IDLE_WATTS, (0..6).map(profile).collect(), runs).unwrap();
    let model = SlowdownModel::train(&measured, &SlowdownModel::FOREST).unwrap();
    let mut parameters = serde_json::to_value(PartitionDocument::new(model)).unwrap();
    parameters["origin"] = "simulated".into();
    Model { time: at(0), name: "partition/board".into(), version: "7".into(), parameters, ..Model::default() }
}

/// The sample `tests/state/NAME.jsonl`, lines of key and JSON. With `EADT_WRITE_STATE_SAMPLE` one that is missing is made of `present`; one
/// that is there never changes.
fn stored(name: &str, present: &mut Gpus) -> Vec<(String, Option<String>)> {
    let file = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/state/{name}.jsonl"));
    if std::env::var_os("EADT_WRITE_STATE_SAMPLE").is_some() && !file.exists() {
        let text = |value: Option<Vec<u8>>| String::from_utf8(value.expect("nothing is deleted")).expect("JSON");
        let records = present.take_changes().into_iter();
        let lines: String = records.map(|r| serde_json::to_string(&(r.key, text(r.value))).expect("texts") + "\n").collect();
        std::fs::write(&file, lines).expect("a writable folder");
    }
    let line = |line: &str| -> (String, Option<String>) { serde_json::from_str(line).expect("key and value") };
    std::fs::read_to_string(file).expect("a sample of each version").lines().map(line).collect()
}

/// In the middle of a change: probes are done, a partition was found and is not in force yet.
#[test]
fn state_that_any_release_kept_goes_on_as_if_nothing_had_happened() {
    let mut site = Site::new(in_turn());
    (site.contention, site.profiled) = (crowding, true);
    site.learn(&learned());
    site.run(85);
    let state = stored("v1", &mut site.stage);
    let before = site.said.len();
    let (jobs, minute, coming) = (site.jobs.clone(), site.minute, site.coming.clone());
    site.run(60);
    assert_eq!(site.shares(), [70, 30], "{:#?}", site.changes().last());
    let mut restored = Site::new(Vec::new());
    (restored.contention, restored.profiled) = (crowding, true);
    (restored.jobs, restored.minute, restored.coming) = (jobs, minute, coming);
    restored.stage = Gpus::restore(settings(), state.clone()).unwrap();
    restored.run(60);
    assert!(site.said[before..].iter().any(|decision| decision.action != Action::Maintain), "something is decided");
    assert_eq!(site.said[before..], restored.said);
    // All kinds of keys are in it, and of each a newer form is refused; a newer kind, too.
    let keys: Vec<&str> = state.iter().map(|(key, _)| key.as_str()).collect();
    let members = ["#gpu//member//a/steep", "#gpu//member//b/flat"];
    assert_eq!(keys, ["#gpu//", "#gpu//model//partition/board", members[0], members[1], "#gpu//device//GPU-0"]);
    let restore = |key: &str, value: &[u8]| Gpus::restore(settings(), [(key, Some(value))]).map(drop);
    for (key, value) in &state {
        let newer = [&[2], value.as_deref().unwrap().as_bytes()].concat();
        let error = restore(key, &newer).unwrap_err();
        assert!(matches!(error, StateError::Newer { form: 2, .. }) && error.to_string().contains(&format!("{key:?}")), "{error}");
    }
    assert!(matches!(restore("#gpu//later//x", b"{}"), Err(StateError::NewKind { .. })));
    // Others' records are theirs to judge.
    restore("a/steep#0", &[9]).unwrap();
    restore("#cluster//later//x", &[9]).unwrap();
}

#[test]
fn a_learned_model_knows_what_adding_up_has_to_find_out() {
    let site = |model: Option<&Model>| {
        let mut site = Site::new(in_turn());
        (site.contention, site.profiled) = (crowding, true);
        if let Some(model) = model {
            site.learn(model);
        }
        site.run(120);
        site
    };
    let added = site(None);
    assert_eq!((added.shares(), added.changes().len()), (vec![50, 50], 6 + 4), "80 % was tried and taken back");
    assert_eq!(added.changes().last().unwrap().action, Action::Revert);

    let knows = site(Some(&learned()));
    assert_eq!((knows.shares(), knows.changes().len()), (vec![70, 30], 6 + 2), "{:#?}", knows.changes().last());
    let change = knows.changes()[7];
    assert_eq!(change.model_version.as_deref(), Some("partition/board@7"));
    assert!(change.reason.ends_with("work per watt, says partition/board@7"), "{}", change.reason);
    assert!(knows.said.iter().any(|decision| decision.validation == Validation::Kept));
    assert_eq!(knows.stage.tally().models, 1);
    // Who is alone is told by nobody's model.
    assert!(knows.changes()[..6].iter().all(|change| change.model_version.is_none()));
}

#[test]
fn a_model_in_force_is_part_of_the_state() {
    let run = |crashes: bool| {
        let mut site = Site::new(in_turn());
        (site.contention, site.profiled) = (crowding, true);
        site.learn(&learned());
        for _ in 0..130 {
            if crashes {
                site.crash();
            }
            site.minute();
        }
        site.said
    };
    let (straight, broken) = (run(false), run(true));
    assert!(straight.iter().any(|decision| decision.model_version.is_some()));
    assert_eq!(straight, broken);
}

#[test]
fn models_that_say_nothing_are_counted_and_adding_up_goes_on() {
    let with = |models: &[Model], profiled: bool| {
        let mut site = Site::new(in_turn());
        site.profiled = profiled;
        for model in models {
            site.learn(model);
        }
        site.run(120);
        site
    };
    let good = learned();
    let changed = |change: &dyn Fn(&mut Model)| {
        let mut model = good.clone();
        change(&mut model);
        model
    };
    let form = changed(&|model| model.parameters["format"] = "eadt.partition-model.v2".into());
    let damaged = changed(&|model| model.parameters["model"]["rates"]["trees"][0] = "AAAA".into());
    // Figures by which nothing can be judged, or anything: whoever reads them must not end by them.
    let figure = |name: &str, value: f64| changed(&|model| model.parameters["model"][name] = value.into());
    let absurd = [
        figure("idle_watts", 1e300),
        figure("clock_max_mhz", 0.0),
        // It would be too large for the state's topic.
        changed(&|model| model.parameters["more"] = vec![1e9; 90_000].into()),
        changed(&|model| {
            for forest in ["rates", "power"] {
                let trees = model.parameters["model"][forest]["trees"].as_array_mut().unwrap();
                *trees = vec![trees[0].clone(); 1_001];
            }
        }),
        changed(&|model| {
            // A single leaf: no feature, 1e30 in single precision.
            let bytes = [u16::MAX.to_le_bytes().as_slice(), &1e30_f32.to_le_bytes()].concat();
            let tree: serde_json::Value = STANDARD.encode(bytes).into();
            let trees = model.parameters["model"]["rates"]["trees"].as_array_mut().unwrap();
            trees.fill(tree);
        }),
    ];
    assert_eq!(with(&absurd, true).stage.tally().models_ignored.damaged, 5);
    let elsewhere = changed(&|model| model.name = "partition/other".into());
    let older = changed(&|model| (model.time, model.version) = (at(-1), "6".into()));
    let foreign = changed(&|model| model.name = "power/board".into());
    let added = with(&[form.clone(), damaged.clone(), elsewhere, foreign], true);
    let tally = added.stage.tally();
    assert_eq!((tally.models, tally.models_ignored.version, tally.models_ignored.damaged), (0, 1, 2));
    assert_eq!(added.shares(), [80, 20]);
    assert!(added.said.iter().all(|decision| decision.model_version.is_none()));

    let kept = with(&[good.clone(), older, form, damaged], true);
    let ignored = kept.stage.tally().models_ignored;
    assert_eq!((ignored.older, ignored.version, ignored.damaged), (1, 1, 1));
    assert!(kept.said.iter().any(|decision| decision.model_version.as_deref() == Some("partition/board@7")));

    // Windows without profiling metrics: the model needs them.
    let blind = with(std::slice::from_ref(&good), false);
    assert_eq!(blind.shares(), [80, 20]);
    let told = "partition/board@7 is not asked: workload a/steep was measured without sm_active_ratio";
    let shared = |decision: &&Decision| decision.reason.starts_with("sharing GPU-0 with");
    assert!(blind.said.iter().filter(shared).all(|decision| decision.model_version.is_none()));
    assert!(blind.last("a/steep").reason.contains(told), "{}", blind.last("a/steep").reason);
    let change = blind.changes()[6];
    assert!(change.reason.contains("says the additive model; partition/board@7 is not asked"), "{}", change.reason);

    // A board that idles at more than the jobs drew is another one.
    let idle = with(&[figure("idle_watts", 80.0)], true);
    assert_eq!(idle.shares(), [80, 20]);
    let told = &idle.last("a/steep").reason;
    assert!(told.contains("partition/board@7 is not asked") && told.contains("idles at 80 W"), "{told}");

    // One that is withdrawn decides nothing any more.
    let mut withdrawn = Site::new(in_turn());
    withdrawn.profiled = true;
    withdrawn.learn(&good);
    withdrawn.run(50);
    let gone = Event::Input(partition::Event::ModelGone);
    withdrawn.stage.fold(gone, Some("partition/board"), at(50), &mut withdrawn.said).unwrap();
    withdrawn.crash();
    withdrawn.run(70);
    assert_eq!(withdrawn.shares(), [80, 20]);
    assert!(withdrawn.said.iter().all(|decision| decision.model_version.is_none()));
}

/// GPUs that only others share come and go; without a member nobody ever looks at them.
#[test]
fn gpus_of_others_are_forgotten_though_there_are_no_members() {
    let mut site = Site::new(vec![]);
    let mut log = BTreeMap::new();
    for minute in 0..300 {
        let window = EfficiencyWindow {
            workload: format!("a/{minute}"),
            window_end: at(minute),
            tenants: Some(2),
            shared_devices: vec![format!("GPU-{minute}")],
            ..EfficiencyWindow::default()
        };
        site.stage.fold(Event::Window(&window), Some(&window.workload), at(minute), &mut site.said).unwrap();
        log.extend(site.stage.take_changes().into_iter().map(|record| (record.key, record.value.is_some())));
    }
    let kept = log.values().filter(|kept| **kept).count();
    assert!(kept < 30, "{kept} records after five hours");
}

#[test]
fn there_is_room_for_so_many_and_who_is_gone_makes_room() {
    let settings = FoldSettings { max_workloads: 1, ..settings() };
    let mut site = Site::with(settings, vec![job("a/steep", 0.95, &[0..400])]);
    let other = job("b/flat", 0.05, &[]).workload;
    let mut out = Vec::new();
    let told = |site: &mut Site, out: &mut Vec<Decision>| {
        site.stage.fold(Event::Input(partition::Event::Workload(&other)), Some("b/flat"), at(1), out)
    };
    let refusal = told(&mut site, &mut out).unwrap_err();
    assert!(refusal.detail.contains("processor.max_workloads"), "{}", refusal.detail);
    site.stage.fold(Event::Input(partition::Event::WorkloadGone), Some("a/steep"), at(1), &mut out).unwrap();
    told(&mut site, &mut out).unwrap();
    assert_eq!(site.stage.size(), 1);
}

/// Every change is asked for twice before it is carried out, and the second decision of each is refused: it is for a layout of the past.
#[test]
fn a_refusal_of_what_was_asked_for_twice_ends_nothing() {
    let mut site = Site::new(in_turn());
    site.delay = Some(1);
    site.run(40);
    assert!(site.last("a/steep").reason.contains("what it does there is known"), "{}", site.last("a/steep").reason);
    site.run(80);
    assert_eq!(site.shares(), [80, 20], "{:#?}", site.last("a/steep"));
    assert!(site.said.iter().any(|decision| decision.validation == Validation::Kept));
}

/// An answer to something that was asked for long ago.
#[test]
fn a_refusal_of_a_former_decision_ends_nothing() {
    let mut site = Site::new(in_turn());
    site.run(80);
    let former = site.changes()[0].id.clone();
    let mut changed = site.changes().len();
    for _ in 0..40 {
        site.minute();
        if site.changes().len() > changed {
            changed = site.changes().len();
            let time = at(site.minute).plus_micros(4);
            let refused = Actuation {
                decision_id: former.clone(),
                workload: "a/steep".into(),
                time,
                outcome: Outcome::Refused,
                ..Actuation::default()
            };
            let event = Event::Input(partition::Event::Actuation(&refused));
            site.stage.fold(event, Some("a/steep"), time, &mut site.said).unwrap();
        }
    }
    assert_eq!(site.shares(), [80, 20], "{:#?}", site.last("a/steep"));
}

/// Measured alone at 20 % of the SMs, where it stays only for as long as its windows tell something.
fn measured_at_20() -> Site {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..1000]), job("b/flat", 0.05, &[])]);
    site.until(0, 20);
    site
}

#[test]
fn who_falls_silent_while_it_is_measured_gets_its_share_back() {
    let mut site = measured_at_20();
    site.jobs[0].mute = true;
    site.run(20);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
}

#[test]
fn who_is_capped_while_it_is_measured_gets_its_share_back() {
    let mut site = measured_at_20();
    site.change(0, |workload| workload.layout.power_limit_watts = Some(100.0));
    site.run(20);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
    assert!(site.changes().last().unwrap().reason.contains("told nothing"), "{:?}", site.changes().last());
    let changes = site.changes().len();
    site.run(120);
    assert_eq!(site.changes().len(), changes, "capped, it is not measured again");
}

#[test]
fn whose_controller_is_another_one_gets_its_share_back() {
    for alone in [true, false] {
        let mut site = measured_at_20();
        if !alone {
            site.jobs[1].here = vec![0..1000];
        }
        site.change(0, |workload| workload.controller = Some("hybrid".into()));
        site.run(10);
        assert_eq!(site.shares()[0], 50, "{alone}");
        let (said, back) = (site.said.len(), site.changes().last().copied().cloned().unwrap());
        assert_eq!((&*back.workload, back.action, &*back.controller), ("a/steep", Action::Revert, "sm-partition"));
        site.run(10);
        let more = site.said[said..].iter().filter(|decision| decision.workload == "a/steep").count();
        assert_eq!(more, 0, "nothing else is said about it");
    }
}

#[test]
fn who_must_not_be_changed_for_a_while_gets_its_share_back_after_it() {
    let pause: fn(&mut Workload) = |workload| workload.paused = true;
    let observe: fn(&mut Workload) = |workload| workload.mode = UpdateMode::Observe;
    for change in [pause, observe] {
        let mut site = measured_at_20();
        site.change(0, change);
        site.run(30);
        assert_eq!(site.shares()[0], 20);
        let reason = &site.last("a/steep").reason;
        assert!(reason.contains("gets its 50 % back once it may be changed"), "{reason}");
        site.change(0, |workload| (workload.paused, workload.mode) = (false, UpdateMode::Enforce));
        site.run(10);
        assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
    }
}

/// Who only takes recommendations gets one.
#[test]
fn who_takes_recommendations_is_told_to_go_back() {
    let mut site = measured_at_20();
    site.change(0, |workload| workload.mode = UpdateMode::Recommend);
    site.run(10);
    let back = site.changes().last().copied().unwrap();
    assert_eq!((back.action, back.to.mps_thread_percentage), (Action::Revert, Some(50)));
}

#[test]
fn bounds_that_no_longer_allow_the_former_share_give_the_nearest() {
    let mut site = measured_at_20();
    site.change(0, |workload| workload.bounds.mps_thread_percentage_max = Some(40));
    site.run(20);
    assert_eq!(site.shares()[0], 40, "{:?}", site.last("a/steep").reason);
}

/// The budget of restarts is cut while it is measured at 100 %: there is none left to measure it further, and the way back is free.
#[test]
fn who_may_not_be_restarted_any_more_gets_its_share_back() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..1000])]);
    site.until(0, 100);
    site.change(0, |workload| workload.bounds.restarts_per_day_max = Some(0));
    site.run(20);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
}

/// Probes that are not asked for any more are not waited for.
#[test]
fn settings_without_probes_give_the_share_back() {
    let mut site = measured_at_20();
    let sm_partition = SmPartitionSettings { enabled: true, probe_percentages: vec![], ..SmPartitionSettings::default() };
    site.settings = FoldSettings { sm_partition: Some(sm_partition), ..FoldSettings::default() };
    site.crash();
    site.run(3);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
}

#[test]
fn what_somebody_else_chose_while_it_was_measured_is_left_to_them() {
    let mut site = measured_at_20();
    site.change(0, |workload| workload.layout.mps_thread_percentage = Some(70));
    site.run(60);
    assert_eq!(site.shares()[0], 70, "{:?}", site.last("a/steep").reason);
}

/// A share to measure it at comes into force when others are there already: it is given back.
#[test]
fn a_change_that_comes_late_does_not_leave_a_share_behind() {
    let mut site = Site::new(vec![job("a/steep", 0.95, &[0..400]), job("b/flat", 0.05, &[4..400])]);
    site.delay = Some(3);
    site.run(5);
    assert!(site.shares()[0] == 50 && !site.changes().is_empty(), "asked for, and not yet in force");
    site.run(3);
    assert_eq!(site.shares()[0], 100, "in force with two on the GPU");
    site.run(15);
    assert_eq!(site.shares(), [50, 50], "{}", site.last("a/steep").reason);
}

/// It is gone for a moment, as where its label is lost, and comes back as it was.
#[test]
fn who_comes_back_as_it_was_measured_gets_its_share_back() {
    let mut site = measured_at_20();
    let workload = site.jobs[0].workload.clone();
    site.stage.fold(Event::Input(partition::Event::WorkloadGone), Some("a/steep"), at(site.minute), &mut site.said).unwrap();
    site.run(2);
    site.tell(&Workload { time: at(site.minute).plus_micros(5), ..workload });
    site.run(20);
    assert_eq!(site.shares()[0], 50, "{:?}", site.last("a/steep").reason);
}

#[test]
fn looks_and_what_they_found_are_counted() {
    let mut site = Site::new(in_turn());
    let counts = |site: &Site| {
        let tally = site.stage.tally();
        (tally.looks, tally.late, tally.shared_gpus, tally.measured)
    };
    site.run(40);
    assert_eq!(counts(&site), (40, 0, 0, 1), "a/steep was measured alone");
    site.run(60);
    assert_eq!(counts(&site), (100, 0, 1, 2), "one look for both windows of a minute");
}

#[test]
fn what_comes_after_a_look_that_it_belonged_to_is_counted_and_the_next_decisions_say_so() {
    let mut site = Site::new(in_turn());
    site.run(30);
    let layout = site.jobs[0].workload.clone();
    for (minute, late) in [(31, 0), (30, 1), (20, 2), (25, 3)] {
        site.tell(&Workload { time: at(minute), ..layout.clone() });
        assert_eq!(site.stage.tally().late, late, "{minute}");
    }
    site.crash();
    site.minute();
    assert_eq!(site.last("a/steep").evidence.get(LATE_SECONDS), Some(&660.0), "by the least of them");
    site.minute();
    assert_eq!(site.last("a/steep").evidence.get(LATE_SECONDS), None);
}

#[test]
fn who_shares_several_gpus_is_left_as_it_is() {
    for (devices, told) in
        [(vec!["GPU-0", "GPU-1"], "it shares 2 GPUs, and has one share"), (vec![], "it shares more than 64 GPUs")]
    {
        let mut site = Site::new(vec![job("a/steep", 0.95, &[])]);
        for minute in 1..=3 {
            let window = EfficiencyWindow {
                workload: "a/steep".into(),
                window_start: at(minute - 1),
                window_end: at(minute),
                energy_coverage_ratio: 1.0,
                progress_coverage_ratio: 1.0,
                gpus: 2,
                tenants: Some(2),
                shared_devices: devices.iter().map(|device| (*device).to_owned()).collect(),
                ..EfficiencyWindow::default()
            };
            site.stage.fold(Event::Window(&window), Some("a/steep"), at(minute), &mut site.said).unwrap();
        }
        assert_eq!((site.said.len(), site.changes().len()), (3, 0));
        assert!(site.last("a/steep").reason.contains(told), "{}", site.last("a/steep").reason);
    }
}

/// Others are known by their windows, and for as long as these come.
#[test]
fn others_on_the_gpu_are_named_while_they_are_there() {
    let mut jobs = vec![job("a/steep", 0.95, &[0..60]), job("b/flat", 0.05, &[0..60]), job("c/other", 0.5, &[0..60])];
    for other in &mut jobs[1..] {
        other.workload.controller = Some("hybrid".into());
    }
    let mut site = Site::new(jobs);
    site.run(30);
    let told = "sharing GPU-0: 3 workloads share the GPU: b/flat, c/other are not decided about by sm-partition";
    assert_eq!(site.last("a/steep").reason, told);
    assert_eq!(site.last("a/steep").evidence["workloads"], 3.0);
    // One of them says nothing any more, though its processes run.
    let silence = SmPartitionSettings::default().silence_seconds as i64 / 60;
    let window = |minute: i64, name: &str| EfficiencyWindow {
        workload: name.into(),
        window_start: at(minute - 1),
        window_end: at(minute),
        energy_coverage_ratio: 1.0,
        progress_coverage_ratio: 1.0,
        gpus: 1,
        tenants: Some(3),
        shared_devices: vec![GPU.into()],
        ..EfficiencyWindow::default()
    };
    let mut reasons = Vec::new();
    for minute in 31..=30 + silence + 2 {
        for name in ["a/steep", "b/flat"] {
            site.stage.fold(Event::Window(&window(minute, name)), Some(name), at(minute), &mut site.said).unwrap();
        }
        reasons.push(site.last("a/steep").reason.contains("c/other"));
    }
    let until: Vec<bool> = (31..=30 + silence + 2).map(|minute| minute <= 30 + silence).collect();
    assert_eq!(reasons, until, "{}", site.last("a/steep").reason);
}

#[test]
fn of_those_who_are_gone_what_was_measured_longest_ago_makes_room() {
    let settings = FoldSettings { max_workloads: 2, ..settings() };
    let mut site = Site::with(settings, vec![job("a/steep", 0.95, &[3..5]), job("b/flat", 0.05, &[0..3])]);
    site.run(5);
    for name in ["a/steep", "b/flat"] {
        let gone = Event::Input(partition::Event::WorkloadGone);
        site.stage.fold(gone, Some(name), at(5), &mut site.said).unwrap();
    }
    site.tell(&Workload { time: at(5), ..job("c/other", 0.5, &[]).workload });
    let known: BTreeMap<_, _> =
        site.stage.take_changes().into_iter().map(|record| (record.key, record.value.is_some())).collect();
    let is_known = |name: &str| known[&format!("#gpu//member//{name}")];
    assert_eq!((is_known("a/steep"), is_known("b/flat"), is_known("c/other")), (true, false, true));
    assert_eq!(site.stage.size(), 2);
}

proptest! {
    #![proptest_config(cases(24))]

    /// Wherever the state is written and read again, what is decided is the same; and shares in force never sum to more than the GPU
    /// while all tenants are there, but for one that was just measured alone.
    #[test]
    fn restarts_of_the_stage_change_nothing(
        crashes in prop::collection::btree_set(0_i64..160, 0..12),
        exponents in (0.05..1.0_f64, 0.05..1.0_f64),
        slow in prop::bool::ANY,
    ) {
        let jobs = || vec![job("a/one", exponents.0, &[0..40, 80..400]), job("b/two", exponents.1, &[40..400])];
        let (mut straight, mut crashed) = (Site::new(jobs()), Site::new(jobs()));
        for site in [&mut straight, &mut crashed] {
            site.contention = if slow { |shares| 1.0 - f64::from(shares[0]) / 250.0 } else { |_| 0.9 };
        }
        for minute in 0..160 {
            if crashes.contains(&minute) {
                crashed.crash();
            }
            straight.minute();
            crashed.minute();
            if minute > 84 {
                prop_assert!(straight.shares().iter().sum::<u32>() <= 100, "{:?}", straight.shares());
            }
        }
        prop_assert_eq!(straight.said, crashed.said);
    }
}
