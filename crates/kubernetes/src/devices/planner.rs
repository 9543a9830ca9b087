//! Reports of node agents, and the settings that they are requested to hold. The tasks that drive it are in
//! [`crate::reconcile::devices`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceHolders, DeviceIntent, DeviceState};
use tokio::sync::watch;

use crate::devices::gpu_pods::GpuPodIndex;
use crate::devices::mps_default::{self, AgreementOutcome, MpsDefaultAgreement, MpsDefaultRequest};
use crate::devices::target::{self, DesiredGpuSettings, GpuPlacement};
use crate::objects::key::{ObjectKey, PolicyKey};

/// A watch that does not work fails again within this time.
const POD_WATCH_FAILURE_REPEATS: Duration = Duration::from_secs(90);
/// Longest wait of a new leader until it knows the nodes of every workload's pods.
pub const FIRST_PLACEMENT_WAIT: Duration = Duration::from_mins(1);

/// A target, and the GPUs that it is assigned to.
#[derive(Debug, Clone, PartialEq)]
pub struct TargetAssignment {
    pub target: DesiredGpuSettings,
    pub placement: GpuPlacement,
}

/// Reports of agents and collectors, and the intents that follow from targets.
#[derive(Debug, Default)]
pub struct DevicePlanner {
    /// The last report of every node.
    pub device_states: BTreeMap<String, DeviceState>,
    /// Reports on the holders of GPUs, by node.
    pub holders: BTreeMap<String, DeviceHolders>,
    /// Pods with GPUs, from their watch.
    pub gpu_pods: GpuPodIndex,
    /// Whether that is to be watched.
    pod_watch: watch::Sender<bool>,
    pub assignments: BTreeMap<ObjectKey, TargetAssignment>,
    /// MPS defaults by node.
    pub mps_defaults: BTreeMap<String, MpsDefaultAgreement>,
    /// Messages about MPS defaults, by policy.
    mps_default_messages: BTreeMap<PolicyKey, String>,
    /// Time of the last failure of the watch of pods.
    pod_watch_failed: Option<Instant>,
    /// Time since which settings are requested, but the placement of pods is not known.
    placement_unknown_since: Option<Instant>,
    /// The reports of agents and collectors from before this process led were read.
    pub took_over: bool,
    /// `None` until the first look of this leadership.
    pub wanted_intents: Option<Arc<Vec<DeviceIntent>>>,
}

impl DevicePlanner {
    pub fn on_device_state(&mut self, state: DeviceState) {
        self.device_states.insert(state.node.clone(), state);
    }

    pub fn on_device_holders(&mut self, holders: DeviceHolders) {
        self.holders.insert(holders.node.clone(), holders);
    }

    /// Returns the MPS default that a node's agent reports.
    pub fn reported_mps_default(&self, node: &str) -> Option<u32> {
        self.device_states.get(node)?.mps_default_thread_percentage
    }

    /// Takes over from an earlier leader. `standing`: the intents of all nodes in the log.
    pub fn on_takeover(&mut self, standing: &[DeviceIntent]) {
        self.took_over = true;
        if self.wanted_intents.is_none() {
            let defaults =
                standing.iter().filter_map(|intent| Some((intent.node.clone(), MpsDefaultAgreement::from_intent(intent)?)));
            self.mps_defaults = defaults.collect();
        }
    }

    pub fn wanted_intents(&self) -> Option<Arc<Vec<DeviceIntent>>> {
        self.wanted_intents.clone()
    }

    /// Returns a channel that holds whether pods are to be watched.
    pub fn subscribe_pod_watch(&self) -> watch::Receiver<bool> {
        self.pod_watch.subscribe()
    }

    /// Pods are watched while anything is wished for.
    pub fn set_pod_watch(&self, wanted: bool) {
        self.pod_watch.send_if_modified(|watched| std::mem::replace(watched, wanted) != wanted);
    }

    pub fn on_pod_watch_failed(&mut self) {
        self.pod_watch_failed = Some(Instant::now());
    }

