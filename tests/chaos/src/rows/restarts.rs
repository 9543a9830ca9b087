//! Brokers that are killed and come back: the only one, or one of three.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use eadt_bus::{Bus, TopicPartition, partition_for_key};
use eadt_schemas::{EventTime, Topic};
use eadt_tests::Kafka;
use serde::Deserialize;

use crate::chance::Chance;
use crate::feeder::Feeder;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::story::{BASE_SECONDS, Story, WINDOW_SECONDS};
use crate::verify::{each_committed, high};
use crate::world::{Cluster, LIMIT, PARTITIONS, World, explain, supervise};

pub const ONE: Row = Row {
    name: "broker",
    fault: "SIGKILL or SIGTERM of the only broker, which comes back, sometimes after the members' sessions have run out",
    promise: "bounded stall, nothing lost; only windows and decisions that the broker itself was seen to leave open may be missing, and are counted",
    without: "going on from the committed positions (from the newest record instead)",
    full: 100,
    batch: 10,
    short: 1,
    off: 1,
    run: one,
};

pub const THREE: Row = Row {
    name: "leader",
    fault: "SIGKILL of one of three brokers, which comes back once windows go on",
    promise: "windows go on without it, nothing lost",
    without: "copies on other brokers",
    full: 30,
    batch: 6,
    short: 1,
    off: 3,
    run: three,
};

/// Longer than a session.
const LONG: Duration = Duration::from_secs(8);
/// Longer than a step may take: the step that is open fails.
const AWAY: Duration = Duration::from_secs(14);

/// A kill of the broker. Of everything, a transaction that the broker forgot then may have taken away only windows and decisions of the
/// step that was open, in partitions that it did not mark. What it forgot of state and positions takes nothing away.
#[derive(Debug)]
struct Killed {
    /// Positions that were committed before it, by input; `None`: none were.
    positions: Vec<Option<i64>>,
    /// What had been told by then, in seconds of the story.
    told: u64,
    /// Bytes of the broker's log.
    logged: usize,
    /// Partitions that the broker then said it would not mark, and in which the operator found a transaction open.
    forgotten: BTreeSet<String>,
}

impl Killed {
    /// When the windows begin that the step can have a part in, in seconds: that were open at its first event or later.
    fn open(&self, inputs: &[Vec<(i64, i64)>]) -> RangeInclusive<i64> {
        let after = |(input, position): (&Vec<(i64, i64)>, &Option<i64>)| {
            let position = position.unwrap_or(0);
            input.iter().filter(|(offset, _)| *offset >= position).map(|(_, seconds)| *seconds).min()
        };
        let told = BASE_SECONDS + self.told as i64;
        let first = inputs.iter().zip(&self.positions).filter_map(after).min().unwrap_or(told);
        // A window is open until the next event of each source, which comes within a second.
        first - WINDOW_SECONDS - 1..=told
    }

    /// Partitions whose windows or decisions it forgot.
    fn partitions(&self, prefix: &str) -> Vec<i32> {
        let is_forgotten = |partition: &i32| {
            let mut of = [Topic::EfficiencyWindows, Topic::Decisions].into_iter();
            of.any(|topic| self.forgotten.contains(&format!("{prefix}{topic}-{partition}")))
        };
        (0..PARTITIONS).filter(is_forgotten).collect()
    }
}

/// Windows of a partition that begin within these times, in seconds, and their decisions.
#[derive(Debug)]
struct Excused {
    partition: i32,
    begins: RangeInclusive<i64>,
}

impl Excused {
    fn has(&self, workload: &str, begin: i64) -> bool {
        self.begins.contains(&begin) && partition_for_key(workload.as_bytes(), PARTITIONS) == self.partition
    }
}

/// What the broker's own forgetting excuses: nothing where it was not seen.
fn excused(world: &World, kills: &[Killed]) -> Result<Vec<Excused>> {
    if kills.iter().all(|kill| kill.partitions(&world.prefix).is_empty()) {
        return Ok(Vec::new());
    }
    let times = event_times(world)?;
    let of = |kill: &Killed| {
        let begins = kill.open(&times);
        kill.partitions(&world.prefix).into_iter().map(move |partition| Excused { partition, begins: begins.clone() })
    };
    Ok(kills.iter().flat_map(of).collect())
}

