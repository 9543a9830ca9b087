//! Composes the agent: a thread per device, one for intents, one for reports, and a supervisor.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use eadt_bus::chaos;
use eadt_nvml::set::SettableDriver;
use eadt_nvml::{GpuLost, NvmlDriver};
use eadt_schemas::v1::{DeviceReport, DeviceState, SettingOutcome};
use eadt_schemas::{EventTime, Topic};
use eadt_service::tasks::{self, TaskEntry};
use eadt_service::{HealthRegistry, MetricsRegistry, ServiceClock, Shutdown, readiness};

use crate::gpu::GpuEnforcer;
use crate::intents::{IntentInbox, IntentSource, follow_file, follow_log};
use crate::ledger::{Ledger, LedgerError};
use crate::log::LazyBus;
use crate::metrics::{AgentMetrics, DeviceLabel};
use crate::mps::{MpsDaemon, MpsEnforcer, MpsReport, together};
use crate::publish::ReportOutbox;
use crate::settings::AgentSettings;
use crate::worker::{SharedIntent, WorkerSlot};

/// Time limit for loading the library and counting the GPUs.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The node's state is published again after this time even if nothing changed.
const REPUBLISH_INTERVAL: Duration = Duration::from_mins(1);
/// Time limit for publishing the last reports at a stop.
const REPORT_DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// The pause before what talks to the log is begun again after a panic.
const RESTART_DELAY: Duration = Duration::from_secs(1);
const WATCH_INTERVAL: Duration = Duration::from_millis(50);
/// Held over a step if the chaos harness has all devices share one thread's time; never otherwise.
static IN_TURN: Mutex<()> = Mutex::new(());

/// The dependencies of the agent.
#[derive(Debug, Clone)]
pub struct AgentDependencies {
    /// `None` if nothing is published, and intents come from a file.
    pub log: Option<LazyBus>,
    /// `None` for NVML of this machine.
    pub driver: Option<Arc<dyn SettableDriver>>,
    pub metrics: MetricsRegistry,
    pub health: HealthRegistry,
    /// Cancelled: everything is put back.
    pub shutdown: Shutdown,
    pub clock: ServiceClock,
}

impl AgentDependencies {
    /// Creates the environment with this machine's clock and GPUs.
    pub fn new(log: Option<LazyBus>, metrics: MetricsRegistry, health: HealthRegistry, shutdown: Shutdown) -> Self {
        Self { log, driver: None, metrics, health, shutdown, clock: ServiceClock::machine() }
    }
}

/// The reason why the agent ended before a stop, or could not start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("{0}")]
    Gpus(String),
    #[error("there is nothing to follow: give Kafka's brokers, or a file with intents")]
    NothingToFollow,
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// The result of a run of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentSummary {
    /// Devices whose original settings could not be put back; they stay recorded, and the next start tries again.
    pub unrestored: Vec<String>,
}

/// One of the threads that hold settings.
struct DeviceWorker<R> {
    slot: Arc<WorkerSlot<R>>,
}

