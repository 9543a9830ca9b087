//! Records of a partition's state: how a commit writes them, and how they are read again.
//!
//! The first byte of every record names its form:
//!
//! - `{`: the first form, JSON. All small records have it, those of the joint stages included.
//! - 8: the present form of workloads, see [`wire`]; 2, 4 and 6 are those before it.
//! - 3: a piece of one of these, see [`pieces`].
//!
//! A newer release reads the state of an older one. An older release refuses a form that it does not know, whatever the record's
//! key. A JSON form may get fields that older releases can ignore. If the same bytes change their meaning, they get a form of
//! their own. Values are read back to the last bit.
//!
//! A workload's sources are written in blocks, because thousands of them in one record would exceed the log's message limit. A
//! block whose sources are too large for that is written in pieces.
//!
//! A sample of every kind of key and every form is kept beside the tests of this crate, and every release must read it.

mod pieces;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::partition::PartitionFold;
use crate::settings::FoldSettings;
use crate::window::are_whole;
use crate::workload::source::{GpuSource, RankSource};
use crate::workload::{WorkloadHead, WorkloadState};

/// First byte of the first form: a JSON object.
const JSON: u8 = b'{';
/// Most sources in one record.
pub const BLOCK: usize = 256;
/// Open windows of a workload become no more than this if their length is another one now: more is a year of every minute, and
/// would take minutes and gigabytes.
const MOST_WINDOWS: i64 = 1_000_000;
/// Key of what belongs to no workload. It is written with every step, as those of the other stages are that are no more than
/// their prefix.
pub const PARTITION_KEY: &str = "#";
/// Prefix of a model's key. A workload's name has one slash, so no key of a workload begins like this.
const MODEL_PREFIX: &str = "#models//";

/// Prefix of every key of the joint stage of the power budget, which keeps its state in the same topic.
pub const POWER_BUDGET_PREFIX: &str = "#cluster//";
/// Prefix of every key of the joint stage of GPU sharing, in the same topic.
pub const GPU_SHARING_PREFIX: &str = "#gpu//";

/// Returns whether a key is of a joint stage's state, which the first stage passes over.
pub fn is_of_joint_stage(key: &str) -> bool {
    [POWER_BUDGET_PREFIX, GPU_SHARING_PREFIX].iter().any(|prefix| key.starts_with(prefix))
}

/// One record of the state topic, to be written to the partition that it is the state of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateRecord {
    pub key: String,
    /// `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// State that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("state record {key:?} cannot be read: {detail}")]
    Unreadable { key: String, detail: String },
    #[error(
        "state record {key:?} has form {form}, which this release does not know: it was written by a newer release, start that one"
    )]
    Newer { key: String, form: u8 },
    #[error(
        "state record {key:?} is of a kind that this release does not know: it was written by a newer release, start that one"
    )]
    NewKind { key: String },
    #[error("state of workload {workload:?} is incomplete: {found} of {expected} records; the state topic has lost some")]
    Incomplete { workload: String, found: usize, expected: usize },
}

/// The first form. Every form is read into it.
#[derive(Deserialize)]
struct DecodedBlock {
    workload: String,
    block: u32,
    #[serde(default)]
    head: Option<WorkloadHead>,
    blocks: u32,
    gpus: Vec<GpuSource>,
    ranks: Vec<RankSource>,
}

fn key(workload: &str, block: u32) -> String {
    // Two names never meet: each key ends with exactly one block number that is no part of the name.
    format!("{workload}#{block}")
}

/// Encodes a value in the first form, that of small records.
pub fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("state has string keys and finite numbers")
}

/// Returns the byte of a form, and the value in postcard's encoding, of about `about` bytes.
fn encode(form: u8, value: &impl Serialize, about: usize) -> Vec<u8> {
    let mut begun = Vec::with_capacity(about);
    begun.push(form);
    postcard::to_extend(value, begun).expect("a vector takes everything")
}

/// Decodes a value, from all of the bytes after that of the form.
fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes are left over", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads a record of which [`json`] is the only form so far.
pub fn from_json<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, StateError> {
    match value.first() {
        Some(&JSON) => parse(key, value),
        Some(form) => Err(StateError::Newer { key: key.to_owned(), form: *form }),
        None => Err(StateError::Unreadable { key: key.to_owned(), detail: "it is empty".to_owned() }),
    }
}

fn parse<T: DeserializeOwned>(key: &str, json: &[u8]) -> Result<T, StateError> {
    serde_json::from_slice(json).map_err(|error| StateError::Unreadable { key: key.to_owned(), detail: error.to_string() })
}

/// A record of a workload.
enum StoredRecord {
    Block(Box<DecodedBlock>),
    Piece { workload: String, number: u32, of: u32, last: bool, bytes: Vec<u8> },
}

