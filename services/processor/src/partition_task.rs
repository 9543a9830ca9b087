//! One owned partition: restores its state, merges its inputs, folds them.

use std::collections::BTreeMap;

use bytes::Bytes;
use eadt_bus::{
    Bus, BusError, CommitStep, ConsumerRecord, GroupMember, HangingEnds, PartitionReader, ProducerRecord, RecordBatch, Remedy,
    Result, TopicPartition, WatermarkOffsets, chaos,
};
use eadt_core::state::{PARTITION_KEY, is_of_joint_stage};
use eadt_core::workload::UNASSIGNED;
use eadt_core::{FoldOutput, FoldSettings, InputEvent, InputMerge, InputRecord, PartitionFold, PartitionTally};
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, Topic};
use eadt_service::Shutdown;

use crate::arrived::ArrivedRecords;
use crate::codec::DecodedRecord;
use crate::metrics::ProcessorMetrics;
use crate::misplaced_records::{MisplacedRecordCheck, MisplacedRecordPolicy, PartitionCounts, partition_counts};
use crate::outputs::OutputTopics;
use crate::pending_commit::MAX_DEAD_LETTER_BYTES;
use crate::positions::{INPUTS, PartitionOffsets};
use crate::restore::{self, EmittedIds, RestoredState, StageRecords};

/// Counts of one fold of a partition.
#[derive(Debug, Clone, Copy, Default)]
pub struct FoldCounts {
    /// Windows and decisions.
    pub outputs: usize,
    pub dead_letters: usize,
    /// Bytes of refused records.
    pub dead_letter_bytes: usize,
    /// Sources that were not there before.
    pub new_sources: usize,
    pub records: usize,
}

/// Everything that restoring a partition needs.
#[derive(Debug, Clone, Copy)]
pub struct PartitionContext<'a> {
    pub bus: &'a dyn Bus,
    pub names: &'a OutputTopics,
    pub settings: &'a FoldSettings,
    pub misplaced_record_policy: MisplacedRecordPolicy,
    pub metrics: &'a ProcessorMetrics,
    pub shutdown: &'a Shutdown,
}

/// An owned partition with its restored state, its merge and its fold.
#[derive(Debug)]
pub struct PartitionTask {
    pub number: i32,
    inputs: Vec<TopicPartition>,
    partition: PartitionFold,
    /// Order of the inputs' records; the records themselves are in `arrived`.
    merge: InputMerge<()>,
    /// Records that wait, by input.
    arrived: Vec<ArrivedRecords>,
    heads: Vec<DecodedRecord>,
    paused: Vec<bool>,
    /// Time of the partition's last record, by the heartbeats' clock.
    pub last_record_time: EventTime,
    /// End of the input that heartbeats are appended to; `None` while there is more to read.
    telemetry_end: Option<i64>,
    tally_counted: PartitionTally,
    foreign: MisplacedRecordCheck,
    folded_since_commit: bool,
    /// State bytes of its last commit: an estimate for the next one.
    pub state_bytes: usize,
    /// Outputs that are in the log already, of a step whose state was lost.
    emitted_ids: EmittedIds,
    scratch: Vec<FoldOutput>,
}

impl StageRecords for PartitionTask {
    type Offsets = PartitionOffsets;
    const SERVICE: &'static str = "processor";
    const INPUTS: &'static [Topic] = &INPUTS;
    const OUTPUTS: &'static [Topic] = &[Topic::EfficiencyWindows, Topic::Decisions];
    const SHARED_KEYS: &'static [(Topic, &'static str)] = &[(Topic::EfficiencyWindows, UNASSIGNED)];
    const HEAD_KEY: &'static str = PARTITION_KEY;

    fn is_state_key(key: &str) -> bool {
        !is_of_joint_stage(key)
    }

    fn parse_state_offsets(number: i32, text: &str) -> Option<PartitionOffsets> {
        PartitionOffsets::from_json(text).filter(|recorded| recorded.partition == number)
    }

    fn emitted(record: &ConsumerRecord) -> Option<(i32, PartitionOffsets)> {
        let positions = record.header(header::INPUT_POSITIONS).and_then(PartitionOffsets::from_json)?;
        Some((positions.partition, positions))
    }

    fn state_partition(partition: i32) -> i32 {
        partition
    }
}

