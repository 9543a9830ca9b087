//! Directives as jobs get them: what `directives.v1` asks of each workload, in the answer to its report or by long poll.
//!
//! A revision is one more than the log position of the record, so that it grows with every change of a workload's directive and
//! is the same for every collector. Revision 0: nothing was ever asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_bus::{Bus, BusError, ConsumerRecord, IsolationLevel, PollEvent, Remedy, StartOffset, TopicPartition};
use eadt_schemas::latest::Directive;
use eadt_schemas::{Topic, decode};
use eadt_service::Shutdown;
use serde::Serialize;
use tokio::sync::watch;

use crate::metrics::CollectorMetrics;

/// How long a poll of the log waits for records.
const POLL: Duration = Duration::from_millis(100);
/// Pauses between attempts at a log that cannot be read.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// What a workload is asked for now.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DirectiveAnswer {
    /// `namespace/name`.
    pub workload: String,
    /// Grows with every change; 0: nothing was ever asked.
    pub revision: u64,
    /// `None`: nothing is asked any more.
    pub directive: Option<Directive>,
}

/// The newest answer of each workload.
type DirectiveTable = HashMap<String, DirectiveAnswer>;

/// The directives of all workloads; clones share them.
#[derive(Debug, Clone)]
pub struct DirectiveStore {
    /// `None` until the log was read to its end once.
    table: Arc<Mutex<Option<DirectiveTable>>>,
    /// Sent at every change.
    changes: Arc<watch::Sender<()>>,
}

impl Default for DirectiveStore {
    fn default() -> Self {
        Self { table: Arc::default(), changes: Arc::new(watch::Sender::new(())) }
    }
}

impl DirectiveStore {
    fn table(&self) -> MutexGuard<'_, Option<DirectiveTable>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what a workload is asked for; `None` until the log was read to its end.
    pub fn current(&self, workload: &str) -> Option<DirectiveAnswer> {
        let known = self.table().as_ref()?.get(workload).cloned();
        Some(known.unwrap_or_else(|| DirectiveAnswer { workload: workload.to_owned(), ..DirectiveAnswer::default() }))
    }

    /// Returns what a workload is asked for once its revision is another than `after`, at the latest after `wait` or at a stop.
    pub async fn wait_for_change(
        &self,
        workload: &str,
        after: Option<u64>,
        wait: Duration,
        stop: &Shutdown,
    ) -> Option<DirectiveAnswer> {
        let mut changes = self.changes.subscribe();
        let until = tokio::time::Instant::now() + wait;
        loop {
            let answer = self.current(workload);
            if answer.as_ref().is_some_and(|answer| after != Some(answer.revision)) {
                return answer;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return answer },
                () = tokio::time::sleep_until(until) => return answer,
                () = stop.cancelled() => return answer,
            }
        }
    }

    /// Sets the directive of one workload; [`Self::replace`] comes first.
    fn set(&self, answer: DirectiveAnswer) {
        if let Some(table) = &mut *self.table() {
            table.insert(answer.workload.clone(), answer);
        }
        self.changes.send_replace(());
    }

    /// Replaces all directives by those of the whole log.
    fn replace(&self, table: DirectiveTable) {
        *self.table() = Some(table);
        self.changes.send_replace(());
    }

    /// Follows the log until `stop`. While it cannot be read, jobs receive the directives that were read last.
    pub fn follow(&self, bus: &dyn Bus, prefix: &str, metrics: &CollectorMetrics, stop: &Shutdown) {
        let mut pause = RETRY_MIN;
        while !stop.is_cancelled() {
            let began = Instant::now();
            let Err(error) = self.follow_session(bus, prefix, metrics, stop) else { return };
            metrics.directives_readable.set(0);
            if began.elapsed() > RETRY_MAX {
                pause = RETRY_MIN;
            }
            tracing::warn!(%error, pause_seconds = pause.as_secs_f64(), "directives cannot be read; jobs keep those that they have");
            let until = Instant::now() + pause;
            while !stop.is_cancelled() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    fn follow_session(&self, bus: &dyn Bus, prefix: &str, metrics: &CollectorMetrics, stop: &Shutdown) -> Result<(), BusError> {
        let topic: Arc<str> = format!("{prefix}{}", Topic::Directives).into();
        let spec = bus.topics(prefix)?.into_iter().find(|spec| spec.name == topic).ok_or_else(|| {
            let what = format!("reading topic {topic}");
            BusError::new(Remedy::Stop, what, "there is no such topic; create the topics with eadt topics apply")
        })?;
        let from: Vec<_> = (0..spec.partitions)
            .map(|partition| (TopicPartition::new(topic.clone(), partition), StartOffset::Earliest))
            .collect();
        let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
        let mut session = DirectiveSession::new(self);
        let (mut polled, mut ends) = (Vec::new(), std::collections::HashSet::new());
        while !stop.is_cancelled() {
            reader.poll(1000, POLL, &mut polled)?;
            for item in polled.drain(..) {
                match item {
                    PollEvent::Record(record) => session.take_record(&record),
                    PollEvent::End { at, .. } => _ = ends.insert(at),
                    _ => {}
                }
            }
            if ends.len() == from.len() && session.complete() {
                metrics.directives_readable.set(1);
            }
        }
        Ok(())
    }
}

/// One pass over the log from its beginning. Its records take effect only at the end of the log, so that no job gets a directive
/// again that was replaced later.
#[derive(Debug)]
struct DirectiveSession<'a> {
    directives: &'a DirectiveStore,
    /// What was read so far; `None` once the end was reached.
    read: Option<DirectiveTable>,
}

impl<'a> DirectiveSession<'a> {
    fn new(directives: &'a DirectiveStore) -> Self {
        Self { directives, read: Some(DirectiveTable::new()) }
    }

