//! Reads tables of operating points: a setting with its time and its energy.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use eadt_models::choose::{SettingMeasurement, TuningKnob};
use eadt_recordings::units::{Dimension, Unit};
use eadt_recordings::{TableRows, shell_quote};
use eadt_schemas::counts::counted;

use crate::error::quote;
use crate::map::{FieldColumn, FieldMap, TableHeader, open, set_numbers, take_units};
use crate::{TableError, TuningRequest};

/// Values of the columns that a group has in common.
pub type GroupKey = BTreeMap<String, String>;

/// One group of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PointGroup {
    pub measurements: Vec<SettingMeasurement>,
    pub runs: Vec<Option<String>>,
    /// Boards whose energies or powers are added up in each row.
    pub boards: usize,
    /// Line, and power × time over energy, of each row with both.
    pub power_ratios: Vec<(u64, f64)>,
    /// Energy is read; otherwise it is power × time.
    pub energy_is_used: bool,
    /// A row is marked as simulated in the column `origin`.
    pub is_simulated: bool,
    /// Columns that are not used, and by whose values the figures differ.
    pub mixed: Vec<MixedColumn>,
}

/// A column that is not used, has few values within a group, and by whose values the figures of equal settings differ.
#[derive(Debug, Clone, PartialEq)]
pub struct MixedColumn {
    pub name: String,
    pub values: Vec<String>,
    /// The highest mean time or energy of a value over the lowest, less 1.
    pub difference_ratio: f64,
}

/// The lowest power that any GPU draws in a run, in watts: less is another unit.
const WATTS_MIN: f64 = 2.0;
/// SM clocks of any GPU, in MHz.
const CLOCKS_MHZ: std::ops::RangeInclusive<f64> = 50.0..=5000.0;
/// Memory clocks of any GPU, in MHz; GDDR's effective ones are high.
const MEMORY_CLOCKS_MHZ: std::ops::RangeInclusive<f64> = 50.0..=50_000.0;
/// Energy and mean power × time may differ by this part: one is often of the device, the other of its busy time.
const AGREE_RATIO: f64 = 0.5;

/// More values than these are no sign of things that were put together.
const FEW_VALUES: usize = 5;
/// Figures go with a column if its values explain this part of their scatter at equal settings.
const EXPLAINED_RATIO: f64 = 0.8;
/// A smaller difference of the figures is not noted.
const DIFFERENCE_RATIO: f64 = 0.05;

/// The fields that `--map` may name.
pub const FIELDS: [&str; 7] =
    ["sm_clock_mhz", "power_limit_watts", "memory_clock_mhz", "duration_seconds", "energy_joules", "mean_power_watts", "run"];

#[derive(Debug)]
struct PointColumns {
    keys: Vec<(String, usize)>,
    setting: FieldColumn,
    /// Column of the second knob.
    second: Option<FieldColumn>,
    duration: FieldColumn,
    energy: Option<FieldColumn>,
    power: Option<FieldColumn>,
    /// Energy or power that is not used, to compare with.
    compared: Option<FieldColumn>,
    run: Option<usize>,
    /// The column of a row's origin, measured or simulated.
    origin: Option<usize>,
}

/// The key that may occur in a table once: group, settings, run.
type PointKey = (GroupKey, [u64; 2], Option<String>);
/// A row's line and cells.
type FirstRow = (u64, Vec<String>);

/// Fields by which the header of a table is known.
fn known_fields() -> Vec<&'static str> {
    FIELDS.into_iter().chain(crate::epochs::FIELDS).collect()
}

/// Returns the names of a table's columns.
pub fn column_names(file: &str, reader: impl Read, maps: &[FieldMap], by: &[String]) -> Result<Vec<String>, TableError> {
    Ok(open(file, reader, maps, by, &known_fields())?.names().to_vec())
}

