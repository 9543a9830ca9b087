//! Connections of HTTP clients: so many at once, and an end to those that dawdle.
//!
//! Every wait for a client is bounded: what goes before HTTP (TLS), the head of a request, which is also what comes between two of
//! them, and the connection as a whole; whoever waits for a body bounds that. So slow clients cost their connection, not the service.

use std::io;
use std::time::Duration;

use axum::Router;
use eadt_tasks::CONNECTION;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::timeout;

use crate::Shutdown;

/// Waits after a connection could not be accepted, for example because there are no file descriptors.
const REFUSED: Duration = Duration::from_millis(50);
/// Heads of requests are short.
const HEAD_BYTES: usize = 16 << 10;

/// What clients may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// What happens to one more.
    pub when_full: WhenFull,
    /// Longest handshake, and longest wait for the head of a request, of a further one from the last answer on.
    pub request: Duration,
    /// A connection is asked to end after so long, and ended `request` later: whoever reads no answers holds nothing for ever.
    pub lifetime: Duration,
}

/// What happens to a connection beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits until another one ends: senders at work are not put out.
    Wait,
    /// It takes the place of the oldest: an answer takes no time, so the oldest is who dawdles.
    EndOldest,
}

/// Why a connection was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Handshake,
    Slow,
}

/// Serves until `shutdown`; then requests under way are ended. `handshake` is what goes before HTTP.
pub async fn serve<H, F, S>(
    listener: TcpListener,
    handshake: H,
    router: Router,
    limits: Limits,
    refused: impl Fn(Refused) + Clone + Send + 'static,
    shutdown: Shutdown,
) where
    H: Fn(TcpStream) -> F,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut by_age: Vec<AbortHandle> = Vec::new();
    loop {
        let open = limits.when_full == WhenFull::EndOldest || connections.len() < limits.connections;
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => {
                closed(&ended);
                continue;
            }
            accepted = listener.accept(), if open => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(REFUSED).await;
                continue;
            }
        };
        let connection = Connection { router: router.clone(), limits, refused: refused.clone(), shutdown: shutdown.clone() };
        CONNECTION.begin();
        let newest = connections.spawn(connection.run(handshake(stream)));
        if limits.when_full == WhenFull::EndOldest {
            by_age.retain(|connection| !connection.is_finished());
            if by_age.len() >= limits.connections {
                by_age.remove(0).abort();
            }
            by_age.push(newest);
        }
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

struct Connection<R> {
    router: Router,
    limits: Limits,
    refused: R,
    shutdown: Shutdown,
}

impl<R: Fn(Refused)> Connection<R> {
    async fn run<S: AsyncRead + AsyncWrite + Unpin>(self, handshake: impl Future<Output = io::Result<S>>) {
        let refused = tokio::select! {
            () = self.shutdown.cancelled() => return,
            shaken = timeout(self.limits.request, handshake) => match shaken {
                Ok(Ok(stream)) => return self.speak(stream).await,
                Ok(Err(_)) => Refused::Handshake,
                Err(_) => Refused::Slow,
            },
        };
        (self.refused)(refused);
    }

    async fn speak(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = TowerToHyperService::new(self.router);
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
            Ok(Err(error)) if error.is_timeout() => (self.refused)(Refused::Slow),
            Err(_) => (self.refused)(Refused::Slow),
            // Whoever breaks off knows it.
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;

    use super::*;

    /// Nobody dawdles as long as this.
    const PATIENT: Duration = Duration::from_hours(1);
    const GENEROUS: Limits = Limits { connections: 3, when_full: WhenFull::EndOldest, request: PATIENT, lifetime: PATIENT };

    /// More than the buffers between the two ends take.
    const LARGE: usize = 64 << 20;

    struct Server {
        address: SocketAddr,
        refused: mpsc::Receiver<Refused>,
        shutdown: Shutdown,
        serving: tokio::task::JoinHandle<()>,
    }

    impl Server {
        async fn start(limits: Limits) -> Self {
            async fn panics() {
                tokio::task::yield_now().await;
                panic!("on purpose");
            }
            let router = Router::new()
                .route("/panics", get(panics))
                .route("/works", get(|| async { "it works" }))
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

        /// A connection that has had an answer, and stays.
        async fn served(&self) -> TcpStream {
            let mut stream = self.connect().await;
            ask(&mut stream).await;
            stream
        }

        async fn end(self) {
            self.shutdown.cancel();
            self.serving.await.unwrap();
        }
    }

    /// What comes until the connection ends, in good order or not.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        drop(stream.read_to_end(&mut bytes).await);
        String::from_utf8(bytes).unwrap()
    }

    async fn ask(stream: &mut TcpStream) {
        stream.write_all(b"GET /works HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut told = Vec::new();
        while !told.ends_with(b"it works") {
            assert!(stream.read_buf(&mut told).await.unwrap() > 0, "ended after {}", String::from_utf8_lossy(&told));
        }
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
        let mut server = Server::start(Limits { request: Duration::from_millis(200), ..GENEROUS }).await;
        let mut silent = server.connect().await;
        let mut half = server.connect().await;
        half.write_all(b"GET /works HTTP/1.1\r\nhost:").await.unwrap();
        let mut idle = server.connect().await;
        idle.write_all(b"GET /works HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        for stream in [&mut silent, &mut half] {
            let told = rest(stream).await;
            assert!(!told.contains(" 200 "), "{told}");
        }
        rest(&mut idle).await;
        for _ in 0..3 {
            assert_eq!(server.refused.recv().await, Some(Refused::Slow));
        }
        server.end().await;
    }

    #[tokio::test]
    async fn who_reads_no_answer_is_cut_off() {
        let limits = Limits { request: Duration::from_millis(200), lifetime: Duration::from_millis(200), ..GENEROUS };
        let mut server = Server::start(limits).await;
        let mut deaf = server.connect().await;
        deaf.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(server.refused.recv().await, Some(Refused::Slow));
        assert!(rest(&mut deaf).await.len() < LARGE, "it was sent to its end");
        server.end().await;
    }

    #[tokio::test]
    async fn one_more_connection_than_there_may_be_takes_the_place_of_the_oldest() {
        let server = Server::start(GENEROUS).await;
        let mut held = Vec::new();
        for _ in 0..GENEROUS.connections {
            held.push(server.served().await);
        }
        let mut next = Vec::new();
        for oldest in &mut held {
            next.push(server.served().await);
            assert_eq!(rest(oldest).await, "");
        }
        for stream in &mut next {
            ask(stream).await;
        }
        server.end().await;
    }

    #[tokio::test]
    async fn one_more_connection_than_there_may_be_waits_where_nobody_is_put_out() {
        let server = Server::start(Limits { when_full: WhenFull::Wait, ..GENEROUS }).await;
        let mut held = Vec::new();
        for _ in 0..GENEROUS.connections {
            held.push(server.served().await);
        }
        let mut next = Box::pin(server.served());
        // The others are served as before, while it is not.
        for stream in &mut held {
            tokio::select! {
                biased;
                _ = next.as_mut() => panic!("served beside all the others"),
                () = ask(stream) => {}
            }
        }
        held.pop();
        next.await;
        server.end().await;
    }
}
