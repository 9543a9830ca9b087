//! One question, one broker, one topic, and every answer checked: the processor beside Kafka Streams, Flink and Bytewax.
//!
//! `cargo xtask bench race [-- SECONDS [ROUNDS [SEED [NAME,…]]]]`. The question: joules and samples of each of eight workloads in windows of ten
//! seconds, out of the energy counters of 512 GPUs at 10 Hz and the progress of eight jobs at 1 Hz, counters cut at the edges of windows.
//! Beside it the archiver and a script by confluent-kafka and pyarrow write every record to Parquet.
//! The answers of all are compared with one that is computed here while the topics are filled. Each runs as a process of its own, in turns;
//! CPU is what the kernel counts for it with all its threads and its start, memory its highest. Sources of the peers: `tests/race`.
//! Five million events (977 seconds) and five rounds with the same answers write `docs/evidence/race.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Maker, PARTITIONS, WORKLOADS, send, workload};
use eadt_bus::kafka::{FetchPath, KafkaBus, KafkaOptions};
use eadt_bus::{Bus, IsolationLevel, PollEvent, StartOffset, TopicPartition, TopicSpec, topics};
use eadt_core::settings::SECOND;
use eadt_schemas::fnv::Fnv1a;
use eadt_schemas::v1::{EfficiencyWindow, WindowKind};
use eadt_schemas::{EventTime, Topic};
use eadt_tests::{Kafka, cache, kafka, root};
use processing::{Error, PATIENCE, WINDOW};
use serde::Deserialize;

#[path = "../../services/processor/benches/common/mod.rs"]
#[allow(dead_code, reason = "each benchmark uses its part")]
mod common;
#[allow(dead_code, reason = "each benchmark uses its part")]
mod processing;

const PREFIX: &str = "race.";
const GPUS: usize = 512;
const HERTZ: u64 = 10;
const BASE: i64 = 1_700_000_040 * SECOND;
/// Requirements of a run that is written to the page.
const LEAST_EVENTS: u64 = 5_000_000;
const LEAST_ROUNDS: usize = 5;
const BYTEWAX: [&str; 1] = ["bytewax[kafka]==0.21.1"];
const PYARROW: [&str; 2] = ["confluent-kafka==2.16.1", "pyarrow==26.0.1"];
const JVM: [&str; 5] =
    ["-Xms1g", "-Xmx1g", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"];
/// Flink looks into these by reflection.
const OPENED: [&str; 3] = [
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.time=ALL-UNNAMED",
];

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let text = |i: usize| arguments.get(i).map(String::as_str).unwrap_or_default();
    let number = |i: usize, default: u64| arguments.get(i).map_or(Ok(default), |text| text.parse());
    if text(0) == "child" {
        return child(text(1), text(2), text(3), number(4, 0)?, text(5));
    }
    let (seconds, rounds, seed) = (number(0, 1000)?, number(1, 5)?, number(2, 1)?);
    let wanted: Vec<&str> = text(3).split(',').filter(|name| !name.is_empty()).collect();
    let runners: Vec<Runner> = RUNNERS.into_iter().filter(|runner| wanted.is_empty() || wanted.contains(&runner.name)).collect();
    let mut race = Race::prepare(seconds, seed, &runners)?;
    for round in 0..rounds as usize {
        for turn in 0..runners.len() {
            race.run(&runners[(turn + round) % runners.len()], round)?;
        }
    }
    let report = race.report(&runners)?;
    println!("{report}");
    let whole = wanted.is_empty() && race.events() >= LEAST_EVENTS && rounds as usize >= LEAST_ROUNDS;
    if whole && race.wrong.is_empty() {
        fs::write(root().join("docs/evidence/race.md"), report)?;
    }
    if race.wrong.is_empty() { Ok(()) } else { Err(race.wrong.join("\n").into()) }
}

/// One contestant.
#[derive(Debug, Clone, Copy)]
struct Runner {
    name: &'static str,
    shown: &'static str,
    guarantee: &'static str,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Processor(FetchPath),
    Reader(FetchPath),
    Streams,
    Flink,
    Bytewax,
    Archiver(FetchPath),
    Pyarrow,
}

