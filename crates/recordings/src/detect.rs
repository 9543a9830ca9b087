//! Guesses about a file before any import option is given: its format, and the columns of a table with suggested maps.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use eadt_schemas::v1::Meter;

use crate::clock::TimeParser;
use crate::csv_table::{
    ColumnRole, TIME_NAMES, TickColumn, find_column_roles, find_misnamed_boards, find_range_column, find_tick_column,
    is_running_total, names_rail_of_module, names_share_of_power, names_total_of_rails, refuse_json, shortened_by_slurm,
};
use crate::error::quote;
use crate::identity::{names_boards, spelling_key};
use crate::lines::LineReader;
use crate::names::shell_quote;
use crate::prometheus_text::split_printed_series;
use crate::quantity::{QuantityCell, is_quantity, parse_quantity};
use crate::recording::Recording;
use crate::table::{HeaderCriteria, RowCells, TableReader};
use crate::units::{Dimension, Unit, bracketed_unit, lowercase_words, word_places, worded_unit};
use crate::words::TOTAL_WORDS;
use crate::{ImportError, ImportOptions, ReadingField, RecordingFile, RecordingFormat};

/// The format that a file seems to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DetectedFormat {
    Recording(RecordingFormat),
    /// One of our own, which needs no import.
    EventLog,
}

/// Lines by which a format is known.
const HEAD_LINES: usize = 200;

/// Guesses the format of a file by its first lines; a file of no other format is taken for a table.
pub fn detect_format(input: RecordingFile<'_>) -> Result<DetectedFormat, ImportError> {
    let mut lines = LineReader::new(&input.name, input.reader)?;
    for _ in 0..HEAD_LINES {
        let Some((_, line)) = lines.next_line()? else { break };
        let line = line.trim();
        let format = match () {
            () if line.contains("\"specversion\"") => DetectedFormat::EventLog,
            () if line.contains("\"power_begin\"") || line.contains("loadgen") => {
                DetectedFormat::Recording(RecordingFormat::MlperfInference)
            }
            () if line.starts_with("Time,") && line.contains(",Watts,") => {
                DetectedFormat::Recording(RecordingFormat::MlperfInference)
            }
            () if line.contains(":::MLLOG") => DetectedFormat::Recording(RecordingFormat::Mlperf),
            () if line.starts_with("#Entity") || line.starts_with("# Entity") => {
                DetectedFormat::Recording(RecordingFormat::Dcgmi)
            }
            () if line.starts_with("# HELP") || line.starts_with("# TYPE") || line.starts_with("DCGM_FI_") => {
                DetectedFormat::Recording(RecordingFormat::Prometheus)
            }
            () if ["{\"status\"", "{__name__", "[{\"metric\""].iter().any(|start| line.starts_with(start)) => {
                DetectedFormat::Recording(RecordingFormat::Prometheus)
            }
            () if split_printed_series(line).is_some() => DetectedFormat::Recording(RecordingFormat::Prometheus),
            () if line.contains("timestamp")
                && ["power.draw", "utilization.gpu", "memory.used"].iter().any(|n| line.contains(n)) =>
            {
                DetectedFormat::Recording(RecordingFormat::NvidiaSmi)
            }
            () => continue,
        };
        return Ok(format);
    }
    Ok(DetectedFormat::Recording(RecordingFormat::Csv))
}

/// The columns of a table, and the maps that their names and values suggest.
#[derive(Debug)]
pub struct TablePreview {
    file: String,
    encoding: &'static str,
    separator: Option<char>,
    header_line: Option<u64>,
    /// A column has times.
    has_times: bool,
    columns: Vec<ColumnPreview>,
}

#[derive(Debug)]
struct ColumnPreview {
    name: String,
    values: String,
    suggestion: Option<SuggestedMap>,
    /// Its numbers; none if it has other texts.
    numbers: Vec<f64>,
}

/// A `--map` that fits the name and the values of a column.
#[derive(Debug)]
struct SuggestedMap {
    field: &'static str,
    board: Option<String>,
    /// The name of the column, with a unit behind a colon if it needs one.
    column: String,
    /// Further options, with a blank before each.
    options: String,
}

impl SuggestedMap {
    fn new(field: &'static str, column: impl Into<String>) -> Self {
        Self { field, board: None, column: column.into(), options: String::new() }
    }
}

impl fmt::Display for SuggestedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, board, column, options } = self;
        let board = board.as_ref().map_or(String::new(), |board| format!("[{board}]"));
        write!(f, "--map {}{options}", shell_quote(&format!("{field}{board}={column}")))
    }
}

