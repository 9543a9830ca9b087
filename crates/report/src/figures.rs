use std::borrow::Cow;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{ControllerAction, Meter, Origin};
use serde::{Deserialize, Serialize};

/// Name under which the windows of GPUs without a workload are reported. It has no namespace, so that no workload has it.
pub const GPUS_WITHOUT_WORKLOAD: &str = "gpus";

/// Everything that is known about the workloads of a data folder, an archive or a replay.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergyReport {
    /// Sorted by name. GPUs without a workload are listed under `gpus`.
    pub workloads: Vec<WorkloadReport>,
    /// Notes on unreadable records. They are in the notes of each workload, too.
    #[serde(skip)]
    pub source_notes: Vec<String>,
}

impl EnergyReport {
    /// Adds notes on unreadable records: to each workload, since it is unknown which one they are about.
    #[must_use]
    pub fn with_source_notes(mut self, notes: Vec<String>) -> Self {
        for workload in &mut self.workloads {
            workload.notes.extend(notes.iter().cloned());
        }
        self.source_notes.extend(notes);
        self
    }

    /// Drops the figures of each window, which only the charts of a rendered report need.
    #[must_use]
    pub fn without_charts(mut self) -> Self {
        for workload in &mut self.workloads {
            (workload.curve, workload.decided) = (Vec::new(), Vec::new());
        }
        self
    }
}

/// One workload. Absent figures are `null` in JSON: not known, which is not zero.
///
/// Energy, duration, power and coverage are those of the run: the time between the job's `started` and `finished`. If it reports
/// neither, everything counts, and the duration is the time from the first to the last moment at which its devices or ranks were
/// seen; coverage and power then are over that time, not over whole windows. Windows of a version that did not record what was
/// observed count whole.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkloadReport {
    /// `namespace/name`, or `gpus`.
    pub workload: String,
    /// Energy of the windows and energy that fits in none of them.
    pub energy_joules: Option<f64>,
    pub energy_kwh: Option<f64>,
    /// Samples of all windows, and samples outside of all windows.
    pub samples: Option<f64>,
    pub tokens: Option<f64>,
    pub joules_per_sample: Option<f64>,
    pub samples_per_joule: Option<f64>,
    pub tokens_per_joule: Option<f64>,
    pub duration_seconds: Option<f64>,
    /// Inside the run, over the covered time: each device's energy over its own covered time, summed. A device without known
    /// energy adds nothing.
    pub mean_power_watts: Option<f64>,
    /// Device time with known energy over device time.
    pub coverage_ratio: Option<f64>,
    /// Number of tumbling windows.
    pub windows: u64,
    /// Number of decisions, those to maintain included.
    pub decisions: u64,
    /// Decisions to change something, reverts included, whether or not they were applied.
    pub decided_changes: u64,
    /// Number of these changes that were written as recommendations (mode `recommend`) and not applied.
    pub recommendations: u64,
    /// Number of these changes that were applied, reverts included. If no actuator is on record: that were in force in a later
    /// window, by its layout or generation.
    pub changes: u64,
    /// Reverts that were applied.
    pub reverts: u64,
    /// The weakest of its windows: simulated before imported before measured. Rows by window or span have their own.
    pub origin: Origin,
    /// Devices that the power and energy figures cover; absent if there are none.
    pub meter: Option<Meter>,
    /// Cost in `currency`.
    pub cost: Option<f64>,
    /// Currency as the user named it; absent without a name or without a cost.
    pub currency: Option<String>,
    pub co2_grams: Option<f64>,
    /// Energy that the starting layout would have taken for the samples of the compared windows, less what they took, restarts,
    /// failed trials and redone work included, in J. Negative: the changes cost energy. An estimate by phases of the job
    /// (docs/use/report.md); with a baseline given by the user a comparison with a fixed figure.
    pub saving_joules: Option<f64>,
    /// `saving_joules` over the energy of the starting layout.
    pub saving_ratio: Option<f64>,
    /// Lower end of the 90 % interval of `saving_ratio`; absent if the user gave the baseline.
    pub saving_ratio_low: Option<f64>,
    /// Upper end of the 90 % interval of `saving_ratio`.
    pub saving_ratio_high: Option<f64>,
    /// Samples of the compared windows over those that the starting layout would have done in the same time.
    pub throughput_kept_ratio: Option<f64>,
    /// J/sample that the saving is compared with: the user's figure, otherwise the estimate for the starting layout in the time
    /// of all compared windows.
    pub baseline_joules_per_sample: Option<f64>,
    /// J/sample of the compared windows. `joules_per_sample` is that of all windows.
    pub compared_joules_per_sample: Option<f64>,
    /// Energy of the compared windows, to which the saving applies, without energy outside of windows.
    pub compared_energy_joules: Option<f64>,
    /// Energy that the starting layout would have taken for their samples: `compared_energy_joules` and `saving_joules`.
    pub expected_energy_joules: Option<f64>,
    /// `compared_energy_joules` over `energy_joules`. The rest is not comparable.
    pub compared_energy_ratio: Option<f64>,
    /// J/sample while it had its GPUs to itself, restarts included; only of a workload that also shared them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_joules_per_sample: Option<f64>,
    /// J/sample while other workloads were on its GPUs, too. That it differs from the former is an effect of sharing, not of a
    /// change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_joules_per_sample: Option<f64>,
    /// Part of the energy that was used while it shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_energy_ratio: Option<f64>,
    /// Part of `energy_joules` that lies in no window, because it became known after the window was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unassigned_energy_joules: Option<f64>,
    /// Energy of its GPUs before its run began and after it ended, in no other figure here; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outside_run_energy_joules: Option<f64>,
    /// Part of `samples` that is of no window: their total rose by them over a silence or a long wait, or they became known after the
    /// window was closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unassigned_samples: Option<f64>,
    /// Tokens, like `unassigned_samples`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unassigned_tokens: Option<f64>,
    /// Samples that were done again after their counter fell, in no total; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_redone: Option<f64>,
    /// The reason why no energy is known, with the remedy; absent if some is known. A note has the same text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_no_energy: Option<String>,
    /// Notes for a careful reader.
    pub notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_window: Option<Vec<WindowRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_span: Option<Vec<SpanRow>>,
    /// Its setting was changed, by EADT or from outside, and the starting setting was not measured in any phase of the changed
    /// part.
    #[serde(skip)]
    pub(crate) lacks_baseline: bool,
    /// Points of the chart.
    #[serde(skip)]
    pub(crate) curve: Vec<WindowPoint>,
    /// Changes and their outcomes, for the chart.
    #[serde(skip)]
    pub(crate) decided: Vec<DecidedChange>,
}

