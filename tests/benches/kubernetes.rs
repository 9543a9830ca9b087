//! The actuator beside thousands of workloads on a real API server, on the same cores.
//!
//! `cargo xtask bench kubernetes [-- WORKLOADS [DECISIONS]]`. Stateful sets without pods, a policy each. A fresh process connects, takes
//! their fields over, rests, reads a decision a minute for each of them that leaves everything as it is, is changed, and is then started
//! once more beside what it took over. Memory and CPU are that process's, with what it costs to write these decisions.

use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{cpu_seconds, peak_mib};
use eadt_actuator::ActuatorDependencies;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, ProducerRecord, topics};
use eadt_cluster::{
    ApprovedDecision, Cluster, ClusterChanges, ClusterError, DeviceAgents, ManagedWorkload, RollbackRequest, WorkloadChange,
};
use eadt_kubernetes::policy::{self, EnergyPolicy};
use eadt_kubernetes::{KubernetesCluster, KubernetesSettings};
use eadt_schemas::v1::{ControllerAction, Decision, Layout, Origin};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown};
use eadt_tests::kubernetes::{Kubernetes, client};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Api, PostParams};
use serde_json::json;

#[path = "../../services/processor/benches/common/mod.rs"]
#[allow(dead_code, reason = "each benchmark uses its part")]
mod common;

const PATIENCE: Duration = Duration::from_mins(8);
const REST: Duration = Duration::from_secs(20);
const LIVE: Duration = Duration::from_mins(2);
/// Between two decisions.
const EVERY: Duration = Duration::from_millis(100);

type Error = Box<dyn std::error::Error + Send + Sync>;

fn now() -> EventTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    EventTime::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|first| first == "child") {
        return child(Path::new(&arguments[1]), &arguments[2], arguments[3].parse()?, arguments[4].parse()?);
    }
    let number = |i: usize, default: usize| arguments.get(i).map_or(Ok(default), |text| text.parse());
    let (count, decisions) = (number(0, 5000)?, number(1, 200)?);
    let kubernetes = Kubernetes::start()?;
    kubernetes.define(&policy::crd_yaml())?;
    let namespace = kubernetes.namespace("bench")?;
    let began = Instant::now();
    tokio::runtime::Runtime::new()?.block_on(fill(&kubernetes, &namespace, count))?;
    println!("{count} workloads and policies made in {:.0} s", began.elapsed().as_secs_f64());
    for (name, decisions) in [("first start", decisions), ("started again", 0)] {
        println!("{name}:");
        let (count, decisions) = (count.to_string(), decisions.to_string());
        let status = Command::new(std::env::current_exe()?)
            .arg("child")
            .arg(kubernetes.admin_kubeconfig())
            .args([&namespace, &count, &decisions])
            .stdin(Stdio::null())
            .status()?;
        if !status.success() {
            return Err(format!("{name} failed").into());
        }
    }
    Ok(())
}

