//! Assigns rows to boards: boards without an id, the same index in several files, and rows over which a clock went back.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use eadt_schemas::EventTime;
use eadt_schemas::counts::list_first;
use eadt_schemas::v1::CounterScope;

use crate::checks::{leave_tiny_counters_out, power, remove, value};
use crate::clock::NamedTimeZone;
use crate::csv_table::{SUMMED_PROGRESS, have_same_values};
use crate::fields::MetricType;
use crate::identity::{IdScope, SeveralBoards, is_zero_uuid};
use crate::interpolate::LinePoint;
use crate::names::{NAMES_SHOWN, event_name};
use crate::options::{AcceptedFinding, FileSetKind, SameTimeRule};
use crate::recording::{FileId, RecordedDevice, RecordedReading, Recording, RecordingSource, SourceKind};
use crate::rounds::{BoardTurns, PowerRow, assign_turns, find_board_turns};
use crate::units::lowercase_words;
use crate::{ImportError, ImportOptions, ReadingField, RecordingFormat};

/// Settles what a table leaves open: splits rows without an id, refuses a clock that goes back, joins parts of one record.
///
/// Readings must be in the order of their files.
pub(crate) fn resolve_boards(recording: &mut Recording, options: &ImportOptions) -> Result<(), ImportError> {
    if !recording.format.has_one_reading_a_time() {
        leave_tiny_counters_out(recording);
        return Ok(());
    }
    debug_assert!(
        recording.sources.iter().all(|source| source.readings.is_sorted_by_key(|reading| reading.file)),
        "readings are in the order of their files"
    );
    split_interleaved(recording, options)?;
    split_progress_by_file(recording, options)?;
    if !options.accept.contains(&AcceptedFinding::Unordered) {
        // Entries of a log of phases are in any order.
        let is_irregular = |source: &&RecordingSource| matches!(source.kind, SourceKind::Job { irregular: true, .. });
        for source in recording.sources.iter().filter(|source| !is_irregular(source)) {
            for readings in source.readings.chunk_by(|a, b| a.file == b.file) {
                refuse_clock_back(recording, readings, options)?;
            }
        }
    }
    if recording.format.is_mlperf() {
        return Ok(());
    }
    join_parts(recording, options)?;
    note_equal_boards(recording);
    settle_copied_boards(recording, options)
}

/// Returns the error for rows of one source that are of several boards by a column that is not mapped.
pub(crate) fn several_boards_error(
    recording: &Recording,
    file: FileId,
    found: &SeveralBoards,
    column: &str,
    remedy: &str,
) -> ImportError {
    let SourceKind::Device(device) = &recording.sources[found.source].kind else { unreachable!("called for devices only") };
    let what = if found.scope == IdScope::Node { "nodes" } else { "boards" };
    let problem =
        format!("rows {} take turns between {} {what} by this column, which is not mapped", describe_board(device), found.boards);
    let remedy = if !device.is_anonymous && names_parts_of_boards(column) {
        format!("{remedy}; rows of the whole device, which name none, are then left out: its parts have the same energy")
    } else {
        format!("{remedy}; if they are readings of one board, use --same-time mean")
    };
    recording.error(file, found.line, problem, remedy).with_column(column)
}

/// Returns whether a column is by its name one of parts of a board, such as tiles, which have rows beside those of the board.
pub(crate) fn names_parts_of_boards(column: &str) -> bool {
    const PARTS: [&str; 6] = ["chiplet", "subdevice", "tile", "tiles", "xcd", "xcds"];
    lowercase_words(column).iter().any(|word| PARTS.contains(&word.as_str()))
}

/// Returns how to distinguish the rows of boards in a format, as text of a remedy.
fn way_to_distinguish_boards(format: RecordingFormat) -> &'static str {
    match format {
        RecordingFormat::NvidiaSmi => "record with --query-gpu=timestamp,uuid,…",
        _ => "name the column that distinguishes them, --map device=COLUMN",
    }
}

fn describe_board(device: &RecordedDevice) -> String {
    if device.is_anonymous { "without the id of a board".to_owned() } else { format!("of {}", device.name) }
}

/// Remedy for power logs of several nodes or meters in one file.
const FILE_OF_ITS_OWN: &str = "write the readings of each into a file of its own";

/// Returns the remedy for rows of one board and moment.
fn way_to_distinguish(recording: &Recording, device: &RecordedDevice) -> String {
    let format = recording.format;
    if let Some(kinds) = &recording.column_of_kinds {
        return format!("column {kinds}: keep the rows of power only, or write each kind of reading into a column of its own");
    }
    if device.is_anonymous {
        let way = way_to_distinguish_boards(format);
        return format!(
            "if they are of several boards, {way}, or use --same-time boards if they come in the same order each time; if they are \
             readings of one board, use --same-time mean"
        );
    }
    let way = match format {
        RecordingFormat::NvidiaSmi => "import the file of each node under a name of its own",
        RecordingFormat::Mlperf | RecordingFormat::MlperfInference => FILE_OF_ITS_OWN,
        _ => "name the column that distinguishes the nodes, --map node=COLUMN",
    };
    let what = if format.is_mlperf() { "nodes or meters" } else { "nodes" };
    format!("if they are of several {what}, {way}; if they are readings of one board, use --same-time mean")
}

/// Returns the error for rows of one board and moment that differ.
pub(crate) fn same_time_error(recording: &Recording, source: &RecordingSource, group: &[RecordedReading]) -> ImportError {
    let SourceKind::Device(device) = &source.kind else { unreachable!("called for devices only") };
    let (first, second) = (&group[0], &group[1]);
    let other = if second.file == first.file {
        format!("line {}", first.line)
    } else {
        format!("{}:{}", recording.files[first.file as usize], first.line)
    };
    let whose = describe_board(device);
    let problem = format!("{} rows {whose} have the time {} and differ, this and {other}", group.len(), first.time);
    let mut remedy = way_to_distinguish(recording, device);
    if group.len() == 2 && recording.has_local_times {
        remedy.push_str("; if summer time ends here, give the zone, for example --time-zone Europe/Berlin");
    }
    recording.error(second.file as usize, u64::from(second.line), problem, remedy)
}

/// A row of a file that has running totals or rates of a job.
struct TotalsRow {
    time: EventTime,
    line: u32,
    file: u32,
    totals: Vec<(ReadingField, f64)>,
}

/// Returns the running totals and rates of a job that a row contains itself, not totals that are summed from what rows add.
fn running_totals(recording: &Recording, reading: &RecordedReading) -> Vec<(ReadingField, f64)> {
    let is_total = |field: ReadingField| SUMMED_PROGRESS.contains(&field) && !recording.mapped_as.contains_key(&field);
    reading.values.iter().copied().filter(|(field, _)| is_total(*field)).collect()
}

