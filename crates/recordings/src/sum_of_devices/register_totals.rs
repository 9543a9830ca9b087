//! Totals of what hardly changes, such as a register `Total kWh` beside `T1` and `T2` that rise by the same in every row. Numbers
//! alone are no evidence, as boards may draw 100, 200 and 300 W all the time: the names decide.

use eadt_schemas::counts::list_first;

use super::figures::{AlignedRows, DeviceFigure, READINGS_OF_A_SUM, ROUNDING};
use super::total_names::{may_name_total, names_part_of, names_total_of};
use super::{is_beside_its_parts, leave_out, name_devices};
use crate::ReadingField;
use crate::error::quote;
use crate::names::NAMES_SHOWN;
use crate::recording::{FileId, Recording, RecordingSource, SourceKind};

/// Most devices, as each is compared with all others, and most of which any several may be the parts.
const MOST_DEVICES: usize = 256;
const MOST_PARTS_OF_ANY: usize = 8;
/// Fewest rows that have the total and all parts.
const FEWEST_ROWS: usize = 4;
/// A total is one by chance with no greater probability: one by its name, and one by its numbers alone.
const MOST_CHANCE: f64 = 0.25;
const MOST_CHANCE_UNNAMED: f64 = 0.05;
/// The rises of a total and of its parts differ by no larger part, and by those of so many rows at the ends.
const DIFFERENCE_OF_RISES: f64 = 0.01;
const ROWS_OUTSIDE: f64 = 2.0;
/// Percentage of rows that the parts must have, too, if the total is left out.
const PERCENT_OF_ROWS: usize = 95;

/// The names of a device: of its rows, of the board that its columns are mapped to, and of its column.
#[derive(Debug, Default)]
pub(super) struct DeviceNames {
    file: FileId,
    node: Option<String>,
    names: [Option<String>; 3],
}

impl DeviceNames {
    fn of(recording: &Recording, source: &RecordingSource, field: ReadingField) -> Self {
        let SourceKind::Device(device) = &source.kind else { return Self::default() };
        let column = device.board.as_deref().and_then(|board| recording.column_of_board(field, board));
        let names = [device.row_name.clone(), device.board.clone(), column.map(str::to_owned)];
        Self { file: source.file, node: device.node.clone(), names }
    }

    fn column(&self) -> Option<&str> {
        self.names.last()?.as_deref()
    }

    fn may_name_total(&self) -> bool {
        self.names.iter().flatten().any(|name| may_name_total(name))
    }

    fn is_beside(&self, other: &Self) -> bool {
        self.file == other.file && self.node == other.node
    }

    /// Returns whether one of the names is that of the total of what the same names of other devices are of. A total of one node is
    /// of no other node's devices.
    fn name_total_of(&self, parts: &[&Self]) -> bool {
        let is_of_their_node = self.node.is_none() || parts.iter().all(|part| part.node == self.node);
        is_of_their_node
            && self.names.iter().enumerate().any(|(kind, name)| {
                let of_parts: Option<Vec<&str>> = parts.iter().map(|part| part.names[kind].as_deref()).collect();
                name.as_deref().zip(of_parts).is_some_and(|(name, of_parts)| names_total_of(name, &of_parts))
            })
    }

    fn name_part_of(&self, total: &Self) -> bool {
        let pairs = total.names.iter().zip(&self.names);
        pairs.filter_map(|(total, part)| total.as_deref().zip(part.as_deref())).any(|(total, part)| names_part_of(total, part))
    }
}

/// Devices that may be the parts of a total, and how many such choices were tried.
#[derive(Debug)]
struct PartsChoice {
    parts: Vec<usize>,
    choices: f64,
}

/// A device that has the sum of others in each row.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RegisterTotal {
    sum: usize,
    parts: Vec<usize>,
    rows: usize,
}

/// Rows in which a device has the sum of others.
#[derive(Debug)]
struct RegisterRows {
    rows: usize,
    /// Two parts rise, or have a count of their own at the first row.
    has_two_parts: bool,
    /// The probability that it has their sum by chance.
    chance: f64,
}

/// The counts of energy counters, or the power, of some devices, and their names.
#[derive(Debug)]
struct RegisterTable {
    levels: Vec<DeviceFigure>,
    names: Vec<DeviceNames>,
    is_counter: bool,
}

