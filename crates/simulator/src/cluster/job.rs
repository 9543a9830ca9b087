use eadt_cluster::ManagedWorkload;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{CounterScope, Decision, JobLifecycle, Layout, Origin, ShareMethod, TrainingProgress, Workload};
use serde::{Deserialize, Serialize};

use super::device::{COLLECTOR, GpuLoad, SimulatedGpu};
use super::placement::{GpuProcesses, JobPlacement, JobPlacements};
use super::training::{TrainingAdvance, TrainingState};
use super::{FastForwardTotals, Scenario, SimulatedEvent, WorkloadScenario};
use crate::gpu::{GpuProcess, OperatingLimits, SteadyStateCache, synchronised_rate};

/// A job, its GPUs, and the object that describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SimulatedJob {
    pub opted_in: bool,
    pub managed: ManagedWorkload,
    pub recommendation: Option<Box<Decision>>,
    /// The recommendation that a user approved, and that user's name; applied once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<RecommendationApproval>,
    /// Processes and the time from which they run, in order of time; `None` if none run. The first entry is in force.
    pub runs: Vec<(EventTime, Option<Layout>)>,
    /// Time at which the present generation becomes ready; `None` if it is ready, or never will be.
    pub ready_at: Option<EventTime>,
    pub restart_seconds: f64,
    /// Place among the workloads of the scenario.
    index: usize,
    devices: Vec<SimulatedGpu>,
    job: JobProgress,
    /// It held its GPUs when it was last reported.
    #[serde(default)]
    #[serde(rename = "seen")]
    held_gpus: bool,
    /// Number of times that it came to its GPUs.
    #[serde(default)]
    stays: u64,
}

/// An approval of a recommendation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RecommendationApproval {
    pub decision_id: String,
    pub by: String,
}

/// Progress of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct JobProgress {
    up: bool,
    finished: bool,
    samples: f64,
    /// Last speed, in samples per second.
    rate: f64,
    checkpoint_samples: f64,
    checkpoint_time: EventTime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    training: Option<TrainingState>,
}

impl SimulatedJob {
    pub fn new(scenario: &Scenario, workload: &WorkloadScenario, index: usize, first_device: u64, start: EventTime) -> Self {
        let board = workload.board.board();
        let layout = Layout {
            replicas: Some(workload.replicas),
            mps_thread_percentage: Some(workload.mps_thread_percentage),
            world_size: Some(workload.replicas),
            local_world_size: Some(workload.replicas.div_ceil(workload.gpus)),
            power_limit_watts: workload.power_limit_watts,
            ..Layout::default()
        };
        let node = format!("sim-node-{}", scenario.host(index) + 1);
        let state = Workload {
            time: start,
            workload: workload.name.clone(),
            origin: Origin::Simulated,
            kind: workload.kind.clone(),
            generation: 1,
            layout: layout.clone(),
            mode: workload.mode,
            paused: workload.paused,
            mode_set_by: None,
            pause_set_by: None,
            controller: workload.controller.clone(),
            controller_settings: workload.controller_settings.clone(),
            bounds: workload.bounds.clone(),
            gpus: Some(workload.gpus),
            gpu_model: Some(board.name.into()),
            gpu_power_limit_watts: Some(board.power_limit_watts),
            backend: Some(workload.backend.clone()),
            global_batch_size: Some(workload.global_batch_size),
            price_per_kwh: scenario.price_per_kwh,
            carbon_grams_per_kwh: scenario.carbon_grams_per_kwh,
            decision_id: None,
            ready_time: Some(start),
        };
        Self {
            opted_in: workload.opted_in,
            managed: ManagedWorkload {
                state,
                applied: None,
                mps_default_thread_percentage: Some(workload.mps_default_thread_percentage),
                restarts: vec![],
            },
            recommendation: None,
            approval: None,
            runs: vec![(start, Some(layout))],
            ready_at: None,
            restart_seconds: workload.restart_seconds,
            index,
            devices: (0..workload.gpus)
                .map(|gpu| {
                    SimulatedGpu::new(scenario.noise.seed, &node, gpu, first_device + u64::from(gpu), scenario.ambient_celsius)
                })
                .collect(),
            job: JobProgress {
                up: true,
                finished: false,
                samples: 0.0,
                rate: 0.0,
                checkpoint_samples: 0.0,
                checkpoint_time: start,
                training: workload.training.as_ref().map(|_| TrainingState::default()),
            },
            held_gpus: false,
            stays: 0,
        }
    }

