use eadt_schemas::EventTime;
use eadt_schemas::v1::{Layout, LayoutBounds, UpdateMode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TrainingScenario;
use crate::gpu::{BoardModel, PhaseSchedule, SimulationNoise, WorkloadProfile, llm_training_phases, vision_pretraining_phases};

/// A simulated cluster and its jobs. The default is the seed's initial configuration and a power-heavy second job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Distance of two samples of a GPU in seconds, in whole milliseconds. 0.001 to 60. Default 1.
    pub sample_interval_seconds: f64,
    /// Distance of two progress events of a job in seconds, aligned to the epoch; a multiple of the sample interval.
    /// Default 5.
    pub progress_interval_seconds: f64,
    /// Temperature of the air in °C. -50 to 80. Default 30.
    pub ambient_celsius: f64,
    /// Price of electricity in currency units per kWh. Default 0.25.
    pub price_per_kwh: Option<f64>,
    /// Carbon intensity in g CO₂ per kWh. Default 380.
    pub carbon_grams_per_kwh: Option<f64>,
    /// Measurement noise, the jobs' own unevenness, and the seed of both.
    pub noise: SimulationNoise,
    /// The jobs; each has GPUs of its own, unless it shares those of another one.
    pub workloads: Vec<WorkloadScenario>,
    /// Faults and their times. Default: none.
    pub faults: Vec<Fault>,
}

/// One simulated training job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct WorkloadScenario {
    /// `namespace/name`.
    pub name: String,
    /// Kubernetes kind. Default `StatefulSet`.
    pub kind: String,
    /// Whether it may be managed at all. Default true.
    pub opted_in: bool,
    /// Default `enforce`.
    pub mode: UpdateMode,
    /// Default false.
    pub paused: bool,
    /// Controller by name; absent: the processor's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<String>,
    /// Settings of the controller, by their names in `processor.controller_settings`; what is not named has its default. Absent:
    /// the processor's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller_settings: Option<serde_json::Map<String, serde_json::Value>>,
    /// `V100`, `A100`, `H100` or `H200`. Default `A100`.
    pub board: BoardModel,
    /// Number of GPUs. 1 to 10,000. Default 3.
    pub gpus: u32,
    /// Training processes at the start, spread evenly over the GPUs. At least 1. Default 6.
    pub replicas: u32,
    /// Thread percentage of each process at the start. 1 to 100. Default 50.
    pub mps_thread_percentage: u32,
    /// The node's MPS default; no process gets more. 1 to 100. Default 100.
    pub mps_default_thread_percentage: u32,
    /// Power cap of each GPU at the start in watts; absent: the board's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    /// Default `gloo`.
    pub backend: String,
    /// Samples of one step over all processes. At least 1. Default 576.
    pub global_batch_size: u32,
    /// Tokens of one sample; absent: the job counts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_sample: Option<f64>,
    /// The job ends after so many samples; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned_samples: Option<f64>,
    /// From the end of the old processes to readiness of the new ones, in seconds. 0 to 86,400. Default 120.
    pub restart_seconds: f64,
    /// Work that a restart loses because the checkpoint before it is that old, in seconds. 0 to 86,400. Default 60.
    pub lost_work_seconds: f64,
    /// The job writes a checkpoint this often, in seconds. Above 0. Default 600.
    pub checkpoint_seconds: f64,
    pub bounds: LayoutBounds,
    /// Name of a job further up whose GPUs this one shares under MPS: of the same board, and as many. Absent: it has its own. The
    /// least of their power caps and clocks is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares_gpus_of: Option<String>,
    /// When the job is suspended: it has no processes and holds no GPU. In order. Default: never.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub away: Vec<JobSuspension>,
    /// Phases of the job.
    pub schedule: PhaseSchedule,
    /// How it trains: loss, plasticity, frozen layers and precision; needs `planned_samples`. Absent: it reports a loss only, and
    /// follows no directives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingScenario>,
}

/// A time in which a job is suspended, in seconds since the start of the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobSuspension {
    /// From this time on it is away. At least 0, and not before the end of the absence before it.
    pub from_seconds: f64,
    /// From this time on it is back. After `from_seconds`.
    pub until_seconds: f64,
}

