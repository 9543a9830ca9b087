//! Interface of a cluster for the actuator, so that Kubernetes and the simulated cluster are interchangeable.
//!
//! In: fenced changes of one workload. Out: the workload as it is after them, durable before the call returns.
//! It holds the interface only: no policy (the actuator decides whether a change may be made), no I/O, no clock.

use std::fmt;
use std::sync::Arc;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Actuation, Decision, DeviceHolders, DeviceIntent, DeviceState, Layout, Precision, UpdateMode, Workload};
use serde::{Deserialize, Serialize};

/// A workload that opted in, as it is in the cluster now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ManagedWorkload {
    /// Its published state. `time` is the time since which it holds; `decision_id` and `ready_time` belong to the present
    /// generation.
    pub state: Workload,
    /// The last decision that was written to it; kept with the object, so that a restarted actuator sees it.
    pub applied: Option<AppliedDecision>,
    /// The node's MPS default; a process cannot get more. `None` if it is unknown or unlimited.
    pub mps_default_thread_percentage: Option<u32>,
    /// Times at which a decision restarted its processes, oldest first; at least those of the last 24 h.
    pub restarts: Vec<EventTime>,
}

/// The mark that a decision leaves on the object that it changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AppliedDecision {
    pub decision_id: String,
    /// Event time of the decision; an older decision is refused.
    pub decision_time: EventTime,
    /// The generation that it made.
    pub generation: u64,
    /// Time at which it took effect.
    pub time: EventTime,
    /// The layout that it set.
    pub layout: Layout,
    /// The layout before it.
    pub before: Layout,
    /// Rolled back unless it is ready by then.
    pub ready_by: EventTime,
    /// Time at which every process of it was ready; `None` if not yet, or never.
    pub ready_time: Option<EventTime>,
    pub rolled_back: Option<RollbackRecord>,
    /// The user who approved it, if it was approved and the user is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved_by: Option<String>,
}

/// Settings that a change newly asks of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobRequest {
    pub precision: Option<Precision>,
    pub frozen_prefix_layers: Option<u32>,
}

impl JobRequest {
    /// Returns the requested changes; `None` if there are none. A job cannot be asked to return to its starting settings.
    pub fn between(before: &Layout, to: &Layout) -> Option<Self> {
        let request = Self {
            precision: to.precision.filter(|_| to.precision != before.precision),
            frozen_prefix_layers: to.frozen_prefix_layers.filter(|_| to.frozen_prefix_layers != before.frozen_prefix_layers),
        };
        (request.precision.is_some() || request.frozen_prefix_layers.is_some()).then_some(request)
    }
}

impl fmt::Display for JobRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let precision = self.precision.map(|precision| format!("precision {precision}"));
        let layers = self.frozen_prefix_layers.map(|layers| format!("{layers} frozen layers"));
        let words: Vec<_> = precision.into_iter().chain(layers).collect();
        f.write_str(&words.join(" and "))
    }
}

impl AppliedDecision {
    /// Returns the settings that the change requests from the job, and waits for.
    pub fn job_request(&self) -> Option<JobRequest> {
        JobRequest::between(&self.before, &self.layout)
    }

    /// Returns whether only settings that the job changes itself differ from those before.
    pub fn is_for_job_only(&self) -> bool {
        let of_others = |layout: &Layout| Layout { precision: None, frozen_prefix_layers: None, ..layout.clone() };
        of_others(&self.before) == of_others(&self.layout)
    }

    /// Returns the layout that a rollback restores. A job that takes back what it followed trains all its layers, also those
    /// that an earlier change froze.
    pub fn layout_to_restore(&self) -> Layout {
        let frozen_prefix_layers = self.before.frozen_prefix_layers.filter(|layers| self.ready_time.is_none() || *layers == 0);
        Layout { frozen_prefix_layers, ..self.before.clone() }
    }
}

/// The rollback of a change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RollbackRecord {
    /// The generation that restores the layout before.
    pub generation: u64,
    pub time: EventTime,
    /// Text for people.
    pub reason: String,
}

