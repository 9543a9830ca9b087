//! Services as threads and tasks of this process.

mod pods;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use eadt_actuator::ActuatorDependencies;
use eadt_archiver::ArchiverDependencies;
use eadt_bus::{Bus, topics};
use eadt_cluster::{Cluster, PolicyWriter};
use eadt_collector::{CollectorDependencies, RawSettings};
use eadt_dashboard::{DashboardModel, DashboardServer, HistorySource, LogSource, SharedModel, SourceFacts, SourceKind, WhatIf};
use eadt_kubernetes::KubernetesCluster;
use eadt_kubernetes::policy::access::{PolicyAccess, PolicyEditor};
use eadt_optimizer::OptimizerDependencies;
use eadt_processor::{HeartbeatClock, JOINT_STAGES, ProcessorDependencies};
use eadt_schemas::Topic;
use eadt_schemas::v1::Origin;
use eadt_service::supervise::{on_signals, spawn_detached};
use eadt_service::{HealthRegistry, MetricsRegistry, ServiceClock, Shutdown, Supervisor, address, http, readiness, tasks};
use eadt_simulator_service::SimClock;

use crate::cli;
use crate::commands;
use crate::live::exporter::Exporter;
use crate::live::log_lines::ViewTopicReader;
#[cfg(feature = "otlp")]
use crate::live::otlp::OtlpPush;
use crate::settings::ProgramSettings;
use crate::up;

/// Service that this process runs.
#[derive(Debug, Clone)]
pub enum StandaloneService {
    Collector,
    Processor,
    Actuator(cli::ActuatorArgs),
    Archiver,
    Optimizer,
    /// Metrics by workload and GPU.
    Exporter,
}

/// Events that did not reach the log: the end of a process that lost some is no success.
#[derive(Debug, thiserror::Error)]
#[error("{0} sampled events did not reach the log; see the metric eadt_collector_events_dropped")]
pub struct LostEvents(pub u64);

/// Number of events that the collector of a process lost.
#[derive(Debug, Clone, Default)]
pub struct LostEventCounter(Arc<AtomicU64>);

impl LostEventCounter {
    /// Returns an error if something was lost.
    pub fn check(&self) -> Result<(), LostEvents> {
        match self.0.load(Ordering::SeqCst) {
            0 => Ok(()),
            lost => Err(LostEvents(lost)),
        }
    }
}

/// Spawns the task that sends an exporter's metrics to `metrics.otlp.endpoint`, if one is set. The returned value sends the last
/// figures once they are there. `port`: that of the process' metrics, which no other process of the host has.
#[cfg(feature = "otlp")]
pub fn spawn_otlp(
    supervisor: &mut Supervisor,
    settings: &ProgramSettings,
    exporter: &Exporter,
    port: u16,
    shutdown: &Shutdown,
) -> anyhow::Result<Option<OtlpPush>> {
    let otlp = &settings.metrics.otlp;
    if otlp.endpoint.is_empty() {
        return Ok(None);
    }
    let instance = format!("{}:{port}", eadt_collector::host_name());
    let push = OtlpPush::new(otlp, instance, exporter.clone(), ServiceClock::machine())?;
    supervisor.spawn(&tasks::OTLP, push.clone().run(shutdown.clone()));
    Ok(Some(push))
}

