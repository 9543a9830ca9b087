//! The processor and the archiver on Apache Kafka, beside the least that such work can cost there.
//!
//! `cargo xtask bench kafka [-- windows | archive | paths | latency | price | restart [SECONDS [RUNS]]]`. One broker for everything, on the same cores.
//! For each run the topics are filled anew with SECONDS of 512 GPUs at 10 Hz and eight jobs, all CloudEvents headers; then
//! fresh processes work through them: one that only reads (what librdkafka and the copy into records cost), and the one that
//! is measured. CPU is that of all threads of the process; the ratio is that of the two in the same run. Latency: decisions
//! at 10,000 events/s beside transactions of a single record, by another producer, at the same time. Price: the CPU of the
//! processor beside that of the same one on a bus that writes outputs first and positions later, without transactions, in turns.
//! Paths: only reading, windows and archive by both values of `bus.fetch`, in turns, each on topics of its own that are filled alike.
//! Restart: from SIGKILL of the processor, in its steps and between them, until everything is readable that was due by then.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::closing::{Times, measure};
use common::{Maker, PARTITIONS, WORKLOADS, cpu_seconds, peak_mib, send};
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::{
    Bus, CommitStep, GroupMember, IsolationLevel, MemberOptions, Membership, PartitionReader, PollEvent, Producer,
    ProducerRecord, Result as BusResult, StartOffset, TopicPartition, TopicSpec, WatermarkOffsets, topics,
};
use eadt_core::settings::SECOND;
use eadt_schemas::{EventTime, Topic};
use eadt_service::MetricsRegistry;
use eadt_tests::Kafka;
use processing::{Error, PATIENCE, WINDOW};

#[path = "../../services/processor/benches/common/mod.rs"]
#[allow(dead_code, reason = "each benchmark uses its part")]
mod common;
mod processing;

const GPUS: usize = 512;
const HERTZ: u64 = 10;
const BASE: i64 = 1_700_000_040 * SECOND;
fn events(seconds: u64) -> u64 {
    WORKLOADS as u64 + seconds * (GPUS as u64 * HERTZ + WORKLOADS as u64)
}

fn bus(brokers: &str) -> Result<KafkaBus, Error> {
    bus_with(brokers, &[])
}

fn bus_with(brokers: &str, properties: &[(&str, &str)]) -> Result<KafkaBus, Error> {
    let properties = properties.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Ok(KafkaBus::connect(KafkaOptions {
        brokers: brokers.to_owned(),
        properties,
        client_id: "bench".to_owned(),
        fetch: eadt_tests::kafka::fetch_path(),
    })?)
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |i: usize, default: u64| arguments.get(i).map_or(Ok(default), |text| text.parse());
    let text = |i: usize| arguments.get(i).map(String::as_str).unwrap_or_default();
    match text(0) {
        "child" => return child(text(1), text(2), text(3), number(4, 0)?, text(5)),
        "" | "all" | "windows" | "archive" | "paths" | "latency" | "price" | "restart" => {}
        other => {
            return Err(format!("{other}: name windows, archive, paths, latency, price or restart, or nothing for all").into());
        }
    }
    let wanted = |name: &str| ["", "all", name].contains(&text(0));
    let (seconds, runs) = (number(1, 200)?, number(2, 3)?);
    let kafka = Kafka::start_fast(&[])?;
    let brokers = kafka.brokers();
    if wanted("windows") || wanted("archive") {
        through(&brokers, seconds, runs, &wanted)?;
    }
    if text(0) == "paths" {
        paths(&brokers, seconds, runs)?;
    }
    if wanted("latency") {
        latency(&brokers, seconds.min(90) as i64)?;
    }
    if wanted("price") {
        price(&brokers, seconds, runs)?;
    }
    if wanted("restart") {
        restart(&brokers, 40 * runs)?;
    }
    Ok(())
}

/// Resources that a child process printed.
#[derive(Debug, Clone, Copy)]
struct Used {
    cpu: f64,
    wall: f64,
    peak_mib: f64,
}

