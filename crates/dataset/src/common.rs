//! Columns that both tables have.

use crate::column::{About, Get, Role, Spec};
use crate::history::Became;

/// A row that says what became of its decision.
pub(crate) trait Outcomes {
    fn became(&self) -> &Became;
}

/// The columns of a layout: names begin with the first text, descriptions with the second. A macro, because names are texts that
/// are joined at compile time.
macro_rules! layout_columns {
    ($prefix:literal, $what:literal, $role:expr, $layout:path) => {
        [
            Spec {
                name: concat!($prefix, "_replicas"),
                role: $role,
                about: About::Text(concat!($what, ": number of training processes.")),
                get: Get::Int(|row| $layout(row)?.replicas.map(i64::from)),
            },
            Spec {
                name: concat!($prefix, "_mps_thread_percentage"),
                role: $role,
                about: About::Text(concat!($what, ": MPS thread percentage of each process, 1 to 100.")),
                get: Get::Int(|row| $layout(row)?.mps_thread_percentage.map(i64::from)),
            },
            Spec {
                name: concat!($prefix, "_world_size"),
                role: $role,
                about: About::Text(concat!($what, ": WORLD_SIZE.")),
                get: Get::Int(|row| $layout(row)?.world_size.map(i64::from)),
            },
            Spec {
                name: concat!($prefix, "_local_world_size"),
                role: $role,
                about: About::Text(concat!($what, ": LOCAL_WORLD_SIZE: processes that share a GPU.")),
                get: Get::Int(|row| $layout(row)?.local_world_size.map(i64::from)),
            },
            Spec {
                name: concat!($prefix, "_power_limit_watts"),
                role: $role,
                about: About::Text(concat!(
                    $what,
                    ": power cap of each GPU in watts; unknown where the board's own limit holds."
                )),
                get: Get::Float(|row| $layout(row)?.power_limit_watts),
            },
            Spec {
                name: concat!($prefix, "_sm_clock_mhz"),
                role: $role,
                about: About::Text(concat!($what, ": upper bound of the SM clock of each GPU in MHz.")),
                get: Get::Float(|row| $layout(row)?.sm_clock_mhz),
            },
            Spec {
                name: concat!($prefix, "_precision"),
                role: $role,
                about: About::Text(concat!($what, ": precision that the job was asked for; unknown where it was not asked.")),
                get: Get::Text(|row| Some($layout(row)?.precision?.to_string())),
            },
            Spec {
                name: concat!($prefix, "_frozen_prefix_layers"),
                role: $role,
                about: About::Text(concat!($what, ": layers that the job was asked to freeze, from the input side.")),
                get: Get::Int(|row| $layout(row)?.frozen_prefix_layers.map(i64::from)),
            },
        ]
    };
}
pub(crate) use layout_columns;

/// What became of a row's decision.
pub(crate) fn outcome_columns<R: Outcomes>() -> [Spec<R>; 6] {
    let spec = |name, about, get| Spec { name, role: Role::Outcome, about: About::Text(about), get };
    [
        spec(
            "outcome",
            "What became of the decision last: applied, ready, refused, recommended, rolled_back, failed; unknown where the actuator never answered.",
            Get::Text(|row: &R| row.became().outcome.clone()),
        ),
        spec("outcome_reason", "Why, in words.", Get::Text(|row: &R| row.became().reason.clone())),
        spec("applied_time", "When the change was written.", Get::Time(|row: &R| row.became().applied)),
        spec("ready_time", "When its rollout was complete.", Get::Time(|row: &R| row.became().ready)),
        spec("rolled_back_time", "When it was taken back for not becoming ready.", Get::Time(|row: &R| row.became().rolled_back)),
        spec("downtime_seconds", "From the change to readiness.", Get::Float(|row: &R| row.became().downtime_seconds)),
    ]
}
