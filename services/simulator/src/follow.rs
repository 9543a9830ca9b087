//! Simulates the GPUs under the workloads of a real cluster: their power follows the pods that the cluster really runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, Producer, Remedy};
use eadt_cluster::Cluster;
use eadt_schemas::Topic;
use eadt_service::http::ReadinessFlag;
use eadt_service::{MetricsRegistry, Shutdown};
use eadt_simulator::{ClusterSimulation, Scenario};

use crate::driver::SimulatorError;
use crate::metrics::SimulatorMetrics;
use crate::{SimClock, SimulationSpeed, SimulatorSettings, records};

const TICK: Duration = Duration::from_millis(50);
/// Time for records that are in flight at the end.
const FLUSH: Duration = Duration::from_secs(10);

/// The part that runs. It keeps no state: started again, its jobs begin anew.
#[derive(Debug)]
pub struct ClusterMirror {
    settings: SimulatorSettings,
    clock: SimClock,
    cluster: Arc<dyn Cluster>,
}

impl ClusterMirror {
    /// `clock` shows its time; `cluster` reports which workloads run. The scenario's workloads are taken by their names for the
    /// known facts of jobs; only those run that the cluster has.
    pub fn new(settings: SimulatorSettings, clock: SimClock, cluster: Arc<dyn Cluster>) -> Result<Self, SimulatorError> {
        settings.check().map_err(SimulatorError::Settings)?;
        Ok(Self { settings, clock, cluster })
    }

    /// Runs until `shutdown`, or until its duration is over; blocks, so give it a thread.
    pub fn run(
        self,
        bus: &dyn Bus,
        shutdown: &Shutdown,
        metrics: &MetricsRegistry,
        ready: &ReadinessFlag,
    ) -> Result<(), SimulatorError> {
        let SimulationSpeed::Times(speed) = self.settings.speed else { return Err(SimulatorError::NoSpeed) };
        let metrics = SimulatorMetrics::new(metrics);
        let [telemetry, progress] = [Topic::GpuTelemetry, Topic::TrainingProgress]
            .map(|topic| -> Arc<str> { format!("{}{topic}", self.settings.prefix).into() });
        let mut producer = bus.producer("simulator")?;
        let jobs = self.settings.scenario.workloads.clone();
        let template = |name: &str| jobs.iter().find(|job| job.name == name).cloned().unwrap_or_default();
        let scenario = Scenario { workloads: Vec::new(), faults: Vec::new(), ..self.settings.scenario.clone() };
        let mut plant = ClusterSimulation::new(scenario, self.settings.aligned_start())?;
        let (start, began) = (plant.now(), Instant::now());
        let mut revision = None;
        let mut events = Vec::new();
        while !shutdown.is_cancelled() {
            let elapsed = began.elapsed().as_secs_f64() * speed;
            if self.settings.duration_seconds.is_some_and(|duration| elapsed >= duration) {
                tracing::info!(seconds = elapsed, "the simulation's duration is over");
                break;
            }
            let now = start.plus_seconds(elapsed);
            if revision != Some(self.cluster.revision()) {
                let read_revision = self.cluster.revision();
                match self.cluster.workloads() {
                    Ok(workloads) => {
                        plant.follow(&workloads, template);
                        revision = Some(read_revision);
                        ready.set(true);
                    }
                    Err(error) => tracing::debug!(%error, "the cluster cannot be read"),
                }
            }
            plant.step(now, &mut events);
            self.clock.set(now);
            for event in events.drain(..) {
                send(&mut *producer, || records::event(&telemetry, &progress, &event), shutdown)?;
                metrics.events.inc();
            }
            metrics.simulated_seconds.set(elapsed);
            std::thread::sleep(TICK);
        }
        producer.flush(FLUSH)?;
        Ok(())
    }
}

/// Hands a record over; waits while the buffer is full.
fn send(producer: &mut dyn Producer, record: impl Fn() -> eadt_bus::ProducerRecord, shutdown: &Shutdown) -> Result<(), BusError> {
    while !shutdown.is_cancelled() {
        match producer.send(record()) {
            Err(error) if error.remedy == Remedy::Retry => std::thread::sleep(TICK),
            result => return result,
        }
    }
    Ok(())
}
