//! TLS of a connection. Certificates are read at every connection, so that renewed ones are used without a restart.

use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use eadt_files::pem;
use rdkafka::config::ClientConfig as Properties;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned};

use super::connection::{BrokerStream, ConnectionError, Result};
use crate::kafka::security::FILE_BYTES;

/// Properties of TLS that are followed here.
const KNOWN: [&str; 5] = [
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
];

/// The files of TLS, and whether the broker's name counts.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    authorities: Option<PathBuf>,
    certificate: Option<(PathBuf, PathBuf)>,
    checks_name: bool,
}

impl TlsFiles {
    pub fn read(properties: &Properties) -> std::result::Result<Self, String> {
        let properties_set = properties.config_map();
        let foreign = properties_set.keys().find(|name| name.starts_with("ssl.") && !KNOWN.contains(name));
        if let Some(name) = foreign {
            let hint = if *name == "ssl.key.password" { " (decrypt the key, and protect its file)" } else { "" };
            return Err(format!(
                "the property {name} is the client library's alone: leave it out{hint}, or set bus.fetch=librdkafka"
            ));
        }
        if properties.get("enable.ssl.certificate.verification").is_some_and(|text| text != "true") {
            return Err("enable.ssl.certificate.verification=false is the client library's alone".to_owned());
        }
        let file = |name: &str| properties.get(name).map(PathBuf::from);
        let certificate = file("ssl.certificate.location").zip(file("ssl.key.location"));
        let checks_name = properties.get("ssl.endpoint.identification.algorithm") != Some("none");
        Ok(Self { authorities: file("ssl.ca.location"), certificate, checks_name })
    }

    /// Puts TLS around a socket; its handshake is done with the first bytes.
    pub fn wrap_in_tls(&self, mut socket: TcpStream, host: &str) -> Result<BrokerStream> {
        let config = self.config().map_err(ConnectionError::Refused)?;
        let refused =
            |error: &dyn std::fmt::Display| ConnectionError::Refused(format!("the TLS connection was refused: {error}"));
        let name = ServerName::try_from(host.to_owned()).map_err(|error| refused(&error))?;
        let mut connection = ClientConnection::new(Arc::new(config), name).map_err(|error| refused(&error))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut socket).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => refused(&error),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    ConnectionError::Unanswered(socket.read_timeout().ok().flatten().unwrap_or_default())
                }
                _ => ConnectionError::Io(error),
            })?;
        }
        Ok(BrokerStream::Tls(Box::new(StreamOwned::new(connection, socket))))
    }

    fn config(&self) -> std::result::Result<ClientConfig, String> {
        let mut roots = RootCertStore::empty();
        match &self.authorities {
            Some(file) => {
                for certificate in read_certificates("ssl.ca.location", file)? {
                    roots.add(certificate).map_err(|error| format!("ssl.ca.location={}: {error}", file.display()))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let roots = Arc::new(roots);
        let builder = if self.checks_name {
            let verifier =
                WebPkiServerVerifier::builder_with_provider(roots, provider).build().map_err(|error| error.to_string())?;
            builder.with_webpki_verifier(verifier)
        } else {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(NoHostnameVerifier { roots, provider }))
        };
        let Some((certificate, key)) = &self.certificate else { return Ok(builder.with_no_client_auth()) };
        let chain = read_certificates("ssl.certificate.location", certificate)?;
        let failed = |error: io::Error| format!("reading ssl.key.location={}: {error}", key.display());
        let secret = pem::read_private_key(key, FILE_BYTES).map_err(failed)?;
        let misfit = |error| format!("using ssl.certificate.location={}: {error}", certificate.display());
        builder.with_client_auth_cert(chain, secret).map_err(misfit)
    }
}

/// Reads the certificates of a file.
fn read_certificates(property: &str, file: &Path) -> std::result::Result<Vec<CertificateDer<'static>>, String> {
    pem::read_certificates(file, FILE_BYTES).map_err(|error| format!("reading {property}={}: {error}", file.display()))
}

/// Believes every name of a certificate that an authority has signed, if that is asked for.
#[derive(Debug)]
struct NoHostnameVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NoHostnameVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_files_are_refused_and_no_error_quotes_a_key() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let error = |files: TlsFiles| files.config().unwrap_err();
        let none = TlsFiles { authorities: None, certificate: None, checks_name: true };
        let zero = PathBuf::from("/dev/zero");
        std::fs::write(at("empty"), "").unwrap();
        std::fs::write(at("chain"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let with = |certificate: &Path, key: &Path| TlsFiles {
            certificate: Some((certificate.to_owned(), key.to_owned())),
            ..none.clone()
        };
        let no_name = |files: TlsFiles| TlsFiles { checks_name: false, ..files };
        for error in [
            error(TlsFiles { authorities: Some(zero.clone()), ..none.clone() }),
            error(no_name(with(&zero, &zero))),
            error(no_name(with(&at("chain"), &zero))),
        ] {
            assert!(error.contains("=/dev/zero: it has more than 1 MiB"), "{error}");
        }
        let nobody = error(TlsFiles { authorities: Some(at("empty")), ..none.clone() });
        assert!(nobody.starts_with("reading ssl.ca.location=") && nobody.ends_with("it contains no PEM certificate"), "{nobody}");
        std::fs::write(at("key"), "-----BEGIN PRIVATE KEY-----hunter2-----END PRIVATE KEY-----").unwrap();
        let error = error(no_name(with(&at("chain"), &at("key"))));
        assert!(error.contains("no PEM private key") && !error.contains("hunter2") && !error.contains("104, 117"), "{error}");
    }
}
