use std::str::FromStr;
use std::time::Duration;

use eadt_schemas::EventTime;
use eadt_schemas::v1::Meter;

use crate::{Date, DecimalMark, ImportError, NamedTimeZone, RecordingFormat, TimeFormat};

/// A setting of an import that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct InvalidOption {
    problem: String,
}

impl InvalidOption {
    pub(crate) fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into() }
    }
}

/// Meaning of several rows of one board and moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SameTimeRule {
    /// Readings of one board: gauges become their mean, counters the last one.
    Mean,
    /// Readings of several boards without an id, in the same order each time.
    Boards,
}

/// Meaning of several files of a table, if boards have names that only their node knows, such as an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSetKind {
    /// Each file is a node with boards of its own.
    Nodes,
    /// Parts of one record, such as rotated logs.
    Parts,
}

/// A finding that stops an import unless it is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptedFinding {
    /// Rows are in any order: a clock that goes back is none.
    Unordered,
    /// The amounts that rows add never fall, as a running total does.
    GrowingSteps,
    /// Rows contain others, by their time or as their sum, or overlap: each counts in full.
    NestedRows,
    /// A device has, or follows, the sum of the figures of others: all count.
    Sums,
    /// A running total falls again and again. The count before each restart near zero is added.
    FallingTotals,
}

impl AcceptedFinding {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unordered => "unordered",
            Self::GrowingSteps => "growing-steps",
            Self::NestedRows => "nested-rows",
            Self::Sums => "sums",
            Self::FallingTotals => "falling-totals",
        }
    }
}

/// Facts that the recording itself does not contain.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// `namespace/name`. Default: from the recording's pod labels where it has any, else `imported/` and the first
    /// file's name without its ending.
    pub workload: Option<String>,
    /// Mapping of a table's columns to fields; format `csv` only.
    pub maps: Vec<FieldMap>,
    /// Format of the time column; formats `csv` and `nvidia-smi`.
    pub time_format: Option<TimeFormat>,
    /// The zone of times without one; formats `csv` and `nvidia-smi`. Default: UTC.
    pub time_zone: Option<NamedTimeZone>,
    /// Day of the first row where times are times of day only; format `csv`.
    pub date: Option<Date>,
    /// Separator of a number's whole part and its fraction; formats `csv` and `nvidia-smi`. Default: as the numbers show.
    pub decimal: Option<DecimalMark>,
    /// Meaning of several rows of one moment. Default: rows that differ are refused.
    pub same_time: Option<SameTimeRule>,
    /// Meaning of several files. Default: nodes if their times overlap, else parts.
    pub files_are: Option<FileSetKind>,
    /// Findings that do not stop the import.
    pub accept: Vec<AcceptedFinding>,
    /// Time between two rows where rows have no time; formats `dcgmi` and `csv`.
    pub interval: Option<Duration>,
    /// Time of the first row where rows have no time. Default: 2000-01-01T00:00:00Z.
    pub start: Option<EventTime>,
    /// Name of the collector in the events. Default: `import-` and the format.
    pub collector: Option<String>,
    /// Scope of the power and energy figures. Default: node for `mlperf`, wall for `mlperf-inference`, else gpu.
    pub meter: Option<Meter>,
    /// Refused rows after which an import may end before its files do; for tests, which have not the time for as many.
    #[doc(hidden)]
    pub most_refused_rows: Option<u64>,
    /// Boards after which an import ends; for tests.
    #[doc(hidden)]
    pub most_boards: Option<usize>,
}

impl ImportOptions {
    /// 2000-01-01T00:00:00Z, so that an import without times is the same every time.
    pub(crate) const DEFAULT_START: EventTime = EventTime::from_micros(946_684_800_000_000);

