//! Clocks that are wrong: of who reports by an hour either way, or by most of a minute, one that falls back, and the processor's own.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use eadt_bus::Bus;
use eadt_processor::{OptionalSeconds, ProcessorSettings};
use eadt_schemas::Topic;
use eadt_schemas::v1::{DeadLetterReason, dead_letter_header};

use crate::feeder::send;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::story::{MOST_SKEW, Reporter, Story, StoryEvent, WINDOW_SECONDS};
use crate::verify::{by_model, read_committed};
use crate::world::{Cluster, LIMIT, PARTITIONS, World};

pub const ROW: Row = Row {
    name: "clocks",
    fault: "workloads an hour ahead and an hour behind, a GPU and a rank 50 s ahead, others 50 s behind, clocks that fall back by an hour; a processor an hour ahead, and its next process an hour behind",
    promise: "windows of the others and of those that are right in themselves stay right; what cannot be right is refused and counted; the processor's clock changes nothing",
    without: "the limit on how far ahead of the log an event may be; for the processor's clock nothing is",
    full: 50,
    batch: 5,
    short: 1,
    off: 1,
    run,
};

const HONEST: usize = 0;
pub const HOUR_AHEAD: usize = 1;
const HOUR_BEHIND: usize = 2;
const GPU_AHEAD: usize = 3;
const GPU_BEHIND: usize = 4;
const FALLS_BACK: usize = 5;
const RANK_AHEAD: usize = 6;
const RANK_BEHIND: usize = 7;
const WORKLOADS: usize = 8;
/// Of workloads that report their progress by rank.
const RANKS: u32 = 3;
const HOUR_SECONDS: f64 = 3600.0;
const MOST_OF_A_MINUTE: f64 = 50.0;
/// How long a clock stays back, in seconds.
const BACK: i64 = 7;
/// How long a story is: it ends ten seconds ago, so that a clock that is 50 s ahead is ahead of the log.
const SECONDS: i64 = 300;

/// A story with these clocks.
pub fn story(seed: u64, base_seconds: i64) -> Story {
    let ranks = |workload| if matches!(workload, RANK_AHEAD | RANK_BEHIND) { RANKS } else { 0 };
    Story::with_clocks(seed, 0..WORKLOADS, base_seconds, ranks, |workload, reporter| match (workload, reporter) {
        (HOUR_AHEAD, _) => HOUR_SECONDS,
        (HOUR_BEHIND, _) => -HOUR_SECONDS,
        (GPU_AHEAD, Reporter::Gpu(1)) | (RANK_AHEAD, Reporter::Rank(1)) => MOST_OF_A_MINUTE,
        (GPU_BEHIND, Reporter::Gpu(1)) | (RANK_BEHIND, Reporter::Rank(1)) => -MOST_OF_A_MINUTE,
        _ => 0.0,
    })
}

/// Sends so many seconds of it, the clocks of one workload falling back in the middle, and its end.
pub fn send_story(story: &mut Story, seconds: i64, mut send: impl FnMut(&[StoryEvent]) -> Result<()>) -> Result<()> {
    // Every source is known before any window can close.
    story.tick();
    send(&story.events)?;
    for second in 1..seconds {
        let back = (seconds / 2..seconds / 2 + BACK).contains(&second);
        let from = story.tick_with(back.then_some((FALLS_BACK, HOUR_SECONDS)));
        send(&story.events[from..])?;
    }
    let from = story.end();
    send(&story.events[from..])
}

fn run(run: Run) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for round in 0..run.rounds {
        let world = World::start(Cluster::One, None)?;
        let limit = OptionalSeconds((!run.bites).then_some(MOST_SKEW));
        // Heartbeats by its clock as soon as nothing comes for a moment.
        let settings = ProcessorSettings { max_future_seconds: limit, heartbeat_seconds: 0.2, ..world.settings() };
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as i64;
        let base = (now - SECONDS - 10) / WINDOW_SECONDS * WINDOW_SECONDS;
        let mut story = story(run.seed.wrapping_add(u64::from(round)), base);
        let mut producer = world.bus.producer("chaos-clocks")?;
        let (mut part, mut seconds_sent) = (None::<Part>, 0);
        send_story(&mut story, SECONDS, |events| {
            events.iter().try_for_each(|event| send(&mut *producer, &event.outgoing(&world.prefix)))?;
            // One an hour ahead, and in the middle of the story another one that takes its place, an hour behind.
            let clock_ahead = match seconds_sent {
                0 => Some(HOUR_SECONDS as i64),
                seconds if seconds == SECONDS / 2 => Some(-HOUR_SECONDS as i64),
                _ => None,
            };
            if let Some(seconds) = clock_ahead {
                ensure!(producer.flush(LIMIT)?, "what was sent so far was not acknowledged");
                part.take().map_or(Ok(()), Part::kill)?;
                world.clock_ahead_seconds.set(seconds);
                let next = part.insert(world.processor(settings.clone(), None)?);
                // Stamps are of now, and cap no time that is ahead of the others: an input with one is read behind the other one until
                // all sources are known.
                ensure!(world.await_folded(LIMIT)?, "what was sent so far was not folded: {}", next.tail());
            }
            seconds_sent += 1;
            std::thread::sleep(Duration::from_millis(10));
            Ok(())
        })?;
        ensure!(producer.flush(LIMIT)?, "the story was not acknowledged");
        let folded = world.await_folded(LIMIT)?;
        outcome.check(folded, || "not everything was folded".to_owned());
        part.iter_mut().try_for_each(crate::world::runs)?;
        outcome.take(by_model(&world.bus, &world.prefix, &story, PARTITIONS)?);
        let letters = read_committed(&world.bus, &world.topic(Topic::DeadLetters), PARTITIONS)?;
        let refused = |reason: DeadLetterReason| {
            letters.iter().filter(|letter| letter.header(dead_letter_header::REASON) == Some(reason.name())).count() as u64
        };
        let (future, stale) = (refused(DeadLetterReason::FutureTime), refused(DeadLetterReason::Stale));
        let (ahead, back) = (story.impossible(), story.fallen_back.values().sum::<u64>());
        outcome.count("refused as of the future", future);
        outcome.count("refused as older than what the source had said", stale);
        outcome.check(future == ahead, || format!("{future} were refused as of the future, {ahead} were sent"));
        outcome.check(stale == back, || format!("{stale} were refused as stale, {back} were sent"));
        let all = letters.len() as u64;
        outcome.check(all == ahead + back, || format!("{all} dead letters for {ahead} of the future and {back} of the past"));
        outcome.check(story.expected().iter().any(|window| window.workload == Story::name(HONEST)), || "no story".to_owned());
        outcome.rounds += 1;
    }
    Ok(outcome)
}
