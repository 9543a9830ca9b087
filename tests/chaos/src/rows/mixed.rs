//! Faults of every kind one after another, on collector, processor and archiver together.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use eadt_schemas::Topic;
use eadt_schemas::decode::MAX_NAME_BYTES;

use super::archive;
use super::collector::{is_accepted, logged, post};
use super::unanswered::{Collecting, Reading, archiver, end};
use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::Service;
use crate::row::{Outcome, Row, Run};
use crate::story::Story;
use crate::verify::read_committed;
use crate::world::{Cluster, LIMIT, PARTITIONS, Watch, World, explain};

pub const ROW: Row = Row {
    name: "mixed",
    fault: "by chance, all kinds before one comes again: the only broker paused, stopped and started, or silent on every connection; collector, \
            processor or archiver paused; processor or archiver killed, or started again with other settings; reports with hostile names",
    promise: "nothing that was acknowledged is lost, dropped or refused later; windows, decisions and files are what they would be without it; \
              hostile names cost their sender an error and nobody else anything",
    without: "going on from the committed positions (from the newest record instead)",
    full: 360,
    batch: 60,
    short: 3,
    off: 2,
    run,
};

/// Workloads that are no part of the story.
pub const APART: &str = "apart/";
const PACE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    PauseBroker,
    RestartBroker,
    SilenceConnections,
    PauseCollector,
    PauseProcessor,
    PauseArchiver,
    KillProcessor,
    KillArchiver,
    ChangeProcessor,
    ChangeArchiver,
    HostileNames,
}

impl Fault {
    const ALL: [Self; 11] = [
        Self::PauseBroker,
        Self::RestartBroker,
        Self::SilenceConnections,
        Self::PauseCollector,
        Self::PauseProcessor,
        Self::PauseArchiver,
        Self::KillProcessor,
        Self::KillArchiver,
        Self::ChangeProcessor,
        Self::ChangeArchiver,
        Self::HostileNames,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::PauseBroker => "pauses of the broker",
            Self::RestartBroker => "restarts of the broker",
            Self::SilenceConnections => "times that every connection fell silent",
            Self::PauseCollector => "pauses of the collector",
            Self::PauseProcessor => "pauses of the processor",
            Self::PauseArchiver => "pauses of the archiver",
            Self::KillProcessor => "kills of the processor",
            Self::KillArchiver => "kills of the archiver",
            Self::ChangeProcessor => "starts of the processor with other settings",
            Self::ChangeArchiver => "starts of the archiver with other settings",
            Self::HostileNames => "times that hostile names were reported",
        }
    }
}

/// Draws all kinds before one comes again.
struct Bag {
    chance: Chance,
    left: Vec<Fault>,
}

impl Bag {
    fn new(seed: u64) -> Self {
        Self { chance: Chance::new(seed), left: Vec::new() }
    }

    fn draw(&mut self) -> Fault {
        if self.left.is_empty() {
            self.left = Fault::ALL.to_vec();
        }
        let place = self.chance.below(self.left.len() as u64) as usize;
        self.left.swap_remove(place)
    }

    fn seconds(&mut self, low: f64, high: f64) -> Duration {
        Duration::from_secs_f64(self.chance.between(low, high))
    }
}

/// Names that must be refused, and odd ones that must be taken.
fn names(round: u32) -> (Vec<String>, Vec<String>) {
    let long = |length: usize, tail: &str| format!("{APART}{}{tail}", "n".repeat(length - APART.len() - tail.len()));
    let hostile = [
        long(MAX_NAME_BYTES + 1, "x"),
        long(4096, "x"),
        "apart".to_owned(),
        format!("{APART}a/b"),
        APART.to_owned(),
        "/job".to_owned(),
        format!("{APART}a\u{0}b"),
        format!("{APART}a\nb"),
        format!("{APART}a\u{1b}[2Jb"),
        format!("{APART}../../etc"),
    ];
    let odd = [
        long(MAX_NAME_BYTES, &format!("-{round}")),
        format!("{APART}a b-{round}"),
        format!("{APART}a\u{202e}b-{round}"),
        format!("{APART}a\u{200b}b-{round}"),
        format!("{APART}<script>-{round}"),
    ];
    (hostile.to_vec(), odd.to_vec())
}

