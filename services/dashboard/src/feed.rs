//! Where the model's events come from: a log that is followed, or an archive that is read once.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, Isolation, Polled, Record, Remedy, Start, TopicPartition};
use eadt_lake::{Archive, LakeError};
use eadt_schemas::Topic;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Workload, dead_letter_header};
use eadt_service::Shutdown;

use crate::model::Model;
use crate::server::SharedModel;

/// Everything that the page shows.
const TOPICS: [Topic; 5] = [Topic::Workloads, Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations, Topic::DeadLetters];
/// Records of one poll.
const BATCH: usize = 4096;
const POLL: Duration = Duration::from_millis(200);
/// Waits after an error that passes.
const RETRY: Duration = Duration::from_secs(1);
/// Part of the time that savings may take, and how many workloads are looked at between two looks at the clock.
const REFRESH_PART: f64 = 0.25;
const REFRESH_AT_ONCE: usize = 8;

/// The events cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    #[error("topic {0} does not exist: run `eadt topics apply`")]
    NoTopic(String),
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error(transparent)]
    Lake(#[from] LakeError),
}

/// Follows the log from its oldest record until the shutdown, outside of any group. Errors that pass are waited out.
pub fn follow(bus: &dyn Bus, prefix: &str, model: &SharedModel, shutdown: &Shutdown) -> Result<(), FeedError> {
    let mut positions = positions(bus, prefix)?;
    let mut ahead: BTreeSet<TopicPartition> = positions.keys().cloned().collect();
    while !shutdown.is_cancelled() {
        match read_on(bus, prefix, model, shutdown, &mut positions, &mut ahead) {
            Ok(()) => {}
            Err(error) if error.remedy == Remedy::Stop => return Err(error.into()),
            Err(error) => {
                tracing::warn!(%error, "the log cannot be read; tried again in a second");
                std::thread::sleep(RETRY);
            }
        }
    }
    Ok(())
}

fn positions(bus: &dyn Bus, prefix: &str) -> Result<BTreeMap<TopicPartition, Start>, FeedError> {
    let existing = bus.topics(prefix)?;
    let mut positions = BTreeMap::new();
    for topic in TOPICS {
        let name = format!("{prefix}{topic}");
        let spec = existing.iter().find(|spec| *spec.name == *name).ok_or(FeedError::NoTopic(name))?;
        positions.extend((0..spec.partitions).map(|number| (TopicPartition::new(spec.name.clone(), number), Start::Earliest)));
    }
    Ok(positions)
}

fn read_on(
    bus: &dyn Bus,
    prefix: &str,
    model: &SharedModel,
    shutdown: &Shutdown,
    positions: &mut BTreeMap<TopicPartition, Start>,
    ahead: &mut BTreeSet<TopicPartition>,
) -> Result<(), BusError> {
    let from: Vec<_> = positions.iter().map(|(at, start)| (at.clone(), *start)).collect();
    let mut reader = bus.reader(&from, Isolation::ReadCommitted)?;
    let mut batch = Vec::new();
    while !shutdown.is_cancelled() {
        reader.poll(BATCH, POLL, &mut batch)?;
        let polled = Instant::now();
        model.change(|model| {
            for polled in batch.drain(..) {
                match polled {
                    Polled::Record(record) => {
                        positions.insert(record.at.clone(), Start::At(record.offset + 1));
                        take(model, prefix, &record);
                    }
                    Polled::End { at, .. } => {
                        ahead.remove(&at);
                    }
                    _ => {}
                }
            }
            if ahead.is_empty() {
                model.set_caught_up();
            }
        });
        // While old events are read, each saving would be computed for nothing.
        let left = POLL.mul_f64(REFRESH_PART);
        while ahead.is_empty() && model.change(|model| model.refresh(REFRESH_AT_ONCE)) && polled.elapsed() < left {}
    }
    Ok(())
}

fn take(model: &mut Model, prefix: &str, record: &Record) {
    let Some(topic) = record.at.topic.strip_prefix(prefix).and_then(Topic::from_base_name) else { return };
    if topic == Topic::DeadLetters {
        model.dead_letter(record.header(dead_letter_header::REASON).unwrap_or("no reason given"));
    } else if let Some(value) = &record.value {
        model.take(topic, value);
    }
}

/// Ids of what an archive holds: a log beside it may hold the same.
#[derive(Debug, Default)]
pub struct ArchivedIds(HashSet<String>);

/// Takes in everything that a log holds now, but what the archive beside it held already.
pub fn load_log(bus: &dyn Bus, prefix: &str, archived: &ArchivedIds, model: &mut Model) -> Result<(), FeedError> {
    let from: Vec<_> = positions(bus, prefix)?.into_iter().collect();
    eadt_bus::read_to_end(
        bus,
        &from,
        || false,
        |record| {
            if record.header(header::ID).is_none_or(|id| !archived.0.contains(id)) {
                take(model, prefix, &record);
            }
            Ok::<_, BusError>(())
        },
    )?;
    while model.refresh(usize::MAX) {}
    model.set_caught_up();
    Ok(())
}

/// Takes in everything that an archive, or the output of a replay, holds.
pub fn load_archive(path: &Path, model: &mut Model) -> Result<ArchivedIds, FeedError> {
    let workloads = eadt_lake::read_events::<Workload>(&Archive::find(path)?, Topic::Workloads)?;
    let windows = eadt_lake::read_windows(path)?;
    let decisions = eadt_lake::read_decisions(path)?;
    let actuations = eadt_lake::read_actuations(path)?;
    let missing = [&workloads.missing, &windows.missing, &decisions.missing, &actuations.missing];
    for (topic, partition, from, to) in missing.into_iter().flatten() {
        tracing::warn!(%topic, partition, from, to, "a file of the archive was removed");
    }
    let refused = workloads.refused.len() + windows.refused.len() + decisions.refused.len() + actuations.refused.len();
    (0..refused).for_each(|_| model.unreadable());
    let mut ids = HashSet::new();
    workloads.events.iter().for_each(|event| model.declaration(event));
    for event in &windows.events {
        model.window(event);
        ids.insert(event.id.clone());
    }
    for event in &decisions.events {
        model.decision(event);
        ids.insert(event.id.clone());
    }
    for event in &actuations.events {
        model.actuation(event);
        ids.insert(event.id.clone());
    }
    while model.refresh(usize::MAX) {}
    model.set_caught_up();
    Ok(ArchivedIds(ids))
}