/// Runs one service against Kafka until interrupted.
pub async fn run(single: StandaloneService, mut settings: ProgramSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    if matches!(single, StandaloneService::Actuator(_)) && !settings.actuator.jobs.is_empty() {
        return Err(up::refuse_declared_jobs());
    }
    if !matches!(single, StandaloneService::Exporter) && !settings.metrics.otlp.endpoint.is_empty() {
        tracing::info!("metrics.otlp.endpoint is set, and this service sends nothing there: `eadt exporter` and `eadt up` do");
    }
    let (metrics, health) = (MetricsRegistry::default(), HealthRegistry::default());
    let address = address::parse(&settings.http.address).context("http.address")?;
    // Before any wait for a broker.
    let (bound, server) = eadt_service::serve(address, http::routes(metrics.clone(), health.clone()), shutdown.clone()).await?;
    let bus = crate::bus::shared(&settings)?;
    let partitions = topics::check_layout(&*bus, &settings.topics.prefix)?;
    tracing::debug!(partitions, "topics match the settings");
    watch_log(&health, &settings, &bus, &shutdown)?;
    let mut supervisor = Supervisor::new(shutdown.clone());
    let losses = LostEventCounter::default();
    #[cfg(feature = "otlp")]
    let mut push = None;
    match single {
        StandaloneService::Collector => {
            let raw = settings.collector.clone();
            spawn_collector(&mut supervisor, raw, &settings, &bus, (&shutdown, &metrics, &health), &losses, None)?;
        }
        StandaloneService::Exporter => {
            let exporter = Exporter::new(&metrics, settings.metrics.clone());
            #[cfg(feature = "otlp")]
            {
                push = spawn_otlp(&mut supervisor, &settings, &exporter, bound.port(), &shutdown)?;
            }
            let (bus, names, stop, ready) = (bus.clone(), settings.topics.clone(), shutdown.clone(), health.part("exporter"));
            supervisor
                .spawn_thread(&tasks::EXPORTER, move || commands::exporter::follow(&*bus, &names, &exporter, &ready, &stop));
        }
        StandaloneService::Processor => {
            spawn_processor(&mut supervisor, &settings, &bus, HeartbeatClock::default(), &shutdown, &metrics, &health);
        }
        StandaloneService::Actuator(cli::ActuatorArgs { kubernetes: Some(context), .. }) => {
            let clock: eadt_kubernetes::ClockFn = Arc::new(|| ServiceClock::machine().now());
            let cluster = connect(&settings, &context, Origin::Measured, clock).await?;
            spawn_leading(&mut supervisor, &settings, &bus, &cluster, &shutdown, &metrics, &health);
        }
        StandaloneService::Actuator(cli::ActuatorArgs { simulation: flags, .. }) => {
            up::simulate(&mut settings, &flags)?;
            let clock = SimClock::new(settings.simulator.start);
            let cluster = up::spawn_simulator(&mut supervisor, &settings, clock, &bus, &shutdown, &metrics, &health)?;
            spawn_actuator(&mut supervisor, &settings, &bus, cluster, &shutdown, &metrics, &health);
        }
        StandaloneService::Archiver => spawn_archiver(&mut supervisor, &settings, &bus, &shutdown, &metrics, &health),
        StandaloneService::Optimizer => {
            if let Some(missing) = crate::commands::optimizer::missing(&settings.optimizer.location) {
                tracing::warn!("{missing}; checked again at every interval");
            }
            let deps = OptimizerDependencies {
                settings: settings.optimizer.clone(),
                archive: None,
                prefix: settings.topics.prefix.clone(),
                bus: bus.clone(),
                clock: ServiceClock::machine(),
                shutdown: shutdown.clone(),
                metrics: metrics.clone(),
                ready: health.part("optimizer"),
                once: false,
            };
            supervisor.spawn_thread(&tasks::OPTIMIZER, move || eadt_optimizer::run(&deps).map(drop));
        }
    }
    tracing::info!(address = %bound, "metrics and health");
    supervisor.spawn(&tasks::HTTP, server);
    supervisor.join().await?;
    #[cfg(feature = "otlp")]
    if let Some(push) = push {
        push.send_last().await;
    }
    Ok(losses.check()?)
}

/// Makes the process ready only while the log answers. Each question is about another topic, so that one without a leader is
/// found.
pub fn watch_log(
    health: &HealthRegistry,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    shutdown: &Shutdown,
) -> std::io::Result<()> {
    let (bus, prefix) = (bus.clone(), settings.topics.prefix.clone());
    readiness::watch_log(health, shutdown.clone(), move |number| {
        let topic = Topic::ALL[number % Topic::ALL.len()];
        bus.probe(&format!("{prefix}{topic}"))
    })
}