/// Offsets of the inputs' events, and their times in seconds.
fn event_times(world: &World) -> Result<Vec<Vec<(i64, i64)>>> {
    #[derive(Deserialize)]
    struct Timed {
        time: EventTime,
    }
    let mut times: BTreeMap<TopicPartition, Vec<(i64, i64)>> = BTreeMap::new();
    for topic in Topic::PROCESSOR_INPUTS {
        each_committed(&world.bus, &world.topic(topic), PARTITIONS, |record| {
            // Heartbeats have none.
            if let Ok(Timed { time }) = serde_json::from_slice(record.value.as_deref().unwrap_or_default()) {
                times.entry(record.at).or_default().push((record.offset, time.micros() / 1_000_000));
            }
        })?;
    }
    Ok(world.inputs().iter().map(|at| times.remove(at).unwrap_or_default()).collect())
}

fn one(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let mut world = World::start(Cluster::One, run.bites.then_some("rewind"))?;
    // The shortest that brokers allow, so that it also runs out while the broker is away.
    world.properties.insert("session.timeout.ms".into(), "6000".into());
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    let mut part = world.processor(world.settings(), run.bites.then_some(("step.begun", 3)))?;
    let (inputs, mut kills) = (world.inputs(), Vec::<Killed>::new());
    for _ in 0..run.rounds {
        if run.bites {
            part.await_phase(LIMIT)?;
        } else {
            // A step that the broker forgot may be missed only when the state is read again.
            if let Err(late) = watch.await_next(Instant::now()) {
                if !supervised(&world, &mut part, &mut outcome)? {
                    help(&world.brokers[0], &late, &part, &mut kills, &mut outcome)?;
                }
                explain(watch.await_next(Instant::now()), &part)?;
            }
            std::thread::sleep(Duration::from_millis(chance.below(500)));
        }
        // Those of before do where they cannot be learned now.
        let before = || kills.last().map_or_else(|| vec![None; inputs.len()], |before| before.positions.clone());
        let positions = world.bus.committed("processor", &inputs).unwrap_or_else(|_| before());
        let logged = std::fs::read(world.brokers[0].log())?.len();
        let killed = Instant::now();
        // Switched off, what is looked at is EADT; a broker that is killed may itself forget what it confirmed.
        if run.bites || chance.below(3) == 0 {
            world.brokers[0].stop()?;
        } else {
            world.brokers[0].kill()?;
        }
        kills.push(Killed { positions, told: feeder.seconds(), logged, forgotten: BTreeSet::new() });
        if run.bites {
            part.go_on()?;
            std::thread::sleep(AWAY);
        }
        let away = if chance.below(3) == 0 { LONG } else { Duration::ZERO };
        if !run.bites {
            std::thread::sleep(away);
        }
        world.brokers[0].start_again()?;
        let up = Instant::now();
        if run.bites {
            part.await_phase(LIMIT)?;
            part.go_on()?;
        }
        match watch.await_next(up) {
            Ok(next) => {
                outcome.took("stall", (up - killed + next).as_secs_f64());
                outcome.took("from the broker's return to the next window", next.as_secs_f64());
            }
            Err(late) => {
                if !supervised(&world, &mut part, &mut outcome)? {
                    help(&world.brokers[0], &late, &part, &mut kills, &mut outcome)?;
                }
                explain(watch.await_next(Instant::now()), &part)?;
            }
        }
        outcome.rounds += 1;
    }
    if run.bites {
        part.kill()?;
        part = world.processor(world.settings(), None)?;
    }
    let story = feeder.finish()?;
    let folded = world.await_folded(LIMIT)? || supervised(&world, &mut part, &mut outcome)? && world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    let excused = excused(&world, &kills)?;
    let (rest, theirs) = world.judge_apart(&story, |workload, begin| excused.iter().any(|these| these.has(workload, begin)))?;
    outcome.take(rest);
    if !excused.is_empty() {
        // Kafka's to keep: of a transaction that it forgot to mark in some partitions, and marked in others, a part is gone.
        outcome.count(
            "windows and decisions of such a transaction's step in partitions that it was left open in, compared apart",
            theirs.compared,
        );
        outcome.count("of these taken away, doubled or changed", theirs.violations());
    }
    Ok(outcome)
}

/// Starts the processor again, where only its supervisor can.
fn supervised(world: &World, part: &mut Part, outcome: &mut Outcome) -> Result<bool> {
    supervise(part, || world.processor(world.settings(), None), outcome)
}

