//! `eadt up`: everything in one process.
//!
//! Three stages drain one after another: what samples (simulated cluster or collector), what decides (processor, actuator), what
//! keeps (archiver). So nothing that was published is missing from the archive or the closing report.

mod follow;
pub mod kafka;

pub use follow::{place, wants_view};

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, bail};
use eadt_actuator::declared_jobs::DeclaredJobs;
use eadt_bus::embedded::{EmbeddedLog, StampSource};
use eadt_bus::{Bus, TopicPartition, topics};
use eadt_cluster::PolicyWriter;
use eadt_collector::assignments::GpuAssignment;
use eadt_dashboard::DashboardServer;
use eadt_processor::{HeartbeatClock, OptionalSeconds};
use eadt_report::RenderFormat;
use eadt_schemas::EventTime;
use eadt_schemas::v1::Origin;
use eadt_service::{HealthRegistry, MetricsRegistry, ServiceClock, Shutdown, Supervisor, TaskFailure, address, http, tasks};
use eadt_simulator_service::{SimClock, SimulatedCluster, SimulationDriver, SimulationSpeed, SimulatorSettings};

use crate::cli::{SimulationArgs, TelemetrySource, UpArgs};
use crate::live::exporter::Exporter;
use crate::live::follow::RunLength;
use crate::settings::ProgramSettings;
use crate::{services, usage_error};

/// The number of ports after that of `http.address` that are tried if it is taken, by another `up` for example.
const FURTHER_PORTS: u16 = 100;

/// Takes the flags of the simulation into its settings.
pub fn simulate(settings: &mut ProgramSettings, flags: &SimulationArgs) -> anyhow::Result<()> {
    let simulator = &mut settings.simulator;
    if let Some(path) = &flags.scenario {
        simulator.scenario = crate::scenario::load(path)?;
    }
    simulator.adopt = flags.seed.is_none() && flags.scenario.is_none();
    if let Some(seed) = flags.seed {
        simulator.scenario.noise.seed = seed;
    }
    if let Some(speed) = flags.speed {
        simulator.speed = speed;
    }
    if let Some(duration) = flags.duration {
        simulator.duration_seconds = Some(duration.as_secs_f64());
    }
    let processor = &settings.processor;
    if processor.window_seconds.fract() != 0.0 {
        bail!("processor.window_seconds={} must be whole seconds in a simulation", processor.window_seconds);
    }
    simulator.window_seconds = processor.window_seconds as u32;
    simulator.idle_grace_seconds = processor.idle_grace_seconds;
    simulator.join_grace_seconds = processor.join_grace_seconds;
    simulator.check().map_err(anyhow::Error::msg)
}

/// Merges the arguments into the settings; refuses contradictions before anything is opened or written.
fn prepare_settings(args: &UpArgs, settings: &mut ProgramSettings) -> anyhow::Result<()> {
    let simulated = args.gpus == TelemetrySource::Simulated;
    if let Some(name) = &args.controller {
        settings.processor.controller = name.parse()?;
    }
    if args.kubernetes.is_some() {
        if !simulated {
            return Err(usage_error::impossible(
                "--kubernetes runs simulated GPUs under the cluster's workloads; for real ones run eadt collector and eadt actuator --kubernetes",
            ));
        }
        // The cluster is real, and so is its time.
        settings.simulator.start = ServiceClock::machine().now();
        settings.simulator.speed = SimulationSpeed::Times(1.0);
    }
    if let Some(workload) = &args.workload {
        assign_all_gpus(args.gpus, workload, &mut settings.collector)?;
    }
    if !simulated {
        let flags = &args.simulation;
        let options =
            [("--speed", flags.speed.is_some()), ("--seed", flags.seed.is_some()), ("--scenario", flags.scenario.is_some())];
        if let Some((flag, _)) = options.iter().find(|(_, is_set)| *is_set) {
            let why = "is of the simulation, and with --gpus nvml or none nothing is simulated: leave it out";
            return Err(usage_error::impossible(format_args!("{flag} {why}")));
        }
        collector_settings(settings, args.gpus).validate(&eadt_collector::host_name())?;
    }
    if !settings.actuator.jobs.is_empty() && (simulated || !settings.bus.brokers.is_empty()) {
        return Err(refuse_declared_jobs());
    }
    if simulated {
        simulate(settings, &args.simulation)?;
        if !settings.bus.brokers.is_empty() {
            // Kafka stamps with the real time, which has nothing to do with simulated time.
            settings.processor.max_future_seconds = OptionalSeconds(None);
        }
    }
    Ok(())
}

