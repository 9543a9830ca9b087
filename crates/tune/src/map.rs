//! `FIELD=COLUMN[:UNIT]`: which column of a table holds a field.

use std::io::Read;
use std::str::FromStr;

use eadt_models::choose::TuningKnob;
use eadt_recordings::units::{Dimension, Unit, bracketed_unit, unreadable_unit, worded_unit};
use eadt_recordings::{DecimalMark, QuantityCell, RecordingFile, TableRows, shell_quote};

use crate::TableError;
use crate::error::quote;

/// `FIELD=COLUMN[:UNIT]`. Several columns are added up with `+`, as the energies of several GPUs: `energy_joules=gpu0+gpu1:mJ`.
/// A column is found by its name as the header has it, or by `#` and its number from 1. Without UNIT the header's own
/// (`Power [mW]`) or the field's is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldMap {
    pub(crate) field: String,
    pub(crate) columns: String,
}

/// A map that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--map {text:?} is not FIELD=COLUMN[:UNIT]; for example --map duration_seconds=elapsed:ms")]
pub struct InvalidMap {
    text: String,
}

impl FieldMap {
    pub fn field(&self) -> &str {
        &self.field
    }
}

impl FromStr for FieldMap {
    type Err = InvalidMap;

    fn from_str(text: &str) -> Result<Self, InvalidMap> {
        let parts = text.split_once('=').map(|(field, columns)| (field.trim(), columns.trim()));
        match parts {
            Some((field, columns)) if !field.is_empty() && !columns.is_empty() => {
                Ok(Self { field: field.to_owned(), columns: columns.to_owned() })
            }
            _ => Err(InvalidMap { text: text.to_owned() }),
        }
    }
}

/// Opens a table whose header has the columns that `maps`, `by` or `fields` name.
pub(crate) fn open<'a>(
    file: &str,
    reader: impl Read + 'a,
    maps: &[FieldMap],
    by: &[String],
    fields: &[&str],
) -> Result<TableRows<'a>, TableError> {
    check_maps(file, maps)?;
    let mapped: Vec<&str> = maps.iter().flat_map(|map| column_names(&map.columns)).collect();
    let is_wanted = |cell: &str| {
        !cell.is_empty() && (mapped.contains(&cell) || by.iter().any(|by| by == cell))
            || fields.iter().any(|field| is_name(cell, field) || is_name(plain_name(cell), field))
    };
    let rows = TableRows::open(RecordingFile::new(file, reader), &is_wanted)?;
    let rows = rows.filter(|rows| rows.names().iter().any(|name| !name.is_empty()));
    rows.ok_or_else(|| TableError::new(file, "the file is empty", "give a table whose first line names its columns"))
}

