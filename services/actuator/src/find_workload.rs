//! Step 1: finds the object of a decision. Pure.

use std::collections::BTreeMap;

use eadt_cluster::ManagedWorkload;
use eadt_schemas::v1::Decision;

use crate::check::DecisionRefusal;

/// The managed workloads by name, as they were seen last.
pub type WorkloadView = BTreeMap<String, ManagedWorkload>;

/// Returns the workload that the decision is for.
pub fn find_workload<'a>(decision: &Decision, view: &'a WorkloadView) -> Result<&'a ManagedWorkload, DecisionRefusal> {
    view.get(&decision.workload)
        .ok_or_else(|| DecisionRefusal::new("not_managed", "the workload has not opted in, or does not exist"))
}
