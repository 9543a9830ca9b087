//! `eadt replay`: windows and decisions from an event log or an archive, at full speed.

mod apart;
mod archive;
mod batches;
mod check;
mod claims;
mod log;
mod output;
mod ranks;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use eadt_core::FoldSettings;
use eadt_lake::{Archive, ArchiveListing};
use eadt_processor::offline::{
    OpenWindowPolicy, ReplayCounts, ReplayOutput, ReplaySource, UnclosedWindows, folds_side_by_side, replay,
};
use eadt_schemas::Topic;
use eadt_schemas::counts::{counted, counted_as};
use eadt_schemas::decode::DecodeError;

use self::archive::ArchiveSource;
use self::batches::{BatchReceiver, SharedOutputs};
use self::check::{ComparisonReport, LeftOut, ProcessorOutputs, WindowOutput, compare, settings_hash};
use self::output::ReplayWriter;
use crate::cli::{ReplayArgs, WindowAlignment};
use crate::output::print_line;
use crate::progress::ProgressMeter;
use crate::settings::ProgramSettings;
use crate::usage_error;

pub use self::check::UncomparedDecisions;

/// Refused events that are named, for each reason; the rest is counted.
const REFUSALS_SHOWN: usize = 10;
/// Explanation of stale events, and of how a log comes to have them.
const STALE_EVENTS: &str = "refused (stale is what is older than the last event of its source: sort the log by time, and see that no \
     two recordings name one source alike)";
/// Explanation of late events, and of how a log of imports comes to have them.
const LATE_EVENTS: &str = "late events are of windows that were closed when they came; logs that were put behind one another (`cat`) are no longer \
     in order of time: name each of them, `eadt replay A B`, or import their files in one command";
/// Topics of partitions of archives that are each read by a thread of its own, at most; more are read by the thread that folds.
const READ_AHEAD_SOURCES: usize = 64;
/// Part of a thread's share of all bytes beyond which a partition is read ahead.
const MORE_THAN_SHARE: f64 = 1.1;
/// Workloads that are named whose windows are held open.
const HELD_SHOWN: usize = 10;

/// Output of a replay.
#[derive(Debug, serde::Serialize)]
struct ReplaySummary {
    events: u64,
    /// Tumbling ones.
    windows: u64,
    spans: u64,
    decisions: u64,
    /// Late and stale ones included.
    refused: u64,
    refused_by_reason: BTreeMap<&'static str, u64>,
    late: u64,
    stale: u64,
    duplicates: u64,
    late_tables: u64,
    /// Events that came after a look at the cluster that they belonged to.
    late_for_cluster: u64,
    /// Events of types that no input takes, by type; if the record is compared, of types that its own topics do not take, too.
    passed_over: BTreeMap<String, u64>,
    /// Lines and ends of logs that could not be read.
    left_out: LeftOut,
    /// Windows that a live processor would still hold open where the record ends.
    open_windows: u64,
    held_open: Vec<UnclosedWindows>,
    seconds: f64,
    events_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<ComparisonReport>,
}

