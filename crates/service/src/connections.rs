//! Limits the number of HTTP connections, and ends slow ones.
//!
//! Every wait for a client is bounded: what goes before HTTP (TLS), the head of a request, which is also what comes between two
//! of them, and the connection as a whole; the handler bounds the wait for a body. So slow clients lose their connection and do
//! not harm the service.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use eadt_tasks::CONNECTION;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::Shutdown;

/// Waits after a connection could not be accepted, for example because there are no file descriptors.
const REFUSED: Duration = Duration::from_millis(50);
/// Heads of requests are short.
const HEAD_BYTES: usize = 16 << 10;
/// A stranger does not give way before its first request could be read, however many come meanwhile. It has this long if there
/// are [`MANY`] strangers or more. With fewer it has less in proportion, but at least [`LEAST_TO_SPEAK`]. This caps how many
/// are accepted while every place is taken: 100 a second if strangers have one place, 320 where they have four to [`MANY`], and
/// ten more for each further one.
const TO_SPEAK: Duration = Duration::from_millis(100);
const LEAST_TO_SPEAK: Duration = Duration::from_millis(10);
const MANY: usize = 32;

/// Limits on the clients of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConnectionLimits {
    /// Connections at once.
    pub connections: usize,
    /// Treatment of a connection beyond the limit.
    pub when_full: OverflowPolicy,
    /// Longest handshake, and longest wait for the head of a request, of a further one from the last answer on.
    pub request: Duration,
    /// Time after which a connection is asked to end. It is closed `request` later, so that a client that reads no answers
    /// holds no connection for ever.
    pub lifetime: Duration,
}

/// Treatment of a connection beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// It replaces the oldest connection without a known client ([`ClientIdentity`]), which had time to authenticate before. If
    /// most are known, it is admitted as one of a few more. Once it is known, too, it replaces the oldest connection of the
    /// client with the most, if that client has more than its own.
    EndStrangers,
    /// It takes the place of the oldest: an answer takes no time, so the oldest is the slowest.
    EndOldest,
}

/// The reason why a connection was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    Handshake,
    Slow,
    /// Another one took its place.
    GaveWay,
}

/// The client of a connection, as far as it is known. Each request has its connection's among its extensions.
#[derive(Debug, Clone, Default)]
pub struct ClientIdentity(Arc<ClientEntry>);

#[derive(Debug, Default)]
struct ClientEntry {
    name: OnceLock<Arc<str>>,
    task: OnceLock<AbortHandle>,
    roll: ClientRegistry,
}

/// Known clients, the oldest first, and the largest number of them.
#[derive(Debug, Clone, Default)]
struct ClientRegistry {
    known: Arc<Mutex<Vec<Weak<ClientEntry>>>>,
    places: usize,
}

impl ClientRegistry {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<ClientEntry>>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|client| client.upgrade().is_some_and(|client| !client.has_ended()));
        known
    }
}

impl ClientEntry {
    fn has_ended(&self) -> bool {
        self.task.get().is_some_and(AbortHandle::is_finished)
    }
}

impl ClientIdentity {
    fn new(roll: &ClientRegistry) -> Self {
        Self(Arc::new(ClientEntry { roll: roll.clone(), ..ClientEntry::default() }))
    }

