//! Meaning of each column of a table, from its header and the `--map`s.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::v1::Meter;

use crate::absent::{FLAGGED_COLUMN, is_absence_flag, is_absent_text, names_absence_flag};
use crate::checks::is_power;
use crate::clock::{TimeParser, is_time_of_day};
use crate::csv_table::board_names::{describe_zone, find_part_and_whole, find_rail_and_board};
use crate::csv_table::counter_columns::{TickColumn, find_range_column, find_tick_column, is_tick};
use crate::csv_table::nested_spans::{
    RUN_SEPARATOR, RowMoment, SpanColumns, find_run_columns, names_a_parent, names_a_time, names_a_window,
};
use crate::csv_table::steps::LengthColumn;
use crate::csv_table::time_columns::{TimeColumnProbe, TimeParts};
use crate::csv_table::{
    STEPS, SUMMED_PROGRESS, TIME_NAMES, find_misnamed_boards, find_mixed_reading, has_word, may_count_ticks, names_a_sum,
    names_another_reading, names_limit, names_no_power, names_other_power, names_power, names_power_at_a_limit,
};
use crate::error::quote;
use crate::identity::{IdColumns, names_a_rank, names_boards};
use crate::names::shell_quote;
use crate::options::AcceptedFinding;
use crate::quantity::{QuantityCell, is_quantity, parse_quantity};
use crate::recording::{FileId, Recording};
use crate::report::ColumnUse;
use crate::rounds::names_a_state;
use crate::sum_of_devices::find_plain_total;
use crate::table::{HeaderRow, RowCells, TableReader};
use crate::units::{
    Dimension, Unit, ambiguous_unit, bracketed_unit, count_multiple, is_unit_of_others, may_be_unit, unreadable_unit, worded_unit,
};
use crate::{FieldMap, ImportError, ImportOptions, ReadingField};

/// Units for which ticks of some 15.3 µJ may be taken.
const SMALL_UNITS: [&str; 2] = ["uJ", "mJ"];

/// A column that holds numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberColumn {
    pub(super) index: usize,
    pub(super) unit: Option<Unit>,
    /// The unit is the user's.
    pub(super) is_unit_explicit: bool,
    /// The header may be read as two units, so that cells have to state theirs.
    pub(super) is_unit_ambiguous: bool,
    /// The column that has the unit of each row.
    pub(super) unit_column: Option<usize>,
    /// The column that has the energy of each tick of a counter.
    pub(super) resolution: Option<usize>,
}

impl NumberColumn {
    const fn new(index: usize, unit: Option<Unit>) -> Self {
        Self { index, unit, is_unit_explicit: unit.is_some(), is_unit_ambiguous: false, unit_column: None, resolution: None }
    }
}

/// Names of columns that have the unit of each row.
const UNIT_NAMES: [&str; 5] = ["unit", "units", "uom", "einheit", "unit_of_measurement"];
/// Names of columns that name the kind of reading of each row. `key` and `measurement` may be of an experiment.
const KIND_NAMES: [&str; 9] =
    ["_field", "entity_id", "field", "measurand", "metric", "metric_name", "quantity", "reading", "topic"];
/// Fields from which the energy of a board follows.
const FIELDS_OF_ENERGY: [ReadingField; 3] =
    [ReadingField::PowerWatts, ReadingField::PowerAverageWatts, ReadingField::EnergyJoulesTotal];
/// Words of columns of energy.
const ENERGY_WORDS: [&str; 5] = ["consumption", "energie", "energy", "joule", "joules"];

#[derive(Debug, Clone)]
pub(super) enum ValueExpression {
    /// The sum of some cells.
    Columns(Vec<NumberColumn>),
    /// One per row.
    One,
}

/// A field and where its values come from.
#[derive(Debug, Clone)]
pub(super) struct FieldSource {
    pub(super) field: ReadingField,
    /// A row adds its value to the counter.
    pub(super) adds: bool,
    /// Index into [`TableMapping::boards`].
    pub(super) board: Option<usize>,
    pub(super) take: ValueExpression,
}

#[derive(Debug, Default)]
pub(super) struct TableMapping {
    /// Empty texts if the table has no header.
    pub(super) names: Vec<String>,
    pub(super) time: Option<usize>,
    /// Further columns of the time, where `time` is one of the date or the year only.
    pub(super) time_parts: TimeParts,
    pub(super) device: Option<usize>,
    pub(super) node: Option<usize>,
    pub(super) model: Option<usize>,
    pub(super) figures: Vec<FieldSource>,
    /// Boards that have columns of their own.
    pub(super) boards: Vec<String>,
    /// Boards are called by numbers with fractions, such as `1.1`.
    pub(super) has_fractions: bool,
    /// The column that marks the rows in which a value is absent.
    absence_flag: Option<usize>,
    /// The column that has the end of an energy counter's range.
    counter_range: Option<usize>,
    /// The columns of the start or the end of each row, and of how long it took, if rows have figures that depend on them.
    pub(super) spans: Option<SpanColumns>,
    /// The columns that have the run of each row by their names, if rows have spans.
    run_columns: Vec<usize>,
    /// The column that has the run that contains that of each row.
    parent_column: Option<usize>,
    /// The columns that have the rank of each row by their names.
    ranks: Vec<usize>,
    /// A row may contain others: no column that is not mapped distinguishes boards, whose rows may contain each other.
    pub(super) may_nest: bool,
    /// Columns with the unit of each row, recognised by their cells and not by their names.
    unit_columns_by_content: Vec<UnitColumn>,
}

/// A column whose cells are units, some of them of one dimension.
#[derive(Debug, Clone, Copy)]
struct UnitColumn {
    index: usize,
    dimension: Dimension,
    /// The unit of this dimension, if all cells of the dimension have the same one.
    unit: Option<Unit>,
    /// The nearest column to the left that holds numbers.
    left: Option<usize>,
    /// One column only holds numbers, beside those of times and boards.
    is_of_one: bool,
}

/// A column expression, resolved.
struct ResolvedColumns {
    board: Option<String>,
    columns: Vec<NumberColumn>,
}

impl TableMapping {
    pub(super) fn new(
        recording: &mut Recording,
        file: FileId,
        header: &HeaderRow,
        options: &ImportOptions,
    ) -> Result<Self, ImportError> {
        let mut planner = MappingBuilder {
            recording,
            file,
            header,
            options,
            plan: Self { names: header.names.iter().map(str::to_owned).collect(), ..Self::default() },
        };
        for map in &options.maps {
            planner.add(map)?;
        }
        planner.find_time()?;
        planner.check_boards()?;
        planner.check_columns_of_boards()?;
        planner.check_totals_of_boards()?;
        planner.check_names_of_boards()?;
        planner.check_parts_and_wholes()?;
        let mut plan = planner.plan;
        plan.absence_flag = plan.names.iter().position(|name| names_absence_flag(name));
        plan.spans = plan.find_spans();
        plan.run_columns = if plan.spans.is_some() { find_run_columns(&plan.names) } else { Vec::new() };
        plan.parent_column = plan.names.iter().position(|name| names_a_parent(name));
        let ranks = plan.names.iter().enumerate().filter(|(_, name)| names_a_rank(name));
        plan.ranks = ranks.map(|(index, _)| index).collect();
        plan.may_nest = !plan.has_unmapped_boards();
        Ok(plan)
    }

    /// Returns the columns of the time of each row, if rows add energy or progress, or have a total of energy that may be counted since
    /// the start of a job, as their durations are.
    fn find_spans(&self) -> Option<SpanColumns> {
        let has_energy = self.figures.iter().any(|figure| figure.field == ReadingField::EnergyJoulesTotal);
        let adds = self.figures.iter().any(|figure| figure.adds);
        let is_used = |spans: &SpanColumns| adds || has_energy && spans.moment == RowMoment::Unnamed;
        SpanColumns::find(&self.names, self.time?).filter(is_used)
    }

    /// Returns whether a column that is not mapped distinguishes boards, nodes or jobs.
    fn has_unmapped_boards(&self) -> bool {
        let is_mapped = |index: usize| [self.device, self.node].contains(&Some(index));
        let names_one = |name: &str| names_boards(name) || has_word(name, &["rank", "worker", "host", "node", "job"]);
        self.names.iter().enumerate().any(|(index, name)| !is_mapped(index) && names_one(name))
    }

    /// Returns the name of a column, or its number where the table has no header.
    pub(super) fn column_name(&self, index: usize) -> String {
        self.names.get(index).filter(|name| !name.is_empty()).cloned().unwrap_or_else(|| format!("#{}", index + 1))
    }

    /// Returns the columns that hold numbers.
    pub(super) fn number_columns(&self) -> impl Iterator<Item = &NumberColumn> {
        self.figures.iter().flat_map(|figure| match &figure.take {
            ValueExpression::Columns(columns) => columns.as_slice(),
            ValueExpression::One => &[],
        })
    }

    pub(super) fn has_progress(&self) -> bool {
        self.figures.iter().any(|figure| figure.field.is_progress())
    }

    pub(super) fn has_telemetry(&self) -> bool {
        self.figures.iter().any(|figure| !figure.field.is_progress())
    }

