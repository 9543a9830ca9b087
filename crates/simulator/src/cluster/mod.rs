//! The simulated cluster: jobs on GPUs, and the objects that describe them.

mod device;
mod follow;
mod job;
mod object;
mod placement;
mod scenario;
mod training;

use eadt_cluster::{ApprovedDecision, ClusterError, ManagedWorkload, PolicyEdit, RollbackRequest, WorkloadChange};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Decision, GpuTelemetry, TrainingProgress};
use serde::{Deserialize, Serialize};

use crate::gpu::SteadyStateCache;
use job::SimulatedJob;
use placement::JobPlacements;
pub use scenario::{Fault, JobSuspension, Scenario, ScenarioError, WorkloadScenario};
pub use training::TrainingScenario;

/// An event that the cluster reports.
#[derive(Debug, Clone, PartialEq)]
pub enum SimulatedEvent {
    Telemetry(Box<GpuTelemetry>),
    Progress(Box<TrainingProgress>),
}

impl SimulatedEvent {
    pub fn time(&self) -> EventTime {
        match self {
            Self::Telemetry(event) => event.time,
            Self::Progress(event) => event.time,
        }
    }
}

/// The totals of one workload over a stretch of time that was passed over without samples; sums over its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FastForwardTotals {
    /// Length of the stretch, the time in which the job was away apart.
    pub seconds: f64,
    /// The energy that was really drawn.
    pub energy_joules: f64,
    /// The energy that instruments with the scenario's noise report.
    pub metered_joules: f64,
    /// Samples at the end minus those at the beginning, and minus those lost in a restart.
    pub samples: f64,
    /// Time integrals of the activity ratios, of the clock, and the time in which processes ran, over GPUs.
    pub sm_active_seconds: f64,
    pub dram_active_seconds: f64,
    pub clock_mhz_seconds: f64,
    pub busy_seconds: f64,
    /// Hottest GPU.
    pub celsius_max: f64,
}

/// A glide takes no longer steps than this: temperatures and the unevenness of the jobs change meanwhile.
const FAST_FORWARD_STEP_SECONDS: f64 = 60.0;

/// Jobs, GPUs and objects at one instant of simulated time. Serialising it and going on from the copy gives the same
/// events, bit for bit.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClusterSimulation {
    scenario: Scenario,
    start: EventTime,
    /// Instants reported so far.
    reported: u64,
    workloads: Vec<SimulatedJob>,
    #[serde(skip)]
    solver: SteadyStateCache,
    /// It is passed over without samples.
    #[serde(skip)]
    fast_forwarding: bool,
}

impl ClusterSimulation {
    /// Returns a cluster that begins at `start`, which must be a whole multiple of the sample interval since the epoch.
    pub fn new(scenario: Scenario, start: EventTime) -> Result<Self, ScenarioError> {
        scenario.check()?;
        let interval = scenario.sample_interval_micros();
        if start.micros().rem_euclid(interval) != 0 {
            return Err(ScenarioError::new(format!("the start {start} is not on a sample of the interval {interval} µs")));
        }
        let mut devices = 0;
        let mut first_devices: Vec<u64> = Vec::with_capacity(scenario.workloads.len());
        let workloads = scenario
            .workloads
            .iter()
            .enumerate()
            .map(|(index, workload)| {
                let host = scenario.host(index);
                let first = first_devices.get(host).copied().unwrap_or(devices);
                first_devices.push(first);
                devices += if host == index { u64::from(workload.gpus) } else { 0 };
                SimulatedJob::new(&scenario, workload, index, first, start)
            })
            .collect();
        Ok(Self { scenario, start, reported: 0, workloads, solver: SteadyStateCache::default(), fast_forwarding: false })
    }

    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub fn start(&self) -> EventTime {
        self.start
    }

    /// Returns the next instant to be reported: everything before it was.
    pub fn now(&self) -> EventTime {
        self.instant(self.reported)
    }

    fn instant(&self, index: u64) -> EventTime {
        self.start.plus_micros(index as i64 * self.scenario.sample_interval_micros())
    }

    /// Returns the first instant that is not before `time`.
    pub fn instant_at_or_after(&self, time: EventTime) -> EventTime {
        let interval = self.scenario.sample_interval_micros();
        let behind = (time.micros() - self.start.micros()).max(0);
        self.start.plus_micros((behind + interval - 1) / interval * interval)
    }

    /// Goes on up to `to` and reports every instant before it, in order of time.
    ///
    /// An instant's figures are of the interval that ends with it, so a change that is applied now does not show in the
    /// instant at now, but from then on.
    ///
    /// # Panics
    /// After [`Self::fast_forward`].
    pub fn step(&mut self, to: EventTime, into: &mut Vec<SimulatedEvent>) {
        assert!(!self.fast_forwarding, "a cluster that glides reports no samples");
        while self.now() < to {
            let instant = self.now();
            let seconds = if self.reported == 0 { 0.0 } else { self.scenario.sample_interval_seconds };
            let scene = self.scenario.shares_gpus().then(|| {
                let begin = instant.plus_seconds(-seconds);
                JobPlacements::new(self.workloads.iter().map(|workload| workload.present(&self.scenario, self.start, begin)))
            });
            for workload in &mut self.workloads {
                workload.advance(&self.scenario, &mut self.solver, scene.as_ref(), self.start, instant, seconds, into);
            }
            self.reported += 1;
        }
        let now = self.now();
        for workload in &mut self.workloads {
            workload.update_readiness(now);
        }
    }

