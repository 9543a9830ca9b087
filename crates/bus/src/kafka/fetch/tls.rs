//! TLS of a connection. Certificates are read at every connection, so that renewed ones are used without a restart.

use std::io;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;

use rdkafka::config::ClientConfig as Properties;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned};

use super::connection::{BrokerStream, ConnectionError, Result};

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
                let failed = |error| format!("reading ssl.ca.location={}: {error}", file.display());
                for certificate in CertificateDer::pem_file_iter(file).map_err(failed)? {
                    roots.add(certificate.map_err(failed)?).map_err(|error| format!("{}: {error}", file.display()))?;
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
        let failed = |file: &PathBuf, error: &dyn std::fmt::Display| format!("reading {}: {error}", file.display());
        let chain: std::result::Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<std::result::Result<_, _>>)
            .map(|chain: Vec<_>| chain);
        let chain = chain.map_err(|error| failed(certificate, &error))?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
        builder.with_client_auth_cert(chain, key).map_err(|error| failed(certificate, &error))
    }
}

/// Believes every name of a certificate that an authority has signed, where that is asked for.
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
