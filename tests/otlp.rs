//! The metrics that a receiver of OpenTelemetry gets from a run are those of its report.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Text;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::support::{eadt, json, near, text};

/// A post: the head of the request, and the report.
type Posted = (String, ExportMetricsServiceRequest);

/// Reads one request.
fn read(stream: impl Read) -> Option<Posted> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|bytes| *bytes > 0)?;
    }
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, ExportMetricsServiceRequest::decode(&*body).expect("a report")))
}

/// Answers with a status and a body that refuses nothing.
fn answer(mut stream: impl Write, status: &str) -> std::io::Result<()> {
    stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\nconnection: close\r\n\r\n").as_bytes())?;
    stream.write_all(b"\n\x02\x08\0")
}

/// A receiver that is overloaded at first: its URL, and what it gets.
fn receiver() -> (String, Receiver<Posted>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // More than there are reports.
    let (sender, requests) = sync_channel(10_000);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let status = if number == 0 { "503 Service Unavailable" } else { "200 OK" };
            let Ok(stream) = stream else { continue };
            let posted = read(&stream).expect("a request");
            // Before the answer, after which the run may be over.
            if sender.send(posted).is_err() {
                return;
            }
            answer(stream, status).expect("somebody who waits for an answer");
        }
    });
    (url, requests)
}

/// An authority: the PEM file with its certificate, and what a server needs that it has signed a certificate for `localhost` for.
fn authority(dir: &Path, name: &str) -> (PathBuf, ServerConfig) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let file = dir.join(format!("{name}.pem"));
    std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
    let server_key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = server.signed_by(&server_key, &Issuer::new(params, key)).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(server_key.serialize_der().into()))
        .unwrap();
    (file, config)
}

/// A receiver that takes https only: its port, and what it gets.
fn tls_receiver(config: ServerConfig) -> (u16, Receiver<Posted>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = Arc::new(config);
    // More than there are reports.
    let (sender, requests) = sync_channel(100);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
            let Some(posted) = read(&mut stream) else {
                // Unread bytes would reset the connection, before the client has read the alert.
                stream.sock.shutdown(Shutdown::Write).ok();
                std::io::copy(&mut stream.sock, &mut std::io::sink()).ok();
                continue;
            };
            if sender.send(posted).is_err() {
                return;
            }
            answer(&mut stream, "200 OK").expect("somebody who waits for an answer");
        }
    });
    (port, requests)
}

/// A server that takes no TLS, and answers so by HTTP: its port.
fn server_without_tls() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            assert!(stream.read(&mut [0; 16 << 10]).is_ok_and(|bytes| bytes > 0));
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    port
}

/// A short run that sends its last figures.
fn run_to(endpoint: &str, dir: &Path, variable: &str, authorities: &Path) -> Command {
    let mut up = eadt(dir, &["up", "--speed", "max", "--duration", "5m", "--no-view"]);
    up.env_remove("OTEL_EXPORTER_OTLP_CERTIFICATE").env_remove("SSL_CERT_DIR").env_remove("SSL_CERT_FILE");
    up.env("EADT_METRICS__OTLP__ENDPOINT", endpoint).env(variable, authorities);
    up
}

