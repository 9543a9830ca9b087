//! The managed workloads as the cluster reported them last, and when to read them again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use eadt_cluster::{Cluster, ClusterChanges, ClusterError, ManagedWorkload};

use crate::directives::change_followed_by_job;
use crate::find_workload::WorkloadView;

pub struct ClusterView {
    workloads: WorkloadView,
    /// Workloads whose last change is not ready yet.
    rolling: BTreeSet<String>,
    /// Workloads whose jobs made the last change, and may take it back.
    followed_by_jobs: BTreeSet<String>,
    /// Revision of the cluster that the view has; `None` if nothing was read yet.
    revision: Option<u64>,
    /// Read again whatever the revision is.
    refresh_requested: bool,
    /// Time of the last read of everything, not only of changes.
    last_full_read: Instant,
    not_before: Option<Instant>,
    failures: u32,
}

impl ClusterView {
    pub fn new() -> Self {
        Self {
            workloads: WorkloadView::new(),
            rolling: BTreeSet::new(),
            followed_by_jobs: BTreeSet::new(),
            revision: None,
            refresh_requested: false,
            last_full_read: Instant::now(),
            not_before: None,
            failures: 0,
        }
    }

    pub fn workloads(&self) -> &WorkloadView {
        &self.workloads
    }

    pub fn get(&self, workload: &str) -> Option<&ManagedWorkload> {
        self.workloads.get(workload)
    }

    /// Returns the workloads whose last change is not ready yet.
    pub fn rolling(&self) -> impl Iterator<Item = (&String, &ManagedWorkload)> {
        self.rolling.iter().filter_map(|name| Some((name, self.workloads.get(name)?)))
    }

    /// Returns the workloads whose jobs made the last change, and may take it back.
    pub fn followed_by_jobs(&self) -> impl Iterator<Item = (&String, &ManagedWorkload)> {
        self.followed_by_jobs.iter().filter_map(|name| Some((name, self.workloads.get(name)?)))
    }

    /// Returns whether a change may have to be rolled back.
    pub fn has_changes_to_follow(&self) -> bool {
        !self.rolling.is_empty() || !self.followed_by_jobs.is_empty()
    }

    pub fn rollout_count(&self) -> usize {
        self.rolling.len()
    }

    /// Stores a workload as it is now.
    pub fn put(&mut self, managed: ManagedWorkload) {
        let name = managed.state.workload.clone();
        self.rolling.remove(&name);
        self.followed_by_jobs.remove(&name);
        if managed.rolling_out().is_some() {
            self.rolling.insert(name.clone());
        } else if change_followed_by_job(&managed).is_some() {
            self.followed_by_jobs.insert(name.clone());
        }
        self.workloads.insert(name, managed);
    }

    pub fn remove(&mut self, workload: &str) {
        self.workloads.remove(workload);
        self.rolling.remove(workload);
        self.followed_by_jobs.remove(workload);
    }

    /// Forgets everything; the next read brings all of it.
    pub fn clear(&mut self) {
        self.workloads.clear();
        self.rolling.clear();
        self.followed_by_jobs.clear();
        self.revision = None;
    }

    /// Has everything read at the next look.
    pub fn forget_revision(&mut self) {
        self.revision = None;
    }

    /// Has the cluster read again although its revision is the same.
    pub fn request_refresh(&mut self) {
        self.refresh_requested = true;
    }

    /// Returns whether the view was read, and nothing is known that it lacks.
    pub fn is_current(&self) -> bool {
        self.revision.is_some() && !self.refresh_requested
    }

    /// Returns whether the cluster may have changed since the view was read.
    pub fn is_behind(&self, cluster: &dyn Cluster) -> bool {
        self.refresh_requested || self.revision != Some(cluster.revision())
    }

    /// Returns whether a failed read is followed by its pause still.
    pub fn is_paused(&self) -> bool {
        self.not_before.is_some_and(|not_before| Instant::now() < not_before)
    }

    /// Reads what changed; `None` if nothing can have changed. Every `full_read_seconds` everything is read.
    pub fn read_changes(&self, cluster: &dyn Cluster, full_read_seconds: f64) -> Result<Option<ClusterChanges>, ClusterError> {
        let stale = self.last_full_read.elapsed().as_secs_f64() >= full_read_seconds;
        if stale || self.is_behind(cluster) {
            return cluster.changes(self.revision.filter(|_| !stale)).map(Some);
        }
        Ok(None)
    }

    /// Drops workloads that a read reports as gone, before its workloads are [put](Self::put).
    pub fn begin_changes(&mut self, all: bool, removed: &[String]) {
        if all {
            self.workloads.clear();
            self.rolling.clear();
            self.followed_by_jobs.clear();
            self.last_full_read = Instant::now();
        }
        for name in removed {
            self.remove(name);
        }
    }

    /// Notes that the view is of this revision.
    pub fn end_changes(&mut self, revision: u64) {
        self.revision = Some(revision);
        self.refresh_requested = false;
        self.failures = 0;
        self.not_before = None;
    }

    /// Returns a read failed: pauses, longer with every failure in a row; returns the pause.
    pub fn on_failure(&mut self, pause: impl Fn(u32) -> Duration) -> Duration {
        let pause = pause(self.failures);
        self.failures += 1;
        self.not_before = Some(Instant::now() + pause);
        pause
    }
}
