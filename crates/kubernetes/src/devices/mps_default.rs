//! The MPS default of nodes: the thread percentage of processes that request none themselves. Pure.
//!
//! A default applies to a whole node. It is requested only if every pod with GPUs there belongs to a workload whose policy has
//! the same value.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceIntent, DeviceState, MpsTenant, SettingOutcome, UpdateMode};

use crate::devices::gpu_pod::GpuPod;
use crate::index::workloads::WorkloadEntry;
use crate::objects::key::{ObjectKey, PolicyKey};
use crate::settings::REPORT_STALE_SECONDS;

/// The MPS default that a policy requests for the nodes of its workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsDefaultRequest {
    /// `namespace/name`.
    pub workload: String,
    pub policy: PolicyKey,
    pub thread_percentage: u32,
    /// The thread percentage that its processes request themselves.
    pub own_thread_percentage: Option<u32>,
    /// Its pods are being replaced.
    pub is_rolling_out: bool,
}

impl MpsDefaultRequest {
    /// Returns the request of a workload; `None` if it has no request now.
    pub fn from_entry(entry: &WorkloadEntry) -> Option<Self> {
        let (effective_policy, observed) = (&entry.effective_policy, &entry.object);
        let thread_percentage = effective_policy.mps_default_thread_percentage?;
        if entry.orphaned || entry.paused || observed.deleting || effective_policy.mode != UpdateMode::Enforce {
            return None;
        }
        Some(Self {
            workload: observed.workload(),
            policy: (observed.namespace.clone(), effective_policy.policy.clone()?),
            thread_percentage,
            own_thread_percentage: observed.layout.mps_thread_percentage,
            is_rolling_out: !observed.progress.complete(),
        })
    }
}

/// The default that all workloads of a node ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsDefaultAgreement {
    pub thread_percentage: u32,
    /// Workloads that requested it; never empty.
    workloads: BTreeSet<String>,
    /// One of the policies, which represents all of them.
    policy: PolicyKey,
}

impl MpsDefaultAgreement {
    /// Returns the agreement of an earlier leader's intent.
    pub fn from_intent(intent: &DeviceIntent) -> Option<Self> {
        let thread_percentage = intent.mps_default_thread_percentage?;
        let workloads = intent.mps_tenants.iter().flatten().map(|tenant| tenant.workload.clone()).collect();
        Some(Self { thread_percentage, workloads, policy: PolicyKey::default() })
    }

    /// Returns the same on behalf of a policy that requests it now; `None` if none of `requests` does.
    fn renewed<'a>(&self, requests: impl Iterator<Item = &'a MpsDefaultRequest>) -> Option<Self> {
        let policy = requests.filter(|request| self.covers(request)).map(|request| request.policy.clone()).min()?;
        Some(Self { policy, ..self.clone() })
    }

    /// Returns an id for the request, which no decision made.
    pub fn decision_id(&self) -> String {
        format!("{}/{}@mps-default", self.policy.0, self.policy.1)
    }

    /// Returns true if this workload is one of those that requested it.
    pub fn covers(&self, request: &MpsDefaultRequest) -> bool {
        self.workloads.contains(&request.workload) && request.thread_percentage == self.thread_percentage
    }

    /// Returns true if all workloads that requested it still do.
    pub fn is_still_requested(&self, requests: &BTreeMap<ObjectKey, MpsDefaultRequest>) -> bool {
        requests.values().filter(|request| self.covers(request)).count() == self.workloads.len()
    }

    pub fn tenants(&self) -> Vec<MpsTenant> {
        let tenant = |workload: &String| MpsTenant { workload: workload.clone(), allows_default_change: true };
        self.workloads.iter().map(tenant).collect()
    }
}

/// The workload of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodOwnership<'a> {
    /// A workload's that is followed.
    Workload(&'a ObjectKey),
    /// None's of these.
    Foreign,
    /// It may be one of these workloads': that is being asked.
    Unknown,
}

/// The pods that hold GPUs of each node, and whose they are.
pub type NodeGpuPods<'a> = BTreeMap<&'a str, Vec<(&'a GpuPod, PodOwnership<'a>)>>;

/// The result of comparing the requests of all workloads.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct AgreementOutcome {
    /// Requested defaults by node.
    pub agreed: BTreeMap<String, MpsDefaultAgreement>,
    /// Reasons against the requested default, by workload.
    pub disputes: BTreeMap<ObjectKey, String>,
    /// Workloads of nodes whose pods are not known yet: their earlier messages are kept.
    pub undetermined: BTreeSet<ObjectKey>,
}

