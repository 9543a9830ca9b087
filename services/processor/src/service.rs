//! The loop: records in, merged and folded; outputs, state and positions out in one atomic step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{
    Bus, BusError, CommitStep, GroupMember, MemberOptions, Membership, PollEvent, Remedy, RetryBackoff, SpareMemberCheck,
    TopicPartition, chaos, is_any_broker_silent,
};
use eadt_core::FoldSettings;
use eadt_schemas::EventTime;
use eadt_service::http::ReadinessFlag;
use eadt_service::{MetricsRegistry, Shutdown};
use prometheus_client::metrics::counter::Counter;

use crate::heartbeat::{HeartbeatClock, HeartbeatWriter};
use crate::metrics::ProcessorMetrics;
use crate::outputs::OutputTopics;
use crate::partition_task::{PartitionContext, PartitionTask, input_buffer_share};
use crate::pending_commit::{CommitScope, PendingCommit, output_linger, state_write_credit};
use crate::positions::INPUTS;
use crate::settings::ProcessorSettings;

/// Records taken from the bus at once: few enough that their memory is still in the cache when they are folded.
const POLL_RECORDS: usize = 512;
/// Records folded before what waits for a commit is looked at: each may be a dead letter, which takes some kilobytes.
const FOLD_RECORDS: usize = 256;
/// Longest time to fold the remaining records during a shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// A turn of the loop that takes longer, as with a step that no broker answers, is not ready meanwhile.
pub(crate) const LONGEST_TURN: Duration = Duration::from_secs(5);
/// Longest pause before a session begins anew, or a step is tried again.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A pause is slept in pieces, so that it ends soon after the end is asked for.
const SLEEP_PIECE: Duration = Duration::from_millis(10);
/// The step that is tried again, in the words of the log lines.
const COMMITTING: &str = "the log does not take what was decided";

/// Error that ended the processor.
#[derive(Debug, thiserror::Error)]
pub enum ProcessorError {
    #[error("cannot start: {0}")]
    Settings(String),
    #[error("the bus refuses the processor")]
    Bus(#[from] BusError),
}

/// Settings and dependencies of the processor.
#[derive(Debug)]
pub struct ProcessorDependencies {
    pub settings: ProcessorSettings,
    pub bus: Arc<dyn Bus>,
    /// The clock that the log's stamps come from, for heartbeats only.
    pub clock: HeartbeatClock,
    pub shutdown: Shutdown,
    pub metrics: MetricsRegistry,
    /// Set once the state of the first partitions is restored.
    pub ready: ReadinessFlag,
}

/// Runs until `shutdown`; blocks, so give it a thread. Stopping folds what the inputs held when it was asked for, for at most ten
/// seconds, commits, and closes no window early.
pub fn run_processor(deps: &ProcessorDependencies) -> Result<(), ProcessorError> {
    let metrics = ProcessorMetrics::new(&deps.metrics);
    run_with_restarts(deps, &metrics.restarts, || {
        ProcessorSession::open(deps, &metrics, &Instant::now).and_then(ProcessorSession::run)
    })
}

/// Runs one session after another until `shutdown`, or until one fails in a way that another one would, too.
pub fn run_with_restarts(
    deps: &ProcessorDependencies,
    restarts: &Counter,
    mut session: impl FnMut() -> Result<(), BusError>,
) -> Result<(), ProcessorError> {
    deps.settings.check().map_err(ProcessorError::Settings)?;
    let mut pauses = RestartBackoff::from(Duration::from_secs_f64(deps.settings.retry_seconds));
    while !deps.shutdown.is_cancelled() {
        let began = Instant::now();
        let ended = session();
        deps.ready.set(false);
        match ended {
            Ok(()) => break,
            Err(error) if deps.shutdown.is_cancelled() => {
                tracing::warn!(%error, "stopped before everything was committed; nothing is lost, the next start continues there");
                break;
            }
            Err(error) if error.remedy == Remedy::Stop => return Err(error.into()),
            Err(error) => {
                restarts.inc();
                let pause = pauses.next_pause(began.elapsed());
                tracing::warn!(%error, pause_seconds = pause.as_secs_f64(), "restarting from the committed positions");
                wait(&deps.shutdown, pause, std::thread::sleep);
            }
        }
    }
    Ok(())
}

/// Pause before a session begins anew: each time twice as long, and as at first after a session that went well for a while.
#[derive(Debug)]
struct RestartBackoff {
    least: Duration,
    next: Duration,
}

impl RestartBackoff {
    fn from(least: Duration) -> Self {
        Self { least, next: least }
    }

