//! A node agent gets no intents any more, and no notice of it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use eadt_bus::{Bus, Producer, ProducerRecord};
use eadt_schemas::v1::DeviceIntent;
use eadt_schemas::{EventTime, Topic};

use super::{IN_VAIN, Node, Wish, wait, wait_for};
use crate::feeder::send;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::world::{Cluster, LIMIT, World};

pub const ROW: Row = Row {
    name: "agent-unasked",
    fault: "who asks falls silent; or SIGKILL of the only broker while settings are held; or of broker and node agent, which is started again without a log",
    promise: "held until the intent's time to live is over, and put back then; after a start at once",
    without: "the intents' time to live",
    full: 60,
    batch: 12,
    short: 3,
    off: 1,
    run,
};

const TIME_TO_LIVE_SECONDS: f64 = 3.0;

fn run(run: Run) -> Result<Outcome> {
    let node = Node::new(run.bites.then_some("time-to-live"))?;
    let mut world = World::start(Cluster::One, node.off)?;
    let mut asks = world.bus.producer("chaos-asks")?;
    let mut outcome = Outcome::default();
    let mut part = node.follower(&world)?;
    for round in 0..run.rounds {
        ask(&mut *asks, &world, Wish::A, 600.0)?;
        wait(&mut part, "everything is held", || node.hold(Wish::A, None))?;
        let until = ask_shortly(&mut *asks, &world, &node, &mut part)?;
        let (away, dies) = (round % 3 > 0, round % 3 == 2);
        if away {
            world.brokers[0].kill()?;
        }
        if dies {
            part.kill()?;
            part = node.follower(&world)?;
        }
        let begun = Instant::now();
        let mut changed = None;
        let patience = if run.bites { IN_VAIN + Duration::from_secs_f64(TIME_TO_LIVE_SECONDS) } else { LIMIT };
        let back = wait_for(&mut part, patience, || {
            if changed.is_none() && !node.hold(Wish::B, None) {
                changed = Some(now());
            }
            node.as_before(None)
        })?;
        outcome.rounds += 1;
        outcome.check(back, || format!("the intent's time was over, and it was still held {IN_VAIN:?} later"));
        if !back {
            break;
        }
        if dies {
            outcome.took("until a start without a log has put everything back", begun.elapsed().as_secs_f64());
        } else {
            let early = changed.map_or(0.0, |at| until.seconds_since(at));
            outcome.check(early <= 0.0, || format!("it was put back {early:.3} s before the intent's time was over"));
            outcome.took("from the end of the intent's time until everything is put back", now().seconds_since(until));
        }
        wait(&mut part, "nothing is recorded any more", || node.records().is_ok_and(|records| records == 0))?;
        node.judge(&mut outcome, None, "without an intent")?;
        if away && outcome.rounds < run.rounds {
            world.brokers[0].start_again()?;
        }
    }
    part.kill()?;
    Ok(outcome)
}

fn ask(asks: &mut dyn Producer, world: &World, wish: Wish, time_to_live_seconds: f64) -> Result<EventTime> {
    let intent = DeviceIntent { time: now(), time_to_live_seconds, ..wish.intent() };
    let record = ProducerRecord {
        topic: world.topic(Topic::DeviceIntents).into(),
        partition: None,
        key: Some(intent.node.clone().into_bytes().into()),
        value: Some(serde_json::to_vec(&intent)?.into()),
        headers: Vec::new(),
    };
    send(asks, &record)?;
    ensure!(asks.flush(LIMIT)?, "an intent was not acknowledged");
    Ok(intent.time.plus_seconds(time_to_live_seconds))
}

/// Asks for something for a short time, again if that was over before it was held; until when.
fn ask_shortly(asks: &mut dyn Producer, world: &World, node: &Node, part: &mut Part) -> Result<EventTime> {
    let begun = Instant::now();
    loop {
        let until = ask(asks, world, Wish::B, TIME_TO_LIVE_SECONDS)?;
        let limit = Duration::from_secs_f64(TIME_TO_LIVE_SECONDS / 2.0);
        if wait_for(part, limit, || node.hold(Wish::B, None))? {
            return Ok(until);
        }
        ensure!(begun.elapsed() < LIMIT, "an intent of {TIME_TO_LIVE_SECONDS} s was never held");
    }
}

fn now() -> EventTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    EventTime::from_micros(since.as_micros() as i64)
}