impl PartitionTask {
    /// Restores partitions from the committed state, and begins to read there.
    pub fn restore_partitions(
        numbers: &[i32],
        member: &mut dyn GroupMember,
        last_record_time: EventTime,
        with: &PartitionContext<'_>,
    ) -> Result<BTreeMap<i32, Self>> {
        let inputs = |number: &i32| {
            let number = *number;
            INPUTS.iter().map(move |topic| TopicPartition::new(format!("{}{topic}", with.names.prefix), number))
        };
        chaos::reach("restore.begun");
        // Positions are read first: state is written with them or after them, never before. If they differ, the state takes
        // precedence.
        let committed = HangingEnds::default().fetch_positions(member, &numbers.iter().flat_map(inputs).collect::<Vec<_>>())?;
        chaos::reach("restore.positions");
        let mut states = restore::read_states_and_outputs::<Self>(with.bus, member, with.names, numbers, with.shutdown)?;
        let counts = partition_counts(with.bus, &with.names.prefix)?;
        let mut owned = BTreeMap::new();
        for (number, committed) in numbers.iter().zip(committed.chunks(INPUTS.len())) {
            if let Some(state) = states.remove(number) {
                let mut restored =
                    Self::restore_partition(*number, inputs(number).collect(), committed, state, member, last_record_time, with)?;
                restored.foreign = MisplacedRecordCheck::new(with.misplaced_record_policy, counts);
                owned.insert(*number, restored);
            }
        }
        Ok(owned)
    }

    fn restore_partition(
        number: i32,
        inputs: Vec<TopicPartition>,
        committed: &[Option<i64>],
        mut state: RestoredState<PartitionOffsets>,
        member: &mut dyn GroupMember,
        last_record_time: EventTime,
        with: &PartitionContext<'_>,
    ) -> Result<Self> {
        let PartitionContext { bus, names, settings, metrics, .. } = *with;
        let was_given_up = state.was_given_up;
        if was_given_up {
            tracing::warn!(partition = number, topic = %names.state, "the state is missing: windows restart at the committed positions");
            state.emitted = EmittedIds::default();
        } else if state.is_new() && committed.iter().any(Option::is_some) {
            tracing::warn!(partition = number, topic = %names.state, "positions were committed and the state is missing: all inputs are folded again");
        }
        let mut partition = PartitionFold::restore(settings.clone(), std::mem::take(&mut state.records)).map_err(|error| {
            let detail = format!("{error}; to give it up delete {} and the group's positions", names.state);
            BusError::new(Remedy::Stop, format!("restoring partition {number}"), detail)
        })?;
        let mut positions = Vec::with_capacity(inputs.len());
        let mut gap = false;
        for ((topic, at), committed) in INPUTS.into_iter().zip(&inputs).zip(committed.iter().copied()) {
            let WatermarkOffsets { low, high } = bus.watermarks(at)?;
            let position = if was_given_up { committed } else { state.resume_offset(topic, at, committed, high) };
            if let Some(position) = position.filter(|position| *position < low) {
                tracing::error!(%at, position, oldest = low, "retention has deleted records that were not folded yet; the windows concerned are marked as gaps");
                metrics.gaps.inc();
                gap = true;
            }
            if state.is_recreated(at) {
                metrics.gaps.inc();
                gap = true;
            }
            if committed.is_some() && chaos::is_off("rewind") {
                positions.push(bus.watermarks(at)?.high);
                continue;
            }
            positions.push(position.map_or(low, |position| position.max(low)));
        }
        if gap && !chaos::is_off("gaps") {
            partition.mark_gap();
        }
        for (at, position) in inputs.iter().zip(&positions) {
            member.start(at, *position)?;
        }
        tracing::info!(
            partition = number,
            ?positions,
            workloads = partition.workload_and_source_counts().0,
            "partition taken over"
        );
        Ok(Self {
            number,
            merge: InputMerge::new(&positions, settings.max_future),
            arrived: inputs.iter().map(|_| ArrivedRecords::default()).collect(),
            heads: vec![DecodedRecord::Heartbeat; inputs.len()],
            paused: vec![false; inputs.len()],
            tally_counted: partition.tally(),
            inputs,
            partition,
            last_record_time,
            telemetry_end: None,
            foreign: MisplacedRecordCheck::new(with.misplaced_record_policy, PartitionCounts::default()),
            folded_since_commit: false,
            state_bytes: 0,
            emitted_ids: state.emitted,
            scratch: Vec::new(),
        })
    }

    pub fn inputs(&self) -> &[TopicPartition] {
        &self.inputs
    }

    /// Returns the offset of the first record that is not folded, for each input.
    pub fn positions(&self) -> impl Iterator<Item = i64> {
        self.merge.positions()
    }

    fn input_index(&self, at: &TopicPartition) -> Option<usize> {
        self.inputs.iter().position(|input| input == at)
    }

    /// Takes a record in; returns its size.
    pub fn push(&mut self, record: ConsumerRecord) -> usize {
        let Some(input) = self.input_index(&record.at) else { return 0 };
        let bytes = record_size(&record);
        self.merge.push(input, record.offset, record.stamp, bytes + RECORD_OVERHEAD_BYTES, ());
        self.arrived[input].push(record);
        self.on_records_arrived(input);
        bytes
    }

