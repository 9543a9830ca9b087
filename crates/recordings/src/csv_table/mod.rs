//! Any table; [`crate::FieldMap`]s define its columns.
//!
//! Rows that add to a counter (`samples=batch`) have done so in their own time, or since the row before: the counter rises evenly over
//! that time. If each row is one sample (`samples=*`), such as a request, rows are moments: the counter keeps its value up to the row's
//! time and has the new one a microsecond later, and a silence counts nothing. A table that has nothing but progress is taken for a
//! whole run, from the start of its first row to its last.

mod board_columns;
mod board_names;
mod board_progress;
mod counter_columns;
mod nested_meters;
mod nested_spans;
mod plan;
mod rails;
mod slurm_jobs;
mod steps;
mod time_columns;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::{CounterScope, Meter};

pub(crate) use self::board_columns::{ColumnRole, find_column_roles};
use self::board_names::describe_zone;
pub(crate) use self::board_names::find_misnamed_boards;
pub(crate) use self::board_progress::{BoardProgress, OwnProgress, ProgressRelation, have_same_values};
use self::counter_columns::joules_of_tick;
pub(crate) use self::counter_columns::{TickColumn, find_range_column, find_tick_column, may_count_ticks};
use self::nested_spans::{RowMoment, RowSpan, SpanColumns};
use self::plan::{FieldSource, NumberColumn, TableMapping, ValueExpression};
pub(crate) use self::rails::{names_rail_of_module, names_total_of_rails};
use self::slurm_jobs::JobRows;
use self::steps::CounterIncrements;
pub(crate) use self::steps::is_running_total;
use self::time_columns::{ClockDays, NumberedDay, UnknownTime};
use crate::absent::{is_absent_name, is_absent_number, is_absent_text};
use crate::boards::{names_parts_of_boards, several_boards_error};
use crate::checks::is_power;
use crate::clock::{ParsedTime, TimeFormat, TimeParser};
use crate::decimal_mark::{DecimalMarkDetector, MARK_REMEDY};
use crate::error::quote;
use crate::fields::MetricType;
use crate::foreign_text::{ForeignText, foreign_json};
use crate::identity::{
    IdColumns, IdScope, SeveralBoards, driver_uuid, find_alternation, is_unique_id, spelling_key, spelling_key_of_text,
};
use crate::lines::LineReader;
use crate::names::{event_name, shell_quote};
use crate::quantity::{QuantityCell, is_quantity, parse_quantity, split_unit};
use crate::recording::{FileId, OF_ANOTHER_UNIT, RecordedDevice, RecordedReading, Recording, RowError, SourceId, SourceKind};
use crate::report::TableUse;
use crate::rounds::MOST_ROWS_OF_TEXTS;
use crate::row_times::RowTimes;
use crate::rows::{CUT, CUT_REMEDY};
use crate::sum_of_devices::{SHORT_TOTAL_WORD, WORD_BEFORE_TOTALS};
use crate::table::{HeaderCriteria, HeaderRow, RowCells, TableReader};
use crate::units::{Dimension, Unit, ambiguous_unit, is_unit_of_others, word_places, worded_unit};
use crate::words::{ELECTRICAL_WORDS, TOTAL_WORDS, lowercase_words};
use crate::{ImportError, ImportOptions, ReadingField};

/// Fields for amounts that one row adds to a counter.
const STEPS: [(&str, ReadingField); 4] = [
    ("samples", ReadingField::SamplesTotal),
    ("tokens", ReadingField::TokensTotal),
    ("steps", ReadingField::StepsTotal),
    ("energy_joules", ReadingField::EnergyJoulesTotal),
];
/// Figures of a job that are the sum of those of its ranks.
pub(crate) const SUMMED_PROGRESS: [ReadingField; 5] = [
    ReadingField::SamplesTotal,
    ReadingField::TokensTotal,
    ReadingField::StepsTotal,
    ReadingField::SamplesPerSecond,
    ReadingField::TokensPerSecond,
];
const TEXT_FIELDS: [&str; 4] = ["time", "device", "node", "gpu_model"];
/// Looked for, in this order, where no `time=` is given.
pub(crate) const TIME_NAMES: [&str; 7] = ["time", "timestamp", "datetime", "date_time", "ts", "date", "_timestamp"];

/// Shortest mean interval between two readings.
const SHORTEST_INTERVAL_SECONDS: f64 = 0.005;

/// Returns every FIELD that a map may name.
pub(crate) fn known_targets() -> Vec<&'static str> {
    let texts = TEXT_FIELDS.into_iter().chain(STEPS.iter().map(|(name, _)| *name));
    texts.chain(ReadingField::ALL.iter().map(|field| field.name())).collect()
}

/// Returns whether a FIELD may be of one of several boards.
pub(crate) fn is_of_a_board(target: &str) -> bool {
    let step = STEPS.iter().find(|(name, _)| *name == target).map(|(_, field)| *field);
    step.or_else(|| ReadingField::from_name(target)).is_some_and(|field| !field.is_progress())
}

