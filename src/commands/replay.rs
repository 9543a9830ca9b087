//! `eadt replay`: windows and decisions from an event log or an archive, at full speed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context, bail};
use bytes::Bytes;
use eadt_lake::{Archive, Limits, Row, Writer};
use eadt_processor::offline::{Counts, Fed, Raw, Replayed, Source, replay};
use eadt_recordings::LogReader;
use eadt_schemas::envelope::header;
use eadt_schemas::v1::{Decision, EfficiencyWindow};
use eadt_schemas::{Envelope, EventTime, EventType, Topic};

use crate::cli::{Align, Replay};
use crate::output::say;
use crate::settings::Settings;

/// Events handed from the reading thread to the folding one at a time.
const BATCH: usize = 1024;
/// Batches in flight: enough to hide a slow read, small beside everything else in memory.
const BATCHES: usize = 16;
/// Refused events that are named, for each reason; the rest is counted.
const REFUSALS_SHOWN: u64 = 10;

type Batch = anyhow::Result<Vec<Fed>>;

/// What a replay printed.
#[derive(Debug, serde::Serialize)]
struct Summary {
    events: u64,
    windows: u64,
    decisions: u64,
    refused: u64,
    late: u64,
    seconds: f64,
    events_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<Checked>,
}

/// How the outputs compare with the record's own.
#[derive(Debug, Default, serde::Serialize)]
struct Checked {
    windows_same: u64,
    decisions_same: u64,
    /// Workloads that had late events or tables, for which equality is not promised.
    excused: Vec<String>,
    differences: Vec<String>,
}

pub fn run(args: &Replay, settings: &Settings) -> anyhow::Result<()> {
    let mut processor = settings.processor.clone();
    if let Some(window) = args.window {
        processor.window_seconds = window;
    }
    processor.check().map_err(anyhow::Error::msg)?;
    let mut fold = processor.fold();
    fold.align_to_run = args.align == Align::Run;
    if let Some(name) = &args.controller {
        fold.controller_override = Some(crate::up::parse_controller(name)?);
    }

    let began = std::time::Instant::now();
    let mut sources: Vec<Source<anyhow::Error>> = Vec::new();
    let mut own = Own::default();
    let mut imported = true;
    for path in &args.logs {
        if path.is_dir() {
            let archive = Archive::find(path)?;
            let listing = archive.files()?;
            for gap in &listing.gaps {
                eprintln!("warning: {} partition {} has no offsets {} to {}", gap.0, gap.1, gap.2, gap.3);
            }
            if listing.files.is_empty() {
                bail!("{} holds no archive: expected topic=…/date=…/*.parquet", path.display());
            }
            imported &= false;
            for (topic, partition) in listing.partitions().into_keys() {
                if Topic::PROCESSOR_INPUTS.contains(&topic) {
                    let rows = archive.rows(&listing, topic, partition);
                    sources.push(spawn(move |send| read_rows(rows, &send)));
                }
            }
            if args.check {
                own.windows.extend(eadt_lake::read_windows(path)?.events);
                own.decisions.extend(eadt_lake::read_decisions(path)?.events);
            }
        } else {
            imported &= !has_stamps(path)?;
            let file = path.clone();
            sources.push(spawn(move |send| read_log(&file, &send)));
            if args.check {
                own.read_log(path)?;
            }
        }
    }
    if imported {
        // A recording of other people's events has no stamps of a log: its event times are all the time there is.
        fold.max_future = None;
        fold.idle_grace = None;
    }

    let progress = if std::io::stderr().is_terminal() {
        indicatif::ProgressBar::new_spinner().with_style(
            indicatif::ProgressStyle::with_template("{spinner} {msg}")
                .unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()),
        )
    } else {
        indicatif::ProgressBar::hidden()
    };
    let mut out = args.out.as_deref().map(Output::create).transpose()?;
    let (mut late, mut produced, mut refusals) = (0, Own::default(), BTreeMap::new());
    let counts: Counts = replay(&fold, sources, |partition, replayed| {
        match &replayed {
            Replayed::Window(window) => {
                late += window.late;
                progress.set_message(format!("{} {}", window.window_end, window.workload));
                progress.tick();
            }
            Replayed::Refused { topic, partition, offset, refusal } => {
                let count = refusals.entry(refusal.reason.name()).or_insert(0_u64);
                *count += 1;
                if *count <= REFUSALS_SHOWN {
                    tracing::warn!(%topic, partition, offset, reason = refusal.reason.name(), "refused: {refusal}");
                }
            }
            Replayed::Decision(_) => {}
        }
        if let Some(out) = &mut out {
            out.write(partition, &replayed)?;
        }
        if args.check {
            match replayed {
                Replayed::Window(window) => produced.windows.push(*window),
                Replayed::Decision(decision) => produced.decisions.push(*decision),
                Replayed::Refused { .. } => {}
            }
        }
        Ok(())
    })?;
    if let Some(out) = out {
        out.finish()?;
    }
    progress.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    for (reason, count) in &refusals {
        if *count > REFUSALS_SHOWN {
            tracing::warn!(reason, count, "refused; only the first {REFUSALS_SHOWN} were named");
        }
    }
    let summary = Summary {
        events: counts.events,
        windows: counts.windows,
        decisions: counts.decisions,
        refused: counts.refused,
        late,
        seconds,
        events_per_second: counts.events as f64 / seconds.max(1e-9),
        check: args.check.then(|| compare(&own, &produced)),
    };
    print(args, &summary)?;
    if counts.events == 0 {
        bail!(
            "no telemetry, progress or workload events in {}",
            args.logs.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
        );
    }
    match &summary.check {
        Some(check) if !check.differences.is_empty() => {
            bail!("the replay differs from the record in {} place(s)", check.differences.len())
        }
        _ => Ok(()),
    }
}

