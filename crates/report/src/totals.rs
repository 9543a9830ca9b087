//! Sums over the workloads of a report: its total rows, and `totals` of its JSON.

use eadt_schemas::v1::Origin;
use serde::Serialize;

use crate::figures::JOULES_PER_KWH;
use crate::reporter::sum_known;
use crate::{SavingSummary, SavingVerdict, WorkloadReport};

/// Sums over workloads. Absent figures are `null`: not known, which is not zero.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReportTotals {
    pub workloads: usize,
    /// Workloads with unknown energy; they are in no sum of energy.
    pub without_energy: usize,
    /// The origin of all; `null`: they differ.
    pub origin: Option<Origin>,
    pub energy_joules: Option<f64>,
    pub energy_kwh: Option<f64>,
    /// Part of the energy that lies in no window.
    pub unassigned_energy_joules: Option<f64>,
    /// `null` if the cost of a workload is not known, or if their currencies differ.
    pub cost: Option<f64>,
    pub currency: Option<String>,
    /// `null` if the emissions of a workload are not known.
    pub co2_grams: Option<f64>,
    pub saving_verdict: SavingVerdict,
    /// Whether the saving may be called that of all: nearly all of the energy is compared.
    pub saving_is_whole: bool,
    pub saving_joules: Option<f64>,
    pub saving_ratio: Option<f64>,
    /// Ends of the 90 % interval of `saving_ratio`.
    pub saving_ratio_low: Option<f64>,
    pub saving_ratio_high: Option<f64>,
    /// Part of the energy that the saving is of.
    pub compared_energy_ratio: Option<f64>,
    /// Least and greatest throughput kept, of the workloads with a saving.
    pub throughput_kept_ratio_least: Option<f64>,
    pub throughput_kept_ratio_most: Option<f64>,
    pub windows: u64,
    pub decisions: u64,
    pub decided_changes: u64,
    pub recommendations: u64,
    pub changes: u64,
    pub reverts: u64,
}

impl ReportTotals {
    /// Sums up workloads.
    pub fn of(workloads: &[WorkloadReport]) -> Self {
        let sums = SavingSummary::of(workloads);
        let count = |of: fn(&WorkloadReport) -> u64| workloads.iter().map(of).sum::<u64>();
        let ends = sums.saving_ratio().zip(sums.ratio_error());
        Self {
            workloads: sums.workloads,
            without_energy: sums.without_energy,
            origin: sums.origin,
            energy_joules: sums.energy_joules,
            energy_kwh: sums.energy_joules.map(|joules| joules / JOULES_PER_KWH),
            unassigned_energy_joules: sum_known(workloads.iter().map(|it| it.unassigned_energy_joules)),
            cost: sums.cost,
            currency: sums.currency.clone().filter(|_| sums.cost.is_some()),
            co2_grams: sums.co2_grams,
            saving_verdict: sums.verdict(),
            saving_is_whole: sums.is_whole(),
            saving_joules: sums.saving_joules(),
            saving_ratio: sums.saving_ratio(),
            saving_ratio_low: ends.map(|(ratio, error)| ratio - error),
            saving_ratio_high: ends.map(|(ratio, error)| ratio + error),
            compared_energy_ratio: sums.compared_ratio(),
            throughput_kept_ratio_least: sums.throughput.map(|(least, _)| least),
            throughput_kept_ratio_most: sums.throughput.map(|(_, most)| most),
            windows: count(|it| it.windows),
            decisions: count(|it| it.decisions),
            decided_changes: sums.decided_changes,
            recommendations: sums.recommendations,
            changes: sums.changes,
            reverts: sums.reverts,
        }
    }
}