    /// Names the client of the connection, which then gives way only to clients with fewer connections. Returns false if every
    /// place is taken, and no client has more than this one would; the connection is to end.
    pub fn identify(&self, name: &str) -> bool {
        let mut known = self.0.roll.lock();
        if self.0.name.get().is_some() {
            return true;
        }
        if self.0.roll.places > 0 && known.len() >= self.0.roll.places {
            let clients: Vec<Arc<ClientEntry>> = known.iter().filter_map(Weak::upgrade).collect();
            let mut held: BTreeMap<&str, usize> = BTreeMap::new();
            for name in clients.iter().filter_map(|client| client.name.get()) {
                *held.entry(name).or_default() += 1;
            }
            let own = held.get(name).copied().unwrap_or(0) + 1;
            let Some((most, _)) = held.iter().filter(|(_, count)| **count > own).max_by_key(|(_, count)| **count) else {
                return false;
            };
            let oldest = clients.iter().position(|client| client.name.get().is_some_and(|name| **name == **most));
            if let Some(place) = oldest {
                if let Some(task) = clients[place].task.get() {
                    task.abort();
                }
                known.remove(place);
            }
        }
        // Not set by another thread, since the list is locked.
        drop(self.0.name.set(name.into()));
        known.push(Arc::downgrade(&self.0));
        true
    }

    fn is_known(&self) -> bool {
        self.0.name.get().is_some()
    }
}

/// A connection, with the facts by which the one to replace is chosen.
struct OpenConnection {
    task: AbortHandle,
    client: ClientIdentity,
    since: Instant,
}

impl OpenConnection {
    fn is_replaceable(&self, when_full: OverflowPolicy) -> bool {
        when_full == OverflowPolicy::EndOldest || !self.client.is_known()
    }
}

impl ConnectionLimits {
    /// Returns the number of places for unknown clients. They have these places, however many clients are known.
    fn spare(&self) -> usize {
        if self.when_full == OverflowPolicy::EndStrangers { self.connections / 8 + 1 } else { 0 }
    }

    /// Returns whether the limit is reached. Connections that have ended are removed first, if the list is long enough.
    fn is_full(&self, by_age: &mut Vec<OpenConnection>) -> bool {
        if by_age.len() < self.connections {
            return false;
        }
        by_age.retain(|held| !held.task.is_finished());
        let known = by_age.iter().filter(|held| held.client.is_known()).count();
        by_age.len() >= self.connections.max(known.min(self.connections) + self.spare())
    }

    /// Returns when the oldest connection that may be replaced can be closed; `None` if none may be.
    fn next_replacement(&self, by_age: &[OpenConnection]) -> Option<Instant> {
        // The oldest comes first.
        let oldest = by_age.iter().find(|held| held.is_replaceable(self.when_full))?;
        if self.when_full == OverflowPolicy::EndOldest {
            return Some(oldest.since);
        }
        let strangers = by_age.iter().filter(|held| !held.client.is_known()).count();
        Some(oldest.since + (TO_SPEAK * strangers.min(MANY) as u32 / MANY as u32).max(LEAST_TO_SPEAK))
    }
}

/// Serves until `shutdown`, and then ends running requests. `handshake` runs before HTTP.
pub async fn serve<H, F, S>(
    listener: TcpListener,
    handshake: H,
    router: Router,
    limits: ConnectionLimits,
    refused: impl Fn(CloseReason) + Clone + Send + 'static,
    shutdown: Shutdown,
) where
    H: Fn(TcpStream) -> F,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut by_age: Vec<OpenConnection> = Vec::new();
    let roll = ClientRegistry { places: limits.connections, ..ClientRegistry::default() };
    let most = limits.connections + limits.spare();
    loop {
        let is_full = limits.is_full(&mut by_age) || connections.len() >= most;
        let way = if is_full { limits.next_replacement(&by_age) } else { None };
        let open = !is_full || way.is_some_and(|from| from <= Instant::now());
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => {
                closed(&ended);
                continue;
            }
            accepted = listener.accept(), if open => accepted,
            () = sleep_until(way.unwrap_or_else(Instant::now)), if !open && way.is_some() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(REFUSED).await;
                continue;
            }
        };
        if limits.is_full(&mut by_age) {
            refused(CloseReason::GaveWay);
            let Some(oldest) = by_age.iter().position(|held| held.is_replaceable(limits.when_full)) else {
                // The last stranger has become known by now: then it is the newest that goes.
                continue;
            };
            by_age.remove(oldest).task.abort();
        }
        let (standing, refused, shutdown) = (ClientIdentity::new(&roll), refused.clone(), shutdown.clone());
        let connection = HttpConnection { router: router.clone(), limits, client: standing.clone(), refused, shutdown };
        CONNECTION.begin();
        let task = connections.spawn(connection.run(handshake(stream)));
        // Set once, here.
        drop(standing.0.task.set(task.clone()));
        by_age.push(OpenConnection { task, client: standing, since: Instant::now() });
    }
    while let Some(ended) = connections.join_next().await {
        closed(&ended);
    }
}