pub(crate) fn read(
    files: Vec<(FileId, LineReader<'_>)>,
    recording: &mut Recording,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let clock = TimeParser::new(options.time_format.clone(), options.time_zone.clone());
    refuse_date_of_several(files.len(), options)?;
    let mut sources = TableSources::default();
    let mut before = None;
    for (file, lines) in files {
        let names = |cells: &RowCells| wanted_names(cells, options);
        let is_data = |cells: &RowCells| has_readings(cells, options, &clock);
        let (mut table, header) =
            TableReader::open(lines, recording, file, &HeaderCriteria { names: &names, is_data: &is_data })?;
        let Some(header) = header else {
            let file = &recording.files[file];
            return Err(ImportError::in_file(file, "is empty: it has no header", "check that this is the right file"));
        };
        refuse_json(&recording.files[file], &header)?;
        let mut reader = FileReader::new(recording, file, &table, header, &clock, options)?;
        reader.times = RowTimes::following(before.take(), options);
        let mut cells = RowCells::default();
        let mut below_header = !reader.take_units_of_comment(recording, &mut table)?;
        while let Some(line) = table.next_row(recording, file, &mut cells)? {
            if reader.plan.time.is_some() && cells.iter().all(str::is_empty) {
                recording.skip_line(file, line, EMPTY_ROW);
                continue;
            }
            if reader.is_repeated_header(recording, line, &cells)? {
                continue;
            }
            if std::mem::take(&mut below_header) {
                let taken = reader.plan.take_units(&cells);
                if taken.map_err(|(column, problem)| recording.error(file, line, problem, ONE_UNIT).with_column(column))? {
                    recording.skip_line(file, line, UNITS_BELOW_HEADER);
                    continue;
                }
            }
            recording.rows += 1;
            if table.is_cut() {
                recording.count_if_damaged(Err(RowError::damaged("cut off", recording.error(file, line, CUT, CUT_REMEDY))))?;
                continue;
            }
            let row = reader.read_row(recording, &mut sources, line, &cells);
            recording.count_if_damaged(row)?;
        }
        for line in sources.steps.remove_lines(file, &reader.jobs.steps_of_jobs_with_energy()) {
            recording.skip_line(file, line, STEP_OF_A_JOB);
        }
        let overlaps = reader.jobs.overlaps();
        for line in sources.steps.remove_lines(file, &overlaps.within) {
            recording.skip_line(file, line, STEP_WITHIN_ANOTHER);
        }
        if let Some(problem) = overlaps.describe() {
            recording.add_note(format!("{}: {problem}", recording.files[file]));
        }
        before = reader.times.file_end(recording);
        reader.finish(recording, table.encoding())?;
    }
    sources.refuse_mixed_readings(recording)?;
    sources.refuse_rows_without_id(recording);
    recording.check_refusals()?;
    // However many rows these are, the others are no worse for it.
    sources.refuse_misnamed_boards(recording);
    sources.steps.finish(recording, options)
}

/// Returns an error if the day of the first row is given, and there are several files, which may begin on others.
fn refuse_date_of_several(files: usize, options: &ImportOptions) -> Result<(), ImportError> {
    if options.date.is_none() || files < 2 {
        return Ok(());
    }
    let remedy = "import the files one by one, and give their logs to `eadt replay` together";
    Err(ImportError::in_file("", "--date is the day of the first row of one file", remedy))
}

/// Returns an error if the first line is one of JSON: split at its commas it would look like a table.
pub(crate) fn refuse_json(file: &str, header: &HeaderRow) -> Result<(), ImportError> {
    let first = header.names.get(0).unwrap_or_default();
    // A series of Prometheus may begin as an object does: `{"dcgm.power", gpu="0"}`.
    let has_key = || header.names.iter().any(|cell| cell.split('"').skip(1).any(|after| after.trim_start().starts_with(':')));
    let is_json = first.starts_with("{\"") && has_key()
        || ["[{", "[["].iter().any(|start| first.starts_with(start))
        || matches!(first, "{" | "[");
    if !is_json {
        return Ok(());
    }
    let text = header.names.iter().collect::<Vec<_>>().join(",");
    if let Some(ForeignText { what, remedy }) = foreign_json(&text) {
        return Err(ImportError::in_line(file, header.line, format!("it is {what}, and no table of this form"), remedy));
    }
    let remedy = "write its figures as a table, for example jq -r '.[] | [.time, .gpu, .watts] | @csv'; answers of Prometheus and \
                  event logs are read as they are";
    Err(ImportError::in_line(file, header.line, "it is JSON, and no table of this form", remedy))
}

/// The reason for skipping an empty row.
pub(crate) const EMPTY_ROW: &str = "empty row";
const UNITS_BELOW_HEADER: &str = "units below the header";
const ENDS_BEFORE_FIGURES: &str = "row that ends before the columns that are mapped, as others do";
const STEP_OF_A_JOB: &str = "step of a job that has a row of its own";
const STEP_WITHIN_ANOTHER: &str = "step of a job within the time of another on the same nodes, which has their energy";

/// Remedy for a header that contradicts the values below it.
const ONE_UNIT: &str = "correct the one that is wrong: nothing shows which";

/// Words of readings of power, of shares, which are none also of power, and of other readings, in a column that names what each
/// row holds.
const POWER_WORDS: [&str; 6] = ["power", "powerwatts", "pwr", "watt", "watts", "draw"];
const SHARE_WORDS: [&str; 7] = ["percent", "percentage", "pct", "ratio", "util", "utilisation", "utilization"];
const LIMIT_WORDS: [&str; 4] = ["cap", "limit", "rated", "tdp"];
const OTHER_WORDS: [&str; 36] = [
    "accuracy",
    "amp",
    "amperes",
    "amps",
    "bytes",
    "clk",
    "clock",
    "clocks",
    "co2",
    "co2eq",
    "cost",
    "current",
    "duration",
    "elapsed",
    "emission",
    "emissions",
    "fan",
    "freq",
    "frequency",
    "gigabytes",
    "latency",
    "loss",
    "megabytes",
    "memory",
    "mhz",
    "price",
    "rpm",
    "runtime",
    "speed",
    "temp",
    "temperature",
    "throughput",
    "usage",
    "volt",
    "voltage",
    "volts",
];

/// Returns whether a text has one of the words, also within `powerPercent`. `mem01`, a host, is another word than `mem`.
fn has_word(text: &str, words: &[&str]) -> bool {
    let is_one = |word: &str| words.iter().any(|known| word.eq_ignore_ascii_case(known));
    let has_humps = |word: &str| word.bytes().all(|byte| byte.is_ascii_alphabetic()) && word_places(word).len() > 1;
    let mut parts = text.split(|c: char| !c.is_ascii_alphanumeric());
    parts.any(|part| is_one(part) || has_humps(part) && word_places(part).into_iter().any(|place| is_one(&part[place])))
}

/// Words of the power and energy of alternating current that are in volt-amperes, and none in watts.
const OTHER_POWER_WORDS: [&str; 4] = ["apparent", "blindleistung", "reactive", "scheinleistung"];

/// Returns whether a text, such as `apparent_power`, names power or energy that is none of watts.
fn names_other_power(text: &str) -> bool {
    has_word(text, &OTHER_POWER_WORDS)
}

/// Returns whether a text, such as `system/gpu_0_power_usage_watts`, names a reading of power (true) or another one; `None` if it
/// names none.
fn names_power(text: &str) -> Option<bool> {
    if has_word(text, &SHARE_WORDS) || names_other_power(text) {
        return Some(false);
    }
    if has_word(text, &POWER_WORDS) { Some(true) } else { has_word(text, &OTHER_WORDS).then_some(false) }
}

/// Words of other readings that may also state of what a power is, and ones that alone, as the whole name of a column, may do so.
const LOOSE_WORDS: [&str; 3] = ["fan", "memory", "usage"];
const WORDS_LOOSE_ALONE: [&str; 1] = ["current"];

/// Returns whether the name of a column names another quantity than power.
fn names_another_reading(text: &str) -> bool {
    let is_whole = |word: &str| text.trim().eq_ignore_ascii_case(word);
    let is_loose = |word: &str| LOOSE_WORDS.contains(&word) || WORDS_LOOSE_ALONE.contains(&word) && is_whole(word);
    let is_other = |word: &&str| !is_loose(word) && has_word(text, &[*word]);
    let is_share_or_other = || has_word(text, &SHARE_WORDS) || names_other_power(text);
    names_power(text) == Some(false) && (is_share_or_other() || OTHER_WORDS.iter().any(is_other))
}

/// Returns whether a name names another quantity than power, and has no unit of power.
fn names_no_power(name: &str) -> bool {
    worded_unit(name, Dimension::Power).is_none() && names_another_reading(name)
}

/// A word that names of power may have, too: `current consumption`.
const OPEN_WORDS: [&str; 1] = ["consumption"];

/// Words of energy in a text that names the kind of a reading.
const KINDS_OF_ENERGY: [&str; 4] = ["energy", "joules", "kwh", "wh"];
/// Words beside those of power and energy that do not show what is measured.
const WORDS_BESIDE_ENERGY: [&str; 10] =
    ["active", "counter", "daily", "month", "monthly", "today", "week", "weekly", "year", "yesterday"];

/// Returns whether a name names energy, and no power.
fn names_energy(name: &str) -> bool {
    has_word(name, &KINDS_OF_ENERGY) && names_power(name) != Some(true) && worded_unit(name, Dimension::Power).is_none()
}

/// Returns the words of what a name of power or energy is of: `plug` of `plug_power` and of `plug_energy_today`.
fn words_of_measured(name: &str) -> Vec<String> {
    let lists = [&ELECTRICAL_WORDS[..], &TOTAL_WORDS, &KINDS_OF_ENERGY, &WORDS_BESIDE_ENERGY];
    let is_silent = |word: &str| lists.iter().any(|list| list.contains(&word));
    let parts = name.split(|c: char| !c.is_alphanumeric()).filter(|part| !is_silent(&part.to_lowercase()));
    parts.flat_map(lowercase_words).filter(|word| !is_silent(word)).collect()
}

/// Finds, among names that are mapped as power, one that names another quantity: its place, and a name that does name a power.
/// `None` if all may name a power. Energy is another quantity beside the power of the same thing. If the map has a unit
/// (`has_unit`), only words that are never of power count, and only beside a name of power.
fn find_mixed_reading<'n>(names: &[&'n str], has_unit: bool) -> Option<(usize, Option<&'n str>)> {
    let of_power = || names.iter().copied().filter(|name| names_power(name) == Some(true));
    let power = of_power().min();
    let measured: BTreeSet<Vec<String>> = of_power().map(words_of_measured).collect();
    let is_clear = |name: &str| !has_unit || names_no_power(name) && !has_word(name, &OPEN_WORDS);
    let is_other = |name: &str| match (names_power(name), power) {
        (Some(true), _) => false,
        (Some(false), None) => !has_unit && names_share_of_power(name),
        (Some(false), Some(_)) if is_clear(name) => true,
        _ => names_energy(name) && measured.contains(&words_of_measured(name)),
    };
    let other = names.iter().enumerate().filter(|(_, name)| is_other(name)).min_by_key(|(_, name)| **name);
    other.map(|(index, _)| (index, power))
}

/// Returns whether a text, such as `power_limit_W`, names a limit of power.
fn names_limit(text: &str) -> bool {
    has_word(text, &LIMIT_WORDS)
}

/// Returns whether the name of a column of power has a limit in it that is not what it is of, as `power (cap 250) [W]` has.
fn names_power_at_a_limit(text: &str) -> bool {
    let plain = text.split(['[', '(']).next().unwrap_or(text).trim_end();
    let last = plain.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or(plain);
    names_power(text) == Some(true) && !names_limit(last)
}

/// Returns whether a text, such as `system/gpu_0_power_usage_percentage` or `Power [% TDP]`, names power as a share of something.
pub(crate) fn names_share_of_power(text: &str) -> bool {
    (has_word(text, &SHARE_WORDS) || text.contains('%')) && has_word(text, &POWER_WORDS)
}

/// Returns how many of the mapped columns, or usual columns of time, a row names.
fn wanted_names(cells: &RowCells, options: &ImportOptions) -> usize {
    let plain = |text: &str| text.split(['[', '(']).next().unwrap_or(text).trim().to_owned();
    let named = |name: &str| {
        let without_unit = name.rsplit_once(':').map_or(name, |(name, _)| name).trim();
        let same = |cell: &str| !cell.is_empty() && (cell == name || cell == without_unit || plain(cell) == without_unit);
        cells.iter().any(same)
    };
    let mapped = |column: &str| {
        if let Some((prefix, _)) = column.split_once('{') {
            return cells.iter().any(|cell| !prefix.is_empty() && cell.starts_with(prefix));
        }
        named(column) || column.contains('+') && column.split('+').all(|part| named(part.trim()))
    };
    let found = options.maps.iter().filter(|map| !map.column.starts_with('#') && mapped(&map.column)).count();
    let time = cells.iter().any(|cell| TIME_NAMES.iter().any(|name| cell.eq_ignore_ascii_case(name)));
    found + usize::from(time)
}

/// Returns whether a row that names no column has readings: each column that is mapped by number then has a number, or a time.
fn has_readings(cells: &RowCells, options: &ImportOptions, clock: &TimeParser) -> bool {
    let is_time = |cell: &str| clock.read(cell).is_ok() || TimeParser::new(None, None).read(cell).is_ok();
    let mut numbers = 0;
    for map in &options.maps {
        let name = map.column.split(':').next().unwrap_or_default();
        let index =
            name.strip_prefix('#').and_then(|number| number.parse::<usize>().ok()).and_then(|number| number.checked_sub(1));
        let Some(cell) = index.and_then(|index| cells.get(index)) else { continue };
        let fits = match map.field.as_str() {
            "time" => is_time(cell),
            "device" | "node" | "gpu_model" => true,
            _ => is_quantity(cell),
        };
        if !fits {
            return false;
        }
        numbers += usize::from(!TEXT_FIELDS.contains(&map.field.as_str()));
    }
    numbers > 0 || cells.iter().any(is_quantity) && cells.iter().all(|cell| is_quantity(cell) || is_time(cell))
}

