//! The stage while it runs here: its restored state, its merge, its fold.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use eadt_bus::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, HangingEnds, IsolationLevel, PartitionReader, PollEvent,
    ProducerRecord, Remedy, Result, StartOffset, TopicPartition, WatermarkOffsets, chaos, read_to_end,
};
use eadt_core::InputMerge;
use eadt_core::joint::{JointEvent, JointFold};
use eadt_schemas::decode::{DecodableEvent, DecodeError, decode};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{ControllerAction, DeadLetterReason, Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_service::Shutdown;

use super::STAGE_PARTITION;
use super::kind::JointStageDefinition;
use crate::codec::DecodedRecord;
use crate::outputs::OutputTopics;
use crate::partition_task::{RECORD_OVERHEAD_BYTES, balance_inputs, input_buffer_share, record_size};
use crate::restore::{self, EmittedIds, InputOffsets, StageRecords};
use crate::service::ProcessorDependencies;

/// The inputs, in the order of ties: layouts in force at a time come before the windows that end with it.
pub const INPUTS: [Topic; 4] = [Topic::Workloads, Topic::Actuations, Topic::Models, Topic::EfficiencyWindows];
/// Records taken from the bus at once.
const POLL_RECORDS: usize = 4096;
/// Longest wait for the next record.
const POLL_TIMEOUT: Duration = Duration::from_millis(5);
/// Records at the end of each partition among which a first start looks for windows that are still worth a decision.
const RECENT_DECISIONS: i64 = 2_000;

/// A record's content.
#[derive(Debug)]
enum DecodedInput {
    Window(Box<EfficiencyWindow>),
    Input(Box<DecodedRecord>),
    Refused(DecodeError),
}

impl DecodedInput {
    fn decode(topic: Topic, kind: Option<&str>, value: Option<&[u8]>) -> Self {
        if topic != Topic::EfficiencyWindows {
            return Self::Input(Box::new(DecodedRecord::decode(topic, kind, value)));
        }
        let expected = EventType::EfficiencyWindow.name();
        let refused = |reason, detail| Self::Refused(DecodeError { reason, field: None, detail });
        match (kind, value) {
            (Some(kind), _) if kind != expected => {
                let kind: String = kind.chars().take(100).collect();
                let detail = format!("an event of type {kind:?} does not belong to {topic}, which takes {expected}");
                refused(DeadLetterReason::UnexpectedType, detail)
            }
            (_, None) => refused(DeadLetterReason::Malformed, "the record has no value".to_owned()),
            (_, Some(value)) => match decode(value) {
                Ok(window) => Self::Window(Box::new(window)),
                Err(refusal) => Self::Refused(refusal),
            },
        }
    }

    fn time(&self) -> Option<EventTime> {
        match self {
            Self::Window(window) => Some(window.window_end),
            Self::Input(decoded) => decoded.event().time(),
            Self::Refused(_) => None,
        }
    }
}

#[derive(Debug)]
pub struct JointStage<K: JointStageDefinition> {
    inputs: Vec<(Topic, TopicPartition)>,
    reader: Box<dyn PartitionReader>,
    merge: InputMerge<ConsumerRecord>,
    heads: Vec<DecodedInput>,
    paused: Vec<bool>,
    state: K::Fold,
    counted: <K::Fold as JointFold>::Tally,
    outputs: Vec<ProducerRecord>,
    /// Outputs that are there already, of a step whose state is not.
    already_emitted: EmittedIds,
    new_decisions: Vec<Decision>,
    polled: Vec<PollEvent>,
}

impl<K: JointStageDefinition> JointStage<K> {
    /// Restores the stage from the committed state, and begins to read there.
    pub fn restore(deps: &ProcessorDependencies, member: &mut dyn GroupMember, names: &OutputTopics, kind: &K) -> Result<Self> {
        let (bus, settings) = (&*deps.bus, deps.settings.fold_settings());
        let inputs = input_partitions(bus, &deps.settings.prefix)?;
        let places: Vec<TopicPartition> = inputs.iter().map(|(_, at)| at.clone()).collect();
        chaos::reach("restore.begun");
        // Positions are read first: state is written with them or after them, never before. If they differ, the state
        // takes precedence.
        let committed = HangingEnds::default().fetch_positions(member, &places)?;
        chaos::reach("restore.positions");
        let mut there = restore::read_states_and_outputs::<Self>(bus, member, names, &[STAGE_PARTITION], &deps.shutdown)?
            .remove(&STAGE_PARTITION)
            .unwrap_or_default();
        let state = K::Fold::restore(settings.clone(), std::mem::take(&mut there.records)).map_err(|error| {
            let detail = format!("{error}; to give it up delete {} and the positions of the group", names.state);
            BusError::new(Remedy::Stop, format!("restoring {}", K::DESCRIPTION), detail)
        })?;
        // Positions without state are of no use: the tables are gone.
        let first = there.is_new() || committed.iter().all(Option::is_none);
        let recent =
            if first { read_recent_decisions::<K>(bus, &inputs, &deps.settings, &deps.shutdown)? } else { BTreeMap::new() };
        let mut positions = Vec::with_capacity(inputs.len());
        for ((topic, at), committed) in inputs.iter().zip(committed) {
            let WatermarkOffsets { low, high } = bus.watermarks(at)?;
            let position = there.resume_offset(*topic, at, committed, high);
            if let Some(position) = position.filter(|position| *position < low) {
                tracing::error!(stage = K::task().name, %at, position, oldest = low, "retention has deleted records that a joint stage had not folded");
                kind.metrics().gaps.inc();
            }
            if there.is_recreated(at) {
                kind.metrics().gaps.inc();
            }
            positions.push(position.or(recent.get(at).copied()).unwrap_or(low).max(low));
        }
        let from: Vec<_> = places.iter().zip(&positions).map(|(at, position)| (at.clone(), StartOffset::At(*position))).collect();
        let reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
        tracing::info!(stage = K::task().name, members = state.member_count(), "joint stage runs in this process");
        kind.metrics().members.set(state.member_count() as i64);
        Ok(Self {
            merge: InputMerge::new(&positions, settings.max_future),
            heads: inputs.iter().map(|_| DecodedInput::Input(Box::new(DecodedRecord::Heartbeat))).collect(),
            paused: vec![false; inputs.len()],
            inputs,
            reader,
            counted: state.tally(),
            state,
            outputs: Vec::new(),
            already_emitted: there.emitted,
            new_decisions: Vec::new(),
            polled: Vec::new(),
        })
    }

    pub fn is_input(&self, at: &TopicPartition) -> bool {
        self.inputs.iter().any(|(_, input)| input == at)
    }

    /// Reads available records, or waits a moment.
    pub fn read(&mut self) -> Result<()> {
        match self.reader.poll(POLL_RECORDS, POLL_TIMEOUT, &mut self.polled) {
            Ok(()) => {}
            Err(error) if error.remedy == Remedy::Retry => {
                tracing::debug!(%error, "reading again");
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(error),
        }
        for item in self.polled.drain(..) {
            match item {
                PollEvent::Record(record) => {
                    let Some(input) = self.inputs.iter().position(|(_, at)| *at == record.at) else { continue };
                    self.merge.push(input, record.offset, record.stamp, record_size(&record) + RECORD_OVERHEAD_BYTES, record);
                }
                PollEvent::End { at, position } => {
                    if let Some(input) = self.inputs.iter().position(|(_, other)| *other == at) {
                        self.merge.end(input, position);
                    }
                }
                PollEvent::Batch(_) | PollEvent::Assigned(_) | PollEvent::Revoked(_) | PollEvent::Lost(_) => {}
            }
        }
        Ok(())
    }

    /// Folds records until so many outputs wait for a commit. Returns whether there were any.
    pub fn fold(&mut self, outputs: usize, names: &OutputTopics, kind: &K) -> bool {
        let mut folded = false;
        while self.outputs.len() < outputs {
            let (heads, inputs) = (&mut self.heads, &self.inputs);
            let next = self.merge.next(|input, record: &ConsumerRecord| {
                heads[input] = DecodedInput::decode(inputs[input].0, record.header(header::TYPE), record.value.as_deref());
                heads[input].time()
            });
            let Some(next) = next else { break };
            folded = true;
            let key = next.record.key.as_deref().map_or(Some(""), |key| std::str::from_utf8(key).ok()).unwrap_or("\u{fffd}");
            let result = match &self.heads[next.input] {
                DecodedInput::Window(window) => {
                    self.state.fold(JointEvent::Window(window), Some(key), next.stamp, &mut self.new_decisions)
                }
                DecodedInput::Input(decoded) => {
                    self.state.fold(JointEvent::Input(decoded.event()), Some(key), next.stamp, &mut self.new_decisions)
                }
                DecodedInput::Refused(refusal) => Err(refusal.clone()),
            };
            if let Err(refusal) = result
                && !self.already_emitted.remove_dead_letter(&next.record)
            {
                tracing::warn!(stage = K::task().name, at = %next.record.at, offset = next.offset, %refusal, "record refused");
                self.outputs.push(names.dead_letter(&next.record, &refusal, K::SERVICE));
            }
            if !self.new_decisions.is_empty() {
                let positions = self.positions_json();
                let there = &mut self.already_emitted;
                for decision in self.new_decisions.drain(..).filter(|decision| !there.remove(&decision.id)) {
                    if let Err(refusal) = decision.check() {
                        let detail = format!("decision {} cannot be written: {}", decision.id, refusal.detail);
                        tracing::error!(stage = K::task().name, detail, "a decision is written as a dead letter");
                        let refusal = DecodeError::invalid(refusal.field.unwrap_or("id"), detail);
                        self.outputs.push(names.dead_letter(&next.record, &refusal, K::SERVICE));
                        continue;
                    }
                    kind.metrics().decisions.inc();
                    if decision.action != ControllerAction::Maintain {
                        tracing::debug!(decision = decision.id, "{}", decision.reason);
                    }
                    self.outputs.push(names.decision(&decision, &positions));
                }
            }
        }
        if folded {
            let tally = self.state.tally();
            kind.add_tally(self.counted, tally);
            self.counted = tally;
            kind.metrics().members.set(self.state.member_count() as i64);
        }
        folded
    }

    /// Returns for each topic the offsets of the first records that are not folded, partition by partition.
    fn positions_json(&self) -> Bytes {
        let positions: Vec<i64> = self.merge.positions().collect();
        let of_topic = |topic: &Topic| {
            let own = self.inputs.iter().zip(&positions).filter(|((other, _), _)| other == topic);
            let offsets: Vec<String> = own.map(|(_, position)| position.to_string()).collect();
            format!("\"{topic}\":[{}]", offsets.join(","))
        };
        let topics: Vec<String> = INPUTS.iter().map(of_topic).collect();
        format!("{{{}}}", topics.join(",")).into()
    }

    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Adds the result of the fold to a step: outputs, changed state, positions.
    pub fn commit(&mut self, names: &OutputTopics, partition: i32, step: &mut CommitStep) {
        step.outputs.append(&mut self.outputs);
        let positions = self.positions_json();
        let changes = self.state.take_changes().into_iter();
        let before = step.outputs.len();
        step.outputs.extend(changes.map(|record| names.state(partition, record)));
        restore::write_head_headers(names, &mut step.outputs[before..], || positions);
        step.positions.extend(self.inputs.iter().map(|(_, at)| at.clone()).zip(self.merge.positions()));
    }

    /// Pauses inputs that are far ahead of the merge and resumes those that no longer are.
    pub fn apply_backpressure(&mut self, buffer_bytes: usize) -> Result<()> {
        let budget = input_buffer_share(buffer_bytes, self.inputs.len());
        balance_inputs(&mut *self.reader, self.inputs.iter().map(|(_, at)| at), &mut self.merge, &mut self.paused, budget)
    }
}

/// Offsets of the first records that are not folded, by topic and partition, as written by [`JointStage::positions_json`].
#[derive(Debug)]
pub struct StageOffsets(BTreeMap<String, Vec<i64>>);

impl StageOffsets {
    /// Parses offsets; returns `None` for anything else, such as the first stage's.
    fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }
}

impl InputOffsets for StageOffsets {
    fn offset(&self, topic: Topic, partition: i32) -> Option<i64> {
        self.0.get(topic.base_name())?.get(usize::try_from(partition).ok()?).copied()
    }

    fn is_beyond(&self, other: &Self) -> bool {
        let further = |(topic, offsets): (&String, &Vec<i64>)| {
            let others = other.0.get(topic).map_or(&[][..], Vec::as_slice);
            offsets.iter().enumerate().any(|(partition, offset)| offset > others.get(partition).unwrap_or(&0))
        };
        self.0.iter().any(further)
    }
}

impl<K: JointStageDefinition> StageRecords for JointStage<K> {
    type Offsets = StageOffsets;
    const SERVICE: &'static str = K::SERVICE;
    const INPUTS: &'static [Topic] = &INPUTS;
    const OUTPUTS: &'static [Topic] = &[Topic::Decisions];
    const SHARED_KEYS: &'static [(Topic, &'static str)] = &[];
    const HEAD_KEY: &'static str = K::STATE_PREFIX;

    fn is_state_key(key: &str) -> bool {
        key.starts_with(K::STATE_PREFIX)
    }

    fn parse_state_offsets(_: i32, text: &str) -> Option<StageOffsets> {
        StageOffsets::from_json(text)
    }

    fn emitted(record: &ConsumerRecord) -> Option<(i32, StageOffsets)> {
        let id = record.header(header::ID)?;
        if !id.strip_suffix(K::CONTROLLER).is_some_and(|rest| rest.ends_with('/')) {
            return None;
        }
        Some((STAGE_PARTITION, record.header(header::INPUT_POSITIONS).and_then(StageOffsets::from_json)?))
    }

    fn state_partition(_: i32) -> i32 {
        STAGE_PARTITION
    }
}