/// Opens the log of this process, or connects to Kafka. The clock stamps simulated events.
fn open_bus(
    settings: &ProgramSettings,
    simulated: bool,
    clock: &SimClock,
) -> anyhow::Result<(Arc<dyn Bus>, Option<EmbeddedLog>)> {
    if !settings.bus.brokers.is_empty() {
        return Ok((crate::bus::connect(settings)?, None));
    }
    crate::data_dir::claim(&settings.bus.data_dir, simulated, || crate::bus::holds_records(settings))?;
    let stamps = if simulated { StampSource::Injected(clock.source()) } else { StampSource::Wall };
    let log = crate::bus::open_embedded(settings, stamps)?;
    Ok((Arc::new(log.clone()), Some(log)))
}

/// Runs until interrupted, until the duration is over, or until something fails.
pub async fn run(args: &UpArgs, mut settings: ProgramSettings, shutdown: Shutdown) -> anyhow::Result<()> {
    let simulated = args.gpus == TelemetrySource::Simulated;
    prepare_settings(args, &mut settings)?;
    let clock = SimClock::new(settings.simulator.start);
    let (source, maintenance_clock) = (clock.source(), clock.source());
    let embedded = settings.bus.brokers.is_empty();
    let real_duration = args.simulation.duration.filter(|_| !simulated);
    let (bus, log) = open_bus(&settings, simulated, &clock)?;
    let (of_log, settings_of_log) = (bus.clone(), settings.clone());
    tokio::task::spawn_blocking(move || prepare_log(&*of_log, &settings_of_log)).await??;
    let before = if embedded { archive_positions(&*bus, &settings)? } else { Vec::new() };

    // Heartbeats follow the clock that stamps the log.
    let heartbeat = if simulated && embedded { HeartbeatClock::new(move || source()) } else { HeartbeatClock::default() };
    let (metrics, health) = (MetricsRegistry::default(), HealthRegistry::default());
    let deciding = Shutdown::new();
    let keeping = Shutdown::new();
    let mut sampling = Supervisor::new(shutdown.clone());
    let losses = services::LostEventCounter::default();
    let mut deciders = Supervisor::new(deciding.clone());
    let mut keepers = Supervisor::new(keeping.clone());

    let address = address::parse(&settings.http.address).context("http.address")?;
    let routes = http::routes(metrics.clone(), health.clone());
    let (bound, server) = http::serve_near(address, FURTHER_PORTS, routes, keeping.clone()).await?;
    print_moved_address(args, "http.address", address, bound, "metrics and health are at ");
    tracing::info!(address = %bound, "metrics and health");
    if !embedded {
        services::watch_log(&health, &settings, &bus, &keeping)?;
    }
    keepers.spawn(&tasks::HTTP, server);

    let page = bind_page(&mut keepers, &settings, &bus, &keeping, args).await?;
    let page_url = page.url();

    let editor: Option<Arc<dyn PolicyWriter>>;
    if let Some(context) = &args.kubernetes {
        editor = Some(services::policy_editor(&settings, context, clock.source()).await?);
        let cluster = services::connect(&settings, context, Origin::Simulated, clock.source()).await?;
        services::spawn_leading(&mut deciders, &settings, &bus, &cluster, &deciding, &metrics, &health);
        // The connection took some time, and the clock goes with that of the cluster.
        let simulator = SimulatorSettings { start: ServiceClock::machine().now(), ..settings.simulator.clone() };
        let follower = eadt_simulator_service::ClusterMirror::new(simulator, clock, Arc::new(cluster))?;
        let (bus, stop, metrics, ready) = (bus.clone(), shutdown.clone(), metrics.clone(), health.part("simulator"));
        sampling.spawn_thread(&tasks::SIMULATOR, move || {
            let ended = follower.run(&*bus, &stop, &metrics, &ready);
            stop.cancel();
            ended
        });
    } else if simulated {
        let cluster = spawn_simulator(&mut sampling, &settings, clock, &bus, &shutdown, &metrics, &health)?;
        editor = Some(Arc::new(cluster.clone()));
        services::spawn_actuator(&mut deciders, &settings, &bus, cluster, &deciding, &metrics, &health);
    } else {
        editor = None;
        spawn_declared_jobs(&mut deciders, &settings, &bus, &deciding, &metrics, &health)?;
        let raw = collector_settings(&settings, args.gpus);
        warn_of_unassigned_gpus(args, &raw);
        let listener = progress_listener(args, &raw).await?;
        services::spawn_collector(&mut sampling, raw, &settings, &bus, (&shutdown, &metrics, &health), &losses, listener)?;
    }
    let page = match editor {
        Some(editor) => page.with_editor(editor),
        None => page,
    };
    keepers.spawn(&tasks::DASHBOARD, page.run());
    if let Some(duration) = real_duration {
        spawn_end(&mut sampling, duration, &shutdown);
    }
    services::spawn_processor(&mut deciders, &settings, &bus, heartbeat, &deciding, &metrics, &health);
    services::spawn_archiver(&mut keepers, &settings, &bus, &keeping, &metrics, &health);
    if let Some(log) = log {
        // Retention goes by the clock that stamps the log.
        let now: NowFn = if simulated { maintenance_clock } else { Arc::new(|| ServiceClock::machine().now()) };
        spawn_maintenance(&mut keepers, log, now, keeping.clone());
    }

    let has_metrics = settings.metrics.by_workload || !settings.metrics.otlp.endpoint.is_empty();
    let exporter = has_metrics.then(|| Exporter::new(&metrics, settings.metrics.clone()));
    #[cfg(feature = "otlp")]
    let push = match &exporter {
        Some(exporter) => services::spawn_otlp(&mut keepers, &settings, exporter, bound.port(), &keeping)?,
        None => None,
    };
    if wants_view(args) {
        crate::live::screen::watch_continues();
    }
    let follower = follow::LiveViewThread::start(
        args,
        &settings,
        &bus,
        simulated,
        &page_url,
        run_length(&settings, real_duration, simulated),
        exporter,
        shutdown.clone(),
    )?;
    let ended = drain(sampling, deciders, keepers, [shutdown, deciding, keeping]).await;
    let tally = follower.finish();
    #[cfg(feature = "otlp")]
    if let Some(push) = push {
        // The follower has read to the end only now.
        push.send_last().await;
    }
    // A failure is reported alone; the figures of an earlier run below it would look like this one's.
    ended?;
    let tally = tally?;
    let report = tally.report();
    crate::output::print(&if args.json {
        report.render(RenderFormat::Json)
    } else {
        report.render_text(crate::output::width())
    })?;
    losses.check()?;
    let after = if embedded { archive_positions(&*bus, &settings)? } else { Vec::new() };
    if lacks_all(&before, &after) {
        return Err(NothingArchived(settings.archiver.location).into());
    }
    Ok(())
}