/// Refuses a field that two maps name, unless the later one only adds a unit to the same columns.
fn check_maps(file: &str, maps: &[FieldMap]) -> Result<(), TableError> {
    for (index, map) in maps.iter().enumerate() {
        let is_refined = |earlier: &FieldMap| {
            let rest = map.columns.strip_prefix(earlier.columns.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        let other = maps[..index].iter().find(|earlier| earlier.field == map.field && !is_refined(earlier));
        let Some(other) = other else { continue };
        let (field, first, second) = (&map.field, &other.columns, &map.columns);
        let problem = format!("--map names {field} twice: {} and {}", quote(first), quote(second));
        let is_sum = ["energy_joules", "mean_power_watts"].contains(&field.as_str());
        let remedy = if !is_sum {
            "leave one of the two out".to_owned()
        } else if first.contains(':') || second.contains(':') {
            format!("add the columns up (--map {field}=COLUMN+COLUMN:UNIT), or leave one of the two out")
        } else {
            let sum = shell_quote(&format!("{field}={first}+{second}"));
            format!("add the columns up (--map {sum}), or leave one of the two out")
        };
        return Err(TableError::new(file, problem, remedy));
    }
    Ok(())
}

/// Words that a rate may count, before `/s`. `time/s` is a time in seconds.
const COUNTED: [&str; 29] = [
    "1",
    "sample",
    "samples",
    "token",
    "tokens",
    "tok",
    "toks",
    "it",
    "its",
    "iter",
    "iters",
    "iteration",
    "iterations",
    "step",
    "steps",
    "image",
    "images",
    "img",
    "imgs",
    "frame",
    "frames",
    "request",
    "requests",
    "req",
    "reqs",
    "batch",
    "batches",
    "epoch",
    "epochs",
];
/// Units of time that a rate may be per.
const RATE_TIMES: [&str; 14] =
    ["s", "sec", "secs", "second", "seconds", "ms", "min", "mins", "minute", "minutes", "h", "hr", "hour", "hours"];
/// Words that name a rate.
const RATES: [&str; 9] = ["throughput", "goodput", "fps", "ips", "qps", "rps", "tps", "speed", "rate"];

/// Words among these that a time may have too: `time at fixed rate`.
const RATES_OF_TIMES: [&str; 2] = ["rate", "speed"];
/// Words that name a time.
const TIMES: [&str; 4] = ["time", "duration", "elapsed", "runtime"];

/// Words that name a moment: what looks like a duration there is a time of day.
const MOMENTS: [&str; 8] = ["start", "started", "begin", "end", "ended", "stop", "timestamp", "date"];

/// Returns whether a column's name is one of a rate: `samples_per_second`, `throughput`, `it/s`. `time per step/s` is none.
fn reads_as_rate(head: &str) -> bool {
    let spaced = head.to_lowercase().replace('/', " / ");
    let words: Vec<&str> = spaced.split(|c: char| !c.is_alphanumeric() && c != '/').filter(|word| !word.is_empty()).collect();
    let is_time = |word: &str| RATE_TIMES.contains(&word);
    let is_counted = |at: usize| match words[at] {
        "1" => at == 0,
        word => COUNTED.contains(&word) && (at == 0 || words[at - 1] != "per"),
    };
    let is_per_time = |at: usize| {
        let is_divided = words[at + 1] == "per" && !is_time(words[at]) || words[at + 1] == "/" && is_counted(at);
        is_divided && is_time(words[at + 2])
    };
    let names_time = words.iter().any(|word| TIMES.contains(word));
    let names_rate = |word: &str| RATES.contains(&word) && !(names_time && RATES_OF_TIMES.contains(&word));
    (2..words.len()).any(|end| is_per_time(end - 2))
        || words.iter().any(|word| names_rate(word) || ["persec", "persecond"].iter().any(|end| word.ends_with(end)))
}

/// Returns the names in a column expression, with and without the unit at its end.
fn column_names(columns: &str) -> impl Iterator<Item = &str> {
    let without_unit = columns.rsplit_once(':').map_or(columns, |(columns, _)| columns);
    [columns, without_unit].into_iter().chain(without_unit.split('+').map(str::trim))
}

/// Returns `Power` for `Power [W]`.
fn plain_name(head: &str) -> &str {
    head.split(['[', '(']).next().unwrap_or(head).trim()
}

fn is_name(text: &str, name: &str) -> bool {
    text.eq_ignore_ascii_case(name)
}

/// The header of a table.
#[derive(Debug)]
pub(crate) struct TableHeader<'a> {
    file: &'a str,
    pub(crate) names: Vec<String>,
}

/// Usual power of a GPU at work in watts, to choose among units.
const USUAL_WATTS: f64 = 250.0;

/// Columns that a number comes from.
#[derive(Debug, Clone)]
pub(crate) struct FieldColumn {
    pub(crate) field: String,
    pub(crate) dimension: Dimension,
    /// Added up.
    pub(crate) indices: Vec<usize>,
    pub(crate) unit: Option<Unit>,
    /// The unit is the user's.
    pub(crate) is_unit_explicit: bool,
    /// Name for messages.
    pub(crate) name: String,
}

impl FieldColumn {
    /// Returns the unit, of `units`, in which a figure of so many watts would be nearest to the usual power of a GPU.
    pub(crate) fn likely_unit<'u>(&self, watts: f64, units: &[&'u str]) -> &'u str {
        let present = self.unit.map_or(1.0, |unit| unit.to_base_unit(1.0));
        let in_unit = |name: &str| Unit::by_name(name).map_or(f64::NAN, |unit| watts * unit.to_base_unit(1.0) / present);
        let distance = |name: &str| (in_unit(name) / USUAL_WATTS).ln().abs();
        units.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or_default()
    }

    /// Returns a `--map` of the same column in another unit.
    pub(crate) fn map_with_unit(&self, unit: &str) -> String {
        format!("--map {}", shell_quote(&format!("{}={}:{unit}", self.field, self.name)))
    }

    /// Returns the number in one of the column's cells, in the field's own unit; `None` if there is no value.
    pub(crate) fn number(&self, rows: &mut TableRows<'_>, index: usize) -> Result<Option<f64>, (String, String)> {
        let correct = || "correct the cell, or name another column with --map".to_owned();
        let found = rows.number(index).map_err(|error| (error.problem, error.remedy))?;
        let text = quote(rows.text(index));
        match found {
            QuantityCell::Absent => Ok(None),
            QuantityCell::Number(value, None) => Ok(Some(self.unit.map_or(value, |unit| unit.to_base_unit(value)))),
            QuantityCell::Number(_, Some(own)) if own.dimension != self.dimension => {
                Err((format!("{text} is not in a unit of {}", self.field), correct()))
            }
            QuantityCell::Number(_, Some(own)) if self.is_unit_explicit && self.unit != Some(own) => {
                let mapped_unit = self.unit.map_or("", |unit| unit.name);
                let remedy = format!("leave the unit out: --map {}", shell_quote(&format!("{}={}", self.field, self.name)));
                Err((format!("--map gives {mapped_unit}, the cell gives {text}"), remedy))
            }
            QuantityCell::Number(value, Some(own)) => Ok(Some(own.to_base_unit(value))),
            QuantityCell::UnknownUnit => Err((format!("{text} has an unknown unit"), correct())),
            QuantityCell::Ambiguous | QuantityCell::NotANumber => {
                let cell = rows.text(index);
                let number = self.setting_in_name(cell).or_else(|| self.elapsed_seconds(cell));
                number.map(Some).ok_or_else(|| (format!("{text} is not a number"), correct()))
            }
        }
    }

    /// Returns the seconds of a duration in hours, minutes and seconds, if the column is one of durations and no unit is given.
    fn elapsed_seconds(&self, text: &str) -> Option<f64> {
        let mut words = self.name.split(|c: char| !c.is_alphanumeric());
        let is_moment = words.any(|word| MOMENTS.iter().any(|moment| word.eq_ignore_ascii_case(moment)));
        (self.dimension == Dimension::Duration && !self.is_unit_explicit && !is_moment).then(|| parse_elapsed(text)).flatten()
    }

    /// Returns the setting of a knob that a name ends with, as that of a window of Zeus, `__GlobalPowerLimitOptimizer_250`.
    fn setting_in_name(&self, text: &str) -> Option<f64> {
        TuningKnob::from_name(&self.field)?;
        let end = text.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.').len();
        let (name, number) = text.split_at(end);
        let is_name = name.ends_with(['_', '-', '=']) && name.contains(char::is_alphabetic);
        let setting = number.parse::<f64>().ok().filter(|_| is_name)?;
        Some(self.unit.map_or(setting, |unit| unit.to_base_unit(setting)))
    }
}