/// Returns all partitions of the inputs. A model is written to every partition, and one of them is enough.
fn input_partitions(bus: &dyn Bus, prefix: &str) -> Result<Vec<(Topic, TopicPartition)>> {
    let counts = bus.partition_counts(prefix)?;
    let mut inputs = Vec::new();
    for topic in INPUTS {
        let name = format!("{prefix}{topic}");
        let (name, partitions) = counts.get_key_value(&*name).ok_or_else(|| {
            let detail = "the topic does not exist; create the topics with eadt topics apply";
            BusError::new(Remedy::Stop, format!("reading topic {name}"), detail)
        })?;
        let partitions = if topic == Topic::Models { 1 } else { *partitions };
        inputs.extend((0..partitions).map(|partition| (topic, TopicPartition::new(name.clone(), partition))));
    }
    Ok(inputs)
}

/// Returns the offsets at which a first start begins to read windows: a decision about older ones would have expired by
/// the stamp of the newest one.
fn read_recent_decisions<K: JointStageDefinition>(
    bus: &dyn Bus,
    inputs: &[(Topic, TopicPartition)],
    settings: &crate::ProcessorSettings,
    shutdown: &Shutdown,
) -> Result<BTreeMap<TopicPartition, i64>> {
    let mut from = Vec::new();
    let mut begin: BTreeMap<TopicPartition, i64> = BTreeMap::new();
    for (_, at) in inputs.iter().filter(|(topic, _)| *topic == Topic::EfficiencyWindows) {
        let marks = bus.watermarks(at)?;
        from.push((at.clone(), StartOffset::At(marks.low.max(marks.high - RECENT_DECISIONS))));
        begin.insert(at.clone(), marks.high);
    }
    let mut stamps: Vec<(TopicPartition, i64, EventTime)> = Vec::new();
    let read = read_to_end(
        bus,
        &from,
        || shutdown.is_cancelled(),
        |record| {
            stamps.push((record.at, record.offset, record.stamp));
            Ok::<_, BusError>(())
        },
    )?;
    if read.is_none() {
        return Err(BusError::new(
            Remedy::Retry,
            format!("beginning {}", K::DESCRIPTION),
            "stopped before the newest windows were found",
        ));
    }
    let newest = stamps.iter().map(|(_, _, stamp)| *stamp).max();
    let worth =
        |stamp: EventTime| newest.is_some_and(|newest| newest.seconds_since(stamp) <= K::decision_expiry_seconds(settings));
    for (at, offset, _) in stamps.into_iter().filter(|(_, _, stamp)| worth(*stamp)) {
        let first = begin.entry(at).or_insert(offset);
        *first = offset.min(*first);
    }
    Ok(begin)
}