impl How {
    /// Whether it writes Parquet, and no windows.
    const fn archives(self) -> bool {
        matches!(self, Self::Archiver(_) | Self::Pyarrow)
    }
}

const RUNNERS: [Runner; 10] = [
    Runner { name: "native", shown: "EADT, native", guarantee: "exactly once", how: How::Processor(FetchPath::Native) },
    Runner {
        name: "librdkafka",
        shown: "EADT, librdkafka",
        guarantee: "exactly once",
        how: How::Processor(FetchPath::Librdkafka),
    },
    Runner { name: "streams", shown: "Kafka Streams", guarantee: "exactly once (v2)", how: How::Streams },
    Runner { name: "flink", shown: "Apache Flink", guarantee: "exactly once", how: How::Flink },
    Runner { name: "bytewax", shown: "Bytewax", guarantee: "at least once", how: How::Bytewax },
    Runner { name: "read-native", shown: "only reading, native", guarantee: "", how: How::Reader(FetchPath::Native) },
    Runner { name: "read-librdkafka", shown: "only reading, librdkafka", guarantee: "", how: How::Reader(FetchPath::Librdkafka) },
    Runner {
        name: "archive-native",
        shown: "EADT archiver, native",
        guarantee: "each offset in one file",
        how: How::Archiver(FetchPath::Native),
    },
    Runner {
        name: "archive-librdkafka",
        shown: "EADT archiver, librdkafka",
        guarantee: "each offset in one file",
        how: How::Archiver(FetchPath::Librdkafka),
    },
    Runner { name: "archive-pyarrow", shown: "confluent-kafka and pyarrow", guarantee: "at least once", how: How::Pyarrow },
];

/// Joules and samples of a window.
type Sums = [f64; 2];
/// A workload, and when the window begins.
type Place = (String, i64);
type Windows = BTreeMap<Place, Sums>;

/// Resources that one process used.
#[derive(Debug, Clone, Copy)]
struct Used {
    cpu: f64,
    wall: f64,
    peak_mib: f64,
    load: f64,
}

struct Race {
    kafka: Kafka,
    bus: KafkaBus,
    seconds: u64,
    seed: u64,
    expected: Windows,
    /// Sums of all energy counters and of all counters of samples.
    totals: Sums,
    folder: tempfile::TempDir,
    peers: Peers,
    used: BTreeMap<&'static str, Vec<Used>>,
    wrong: Vec<String>,
}

/// Folders of the peers' jars, classes and packages.
#[derive(Debug, Default)]
struct Peers {
    streams: Option<String>,
    flink: Option<String>,
    bytewax: Option<PathBuf>,
    pyarrow: Option<PathBuf>,
}

impl Peers {
    fn fetch(runners: &[Runner]) -> Result<Self, Error> {
        let has = |how: How| runners.iter().any(|runner| runner.how == how);
        Ok(Self {
            streams: has(How::Streams).then(|| class_path("streams")).transpose()?,
            flink: has(How::Flink).then(|| class_path("flink")).transpose()?,
            bytewax: has(How::Bytewax).then(|| packages("race-bytewax-0.21.1", &BYTEWAX)).transpose()?,
            // The archiver's files are read by it, too.
            pyarrow: runners
                .iter()
                .any(|runner| runner.how.archives())
                .then(|| packages("race-pyarrow-26.0.1", &PYARROW))
                .transpose()?,
        })
    }
}

fn source(name: &str) -> PathBuf {
    root().join("tests/race").join(name)
}

/// Fetches a peer's jars and compiles what it runs; the class path.
fn class_path(peer: &str) -> Result<String, Error> {
    let pom = source(peer).join("pom.xml");
    let text = fs::read_to_string(&pom)?;
    let version = version_in(&text);
    let jars = cache::once(&format!("race-{peer}-{version}"), |unfinished| {
        let mut maven = Command::new("mvn");
        maven.args(["-B", "-q", "-f"]).arg(&pom).args(["dependency:copy-dependencies", "-DincludeScope=runtime"]);
        succeed(maven.arg(format!("-DoutputDirectory={}", unfinished.display())))
    })?;
    let classes = cache::folder()?.join(format!("race-{peer}-classes"));
    cache::remove(&classes)?;
    let mut compiler = Command::new("javac");
    compiler.args(["-nowarn", "-cp"]).arg(format!("{}/*", jars.display())).arg("-d").arg(&classes);
    succeed(compiler.arg(source("common/Event.java")).arg(source(peer).join("Race.java")))?;
    Ok(format!("{}/*:{}", jars.display(), classes.display()))
}