impl ManagedWorkload {
    /// Returns the change that is neither ready nor rolled back. A change that another change replaced is over.
    pub fn rolling_out(&self) -> Option<&AppliedDecision> {
        let on_its_way =
            |a: &&AppliedDecision| a.ready_time.is_none() && a.rolled_back.is_none() && a.generation == self.state.generation;
        self.applied.as_ref().filter(on_its_way)
    }

    /// Returns the change in force that the job alone made, and that it may still take back.
    pub fn made_by_job(&self) -> Option<&AppliedDecision> {
        let in_force =
            |a: &&AppliedDecision| a.ready_time.is_some() && a.rolled_back.is_none() && a.generation == self.state.generation;
        self.applied.as_ref().filter(in_force).filter(|a| a.job_request().is_some() && a.is_for_job_only())
    }
}

/// A change to write, with everything that fences it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkloadChange {
    pub workload: String,
    pub decision_id: String,
    pub decision_time: EventTime,
    /// The generation that it was planned for; with another one in force nothing is written.
    pub generation: u64,
    pub layout: Layout,
    /// Processes are replaced; `false` if the settings change while they run.
    pub restarts: bool,
    /// It takes an earlier change back: how many pods may be away at once does not bar it, as it does not bar a
    /// [`RollbackRequest`].
    pub reverts: bool,
    /// The rollout has this long; counted from the moment of effect.
    pub ready_within_seconds: f64,
    /// The user who approved it, if it was approved and the user is known.
    pub approved_by: Option<String>,
}

/// A change of a workload's policy by a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyEdit {
    Pause,
    Resume,
    SetMode {
        mode: UpdateMode,
        /// The mode that the person saw: with another one in force nothing is changed.
        shown: UpdateMode,
    },
    /// Has the recommendation of this id applied once.
    Approve(String),
}

/// Changes the policies of workloads for users. Calls block; returned changes are durable.
pub trait PolicyWriter: Send + Sync + fmt::Debug {
    /// Changes the policy of a workload (`namespace/name`) of a Kubernetes kind in the name of a user. `false` if it was so
    /// already.
    fn edit_policy(&self, workload: &str, kind: &str, change: &PolicyEdit, by: &str) -> Result<bool, ClusterError>;
}

/// A recommendation that a user approved.
#[derive(Debug, Clone, PartialEq)]
pub struct ApprovedDecision {
    pub decision: Decision,
    /// The user who approved it, if known.
    pub by: Option<String>,
}

/// Takes a change back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RollbackRequest {
    pub workload: String,
    /// The change to take back; when it is not the last one applied, nothing is written.
    pub decision_id: String,
    /// The generation to replace; with another one in force nothing is written.
    pub generation: u64,
    /// The job itself took it back, so it is rolled back although it became ready. Otherwise nothing is written then.
    #[serde(default)]
    pub by_job: bool,
    /// Text for people.
    pub reason: String,
}

/// Changes since a revision.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusterChanges {
    /// The revision after these changes, for the next call.
    pub revision: u64,
    /// `workloads` is complete: workloads not in it are gone.
    pub all: bool,
    /// Workloads that changed, in any order.
    pub workloads: Vec<ManagedWorkload>,
    /// Names of those that are gone, or did not opt in any more.
    pub removed: Vec<String>,
}

/// The caller's reaction to a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterRemedy {
    /// The same call may succeed later. It may also have taken effect: look first.
    Retry,
    /// The object was changed meanwhile: read it and plan again.
    Conflict,
    /// The cluster will never do this; nothing was touched.
    Refused,
    /// The cluster is going away with this process: end.
    Stopped,
}

/// A failed cluster call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct ClusterError {
    pub remedy: ClusterRemedy,
    /// The failure, its object and the remedy.
    pub detail: String,
}

impl ClusterError {
    pub fn new(remedy: ClusterRemedy, detail: impl fmt::Display) -> Self {
        Self { remedy, detail: detail.to_string() }
    }

    /// Returns the refusal of a call for a workload that did not opt in.
    pub fn not_managed(workload: &str) -> Self {
        Self::new(ClusterRemedy::Refused, format!("there is no workload {workload} that opted in"))
    }
}

