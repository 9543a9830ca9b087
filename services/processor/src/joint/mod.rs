//! Runs the stages that decide about several workloads together, for a power budget or shared GPUs: windows, workloads,
//! actuations and models in; decisions, state and positions out in one atomic step.
//!
//! Such a stage needs all input of the cluster, so one process at a time runs it: the owner of partition 0 of the windows in a
//! group of its own. The group assigns that partition, and fences: a former owner has an old generation, and its steps are
//! refused as a whole. Inputs are read outside the group: all their partitions, from the positions that the group committed.

mod kind;
mod stage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::{
    BusError, CommitStep, GroupMember, MemberOptions, Membership, PollEvent, Remedy, SpareMemberCheck, TopicPartition, chaos,
};
use eadt_schemas::Topic;
use eadt_service::MetricsRegistry;
use eadt_service::tasks::TaskEntry;

use crate::ProcessorSettings;
use crate::outputs::OutputTopics;
use crate::pending_commit::MAX_OUTPUTS;
use crate::service::{LONGEST_TURN, ProcessorDependencies, ProcessorError, commit, run_with_restarts};
use kind::{GpuSharingStage, JointStageDefinition, PowerBudgetStage};
pub(crate) use stage::INPUTS as STAGE_INPUTS;
use stage::JointStage;

/// The partition of the windows whose owner runs the stage, and of the state topic that has its state.
const STAGE_PARTITION: i32 = 0;
/// Longest wait for news of the group if there is nothing else to do.
const IDLE_POLL: Duration = Duration::from_millis(100);
const POLL_ITEMS: usize = 64;

/// A joint stage, as its start, its rights in Kafka and the comparison of its decisions need it.
#[derive(Debug, Clone, Copy)]
pub struct JointStageEntry {
    /// Suffix of its group's name and of its member's.
    pub name: &'static str,
    /// Controller of its decisions.
    pub controller: &'static str,
    /// Returns the task that it runs as. Its readiness has the same name.
    pub task: fn() -> &'static TaskEntry,
    /// Returns whether it has anything to do.
    pub is_on: fn(&ProcessorSettings) -> bool,
    /// Runs it until `shutdown`; blocks, so give it a thread. It returns at once if the stage is off. Stopping commits the
    /// folded records; the rest is folded after the next start, here or elsewhere.
    pub run: fn(&ProcessorDependencies) -> Result<(), ProcessorError>,
    /// Registers its metrics with every series, for the reference.
    pub register_metrics: fn(&MetricsRegistry),
}

/// The joint stage of the power budget.
pub const POWER_BUDGET_STAGE: JointStageEntry = JointStageEntry::of::<PowerBudgetStage>();
/// The joint stage of GPU sharing.
pub const GPU_SHARING_STAGE: JointStageEntry = JointStageEntry::of::<GpuSharingStage>();
/// All joint stages.
pub const JOINT_STAGES: [JointStageEntry; 2] = [POWER_BUDGET_STAGE, GPU_SHARING_STAGE];

impl JointStageEntry {
    const fn of<K: JointStageDefinition>() -> Self {
        Self {
            name: K::GROUP_SUFFIX,
            controller: K::CONTROLLER,
            task: K::task,
            is_on: K::is_on,
            run: run_joint_stage::<K>,
            register_metrics: register_metrics::<K>,
        }
    }
}

fn register_metrics<K: JointStageDefinition>(metrics: &MetricsRegistry) {
    K::new(metrics).init_series();
}

fn run_joint_stage<K: JointStageDefinition>(deps: &ProcessorDependencies) -> Result<(), ProcessorError> {
    if !K::is_on(&deps.settings) {
        deps.ready.set(true);
        return Ok(());
    }
    let kind = K::new(&deps.metrics);
    run_with_restarts(deps, &kind.metrics().restarts, || {
        let ended = JointSession::open(deps, &kind).and_then(JointSession::run);
        kind.set_running(None);
        ended
    })
}

/// Session of a stage, from joining the group to the first error.
struct JointSession<'a, K: JointStageDefinition> {
    deps: &'a ProcessorDependencies,
    kind: &'a K,
    names: OutputTopics,
    member: Box<dyn GroupMember>,
    /// Partitions of the windows that this member has.
    assigned: BTreeSet<i32>,
    stage: Option<JointStage<K>>,
    standby: SpareMemberCheck,
    /// Time at which the first record was folded that is not committed yet.
    folded: Option<Instant>,
}