impl RegisterTable {
    /// Returns the table of all devices but those that are known to be sums; of too many devices, an empty one.
    fn new(recording: &Recording, sources: &[RecordingSource], field: ReadingField, settled: &[usize]) -> Self {
        let devices = sources.iter().enumerate().filter(|(_, source)| matches!(source.kind, SourceKind::Device(_)));
        let mut levels: Vec<DeviceFigure> = devices
            .filter(|(place, _)| !settled.contains(place))
            .filter_map(|(place, source)| DeviceFigure::of_levels(place, source, field, FEWEST_ROWS))
            .collect();
        if levels.len() > MOST_DEVICES {
            levels.clear();
        }
        let names = levels.iter().map(|figure| DeviceNames::of(recording, &sources[figure.source], field)).collect();
        Self { levels, names, is_counter: field == ReadingField::EnergyJoulesTotal }
    }

    /// Finds a device that is a total by its name and its numbers.
    fn find_named(&self) -> Option<RegisterTotal> {
        (0..self.levels.len()).filter(|sum| self.names[*sum].may_name_total()).find_map(|sum| {
            self.list_choices(sum).into_iter().find_map(|choice| {
                let of_parts: Vec<&DeviceNames> = choice.parts.iter().map(|part| &self.names[*part]).collect();
                let may_match = choice.choices <= 1.0 || self.may_match(sum, &choice);
                if !may_match || !self.names[sum].name_total_of(&of_parts) {
                    return None;
                }
                let found = self.match_parts(sum, &choice).filter(|found| found.chance <= MOST_CHANCE)?;
                Some(RegisterTotal { sum, parts: choice.parts, rows: found.rows })
            })
        })
    }

    /// Finds a counter that may be a total by its numbers alone.
    fn find_unnamed(&self) -> Option<RegisterTotal> {
        if !self.is_counter {
            return None;
        }
        (0..self.levels.len()).find_map(|sum| {
            self.list_choices(sum).into_iter().filter(|choice| self.may_match(sum, choice)).find_map(|choice| {
                let found = self.match_parts(sum, &choice)?;
                let is_possible = found.has_two_parts && found.rows >= READINGS_OF_A_SUM && found.chance <= MOST_CHANCE_UNNAMED;
                is_possible.then_some(RegisterTotal { sum, parts: choice.parts, rows: found.rows })
            })
        })
    }

    /// Returns the devices that may be the parts of one: those beside it, all others, those with names of its parts, and of few
    /// devices any several.
    fn list_choices(&self, sum: usize) -> Vec<PartsChoice> {
        let others = || (0..self.levels.len()).filter(|place| *place != sum);
        let own = &self.names[sum];
        let beside: Vec<usize> = others().filter(|place| own.is_beside(&self.names[*place])).collect();
        let with_names: Vec<usize> = others().filter(|place| self.names[*place].name_part_of(own)).collect();
        let subsets = if beside.len() <= MOST_PARTS_OF_ANY { 1_usize << beside.len() } else { 0 };
        let subset = |bits: usize| -> Vec<usize> {
            beside.iter().enumerate().filter(|(bit, _)| (bits >> bit) & 1 == 1).map(|(_, place)| *place).collect()
        };
        let any: Vec<PartsChoice> =
            (0..subsets).map(|bits| PartsChoice { parts: subset(bits), choices: subsets as f64 }).collect();
        let mut choices: Vec<PartsChoice> =
            [beside, others().collect(), with_names].map(|parts| PartsChoice { parts, choices: 1.0 }).into();
        choices.extend(any);
        choices.retain(|choice| choice.parts.len() > 1);
        choices
    }

    /// Returns by how much a counter rises, or the mean power.
    fn weigh(&self, place: usize) -> f64 {
        let figure = &self.levels[place];
        match (figure.values.first(), figure.values.last()) {
            (Some((_, first)), Some((_, last))) if self.is_counter => last - first,
            _ => figure.mean,
        }
    }

    /// Returns the largest rounding of a device and its parts. Few values of a register do not show its step, which is that of
    /// the others.
    fn widest_rounding(&self, sum: usize, parts: &[usize]) -> f64 {
        parts.iter().map(|part| self.levels[*part].rounding).fold(self.levels[sum].rounding, f64::max)
    }

    /// Returns how far a device may be from the sum of its parts.
    fn tolerance(&self, sum: usize, parts: &[usize]) -> f64 {
        self.widest_rounding(sum, parts) * (parts.len() + 1) as f64 * (1.0 + ROUNDING) + ROUNDING * self.weigh(sum).abs()
    }

    /// Returns whether the rise or the mean of a device is nearly that of its parts together.
    fn may_match(&self, sum: usize, choice: &PartsChoice) -> bool {
        let (own, of_parts) = (self.weigh(sum), choice.parts.iter().map(|part| self.weigh(*part)).sum::<f64>());
        let outside = own * DIFFERENCE_OF_RISES.max(ROWS_OUTSIDE / self.levels[sum].values.len() as f64);
        (own - of_parts).abs() <= outside + 2.0 * self.tolerance(sum, &choice.parts)
    }

