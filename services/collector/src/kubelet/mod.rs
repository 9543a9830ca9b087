//! Reads the pods that hold this node's GPUs from the kubelet, and finds their workloads.
//!
//! The kubelet is polled: version 1 of its API has no watch. The owner of a pod comes from [`PodFactsLookup`], once a minute.
//! The holders of the GPUs are also published, for services that address GPUs by them. While the kubelet does not answer, the
//! last answer holds for a minute; after that GPUs have no workload rather than a wrong one.

pub mod api;
pub mod holders;
pub mod owners;
pub mod processes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use eadt_schemas::v1::{DeviceHolders, HeldDevice, PodName, ShareMethod};
use eadt_service::tasks::POD_FACTS;
use eadt_service::{ServiceClock, Shutdown};
use tokio::task::JoinSet;

use crate::metrics::CollectorMetrics;
use crate::nvml::{GpuIdentity, MigInstances};
use crate::shares::{DeviceTotals, ShareSignals, attribute};
use crate::sink::EventSink;
use crate::tenancy::BoardTenant;
use api::KubeletClient;
use holders::{DeviceAllocations, PodAllocation, PodKey, holders};
use owners::{PodFacts, PodFactsLookup};

/// Longest time that an answer holds while the kubelet gives none.
const STALE: Duration = Duration::from_mins(1);
/// A pod's facts are asked for again after this time: another of the same name may have come, with another MPS percentage.
const FRESH: Duration = Duration::from_mins(1);
/// The SM usage of processes is ignored after this time.
const USAGE_MAX_AGE: Duration = Duration::from_secs(5);
/// A pod of which nothing could be found is asked for again after this time.
const FACTS_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// The holders of the GPUs are published again after this time, so that readers can distinguish a running collector from one that
/// is gone.
const REPUBLISH_INTERVAL: Duration = Duration::from_mins(1);

/// Checked settings for calls to the kubelet.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeletSettings {
    pub socket: PathBuf,
    pub interval: Duration,
    pub timeout: Duration,
    /// Prefixes of the names of resources that are GPUs.
    pub resources: Vec<String>,
    /// Folder of the host's processes, if GPUs are attributed by use.
    pub process_directory: Option<PathBuf>,
}

type TenantsByGpu = HashMap<String, Arc<[BoardTenant]>>;
/// MIG instances by the GPU's UUID.
type InstancesByGpu = BTreeMap<String, MigInstances>;
/// GPUs that answered, by their UUIDs.
type IdentityByGpu = BTreeMap<String, GpuIdentity>;
/// Time of the last reading, and each process's use of the GPU's SMs, added up, by the GPU's UUID.
type ProcessUsageByGpu = HashMap<String, (Instant, BTreeMap<u32, f64>)>;
/// Use of the processes of each pod, by the pod's UID; `None` for processes outside of pods. Only the proportions have a
/// meaning.
type UsageByPod = BTreeMap<Option<String>, f64>;

/// The workloads of this node's GPUs by the kubelet's word. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct PodGpus(Arc<PodGpuState>);

#[derive(Debug, Default)]
struct PodGpuState {
    tenants: RwLock<TenantsByGpu>,
    /// The kubelet is asked.
    followed: bool,
    instances: RwLock<InstancesByGpu>,
    boards: RwLock<IdentityByGpu>,
    processes: Option<Mutex<ProcessUsageByGpu>>,
}

impl PodGpus {
    /// Builds the table for these settings; `None` if the kubelet is not used.
    pub fn new(settings: Option<&KubeletSettings>) -> Self {
        let processes = settings.and_then(|settings| settings.process_directory.as_ref()).map(|_| Mutex::default());
        Self(Arc::new(PodGpuState { followed: settings.is_some(), processes, ..PodGpuState::default() }))
    }

    /// Returns whether [`Self::set_instances`] is of use.
    pub fn wants_instances(&self) -> bool {
        self.0.followed
    }

    /// Returns whether [`Self::add_process_usage`] is of use.
    pub fn wants_processes(&self) -> bool {
        self.0.processes.is_some()
    }

    /// Adds what processes used of a GPU's SMs. In force with the kubelet's next answer.
    pub fn add_process_usage(&self, uuid: &str, used: BTreeMap<u32, f64>) {
        let Some(processes) = &self.0.processes else { return };
        let mut processes = processes.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let (at, sums) = processes.entry(uuid.to_owned()).or_insert_with(|| (now, BTreeMap::new()));
        *at = now;
        for (process, ratio) in used {
            *sums.entry(process).or_insert(0.0) += ratio;
        }
    }

