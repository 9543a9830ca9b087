//! One owned partition: its restored state, its merge, its fold.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use eadt_bus::{
    Bus, BusError, Member, Outgoing, Reader, Record, Remedy, Result, Start, Step, TopicPartition, Watermarks, chaos, read_to_end,
};
use eadt_core::{FoldSettings, Input, Merge, Output, Partition, Tally};
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, Topic};
use eadt_service::Shutdown;

use crate::codec::Decoded;
use crate::metrics::ProcessorMetrics;
use crate::outputs::Names;
use crate::positions::{INPUTS, Positions};

/// Newest outputs of a partition among which those of its last step are looked for first.
const NEWEST: i64 = 256;

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
    pub prefix: &'a str,
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
    said: BTreeSet<String>,
    scratch: Vec<Output>,
}

impl Owned {
    /// Restores partitions from what was committed, and begins to read there. All at once: what a client takes to begin to read, a
    /// tenth of a second, is taken once.
    pub fn begin(
        numbers: &[i32],
        member: &mut dyn Member,
        heard: EventTime,
        with: &Surroundings<'_>,
    ) -> Result<BTreeMap<i32, Self>> {
        let inputs = |number: &i32| {
            let number = *number;
            INPUTS.iter().map(move |topic| TopicPartition::new(format!("{}{topic}", with.prefix), number))
        };
        chaos::reach("restore.begun");
        // Positions first: state is written with them or after them, never before.
        let committed = member.committed(&numbers.iter().flat_map(inputs).collect::<Vec<_>>())?;
        chaos::reach("restore.positions");
        let own = |at: i32, _: &str, text: &str| Positions::from_json(text).filter(|stood| stood.partition == at);
        let states = read_state(with.bus, &with.names.state, numbers, with.shutdown, own)?;
        chaos::reach("restore.state");
        let stands = states.iter().filter_map(|(number, state)| Some((*number, state.stood?))).collect();
        let mut said = said_beyond(&stands, with)?;
        let mut owned = BTreeMap::new();
        for ((number, mut state), committed) in states.into_iter().zip(committed.chunks(INPUTS.len())) {
            state.said = said.remove(&number).unwrap_or_default();
            owned.insert(number, Self::restore(number, inputs(&number).collect(), committed, state, member, heard, with)?);
        }
        Ok(owned)
    }

