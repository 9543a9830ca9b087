//! Columns that both tables have.

use crate::column::{CellGetter, ColumnRole, ColumnSpec, DescriptionSource};
use crate::history::OutcomeSummary;

/// A row with the outcome of its decision.
pub(crate) trait OutcomeRow {
    fn outcome(&self) -> &OutcomeSummary;
}

/// The columns of a layout: names begin with the first text, descriptions with the second. A macro, because names are texts that
/// are joined at compile time.
macro_rules! layout_columns {
    ($prefix:literal, $what:literal, $role:expr, $layout:path) => {
        [
            ColumnSpec {
                name: concat!($prefix, "_replicas"),
                role: $role,
                about: DescriptionSource::Text(concat!($what, ": number of training processes.")),
                get: CellGetter::Int(|row| $layout(row)?.replicas.map(i64::from)),
            },
            ColumnSpec {
                name: concat!($prefix, "_mps_thread_percentage"),
                role: $role,
                about: DescriptionSource::Text(concat!($what, ": MPS thread percentage of each process, 1 to 100.")),
                get: CellGetter::Int(|row| $layout(row)?.mps_thread_percentage.map(i64::from)),
            },
            ColumnSpec {
                name: concat!($prefix, "_world_size"),
                role: $role,
                about: DescriptionSource::Text(concat!($what, ": WORLD_SIZE.")),
                get: CellGetter::Int(|row| $layout(row)?.world_size.map(i64::from)),
            },
            ColumnSpec {
                name: concat!($prefix, "_local_world_size"),
                role: $role,
                about: DescriptionSource::Text(concat!($what, ": LOCAL_WORLD_SIZE: processes that share a GPU.")),
                get: CellGetter::Int(|row| $layout(row)?.local_world_size.map(i64::from)),
            },
            ColumnSpec {
                name: concat!($prefix, "_power_limit_watts"),
                role: $role,
                about: DescriptionSource::Text(concat!(
                    $what,
                    ": power cap of each GPU in watts; unknown where the board's own limit holds."
                )),
                get: CellGetter::Float(|row| $layout(row)?.power_limit_watts),
            },
            ColumnSpec {
                name: concat!($prefix, "_sm_clock_mhz"),
                role: $role,
                about: DescriptionSource::Text(concat!($what, ": upper bound of the SM clock of each GPU in MHz.")),
                get: CellGetter::Float(|row| $layout(row)?.sm_clock_mhz),
            },
            ColumnSpec {
                name: concat!($prefix, "_precision"),
                role: $role,
                about: DescriptionSource::Text(concat!(
                    $what,
                    ": precision that the job was asked for; unknown where it was not asked."
                )),
                get: CellGetter::Text(|row| Some($layout(row)?.precision?.to_string())),
            },
            ColumnSpec {
                name: concat!($prefix, "_frozen_prefix_layers"),
                role: $role,
                about: DescriptionSource::Text(concat!($what, ": layers that the job was asked to freeze, from the input side.")),
                get: CellGetter::Int(|row| $layout(row)?.frozen_prefix_layers.map(i64::from)),
            },
        ]
    };
}
pub(crate) use layout_columns;

/// Returns the columns with the outcome of a row's decision.
pub(crate) fn outcome_columns<R: OutcomeRow>() -> [ColumnSpec<R>; 6] {
    let spec = |name, about, get| ColumnSpec { name, role: ColumnRole::Outcome, about: DescriptionSource::Text(about), get };
    [
        spec(
            "outcome",
            "What became of the decision last: applied, ready, refused, recommended, rolled_back, failed; unknown where the actuator never answered.",
            CellGetter::Text(|row: &R| row.outcome().outcome.clone()),
        ),
        spec("outcome_reason", "Why, in words.", CellGetter::Text(|row: &R| row.outcome().reason.clone())),
        spec("applied_time", "When the change was written.", CellGetter::Time(|row: &R| row.outcome().applied)),
        spec("ready_time", "When its rollout was complete.", CellGetter::Time(|row: &R| row.outcome().ready)),
        spec(
            "rolled_back_time",
            "When it was taken back for not becoming ready.",
            CellGetter::Time(|row: &R| row.outcome().rolled_back),
        ),
        spec("downtime_seconds", "From the change to readiness.", CellGetter::Float(|row: &R| row.outcome().downtime_seconds)),
    ]
}