/// Rows among the first of a table that end after the same column, and such columns at most: more are of damaged rows.
const FEWEST_SHORT_ROWS: usize = 3;
const MOST_SHORT_WIDTHS: usize = 3;

/// Returns the numbers of cells of rows that leave the last columns out, in a table of tabs in which other rows have them:
/// turbostat writes what a package draws behind the rest of its first CPU only.
fn find_short_widths(table: &TableReader<'_>, width: usize) -> BTreeSet<usize> {
    let mut rows: BTreeMap<usize, usize> = BTreeMap::new();
    table.peek(|cells| *rows.entry(cells.len()).or_default() += 1);
    let is_known = table.separator() == Some('\t') && rows.remove(&width).is_some();
    let are_of_writer = is_known && rows.len() <= MOST_SHORT_WIDTHS;
    let is_short = |(cells, rows): &(usize, usize)| *cells < width && *rows >= FEWEST_SHORT_ROWS;
    rows.into_iter().filter(is_short).map(|(cells, _)| cells).filter(|_| are_of_writer).collect()
}

/// Returns the time that a count of seconds is if it counts days, as spreadsheets do; `None` if that is of no record.
fn spreadsheet_day(options: &ImportOptions, time: EventTime) -> Option<EventTime> {
    /// 1970-01-01, 2000-01-01 and 2100-01-01.
    const EPOCH: f64 = 25_569.0;
    const RECORDS: std::ops::Range<f64> = 36_526.0..73_051.0;
    let days = time.micros() as f64 / 1e6;
    let is_day = options.time_format == Some(TimeFormat::Unix) && RECORDS.contains(&days);
    is_day.then(|| EventTime::from_seconds((days - EPOCH) * 86_400.0))
}

struct FileReader<'o> {
    file: FileId,
    plan: TableMapping,
    header: HeaderRow,
    clock: &'o TimeParser,
    options: &'o ImportOptions,
    separator: Option<char>,
    /// Rows of each source so far.
    rows: HashMap<SourceId, i64>,
    times: RowTimes,
    /// The days of times of day.
    days: ClockDays,
    /// The day of hours from 1 to 24.
    numbered_day: NumberedDay,
    /// The line and time of the first row, and the time of the last.
    span: Option<(u64, EventTime, EventTime)>,
    marks: DecimalMarkDetector,
    /// Columns that are not mapped, but may distinguish boards.
    ids: IdColumns,
    /// Columns of ranks, of which each may have totals of its own.
    ranks: IdColumns,
    /// Progress by the boards and nodes that are mapped.
    board_progress: BoardProgress,
    jobs: JobRows,
    kinds: ReadingKinds,
    /// The numbers of cells of rows that leave the last columns out.
    short_widths: BTreeSet<usize>,
}

/// Columns that are not mapped, and may name a reading of some kind in each row.
#[derive(Default)]
struct ReadingKinds {
    /// Columns whose names state it, and in which all texts so far do, with these texts and their lines.
    columns: Vec<(usize, BTreeMap<String, u64>)>,
    others: Vec<AlternatingTextColumn>,
}

/// A column of few texts, which may name kinds of readings if they take turns, as states of a board do not.
#[derive(Default)]
struct AlternatingTextColumn {
    column: usize,
    /// The number and the first line of each text.
    texts: BTreeMap<String, (u16, u64)>,
    rows: BTreeMap<SourceId, Vec<(EventTime, u64, u16)>>,
    noted: usize,
}

impl AlternatingTextColumn {
    /// Notes the text of a row; returns false if the column has no such texts.
    fn observe(&mut self, (source, time, line): (SourceId, EventTime, u64), cells: &RowCells) -> bool {
        let text = cells.get(self.column).unwrap_or_default();
        if is_absent_text(text) || self.noted >= MOST_ROWS_OF_TEXTS {
            return true;
        }
        let next = self.texts.len();
        let number = match self.texts.get(text) {
            Some((number, _)) => *number,
            None if next >= MOST_KINDS || is_quantity(text) || !text.contains(char::is_alphabetic) => return false,
            None => self.texts.entry(text.to_owned()).or_insert((next as u16, line)).0,
        };
        self.rows.entry(source).or_default().push((time, line, number));
        self.noted += 1;
        true
    }

    /// Returns a text that names power, another that names none, and the line of the latter, if the texts take turns.
    fn find_mixed(&self) -> Option<(&str, &str, u64)> {
        let is_of = |text: &str, is_power: bool| kind_of_reading(text) == Some(is_power) && is_like_series(text);
        let of = |is_power: bool| self.texts.iter().find(|(text, _)| is_of(text, is_power));
        let ((power, _), (other, (_, line))) = (of(true)?, of(false)?);
        let takes_turns = self.rows.values().any(|rows| find_alternation(rows, false).is_some());
        takes_turns.then_some((power.as_str(), other.as_str(), *line))
    }
}

impl ReadingKinds {
    /// `columns` with whether their names state that they name readings.
    fn new(columns: &[(usize, bool)]) -> Self {
        let named = columns.iter().filter(|(_, is_named)| *is_named).map(|(column, _)| (*column, BTreeMap::new()));
        let others = columns.iter().filter(|(_, is_named)| !*is_named);
        let others = others.map(|(column, _)| AlternatingTextColumn { column: *column, ..AlternatingTextColumn::default() });
        Self { columns: named.collect(), others: others.collect() }
    }

    /// Notes the texts of a row that has power.
    fn observe(&mut self, (source, time, line): (SourceId, EventTime, u64), cells: &RowCells) {
        self.others.retain_mut(|column| column.observe((source, time, line), cells));
        self.columns.retain_mut(|(column, texts)| {
            let text = cells.get(*column).unwrap_or_default();
            if texts.contains_key(text) || is_absent_text(text) {
                return true;
            }
            let is_kind = texts.len() < MOST_KINDS && kind_of_reading(text).is_some();
            if is_kind {
                texts.insert(text.to_owned(), line);
            }
            is_kind
        });
    }

    /// Returns a column that names power in some rows and no power in others: a name of each, and the first line of the latter.
    fn find_mixed(&self) -> Option<(usize, &str, &str, u64)> {
        let named = self.columns.iter().find_map(|(column, texts)| {
            let of = |is_power: bool| texts.iter().find(|(text, _)| kind_of_reading(text) == Some(is_power));
            let ((power, _), (other, line)) = (of(true)?, of(false)?);
            Some((*column, power.as_str(), other.as_str(), *line))
        });
        named.or_else(|| {
            self.others.iter().find_map(|column| {
                let (power, other, line) = column.find_mixed()?;
                Some((column.column, power, other, line))
            })
        })
    }
}

/// A column with more texts names no kinds of readings.
const MOST_KINDS: usize = 64;

/// Returns whether a text names power (true) or another reading, such as a limit of it; `None` if it names none.
fn kind_of_reading(text: &str) -> Option<bool> {
    let is_power = names_power(text).or_else(|| has_word(text, &KINDS_OF_ENERGY).then_some(false))?;
    Some(is_power && !names_limit(text))
}

/// Words of units in names of series.
const UNIT_WORDS_OF_SERIES: [&str; 8] = ["celsius", "joules", "kwh", "mhz", "percent", "volts", "watt", "watts"];

/// Returns whether a text looks like the name of a series: several words put together, or one of a unit. What limits a board,
/// such as `power` or `SW Thermal Slowdown`, does not.
fn is_like_series(text: &str) -> bool {
    text.contains(['_', '/', '.']) || has_word(text, &UNIT_WORDS_OF_SERIES)
}

impl<'o> FileReader<'o> {
    fn new(
        recording: &mut Recording,
        file: FileId,
        table: &TableReader<'_>,
        header: HeaderRow,
        clock: &'o TimeParser,
        options: &'o ImportOptions,
    ) -> Result<Self, ImportError> {
        let mut plan = TableMapping::new(recording, file, &header, options)?;
        plan.find_rest_of_time(recording, (file, header.line), table, clock, options)?;
        plan.prefer_whole_times(table, clock, options);
        recording.column_of_kinds = plan.find_columns_of_texts(table);
        plan.find_counter_range(recording, table);
        plan.drop_other_resolutions(table);
        plan.note_equal_columns(recording, table);
        let columns: Vec<usize> =
            plan.number_columns().flat_map(|column| [Some(column.index), column.resolution]).flatten().collect();
        let marks = DecimalMarkDetector::new(table, &columns, options.decimal);
        let ids = plan.id_columns(recording);
        let ranks = plan.rank_columns();
        let kinds = ReadingKinds::new(&plan.columns_of_kinds(recording));
        let short_widths = find_short_widths(table, plan.names.len());
        Ok(Self {
            file,
            kinds,
            plan,
            header,
            clock,
            options,
            separator: table.separator(),
            rows: HashMap::new(),
            times: RowTimes::new(options.time_zone.is_some()),
            days: ClockDays::default(),
            numbered_day: NumberedDay::default(),
            span: None,
            marks,
            ids,
            ranks,
            board_progress: BoardProgress::default(),
            jobs: JobRows::default(),
            short_widths,
        })
    }

