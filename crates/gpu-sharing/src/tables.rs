//! Measurements as CSV tables: what a workload does alone, and what several do together.
//!
//! Alone, a row a measurement: `workload, gpu_model, mps_thread_percentage, samples_per_second, power_watts`, and, if they are
//! known, `sm_clock_mhz`, the counters of [`ProfileMetric`], `run` and `origin`. Rows that differ in `run` only are repetitions
//! and combined by their median. A row with 0 % and 0 samples/s is the GPU's idle power.
//!
//! Together, a row a workload of a co-run: `co_run, workload, mps_thread_percentage, samples_per_second, power_watts` and, if
//! it was held down, `sm_clock_mhz`, and `origin`; rows of one co-run have the same `co_run`, power and clock.
//!
//! `origin` is `measured` (also if the cell is empty or the column absent), `imported` or `simulated`. A table has the weakest
//! origin of its rows.

use std::collections::BTreeMap;
use std::fmt::Write;

use eadt_schemas::v1::Origin;

use crate::{CoRun, CoRunTenant, GpuMeasurements, MetricValues, ProfileError, ProfileMetric, SoloPoint, SoloProfile};

/// The reason why a table is refused. Lines are counted as an editor counts them: the header is line 1.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    #[error("{file} lacks the column {column}; it has {has}")]
    Missing { file: String, column: &'static str, has: String },
    #[error("{file} has the column {column}, which is not known here: remove it, or name it as one of {known}")]
    Unknown { file: String, column: String, known: String },
    #[error("{file} has the column {column} twice: which one counts?")]
    Twice { file: String, column: String },
    #[error("{file} is no table")]
    Csv { file: String, source: csv::Error },
    #[error("{file}, line {line}, column {column}: {value:?} is no {expected}")]
    Cell { file: String, line: u64, column: String, value: String, expected: &'static str },
    #[error("{file}, line {line}: {detail}")]
    Row { file: String, line: u64, detail: String },
    #[error("{file}, line {line}: a profile cannot be made of it")]
    Profile { file: String, line: u64, source: ProfileError },
    #[error("{file} has no rows")]
    Empty { file: String },
}

/// A table of workloads alone.
#[derive(Debug, Clone, PartialEq)]
pub struct SoloTable {
    /// Profiles by name of the workload.
    pub profiles: Vec<SoloProfile>,
    /// Median of the idle rows; absent if there are none.
    pub idle_watts: Option<f64>,
    /// The weakest origin of the rows.
    pub origin: Origin,
}

/// A table of co-runs.
#[derive(Debug, Clone, PartialEq)]
pub struct CoRunTable {
    /// Co-runs in the order of the table.
    pub runs: Vec<CoRun>,
    /// The weakest origin of the rows.
    pub origin: Origin,
}

const SOLO: [&str; 5] = ["workload", "gpu_model", "mps_thread_percentage", "samples_per_second", "power_watts"];
const TOGETHER: [&str; 5] = ["co_run", "workload", "mps_thread_percentage", "samples_per_second", "power_watts"];
const CLOCK: &str = "sm_clock_mhz";
const RUN: &str = "run";
const ORIGIN: &str = "origin";

/// A row of the table alone, before repetitions are combined.
type SoloReading = (u64, SoloPoint);
/// Workload, percentage, bits of the clock.
type SoloPointKey = (String, u32, Option<u64>);

/// Reads a table of workloads alone. `file` is what errors call it.
pub fn read_solo(file: &str, text: &str) -> Result<SoloTable, TableError> {
    let metrics: Vec<&str> = ProfileMetric::ALL.iter().map(|metric| metric.name()).collect();
    let table = CsvTable::read(file, text, &SOLO, &[&[CLOCK, RUN, ORIGIN][..], &metrics].concat())?;
    let (mut idle, mut models, mut origin) = (Vec::new(), BTreeMap::new(), Origin::Measured);
    let mut readings: BTreeMap<SoloPointKey, Vec<SoloReading>> = BTreeMap::new();
    let repeated = table.column(RUN).is_some();
    for row in &table.rows {
        origin = origin.max(table.origin(row)?);
        let workload = table.text(row, "workload")?;
        let percentage = table.percentage(row)?;
        let clock = table.optional(row, CLOCK)?;
        let (rate, watts) = (table.number(row, "samples_per_second")?, table.number(row, "power_watts")?);
        if percentage == 0 {
            if rate != 0.0 {
                let detail = "a row with 0 % is the idle GPU and has 0 samples_per_second".to_owned();
                return Err(TableError::Row { file: file.to_owned(), line: row.line, detail });
            }
            if !(watts > 0.0 && watts.is_finite()) {
                return Err(table.cell(row, "power_watts", "idle power in watts, above 0"));
            }
            idle.push(watts);
            continue;
        }
        let model = table.text(row, "gpu_model")?;
        let known = models.entry(workload.clone()).or_insert_with(|| model.clone());
        if *known != model {
            let detail = format!("workload {workload} was measured on {model}, and on {known} before: keep GPU models apart");
            return Err(TableError::Row { file: file.to_owned(), line: row.line, detail });
        }
        let mut counters = MetricValues::default();
        for metric in ProfileMetric::ALL {
            counters.set(metric, table.optional(row, metric.name())?);
        }
        let point = SoloPoint {
            mps_thread_percentage: percentage,
            sm_clock_mhz: clock,
            samples_per_second: rate,
            power_watts: watts,
            counters,
        };
        let place = readings.entry((workload, percentage, clock.map(f64::to_bits))).or_default();
        if let Some((line, _)) = place.first().filter(|_| !repeated) {
            let detail =
                format!("the same workload, share and clock as in line {line}: distinguish repetitions by a column {RUN}");
            return Err(TableError::Row { file: file.to_owned(), line: row.line, detail });
        }
        place.push((row.line, point));
    }
    let mut points: BTreeMap<String, Vec<SoloReading>> = BTreeMap::new();
    for ((workload, ..), readings) in readings {
        points.entry(workload).or_default().push((readings[0].0, combined(&readings)));
    }
    let profiles = points.into_iter().map(|(workload, points)| {
        let line = points[0].0;
        let (model, points) = (models[&workload].clone(), points.into_iter().map(|(_, point)| point).collect());
        SoloProfile::new(workload, model, points).map_err(|source| TableError::Profile { file: file.to_owned(), line, source })
    });
    Ok(SoloTable { profiles: profiles.collect::<Result<_, _>>()?, idle_watts: median(&mut idle), origin })
}

/// Reads a table of co-runs. `file` is what errors call it.
pub fn read_co_runs(file: &str, text: &str) -> Result<CoRunTable, TableError> {
    let table = CsvTable::read(file, text, &TOGETHER, &[CLOCK, ORIGIN])?;
    let (mut order, mut origin) = (Vec::new(), Origin::Measured);
    let mut runs: BTreeMap<String, CoRun> = BTreeMap::new();
    for row in &table.rows {
        origin = origin.max(table.origin(row)?);
        let name = table.text(row, "co_run")?;
        let (clock, watts) = (table.optional(row, CLOCK)?, table.number(row, "power_watts")?);
        let tenant = CoRunTenant {
            workload: table.text(row, "workload")?,
            mps_thread_percentage: table.percentage(row)?,
            samples_per_second: table.number(row, "samples_per_second")?,
        };
        let run = runs.entry(name.clone()).or_insert_with(|| {
            order.push(name.clone());
            CoRun { tenants: Vec::new(), sm_clock_mhz: clock, power_watts: watts }
        });
        if run.power_watts != watts || run.sm_clock_mhz != clock {
            let detail =
                format!("co-run {name} has another power or clock than in its line before: both are the GPU's, once a co-run");
            return Err(TableError::Row { file: file.to_owned(), line: row.line, detail });
        }
        run.tenants.push(tenant);
    }
    Ok(CoRunTable { runs: order.iter().map(|name| runs[name].clone()).collect(), origin })
}

/// Returns the profiles as a table, with the idle power. Every row names `origin`.
pub fn write_solo(measurements: &GpuMeasurements, origin: Origin) -> String {
    let points = || measurements.profiles().values().flat_map(|profile| profile.points().map(move |point| (profile, point)));
    let clocked = points().any(|(_, point)| point.sm_clock_mhz.is_some());
    let metrics: Vec<ProfileMetric> = ProfileMetric::ALL
        .into_iter()
        .filter(|metric| points().any(|(_, point)| point.counters.get(*metric).is_some()))
        .collect();
    let mut text = SOLO.join(",");
    let clock = |text: &mut String, mhz: Option<f64>| {
        if clocked {
            text.push(',');
            number(text, mhz);
        }
    };
    if clocked {
        write!(text, ",{CLOCK}").expect("writing to a String cannot fail");
    }
    for metric in &metrics {
        write!(text, ",{}", metric.name()).expect("writing to a String cannot fail");
    }
    write!(text, ",{ORIGIN}").expect("writing to a String cannot fail");
    let model = quoted(measurements.gpu_model());
    write!(text, "\nidle,{model},0,0,{}", measurements.idle_watts()).expect("writing to a String cannot fail");
    clock(&mut text, None);
    text.extend(metrics.iter().map(|_| ','));
    writeln!(text, ",{}", origin_name(origin)).expect("writing to a String cannot fail");
    for (profile, point) in points() {
        let SoloPoint { mps_thread_percentage, samples_per_second, power_watts, .. } = point;
        let name = quoted(profile.workload());
        write!(text, "{name},{model},{mps_thread_percentage},{samples_per_second},{power_watts}")
            .expect("writing to a String cannot fail");
        clock(&mut text, point.sm_clock_mhz);
        for metric in &metrics {
            text.push(',');
            number(&mut text, point.counters.get(*metric));
        }
        writeln!(text, ",{}", origin_name(origin)).expect("writing to a String cannot fail");
    }
    text
}

/// Returns the co-runs as a table. Every row names `origin`.
pub fn write_co_runs(measurements: &GpuMeasurements, origin: Origin) -> String {
    let clocked = measurements.runs().iter().any(|run| run.sm_clock_mhz.is_some());
    let mut text = TOGETHER.join(",");
    text.push_str(if clocked { ",sm_clock_mhz,origin\n" } else { ",origin\n" });
    for (number_of_run, run) in measurements.runs().iter().enumerate() {
        for CoRunTenant { workload, mps_thread_percentage, samples_per_second } in &run.tenants {
            let (name, watts) = (quoted(workload), run.power_watts);
            write!(text, "{number_of_run},{name},{mps_thread_percentage},{samples_per_second},{watts}")
                .expect("writing to a String cannot fail");
            if clocked {
                text.push(',');
                number(&mut text, run.sm_clock_mhz);
            }
            writeln!(text, ",{}", origin_name(origin)).expect("writing to a String cannot fail");
        }
    }
    text
}

/// Returns the origin as a cell of a table.
const fn origin_name(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "measured",
        Origin::Imported => "imported",
        Origin::Simulated => "simulated",
    }
}

