//! The record of one workload, read anew from the log or the archive for a question that the model does not keep enough for.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use eadt_backtest::HindsightInput;
use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::{Bus, BusError, StartOffset, TopicPartition, partition_for_key, read_to_end};
use eadt_lake::{Archive, LakeError};
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::v1::{Actuation, EfficiencyWindow, Workload};
use eadt_schemas::{Topic, decode};

use crate::feed::{FeedError, topic_spec};
use crate::record_identity::{REWRITTEN, RecordIdentity};

/// Longest time of a read, and most windows that are kept. They bound the thread and the memory of a request.
const LONGEST: Duration = Duration::from_secs(20);
const MOST_WINDOWS: usize = 20_000;

/// Place of the records.
#[derive(Debug, Clone)]
pub enum HistorySource {
    /// The dashboard's own log.
    Log { bus: Arc<dyn Bus>, prefix: String },
    /// An archive, and perhaps the embedded log beside it. `identity` is that of the record of the page, once it is read.
    Folder { path: PathBuf, prefix: String, identity: Arc<OnceLock<RecordIdentity>> },
}

/// A record cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    #[error("the record takes longer than {} s to read: `eadt backtest --archive` has no such limit", LONGEST.as_secs())]
    TooSlow,
    #[error("the record has more than {MOST_WINDOWS} windows: `eadt backtest --archive` has no such limit")]
    TooLong,
    #[error("{REWRITTEN}")]
    Rewritten,
    #[error("the record cannot be read")]
    Unreadable(#[from] FeedError),
}

impl From<BusError> for HistoryError {
    fn from(error: BusError) -> Self {
        Self::Unreadable(error.into())
    }
}

impl From<LakeError> for HistoryError {
    fn from(error: LakeError) -> Self {
        Self::Unreadable(error.into())
    }
}

impl HistorySource {
    /// Reads everything of one workload. Blocks.
    pub fn read(&self, workload: &str) -> Result<HindsightInput, HistoryError> {
        let until = Instant::now() + LONGEST;
        let mut reading = WorkloadHistoryReader { workload, until, windows: HashSet::new(), record: HindsightInput::default() };
        match self {
            Self::Log { bus, prefix } => reading.log(&**bus, prefix)?,
            Self::Folder { path, prefix, identity } => {
                let log = path.join("log");
                match Archive::find(path) {
                    Ok(archive) => {
                        let check = identity.get().map(|first| first.check(&RecordIdentity::of(&archive)));
                        check.transpose().map_err(|_| HistoryError::Rewritten)?;
                        reading.archive(&archive)?;
                    }
                    // Nothing is archived yet; an archive that cannot be read is an error.
                    Err(LakeError::Absent { .. }) if log.is_dir() => {}
                    Err(error) => return Err(error.into()),
                }
                // Declarations and actuations that both hold are there twice, which a look back does not mind.
                if log.is_dir() {
                    reading.log(&EmbeddedLog::open(&log, EmbeddedOptions::default())?, prefix)?;
                }
            }
        }
        Ok(reading.record)
    }
}

struct WorkloadHistoryReader<'a> {
    workload: &'a str,
    until: Instant,
    /// Ids of windows that were read: an archive and the log beside it hold the same.
    windows: HashSet<String>,
    record: HindsightInput,
}

impl WorkloadHistoryReader<'_> {
    fn archive(&mut self, archive: &Archive) -> Result<(), HistoryError> {
        let listing = archive.files()?;
        for topic in [Topic::Workloads, Topic::EfficiencyWindows, Topic::Actuations] {
            for (_, partition) in listing.partitions().into_keys().filter(|(of, _)| *of == topic) {
                let mut rows = archive.stored(&listing, topic, partition);
                while let Some(row) = rows.next() {
                    let row = row?;
                    self.check_time()?;
                    if row.key() == Some(self.workload.as_bytes())
                        && let Some(value) = rows.row(&row)?.value
                    {
                        self.take(topic, &value)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn log(&mut self, bus: &dyn Bus, prefix: &str) -> Result<(), HistoryError> {
        let existing = bus.topics(prefix)?;
        let mut from = Vec::new();
        for topic in [Topic::Workloads, Topic::EfficiencyWindows, Topic::Actuations] {
            let name = format!("{prefix}{topic}");
            let spec = topic_spec(&existing, &name).ok_or(FeedError::NoTopic(name))?;
            let partition = partition_for_key(self.workload.as_bytes(), spec.partitions);
            from.push((TopicPartition::new(spec.name.clone(), partition), StartOffset::Earliest));
        }
        let until = self.until;
        let whole = read_to_end(
            bus,
            &from,
            || Instant::now() > until,
            |record| {
                let topic = Topic::from_name(&record.at.topic, prefix);
                match (topic, &record.value) {
                    (Some(topic), Some(value)) if record.key.as_deref() == Some(self.workload.as_bytes()) => {
                        self.take(topic, value)
                    }
                    _ => Ok(()),
                }
            },
        )?;
        if whole.is_none() { Err(HistoryError::TooSlow) } else { Ok(()) }
    }

    fn check_time(&self) -> Result<(), HistoryError> {
        if Instant::now() > self.until { Err(HistoryError::TooSlow) } else { Ok(()) }
    }

    /// Takes an event; invalid ones were refused and counted when they were read for the page.
    fn take(&mut self, topic: Topic, value: &[u8]) -> Result<(), HistoryError> {
        fn push<T: DecodableEvent>(events: &mut Vec<T>, value: &[u8]) {
            events.extend(decode::<T>(value));
        }
        match topic {
            Topic::Workloads => push::<Workload>(&mut self.record.workloads, value),
            Topic::EfficiencyWindows => {
                if let Ok(window) = decode::<EfficiencyWindow>(value)
                    && self.windows.insert(window.id.clone())
                {
                    self.record.windows.push(window);
                }
            }
            Topic::Actuations => push::<Actuation>(&mut self.record.actuations, value),
            _ => {}
        }
        if self.record.windows.len() > MOST_WINDOWS { Err(HistoryError::TooLong) } else { Ok(()) }
    }
}
