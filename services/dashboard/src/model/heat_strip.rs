//! The fleet as a strip: a cell for each workload that matches, in the order of the table.

use eadt_report::states::WorkloadStatus;
use eadt_report::{SavingSummary, SavingVerdict};
use serde::{Deserialize, Serialize};

use super::DashboardModel;
use super::fleet::{FleetQuery, InvalidQuery, SortKey, SortOrder};

/// Selection and order of the cells: those of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HeatStripQuery {
    pub sort: SortKey,
    /// `asc` or `desc`; by default names and states ascend, figures descend.
    pub order: Option<SortOrder>,
    /// A part of the name, in either case.
    pub q: String,
    /// Only these states, separated by commas.
    pub state: String,
}

impl From<&HeatStripQuery> for FleetQuery {
    fn from(query: &HeatStripQuery) -> Self {
        let HeatStripQuery { sort, order, q, state } = query.clone();
        Self { sort, order, q, state, cursor: None, limit: None }
    }
}

/// Cells as columns: rows with the names of their fields would be several times as long.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeatStrip {
    /// All workloads.
    pub total: usize,
    pub names: Vec<String>,
    /// Statuses by the numbers in `state`.
    pub states: [WorkloadStatus; WorkloadStatus::ALL.len()],
    pub state: Vec<u8>,
    /// Three decimals; `None` if unknown.
    pub saving_ratio: Vec<Option<f32>>,
    /// 1 if the saving is one of the whole run and its interval leaves out zero, else 0.
    pub saving_is_clear: Vec<u8>,
}

impl DashboardModel {
    /// Returns the cells of all workloads that match.
    pub fn heat_strip(&self, query: &HeatStripQuery) -> Result<HeatStrip, InvalidQuery> {
        let found = self.sorted_workloads(&query.into())?;
        let mut strip = HeatStrip {
            total: self.workloads.len(),
            names: Vec::with_capacity(found.len()),
            states: WorkloadStatus::ALL,
            state: Vec::with_capacity(found.len()),
            saving_ratio: Vec::with_capacity(found.len()),
            saving_is_clear: Vec::with_capacity(found.len()),
        };
        for (name, workload) in found {
            let figures = workload.figures.as_deref();
            let summary = SavingSummary::of(figures);
            let is_clear = summary.is_whole() && matches!(summary.verdict(), SavingVerdict::Saved | SavingVerdict::Lost);
            strip.names.push(name.to_owned());
            strip.state.push(self.state(workload) as u8);
            let ratio = figures.and_then(|figures| figures.saving_ratio);
            strip.saving_ratio.push(ratio.map(|ratio| ((ratio * 1e3).round() / 1e3) as f32));
            strip.saving_is_clear.push(u8::from(is_clear));
        }
        Ok(strip)
    }
}