/// Reads the groups of a table. `by` are columns, or fields named by a map.
pub fn read(file: &str, reader: impl Read, request: &TuningRequest) -> Result<BTreeMap<GroupKey, PointGroup>, TableError> {
    let mut table = open(file, reader, &request.maps, &request.by, &known_fields())?;
    let header = TableHeader::new(file, table.names());
    let mut plan = plan(file, &header, request)?;
    set_numbers(&mut table, &plan.columns(), request.decimal);
    let mut groups: BTreeMap<GroupKey, PointGroup> = BTreeMap::new();
    let mut first_rows: BTreeMap<PointKey, FirstRow> = BTreeMap::new();
    let mut is_first = true;
    while let Some(line) = table.next_row()? {
        if std::mem::take(&mut is_first) && take_units(&table, &mut plan.columns_mut()) {
            continue;
        }
        let mut row = RowReader { file, line, table: &mut table, header: &header };
        let width = row.table.cell_count();
        if width != header.names.len() {
            let problem = format!("the row has {}, its header {}", counted(width, "cell"), header.names.len());
            return Err(row.wrong(None, problem, "restore the row or take it out"));
        }
        let key = row.key(&plan)?;
        let (measurement, power_ratio) = row.measurement(&plan, request)?;
        let run = plan.run.map(|index| row.table.text(index).to_owned()).filter(|run| !run.is_empty());
        let place = [measurement.setting.to_bits(), measurement.second_setting.map_or(0, f64::to_bits)];
        let is_simulated = plan.origin.is_some_and(|index| row.table.text(index).eq_ignore_ascii_case("simulated"));
        let cells: Vec<String> = (0..width).map(|index| row.table.text(index).to_owned()).collect();
        if let Some((first, other)) = first_rows.get(&(key.clone(), place, run.clone())) {
            let (knob, setting) = (request.knobs.first.name(), measurement.setting);
            let second = request.knobs.second.zip(measurement.second_setting);
            let second = second.map_or(String::new(), |(knob, value)| format!(" with {} {value}", knob.name()));
            let twice = run.as_ref().map_or(String::new(), |run| format!(" in run {run}"));
            let problem = format!("{knob} {setting}{second} of {} is there twice{twice} (first in line {first})", name(&key));
            return Err(row.wrong(Some(&plan.setting.name), problem, plan.describe_difference(&header, request, other, &cells)));
        }
        first_rows.insert((key.clone(), place, run.clone()), (line, cells));
        let group = groups.entry(key).or_default();
        group.power_ratios.extend(power_ratio.map(|ratio| (line, ratio)));
        group.measurements.push(measurement);
        group.runs.push(run);
        group.energy_is_used = plan.energy.is_some();
        group.is_simulated |= is_simulated;
        group.boards = plan.energy.as_ref().or(plan.power.as_ref()).map_or(1, |column| column.indices.len());
    }
    if groups.is_empty() {
        return Err(TableError::new(
            file,
            "there is no row below the header",
            "measure some settings first, or name another file",
        ));
    }
    let mut cells_of: BTreeMap<GroupKey, BTreeMap<u64, Vec<String>>> = BTreeMap::new();
    for ((key, ..), (line, cells)) in first_rows {
        cells_of.entry(key).or_default().insert(line, cells);
    }
    for (key, group) in &mut groups {
        if let Some(cells) = cells_of.get(key) {
            group.mixed = plan.mixed_columns(&header, &group.measurements, cells);
        }
    }
    Ok(groups)
}

