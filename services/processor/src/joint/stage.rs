//! The stage while it runs here: its restored state, its merge, its fold.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use eadt_bus::{
    Bus, BusError, Isolation, Member, Outgoing, Polled, Reader, Record, Remedy, Result, Start, Step, TopicPartition, Watermarks,
    chaos, read_to_end,
};
use eadt_core::Merge;
use eadt_core::joint::{Event, Joint};
use eadt_schemas::decode::{Refusal, decode};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Action, DeadLetterReason, Decision, EfficiencyWindow};
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_service::Shutdown;

use super::PARTITION;
use super::kind::Kind;
use crate::codec::Decoded;
use crate::outputs::Names;
use crate::owned::{BOOKKEEPING, balance, size};
use crate::restore::{self, Marks, Said, Stand};
use crate::service::Service;

/// The inputs, in the order of ties: what is in force at a time is known before the windows that end with it.
const INPUTS: [Topic; 4] = [Topic::Workloads, Topic::Actuations, Topic::Models, Topic::EfficiencyWindows];
/// Records taken from the bus at once.
const BATCH: usize = 4096;
/// Longest wait for the next record.
const POLL: Duration = Duration::from_millis(5);
/// Outputs that are committed at once.
const MAX_OUTPUTS: usize = 8_192;
/// Records at the end of each partition among which a first start looks for windows that are still worth a decision.
const RECENT: i64 = 2_000;

/// A record's content.
#[derive(Debug)]
enum Head {
    Window(Box<EfficiencyWindow>),
    Input(Box<Decoded>),
    Refused(Refusal),
}

