use std::str::FromStr;
use std::time::Duration;

use eadt_schemas::EventTime;
use eadt_schemas::v1::Meter;

use crate::{Format, ImportError, TimeFormat};

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

/// What the recording itself does not say.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// `namespace/name`. Default: from the recording's pod labels where it has any, else `imported/` and the first
    /// file's name without its ending.
    pub workload: Option<String>,
    /// What the columns of a table are; format `csv` only.
    pub maps: Vec<FieldMap>,
    /// How the time column is written; formats `csv` and `nvidia-smi`.
    pub time_format: Option<TimeFormat>,
    /// Time between two rows where rows have no time; formats `dcgmi` and `csv`.
    pub interval: Option<Duration>,
    /// Time of the first row where rows have no time. Default: 2000-01-01T00:00:00Z.
    pub start: Option<EventTime>,
    /// Name of the collector in the events. Default: `import-` and the format.
    pub collector: Option<String>,
    /// What the power and energy figures cover. Default: node for `mlperf`, wall for `mlperf-inference`, else gpu.
    pub meter: Option<Meter>,
}

impl Options {
    /// 2000-01-01T00:00:00Z, so that an import without times is the same every time.
    pub(crate) const DEFAULT_START: EventTime = EventTime::from_micros(946_684_800_000_000);

    pub(crate) fn check(&self, format: Format) -> Result<(), ImportError> {
        let wrong = |problem: String, remedy: &str| Err(ImportError::whole("", problem, remedy));
        if let Some(workload) = &self.workload {
            let parts = workload.split_once('/');
            let good = parts.is_some_and(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains('/'));
            if !good || workload.len() > 253 || workload.chars().any(char::is_control) {
                return wrong(format!("--workload {workload:?} is not namespace/name"), "say for example --workload lab/bert");
            }
        }
        if let Some(collector) = &self.collector
            && (collector.is_empty() || collector.len() > 253 || collector.chars().any(char::is_control))
        {
            return wrong(format!("collector name {collector:?} is empty, too long or has control characters"), "choose another");
        }
        if !self.maps.is_empty() && format != Format::Csv {
            return wrong(format!("--map is for csv; {format} knows its own columns"), "leave it out, or import as csv");
        }
        if self.maps.is_empty() && format == Format::Csv {
            return wrong("csv needs to be told what its columns are".to_owned(), "say for example --map power_watts=Power:mW");
        }
        if self.time_format.is_some() && !matches!(format, Format::Csv | Format::NvidiaSmi) {
            return wrong(format!("--time-format is for csv and nvidia-smi, not for {format}"), "leave it out");
        }
        match (self.interval, format) {
            (None, Format::Dcgmi) => wrong(
                "dcgmi logs have no times".to_owned(),
                "say the interval that dcgmi dmon ran with (-d, in ms) as --interval, for example --interval 20ms",
            ),
            (Some(_), Format::Mlperf | Format::MlperfInference | Format::NvidiaSmi | Format::Prometheus) => {
                wrong(format!("--interval is for recordings without times; {format} has its own"), "leave it out")
            }
            (Some(interval), _) if interval < Duration::from_micros(1) || interval > Duration::from_hours(24) => {
                wrong(format!("--interval {interval:?} is not between 1us and 24h"), "say for example --interval 20ms")
            }
            _ => Ok(()),
        }
    }
}

/// `FIELD=COLUMN[:UNIT]`: which column fills which field.
///
/// FIELD is a [`crate::Field`] by name (`power_watts`, `samples_total`, …); `time`, `device`, `node`, `gpu_model`
/// (texts); or `samples`, `tokens`, `steps`, `energy_joules`: what one row adds to the counter of that name, where
/// COLUMN `*` stands for one per row. The column is found by its name as the header has it, or by `#` and its number
/// from 1. Without UNIT the header's own (`Power [mW]`) or the field's is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldMap {
    pub(crate) field: String,
    /// As given, unit included: only the header tells whether the last colon separates one.
    pub(crate) column: String,
}

impl FromStr for FieldMap {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        let (field, column) = text
            .split_once('=')
            .map(|(field, column)| (field.trim(), column.trim()))
            .filter(|(field, column)| !field.is_empty() && !column.is_empty())
            .ok_or_else(|| InvalidOption::new(format!("--map {text:?} is not FIELD=COLUMN[:UNIT]")))?;
        let known = crate::csv_table::known_targets();
        if !known.contains(&field) {
            let problem = format!("--map: unknown field {field:?}; known: {}", known.join(", "));
            return Err(InvalidOption::new(problem));
        }
        Ok(Self { field: field.to_owned(), column: column.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_maps() {
        let map: FieldMap = "power_watts=Power:mW".parse().unwrap();
        assert_eq!((map.field.as_str(), map.column.as_str()), ("power_watts", "Power:mW"));
        assert!("power=Power".parse::<FieldMap>().unwrap_err().to_string().contains("power_watts"));
        for text in ["power_watts", "=x", "power_watts="] {
            assert!(text.parse::<FieldMap>().is_err(), "{text}");
        }
    }

    #[test]
    fn refuses_what_a_format_cannot_use() {
        let refused = |options: Options, format| options.check(format).unwrap_err().to_string();
        assert!(refused(Options::default(), Format::Dcgmi).contains("--interval 20ms"));
        assert!(refused(Options::default(), Format::Csv).contains("--map"));
        let options = Options { interval: Some(Duration::from_secs(1)), ..Options::default() };
        assert!(refused(options, Format::Mlperf).contains("has its own"));
        for workload in ["bert", "a/b/c", "/x", "x/"] {
            let options = Options { workload: Some(workload.to_owned()), ..Options::default() };
            assert!(refused(options, Format::Mlperf).contains("namespace/name"), "{workload}");
        }
    }
}