    fn take_record(&mut self, record: &ConsumerRecord) {
        let Some(answer) = answer_of(record) else { return };
        match &mut self.read {
            Some(read) => {
                read.insert(answer.workload.clone(), answer);
            }
            None => self.directives.set(answer),
        }
    }

    /// Puts in force what was read. Returns false if it is already.
    fn complete(&mut self) -> bool {
        let Some(read) = self.read.take() else { return false };
        self.directives.replace(read);
        true
    }
}

/// Returns what a record asks of its workload, or `None` if it cannot be read.
fn answer_of(record: &ConsumerRecord) -> Option<DirectiveAnswer> {
    let workload = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok())?;
    let directive = match record.value.as_deref().map(decode::<Directive>).transpose() {
        Ok(directive) => directive,
        Err(refusal) => {
            tracing::warn!(workload, offset = record.offset, %refusal, "a directive is not valid and is not handed on");
            return None;
        }
    };
    let revision = u64::try_from(record.offset).unwrap_or_default() + 1;
    Some(DirectiveAnswer { workload: workload.to_owned(), revision, directive })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A directive that was read at an offset.
    pub(crate) fn record(workload: &str, offset: i64, frozen: Option<u32>) -> ConsumerRecord {
        let value = frozen.map(|layers| {
            let directive = Directive {
                time: "2026-01-02T03:04:05Z".parse().unwrap(),
                workload: workload.to_owned(),
                decision_id: format!("d-{offset}"),
                frozen_prefix_layers: Some(layers),
                ..Directive::default()
            };
            serde_json::to_vec(&directive).unwrap().into()
        });
        ConsumerRecord {
            at: TopicPartition::new("eadt.directives.v1", 0),
            offset,
            stamp: "2026-01-02T03:04:05Z".parse().unwrap(),
            key: Some(workload.as_bytes().to_vec().into()),
            value,
            headers: Vec::new().into(),
        }
    }

    impl DirectiveStore {
        /// Returns the store of a log that was read to its end.
        pub(crate) fn of_records(records: &[ConsumerRecord]) -> Self {
            let directives = Self::default();
            let mut session = DirectiveSession::new(&directives);
            for record in records {
                session.take_record(record);
            }
            assert!(session.complete());
            directives
        }

        pub(crate) fn add(&self, records: &[ConsumerRecord]) {
            let mut session = DirectiveSession { directives: self, read: None };
            for record in records {
                session.take_record(record);
            }
        }
    }

    #[test]
    fn the_last_record_of_a_workload_stands_and_a_tombstone_withdraws_it() {
        let directives = DirectiveStore::default();
        let mut session = DirectiveSession::new(&directives);
        session.take_record(&record("n/a", 3, Some(2)));
        assert_eq!(directives.current("n/a"), None, "the log was not read to its end");
        assert!(session.complete() && !session.complete());
        let current = |name: &str| directives.current(name).map(|answer| (answer.revision, answer.directive.is_some()));
        assert_eq!((current("n/a"), current("n/b")), (Some((4, true)), Some((0, false))));
        let invalid = ConsumerRecord { value: Some(b"{}".to_vec().into()), ..record("n/a", 4, None) };
        session.take_record(&invalid);
        assert_eq!(current("n/a"), Some((4, true)), "what is not valid changes nothing");
        session.take_record(&record("n/a", 9, None));
        assert_eq!(current("n/a"), Some((10, false)));
    }

    #[test]
    fn a_log_that_is_read_again_asks_for_nothing_of_before() {
        let (old, new) = (record("n/a", 3, Some(2)), record("n/a", 9, None));
        let directives = DirectiveStore::of_records(&[old.clone(), new.clone(), record("n/b", 1, Some(1))]);
        let revision = |name: &str| directives.current(name).map(|answer| answer.revision);
        let mut session = DirectiveSession::new(&directives);
        session.take_record(&old);
        assert_eq!((revision("n/a"), revision("n/b")), (Some(10), Some(2)), "the end was not reached again");
        session.take_record(&new);
        assert!(session.complete());
        assert_eq!(
            (revision("n/a"), revision("n/b")),
            (Some(10), Some(0)),
            "what the log does not say any more is not asked for"
        );
        session.take_record(&record("n/a", 11, Some(1)));
        assert_eq!(revision("n/a"), Some(12));
    }

    #[tokio::test]
    async fn a_long_poll_ends_with_a_change_with_its_time_or_with_a_stop() {
        let directives = DirectiveStore::of_records(&[record("n/a", 0, Some(2))]);
        let stop = Shutdown::new();
        let poll = |after, wait: Duration| {
            let (directives, stop) = (directives.clone(), stop.clone());
            async move { directives.wait_for_change("n/a", after, wait, &stop).await.unwrap().revision }
        };
        let (long, short) = (Duration::from_mins(10), Duration::from_millis(20));
        assert_eq!((poll(None, long).await, poll(Some(0), long).await), (1, 1), "another revision is told at once");
        let begun = Instant::now();
        assert_eq!(poll(Some(1), short).await, 1);
        assert!(begun.elapsed() >= short);
        let waiting = tokio::spawn(poll(Some(1), long));
        tokio::time::sleep(short).await;
        directives.add(&[record("n/b", 1, Some(1))]);
        tokio::time::sleep(short).await;
        assert!(!waiting.is_finished(), "another workload's change ends no poll");
        directives.add(&[record("n/a", 2, None)]);
        assert_eq!(waiting.await.unwrap(), 3);
        let waiting = tokio::spawn(poll(Some(3), long));
        tokio::time::sleep(short).await;
        stop.cancel();
        assert_eq!(waiting.await.unwrap(), 3);
    }
}
