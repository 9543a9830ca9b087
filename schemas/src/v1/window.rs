use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Layout, Meter, Origin};
use crate::EventTime;

/// Kind of interval that a window event covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum WindowKind {
    /// One of the tumbling windows; controllers see these. A silence of more than 1,440 windows has none.
    #[default]
    Tumbling,
    /// A span that the job named (an epoch, a training block), exactly from its start to its end.
    Span,
}

/// How the energy of a window was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema, Default)]
#[serde(rename_all = "snake_case")]
pub enum EnergyMethod {
    /// Difference of the hardware counter, interpolated at the edges.
    Counter,
    /// Trapezoidal integral of power.
    Integral,
    /// Some devices by counter, some by integral.
    Mixed,
    /// No energy is known.
    #[default]
    None,
}

/// Energy, progress and efficiency of one workload in one interval. Key: the workload (`gpus` for devices without one).
///
/// `run_*` fields cover the part of the interval between the job's `started` and `finished`; where the job
/// reports neither, they cover the whole interval, and `observed_*` give the part of it that was observed.
///
/// The rules by which windows are made have a version, `window_rules` in the header `eadt_settings`; windows without it are of
/// the first. By these `joules_per_sample`, `samples_per_joule` and `tokens_per_joule` are of mean power of the run over the rate
/// while progress was known, without downtime, and energy counters were accepted even if power contradicted them. By the first
/// two, power was accepted that no such device can draw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["id", "workload", "window_start", "window_end"]))]
#[allow(clippy::struct_excessive_bools, reason = "each has a meaning of its own, and all are fields of an event")]
pub struct EfficiencyWindow {
    /// `workload`, kind, span and start: deterministic.
    #[schemars(length(min = 1, max = 1024))]
    pub id: String,
    /// `namespace/name`, or `gpus` for devices without a workload.
    #[schemars(length(min = 1, max = 253))]
    pub workload: String,
    /// Kind of interval that the event covers.
    pub kind: WindowKind,
    /// Name of the span; only for `kind` `span`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub span: Option<String>,
    /// Start of the interval, included.
    #[serde(default = "EventTime::missing")]
    pub window_start: EventTime,
    /// End of the interval, excluded.
    #[serde(default = "EventTime::missing")]
    pub window_end: EventTime,
    /// Origin of the figures; the weakest of all inputs.
    pub origin: Origin,
    /// Scope of the energy.
    pub meter: Meter,

    /// Energy attributed to the workload in the whole interval; absent where none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy_joules: Option<f64>,
    /// How the energy was found.
    pub energy_method: EnergyMethod,
    /// Device time with known energy over device time of the interval, over all devices.
    pub energy_coverage_ratio: f64,
    /// Longest stretch of the interval without known energy, over all devices.
    pub energy_largest_gap_seconds: f64,
    /// Device time, in seconds, in which a device's energy counter contradicts its power or the board: it stood still, fell, or
    /// rose by what the board cannot draw. Energy of this time is the integral of power, or unknown where power is.
    #[serde(skip_serializing_if = "is_zero")]
    pub counter_contradicted_seconds: f64,
    /// Energy by an energy counter less energy by power, in joules, of the time for which power counted instead of a counter that
    /// rises seldom. It is in the interval in which the counter rose. It is near 0 over many rises if both are right.
    #[serde(skip_serializing_if = "is_zero")]
    pub counter_difference_joules: f64,
    /// Energy that belongs to time already closed, to an idle gap or to a silence without windows, known only now.
    pub unassigned_energy_joules: f64,

    /// The job has reported when its run began or ended. If any interval of a workload has this set, those without it lie
    /// before the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub run_declared: bool,
    /// When anything of the workload's devices or ranks was first observed in the interval, or known from a step that reaches
    /// into it; absent: nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_start: Option<EventTime>,
    /// As `observed_start`, the last moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_end: Option<EventTime>,
    /// Seconds of the interval that lie inside the run.
    pub run_seconds: f64,
    /// Energy attributed to the workload inside the run; absent where none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_energy_joules: Option<f64>,
    /// As `energy_coverage_ratio`, within the run.
    pub run_coverage_ratio: f64,

    /// Samples processed, redone ones apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<f64>,
    /// Samples processed again after a fall of the counter.
    pub samples_redone: f64,
    /// Tokens processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<f64>,
    /// Optimiser steps done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<f64>,
    /// Progress that belongs to time already closed or to an idle gap, known only now.
    pub unassigned_samples: f64,
    /// As `unassigned_samples`, tokens.
    pub unassigned_tokens: f64,
    /// As `unassigned_samples`, steps.
    pub unassigned_steps: f64,
    /// Time with known progress over the interval's.
    pub progress_coverage_ratio: f64,
    /// Longest stretch of the interval without known progress.
    pub progress_largest_gap_seconds: f64,
    /// Time of ranks that were silent while others reported, over the interval's time of all ranks. `samples` has nothing of it,
    /// and the figures of one sample or joule are extrapolated to it.
    #[serde(skip_serializing_if = "is_zero")]
    pub progress_silent_ratio: f64,

