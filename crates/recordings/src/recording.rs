//! The common form that every format is read into before it becomes events.

use std::collections::BTreeMap;
use std::path::Path;

use eadt_schemas::EventTime;
use eadt_schemas::counts::list_first;
use eadt_schemas::v1::{CounterScope, JobLifecycle, Meter};

use crate::fingerprint::Fingerprint;
use crate::names::{NAMES_SHOWN, shell_quote};
use crate::report::{DroppedLines, TableUse};
use crate::tenancy::ReadingAttribution;
use crate::{ImportError, ImportOptions, ReadingField, RecordingFormat};

/// Index into [`Recording::files`].
pub(crate) type FileId = usize;
/// Index into [`Recording::sources`].
pub(crate) type SourceId = usize;

/// Refused rows after which an import ends at once if they are more than half of its rows so far. Tables of a board that gives no
/// figures at first begin with hours of such rows.
const MOST_REFUSED_ROWS: u64 = 5_000_000;
/// Boards and jobs of an import, at most: a table whose column of boards changes with each row has millions.
const MOST_BOARDS: usize = 100_000;

#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) format: RecordingFormat,
    pub(crate) files: Vec<String>,
    fingerprints: Vec<Fingerprint>,
    pub(crate) sources: Vec<RecordingSource>,
    most_boards: usize,
    /// The file's name of a field, for error messages; of several boards, the names of all.
    pub(crate) columns: BTreeMap<ReadingField, String>,
    /// The boards that have columns of their own, and these, by field.
    columns_of_boards: BTreeMap<ReadingField, Vec<(String, String)>>,
    /// Name of a field in `--map`, if it is another one: `energy_joules` for amounts that rows add to `energy_joules_total`.
    pub(crate) mapped_as: BTreeMap<ReadingField, &'static str>,
    /// Units that `--map` gives.
    pub(crate) explicit_units: BTreeMap<ReadingField, &'static str>,
    /// Ranges of energy counters that tables have, in joules, the smallest first.
    pub(crate) counter_ranges: Vec<f64>,
    /// Times without an offset are read as UTC, for want of a zone.
    pub(crate) has_local_times: bool,
    /// Devices that the figures cover.
    pub(crate) meter: Meter,
    /// A column that names readings of several kinds, with two of them; none if it is mapped.
    pub(crate) column_of_kinds: Option<String>,
    pub(crate) rows: u64,
    pub(crate) absent: u64,
    /// Rows found out of order before they became readings.
    pub(crate) out_of_order: u64,
    /// Rows put together before they became readings: repeated ones, and those with other values.
    pub(crate) duplicates: u64,
    pub(crate) same_stamp: u64,
    pub(crate) skipped: Vec<DroppedLines>,
    /// Rows that are damaged.
    pub(crate) refusals: RowRefusals,
    /// Use of each table.
    pub(crate) tables: Vec<TableUse>,
    pub(crate) notes: Vec<String>,
}

/// Rows that become no event because they are damaged.
#[derive(Debug, Default)]
pub(crate) struct RowRefusals {
    first: Option<ImportError>,
    pub(crate) by_kind: Vec<DroppedLines>,
    rows: u64,
    /// Rows of another quantity by their unit, which are nothing against the mapping, and the first of them.
    others: u64,
    first_other: Option<ImportError>,
    /// Number of rows that are checked before the table ends.
    most: u64,
}

#[derive(Debug)]
pub(crate) struct RecordingSource {
    pub(crate) file: FileId,
    /// Workload from labels in the recording; used if the user names none.
    pub(crate) workload: Option<String>,
    /// Suffix of the workload's name, for devices that belong to the run and not to its job; usually empty.
    pub(crate) suffix: &'static str,
    /// The recording states that it is of no workload.
    pub(crate) is_nobodys: bool,
    pub(crate) kind: SourceKind,
    pub(crate) readings: Vec<RecordedReading>,
}