#[cfg(test)]
mod tests {
    use eadt_core::PowerBudgetFold;
    use eadt_core::power_budget::allocation::BudgetSettings;
    use eadt_schemas::v1::{Layout, UpdateMode, Workload};
    use eadt_testing::lines;

    use super::*;
    use crate::ProcessorSettings;
    use crate::joint::kind::{GpuSharingStage, PowerBudgetStage};
    use crate::scripted::{ScriptedBus, place, seconds};

    fn settings() -> ProcessorSettings {
        let power_budget =
            BudgetSettings { budget_watts: Some(1_500.0), decision_expiry_seconds: 300.0, ..BudgetSettings::default() };
        ProcessorSettings { power_budget, ..ProcessorSettings::default() }
    }

    fn begin(bus: &ScriptedBus, kind: &PowerBudgetStage) -> JointStage<PowerBudgetStage> {
        let names = OutputTopics::new("eadt.", "{}".to_owned());
        JointStage::restore(&bus.service(&settings()), &mut bus.clone(), &names, kind).unwrap()
    }

    fn window(workload: &str, at: i64) -> Vec<u8> {
        let window = EfficiencyWindow {
            id: format!("{workload}/{at}"),
            workload: workload.to_owned(),
            window_start: seconds(at - 60),
            window_end: seconds(at),
            gpus: 1,
            ..EfficiencyWindow::default()
        };
        serde_json::to_vec(&window).unwrap()
    }