/// Columns of `nvidia-smi dmon` and `pmon` beside `gpu`, of which each of their tables has one. Without `-o DT` they have no time.
const DMON_COLUMNS: [&str; 9] = ["bar1", "fb", "gtemp", "mclk", "pid", "pviol", "pwr", "rxpci", "sm"];

/// Returns whether a row is the header of a table of `nvidia-smi dmon` or `pmon`.
fn is_header_of_dmon(cells: &RowCells) -> bool {
    let has = |names: &[&str]| cells.iter().any(|cell| names.contains(&cell));
    has(&["gpu"]) && has(&DMON_COLUMNS)
}

/// Reads the first rows of a table of which no option names the columns.
pub fn sketch_table(input: RecordingFile<'_>) -> Result<TablePreview, ImportError> {
    let mut recording = Recording::new(RecordingFormat::Csv, &ImportOptions::default());
    let lines = LineReader::new(&input.name, input.reader)?;
    let file = recording.add_file(&input.name, lines.fingerprint);
    let clock = TimeParser::new(None, None);
    let plain = |cells: &RowCells| cells.len() > 0 && cells.iter().all(|cell| is_quantity(cell) || clock.read(cell).is_ok());
    let is_time = |cell: &&str| TIME_NAMES.iter().any(|name| cell.eq_ignore_ascii_case(name));
    let names = |cells: &RowCells| cells.iter().filter(is_time).count() + usize::from(is_header_of_dmon(cells));
    let (table, header) = TableReader::open(lines, &mut recording, file, &HeaderCriteria { names: &names, is_data: &plain })?;
    let Some(header) = header else {
        return Err(ImportError::in_file(&input.name, "is empty: it has no header", "check that this is the right file"));
    };
    refuse_json(&input.name, &header)?;
    let mut rows: Vec<Vec<String>> = Vec::new();
    table.peek(|cells| rows.push(cells.iter().map(str::to_owned).collect()));
    let width = header.names.len();
    let names = header.names.iter().enumerate();
    let names: Vec<String> =
        names.map(|(index, name)| if name.is_empty() { format!("#{}", index + 1) } else { name.to_owned() }).collect();
    let mut columns: Vec<ColumnPreview> = (0..width)
        .map(|index| {
            let cells: Vec<&str> = rows.iter().filter_map(|row| row.get(index).map(String::as_str)).collect();
            let (values, suggestion) = sketch_column(&names[index], &cells, &clock);
            let number = |cell: &&str| match parse_quantity(cell, None) {
                QuantityCell::Number(value, _) => Some(value),
                _ => None,
            };
            let numbers = cells.iter().filter_map(number).collect();
            ColumnPreview { name: names[index].clone(), values, suggestion, numbers }
        })
        .collect();
    number_equal_names(&mut columns);
    suggest_energy_of_rows(&mut columns);
    suggest_totals_of_boards(&mut columns, &rows);
    drop_duplicate_total(&mut columns);
    drop_sums(&mut columns);
    drop_ticks(&mut columns);
    drop_misnamed(&mut columns);
    assign_equal_names(&mut columns);
    assign_boards(&mut columns);
    suggest_unit_of_module(&mut columns);
    let has_times = |column: &ColumnPreview| column.values.starts_with(TIMES_FROM) || suggested_field(column) == Some("time");
    Ok(TablePreview {
        file: input.name,
        encoding: table.encoding().name(),
        separator: table.separator(),
        header_line: (!header.is_data).then_some(header.line),
        has_times: columns.iter().any(has_times),
        columns,
    })
}

/// A column is of times or of numbers if so many in 100 of its cells are: some tools repeat the header, or write a note, at the end.
const PERCENT_OF_A_KIND: usize = 90;
/// How the description of a column of times begins.
const TIMES_FROM: &str = "times from ";

