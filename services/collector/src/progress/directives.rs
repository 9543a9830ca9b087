//! Directives as jobs get them: what `directives.v1` asks of each workload, in the answer to its report or by long poll.
//!
//! A revision is one more than the log position of the record, so that it grows with every change of a workload's directive and
//! is the same for every collector. Revision 0: nothing was ever asked of the job, or of an earlier run of it only
//! ([`super::job_runs`]). After a start the runs of jobs that have a directive are read from the newest reports in the log.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use eadt_bus::{
    Bus, BusError, ConsumerRecord, IsolationLevel, PollEvent, Remedy, StartOffset, TopicPartition, UnreadEnd, partition_for_key,
    read_within,
};
use eadt_schemas::latest::{Directive, TrainingProgress};
use eadt_schemas::{EventTime, Topic, decode};
use eadt_service::Shutdown;
use serde::Serialize;
use tokio::sync::watch;

use super::job_runs::{JobRuns, UNREAD};
use crate::metrics::CollectorMetrics;

/// Longest time that a poll of the log waits for records.
const POLL: Duration = Duration::from_millis(100);
/// Pauses between attempts at a log that cannot be read.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// Reports of a partition that are looked through for the starts of runs; those of other workloads are among them.
const MAX_LOOKBACK_RECORDS: i64 = 200_000;
/// Longest silence of the log while they are read: jobs wait for their directives meanwhile.
const READ_STALL: Duration = Duration::from_secs(5);

/// Present directive for a workload.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DirectiveAnswer {
    /// `namespace/name`.
    pub workload: String,
    /// Grows with every change; 0: nothing was ever asked.
    pub revision: u64,
    /// `None` if nothing is requested any more.
    pub directive: Option<Directive>,
    /// Time at which the log took it.
    #[serde(skip)]
    pub stamp: EventTime,
}

/// The newest answer of each workload.
type DirectiveTable = HashMap<String, DirectiveAnswer>;

/// Returns the revision that asks something of a workload; 0: nothing is asked.
fn asking_revision(table: &DirectiveTable, workload: &str) -> u64 {
    table.get(workload).filter(|answer| answer.directive.is_some()).map_or(0, |answer| answer.revision)
}

#[derive(Debug, Default)]
struct DirectiveState {
    /// `None` until the log was read to its end once.
    table: Option<DirectiveTable>,
    runs: JobRuns,
}

/// The directives of all workloads; clones share them.
#[derive(Debug, Clone)]
pub struct DirectiveStore {
    state: Arc<Mutex<DirectiveState>>,
    /// Sent at every change.
    changes: Arc<watch::Sender<()>>,
}

impl Default for DirectiveStore {
    fn default() -> Self {
        Self { state: Arc::default(), changes: Arc::new(watch::Sender::new(())) }
    }
}

impl DirectiveStore {
    fn state(&self) -> MutexGuard<'_, DirectiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the directive in force for the present run of a workload; `None` until the log was read to its end.
    pub fn current(&self, workload: &str) -> Option<DirectiveAnswer> {
        let state = self.state();
        let known = state.table.as_ref()?.get(workload);
        let known = known.filter(|answer| answer.directive.is_none() || !state.runs.withholds(workload, answer.revision));
        let nothing = || DirectiveAnswer { workload: workload.to_owned(), ..DirectiveAnswer::default() };
        Some(known.cloned().unwrap_or_else(nothing))
    }

    /// Takes in a report: with it another run of the job may begin, or may prove to go on from a checkpoint.
    pub fn note_report(&self, event: &TrainingProgress) {
        let (is_changed, is_withheld) = {
            let mut guard = self.state();
            let state = &mut *guard;
            let in_force = state.table.as_ref().map_or(UNREAD, |table| asking_revision(table, &event.workload));
            let is_changed = state.runs.note(event, in_force);
            (is_changed, is_changed && in_force != UNREAD && state.runs.withholds(&event.workload, in_force))
        };
        if is_withheld {
            tracing::info!(
                workload = event.workload,
                "a directive of an earlier run is withheld; a job that continues from a checkpoint gets it once it reports its counters"
            );
        }
        if is_changed {
            self.changes.send_replace(());
        }
    }