/// Returns the rows with running totals of each file, in order of time.
fn totals_by_file(recording: &Recording, job: usize) -> Vec<Vec<TotalsRow>> {
    let mut files: Vec<Vec<TotalsRow>> = Vec::new();
    for reading in &recording.sources[job].readings {
        let totals = running_totals(recording, reading);
        if totals.is_empty() {
            continue;
        }
        let row = TotalsRow { time: reading.time, line: reading.line, file: reading.file, totals };
        match files.last_mut().filter(|rows| rows[0].file == reading.file) {
            Some(rows) => rows.push(row),
            None => files.push(vec![row]),
        }
    }
    for rows in &mut files {
        rows.sort_by_key(|row| (row.time, row.line));
    }
    files
}

/// Fewer rows over the same time do not show whether two totals agree.
const ROWS_TO_AGREE: usize = 4;

/// Returns the values of a figure, with their times.
fn values_of(rows: &[TotalsRow], field: ReadingField) -> Vec<(EventTime, f64)> {
    let value = |row: &TotalsRow| row.totals.iter().find(|(other, _)| *other == field).map(|(_, value)| *value);
    rows.iter().filter_map(|row| Some((row.time, value(row)?))).collect()
}

/// Returns whether two files count the same. Over the time of both, their totals are never further apart than one step rises, or
/// their rates are the same.
fn are_one_total(a: &[TotalsRow], b: &[TotalsRow], field: ReadingField) -> bool {
    let (a, b) = (values_of(a, field), values_of(b, field));
    if field.nature() == MetricType::Gauge {
        return have_same_values(&a, &b);
    }
    let mut inside = Vec::new();
    for (time, value) in &b {
        if let Some(line) = LinePoint::at(&a, *time) {
            inside.push((*value, (value - line.value).abs(), line.rise));
        }
    }
    let rise = inside.iter().map(|(_, _, rise)| *rise).fold(0.0, f64::max);
    let whole = inside.last().zip(inside.first()).map_or(0.0, |(last, first)| last.0 - first.0);
    inside.len() >= ROWS_TO_AGREE && whole > 2.0 * rise && inside.iter().all(|(_, difference, _)| *difference <= rise)
}

/// Keeps a total that several files report alike from one of them only, the one with the longest span: it is of the whole job.
fn drop_repeated_totals(recording: &mut Recording, job: usize, files: &[Vec<TotalsRow>]) {
    for field in SUMMED_PROGRESS {
        // The files that report this total, grouped by agreement.
        let mut groups: Vec<Vec<&Vec<TotalsRow>>> = Vec::new();
        for rows in files.iter().filter(|rows| rows.iter().any(|row| row.totals.iter().any(|(other, _)| *other == field))) {
            match groups.iter_mut().find(|group| are_one_total(group[0], rows, field)) {
                Some(group) => group.push(rows),
                None => groups.push(vec![rows]),
            }
        }
        for group in groups.iter().filter(|group| group.len() > 1) {
            // The file with the longest span counts for all.
            let seconds = |rows: &&&Vec<TotalsRow>| rows[rows.len() - 1].time.micros() - rows[0].time.micros();
            let Some(longest) = group.iter().rev().max_by_key(seconds) else { continue };
            let file = longest[0].file;
            let others: Vec<u32> = group.iter().map(|rows| rows[0].file).filter(|other| *other != file).collect();
            for reading in &mut recording.sources[job].readings {
                if others.contains(&reading.file) {
                    remove(reading, field);
                }
            }
            let names: Vec<&str> = group.iter().map(|rows| recording.files[rows[0].file as usize].as_str()).collect();
            recording.add_note(format!(
                "{} is the same in {}: it is taken for that of the whole job, and read from {}",
                field.name(),
                names.join(", "),
                recording.files[file as usize]
            ));
        }
    }
    recording.sources[job].readings.retain(|reading| !reading.values.is_empty() || reading.mark.is_some());
}

/// Refuses running totals of several files over the same time. If they are of several nodes and count on their own, makes a rank
/// of each file. Joined they would be one counter that goes up and down.
fn split_progress_by_file(recording: &mut Recording, options: &ImportOptions) -> Result<(), ImportError> {
    if recording.format != RecordingFormat::Csv || options.files_are == Some(FileSetKind::Parts) {
        return Ok(());
    }
    let is_job = |source: &RecordingSource| matches!(source.kind, SourceKind::Job { .. });
    let Some(job) = recording.sources.iter().position(is_job) else { return Ok(()) };
    let files = totals_by_file(recording, job);
    let Some((a, b, field)) = overlapping_totals(&files) else { return Ok(()) };
    if options.files_are == Some(FileSetKind::Nodes) {
        drop_repeated_totals(recording, job, &files);
        if totals_by_file(recording, job).len() < 2 {
            return Ok(());
        }
        let source = recording.sources.swap_remove(job);
        let is_made = |reading: &RecordedReading| reading.values.iter().all(|(field, _)| recording.mapped_as.contains_key(field));
        // Counters of what rows add are of all files together.
        let (made, own): (Vec<RecordedReading>, Vec<RecordedReading>) = source.readings.into_iter().partition(is_made);
        let mut ranks: Vec<Vec<RecordedReading>> = own.chunk_by(|a, b| a.file == b.file).map(<[_]>::to_vec).collect();
        ranks.extend((!made.is_empty()).then_some(made));
        for (rank, readings) in ranks.into_iter().enumerate() {
            let kind = SourceKind::Job { rank: rank as u32, irregular: false, scope: CounterScope::Rank };
            let file = readings[0].file as usize;
            let own = recording.add_source(file, source.workload.clone(), kind);
            recording.sources[own].readings = readings;
        }
        recording.add_note("each file counts its own samples, tokens and steps: they are summed".to_owned());
        return Ok(());
    }
    let (first, second) = (&recording.files[files[a][0].file as usize], files[b][0].file as usize);
    let line = files[b].iter().find(|row| row.totals.iter().any(|(other, _)| *other == field)).map_or(0, |row| row.line);
    let problem = format!("{} is counted over the same time in {first}, and differs", field.name());
    let remedy = "if each file counts its own, use --files-are nodes: they are summed, but for totals that agree, which are the whole job's; if they are parts of one log, use --files-are parts";
    Err(recording.error(second, u64::from(line), problem, remedy))
}

/// Returns the first two files that have a figure over the same time, and not the same: their places, and the figure.
fn overlapping_totals(files: &[Vec<TotalsRow>]) -> Option<(usize, usize, ReadingField)> {
    let overlap = |a: &[TotalsRow], b: &[TotalsRow]| {
        let ends = a.first().zip(a.last()).zip(b.first().zip(b.last()));
        ends.is_some_and(|((first_a, last_a), (first_b, last_b))| first_a.time.max(first_b.time) < last_a.time.min(last_b.time))
    };
    let of_file = |rows: &Vec<TotalsRow>| SUMMED_PROGRESS.map(|field| values_of(rows, field));
    // Rotated logs do not overlap: their values are not needed.
    let mut values: BTreeMap<usize, [Vec<(EventTime, f64)>; SUMMED_PROGRESS.len()]> = BTreeMap::new();
    for (at, b) in files.iter().enumerate() {
        for (before, a) in files[..at].iter().enumerate() {
            if !overlap(a, b) {
                continue;
            }
            for (place, rows) in [(before, a), (at, b)] {
                values.entry(place).or_insert_with(|| of_file(rows));
            }
            let Some((of_a, of_b)) = values.get(&before).zip(values.get(&at)) else { continue };
            for (field, (a, b)) in SUMMED_PROGRESS.into_iter().zip(of_a.iter().zip(of_b)) {
                if differ_over_the_same_time(a, b, field) {
                    return Some((before, at, field));
                }
            }
        }
    }
    None
}