    fn take_processes(&self) -> ProcessUsageByGpu {
        let processes = self.0.processes.as_ref();
        processes.map(|p| std::mem::take(&mut *p.lock().unwrap_or_else(PoisonError::into_inner))).unwrap_or_default()
    }

    /// Returns the workloads of a GPU; `None` if no pod holds it.
    pub fn of(&self, uuid: &str) -> Option<Arc<[BoardTenant]>> {
        self.0.tenants.read().unwrap_or_else(PoisonError::into_inner).get(uuid).cloned()
    }

    /// Notes how a GPU is cut; `None` if it is not in MIG mode. In force with the kubelet's next answer.
    pub fn set_instances(&self, uuid: &str, instances: Option<MigInstances>) {
        let known = self.instances();
        if known.get(uuid) == instances.as_ref() {
            return;
        }
        drop(known);
        let mut mig_instances = self.0.instances.write().unwrap_or_else(PoisonError::into_inner);
        match instances {
            Some(instances) => drop(mig_instances.insert(uuid.to_owned(), instances)),
            None => drop(mig_instances.remove(uuid)),
        }
    }

    /// Notes what board a GPU is.
    pub fn opened(&self, gpu: &GpuIdentity) {
        let mut boards = self.0.boards.write().unwrap_or_else(PoisonError::into_inner);
        boards.insert(gpu.uuid.clone(), gpu.clone());
    }

    fn boards(&self) -> RwLockReadGuard<'_, IdentityByGpu> {
        self.0.boards.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn instances(&self) -> RwLockReadGuard<'_, InstancesByGpu> {
        self.0.instances.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn replace(&self, map: TenantsByGpu) {
        *self.0.tenants.write().unwrap_or_else(PoisonError::into_inner) = map;
    }
}

/// Known facts of a pod, and the time of the next query.
#[derive(Debug)]
struct CachedPodFacts {
    facts: Option<PodFacts>,
    due: Instant,
}

/// A pod and the result of its lookup.
type PodFactsResult = (PodKey, Result<PodFacts, String>);

/// Publishes the holders of the node's GPUs, on a change and once a minute.
#[derive(Debug)]
pub(crate) struct HoldersPublisher {
    sink: EventSink,
    node: String,
    clock: ServiceClock,
    last: Option<(Instant, DeviceHolders)>,
}

impl HoldersPublisher {
    pub fn new(sink: EventSink, node: String, clock: ServiceClock) -> Self {
        Self { sink, node, clock, last: None }
    }

    fn publish_if_changed(&mut self, holders: &DeviceAllocations, known: &HashMap<PodKey, CachedPodFacts>, gpus: &PodGpus) {
        let (devices, unplaced) = held_devices(holders, known, &gpus.instances(), &gpus.boards());
        let same = |(at, published): &(Instant, DeviceHolders)| {
            at.elapsed() < REPUBLISH_INTERVAL && published.devices == devices && published.unplaced == unplaced
        };
        if self.last.as_ref().is_some_and(same) {
            return;
        }
        let event = DeviceHolders { time: self.clock.now(), node: self.node.clone(), devices, unplaced };
        if let Err(refusal) = self.sink.holders("kubelet", &event) {
            tracing::warn!(detail = refusal.detail, "the pods that use the GPUs of this node cannot be published");
        }
        self.last = Some((Instant::now(), event));
    }
}

/// Returns the holders of each GPU, and the pods that hold an unknown one. MIG instances count as parts of their GPU.
fn held_devices(
    holders: &DeviceAllocations,
    known: &HashMap<PodKey, CachedPodFacts>,
    mig_instances: &InstancesByGpu,
    boards: &IdentityByGpu,
) -> (Vec<HeldDevice>, Vec<PodName>) {
    let name = |pod: &PodKey| PodName {
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        workload: known.get(pod).and_then(|known| Some(known.facts.as_ref()?.workload.clone())),
    };
    let mut devices: BTreeMap<&str, BTreeSet<PodName>> = BTreeMap::new();
    let mut unplaced: BTreeSet<PodName> = holders.nameless.iter().map(|(pod, _)| name(pod)).collect();
    for (device, held) in &holders.by_device {
        let pods = held.iter().map(|held| name(&held.pod));
        match gpu_of(device, mig_instances) {
            Some((gpu, _)) => devices.entry(gpu).or_default().extend(pods),
            None => unplaced.extend(pods),
        }
    }
    let held = |(device, pods): (&str, BTreeSet<PodName>)| {
        let board = boards.get(device);
        let watts = board.and_then(|board| board.default_power_limit_milliwatts).map(|limit| f64::from(limit) / 1e3);
        HeldDevice {
            device: device.to_owned(),
            gpu_model: board.and_then(|board| board.model.clone()),
            default_power_limit_watts: watts,
            pods: pods.into_iter().collect(),
        }
    };
    (devices.into_iter().map(held).collect(), unplaced.into_iter().collect())
}

