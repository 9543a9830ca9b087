//! The names, instruments and texts of the exporter's metrics.

use eadt_schemas::v1::GpuTelemetry;

use super::WorkloadSeries;

/// A figure of each workload or GPU, under its names.
#[derive(Debug, Clone, Copy)]
pub struct MetricSpec<T> {
    /// Name behind `eadt_workload_` or `eadt_gpu_` in the text for Prometheus.
    pub name: &'static str,
    /// The instrument in OTLP, and its unit in UCUM.
    pub instrument: (&'static str, &'static str),
    pub help: &'static str,
    pub value: fn(&T) -> Option<f64>,
}

/// Counters of a workload.
pub const WORKLOAD_COUNTERS: [MetricSpec<WorkloadSeries>; 7] = [
    MetricSpec {
        name: "energy_joules",
        instrument: ("eadt.workload.energy", "J"),
        help: "Energy of the run in closed windows, and energy that fitted in none; absent while none is known",
        value: WorkloadSeries::energy_joules,
    },
    MetricSpec {
        name: "progress_energy_joules",
        instrument: ("eadt.workload.progress_energy", "J"),
        help: "Energy of closed windows, downtime included, without what fitted in none: over the samples it is J/sample; absent while none is known",
        value: |it| it.counters.progress_energy_joules,
    },
    MetricSpec {
        name: "samples",
        instrument: ("eadt.workload.samples", "{sample}"),
        help: "Samples of closed windows whose energy is known, redone work left out; absent while none is known",
        // Beside its energy from the first value on: a rate of one that lacks the other's first window is no J/sample.
        value: |it| it.counters.progress_energy_joules.map(|_| it.counters.samples),
    },
    MetricSpec {
        name: "samples_without_energy",
        instrument: ("eadt.workload.samples_without_energy", "{sample}"),
        help: "Samples of closed windows whose energy is not known: they are in no J/sample",
        value: |it| Some(it.counters.samples_without_energy),
    },
    MetricSpec {
        name: "tokens",
        instrument: ("eadt.workload.tokens", "{token}"),
        help: "Tokens of closed windows",
        value: |it| Some(it.counters.tokens),
    },
    MetricSpec {
        name: "restart_windows",
        instrument: ("eadt.workload.restart_windows", "{window}"),
        help: "Closed windows with a restart or rollout",
        value: |it| Some(it.counters.restarts as f64),
    },
    MetricSpec {
        name: "windows",
        instrument: ("eadt.workload.windows", "{window}"),
        help: "Closed windows",
        value: |it| Some(it.counters.windows as f64),
    },
];

/// Gauges of a workload.
pub const WORKLOAD_GAUGES: [MetricSpec<WorkloadSeries>; 6] = [
    MetricSpec {
        name: "power_watts",
        instrument: ("eadt.workload.power", "W"),
        help: "Mean power of the newest window; absent once the job has ended or left its GPUs, or its next window is overdue",
        value: |it| it.power_watts,
    },
    MetricSpec {
        name: "record_energy_joules",
        instrument: ("eadt.workload.record_energy", "J"),
        help: "Energy of the run in all windows on record, which compared_joules is a part of; absent while none is known; workloads beyond metrics.workloads_max have one series together, without namespace and workload",
        value: |it| it.record_energy_joules,
    },
    MetricSpec {
        name: "saving_joules",
        instrument: ("eadt.workload.saving", "J"),
        help: "Estimated saving in the windows that can be compared, negative: a loss; 0 if nothing was changed; an estimate, so it may fall",
        value: |it| it.saving_joules,
    },
    MetricSpec {
        name: "compared_joules",
        instrument: ("eadt.workload.compared_energy", "J"),
        help: "Energy that the saving is of; the rest cannot be compared",
        value: |it| it.compared_joules,
    },
    MetricSpec {
        name: "expected_joules",
        instrument: ("eadt.workload.expected_energy", "J"),
        help: "Energy that the starting layout would have taken for the samples of the compared windows",
        value: |it| it.expected_joules,
    },
    MetricSpec {
        name: "last_window_timestamp_seconds",
        instrument: ("eadt.workload.last_window_time", "s"),
        help: "End of the newest window, in event time",
        value: |it| it.last_window.map(|time| time.micros() as f64 / 1e6),
    },
];

/// Counts of workloads and GPUs without series, and of unreadable events.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExporterCounts {
    pub workloads_capped: usize,
    pub workloads_capped_ended: usize,
    pub gpus_capped: usize,
    pub has_given_up_savings: bool,
    pub unread_partitions: usize,
    pub unreadable_events: u64,
}