    /// Like [`Self::push`], for records that stay in their batch.
    pub fn push_batch(&mut self, batch: RecordBatch) -> usize {
        let Some(input) = self.input_index(&batch.at) else { return 0 };
        let mut bytes = 0;
        for (offset, stamp, record_bytes) in batch.sizes() {
            bytes += record_bytes;
            self.merge.push(input, offset, stamp, record_bytes + RECORD_OVERHEAD_BYTES, ());
        }
        self.arrived[input].push_batch(batch);
        self.on_records_arrived(input);
        bytes
    }

    fn on_records_arrived(&mut self, input: usize) {
        if INPUTS[input] == Topic::GpuTelemetry {
            self.telemetry_end = None;
        }
        if chaos::is_off("merge") {
            // Treats the other inputs as empty, so that the merge does not wait for them.
            (0..self.inputs.len()).for_each(|other| self.merge.end(other, 0));
        }
    }

    pub fn on_partition_end(&mut self, at: &TopicPartition, position: i64) {
        if let Some(input) = self.input_index(at) {
            self.merge.end(input, position);
            if INPUTS[input] == Topic::GpuTelemetry {
                self.telemetry_end = Some(position);
            }
        }
    }

    /// Returns the end of the telemetry input; `None` while there is more to read.
    pub fn telemetry_end(&self) -> Option<i64> {
        self.telemetry_end
    }

    /// Folds at most `limit` records, and as many bytes of dead letters as fit in one commit, and appends the outputs.
    pub fn fold(
        &mut self,
        limit: usize,
        names: &OutputTopics,
        outputs: &mut Vec<ProducerRecord>,
        metrics: &ProcessorMetrics,
    ) -> FoldCounts {
        let mut folded = FoldCounts::default();
        let known = self.partition.new_sources();
        while folded.records < limit && folded.dead_letter_bytes < MAX_DEAD_LETTER_BYTES {
            let (heads, arrived) = (&mut self.heads, &self.arrived);
            let next = self.merge.next(|input, ()| {
                let record = arrived[input].head();
                heads[input].decode_view_into(INPUTS[input], &record);
                heads[input].event().time()
            });
            let Some(next) = next else { break };
            folded.records += 1;
            let record = self.arrived[next.input].head();
            let refusal = self.foreign.check(next.input, &self.inputs[next.input], &record, metrics);
            let key = record.key.map_or(Some(""), |key| std::str::from_utf8(key).ok());
            let input = InputRecord {
                topic: INPUTS[next.input],
                stamp: next.stamp,
                key: key.or(Some("\u{fffd}")),
                is_sent_again: record.is_sent_again,
                event: refusal.as_ref().map_or_else(|| self.heads[next.input].event(), InputEvent::Refused),
            };
            self.partition.fold(&input, &mut self.scratch);
            let positions = if self.scratch.is_empty() { Bytes::new() } else { self.positions_json() };
            for output in self.scratch.drain(..) {
                match output {
                    FoldOutput::Window(window) if self.emitted_ids.remove(&window.id) => {}
                    FoldOutput::Decision(decision) if self.emitted_ids.remove(&decision.id) => {}
                    FoldOutput::Window(window) => {
                        metrics.windows.inc();
                        folded.outputs += 1;
                        outputs.push(names.window(&window, &positions));
                    }
                    FoldOutput::Decision(decision) => {
                        metrics.decisions.inc();
                        folded.outputs += 1;
                        outputs.push(names.decision(&decision, &positions));
                    }
                    FoldOutput::Refused(_) if chaos::is_off("dead-letters") => {}
                    FoldOutput::Refused(refusal) => {
                        let record = self.arrived[next.input].head_record();
                        if self.emitted_ids.remove_dead_letter(&record) {
                            continue;
                        }
                        metrics.dead_letter(refusal.reason);
                        folded.dead_letters += 1;
                        folded.dead_letter_bytes += record_size(&record);
                        outputs.push(names.dead_letter(&record, &refusal, Self::SERVICE));
                    }
                }
            }
            self.arrived[next.input].advance();
        }
        folded.new_sources = self.partition.new_sources().saturating_sub(known);
        if folded.records > 0 {
            self.folded_since_commit = true;
            let tally = self.partition.tally();
            metrics.add_tally(self.tally_counted, tally);
            self.tally_counted = tally;
        }
        folded
    }

    fn positions_json(&self) -> Bytes {
        let mut positions = PartitionOffsets::start(self.number);
        for (offset, position) in positions.offsets.iter_mut().zip(self.merge.positions()) {
            *offset = position;
        }
        positions.to_json().into()
    }

    /// Returns whether anything was folded since the last commit.
    pub fn is_dirty(&self) -> bool {
        self.folded_since_commit
    }

