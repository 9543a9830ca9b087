//! The threads of a reader: one that finds the leaders, and one for each broker that is read from.
//!
//! A broker's thread asks again as soon as an answer is in, so that the next one is made while the reader works through this one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::{BrokerConnection, ConnectionError, Result};
use super::messages::{ApiKey, ClusterMetadata, NO_TOPIC_ID, read_fetch, read_metadata, write_fetch, write_metadata};
use super::options::FetchOptions;
use super::session::FetchSession;
use super::shared::SharedFetchState;
use super::state::{FetchFailure, FetchPlan, code};
use crate::RetryBackoff;

/// Pause between two requests for the leaders.
const LAYOUT_PAUSE: Duration = Duration::from_millis(100);
const LEAST_PAUSE: Duration = Duration::from_millis(50);
const MOST_PAUSE: Duration = Duration::from_secs(2);
/// A broker that holds a client back for its quota is believed for so long.
const MOST_THROTTLE: Duration = Duration::from_mins(1);
/// Represents, among the brokers' numbers, the thread that finds the leaders.
const NO_NODE: i32 = -1;

/// Reports a failure to the reader if its thread ends by a panic.
struct ThreadGuard(Arc<SharedFetchState>);

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.report_failure(FetchFailure::Thread);
        }
    }
}

/// Starts the thread that finds the leaders, and with it, as they are needed, those of the brokers.
pub fn start_threads(shared: &Arc<SharedFetchState>) {
    start_thread(shared, NO_NODE);
}

fn start_thread(shared: &Arc<SharedFetchState>, node: i32) {
    let guard = ThreadGuard(Arc::clone(shared));
    let started = eadt_tasks::KAFKA_FETCH
        .thread_of(node, move || if node == NO_NODE { follow_layout(&guard.0) } else { fetch_from_broker(&guard.0, node) });
    if started.is_err() {
        shared.report_failure(FetchFailure::Thread);
    }
}

fn follow_layout(shared: &Arc<SharedFetchState>) {
    const WHAT: &str = "asking who leads the partitions that are read";
    let mut backoff = RetryBackoff::new(LAYOUT_PAUSE, MOST_PAUSE);
    while let Some(topics) = shared.wait_for_layout_need() {
        let asked = Instant::now();
        let answer = fetch_cluster_metadata(shared, &topics);
        shared.note_answer(None, asked, answer.is_ok());
        let pause = match answer {
            Ok(layout) => {
                backoff.on_success(WHAT);
                for node in shared.take_layout(&layout, Instant::now()) {
                    start_thread(shared, node);
                }
                LAYOUT_PAUSE
            }
            Err(_) if shared.is_stopped() => return,
            Err(error) => {
                shared.need_layout();
                backoff.on_failure(WHAT, &error)
            }
        };
        if !shared.pause_thread(pause) {
            return;
        }
    }
}

/// Asks one broker after the other, known ones first.
fn fetch_cluster_metadata(shared: &SharedFetchState, topics: &[String]) -> Result<ClusterMetadata> {
    let known = shared.addresses().into_iter().map(|broker| (broker.host, broker.port));
    let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
    let answer = ask_for_metadata(known.chain(configured_brokers(&shared.options)), &topics, |host, port| {
        // That of the broker before.
        shared.forget_socket(NO_NODE);
        BrokerConnection::open(host, port, &shared.options, |socket| shared.keep_socket(NO_NODE, socket))
    });
    shared.forget_socket(NO_NODE);
    answer
}

/// Returns the id of each of these topics that has one, by its name, as the first broker that answers knows it.
pub fn fetch_topic_ids(options: &FetchOptions, topics: &[Arc<str>]) -> Result<BTreeMap<String, [u8; 16]>> {
    let topics: Vec<&str> = topics.iter().map(|topic| &**topic).collect();
    let open = |host: &str, port| BrokerConnection::open(host, port, options, |_| {});
    let metadata = ask_for_metadata(configured_brokers(options), &topics, open)?;
    let known = metadata.topics.into_iter().filter(|topic| topic.error == 0 && topic.id != NO_TOPIC_ID);
    Ok(known.map(|topic| (topic.name, topic.id)).collect())
}

fn configured_brokers(options: &FetchOptions) -> impl Iterator<Item = (String, u16)> {
    options.bootstrap.iter().filter_map(|address| parse_address(address))
}