/// A panic of one costs that connection, and hyper has answered or not by then. One that gave its place away did not fail.
fn closed(ended: &Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        CONNECTION.failed(&error.to_string());
    }
}

struct HttpConnection<R> {
    router: Router,
    limits: ConnectionLimits,
    client: ClientIdentity,
    refused: R,
    shutdown: Shutdown,
}

impl<R: Fn(CloseReason)> HttpConnection<R> {
    async fn run<S: AsyncRead + AsyncWrite + Unpin>(self, handshake: impl Future<Output = io::Result<S>>) {
        let refused = tokio::select! {
            () = self.shutdown.cancelled() => return,
            shaken = timeout(self.limits.request, handshake) => match shaken {
                Ok(Ok(stream)) => return self.serve_http(stream).await,
                Ok(Err(_)) => CloseReason::Handshake,
                Err(_) => CloseReason::Slow,
            },
        };
        (self.refused)(refused);
    }

    async fn serve_http(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let (router, standing) = (TowerToHyperService::new(self.router), self.client);
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(standing.clone());
            router.call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.request)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = self.shutdown.cancelled() => None,
            () = tokio::time::sleep(self.limits.lifetime) => None,
        };
        let ended = if let Some(ended) = ended {
            Ok(ended)
        } else {
            connection.as_mut().graceful_shutdown();
            timeout(self.limits.request, connection).await
        };
        match ended {
            Ok(Err(error)) if error.is_timeout() => (self.refused)(CloseReason::Slow),
            Err(_) => (self.refused)(CloseReason::Slow),
            // A client that breaks off needs no log line.
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::net::SocketAddr;

    use axum::Extension;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    use super::*;

    /// A lifetime that no connection in the tests reaches.
    const PATIENT: Duration = Duration::from_hours(1);
    const GENEROUS: ConnectionLimits =
        ConnectionLimits { connections: 3, when_full: OverflowPolicy::EndOldest, request: PATIENT, lifetime: PATIENT };

    /// More than the buffers between the two ends take.
    const LARGE: usize = 64 << 20;

    struct Server {
        address: SocketAddr,
        refused: mpsc::Receiver<CloseReason>,
        shutdown: Shutdown,
        serving: tokio::task::JoinHandle<()>,
    }

    impl Server {
        async fn start(limits: ConnectionLimits) -> Self {
            async fn panics() {
                tokio::task::yield_now().await;
                panic!("on purpose");
            }
            let router = Router::new()
                .route("/panics", get(panics))
                .route("/works", get(|| async { "it works" }))
                .route(
                    "/known",
                    get(|Extension(standing): Extension<ClientIdentity>, uri: axum::http::Uri| async move {
                        if standing.identify(uri.query().unwrap_or_default()) { "it works" } else { "no place: it works" }
                    }),
                )
                .route("/large", get(|| async { vec![b'x'; LARGE] }));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            // More than any test has.
            let (note, refused) = mpsc::channel(16);
            let note = move |why| note.try_send(why).unwrap();
            let shutdown = Shutdown::new();
            let serving = tokio::spawn(serve(listener, |stream| ready(Ok(stream)), router, limits, note, shutdown.clone()));
            Self { address, refused, shutdown, serving }
        }

        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }

        /// Returns a connection that has had an answer, and stays.
        async fn served(&self) -> TcpStream {
            let mut stream = self.connect().await;
            ask(&mut stream, "/works").await;
            stream
        }

        /// Connects as a known client.
        async fn known(&self) -> TcpStream {
            let mut stream = self.connect().await;
            ask(&mut stream, "/known").await;
            stream
        }

        async fn end(self) {
            self.shutdown.cancel();
            self.serving.await.unwrap();
        }
    }

    /// Returns the bytes until the connection ends, in good order or not.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        drop(stream.read_to_end(&mut bytes).await);
        String::from_utf8(bytes).unwrap()
    }

    async fn ask(stream: &mut TcpStream, path: &str) {
        drop(asked(stream, path).await);
    }

    async fn asked(stream: &mut TcpStream, path: &str) -> String {
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        answer(stream).await
    }

    async fn answer(stream: &mut TcpStream) -> String {
        let mut response = Vec::new();
        while !response.ends_with(b"it works") {
            assert!(stream.read_buf(&mut response).await.unwrap() > 0, "ended after {}", String::from_utf8_lossy(&response));
        }
        String::from_utf8(response).unwrap()
    }

    #[tokio::test]
    async fn a_panic_of_one_connection_is_counted_and_costs_that_one() {
        let server = Server::start(GENEROUS).await;
        let before = CONNECTION.failures();
        let mut stream = server.connect().await;
        stream.write_all(b"GET /panics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(rest(&mut stream).await, "");
        server.served().await;
        server.end().await;
        assert_eq!(CONNECTION.failures(), before + 1);
    }

    #[tokio::test]
    async fn slow_clients_are_cut_off_whether_they_send_nothing_half_a_head_or_no_second_request() {
        let mut server = Server::start(ConnectionLimits { request: Duration::from_millis(200), ..GENEROUS }).await;
        let mut silent = server.connect().await;
        let mut half = server.connect().await;
        half.write_all(b"GET /works HTTP/1.1\r\nhost:").await.unwrap();
        let mut idle = server.connect().await;
        idle.write_all(b"GET /works HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        for stream in [&mut silent, &mut half] {
            let response = rest(stream).await;
            assert!(!response.contains(" 200 "), "{response}");
        }
        rest(&mut idle).await;
        for _ in 0..3 {
            assert_eq!(server.refused.recv().await, Some(CloseReason::Slow));
        }
        server.end().await;
    }

    #[tokio::test]
    async fn who_reads_no_answer_is_cut_off() {
        let limits = ConnectionLimits { request: Duration::from_millis(200), lifetime: Duration::from_millis(200), ..GENEROUS };
        let mut server = Server::start(limits).await;
        let mut deaf = server.connect().await;
        deaf.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(server.refused.recv().await, Some(CloseReason::Slow));
        assert!(rest(&mut deaf).await.len() < LARGE, "it was sent to its end");
        server.end().await;
    }

    #[tokio::test]
    async fn one_more_connection_than_there_may_be_takes_the_place_of_the_oldest() {
        let mut server = Server::start(GENEROUS).await;
        let mut held = Vec::new();
        for _ in 0..GENEROUS.connections {
            held.push(server.known().await);
        }
        let mut next = Vec::new();
        for oldest in &mut held {
            next.push(server.served().await);
            assert_eq!(rest(oldest).await, "");
            assert_eq!(server.refused.recv().await, Some(CloseReason::GaveWay));
        }
        for stream in &mut next {
            ask(stream, "/works").await;
        }
        server.end().await;
    }

    #[tokio::test]
    async fn strangers_give_way_and_who_is_known_does_not_however_old() {
        let mut server = Server::start(ConnectionLimits { when_full: OverflowPolicy::EndStrangers, ..GENEROUS }).await;
        let mut held = vec![server.known().await];
        // Silent ones, and one that has had an answer without being known: each gives its place to the next.
        let mut strangers = vec![server.connect().await, server.served().await];
        for _ in 0..2 * GENEROUS.connections {
            strangers.push(server.connect().await);
            assert_eq!(rest(&mut strangers.remove(0)).await, "");
            assert_eq!(server.refused.recv().await, Some(CloseReason::GaveWay));
        }
        ask(&mut held[0], "/works").await;
        for mut stranger in strangers {
            held.push(server.known().await);
            assert_eq!(rest(&mut stranger).await, "");
        }
        // All are known, and of one: one more of those has no place, and the others are served as before.
        let mut next = server.connect().await;
        assert!(asked(&mut next, "/known").await.contains("no place"));
        for stream in &mut held {
            ask(stream, "/works").await;
        }
        held.pop();
        drop(next);
        server.known().await;
        server.end().await;
    }

    #[tokio::test]
    async fn a_stranger_has_the_less_time_to_speak_the_fewer_there_are() {
        let limits = ConnectionLimits { when_full: OverflowPolicy::EndStrangers, ..GENEROUS };
        let since = Instant::now();
        let held = || {
            let task = tokio::spawn(std::future::pending::<()>()).abort_handle();
            OpenConnection { task, client: ClientIdentity::default(), since }
        };
        let mut by_age = vec![held()];
        assert!(by_age[0].client.identify("somebody"));
        assert_eq!(limits.next_replacement(&by_age), None);
        for (strangers, micros) in [(1, 10_000), (3, 10_000), (4, 12_500), (16, 50_000), (32, 100_000), (500, 100_000)] {
            by_age.resize_with(strangers + 1, held);
            assert_eq!(limits.next_replacement(&by_age), Some(since + Duration::from_micros(micros)), "{strangers}");
        }
        assert_eq!(GENEROUS.next_replacement(&by_age), Some(since));
    }

    #[tokio::test]
    async fn who_comes_with_a_crowd_has_time_to_speak() {
        let limits = ConnectionLimits { connections: 8, when_full: OverflowPolicy::EndStrangers, ..GENEROUS };
        let server = Server::start(limits).await;
        let mut greedy = Vec::new();
        for _ in 0..limits.connections {
            let mut stream = server.connect().await;
            ask(&mut stream, "/known?greedy").await;
            greedy.push(stream);
        }
        // All of them wait before the server looks.
        let mut quick = std::net::TcpStream::connect(server.address).unwrap();
        std::io::Write::write_all(&mut quick, b"GET /known?quick HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let crowd: Vec<_> = (0..8).map(|_| std::net::TcpStream::connect(server.address).unwrap()).collect();
        quick.set_nonblocking(true).unwrap();
        let mut quick = TcpStream::from_std(quick).unwrap();
        assert!(!answer(&mut quick).await.contains("no place"));
        drop(crowd);
        server.end().await;
    }

    #[tokio::test]
    async fn who_has_the_most_connections_gives_way_to_who_has_fewer() {
        let limits = ConnectionLimits { connections: 30, when_full: OverflowPolicy::EndStrangers, ..GENEROUS };
        let mut server = Server::start(limits).await;
        let mut greedy = Vec::new();
        for _ in 0..30 {
            let mut stream = server.connect().await;
            assert!(!asked(&mut stream, "/known?greedy").await.contains("no place"));
            greedy.push(stream);
        }
        let mut others = Vec::new();
        for oldest in &mut greedy[..15] {
            let mut stream = server.connect().await;
            assert!(!asked(&mut stream, "/known?other").await.contains("no place"));
            others.push(stream);
            assert_eq!(rest(oldest).await, "");
        }
        // Fifteen each: neither takes more from the other.
        let mut next = server.connect().await;
        assert!(asked(&mut next, "/known?other").await.contains("no place"));
        drop(next);
        for stream in others.iter_mut().chain(&mut greedy[15..]) {
            ask(stream, "/works").await;
        }
        server.refused.close();
        server.end().await;
    }
}
