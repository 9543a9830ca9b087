//! A broker that is there and does not answer: paused, or behind connections that carry nothing any more.
//!
//! Nothing is refused and nothing is hung up, so that only a limit on how long an answer may take finds it out. All services that live
//! on the log are looked at together: a collector, the processor, the archiver.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use eadt_collector::RawSettings;
use eadt_lake::Archive;
use eadt_tests::ports::free_address;

use super::archive::{self, OF_A_STORY, await_archived};
use super::collector::{Job, Summary, logged};
use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::{Part, Service};
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain, supervise};

pub const PAUSED: Row = Row {
    name: "paused-broker",
    fault: "SIGSTOP of the only broker for 8 to 60 s, every second time for 16 to 18 s, under collector, processor and archiver; then SIGCONT",
    promise: "jobs are not held up; nothing is lost or dropped, windows, decisions and files are what they would be without it; twice in the log is at most what a producer had on its way that was made anew",
    without: "the numbers by which a broker knows what a producer sent again",
    full: 20,
    batch: 5,
    short: 1,
    off: 1,
    run: paused,
};

pub const HALF_OPEN: Row = Row {
    name: "half-open",
    fault: "every connection of collector, processor and archiver to the only broker stays open and carries nothing any more; new ones do",
    promise: "jobs are not held up; everything goes on over new connections; nothing is lost or dropped, windows, decisions and files are what they would be without it",
    without: "the limit on how long an answer may take",
    full: 50,
    batch: 10,
    short: 1,
    off: 1,
    run: half_open,
};

pub const ONE_OF_THREE: Row = Row {
    name: "silent-broker",
    fault: "SIGSTOP of one of three brokers for 8 to 60 s, each in turn, every second time for 16 to 18 s, under collector, processor and archiver; then SIGCONT",
    promise: "jobs are not held up; windows of every partition go on without it; nothing is lost or dropped, windows, decisions and files are what they would be without it; twice in the log is at most what a producer had on its way that was made anew",
    without: "copies on other brokers",
    full: 12,
    batch: 3,
    short: 1,
    off: 3,
    run: one_of_three,
};

const WORKLOAD: &str = "apart/job";
/// Capacity of the collector's buffer: more than the events of the longest pause.
const ROOM: usize = 100_000;
const PACE: Duration = Duration::from_millis(50);
const REPORT_EVERY: Duration = Duration::from_millis(250);
/// A report that takes longer was held up: by the fault, or now and then by a busy machine.
pub const HELD_UP: Duration = Duration::from_secs(5);
/// So many reports are made at least, so that one that a busy machine held up is not most of them.
const REPORTS_AT_LEAST: u32 = 4;
/// The shortest pause, and those in which the client library's idempotent producer was seen to stay silent for ever afterwards.
const SHORTEST: Duration = Duration::from_secs(8);
const LONGEST: Duration = Duration::from_mins(1);
const SILENCING: Duration = Duration::from_secs(16);
/// Pauses longer than the sessions of the broker and of the members, and the time after them. A broker that goes on knows no broker
/// until its cluster has taken it back.
const PAST_SESSIONS: Duration = Duration::from_secs(45);
const BETWEEN: Duration = Duration::from_secs(14);
/// Longest time until a cluster has noticed that one of its brokers is away.
const LEADERS_MOVE: Duration = Duration::from_secs(6);
/// Time limit of answers if connections are silent, so that a round takes seconds.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Longest time from SIGTERM to the end without answers. However many partitions there are, few requests are made.
const STOPS_WITHIN: Duration = Duration::from_secs(90);
/// Time without any event if the limit is off.
const NOTHING_WITHIN: Duration = Duration::from_secs(5);

/// A collector with a job that reports.
pub struct Collecting {
    pub part: Part,
    job: Job,
    longest: Duration,
    /// Times in which more than a quarter of the reports were held up.
    held_up: u32,
}

impl Collecting {
    pub fn start(world: &World) -> Result<Self> {
        let address = free_address()?;
        let mut settings = RawSettings { name: Some("node".to_owned()), ..RawSettings::default() };
        settings.buffer.events = ROOM;
        settings.buffer.drain_seconds = LIMIT.as_secs_f64();
        settings.progress.listen = address;
        let mut part = world.part(Service::Collector(Box::new(settings)), None)?;
        let mut job = Job { address, workload: WORKLOAD.to_owned(), reported: 0 };
        explain(job.await_endpoint(&mut part), &part)?;
        explain(job.report(2), &part)?;
        Ok(Self { part, job, longest: Duration::ZERO, held_up: 0 })
    }

    /// Returns the address for reports.
    pub fn address(&self) -> std::net::SocketAddr {
        self.job.address
    }