fn differ_over_the_same_time(a: &[(EventTime, f64)], b: &[(EventTime, f64)], field: ReadingField) -> bool {
    let (Some(((first_a, _), (last_a, _))), Some(((first_b, _), (last_b, _)))) =
        (a.first().zip(a.last()), b.first().zip(b.last()))
    else {
        return false;
    };
    let (from, to) = (*first_a.max(first_b), *last_a.min(last_b));
    let inside = |values: &[(EventTime, f64)]| {
        values.iter().copied().filter(|(time, _)| (from..=to).contains(time)).collect::<Vec<(EventTime, f64)>>()
    };
    // One row is the end of a part and the beginning of the next.
    from < to && inside(a) != inside(b) && !(field.nature() == MetricType::Gauge && have_same_values(a, b))
}

/// Splits sources whose rows have no id and come in bursts, once for each tick.
fn split_interleaved(recording: &mut Recording, options: &ImportOptions) -> Result<(), ImportError> {
    // A row that adds an amount makes two readings, close together.
    let has_steps = recording.mapped_as.contains_key(&ReadingField::EnergyJoulesTotal);
    for number in 0..recording.sources.len() {
        let source = &recording.sources[number];
        let SourceKind::Device(device) = &source.kind else { continue };
        if source.readings.is_empty() || has_steps || device.is_unique {
            continue;
        }
        let times: Vec<EventTime> = source.readings.iter().map(|reading| reading.time).collect();
        let bursts = bursts(&times);
        match (options.same_time, bursts) {
            (Some(SameTimeRule::Mean), _) => {}
            (None, None) => {
                if let Some(note) = settle_turns(recording, source, device)? {
                    recording.add_note(note);
                }
            }
            (None, Some(bursts)) if recording.format.is_mlperf() && are_close_bursts(&source.readings, &bursts) => {
                let name = device.name.clone();
                note_one_meter(recording, &name);
            }
            (None, Some(bursts)) if repeat_one_reading(source, &bursts) => {
                let note = describe_repeats(recording, device);
                recording.add_note(note);
                recording.duplicates += drop_repeats(&mut recording.sources[number].readings, &bursts);
            }
            (None, Some(bursts)) => {
                let second = &source.readings[bursts.first + 1];
                let whose = describe_board(device);
                let problem = format!("{} rows {whose} come close together again and again", bursts.size);
                let remedy = way_to_distinguish(recording, device);
                return Err(recording.error(second.file as usize, u64::from(second.line), problem, remedy));
            }
            (Some(SameTimeRule::Boards), _) if !device.is_anonymous => {}
            (Some(SameTimeRule::Boards), None) => {
                let places = places_in_turn(recording, source)?;
                split_boards(recording, number, BOARDS_IN_TURN, &places);
            }
            (Some(SameTimeRule::Boards), Some(bursts)) => {
                let places = bursts.places(source.readings.len());
                split_boards(recording, number, bursts.size, &places);
            }
        }
    }
    Ok(())
}

/// Boards that are found by rows that come in turn at any times.
const BOARDS_IN_TURN: usize = 2;

/// Returns how the rows of a source are those of two boards in turn, with the time and power of each. Power logs of nodes are of one
/// meter each.
fn find_turns(recording: &Recording, source: &RecordingSource) -> Option<(BoardTurns, Vec<PowerRow>)> {
    let rows: Vec<PowerRow> = source.readings.iter().map(|reading| (reading.time, power(reading))).collect();
    let is_table = matches!(recording.format, RecordingFormat::Csv | RecordingFormat::NvidiaSmi);
    is_table.then(|| find_board_turns(&rows)).flatten().map(|turns| (turns, rows))
}

/// Returns the board of each row of two boards in turn; an error if rows are none, or one may be of either board.
fn places_in_turn(recording: &Recording, source: &RecordingSource) -> Result<Vec<usize>, ImportError> {
    let remedy = way_to_distinguish_boards(recording.format);
    let error = |reading: &RecordedReading, problem: &str| {
        recording.error(reading.file as usize, u64::from(reading.line), problem, remedy)
    };
    let Some((turns, rows)) = find_turns(recording, source) else {
        return Err(error(&source.readings[0], "--same-time boards: rows do not come in groups of one size"));
    };
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by_key(|row| rows[*row].0);
    let in_order: Vec<PowerRow> = order.iter().map(|row| rows[*row]).collect();
    let boards = assign_turns(&in_order, turns).map_err(|place| {
        let problem = "--same-time boards: rows are absent above, and neither time nor power shows which board this row is of";
        error(&source.readings[order[place]], problem)
    })?;
    let mut places = vec![0; rows.len()];
    for (row, board) in order.into_iter().zip(boards) {
        places[row] = board;
    }
    Ok(places)
}

/// Returns an error if the rows of a source are those of two boards in turn: as one board they would count at their mean power. If the
/// table has columns that are left out, one of them may show what else takes turns, and it is a note.
fn settle_turns(recording: &Recording, source: &RecordingSource, device: &RecordedDevice) -> Result<Option<String>, ImportError> {
    if find_turns(recording, source).is_none() {
        return Ok(None);
    }
    let second = &source.readings[1];
    let remedy = way_to_distinguish(recording, device);
    if recording.tables.iter().any(|table| !table.left_out.is_empty()) {
        return Ok(Some(format!(
            "{}:{}: rows {} may be those of {BOARDS_IN_TURN} boards, by their power, which count as one at their mean: {remedy}; if a load \
             changes with each row, nothing is to be done",
            recording.files[second.file as usize],
            second.line,
            describe_board(device)
        )));
    }
    let problem = format!("rows {} take turns between {BOARDS_IN_TURN} boards, by their power", describe_board(device));
    Err(recording.error(second.file as usize, u64::from(second.line), problem, remedy))
}

/// Power readings of one meter that come together differ by no more than this part.
const DIFFERENCE_OF_ONE_METER: f64 = 0.1;

/// Returns whether power readings that come together are so close to each other that they may be of one meter.
pub(crate) fn are_of_one_meter(group: &[RecordedReading]) -> bool {
    let watts = || group.iter().filter_map(power);
    let (least, most) = (watts().fold(f64::INFINITY, f64::min), watts().fold(0.0, f64::max));
    most - least <= DIFFERENCE_OF_ONE_METER * most
}

fn are_close_bursts(readings: &[RecordedReading], bursts: &RowBursts) -> bool {
    bursts.groups(readings).all(are_of_one_meter)
}

/// Returns the note that rows of one time count once.
fn describe_repeats(recording: &Recording, device: &RecordedDevice) -> String {
    let way = if device.is_anonymous { way_to_distinguish_boards(recording.format) } else { FILE_OF_ITS_OWN };
    format!(
        "rows {} come together and repeat one reading each time: they count once; if they are of several boards, {way}",
        describe_board(device)
    )
}

