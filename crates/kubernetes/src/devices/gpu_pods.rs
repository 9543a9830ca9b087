//! Index of the pods that hold GPUs, by node, and the workload of each. Pure.
//!
//! The watch reports pods and the resources that they request. Whether a new pod belongs to a workload may depend on the owner of
//! its owner. So the API server is queried once for each workload that it may belong to, and not again until another such pod
//! comes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use eadt_schemas::EventTime;
use eadt_schemas::v1::DeviceHolders;
use serde_json::Value;

use crate::api::client::pod_selector;
use crate::devices::gpu_pod::{GpuPod, read_gpu_pod};
use crate::devices::mps_default::{NodeGpuPods, PodOwnership};
use crate::devices::target::{self, GpuPlacement};
use crate::objects::key::ObjectKey;
use crate::objects::object::WorkloadObject;

/// A pod as the watch last reported it.
#[derive(Debug)]
struct WatchedPod {
    pod: GpuPod,
    terminating: bool,
    /// Hash of its labels and owners, which determine its workload.
    ownership_hash: u64,
}

/// The pods of a workload, by their uids.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkloadPods {
    /// The workload's.
    uid: String,
    selector: Option<String>,
    pods: BTreeSet<String>,
    /// There may be others by now.
    unresolved: bool,
}

impl WorkloadPods {
    /// Builds the state of a workload whose pods are not known yet; only their selector is.
    pub fn unresolved(observed: &WorkloadObject) -> Self {
        Self { uid: observed.uid.clone(), selector: pod_selector(observed), pods: BTreeSet::new(), unresolved: true }
    }
}

/// Pods that hold GPUs, and workloads whose pods are of interest.
#[derive(Debug, Default)]
pub struct GpuPodIndex {
    /// Pods by node and uid.
    pods_by_node: BTreeMap<String, BTreeMap<String, WatchedPod>>,
    /// Nodes by the uids of their pods.
    node_by_uid: BTreeMap<String, String>,
    workloads: BTreeMap<ObjectKey, WorkloadPods>,
    /// Nodes where something is different since the last look.
    changed_nodes: BTreeSet<String>,
    /// Pods of a list that has begun.
    listing: Option<BTreeSet<String>>,
    complete: bool,
}

impl GpuPodIndex {
    /// Begins a list of all pods.
    pub fn begin_list(&mut self) {
        self.listing = Some(BTreeSet::new());
    }

    /// Ends a list of all pods: a pod that was not in it is gone.
    pub fn end_list(&mut self) {
        let listed = self.listing.take().unwrap_or_default();
        let unlisted: Vec<_> = self.node_by_uid.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in unlisted {
            self.remove(&uid);
        }
        self.complete = true;
    }

    /// Forgets everything: nothing is watched any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether every pod was listed.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Stores a pod; returns whether it changed.
    pub fn upsert(&mut self, pod: &Value) -> bool {
        let meta = &pod["metadata"];
        let Some(uid) = meta["uid"].as_str() else { return false };
        let (Some(tenant), Some(node)) = (read_gpu_pod(pod), pod["spec"]["nodeName"].as_str()) else {
            return self.remove(uid);
        };
        if let Some(listing) = &mut self.listing {
            listing.insert(uid.to_owned());
        }
        let mut hasher = DefaultHasher::new();
        (&meta["labels"], &meta["ownerReferences"]).hash(&mut hasher);
        let watched =
            WatchedPod { terminating: !meta["deletionTimestamp"].is_null(), ownership_hash: hasher.finish(), pod: tenant };
        let before = self.pods_by_node.get(node).and_then(|pods| pods.get(uid));
        let same = before.is_some_and(|before| before.ownership_hash == watched.ownership_hash);
        if same && before.is_some_and(|before| before.terminating == watched.terminating) {
            return false;
        }
        // Before the first complete list, no pods are known.
        if !same && self.complete {
            for (_, own) in self.workloads.iter_mut().filter(|(key, _)| key.namespace == watched.pod.namespace) {
                let may = own.selector.as_ref().is_some_and(|selector| selector_matches(selector, &meta["labels"]));
                own.unresolved |= own.pods.remove(uid) || may;
            }
        }
        self.pods_by_node.entry(node.to_owned()).or_default().insert(uid.to_owned(), watched);
        self.node_by_uid.insert(uid.to_owned(), node.to_owned());
        self.changed_nodes.insert(node.to_owned());
        true
    }