    /// Reports for so long.
    pub fn report_for(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        let (mut reports, mut late) = (0_u32, 0_u32);
        while Instant::now() < until || reports < REPORTS_AT_LEAST {
            let begun = Instant::now();
            explain(self.job.report(1), &self.part)?;
            let took = begun.elapsed();
            self.longest = self.longest.max(took);
            reports += 1;
            late += u32::from(took >= HELD_UP);
            std::thread::sleep(REPORT_EVERY.min(until.saturating_duration_since(Instant::now())));
        }
        self.held_up += u32::from(4 * late > reports);
        Ok(())
    }

    /// Ends it: what it reports as sent is in the log, and nothing else. `others`: events that it was sent beside its job's.
    pub fn judge(self, world: &World, others: u64, outcome: &mut Outcome) -> Result<()> {
        let (longest, held_up) = (self.longest, self.held_up);
        outcome.took("a report, at most, while nobody answers", longest.as_secs_f64());
        outcome.check(held_up == 0, || {
            format!("{held_up} times more than a quarter of the reports took {HELD_UP:?} or longer, one {longest:?}")
        });
        // The end of the job's only source is an event, too.
        let reported = self.job.reported + 1 + others;
        self.part.ask_to_end()?;
        let mut part = self.part;
        let status = part.await_end(LIMIT + LIMIT)?;
        ensure!(status.success(), "the collector ended with {status}: {}", part.tail());
        let Summary { sampled, sent, dropped } = Summary::read(&part.printed()?)?;
        outcome.check(sampled == reported, || format!("{sampled} of {reported} events were sampled"));
        outcome.check((sent, dropped) == (sampled, 0), || format!("of {sampled} events {sent} were sent and {dropped} dropped"));
        let (renewals, unanswered) = renewals(&part.log());
        let (found, repeated) = logged(world, WORKLOAD)?;
        outcome.lost += (sent - others.min(sent)).saturating_sub(found - repeated);
        outcome.compared += sent;
        if repeated > unanswered {
            outcome.duplicated += repeated - unanswered;
            outcome.examples.push(format!("{repeated} events of the collector are in the log again, {unanswered} may be"));
        }
        outcome.count("events of the collector", sent);
        outcome.count("times that a silent producer was made anew", renewals);
        outcome.count("events in the log again for that", repeated);
        Ok(())
    }
}

/// How often a log reports that a producer was made anew, and how many records it sent again, which are marked. The library takes some
/// of them for unsent that are in the log.
fn renewals(log: &str) -> (u64, u64) {
    let count = |line: &str, name: &str| line.split(name).nth(1)?.split_whitespace().next()?.parse::<u64>().ok();
    let of = |line: &str| Some(count(line, "unanswered=")? + count(line, "unsent=")?);
    let counts = log.lines().filter(|line| line.contains("it was made anew")).filter_map(of);
    counts.fold((0, 0), |(times, sum), unanswered| (times + 1, sum + unanswered))
}

/// The services that read.
pub struct Reading {
    pub processor: Part,
    pub archiver: Part,
}

impl Reading {
    pub fn start(world: &World) -> Result<Self> {
        Ok(Self { processor: world.processor(world.settings(), None)?, archiver: archiver(world)? })
    }

    /// Starts again what ended since the broker took it for another one of its name.
    pub fn supervise(&mut self, world: &World, outcome: &mut Outcome) -> Result<()> {
        supervise(&mut self.processor, || world.processor(world.settings(), None), outcome)?;
        supervise(&mut self.archiver, || archiver(world), outcome)?;
        Ok(())
    }

    /// Waits until everything that was sent is read, and compares; workloads for which `is_apart` holds are no part of the story.
    pub fn judge(mut self, world: &World, story: &Story, is_apart: impl Fn(&str) -> bool, outcome: &mut Outcome) -> Result<()> {
        let folded = world.await_folded(LIMIT)?;
        outcome.check(folded, || format!("not everything was folded: {}", self.processor.tail()));
        self.supervise(world, outcome)?;
        crate::world::runs(&mut self.processor)?;
        // Its heartbeats go on, and would be in the log and not in files any more.
        end(&mut self.processor)?;
        let place = world.dir().join("archive");
        let archive = Archive::folder(&place)?;
        let archived = await_archived(world, &archive, &OF_A_STORY, &mut self.archiver, LIMIT)?;
        outcome.check(archived, || format!("not everything was archived: {}", self.archiver.tail()));
        supervise(&mut self.archiver, || archiver(world), outcome)?;
        crate::world::runs(&mut self.archiver)?;
        self.archiver.kill()?;
        outcome.take(world.judge_except(story, is_apart)?);
        archive::judge(world, &place, &archive, &OF_A_STORY, outcome)?;
        outcome.count("events of the story", story.events.len() as u64);
        Ok(())
    }
}