/// Runs until shutdown. Then everything is put back, or named in the summary.
pub async fn run(settings: AgentSettings, deps: AgentDependencies) -> Result<AgentSummary, AgentError> {
    let ready = deps.health.part("agent");
    let metrics = AgentMetrics::new(&deps.metrics);
    let ledger = Ledger::open(&settings.state_dir)?;
    let (driver, count) = open(&settings, deps.driver.clone()).await?;
    if let Some(missing) = settings.gpus.iter().flatten().find(|index| **index >= count) {
        return Err(AgentError::Gpus(format!("agent.gpus names GPU {missing}, but there are {count}: indices start at 0")));
    }
    let orders = Arc::new(SharedIntent::new(deps.clock.clone()));
    let workers =
        WorkerSpawner { settings: settings.clone(), orders: orders.clone(), ledger: ledger.clone(), metrics: metrics.clone() };
    let indices = (0..count).filter(|index| settings.gpus.as_ref().is_none_or(|gpus| gpus.contains(index)));
    let gpus: Vec<_> = indices.map(|index| workers.gpu(index, driver.clone())).collect::<Result<_, _>>()?;
    let daemons: Vec<_> = settings.daemons.iter().map(|daemon| workers.mps(daemon)).collect::<Result<_, _>>()?;

    let outbox = Arc::new(ReportOutbox::new(&settings.prefix, metrics.clone()));
    let outbox_done = Arc::new(AtomicBool::new(deps.log.is_none()));
    if let Some(log) = deps.log.clone() {
        let (outbox, outbox_done, client) = (outbox.clone(), outbox_done.clone(), format!("eadt-agent-{}", settings.node));
        tasks::OUTBOX.thread(move || {
            tasks::OUTBOX.until_it_returns(RESTART_DELAY, || outbox.run(&log, &client));
            outbox_done.store(true, Ordering::Release);
        })?;
    }
    let caught_up = Arc::new(AtomicBool::new(false));
    let stop = deps.shutdown.clone();
    if let Some(log) = deps.log.clone() {
        let intents = format!("{}{}", settings.prefix, Topic::DeviceIntents);
        readiness::watch_log(&deps.health, stop.clone(), move |_| log.bus().and_then(|bus| bus.probe(&intents)))?;
    }
    let inbox = IntentInbox::new(settings.node.clone(), orders.clone(), deps.clock.clone(), metrics.clone());
    follow(&settings, deps.log.clone(), inbox, &outbox, &stop, &caught_up)?;
    tracing::info!(node = settings.node, gpus = gpus.len(), mps_daemons = daemons.len(), "agent runs");

    let mut watch = WorkerMonitor::new(&settings, &deps, &metrics, &orders, &ledger);
    while !stop.is_cancelled() {
        if let Some(state) = watch.state_to_publish(&gpus, &daemons) {
            outbox.state(state);
        }
        ready.set(caught_up.load(Ordering::Acquire) && watch.all_seen);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(WATCH_INTERVAL) => {}
        }
    }
    ready.set(false);
    orders.stop();
    let deadline = Instant::now() + settings.stop;
    let ended = |gpus: &[DeviceWorker<DeviceReport>], daemons: &[DeviceWorker<MpsReport>]| {
        gpus.iter().all(|unit| unit.slot.view().ended) && daemons.iter().all(|unit| unit.slot.view().ended)
    };
    while !ended(&gpus, &daemons) && Instant::now() < deadline {
        watch.state_to_publish(&gpus, &daemons);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    outbox.state(DeviceState { stopped: true, live_until: None, ..watch.state(&gpus, &daemons) });
    outbox.close(REPORT_DRAIN_TIMEOUT);
    let deadline = Instant::now() + REPORT_DRAIN_TIMEOUT + Duration::from_secs(1);
    while !outbox_done.load(Ordering::Acquire) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let left = unrestored_units(&ledger)?;
    if left.is_empty() {
        tracing::info!("agent ended; all original settings are restored");
    } else {
        tracing::error!(
            devices = left.join(","),
            "agent ended; the original settings of some devices are not restored, the next start tries again"
        );
    }
    Ok(AgentSummary { unrestored: left })
}

/// Puts back the settings that a killed agent left behind, and ends. It reads no intents and publishes nothing.
pub async fn restore(settings: AgentSettings, mut deps: AgentDependencies) -> Result<AgentSummary, AgentError> {
    deps.log = None;
    let metrics = AgentMetrics::new(&deps.metrics);
    let ledger = Ledger::open(&settings.state_dir)?;
    if unrestored_units(&ledger)?.is_empty() {
        return Ok(AgentSummary::default());
    }
    let (driver, count) = open(&settings, deps.driver.clone()).await?;
    let orders = Arc::new(SharedIntent::new(deps.clock.clone()));
    orders.stop();
    let workers = WorkerSpawner { settings: settings.clone(), orders, ledger: ledger.clone(), metrics };
    let gpus: Vec<_> = (0..count).map(|index| workers.gpu(index, driver.clone())).collect::<Result<_, _>>()?;
    let daemons: Vec<_> = settings.daemons.iter().map(|daemon| workers.mps(daemon)).collect::<Result<_, _>>()?;
    let deadline = Instant::now() + settings.stop;
    let ended = || gpus.iter().all(|unit| unit.slot.view().ended) && daemons.iter().all(|unit| unit.slot.view().ended);
    while !ended() && !deps.shutdown.is_cancelled() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(AgentSummary { unrestored: unrestored_units(&ledger)? })
}

/// Devices whose originals are on disk.
fn unrestored_units(ledger: &Ledger) -> Result<Vec<String>, LedgerError> {
    let records = ledger.changed()?.into_iter();
    Ok(records.map(|record| record.map_or_else(|error| error.to_string(), |record| record.unit)).collect())
}

