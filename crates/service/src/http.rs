//! The operational endpoints that every service has.

use std::fmt;
use std::future::ready;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::routing::get;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::Shutdown;
use crate::connections::{self, ConnectionLimits, OverflowPolicy};

/// Scrapers and probes are few, and read their small answers at once. A new connection replaces the oldest one, so that a
/// probe is answered even if other clients hold many connections.
const LIMITS: ConnectionLimits = ConnectionLimits {
    connections: 64,
    when_full: OverflowPolicy::EndOldest,
    request: Duration::from_secs(10),
    lifetime: Duration::from_mins(1),
};

/// The metrics of a process. Each crate registers its own in one file.
#[derive(Clone)]
pub struct MetricsRegistry(Arc<Mutex<Registry>>);

impl Default for MetricsRegistry {
    fn default() -> Self {
        let mut registry = Registry::default();
        registry.sub_registry_with_prefix("eadt_service").register_collector(Box::new(TaskFailureCollector));
        Self(Arc::new(Mutex::new(registry)))
    }
}

/// Failures of the tasks that run in this process.
#[derive(Debug)]
struct TaskFailureCollector;

impl Collector for TaskFailureCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "Tasks that failed or panicked; see docs/reference/tasks.md";
        let mut family = encoder.encode_descriptor("task_failures", help, None, MetricType::Counter)?;
        for task in eadt_tasks::ALL.iter().filter(|task| task.has_begun()) {
            let label = [("task", task.name)];
            ConstCounter::new(task.failures()).encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for MetricsRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetricsRegistry")
    }
}

impl MetricsRegistry {
    /// Adds metrics; names are prefixed with `eadt_<part>_`.
    pub fn register<T>(&self, part: &str, add: impl FnOnce(&mut Registry) -> T) -> T {
        let mut registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        add(registry.sub_registry_with_prefix(format!("eadt_{part}")))
    }

    /// Returns the `OpenMetrics` text.
    pub fn text(&self) -> String {
        let registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a String cannot fail");
        text
    }
}

/// Readiness of each part of the process: ready once all are.
#[derive(Debug, Clone, Default)]
pub struct HealthRegistry(Arc<Mutex<HealthParts>>);

type HealthParts = Vec<(&'static str, ReadinessFlag)>;

/// The flag by which a part reports that it is ready.
#[derive(Debug, Clone)]
pub struct ReadinessFlag(Arc<Mutex<ReadyUntil>>);

#[derive(Debug, Clone, Copy)]
enum ReadyUntil {
    /// Until it is set again.
    Set(bool),
    Time(Instant),
}

impl ReadinessFlag {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(ReadyUntil::Set(false))))
    }

    pub fn set(&self, ready: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ReadyUntil::Set(ready);
    }

    /// Sets it for so long: a part that is held up, and does not set it again, is not ready.
    pub fn set_for(&self, time: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = ReadyUntil::Time(Instant::now() + time);
    }

    fn is_ready(&self) -> bool {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            ReadyUntil::Set(ready) => ready,
            ReadyUntil::Time(until) => Instant::now() < until,
        }
    }
}

/// The same as metrics, so that an alert can name a part that is not ready.
#[derive(Debug)]
struct ReadinessCollector(HealthRegistry);

impl Collector for ReadinessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let help = "Whether a part of the service does its work, as /readyz has it: 1 or 0";
        let mut family = encoder.encode_descriptor("ready", help, None, MetricType::Gauge)?;
        for (part, flag) in self.0.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let label = [("part", *part)];
            ConstGauge::new(i64::from(flag.is_ready())).encode(family.encode_family(&label)?)?;
        }
        Ok(())
    }
}

impl HealthRegistry {
    /// Shows each part's readiness among the metrics.
    pub fn register(&self, metrics: &MetricsRegistry) {
        metrics.register("service", |registry| registry.register_collector(Box::new(ReadinessCollector(self.clone()))));
    }

