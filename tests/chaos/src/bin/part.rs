//! One service as a process of the chaos harness: the same `run` that the program calls.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use eadt_agent::{AgentDependencies, LazyBus};
use eadt_bus::Bus;
use eadt_bus::conformance::numbered;
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_chaos::part::{Agent, Server, Service, Task};
use eadt_kubernetes::KubernetesCluster;
use eadt_schemas::EventTime;
use eadt_schemas::v1::Origin;
use eadt_service::redact::SecretRedactor;
use eadt_service::supervise::on_signals;
use eadt_service::{HealthRegistry, MetricsRegistry, Shutdown, logs};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// False if an agent left something that it could not put back.
fn run() -> Result<bool> {
    // No child stays behind when the harness is killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let path = std::env::args().nth(1).context("name the file with the task")?;
    let task: Task = serde_json::from_slice(&std::fs::read(path)?)?;
    let filter = std::env::var("EADT_CHAOS_LOG").unwrap_or_else(|_| "info".into());
    logs::start(logs::LogFormat::Text, &filter, None, SecretRedactor::default())?;
    let options = KafkaOptions {
        brokers: task.brokers.clone(),
        properties: task.properties.clone(),
        client_id: "chaos".into(),
        fetch: task.fetch,
    };
    if let Service::Agent(own) = task.service {
        return hold(&own, (!task.brokers.is_empty()).then_some(options));
    }
    if let Service::Embedded(own) = task.service {
        numbered::commit_for_ever(&own.open()?, own.filler, |line| println!("{line}"))?;
        return Ok(true);
    }
    // A broker that is away is a fault like any other.
    let bus: Arc<dyn Bus> = loop {
        match KafkaBus::connect(options.clone()) {
            Ok(bus) => break Arc::new(bus),
            Err(error) => {
                eprintln!("{error}");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    };
    let (metrics, health, shutdown) = (MetricsRegistry::default(), HealthRegistry::default(), Shutdown::new());
    let runtime = tokio::runtime::Runtime::new()?;
    let stop = shutdown.clone();
    runtime.spawn(async move { on_signals(stop, || ()).await });
    let ahead = task.clock_ahead_seconds * 1_000_000;
    let now = move || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        EventTime::from_micros(since.as_micros() as i64 + ahead)
    };
    match task.service {
        Service::Processor(settings) => eadt_processor::run_processor(&eadt_processor::ProcessorDependencies {
            settings: eadt_processor::ProcessorSettings { prefix: task.prefix, ..*settings },
            bus,
            clock: eadt_processor::HeartbeatClock::new(now),
            shutdown,
            metrics,
            ready: health.part("processor"),
        })?,
        Service::Archiver(settings) => eadt_archiver::run(&eadt_archiver::ArchiverDependencies {
            settings: *settings,
            prefix: task.prefix,
            bus,
            clock: eadt_archiver::ServiceClock::new(now),
            shutdown,
            metrics,
            new_archive_id: 1,
            ready: health.part("archiver"),
        })?,
        Service::Actuator(own) => runtime.block_on(async {
            let client = match &own.server {
                Server::Url(url) => eadt_tests::kubernetes::proxy::client(url)?,
                Server::Kubeconfig(path) => eadt_tests::kubernetes::client(path).await?,
            };
            let kubernetes = eadt_kubernetes::KubernetesSettings {
                only_namespace: own.alone.then(|| own.namespace.clone()),
                namespace: Some(own.namespace),
                identity: Some(own.identity),
                ..eadt_kubernetes::KubernetesSettings::default()
            };
            let cluster = KubernetesCluster::new(client, kubernetes, Origin::Simulated, Arc::new(now));
            let service = eadt_actuator::ActuatorDependencies {
                settings: eadt_actuator::ActuatorSettings { prefix: task.prefix, ..own.settings },
                bus,
                cluster: Arc::new(cluster.clone()),
                shutdown,
                metrics,
                ready: health.part("actuator"),
            };
            let acting = cluster.run_for(eadt_actuator::run_while_leading(service, cluster.subscribe_leadership())).await;
            anyhow::Ok(acting.context("the connection to Kubernetes ended by itself")??)
        })?,
        Service::Collector(raw) => {
            let settings = raw.validate("chaos")?;
            let environment = eadt_collector::CollectorDependencies::new(bus, &task.prefix, metrics, health, shutdown);
            let summary = runtime.block_on(eadt_collector::run(settings, environment))?;
            println!(
                "{}",
                serde_json::json!({"sampled": summary.sampled, "sent": summary.sent, "dropped": summary.dropped.total()})
            );
        }
        Service::Optimizer(settings) => {
            eadt_optimizer::run(&eadt_optimizer::OptimizerDependencies {
                settings: *settings,
                archive: None,
                prefix: task.prefix,
                bus,
                clock: eadt_service::ServiceClock::new(now),
                shutdown,
                metrics,
                ready: health.part("optimizer"),
                once: false,
            })?;
        }
        Service::Agent(_) | Service::Embedded(_) => unreachable!("these need no broker to begin"),
    }
    Ok(true)
}

/// An agent, as its own program runs it; whether everything is put back at its end.
fn hold(own: &Agent, log: Option<KafkaOptions>) -> Result<bool> {
    let settings = own.settings.validate("chaos")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let log = log.map(|options| LazyBus::new(move || Ok(Arc::new(KafkaBus::connect(options.clone())?) as Arc<dyn Bus>)));
    let shutdown = Shutdown::new();
    let environment = AgentDependencies::new(log, MetricsRegistry::default(), HealthRegistry::default(), shutdown.clone());
    let summary = runtime.block_on(async {
        tokio::spawn(on_signals(shutdown, || ()));
        if own.restores { eadt_agent::restore(settings, environment).await } else { eadt_agent::run(settings, environment).await }
    })?;
    summary.unrestored.iter().for_each(|unit| eprintln!("not put back: {unit}"));
    Ok(summary.unrestored.is_empty())
}