    /// Returns the pause after a session that lasted so long.
    fn next_pause(&mut self, lasted: Duration) -> Duration {
        let pause = if lasted > MAX_PAUSE { self.least } else { self.next };
        self.next = (pause * 2).min(MAX_PAUSE);
        pause
    }
}

fn wait(shutdown: &Shutdown, time: Duration, mut sleep: impl FnMut(Duration)) {
    let mut left = time;
    while !left.is_zero() && !shutdown.is_cancelled() {
        let piece = left.min(SLEEP_PIECE);
        sleep(piece);
        left = left.saturating_sub(piece);
    }
}

/// Commits a step. A step without effect is retried until it succeeds or the processor is stopped.
pub fn commit(deps: &ProcessorDependencies, member: &mut dyn GroupMember, step: &CommitStep) -> Result<(), BusError> {
    let least = Duration::from_secs_f64(deps.settings.retry_seconds);
    let mut backoff = RetryBackoff::new(least, MAX_PAUSE);
    loop {
        match member.commit(step) {
            Ok(()) => {
                backoff.on_success(COMMITTING);
                return Ok(());
            }
            Err(error) if error.remedy == Remedy::Retry && !deps.shutdown.is_cancelled() => {
                wait(&deps.shutdown, backoff.on_failure(COMMITTING, &error), std::thread::sleep);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Records that are still to be folded when the end is asked for: every input up to where it ended at that moment.
#[derive(Debug)]
struct StopBacklog {
    ends: BTreeMap<i32, Vec<i64>>,
    until: Instant,
}

impl StopBacklog {
    fn unread(&self, owned: &BTreeMap<i32, PartitionTask>) -> u64 {
        let of_partition = |(number, ends): (&i32, &Vec<i64>)| -> u64 {
            let Some(owned) = owned.get(number) else { return 0 };
            ends.iter().zip(owned.positions()).map(|(end, position)| end.saturating_sub(position).max(0) as u64).sum()
        };
        self.ends.iter().map(of_partition).sum()
    }

    /// Returns whether to go on with so much that is not folded.
    fn goes_on(&self, unread: u64, now: Instant) -> bool {
        if unread == 0 {
            return false;
        }
        if now >= self.until {
            tracing::warn!(unread, "stopped before everything was folded; the next start continues there");
            return false;
        }
        true
    }
}

/// Session of a processor, from joining the group to the first error.
struct ProcessorSession<'a> {
    deps: &'a ProcessorDependencies,
    metrics: &'a ProcessorMetrics,
    /// Clock for waiting times.
    now: &'a dyn Fn() -> Instant,
    names: OutputTopics,
    fold: FoldSettings,
    member: Box<dyn GroupMember>,
    heartbeats: HeartbeatWriter,
    owned: BTreeMap<i32, PartitionTask>,
    /// Partitions of which not all inputs are assigned yet.
    arriving: BTreeMap<i32, BTreeSet<TopicPartition>>,
    standby: SpareMemberCheck,
    waiting: PendingCommit,
    /// Bytes of state that input has paid for and no commit has spent.
    state_credit_bytes: usize,
    /// Age of the newest record of the last ones that were read, since it came into the log.
    input_lag: Duration,
}

impl<'a> ProcessorSession<'a> {
    fn open(
        deps: &'a ProcessorDependencies,
        metrics: &'a ProcessorMetrics,
        now: &'a dyn Fn() -> Instant,
    ) -> Result<Self, BusError> {
        let settings = &deps.settings;
        let topics: Vec<Arc<str>> = INPUTS.iter().map(|topic| Arc::from(format!("{}{topic}", settings.prefix))).collect();
        let mut member = deps.bus.member(MemberOptions {
            group: settings.group.clone(),
            membership: Membership::Transactional(settings.transactional_id()),
            topics: topics.clone(),
        })?;
        member.accept_batches();
        Ok(Self {
            deps,
            metrics,
            now,
            names: OutputTopics::new(&settings.prefix, settings.recorded_json())
                .for_group(&settings.group)
                .with_input_ids(deps.bus.topic_ids(&topics)),
            fold: settings.fold_settings(),
            member,
            heartbeats: HeartbeatWriter::new(&*deps.bus, settings, deps.clock.clone())?,
            owned: BTreeMap::new(),
            arriving: BTreeMap::new(),
            standby: SpareMemberCheck::new(&*settings.group, format!("{}{}", settings.prefix, INPUTS[0]), topics),
            waiting: PendingCommit::default(),
            state_credit_bytes: 0,
            input_lag: Duration::ZERO,
        })
    }

    fn run(mut self) -> Result<(), BusError> {
        let mut polled = Vec::new();
        let mut rest = None;
        while self.goes_on(&mut rest)? {
            let poll_timeout = self.waiting.poll_timeout((self.now)(), self.linger());
            match self.member.poll(POLL_RECORDS, poll_timeout, &mut polled) {
                Ok(()) => {}
                Err(error) if error.remedy == Remedy::Retry => {
                    tracing::debug!(%error, "polling again");
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
            let now = self.heartbeats.now();
            let mut newest = None;
            for item in polled.drain(..) {
                match item {
                    PollEvent::Record(record) => {
                        newest = newest.max(Some(record.stamp));
                        self.push(record.at.partition, now, |owned| owned.push(record));
                    }
                    PollEvent::Batch(batch) => {
                        newest = newest.max(batch.newest_stamp());
                        self.push(batch.at.partition, now, |owned| owned.push_batch(batch));
                    }
                    PollEvent::End { at, position } => {
                        if let Some(owned) = self.owned.get_mut(&at.partition) {
                            owned.on_partition_end(&at, position);
                        }
                    }
                    PollEvent::Assigned(partitions) => self.on_assigned(partitions)?,
                    PollEvent::Revoked(partitions) => {
                        chaos::reach("rebalance.revoked");
                        // Still ours: folded records are committed before the next owner goes on.
                        self.commit(CommitScope::Everything)?;
                        self.drop_partitions(&partitions);
                    }
                    PollEvent::Lost(partitions) => {
                        tracing::warn!(partitions = partitions.len(), "partitions lost: their uncommitted results are dropped");
                        // Their outputs are among the others' that wait: nothing of this session may be committed any more.
                        if self.waiting.first_folded.is_some() {
                            return Err(BusError::new(Remedy::Restart, "folding", "partitions were lost with uncommitted work"));
                        }
                        self.drop_partitions(&partitions);
                    }
                }
            }
            if let Some(newest) = newest {
                self.input_lag = Duration::from_micros(now.micros().saturating_sub(newest.micros()).max(0) as u64);
            }
            self.fold()?;
            self.write_heartbeats()?;
            if let Some(scope) = self.waiting.due_scope((self.now)(), self.linger(), &self.deps.settings) {
                self.commit(scope)?;
            }
            if self.arriving.is_empty() {
                let in_place = self.standby.is_ready(self.owned.len(), &*self.deps.bus);
                let is_ready = in_place && !is_any_broker_silent(&*self.member);
                self.deps.ready.set_for(if is_ready { LONGEST_TURN } else { Duration::ZERO });
            }
        }
        self.commit(CommitScope::Everything)
    }

    /// Gives records to the partition that they are of, if it is owned.
    fn push(&mut self, partition: i32, now: EventTime, push: impl FnOnce(&mut PartitionTask) -> usize) {
        let Some(owned) = self.owned.get_mut(&partition) else { return };
        owned.last_record_time = now;
        let bytes = push(owned);
        self.waiting.add_input_bytes(bytes);
        self.metrics.input_bytes.inc_by(bytes as u64);
    }

    /// Returns true until a stop, and then until the records that were there at that moment are folded.
    fn goes_on(&self, rest: &mut Option<StopBacklog>) -> Result<bool, BusError> {
        if !self.deps.shutdown.is_cancelled() {
            return Ok(true);
        }
        if rest.is_none() {
            // The first question that the log does not answer ends the session.
            let until = (self.now)() + DRAIN_TIMEOUT;
            let mut ends = BTreeMap::new();
            for (number, owned) in &self.owned {
                let left = || until.saturating_duration_since((self.now)());
                let highs = owned.inputs().iter().map(|at| Ok(self.deps.bus.watermarks_within(at, left())?.high));
                ends.insert(*number, highs.collect::<Result<_, BusError>>()?);
            }
            *rest = Some(StopBacklog { ends, until });
        }
        let Some(rest) = rest else { return Ok(false) };
        Ok(rest.goes_on(rest.unread(&self.owned), (self.now)()))
    }

    fn on_assigned(&mut self, partitions: Vec<TopicPartition>) -> Result<(), BusError> {
        let mut numbers = BTreeSet::new();
        for at in partitions {
            numbers.insert(at.partition);
            self.arriving.entry(at.partition).or_default().insert(at);
        }
        // Inputs of one number come together if the assignor is `range`.
        numbers.retain(|number| self.arriving.get(number).is_some_and(|inputs| inputs.len() == INPUTS.len()));
        let numbers: Vec<i32> = numbers.into_iter().collect();
        if !numbers.is_empty() {
            self.arriving.retain(|number, _| !numbers.contains(number));
            let with = PartitionContext {
                bus: &*self.deps.bus,
                names: &self.names,
                settings: &self.fold,
                misplaced_record_policy: self.deps.settings.misplaced_records,
                metrics: self.metrics,
                shutdown: &self.deps.shutdown,
            };
            self.owned.append(&mut PartitionTask::restore_partitions(&numbers, &mut *self.member, self.heartbeats.now(), &with)?);
        }
        if let Some((number, inputs)) = self.arriving.first_key_value() {
            let detail = format!(
                "only {} of the {} inputs of partition {number} were assigned: all inputs need the same partition count (run `eadt topics apply`) and the group the assignor `range`",
                inputs.len(),
                INPUTS.len()
            );
            return Err(BusError::new(Remedy::Stop, format!("joining group {}", self.deps.settings.group), detail));
        }
        self.set_gauges();
        Ok(())
    }

    fn drop_partitions(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.owned.remove(&at.partition);
            self.arriving.remove(&at.partition);
        }
        self.set_gauges();
    }

    fn set_gauges(&self) {
        self.metrics.partitions.set(self.owned.len() as i64);
        let sizes = self.owned.values().map(PartitionTask::state_size);
        let (workloads, sources) = sizes.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        self.metrics.workloads.set(workloads as i64);
        self.metrics.sources.set(sources as i64);
        self.metrics.buffered_bytes.set(self.owned.values().map(PartitionTask::buffered_bytes).sum::<usize>() as i64);
    }

    fn fold(&mut self) -> Result<(), BusError> {
        let inputs = self.owned.values().map(|owned| owned.inputs().len()).sum();
        let budget = input_buffer_share(self.deps.settings.buffer_bytes, inputs);
        for number in self.owned.keys().copied().collect::<Vec<_>>() {
            while let Some(owned) = self.owned.get_mut(&number) {
                let folded = owned.fold(FOLD_RECORDS, &self.names, &mut self.waiting.outputs, self.metrics);
                self.waiting.add_fold(number, folded, (self.now)());
                let is_full = self.waiting.is_full();
                if is_full {
                    self.commit(CommitScope::WithOutput)?;
                }
                // Full buffers may have ended the fold, too.
                if folded.records < FOLD_RECORDS && !is_full {
                    break;
                }
            }
            if let Some(owned) = self.owned.get_mut(&number) {
                owned.apply_backpressure(&mut *self.member, budget)?;
            }
        }
        Ok(())
    }

    fn write_heartbeats(&mut self) -> Result<(), BusError> {
        if chaos::is_off("heartbeats") {
            return Ok(());
        }
        self.heartbeats.poll_deliveries()?;
        for owned in self.owned.values_mut() {
            let (last_record_time, sent) =
                self.heartbeats.write_if_quiet(owned.number, owned.last_record_time, owned.telemetry_end())?;
            owned.last_record_time = last_record_time;
            self.metrics.heartbeats.inc_by(u64::from(sent));
        }
        Ok(())
    }

    /// Returns the time that an output waits for others.
    fn linger(&self) -> Duration {
        let partitions = self.waiting.partitions_with_output.iter().filter_map(|number| self.owned.get(number));
        let state_bytes = partitions.map(|owned| owned.state_bytes).sum();
        let credit = state_write_credit(self.state_credit_bytes, self.waiting.input_bytes);
        output_linger(state_bytes, credit, Duration::from_millis(self.deps.settings.linger_milliseconds), self.input_lag)
    }

    /// Commits in one atomic step all outputs, and everything that was folded in the partitions concerned.
    fn commit(&mut self, scope: CommitScope) -> Result<(), BusError> {
        let partitions = std::mem::take(&mut self.waiting.partitions_with_output);
        let concerned = |owned: &PartitionTask| scope == CommitScope::Everything || partitions.contains(&owned.number);
        if !self.owned.values().any(|owned| owned.is_dirty() && concerned(owned)) {
            return Ok(());
        }
        let credit = state_write_credit(self.state_credit_bytes, self.waiting.input_bytes);
        let waiting = std::mem::take(&mut self.waiting);
        let mut step = CommitStep { outputs: waiting.outputs, positions: Vec::new() };
        if chaos::is_off("atomic-steps") {
            let outputs = std::mem::take(&mut step.outputs);
            chaos::reach("step.outputs");
            self.member.commit(&CommitStep { outputs, positions: Vec::new() })?;
            chaos::reach("step.torn");
        }
        let concerned = self.owned.values_mut().filter(|owned| concerned(owned));
        let state_bytes: usize = concerned.map(|owned| owned.commit(&self.names, &mut step)).sum();
        if self.owned.values().any(PartitionTask::is_dirty) {
            self.waiting.first_folded = waiting.first_folded;
        }
        self.state_credit_bytes = credit.saturating_sub(state_bytes);
        let began = Instant::now();
        commit(self.deps, &mut *self.member, &step)?;
        self.metrics.commit_seconds.observe(began.elapsed().as_secs_f64());
        self.metrics.state_bytes.inc_by(state_bytes as u64);
        self.set_gauges();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::pending_commit::MAX_DEAD_LETTER_BYTES;
    use crate::scripted::{ScriptedBus, ScriptedPoll, gpu, inputs, on_purpose, place, rank, seconds};
    use eadt_schemas::Topic;

    /// Outputs are committed at once, and everything else at the end: nothing depends on time.
    fn settings() -> ProcessorSettings {
        ProcessorSettings {
            linger_milliseconds: 0,
            commit_seconds: 3_600.0,
            dead_letter_seconds: 0.0,
            retry_seconds: 0.001,
            ..ProcessorSettings::default()
        }
    }

    fn deliver(events: impl IntoIterator<Item = PollEvent>) -> ScriptedPoll {
        ScriptedPoll::Deliver(events.into_iter().collect())
    }

    /// Plays a script to its end.
    fn play(bus: &ScriptedBus, settings: &ProcessorSettings) -> Result<(), ProcessorError> {
        let ended = run_processor(&bus.service(settings));
        assert_eq!(bus.script().turns.len(), 0, "turns that were not played: {ended:?}");
        ended
    }

    fn words(error: &ProcessorError) -> String {
        std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
    }

    /// Returns the positions of each step that are not 0.
    fn positions(bus: &ScriptedBus) -> Vec<Vec<(TopicPartition, i64)>> {
        let of = |step: &CommitStep| step.positions.iter().filter(|(_, position)| *position > 0).cloned().collect();
        bus.script().steps.iter().map(of).collect()
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_session_that_lasted() {
        let mut pauses = RestartBackoff::from(Duration::from_secs(3));
        let mut after = |lasted| pauses.next_pause(Duration::from_millis(lasted)).as_secs();
        assert_eq!([0, 0, 0, 10_000].map(&mut after), [3, 6, 10, 10]);
        assert_eq!(
            [10_001, 5, 10_000].map(&mut after),
            [3, 6, 10],
            "longer than any pause: what it failed by is another trouble"
        );
    }

    #[test]
    fn a_wait_is_slept_in_pieces_and_ends_with_the_process() {
        let shutdown = Shutdown::new();
        let mut slept = Vec::new();
        wait(&shutdown, Duration::from_millis(25), |piece| slept.push(piece.as_millis()));
        assert_eq!(slept, [10, 10, 5]);
        slept.clear();
        wait(&shutdown, Duration::from_hours(1), |piece| {
            slept.push(piece.as_millis());
            if slept.len() == 2 {
                shutdown.cancel();
            }
        });
        assert_eq!(slept, [10, 10]);
        wait(&shutdown, Duration::from_hours(1), |_| panic!("the end was asked for"));
    }

    #[test]
    fn sessions_begin_anew_until_one_ends_or_another_would_fail_too() {
        use Remedy::{Restart, Retry, Stop};
        for (ends, sessions, error) in [
            (vec![None], 1, None),
            (vec![Some(Restart), Some(Retry), None], 3, None),
            (vec![Some(Restart), Some(Stop), None], 2, Some("calling: failed on purpose")),
        ] {
            let bus = ScriptedBus::default();
            let service = bus.service(&settings());
            let (mut ends, mut begun, restarts) = (ends.into_iter(), 0, Counter::default());
            let ended = run_with_restarts(&service, &restarts, || {
                begun += 1;
                service.ready.set(true);
                ends.next().unwrap().map_or(Ok(()), |remedy| Err(on_purpose(remedy)))
            });
            assert_eq!((begun, ended.as_ref().err().map(words).as_deref()), (sessions, error));
            assert_eq!(restarts.get() as usize, sessions - 1);
            assert_eq!(bus.health.waiting(), ["stage"], "nothing runs any more");
        }
    }

    #[test]
    fn once_the_end_is_asked_for_no_error_counts_and_no_session_begins() {
        let bus = ScriptedBus::default();
        let (service, restarts) = (bus.service(&settings()), Counter::default());
        for remedy in [Remedy::Stop, Remedy::Restart] {
            let (service, restarts) = (ScriptedBus::default().service(&settings()), Counter::default());
            let ended = run_with_restarts(&service, &restarts, || {
                service.shutdown.cancel();
                Err(on_purpose(remedy))
            });
            assert!(ended.is_ok() && restarts.get() == 0, "{ended:?}");
        }
        bus.shutdown.cancel();
        assert!(run_with_restarts(&service, &restarts, || panic!("a session begins")).is_ok());
    }

    #[test]
    fn settings_out_of_their_range_begin_nothing() {
        let bus = ScriptedBus::default();
        let wrong = ProcessorSettings { window_seconds: 0.5, ..settings() };
        let error = run_with_restarts(&bus.service(&wrong), &Counter::default(), || panic!("a session begins")).unwrap_err();
        assert!(matches!(&error, ProcessorError::Settings(why) if why.contains("window_seconds")), "{error}");
    }

    #[test]
    fn a_step_that_did_not_take_place_is_made_again_and_one_of_which_nobody_knows_is_not() {
        use Remedy::{Restart, Retry, Stop};
        for (fails, attempts, error) in [
            (vec![], 1, None),
            (vec![Retry, Retry], 3, None),
            (vec![Retry, Restart], 2, Some(Restart)),
            (vec![Stop], 1, Some(Stop)),
        ] {
            let bus = ScriptedBus::default();
            bus.script().commits = fails.into();
            let step = CommitStep { outputs: vec![], positions: vec![(place(Topic::Models, 0), 7)] };
            let ended = commit(&bus.service(&settings()), &mut bus.clone(), &step);
            assert_eq!((bus.script().attempts, ended.map_err(|error| error.remedy).err()), (attempts, error));
            assert_eq!(
                bus.script().steps.iter().map(|step| step.positions.clone()).collect::<Vec<_>>(),
                match error {
                    None => vec![step.positions],
                    Some(_) => vec![],
                }
            );
        }
        let bus = ScriptedBus::default();
        bus.script().commits = vec![Retry, Retry].into();
        bus.shutdown.cancel();
        let ended = commit(&bus.service(&settings()), &mut bus.clone(), &CommitStep::default());
        assert_eq!((bus.script().attempts, ended.unwrap_err().remedy), (1, Retry), "whoever ends does not try for ever");
    }

    #[test]
    fn a_poll_that_may_work_later_is_made_again_and_the_session_goes_on() {
        for (remedy, ends_well, restarts) in
            [(Remedy::Retry, true, 0.0), (Remedy::Restart, true, 1.0), (Remedy::Stop, false, 0.0)]
        {
            let bus = ScriptedBus::default();
            bus.turns([deliver([ScriptedBus::assigned(&[0])]), ScriptedPoll::Fail(remedy)]);
            let ended = play(&bus, &settings());
            assert_eq!(ended.is_ok(), ends_well, "{remedy:?}: {ended:?}");
            assert_eq!(bus.metric("eadt_processor_restarts_total"), Some(restarts), "{remedy:?}");
        }
    }

    #[test]
    fn large_dead_letters_are_committed_before_more_is_folded() {
        let bus = ScriptedBus::default();
        let large = "x".repeat(MAX_DEAD_LETTER_BYTES / 2);
        let refused: Vec<_> =
            (0..5).map(|_| PollEvent::Record(bus.put(Topic::GpuTelemetry, 0, 5, "team/one", large.as_str()))).collect();
        bus.turns([deliver([ScriptedBus::assigned(&[0])].into_iter().chain(refused).chain(bus.ends(&[0])))]);
        play(&bus, &settings()).unwrap();
        let letters = |step: &CommitStep| step.outputs.iter().filter(|output| *output.topic == *"eadt.dead-letters.v1").count();
        assert_eq!(bus.script().steps.iter().map(letters).collect::<Vec<_>>(), [2, 2, 1]);
    }

    #[test]
    fn many_new_sources_are_written_in_several_steps() {
        let bus = ScriptedBus::default();
        let new = |n: usize| {
            let (device, number) = (format!("GPU-{n}"), (n % 2) as i32);
            let event = serde_json::json!({"time": seconds(5), "device": device, "collector": "nvml/n", "power_watts": 5.0});
            PollEvent::Record(bus.put(Topic::GpuTelemetry, number, 5, &device, event.to_string().as_str()))
        };
        let all: Vec<_> = (0..3_000).map(new).collect();
        bus.turns([deliver([ScriptedBus::assigned(&[0, 1])].into_iter().chain(all).chain(bus.ends(&[0, 1])))]);
        play(&bus, &settings()).unwrap();
        let script = bus.script();
        let written: Vec<_> =
            script.steps.iter().map(|step| step.outputs.iter().filter(|out| out.partition.is_some()).count()).collect();
        assert!(written.len() >= 3 && written.iter().all(|written| *written < 1_024 + FOLD_RECORDS), "{written:?}");
        let names: BTreeSet<_> = script.steps.iter().flat_map(|step| &step.outputs).filter_map(|out| out.key.clone()).collect();
        assert_eq!(names.len(), 3_001, "each of them, and the partitions' heads");
    }

    #[test]
    fn a_step_has_the_partitions_with_output_and_the_others_follow_at_the_end() {
        let bus = ScriptedBus::default();
        let quiet = bus.put(Topic::GpuTelemetry, 0, 5, "team/one", gpu("team/one", "GPU-1", 5));
        let refused = bus.put(Topic::GpuTelemetry, 1, 5, "team/two", "no JSON");
        bus.turns([deliver(
            [ScriptedBus::assigned(&[0, 1]), PollEvent::Record(quiet), PollEvent::Record(refused)]
                .into_iter()
                .chain(bus.ends(&[0, 1])),
        )]);
        let at_once = bus.clone();
        // Nothing is written twice, and an idle turn commits nothing.
        bus.turns([ScriptedPoll::look(|| {}), ScriptedPoll::look(move || assert_eq!(at_once.script().steps.len(), 1))]);
        play(&bus, &settings()).unwrap();
        let telemetry = |number| (place(Topic::GpuTelemetry, number), 1);
        assert_eq!(positions(&bus), [vec![telemetry(1)], vec![telemetry(0)]]);
        let script = bus.script();
        let written = |step: &CommitStep| -> Vec<(String, Option<i32>)> {
            step.outputs.iter().map(|output| (output.topic.to_string(), output.partition)).collect()
        };
        let state = |number| ("eadt.processor-state.v1".to_owned(), Some(number));
        assert_eq!(written(&script.steps[0]), [("eadt.dead-letters.v1".to_owned(), None), state(1)]);
        assert_eq!(written(&script.steps[1])[..], [state(0), state(0)], "its head and its workload");
    }

    #[test]
    fn all_that_came_is_folded_before_the_next_poll_in_batches_or_alone() {
        [false, true].into_iter().for_each(all_that_came_is_folded);
    }

    fn all_that_came_is_folded(is_unbatched: bool) {
        let bus = ScriptedBus::default();
        bus.script().is_unbatched = is_unbatched;
        let records: Vec<_> = (0..300).map(|n| PollEvent::Record(bus.heartbeat(0, n))).collect();
        bus.turns([deliver([ScriptedBus::assigned(&[0])].into_iter().chain(records).chain(bus.ends(&[0])))]);
        let then = bus.clone();
        bus.turns([ScriptedPoll::look(move || {
            assert_eq!(then.metric("eadt_processor_events_total"), Some(300.0));
            assert_eq!(then.metric("eadt_processor_input_bytes_total"), Some(600.0), "of keys and values");
            assert!(then.script().steps.is_empty() && then.health.waiting().is_empty());
            assert!(then.script().accepts_batches);
        })]);
        play(&bus, &settings()).unwrap();
        assert_eq!(positions(&bus), [[(place(Topic::GpuTelemetry, 0), 300)]]);
    }

    #[test]
    fn whoever_is_asked_to_end_folds_what_the_inputs_held_at_that_moment() {
        let bus = ScriptedBus::default();
        let mut records: Vec<_> = (0..6).map(|n| PollEvent::Record(bus.heartbeat(1, n))).collect();
        let last = records.split_off(2);
        bus.turns([deliver([ScriptedBus::assigned(&[0, 1])].into_iter().chain(records))]);
        let asked = bus.shutdown.clone();
        bus.turns([ScriptedPoll::look(move || asked.cancel()), deliver([]), deliver(last.into_iter().chain(bus.ends(&[0, 1])))]);
        bus.turns([ScriptedPoll::look(|| panic!("nothing is left to be asked for"))]);
        run_processor(&bus.service(&settings())).unwrap();
        assert_eq!(positions(&bus), [[(place(Topic::GpuTelemetry, 1), 6)]]);
    }

    /// A clock that only the test moves.
    #[derive(Clone)]
    struct Time(Instant, Arc<AtomicU64>);

    impl Time {
        fn new() -> Self {
            Self(Instant::now(), Arc::default())
        }

        /// So many milliseconds after the beginning.
        fn set(&self, millis: u64) -> ScriptedPoll {
            let now = self.1.clone();
            ScriptedPoll::look(move || now.store(millis, Ordering::SeqCst))
        }

        fn play(&self, bus: &ScriptedBus, settings: &ProcessorSettings) {
            let (service, metrics) = (bus.service(settings), ProcessorMetrics::new(&bus.metrics));
            let now = || self.0 + Duration::from_millis(self.1.load(Ordering::SeqCst));
            ProcessorSession::open(&service, &metrics, &now).and_then(ProcessorSession::run).unwrap();
        }
    }

    fn steps(bus: &ScriptedBus, number: usize) -> ScriptedPoll {
        let bus = bus.clone();
        ScriptedPoll::look(move || assert_eq!(bus.script().steps.len(), number))
    }

    #[test]
    fn a_window_lingers_and_other_work_waits_for_its_own_time() {
        let settings = ProcessorSettings { linger_milliseconds: 20, commit_seconds: 10.0, ..settings() };
        let (bus, time) = (ScriptedBus::default(), Time::new());
        let mut turn = vec![ScriptedBus::assigned(&[0, 1])];
        let mut feed = |bus: &ScriptedBus, number, second| {
            let value = gpu("team/one", "GPU-1", second);
            turn.push(PollEvent::Record(bus.put(Topic::GpuTelemetry, number, second, "team/one", value)));
            turn.push(PollEvent::Record(bus.put(Topic::TrainingProgress, number, second, "team/one", rank("team/one", second))));
        };
        (0..=60).step_by(5).for_each(|second| feed(&bus, 0, second));
        feed(&bus, 1, 0);
        bus.turns([time.set(1_000), deliver(turn.into_iter().chain(bus.ends(&[0, 1])))]);
        bus.turns([time.set(1_019), steps(&bus, 0), time.set(1_020), steps(&bus, 1)]);
        bus.turns([time.set(10_999), steps(&bus, 1), time.set(11_000), steps(&bus, 2)]);
        time.play(&bus, &settings);
        assert_eq!(bus.script().turns.len(), 0);
        let telemetry = |number, position| (place(Topic::GpuTelemetry, number), position);
        let progress = |number, position| (place(Topic::TrainingProgress, number), position);
        assert_eq!(positions(&bus), [[telemetry(0, 13), progress(0, 13)], [telemetry(1, 1), progress(1, 1)]]);
    }

    /// Two seconds late: a tenth of a second.
    #[test]
    fn the_output_of_a_backlog_waits_for_company_until_something_new_is_read() {
        let settings = ProcessorSettings { linger_milliseconds: 20, ..settings() };
        for (new, is_unbatched) in [(false, false), (true, false), (false, true), (true, true)] {
            let (bus, time) = (ScriptedBus::default(), Time::new());
            bus.script().is_unbatched = is_unbatched;
            bus.now.store(seconds(62).micros(), Ordering::SeqCst);
            let mut turn = vec![ScriptedBus::assigned(&[0])];
            let put = |second| {
                let progress = bus.put(Topic::TrainingProgress, 0, second, "team/one", rank("team/one", second));
                [bus.put(Topic::GpuTelemetry, 0, second, "team/one", gpu("team/one", "GPU-1", second)), progress]
                    .map(PollEvent::Record)
            };
            (0..=60).step_by(5).for_each(|second| turn.extend(put(second)));
            // Runs of a topic, so that batches have several.
            turn[1..].sort_by_key(|item| matches!(item, PollEvent::Record(record) if record.at.topic.contains("progress")));
            bus.turns([time.set(1_000), deliver(turn.into_iter().chain(bus.ends(&[0])))]);
            bus.turns([time.set(1_099), steps(&bus, 0)]);
            let next = if new { deliver(put(62).into_iter().chain(bus.ends(&[0]))) } else { time.set(1_100) };
            bus.turns([next, steps(&bus, 1)]);
            time.play(&bus, &settings);
            assert_eq!(bus.script().turns.len(), 0);
        }
    }

    #[test]
    fn whoever_is_asked_to_end_waits_ten_seconds_for_what_does_not_come() {
        let (bus, time) = (ScriptedBus::default(), Time::new());
        bus.heartbeat(0, 1);
        let asked = bus.shutdown.clone();
        bus.turns([deliver([ScriptedBus::assigned(&[0])]), time.set(5_000), ScriptedPoll::look(move || asked.cancel())]);
        bus.turns([time.set(14_999), time.set(15_000), ScriptedPoll::look(|| panic!("it goes on"))]);
        time.play(&bus, &settings());
        assert_eq!(bus.script().turns.len(), 1);
    }

    #[test]
    fn the_rest_is_folded_for_so_long_and_no_longer() {
        let until = Instant::now() + DRAIN_TIMEOUT;
        let rest = StopBacklog { ends: BTreeMap::new(), until };
        let before = until.checked_sub(Duration::from_nanos(1)).unwrap();
        assert_eq!((rest.goes_on(1, before), rest.goes_on(1, until)), (true, false));
        assert_eq!((rest.goes_on(0, before), rest.goes_on(0, until)), (false, false));
    }

    #[test]
    fn inputs_of_other_partition_counts_are_refused_with_words() {
        let bus = ScriptedBus::default();
        let mut some = inputs(&[0, 1]);
        some.truncate(7);
        bus.turns([deliver([PollEvent::Assigned(some)])]);
        let text = words(&play(&bus, &settings()).unwrap_err());
        assert!(text.contains("only 2 of the 5 inputs of partition 1") && text.contains("`eadt topics apply`"), "{text}");
    }

    #[test]
    fn what_is_revoked_is_committed_and_forgotten_and_may_come_back() {
        let bus = ScriptedBus::default();
        let mut turn = vec![ScriptedBus::assigned(&[0, 1])];
        for (number, gpus) in [(0, 1), (1, 2)] {
            for device in 0..gpus {
                let value = gpu("team/one", &format!("GPU-{device}"), 5);
                turn.push(PollEvent::Record(bus.put(Topic::GpuTelemetry, number, 5, "team/one", value)));
            }
            turn.push(PollEvent::Record(bus.put(Topic::TrainingProgress, number, 5, "team/one", rank("team/one", 5))));
        }
        bus.turns([deliver(turn.into_iter().chain(bus.ends(&[0, 1])))]);
        bus.turns([deliver([PollEvent::Revoked(inputs(&[1]))])]);
        let then = bus.clone();
        bus.turns([ScriptedPoll::look(move || {
            let now = |name: &str| then.metric(&format!("eadt_processor_{name}"));
            assert_eq!((now("partitions"), now("workloads"), now("sources")), (Some(1.0), Some(1.0), Some(2.0)));
            assert_eq!(then.script().steps.len(), 1, "what was folded of it is committed first");
        })]);
        // It is this member's again, and the other one is gone: nothing of it is uncommitted.
        bus.turns([deliver([ScriptedBus::assigned(&[1])])]);
        let then = bus.clone();
        bus.turns([
            deliver([PollEvent::Lost(inputs(&[0]))]),
            ScriptedPoll::look(move || assert_eq!(then.metric("eadt_processor_partitions"), Some(1.0))),
        ]);
        play(&bus, &settings()).unwrap();
        assert_eq!(bus.metric("eadt_processor_restarts_total"), Some(0.0));
    }

    #[test]
    fn the_gauges_are_sums_over_the_partitions() {
        let bus = ScriptedBus::default();
        let mut turn = vec![ScriptedBus::assigned(&[0, 1])];
        for (number, workloads) in [(0, &["team/one"][..]), (1, &["team/two", "team/three"])] {
            for workload in workloads {
                for device in ["GPU-1", "GPU-2"] {
                    turn.push(PollEvent::Record(bus.put(Topic::GpuTelemetry, number, 5, workload, gpu(workload, device, 5))));
                }
                turn.push(PollEvent::Record(bus.put(Topic::TrainingProgress, number, 5, workload, rank(workload, 5))));
            }
        }
        bus.turns([deliver(turn.into_iter().chain(bus.ends(&[0, 1])))]);
        play(&bus, &settings()).unwrap();
        let now = |name: &str| bus.metric(&format!("eadt_processor_{name}"));
        assert_eq!((now("partitions"), now("workloads"), now("sources")), (Some(2.0), Some(3.0), Some(9.0)));
    }

    #[test]
    fn what_waits_for_the_other_inputs_is_reported_in_bytes() {
        let bus = ScriptedBus::default();
        let waits = bus.put(Topic::GpuTelemetry, 0, 6, "key", "null");
        let refused = bus.put(Topic::GpuTelemetry, 1, 6, "key", "null");
        let events = [ScriptedBus::assigned(&[0, 1]), PollEvent::Record(waits), PollEvent::Record(refused)];
        bus.turns([deliver(events.into_iter().chain(bus.ends(&[1])))]);
        let then = bus.clone();
        let waiting = 3.0 + 4.0 + 256.0;
        bus.turns([ScriptedPoll::look(move || assert_eq!(then.metric("eadt_processor_buffered_bytes"), Some(waiting)))]);
        bus.turns([deliver(bus.ends(&[0]))]);
        play(&bus, &settings()).unwrap();
        assert_eq!(bus.metric("eadt_processor_buffered_bytes"), Some(0.0));
    }

    #[test]
    fn partitions_that_are_lost_with_uncommitted_work_begin_everything_anew() {
        let bus = ScriptedBus::default();
        let record = bus.put(Topic::GpuTelemetry, 0, 5, "team/one", gpu("team/one", "GPU-1", 5));
        bus.turns([deliver([ScriptedBus::assigned(&[0]), PollEvent::Record(record)].into_iter().chain(bus.ends(&[0])))]);
        bus.turns([deliver([PollEvent::Lost(inputs(&[0]))])]);
        play(&bus, &settings()).unwrap();
        assert_eq!(bus.metric("eadt_processor_restarts_total"), Some(1.0));
        assert!(bus.script().steps.is_empty(), "nothing of it is committed");
    }

    #[test]
    fn an_input_that_is_far_ahead_is_paused_until_the_others_have_come() {
        let bus = ScriptedBus::default();
        let large = format!("{{\"pad\":\"{}\"}}", "x".repeat(70_000));
        let record = bus.put(Topic::GpuTelemetry, 0, 5, "team/one", large);
        bus.turns([deliver([ScriptedBus::assigned(&[0]), PollEvent::Record(record)])]);
        bus.turns([deliver(bus.ends(&[0]))]);
        play(&bus, &ProcessorSettings { buffer_bytes: 65_536, ..settings() }).unwrap();
        let telemetry = place(Topic::GpuTelemetry, 0);
        assert_eq!(bus.script().paused, [("pause", telemetry.clone()), ("resume", telemetry)]);
    }

    #[test]
    fn a_quiet_partition_gets_a_heartbeat_once_its_input_is_at_its_end() {
        let bus = ScriptedBus::default();
        let later = |bus: &ScriptedBus, seconds: i64| {
            let now = bus.now.clone();
            ScriptedPoll::look(move || now.store(seconds * 1_000_000, Ordering::SeqCst))
        };
        bus.turns([
            deliver([ScriptedBus::assigned(&[0])]),
            later(&bus, 10),
            deliver(bus.ends(&[0])),
            later(&bus, 19),
            later(&bus, 20),
        ]);
        let end = |bus: &ScriptedBus| bus.script().sent.len();
        let (a, b) = (bus.clone(), bus.clone());
        bus.turns([ScriptedPoll::look(move || assert_eq!(end(&a), 2)), ScriptedPoll::look(move || assert_eq!(end(&b), 2))]);
        play(&bus, &settings()).unwrap();
        assert!(bus.script().delivery_polls >= 7, "they are looked after in turns that send none, too");
        assert_eq!(bus.metric("eadt_processor_heartbeats_total"), Some(2.0));
    }
}