    /// Samples over the time with known progress, per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_second: Option<f64>,
    /// Energy for one sample, in joules, downtime included: `run_energy_joules` over `samples`. If energy is known for less than
    /// nine tenths of the time with known progress, it is extrapolated to that time. Absent if energy or progress is unknown or
    /// nothing was processed. A restart within the interval makes it large, and `restarted` marks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules_per_sample: Option<f64>,
    /// Energy for one sample while the job runs, in joules, without downtime: mean power of the run over `samples_per_second`.
    /// Absent if progress is known for less than nine tenths of the observed part of the run. What controllers compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules_per_sample_running: Option<f64>,
    /// Samples processed with one joule, downtime included: of the same energy as `joules_per_sample`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples_per_joule: Option<f64>,
    /// Tokens processed with one joule, downtime included: of the same energy as `joules_per_sample`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_joule: Option<f64>,
    /// Mean power attributed to the workload: each device's energy over its own covered time, summed. A device without any known
    /// energy adds nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_power_watts: Option<f64>,
    /// `mean_power_watts` over the number of devices with known energy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_power_per_gpu_watts: Option<f64>,
    /// Price of the energy, in the currency of `price_per_kwh`; absent where no price is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// CO₂ equivalent of the energy; absent where no carbon intensity is in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub co2_grams: Option<f64>,

    /// Mean of `utilization_ratio` over devices and time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_utilization_ratio: Option<f64>,
    /// Mean of `memory_utilization_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_memory_utilization_ratio: Option<f64>,
    /// Mean of `sm_active_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_active_ratio: Option<f64>,
    /// Mean of `sm_occupancy_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_occupancy_ratio: Option<f64>,
    /// Mean of `tensor_active_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_tensor_active_ratio: Option<f64>,
    /// Mean of `dram_active_ratio`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_dram_active_ratio: Option<f64>,
    /// Mean of `sm_clock_mhz`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_sm_clock_mhz: Option<f64>,
    /// Mean of `temperature_celsius`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_temperature_celsius: Option<f64>,
    /// Highest `temperature_celsius` of any device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_temperature_celsius: Option<f64>,
    /// Mean of the reported losses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_loss: Option<f64>,

    /// The layout in force at the window's end; absent where none was published.
    #[serde(default, deserialize_with = "super::common::optional_object", skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// Generation of that layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The layout changed, rolled out or restarted in this window.
    pub restarted: bool,
    /// True if `restarted` is set only because a power cap, a clock, the precision or frozen layers changed, which restarts
    /// nothing. The window's figures are of two settings.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_settings_changed: bool,
    /// Inputs of this window are missing for good: log retention deleted them.
    pub gap: bool,
    /// Devices that reported in the interval.
    pub gpus: u32,
    /// Most workloads that were on one of those devices at once; absent: it had them to itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenants: Option<u32>,
    /// UUIDs of the devices that it shared, in their order; of more than 64 none is named.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub shared_devices: Vec<String>,
    /// Progress sources that reported in the interval.
    pub ranks: u32,
    /// Telemetry and progress events folded into this interval.
    pub events: u64,
    /// Events refused since the workload's last window because their window was closed already.
    pub late: u64,
    /// Events refused since the workload's last window because they were older than their source's last.
    pub stale: u64,
    /// Events counted once more since the workload's last window: same time as their source's last.
    pub duplicates: u64,
    /// Table events merged after a larger key since the workload's last window.
    pub late_tables: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(seconds: &f64) -> bool {
    *seconds == 0.0
}

/// Part of a span that has to be known, so that its figures represent the whole of it.
const MIN_KNOWN: f64 = 0.9;

impl EfficiencyWindow {
    /// Returns whether processes restarted in this window: what is shown as a restart.
    pub fn has_restart(&self) -> bool {
        self.restarted && !self.only_settings_changed
    }

    /// Returns the energy of the run, or of the interval if that of the run is unknown, and for how many seconds it is known.
    fn known_energy(&self) -> Option<(f64, f64)> {
        match self.run_energy_joules {
            Some(joules) => Some((joules, self.run_seconds * self.run_coverage_ratio)),
            None => Some((self.energy_joules?, self.seconds() * self.energy_coverage_ratio)),
        }
    }

    /// Returns the length of the interval in seconds.
    pub fn seconds(&self) -> f64 {
        self.window_end.seconds_since(self.window_start)
    }