/// `raw`: the collector's settings, which `up --gpus nvml` changes.
pub fn spawn_collector(
    supervisor: &mut Supervisor,
    raw: RawSettings,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    (shutdown, metrics, health): (&Shutdown, &MetricsRegistry, &HealthRegistry),
    losses: &LostEventCounter,
    progress_listener: Option<std::net::TcpListener>,
) -> anyhow::Result<()> {
    let losses = losses.clone();
    let collector = raw.validate(&eadt_collector::host_name())?;
    let mut deps =
        CollectorDependencies::new(bus.clone(), &settings.topics.prefix, metrics.clone(), health.clone(), shutdown.clone());
    deps.progress_listener = progress_listener.map(Arc::new);
    let context = settings.kubernetes.context.clone();
    supervisor.spawn(&tasks::COLLECTOR, async move {
        if collector.asks_api_server() || collector.asks_for_reviews() {
            let what = if collector.asks_api_server() { "kubelet.api_server" } else { "progress.service_accounts" };
            let client = eadt_kubernetes::connect(context.as_deref()).await.with_context(|| format!("collector.{what}"))?;
            let (pods, reviews) = (
                eadt_kubernetes::api::pods::PodFactsReader::new(client.clone()),
                eadt_kubernetes::api::reviews::TokenReviews::new(client),
            );
            deps.owners = collector.asks_api_server().then(|| Arc::new(pods::OwnerByApiServer::new(pods)) as _);
            deps.reviewer = collector.asks_for_reviews().then(|| Arc::new(tokens::ApiServerTokenReviewer::new(reviews)) as _);
        }
        let summary = eadt_collector::run(collector, deps).await?;
        losses.0.store(summary.dropped.total(), Ordering::SeqCst);
        anyhow::Ok(())
    });
    Ok(())
}

/// Returns the cluster of a context; empty: the settings' own, the current one, or the one that this process runs in.
pub async fn connect(
    settings: &ProgramSettings,
    context: &str,
    origin: Origin,
    clock: eadt_kubernetes::ClockFn,
) -> anyhow::Result<KubernetesCluster> {
    settings.kubernetes.check().map_err(anyhow::Error::msg)?;
    let context = Some(context).filter(|context| !context.is_empty()).or(settings.kubernetes.context.as_deref());
    let client = eadt_kubernetes::connect(context).await?;
    Ok(KubernetesCluster::new(client, settings.kubernetes.clone(), origin, clock))
}

/// Returns the writer with which the page changes policies: the cluster of a context, as in [`connect`].
pub async fn policy_editor(
    settings: &ProgramSettings,
    context: &str,
    clock: eadt_kubernetes::ClockFn,
) -> anyhow::Result<Arc<dyn PolicyWriter>> {
    let context = Some(context).filter(|context| !context.is_empty()).or(settings.kubernetes.context.as_deref());
    let access = PolicyAccess::open(context).await?;
    Ok(Arc::new(PolicyEditor::new(access, clock, tokio::runtime::Handle::current())))
}

/// Spawns the actuator on Kubernetes. It waits until it leads, and again once it no longer does. All replicas have one name in
/// the consumer group: only one of them is in it, and the next leader takes its place at once.
pub fn spawn_leading(
    supervisor: &mut Supervisor,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    cluster: &KubernetesCluster,
    shutdown: &Shutdown,
    metrics: &MetricsRegistry,
    health: &HealthRegistry,
) {
    let cluster = cluster.clone();
    let deps = ActuatorDependencies {
        settings: settings.actuator.clone(),
        bus: bus.clone(),
        cluster: Arc::new(cluster.clone()),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("actuator"),
    };
    supervisor.spawn(&tasks::ACTUATOR, async move {
        let acting = cluster.run_for(eadt_actuator::run_while_leading(deps, cluster.subscribe_leadership())).await;
        anyhow::Ok(acting.context("the connection to Kubernetes ended by itself")??)
    });
}