fn sketch_column(name: &str, cells: &[&str], clock: &TimeParser) -> (String, Option<SuggestedMap>) {
    let known: Vec<&str> = cells.iter().copied().filter(|cell| !crate::absent::is_absent_text(cell)).collect();
    let Some(first) = known.first() else { return ("no values".to_owned(), None) };
    let is_usual = TIME_NAMES.iter().any(|time| name.eq_ignore_ascii_case(time));
    // `20250203` is a number, too.
    let is_time = |cell: &&&str| clock.read(cell).is_ok() || is_usual && clock.is_date(cell);
    let are_most = |cells: usize| cells * 100 >= known.len() * PERCENT_OF_A_KIND;
    if let Some(first) = known.iter().find(is_time).filter(|_| are_most(known.iter().filter(is_time).count())) {
        return (format!("{TIMES_FROM}{first}"), (!is_usual).then(|| SuggestedMap::new("time", name)));
    }
    let quantities = known.iter().filter_map(|cell| match parse_quantity(cell, None) {
        QuantityCell::Number(value, unit) => Some((*cell, (value, unit))),
        _ => None,
    });
    let (texts, quantities): (Vec<&str>, Vec<(f64, Option<Unit>)>) = quantities.unzip();
    if !are_most(quantities.len()) {
        let energy = ReadingField::EnergyJoulesTotal;
        let is_energy = lowercase_words(name).iter().any(|word| word == "energy");
        let why = known.iter().find_map(|cell| shortened_by_slurm(energy, cell)).filter(|_| is_energy).unwrap_or_default();
        return (format!("texts such as {}{why}", quote(first)), suggest_map_of_texts(name));
    }
    let numbers: Vec<f64> =
        quantities.iter().map(|(value, unit)| unit.map_or(*value, |unit| unit.to_base_unit(*value))).collect();
    let suggestion = suggest_map_of_numbers(name, &texts, &numbers);
    if let Some(values) = suggestion.as_ref().and_then(|map| find_other_unit(map.field, &texts, &quantities)) {
        return (values, None);
    }
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (format!("numbers from {low} to {high}"), suggestion)
}

/// Describes a column if a cell has a unit that is none of a field.
fn find_other_unit(field: &str, texts: &[&str], quantities: &[(f64, Option<Unit>)]) -> Option<String> {
    let field = ReadingField::from_name(field).or_else(|| ReadingField::from_name(&format!("{field}_total")))?;
    let mut cells = texts.iter().zip(quantities);
    let (text, _) = cells.find(|(_, (_, unit))| unit.is_some_and(|unit| unit.dimension != field.dimension()))?;
    let why = shortened_by_slurm(field, text).unwrap_or_default();
    Some(format!("numbers such as {}, which is in no unit of {}{why}", quote(text), field.name()))
}

/// Returns the unit of power or energy that the header of a column gives.
fn electrical_unit(name: &str) -> Option<Unit> {
    let bracketed = bracketed_unit(name).filter(|unit| unit.dimension.is_electrical());
    bracketed.or_else(|| worded_unit(name, Dimension::Power)).or_else(|| worded_unit(name, Dimension::Energy))
}

fn suggest_map_of_texts(name: &str) -> Option<SuggestedMap> {
    let has_unit = bracketed_unit(name).is_some() || electrical_unit(name).is_some();
    if has_unit {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let field = match () {
        () if has(&["uuid", "device", "gpu", "card", "serial", "bus_id"]) && !has(&["name", "model"]) => "device",
        () if has(&["host", "node"]) => "node",
        () if has(&["model"]) || lower == "name" || has(&["name"]) && has(&["gpu", "device", "card"]) => "gpu_model",
        () => return None,
    };
    Some(SuggestedMap::new(field, name))
}

/// Words of columns of times and rates, which count no steps: `elapsed time per iteration (ms)`.
const WORDS_OF_TIMES: [&str; 8] = ["duration", "elapsed", "latency", "ms", "per", "s", "seconds", "time"];

fn suggest_map_of_numbers(name: &str, known: &[&str], numbers: &[f64]) -> Option<SuggestedMap> {
    let lower = name.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let map = |field: &'static str| Some(SuggestedMap::new(field, name));
    let is_total = names_a_total(name) || may_be_total(numbers);
    let total = |total: &'static str, added: &'static str| map(if is_total { total } else { added });
    let is_of_times = || lowercase_words(name).iter().any(|word| WORDS_OF_TIMES.contains(&word.as_str()));
    match () {
        () if has(&["limit", "cap"]) && has(&["power"]) => map("power_limit_watts"),
        () if names_share_of_power(name) => None,
        () if electrical_unit(name).is_some_and(|unit| unit.dimension == Dimension::Energy) => {
            total("energy_joules_total", "energy_joules")
        }
        () if has(&["power", "watt", "pwr"]) => map("power_watts"),
        () if has(&["energy", "joule"]) => total("energy_joules_total", "energy_joules"),
        () if has(&["util"]) && high > 1.05 => Some(SuggestedMap::new("utilization_ratio", format!("{name}:%"))),
        () if has(&["util"]) => map("utilization_ratio"),
        () if lower == "mtemp" => map("memory_temperature_celsius"),
        () if has(&["temp"]) => map("temperature_celsius"),
        () if has(&["samples_per", "throughput"]) => map("samples_per_second"),
        () if has(&["sample", "image"]) => total("samples_total", "samples"),
        () if has(&["token"]) => total("tokens_total", "tokens"),
        () if lower == "step" || has(&["steps", "iteration"]) && !is_of_times() => map("steps_total"),
        () if lower == "loss" => map("loss"),
        () if (has(&["time"]) || lower == "ts") && low >= 1e8 => {
            let options = format!(" --time-format {}", unit_of_count(high));
            Some(SuggestedMap { options, ..SuggestedMap::new("time", name) })
        }
        () if may_number_boards(name, known, numbers) => map("device"),
        () => None,
    }
}

/// Returns the unit in which a count since 1970 is of this century.
fn unit_of_count(count: f64) -> &'static str {
    match count {
        x if x < 1e11 => "unix",
        x if x < 1e14 => "unix_ms",
        x if x < 1e17 => "unix_us",
        _ => "unix_ns",
    }
}

