//! Two collectors, each with two GPUs and a job that reports to it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use eadt_collector::RawSettings;
use eadt_lake::Archive;
use eadt_nvml::fake::FakeLibrary;
use eadt_schemas::Topic;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::TrainingProgress;
use eadt_tests::ports::free_address;
use serde_json::json;

use crate::chance::Chance;
use crate::part::{Part, Service};
use crate::row::{Outcome, Row, Run};
use crate::rows::archive::{self, OF_A_STORY, await_archived};
use crate::rows::collector::{Summary, is_accepted, post};
use crate::site::now;
use crate::verify::read_committed;
use crate::world::{Cluster, LIMIT, PARTITIONS, World, runs};

pub const ROW: Row = Row {
    name: "upgrade-collector",
    fault: "rolling restarts (SIGTERM) of two collectors between this minor version and the next, while GPUs are sampled and jobs report; a processor and an archiver of this one read both",
    promise: "every sample and every report that was accepted is in the log once, and nothing is dropped; none is refused by who reads it but as late, after its source's end; each offset in exactly one readable file, with what is not known",
    without: "the time that a stop gives to what is on its way; by who reads, taking events whose fields are not all known",
    full: 200,
    batch: 20,
    short: 4,
    off: 4,
    run,
};

const COLLECTORS: usize = 2;
/// Between two reports of a job.
const PACE: Duration = Duration::from_millis(5);

fn run(run: Run) -> Result<Outcome> {
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let (world, fake) = (World::start(Cluster::One, run.bites.then_some("unknown-fields"))?, FakeLibrary::new(""));
    let place = world.dir().join("archive");
    let reader = world.processor(world.settings(), None)?;
    let mut files = world.part(Service::Archiver(Box::new(archive::settings(&place))), None)?;
    let nodes: Vec<Node> = (0..COLLECTORS).map(|number| Node::new(number, &fake, run.bites)).collect::<Result<_>>()?;
    let mut parts: VecDeque<Part> = nodes.iter().map(|node| node.collector(&world)).collect::<Result<_>>()?;
    let jobs: Vec<Job> = nodes.iter().map(Job::start).collect();
    let mut sent = 0;
    for round in 0..run.rounds {
        world.next.set(round % 2 == 0);
        for node in &nodes {
            std::thread::sleep(Duration::from_millis(chance.below(400)));
            let begun = Instant::now();
            // In turn, as the nodes are.
            sent += stop(parts.pop_front().context("every node has a collector")?, &mut outcome)?;
            parts.push_back(node.collector(&world)?);
            outcome.took("from the order to stop until reports are taken again", begun.elapsed().as_secs_f64());
        }
        outcome.rounds += 1;
    }
    let job_reports: Vec<JobReports> = jobs.into_iter().map(Job::finish).collect::<Result<_>>()?;
    for part in parts {
        sent += stop(part, &mut outcome)?;
    }
    judge(&world, &nodes, &job_reports, sent, &mut outcome)?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", reader.tail()));
    // It would go on with heartbeats, which are not archived yet when they are looked for.
    reader.stop(LIMIT)?;
    let mut read = Outcome::default();
    refused(&world, &mut read)?;
    let archive = Archive::folder(&place)?;
    let reached = await_archived(&world, &archive, &OF_A_STORY, &mut files, LIMIT)?;
    outcome.check(reached, || format!("not everything was archived: {}", files.tail()));
    archive::judge(&world, &place, &archive, &OF_A_STORY, &mut read)?;
    Ok(outcome.with(read, "by who reads", run.bites))
}

/// Stops a collector; what it sent, which is everything.
fn stop(part: Part, outcome: &mut Outcome) -> Result<u64> {
    let Summary { sampled, sent, dropped } = Summary::read(&part.stop(LIMIT)?)?;
    outcome.check(dropped == 0 && sent == sampled, || format!("of {sampled} events {sent} were sent and {dropped} dropped"));
    Ok(sent)
}

/// A node's GPUs, and where its job reports.
struct Node {
    workload: String,
    settings: RawSettings,
}

impl Node {
    fn new(number: usize, fake: &FakeLibrary, bites: bool) -> Result<Self> {
        let name = format!("node-{number}");
        let mut settings = RawSettings { name: Some(name.clone()), ..RawSettings::default() };
        settings.progress.listen = free_address()?;
        settings.buffer.drain_seconds = if bites { 0.0 } else { 60.0 };
        settings.nvml.enabled = true;
        settings.nvml.library_path = Some(fake.library());
        settings.nvml.gpus = Some(vec![2 * number as u32, 2 * number as u32 + 1]);
        settings.nvml.counter_check_seconds = 0.0;
        Ok(Self { workload: format!("chaos/job-{number}"), settings })
    }

    fn address(&self) -> SocketAddr {
        self.settings.progress.listen
    }

    fn collector(&self, world: &World) -> Result<Part> {
        let mut part = world.part(Service::Collector(Box::new(self.settings.clone())), None)?;
        self.await_endpoint(&mut part)?;
        Ok(part)
    }