fn through(brokers: &str, seconds: u64, runs: u64, wanted: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let events = events(seconds) as f64;
    let mut all: Vec<(&str, Vec<f64>, Vec<f64>)> = Vec::new();
    for run in 1..=runs {
        let prefix = format!("run{run}.");
        let began = Instant::now();
        fill(&bus(brokers)?, &prefix, seconds)?;
        println!("run {run}: {events} events, filled in {:.1} s", began.elapsed().as_secs_f64());
        let bare = spawn("read", brokers, &prefix, seconds, dir.path())?;
        print("only reading", events, bare, None);
        for name in ["windows", "archive"] {
            if !wanted(name) {
                continue;
            }
            let used = spawn(name, brokers, &prefix, seconds, dir.path())?;
            print(name, events, used, Some(bare));
            if !all.iter().any(|(known, ..)| *known == name) {
                all.push((name, Vec::new(), Vec::new()));
            }
            for (known, rates, ratios) in &mut all {
                if *known == name {
                    rates.push(events / used.cpu / 1e6);
                    ratios.push(used.cpu / bare.cpu);
                }
            }
        }
    }
    for (name, mut rates, mut ratios) in all {
        rates.sort_by(f64::total_cmp);
        ratios.sort_by(f64::total_cmp);
        println!(
            "{name}: median {:.3} M events/CPU-s ({:.3} to {:.3}), {:.2} times the CPU of only reading",
            rates[rates.len() / 2],
            rates[0],
            rates[rates.len() - 1],
            ratios[ratios.len() / 2]
        );
    }
    Ok(())
}

/// The same work by both fetch paths, in turns; the ratios are those of the two of one run.
fn paths(brokers: &str, seconds: u64, runs: u64) -> Result<(), Error> {
    const WORK: [&str; 3] = ["read", "windows", "archive"];
    let (dir, events) = (tempfile::tempdir()?, events(seconds) as f64);
    let mut all: BTreeMap<(&str, &str), Vec<Used>> = BTreeMap::new();
    for run in 1..=runs {
        let mut turns = ["librdkafka", "native"];
        if run.is_multiple_of(2) {
            turns.reverse();
        }
        for path in turns {
            fill(&bus(brokers)?, &format!("{path}{run}."), seconds)?;
        }
        for work in WORK {
            for path in turns {
                let used = spawn_on(path, work, brokers, &format!("{path}{run}."), seconds, dir.path())?;
                print(&format!("run {run}, {path}, {work}"), events, used, None);
                all.entry((work, path)).or_default().push(used);
            }
        }
    }
    println!("{events} events, {runs} runs of each in turns, median (least to most):");
    for ((work, path), runs) in &all {
        let of = |figure: fn(&Used) -> f64| spread(runs.iter().map(figure).collect());
        let rates = spread(runs.iter().map(|used| events / used.cpu / 1e6).collect());
        let (cpu, wall, memory) = (of(|used| used.cpu), of(|used| used.wall), of(|used| used.peak_mib));
        println!("  {work}, {path}: {rates} M events/CPU-s; CPU {cpu} s, wall {wall} s, peak {memory} MiB");
    }
    for work in WORK {
        let (library, native) = (&all[&(work, "librdkafka")], &all[&(work, "native")]);
        let ratios = spread(library.iter().zip(native).map(|(library, native)| library.cpu / native.cpu).collect());
        println!("  {work}: native does {ratios} times as many events with the same CPU");
    }
    Ok(())
}

/// The median, the least and the most.
fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    format!("{:.3} ({:.3} to {:.3})", values[last / 2], values[0], values[last])
}

fn print(name: &str, events: f64, used: Used, bare: Option<Used>) {
    let ratio = bare.map_or_else(String::new, |bare| format!(", {:.2} times the CPU of only reading", used.cpu / bare.cpu));
    println!(
        "  {name}: {:.3} M events/CPU-s, {:.3} M events/s, peak {:.1} MiB{ratio}",
        events / used.cpu / 1e6,
        events / used.wall / 1e6,
        used.peak_mib
    );
}

fn spawn(what: &str, brokers: &str, prefix: &str, seconds: u64, dir: &Path) -> Result<Used, Error> {
    let path = std::env::var("EADT_BUS__FETCH").unwrap_or_else(|_| "librdkafka".to_owned());
    spawn_on(&path, what, brokers, prefix, seconds, dir)
}

