//! Step 4: writes a checked change. The only step that touches the cluster.

use eadt_cluster::{Cluster, ClusterError, ManagedWorkload, RollbackRequest};

use crate::check::CheckedChange;

/// A workload as it is after a change was written durably.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenWorkload(pub(crate) ManagedWorkload);

/// Writes the change; asked again for the same decision, nothing changes a second time.
pub fn write_change(cluster: &dyn Cluster, checked: &CheckedChange) -> Result<WrittenWorkload, ClusterError> {
    cluster.apply(checked.change()).map(WrittenWorkload)
}

/// Takes back a change that did not become ready, or that the job took back.
pub fn roll_back(cluster: &dyn Cluster, roll_back: &RollbackRequest) -> Result<WrittenWorkload, ClusterError> {
    cluster.roll_back(roll_back).map(WrittenWorkload)
}
