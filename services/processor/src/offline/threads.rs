//! Groups of sources, folded side by side.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use eadt_service::tasks::REPLAY_FOLD;

use super::record::ReplayError;
use super::{Emit, GroupResult, ReplayGroup, ReplayOutput};
use crate::positions::PartitionOffsets;

/// Outputs of a message.
const OUTPUTS_AT_ONCE: usize = 64;
/// Messages of each thread that wait for the consumer of its outputs.
const MESSAGES_WAITING: usize = 4;

enum GroupMessage {
    Outputs(Vec<(PartitionOffsets, ReplayOutput)>),
    Folded(Result<Box<GroupResult>, ReplayError>),
}

/// The outputs are not wanted any more: the replay has failed elsewhere.
#[derive(Debug, thiserror::Error)]
#[error("the replay was stopped")]
pub(super) struct ReplayStopped;

/// Sets the flag if its thread panics, so that the others stop.
struct StopOnPanic(Arc<AtomicBool>);

impl Drop for StopOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Folds each group, in as many threads at most. The results come in any order.
pub(super) fn fold_groups(
    groups: VecDeque<ReplayGroup>,
    threads: usize,
    emit: &mut Emit<'_>,
) -> Result<Vec<GroupResult>, ReplayError> {
    let stopped = Arc::new(AtomicBool::new(false));
    let threads = threads.min(groups.len());
    if threads <= 1 {
        return groups.into_iter().map(|group| group.fold(&stopped, emit)).collect();
    }
    let queue = Arc::new(Mutex::new(groups));
    let (send, receive) = sync_channel(MESSAGES_WAITING * threads);
    let mut workers = Vec::new();
    for which in 0..threads {
        let (queue, stopped, send) = (Arc::clone(&queue), StopOnPanic(Arc::clone(&stopped)), send.clone());
        workers.push(REPLAY_FOLD.thread_of(which, move || fold_queued(&queue, &stopped.0, &send))?);
    }
    drop(send);
    let results = collect(&receive, emit);
    stopped.store(true, Ordering::Relaxed);
    drop(receive);
    let joined = workers.into_iter().map(|worker| worker.join().map_err(|panic| eadt_service::tasks::panicked(&*panic).into()));
    // A thread's panic is the reason why the others stopped.
    joined.collect::<Result<(), ReplayError>>()?;
    results
}

/// Passes the outputs on until every group is folded, or one has failed.
fn collect(receive: &Receiver<GroupMessage>, emit: &mut Emit<'_>) -> Result<Vec<GroupResult>, ReplayError> {
    let mut results = Vec::new();
    for message in receive {
        match message {
            GroupMessage::Outputs(outputs) => {
                for (positions, output) in outputs {
                    emit(&positions, output)?;
                }
            }
            GroupMessage::Folded(folded) => results.push(*folded?),
        }
    }
    Ok(results)
}