fn spawn_on(path: &str, what: &str, brokers: &str, prefix: &str, seconds: u64, dir: &Path) -> Result<Used, Error> {
    let seconds = seconds.to_string();
    let place = dir.join(prefix).display().to_string();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["child", what, brokers, prefix, &seconds, &place]).env("EADT_BUS__FETCH", path);
    let output = command.output()?;
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<f64> =
        output_text.lines().last().unwrap_or_default().split(' ').filter_map(|text| text.parse().ok()).collect();
    match numbers[..] {
        [cpu, wall, peak_mib] if output.status.success() => Ok(Used { cpu, wall, peak_mib }),
        _ => Err(format!("{what} failed: {output_text}{}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn child(what: &str, brokers: &str, prefix: &str, seconds: u64, place: &str) -> Result<(), Error> {
    let bus = bus(brokers)?;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    match what {
        "read" => read(&bus, prefix, seconds)?,
        "windows" => processing::windows(Arc::new(bus), prefix, prefix, events(seconds), (seconds - 1) / WINDOW)?,
        // As the members have it that it is compared with, so that it is spared no requests.
        "at-least-once" => {
            let bus = bus_with(brokers, &[("fetch.wait.max.ms", "10")])?;
            processing::windows(Arc::new(AtLeastOnce(bus)), prefix, prefix, events(seconds), (seconds - 1) / WINDOW)?;
        }
        "processor" => {
            return Ok(eadt_processor::run_processor(
                &processing::processor(Arc::new(bus), prefix, prefix, &MetricsRegistry::default()).0,
            )?);
        }
        "archive" => processing::archive(Arc::new(bus), prefix, &format!("{prefix}archiver"), events(seconds), place)?,
        other => return Err(format!("no {other}").into()),
    }
    println!("{} {} {}", cpu_seconds() - cpu, began.elapsed().as_secs_f64(), peak_mib());
    Ok(())
}

fn fill(bus: &KafkaBus, prefix: &str, seconds: u64) -> Result<(), Error> {
    for topic in topics::desired(prefix, PARTITIONS, 1) {
        bus.create_topic(&topic)?;
    }
    let mut producer = bus.producer("bench")?;
    let mut maker = Maker::with_prefix(GPUS, prefix);
    let start = EventTime::from_micros(BASE);
    for record in maker.tables(start) {
        send(&mut *producer, &record);
    }
    for tick in 0..seconds * HERTZ {
        let time = start.plus_micros(tick as i64 * SECOND / HERTZ as i64);
        for gpu in 0..GPUS {
            // Collectors are not in step.
            let record = maker.telemetry(gpu, tick, time.plus_micros((gpu / 8) as i64 * 50));
            send(&mut *producer, &record);
        }
        if tick % HERTZ == 0 {
            for job in 0..WORKLOADS {
                let record = maker.progress(job, (tick / HERTZ) as f64, time);
                send(&mut *producer, &record);
            }
        }
    }
    producer.flush(Duration::from_mins(1))?;
    let counts = producer.counts();
    assert_eq!((counts.acknowledged, counts.failed), (events(seconds), 0));
    Ok(())
}

/// Takes every record and does nothing with it.
fn read(bus: &KafkaBus, prefix: &str, seconds: u64) -> Result<(), Error> {
    let all = [Topic::GpuTelemetry, Topic::TrainingProgress, Topic::Workloads];
    let from: Vec<_> = all
        .iter()
        .flat_map(|topic| {
            (0..PARTITIONS).map(move |p| (TopicPartition::new(format!("{prefix}{topic}"), p), StartOffset::Earliest))
        })
        .collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let (mut polled, mut count, began) = (Vec::new(), 0, Instant::now());
    while count < events(seconds) {
        reader.poll(4096, Duration::from_millis(100), &mut polled)?;
        count += polled.drain(..).filter(|item| matches!(item, PollEvent::Record(_))).count() as u64;
        assert!(began.elapsed() < PATIENCE, "only {count} records came");
    }
    Ok(())
}

fn latency(brokers: &str, seconds: i64) -> Result<(), Error> {
    let bus = bus(brokers)?;
    for topic in topics::desired("eadt.", PARTITIONS, 1) {
        bus.create_topic(&topic)?;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let bare = {
        let (bus, stop) = (bus.clone(), stop.clone());
        std::thread::spawn(move || transactions(&bus, &stop).map_err(|error| error.to_string()))
    };
    let log: Arc<dyn Bus> = Arc::new(bus);
    let measured = measure(&log, seconds, WINDOW as f64);
    stop.store(true, Ordering::Relaxed);
    let bare = bare.join().map_err(|_| "the bare producer panicked")??;
    let measured = measured?;
    println!("latency at {:.0} events/s, {} ms late", measured.events_per_second, measured.late);
    println!("  closing event acknowledged to decision readable: {}", measured.acknowledged);
    println!("  closing event handed over to decision readable: {}", measured.given);
    println!("  a commit of the processor, mean: {:.2} ms", measured.commit_milliseconds);
    println!("  a transaction of one record, begun to readable: {bare}");
    println!(
        "  ratio: p50 {:.2}, p99 {:.2}",
        measured.acknowledged.at(0.5) / bare.at(0.5),
        measured.acknowledged.at(0.99) / bare.at(0.99)
    );
    Ok(())
}

/// One record a transaction, ten a second, each until a reader of committed records sees it.
fn transactions(bus: &KafkaBus, stop: &AtomicBool) -> Result<Times, Error> {
    let topic: Arc<str> = Arc::from(format!("eadt.{}", Topic::Directives));
    let group =
        MemberOptions { group: "bare".into(), membership: Membership::Transactional("bare".into()), topics: vec![topic.clone()] };
    let mut member = bus.member(group)?;
    let from: Vec<_> = (0..PARTITIONS).map(|p| (TopicPartition::new(topic.clone(), p), StartOffset::Earliest)).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let (mut times, mut polled, mut number) = (Vec::new(), Vec::new(), 0_u32);
    while !stop.load(Ordering::Relaxed) {
        let output = ProducerRecord {
            topic: topic.clone(),
            partition: None,
            key: Some(Bytes::from_static(b"bare")),
            value: Some(Bytes::from(number.to_string())),
            headers: Vec::new(),
        };
        let began = Instant::now();
        member.commit(&CommitStep { outputs: vec![output], positions: Vec::new() })?;
        let mine = |item: &PollEvent| matches!(item, PollEvent::Record(record) if record.value.as_deref() == Some(number.to_string().as_bytes()));
        while !polled.iter().any(mine) {
            polled.clear();
            reader.poll(100, Duration::from_millis(100), &mut polled)?;
            if began.elapsed() > PATIENCE {
                return Err("a committed record does not come".into());
            }
        }
        // The first ones are cold, like the first windows.
        if number >= 30 {
            times.push(began.elapsed());
        }
        number += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(Times::new(times))
}

/// Outputs first, positions later, nothing in one transaction: a crash in between writes them twice.
#[derive(Debug)]
struct AtLeastOnce(KafkaBus);

#[derive(Debug)]
struct AtLeastOnceMember {
    member: Box<dyn GroupMember>,
    producer: Box<dyn Producer>,
}

impl Bus for AtLeastOnce {
    fn topics(&self, prefix: &str) -> BusResult<Vec<TopicSpec>> {
        self.0.topics(prefix)
    }
    fn create_topic(&self, topic: &TopicSpec) -> BusResult<()> {
        self.0.create_topic(topic)
    }
    fn alter_topic(&self, name: &str, settings: &BTreeMap<String, String>) -> BusResult<()> {
        self.0.alter_topic(name, settings)
    }
    fn add_partitions(&self, name: &str, partitions: i32) -> BusResult<()> {
        self.0.add_partitions(name, partitions)
    }
    fn watermarks(&self, at: &TopicPartition) -> BusResult<WatermarkOffsets> {
        self.0.watermarks(at)
    }
    fn producer(&self, name: &str) -> BusResult<Box<dyn Producer>> {
        self.0.producer(name)
    }
    fn reader(&self, from: &[(TopicPartition, StartOffset)], isolation: IsolationLevel) -> BusResult<Box<dyn PartitionReader>> {
        self.0.reader(from, isolation)
    }
    fn member(&self, options: MemberOptions) -> BusResult<Box<dyn GroupMember>> {
        let name = options.membership.name().unwrap_or("bench").to_owned();
        let producer = self.0.producer(&name)?;
        let member = self.0.member(MemberOptions { membership: Membership::Static(name), ..options })?;
        Ok(Box::new(AtLeastOnceMember { member, producer }))
    }
    fn committed(&self, group: &str, of: &[TopicPartition]) -> BusResult<Vec<Option<i64>>> {
        self.0.committed(group, of)
    }
}

impl PartitionReader for AtLeastOnceMember {
    fn poll(&mut self, max: usize, timeout: Duration, into: &mut Vec<PollEvent>) -> BusResult<()> {
        self.member.poll(max, timeout, into)
    }
    fn pause(&mut self, at: &[TopicPartition]) -> BusResult<()> {
        self.member.pause(at)
    }
    fn resume(&mut self, at: &[TopicPartition]) -> BusResult<()> {
        self.member.resume(at)
    }
    fn accept_batches(&mut self) {
        self.member.accept_batches();
    }
}

impl GroupMember for AtLeastOnceMember {
    fn start(&mut self, at: &TopicPartition, offset: i64) -> BusResult<()> {
        self.member.start(at, offset)
    }
    fn committed(&mut self, of: &[TopicPartition]) -> BusResult<Vec<Option<i64>>> {
        self.member.committed(of)
    }
    fn commit(&mut self, step: &CommitStep) -> BusResult<()> {
        for output in &step.outputs {
            send(&mut *self.producer, output);
        }
        let written = self.producer.flush(PATIENCE)?;
        assert!(written && self.producer.counts().failed == 0, "outputs were not written");
        self.member.commit(&CommitStep { outputs: Vec::new(), positions: step.positions.clone() })
    }
}

fn price(brokers: &str, seconds: u64, runs: u64) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let events = events(seconds) as f64;
    let mut ratios = Vec::new();
    for run in 1..=runs {
        let mut cpu = BTreeMap::new();
        let mut order = ["windows", "at-least-once"];
        if run % 2 == 0 {
            order.reverse();
        }
        for name in order {
            let prefix = format!("price{run}.{name}.");
            fill(&bus(brokers)?, &prefix, seconds)?;
            let used = spawn(name, brokers, &prefix, seconds, dir.path())?;
            print(if name == "windows" { "exactly once" } else { "at least once" }, events, used, None);
            cpu.insert(name, used.cpu);
        }
        ratios.push(100.0 * (cpu["windows"] / cpu["at-least-once"] - 1.0));
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "price of exactly-once: median {:+.1} % CPU ({:+.1} to {:+.1})",
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[ratios.len() - 1]
    );
    Ok(())
}

/// A process that is gone where this is.
#[derive(Debug)]
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn restart(brokers: &str, rounds: u64) -> Result<(), Error> {
    let (prefix, bus) = ("restart.", bus(brokers)?);
    for topic in topics::desired(prefix, PARTITIONS, 1) {
        bus.create_topic(&topic)?;
    }
    let begin = || -> Result<Killed, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["child", "processor", brokers, prefix]).stdout(Stdio::null()).stderr(Stdio::inherit());
        Ok(Killed(command.spawn()?))
    };
    let from: Vec<_> = (0..PARTITIONS)
        .map(|p| (TopicPartition::new(format!("{prefix}{}", Topic::Decisions), p), StartOffset::Earliest))
        .collect();
    let mut decisions = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let (mut producer, mut maker) = (bus.producer("bench")?, Maker::with_prefix(GPUS, prefix));
    let start = EventTime::from_micros(BASE);
    for record in maker.tables(start) {
        send(&mut *producer, &record);
    }
    let mut running = begin()?;
    let (mut times, mut out, mut readable, mut polled) = (Vec::new(), 0, 0, Vec::new());
    for second in 0..=rounds * WINDOW {
        let time = start.plus_micros(second as i64 * SECOND);
        for gpu in 0..GPUS {
            let record = maker.telemetry(gpu, second * HERTZ, time.plus_micros((gpu / 8) as i64 * 50));
            send(&mut *producer, &record);
        }
        for job in 0..WORKLOADS {
            let record = maker.progress(job, second as f64, time);
            send(&mut *producer, &record);
        }
        if second == 0 || second % WINDOW != 0 {
            continue;
        }
        // With this second a window of every job is complete, and is due once that is acknowledged.
        assert!(producer.flush(PATIENCE)?, "events were not written");
        let due = second / WINDOW * WORKLOADS as u64;
        let mut is_out = |patience: Duration| -> Result<bool, Error> {
            let began = Instant::now();
            while readable < due && began.elapsed() < patience {
                decisions.poll(100, Duration::from_millis(1), &mut polled)?;
                readable += polled.drain(..).filter(|item| matches!(item, PollEvent::Record(_))).count() as u64;
            }
            Ok(readable >= due)
        };
        // Before the step, anywhere in it, and sometimes after it.
        if is_out(Duration::from_millis(second / WINDOW * 7919 % 31))? {
            out += 1;
            continue;
        }
        let killed = Instant::now();
        drop(running);
        running = begin()?;
        assert!(is_out(PATIENCE)?, "only some of {due} decisions came");
        times.push(killed.elapsed());
    }
    drop(running);
    println!("restart: from SIGKILL until everything due is readable: {}", Times::new(times));
    println!("  {out} of {rounds} times everything was out before the kill");
    Ok(())
}
