//! Increments of counters by rows: requests, tokens, joules of an epoch.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::{JobLifecycle, Meter};

use super::STEPS;
use super::nested_spans::{
    PartialOverlap, RUN_SEPARATOR, RowSpan, RunId, are_amounts, choose_moments, clip_overlaps, counter_points, counter_times,
    counter_totals, covered_stretches, find_nesting, find_outer_rows, find_overlap, find_partial_overlap, follow_each_other,
    have_inner, have_sums_of_inner, jobs_since_start, may_contain_inner, take_off_inner,
};
use crate::boards;
use crate::checks::{is_power, value};
use crate::median::upper_median;
use crate::options::{AcceptedFinding, FileSetKind};
use crate::recording::{FileId, ProgressMark, RecordedReading, Recording, RecordingSource, SourceId, SourceKind};
use crate::sums::{Certainty, SUM_OF_ROWS, find_sums};
use crate::tenancy::ReadingAttribution;
use crate::totals::{ROWS_OF_A_TOTAL, grows_or_restarts};
use crate::{ImportError, ImportOptions, ReadingField};

/// The time of rows, by file and line.
type RowSpans = BTreeMap<(FileId, u64), RowSpan>;
/// The runs of rows, by file and line. Rows without texts that name their run are absent.
type RowRuns = BTreeMap<(FileId, u64), RunId>;
/// The boards, nodes or ranks of rows that add progress, by file and line, as numbers of their texts. Rows that name none are absent.
type RowBoards = BTreeMap<(FileId, u64), usize>;

/// The column that has how long the rows of a file took, or their other end.
#[derive(Debug)]
pub(super) struct LengthColumn {
    pub(super) name: String,
    /// It has times, or its name has the unit of its durations.
    pub(super) has_unit: bool,
}

/// A row that adds to counters.
struct CounterIncrement {
    time: EventTime,
    line: u64,
    file: FileId,
    added: Vec<(ReadingField, f64)>,
}

/// Increments that rows add to the counters of each source, gathered until the end because rows may be out of order.
#[derive(Default)]
pub(super) struct CounterIncrements {
    by_source: BTreeMap<SourceId, Vec<CounterIncrement>>,
    /// The time of rows that have their start or end, and their other end or duration.
    spans: RowSpans,
    /// The time of rows that have a time and a duration, as if that time were their end.
    unnamed_spans: RowSpans,
    /// The runs of these rows.
    runs: RowRuns,
    /// The runs by the texts that name them.
    run_ids: BTreeMap<String, RunId>,
    /// The texts that name the run that contains that of a row, where it has one.
    parents: BTreeMap<(FileId, u64), String>,
    /// The columns that have how long the rows of files took.
    lengths: BTreeMap<FileId, LengthColumn>,
    /// The boards of rows that add progress, and their numbers by their texts.
    boards: RowBoards,
    board_ids: BTreeMap<String, usize>,
    /// Fields of which each row of a file is one.
    counted_rows: BTreeSet<(FileId, ReadingField)>,
    /// The texts of all these rows that may distinguish boards, users or jobs; `None` if they differ.
    texts: BTreeMap<FileId, Option<String>>,
}

impl CounterIncrements {
    pub(super) fn add(&mut self, file: FileId, source: SourceId, time: EventTime, line: u64, added: Vec<(ReadingField, f64)>) {
        if !added.is_empty() {
            self.by_source.entry(source).or_default().push(CounterIncrement { time, line, file, added });
        }
    }

    /// Notes from when to when a row of a file is, and its texts that may distinguish boards, users or jobs.
    pub(super) fn add_span(&mut self, file: FileId, line: u64, span: RowSpan, text: &str) {
        self.spans.insert((file, line), span);
        let known = self.texts.entry(file).or_insert_with(|| Some(text.to_owned()));
        if known.as_deref() != Some(text) {
            *known = None;
        }
    }

    /// Notes from when to when a row is, in a file whose rows may be of several boards.
    pub(super) fn add_span_of_several(&mut self, file: FileId, line: u64, span: RowSpan) {
        self.spans.insert((file, line), span);
    }

    /// Notes the span of a row whose time may be its start or its end, as if it were the end.
    pub(super) fn add_unnamed_span(&mut self, file: FileId, line: u64, span: RowSpan) {
        self.unnamed_spans.insert((file, line), span);
    }

    /// Notes the texts that name the run of a row, and the run that contains it, if it has one.
    pub(super) fn note_run(&mut self, file: FileId, line: u64, run: String, parent: &str) {
        if run.is_empty() {
            return;
        }
        if !parent.is_empty() {
            self.parents.insert((file, line), parent.to_owned());
        }
        let next = self.run_ids.len();
        let id = *self.run_ids.entry(run).or_insert(next);
        self.runs.insert((file, line), id);
    }

    /// Notes the column that has how long the rows of a file took.
    pub(super) fn note_length_column(&mut self, file: FileId, column: impl FnOnce() -> LengthColumn) {
        self.lengths.entry(file).or_insert_with(column);
    }

    /// Notes the texts that name the board, node or rank of a row that adds progress.
    pub(super) fn note_board(&mut self, file: FileId, line: u64, board: String) {
        if board.is_empty() {
            return;
        }
        let next = self.board_ids.len();
        let id = *self.board_ids.entry(board).or_insert(next);
        self.boards.insert((file, line), id);
    }

    /// Leaves durations without a unit out that, in seconds, would have more rows at one time than is likely. Energy is used in the time
    /// of its row all the same.
    fn leave_unlikely_lengths_out(&mut self, recording: &mut Recording) {
        if recording.columns.contains_key(&ReadingField::EnergyJoulesTotal) {
            return;
        }
        let mut files: BTreeMap<FileId, Vec<(EventTime, f64)>> = BTreeMap::new();
        for step in self.by_source.values().flatten() {
            let place = (step.file, step.line);
            let span = self.spans.get(&place).or_else(|| self.unnamed_spans.get(&place));
            let has_no_unit = self.lengths.get(&step.file).is_some_and(|column| !column.has_unit);
            if let Some(span) = span.filter(|_| has_no_unit) {
                files.entry(step.file).or_default().push((step.time, span.end.seconds_since(span.start)));
            }
        }
        files.retain(|_, rows| are_too_many_at_once(rows));
        self.spans.retain(|(file, _), _| !files.contains_key(file));
        self.unnamed_spans.retain(|(file, _), _| !files.contains_key(file));
        let lengths = files.values().flatten().map(|(_, seconds)| *seconds);
        let usual = upper_median(lengths).unwrap_or(0.0);
        let Some(column) = files.keys().next().and_then(|file| self.lengths.get(file)) else { return };
        let name = &column.name;
        recording.add_note(format!(
            "{name}: in seconds, rows take {usual:.0} s, and more than {MOST_ROWS_AT_ONCE:.0} of them are of one time: it is not used, and \
             what a row counts is taken to be done since the row before it; name the unit in the header, for example {name}_ms"
        ));
    }

    /// Notes that each row of a file is one of a field, `*`.
    pub(super) fn note_counted_rows(&mut self, file: FileId, field: ReadingField) {
        self.counted_rows.insert((file, field));
    }

    /// Returns whether rows of a file, each of another run, have others within: they are named as their parents, or have their sums.
    fn has_nested_runs(&self, of_file: &[CounterIncrement]) -> bool {
        let field = ReadingField::EnergyJoulesTotal;
        let Some(rows) = rows_with_spans(of_file, field, &self.spans) else { return false };
        let Some(outer_rows) = find_outer_rows(&rows) else { return false };
        let texts: BTreeMap<RunId, &str> = self.run_ids.iter().map(|(text, run)| (*run, text.as_str())).collect();
        let with_energy = of_file.iter().filter(|step| amount(step, field).is_some());
        let places: Vec<(FileId, u64)> = with_energy.map(|step| (step.file, step.line)).collect();
        let is_child = |(row, outer): (usize, usize)| {
            let run = self.runs.get(&places[outer]).and_then(|run| texts.get(run));
            let parent = self.parents.get(&places[row]);
            run.zip(parent).is_some_and(|(run, parent)| run.split(RUN_SEPARATOR).any(|text| text == parent))
        };
        let mut inner = outer_rows.into_iter().enumerate().filter_map(|(row, outer)| Some((row, outer?)));
        have_sums_of_inner(&rows) || inner.all(is_child)
    }

