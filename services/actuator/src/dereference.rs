//! Step 1: which object a decision speaks of. Pure.

use std::collections::BTreeMap;

use eadt_cluster::Managed;
use eadt_schemas::v1::Decision;

use crate::check::Refusal;

/// The managed workloads by name, as they were seen last.
pub type View = BTreeMap<String, Managed>;

/// The workload that the decision is for.
pub fn dereference<'a>(decision: &Decision, view: &'a View) -> Result<&'a Managed, Refusal> {
    view.get(&decision.workload).ok_or_else(|| Refusal::new("not_managed", "the workload has not opted in, or does not exist"))
}