    pub(crate) fn check(&self, format: RecordingFormat) -> Result<(), ImportError> {
        let wrong = |problem: String, remedy: &str| Err(ImportError::in_file("", problem, remedy));
        if let Some(workload) = &self.workload
            && let Err(invalid) = check_workload(workload)
        {
            return wrong(format!("invalid value '{workload}' for '--workload <NS/NAME>'"), &invalid.to_string());
        }
        if let Some(collector) = &self.collector
            && (collector.is_empty() || collector.len() > 253 || collector.chars().any(char::is_control))
        {
            return wrong(format!("collector name {collector:?} is empty, too long or has control characters"), "choose another");
        }
        if !self.maps.is_empty() && format != RecordingFormat::Csv {
            return wrong(format!("--map is for csv; {format} has columns of its own"), "leave it out, or import as csv");
        }
        if self.maps.is_empty() && format == RecordingFormat::Csv {
            return wrong("csv needs a map of its columns".to_owned(), "for example --map power_watts=Power:mW");
        }
        if self.time_format.is_some() && !matches!(format, RecordingFormat::Csv | RecordingFormat::NvidiaSmi) {
            return wrong(format!("--time-format is for csv and nvidia-smi, not for {format}"), "leave it out");
        }
        if self.time_zone.is_some()
            && !matches!(format, RecordingFormat::Csv | RecordingFormat::NvidiaSmi | RecordingFormat::MlperfInference)
        {
            return wrong(
                format!("--time-zone is for csv, nvidia-smi and mlperf-inference; times of {format} are no local times"),
                "leave it out",
            );
        }
        if self.date.is_some() && format != RecordingFormat::Csv {
            return wrong(
                format!("--date is for csv with times of day only; times of {format} have their dates"),
                "leave it out",
            );
        }
        if self.decimal.is_some() && !matches!(format, RecordingFormat::Csv | RecordingFormat::NvidiaSmi) {
            return wrong(format!("--decimal is for csv and nvidia-smi, not for {format}"), "leave it out");
        }
        match (self.interval, format) {
            (None, RecordingFormat::Dcgmi) => wrong(
                "dcgmi logs have no times".to_owned(),
                "give the interval that dcgmi dmon ran with (-d, in ms) as --interval, for example --interval 20ms",
            ),
            (
                Some(_),
                RecordingFormat::Mlperf
                | RecordingFormat::MlperfInference
                | RecordingFormat::NvidiaSmi
                | RecordingFormat::Prometheus,
            ) => wrong(format!("--interval is for recordings without times; {format} has its own"), "leave it out"),
            (Some(interval), _) if interval < Duration::from_micros(1) || interval > Duration::from_hours(24) => {
                wrong(format!("--interval {interval:?} is not between 1us and 24h"), "for example --interval 20ms")
            }
            _ => Ok(()),
        }
    }
}

/// Reads `--date`, a day such as `2025-02-03`.
pub fn parse_day(text: &str) -> Result<Date, InvalidOption> {
    Date::strptime("%Y-%m-%d", text.trim()).map_err(|_| InvalidOption::new("give a day such as 2025-02-03"))
}

/// Returns an error if a text is not `namespace/name`, each of letters, digits, `-`, `_` and `.`.
pub fn check_workload(text: &str) -> Result<(), InvalidOption> {
    let is_part = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let parts = text.split_once('/').filter(|(namespace, name)| is_part(namespace) && is_part(name));
    if parts.is_some() && text.len() <= MAX_WORKLOAD_BYTES {
        return Ok(());
    }
    Err(InvalidOption::new(format!(
        "give namespace/name, for example lab/bert: letters, digits, '-', '_' and '.' only, at most {MAX_WORKLOAD_BYTES} in all"
    )))
}

const MAX_WORKLOAD_BYTES: usize = 253;

/// `FIELD=COLUMN[:UNIT]`: which column fills which field.
///
/// FIELD is a [`crate::ReadingField`] by name (`power_watts`, `samples_total`, …); `time`, `device`, `node`, `gpu_model`
/// (texts); or `samples`, `tokens`, `steps`, `energy_joules`: the amount that one row adds to the counter of that name, with
/// COLUMN `*` for one per row. The column is found by its name as the header has it, or by `#` and its number
/// from 1. Without UNIT the cell's own (`250 W`), the header's (`Power [mW]`) or the field's is taken.
///
/// A table with a column for each board takes `FIELD[BOARD]=COLUMN`; `gpu0=COLUMN` is short for `power_watts[gpu0]=COLUMN`; and
/// `FIELD=gpu.{n}.power` maps each column of this form to a board, named by the texts in place of the braces. `FIELD=A+B` is a
/// sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldMap {
    pub(crate) field: String,
    /// The board that a column of a wide table is about.
    pub(crate) board: Option<String>,
    /// Column as given, unit included: only the header shows whether the last colon separates one.
    pub(crate) column: String,
}