/// Asks a part to end, and waits until it has ended well.
pub fn end(part: &mut Part) -> Result<()> {
    part.ask_to_end()?;
    let status = part.await_end(LIMIT)?;
    ensure!(status.success(), "a process ended with {status}: {}", part.tail());
    Ok(())
}

pub fn archiver(world: &World) -> Result<Part> {
    world.part(Service::Archiver(Box::new(archive::settings(&world.dir().join("archive")))), None)
}

fn length(round: u32, chance: &mut Chance) -> Duration {
    match round {
        0 => SHORTEST,
        round if round % 2 == 1 => SILENCING + Duration::from_millis(chance.below(2000)),
        _ => PAST_SESSIONS + Duration::from_millis(chance.below(LONGEST.saturating_sub(PAST_SESSIONS).as_millis() as u64)),
    }
}

fn paused(run: Run) -> Result<Outcome> {
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let world = World::start(Cluster::One, run.bites.then_some("idempotence"))?;
    if run.bites {
        return paused_without_numbers(world);
    }
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), PACE)?;
    let watch = world.watch()?;
    let (mut collecting, mut reading) = (Collecting::start(&world)?, Reading::start(&world)?);
    explain(watch.await_next(Instant::now()), &reading.processor)?;
    for round in 0..run.rounds {
        world.brokers[0].freeze(true)?;
        let length = length(round, &mut chance);
        let reported = collecting.report_for(length);
        world.brokers[0].freeze(false)?;
        reported?;
        let back = Instant::now();
        reading.supervise(&world, &mut outcome)?;
        outcome.took("from the broker's going on to the next window", watch.await_next(back)?.as_secs_f64());
        collecting.report_for(if length < PAST_SESSIONS { Duration::from_millis(500) } else { BETWEEN })?;
        outcome.rounds += 1;
    }
    let story = feeder.finish()?;
    collecting.judge(&world, 0, &mut outcome)?;
    reading.judge(&world, &story, |workload| workload == WORKLOAD, &mut outcome)?;
    drop(watch);
    drop(world);
    stop_in_a_pause(run.seed, &mut outcome)?;
    Ok(outcome)
}

fn one_of_three(run: Run) -> Result<Outcome> {
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let world = World::start_with(Cluster::Three, None, if run.bites { 1 } else { 3 })?;
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), PACE)?;
    let watch = world.watch()?;
    let (mut collecting, mut reading) = (Collecting::start(&world)?, Reading::start(&world)?);
    explain(watch.await_next(Instant::now()), &reading.processor)?;
    for round in 0..run.rounds {
        if !run.bites {
            // A broker that this machine held up may lack copies, and the next one to be silent would have the last ones.
            world.brokers[0].await_copies()?;
        }
        let broker = &world.brokers[round as usize % world.brokers.len()];
        broker.freeze(true)?;
        let begun = Instant::now();
        let reported = collecting.report_for(length(round, &mut chance));
        // By now the cluster has found other leaders.
        let goes_on = watch.await_all_after(begun + LEADERS_MOVE, if run.bites { NOTHING_WITHIN } else { LIMIT });
        broker.freeze(false)?;
        reported?;
        outcome.check(goes_on, || format!("not every partition goes on without the broker: {}", reading.processor.tail()));
        outcome.rounds += 1;
        if run.bites {
            // Not every broker has the only copy of something that is read or written.
            if outcome.violations() > 0 {
                return Ok(outcome);
            }
            continue;
        }
        reading.supervise(&world, &mut outcome)?;
        collecting.report_for(BETWEEN)?;
    }
    let story = feeder.finish()?;
    if run.bites {
        return Ok(outcome);
    }
    collecting.judge(&world, 0, &mut outcome)?;
    reading.judge(&world, &story, |workload| workload == WORKLOAD, &mut outcome)?;
    Ok(outcome)
}