#[derive(Debug, Clone)]
pub(crate) enum SourceKind {
    Device(RecordedDevice),
    Job {
        rank: u32,
        /// Rows come at any time, as in a log of phases: silence is no gap.
        irregular: bool,
        /// The scope of its counters.
        scope: CounterScope,
    },
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RecordedDevice {
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) gpu_index: Option<u32>,
    pub(crate) gpu_model: Option<String>,
    /// A name that means this board in this file only, such as an index: another file may be another node.
    pub(crate) local_id: Option<String>,
    /// Rows have no id of a board: they may be of several.
    pub(crate) is_anonymous: bool,
    /// Rows name it as no other board is named, such as by a UUID.
    pub(crate) is_unique: bool,
    /// The text in the mapped column of boards.
    pub(crate) row_name: Option<String>,
    /// The board to which its own columns are mapped.
    pub(crate) board: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct RecordedReading {
    pub(crate) time: EventTime,
    pub(crate) line: u32,
    pub(crate) file: u32,
    pub(crate) values: Box<[(ReadingField, f64)]>,
    pub(crate) mark: Option<Box<ProgressMark>>,
    /// Share of a device that changes hands or is shared.
    pub(crate) portion: Option<Box<ReadingAttribution>>,
}

/// The content of a job's log beside numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProgressMark {
    pub(crate) phase: JobLifecycle,
    /// The span that begins here; empty: none goes on.
    pub(crate) span: Option<String>,
}

/// The kind of refusals of rows that are of another quantity than the mapped one by their unit.
pub(crate) const OF_ANOTHER_UNIT: &str = "other unit";

/// Reason why a row becomes no event.
pub(crate) enum RowError {
    /// The row is damaged, in a way that is counted; the rest goes on.
    Damaged(&'static str, Box<ImportError>),
    /// More than the row is wrong: the import stops.
    Stop(Box<ImportError>),
}

impl RowError {
    pub(crate) fn damaged(kind: &'static str, error: ImportError) -> Self {
        Self::Damaged(kind, Box::new(error))
    }