/// Returns the GPU that a device is, or is an instance of, and then the instance's slices.
fn gpu_of<'a>(device: &'a str, mig_instances: &'a InstancesByGpu) -> Option<(&'a str, Option<u32>)> {
    if device.starts_with("GPU-") {
        return Some((device, None));
    }
    mig_instances.iter().find_map(|(gpu, instances)| Some((gpu.as_str(), Some(*instances.by_uuid.get(device)?))))
}

/// Asks the kubelet until shutdown.
#[derive(Debug)]
pub(crate) struct KubeletPoller {
    settings: KubeletSettings,
    owners: Arc<dyn PodFactsLookup>,
    gpus: PodGpus,
    metrics: CollectorMetrics,
    known: HashMap<PodKey, CachedPodFacts>,
    /// Time of the last reading, and use by pod, by the GPU's UUID.
    used: HashMap<String, (Instant, UsageByPod)>,
    asking: JoinSet<PodFactsResult>,
    complained: HashSet<String>,
    publisher: HoldersPublisher,
}

impl KubeletPoller {
    pub fn new(
        settings: KubeletSettings,
        owners: Arc<dyn PodFactsLookup>,
        gpus: PodGpus,
        metrics: CollectorMetrics,
        holders_publisher: HoldersPublisher,
    ) -> Self {
        Self {
            settings,
            owners,
            gpus,
            metrics,
            known: HashMap::new(),
            used: HashMap::new(),
            asking: JoinSet::new(),
            complained: HashSet::new(),
            publisher: holders_publisher,
        }
    }