/// A cluster. Calls block; returned changes are durable.
pub trait Cluster: Send + Sync + fmt::Debug {
    /// Returns the cluster's clock: wall clock, or simulated.
    fn now(&self) -> EventTime;
    /// Returns the time at which this decision takes effect; `None` if not yet: the caller asks again. A cluster on the wall
    /// clock acts at once; a simulated one acts at a fixed delay after the decision, so that its history does not depend on the
    /// host's speed.
    fn effect_time(&self, decision: &Decision) -> Option<EventTime> {
        let _: &Decision = decision;
        Some(self.now())
    }
    /// Grows whenever [`Cluster::workloads`] or a rollout may have changed, so that watching costs nothing.
    fn revision(&self) -> u64;
    /// Returns every workload that opted in, in any order.
    fn workloads(&self) -> Result<Vec<ManagedWorkload>, ClusterError>;
    /// Returns the changes since a revision of an earlier [`Cluster::changes`]; all workloads without a revision, or if it is too
    /// old.
    fn changes(&self, since: Option<u64>) -> Result<ClusterChanges, ClusterError> {
        let _: Option<u64> = since;
        // Read first, so that what changes meanwhile is seen the next time.
        let revision = self.revision();
        Ok(ClusterChanges { revision, all: true, workloads: self.workloads()?, removed: Vec::new() })
    }
    /// Writes a change. Asked again for the decision that is applied already, it changes nothing and returns the same.
    fn apply(&self, change: &WorkloadChange) -> Result<ManagedWorkload, ClusterError>;
    /// Restores the layout before a change ([`AppliedDecision::layout_to_restore`]). Asked again, it changes nothing and returns
    /// the same.
    fn roll_back(&self, roll_back: &RollbackRequest) -> Result<ManagedWorkload, ClusterError>;
    /// Writes a recommendation beside the workload; touches nothing that runs.
    fn recommend(&self, decision: &Decision) -> Result<(), ClusterError>;
    /// Returns why no process of a workload may be restarted now; a rollback is never barred.
    fn restarts_barred(&self, workload: &str) -> Option<String> {
        let _: &str = workload;
        None
    }
    /// Recommendations that people approved since: to be applied once although the mode is `recommend`. Asked for whenever
    /// [`Cluster::revision`] grew.
    fn approved_decisions(&self) -> Vec<ApprovedDecision> {
        Vec::new()
    }
    /// Receives every decision, `maintain` included, for statuses; must not block.
    fn on_decision(&self, decision: &Decision) {
        let _: &Decision = decision;
    }
    /// Called with an earlier decision that verified a change: the actuator of that time may have ended before it reached a
    /// status. It may come twice.
    fn on_verified_decision(&self, decision: &Decision) {
        let _: &Decision = decision;
    }
    /// Receives every published actuation, for statuses; must not block.
    fn on_actuation(&self, actuation: &Actuation) {
        let _: &Actuation = actuation;
    }
    /// Receives the report of a job that follows the change of a decision, so that the change may become ready; must not block.
    fn on_job_follows(&self, workload: &str, decision_id: &str) {
        let _: (&str, &str) = (workload, decision_id);
    }
    /// Returns the node agents through which caps and clocks are turned; `None` if it sets them itself, or not at all.
    fn devices(&self) -> Option<&dyn DeviceAgents> {
        None
    }
}

/// The node agents of a cluster: their reports, and their intents. Its calls do not block.
pub trait DeviceAgents: Send + Sync {
    /// Receives every agent's report; the newest of a node comes last.
    fn on_device_state(&self, state: DeviceState);
    /// Receives every collector's report on which pods hold its node's GPUs; its time is the log's stamp.
    fn on_device_holders(&self, holders: DeviceHolders);
    /// Called when leadership begins, after the reports in the log were replayed. `standing`: the intents in the log, one a node.
    fn on_takeover(&self, standing: &[DeviceIntent]);
    /// Returns the settings that agents should hold now: one intent per node, without time and time to live, which the
    /// publisher sets. A node without an intent holds nothing. The same pointer means that nothing changed; `None` if unknown
    /// so far, so that nothing is withdrawn.
    fn wanted_intents(&self) -> Option<Arc<Vec<DeviceIntent>>>;
}