/// Asks one broker after the other about these topics until one answers. The error is that of the last one.
fn ask_for_metadata(
    brokers: impl Iterator<Item = (String, u16)>,
    topics: &[&str],
    open: impl Fn(&str, u16) -> Result<BrokerConnection>,
) -> Result<ClusterMetadata> {
    let mut last = ConnectionError::Refused("no broker is configured".to_owned());
    for (host, port) in brokers {
        let ask = || {
            let mut connection = open(&host, port)?;
            let version = connection.versions.metadata;
            let body = connection.exchange(ApiKey::Metadata, version, |body| {
                write_metadata(body, version, topics.iter().copied());
            })?;
            Ok(read_metadata(body, version)?)
        };
        match ask() {
            Ok(metadata) => return Ok(metadata),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads `host:port`, also with a protocol before it and brackets around an IPv6 host.
pub fn parse_address(address: &str) -> Option<(String, u16)> {
    let address = address.split_once("://").map_or(address, |(_, address)| address);
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "9092"));
    Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
}

/// A connection and the broker's session on it.
struct BrokerSession {
    connection: BrokerConnection,
    session: FetchSession,
}

fn fetch_from_broker(shared: &Arc<SharedFetchState>, node: i32) {
    let mut backoff = RetryBackoff::new(LEAST_PAUSE, MOST_PAUSE);
    let what = format!("reading from broker {node}");
    let mut link = None;
    while let Some(plan) = shared.wait_for_plan(node) {
        let asked = Instant::now();
        shared.note_request(node, asked);
        let answer = fetch_once(shared, node, &mut link, &plan);
        shared.note_answer(Some(node), asked, answer.is_ok());
        match answer {
            Ok(pause) => {
                backoff.on_success(&what);
                if !pause.is_zero() && !shared.pause_thread(pause) {
                    return;
                }
            }
            Err(_) if shared.is_stopped() => return,
            Err(error) => {
                link = None;
                shared.forget_socket(node);
                let pause = backoff.on_failure(&what, &error);
                shared.lose_broker(node);
                if !shared.pause_thread(pause) {
                    return;
                }
            }
        }
    }
}

/// Makes one request and takes its answer in; returns for how long the broker wants to be left alone.
fn fetch_once(shared: &Arc<SharedFetchState>, node: i32, link: &mut Option<BrokerSession>, plan: &FetchPlan) -> Result<Duration> {
    let now = Instant::now();
    let BrokerSession { connection, session } = match link.take().filter(|link| !link.connection.is_expired(now)) {
        Some(open) => link.insert(open),
        None => link.insert(BrokerSession { connection: open_connection(shared, node)?, session: FetchSession::default() }),
    };
    if plan.is_fresh {
        session.reset();
    }
    let request = session.request(&plan.positions);
    let version = connection.versions.fetch;
    let body = connection.exchange(ApiKey::Fetch, version, |body| {
        let of_session = (request.id, request.epoch);
        write_fetch(body, version, plan.limits, of_session, &request.positions, &request.forgotten, &shared.options.rack);
    })?;
    let answer = read_fetch(body, version)?;
    let throttle = Duration::from_millis(u64::try_from(answer.throttle_ms).unwrap_or(0)).min(MOST_THROTTLE);
    if code::OF_SESSIONS.contains(&answer.error) {
        session.reset();
        return Ok(throttle);
    }
    if answer.error != 0 {
        return Err(ConnectionError::Refused(format!("the broker answers with error {}", answer.error)));
    }
    session.take_answer(answer.session_id);
    for node in shared.take_response(node, plan, &answer, Instant::now()) {
        start_thread(shared, node);
    }
    Ok(throttle)
}

fn open_connection(shared: &SharedFetchState, node: i32) -> Result<BrokerConnection> {
    let Some(broker) = shared.address(node) else {
        return Err(ConnectionError::Refused(format!("no broker reports the address of broker {node}")));
    };
    BrokerConnection::open(&broker.host, broker.port, &shared.options, |socket| shared.keep_socket(node, socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_client_library_reads_them() {
        for (address, expected) in [
            ("k:9093", Some(("k", 9093))),
            ("k", Some(("k", 9092))),
            ("PLAINTEXT://k:1", Some(("k", 1))),
            ("[::1]:9094", Some(("::1", 9094))),
            ("k:port", None),
        ] {
            assert_eq!(parse_address(address), expected.map(|(host, port)| (host.to_owned(), port)), "{address}");
        }
    }
}
