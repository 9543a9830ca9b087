//! A broker that is stopped for seconds and goes on, and connections that lead nowhere any more: nobody is told of either.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use eadt_collector::RawSettings;

use super::collector::{Job, Summary, logged, newest};
use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::{Part, Service};
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::world::{Cluster, LIMIT, World, explain};

pub const BROKER: Row = Row {
    name: "paused-broker",
    fault: "SIGSTOP of the only broker for 8 to 60 s while jobs report and windows are made, and SIGCONT",
    promise: "windows go on; every report that was accepted is in the log 40 s after the broker goes on, and nothing is dropped",
    without: "counting what a full buffer gives up, with a buffer that the pause is too long for",
    full: 40,
    batch: 5,
    short: 1,
    off: 1,
    run: pause,
};

pub const HALF_OPEN: Row = Row {
    name: "half-open",
    fault: "all connections of the collector and the processor to the broker are half open from one moment on: nothing arrives, and nobody is told",
    promise: "windows go on; every report that was accepted is in the log 40 s later, and nothing is dropped",
    without: "a fresh producer where nothing is acknowledged though the broker answers",
    full: 20,
    batch: 5,
    short: 1,
    off: 1,
    run: half_open,
};

/// Acknowledged by then, machine load included: a producer is made anew after 20 s in which the cluster answers.
const ACKNOWLEDGED: Duration = Duration::from_secs(40);
/// Of the collector where the pause is to be too long for it, events.
const SMALL: usize = 200;

struct Reports {
    part: Part,
    job: Job,
}

impl Reports {
    fn start(world: &World, room: Option<usize>) -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut settings = RawSettings { name: Some("node".to_owned()), ..RawSettings::default() };
        settings.buffer.drain_seconds = 60.0;
        settings.progress.listen = address;
        if let Some(events) = room {
            settings.buffer.events = events;
        }
        let mut part = world.part(Service::Collector(Box::new(settings)), None)?;
        let job = Job { address, workload: "reports/job".to_owned(), told: 0 };
        explain(job.await_endpoint(&mut part), &part)?;
        Ok(Self { part, job })
    }

    /// Reports five times a second for so long.
    fn report_for(&mut self, time: Duration) -> Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            explain(self.job.report(1), &self.part)?;
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Waits until the newest report is in the log.
    fn await_log(&self, world: &World, outcome: &mut Outcome, what: &str) -> Result<()> {
        let begun = Instant::now();
        while newest(world, &self.job.workload)? != Some(self.job.told) && begun.elapsed() < ACKNOWLEDGED {
            std::thread::sleep(Duration::from_millis(200));
        }
        let there = newest(world, &self.job.workload)?;
        outcome.check(there == Some(self.job.told), || {
            format!("of {} reports the newest in the log is {there:?} after {ACKNOWLEDGED:?}", self.job.told)
        });
        outcome.took(what, begun.elapsed().as_secs_f64());
        Ok(())
    }

    fn end(self, world: &World, outcome: &mut Outcome) -> Result<()> {
        let renewed = self.part.log().matches("it was made anew").count();
        let Summary { sampled, sent, dropped } = Summary::read(&self.part.stop(LIMIT)?)?;
        let told = self.job.told + 1;
        outcome.check(sampled == told, || format!("{sampled} of {told} events were sampled"));
        outcome.check(sent + dropped == sampled, || format!("{sent} sent + {dropped} dropped are not {sampled} sampled"));
        outcome.check(dropped == 0, || format!("{dropped} were dropped"));
        let (found, repeated) = logged(world, &self.job.workload)?;
        outcome.lost += told.saturating_sub(found - repeated);
        outcome.compared += told;
        outcome.count("reports", told);
        outcome.count("of these in the log twice, because nobody could know", repeated);
        outcome.count("producers made anew", renewed as u64);
        Ok(())
    }
}

fn pause(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let mut world = World::start(Cluster::One, run.bites.then_some("drop-counts"))?;
    if run.bites {
        world.properties.insert("queue.buffering.max.messages".into(), SMALL.to_string());
    }
    let (watch, mut outcome) = (world.watch()?, Outcome::default());
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    let part = world.processor(world.settings(), None)?;
    let mut reports = Reports::start(&world, run.bites.then_some(SMALL))?;
    for round in 0..run.rounds {
        explain(watch.await_next(Instant::now()), &part)?;
        reports.report_for(Duration::from_secs(2))?;
        // The harness's own producer is no part of it. What it told is still being folded.
        feeder.hold(true)?;
        world.brokers[0].freeze(true)?;
        // The first is as long as the pauses that client libraries were found to trip over.
        reports.report_for(Duration::from_secs(if round == 0 { 17 } else { 8 + chance.below(53) }))?;
        world.brokers[0].freeze(false)?;
        let up = Instant::now();
        feeder.hold(false)?;
        reports.report_for(Duration::from_secs(1))?;
        let next = explain(watch.await_next(up), &part)?;
        outcome.took("from the broker's return to the next window", next.as_secs_f64());
        reports.await_log(&world, &mut outcome, "until every report was in the log")?;
        outcome.rounds += 1;
    }
    finish(&world, part, feeder, reports, &mut outcome)?;
    Ok(outcome)
}

fn half_open(run: Run) -> Result<Outcome> {
    let world = World::start(Cluster::Proxied, run.bites.then_some("fresh-silent-producer"))?;
    let proxy = world.proxy.as_ref().context("a proxy")?;
    let (watch, mut outcome) = (world.watch()?, Outcome::default());
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    let part = world.processor(world.settings(), None)?;
    let mut reports = Reports::start(&world, None)?;
    for _ in 0..run.rounds {
        explain(watch.await_next(Instant::now()), &part)?;
        reports.report_for(Duration::from_secs(2))?;
        proxy.half_open();
        let begun = Instant::now();
        reports.report_for(Duration::from_secs(1))?;
        reports.await_log(&world, &mut outcome, "until every report was in the log")?;
        if run.bites {
            // What it shows has been seen; the rest would only take its time.
            outcome.rounds += 1;
            return Ok(outcome);
        }
        let next = explain(watch.await_next(begun + Duration::from_secs(1)), &part)?;
        outcome.took("to the next window", next.as_secs_f64());
        outcome.rounds += 1;
    }
    finish(&world, part, feeder, reports, &mut outcome)?;
    Ok(outcome)
}

fn finish(world: &World, mut part: Part, feeder: Feeder, reports: Reports, outcome: &mut Outcome) -> Result<()> {
    reports.end(world, outcome)?;
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    outcome.take(world.judge(&story)?);
    Ok(())
}
