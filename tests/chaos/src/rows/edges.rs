//! A collector stops at the edge of a window. Live, an input at its end counts as empty; in a replay of the archive all its records are there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use eadt_archiver::ArchiverSettings;
use eadt_bus::Bus;
use eadt_lake::Archive;
use eadt_processor::ProcessorSettings;
use eadt_schemas::{EventTime, Topic};
use serde::Deserialize;
use serde_json::Value;

use super::archive::{OF_A_STORY, await_archived, settings};
use crate::chance::Chance;
use crate::feeder::send_events;
use crate::part::Service;
use crate::row::{Outcome, Row, Run};
use crate::story::{BASE_SECONDS, Story, StoryEvent, WINDOW_SECONDS};
use crate::verify::Findings;
use crate::world::{Cluster, LIMIT, World, explain};

pub const ROW: Row = Row {
    name: "edges",
    fault: "a collector stops within 2 s of a window's edge, between its job's last report and its GPUs' last samples; from somewhere in \
            its last events on, reports come only when all samples are folded, or samples when all reports are",
    promise: "`eadt replay --check` of the archive makes the same windows and decisions, all of them; in which of two windows an event is \
              counted that came again is not compared, and such windows are counted",
    without: "leaving out of that check in which window an event is counted that came again",
    full: 200,
    batch: 50,
    short: 3,
    off: 2,
    run,
};

/// How far from the edge a collector stops, and how long before it the job's last report may be and after it the GPUs' last samples, in seconds.
const NEAR: f64 = 2.0;
/// Edges of windows at which a collector stops.
const EDGES: u64 = 3;
/// Two GPUs and their job.
const SOURCES: usize = 3;
/// Number of last events of which one input is held back, at most: the end of each source, and some seconds before.
const MOST_HELD: u64 = 15;
/// Event time of a round, in seconds: the table of a later round comes after all events of an earlier one.
const ROUND_SECONDS: i64 = 60;

/// How a collector stops.
#[derive(Debug, Clone, Copy)]
struct Stop {
    /// End of the window, in seconds after the first one began.
    edge: i64,
    /// No report is later, in seconds from the edge.
    reports_end: f64,
    /// No sample is later.
    samples_end: f64,
    /// Number of the source that ends first.
    first_end: usize,
    /// Number of the last events of which one input is held back.
    held_from_end: usize,
    /// That input.
    held: Topic,
}

impl Stop {
    /// The last report is before the edge and the last samples are after it. The events that end the GPUs are folded before the one that
    /// ends the job: live they are counted in the window before the edge, in a replay in the one after it.
    const CLEAR: Self = Self {
        edge: WINDOW_SECONDS,
        reports_end: 0.0,
        samples_end: NEAR,
        first_end: 0,
        held_from_end: SOURCES,
        held: Topic::TrainingProgress,
    };

    fn draw(chance: &mut Chance) -> Self {
        let stop = chance.between(-NEAR, NEAR);
        Self {
            edge: (1 + chance.below(EDGES) as i64) * WINDOW_SECONDS,
            reports_end: stop - chance.between(0.0, NEAR),
            samples_end: stop + chance.between(0.0, NEAR),
            first_end: chance.below(SOURCES as u64) as usize,
            held_from_end: 1 + chance.below(MOST_HELD) as usize,
            held: OF_A_STORY[chance.below(OF_A_STORY.len() as u64) as usize],
        }
    }