/// Returns whether the rows of each burst repeat one reading, which changes from burst to burst: turbostat writes the power of all
/// packages beside that of the only one. Boards that idle or are capped may draw the same.
fn repeat_one_reading(source: &RecordingSource, bursts: &RowBursts) -> bool {
    let is_one = |group: &[RecordedReading]| group.windows(2).all(|pair| pair[0].values == pair[1].values);
    bursts.starts.len() >= READINGS_OF_ONE_BOARD
        && count_levels(source) >= LEVELS_OF_ONE_BOARD
        && bursts.groups(&source.readings).all(is_one)
}

/// Drops the readings of each burst that have another time than its first; returns how many. Their distances are none of the record,
/// in which each tick would be a gap.
fn drop_repeats(readings: &mut Vec<RecordedReading>, bursts: &RowBursts) -> u64 {
    let all = readings.len();
    let (mut place, mut first) = (0, EventTime::MIN);
    readings.retain(|reading| {
        if bursts.starts.binary_search(&place).is_ok() {
            first = reading.time;
        }
        place += 1;
        reading.time == first
    });
    (all - readings.len()) as u64
}

/// Notes that power readings that come together are taken for those of one meter.
pub(crate) fn note_one_meter(recording: &mut Recording, device: &str) {
    recording.add_note(format!(
        "{device}: power readings come together and are close to each other: they are taken for those of one meter, and averaged; if they \
         are of several meters, {FILE_OF_ITS_OWN}"
    ));
}

/// Suffix of a board's local id, if the board is known by the order of its rows.
const BY_ORDER: &str = " by order";

/// Makes a source into several boards; `places` has the board of each row.
fn split_boards(recording: &mut Recording, number: usize, count: usize, places: &[usize]) {
    let source = &mut recording.sources[number];
    let SourceKind::Device(device) = source.kind.clone() else { return };
    let (file, readings) = (source.file, std::mem::take(&mut source.readings));
    let mut boards: Vec<Vec<RecordedReading>> = vec![Vec::new(); count];
    for (reading, place) in readings.into_iter().zip(places) {
        boards[*place].push(reading);
    }
    for (index, readings) in boards.into_iter().enumerate() {
        let device = RecordedDevice {
            name: event_name(&format!("{}:gpu-{index}", device.name)),
            gpu_index: u32::try_from(index).ok(),
            local_id: Some(format!("gpu-{index}{BY_ORDER}")),
            is_anonymous: false,
            ..device.clone()
        };
        let source = recording.add_device(file, device);
        recording.sources[source].readings = readings;
    }
}

/// Rows that come in groups of one size.
#[derive(Debug, PartialEq)]
struct RowBursts {
    size: usize,
    /// Indices of the first row of each group.
    starts: Vec<usize>,
    /// The first group that has the size.
    first: usize,
}

impl RowBursts {
    /// Returns the rows of each group.
    fn groups<'r>(&self, rows: &'r [RecordedReading]) -> impl Iterator<Item = &'r [RecordedReading]> {
        let ends = self.starts.iter().skip(1).copied().chain([rows.len()]);
        self.starts.iter().zip(ends).map(move |(start, end)| &rows[*start..end])
    }

    /// Returns the place of each row in its group.
    fn places(&self, rows: usize) -> Vec<usize> {
        let ends = self.starts.iter().skip(1).copied().chain([rows]);
        let last = self.size - 1;
        self.starts.iter().zip(ends).flat_map(|(start, end)| (0..end - start).map(move |place| place.min(last))).collect()
    }
}

/// More rows a tick are no boards of one node.
const MOST_BOARDS: usize = 64;

/// Longest interval between two recordings of a node's boards.
const LONGEST_TICK_SECONDS: f64 = 3600.0;

/// Returns the groups of rows if nearly all have one size, of two or more, and last half of the time between them at most.
fn bursts(times: &[EventTime]) -> Option<RowBursts> {
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1].seconds_since(pair[0])).collect();
    // Times within a millisecond are not distinguished.
    let mut sorted: Vec<f64> = gaps.iter().filter(|gap| **gap >= 0.0).map(|gap| gap.max(1e-3)).collect();
    sorted.sort_by(f64::total_cmp);
    let widest = sorted.windows(2).max_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])))?;
    if widest[1] < 10.0 * widest[0] {
        return None;
    }
    let threshold = (widest[0] * widest[1]).sqrt();
    let breaks = gaps.iter().enumerate().filter(|(_, gap)| **gap > threshold || **gap < 0.0).map(|(index, _)| index + 1);
    let starts: Vec<usize> = std::iter::once(0).chain(breaks).collect();
    let ends = starts[1..].iter().copied().chain([times.len()]);
    let sizes: Vec<usize> = starts.iter().zip(ends).map(|(start, end)| end - start).collect();
    if sizes.len() < 3 {
        return None;
    }
    let mut by_size = sizes.clone();
    by_size.sort_unstable();
    let size = by_size[by_size.len() / 2];
    let odd = sizes.iter().filter(|other| **other != size).count();
    if !(2..=MOST_BOARDS).contains(&size) || odd > 2 + sizes.len() / 20 || odd * 2 > sizes.len() {
        return None;
    }
    let spans = |index: &usize| times[(index + size - 1).min(times.len() - 1)].seconds_since(times[*index]);
    let longest =
        starts.iter().zip(&sizes).filter(|(_, other)| **other == size).map(|(start, _)| spans(start)).fold(0.0, f64::max);
    let mut periods: Vec<f64> = starts.windows(2).map(|pair| times[pair[1]].seconds_since(times[pair[0]])).collect();
    periods.sort_by(f64::total_cmp);
    let first = *starts.iter().zip(&sizes).find(|(_, other)| **other == size)?.0;
    // Boards are read in turn within a tick; what is an hour apart are measurements of one board, each of some readings.
    if periods[periods.len() / 2] > LONGEST_TICK_SECONDS {
        return None;
    }
    (longest <= periods[periods.len() / 2] / 2.0).then_some(RowBursts { size, starts, first })
}

