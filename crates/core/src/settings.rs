//! Settings of the fold, as plain numbers in microseconds. Texts and defaults of a program are its own affair.

use eadt_schemas::v1::Workload;

use crate::controller::{ControllerName, ControllerSettings};
use crate::gpu_sharing::GpuSharingSettings;
use crate::power_budget::allocation::BudgetSettings;
use crate::window::progress::ProgressGaps;

/// One second in the unit of this crate's durations, microseconds.
pub const SECOND: i64 = 1_000_000;

/// Settings of one partition's fold. They are part of what a result depends on: a replay uses those of the live run.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldSettings {
    /// Length of the tumbling windows, positive.
    pub window: i64,
    /// A workload's windows are aligned to its job's start instead of the epoch.
    pub align_to_run: bool,
    /// Version of the rules by which windows are made, at most [`WINDOW_RULES`]; earlier ones are for records made by them.
    pub window_rules: u32,
    /// Longest time that an event may lie ahead of the log's stamp; `None` if events are simulated or imported, and only their
    /// own time counts.
    pub max_future: Option<i64>,
    /// A source is idle once the log clock is this far past its last event; `None` for never (files, whose sources end at their
    /// last record).
    pub idle_grace: Option<i64>,
    /// Longest gap between two power readings, in microseconds; in a longer one power is unknown.
    pub power_gap: i64,
    /// No window closes before the log clock is this far past the first event of a workload without live sources.
    pub join_grace: i64,
    /// A source or workload silent for this long, in log time, is forgotten: the retention of the inputs.
    pub retention: i64,
    /// Most windows that one workload may have open; an event that would open more is refused.
    pub max_open_windows: i64,
    /// Most workloads in one partition, devices without a workload included.
    pub max_workloads: usize,
    /// Most workloads of one namespace in one partition, and most devices without a workload that one collector named first.
    pub max_workloads_per_namespace: usize,
    /// Most sources in one partition.
    pub max_sources: usize,
    /// Most sources of one namespace's workloads in one partition, or of one collector's devices without a workload.
    pub max_sources_per_namespace: usize,
    /// Most sources of one workload.
    pub max_sources_per_workload: usize,
    /// Used if the workload does not name a controller.
    pub controller: ControllerName,
    /// Used for every workload, in place of the one that it names.
    pub controller_override: Option<ControllerName>,
    /// Used if the workload declares none.
    pub controller_settings: ControllerSettings,
    /// The power budget; `None` if there is no joint stage for it.
    pub power_budget: Option<BudgetSettings>,
    /// Settings of the joint stage of GPU sharing; `None` if there is no such stage.
    pub gpu_sharing: Option<GpuSharingSettings>,
}

/// Present version of the rules by which windows are made.
///
/// 1: `joules_per_sample` is mean power over the rate while progress was known, and counters are believed. 2: it is
/// energy over samples of one span, downtime included, and counters are tested against power and the board. 3: power
/// that no such device can draw is no reading, and windows in which only a cap, a clock or what a job turns by itself
/// changed are marked as such. 4: a counter that stood still from the start counts from its first rise on. 5: power is known
/// between two readings of it also if readings without power lie between them. 6: a counter is tested against the newest reading of
/// power also if its own samples have none. 7: power that is known between two rises of a counter further apart than the longest gap
/// of power counts instead of it, and the energy of a standstill without power is unknown until the next rise. A silent source is
/// expected until another one replaces it, the job starts, or a layout has no place for it; and `joules_per_sample` extrapolates the
/// samples of silent ranks.
pub const WINDOW_RULES: u32 = 7;

/// Open windows of each source for which a namespace with its most sources has room. It covers a source that lags until it
/// counts as idle, with windows of six seconds. If a tenth of the sources is there, ten times as many.
const SUMS_PER_SOURCE: usize = 40;
/// Most windows without any event between two with events that are emitted.
const MAX_EMPTY_WINDOWS: i64 = 1_440;

impl FoldSettings {
    /// Returns whether energy counters are tested against power and the board.
    pub fn checks_counters(&self) -> bool {
        self.window_rules >= 2
    }

    /// Returns whether power is checked against the device's maximum.
    pub fn checks_power(&self) -> bool {
        self.window_rules >= 3
    }

    /// Returns whether a counter that does not move for long from its first sample on counts from its first rise on. The place of
    /// the first sample between two steps of a coarse counter is not known.
    pub fn starts_coarse_counters_at_a_rise(&self) -> bool {
        self.window_rules >= 4
    }

    /// Returns whether power is known between two readings of it also if readings without power lie between them.
    pub fn bridges_missing_power(&self) -> bool {
        self.window_rules >= 5
    }

    /// Returns whether a counter whose samples have no power is tested against the newest reading of power.
    pub fn holds_power_for_counters(&self) -> bool {
        self.window_rules >= 6
    }

    /// Returns whether power, if it is known, counts between two rises of a counter that are far apart, as of one in coarse steps.
    pub fn counts_coarse_counters_by_power(&self) -> bool {
        self.window_rules >= 7
    }