    /// Removes a pod; returns true if it was there.
    pub fn remove(&mut self, uid: &str) -> bool {
        let Some(node) = self.node_by_uid.remove(uid) else { return false };
        if let Some(pods) = self.pods_by_node.get_mut(&node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.pods_by_node.remove(&node);
            }
        }
        self.changed_nodes.insert(node);
        true
    }

    /// Tracks these workloads, and no others.
    pub fn track_workloads(&mut self, workloads: BTreeMap<ObjectKey, WorkloadPods>) {
        let mut before = std::mem::replace(&mut self.workloads, workloads);
        for (key, own) in &mut self.workloads {
            let known = before.remove(key).filter(|known| known.uid == own.uid && known.selector == own.selector);
            if let Some(known) = known {
                *own = known;
            }
        }
    }

    /// Returns the workloads whose pods must be requested. Pods that come from now on may be missing in the answers.
    pub fn take_unresolved(&mut self) -> Vec<ObjectKey> {
        let unknown = self.workloads.iter_mut().filter_map(|(key, own)| std::mem::take(&mut own.unresolved).then(|| key.clone()));
        unknown.collect()
    }

    /// Sets the pods of a workload; `None` if there was no answer.
    pub fn resolve(&mut self, key: &ObjectKey, pods: Option<BTreeSet<String>>) {
        let Some(own) = self.workloads.get_mut(key) else { return };
        let Some(pods) = pods else {
            own.unresolved = true;
            return;
        };
        let before = std::mem::replace(&mut own.pods, pods);
        // A pod that the watch has not removed yet may still be the workload's own.
        own.pods.extend(before.into_iter().filter(|uid| self.node_by_uid.contains_key(uid)));
        let nodes = own.pods.iter().filter_map(|uid| self.node_by_uid.get(uid));
        self.changed_nodes.extend(nodes.cloned());
    }

    /// Nodes where something is different since the last look.
    pub fn take_changed_nodes(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed_nodes)
    }

    /// Returns the GPUs that a workload has for itself, or the others on its nodes; `None` if it is unknown so far.
    pub fn placement(
        &self,
        key: &ObjectKey,
        holders: &BTreeMap<String, DeviceHolders>,
        now: EventTime,
    ) -> Option<Result<GpuPlacement, String>> {
        let own = self.workloads.get(key).filter(|own| self.complete && !own.unresolved)?;
        let on = |uid: &String| {
            let node = self.node_by_uid.get(uid)?;
            let pods = self.pods_by_node.get(node)?;
            (!pods.get(uid)?.terminating).then_some((node, pods))
        };
        let nodes: BTreeMap<_, _> = own.pods.iter().filter_map(on).collect();
        let tenants = |pods: &BTreeMap<String, WatchedPod>| pods.values().map(|watched| watched.pod.clone()).collect();
        let tenants = nodes.into_iter().map(|(node, pods)| (node.clone(), tenants(pods))).collect();
        Some(target::find_placement(&own.pods, &tenants, holders, now))
    }

    /// Returns the workloads of the pods that hold GPUs, by node; `None` if it is unknown so far. A pod may belong to any
    /// workload of its namespace whose pods are being queried.
    pub fn node_gpu_pods(&self) -> Option<NodeGpuPods<'_>> {
        if !self.complete {
            return None;
        }
        let unknown: BTreeSet<&String> =
            self.workloads.iter().filter(|(_, own)| own.unresolved).map(|(key, _)| &key.namespace).collect();
        let owners: BTreeMap<&String, &ObjectKey> =
            self.workloads.iter().flat_map(|(key, own)| own.pods.iter().map(move |uid| (uid, key))).collect();
        let mut parties = NodeGpuPods::new();
        for (node, pods) in &self.pods_by_node {
            let whose = |uid, tenant: &GpuPod| match owners.get(uid) {
                Some(key) => PodOwnership::Workload(key),
                None if unknown.contains(&tenant.namespace) => PodOwnership::Unknown,
                None => PodOwnership::Foreign,
            };
            parties.insert(node, pods.iter().map(|(uid, watched)| (&watched.pod, whose(uid, &watched.pod))).collect());
        }
        Some(parties)
    }
}