    /// Returns the files whose rows contain others in all their sums; adds notes on those in which they may.
    fn nested_files(&self, recording: &mut Recording, of_runs: &BTreeSet<FileId>) -> BTreeSet<FileId> {
        let (mut nested, mut unsure, mut runs_apart): (BTreeSet<FileId>, BTreeSet<FileId>, BTreeSet<FileId>) = Default::default();
        let of_files = self.by_source.iter().flat_map(|(source, steps)| {
            let of_one_board = is_one_board(recording, *source);
            steps.chunk_by(|a, b| a.file == b.file).map(move |of_file| (of_one_board, of_file))
        });
        for (of_one_board, of_file) in of_files {
            let file = of_file[0].file;
            // Rows of several boards may contain each other.
            if !self.texts.contains_key(&file) {
                continue;
            }
            // One a row is less than what the rows within have, and shows nothing.
            let telling = STEPS.into_iter().filter(|(_, field)| !self.counted_rows.contains(&(file, *field)));
            for (_, field) in telling {
                let rows = rows_with_spans(of_file, field, &self.spans);
                let of_energy = rows.as_ref().filter(|_| field == ReadingField::EnergyJoulesTotal);
                let nesting = of_energy.and_then(|rows| find_nesting(rows, of_one_board));
                let are_nested_runs = nesting.is_some() && of_runs.contains(&file) && self.has_nested_runs(of_file);
                if nesting.is_some() {
                    nested.insert(file);
                    runs_apart.extend((!are_nested_runs).then_some(file));
                }
                let is_unsure = match nesting {
                    Some(certainty) => certainty == Certainty::Possible && !are_nested_runs,
                    None => rows.is_none_or(|rows| !may_contain_inner(&rows)),
                };
                unsure.extend(is_unsure.then_some(file));
            }
        }
        let may_differ = |file: &FileId| {
            if of_runs.contains(file) { runs_apart.contains(file) } else { self.texts.get(file).is_none_or(Option::is_none) }
        };
        unsure.extend(nested.iter().copied().filter(may_differ));
        for file in nested.intersection(&unsure) {
            recording.add_note(format!(
                "{}: rows overlap: the time of some contains that of others, and if their energy does, too, it counts twice; if so, leave \
                 the rows of one kind out",
                recording.files[*file]
            ));
        }
        nested.difference(&unsure).copied().collect()
    }

    /// Takes out what rows of a file add to a source; returns their lines.
    pub(super) fn remove(&mut self, source: SourceId, file: FileId) -> Vec<u64> {
        let Some(steps) = self.by_source.remove(&source) else { return Vec::new() };
        let (removed, remaining): (Vec<CounterIncrement>, Vec<CounterIncrement>) =
            steps.into_iter().partition(|step| step.file == file);
        if !remaining.is_empty() {
            self.by_source.insert(source, remaining);
        }
        removed.into_iter().map(|step| step.line).collect()
    }

    /// Takes out what these lines of a file add; returns those that added something.
    pub(super) fn remove_lines(&mut self, file: FileId, lines: &BTreeSet<u64>) -> BTreeSet<u64> {
        let mut removed = BTreeSet::new();
        if lines.is_empty() {
            return removed;
        }
        for steps in self.by_source.values_mut() {
            steps.retain(|step| {
                let is_removed = step.file == file && lines.contains(&step.line);
                removed.extend(is_removed.then_some(step.line));
                !is_removed
            });
        }
        self.by_source.retain(|_, steps| !steps.is_empty());
        removed
    }

    /// Turns what rows add into counters, and has totals of energy begin at the start of their jobs.
    pub(super) fn finish(mut self, recording: &mut Recording, options: &ImportOptions) -> Result<(), ImportError> {
        self.leave_unlikely_lengths_out(recording);
        begin_totals_at_start(recording, &self.unnamed_spans, &self.runs, options)?;
        note_little_totals(recording);
        let counts_nested = options.accept.contains(&AcceptedFinding::NestedRows);
        let [of_runs, unnamed_of_runs] = [&self.spans, &self.unnamed_spans].map(|spans| files_of_runs(&self.runs, spans));
        let nested = if counts_nested { BTreeSet::new() } else { self.nested_files(recording, &of_runs) };
        let Self { by_source, spans, unnamed_spans, runs, lengths, boards, counted_rows, texts, .. } = self;
        let times = RowTimes { named: (&spans, &of_runs), unnamed: (&unnamed_spans, &unnamed_of_runs), runs: &runs };
        let of_one_text = texts.into_iter().filter_map(|(file, text)| text.map(|_| file));
        let alike: BTreeSet<FileId> = of_one_text.filter(|file| !of_runs.contains(file)).collect();
        let runs_apart: BTreeSet<FileId> = of_runs.difference(&nested).copied().collect();
        let mut unnamed = 0_usize;
        let mut of_energy = RowSpans::new();
        // Devices first: the counts of a row have the time of its energy.
        let (of_devices, of_jobs): (Vec<_>, Vec<_>) =
            by_source.into_iter().partition(|(source, _)| matches!(recording.sources[*source].kind, SourceKind::Device(_)));
        for (source, mut steps) in of_devices.into_iter().chain(of_jobs) {
            settle_copied_sums(recording, &mut steps, options)?;
            if !options.accept.contains(&AcceptedFinding::GrowingSteps) {
                refuse_running_totals(recording, &steps, times)?;
            }
            if !counts_nested {
                settle_nested_rows(recording, &mut steps, &spans, (&nested, &counted_rows));
                refuse_sums(recording, &mut steps, &counted_rows);
            }
            check_order(recording, source, &steps, options)?;
            let of_one_board = is_one_board(recording, source);
            if let SourceKind::Device(device) = &mut recording.sources[source].kind {
                // Rows of one time that add amounts belong to one board, whose counter begins in each file.
                if device.is_anonymous {
                    (device.is_anonymous, device.local_id) = (false, None);
                    unnamed += 1;
                }
                steps.sort_by_key(|step| step.time);
                let mut own = own_spans(&steps, &spans, &unnamed_spans);
                if !counts_nested {
                    settle_overlaps(recording, (&mut steps, &mut own), (&alike, &runs_apart), of_one_board)?;
                    note_overlaps_of_runs(recording, &steps, &own, times);
                }
                let spread = spread_energy(recording, source, &steps, &own)?;
                for (step, span) in steps.iter().zip(spread) {
                    let known = of_energy.entry((step.file, step.line)).or_insert(span);
                    *known = RowSpan { start: known.start.min(span.start), end: known.end.max(span.end) };
                }
            } else {
                count_at_ends(&mut steps, &spans);
                let own = own_spans(&steps, &spans, &unnamed_spans);
                note_own_times(recording, (&steps, &own), (&of_energy, &unnamed_spans), &lengths);
                let times = ProgressTimes::new((&steps, &own), &of_energy, &counted_rows, &boards);
                push_counters(recording, source, steps, &times);
            }
            // Counters are made behind the other readings of their rows. The order of the rows was checked above.
            recording.sources[source].readings.sort_by_key(|reading| (reading.file, reading.time));
        }
        note_unnamed_boards(recording, unnamed);
        Ok(())
    }
}

/// More rows of one time, on average, are less likely than durations in another unit.
const MOST_ROWS_AT_ONCE: f64 = 100.0;

/// Returns whether rows of these times and lengths in seconds are too many at one time.
fn are_too_many_at_once(rows: &[(EventTime, f64)]) -> bool {
    let times = || rows.iter().map(|(time, _)| *time);
    let seconds = times().min().zip(times().max()).map_or(0.0, |(first, last)| last.seconds_since(first));
    let lengths = || rows.iter().map(|(_, seconds)| *seconds);
    lengths().sum::<f64>() > MOST_ROWS_AT_ONCE * lengths().fold(seconds, f64::max)
}

/// Notes that what rows count is taken to be done in their own time, with its usual length: a duration may be in another unit.
fn note_own_times(
    recording: &mut Recording,
    (steps, own): (&[CounterIncrement], &[Option<RowSpan>]),
    (of_energy, unnamed): (&RowSpans, &RowSpans),
    columns: &BTreeMap<FileId, LengthColumn>,
) {
    let length = |(step, own): (&CounterIncrement, &Option<RowSpan>)| {
        let span = (*own)?;
        let has_energy = of_energy.contains_key(&(step.file, step.line));
        (!has_energy).then(|| (step.file, span.end.seconds_since(span.start)))
    };
    let lengths: Vec<(FileId, f64)> = steps.iter().zip(own).filter_map(length).collect();
    if lengths.is_empty() {
        note_unused_lengths(recording, steps, (of_energy, unnamed), columns);
    }
    let Some(column) = lengths.first().and_then(|(file, _)| columns.get(file)) else { return };
    let usual = upper_median(lengths.iter().map(|(_, seconds)| *seconds)).unwrap_or(0.0);
    let (name, usual) = (&column.name, (usual * 1000.0).round() / 1000.0);
    let unit = if column.has_unit {
        String::new()
    } else {
        format!(
            "; its name has no unit, and it is read in seconds: for another one, name it in the header, for example {name}_ms"
        )
    };
    recording.add_note(format!("{name}: what a row counts is taken to be done in its own time, usually {usual} s{unit}"));
}

/// Notes durations that are not used, as rows overlap whether their times are their starts or their ends.
fn note_unused_lengths(
    recording: &mut Recording,
    steps: &[CounterIncrement],
    (of_energy, unnamed): (&RowSpans, &RowSpans),
    columns: &BTreeMap<FileId, LengthColumn>,
) {
    let is_unused = |step: &&CounterIncrement| {
        let place = (step.file, step.line);
        unnamed.contains_key(&place) && !of_energy.contains_key(&place)
    };
    let Some(column) = steps.iter().find(is_unused).and_then(|step| columns.get(&step.file)) else { return };
    let name = &column.name;
    recording.add_note(format!(
        "{name}: rows overlap whether their times are their starts or their ends: it is not used for what a row counts; call the column of \
         times start_time or end_time"
    ));
}

/// Notes files whose rows add energy and name no board.
fn note_unnamed_boards(recording: &mut Recording, unnamed: usize) {
    if unnamed > 1 {
        recording.add_note(format!(
            "{unnamed} files whose rows add energy name no board: each is taken for a board of its own, and the energy of all is added \
             up; if they are of the same boards, set the column that names them, --map device=COLUMN"
        ));
    }
}

