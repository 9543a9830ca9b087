//! An API server that refuses, is busy, loses answers or gives none.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use eadt_tests::kubernetes::proxy::{Answer, Passed, fault, pauses};
use eadt_tests::kubernetes::training::foreign;
use http::Method;

use super::percentage;
use crate::chance::Chance;
use crate::row::{Outcome, Row, Run};
use crate::site::{FIRST, Site};

pub const ROW: Row = Row {
    name: "api-server",
    fault: "409, 403, 429 with Retry-After, 500, 503 to patches, several in turn; answers that break off; no answer",
    promise: "each change is made once, when it can be; others' fields stay; Retry-After is kept to",
    without: "trying again",
    full: 400,
    batch: 40,
    short: 3,
    off: 8,
    run,
};

const SETS: &str = "/statefulsets/";
/// Wait that the API server requests when it is busy.
const RETRY_AFTER_SECONDS: u64 = 1;

/// Returns a fault, its name, and how often it occurs in turn.
fn chosen(chance: &mut Chance) -> (&'static str, Answer, usize) {
    let refused = |code| Answer::Refused { code, retry_after: None };
    match chance.below(40) {
        0..8 => ("one 409", refused(409), 1),
        // More than one attempt makes by itself.
        8..13 => ("twelve 409", refused(409), 12),
        13..19 => ("three 500", refused(500), 3),
        19..24 => ("two 503", refused(503), 2),
        24..29 => ("two 429, Retry-After 1 s", Answer::Refused { code: 429, retry_after: Some(RETRY_AFTER_SECONDS) }, 2),
        29..34 => ("three 403", refused(403), 3),
        34..39 => ("a lost answer", Answer::Lost, 1),
        _ => ("no answer", Answer::Nothing, 1),
    }
}

fn run(run: Run) -> Result<Outcome> {
    let mut site = Site::start(run.bites.then_some("retries"))?;
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let mut part = site.actuator(FIRST, None)?;
    // Its first writes are not those of a decision.
    site.wait(&mut part, "it leads", |_| Ok(site.leader()? == FIRST))?;
    let first = site.object()?;
    let before = first["metadata"]["generation"].as_i64().context("an object has a generation")?;
    let (others, mut ids) = (foreign(&first), Vec::new());
    for round in 0..run.rounds {
        let id = format!("d-{round}");
        let (name, answer, times) = chosen(&mut chance);
        let waits = matches!(answer, Answer::Refused { retry_after: Some(_), .. });
        // A change whose answer was lost was made.
        let accepted = if matches!(answer, Answer::Lost) { 0 } else { times };
        site.proxy.passed();
        let decision = site.decision(&id, percentage(round))?;
        site.proxy.interfere(fault(Method::PATCH, SETS, answer, times));
        let decided = Instant::now();
        site.decide(&decision)?;
        ids.push(id.clone());
        let over = || !site.became(&id).is_empty() && (run.bites || site.is_ready(&id));
        site.wait(&mut part, &format!("something became of {id} after {name}"), |_| Ok(over()))?;
        site.proxy.heal();
        outcome.rounds += 1;
        if run.bites {
            // A refused change is not repeated: the next decision starts from the layout published before it.
            if !site.is_ready(&id) {
                break;
            }
            continue;
        }
        let patches: Vec<Passed> =
            site.proxy.passed().into_iter().filter(|one| one.method == Method::PATCH && one.path.contains(SETS)).collect();
        let faulty = patches.iter().filter(|patch| patch.faulty).count();
        outcome.check(faulty == times, || format!("{name}: it went wrong {faulty} times, not {times}"));
        outcome.check(patches.len() > accepted, || format!("{name}: no patch was accepted"));
        if let Some(patch) = patches.get(accepted) {
            let took = patch.at.duration_since(decided).as_secs_f64();
            outcome.took(&format!("from a decision to its patch, {name}"), took);
        }
        if waits {
            let pauses = pauses(&patches);
            let kept = pauses.iter().take(times).all(|pause| *pause >= Duration::from_secs(RETRY_AFTER_SECONDS));
            outcome.check(kept, || format!("{name}: it came again after {pauses:?}"));
        }
        let now = foreign(&site.object()?);
        outcome.check(now == others, || format!("{name}: what is others' has changed: {now}"));
    }
    let last = percentage(outcome.rounds - 1);
    site.judge(&mut outcome, &ids, before, last)?;
    part.stop(crate::world::LIMIT)?;
    Ok(outcome)
}