    /// Goes on up to `to`, which must be an instant, without samples: in steps of up to a minute, cut where something changes.
    /// Adds what each workload did to its place in `into`, in the order of the scenario.
    ///
    /// Instruments do not fail here: faults that only silence them, or reset a counter, show no effect.
    ///
    /// # Panics
    /// If `into` has not a place for each workload, after [`Self::step`] (a cluster either reports or glides), or if GPUs are
    /// shared ([`Scenario::has_tenants`]): each job is passed over by itself.
    pub fn fast_forward(&mut self, to: EventTime, into: &mut [FastForwardTotals]) {
        assert_eq!(into.len(), self.workloads.len(), "one place for each workload");
        assert!(!self.scenario.has_tenants(), "jobs that share GPUs cannot be passed over one by one");
        assert!(self.fast_forwarding || self.reported == 0, "a cluster that reported samples cannot glide");
        self.fast_forwarding = true;
        let bucket = (self.scenario.noise.throughput_seconds.clamp(0.001, FAST_FORWARD_STEP_SECONDS) * 1e6) as i64;
        let end = self.instant_at_or_after(to);
        let interval = self.scenario.sample_interval_micros();
        for (workload, into) in self.workloads.iter_mut().zip(into) {
            let mut begin = self.start.plus_micros(self.reported as i64 * interval);
            while begin < end {
                let even = workload.next_change(&self.scenario, self.start, begin);
                let next_bucket = EventTime::from_micros((begin.micros().div_euclid(bucket) + 1) * bucket);
                let on_instant = |time: EventTime| {
                    let behind = (time.micros() - self.start.micros()).max(0);
                    self.start.plus_micros((behind + interval - 1) / interval * interval)
                };
                let cut = even.into_iter().chain([next_bucket]).map(on_instant);
                let stop = cut.filter(|time| *time > begin).fold(end, EventTime::min);
                let seconds = stop.seconds_since(begin);
                workload.fast_forward(&self.scenario, &mut self.solver, self.start, begin, seconds, into);
                begin = stop;
            }
            workload.update_readiness(end);
        }
        self.reported = ((end.micros() - self.start.micros()) / interval) as u64;
    }

    /// Puts any layout in force now, without a restart. For an ideal comparison, not for the behaviour of a cluster.
    pub fn replace(&mut self, workload: &str, layout: &eadt_schemas::v1::Layout) -> Result<ManagedWorkload, ClusterError> {
        let now = self.now();
        Ok(self.find(workload)?.substitute(layout, now))
    }

    /// Returns the next time after now at which an object changes by itself or a rollout runs out of time, on an instant.
    pub fn next_transition(&self) -> Option<EventTime> {
        let now = self.now();
        let times = self.workloads.iter().flat_map(SimulatedJob::transitions);
        times.filter(|time| *time > now).min().map(|time| self.instant_at_or_after(time))
    }

    /// Returns the workloads that opted in.
    pub fn managed(&self) -> Vec<ManagedWorkload> {
        self.workloads.iter().filter(|w| w.opted_in).map(|w| w.managed.clone()).collect()
    }

    /// Returns the names of all workloads, those that did not opt in included.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.workloads.iter().map(|w| w.managed.state.workload.as_str())
    }

    /// Writes a change as an API server does; takes effect now. Errors: see [`eadt_cluster::Cluster::apply`].
    pub fn apply(&mut self, change: &WorkloadChange) -> Result<ManagedWorkload, ClusterError> {
        let now = self.now();
        let never_ready = self.scenario.faults.iter().any(|fault| fault.never_ready(&change.workload, self.start, now));
        let config = self.scenario.workloads.iter().find(|workload| workload.name == change.workload);
        let training = config.and_then(|workload| workload.training.clone());
        self.find(&change.workload)?.apply(change, now, never_ready, training.as_ref())
    }

    /// Restores the layout before a change; takes effect now.
    pub fn roll_back(&mut self, roll_back: &RollbackRequest) -> Result<ManagedWorkload, ClusterError> {
        let now = self.now();
        self.find(&roll_back.workload)?.roll_back(roll_back, now)
    }

    /// Keeps a recommendation beside its workload.
    pub fn recommend(&mut self, decision: &Decision) -> Result<(), ClusterError> {
        self.find(&decision.workload)?.recommendation = Some(Box::new(decision.clone()));
        Ok(())
    }

    /// Changes the policy of a workload in the name of a user. Returns `false` if it was so already.
    pub fn change_terms(&mut self, workload: &str, change: &PolicyEdit, by: &str) -> Result<bool, ClusterError> {
        let now = self.now();
        self.find(workload)?.change_terms(change, by, now)
    }

    /// Returns the recommendations that users approved and that are still recommended.
    pub fn approved(&self) -> Vec<ApprovedDecision> {
        self.workloads.iter().filter_map(SimulatedJob::approved).collect()
    }

    /// Returns the last recommendation for a workload.
    pub fn recommendation(&self, workload: &str) -> Option<&Decision> {
        self.workloads.iter().find(|w| w.managed.state.workload == workload)?.recommendation.as_deref()
    }

    fn find(&mut self, workload: &str) -> Result<&mut SimulatedJob, ClusterError> {
        self.workloads
            .iter_mut()
            .find(|w| w.opted_in && w.managed.state.workload == workload)
            .ok_or_else(|| ClusterError::not_managed(workload))
    }
}

#[cfg(test)]
mod tests;
