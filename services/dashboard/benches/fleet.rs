//! A day of 10,000 workloads at the server: the first page, memory, and CPU with ten viewers while windows go on closing.
//!
//! `cargo bench -p eadt-dashboard --bench fleet [-- WORKLOADS [HOURS [SECONDS]]]`. Windows of a minute, each with its decision; each workload
//! has a change an hour. The day is handed to the model as events, so that what is measured is the service and not the log; then
//! windows close as fast as they do in a fleet of that size, as JSON, while ten viewers do what the page does: a stream each, and
//! the table, the chart and the GPUs again at most once a second. CPU is of the process, viewers included.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use eadt_dashboard::{DashboardModel, DashboardServer, DashboardSettings, RetentionLimits, SharedModel, SourceFacts, SourceKind};
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, GpuTelemetry, Layout, Origin,
    Workload,
};
use eadt_schemas::{EventTime, Topic};
use eadt_service::Shutdown;

const VIEWERS: usize = 10;
const GPUS: u32 = 2;

fn at(minute: i64) -> EventTime {
    EventTime::from_micros(1_767_225_600_000_000 + minute * 60_000_000)
}

fn name(number: usize) -> String {
    format!("team-{:02}/train-{number:05}", number % 40)
}

fn window(workload: &str, number: usize, minute: i64) -> EfficiencyWindow {
    let watts = 500.0 + (number % 97) as f64 + (minute % 7) as f64;
    let layout = Layout { power_limit_watts: Some(300.0 - (minute / 60 % 3) as f64 * 10.0), ..Layout::default() };
    EfficiencyWindow {
        id: format!("{workload}/tumbling/{}", at(minute)),
        workload: workload.to_owned(),
        window_start: at(minute),
        window_end: at(minute + 1),
        origin: Origin::Simulated,
        energy_joules: Some(watts * 60.0),
        energy_coverage_ratio: 1.0,
        run_seconds: 60.0,
        run_energy_joules: Some(watts * 60.0),
        run_coverage_ratio: 1.0,
        samples: Some(6_000.0),
        progress_coverage_ratio: 1.0,
        mean_power_watts: Some(watts),
        samples_per_second: Some(100.0),
        joules_per_sample: Some(watts / 100.0),
        layout: Some(layout),
        gpus: GPUS,
        ..EfficiencyWindow::default()
    }
}

fn decision(workload: &str, minute: i64, action: ControllerAction) -> Decision {
    Decision {
        id: format!("{workload}@{}/power-cap", at(minute)),
        workload: workload.to_owned(),
        time: at(minute),
        origin: Origin::Simulated,
        controller: "power-cap".to_owned(),
        controller_version: "1".to_owned(),
        action,
        validation: ChangeValidation::None,
        reason: format!("phase 2: holds {} W: 9.937 J/sample at 96 % of the throughput without a limit", 200 + minute / 10),
        expires: at(minute + 10),
        evidence: EVIDENCE.iter().map(|name| ((*name).to_owned(), 5.0 + minute as f64 / 7.0)).collect(),
        ..Decision::default()
    }
}

fn actuation(decision: &Decision, outcome: ActuationOutcome) -> Actuation {
    Actuation {
        id: format!("{}/{outcome:?}", decision.id),
        decision_id: decision.id.clone(),
        workload: decision.workload.clone(),
        time: decision.time,
        origin: decision.origin,
        outcome,
        layout: decision.to.clone(),
        ..Actuation::default()
    }
}

/// Evidence that a controller reports with each decision.
const EVIDENCE: [&str; 14] = [
    "energy_coverage_ratio",
    "gpus",
    "joules_per_sample",
    "joules_per_sample_running",
    "measured_joules_per_sample",
    "measured_windows",
    "phase",
    "power_limit_watts",
    "power_per_gpu_watts",
    "power_watts",
    "progress_coverage_ratio",
    "reference_joules_per_sample",
    "restarts_last_day",
    "samples_per_second",
];

