//! An actuator that is killed around its patch and around the step that publishes it.

use std::time::Instant;

use anyhow::{Context, Result};

use super::percentage;
use crate::chance::Chance;
use crate::part::Part;
use crate::row::{Outcome, Row, Run};
use crate::site::{FIRST, Site};

pub const ROW: Row = Row {
    name: "actuator-killed",
    fault: "SIGKILL of the actuator before, between and after its patch and the step that says so, again while it makes up for that",
    promise: "one change and one generation a decision, said once",
    without: "recognition of a decision that was applied, on the object and by its outcome in the log",
    full: 1000,
    batch: 50,
    short: 3,
    off: 8,
    run,
};

/// Point of the kill, counted from its start: a change is written, then noted ready; the first step may publish earlier
/// outcomes.
const PHASES: [(&str, u64); 10] = [
    ("change.planned", 1),
    ("change.written", 1),
    ("step.begun", 1),
    ("step.filled", 1),
    ("step.ready", 1),
    ("step.committed", 1),
    ("step.begun", 2),
    ("step.ready", 2),
    ("change.planned", 2),
    ("change.written", 2),
];
/// The phase of them after which its successor has to recognise what was done. Chance alone leaves it out for a dozen kills now and then,
/// and then nothing shows that recognition is missing.
const WRITTEN: usize = 1;
/// How often it is killed over one decision, at most.
const KILLS: u64 = 3;

fn run(run: Run) -> Result<Outcome> {
    let mut site = Site::start(run.bites.then_some("recognition"))?;
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let (before, mut ids) = (site.generation()?, Vec::new());
    while outcome.rounds < run.rounds {
        let (number, id) = (ids.len() as u32, format!("d-{}", ids.len()));
        let decision = site.decision(&id, percentage(number))?;
        let kills = (1 + chance.below(KILLS)).min(u64::from(run.rounds - outcome.rounds));
        let first = run.bites.then_some(PHASES[WRITTEN]);
        let mut part = start(&site, &mut chance, kills, first)?;
        site.decide(&decision)?;
        ids.push(id.clone());
        for left in (0..kills).rev() {
            // If it never comes there it is killed at rest.
            let there = |part: &Part| Ok(part.has_reached() || site.is_over(&id));
            site.wait(&mut part, &format!("a phase is reached, or {id} is ready or refused"), there)?;
            part.kill()?;
            outcome.rounds += 1;
            let (killed, at_rest) = (Instant::now(), site.is_over(&id));
            part = start(&site, &mut chance, left, None)?;
            if left == 0 {
                // A refused decision that is in force is for the verdict to report; and without recognition, one without a
                // report.
                let over = site.wait(&mut part, &format!("{id} is ready or refused"), |_| Ok(site.is_over(&id)));
                if !run.bites {
                    over.with_context(|| format!("{id} became {:?}", site.became(&id)))?;
                }
                if !at_rest && site.is_ready(&id) {
                    outcome.took("from the last kill until the change is ready", killed.elapsed().as_secs_f64());
                }
            }
        }
        part.kill()?;
    }
    let last = percentage(ids.len() as u32 - 1);
    site.judge(&mut outcome, &ids, before, last)?;
    Ok(outcome)
}

/// An actuator that waits in a phase to be killed, `first` or one by chance, as long as kills are left.
fn start(site: &Site, chance: &mut Chance, left: u64, first: Option<(&'static str, u64)>) -> Result<Part> {
    let phase = PHASES[chance.below(PHASES.len() as u64) as usize];
    site.actuator(FIRST, (left > 0).then_some(first.unwrap_or(phase)))
}