/// Returns the values of a column, of which each row's is given, and by how much the figures differ by them at equal settings;
/// `None` if they do not.
fn mixed_values(rows: &[(&str, &SettingMeasurement)]) -> Option<(Vec<String>, f64)> {
    type RunsOfSetting<'a> = Vec<(&'a str, &'a SettingMeasurement)>;
    let mut settings: BTreeMap<(u64, Option<u64>), RunsOfSetting<'_>> = BTreeMap::new();
    let mut values: BTreeSet<&str> = BTreeSet::new();
    for &(value, row) in rows {
        settings.entry((row.setting.to_bits(), row.second_setting.map(f64::to_bits))).or_default().push((value, row));
        values.insert(value);
    }
    if !(2..=FEW_VALUES).contains(&values.len()) || values.contains("") {
        return None;
    }
    let figures: [fn(&SettingMeasurement) -> f64; 2] = [|row| row.duration_seconds, |row| row.energy_joules];
    let difference = |figure: fn(&SettingMeasurement) -> f64| {
        // Each row's distance from the mean of its setting.
        let mut distances: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for same in settings.values().filter(|same| same.iter().any(|(value, _)| *value != same[0].0)) {
            let mean = same.iter().map(|(_, row)| figure(row).ln()).sum::<f64>() / same.len() as f64;
            for (value, row) in same {
                distances.entry(*value).or_default().push(figure(row).ln() - mean);
            }
        }
        if distances.len() < 2 || distances.values().any(|own| own.len() < 2) {
            return None;
        }
        let all: f64 = distances.values().flatten().map(|distance| distance * distance).sum();
        let means: Vec<(f64, f64)> =
            distances.values().map(|own| (own.len() as f64, own.iter().sum::<f64>() / own.len() as f64)).collect();
        let explained: f64 = means.iter().map(|(count, mean)| count * mean * mean).sum();
        let lowest = means.iter().map(|(_, mean)| *mean).fold(f64::INFINITY, f64::min);
        let highest = means.iter().map(|(_, mean)| *mean).fold(f64::NEG_INFINITY, f64::max);
        let ratio = (highest - lowest).exp() - 1.0;
        (explained >= EXPLAINED_RATIO * all && ratio > DIFFERENCE_RATIO).then_some(ratio)
    };
    let ratio = figures.into_iter().filter_map(difference).max_by(f64::total_cmp)?;
    Some((values.into_iter().map(str::to_owned).collect(), ratio))
}

impl PointColumns {
    /// Returns the columns that hold numbers.
    fn columns(&self) -> Vec<&FieldColumn> {
        let needed = [Some(&self.setting), self.second.as_ref(), Some(&self.duration)];
        let figures = [self.energy.as_ref(), self.power.as_ref(), self.compared.as_ref()];
        needed.into_iter().chain(figures).flatten().collect()
    }

    fn columns_mut(&mut self) -> Vec<&mut FieldColumn> {
        let needed = [Some(&mut self.setting), self.second.as_mut(), Some(&mut self.duration)];
        let figures = [self.energy.as_mut(), self.power.as_mut(), self.compared.as_mut()];
        needed.into_iter().chain(figures).flatten().collect()
    }

    /// Returns whether a column is used for numbers, groups or runs.
    fn is_used(&self, index: usize) -> bool {
        let is_number = self.columns().iter().any(|column| column.indices.contains(&index));
        is_number || self.keys.iter().any(|(_, key)| *key == index) || self.run == Some(index)
    }

    /// Returns the columns that are not used, and by whose values the figures of a group differ.
    fn mixed_columns(
        &self,
        header: &TableHeader<'_>,
        measurements: &[SettingMeasurement],
        cells: &BTreeMap<u64, Vec<String>>,
    ) -> Vec<MixedColumn> {
        let is_free = |index: &usize| {
            let name = &header.names[*index];
            !self.is_used(*index) && self.origin != Some(*index) && !name.is_empty() && !reads_as_run(name)
        };
        let mut mixed = Vec::new();
        for index in (0..header.names.len()).filter(is_free) {
            let rows: Vec<(&str, &SettingMeasurement)> =
                measurements.iter().filter_map(|row| Some((cells.get(&row.row)?.get(index)?.as_str(), row))).collect();
            let name = header.names[index].clone();
            mixed.extend(mixed_values(&rows).map(|(values, difference_ratio)| MixedColumn { name, values, difference_ratio }));
        }
        mixed
    }

    /// Describes how to distinguish two rows of one setting: by a column that is not used yet and differs.
    fn describe_difference(&self, header: &TableHeader<'_>, request: &TuningRequest, one: &[String], other: &[String]) -> String {
        let differs = |index: &usize| !self.is_used(*index) && one[*index] != other[*index] && !header.names[*index].is_empty();
        let indices: Vec<usize> = (0..one.len().min(other.len())).filter(differs).collect();
        let free: Vec<&str> = indices.iter().map(|index| header.names[*index].as_str()).collect();
        let Some(first) = free.first() else {
            return "keep one of the two rows, or distinguish runs by a column of its own: --map run=COLUMN".to_owned();
        };
        if let Some(run) = free.iter().find(|name| reads_as_run(name) && !reads_as_setting(name)) {
            return format!("map column {} to the run: --map {}", quote(run), shell_quote(&format!("run={run}")));
        }
        let by = |name: &str| request.by.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(",");
        // Runs of different GPUs, batch sizes or clocks are no repetitions.
        let settings: Vec<usize> = indices.into_iter().filter(|index| reads_as_setting(&header.names[*index])).collect();
        let texts = settings.iter().find(|index| one[**index].parse::<f64>().is_err());
        if let Some(setting) = texts.or(settings.first()).map(|index| header.names[*index].as_str()) {
            return format!("group by what differs (--by {}), or keep the rows of one", shell_quote(&by(setting)));
        }
        let by = by(first);
        let run = shell_quote(&format!("run={first}"));
        format!("group by what differs (--by {}), or map it to the run (--map {run})", shell_quote(&by))
    }
}

