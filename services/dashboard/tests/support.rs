//! Events of made-up workloads, a served model, and a plain HTTP client.

use std::net::SocketAddr;
use std::sync::Arc;

use eadt_cluster::PolicyWriter;
use eadt_dashboard::{
    AsOfReader, DashboardModel, DashboardServer, DashboardSettings, LogSource, OtherRun, ReadingProgress, RetentionLimits,
    SharedModel, SourceFacts, SourceKind,
};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, Layout, Origin, Workload,
};
use eadt_service::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Names that a page must show and not obey.
pub const HOSTILE: [&str; 3] = ["<img src=x onerror=alert(1)>", "a\u{202e}b\u{1b}[2J\"'&", "ns/../../etc"];

pub fn at(minute: i64) -> EventTime {
    EventTime::from_micros(1_767_225_600_000_000 + minute * 60_000_000)
}

pub fn facts() -> SourceFacts {
    SourceFacts { kind: SourceKind::Live, place: "a test".to_owned(), window_seconds: Some(60.0), version: "0".to_owned() }
}

pub fn model() -> DashboardModel {
    DashboardModel::new(facts(), RetentionLimits::default())
}

/// Returns a window of so many joules for 6,000 samples.
pub fn window(workload: &str, minute: i64, joules: f64, layout: &Layout) -> EfficiencyWindow {
    EfficiencyWindow {
        id: format!("{workload}/{minute}"),
        workload: workload.to_owned(),
        window_start: at(minute),
        window_end: at(minute + 1),
        origin: Origin::Simulated,
        energy_joules: Some(joules),
        energy_coverage_ratio: 1.0,
        run_seconds: 60.0,
        run_energy_joules: Some(joules),
        run_coverage_ratio: 1.0,
        samples: Some(6000.0),
        progress_coverage_ratio: 1.0,
        mean_power_watts: Some(joules / 60.0),
        samples_per_second: Some(100.0),
        joules_per_sample: Some(joules / 6000.0),
        layout: Some(layout.clone()),
        gpus: 2,
        ..EfficiencyWindow::default()
    }
}

pub fn capped(watts: f64) -> Layout {
    Layout { power_limit_watts: Some(watts), ..Layout::default() }
}

pub fn decision(
    workload: &str,
    minute: i64,
    action: ControllerAction,
    validation: ChangeValidation,
    concerns: Option<&str>,
) -> Decision {
    Decision {
        id: format!("{workload}/d{minute}"),
        workload: workload.to_owned(),
        time: at(minute),
        origin: Origin::Simulated,
        controller: "power-cap".to_owned(),
        action,
        validation,
        reason: format!("decided at minute {minute}"),
        to: capped(300.0),
        evidence: [("joules_per_sample".to_owned(), 6.0)].into(),
        concerns: concerns.map(str::to_owned),
        ..Decision::default()
    }
}

pub fn actuation(workload: &str, minute: i64, decision_id: &str, outcome: ActuationOutcome) -> Actuation {
    Actuation {
        id: format!("{decision_id}/{minute}/{outcome:?}"),
        decision_id: decision_id.to_owned(),
        workload: workload.to_owned(),
        time: at(minute),
        origin: Origin::Simulated,
        outcome,
        layout: capped(300.0),
        ..Actuation::default()
    }
}

/// Ten windows, a cap that saves a fifth, ten more; then a change that is taken back.
pub fn story(workload: &str, into: &mut impl FnMut(Event)) {
    let declared = Workload {
        time: at(0),
        workload: workload.to_owned(),
        origin: Origin::Simulated,
        kind: "StatefulSet".into(),
        ..Workload::default()
    };
    into(Event::Workload(declared));
    (0..10).for_each(|minute| into(Event::Window(window(workload, minute, 36_000.0, &Layout::default()))));
    let cap = decision(workload, 10, ControllerAction::SetPowerLimit, ChangeValidation::Pending, None);
    into(Event::Decision(cap.clone()));
    into(Event::Actuation(actuation(workload, 10, &cap.id, ActuationOutcome::Applied)));
    into(Event::Actuation(actuation(workload, 10, &cap.id, ActuationOutcome::Ready)));
    (10..20).for_each(|minute| into(Event::Window(window(workload, minute, 28_800.0, &capped(300.0)))));
    into(Event::Decision(decision(workload, 20, ControllerAction::Maintain, ChangeValidation::Kept, Some(&cap.id))));
    let tried = decision(workload, 21, ControllerAction::SetPowerLimit, ChangeValidation::Pending, None);
    into(Event::Decision(tried.clone()));
    into(Event::Decision(decision(workload, 24, ControllerAction::Revert, ChangeValidation::Failed, Some(&tried.id))));
}