    pub async fn run(mut self, shutdown: Shutdown) {
        let mut kubelet: Option<KubeletClient> = None;
        let mut answered: Option<Instant> = None;
        while !shutdown.is_cancelled() {
            let answer = tokio::select! {
                asked = self.list_allocations(&mut kubelet) => asked,
                () = shutdown.cancelled() => return,
            };
            match answer {
                Ok(holders) => {
                    if answered.is_none_or(|at| at.elapsed() > STALE) {
                        tracing::info!(devices = holders.by_device.len(), "the kubelet reports which pods hold GPUs");
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
                        tracing::warn!(%socket, detail, "the kubelet does not report which pods hold GPUs; mount its socket, and run as a user that may open it");
                    }
                    if answered.is_some_and(|at| at.elapsed() > STALE) {
                        self.gpus.replace(TenantsByGpu::new());
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(self.settings.interval) => {}
                () = shutdown.cancelled() => {}
            }
        }
    }

    async fn list_allocations(&self, kubelet: &mut Option<KubeletClient>) -> Result<DeviceAllocations, String> {
        let connection = match kubelet {
            Some(connection) => connection,
            None => kubelet.insert(KubeletClient::connect(&self.settings.socket, self.settings.timeout).await?),
        };
        let answer = tokio::time::timeout(self.settings.timeout, connection.list()).await;
        let list = answer.map_err(|_| format!("no answer within {:?}", self.settings.timeout))??;
        Ok(holders(&list, &self.settings.resources))
    }

    async fn take(&mut self, holders: &DeviceAllocations) {
        let pods: HashSet<&PodKey> = holders.by_device.values().flatten().map(|held| &held.pod).collect();
        self.known.retain(|pod, _| pods.contains(pod));
        let now = Instant::now();
        for pod in pods {
            let known = self.known.entry(pod.clone()).or_insert(CachedPodFacts { facts: None, due: now });
            if known.due <= now {
                known.due = now + FACTS_RETRY_INTERVAL;
                let (owners, pod) = (self.owners.clone(), pod.clone());
                POD_FACTS.begin();
                self.asking.spawn(async move {
                    let facts = owners.facts(&pod).await;
                    (pod, facts)
                });
            }
        }
        // Answers that take longer are taken the next time: the rest of the node does not wait for them.
        let all = async {
            while let Some(done) = self.asking.join_next().await {
                match done {
                    Ok(found) => record_facts(&mut self.known, &mut self.complained, found),
                    Err(error) => POD_FACTS.failed(&error.to_string()),
                }
            }
        };
        drop(tokio::time::timeout(self.settings.interval, all).await);
        self.publisher.publish_if_changed(holders, &self.known, &self.gpus);
        self.metrics.kubelet_unknown_pods.set(self.known.values().filter(|known| known.facts.is_none()).count() as i64);
        if let Some(directory) = &self.settings.process_directory {
            for (gpu, (at, processes)) in self.gpus.take_processes() {
                let mut by_pod = UsageByPod::new();
                for (process, ratio) in processes {
                    *by_pod.entry(processes::pod_of(directory, process)).or_insert(0.0) += ratio;
                }
                self.used.insert(gpu, (at, by_pod));
            }
            // No process computes, or the GPU reports no usage any more: the next best signal holds.
            self.used.retain(|_, (at, _)| at.elapsed() < USAGE_MAX_AGE);
        }
        let (tenants, unmatched) =
            tenants(holders, &self.known, &self.gpus.instances(), |gpu| self.used.get(gpu).map(|(_, used)| used));
        self.metrics.kubelet_unmatched.set((holders.nameless.len() + unmatched) as i64);
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
        self.gpus.replace(tenants);
    }
}

/// Records the facts about a pod. If the lookup failed, earlier facts stay valid as long as the kubelet has the pod.
fn record_facts(known: &mut HashMap<PodKey, CachedPodFacts>, complained: &mut HashSet<String>, (pod, facts): PodFactsResult) {
    let Some(entry) = known.get_mut(&pod) else { return };
    match facts {
        Ok(facts) => *entry = CachedPodFacts { facts: Some(facts), due: Instant::now() + FRESH },
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

/// Returns the workloads and shares of every GPU, and the number of instances without a known GPU. A GPU may also work for an
/// unknown pod. It is shared by the known pods only if their parts are measured; the unknown pod's part is assigned to no
/// workload. An instance that several pods share is cut equally.
fn tenants<'a>(
    holders: &DeviceAllocations,
    known: &HashMap<PodKey, CachedPodFacts>,
    mig_instances: &InstancesByGpu,
    used: impl Fn(&str) -> Option<&'a UsageByPod>,
) -> (TenantsByGpu, usize) {
    let mut by_gpu: BTreeMap<&str, Vec<(&PodAllocation, Option<f64>)>> = BTreeMap::new();
    let mut unmatched = 0;
    for (device, held) in &holders.by_device {
        match gpu_of(device, mig_instances) {
            Some((gpu, slices)) => {
                let part = slices.map(|slices| f64::from(slices) / held.len() as f64);
                by_gpu.entry(gpu).or_default().extend(held.iter().map(|held| (held, part)));
            }
            None => unmatched += 1,
        }
    }
    let mut map = TenantsByGpu::new();
    for (device, held) in by_gpu {
        let (mut claims, mut strangers) = (Vec::new(), 0_usize);
        let used = used(device);
        for (held, mig_slices) in held {
            match known.get(&held.pod).and_then(|known| known.facts.as_ref()) {
                Some(facts) => claims.push(ShareSignals {
                    workload: facts.workload.clone(),
                    utilization_ratio: used.and_then(|used| Some(used.get(&Some(facts.uid.clone()?)).copied().unwrap_or(0.0))),
                    mps_thread_percentage: facts.mps_thread_percentage,
                    mig_slices,
                }),
                None => strangers += 1,
            }
        }
        if claims.is_empty() {
            continue;
        }
        let all: f64 = used.into_iter().flat_map(BTreeMap::values).sum();
        let whole = DeviceTotals {
            others_utilization_ratio: (all - claims.iter().filter_map(|claim| claim.utilization_ratio).sum::<f64>()).max(0.0),
            mig_slices: mig_instances.get(device).map(|instances| instances.slices),
        };
        let mut tenants = attribute(&claims, whole);
        // If shares are measured, a stranger's part is subtracted already.
        let measured = [ShareMethod::MigSlices, ShareMethod::ProcessUtilization].map(Some);
        if strangers > 0 && tenants.iter().any(|tenant| !measured.contains(&tenant.method)) {
            let part = tenants.len() as f64 / (tenants.len() + strangers) as f64;
            for tenant in &mut tenants {
                tenant.share = Some(tenant.share.unwrap_or(1.0) * part);
                tenant.method.get_or_insert_default();
            }
        }
        map.insert(device.to_owned(), tenants.into());
    }
    (map, unmatched)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> PodKey {
        PodKey { namespace: "n".into(), name: name.into() }
    }

    fn facts(workload: &str, percentage: f64) -> PodFacts {
        PodFacts { workload: workload.into(), uid: None, mps_thread_percentage: Some(percentage) }
    }

    #[test]
    fn what_is_known_holds_until_something_else_is() {
        let (mut known, mut complained) = (HashMap::new(), HashSet::new());
        let now = Instant::now();
        known.insert(pod("a"), CachedPodFacts { facts: None, due: now });
        known.insert(pod("b"), CachedPodFacts { facts: None, due: now });
        let mut learn = |name: &str, found: Result<PodFacts, String>| {
            record_facts(&mut known, &mut complained, (pod(name), found));
            let held = ["a", "b", "gone"].map(|name| PodAllocation { pod: pod(name), replicas: 1 });
            let holders = DeviceAllocations {
                by_device: BTreeMap::from([("GPU-x".to_owned(), held[..2].to_vec())]),
                ..DeviceAllocations::default()
            };
            let (map, _) = tenants(&holders, &known, &InstancesByGpu::new(), |_| None);
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
        assert!(known[&pod("a")].due > now + FACTS_RETRY_INTERVAL);
        assert_eq!(known.len(), 2);
    }

    #[test]
    fn instances_are_parts_of_the_gpu_that_they_are_cut_from() {
        let due = Instant::now();
        let facts = |name: &str| {
            Some(PodFacts { workload: format!("n/{name}"), uid: Some(format!("uid-{name}")), mps_thread_percentage: None })
        };
        let known: HashMap<_, _> = ["a", "b", "c"].map(|name| (pod(name), CachedPodFacts { facts: facts(name), due })).into();
        let held = |names: &[&str]| names.iter().map(|name| PodAllocation { pod: pod(name), replicas: 0 }).collect::<Vec<_>>();
        let by_device =
            [("MIG-4", held(&["a"])), ("MIG-2", held(&["b", "c"])), ("MIG-1", held(&["stranger"])), ("MIG-gone", held(&["a"]))];
        let by_device = by_device.map(|(device, held)| (device.to_owned(), held)).into();
        let holders = DeviceAllocations { by_device, ..DeviceAllocations::default() };
        let by_uuid = [("MIG-4", 4), ("MIG-2", 2), ("MIG-1", 1)].map(|(uuid, slices)| (uuid.to_owned(), slices)).into();
        let cuts = InstancesByGpu::from([("GPU-x".to_owned(), MigInstances { slices: 7, by_uuid })]);
        let (map, unmatched) = tenants(&holders, &known, &cuts, |_| None);
        let shares: Vec<_> = map["GPU-x"].iter().map(|t| (&*t.workload, (t.share.unwrap() * 7.0).round(), t.method)).collect();
        let method = Some(ShareMethod::MigSlices);
        assert_eq!(shares, [("n/b", 1.0, method), ("n/c", 1.0, method), ("n/a", 4.0, method)]);
        assert_eq!((map.len(), unmatched), (1, 1), "of an instance that no GPU has nothing is known");
        assert_eq!(tenants(&holders, &known, &InstancesByGpu::new(), |_| None), (TenantsByGpu::new(), 4));
    }

    #[test]
    fn a_gpu_is_shared_by_what_processes_of_pods_use() {
        let due = Instant::now();
        let facts = |name: &str| PodFacts {
            workload: format!("n/{name}"),
            uid: Some(format!("uid-{name}")),
            mps_thread_percentage: Some(50.0),
        };
        let known: HashMap<_, _> = ["a", "b"].map(|name| (pod(name), CachedPodFacts { facts: Some(facts(name)), due })).into();
        let shares = |names: &[&str], used: &[(Option<&str>, f64)]| {
            let held = names.iter().map(|name| PodAllocation { pod: pod(name), replicas: 1 }).collect();
            let holders =
                DeviceAllocations { by_device: BTreeMap::from([("GPU-x".to_owned(), held)]), ..DeviceAllocations::default() };
            let used: UsageByPod = used.iter().map(|(uid, ratio)| (uid.map(str::to_owned), *ratio)).collect();
            let (map, _) = tenants(&holders, &known, &InstancesByGpu::new(), |_| Some(&used));
            map["GPU-x"].iter().map(|t| ((t.share.unwrap() * 100.0).round(), t.method.unwrap())).collect::<Vec<_>>()
        };
        let used = |percent| (percent, ShareMethod::ProcessUtilization);
        assert_eq!(shares(&["a", "b"], &[(Some("uid-a"), 0.6), (Some("uid-b"), 0.2)]), [used(75.0), used(25.0)]);
        let with_others = [(Some("uid-a"), 0.6), (None, 0.2), (Some("uid-stranger"), 0.2)];
        assert_eq!(shares(&["a", "b", "stranger"], &with_others), [used(60.0), used(0.0)], "what others use is nobody's");
        let by_threads = (50.0, ShareMethod::MpsPercentage);
        assert_eq!(shares(&["a", "b"], &[]), [by_threads, by_threads], "an idle GPU is kept for both");
    }
}
