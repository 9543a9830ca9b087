//! An actuator on a real API server, and the job that it changes.

#![allow(dead_code, unused_imports, reason = "each test binary is built with all of this file and uses its own part")]

pub mod account;
pub mod agents;
pub mod kinds;

use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use eadt_actuator::ActuatorDependencies;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, ConsumerRecord, IsolationLevel, PollEvent, ProducerRecord, StartOffset, TopicPartition, topics};
use eadt_cluster::Cluster;
use eadt_kubernetes::KubernetesCluster;
use eadt_kubernetes::policy;
use eadt_kubernetes::policy::access::{PolicyAccess, PolicyEditor};
use eadt_schemas::v1::{Actuation, ActuationOutcome, ControllerAction, Decision, Layout, Origin, Workload};
use eadt_schemas::{Envelope, EventTime, EventType, Topic, decode};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::Settings;
use eadt_tests::kubernetes::proxy::Proxy;
pub use eadt_tests::kubernetes::training::{energy_policy, environment, training};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::ApiResource;
use serde_json::Value;
use tokio::runtime::Runtime;

pub const NODES: u32 = 10;
pub const WITHIN: Duration = Duration::from_mins(4);
const PREFIX: &str = "t.";

/// The control plane of this process, with the definition of policies.
pub fn kubernetes() -> &'static Kubernetes {
    static SHARED: OnceLock<Kubernetes> = OnceLock::new();
    // Room for the jobs of all tests at once.
    let settings = Settings { nodes: NODES, gpus_per_node: 16, ..Settings::default() };
    SHARED.get_or_init(|| {
        let kubernetes = Kubernetes::start_with(&settings).unwrap();
        kubernetes.define(&policy::crd_yaml()).unwrap();
        kubernetes
    })
}

/// A namespace with an actuator of its own.
pub struct Rig {
    pub runtime: Runtime,
    pub client: Client,
    /// The actuator's own.
    account: Client,
    /// It looks at all namespaces.
    everywhere: bool,
    proxy: Option<Proxy>,
    pub namespace: String,
    pub log: EmbeddedLog,
    pub clock: Arc<dyn Fn() -> EventTime + Send + Sync>,
    /// The time at which the clock is stopped, if it is.
    standing: Arc<Mutex<Option<EventTime>>>,
    /// Origin of the workloads' figures.
    pub origin: Origin,
    pub checkpoint_wait_seconds: f64,
    connection: Option<Connection>,
    acting: Option<Acting>,
    connections: u32,
    _data: tempfile::TempDir,
}

/// Kubernetes as one actuator process sees it.
struct Connection {
    cluster: KubernetesCluster,
    stop: Shutdown,
    task: tokio::task::JoinHandle<()>,
}

/// The task that reads decisions and acts.
struct Acting {
    stop: Shutdown,
    thread: JoinHandle<()>,
}

pub fn now() -> EventTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    EventTime::from_micros(i64::try_from(since.as_micros()).unwrap())
}

impl Rig {
    pub fn new(prefix: &str) -> Self {
        Self::with_account(prefix, account::account)
    }

    /// The same with the rights of the chart's default, for all namespaces. No other actuator may run beside it.
    pub fn everywhere(prefix: &str) -> Self {
        let mut rig = Self::with_account(prefix, account::account_of_chart);
        rig.everywhere = true;
        rig
    }