/// Returns whether rows of a source are of one board, or node, which has one power at a time: they or the map name it.
fn is_one_board(recording: &Recording, source: SourceId) -> bool {
    matches!(&recording.sources[source].kind, SourceKind::Device(device) if !device.is_anonymous)
}

/// Returns the files in which each row that has a time of its own is of another run.
fn files_of_runs(runs: &RowRuns, spans: &RowSpans) -> BTreeSet<FileId> {
    let mut of_files: BTreeMap<FileId, Vec<Option<RunId>>> = BTreeMap::new();
    for row in spans.keys() {
        of_files.entry(row.0).or_default().push(runs.get(row).copied());
    }
    let are_distinct = |(file, of_rows): (FileId, Vec<Option<RunId>>)| {
        let distinct: BTreeSet<RunId> = of_rows.iter().copied().flatten().collect();
        (of_rows.len() > 1 && distinct.len() == of_rows.len()).then_some(file)
    };
    of_files.into_iter().filter_map(are_distinct).collect()
}

/// A job with a total of energy that is counted since its start.
struct CountedJob {
    span: RowSpan,
    /// The places of its readings, in order of time.
    places: Vec<usize>,
}

/// Has totals of energy begin at 0 at the start of their jobs if both they and the durations of their rows are counted since then, as by
/// `CodeCarbon`: the first row of a job has what it used before. Returns an error if rows of one start are of several runs, which have
/// no total in common, unless the total is accepted.
fn begin_totals_at_start(
    recording: &mut Recording,
    unnamed: &RowSpans,
    runs: &RowRuns,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let field = ReadingField::EnergyJoulesTotal;
    let is_accepted = options.accept.contains(&AcceptedFinding::GrowingSteps);
    for source in 0..recording.sources.len() {
        let RecordingSource { kind: SourceKind::Device(_), readings, .. } = &mut recording.sources[source] else { continue };
        let Some(jobs) = find_counted_jobs(readings, unnamed) else { continue };
        let other_run = jobs.iter().find_map(|job| find_other_run(readings, job, runs));
        if let Some((first, other)) = other_run.filter(|_| !is_accepted) {
            return Err(total_of_runs_error(recording, first, other));
        }
        let count = counted(jobs.len(), "job");
        begin_at_start(readings, jobs);
        let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
        let note = format!(
            "{column}: grows with the durations of rows, which count since the start of a job: it is 0 at the start of {count}"
        );
        recording.add_note(note);
    }
    Ok(())
}

/// Less than this a GPU seldom draws, in watts.
const LITTLE_FOR_A_GPU_WATTS: f64 = 5.0;
/// Rows of a running total of energy are seldom further apart than this, in microseconds, beside what the row of an epoch or a run adds.
const MICROS_OF_AN_AMOUNT: i64 = 60_000_000;

/// Notes running totals of energy that give a GPU next to no power over rows far apart: each row may add so much.
fn note_little_totals(recording: &mut Recording) {
    let field = ReadingField::EnergyJoulesTotal;
    let is_little = |source: &RecordingSource| {
        let known = || source.readings.iter().filter_map(|reading| Some((reading.time, value(reading, field)?)));
        let distance = median_distance(known().map(|(time, _)| time))?;
        let ((start, first), (end, last)) = (known().next()?, known().next_back()?);
        let watts = (last - first) / end.seconds_since(start);
        let is_known = known().count() >= ROWS_OF_A_TOTAL
            && source.readings.iter().all(|reading| !reading.values.iter().any(|(field, _)| is_power(*field)));
        (is_known && distance >= MICROS_OF_AN_AMOUNT && first > 0.0 && (0.0..LITTLE_FOR_A_GPU_WATTS).contains(&watts))
            .then_some(watts)
    };
    let devices = recording.sources.iter().filter(|source| matches!(source.kind, SourceKind::Device(_)));
    let Some(watts) = devices.filter(|_| recording.meter == Meter::Gpu).find_map(is_little) else { return };
    let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
    let amounts = recording.map_again("energy_joules", field);
    let note = format!(
        "{column}: as a running total it gives a mean power of {watts:.2} W, little for one GPU board: if each row adds so much, use {amounts}"
    );
    recording.add_note(note);
}

/// Returns the line of the first row of a job, and the file and line of one of another run.
fn find_other_run(readings: &[RecordedReading], job: &CountedJob, runs: &RowRuns) -> Option<(u64, (FileId, u64))> {
    let row = |place: &usize| (readings[*place].file as usize, u64::from(readings[*place].line));
    let first = row(job.places.first()?);
    let run = runs.get(&first)?;
    let other = job.places.iter().map(row).find(|other| runs.get(other).is_some_and(|other| other != run))?;
    Some((first.1, other))
}

/// Returns the error on a total of energy whose rows of one start are of several runs.
fn total_of_runs_error(recording: &Recording, first: u64, (file, line): (FileId, u64)) -> ImportError {
    let field = ReadingField::EnergyJoulesTotal;
    let column = recording.columns.get(&field).map_or(field.name(), String::as_str).to_owned();
    let problem = format!(
        "grows with durations that count since one start, but this row is of another run than that of line {first}: the energy of \
         several runs is no running total"
    );
    let amounts = recording.map_again("energy_joules", field);
    let accept = AcceptedFinding::GrowingSteps.name();
    let remedy = format!(
        "if each run has one row, use {amounts}; if a run has several, take all but its last one out first; if all rows have the total of \
         one process, --accept {accept}"
    );
    recording.error(file, line, problem, remedy).with_column(column)
}

/// Returns the jobs of readings, one after the other; `None` if their totals are not counted since the start of a job each.
fn find_counted_jobs(readings: &[RecordedReading], unnamed: &RowSpans) -> Option<Vec<CountedJob>> {
    let total = |reading: &RecordedReading| value(reading, ReadingField::EnergyJoulesTotal);
    let span = |reading: &RecordedReading| unnamed.get(&(reading.file as usize, u64::from(reading.line))).copied();
    let with_total = readings.iter().enumerate().filter_map(|(place, reading)| Some((place, reading, total(reading)?)));
    let rows = with_total.map(|(place, reading, joules)| Some((place, (span(reading)?, joules))));
    let (places, rows): (Vec<usize>, Vec<(RowSpan, f64)>) = rows.collect::<Option<Vec<_>>>()?.into_iter().unzip();
    let job = |of_job: Vec<usize>| {
        let (first, last) = (rows[of_job[0]].0, rows[of_job[of_job.len() - 1]].0);
        let places = of_job.into_iter().map(|row| places[row]).collect();
        CountedJob { span: RowSpan { start: first.start, end: last.end }, places }
    };
    let found = jobs_since_start(&rows, &[])?;
    let totals: Vec<f64> = found.iter().flatten().map(|row| rows[*row].1).collect();
    // One that never falls goes on from job to job.
    if found.len() > 1 && totals.is_sorted() {
        return None;
    }
    let jobs: Vec<CountedJob> = found.into_iter().map(job).collect();
    follow_each_other(&jobs.iter().map(|job| job.span).collect::<Vec<_>>()).then_some(jobs)
}

/// Returns, for each reading, its file and the newest time up to it in that file.
fn newest_times(readings: &[RecordedReading]) -> Vec<(u32, EventTime)> {
    let mut newest: Vec<(u32, EventTime)> = Vec::with_capacity(readings.len());
    for RecordedReading { file, time, .. } in readings {
        let above = newest.last().filter(|(of_file, _)| of_file == file).map_or(*time, |(_, above)| (*above).max(*time));
        newest.push((*file, above));
    }
    newest
}

/// Adds a reading at the start of each job, before the later ones of its file. If readings have nothing but their total, it goes on
/// from job to job, and of the time between them nothing is known; otherwise it begins anew.
fn begin_at_start(readings: &mut Vec<RecordedReading>, jobs: Vec<CountedJob>) {
    let field = ReadingField::EnergyJoulesTotal;
    let goes_on = readings.iter().all(|reading| value(reading, field).is_some());
    let newest = newest_times(readings);
    let mut begun: BTreeMap<usize, Vec<RecordedReading>> = BTreeMap::new();
    let (mut spans, mut offset) = (Vec::<RowSpan>::with_capacity(jobs.len()), 0.0);
    for CountedJob { mut span, places } in jobs {
        // Starts are rounded.
        span.start = spans.last().map_or(span.start, |before| span.start.max(before.end.plus_micros(1)));
        spans.push(span);
        let (first, last) = (&readings[places[0]], &readings[places[places.len() - 1]]);
        let joules = value(last, field).unwrap_or(0.0);
        let values = Box::new([(field, offset)]);
        let start = RecordedReading { time: span.start, line: first.line, file: first.file, values, mark: None, portion: None };
        let at = newest.partition_point(|above| *above < (start.file, start.time)).min(places[0]);
        begun.entry(at).or_default().push(start);
        if goes_on {
            for place in places {
                let values = readings[place].values.iter_mut();
                values.filter(|(known, _)| *known == field).for_each(|(_, value)| *value += offset);
            }
            offset += joules;
        }
    }
    let all = std::mem::take(readings).into_iter().enumerate();
    *readings = all.flat_map(|(place, reading)| begun.remove(&place).into_iter().flatten().chain([reading])).collect();
    split_stays(readings, &spans);
}

