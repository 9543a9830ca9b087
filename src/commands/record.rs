//! `eadt record`: events from the bus into an event log, each partition in the order that the processor folds it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::BufWriter;
use std::time::Duration;

use anyhow::Context;
use eadt_bus::{Bus, IsolationLevel, PollEvent, StartOffset, TopicPartition};
use eadt_core::InputMerge;
use eadt_core::merge::MergedRecord;
use eadt_recordings::{Compression, LogWriter};
use eadt_schemas::counts::counted;
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, EventType, LoggedEvent, Topic};
use eadt_service::Shutdown;

use super::{logged, partitions, topic_of};
use crate::atomic_file::AtomicFile;
use crate::cli::RecordArgs;
use crate::output::print_line;
use crate::settings::ProgramSettings;

/// Summary of a recording.
#[derive(Debug, Default, serde::Serialize)]
struct RecordSummary {
    events: u64,
    /// Records whose value is not JSON: dead letters of malformed events. An event log cannot hold them; the archive does.
    not_json: u64,
}

pub fn run(args: &RecordArgs, bus: &dyn Bus, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let everything: Vec<Topic> = Topic::PROCESSOR_INPUTS
        .into_iter()
        .chain(Topic::ALL.into_iter().filter(|topic| {
            !Topic::PROCESSOR_INPUTS.contains(topic) && !matches!(topic, Topic::ProcessorState | Topic::SimulatorState)
        }))
        .collect();
    let mut topics = if args.topics.is_empty() { everything.clone() } else { args.topics.clone() };
    topics.sort_by_key(|topic| everything.iter().position(|t| t == topic));
    let from = partitions(bus, &settings.topics, &topics, StartOffset::Earliest)?;
    let ends: HashMap<TopicPartition, i64> =
        from.iter().map(|(at, _)| Ok((at.clone(), bus.watermarks(at)?.high))).collect::<Result<_, eadt_bus::BusError>>()?;

    let (target, compression) = AtomicFile::event_log(&args.out, &[], args.force)?;
    let mut sink = EventLogSink::open(target, compression, args.follow)?;
    let mut recorded = RecordSummary::default();
    let max_future = match first_settings(bus, settings, shutdown)? {
        Some(recorded_settings) => settings
            .processor
            .as_recorded(&recorded_settings)
            .with_context(|| format!("the processor records {recorded_settings} as its settings"))?,
        None => settings.processor.clone(),
    };
    let max_future = max_future.fold_settings().max_future;
    let inputs = topics.iter().take_while(|topic| Topic::PROCESSOR_INPUTS.contains(topic)).count();
    let mut lanes: BTreeMap<i32, PartitionMerge> = BTreeMap::new();
    // Topics that have no such partition are at their end there.
    for (at, _) in &from {
        lanes.entry(at.partition).or_insert_with(|| PartitionMerge::new(inputs, topics.len(), max_future));
    }
    for (number, lane) in &mut lanes {
        for (topic, name) in topics.iter().enumerate() {
            if !ends.contains_key(&TopicPartition::new(format!("{}{name}", settings.topics.prefix), *number)) {
                lane.end(topic, 0);
            }
        }
    }
    // A log that is followed has no end.
    let meter = if args.follow { None } else { Some(super::meter_of_log(bus, &from)?) };
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let (mut batch, mut open) = (Vec::new(), ends.clone());
    while !shutdown.is_cancelled() && (args.follow || !open.is_empty()) {
        reader.poll(4096, Duration::from_millis(200), &mut batch)?;
        if let Some(meter) = &meter {
            meter.add(batch.len() as u64);
        }
        for polled in batch.drain(..) {
            match polled {
                PollEvent::Record(record) => {
                    let Some(topic) = topic_of(&record, &settings.topics.prefix) else { continue };
                    let Some(number) = topics.iter().position(|t| *t == topic) else { continue };
                    if !args.follow && record.offset >= ends[&record.at] {
                        open.remove(&record.at);
                    }
                    let event = logged(&record, topic);
                    if let Some(lane) = lanes.get_mut(&record.at.partition) {
                        lane.push(number, record.offset, record.stamp, event);
                    }
                }
                PollEvent::End { at, position } => {
                    let topic = Topic::from_name(&at.topic, &settings.topics.prefix);
                    if let (Some(number), Some(lane)) =
                        (topics.iter().position(|t| Some(*t) == topic), lanes.get_mut(&at.partition))
                    {
                        lane.end(number, position);
                    }
                    if ends.get(&at).is_some_and(|end| position >= *end) {
                        open.remove(&at);
                    }
                }
                _ => {}
            }
        }
        let before = recorded.events;
        for lane in lanes.values_mut() {
            while let Some(next) = lane.next() {
                match next.record {
                    Some(event) => {
                        sink.write(&event).with_context(|| format!("cannot write {}", args.out.display()))?;
                        recorded.events += 1;
                    }
                    None => recorded.not_json += 1,
                }
            }
        }
        if recorded.events > before {
            sink.flush().with_context(|| format!("cannot write {}", args.out.display()))?;
        }
    }
    sink.finish()?;
    drop(meter);
    if args.json {
        print_line!("{}", serde_json::to_string(&recorded)?);
    } else {
        print_line!("{} in {}", counted(recorded.events, "event"), args.out.display());
        if recorded.not_json > 0 {
            print_line!("{} left out: no JSON value (dead letters of malformed events)", counted(recorded.not_json, "record"));
        }
    }
    Ok(())
}

