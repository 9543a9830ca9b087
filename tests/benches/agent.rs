//! Measures the cost of the node agent on a node of eight GPUs: its own program, with intents through Apache Kafka.
//!
//! `cargo xtask bench agent [-- SECONDS [PROGRAM]]`. The program is built in release mode if none is named. First it holds
//! caps, clocks and an MPS default for SECONDS (60) of rest, in which the intent is renewed as often as an actuator does; then
//! it gets what an actuator can ask for in an hour, an intent every 15 s of which every second one changes everything, in as
//! many seconds again, at least 30. Its endpoints are asked all the while as in Kubernetes. The GPUs are of the tests' library,
//! which opens and reads a file or two at every call: that is counted, too. CPU is user and system time of all its threads,
//! memory what is resident.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::{Bus, Producer, ProducerRecord, topics};
use eadt_nvml::fake::{FakeLibrary, FakeMps};
use eadt_schemas::v1::{DeviceIntent, DeviceSetting, MpsTenant};
use eadt_schemas::{EventTime, Topic};
use eadt_tests::Kafka;

const GPUS: u32 = 8;
const NODE: &str = "node";
/// An hour's intents at one every 15 s.
const INTENTS: u32 = 240;
/// How often an actuator renews what stays as it is.
const RENEWED: Duration = Duration::from_secs(100);
/// Interval of requests like the chart's probes and a scrape, roughly.
const ASKED: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_mins(1);

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let rest = Duration::from_secs(arguments.first().map_or(Ok(60), |text| text.parse())?);
    let program = arguments.get(1).map_or_else(built, |path| Ok(PathBuf::from(path)))?;

    let (fake, mps, dir) = (FakeLibrary::with_gpus(GPUS, ""), FakeMps::new("100"), tempfile::tempdir()?);
    let kafka = Kafka::start_fast(&[])?;
    let options = KafkaOptions {
        brokers: kafka.brokers(),
        properties: [].into(),
        client_id: "bench".to_owned(),
        fetch: eadt_tests::kafka::fetch_path(),
    };
    let bus = KafkaBus::connect(options)?;
    for topic in topics::desired("eadt.", 2, 1) {
        bus.create_topic(&topic)?;
    }
    let mut asks = Asks { producer: bus.producer("bench")?, count: 0 };
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let agent = Agent::start(&program, &fake, &mps, dir.path(), &kafka.brokers(), port)?;

    asks.ask()?;
    let held = |watts: u32| (0..GPUS).all(|gpu| fake.settings(gpu).power_milliwatts == watts * 1000) && mps.default() != "100";
    let begun = Instant::now();
    while !held(asks.watts()) {
        if begun.elapsed() > PATIENCE {
            return Err("nothing is held within a minute".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // The cost of its start is not measured.
    std::thread::sleep(Duration::from_secs(5));
    let started = agent.resident("VmHWM:")?;
    println!("{GPUS} GPUs; held {:.1} s after the start, at most {started:.1} MiB by then", begun.elapsed().as_secs_f64() - 5.0);

    let before = agent.used()?;
    let mut renewed = Instant::now();
    over(rest, ASKED, || {
        if renewed.elapsed() >= RENEWED {
            renewed = Instant::now();
            asks.renew()?;
        }
        asked(port)
    })?;
    agent.print_load("at rest", before)?;

    let before = agent.used()?;
    let pace = rest.max(Duration::from_secs(30)) / INTENTS;
    let mut sent = 0_u32;
    over(pace * INTENTS, pace, || {
        sent += 1;
        if sent.is_multiple_of((ASKED.as_secs_f64() / pace.as_secs_f64()).ceil() as u32) {
            asked(port)?;
        }
        asks.ask()
    })?;
    agent.print_load(&format!("{sent} intents, of which every second one changes everything"), before)?;
    let begun = Instant::now();
    while !held(asks.watts()) {
        if begun.elapsed() > PATIENCE {
            return Err("it does not follow".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("at most {:.1} MiB in all", agent.resident("VmHWM:")?);
    Ok(())
}

/// The program in release mode.
fn built() -> Result<PathBuf, Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let build = ["build", "--quiet", "--release", "--package", "eadt-agent"];
    if !Command::new(env!("CARGO")).args(build).current_dir(&root).status()?.success() {
        return Err("the agent could not be built".into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/eadt-agent"))
}

/// Does something again and again for some time, first after one pause.
fn over(lasts: Duration, pause: Duration, mut what: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    let begun = Instant::now();
    let mut next = pause;
    while next <= lasts {
        std::thread::sleep(next.saturating_sub(begun.elapsed()));
        what()?;
        next += pause;
    }
    std::thread::sleep(lasts.saturating_sub(begun.elapsed()));
    Ok(())
}

/// Publisher of intents.
struct Asks {
    producer: Box<dyn Producer>,
    count: u32,
}

impl Asks {
    /// Every second intent asks for the same as the one before it.
    fn watts(&self) -> u32 {
        if (self.count / 2).is_multiple_of(2) { 300 } else { 400 }
    }

    fn ask(&mut self) -> Result<(), Error> {
        self.count += 1;
        self.renew()
    }

    /// Asks for the same again.
    fn renew(&mut self) -> Result<(), Error> {
        let each = |gpu| DeviceSetting {
            device: Some(format!("GPU-fake-{gpu}")),
            workload: Some(format!("training/job-{gpu}")),
            decision_id: Some(format!("training/job-{gpu}/2026-01-01T00:00:00.000000Z")),
            power_limit_watts: Some(f64::from(self.watts())),
            sm_clock_mhz: Some(if self.watts() == 300 { 1410.0 } else { 1605.0 }),
        };
        let tenant = |gpu| MpsTenant { workload: format!("training/job-{gpu}"), allows_default_change: true };
        let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let intent = DeviceIntent {
            time: EventTime::from_micros(since.as_micros() as i64),
            node: NODE.to_owned(),
            decision_id: "d".to_owned(),
            time_to_live_seconds: 300.0,
            devices: Some((0..GPUS).map(each).collect()),
            mps_default_thread_percentage: Some(self.watts() / 10),
            mps_tenants: Some((0..GPUS).map(tenant).collect()),
            ..DeviceIntent::default()
        };
        let record = ProducerRecord {
            topic: format!("eadt.{}", Topic::DeviceIntents).into(),
            partition: None,
            key: Some(NODE.as_bytes().into()),
            value: Some(serde_json::to_vec(&intent)?.into()),
            headers: Vec::new(),
        };
        self.producer.send(record)?;
        if !self.producer.flush(PATIENCE)? {
            return Err("an intent was not acknowledged".into());
        }
        Ok(())
    }
}

/// The endpoints of an agent, as kubelet and Prometheus ask them.
fn asked(port: u16) -> Result<(), Error> {
    for path in ["/healthz", "/readyz", "/metrics"] {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        write!(stream, "GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        if !answer.starts_with("HTTP/1.1 200") {
            return Err(format!("{path} answers {answer}").into());
        }
    }
    Ok(())
}

/// The program; it is killed at the end.
struct Agent {
    child: Child,
}

impl Agent {
    fn start(program: &Path, fake: &FakeLibrary, mps: &FakeMps, dir: &Path, brokers: &str, port: u16) -> Result<Self, Error> {
        let mut command = Command::new(program);
        command.args(["--kafka", brokers, "--node", NODE]).env_remove("KAFKA_BROKERS");
        for (name, value) in [
            ("HTTP__ADDRESS", format!("127.0.0.1:{port}")),
            ("AGENT__STATE_DIR", dir.join("state").display().to_string()),
            ("AGENT__LIBRARY_PATH", fake.library().display().to_string()),
            ("AGENT__MPS__ENABLED", "true".to_owned()),
            ("AGENT__MPS__PIPE_DIRECTORIES", mps.pipe_directory().display().to_string()),
            ("AGENT__MPS__CONTROL_PROGRAM", mps.program().display().to_string()),
        ] {
            command.env(format!("EADT_{name}"), value);
        }
        let log = std::fs::File::create(dir.join("agent.log"))?;
        Ok(Self { child: command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()? })
    }

    fn read(&self, file: &str) -> Result<String, Error> {
        Ok(std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id()))?)
    }

    /// CPU of its threads so far, without that of the control programs that it starts, and of these, in seconds; and now.
    fn used(&self) -> Result<(f64, f64, Instant), Error> {
        let stat = self.read("stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let of = |fields: &[&str]| fields.iter().filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0;
        Ok((of(&fields[11..13]), of(&fields[13..15]), Instant::now()))
    }

    fn resident(&self, name: &str) -> Result<f64, Error> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(name)).ok_or("no memory is reported")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<f64>()? / 1024.0)
    }

    fn print_load(&self, what: &str, (own, programs, since): (f64, f64, Instant)) -> Result<(), Error> {
        let (own_now, programs_now, now) = self.used()?;
        let seconds = (now - since).as_secs_f64();
        let share = |cpu: f64| cpu / seconds * 100.0;
        println!(
            "{what}, {seconds:.0} s: {:.2} % of a core, control programs {:.2} %; resident {:.1} MiB",
            share(own_now - own),
            share(programs_now - programs),
            self.resident("VmRSS:")?
        );
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