/// Fewer rows are no copy of others: two programs may add the same at one time by chance.
const ROWS_OF_A_COPY: usize = 3;
/// Fewer rows, fewer different amounts, and fewer changes of it in 100 rows, show nothing if their times differ.
const ROWS_OF_VARYING: usize = 10;
const AMOUNTS_OF_VARYING: usize = 4;
const CHANGES_OF_VARYING: usize = 50;
/// Least number in 100 rows that add the same as those of another file.
const SAME_ROWS: usize = 95;

/// What two files add the same over the time of both.
struct RepeatedRange {
    from: EventTime,
    to: EventTime,
    when: &'static str,
    /// Their times are the same, or what they add varies: they have the same rows.
    is_sure: bool,
}

/// Returns an error if two files have the same rows over the time of both, which would count twice; leaves those of the later file out
/// if the files are declared parts of one record. Notes files that add the same, in the same order, and may count the same work.
fn settle_copied_sums(
    recording: &mut Recording,
    steps: &mut Vec<CounterIncrement>,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let mut files: BTreeMap<FileId, Vec<&CounterIncrement>> = BTreeMap::new();
    for step in &*steps {
        files.entry(step.file).or_default().push(step);
    }
    if files.len() < 2 || options.files_are == Some(FileSetKind::Nodes) {
        return Ok(());
    }
    for rows in files.values_mut() {
        rows.sort_by_key(|step| step.time);
    }
    let usual =
        |(file, rows): (&FileId, &Vec<&CounterIncrement>)| Some((*file, median_distance(rows.iter().map(|step| step.time))?));
    let usual: BTreeMap<FileId, i64> = files.iter().filter_map(usual).collect();
    let mut copies: Vec<(FileId, EventTime, EventTime)> = Vec::new();
    let mut alike: BTreeSet<FileId> = BTreeSet::new();
    for (later, rows) in &files {
        for (before, above) in files.range(..*later) {
            let distance = usual.get(before).copied().zip(usual.get(later).copied()).map(|(a, b)| a.min(b));
            let Some(RepeatedRange { from, to, when, is_sure }) = find_repeated_range(above, rows, distance) else { continue };
            if options.files_are.is_none() && is_sure {
                let (a, b) = (&recording.files[*before], &recording.files[*later]);
                let problem = format!("adds the same {when} as {a}, from {from} to {to}");
                let remedy = "if it is a copy, or each file has what the whole job did, leave one of the two out, or use --files-are parts; \
                              if each file counts its own, use --files-are nodes";
                return Err(ImportError::in_file(b, problem, remedy));
            }
            copies.push((*later, from, to));
            alike.extend([*before, *later]);
        }
    }
    if options.files_are.is_none() {
        note_files_alike(recording, &alike);
        return Ok(());
    }
    let count = steps.len();
    steps.retain(|step| !copies.iter().any(|(file, from, to)| step.file == *file && (*from..=*to).contains(&step.time)));
    recording.duplicates += (count - steps.len()) as u64;
    Ok(())
}

/// Most files that a note names.
const MOST_FILES_NAMED: usize = 4;

/// Notes files that add the same in the same order at about the same times, if there are any.
fn note_files_alike(recording: &mut Recording, alike: &BTreeSet<FileId>) {
    if alike.is_empty() {
        return;
    }
    let names: Vec<&str> = alike.iter().take(MOST_FILES_NAMED).map(|file| recording.files[*file].as_str()).collect();
    let more = if alike.len() > MOST_FILES_NAMED { ", …" } else { "" };
    let note = format!(
        "{} add the same, row by row, at about the same times ({}{more}): all count; if each has what the whole job did, use --files-are \
         parts; if each counts its own, --files-are nodes",
        counted(alike.len(), "file"),
        names.join(", ")
    );
    recording.add_note(note);
}

/// Returns the time that two files have in common if their rows, each in order of time, add the same in it: at the same times, or each
/// within half of the usual distance of two rows, in microseconds.
fn find_repeated_range(above: &[&CounterIncrement], rows: &[&CounterIncrement], distance: Option<i64>) -> Option<RepeatedRange> {
    let from = above.first()?.time.max(rows.first()?.time);
    let to = above.last()?.time.min(rows.last()?.time);
    if from > to {
        return None;
    }
    let of_time = |rows: &[&CounterIncrement], from: EventTime, to: EventTime| {
        rows.partition_point(|step| step.time < from)..rows.partition_point(|step| step.time <= to)
    };
    let (a, b) = (above.get(of_time(above, from, to))?, rows.get(of_time(rows, from, to))?);
    let are_same = a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.time == b.time && a.added == b.added);
    if are_same && a.len() >= ROWS_OF_A_COPY {
        return Some(RepeatedRange { from, to, when: "at the same times", is_sure: true });
    }
    let half = distance? / 2;
    let (from, to) = (from.plus_micros(1 - half), to.plus_micros(half - 1));
    let (a, b) = (above.get(of_time(above, from, to))?, rows.get(of_time(rows, from, to))?);
    let same = count_same_rows(a, b, half);
    let is_same = same >= ROWS_OF_A_COPY && 100 * same >= SAME_ROWS * a.len().max(b.len());
    is_same.then(|| RepeatedRange { from, to, when: "at about the same times", is_sure: varies(a) })
}

/// Returns how many rows of two files add the same less than so many microseconds apart, each row at most once.
fn count_same_rows(above: &[&CounterIncrement], rows: &[&CounterIncrement], micros: i64) -> usize {
    let (mut above, mut rows) = (above.iter().peekable(), rows.iter().peekable());
    let mut same = 0;
    while let Some((a, b)) = above.peek().copied().zip(rows.peek().copied()) {
        let later = a.time.micros() - b.time.micros();
        let is_pair = later.abs() < micros || later == 0;
        same += usize::from(is_pair && a.added == b.added);
        if is_pair || later < 0 {
            above.next();
        }
        if is_pair || later > 0 {
            rows.next();
        }
    }
    same
}

/// Returns whether what rows add changes often, between several amounts, as no schedule of a job does that each of its ranks follows.
fn varies(rows: &[&CounterIncrement]) -> bool {
    let changes = rows.windows(2).filter(|pair| pair[0].added != pair[1].added).count();
    let amounts: BTreeSet<Vec<u64>> =
        rows.iter().map(|step| step.added.iter().map(|(_, value)| value.to_bits()).collect()).collect();
    rows.len() >= ROWS_OF_VARYING && amounts.len() >= AMOUNTS_OF_VARYING && 100 * changes >= CHANGES_OF_VARYING * rows.len()
}

/// Returns the increment of a field in a row.
fn amount(step: &CounterIncrement, field: ReadingField) -> Option<f64> {
    step.added.iter().find(|(other, _)| *other == field).map(|(_, value)| *value)
}

/// Returns the time of the rows that add to a field, and what they add; `None` if a row has no time.
fn rows_with_spans(steps: &[CounterIncrement], field: ReadingField, spans: &RowSpans) -> Option<Vec<(RowSpan, f64)>> {
    let of_field = steps.iter().filter_map(|step| Some((step, amount(step, field)?)));
    of_field.map(|(step, value)| Some((*spans.get(&(step.file, step.line))?, value))).collect()
}

/// Takes what rows of these files add off the row whose time contains theirs.
fn settle_nested_rows(
    recording: &mut Recording,
    steps: &mut [CounterIncrement],
    spans: &RowSpans,
    (nested, counted_rows): (&BTreeSet<FileId>, &BTreeSet<(FileId, ReadingField)>),
) {
    for of_file in steps.chunk_by_mut(|a, b| a.file == b.file).filter(|of_file| nested.contains(&of_file[0].file)) {
        for (_, field) in STEPS {
            let rows = rows_with_spans(of_file, field, spans);
            if counted_rows.contains(&(of_file[0].file, field)) {
                let Some(outer) = rows.and_then(|rows| have_inner(&rows)) else { continue };
                let values = of_file.iter_mut().flat_map(|step| &mut step.added).filter(|(other, _)| *other == field);
                values.zip(outer).filter(|(_, is_outer)| *is_outer).for_each(|((_, value), _)| *value = 0.0);
                continue;
            }
            let Some((own, outer)) = rows.and_then(|rows| take_off_inner(&rows)) else { continue };
            let values = of_file.iter_mut().flat_map(|step| &mut step.added).filter(|(other, _)| *other == field);
            for ((_, value), own) in values.zip(own) {
                *value = own;
            }
            let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
            let note = format!(
                "{column}: the time of {} contains that of other rows, as that of an epoch contains its steps: what these have is taken off \
                 it, or it would count twice; --accept {} counts both",
                counted(outer, "row"),
                AcceptedFinding::NestedRows.name()
            );
            recording.add_note(note);
        }
    }
}

/// Why rows of several runs count, though they overlap.
const OF_OTHER_RUNS: &str = "each has another run";

/// Describes rows that overlap and all count.
fn describe_counted_overlap(column: &str, overlap: &str, reason: &str) -> String {
    format!(
        "{column}: {overlap}; all count, as {reason}: if a row has all that its board used in its time, this counts several times; if so, \
         keep rows that do not overlap"
    )
}