/// Returns the driver and the number of its GPUs; bounded, because with a broken driver these calls may never return.
async fn open(
    settings: &AgentSettings,
    injected: Option<Arc<dyn SettableDriver>>,
) -> Result<(Arc<dyn SettableDriver>, u32), AgentError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let path = settings.library_path.clone();
    tasks::NVML_OPEN.thread(move || {
        let opened = match injected {
            Some(driver) => Ok(driver),
            None => NvmlDriver::load(path.as_deref(), "agent.library_path").map(|nvml| {
                tracing::info!(version = nvml.version(), "NVML loaded");
                Arc::new(nvml) as Arc<dyn SettableDriver>
            }),
        };
        let counted = opened.and_then(|driver| Ok((driver.gpu_count()?, driver)));
        // After the timeout, which was reported then, the receiver is gone.
        drop(sender.send(counted));
    })?;
    let (count, driver) = match tokio::time::timeout(OPEN_TIMEOUT, receiver).await {
        Ok(Ok(counted)) => counted.map_err(|lost| AgentError::Gpus(lost.to_string()))?,
        Ok(Err(_)) => {
            let detail = "loading NVML panicked; set agent.library_path to the driver's own library";
            return Err(AgentError::Gpus(detail.to_owned()));
        }
        Err(_) => {
            let detail = format!("NVML did not answer within {OPEN_TIMEOUT:?}; check the driver with nvidia-smi");
            return Err(AgentError::Gpus(detail));
        }
    };
    if count == 0 {
        return Err(AgentError::Gpus(
            "no GPU found; check with nvidia-smi, and run the agent on nodes with GPUs only".to_owned(),
        ));
    }
    Ok((driver, count))
}

/// Starts the thread that follows intents.
fn follow(
    settings: &AgentSettings,
    log: Option<LazyBus>,
    mut inbox: IntentInbox,
    outbox: &Arc<ReportOutbox>,
    stop: &Shutdown,
    caught_up: &Arc<AtomicBool>,
) -> Result<(), AgentError> {
    let (outbox, stop, caught_up) = (outbox.clone(), stop.clone(), caught_up.clone());
    let (prefix, every) = (settings.prefix.clone(), settings.check);
    let source = match (settings.source.clone(), log) {
        (IntentSource::File(path), _) => IntentInput::File(path),
        (IntentSource::Log, Some(log)) => IntentInput::Log(log),
        (IntentSource::Log, None) => return Err(AgentError::NothingToFollow),
    };
    tasks::INTENTS.thread(move || {
        let on_caught_up = || caught_up.store(true, Ordering::Release);
        tasks::INTENTS.until_it_returns(RESTART_DELAY, || {
            while !stop.is_cancelled() {
                match &source {
                    IntentInput::File(path) => follow_file(path, every, &mut inbox, &stop, &on_caught_up),
                    IntentInput::Log(log) => follow_log(log, &prefix, &mut inbox, &outbox, &stop, &on_caught_up),
                }
            }
        });
    })?;
    Ok(())
}

enum IntentInput {
    File(PathBuf),
    Log(LazyBus),
}

/// The shared parts of the threads for devices.
struct WorkerSpawner {
    settings: AgentSettings,
    orders: Arc<SharedIntent>,
    ledger: Ledger,
    metrics: AgentMetrics,
}

impl WorkerSpawner {
    fn gpu(&self, index: u32, driver: Arc<dyn SettableDriver>) -> Result<DeviceWorker<DeviceReport>, AgentError> {
        let slot = Arc::new(WorkerSlot::new(format!("index-{index}")));
        let (mine, orders, ledger, metrics, settings) =
            (slot.clone(), self.orders.clone(), self.ledger.clone(), self.metrics.clone(), self.settings.clone());
        tasks::GPU_HOLDER.thread_of(index, move || {
            let run = || hold_gpu(index, &*driver, &mine, &orders, &ledger, &metrics, &settings);
            supervised(&tasks::GPU_HOLDER, &mine, &orders, settings.retry, run);
        })?;
        Ok(DeviceWorker { slot })
    }

