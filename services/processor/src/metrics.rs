//! Metrics of the processor; names are prefixed with `eadt_processor_`.

use std::sync::atomic::AtomicU64;

use eadt_core::PartitionTally;
use eadt_core::partition::ModelsIgnored;
use eadt_core::power_budget::PowerBudgetTally;
use eadt_gpu_sharing::fold::GpuSharingTally;
use eadt_schemas::Topic;
use eadt_schemas::v1::DeadLetterReason;
use eadt_service::MetricsRegistry;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TopicLabels {
    topic: &'static str,
}

#[derive(Debug)]
pub struct ProcessorMetrics {
    events: Counter,
    duplicates: Counter,
    late: Counter,
    stale: Counter,
    late_tables: Counter,
    models: Counter,
    models_ignored: Family<ReasonLabels, Counter>,
    pub windows: Counter,
    pub decisions: Counter,
    dead_letters: Family<ReasonLabels, Counter>,
    misplaced_records: Family<TopicLabels, Counter>,
    pub heartbeats: Counter,
    pub gaps: Counter,
    pub restarts: Counter,
    pub commit_seconds: Histogram,
    pub state_bytes: Counter,
    pub input_bytes: Counter,
    pub buffered_bytes: Gauge,
    pub partitions: Gauge,
    pub workloads: Gauge,
    pub sources: Gauge,
}

/// Metrics that every stage has that decides about several workloads together.
#[derive(Debug)]
pub struct JointMetrics {
    active: Gauge,
    pub members: Gauge,
    evaluations: Counter,
    late: Counter,
    pub decisions: Counter,
    pub gaps: Counter,
    pub restarts: Counter,
    pub commit_seconds: Histogram,
}

/// Returns the help of a metric by its name after the prefix and its meaning.
type HelpText = fn(name: &str, meaning: &str) -> String;

impl JointMetrics {
    fn new() -> Self {
        Self {
            active: Gauge::default(),
            members: Gauge::default(),
            evaluations: Counter::default(),
            late: Counter::default(),
            decisions: Counter::default(),
            gaps: Counter::default(),
            restarts: Counter::default(),
            commit_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 15)),
        }
    }

    /// Registers the metrics whose names have not changed.
    fn register(&self, registry: &mut Registry, help: HelpText, members: &str) {
        registry.register("members", help("members", members), self.members.clone());
        for (name, meaning, counter) in [
            ("late", "Events that came after the evaluation that they belonged to", &self.late),
            ("decisions", "Decisions written, maintain included", &self.decisions),
            ("gaps", "Input positions that retention deleted, or whose topic was recreated", &self.gaps),
            ("restarts", "Bus sessions restarted after an error", &self.restarts),
        ] {
            registry.register(name, help(name, meaning), counter.clone());
        }
        let commit = help("commit_seconds", "Time of an atomic step");
        registry.register_with_unit("commit", commit, Unit::Seconds, self.commit_seconds.clone());
    }

    /// Registers the metrics that were renamed, under their present names.
    fn register_renamed(&self, registry: &mut Registry, stage: &str, evaluations: &str) {
        registry.register("active", format!("1 where this processor runs {stage}, else 0"), self.active.clone());
        registry.register("evaluations", evaluations, self.evaluations.clone());
    }

    /// Registers the metrics that were renamed, under their old names. `prefix` is that of the present names.
    fn register_old_names(&self, registry: &mut Registry, prefix: &str) {
        registry.register("runs_here", format!("Old name of {prefix}active"), self.active.clone());
        registry.register("looks", format!("Old name of {prefix}evaluations_total"), self.evaluations.clone());
    }

    fn set_running(&self, here: bool) {
        self.active.set(i64::from(here));
        if !here {
            self.members.set(0);
        }
    }
}

/// Metrics of the joint stage of the power budget; names are prefixed with `eadt_power_budget_`.
#[derive(Debug)]
pub struct PowerBudgetMetrics {
    pub joint: JointMetrics,
    infeasible: Counter,
    budget_watts: Gauge<f64, AtomicU64>,
    exposed_watts: Gauge<f64, AtomicU64>,
}

impl PowerBudgetMetrics {
    pub fn new(metrics: &MetricsRegistry) -> Self {
        metrics.register("power_budget", |registry| {
            let this = Self {
                joint: JointMetrics::new(),
                infeasible: Counter::default(),
                budget_watts: Gauge::default(),
                exposed_watts: Gauge::default(),
            };
            this.joint.register(registry, |_, meaning| meaning.to_owned(), "Workloads that share the power budget");
            let evaluations = "Ends of windows at which the budget was allocated";
            this.joint.register_renamed(registry, "the joint stage of the power budget", evaluations);
            this.joint.register_old_names(registry, "eadt_power_budget_");
            let infeasible = "Evaluations at which the sum of the lowest caps was above the budget";
            registry.register("infeasible", infeasible, this.infeasible.clone());
            registry.register("short", "Old name of eadt_power_budget_infeasible_total", this.infeasible.clone());
            let watts = || Unit::Other("watts".into());
            registry.register_with_unit(
                "budget",
                "The budget; 0 where this processor does not run the stage",
                watts(),
                this.budget_watts.clone(),
            );
            registry.register_with_unit(
                "exposed",
                "Power of all GPUs if every cap that may come into force did and were reached; NaN: a cap is not known",
                watts(),
                this.exposed_watts.clone(),
            );
            this
        })
    }

