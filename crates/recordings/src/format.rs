use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::InvalidOption;

/// Format of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordingFormat {
    /// `MLPerf` Training: one `:::MLLOG` console log, and the power logs of the nodes.
    Mlperf,
    /// `MLPerf` Inference: `mlperf_log_detail.txt` and the power analyser's `spl.txt`.
    MlperfInference,
    /// The text that `dcgmi dmon` writes. It has no times: needs an interval.
    Dcgmi,
    /// `nvidia-smi --query-gpu=timestamp,… --format=csv`, with or without `nounits`.
    NvidiaSmi,
    /// Prometheus: the JSON of `query_range`, or text exposition or `OpenMetrics` with a time stamp on every sample.
    Prometheus,
    /// Any table; `--map` defines its columns.
    Csv,
}

impl RecordingFormat {
    pub const ALL: [Self; 6] = [Self::Mlperf, Self::MlperfInference, Self::Dcgmi, Self::NvidiaSmi, Self::Prometheus, Self::Csv];

    /// Returns the name on the command line, `mlperf-inference` for example.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mlperf => "mlperf",
            Self::MlperfInference => "mlperf-inference",
            Self::Dcgmi => "dcgmi",
            Self::NvidiaSmi => "nvidia-smi",
            Self::Prometheus => "prometheus",
            Self::Csv => "csv",
        }
    }

    /// Returns true if the format is one of `MLPerf`, whose power logs are of one meter each.
    pub(crate) const fn is_mlperf(self) -> bool {
        matches!(self, Self::Mlperf | Self::MlperfInference)
    }

    /// Returns true if a board has one reading at a time: several that differ are of several boards. Series of Prometheus settle
    /// that by their labels, and `dcgmi` has no times.
    pub(crate) const fn has_one_reading_a_time(self) -> bool {
        !matches!(self, Self::Prometheus | Self::Dcgmi)
    }

    /// Returns all names, as `mlperf, dcgmi`.
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for RecordingFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RecordingFormat {
    type Err = InvalidOption;

    fn from_str(text: &str) -> Result<Self, InvalidOption> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| InvalidOption::new(format!("unknown recording format {text:?}; known: {}", Self::names())))
    }
}