    pub(crate) fn stop(error: ImportError) -> Self {
        Self::Stop(Box::new(error))
    }
}

impl Recording {
    pub(crate) fn new(format: RecordingFormat, options: &ImportOptions) -> Self {
        let meter = match format {
            RecordingFormat::Mlperf => Meter::Node,
            RecordingFormat::MlperfInference => Meter::Wall,
            _ => Meter::Gpu,
        };
        Self {
            format,
            files: Vec::new(),
            fingerprints: Vec::new(),
            sources: Vec::new(),
            most_boards: options.most_boards.unwrap_or(MOST_BOARDS),
            columns: BTreeMap::new(),
            columns_of_boards: BTreeMap::new(),
            mapped_as: BTreeMap::new(),
            explicit_units: BTreeMap::new(),
            counter_ranges: Vec::new(),
            has_local_times: false,
            meter: options.meter.unwrap_or(meter),
            column_of_kinds: None,
            rows: 0,
            absent: 0,
            out_of_order: 0,
            duplicates: 0,
            same_stamp: 0,
            skipped: Vec::new(),
            refusals: RowRefusals { most: options.most_refused_rows.unwrap_or(MOST_REFUSED_ROWS), ..RowRefusals::default() },
            tables: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn add_file(&mut self, name: &str, fingerprint: Fingerprint) -> FileId {
        self.files.push(name.to_owned());
        self.fingerprints.push(fingerprint);
        self.files.len() - 1
    }

    pub(crate) fn add_source(&mut self, file: FileId, workload: Option<String>, kind: SourceKind) -> SourceId {
        self.sources.push(RecordingSource { file, workload, suffix: "", is_nobodys: false, kind, readings: Vec::new() });
        self.sources.len() - 1
    }

    pub(crate) fn add_device(&mut self, file: FileId, device: RecordedDevice) -> SourceId {
        self.add_source(file, None, SourceKind::Device(device))
    }

    /// Returns an error if the recording has more boards by now than one import may have.
    pub(crate) fn check_board_count(&self, file: FileId, line: u64) -> Result<(), ImportError> {
        let most = self.most_boards;
        if self.sources.len() <= most {
            return Ok(());
        }
        let problem = format!("the recording has more than {most} boards");
        let remedy = "check that the column of boards does not change with each row, or import the boards in several parts";
        Err(self.error(file, line, problem, remedy))
    }

    /// Adds a reading; one without values and marks is left out.
    pub(crate) fn push(
        &mut self,
        source: SourceId,
        time: EventTime,
        line: u64,
        values: &[(ReadingField, f64)],
        mark: Option<ProgressMark>,
    ) {
        self.push_from(self.sources[source].file, source, time, line, values, mark);
    }

    /// Like [`Self::push`], from another file than the source's first.
    pub(crate) fn push_from(
        &mut self,
        file: FileId,
        source: SourceId,
        time: EventTime,
        line: u64,
        values: &[(ReadingField, f64)],
        mark: Option<ProgressMark>,
    ) {
        if values.is_empty() && mark.is_none() {
            return;
        }
        let (line, file) = (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(file).unwrap_or(u32::MAX));
        self.sources[source].readings.push(RecordedReading {
            time,
            line,
            file,
            values: values.into(),
            mark: mark.map(Box::new),
            portion: None,
        });
    }

    /// Adds a reading of a device, or the portion of it that belongs to the source.
    pub(crate) fn push_portion(
        &mut self,
        source: SourceId,
        (time, line): (EventTime, u64),
        values: &[(ReadingField, f64)],
        portion: Option<ReadingAttribution>,
    ) {
        if !values.is_empty() {
            let file = u32::try_from(self.sources[source].file).unwrap_or(u32::MAX);
            let (line, portion) = (u32::try_from(line).unwrap_or(u32::MAX), portion.map(Box::new));
            self.sources[source].readings.push(RecordedReading { time, line, file, values: values.into(), mark: None, portion });
        }
    }

    /// Counts a row if it is damaged; returns the error if the import stops.
    pub(crate) fn count_if_damaged(&mut self, row: Result<(), RowError>) -> Result<(), ImportError> {
        match row {
            Ok(()) => Ok(()),
            Err(RowError::Damaged(kind, error)) => {
                self.refuse_row(kind, *error);
                // A few kilobytes of zstd can be rows without end.
                if self.refusals.rows + self.refusals.others >= self.refusals.most { self.check_refusals() } else { Ok(()) }
            }
            Err(RowError::Stop(error)) => Err(*error),
        }
    }

    /// Counts a row that is damaged; the rest goes on. The `error` of the first row of a `kind` is the one that is shown.
    pub(crate) fn refuse_row(&mut self, kind: &'static str, error: ImportError) {
        self.refuse_lines(kind, 1, error);
    }

    /// Like [`Self::refuse_row`], of several lines; the `error` names the first.
    pub(crate) fn refuse_lines(&mut self, kind: &'static str, lines: u64, error: ImportError) {
        let is_other = kind == OF_ANOTHER_UNIT;
        if is_other {
            self.refusals.others += lines;
        } else {
            self.refusals.rows += lines;
        }
        let same = |skipped: &&mut DroppedLines| skipped.kind == kind && skipped.file == error.file;
        if let Some(skipped) = self.refusals.by_kind.iter_mut().find(same) {
            skipped.lines += lines;
        } else {
            let (file, first_line) = (error.file.clone(), error.line.unwrap_or(0));
            self.refusals.by_kind.push(DroppedLines { file, kind, reason: error.without_place(), lines, first_line });
        }
        let first = if is_other { &mut self.refusals.first_other } else { &mut self.refusals.first };
        first.get_or_insert(error);
    }

    /// Returns the first refusal as an error if more than half of the rows are refused: then it is not the rows that are wrong. Rows
    /// of another quantity by their unit are none of these, unless no row is of the mapped one.
    pub(crate) fn check_refusals(&mut self) -> Result<(), ImportError> {
        let refusals = &mut self.refusals;
        let first = if refusals.others > 0 && refusals.others >= self.rows {
            refusals.first_other.take()
        } else if refusals.rows * 2 > self.rows.saturating_sub(refusals.others) {
            refusals.first.take()
        } else {
            None
        };
        first.map_or(Ok(()), Err)
    }

    /// Notes the column of a field, and the board that it is of.
    pub(crate) fn add_column(&mut self, field: ReadingField, board: Option<&str>, column: String) {
        let Some(board) = board else {
            self.columns.insert(field, column);
            return;
        };
        let of_boards = self.columns_of_boards.entry(field).or_default();
        if !of_boards.iter().any(|(have, of_have)| have == board && *of_have == column) {
            of_boards.push((board.to_owned(), column));
        }
        let names: Vec<&str> = of_boards.iter().map(|(_, column)| column.as_str()).collect();
        self.columns.insert(field, list_first(&names, NAMES_SHOWN));
    }

    /// Returns the column of a field that is mapped to a board; of several files, the first.
    pub(crate) fn column_of_board(&self, field: ReadingField, board: &str) -> Option<&str> {
        let of_boards = self.columns_of_boards.get(&field)?;
        of_boards.iter().find(|(have, _)| have == board).map(|(_, column)| column.as_str())
    }

    /// Returns a `--map` of each column of a field, with the unit that was asked for, under another name.
    pub(crate) fn map_again(&self, name: &str, field: ReadingField) -> String {
        let unit = self.explicit_units.get(&field).map_or(String::new(), |unit| format!(":{unit}"));
        let map = |target: &str, column: &str| format!("--map {}", shell_quote(&format!("{target}={column}{unit}")));
        match self.columns_of_boards.get(&field) {
            Some(boards) => {
                let maps = boards.iter().map(|(board, column)| map(&format!("{name}[{board}]"), column));
                maps.collect::<Vec<_>>().join(" ")
            }
            None => map(name, self.columns.get(&field).map_or(field.name(), String::as_str)),
        }
    }

    /// Notes boards of one file that have not the same number of rows, if their times are made from it.
    pub(crate) fn note_drift(&mut self, file: FileId, rows: impl Iterator<Item = i64> + Clone) {
        let (fewest, most) = (rows.clone().min().unwrap_or(0), rows.max().unwrap_or(0));
        if fewest < most {
            self.add_note(format!(
                "{}: boards have {fewest} to {most} rows: times made from their numbers drift apart",
                self.files[file]
            ));
        }
    }

    /// Notes the columns of a table that become nothing.
    pub(crate) fn note_left_out(&mut self, columns: &[String]) {
        if !columns.is_empty() {
            self.add_note(format!("columns left out: {}", columns.join(", ")));
        }
    }

    /// Notes in which zone times without an offset were read.
    pub(crate) fn note_local_times(&mut self, options: &ImportOptions) {
        self.has_local_times |= options.time_zone.is_none();
        self.add_note(match &options.time_zone {
            Some(zone) => format!("times without an offset are read as {zone}"),
            None => {
                "times without an offset are read as UTC; if they are local, give the zone, for example --time-zone Europe/Berlin"
                    .to_owned()
            }
        });
    }

    /// Adds the range of an energy counter, in joules.
    pub(crate) fn add_counter_range(&mut self, joules: f64) {
        let place = self.counter_ranges.partition_point(|known| *known < joules);
        if self.counter_ranges.get(place) != Some(&joules) {
            self.counter_ranges.insert(place, joules);
        }
    }

    /// Adds a note that is not there yet.
    pub(crate) fn add_note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// Counts a line that becomes no event because it holds nothing that events are made of.
    pub(crate) fn skip_line(&mut self, file: FileId, line: u64, reason: &str) {
        let name = &self.files[file];
        match self.skipped.iter_mut().find(|skipped| skipped.reason == reason && skipped.file == *name) {
            Some(skipped) => skipped.lines += 1,
            None => {
                self.skipped.push(DroppedLines {
                    file: name.clone(),
                    kind: "",
                    reason: reason.to_owned(),
                    lines: 1,
                    first_line: line,
                });
            }
        }
    }

    pub(crate) fn error(&self, file: FileId, line: u64, problem: impl Into<String>, remedy: impl Into<String>) -> ImportError {
        ImportError::in_line(&self.files[file], line, problem, remedy)
    }

    /// Returns a name of a file for its boards, `FOLDER-STEM-FINGERPRINT`, with a number behind it if several files would have
    /// it.
    ///
    /// The fingerprint distinguishes it from a file of the same name in another import, such as `power.csv` of another node.
    pub(crate) fn board_file_name(&self, file: FileId) -> String {
        let plain = |file: FileId| {
            let folder = Path::new(&self.files[file]).parent().and_then(Path::file_name);
            let stem = self.clean_stem(file);
            let name = folder.map_or(stem.clone(), |folder| format!("{}-{stem}", folder.to_string_lossy()));
            format!("{}-{}", clean_name(&name), self.fingerprints[file])
        };
        let label = plain(file);
        let same = (0..file).filter(|other| plain(*other) == label).count();
        if same == 0 { label } else { format!("{label}-{}", same + 1) }
    }

    /// Returns a name made from a file's: without folder and ending, with nothing but letters, digits, `.`, `_` and `-`.
    pub(crate) fn clean_stem(&self, file: FileId) -> String {
        let path = Path::new(&self.files[file]);
        let mut stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for ending in [".jsonl", ".json", ".csv", ".txt", ".log", ".prom"] {
            if let Some(short) = stem.strip_suffix(ending) {
                stem = short.to_owned();
            }
        }
        clean_name(&stem)
    }
}

/// Returns at most 200 letters, digits, `.`, `_`, `-`; other characters become `-`.
pub(crate) fn clean_name(text: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = text.chars().map(keep).take(200).collect();
    if name.is_empty() { "recording".to_owned() } else { name }
}
