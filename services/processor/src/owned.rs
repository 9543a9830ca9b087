//! One owned partition: its restored state, its merge, its fold.

use std::collections::BTreeMap;

use bytes::Bytes;
use eadt_bus::{Bus, BusError, Member, Outgoing, Reader, Record, Remedy, Result, Step, TopicPartition, Watermarks, chaos};
use eadt_core::state::{CLUSTER_PREFIX, GPU_PREFIX, PARTITION_KEY};
use eadt_core::workload::UNASSIGNED;
use eadt_core::{FoldSettings, Input, Merge, Output, Partition, Tally};
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, Topic};
use eadt_service::Shutdown;

use crate::codec::Decoded;
use crate::metrics::ProcessorMetrics;
use crate::outputs::Names;
use crate::positions::{INPUTS, Positions};
use crate::restore::{self, Marks, Said, State};

/// What a fold of a partition asks for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Folded {
    /// Windows and decisions.
    pub outputs: usize,
    pub dead_letters: usize,
    pub records: usize,
}

/// What every partition is begun with.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    pub bus: &'a dyn Bus,
    pub names: &'a Names,
    pub settings: &'a FoldSettings,
    pub metrics: &'a ProcessorMetrics,
    pub shutdown: &'a Shutdown,
}

#[derive(Debug)]
pub struct Owned {
    pub number: i32,
    inputs: Vec<TopicPartition>,
    partition: Partition,
    merge: Merge<Record>,
    heads: Vec<Decoded>,
    paused: Vec<bool>,
    /// When the partition was heard last, by the heartbeats' clock.
    pub heard: EventTime,
    /// Where the input that heartbeats are appended to ends; `None` while there is more to read.
    telemetry_end: Option<i64>,
    counted: Tally,
    folded_since_commit: bool,
    /// Of its last part of a commit: what the next one will about take.
    pub state_bytes: usize,
    /// Outputs that are there already, of a step whose state is not.
    said: Said,
    scratch: Vec<Output>,
}

impl Marks for Owned {
    type Stand = Positions;
    const SERVICE: &'static str = "processor";
    const INPUTS: &'static [Topic] = &INPUTS;
    const OUTPUTS: &'static [Topic] = &[Topic::EfficiencyWindows, Topic::Decisions];
    const SHARED: &'static [(Topic, &'static str)] = &[(Topic::EfficiencyWindows, UNASSIGNED)];
    const HEAD: &'static str = PARTITION_KEY;

    fn keeps(key: &str) -> bool {
        !key.starts_with(CLUSTER_PREFIX) && !key.starts_with(GPU_PREFIX)
    }

    fn stood(number: i32, text: &str) -> Option<Positions> {
        Positions::from_json(text).filter(|stood| stood.partition == number)
    }

    fn said(record: &Record) -> Option<(i32, Positions)> {
        let positions = record.header(header::INPUT_POSITIONS).and_then(Positions::from_json)?;
        Some((positions.partition, positions))
    }

    fn folds(partition: i32) -> i32 {
        partition
    }
}

impl Owned {
    /// Restores partitions from what was committed, and begins to read there.
    pub fn begin(
        numbers: &[i32],
        member: &mut dyn Member,
        heard: EventTime,
        with: &Surroundings<'_>,
    ) -> Result<BTreeMap<i32, Self>> {
        let inputs = |number: &i32| {
            let number = *number;
            INPUTS.iter().map(move |topic| TopicPartition::new(format!("{}{topic}", with.names.prefix), number))
        };
        chaos::reach("restore.begun");
        // Positions first: state is written with them or after them, never before.
        let committed = member.committed(&numbers.iter().flat_map(inputs).collect::<Vec<_>>())?;
        chaos::reach("restore.positions");
        let mut states = restore::read::<Self>(with.bus, with.names, numbers, with.shutdown)?;
        let mut owned = BTreeMap::new();
        for (number, committed) in numbers.iter().zip(committed.chunks(INPUTS.len())) {
            if let Some(state) = states.remove(number) {
                owned.insert(*number, Self::restore(*number, inputs(number).collect(), committed, state, member, heard, with)?);
            }
        }
        Ok(owned)
    }