/// Returns an error if the clock of rows that are otherwise in order goes back over times that rows above have, or by an hour.
///
/// Sorted, the two passes would be mixed: an hour would be lost.
pub(crate) fn refuse_clock_back(
    recording: &Recording,
    readings: &[RecordedReading],
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let zone = options.time_zone.clone().unwrap_or_else(NamedTimeZone::utc);
    let Some(BackwardClockStep { index, seconds, meets_rows, is_half_day }) = clock_back(readings, &zone) else {
        return Ok(());
    };
    if is_half_day {
        let reading = &readings[index];
        let problem = format!("the clock goes back by {seconds} s here, as one that counts to 12 without AM and PM does");
        let accept = AcceptedFinding::Unordered.name();
        let remedy = format!(
            "write hours up to 23, or AM and PM behind the times; if the rows are in another order, use --accept {accept} to have them \
             sorted"
        );
        return Err(recording.error(reading.file as usize, u64::from(reading.line), problem, remedy));
    }
    // With a given zone, times in the repeated hour are known.
    let may_be_zone_change = options.time_zone.is_none() && recording.tables.iter().any(|table| table.time_zone.is_some());
    if !meets_rows && !may_be_zone_change || recording.format.is_mlperf() && is_logger_restart(readings, index) {
        return Ok(());
    }
    let reading = &readings[index];
    let where_to = if meets_rows { "over times that rows above have" } else { "to one hour before the row above goes on" };
    let problem = format!("the clock goes back by {seconds} s here, {where_to}, in rows that are otherwise in order");
    let of_several = format!("if these are of several nodes or meters, {FILE_OF_ITS_OWN}");
    let zone = match options.time_zone {
        _ if recording.format == RecordingFormat::Mlperf => of_several.as_str(),
        None => "if summer time ends here, give the zone, for example --time-zone Europe/Berlin",
        Some(_) => "in this zone no clock is set back here",
    };
    let accept = AcceptedFinding::Unordered.name();
    let remedy = format!("{zone}; else correct the times, or use --accept {accept} to have the rows sorted");
    Err(recording.error(reading.file as usize, u64::from(reading.line), problem, remedy))
}

/// A logger that is started again repeats no more than this part of what it had logged.
const MOST_REPEATED: f64 = 0.1;

/// Returns whether a logger was started again before the row `index`, and repeats the end of what it had logged.
fn is_logger_restart(readings: &[RecordedReading], index: usize) -> bool {
    let times = || readings[..index].iter().map(|reading| reading.time);
    let (Some(first), Some(last)) = (times().min(), times().max()) else { return false };
    last.seconds_since(readings[index].time) <= MOST_REPEATED * last.seconds_since(first)
}

/// A row before which the clock goes back.
#[derive(Debug, Clone, Copy, PartialEq)]
struct BackwardClockStep {
    index: usize,
    seconds: f64,
    /// Rows above have the times that it goes back over. Else it goes back by an hour, to before the first row.
    meets_rows: bool,
    /// It goes on twelve hours before, where no row is: hours are counted to 12.
    is_half_day: bool,
}

/// A clock that is set back an hour goes on so near to one hour before.
const HOUR_BACK_TOLERANCE_SECONDS: f64 = 60.0;
const HALF_A_DAY_SECONDS: f64 = 43_200.0;

/// Returns the row of a record at which its clock goes back; `zone` is that of times without an offset.
fn clock_back(readings: &[RecordedReading], zone: &NamedTimeZone) -> Option<BackwardClockStep> {
    let falls = readings.windows(2).filter(|pair| pair[1].time < pair[0].time).count();
    // More of them are rows in no order.
    if falls == 0 || falls > 2 + readings.len() / 100 {
        return None;
    }
    let mut newest = readings[0].time;
    for index in 1..readings.len() {
        let reading = &readings[index];
        if reading.time < newest && reading.time < readings[index - 1].time {
            let again: Vec<&RecordedReading> = readings[index..].iter().take_while(|later| later.time <= newest).collect();
            let (from, to) = (reading.time, again.iter().map(|later| later.time).max()?);
            let above: Vec<&RecordedReading> =
                readings[..index].iter().filter(|above| (from..=to).contains(&above.time)).collect();
            // A file that is there twice has repeats, which are counted; but so has an hour of even load at the end of summer time.
            let seconds = newest.seconds_since(from);
            let interval = newest.seconds_since(readings[index.saturating_sub(2)].time).max(1.0);
            let is_zone_change = [3600.0, 1800.0].iter().any(|hour| (seconds - hour).abs() <= 2.0 * interval);
            let same =
                |later: &RecordedReading| above.iter().any(|above| above.time == later.time && above.values == later.values);
            let repeats = from == readings[0].time && !is_zone_change && again.iter().all(|later| same(later));
            if again.len() >= 2 && !above.is_empty() && !repeats {
                return Some(BackwardClockStep { index, seconds, meets_rows: true, is_half_day: false });
            }
            // A record that began within the hour that comes twice has no row of the first pass there. If the rows from here on
            // end where those above begin, they are a record in the wrong order.
            let goes_on_an_hour_before = (seconds + interval - 3600.0).abs() <= HOUR_BACK_TOLERANCE_SECONDS;
            let leads_to_first = readings[0].time.seconds_since(to) <= 2.0 * interval;
            let is_long_enough = index >= 2;
            if above.is_empty() && falls == 1 && is_long_enough && again.len() >= 2 && goes_on_an_hour_before && !leads_to_first {
                return Some(BackwardClockStep { index, seconds, meets_rows: false, is_half_day: false });
            }
            let goes_on_half_a_day_before = (seconds + interval - HALF_A_DAY_SECONDS).abs() <= interval.max(1.0);
            // One row is enough: no row is out of place by just that.
            let goes_from_12_to_1 = || zone.hour(readings[index - 1].time) == Some(12) && zone.hour(from) == Some(1);
            if above.is_empty() && is_long_enough && goes_on_half_a_day_before && !leads_to_first && goes_from_12_to_1() {
                return Some(BackwardClockStep { index, seconds, meets_rows: false, is_half_day: true });
            }
        }
        newest = newest.max(reading.time);
    }
    None
}

/// Joins the boards of files that are parts of one record; files whose times overlap are of several nodes.
fn join_parts(recording: &mut Recording, options: &ImportOptions) -> Result<(), ImportError> {
    let mut files: Vec<FileId> = recording.sources.iter().filter(|source| local_id(source).is_some()).map(|s| s.file).collect();
    files.sort_unstable();
    files.dedup();
    if files.len() < 2 || options.files_are == Some(FileSetKind::Nodes) {
        return Ok(());
    }
    files.sort_by_key(|file| (first_time(recording, *file), *file));
    // The files of each node in order of time.
    let mut nodes: Vec<Vec<FileId>> = Vec::new();
    let overlaps = Cell::new(false);
    for file in files {
        let goes_on = |node: &Vec<FileId>| -> Result<bool, ImportError> {
            let mut shares_a_board = false;
            for before in node {
                match compare_files(recording, *before, file) {
                    FileRelation::NoBoardInCommon => {}
                    FileRelation::Overlap if options.files_are.is_none() => {
                        overlaps.set(true);
                        return Ok(false);
                    }
                    FileRelation::OtherCounter if options.files_are.is_none() => return Ok(false),
                    FileRelation::Copy(board) if options.files_are.is_none() => {
                        let (a, b) = (&recording.files[*before], &recording.files[file]);
                        let of_board = if board.is_empty() { String::new() } else { format!(" of {board}") };
                        let problem = format!("has the same rows{of_board} as {a}");
                        let remedy = "if it is a copy, leave one of the two out, or use --files-are parts; if it is another node, use \
                                      --files-are nodes";
                        return Err(ImportError::in_file(b, problem, remedy));
                    }
                    FileRelation::Apart | FileRelation::OtherCounter | FileRelation::Overlap | FileRelation::Copy(_) => {
                        shares_a_board = true;
                    }
                }
            }
            Ok(shares_a_board)
        };
        let mut candidates = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            if goes_on(node)? {
                let common = common_prefix(&recording.files[node[0]], &recording.files[file]);
                candidates.push((common, std::cmp::Reverse(index)));
            }
        }
        match candidates.iter().max() {
            Some((_, std::cmp::Reverse(index))) => nodes[*index].push(file),
            None => nodes.push(vec![file]),
        }
    }
    let several_nodes = nodes.len() > 1 && overlaps.get();
    for node in nodes {
        for later in &node[1..] {
            merge_boards(recording, node[0], *later);
        }
        if node.len() > 1 {
            let names: Vec<&str> = node.iter().map(|file| recording.files[*file].as_str()).collect();
            recording
                .add_note(format!("files taken for parts of one record, as their times do not overlap: {}", names.join(", ")));
        }
    }
    if several_nodes {
        recording.add_note("files whose times overlap are taken for nodes with boards of their own".to_owned());
    }
    Ok(())
}