/// The archive lacks all records that a run wrote to the log.
#[derive(Debug, thiserror::Error)]
#[error(
    "the archive {0} has no event of this run: its warnings name the cause. They are in the log, and the next start archives them"
)]
pub struct NothingArchived(String);

/// End of a partition of the log, and how far the archive reaches.
type ArchivePosition = (i64, Option<i64>);

/// Returns how far log and archive reach, for each partition in one order.
fn archive_positions(bus: &dyn Bus, settings: &ProgramSettings) -> anyhow::Result<Vec<ArchivePosition>> {
    let counts = bus.partition_counts(&settings.topics.prefix)?;
    let all = counts.iter().flat_map(|(topic, count)| (0..*count).map(|partition| TopicPartition::new(topic.clone(), partition)));
    let all: Vec<TopicPartition> = all.collect();
    let archived = bus.committed(&settings.archiver.group, &all)?;
    all.iter().zip(archived).map(|(at, archived)| Ok((bus.watermarks(at)?.high, archived))).collect()
}

/// Returns whether the log grew and no position of the archive moved: the archiver failed all the time, and only warned.
fn lacks_all(before: &[ArchivePosition], after: &[ArchivePosition]) -> bool {
    let pairs = || before.iter().zip(after);
    pairs().any(|((from, _), (to, _))| to > from) && pairs().all(|((_, from), (_, to))| to == from)
}

