//! The table of decisions.

use eadt_schemas::v1::Decision;

use crate::column::{About, Get, Role, Spec, Table, table};
use crate::history::{Became, History, Mean};
use crate::words::word;

/// One decision with what was known before it and what came out.
pub(crate) struct Row<'a> {
    decision: &'a Decision,
    before: Mean,
    since_last_change_seconds: Option<f64>,
    changes_in_24h: usize,
    became: Became,
    after: Mean,
    judged: Option<bool>,
}

const DAY_SECONDS: f64 = 86_400.0;

pub(crate) fn rows(history: &History) -> impl Iterator<Item = Row<'_>> {
    history.decisions().map(|decision| {
        let became = history.became(&decision.id);
        let ages = || history.applied_before(decision.time).map(|at| decision.time.seconds_since(at));
        Row {
            decision,
            before: history.before(decision),
            since_last_change_seconds: ages().min_by(f64::total_cmp),
            changes_in_24h: ages().filter(|age| *age <= DAY_SECONDS).count(),
            after: history.after(&became),
            became,
            judged: history.judged(&decision.id),
        }
    })
}

pub(crate) fn build(rows: &[Row<'_>]) -> Table {
    table("decisions", "one decision, `maintain` included", &specs(), rows)
}

fn evidence(decision: &Decision) -> String {
    serde_json::to_string(&decision.evidence).expect("a map of numbers is JSON")
}

fn specs<'a>() -> Vec<Spec<Row<'a>>> {
    vec![
        Spec {
            name: "decision_id",
            role: Role::Key,
            about: About::Text("The decision's deterministic id."),
            get: Get::Text(|row| Some(row.decision.id.clone())),
        },
        Spec {
            name: "workload",
            role: Role::Key,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision.workload.clone())),
        },
        Spec {
            name: "decision_time",
            role: Role::Key,
            about: About::Text("End of the window that led to it: nothing later is among the features."),
            get: Get::Time(|row| Some(row.decision.time)),
        },
        Spec { name: "origin", role: Role::Key, about: About::Decision, get: Get::Text(|row| Some(word(row.decision.origin))) },
        Spec {
            name: "controller",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision.controller.clone())),
        },
        Spec {
            name: "controller_version",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision.controller_version.clone())),
        },
        Spec {
            name: "action",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(word(row.decision.action))),
        },
        Spec {
            name: "reason",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(row.decision.reason.clone())),
        },
        Spec {
            name: "from_replicas",
            role: Role::Decision,
            about: About::Text("Layout that the decision starts from: number of training processes."),
            get: Get::Int(|row| row.decision.from.replicas.map(i64::from)),
        },
        Spec {
            name: "from_mps_thread_percentage",
            role: Role::Decision,
            about: About::Text("Layout that the decision starts from: MPS thread percentage of each process, 1 to 100."),
            get: Get::Int(|row| row.decision.from.mps_thread_percentage.map(i64::from)),
        },
        Spec {
            name: "from_world_size",
            role: Role::Decision,
            about: About::Text("Layout that the decision starts from: WORLD_SIZE."),
            get: Get::Int(|row| row.decision.from.world_size.map(i64::from)),
        },
        Spec {
            name: "from_local_world_size",
            role: Role::Decision,
            about: About::Text("Layout that the decision starts from: LOCAL_WORLD_SIZE: processes that share a GPU."),
            get: Get::Int(|row| row.decision.from.local_world_size.map(i64::from)),
        },
        Spec {
            name: "from_power_limit_watts",
            role: Role::Decision,
            about: About::Text(
                "Layout that the decision starts from: power cap of each GPU in watts; unknown where the board's own limit holds.",
            ),
            get: Get::Float(|row| row.decision.from.power_limit_watts),
        },
        Spec {
            name: "from_sm_clock_mhz",
            role: Role::Decision,
            about: About::Text("Layout that the decision starts from: upper bound of the SM clock of each GPU in MHz."),
            get: Get::Float(|row| row.decision.from.sm_clock_mhz),
        },
        Spec {
            name: "to_replicas",
            role: Role::Decision,
            about: About::Text("Layout that is wanted: number of training processes."),
            get: Get::Int(|row| row.decision.to.replicas.map(i64::from)),
        },
        Spec {
            name: "to_mps_thread_percentage",
            role: Role::Decision,
            about: About::Text("Layout that is wanted: MPS thread percentage of each process, 1 to 100."),
            get: Get::Int(|row| row.decision.to.mps_thread_percentage.map(i64::from)),
        },
        Spec {
            name: "to_world_size",
            role: Role::Decision,
            about: About::Text("Layout that is wanted: WORLD_SIZE."),
            get: Get::Int(|row| row.decision.to.world_size.map(i64::from)),
        },
        Spec {
            name: "to_local_world_size",
            role: Role::Decision,
            about: About::Text("Layout that is wanted: LOCAL_WORLD_SIZE: processes that share a GPU."),
            get: Get::Int(|row| row.decision.to.local_world_size.map(i64::from)),
        },
        Spec {
            name: "to_power_limit_watts",
            role: Role::Decision,
            about: About::Text(
                "Layout that is wanted: power cap of each GPU in watts; unknown where the board's own limit holds.",
            ),
            get: Get::Float(|row| row.decision.to.power_limit_watts),
        },
        Spec {
            name: "to_sm_clock_mhz",
            role: Role::Decision,
            about: About::Text("Layout that is wanted: upper bound of the SM clock of each GPU in MHz."),
            get: Get::Float(|row| row.decision.to.sm_clock_mhz),
        },
        Spec {
            name: "generation",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Int(|row| row.decision.generation.map(|g| g as i64)),
        },
        Spec {
            name: "restarts",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Bool(|row| Some(row.decision.restarts)),
        },
        Spec {
            name: "concerns",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| row.decision.concerns.clone()),
        },
        Spec {
            name: "validation",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| Some(word(row.decision.validation))),
        },
        Spec { name: "expires", role: Role::Decision, about: About::Decision, get: Get::Time(|row| Some(row.decision.expires)) },
        Spec { name: "hold_until", role: Role::Decision, about: About::Decision, get: Get::Time(|row| row.decision.hold_until) },
        Spec {
            name: "model_version",
            role: Role::Decision,
            about: About::Decision,
            get: Get::Text(|row| row.decision.model_version.clone()),
        },
        Spec {
            name: "evidence",
            role: Role::Decision,
            about: About::Text(
                "The numbers that led to the decision, what was expected of it included, as a JSON object with units in the names.",
            ),
            get: Get::Text(|row| Some(evidence(row.decision))),
        },
        Spec {
            name: "before_windows",
            role: Role::Feature,
            about: About::Text(
                "Usable windows of the same layout just before the decision that the next columns are made of, at most 3 of the last 60.",
            ),
            get: Get::Int(|row| Some(row.before.windows as i64)),
        },
        Spec {
            name: "before_joules_per_sample",
            role: Role::Feature,
            about: About::Text("Over those windows: energy over samples, both summed, in J/sample."),
            get: Get::Float(|row| row.before.joules_per_sample),
        },
        Spec {
            name: "before_samples_per_second",
            role: Role::Feature,
            about: About::Text("Over those windows: mean, in samples/s."),
            get: Get::Float(|row| row.before.samples_per_second),
        },
        Spec {
            name: "before_power_watts",
            role: Role::Feature,
            about: About::Text("Over those windows: mean, in W."),
            get: Get::Float(|row| row.before.power_watts),
        },
        Spec {
            name: "seconds_since_last_change",
            role: Role::Feature,
            about: About::Text("Time since a decision was last written to the workload."),
            get: Get::Float(|row| row.since_last_change_seconds),
        },
        Spec {
            name: "changes_in_24h",
            role: Role::Feature,
            about: About::Text("Changes written to the workload in the 24 h before the decision."),
            get: Get::Int(|row| Some(row.changes_in_24h as i64)),
        },
        Spec {
            name: "outcome",
            role: Role::Outcome,
            about: About::Text(
                "What became of the decision last: applied, ready, refused, recommended, rolled_back, failed; unknown where the actuator never answered.",
            ),
            get: Get::Text(|row| row.became.outcome.clone()),
        },
        Spec {
            name: "outcome_reason",
            role: Role::Outcome,
            about: About::Text("Why, in words."),
            get: Get::Text(|row| row.became.reason.clone()),
        },
        Spec {
            name: "applied_time",
            role: Role::Outcome,
            about: About::Text("When the change was written."),
            get: Get::Time(|row| row.became.applied),
        },
        Spec {
            name: "ready_time",
            role: Role::Outcome,
            about: About::Text("When its rollout was complete."),
            get: Get::Time(|row| row.became.ready),
        },
        Spec {
            name: "rolled_back_time",
            role: Role::Outcome,
            about: About::Text("When it was taken back for not becoming ready."),
            get: Get::Time(|row| row.became.rolled_back),
        },
        Spec {
            name: "downtime_seconds",
            role: Role::Outcome,
            about: About::Text("From the change to readiness."),
            get: Get::Float(|row| row.became.downtime_seconds),
        },
        Spec {
            name: "label_after_windows",
            role: Role::Label,
            about: About::Text(
                "Usable windows after readiness (one window of warm-up left out, same layout) that the next columns are made of, at most 3.",
            ),
            get: Get::Int(|row| Some(row.after.windows as i64)),
        },
        Spec {
            name: "label_after_joules_per_sample",
            role: Role::Label,
            about: About::Text("Over those windows: energy over samples, both summed, in J/sample."),
            get: Get::Float(|row| row.after.joules_per_sample),
        },
        Spec {
            name: "label_after_samples_per_second",
            role: Role::Label,
            about: About::Text("Over those windows: mean, in samples/s."),
            get: Get::Float(|row| row.after.samples_per_second),
        },
        Spec {
            name: "label_after_power_watts",
            role: Role::Label,
            about: About::Text("Over those windows: mean, in W."),
            get: Get::Float(|row| row.after.power_watts),
        },
        Spec {
            name: "label_saving_ratio",
            role: Role::Label,
            about: About::Text(
                "1 − J/sample after ÷ before; negative where the change cost energy. A change of the work itself is not told apart.",
            ),
            get: Get::Float(|row| Some(1.0 - row.after.joules_per_sample? / row.before.joules_per_sample?)),
        },
        Spec {
            name: "label_throughput_ratio",
            role: Role::Label,
            about: About::Text("Samples/s after ÷ before."),
            get: Get::Float(|row| Some(row.after.samples_per_second? / row.before.samples_per_second?)),
        },
        Spec {
            name: "label_kept",
            role: Role::Label,
            about: About::Text(
                "The controller's own verdict: true where it kept the change, false where it took it back; unknown where it never judged it.",
            ),
            get: Get::Bool(|row| row.judged),
        },
    ]
}
