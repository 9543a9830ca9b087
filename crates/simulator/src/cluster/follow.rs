//! A cluster whose objects are elsewhere: its jobs run by the state of those, and its GPUs draw power accordingly.

use std::collections::BTreeSet;

use eadt_cluster::ManagedWorkload;

use super::job::SimulatedJob;
use super::{ClusterSimulation, WorkloadScenario};

impl ClusterSimulation {
    /// Takes the layouts of `seen` from now on: processes run while their workload is ready, and none do otherwise. A workload
    /// that is new gets GPUs; `template` returns the known part of its job. One that is gone leaves its GPUs idle.
    pub fn follow(&mut self, workloads: &[ManagedWorkload], template: impl Fn(&str) -> WorkloadScenario) {
        let now = self.now();
        let mut there = BTreeSet::new();
        for managed in workloads {
            let state = &managed.state;
            there.insert(state.workload.as_str());
            let place = self.workloads.iter().position(|w| w.managed.state.workload == state.workload);
            let place = place.unwrap_or_else(|| {
                let replicas = state.layout.replicas.unwrap_or(1).max(1);
                let known = template(&state.workload);
                let workload = WorkloadScenario {
                    name: state.workload.clone(),
                    kind: state.kind.clone(),
                    gpus: state.gpus.unwrap_or(replicas).clamp(1, 10_000),
                    replicas,
                    mps_thread_percentage: state.layout.mps_thread_percentage.unwrap_or(100),
                    backend: state.backend.clone().unwrap_or_else(|| known.backend.clone()),
                    global_batch_size: state.global_batch_size.unwrap_or(known.global_batch_size),
                    ..known
                };
                let first = self.scenario.workloads.iter().map(|workload| u64::from(workload.gpus)).sum();
                let index = self.workloads.len();
                let job = SimulatedJob::new(&self.scenario, &workload, index, first, now);
                self.scenario.workloads.push(workload);
                self.workloads.push(job);
                index
            });
            let job = &mut self.workloads[place];
            let runs = state.ready_time.map(|_| state.layout.clone());
            if job.runs.last().is_none_or(|(_, known)| *known != runs) {
                job.runs = vec![(now, runs)];
            }
            job.managed = managed.clone();
        }
        for job in &mut self.workloads {
            let is_gone = !there.contains(job.managed.state.workload.as_str());
            if is_gone && job.runs.last().is_none_or(|(_, known)| known.is_some()) {
                job.runs = vec![(now, None)];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::EventTime;
    use eadt_schemas::v1::{Layout, Workload};

    use super::super::{Scenario, SimulatedEvent};
    use super::*;

    fn managed(percentage: u32, ready: bool) -> ManagedWorkload {
        let start = EventTime::from_seconds(1_767_225_600.0);
        ManagedWorkload {
            state: Workload {
                workload: "n/w".into(),
                layout: Layout { replicas: Some(6), mps_thread_percentage: Some(percentage), ..Layout::default() },
                gpus: Some(3),
                ready_time: ready.then_some(start),
                ..Workload::default()
            },
            applied: None,
            mps_default_thread_percentage: None,
            restarts: vec![],
        }
    }

    #[test]
    fn jobs_run_as_the_objects_elsewhere_show() {
        let start = EventTime::from_seconds(1_767_225_600.0);
        let scenario = Scenario { workloads: vec![], ..Scenario::default() };
        let mut cluster = ClusterSimulation::new(scenario, start).unwrap();
        let mut now = start;
        let mut over = |seen: &[ManagedWorkload]| {
            cluster.follow(seen, |_| WorkloadScenario::default());
            now = now.plus_seconds(60.0);
            let mut events = Vec::new();
            cluster.step(now, &mut events);
            let watts: Vec<_> = events
                .iter()
                .filter_map(|event| if let SimulatedEvent::Telemetry(sample) = event { sample.power_watts } else { None })
                .collect();
            let progress = events.iter().filter(|event| matches!(event, SimulatedEvent::Progress(_))).count();
            (watts.iter().sum::<f64>() / watts.len().max(1) as f64, progress)
        };
        assert_eq!(over(&[]).1, 0);
        let (full, reports) = over(&[managed(50, true)]);
        assert!(reports > 5 && full > 100.0, "{full} W, {reports} reports");
        let (less, _) = over(&[managed(30, true)]);
        assert!(less < full, "{less} W with fewer threads, {full} W before");
        let (rolling, reports) = over(&[managed(30, false)]);
        assert!(reports <= 1 && rolling < less, "{rolling} W, {reports} reports while it rolls out");
        assert!(over(&[]).0 < less, "gone: its GPUs idle");
    }
}