/// The points of a report, by instrument and by workload or GPU.
fn points(report: &ExportMetricsServiceRequest) -> BTreeMap<(String, String), f64> {
    let metrics = report.resource_metrics.iter().flat_map(|of| &of.scope_metrics).flat_map(|of| &of.metrics);
    let mut found = BTreeMap::new();
    for metric in metrics {
        let points = match &metric.data {
            Some(Data::Sum(sum)) => &sum.data_points,
            Some(Data::Gauge(gauge)) => &gauge.data_points,
            other => panic!("{other:?}"),
        };
        // Counts of what has no series are of the exporter.
        for point in points.iter().filter(|point| !point.attributes.is_empty()) {
            let text = |wanted: &str| {
                let pair = point.attributes.iter().find(|pair| pair.key == wanted)?;
                match pair.value.as_ref()?.value.as_ref()? {
                    Text::StringValue(text) => Some(text.clone()),
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(text("eadt.origin").as_deref(), Some("simulated"), "{point:?}");
            let workload = text("eadt.workload.namespace").zip(text("eadt.workload.name"));
            let whose = text("hw.id").or_else(|| workload.map(|(namespace, name)| format!("{namespace}/{name}"))).unwrap();
            let Some(Number::AsDouble(value)) = point.value else { panic!("{point:?}") };
            found.insert((metric.name.clone(), whose), value);
        }
    }
    found
}

#[test]
fn a_receiver_gets_the_figures_of_the_report_also_after_it_was_away() {
    let dir = tempfile::tempdir().unwrap();
    let (url, requests) = receiver();
    // Some seconds, so that there are reports before the last one.
    let mut up = eadt(dir.path(), &["up", "--speed", "300", "--duration", "15m", "--no-view"]);
    up.env("EADT_METRICS__OTLP__ENDPOINT", url).env("EADT_METRICS__OTLP__INTERVAL_SECONDS", "1");
    up.env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20s%C3%A9cret");
    let (_, err, good) = text(up);
    assert!(good, "{err}");
    assert!(err.contains("does not take the metrics") && err.contains("answered 503"), "{err}");
    assert!(err.contains("it works again") && !err.contains("cret"), "{err}");
    let posted: Vec<Posted> = requests.try_iter().collect();
    assert!(posted.len() > 2, "{}", posted.len());
    for (head, _) in &posted {
        let head = head.to_lowercase();
        for part in ["post /v1/metrics http/1.1", "content-type: application/x-protobuf", "api-key: a s"] {
            assert!(head.contains(part), "{part}: {head}");
        }
    }
    let last = points(&posted.last().unwrap().1);
    let report = json(eadt(dir.path(), &["report", dir.path().to_str().unwrap(), "--json"]));
    for workload in report["workloads"].as_array().unwrap() {
        let name = workload["workload"].as_str().unwrap().to_owned();
        for (instrument, field) in [("eadt.workload.energy", "energy_joules"), ("eadt.workload.samples", "samples")] {
            near(instrument, &workload[field], last[&(instrument.to_owned(), name.clone())], 1e-9);
        }
    }
    let gpus = |instrument: &str| last.iter().filter(|((name, _), value)| name == instrument && **value > 0.0).count();
    assert!(gpus("hw.power") > 0 && gpus("hw.energy") == gpus("hw.power"), "{last:#?}");
}

#[test]
fn an_https_receiver_gets_them_if_its_authority_is_named_or_known_to_the_machine() {
    let dir = tempfile::tempdir().unwrap();
    let (known, config) = authority(dir.path(), "known");
    let (port, requests) = tls_receiver(config);
    // The second is where this machine's authorities are read from.
    for variable in ["OTEL_EXPORTER_OTLP_CERTIFICATE", "SSL_CERT_FILE"] {
        let data = dir.path().join(variable);
        let (_, err, good) = text(run_to(&format!("https://localhost:{port}"), &data, variable, &known));
        assert!(good && !err.contains("does not take the metrics"), "{variable}: {err}");
        let posted: Vec<Posted> = requests.try_iter().collect();
        let (head, report) = posted.last().unwrap_or_else(|| panic!("{variable}: {err}"));
        assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
        assert!(points(report).keys().any(|(instrument, _)| instrument == "hw.power"), "{variable}: {report:?}");
    }
}

#[test]
fn a_receiver_that_is_not_trusted_gets_nothing_and_the_remedy_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (known, config) = authority(dir.path(), "known");
    let (other, _) = authority(dir.path(), "other");
    let (port, requests) = tls_receiver(config);
    let without_tls = server_without_tls();
    let in_other = format!("no authority in {} has signed its certificate", other.display());
    let named = "OTEL_EXPORTER_OTLP_CERTIFICATE";
    let missing = dir.path().join("missing.pem");
    for (case, endpoint, (variable, authorities), parts) in [
        (
            "unknown",
            format!("https://localhost:{port}"),
            ("SSL_CERT_FILE", &other),
            ["is not trusted: no authority that this machine trusts has signed its certificate", "PEM file", named],
        ),
        (
            "none",
            format!("https://localhost:{port}"),
            ("SSL_CERT_FILE", &missing),
            ["is not trusted: no authority that this machine trusts has signed its certificate", "PEM file", named],
        ),
        ("other", format!("https://localhost:{port}"), (named, &other), ["is not trusted", &in_other, named]),
        (
            "name",
            format!("https://127.0.0.1:{port}"),
            (named, &known),
            [
                "is not trusted",
                "only valid for DnsName(\"localhost\")",
                "write a name that is in its certificate into metrics.otlp.endpoint",
            ],
        ),
        (
            "http",
            format!("http://localhost:{port}"),
            (named, &known),
            ["cannot be reached", "it does not answer by HTTP", "write https://"],
        ),
        (
            "https",
            format!("https://localhost:{without_tls}"),
            (named, &known),
            ["cannot be reached", "it does not use TLS", "write http://"],
        ),
    ] {
        let (_, err, good) = text(run_to(&endpoint, &dir.path().join(case), variable, authorities));
        assert!(good, "{case}: the run goes on: {err}");
        let line = err.lines().find(|line| line.contains("does not take the metrics"));
        let line = line.unwrap_or_else(|| panic!("{case}: {err}"));
        for part in [&*endpoint, parts[0], parts[1], parts[2]] {
            assert!(line.contains(part), "{case}: {part}: {line}");
        }
        assert_eq!(err.contains("install ca-certificates"), case == "none", "{case}: {err}");
        assert_eq!(requests.try_iter().count(), 0, "{case}");
    }
}

#[test]
fn a_receiver_that_cannot_be_used_is_an_error_before_anything_runs() {
    let dir = tempfile::tempdir().unwrap();
    for (variable, value, error) in [
        (
            "EADT_METRICS__OTLP__ENDPOINT",
            "otel-collector:4318",
            "metrics.otlp.endpoint is no URL such as http://otel-collector:4318",
        ),
        ("EADT_METRICS__OTLP__INTERVAL_SECONDS", "0", "metrics.otlp.interval_seconds=0 is not between 1 and 3600"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no-secret", "header 1 has no '='"),
        (
            "OTEL_EXPORTER_OTLP_CERTIFICATE",
            "/missing/ca.pem",
            "OTEL_EXPORTER_OTLP_CERTIFICATE=/missing/ca.pem cannot be used: No such file",
        ),
    ] {
        let mut up = eadt(dir.path(), &["up", "--speed", "max", "--duration", "1m", "--no-view"]);
        up.env("EADT_METRICS__OTLP__ENDPOINT", "https://127.0.0.1:1").env(variable, value).stdout(Stdio::null());
        let (_, err, good) = text(up);
        assert!(!good && err.contains(error), "{variable}={value}: {err}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{variable}: nothing was begun");
    }
}