    /// The events of a workload whose collector stops so, in the parts in which they are folded one after the other, and the number of
    /// windows that they make.
    fn parts(&self, seed: u64, workload: usize) -> Result<([Vec<StoryEvent>; 5], u64)> {
        let base = BASE_SECONDS + ROUND_SECONDS * workload as i64;
        let at = |seconds: f64| EventTime::from_micros(base * 1_000_000).plus_micros((seconds * 1e6) as i64);
        let mut story = Story::with_clocks(seed, workload..workload + 1, base, |_| 0, |_, _| 0.0);
        for _ in 0..self.edge + 2 * NEAR as i64 {
            story.tick();
        }
        let mut events = story.events;
        let (reports_end, samples_end) = (at(self.edge as f64 + self.reports_end), at(self.edge as f64 + self.samples_end));
        events.retain(|event| event.time <= if event.topic == Topic::TrainingProgress { reports_end } else { samples_end });
        let mut ends = last_events(&events)?;
        ends.rotate_left(self.first_end);
        events.append(&mut ends);
        let newest = events.iter().map(|event| event.time).max().context("a story has events")?;
        let windows = (newest.micros() / 1_000_000 - base) / WINDOW_SECONDS + 1;
        // A table comes before all events that it is about, and every source is known before any window can close.
        let known = events.partition_point(|event| event.time < at(1.0));
        let rest = events.len() - self.held_from_end;
        let (held, others) = events[rest..].iter().cloned().partition(|event| event.topic == self.held);
        Ok(([events[..1].to_vec(), events[1..known].to_vec(), events[known..rest].to_vec(), others, held], windows as u64))
    }
}

/// The last event of each source once more, marked as the last: so a collector ends its sources.
fn last_events(events: &[StoryEvent]) -> Result<Vec<StoryEvent>> {
    let mut last = BTreeMap::new();
    for event in events.iter().filter(|event| OF_A_STORY.contains(&event.topic)) {
        let mut value: Value = serde_json::from_slice(&event.value)?;
        value["last"] = true.into();
        // A report has none.
        let device = value["device"].as_str().map(str::to_owned);
        last.insert(device, StoryEvent { value: serde_json::to_vec(&value)?, ..event.clone() });
    }
    Ok(last.into_values().collect())
}

fn run(run: Run) -> Result<Outcome> {
    let mut chance = Chance::new(run.seed);
    let world = World::start(Cluster::One, None)?;
    let mut outcome = Outcome::default();
    let processor = world.processor(ProcessorSettings { commit_seconds: 0.02, ..world.settings() }, None)?;
    let mut producer = world.bus.producer("chaos-edges")?;
    let mut windows = 0;
    for round in 0..run.rounds {
        let stop = if run.bites { Stop::CLEAR } else { Stop::draw(&mut chance) };
        let (parts, made) = stop.parts(run.seed.wrapping_add(u64::from(round)), round as usize)?;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            send_events(&mut *producer, &world.prefix, part)?;
            ensure!(producer.flush(LIMIT)?, "the events were not acknowledged");
            // All inputs are at their ends then.
            ensure!(explain(world.await_folded(LIMIT), &processor)?, "not everything was folded: {}", processor.tail());
            outcome.count("events", part.len() as u64);
        }
        windows += made;
        outcome.rounds += 1;
    }
    processor.stop(LIMIT)?;
    let Checked { windows_same, decisions_same, other_duplicates, excused, differences } = check(&world, &archive(&world)?)?;
    let mut findings = Findings { wrong: differences.len() as u64, compared: 2 * windows, ..Findings::default() };
    for difference in differences {
        findings.example(|| difference);
    }
    if run.bites {
        findings.wrong += other_duplicates;
        findings.example(|| format!("{other_duplicates} windows count other numbers of events that came again"));
    }
    outcome.take(findings);
    outcome.check((windows_same, decisions_same) == (windows, windows), || {
        format!("{windows_same} windows and {decisions_same} decisions are the same, and should be {windows} each")
    });
    outcome.check(excused.is_empty(), || format!("not compared: {}", excused.join("; ")));
    outcome.count("windows that count other numbers of events that came again", other_duplicates);
    Ok(outcome)
}

/// Archives everything that is in the log.
fn archive(world: &World) -> Result<PathBuf> {
    let place = world.dir().join("archive");
    let archiver = ArchiverSettings { drain_seconds: LIMIT.as_secs_f64(), ..settings(&place) };
    let mut part = world.part(Service::Archiver(Box::new(archiver)), None)?;
    let archived = await_archived(world, &Archive::folder(&place)?, &OF_A_STORY, &mut part, LIMIT)?;
    ensure!(archived, "not everything was archived: {}", part.tail());
    // All partitions are assigned to it by now: it reads each to its end before it ends itself.
    part.stop(LIMIT)?;
    Ok(place)
}

