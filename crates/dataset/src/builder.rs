use std::collections::BTreeMap;

use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, WindowKind};

use crate::column::DatasetTable;
use crate::datasheet::{self, DatasetCounts};
use crate::history::{WorkloadHistory, usable};
use crate::{decisions, windows};

/// Collects events; their order does not matter.
#[derive(Debug, Default)]
pub struct DatasetBuilder {
    workloads: BTreeMap<String, WorkloadHistory>,
    counts: DatasetCounts,
}

/// The tables, and notes for their users.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// Windows by workload and window start.
    pub windows: DatasetTable,
    /// Decisions by workload, time and id.
    pub decisions: DatasetTable,
    pub counts: DatasetCounts,
    /// SHA-256 of all cells in hexadecimal: equal data sets have equal ones.
    pub fingerprint: String,
}

impl DatasetBuilder {
    pub fn window(&mut self, window: EfficiencyWindow) {
        if window.kind == WindowKind::Span {
            self.counts.spans_left_out += 1;
            return;
        }
        let history = self.workloads.entry(window.workload.clone()).or_default();
        self.counts.repeated_events += u64::from(!history.window(window));
    }

    pub fn decision(&mut self, decision: Decision) {
        let history = self.workloads.entry(decision.workload.clone()).or_default();
        self.counts.repeated_events += u64::from(!history.decision(decision));
    }

    pub fn actuation(&mut self, actuation: Actuation) {
        let history = self.workloads.entry(actuation.workload.clone()).or_default();
        self.counts.repeated_events += u64::from(!history.actuation(actuation));
    }

    /// Counts a record that is no valid event: it is in no row.
    pub fn refused(&mut self) {
        self.counts.refused_events += 1;
    }

    /// Offsets that the archive had and no file has now: counted, in no row.
    pub fn removed(&mut self, offsets: u64) {
        self.counts.removed_offsets += offsets;
    }

    pub fn build(mut self) -> Dataset {
        let mut counts = std::mem::take(&mut self.counts);
        for (workload, history) in &self.workloads {
            counts.workload(workload, history.windows(), usable);
            counts.actuations_without_decision += history.actuations_without_decision();
        }
        let windows: Vec<_> = self.workloads.values().flat_map(windows::rows).collect();
        let decisions: Vec<_> = self.workloads.values().flat_map(decisions::rows).collect();
        let (windows, decisions) = (windows::build(&windows), decisions::build(&decisions));
        let fingerprint = datasheet::fingerprint(&[&windows, &decisions]);
        Dataset { windows, decisions, counts, fingerprint }
    }
}