    /// Returns whether a row leaves the last columns out, as others do, and these have all figures: it has none.
    fn ends_before_figures(&self, cells: &RowCells) -> bool {
        let mut columns = self.plan.number_columns().map(|column| column.index).peekable();
        let has_figures = columns.peek().is_some();
        self.plan.time.is_some()
            && has_figures
            && self.short_widths.contains(&cells.len())
            && columns.all(|index| index >= cells.len())
    }

    /// Takes a comment directly below the header for one of units, if it is one; returns whether it is.
    fn take_units_of_comment(&mut self, recording: &mut Recording, table: &mut TableReader<'_>) -> Result<bool, ImportError> {
        let mut cells = RowCells::default();
        let comment = table.split_comment_below_header(&mut cells).filter(|_| !self.header.is_data && are_units(&cells));
        let Some(line) = comment else { return Ok(false) };
        let taken = self.plan.take_units(&cells);
        let is_taken =
            taken.map_err(|(column, problem)| recording.error(self.file, line, problem, ONE_UNIT).with_column(column))?;
        if is_taken {
            table.skip_comment_below_header();
            recording.skip_line(self.file, line, UNITS_BELOW_HEADER);
        }
        Ok(is_taken)
    }

    /// Returns whether a row is the header once more; takes it as the new header if its columns have changed.
    fn is_repeated_header(&mut self, recording: &mut Recording, line: u64, cells: &RowCells) -> Result<bool, ImportError> {
        let begins_as_number = |column: &NumberColumn| {
            cells
                .get(column.index)
                .is_some_and(|cell| cell.starts_with(|first: char| first.is_ascii_digit() || "-+.".contains(first)))
        };
        if self.header.is_data || self.plan.number_columns().any(begins_as_number) {
            return Ok(false);
        }
        if *cells != self.header.names {
            let wanted = wanted_names(&self.header.names, self.options);
            if wanted == 0 || has_readings(cells, self.options, self.clock) {
                return Ok(false);
            }
            if wanted_names(cells, self.options) < wanted {
                return if self.is_header_of_another_table(cells) {
                    let quoted: Vec<String> = cells.iter().map(quote).collect();
                    let problem = format!("another table begins here: its columns are {}", quoted.join(", "));
                    let remedy = "split the file here, and import each table with the --map of its columns";
                    Err(recording.error(self.file, line, problem, remedy))
                } else {
                    Ok(false)
                };
            }
            let header = HeaderRow { line, names: cells.clone(), is_data: false };
            self.refuse_mixed_kinds(recording)?;
            self.refuse_several_boards(recording)?;
            self.refuse_several_ranks(recording)?;
            let before = std::mem::replace(&mut self.plan, TableMapping::new(recording, self.file, &header, self.options)?);
            self.plan.take_times_of(&before, self.options);
            self.plan.has_fractions = before.has_fractions;
            self.plan.take_unit_columns_of(&before);
            self.plan.take_units_of_rows(|name, dimension| before.has_units_of_rows(name, dimension));
            self.ids = self.plan.id_columns(recording);
            self.ranks = self.plan.rank_columns();
            self.kinds = ReadingKinds::new(&self.plan.columns_of_kinds(recording));
            self.header = header;
        }
        recording.skip_line(self.file, line, "repeated header");
        Ok(true)
    }

    /// Returns whether a row without the mapped columns is a header: it names a column at the place of the time, or of a figure
    /// that is mapped, and has neither numbers nor times.
    fn is_header_of_another_table(&self, cells: &RowCells) -> bool {
        let is_name = |cell: &str| {
            cell.chars().any(char::is_alphabetic) && !is_absent_text(cell) && !is_quantity(cell) && self.clock.read(cell).is_err()
        };
        let names_time = |cell: &str| {
            TIME_NAMES.iter().any(|name| cell.eq_ignore_ascii_case(name)) || self.header.names.iter().any(|name| name == cell)
        };
        let figures = self.plan.number_columns().map(|column| column.index);
        let mut places = self.plan.time.into_iter().chain(figures);
        let is_named = places.any(|index| cells.get(index).is_some_and(|cell| !cell.is_empty() && names_time(cell)));
        cells.len() >= 2 && is_named && cells.iter().all(|cell| cell.is_empty() || is_name(cell))
    }

    /// Returns whether a row has a cell for each column; false if it leaves the last ones out, as others do. Returns an error if
    /// it is damaged.
    fn has_all_cells(&mut self, recording: &mut Recording, line: u64, cells: &RowCells) -> Result<bool, RowError> {
        let width = self.plan.names.len();
        let surplus = (width..cells.len()).any(|index| cells.get(index).is_some_and(|cell| !cell.is_empty()));
        if cells.len() < width || surplus {
            if !surplus && self.ends_before_figures(cells) {
                recording.skip_line(self.file, line, ENDS_BEFORE_FIGURES);
                return Ok(false);
            }
            let problem = format!("row has {}, its header {width}", counted(cells.len(), "cell"));
            let remedy = "the file is truncated or damaged here, or a cell has the separator in it: restore the row or take it out; if each row \
                          begins with its number, put a name for that before the others of the header";
            if self.plan.device.is_none() {
                self.rows.values_mut().for_each(|rows| *rows += 1);
            }
            return Err(RowError::damaged("cells", recording.error(self.file, line, problem, remedy)));
        }
        Ok(true)
    }

    fn read_row(
        &mut self,
        recording: &mut Recording,
        sources: &mut TableSources,
        line: u64,
        cells: &RowCells,
    ) -> Result<(), RowError> {
        if !self.has_all_cells(recording, line, cells)? {
            return Ok(());
        }
        if self.jobs.note_row(&self.plan, line, cells, recording.meter) {
            recording.skip_line(self.file, line, STEP_OF_A_JOB);
            return Ok(());
        }
        let devices = sources.row_sources(recording, self, cells);
        recording.check_board_count(self.file, line).map_err(RowError::stop)?;
        let job = self.plan.has_progress().then(|| sources.job_source(recording, self.file));
        let Some(first) = devices.first().copied().or(job) else { return Ok(()) };
        let time = self.time(recording, line, cells, first)?;
        self.note_span(sources, line, cells, time);
        for source in devices.iter().copied().chain(job) {
            *self.rows.entry(source).or_default() += 1;
        }
        if !is_unique(&self.plan, cells) {
            for source in &devices {
                self.ids.observe(*source, time, line, |column| cells.get(column));
            }
        }
        if let Some(job) = job {
            self.ranks.observe(job, time, line, |column| cells.get(column));
        }
        let figures = std::mem::take(&mut self.plan.figures);
        let read = self.values(recording, line, cells, &figures);
        if let Ok(values) = &read {
            sources.read.extend(&devices);
            if values.iter().any(|(figure, _)| is_power(figure.field)) {
                self.kinds.observe((first, time, line), cells);
            }
            for (board, source) in devices.iter().enumerate() {
                let of_board = |figure: &FieldSource| !figure.field.is_progress() && figure.board.unwrap_or(0) == board;
                let values = values.iter().filter(|(figure, _)| of_board(figure));
                sources.add(recording, self.file, *source, time, line, values);
            }
            if let Some(job) = job {
                self.note_board_progress(sources, (time, line), cells, values);
                let values = values.iter().filter(|(figure, _)| figure.field.is_progress());
                sources.add(recording, self.file, job, time, line, values);
            }
        }
        let read = read.map(drop);
        self.plan.figures = figures;
        read
    }

    /// Notes the progress in a row of a board or node that is mapped, and whose row it is if it adds progress.
    fn note_board_progress(
        &mut self,
        sources: &mut TableSources,
        place: (EventTime, u64),
        cells: &RowCells,
        values: &[(&FieldSource, f64)],
    ) {
        if values.iter().any(|(figure, _)| figure.adds && figure.field.is_progress()) {
            sources.steps.note_board(self.file, place.1, self.plan.board_texts(cells));
        }
        let mut summed = values.iter().filter(|(figure, _)| SUMMED_PROGRESS.contains(&figure.field)).peekable();
        let ids: Vec<&str> = [self.plan.node, self.plan.device].into_iter().flatten().filter_map(|id| cells.get(id)).collect();
        if summed.peek().is_none() || ids.is_empty() {
            return;
        }
        let board = ids.join(":");
        for (figure, value) in summed {
            self.board_progress.note(&board, (figure.field, figure.adds), place, *value);
        }
    }

    /// Notes from when to when a row is, if it has that.
    fn note_span(&self, sources: &mut TableSources, line: u64, cells: &RowCells, time: EventTime) {
        let Some(columns) = self.plan.spans else { return };
        let Some(span) = self.span_of_row(columns, cells, time) else { return };
        sources.steps.note_length_column(self.file, || self.plan.length_column(columns));
        sources.steps.note_run(self.file, line, self.plan.run_texts(cells), self.plan.parent_text(cells));
        match (columns.moment, self.plan.may_nest) {
            (RowMoment::Unnamed, _) => sources.steps.add_unnamed_span(self.file, line, span),
            (_, true) => sources.steps.add_span(self.file, line, span, &self.plan.other_texts(cells)),
            (_, false) => sources.steps.add_span_of_several(self.file, line, span),
        }
    }