    /// Returns how long the placement of pods has not been known, although it should be.
    pub fn placement_unknown_for(&mut self, followed: &BTreeSet<&ObjectKey>, now: EventTime) -> Option<Duration> {
        let failing = self.pod_watch_failed.is_some_and(|failed| failed.elapsed() < POD_WATCH_FAILURE_REPEATS);
        // The earlier leader's requests are kept until the nodes of their pods are known.
        let first = self.wanted_intents.is_none()
            && self.placement_unknown_since.is_none_or(|since| since.elapsed() < FIRST_PLACEMENT_WAIT);
        let unknown = || followed.iter().any(|key| self.gpu_pods.placement(key, &self.holders, now).is_none());
        let blind = !followed.is_empty() && (failing || !self.gpu_pods.is_complete() || first && unknown());
        if blind {
            return Some(self.placement_unknown_since.get_or_insert_with(Instant::now).elapsed());
        }
        self.placement_unknown_since = None;
        None
    }

    /// Notes that another process leads.
    pub fn step_down(&mut self) {
        (self.pod_watch_failed, self.placement_unknown_since) = (None, None);
        self.set_pod_watch(false);
        self.assignments.clear();
        self.wanted_intents = None;
    }

    pub fn withdraw_all(&mut self) {
        self.assignments.clear();
        self.mps_defaults.clear();
    }

    /// Returns the messages for policies about their MPS defaults, `None` for no message. `why` has the reasons of policies that
    /// lack their default.
    pub fn mps_default_messages(
        &mut self,
        requests: &BTreeMap<ObjectKey, MpsDefaultRequest>,
        why: BTreeMap<PolicyKey, String>,
    ) -> BTreeMap<PolicyKey, Option<String>> {
        let mut messages: BTreeMap<PolicyKey, Option<String>> =
            std::mem::take(&mut self.mps_default_messages).into_keys().map(|name| (name, None)).collect();
        messages.extend(requests.values().map(|request| (request.policy.clone(), None)));
        messages.extend(why.iter().map(|(name, why)| (name.clone(), Some(why.clone()))));
        self.mps_default_messages = why;
        messages
    }

    /// Returns the messages if the nodes of pods are unknown for so long that nothing is requested.
    pub fn placement_unknown_messages(
        &mut self,
        requests: &BTreeMap<ObjectKey, MpsDefaultRequest>,
    ) -> BTreeMap<PolicyKey, Option<String>> {
        let reason = if self.pod_watch_failed.is_some_and(|failed| failed.elapsed() < POD_WATCH_FAILURE_REPEATS) {
            "the pods of all namespaces cannot be watched (see the actuator's log and its rights; actuator.onlyNamespace leaves them out)"
        } else {
            "the nodes of pods are not known"
        };
        let why = format!("the MPS default is not requested: {reason}");
        self.mps_default_messages(requests, requests.values().map(|request| (request.policy.clone(), why.clone())).collect())
    }

    /// Requests the agreed defaults from nodes, and returns the messages for policies; `None` if no request remains.
    pub fn agree_mps_defaults(
        &mut self,
        requests: &BTreeMap<ObjectKey, MpsDefaultRequest>,
        now: EventTime,
    ) -> BTreeMap<PolicyKey, Option<String>> {
        let Some(parties) = self.gpu_pods.node_gpu_pods() else {
            // Requests are kept until more is known.
            self.mps_defaults.retain(|_, agreed| agreed.is_still_requested(requests));
            return BTreeMap::new();
        };
        let AgreementOutcome { agreed, mut disputes, undetermined: open } =
            mps_default::agree_defaults(requests, &parties, &self.mps_defaults);
        for (node, agreed) in &agreed {
            let Some(trouble) = mps_default::agreement_problem(node, agreed, self.device_states.get(node), now) else { continue };
            for (key, _) in requests.iter().filter(|(_, request)| agreed.covers(request)) {
                disputes.entry(key.clone()).or_insert_with(|| trouble.clone());
            }
        }
        self.mps_defaults = agreed;
        let open = open.into_iter().map(|key| &requests[&key].policy);
        let mut why: BTreeMap<PolicyKey, String> =
            open.filter_map(|policy| Some((policy.clone(), self.mps_default_messages.get(policy)?.clone()))).collect();
        why.extend(disputes.into_iter().map(|(key, why)| (requests[&key].policy.clone(), why)));
        self.mps_default_messages(requests, why)
    }

    pub fn plan_intents(&mut self) {
        let addressed = self.assignments.values().map(|addressed| (&addressed.target, &addressed.placement));
        let intents = target::build_intents(addressed, &self.mps_defaults);
        if self.wanted_intents.as_ref().is_none_or(|wanted| **wanted != intents) {
            self.wanted_intents = Some(Arc::new(intents));
        }
    }
}
