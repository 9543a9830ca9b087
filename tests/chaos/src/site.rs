//! A workload on a real API server, decided about through a real broker: what the actuators of a run work on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use eadt_bus::kafka::KafkaBus;
use eadt_bus::{Bus, IsolationLevel, PollEvent, Producer, ProducerRecord, StartOffset, TopicPartition};
use eadt_schemas::v1::{Actuation, ActuationOutcome, ControllerAction, Decision, Layout, Workload};
use eadt_schemas::{Envelope, EventTime, EventType, Topic, decode};
use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::Settings;
use eadt_tests::kubernetes::proxy::Proxy;
use eadt_tests::kubernetes::training::{energy_policy, environment, without_pods};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::feeder::send;
use crate::part::{Actuator, Part, Server, Service};
use crate::row::Outcome;
use crate::world::{Cluster, LIMIT, PARTITIONS, World, explain, runs};

/// The workload; it has no pods, so that a change takes no time: what is looked at is the object.
const NAME: &str = "llm-training";
const SOURCE: &str = "/chaos/decider";
/// The name that every actuator has that is given no other one.
pub const FIRST: &str = "a";

pub struct Site {
    pub world: World,
    namespace: String,
    /// Everything between the actuators and the shared API server.
    pub proxy: Proxy,
    log: ActuatorLog,
    decider: Box<dyn Producer>,
    decided: u64,
    /// Its actuators look at all namespaces: only then they see whose the devices are.
    pub sees_all: bool,
    // The proxy ends before it.
    _runtime: Runtime,
    /// A control plane of this site alone, which its actuators speak to directly.
    own: Option<Kubernetes>,
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Site").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Site {
    /// A workload whose fields were taken over, and no actuator. `off`: the promise that is switched off in every one that is started.
    pub fn start(off: Option<&'static str>) -> Result<Self> {
        Self::start_on(None, &without_pods(), off)
    }

    /// Starts the same on a control plane of its own, so that it, or a part of it, can be stopped.
    pub fn alone(off: Option<&'static str>) -> Result<Self> {
        Self::alone_with(&without_pods(), off)
    }

    /// The same with this workload.
    pub fn alone_with(workload: &Value, off: Option<&'static str>) -> Result<Self> {
        let settings = Settings { nodes: 1, ..Settings::default() };
        Self::start_on(Some(Kubernetes::start_with(&settings)?), workload, off)
    }

    fn start_on(own: Option<Kubernetes>, workload: &Value, off: Option<&'static str>) -> Result<Self> {
        let kubernetes = own.as_ref().unwrap_or_else(|| Kubernetes::shared());
        kubernetes.define(include_str!("../../../deploy/crds/energypolicies.yaml"))?;
        let namespace = kubernetes.namespace("chaos")?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let proxy = runtime.block_on(async { Proxy::start(kubernetes.client().await?).await })?;
        let world = World::start(Cluster::One, off)?;
        let (log, decider) = (ActuatorLog::start(&world.bus, &world.prefix)?, world.bus.producer("chaos-decider")?);
        kubernetes.apply(&namespace, &workload.to_string())?;
        let mut policy = energy_policy("Enforce");
        policy["spec"]["restartBudget"]["perDay"] = json!(1000);
        kubernetes.apply(&namespace, &policy.to_string())?;
        let site = Self { world, namespace, proxy, log, decider, decided: 0, sees_all: false, _runtime: runtime, own };
        let mut part = site.actuator(FIRST, None)?;
        site.wait(&mut part, "the fields are taken over", |_| {
            let taken = site.object()?["metadata"]["annotations"]["eadt.dev/taken-over"].is_string();
            Ok(taken && site.published().is_some_and(|workload| workload.ready_time.is_some()))
        })?;
        part.kill()?;
        Ok(site)
    }