    /// Returns the job's processes on its GPUs in the interval that starts at `begin`.
    pub fn present(&self, scenario: &Scenario, start: EventTime, begin: EventTime) -> JobPlacement {
        let config = &scenario.workloads[self.index];
        let elapsed = begin.seconds_since(start);
        let here = !self.job.finished && !config.is_away(elapsed);
        let run = self.runs.iter().rev().find(|(from, _)| *from <= begin).or(self.runs.first());
        let layout = run.and_then(|(_, layout)| layout.clone()).filter(|_| here);
        JobPlacement {
            host: scenario.host(self.index),
            holds_gpus: here,
            gpus: config.gpus,
            profile: config.profile_at(elapsed, layout.as_ref()),
            layout,
        }
    }

    /// Returns the processes that run from `begin` on, which the job notices.
    fn in_force(&mut self, start: EventTime, begin: EventTime, config: &WorkloadScenario) -> Option<Layout> {
        while self.runs.get(1).is_some_and(|(from, _)| *from <= begin) {
            self.runs.remove(0);
        }
        let away = config.is_away(begin.seconds_since(start));
        let layout = self.runs.first().and_then(|(_, layout)| layout.as_ref()).filter(|_| !self.job.finished && !away).cloned();
        self.job.start_or_stop(layout.is_some(), begin, config);
        layout
    }

    /// Returns the time after `begin` at which the job changes by itself: other processes run, or its next phase begins.
    pub fn next_change(&self, scenario: &Scenario, start: EventTime, begin: EventTime) -> Option<EventTime> {
        let run = self.runs.iter().map(|(from, _)| *from).find(|from| *from > begin);
        let (config, elapsed) = (&scenario.workloads[self.index], begin.seconds_since(start));
        let phase = config.schedule.at(elapsed).1.map(|end| start.plus_seconds(end));
        let absence = config.next_absence_edge(elapsed).map(|edge| start.plus_seconds(edge));
        [run, phase, absence].into_iter().flatten().filter(|time| *time > begin).min()
    }

    /// Goes on by `seconds` in which nothing changes by itself, and adds up what happens.
    pub fn fast_forward(
        &mut self,
        scenario: &Scenario,
        solver: &mut SteadyStateCache,
        start: EventTime,
        begin: EventTime,
        seconds: f64,
        into: &mut FastForwardTotals,
    ) {
        let config = &scenario.workloads[self.index];
        let (board, noise) = (config.board.board(), &scenario.noise);
        // Samples before the job notices a restart: those that the restart loses count.
        let samples = self.job.samples;
        let layout = self.in_force(start, begin, config);
        // Energy of its GPUs while it is away is not its own.
        let away = config.is_away(begin.seconds_since(start));
        let mut elsewhere = FastForwardTotals::default();
        let profile = config.profile_at(begin.seconds_since(start), layout.as_ref());
        let gpus = self.devices.len() as u32;
        let mut rates = Vec::with_capacity(self.devices.len());
        let mut most = 0;
        for (device, gpu) in self.devices.iter_mut().zip(0..) {
            let processes = layout.as_ref().map_or(0, |layout| processes_on(gpu, gpus, layout));
            let steady = layout.as_ref().filter(|_| processes > 0).map(|layout| {
                let share = f64::from(layout.mps_thread_percentage.unwrap_or(100)) / 100.0;
                let runners = vec![GpuProcess { profile, share }; processes as usize];
                let limits = OperatingLimits { clock_mhz: layout.sm_clock_mhz, power_watts: layout.power_limit_watts };
                solver.solve(board, &runners, limits, device.thermal.celsius)
            });
            let load = match steady {
                Some(steady) => {
                    rates.push(steady.samples_per_second.iter().sum());
                    most = most.max(processes);
                    GpuLoad::Running { steady, processes, memory_gib: profile.memory_gib }
                }
                None => GpuLoad::Waiting,
            };
            let part = if away { &mut elsewhere } else { &mut *into };
            device.fast_forward(board, noise, &load, scenario.ambient_celsius, begin, seconds, part);
        }
        if let Some(layout) = &layout {
            let speed = noise.throughput(self.index as u64, begin.micros());
            self.job.work(synchronised_rate(&rates, most) * speed, begin, seconds, start, config, layout);
        }
        into.samples += self.job.samples - samples;
        into.seconds += if away { 0.0 } else { seconds };
    }

