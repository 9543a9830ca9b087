//! The embedded log through its public face: what an event costs to append and to read, and how long an atomic step takes.
//!
//! `cargo bench -p eadt-bus --bench embedded [-- DIR]`; DIR is on the disk to be measured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{
    Bus, CommitStep, IsolationLevel, MemberOptions, Membership, PollEvent, ProducerRecord, Remedy, StartOffset, TopicPartition,
    TopicSpec,
};

const EVENTS: u32 = 1_000_000;
const STEPS: u32 = 1000;
const PARTITIONS: i32 = 4;

type Error = Box<dyn std::error::Error>;

/// User and system time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// 400 bytes as telemetry has them, with the envelope's seven headers.
fn event(topic: &Arc<str>, names: &[Arc<str>], n: u32) -> ProducerRecord {
    let value = format!(
        r#"{{"time":"2026-01-02T03:04:{:02}.{:06}Z","gpu_uuid":"GPU-{:08x}-0000-0000-0000-000000000000","workload":"team/job-{}","power_watts":{}.{},"energy_joules_total":{}.25,"sm_utilization_ratio":0.{},"memory_used_bytes":{},"sm_clock_mhz":{},"meter":"gpu","origin":"measured","filler":"{:0100}"}}"#,
        n / 1_000_000 % 60,
        n % 1_000_000,
        n % 64,
        n % 16,
        200 + n % 150,
        n % 10,
        n,
        10 + n % 89,
        u64::from(n) * 4096,
        1200 + n % 300,
        n
    );
    let text = [
        "1.0",
        "io.eadt.gpu.telemetry.v1",
        "/collector/node-1",
        &n.to_string(),
        "2026-01-02T03:04:05.000000Z",
        "team/job",
        "application/json",
    ]
    .map(str::to_owned);
    ProducerRecord {
        topic: Arc::clone(topic),
        partition: None,
        key: Some(format!("team/job-{}", n % 16).into()),
        value: Some(value.into()),
        headers: names.iter().cloned().zip(text.map(Into::into)).collect(),
    }
}

fn main() -> Result<(), Error> {
    let parent = std::env::args().skip(1).find(|argument| argument != "--bench").map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(parent)?;
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default())?;
    let topics: [Arc<str>; 2] = ["in".into(), "out".into()];
    for name in &topics {
        log.create_topic(&TopicSpec {
            name: Arc::clone(name),
            partitions: PARTITIONS,
            replication: 1,
            settings: std::collections::BTreeMap::default(),
        })?;
    }
    let names: Vec<Arc<str>> =
        ["ce_specversion", "ce_type", "ce_source", "ce_id", "ce_time", "ce_subject", "content-type"].map(Into::into).to_vec();

    let (begun, cpu) = (Instant::now(), cpu_seconds());
    for n in 0..EVENTS {
        std::hint::black_box(event(&topics[0], &names, n));
    }
    let making = cpu_seconds() - cpu;
    println!(
        "making an event      {:.2} µs CPU (taken off below), {:.1} s",
        making * 1e6 / f64::from(EVENTS),
        begun.elapsed().as_secs_f64()
    );

    let mut producer = log.producer("bench")?;
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    for n in 0..EVENTS {
        let record = event(&topics[0], &names, n);
        while let Err(error) = producer.send(record.clone()) {
            assert_eq!(error.remedy, Remedy::Retry, "{error}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(producer.flush(Duration::from_mins(1))?);
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds() - cpu - making);
    println!(
        "append, plain        {:.2} µs CPU/event, {:.0} k events/s",
        cpu * 1e6 / f64::from(EVENTS),
        f64::from(EVENTS) / wall / 1e3
    );

    for round in ["first", "again"] {
        let from: Vec<_> =
            (0..PARTITIONS).map(|p| (TopicPartition::new(Arc::clone(&topics[0]), p), StartOffset::Earliest)).collect();
        let mut reader = log.reader(&from, IsolationLevel::ReadCommitted)?;
        let (begun, cpu) = (Instant::now(), cpu_seconds());
        let (mut polled, mut events, mut ends, mut bytes) = (Vec::new(), 0, 0, 0);
        while ends < PARTITIONS {
            reader.poll(2048, Duration::from_secs(1), &mut polled)?;
            for item in polled.drain(..) {
                match item {
                    PollEvent::Record(record) => {
                        events += 1;
                        bytes += record.value.map_or(0, |value| value.len());
                    }
                    _ => ends += 1,
                }
            }
        }
        assert_eq!(events, EVENTS);
        println!(
            "read, {round:5}          {:.2} µs CPU/event, {:.0} k events/s, {} bytes/event",
            (cpu_seconds() - cpu) * 1e6 / f64::from(events),
            f64::from(events) / begun.elapsed().as_secs_f64() / 1e3,
            bytes / events as usize
        );
    }

    let options = MemberOptions {
        group: "g".into(),
        membership: Membership::Transactional("i".into()),
        topics: vec![Arc::clone(&topics[0])],
    };
    let mut member = log.member(options)?;
    let mut reader =
        log.reader(&[(TopicPartition::new(Arc::clone(&topics[1]), 0), StartOffset::Latest)], IsolationLevel::ReadCommitted)?;
    let mut polled = Vec::new();
    reader.poll(10, Duration::ZERO, &mut polled)?;
    for load in ["quiet", "with 20 k events/s"] {
        let stop = std::sync::atomic::AtomicBool::new(load == "quiet");
        let mut times = Vec::new();
        std::thread::scope(|scope| -> Result<(), Error> {
            scope.spawn(|| {
                let mut n = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for _ in 0..200 {
                        n += 1;
                        // A full buffer is counted by the producer; here it only means less load.
                        drop(producer.send(event(&topics[0], &names, n)));
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            for n in 0..STEPS {
                let outputs = (0..3).map(|_| ProducerRecord { partition: Some(0), ..event(&topics[1], &names, n) }).collect();
                let positions = (0..PARTITIONS).map(|p| (TopicPartition::new(Arc::clone(&topics[0]), p), i64::from(n))).collect();
                let begun = Instant::now();
                member.commit(&CommitStep { outputs, positions })?;
                let mut seen = 0;
                while seen < 3 {
                    polled.clear();
                    reader.poll(10, Duration::from_secs(1), &mut polled)?;
                    seen += polled.iter().filter(|item| matches!(item, PollEvent::Record(_))).count();
                }
                times.push(begun.elapsed());
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        })?;
        times.sort_unstable();
        let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e3;
        println!("step to readable     p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms, {load}", at(0.5), at(0.99), at(1.0));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("peak memory          {}", status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("unknown").trim());
    Ok(())
}