    /// Returns the energy, in joules, of a span that holds all of the known progress and the downtime beside it. `None` if it is
    /// unknown.
    ///
    /// That is the known energy of the run. If energy is known for clearly less time than progress, it is extrapolated to the
    /// time with known progress: both are then of one span. That of silent ranks counts as known.
    pub fn energy_of_progress(&self) -> Option<f64> {
        let (joules, known) = self.known_energy()?;
        let progress = self.seconds() * (self.progress_coverage_ratio + self.progress_silent_ratio);
        let progress = if self.run_energy_joules.is_some() { progress.min(self.run_seconds) } else { progress };
        if known >= MIN_KNOWN * progress {
            return Some(joules);
        }
        (known > 0.0).then(|| joules * (progress / known))
    }

    /// Returns the energy of one sample, in joules, downtime included: the `joules_per_sample` of present windows, also for those
    /// of earlier releases. Everybody who shows it to people uses this.
    ///
    /// A window whose energy or samples are not there keeps what it has.
    pub fn energy_per_sample(&self) -> Option<f64> {
        let (Some(joules), Some(samples)) = (self.energy_of_progress(), self.samples) else { return self.joules_per_sample };
        (samples > 0.0).then(|| joules / samples * self.reported_progress_ratio()).filter(|value| value.is_finite())
    }

    /// Returns the known progress over that of all ranks in the same time: less than 1 if ranks were silent.
    pub fn reported_progress_ratio(&self) -> f64 {
        let whole = self.progress_coverage_ratio + self.progress_silent_ratio;
        if self.progress_silent_ratio > 0.0 && whole > 0.0 { self.progress_coverage_ratio / whole } else { 1.0 }
    }

    /// Returns whether progress is known for nearly all of the observed part of the run.
    pub fn runs_throughout(&self) -> bool {
        let observed = self.observed_start.zip(self.observed_end).map(|(from, to)| to.seconds_since(from));
        let run = observed.map_or(self.run_seconds, |seconds| self.run_seconds.min(seconds));
        run > 0.0 && self.seconds() * self.progress_coverage_ratio >= MIN_KNOWN * run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of a minute with 30 kJ and 1,000 samples, known for so many seconds each.
    fn window(energy_seconds: f64, progress_seconds: f64) -> EfficiencyWindow {
        EfficiencyWindow {
            window_start: EventTime::from_seconds(60.0),
            window_end: EventTime::from_seconds(120.0),
            run_seconds: 60.0,
            run_energy_joules: Some(30_000.0),
            run_coverage_ratio: energy_seconds / 60.0,
            samples: Some(1_000.0),
            progress_coverage_ratio: progress_seconds / 60.0,
            ..EfficiencyWindow::default()
        }
    }

    #[test]
    fn energy_and_samples_of_one_sample_are_of_the_same_span() {
        for (energy, progress, joules, runs, why) in [
            (60.0, 60.0, 30.0, true, "all is known"),
            (60.0, 10.0, 30.0, false, "a restart: fifty seconds without progress cost their energy"),
            (10.0, 10.0, 30.0, false, "the job began ten seconds before the end"),
            (58.0, 60.0, 30.0, true, "within a tenth nothing is extrapolated"),
            (20.0, 60.0, 90.0, true, "power is known for a third of the time with progress"),
        ] {
            let window = window(energy, progress);
            assert_eq!((window.energy_per_sample(), window.runs_throughout()), (Some(joules), runs), "{why}");
        }
    }

    #[test]
    fn samples_of_silent_ranks_are_extrapolated() {
        // Three of four ranks report 1,000 samples.
        let window = |energy| EfficiencyWindow { progress_silent_ratio: 0.25, ..window(energy, 45.0) };
        assert_eq!((window(60.0).energy_per_sample(), window(60.0).reported_progress_ratio()), (Some(22.5), 0.75));
        assert_eq!(window(30.0).energy_of_progress(), Some(60_000.0), "energy is known for half of the time of all ranks");
        let nothing = EfficiencyWindow { progress_coverage_ratio: 0.0, ..window(60.0) };
        assert_eq!(nothing.reported_progress_ratio(), 0.0);
    }

    #[test]
    fn without_energy_or_samples_a_window_keeps_what_it_has() {
        let none = EfficiencyWindow { run_energy_joules: None, joules_per_sample: Some(7.0), ..window(0.0, 60.0) };
        assert_eq!((none.energy_per_sample(), none.energy_of_progress()), (Some(7.0), None));
        let idle = EfficiencyWindow { samples: Some(0.0), ..window(60.0, 60.0) };
        assert_eq!(idle.energy_per_sample(), None);
        let earlier = EfficiencyWindow { joules_per_sample: Some(5.0), ..window(60.0, 10.0) };
        assert_eq!(earlier.energy_per_sample(), Some(30.0), "of a release that left downtime out");
        // Observed for the last ten seconds only.
        let begun = EfficiencyWindow {
            observed_start: Some(EventTime::from_seconds(110.0)),
            observed_end: Some(EventTime::from_seconds(120.0)),
            ..window(10.0, 10.0)
        };
        assert!(begun.runs_throughout());
    }
}