    /// Advances by the interval of `seconds` that ends at `instant`, and emits the events of that time. `scene`: where jobs
    /// share GPUs.
    #[allow(clippy::too_many_arguments, reason = "what holds for all jobs, and who else is there")]
    pub fn advance(
        &mut self,
        scenario: &Scenario,
        solver: &mut SteadyStateCache,
        scene: Option<&JobPlacements>,
        start: EventTime,
        instant: EventTime,
        seconds: f64,
        into: &mut Vec<SimulatedEvent>,
    ) {
        let config = &scenario.workloads[self.index];
        let (board, noise, name) = (config.board.board(), &scenario.noise, config.name.as_str());
        let begin = instant.plus_seconds(-seconds);
        let layout = self.in_force(start, begin, config);
        let here = scene.is_none_or(|scene| scene.holds_gpus(self.index));
        let (arrives, leaves) = (here && !self.held_gpus, self.held_gpus && !here);
        self.held_gpus = here;
        self.stays += u64::from(arrives);

        let elapsed = instant.seconds_since(start);
        let profile = config.profile_at(begin.seconds_since(start), layout.as_ref());
        let gpus = self.devices.len() as u32;
        let mut rates = Vec::with_capacity(self.devices.len());
        let mut most = 0;
        for (device, gpu) in self.devices.iter_mut().zip(0..) {
            let processes = layout.as_ref().map_or(0, |layout| processes_on(gpu, gpus, layout));
            let company = scene.map_or_else(
                || GpuProcesses::alone(layout.as_ref(), profile, processes),
                |scene| scene.gpu_processes(self.index, gpu),
            );
            let steady = (!company.runners.is_empty())
                .then(|| solver.solve(board, &company.runners, company.limits, device.thermal.celsius));
            if processes > 0
                && let Some(steady) = steady
            {
                rates.push(steady.samples_per_second[company.own.clone()].iter().sum());
                most = most.max(processes);
            }
            let load = match steady {
                Some(steady) => {
                    GpuLoad::Running { steady, processes: company.runners.len() as u32, memory_gib: company.memory_gib }
                }
                None => GpuLoad::Waiting,
            };
            if scenario.resets(self.index, gpu, elapsed, seconds) {
                device.reset_counter();
            }
            device.advance(board, noise, &load, scenario.ambient_celsius, seconds);
            if (here || leaves) && !scenario.faults.iter().any(|fault| fault.silences(name, Some(gpu), elapsed)) {
                let mut sample = device.read(board, noise, &load, name, company.limits.power_watts, instant);
                if company.tenants > 1 {
                    sample.tenants = Some(company.tenants);
                    sample.share = Some(company.share(steady));
                    sample.share_method = Some(ShareMethod::ProcessUtilization);
                }
                if leaves {
                    // Energy from now on belongs to the other jobs.
                    (sample.last, sample.share) = (true, Some(0.0));
                }
                sample.tenure = Some(self.stays);
                into.push(SimulatedEvent::Telemetry(Box::new(sample)));
            }
        }
        let silent = scenario.faults.iter().any(|fault| fault.silences(name, None, elapsed));
        if leaves && !self.job.finished && !silent {
            let layout = self.managed.state.layout.clone();
            let report = self.job.report(config, &layout, instant, false, self.completed_request(begin));
            into.push(SimulatedEvent::Progress(Box::new(TrainingProgress { last: true, ..report })));
        }
        let Some(layout) = layout else { return };
        let speed = noise.throughput(self.index as u64, begin.micros());
        self.job.work(synchronised_rate(&rates, most) * speed, begin, seconds, start, config, &layout);
        let first = instant == start || (scene.is_some() && arrives && self.stays == 1);
        let due = instant.micros().rem_euclid(scenario.progress_interval_micros()) == 0;
        if (due || first || self.job.finished) && !silent {
            into.push(SimulatedEvent::Progress(Box::new(self.job.report(
                config,
                &layout,
                instant,
                first,
                self.completed_request(begin),
            ))));
        }
    }