/// Returns whether the numbers of a column may be those of boards. A column `GPU` may have a utilization as well.
fn may_number_boards(name: &str, known: &[&str], numbers: &[f64]) -> bool {
    const MOST_GPUS: f64 = 64.0;
    let has_repeats = || known.iter().collect::<BTreeSet<_>>().len() < known.len();
    let is_small = |number: &f64| number.fract() == 0.0 && (0.0..MOST_GPUS).contains(number);
    let lower = name.to_ascii_lowercase();
    names_boards(name)
        && (!NAMES_OF_ANY_ID.contains(&lower.as_str()) || has_repeats())
        && (lower != "gpu" || numbers.iter().all(is_small))
}

/// Returns whether a column's name states that it counts up, such as `energyTotal`.
fn names_a_total(name: &str) -> bool {
    let is_total = |word: &str| RUNNING_TOTAL_WORDS.iter().any(|total| word.eq_ignore_ascii_case(total));
    word_places(name).into_iter().any(|place| is_total(&name[place]))
}

/// Returns whether figures may be a total: it grows, which what each row adds need not.
fn may_be_total(numbers: &[f64]) -> bool {
    let grows = numbers.first().zip(numbers.last()).is_some_and(|(first, last)| first < last);
    numbers.len() < 3 || grows && numbers.is_sorted() || is_running_total(numbers)
}

/// Proposes a total for what counts up on each board by itself, where rows are of several in turn.
fn suggest_totals_of_boards(columns: &mut [ColumnPreview], rows: &[Vec<String>]) {
    let Some(device) = columns.iter().position(|column| suggested_field(column) == Some("device")) else { return };
    for (index, column) in columns.iter_mut().enumerate() {
        let total = match suggested_field(column) {
            Some("energy_joules") => "energy_joules_total",
            Some("samples") => "samples_total",
            Some("tokens") => "tokens_total",
            _ => continue,
        };
        let mut of_boards: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for row in rows {
            if let (Some(board), Some(cell)) = (row.get(device), row.get(index))
                && let QuantityCell::Number(value, _) = parse_quantity(cell, None)
            {
                of_boards.entry(spelling_key(board).into_owned()).or_default().push(value);
            }
        }
        let counts_up = of_boards.len() > 1 && of_boards.values().all(|numbers| numbers.len() >= 3 && may_be_total(numbers));
        if let Some(suggestion) = column.suggestion.as_mut().filter(|_| counts_up) {
            suggestion.field = total;
        }
    }
}

/// Names of columns that may number rows as well as boards.
const NAMES_OF_ANY_ID: [&str; 9] = ["bus", "id", "idx", "index", "minor", "ordinal", "rank", "serial", "slot"];

/// Words of a column that counts up.
const RUNNING_TOTAL_WORDS: [&str; 3] = ["total", "counter", "cumulative"];

/// Chooses between a column and its running total, such as `energy` and `energy_total`: mapped both, they would fill one figure.
fn drop_duplicate_total(columns: &mut [ColumnPreview]) {
    let stem = |name: &str| {
        let is_total = |word: &String| RUNNING_TOTAL_WORDS.contains(&word.as_str());
        let words = lowercase_words(name);
        let plain: Vec<&String> = words.iter().filter(|word| !is_total(word)).collect();
        (plain.len() < words.len(), plain.into_iter().cloned().collect::<Vec<String>>())
    };
    for total in 0..columns.len() {
        let (is_total, stem_of_total) = stem(&columns[total].name);
        let Some(field) = suggested_field(&columns[total]).filter(|_| is_total) else { continue };
        let Some(added) = field.strip_suffix("_total").map(str::to_owned) else { continue };
        let is_other = |column: &ColumnPreview| {
            stem(&column.name) == (false, stem_of_total.clone())
                && suggested_field(column).is_some_and(|field| field.trim_end_matches("_total") == added)
        };
        let Some(other) = columns.iter().position(is_other) else { continue };
        let numbers = &columns[total].numbers;
        let counts = numbers.is_sorted() && (numbers.len() < 3 || numbers.first() < numbers.last());
        let (kept, left, why) = if counts {
            (total, other, "a running total has what lies between its rows, too")
        } else {
            (other, total, "which does not rise as a running total does")
        };
        columns[left].suggestion = None;
        let name = quote(&columns[kept].name);
        let suffix = if counts {
            format!(", of the same quantity as {name}, which is proposed: {why}")
        } else {
            format!(", {why}; {name} is proposed")
        };
        columns[left].values.push_str(&suffix);
    }
}