    /// Adds this partition's part of a commit: changed state, and the position of the first record not folded of every input.
    /// Returns the bytes of state.
    pub fn commit(&mut self, names: &OutputTopics, step: &mut CommitStep) -> usize {
        if !self.folded_since_commit {
            return 0;
        }
        self.folded_since_commit = false;
        let (mut bytes, before) = (0, step.outputs.len());
        for record in self.partition.take_changes() {
            bytes += record.key.len() + record.value.as_ref().map_or(0, Vec::len);
            step.outputs.push(names.state(self.number, record));
        }
        restore::write_head_headers(names, &mut step.outputs[before..], || self.positions_json());
        step.positions.extend(self.inputs.iter().cloned().zip(self.merge.positions()));
        self.state_bytes = bytes;
        bytes
    }

    /// Pauses inputs that are far ahead of the merge and resumes those that no longer are.
    pub fn apply_backpressure(&mut self, member: &mut dyn GroupMember, budget: usize) -> Result<()> {
        balance_inputs(member, self.inputs.iter(), &mut self.merge, &mut self.paused, budget)?;
        if INPUTS.iter().zip(&self.paused).any(|(topic, paused)| *topic == Topic::GpuTelemetry && *paused) {
            self.telemetry_end = None;
        }
        Ok(())
    }

    pub fn buffered_bytes(&self) -> usize {
        (0..self.inputs.len()).map(|i| self.merge.bytes(i)).sum()
    }

    pub fn state_size(&self) -> (usize, usize) {
        self.partition.workload_and_source_counts()
    }
}

/// Returns the size of key and value, in bytes.
pub fn record_size(record: &ConsumerRecord) -> usize {
    record.key.as_ref().map_or(0, Bytes::len) + record.value.as_ref().map_or(0, Bytes::len)
}

/// Headers and bookkeeping of a record take about as much as a small value, in bytes.
pub const RECORD_OVERHEAD_BYTES: usize = 256;

const MIN_INPUT_BUFFER_BYTES: usize = 64 << 10;

/// Returns the share of the budget that each of `inputs` may buffer, in bytes. It is at least one good batch.
pub fn input_buffer_share(buffer_bytes: usize, inputs: usize) -> usize {
    (buffer_bytes / inputs.max(1)).max(MIN_INPUT_BUFFER_BYTES)
}