/// Returns the seconds of a length of time such as `00:19:00`, or `1-02:30:00` with days before, as Slurm writes it. Two numbers alone
/// may be hours and minutes, or minutes and seconds.
fn parse_elapsed(text: &str) -> Option<f64> {
    let is_whole = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let whole = |part: &str| part.parse::<u32>().ok().filter(|_| is_whole(part)).map(f64::from);
    let (days, clock) = match text.trim().split_once('-') {
        Some((days, clock)) => (whole(days)?, clock),
        None => (0.0, text.trim()),
    };
    let mut parts = clock.splitn(3, ':');
    let (hours, minutes, seconds) = (whole(parts.next()?)?, parts.next()?, parts.next()?.replace(',', "."));
    let is_sixtieth = |part: &str| part.len() == 2 && is_whole(part) && part < "60";
    if !is_sixtieth(minutes) || !is_sixtieth(seconds.split('.').next()?) {
        return None;
    }
    let fraction_is_whole = seconds.split_once('.').is_none_or(|(_, fraction)| is_whole(fraction));
    let seconds = seconds.parse::<f64>().ok().filter(|_| fraction_is_whole)?;
    Some(((days * 24.0 + hours) * 60.0 + whole(minutes)?) * 60.0 + seconds)
}

/// Takes a row below the header for one of units, if it has a unit in each column of numbers, or nothing, and no number.
pub(crate) fn take_units(rows: &TableRows<'_>, columns: &mut [&mut FieldColumn]) -> bool {
    let unit = |index: usize| Unit::by_name(rows.text(index).trim_matches(['[', ']', '(', ')']).trim());
    let mut found = false;
    for column in columns.iter() {
        let first = unit(column.indices[0]);
        for &index in &column.indices {
            match unit(index) {
                // The first is taken for all that are added up.
                Some(unit) if unit.dimension == column.dimension && first.is_none_or(|first| first == unit) => found = true,
                None if rows.text(index).is_empty() => {}
                _ => return false,
            }
        }
    }
    for column in columns.iter_mut().filter(|column| found && !column.is_unit_explicit) {
        column.unit = unit(column.indices[0]).or(column.unit);
    }
    found
}

