//! The collector: publishes the power of GPUs and the progress of training jobs as events.
//!
//! In: this machine's GPUs through NVML; dcgm-exporter endpoints; progress posted by jobs over HTTP, also in Kubeflow Trainer's
//! form; jobs' own Prometheus endpoints. Out: `gpu.telemetry.v1` and `training.progress.v1`, one sample one event. It never
//! invents a value: one that is not supported or failed is absent, never zero. It never changes a setting of a GPU, and never
//! blocks a source while the log is away. It never loses an event uncounted: sampled = sent + dropped.
//!
//! Sources implement one trait ([`source::CollectorSource`]) and hand events to one [`sink::EventSink`]; one thread
//! publishes from a bounded [`buffer`]. Each source names itself in `collector`: `nvml/NAME`, `dcgm/NAME`, `progress/NAME`,
//! `job/NAME`; the processor prefers `nvml` if several report one GPU. A graceful stop marks the last event of everything
//! `last`; then the buffer is drained.

pub mod assignments;
pub mod buffer;
pub mod dcgm;
mod files;
pub mod kubelet;
pub mod metrics;
pub mod nvml;
pub mod plausible;
pub mod progress;
pub mod publish;
mod scrape;
pub mod settings;
pub mod shares;
pub mod sink;
pub mod source;
pub mod tenancy;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use eadt_bus::Bus;
pub use eadt_recordings::prometheus_text;
use eadt_service::{HealthRegistry, MetricsRegistry, ServiceClock, Shutdown, Supervisor, TaskFailure, tasks};

use assignments::AssignmentTable;
use buffer::{BufferLimits, EventBuffer};
use kubelet::PodGpus;
use kubelet::owners::{OwnerByPodName, PodFactsLookup};
use metrics::CollectorMetrics;
use nvml::{GpuDriver, NvmlSource};
use progress::directives::DirectiveStore;
use progress::reviews::TokenReviewer;
pub use publish::{CollectorSummary, DropCounts};
use publish::{EventPublisher, PublishError};
pub use settings::{CollectorSettings, RawSettings, SettingsError, host_name};
use sink::EventSink;
use source::{CollectorSource, SourceError};

/// A log that acknowledges nothing for so long is away, as `log_reachable` reports.
const SILENCE: Duration = Duration::from_secs(5);

/// Dependencies of the collector.
#[derive(Debug, Clone)]
pub struct CollectorDependencies {
    pub bus: Arc<dyn Bus>,
    /// Prefix of topic names, `eadt.` by default.
    pub topic_prefix: String,
    pub metrics: MetricsRegistry,
    pub health: HealthRegistry,
    /// Cancelled: everything is marked, drained and ended.
    pub shutdown: Shutdown,
    pub clock: ServiceClock,
    /// Sampled instead of NVML's GPUs if `nvml.enabled` is set: a simulated machine, or a test's.
    pub driver: Option<Arc<dyn GpuDriver>>,
    /// Finds the workloads of pods; `None` if they are found by their names.
    pub owners: Option<Arc<dyn PodFactsLookup>>,
    /// Puts tokens of service accounts to the API server; needed if `progress.service_accounts` is set.
    pub reviewer: Option<Arc<dyn TokenReviewer>>,
    /// Listener for the jobs' reports, if it is opened already; `None` if `progress.listen` is opened.
    pub progress_listener: Option<Arc<std::net::TcpListener>>,
}

impl CollectorDependencies {
    /// Returns an environment with the machine's clock and its own GPUs.
    pub fn new(
        bus: Arc<dyn Bus>,
        topic_prefix: &str,
        metrics: MetricsRegistry,
        health: HealthRegistry,
        shutdown: Shutdown,
    ) -> Self {
        let topic_prefix = topic_prefix.to_owned();
        let clock = ServiceClock::machine();
        let (driver, owners, reviewer, progress_listener) = (None, None, None, None);
        Self { bus, topic_prefix, metrics, health, shutdown, clock, driver, owners, reviewer, progress_listener }
    }
}