    /// Returns the decision of the job's last request, if the job has followed it since `begin`.
    fn completed_request(&self, begin: EventTime) -> Option<&str> {
        let applied = self.managed.applied.as_ref()?;
        applied.ready_time.filter(|ready| *ready <= begin)?;
        applied.job_request().map(|_| applied.decision_id.as_str())
    }
}

/// Processes of a layout on one of the GPUs.
pub(super) fn processes_on(gpu: u32, gpus: u32, layout: &Layout) -> u32 {
    let replicas = layout.replicas.unwrap_or(gpus);
    replicas / gpus + u32::from(gpu < replicas % gpus)
}

impl JobProgress {
    /// Takes note of processes that came or went at `at`.
    fn start_or_stop(&mut self, up: bool, at: EventTime, config: &WorkloadScenario) {
        if self.up && !up && !self.finished {
            // A checkpoint is requested before the restart; work done while it was being written is lost.
            let saved_samples = self.samples - self.rate * config.lost_work_seconds;
            if saved_samples > self.checkpoint_samples {
                self.checkpoint_samples = saved_samples;
                self.checkpoint_time = at.plus_seconds(-config.lost_work_seconds);
            }
        } else if !self.up && up {
            self.samples = self.checkpoint_samples;
        }
        self.up = up;
    }

    #[allow(clippy::too_many_arguments, reason = "the interval, and what runs in it")]
    fn work(&mut self, rate: f64, begin: EventTime, seconds: f64, start: EventTime, config: &WorkloadScenario, layout: &Layout) {
        let before = self.samples;
        let checkpoints = |time: EventTime| (time.seconds_since(start) / config.checkpoint_seconds).floor();
        let end = begin.plus_seconds(seconds);
        self.rate = rate;
        self.samples += rate * seconds;
        if let Some(planned) = config.planned_samples.filter(|planned| self.samples >= *planned) {
            self.samples = planned;
            self.finished = true;
        }
        if checkpoints(end) > checkpoints(begin) {
            self.checkpoint_samples = self.samples;
            self.checkpoint_time = end;
        }
        if let (Some(state), Some(training)) = (&mut self.training, &config.training) {
            let evaluations = |time: EventTime| (time.seconds_since(start) / training.evaluation_seconds).floor();
            let batch = f64::from(config.global_batch_size);
            let now = TrainingAdvance {
                steps: self.samples / batch,
                new_steps: (self.samples - before) / batch,
                done: self.samples / config.planned_samples.unwrap_or(f64::INFINITY),
                evaluates: evaluations(end) > evaluations(begin),
            };
            state.work(training, layout, now);
        }
    }

    fn report(
        &self,
        config: &WorkloadScenario,
        layout: &Layout,
        time: EventTime,
        first: bool,
        followed: Option<&str>,
    ) -> TrainingProgress {
        let steps = self.samples / f64::from(config.global_batch_size);
        let remaining = config.planned_samples.map(|planned| planned - self.samples);
        let report = TrainingProgress {
            time,
            workload: config.name.clone(),
            rank: 0,
            collector: COLLECTOR.into(),
            scope: CounterScope::Global,
            origin: Origin::Simulated,
            phase: match (first, self.finished) {
                (true, _) => JobLifecycle::Started,
                (_, true) => JobLifecycle::Finished,
                _ => JobLifecycle::Progress,
            },
            last: self.finished,
            samples_total: Some(self.samples),
            tokens_total: config.tokens_per_sample.map(|tokens| self.samples * tokens),
            steps_total: Some(steps.floor()),
            // The shape of a language model's loss over its steps.
            loss: Some(1.8 + 9.0 / (1.0 + steps / 50.0).sqrt()),
            checkpoint_time: Some(self.checkpoint_time),
            steps_remaining: remaining.map(|samples| (samples / f64::from(config.global_batch_size)).ceil()),
            remaining_seconds: remaining.filter(|_| self.rate > 0.0).map(|samples| samples / self.rate),
            global_batch_size: Some(config.global_batch_size),
            world_size: layout.world_size,
            backend: Some(config.backend.clone()),
            precision: Some("bf16".into()),
            mps_thread_percentage: layout.mps_thread_percentage,
            ..TrainingProgress::default()
        };
        match (&self.training, &config.training) {
            (Some(state), Some(training)) => {
                let done = self.samples / config.planned_samples.unwrap_or(f64::INFINITY);
                state.report(training, layout, steps, done, followed, report)
            }
            _ => report,
        }
    }
}