pub fn run(args: &ReplayArgs, settings: &ProgramSettings) -> anyhow::Result<()> {
    let began = std::time::Instant::now();
    // One for each log or archive, because they are compared one after the other.
    let own: Vec<SharedOutputs> = args.logs.iter().map(|_| SharedOutputs::default()).collect();
    let inputs = args.logs.iter().map(|path| ReplayInput::open(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let meter = ProgressMeter::bytes(input_bytes(args, &inputs));
    let mut recorded = Vec::new();
    for input in &inputs {
        recorded.extend(input.settings()?);
    }
    let recorded_by = recorded.first().map(|first| settings_hash(first));
    let mut fold = fold(args, &settings.processor, &recorded)?;
    if inputs.iter().all(ReplayInput::is_imported) {
        // A recording of other people's events has no stamps of a log: its event times are all the time there is.
        fold.max_future = None;
        fold.idle_grace = None;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let sources = sources(args, inputs, &own, &meter, folds_side_by_side(&fold).then_some(threads))?;

    let mut ranges = apart::WorkloadTimeExtents::default();
    let mut out = args.out.as_deref().map(|out| ReplayWriter::create(out, &args.logs, args.force)).transpose()?;
    let (mut produced, mut refusals, mut held_open) = (ProcessorOutputs::default(), Refusals::default(), Vec::new());
    let at_the_end = if args.close { OpenWindowPolicy::Close } else { OpenWindowPolicy::AsLive };
    let replayed = replay(&fold, sources, at_the_end, threads, |positions, replayed| {
        match &replayed {
            ReplayOutput::Window(window) => {
                ranges.add(window);
            }
            ReplayOutput::Refused { topic, offset, refusal } => refusals.add(positions.partition, *topic, *offset, refusal),
            ReplayOutput::UnclosedWindows(held) => held_open.push(held.clone()),
            ReplayOutput::Decision(_) => {}
        }
        if let Some(out) = &mut out {
            out.write(positions.partition, &replayed).map_err(batches::carry)?;
        }
        if args.check {
            match replayed {
                ReplayOutput::Window(window) => {
                    produced.windows.push(WindowOutput { event: *window, positions: Some(*positions), settings: None });
                }
                ReplayOutput::Decision(decision) => produced.decisions.push(*decision),
                ReplayOutput::Refused { .. } | ReplayOutput::UnclosedWindows(_) => {}
            }
        }
        Ok(())
    })
    .map_err(batches::carried);
    // They may be the reason for an error.
    refusals.warn();
    let counts: ReplayCounts = replayed?;
    if let Some(out) = out {
        out.finish()?;
    }
    meter.finish();
    for line in ranges.describe() {
        tracing::warn!("{line}");
    }
    let seconds = began.elapsed().as_secs_f64();
    let totals =
        |(path, own): (&PathBuf, &SharedOutputs)| (path.display().to_string(), std::mem::take(&mut own.lock().imported_totals));
    let mut contradictions = ranks::describe_contradictions(&args.logs.iter().zip(&own).map(totals).collect::<Vec<_>>());
    let claims =
        |(path, own): (&PathBuf, &SharedOutputs)| (path.display().to_string(), std::mem::take(&mut own.lock().board_claims));
    contradictions.extend(claims::describe_contested_boards(&args.logs.iter().zip(&own).map(claims).collect::<Vec<_>>()));
    let mut recorded = ProcessorOutputs::default();
    recorded.settings = recorded_by;
    for own in &own {
        recorded.append(&mut own.lock());
    }
    if args.logs.len() > 1 {
        // Offsets of one log mean nothing in another.
        recorded.forget_positions();
    }
    for (kind, count) in &recorded.passed_over {
        tracing::warn!(%kind, count, "skipped: an event type that does not belong to the topic");
    }
    let check = args.check.then(|| compare(&mut recorded, &produced));
    let summary = ReplaySummary {
        events: counts.events,
        windows: counts.windows,
        spans: counts.spans,
        decisions: counts.decisions,
        refused: counts.refused,
        refused_by_reason: refusals.by_reason(),
        late: counts.late,
        stale: counts.stale,
        duplicates: counts.duplicates,
        late_tables: counts.late_tables,
        late_for_cluster: counts.late_for_power_budget,
        passed_over: std::mem::take(&mut recorded.passed_over),
        left_out: std::mem::take(&mut recorded.left_out),
        open_windows: held_open.iter().map(|held| held.windows).sum(),
        held_open,
        seconds,
        events_per_second: counts.events as f64 / seconds.max(1e-9),
        check,
    };
    print(args, &summary)?;
    if counts.events == 0 {
        bail!(
            "no telemetry, progress or workload events in {}",
            args.logs.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
        );
    }
    if let Some(failure) = summary.check.as_ref().and_then(ComparisonReport::failure) {
        bail!(failure);
    }
    if counts.windows == 0 {
        let why = match (summary.open_windows, counts.refused) {
            (0, 0) => "nothing in it opens a window".to_owned(),
            (0, refused) => counted_as(refused, "event was refused", "events were refused"),
            (open, _) => counted_as(
                open,
                "is held open where the record ends; `--close` closes it",
                "are held open where the record ends; `--close` closes them",
            ),
        };
        bail!("{} made no window: {why}", counted(counts.events, "event"));
    }
    if !contradictions.is_empty() {
        bail!(contradictions.join("; "));
    }
    // The record that a check compares with was made without them, too.
    match &summary.check {
        Some(check) => Ok(check.check_uncompared()?),
        None => summary.check_missing(),
    }
}

/// Input of a replay.
enum ReplayInput {
    Log(log::LogHead),
    Archive(Archive, ArchiveListing),
}

impl ReplayInput {
    fn open(path: &Path) -> anyhow::Result<Self> {
        if !path.is_dir() {
            return log::head(path).map(Self::Log);
        }
        let (archive, listing) = Archive::find_listed(path)?;
        super::warn_unrecorded(archive.place(), &listing, &Topic::ALL);
        super::warn_missing(listing.missing());
        Ok(Self::Archive(archive, listing))
    }

    /// Returns true if it has no stamps of a log.
    fn is_imported(&self) -> bool {
        matches!(self, Self::Log(head) if !head.stamped)
    }

    /// Returns the settings of the processor that recorded it.
    fn settings(&self) -> anyhow::Result<Option<String>> {
        match self {
            Self::Log(head) => Ok(head.settings.clone()),
            Self::Archive(archive, listing) => archive::settings(archive, listing),
        }
    }

    /// Returns the partitions of an archive's inputs.
    fn partitions(&self) -> Vec<(Topic, i32)> {
        let Self::Archive(_, listing) = self else { return Vec::new() };
        listing.partitions().into_keys().filter(|(topic, _)| Topic::PROCESSOR_INPUTS.contains(topic)).collect()
    }
}

/// Partitions of archives whose topics are read by threads of their own, ahead of the thread that folds.
enum ReadAhead {
    All,
    Only(BTreeSet<i32>),
}

impl ReadAhead {
    /// `threads` fold partitions side by side, and read what they fold; `None` if one folds all, and others read. A partition
    /// that is more than a thread's share of all would be folded alone in the end: it is read ahead.
    fn choose(bytes: &BTreeMap<i32, u64>, threads: Option<usize>) -> Self {
        let Some(threads) = threads.filter(|threads| bytes.len() >= *threads) else { return Self::All };
        let share = bytes.values().sum::<u64>() as f64 / threads as f64;
        let is_larger = |(partition, bytes): (&i32, &u64)| (*bytes as f64 > MORE_THAN_SHARE * share).then_some(*partition);
        Self::Only(bytes.iter().filter_map(is_larger).collect())
    }

    fn contains(&self, partition: i32) -> bool {
        match self {
            Self::All => true,
            Self::Only(partitions) => partitions.contains(&partition),
        }
    }
}

/// Returns the sources of logs and archives ([`ReadAhead`]).
fn sources(
    args: &ReplayArgs,
    inputs: Vec<ReplayInput>,
    own: &[SharedOutputs],
    meter: &ProgressMeter,
    threads: Option<usize>,
) -> anyhow::Result<Vec<Box<dyn ReplaySource>>> {
    let archived = inputs.iter().map(|input| input.partitions().len()).sum::<usize>();
    let mixes = inputs.iter().any(|input| matches!(input, ReplayInput::Log(_)));
    let read_ahead = if archived <= READ_AHEAD_SOURCES {
        ReadAhead::choose(&partition_bytes(&inputs), threads.filter(|_| !mixes))
    } else {
        ReadAhead::Only(BTreeSet::new())
    };
    let mut sources: Vec<Box<dyn ReplaySource>> = Vec::new();
    for ((path, own), input) in args.logs.iter().zip(own).zip(inputs) {
        let partitions = input.partitions();
        // The boards of a log with stamps were assigned by a collector.
        let claims = input.is_imported();
        let ReplayInput::Archive(archive, listing) = input else {
            let wanted = log::LogReadOptions { check: args.check, totals: args.logs.len() > 1, claims };
            sources.push(Box::new(log::read(path, wanted, own.clone(), meter)?));
            continue;
        };
        let bytes_meter = meter.clone();
        let archive = archive.observed(move |bytes| bytes_meter.add(bytes));
        let mut outputs = ProcessorOutputs::default();
        let missing: Vec<_> = listing.missing().filter(|(topic, ..)| is_read(args, *topic)).collect();
        outputs.left_out.removed_offsets = super::missing_offsets(missing.iter().copied());
        let unrecorded = listing.unrecorded.iter().filter(|(topic, _)| is_read(args, *topic));
        outputs.left_out.unrecorded_partitions = unrecorded.count() as u64;
        outputs.holes.extend(missing.iter().map(|(topic, partition, ..)| (*topic, *partition)));
        if args.check {
            archive::read_own(&archive, &listing, &mut outputs)?;
        }
        own.lock().append(&mut outputs);
        for (topic, partition) in partitions {
            let source = ArchiveSource::new(&archive, &listing, topic, partition, args.check.then(|| own.clone()));
            sources.push(if read_ahead.contains(partition) {
                let name = format!("{topic}-{partition} of {}", archive.place());
                Box::new(BatchReceiver::read_ahead(name, source, own.clone())?)
            } else {
                Box::new(source)
            });
        }
    }
    Ok(sources)
}

/// Returns the bytes of the inputs in each partition of the archives.
fn partition_bytes(inputs: &[ReplayInput]) -> BTreeMap<i32, u64> {
    let mut bytes = BTreeMap::new();
    for input in inputs {
        let ReplayInput::Archive(_, listing) = input else { continue };
        for file in listing.files.iter().filter(|file| Topic::PROCESSOR_INPUTS.contains(&file.name.topic)) {
            *bytes.entry(file.name.partition).or_default() += file.bytes;
        }
    }
    bytes
}

/// Returns whether a topic of an archive is read.
fn is_read(args: &ReplayArgs, topic: Topic) -> bool {
    Topic::PROCESSOR_INPUTS.contains(&topic) || args.check && ProcessorOutputs::TOPICS.contains(&topic)
}

/// Returns the bytes that are read: of event logs, and of the files of archives.
fn input_bytes(args: &ReplayArgs, inputs: &[ReplayInput]) -> u64 {
    let bytes = |(path, input): (&PathBuf, &ReplayInput)| match input {
        ReplayInput::Log(_) => std::fs::metadata(path).map_or(0, |found| found.len()),
        ReplayInput::Archive(_, listing) => {
            listing.files.iter().filter(|file| is_read(args, file.name.topic)).map(|file| file.bytes).sum()
        }
    };
    args.logs.iter().zip(inputs).map(bytes).sum()
}

/// Events that were refused, by reason and partition.
#[derive(Debug, Default)]
struct Refusals(BTreeMap<(&'static str, i32), RefusedEvents>);

/// The count of them, and the first.
#[derive(Debug, Default)]
struct RefusedEvents {
    count: u64,
    first: Vec<(Topic, Option<i64>, DecodeError)>,
}

impl Refusals {
    fn add(&mut self, partition: i32, topic: Topic, offset: Option<i64>, refusal: &DecodeError) {
        let events = self.0.entry((refusal.reason.name(), partition)).or_default();
        events.count += 1;
        if events.first.len() < REFUSALS_SHOWN {
            events.first.push((topic, offset, refusal.clone()));
        }
    }

    fn by_reason(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        for ((reason, _), events) in &self.0 {
            *counts.entry(*reason).or_default() += events.count;
        }
        counts
    }

    /// Names the first of each reason, partition by partition, independent of the order of folding.
    fn warn(&self) {
        for (reason, count) in self.by_reason() {
            let of_reason = self.0.iter().filter(|((other, _), _)| *other == reason);
            let first = of_reason.flat_map(|((_, partition), events)| events.first.iter().map(move |event| (*partition, event)));
            for (partition, (topic, offset, refusal)) in first.take(REFUSALS_SHOWN) {
                tracing::warn!(%topic, partition, offset, reason, "refused: {refusal}");
            }
            if count > REFUSALS_SHOWN as u64 {
                tracing::warn!(reason, count, "refused; only the first {REFUSALS_SHOWN} were named");
            }
        }
    }
}

/// Events that a replay left out: it ended in good order, and its windows and decisions are not of all that the record holds.
#[derive(Debug, thiserror::Error)]
#[error("windows and decisions lack what was left out: {0}")]
pub struct MissingEvents(String);

impl ReplaySummary {
    /// Returns an error if events were refused, late ones apart, which a live processor refuses, too, or could not be read. Stale
    /// ones count: their figures are counted nowhere, and no later event of their source repeats them.
    fn check_missing(&self) -> anyhow::Result<()> {
        let refused = self.refused.saturating_sub(self.late + self.stale);
        let LeftOut { damaged_lines, cut, removed_offsets, .. } = &self.left_out;
        let parts = [
            (refused, "event", "refused"),
            (self.stale, "stale event", STALE_EVENTS),
            (*damaged_lines, "damaged line", ""),
            (cut.len() as u64, "log", "cut off"),
            (*removed_offsets, "offset", "whose file was removed from the archive"),
        ];
        let shown = |(count, noun, rest): (u64, &str, &str)| format!("{} {rest}", counted(count, noun)).trim_end().to_owned();
        let parts: Vec<String> = parts.into_iter().filter(|(count, ..)| *count > 0).map(shown).collect();
        if parts.is_empty() { Ok(()) } else { Err(MissingEvents(parts.join(", ")).into()) }
    }
}

/// Returns how to fold: by the settings of the record, except those set by the caller.
fn fold(args: &ReplayArgs, settings: &eadt_processor::ProcessorSettings, recorded: &[String]) -> anyhow::Result<FoldSettings> {
    let mut processor = settings.clone();
    if let Some(first) = recorded.first() {
        if recorded.iter().any(|other| settings_hash(other) != settings_hash(first)) {
            tracing::warn!("the logs were made by different settings of the processor; those of the first count: {first}");
        }
        processor = settings.as_recorded(first).with_context(|| {
            format!("the record's processor had settings that this version does not know ({first}); use the version that made it")
        })?;
        processor.check().map_err(|refusal| anyhow!("the record has impossible settings of its processor: {refusal}"))?;
        if processor != *settings {
            let words = if first == "{}" { "its defaults" } else { first };
            tracing::info!("the record's processor was set by {words}, and so is this replay, but for what is set here");
        }
    }
    if let Some(window) = args.window {
        processor.window_seconds = window;
        processor.check().map_err(|refusal| usage_error::invalid("--window <SECONDS>", window, refusal))?;
    }
    let mut fold = processor.fold_settings();
    fold.align_to_run = args.align == WindowAlignment::Run;
    if let Some(name) = &args.controller {
        fold.controller_override = Some(name.parse()?);
    }
    Ok(fold)
}

fn outputs_text(windows: u64, spans: u64, decisions: u64) -> String {
    format!("{}, {}, {}", counted(windows, "window"), counted(spans, "span"), counted(decisions, "decision"))
}

fn print(args: &ReplayArgs, summary: &ReplaySummary) -> anyhow::Result<()> {
    if args.json {
        print_line!("{}", serde_json::to_string(summary)?);
        return Ok(());
    }
    let ReplaySummary { events, seconds, events_per_second, windows, spans, decisions, refused, .. } = summary;
    let (events, outputs) = (counted(*events, "event"), outputs_text(*windows, *spans, *decisions));
    print_line!("{events} in {seconds:.2} s ({events_per_second:.0} events/s): {outputs}");
    let reasons: Vec<String> = summary.refused_by_reason.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    print_line!("{refused} refused{}", if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join(", ")) });
    if summary.late > 0 {
        print_line!("{LATE_EVENTS}");
    }
    if summary.duplicates + summary.late_tables > 0 {
        let (duplicates, tables) = (counted(summary.duplicates, "duplicate"), counted(summary.late_tables, "table"));
        print_line!("{duplicates} (counted once), {tables} that came too late");
    }
    for (kind, count) in &summary.passed_over {
        print_line!("{} of the unknown type {kind:?} passed over", counted(*count, "event"));
    }
    let LeftOut { damaged_lines, first_damage, cut, .. } = &summary.left_out;
    if let Some(first) = first_damage {
        print_line!("{} left out, the first: {first}", counted(*damaged_lines, "damaged line"));
    }
    for cut in cut {
        print_line!("the log was cut: read up to the last whole event, before {cut}");
    }
    for held in summary.held_open.iter().take(HELD_SHOWN) {
        print_line!("held open at the end of the record: {held}");
    }
    if summary.held_open.len() > HELD_SHOWN {
        print_line!("held open, too: windows of {}", counted(summary.held_open.len() - HELD_SHOWN, "more workload"));
    }
    if !summary.held_open.is_empty() {
        print_line!("`--close` closes them as if every source had ended there");
    }
    if let Some(out) = args.out.as_ref().filter(|_| windows + spans + decisions > 0) {
        print_line!("written to {}", out.display());
    }
    if let Some(check) = &summary.check {
        print_line!("check: {} windows and {} decisions are the same", check.windows_same, check.decisions_same);
        if check.other_duplicates > 0 {
            let count = check.other_duplicates;
            print_line!("check: {count} of these windows count other numbers of events that came again, which is not compared");
        }
        if check.windows_beyond_record > 0 {
            let windows = counted(check.windows_beyond_record, "window");
            print_line!("check: {windows} of the replay come after the last one of the record, and are not compared");
        }
        if check.decisions_beyond_windows > 0 {
            let decisions = counted(check.decisions_beyond_windows, "decision");
            print_line!("check: {decisions} of the record come after its last window of their workload, and are not compared");
        }
        if summary.left_out.unrecorded_partitions > 0 {
            let partitions = counted(summary.left_out.unrecorded_partitions, "partition");
            print_line!("check: nothing records what was archived of {partitions}: missing first or last files are not noticed");
        }
        for excused in &check.excused {
            print_line!("check: not compared: {excused}");
        }
        if let Some(why) = &check.not_compared {
            print_line!("check: nothing could be compared: {why}");
        }
        for difference in check.differences.iter().take(20) {
            print_line!("check: {difference}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_that_one_thread_would_fold_alone_are_read_ahead() {
        let chosen = |bytes: &[u64], threads| {
            let bytes: BTreeMap<i32, u64> = (0..).zip(bytes.iter().copied()).collect();
            let read_ahead = ReadAhead::choose(&bytes, threads);
            bytes.into_keys().filter(|partition| read_ahead.contains(*partition)).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[70, 30], Some(2)), [0]);
        assert_eq!(chosen(&[51, 49], Some(2)), [0_i32; 0]);
        assert_eq!(chosen(&[10, 10, 60, 10], Some(2)), [2]);
        assert_eq!(chosen(&[70, 30], Some(1)), [0_i32; 0]);
        assert_eq!(chosen(&[70, 30], Some(3)), [0, 1]);
        assert_eq!(chosen(&[50, 50], None), [0, 1]);
        assert_eq!(chosen(&[0, 0], Some(2)), [0_i32; 0]);
    }

    #[test]
    fn one_output_is_singular() {
        assert_eq!(outputs_text(0, 1, 2), "0 windows, 1 span, 2 decisions");
    }
}