/// Fewer readings, or fewer values of power among them, may be alike by chance: boards idle alike, and are capped alike.
const READINGS_OF_ONE_BOARD: usize = 10;
const LEVELS_OF_ONE_BOARD: usize = 4;

/// Returns an error if boards of two files, whatever their names, have the same readings at the same times: one file is a copy of
/// the other under another id, and would count twice. If the files are declared parts of one record, the copy is left out; boards
/// that their UUIDs or nodes distinguish are noted.
fn settle_copied_boards(recording: &mut Recording, options: &ImportOptions) -> Result<(), ImportError> {
    if options.files_are == Some(FileSetKind::Nodes) || recording.files.len() < 2 {
        return Ok(());
    }
    // Sources are grouped by figures that are cheap to compare; those that agree are compared whole.
    let mut alike: HashMap<(usize, EventTime, EventTime), Vec<usize>> = HashMap::new();
    let mut copies: Vec<usize> = Vec::new();
    let mut notes: Vec<String> = Vec::new();
    for (number, source) in recording.sources.iter().enumerate() {
        let SourceKind::Device(board) = &source.kind else { continue };
        let [first, .., last] = source.readings.as_slice() else { continue };
        if source.readings.len() < READINGS_OF_ONE_BOARD || count_levels(source) < LEVELS_OF_ONE_BOARD {
            continue;
        }
        let others = alike.entry((source.readings.len(), first.time, last.time)).or_default();
        let is_same = |(a, b): (&RecordedReading, &RecordedReading)| a.file != b.file && a.time == b.time && a.values == b.values;
        let is_copied = |other: &usize| recording.sources[*other].readings.iter().zip(&source.readings).all(is_same);
        let Some(copied) = others.iter().copied().find(is_copied) else {
            others.push(number);
            continue;
        };
        let copied = &recording.sources[copied];
        let SourceKind::Device(other) = &copied.kind else { continue };
        let (a, b) = (&recording.files[copied.readings[0].file as usize], &recording.files[first.file as usize]);
        let problem = format!("has the same readings of {} as {a} has of {}", board.name, other.name);
        let are_nodes = board.node.is_some() && other.node.is_some() && board.node != other.node;
        if are_nodes || board.is_unique && other.is_unique {
            notes.push(format!("{b} {problem}: both are counted; if it is a copy, leave one of the two out"));
        } else if options.files_are.is_none() {
            let remedy = "if it is a copy, leave one of the two out, or use --files-are parts; if it is another board, use \
                          --files-are nodes";
            return Err(ImportError::in_file(b, problem, remedy));
        } else {
            notes.push(format!("{b} {problem}: it is left out, as --files-are makes the files parts of one record"));
            copies.push(number);
        }
    }
    for number in copies {
        recording.duplicates += std::mem::take(&mut recording.sources[number].readings).len() as u64;
    }
    for note in notes {
        recording.add_note(note);
    }
    Ok(())
}

/// Notes boards of one table that have the same readings of power and energy in rows of their own: they may be one reading, such as
/// that of a package, which each of its dies reports.
fn note_equal_boards(recording: &mut Recording) {
    if recording.format != RecordingFormat::Csv {
        return;
    }
    // Sources are grouped by figures that are cheap to compare. Each group begins with the board that others are equal to.
    let mut alike: HashMap<(u32, usize, EventTime, EventTime), Vec<usize>> = HashMap::new();
    let mut equal: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (number, source) in recording.sources.iter().enumerate() {
        let SourceKind::Device(board) = &source.kind else { continue };
        let [first, .., last] = source.readings.as_slice() else { continue };
        let is_shared = source.readings.iter().any(|reading| reading.portion.is_some());
        if is_shared || source.readings.len() < READINGS_OF_ONE_BOARD || count_levels(source) < LEVELS_OF_ONE_BOARD {
            continue;
        }
        let others = alike.entry((first.file, source.readings.len(), first.time, last.time)).or_default();
        let is_equal = |other: &usize| {
            let other = &recording.sources[*other];
            let is_named_alike = matches!(&other.kind, SourceKind::Device(device) if device.name == board.name);
            !is_named_alike && other.readings.iter().zip(&source.readings).all(are_equal_rows)
        };
        match others.iter().copied().find(is_equal) {
            Some(other) => equal.entry(other).or_default().push(number),
            None => others.push(number),
        }
    }
    for (first, others) in equal {
        let names: Vec<&str> = others.iter().filter_map(|number| device_name(&recording.sources[*number])).collect();
        let source = &recording.sources[first];
        let note = format!(
            "{} has the same readings of {} as {} in {} rows: if they are one reading, as two dies of one package have, its energy counts \
             more than once; leave out all but one",
            device_name(source).unwrap_or_default(),
            if source.readings.iter().any(|reading| power(reading).is_some()) { "power" } else { "energy" },
            list_first(&names, NAMES_SHOWN),
            source.readings.len()
        );
        recording.add_note(note);
    }
}

/// Returns whether two rows of one file have the same power and energy at the same time. One row has columns of several boards, which
/// are compared elsewhere.
fn are_equal_rows((a, b): (&RecordedReading, &RecordedReading)) -> bool {
    let energy = |reading: &RecordedReading| value(reading, ReadingField::EnergyJoulesTotal);
    (a.file, a.time) == (b.file, b.time) && a.line != b.line && power(a) == power(b) && energy(a) == energy(b)
}

fn device_name(source: &RecordingSource) -> Option<&str> {
    match &source.kind {
        SourceKind::Device(device) => Some(&device.name),
        SourceKind::Job { .. } => None,
    }
}

/// Returns how many values power has in a source; without power, how many rises its energy counter has.
fn count_levels(source: &RecordingSource) -> usize {
    let rows: Vec<&[(ReadingField, f64)]> = source.readings.iter().map(|reading| &reading.values[..]).collect();
    let mut levels = energy_levels(&rows);
    levels.sort_unstable();
    levels.dedup();
    levels.len()
}

fn common_prefix(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count()
}

fn local_id(source: &RecordingSource) -> Option<&str> {
    match &source.kind {
        SourceKind::Device(device) if !source.readings.is_empty() => device.local_id.as_deref(),
        _ => None,
    }
}