/// Returns the requested default of each node, or the reason why there is none. `before`: the requests so far.
pub fn agree_defaults(
    requests: &BTreeMap<ObjectKey, MpsDefaultRequest>,
    parties: &NodeGpuPods<'_>,
    before: &BTreeMap<String, MpsDefaultAgreement>,
) -> AgreementOutcome {
    let mut outcome = AgreementOutcome::default();
    for (node, pods) in parties {
        let asks =
            |whose: &PodOwnership<'_>| if let PodOwnership::Workload(key) = *whose { requests.get_key_value(key) } else { None };
        let here: BTreeMap<&ObjectKey, &MpsDefaultRequest> = pods.iter().filter_map(|(_, whose)| asks(whose)).collect();
        let Some(first) = here.values().min_by_key(|request| &request.workload) else { continue };
        if pods.iter().any(|(_, whose)| *whose == PodOwnership::Unknown) {
            // A request is kept until more is known, while all policies behind it still have it.
            let agreement = before.get(*node).filter(|agreement| agreement.is_still_requested(requests));
            outcome.agreed.extend(
                agreement
                    .and_then(|agreement| agreement.renewed(requests.values()))
                    .map(|agreement| ((*node).to_owned(), agreement)),
            );
            outcome.undetermined.extend(here.into_keys().cloned());
            continue;
        }
        match find_disagreement(first, &here, pods) {
            None => {
                let workloads = here.values().map(|request| request.workload.clone()).collect();
                let MpsDefaultRequest { thread_percentage, policy, .. } = (*first).clone();
                outcome.agreed.insert((*node).to_owned(), MpsDefaultAgreement { thread_percentage, workloads, policy });
            }
            Some(why) => {
                for key in here.into_keys().cloned() {
                    let dispute = || format!("the MPS default of node {node} is not requested: {why}");
                    outcome.disputes.entry(key).or_insert_with(dispute);
                }
            }
        }
    }
    // All pods of a node may be gone for a moment while they are replaced, and the next ones are to find it.
    for (node, agreement) in before.iter().filter(|(node, _)| !parties.contains_key(node.as_str())) {
        let again = agreement.renewed(requests.values().filter(|request| request.is_rolling_out));
        outcome.agreed.extend(again.map(|again| (node.clone(), again)));
    }
    outcome
}