fn run_length(settings: &ProgramSettings, real: Option<std::time::Duration>, simulated: bool) -> RunLength {
    match (settings.simulator.duration_seconds, real) {
        (_, Some(real)) => RunLength::Real(real.as_secs_f64()),
        (Some(seconds), None) if simulated => RunLength::Simulated(seconds),
        _ => RunLength::Endless,
    }
}

/// Spawns what ends a run on real GPUs after its duration.
fn spawn_end(sampling: &mut Supervisor, duration: std::time::Duration, shutdown: &Shutdown) {
    let stop = shutdown.clone();
    sampling.spawn(&tasks::DURATION, async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(duration) => {
                tracing::info!(seconds = duration.as_secs_f64(), "the duration is over");
                stop.cancel();
            }
        }
        anyhow::Ok(())
    });
}

/// Warns that a port is taken and which one is used in its place.
fn print_moved_address(args: &UpArgs, setting: &str, wanted: SocketAddr, bound: SocketAddr, what: &str) {
    if wanted.port() == 0 || bound.port() == wanted.port() {
        return;
    }
    let line = format!("port {} of {setting} is taken: {what}{bound}", wanted.port());
    tracing::warn!("{line}");
    if wants_view(args) {
        crate::output::print_note(&format!("warning: {line}"));
    }
}

/// Spawns the actuator of the jobs that `actuator.jobs` declares, and of those that were declared before: nothing is asked of
/// them any more.
fn spawn_declared_jobs(
    deciders: &mut Supervisor,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    shutdown: &Shutdown,
    metrics: &MetricsRegistry,
    health: &HealthRegistry,
) -> anyhow::Result<()> {
    let (declared, file) = (&settings.actuator.jobs, settings.bus.data_dir.join("jobs.json"));
    // On Kafka the jobs are those of another actuator, whose directives this one would withdraw.
    if !settings.bus.brokers.is_empty() || declared.is_empty() && !file.exists() {
        return Ok(());
    }
    let jobs = DeclaredJobs::open(&file, declared, ServiceClock::machine()).context("actuator.jobs")?;
    services::spawn_actuator(deciders, settings, bus, jobs, shutdown, metrics, health);
    Ok(())
}

/// Returns the error of settings that declare jobs although they have no effect here.
pub fn refuse_declared_jobs() -> anyhow::Error {
    usage_error::impossible(
        "actuator.jobs is for `eadt up --gpus nvml` or `--gpus none` without Kafka: elsewhere policies of Kubernetes set what jobs may be asked",
    )
}

/// Opens the port at which jobs report, or one near it; `None` if nothing is to be opened.
async fn progress_listener(args: &UpArgs, raw: &eadt_collector::RawSettings) -> anyhow::Result<Option<std::net::TcpListener>> {
    if !raw.progress.enabled {
        return Ok(None);
    }
    let wanted = raw.progress.listen;
    let listener = http::bind_near(wanted, FURTHER_PORTS).await.with_context(|| {
        format!("cannot listen on {wanted}; set collector.progress.listen to a free port, or stop the process that uses it")
    })?;
    print_moved_address(args, "collector.progress.listen", wanted, listener.local_addr()?, "jobs report (EADT_URL) at http://");
    Ok(Some(listener.into_std()?))
}