fn packages(name: &str, wanted: &[&str]) -> Result<PathBuf, Error> {
    Ok(cache::once(name, |unfinished| {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--target"]).arg(unfinished).args(wanted);
        succeed(&mut pip)
    })?)
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    let printed = [output.stdout, output.stderr].concat();
    anyhow::ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&printed));
    Ok(())
}

fn version_in(pom: &str) -> &str {
    pom.split("<peer.version>").nth(1).and_then(|rest| rest.split('<').next()).unwrap_or_default()
}

impl Race {
    fn prepare(seconds: u64, seed: u64, runners: &[Runner]) -> Result<Self, Error> {
        let peers = Peers::fetch(runners)?;
        let kafka = Kafka::start_fast(&[])?;
        let bus = connect(&kafka.brokers(), FetchPath::Librdkafka)?;
        let began = Instant::now();
        let (expected, totals) = fill(&bus, seconds, seed)?;
        let folder = tempfile::tempdir()?;
        let (used, wrong) = (BTreeMap::new(), Vec::new());
        let race = Self { kafka, bus, seconds, seed, expected, totals, folder, peers, used, wrong };
        println!("{} events of seed {seed}, filled in {:.1} s", race.events(), began.elapsed().as_secs_f64());
        println!("reference: {} windows, digest {:016x}", race.expected.len(), digest(&race.expected));
        Ok(race)
    }

    fn events(&self) -> u64 {
        WORKLOADS as u64 + self.seconds * (GPUS as u64 * HERTZ + WORKLOADS as u64)
    }

    /// Returns the required content of an archive's files, as `tests/race/archive/check.py` prints it.
    fn expected_rows(&self) -> String {
        let [joules, samples] = self.totals.map(python_exponent);
        format!("{0} rows, {0} places, {0} ids, {0} times, {joules} J, {samples} samples", self.events())
    }

    fn run(&mut self, runner: &Runner, round: usize) -> Result<(), Error> {
        let output = format!("{PREFIX}out.{}.{round}", runner.name);
        let mut command = self.command(runner, &output)?;
        let used = measure(&mut command)?;
        let wrong = self.what_is_wrong(runner, &output)?;
        let answered = match (runner.how, &wrong) {
            (How::Reader(_), _) => "",
            (_, None) => ", the reference's answer",
            (_, Some(_)) => ", ANOTHER ANSWER",
        };
        println!(
            "round {}, {}: {:.3} M events/CPU-s, CPU {:.2} s, wall {:.2} s, peak {:.1} MiB, load {:.1}{answered}",
            round + 1,
            runner.shown,
            self.events() as f64 / used.cpu / 1e6,
            used.cpu,
            used.wall,
            used.peak_mib,
            used.load
        );
        self.wrong.extend(wrong.map(|wrong| format!("{}: {wrong}", runner.shown)));
        self.used.entry(runner.name).or_default().push(used);
        Ok(())
    }

    /// Compares an answer with the reference's; `None`: the same, or there is none to give.
    fn what_is_wrong(&self, runner: &Runner, output: &str) -> Result<Option<String>, Error> {
        let answer = match runner.how {
            How::Reader(_) => return Ok(None),
            How::Archiver(_) | How::Pyarrow => return self.what_is_wrong_in_files(&self.folder.path().join(output)),
            How::Processor(_) => self.answer(&format!("{PREFIX}{}", Topic::EfficiencyWindows), PARTITIONS, of_processor)?,
            _ => self.answer(output, 1, of_peer)?,
        };
        if digest(&answer) == digest(&self.expected) {
            return Ok(None);
        }
        let differs =
            self.expected.iter().find(|(place, sums)| answer.get(*place).is_none_or(|found| shown(found) != shown(sums)));
        let found = differs.and_then(|(place, _)| answer.get(place));
        Ok(Some(format!("{} windows; instead of {differs:?} {found:?}", answer.len())))
    }