    fn mps(&self, daemon: &MpsDaemon) -> Result<DeviceWorker<MpsReport>, AgentError> {
        let slot = Arc::new(WorkerSlot::new(daemon.unit()));
        let (mine, orders, ledger, metrics, daemon, check) =
            (slot.clone(), self.orders.clone(), self.ledger.clone(), self.metrics.clone(), daemon.clone(), self.settings.check);
        let retry = self.settings.retry;
        tasks::MPS_HOLDER.thread(move || {
            let run = || {
                let mut holder = MpsEnforcer::new(&ledger, &metrics, &daemon);
                loop {
                    let now = orders.now();
                    mine.begin();
                    let report = holder.step(now.desired.mps_default_thread_percentage.as_ref());
                    mine.end();
                    mine.report(report);
                    if now.stopping {
                        return;
                    }
                    orders.wait(&now, check);
                }
            };
            supervised(&tasks::MPS_HOLDER, &mine, &orders, retry, run);
        })?;
        Ok(DeviceWorker { slot })
    }
}

/// Runs a thread's body; a panic costs the time until it is tried again, not the device.
fn supervised<R: Clone>(task: &TaskEntry, slot: &WorkerSlot<R>, orders: &SharedIntent, retry: Duration, run: impl Fn()) {
    while task.watch(&run).is_err() {
        slot.end();
        slot.lost("holding its settings panicked; this is a defect".to_owned());
        let now = orders.now();
        tracing::error!(device = slot.view().name, "the thread of this device panicked");
        if now.stopping {
            break;
        }
        orders.wait(&now, retry);
    }
    slot.ended();
}

fn hold_gpu(
    index: u32,
    driver: &dyn SettableDriver,
    slot: &WorkerSlot<DeviceReport>,
    orders: &SharedIntent,
    ledger: &Ledger,
    metrics: &AgentMetrics,
    settings: &AgentSettings,
) {
    loop {
        slot.begin();
        let mut lost = None;
        let before = orders.now();
        let opened = driver.with_settable_gpu(index, &mut |gpu| {
            let identity = gpu.identity().clone();
            if slot.rename(&identity.uuid) != identity.uuid {
                let old = DeviceLabel { device: format!("index-{index}") };
                metrics.device_up.remove(&old);
                metrics.device_stuck.remove(&old);
                let persistent = gpu.persistent();
                tracing::info!(gpu = index, device = identity.uuid, model = identity.model, persistent, "GPU opened");
            }
            let mut holder = GpuEnforcer::new(ledger, metrics, settings.allowed, &identity);
            loop {
                let now = orders.now();
                slot.begin();
                let turn = chaos::is_off("device-threads").then(|| IN_TURN.lock().unwrap_or_else(PoisonError::into_inner));
                let stepped = holder.step(gpu, now.desired.of_device(&identity.uuid));
                drop(turn);
                if slot.end() {
                    tracing::warn!(device = identity.uuid, "the GPU answers again");
                }
                match stepped {
                    Ok(report) => slot.report(report),
                    Err(GpuLost(reason)) => {
                        lost = Some(reason);
                        return;
                    }
                }
                if now.stopping {
                    return;
                }
                orders.wait(&now, settings.check);
            }
        });
        slot.end();
        match opened.err().map(|GpuLost(reason)| reason).or(lost) {
            None => return,
            Some(reason) => {
                tracing::error!(gpu = index, reason, "GPU lost; the others continue, and opening it is retried");
                slot.lost(reason);
            }
        }
        if before.stopping {
            return;
        }
        orders.wait(&orders.now(), settings.retry);
    }
}

/// Looks at the threads from outside.
struct WorkerMonitor<'a> {
    settings: &'a AgentSettings,
    deps: &'a AgentDependencies,
    metrics: &'a AgentMetrics,
    orders: &'a SharedIntent,
    ledger: &'a Ledger,
    last_published: Option<(DeviceState, Instant)>,
    was_live: bool,
    /// Every device was seen, or is known not to answer.
    all_seen: bool,
    counted: Option<Instant>,
}

impl<'a> WorkerMonitor<'a> {
    fn new(
        settings: &'a AgentSettings,
        deps: &'a AgentDependencies,
        metrics: &'a AgentMetrics,
        orders: &'a SharedIntent,
        ledger: &'a Ledger,
    ) -> Self {
        Self { settings, deps, metrics, orders, ledger, last_published: None, was_live: false, all_seen: false, counted: None }
    }