/// Error that ended the collector before it was asked to end.
#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    #[error("a source cannot start")]
    Start(#[source] SourceError),
    #[error("the collector failed")]
    Task(#[source] TaskFailure),
    #[error(transparent)]
    Publish(PublishError),
}

/// Collects until shutdown, or until something fails that it cannot do without. Then everything sampled was sent, or
/// is counted in the summary by the reason why not.
pub async fn run(settings: CollectorSettings, deps: CollectorDependencies) -> Result<CollectorSummary, CollectorError> {
    let ready = deps.health.part("collector");
    let metrics = CollectorMetrics::new(&deps.metrics);
    metrics.begin_counters(&source_kinds(&settings));
    let limits = BufferLimits { events: settings.buffer.events, bytes: settings.buffer.bytes };
    let buffer = Arc::new(EventBuffer::new(limits));
    let sink = EventSink::new(buffer.clone(), metrics.clone(), &settings.name, &deps.topic_prefix);
    let assignments = AssignmentTable::new(&settings.assignments);
    // The collector's own: a failure ends it and not the whole process, which hears of it from the result.
    let shutdown = deps.shutdown.child_token();

    let pods = PodGpus::new(settings.kubelet.as_ref());
    let directives = DirectiveStore::default();
    let mut sources =
        sources(&settings, &deps, &sink, &metrics, &assignments, &pods, &directives).map_err(CollectorError::Start)?;
    for source in &mut sources {
        tokio::select! {
            opened = source.open() => opened.map_err(CollectorError::Start)?,
            // A library that hangs while it loads does not hold up a stop.
            () = shutdown.cancelled() => return Ok(CollectorSummary::default()),
        }
    }

    let mut collecting = Supervisor::new(shutdown.clone());
    for source in sources {
        let stop = shutdown.clone();
        collecting.spawn(source.task(), async move { source.run(stop).await });
    }
    if let Some(path) = settings.assignments_file.clone() {
        let follow = assignments.follow(path, metrics.clone(), shutdown.clone());
        collecting.spawn(&tasks::ASSIGNMENTS, async move {
            follow.await;
            Ok::<_, SourceError>(())
        });
    }
    if let Some(kubelet) = settings.kubelet.clone() {
        let owners = deps.owners.clone().unwrap_or_else(|| Arc::new(OwnerByPodName(settings.kubelet_pods)));
        let holders_publisher = kubelet::HoldersPublisher::new(sink.clone(), settings.node.clone(), deps.clock.clone());
        let follower = kubelet::KubeletPoller::new(kubelet, owners, pods.clone(), metrics.clone(), holders_publisher);
        let stop = shutdown.clone();
        collecting.spawn(&tasks::KUBELET, async move {
            follower.run(stop).await;
            Ok::<_, SourceError>(())
        });
    }
    if settings.progress.is_some() {
        let (bus, prefix) = (deps.bus.clone(), deps.topic_prefix.clone());
        let (metrics, stop) = (metrics.clone(), shutdown.clone());
        collecting.spawn_thread(&tasks::DIRECTIVES, move || {
            directives.follow(&*bus, &prefix, &metrics, &stop);
            Ok::<_, SourceError>(())
        });
    }
    let result: Arc<Mutex<Option<Result<CollectorSummary, PublishError>>>> = Arc::default();
    let mut publishing = Supervisor::new(shutdown.clone());
    let publisher = EventPublisher {
        bus: deps.bus.clone(),
        buffer: buffer.clone(),
        name: format!("eadt-collector-{}", settings.name),
        drain: settings.buffer.drain,
        linger: settings.buffer.linger,
        in_flight: settings.buffer.events as u64,
        silence: SILENCE,
        shutdown: shutdown.clone(),
        ready: ready.clone(),
        metrics,
    };
    ready.set(true);
    let slot = result.clone();
    publishing.spawn_thread(&tasks::PUBLISHER, move || {
        let ended = publisher.run();
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        Ok::<_, PublishError>(())
    });
    tracing::info!(name = settings.name, node = settings.node, "collector runs");

    let collecting = async {
        let ended = collecting.join().await;
        // Only now has every source emitted its last event.
        buffer.close();
        ended
    };
    let (collected, published) = tokio::join!(collecting, publishing.join());
    ready.set(false);
    published.map_err(CollectorError::Task)?;
    let ended = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    let summary = match ended {
        Some(Ok(summary)) => summary,
        Some(Err(error)) => return Err(CollectorError::Publish(error)),
        None => CollectorSummary::default(),
    };
    tracing::info!(
        sampled = summary.sampled,
        sent = summary.sent,
        dropped_buffer_full = summary.dropped.buffer_full,
        dropped_delivery_failed = summary.dropped.delivery_failed,
        dropped_unconfirmed = summary.dropped.unconfirmed,
        dropped_shutdown = summary.dropped.shutdown,
        "collector ended"
    );
    collected.map_err(CollectorError::Task)?;
    Ok(summary)
}

/// Returns the kinds of the configured sources.
fn source_kinds(settings: &CollectorSettings) -> Vec<&'static str> {
    let kinds = [
        (nvml::KIND, settings.nvml.is_some()),
        (dcgm::KIND, !settings.dcgm.is_empty()),
        (progress::http::KIND, settings.progress.is_some()),
        (progress::job::KIND, !settings.jobs.is_empty()),
    ];
    kinds.into_iter().filter(|(_, is_configured)| *is_configured).map(|(kind, _)| kind).collect()
}

fn sources(
    settings: &CollectorSettings,
    deps: &CollectorDependencies,
    sink: &EventSink,
    metrics: &CollectorMetrics,
    assignments: &AssignmentTable,
    pods: &PodGpus,
    directives: &DirectiveStore,
) -> Result<Vec<Box<dyn CollectorSource>>, SourceError> {
    let clock = &deps.clock;
    let named = |kind: &str| format!("{kind}/{}", settings.name);
    let mut sources: Vec<Box<dyn CollectorSource>> = Vec::new();
    if let Some(nvml) = settings.nvml.clone() {
        let context = nvml::SamplerContext {
            sink: sink.clone(),
            metrics: metrics.clone(),
            clock: clock.clone(),
            assignments: assignments.clone(),
            pods: pods.clone(),
            collector: named("nvml"),
            node: settings.node.clone(),
        };
        sources.push(Box::new(match &deps.driver {
            Some(driver) => NvmlSource::with_driver(nvml, context, driver.clone()),
            None => NvmlSource::new(nvml, context),
        }));
    }
    for dcgm in settings.dcgm.clone() {
        let (sink, metrics, assignments) = (sink.clone(), metrics.clone(), assignments.clone());
        sources.push(Box::new(dcgm::DcgmSource::new(dcgm, sink, metrics, assignments, clock.clone(), named("dcgm"))?));
    }
    if let Some(progress) = settings.progress.clone() {
        let (sink, metrics) = (sink.clone(), metrics.clone());
        let (clock, reviewer) = (clock.clone(), deps.reviewer.clone());
        let source = progress::http::HttpSource::new(progress, sink, metrics, clock, named("progress"), reviewer);
        let source = source.with_directives(directives.clone()).with_listener(deps.progress_listener.clone());
        sources.push(Box::new(source));
    }
    for job in settings.jobs.clone() {
        let (sink, metrics) = (sink.clone(), metrics.clone());
        sources.push(Box::new(progress::job::JobMetricsSource::new(job, sink, metrics, clock.clone(), named("job"))?));
    }
    Ok(sources)
}