    /// Returns the column that names a board where nothing else does: that of power, else of energy, else the first.
    pub(super) fn main_column(&self) -> Option<String> {
        let rank = |field: ReadingField| match field {
            ReadingField::PowerWatts => 0,
            ReadingField::PowerAverageWatts => 1,
            ReadingField::EnergyJoulesTotal => 2,
            _ => 3,
        };
        let figures = self.figures.iter().filter(|figure| !figure.field.is_progress());
        let figure = figures.min_by_key(|figure| rank(figure.field))?;
        let ValueExpression::Columns(columns) = &figure.take else { return None };
        Some(columns.iter().map(|column| self.column_name(column.index)).collect::<Vec<_>>().join("+"))
    }

    /// Returns the columns that are not mapped, but may distinguish boards. None if rows add energy: that is
    /// summed, whichever board it is of.
    pub(super) fn id_columns(&self, recording: &Recording) -> IdColumns {
        if !self.has_telemetry() || recording.mapped_as.contains_key(&ReadingField::EnergyJoulesTotal) {
            return IdColumns::default();
        }
        let texts = [self.device, self.node];
        let is_of = |column: &NumberColumn, index: usize| {
            column.index == index || [column.unit_column, column.resolution, self.counter_range].contains(&Some(index))
        };
        let is_used = |index: usize| {
            self.is_of_time(index) || texts.contains(&Some(index)) || self.number_columns().any(|column| is_of(column, index))
        };
        IdColumns::new(
            self.names.iter().enumerate().filter(|(index, _)| !is_used(*index)).map(|(index, name)| (index, name.as_str())),
        )
    }

    /// Returns the unmapped columns that may name the kind of reading of each row that is mapped as power, and whether their
    /// names show it. Returns none if the user states the unit, or if a column of units distinguishes the rows.
    pub(super) fn columns_of_kinds(&self, recording: &Recording) -> Vec<(usize, bool)> {
        let is_stated = recording.explicit_units.keys().any(|field| is_power(*field));
        let mut of_power = self.figures.iter().filter(|figure| is_power(figure.field) && figure.board.is_none());
        let has_units = self.number_columns().any(|column| column.unit_column.is_some());
        if is_stated || has_units || of_power.next().is_none() {
            return Vec::new();
        }
        let texts = [self.device, self.node, self.model];
        let is_used = |index: usize| {
            self.is_of_time(index) || texts.contains(&Some(index)) || self.number_columns().any(|column| column.index == index)
        };
        let is_of_kinds = |index: usize| KIND_NAMES.iter().any(|name| self.names[index].eq_ignore_ascii_case(name));
        // These state of what kind a row is, beside what state a board is in.
        let is_of_states = |name: &str| names_a_state(name) && !has_word(name, &["kind", "label"]);
        let free = (0..self.names.len()).filter(|index| !is_used(*index)).map(|index| (index, is_of_kinds(index)));
        free.filter(|(index, is_named)| *is_named || !is_of_states(&self.names[*index])).collect()
    }

    /// Returns whether another column of the row marks the value of this one as absent.
    pub(super) fn is_flagged_absent(&self, cells: &RowCells, column: usize) -> bool {
        let is_value = self.names.get(column).is_some_and(|name| name.eq_ignore_ascii_case(FLAGGED_COLUMN));
        is_value && self.absence_flag.and_then(|index| cells.get(index)).is_some_and(is_absence_flag)
    }

    /// Returns the columns of ranks, if rows have totals or rates of the job; what rows add is summed, whichever rank it is of.
    pub(super) fn rank_columns(&self) -> IdColumns {
        if !self.figures.iter().any(|figure| figure.field.is_progress() && !figure.adds) {
            return IdColumns::default();
        }
        // Ranks that are mapped as the devices are ranks all the same.
        let names = self.names.iter().enumerate().filter(|(index, _)| self.node != Some(*index));
        IdColumns::of_ranks(names.map(|(index, name)| (index, name.as_str())))
    }

    /// Returns the use of each column that is read, and the names of those that are left out.
    pub(super) fn column_uses(&self) -> (Vec<ColumnUse>, Vec<String>) {
        let mut uses = Vec::new();
        uses.extend(self.time_parts.columns().map(|index| (index, "time".to_owned(), None)));
        let texts = [(self.time, "time"), (self.device, "device"), (self.node, "node"), (self.model, "gpu_model")];
        for (index, field) in texts {
            if let Some(index) = index {
                uses.push((index, field.to_owned(), None));
            }
        }
        for figure in &self.figures {
            let ValueExpression::Columns(columns) = &figure.take else { continue };
            let mut field = step_name(figure).unwrap_or(figure.field.name()).to_owned();
            if let Some(board) = figure.board {
                field = format!("{field}[{}]", self.boards[board]);
            }
            for column in columns {
                uses.push((column.index, field.clone(), column.unit.map(|unit| unit.name.to_owned())));
            }
        }
        let units: BTreeSet<usize> = self.number_columns().filter_map(|column| column.unit_column).collect();
        uses.extend(units.into_iter().map(|index| (index, "unit".to_owned(), None)));
        let resolutions: BTreeSet<usize> = self.number_columns().filter_map(|column| column.resolution).collect();
        uses.extend(resolutions.into_iter().map(|index| (index, "energy of a tick".to_owned(), None)));
        uses.extend(self.counter_range.map(|index| (index, "end of the counter's range".to_owned(), None)));
        let has_flagged = self.number_columns().any(|column| self.column_name(column.index).eq_ignore_ascii_case(FLAGGED_COLUMN));
        uses.extend(self.absence_flag.filter(|_| has_flagged).map(|index| (index, "rows without a value".to_owned(), None)));
        let is_of_span = |index: usize| self.spans.is_some_and(|it| [it.other_end, it.duration].contains(&Some(index)));
        let used = |index: usize| uses.iter().any(|(other, ..)| *other == index) || is_of_span(index);
        let left_out = (0..self.names.len()).filter(|index| !used(*index)).map(|index| self.column_name(index)).collect();
        uses.sort_by_key(|(index, ..)| *index);
        let uses = uses.into_iter().map(|(index, field, unit)| ColumnUse { column: self.column_name(index), field, unit });
        (uses.collect(), left_out)
    }

    /// Returns whether a column is one of the time.
    fn is_of_time(&self, column: usize) -> bool {
        self.time == Some(column) || self.time_parts.columns().any(|part| part == column)
    }

    /// Finds the rest of a time, if the column of times has dates only, or times of day only: the columns are taken if the time
    /// is not mapped, else an error names them.
    pub(super) fn find_rest_of_time(
        &mut self,
        recording: &Recording,
        place: (FileId, u64),
        table: &TableReader<'_>,
        clock: &TimeParser,
        options: &ImportOptions,
    ) -> Result<(), ImportError> {
        let Some(time) = self.time else { return Ok(()) };
        let head = TimeColumnProbe::new(table, &self.names, time, clock);
        if !self.time_parts.is_empty() {
            self.time_parts = head.settle_hours(&self.names, self.time_parts);
            return Ok(());
        }
        let is_mapped = options.maps.iter().any(|map| map.field == "time");
        let Some((first, parts)) = head.other_half(&self.names, time) else {
            if !is_mapped && clock.pattern().is_some() && !head.has_times() {
                self.take_halves_of_pattern(table, time);
            }
            return Ok(());
        };
        if !is_mapped && clock.pattern().is_none() {
            (self.time, self.time_parts) = (Some(first), parts);
            return Ok(());
        }
        let has_dates = head.half(time) == Some(true);
        let columns: Vec<usize> = std::iter::once(first).chain(parts.columns()).collect();
        let names: Vec<String> = columns.iter().map(|index| self.column_name(*index)).collect();
        let form = clock.pattern().map_or(String::new(), |pattern| {
            let whole = if has_dates { format!("{pattern} {}", parts.pattern()) } else { format!("%Y-%m-%d {pattern}") };
            format!(" --time-format {}", shell_quote(&whole))
        });
        let have = if has_dates { "dates without a time of day" } else { "times of day without a date" };
        let others = columns.iter().zip(&names).filter(|(index, _)| **index != time).map(|(_, name)| quote(name));
        let others = others.collect::<Vec<_>>().join(", ");
        let problem = format!("{} has {have}, {others} has the rest", self.column_name(time));
        let map = shell_quote(&format!("time={}", names.join("+")));
        let error = recording.error(place.0, place.1, problem, format!("give both: --map {map}{form}"));
        Err(error.with_column(self.column_name(time)))
    }

    /// Takes the columns of a date and a time of day for one time, which a pattern then reads as `DATE CLOCK`.
    fn take_halves_of_pattern(&mut self, table: &TableReader<'_>, time: usize) {
        let head = TimeColumnProbe::new(table, &self.names, time, &TimeParser::new(None, None));
        if let Some((first, parts)) = head.other_half(&self.names, time) {
            (self.time, self.time_parts) = (Some(first), parts);
        }
    }

    /// Chooses among several columns with names of times, if the time is not mapped. If the first one has no times, nor halves
    /// of times, it may count seconds since the start. Then the first column in which most rows have times of this century is
    /// taken.
    pub(super) fn prefer_whole_times(&mut self, table: &TableReader<'_>, clock: &TimeParser, options: &ImportOptions) {
        let Some(time) = self.time.filter(|_| self.time_parts.is_empty()) else { return };
        if options.maps.iter().any(|map| map.field == "time") {
            return;
        }
        let named = |name: &&str| self.names.iter().position(|have| have.eq_ignore_ascii_case(name));
        let named: Vec<usize> = TIME_NAMES.iter().filter_map(named).collect();
        let is_time = |cell: &str| clock.reads_this_century(cell) && !clock.is_date(cell);
        let is_part = |cell: &str| is_time(cell) || clock.is_date(cell) || is_time_of_day(cell);
        let (mut rows, mut has_parts, mut whole) = (0, false, vec![0_usize; named.len()]);
        table.peek(|cells| {
            rows += 1;
            has_parts |= cells.get(time).is_some_and(is_part);
            for (whole, index) in whole.iter_mut().zip(&named) {
                *whole += usize::from(cells.get(*index).is_some_and(is_time));
            }
        });
        if !has_parts {
            let most = named.iter().zip(&whole).find(|(_, whole)| **whole * 2 > rows);
            self.time = most.map(|(index, _)| *index).or(self.time);
        }
    }