impl Head {
    fn of(topic: Topic, kind: Option<&str>, value: Option<&[u8]>) -> Self {
        if topic != Topic::EfficiencyWindows {
            return Self::Input(Box::new(Decoded::of(topic, kind, value)));
        }
        let expected = EventType::EfficiencyWindow.name();
        let refused = |reason, detail| Self::Refused(Refusal { reason, field: None, detail });
        match (kind, value) {
            (Some(kind), _) if kind != expected => {
                let kind: String = kind.chars().take(100).collect();
                let detail = format!("an event of type {kind:?} does not belong into {topic}, which holds {expected}");
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
pub struct Stage<K: Kind> {
    inputs: Vec<(Topic, TopicPartition)>,
    reader: Box<dyn Reader>,
    merge: Merge<Record>,
    heads: Vec<Head>,
    paused: Vec<bool>,
    state: K::Fold,
    counted: <K::Fold as Joint>::Tally,
    outputs: Vec<Outgoing>,
    /// Outputs that are there already, of a step whose state is not.
    there: Said,
    said: Vec<Decision>,
    polled: Vec<Polled>,
}

impl<K: Kind> Stage<K> {
    /// Restores the stage from what was committed, and begins to read there.
    pub fn begin(service: &Service, member: &mut dyn Member, names: &Names, kind: &K) -> Result<Self> {
        let (bus, settings) = (&*service.bus, service.settings.fold());
        let inputs = inputs(bus, &service.settings.prefix)?;
        let places: Vec<TopicPartition> = inputs.iter().map(|(_, at)| at.clone()).collect();
        chaos::reach("restore.begun");
        // Positions first: state is written with them or after them, never before.
        let committed = member.committed(&places)?;
        chaos::reach("restore.positions");
        let mut there =
            restore::read::<Self>(bus, names, &[PARTITION], &service.shutdown)?.remove(&PARTITION).unwrap_or_default();
        let state = K::Fold::restore(settings.clone(), std::mem::take(&mut there.records)).map_err(|error| {
            let detail = format!("{error}; to give it up delete {} and the positions of the group", names.state);
            BusError::new(Remedy::Stop, format!("restoring {}", K::WORDS), detail)
        })?;
        // Positions without state are of no use: the tables are gone.
        let first = there.is_new() || committed.iter().all(Option::is_none);
        let recent = if first { recent::<K>(bus, &inputs, &service.settings, &service.shutdown)? } else { BTreeMap::new() };
        let mut positions = Vec::with_capacity(inputs.len());
        for ((topic, at), committed) in inputs.iter().zip(committed) {
            let Watermarks { low, high } = bus.watermarks(at)?;
            let position = there.position(*topic, at, committed, high);
            if let Some(position) = position.filter(|position| *position < low) {
                tracing::error!(%at, position, oldest = low, "retention has deleted records that {} had not folded", K::WORDS);
                kind.metrics().gaps.inc();
            }
            positions.push(position.or(recent.get(at).copied()).unwrap_or(low).max(low));
        }
        let from: Vec<_> = places.iter().zip(&positions).map(|(at, position)| (at.clone(), Start::At(*position))).collect();
        let reader = bus.reader(&from, Isolation::ReadCommitted)?;
        tracing::info!(members = state.size(), "{} runs here", K::WORDS);
        kind.metrics().members.set(state.size() as i64);
        Ok(Self {
            merge: Merge::new(&positions, settings.max_future),
            heads: inputs.iter().map(|_| Head::Input(Box::new(Decoded::Heartbeat))).collect(),
            paused: vec![false; inputs.len()],
            inputs,
            reader,
            counted: state.tally(),
            state,
            outputs: Vec::new(),
            there: there.said,
            said: Vec::new(),
            polled: Vec::new(),
        })
    }

    pub fn reads(&self, at: &TopicPartition) -> bool {
        self.inputs.iter().any(|(_, input)| input == at)
    }

    /// Takes in what there is, or waits a moment.
    pub fn read(&mut self) -> Result<()> {
        match self.reader.poll(BATCH, POLL, &mut self.polled) {
            Ok(()) => {}
            Err(error) if error.remedy == Remedy::Retry => {
                tracing::debug!(%error, "reading again");
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(error),
        }
        for item in self.polled.drain(..) {
            match item {
                Polled::Record(record) => {
                    let Some(input) = self.inputs.iter().position(|(_, at)| *at == record.at) else { continue };
                    self.merge.push(input, record.offset, record.stamp, size(&record) + BOOKKEEPING, record);
                }
                Polled::End { at, position } => {
                    if let Some(input) = self.inputs.iter().position(|(_, other)| *other == at) {
                        self.merge.end(input, position);
                    }
                }
                Polled::Assigned(_) | Polled::Revoked(_) | Polled::Lost(_) => {}
            }
        }
        Ok(())
    }

    /// Folds what can be folded; whether there was anything.
    pub fn fold(&mut self, names: &Names, kind: &K) -> bool {
        let mut folded = false;
        while self.outputs.len() < MAX_OUTPUTS {
            let (heads, inputs) = (&mut self.heads, &self.inputs);
            let next = self.merge.next(|input, record: &Record| {
                heads[input] = Head::of(inputs[input].0, record.header(header::TYPE), record.value.as_deref());
                heads[input].time()
            });
            let Some(next) = next else { break };
            folded = true;
            let key = next.record.key.as_deref().map_or(Some(""), |key| std::str::from_utf8(key).ok()).unwrap_or("\u{fffd}");
            let result = match &self.heads[next.input] {
                Head::Window(window) => self.state.fold(Event::Window(window), Some(key), next.stamp, &mut self.said),
                Head::Input(decoded) => self.state.fold(Event::Input(decoded.event()), Some(key), next.stamp, &mut self.said),
                Head::Refused(refusal) => Err(refusal.clone()),
            };
            if let Err(refusal) = result
                && !self.there.take_letter(&next.record)
            {
                tracing::warn!(at = %next.record.at, offset = next.offset, "refused: {refusal}");
                self.outputs.push(names.dead_letter(&next.record, &refusal, K::SERVICE));
            }
            if !self.said.is_empty() {
                let positions = self.positions_json();
                let there = &mut self.there;
                for decision in self.said.drain(..).filter(|decision| !there.take(&decision.id)) {
                    kind.metrics().decisions.inc();
                    if decision.action != Action::Maintain {
                        tracing::debug!(decision = decision.id, "{}", decision.reason);
                    }
                    self.outputs.push(names.decision(&decision, &positions));
                }
            }
        }
        if folded {
            let tally = self.state.tally();
            kind.folded(self.counted, tally);
            self.counted = tally;
            kind.metrics().members.set(self.state.size() as i64);
        }
        folded
    }

    /// Of each topic the offsets of the first records that are not folded, partition by partition.
    fn positions_json(&self) -> Bytes {
        let positions: Vec<i64> = self.merge.positions().collect();
        let mut text = String::from("{");
        for (n, topic) in INPUTS.iter().enumerate() {
            let own = self.inputs.iter().zip(&positions).filter(|((other, _), _)| other == topic);
            let offsets: Vec<String> = own.map(|(_, position)| position.to_string()).collect();
            let comma = if n > 0 { "," } else { "" };
            write!(text, "{comma}\"{topic}\":[{}]", offsets.join(",")).expect("writing to a String cannot fail");
        }
        text.push('}');
        text.into()
    }

    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Adds everything that was folded to a step: what was said, changed state, positions.
    pub fn commit(&mut self, names: &Names, partition: i32, step: &mut Step) {
        step.outputs.append(&mut self.outputs);
        let positions = self.positions_json();
        let changes = self.state.take_changes().into_iter();
        let before = step.outputs.len();
        step.outputs.extend(changes.map(|record| names.state(partition, record)));
        restore::mark(&mut step.outputs[before..], || positions);
        step.positions.extend(self.inputs.iter().map(|(_, at)| at.clone()).zip(self.merge.positions()));
    }

    /// Pauses inputs that are far ahead of the merge and resumes those that no longer are.
    pub fn balance(&mut self, buffer_bytes: usize) -> Result<()> {
        // Each input may hold its part of the budget, but at least one good batch.
        let budget = (buffer_bytes / self.inputs.len()).max(64 << 10);
        balance(&mut *self.reader, self.inputs.iter().map(|(_, at)| at), &self.merge, &mut self.paused, budget)
    }
}

/// Of each topic the offsets of the first records that are not folded, partition by partition: what [`Stage::positions_json`] wrote.
#[derive(Debug)]
pub struct Stands(BTreeMap<String, Vec<i64>>);

impl Stands {
    /// `None`: anything else, such as the first stage's.
    fn from_json(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }
}

impl Stand for Stands {
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

impl<K: Kind> Marks for Stage<K> {
    type Stand = Stands;
    const SERVICE: &'static str = K::SERVICE;
    const INPUTS: &'static [Topic] = &INPUTS;
    const OUTPUTS: &'static [Topic] = &[Topic::Decisions];
    const SHARED: &'static [(Topic, &'static str)] = &[];
    const HEAD: &'static str = K::STATE_PREFIX;

    fn keeps(key: &str) -> bool {
        key.starts_with(K::STATE_PREFIX)
    }

    fn stood(_: i32, text: &str) -> Option<Stands> {
        Stands::from_json(text)
    }

    fn said(record: &Record) -> Option<(i32, Stands)> {
        let id = record.header(header::ID)?;
        if !id.strip_suffix(K::CONTROLLER).is_some_and(|rest| rest.ends_with('/')) {
            return None;
        }
        Some((PARTITION, record.header(header::INPUT_POSITIONS).and_then(Stands::from_json)?))
    }

    fn folds(_: i32) -> i32 {
        PARTITION
    }
}

/// All partitions of the inputs. A model is written to every partition, and one of them is enough.
fn inputs(bus: &dyn Bus, prefix: &str) -> Result<Vec<(Topic, TopicPartition)>> {
    let specs = bus.topics(prefix)?;
    let mut inputs = Vec::new();
    for topic in INPUTS {
        let name = format!("{prefix}{topic}");
        let spec = specs.iter().find(|spec| *spec.name == *name).ok_or_else(|| {
            let detail = "there is no such topic; create the topics with eadt topics apply";
            BusError::new(Remedy::Stop, format!("reading topic {name}"), detail)
        })?;
        let partitions = if topic == Topic::Models { 1 } else { spec.partitions };
        inputs.extend((0..partitions).map(|partition| (topic, TopicPartition::new(spec.name.clone(), partition))));
    }
    Ok(inputs)
}

/// Where a first start begins to read windows: a decision about older ones would have expired by the stamp of the newest one.
fn recent<K: Kind>(
    bus: &dyn Bus,
    inputs: &[(Topic, TopicPartition)],
    settings: &crate::Settings,
    shutdown: &Shutdown,
) -> Result<BTreeMap<TopicPartition, i64>> {
    let mut from = Vec::new();
    let mut begin: BTreeMap<TopicPartition, i64> = BTreeMap::new();
    for (_, at) in inputs.iter().filter(|(topic, _)| *topic == Topic::EfficiencyWindows) {
        let marks = bus.watermarks(at)?;
        from.push((at.clone(), Start::At(marks.low.max(marks.high - RECENT))));
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
            format!("beginning {}", K::WORDS),
            "stopped before the newest windows were found",
        ));
    }
    let newest = stamps.iter().map(|(_, _, stamp)| *stamp).max();
    let worth = |stamp: EventTime| newest.is_some_and(|newest| newest.seconds_since(stamp) <= K::expiry_seconds(settings));
    for (at, offset, _) in stamps.into_iter().filter(|(_, _, stamp)| worth(*stamp)) {
        let first = begin.entry(at).or_insert(offset);
        *first = offset.min(*first);
    }
    Ok(begin)
}
