//! The plant: jobs on GPUs, their windows, and what becomes of decisions.

use std::collections::BTreeMap;
use std::ops::Range;

use eadt_core::gpu_sharing::GpuSharingSettings;
use eadt_core::joint::{JointEvent, JointFold};
use eadt_core::{FoldSettings, partition};
use eadt_gpu_sharing::GpuSharingFold;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ControllerAction, Decision, EfficiencyWindow, Layout, Model, UpdateMode, Workload,
};

pub const GPU: &str = "GPU-0";
pub const IDLE_WATTS: f64 = 50.0;
/// Minutes from a change to the processes that it starts.
const RESTART: i64 = 2;

pub fn settings() -> FoldSettings {
    settings_with(|_| ())
}

pub fn settings_with(change: impl FnOnce(&mut GpuSharingSettings)) -> FoldSettings {
    let mut gpu_sharing = GpuSharingSettings { enabled: true, ..GpuSharingSettings::default() };
    change(&mut gpu_sharing);
    FoldSettings { gpu_sharing: Some(gpu_sharing), ..FoldSettings::default() }
}

pub fn at(minute: i64) -> EventTime {
    EventTime::from_micros(minute * 60 * 1_000_000)
}

/// Returns the window of the minute that ends then, of a workload among so many on shared devices; everything is known of it
/// but its figures.
pub fn window(name: &str, minute: i64, tenants: u32, shared: &[&str]) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("{name}/{minute}"),
        workload: name.into(),
        window_start: at(minute - 1),
        window_end: at(minute),
        energy_coverage_ratio: 1.0,
        progress_coverage_ratio: 1.0,
        gpus: 1,
        tenants: (tenants > 1).then_some(tenants),
        shared_devices: shared.iter().map(|device| (*device).to_owned()).collect(),
        ..EfficiencyWindow::default()
    }
}

/// A job whose throughput grows with a power of its share.
#[derive(Debug, Clone)]
pub struct Job {
    pub workload: Workload,
    exponent: f64,
    watts: f64,
    pub gpu: &'static str,
    /// Minutes in which it holds the GPU.
    pub here: Vec<Range<i64>>,
    /// Its processes run from this minute on.
    up: i64,
    /// It reports no progress.
    pub mute: bool,
    /// If its present layout is not to stay, what it goes back to and the decision that made it.
    undone: Option<(Layout, String)>,
}

impl Job {
    fn share(&self) -> u32 {
        self.workload.layout.mps_thread_percentage.unwrap_or(100)
    }
}

pub fn job(name: &str, exponent: f64, here: &[Range<i64>]) -> Job {
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
    Job { workload, exponent, watts: 100.0, gpu: GPU, here: here.to_vec(), up: 0, mute: false, undone: None }
}

/// One is alone first, then the other, then both are there.
pub fn in_turn() -> Vec<Job> {
    vec![job("a/steep", 0.95, &[0..40, 80..400]), job("b/flat", 0.05, &[40..400])]
}

/// Outcomes of decisions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Actuator {
    Obeys,
    Refuses,
    /// Processes of a new layout never become ready, and the one before it is restored.
    RollsBack,
}

/// Changes the input of one case of a test.
pub type Change<T> = fn(&mut T);

/// Changes a window on its way to the stage; false if it is lost.
type Wire = Box<dyn Fn(&mut EfficiencyWindow) -> bool>;

pub struct Site {
    pub stage: GpuSharingFold,
    pub settings: FoldSettings,
    pub jobs: Vec<Job>,
    pub minute: i64,
    pub decisions: Vec<Decision>,
    /// How much of their throughput alone tenants keep at a partition.
    pub contention: fn(&[u32]) -> f64,
    pub actuator: Actuator,
    /// Decisions are carried out so many minutes late, and refused if the layout is another one by then.
    pub delay: i64,
    pub coming: Vec<(i64, Decision)>,
    /// Windows show how busy the SMs were.
    pub profiled: bool,
    wire: Wire,
    /// State as the log has it.
    log: BTreeMap<String, Option<Vec<u8>>>,
}

impl Site {
    pub fn new(jobs: Vec<Job>) -> Self {
        Self::with(settings(), jobs)
    }