    /// Returns a part that is not ready yet.
    pub fn part(&self, name: &'static str) -> ReadinessFlag {
        let flag = ReadinessFlag::new();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, flag.clone()));
        flag
    }

    /// Returns the parts that are not ready. A process that has no part yet is starting, and not ready either.
    pub fn waiting(&self) -> Vec<&'static str> {
        let parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if parts.is_empty() {
            return vec!["the start"];
        }
        parts.iter().filter(|(_, flag)| !flag.is_ready()).map(|(name, _)| *name).collect()
    }
}

/// Returns the operational routes, to be merged with a service's own.
pub fn routes(metrics: MetricsRegistry, health: HealthRegistry) -> Router {
    health.register(&metrics);
    Router::new()
        .route(
            "/metrics",
            get(move || async move {
                ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], metrics.text())
            }),
        )
        .route("/healthz", get(|| async { "ok\n" }))
        .route(
            "/readyz",
            get(move || async move {
                match health.waiting() {
                    waiting if waiting.is_empty() => (StatusCode::OK, "ready\n".to_owned()),
                    waiting => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", waiting.join(", "))),
                }
            }),
        )
}

/// The address could not be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}; set http.address (EADT_HTTP__ADDRESS) to a free port, or stop the process that uses it")]
pub struct ListenError {
    pub address: SocketAddr,
    #[source]
    pub source: std::io::Error,
}

/// Binds now, so that a busy port is an error at start, and serves until `shutdown`.
pub async fn serve(
    address: SocketAddr,
    router: Router,
    shutdown: Shutdown,
) -> Result<(SocketAddr, impl Future<Output = Result<(), std::io::Error>> + Send + 'static), ListenError> {
    serve_near(address, 0, router, shutdown).await
}

/// Like [`serve`], but takes the next free port if the address's own is taken, of at most `further` that follow it.
pub async fn serve_near(
    address: SocketAddr,
    further: u16,
    router: Router,
    shutdown: Shutdown,
) -> Result<(SocketAddr, impl Future<Output = Result<(), std::io::Error>> + Send + 'static), ListenError> {
    let listener = bind_near(address, further).await.map_err(|source| ListenError { address, source })?;
    let bound = listener.local_addr().map_err(|source| ListenError { address, source })?;
    let server = async move {
        connections::serve(listener, |stream| ready(Ok(stream)), router, LIMITS, |_| (), shutdown).await;
        Ok(())
    };
    Ok((bound, server))
}