    /// The same of an archive, which is deleted.
    fn what_is_wrong_in_files(&self, folder: &Path) -> Result<Option<String>, Error> {
        let mut python = self.python();
        let output = python.arg(source("archive/check.py")).arg(folder).output()?;
        let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        fs::remove_dir_all(folder)?;
        let expected = self.expected_rows();
        let wrong = || format!("files with {found}{} instead of {expected}", String::from_utf8_lossy(&output.stderr));
        Ok((found != expected).then(wrong))
    }

    fn python(&self) -> Command {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", self.peers.pyarrow.as_deref().unwrap_or(Path::new("")));
        python
    }

    fn command(&self, runner: &Runner, output: &str) -> Result<Command, Error> {
        let (brokers, events) = (self.kafka.brokers(), self.events().to_string());
        let state = self.folder.path().join(output);
        let java = |path: &Option<String>, more: &[&str]| {
            let mut java = Command::new("java");
            java.args(JVM).args(more).arg("-cp").arg(path.as_deref().unwrap_or_default()).arg("Race");
            java
        };
        // The peers leave the table of workloads out.
        let peers_events = (self.events() - WORKLOADS as u64).to_string();
        let mut command = match runner.how {
            How::Processor(path) => {
                self.forget()?;
                return own("fold", path, &brokers, output, &events, &self.windows().to_string());
            }
            How::Reader(path) => return own("read", path, &brokers, output, &events, ""),
            How::Archiver(path) => {
                // It would archive the processor's outputs, too.
                self.forget()?;
                return own("archive", path, &brokers, output, &events, &state.to_string_lossy());
            }
            How::Pyarrow => {
                let mut python = self.python();
                python.arg(source("archive/archive.py")).args([&brokers, PREFIX, output, &events]).arg(state);
                return Ok(python);
            }
            How::Streams => java(&self.peers.streams, &[]),
            How::Flink => java(&self.peers.flink, &OPENED),
            How::Bytewax => {
                let mut python = Command::new("python3");
                python.env("PYTHONPATH", self.peers.bytewax.as_deref().unwrap_or(Path::new("")));
                python.arg(source("bytewax/race.py"));
                python
            }
        };
        let settings = [("retention.ms".to_owned(), "-1".to_owned())].into();
        self.bus.create_topic(&TopicSpec { name: output.into(), partitions: 1, replication: 1, settings })?;
        command.args([&brokers, PREFIX, output, &peers_events]).arg(state);
        Ok(command)
    }

    /// Complete windows.
    fn windows(&self) -> u64 {
        (self.seconds - 1) / WINDOW
    }

