//! Which pods hold this node's GPUs, from the kubelet, and which workloads these pods are of.
//!
//! The kubelet is asked over and over: version 1 of its API has no watch. Who a pod belongs to is asked of [`Owners`] once a
//! minute. While the kubelet does not answer, the last answer holds for a minute; after that GPUs have no workload rather
//! than a wrong one.

pub mod api;
pub mod holders;
pub mod owners;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use eadt_service::Shutdown;
use tokio::task::JoinSet;

use crate::metrics::CollectorMetrics;
use crate::shares::{Claim, Whole, attribute};
use crate::tenancy::Tenant;
use api::Kubelet;
use holders::{Holders, Pod, holders};
use owners::{Owners, PodFacts};

/// How long an answer holds while the kubelet gives none.
const STALE: Duration = Duration::from_mins(1);
/// What is known of a pod is asked for again after this time: another of the same name may have come, with another MPS percentage.
const FRESH: Duration = Duration::from_mins(1);
/// A pod of which nothing could be found is asked for again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// How the kubelet is asked, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub socket: PathBuf,
    pub interval: Duration,
    pub timeout: Duration,
    /// Prefixes of the names of resources that are GPUs.
    pub resources: Vec<String>,
}

type Map = HashMap<String, Arc<[Tenant]>>;

/// The workloads of this node's GPUs by the kubelet's word. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct PodGpus(Arc<RwLock<Map>>);

impl PodGpus {
    /// The workloads of a GPU; `None` where no pod holds it.
    pub fn of(&self, uuid: &str) -> Option<Arc<[Tenant]>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(uuid).cloned()
    }

    fn replace(&self, map: Map) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = map;
    }
}

/// What is known of a pod, and when it is asked for next.
#[derive(Debug)]
struct Known {
    facts: Option<PodFacts>,
    due: Instant,
}

/// A pod and what was found out.
type Found = (Pod, Result<PodFacts, String>);

/// Asks the kubelet until shutdown.
#[derive(Debug)]
pub(crate) struct Follower {
    settings: Settings,
    owners: Arc<dyn Owners>,
    gpus: PodGpus,
    metrics: CollectorMetrics,
    known: HashMap<Pod, Known>,
    asking: JoinSet<Found>,
    complained: HashSet<String>,
}

impl Follower {
    pub fn new(settings: Settings, owners: Arc<dyn Owners>, gpus: PodGpus, metrics: CollectorMetrics) -> Self {
        Self { settings, owners, gpus, metrics, known: HashMap::new(), asking: JoinSet::new(), complained: HashSet::new() }
    }