    fn workload() -> Vec<u8> {
        let workload = Workload { time: seconds(7), workload: "team/one".into(), ..Workload::default() };
        serde_json::to_vec(&workload).unwrap()
    }

    #[test]
    fn a_record_is_a_window_or_what_the_first_stage_reads_and_has_the_time_of_its_content() {
        let own = EventType::EfficiencyWindow.name();
        let (window, workload) = (window("team/one", 120), workload());
        let refused = |head: &DecodedInput| match head {
            DecodedInput::Refused(refusal) => Some((refusal.reason, refusal.detail.clone())),
            _ => None,
        };
        for kind in [None, Some(own)] {
            let head = DecodedInput::decode(Topic::EfficiencyWindows, kind, Some(&window));
            assert!(matches!(&head, DecodedInput::Window(window) if window.id == "team/one/120"), "{head:?}");
            assert_eq!(head.time(), Some(seconds(120)));
            let head = DecodedInput::decode(Topic::EfficiencyWindows, kind, None);
            assert_eq!(refused(&head), Some((DeadLetterReason::Malformed, "the record has no value".to_owned())));
            assert_eq!(head.time(), None);
            let head = DecodedInput::decode(Topic::EfficiencyWindows, kind, Some(b"{"));
            assert_eq!(refused(&head).unwrap().0, DeadLetterReason::Malformed);
        }
        let other = Topic::Workloads.event_type().name();
        let head = DecodedInput::decode(Topic::EfficiencyWindows, Some(other), Some(&window));
        let (reason, detail) = refused(&head).unwrap();
        assert_eq!(reason, DeadLetterReason::UnexpectedType);
        assert!(detail.contains(other) && detail.contains(own), "{detail}");
        let head = DecodedInput::decode(Topic::Workloads, Some(other), Some(&workload));
        assert!(matches!(&head, DecodedInput::Input(decoded) if matches!(**decoded, DecodedRecord::Workload(_))), "{head:?}");
        assert_eq!(head.time(), Some(seconds(7)));
    }