/// Words in the name of a column that distinguishes runs.
const RUN_NAMES: [&str; 6] = ["run", "repeat", "repetition", "trial", "seed", "iteration"];

/// Parts of the name of a column that shows what ran, on what, or at which setting.
const SETTING_NAMES: [&str; 14] = [
    "gpu",
    "device",
    "board",
    "batch",
    "clock",
    "mhz",
    "model",
    "limit",
    "precision",
    "dataset",
    "workload",
    "application",
    "network",
    "kernel",
];

/// Short words of such a name.
const SETTING_WORDS: [&str; 2] = ["app", "job"];

/// Parts of the names of readings, which differ from run to run.
const READING_NAMES: [&str; 4] = ["util", "temp", "active", "usage"];

fn reads_as_run(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    RUN_NAMES.iter().any(|run| name.contains(run))
}

fn reads_as_setting(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_word = || name.split(|c: char| !c.is_alphanumeric()).any(|word| SETTING_WORDS.contains(&word));
    let is_reading = READING_NAMES.iter().any(|reading| name.contains(reading));
    !is_reading && (SETTING_NAMES.iter().any(|setting| name.contains(setting)) || is_word())
}

/// Returns a group's name, for people.
pub fn name(key: &GroupKey) -> String {
    if key.is_empty() {
        return "all rows".to_owned();
    }
    key.iter().map(|(column, value)| format!("{column}={value}")).collect::<Vec<_>>().join(" ")
}

fn plan(file: &str, header: &TableHeader<'_>, request: &TuningRequest) -> Result<PointColumns, TableError> {
    let maps = &request.maps;
    for map in maps {
        let grouped = request.by.contains(&map.field);
        if !grouped && !FIELDS.contains(&map.field.as_str()) && !crate::epochs::FIELDS.contains(&map.field.as_str()) {
            let remedy = format!("known are {}, and the names given to --by", FIELDS.join(", "));
            return Err(TableError::new(file, format!("--map names the unknown field {:?}", map.field), remedy));
        }
    }
    let needed = |field: &str, dimension| {
        let remedy = format!("name its column: --map {field}=COLUMN[:UNIT]");
        header.field(maps, field, dimension)?.ok_or_else(|| header.missing(field, &remedy))
    };
    let dimension = |knob: TuningKnob| match knob {
        TuningKnob::SmClockMhz | TuningKnob::MemoryClockMhz => Dimension::Clock,
        TuningKnob::PowerLimitWatts => Dimension::Power,
        TuningKnob::BatchSize => Dimension::Count,
    };
    if let Some(by) = request.by.iter().find(|by| request.knobs.all().any(|knob| knob.name() == **by)) {
        return Err(TableError::new(
            file,
            format!("{by} is turned, so rows are not grouped by it"),
            "take it out of --by or of --knob",
        ));
    }
    let mut keys = Vec::new();
    for by in &request.by {
        let column = maps.iter().rfind(|map| map.field == *by).map_or(by.as_str(), |map| map.columns.as_str());
        keys.push((by.clone(), header.named(column, "--by takes columns of the table, separated by commas")?));
    }
    let energy = header.field(maps, "energy_joules", Dimension::Energy)?;
    let power = header.field(maps, "mean_power_watts", Dimension::Power)?;
    if energy.is_none() && power.is_none() {
        let problem = format!("neither energy_joules nor mean_power_watts is there (there are: {})", header.names.join(", "));
        return Err(TableError::new(file, problem, "name the column of one: --map energy_joules=COLUMN[:UNIT]"));
    }
    // A field that the user mapped is meant; one that only happens to be there must not overrule it.
    let mapped = |field: &str| maps.iter().any(|map| map.field == field);
    let (power_is_meant, energy_is_meant) = (mapped("mean_power_watts"), mapped("energy_joules"));
    let (energy, power, compared) = match (energy, power) {
        (Some(energy), Some(power)) if energy_is_meant && !power_is_meant => (Some(energy), None, Some(power)),
        (Some(energy), Some(power)) if power_is_meant && !energy_is_meant => (None, Some(power), Some(energy)),
        (energy, power) => (energy, power, None),
    };
    let run = match maps.iter().rfind(|map| map.field == "run") {
        Some(map) => Some(header.named(&map.columns, "name it as --map run=COLUMN")?),
        None => header.names.iter().position(|head| head.eq_ignore_ascii_case("run")),
    };
    Ok(PointColumns {
        keys,
        setting: needed(request.knobs.first.name(), dimension(request.knobs.first))?,
        second: request.knobs.second.map(|knob| needed(knob.name(), dimension(knob))).transpose()?,
        duration: needed("duration_seconds", Dimension::Duration)?,
        energy,
        power,
        compared,
        run,
        origin: header.names.iter().position(|head| head.eq_ignore_ascii_case("origin")),
    })
}