impl StoredRecord {
    fn read(key: &str, value: &[u8]) -> Result<Self, StateError> {
        match value.split_first() {
            Some((&pieces::FORM, rest)) => {
                let unreadable = |detail| StateError::Unreadable { key: key.to_owned(), detail };
                let piece = pieces::BlockPiece::read(rest).map_err(unreadable)?;
                let pieces::BlockPiece { workload, number, of, last, bytes } = piece;
                Ok(Self::Piece { workload: workload.to_owned(), number, of, last, bytes: bytes.to_vec() })
            }
            _ => DecodedBlock::read(key, value).map(|block| Self::Block(Box::new(block))),
        }
    }

    fn workload(&self) -> &str {
        match self {
            Self::Block(block) => &block.workload,
            Self::Piece { workload, .. } => workload,
        }
    }

    /// Returns the number of this record among the workload's records, and their total.
    fn number_and_total(&self) -> (u32, u32) {
        match self {
            Self::Block(block) => (block.block, block.blocks),
            Self::Piece { number, of, .. } => (*number, *of),
        }
    }
}

/// Returns the blocks of a workload, of all its records in order.
fn join_pieces(workload: &str, records: Vec<StoredRecord>) -> Result<Vec<DecodedBlock>, StateError> {
    let mut blocks = Vec::new();
    let mut whole = Vec::new();
    for record in records {
        match record {
            StoredRecord::Block(block) => blocks.push(*block),
            StoredRecord::Piece { number, last, bytes, .. } => {
                whole.extend(bytes);
                if last {
                    blocks.push(DecodedBlock::read(&key(workload, number), &std::mem::take(&mut whole))?);
                }
            }
        }
    }
    Ok(blocks)
}

impl DecodedBlock {
    fn read(key: &str, value: &[u8]) -> Result<Self, StateError> {
        let unreadable = |detail: String| StateError::Unreadable { key: key.to_owned(), detail };
        let bridged = |checked| wire::BridgedBlock { checked, power: Vec::new() };
        let before = |bridged| wire::CoarseBlock { bridged, coarse: Vec::new() };
        let read = match value.split_first() {
            Some((&wire::FORM, rest)) => wire::CoarseBlock::read(rest),
            Some((&wire::BRIDGED_FORM, rest)) => wire::BridgedBlock::read(rest).map(before),
            Some((&wire::CHECKED_FORM, rest)) => wire::CheckedBlock::read(rest).map(bridged).map(before),
            Some((&wire::BLOCK_FORM, rest)) => {
                let checked = |block| wire::CheckedBlock { block, checks: Vec::new() };
                wire::WireBlock::read(rest).map(checked).map(bridged).map(before)
            }
            _ => return from_json(key, value),
        };
        let wire::CoarseBlock { bridged, coarse } = read.map_err(unreadable)?;
        let wire::BridgedBlock { checked: wire::CheckedBlock { block: wire, checks }, power } = bridged;
        let read = wire.gpus.iter().map(wire::WireGpu::read).collect::<Result<Vec<_>, _>>();
        let mut gpus = read.map_err(|error| unreadable(error.to_string()))?;
        for (gpu, check) in gpus.iter_mut().zip(&checks) {
            check.restore(gpu);
        }
        for reading in &power {
            reading.restore(&mut gpus);
        }
        for counter in &coarse {
            counter.restore(&mut gpus);
        }
        Ok(Self {
            workload: wire.workload.to_owned(),
            block: wire.number,
            head: wire.head.map(|head| parse(key, head)).transpose()?,
            blocks: wire.of,
            gpus,
            ranks: wire
                .ranks
                .iter()
                .map(wire::WireRank::read)
                .collect::<Result<_, _>>()
                .map_err(|error| unreadable(error.to_string()))?,
        })
    }
}

/// Returns the blocks of a workload, encoded: [`BLOCK`] sources each, and its head with the first.
fn blocks(state: &WorkloadState) -> Vec<Vec<u8>> {
    let of = state.source_count().div_ceil(BLOCK).max(1) as u32;
    let block = |number: u32| {
        let from = number as usize * BLOCK;
        let slice = |len: usize, skip: usize| from.saturating_sub(skip).min(len)..(from + BLOCK).saturating_sub(skip).min(len);
        let head = (number == 0).then(|| json(&state.head));
        let gpus = &state.gpus[slice(state.gpus.len(), 0)];
        let block = wire::WireBlock {
            workload: &state.head.name,
            number,
            of,
            head: head.as_deref(),
            gpus: gpus.iter().map(wire::WireGpu::of).collect(),
            ranks: state.ranks[slice(state.ranks.len(), state.gpus.len())].iter().map(wire::WireRank::of).collect(),
        };
        let checked = wire::CheckedBlock { block, checks: gpus.iter().map(wire::WireCounterCheck::of).collect() };
        let bridged = wire::BridgedBlock { checked, power: wire::WireLastPower::of_gpus(gpus) };
        wire::CoarseBlock { bridged, coarse: wire::WireCoarseCounter::of_gpus(gpus) }.write()
    };
    (0..of).map(block).collect()
}