/// A fault; times are seconds since the start of the simulation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Changes applied from `from_seconds` to `until_seconds` after the start never become ready.
    NeverReady { workload: String, from_seconds: f64, until_seconds: f64 },
    /// A GPU of the job cannot be read from `from_seconds` to `until_seconds` (absent: ever after) after the start; the job on it
    /// goes on.
    DeviceLost {
        workload: String,
        gpu: u32,
        from_seconds: f64,
        #[serde(default)]
        until_seconds: Option<f64>,
    },
    /// The energy counter of a GPU of the job begins at 0 again `at_seconds` after the start, for all jobs that share the GPU.
    CounterReset { workload: String, gpu: u32, at_seconds: f64 },
    /// Neither GPUs nor job report anything from `from_seconds` to `until_seconds` after the start.
    Gap { workload: String, from_seconds: f64, until_seconds: f64 },
}

impl Fault {
    fn workload(&self) -> &str {
        match self {
            Self::NeverReady { workload, .. }
            | Self::DeviceLost { workload, .. }
            | Self::CounterReset { workload, .. }
            | Self::Gap { workload, .. } => workload,
        }
    }

    pub(super) fn never_ready(&self, of: &str, start: EventTime, now: EventTime) -> bool {
        let elapsed = now.seconds_since(start);
        matches!(self, Self::NeverReady { workload, from_seconds, until_seconds }
            if workload == of && (*from_seconds..*until_seconds).contains(&elapsed))
    }

    /// Returns whether no event of this device (`None` for the job itself) is emitted at this instant.
    pub(super) fn silences(&self, of: &str, device: Option<u32>, elapsed: f64) -> bool {
        match self {
            Self::Gap { workload, from_seconds, until_seconds } => {
                workload == of && (*from_seconds..*until_seconds).contains(&elapsed)
            }
            Self::DeviceLost { workload, gpu, from_seconds, until_seconds } => {
                workload == of
                    && device == Some(*gpu)
                    && elapsed >= *from_seconds
                    && until_seconds.is_none_or(|until| elapsed < until)
            }
            _ => false,
        }
    }

    /// The counter of this device of a job is reset in the interval of `seconds` that ends at `elapsed`.
    fn resets(&self, device: u32, elapsed: f64, seconds: f64) -> Option<&str> {
        match self {
            Self::CounterReset { workload, gpu, at_seconds }
                if *gpu == device && (elapsed - seconds..elapsed).contains(at_seconds) =>
            {
                Some(workload)
            }
            _ => None,
        }
    }
}

impl Default for Scenario {
    fn default() -> Self {
        let llm =
            WorkloadScenario { name: "eadt/llm-training".into(), tokens_per_sample: Some(1024.0), ..WorkloadScenario::default() };
        let vision = WorkloadScenario {
            name: "eadt/vision-pretraining".into(),
            board: BoardModel::H100,
            gpus: 2,
            replicas: 4,
            schedule: vision_pretraining_phases(),
            ..WorkloadScenario::default()
        };
        Self {
            sample_interval_seconds: 1.0,
            progress_interval_seconds: 5.0,
            ambient_celsius: 30.0,
            price_per_kwh: Some(0.25),
            carbon_grams_per_kwh: Some(380.0),
            noise: SimulationNoise::default(),
            workloads: vec![llm, vision],
            faults: vec![],
        }
    }
}

impl Default for WorkloadScenario {
    fn default() -> Self {
        Self {
            name: "eadt/training".into(),
            kind: "StatefulSet".into(),
            opted_in: true,
            mode: UpdateMode::Enforce,
            paused: false,
            controller: None,
            controller_settings: None,
            board: BoardModel::A100,
            gpus: 3,
            replicas: 6,
            mps_thread_percentage: 50,
            mps_default_thread_percentage: 100,
            power_limit_watts: None,
            backend: "gloo".into(),
            global_batch_size: 576,
            tokens_per_sample: None,
            planned_samples: None,
            restart_seconds: 120.0,
            lost_work_seconds: 60.0,
            checkpoint_seconds: 600.0,
            bounds: LayoutBounds { oversubscription_percentage_max: Some(200), ..LayoutBounds::default() },
            shares_gpus_of: None,
            away: vec![],
            schedule: llm_training_phases(),
            training: None,
        }
    }
}