    /// Deletes the outputs of an earlier processor, and makes the topics anew.
    fn forget(&self) -> Result<(), Error> {
        let outputs = r"race\.(processor-state|efficiency\.windows|decisions|dead-letters)\.v1";
        self.kafka.tool("org.apache.kafka.tools.TopicCommand", &["--delete", "--topic", outputs])?;
        let began = Instant::now();
        loop {
            let there = self.bus.topics(PREFIX)?;
            let missing = topics::desired(PREFIX, PARTITIONS, 1);
            let missing: Vec<_> = missing.iter().filter(|topic| there.iter().all(|there| there.name != topic.name)).collect();
            if missing.is_empty() {
                return Ok(());
            }
            for topic in missing {
                // One that is being deleted is still there for a moment.
                drop(self.bus.create_topic(topic));
            }
            if began.elapsed() > Duration::from_mins(1) {
                return Err("the outputs' topics cannot be made anew".into());
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn answer(&self, topic: &str, partitions: i32, read: fn(&[u8]) -> Option<(Place, Sums)>) -> Result<Windows, Error> {
        let from: Vec<_> = (0..partitions).map(|p| (TopicPartition::new(topic, p), StartOffset::Earliest)).collect();
        let mut reader = self.bus.reader(&from, IsolationLevel::ReadCommitted)?;
        let (mut polled, mut ends, mut windows, began) = (Vec::new(), 0, Windows::new(), Instant::now());
        while ends < partitions {
            reader.poll(1000, Duration::from_millis(100), &mut polled)?;
            for item in polled.drain(..) {
                match item {
                    PollEvent::Record(record) => windows.extend(record.value.as_deref().and_then(read)),
                    PollEvent::End { .. } => ends += 1,
                    _ => {}
                }
            }
            if began.elapsed() > PATIENCE {
                return Err(format!("{topic} cannot be read to its end").into());
            }
        }
        // The last window is not complete in any engine.
        let end = BASE + (self.windows() * WINDOW) as i64 * SECOND;
        windows.retain(|(_, start), _| *start < end);
        Ok(windows)
    }

    /// The runners of one question, beside the one of this name; nothing if none of them was run.
    fn write_table(&self, text: &mut String, runners: &[Runner], is_wanted: fn(How) -> bool, base: &str) -> Result<(), Error> {
        if !runners.iter().any(|runner| is_wanted(runner.how)) {
            return Ok(());
        }
        let beside_whom = RUNNERS.iter().find(|runner| runner.name == base).map_or("", |runner| runner.shown);
        writeln!(text, "| | guarantee | M events/CPU-s | CPU s | wall s | peak MiB | CPU beside {beside_whom} |")?;
        writeln!(text, "|---|---|---|---|---|---|---|")?;
        let median = |name: &str| middle(self.used.get(name).into_iter().flatten().map(|used| used.cpu).collect());
        for Runner { name, shown, guarantee, .. } in runners.iter().filter(|runner| is_wanted(runner.how)) {
            let Some(used) = self.used.get(name) else { continue };
            let of = |figure: &dyn Fn(&Used) -> f64, digits| spread(used.iter().map(figure).collect(), digits);
            let (beside, rate) = (median(name) / median(base), of(&|used| self.events() as f64 / used.cpu / 1e6, 3));
            let (cpu, wall, peak) = (of(&|used| used.cpu, 1), of(&|used| used.wall, 1), of(&|used| used.peak_mib, 0));
            let beside = if beside.is_finite() { format!("{beside:.2} ×") } else { "–".to_owned() };
            writeln!(text, "| {shown} | {guarantee} | {rate} | {cpu} | {wall} | {peak} | {beside} |")?;
        }
        Ok(())
    }

    fn report(&self, runners: &[Runner]) -> Result<String, Error> {
        let mut text = String::new();
        let versions = ["streams", "flink"].map(|peer| fs::read_to_string(source(peer).join("pom.xml")).unwrap_or_default());
        let events = self.events();
        let rounds = self.used.values().map(Vec::len).max().unwrap_or(0);
        writeln!(text, "# The race: one question, one broker\n")?;
        writeln!(
            text,
            "For engineers who want to know what the processor costs beside other stream processors. Written by `cargo xtask bench race`.\n"
        )?;
        writeln!(
            text,
            "Joules and samples of each of {WORKLOADS} workloads in windows of {WINDOW} s, out of the energy counters of {GPUS} GPUs at {HERTZ} Hz and the\nprogress of {WORKLOADS} jobs at 1 Hz: {events} events of seed {} in {PARTITIONS} partitions of one Apache Kafka broker on the same cores,\nlz4, seven headers each, values of about 500 bytes. All answers but those of who only reads were compared with one that was computed\nwhile the topics were filled: {} windows, digest `{:016x}`, {}.\n",
            self.seed,
            self.expected.len(),
            digest(&self.expected),
            if self.wrong.is_empty() { "the same in every run" } else { "NOT the same in every run" }
        )?;
        self.write_table(&mut text, runners, |how| !how.archives(), "native")?;
        if runners.iter().any(|runner| runner.how.archives()) {
            writeln!(
                text,
                "\nEvery record of the same topics to Parquet, sorted by event time, zstd: all fields and the CloudEvents attributes as columns. Rows, places in the log,\nthe number of attributes (id and time) and sums were compared: {}.\n",
                self.expected_rows()
            )?;
            self.write_table(&mut text, runners, How::archives, "archive-native")?;
        }
        let loads = spread(self.used.values().flatten().map(|used| used.load).collect(), 1);
        writeln!(
            text,
            "\nMedian of {rounds} rounds, in turns, and (least to most). CPU and memory are those of the whole process, its start and its Java\nmachine included; the broker's are not. EADT does more than is asked of the others: it also decides, keeps per-GPU sums of eight\ngauges, and writes decisions. Load of the machine (1 minute) at the start of each run: {loads}.\n"
        )?;
        writeln!(
            text,
            "With: EADT {}, Apache Kafka {}, Kafka Streams {}, Flink {}, {}, {}, {}; Linux {}, {} cores.",
            env!("CARGO_PKG_VERSION"),
            kafka::version(),
            version_in(&versions[0]),
            version_in(&versions[1]),
            BYTEWAX[0],
            PYARROW.join(", "),
            first_line("java", "-version"),
            first_line("uname", "-r"),
            std::thread::available_parallelism().map_or(0, std::num::NonZero::get)
        )?;
        Ok(text)
    }
}

fn first_line(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output().map(|output| [output.stdout, output.stderr].concat());
    String::from_utf8_lossy(&output.unwrap_or_default()).lines().next().unwrap_or_default().replace('"', "")
}

fn own(what: &str, path: FetchPath, brokers: &str, name: &str, events: &str, more: &str) -> Result<Command, Error> {
    let mut command = Command::new(std::env::current_exe()?);
    let path = if path == FetchPath::Native { "native" } else { "librdkafka" };
    command.args(["child", what, brokers, name, events, more]).env("EADT_BUS__FETCH", path);
    Ok(command)
}

/// `more`: the number of windows, or the archive's folder.
fn child(what: &str, brokers: &str, name: &str, events: u64, more: &str) -> Result<(), Error> {
    let bus = connect(brokers, kafka::fetch_path())?;
    match what {
        "fold" => processing::windows(Arc::new(bus), PREFIX, name, events, more.parse()?),
        "read" => read(&bus, events),
        "archive" => processing::archive(Arc::new(bus), PREFIX, name, events, more),
        other => Err(format!("no {other}").into()),
    }
}

fn connect(brokers: &str, fetch: FetchPath) -> Result<KafkaBus, Error> {
    let properties = BTreeMap::new();
    Ok(KafkaBus::connect(KafkaOptions { brokers: brokers.to_owned(), properties, client_id: "race".to_owned(), fetch })?)
}

/// Takes every record and does nothing with it.
fn read(bus: &KafkaBus, events: u64) -> Result<(), Error> {
    let all = [Topic::GpuTelemetry, Topic::TrainingProgress, Topic::Workloads];
    let places = all.iter().flat_map(|topic| (0..PARTITIONS).map(move |p| TopicPartition::new(format!("{PREFIX}{topic}"), p)));
    let from: Vec<_> = places.map(|at| (at, StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let (mut polled, mut count, began) = (Vec::new(), 0, Instant::now());
    while count < events {
        reader.poll(4096, Duration::from_millis(100), &mut polled)?;
        count += polled.drain(..).filter(|item| matches!(item, PollEvent::Record(_))).count() as u64;
        assert!(began.elapsed() < PATIENCE, "only {count} records came");
    }
    Ok(())
}

/// Runs a process to its end.
fn measure(command: &mut Command) -> Result<Used, Error> {
    let load = fs::read_to_string("/proc/loadavg")?.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
    let (before, began) = (cpu_of_children()?, Instant::now());
    let mut process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
    let mut peak_mib = 0.0_f64;
    let status = loop {
        let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        peak_mib = peak_mib.max(peak.unwrap_or(0.0) / 1024.0);
        if let Some(status) = process.try_wait()? {
            break status;
        }
        if began.elapsed() > PATIENCE {
            process.kill()?;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let wall = began.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{command:?} ended with {status}").into());
    }
    Ok(Used { cpu: cpu_of_children()? - before, wall, peak_mib, load })
}

/// User and system time of the children that have ended and were waited for, in seconds.
fn cpu_of_children() -> Result<f64, Error> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok([13, 14].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum::<f64>() / 100.0)
}

/// Fills the topics; the answer, and the sums of all energy counters and of all counters of samples.
fn fill(bus: &KafkaBus, seconds: u64, seed: u64) -> Result<(Windows, Sums), Error> {
    for topic in topics::desired(PREFIX, PARTITIONS, 1) {
        bus.create_topic(&topic)?;
    }
    let mut producer = bus.producer("race")?;
    let mut maker = Maker::with_prefix(GPUS, PREFIX).with_seed(seed);
    let start = EventTime::from_micros(BASE);
    let mut windows = Windows::new();
    let mut gpus = vec![None; GPUS];
    let mut jobs = [None; WORKLOADS];
    let [mut joules, mut samples] = [0.0, 0.0];
    for record in maker.tables(start) {
        send(&mut *producer, &record);
    }
    for tick in 0..seconds * HERTZ {
        let time = start.plus_micros(tick as i64 * SECOND / HERTZ as i64);
        for (gpu, before) in gpus.iter_mut().enumerate() {
            // Collectors are not in step.
            let time = time.plus_micros((gpu / 8) as i64 * 50);
            send(&mut *producer, &maker.telemetry(gpu, tick, time));
            add(&mut windows, &workload(gpu * WORKLOADS / GPUS), 0, before, (time.micros(), maker.energy(gpu)));
            joules += maker.energy(gpu);
        }
        if tick % HERTZ == 0 {
            for (job, before) in jobs.iter_mut().enumerate() {
                send(&mut *producer, &maker.progress(job, (tick / HERTZ) as f64, time));
                add(&mut windows, &workload(job), 1, before, (time.micros(), maker.samples(job)));
                samples += maker.samples(job);
            }
        }
    }
    producer.flush(Duration::from_mins(1))?;
    assert_eq!(producer.counts().failed, 0);
    let end = BASE + ((seconds - 1) / WINDOW * WINDOW) as i64 * SECOND;
    windows.retain(|(_, start), _| *start < end);
    Ok((windows, [joules, samples]))
}

/// As Python writes a number by `.6e`.
fn python_exponent(number: f64) -> String {
    let text = format!("{number:.6e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{digits}e+{exponent:0>2}")
}

/// Adds what a counter rose by to the windows that the time touches.
fn add(windows: &mut Windows, workload: &str, place: usize, before: &mut Option<(i64, f64)>, now: (i64, f64)) {
    const LENGTH: i64 = WINDOW as i64 * SECOND;
    let Some((from, old)) = before.replace(now) else { return };
    let (to, new) = now;
    let mut start = from - from.rem_euclid(LENGTH);
    while start < to {
        let part = (to.min(start + LENGTH) - from.max(start)) as f64 / (to - from) as f64;
        windows.entry((workload.to_owned(), start)).or_default()[place] += (new - old) * part;
        start += LENGTH;
    }
}

fn of_processor(value: &[u8]) -> Option<(Place, Sums)> {
    let window: EfficiencyWindow = serde_json::from_slice(value).ok()?;
    (window.kind == WindowKind::Tumbling).then(|| {
        (
            (window.workload, window.window_start.micros()),
            [window.energy_joules.unwrap_or(f64::NAN), window.samples.unwrap_or(f64::NAN)],
        )
    })
}

/// A window as the peers write it.
#[derive(Debug, Deserialize)]
struct PeersWindow {
    workload: String,
    start_micros: i64,
    energy_joules: f64,
    samples: f64,
}

fn of_peer(value: &[u8]) -> Option<(Place, Sums)> {
    let PeersWindow { workload, start_micros, energy_joules, samples } = serde_json::from_slice(value).ok()?;
    Some(((workload, start_micros), [energy_joules, samples]))
}

/// To tenths: the order in which sums were added up shows many digits later.
fn shown([joules, samples]: &Sums) -> String {
    format!("{joules:.1} {samples:.1}")
}

/// FNV-1a of all windows.
fn digest(windows: &Windows) -> u64 {
    let mut digest = Fnv1a::default();
    for ((workload, start), sums) in windows {
        digest.write(format!("{workload} {start} {}\n", shown(sums)).as_bytes());
    }
    digest.finish()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn spread(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let (Some(least), Some(most)) = (values.first(), values.last()) else { return "not run".to_owned() };
    format!("{:.digits$} ({least:.digits$}–{most:.digits$})", values[values.len() / 2])
}
