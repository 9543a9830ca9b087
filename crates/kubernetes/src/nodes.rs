//! Which pods hold the GPUs of which node, as their watch tells it, and whose they are. Pure.
//!
//! The watch says that pods come and go, and what a pod asks for. Whether a new one is a workload's own may take more than that (what
//! owns its owner), so that it is asked: once for each workload that it may be of, and not again until another such pod comes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use eadt_schemas::EventTime;
use eadt_schemas::v1::DeviceHolders;
use serde_json::Value;

use crate::client::selector;
use crate::defaults::{Parties, Whose};
use crate::devices::{self, Place, Tenant};
use crate::object::Seen;
use crate::state::Key;

/// What is kept of a pod.
#[derive(Debug)]
struct Kept {
    tenant: Tenant,
    terminating: bool,
    /// Of its labels and owners, which say whose it is.
    belongs: u64,
}

/// The pods of a workload, by their uids.
#[derive(Debug, PartialEq, Eq)]
pub struct Own {
    /// The workload's.
    uid: String,
    selector: Option<String>,
    pods: BTreeSet<String>,
    /// There may be others by now.
    unknown: bool,
}

impl Own {
    /// Nothing is known yet of a workload's pods but how they are found.
    pub fn of(seen: &Seen) -> Self {
        Self { uid: seen.uid.clone(), selector: selector(seen), pods: BTreeSet::new(), unknown: true }
    }
}

/// Pods that hold GPUs, and workloads whose pods are of interest.
#[derive(Debug, Default)]
pub struct Nodes {
    /// By node and uid.
    kept: BTreeMap<String, BTreeMap<String, Kept>>,
    /// Nodes by the uids of their pods.
    of: BTreeMap<String, String>,
    own: BTreeMap<Key, Own>,
    /// Nodes where something is different since the last look.
    changed: BTreeSet<String>,
    /// Pods of a list that has begun.
    listing: Option<BTreeSet<String>>,
    complete: bool,
}

impl Nodes {
    /// A list of all pods begins.
    pub fn begin(&mut self) {
        self.listing = Some(BTreeSet::new());
    }

    /// All pods were listed: what was not among them is gone.
    pub fn end(&mut self) {
        let listed = self.listing.take().unwrap_or_default();
        let gone: Vec<_> = self.of.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
        for uid in gone {
            self.gone(&uid);
        }
        self.complete = true;
    }

    /// Nobody watches any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Every pod is known.
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Takes note of a pod; true where it says something new.
    pub fn saw(&mut self, pod: &Value) -> bool {
        let meta = &pod["metadata"];
        let Some(uid) = meta["uid"].as_str() else { return false };
        let (Some(tenant), Some(node)) = (devices::tenant(pod), pod["spec"]["nodeName"].as_str()) else {
            return self.gone(uid);
        };
        if let Some(listing) = &mut self.listing {
            listing.insert(uid.to_owned());
        }
        let mut hasher = DefaultHasher::new();
        (&meta["labels"], &meta["ownerReferences"]).hash(&mut hasher);
        let kept = Kept { terminating: !meta["deletionTimestamp"].is_null(), belongs: hasher.finish(), tenant };
        let before = self.kept.get(node).and_then(|pods| pods.get(uid));
        let same = before.is_some_and(|before| before.belongs == kept.belongs);
        if same && before.is_some_and(|before| before.terminating == kept.terminating) {
            return false;
        }
        // Before that nobody's pods are known.
        if !same && self.complete {
            for (_, own) in self.own.iter_mut().filter(|(key, _)| key.namespace == kept.tenant.namespace) {
                let may = own.selector.as_ref().is_some_and(|selector| selects(selector, &meta["labels"]));
                own.unknown |= own.pods.remove(uid) || may;
            }
        }
        self.kept.entry(node.to_owned()).or_default().insert(uid.to_owned(), kept);
        self.of.insert(uid.to_owned(), node.to_owned());
        self.changed.insert(node.to_owned());
        true
    }

    /// A pod is gone; true where that is new.
    pub fn gone(&mut self, uid: &str) -> bool {
        let Some(node) = self.of.remove(uid) else { return false };
        if let Some(pods) = self.kept.get_mut(&node) {
            pods.remove(uid);
            if pods.is_empty() {
                self.kept.remove(&node);
            }
        }
        self.changed.insert(node);
        true
    }

    /// These workloads are of interest, and no others.
    pub fn follow(&mut self, workloads: BTreeMap<Key, Own>) {
        let mut before = std::mem::replace(&mut self.own, workloads);
        for (key, own) in &mut self.own {
            let known = before.remove(key).filter(|known| known.uid == own.uid && known.selector == own.selector);
            if let Some(known) = known {
                *own = known;
            }
        }
    }

    /// The workloads of which must be asked which pods are theirs. What comes from now on may be missing in the answers.
    pub fn ask(&mut self) -> Vec<Key> {
        let unknown = self.own.iter_mut().filter_map(|(key, own)| std::mem::take(&mut own.unknown).then(|| key.clone()));
        unknown.collect()
    }