impl FromStr for FieldMap {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let (target, column) = text
            .split_once('=')
            .map(|(target, column)| (target.trim(), column.trim()))
            .filter(|(target, column)| !target.is_empty() && !column.is_empty())
            .ok_or_else(|| InvalidOption::new(format!("--map {text:?} is not FIELD=COLUMN[:UNIT]")))?;
        let (field, board) = match target.strip_suffix(']').and_then(|target| target.split_once('[')) {
            Some((field, board)) => (field.trim(), Some(board.trim())),
            None if is_gpu_name(target) => ("power_watts", Some(target)),
            None => (target, None),
        };
        let known = crate::csv_table::known_targets();
        if !known.contains(&field) {
            let problem = format!("--map: unknown field {field:?}; known: {}", known.join(", "));
            return Err(InvalidOption::new(problem));
        }
        if let Some(board) = board
            && (!crate::csv_table::is_of_a_board(field) || board.is_empty() || board.chars().any(char::is_control))
        {
            let problem = format!("--map {text:?}: {field:?} is no figure of a board; a board is named as in power_watts[gpu0]");
            return Err(InvalidOption::new(problem));
        }
        Ok(Self { field: field.to_owned(), board: board.map(str::to_owned), column: column.to_owned() })
    }
}

/// Returns true for `gpu0`, `gpu-1`, `GPU 2`.
fn is_gpu_name(text: &str) -> bool {
    let rest = text.get(..3).filter(|start| start.eq_ignore_ascii_case("gpu")).and_then(|_| text.get(3..));
    let digits = rest.map(|rest| rest.trim_start_matches(['-', '_', ' ']));
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_maps() {
        let map: FieldMap = "power_watts=Power:mW".parse().unwrap();
        assert_eq!((map.field.as_str(), map.board.as_deref(), map.column.as_str()), ("power_watts", None, "Power:mW"));
        for (text, board) in
            [("power_watts[gpu0]=A", "gpu0"), ("gpu1=A", "gpu1"), ("GPU-2=A", "GPU-2"), ("power_watts[x y]=A", "x y")]
        {
            let map: FieldMap = text.parse().unwrap();
            assert_eq!(
                (map.field.as_str(), map.board.as_deref(), map.column.as_str()),
                ("power_watts", Some(board), "A"),
                "{text}"
            );
        }
        for text in ["loss[gpu0]=A", "time[a]=b", "power_watts[]=A"] {
            assert!(text.parse::<FieldMap>().unwrap_err().to_string().contains("no figure of a board"), "{text}");
        }
        assert!("power=Power".parse::<FieldMap>().unwrap_err().to_string().contains("power_watts"));
        for text in ["power_watts", "=x", "power_watts="] {
            assert!(text.parse::<FieldMap>().is_err(), "{text}");
        }
    }

    #[test]
    fn refuses_what_a_format_cannot_use() {
        let refused = |options: ImportOptions, format| options.check(format).unwrap_err().to_string();
        assert!(refused(ImportOptions::default(), RecordingFormat::Dcgmi).contains("--interval 20ms"));
        assert!(refused(ImportOptions::default(), RecordingFormat::Csv).contains("--map"));
        let options = ImportOptions { interval: Some(Duration::from_secs(1)), ..ImportOptions::default() };
        assert!(refused(options, RecordingFormat::Mlperf).contains("has its own"));
        let options = ImportOptions { date: Some("2025-02-03".parse().unwrap()), ..ImportOptions::default() };
        assert!(refused(options, RecordingFormat::NvidiaSmi).contains("have their dates"));
        let options = ImportOptions { time_zone: Some(NamedTimeZone::utc()), ..ImportOptions::default() };
        assert!(refused(options, RecordingFormat::Mlperf).contains("no local times"));
        for workload in ["bert", "a/b/c", "/x", "x/", "A B/c", "a/b c", "a/b\n", "a//b", "a/ü", "a/b,c"] {
            let options = ImportOptions { workload: Some(workload.to_owned()), ..ImportOptions::default() };
            assert!(refused(options, RecordingFormat::Mlperf).contains("namespace/name"), "{workload}");
        }
    }
}