/// Takes the maps of columns away that are by their names the sum or mean of others: mapped beside them they would count twice.
fn drop_sums(columns: &mut [ColumnPreview]) {
    const QUANTITIES: [&[&str]; 4] =
        [&["power_watts"], &["energy_joules_total", "energy_joules"], &["utilization_ratio"], &["temperature_celsius"]];
    for fields in QUANTITIES {
        let is_of = |column: &ColumnPreview| suggested_field(column).is_some_and(|field| fields.contains(&field));
        if !columns.iter().any(|column| is_of(column) && !names_a_sum_column(&column.name)) {
            continue;
        }
        for column in columns.iter_mut().filter(|column| is_of(column) && names_a_sum_column(&column.name)) {
            column.suggestion = None;
            column.values += ", of several boards together by its name";
        }
    }
}

/// Takes the maps of columns away that count the ticks of an energy counter whose energy another column has, and of those that have
/// the end of its range.
fn drop_ticks(columns: &mut [ColumnPreview]) {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    let range = find_range_column(&names).map(|(index, _)| index);
    for (index, column) in columns.iter_mut().enumerate().filter(|(_, column)| column.suggestion.is_some()) {
        if let Some(TickColumn::Energy(energy)) = find_tick_column(&names, index) {
            column.suggestion = None;
            column.values.extend([", of ticks, whose energy ", &quote(&names[energy]), " has"]);
        } else if range == Some(index) {
            column.suggestion = None;
            column.values += ", the end of a counter's range by its name";
        }
    }
}

/// Takes the maps of columns away that are by their names of no board of their own: `gpu0_power_max`, and `cpu_power` beside
/// `gpu_power`.
fn drop_misnamed(columns: &mut [ColumnPreview]) {
    for field in ["power_watts", "energy_joules_total", "energy_joules", "utilization_ratio", "temperature_celsius"] {
        let of_field = |(_, column): &(usize, &ColumnPreview)| suggested_field(column) == Some(field);
        let (places, names): (Vec<usize>, Vec<String>) =
            columns.iter().enumerate().filter(of_field).map(|(place, column)| (place, column.name.clone())).unzip();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for found in find_misnamed_boards(&names, Meter::Gpu) {
            let column = &mut columns[places[found.index]];
            column.suggestion = None;
            column.values.extend([", ", &found.problem]);
        }
    }
}

/// Maps columns whose name others have, too, by their numbers.
fn number_equal_names(columns: &mut [ColumnPreview]) {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    for (index, column) in columns.iter_mut().enumerate() {
        let is_equal = names.iter().filter(|name| **name == column.name).count() > 1;
        if let Some(map) = column.suggestion.as_mut().filter(|_| is_equal) {
            map.column = map.column.replacen(&column.name, &format!("#{}", index + 1), 1);
        }
    }
}

/// Words of columns of how long each row took.
const WORDS_OF_DURATIONS: [&str; 2] = ["duration", "elapsed"];

/// Proposes amounts of energy where each row has a time of its own, and the energy of one row is more than all that it differs by.
fn suggest_energy_of_rows(columns: &mut [ColumnPreview]) {
    let is_duration = |word: &String| WORDS_OF_DURATIONS.contains(&word.as_str());
    if !columns.iter().any(|column| lowercase_words(&column.name).iter().any(is_duration)) {
        return;
    }
    for column in columns.iter_mut().filter(|column| !names_a_total(&column.name)) {
        let (low, high) = column
            .numbers
            .iter()
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| (low.min(*number), high.max(*number)));
        if let Some(map) = column.suggestion.as_mut().filter(|map| map.field == "energy_joules_total" && high - low < low) {
            map.field = "energy_joules";
        }
    }
}