/// Opens the port of the web page, and prints where it is.
async fn bind_page(
    keepers: &mut Supervisor,
    settings: &ProgramSettings,
    bus: &Arc<dyn Bus>,
    keeping: &Shutdown,
    args: &UpArgs,
) -> anyhow::Result<DashboardServer> {
    let server = services::spawn_dashboard(keepers, settings, bus, FURTHER_PORTS, keeping).await?;
    let url = server.url();
    if let Ok(wanted) = settings.dashboard.socket() {
        print_moved_address(args, "dashboard.address", wanted, server.address(), "the web page is at ");
    }
    let views = wants_view(args);
    tracing::info!(url, "the web page");
    if views {
        crate::output::print_note(&format!("the web page is at {url}"));
    }
    Ok(server)
}

/// Assigns every GPU of this machine to a workload; refuses if no GPU is read, or if settings assign them.
fn assign_all_gpus(gpus: TelemetrySource, workload: &str, raw: &mut eadt_collector::RawSettings) -> anyhow::Result<()> {
    if gpus != TelemetrySource::Nvml {
        return Err(usage_error::impossible("--workload names the job that this machine's GPUs work for: it needs --gpus nvml"));
    }
    if !raw.assignments.is_empty() || raw.assignments_file.is_some() {
        return Err(usage_error::impossible(
            "--workload assigns all GPUs, and the settings assign them too (collector.assignments, collector.assignments_file): leave one out",
        ));
    }
    if !raw.dcgm.is_empty() || raw.kubelet.enabled {
        return Err(usage_error::impossible(
            "--workload assigns all GPUs of this machine, and the settings read more, or ask whose they are (collector.dcgm, collector.kubelet): leave one out",
        ));
    }
    raw.assignments.push(GpuAssignment { device: "*".to_owned(), workload: workload.to_owned(), share: None });
    Ok(())
}

const NO_GPU_ASSIGNED: &str = "no GPU is assigned to a job, so J/sample will be unknown: name the job with --workload NAMESPACE/NAME, or each \
job's GPUs in collector.assignments";

/// Prints at the start that J/sample will be unknown, if GPUs are read and no workload is named for any of them.
fn warn_of_unassigned_gpus(args: &UpArgs, raw: &eadt_collector::RawSettings) {
    let is_assigned = !raw.assignments.is_empty() || raw.assignments_file.is_some() || raw.kubelet.enabled;
    if !raw.nvml.enabled || is_assigned {
        return;
    }
    tracing::warn!("{NO_GPU_ASSIGNED}");
    if wants_view(args) {
        crate::output::print_note(NO_GPU_ASSIGNED);
    }
}

/// Returns the collector of `--gpus nvml` and `--gpus none`.
fn collector_settings(settings: &ProgramSettings, gpus: TelemetrySource) -> eadt_collector::RawSettings {
    let mut raw = settings.collector.clone();
    raw.nvml.enabled = gpus == TelemetrySource::Nvml;
    raw
}

/// Lets the stages end one after another, whichever ended first; the first failure is returned.
async fn drain(first: Supervisor, second: Supervisor, third: Supervisor, stages: [Shutdown; 3]) -> Result<(), TaskFailure> {
    tasks::STAGE.begin();
    let mut joining = [first, second, third].map(|stage| tokio::spawn(stage.join()));
    let [a, b, c] = &mut joining;
    let mut results = Vec::new();
    let which = tokio::select! {
        result = a => { results.push(result); 0 }
        result = b => { results.push(result); 1 }
        result = c => { results.push(result); 2 }
    };
    for (index, (task, stage)) in joining.iter_mut().zip(&stages).enumerate() {
        stage.cancel();
        if index != which {
            results.push(task.await);
        }
    }
    for result in results {
        result.unwrap_or_else(|error| {
            let detail = error.to_string();
            tasks::STAGE.failed(&detail);
            Err(TaskFailure { task: tasks::STAGE.name, detail })
        })?;
    }
    Ok(())
}

