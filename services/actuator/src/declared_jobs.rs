//! Jobs outside of a cluster that the settings declare: only settings that a job changes itself can be changed here, by its
//! directive.
//!
//! Their layouts and marks are in one file, written before a change counts, so that the next start has the requests.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use eadt_cluster::{
    AppliedDecision, Cluster, ClusterError, ClusterRemedy, ManagedWorkload, RollbackRecord, RollbackRequest, WorkloadChange,
};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{Decision, Layout, LayoutBounds, Origin, UpdateMode, Workload};
use eadt_service::ServiceClock;

use crate::settings::DeclaredJob;

/// Kind of these workloads, in place of a Kubernetes kind.
const KIND: &str = "job";

/// The declared jobs.
#[derive(Debug)]
pub struct DeclaredJobs {
    file: PathBuf,
    clock: ServiceClock,
    table: Mutex<JobTable>,
}

#[derive(Debug, Clone, Default)]
struct JobTable {
    revision: u64,
    jobs: BTreeMap<String, ManagedWorkload>,
}

impl DeclaredJobs {
    /// Reads what was asked of these jobs before, if the file exists. A job that is no longer declared is only observed.
    pub fn open(file: &Path, declared: &[DeclaredJob], clock: ServiceClock) -> io::Result<Self> {
        let mut stored: BTreeMap<String, ManagedWorkload> = match fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let path = file.display();
                let detail = format!(
                    "{path} is damaged: {error}; put it back from a copy, or remove it: jobs then go back to the settings that they were started with"
                );
                io::Error::new(io::ErrorKind::InvalidData, detail)
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(io::Error::new(error.kind(), format!("cannot read {}: {error}", file.display()))),
        };
        let now = clock.now();
        let mut jobs: BTreeMap<String, ManagedWorkload> =
            declared.iter().map(|job| (job.workload.clone(), managed(job, stored.remove(&job.workload), now))).collect();
        jobs.extend(stored.into_iter().map(|(workload, before)| {
            let undeclared = DeclaredJob { mode: UpdateMode::Observe, ..DeclaredJob::default() };
            let observed = managed(&DeclaredJob { workload: workload.clone(), ..undeclared }, Some(before), now);
            (workload, observed)
        }));
        let this = Self { file: file.to_owned(), clock, table: Mutex::new(JobTable { revision: 1, jobs }) };
        this.write(&this.lock().jobs)?;
        Ok(this)
    }

    fn lock(&self) -> MutexGuard<'_, JobTable> {
        // A table is replaced as a whole, so a panic elsewhere does not spoil it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, jobs: &BTreeMap<String, ManagedWorkload>) -> io::Result<()> {
        if let Some(folder) = self.file.parent() {
            fs::create_dir_all(folder)?;
        }
        let next = self.file.with_extension("json.next");
        let mut file = File::create(&next)?;
        file.write_all(&serde_json::to_vec(jobs)?)?;
        file.sync_all()?;
        fs::rename(&next, &self.file)?;
        // Else a power failure may bring the file before it back.
        match self.file.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }

    /// Changes a job; a returned change is durable. `change` returns `Ok(false)` if it is so already.
    fn change(
        &self,
        workload: &str,
        change: impl FnOnce(&mut ManagedWorkload, EventTime) -> Result<bool, ClusterError>,
    ) -> Result<ManagedWorkload, ClusterError> {
        let mut table = self.lock();
        let mut jobs = table.jobs.clone();
        let job = jobs.get_mut(workload).ok_or_else(|| ClusterError::not_managed(workload))?;
        let is_changed = change(job, self.clock.now())?;
        let changed = job.clone();
        if is_changed {
            self.write(&jobs).map_err(|error| {
                ClusterError::new(ClusterRemedy::Retry, format!("cannot write {}: {error}", self.file.display()))
            })?;
            *table = JobTable { revision: table.revision + 1, jobs };
        }
        Ok(changed)
    }
}

/// Returns a declared job as it was left, under its present declaration.
fn managed(job: &DeclaredJob, before: Option<ManagedWorkload>, now: EventTime) -> ManagedWorkload {
    let known = before.is_some();
    let before = before.unwrap_or_else(|| ManagedWorkload {
        state: Workload { time: now, generation: 1, ready_time: Some(now), ..Workload::default() },
        applied: None,
        mps_default_thread_percentage: None,
        restarts: Vec::new(),
    });
    let state = Workload {
        workload: job.workload.clone(),
        origin: Origin::Measured,
        kind: KIND.to_owned(),
        mode: job.mode,
        controller: Some(job.controller.as_str().to_owned()),
        bounds: LayoutBounds {
            // None would be no bound.
            frozen_prefix_layers_max: Some(job.frozen_prefix_layers_max),
            precisions: Some(job.precisions.clone()),
            ..LayoutBounds::default()
        },
        ..before.state.clone()
    };
    let time = if known && state == before.state { state.time } else { now };
    ManagedWorkload { state: Workload { time, ..state }, ..before }
}

