//! Kafka is away for the collector, longer than its buffer reaches.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_collector::RawSettings;
use eadt_nvml::fake::FakeLibrary;
use eadt_schemas::Topic;
use eadt_schemas::v1::{GpuTelemetry, JobLifecycle, TrainingProgress};
use eadt_tests::ports::free_address;
use serde::Deserialize;

use super::unanswered::HELD_UP;
use crate::chance::Chance;
use crate::part::{Part, Service};
use crate::row::{Outcome, Row, Run};
use crate::verify::read_committed;
use crate::world::{Cluster, LIMIT, PARTITIONS, World, explain};

pub const ROW: Row = Row {
    name: "kafka-away",
    fault: "SIGKILL of the only broker while jobs report, for longer than the collector's buffer reaches; it comes back, or stays away",
    promise: "jobs are not held up; sent + dropped = sampled, exactly, and what was sent is in the log once",
    without: "counting what a full buffer gives up",
    full: 50,
    batch: 5,
    short: 2,
    off: 1,
    run,
};

pub const LONG: Row = Row {
    name: "kafka-away-long",
    fault: "SIGKILL of the only broker while GPUs are sampled and a job reports five times a second, for longer than the collector's buffer reaches; a round is a second until it comes back",
    promise: "no report waits; sent + dropped = sampled, exactly, and what was sent is in the log once, the newest with it",
    without: "counting what a full buffer gives up",
    full: 600,
    batch: 600,
    short: 8,
    off: 8,
    run: run_long,
};

/// Reports of the long outage in a second.
const REPORTS: u64 = 5;
/// Samples a second of each of the library's four GPUs; a busy machine may miss most of them.
const RATE_HERTZ: f64 = 5.0;
const GPUS: f64 = 4.0;

/// Events that the collector keeps, and as many again that the client library does.
const ROOM: usize = 200;
const BATCH: u64 = 20;

/// The figures that the process prints at its end.
#[derive(Debug, Deserialize)]
pub struct Summary {
    pub sampled: u64,
    pub sent: u64,
    pub dropped: u64,
}

impl Summary {
    pub fn read(output: &str) -> Result<Self> {
        let line = output.lines().last().context("the collector printed nothing")?;
        serde_json::from_str(line).context("the collector's summary")
    }
}

fn run(run: Run) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut chance = Chance::new(run.seed);
    let mut world = World::start(Cluster::One, run.bites.then_some("drop-counts"))?;
    world.properties.insert("queue.buffering.max.messages".into(), ROOM.to_string());
    for round in 0..run.rounds {
        let address = free_address()?;
        let name = format!("round-{round}");
        let mut settings = RawSettings { name: Some(name.clone()), ..RawSettings::default() };
        settings.buffer.events = ROOM;
        let stays_away = round % 2 == 1;
        // A broker that is started again beside much else takes a while to answer.
        settings.buffer.drain_seconds = if stays_away { 2.0 } else { 30.0 };
        settings.progress.listen = address;
        let mut part = world.part(Service::Collector(Box::new(settings)), None)?;
        let mut job = Job { address, workload: format!("chaos/job-{round}"), reported: 0 };
        explain(job.await_endpoint(&mut part), &part)?;
        explain(job.report(5), &part)?;
        world.brokers[0].kill()?;
        let begun = Instant::now();
        explain(job.report(2 * ROOM as u64 / BATCH + 1 + chance.below(20)), &part)?;
        outcome.took("to report everything with the log away", begun.elapsed().as_secs_f64());
        if !stays_away {
            world.brokers[0].start_again()?;
            explain(job.report(1 + chance.below(10)), &part)?;
        }
        // Events in flight when the broker died, as far as they fit, are sent within the time to drain or counted.
        let output = part.stop(LIMIT)?;
        if stays_away {
            world.brokers[0].start_again()?;
        }
        let Summary { sampled, sent, dropped } = Summary::read(&output)?;
        // The end of the job's only source is an event, too.
        let reported = job.reported + 1;
        outcome.check(sampled == reported, || format!("{sampled} of {reported} events were sampled"));
        outcome.check(sent + dropped == sampled, || format!("{sent} sent + {dropped} dropped are not {sampled} sampled"));
        let (found, repeated) = logged(&world, &job.workload)?;
        outcome.duplicated += repeated;
        // Events that were dropped without an answer may be in the log all the same.
        outcome.check((sent..=sampled).contains(&found), || format!("{sent} were sent, {found} are in the log"));
        outcome.check(stays_away || found == sent, || format!("{sent} were sent, {found} are in the log, which was back"));
        outcome.check(dropped > 0, || "the buffer never ran over".to_owned());
        outcome.count("sampled", sampled);
        outcome.count("sent", sent);
        outcome.count("dropped", dropped);
        outcome.rounds += 1;
    }
    Ok(outcome)
}

