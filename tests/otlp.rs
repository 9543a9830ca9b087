//! The metrics that a receiver of OpenTelemetry gets from a run are those of its report.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, sync_channel};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Text;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use prost::Message;

use crate::support::{eadt, json, near, text};

/// What was posted: the head of the request, and the report.
type Posted = (String, ExportMetricsServiceRequest);

/// Reads one request.
fn read(stream: &TcpStream) -> Option<Posted> {
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
fn answer(mut stream: TcpStream, status: &str) -> std::io::Result<()> {
    stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\nconnection: close\r\n\r\n").as_bytes())?;
    stream.write_all(b"\n\x02\x08\0")
}

/// A receiver that is overloaded at first: its URL, and what it gets.
fn receiver() -> (String, Receiver<Posted>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // More than there are reports.
    let (tell, told) = sync_channel(10_000);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let status = if number == 0 { "503 Service Unavailable" } else { "200 OK" };
            let Ok(stream) = stream else { continue };
            let posted = read(&stream).expect("a request");
            // Before the answer, after which the run may be over.
            if tell.send(posted).is_err() {
                return;
            }
            answer(stream, status).expect("somebody who waits for an answer");
        }
    });
    (url, told)
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
        for point in points {
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
    let (url, told) = receiver();
    // Some seconds, so that there are reports before the last one.
    let mut up = eadt(dir.path(), &["up", "--speed", "300", "--duration", "15m", "--no-view"]);
    up.env("EADT_METRICS__OTLP__ENDPOINT", url).env("EADT_METRICS__OTLP__INTERVAL_SECONDS", "1");
    up.env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20s%C3%A9cret");
    let (_, said, good) = text(up);
    assert!(good, "{said}");
    assert!(said.contains("does not take the metrics") && said.contains("answered 503"), "{said}");
    assert!(said.contains("it works again") && !said.contains("cret"), "{said}");
    let posted: Vec<Posted> = told.try_iter().collect();
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
    ] {
        let mut up = eadt(dir.path(), &["up", "--speed", "max", "--duration", "1m", "--no-view"]);
        up.env("EADT_METRICS__OTLP__ENDPOINT", "http://127.0.0.1:1").env(variable, value).stdout(Stdio::null());
        let (_, said, good) = text(up);
        assert!(!good && said.contains(error), "{variable}={value}: {said}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{variable}: nothing was begun");
    }
}
