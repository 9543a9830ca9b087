//! Progress reports of a job: the end of `training.progress.v1`, read only while a report is awaited, or a job may take back a
//! change that it made.

use std::sync::Arc;
use std::time::Duration;

use eadt_bus::{
    Bus, BusError, ConsumerRecord, IsolationLevel, PartitionReader, PollEvent, StartOffset, TopicPartition, partition_for_key,
    read_to_end,
};
use eadt_schemas::decode;
use eadt_schemas::v1::TrainingProgress;

/// Records of the partition that are looked through for the job's last word; those of other workloads are among them.
const MAX_LOOKBACK_RECORDS: i64 = 20_000;
/// Thousands of records that are taken at a time; the rest waits for the next.
const MAX_POLLS: usize = 20;

/// The reports of one job.
#[derive(Debug)]
pub struct JobReports {
    workload: String,
    reader: Box<dyn PartitionReader>,
}

/// The topic of progress on a bus.
#[derive(Debug, Clone, Copy)]
pub struct ProgressTopic<'a> {
    pub bus: &'a dyn Bus,
    pub topic: &'a Arc<str>,
    pub partitions: i32,
}

impl ProgressTopic<'_> {
    fn partition_of(&self, workload: &str) -> TopicPartition {
        TopicPartition::new(self.topic.clone(), partition_for_key(workload.as_bytes(), self.partitions))
    }
}

impl JobReports {
    /// Returns the reports that follow the ones present, which `take` receives first; `None` if the process is stopping.
    pub fn after_latest(
        progress: ProgressTopic<'_>,
        workload: &str,
        stopped: impl Fn() -> bool,
        mut take: impl FnMut(TrainingProgress),
    ) -> Result<Option<Self>, BusError> {
        let at = progress.partition_of(workload);
        let marks = progress.bus.watermarks(&at)?;
        let from = StartOffset::At(marks.low.max(marks.high - MAX_LOOKBACK_RECORDS));
        let reader = read_to_end(progress.bus, &[(at, from)], stopped, |record| {
            decode_report(workload, &record).into_iter().for_each(&mut take);
            Ok::<_, BusError>(())
        })?;
        Ok(reader.map(|reader| Self { workload: workload.to_owned(), reader }))
    }

    pub fn workload(&self) -> &str {
        &self.workload
    }

    /// Reads the reports since the last call.
    pub fn poll(&mut self, mut take: impl FnMut(TrainingProgress)) -> Result<(), BusError> {
        let mut polled = Vec::new();
        loop {
            self.reader.poll(1000, Duration::ZERO, &mut polled)?;
            if polled.is_empty() {
                return Ok(());
            }
            for item in polled.drain(..) {
                if let PollEvent::Record(record) = item {
                    decode_report(&self.workload, &record).into_iter().for_each(&mut take);
                }
            }
        }
    }
}

/// The reports of all jobs, from now on.
#[derive(Debug)]
pub struct ProgressTail {
    reader: Box<dyn PartitionReader>,
}

impl ProgressTail {
    pub fn from_now(progress: ProgressTopic<'_>) -> Result<Self, BusError> {
        let mut from = Vec::new();
        for partition in 0..progress.partitions {
            let at = TopicPartition::new(progress.topic.clone(), partition);
            let end = progress.bus.watermarks(&at)?.high;
            from.push((at, StartOffset::At(end)));
        }
        Ok(Self { reader: progress.bus.reader(&from, IsolationLevel::ReadCommitted)? })
    }

    /// Reads the reports of these workloads since the last call.
    pub fn poll(&mut self, of: impl Fn(&str) -> bool, mut take: impl FnMut(TrainingProgress)) -> Result<(), BusError> {
        let mut polled = Vec::new();
        for _ in 0..MAX_POLLS {
            self.reader.poll(1000, Duration::ZERO, &mut polled)?;
            if polled.is_empty() {
                break;
            }
            for item in polled.drain(..) {
                let PollEvent::Record(record) = item else { continue };
                // Most are of others, and not worth decoding.
                let workload = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
                let report = workload.filter(|workload| of(workload)).and_then(|workload| decode_report(workload, &record));
                report.into_iter().for_each(&mut take);
            }
        }
        Ok(())
    }
}

/// Returns the report in a record, if it is of this workload.
fn decode_report(workload: &str, record: &ConsumerRecord) -> Option<TrainingProgress> {
    // Most are of others, and not worth decoding.
    if record.key.as_deref() != Some(workload.as_bytes()) {
        return None;
    }
    decode(record.value.as_deref()?).ok()
}