    fn with_account(prefix: &str, account: fn(&Kubernetes, &Runtime, &str) -> Client) -> Self {
        let kubernetes = kubernetes();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let client = runtime.block_on(kubernetes.client()).unwrap();
        let data = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(data.path(), EmbeddedOptions::default()).unwrap();
        let desired = topics::desired(PREFIX, 2, 1);
        let plan = topics::plan(&topics::read_topics(&log, PREFIX).unwrap(), &desired, topics::PartitionGrowthPolicy::Refuse);
        topics::apply(&log, &plan).unwrap();
        let namespace = kubernetes.namespace(prefix).unwrap();
        let standing: Arc<Mutex<Option<EventTime>>> = Arc::default();
        let stopped_at = standing.clone();
        Self {
            account: account(kubernetes, &runtime, &namespace),
            everywhere: false,
            proxy: None,
            namespace,
            runtime,
            client,
            log,
            clock: Arc::new(move || stopped_at.lock().unwrap().unwrap_or_else(now)),
            standing,
            origin: Origin::Simulated,
            checkpoint_wait_seconds: 60.0,
            connection: None,
            acting: None,
            connections: 0,
            _data: data,
        }
    }

    /// The same, whose actuator reaches the API server through a proxy.
    pub fn behind_proxy(prefix: &str) -> Self {
        let mut rig = Self::new(prefix);
        let proxy = rig.runtime.block_on(Proxy::start(rig.account.clone())).unwrap();
        rig.account = rig.runtime.block_on(async { proxy.client().unwrap() });
        rig.proxy = Some(proxy);
        rig
    }

    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("it is behind a proxy")
    }

    pub fn settings(&self, identity: &str) -> eadt_kubernetes::KubernetesSettings {
        eadt_kubernetes::KubernetesSettings {
            namespace: Some(self.namespace.clone()),
            only_namespace: (!self.everywhere).then(|| self.namespace.clone()),
            identity: Some(identity.into()),
            ..eadt_kubernetes::KubernetesSettings::default()
        }
    }

    /// Starts the actuator, waits until it leads; its rollouts have so long.
    pub fn start(&mut self, rollout_seconds: f64) {
        self.connect();
        self.act(rollout_seconds);
    }

    fn connect(&mut self) {
        self.connections += 1;
        let settings = self.settings(&format!("actuator-{}", self.connections));
        let (client, clock) = (self.account.clone(), self.clock.clone());
        let cluster = self.runtime.block_on(async { KubernetesCluster::new(client, settings, self.origin, clock) });
        let stop = Shutdown::new();
        let (running, until) = (cluster.clone(), stop.clone());
        let task = self.runtime.spawn(async move { running.run(until.cancelled()).await });
        let mut leading = cluster.subscribe_leadership();
        self.runtime.block_on(async {
            tokio::time::timeout(WITHIN, leading.wait_for(|leads| *leads)).await.expect("it leads").unwrap();
        });
        self.connection = Some(Connection { cluster, stop, task });
    }

    pub fn cluster(&self) -> KubernetesCluster {
        self.connection.as_ref().expect("it is connected").cluster.clone()
    }

    /// Acts on decisions with the present connection, whenever it leads.
    pub fn act(&mut self, rollout_seconds: f64) {
        let cluster = self.cluster();
        let leading = cluster.subscribe_leadership();
        let service = self.service(Arc::new(cluster), rollout_seconds);
        let (stop, runtime) = (service.shutdown.clone(), self.runtime.handle().clone());
        let thread = std::thread::spawn(move || runtime.block_on(eadt_actuator::run_while_leading(service, leading)).unwrap());
        self.acting = Some(Acting { stop, thread });
    }

    /// Gives rollouts another deadline from now on: what had to be late before may be slow on a busy machine afterwards.
    pub fn give_rollouts(&mut self, rollout_seconds: f64) {
        self.stop_acting();
        self.act(rollout_seconds);
    }

    fn service(&self, cluster: Arc<dyn Cluster>, rollout_seconds: f64) -> ActuatorDependencies {
        ActuatorDependencies {
            settings: eadt_actuator::ActuatorSettings {
                prefix: PREFIX.into(),
                rollout_deadline_seconds: rollout_seconds,
                retry_max_seconds: 1.0,
                checkpoint_wait_seconds: self.checkpoint_wait_seconds,
                // Tests decide faster than other users.
                change_interval_seconds: 0.0,
                ..eadt_actuator::ActuatorSettings::default()
            },
            bus: Arc::new(self.log.clone()),
            cluster,
            shutdown: Shutdown::new(),
            metrics: MetricsRegistry::default(),
            ready: HealthRegistry::default().part("actuator"),
        }
    }

    pub fn stop_acting(&mut self) {
        if let Some(acting) = self.acting.take() {
            acting.stop.cancel();
            acting.thread.join().unwrap();
        }
    }

    /// Another process: it knows only what the API server returns.
    pub fn start_over(&mut self) {
        self.disconnect();
        self.connect();
    }

    fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.stop.cancel();
            self.runtime.block_on(connection.task).unwrap();
        }
    }

    /// Ends the actuator in good order.
    pub fn stop(&mut self) {
        self.stop_acting();
        self.disconnect();
    }

    /// Stops it where it is: the Lease is neither renewed nor given back.
    pub fn freeze(&mut self) {
        self.stop_acting();
        if let Some(connection) = self.connection.take() {
            connection.task.abort();
        }
    }

    pub fn apply(&self, object: &Value) {
        let file = tempfile::Builder::new().suffix(".json").tempfile().unwrap();
        std::fs::write(file.path(), object.to_string()).unwrap();
        kubernetes().kubectl(&["-n", &self.namespace, "apply", "-f", file.path().to_str().unwrap()]).unwrap();
    }

    /// Returns the page's editor of policies, with the rights that the chart grants it.
    pub fn policy_editor(&self) -> PolicyEditor {
        let client = account::page_account(kubernetes(), &self.runtime, &self.namespace);
        let access = PolicyAccess::new(client, self.namespace.clone());
        PolicyEditor::new(access, self.clock.clone(), self.runtime.handle().clone())
    }

    pub fn kubectl(&self, arguments: &[&str]) -> String {
        let mut all = vec!["-n", &*self.namespace];
        all.extend(arguments);
        kubernetes().kubectl(&all).unwrap()
    }

    pub fn set(&self, name: &str) -> Value {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        serde_json::to_value(self.runtime.block_on(api.get(name)).unwrap()).unwrap()
    }

    pub fn patch(&self, name: &str, patch: &Value) {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = PatchParams { field_manager: Some("somebody".into()), ..PatchParams::default() };
        self.runtime.block_on(api.patch(name, &params, &Patch::Strategic(patch))).unwrap();
    }

    /// Server-side apply by force, as tools do it that keep objects as a repository has them.
    pub fn apply_as(&self, manager: &str, name: &str, object: &Value) {
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
        self.runtime.block_on(api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(object))).unwrap();
    }

    pub fn pods(&self) -> Vec<Value> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let list = self.runtime.block_on(api.list(&ListParams::default())).unwrap();
        list.items.iter().map(|pod| serde_json::to_value(pod).unwrap()).collect()
    }

    pub fn policy(&self, name: &str) -> Value {
        let resource = ApiResource::erase::<policy::EnergyPolicy>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        serde_json::to_value(self.runtime.block_on(api.get(name)).unwrap()).unwrap()
    }

    /// A condition of a policy as `status reason`.
    pub fn condition(&self, name: &str, kind: &str) -> String {
        self.condition_of(name, kind).map_or_else(String::new, |(reason, _)| reason)
    }

    /// A condition of a policy as `status reason`, and its message.
    pub fn condition_of(&self, name: &str, kind: &str) -> Option<(String, String)> {
        let policy = self.policy(name);
        let found = policy["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)?;
        let text = |field: &str| found[field].as_str().unwrap().to_owned();
        Some((format!("{} {}", text("status"), text("reason")), text("message")))
    }

    /// Waits until the policy reports that this field was taken back by this manager.
    pub fn await_taken_back(&self, field: &str, manager: &str) {
        self.eventually(&format!("it is reported that {manager} took {field} back"), || {
            let (condition, message) = self.condition_of("llm", "Degraded")?;
            let named = message.contains(&format!("{field} (by {manager})"));
            (condition == "True FieldTakenBack" && named).then_some(())
        });
    }

    /// Waits until nothing of EADT's is left on the job, and gives it.
    pub fn given_back(&self) -> Value {
        self.eventually("nothing of EADT's is left", || {
            let set = self.set("llm-training");
            let left = set["metadata"]["annotations"].as_object().unwrap().keys().any(|name| name.starts_with("eadt.dev/"));
            (!left && !set["metadata"]["managedFields"].to_string().contains("eadt-")).then_some(set)
        })
    }

    pub fn workload(&self) -> String {
        format!("{}/llm-training", self.namespace)
    }

    /// Everything of a topic, as often as it is asked.
    pub fn read<T: eadt_schemas::decode::DecodableEvent>(&self, topic: Topic) -> Vec<T> {
        let records = self.records(topic).into_iter();
        records.filter_map(|record| decode(record.value.as_deref()?).ok()).collect()
    }

    /// The last value of a key of a topic.
    pub fn last<T: eadt_schemas::decode::DecodableEvent>(&self, topic: Topic, key: &str) -> Option<T> {
        let of_key = |record: &ConsumerRecord| record.key.as_deref() == Some(key.as_bytes());
        decode(self.records(topic).into_iter().rfind(of_key)?.value.as_deref()?).ok()
    }

    /// Every record of a topic.
    pub fn records(&self, topic: Topic) -> Vec<ConsumerRecord> {
        let mut found = Vec::new();
        for partition in 0..2 {
            let at = TopicPartition::new(format!("{PREFIX}{topic}"), partition);
            let high = self.log.watermarks(&at).unwrap().high;
            let mut reader = self.log.reader(&[(at, StartOffset::Earliest)], IsolationLevel::ReadCommitted).unwrap();
            let (mut polled, mut done) = (Vec::new(), high == 0);
            while !done {
                reader.poll(1000, Duration::from_millis(50), &mut polled).unwrap();
                for item in polled.drain(..) {
                    match item {
                        PollEvent::Record(record) => found.push(record),
                        PollEvent::End { position, .. } => done = position >= high,
                        _ => {}
                    }
                }
            }
        }
        found
    }

    pub fn actuations(&self) -> Vec<Actuation> {
        self.read(Topic::Actuations)
    }

    pub fn layouts(&self) -> Vec<Workload> {
        self.read(Topic::Workloads)
    }

    /// The layout that was published last.
    pub fn published(&self) -> Option<Workload> {
        let name = self.workload();
        self.layouts().into_iter().rfind(|workload| workload.workload == name)
    }

    pub fn decide(&self, decision: &Decision) {
        self.publish(Topic::Decisions, EventType::Decision, &decision.id, decision.time, &decision.workload, decision);
    }

    /// Publishes an event of a workload.
    pub fn publish<T: serde::Serialize>(&self, to: Topic, kind: EventType, id: &str, time: EventTime, workload: &str, event: &T) {
        let envelope = Envelope { id: id.into(), source: "/test".into(), kind, time, subject: workload.into() };
        let record = ProducerRecord {
            topic: format!("{PREFIX}{to}").into(),
            partition: None,
            key: Some(workload.as_bytes().to_vec().into()),
            value: Some(serde_json::to_vec(event).unwrap().into()),
            headers: envelope.headers().map(|(name, value)| (Arc::from(name), bytes::Bytes::from(value))).to_vec(),
        };
        let mut producer = self.log.producer("test").unwrap();
        producer.send(record).unwrap();
        assert!(producer.flush(WITHIN).unwrap());
    }

    /// A decision for the layout that was published last.
    pub fn decision(&self, id: &str, action: ControllerAction, to: Layout) -> Decision {
        let present = self.published().expect("a layout is published");
        let time = (self.clock)();
        Decision {
            id: id.into(),
            workload: self.workload(),
            time,
            action,
            reason: "the test wants it".into(),
            from: present.layout,
            to,
            generation: Some(present.generation),
            restarts: true,
            expires: time.plus_seconds(300.0),
            ..Decision::default()
        }
    }

    pub fn outcomes(&self, decision: &str) -> Vec<ActuationOutcome> {
        self.actuations().into_iter().filter(|a| a.decision_id == decision).map(|a| a.outcome).collect()
    }

    /// Decides and waits until this has become of it.
    pub fn change(&self, id: &str, action: ControllerAction, to: Layout, until: ActuationOutcome) -> Actuation {
        self.decide(&self.decision(id, action, to));
        self.outcome(id, until)
    }

    /// Stops the actuator's clock: no deadline runs out before what is to be there by then, however busy the machine is.
    pub fn stop_clock(&self) {
        *self.standing.lock().unwrap() = Some(now());
    }

    /// Sets the actuator's clock right again.
    pub fn let_clock_run(&self) {
        *self.standing.lock().unwrap() = None;
    }

    /// Decides for what never gets ready, and lets its time run out once its pods look like this.
    pub fn runs_out(&self, id: &str, action: ControllerAction, to: Layout, stuck: impl Fn(&[Value]) -> bool) -> Actuation {
        self.stop_clock();
        self.decide(&self.decision(id, action, to));
        self.eventually("its pods are stuck", || stuck(&self.pods()).then_some(()));
        self.let_clock_run();
        self.outcome(id, ActuationOutcome::RolledBack)
    }

    pub fn outcome(&self, id: &str, until: ActuationOutcome) -> Actuation {
        self.eventually(&format!("{until:?} of {id}"), || {
            self.actuations().into_iter().find(|a| a.decision_id == id && a.outcome == until)
        })
    }

    pub fn eventually<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            let late = begun.elapsed() > WITHIN;
            assert!(!late, "not within {} s: {what}\n{}\n{:#?}", WITHIN.as_secs(), self.present(), self.actuations());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The objects in the namespace, of whatever kind, for the message of a failure.
    fn present(&self) -> String {
        let ask = |arguments: &[&str]| {
            let all = [&["-n", &*self.namespace, "get"], arguments].concat();
            kubernetes().kubectl(&all).unwrap_or_else(|error| error.to_string())
        };
        let objects = ask(&["statefulsets,deployments,replicasets,pods", "-o", "wide"]);
        let policies = ask(&["energypolicies", "-o", "jsonpath={range .items[*]}{.metadata.name}: {.status}{\"\\n\"}{end}"]);
        let events = ask(&["events", "--sort-by=.metadata.creationTimestamp"]);
        format!("{objects}\n{policies}\n{events}")
    }

    /// Waits until the workload is published as ready in this generation's layout.
    pub fn ready_with(&self, layout: &Layout) {
        self.eventually(&format!("{layout:?} is ready"), || {
            self.published().filter(|workload| workload.layout == *layout && workload.ready_time.is_some())
        });
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The runtime waits for its tasks.
            if let Some(acting) = &self.acting {
                acting.stop.cancel();
            }
            return;
        }
        self.stop();
    }
}

/// A container of it is started again and again.
pub fn crashes(pod: &Value) -> bool {
    let mut containers = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    containers.any(|container| container["state"]["waiting"]["reason"] == "CrashLoopBackOff")
}

pub fn layout(replicas: u32, percentage: u32, local: u32) -> Layout {
    Layout {
        replicas: Some(replicas),
        mps_thread_percentage: Some(percentage),
        world_size: Some(replicas),
        local_world_size: Some(local),
        ..Layout::default()
    }
}

/// The managers that own something of an object whose name contains this.
pub fn owners(object: &Value, name: &str) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap().iter();
    let owning = entries.filter(|entry| entry["fieldsV1"]["f:spec"].to_string().contains(name));
    owning.map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect()
}