impl WorkloadScenario {
    /// Returns a job of one profile.
    pub fn constant(name: &str, profile: WorkloadProfile) -> Self {
        Self { name: name.into(), schedule: PhaseSchedule::constant("constant", profile), ..Self::default() }
    }
}

/// A scenario that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("scenario: {detail}")]
pub struct ScenarioError {
    detail: String,
}

impl ScenarioError {
    pub(super) fn new(detail: impl Into<String>) -> Self {
        Self { detail: detail.into() }
    }
}

impl Scenario {
    /// Returns the time between two samples, in microseconds. A simulation starts on a multiple of it.
    pub fn sample_interval_micros(&self) -> i64 {
        (self.sample_interval_seconds * 1000.0).round() as i64 * 1000
    }

    pub(super) fn progress_interval_micros(&self) -> i64 {
        (self.progress_interval_seconds * 1000.0).round() as i64 * 1000
    }

    /// Returns whether jobs share GPUs, so that their figures depend on each other.
    pub fn shares_gpus(&self) -> bool {
        self.workloads.iter().any(|workload| workload.shares_gpus_of.is_some() || !workload.away.is_empty())
    }

    /// Returns whether any job has the GPUs of another one.
    pub fn has_tenants(&self) -> bool {
        self.workloads.iter().any(|workload| workload.shares_gpus_of.is_some())
    }

    /// Returns the place of the workload whose GPUs a workload has.
    pub(super) fn host(&self, index: usize) -> usize {
        let host = self.workloads.get(index).and_then(|workload| workload.shares_gpus_of.as_ref());
        host.and_then(|host| self.workloads.iter().position(|other| other.name == *host)).unwrap_or(index)
    }

    /// Returns whether the counter of a workload's device is reset in the interval of `seconds` that ends at `elapsed`: a fault
    /// names one of the workloads that share the device.
    pub(super) fn resets(&self, index: usize, device: u32, elapsed: f64, seconds: f64) -> bool {
        let place = |of: &str| self.workloads.iter().position(|workload| workload.name == of);
        let mut named = self.faults.iter().filter_map(|fault| place(fault.resets(device, elapsed, seconds)?));
        named.any(|other| self.host(other) == self.host(index))
    }

    /// Checks the scenario; the error is the first fault, with the field.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let fail = |detail: String| Err(ScenarioError { detail });
        within("sample_interval_seconds", self.sample_interval_seconds, 0.001, 60.0)?;
        within("progress_interval_seconds", self.progress_interval_seconds, 0.001, 3600.0)?;
        within("ambient_celsius", self.ambient_celsius, -50.0, 80.0)?;
        within("noise.power_ratio", self.noise.power_ratio, 0.0, 0.2)?;
        within("noise.gain_ratio", self.noise.gain_ratio, 0.0, 0.2)?;
        within("noise.activity_ratio", self.noise.activity_ratio, 0.0, 0.2)?;
        within("noise.throughput_ratio", self.noise.throughput_ratio, 0.0, 0.2)?;
        within("noise.throughput_seconds", self.noise.throughput_seconds, 0.001, 1e6)?;
        if self.progress_interval_micros() % self.sample_interval_micros() != 0 {
            return fail("progress_interval_seconds is not a multiple of sample_interval_seconds".into());
        }
        for (index, workload) in self.workloads.iter().enumerate() {
            let name = &workload.name;
            if self.workloads[..index].iter().any(|other| other.name == *name) {
                return fail(format!("workload {name} appears twice"));
            }
            if let Err(refusal) = eadt_schemas::decode::workload(name) {
                return fail(format!("workload {name:?}: {}", refusal.detail));
            }
            workload.check().map_err(|error| ScenarioError { detail: format!("workload {name}: {}", error.detail) })?;
            if let Some(host) = &workload.shares_gpus_of {
                let Some(host) = self.workloads[..index].iter().find(|other| other.name == *host) else {
                    return fail(format!("workload {name}: shares_gpus_of names {host}, which is no workload before it"));
                };
                if host.shares_gpus_of.is_some() {
                    return fail(format!("workload {name}: shares_gpus_of names {}, which has no GPUs of its own", host.name));
                }
                if (host.board, host.gpus) != (workload.board, workload.gpus) {
                    return fail(format!("workload {name} shares the GPUs of {}: give both the same board and gpus", host.name));
                }
            }
        }
        for fault in &self.faults {
            let Some(workload) = self.workloads.iter().find(|w| w.name == fault.workload()) else {
                return fail(format!("a fault names the unknown workload {}", fault.workload()));
            };
            if let Fault::DeviceLost { gpu, .. } | Fault::CounterReset { gpu, .. } = fault
                && *gpu >= workload.gpus
            {
                return fail(format!("a fault names GPU {gpu} of {}, which has {}", workload.name, workload.gpus));
            }
        }
        Ok(())
    }
}