/// Notes rows of several runs that overlap whether their times are starts or ends, as those of runs that start together: all count.
fn note_overlaps_of_runs(recording: &mut Recording, steps: &[CounterIncrement], own: &[Option<RowSpan>], times: RowTimes<'_>) {
    if own.iter().any(Option::is_some) {
        return;
    }
    let field = ReadingField::EnergyJoulesTotal;
    let (spans, of_runs) = times.unnamed;
    let mut files: BTreeMap<FileId, Vec<(RowSpan, f64)>> = BTreeMap::new();
    for step in steps.iter().filter(|step| of_runs.contains(&step.file)) {
        let row = spans.get(&(step.file, step.line)).copied().zip(amount(step, field));
        files.entry(step.file).or_default().extend(row);
    }
    for rows in files.into_values() {
        let Some(found) = find_overlap(&rows) else { continue };
        let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
        let mut note = describe_counted_overlap(column, &found.describe(), OF_OTHER_RUNS);
        if jobs_since_start(&rows, &[]).is_some() {
            let (total, accept) = (recording.map_again(field.name(), field), AcceptedFinding::GrowingSteps.name());
            note = format!("{note}; if all rows have the total of one process, use {total} --accept {accept}");
        }
        recording.add_note(note);
    }
}

/// Returns an error if rows of a file overlap in part, which would count what its board used then twice. Counts that time once if the rows
/// are of one board, and have the same power. Rows that other columns distinguish all count, noted.
fn settle_overlaps(
    recording: &mut Recording,
    (steps, own): (&mut [CounterIncrement], &mut [Option<RowSpan>]),
    (alike, of_runs): (&BTreeSet<FileId>, &BTreeSet<FileId>),
    of_one_board: bool,
) -> Result<(), ImportError> {
    let field = ReadingField::EnergyJoulesTotal;
    let mut files: BTreeMap<FileId, Vec<usize>> = BTreeMap::new();
    for (place, step) in steps.iter().enumerate() {
        files.entry(step.file).or_default().push(place);
    }
    for (file, places) in files {
        let row = |place: &usize| Some((own[*place]?, amount(&steps[*place], field)?));
        let rows: Vec<(RowSpan, f64)> = places.iter().filter_map(row).collect();
        // Runs may be of one time, or within others, too.
        let find: fn(&[(RowSpan, f64)]) -> Option<PartialOverlap> =
            if of_runs.contains(&file) { find_overlap } else { find_partial_overlap };
        let found = find(&rows).filter(|_| rows.len() == places.len());
        let Some(found) = found else { continue };
        let overlap = found.describe();
        let column = recording.columns.get(&field).map_or(field.name(), String::as_str).to_owned();
        let accept = AcceptedFinding::NestedRows.name();
        if !alike.contains(&file) {
            let reason = if of_runs.contains(&file) { OF_OTHER_RUNS } else { "other columns distinguish them" };
            recording.add_note(describe_counted_overlap(&column, &overlap, reason));
            continue;
        }
        let PartialOverlap { rows: (first, second), has_same_power, .. } = found;
        if !(has_same_power && of_one_board) {
            let (above, line) = (steps[places[first]].line, steps[places[second]].line);
            let problem = format!("{overlap}, first that of line {above}: what their board used then would count twice");
            let name_it = if has_same_power {
                "if all are of one board, name it, for example --map 'energy_joules[gpu0]=COLUMN'; "
            } else {
                ""
            };
            let remedy = format!(
                "keep windows that do not overlap, such as those of one name; {name_it}if each row has energy of its own, --accept {accept}"
            );
            return Err(recording.error(file, line, problem, remedy).with_column(column));
        }
        for (place, (span, part)) in places.iter().zip(clip_overlaps(&rows)) {
            own[*place] = Some(span);
            steps[*place].added.iter_mut().for_each(|(_, value)| *value *= part);
        }
        recording.add_note(format!(
            "{column}: {overlap}, with the same power: what their board used then counts once; --accept {accept} counts both"
        ));
    }
    Ok(())
}

/// Refuses rows that have in each of their figures the sum of the rows above, which would count all of it twice.
fn refuse_sums(recording: &mut Recording, steps: &mut Vec<CounterIncrement>, counted_rows: &BTreeSet<(FileId, ReadingField)>) {
    let mut sums: BTreeSet<(FileId, u64)> = BTreeSet::new();
    for of_file in steps.chunk_by(|a, b| a.file == b.file) {
        let (mut figures, mut sure): (BTreeMap<u64, usize>, BTreeSet<u64>) = Default::default();
        let mut without_sums: BTreeSet<ReadingField> = BTreeSet::new();
        for (_, field) in STEPS {
            let known: Vec<(u64, f64)> = of_file.iter().filter_map(|step| Some((step.line, amount(step, field)?))).collect();
            let values: Vec<f64> = known.iter().map(|(_, value)| *value).collect();
            // Values that are the same in each row, such as one step of each, show nothing.
            let is_count = counted_rows.contains(&(of_file[0].file, field));
            if is_count || values.windows(2).all(|pair| pair[0] == pair[1]) {
                without_sums.insert(field);
                continue;
            }
            for place in find_sums(&values, Certainty::Possible) {
                *figures.entry(known[place].0).or_default() += 1;
            }
            sure.extend(find_sums(&values, Certainty::Sure).into_iter().map(|place| known[place].0));
        }
        let is_sum = |step: &&CounterIncrement| {
            let telling = step.added.iter().filter(|(field, _)| !without_sums.contains(field)).count();
            sure.contains(&step.line) && figures.get(&step.line) == Some(&telling)
        };
        sums.extend(of_file.iter().filter(is_sum).map(|step| (step.file, step.line)));
    }
    for step in steps.iter().filter(|step| sums.contains(&(step.file, step.line))) {
        let (field, value) = step.added[0];
        let problem = format!("{value} is the sum of the rows above: it is left out, or these would count twice");
        let remedy = format!("take the row out, or use --accept {} if it is one more", AcceptedFinding::NestedRows.name());
        let column = recording.columns.get(&field).map_or(field.name(), String::as_str);
        let error = recording.error(step.file, step.line, problem, remedy).with_column(column);
        recording.refuse_row(SUM_OF_ROWS, error);
    }
    steps.retain(|step| !sums.contains(&(step.file, step.line)));
}

/// Returns an error if a clock was set back within the rows of a file: sorted, two hours would be one.
fn refuse_clock_back(recording: &Recording, steps: &[CounterIncrement], options: &ImportOptions) -> Result<(), ImportError> {
    let reading = |step: &CounterIncrement| RecordedReading {
        time: step.time,
        line: u32::try_from(step.line).unwrap_or(u32::MAX),
        file: u32::try_from(step.file).unwrap_or(u32::MAX),
        values: step.added.as_slice().into(),
        mark: None,
        portion: None,
    };
    let of_file = |of_file: &[CounterIncrement]| {
        let readings: Vec<RecordedReading> = of_file.iter().map(reading).collect();
        boards::refuse_clock_back(recording, &readings, options)
    };
    steps.chunk_by(|a, b| a.file == b.file).try_for_each(of_file)
}

/// Returns an error if a clock was set back within the rows of a file, those that add amounts or those with other figures; counts
/// rows out of order within their file.
fn check_order(
    recording: &mut Recording,
    source: SourceId,
    steps: &[CounterIncrement],
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let others = &recording.sources[source].readings;
    if !options.accept.contains(&AcceptedFinding::Unordered) {
        refuse_clock_back(recording, steps, options)?;
        let refuse = |of_file: &[RecordedReading]| boards::refuse_clock_back(recording, of_file, options);
        others.chunk_by(|a, b| a.file == b.file).try_for_each(refuse)?;
    }
    let of_steps = steps.chunk_by(|a, b| a.file == b.file).map(|rows| count_backward(rows.iter().map(|row| row.time)));
    let of_others = others.chunk_by(|a, b| a.file == b.file).map(|rows| count_backward(rows.iter().map(|row| row.time)));
    // A row may have figures of both kinds.
    let wrong = of_steps.sum::<u64>().max(of_others.sum());
    recording.out_of_order += wrong;
    Ok(())
}

/// Returns how many times are earlier than one before them.
fn count_backward(times: impl Iterator<Item = EventTime>) -> u64 {
    let (mut newest, mut wrong) = (EventTime::MIN, 0);
    for time in times {
        wrong += u64::from(time < newest);
        newest = newest.max(time);
    }
    wrong
}

/// Sets the times of rows that have their starts to their ends: what a row counts is done by then.
fn count_at_ends(steps: &mut [CounterIncrement], spans: &RowSpans) {
    for step in steps {
        step.time = spans.get(&(step.file, step.line)).map_or(step.time, |span| span.end);
    }
}

/// Returns the time of each row by its own columns, if it has that.
fn own_spans(steps: &[CounterIncrement], named: &RowSpans, unnamed: &RowSpans) -> Vec<Option<RowSpan>> {
    let of =
        |known: &RowSpans| steps.iter().map(|step| known.get(&(step.file, step.line)).copied()).collect::<Vec<Option<RowSpan>>>();
    let named = of(named);
    if named.iter().any(Option::is_some) {
        return named;
    }
    let unnamed = of(unnamed);
    let known: Vec<RowSpan> = unnamed.iter().flatten().copied().collect();
    let mut chosen = choose_moments(&known).unwrap_or_default().into_iter();
    unnamed.iter().map(|span| span.and_then(|_| chosen.next())).collect()
}