/// No windows come. Counted by itself: what EADT promises then is to go on once its keeper has helped the broker.
fn help(broker: &Kafka, late: &anyhow::Error, part: &Part, kills: &mut [Killed], outcome: &mut Outcome) -> Result<()> {
    let log = std::fs::read(broker.log())?;
    let ends: Vec<usize> = kills.iter().skip(1).map(|next| next.logged).chain([log.len()]).collect();
    let unmarked = kills.iter().zip(ends).map(|(kill, end)| unmarked(&String::from_utf8_lossy(&log[kill.logged..end])));
    let unmarked: Vec<BTreeSet<String>> = unmarked.collect();
    let forgot = unmarked.iter().any(|partitions| !partitions.is_empty());
    explain(forgot.then_some(()).with_context(|| format!("the broker forgot no transaction: {late:#}")), part)?;
    let ended = explain(end_forgotten(broker).context(format!("{late:#}")), part)?;
    for (kill, unmarked) in kills.iter_mut().zip(unmarked) {
        kill.forgotten.extend(unmarked.into_iter().filter(|partition| ended.contains(partition)));
    }
    outcome.count("times that the broker forgot a transaction, and an operator ended it", 1);
    outcome.count("parts of such transactions", ended.len() as u64);
    Ok(())
}

/// What the broker says where it gives up to mark a transaction, before it names the partitions.
const FORGOT: &str = "Couldn't find leader endpoint for partitions ";

/// The partitions that a broker's log says it gave up to mark.
fn unmarked(log: &str) -> BTreeSet<String> {
    let named = log.lines().filter_map(|line| line.split_once(FORGOT)?.1.split_once(" while trying")).map(|(named, _)| named);
    let words = named.flat_map(|named| named.split(|c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c)));
    // Beside them stand names of its own types.
    let partitions = words.filter(|word| word.rsplit_once('-').is_some_and(|(_, number)| number.parse::<i32>().is_ok()));
    partitions.map(str::to_owned).collect()
}

/// What an operator does about a transaction that a broker forgot to mark when it was killed (docs/operate/operations.md, "A transaction that
/// stays open"); the partitions that had a part in it.
fn end_forgotten(broker: &Kafka) -> Result<Vec<String>> {
    const TOOL: &str = "org.apache.kafka.tools.TransactionsCommand";
    // What was listed may be over by then: with one part ended, who waited for it goes on and has the broker end the others.
    const OVER: &str = "Could not find any open transactions";
    let found = broker.tool(TOOL, &["find-hanging", "--broker-id", "1", "--max-transaction-timeout", "1"])?;
    let mut ended = Vec::new();
    // Who reads the state to its end goes on once it can, and its next step commits what is open still: the state comes last.
    let mut lines: Vec<&str> = found.lines().skip(1).collect();
    lines.sort_by_key(|line| (line.contains(Topic::ProcessorState.base_name()), line.starts_with("__")));
    for line in lines {
        // Topic, Partition, ProducerId, ProducerEpoch, CoordinatorEpoch, StartOffset, …
        let words: Vec<&str> = line.split_whitespace().collect();
        let [topic, partition, _, _, _, offset, ..] = words[..] else { bail!("a line of the tool's is not understood: {line}") };
        match broker.tool(TOOL, &["abort", "--topic", topic, "--partition", partition, "--start-offset", offset]) {
            Err(error) if !format!("{error:#}").contains(OVER) => return Err(error),
            Ok(_) | Err(_) => ended.push(format!("{topic}-{partition}")),
        }
    }
    ensure!(!ended.is_empty(), "the tool finds no transaction that is open for a minute: {found}");
    Ok(ended)
}

fn three(run: Run) -> Result<Outcome> {
    let mut world = World::start_with(Cluster::Three, None, if run.bites { 1 } else { 3 })?;
    let watch = world.watch()?;
    let mut outcome = Outcome::default();
    let feeder = Feeder::start(&world.bus, &world.prefix, Story::new(run.seed, 3), Duration::from_millis(20))?;
    let mut part = world.processor(world.settings(), None)?;
    for round in 0..run.rounds as usize {
        explain(watch.await_next(Instant::now()), &part)?;
        if !run.bites {
            // A broker that this machine held up may lack copies, and the next one to go would have the last ones.
            world.brokers[0].await_copies()?;
        }
        let victim = round % world.brokers.len();
        let killed = Instant::now();
        world.brokers[victim].kill()?;
        if run.bites {
            // One of three inputs and outputs has its only copy there.
            let stands = !goes_on(&world, Duration::from_secs(30));
            outcome.check(!stands, || "without copies, windows do not go on while their broker is away".into());
        } else {
            // Windows of every partition, so that all their leaders have moved.
            let next = explain(watch.await_next(killed + Duration::from_millis(500)), &part)?;
            let both = goes_on(&world, LIMIT);
            outcome.check(both, || "not every partition goes on without the broker".into());
            outcome.took("stall", next.as_secs_f64());
        }
        world.brokers[victim].start_again()?;
        outcome.rounds += 1;
        // Two partitions have their only copies on two of the three.
        if run.bites && outcome.violations() > 0 {
            break;
        }
    }
    let story = feeder.finish()?;
    if run.bites && outcome.violations() > 0 {
        // The promise is broken; of a log that lost its only copies no more can be said.
        return Ok(outcome);
    }
    let folded = world.await_folded(LIMIT)?;
    outcome.check(folded, || format!("not everything was folded: {}", part.tail()));
    crate::world::runs(&mut part)?;
    ensure!(watch.count() > 0, "no windows at all");
    outcome.take(world.judge(&story)?);
    Ok(outcome)
}