    /// Sets whether the stage runs here, and with which budget.
    pub fn set_running(&self, budget_watts: Option<f64>) {
        self.joint.set_running(budget_watts.is_some());
        self.budget_watts.set(budget_watts.unwrap_or(0.0));
        if budget_watts.is_none() {
            self.exposed_watts.set(0.0);
        }
    }

    /// Adds the counts since `before`.
    pub fn add_tally(&self, before: PowerBudgetTally, now: PowerBudgetTally) {
        self.joint.evaluations.inc_by(now.evaluations - before.evaluations);
        self.joint.late.inc_by(now.late - before.late);
        self.infeasible.inc_by(now.infeasible - before.infeasible);
        if now.evaluations > before.evaluations {
            self.exposed_watts.set(now.exposed_watts.unwrap_or(f64::NAN));
        }
    }
}

/// Metrics of the joint stage of GPU sharing; names are prefixed with `eadt_gpu_sharing_`, and with their old prefix as well.
#[derive(Debug)]
pub struct GpuSharingMetrics {
    pub joint: JointMetrics,
    shared_gpus: Gauge,
    measured: Gauge,
    models: Counter,
    models_ignored: Family<ReasonLabels, Counter>,
}

impl GpuSharingMetrics {
    pub fn new(metrics: &MetricsRegistry) -> Self {
        let this = Self {
            joint: JointMetrics::new(),
            shared_gpus: Gauge::default(),
            measured: Gauge::default(),
            models: Counter::default(),
            models_ignored: Family::default(),
        };
        metrics.register("gpu_sharing", |registry| {
            this.register(registry, |_, meaning| meaning.to_owned());
            let evaluations = "Ends of windows at which shared GPUs were evaluated";
            this.joint.register_renamed(registry, "the joint stage of GPU sharing", evaluations);
        });
        metrics.register("sm_partition", |registry| {
            this.register(registry, |name, _| format!("Old name of eadt_gpu_sharing_{name}"));
        });
        this
    }

    fn register(&self, registry: &mut Registry, help: HelpText) {
        let members = "Workloads that name the controller sm-partition, and those that did and were measured";
        self.joint.register(registry, help, members);
        self.joint.register_old_names(registry, "eadt_gpu_sharing_");
        let models = help("models", "Learned slowdown models that came into force");
        registry.register("models", models, self.models.clone());
        let ignored = help("models_ignored", "Ignored learned slowdown models, by reason: version, damaged, older");
        registry.register("models_ignored", ignored, self.models_ignored.clone());
        let shared = help("shared_gpus", "GPUs that members share with others, at the last evaluation");
        registry.register("shared_gpus", shared, self.shared_gpus.clone());
        let measured = help("measured", "Members whose throughput and power alone are known, at the last evaluation");
        registry.register("measured", measured, self.measured.clone());
    }

    /// Like [`ProcessorMetrics::init_series`].
    pub fn init_series(&self) {
        let _series = self.models_ignored.get_or_create(&ReasonLabels { reason: "" });
    }

    /// Sets whether the stage runs here.
    pub fn set_running(&self, here: bool) {
        self.joint.set_running(here);
        if !here {
            self.shared_gpus.set(0);
            self.measured.set(0);
        }
    }

    /// Adds the counts since `before`.
    pub fn add_tally(&self, before: GpuSharingTally, now: GpuSharingTally) {
        self.joint.evaluations.inc_by(now.evaluations - before.evaluations);
        self.joint.late.inc_by(now.late - before.late);
        if now.evaluations > before.evaluations {
            self.shared_gpus.set(now.shared_gpus as i64);
            self.measured.set(now.measured as i64);
        }
        self.models.inc_by(now.models - before.models);
        count_ignored(&self.models_ignored, before.models_ignored, now.models_ignored);
    }
}

