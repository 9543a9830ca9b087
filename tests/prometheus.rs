//! A real Prometheus scrapes a real run and a dcgm-exporter's text: no panel is empty, and an alert fires when a decision is reverted.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Running, StderrLines, eadt};

/// Serves the text of a dcgm-exporter with two GPUs; returns the port. The energy counter grows with each scrape.
fn dcgm() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            if !matches!(stream.read(&mut request), Ok(1..)) {
                continue;
            }
            let mut text = String::new();
            let gauge = |name: &str, value: f64, text: &mut String| {
                writeln!(text, "# HELP {name} {name}\n# TYPE {name} gauge").expect("writing to a String");
                for gpu in 0..2 {
                    let labels = format!("gpu=\"{gpu}\",UUID=\"GPU-{gpu}\",Hostname=\"node-1\",modelName=\"NVIDIA A100\"");
                    writeln!(text, "{name}{{{labels}}} {value}").expect("writing to a String");
                }
            };
            gauge("DCGM_FI_DEV_POWER_USAGE", 312.5, &mut text);
            gauge("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1e9 + 312_500.0 * number as f64, &mut text);
            gauge("DCGM_FI_DEV_SM_CLOCK", 1410.0, &mut text);
            gauge("DCGM_FI_DEV_FB_USED", 31_000.0, &mut text);
            gauge("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.62, &mut text);
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n";
            write!(stream, "{head}Content-Length: {}\r\n\r\n{text}", text.len()).ok();
        }
    });
    port
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns Prometheus's answer; `None` while it does not listen yet.
fn get(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    writeln!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

fn query(port: u16, expression: &str) -> Result<usize, String> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat();
    let answer = get(port, &format!("/api/v1/query?query={encoded}")).ok_or("no answer")?;
    if answer["status"] != "success" {
        return Err(answer["error"].to_string());
    }
    Ok(answer["data"]["result"].as_array().map_or(0, Vec::len))
}

/// Panels that may show nothing: a simulation has no collector, and shares no GPU by the stage.
const MAY_BE_EMPTY: [&str; 4] = [
    "Shared GPUs under the stage",
    "Members measured alone",
    "Evaluations and decisions of GPU sharing",
    "Collector: sampled, sent, dropped",
];

/// The panels that show nothing, with their queries.
fn empty_panels(port: u16) -> (usize, Vec<String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana/dashboards");
    let (mut asked, mut empty) = (0, Vec::new());
    for board in ["gpus", "energy", "sharing", "pipeline"] {
        let text = std::fs::read_to_string(folder.join(format!("{board}.json"))).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "30s");
                let expression = expression.replace("$namespace", ".*").replace("$workload", ".*");
                asked += 1;
                match query(port, &expression) {
                    Ok(0) if MAY_BE_EMPTY.iter().any(|title| panel["title"] == *title) => {}
                    Ok(0) => empty.push(format!("{board}, {}: no data: {expression}", panel["title"])),
                    Ok(_) => {}
                    Err(error) => empty.push(format!("{board}, {}: {error}: {expression}", panel["title"])),
                }
            }
        }
    }
    (asked, empty)
}

#[test]
fn no_panel_is_empty_and_a_reverted_decision_raises_an_alert() {
    let dir = tempfile::tempdir().unwrap();
    // The first revert of this seed is 45 simulated minutes in.
    let mut up = eadt(dir.path(), &["up", "--speed", "240", "--seed", "0", "--no-view"]);
    up.env("EADT_METRICS__BY_WORKLOAD", "true").env("EADT_HTTP__ADDRESS", "127.0.0.1:0");
    let mut up = Running(up.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut stderr = StderrLines::by(&mut up.0);
    let line = stderr.until("metrics and health");
    let address = line.split("127.0.0.1:").nth(1).unwrap_or_else(|| panic!("{line}"));
    let address: String = address.chars().take_while(char::is_ascii_digit).collect();

    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus/rules.yml");
    let settings = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{}']\nscrape_configs:\n\
         - job_name: eadt\n  static_configs: [{{targets: ['127.0.0.1:{address}']}}]\n\
         - job_name: dcgm\n  static_configs: [{{targets: ['127.0.0.1:{}']}}]\n",
        rules.display(),
        dcgm()
    );
    std::fs::write(dir.path().join("prometheus.yml"), settings).unwrap();
    let port = free_port();
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", dir.path().join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", dir.path().join("tsdb").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .arg("--log.level=error")
        .stdout(Stdio::null())
        .spawn();
    let _prometheus = Running(prometheus.expect("prometheus: `cargo xtask test --install` brings it"));

    let firing = || {
        let alerts = get(port, "/api/v1/alerts")?["data"]["alerts"].as_array().cloned()?;
        alerts.into_iter().find(|alert| alert["labels"]["alertname"] == "EadtDecisionReverted" && alert["state"] == "firing")
    };
    let deadline = Instant::now() + Duration::from_mins(5);
    let alert = loop {
        assert!(Instant::now() < deadline, "no alert; empty: {:#?}", empty_panels(port));
        if let Some(alert) = firing() {
            break alert;
        }
        std::thread::sleep(Duration::from_millis(300));
    };
    let summary = alert["annotations"]["summary"].as_str().unwrap();
    assert!(summary.contains("eadt/") && summary.contains("was reverted"), "{alert}");
    // A busy machine may miss scrapes.
    let (asked, empty) = loop {
        let (asked, empty) = empty_panels(port);
        if empty.is_empty() || Instant::now() >= deadline {
            break (asked, empty);
        }
        std::thread::sleep(Duration::from_millis(300));
    };
    assert!(asked >= 45, "{asked}");
    assert!(empty.is_empty(), "{empty:#?}");
}