    /// Returns from when to when a row is, if it has that.
    fn span_of_row(&self, columns: SpanColumns, cells: &RowCells, time: EventTime) -> Option<RowSpan> {
        let moment = |column: Option<usize>| self.clock.read(cells.get(column?)?).ok();
        let between = || {
            let (own, other) = (moment(self.plan.time)?, moment(columns.other_end)?);
            let has_offset = |time: ParsedTime| matches!(time, ParsedTime::Absolute(_));
            let seconds = match columns.moment {
                RowMoment::Start => other.earliest().seconds_since(own.earliest()),
                RowMoment::End | RowMoment::Unnamed => own.earliest().seconds_since(other.earliest()),
            };
            (self.plan.time_parts.is_empty() && has_offset(own) == has_offset(other)).then_some(seconds)
        };
        let duration = || match parse_quantity(cells.get(columns.duration?)?, self.marks.mark()) {
            QuantityCell::Number(duration, None) => Some(duration * columns.seconds_per_unit),
            QuantityCell::Number(duration, Some(unit)) => {
                (unit.dimension == Dimension::Duration).then(|| unit.to_base_unit(duration))
            }
            QuantityCell::Absent | QuantityCell::UnknownUnit | QuantityCell::Ambiguous | QuantityCell::NotANumber => None,
        };
        columns.span(time, between().or_else(duration)?)
    }