impl<'a, K: JointStageDefinition> JointSession<'a, K> {
    fn open(deps: &'a ProcessorDependencies, kind: &'a K) -> Result<Self, BusError> {
        let settings = &deps.settings;
        let group = format!("{}-{}", settings.group, K::GROUP_SUFFIX);
        let windows: Arc<str> = format!("{}{}", settings.prefix, Topic::EfficiencyWindows).into();
        let member = deps.bus.member(MemberOptions {
            group: group.clone(),
            membership: Membership::Transactional(format!("{}-{}", settings.transactional_id(), K::GROUP_SUFFIX)),
            topics: vec![windows.clone()],
        })?;
        Ok(Self {
            deps,
            kind,
            names: OutputTopics::new(&settings.prefix, settings.recorded_json())
                .for_group(&group)
                .with_input_ids(deps.bus.topic_ids(&STAGE_INPUTS.map(|topic| Arc::from(format!("{}{topic}", settings.prefix))))),
            member,
            assigned: BTreeSet::new(),
            stage: None,
            standby: SpareMemberCheck::new(group, windows.clone(), vec![windows]),
            folded: None,
        })
    }

    fn run(mut self) -> Result<(), BusError> {
        let mut polled = Vec::new();
        while !self.deps.shutdown.is_cancelled() {
            let poll_timeout = if self.stage.is_some() { Duration::ZERO } else { IDLE_POLL };
            match self.member.poll(POLL_ITEMS, poll_timeout, &mut polled) {
                Ok(()) => {}
                Err(error) if error.remedy == Remedy::Retry => {
                    tracing::debug!(%error, "polling again");
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
            for item in polled.drain(..) {
                match item {
                    PollEvent::Assigned(partitions) => self.on_assigned(&partitions)?,
                    PollEvent::Revoked(partitions) => {
                        chaos::reach("rebalance.revoked");
                        // Still ours: folded records are committed before the next owner goes on.
                        self.commit()?;
                        self.drop_partitions(&partitions);
                    }
                    PollEvent::Lost(partitions) => {
                        if self.folded.is_some() && partitions.iter().any(|at| at.partition == STAGE_PARTITION) {
                            let detail = "the partition was lost with uncommitted work";
                            return Err(BusError::new(Remedy::Restart, format!("folding in {}", K::DESCRIPTION), detail));
                        }
                        self.drop_partitions(&partitions);
                    }
                    // None of its partitions was started.
                    PollEvent::Record(_) | PollEvent::Batch(_) | PollEvent::End { .. } => {}
                }
            }
            self.run_once()?;
            let is_ready = self.standby.is_ready(self.assigned.len(), &*self.deps.bus);
            self.deps.ready.set_for(if is_ready { LONGEST_TURN } else { Duration::ZERO });
        }
        self.commit()
    }

    fn on_assigned(&mut self, partitions: &[TopicPartition]) -> Result<(), BusError> {
        self.assigned.extend(partitions.iter().map(|at| at.partition));
        if let Some(stage) = &self.stage {
            let added = partitions.iter().find(|at| !stage.is_input(at));
            return added.map_or(Ok(()), |at| {
                Err(BusError::new(Remedy::Restart, format!("reading for {}", K::DESCRIPTION), format!("{at} was added")))
            });
        }
        if self.assigned.contains(&STAGE_PARTITION) {
            let stage = JointStage::restore(self.deps, &mut *self.member, &self.names, self.kind)?;
            self.kind.set_running(Some(&self.deps.settings));
            self.stage = Some(stage);
        }
        Ok(())
    }

    fn drop_partitions(&mut self, partitions: &[TopicPartition]) {
        for at in partitions {
            self.assigned.remove(&at.partition);
        }
        if self.stage.is_some() && !self.assigned.contains(&STAGE_PARTITION) {
            tracing::info!(stage = K::task().name, "joint stage continues in another process");
            self.stage = None;
            self.kind.set_running(None);
        }
    }

    /// Reads, folds, and commits if it is due.
    fn run_once(&mut self) -> Result<(), BusError> {
        let Some(stage) = &mut self.stage else { return Ok(()) };
        stage.read()?;
        let folded = stage.fold(MAX_OUTPUTS, &self.names, self.kind);
        stage.apply_backpressure(self.deps.settings.buffer_bytes)?;
        if folded {
            self.folded.get_or_insert_with(Instant::now);
        }
        let limit = Duration::from_secs_f64(self.deps.settings.commit_seconds);
        if stage.has_outputs() || self.folded.is_some_and(|since| since.elapsed() >= limit) {
            self.commit()?;
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), BusError> {
        let (Some(stage), Some(_)) = (&mut self.stage, self.folded.take()) else { return Ok(()) };
        let mut step = CommitStep::default();
        stage.commit(&self.names, STAGE_PARTITION, &mut step);
        let began = Instant::now();
        commit(self.deps, &mut *self.member, &step)?;
        self.kind.metrics().commit_seconds.observe(began.elapsed().as_secs_f64());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use eadt_core::power_budget::allocation::BudgetSettings;
    use eadt_schemas::v1::Workload;

    use super::*;
    use crate::ProcessorSettings;
    use crate::scripted::{ScriptedBus, ScriptedPoll, place, seconds};

    /// Nothing is committed because of time.
    fn settings() -> ProcessorSettings {
        ProcessorSettings {
            commit_seconds: 3_600.0,
            retry_seconds: 0.001,
            power_budget: BudgetSettings { budget_watts: Some(1_500.0), ..BudgetSettings::default() },
            ..ProcessorSettings::default()
        }
    }

    fn windows(number: i32) -> Vec<TopicPartition> {
        vec![place(Topic::EfficiencyWindows, number)]
    }

    fn assigned(number: i32) -> ScriptedPoll {
        ScriptedPoll::Deliver(vec![PollEvent::Assigned(windows(number))])
    }

    /// An input whose fold gives no output.
    fn declare(bus: &ScriptedBus) {
        let workload = Workload {
            time: seconds(1),
            workload: "team/one".into(),
            controller: Some("power-budget".into()),
            generation: 1,
            ..Workload::default()
        };
        bus.put(Topic::Workloads, 0, 1, "team/one", serde_json::to_vec(&workload).unwrap());
    }

    /// Plays a script to its end.
    fn play(bus: &ScriptedBus) -> Result<(), ProcessorError> {
        let ended = (POWER_BUDGET_STAGE.run)(&bus.service(&settings()));
        assert_eq!(bus.script().turns.len(), 0, "turns that were not played: {ended:?}");
        ended
    }

    fn is_active(bus: &ScriptedBus) -> bool {
        bus.metric("eadt_power_budget_active") == Some(1.0)
    }

    fn restarts(bus: &ScriptedBus) -> f64 {
        bus.metric("eadt_power_budget_restarts_total").unwrap()
    }

    fn expect(bus: &ScriptedBus, runs: bool, steps: usize) -> ScriptedPoll {
        let bus = bus.clone();
        ScriptedPoll::look(move || {
            assert_eq!((is_active(&bus), bus.script().steps.len()), (runs, steps));
        })
    }

    #[test]
    fn a_stage_that_is_off_is_ready_and_asks_nothing_of_the_bus() {
        for (stage, on) in [(POWER_BUDGET_STAGE, true), (POWER_BUDGET_STAGE, false), (GPU_SHARING_STAGE, false)] {
            let bus = ScriptedBus::default();
            bus.turns([assigned(0)]);
            let budget_watts = on.then_some(1_500.0);
            let power_budget = BudgetSettings { budget_watts, ..BudgetSettings::default() };
            (stage.run)(&bus.service(&ProcessorSettings { power_budget, ..settings() })).unwrap();
            assert_eq!(bus.script().turns.is_empty(), on);
            assert_eq!(bus.health.waiting().is_empty(), !on, "where it ran it has ended");
        }
    }

    #[test]
    fn the_stage_of_shared_gpus_runs_where_it_is_on() {
        let bus = ScriptedBus::default();
        let then = bus.clone();
        bus.turns([assigned(0), ScriptedPoll::look(move || assert_eq!(then.metric("eadt_gpu_sharing_active"), Some(1.0)))]);
        let mut settings = settings();
        settings.gpu_sharing.enabled = true;
        (GPU_SHARING_STAGE.run)(&bus.service(&settings)).unwrap();
        assert_eq!(bus.metric("eadt_gpu_sharing_active"), Some(0.0));
    }

    #[test]
    fn a_poll_that_may_work_later_is_made_again_and_the_session_goes_on() {
        for (remedy, ends_well, begun_anew) in
            [(Remedy::Retry, true, 0.0), (Remedy::Restart, true, 1.0), (Remedy::Stop, false, 0.0)]
        {
            let bus = ScriptedBus::default();
            bus.turns([assigned(0), ScriptedPoll::Fail(remedy)]);
            assert_eq!(play(&bus).is_ok(), ends_well, "{remedy:?}");
            assert_eq!(restarts(&bus), begun_anew, "{remedy:?}");
        }
    }

    #[test]
    fn the_owner_of_the_first_partition_of_the_windows_runs_the_stage_and_nobody_else() {
        let bus = ScriptedBus::default();
        declare(&bus);
        let revoked = |number| ScriptedPoll::Deliver(vec![PollEvent::Revoked(windows(number))]);
        bus.turns([assigned(1), expect(&bus, false, 0)]);
        let then = bus.clone();
        bus.turns([ScriptedPoll::look(move || assert!(then.health.waiting().is_empty(), "ready to be asked"))]);
        bus.turns([assigned(0), expect(&bus, true, 0)]);
        // Folded records are committed before another member goes on.
        bus.turns([revoked(1), expect(&bus, true, 1)]);
        bus.turns([revoked(0), expect(&bus, false, 1)]);
        bus.turns([assigned(0), expect(&bus, true, 1)]);
        play(&bus).unwrap();
        assert_eq!((restarts(&bus), is_active(&bus)), (0.0, false));
    }

    #[test]
    fn what_is_folded_is_committed_at_the_end_and_output_at_once() {
        let bus = ScriptedBus::default();
        declare(&bus);
        bus.turns([assigned(0), expect(&bus, true, 0)]);
        let log = bus.clone();
        bus.turns([ScriptedPoll::look(move || {
            log.put(Topic::EfficiencyWindows, 1, 2, "team/one", "no JSON");
        })]);
        bus.turns([expect(&bus, true, 1), expect(&bus, true, 1)]);
        let quiet = bus.clone();
        bus.turns([ScriptedPoll::look(move || declare(&quiet)), expect(&bus, true, 1)]);
        play(&bus).unwrap();
        let script = bus.script();
        let topics = |step: &CommitStep| step.outputs.iter().map(|output| output.topic.to_string()).collect::<Vec<_>>();
        assert_eq!(topics(&script.steps[0])[..2], ["eadt.dead-letters.v1", "eadt.processor-state.v1"]);
        assert!(topics(&script.steps[1]).iter().all(|topic| topic == "eadt.processor-state.v1"));
        assert_eq!(script.steps.len(), 2);
        let position = |step: &CommitStep, at| step.positions.iter().find(|(other, _)| *other == at).unwrap().1;
        let of = |step| (position(step, place(Topic::Workloads, 0)), position(step, place(Topic::EfficiencyWindows, 1)));
        assert_eq!((of(&script.steps[0]), of(&script.steps[1])), ((1, 1), (2, 1)));
    }

    #[test]
    fn whoever_loses_the_stage_with_uncommitted_work_begins_anew() {
        for (works, lost, begun_anew) in [(true, 0, 1.0), (true, 1, 0.0), (false, 0, 0.0)] {
            let bus = ScriptedBus::default();
            if works {
                declare(&bus);
            }
            let both = [windows(0), windows(1)].concat();
            bus.turns([
                ScriptedPoll::Deliver(vec![PollEvent::Assigned(both)]),
                ScriptedPoll::Deliver(vec![PollEvent::Lost(windows(lost))]),
            ]);
            bus.turns([expect(&bus, lost == 1, 0)]);
            play(&bus).unwrap();
            assert_eq!(restarts(&bus), begun_anew, "{works} {lost}");
            assert_eq!(bus.script().steps.len(), usize::from(lost == 1));
        }
    }

    #[test]
    fn a_partition_that_the_stage_does_not_read_yet_begins_it_anew() {
        for (number, begun_anew) in [(1, 0.0), (2, 1.0)] {
            let bus = ScriptedBus::default();
            bus.turns([assigned(0), assigned(number)]);
            play(&bus).unwrap();
            assert_eq!(restarts(&bus), begun_anew, "of two partitions, {number}");
        }
    }

    #[test]
    fn an_error_in_reading_that_passes_begins_nothing_anew() {
        for (remedy, begun_anew) in [(Remedy::Retry, 0.0), (Remedy::Restart, 1.0)] {
            let bus = ScriptedBus::default();
            let then = bus.clone();
            bus.turns([
                assigned(0),
                ScriptedPoll::look(move || then.script().reads.push_back(remedy)),
                expect(&bus, begun_anew == 0.0, 0),
            ]);
            play(&bus).unwrap();
            assert_eq!(restarts(&bus), begun_anew, "{remedy:?}");
        }
    }
}