/// Names the boards of columns of GPUs that have one name and other numbers, as logs of sensors have one for each GPU. Figures that
/// have no such column for each of them are of one of these boards, which nothing names.
fn assign_equal_names(columns: &mut [ColumnPreview]) {
    let of_field = |columns: &[ColumnPreview], field: &str| -> Vec<usize> {
        (0..columns.len()).filter(|place| suggested_field(&columns[*place]) == Some(field)).collect()
    };
    let power = of_field(columns, "power_watts");
    let is_equal =
        |pair: &[usize]| columns[pair[0]].name == columns[pair[1]].name && columns[pair[0]].numbers != columns[pair[1]].numbers;
    let is_gpu = || power.first().is_some_and(|first| names_a_gpu(&columns[*first].name));
    if power.len() < 2 || !power.windows(2).all(is_equal) || !is_gpu() {
        return;
    }
    for field in FIGURES_OF_BOARDS {
        let places = of_field(columns, field);
        let is_of_each =
            places.len() == power.len() && places.windows(2).all(|pair| columns[pair[0]].name == columns[pair[1]].name);
        for (board, place) in places.into_iter().enumerate() {
            let column = &mut columns[place];
            if let Some(map) = column.suggestion.as_mut().filter(|_| is_of_each) {
                map.board = Some(format!("gpu{board}"));
            } else {
                column.suggestion = None;
                column.values += ", of one of several boards";
            }
        }
    }
}

fn names_a_gpu(name: &str) -> bool {
    lowercase_words(name).iter().any(|word| word == "gpu")
}

/// Returns the field that the map of a column names.
fn suggested_field(column: &ColumnPreview) -> Option<&'static str> {
    column.suggestion.as_ref().map(|map| map.field)
}

/// Figures of which each board has one.
const FIGURES_OF_BOARDS: [&str; 6] =
    ["power_watts", "energy_joules_total", "energy_joules", "power_limit_watts", "utilization_ratio", "temperature_celsius"];