pub fn spawn_actuator(
    supervisor: &mut Supervisor,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    cluster: impl Cluster + 'static,
    shutdown: &Shutdown,
    metrics: &MetricsRegistry,
    health: &HealthRegistry,
) {
    let deps = ActuatorDependencies {
        settings: settings.actuator.clone(),
        bus: bus.clone(),
        cluster: Arc::new(cluster),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("actuator"),
    };
    supervisor.spawn_thread(&tasks::ACTUATOR, move || eadt_actuator::run_actuator(&deps));
}

pub fn spawn_processor(
    supervisor: &mut Supervisor,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    clock: HeartbeatClock,
    shutdown: &Shutdown,
    metrics: &MetricsRegistry,
    health: &HealthRegistry,
) {
    let deps = |part, clock| ProcessorDependencies {
        settings: settings.processor.clone(),
        bus: bus.clone(),
        clock,
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part(part),
    };
    for stage in JOINT_STAGES.into_iter().filter(|stage| (stage.is_on)(&settings.processor)) {
        let deps = deps((stage.task)().name, clock.clone());
        supervisor.spawn_thread((stage.task)(), move || (stage.run)(&deps));
    }
    let deps = deps("processor", clock);
    supervisor.spawn_thread(&tasks::PROCESSOR, move || eadt_processor::run_processor(&deps));
}

/// Starts the web page on a log. Returns where it is; with `further` the next free one of so many ports is taken.
pub async fn spawn_dashboard(
    supervisor: &mut Supervisor,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    further: u16,
    shutdown: &Shutdown,
) -> anyhow::Result<DashboardServer> {
    let source = SourceFacts {
        kind: SourceKind::Live,
        place: up::place(settings),
        window_seconds: Some(settings.processor.window_seconds),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let limits = eadt_dashboard::RetentionLimits { windows: settings.dashboard.windows, ..Default::default() };
    let model = SharedModel::new(DashboardModel::new(source, limits));
    let records = HistorySource::Log { bus: bus.clone(), prefix: settings.topics.prefix.clone() };
    let what_if = WhatIf::new(records, settings.processor.controller_settings.clone());
    let lines = ViewTopicReader { bus: bus.clone(), names: settings.topics.clone() };
    let log = LogSource::new(bus.clone(), settings.topics.prefix.clone(), Arc::new(lines));
    let server =
        DashboardServer::bind(&settings.dashboard, further, model.clone(), Some(what_if), shutdown.clone()).await?.with_log(log);
    let (bus, prefix, stop) = (bus.clone(), settings.topics.prefix.clone(), shutdown.clone());
    supervisor.spawn_thread(&tasks::DASHBOARD_FEED, move || eadt_dashboard::follow(&*bus, &prefix, &model, &stop));
    Ok(server)
}

pub fn spawn_archiver(
    supervisor: &mut Supervisor,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    shutdown: &Shutdown,
    metrics: &MetricsRegistry,
    health: &HealthRegistry,
) {
    let mut deps = ArchiverDependencies {
        settings: settings.archiver.clone(),
        prefix: settings.topics.prefix.clone(),
        bus: bus.clone(),
        clock: ServiceClock::machine(),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        new_archive_id: 0,
        ready: health.part("archiver"),
    };
    supervisor.spawn_thread(&tasks::ARCHIVER, move || {
        deps.new_archive_id = new_archive_id()?;
        anyhow::Ok(eadt_archiver::run(&deps)?)
    });
}

/// Returns the id that an archive without one gets.
pub fn new_archive_id() -> anyhow::Result<u128> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| anyhow::anyhow!("the system gives no randomness: {error}"))?;
    Ok(u128::from_ne_bytes(id))
}

/// Drains at the first signal, ends at the second; a closed terminal drains.
pub fn watch_signals(shutdown: Shutdown) {
    spawn_detached(&tasks::SIGNALS, on_signals(shutdown, crate::live::screen::give_terminal_back));
}