/// A report of a workload, and of a span: ids of its windows have both names.
fn body(workload: &str, span: Option<&str>) -> Result<String> {
    let mut report = serde_json::json!({ "workload": workload, "samples_total": 1 });
    if let Some(span) = span {
        report["span"] = span.into();
    }
    Ok(serde_json::to_string(&[report])?)
}

/// Whether a span may not have this name either: the name of a span is limited only in length, and has no control characters.
fn is_hostile_span(name: &str) -> bool {
    name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control)
}

/// Reports under hostile names, and under odd ones that are allowed; the latter are returned.
fn report_hostile_names(address: SocketAddr, round: u32, outcome: &mut Outcome) -> Result<Vec<String>> {
    let (hostile, odd) = names(round);
    // One at a time: what is refused is the workload's name, or the span's.
    let good = format!("{APART}good-{round}");
    let workloads = hostile.iter().map(|name| (name, body(name, None), "name"));
    let spans = hostile.iter().filter(|name| is_hostile_span(name)).map(|name| (name, body(&good, Some(name)), "span"));
    for (name, body, what) in workloads.chain(spans) {
        let answer = post(address, &body?)?;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        outcome.compared += 1;
        outcome.check(status.starts_with('4'), || format!("a report under the {what} {name:?} was answered {status:?}"));
    }
    for name in &odd {
        let answer = post(address, &body(name, Some(name))?)?;
        outcome.check(is_accepted(&answer), || format!("a report under the name {name:?} was answered {answer:?}"));
    }
    Ok(odd)
}

fn run(run: Run) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut world = World::start(Cluster::Proxied, run.bites.then_some("rewind"))?;
    // Short, so that a round takes seconds.
    world.properties.insert("socket.timeout.ms".into(), "3000".into());
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), PACE)?;
    let watch = world.watch()?;
    let (mut collecting, mut reading) = (Collecting::start(&world)?, Reading::start(&world)?);
    explain(watch.await_next(Instant::now()), &reading.processor)?;
    let mut bag = Bag::new(run.seed);
    let mut odd_names = BTreeSet::new();
    for round in 0..run.rounds {
        let fault = if run.bites { Fault::KillProcessor } else { bag.draw() };
        let begun = Instant::now();
        let strike = strike(fault, round, &mut world, &mut bag, &mut collecting, &mut reading, &mut outcome);
        odd_names.extend(strike.with_context(|| format!("round {}: {}", round + 1, fault.name()))?);
        outcome.count(fault.name(), 1);
        if run.bites {
            std::thread::sleep(Duration::from_secs(2));
        } else {
            recover(&watch, &world, &mut reading, &mut outcome).with_context(|| format!("after {}", fault.name()))?;
            outcome.took("from a fault's begin to the next window after its end", begun.elapsed().as_secs_f64());
        }
        collecting.report_for(Duration::from_millis(500))?;
        outcome.rounds += 1;
    }
    let story = feeder.finish()?;
    for name in &odd_names {
        let (found, repeated) = logged(&world, name)?;
        outcome.check(found > repeated, || format!("of {name:?}, which was accepted, nothing is in the log"));
    }
    // Each has one report and its end.
    collecting.judge(&world, 2 * odd_names.len() as u64, &mut outcome)?;
    reading.judge(&world, &story, |workload| workload.starts_with(APART), &mut outcome)?;
    let letters = read_committed(&world.bus, &world.topic(Topic::DeadLetters), PARTITIONS)?;
    outcome.check(letters.is_empty(), || format!("{} events that were accepted were refused later", letters.len()));
    Ok(outcome)
}