fn print(args: &Replay, summary: &Summary) -> anyhow::Result<()> {
    if args.json {
        say!("{}", serde_json::to_string(summary)?);
        return Ok(());
    }
    say!(
        "{} events in {:.2} s ({:.0} events/s): {} windows, {} decisions, {} refused, {} late",
        summary.events,
        summary.seconds,
        summary.events_per_second,
        summary.windows,
        summary.decisions,
        summary.refused,
        summary.late
    );
    if let Some(out) = &args.out {
        say!("written to {}", out.display());
    }
    if let Some(check) = &summary.check {
        say!("check: {} windows and {} decisions are the same", check.windows_same, check.decisions_same);
        for workload in &check.excused {
            say!("check: {workload} had late events or tables: not compared");
        }
        for difference in check.differences.iter().take(20) {
            say!("check: {difference}");
        }
    }
    Ok(())
}

/// Runs a reader on a thread of its own; its events come out in order.
fn spawn(read: impl FnOnce(SyncSender<Batch>) -> anyhow::Result<()> + Send + 'static) -> Source<anyhow::Error> {
    let (send, receive) = sync_channel::<Batch>(BATCHES);
    std::thread::spawn(move || {
        let errors = send.clone();
        if let Err(error) = read(send) {
            // The receiver is gone only when the replay has ended already.
            errors.send(Err(error)).ok();
        }
    });
    Box::new(Batches { receive, current: Vec::new().into_iter() })
}

struct Batches {
    receive: Receiver<Batch>,
    current: std::vec::IntoIter<Fed>,
}

impl Iterator for Batches {
    type Item = anyhow::Result<Fed>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(fed) = self.current.next() {
                return Some(Ok(fed));
            }
            match self.receive.recv().ok()? {
                Ok(batch) => self.current = batch.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn read_rows(rows: eadt_lake::Rows, send: &SyncSender<Batch>) -> anyhow::Result<()> {
    let mut batch = Vec::with_capacity(BATCH);
    for row in rows {
        let row = row?;
        let raw = Raw {
            topic: row.topic,
            kind: row.header(header::TYPE),
            key: row.key.as_deref().unwrap_or_default(),
            value: row.value.as_deref(),
            stamp: row.stamp,
        };
        batch.push(Fed::new(raw, Some(row.partition), Some(row.offset)));
        if batch.len() == BATCH && send.send(Ok(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)))).is_err() {
            return Ok(());
        }
    }
    send.send(Ok(batch)).ok();
    Ok(())
}