fn run_long(run: Run) -> Result<Outcome> {
    let (mut outcome, fake) = (Outcome::default(), FakeLibrary::new(""));
    let mut world = World::start(Cluster::One, run.bites.then_some("drop-counts"))?;
    world.properties.insert("queue.buffering.max.messages".into(), ROOM.to_string());
    let address = free_address()?;
    let mut settings = RawSettings { name: Some("node".to_owned()), ..RawSettings::default() };
    settings.buffer.events = ROOM;
    settings.buffer.drain_seconds = 60.0;
    settings.progress.listen = address;
    settings.nvml.enabled = true;
    settings.nvml.library_path = Some(fake.library());
    settings.nvml.rate_hertz = RATE_HERTZ;
    settings.nvml.counter_check_seconds = 0.0;
    let mut part = world.part(Service::Collector(Box::new(settings)), None)?;
    let mut job = Job { address, workload: "chaos/job".to_owned(), reported: 0 };
    explain(job.await_endpoint(&mut part), &part)?;
    explain(job.report(5), &part)?;
    world.brokers[0].kill()?;
    let away = Instant::now();
    let (reports, mut late, mut longest) = (u64::from(run.rounds) * REPORTS, 0_u64, Duration::ZERO);
    for report in 1..=reports {
        let begun = Instant::now();
        explain(job.report(1), &part)?;
        let took = begun.elapsed();
        longest = longest.max(took);
        late += u64::from(took >= HELD_UP);
        std::thread::sleep((Duration::from_secs(report) / REPORTS as u32).saturating_sub(away.elapsed()));
    }
    let seconds = away.elapsed().as_secs_f64();
    world.brokers[0].start_again()?;
    explain(job.report(1), &part)?;
    outcome.took("a report, at most, with the log away", longest.as_secs_f64());
    outcome.check(4 * late <= reports, || format!("{late} of {reports} reports took {HELD_UP:?} or longer, one {longest:?}"));
    let Summary { sampled, sent, dropped } = Summary::read(&part.stop(LIMIT)?)?;
    // Beside the job's reports and its end there are the samples of the GPUs.
    let samples = sampled.saturating_sub(job.reported + 1);
    outcome.check(samples as f64 >= seconds * RATE_HERTZ * GPUS / 8.0, || format!("{samples} samples of GPUs in {seconds} s"));
    outcome.check(sent + dropped == sampled, || format!("{sent} sent + {dropped} dropped are not {sampled} sampled"));
    outcome.check(dropped > 0, || "the buffer never ran over".to_owned());
    let (reports, repeated) = logged(&world, &job.workload)?;
    let gpus = read_committed(&world.bus, &world.topic(Topic::GpuTelemetry), PARTITIONS)?;
    let mut seen = BTreeSet::new();
    for record in &gpus {
        let event: GpuTelemetry = serde_json::from_slice(record.value.as_deref().unwrap_or_default())?;
        outcome.duplicated += u64::from(!seen.insert((event.device, event.time, event.last)));
    }
    outcome.duplicated += repeated;
    let found = reports + seen.len() as u64;
    outcome.compared += found;
    outcome.check(found == sent, || format!("{sent} were sent, {found} are in the log"));
    let newest = newest(&world, &job.workload)?;
    outcome.check(newest == Some(job.reported), || {
        format!("the newest report in the log is {newest:?}, the last one was {}", job.reported)
    });
    outcome.count("seconds without the log", seconds.round() as u64);
    outcome.count("sampled", sampled);
    outcome.count("of these of GPUs", samples);
    outcome.count("sent", sent);
    outcome.count("dropped", dropped);
    outcome.rounds = run.rounds;
    Ok(outcome)
}

/// A job that reports progress over HTTP.
pub struct Job {
    pub address: SocketAddr,
    pub workload: String,
    /// Events that were accepted.
    pub reported: u64,
}

impl Job {
    pub fn await_endpoint(&self, part: &mut Part) -> Result<()> {
        let begun = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            crate::world::runs(part)?;
            ensure!(begun.elapsed() < LIMIT, "the collector does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// So many requests.
    pub fn report(&mut self, requests: u64) -> Result<()> {
        for _ in 0..requests {
            let events: Vec<_> = (self.reported + 1..=self.reported + BATCH)
                .map(|total| serde_json::json!({"workload": self.workload, "samples_total": total}))
                .collect();
            self.post(&serde_json::to_string(&events)?)?;
            self.reported += BATCH;
        }
        Ok(())
    }

    fn post(&self, body: &str) -> Result<()> {
        let answer = post(self.address, body)?;
        ensure!(is_accepted(&answer), "the collector answered: {answer}");
        Ok(())
    }
}

/// Reports progress; the answer, empty if the collector hung up without one.
pub fn post(address: SocketAddr, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let length = body.len();
    let head = format!(
        "POST /v1/progress HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

pub fn is_accepted(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 202")
}

/// The highest total that a workload reported, in the log.
fn newest(world: &World, workload: &str) -> Result<Option<u64>> {
    let mut newest = None;
    for record in read_committed(&world.bus, &world.topic(Topic::TrainingProgress), PARTITIONS)? {
        let event: TrainingProgress = serde_json::from_slice(record.value.as_deref().unwrap_or_default())?;
        if event.workload == workload {
            newest = newest.max(event.samples_total.map(|total| total as u64));
        }
    }
    Ok(newest)
}

/// Events of a workload in the log, and how many of them are there again.
pub fn logged(world: &World, workload: &str) -> Result<(u64, u64)> {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for record in read_committed(&world.bus, &world.topic(Topic::TrainingProgress), PARTITIONS)? {
        let event: TrainingProgress = serde_json::from_slice(record.value.as_deref().unwrap_or_default())?;
        if event.workload == workload {
            let end = event.last || event.phase == JobLifecycle::Finished;
            let name = if end { "end".to_owned() } else { format!("{:?}", event.samples_total) };
            *seen.entry(name).or_default() += 1;
        }
    }
    Ok((seen.values().sum(), seen.values().map(|count| count - 1).sum()))
}
