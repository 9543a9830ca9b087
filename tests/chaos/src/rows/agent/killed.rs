//! A node agent that is killed while it changes settings, and while it puts them back.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Node, Wish, wait};
use crate::chance::Chance;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::world::LIMIT;

pub const ROW: Row = Row {
    name: "agent-killed",
    fault: "SIGKILL of the node agent before and after each change of a cap, a clock and the MPS default, before and after its record, and at any time; again while it puts back",
    promise: "after the next start everything is as its owner had it, and nothing is recorded any more",
    without: "the original on disk before the change",
    full: 1000,
    batch: 100,
    short: 24,
    off: 24,
    run,
};

/// Points at which it waits to be killed, beside the library's calls: the MPS daemon's default is changed by a program.
const PHASES: [&str; 3] = ["setting.recorded", "setting.made", "setting.put_back"];
/// Settings: a cap and a clock of each GPU, and a default.
const SETTINGS: u64 = 9;
/// Points of a call of the library: before it is done, and after.
const POINTS: u64 = 16;
/// How often it is killed over one wish, at most.
const KILLS: u64 = 3;

fn run(run: Run) -> Result<Outcome> {
    let node = Node::new(run.bites.then_some("original-first"))?;
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let mut recorded = 0;
    while outcome.rounds < run.rounds {
        let wish = Wish { watts: 300 + 10 * chance.below(5) as u32, ..Wish::A };
        node.wish(wish)?;
        let kills = (1 + chance.below(KILLS)).min(u64::from(run.rounds - outcome.rounds));
        for kill in 0..kills {
            // The second agent restores the settings, or continues with the requested ones.
            let restores = kill > 0 && chance.below(2) == 0;
            kill_one(&node, &mut chance, &mut outcome, wish, restores)?;
            outcome.rounds += 1;
            recorded += u64::from(node.records()? > 0);
        }
        let started = Instant::now();
        // Without a record, a start has nothing to wait for.
        let how = if run.bites || chance.below(4) > 0 {
            outcome.check(node.restore()?, || "a start reported that not everything is put back".to_owned());
            "eadt-agent restore"
        } else {
            node.withdraw()?;
            let mut part = node.agent()?;
            wait(&mut part, "a start puts everything back", || node.as_before(None) && node.records().is_ok_and(|n| n == 0))?;
            part.kill()?;
            "a start"
        };
        outcome.took(&format!("until {how} has put everything back"), started.elapsed().as_secs_f64());
        if !node.judge(&mut outcome, None, how)? {
            node.begin_anew()?;
        }
    }
    outcome.count("kills that left something to put back", recorded);
    Ok(outcome)
}

/// Starts an agent and kills it somewhere; one that comes to rest before is killed there.
fn kill_one(node: &Node, chance: &mut Chance, outcome: &mut Outcome, wish: Wish, restores: bool) -> Result<()> {
    let chosen = chance.below(5);
    let phase = (PHASES[chance.below(PHASES.len() as u64) as usize], 1 + chance.below(SETTINGS));
    let mut part =
        node.start_killed(chosen < 2, restores, 1 + chance.below(POINTS), (2..4).contains(&chosen).then_some(phase))?;
    if chosen == 4 {
        // Any time from the start until everything is held.
        std::thread::sleep(Duration::from_micros(1_000 + chance.below(250_000)));
    } else {
        let begun = Instant::now();
        while !(part.ended()?.is_some() || part.has_reached() || !restores && node.hold(wish, None)) && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    outcome
        .count("kills at a call of the library", u64::from(chosen < 2 && part.ended()?.is_some_and(|status| !status.success())));
    outcome.count("kills at a phase", u64::from(part.has_reached()));
    if part.ended()?.is_none() {
        part.kill()?;
    }
    node.fake.set("");
    Ok(())
}

impl Node {
    /// `by_call`: the library kills it at this point.
    fn start_killed(&self, by_call: bool, restores: bool, point: u64, phase: Option<(&'static str, u64)>) -> Result<Part> {
        self.fake.set(&if by_call { format!("9 kill_at {point}\n") } else { String::new() });
        self.start(restores, phase)
    }
}