fn open_log(path: &Path) -> anyhow::Result<LogReader<'static>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(LogReader::new(path.display().to_string(), file)?)
}

/// Whether the log's events carry the stamps of a log, judged by its first event.
fn has_stamps(path: &Path) -> anyhow::Result<bool> {
    Ok(open_log(path)?.next_event()?.is_some_and(|event| event.stamp.is_some()))
}

fn read_log(path: &Path, send: &SyncSender<Batch>) -> anyhow::Result<()> {
    let mut log = open_log(path)?;
    let mut batch = Vec::with_capacity(BATCH);
    while let Some(event) = log.next_event()? {
        let Some(topic) = event.topic().filter(|topic| Topic::PROCESSOR_INPUTS.contains(topic)) else { continue };
        let raw = Raw {
            topic,
            kind: Some(&event.kind),
            key: event.key.as_deref().unwrap_or(&event.subject).as_bytes(),
            value: event.value(),
            stamp: event.stamp.unwrap_or(event.time),
        };
        batch.push(Fed::new(raw, event.partition, event.offset));
        if batch.len() == BATCH && send.send(Ok(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)))).is_err() {
            return Ok(());
        }
    }
    send.send(Ok(batch)).ok();
    Ok(())
}

/// Windows and decisions in the archive's layout; offsets count from 0 in each partition.
struct Output {
    writer: Writer,
    next: BTreeMap<(Topic, i32), i64>,
    /// The greatest event time so far: the stamps of this output never fall.
    stamp: EventTime,
}

impl Output {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let filled = std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        if filled {
            bail!("{} is not empty: name a new folder, or delete it", path.display());
        }
        std::fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        let limits = Limits { age_micros: i64::MAX, ..Limits::default() };
        Ok(Self { writer: Writer::new(Archive::folder(path)?, limits), next: BTreeMap::new(), stamp: EventTime::MIN })
    }

    fn write(&mut self, partition: i32, replayed: &Replayed) -> anyhow::Result<()> {
        let (topic, key, value, envelope) = match replayed {
            Replayed::Window(window) => (
                Topic::EfficiencyWindows,
                &window.workload,
                serde_json::to_vec(window)?,
                envelope(&window.id, EventType::EfficiencyWindow, window.window_end, &window.workload),
            ),
            Replayed::Decision(decision) => (
                Topic::Decisions,
                &decision.workload,
                serde_json::to_vec(decision)?,
                envelope(&decision.id, EventType::Decision, decision.time, &decision.workload),
            ),
            Replayed::Refused { .. } => return Ok(()),
        };
        let offset = self.next.entry((topic, partition)).or_insert(0);
        self.stamp = self.stamp.max(envelope.time);
        let row = Row {
            topic,
            partition,
            offset: *offset,
            stamp: self.stamp,
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value: Some(value.into()),
            headers: envelope.headers().into_iter().map(|(name, value)| (Arc::from(name), Bytes::from(value))).collect(),
        };
        *offset += 1;
        self.writer.push(&row, self.stamp)?;
        while let Some((topic, partition)) = self.writer.due(self.stamp) {
            self.writer.roll(topic, partition)?;
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.writer.roll_all()?;
        Ok(())
    }
}

fn envelope(id: &str, kind: EventType, time: EventTime, subject: &str) -> Envelope {
    Envelope { id: id.to_owned(), source: "/processor".to_owned(), kind, time, subject: subject.to_owned() }
}

/// Windows and decisions, the record's own or the replay's.
#[derive(Debug, Default)]
struct Own {
    windows: Vec<EfficiencyWindow>,
    decisions: Vec<Decision>,
}