/// Asks the services that read to end while the broker is paused. What the processor has read is in the log. The archiver ends with
/// an error if rows are in no file.
fn stop_in_a_pause(seed: u64, outcome: &mut Outcome) -> Result<()> {
    let world = World::start(Cluster::One, None)?;
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(seed, 3), PACE)?;
    let watch = world.watch()?;
    let Reading { mut processor, mut archiver } = Reading::start(&world)?;
    explain(watch.await_next(Instant::now()), &processor)?;
    world.brokers[0].freeze(true)?;
    let begun = Instant::now();
    processor.ask_to_end()?;
    archiver.ask_to_end()?;
    for (name, part) in [("processor", &mut processor), ("archiver", &mut archiver)] {
        let status = part.await_end(LIMIT)?;
        let took = begun.elapsed();
        outcome.took(&format!("from SIGTERM in a pause to the end of the {name}"), took.as_secs_f64());
        outcome.check(took < STOPS_WITHIN, || format!("the {name} took {took:?} to end: {}", part.tail()));
        let is_reported = name == "archiver" && part.log().contains("they are in the log");
        outcome.check(status.success() || is_reported, || format!("the {name} ended with {status}: {}", part.tail()));
    }
    world.brokers[0].freeze(false)?;
    feeder.finish()?;
    // Records that it could not write are archived at the next start.
    let place = world.dir().join("archive");
    let archive = Archive::folder(&place)?;
    let mut archiver = self::archiver(&world)?;
    let archived = await_archived(&world, &archive, &OF_A_STORY, &mut archiver, LIMIT)?;
    outcome.check(archived, || format!("not everything was archived after the pause: {}", archiver.tail()));
    archiver.kill()?;
    archive::judge(&world, &place, &archive, &OF_A_STORY, outcome)
}

/// Requests in flight when the broker was paused are sent again over another connection, which the broker finds beside the
/// first one.
fn paused_without_numbers(mut world: World) -> Result<Outcome> {
    let mut outcome = Outcome { rounds: 1, ..Outcome::default() };
    world.properties.insert("socket.timeout.ms".into(), "1000".into());
    let mut collecting = Collecting::start(&world)?;
    let begun = Instant::now();
    // Only data sent over an existing connection can be in flight.
    while logged(&world, WORKLOAD)?.0 == 0 {
        ensure!(begun.elapsed() < LIMIT, "nothing of the collector is in the log: {}", collecting.part.tail());
        std::thread::sleep(Duration::from_millis(100));
    }
    world.brokers[0].freeze(true)?;
    let reported = collecting.report_for(Duration::from_secs(4));
    world.brokers[0].freeze(false)?;
    reported?;
    collecting.judge(&world, 0, &mut outcome)?;
    Ok(outcome)
}

fn half_open(run: Run) -> Result<Outcome> {
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let mut world = World::start(Cluster::Proxied, run.bites.then_some("answer-timeout"))?;
    world.properties.insert("socket.timeout.ms".into(), ANSWER_WITHIN.as_millis().to_string());
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), PACE)?;
    let watch = world.watch()?;
    let (mut collecting, mut reading) = (Collecting::start(&world)?, Reading::start(&world)?);
    explain(watch.await_next(Instant::now()), &reading.processor)?;
    for _ in 0..run.rounds {
        std::thread::sleep(Duration::from_millis(chance.below(500)));
        let proxy = world.proxy.as_ref().expect("the cluster has a proxy");
        let connections = proxy.drop_silently();
        let begun = Instant::now();
        outcome.count("connections that carried nothing any more", connections);
        if run.bites {
            // By when they were seen: a busy machine may let this thread go on late, and the longer limit ends the silence, too.
            let from = begun + NOTHING_WITHIN;
            let to = from + Duration::from_millis(500);
            std::thread::sleep(to.saturating_duration_since(Instant::now()));
            let came = watch.first_after(from).is_some_and(|seen| seen <= to);
            outcome.check(came, || format!("no window came after {NOTHING_WITHIN:?}"));
            outcome.rounds += 1;
            return Ok(outcome);
        }
        collecting.report_for(ANSWER_WITHIN)?;
        // Records read before still make windows for a moment.
        let later = begun + ANSWER_WITHIN / 2;
        reading.supervise(&world, &mut outcome)?;
        let next = watch.await_next(later)? + (later - begun);
        outcome.took("from the connections' silence to the next window", next.as_secs_f64());
        outcome.rounds += 1;
    }
    let story = feeder.finish()?;
    collecting.judge(&world, 0, &mut outcome)?;
    reading.judge(&world, &story, |workload| workload == WORKLOAD, &mut outcome)?;
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_there_twice_is_read_from_the_log() {
        let log = "WARN it was made anew; producer=\"a\" unanswered=3 unsent=9 lost=0\nINFO nothing\n\
                   WARN the log answers: it was made anew producer=\"a\" unanswered=0 unsent=0 lost=0\n";
        assert_eq!(renewals(log), (2, 12));
        assert_eq!(renewals("INFO all is well"), (0, 0));
    }

    #[test]
    fn pauses_are_between_the_shortest_and_the_longest() {
        let mut chance = Chance::new(7);
        let lengths: Vec<_> = (0..100).map(|round| length(round, &mut chance)).collect();
        assert_eq!(lengths[0], SHORTEST);
        assert!(lengths.iter().all(|length| (SHORTEST..LONGEST).contains(length)));
        assert!(lengths.iter().skip(1).step_by(2).all(|length| (SILENCING..SILENCING + Duration::from_secs(2)).contains(length)));
    }
}