/// Folds one group after another until none is left.
fn fold_queued(queue: &Mutex<VecDeque<ReplayGroup>>, stopped: &AtomicBool, send: &SyncSender<GroupMessage>) {
    // No group is folded while the queue is locked, so that no panic can leave it half changed.
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front();
    while let Some(group) = next() {
        let mut outputs = Vec::new();
        let send_outputs = |outputs: &mut Vec<_>| {
            let outputs = std::mem::take(outputs);
            send.send(GroupMessage::Outputs(outputs)).map_err(|_| ReplayError::from(ReplayStopped))
        };
        let folded = group.fold(stopped, &mut |positions, output| {
            outputs.push((*positions, output));
            if outputs.len() >= OUTPUTS_AT_ONCE { send_outputs(&mut outputs) } else { Ok(()) }
        });
        let folded = folded.and_then(|folded| send_outputs(&mut outputs).map(|()| Box::new(folded)));
        if send.send(GroupMessage::Folded(folded)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use eadt_core::FoldSettings;
    use eadt_schemas::v1::GpuTelemetry;
    use eadt_schemas::{EventTime, Topic};

    use crate::offline::{OpenWindowPolicy, RawRecord, RecordBatch, ReplayError, ReplayRecord, ReplaySource, replay};

    /// A sample each second of a GPU of its own, and the result of the read after them.
    struct Samples {
        partition: i32,
        second: i64,
        until: i64,
        then: fn() -> Result<bool, ReplayError>,
    }

    impl ReplaySource for Samples {
        fn partition(&self) -> Option<i32> {
            Some(self.partition)
        }

        fn read(&mut self, batch: &mut RecordBatch) -> Result<bool, ReplayError> {
            batch.clear();
            if self.second == self.until {
                return (self.then)();
            }
            let time = EventTime::from_micros((1_700_000_000 + self.second) * 1_000_000);
            let workload = format!("team/job-{}", self.partition);
            let (device, collector) = (format!("GPU-{}", self.partition), "test".to_owned());
            let power_watts = Some(300.0);
            let event = GpuTelemetry {
                time,
                workload: Some(workload.clone()),
                device,
                collector,
                power_watts,
                ..GpuTelemetry::default()
            };
            let value = serde_json::to_vec(&event)?;
            let (topic, key, stamp) = (Topic::GpuTelemetry, workload.as_bytes(), time);
            let raw = RawRecord { topic, kind: None, key, value: Some(&value), stamp, is_sent_again: false };
            *batch.slot() = ReplayRecord::new(raw, Some(self.partition), Some(self.second));
            batch.keep();
            self.second += 1;
            Ok(true)
        }
    }

    fn samples(partition: i32, until: i64, then: fn() -> Result<bool, ReplayError>) -> Box<dyn ReplaySource> {
        Box::new(Samples { partition, second: 0, until, then })
    }

    /// Twenty partitions, of which one ends otherwise.
    fn replayed(seconds: i64, then: fn() -> Result<bool, ReplayError>, threads: usize) -> Result<(u64, u64), String> {
        let settings = FoldSettings { idle_grace: None, ..FoldSettings::default() };
        let sources = (0..20).map(|partition| samples(partition, seconds, if partition == 7 { then } else { || Ok(false) }));
        let counts = replay(&settings, sources.collect(), OpenWindowPolicy::Close, threads, |_, _| Ok(()));
        counts.map(|counts| (counts.events, counts.windows)).map_err(|error| error.to_string())
    }

    #[test]
    fn every_partition_is_folded_whatever_the_number_of_threads() {
        let expected = replayed(300, || Ok(false), 1).unwrap();
        assert_eq!(expected.0, 20 * 300);
        assert!(expected.1 >= 20 * 5, "{expected:?}");
        for threads in [2, 3, 19, 20, 64] {
            assert_eq!(replayed(300, || Ok(false), threads), Ok(expected), "{threads} threads");
        }
    }

    #[test]
    fn what_is_wrong_with_one_source_ends_the_replay_and_is_its_error() {
        for threads in [1, 2, 20] {
            assert_eq!(replayed(30, || Err("the disk is gone".into()), threads), Err("the disk is gone".to_owned()));
        }
        let panicked = replayed(30, || panic!("a bug"), 3).unwrap_err();
        assert!(panicked.contains("panicked: a bug"), "{panicked}");
    }

    #[test]
    fn an_output_that_cannot_be_taken_ends_the_replay() {
        let settings = FoldSettings { idle_grace: None, ..FoldSettings::default() };
        for threads in [1, 4] {
            let sources = (0..8).map(|partition| samples(partition, 3_600, || Ok(false))).collect();
            let mut taken = 0;
            let error = replay(&settings, sources, OpenWindowPolicy::Close, threads, |_, _| {
                taken += 1;
                if taken > 5 { Err("the disk is full".into()) } else { Ok(()) }
            });
            assert_eq!((error.unwrap_err().to_string().as_str(), taken), ("the disk is full", 6), "{threads} threads");
        }
    }
}