    /// Takes the columns of times that had these names before, if the time is not mapped as one column.
    pub(super) fn take_times_of(&mut self, before: &Self, options: &ImportOptions) {
        if options.maps.iter().any(|map| map.field == "time") && before.time_parts.is_empty() {
            return;
        }
        let find = |column: usize| self.names.iter().position(|have| *have == before.names[column]);
        if let (Some(time), Some(parts)) = (before.time.and_then(find), before.time_parts.moved(find)) {
            (self.time, self.time_parts) = (Some(time), parts);
        }
    }

    /// Finds the columns that have the units of power and energy. Returns a column that has the kind of reading of each row, if
    /// there is one.
    pub(super) fn find_columns_of_texts(&mut self, table: &TableReader<'_>) -> Option<String> {
        let mut texts: Vec<BTreeSet<String>> = vec![BTreeSet::new(); self.names.len()];
        // Cells that have a text, and those among them that are a unit.
        let mut cells_of_units = vec![(0_usize, 0_usize); self.names.len()];
        let mut cells_of_numbers = vec![0_usize; self.names.len()];
        table.peek(|cells| {
            for (index, cell) in cells.iter().enumerate().take(texts.len()).filter(|(_, cell)| !is_absent_text(cell)) {
                let is_unit = Unit::by_name(cell).is_some() || is_unit_of_others(cell);
                cells_of_units[index].0 += 1;
                cells_of_units[index].1 += usize::from(is_unit);
                cells_of_numbers[index] += usize::from(is_quantity(cell));
                texts[index].insert(cell.to_owned());
            }
        });
        let numbers: BTreeSet<usize> = {
            let others = [self.device, self.node, self.model];
            let mapped: BTreeSet<usize> = self.number_columns().map(|column| column.index).collect();
            let is_of_numbers = |index: &usize| {
                let half = cells_of_units[*index].0.div_ceil(2).max(1);
                let is_other = self.is_of_time(*index) || others.contains(&Some(*index));
                mapped.contains(index) || !is_other && cells_of_numbers[*index] >= half
            };
            (0..self.names.len()).filter(is_of_numbers).collect()
        };
        let of_column = |index: usize| {
            let texts = &texts[index];
            let is_named = names_units(&self.names[index]);
            // A column of nothing but single letters may be one of phases.
            let has_words = texts.iter().any(|text| text.chars().count() > 1);
            let units_of = |dimension: Dimension| -> Vec<Unit> {
                texts.iter().filter_map(|text| Unit::by_name(text)).filter(|unit| unit.dimension == dimension).collect()
            };
            let is_specific = |dimension: &Dimension| {
                texts.iter().any(|text| is_specific_unit(text, *dimension))
                    || *dimension == Dimension::Power
                        && (is_named || has_words)
                        && texts.iter().any(|text| matches!(text.as_str(), "W" | "w"))
            };
            let column = |dimension: Dimension| {
                let units = units_of(dimension);
                let unit = units.first().copied().filter(|first| units.iter().all(|unit| unit.is_same(*first)));
                let left = numbers.range(..index).next_back().copied();
                UnitColumn { index, dimension, unit, left, is_of_one: numbers.len() == 1 }
            };
            [Dimension::Power, Dimension::Energy].into_iter().filter(is_specific).map(column).collect::<Vec<_>>()
        };
        let is_of_units = |(_, (known, units)): &(usize, &(usize, usize))| *known > 0 && *units * 10 >= *known * 9;
        let of_units = cells_of_units.iter().enumerate().filter(is_of_units);
        let unit_columns: Vec<UnitColumn> = of_units.flat_map(|(index, _)| of_column(index)).collect();
        self.unit_columns_by_content = unit_columns;
        let is_free = |index: usize| [self.device, self.node, self.time].iter().all(|used| *used != Some(index));
        let kinds = texts.iter().enumerate().filter(|(index, _)| is_free(*index)).find_map(|(index, texts)| {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let (other, power) = find_mixed_reading(&texts, false)?;
            Some(format!(
                "{} names readings of several kinds, such as {} and {}",
                quote(&self.names[index]),
                quote(power?),
                quote(texts[other])
            ))
        });
        let has_fraction = |text: &String| {
            let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            text.split_once('.').is_some_and(|(whole, part)| is_number(whole) && is_number(part) && part != "0")
        };
        self.has_fractions = self.device.and_then(|device| texts.get(device)).is_some_and(|texts| texts.iter().any(has_fraction));
        let is_of = |text: &String, dimension: Dimension| match Unit::by_name(text) {
            Some(unit) => unit.dimension == dimension,
            None => unreadable_unit(&format!("power [{text}]")).is_some(),
        };
        let names = self.names.clone();
        self.take_units_of_rows(|name, dimension| {
            names.iter().zip(&texts).any(|(have, texts)| have == name && texts.iter().any(|text| is_of(text, dimension)))
        });
        kinds
    }

    /// Takes columns that are called `unit`, or as a figure's column with `_unit` behind it, for those of the units of power and
    /// energy, unless `--map` gives the unit. One that is called `unit` applies to the figures that its units fit, and to those
    /// whose column may be power or energy by its name.
    pub(super) fn take_units_of_rows(&mut self, has_units: impl Fn(&str, Dimension) -> bool) {
        let names = self.names.clone();
        let texts = [self.time, self.device, self.node, self.model].into_iter().flatten().chain(self.time_parts.columns());
        let used: BTreeSet<usize> = texts.chain(self.number_columns().map(|column| column.index)).collect();
        let find = |wanted: &str, dimensions: &[Dimension]| {
            let fits = |name: &str| dimensions.iter().any(|dimension| has_units(name, *dimension));
            let is_wanted =
                |(index, name): (usize, &String)| !used.contains(&index) && name.eq_ignore_ascii_case(wanted) && fits(name);
            names.iter().enumerate().position(is_wanted)
        };
        let electrical = [Dimension::Power, Dimension::Energy];
        let by_content = self.unit_columns_by_content.clone();
        // The column that one of units belongs to by its name, as `peak` is that of `peak_unit`.
        let owner = |index: usize| {
            let own = name_without_units(&names[index])?;
            names.iter().position(|name| name.eq_ignore_ascii_case(own))
        };
        for figure in self.figures.iter_mut().filter(|figure| figure.field.dimension().is_electrical()) {
            let own_dimension = [figure.field.dimension()];
            let ValueExpression::Columns(columns) = &mut figure.take else { continue };
            let of_figure: BTreeSet<usize> = columns.iter().map(|column| column.index).collect();
            for column in columns.iter_mut().filter(|column| !column.is_unit_explicit) {
                let name = &names[column.index];
                // A name that is a unit and nothing else, as `w`, may be that of a quantity.
                let in_header = column.unit.filter(|_| Unit::by_name(name.trim()).is_none());
                let own =
                    ["_unit", " unit", "_units", " units"].iter().find_map(|end| find(&format!("{name}{end}"), &electrical));
                let is_kind_named = column.unit.is_some() || names_power(name).is_some() || has_word(name, &ENERGY_WORDS);
                let fitting = if is_kind_named { &own_dimension[..] } else { &electrical };
                let by_content = || {
                    let is_fit = |units: &&UnitColumn| {
                        let is_beside = units.is_of_one || units.left.is_some_and(|left| of_figure.contains(&left));
                        units.dimension == own_dimension[0]
                            && !used.contains(&units.index)
                            && in_header.is_none_or(|own| units.unit.is_some_and(|unit| unit.is_same(own)))
                            && owner(units.index).is_none_or(|owner| owner == column.index)
                            && (is_beside || names_units(&names[units.index]))
                    };
                    by_content.iter().find(is_fit).map(|units| units.index)
                };
                column.unit_column = own.or_else(|| UNIT_NAMES.iter().find_map(|name| find(name, fitting))).or_else(by_content);
            }
        }
    }

    /// Finds the column that has the end of an energy counter's range, if a counter is mapped; notes the ranges.
    pub(super) fn find_counter_range(&mut self, recording: &mut Recording, table: &TableReader<'_>) {
        let is_counter = |figure: &FieldSource| figure.field == ReadingField::EnergyJoulesTotal && !figure.adds;
        if !self.figures.iter().any(is_counter) {
            return;
        }
        let Some((index, unit)) = find_range_column(&self.names) else { return };
        self.counter_range = Some(index);
        table.peek(|cells| {
            if let Some(QuantityCell::Number(value, own)) = cells.get(index).map(|cell| parse_quantity(cell, None)) {
                let joules = own.unwrap_or(unit).to_base_unit(value);
                if joules > 0.0 {
                    recording.add_counter_range(joules);
                }
            }
        });
    }