/// Returns whether a selector, as sent to the API server, selects these labels.
fn selector_matches(selector: &str, labels: &Value) -> bool {
    let mut depth = 0_u32;
    // Lists of values have commas of their own.
    let terms = selector.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let is_in = |key: &str, values: &str| {
        let value = labels[key].as_str();
        value.is_some_and(|value| values.trim_end_matches(')').split(',').any(|one| one == value))
    };
    terms.into_iter().all(|term| {
        if let Some((key, values)) = term.split_once(" in (") {
            is_in(key, values)
        } else if let Some((key, values)) = term.split_once(" notin (") {
            !is_in(key, values)
        } else if let Some((key, value)) = term.split_once('=') {
            labels[key] == value
        } else if let Some(key) = term.strip_prefix('!') {
            labels[key].is_null()
        } else {
            !labels[term].is_null()
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::devices::target::ExclusiveGpus;

    const NOW: f64 = 1_767_225_600.0;

    fn key(name: &str) -> ObjectKey {
        ObjectKey { kind: "StatefulSet", namespace: "eadt".into(), name: name.into() }
    }

    fn own(name: &str) -> (ObjectKey, WorkloadPods) {
        let selector = Some(format!("app={name}"));
        (key(name), WorkloadPods { uid: name.into(), selector, pods: BTreeSet::new(), unresolved: true })
    }

    fn pod(uid: &str, app: &str, node: &str) -> Value {
        json!({
            "metadata": {"namespace": "eadt", "name": uid, "uid": uid, "labels": {"app": app}},
            "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running"},
        })
    }

    fn uids(uids: &[&str]) -> BTreeSet<String> {
        uids.iter().map(|uid| (*uid).to_owned()).collect()
    }

    /// Returns two workloads with a node each.
    fn nodes() -> GpuPodIndex {
        let mut nodes = GpuPodIndex::default();
        nodes.track_workloads([own("a"), own("b")].into());
        nodes.begin_list();
        for (uid, app, node) in [("a-0", "a", "n"), ("a-1", "a", "n"), ("b-0", "b", "m")] {
            assert!(nodes.upsert(&pod(uid, app, node)));
        }
        assert_eq!(place(&nodes, "a"), None, "the list has not ended");
        nodes.end_list();
        assert_eq!(place(&nodes, "a"), None, "it is not known whose they are");
        assert_eq!(nodes.take_unresolved(), [key("a"), key("b")]);
        nodes.resolve(&key("a"), Some(uids(&["a-0", "a-1"])));
        nodes.resolve(&key("b"), Some(uids(&["b-0"])));
        assert_eq!((nodes.take_unresolved(), nodes.take_changed_nodes()), (vec![], uids(&["m", "n"])));
        nodes
    }

    fn place(nodes: &GpuPodIndex, name: &str) -> Option<Result<GpuPlacement, String>> {
        nodes.placement(&key(name), &BTreeMap::new(), EventTime::from_seconds(NOW))
    }

    fn whole(nodes: &[&str]) -> GpuPlacement {
        nodes.iter().map(|node| ((*node).to_owned(), ExclusiveGpus::All)).collect()
    }

    #[test]
    fn what_is_no_news_asks_nothing() {
        let mut nodes = nodes();
        let mut same = pod("a-0", "a", "n");
        same["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        let mut small = pod("c", "a", "n");
        small["spec"]["containers"] = json!([{}]);
        assert!(!nodes.upsert(&same) && !nodes.upsert(&small) && !nodes.remove("c"), "it holds no GPU");
        nodes.track_workloads([own("a"), own("b")].into());
        assert_eq!((nodes.take_unresolved(), nodes.take_changed_nodes()), (vec![], uids(&[])));
        assert_eq!((place(&nodes, "a"), place(&nodes, "b")), (Some(Ok(whole(&["n"]))), Some(Ok(whole(&["m"])))));
    }

    #[test]
    fn a_pod_that_may_be_a_workloads_own_has_it_asked_about_once_and_a_strangers_nobody() {
        let mut nodes = nodes();
        assert!(nodes.upsert(&pod("a-2", "a", "o")));
        assert_eq!(place(&nodes, "a"), None, "whose it is is not known");
        assert_eq!(
            nodes.node_gpu_pods().unwrap()["o"].iter().map(|(_, whose)| *whose).collect::<Vec<_>>(),
            [PodOwnership::Unknown]
        );
        assert_eq!((nodes.take_unresolved(), nodes.take_changed_nodes()), (vec![key("a")], uids(&["o"])));
        // Pods that come during a query are queried again; so are those without an answer.
        assert!(nodes.upsert(&pod("a-3", "a", "p")));
        nodes.resolve(&key("a"), Some(uids(&["a-0", "a-1", "a-2"])));
        assert_eq!((place(&nodes, "a"), nodes.take_unresolved()), (None, vec![key("a")]));
        nodes.resolve(&key("a"), None);
        assert_eq!((place(&nodes, "a"), nodes.take_unresolved()), (None, vec![key("a")]));
        nodes.resolve(&key("a"), Some(uids(&["a-0", "a-1", "a-2", "a-3"])));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n", "o", "p"]))));
        nodes.take_changed_nodes();

        assert!(nodes.upsert(&pod("x", "other", "n")));
        assert_eq!((nodes.take_unresolved(), nodes.take_changed_nodes()), (vec![], uids(&["n"])));
        assert!(place(&nodes, "a").unwrap().unwrap_err().contains("eadt/x"));
        let parties = nodes.node_gpu_pods().unwrap();
        let whose: Vec<_> = parties["n"].iter().map(|(pod, whose)| (pod.name.as_str(), *whose)).collect();
        let a = key("a");
        assert_eq!(
            whose,
            [("a-0", PodOwnership::Workload(&a)), ("a-1", PodOwnership::Workload(&a)), ("x", PodOwnership::Foreign)]
        );
        assert!(nodes.remove("x") && !nodes.remove("x"));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n", "o", "p"]))));
        // A pod with these labels in another namespace belongs to no workload here.
        let mut elsewhere = pod("a-9", "a", "n");
        elsewhere["metadata"]["namespace"] = json!("lab");
        assert!(nodes.upsert(&elsewhere) && nodes.take_unresolved().is_empty());
    }

    #[test]
    fn pods_that_end_leave_their_node_and_are_no_strangers_until_they_are_gone() {
        let mut nodes = nodes();
        let mut ending = pod("a-0", "a", "n");
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(nodes.upsert(&ending) && nodes.take_unresolved().is_empty());
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n"]))));
        assert!(nodes.remove("a-1"));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&[]))), "none of its pods is staying there");
        // The answer may be newer than the watch.
        assert!(nodes.upsert(&pod("a-2", "a", "n")));
        nodes.take_unresolved();
        nodes.resolve(&key("a"), Some(uids(&["a-2"])));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n"]))));
        // A pod that is a workload's no more is a stranger.
        let mut released = pod("a-2", "nobody", "n");
        released["metadata"]["ownerReferences"] = json!([]);
        assert!(nodes.upsert(&released));
        assert_eq!(nodes.take_unresolved(), [key("a")]);
        nodes.resolve(&key("a"), Some(uids(&[])));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&[]))));
    }

    #[test]
    fn a_list_anew_is_held_against_what_was_known() {
        let mut nodes = nodes();
        nodes.begin_list();
        assert!(!nodes.upsert(&pod("a-0", "a", "n")) && nodes.upsert(&pod("x", "other", "m")));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n"]))), "what was known holds meanwhile");
        // It broke off.
        nodes.begin_list();
        assert!(!nodes.upsert(&pod("a-0", "a", "n")) && nodes.upsert(&pod("b-1", "b", "m")));
        nodes.end_list();
        assert_eq!((nodes.take_unresolved(), nodes.take_changed_nodes()), (vec![key("b")], uids(&["m", "n"])));
        nodes.resolve(&key("b"), Some(uids(&["b-1"])));
        assert_eq!((place(&nodes, "a"), place(&nodes, "b")), (Some(Ok(whole(&["n"]))), Some(Ok(whole(&["m"])))));
        // Another object of that name has other pods.
        let (name, other) = own("b");
        nodes.track_workloads([(name, WorkloadPods { uid: "another".into(), ..other })].into());
        assert_eq!((place(&nodes, "a"), place(&nodes, "b"), nodes.take_unresolved()), (None, None, vec![key("b")]));
    }

    #[test]
    fn selectors_select_as_the_api_server_has_it() {
        let labels = json!({"app": "llm", "tier": "gpu"});
        for selector in ["app=llm", "app in (x,llm),tier", "tier notin (cpu,web),!zone,app=llm", "zone notin (a)"] {
            assert!(selector_matches(selector, &labels), "{selector}");
        }
        for selector in ["app=x", "app in (x,y),tier", "tier notin (gpu,web)", "!app", "zone", "zone in (a)", "app=llm,zone=a"] {
            assert!(!selector_matches(selector, &labels), "{selector}");
        }
        assert!(!selector_matches("app=llm", &Value::Null));
    }
}