impl Own {
    fn read_log(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut log = open_log(path)?;
        while let Some(event) = log.next_event()? {
            match (event.topic(), event.value()) {
                (Some(Topic::EfficiencyWindows), Some(value)) => self.windows.push(eadt_schemas::decode(value)?),
                (Some(Topic::Decisions), Some(value)) => self.decisions.push(eadt_schemas::decode(value)?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The same sequence of ids and values for each key, up to the first window with late events, for which order is not promised.
///
/// Where the record ends its last windows were still open, so the replay may go on where the record has no more; but a record
/// that has windows of a workload has the decisions of these windows, too, and one that has none of a workload lacks them.
fn compare(own: &Own, produced: &Own) -> Checked {
    let mut checked = Checked::default();
    let windows = (groups(&own.windows, window_key), groups(&produced.windows, window_key));
    let decisions = (groups(&own.decisions, decision_key), groups(&produced.decisions, decision_key));
    for (key, mine) in &windows.1 {
        let recorded = windows.0.get(key).map_or(&[][..], Vec::as_slice);
        let disturbed = recorded.iter().position(|w| w.late > 0 || w.late_tables > 0);
        if let Some(first) = disturbed {
            checked.excused.push(format!("{key} from {} on", recorded[first].window_start));
        }
        let sure = &recorded[..disturbed.unwrap_or(recorded.len())];
        checked.windows_same += same("window", key, sure, mine, |w| &w.id, &mut checked.differences);
        if recorded.is_empty() {
            checked.differences.push(format!("the record has no windows of {key}, the replay {}", mine.len()));
        }
        let mine = decisions.1.get(key).map_or(&[][..], Vec::as_slice);
        let recorded = decisions.0.get(key).map_or(&[][..], Vec::as_slice);
        let end = sure.iter().map(|w| w.window_end).max().unwrap_or(EventTime::MIN);
        let due = mine.partition_point(|d| d.time <= end);
        let sure = &recorded[..recorded.partition_point(|d| d.time <= end)];
        checked.decisions_same += same("decision", key, sure, mine, |d| &d.id, &mut checked.differences);
        if sure.len() < due {
            let at = mine[sure.len()].time;
            checked.differences.push(format!("the record lacks {} decision(s) of {key}, the first at {at}", due - sure.len()));
        }
    }
    for (key, recorded) in &windows.0 {
        if !windows.1.contains_key(key) {
            checked.differences.push(format!("the replay has no windows of {key}, the record {}", recorded.len()));
        }
    }
    if checked.windows_same == 0 && checked.differences.is_empty() {
        let why = if own.windows.is_empty() { "the record holds no windows" } else { "every window had late events" };
        checked.differences.push(format!("nothing could be compared: {why}"));
    }
    checked
}

/// The workload; of a device without one, its name, because all of them stand under `gpus`.
fn window_key(window: &EfficiencyWindow) -> &str {
    match window.id.find("/tumbling/") {
        Some(end) if !window.workload.contains('/') => &window.id[..end],
        _ => &window.workload,
    }
}

fn decision_key(decision: &Decision) -> &str {
    &decision.workload
}

fn groups<T>(events: &[T], key: impl Fn(&T) -> &str) -> BTreeMap<&str, Vec<&T>> {
    let mut map: BTreeMap<&str, Vec<&T>> = BTreeMap::new();
    for event in events {
        map.entry(key(event)).or_default().push(event);
    }
    map
}

fn same<T: PartialEq + serde::Serialize>(
    what: &str,
    workload: &str,
    recorded: &[&T],
    mine: &[&T],
    id: impl Fn(&T) -> &String,
    differences: &mut Vec<String>,
) -> u64 {
    let bytes = |event: &T| serde_json::to_string(event).unwrap_or_default();
    let mut count = 0;
    for (index, record) in recorded.iter().enumerate() {
        match mine.get(index) {
            Some(event) if bytes(event) == bytes(record) => count += 1,
            Some(event) => {
                differences.push(format!(
                    "{what} {index} of {workload}:\n  record {} {}\n  replay {} {}",
                    id(record),
                    bytes(record),
                    id(event),
                    bytes(event)
                ));
                return count;
            }
            None => {
                differences.push(format!("{what} {index} of {workload} ({}) is missing from the replay", id(record)));
                return count;
            }
        }
    }
    count
}
