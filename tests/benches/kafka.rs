//! The processor and the archiver on Apache Kafka, beside the least that such work can cost there.
//!
//! `cargo xtask bench kafka [-- windows | archive | latency [SECONDS [RUNS]]]`. One broker for everything, on the same cores.
//! For each run the topics are filled anew with SECONDS of 512 GPUs at 10 Hz and eight jobs, all CloudEvents headers; then
//! fresh processes work through them: one that only reads (what librdkafka and the copy into records cost), and the one that
//! is measured. CPU is that of all threads of the process; the ratio is that of the two in the same run. Latency: decisions
//! at 10,000 events/s beside transactions of a single record, by another producer, at the same time.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::closing::{Times, measure};
use common::{Maker, PARTITIONS, WORKLOADS, cpu_seconds, peak_mib, send};
use eadt_bus::kafka::{KafkaBus, KafkaOptions};
use eadt_bus::{Bus, Isolation, MemberOptions, Outgoing, Polled, Start, Step, TopicPartition, topics};
use eadt_core::settings::SECOND;
use eadt_processor::{HeartbeatClock, Limit};
use eadt_schemas::{EventTime, Topic};
use eadt_service::{Health, Metrics, Shutdown};
use eadt_tests::Kafka;

#[path = "../../services/processor/benches/common/mod.rs"]
#[allow(dead_code, reason = "each benchmark uses its part")]
mod common;

const GPUS: usize = 512;
const HERTZ: u64 = 10;
const WINDOW: u64 = 10;
const BASE: i64 = 1_700_000_040 * SECOND;
/// Beyond it a process does not end by itself.
const PATIENCE: Duration = Duration::from_mins(10);

type Error = Box<dyn std::error::Error>;

fn events(seconds: u64) -> u64 {
    WORKLOADS as u64 + seconds * (GPUS as u64 * HERTZ + WORKLOADS as u64)
}

fn bus(brokers: &str) -> Result<KafkaBus, Error> {
    let client_id = "bench".to_owned();
    Ok(KafkaBus::connect(KafkaOptions { brokers: brokers.to_owned(), properties: [].into(), client_id })?)
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let number = |i: usize, default: u64| arguments.get(i).map_or(Ok(default), |text| text.parse());
    let text = |i: usize| arguments.get(i).map(String::as_str).unwrap_or_default();
    match text(0) {
        "child" => return child(text(1), text(2), text(3), number(4, 0)?, text(5)),
        "" | "all" | "windows" | "archive" | "latency" => {}
        other => return Err(format!("{other}: name windows, archive or latency, or nothing for all").into()),
    }
    let wanted = |name: &str| ["", "all", name].contains(&text(0));
    let (seconds, runs) = (number(1, 200)?, number(2, 3)?);
    let kafka = Kafka::start_fast(&[])?;
    let brokers = kafka.brokers();
    if wanted("windows") || wanted("archive") {
        through(&brokers, seconds, runs, &wanted)?;
    }
    if wanted("latency") {
        latency(&brokers, seconds.min(90) as i64)?;
    }
    Ok(())
}