    /// Returns the directive of a workload once its revision differs from `after`, at the latest after `wait` or at a stop.
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
        if let Some(table) = &mut self.state().table {
            table.insert(answer.workload.clone(), answer);
        }
        self.changes.send_replace(());
    }

    /// Replaces all directives by those of the whole log. `runs`: of the jobs that have one, as far as the log shows them.
    fn replace(&self, table: DirectiveTable, runs: JobRuns) {
        {
            let mut state = self.state();
            state.runs.complete(runs, |workload| asking_revision(&table, workload));
            state.table = Some(table);
        }
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
            BusError::new(Remedy::Stop, what, "the topic does not exist; create the topics with eadt topics apply")
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
            if ends.len() == from.len()
                && let Some(read) = &session.read
            {
                let runs = runs_of_log(bus, prefix, read, stop);
                session.complete(runs);
                metrics.directives_readable.set(1);
            }
        }
        Ok(())
    }
}

/// Returns the present runs of the jobs that have a directive; none if the log's reports cannot be read.
fn runs_of_log(bus: &dyn Bus, prefix: &str, table: &DirectiveTable, stop: &Shutdown) -> JobRuns {
    read_runs(bus, prefix, table, stop).unwrap_or_else(|error| {
        tracing::info!(
            %error,
            "the log does not show when jobs began: one that restarted before this start may get a directive of its earlier run"
        );
        JobRuns::default()
    })
}

/// Reads the reports since the oldest directive.
fn read_runs(bus: &dyn Bus, prefix: &str, table: &DirectiveTable, stop: &Shutdown) -> Result<JobRuns, BusError> {
    let mut runs = JobRuns::default();
    let asked = || table.values().filter(|answer| answer.directive.is_some());
    let Some(oldest) = asked().map(|answer| answer.stamp).min() else { return Ok(runs) };
    let topic: Arc<str> = format!("{prefix}{}", Topic::TrainingProgress).into();
    let Some(partitions) = bus.partition_counts(prefix)?.get(&topic).copied() else { return Ok(runs) };
    let numbers: BTreeSet<i32> = asked().map(|answer| partition_for_key(answer.workload.as_bytes(), partitions)).collect();
    let places: Vec<_> = numbers.into_iter().map(|number| TopicPartition::new(topic.clone(), number)).collect();
    let since = bus.offsets_since(&places, oldest)?;
    let mut from = Vec::new();
    for (index, at) in places.into_iter().enumerate() {
        let marks = bus.watermarks(&at)?;
        let newest = marks.low.max(marks.high - MAX_LOOKBACK_RECORDS);
        // A log that cannot be searched by time is read from there on; without newer records, nothing is read.
        let start = since.as_ref().map_or(newest, |found| found.get(index).copied().flatten().unwrap_or(marks.high).max(newest));
        from.push((at, StartOffset::At(start)));
    }
    let read = read_within(
        bus,
        &from,
        IsolationLevel::ReadCommitted,
        READ_STALL,
        || stop.is_cancelled(),
        |record| {
            note_record(&mut runs, table, &record);
            Ok::<_, BusError>(())
        },
    )?;
    match read {
        Ok(_) => Ok(runs),
        // A part of it would be taken for the whole.
        Err(UnreadEnd::Stopped) => Ok(JobRuns::default()),
        Err(UnreadEnd::Stalled(_)) => {
            Err(BusError::new(Remedy::Retry, format!("reading topic {topic}"), "it was not read to its end in time"))
        }
    }
}

/// Takes in a record of the reports, if it is of a workload that has a directive.
fn note_record(runs: &mut JobRuns, table: &DirectiveTable, record: &ConsumerRecord) {
    let workload = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
    let Some(answer) = workload.and_then(|workload| table.get(workload)).filter(|answer| answer.directive.is_some()) else {
        return;
    };
    let Some(Ok(event)) = record.value.as_deref().map(decode::<TrainingProgress>) else { return };
    runs.note(&event, if answer.stamp <= record.stamp { answer.revision } else { 0 });
}

/// One pass over the log from its beginning. Its records take effect only at the end of the log, so that no job gets a directive
/// again that was replaced later.
#[derive(Debug)]
struct DirectiveSession<'a> {
    directives: &'a DirectiveStore,
    /// Directives that were read so far; `None` once the end was reached.
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

    /// Puts the directives that were read in force, unless they are already.
    fn complete(&mut self, runs: JobRuns) {
        if let Some(read) = self.read.take() {
            self.directives.replace(read, runs);
        }
    }
}