fn number(text: &mut String, value: Option<f64>) {
    if let Some(value) = value {
        write!(text, "{value}").expect("writing to a String cannot fail");
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Repetitions of a measurement as one.
fn combined(readings: &[SoloReading]) -> SoloPoint {
    let of = |value: &dyn Fn(&SoloPoint) -> Option<f64>| {
        let values: Option<Vec<f64>> = readings.iter().map(|(_, point)| value(point)).collect();
        values.and_then(|mut values| median(&mut values))
    };
    let first = readings[0].1;
    SoloPoint {
        samples_per_second: of(&|point| Some(point.samples_per_second)).unwrap_or(first.samples_per_second),
        power_watts: of(&|point| Some(point.power_watts)).unwrap_or(first.power_watts),
        counters: MetricValues::of(|metric| of(&|point| point.counters.get(metric))),
        ..first
    }
}

pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

struct TableRow {
    line: u64,
    cells: csv::StringRecord,
}

struct CsvTable<'a> {
    file: &'a str,
    columns: Vec<String>,
    rows: Vec<TableRow>,
}

impl<'a> CsvTable<'a> {
    fn read(file: &'a str, text: &str, needed: &[&'static str], optional: &[&str]) -> Result<Self, TableError> {
        let csv_error = |source| TableError::Csv { file: file.to_owned(), source };
        let text = text.trim_start_matches('\u{feff}');
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).comment(Some(b'#')).from_reader(text.as_bytes());
        let columns: Vec<String> = reader.headers().map_err(csv_error)?.iter().map(str::to_owned).collect();
        for (i, column) in columns.iter().enumerate() {
            if !needed.iter().chain(optional).any(|known| known == column) {
                let known = needed.iter().chain(optional).copied().collect::<Vec<_>>().join(", ");
                return Err(TableError::Unknown { file: file.to_owned(), column: column.clone(), known });
            }
            if columns[..i].contains(column) {
                return Err(TableError::Twice { file: file.to_owned(), column: column.clone() });
            }
        }
        if let Some(column) = needed.iter().find(|needed| !columns.iter().any(|column| column == *needed)) {
            return Err(TableError::Missing { file: file.to_owned(), column, has: columns.join(", ") });
        }
        let mut rows = Vec::new();
        for record in reader.records() {
            let cells = record.map_err(csv_error)?;
            rows.push(TableRow { line: cells.position().map_or(0, csv::Position::line), cells });
        }
        if rows.is_empty() {
            return Err(TableError::Empty { file: file.to_owned() });
        }
        Ok(Self { file, columns, rows })
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column == name)
    }

    fn value<'r>(&self, row: &'r TableRow, name: &str) -> &'r str {
        self.column(name).and_then(|column| row.cells.get(column)).unwrap_or_default()
    }

    fn cell(&self, row: &TableRow, column: &str, expected: &'static str) -> TableError {
        let (file, value) = (self.file.to_owned(), self.value(row, column).to_owned());
        TableError::Cell { file, line: row.line, column: column.to_owned(), value, expected }
    }

    fn text(&self, row: &TableRow, name: &str) -> Result<String, TableError> {
        match self.value(row, name) {
            "" => Err(self.cell(row, name, "name")),
            text => Ok(text.to_owned()),
        }
    }

    fn number(&self, row: &TableRow, name: &str) -> Result<f64, TableError> {
        let number = self.value(row, name).parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| self.cell(row, name, "finite number"))
    }

    fn optional(&self, row: &TableRow, name: &str) -> Result<Option<f64>, TableError> {
        if self.value(row, name).is_empty() { Ok(None) } else { self.number(row, name).map(Some) }
    }

    fn origin(&self, row: &TableRow) -> Result<Origin, TableError> {
        let value = self.value(row, ORIGIN);
        let known = [Origin::Measured, Origin::Imported, Origin::Simulated];
        match known.into_iter().find(|origin| value.eq_ignore_ascii_case(origin_name(*origin))) {
            Some(origin) => Ok(origin),
            None if value.is_empty() => Ok(Origin::Measured),
            None => Err(self.cell(row, ORIGIN, "origin: measured, imported or simulated")),
        }
    }

    fn percentage(&self, row: &TableRow) -> Result<u32, TableError> {
        let name = "mps_thread_percentage";
        let percentage = self.number(row, name)?;
        if percentage.fract() == 0.0 && (0.0..=100.0).contains(&percentage) {
            return Ok(percentage as u32);
        }
        Err(self.cell(row, name, "whole percentage from 0 to 100"))
    }
}