    /// Returns the values of a row.
    fn values<'f>(
        &mut self,
        recording: &mut Recording,
        line: u64,
        cells: &RowCells,
        figures: &'f [FieldSource],
    ) -> Result<Vec<(&'f FieldSource, f64)>, RowError> {
        let mut values = Vec::with_capacity(figures.len());
        let mut absent = 0;
        for figure in figures {
            match self.value(recording, line, cells, figure, figures)? {
                Some(value) => values.push((figure, value)),
                None => absent += 1,
            }
        }
        recording.absent += absent;
        Ok(values)
    }

    fn time(&mut self, recording: &Recording, line: u64, cells: &RowCells, source: SourceId) -> Result<EventTime, RowError> {
        let Some(column) = self.plan.time else {
            let interval = self.options.interval.unwrap_or_default().as_micros() as i64;
            let start = self.options.start.unwrap_or(ImportOptions::DEFAULT_START);
            return Ok(start.plus_micros(interval.saturating_mul(self.rows.get(&source).copied().unwrap_or(0))));
        };
        let error = |text: &str, problem: String| {
            let problem = format!("{} is {problem}", quote(text));
            recording.error(self.file, line, problem, "").with_column(self.plan.column_name(column))
        };
        let mut text = Cow::from(cells.get(column).unwrap_or_default());
        if !self.plan.time_parts.is_empty() {
            let whole = self.plan.time_parts.text(&text, cells, self.clock, &mut self.numbered_day);
            text = whole.map_err(|(part, problem)| RowError::stop(error(&part, problem)))?.into();
        }
        let stamp = match self.options.date.filter(|_| self.clock.lacks_date(&text)) {
            Some(date) => self.days.read(self.clock, source, date, &text),
            None => self.clock.read(&text).map_err(UnknownTime::Damaged),
        };
        let stamp = stamp.map_err(|unknown| match unknown {
            UnknownTime::Damaged(problem) => RowError::damaged("time", error(&text, problem)),
            UnknownTime::Day(problem) => RowError::stop(error(&text, problem.to_owned())),
        })?;
        self.times.begin_with(recording, source);
        let time = self.times.resolve_time(source, line, stamp).map_err(|unsettled| {
            let error = recording.error(self.file, line, unsettled.problem, unsettled.remedy);
            RowError::stop(error.with_column(self.plan.column_name(column)))
        })?;
        let (first_line, first, _) = self.span.unwrap_or((line, time, time));
        self.span = Some((first_line, first, time));
        Ok(time)
    }

    /// Notes counts since 1970 that would be of this century in a larger unit; returns an error if rows come faster than anything
    /// is read.
    fn check_unit_of_times(&self, recording: &mut Recording) -> Result<(), ImportError> {
        let Some((line, first, last)) = self.span else { return Ok(()) };
        // Rows of one board count: rows of several boards come at one time.
        let of = |is_board: bool| {
            let is_wanted = |source: SourceId| matches!(recording.sources[source].kind, SourceKind::Device(_)) == is_board;
            self.rows.iter().filter(|(source, _)| is_wanted(**source)).map(|(_, rows)| *rows).max()
        };
        let rows = of(true).or_else(|| of(false)).unwrap_or(0);
        let is_too_fast = last.seconds_since(first).abs() < SHORTEST_INTERVAL_SECONDS * rows as f64;
        if let (Some(day), Some(column)) = (spreadsheet_day(self.options, first), self.plan.time) {
            let problem = format!(
                "by --time-format unix the first row is of {}; as a day of a spreadsheet it is of {}",
                first.date(),
                day.date()
            );
            let remedy = "if so, save the column as text, as in 2025-02-03 10:00:00, and leave --time-format out";
            if is_too_fast {
                return Err(recording.error(self.file, line, problem, remedy).with_column(self.plan.column_name(column)));
            }
            recording.add_note(format!("{}: {problem}; {remedy}", recording.files[self.file]));
            return Ok(());
        }
        let (Some((unit, then)), Some(column)) = (self.clock.larger_unit(first), self.plan.time) else { return Ok(()) };
        let problem = format!("by --time-format the first row is of {}; as {unit} it would be of {}", first.date(), then.date());
        let remedy = format!("if so, use --time-format {unit}");
        if is_too_fast {
            return Err(recording.error(self.file, line, problem, remedy).with_column(self.plan.column_name(column)));
        }
        recording.add_note(format!("{}: {problem}; {remedy}", recording.files[self.file]));
        Ok(())
    }

    /// Returns the value of a figure, or `None` if there is none.
    fn value(
        &mut self,
        recording: &Recording,
        line: u64,
        cells: &RowCells,
        figure: &FieldSource,
        figures: &[FieldSource],
    ) -> Result<Option<f64>, RowError> {
        let columns = match &figure.take {
            ValueExpression::One => return Ok(Some(1.0)),
            ValueExpression::Columns(columns) => columns,
        };
        let mut sum = 0.0;
        for column in columns {
            if self.plan.is_flagged_absent(cells, column.index) {
                return Ok(None);
            }
            match self.number(recording, line, cells, (figure, *column), figures)? {
                Some(value) => sum += value,
                None => return Ok(None),
            }
        }
        if figure.adds && sum < 0.0 {
            let problem = format!("{sum} cannot be added to {}", figure.field.name());
            let error = recording.error(self.file, line, problem, "correct the row or take it out");
            return Err(RowError::damaged("negative step", error));
        }
        Ok(Some(sum))
    }

    fn number(
        &mut self,
        recording: &Recording,
        line: u64,
        cells: &RowCells,
        (figure, column): (&FieldSource, NumberColumn),
        figures: &[FieldSource],
    ) -> Result<Option<f64>, RowError> {
        let text = cells.get(column.index).unwrap_or_default();
        let file = self.file;
        let name = || self.plan.column_name(column.index);
        let error = |problem: String, remedy: &str| recording.error(file, line, problem, remedy).with_column(name());
        let take_out = "correct the row, take it out, or leave the cell empty";
        let damaged = |kind, problem: String| RowError::damaged(kind, error(problem, take_out));
        let field = figure.field;
        let unit_text = column.unit_column.and_then(|index| cells.get(index)).filter(|text| !is_absent_text(text));
        // A row of another quantity, by its unit, does not make the mapping wrong.
        let kind_of = |unit: &str, kind: &'static str| {
            let is_of_another = Unit::by_name(unit).map_or(is_unit_of_others(unit), |unit| unit.dimension != field.dimension());
            if is_of_another { OF_ANOTHER_UNIT } else { kind }
        };
        let (value, unit) = match self.marks.read(line, text).map_err(|problem| RowError::stop(error(problem, MARK_REMEDY)))? {
            QuantityCell::Absent => return Ok(None),
            QuantityCell::Number(value, unit) => (value, unit),
            QuantityCell::UnknownUnit => {
                let why = shortened_by_slurm(field, text).unwrap_or_default();
                let kind = kind_of(split_unit(text.trim()).1, "unit");
                return Err(damaged(kind, format!("{} has an unknown unit{why}", quote(text))));
            }
            QuantityCell::Ambiguous | QuantityCell::NotANumber => {
                let problem = format!("{} is not a number for {}", quote(text), field.name());
                return Err(damaged(unit_text.map_or("number", |unit| kind_of(unit, "number")), problem));
            }
        };
        if is_absent_number(field, value, recording.meter) {
            return Ok(None);
        }
        let of_row = unit_text.filter(|_| unit.is_none());
        let is_of_any = column.unit_column.is_some_and(|index| self.plan.is_unit_of_any(index));
        let has_figure = |unit: Unit, is_same_column: bool| {
            let is_fit = |other: &NumberColumn| (other.index == column.index) == is_same_column;
            is_of_any
                && figures.iter().any(|other| match &other.take {
                    ValueExpression::Columns(columns) => other.field.dimension() == unit.dimension && columns.iter().any(is_fit),
                    ValueExpression::One => false,
                })
        };
        let unit = match of_row {
            Some(text) => match Unit::by_name(text) {
                Some(unit) if unit.dimension == field.dimension() => Some(unit),
                // The row is of another figure of the same column, or its unit of another column.
                Some(other) if has_figure(other, true) => return Ok(None),
                Some(other) if has_figure(other, false) => None,
                _ => {
                    let problem = format!("its unit, {}, is not one of {}", quote(text), field.name());
                    return Err(damaged(kind_of(text, "unit"), problem));
                }
            },
            None => unit,
        };
        let unit = match (unit, column.unit) {
            (Some(own), _) if own.dimension != field.dimension() => {
                let why = shortened_by_slurm(field, text).unwrap_or_default();
                let problem = format!("{} is not in a unit of {}{why}", quote(text), field.name());
                return Err(damaged(if why.is_empty() { kind_of(own.name, "unit") } else { "unit" }, problem));
            }
            (Some(own), Some(mapped_unit)) if column.is_unit_explicit && own != mapped_unit => {
                let problem = format!("--map gives {}, the cell gives {}", mapped_unit.name, quote(text));
                return Err(RowError::stop(error(problem, "leave the unit out of --map: the cells have their own")));
            }
            (Some(own), _) => {
                if let Some(in_header) = self.plan.contradicted_unit(column, own) {
                    let problem = format!("the header gives {in_header}, the cell gives {}", quote(text));
                    return Err(RowError::stop(error(problem, ONE_UNIT)));
                }
                Some(own)
            }
            (None, _) if column.is_unit_ambiguous && value != 0.0 => {
                let name = name();
                let ambiguous = ambiguous_unit(&name).unwrap_or_default();
                let problem = format!(
                    "the header gives {ambiguous}, which is not a unit of {}, and the cell {} has none",
                    field.name(),
                    quote(text)
                );
                let remedy = format!("give the unit after a colon; units of {}: {}", field.name(), field.dimension().units());
                return Err(RowError::stop(error(problem, &remedy)));
            }
            (None, of_column) => of_column,
        };
        let value = unit.map_or(value, |unit| unit.to_base_unit(value));
        match column.resolution.filter(|_| unit.is_none()) {
            None => Ok(Some(value)),
            Some(resolution) => Ok(self.joules_of_tick(recording, line, cells, resolution)?.map(|joules| value * joules)),
        }
    }

    /// Returns the joules of a tick of a counter in a row, or `None` if the row does not have them.
    fn joules_of_tick(
        &mut self,
        recording: &Recording,
        line: u64,
        cells: &RowCells,
        resolution: usize,
    ) -> Result<Option<f64>, RowError> {
        let text = cells.get(resolution).unwrap_or_default();
        let name = self.plan.column_name(resolution);
        let error = |problem: String, remedy: &str| recording.error(self.file, line, problem, remedy).with_column(&name);
        let joules = match self.marks.read(line, text).map_err(|problem| RowError::stop(error(problem, MARK_REMEDY)))? {
            QuantityCell::Absent => return Ok(None),
            QuantityCell::Number(value, unit) => joules_of_tick(value, unit),
            QuantityCell::UnknownUnit | QuantityCell::Ambiguous | QuantityCell::NotANumber => None,
        };
        let problem = || format!("{} is not the energy of a tick", quote(text));
        let damaged = || RowError::damaged("number", error(problem(), "correct the row, take it out, or leave the cell empty"));
        joules.map(Some).ok_or_else(damaged)
    }

    /// Returns an error if rows of one source are of several boards by a column that is not mapped; notes a column that may be
    /// one of boards by the power of its rows only.
    fn refuse_several_boards(&self, recording: &mut Recording) -> Result<(), ImportError> {
        let plan = &self.plan;
        let scopes: &[IdScope] = match recording.meter {
            // A row for each board may repeat what its node draws.
            Meter::Node | Meter::Wall => &[IdScope::Node],
            Meter::Gpu | Meter::Module => &[IdScope::Node, IdScope::Board],
        };
        if plan.device.is_some() && plan.node.is_some() || self.options.same_time.is_some() && !self.has_rows_of_parts(scopes) {
            return Ok(());
        }
        let watts_of = |source: SourceId| -> HashMap<u64, f64> {
            let of_file = recording.sources[source].readings.iter().filter(|reading| reading.file as usize == self.file);
            let watts =
                |reading: &RecordedReading| reading.values.iter().find(|(field, _)| is_power(*field)).map(|(_, watts)| *watts);
            of_file.filter_map(|reading| Some((u64::from(reading.line), watts(reading)?))).collect()
        };
        let in_rounds = || {
            // If a board is mapped, its rows differ by node.
            let scope = if plan.device.is_some() { IdScope::Node } else { IdScope::Board };
            self.ids.boards_in_rounds(scopes, watts_of).map(|found| SeveralBoards { scope, ..found })
        };
        let Some(found) = self.ids.several_boards(scopes).or_else(in_rounds) else {
            let unnamed = if plan.device.is_none() { self.ids.unnamed_in_rounds(watts_of) } else { None };
            if let Some(found) = unnamed {
                let column = plan.column_name(found.column);
                recording.add_note(format!(
                    "the power takes turns with the {} values of column {}, as that of several boards would: if they are boards, use \
                     --map {}; if not, nothing is to be done",
                    found.boards,
                    quote(&column),
                    shell_quote(&format!("device={column}"))
                ));
            }
            return Ok(());
        };
        let column = plan.column_name(found.column);
        let map = |field: &str, column: &str| format!("--map {}", shell_quote(&format!("{field}={column}")));
        let maps = match (plan.device, plan.node, found.scope) {
            (Some(device), _, IdScope::Board) => format!("{} {}", map("node", &plan.column_name(device)), map("device", &column)),
            (_, None, IdScope::Node) => map("node", &column),
            _ => map("device", &column),
        };
        let remedy = format!("map it to distinguish them, {maps}");
        Err(several_boards_error(recording, self.file, &found, &column, &remedy))
    }

    /// Returns whether rows of a board that is mapped are of its parts, such as tiles: their mean is not that of the board.
    fn has_rows_of_parts(&self, scopes: &[IdScope]) -> bool {
        let found = self.plan.device.and_then(|_| self.ids.several_boards(scopes));
        found.is_some_and(|found| names_parts_of_boards(&self.plan.column_name(found.column)))
    }

    /// Returns an error if rows of several ranks, or of several boards or nodes that are mapped, have progress of their own, of which
    /// one would count for all.
    fn refuse_several_ranks(&mut self, recording: &mut Recording) -> Result<(), ImportError> {
        let board_progress = std::mem::take(&mut self.board_progress);
        if self.refuse_progress_of_ranks(recording)? || self.options.same_time.is_some() {
            return Ok(());
        }
        board_progress.compare().map_or(Ok(()), |relation| self.settle_board_progress(recording, relation))
    }

    /// Notes progress that boards or nodes have alike, and returns an error if each has its own.
    fn settle_board_progress(&self, recording: &mut Recording, relation: ProgressRelation) -> Result<(), ImportError> {
        let ids: Vec<String> =
            [self.plan.node, self.plan.device].into_iter().flatten().map(|id| self.plan.column_name(id)).collect();
        let column = ids.join("+");
        let way = "write the rows of each into a file of its own and use --files-are nodes";
        let OwnProgress { field, boards, values, line } = match relation {
            ProgressRelation::OfJob => {
                recording.add_note(format!(
                    "{column}: all have the same progress, taken for that of the whole job; if each counts its own, {way}"
                ));
                return Ok(());
            }
            ProgressRelation::SameAdded(field) => {
                let added = STEPS.iter().find(|(_, step)| *step == field).map_or(field.name(), |(name, _)| *name);
                recording.add_note(format!(
                    "{column}: rows of all add the same {added} at the same times: they are summed; if each row has those of the whole \
                     job, keep them in the rows of one"
                ));
                return Ok(());
            }
            ProgressRelation::OfBoards(own) => own,
        };
        let [first, second] = values.map(|value| (value * 1000.0).round() / 1000.0);
        let how = if field.nature() == MetricType::Gauge { "is" } else { "rises by" };
        let problem = format!(
            "rows of {} and {} have progress of their own ({} {how} {first} and {second}): they would count as one",
            quote(&boards[0]),
            quote(&boards[1]),
            field.name()
        );
        let remedy = format!(
            "keep the progress in the rows of one if it is that of the whole job, else {way}; to read all as one counter use --same-time \
             mean"
        );
        Err(recording.error(self.file, line, problem, remedy).with_column(column))
    }

    /// Returns an error if rows of several ranks have totals of their own, of which the highest would count; notes ranks of which
    /// each has the same, and returns whether it did.
    fn refuse_progress_of_ranks(&self, recording: &mut Recording) -> Result<bool, ImportError> {
        let Some(found) = self.ranks.several_boards(&[IdScope::Board]).filter(|_| self.options.same_time.is_none()) else {
            return Ok(false);
        };
        let column = self.plan.column_name(found.column);
        let mut by_time: BTreeMap<EventTime, &RecordedReading> = BTreeMap::new();
        let of_file = recording.sources[found.source].readings.iter().filter(|reading| reading.file as usize == self.file);
        let (mut rows, mut are_alike) = (0, true);
        let mut ordered: Vec<&RecordedReading> = Vec::new();
        for reading in of_file {
            ordered.push(reading);
            are_alike &= by_time.entry(reading.time).or_insert(reading).values == reading.values;
            rows += 1;
        }
        let way = "write the rows of each rank into a file of its own and use --files-are nodes";
        if are_alike && by_time.len() * 2 <= rows {
            let note = format!(
                "{column}: all ranks have the same figures, taken for those of the whole job; if each counts its own, {way}"
            );
            recording.add_note(note);
            return Ok(true);
        }
        ordered.sort_by_key(|reading| (reading.time, reading.line));
        if rise_throughout(&ordered) {
            return Ok(false);
        }
        // Rows of a rank that is the device have its power: all are needed.
        let (is_device, keep) = if self.plan.device == Some(found.column) {
            ("is mapped as that of the devices", String::new())
        } else {
            ("is not mapped", "keep the rows of one rank if it counts the whole job, else ".to_owned())
        };
        let problem =
            format!("rows of {} ranks take turns by this column, which {is_device}: they would count as one", found.boards);
        let remedy = format!("{keep}{way}; to read them as one counter use --same-time mean");
        Err(recording.error(self.file, found.line, problem, remedy).with_column(column))
    }

    /// Returns an error if rows that are mapped as power are of several kinds of readings by a column that is not mapped.
    fn refuse_mixed_kinds(&self, recording: &Recording) -> Result<(), ImportError> {
        let Some((column, power, other, line)) = self.kinds.find_mixed() else { return Ok(()) };
        let problem = format!(
            "names readings of several kinds, such as {} and {}: all of them would count as power",
            quote(power),
            quote(other)
        );
        let remedy = "keep the rows of power only, or write each kind of reading into a column of its own; if all of it is power, give \
                      the unit, --map power_watts=COLUMN:W";
        Err(recording.error(self.file, line, problem, remedy).with_column(self.plan.column_name(column)))
    }

    fn finish(mut self, recording: &mut Recording, encoding: crate::encoding::Encoding) -> Result<(), ImportError> {
        self.refuse_mixed_kinds(recording)?;
        self.refuse_several_boards(recording)?;
        self.refuse_several_ranks(recording)?;
        self.check_unit_of_times(recording)?;
        self.times
            .check()
            .map_err(|unsettled| recording.error(self.file, unsettled.line, unsettled.problem, unsettled.remedy))?;
        let (columns, left_out) = self.plan.column_uses();
        let zone = self.options.time_zone.as_ref().map_or("UTC".to_owned(), ToString::to_string);
        recording.note_left_out(&left_out);
        if let (Some(first), last) = (self.options.date, self.days.last_day()) {
            let name = &recording.files[self.file];
            let note = last.map_or_else(
                || format!("{name}: --date is not used: no row has a time of day only"),
                |last| format!("{name}: times of day are taken from {first} to {last}, a day on where they fall by half a day"),
            );
            recording.add_note(note);
        }
        let has_local_times = self.times.has_local_times();
        if has_local_times {
            recording.note_local_times(self.options);
        }
        if self.plan.time.is_none() && self.rows.len() > 1 {
            recording.note_drift(self.file, self.rows.values().copied());
        }
        recording.tables.push(TableUse {
            file: recording.files[self.file].clone(),
            encoding,
            separator: self.separator,
            decimal: self.marks.mark(),
            header_line: (!self.header.is_data).then_some(self.header.line),
            columns,
            left_out,
            time_zone: has_local_times.then_some(zone),
        });
        Ok(())
    }
}