    fn watch<R: Clone>(&self, units: &[DeviceWorker<R>], timeout: Duration) -> bool {
        let mut all = true;
        for DeviceWorker { slot } in units {
            let stuck_now = slot.watch(timeout);
            let look = slot.view();
            if stuck_now {
                tracing::error!(
                    device = look.name,
                    timeout_seconds = timeout.as_secs_f64(),
                    "the device does not answer; the others continue"
                );
            }
            all &= look.report.is_some() || look.trouble.is_some();
            let label = DeviceLabel { device: look.name };
            let stuck = look.trouble.as_deref() == Some("the device does not answer");
            self.metrics.device_stuck.get_or_create(&label).set(i64::from(stuck));
            self.metrics.device_up.get_or_create(&label).set(i64::from(look.report.is_some() && look.trouble.is_none()));
        }
        all
    }

    /// Collects the state of all devices; returns a state if it is to be published.
    fn state_to_publish(
        &mut self,
        gpus: &[DeviceWorker<DeviceReport>],
        daemons: &[DeviceWorker<MpsReport>],
    ) -> Option<DeviceState> {
        let timeout = self.settings.call_timeout;
        // A daemon's commands have their own bound; several make one step.
        let patient = self.settings.daemons.first().map_or(timeout, |daemon| daemon.timeout * 5);
        let all_reported = [self.watch(gpus, timeout), self.watch(daemons, patient)];
        self.all_seen = all_reported == [true; 2];
        let live = self.orders.live().is_some();
        self.metrics.intent_live.set(i64::from(live));
        if self.was_live && !live {
            tracing::warn!("no intent is in force; all original settings are restored");
        }
        self.was_live = live;
        if self.counted.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
            self.counted = Some(Instant::now());
            self.metrics.records.set(self.ledger.changed().map_or(-1, |records| records.len() as i64));
        }
        if !self.all_seen {
            return None;
        }
        let state = self.state(gpus, daemons);
        let timeless = |state: &DeviceState| DeviceState { time: EventTime::default(), ..state.clone() };
        let again = |(published, at): &(DeviceState, Instant)| {
            at.elapsed() >= REPUBLISH_INTERVAL || timeless(published) != timeless(&state)
        };
        if self.last_published.as_ref().is_none_or(again) {
            self.last_published = Some((state.clone(), Instant::now()));
            return Some(state);
        }
        None
    }

    fn state(&self, gpus: &[DeviceWorker<DeviceReport>], daemons: &[DeviceWorker<MpsReport>]) -> DeviceState {
        let live = self.orders.live();
        let devices = gpus.iter().filter_map(|DeviceWorker { slot }| {
            let look = slot.view();
            let mut report = look.report?;
            if let Some(trouble) = look.trouble {
                (report.power_limit_outcome, report.sm_clock_outcome) = (SettingOutcome::Failed, SettingOutcome::Failed);
                (report.power_limit_reason, report.sm_clock_reason) = (trouble.clone(), trouble);
            }
            Some(report)
        });
        let reports: Vec<MpsReport> = daemons
            .iter()
            .filter_map(|DeviceWorker { slot }| {
                let look = slot.view();
                let mut report = look.report?;
                if let Some(trouble) = look.trouble {
                    (report.outcome, report.reason) = (SettingOutcome::Failed, trouble);
                }
                Some(report)
            })
            .collect();
        let mut mps = together(&reports);
        let requested_default = live.as_ref().and_then(|live| live.desired.mps_default_thread_percentage.clone());
        if self.settings.daemons.is_empty() && requested_default.is_some() {
            let reason = "the MPS default may not be changed on this node (agent.mps.enabled)".to_owned();
            mps = MpsReport::with_reason(SettingOutcome::Refused, reason);
        }
        let percent = |millipercent: u32| Some(millipercent.div_ceil(1000)).filter(|percent| (1..=100).contains(percent));
        DeviceState {
            time: self.deps.clock.now(),
            node: self.settings.node.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            stopped: false,
            intent_time: live.as_ref().map(|live| live.intent_time),
            decision_id: live.as_ref().map(|live| live.decision_id.clone()),
            live_until: live.as_ref().map(|live| live.until),
            devices: devices.collect(),
            mps_default_outcome: mps.outcome,
            mps_default_reason: mps.reason,
            mps_default_thread_percentage: mps.millipercent.and_then(percent),
            original_mps_default_thread_percentage: mps.original_millipercent.and_then(percent),
        }
    }
}
