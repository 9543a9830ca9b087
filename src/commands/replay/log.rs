//! An event log: one thread cuts it into chunks, others take these apart.

use std::borrow::Cow;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::Context;
use eadt_processor::offline::RawRecord;
use eadt_recordings::{EventRef, LogChunk, LogChunks, LogError, LogReader};
use eadt_schemas::{EventType, Topic};
use eadt_service::tasks::REPLAY_READER;

use super::batches::{BatchReceiver, BatchSender, ReplayBatch, SharedOutputs};
use super::check::OutputHeaders;
use crate::progress::{MeteredReader, ProgressMeter};

/// More threads than this would only wait for the one that decompresses.
const MOST_LANES: usize = 4;

enum ChunkMessage {
    Chunk(LogChunk),
    Failed(LogError),
    End,
}

/// Settings of windows that do not name theirs: defaults of a release that did not write them.
pub const UNNAMED: &str = "{}";

/// Events among which the first window is looked for.
const HEAD_EVENTS: usize = 5_000_000;

/// Facts from the beginning of a log.
#[derive(Debug, Default)]
pub struct LogHead {
    /// The first event carries the stamp of a log.
    pub stamped: bool,
    /// The settings that the first window was made by.
    pub settings: Option<String>,
}

pub fn head(path: &Path) -> anyhow::Result<LogHead> {
    let mut log = LogReader::new(path.display().to_string(), open(path)?)?;
    let mut head = LogHead::default();
    for number in 0..HEAD_EVENTS {
        // An error in a line is for the replay to report.
        let Ok(Some(event)) = log.next_event() else { break };
        if number == 0 {
            head.stamped = event.stamp.is_some();
        }
        let window = event.topic() == Some(Topic::EfficiencyWindows);
        head.settings = event.settings.map(Cow::into_owned).or_else(|| window.then(|| UNNAMED.to_owned()));
        if !head.stamped || head.settings.is_some() {
            break;
        }
    }
    Ok(head)
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Events that are taken from a log beside its inputs.
#[derive(Debug, Clone, Copy)]
pub struct LogReadOptions {
    /// Its own windows and decisions.
    pub check: bool,
    /// The running totals of imports, to be compared with those of other logs.
    pub totals: bool,
    /// Read the claims to boards, to compare them within the log and with other logs.
    pub claims: bool,
}

/// Returns the log's events, and the other wanted facts.
pub fn read(path: &Path, wanted: LogReadOptions, own: SharedOutputs, meter: &ProgressMeter) -> anyhow::Result<BatchReceiver> {
    let (name, file) = (path.display().to_string(), MeteredReader::new(open(path)?, meter));
    let lanes = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_LANES);
    let (lanes, batches) = BatchReceiver::new(name.clone(), lanes, own);
    // One chunk of each lane waits, and one is parsed.
    let (give_back, used) = sync_channel(2 * lanes.len());
    let mut work = Vec::new();
    for lane in lanes {
        let (send, receive) = sync_channel(1);
        let give_back = give_back.clone();
        REPLAY_READER.thread(move || decode_chunks(&lane, &receive, &give_back, wanted))?;
        work.push(send);
    }
    REPLAY_READER.thread(move || distribute_chunks(name, file, &work, &used))?;
    Ok(batches)
}

/// Distributes the chunks in turn, until the receivers are gone.
fn distribute_chunks(
    name: String,
    file: impl Read + Send + 'static,
    work: &[SyncSender<ChunkMessage>],
    used: &Receiver<LogChunk>,
) {
    let mut chunks = LogChunks::new(name, file);
    for send in work.iter().cycle() {
        let mut chunk = used.try_recv().unwrap_or_default();
        let next = match &mut chunks {
            Ok(chunks) => chunks.next(&mut chunk),
            Err(error) => Err(error.clone()),
        };
        let (next, ended) = match next {
            Ok(true) => (ChunkMessage::Chunk(chunk), false),
            Ok(false) => (ChunkMessage::End, true),
            Err(error) => (ChunkMessage::Failed(error), true),
        };
        if send.send(next).is_err() || ended {
            return;
        }
    }
}

fn decode_chunks(lane: &BatchSender, work: &Receiver<ChunkMessage>, give_back: &SyncSender<LogChunk>, wanted: LogReadOptions) {
    while let Ok(work) = work.recv() {
        let mut batch = lane.batch();
        match work {
            ChunkMessage::Chunk(mut chunk) => {
                if let Err(error) = decode(&mut chunk, &mut batch, wanted) {
                    batch.error = Some(error);
                }
                (batch.lines, batch.events) = (chunk.lines(), chunk.good_count());
                // Returns memory only; it is dropped if the cutting thread has ended.
                give_back.try_send(chunk).ok();
            }
            ChunkMessage::Failed(error) => batch.error = Some(error.into()),
            ChunkMessage::End => batch.last = true,
        }
        let failed = batch.error.is_some();
        if !lane.send(batch) || failed {
            return;
        }
    }
}

/// Keeps the record in the slot, and the other wanted facts about its event.
fn keep(batch: &mut ReplayBatch, wanted: LogReadOptions, topic: Topic, event: &EventRef<'_>) {
    if wanted.check {
        batch.own.pass(topic, key(event).as_bytes(), event.partition, event.offset);
    }
    if wanted.totals {
        batch.own.imported_totals.add(topic, event);
    }
    if wanted.claims && topic == Topic::GpuTelemetry {
        batch.claim_board();
    }
    batch.keep();
}

fn decode(chunk: &mut LogChunk, batch: &mut ReplayBatch, wanted: LogReadOptions) -> anyhow::Result<()> {
    while chunk.advance() {
        if let Some(event) = chunk.likely_event()
            && let Some(topic) = input(&event)
            && batch.slot().refill_canonical(raw(topic, &event), event.partition, event.offset)
        {
            keep(batch, wanted, topic, &event);
            chunk.count_good();
            continue;
        }
        let event = match chunk.event() {
            Ok(event) => event,
            Err(error) if error.can_go_on => {
                batch.damaged += 1;
                batch.first_damage.get_or_insert(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if let Some(topic) = input(&event) {
            batch.slot().refill(raw(topic, &event), event.partition, event.offset);
            keep(batch, wanted, topic, &event);
        } else if event.topic().is_none() && EventType::from_name(&event.kind).is_none() {
            batch.own.pass_over(&event.kind);
        } else if wanted.check {
            let headers = OutputHeaders {
                positions: event.input_positions.as_deref(),
                reason: event.reason.as_deref(),
                settings: event.settings.as_deref(),
            };
            batch.own.read(event.topic(), event.value(), headers)?;
        }
    }
    Ok(())
}

/// Returns the input that an event belongs to; one of a version of its type that is not known here, too, so that it is refused as
/// a live processor refuses it.
fn input(event: &EventRef<'_>) -> Option<Topic> {
    let topic = event.topic().or_else(|| EventType::of_another_version(&event.kind)?.topic());
    topic.filter(|topic| Topic::PROCESSOR_INPUTS.contains(topic))
}

fn raw<'a>(topic: Topic, event: &'a EventRef<'_>) -> RawRecord<'a> {
    RawRecord {
        topic,
        kind: Some(&event.kind),
        key: key(event).as_bytes(),
        value: event.value(),
        stamp: event.stamp.unwrap_or(event.time),
        is_sent_again: event.is_sent_again,
    }
}

fn key<'a>(event: &'a EventRef<'_>) -> &'a str {
    event.key.as_deref().unwrap_or(&event.subject)
}
