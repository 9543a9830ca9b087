use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use eadt_cluster::{
    ApprovedDecision, Cluster, ClusterError, ClusterRemedy, ManagedWorkload, PolicyEdit, PolicyWriter, RollbackRequest,
    WorkloadChange,
};
use eadt_schemas::EventTime;
use eadt_schemas::v1::Decision;

use crate::SimClock;
use crate::gate::DecisionHorizon;

/// Calls that wait for the driver. One actuator makes one call at a time; the rest is room for tests and tools.
const QUEUE: usize = 16;
/// Longest time that a call waits for a driver that has not restored its state yet.
const START: Duration = Duration::from_secs(2);

/// The simulated cluster as an actuator sees it: what it shows is durable, and a call is answered once its effect is.
#[derive(Debug, Clone)]
pub struct SimulatedCluster {
    commands: SyncSender<ClusterCall>,
    shared: Arc<SharedSnapshot>,
    clock: SimClock,
}

#[derive(Debug)]
pub(crate) struct ClusterCall {
    pub request: ClusterRequest,
    pub reply: SyncSender<Result<ClusterReply, ClusterError>>,
}

#[derive(Debug)]
pub(crate) enum ClusterRequest {
    Apply(Box<WorkloadChange>),
    RollBack(RollbackRequest),
    Recommend(Box<Decision>),
    EditPolicy { workload: String, change: PolicyEdit, by: String },
}

/// Result of a call.
#[derive(Debug)]
pub(crate) enum ClusterReply {
    Managed(Box<ManagedWorkload>),
    Recommended,
    /// Whether the policy was another one before.
    PolicyEdited(bool),
}

/// Snapshot that the driver shares.
#[derive(Debug, Default)]
pub(crate) struct SharedSnapshot {
    snapshot: Mutex<DriverSnapshot>,
    shown: Condvar,
}

#[derive(Debug, Default)]
struct DriverSnapshot {
    revision: u64,
    /// `None` before the state is restored.
    present: Option<CommittedView>,
    ended: bool,
}

/// The state as it was committed last.
#[derive(Debug, PartialEq)]
pub(crate) struct CommittedView {
    pub now: EventTime,
    pub managed: Vec<ManagedWorkload>,
    pub approved: Vec<ApprovedDecision>,
    /// `None` if the gate is off.
    pub decision_horizons: Option<BTreeMap<String, DecisionHorizon>>,
}

impl SharedSnapshot {
    fn lock(&self) -> MutexGuard<'_, DriverSnapshot> {
        // A snapshot is replaced as a whole, so a panic elsewhere does not spoil it.
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn publish(&self, present: CommittedView) {
        let mut snapshot = self.lock();
        let same = |old: &CommittedView| old.managed == present.managed && old.approved == present.approved;
        let changed = !snapshot.present.as_ref().is_some_and(same);
        snapshot.revision += u64::from(changed);
        snapshot.present = Some(present);
        self.shown.notify_all();
    }

    pub fn end(&self) {
        self.lock().ended = true;
        self.shown.notify_all();
    }
}

pub(crate) fn connect(clock: SimClock) -> (SimulatedCluster, Receiver<ClusterCall>, Arc<SharedSnapshot>) {
    let (commands, received) = mpsc::sync_channel(QUEUE);
    let shared = Arc::new(SharedSnapshot::default());
    (SimulatedCluster { commands, shared: shared.clone(), clock }, received, shared)
}

fn stopped() -> ClusterError {
    ClusterError::new(ClusterRemedy::Stopped, "the simulation has ended")
}

impl SimulatedCluster {
    fn call(&self, request: ClusterRequest) -> Result<ClusterReply, ClusterError> {
        let (reply, answer) = mpsc::sync_channel(1);
        // Both ends are gone only together with the driver.
        self.commands.send(ClusterCall { request, reply }).map_err(|_| stopped())?;
        answer.recv().map_err(|_| stopped())?
    }

    fn managed(&self, request: ClusterRequest) -> Result<ManagedWorkload, ClusterError> {
        match self.call(request)? {
            ClusterReply::Managed(managed) => Ok(*managed),
            ClusterReply::Recommended | ClusterReply::PolicyEdited(_) => Err(stopped()),
        }
    }
}

impl PolicyWriter for SimulatedCluster {
    fn edit_policy(&self, workload: &str, _kind: &str, change: &PolicyEdit, by: &str) -> Result<bool, ClusterError> {
        let request = ClusterRequest::EditPolicy { workload: workload.to_owned(), change: change.clone(), by: by.to_owned() };
        Ok(matches!(self.call(request)?, ClusterReply::PolicyEdited(true)))
    }
}

impl Cluster for SimulatedCluster {
    fn now(&self) -> EventTime {
        self.shared.lock().present.as_ref().map_or_else(|| self.clock.now(), |present| present.now)
    }

    fn effect_time(&self, decision: &Decision) -> Option<EventTime> {
        let snapshot = self.shared.lock();
        let present = snapshot.present.as_ref().filter(|_| !snapshot.ended)?;
        match present.decision_horizons.as_ref().and_then(|turns| turns.get(&decision.workload)) {
            Some(turn) if decision.time > turn.through => None,
            _ => Some(present.now),
        }
    }

    fn revision(&self) -> u64 {
        self.shared.lock().revision
    }

    fn workloads(&self) -> Result<Vec<ManagedWorkload>, ClusterError> {
        let waiting = |snapshot: &mut DriverSnapshot| snapshot.present.is_none() && !snapshot.ended;
        let (snapshot, _) =
            self.shared.shown.wait_timeout_while(self.shared.lock(), START, waiting).unwrap_or_else(PoisonError::into_inner);
        match &snapshot.present {
            Some(present) => Ok(present.managed.clone()),
            None if snapshot.ended => Err(stopped()),
            None => Err(ClusterError::new(ClusterRemedy::Retry, "the simulation has not started yet")),
        }
    }

    fn apply(&self, change: &WorkloadChange) -> Result<ManagedWorkload, ClusterError> {
        self.managed(ClusterRequest::Apply(Box::new(change.clone())))
    }

    fn roll_back(&self, roll_back: &RollbackRequest) -> Result<ManagedWorkload, ClusterError> {
        self.managed(ClusterRequest::RollBack(roll_back.clone()))
    }

    fn approved_decisions(&self) -> Vec<ApprovedDecision> {
        self.shared.lock().present.as_ref().map_or_else(Vec::new, |present| present.approved.clone())
    }

    fn recommend(&self, decision: &Decision) -> Result<(), ClusterError> {
        self.call(ClusterRequest::Recommend(Box::new(decision.clone()))).map(|_| ())
    }
}
