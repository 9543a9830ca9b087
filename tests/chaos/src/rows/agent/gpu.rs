//! A GPU that does not answer, or is lost, under an agent.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{GPUS, IN_VAIN, Node, Wish, wait, wait_for};
use crate::chance::Chance;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::world::LIMIT;

pub const ROW: Row = Row {
    name: "agent-gpu",
    fault: "calls to a GPU that holds settings never return, or it is lost; then another intent; then the GPU is back, or SIGTERM, or SIGKILL",
    promise: "the others follow, and are put back; the GPU follows once it is back, or is put back by the next start",
    without: "a thread for each GPU",
    full: 200,
    batch: 40,
    short: 6,
    off: 6,
    run,
};

/// Long enough for the others on a busy machine; the whole of it is waited if calls never return.
const STOP_SECONDS: f64 = 5.0;
/// By then the agent has looked again.
const A_LOOK: Duration = Duration::from_millis(200);

fn run(run: Run) -> Result<Outcome> {
    let node = Node { stop_seconds: STOP_SECONDS, ..Node::new(run.bites.then_some("device-threads"))? };
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    for round in 0..run.rounds {
        let sick = chance.below(u64::from(GPUS)) as u32;
        let ill = if round % 2 == 0 { "hang" } else { "lost" };
        node.wish(Wish::A)?;
        let mut part = node.agent()?;
        wait(&mut part, "everything is held", || node.hold(Wish::A, None))?;
        node.fake.set(&format!("{sick} {ill} 1\n"));
        std::thread::sleep(A_LOOK);
        let asked = Instant::now();
        node.wish(Wish::B)?;
        let limit = if run.bites { IN_VAIN } else { LIMIT };
        let followed = wait_for(&mut part, limit, || node.hold(Wish::B, Some(sick)))?;
        outcome.check(followed, || format!("{ill}: the other GPUs did not follow within {limit:?}"));
        outcome.rounds += 1;
        if !followed {
            part.kill()?;
            break;
        }
        outcome.took("until the other GPUs followed", asked.elapsed().as_secs_f64());
        let is = node.fake.settings(sick);
        outcome.check(is == Wish::A.held(), || format!("{ill}: the GPU is at {is:?}"));
        ends(&node, part, &mut outcome, sick, round / 2 % 3)?;
        if !node.judge(&mut outcome, None, ill)? {
            node.begin_anew()?;
        }
        node.withdraw()?;
    }
    Ok(outcome)
}

/// The three ways in which it may go on; afterwards everything is to be as it was.
fn ends(node: &Node, mut part: Part, outcome: &mut Outcome, sick: u32, way: u32) -> Result<()> {
    if way == 0 {
        node.fake.set("");
        let took = wait(&mut part, "the GPU follows", || node.hold(Wish::B, None))?;
        outcome.took("until the GPU that was back followed", took.as_secs_f64());
        part.stop(LIMIT)?;
        return Ok(());
    }
    let (asked, how) = (Instant::now(), if way == 1 { "SIGTERM" } else { "a start after SIGKILL" });
    let all = if way == 1 {
        part.ask_to_end()?;
        part.await_end(LIMIT)?.success()
    } else {
        part.kill()?;
        node.restore()?
    };
    outcome.took(&format!("{how}, until the other GPUs are put back and it has ended"), asked.elapsed().as_secs_f64());
    outcome.check(!all, || format!("{how}: it reported that all is put back"));
    node.judge(outcome, Some(sick), how)?;
    node.fake.set("");
    outcome.check(node.restore()?, || "the GPU is back and was not put back".to_owned());
    Ok(())
}