impl ProcessorMetrics {
    pub fn new(metrics: &MetricsRegistry) -> Self {
        metrics.register("processor", |registry| {
            let this = Self {
                events: Counter::default(),
                duplicates: Counter::default(),
                late: Counter::default(),
                stale: Counter::default(),
                late_tables: Counter::default(),
                models: Counter::default(),
                models_ignored: Family::default(),
                windows: Counter::default(),
                decisions: Counter::default(),
                dead_letters: Family::default(),
                misplaced_records: Family::default(),
                heartbeats: Counter::default(),
                gaps: Counter::default(),
                restarts: Counter::default(),
                // 0.5 ms to 8 s.
                commit_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 15)),
                state_bytes: Counter::default(),
                input_bytes: Counter::default(),
                buffered_bytes: Gauge::default(),
                partitions: Gauge::default(),
                workloads: Gauge::default(),
                sources: Gauge::default(),
            };
            registry.register("events", "Records folded, heartbeats and refused ones included", this.events.clone());
            registry.register(
                "duplicates",
                "Events as old as their source's last one, or older and sent again",
                this.duplicates.clone(),
            );
            registry.register("late", "Events whose window was closed", this.late.clone());
            registry.register("stale", "Events older than their source's last one", this.stale.clone());
            registry.register("late_tables", "Table events merged after a larger key", this.late_tables.clone());
            registry.register("models", "Learned models that came into force, in every partition", this.models.clone());
            let ignored = this.models_ignored.clone();
            registry.register(
                "models_ignored",
                "Ignored learned models, by reason: version, damaged, older; gpu counts decisions",
                ignored,
            );
            registry.register("windows", "Windows written, spans included", this.windows.clone());
            registry.register("decisions", "Decisions written, maintain included", this.decisions.clone());
            for reason in DeadLetterReason::ALL {
                // The first refused record is then a rise.
                drop(this.dead_letters.get_or_create(&ReasonLabels { reason: reason.name() }));
            }
            registry.register("dead_letters", "Refused records by reason", this.dead_letters.clone());
            registry.register(
                "misplaced_records",
                "Records outside the partition that their key belongs to, by topic: their producer has another partitioner",
                this.misplaced_records.clone(),
            );
            let old_help = "Old name of eadt_processor_misplaced_records_total";
            registry.register("foreign_partition_records", old_help, this.misplaced_records.clone());
            registry.register("heartbeats", "Heartbeats appended to quiet partitions", this.heartbeats.clone());
            registry.register("gaps", "Input positions that retention deleted, or whose topic was recreated", this.gaps.clone());
            registry.register("restarts", "Bus sessions restarted after an error", this.restarts.clone());
            let commit = this.commit_seconds.clone();
            registry.register_with_unit("commit", "Time of an atomic step", Unit::Seconds, commit);
            registry.register_with_unit("state", "State written", Unit::Bytes, this.state_bytes.clone());
            registry.register_with_unit("input", "Keys and values read", Unit::Bytes, this.input_bytes.clone());
            let buffered = this.buffered_bytes.clone();
            registry.register_with_unit("buffered", "Records read ahead of the merge", Unit::Bytes, buffered);
            registry.register("partitions", "Partitions owned", this.partitions.clone());
            registry.register("workloads", "Workloads in the state, GPUs without one included", this.workloads.clone());
            registry.register("sources", "Sources in the state", this.sources.clone());
            this
        })
    }

    /// Gives every labelled metric one series: a family without series does not show in the registry's text.
    pub fn init_series(&self) {
        let _series = self.dead_letters.get_or_create(&ReasonLabels { reason: "" });
        let _series = self.models_ignored.get_or_create(&ReasonLabels { reason: "" });
        let _series = self.misplaced_records.get_or_create(&TopicLabels { topic: "" });
    }

    pub fn misplaced_record(&self, topic: Topic) {
        self.misplaced_records.get_or_create(&TopicLabels { topic: topic.base_name() }).inc();
    }

    pub fn dead_letter(&self, reason: DeadLetterReason) {
        self.dead_letters.get_or_create(&ReasonLabels { reason: reason.name() }).inc();
    }

    /// Adds the counts since `before`.
    pub fn add_tally(&self, before: PartitionTally, now: PartitionTally) {
        self.events.inc_by(now.events - before.events);
        self.duplicates.inc_by(now.duplicates - before.duplicates);
        self.late.inc_by(now.late - before.late);
        self.stale.inc_by(now.stale - before.stale);
        self.late_tables.inc_by(now.late_tables - before.late_tables);
        self.models.inc_by(now.models - before.models);
        count_ignored(&self.models_ignored, before.models_ignored, now.models_ignored);
    }
}

fn count_ignored(counters: &Family<ReasonLabels, Counter>, was: ModelsIgnored, is: ModelsIgnored) {
    let reasons = [
        ("version", was.version, is.version),
        ("damaged", was.damaged, is.damaged),
        ("older", was.older, is.older),
        ("gpu", was.gpu, is.gpu),
    ];
    for (reason, before, now) in reasons.into_iter().filter(|(_, before, now)| now > before) {
        counters.get_or_create(&ReasonLabels { reason }).inc_by(now - before);
    }
}