/// Listens on an address or, if its port is taken, on the first free one of at most `further` ports that follow. Port 0 takes a
/// free one.
pub async fn bind_near(address: SocketAddr, further: u16) -> Result<TcpListener, std::io::Error> {
    let last = if address.port() == 0 { 0 } else { address.port().saturating_add(further) };
    let mut tried = address;
    loop {
        match TcpListener::bind(tried).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && tried.port() < last => tried.set_port(tried.port() + 1),
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_part_that_does_not_renew_its_readiness_is_not_ready() {
        let health = HealthRegistry::default();
        let part = health.part("part");
        part.set_for(Duration::from_hours(1));
        assert!(health.waiting().is_empty());
        part.set_for(Duration::ZERO);
        assert_eq!(health.waiting(), ["part"]);
        part.set(true);
        assert!(health.waiting().is_empty());
    }

    #[tokio::test]
    async fn a_probe_is_answered_however_many_connections_somebody_else_holds() {
        let (shutdown, any) = (Shutdown::new(), "127.0.0.1:0".parse().unwrap());
        let routes = routes(MetricsRegistry::default(), HealthRegistry::default());
        let (address, server) = serve(any, routes, shutdown.clone()).await.unwrap();
        let server = tokio::spawn(server);
        let mut silent = Vec::new();
        for _ in 0..2 * LIMITS.connections {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut probe = TcpStream::connect(address).await.unwrap();
        probe.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut response = String::new();
        probe.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 ") && response.ends_with("ok\n"), "{response}");
        for stream in &mut silent[..LIMITS.connections] {
            let ended = timeout(Duration::from_mins(1), stream.read_u8()).await.expect("its place is given away");
            assert!(ended.is_err(), "{ended:?}");
        }
        shutdown.cancel();
        server.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_next_free_port_is_taken_only_by_whoever_asks_for_it() {
        // Two neighbours, of which the first is taken: asked for until the kernel gives such a pair.
        let (taken, address) = loop {
            let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = taken.local_addr().unwrap();
            let next = (address.ip(), address.port().checked_add(1).unwrap_or(1024));
            if TcpListener::bind(next).await.is_ok() {
                break (taken, address);
            }
        };
        let routes = || routes(MetricsRegistry::default(), HealthRegistry::default());
        let refused = serve(address, routes(), Shutdown::new()).await.err().unwrap();
        assert!(refused.to_string().contains(&address.to_string()), "{refused}");
        let (bound, _) = serve_near(address, 8, routes(), Shutdown::new()).await.unwrap();
        assert!(bound.port() > address.port() && bound.port() <= address.port() + 8, "{bound}");
        drop(taken);
    }

    #[test]
    fn a_process_without_a_part_is_not_ready() {
        let health = HealthRegistry::default();
        assert_eq!(health.waiting(), ["the start"]);
        let ready = health.part("archiver");
        assert_eq!(health.waiting(), ["archiver"]);
        let metrics = MetricsRegistry::default();
        health.register(&metrics);
        let line = |value: u8| format!("eadt_service_ready{{part=\"archiver\"}} {value}\n");
        assert!(metrics.text().contains(&line(0)), "{}", metrics.text());
        ready.set(true);
        assert!(health.waiting().is_empty());
        assert!(metrics.text().contains(&line(1)), "{}", metrics.text());
    }

    #[tokio::test]
    async fn what_is_shown_can_be_read_and_nothing_else() {
        let (shutdown, any) = (Shutdown::new(), "127.0.0.1:0".parse().unwrap());
        let (address, server) =
            serve(any, routes(MetricsRegistry::default(), HealthRegistry::default()), shutdown.clone()).await.unwrap();
        let server = tokio::spawn(server);
        for path in ["/metrics", "/healthz", "/readyz"] {
            for (method, refused) in
                [("GET", false), ("HEAD", false), ("POST", true), ("PUT", true), ("PATCH", true), ("DELETE", true)]
            {
                let mut client = TcpStream::connect(address).await.unwrap();
                let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                client.write_all(request.as_bytes()).await.unwrap();
                let mut response = String::new();
                client.read_to_string(&mut response).await.unwrap();
                assert_eq!(response.starts_with("HTTP/1.1 405 "), refused, "{method} {path}: {response}");
            }
        }
        shutdown.cancel();
        server.await.unwrap().unwrap();
    }

    /// Returns the value of the only label of a line, read as the format defines it.
    fn label_of(line: &str) -> Option<String> {
        let mut rest = line.split_once("name=\"")?.1.chars();
        let mut value = String::new();
        loop {
            match rest.next()? {
                '"' => return rest.as_str().starts_with("} 1").then_some(value),
                '\\' => value.push(match rest.next()? {
                    'n' => '\n',
                    other => other,
                }),
                other => value.push(other),
            }
        }
    }

    proptest! {
        #![proptest_config(cases(64))]

        #[test]
        fn a_label_holds_any_text_and_ends_nowhere_else(name in prop_oneof![
            "\\PC{0,20}",
            Just("x\"} 9\neadt_test_forged_total{name=\"y".to_owned()),
            Just("back\\slash\\".to_owned()),
            Just("two\nlines".to_owned()),
        ]) {
            let metrics = MetricsRegistry::default();
            let family = Family::<Vec<(String, String)>, Counter>::default();
            metrics.register("test", |registry| registry.register("seen", "Seen", family.clone()));
            family.get_or_create(&vec![("name".to_owned(), name.clone())]).inc();
            let text = metrics.text();
            let ours = |line: &&str| !line.starts_with('#') && !line.starts_with("eadt_service_");
            let lines: Vec<&str> = text.lines().filter(ours).collect();
            prop_assert_eq!(lines.len(), 1, "{}", text);
            let value = label_of(lines[0]);
            prop_assert_eq!(value.as_deref(), Some(&*name), "{}", text);
        }
    }
}
