//! Who may report progress: the real program behind TLS and tokens, and senders that mean it no good.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_nvml::fake::FakeLibrary;
use serde_json::{Value, json};
use support::{Running, Told, eadt, text};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A collector, its secrets, and a client that trusts its certificate.
struct Ingest {
    dir: tempfile::TempDir,
    _fake: FakeLibrary,
    child: Running,
    told: Told,
    address: String,
}

fn certificate(folder: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

fn tokens(dir: &Path) -> PathBuf {
    dir.join("tokens.json")
}

fn token(dir: &Path, args: &[&str]) -> (String, String, bool) {
    let file = tokens(dir);
    let mut all = vec!["token"];
    all.extend(args);
    all.extend(["--file", file.to_str().unwrap()]);
    text(eadt(dir, &all))
}

/// Id and token.
fn create(dir: &Path, args: &[&str]) -> (String, String) {
    let mut all = vec!["create", "--json"];
    all.extend(args);
    let (out, err, good) = token(dir, &all);
    assert!(good, "{err}");
    let made: Value = serde_json::from_str(&out).unwrap();
    (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

/// What follows prefix and id; it may have underscores of its own.
fn secret(token: &str) -> &str {
    token.splitn(3, '_').nth(2).unwrap()
}

impl Ingest {
    fn start(dir: tempfile::TempDir, more: &[(&str, &str)]) -> Self {
        let fake = FakeLibrary::new("");
        let mut command = eadt(
            dir.path(),
            &["up", "--gpus", "nvml", "--no-view", "--json", "--log", "info,eadt_collector=trace,hyper=trace,hyper_util=trace"],
        );
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
        let mut child: Child = command.spawn().unwrap();
        let mut told = Told::by(&mut child);
        let line = told.until("progress endpoint listens");
        assert!(line.contains("tls=true") && line.contains("tokens=true"), "{line}");
        let address = line.split("address=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        Self { dir, _fake: fake, child: Running(child), told, address }
    }

    async fn plain(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }

    async fn tls(&self, trusted: &CertificateDer<'static>) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(trusted.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, self.plain().await).await
    }

    /// Status and body.
    async fn post(&self, trusted: &CertificateDer<'static>, token: Option<&str>, path: &str, body: &str) -> (u16, Value) {
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n");
        let bearer = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!("{head}{bearer}content-length: {}\r\n\r\n{body}", body.len());
        answer(self.tls(trusted).await.unwrap(), &request).await
    }
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> (u16, Value) {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    // Whoever does not read the rest of a request breaks the connection off; what was said before counts.
    drop(stream.read_to_end(&mut bytes).await);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{text:?}"));
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, serde_json::from_str(body).unwrap_or(Value::String(body.to_owned())))
}

fn progress(workload: &str) -> String {
    json!({"workload": workload, "samples_total": 5}).to_string()
}

const V1: &str = "/v1/progress";

/// Between two looks at what is to change.
const PAUSE: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_reports_for_its_namespaces_and_is_rotated_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let trusted = certificate(dir.path());
    let (id, team_a) = create(dir.path(), &["--namespace", "team-a"]);
    let (_, everyone) = create(dir.path(), &["--namespace", "*", "--expires", "1d"]);
    let mut ingest = Ingest::start(dir, &[]);
    let post = async |token: Option<&str>, path: &str, body: String| ingest.post(&trusted, token, path, &body).await;

    assert_eq!(post(Some(&team_a), V1, progress("team-a/x")).await, (202, json!({"accepted": 1})));
    let batch = format!("[{},{}]", progress("team-a/x"), progress("team-b/x"));
    let (status, refused) = post(Some(&team_a), V1, batch).await;
    assert_eq!((status, &refused["field"], &refused["index"]), (403, &json!("workload"), &json!(1)), "{refused}");
    assert!(refused["error"].as_str().unwrap().contains(&id), "{refused}");
    assert_eq!(post(Some(&everyone), V1, progress("team-b/x")).await.0, 202);
    let trainer = |namespace: &str| format!("/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/j/status");
    let update = || r#"{"trainerStatus":{"progressPercentage":0}}"#.to_owned();
    assert_eq!(post(Some(&team_a), &trainer("team-a"), update()).await.0, 200);
    assert_eq!(post(Some(&team_a), &trainer("team-b"), update()).await.0, 403);

    let wrong = format!("{}x", &team_a[..team_a.len() - 1]);
    for bad in [None, Some(""), Some("eadt__"), Some(wrong.as_str()), Some(id.as_str()), Some("Bearer")] {
        let (status, told) = post(bad, V1, progress("team-a/x")).await;
        assert_eq!(status, 401, "{bad:?}: {told}");
    }
    // Without TLS there is no answer at all.
    let mut plain = ingest.plain().await;
    plain.write_all(b"POST /v1/progress HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    drop(plain.read_to_end(&mut bytes).await);
    assert!(!String::from_utf8_lossy(&bytes).contains("HTTP"), "{bytes:?}");

    // Another token, another certificate, and the first ones are worth nothing.
    let (_, second) = create(ingest.dir.path(), &["--namespace", "team-a"]);
    assert!(token(ingest.dir.path(), &["revoke", &id]).2);
    let until = Instant::now() + Duration::from_mins(1);
    while post(Some(&second), V1, progress("team-a/x")).await.0 != 202
        || post(Some(&team_a), V1, progress("team-a/x")).await.0 != 401
    {
        assert!(Instant::now() < until, "the change of tokens is not seen");
        tokio::time::sleep(PAUSE).await;
    }
    let next = certificate(ingest.dir.path());
    while ingest.tls(&next).await.is_err() {
        assert!(Instant::now() < until, "the change of the certificate is not seen");
        tokio::time::sleep(PAUSE).await;
    }
    assert!(ingest.tls(&trusted).await.is_err(), "the former certificate is gone");

    // What cannot be used changes nothing.
    std::fs::write(tokens(ingest.dir.path()), "nonsense").unwrap();
    ingest.told.until("the former one stays in force");
    assert_eq!(ingest.post(&next, Some(&second), V1, &progress("team-a/x")).await.0, 202);

    support::signal(&ingest.child.0, "-INT");
    assert!(ingest.child.0.wait().unwrap().success());
    ingest.told.drain();
    let said = ingest.told.so_far.join("\n");
    for token in [&team_a, &everyone, &second] {
        assert!(!said.contains(secret(token)), "a secret is in the logs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_senders_are_cut_off_and_large_and_frequent_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let trusted = certificate(dir.path());
    let (_, all) = create(dir.path(), &["--namespace", "*"]);
    let limits = [("REQUEST_SECONDS", "3"), ("BODY_BYTES", "2048"), ("CONNECTIONS", "3"), ("REQUESTS_PER_SECOND", "0.2")];
    let ingest = Ingest::start(dir, &limits);
    // As many as there may be: no handshake, half a head, half a body, and, where there is a token, one request in five seconds.
    let mut silent = ingest.plain().await;
    let mut head = ingest.tls(&trusted).await.unwrap();
    head.write_all(b"POST /v1/progress HTTP/1.1\r\nhost:").await.unwrap();
    let mut body = ingest.tls(&trusted).await.unwrap();
    let request = format!(
        "POST {V1} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {all}\r\ncontent-length: 50\r\n\r\n{{"
    );
    body.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    drop(silent.read_to_end(&mut bytes).await);
    drop(head.read_to_end(&mut bytes).await);
    bytes.clear();
    drop(body.read_to_end(&mut bytes).await);
    assert!(String::from_utf8_lossy(&bytes).starts_with("HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&bytes));

    // They held every place and are gone: others are served, and told when they come too often.
    let until = Instant::now() + Duration::from_mins(1);
    loop {
        let (status, told) = ingest.post(&trusted, Some(&all), V1, &progress("n/x")).await;
        if status == 429 {
            assert!(told["error"].as_str().unwrap().contains("requests_per_second"), "{told}");
            break;
        }
        assert!(status == 202 && Instant::now() < until, "{status}: {told}");
    }
    let large = "x".repeat(5000);
    loop {
        let (status, told) = ingest.post(&trusted, Some(&all), V1, &large).await;
        if status == 413 {
            break;
        }
        assert!(status == 429 && Instant::now() < until, "{status}: {told}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[test]
fn what_is_missing_is_told_before_anything_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let up = |pairs: &[(&str, &str)]| {
        let mut command = eadt(dir.path(), &["up", "--gpus", "nvml", "--no-view"]);
        command.envs(pairs.iter().map(|(key, value)| (format!("EADT_COLLECTOR__PROGRESS__{key}"), value)));
        let (out, err, good) = text(command);
        assert!(!good && out.is_empty(), "{out}");
        err
    };
    let err = up(&[("LISTEN", "0.0.0.0:0")]);
    assert!(err.contains("collector.progress.listen") && err.contains("eadt token create"), "{err}");
    assert!(!dir.path().join("log").exists(), "nothing is written before the settings are checked");

    let (out, err, good) = token(dir.path(), &["create", "--namespace", "team/a"]);
    assert!(!good && out.is_empty() && err.contains("\"team/a\" is no namespace"), "{err}");
    assert!(!token(dir.path(), &["list"]).2 && !tokens(dir.path()).exists());
    let (id, made) = create(dir.path(), &["--namespace", "a,b", "--expires", "90d"]);
    let (listed, _, _) = token(dir.path(), &["list"]);
    assert!(listed.contains(&id) && listed.contains("a,b") && !listed.contains(secret(&made)), "{listed}");
    let (_, err, good) = token(dir.path(), &["revoke", "nobody"]);
    assert!(!good && err.contains("there is no token nobody"), "{err}");
    let (_, err, good) = text(eadt(dir.path(), &["token", "list"]));
    assert!(!good && err.contains("collector.progress.tokens_file"), "{err}");
}