/// Returns when the energy of each row was used: in its own time, else since the row before it. That of a first row without a time
/// of its own was used over the median distance of two rows. Returns an error if nothing shows how long a row took.
fn energy_spans(
    recording: &mut Recording,
    steps: &[CounterIncrement],
    own: &[Option<RowSpan>],
) -> Result<Vec<RowSpan>, ImportError> {
    let field = ReadingField::EnergyJoulesTotal;
    let column = recording.columns.get(&field).map_or(field.name(), String::as_str).to_owned();
    let median = median_distance(steps.iter().map(|step| step.time));
    let (mut before, mut newest): (Option<EventTime>, Option<EventTime>) = (None, None);
    let mut spans: Vec<RowSpan> = Vec::with_capacity(steps.len());
    for (step, own) in steps.iter().zip(own) {
        if newest.is_some_and(|newest| newest < step.time) {
            before = newest;
        }
        newest = Some(step.time);
        let start = before.or_else(|| median.map(|micros| step.time.plus_micros(-micros)));
        let Some(span) = own.or(start.map(|start| RowSpan { start, end: step.time })) else {
            let problem = "the energy of this row is all there is, and nothing shows over how long it was used";
            let remedy = "add a column of how long it took (duration, in seconds) or of its start and its end (start_time, mapped as \
                          time, and end_time); if it is the last reading of a counter, add the first, and use --map \
                          energy_joules_total=COLUMN";
            return Err(recording.error(step.file, step.line, problem, remedy).with_column(column));
        };
        spans.push(span);
    }
    let note = if own.iter().all(Option::is_some) {
        let pauses: f64 = covered_stretches(&spans).windows(2).map(|pair| pair[1].start.seconds_since(pair[0].end)).sum();
        let unknown = if pauses > 0.0 { format!("; of {pauses:.0} s between rows no energy is known") } else { String::new() };
        format!("{column}: energy of a row is taken to be used in its own time, by its duration or its start and end{unknown}")
    } else {
        let seconds = median.map_or(0.0, |micros| micros as f64 / 1e6);
        format!("{column}: energy of a row is taken to be used since the row before it, that of the first row in {seconds} s")
    };
    recording.add_note(note);
    Ok(spans)
}

/// Makes an energy counter of what rows add; returns the time over which each row's energy was used. Its source is another stay after
/// a time that no row covers: nothing is known about that.
fn spread_energy(
    recording: &mut Recording,
    source: SourceId,
    steps: &[CounterIncrement],
    own: &[Option<RowSpan>],
) -> Result<Vec<RowSpan>, ImportError> {
    let field = ReadingField::EnergyJoulesTotal;
    let joules = |step: &CounterIncrement| step.added.iter().map(|(_, value)| *value).sum::<f64>();
    let spans = energy_spans(recording, steps, own)?;
    let rows: Vec<(RowSpan, f64)> = spans.iter().copied().zip(steps.iter().map(joules)).collect();
    // The reading of a row that has other figures, such as power, gets the counter, too.
    let readings = &recording.sources[source].readings;
    let mut places: BTreeMap<(u32, u32), usize> =
        readings.iter().enumerate().map(|(place, reading)| ((reading.file, reading.line), place)).collect();
    let row =
        |step: &CounterIncrement| (u32::try_from(step.file).unwrap_or(u32::MAX), u32::try_from(step.line).unwrap_or(u32::MAX));
    for (time, total) in counter_points(&rows) {
        let read: Vec<usize> = rows_at(steps, time).iter().filter_map(|step| places.remove(&row(step))).collect();
        for place in &read {
            let reading = &mut recording.sources[source].readings[*place];
            reading.values = reading.values.iter().copied().chain([(field, total)]).collect();
        }
        if read.is_empty() {
            let step = row_before(steps, time);
            recording.push_from(step.file, source, time, step.line, &[(field, total)], None);
        }
    }
    split_stays(&mut recording.sources[source].readings, &covered_stretches(&spans));
    Ok(spans)
}

/// Returns the rows of a time; rows must be in order of time.
fn rows_at(steps: &[CounterIncrement], time: EventTime) -> &[CounterIncrement] {
    let (first, end) = (steps.partition_point(|step| step.time < time), steps.partition_point(|step| step.time <= time));
    &steps[first..end]
}

/// Returns the row that a point of a counter belongs to: the first one of its time, else the last one before it, else the first.
fn row_before(steps: &[CounterIncrement], time: EventTime) -> &CounterIncrement {
    let before = steps.partition_point(|step| step.time <= time).saturating_sub(1);
    rows_at(steps, time).first().unwrap_or(&steps[before])
}

/// Marks readings of a counter by the stretch of time in which they lie, if there are several. Readings beside it, as of power, leave
/// no time unknown.
fn split_stays(readings: &mut [RecordedReading], stretches: &[RowSpan]) {
    let is_counted =
        |reading: &RecordedReading| reading.values.iter().any(|(field, _)| *field == ReadingField::EnergyJoulesTotal);
    if stretches.len() < 2 || !readings.iter().all(is_counted) {
        return;
    }
    for reading in readings {
        let place = stretches.partition_point(|stretch| stretch.start <= reading.time).saturating_sub(1);
        let tenure = stretches[place].start.micros().unsigned_abs();
        reading.portion = Some(Box::new(ReadingAttribution { tenure, ..ReadingAttribution::default() }));
    }
}

/// A row after a time without one that is so many times the usual distance of two rows did not take all of it: there was a pause.
const DISTANCES_OF_A_PAUSE: i64 = 3;

/// When rows did what they count of samples, tokens or steps.
struct ProgressTimes<'a> {
    /// The time of the energy of rows, or else their own, where they have it.
    known: RowSpans,
    /// Files of which each row is one sample, such as a request: it is a moment.
    of_moments: BTreeSet<FileId>,
    /// The boards, nodes or ranks of rows: each has rows of its own.
    boards: &'a RowBoards,
    /// Microseconds from the start of a moment to the time of its row, by which energy beside it was used.
    before_micros: i64,
}

impl<'a> ProgressTimes<'a> {
    fn new(
        (steps, own): (&[CounterIncrement], &[Option<RowSpan>]),
        of_energy: &RowSpans,
        counted_rows: &BTreeSet<(FileId, ReadingField)>,
        boards: &'a RowBoards,
    ) -> Self {
        let known = |(step, own): (&CounterIncrement, &Option<RowSpan>)| {
            let place = (step.file, step.line);
            Some((place, of_energy.get(&place).copied().or(*own)?))
        };
        let of_samples = counted_rows.iter().filter(|(_, field)| *field == ReadingField::SamplesTotal);
        Self {
            known: steps.iter().zip(own).filter_map(known).collect(),
            of_moments: of_samples.map(|(file, _)| *file).collect(),
            boards,
            before_micros: i64::from(!of_energy.is_empty()),
        }
    }

    /// Returns the amounts of a field in rows in order of time, each with the time in which it was done: the known one, else since the row
    /// before of its board in its file that has the field. The first row, and one after a pause, took the median distance of two rows.
    fn amounts(&self, steps: &[CounterIncrement], field: ReadingField) -> Vec<(RowSpan, f64)> {
        let added = |step: &CounterIncrement| {
            let of_field = || step.added.iter().filter(|(known, _)| *known == field).map(|(_, value)| *value);
            of_field().next().is_some().then(|| of_field().sum::<f64>())
        };
        let with_field: Vec<(&CounterIncrement, f64)> = steps.iter().filter_map(|step| Some((step, added(step)?))).collect();
        let board = |step: &CounterIncrement| (step.file, self.boards.get(&(step.file, step.line)).copied());
        let mut times: BTreeMap<(FileId, Option<usize>), Vec<EventTime>> = BTreeMap::new();
        for (step, _) in &with_field {
            times.entry(board(step)).or_default().push(step.time);
        }
        let usual: BTreeMap<(FileId, Option<usize>), i64> =
            times.iter().filter_map(|(board, times)| Some((*board, median_distance(times.iter().copied())?))).collect();
        let since_before = |step: &CounterIncrement| {
            let usual = *usual.get(&board(step)).filter(|_| !self.of_moments.contains(&step.file))?;
            let above = times.get(&board(step))?;
            let before = above.partition_point(|time| *time < step.time).checked_sub(1).and_then(|place| above.get(place));
            let distance = before.map(|before| step.time.micros() - before.micros());
            let micros = distance.filter(|micros| *micros <= DISTANCES_OF_A_PAUSE * usual).unwrap_or(usual);
            Some(RowSpan { start: step.time.plus_micros(-micros), end: step.time })
        };
        let span = |step: &CounterIncrement| {
            let start = step.time.plus_micros(-self.before_micros);
            let known = self.known.get(&(step.file, step.line)).copied();
            known.or_else(|| since_before(step)).unwrap_or(RowSpan { start, end: start.plus_micros(1) })
        };
        with_field.iter().map(|(step, value)| (span(step), *value)).collect()
    }
}

/// Returns the median distance of two different times, in microseconds; `None` if all are the same.
fn median_distance(ordered: impl Iterator<Item = EventTime> + Clone) -> Option<i64> {
    let pairs = ordered.clone().zip(ordered.skip(1));
    let mut distances: Vec<i64> =
        pairs.map(|(before, after)| after.micros() - before.micros()).filter(|micros| *micros > 0).collect();
    distances.sort_unstable();
    distances.get(distances.len() / 2).copied()
}

