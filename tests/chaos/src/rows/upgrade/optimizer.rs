//! The optimizer, while a job becomes faster again and again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use eadt_bus::Bus;
use eadt_lake::Archive;
use eadt_optimizer::{ModelVerdict, OptimizerSettings, learn};
use eadt_schemas::v1::{EfficiencyWindow, Layout, Model, Origin, Workload};
use eadt_schemas::{EventTime, Topic};

use crate::chance::Chance;
use crate::feeder::send_mixed;
use crate::part::{Part, Service};
use crate::row::{Outcome, Row, Run};
use crate::rows::archive::{self, await_archived};
use crate::site::now;
use crate::story::StoryEvent;
use crate::verify::read_committed;
use crate::world::{Cluster, LIMIT, PARTITIONS, World, explain, runs};

pub const ROW: Row = Row {
    name: "upgrade-optimizer",
    fault: "restarts (SIGTERM) of the optimizer between this minor version and the next, while windows of both versions of a job that becomes faster come in and an archiver of this one writes them and the models",
    promise: "every version of a model once in every partition, without a gap, and in the end the one that the archive has; each offset in exactly one readable file, with what is not known",
    without: "taking events whose fields are not all known",
    full: 60,
    batch: 10,
    short: 2,
    off: 2,
    run,
};

const JOB: &str = "chaos/faster";
const BOARD: &str = "A100-SXM4-40GB";
/// Topics of a round's inputs and outputs.
const TOPICS: [Topic; 3] = [Topic::EfficiencyWindows, Topic::Workloads, Topic::Models];
/// Windows of a round; the optimizer looks at as many.
const WINDOWS: usize = 120;
/// They come in so many parts.
const PARTS: usize = 6;
/// How long a model is waited for that, without the mitigation, may never come.
const IN_VAIN: Duration = Duration::from_secs(15);

fn run(run: Run) -> Result<Outcome> {
    let (mut outcome, mut chance) = (Outcome::default(), Chance::new(run.seed));
    let world = World::start(Cluster::One, run.bites.then_some("unknown-fields"))?;
    let place = world.dir().join("archive");
    let archive = Archive::folder(&place)?;
    let settings = OptimizerSettings {
        location: place.display().to_string(),
        interval_seconds: 1.0,
        windows_min: WINDOWS / 2,
        windows_max: WINDOWS,
        ..OptimizerSettings::default()
    };
    let mut files = world.part(Service::Archiver(Box::new(archive::settings(&place))), None)?;
    let optimizer = || world.part(Service::Optimizer(Box::new(settings.clone())), None);
    let mut job = Job { chance: Chance::new(run.seed ^ 1), windows: 0, speed: 1.0 };
    let mut producer = world.bus.producer("chaos-windows")?;
    send_mixed(&mut *producer, &world.prefix, &[workload()?])?;
    let mut part = optimizer()?;
    for round in 0..run.rounds {
        world.next.set(round % 2 == 0);
        let turn = chance.below(PARTS as u64) as usize;
        for number in 0..PARTS {
            send_mixed(&mut *producer, &world.prefix, &job.run(WINDOWS / PARTS)?)?;
            if number == turn {
                std::thread::sleep(Duration::from_millis(chance.below(1000)));
                part.stop(LIMIT)?;
                part = optimizer()?;
            }
            std::thread::sleep(Duration::from_millis(chance.below(500)));
        }
        ensure!(producer.flush(LIMIT)?, "windows were not acknowledged");
        let begun = Instant::now();
        let reached = await_archived(&world, &archive, &[Topic::EfficiencyWindows], &mut files, LIMIT)?;
        outcome.check(reached, || format!("not every window was archived: {}", files.tail()));
        let limit = if run.bites { IN_VAIN } else { LIMIT };
        let settled = explain(await_settled(&world, &archive, &settings, &mut part, limit), &part)?;
        outcome.check(settled, || format!("after {limit:?} the archive has a better model than the one in force"));
        outcome.took("from the last window until its models are in force", begun.elapsed().as_secs_f64());
        outcome.rounds += 1;
        job.speed *= chance.between(1.15, 1.4);
    }
    part.stop(LIMIT)?;
    judge(&world, run.rounds, &mut outcome)?;
    let reached = await_archived(&world, &archive, &TOPICS, &mut files, LIMIT)?;
    outcome.check(reached, || format!("not everything was archived: {}", files.tail()));
    if !run.bites {
        // The files of an archiver that ignores such events are judged elsewhere.
        archive::judge(&world, &place, &archive, &TOPICS, &mut outcome)?;
    }
    Ok(outcome)
}

/// A job whose caps walk: its rate is `speed` times 3·(P − 90)^0.6, its power follows activity and clock.
struct Job {
    chance: Chance,
    /// Windows so far.
    windows: usize,
    speed: f64,
}

impl Job {
    fn run(&mut self, windows: usize) -> Result<Vec<StoryEvent>> {
        let mut next = || {
            let window = self.window();
            story_event(Topic::EfficiencyWindows, &window, window.window_end)
        };
        (0..windows).map(|_| next()).collect()
    }

