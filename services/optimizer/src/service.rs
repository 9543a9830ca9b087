//! The loop: look, learn, publish.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, Remedy};
use eadt_dataset::{Builder, usable};
use eadt_lake::{Archive, LakeError, read_events};
use eadt_schemas::Topic;
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, WindowKind, Workload};
use eadt_service::http::Ready;
use eadt_service::{Clock, Metrics, Shutdown};

use crate::learn::{Proposal, Training, Verdict, learn};
use crate::metrics::OptimizerMetrics;
use crate::publish::Published;
use crate::settings::Settings;

/// Everything that the optimizer needs.
#[derive(Debug)]
pub struct Service {
    pub settings: Settings,
    /// Prefix of every topic.
    pub prefix: String,
    pub bus: Arc<dyn Bus>,
    /// What time it is, for the event time of what is published.
    pub clock: Clock,
    pub shutdown: Shutdown,
    pub metrics: Metrics,
    /// Set after the first round.
    pub ready: Ready,
    /// One round, then end.
    pub once: bool,
}

/// Why the optimizer ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Settings(String),
    #[error("topic {topic} does not exist: run `eadt topics apply`")]
    NoTopic { topic: String },
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Lake(#[from] LakeError),
}

impl Error {
    fn passes(&self) -> bool {
        match self {
            Self::Settings(_) | Self::NoTopic { .. } => false,
            Self::Bus(error) => error.remedy != Remedy::Stop,
            Self::Lake(error) => error.is_transient(),
        }
    }
}

/// What a round found out.
#[derive(Debug, Clone, Default)]
pub struct Round {
    pub proposals: Vec<Proposal>,
    /// Records written to the bus.
    pub sent: usize,
}

/// What an archive has to learn from, and how many of its records are no valid events.
pub fn read(archive: &Archive) -> Result<(Training, usize), LakeError> {
    let windows = read_events::<EfficiencyWindow>(archive, Topic::EfficiencyWindows)?;
    let decisions = read_events::<Decision>(archive, Topic::Decisions)?;
    let actuations = read_events::<Actuation>(archive, Topic::Actuations)?;
    let workloads = read_events::<Workload>(archive, Topic::Workloads)?;
    let refused = windows.refused.len() + decisions.refused.len() + actuations.refused.len() + workloads.refused.len();
    let mut latest: BTreeMap<String, Workload> = BTreeMap::new();
    for workload in workloads.events {
        if latest.get(&workload.workload).is_none_or(|known| known.time <= workload.time) {
            latest.insert(workload.workload.clone(), workload);
        }
    }
    let mut builder = Builder::default();
    windows.events.iter().cloned().for_each(|event| builder.window(event));
    decisions.events.into_iter().for_each(|event| builder.decision(event));
    actuations.events.into_iter().for_each(|event| builder.actuation(event));
    let fingerprint = builder.build().fingerprint;
    let mut once = BTreeMap::new();
    for window in windows.events.into_iter().filter(|w| w.kind == WindowKind::Tumbling && usable(w)) {
        once.insert((window.workload.clone(), window.window_start), window);
    }
    Ok((Training { windows: once.into_values().collect(), workloads: latest, fingerprint }, refused))
}

/// Learns until `shutdown`; blocks, so give it a thread that runs no async tasks. What fails for a while is tried again at the
/// next interval.
pub fn run(service: &Service) -> Result<Round, Error> {
    service.settings.check().map_err(Error::Settings)?;
    let metrics = OptimizerMetrics::new(&service.metrics);
    let archive = Archive::open(&service.settings.location)?;
    let mut seen = None;
    loop {
        match round(service, &archive, &metrics, &mut seen) {
            Ok(round) => {
                service.ready.set(true);
                if service.once {
                    return Ok(round);
                }
            }
            Err(error) if error.passes() && !service.once => {
                metrics.failures.inc();
                service.ready.set(false);
                tracing::warn!(%error, "nothing was learned; the next interval tries again");
            }
            Err(error) => return Err(error),
        }
        let until = Instant::now() + Duration::from_secs_f64(service.settings.interval_seconds);
        while Instant::now() < until {
            if service.shutdown.is_cancelled() {
                return Ok(Round::default());
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
        }
    }
}

type Seen = BTreeMap<(Topic, i32), (i64, i64)>;

fn round(service: &Service, archive: &Archive, metrics: &OptimizerMetrics, seen: &mut Option<Seen>) -> Result<Round, Error> {
    let published = Published::read(&*service.bus, &service.prefix)?;
    let there = archive.files()?.partitions();
    if seen.as_ref() == Some(&there) {
        // What an interrupted round left out is still due.
        return Ok(Round { proposals: Vec::new(), sent: published.write(&*service.bus, &[])? });
    }
    let (training, refused) = read(archive)?;
    if refused > 0 {
        tracing::warn!(refused, "records of the archive are no valid events; nothing is learned from them");
    }
    metrics.rounds.inc();
    metrics.windows.set(training.windows.len() as i64);
    let proposals = learn(&training, &published.in_force(), &service.settings, service.clock.now());
    for proposal in &proposals {
        metrics.count(proposal.verdict);
        let Proposal { name, verdict, reason, .. } = proposal;
        match verdict {
            Verdict::Publish => tracing::info!(model = name, reason, "a new version"),
            Verdict::Keep => tracing::info!(model = name, reason, "nothing better"),
            Verdict::CannotTell => tracing::info!(model = name, reason, "the data cannot tell"),
        }
    }
    let new: Vec<_> = proposals.iter().filter_map(|proposal| proposal.model.clone()).collect();
    let sent = published.write(&*service.bus, &new)?;
    *seen = Some(there);
    Ok(Round { proposals, sent })
}