    #[test]
    fn all_partitions_are_read_but_of_models_that_every_partition_has() {
        let bus = ScriptedBus::default();
        bus.script().partitions.extend([(Topic::Workloads, 1), (Topic::EfficiencyWindows, 3), (Topic::Models, 3)]);
        let expected: Vec<_> = [
            (Topic::Workloads, 0),
            (Topic::Actuations, 0),
            (Topic::Actuations, 1),
            (Topic::Models, 0),
            (Topic::EfficiencyWindows, 0),
            (Topic::EfficiencyWindows, 1),
            (Topic::EfficiencyWindows, 2),
        ]
        .into_iter()
        .map(|(topic, number)| (topic, place(topic, number)))
        .collect();
        assert_eq!(input_partitions(&bus, "eadt.").unwrap(), expected);
        bus.script().partitions.insert(Topic::Models, 0);
        let error = input_partitions(&bus, "eadt.").unwrap_err();
        assert_eq!(error.remedy, Remedy::Stop);
        assert!(error.to_string().contains("eadt.models.v1") && error.to_string().contains("eadt topics apply"), "{error}");
    }

    #[test]
    fn a_first_start_reads_what_a_decision_may_still_be_about() {
        let newest = |bus: &ScriptedBus| -> BTreeMap<TopicPartition, i64> {
            read_recent_decisions::<PowerBudgetStage>(bus, &input_partitions(bus, "eadt.").unwrap(), &settings(), &bus.shutdown)
                .unwrap()
        };
        let at = |number| place(Topic::EfficiencyWindows, number);
        let bus = ScriptedBus::default();
        assert_eq!(newest(&bus), BTreeMap::from([(at(0), 0), (at(1), 0)]));
        // The newest one is of second 1,000: a decision about a time more than 300 s before it would have expired.
        for second in [100, 699, 700, 1_000] {
            bus.put(Topic::EfficiencyWindows, 0, second, "team/one", window("team/one", second));
        }
        for second in [100, 600] {
            bus.put(Topic::EfficiencyWindows, 1, second, "team/two", window("team/two", second));
        }
        assert_eq!(newest(&bus), BTreeMap::from([(at(0), 2), (at(1), 2)]));
        bus.put(Topic::EfficiencyWindows, 1, 900, "team/two", window("team/two", 900));
        assert_eq!(newest(&bus), BTreeMap::from([(at(0), 2), (at(1), 2)]));
    }