/// Destination of events: a file that appears once it is complete, or, followed, one that is there from the start.
enum EventLogSink {
    AtTheEnd(AtomicFile, LogWriter<BufWriter<File>>),
    Visible(LogWriter<BufWriter<File>>),
}

impl EventLogSink {
    fn open(target: AtomicFile, compression: Compression, follow: bool) -> anyhow::Result<Self> {
        if follow {
            return Ok(Self::Visible(LogWriter::new(BufWriter::new(target.show()?), compression)?));
        }
        let log = LogWriter::new(target.writer()?, compression)?;
        Ok(Self::AtTheEnd(target, log))
    }

    fn write(&mut self, event: &LoggedEvent) -> std::io::Result<()> {
        let (Self::AtTheEnd(_, log) | Self::Visible(log)) = self;
        log.write(event)
    }

    /// Flushes, so that readers see the written records.
    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::AtTheEnd(..) => Ok(()),
            Self::Visible(log) => log.flush(),
        }
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::AtTheEnd(target, log) => target.finish(log.finish()?),
            Self::Visible(log) => Ok(log.finish()?.get_ref().sync_all()?),
        }
    }
}

/// Returns the processor's settings in the first window that names them.
fn first_settings(bus: &dyn Bus, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<Option<String>> {
    let from = partitions(bus, &settings.topics, &[Topic::EfficiencyWindows], StartOffset::Earliest)?;
    let mut open: HashSet<TopicPartition> = from.iter().map(|(at, _)| at.clone()).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let mut batch = Vec::new();
    while !open.is_empty() && !shutdown.is_cancelled() {
        reader.poll(256, Duration::from_millis(200), &mut batch)?;
        for polled in batch.drain(..) {
            match polled {
                PollEvent::Record(record) => {
                    if let Some(header_text) = record.header(header::SETTINGS) {
                        return Ok(Some(header_text.to_owned()));
                    }
                }
                PollEvent::End { at, .. } => drop(open.remove(&at)),
                _ => {}
            }
        }
    }
    Ok(None)
}

/// One partition of all topics. The processor's inputs are merged as in the processor, and the result is merged with the other
/// topics. So these cannot change the order in which a replay folds.
struct PartitionMerge {
    /// Number of the topics, the first ones, that are inputs.
    inputs: usize,
    folded: InputMerge<Option<LoggedEvent>>,
    all: InputMerge<Option<LoggedEvent>>,
}

impl PartitionMerge {
    fn new(inputs: usize, topics: usize, max_future: Option<i64>) -> Self {
        let merge = |number: usize| InputMerge::new(&vec![0; number], max_future);
        Self { inputs, folded: merge(inputs), all: merge(1 + topics - inputs) }
    }

    fn push(&mut self, topic: usize, offset: i64, stamp: EventTime, event: Option<LoggedEvent>) {
        match topic.checked_sub(self.inputs) {
            None => self.folded.push(topic, offset, stamp, 0, event),
            Some(other) => self.all.push(1 + other, offset, stamp, 0, event),
        }
    }

    fn end(&mut self, topic: usize, position: i64) {
        match topic.checked_sub(self.inputs) {
            None => self.folded.end(topic, position),
            Some(other) => self.all.end(1 + other, position),
        }
    }

    /// Returns the next record; without an event it is not JSON.
    fn next(&mut self) -> Option<MergedRecord<Option<LoggedEvent>>> {
        let time = |_: usize, event: &Option<LoggedEvent>| event.as_ref().and_then(event_time);
        while let Some(next) = self.folded.next(time) {
            self.all.push(0, next.offset, next.stamp, 0, next.record);
        }
        if self.folded.is_exhausted() {
            self.all.end(0, 0);
        }
        self.all.next(time)
    }
}

/// Returns the event time as the processor sees it: heartbeats and tombstones have none.
fn event_time(event: &LoggedEvent) -> Option<EventTime> {
    (event.data.is_some() && event.kind != EventType::Heartbeat.name()).then_some(event.time)
}
