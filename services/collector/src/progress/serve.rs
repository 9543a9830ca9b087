//! Connections of senders: so many at once, TLS where there is a certificate, and an end to those that dawdle.
//!
//! Every wait for a client is bounded: the handshake, the head of a request, its body (by [`super::http`]), and the connection
//! as a whole. So slow clients cost their connection, not the endpoint.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use eadt_service::Shutdown;
use eadt_service::tasks::CONNECTION;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::metrics::{CollectorMetrics, ReasonLabel};

/// A connection is asked to end after so long, and ended a request's time later: whoever reads no answers holds nothing for ever.
const LIFETIME: Duration = Duration::from_mins(10);
/// Waits after a connection could not be accepted, for example because there are no file descriptors.
const REFUSED: Duration = Duration::from_millis(50);
/// Heads of requests are short.
const HEAD_BYTES: usize = 16 << 10;

/// What a client may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Connections at once; further ones wait.
    pub connections: usize,
    /// Longest handshake, head of a request, and request as a whole.
    pub request: Duration,
}

/// The certificate in force. Clones share it.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Mutex<Arc<ServerConfig>>>);

impl Tls {
    /// Reads certificate chain and key, PEM files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, String> {
        Ok(Self(Arc::new(Mutex::new(Arc::new(config(certificate, key)?)))))
    }

    /// Replaces the certificate for connections to come; what was in force stays so after an error.
    pub fn reload(&self, certificate: &Path, key: &Path) -> Result<(), String> {
        let next = Arc::new(config(certificate, key)?);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }

    fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

fn config(certificate: &Path, key: &Path) -> Result<ServerConfig, String> {
    let of = |path: &Path, error: &dyn std::fmt::Display| format!("cannot use {}: {error}", path.display());
    let chain: Vec<_> =
        CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect).map_err(|error| of(certificate, &error))?;
    if chain.is_empty() {
        return Err(of(certificate, &"it holds no PEM certificate"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| of(key, &error))?;
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| of(certificate, &error))
}

/// Serves until `shutdown`; then requests under way are ended.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Tls>,
    router: Router,
    limits: Limits,
    metrics: CollectorMetrics,
    shutdown: Shutdown,
) {
    let free = Arc::new(Semaphore::new(limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let permit = tokio::select! {
            () = shutdown.cancelled() => break,
            permit = free.clone().acquire_owned() => permit.expect("the semaphore is never closed"),
        };
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some(ended) = connections.join_next() => {
                closed(&ended);
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection to the progress endpoint was not accepted");
                tokio::time::sleep(REFUSED).await;
                continue;
            }
        };
        let connection = Connection {
            acceptor: tls.as_ref().map(Tls::acceptor),
            router: router.clone(),
            limits,
            metrics: metrics.clone(),
            shutdown: shutdown.clone(),
            _permit: permit,
        };
        CONNECTION.begin();
        connections.spawn(connection.run(stream));
    }
    while let Some(ended) = connections.join_next().await {
        closed(&ended);
    }
}

/// A panic of one costs that connection, and hyper has answered or not by then.
fn closed(ended: &Result<(), JoinError>) {
    if let Err(error) = ended {
        CONNECTION.failed(&error.to_string());
    }
}

struct Connection {
    acceptor: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    metrics: CollectorMetrics,
    shutdown: Shutdown,
    _permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(mut self, stream: TcpStream) {
        let Some(acceptor) = self.acceptor.take() else { return self.speak(stream).await };
        let handshake = timeout(self.limits.request, acceptor.accept(stream));
        let reason = tokio::select! {
            () = self.shutdown.cancelled() => return,
            shaken = handshake => match shaken {
                Ok(Ok(stream)) => return self.speak(stream).await,
                Ok(Err(_)) => "tls",
                Err(_) => "slow",
            },
        };
        self.refused(reason);
    }

    async fn speak(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = TowerToHyperService::new(self.router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.request)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = self.shutdown.cancelled() => None,
            () = tokio::time::sleep(LIFETIME) => None,
        };
        let ended = if let Some(ended) = ended {
            Ok(ended)
        } else {
            connection.as_mut().graceful_shutdown();
            timeout(self.limits.request, connection).await
        };
        match ended {
            Ok(Err(error)) if error.is_timeout() => self.refused("slow"),
            Err(_) => self.refused("slow"),
            // Whoever breaks off knows it.
            Ok(_) => {}
        }
    }

    fn refused(&self, reason: &'static str) {
        self.metrics.connections_refused.get_or_create(&ReasonLabel { reason }).inc();
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_panic_of_one_connection_is_counted_and_costs_that_one() {
        async fn panics() {
            tokio::task::yield_now().await;
            panic!("on purpose");
        }
        let router = Router::new().route("/panics", get(panics)).route("/works", get(|| async { "it works" }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = crate::settings::RawSettings::default().validate("host").unwrap().progress.unwrap().limits;
        let (metrics, shutdown) = (CollectorMetrics::new(&eadt_service::Metrics::default()), Shutdown::new());
        let serving = tokio::spawn(serve(listener, None, router, limits, metrics, shutdown.clone()));
        let before = CONNECTION.failures();
        for (path, answer) in [("/panics", ""), ("/works", "it works")] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            assert!(text.ends_with(answer) && text.is_empty() == answer.is_empty(), "{path}: {text}");
        }
        shutdown.cancel();
        serving.await.unwrap();
        assert_eq!(CONNECTION.failures(), before + 1);
    }
}