    /// An actuator under a name, which is standby if one of another name leads.
    pub fn actuator(&self, identity: &str, wait: Option<(&'static str, u64)>) -> Result<Part> {
        self.actuator_with(identity, wait, 0.0)
    }

    /// The same that changes no workload more often than this.
    pub fn actuator_with(&self, identity: &str, wait: Option<(&'static str, u64)>, interval_seconds: f64) -> Result<Part> {
        let changes = eadt_actuator::ActuatorSettings {
            change_interval_seconds: interval_seconds,
            ..eadt_actuator::ActuatorSettings::default()
        };
        self.actuator_set(identity, wait, changes)
    }

    /// The same with these settings.
    pub fn actuator_set(
        &self,
        identity: &str,
        wait: Option<(&'static str, u64)>,
        settings: eadt_actuator::ActuatorSettings,
    ) -> Result<Part> {
        let settings = eadt_actuator::ActuatorSettings { retry_max_seconds: 1.0, ..settings };
        let server = match &self.own {
            Some(kubernetes) => Server::Kubeconfig(kubernetes.admin_kubeconfig()),
            None => Server::Url(self.proxy.url().to_owned()),
        };
        let namespace = self.namespace.clone();
        let own = Actuator { server, namespace, alone: !self.sees_all, identity: identity.to_owned(), settings };
        self.world.part(Service::Actuator(Box::new(own)), wait)
    }

    /// The control plane.
    pub fn kubernetes(&self) -> &Kubernetes {
        self.own.as_ref().unwrap_or_else(|| Kubernetes::shared())
    }

    /// Waits until something is so; an error if the process ends before.
    pub fn wait(&self, part: &mut Part, what: &str, is_so: impl FnMut(&Part) -> Result<bool>) -> Result<Duration> {
        self.wait_within(LIMIT, part, what, is_so)
    }

    pub fn wait_within(
        &self,
        limit: Duration,
        part: &mut Part,
        what: &str,
        mut is_so: impl FnMut(&Part) -> Result<bool>,
    ) -> Result<Duration> {
        let begun = Instant::now();
        loop {
            // The API server may be on its way back.
            let so = is_so(part);
            if matches!(so, Ok(true)) {
                return Ok(begun.elapsed());
            }
            runs(part)?;
            if begun.elapsed() > limit {
                let cause = so.err().map_or_else(String::new, |error| format!(" ({error:#})"));
                return explain(Err(anyhow::anyhow!("not within {limit:?}: {what}{cause}")), part);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the leader named in the Lease.
    pub fn leader(&self) -> Result<String> {
        let holder = ["-n", &*self.namespace, "get", "lease", "eadt-actuator", "-o", "jsonpath={.spec.holderIdentity}"];
        Ok(self.kubernetes().kubectl(&holder)?.trim().to_owned())
    }

    pub fn object(&self) -> Result<Value> {
        let text = self.kubernetes().kubectl(&["-n", &*self.namespace, "get", "statefulset", NAME, "-o", "json"])?;
        serde_json::from_str(&text).context("kubectl prints JSON")
    }

    /// The layout that was published last.
    pub fn published(&self) -> Option<Workload> {
        self.log.kept().workloads.get(&self.workload()).cloned()
    }

    pub fn workload(&self) -> String {
        format!("{}/{NAME}", self.namespace)
    }

    /// A decision for another percentage, about what was published last.
    pub fn decision(&self, id: &str, percentage: u32) -> Result<Decision> {
        let present = self.published().context("no layout is published")?;
        let time = now();
        Ok(Decision {
            id: id.into(),
            workload: present.workload,
            time,
            action: ControllerAction::Decrease,
            reason: "chaos".into(),
            to: Layout { mps_thread_percentage: Some(percentage), ..present.layout.clone() },
            from: present.layout,
            generation: Some(present.generation),
            restarts: true,
            expires: time.plus_seconds(600.0),
            ..Decision::default()
        })
    }

    pub fn decide(&mut self, decision: &Decision) -> Result<()> {
        let (id, subject) = (decision.id.clone(), decision.workload.clone());
        let envelope = Envelope { id, source: SOURCE.into(), kind: EventType::Decision, time: decision.time, subject };
        let mut text = serde_json::to_string(decision)?;
        if self.decided % 2 == 1 {
            // As a processor of the next minor version would write it.
            let mut value = serde_json::from_str(&text)?;
            eadt_faults::next_version(&mut value);
            text = value.to_string();
        }
        self.decided += 1;
        let record = ProducerRecord {
            topic: self.world.topic(Topic::Decisions).into(),
            partition: None,
            key: Some(decision.workload.clone().into_bytes().into()),
            value: Some(text.into()),
            headers: envelope.headers().map(|(name, value)| (Arc::from(name), value.into())).to_vec(),
        };
        send(&mut *self.decider, &record)?;
        ensure!(self.decider.flush(LIMIT)?, "a decision was not acknowledged");
        Ok(())
    }

    /// Returns the outcomes of a decision so far, in the order in which they were published.
    pub fn became(&self, id: &str) -> Vec<ActuationOutcome> {
        let kept = self.log.kept();
        kept.actuations.get(id).into_iter().flatten().map(|actuation| actuation.outcome).collect()
    }

    /// Returns the same with the reason of each.
    fn reasons(&self, id: &str) -> String {
        let kept = self.log.kept();
        let texts: Vec<String> =
            kept.actuations.get(id).into_iter().flatten().map(|of| format!("{:?}: {}", of.outcome, of.reason)).collect();
        texts.join("; ")
    }

    /// Every actuation, by its decision.
    pub fn actuations(&self) -> BTreeMap<String, Vec<Actuation>> {
        self.log.kept().actuations.clone()
    }

    pub fn is_ready(&self, id: &str) -> bool {
        self.became(id).contains(&ActuationOutcome::Ready)
    }

    /// Whether nothing more is to be published of a decision: it is ready, or it never will be.
    pub fn is_over(&self, id: &str) -> bool {
        let last = |outcome: &ActuationOutcome| !matches!(outcome, ActuationOutcome::Applied | ActuationOutcome::Recommended);
        self.became(id).iter().any(last)
    }

    /// Waits until a decision is in force, and published to be.
    pub fn await_ready(&self, id: &str, part: &mut Part) -> Result<Duration> {
        self.wait(part, &format!("{id} is ready"), |_| Ok(self.is_ready(id)))
    }

    /// Judges decisions of which each was to be applied once, one after the other, from an object of this generation on, and the last of
    /// which asked for this percentage.
    pub fn judge(&self, outcome: &mut Outcome, ids: &[String], before: i64, percentage: u32) -> Result<()> {
        // A repeated outcome may be published late.
        std::thread::sleep(Duration::from_secs(1));
        for id in ids {
            let became = self.became(id);
            let (applied, ready) = (count(&became, ActuationOutcome::Applied), count(&became, ActuationOutcome::Ready));
            outcome.compared += 2;
            outcome.lost += u64::from(applied == 0) + u64::from(ready == 0);
            outcome.duplicated += applied.saturating_sub(1) + ready.saturating_sub(1);
            outcome.check(became.len() as u64 == applied + ready, || {
                format!("{id} was to be applied, and became {}", self.reasons(id))
            });
        }
        let object = self.object()?;
        let (generation, expected) = (object["metadata"]["generation"].as_i64(), before + ids.len() as i64);
        outcome.check(generation == Some(expected), || format!("{generation:?} is in force, not generation {expected}"));
        let (is, wanted) = (percentage_of(&object), percentage.to_string());
        outcome.check(is == wanted, || format!("{is} % are in force, not the {wanted} % that were decided last"));
        Ok(())
    }

    /// The generation that the object has.
    pub fn generation(&self) -> Result<i64> {
        self.object()?["metadata"]["generation"].as_i64().context("an object has a generation")
    }
}

fn count(became: &[ActuationOutcome], which: ActuationOutcome) -> u64 {
    became.iter().filter(|outcome| **outcome == which).count() as u64
}

/// The percentage that a job has in force.
pub fn percentage_of(object: &Value) -> String {
    environment(object).remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").unwrap_or_default()
}

pub fn now() -> EventTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EventTime::from_micros(since.as_micros() as i64)
}

/// Outputs of the actuators.
#[derive(Debug, Default)]
struct Kept {
    /// By the decision.
    actuations: BTreeMap<String, Vec<Actuation>>,
    workloads: BTreeMap<String, Workload>,
}

#[derive(Debug)]
struct ActuatorLog {
    kept: Arc<Mutex<Kept>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ActuatorLog {
    fn start(bus: &KafkaBus, prefix: &str) -> Result<Self> {
        let topics = [Topic::Actuations, Topic::Workloads].map(|topic| format!("{prefix}{topic}"));
        let all =
            topics.iter().flat_map(|topic| (0..PARTITIONS).map(move |partition| TopicPartition::new(topic.as_str(), partition)));
        let from: Vec<_> = all.map(|at| (at, StartOffset::Earliest)).collect();
        let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
        let (kept, stop) = (Arc::<Mutex<Kept>>::default(), Arc::new(AtomicBool::new(false)));
        let (keep, asked) = (Arc::clone(&kept), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut polled = Vec::new();
            while !asked.load(Ordering::SeqCst) {
                // Unreadable records are read later.
                drop(reader.poll(1000, Duration::from_millis(10), &mut polled));
                let mut kept = lock(&keep);
                for item in polled.drain(..) {
                    let PollEvent::Record(record) = item else { continue };
                    let Some(value) = record.value.as_deref() else { continue };
                    if *record.at.topic == *topics[0] {
                        if let Ok(actuation) = decode::<Actuation>(value) {
                            kept.actuations.entry(actuation.decision_id.clone()).or_default().push(actuation);
                        }
                    } else if let Ok(workload) = decode::<Workload>(value) {
                        kept.workloads.insert(workload.workload.clone(), workload);
                    }
                }
            }
        });
        Ok(Self { kept, stop, thread: Some(thread) })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for ActuatorLog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