    fn await_endpoint(&self, part: &mut Part) -> Result<()> {
        let begun = Instant::now();
        while std::net::TcpStream::connect(self.address()).is_err() {
            runs(part)?;
            ensure!(begun.elapsed() < LIMIT, "the collector does not listen: {}", part.tail());
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Reports of a job, and their form.
#[derive(Debug, Default)]
struct JobReports {
    /// Reports that were accepted, which count from 1 on.
    reports: u64,
    /// Attempts that reached no endpoint, or were cut off.
    again: u64,
}

/// A job that reports one step after the other, each until it is accepted.
struct Job {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<JobReports>>,
}

impl Job {
    fn start(node: &Node) -> Self {
        let (stop, address, workload) = (Arc::new(AtomicBool::new(false)), node.address(), node.workload.clone());
        let asked = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut job_reports = JobReports::default();
            while !asked.load(Ordering::SeqCst) {
                report(address, &workload, &mut job_reports)?;
                std::thread::sleep(PACE);
            }
            Ok(job_reports)
        });
        Self { stop, thread }
    }

    fn finish(self) -> Result<JobReports> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| anyhow!("a job panicked"))?
    }
}

fn report(address: SocketAddr, workload: &str, job_reports: &mut JobReports) -> Result<()> {
    let total = job_reports.reports + 1;
    let body = json!({"workload": workload, "samples_total": total, "time": now()}).to_string();
    let begun = Instant::now();
    loop {
        match post(address, &body) {
            Ok(answer) if is_accepted(&answer) => break,
            Ok(answer) if !answer.is_empty() => bail!("the collector answered: {answer}"),
            Ok(_) | Err(_) => {}
        }
        job_reports.again += 1;
        ensure!(begun.elapsed() < LIMIT, "nobody took a report within {LIMIT:?}");
        std::thread::sleep(PACE);
    }
    job_reports.reports = total;
    Ok(())
}

/// Compares the log with the sent and reported events.
fn judge(world: &World, nodes: &[Node], job_reports: &[JobReports], sent: u64, outcome: &mut Outcome) -> Result<()> {
    let mut ids: BTreeMap<(Topic, String), u64> = BTreeMap::new();
    let mut reports: BTreeMap<(String, u64), u64> = BTreeMap::new();
    let mut of_the_next = 0;
    for topic in OF_A_STORY {
        for record in read_committed(&world.bus, &world.topic(topic), PARTITIONS)? {
            // Heartbeats are the processor's.
            let ours = record.header(header::SOURCE).is_some_and(|source| source.starts_with("/collector/"));
            let Some(id) = record.header(header::ID).filter(|_| ours) else { continue };
            let value = record.value.as_deref().unwrap_or_default();
            of_the_next += u64::from(String::from_utf8_lossy(value).contains(eadt_faults::OF_THE_NEXT_VERSION));
            *ids.entry((topic, id.to_owned())).or_default() += 1;
            if topic == Topic::TrainingProgress {
                let event: TrainingProgress = serde_json::from_slice(value).context("a report")?;
                // The end of a source is its last report once more.
                if !event.last {
                    *reports.entry((event.workload, event.samples_total.unwrap_or(0.0) as u64)).or_default() += 1;
                }
            }
        }
    }
    let found = ids.values().sum::<u64>();
    outcome.check(found == sent, || format!("{sent} events were sent, {found} are in the log"));
    outcome.compared += ids.len() as u64;
    outcome.duplicated += ids.values().map(|count| count - 1).sum::<u64>();
    for (node, job_reports) in nodes.iter().zip(job_reports) {
        outcome.compared += job_reports.reports;
        for number in 1..=job_reports.reports {
            match reports.remove(&(node.workload.clone(), number)) {
                None => outcome.lost += 1,
                Some(count) => outcome.duplicated += count - 1,
            }
        }
        outcome.count("reports that were accepted", job_reports.reports);
        outcome.count("attempts to report while a collector was away", job_reports.again);
    }
    outcome.check(reports.is_empty(), || format!("these were never accepted: {reports:?}"));
    let mixed = of_the_next > 0 && of_the_next < found;
    outcome.check(mixed, || format!("{of_the_next} of {found} events are of the next minor version"));
    outcome.count("events", found);
    outcome.count("of the next minor version", of_the_next);
    Ok(())
}

/// Checks refused events: only those that came after the end of their source had closed its window.
fn refused(world: &World, outcome: &mut Outcome) -> Result<()> {
    for record in read_committed(&world.bus, &world.topic(Topic::DeadLetters), PARTITIONS)? {
        let reason = record.header("eadt_reason").unwrap_or_default().to_owned();
        outcome.check(reason == "late", || format!("refused as {reason}: {record:?}"));
        outcome.count("events that were late, their source having ended with its collector", u64::from(reason == "late"));
    }
    Ok(())
}