fn conflict(detail: impl std::fmt::Display) -> ClusterError {
    ClusterError::new(ClusterRemedy::Conflict, detail)
}

fn check_generation(expected: u64, present: u64) -> Result<(), ClusterError> {
    if expected == present {
        return Ok(());
    }
    Err(conflict(format_args!("generation {present} is in force, the change is for {expected}")))
}

/// Puts a layout in force; returns its generation.
fn replace(state: &mut Workload, layout: &Layout, decision: Option<&str>, now: EventTime, ready: Option<EventTime>) -> u64 {
    (state.time, state.ready_time) = (now, ready);
    state.generation += 1;
    state.layout = layout.clone();
    state.decision_id = decision.map(str::to_owned);
    state.generation
}

fn apply(job: &mut ManagedWorkload, change: &WorkloadChange, now: EventTime) -> Result<bool, ClusterError> {
    if job.applied.as_ref().is_some_and(|applied| applied.decision_id == change.decision_id) {
        return Ok(false);
    }
    check_generation(change.generation, job.state.generation)?;
    if job.rolling_out().is_some() {
        return Err(conflict(format_args!("generation {} waits for the job", job.state.generation)));
    }
    let unasked = |layout: &Layout| Layout { precision: None, frozen_prefix_layers: None, ..layout.clone() };
    if change.restarts || unasked(&change.layout) != unasked(&job.state.layout) {
        let detail = "a declared job cannot be restarted or capped: only its precision and its frozen layers can be changed";
        return Err(ClusterError::new(ClusterRemedy::Refused, detail));
    }
    let mut applied = AppliedDecision {
        decision_id: change.decision_id.clone(),
        decision_time: change.decision_time,
        generation: 0,
        time: now,
        layout: change.layout.clone(),
        before: job.state.layout.clone(),
        ready_by: now.plus_seconds(change.ready_within_seconds),
        ready_time: None,
        rolled_back: None,
        approved_by: change.approved_by.clone(),
    };
    // A job acknowledges no request that it was started with.
    applied.ready_time = applied.job_request().is_none().then_some(now);
    applied.generation = replace(&mut job.state, &change.layout, Some(&change.decision_id), now, applied.ready_time);
    job.applied = Some(applied);
    Ok(true)
}

fn roll_back(job: &mut ManagedWorkload, back: &RollbackRequest, now: EventTime) -> Result<bool, ClusterError> {
    let Some(applied) = job.applied.as_mut().filter(|applied| applied.decision_id == back.decision_id) else {
        return Err(conflict(format_args!("decision {} is not the last one applied", back.decision_id)));
    };
    if applied.rolled_back.is_some() {
        return Ok(false);
    }
    check_generation(back.generation, job.state.generation)?;
    if applied.ready_time.is_some() && !back.by_job {
        return Err(conflict(format_args!("decision {} became ready meanwhile", back.decision_id)));
    }
    let generation = replace(&mut job.state, &applied.layout_to_restore(), None, now, Some(now));
    applied.rolled_back = Some(RollbackRecord { generation, time: now, reason: back.reason.clone() });
    Ok(true)
}

impl Cluster for DeclaredJobs {
    fn now(&self) -> EventTime {
        self.clock.now()
    }

    fn revision(&self) -> u64 {
        self.lock().revision
    }

    fn workloads(&self) -> Result<Vec<ManagedWorkload>, ClusterError> {
        Ok(self.lock().jobs.values().cloned().collect())
    }

    fn apply(&self, change: &WorkloadChange) -> Result<ManagedWorkload, ClusterError> {
        self.change(&change.workload, |job, now| apply(job, change, now))
    }

    fn roll_back(&self, back: &RollbackRequest) -> Result<ManagedWorkload, ClusterError> {
        self.change(&back.workload, |job, now| roll_back(job, back, now))
    }

    fn recommend(&self, decision: &Decision) -> Result<(), ClusterError> {
        // It is in the log, where people look.
        let known = self.lock().jobs.contains_key(&decision.workload);
        known.then_some(()).ok_or_else(|| ClusterError::not_managed(&decision.workload))
    }