/// Words that a row of units has in a column of times.
const UNITS_OF_TIMES: [&str; 6] = ["datetime", "epoch", "iso", "iso8601", "unix", "utc"];

/// Returns whether the cells of a comment are units, or blank: at least one in brackets, or two of them. Others may be of a note.
fn are_units(cells: &RowCells) -> bool {
    let (mut units, mut has_brackets, mut has_others) = (0, false, false);
    for cell in cells.iter() {
        let text = cell.trim_start_matches(['#', '/']).trim();
        let plain = text.trim_matches(['[', ']', '(', ')']).trim();
        let is_of_times = UNITS_OF_TIMES.iter().any(|word| plain.eq_ignore_ascii_case(word));
        if is_of_times || Unit::by_name(plain).is_some() || is_unit_of_others(plain) {
            units += 1;
            has_brackets |= text.starts_with(['[', '(']);
        } else {
            has_others |= !is_absent_text(plain);
        }
    }
    !has_others && (units > 1 || has_brackets)
}

/// Returns whether some readings have totals of a job, and none falls: then they are of one counter, even with several writers.
fn rise_throughout(readings: &[&RecordedReading]) -> bool {
    let totals = [ReadingField::SamplesTotal, ReadingField::TokensTotal, ReadingField::StepsTotal].map(|field| {
        let value =
            |reading: &&RecordedReading| reading.values.iter().find(|(other, _)| *other == field).map(|(_, value)| *value);
        readings.iter().filter_map(value).collect::<Vec<f64>>()
    });
    totals.iter().any(|values| !values.is_empty()) && totals.iter().all(|values| values.is_sorted())
}

/// A file, and the node that a row of it names; empty if it names none or all of them.
type FileNode = (FileId, String);

/// The sources of rows, by their node.
type NodeSources = BTreeMap<FileNode, BTreeSet<SourceId>>;

/// Returns whether one of some nodes is, or may be, the node of a file.
fn has_node(nodes: &BTreeSet<FileNode>, node: &FileNode) -> bool {
    let (file, name) = node;
    // An empty name comes first.
    let first = nodes.range((*file, String::new())..).next().filter(|(of_file, _)| of_file == file);
    first.is_some_and(|(_, first)| name.is_empty() || first.is_empty()) || nodes.contains(node)
}

#[derive(Default)]
struct TableSources {
    /// Sources by node and device, in a form in which all spellings of a device are equal.
    devices: HashMap<(Option<FileId>, String, usize), SourceId>,
    /// The boards of each node as their first rows name them.
    named: BTreeMap<String, Vec<(String, SourceId)>>,
    /// The sources that have a row which is not refused; others may be sensors of other quantities.
    read: BTreeSet<SourceId>,
    /// The sources of rows that name their board in the column that is mapped.
    with_id: NodeSources,
    /// The sources of rows that do not, though that column is mapped.
    without_id: NodeSources,
    /// The sources of rows that name all boards together in that column.
    sums: NodeSources,
    job: Option<SourceId>,
    steps: CounterIncrements,
}

impl TableSources {
    /// Returns the sources of a row: one, or one for each board that has columns of its own.
    fn row_sources(&mut self, recording: &mut Recording, reader: &FileReader<'_>, cells: &RowCells) -> Vec<SourceId> {
        let plan = &reader.plan;
        if !plan.has_telemetry() {
            return Vec::new();
        }
        let text = |column: Option<usize>| column.and_then(|column| cells.get(column)).filter(|text| !is_absent_name(text));
        let (device, node, model) = (text(plan.device).map(driver_uuid), text(plan.node), text(plan.model));
        // A UUID of zeros distinguishes the rows of its file that have it from those of other boards, and is no name elsewhere.
        let zeros = plan.device.and_then(|column| cells.get(column)).filter(|text| crate::identity::is_zero_uuid(text));
        let device = device.as_deref().or(zeros);
        let device_key = if plan.has_fractions { spelling_key_of_text } else { spelling_key };
        let is_global = node.is_some() || zeros.is_none() && device.is_some_and(is_unique_id);
        let file = reader.file;
        let count = plan.boards.len().max(1);
        let mut sources = Vec::with_capacity(count);
        for index in 0..count {
            let scope = if is_global { None } else { Some(file) };
            let key = (
                scope,
                format!("{}\u{0}{}", spelling_key(node.unwrap_or_default()), device_key(device.unwrap_or_default())),
                index,
            );
            if let Some(source) = self.devices.get(&key) {
                sources.push(*source);
                continue;
            }
            let board = plan.boards.get(index).map(String::as_str);
            let id: Vec<&str> = [device, board].into_iter().flatten().collect();
            let id = (!id.is_empty()).then(|| id.join(":"));
            let own = id.clone().or_else(|| if node.is_some() { None } else { plan.main_column() });
            let place = match (node, is_global) {
                (Some(node), _) => Some(node.to_owned()),
                (None, true) => None,
                (None, false) => Some(recording.board_file_name(file)),
            };
            let name = [place, own].into_iter().flatten().collect::<Vec<_>>().join(":");
            let gpu_index = board.or(device).and_then(|text| text.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().ok());
            let own = RecordedDevice {
                name: event_name(&name),
                node: node.map(str::to_owned),
                gpu_model: model.map(str::to_owned),
                gpu_index: gpu_index.filter(|index| *index < 1024),
                // Rows without an id are of one board of their file, whose id is empty.
                local_id: Some(device_key(id.as_deref().unwrap_or_default()).into_owned()).filter(|_| !is_global),
                is_anonymous: (id.is_none() || zeros.is_some() && board.is_none()) && node.is_none(),
                is_unique: is_global && id.is_some() && zeros.is_none(),
                row_name: device.map(str::to_owned),
                board: board.map(str::to_owned),
            };
            let source = recording.add_device(file, own);
            self.devices.insert(key, source);
            if let Some(device) = device.filter(|_| board.is_none() && zeros.is_none()) {
                let node = node.map_or_else(String::new, |node| spelling_key(node).into_owned());
                self.named.entry(node).or_default().push((device.to_owned(), source));
            }
            sources.push(source);
        }
        if plan.device.is_some() {
            let node = node.filter(|node| !names_a_sum(node)).map_or(Cow::Borrowed(""), spelling_key);
            let file_node = (file, node.into_owned());
            match device {
                Some(device) if names_a_sum(device) => self.sums.entry(file_node).or_default().extend(&sources),
                Some(_) => self.with_id.entry(file_node).or_default().extend(&sources),
                None => self.without_id.entry(file_node).or_default().extend(&sources),
            }
        }
        sources
    }