    fn window(&mut self) -> EfficiencyWindow {
        let n = self.windows;
        self.windows += 1;
        let cap = 200.0 + 10.0 * ((n * 7) % 20) as f64;
        let (clock, sm, dram) = (700.0 + cap, self.chance.between(0.6, 0.9), self.chance.between(0.2, 0.5));
        let phi = clock / 1090.0;
        let watts = (60.0 + sm * (150.0 * phi + 140.0 * phi.powi(3)) + 60.0 * dram) * self.chance.between(0.995, 1.005);
        let rate = self.speed * 3.0 * (watts - 90.0).max(1.0).powf(0.6) * self.chance.between(0.995, 1.005);
        EfficiencyWindow {
            id: format!("{JOB}/{n}"),
            workload: JOB.to_owned(),
            window_start: minute(n),
            window_end: minute(n + 1),
            origin: Origin::Simulated,
            energy_joules: Some(watts * 60.0),
            samples: Some(rate * 60.0),
            samples_per_second: Some(rate),
            joules_per_sample: Some(watts / rate),
            mean_power_watts: Some(watts),
            mean_power_per_gpu_watts: Some(watts),
            mean_sm_active_ratio: Some(sm),
            mean_dram_active_ratio: Some(dram),
            mean_sm_clock_mhz: Some(clock),
            energy_coverage_ratio: 1.0,
            progress_coverage_ratio: 1.0,
            layout: Some(Layout { replicas: Some(6), power_limit_watts: Some(cap), ..Layout::default() }),
            ..EfficiencyWindow::default()
        }
    }
}

fn minute(n: usize) -> EventTime {
    EventTime::from_micros(1_767_225_600_000_000 + n as i64 * 60_000_000)
}

fn workload() -> Result<StoryEvent> {
    let event = Workload { time: minute(0), workload: JOB.to_owned(), gpu_model: Some(BOARD.to_owned()), ..Workload::default() };
    story_event(Topic::Workloads, &event, minute(0))
}

fn story_event(topic: Topic, event: &impl serde::Serialize, time: EventTime) -> Result<StoryEvent> {
    let value = serde_json::to_vec(event)?;
    Ok(StoryEvent { topic, key: JOB.to_owned(), value, kind: topic.event_type(), time })
}

/// By partition, every model in its order.
fn models(world: &World) -> Result<Vec<Vec<Model>>> {
    let mut models = vec![Vec::new(); PARTITIONS as usize];
    for record in read_committed(&world.bus, &world.topic(Topic::Models), PARTITIONS)? {
        let value = record.value.as_deref().context("nobody withdraws a model")?;
        models[record.at.partition as usize].push(serde_json::from_slice(value)?);
    }
    Ok(models)
}

/// Waits until the archive has nothing better than what is in force.
fn await_settled(
    world: &World,
    archive: &Archive,
    settings: &OptimizerSettings,
    part: &mut Part,
    limit: Duration,
) -> Result<bool> {
    let begun = Instant::now();
    loop {
        let (training, _) = eadt_optimizer::read(archive)?;
        let present: BTreeMap<String, Model> =
            models(world)?.into_iter().flatten().map(|model| (model.name.clone(), model)).collect();
        let proposals = learn(&training, &present, settings, now());
        if !present.is_empty() && proposals.iter().all(|proposal| proposal.verdict != ModelVerdict::Publish) {
            return Ok(true);
        }
        if begun.elapsed() > limit {
            return Ok(false);
        }
        runs(part)?;
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Copies of one version: a partition, and the model in it.
type Copies<'a> = Vec<(usize, &'a Model)>;

/// Each version once in every partition, and none left out.
fn judge(world: &World, rounds: u32, outcome: &mut Outcome) -> Result<()> {
    let models = models(world)?;
    // By name and version, what each partition has of it.
    let mut versions: BTreeMap<&str, BTreeMap<u64, Copies<'_>>> = BTreeMap::new();
    for (partition, model) in models.iter().enumerate().flat_map(|(partition, of)| of.iter().map(move |model| (partition, model)))
    {
        versions.entry(&model.name).or_default().entry(model.version.parse()?).or_default().push((partition, model));
    }
    for (name, versions) in &versions {
        let newest = versions.keys().next_back().copied().unwrap_or(0);
        outcome.check(versions.keys().copied().eq(1..=newest), || format!("of {name} there are versions {:?}", versions.keys()));
        for (version, copies) in versions {
            for partition in 0..models.len() {
                let here = copies.iter().filter(|(of, _)| *of == partition).count() as u64;
                outcome.compared += 1;
                outcome.lost += u64::from(here == 0);
                outcome.duplicated += here.saturating_sub(1);
            }
            let same = copies.windows(2).all(|pair| pair[0].1 == pair[1].1);
            outcome.check(same, || format!("version {version} of {name} is not the same everywhere"));
        }
        outcome.count("versions of models", newest);
    }
    let curve = versions.iter().find(|(name, _)| name.starts_with("cap-curve/")).map_or(0, |(_, versions)| versions.len());
    outcome
        .check(curve as u64 >= u64::from(rounds), || format!("the job became faster {rounds} times, and {curve} curves show it"));
    Ok(())
}