    #[test]
    fn of_more_windows_than_can_be_recent_a_first_start_reads_the_newest() {
        let bus = ScriptedBus::default();
        for _ in 0..2_100 {
            bus.put(Topic::EfficiencyWindows, 1, 1_000, "team/one", "{}");
        }
        let found = read_recent_decisions::<PowerBudgetStage>(
            &bus,
            &input_partitions(&bus, "eadt.").unwrap(),
            &settings(),
            &bus.shutdown,
        )
        .unwrap();
        assert_eq!(found[&place(Topic::EfficiencyWindows, 1)], 100);
    }

    #[test]
    fn a_start_goes_on_at_the_offsets_of_its_state_or_its_group_and_begins_where_windows_are_recent() {
        let (workloads, windows) = (place(Topic::Workloads, 0), place(Topic::EfficiencyWindows, 0));
        let state_positions = r#"{"workloads.v1":[1,0],"efficiency.windows.v1":[2,0]}"#;
        for (state, committed, expected) in [
            // Of the windows of seconds 100, 1,000 and 1,001 the last two are recent.
            (None, false, (0, 1)),
            (None, true, (0, 1)),
            (Some(""), true, (2, 3)),
            // Neither state nor group has positions.
            (Some(""), false, (0, 1)),
            (Some(state_positions), true, (1, 2)),
        ] {
            let bus = ScriptedBus::default();
            for n in 0..2 {
                bus.put(Topic::Workloads, 0, 100 + n, "team/one", workload());
            }
            for second in [100, 1_000, 1_001] {
                bus.put(Topic::EfficiencyWindows, 0, second, "team/one", window("team/one", second));
            }
            if committed {
                bus.script().committed.extend([(workloads.clone(), 2), (windows.clone(), 3)]);
            }
            if let Some(state_positions) = state {
                for record in PowerBudgetFold::new(settings().fold_settings()).take_changes() {
                    let headers = [(header::INPUT_POSITIONS, state_positions)];
                    bus.append(
                        Topic::ProcessorState,
                        0,
                        1,
                        &record.key,
                        record.value.as_deref(),
                        &headers[..usize::from(!state_positions.is_empty())],
                    );
                }
            }
            let stage = begin(&bus, &PowerBudgetStage::new(&bus.metrics));
            let positions: BTreeMap<_, _> = stage.inputs.iter().map(|(_, at)| at.clone()).zip(stage.merge.positions()).collect();
            assert_eq!((positions[&workloads], positions[&windows]), expected, "{state:?} {committed}");
        }
    }

    #[test]
    fn positions_that_retention_has_deleted_are_counted() {
        for (committed, begins, gaps) in [(6, 6, 0.0), (5, 5, 0.0), (4, 5, 1.0)] {
            let bus = ScriptedBus::default();
            let actuations = place(Topic::Actuations, 1);
            bus.script().lows.insert(actuations.clone(), 5);
            bus.put(Topic::Actuations, 1, 1, "", "{}");
            bus.script().committed.insert(actuations.clone(), committed);
            for record in PowerBudgetFold::new(settings().fold_settings()).take_changes() {
                bus.append(Topic::ProcessorState, 0, 1, &record.key, record.value.as_deref(), &[]);
            }
            let stage = begin(&bus, &PowerBudgetStage::new(&bus.metrics));
            let input = stage.inputs.iter().position(|(_, at)| *at == actuations).unwrap();
            assert_eq!(stage.merge.positions().nth(input), Some(begins));
            assert_eq!(bus.metric("eadt_power_budget_gaps_total"), Some(gaps), "{committed}");
        }
    }