    /// Returns whether a silent source is expected until something shows that it is gone. Before, each new generation of the layout
    /// and each new device showed that of all of them.
    pub fn expects_silent_sources(&self) -> bool {
        self.window_rules >= 7
    }

    /// Returns whether `started` of rank 0 without a counter above 0 begins another job, if steps were counted in the present run.
    pub fn recognises_jobs_begun_anew(&self) -> bool {
        self.window_rules >= 7
    }

    /// Returns whether a window whose sources have all ended stays open until it is over. It does in files, whose end shows that
    /// no event follows; live, no such end comes for a job that is done.
    pub fn holds_windows_of_ended(&self) -> bool {
        self.idle_grace.is_none()
    }

    /// Returns the longest time between two windows with events whose windows are emitted, empty as they are. Of a longer one
    /// none is, and what counters rose by across it is unassigned.
    pub fn longest_silence(&self) -> i64 {
        self.window.saturating_mul(self.max_open_windows.min(MAX_EMPTY_WINDOWS))
    }

    /// Returns the most sums that one namespace's workloads may come to hold in one partition, or one collector's devices without
    /// a workload: sources, times slices of open windows. Some 200 bytes each. Files, in which no source is ever idle,
    /// have no such limit.
    pub fn max_sums_per_namespace(&self) -> usize {
        if self.idle_grace.is_some() { self.max_sources_per_namespace.saturating_mul(SUMS_PER_SOURCE) } else { usize::MAX }
    }

    /// Returns the controller that decides about a workload: the override, else the one that it names, else the
    /// default.
    pub fn controller_of(&self, workload: Option<&Workload>) -> ControllerName {
        let named = workload.and_then(|workload| workload.controller.as_deref()).and_then(|name| name.parse().ok());
        self.controller_override.or(named).unwrap_or(self.controller)
    }

    /// Returns whether the joint stage of the power budget decides about a workload.
    pub fn shares_budget(&self, workload: &Workload) -> bool {
        self.power_budget.is_some() && self.controller_of(Some(workload)) == ControllerName::PowerBudget
    }

    /// Returns whether the joint stage of GPU sharing decides about a workload.
    pub fn shares_gpus(&self, workload: &Workload) -> bool {
        self.gpu_sharing.is_some() && self.controller_of(Some(workload)) == ControllerName::SmPartition
    }

    /// Returns whether the first stage leaves deciding about a workload to another one.
    pub fn decided_together(&self, workload: &Workload) -> bool {
        self.shares_budget(workload) || self.shares_gpus(workload)
    }

    /// Returns the longest gaps between two reports of one counter by a source.
    pub fn gaps(&self) -> ProgressGaps {
        ProgressGaps { total: self.counter_gap(), rate: self.power_gap }
    }

    /// Returns how long to wait for a source that leaves out a counter to report it again: as long as for a silent one.
    /// If none is ever idle, as long as its windows leave room for others.
    pub fn counter_gap(&self) -> i64 {
        self.idle_grace.unwrap_or_else(|| self.window.saturating_mul(self.max_open_windows / 2))
    }
}

impl Default for FoldSettings {
    fn default() -> Self {
        Self {
            window: 60 * SECOND,
            align_to_run: false,
            window_rules: WINDOW_RULES,
            max_future: Some(60 * SECOND),
            idle_grace: Some(120 * SECOND),
            power_gap: 120 * SECOND,
            join_grace: 10 * SECOND,
            retention: 7 * 86_400 * SECOND,
            max_open_windows: 10_080,
            max_workloads: 5_000,
            max_workloads_per_namespace: 2_500,
            max_sources: 50_000,
            max_sources_per_namespace: 25_000,
            max_sources_per_workload: 16_384,
            controller: ControllerName::default(),
            controller_override: None,
            controller_settings: ControllerSettings::default(),
            power_budget: None,
            gpu_sharing: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_decides_about_the_workloads_that_name_it_where_there_is_one() {
        let named = |name: &str| Workload { controller: Some(name.to_owned()), ..Workload::default() };
        let names = ["power-budget", "sm-partition", "hybrid"];
        let stages = |settings: &FoldSettings| {
            let of = |name: &str| {
                let workload = named(name);
                (settings.shares_budget(&workload), settings.shares_gpus(&workload), settings.decided_together(&workload))
            };
            names.map(of)
        };
        let none = FoldSettings::default();
        assert_eq!(stages(&none), [(false, false, false); 3]);
        let gpus = FoldSettings { gpu_sharing: Some(GpuSharingSettings::default()), ..none.clone() };
        assert_eq!(stages(&gpus), [(false, false, false), (false, true, true), (false, false, false)]);
        let budget = FoldSettings { power_budget: Some(BudgetSettings::default()), ..none };
        assert_eq!(stages(&budget), [(true, false, true), (false, false, false), (false, false, false)]);
    }

    #[test]
    fn a_counter_is_waited_for_as_long_as_a_source_or_half_of_the_open_windows() {
        let settings = FoldSettings { window: 60 * SECOND, max_open_windows: 10, ..FoldSettings::default() };
        assert_eq!(settings.counter_gap(), 120 * SECOND);
        assert_eq!(FoldSettings { idle_grace: None, ..settings }.counter_gap(), 300 * SECOND);
    }
}