    fn restore(
        number: i32,
        inputs: Vec<TopicPartition>,
        committed: &[Option<i64>],
        state: State<Positions>,
        member: &mut dyn Member,
        heard: EventTime,
        with: &Surroundings<'_>,
    ) -> Result<Self> {
        let Surroundings { bus, names, settings, metrics, .. } = *with;
        let State { records, stood, said } = state;
        let first_start = committed.iter().all(Option::is_none);
        if !first_start && records.is_empty() {
            tracing::warn!(partition = number, topic = %names.state, "positions were committed but the state is gone: windows begin anew");
        }
        let mut partition = Partition::restore(settings.clone(), records).map_err(|error| {
            let detail = format!("{error}; to give it up delete {} and the group's positions", names.state);
            BusError::new(Remedy::Stop, format!("restoring partition {number}"), detail)
        })?;
        let mut positions = Vec::with_capacity(inputs.len());
        let mut gap = false;
        for (input, (at, committed)) in inputs.iter().zip(committed.iter().copied()).enumerate() {
            let Watermarks { low, high } = bus.watermarks(at)?;
            let stands = stood.map(|stood| stood.offsets[input]);
            let committed =
                if said.is_empty() { committed.map(|committed| newest_position(at, committed, stands, high)) } else { stands };
            if let Some(committed) = committed.filter(|committed| *committed < low) {
                tracing::error!(%at, committed, oldest = low, "retention has deleted records that were not folded yet; the windows concerned are marked as gaps");
                metrics.gaps.inc();
                gap = true;
            }
            if committed.is_some() && chaos::is_off("rewind") {
                positions.push(bus.watermarks(at)?.high);
                continue;
            }
            positions.push(committed.map_or(low, |committed| committed.max(low)));
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
            said,
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
                    Output::Window(window) if self.said.remove(&window.id) => {}
                    Output::Decision(decision) if self.said.remove(&decision.id) => {}
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
                        outputs.push(names.dead_letter(&record, &refusal));
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
        if let Some(last) = step.outputs[before..].last_mut() {
            last.headers.push((Arc::from(header::INPUT_POSITIONS), self.positions_json()));
        }
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
pub fn balance<'a>(
    reader: &mut dyn Reader,
    inputs: impl Iterator<Item = &'a TopicPartition>,
    merge: &Merge<Record>,
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

/// By partition the ids of windows and decisions that say of themselves that they came after where the state stands: their step lost its
/// state, and is done again but for them. A step that lost its outputs instead cannot be told.
fn said_beyond(stands: &BTreeMap<i32, Positions>, with: &Surroundings<'_>) -> Result<BTreeMap<i32, BTreeSet<String>>> {
    let mut said: BTreeMap<i32, BTreeSet<String>> = BTreeMap::new();
    if chaos::is_off("atomic-steps") {
        return Ok(said);
    }
    let mut open: Vec<TopicPartition> = [&with.names.windows, &with.names.decisions]
        .iter()
        .flat_map(|topic| stands.keys().map(|number| TopicPartition::new((*topic).clone(), *number)))
        .collect();
    let mut depth = NEWEST;
    // All of them at first; where every one of the newest came after the state, further back.
    while !open.is_empty() {
        let (mut from, mut whole) = (Vec::with_capacity(open.len()), BTreeSet::new());
        for at in &open {
            let Watermarks { low, high } = with.bus.watermarks(at)?;
            let start = low.max(high - depth);
            if start == low {
                whole.insert(at.clone());
            }
            from.push((at.clone(), Start::At(start)));
        }
        let mut reached = whole;
        let read = read_to_end(
            with.bus,
            &from,
            || with.shutdown.is_cancelled(),
            |record| {
                let number = record.at.partition;
                let positions = record.header(header::INPUT_POSITIONS).and_then(Positions::from_json);
                let stand = stands.get(&number);
                if let Some((positions, stand)) = positions.filter(|positions| positions.partition == number).zip(stand) {
                    if positions.is_beyond(stand) {
                        said.entry(number).or_default().extend(record.header(header::ID).map(ToOwned::to_owned));
                    } else {
                        reached.insert(record.at);
                    }
                }
                Ok::<_, BusError>(())
            },
        )?;
        if read.is_none() {
            return Err(BusError::new(Remedy::Retry, "restoring", "stopped before the newest outputs were read"));
        }
        open.retain(|at| !reached.contains(at));
        depth *= 8;
    }
    for (partition, said) in &said {
        tracing::warn!(
            partition,
            outputs = said.len(),
            "the state is behind what was said: a part of a step was lost, as where a broker forgot it; its events are folded again, and what was said is not repeated"
        );
    }
    Ok(said)
}

/// Where to go on with an input: where the group's position says, or where the state stands where that is further on and the input
/// reaches so far.
pub fn newest_position(at: &TopicPartition, committed: i64, stood: Option<i64>, high: i64) -> i64 {
    let Some(stood) = stood.filter(|stood| (committed + 1..=high).contains(stood)) else { return committed };
    tracing::warn!(
        %at,
        committed,
        stood,
        "the group's position is behind the state: a part of a step was lost, as where a broker forgot it; going on where the state stands"
    );
    stood
}

/// What was committed to a state partition.
#[derive(Debug)]
pub struct State<P> {
    /// The newest record of every key.
    pub records: Vec<(String, Option<Bytes>)>,
    /// Where the inputs stood at the newest step of which it is known.
    pub stood: Option<P>,
    /// Outputs that are there already, of a step whose state is not.
    said: BTreeSet<String>,
}

/// Reads these partitions of the state to their ends, in their order. `positions` reads the header of a partition's record with this
/// key, where it is one of the asker's.
pub fn read_state<P>(
    bus: &dyn Bus,
    topic: &Arc<str>,
    numbers: &[i32],
    shutdown: &Shutdown,
    positions: impl Fn(i32, &str, &str) -> Option<P>,
) -> Result<Vec<(i32, State<P>)>> {
    let mut newest: Vec<BTreeMap<String, Option<Bytes>>> = vec![BTreeMap::new(); numbers.len()];
    let mut stood: Vec<Option<P>> = numbers.iter().map(|_| None).collect();
    let from: Vec<_> = numbers.iter().map(|number| (TopicPartition::new(topic.clone(), *number), Start::Earliest)).collect();
    let read = read_to_end(
        bus,
        &from,
        || shutdown.is_cancelled(),
        |record| {
            let Some(i) = numbers.iter().position(|number| *number == record.at.partition) else { return Ok(()) };
            let key = String::from_utf8_lossy(record.key.as_deref().unwrap_or_default()).into_owned();
            let header = record.header(header::INPUT_POSITIONS);
            if let Some(newer) = header.and_then(|text| positions(record.at.partition, &key, text)) {
                stood[i] = Some(newer);
            }
            newest[i].insert(key, record.value);
            Ok::<_, BusError>(())
        },
    )?;
    if read.is_none() {
        return Err(BusError::new(Remedy::Retry, format!("restoring {topic}"), "stopped before the state was read"));
    }
    let states = newest.into_iter().zip(stood).map(|(newest, stood)| State {
        records: newest.into_iter().collect(),
        stood,
        said: BTreeSet::new(),
    });
    Ok(numbers.iter().copied().zip(states).collect())
}