/// Returns the directive of a record; `None` if it cannot be read.
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
    Some(DirectiveAnswer { workload: workload.to_owned(), revision, directive, stamp: record.stamp })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions, StampSource};
    use eadt_bus::{ProducerRecord, topics};
    use eadt_schemas::latest::JobLifecycle;
    use eadt_schemas::{Envelope, EventType};
    use eadt_service::MetricsRegistry;

    use super::*;

    /// Returns a directive that was read at an offset.
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
            session.complete(JobRuns::default());
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
    fn the_last_record_of_a_workload_is_in_force_and_a_tombstone_withdraws_it() {
        let directives = DirectiveStore::default();
        let mut session = DirectiveSession::new(&directives);
        session.take_record(&record("n/a", 3, Some(2)));
        assert_eq!(directives.current("n/a"), None, "the log was not read to its end");
        session.complete(JobRuns::default());
        session.complete(JobRuns::default());
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
        session.complete(JobRuns::default());
        assert_eq!((revision("n/a"), revision("n/b")), (Some(10), Some(0)), "what is no longer in the log is not asked for");
        session.take_record(&record("n/a", 11, Some(1)));
        assert_eq!(revision("n/a"), Some(12));
    }

    /// Appends a directive (`None`), or a report of a phase and steps.
    fn append(log: &EmbeddedLog, workload: &str, report: Option<(JobLifecycle, Option<f64>)>) {
        let (time, subject) = ("2026-01-02T03:04:05Z".parse().unwrap(), workload.to_owned());
        let envelope = |kind| Envelope { id: subject.clone(), source: "/test".into(), kind, time, subject: subject.clone() };
        let record = if let Some((phase, steps_total)) = report {
            let (workload, collector) = (subject.clone(), "c".to_owned());
            let event = TrainingProgress { time, workload, collector, phase, steps_total, ..TrainingProgress::default() };
            let topic = format!("t.{}", Topic::TrainingProgress).into();
            ProducerRecord::event(&topic, &subject, &envelope(EventType::TrainingProgress), &event)
        } else {
            let (workload, decision_id) = (subject.clone(), "d".to_owned());
            let event = Directive { time, workload, decision_id, frozen_prefix_layers: Some(3), ..Directive::default() };
            let topic = format!("t.{}", Topic::Directives).into();
            ProducerRecord::event(&topic, &subject, &envelope(EventType::Directive), &event)
        };
        let mut producer = log.producer("test").unwrap();
        producer.send(record).unwrap();
        assert!(producer.flush(Duration::from_mins(1)).unwrap());
    }

    #[test]
    fn a_collector_that_starts_knows_from_the_log_which_run_a_directive_was_for() {
        use JobLifecycle::{Finished, Progress, Started};

        let data = tempfile::tempdir().unwrap();
        // Everything has one event time: the order of the log decides.
        let millis = AtomicI64::new(1_767_323_045_000);
        let stamps = StampSource::Injected(Arc::new(move || EventTime::from_millis(millis.fetch_add(1, Ordering::SeqCst))));
        let log = EmbeddedLog::open(data.path(), EmbeddedOptions { stamps, ..EmbeddedOptions::default() }).unwrap();
        let plan = topics::plan(&[], &topics::desired("t.", 1, 1), topics::PartitionGrowthPolicy::Refuse);
        topics::apply(&log, &plan).unwrap();
        let started = Some((Started, None));
        for (workload, events) in [
            ("n/asked", vec![started, Some((Progress, Some(0.0))), None]),
            ("n/anew", vec![started, None, started, Some((Progress, Some(0.0)))]),
            ("n/ended", vec![None, Some((Finished, Some(900.0)))]),
            ("n/goes-on", vec![None, started, Some((Progress, Some(500.0)))]),
            ("n/silent", vec![None]),
        ] {
            for event in events {
                append(&log, workload, event);
            }
        }
        let (directives, metrics, stop) =
            (DirectiveStore::default(), CollectorMetrics::new(&MetricsRegistry::default()), Shutdown::new());
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| directives.follow(&log, "t.", &metrics, &stop));
            while directives.current("n/asked").is_none() && begun.elapsed() < Duration::from_mins(1) {
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.cancel();
        });
        let asked = ["n/asked", "n/anew", "n/ended", "n/goes-on", "n/silent"]
            .map(|name| directives.current(name).is_some_and(|answer| answer.directive.is_some()));
        assert_eq!(asked, [true, false, false, true, true]);
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
        assert_eq!((poll(None, long).await, poll(Some(0), long).await), (1, 1), "another revision is returned at once");
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