    pub async fn run(mut self, shutdown: Shutdown) {
        let mut kubelet: Option<Kubelet> = None;
        let mut answered: Option<Instant> = None;
        while !shutdown.is_cancelled() {
            let asked = tokio::select! {
                asked = self.ask(&mut kubelet) => asked,
                () = shutdown.cancelled() => return,
            };
            match asked {
                Ok(holders) => {
                    if answered.is_none_or(|at| at.elapsed() > STALE) {
                        tracing::info!(devices = holders.by_device.len(), "the kubelet says which pods hold GPUs");
                    }
                    self.metrics.kubelet_up.set(1);
                    answered = Some(Instant::now());
                    tokio::select! {
                        () = self.take(&holders) => {}
                        () = shutdown.cancelled() => return,
                    }
                }
                Err(detail) => {
                    kubelet = None;
                    self.metrics.kubelet_failures.inc();
                    if self.metrics.kubelet_up.set(0) != 0 || answered.is_none() && self.complained.insert("kubelet".to_owned()) {
                        let socket = self.settings.socket.display();
                        tracing::warn!(%socket, detail, "the kubelet does not say which pods hold GPUs; mount its socket, and run as a user that may open it");
                    }
                    if answered.is_some_and(|at| at.elapsed() > STALE) {
                        self.gpus.replace(Map::new());
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(self.settings.interval) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    async fn ask(&self, kubelet: &mut Option<Kubelet>) -> Result<Holders, String> {
        let connection = match kubelet {
            Some(connection) => connection,
            None => kubelet.insert(Kubelet::connect(&self.settings.socket, self.settings.timeout).await?),
        };
        let answer = tokio::time::timeout(self.settings.timeout, connection.list()).await;
        let list = answer.map_err(|_| format!("no answer within {:?}", self.settings.timeout))??;
        Ok(holders(&list, &self.settings.resources))
    }

    async fn take(&mut self, holders: &Holders) {
        let pods: HashSet<&Pod> = holders.by_device.values().flatten().map(|held| &held.pod).collect();
        self.known.retain(|pod, _| pods.contains(pod));
        let now = Instant::now();
        for pod in pods {
            let known = self.known.entry(pod.clone()).or_insert(Known { facts: None, due: now });
            if known.due <= now {
                known.due = now + ASK_AGAIN;
                let (owners, pod) = (self.owners.clone(), pod.clone());
                self.asking.spawn(async move {
                    let facts = owners.facts(&pod).await;
                    (pod, facts)
                });
            }
        }
        // Answers that take longer are taken the next time: the rest of the node does not wait for them.
        let all = async {
            while let Some(done) = self.asking.join_next().await {
                if let Ok(found) = done {
                    learn(&mut self.known, &mut self.complained, found);
                }
            }
        };
        drop(tokio::time::timeout(self.settings.interval, all).await);
        self.metrics.kubelet_unknown_pods.set(self.known.values().filter(|known| known.facts.is_none()).count() as i64);
        let instances = holders.by_device.keys().filter(|device| !device.starts_with("GPU-")).count();
        self.metrics.kubelet_unmatched.set((holders.nameless.len() + instances) as i64);
        for (pod, device) in &holders.nameless {
            if self.complained.insert(format!("{}/{} {device}", pod.namespace, pod.name)) {
                tracing::warn!(
                    namespace = pod.namespace,
                    pod = pod.name,
                    device,
                    "a pod holds a device of which no UUID is known; it is reported without a workload"
                );
            }
        }
        self.gpus.replace(tenants(holders, &self.known));
    }
}

/// Takes what was found out about a pod. Where nothing was, what is known already holds as long as the kubelet has the pod.
fn learn(known: &mut HashMap<Pod, Known>, complained: &mut HashSet<String>, (pod, facts): Found) {
    let Some(entry) = known.get_mut(&pod) else { return };
    match facts {
        Ok(facts) => *entry = Known { facts: Some(facts), due: Instant::now() + FRESH },
        Err(detail) => {
            if complained.insert(format!("{}/{}", pod.namespace, pod.name)) {
                let without = entry.facts.is_none();
                tracing::warn!(
                    namespace = pod.namespace,
                    pod = pod.name,
                    detail,
                    without,
                    "a pod's workload cannot be asked for; its GPUs are reported with what was known of it, if anything"
                );
            }
        }
    }
}

/// Workloads and shares of every GPU. A GPU that also works for a pod of which nothing is known is cut by what is
/// known of the others only where that is a measure of its own: the stranger's part is nobody's.
fn tenants(holders: &Holders, known: &HashMap<Pod, Known>) -> Map {
    let mut map = Map::new();
    let by_gpu: BTreeMap<_, _> = holders.by_device.iter().filter(|(device, _)| device.starts_with("GPU-")).collect();
    for (device, held) in by_gpu {
        let (mut claims, mut strangers) = (Vec::new(), 0_usize);
        for held in held {
            match known.get(&held.pod).and_then(|known| known.facts.as_ref()) {
                Some(facts) => claims.push(Claim {
                    workload: facts.workload.clone(),
                    mps_thread_percentage: facts.mps_thread_percentage,
                    ..Claim::default()
                }),
                None => strangers += 1,
            }
        }
        if claims.is_empty() {
            continue;
        }
        let mut tenants = attribute(&claims, Whole::default());
        if strangers > 0 {
            let part = tenants.len() as f64 / (tenants.len() + strangers) as f64;
            for tenant in &mut tenants {
                tenant.share = Some(tenant.share.unwrap_or(1.0) * part);
                tenant.method.get_or_insert_default();
            }
        }
        map.insert(device.clone(), tenants.into());
    }
    map
}

#[cfg(test)]
mod tests {
    use super::holders::Held;
    use super::*;

    fn pod(name: &str) -> Pod {
        Pod { namespace: "n".into(), name: name.into() }
    }

    fn facts(workload: &str, percentage: f64) -> PodFacts {
        PodFacts { workload: workload.into(), mps_thread_percentage: Some(percentage) }
    }

    #[test]
    fn what_is_known_holds_until_something_else_is() {
        let (mut known, mut complained) = (HashMap::new(), HashSet::new());
        let now = Instant::now();
        known.insert(pod("a"), Known { facts: None, due: now });
        known.insert(pod("b"), Known { facts: None, due: now });
        let mut learn = |name: &str, found: Result<PodFacts, String>| {
            learn(&mut known, &mut complained, (pod(name), found));
            let held = ["a", "b", "gone"].map(|name| Held { pod: pod(name), replicas: 1 });
            let holders = Holders { by_device: BTreeMap::from([("GPU-x".to_owned(), held[..2].to_vec())]), ..Holders::default() };
            let map = tenants(&holders, &known);
            map.get("GPU-x")
                .map(|t| t.iter().map(|t| (t.workload.clone(), t.share.map(|s| (s * 100.0).round() as u32))).collect())
        };
        let share = |workload: &str, percent: u32| (workload.to_owned(), Some(percent));
        assert_eq!(learn("a", Err("no answer".into())), None::<Vec<_>>, "nothing rather than something wrong");
        assert_eq!(learn("a", Ok(facts("n/llm", 30.0))), Some(vec![share("n/llm", 50)]), "the stranger's half is nobody's");
        assert_eq!(learn("b", Ok(facts("n/eval", 20.0))), Some(vec![share("n/llm", 30), share("n/eval", 20)]));
        assert_eq!(learn("a", Err("no answer".into())), Some(vec![share("n/llm", 30), share("n/eval", 20)]));
        assert_eq!(
            learn("a", Ok(facts("n/llm", 60.0))),
            Some(vec![share("n/llm", 60), share("n/eval", 20)]),
            "a new pod of that name"
        );
        assert_eq!(learn("gone", Ok(facts("n/x", 1.0))), Some(vec![share("n/llm", 60), share("n/eval", 20)]));
        assert!(known[&pod("a")].due > now + ASK_AGAIN);
        assert_eq!(known.len(), 2);
    }
}