/// Output of `eadt replay --check --json`.
#[derive(Debug, Deserialize)]
struct Summary {
    check: Checked,
}

#[derive(Debug, Deserialize)]
struct Checked {
    windows_same: u64,
    decisions_same: u64,
    other_duplicates: u64,
    excused: Vec<String>,
    differences: Vec<String>,
}

fn check(world: &World, archive: &Path) -> Result<Checked> {
    let program = program()?;
    let mut command = Command::new(&program);
    command.arg("replay").arg(archive).args(["--check", "--json"]).current_dir(world.dir());
    // The record's own settings count.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("EADT_")) {
        command.env_remove(name);
    }
    let output = command.output().with_context(|| format!("starting {}", program.display()))?;
    // If something differs it fails, after it has printed that.
    let printed: Result<Summary, _> = serde_json::from_slice(&output.stdout);
    Ok(printed.with_context(|| format!("`eadt replay --check`: {}", String::from_utf8_lossy(&output.stderr)))?.check)
}

/// Returns the path of `eadt`: beside this program, or built now if it is not there.
fn program() -> Result<PathBuf> {
    let beside = std::env::current_exe().context("finding this program")?.with_file_name("eadt");
    if beside.is_file() {
        return Ok(beside);
    }
    let built = eadt_tests::program();
    Ok(if beside.is_file() { beside } else { built.to_owned() })
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::EfficiencyWindow;

    use super::*;
    use crate::part::processor_settings;
    use crate::verify::straight;

    /// The order in which inputs meet that have all their records: by time, each in its own order.
    fn merged(events: &[StoryEvent]) -> Vec<StoryEvent> {
        let mut newest: BTreeMap<Topic, EventTime> = BTreeMap::new();
        let key = |event: &StoryEvent| {
            let newest = newest.entry(event.topic).or_insert(event.time);
            *newest = event.time.max(*newest);
            *newest
        };
        let mut keys: Vec<_> = events.iter().map(key).zip(events).collect();
        keys.sort_by_key(|(time, _)| *time);
        keys.into_iter().map(|(_, event)| event.clone()).collect()
    }

    /// Windows, the numbers of events in them that came again, which are left out of them, and decisions.
    fn fold(events: &[StoryEvent]) -> (Vec<EfficiencyWindow>, Vec<u64>, Vec<String>) {
        let (windows, decisions) = straight(events, &processor_settings("").fold_settings(), 2);
        let mut windows: Vec<EfficiencyWindow> = windows.iter().map(|found| serde_json::from_str(&found.text).unwrap()).collect();
        let duplicates = windows.iter_mut().map(|window| std::mem::take(&mut window.duplicates)).collect();
        (windows, duplicates, decisions.into_iter().map(|found| found.text).collect())
    }

    #[test]
    fn an_input_at_its_end_changes_only_where_an_event_is_counted_that_came_again() {
        let mut chance = Chance::new(1);
        let mut others = 0;
        let stops = std::iter::once(Stop::CLEAR).chain(std::iter::repeat_with(|| Stop::draw(&mut chance)));
        for (seed, stop) in stops.take(200).enumerate() {
            let (parts, count) = stop.parts(seed as u64, seed).unwrap();
            let live: Vec<StoryEvent> = parts.iter().flat_map(|part| merged(part)).collect();
            let (windows, live_duplicates, decisions) = fold(&live);
            let (wanted_windows, duplicates, wanted_decisions) = fold(&merged(&parts.concat()));
            assert_eq!((windows.len() as u64, decisions.len() as u64), (count, count), "{seed}: {stop:?}");
            assert!(windows == wanted_windows && decisions == wanted_decisions, "{seed}: {stop:?}");
            assert!(windows.iter().all(|window| window.late + window.late_tables + window.stale == 0), "{seed}: {stop:?}");
            assert!(seed > 0 || live_duplicates != duplicates, "{stop:?}: {duplicates:?}");
            others += usize::from(live_duplicates != duplicates);
        }
        assert!(others >= 10, "{others} of 200 show it");
    }
}