struct RowReader<'a, 't> {
    file: &'a str,
    line: u64,
    table: &'a mut TableRows<'t>,
    header: &'a TableHeader<'a>,
}

impl RowReader<'_, '_> {
    fn wrong(&self, column: Option<&str>, problem: impl Into<String>, remedy: impl Into<String>) -> TableError {
        let error = TableError::new(self.file, problem, remedy).line(self.line);
        match column {
            Some(column) => error.column(column),
            None => error,
        }
    }

    fn key(&self, plan: &PointColumns) -> Result<GroupKey, TableError> {
        plan.keys.iter().map(|(name, index)| self.text(*index).map(|value| (name.clone(), value.to_owned()))).collect()
    }

    fn text(&self, index: usize) -> Result<&str, TableError> {
        let value = self.table.text(index);
        if value.is_empty() {
            let remedy = "fill it in, take the row out, or do not group by it";
            return Err(self.wrong(Some(&self.header.names[index]), "the cell is empty, but rows are grouped by it", remedy));
        }
        Ok(value)
    }

    /// Returns the sum of a column's cells in the field's own unit, above 0.
    fn number(&mut self, column: &FieldColumn) -> Result<f64, TableError> {
        let mut sum = 0.0;
        for &index in &column.indices {
            let head = &self.header.names[index];
            let found = column.number(self.table, index).map_err(|(problem, remedy)| self.wrong(Some(head), problem, remedy))?;
            let value =
                found.ok_or_else(|| self.wrong(Some(head), "there is no value", "measure it again, or take the row out"))?;
            if value <= 0.0 {
                return Err(self.wrong(Some(head), format!("{value} is not above 0"), "correct the cell, or take the row out"));
            }
            sum += value;
        }
        Ok(sum)
    }