    #[test]
    fn a_fold_stops_where_enough_waits_for_a_commit_and_the_positions_are_those_of_what_was_folded() {
        let bus = ScriptedBus::default();
        let (kind, names) = (PowerBudgetStage::new(&bus.metrics), OutputTopics::new("eadt.", "{}".to_owned()));
        let mut stage = begin(&bus, &kind);
        for number in [0, 1] {
            for _ in 0..2 {
                bus.put(Topic::EfficiencyWindows, number, 5, "team/one", "no JSON");
            }
        }
        bus.put(Topic::Actuations, 1, 4, "", "{}");
        assert!(!stage.fold(9, &names, &kind) && !stage.has_outputs());
        stage.read().unwrap();
        assert!(!stage.fold(0, &names, &kind), "nothing more may wait");
        assert!(stage.fold(3, &names, &kind));
        assert_eq!(stage.outputs.len(), 3);
        let positions_text = r#"{"workloads.v1":[0,0],"actuations.v1":[0,1],"models.v1":[0],"efficiency.windows.v1":[2,1]}"#;
        assert_eq!(stage.positions_json(), positions_text);
        assert!(!stage.fold(3, &names, &kind) && stage.has_outputs());
        let mut step = CommitStep::default();
        stage.commit(&names, 0, &mut step);
        assert!(!stage.has_outputs());
        let letters = step.outputs.iter().filter(|output| output.topic == names.dead_letters).count();
        let state = step.outputs.iter().find(|output| output.topic == names.state).unwrap();
        assert!(state.headers.iter().any(|(name, value)| &**name == header::INPUT_POSITIONS && *value == positions_text));
        assert_eq!(
            (letters, step.positions.iter().map(|(_, position)| *position).collect::<Vec<_>>()),
            (3, vec![0, 0, 0, 1, 0, 2, 1])
        );
        assert!(stage.fold(3, &names, &kind));
        assert_eq!(stage.positions_json(), positions_text.replace("[2,1]", "[2,2]"));
    }

    #[test]
    fn what_is_there_already_is_not_published_again() {
        let bus = ScriptedBus::default();
        let (kind, names) = (PowerBudgetStage::new(&bus.metrics), OutputTopics::new("eadt.", "{}".to_owned()));
        let refused = [0, 1].map(|_| bus.put(Topic::EfficiencyWindows, 0, 5, "team/one", "no JSON"));
        // As after a step that lost its state, but not its dead letter.
        let letter = names.dead_letter(
            &refused[0],
            &DecodeError { reason: DeadLetterReason::Malformed, field: None, detail: String::new() },
            PowerBudgetStage::SERVICE,
        );
        let headers: Vec<_> = letter.headers.iter().map(|(name, value)| (&**name, std::str::from_utf8(value).unwrap())).collect();
        let number = eadt_bus::partition_for_key(b"eadt.efficiency.windows.v1", 2);
        bus.append(Topic::DeadLetters, number, 5, "eadt.efficiency.windows.v1", Some(b"no JSON"), &headers);
        let mut stage = begin(&bus, &kind);
        stage.read().unwrap();
        assert!(stage.fold(9, &names, &kind));
        let ids: Vec<_> =
            stage.outputs.iter().flat_map(|output| &output.headers).filter(|(name, _)| &**name == header::ID).collect();
        assert_eq!(ids.iter().map(|(_, id)| id).collect::<Vec<_>>(), [&*refused[1].location()]);
    }

    #[test]
    fn a_decision_that_changes_something_is_logged() {
        let bus = ScriptedBus::default();
        let (kind, names) = (PowerBudgetStage::new(&bus.metrics), OutputTopics::new("eadt.", "{}".to_owned()));
        for (name, gpus, cap) in [("team/one", 8, None), ("team/two", 1, Some(100.0))] {
            let workload = Workload {
                time: seconds(1),
                workload: name.to_owned(),
                controller: Some("power-budget".to_owned()),
                mode: UpdateMode::Enforce,
                gpus: Some(gpus),
                gpu_power_limit_watts: Some(400.0),
                generation: 1,
                layout: Layout { power_limit_watts: cap, ..Layout::default() },
                ready_time: Some(seconds(1)),
                ..Workload::default()
            };
            bus.put(Topic::Workloads, 0, 1, name, serde_json::to_vec(&workload).unwrap());
            for end in [60, 120] {
                bus.put(Topic::EfficiencyWindows, 0, end, name, window(name, end));
            }
        }
        let mut stage = begin(&bus, &kind);
        stage.read().unwrap();
        let (log, _) = lines(|| stage.fold(99, &names, &kind));
        let decisions: Vec<Decision> = stage
            .outputs
            .iter()
            .filter(|output| *output.topic == *"eadt.decisions.v1")
            .map(|output| serde_json::from_slice(output.value.as_ref().unwrap()).unwrap())
            .collect();
        let changes: BTreeMap<&str, bool> =
            decisions.iter().map(|decision| (&*decision.id, decision.action != ControllerAction::Maintain)).collect();
        assert!(changes.values().any(|changes| *changes) && !changes.values().all(|changes| *changes), "{changes:?}");
        for (id, changes) in changes {
            let is_logged = log.iter().any(|line| line.starts_with("DEBUG") && line.contains(&format!("decision=\"{id}\"")));
            assert_eq!(is_logged, changes, "{id} in {log:?}");
        }
        assert_eq!(bus.metric("eadt_power_budget_decisions_total"), Some(decisions.len() as f64));
    }