/// Returns the reason why a node does not get the default that its first workload wants. The text stays the same while the same
/// workloads disagree, whichever pods they have.
fn find_disagreement(
    first: &MpsDefaultRequest,
    here: &BTreeMap<&ObjectKey, &MpsDefaultRequest>,
    pods: &[(&GpuPod, PodOwnership<'_>)],
) -> Option<String> {
    let wanted = first.thread_percentage;
    let silent = |pod: &GpuPod, who: String| {
        format!(
            "{who} holds GPUs there, too (pod {}/{}), and no policy in force of it names an mpsDefaultThreadPercentage",
            pod.namespace, pod.name
        )
    };
    let others = pods.iter().filter_map(|(pod, whose)| match whose {
        PodOwnership::Workload(key) if here.contains_key(key) => None,
        PodOwnership::Workload(key) => Some((pod, format!("{} {}/{}", key.kind, key.namespace, key.name))),
        _ => Some((pod, "another workload".to_owned())),
    });
    let stranger = others.min_by_key(|(pod, _)| (&pod.namespace, &pod.name)).map(|(pod, who)| silent(pod, who));
    stranger.or_else(|| {
        here.values().find_map(|request| {
            if request.thread_percentage != wanted {
                let other = request.thread_percentage;
                return Some(format!("the policy of {} names {other} %, not {wanted} %", request.workload));
            }
            let own = request.own_thread_percentage.filter(|own| *own > wanted)?;
            Some(format!("{} requests {own} % itself and would get {wanted} % only", request.workload))
        })
    })
}

/// Returns why a node does not have the agreed default; `None` if it has it, or its agent has not answered yet.
pub fn agreement_problem(
    node: &str,
    agreed: &MpsDefaultAgreement,
    state: Option<&DeviceState>,
    now: EventTime,
) -> Option<String> {
    let Some(state) = state.filter(|state| !state.stopped && now.seconds_since(state.time) <= REPORT_STALE_SECONDS) else {
        return Some(format!("the agent of node {node} does not answer, which would set its MPS default (agent.enabled)"));
    };
    let requested = agreed.thread_percentage;
    match state.mps_default_outcome {
        SettingOutcome::Refused | SettingOutcome::ChangedByOthers | SettingOutcome::Failed => {
            Some(format!("the MPS default of node {node} is not {requested} %: {}", state.mps_default_reason))
        }
        SettingOutcome::Held | SettingOutcome::Untouched | SettingOutcome::Restored => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl MpsDefaultAgreement {
        /// Returns the request of one workload, by a policy of its name.
        pub fn by(workload: &str, thread_percentage: u32) -> Self {
            let (namespace, name) = workload.split_once('/').unwrap();
            let policy = (namespace.to_owned(), name.to_owned());
            Self { thread_percentage, workloads: [workload.to_owned()].into(), policy }
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey { kind: "StatefulSet", namespace: "eadt".into(), name: name.into() }
    }

    fn asked(name: &str, thread_percentage: u32) -> (ObjectKey, MpsDefaultRequest) {
        let asked = MpsDefaultRequest {
            workload: format!("eadt/{name}"),
            policy: ("eadt".into(), name.into()),
            thread_percentage,
            own_thread_percentage: None,
            is_rolling_out: false,
        };
        (key(name), asked)
    }

    fn pod(name: &str) -> GpuPod {
        GpuPod { namespace: "eadt".into(), name: name.into(), uid: name.into(), created: None }
    }

    /// Compares the requests on node n, which these workloads share; an empty name is a pod of no workload.
    fn on_one_node(
        asked: &BTreeMap<ObjectKey, MpsDefaultRequest>,
        names: &[&str],
    ) -> Result<MpsDefaultAgreement, BTreeMap<ObjectKey, String>> {
        let pods: Vec<_> = names.iter().map(|name| (pod(name), key(name))).collect();
        let whose =
            |key| if asked.contains_key(key) || key.name == "c" { PodOwnership::Workload(key) } else { PodOwnership::Foreign };
        let pods = pods.iter().map(|(pod, key)| (pod, whose(key))).collect();
        let AgreementOutcome { mut agreed, disputes, undetermined: open } =
            agree_defaults(asked, &NodeGpuPods::from([("n", pods)]), &BTreeMap::new());
        assert!((agreed.is_empty() || disputes.is_empty()) && open.is_empty());
        agreed.remove("n").ok_or(disputes)
    }

    #[test]
    fn a_node_is_asked_where_all_its_workloads_name_the_same() {
        let both = BTreeMap::from([asked("a", 40), asked("b", 40)]);
        let agreed = on_one_node(&both, &["a", "b", "a"]).unwrap();
        assert_eq!(agreed.thread_percentage, 40);
        let tenants: Vec<_> = agreed.tenants().into_iter().map(|t| (t.workload, t.allows_default_change)).collect();
        assert_eq!(tenants, [("eadt/a".to_owned(), true), ("eadt/b".to_owned(), true)]);
        assert_eq!(agreed.decision_id(), "eadt/a@mps-default");
        assert_eq!(on_one_node(&both, &["c"]).unwrap_err(), BTreeMap::new(), "nobody there asks for anything");
    }

    #[test]
    fn whoever_does_not_agree_is_named_to_all_others() {
        let why = |asked: &[(ObjectKey, MpsDefaultRequest)], names: &[&str]| {
            let disputes = on_one_node(&asked.iter().cloned().collect(), names).unwrap_err();
            assert!(disputes.values().all(|why| why.starts_with("the MPS default of node n is not requested: ")), "{disputes:?}");
            (disputes.keys().map(|key| key.name.clone()).collect::<Vec<_>>(), disputes[&key("a")].clone())
        };
        let (named, why_of) = why(&[asked("a", 40), asked("b", 50)], &["a", "b"]);
        assert_eq!(named, ["a", "b"]);
        assert!(why_of.contains("the policy of eadt/b names 50 %, not 40 %"), "{why_of}");
        for (stranger, words) in
            [("", "another workload holds GPUs there, too (pod eadt/)"), ("c", "StatefulSet eadt/c holds GPUs")]
        {
            let (named, why_of) = why(&[asked("a", 40)], &["a", stranger]);
            assert_eq!(named, ["a"]);
            assert!(why_of.contains(words), "{why_of}");
        }
        assert_eq!(
            why(&[asked("a", 40), asked("b", 50)], &["b", "a", "a"]).1,
            why(&[asked("a", 40), asked("b", 50)], &["a", "b"]).1
        );
        let (name, mut greedy) = asked("b", 40);
        greedy.own_thread_percentage = Some(60);
        let (_, why_of) = why(&[asked("a", 40), (name, greedy)], &["a", "b"]);
        assert!(why_of.contains("eadt/b requests 60 % itself"), "{why_of}");
    }

    #[test]
    fn a_node_without_pods_keeps_it_while_they_are_replaced() {
        let mut all = BTreeMap::from([asked("a", 40)]);
        let agreed = on_one_node(&all, &["a"]).unwrap();
        let before = BTreeMap::from([("n".to_owned(), agreed)]);
        let after =
            |asked: &BTreeMap<ObjectKey, MpsDefaultRequest>, pods: NodeGpuPods<'_>| agree_defaults(asked, &pods, &before).agreed;
        assert!(after(&all, NodeGpuPods::new()).is_empty(), "it is at rest: its pods are elsewhere");
        all.get_mut(&key("a")).unwrap().is_rolling_out = true;
        assert_eq!(after(&all, NodeGpuPods::new()), before);
        let other = pod("other");
        // A new leader reads it from the log.
        let intent = DeviceIntent {
            mps_default_thread_percentage: Some(40),
            mps_tenants: Some(before["n"].tenants()),
            ..DeviceIntent::default()
        };
        let read = BTreeMap::from([("n".to_owned(), MpsDefaultAgreement::from_intent(&intent).unwrap())]);
        assert_eq!(agree_defaults(&all, &NodeGpuPods::new(), &read).agreed, before);
        assert!(
            after(&all, NodeGpuPods::from([("n", vec![(&other, PodOwnership::Foreign)])])).is_empty(),
            "somebody else is there"
        );
        all.get_mut(&key("a")).unwrap().thread_percentage = 50;
        assert!(after(&all, NodeGpuPods::new()).is_empty(), "something else is asked for");
    }

    #[test]
    fn where_it_is_not_known_whose_a_pod_is_the_agreement_stays() {
        let mut all = BTreeMap::from([asked("a", 40), asked("b", 40)]);
        let agreement = on_one_node(&all, &["a", "b"]).unwrap();
        let (name, new, other) = (key("a"), pod("new"), pod("other"));
        let (own, whole) = (pod("a"), key("b"));
        let parties = NodeGpuPods::from([
            ("n", vec![(&own, PodOwnership::Workload(&name)), (&new, PodOwnership::Unknown)]),
            ("m", vec![(&own, PodOwnership::Workload(&whole)), (&other, PodOwnership::Foreign)]),
        ]);
        let before = |node: &str| BTreeMap::from([(node.to_owned(), agreement.clone())]);
        let outcome = agree_defaults(&all, &parties, &before("n"));
        assert_eq!((&outcome.agreed, outcome.undetermined), (&before("n"), [key("a")].into()));
        assert_eq!(outcome.disputes.keys().collect::<Vec<_>>(), [&whole], "elsewhere it is known");
        assert!(agree_defaults(&all, &parties, &BTreeMap::new()).agreed.is_empty(), "there is no agreement before");
        all.remove(&whole);
        assert!(agree_defaults(&all, &parties, &before("n")).agreed.is_empty(), "one of them asks for it no more");
    }

    #[test]
    fn what_an_agent_does_not_do_is_reported() {
        let now = EventTime::from_seconds(1_767_225_600.0);
        let agreed = on_one_node(&BTreeMap::from([asked("a", 40)]), &["a"]).unwrap();
        let problem = |outcome, after: f64| {
            let reason = "not allowed on this node".to_owned();
            let state =
                DeviceState { time: now, mps_default_outcome: outcome, mps_default_reason: reason, ..DeviceState::default() };
            agreement_problem("n", &agreed, Some(&state), now.plus_seconds(after))
        };
        for good in [SettingOutcome::Held, SettingOutcome::Untouched, SettingOutcome::Restored] {
            assert_eq!(problem(good, 60.0), None);
        }
        for bad in [SettingOutcome::Refused, SettingOutcome::Failed, SettingOutcome::ChangedByOthers] {
            assert_eq!(problem(bad, 60.0).unwrap(), "the MPS default of node n is not 40 %: not allowed on this node");
        }
        for silent in [problem(SettingOutcome::Held, REPORT_STALE_SECONDS + 1.0), agreement_problem("n", &agreed, None, now)] {
            assert!(silent.unwrap().contains("does not answer"));
        }
    }
}
