//! A collector that senders reach over TLS, and what senders do.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use eadt_nvml::fake::FakeLibrary;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{Running, StderrLines, eadt, text};

/// All modules that might log a secret log everything.
const LOG: &str =
    "info,eadt_collector=trace,eadt_kubernetes=trace,hyper=trace,hyper_util=trace,kube=trace,kube_client=trace,tower_http=trace";

/// A collector, its secrets, and a client that trusts its certificate.
pub struct Ingest {
    pub dir: tempfile::TempDir,
    _fake: FakeLibrary,
    pub child: Running,
    pub stderr: StderrLines,
    address: String,
}

/// The certificate that a client trusts.
pub type Certificate = CertificateDer<'static>;

pub fn certificate(folder: &Path) -> Certificate {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

pub fn tokens(dir: &Path) -> PathBuf {
    dir.join("tokens.json")
}

pub fn token(dir: &Path, args: &[&str]) -> (String, String, bool) {
    let file = tokens(dir);
    let mut all = vec!["token"];
    all.extend(args);
    all.extend(["--file", file.to_str().unwrap()]);
    text(eadt(dir, &all))
}

/// Id and token.
pub fn create(dir: &Path, args: &[&str]) -> (String, String) {
    let mut all = vec!["create", "--json"];
    all.extend(args);
    let (out, err, good) = token(dir, &all);
    assert!(good, "{err}");
    let made: Value = serde_json::from_str(&out).unwrap();
    (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

/// Returns the part after prefix and id; it may have underscores of its own.
pub fn secret(token: &str) -> &str {
    token.splitn(3, '_').nth(2).unwrap()
}

impl Ingest {
    pub fn start(dir: tempfile::TempDir, more: &[(&str, &str)]) -> Self {
        Self::start_with(dir, more, |_| ())
    }

    /// `with`: adds further settings of the program.
    pub fn start_with(dir: tempfile::TempDir, more: &[(&str, &str)], with: impl FnOnce(&mut Command)) -> Self {
        let fake = FakeLibrary::new("");
        let mut command = eadt(dir.path(), &["up", "--gpus", "nvml", "--no-view", "--json", "--log", LOG]);
        command.env("EADT_COLLECTOR__NVML__LIBRARY_PATH", fake.library()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (key, value) in [
            ("LISTEN", "127.0.0.1:0".to_owned()),
            ("CERTIFICATE", dir.path().join("tls.crt").display().to_string()),
            ("KEY", dir.path().join("tls.key").display().to_string()),
            ("TOKENS_FILE", tokens(dir.path()).display().to_string()),
        ] {
            command.env(format!("EADT_COLLECTOR__PROGRESS__{key}"), value);
        }
        for (key, value) in more {
            command.env(format!("EADT_COLLECTOR__PROGRESS__{key}"), value);
        }
        with(&mut command);
        let mut child: Child = command.spawn().unwrap();
        let mut stderr = StderrLines::by(&mut child);
        let line = stderr.until("progress endpoint listens");
        assert!(line.contains("tls=true") && line.contains("tokens=true"), "{line}");
        let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        Self { dir, _fake: fake, child: Running(child), stderr, address }
    }

    pub async fn plain(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }

    pub async fn tls(&self, trusted: &Certificate) -> std::io::Result<TlsStream<TcpStream>> {
        tls(&self.address, trusted).await
    }

    /// Status and body.
    pub async fn post(&self, trusted: &Certificate, token: Option<&str>, path: &str, body: &str) -> (u16, Value) {
        answer(self.tls(trusted).await.unwrap(), &request(token, path, body)).await
    }
}

pub async fn tls(address: &str, trusted: &Certificate) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, TcpStream::connect(address).await?).await
}

/// One that ends its connection.
pub fn request(token: Option<&str>, path: &str, body: &str) -> String {
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n");
    let bearer = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    format!("{head}{bearer}content-length: {}\r\n\r\n{body}", body.len())
}

pub async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> (u16, Value) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    // A server that does not read the rest of a request breaks the connection off; bytes sent before count.
    drop(stream.read_to_end(&mut bytes).await);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{text:?}"));
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::String(body.to_owned())))
}

pub fn progress(workload: &str) -> String {
    json!({"workload": workload, "samples_total": 5}).to_string()
}

pub const V1: &str = "/v1/progress";

/// Pause between two checks of a condition.
pub const PAUSE: Duration = Duration::from_millis(100);