impl PartitionFold {
    /// Returns whether anything was folded that a commit would have to write.
    pub fn has_changes(&self) -> bool {
        !self.changed.is_empty() || !self.forgotten.is_empty() || !self.changed_models.is_empty()
    }

    /// Returns the records of everything that changed since the last call.
    pub fn take_changes(&mut self) -> Vec<StateRecord> {
        self.written_sources = self.workload_and_source_counts().1;
        let mut records = vec![StateRecord { key: PARTITION_KEY.to_owned(), value: Some(json(&self.head)) }];
        for name in std::mem::take(&mut self.changed_models) {
            let value = self.models.event(&name).map(json);
            records.push(StateRecord { key: format!("{MODEL_PREFIX}{name}"), value });
        }
        for (name, blocks) in std::mem::take(&mut self.forgotten) {
            records.extend((0..blocks).map(|block| StateRecord { key: key(&name, block), value: None }));
        }
        for i in std::mem::take(&mut self.changed) {
            let Some(state) = self.workloads[i].as_mut() else { continue };
            state.changed = false;
            debug_assert!(
                are_whole(&state.head.slice_edges, state.head.windows),
                "{}: {:?}",
                state.head.name,
                state.head.slice_edges
            );
            let before = state.blocks;
            let values = pieces::split_blocks(&state.head.name, blocks(state));
            state.blocks = values.len() as u32;
            let values = values.into_iter().map(Some).chain(std::iter::repeat(None));
            let numbers = 0..state.blocks.max(before);
            records.extend(numbers.zip(values).map(|(n, value)| StateRecord { key: key(&state.head.name, n), value }));
        }
        records
    }

    /// Returns the partition that these records describe; of several with one key the last counts.
    pub fn restore<K: Into<String>, V: AsRef<[u8]>>(
        settings: FoldSettings,
        records: impl IntoIterator<Item = (K, Option<V>)>,
    ) -> Result<Self, StateError> {
        let mut partition = Self::new(settings);
        let mut newest = BTreeMap::new();
        for (key, value) in records {
            newest.insert(key.into(), value);
        }
        let mut workloads: BTreeMap<String, Vec<StoredRecord>> = BTreeMap::new();
        for (key, value) in newest {
            let Some(value) = value.filter(|_| !is_of_joint_stage(&key)) else { continue };
            if key == PARTITION_KEY {
                partition.head = from_json(&key, value.as_ref())?;
                continue;
            }
            if key.starts_with(MODEL_PREFIX) {
                Arc::make_mut(&mut partition.models).put(&from_json(&key, value.as_ref())?);
                continue;
            }
            // As in MODEL_PREFIX: no workload is called so.
            if key.starts_with(PARTITION_KEY) && key.contains("//") {
                return Err(StateError::NewKind { key });
            }
            let stored = StoredRecord::read(&key, value.as_ref())?;
            workloads.entry(stored.workload().to_owned()).or_default().push(stored);
        }
        for (workload, mut records) in workloads {
            records.sort_by_key(StoredRecord::number_and_total);
            let expected = records[0].number_and_total().1 as usize;
            let found = records.len();
            let head_key = key(&workload, 0);
            let mut blocks = if found == expected { join_pieces(&workload, records)? } else { Vec::new() };
            let whole = |first: &mut DecodedBlock, blocks: usize| first.head.take().filter(|_| first.blocks as usize == blocks);
            let count = blocks.len();
            let Some(head) = blocks.first_mut().and_then(|first| whole(first, count)) else {
                return Err(StateError::Incomplete { workload, found, expected });
            };
            if !are_whole(&head.slice_edges, head.windows) {
                let detail = format!("its open windows do not follow each other: {:?}", head.slice_edges);
                return Err(StateError::Unreadable { key: head_key, detail });
            }
            let windows = (head.windows.size / partition.settings().window).saturating_mul(head.slice_edges.len() as i64);
            if windows > MOST_WINDOWS {
                let detail =
                    format!("its open windows would become {windows} of the present length, at most {MOST_WINDOWS} can be");
                return Err(StateError::Unreadable { key: head_key, detail });
            }
            let (mut gpus, mut ranks) = (Vec::new(), Vec::new());
            for block in blocks {
                gpus.extend(block.gpus);
                ranks.extend(block.ranks);
            }
            let mut state = WorkloadState::from_parts(head, gpus, ranks);
            state.blocks = expected as u32;
            partition.insert_restored(state);
        }
        partition.written_sources = partition.workload_and_source_counts().1;
        Ok(partition)
    }
}
