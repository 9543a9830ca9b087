//! Serves the progress endpoint's connections, with TLS if there is a certificate, and counts those that are cut off.

use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use eadt_service::Shutdown;
use eadt_service::connections::{self, CloseReason, ConnectionLimits};
use eadt_service::files::{SMALL_BYTES, pem};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;

use crate::metrics::{CollectorMetrics, ReasonLabel};

/// The certificate in force. Clones share it.
#[derive(Debug, Clone)]
pub struct ServerCertificate(Arc<Mutex<Arc<ServerConfig>>>);

impl ServerCertificate {
    /// Reads certificate chain and key, PEM files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, String> {
        Ok(Self(Arc::new(Mutex::new(Arc::new(config(certificate, key)?)))))
    }

    /// Replaces the certificate for new connections; after an error the former one stays in force.
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
    let chain = pem::read_certificates(certificate, SMALL_BYTES).map_err(|error| of(certificate, &error))?;
    let secret = pem::read_private_key(key, SMALL_BYTES).map_err(|error| of(key, &error))?;
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| of(certificate, &error))
}

/// Serves until `shutdown`; then requests under way are ended.
pub async fn serve(
    listener: TcpListener,
    tls: Option<ServerCertificate>,
    router: Router,
    limits: ConnectionLimits,
    metrics: CollectorMetrics,
    shutdown: Shutdown,
) {
    let refused = move |why| {
        let reason = match why {
            CloseReason::Handshake => "tls",
            CloseReason::Slow => "slow",
            CloseReason::GaveWay => "gave_way",
        };
        metrics.connections_refused.get_or_create(&ReasonLabel { reason }).inc();
    };
    match tls {
        Some(tls) => {
            connections::serve(listener, move |stream| tls.acceptor().accept(stream), router, limits, refused, shutdown).await;
        }
        None => connections::serve(listener, |stream| ready(Ok(stream)), router, limits, refused, shutdown).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_files_are_refused_and_no_error_quotes_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(at("tls.crt"), made.cert.pem()).unwrap();
        let error = |certificate: &Path, key: &Path| ServerCertificate::load(certificate, key).unwrap_err();
        let zero = Path::new("/dev/zero");
        for error in [error(zero, zero), error(&at("tls.crt"), zero)] {
            assert!(error.contains("/dev/zero") && error.contains("more than 16 MiB"), "{error}");
        }
        for text in [
            "hunter2",
            "-----BEGIN PRIVATE KEY-----hunter2",
            "-----BEGIN PRIVATE KEY-----hunter2-----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
            "-----BEGIN hunter2-----\nabcd\n-----END PRIVATE KEY-----",
        ] {
            std::fs::write(at("tls.key"), text).unwrap();
            let error = error(&at("tls.crt"), &at("tls.key"));
            // An error in PEM lists bytes as numbers.
            assert!(!error.contains("hunter2") && !error.contains("104, 117"), "{text}: {error}");
        }
    }
}