/// Finds the decimal mark by the columns of numbers.
pub(crate) fn set_numbers(rows: &mut TableRows<'_>, columns: &[&FieldColumn], stated: Option<DecimalMark>) {
    let indices: Vec<usize> = columns.iter().flat_map(|column| column.indices.iter().copied()).collect();
    rows.set_numbers(&indices, stated);
}

impl<'a> TableHeader<'a> {
    pub(crate) fn new(file: &'a str, names: &[String]) -> Self {
        Self { file, names: names.to_vec() }
    }

    /// Finds a column by its exact name, by its number, without its unit, or in other letter case.
    fn find(&self, name: &str) -> Result<Option<usize>, TableError> {
        let names = &self.names;
        let ways: [&dyn Fn(&str) -> bool; 3] =
            [&|have| have == name, &|have| plain_name(have) == name, &|have| is_name(have, name)];
        for (way, same) in ways.iter().enumerate() {
            let found: Vec<usize> = (0..names.len()).filter(|index| !name.is_empty() && same(&names[*index])).collect();
            match found.as_slice() {
                [] => {}
                [index] => return Ok(Some(*index)),
                several => {
                    let numbers = several.iter().map(|index| format!("#{}", index + 1)).collect::<Vec<_>>().join(", ");
                    let problem = format!("{} columns are called {}", several.len(), quote(name));
                    return Err(TableError::new(
                        self.file,
                        problem,
                        format!("give the number of the one that is meant: {numbers}"),
                    ));
                }
            }
            let number = || name.strip_prefix('#')?.parse::<usize>().ok()?.checked_sub(1).filter(|index| *index < names.len());
            if way == 0
                && let Some(index) = number()
            {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Returns the column of a name, or an error that names the nearest.
    pub(crate) fn named(&self, name: &str, remedy: &str) -> Result<usize, TableError> {
        self.find(name)?.ok_or_else(|| self.missing(name, remedy))
    }

    pub(crate) fn missing(&self, name: &str, remedy: &str) -> TableError {
        let near = self.names.iter().filter(|head| !head.is_empty()).min_by_key(|head| strsim::levenshtein(head, name));
        let near = near.filter(|head| strsim::levenshtein(head, name) <= 1 + name.len() / 3);
        let near = near.map_or(String::new(), |head| format!(", did you mean {head:?}?"));
        let there = self.names.join(", ");
        TableError::new(self.file, format!("there is no column {name:?}{near} (there are: {there})"), remedy)
    }

    /// Returns whether a column has this name.
    pub(crate) fn has(&self, name: &str) -> Result<bool, TableError> {
        Ok(self.find(name)?.is_some())
    }

    /// Returns a field by its map, or under its own name; `None` if neither is there.
    pub(crate) fn field(&self, maps: &[FieldMap], field: &str, dimension: Dimension) -> Result<Option<FieldColumn>, TableError> {
        let column = |indices: Vec<usize>, unit: Option<&str>, name: &str| {
            let is_unit_asked = unit.is_some();
            let rate = indices.iter().map(|index| self.names[*index].as_str()).find(|head| reads_as_rate(head));
            if let Some(rate) = rate.filter(|_| dimension == Dimension::Duration && !is_unit_asked) {
                let problem = format!("its name reads as a rate, but {field} is the time of a fixed amount of work");
                let remedy = format!(
                    "write the work over the rate into a column and name that, --map {field}=COLUMN; if it is a time, name its unit, --map {field}=COLUMN:s"
                );
                return Err(TableError::new(self.file, problem, remedy).column(rate));
            }
            let unit = match unit {
                Some(unit) => Some(self.unit(field, unit, dimension)?),
                None => self.unit_of_headers(field, &indices, name, dimension)?,
            };
            Ok(FieldColumn {
                field: field.to_owned(),
                dimension,
                indices,
                unit,
                is_unit_explicit: is_unit_asked,
                name: name.to_owned(),
            })
        };
        let Some(map) = maps.iter().rfind(|map| map.field == field) else {
            return self.find(field)?.map(|index| column(vec![index], None, &self.names[index])).transpose();
        };
        let remedy = format!("name it as --map {field}=COLUMN[:UNIT]");
        // The whole text may be a column's name; only then the last colon separates a unit.
        let (columns, unit) = match (self.find(&map.columns)?, map.columns.rsplit_once(':')) {
            (None, Some((columns, unit))) => (columns, Some(unit)),
            _ => (map.columns.as_str(), None),
        };
        let indices: Vec<usize> = match self.find(columns)? {
            Some(index) => vec![index],
            None => columns.split('+').map(|name| self.named(name.trim(), &remedy)).collect::<Result<_, _>>()?,
        };
        column(indices, unit, columns).map(Some)
    }

    /// Returns the unit that the headers of the columns of a field give; an error if one gives a unit that cannot be read, or they
    /// differ.
    fn unit_of_headers(
        &self,
        field: &str,
        indices: &[usize],
        columns: &str,
        dimension: Dimension,
    ) -> Result<Option<Unit>, TableError> {
        let is_electrical = dimension.is_electrical();
        let map = || shell_quote(&format!("{field}={columns}:UNIT"));
        let mut units: Vec<(&str, Option<Unit>)> = Vec::new();
        for head in indices.iter().map(|index| self.names[*index].as_str()) {
            if let Some(other) = unreadable_unit(head).filter(|_| is_electrical) {
                let problem = format!("the header {} gives {other}, which is not a unit of {field}", quote(head));
                let remedy = format!("give the unit, --map {}; units: {}", map(), dimension.units());
                return Err(TableError::new(self.file, problem, remedy));
            }
            let unit = header_unit(head, dimension).map(|unit| self.unit(field, unit.name, dimension)).transpose()?;
            units.push((head, unit));
        }
        let Some((first_head, first)) = units.first().copied() else { return Ok(None) };
        // A column that gives none is in the field's own.
        let scale = |unit: Option<Unit>| unit.map_or((0.0, 1.0), |unit| (unit.to_base_unit(0.0), unit.to_base_unit(1.0)));
        if let Some((head, unit)) = units.into_iter().find(|(_, unit)| scale(*unit) != scale(first)) {
            let name = |unit: Option<Unit>| unit.map_or("none", |unit| unit.name);
            let (first_head, head, first, unit) = (quote(first_head), quote(head), name(first), name(unit));
            let problem = format!("the columns of {field} differ in their units: {first_head} has {first}, {head} has {unit}");
            let remedy = format!("write them in one unit, or give the unit if it is the same: --map {}", map());
            return Err(TableError::new(self.file, problem, remedy));
        }
        Ok(first)
    }

    fn unit(&self, field: &str, name: &str, dimension: Dimension) -> Result<Unit, TableError> {
        Unit::by_name(name).filter(|unit| unit.dimension == dimension).ok_or_else(|| {
            let problem = format!("{name:?} is no unit of {field}");
            TableError::new(self.file, problem, format!("use one of {}", dimension.units()))
        })
    }
}

/// Returns whether a name ends with `min`.
fn is_least(head: &str) -> bool {
    head.trim().rsplit(|c: char| !c.is_alphanumeric()).next().is_some_and(|word| word.eq_ignore_ascii_case("min"))
}

/// Returns the unit that a name contains: `Power [mW]`, or `duration_ms` if it is one of the field. `time_min` may be the least
/// time as well; `time_minutes` is in minutes.
fn header_unit(head: &str, dimension: Dimension) -> Option<Unit> {
    let is_least_time = dimension == Dimension::Duration && is_least(head);
    bracketed_unit(head).or_else(|| worded_unit(head, dimension).filter(|_| !is_least_time))
}