    /// Refuses the rows of a file that name no board, if others name one, or all boards of their node together. Refuses rows that
    /// name all together, if others of their node name one. Such rows are of one of those boards, or a sum or mean of them, which
    /// would count twice.
    fn refuse_rows_without_id(&mut self, recording: &mut Recording) {
        let mut without_id = std::mem::take(&mut self.without_id);
        let mut sums = std::mem::take(&mut self.sums);
        let nodes_of_sums: BTreeSet<FileNode> = sums.keys().cloned().collect();
        let of_sums: BTreeSet<SourceId> = sums.values().flatten().copied().collect();
        // A board that is refused by its name has no energy that a sum would count twice.
        let misnamed: BTreeSet<SourceId> = self
            .misnamed_boards(recording.meter)
            .into_iter()
            .map(|(_, source, _)| source)
            .filter(|source| !of_sums.contains(source))
            .collect();
        let of_boards = self.with_id.iter().filter(|(_, sources)| !sources.is_subset(&misnamed));
        let boards: BTreeSet<FileNode> = of_boards.map(|(node, _)| node.clone()).collect();
        let with_id: BTreeSet<FileNode> = self.with_id.keys().cloned().collect();
        without_id.retain(|node, _| has_node(&with_id, &(node.0, String::new())) || has_node(&nodes_of_sums, node));
        sums.retain(|node, _| has_node(&boards, node));
        let problem = "row has no id of a board, unlike others of its file: its readings of a board are left out";
        self.refuse_rows(recording, without_id, problem, "fill the cell in, or take the row out");
        let problem = "row is of all boards together by the name in its column of boards, and others are of one each: it is left \
                       out, or these would count twice";
        self.refuse_rows(recording, sums, problem, "take the row out, or name the board otherwise if it is one");
    }

    /// Returns the names in the column of boards that are none of a board of its own, with their sources and what they are.
    fn misnamed_boards(&self, meter: Meter) -> Vec<(String, SourceId, String)> {
        let of_node = |boards: &Vec<(String, SourceId)>| {
            let read: Vec<&(String, SourceId)> = boards.iter().filter(|(_, source)| self.read.contains(source)).collect();
            let names: Vec<&str> = read.iter().map(|(name, _)| name.as_str()).collect();
            let found = find_misnamed_boards(&names, meter).into_iter();
            found.map(|found| (read[found.index].0.clone(), read[found.index].1, found.problem)).collect::<Vec<_>>()
        };
        self.named.values().flat_map(of_node).collect()
    }

    /// Refuses the rows whose name in the column of boards is none of a board of its own.
    fn refuse_misnamed_boards(&mut self, recording: &mut Recording) {
        for boards in self.named.values() {
            let read = boards.iter().filter(|(_, source)| self.read.contains(source));
            let names: Vec<&str> = read.map(|(name, _)| name.as_str()).collect();
            if let Some(note) = describe_zone(&names) {
                recording.add_note(note);
            }
        }
        for (name, source, problem) in self.misnamed_boards(recording.meter) {
            let of_files = (0..recording.files.len()).map(|file| ((file, String::new()), BTreeSet::from([source]))).collect();
            let problem = format!("row is of {}, {problem}: it is left out, or this would count twice", quote(&name));
            self.refuse_rows(recording, of_files, &problem, "take the row out, or name the board otherwise if it is one");
        }
    }

    /// Refuses the rows of these sources.
    fn refuse_rows(&mut self, recording: &mut Recording, of_nodes: NodeSources, problem: &str, remedy: &str) {
        let mut of_files: BTreeMap<FileId, BTreeSet<SourceId>> = BTreeMap::new();
        for ((file, _), sources) in of_nodes {
            of_files.entry(file).or_default().extend(sources);
        }
        for (file, sources) in of_files {
            let mut lines = BTreeSet::new();
            for source in sources {
                let readings = std::mem::take(&mut recording.sources[source].readings);
                let (removed, remaining): (Vec<RecordedReading>, Vec<RecordedReading>) =
                    readings.into_iter().partition(|reading| reading.file as usize == file);
                recording.sources[source].readings = remaining;
                lines.extend(removed.iter().map(|reading| u64::from(reading.line)));
                lines.extend(self.steps.remove(source, file));
            }
            if let Some(first) = lines.first() {
                let error = recording.error(file, *first, problem, remedy);
                recording.refuse_lines("id", lines.len() as u64, error);
            }
        }
    }

    /// Returns an error if the column of boards names readings of power and others: what is no power would count as some.
    fn refuse_mixed_readings(&self, recording: &Recording) -> Result<(), ImportError> {
        let of_power = [ReadingField::PowerWatts, ReadingField::PowerAverageWatts];
        let is_power_mapped = of_power.iter().any(|field| recording.columns.contains_key(field));
        // A unit in the map states in what power is, and not that rows with the name of another quantity are power.
        let has_unit =
            of_power.iter().all(|field| !recording.columns.contains_key(field) || recording.explicit_units.contains_key(field));
        let named: Vec<&(String, SourceId)> =
            self.named.values().flatten().filter(|(_, source)| self.read.contains(source)).collect();
        let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
        let found = if is_power_mapped { find_mixed_reading(&names, has_unit) } else { None };
        let Some((other, power)) = found else { return Ok(()) };
        let Some(reading) = recording.sources[named[other].1].readings.first() else { return Ok(()) };
        let other = names[other];
        let problem = match power {
            Some(power) => {
                format!("the column of the boards names readings of several kinds, such as {} and {}", quote(power), quote(other))
            }
            None => format!("the column of the boards names a share of the power: {}", quote(other)),
        };
        let remedy = "keep the rows of power only, or write each kind of reading into a column of its own; if all are power, name the \
                      boards otherwise";
        Err(recording.error(reading.file as usize, u64::from(reading.line), problem, remedy))
    }

    fn job_source(&mut self, recording: &mut Recording, file: FileId) -> SourceId {
        let job = SourceKind::Job { rank: 0, irregular: false, scope: CounterScope::Global };
        *self.job.get_or_insert_with(|| recording.add_source(file, None, job))
    }

    /// Adds the values of a row to a source: levels as a reading, steps for later.
    fn add<'v>(
        &mut self,
        recording: &mut Recording,
        file: FileId,
        source: SourceId,
        time: EventTime,
        line: u64,
        values: impl Iterator<Item = &'v (&'v FieldSource, f64)>,
    ) {
        let (mut levels, mut added) = (Vec::new(), Vec::new());
        for (figure, value) in values {
            if figure.adds && matches!(figure.take, ValueExpression::One) {
                self.steps.note_counted_rows(file, figure.field);
            }
            if figure.adds { &mut added } else { &mut levels }.push((figure.field, *value));
        }
        recording.push_from(file, source, time, line, &levels, None);
        self.steps.add(file, source, time, line, added);
    }
}

/// Returns the remedy if a cell of energy has the rounded form of Slurm, such as `600K` or `1.20M`.
pub(crate) fn shortened_by_slurm(field: ReadingField, text: &str) -> Option<&'static str> {
    let number = text.trim().strip_suffix(|letter: char| "KMGTP".contains(letter))?;
    let is_shortened = field.dimension() == Dimension::Energy && number.parse::<f64>().is_ok();
    is_shortened.then_some(": sacct rounds ConsumedEnergy so; take its column ConsumedEnergyRaw, which is in joules")
}

/// Words of a mean of several boards, beside those of a total, and words beside both that add nothing.
const MEAN_WORDS: [&str; 3] = ["average", "avg", "mean"];
const WORDS_BESIDE_SUMS: [&str; 23] = [
    WORD_BEFORE_TOTALS,
    "leistung",
    "verbrauch",
    "gpu",
    "gpus",
    "device",
    "devices",
    "board",
    "boards",
    "card",
    "cards",
    "node",
    "system",
    "of",
    "power",
    "pwr",
    "draw",
    "usage",
    "consumption",
    "energy",
    "watts",
    "watt",
    "input",
];

/// Returns whether the name of a board states that it is all boards together: `total`, `All GPUs`, `gpu_sum`, `AllGPUs`.
fn names_a_sum(name: &str) -> bool {
    let name = name.to_lowercase();
    let words: Vec<&str> = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let sums: Option<Vec<bool>> = words.iter().map(|word| is_of_sum_words(word)).collect();
    sums.is_some_and(|sums| sums.contains(&true))
}

/// Returns whether a text, which consists of words of sums and of those beside them, has one of sums; `None` if it has others.
fn is_of_sum_words(text: &str) -> Option<bool> {
    if text.is_empty() {
        return Some(false);
    }
    let mut found = None;
    let lists = [(&TOTAL_WORDS[..], true), (&[SHORT_TOTAL_WORD], true), (&MEAN_WORDS, true), (&WORDS_BESIDE_SUMS, false)];
    for (words, is_sum) in lists {
        for word in words {
            let rest = text.strip_prefix(word).and_then(is_of_sum_words);
            found = found.max(rest.map(|rest| is_sum || rest));
        }
    }
    found
}

/// Returns whether a row names its board by an id that no other board has.
fn is_unique(plan: &TableMapping, cells: &RowCells) -> bool {
    plan.device.and_then(|column| cells.get(column)).is_some_and(|text| is_unique_id(text) && !is_absent_name(text))
}