fn first_time(recording: &Recording, file: FileId) -> Option<EventTime> {
    let of_file = recording.sources.iter().filter(|source| source.file == file && local_id(source).is_some());
    of_file.flat_map(|source| source.readings.iter().map(|reading| reading.time)).min()
}

enum FileRelation {
    NoBoardInCommon,
    /// The later file begins where the earlier ended, or after.
    Apart,
    /// It does, but the energy counter of its board, which has no id, does not go on.
    OtherCounter,
    Overlap,
    /// The overlap is the same, row by row.
    Copy(String),
}

fn compare_files(recording: &Recording, before: FileId, file: FileId) -> FileRelation {
    let of_file =
        |wanted: FileId| recording.sources.iter().filter(move |source| source.file == wanted && local_id(source).is_some());
    let mut relation = FileRelation::NoBoardInCommon;
    for a in of_file(before) {
        let Some(b) = of_file(file).find(|b| local_id(b) == local_id(a)) else { continue };
        let range = |source: &RecordingSource| {
            let times = source.readings.iter().map(|reading| reading.time);
            (times.clone().min().unwrap_or(EventTime::MIN), times.max().unwrap_or(EventTime::MIN))
        };
        let ((a_from, a_to), (b_from, b_to)) = (range(a), range(b));
        let has_id = has_local_id(a);
        // Two boards without an id may have a reading each at one time.
        if a_to < b_from || has_id && a_to == b_from {
            if !has_id && !counter_goes_on(a, b, recording.meter.most_watts()) {
                return FileRelation::OtherCounter;
            }
            if matches!(relation, FileRelation::NoBoardInCommon) {
                relation = FileRelation::Apart;
            }
            continue;
        }
        let (from, to) = (a_from.max(b_from), a_to.min(b_to));
        let (of_a, of_b) = (readings_between(a, from, to), readings_between(b, from, to));
        if of_a != of_b && !is_thinned(&of_a, &of_b) && !is_thinned(&of_b, &of_a) {
            return FileRelation::Overlap;
        }
        let fewer = if of_a.len() < of_b.len() { &of_a } else { &of_b };
        if !has_id && !are_of_one_board(fewer) {
            return FileRelation::Overlap;
        }
        if !matches!(relation, FileRelation::Copy(_)) {
            relation = FileRelation::Copy(local_id(a).unwrap_or_default().to_owned());
        }
    }
    relation
}

type ReadingValues = Box<[(ReadingField, f64)]>;

/// Returns whether rows of a source name their board, if only by a number. A UUID of zeros, or the order of rows, is no name.
fn has_local_id(source: &RecordingSource) -> bool {
    local_id(source).is_some_and(|id| !id.is_empty() && !is_zero_uuid(id) && !id.ends_with(BY_ORDER))
}

/// Returns whether the energy counter of a board may have continued in a later record: it has not fallen, nor risen by more
/// than the metered power allows.
fn counter_goes_on(before: &RecordingSource, later: &RecordingSource, most_watts: f64) -> bool {
    let counts = |source: &RecordingSource| -> Vec<(EventTime, f64)> {
        let count = |reading: &RecordedReading| Some((reading.time, value(reading, ReadingField::EnergyJoulesTotal)?));
        source.readings.iter().filter_map(count).collect()
    };
    let last = counts(before).into_iter().max_by_key(|(time, _)| *time);
    let first = counts(later).into_iter().min_by_key(|(time, _)| *time);
    let (Some((from, last)), Some((to, first))) = (last, first) else { return true };
    (0.0..=most_watts * to.seconds_since(from).max(1.0)).contains(&(first - last))
}

/// Fewer readings, or fewer changes among them, may be alike of two boards without an id: idle ones, or capped ones.
const READINGS_WITHOUT_ID: usize = 3;
const CHANGES_WITHOUT_ID: usize = 2;

/// Returns whether readings that two files without an id have in common are those of one board.
fn are_of_one_board(common: &[(EventTime, &ReadingValues)]) -> bool {
    let rows: Vec<&[(ReadingField, f64)]> = common.iter().map(|(_, values)| &values[..]).collect();
    let changes = energy_levels(&rows).windows(2).filter(|pair| pair[0] != pair[1]).count();
    rows.len() >= READINGS_WITHOUT_ID && changes >= CHANGES_WITHOUT_ID
}

/// Returns the values of power in rows. If they have none, returns the rises of their energy counter from row to row, in steps of
/// its rounding. Totals differ in each row, and ratios are often alike.
fn energy_levels(rows: &[&[(ReadingField, f64)]]) -> Vec<i64> {
    const LEVELS_PER_WATT: f64 = 1e6;
    const LEVELS_PER_TOTAL: f64 = 1e9;
    let find = |values: &[(ReadingField, f64)], field: ReadingField| {
        values.iter().find(|(other, _)| *other == field).map(|(_, value)| *value)
    };
    let watts = |values: &&[(ReadingField, f64)]| {
        find(values, ReadingField::PowerWatts).or_else(|| find(values, ReadingField::PowerAverageWatts))
    };
    let levels: Vec<i64> = rows.iter().filter_map(watts).map(|watts| (watts * LEVELS_PER_WATT).round() as i64).collect();
    if !levels.is_empty() {
        return levels;
    }
    let totals: Vec<f64> = rows.iter().filter_map(|values| find(values, ReadingField::EnergyJoulesTotal)).collect();
    let most = totals.iter().copied().fold(1.0, f64::max);
    totals.windows(2).map(|pair| ((pair[1] - pair[0]) / most * LEVELS_PER_TOTAL).round() as i64).collect()
}

fn readings_between(source: &RecordingSource, from: EventTime, to: EventTime) -> Vec<(EventTime, &ReadingValues)> {
    let inside = source.readings.iter().filter(|reading| (from..=to).contains(&reading.time));
    let mut inside: Vec<_> = inside.map(|reading| (reading.time, &reading.values)).collect();
    inside.sort_by_key(|(time, _)| *time);
    inside
}

/// Fewer readings are no copy of every other one by chance.
const READINGS_OF_A_COPY: usize = 3;

/// Returns whether readings are some of others, at the same times, and not all alike as those of an idle board are.
fn is_thinned(some: &[(EventTime, &ReadingValues)], all: &[(EventTime, &ReadingValues)]) -> bool {
    let has_changes = some.windows(2).any(|pair| pair[0].1 != pair[1].1);
    let mut rest = all.iter();
    some.len() >= READINGS_OF_A_COPY && has_changes && some.iter().all(|reading| rest.any(|other| other == reading))
}