/// How many windows every partition has.
fn windows(world: &World, limit: Duration) -> Result<Vec<i64>> {
    let topic = world.topic(Topic::EfficiencyWindows);
    (0..PARTITIONS).map(|partition| high(&world.bus, &TopicPartition::new(topic.as_str(), partition), limit)).collect()
}

/// Whether every partition of the windows grows within this time.
fn goes_on(world: &World, limit: Duration) -> bool {
    let begun = Instant::now();
    let Ok(before) = windows(world, limit) else { return false };
    while begun.elapsed() < limit {
        let Ok(now) = windows(world, limit.saturating_sub(begun.elapsed())) else { return false };
        if now.iter().zip(&before).all(|(now, before)| now > before) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forgotten_transaction_excuses_what_was_open_in_its_step_and_nothing_else() {
        let inputs = [(0..100).map(|n| (n, BASE_SECONDS + n)).collect(), (0..100).map(|n| (2 * n, BASE_SECONDS + n)).collect()];
        let kill =
            |positions: [Option<i64>; 2]| Killed { positions: positions.into(), told: 70, logged: 0, forgotten: BTreeSet::new() };
        let open = kill([Some(55), Some(120)]).open(&inputs);
        assert_eq!(
            open,
            BASE_SECONDS + 44..=BASE_SECONDS + 70,
            "from the window that second 55 is in, and its neighbour's last second"
        );
        assert!(kill([None, Some(120)]).open(&inputs).contains(&BASE_SECONDS), "nothing was committed");
        let ahead = kill([Some(500), Some(500)]).open(&inputs);
        assert_eq!(*ahead.start(), BASE_SECONDS + 59, "everything told was folded");
    }

    #[test]
    fn only_outputs_that_were_left_open_are_excused_and_only_in_their_partition() {
        let partitions = |forgotten: &[&str]| {
            let forgotten = forgotten.iter().map(|name| (*name).to_owned()).collect();
            Killed { positions: Vec::new(), told: 0, logged: 0, forgotten }.partitions("chaos.")
        };
        let of = |topic: Topic, partition: i32| format!("chaos.{topic}-{partition}");
        assert!(partitions(&[]).is_empty());
        assert!(partitions(&[&of(Topic::ProcessorState, 0), "__consumer_offsets-1", &of(Topic::GpuTelemetry, 1)]).is_empty());
        assert_eq!(partitions(&[&of(Topic::ProcessorState, 0), &of(Topic::Decisions, 1)]), [1]);
        assert_eq!(partitions(&[&of(Topic::EfficiencyWindows, 0), &of(Topic::Decisions, 1)]), [0, 1]);
        let excused = Excused { partition: 1, begins: 10..=20 };
        assert!(excused.has(&Story::name(1), 10) && !excused.has(&Story::name(1), 21) && !excused.has(&Story::name(0), 10));
    }

    #[test]
    fn a_broker_names_the_partitions_that_it_does_not_mark() {
        let line = |named: &str| {
            format!(
                "[2026-01-01] INFO [Transaction Marker Channel Manager 1]: Couldn't find leader endpoint for partitions {named} while trying to send transaction markers for chaos-processor-0, these partitions are likely deleted already and hence can be skipped (kafka.Type)\n"
            )
        };
        let log = format!("other-3\n{}{}", line("Set(chaos.decisions.v1-1, __consumer_offsets-12)"), line("[chaos.a-b.v1-0]"));
        assert_eq!(unmarked(&log), ["__consumer_offsets-12", "chaos.a-b.v1-0", "chaos.decisions.v1-1"].map(str::to_owned).into());
        assert!(unmarked("nothing of the kind").is_empty());
    }
}