    /// The pods of a workload; `None`: there was no answer.
    pub fn answer(&mut self, key: &Key, pods: Option<BTreeSet<String>>) {
        let Some(own) = self.own.get_mut(key) else { return };
        let Some(pods) = pods else {
            own.unknown = true;
            return;
        };
        let before = std::mem::replace(&mut own.pods, pods);
        // What the watch does not know to be gone is no stranger for that.
        own.pods.extend(before.into_iter().filter(|uid| self.of.contains_key(uid)));
        let nodes = own.pods.iter().filter_map(|uid| self.of.get(uid));
        self.changed.extend(nodes.cloned());
    }

    /// Nodes where something is different since the last look.
    pub fn take_changed(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// What a workload has for itself, or who else is there; `None`: it is not known yet.
    pub fn place(&self, key: &Key, holders: &BTreeMap<String, DeviceHolders>, now: EventTime) -> Option<Result<Place, String>> {
        let own = self.own.get(key).filter(|own| self.complete && !own.unknown)?;
        let on = |uid: &String| {
            let node = self.of.get(uid)?;
            let pods = self.kept.get(node)?;
            (!pods.get(uid)?.terminating).then_some((node, pods))
        };
        let nodes: BTreeMap<_, _> = own.pods.iter().filter_map(on).collect();
        let tenants = |pods: &BTreeMap<String, Kept>| pods.values().map(|kept| kept.tenant.clone()).collect();
        let tenants = nodes.into_iter().map(|(node, pods)| (node.clone(), tenants(pods))).collect();
        Some(devices::place(&own.pods, &tenants, holders, now))
    }

    /// Whose the pods are that hold GPUs of each node; `None`: they are not known yet. A pod may be of any workload of its namespace of
    /// which is being asked which pods it has.
    pub fn parties(&self) -> Option<Parties<'_>> {
        if !self.complete {
            return None;
        }
        let unknown: BTreeSet<&String> = self.own.iter().filter(|(_, own)| own.unknown).map(|(key, _)| &key.namespace).collect();
        let owners: BTreeMap<&String, &Key> =
            self.own.iter().flat_map(|(key, own)| own.pods.iter().map(move |uid| (uid, key))).collect();
        let mut parties = Parties::new();
        for (node, kept) in &self.kept {
            let whose = |uid, tenant: &Tenant| match owners.get(uid) {
                Some(key) => Whose::Of(key),
                None if unknown.contains(&tenant.namespace) => Whose::Unknown,
                None => Whose::Others,
            };
            parties.insert(node, kept.iter().map(|(uid, kept)| (&kept.tenant, whose(uid, &kept.tenant))).collect());
        }
        Some(parties)
    }
}

