//! Another program changes settings that an agent holds.

use std::time::Duration;

use anyhow::Result;
use eadt_nvml::fake::FakeSettings;

use super::{GPUS, MPS_BEFORE, Node, Wish, before, wait};
use crate::chance::Chance;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::world::LIMIT;

pub const ROW: Row = Row {
    name: "agent-others",
    fault: "somebody else sets a GPU's power cap, or the MPS default, that the node agent holds: while it runs, or after SIGKILL; of three times once the agent is started anew under the same intent; then the intent ends, or SIGTERM, or another SIGKILL",
    promise: "theirs stays as they set it, and everything else is as before",
    without: "telling its own values from others'",
    full: 200,
    batch: 40,
    short: 6,
    off: 6,
    run,
};

/// By then the agent has looked several times.
const LOOKS: Duration = Duration::from_millis(300);

/// The value that another program set.
#[derive(Debug, Clone, Copy)]
enum Theirs {
    Cap { gpu: u32, milliwatts: u32 },
    Default(u32),
}

fn run(run: Run) -> Result<Outcome> {
    let node = Node::new(run.bites.then_some("own-values"))?;
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    for round in 0..run.rounds {
        node.wish(Wish::A)?;
        let mut part = node.agent()?;
        wait(&mut part, "everything is held", || node.hold(Wish::A, None))?;
        let theirs = if chance.below(3) == 0 {
            Theirs::Default(60 + chance.below(30) as u32)
        } else {
            // Neither the original value nor one that the agent sets.
            Theirs::Cap { gpu: chance.below(u64::from(GPUS)) as u32, milliwatts: 400_000 + 1_000 * chance.below(200) as u32 }
        };
        let dies = round % 2 == 1;
        if dies {
            part.kill()?;
            node.change(theirs);
            part = node.agent()?;
        } else {
            node.change(theirs);
        }
        std::thread::sleep(LOOKS);
        node.judge_theirs(&mut outcome, theirs, "while it is asked for");
        if chance.below(3) == 0 {
            part.stop(LIMIT)?;
            part = node.agent()?;
            std::thread::sleep(LOOKS);
            node.judge_theirs(&mut outcome, theirs, "while it is asked for of the next agent");
        }
        let way = round / 2 % 3;
        end(&node, part, way)?;
        let when = ["after the intent", "after SIGTERM", "after SIGKILL and a start"][way as usize];
        node.judge_theirs(&mut outcome, theirs, when);
        // The rest is judged without it.
        match theirs {
            Theirs::Cap { gpu, .. } => node.cap(gpu, before(gpu).power_milliwatts),
            Theirs::Default(_) => node.mps.change(MPS_BEFORE),
        }
        node.judge(&mut outcome, None, when)?;
        node.begin_anew()?;
        outcome.rounds += 1;
    }
    Ok(outcome)
}

/// Ends the request in one of three ways.
fn end(node: &Node, mut part: Part, way: u32) -> Result<()> {
    match way {
        0 => {
            node.withdraw()?;
            wait(&mut part, "nothing is recorded any more", || node.records().is_ok_and(|records| records == 0))?;
            part.kill()
        }
        1 => part.stop(LIMIT).map(drop),
        _ => {
            part.kill()?;
            node.restore().map(drop)
        }
    }
}

impl Node {
    fn change(&self, theirs: Theirs) {
        match theirs {
            Theirs::Cap { gpu, milliwatts } => self.cap(gpu, milliwatts),
            Theirs::Default(percent) => self.mps.change(&percent.to_string()),
        }
    }

    fn cap(&self, gpu: u32, milliwatts: u32) {
        self.fake.change(gpu, FakeSettings { power_milliwatts: milliwatts, ..self.fake.settings(gpu) });
    }

    fn judge_theirs(&self, outcome: &mut Outcome, theirs: Theirs, when: &str) {
        let (is, wanted) = match theirs {
            Theirs::Cap { gpu, milliwatts } => (self.fake.settings(gpu).power_milliwatts.to_string(), milliwatts.to_string()),
            Theirs::Default(percent) => (self.mps.default(), percent.to_string()),
        };
        outcome.check(is == wanted, || format!("{when}: {theirs:?} became {is}"));
    }
}