/// What a child process said of itself.
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
    let seconds = seconds.to_string();
    let place = dir.join(prefix).display().to_string();
    let output = Command::new(std::env::current_exe()?).args(["child", what, brokers, prefix, &seconds, &place]).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers: Vec<f64> = said.lines().last().unwrap_or_default().split(' ').filter_map(|text| text.parse().ok()).collect();
    match numbers[..] {
        [cpu, wall, peak_mib] if output.status.success() => Ok(Used { cpu, wall, peak_mib }),
        _ => Err(format!("{what} failed: {said}{}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn child(what: &str, brokers: &str, prefix: &str, seconds: u64, place: &str) -> Result<(), Error> {
    let bus = bus(brokers)?;
    let (began, cpu) = (Instant::now(), cpu_seconds());
    match what {
        "read" => read(&bus, prefix, seconds)?,
        "windows" => windows(&bus, prefix, seconds)?,
        "archive" => archive(&bus, prefix, seconds, place)?,
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
        .flat_map(|topic| (0..PARTITIONS).map(move |p| (TopicPartition::new(format!("{prefix}{topic}"), p), Start::Earliest)))
        .collect();
    let mut reader = bus.reader(&from, Isolation::ReadCommitted)?;
    let (mut polled, mut count, began) = (Vec::new(), 0, Instant::now());
    while count < events(seconds) {
        reader.poll(4096, Duration::from_millis(100), &mut polled)?;
        count += polled.drain(..).filter(|item| matches!(item, Polled::Record(_))).count() as u64;
        assert!(began.elapsed() < PATIENCE, "only {count} records came");
    }
    Ok(())
}

/// The value of a counter in the metrics' text.
fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

/// The sum of a counter over its labels.
fn total(text: &str, name: &str) -> f64 {
    let of = |line: &str| line.strip_prefix(name)?.strip_prefix('{')?.rsplit(' ').next()?.parse::<f64>().ok();
    text.lines().filter_map(of).sum()
}

fn windows(bus: &KafkaBus, prefix: &str, seconds: u64) -> Result<(), Error> {
    let (shutdown, metrics, health) = (Shutdown::new(), Metrics::default(), Health::default());
    let settings = eadt_processor::Settings {
        prefix: prefix.to_owned(),
        group: format!("{prefix}processor"),
        instance: format!("{prefix}processor-0"),
        window_seconds: WINDOW as f64,
        // The log is filled within seconds of its own time, and stamped years after these events.
        join_grace_seconds: 0.0,
        max_future_seconds: Limit(None),
        ..eadt_processor::Settings::default()
    };
    let service = eadt_processor::Service {
        settings,
        bus: Arc::new(bus.clone()),
        // It stands: nothing is quiet.
        clock: HeartbeatClock::new(|| EventTime::from_micros(BASE)),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("processor"),
    };
    let began = Instant::now();
    let thread = std::thread::spawn(move || eadt_processor::run(&service));
    let expected = events(seconds) as f64;
    while metric(&metrics.text(), "eadt_processor_events_total") < expected {
        assert!(!thread.is_finished(), "the processor ended: {:?}", thread.join());
        assert!(began.elapsed() < PATIENCE, "not everything was folded: {}", metrics.text());
        std::thread::sleep(Duration::from_millis(10));
    }
    shutdown.cancel();
    thread.join().map_err(|_| "the processor panicked")??;
    let text = metrics.text();
    let count = |name: &str| metric(&text, &format!("eadt_processor_{name}"));
    // The last window stays open.
    assert_eq!(count("windows_total"), ((seconds - 1) / WINDOW * WORKLOADS as u64) as f64, "{text}");
    assert_eq!((count("late_total"), count("stale_total"), count("duplicates_total")), (0.0, 0.0, 0.0));
    Ok(())
}

fn archive(bus: &KafkaBus, prefix: &str, seconds: u64, place: &str) -> Result<(), Error> {
    let (shutdown, metrics, health) = (Shutdown::new(), Metrics::default(), Health::default());
    let settings = eadt_archiver::Settings {
        location: place.to_owned(),
        group: format!("{prefix}archiver"),
        ..eadt_archiver::Settings::default()
    };
    let service = eadt_archiver::Service {
        settings,
        prefix: prefix.to_owned(),
        bus: Arc::new(bus.clone()),
        clock: eadt_archiver::Clock::wall(),
        shutdown: shutdown.clone(),
        metrics: metrics.clone(),
        ready: health.part("archiver"),
    };
    let began = Instant::now();
    let thread = std::thread::spawn(move || eadt_archiver::run(&service));
    let expected = events(seconds) as f64;
    loop {
        let text = metrics.text();
        let waiting = metric(&text, "eadt_archiver_waiting_rows");
        if waiting + total(&text, "eadt_archiver_rows_total") >= expected {
            break;
        }
        assert!(!thread.is_finished(), "the archiver ended: {:?}", thread.join());
        assert!(began.elapsed() < PATIENCE, "not everything was archived: {text}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // The end writes what waits.
    shutdown.cancel();
    thread.join().map_err(|_| "the archiver panicked")??;
    let rows = total(&metrics.text(), "eadt_archiver_rows_total");
    // What the processor wrote into these topics comes on top.
    assert!(rows >= expected, "{rows} rows of {expected}: {}", metrics.text());
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
    let group = MemberOptions { group: "bare".into(), instance: Some("bare".into()), topics: vec![topic.clone()] };
    let mut member = bus.member(group)?;
    let from: Vec<_> = (0..PARTITIONS).map(|p| (TopicPartition::new(topic.clone(), p), Start::Earliest)).collect();
    let mut reader = bus.reader(&from, Isolation::ReadCommitted)?;
    let (mut times, mut polled, mut number) = (Vec::new(), Vec::new(), 0_u32);
    while !stop.load(Ordering::Relaxed) {
        let output = Outgoing {
            topic: topic.clone(),
            partition: None,
            key: Some(Bytes::from_static(b"bare")),
            value: Some(Bytes::from(number.to_string())),
            headers: Vec::new(),
        };
        let began = Instant::now();
        member.commit(Step { outputs: vec![output], positions: Vec::new() })?;
        let mine = |item: &Polled| matches!(item, Polled::Record(record) if record.value.as_deref() == Some(number.to_string().as_bytes()));
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