    pub fn with(settings: FoldSettings, jobs: Vec<Job>) -> Self {
        let mut site = Self {
            stage: GpuSharingFold::new(settings.clone()),
            settings,
            jobs: Vec::new(),
            minute: 0,
            decisions: Vec::new(),
            contention: |_| 0.95,
            actuator: Actuator::Obeys,
            delay: 0,
            coming: Vec::new(),
            profiled: false,
            wire: Box::new(|_| true),
            log: BTreeMap::new(),
        };
        for job in &jobs {
            site.declare(&job.workload);
        }
        site.jobs = jobs;
        site
    }

    /// From now on windows are changed like this before they arrive.
    pub fn on_the_way(&mut self, change: impl Fn(&mut EfficiencyWindow) + 'static) {
        self.wire = Box::new(move |window| {
            change(window);
            true
        });
    }

    /// From now on these windows do not arrive.
    pub fn lose(&mut self, is_lost: impl Fn(&EfficiencyWindow) -> bool + 'static) {
        self.wire = Box::new(move |window| !is_lost(window));
    }

    fn input(&mut self, event: partition::InputEvent<'_>, key: &str, time: EventTime) {
        self.stage.fold(JointEvent::Input(event), Some(key), time, &mut self.decisions).unwrap();
    }

    pub fn declare(&mut self, workload: &Workload) {
        self.input(partition::InputEvent::Workload(workload), &workload.workload, workload.time);
    }

    /// The workload is gone, for now or for good.
    pub fn gone(&mut self, name: &str) {
        self.input(partition::InputEvent::WorkloadGone, name, at(self.minute));
    }

    pub fn learn(&mut self, event: &Model) {
        self.input(partition::InputEvent::Model(event), &event.name, event.time);
    }

    /// A model is withdrawn.
    pub fn withdraw(&mut self, name: &str) {
        self.input(partition::InputEvent::ModelGone, name, at(self.minute));
    }

    pub fn see(&mut self, window: &EfficiencyWindow) {
        self.stage.fold(JointEvent::Window(window), Some(&window.workload), window.window_end, &mut self.decisions).unwrap();
    }

    /// Reports the outcome of a decision, like the actuator.
    pub fn answer(&mut self, workload: &str, decision: &str, outcome: ActuationOutcome, time: EventTime) {
        let id = format!("{decision}#{outcome:?}");
        let (workload, decision_id) = (workload.to_owned(), decision.to_owned());
        let answer = Actuation { id, decision_id, workload, time, outcome, ..Actuation::default() };
        self.input(partition::InputEvent::Actuation(&answer), &answer.workload, time);
    }

    /// The windows of one minute, and what becomes of the decisions that come with them.
    pub fn minute(&mut self) {
        let (begin, first) = (self.minute, self.decisions.len());
        self.minute += 1;
        let here: Vec<usize> =
            (0..self.jobs.len()).filter(|i| self.jobs[*i].here.iter().any(|stay| stay.contains(&begin))).collect();
        for i in &here {
            let job = &self.jobs[*i];
            let beside: Vec<u32> =
                here.iter().map(|i| &self.jobs[*i]).filter(|other| other.gpu == job.gpu).map(Job::share).collect();
            let share = f64::from(job.share()) / 100.0;
            let speed = share.powf(job.exponent) * if beside.len() > 1 { (self.contention)(&beside) } else { 1.0 };
            let power = IDLE_WATTS / beside.len() as f64 + job.watts * share.powf(job.exponent);
            let shared: &[&str] = if beside.len() > 1 { &[job.gpu] } else { &[] };
            let mut window = EfficiencyWindow {
                progress_coverage_ratio: if job.mute { 0.0 } else { 1.0 },
                samples_per_second: Some(10.0 * speed),
                mean_power_watts: Some(power),
                mean_power_per_gpu_watts: Some(power),
                mean_sm_active_ratio: self.profiled.then_some(share),
                layout: Some(job.workload.layout.clone()),
                restarted: begin < job.up,
                ..window(&job.workload.workload, self.minute, beside.len() as u32, shared)
            };
            if (self.wire)(&mut window) {
                self.see(&window);
            }
        }
        for i in 0..self.jobs.len() {
            self.roll_out(i);
        }
        let due = self.minute + self.delay;
        self.coming.extend(self.decisions[first..].iter().map(|decision| (due, decision.clone())));
        let (now, later) = std::mem::take(&mut self.coming).into_iter().partition(|(due, _)| *due <= self.minute);
        self.coming = later;
        for (_, decision) in now {
            self.carry_out(&decision);
        }
    }