/// Pauses inputs of which the merge has more than `budget` bytes, and resumes those of which it has half of it. A paused input
/// may go on in the log: the merge waits for it until its reader reports its end again.
pub fn balance_inputs<'a, T>(
    reader: &mut dyn PartitionReader,
    inputs: impl Iterator<Item = &'a TopicPartition>,
    merge: &mut InputMerge<T>,
    paused: &mut [bool],
    budget: usize,
) -> Result<()> {
    for (i, (at, paused)) in inputs.zip(paused).enumerate() {
        let bytes = merge.bytes(i);
        if !*paused && bytes > budget {
            reader.pause(std::slice::from_ref(at))?;
            merge.pause(i);
            *paused = true;
        } else if *paused && bytes <= budget / 2 {
            reader.resume(std::slice::from_ref(at))?;
            *paused = false;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use eadt_bus::{PollEvent, RecordHeaders};
    use eadt_schemas::v1::EfficiencyWindow;
    use eadt_testing::lines;

    use super::*;
    use crate::ProcessorSettings;
    use crate::scripted::{ScriptedBus, gpu, place, rank, seconds};

    /// Records pauses and resumes.
    #[derive(Debug, Default)]
    struct Noted(Vec<(&'static str, i32)>);

    impl PartitionReader for Noted {
        fn poll(&mut self, _: usize, _: Duration, _: &mut Vec<PollEvent>) -> Result<()> {
            Ok(())
        }

        fn pause(&mut self, at: &[TopicPartition]) -> Result<()> {
            self.0.extend(at.iter().map(|at| ("pause", at.partition)));
            Ok(())
        }

        fn resume(&mut self, at: &[TopicPartition]) -> Result<()> {
            self.0.extend(at.iter().map(|at| ("resume", at.partition)));
            Ok(())
        }
    }

    #[test]
    fn who_is_far_ahead_of_the_merge_is_paused_once_and_resumed_at_half() {
        let inputs: Vec<_> = (0..2).map(|number| TopicPartition::new("topic", number)).collect();
        let mut paused = [false; 2];
        let mut noted = Noted::default();
        for (bytes, calls) in [
            ([10, 0], &[] as &[_]),
            ([11, 10], &[("pause", 0)]),
            ([20, 11], &[("pause", 1)]),
            ([6, 6], &[]),
            ([5, 6], &[("resume", 0)]),
            ([10, 0], &[("resume", 1)]),
            ([11, 0], &[("pause", 0)]),
        ] {
            let mut merge = InputMerge::new(&[0, 0], None);
            for (input, bytes) in bytes.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
                merge.push(input, 0, EventTime::default(), bytes, ());
            }
            balance_inputs(&mut noted, inputs.iter(), &mut merge, &mut paused, 10).unwrap();
            assert_eq!(std::mem::take(&mut noted.0), calls, "{bytes:?}");
        }
    }

    #[test]
    fn the_budget_is_shared_among_the_inputs_but_each_may_hold_a_good_batch() {
        for (buffer_bytes, inputs, each) in [
            (1_000_000, 10, 100_000),
            (1_000_000, 0, 1_000_000),
            (655_359, 10, 65_536),
            (655_370, 10, 65_537),
            (65_536, 40, 65_536),
        ] {
            assert_eq!(input_buffer_share(buffer_bytes, inputs), each, "{buffer_bytes} of {inputs}");
        }
    }

    #[test]
    fn a_record_takes_its_key_and_its_value() {
        for (key, value, bytes) in
            [(Some("key"), Some("value"), 8), (Some("key"), None, 3), (None, Some("value"), 5), (None, None, 0)]
        {
            let record = ConsumerRecord {
                at: place(Topic::GpuTelemetry, 0),
                offset: 0,
                stamp: seconds(0),
                key: key.map(Bytes::from),
                value: value.map(Bytes::from),
                headers: RecordHeaders::default(),
            };
            assert_eq!(record_size(&record), bytes);
        }
    }

    /// Surroundings of partitions.
    struct Rig {
        bus: ScriptedBus,
        names: OutputTopics,
        metrics: ProcessorMetrics,
        foreign: MisplacedRecordPolicy,
    }

    impl Rig {
        fn new() -> Self {
            let bus = ScriptedBus::default();
            let metrics = ProcessorMetrics::new(&bus.metrics);
            Self { bus, names: OutputTopics::new("eadt.", "{}".to_owned()), metrics, foreign: MisplacedRecordPolicy::Process }
        }

        fn begin(&self, number: i32) -> PartitionTask {
            let settings = ProcessorSettings::default().fold_settings();
            let with = PartitionContext {
                bus: &self.bus,
                names: &self.names,
                settings: &settings,
                misplaced_record_policy: self.foreign,
                metrics: &self.metrics,
                shutdown: &self.bus.shutdown,
            };
            let mut owned = PartitionTask::restore_partitions(&[number], &mut self.bus.clone(), seconds(0), &with).unwrap();
            assert_eq!(owned.len(), 1);
            owned.remove(&number).unwrap()
        }

        /// State of a partition that has no workload; with or without the offsets of its inputs.
        fn state(&self, number: i32, offsets: Option<PartitionOffsets>) {
            for record in PartitionFold::new(ProcessorSettings::default().fold_settings()).take_changes() {
                let offsets = offsets.map(|offsets| offsets.to_json());
                let headers: Vec<_> = offsets.iter().map(|offsets| (header::INPUT_POSITIONS, &**offsets)).collect();
                self.bus.append(Topic::ProcessorState, number, 1, &record.key, record.value.as_deref(), &headers);
            }
        }

        /// A workload's events of every five seconds, after which all inputs are at their ends.
        fn feed(&self, owned: &mut PartitionTask, from: i64, to: i64) {
            for second in (from..to).step_by(5) {
                owned.push(self.bus.put(Topic::GpuTelemetry, owned.number, second, "team/one", gpu("team/one", "GPU-1", second)));
                owned.push(self.bus.put(Topic::TrainingProgress, owned.number, second, "team/one", rank("team/one", second)));
            }
            self.end(owned);
        }

        fn end(&self, owned: &mut PartitionTask) {
            for end in self.bus.ends(&[owned.number]) {
                let PollEvent::End { at, position } = end else { panic!("{end:?}") };
                owned.on_partition_end(&at, position);
            }
        }

        fn fold(&self, owned: &mut PartitionTask, limit: usize) -> (FoldCounts, Vec<ProducerRecord>) {
            let mut outputs = Vec::new();
            let folded = owned.fold(limit, &self.names, &mut outputs, &self.metrics);
            (folded, outputs)
        }
    }

    fn windows(outputs: &[ProducerRecord]) -> Vec<EfficiencyWindow> {
        let own = outputs.iter().filter(|output| *output.topic == *"eadt.efficiency.windows.v1");
        own.map(|output| serde_json::from_slice(output.value.as_ref().unwrap()).unwrap()).collect()
    }

    #[test]
    fn positions_that_retention_has_deleted_are_gaps_and_everything_else_is_gone_on_with() {
        for (committed, begins, gap) in [(Some(6), 6, false), (Some(5), 5, false), (Some(4), 5, true), (None, 5, false)] {
            let before = Rig::new();
            let mut owned = before.begin(0);
            before.feed(&mut owned, 0, 30);
            before.fold(&mut owned, 100);
            let mut step = CommitStep::default();
            owned.commit(&before.names, &mut step);
            let rig = Rig::new();
            let telemetry = place(Topic::GpuTelemetry, 0);
            rig.bus.script().lows.insert(telemetry.clone(), 5);
            rig.bus.heartbeat(0, 0);
            rig.bus.heartbeat(0, 0);
            rig.bus.script().committed.extend(committed.map(|position| (telemetry.clone(), position)));
            for record in step.outputs {
                let key = String::from_utf8(record.key.unwrap().to_vec()).unwrap();
                rig.bus.append(Topic::ProcessorState, 0, 1, &key, record.value.as_deref(), &[]);
            }
            let mut owned = rig.begin(0);
            let started = rig.bus.script().started.clone();
            let expected: Vec<_> =
                owned.inputs().iter().map(|at| (at.clone(), if *at == telemetry { begins } else { 0 })).collect();
            assert_eq!(started, expected, "{committed:?}");
            assert_eq!(owned.positions().collect::<Vec<_>>(), [0, 0, 0, begins, 0]);
            assert_eq!(rig.bus.metric("eadt_processor_gaps_total"), Some(f64::from(u8::from(gap))), "{committed:?}");
            rig.feed(&mut owned, 30, 130);
            let (_, outputs) = rig.fold(&mut owned, 1_000);
            assert_eq!(windows(&outputs)[0].gap, gap, "{committed:?}");
        }
    }

    #[test]
    fn a_start_goes_on_at_the_offsets_of_the_state() {
        let rig = Rig::new();
        for n in 0..9 {
            rig.bus.heartbeat(1, n);
        }
        let mut offsets = PartitionOffsets::start(1);
        offsets.advance(Topic::GpuTelemetry, 6);
        rig.state(1, Some(offsets));
        rig.bus.script().committed.insert(place(Topic::GpuTelemetry, 1), 3);
        assert_eq!(rig.begin(1).positions().collect::<Vec<_>>(), [0, 0, 0, 7, 0]);
    }

    #[test]
    fn positions_without_state_are_logged_and_everything_is_folded_again() {
        for (has_state, committed, warns) in [(false, true, true), (true, true, false), (false, false, false)] {
            let rig = Rig::new();
            rig.bus.heartbeat(0, 0);
            if committed {
                rig.bus.script().committed.insert(place(Topic::GpuTelemetry, 0), 1);
            }
            if has_state {
                rig.state(0, None);
            }
            let (logged, owned) = lines(|| rig.begin(0));
            let of_it = logged.iter().filter(|line| line.starts_with("WARN") && line.contains("all inputs are folded again"));
            assert_eq!(of_it.count(), usize::from(warns), "{logged:?}");
            assert_eq!(owned.positions().nth(3), Some(i64::from(has_state)));
        }
    }

    #[test]
    fn a_fold_takes_no_more_records_than_asked_for_and_counts_its_outputs() {
        let rig = Rig::new();
        let mut owned = rig.begin(0);
        let refused = rig.bus.put(Topic::GpuTelemetry, 0, 0, "team/one", "no JSON");
        owned.push(refused);
        rig.feed(&mut owned, 0, 130);
        assert!(!owned.is_dirty());
        let (mut sum, mut outputs) = (FoldCounts::default(), Vec::new());
        for (limit, records) in [(0, 0), (1, 1), (50, 50), (50, 2), (50, 0)] {
            let (folded, new_outputs) = rig.fold(&mut owned, limit);
            assert_eq!(folded.records, records, "at most {limit}");
            let letters = new_outputs.iter().filter(|output| *output.topic == *"eadt.dead-letters.v1").count();
            assert_eq!((folded.outputs, folded.dead_letters), (new_outputs.len() - letters, letters));
            assert_eq!(owned.is_dirty(), sum.records + records > 0);
            sum.records += records;
            sum.outputs += folded.outputs;
            sum.dead_letters += folded.dead_letters;
            outputs.extend(new_outputs);
        }
        assert_eq!((sum.records, sum.outputs, sum.dead_letters), (53, 4, 1));
        let windows = windows(&outputs);
        assert_eq!(windows.iter().map(|window| window.window_end).collect::<Vec<_>>(), [seconds(60), seconds(120)]);
        let metric = |name: &str| rig.bus.metric(&format!("eadt_processor_{name}"));
        assert_eq!((metric("windows_total"), metric("decisions_total")), (Some(2.0), Some(2.0)));
        assert_eq!(metric("dead_letters_total{reason=\"malformed\"}"), Some(1.0));
        assert_eq!(metric("events_total"), Some(53.0));
        assert_eq!(owned.state_size(), (1, 2));
    }

    #[test]
    fn an_older_record_that_was_sent_again_is_a_duplicate_and_any_other_is_a_dead_letter() {
        for (name, letters, duplicates) in [(header::SENT_AGAIN, 0, 2.0), ("eadt_other", 2, 0.0)] {
            for is_batch in [false, true] {
                let rig = Rig::new();
                let mut owned = rig.begin(0);
                rig.feed(&mut owned, 0, 30);
                let (sample, report) = (gpu("team/one", "GPU-1", 10), rank("team/one", 10));
                for (topic, value) in [(Topic::GpuTelemetry, &sample), (Topic::TrainingProgress, &report)] {
                    let record = rig.bus.append(topic, 0, 30, "team/one", Some(value.as_slice()), &[(name, "1")]);
                    if is_batch {
                        owned.push_batch(RecordBatch::pack(&[record]).unwrap());
                    } else {
                        owned.push(record);
                    }
                }
                rig.end(&mut owned);
                let (folded, _) = rig.fold(&mut owned, 100);
                assert_eq!((folded.records, folded.dead_letters), (14, letters), "{name} {is_batch}");
                assert_eq!(rig.bus.metric("eadt_processor_duplicates_total"), Some(duplicates), "{name} {is_batch}");
            }
        }
    }

    #[test]
    fn a_record_outside_its_keys_partition_is_counted_and_refused_if_the_settings_ask_for_it() {
        for (foreign, letters) in [(MisplacedRecordPolicy::Process, 0), (MisplacedRecordPolicy::DeadLetter, 26)] {
            let rig = Rig { foreign, ..Rig::new() };
            let home = eadt_bus::partition_for_key(b"team/one", crate::scripted::PARTITIONS);
            let mut owned = rig.begin(1 - home);
            let (logged, (folded, outputs)) = lines(|| {
                rig.feed(&mut owned, 0, 130);
                // A heartbeat belongs to no key.
                owned.push(rig.bus.heartbeat(1 - home, 130));
                rig.end(&mut owned);
                rig.fold(&mut owned, 1_000)
            });
            // Half of the 52 records are telemetry.
            for topic in ["gpu.telemetry.v1", "training.progress.v1"] {
                for metric in ["misplaced_records", "foreign_partition_records"] {
                    let name = format!("eadt_processor_{metric}_total{{topic=\"{topic}\"}}");
                    assert_eq!(rig.bus.metric(&name), Some(26.0), "{metric}, {foreign:?}");
                }
            }
            let warnings = logged.iter().filter(|line| line.starts_with("WARN") && line.contains("murmur2_random"));
            assert_eq!(warnings.count(), 2, "one a topic: {logged:?}");
            assert_eq!(folded.dead_letters, 2 * letters, "{foreign:?}");
            let refused: Vec<_> = outputs.iter().filter(|output| *output.topic == *"eadt.dead-letters.v1").collect();
            assert_eq!(refused.len(), 2 * letters);
            assert_eq!(windows(&outputs).is_empty(), letters > 0, "{foreign:?}");
        }
        let rig = Rig::new();
        let mut owned = rig.begin(eadt_bus::partition_for_key(b"team/one", crate::scripted::PARTITIONS));
        rig.feed(&mut owned, 0, 130);
        rig.fold(&mut owned, 1_000);
        assert_eq!(rig.bus.metric("eadt_processor_misplaced_records_total{topic=\"gpu.telemetry.v1\"}"), None);
    }

    #[test]
    fn a_commit_has_the_changed_state_once_and_the_input_positions_in_its_first_record() {
        let rig = Rig::new();
        let mut owned = rig.begin(1);
        let mut step = CommitStep::default();
        assert_eq!(owned.commit(&rig.names, &mut step), 0);
        assert!(step.outputs.is_empty() && step.positions.is_empty(), "nothing was folded");
        rig.feed(&mut owned, 0, 10);
        rig.fold(&mut owned, 100);
        let bytes = owned.commit(&rig.names, &mut step);
        let of =
            |output: &ProducerRecord| output.key.as_ref().map_or(0, Bytes::len) + output.value.as_ref().map_or(0, Bytes::len);
        assert_eq!(bytes, step.outputs.iter().map(of).sum::<usize>());
        assert!(bytes > 100, "{bytes}");
        assert_eq!(owned.state_bytes, bytes);
        assert!(step.outputs.iter().all(|output| output.partition == Some(1)));
        let positions = |output: &ProducerRecord| {
            let text =
                output.headers.iter().find(|(name, _)| &**name == header::INPUT_POSITIONS).map(|(_, value)| value.clone())?;
            PartitionOffsets::from_json(std::str::from_utf8(&text).unwrap())
        };
        let recorded: Vec<_> = step.outputs.iter().map(positions).collect();
        let expected = PartitionOffsets { partition: 1, offsets: [0, 0, 0, 2, 2] };
        assert_eq!(recorded, [Some(expected), None]);
        let positions: Vec<_> = owned.inputs().iter().cloned().zip(expected.offsets).collect();
        assert_eq!(step.positions, positions);
        let mut again = CommitStep::default();
        assert_eq!((owned.commit(&rig.names, &mut again), owned.is_dirty()), (0, false));
        assert!(again.outputs.is_empty());
    }

    #[test]
    fn what_is_read_waits_with_its_size_and_what_is_of_no_input_is_passed_over() {
        let rig = Rig::new();
        let mut owned = rig.begin(0);
        assert_eq!(owned.push(rig.bus.put(Topic::GpuTelemetry, 0, 5, "key", "value")), 8);
        assert_eq!(owned.push(rig.bus.put(Topic::TrainingProgress, 0, 5, "k", "v")), 2);
        assert_eq!(owned.push(rig.bus.put(Topic::GpuTelemetry, 1, 5, "other", "partition")), 0);
        assert_eq!(owned.push(rig.bus.put(Topic::Decisions, 0, 5, "no", "input")), 0);
        assert_eq!(owned.buffered_bytes(), 8 + 256 + 2 + 256);
        rig.end(&mut owned);
        assert_eq!(rig.fold(&mut owned, 9).0.records, 2);
        assert_eq!(owned.buffered_bytes(), 0);
    }

    #[test]
    fn the_telemetry_ends_where_it_is_set_until_more_comes() {
        let rig = Rig::new();
        let mut owned = rig.begin(0);
        let (telemetry, progress) = (place(Topic::GpuTelemetry, 0), place(Topic::TrainingProgress, 0));
        assert_eq!(owned.telemetry_end(), None);
        owned.on_partition_end(&progress, 9);
        assert_eq!(owned.telemetry_end(), None, "of another input");
        owned.on_partition_end(&telemetry, 4);
        assert_eq!(owned.telemetry_end(), Some(4));
        owned.push(rig.bus.put(Topic::TrainingProgress, 0, 5, "k", "v"));
        assert_eq!(owned.telemetry_end(), Some(4));
        owned.push(rig.bus.put(Topic::GpuTelemetry, 0, 5, "k", "v"));
        assert_eq!(owned.telemetry_end(), None);
        assert_eq!(owned.positions().collect::<Vec<_>>(), [0, 0, 0, 0, 0]);
    }

    #[test]
    fn inputs_far_ahead_are_paused_by_the_partitions_own_member() {
        let rig = Rig::new();
        let mut owned = rig.begin(0);
        owned.push(rig.bus.put(Topic::GpuTelemetry, 0, 5, "key", "value"));
        owned.apply_backpressure(&mut rig.bus.clone(), 263).unwrap();
        assert_eq!(rig.bus.script().paused, [("pause", place(Topic::GpuTelemetry, 0))]);
    }

    #[test]
    fn an_input_that_may_go_on_while_it_is_paused_is_waited_for() {
        let rig = Rig::new();
        let mut owned = rig.begin(0);
        owned.push(rig.bus.put(Topic::GpuTelemetry, 0, 5, "key", "value"));
        owned.push(rig.bus.put(Topic::TrainingProgress, 0, 9, "key", "value"));
        rig.end(&mut owned);
        assert_eq!(owned.telemetry_end(), Some(1));
        owned.apply_backpressure(&mut rig.bus.clone(), 263).unwrap();
        assert_eq!(owned.telemetry_end(), None, "paused");
        assert_eq!(rig.fold(&mut owned, 9).0.records, 1, "progress of later may come after telemetry that was not read");
        owned.apply_backpressure(&mut rig.bus.clone(), 263).unwrap();
        assert_eq!(rig.fold(&mut owned, 9).0.records, 0, "resumed, and nothing is known of it yet");
        owned.on_partition_end(&place(Topic::GpuTelemetry, 0), 1);
        assert_eq!((rig.fold(&mut owned, 9).0.records, owned.telemetry_end()), (1, Some(1)));
    }

    #[test]
    fn state_and_outputs_of_a_partition_are_distinguished_from_others() {
        for (key, own) in
            [("#", true), ("team/one#0", true), ("#models//power/A100", true), ("#cluster//", false), ("#gpu//x", false)]
        {
            assert_eq!(<PartitionTask as StageRecords>::is_state_key(key), own, "{key}");
        }
        let offsets = PartitionOffsets { partition: 3, offsets: [1, 2, 3, 4, 5] };
        assert_eq!(PartitionTask::parse_state_offsets(3, &offsets.to_json()), Some(offsets));
        assert_eq!(
            (PartitionTask::parse_state_offsets(2, &offsets.to_json()), PartitionTask::parse_state_offsets(3, "{}")),
            (None, None)
        );
        let output = |headers: &[(&str, &str)]| ScriptedBus::default().append(Topic::Decisions, 3, 0, "", None, headers);
        assert_eq!(PartitionTask::emitted(&output(&[(header::INPUT_POSITIONS, &offsets.to_json())])), Some((3, offsets)));
        assert_eq!(PartitionTask::emitted(&output(&[(header::INPUT_POSITIONS, "{\"efficiency.windows.v1\":[1]}")])), None);
        assert_eq!(PartitionTask::emitted(&output(&[])), None);
        assert_eq!([0, 1, 2].map(PartitionTask::state_partition), [0, 1, 2], "each partition has its own state");
    }
}