    /// Takes columns of resolutions for none whose cells are not the energy of a tick, such as bits or seconds.
    pub(super) fn drop_other_resolutions(&mut self, table: &TableReader<'_>) {
        let columns: BTreeSet<usize> = self.number_columns().filter_map(|column| column.resolution).collect();
        let mut others: BTreeSet<usize> = BTreeSet::new();
        for index in columns {
            let name = self.column_name(index);
            table.peek(|cells| {
                if let Some(QuantityCell::Number(value, unit)) = cells.get(index).map(|cell| parse_quantity(cell, None))
                    && !is_tick(&name, value, unit)
                {
                    others.insert(index);
                }
            });
        }
        for figure in &mut self.figures {
            let ValueExpression::Columns(columns) = &mut figure.take else { continue };
            for column in columns {
                column.resolution = column.resolution.filter(|index| !others.contains(index));
            }
        }
    }

    /// Notes columns of two boards that have the same changing values in the first rows: they may be one reading.
    pub(super) fn note_equal_columns(&self, recording: &mut Recording, table: &TableReader<'_>) {
        const FEWEST_VALUES: usize = 8;
        let column_of_board = |figure: &FieldSource| match &figure.take {
            ValueExpression::Columns(columns) if figure.board.is_some() && columns.len() == 1 => {
                figure.field.dimension().is_electrical().then_some((figure.field, columns[0].index))
            }
            _ => None,
        };
        let columns: Vec<(ReadingField, usize)> = self.figures.iter().filter_map(column_of_board).collect();
        let mut values: Vec<Vec<String>> = vec![Vec::new(); columns.len()];
        table.peek(|cells| {
            for (values, (_, column)) in values.iter_mut().zip(&columns) {
                values.push(cells.get(*column).unwrap_or_default().to_owned());
            }
        });
        let is_equal = |a: usize, b: usize| columns[a].0 == columns[b].0 && values[a] == values[b];
        let changes = |at: usize| values[at].iter().collect::<BTreeSet<_>>().len() >= FEWEST_VALUES;
        let pairs = (0..columns.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        for (a, b) in pairs.filter(|(a, b)| is_equal(*a, *b) && changes(*a)) {
            recording.add_note(format!(
                "columns {} and {} have the same values in the first {} rows: if they are one reading, its energy counts twice; map one \
                 of them",
                quote(&self.column_name(columns[a].1)),
                quote(&self.column_name(columns[b].1)),
                values[a].len()
            ));
        }
    }

    /// Returns the texts of a row that may name a board, a component, a user or a job. They are in unmapped columns, and are no
    /// time, number or name of a window.
    pub(super) fn other_texts(&self, cells: &RowCells) -> String {
        let is_other =
            |(index, name): &(usize, &String)| !self.is_mapped_column(*index) && !names_a_window(name) && !names_a_time(name);
        let others = self.names.iter().enumerate().filter(is_other);
        let texts = others.map(|(index, _)| cells.get(index).unwrap_or_default());
        let is_text = |text: &&str| !text.is_empty() && !is_quantity(text);
        texts.map(|text| if is_text(&text) { text } else { "" }).collect::<Vec<_>>().join("\u{1f}")
    }

    /// Returns the texts of a row in the unmapped columns that have its run, as `run_id`; empty if it has none.
    pub(super) fn run_texts(&self, cells: &RowCells) -> String {
        let runs = self.run_columns.iter().filter(|index| !self.is_mapped_column(**index));
        let texts: Vec<&str> = runs.map(|index| cells.get(*index).unwrap_or_default()).collect();
        if texts.iter().all(|text| text.is_empty()) { String::new() } else { texts.join(RUN_SEPARATOR) }
    }

    /// Returns the texts of a row that name its node, its device or its rank; empty if it has none.
    pub(super) fn board_texts(&self, cells: &RowCells) -> String {
        let columns = self.node.iter().chain(&self.device).chain(&self.ranks);
        let texts: Vec<&str> = columns.filter_map(|index| cells.get(*index)).collect();
        if texts.iter().all(|text| text.is_empty()) { String::new() } else { texts.join(RUN_SEPARATOR) }
    }

    /// Returns the column that has how long rows took, or their other end.
    pub(super) fn length_column(&self, spans: SpanColumns) -> LengthColumn {
        let name = spans.other_end.or(spans.duration).map_or(String::new(), |index| self.column_name(index));
        LengthColumn { name, has_unit: spans.has_unit || spans.other_end.is_some() }
    }

    /// Returns the run that contains that of a row; empty if it has none.
    pub(super) fn parent_text<'c>(&self, cells: &'c RowCells) -> &'c str {
        self.parent_column.and_then(|index| cells.get(index)).unwrap_or_default()
    }

    /// Returns whether a column has times, boards, nodes, or figures or their units.
    fn is_mapped_column(&self, index: usize) -> bool {
        let is_of = |column: &NumberColumn| [Some(column.index), column.unit_column].contains(&Some(index));
        self.number_columns().any(is_of) || self.is_of_time(index) || [self.device, self.node].contains(&Some(index))
    }

    /// Returns whether a column of this name has the units of figures of a dimension.
    pub(super) fn has_units_of_rows(&self, name: &str, dimension: Dimension) -> bool {
        let is_taken = |column: &NumberColumn| column.unit_column.is_some_and(|index| self.names[index] == name);
        self.figures.iter().filter(|figure| figure.field.dimension() == dimension).any(|figure| match &figure.take {
            ValueExpression::Columns(columns) => columns.iter().any(is_taken),
            ValueExpression::One => false,
        })
    }

    /// Returns whether a column of units may be of any figure of its row.
    pub(super) fn is_unit_of_any(&self, column: usize) -> bool {
        self.unit_columns_by_content.iter().any(|units| units.index == column)
            || self.names.get(column).is_some_and(|name| UNIT_NAMES.iter().any(|unit| name.eq_ignore_ascii_case(unit)))
    }

    /// Takes the columns that had the unit of each row by their cells before, by their names.
    pub(super) fn take_unit_columns_of(&mut self, before: &Self) {
        let place = |index: usize| {
            let name = before.names.get(index).filter(|name| !name.is_empty())?;
            self.names.iter().position(|have| have == name)
        };
        let find =
            |units: &UnitColumn| Some(UnitColumn { index: place(units.index)?, left: units.left.and_then(place), ..*units });
        self.unit_columns_by_content = before.unit_columns_by_content.iter().filter_map(find).collect();
    }

    /// Takes a row below the header for one of units, if it has a unit in each column of numbers and no number. Returns an error
    /// with the column if the header states another unit.
    pub(super) fn take_units(&mut self, cells: &RowCells) -> Result<bool, (String, String)> {
        let unit = |index: usize| Unit::by_name(cells.get(index)?.trim_matches(['[', ']', '(', ')']).trim());
        let mut found = false;
        for figure in &self.figures {
            let ValueExpression::Columns(columns) = &figure.take else { continue };
            for column in columns {
                match unit(column.index) {
                    Some(unit) if unit.dimension == figure.field.dimension() => found = true,
                    _ if cells.get(column.index).is_some_and(str::is_empty) => {}
                    _ => return Ok(false),
                }
            }
        }
        for column in self.number_columns().filter(|column| !column.is_unit_explicit) {
            let Some(below) = unit(column.index) else { continue };
            if let Some(in_header) = self.contradicted_unit(*column, below) {
                let problem = format!("the header gives {in_header}, the row of units below it {}", below.name);
                return Err((self.column_name(column.index), problem));
            }
        }
        for figure in &mut self.figures {
            let ValueExpression::Columns(columns) = &mut figure.take else { continue };
            for column in columns.iter_mut().filter(|column| !column.is_unit_explicit) {
                if let Some(below) = unit(column.index) {
                    (column.unit, column.is_unit_ambiguous) = (Some(below), false);
                }
            }
        }
        Ok(found)
    }

    /// Returns the unit in the header of a column if it cannot be this one. A header that states the plain unit, as `W`,
    /// leaves it to cells to state `0.2 kW`.
    pub(super) fn contradicted_unit(&self, column: NumberColumn, unit: Unit) -> Option<String> {
        if column.is_unit_ambiguous {
            let name = self.column_name(column.index);
            return ambiguous_unit(&name).filter(|ambiguous| !may_be_unit(ambiguous, unit)).map(str::to_owned);
        }
        column.unit.filter(|own| !own.is_base() && !own.is_same(unit)).map(|own| own.name.to_owned())
    }
}

/// Returns whether a text is a unit of a dimension that names nothing else: `MW` and single letters may be of a place or a phase.
fn is_specific_unit(text: &str, dimension: Dimension) -> bool {
    let is_letter = text.chars().count() == 1 && text.is_ascii();
    !is_letter && !matches!(text, "MJ" | "MW") && Unit::by_name(text).is_some_and(|unit| unit.dimension == dimension)
}

/// Returns whether the name of a column states that it has units: `ReadingUnits`, `Maßeinheit`, `unité`.
fn names_units(name: &str) -> bool {
    let name = name.to_lowercase();
    ["unit", "einheit", "uom"].iter().any(|word| name.contains(word))
}

/// Returns the name of a column of units without `_unit`, ` units` and alike, if something is left.
fn name_without_units(name: &str) -> Option<&str> {
    let is_end = |end: &&str| {
        name.len().checked_sub(end.len()).and_then(|at| name.get(at..)).is_some_and(|have| have.eq_ignore_ascii_case(end))
    };
    let end = ["units", "unit", "uom"].into_iter().find(is_end)?;
    let rest = name[..name.len() - end.len()].trim_end_matches([' ', '_', '-', '.']);
    (!rest.is_empty()).then_some(rest)
}

