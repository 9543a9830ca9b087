//! GPU model and controller in lock-step, without a bus: what the default scenario's two workloads go through.
//!
//! The plant here is a few lines of its own (second by second, restarts cost two minutes), so that the figures do not
//! rest on the simulated cluster that the product uses.

use eadt_core::controller::{ControllerContext, ControllerName, ControllerSettings, ControllerState, decide};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout, LayoutBounds, Origin,
    UpdateMode, Workload,
};
use eadt_simulator::gpu::{
    BoardModel, EnergyMeter, GpuProcess, NoiseChannel, OperatingLimits, PhaseSchedule, SimulationNoise, SteadyStateCache,
    ThermalState, llm_training_phases, synchronised_rate, vision_pretraining_phases,
};

const AMBIENT_CELSIUS: f64 = 30.0;
const DELAY_SECONDS: u32 = 10;
const RESTART_SECONDS: u32 = 120;

struct Gpu {
    thermal: ThermalState,
    meter: EnergyMeter,
    gain: f64,
}

struct Job {
    name: ControllerName,
    board: BoardModel,
    phases: PhaseSchedule,
    noise: SimulationNoise,
    solver: SteadyStateCache,
    gpus: Vec<Gpu>,
    workload: Workload,
    second: u32,
    /// Seconds of the pending restart that are left.
    down: u32,
    /// A decision and when it takes effect.
    pending: Option<(u32, Decision)>,
    samples: f64,
    state: ControllerState,
    actuation: Option<Actuation>,
}

fn at(second: u32) -> EventTime {
    EventTime::from_seconds(1_767_225_600.0 + f64::from(second))
}

impl Job {
    fn new(name: ControllerName, board: BoardModel, gpus: u32, phases: PhaseSchedule, noise: SimulationNoise) -> Self {
        let replicas = 2 * gpus;
        Self {
            name,
            board,
            phases,
            noise,
            solver: SteadyStateCache::default(),
            gpus: (0..gpus)
                .map(|index| Gpu {
                    thermal: ThermalState::at_ambient(AMBIENT_CELSIUS),
                    meter: EnergyMeter::default(),
                    gain: noise.gain(u64::from(index)),
                })
                .collect(),
            workload: Workload {
                workload: "eadt/job".into(),
                generation: 1,
                layout: Layout {
                    replicas: Some(replicas),
                    mps_thread_percentage: Some(50),
                    world_size: Some(replicas),
                    local_world_size: Some(2),
                    ..Layout::default()
                },
                mode: UpdateMode::Enforce,
                gpus: Some(gpus),
                gpu_power_limit_watts: Some(board.board().power_limit_watts),
                backend: Some("gloo".into()),
                global_batch_size: Some(576),
                bounds: LayoutBounds { oversubscription_percentage_max: Some(200), ..LayoutBounds::default() },
                ..Workload::default()
            },
            second: 0,
            down: 0,
            pending: None,
            samples: 0.0,
            state: ControllerState::default(),
            actuation: None,
        }
    }

    fn energy(&self) -> f64 {
        self.gpus.iter().map(|gpu| gpu.meter.joules()).sum()
    }

    /// Advances the plant by a second. Returns whether a restart disturbed it.
    fn step(&mut self) -> bool {
        if let Some((_, decision)) = self.pending.take_if(|(when, _)| *when == self.second) {
            self.down = RESTART_SECONDS;
            self.workload.generation += 1;
            self.workload.layout = decision.to.clone();
            self.actuation = Some(Actuation {
                decision_id: decision.id,
                time: at(self.second),
                outcome: ActuationOutcome::Applied,
                layout: decision.to,
                generation: self.workload.generation,
                ..Actuation::default()
            });
        }
        let board = self.board.board();
        let profile = self.phases.at(f64::from(self.second)).0.profile;
        let (replicas, threads) = (self.workload.layout.replicas.unwrap(), self.workload.layout.mps_thread_percentage.unwrap());
        let per_gpu = replicas / self.gpus.len() as u32;
        let runners = vec![GpuProcess { profile, share: f64::from(threads) / 100.0 }; per_gpu as usize];
        let restarting = self.down > 0;
        let mut rates = Vec::new();
        for (index, gpu) in self.gpus.iter_mut().enumerate() {
            let celsius = gpu.thermal.celsius;
            let watts = if restarting {
                board.waiting_watts_at(celsius)
            } else {
                let steady = self.solver.solve(board, &runners, OperatingLimits::default(), celsius);
                rates.push(steady.samples_per_second.iter().sum());
                steady.power_watts
            };
            let reading = self.noise.reading(NoiseChannel::Power, index as u64, at(self.second).micros());
            gpu.meter.advance(watts * gpu.gain * reading, 1.0);
            gpu.thermal.advance(board, watts, AMBIENT_CELSIUS, 1.0);
        }
        if restarting {
            self.down -= 1;
        } else {
            self.samples += synchronised_rate(&rates, per_gpu) * self.noise.throughput(0, at(self.second).micros());
        }
        self.second += 1;
        restarting
    }

