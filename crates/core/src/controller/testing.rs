//! A workload on a test bench: windows go in, decisions come out, an actuator of a few lines applies them.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ControllerAction, Decision, EfficiencyWindow, Layout, LayoutBounds, UpdateMode, Workload,
};

use crate::models::ModelRegistry;
use crate::workload::report::TrainingReport;

use super::{ControllerContext, ControllerName, ControllerSettings, ControllerState, decide};

pub(super) struct ControllerBench {
    pub name: ControllerName,
    pub state: ControllerState,
    pub settings: ControllerSettings,
    pub workload: Workload,
    pub actuation: Option<Actuation>,
    pub remaining_seconds: Option<f64>,
    pub checkpoint_time: Option<EventTime>,
    pub training: Option<TrainingReport>,
    pub models: Option<ModelRegistry>,
    pub now: EventTime,
    /// When the actuator here restarted the workload, oldest first.
    pub restarts: Vec<EventTime>,
    generations: u64,
}

pub(super) fn layout(replicas: u32, threads: u32, gpus: u32) -> Layout {
    Layout {
        replicas: Some(replicas),
        mps_thread_percentage: Some(threads),
        world_size: Some(replicas),
        local_world_size: Some(replicas / gpus),
        ..Layout::default()
    }
}

pub(super) fn knobs(layout: &Layout) -> (u32, u32) {
    (layout.replicas.unwrap(), layout.mps_thread_percentage.unwrap())
}

impl ControllerBench {
    /// Returns the seed's workload: 3 GPUs, 6 replicas of 50 %, everything declared that its steps need.
    pub fn new(name: ControllerName) -> Self {
        Self {
            name,
            state: ControllerState::default(),
            settings: ControllerSettings::default(),
            workload: Workload {
                workload: "eadt/llm-training".into(),
                kind: "StatefulSet".into(),
                generation: 1,
                layout: layout(6, 50, 3),
                mode: UpdateMode::Enforce,
                gpus: Some(3),
                gpu_power_limit_watts: Some(400.0),
                backend: Some("gloo".into()),
                global_batch_size: Some(576),
                bounds: LayoutBounds { oversubscription_percentage_max: Some(200), ..LayoutBounds::default() },
                ..Workload::default()
            },
            actuation: None,
            remaining_seconds: None,
            checkpoint_time: None,
            training: None,
            models: None,
            now: EventTime::from_seconds(1_767_225_600.0),
            restarts: Vec::new(),
            generations: 1,
        }
    }

    pub fn literal() -> Self {
        Self::new(ControllerName::MatrixLiteral)
    }

    pub fn precise() -> Self {
        Self::new(ControllerName::Matrix)
    }

    /// Returns a full window at this power per GPU and efficiency.
    pub fn window(&self, watts_per_gpu: f64, efficiency: f64) -> EfficiencyWindow {
        let gpus = self.workload.gpus.unwrap_or(1);
        let watts = watts_per_gpu * f64::from(gpus);
        EfficiencyWindow {
            workload: self.workload.workload.clone(),
            window_start: self.now,
            window_end: self.now.plus_seconds(60.0),
            energy_coverage_ratio: 1.0,
            progress_coverage_ratio: 1.0,
            samples_per_second: Some(efficiency * watts),
            samples_per_joule: Some(efficiency),
            joules_per_sample: (efficiency > 0.0).then(|| 1.0 / efficiency),
            mean_power_watts: Some(watts),
            mean_power_per_gpu_watts: Some(watts_per_gpu),
            layout: Some(self.workload.layout.clone()),
            generation: Some(self.workload.generation),
            gpus,
            ..EfficiencyWindow::default()
        }
    }

    pub fn decide(&mut self, window: &EfficiencyWindow) -> Decision {
        self.now = window.window_end;
        let context = ControllerContext {
            workload: Some(&self.workload),
            last_actuation: self.actuation.as_ref(),
            remaining_seconds: self.remaining_seconds,
            checkpoint_time: self.checkpoint_time,
            training: self.training.as_ref(),
            settings: &self.settings,
            models: self.models.as_ref(),
        };
        decide(self.name, &mut self.state, window, &context)
    }

    pub fn feed(&mut self, watts_per_gpu: f64, efficiency: f64) -> Decision {
        let window = self.window(watts_per_gpu, efficiency);
        self.decide(&window)
    }

    /// Feeds the same window `count` times, and returns the last decision. All but the last must be `maintain`.
    pub fn feed_times(&mut self, count: usize, watts_per_gpu: f64, efficiency: f64) -> Decision {
        for _ in 1..count {
            let decision = self.feed(watts_per_gpu, efficiency);
            assert_eq!(decision.action, ControllerAction::Maintain, "{}", decision.reason);
        }
        self.feed(watts_per_gpu, efficiency)
    }

    pub fn report(&mut self, decision: &Decision, outcome: ActuationOutcome, reason: &str) {
        self.actuation = Some(Actuation {
            id: format!("{}/{outcome:?}", decision.id),
            decision_id: decision.id.clone(),
            workload: decision.workload.clone(),
            time: self.now.plus_seconds(10.0),
            outcome,
            reason: reason.into(),
            layout: self.workload.layout.clone(),
            generation: self.workload.generation,
            ..Actuation::default()
        });
    }

    /// Sets this layout, as a user would.
    pub fn set_layout(&mut self, layout: Layout) {
        self.generations += 1;
        self.workload.generation = self.generations;
        self.workload.layout = layout;
    }

    /// Applies a decision; the next window is the restart's.
    pub fn apply(&mut self, decision: &Decision) {
        assert_eq!(decision.generation, Some(self.workload.generation));
        self.set_layout(decision.to.clone());
        self.workload.decision_id = Some(decision.id.clone());
        self.restarts.push(self.now.plus_seconds(10.0));
        self.report(decision, ActuationOutcome::Applied, "");
    }

    /// Feeds a window in which the workload restarts.
    pub fn restart_window(&mut self) -> Decision {
        let mut window = self.window(80.0, 0.01);
        window.restarted = true;
        self.decide(&window)
    }

    /// Applies a decision and lets the job start and warm up.
    pub fn apply_and_warm_up(&mut self, decision: &Decision, watts_per_gpu: f64, efficiency: f64) {
        self.apply(decision);
        assert_eq!(self.restart_window().action, ControllerAction::Maintain);
        let warming = self.feed(watts_per_gpu, efficiency);
        assert_eq!(warming.action, ControllerAction::Maintain);
    }
}
