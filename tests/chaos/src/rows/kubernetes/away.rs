//! An API server that is gone for minutes.

use std::time::{Duration, Instant};

use anyhow::Result;
use eadt_schemas::v1::ActuationOutcome;
use eadt_tests::kubernetes::Component;
use eadt_tests::kubernetes::training::foreign;

use super::percentage;
use crate::chance::Chance;
use crate::row::{Outcome, Row, Run};
use crate::site::{FIRST, Site};
use crate::world::LIMIT;

pub const ROW: Row = Row {
    name: "api-server-away",
    fault: "SIGKILL of the API server, which is away for 300 s (25 s in a short run) while decisions are made; a round is a second of that",
    promise: "what was decided is done once, when it is back; what has expired by then, or was decided for what is no longer in force, is refused",
    without: "trying again",
    full: 900,
    batch: 300,
    short: 25,
    off: 25,
    run,
};

/// How long everything may take after its return: controllers of Kubernetes, too, wait longer and longer between attempts.
const AFTER: Duration = Duration::from_mins(5);

fn run(run: Run) -> Result<Outcome> {
    let outage = Duration::from_secs(u64::from(run.rounds));
    let mut site = Site::alone(run.bites.then_some("retries"))?;
    let (mut outcome, mut chance) = (Outcome { rounds: run.rounds, ..Outcome::default() }, Chance::new(run.seed));
    let others = foreign(&site.object()?);
    let starts_without = !run.bites && chance.below(2) == 0;
    let mut before = site.generation()?;
    let mut part = if starts_without {
        site.kubernetes().kill(Component::ApiServer)?;
        site.actuator(FIRST, None)?
    } else {
        let mut part = site.actuator(FIRST, None)?;
        // So that it knows everything.
        let decision = site.decision("first", percentage(3))?;
        site.decide(&decision)?;
        site.await_ready("first", &mut part)?;
        before = site.generation()?;
        site.kubernetes().kill(Component::ApiServer)?;
        part
    };
    let gone = Instant::now();
    // It still leads at first; later no instance does.
    let at_once = run.bites || chance.below(2) == 0;
    std::thread::sleep(outage.mul_f64(if at_once { 0.0 } else { 0.5 }));
    let mut decide = |id: &str, seconds: f64, percentage: u32| {
        let mut decision = site.decision(id, percentage)?;
        decision.expires = decision.time.plus_seconds(seconds);
        site.decide(&decision)
    };
    decide("expires", 3.0, percentage(0))?;
    decide("lasts", 7200.0, percentage(1))?;
    std::thread::sleep(outage.mul_f64(0.2));
    // For a layout that the one before it ends.
    decide("late", 7200.0, percentage(2))?;
    if run.bites {
        site.wait(&mut part, "something becomes of it", |_| Ok(!site.became("lasts").is_empty()))?;
    }
    std::thread::sleep(outage.saturating_sub(gone.elapsed()));
    outcome.check(run.bites || !site.became("lasts").contains(&ActuationOutcome::Applied), || {
        "it was applied to nothing".to_owned()
    });
    site.kubernetes().start_again(Component::ApiServer)?;
    let back = Instant::now();
    outcome.peak("away for (s)", (back - gone).as_secs_f64());
    outcome.count("actuators that started meanwhile", u64::from(starts_without));
    for id in ["expires", "lasts", "late"] {
        let over = || !site.became(id).is_empty() && (run.bites || id != "lasts" || site.is_ready(id));
        site.wait_within(AFTER, &mut part, &format!("{id} is answered"), |_| Ok(over()))?;
        if id == "lasts" && !run.bites {
            outcome.took("from its return until the change is ready", back.elapsed().as_secs_f64());
        }
    }
    for id in ["expires", "late"] {
        let became = site.became(id);
        outcome.check(became == [ActuationOutcome::Refused], || format!("{id} was to be refused, and became {became:?}"));
    }
    site.judge(&mut outcome, &["lasts".to_owned()], before, percentage(1))?;
    let now = foreign(&site.object()?);
    outcome.check(now == others, || format!("what is others' has changed: {now}"));
    part.stop(LIMIT)?;
    Ok(outcome)
}
