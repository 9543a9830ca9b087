//! Simulates the GPUs under the workloads of a real cluster: their power follows the pods that the cluster really runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, Producer, Remedy};
use eadt_cluster::Cluster;
use eadt_schemas::{EventTime, Topic};
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
        // The clock goes with that of the cluster; only samples are aligned.
        let (start, began) = (self.settings.start, Instant::now());
        let interval = scenario.sample_interval_micros();
        let first_sample = EventTime::from_micros(start.micros().div_euclid(interval) * interval);
        let mut plant = ClusterSimulation::new(scenario, first_sample)?;
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
    use eadt_cluster::{ClusterError, ClusterRemedy, ManagedWorkload, RollbackRequest, WorkloadChange};
    use eadt_schemas::v1::Decision;
    use eadt_service::HealthRegistry;

    use super::*;

    /// A cluster that waits for its pods, and notes the time at each look.
    #[derive(Debug)]
    struct WaitingCluster {
        clock: SimClock,
        times: Mutex<Vec<EventTime>>,
    }

    fn refused<T>() -> Result<T, ClusterError> {
        Err(ClusterError::new(ClusterRemedy::Refused, "it has no workloads"))
    }

    impl Cluster for WaitingCluster {
        fn now(&self) -> EventTime {
            self.clock.now()
        }
        fn revision(&self) -> u64 {
            0
        }
        fn workloads(&self) -> Result<Vec<ManagedWorkload>, ClusterError> {
            self.times.lock().unwrap().push(self.clock.now());
            refused()
        }
        fn apply(&self, _: &WorkloadChange) -> Result<ManagedWorkload, ClusterError> {
            refused()
        }
        fn roll_back(&self, _: &RollbackRequest) -> Result<ManagedWorkload, ClusterError> {
            refused()
        }
        fn recommend(&self, _: &Decision) -> Result<(), ClusterError> {
            refused()
        }
    }

    #[test]
    fn the_clock_begins_at_the_start_and_goes_on_while_pods_are_pending() {
        let start = EventTime::from_micros(1_767_225_646_086_857);
        let (clock, data) = (SimClock::new(start), tempfile::tempdir().unwrap());
        let bus = EmbeddedLog::open(data.path(), EmbeddedOptions::default()).unwrap();
        let cluster = Arc::new(WaitingCluster { clock: clock.clone(), times: Mutex::default() });
        let settings = SimulatorSettings {
            start,
            speed: SimulationSpeed::Times(1.0),
            duration_seconds: Some(0.2),
            ..SimulatorSettings::default()
        };
        let mirror = ClusterMirror::new(settings, clock, cluster.clone()).unwrap();
        mirror.run(&bus, &Shutdown::new(), &MetricsRegistry::default(), &HealthRegistry::default().part("simulator")).unwrap();
        let times = cluster.times.lock().unwrap();
        assert!(times.len() > 1 && times.iter().all(|time| *time >= start), "{times:?}");
        assert!(times.is_sorted() && times.last() > Some(&start), "{times:?}");
    }
}