#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "a handful in tests")]
pub enum Event {
    Workload(Workload),
    Window(EfficiencyWindow),
    Decision(Decision),
    Actuation(Actuation),
}

pub fn take(model: &mut DashboardModel, event: &Event) {
    match event {
        Event::Workload(event) => model.declaration(event),
        Event::Window(event) => model.window(event),
        Event::Decision(event) => model.decision(event),
        Event::Actuation(event) => model.actuation(event),
    }
}

/// A served model; ends when dropped.
pub struct Served {
    pub address: SocketAddr,
    pub model: SharedModel,
    stop: Shutdown,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub async fn serve(model: DashboardModel, settings: DashboardSettings) -> Served {
    serve_with(model, settings, None).await
}

/// With what changes policies.
pub async fn serve_with(model: DashboardModel, settings: DashboardSettings, editor: Option<Arc<dyn PolicyWriter>>) -> Served {
    serve_as(model, settings, |server| match editor {
        Some(editor) => server.with_editor(editor),
        None => server,
    })
    .await
}

/// With earlier moments.
pub async fn serve_past(model: DashboardModel, past: AsOfReader) -> Served {
    serve_as(model, DashboardSettings::default(), |server| server.with_past(past)).await
}

/// With a record that is still read.
pub async fn serve_reading(model: DashboardModel, reading: ReadingProgress) -> Served {
    serve_as(model, DashboardSettings::default(), |server| server.with_reading(reading)).await
}

/// With other runs to compare with.
pub async fn serve_runs(model: DashboardModel, runs: Vec<OtherRun>) -> Served {
    serve_as(model, DashboardSettings::default(), |server| server.with_runs(runs)).await
}

/// With a log to follow.
pub async fn serve_log(model: DashboardModel, log: LogSource) -> Served {
    serve_as(model, DashboardSettings::default(), |server| server.with_log(log)).await
}

async fn serve_as(
    model: DashboardModel,
    settings: DashboardSettings,
    prepare: impl FnOnce(DashboardServer) -> DashboardServer,
) -> Served {
    let (model, stop) = (SharedModel::new(model), Shutdown::new());
    let settings = DashboardSettings { address: "127.0.0.1:0".to_owned(), ..settings };
    let server = DashboardServer::bind(&settings, 0, model.clone(), None, stop.clone()).await.expect("a free port");
    let server = prepare(server);
    let address = server.address();
    tokio::spawn(server.run());
    Served { address, model, stop }
}

/// An answer: status, head, body.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }
}

impl Served {
    pub async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let host =
            if headers.iter().any(|(name, _)| *name == "host") { String::new() } else { format!("host: {}\r\n", self.address) };
        let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
        let length = body.len();
        let request =
            format!("{method} {path} HTTP/1.1\r\n{host}{more}connection: close\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head, body: bytes[end + 4..].to_vec() }
    }

    /// Reads a stream of events until this text has come.
    pub async fn events_until(&self, headers: &[(&str, &str)], wanted: &str) -> String {
        self.events(headers).await.until(wanted).await.to_owned()
    }

    /// Returns a stream of events.
    pub async fn events(&self, headers: &[(&str, &str)]) -> Events {
        self.stream("/api/v1/events", headers).await
    }

    /// Returns an answer that goes on.
    pub async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> Events {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{more}\r\n", self.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        Events { stream, text: String::new() }
    }
}

/// A stream of events, and the text received from it.
pub struct Events {
    stream: TcpStream,
    text: String,
}

impl Events {
    /// Reads on until this text has come; everything that has.
    pub async fn until(&mut self, wanted: &str) -> &str {
        let mut buffer = vec![0; 16 << 10];
        while !self.text.contains(wanted) {
            let read = tokio::time::timeout(std::time::Duration::from_mins(2), self.stream.read(&mut buffer)).await;
            let read = read.unwrap_or_else(|_| panic!("{wanted:?} did not come: {}", self.text)).unwrap();
            assert!(read > 0, "ended: {}", self.text);
            self.text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
        &self.text
    }
}