async fn fill(kubernetes: &Kubernetes, namespace: &str, count: usize) -> Result<(), Error> {
    let client = kubernetes.client().await?;
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let policies: Api<EnergyPolicy> = Api::namespaced(client, namespace);
    let make = |number: usize| {
        let (sets, policies) = (sets.clone(), policies.clone());
        async move {
            let set = json!({
                "metadata": {"name": format!("w-{number}")},
                "spec": {
                    "replicas": 0, "serviceName": "w", "selector": {"matchLabels": {"app": format!("w-{number}")}},
                    "template": {"metadata": {"labels": {"app": format!("w-{number}")}}, "spec": {"containers": [{
                        "name": "train", "image": "example.invalid/train:1",
                        "env": [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "50"}],
                        "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    }]}},
                },
            });
            let policy = json!({
                "metadata": {"name": format!("p-{number}")},
                "spec": {
                    "targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": format!("w-{number}")},
                    "updateMode": "Enforce", "cooldown": "0s", "restartBudget": {"perDay": 100},
                    "bounds": {"mpsThreadPercentage": {"min": 25, "max": 100}},
                },
            });
            sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
            policies.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
            Ok::<_, Error>(())
        }
    };
    stream::iter(0..count).map(make).buffer_unordered(16).try_collect::<Vec<()>>().await?;
    Ok(())
}

/// A cluster that notes when a change was accepted.
struct Timed {
    inner: KubernetesCluster,
    accepted: Mutex<Vec<(String, Instant)>>,
}

impl fmt::Debug for Timed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Cluster for Timed {
    fn now(&self) -> EventTime {
        self.inner.now()
    }
    fn revision(&self) -> u64 {
        self.inner.revision()
    }
    fn workloads(&self) -> Result<Vec<ManagedWorkload>, ClusterError> {
        self.inner.workloads()
    }
    fn changes(&self, since: Option<u64>) -> Result<ClusterChanges, ClusterError> {
        self.inner.changes(since)
    }
    fn restarts_barred(&self, workload: &str) -> Option<String> {
        self.inner.restarts_barred(workload)
    }
    fn approved_decisions(&self) -> Vec<ApprovedDecision> {
        self.inner.approved_decisions()
    }
    fn devices(&self) -> Option<&dyn DeviceAgents> {
        self.inner.devices()
    }
    fn apply(&self, change: &WorkloadChange) -> Result<ManagedWorkload, ClusterError> {
        let result = self.inner.apply(change);
        if result.is_ok() {
            self.accepted().push((change.decision_id.clone(), Instant::now()));
        }
        result
    }
    fn roll_back(&self, back: &RollbackRequest) -> Result<ManagedWorkload, ClusterError> {
        self.inner.roll_back(back)
    }
    fn recommend(&self, decision: &Decision) -> Result<(), ClusterError> {
        self.inner.recommend(decision)
    }
    fn on_decision(&self, decision: &Decision) {
        self.inner.on_decision(decision);
    }
    fn on_actuation(&self, actuation: &eadt_schemas::v1::Actuation) {
        self.inner.on_actuation(actuation);
    }
}

impl Timed {
    fn accepted(&self) -> std::sync::MutexGuard<'_, Vec<(String, Instant)>> {
        self.accepted.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn until(what: &str, every: Duration, mut look: impl FnMut() -> bool) -> Result<(), Error> {
    let began = Instant::now();
    while !look() {
        if began.elapsed() > PATIENCE {
            return Err(format!("not within {} s: {what}", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(every);
    }
    Ok(())
}

fn child(kubeconfig: &Path, namespace: &str, count: usize, decisions: usize) -> Result<(), Error> {
    let data = tempfile::tempdir()?;
    let log = EmbeddedLog::open(data.path(), EmbeddedOptions::default())?;
    let plan = topics::plan(
        &topics::read_topics(&log, "eadt.")?,
        &topics::desired("eadt.", 4, 1),
        topics::PartitionGrowthPolicy::Refuse,
    );
    topics::apply(&log, &plan)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let client = runtime.block_on(client(kubeconfig))?;
    let settings = KubernetesSettings { namespace: Some(namespace.to_owned()), ..KubernetesSettings::default() };
    let began = Instant::now();
    let inner = runtime.block_on(async { KubernetesCluster::new(client, settings, Origin::Simulated, Arc::new(now)) });
    let stop = Shutdown::new();
    let (running, stopped) = (inner.clone(), stop.clone());
    let task = runtime.spawn(async move { running.run(stopped.cancelled()).await });
    until("all are watched", Duration::from_millis(20), || inner.workloads().is_ok_and(|all| all.len() == count))?;
    println!("  watch ready after {:.2} s", began.elapsed().as_secs_f64());

    let mut leading = inner.subscribe_leadership();
    runtime.block_on(async { leading.wait_for(|leads| *leads).await.map(drop) })?;
    let cluster = Arc::new(Timed { inner: inner.clone(), accepted: Mutex::default() });
    let service = ActuatorDependencies {
        settings: eadt_actuator::ActuatorSettings::default(),
        bus: Arc::new(log.clone()),
        cluster: cluster.clone(),
        shutdown: stop.clone(),
        metrics: MetricsRegistry::default(),
        ready: HealthRegistry::default().part("actuator"),
    };
    let acting = std::thread::spawn(move || eadt_actuator::run_actuator(&service));
    // Take-overs and first statuses are over once hardly any CPU is used.
    until("it is quiet", Duration::ZERO, || {
        let before = cpu_seconds();
        std::thread::sleep(Duration::from_secs(5));
        cpu_seconds() - before < 0.25
    })?;
    println!("  quiet after {:.0} s, {:.1} s of CPU", began.elapsed().as_secs_f64(), cpu_seconds());
    let (cpu, at) = (cpu_seconds(), Instant::now());
    std::thread::sleep(REST);
    let part = (cpu_seconds() - cpu) / at.elapsed().as_secs_f64() * 100.0;
    println!("  at rest {part:.2} % of a core over {:.0} s", at.elapsed().as_secs_f64());
    if decisions > 0 {
        // The first figures of all come into their statuses.
        live(&log, &inner, "first", 0.0)?;
        for (what, spread) in [("the same figures", 0.0), ("figures within 4 %", 0.04)] {
            let part = live(&log, &inner, what, spread)? * 100.0;
            println!("  a window a minute of each, {what}: {part:.2} % of a core over {:.0} s", LIVE.as_secs_f64());
        }
        decide(&log, &inner, &cluster, decisions)?;
    }
    println!("  peak memory {:.0} MiB", peak_mib());
    stop.cancel();
    acting.join().map_err(|_| "the actuator panicked")??;
    runtime.block_on(task)?;
    Ok(())
}

/// A window a minute of every workload, decided to be left as it is; the part of a core that this takes. `spread`: of the figures.
fn live(log: &EmbeddedLog, inner: &KubernetesCluster, name: &str, spread: f64) -> Result<f64, Error> {
    let present = inner.workloads()?;
    let mut producer = log.producer("bench")?;
    let each = Duration::from_mins(1).div_f64(present.len().max(1) as f64);
    let (cpu, began) = (cpu_seconds(), Instant::now());
    let mut sent = 0_u32;
    while began.elapsed() < LIVE {
        while each * sent < began.elapsed() {
            let state = &present[sent as usize % present.len()].state;
            let time = now();
            // A sequence without a period that anything could follow.
            let figure = 1.0 + spread * ((f64::from(sent) * 0.618_034).fract() - 0.5);
            let evidence = [("joules_per_sample", 5.0), ("samples_per_second", 100.0), ("power_watts", 500.0)];
            let decision = Decision {
                id: format!("{name}-{sent}"),
                workload: state.workload.clone(),
                time,
                controller: "hybrid".into(),
                action: ControllerAction::Maintain,
                reason: "within what was expected".into(),
                from: state.layout.clone(),
                to: state.layout.clone(),
                generation: Some(state.generation),
                evidence: evidence.into_iter().map(|(name, value)| (name.to_owned(), value * figure)).collect(),
                expires: time.plus_seconds(300.0),
                ..Decision::default()
            };
            producer.send(outgoing(&decision)?)?;
            sent += 1;
        }
        producer.flush(PATIENCE)?;
        std::thread::sleep(EVERY);
    }
    Ok((cpu_seconds() - cpu) / began.elapsed().as_secs_f64())
}

fn outgoing(decision: &Decision) -> Result<ProducerRecord, Error> {
    let envelope = Envelope {
        id: decision.id.clone(),
        source: "/bench".into(),
        kind: EventType::Decision,
        time: decision.time,
        subject: decision.workload.clone(),
    };
    Ok(ProducerRecord {
        topic: format!("eadt.{}", Topic::Decisions).into(),
        partition: None,
        key: Some(decision.workload.clone().into_bytes().into()),
        value: Some(serde_json::to_vec(decision)?.into()),
        headers: envelope.headers().map(|(name, value)| (Arc::from(name), bytes::Bytes::from(value))).to_vec(),
    })
}

fn decide(log: &EmbeddedLog, inner: &KubernetesCluster, cluster: &Timed, decisions: usize) -> Result<(), Error> {
    let present = inner.workloads()?;
    let mut producer = log.producer("bench")?;
    let mut sent = Vec::new();
    for (number, managed) in present.iter().take(decisions).enumerate() {
        let time = now();
        let state = &managed.state;
        let decision = Decision {
            id: format!("d-{number}"),
            workload: state.workload.clone(),
            time,
            action: ControllerAction::Decrease,
            reason: "the benchmark wants it".into(),
            from: state.layout.clone(),
            to: Layout { mps_thread_percentage: Some(40), ..state.layout.clone() },
            generation: Some(state.generation),
            restarts: true,
            expires: time.plus_seconds(600.0),
            ..Decision::default()
        };
        sent.push(Instant::now());
        producer.send(outgoing(&decision)?)?;
        producer.flush(PATIENCE)?;
        std::thread::sleep(EVERY);
    }
    until("all are accepted", Duration::from_millis(50), || cluster.accepted().len() >= sent.len())?;
    let accepted = cluster.accepted();
    let mut times: Vec<f64> = Vec::new();
    for (id, at) in accepted.iter() {
        let number: usize = id.trim_start_matches("d-").parse()?;
        times.push(at.duration_since(sent[number]).as_secs_f64() * 1000.0);
    }
    times.sort_by(f64::total_cmp);
    let rank = |part: f64| times[((times.len() as f64 * part).ceil() as usize).clamp(1, times.len()) - 1];
    println!(
        "  {} decisions, to the patch accepted: p50 {:.0} ms, p99 {:.0} ms, maximum {:.0} ms",
        times.len(),
        rank(0.5),
        rank(0.99),
        rank(1.0)
    );
    Ok(())
}
