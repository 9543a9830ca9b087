//! Attribution of a board's parts to workloads over time. Pure.
//!
//! A stay is a workload's time on a board. When the workloads of a board change, the reading at the change belongs to the new
//! ones and, marked `last`, to those that left. Each stay has its own `tenure`, within which alone differences may be taken.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{GpuTelemetry, ShareMethod};

/// A workload on a board.
#[derive(Debug, Clone, PartialEq)]
pub struct BoardTenant {
    /// `namespace/name`.
    pub workload: String,
    /// Part of the board's power attributed to it, 0 to 1; `None` for all of it.
    pub share: Option<f64>,
    /// Method that found the share; `None` if there is none.
    pub method: Option<ShareMethod>,
}

/// Returns the part of a board that is attributed to no workload, or 0 if it is negligible.
pub fn unattributed_share(tenants: &[BoardTenant]) -> f64 {
    if tenants.is_empty() || tenants.iter().any(|tenant| tenant.share.is_none()) {
        return 0.0;
    }
    let left = 1.0 - tenants.iter().filter_map(|tenant| tenant.share).sum::<f64>();
    if left > 1e-6 { left.min(1.0) } else { 0.0 }
}

/// Attribution of a reading to a workload, as in a telemetry event.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReadingAttribution {
    /// `None` if it is attributed to no workload.
    pub workload: Option<String>,
    /// Event time of the stay's first reading in microseconds: unique over restarts of a collector, too, which cannot know whether
    /// the board changed hands meanwhile.
    pub tenure: u64,
    pub share: Option<f64>,
    pub share_method: Option<ShareMethod>,
    /// Number of workloads that share the board, if there are several.
    pub tenants: Option<u32>,
    /// The stay ends with this reading.
    pub last: bool,
}

impl ReadingAttribution {
    /// Writes the portion into an event.
    pub fn apply(&self, event: &mut GpuTelemetry) {
        event.workload.clone_from(&self.workload);
        event.tenure = Some(self.tenure);
        event.share = self.share;
        event.share_method = self.share_method;
        event.tenants = self.tenants;
        event.last = self.last;
    }
}

/// The stays on one board.
#[derive(Debug, Clone, Default)]
pub struct BoardTenancies(Vec<ReadingAttribution>);

impl BoardTenancies {
    /// Returns the portions of a reading at `time`, which must be newer than the one before: first of the stays that it ends.
    pub fn observe(&mut self, time: EventTime, tenants: &[BoardTenant]) -> Vec<ReadingAttribution> {
        let rest = unattributed_share(tenants);
        // While a board is shared, the unattributed part may come and go: its stay continues with a share of 0, so that the
        // parts are the whole at every moment. Shares by use change with every reading, so that it exists from the start.
        let shared = tenants.iter().any(|tenant| tenant.share.is_some());
        let by_use = |method| matches!(method, ShareMethod::ProcessUtilization | ShareMethod::Profiling);
        let varies = tenants.iter().any(|tenant| tenant.method.is_some_and(by_use));
        let stays_on = |stay: &ReadingAttribution| match &stay.workload {
            Some(workload) => tenants.iter().any(|tenant| tenant.workload == *workload),
            None => tenants.is_empty() || shared,
        };
        let (continuing, left): (Vec<_>, Vec<_>) = std::mem::take(&mut self.0).into_iter().partition(stays_on);
        let mut portions: Vec<ReadingAttribution> =
            left.into_iter().map(|stay| ReadingAttribution { last: true, ..stay }).collect();
        let mut add = |workload: Option<&str>, share: Option<f64>, share_method: Option<ShareMethod>| {
            let known = continuing.iter().find(|stay| stay.workload.as_deref() == workload);
            let tenure = known.map_or_else(|| time.micros().unsigned_abs(), |stay| stay.tenure);
            let tenants = (tenants.len() > 1).then_some(tenants.len() as u32);
            self.0.push(ReadingAttribution {
                workload: workload.map(str::to_owned),
                tenure,
                share,
                share_method,
                tenants,
                last: false,
            });
        };
        if tenants.is_empty() {
            add(None, None, None);
        }
        for tenant in tenants {
            add(Some(&tenant.workload), tenant.share, tenant.method.filter(|_| tenant.share.is_some()));
        }
        if rest > 0.0 || varies || continuing.iter().any(|stay| stay.workload.is_none() && shared) {
            add(None, Some(rest), tenants.iter().find_map(|tenant| tenant.method));
        }
        portions.extend(self.0.iter().cloned());
        portions
    }

    /// Ends every stay.
    pub fn end_all(&mut self) -> Vec<ReadingAttribution> {
        self.0.drain(..).map(|stay| ReadingAttribution { last: true, ..stay }).collect()
    }
}
