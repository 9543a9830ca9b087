//! Step 4: writes a checked change. The only step that touches the cluster.

use eadt_cluster::{Cluster, ClusterError, Managed, RollBack};

use crate::check::Checked;

/// A workload as it is after a change was written durably.
#[derive(Debug, Clone, PartialEq)]
pub struct Written(pub(crate) Managed);

/// Writes the change; asked again for the same decision, nothing changes a second time.
pub fn apply(cluster: &dyn Cluster, checked: &Checked) -> Result<Written, ClusterError> {
    cluster.apply(checked.change()).map(Written)
}

/// Takes back a change that did not become ready.
pub fn roll_back(cluster: &dyn Cluster, roll_back: &RollBack) -> Result<Written, ClusterError> {
    cluster.roll_back(roll_back).map(Written)
}