/// Waits for a window, so that the next fault meets services at work; starts again who only its supervisor can.
fn recover(watch: &Watch, world: &World, reading: &mut Reading, outcome: &mut Outcome) -> Result<()> {
    let over = Instant::now();
    while !watch.has_all_after(over) {
        reading.supervise(world, outcome)?;
        if over.elapsed() > LIMIT {
            explain(Err(anyhow::anyhow!("no window came within {LIMIT:?}")), &reading.processor)?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Lets the fault happen; names under which it reported.
fn strike(
    fault: Fault,
    round: u32,
    world: &mut World,
    bag: &mut Bag,
    collecting: &mut Collecting,
    reading: &mut Reading,
    outcome: &mut Outcome,
) -> Result<Vec<String>> {
    match fault {
        Fault::PauseBroker => {
            world.brokers[0].freeze(true)?;
            let reported = collecting.report_for(bag.seconds(2.0, 18.0));
            world.brokers[0].freeze(false)?;
            reported?;
        }
        Fault::RestartBroker => {
            world.brokers[0].stop()?;
            let reported = collecting.report_for(bag.seconds(0.5, 8.0));
            world.brokers[0].start_again()?;
            reported?;
        }
        Fault::SilenceConnections => {
            let proxy = world.proxy.as_ref().context("the cluster has a proxy")?;
            proxy.drop_silently();
            collecting.report_for(Duration::from_secs(3))?;
        }
        Fault::PauseCollector => {
            collecting.part.freeze(true)?;
            std::thread::sleep(bag.seconds(1.0, 12.0));
            collecting.part.freeze(false)?;
        }
        Fault::PauseProcessor | Fault::PauseArchiver => {
            let part = if fault == Fault::PauseProcessor { &reading.processor } else { &reading.archiver };
            part.freeze(true)?;
            let reported = collecting.report_for(bag.seconds(1.0, 15.0));
            part.freeze(false)?;
            reported?;
        }
        Fault::KillProcessor => {
            reading.processor.stop_at_once()?;
            reading.processor = world.processor(world.settings(), None)?;
        }
        Fault::KillArchiver => {
            reading.archiver.stop_at_once()?;
            reading.archiver = archiver(world)?;
        }
        Fault::ChangeProcessor => {
            let mut settings = world.settings();
            // Another member of the group, which commits at other times.
            settings.instance = format!("processor-{}", bag.chance.below(3));
            settings.commit_seconds = bag.chance.between(0.1, 2.0);
            end(&mut reading.processor)?;
            reading.processor = world.processor(settings, None)?;
        }
        Fault::ChangeArchiver => {
            let mut settings = archive::settings(&world.dir().join("archive"));
            settings.instance = format!("archiver-{}", bag.chance.below(3));
            settings.roll_rows = 50 + bag.chance.below(300) as usize;
            end(&mut reading.archiver)?;
            reading.archiver = world.part(Service::Archiver(Box::new(settings)), None)?;
        }
        Fault::HostileNames => return report_hostile_names(collecting.address(), round, outcome),
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes_before_one_comes_again() {
        let mut bag = Bag::new(3);
        for _ in 0..3 {
            let drawn: BTreeSet<&str> = Fault::ALL.iter().map(|_| bag.draw().name()).collect();
            assert_eq!(drawn.len(), Fault::ALL.len());
        }
    }

    #[test]
    fn names_have_the_lengths_that_they_are_to_have() {
        let (hostile, long) = names(7);
        assert_eq!((hostile[0].len(), hostile[1].len(), long[0].len()), (254, 4096, 253));
        assert!(long[0].starts_with(APART) && long[0].ends_with("-7"));
        assert_eq!(hostile.iter().filter(|name| is_hostile_span(name)).count(), 5);
        assert!(!long.iter().any(|name| is_hostile_span(name)));
        let report = |span| serde_json::from_str::<serde_json::Value>(&body("apart/a", span).unwrap()).unwrap();
        assert_eq!(report(None), serde_json::json!([{ "workload": "apart/a", "samples_total": 1 }]));
        assert_eq!(report(Some("s"))[0]["span"], "s");
    }
}