/// Gauges without labels, beside those of workloads.
pub const WORKLOAD_COUNTS: [MetricSpec<ExporterCounts>; 4] = [
    MetricSpec {
        name: "capped",
        instrument: ("eadt.workload.capped", "{workload}"),
        help: "Workloads that run and have no series of their own, beyond metrics.workloads_max",
        value: |it| Some(it.workloads_capped as f64),
    },
    MetricSpec {
        name: "capped_ended",
        instrument: ("eadt.workload.capped_ended", "{workload}"),
        help: "Workloads that have ended and have no series of their own, beyond metrics.workloads_max",
        value: |it| Some(it.workloads_capped_ended as f64),
    },
    MetricSpec {
        name: "savings_given_up",
        instrument: ("eadt.workload.savings_given_up", "1"),
        help: "1 once savings are no longer estimated: too many windows",
        value: |it| Some(f64::from(u8::from(it.has_given_up_savings))),
    },
    MetricSpec {
        name: "unread_partitions",
        instrument: ("eadt.workload.unread_partitions", "{partition}"),
        help: "Partitions that were not read to their end yet since the start: their workloads have no series",
        value: |it| Some(it.unread_partitions as f64),
    },
];

/// The gauge without labels beside those of GPUs.
pub const GPUS_CAPPED: MetricSpec<ExporterCounts> = MetricSpec {
    name: "capped",
    instrument: ("eadt.gpu.capped", "{gpu}"),
    help: "GPUs without series of their own, beyond metrics.gpus_max",
    value: |it| Some(it.gpus_capped as f64),
};

/// The counter without labels, beside those of workloads.
pub const UNREADABLE_EVENTS: (&str, (&str, &str), &str) = (
    "unreadable_events",
    ("eadt.workload.unreadable_events", "{event}"),
    "Events that could not be read; of what was there at the start none is counted",
);

/// The counter of decisions by outcome.
pub const OUTCOME: (&str, (&str, &str), &str) = (
    "outcomes",
    ("eadt.workload.outcomes", "{outcome}"),
    "Decisions: maintain, kept, and decided for those to change something; of these applied: changed, reverted; and the actuator's other reports: ready, refused, recommended, rolled_back, failed",
);

/// Gauges of a GPU, at its newest sample. In OTLP they have the names of the semantic conventions of hardware, if these have
/// one.
pub const GPU_GAUGES: [MetricSpec<GpuTelemetry>; 5] = [
    MetricSpec {
        name: "power_watts",
        instrument: ("hw.power", "W"),
        help: "Power of the whole GPU at its newest sample",
        value: GpuTelemetry::usable_power_watts,
    },
    MetricSpec {
        name: "power_limit_watts",
        instrument: ("eadt.gpu.power_limit", "W"),
        help: "Power cap in force",
        value: |it| it.power_limit_watts,
    },
    MetricSpec {
        name: "utilization_ratio",
        instrument: ("hw.gpu.utilization", "1"),
        help: "Part of the time in which a kernel ran",
        value: |it| it.utilization_ratio,
    },
    MetricSpec {
        name: "temperature_celsius",
        instrument: ("hw.temperature", "Cel"),
        help: "Temperature of the die",
        value: |it| it.temperature_celsius,
    },
    MetricSpec {
        name: "last_sample_timestamp_seconds",
        instrument: ("eadt.gpu.last_sample_time", "s"),
        help: "Time of the newest sample; every GPU with series has it",
        value: |it| Some(it.time.micros() as f64 / 1e6),
    },
];

/// The counter of a GPU's energy.
pub const GPU_ENERGY: (&str, (&str, &str), &str) = (
    "energy_joules",
    ("hw.energy", "J"),
    "Energy of the whole GPU by its own counter, since the exporter started; a GPU without a counter has none",
);

/// The counter of the energy of GPUs without a workload, all together.
pub const IDLE_ENERGY: (&str, (&str, &str), &str) = (
    "idle_energy_joules",
    ("eadt.gpu.idle_energy", "J"),
    "Energy of GPUs without a workload in closed windows, and energy that fitted in none; absent while none is known",
);

/// The part of a GPU that is a workload's.
pub const GPU_SHARE: (&str, (&str, &str), &str) = (
    "share_ratio",
    ("eadt.gpu.share", "1"),
    "Part of the GPU's power that is attributed to the workload; the rest to 1 is attributed to no workload",
);