fn step_name(figure: &FieldSource) -> Option<&'static str> {
    STEPS.iter().find(|(_, field)| figure.adds && *field == figure.field).map(|(name, _)| *name)
}

/// Returns whether the figures of several ranks add up to that of their job.
fn is_summed(field: &str) -> bool {
    ReadingField::from_name(field).is_some_and(|field| SUMMED_PROGRESS.contains(&field))
}

struct MappingBuilder<'p> {
    recording: &'p mut Recording,
    file: FileId,
    header: &'p HeaderRow,
    options: &'p ImportOptions,
    plan: TableMapping,
}

impl MappingBuilder<'_> {
    fn error(&self, problem: impl Into<String>, remedy: impl Into<String>) -> ImportError {
        self.recording.error(self.file, self.header.line, problem, remedy)
    }

    fn add(&mut self, map: &FieldMap) -> Result<(), ImportError> {
        let step = STEPS.iter().find(|(name, _)| *name == map.field).map(|(_, field)| *field);
        if let Some(field) = step
            && map.column == "*"
        {
            return self.add_figure(map, FieldSource { field, adds: true, board: None, take: ValueExpression::One });
        }
        let text = match map.field.as_str() {
            "time" => Some(self.plan.time),
            "device" => Some(self.plan.device),
            "node" => Some(self.plan.node),
            "gpu_model" => Some(self.plan.model),
            _ => None,
        };
        if let Some(before) = text {
            let index = match self.find(&map.column)? {
                Some(index) => index,
                None if map.field == "time" && map.column.contains('+') => self.add_parts_of_time(map)?,
                None => return Err(self.no_column(map, &map.column)),
            };
            if before.is_some() {
                let problem = format!("{} is mapped twice", map.field);
                return Err(self.error(problem, "keep one --map of it"));
            }
            match map.field.as_str() {
                "time" => self.plan.time = Some(index),
                "device" => self.plan.device = Some(index),
                "node" => self.plan.node = Some(index),
                _ => self.plan.model = Some(index),
            }
            return Ok(());
        }
        let Some(field) = step.or_else(|| ReadingField::from_name(&map.field)) else {
            unreachable!("FieldMap accepts known names only")
        };
        let resolved = self.resolve(map)?;
        if field.is_progress() && step.is_none() && resolved.len() > 1 {
            return Err(self.several_figures_of_job(map, &resolved));
        }
        for resolved in resolved {
            let mut columns = Vec::with_capacity(resolved.columns.len());
            for column in resolved.columns {
                let unit = self.unit(field, column)?;
                let resolution = if step.is_none() { self.resolution(field, column)? } else { None };
                let is_electrical = field.dimension().is_electrical();
                let is_unit_ambiguous =
                    unit.is_none() && is_electrical && ambiguous_unit(&self.plan.column_name(column.index)).is_some();
                columns.push(NumberColumn { unit, is_unit_ambiguous, resolution, ..column });
            }
            let board = resolved.board.map(|board| self.board_index(board));
            self.add_figure(map, FieldSource { field, adds: step.is_some(), board, take: ValueExpression::Columns(columns) })?;
        }
        Ok(())
    }

    /// Returns the error of a pattern that takes several columns for one figure of the job: the last of them would count.
    fn several_figures_of_job(&self, map: &FieldMap, resolved: &[ResolvedColumns]) -> ImportError {
        let columns = resolved.iter().flat_map(|resolved| &resolved.columns);
        let names: Vec<String> = columns.map(|column| self.plan.column_name(column.index)).collect();
        let field = &map.field;
        let given = |column: &str| format!("--map {}", shell_quote(&format!("{field}={column}")));
        let quoted: Vec<String> = names.iter().map(|name| quote(name)).collect();
        let problem = format!("{field} is one figure of the job, and {} takes {}", given(&map.column), quoted.join(", "));
        let first = names.first().map_or("", String::as_str);
        let remedy = if is_summed(field) {
            format!("map their sum: {}; if each is of the whole job, map one of them: {}", given(&names.join("+")), given(first))
        } else {
            format!("map one of them: {}", given(first))
        };
        self.error(problem, remedy)
    }

    /// Returns the column that has the energy of each tick, if an energy counter counts ticks; an error if another column has the
    /// energy.
    fn resolution(&mut self, field: ReadingField, column: NumberColumn) -> Result<Option<usize>, ImportError> {
        let found = find_tick_column(&self.plan.names, column.index).filter(|_| field == ReadingField::EnergyJoulesTotal);
        let name = self.plan.column_name(column.index);
        match found {
            None => {
                let is_small = column.unit.is_some_and(|unit| SMALL_UNITS.contains(&unit.name));
                if field == ReadingField::EnergyJoulesTotal && is_small && may_count_ticks(&name) {
                    self.recording.add_note(format!(
                        "{name}: if it counts ticks, as that of rocm-smi and amdsmi does, these are of some 15.3 uJ each: map the column \
                         of the accumulated energy, or put a column counter_resolution beside it"
                    ));
                }
                Ok(None)
            }
            // Ticks are in no unit of this size: the user knows better.
            Some(_) if column.is_unit_explicit && column.unit.is_some_and(|unit| !SMALL_UNITS.contains(&unit.name)) => Ok(None),
            Some(TickColumn::Energy(energy)) => {
                let energy = self.plan.column_name(energy);
                let remedy = format!("map that: --map {}", shell_quote(&format!("{}={energy}", field.name())));
                Err(self.error(format!("counts ticks, and {} has their energy", quote(&energy)), remedy).with_column(name))
            }
            Some(TickColumn::Resolution(_)) if column.is_unit_explicit => {
                let problem = "counts ticks, whose energy another column has: they are in no unit";
                Err(self.error(problem, "leave the unit out").with_column(name))
            }
            Some(TickColumn::Resolution(resolution)) => Ok(Some(resolution)),
        }
    }

    /// Takes `DATE+CLOCK`, or the columns of the year, the month and so on; returns the first one.
    fn add_parts_of_time(&mut self, map: &FieldMap) -> Result<usize, ImportError> {
        let find = |name: &str| self.find(name.trim())?.ok_or_else(|| self.no_column(map, name.trim()));
        let columns: Vec<usize> = map.column.split('+').map(find).collect::<Result<_, _>>()?;
        let (first, parts) = match columns.as_slice() {
            [date, clock] => (*date, TimeParts::of_clock(*clock)),
            several => TimeParts::of_map(&self.plan.names, several).ok_or_else(|| {
                let problem = "a time of several columns is of a date and a time of day, or of year, month and day";
                let remedy = "use --map 'time=DATE+CLOCK', or --map 'time=year+month+day+hour' of columns with these names";
                self.error(problem, remedy)
            })?,
        };
        self.plan.time_parts = parts;
        Ok(first)
    }

    fn board_index(&mut self, name: String) -> usize {
        let known = self.plan.boards.iter().position(|other| *other == name);
        known.unwrap_or_else(|| {
            self.plan.boards.push(name);
            self.plan.boards.len() - 1
        })
    }

    fn add_figure(&mut self, map: &FieldMap, figure: FieldSource) -> Result<(), ImportError> {
        let name = figure.field.name();
        // A figure of the job has no board; what rows add is summed over boards.
        let is_of_job = |other: &FieldSource| figure.field.is_progress() && !(figure.adds && other.adds);
        let same = |other: &&FieldSource| other.field == figure.field && (other.board == figure.board || is_of_job(other));
        if let Some(other) = self.plan.figures.iter().find(same) {
            if other.adds != figure.adds {
                return Err(
                    self.error(format!("{name} is filled by two --map, by a total and by what rows add"), "keep one of them")
                );
            }
            let first = match &other.take {
                ValueExpression::Columns(columns) => {
                    columns.iter().map(|column| self.plan.column_name(column.index)).collect::<Vec<_>>().join("+")
                }
                ValueExpression::One => "*".to_owned(),
            };
            let field = &map.field;
            let second = map.column.as_str();
            let problem = format!("{field} is filled by two --map, by {} and by {}", quote(&first), quote(second));
            let remedy = if figure.field.is_progress() {
                format!("keep one of them, or map their sum: --map {}", shell_quote(&format!("{field}={first}+{second}")))
            } else {
                format!(
                    "map each to its board, --map {} --map {}, or their sum, --map {}",
                    shell_quote(&format!("{field}[gpu0]={first}")),
                    shell_quote(&format!("{field}[gpu1]={second}")),
                    shell_quote(&format!("{field}={first}+{second}"))
                )
            };
            return Err(self.error(problem, remedy));
        }
        if let ValueExpression::Columns(columns) = &figure.take {
            let column = columns.iter().map(|column| self.plan.column_name(column.index)).collect::<Vec<_>>().join("+");
            let board = figure.board.map(|board| self.plan.boards[board].clone());
            self.recording.add_column(figure.field, board.as_deref(), column);
        }
        if let ValueExpression::Columns(columns) = &figure.take
            && let Some(unit) = columns[0].unit.filter(|_| columns[0].is_unit_explicit)
        {
            self.recording.explicit_units.insert(figure.field, unit.name);
        }
        if let Some(step) = step_name(&figure) {
            self.recording.mapped_as.insert(figure.field, step);
        }
        self.plan.figures.push(figure);
        Ok(())
    }

    fn find_time(&mut self) -> Result<(), ImportError> {
        let named = |name: &&str| self.plan.names.iter().position(|have| have.eq_ignore_ascii_case(name));
        let found = TIME_NAMES.iter().find_map(named);
        if let Some(time) = self.plan.time {
            if self.options.interval.is_some() {
                let note = format!("--interval is not used: time is mapped to {}", self.plan.column_name(time));
                self.recording.add_note(note);
            }
            return Ok(());
        }
        if self.options.interval.is_some() {
            if let Some(column) = found.map(|index| self.plan.column_name(index)) {
                let note = format!("times are made by --interval; leave it out, or map time={column}, if {column} has them");
                self.recording.add_note(note);
            }
            return Ok(());
        }
        self.plan.time = found;
        if let Some((year, parts)) = TimeParts::of_year(&self.plan.names).filter(|_| found.is_none()) {
            (self.plan.time, self.plan.time_parts) = (Some(year), parts);
        }
        if self.plan.time.is_some() {
            return Ok(());
        }
        if self.header.is_data {
            let problem = "the first row has readings: the table has no header";
            return Err(self.error(problem, "give the number of the column of the times, for example --map time=#1"));
        }
        let problem = format!("no column is called time or timestamp; the columns are: {}", self.list());
        Err(self.error(problem, "use --map time=COLUMN, or --interval where rows have no time"))
    }

    /// Checks that each figure names its board, if boards have columns of their own.
    fn check_boards(&self) -> Result<(), ImportError> {
        let plan = &self.plan;
        let loose = |figure: &&FieldSource| figure.board.is_none() && !figure.field.is_progress();
        if let Some(figure) = plan.figures.iter().find(loose).filter(|_| !plan.boards.is_empty()) {
            let name = step_name(figure).unwrap_or(figure.field.name());
            let problem = format!("{name} is of no board, where other figures are of {}", plan.boards.join(", "));
            return Err(self.error(problem, format!("name its owner, for example --map {name}[{}]=COLUMN", plan.boards[0])));
        }
        for (at, figure) in plan.figures.iter().enumerate().filter(|(_, figure)| figure.board.is_some()) {
            let ValueExpression::Columns(columns) = &figure.take else { continue };
            let same = |other: &&FieldSource| match &other.take {
                ValueExpression::Columns(others) => {
                    other.field == figure.field
                        && others.iter().any(|other| columns.iter().any(|column| column.index == other.index))
                }
                ValueExpression::One => false,
            };
            if plan.figures[at + 1..].iter().any(|other| same(&other)) {
                let problem = format!("column {:?} is mapped to two boards", plan.column_name(columns[0].index));
                return Err(self.error(problem, "keep one of them"));
            }
        }
        Ok(())
    }

    /// Returns an error if a column that is mapped to a board of its own is by its name another figure, or a part, of what
    /// another such column is of. Domains and sides of meters are noted instead.
    fn check_columns_of_boards(&self) -> Result<(), ImportError> {
        let mut of_fields: BTreeMap<ReadingField, Vec<(usize, usize)>> = BTreeMap::new();
        for figure in self.plan.figures.iter().filter(|figure| figure.field.dimension().is_electrical()) {
            if let (ValueExpression::Columns(columns), Some(board)) = (&figure.take, figure.board)
                && let [column] = columns.as_slice()
            {
                of_fields.entry(figure.field).or_default().push((column.index, board));
            }
        }
        for (field, columns) in of_fields {
            let names: Vec<String> = columns.iter().map(|(column, _)| self.plan.column_name(*column)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            if find_part_and_whole(&names).is_some() {
                continue;
            }
            // Boards of a pattern were checked by the texts in place of its braces, since rails may have lost their names.
            let mut misnamed = find_misnamed_boards(&names, self.recording.meter).into_iter();
            let explicit = misnamed.find(|found| self.is_named_by_a_map(columns[found.index].1));
            let rail = || {
                let (part, whole) = find_rail_and_board(&names)?;
                Some((part, format!("by its name of a part of what {} is of", quote(names[whole]))))
            };
            let Some((at, problem)) = explicit.map(|found| (found.index, found.problem)).or_else(rail) else { continue };
            let map = self.map_of_board(field, columns[at].1, names[at]);
            let problem = format!("column {} is {problem}: both would count", quote(names[at]));
            let is_of_machine = find_misnamed_boards(&names, Meter::Node).is_empty();
            let node = if is_of_machine { "; if all of them are of one machine, use --meter node" } else { "" };
            return Err(self.error(problem, format!("leave out --map {map}, or narrow the pattern that takes it in{node}")));
        }
        Ok(())
    }

    /// Returns the columns of power or energy that are mapped to boards, each with its field and board, without sums of columns.
    fn energy_columns_of_boards(&self) -> Vec<(ReadingField, usize, String)> {
        let is_of_energy = |figure: &&FieldSource| FIELDS_OF_ENERGY.contains(&figure.field);
        let column = |figure: &FieldSource| match &figure.take {
            ValueExpression::Columns(columns) if columns.len() == 1 => {
                Some((figure.field, figure.board?, self.plan.column_name(columns[0].index)))
            }
            _ => None,
        };
        self.plan.figures.iter().filter(is_of_energy).filter_map(column).collect()
    }

    /// Returns an error if a board, or the column that is mapped to it, is by its name what the other boards have together.
    fn check_totals_of_boards(&self) -> Result<(), ImportError> {
        let columns = self.energy_columns_of_boards();
        let of_energy = self.plan.figures.iter().filter(|figure| FIELDS_OF_ENERGY.contains(&figure.field));
        let boards: BTreeSet<usize> = of_energy.filter_map(|figure| figure.board).collect();
        if boards.len() < 2 {
            return Ok(());
        }
        let error = |what: &str, name: &str, (field, board, column): &(ReadingField, usize, String), way_out: &str| {
            let map = self.map_of_board(*field, *board, column);
            let problem = format!("{what} {} is by its name what the other boards have together: both would count", quote(name));
            Err(self.error(problem, format!("leave out --map {map}, or map it alone; if it is a board of its own, {way_out}")))
        };
        if let Some(found) = columns.iter().find(|(_, board, _)| names_a_sum(&self.plan.boards[*board])) {
            return error("board", &self.plan.boards[found.1], found, "name it otherwise");
        }
        if self.options.accept.contains(&AcceptedFinding::Sums) {
            return Ok(());
        }
        for field in FIELDS_OF_ENERGY {
            let of_field: Vec<&(ReadingField, usize, String)> = columns.iter().filter(|(other, ..)| *other == field).collect();
            let names: Vec<&str> = of_field.iter().map(|(.., column)| column.as_str()).collect();
            if let Some(at) = find_plain_total(&names, field == ReadingField::EnergyJoulesTotal) {
                return error("column", names[at], of_field[at], &format!("use --accept {}", AcceptedFinding::Sums.name()));
            }
        }
        Ok(())
    }

    /// Returns an error if a board that a `--map` names is by that name another figure, or a part, of what another board is, as
    /// `gpu0 peak` of `gpu0`. Domains and sides of meters are noted instead.
    fn check_names_of_boards(&mut self) -> Result<(), ImportError> {
        let columns = self.energy_columns_of_boards();
        let names_of_columns: Vec<&str> = columns.iter().map(|(.., column)| column.as_str()).collect();
        let mapped: BTreeMap<usize, &(ReadingField, usize, String)> =
            columns.iter().rev().map(|column| (column.1, column)).collect();
        let boards: Vec<usize> = mapped.keys().copied().collect();
        let names: Vec<String> = boards.iter().map(|board| self.plan.boards[*board].clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        // The same of columns is noted by their names.
        if let Some(note) = describe_zone(&names).filter(|_| describe_zone(&names_of_columns).is_none()) {
            self.recording.add_note(note);
        }
        if let Some((part, whole)) = find_part_and_whole(&names) {
            if find_part_and_whole(&names_of_columns).is_none() {
                let (part, whole) = (quote(names[part]), quote(names[whole]));
                self.recording.add_note(format!(
                    "board {part} is by its name a part of what board {whole} is: both count, and their energy twice; leave one of the two out"
                ));
            }
            return Ok(());
        }
        let misnamed = find_misnamed_boards(&names, self.recording.meter);
        let misnamed = misnamed.into_iter().map(|found| (found.index, found.problem));
        let rail = find_rail_and_board(&names)
            .map(|(part, whole)| (part, format!("by its name of a part of what {} is of", quote(names[whole]))));
        let found = misnamed.chain(rail).find(|(at, _)| self.is_named_by_a_map(boards[*at]));
        let Some((at, problem)) = found else { return Ok(()) };
        let Some((field, board, column)) = mapped.get(&boards[at]) else { return Ok(()) };
        let map = self.map_of_board(*field, *board, column);
        let problem = format!("board {} is {problem}: both would count", quote(names[at]));
        let is_of_machine = find_misnamed_boards(&names, Meter::Node).is_empty();
        let node = if is_of_machine { "; if all of them are of one machine, use --meter node" } else { "" };
        Err(self.error(problem, format!("leave out --map {map}, or name the board otherwise if it is one{node}")))
    }

    /// Returns the `--map` of a column to a board, for a remedy.
    fn map_of_board(&self, field: ReadingField, board: usize, column: &str) -> String {
        let name = self.recording.mapped_as.get(&field).copied().unwrap_or(field.name());
        shell_quote(&format!("{name}[{}]={column}", self.plan.boards[board]))
    }

    /// Returns whether a `--map` names a board, as no pattern does.
    fn is_named_by_a_map(&self, board: usize) -> bool {
        self.options.maps.iter().any(|map| map.board.as_deref() == Some(self.plan.boards[board].as_str()))
    }

    /// Returns an error if a sum has a column of a part of what another column of it measures; notes it of boards of their own.
    fn check_parts_and_wholes(&mut self) -> Result<(), ImportError> {
        let mut of_boards: BTreeMap<ReadingField, Vec<usize>> = BTreeMap::new();
        for figure in self.plan.figures.iter().filter(|figure| figure.field.dimension().is_electrical()) {
            let ValueExpression::Columns(columns) = &figure.take else { continue };
            let columns: Vec<usize> = columns.iter().map(|column| column.index).collect();
            let twice = self.find_pair(&columns, find_part_and_whole).or_else(|| self.find_pair(&columns, find_rail_and_board));
            if let Some((part, whole)) = twice {
                let problem =
                    format!("{} is by its name a part of what {} is: the sum has it twice", quote(&part), quote(&whole));
                return Err(self.error(problem, "take it out of the sum"));
            }
            of_boards.entry(figure.field).or_default().extend(columns);
        }
        for columns in of_boards.values() {
            let names: Vec<String> = columns.iter().map(|column| self.plan.column_name(*column)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            if let Some(note) = describe_zone(&names) {
                self.recording.add_note(note);
            }
            if let Some((part, whole)) = self.find_pair(columns, find_part_and_whole) {
                let (part, whole) = (quote(&part), quote(&whole));
                self.recording.add_note(format!(
                    "column {part} is by its name a part of what column {whole} is: both count, and their energy twice; leave one of the two out"
                ));
            }
        }
        Ok(())
    }

    /// Returns the names of two of these columns, the first of which is a part of the second.
    fn find_pair(&self, columns: &[usize], find: impl Fn(&[&str]) -> Option<(usize, usize)>) -> Option<(String, String)> {
        let names: Vec<String> = columns.iter().map(|column| self.plan.column_name(*column)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (part, whole) = find(&names)?;
        Some((names[part].to_owned(), names[whole].to_owned()))
    }

    fn list(&self) -> String {
        let names = &self.plan.names;
        let shown = names.iter().take(40).map(|name| quote(name)).collect::<Vec<_>>().join(", ");
        if names.len() > 40 { format!("{shown} and {} more", names.len() - 40) } else { shown }
    }

    fn no_column(&self, map: &FieldMap, name: &str) -> ImportError {
        if self.header.is_data {
            let problem = format!("has no column {}: the first row has readings, there is no header", quote(name));
            return self.error(problem, format!("name columns by their number, for example --map {}=#2", map.field));
        }
        let problem = format!("has no column {}; the columns are: {}", quote(name), self.list());
        let has_number = ColumnPattern::new(name).is_some_and(|pattern| pattern.parts.iter().any(|(is_number, _)| *is_number));
        let braces = if has_number { "; {n} matches digits only, {x} any text" } else { "" };
        self.error(problem, format!("correct --map {}{braces}", shell_quote(&map_text(map))))
    }

    /// Returns the column of a name: as it is written, by its number, without its unit, or in other letter case.
    fn find(&self, name: &str) -> Result<Option<usize>, ImportError> {
        let names = &self.plan.names;
        if name.is_empty() {
            return Ok(None);
        }
        let by_number = || name.strip_prefix('#')?.parse::<usize>().ok()?.checked_sub(1).filter(|index| *index < names.len());
        let plain = |text: &str| text.split(['[', '(']).next().unwrap_or(text).trim().to_owned();
        let ways: [&dyn Fn(&str) -> bool; 3] =
            [&|have| have == name, &|have| plain(have) == name, &|have| have.eq_ignore_ascii_case(name)];
        for (way, same) in ways.iter().enumerate() {
            let found: Vec<usize> = (0..names.len()).filter(|index| same(&names[*index])).collect();
            if found.len() > 1 {
                let numbers = found.iter().map(|index| format!("#{}", index + 1)).collect::<Vec<_>>().join(", ");
                let problem = format!("{} columns are called {}", found.len(), quote(name));
                return Err(self.error(problem, format!("give the number of the one that is meant: {numbers}")));
            }
            if let Some(index) = found.first() {
                return Ok(Some(*index));
            }
            if way == 0
                && let Some(index) = by_number()
            {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Returns a column with the unit at its end, if it has one.
    fn find_with_unit(&self, map: &FieldMap, text: &str) -> Result<Option<NumberColumn>, ImportError> {
        if let Some(index) = self.find(text)? {
            return Ok(Some(NumberColumn::new(index, None)));
        }
        let Some((name, unit)) = text.rsplit_once(':') else { return Ok(None) };
        let Some(index) = self.find(name.trim())? else { return Ok(None) };
        Ok(Some(NumberColumn::new(index, Some(self.named_unit(map, name, unit)?))))
    }

    fn named_unit(&self, map: &FieldMap, column: &str, unit: &str) -> Result<Unit, ImportError> {
        Unit::by_name(unit.trim()).ok_or_else(|| {
            let remedy = format!("correct --map {}", shell_quote(&map_text(map)));
            self.error(format!("unknown unit {}", quote(unit.trim())), remedy).with_column(column.trim())
        })
    }

    fn resolve(&self, map: &FieldMap) -> Result<Vec<ResolvedColumns>, ImportError> {
        let text = map.column.as_str();
        if let Some(column) = self.find_with_unit(map, text)? {
            return Ok(vec![ResolvedColumns { board: map.board.clone(), columns: vec![column] }]);
        }
        if let Some(pattern) = ColumnPattern::new(text) {
            return self.resolve_pattern(map, &pattern);
        }
        if text.contains('+') {
            return Ok(vec![ResolvedColumns { board: map.board.clone(), columns: self.resolve_sum(map)? }]);
        }
        let name =
            text.rsplit_once(':').map_or(text, |(name, unit)| if Unit::by_name(unit.trim()).is_some() { name } else { text });
        Err(self.no_column(map, name))
    }

    /// Resolves `A+B`, `A + B:mW`: the unit at the end holds for all that have none.
    fn resolve_sum(&self, map: &FieldMap) -> Result<Vec<NumberColumn>, ImportError> {
        let mut columns = Vec::new();
        for part in map.column.split('+') {
            columns.push(self.find_with_unit(map, part.trim())?.ok_or_else(|| self.no_column(map, part.trim()))?);
        }
        let last = columns[columns.len() - 1];
        for column in columns.iter_mut().filter(|column| !column.is_unit_explicit && last.is_unit_explicit) {
            (column.unit, column.is_unit_explicit) = (last.unit, true);
        }
        Ok(columns)
    }

    fn resolve_pattern(&self, map: &FieldMap, pattern: &ColumnPattern<'_>) -> Result<Vec<ResolvedColumns>, ImportError> {
        if map.board.is_some() {
            return Err(self.error(
                format!("--map {} names a board and a column for each", shell_quote(&map_text(map))),
                "leave out the board: what replaces the braces names it",
            ));
        }
        let with_unit = pattern.split_unit().map(|(pattern, unit)| (pattern, Some(unit)));
        let of_times = self.columns_of_times();
        for (pattern, unit) in [Some((pattern.clone(), None)), with_unit].into_iter().flatten() {
            let matching = |(index, name): (usize, &String)| pattern.match_board(name).map(|board| (index, board));
            let named = self.plan.names.iter().enumerate().filter(|(index, _)| !of_times.contains(index));
            let matching: Vec<(usize, String)> = named.filter_map(matching).collect();
            if matching.is_empty() {
                continue;
            }
            let unit = unit.map(|unit| self.named_unit(map, &map.column, unit)).transpose()?;
            let is_sum = |(_, board): &&(usize, String)| names_a_sum(board);
            if let Some((index, board)) = matching.iter().find(is_sum).filter(|_| matching.len() > 1) {
                let name = self.plan.column_name(*index);
                let problem = format!("column {name:?} is of {board:?}, by its name what the other boards have together");
                let remedy = "use {n} in place of the braces if the others have numbers, map each board's column by itself, or this one \
                              alone if the others are parts of it";
                return Err(self.error(problem, remedy));
            }
            self.check_board_names(map, &matching, unit.is_some())?;
            let resolved = |(index, board): (usize, String)| ResolvedColumns {
                board: Some(board),
                columns: vec![NumberColumn::new(index, unit)],
            };
            return Ok(matching.into_iter().map(resolved).collect());
        }
        Err(self.no_column(map, &map.column))
    }

    /// Returns the columns of times, which no pattern takes in: those that are mapped, and those with names of times.
    fn columns_of_times(&self) -> BTreeSet<usize> {
        let is_time = |name: &String| TIME_NAMES.iter().any(|time| name.eq_ignore_ascii_case(time));
        let named: Vec<usize> = (0..self.plan.names.len()).filter(|index| is_time(&self.plan.names[*index])).collect();
        let mapped: Vec<&FieldMap> = self.options.maps.iter().filter(|map| map.field == "time").collect();
        let year = TimeParts::of_year(&self.plan.names).filter(|_| named.is_empty() && mapped.is_empty());
        let of_year = year.iter().flat_map(|(year, parts)| parts.columns().chain([*year]));
        let columns = mapped.iter().flat_map(|map| map.column.split('+').chain([map.column.as_str()]));
        let of_maps = columns.filter_map(|column| self.find(column.trim()).ok().flatten());
        named.into_iter().chain(of_year).chain(of_maps).collect()
    }

    /// Returns an error if a pattern takes in columns that are not of a board of their own, or not of power.
    fn check_board_names(&self, map: &FieldMap, matching: &[(usize, String)], has_unit: bool) -> Result<(), ImportError> {
        let names: Vec<&str> = matching.iter().map(|(_, board)| board.as_str()).collect();
        let column = |index: usize| self.plan.column_name(matching[index].0);
        if let Some(found) = find_misnamed_boards(&names, self.recording.meter).into_iter().next() {
            let problem = format!("column {} is {}", quote(&column(found.index)), found.problem);
            return Err(self.error(problem, NARROWER_PATTERN));
        }
        let is_power = map.field.starts_with("power");
        if let Some((other, power)) = find_mixed_reading(&names, has_unit).filter(|_| is_power) {
            let than = power.map_or_else(|| "power".to_owned(), quote);
            let problem = format!("column {} is by its name no power, as {than} is", quote(&column(other)));
            return Err(self.error(problem, NARROWER_PATTERN));
        }
        Ok(())
    }

    /// Returns an error if a column of counts has thousands or millions by its name.
    fn refuse_multiple(&self, field: ReadingField, name: &str) -> Result<(), ImportError> {
        let is_count = matches!(
            field,
            ReadingField::SamplesTotal
                | ReadingField::TokensTotal
                | ReadingField::StepsTotal
                | ReadingField::SamplesPerSecond
                | ReadingField::TokensPerSecond
        );
        // `samples_b` beside `samples_a` is of b.
        let is_of_several = |letter: &str| {
            letter == "b" && name.strip_suffix(letter).is_some_and(|stem| self.plan.names.contains(&format!("{stem}a")))
        };
        let multiple = count_multiple(name).filter(|letter| is_count && !is_of_several(letter));
        let Some(multiple) = multiple else { return Ok(()) };
        let problem = format!("the header gives {multiple}, a multiple, where {} is a plain count", field.name());
        let remedy = "write whole counts into the column, 1500000 for 1.5 M, and name it without the multiple";
        Err(self.error(problem, remedy).with_column(name))
    }

    /// Returns the unit to read a column in: the one asked for, else the header's own (`Power [mW]`, `power_mW`), else the
    /// field's.
    fn unit(&mut self, field: ReadingField, column: NumberColumn) -> Result<Option<Unit>, ImportError> {
        let name = self.plan.column_name(column.index);
        let bracketed = bracketed_unit(&name);
        let fits = |unit: &Unit| unit.dimension == field.dimension();
        self.refuse_multiple(field, &name)?;
        let remedy = format!("units of {}: {}", field.name(), field.dimension().units());
        let is_electrical = field.dimension().is_electrical() && column.unit.is_none();
        // Cells may state what letters of the header leave open.
        let is_open =
            |unit: &&str| ambiguous_unit(&name) == Some(*unit) && bracketed.is_none_or(|bracketed| may_be_unit(unit, bracketed));
        if let Some(other) = unreadable_unit(&name).filter(|unit| is_electrical && !is_open(unit)) {
            let problem = format!("the header gives {other}, which is not a unit of {}", field.name());
            return Err(self
                .error(problem, format!("map another column, or give the unit after a colon; {remedy}"))
                .with_column(name));
        }
        let is_power = is_power(field) && is_electrical;
        let is_limit = is_power && names_limit(&name) && !(bracketed.is_some() && names_power_at_a_limit(&name));
        let is_energy = field.dimension() == Dimension::Energy && is_electrical;
        let is_another = is_power && names_no_power(&name) || is_energy && names_no_energy(&name);
        if let Some(other) = other_electrical_unit(&name, field.dimension()).filter(|_| is_electrical && bracketed.is_none()) {
            let problem = format!("the header gives {}, which is not a unit of {}", other.name, field.name());
            return Err(self
                .error(problem, format!("map another column, or give the unit after a colon; {remedy}"))
                .with_column(name));
        }
        if is_limit || is_another && bracketed.is_none() {
            let problem = format!("by its name it is no {}", field.name());
            return Err(self
                .error(problem, format!("map another column, or give the unit after a colon; {remedy}"))
                .with_column(name));
        }
        match (column.unit, bracketed) {
            (Some(mapped_unit), _) if !fits(&mapped_unit) => {
                Err(self.error(format!("{} is not a unit of {}", mapped_unit.name, field.name()), remedy).with_column(name))
            }
            (None, Some(own)) if !fits(&own) => {
                let problem = format!("the header gives {}, which is not a unit of {}", own.name, field.name());
                Err(self
                    .error(problem, format!("map another column, or give the unit after a colon; {remedy}"))
                    .with_column(name))
            }
            (Some(mapped_unit), Some(own)) if mapped_unit != own => {
                let note =
                    format!("column {name:?}: the header gives {}, --map gives {}, which is taken", own.name, mapped_unit.name);
                self.recording.add_note(note);
                Ok(Some(mapped_unit))
            }
            (mapped_unit, own) => Ok(mapped_unit.or(own).or_else(|| worded_unit(&name, field.dimension()))),
        }
    }
}

/// Returns whether the name of a column names another quantity than energy.
fn names_no_energy(name: &str) -> bool {
    let is_another = names_other_power(name) || !has_word(name, &ENERGY_WORDS) && names_another_reading(name);
    is_another && worded_unit(name, Dimension::Energy).is_none()
}

/// Words behind which a name has what its unit is divided by: `joules_per_second`.
const WORDS_OF_RATES: [&str; 2] = ["over", "per"];

/// Returns the unit of power in the name of a column that is mapped as energy, or of energy in one that is mapped as power;
/// `None` if the name has one of the mapped dimension, too, or divides by something.
fn other_electrical_unit(name: &str, dimension: Dimension) -> Option<Unit> {
    let other = match dimension {
        Dimension::Power => Dimension::Energy,
        Dimension::Energy => Dimension::Power,
        _ => return None,
    };
    let is_open = worded_unit(name, dimension).is_none() && !has_word(name, &WORDS_OF_RATES);
    is_open.then(|| worded_unit(name, other))?
}

/// Remedy for a pattern that takes in too many columns.
const NARROWER_PATTERN: &str = "put more of the name into the pattern, use {n} in place of the braces if the boards have numbers, or map each board's column by itself";

/// `gpu.{n}.power`, `{host}:gpu{n}`: `{n}` means digits, another word in braces any text.
#[derive(Debug, Clone)]
struct ColumnPattern<'t> {
    prefix: &'t str,
    /// Of each pair of braces, whether it means digits, and the text behind it.
    parts: Vec<(bool, &'t str)>,
}

impl<'t> ColumnPattern<'t> {
    fn new(text: &'t str) -> Option<Self> {
        let (prefix, mut rest) = text.split_once('{')?;
        let mut parts = Vec::new();
        loop {
            let (word, behind) = rest.split_once('}')?;
            let next = behind.split_once('{').filter(|(_, next)| next.contains('}'));
            parts.push((word.trim() == "n", next.map_or(behind, |(between, _)| between)));
            match next {
                Some((_, next)) => rest = next,
                None => return Some(Self { prefix, parts }),
            }
        }
    }

    /// Returns the pattern without the unit behind its last colon, and that unit.
    fn split_unit(&self) -> Option<(Self, &'t str)> {
        let ((digits, last), before) = self.parts.split_last()?;
        let (last, unit) = last.rsplit_once(':')?;
        let parts = before.iter().copied().chain([(*digits, last)]).collect();
        Some((Self { prefix: self.prefix, parts }, unit))
    }

    /// Returns the board in a column's name, with its unit in brackets or without: `gpu0` for digits, else the texts in place of
    /// the braces, such as `n1:0`.
    fn match_board(&self, name: &str) -> Option<String> {
        let plain = name.split(['[', '(']).next().unwrap_or(name).trim();
        [name, plain].into_iter().find_map(|name| {
            let texts = match_braces(name.strip_prefix(self.prefix)?, &self.parts)?;
            Some(match texts.as_slice() {
                [digits] if are_digits(digits) => format!("gpu{digits}"),
                texts => texts.join(":"),
            })
        })
    }
}

fn are_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the texts in place of the braces of a pattern, the first as short as it may be; `None` if a text does not fit the
/// pattern.
fn match_braces<'n>(text: &'n str, parts: &[(bool, &str)]) -> Option<Vec<&'n str>> {
    let (&(is_number, literal), behind) = parts.split_first()?;
    let fits = |middle: &str| !middle.is_empty() && (!is_number || are_digits(middle));
    if behind.is_empty() {
        return text.strip_suffix(literal).filter(|middle| fits(middle)).map(|middle| vec![middle]);
    }
    text.match_indices(literal).find_map(|(at, _)| {
        let (middle, rest) = (&text[..at], &text[at + literal.len()..]);
        let others = if fits(middle) { match_braces(rest, behind)? } else { return None };
        Some([vec![middle], others].concat())
    })
}

/// Returns a map as it was given.
fn map_text(map: &FieldMap) -> String {
    match &map.board {
        Some(board) => format!("{}[{board}]={}", map.field, map.column),
        None => format!("{}={}", map.field, map.column),
    }
}