    /// The processes of a changed layout are ready, or it is undone.
    fn roll_out(&mut self, job: usize) {
        let (now, job) = (at(self.minute).plus_micros(1), &mut self.jobs[job]);
        if job.workload.ready_time.is_some() || job.up > self.minute {
            return;
        }
        job.workload.time = now;
        let undone = job.undone.take();
        if let Some((before, _)) = &undone {
            job.workload.layout = before.clone();
            job.workload.generation += 1;
            job.workload.decision_id = None;
            job.up = self.minute + RESTART;
        } else {
            job.workload.ready_time = Some(at(self.minute));
        }
        let workload = job.workload.clone();
        self.declare(&workload);
        if let Some((_, decision)) = undone {
            self.answer(&workload.workload, &decision, ActuationOutcome::RolledBack, now);
        }
    }

    /// Changes a workload from outside: its generation shows it, and its layout may, too.
    pub fn change(&mut self, job: usize, change: impl FnOnce(&mut Workload)) {
        let workload = &mut self.jobs[job].workload;
        let before = workload.layout.clone();
        change(workload);
        workload.time = at(self.minute).plus_micros(3);
        if workload.layout != before {
            workload.generation += 1;
            workload.decision_id = None;
        }
        let workload = workload.clone();
        self.declare(&workload);
    }

    /// Goes on until a job runs in a share.
    pub fn until(&mut self, job: usize, share: u32) -> &mut Self {
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
        let (now, up) = (at(self.minute).plus_micros(2), self.minute + RESTART);
        let Some(job) = self.jobs.iter_mut().find(|job| job.workload.workload == decision.workload) else { return };
        if decision.action == ControllerAction::Maintain {
            return;
        }
        let fits = decision.generation == Some(job.workload.generation) && job.workload.ready_time.is_some();
        if self.actuator == Actuator::Refuses || !fits {
            self.answer(&decision.workload, &decision.id, ActuationOutcome::Refused, now);
            return;
        }
        if self.actuator == Actuator::RollsBack {
            job.undone = Some((job.workload.layout.clone(), decision.id.clone()));
        }
        job.workload.layout = decision.to.clone();
        job.workload.generation += 1;
        job.workload.decision_id = Some(decision.id.clone());
        (job.workload.time, job.workload.ready_time) = (now, None);
        job.up = up;
        let workload = job.workload.clone();
        self.answer(&decision.workload, &decision.id, ActuationOutcome::Applied, now);
        self.declare(&workload);
    }

    pub fn run(&mut self, minutes: i64) -> &mut Self {
        (0..minutes).for_each(|_| self.minute());
        self
    }

    /// Writes the state, and restores the stage from it.
    pub fn crash(&mut self) {
        for record in self.stage.take_changes() {
            self.log.insert(record.key, record.value);
        }
        self.stage = GpuSharingFold::restore(self.settings.clone(), self.log.clone()).unwrap();
    }

    pub fn shares(&self) -> Vec<u32> {
        self.jobs.iter().map(Job::share).collect()
    }

    pub fn changes(&self) -> Vec<&Decision> {
        self.decisions.iter().filter(|decision| decision.action != ControllerAction::Maintain).collect()
    }

    /// Returns the shares that were asked for, in their order.
    pub fn asked(&self) -> Vec<u32> {
        self.changes().iter().map(|change| change.to.mps_thread_percentage.unwrap()).collect()
    }

    /// Returns the minutes in which something was asked for, in the order of the decisions.
    pub fn asked_at(&self) -> Vec<i64> {
        self.changes().iter().map(|change| change.time.micros() / 60_000_000).collect()
    }

    pub fn last(&self, name: &str) -> &Decision {
        self.decisions.iter().rev().find(|decision| decision.workload == name).unwrap()
    }

    /// The last decision about a workload gives a reason with these words.
    #[track_caller]
    pub fn assert_reason(&self, name: &str, words: &str) {
        let reason = &self.last(name).reason;
        assert!(reason.contains(words), "{reason:?} does not contain {words:?}");
    }
}