    /// Advances the plant by a window. Returns its decision.
    fn window(&mut self) -> Decision {
        let (energy, samples, start) = (self.energy(), self.samples, self.second);
        let mut restarted = false;
        for _ in 0..60 {
            restarted |= self.step();
        }
        let (energy, samples) = (self.energy() - energy, self.samples - samples);
        let gpus = self.gpus.len() as u32;
        let window = EfficiencyWindow {
            workload: "eadt/job".into(),
            window_start: at(start),
            window_end: at(self.second),
            origin: Origin::Simulated,
            energy_joules: Some(energy),
            energy_coverage_ratio: 1.0,
            samples: Some(samples),
            progress_coverage_ratio: 1.0,
            samples_per_second: Some(samples / 60.0),
            joules_per_sample: (samples > 0.0).then(|| energy / samples),
            mean_power_watts: Some(energy / 60.0),
            mean_power_per_gpu_watts: Some(energy / 60.0 / f64::from(gpus)),
            layout: Some(self.workload.layout.clone()),
            generation: Some(self.workload.generation),
            restarted,
            gpus,
            ..EfficiencyWindow::default()
        };
        let context = ControllerContext {
            workload: Some(&self.workload),
            last_actuation: self.actuation.as_ref(),
            remaining_seconds: None,
            checkpoint_time: None,
            training: None,
            settings: &ControllerSettings::default(),
            models: None,
        };
        let decision = decide(self.name, &mut self.state, &window, &context);
        if decision.action != ControllerAction::Maintain {
            assert!(self.pending.is_none(), "a change was decided while another one was on its way");
            self.pending = Some((self.second + DELAY_SECONDS, decision.clone()));
        }
        decision
    }

    /// Returns everything but plain `maintain`, over some hours.
    fn story(&mut self, hours: u32) -> Vec<Decision> {
        let mut decisions = Vec::new();
        for _ in 0..60 * hours {
            let decision = self.window();
            let news = decision.action != ControllerAction::Maintain
                || matches!(decision.validation, ChangeValidation::Kept | ChangeValidation::Failed);
            if news {
                let layout = (decision.to.replicas.unwrap(), decision.to.mps_thread_percentage.unwrap());
                println!("{} {:?} {layout:?} {:?}: {}", decision.time, decision.action, decision.validation, decision.reason);
                decisions.push(decision);
            }
        }
        decisions
    }
}

fn llm(noise: SimulationNoise) -> Job {
    Job::new(ControllerName::Matrix, BoardModel::A100, 3, llm_training_phases(), noise)
}

fn vision(noise: SimulationNoise) -> Job {
    Job::new(ControllerName::Matrix, BoardModel::H100, 2, vision_pretraining_phases(), noise)
}

fn count(story: &[Decision], action: ControllerAction) -> usize {
    story.iter().filter(|decision| decision.action == action).count()
}

fn kept(story: &[Decision]) -> usize {
    story.iter().filter(|decision| decision.validation == ChangeValidation::Kept).count()
}

#[test]
fn four_hours_show_decrease_scale_increase_revert_and_keep_whatever_the_noise() {
    for seed in 0..8 {
        let noise = SimulationNoise { seed, ..SimulationNoise::default() };
        println!("seed {seed}");
        let stories = [llm(noise).story(4), vision(noise).story(4)].concat();
        for action in
            [ControllerAction::Decrease, ControllerAction::ScaleReplicas, ControllerAction::Increase, ControllerAction::Revert]
        {
            assert!(count(&stories, action) > 0, "seed {seed} shows no {action:?}");
        }
        assert!(kept(&stories) > 0, "seed {seed} keeps nothing");
    }
}

/// Compares the matrix controller with doing nothing; without noise, so that the signs are the model's.
#[test]
fn kept_changes_save_energy_and_reverted_ones_cost() {
    let story = llm(SimulationNoise::none()).story(4);
    let gain = |decision: &Decision| decision.evidence["gain_ratio"];
    let verdicts: Vec<_> = story.iter().filter(|decision| decision.evidence.contains_key("gain_ratio")).collect();
    assert!(verdicts.iter().any(|decision| decision.validation == ChangeValidation::Kept && gain(decision) > 0.05));
    for decision in verdicts {
        let throughput = decision.evidence["throughput_ratio"];
        assert_eq!(decision.validation == ChangeValidation::Kept, gain(decision) >= 0.01 && throughput >= 0.9);
        assert_eq!(decision.action == ControllerAction::Revert, decision.validation == ChangeValidation::Failed);
    }
}

#[test]
fn the_same_seed_gives_the_same_story() {
    let noise = SimulationNoise { seed: 5, ..SimulationNoise::default() };
    assert_eq!(llm(noise).story(2), llm(noise).story(2));
    assert_ne!(llm(noise).story(2), llm(SimulationNoise { seed: 6, ..noise }).story(2));
}

/// The seed's table knows no way back: it moves the layout to the ends of its ranges and stays there.
#[test]
fn the_literal_matrix_never_reverts() {
    let mut job = Job { name: ControllerName::MatrixLiteral, ..llm(SimulationNoise::none()) };
    let story = job.story(4);
    assert_eq!(count(&story, ControllerAction::Revert) + kept(&story), 0);
    assert!(count(&story, ControllerAction::ScaleReplicas) + count(&story, ControllerAction::Decrease) > 0);
}