/// Makes counters of what rows add, evenly over the time in which it was done, so that energy and progress are of one time.
fn push_counters(recording: &mut Recording, source: SourceId, mut steps: Vec<CounterIncrement>, times: &ProgressTimes<'_>) {
    for step in &mut steps {
        step.time = times.known.get(&(step.file, step.line)).map_or(step.time, |span| span.end);
    }
    steps.sort_by_key(|step| step.time);
    let mut fields: Vec<ReadingField> = Vec::new();
    for (field, _) in steps.iter().flat_map(|step| &step.added) {
        if !fields.contains(field) {
            fields.push(*field);
        }
    }
    let amounts: Vec<Vec<(RowSpan, f64)>> = fields.iter().map(|field| times.amounts(&steps, *field)).collect();
    // Each counter has a point at the times of all of them.
    let points = counter_times(&amounts.concat());
    let totals: Vec<Vec<f64>> = amounts.iter().map(|rows| counter_totals(rows, &points)).collect();
    // A point at the time of another reading is of the same row.
    let mut rows: BTreeMap<EventTime, (FileId, u64)> = BTreeMap::new();
    for reading in &recording.sources[source].readings {
        rows.entry(reading.time).or_insert((reading.file as usize, u64::from(reading.line)));
    }
    let whole_run = !recording.sources.iter().any(|source| matches!(source.kind, SourceKind::Device(_)));
    let first = recording.sources[source].readings.len();
    for (index, time) in points.iter().enumerate() {
        let totals: Vec<(ReadingField, f64)> =
            fields.iter().zip(&totals).filter_map(|(field, totals)| Some((*field, *totals.get(index)?))).collect();
        let (file, line) = rows.get(time).copied().unwrap_or_else(|| {
            let step = row_before(&steps, *time);
            (step.file, step.line)
        });
        recording.push_from(file, source, *time, line, &totals, None);
    }
    if let [started, .., finished] = &mut recording.sources[source].readings[first..]
        && whole_run
    {
        let mark = |phase| Some(Box::new(ProgressMark { phase, span: None }));
        started.mark = mark(JobLifecycle::Started);
        finished.mark = mark(JobLifecycle::Finished);
    }
}

/// Returns the files in which the amounts of a field cannot be a running total, as they contain each other.
fn files_of_amounts(steps: &[CounterIncrement], field: ReadingField, spans: &RowSpans) -> BTreeSet<FileId> {
    let of_files = steps.chunk_by(|a, b| a.file == b.file);
    let of_amounts = of_files.filter(|of_file| rows_with_spans(of_file, field, spans).is_some_and(|rows| are_amounts(&rows)));
    of_amounts.map(|of_file| of_file[0].file).collect()
}

/// The times and runs of rows, where they have them. Beside times are the files in which each row with one is of another run.
#[derive(Clone, Copy)]
struct RowTimes<'a> {
    named: (&'a RowSpans, &'a BTreeSet<FileId>),
    /// As if the times of rows were their ends.
    unnamed: (&'a RowSpans, &'a BTreeSet<FileId>),
    runs: &'a RowRuns,
}

/// Returns whether a field grows with the durations of rows, which count since the start of a job.
fn counts_since_start(steps: &[CounterIncrement], field: ReadingField, times: RowTimes<'_>) -> bool {
    let mut of_files = steps.chunk_by(|a, b| a.file == b.file);
    let row = |step: &CounterIncrement| {
        let place = (step.file, step.line);
        Some(((*times.unnamed.0.get(&place)?, amount(step, field)?), times.runs.get(&place).copied()))
    };
    of_files.any(|of_file| {
        let (rows, runs): (Vec<(RowSpan, f64)>, Vec<Option<RunId>>) = of_file.iter().filter_map(row).unzip();
        jobs_since_start(&rows, &runs).is_some()
    })
}

/// Returns the lowest and the highest of figures above 0.
fn range_of(figures: impl Iterator<Item = f64>) -> (f64, f64) {
    figures.fold((f64::INFINITY, 0.0_f64), |(low, high), figure| (low.min(figure), high.max(figure)))
}

/// Less than this ratio of the highest energy of a file to its lowest, amounts may rise slowly, and a counter may have a large base.
const RISE_OF_AMOUNTS: f64 = 1.5;
/// Less than this no GPU draws that is on, in watts.
const LEAST_WATTS_OF_A_GPU: f64 = 3.0;

/// Returns whether values of energy rise from row to row by less than so many watts in all that time.
fn rise_below(values: &[(&CounterIncrement, f64)], watts: f64) -> bool {
    let is_slow = |pair: &[(&CounterIncrement, f64)]| {
        let seconds = pair[1].0.time.seconds_since(pair[0].0.time);
        let rise = pair[1].1 - pair[0].1;
        rise < watts * seconds || rise <= 0.0
    };
    values.chunk_by(|a, b| a.0.file == b.0.file).all(|of_file| of_file.windows(2).all(is_slow))
}

/// Returns whether values of energy rise too slowly from row to row for a counter of a device that is on, and by little in all.
fn rise_slowly(values: &[(&CounterIncrement, f64)]) -> bool {
    let rises_little = |of_file: &[(&CounterIncrement, f64)]| {
        let (least, most) = range_of(of_file.iter().map(|(_, joules)| *joules));
        most < RISE_OF_AMOUNTS * least
    };
    values.chunk_by(|a, b| a.0.file == b.0.file).all(rises_little) && rise_below(values, LEAST_WATTS_OF_A_GPU)
}

/// The power of rows that have a time of their own, if each value is the energy of that time.
struct PowerOfRows {
    /// The ratio of the longest time to the shortest.
    lengths: f64,
    least_watts: f64,
    most_watts: f64,
    /// Rows come one after the other.
    follow: bool,
    /// Each row of a file is of another run.
    are_runs: bool,
}

impl PowerOfRows {
    /// Returns the power of rows; `None` if one has no time of its own.
    fn of(values: &[(&CounterIncrement, f64)], times: RowTimes<'_>) -> Option<Self> {
        let of = |known: &RowSpans| -> Option<Vec<RowSpan>> {
            values.iter().map(|(step, _)| known.get(&(step.file, step.line)).copied()).collect()
        };
        let named = of(times.named.0);
        let (known, of_runs) = if named.is_some() { times.named } else { times.unnamed };
        let are_moments: fn(&[RowSpan]) -> bool = |spans| choose_moments(spans).is_some();
        let follow: fn(&[RowSpan]) -> bool = if named.is_some() { follow_each_other } else { are_moments };
        let spans = named.or_else(|| of(known))?;
        let lengths: Vec<f64> = spans.iter().map(|span| span.end.seconds_since(span.start)).collect();
        let (shortest, longest) = range_of(lengths.iter().copied());
        let (least_watts, most_watts) = range_of(values.iter().zip(&lengths).map(|((_, joules), seconds)| joules / seconds));
        let are_runs = values.iter().all(|(step, _)| of_runs.contains(&step.file));
        Some(Self { lengths: longest / shortest, least_watts, most_watts, follow: follow(&spans), are_runs })
    }

    /// Returns whether the power of rows differs by at most this ratio.
    fn is_within(&self, ratio: f64) -> bool {
        self.most_watts <= ratio * self.least_watts
    }

    /// Returns whether values are those of rows of different lengths that have about the same power. The rows follow each other, or are of
    /// a run each: a running total would grow from row to row beside them.
    fn grows_with_lengths(&self) -> bool {
        self.lengths >= LENGTHS_OF_AMOUNTS && self.is_within(POWERS_OF_AMOUNTS) && (self.follow || self.are_runs)
    }

    /// Returns whether a device may have this power in each row.
    fn is_possible(&self, meter: Meter) -> bool {
        self.is_within(POWERS_OF_RUNS) && self.least_watts >= LEAST_WATTS_OF_A_GPU && self.most_watts <= meter.most_watts()
    }

    /// Returns whether values may be amounts of rows, of a run each, or of about the same power: they rise by far less from row to row
    /// than this power would have a counter rise.
    fn may_be_amounts(&self, values: &[(&CounterIncrement, f64)]) -> bool {
        let rise_little = || rise_below(values, RISE_OF_POWER * self.least_watts);
        self.are_runs || self.follow && self.is_within(POWERS_OF_AMOUNTS) && rise_little()
    }
}

/// Least ratio of the longest row to the shortest one, and largest ratio of the power of rows, of energies that only grow because rows
/// are longer.
const LENGTHS_OF_AMOUNTS: f64 = 1.5;
const POWERS_OF_AMOUNTS: f64 = 1.25;
/// Largest ratio of the power of rows that one device may have: a running total of five rows of one length has a larger one.
const POWERS_OF_RUNS: f64 = 4.0;
/// Largest rise of amounts from row to row, relative to that of a counter with the power of the rows.
const RISE_OF_POWER: f64 = 0.1;

