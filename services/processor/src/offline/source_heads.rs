//! Choice of the next source in a replay.
//!
//! Sources are merged as the live inputs are, see [`eadt_core::merge`]: of each partition the head with the least event time.

use std::collections::BTreeMap;

use eadt_core::FoldSettings;
use eadt_core::merge::HeadSelector;
use eadt_core::partition::merge_key;
use eadt_schemas::EventTime;

use super::record::{RecordBatch, ReplayError, ReplayRecord, ReplaySource};
use crate::positions::INPUTS;

/// The position of a head: timed ones by merge key, others by stamp.
#[derive(Debug, Clone, Copy)]
struct SourceHead {
    partition: i32,
    order: usize,
    key: Option<EventTime>,
    stamp: EventTime,
}

impl SourceHead {
    fn of(record: &ReplayRecord, settings: &FoldSettings) -> Self {
        let order = INPUTS.iter().position(|topic| *topic == record.topic).unwrap_or(usize::MAX);
        let key = record.event.event().time().map(|time| merge_key(time, record.stamp, settings.max_future));
        Self { partition: record.partition, order, key, stamp: record.stamp }
    }
}

/// A source, and its records that wait.
struct OpenSource {
    source: Box<dyn ReplaySource>,
    batch: RecordBatch,
    at: usize,
    head: Option<SourceHead>,
}

impl OpenSource {
    fn open(source: Box<dyn ReplaySource>, settings: &FoldSettings) -> Result<Self, ReplayError> {
        let mut this = Self { source, batch: RecordBatch::default(), at: 0, head: None };
        this.find_head(settings)?;
        Ok(this)
    }

    fn find_head(&mut self, settings: &FoldSettings) -> Result<(), ReplayError> {
        while self.at >= self.batch.len() {
            self.at = 0;
            if !self.source.read(&mut self.batch)? {
                self.batch.clear();
                self.head = None;
                return Ok(());
            }
        }
        self.head = self.batch.get(self.at).map(|record| SourceHead::of(record, settings));
        Ok(())
    }
}

/// The source whose head is next in a partition.
#[derive(Debug, Default)]
struct PartitionMergeState {
    /// The sources whose heads are of this partition, in their order.
    members: Vec<usize>,
    /// The next source, and its rank among the partitions.
    next: Option<(EventTime, usize)>,
    /// That source, and the next head of all others. The others are compared again only if another source is next.
    run: Option<(usize, HeadSelector<(usize, usize)>)>,
}

/// The sources, and the positions of their heads.
pub(super) struct SourceHeads {
    sources: Vec<OpenSource>,
    turns: BTreeMap<i32, PartitionMergeState>,
}

impl SourceHeads {
    pub(super) fn open(sources: Vec<Box<dyn ReplaySource>>, settings: &FoldSettings) -> Result<Self, ReplayError> {
        let sources = sources.into_iter().map(|source| OpenSource::open(source, settings)).collect::<Result<Vec<_>, _>>()?;
        let mut turns: BTreeMap<i32, PartitionMergeState> = BTreeMap::new();
        for (i, source) in sources.iter().enumerate() {
            if let Some(head) = source.head {
                turns.entry(head.partition).or_default().members.push(i);
            }
        }
        for turn in turns.values_mut() {
            turn.choose(&sources);
        }
        Ok(Self { sources, turns })
    }

    /// Returns the source whose head is next; `None` at the end.
    pub(super) fn next(&self) -> Option<usize> {
        // One source needs no merge: its own order counts.
        if let [source] = &self.sources[..] {
            return source.head.map(|_| 0);
        }
        let ranks = self.turns.iter().filter_map(|(partition, turn)| Some((turn.next?, *partition)));
        ranks.min_by_key(|((rank, _), partition)| (*rank, *partition)).map(|((_, i), _)| i)
    }

    /// Returns the head of a source.
    pub(super) fn head(&self, i: usize) -> Option<&ReplayRecord> {
        let source = &self.sources[i];
        source.batch.get(source.at)
    }

    /// Goes on to the next record of a source.
    pub(super) fn advance(&mut self, i: usize, settings: &FoldSettings) -> Result<(), ReplayError> {
        let source = &mut self.sources[i];
        let before = source.head.map(|head| head.partition);
        source.at += 1;
        source.find_head(settings)?;
        if self.sources.len() == 1 {
            return Ok(());
        }
        let after = self.sources[i].head.map(|head| head.partition);
        if after == before {
            if let Some(turn) = before.and_then(|partition| self.turns.get_mut(&partition)) {
                turn.moved(i, &self.sources);
            }
            return Ok(());
        }
        if let Some(turn) = before.and_then(|partition| self.turns.get_mut(&partition)) {
            turn.members.retain(|member| *member != i);
            turn.choose(&self.sources);
        }
        if let Some(partition) = after {
            let turn = self.turns.entry(partition).or_default();
            turn.members.insert(turn.members.partition_point(|member| *member < i), i);
            turn.choose(&self.sources);
        }
        Ok(())
    }
}

impl PartitionMergeState {
    /// Finds the record that the live merge would take next.
    fn choose(&mut self, sources: &[OpenSource]) {
        let next = self.without(usize::MAX, sources).next();
        self.next = next.map(|(rank, (_, i))| (rank, i));
        self.run = self.next.map(|(_, i)| (i, self.without(i, sources)));
    }

    /// The same, once a source has moved on.
    fn moved(&mut self, i: usize, sources: &[OpenSource]) {
        let Some((_, mut turn)) = self.run.filter(|(running, _)| *running == i) else { return self.choose(sources) };
        offer(&mut turn, i, sources);
        match turn.next() {
            Some((rank, (_, next))) if next == i => self.next = Some((rank, i)),
            _ => self.choose(sources),
        }
    }

    /// Selects the next head of all sources but one.
    fn without(&self, i: usize, sources: &[OpenSource]) -> HeadSelector<(usize, usize)> {
        let mut turn = HeadSelector::default();
        for member in self.members.iter().filter(|member| **member != i) {
            offer(&mut turn, *member, sources);
        }
        turn
    }
}

fn offer(turn: &mut HeadSelector<(usize, usize)>, i: usize, sources: &[OpenSource]) {
    if let Some(head) = sources[i].head {
        turn.offer(head.key, head.stamp, (head.order, i));
    }
}
