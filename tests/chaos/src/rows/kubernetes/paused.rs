//! Two actuators: one is stopped right before its patch, the other takes over, then the first one wakes up.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::percentage;
use crate::row::{Outcome, Row, Run};
use crate::site::{FIRST, Site};
use crate::world::LIMIT;

pub const ROW: Row = Row {
    name: "paused-leader",
    fault: "SIGSTOP of the leading actuator right before its patch; another one takes over and makes that change and a newer one; SIGCONT",
    promise: "the late patch does nothing: one change a decision, the newest stays in force",
    without: "the fence of writes (resource version, generation, term)",
    full: 40,
    batch: 4,
    short: 1,
    off: 2,
    run,
};

/// Names of the two.
const NAMES: [&str; 2] = [FIRST, "b"];
/// A patch that is sent on waking up has been answered after this time.
const LATE: Duration = Duration::from_secs(2);

fn run(run: Run) -> Result<Outcome> {
    let mut site = Site::start(run.bites.then_some("fence"))?;
    let (mut outcome, before) = (Outcome::default(), site.generation()?);
    let mut ids = Vec::new();
    for round in 0..run.rounds {
        // The last leader leads again when it is restarted.
        let leads = (round % 2) as usize;
        let (old, new) = (NAMES[leads], NAMES[1 - leads]);
        let mut first = site.actuator(old, Some(("change.planned", 1)))?;
        site.wait(&mut first, &format!("{old} leads"), |_| Ok(site.leader()? == old))?;
        let mut second = site.actuator(new, None)?;
        let mut decide = |site: &mut Site| {
            let id = format!("d-{}", ids.len());
            let decision = site.decision(&id, percentage(ids.len() as u32))?;
            site.decide(&decision)?;
            ids.push(id.clone());
            anyhow::Ok(id)
        };
        let id = decide(&mut site)?;
        first.await_phase(LIMIT)?;
        first.freeze(true)?;
        let stopped = Instant::now();
        site.wait(&mut second, &format!("{new} leads"), |_| Ok(site.leader()? == new))?;
        site.await_ready(&id, &mut second)?;
        outcome.took("from the stop until another one has made the change", stopped.elapsed().as_secs_f64());
        let id = decide(&mut site)?;
        site.await_ready(&id, &mut second)?;

        first.freeze(false)?;
        first.go_on()?;
        std::thread::sleep(LATE);
        // Without the fence it changes the object, on a busy machine later.
        let awake = Instant::now();
        while run.bites && site.generation()? <= before + ids.len() as i64 && awake.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(100));
        }
        outcome.rounds += 1;
        first.kill()?;
        second.kill()?;
        if run.bites {
            // Outcomes published from now on may be anything.
            break;
        }
    }
    let last = percentage(ids.len() as u32 - 1);
    site.judge(&mut outcome, &ids, before, last)?;
    Ok(outcome)
}