/// A window, as the chart has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WindowPoint {
    pub(crate) start: EventTime,
    pub(crate) end: EventTime,
    pub(crate) joules_per_sample: Option<f64>,
    pub(crate) power_watts: Option<f64>,
    /// J/sample of the starting layout in its phase.
    pub(crate) baseline: Option<f64>,
    pub(crate) phase: Option<u64>,
    pub(crate) restarted: bool,
    pub(crate) origin: Origin,
}

/// A decision to change something.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DecidedChange {
    pub(crate) time: EventTime,
    /// It takes back a change that failed.
    pub(crate) takes_back: bool,
    /// Text of the change.
    pub(crate) text: Cow<'static, str>,
    pub(crate) reason: String,
    pub(crate) reverted: bool,
    /// Time, result and reason of the verdict.
    pub(crate) verdict: Option<(EventTime, ChangeVerdict, String)>,
}

/// Verdict on a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeVerdict {
    Kept,
    /// The promised gain did not come, and the change stayed or was replaced.
    NoGain,
    Reverted,
}

/// One tumbling window.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowRow {
    pub window_start: EventTime,
    pub window_end: EventTime,
    pub origin: Origin,
    /// Seconds of the window inside the run.
    pub duration_seconds: f64,
    /// Inside the run.
    pub energy_joules: Option<f64>,
    pub samples: Option<f64>,
    pub tokens: Option<f64>,
    /// Downtime included, as the window's event has it.
    pub joules_per_sample: Option<f64>,
    /// Processes restarted or rolled out in it; false if only a cap, a clock or what a job turns by itself changed.
    pub restarted: bool,
    /// Mean power of the whole window, also outside of the run, as in the window's event: each device's energy over its own
    /// covered time, summed. A device without known energy adds nothing.
    pub mean_power_watts: Option<f64>,
    /// The same inside the run.
    pub run_mean_power_watts: Option<f64>,
    pub coverage_ratio: f64,
    pub progress_coverage_ratio: f64,
    /// Phase of the job's work, numbered from 1 in order of appearance; absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<u64>,
    /// Energy that the starting layout would have taken in its time, in J; absent: it is not comparable, or nothing was changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_energy_joules: Option<f64>,
    /// Samples that the starting layout would have done in its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_samples: Option<f64>,
    /// The decision at its end; absent: nothing is on record.
    pub action: Option<ControllerAction>,
    /// Text of the action, in the words of the views; programs read `action`.
    #[serde(skip)]
    pub action_text: Option<Cow<'static, str>>,
    /// The reason, in words.
    pub reason: Option<String>,
}

/// One span that the job named, exactly from its start to its end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SpanRow {
    pub span: String,
    pub start: EventTime,
    pub end: EventTime,
    pub origin: Origin,
    pub duration_seconds: f64,
    pub energy_joules: Option<f64>,
    pub samples: Option<f64>,
    pub tokens: Option<f64>,
    pub joules_per_sample: Option<f64>,
    pub mean_power_watts: Option<f64>,
    pub coverage_ratio: f64,
}

pub(crate) const JOULES_PER_KWH: f64 = 3.6e6;

/// Returns the part of an energy that is compared, from 0 to 1.
pub(crate) fn compared_part(compared_joules: Option<f64>, energy_joules: Option<f64>) -> Option<f64> {
    divide_known(compared_joules, energy_joules).map(|part| part.clamp(0.0, 1.0))
}

/// Divides; returns `None` unless both are known and the divisor is positive.
pub(crate) fn divide_known(value: Option<f64>, divisor: Option<f64>) -> Option<f64> {
    let divisor = divisor.filter(|divisor| *divisor > 0.0)?;
    value.map(|value| value / divisor).filter(|ratio| ratio.is_finite())
}