fn sample(number: usize, gpu: u32, minute: i64) -> GpuTelemetry {
    GpuTelemetry {
        time: at(minute),
        workload: Some(name(number)),
        device: format!("GPU-{number:05}-{gpu}"),
        collector: "nvml".to_owned(),
        origin: Origin::Simulated,
        node: Some(format!("node-{:04}", number / 4)),
        gpu_index: Some(number as u32 % 4 * GPUS + gpu),
        gpu_model: Some("NVIDIA H100 80GB HBM3".to_owned()),
        power_watts: Some(260.0),
        ..GpuTelemetry::default()
    }
}

fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Returns a figure of `/proc/self/status`, in MiB.
fn memory_mib(key: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}

/// Asks for a path; the time to the last byte, and how many there were.
fn ask(address: SocketAddr, path: &str) -> std::io::Result<(Duration, usize)> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    assert!(bytes.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(300)]));
    Ok((begun.elapsed(), bytes.len()))
}

/// Requests of the first view.
const FIRST: [&str; 4] = ["/api/v1/overview", "/api/v1/fleet?sort=saving", "/api/v1/power", "/api/v1/heat-strip?sort=saving"];

/// A viewer: a stream, and with each update what its view asks for, at most once a second.
fn view(address: SocketAddr, number: usize, stop: &AtomicBool, asked: &AtomicU64) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nhost: {address}\r\n\r\n")?;
    let mut buffer = vec![0; 64 << 10];
    let mut last = Instant::now();
    // Most look at the fleet, each in an order of its own or in the usual one; some at GPUs and policies.
    let paths: &[&str] = match number {
        0..=4 => &["/api/v1/fleet?sort=saving", "/api/v1/power"],
        5 => &["/api/v1/fleet?sort=power", "/api/v1/power"],
        6 => &["/api/v1/fleet?sort=name&q=team-07", "/api/v1/power"],
        7 => &["/api/v1/sharing"],
        8 => &["/api/v1/policies?limit=50"],
        _ => &["/api/v1/workloads/team-01/train-00001", "/api/v1/workloads/team-01/train-00001/series?points=300"],
    };
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(std::io::Error::other("the stream ended")),
            Ok(_) if last.elapsed() >= Duration::from_secs(1) => {
                last = Instant::now();
                for path in paths {
                    ask(address, path)?;
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn fill(model: &mut DashboardModel, workloads: usize, minutes: i64) {
    for number in 0..workloads {
        model.declaration(&Workload {
            time: at(0),
            workload: name(number),
            origin: Origin::Simulated,
            kind: "StatefulSet".to_owned(),
            ..Workload::default()
        });
    }
    for minute in 0..minutes {
        for number in 0..workloads {
            let workload = name(number);
            model.window(&window(&workload, number, minute));
            // As a controller does: one for each window, and a change an hour, which an actuator applies.
            let action = if minute % 60 == 59 { ControllerAction::SetPowerLimit } else { ControllerAction::Maintain };
            let decision = decision(&workload, minute, action);
            model.decision(&decision);
            if action != ControllerAction::Maintain {
                for outcome in [ActuationOutcome::Applied, ActuationOutcome::Ready] {
                    model.actuation(&actuation(&decision, outcome));
                }
            }
        }
    }
    for number in 0..workloads {
        (0..GPUS).for_each(|gpu| model.telemetry(&sample(number, gpu, minutes)));
    }
    while model.refresh(usize::MAX) {}
    model.set_caught_up();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).filter(|text| text != "--bench");
    let workloads: usize = arguments.next().map_or(Ok(10_000), |text| text.parse())?;
    let hours: i64 = arguments.next().map_or(Ok(24), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(60), |text| text.parse())?;
    let minutes = hours * 60;
    let source = SourceFacts {
        kind: SourceKind::Live,
        place: "a benchmark".to_owned(),
        window_seconds: Some(60.0),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut model = DashboardModel::new(source, RetentionLimits::default());
    let begun = Instant::now();
    fill(&mut model, workloads, minutes);
    println!(
        "{workloads} workloads x {hours} h: {} windows taken in {:.1} s; resident {:.0} MiB, peak {:.0} MiB",
        model.counts().windows,
        begun.elapsed().as_secs_f64(),
        memory_mib("VmRSS:"),
        memory_mib("VmHWM:")
    );

    let shared = SharedModel::new(model);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let stop = Shutdown::new();
    let settings = DashboardSettings { address: "127.0.0.1:0".to_owned(), ..DashboardSettings::default() };
    let server = runtime.block_on(DashboardServer::bind(&settings, 0, shared.clone(), None, stop.clone()))?;
    let address = server.address();
    let serving = runtime.spawn(server.run());

    // Each time something is new, so that nothing of it was asked before.
    let mut first: Vec<Duration> = Vec::new();
    for round in 0..9_usize {
        shared.change(|model| model.window(&window(&name(round), round, minutes)));
        std::thread::sleep(Duration::from_millis(50));
        let begun = Instant::now();
        let mut requests = Vec::new();
        for path in FIRST {
            // Another spelling of the same question is another one to what keeps answers.
            let (time, bytes) = ask(address, &format!("{path}{}", fresh(path, round)))?;
            requests.push(format!("{path} {:.1} ms, {bytes} bytes", time.as_secs_f64() * 1e3));
        }
        first.push(begun.elapsed());
        if round == 0 {
            println!("first page, one request after the other: {}", requests.join("; "));
        }
    }
    first.sort();
    println!(
        "first page: median {:.1} ms, longest {:.1} ms of {}",
        ms(first[first.len() / 2]),
        ms(first[first.len() - 1]),
        first.len()
    );

    let (gone, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let quiet = under_way(&shared, workloads, minutes + 1, seconds);
    println!("windows closing, nobody looks: {quiet:.2} % of a core");
    let viewers: Vec<_> = (0..VIEWERS)
        .map(|number| {
            let (gone, asked) = (gone.clone(), asked.clone());
            std::thread::spawn(move || view(address, number, &gone, &asked))
        })
        .collect();
    std::thread::sleep(Duration::from_secs(2));
    let busy = under_way(&shared, workloads, minutes + 1 + seconds as i64, seconds);
    gone.store(true, Ordering::Relaxed);
    for viewer in viewers {
        viewer.join().expect("a viewer lives")?;
    }
    println!(
        "with {VIEWERS} viewers: {busy:.2} % of a core, viewers included, {} answers; resident {:.0} MiB, peak {:.0} MiB",
        asked.load(Ordering::Relaxed),
        memory_mib("VmRSS:"),
        memory_mib("VmHWM:")
    );
    stop.cancel();
    runtime.block_on(serving)??;
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns a parameter that makes a request unique.
fn fresh(path: &str, round: usize) -> String {
    match path {
        "/api/v1/overview" => String::new(),
        "/api/v1/heat-strip?sort=saving" => format!("&state={}", ",".repeat(round)),
        "/api/v1/power" => format!("?from_ms={}", at(0).millis() - round as i64),
        _ => format!("&limit={}", 50 + round),
    }
}

/// Windows close for some seconds, each workload's once a minute of wall time, with a decision; CPU in percent of a core.
fn under_way(shared: &SharedModel, workloads: usize, from_minute: i64, seconds: u64) -> f64 {
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let mut minute_of = vec![from_minute; workloads];
    let mut done: usize = 0;
    while begun.elapsed() < Duration::from_secs(seconds) {
        let due = (begun.elapsed().as_secs_f64() / 60.0 * workloads as f64) as usize;
        let events: Vec<(Topic, Vec<u8>)> = (done..due)
            .flat_map(|turn| {
                let number = turn % workloads;
                let (workload, minute) = (name(number), minute_of[number]);
                minute_of[number] += 1;
                let json = |event: &dyn Fn() -> serde_json::Result<Vec<u8>>| event().expect("every key is a string");
                [
                    (Topic::EfficiencyWindows, json(&|| serde_json::to_vec(&window(&workload, number, minute)))),
                    (Topic::Decisions, json(&|| serde_json::to_vec(&decision(&workload, minute, ControllerAction::Maintain)))),
                    (Topic::GpuTelemetry, json(&|| serde_json::to_vec(&sample(number, 0, minute)))),
                ]
            })
            .collect();
        done = due;
        shared.change(|model| events.iter().for_each(|(topic, value)| model.take(*topic, value)));
        while shared.change(|model| model.refresh(8)) {}
        std::thread::sleep(Duration::from_millis(200));
    }
    (cpu_seconds() - cpu) / begun.elapsed().as_secs_f64() * 100.0
}