    /// Returns the measurement, and power × time over energy if both are known.
    fn measurement(
        &mut self,
        plan: &PointColumns,
        request: &TuningRequest,
    ) -> Result<(SettingMeasurement, Option<f64>), TableError> {
        let setting = self.number(&plan.setting)?;
        self.possible_setting(&plan.setting, request.knobs.first, setting, request)?;
        let second_setting = match (&plan.second, request.knobs.second) {
            (Some(column), Some(knob)) => {
                let value = self.number(column)?;
                self.possible_setting(column, knob, value, request)?;
                Some(value)
            }
            _ => None,
        };
        let duration_seconds = self.number(&plan.duration)?;
        let energy = plan.energy.as_ref().map(|column| self.number(column).map(|value| (column, value))).transpose()?;
        let power = plan.power.as_ref().map(|column| self.number(column).map(|value| (column, value))).transpose()?;
        // A value that is only compared may be absent.
        let compared = plan.compared.as_ref().and_then(|column| self.number(column).ok());
        let (column, joules, ratio) = match (energy, power) {
            (Some((column, joules)), None) => (column, joules, compared.map(|watts| watts * duration_seconds / joules)),
            (None, Some((column, watts))) => {
                let joules = watts * duration_seconds;
                (column, joules, compared.map(|other| joules / other))
            }
            (Some((column, joules)), Some((power, watts))) => {
                if (watts * duration_seconds / joules - 1.0).abs() > AGREE_RATIO {
                    let problem = format!(
                        "{joules} J and {watts} W over {duration_seconds} s do not agree ({} J)",
                        watts * duration_seconds
                    );
                    let map =
                        |column: &FieldColumn| format!("--map {}", shell_quote(&format!("{}={}", column.field, column.name)));
                    let remedy = format!(
                        "check the units of {:?} and {:?}, or use one of them: {} or {}",
                        column.name,
                        power.name,
                        map(column),
                        map(power)
                    );
                    return Err(self.wrong(Some(&column.name), problem, remedy));
                }
                (column, joules, Some(watts * duration_seconds / joules))
            }
            (None, None) => return Err(self.wrong(None, "neither energy nor power is there", "name a column with --map")),
        };
        let watts = joules / duration_seconds;
        if watts > request.max_power_watts {
            let problem = format!("{watts:.0} W on average, but no GPU draws more than {:.0} W", request.max_power_watts);
            let units = if column.dimension == Dimension::Energy { &["mJ", "uJ"] } else { &["mW", "uW"] };
            let unit = column.likely_unit(watts, units);
            let remedy = format!(
                "if it is in {unit}, give {}; for several GPUs together raise the limit: --max-power-watts {}",
                column.map_with_unit(unit),
                round_up(watts)
            );
            return Err(self.wrong(Some(&column.name), problem, remedy));
        }
        if watts < WATTS_MIN {
            let problem = format!("{watts:.4} W on average, but a GPU draws more than {WATTS_MIN} W");
            let units = if column.dimension == Dimension::Energy { &["kJ", "Wh", "kWh", "MJ"][..] } else { &["kW"] };
            let unit = column.likely_unit(watts, units);
            let in_milliseconds = plan.duration.map_with_unit("ms");
            let remedy =
                format!("if it is in {unit}, or the time in ms, give {}, or {in_milliseconds}", column.map_with_unit(unit));
            return Err(self.wrong(Some(&column.name), problem, remedy));
        }
        Ok((SettingMeasurement { setting, second_setting, duration_seconds, energy_joules: joules, row: self.line }, ratio))
    }

    fn possible_setting(
        &self,
        column: &FieldColumn,
        knob: TuningKnob,
        setting: f64,
        request: &TuningRequest,
    ) -> Result<(), TableError> {
        let (least, most) = match knob {
            TuningKnob::BatchSize if setting >= 1.0 && setting.fract() == 0.0 => return Ok(()),
            TuningKnob::BatchSize => {
                let problem = format!("{setting} is not a batch size");
                return Err(self.wrong(Some(&column.name), problem, "correct the cell, or name another column with --map"));
            }
            TuningKnob::SmClockMhz => CLOCKS_MHZ.into_inner(),
            TuningKnob::MemoryClockMhz => MEMORY_CLOCKS_MHZ.into_inner(),
            TuningKnob::PowerLimitWatts => (10.0, request.max_power_watts),
        };
        if (least..=most).contains(&setting) {
            return Ok(());
        }
        let (name, unit) = (knob.name(), knob.unit());
        let problem = format!("{setting} {unit} cannot be a {name}");
        // Find a unit in which the same figure would be possible.
        let figure = setting / column.unit.map_or(1.0, |unit| unit.to_base_unit(1.0));
        let candidates = if column.dimension == Dimension::Clock { ["GHz", "kHz", "Hz"] } else { ["mW", "kW", "W"] };
        let fits = |unit: &&str| Unit::by_name(unit).is_some_and(|unit| (least..=most).contains(&unit.to_base_unit(figure)));
        let remedy = match candidates.iter().find(|unit| fits(unit)) {
            Some(unit) => format!("if it is in {unit}, give {}", column.map_with_unit(unit)),
            None => {
                format!("settings of {name} are {least} to {most} {unit}: correct the cell, or name another column with --map")
            }
        };
        Err(self.wrong(Some(&column.name), problem, remedy))
    }
}

/// Returns the next number of one digit and zeros.
fn round_up(value: f64) -> f64 {
    let scale = 10_f64.powf(value.log10().floor());
    (value / scale).ceil() * scale
}