/// Adds the readings of one file's boards to those of another.
fn merge_boards(recording: &mut Recording, into: FileId, from: FileId) {
    let numbers = |wanted: FileId| -> Vec<usize> {
        let of_file =
            |number: &usize| recording.sources[*number].file == wanted && local_id(&recording.sources[*number]).is_some();
        (0..recording.sources.len()).filter(of_file).collect()
    };
    let (targets, later) = (numbers(into), numbers(from));
    for number in later {
        let id = local_id(&recording.sources[number]).map(str::to_owned);
        let target = targets.iter().find(|target| local_id(&recording.sources[**target]) == id.as_deref());
        let Some(target) = target.copied() else {
            // A board that the first part does not have.
            recording.sources[number].file = into;
            continue;
        };
        let mut readings = std::mem::take(&mut recording.sources[number].readings);
        // Amounts that rows add make a counter that begins in each file.
        if recording.mapped_as.contains_key(&ReadingField::EnergyJoulesTotal) {
            continue_counter(&recording.sources[target].readings, &mut readings);
        }
        recording.sources[target].readings.extend(readings);
    }
}

/// Lets the energy counter of a later part go on from the end of the earlier one, where both begin at 0.
fn continue_counter(before: &[RecordedReading], later: &mut Vec<RecordedReading>) {
    let field = ReadingField::EnergyJoulesTotal;
    let counts = before.iter().filter_map(|reading| Some((reading.time, value(reading, field)?)));
    let Some((end, total)) = counts.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))) else { return };
    // The beginning of the counter, in the first row's interval, is the end of the part before.
    later.retain(|reading| reading.time > end || value(reading, field) != Some(0.0));
    for (_, joules) in later.iter_mut().flat_map(|reading| reading.values.iter_mut()).filter(|(other, _)| *other == field) {
        *joules += total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(seconds: &[f64]) -> Vec<EventTime> {
        seconds.iter().map(|seconds| EventTime::from_seconds(1.7e9 + seconds)).collect()
    }

    fn readings(rows: &[(f64, f64)]) -> Vec<RecordedReading> {
        let reading = |(index, (seconds, watts)): (usize, &(f64, f64))| RecordedReading {
            // From a midnight on.
            time: EventTime::from_seconds(1_699_920_000.0 + seconds),
            line: index as u32 + 2,
            file: 0,
            values: vec![(ReadingField::PowerWatts, *watts)].into(),
            mark: None,
            portion: None,
        };
        rows.iter().enumerate().map(reading).collect()
    }

    #[test]
    fn finds_rows_that_come_in_bursts() {
        let ticks = |boards: usize, step: f64, ticks: usize| -> Vec<f64> {
            (0..ticks).flat_map(|tick| (0..boards).map(move |board| tick as f64 + board as f64 * step)).collect()
        };
        for (seconds, size) in [
            (ticks(4, 0.0, 6), Some(4)),
            (ticks(2, 0.003, 11), Some(2)),
            (ticks(8, 0.002, 5), Some(8)),
            (ticks(8, 0.02, 21), Some(8)),
            (ticks(8, 0.03, 21), Some(8)),
            (ticks(2, 0.05, 21), Some(2)),
            (ticks(16, 0.0, 20), Some(16)),
            (ticks(1, 0.0, 20), None),
            // A pause is no tick, and phases of ten rows each are no boards.
            ([ticks(1, 0.0, 20), vec![90.0, 91.0, 92.0]].concat(), None),
            ((0..10).flat_map(|phase| (0..10).map(move |row| f64::from(phase) * 11.0 + f64::from(row))).collect(), None),
            (vec![0.0, 0.0, 0.0], None),
            (vec![0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 5.0, 6.0], None),
        ] {
            assert_eq!(bursts(&times(&seconds)).map(|bursts| bursts.size), size, "{seconds:?}");
        }
        let cut = ticks(4, 0.0, 6)[1..].to_vec();
        let found = bursts(&times(&cut)).unwrap();
        assert_eq!((found.size, found.first), (4, 3), "a record may begin within a tick");
    }

    #[test]
    fn finds_a_clock_that_goes_back() {
        let found = |rows: &[(f64, f64)]| {
            clock_back(&readings(rows), &NamedTimeZone::utc())
                .map(|BackwardClockStep { index, seconds, meets_rows, is_half_day }| (index, seconds, meets_rows || is_half_day))
        };
        let minutes = |minutes: &[i32]| -> Vec<(f64, f64)> {
            minutes.iter().enumerate().map(|(row, minute)| (60.0 * f64::from(*minute), 100.0 + row as f64)).collect()
        };
        for (rows, expected) in [
            (minutes(&[40, 45, 50, 55, 0, 5, 10, 40, 45, 50, 55, 60]), Some((4, 3300.0, true))),
            (minutes(&[0, 30, 0, 30, 60]), Some((2, 1800.0, true))),
            // A record that begins within the hour that comes twice, and ends before it comes again.
            (minutes(&[50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 0, 1, 2, 3]), Some((10, 3540.0, false))),
            (minutes(&[40, 45, 50, 55, 0, 5, 10]), Some((4, 3300.0, false))),
            (minutes(&[50, 51, 52, 53, 0, 1, 2, 3]), None),
            // A clock that counts to 12: 12:59, 1:00.
            (minutes(&[776, 777, 778, 779, 60, 61, 62]), Some((4, 43_140.0, true))),
            (minutes(&[660, 690, 720, 750, 60, 90]), Some((4, 41_400.0, true))),
            (minutes(&[776, 777, 778, 779, 60]), Some((4, 43_140.0, true))),
            (minutes(&[776, 777, 778, 779, 59]), None),
            (minutes(&[776, 777, 778, 779, 80, 81, 82]), None),
            // An afternoon before its morning.
            (minutes(&[1196, 1197, 1198, 1199, 480, 481, 482]), None),
            // Rotated logs, newest first, and a row out of place.
            (minutes(&[30, 40, 50, 0, 10, 20]), None),
            (minutes(&(30..60).chain(0..30).collect::<Vec<_>>()), None),
            (minutes(&[120, 150, 180, 210, 0, 30, 60, 90]), None),
            (minutes(&[0, 15, 45, 30, 60, 75, 90]), None),
            (minutes(&[30, 40, 50, 0]), None),
            (minutes(&[0, 1, 2, 3, 4, 5]), None),
            // A row out of place, a block out of place, two records in the wrong order.
            (minutes(&[0, 1, 3, 2, 4, 5]), None),
            (minutes(&[0, 1, 2, 6, 7, 8, 3, 4, 5, 9]), None),
            (minutes(&[60, 61, 62, 0, 1, 2]), None),
            (minutes(&[5, 3, 4, 1, 2, 0, 4, 3]), None),
        ] {
            assert_eq!(found(&rows), expected, "{rows:?}");
        }
        let twice: Vec<(f64, f64)> = (0..2).flat_map(|_| (0..5).map(|second| (f64::from(second), 100.0))).collect();
        assert_eq!(found(&twice), None, "the same rows twice are repeats");
        let even = |rows: &[i32]| -> Vec<(f64, f64)> { rows.iter().map(|minute| (60.0 * f64::from(*minute), 100.0)).collect() };
        let hour: Vec<i32> = (0..60).step_by(2).collect();
        assert_eq!(found(&even(&[hour.clone(), hour].concat())), Some((30, 3480.0, true)), "an hour of even load");
        assert_eq!(found(&even(&[0, 1, 2, 3, 4, 5, 3, 4, 5, 6])), Some((6, 120.0, true)), "a clock that was set");
    }
}