    #[test]
    fn what_waits_is_held_against_the_budget() {
        let bus = ScriptedBus::default();
        let kind = PowerBudgetStage::new(&bus.metrics);
        let mut stage = begin(&bus, &kind);
        bus.put(Topic::Workloads, 1, 5, "key", vec![b'x'; 65_536 - 3 - 256]);
        stage.read().unwrap();
        // Of seven inputs each may hold the least share.
        stage.apply_backpressure(7 * 65_536).unwrap();
        assert!(bus.script().paused.is_empty(), "exactly its share");
        bus.put(Topic::Workloads, 1, 5, "", "");
        stage.read().unwrap();
        stage.apply_backpressure(7 * 65_536 + 7 * 256).unwrap();
        assert!(bus.script().paused.is_empty(), "a larger budget");
        stage.apply_backpressure(7 * 65_536).unwrap();
        assert_eq!(bus.script().paused, [("pause", place(Topic::Workloads, 1))]);
    }

    #[test]
    fn offsets_are_beyond_each_other_by_any_partition_of_any_topic() {
        let offsets = |text: &str| StageOffsets::from_json(text).unwrap();
        let here = offsets(r#"{"workloads.v1":[3,4],"models.v1":[5]}"#);
        let offset = |topic, partition| here.offset(topic, partition);
        assert_eq!([0, 1, 2, -1].map(|partition| offset(Topic::Workloads, partition)), [Some(3), Some(4), None, None]);
        assert_eq!((offset(Topic::Models, 0), offset(Topic::Actuations, 0)), (Some(5), None));
        for (text, beyond) in [
            (r#"{"workloads.v1":[3,4],"models.v1":[5]}"#, false),
            (r#"{"workloads.v1":[3,5],"models.v1":[5]}"#, true),
            (r#"{"workloads.v1":[2,4],"models.v1":[6]}"#, true),
            (r#"{"workloads.v1":[2,4],"models.v1":[5]}"#, false),
            (r#"{"workloads.v1":[3,4,0]}"#, false),
            (r#"{"workloads.v1":[3,4,1]}"#, true),
            (r#"{"actuations.v1":[0]}"#, false),
            (r#"{"actuations.v1":[1]}"#, true),
        ] {
            assert_eq!(offsets(text).is_beyond(&here), beyond, "{text}");
        }
        assert!(StageOffsets::from_json(r#"{"partition":0,"workloads.v1":3}"#).is_none(), "the first stage's");
    }

    #[test]
    fn each_stage_knows_its_own_state_and_decisions() {
        type Power = JointStage<PowerBudgetStage>;
        type Gpus = JointStage<GpuSharingStage>;
        for (key, power_budget, gpus) in
            [("#cluster//x", true, false), ("#gpu//x", false, true), ("#", false, false), ("a/b#0", false, false)]
        {
            assert_eq!((Power::is_state_key(key), Gpus::is_state_key(key)), (power_budget, gpus), "{key}");
        }
        let positions_text = r#"{"efficiency.windows.v1":[7]}"#;
        let origin = |id: &str, positions: &str| {
            let headers = [(header::ID, id), (header::INPUT_POSITIONS, positions)];
            let record = ScriptedBus::default().append(Topic::Decisions, 1, 0, "", None, &headers);
            let found = |(number, offsets): (i32, StageOffsets)| (number, offsets.offset(Topic::EfficiencyWindows, 0));
            (Power::emitted(&record).map(found), Gpus::emitted(&record).map(found))
        };
        assert_eq!(origin("team/one@5/power-budget", positions_text), (Some((0, Some(7))), None));
        assert_eq!(origin("team/one@5/sm-partition", positions_text), (None, Some((0, Some(7)))));
        assert_eq!(origin("team/one@5/no-power-budget", positions_text), (None, None));
        assert_eq!(origin("team/one@5/power-budget", "{\"workloads.v1\":3}"), (None, None));
        assert_eq!(Power::parse_state_offsets(0, positions_text).unwrap().offset(Topic::EfficiencyWindows, 0), Some(7));
        assert!(Power::parse_state_offsets(0, "").is_none());
        assert_eq!([0, 1, 5].map(Power::state_partition), [0; 3], "one state has all partitions");
    }
}