    fn on_job_follows(&self, workload: &str, decision_id: &str) {
        let ready = self.change(workload, |job, now| {
            let is_awaited = job.rolling_out().is_some_and(|applied| applied.decision_id == decision_id);
            if is_awaited && let Some(applied) = &mut job.applied {
                applied.ready_time = Some(now);
                (job.state.time, job.state.ready_time) = (now, Some(now));
            }
            Ok(is_awaited)
        });
        if let Err(error) = ready {
            // The job reports it again.
            tracing::warn!(workload, %error, "a job confirmed its directive, but the confirmation could not be stored; it is tried again");
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::Precision;

    use super::*;
    use crate::settings::JobController;

    fn declared() -> DeclaredJob {
        DeclaredJob {
            workload: "lab/gpt".to_owned(),
            mode: UpdateMode::Enforce,
            controller: JobController::Layers,
            frozen_prefix_layers_max: 3,
            precisions: Vec::new(),
        }
    }

    fn open(folder: &Path, declared: &[DeclaredJob], second: f64) -> DeclaredJobs {
        DeclaredJobs::open(&folder.join("jobs.json"), declared, ServiceClock::fixed(EventTime::from_seconds(second))).unwrap()
    }

    fn freeze(id: &str, generation: u64, layers: Option<u32>) -> WorkloadChange {
        WorkloadChange {
            workload: "lab/gpt".to_owned(),
            decision_id: id.to_owned(),
            decision_time: EventTime::from_seconds(1.0),
            generation,
            layout: Layout { frozen_prefix_layers: layers, ..Layout::default() },
            restarts: false,
            reverts: false,
            ready_within_seconds: 60.0,
            approved_by: None,
        }
    }

    fn back(id: &str, generation: u64) -> RollbackRequest {
        RollbackRequest {
            workload: "lab/gpt".to_owned(),
            decision_id: id.to_owned(),
            generation,
            by_job: false,
            reason: "late".to_owned(),
        }
    }

    #[test]
    fn what_a_job_takes_back_is_no_longer_in_force_and_nothing_that_was_frozen_before() {
        let folder = tempfile::tempdir().unwrap();
        let jobs = open(folder.path(), &[declared()], 10.0);
        jobs.apply(&freeze("d-1", 1, Some(2))).unwrap();
        jobs.on_job_follows("lab/gpt", "d-1");
        jobs.apply(&freeze("d-2", 2, Some(3))).unwrap();
        jobs.on_job_follows("lab/gpt", "d-2");
        let by_job = |id: &str, generation| RollbackRequest { by_job: true, ..back(id, generation) };
        for newer in [by_job("d-1", 2), by_job("d-1", 3), by_job("d-2", 2)] {
            assert_eq!(jobs.roll_back(&newer).unwrap_err().remedy, ClusterRemedy::Conflict, "{newer:?}");
        }
        let thawed = jobs.roll_back(&by_job("d-2", 3)).unwrap();
        assert_eq!((&thawed.state.layout, thawed.state.generation), (&Layout::default(), 4));
        assert_eq!(crate::directives::build_directive(&thawed, None), None);
        assert_eq!(jobs.roll_back(&by_job("d-2", 3)).unwrap(), thawed, "asked again, it changes nothing");
        assert_eq!(open(folder.path(), &[declared()], 20.0).workloads().unwrap(), [thawed]);
    }

    #[test]
    fn a_freeze_waits_for_the_job_and_going_back_for_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let jobs = open(folder.path(), &[declared()], 10.0);
        let asked = jobs.apply(&freeze("d-1", 1, Some(2))).unwrap();
        assert_eq!((asked.state.generation, asked.state.ready_time, asked.state.decision_id.as_deref()), (2, None, Some("d-1")));
        assert_eq!(jobs.apply(&freeze("d-1", 1, Some(2))).unwrap(), asked, "asked again, it changes nothing");
        assert_eq!(jobs.apply(&freeze("d-2", 2, Some(3))).unwrap_err().remedy, ClusterRemedy::Conflict);
        jobs.on_job_follows("lab/gpt", "d-0");
        assert_eq!(jobs.revision(), 2, "another decision");
        jobs.on_job_follows("lab/gpt", "d-1");
        assert!(jobs.workloads().unwrap()[0].state.ready_time.is_some());
        assert_eq!(jobs.roll_back(&back("d-1", 2)).unwrap_err().remedy, ClusterRemedy::Conflict, "it is ready");
        let reverted = jobs.apply(&freeze("d-3", 2, None)).unwrap();
        assert!(reverted.state.ready_time.is_some() && reverted.rolling_out().is_none(), "{reverted:?}");
    }

    #[test]
    fn what_was_asked_is_known_to_the_next_start_under_its_terms() {
        let folder = tempfile::tempdir().unwrap();
        let jobs = open(folder.path(), &[declared()], 10.0);
        jobs.apply(&freeze("d-1", 1, Some(2))).unwrap();
        let before = jobs.workloads().unwrap();
        assert_eq!(open(folder.path(), &[declared()], 20.0).workloads().unwrap(), before);
        let precise = DeclaredJob { precisions: vec![Precision::Bf16], ..declared() };
        let after = &open(folder.path(), &[precise], 30.0).workloads().unwrap()[0];
        assert_eq!((after.state.generation, after.state.time), (2, EventTime::from_seconds(30.0)));
        let rolled_back = open(folder.path(), &[declared()], 40.0).roll_back(&back("d-1", 2)).unwrap();
        assert_eq!((&rolled_back.state.layout, rolled_back.state.generation), (&Layout::default(), 3));
        let undeclared = &open(folder.path(), &[], 50.0).workloads().unwrap()[0];
        assert_eq!((undeclared.state.mode, undeclared.state.bounds.frozen_prefix_layers_max), (UpdateMode::Observe, Some(0)));
        assert_eq!(undeclared.state.bounds.precisions, Some(Vec::new()));
        fs::write(folder.path().join("jobs.json"), "{").unwrap();
        let error = DeclaredJobs::open(&folder.path().join("jobs.json"), &[], ServiceClock::machine()).unwrap_err();
        assert!(error.to_string().contains("jobs.json is damaged"), "{error}");
    }

    #[test]
    fn a_job_is_asked_for_nothing_beyond_its_present_terms() {
        let folder = tempfile::tempdir().unwrap();
        open(folder.path(), &[declared()], 10.0).apply(&freeze("d-1", 1, Some(3))).unwrap();
        let with = |frozen_prefix_layers_max, mode| DeclaredJob { mode, frozen_prefix_layers_max, ..declared() };
        for (jobs, layers) in [
            (vec![declared()], Some(3)),
            (vec![with(2, UpdateMode::Enforce)], None),
            (vec![with(0, UpdateMode::Enforce)], None),
            (vec![with(3, UpdateMode::Recommend)], Some(3)),
            (vec![with(3, UpdateMode::Observe)], None),
            (vec![], None),
        ] {
            let managed = open(folder.path(), &jobs, 20.0).workloads().unwrap();
            let asked =
                crate::directives::build_directive(&managed[0], None).and_then(|directive| directive.frozen_prefix_layers);
            assert_eq!(asked, layers, "{jobs:?}");
        }
    }

    #[test]
    fn a_name_that_no_job_has_and_one_declared_twice_are_refused() {
        let settings = |jobs: Vec<DeclaredJob>| crate::ActuatorSettings { jobs, ..crate::ActuatorSettings::default() }.check();
        assert_eq!(settings(vec![declared()]), Ok(()));
        let nameless = DeclaredJob { workload: "gpt".to_owned(), ..declared() };
        assert!(settings(vec![nameless]).unwrap_err().starts_with("actuator.jobs[0].workload: field workload"));
        assert_eq!(settings(vec![declared(); 2]).unwrap_err(), "actuator.jobs[1].workload: lab/gpt is declared twice");
    }

    #[test]
    fn nothing_but_what_a_job_changes_by_itself_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let jobs = open(folder.path(), &[declared()], 10.0);
        let cap = Layout { power_limit_watts: Some(200.0), ..Layout::default() };
        for change in [
            WorkloadChange { layout: cap, ..freeze("d-1", 1, None) },
            WorkloadChange { restarts: true, ..freeze("d-1", 1, Some(1)) },
            WorkloadChange { workload: "lab/other".to_owned(), ..freeze("d-1", 1, Some(1)) },
        ] {
            assert_eq!(jobs.apply(&change).unwrap_err().remedy, ClusterRemedy::Refused, "{change:?}");
        }
        assert_eq!(jobs.apply(&freeze("d-1", 9, Some(1))).unwrap_err().remedy, ClusterRemedy::Conflict);
        assert_eq!(jobs.revision(), 1);
    }
}
