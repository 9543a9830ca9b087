//! The loop: read the archive, learn, publish.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, Remedy};
use eadt_dataset::{DatasetBuilder, usable};
use eadt_lake::{Archive, LakeError, read_events};
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, WindowKind, Workload};
use eadt_schemas::{EventTime, Topic};
use eadt_service::http::ReadinessFlag;
use eadt_service::{MetricsRegistry, ServiceClock, Shutdown};

use crate::learn::{ModelProposal, ModelVerdict, TrainingData, learn};
use crate::metrics::OptimizerMetrics;
use crate::publish::PublishedModels;
use crate::settings::OptimizerSettings;

/// Everything that the optimizer needs.
#[derive(Debug)]
pub struct OptimizerDependencies {
    pub settings: OptimizerSettings,
    /// The archive at `settings.location` if it is open already.
    pub archive: Option<Archive>,
    /// Prefix of every topic.
    pub prefix: String,
    pub bus: Arc<dyn Bus>,
    /// Clock for the event time of published models.
    pub clock: ServiceClock,
    pub shutdown: Shutdown,
    pub metrics: MetricsRegistry,
    /// Set after the first round.
    pub ready: ReadinessFlag,
    /// One round, then end.
    pub once: bool,
}

/// The reason why the optimizer ended.
#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    #[error("{0}")]
    Settings(String),
    #[error("topic {topic} does not exist: run `eadt topics apply`")]
    NoTopic { topic: String },
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Lake(#[from] LakeError),
}

impl OptimizerError {
    fn passes(&self) -> bool {
        match self {
            Self::Settings(_) | Self::NoTopic { .. } => false,
            Self::Bus(error) => error.remedy != Remedy::Stop,
            Self::Lake(error) => error.is_transient(),
        }
    }
}

/// The result of a round.
#[derive(Debug, Clone, Default)]
pub struct OptimizerRound {
    pub proposals: Vec<ModelProposal>,
    /// Records written to the bus.
    pub sent: usize,
}

/// Returns the last known facts about each workload, and the time since which workloads that moved to another board have the
/// present one: windows of another board are not usable for this one.
fn latest(mut events: Vec<Workload>) -> (BTreeMap<String, Workload>, BTreeMap<String, EventTime>) {
    events.sort_by_key(|workload| workload.time);
    let (mut latest, mut moved): (BTreeMap<String, Workload>, BTreeMap<String, EventTime>) = Default::default();
    for workload in events {
        let before = latest.get(&workload.workload).and_then(|known| known.gpu_model.as_ref());
        if before.is_some() && before != workload.gpu_model.as_ref() {
            moved.insert(workload.workload.clone(), workload.time);
        }
        latest.insert(workload.workload.clone(), workload);
    }
    (latest, moved)
}

/// Returns the training data of an archive, and the number of its records that are no valid events.
pub fn read(archive: &Archive) -> Result<(TrainingData, usize), LakeError> {
    let windows = read_events::<EfficiencyWindow>(archive, Topic::EfficiencyWindows)?;
    let decisions = read_events::<Decision>(archive, Topic::Decisions)?;
    let actuations = read_events::<Actuation>(archive, Topic::Actuations)?;
    let workloads = read_events::<Workload>(archive, Topic::Workloads)?;
    let refused = windows.refused.len() + decisions.refused.len() + actuations.refused.len() + workloads.refused.len();
    let (latest, moved) = latest(workloads.events);
    let mut builder = DatasetBuilder::default();
    windows.events.iter().cloned().for_each(|event| builder.window(event));
    decisions.events.into_iter().for_each(|event| builder.decision(event));
    actuations.events.into_iter().for_each(|event| builder.actuation(event));
    let fingerprint = builder.build().fingerprint;
    let mut once = BTreeMap::new();
    let on_its_board = |w: &EfficiencyWindow| moved.get(&w.workload).is_none_or(|moved| w.window_start >= *moved);
    for window in windows.events.into_iter().filter(|w| w.kind == WindowKind::Tumbling && usable(w) && on_its_board(w)) {
        once.insert((window.workload.clone(), window.window_start), window);
    }
    Ok((TrainingData { windows: once.into_values().collect(), workloads: latest, fingerprint }, refused))
}