    fn restore(
        number: i32,
        inputs: Vec<TopicPartition>,
        committed: &[Option<i64>],
        mut state: State<Positions>,
        member: &mut dyn Member,
        heard: EventTime,
        with: &Surroundings<'_>,
    ) -> Result<Self> {
        let Surroundings { bus, names, settings, metrics, .. } = *with;
        let was_given_up = state.was_given_up;
        if was_given_up {
            tracing::warn!(partition = number, topic = %names.state, "the state is gone: windows begin anew where the positions stand");
            state.said = Said::default();
        } else if state.is_new() && committed.iter().any(Option::is_some) {
            tracing::warn!(partition = number, topic = %names.state, "positions were committed and the state is not there: everything is folded again");
        }
        let mut partition = Partition::restore(settings.clone(), std::mem::take(&mut state.records)).map_err(|error| {
            let detail = format!("{error}; to give it up delete {} and the group's positions", names.state);
            BusError::new(Remedy::Stop, format!("restoring partition {number}"), detail)
        })?;
        let mut positions = Vec::with_capacity(inputs.len());
        let mut gap = false;
        for ((topic, at), committed) in INPUTS.into_iter().zip(&inputs).zip(committed.iter().copied()) {
            let Watermarks { low, high } = bus.watermarks(at)?;
            let position = if was_given_up { committed } else { state.position(topic, at, committed, high) };
            if let Some(position) = position.filter(|position| *position < low) {
                tracing::error!(%at, position, oldest = low, "retention has deleted records that were not folded yet; the windows concerned are marked as gaps");
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
        tracing::info!(partition = number, ?positions, workloads = partition.size().0, "partition taken over");
        Ok(Self {
            number,
            merge: Merge::new(&positions, settings.max_future),
            heads: vec![Decoded::Heartbeat; inputs.len()],
            paused: vec![false; inputs.len()],
            counted: partition.tally(),
            inputs,
            partition,
            heard,
            telemetry_end: None,
            folded_since_commit: false,
            state_bytes: 0,
            said: state.said,
            scratch: Vec::new(),
        })
    }

    pub fn inputs(&self) -> &[TopicPartition] {
        &self.inputs
    }

    /// Of each input the offset of the first record that is not folded.
    pub fn positions(&self) -> impl Iterator<Item = i64> {
        self.merge.positions()
    }

    fn input(&self, at: &TopicPartition) -> Option<usize> {
        self.inputs.iter().position(|input| input == at)
    }

    /// Takes a record in; returns its size.
    pub fn push(&mut self, record: Record) -> usize {
        let Some(input) = self.input(&record.at) else { return 0 };
        let bytes = size(&record);
        if INPUTS[input] == Topic::GpuTelemetry {
            self.telemetry_end = None;
        }
        let next = record.offset + 1;
        self.merge.push(input, record.offset, record.stamp, bytes + BOOKKEEPING, record);
        if chaos::is_off("merge") {
            // As if the other inputs had nothing: nobody is waited for.
            (0..self.inputs.len()).for_each(|other| self.merge.end(other, if other == input { next } else { 0 }));
        }
        bytes
    }

    pub fn end(&mut self, at: &TopicPartition, position: i64) {
        if let Some(input) = self.input(at) {
            self.merge.end(input, position);
            if INPUTS[input] == Topic::GpuTelemetry {
                self.telemetry_end = Some(position);
            }
        }
    }

    /// Where the telemetry input ends; `None` while there is more to read.
    pub fn telemetry_end(&self) -> Option<i64> {
        self.telemetry_end
    }

    /// Folds what can be folded, at most `limit` records, and appends what is to be written.
    pub fn fold(&mut self, limit: usize, names: &Names, outputs: &mut Vec<Outgoing>, metrics: &ProcessorMetrics) -> Folded {
        let mut folded = Folded::default();
        while folded.records < limit {
            let heads = &mut self.heads;
            let next = self.merge.next(|input, record: &Record| {
                heads[input].renew(INPUTS[input], record.header(header::TYPE), record.value.as_deref());
                heads[input].event().time()
            });
            let Some(next) = next else { break };
            folded.records += 1;
            let record = next.record;
            let key = record.key.as_deref().map_or(Some(""), |key| std::str::from_utf8(key).ok());
            let input = Input {
                topic: INPUTS[next.input],
                stamp: next.stamp,
                key: key.or(Some("\u{fffd}")),
                event: self.heads[next.input].event(),
            };
            self.partition.fold(&input, &mut self.scratch);
            if self.scratch.is_empty() {
                continue;
            }
            let positions = self.positions_json();
            for output in self.scratch.drain(..) {
                match output {
                    Output::Window(window) if self.said.take(&window.id) => {}
                    Output::Decision(decision) if self.said.take(&decision.id) => {}
                    Output::Refused(_) if self.said.take_letter(&record) => {}
                    Output::Window(window) => {
                        metrics.windows.inc();
                        folded.outputs += 1;
                        outputs.push(names.window(&window, &positions));
                    }
                    Output::Decision(decision) => {
                        metrics.decisions.inc();
                        folded.outputs += 1;
                        outputs.push(names.decision(&decision, &positions));
                    }
                    Output::Refused(_) if chaos::is_off("dead-letters") => {}
                    Output::Refused(refusal) => {
                        metrics.dead_letter(refusal.reason);
                        folded.dead_letters += 1;
                        outputs.push(names.dead_letter(&record, &refusal, Self::SERVICE));
                    }
                }
            }
        }
        if folded.records > 0 {
            self.folded_since_commit = true;
            let tally = self.partition.tally();
            metrics.folded(self.counted, tally);
            self.counted = tally;
        }
        folded
    }

    fn positions_json(&self) -> Bytes {
        let mut stand = Positions::start(self.number);
        for (offset, position) in stand.offsets.iter_mut().zip(self.merge.positions()) {
            *offset = position;
        }
        stand.to_json().into()
    }

    /// Whether anything was folded since the last commit.
    pub fn is_dirty(&self) -> bool {
        self.folded_since_commit
    }

    /// Adds this partition's part of a commit: changed state, and the position of the first record not folded of every input.
    /// Returns the bytes of state.
    pub fn commit(&mut self, names: &Names, step: &mut Step) -> usize {
        if !self.folded_since_commit {
            return 0;
        }
        self.folded_since_commit = false;
        let (mut bytes, before) = (0, step.outputs.len());
        for record in self.partition.take_changes() {
            bytes += record.key.len() + record.value.as_ref().map_or(0, Vec::len);
            step.outputs.push(names.state(self.number, record));
        }
        restore::mark(&mut step.outputs[before..], || self.positions_json());
        step.positions.extend(self.inputs.iter().cloned().zip(self.merge.positions()));
        self.state_bytes = bytes;
        bytes
    }

    /// Pauses inputs that are far ahead of the merge and resumes those that no longer are.
    pub fn balance(&mut self, member: &mut dyn Member, budget: usize) -> Result<()> {
        balance(member, self.inputs.iter(), &self.merge, &mut self.paused, budget)
    }

    pub fn buffered(&self) -> usize {
        (0..self.inputs.len()).map(|i| self.merge.bytes(i)).sum()
    }

    pub fn size(&self) -> (usize, usize) {
        self.partition.size()
    }
}

/// What a record holds, in bytes.
pub fn size(record: &Record) -> usize {
    record.key.as_ref().map_or(0, Bytes::len) + record.value.as_ref().map_or(0, Bytes::len)
}

/// Headers and bookkeeping of a record take about as much as a small value, in bytes.
pub const BOOKKEEPING: usize = 256;

/// Pauses inputs of which the merge has more than `budget` bytes, and resumes those of which it has half of it.
pub fn balance<'a, T>(
    reader: &mut dyn Reader,
    inputs: impl Iterator<Item = &'a TopicPartition>,
    merge: &Merge<T>,
    paused: &mut [bool],
    budget: usize,
) -> Result<()> {
    for (i, (at, paused)) in inputs.zip(paused).enumerate() {
        let bytes = merge.bytes(i);
        if !*paused && bytes > budget {
            reader.pause(std::slice::from_ref(at))?;
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

    use eadt_bus::Polled;

    use super::*;

    /// Notes what is paused and resumed.
    #[derive(Debug, Default)]
    struct Noted(Vec<(&'static str, i32)>);

    impl Reader for Noted {
        fn poll(&mut self, _: usize, _: Duration, _: &mut Vec<Polled>) -> Result<()> {
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
        for (bytes, said) in [
            ([10, 0], &[] as &[_]),
            ([11, 10], &[("pause", 0)]),
            ([20, 11], &[("pause", 1)]),
            ([6, 6], &[]),
            ([5, 6], &[("resume", 0)]),
            ([10, 0], &[("resume", 1)]),
            ([11, 0], &[("pause", 0)]),
        ] {
            let mut merge = Merge::new(&[0, 0], None);
            for (input, bytes) in bytes.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
                merge.push(input, 0, EventTime::default(), bytes, ());
            }
            balance(&mut noted, inputs.iter(), &merge, &mut paused, 10).unwrap();
            assert_eq!(std::mem::take(&mut noted.0), said, "{bytes:?}");
        }
    }
}