    /// Returns the rows that a device and others have, if it has the sum of the others in each of them: to within rounding and,
    /// of counters, but for a constant.
    fn match_parts(&self, sum: usize, choice: &PartsChoice) -> Option<RegisterRows> {
        let figure = &self.levels[sum];
        let parts: Vec<&DeviceFigure> = choice.parts.iter().map(|part| &self.levels[*part]).collect();
        let (widest, tolerance) = (self.widest_rounding(sum, &choice.parts), self.tolerance(sum, &choice.parts));
        let rows = AlignedRows::of(&figure.values, &parts, 0);
        let sums = rows.sums();
        let above = rows.values.iter().zip(&sums).map(|(value, sum)| value - sum);
        let (least, most) =
            above.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), above| (least.min(above), most.max(above)));
        let (first, last) = (rows.values.first()?, rows.values.last()?);
        let begin_counted = rows.columns.iter().filter(|column| column.first().is_some_and(|first| *first > tolerance)).count();
        let has_levels = least >= -tolerance && most <= tolerance && begin_counted > 1;
        let rises = |column: &Vec<f64>| column.first().zip(column.last()).map_or(0.0, |(first, last)| last - first);
        let is_rising = |values: &Vec<f64>| values.is_sorted();
        let is_sum = if self.is_counter {
            most - least <= 2.0 * tolerance && last > first && is_rising(&rows.values) && rows.columns.iter().all(is_rising)
        } else {
            has_levels
        };
        let magnitude = if has_levels { *last } else { last - first };
        let rising = rows.columns.iter().filter(|column| rises(column) > 2.0 * widest).count();
        (is_sum && rows.values.len() >= FEWEST_ROWS).then(|| RegisterRows {
            rows: rows.values.len(),
            has_two_parts: has_levels || rising > 1,
            chance: choice.choices * 2.0 * tolerance / magnitude,
        })
    }

    /// Returns the name of a total, the names of its parts, and in how many of its rows it has their sum.
    fn name_devices(&self, found: &RegisterTotal, sources: &[RecordingSource]) -> [String; 3] {
        let names = name_devices(sources, &self.levels);
        let of = |place: &usize| names.get(place).map_or("", String::as_str);
        let parts: Vec<&str> = found.parts.iter().map(of).collect();
        let rows = format!("{} of {}", found.rows, self.levels[found.sum].values.len());
        [of(&found.sum).to_owned(), list_first(&parts, NAMES_SHOWN), rows]
    }

    fn describe_named(
        &self,
        found: &RegisterTotal,
        sources: &[RecordingSource],
        field: ReadingField,
        is_left_out: bool,
    ) -> String {
        let [sum, parts, rows] = self.name_devices(found, sources);
        let column = self.names[found.sum].column().map_or(String::new(), |column| format!(" (column {})", quote(column)));
        let has = if self.is_counter { "rises by" } else { "is" };
        let result = if is_left_out {
            "it is left out, or these would count twice"
        } else {
            "as its record is longer than theirs, all count, and these twice: leave out what is not to count"
        };
        let field = field.name();
        format!("{sum}{column}: {field} is by its name the total of {parts}, and {has} their sum in {rows} rows: {result}")
    }

    fn describe_unnamed(&self, found: &RegisterTotal, sources: &[RecordingSource], field: ReadingField) -> String {
        let [sum, parts, rows] = self.name_devices(found, sources);
        format!(
            "{sum}: {} rises by the sum of {parts} in {rows} rows: it may be their total, or a board that draws as much as they \
             do; all count; if it is their total, map either it or them",
            field.name()
        )
    }
}

/// Leaves the power and the energy of devices out that are by their names, and in each row, the total of others, with a note.
/// Notes a counter that may be a total by its numbers alone. `settled`: the sources that are known to be sums.
pub(super) fn settle_register_totals(
    recording: &mut Recording,
    sources: &mut [RecordingSource],
    field: ReadingField,
    settled: &[usize],
) {
    let mut table = RegisterTable::new(recording, sources, field, settled);
    while let Some(found) = table.find_named() {
        let figure = &table.levels[found.sum];
        let has_rows = found.rows * 100 >= figure.values.len() * PERCENT_OF_ROWS;
        let is_left_out = has_rows && is_beside_its_parts(&table.levels, found.sum, &found.parts);
        recording.add_note(table.describe_named(&found, sources, field, is_left_out));
        if is_left_out {
            leave_out(&mut sources[figure.source]);
        }
        table.levels.remove(found.sum);
        table.names.remove(found.sum);
    }
    if let Some(found) = table.find_unnamed() {
        recording.add_note(table.describe_unnamed(&found, sources, field));
    }
}