/// Learns until `shutdown`; blocks, so give it a thread that runs no async tasks. What fails for a while is tried again at the
/// next interval.
pub fn run(deps: &OptimizerDependencies) -> Result<OptimizerRound, OptimizerError> {
    deps.settings.check().map_err(OptimizerError::Settings)?;
    let metrics = OptimizerMetrics::new(&deps.metrics);
    let archive = match &deps.archive {
        Some(archive) => archive.clone(),
        None => Archive::open(&deps.settings.location)?,
    };
    let mut last_offsets = None;
    loop {
        match round(deps, &archive, &metrics, &mut last_offsets) {
            Ok(round) => {
                deps.ready.set(true);
                if deps.once {
                    return Ok(round);
                }
            }
            Err(error) if error.passes() && !deps.once => {
                metrics.failures.inc();
                deps.ready.set(false);
                tracing::warn!(%error, "fitting failed; retrying at the next interval");
            }
            Err(error) => return Err(error),
        }
        let until = Instant::now() + Duration::from_secs_f64(deps.settings.interval_seconds);
        while Instant::now() < until {
            if deps.shutdown.is_cancelled() {
                return Ok(OptimizerRound::default());
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
        }
    }
}

type ArchivedOffsets = BTreeMap<(Topic, i32), (i64, i64)>;

fn round(
    deps: &OptimizerDependencies,
    archive: &Archive,
    metrics: &OptimizerMetrics,
    last_offsets: &mut Option<ArchivedOffsets>,
) -> Result<OptimizerRound, OptimizerError> {
    let published = PublishedModels::read(&*deps.bus, &deps.prefix)?;
    let there = archive.files()?.partitions();
    if last_offsets.as_ref() == Some(&there) {
        // Models that an interrupted round did not publish are still due.
        return Ok(OptimizerRound { proposals: Vec::new(), sent: published.write(&*deps.bus, &[])? });
    }
    let (training, refused) = read(archive)?;
    if refused > 0 {
        tracing::warn!(refused, "records of the archive are not valid events; they are left out");
    }
    metrics.rounds.inc();
    metrics.windows.set(training.windows.len() as i64);
    let proposals = learn(&training, &published.in_force(), &deps.settings, deps.clock.now());
    for proposal in &proposals {
        metrics.count(proposal.verdict);
        let ModelProposal { name, verdict, reason, .. } = proposal;
        match verdict {
            ModelVerdict::Publish => tracing::info!(model = name, reason, "new version of a model"),
            ModelVerdict::Keep => tracing::info!(model = name, reason, "the model in force is kept"),
            ModelVerdict::CannotTell => tracing::info!(model = name, reason, "no model: the data are not sufficient"),
        }
    }
    let new: Vec<_> = proposals.iter().filter_map(|proposal| proposal.model.clone()).collect();
    let sent = published.write(&*deps.bus, &new)?;
    *last_offsets = Some(there);
    Ok(OptimizerRound { proposals, sent })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_a_board_that_a_workload_has_left_are_not_this_boards() {
        let at = |second: f64| EventTime::from_seconds(second);
        let workload = |second: f64, name: &str, board: Option<&str>| Workload {
            time: at(second),
            workload: name.to_owned(),
            gpu_model: board.map(str::to_owned),
            ..Workload::default()
        };
        let events = vec![
            workload(30.0, "team/moved", Some("A100")),
            workload(10.0, "team/moved", Some("V100")),
            workload(40.0, "team/moved", Some("A100")),
            workload(10.0, "team/stayed", None),
            workload(20.0, "team/stayed", Some("V100")),
        ];
        let (latest, moved) = latest(events);
        assert_eq!(latest["team/moved"].time, at(40.0));
        assert_eq!(moved, BTreeMap::from([("team/moved".to_owned(), at(30.0))]));
    }
}