impl WorkloadScenario {
    /// Returns the job's profile after so many seconds, in this layout.
    pub(super) fn profile_at(&self, elapsed_seconds: f64, layout: Option<&Layout>) -> WorkloadProfile {
        let profile = self.schedule.at(elapsed_seconds).0.profile;
        self.training.as_ref().map_or(profile, |training| training.profile_with_frozen_layers(profile, layout))
    }

    pub(super) fn is_away(&self, elapsed_seconds: f64) -> bool {
        self.away.iter().any(|absence| (absence.from_seconds..absence.until_seconds).contains(&elapsed_seconds))
    }

    /// Returns the seconds after the start of the simulation at which it next leaves or comes back, after so many.
    pub(super) fn next_absence_edge(&self, elapsed_seconds: f64) -> Option<f64> {
        let edges = self.away.iter().flat_map(|absence| [absence.from_seconds, absence.until_seconds]);
        edges.filter(|edge| *edge > elapsed_seconds).reduce(f64::min)
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let u = |value: u32| f64::from(value);
        for (name, value, low, high) in [
            ("gpus", u(self.gpus), 1.0, 10_000.0),
            ("replicas", u(self.replicas), 1.0, 100_000.0),
            ("mps_thread_percentage", u(self.mps_thread_percentage), 1.0, u(self.mps_default_thread_percentage)),
            ("mps_default_thread_percentage", u(self.mps_default_thread_percentage), 1.0, 100.0),
            ("global_batch_size", u(self.global_batch_size), 1.0, 1e9),
            ("power_limit_watts", self.power_limit_watts.unwrap_or(1.0), 1.0, self.board.board().power_limit_watts),
            ("tokens_per_sample", self.tokens_per_sample.unwrap_or(1.0), 0.0, 1e9),
            ("planned_samples", self.planned_samples.unwrap_or(1.0), 1.0, 1e15),
            ("restart_seconds", self.restart_seconds, 0.0, 86_400.0),
            ("lost_work_seconds", self.lost_work_seconds, 0.0, 86_400.0),
            ("checkpoint_seconds", self.checkpoint_seconds, 0.001, 1e9),
        ] {
            within(name, value, low, high)?;
        }
        if let Some(training) = &self.training {
            for (name, value, low, high) in training.ranges() {
                within(name, value, low, high)?;
            }
            within("training.learning_rate", training.learning_rate, 1e-12, 1e3)?;
            if self.planned_samples.is_none() {
                return Err(ScenarioError { detail: "training needs planned_samples: how far a job is depends on them".into() });
            }
        }
        let mut last = 0.0;
        for JobSuspension { from_seconds, until_seconds } in &self.away {
            if !(last <= *from_seconds && from_seconds < until_seconds && until_seconds.is_finite()) {
                let detail = format!("away from {from_seconds} until {until_seconds} s is no time after {last} s");
                return Err(ScenarioError { detail });
            }
            last = *until_seconds;
        }
        self.schedule.check().map_err(|detail| ScenarioError { detail: format!("schedule: {detail}") })
    }
}

fn within(field: &str, value: f64, low: f64, high: f64) -> Result<(), ScenarioError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(ScenarioError { detail: format!("{field} is {value}, but must be within {low} and {high}") })
}