/// Starts the cluster simulator's thread; the handle is for the actuator.
pub fn spawn_simulator(
    sampling: &mut Supervisor,
    settings: &ProgramSettings,
    clock: SimClock,
    bus: &Arc<dyn Bus>,
    shutdown: &Shutdown,
    metrics: &MetricsRegistry,
    health: &HealthRegistry,
) -> anyhow::Result<SimulatedCluster> {
    let (driver, cluster) = SimulationDriver::new(settings.simulator.clone(), clock)?;
    let (bus, stop, metrics, ready) = (bus.clone(), shutdown.clone(), metrics.clone(), health.part("simulator"));
    sampling.spawn_thread(&tasks::SIMULATOR, move || {
        let ended = driver.run(&*bus, &stop, &metrics, &ready).map(drop);
        // Without its cluster the rest has no work: it drains.
        stop.cancel();
        ended
    });
    Ok(cluster)
}

/// Makes the topics. An archive that this log cannot go on with is reported first, before anything is made or runs.
fn prepare_log(bus: &dyn Bus, settings: &ProgramSettings) -> anyhow::Result<()> {
    eadt_archiver::check(&settings.archiver, &settings.topics.prefix, bus)?;
    apply_topics(bus, settings)
}

/// Creates missing topics; of existing ones only the settings are corrected.
fn apply_topics(bus: &dyn Bus, settings: &ProgramSettings) -> anyhow::Result<()> {
    let names = &settings.topics;
    let existing = topics::read_topics(bus, &names.prefix)?;
    let desired = topics::desired(&names.prefix, names.partitions, names.replication);
    let plan = topics::plan(&existing, &desired, topics::PartitionGrowthPolicy::Refuse);
    topics::apply(bus, &plan)?;
    Ok(())
}

type NowFn = Arc<dyn Fn() -> EventTime + Send + Sync>;

fn spawn_maintenance(keepers: &mut Supervisor, log: EmbeddedLog, now: NowFn, shutdown: Shutdown) {
    keepers.spawn(&tasks::MAINTENANCE, async move {
        let mut every = tokio::time::interval(std::time::Duration::from_mins(1));
        every.tick().await;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok::<_, eadt_bus::BusError>(()),
                _ = every.tick() => {}
            }
            let (log, now) = (log.clone(), now.clone());
            let tidied = tokio::task::spawn_blocking(move || tasks::MAINTENANCE.watch(|| log.maintain(now()))).await;
            if let Ok(Ok(Err(error))) = tidied {
                tracing::warn!(%error, "retention could not be applied to the log; it is tried again in a minute");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use eadt_bus::embedded::EmbeddedOptions;

    use super::*;

    #[test]
    fn an_archive_that_the_log_cannot_go_on_with_is_reported_before_anything_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let options = EmbeddedOptions { reserve_bytes: 0, ..EmbeddedOptions::default() };
        let log = EmbeddedLog::open(&folder.path().join("log"), options).unwrap();
        let [foreign, file, own] = ["foreign", "file", "own"].map(|name| folder.path().join(name));
        std::fs::create_dir_all(foreign.join("_archived")).unwrap();
        std::fs::write(foreign.join("_archived/group+other"), "").unwrap();
        std::fs::write(&file, "").unwrap();
        let at = |location: &std::path::Path| {
            let mut settings = ProgramSettings::default();
            settings.archiver.location = location.to_str().unwrap().to_owned();
            prepare_log(&log, &settings).map_err(|error| error.to_string())
        };
        for (location, message) in [(&foreign, "archivers of another consumer group"), (&file, "it is a file, not a folder")] {
            let error = at(location).unwrap_err();
            assert!(error.contains(message), "{error}");
            assert!(log.topics("").unwrap().is_empty(), "{message}");
        }
        at(&own).unwrap();
        assert!(!log.topics("").unwrap().is_empty() && !own.exists());
    }
}