/// Returns an error if a column that is mapped as what rows add looks like a running total; notes one that may be.
fn refuse_running_totals(recording: &mut Recording, steps: &[CounterIncrement], times: RowTimes<'_>) -> Result<(), ImportError> {
    for (name, field) in STEPS {
        let of_amounts = files_of_amounts(steps, field, times.named.0);
        let others = steps.iter().filter(|step| !of_amounts.contains(&step.file));
        let values: Vec<(&CounterIncrement, f64)> = others.filter_map(|step| Some((step, amount(step, field)?))).collect();
        let growth = ColumnGrowth::of(&values.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        let is_energy = field == ReadingField::EnergyJoulesTotal;
        // What requests count grows with their durations, too, if clients start together.
        let since_start = is_energy && counts_since_start(steps, field, times);
        let power = PowerOfRows::of(&values, times).filter(|_| is_energy);
        let possible = power.as_ref().filter(|power| power.is_possible(recording.meter));
        let kind = match () {
            () if since_start => ColumnKind::RunningTotal,
            () if !is_energy || growth.kind() == ColumnKind::Step => growth.kind(),
            () if power.as_ref().is_some_and(PowerOfRows::grows_with_lengths) => ColumnKind::Step,
            () if rise_slowly(&values) || possible.is_some_and(|power| power.may_be_amounts(&values)) => ColumnKind::Either,
            () => growth.kind(),
        };
        if kind == ColumnKind::Step {
            continue;
        }
        let ((first_step, first), (_, last)) = (values[0], values[values.len() - 1]);
        let column = recording.columns.get(&field).map_or(field.name(), String::as_str).to_owned();
        let falls =
            if growth.falls == 0 { "never falls".to_owned() } else { format!("falls {} only", counted(growth.falls, "time")) };
        let grows = {
            let (rows, times) = (counted(growth.rows, "row"), counted(growth.rises, "time"));
            format!("grows from {first} to {last} over {rows}, {times}, and {falls}")
        };
        let total = recording.map_again(field.name(), field);
        if kind == ColumnKind::Either {
            recording.add_note(format!(
                "{name}: {column} {grows}; each row adds so much to {}; if it is a running total, use {total}",
                field.name()
            ));
            continue;
        }
        let problem = if since_start {
            format!("{grows}, with durations that count since the start of a job: it is a running total, not what a row adds")
        } else {
            format!("{grows}, as a running total does, not what a row adds")
        };
        let accept = AcceptedFinding::GrowingSteps.name();
        let remedy = match possible {
            Some(PowerOfRows { least_watts, most_watts, .. }) if !since_start => format!(
                "if each row adds so much to {name}, {least_watts:.0} to {most_watts:.0} W in its time, --accept {accept}; if it is a running \
                 total, use {total}"
            ),
            _ => format!("use {total}; or, if each row adds so much to {name}, --accept {accept}"),
        };
        return Err(recording.error(first_step.file, first_step.line, problem, remedy).with_column(column));
    }
    Ok(())
}

/// Kind of a column, judged by its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ColumnKind {
    /// An amount that a row adds.
    Step,
    /// A batch size that grows, or a running total.
    Either,
    RunningTotal,
}

/// Number of times that a column grows and falls from row to row.
#[derive(Debug, Clone, Copy)]
struct ColumnGrowth {
    rows: usize,
    rises: usize,
    falls: usize,
    first: f64,
    last: f64,
    /// It falls to next to nothing each time, and rises in nearly all other rows.
    begins_anew: bool,
    /// It rises by more and more until it falls, as batch sizes do that are tried one after the other.
    is_sweep: bool,
    /// It rises by the same at the same distances, give or take a row.
    is_even: bool,
}

/// A total grows so many times more often than it falls, as it does if a job begins anew.
const RISES_A_FALL: usize = 10;
/// The same of what falls to next to nothing, and may be a counter that is reset, or a sweep of batch sizes.
const RISES_A_RESTART: usize = 3;
/// Batch sizes that grow seldom have more levels, unless each is held for long.
const MOST_LEVELS: usize = 8;
/// A level of a batch size is held for as many rows, on average, if there are many of them.
const ROWS_OF_A_LEVEL: usize = 10;

/// Returns whether a column rises by the same at the same distances, give or take a row.
fn is_even(values: &[f64]) -> bool {
    let rises: Vec<(usize, f64)> =
        values.windows(2).enumerate().filter(|(_, pair)| pair[1] > pair[0]).map(|(at, pair)| (at, pair[1] - pair[0])).collect();
    let distances = || rises.windows(2).map(|pair| pair[1].0 - pair[0].0);
    let same = rises.iter().all(|(_, rise)| (rise - rises[0].1).abs() <= 1e-9 * rise.abs());
    same && distances().max().unwrap_or(0) <= distances().min().unwrap_or(0) + 1
}

/// Returns whether a column falls, to next to nothing each time, and rises in nearly all other rows.
fn begins_anew(values: &[f64]) -> bool {
    let pairs = || values.windows(2);
    let falls = pairs().filter(|pair| pair[1] < pair[0]).count();
    let rises = pairs().filter(|pair| pair[1] > pair[0]).count();
    falls > 0 && pairs().all(grows_or_restarts) && rises * 5 >= (values.len() - 1 - falls) * 4
}

/// Least factor from the first rise to the last one before a fall, in values that double.
const RISES_OF_A_SWEEP: f64 = 4.0;

/// Returns whether a column rises by more and more until it falls, each time.
fn is_sweep(values: &[f64]) -> bool {
    let mut cycles = values.chunk_by(|before, after| before <= after);
    cycles.all(|cycle| {
        let rises: Vec<f64> = cycle.windows(2).map(|pair| pair[1] - pair[0]).filter(|rise| *rise > 0.0).collect();
        rises.len() >= 2 && rises.is_sorted() && rises[rises.len() - 1] >= RISES_OF_A_SWEEP * rises[0]
    })
}

/// Returns whether a column grows as a running total does, and not as what each row adds.
pub(crate) fn is_running_total(values: &[f64]) -> bool {
    ColumnGrowth::of(values).kind() == ColumnKind::RunningTotal
}

impl ColumnGrowth {
    fn of(values: &[f64]) -> Self {
        let count = |is: fn(&f64, &f64) -> bool| values.windows(2).filter(|pair| is(&pair[0], &pair[1])).count();
        Self {
            rows: values.len(),
            rises: count(f64::lt),
            falls: count(f64::gt),
            first: values.first().copied().unwrap_or(0.0),
            last: values.last().copied().unwrap_or(0.0),
            begins_anew: begins_anew(values),
            is_sweep: is_sweep(values),
            is_even: is_even(values),
        }
    }

    fn kind(self) -> ColumnKind {
        let Self { rows, rises, falls, first, last, begins_anew, is_sweep, is_even } = self;
        if rows < ROWS_OF_A_TOTAL || rises < 3 {
            return ColumnKind::Step;
        }
        if begins_anew && falls * RISES_A_RESTART <= rises {
            let is_total = falls * RISES_A_FALL <= rises && !is_sweep;
            return if is_total { ColumnKind::RunningTotal } else { ColumnKind::Either };
        }
        if falls * RISES_A_FALL > rises {
            return ColumnKind::Step;
        }
        let always = rises * 5 >= (rows - 1) * 4;
        if always && (first == 0.0 || last >= 1.5 * first || rows >= 2 * ROWS_OF_A_TOTAL) {
            return ColumnKind::RunningTotal;
        }
        // A total that is read more often than it grows has steps; no batch is of nothing.
        let is_held = rows >= ROWS_OF_A_LEVEL * rises && !is_even;
        match (always, first == 0.0 || rises > MOST_LEVELS && !is_held) {
            (false, true) => ColumnKind::RunningTotal,
            (false, false) => ColumnKind::Either,
            (true, _) => ColumnKind::Step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_running_totals_from_what_rows_add() {
        for total in
            [&[0.0, 10.0, 20.0, 30.0, 40.0][..], &[100.0, 130.0, 170.0, 220.0, 260.0], &[0.0, 0.0, 8.0, 16.0, 24.0, 32.0]]
        {
            assert_eq!(ColumnGrowth::of(total).kind(), ColumnKind::RunningTotal, "{total:?}");
        }
        let rows = |count: u32, value: fn(f64) -> f64| (0..count).map(|row| value(f64::from(row))).collect::<Vec<_>>();
        for (what, total) in [
            ("a counter", rows(20, |row| 1e6 + 32.0 * row)),
            ("one of steps", rows(11, |row| 32.0 * (row / 3.0).floor())),
            ("one of steps that does not begin at 0", rows(40, |row| 640.0 + 32.0 * (row / 4.0).floor())),
            ("one that begins anew", rows(40, |row| 32.0 * (row % 25.0))),
            ("one that begins anew each epoch", rows(40, |row| 32.0 * (1.0 + row % 12.0))),
        ] {
            assert_eq!(ColumnGrowth::of(&total).kind(), ColumnKind::RunningTotal, "{what}");
        }
        for (what, either) in [
            ("a ramp", rows(40, |row| 16.0 + 16.0 * (row / 10.0).floor())),
            ("one that wraps early", rows(10, |row| (257e9 + 6e9 * row) % 262e9)),
            ("lengths that double", rows(20, |row| 128.0 * (row % 5.0).exp2())),
            ("batches that double", rows(21, |row| (row % 7.0).exp2())),
            ("many of them", rows(36, |row| (row % 12.0).exp2())),
        ] {
            assert_eq!(ColumnGrowth::of(&either).kind(), ColumnKind::Either, "{what}");
        }
        for steps in [
            &[32.0, 32.0, 32.0, 32.0, 32.0, 32.0][..],
            &[0.0, 10.0, 20.0],
            &[600_000.0, 600_000.0],
            &[100.0, 101.0, 102.0, 103.0, 104.0],
            &[10.0, 12.0, 9.0, 14.0, 15.0, 20.0],
            &[20.0, 32.0, 32.0, 32.0, 20.0, 32.0, 32.0, 32.0, 20.0],
            &[0.0, 32.0, 32.0, 32.0, 32.0, 20.0],
            &[16.0, 16.0, 32.0, 32.0, 32.0, 32.0],
            &[20.0, 31.0, 1.0, 30.0, 2.0, 33.0, 34.0],
        ] {
            assert_eq!(ColumnGrowth::of(steps).kind(), ColumnKind::Step, "{steps:?}");
        }
    }
}