/// Names the boards of columns that suggest the same figure, and takes the maps of those away that are another figure of these.
fn assign_boards(columns: &mut [ColumnPreview]) {
    for field in FIGURES_OF_BOARDS {
        let places: Vec<usize> = columns
            .iter()
            .enumerate()
            .filter(|(_, column)| column.suggestion.as_ref().is_some_and(|map| map.field == field && map.board.is_none()))
            .map(|(place, _)| place)
            .collect();
        let names: Vec<String> = places.iter().map(|place| columns[*place].name.clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (place, role) in places.iter().zip(find_column_roles(&names)) {
            let column = &mut columns[*place];
            match role {
                ColumnRole::Figure => {}
                ColumnRole::FigureOfBoard(board) => {
                    if let Some(map) = &mut column.suggestion {
                        map.board = Some(board);
                    }
                }
                ColumnRole::Beside(other) => {
                    column.suggestion = None;
                    let other = quote(names[other]);
                    let text = format!(
                        ", by its name another figure or part of what {other} is of; if it is of a board of its own, map it as \
                         {field}[NAME]"
                    );
                    column.values.push_str(&text);
                }
            }
        }
    }
}

/// Adds the unit and the meter to the map of the power of a module: jtop writes the power of its rails in mW, without a unit.
fn suggest_unit_of_module(columns: &mut [ColumnPreview]) {
    /// No module draws more, in watts.
    const MOST_WATTS: f64 = 200.0;
    if !columns.iter().any(|column| names_rail_of_module(&column.name)) {
        return;
    }
    for column in columns {
        let Some(map) = column.suggestion.as_mut().filter(|map| map.field == "power_watts") else { continue };
        if !names_rail_of_module(&column.name) && !names_total_of_rails(&column.name) {
            continue;
        }
        let has_unit = bracketed_unit(&column.name).is_some() || worded_unit(&column.name, Dimension::Power).is_some();
        if !has_unit && column.numbers.iter().any(|number| *number > MOST_WATTS) {
            map.column.push_str(":mW");
        }
        " --meter module".clone_into(&mut map.options);
    }
}

/// Returns whether a column's name states that it is of all boards together, such as `total_power_W`. A mean may be a figure of
/// one.
fn names_a_sum_column(name: &str) -> bool {
    let lower = name.to_lowercase();
    lower.split(|c: char| !c.is_alphanumeric()).any(|word| TOTAL_WORDS.contains(&word))
}

impl fmt::Display for TablePreview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: a table in {} text", self.file, self.encoding)?;
        match self.separator {
            Some('\t') => writeln!(f, "  separator: tab")?,
            Some(separator) => writeln!(f, "  separator: {separator:?}")?,
            None => writeln!(f, "  separator: none, one cell a row")?,
        }
        match self.header_line {
            Some(line) => writeln!(f, "  header: line {line}")?,
            None => writeln!(f, "  header: none, the first line has readings")?,
        }
        for ColumnPreview { name, values, suggestion, .. } in &self.columns {
            let suggestion = suggestion.as_ref().map_or(String::new(), |suggestion| format!("; if so: {suggestion}"));
            writeln!(f, "  column {name:?}: {values}{suggestion}")?;
        }
        if !self.has_times {
            writeln!(
                f,
                "no column has whole times: map one as time, use --date if they are times of day, or --interval if it has none"
            )?;
        }
        writeln!(f, "map its columns with --map FIELD=COLUMN, and explain again")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_formats() {
        for (text, format) in [
            ("timestamp, index, power.draw [W]\n", RecordingFormat::NvidiaSmi),
            ("# Entity  POWER\n", RecordingFormat::Dcgmi),
            ("noise\n:::MLLOG {\"key\": \"run_start\"}\n", RecordingFormat::Mlperf),
            ("Time,07-12-2024 23:12:57.304,Watts,100\n", RecordingFormat::MlperfInference),
            ("# HELP DCGM_FI_DEV_POWER_USAGE x\n", RecordingFormat::Prometheus),
            ("{\"status\":\"success\"}", RecordingFormat::Prometheus),
            ("[{\"metric\":{\"__name__\":\"up\"},\"values\":[]}]", RecordingFormat::Prometheus),
            ("nvidia_smi_power_draw_watts{gpu=\"0\"} =>\n250 @[1738576800]\n", RecordingFormat::Prometheus),
            ("time;w\n1;2\n", RecordingFormat::Csv),
            ("", RecordingFormat::Csv),
        ] {
            assert_eq!(
                detect_format(RecordingFile::new("f", text.as_bytes())).unwrap(),
                DetectedFormat::Recording(format),
                "{text:?}"
            );
        }
        assert_eq!(
            detect_format(RecordingFile::new("f", &b"{\"specversion\":\"1.0\"}\n"[..])).unwrap(),
            DetectedFormat::EventLog
        );
    }

    /// Maps that are suggested are not ones by which energy counts twice, or not at all.
    #[test]
    fn suggests_no_map_that_would_miscount() {
        let sketch = |text: &str| sketch_table(RecordingFile::new("w.csv", text.as_bytes())).unwrap().to_string();
        let wide = sketch("time,gpu0_W_power,gpu1_W_power,total_power\n2025-02-03T10:00:00Z,300,200,500\n");
        assert!(wide.contains("power_watts[gpu1]=gpu1_W_power") && !wide.contains("=total_power"), "{wide}");
        assert!(wide.contains("\"total_power\": numbers from 500 to 500, of several boards together"), "{wide}");
        let alone = sketch("time,total_power\n2025-02-03T10:00:00Z,500\n");
        assert!(alone.contains("--map power_watts=total_power"), "{alone}");
        // Zeus writes the energy of each window, which is no counter.
        let zeus = sketch(
            "start_time,window_name,gpu0_energy,gpu1_energy\n1738576800.0,step,3000.0,2000.0\n1738576810.0,step,3010.0,2000.0\n\
             1738576820.0,step,3005.0,2000.0\n",
        );
        assert!(zeus.contains("energy_joules[gpu0]=gpu0_energy") && zeus.contains("energy_joules[gpu1]=gpu1_energy"), "{zeus}");
        assert!(!zeus.contains("gpu_model"), "{zeus}");
        for (column, values, map) in [
            ("energy", ["1", "1", "301"], "energy_joules_total=energy"),
            ("energy", ["1", "1", "1"], "energy_joules=energy"),
            ("energy_total", ["1", "1", "1"], "energy_joules_total=energy_total"),
            ("tokenCounter", ["9", "0", "4"], "tokens_total=tokenCounter"),
            ("cumulative_samples", ["9", "9", "9"], "samples_total=cumulative_samples"),
            ("subtotal_samples", ["9", "9", "9"], "samples=subtotal_samples"),
        ] {
            let rows = values.iter().enumerate().map(|(row, value)| format!("2025-02-03T10:00:0{row}Z,{value}\n"));
            let text = format!("time,{column}\n{}", rows.collect::<String>());
            assert!(sketch(&text).contains(&format!("--map {map}\n")), "{column}: {}", sketch(&text));
        }
        for (columns, rows, kept, left) in [
            (
                "energy,energy_total",
                ["3,3", "4,7", "2,9"],
                "energy_joules_total=energy_total",
                "\"energy\": numbers from 2 to 4, of the same quantity as \"energy_total\", which is proposed",
            ),
            (
                "energyTotal,energy",
                ["3,3", "9,4", "9,2"],
                "energy_joules_total=energyTotal",
                "\"energy\": numbers from 2 to 4, of the same quantity as \"energyTotal\", which is proposed",
            ),
            (
                "energy,energy_total",
                ["3,3", "4,4", "2,2"],
                "energy_joules=energy",
                "\"energy_total\": numbers from 2 to 4, which does not rise as a running total does; \"energy\" is proposed",
            ),
            (
                "samples,samples_total",
                ["32,32", "16,48", "32,80"],
                "samples_total=samples_total",
                "\"samples\": numbers from 16 to 32, of the same quantity as \"samples_total\", which is proposed",
            ),
        ] {
            let rows = rows.iter().enumerate().map(|(row, cells)| format!("2025-02-03T10:00:0{row}Z,{cells}\n"));
            let shown = sketch(&format!("time,{columns}\n{}", rows.collect::<String>()));
            assert!(shown.contains(&format!("--map {kept}\n")) && shown.matches("--map ").count() == 2, "{shown}");
            assert!(shown.contains(left), "{shown}");
        }
        for (text, proposed, left) in [
            (
                "_timestamp,system.gpu.0.powerWatts,system.gpu.0.powerPercent,system.gpu.process.0.powerWatts,system.gpu.1.powerWatts\n\
                 2025-02-03T10:00:00Z,300,75,300,200\n",
                &["power_watts[gpu0]=system.gpu.0.powerWatts", "power_watts[gpu1]=system.gpu.1.powerWatts"][..],
                "\"system.gpu.process.0.powerWatts\": numbers from 300 to 300, by its name another figure",
            ),
            (
                "time,cpu_power,gpu_power,cpu_energy,gpu_energy,energy_consumed\n2025-02-03T10:00:00Z,42,300,0.1,0.5,0.6\n",
                &["power_watts=gpu_power", "energy_joules_total=gpu_energy"],
                "\"cpu_power\": numbers from 42 to 42, by its name of another part of the machine than \"gpu_power\"",
            ),
            (
                "time,gpu,energy\n2025-02-03T10:00:00Z,0,100\n2025-02-03T10:00:00Z,1,900\n2025-02-03T10:00:01Z,0,400\n\
                 2025-02-03T10:00:01Z,1,1100\n2025-02-03T10:00:02Z,0,700\n2025-02-03T10:00:02Z,1,1300\n",
                &["device=gpu", "energy_joules_total=energy"],
                "\"energy\": numbers from 100 to 1300; if so",
            ),
            (
                "time,id,W\n2025-02-03T10:00:00Z,1,300\n2025-02-03T10:00:01Z,2,300\n2025-02-03T10:00:02Z,3,300\n",
                &[],
                "\"id\": numbers from 1 to 3\n",
            ),
            (
                "time,index,power\n2025-02-03T10:00:00Z,0,300\n2025-02-03T10:00:00Z,1,300\n2025-02-03T10:00:01Z,0,300\n",
                &["device=index", "power_watts=power"],
                "\"index\": numbers from 0 to 1; if so",
            ),
            (
                "time,power [W],GPU use (%)\n2025-02-03T10:00:00Z,300,97\n",
                &["'power_watts=power [W]'"],
                "\"GPU use (%)\": numbers from 97 to 97\n",
            ),
        ] {
            let shown = sketch(text);
            assert!(
                proposed
                    .iter()
                    .all(|map| shown.contains(&format!("--map {map}\n")) || shown.contains(&format!("--map '{map}'\n"))),
                "{shown}"
            );
            assert!(shown.matches("--map ").count() == proposed.len() + 1 && shown.contains(left), "{shown}");
        }
        let zeus_sum = sketch(
            "time,gpu0_energy,gpu1_energy,total_energy\n2025-02-03T10:00:00Z,30,20,50\n2025-02-03T10:00:01Z,31,21,52\n\
             2025-02-03T10:00:02Z,30,20,50\n",
        );
        assert!(zeus_sum.contains("energy_joules[gpu1]=gpu1_energy") && !zeus_sum.contains("=total_energy"), "{zeus_sum}");
    }

    #[test]
    fn suggests_maps() {
        let text =
            "_timestamp,host,gpu.0.powerWatts,gpu.1.powerWatts,util %\n1738576800,c1,100,300,50\n1738576815,c1,100,300,60\n";
        let shown = sketch_table(RecordingFile::new("w.csv", text.as_bytes())).unwrap().to_string();
        for part in [
            "w.csv: a table in UTF-8 text",
            "separator: ','",
            "header: line 1",
            "--map time=_timestamp --time-format unix",
            "texts such as \"c1\"; if so: --map node=host",
            "--map 'power_watts[gpu0]=gpu.0.powerWatts'",
            "--map 'power_watts[gpu1]=gpu.1.powerWatts'",
            "--map 'utilization_ratio=util %:%'",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