/// Whether a selector, as it is sent to the API server, selects what has these labels.
fn selects(selector: &str, labels: &Value) -> bool {
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
    use crate::devices::Gpus;

    const NOW: f64 = 1_767_225_600.0;

    fn key(name: &str) -> Key {
        Key { kind: "StatefulSet", namespace: "eadt".into(), name: name.into() }
    }

    fn own(name: &str) -> (Key, Own) {
        let selector = Some(format!("app={name}"));
        (key(name), Own { uid: name.into(), selector, pods: BTreeSet::new(), unknown: true })
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

    /// Two workloads with a node each.
    fn nodes() -> Nodes {
        let mut nodes = Nodes::default();
        nodes.follow([own("a"), own("b")].into());
        nodes.begin();
        for (uid, app, node) in [("a-0", "a", "n"), ("a-1", "a", "n"), ("b-0", "b", "m")] {
            assert!(nodes.saw(&pod(uid, app, node)));
        }
        assert_eq!(place(&nodes, "a"), None, "the list has not ended");
        nodes.end();
        assert_eq!(place(&nodes, "a"), None, "it is not known whose they are");
        assert_eq!(nodes.ask(), [key("a"), key("b")]);
        nodes.answer(&key("a"), Some(uids(&["a-0", "a-1"])));
        nodes.answer(&key("b"), Some(uids(&["b-0"])));
        assert_eq!((nodes.ask(), nodes.take_changed()), (vec![], uids(&["m", "n"])));
        nodes
    }

    fn place(nodes: &Nodes, name: &str) -> Option<Result<Place, String>> {
        nodes.place(&key(name), &BTreeMap::new(), EventTime::from_seconds(NOW))
    }

    fn whole(nodes: &[&str]) -> Place {
        nodes.iter().map(|node| ((*node).to_owned(), Gpus::All)).collect()
    }

    #[test]
    fn what_is_no_news_asks_nothing() {
        let mut nodes = nodes();
        let mut same = pod("a-0", "a", "n");
        same["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
        let mut small = pod("c", "a", "n");
        small["spec"]["containers"] = json!([{}]);
        assert!(!nodes.saw(&same) && !nodes.saw(&small) && !nodes.gone("c"), "it holds no GPU");
        nodes.follow([own("a"), own("b")].into());
        assert_eq!((nodes.ask(), nodes.take_changed()), (vec![], uids(&[])));
        assert_eq!((place(&nodes, "a"), place(&nodes, "b")), (Some(Ok(whole(&["n"]))), Some(Ok(whole(&["m"])))));
    }

    #[test]
    fn a_pod_that_may_be_a_workloads_own_has_it_asked_about_once_and_a_strangers_nobody() {
        let mut nodes = nodes();
        assert!(nodes.saw(&pod("a-2", "a", "o")));
        assert_eq!(place(&nodes, "a"), None, "whose it is is not known");
        assert_eq!(nodes.parties().unwrap()["o"].iter().map(|(_, whose)| *whose).collect::<Vec<_>>(), [Whose::Unknown]);
        assert_eq!((nodes.ask(), nodes.take_changed()), (vec![key("a")], uids(&["o"])));
        // What comes while it is asked is asked about again; so is what got no answer.
        assert!(nodes.saw(&pod("a-3", "a", "p")));
        nodes.answer(&key("a"), Some(uids(&["a-0", "a-1", "a-2"])));
        assert_eq!((place(&nodes, "a"), nodes.ask()), (None, vec![key("a")]));
        nodes.answer(&key("a"), None);
        assert_eq!((place(&nodes, "a"), nodes.ask()), (None, vec![key("a")]));
        nodes.answer(&key("a"), Some(uids(&["a-0", "a-1", "a-2", "a-3"])));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n", "o", "p"]))));
        nodes.take_changed();

        assert!(nodes.saw(&pod("x", "other", "n")));
        assert_eq!((nodes.ask(), nodes.take_changed()), (vec![], uids(&["n"])));
        assert!(place(&nodes, "a").unwrap().unwrap_err().contains("eadt/x"));
        let parties = nodes.parties().unwrap();
        let whose: Vec<_> = parties["n"].iter().map(|(pod, whose)| (pod.name.as_str(), *whose)).collect();
        let a = key("a");
        assert_eq!(whose, [("a-0", Whose::Of(&a)), ("a-1", Whose::Of(&a)), ("x", Whose::Others)]);
        assert!(nodes.gone("x") && !nodes.gone("x"));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n", "o", "p"]))));
        // A pod of these labels elsewhere is nobody's here.
        let mut elsewhere = pod("a-9", "a", "n");
        elsewhere["metadata"]["namespace"] = json!("lab");
        assert!(nodes.saw(&elsewhere) && nodes.ask().is_empty());
    }

    #[test]
    fn pods_that_end_leave_their_node_and_are_no_strangers_until_they_are_gone() {
        let mut nodes = nodes();
        let mut ending = pod("a-0", "a", "n");
        ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(nodes.saw(&ending) && nodes.ask().is_empty());
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n"]))));
        assert!(nodes.gone("a-1"));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&[]))), "none of its pods is staying there");
        // The answer may be newer than the watch.
        assert!(nodes.saw(&pod("a-2", "a", "n")));
        nodes.ask();
        nodes.answer(&key("a"), Some(uids(&["a-2"])));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n"]))));
        // A pod that is a workload's no more is a stranger.
        let mut released = pod("a-2", "nobody", "n");
        released["metadata"]["ownerReferences"] = json!([]);
        assert!(nodes.saw(&released));
        assert_eq!(nodes.ask(), [key("a")]);
        nodes.answer(&key("a"), Some(uids(&[])));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&[]))));
    }

    #[test]
    fn a_list_anew_is_held_against_what_was_known() {
        let mut nodes = nodes();
        nodes.begin();
        assert!(!nodes.saw(&pod("a-0", "a", "n")) && nodes.saw(&pod("x", "other", "m")));
        assert_eq!(place(&nodes, "a"), Some(Ok(whole(&["n"]))), "what was known holds meanwhile");
        // It broke off.
        nodes.begin();
        assert!(!nodes.saw(&pod("a-0", "a", "n")) && nodes.saw(&pod("b-1", "b", "m")));
        nodes.end();
        assert_eq!((nodes.ask(), nodes.take_changed()), (vec![key("b")], uids(&["m", "n"])));
        nodes.answer(&key("b"), Some(uids(&["b-1"])));
        assert_eq!((place(&nodes, "a"), place(&nodes, "b")), (Some(Ok(whole(&["n"]))), Some(Ok(whole(&["m"])))));
        // Another object of that name has other pods.
        let (name, other) = own("b");
        nodes.follow([(name, Own { uid: "another".into(), ..other })].into());
        assert_eq!((place(&nodes, "a"), place(&nodes, "b"), nodes.ask()), (None, None, vec![key("b")]));
    }

    #[test]
    fn selectors_select_as_the_api_server_has_it() {
        let labels = json!({"app": "llm", "tier": "gpu"});
        for selector in ["app=llm", "app in (x,llm),tier", "tier notin (cpu,web),!zone,app=llm", "zone notin (a)"] {
            assert!(selects(selector, &labels), "{selector}");
        }
        for selector in ["app=x", "app in (x,y),tier", "tier notin (gpu,web)", "!app", "zone", "zone in (a)", "app=llm,zone=a"] {
            assert!(!selects(selector, &labels), "{selector}");
        }
        assert!(!selects("app=llm", &Value::Null));
    }
}
