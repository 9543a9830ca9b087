//! Settings of the Kubernetes backend.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An agent or a collector without a report for this long counts as dead: both report every minute.
pub const REPORT_STALE_SECONDS: f64 = 180.0;

/// Settings of the Kubernetes backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesSettings {
    /// Context of the kubeconfig; absent: the current one, or the cluster that the process runs in. `--kubernetes CONTEXT` sets it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Namespace of the Lease by which actuators elect their leader; absent: that of the context or the service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only policies and workloads of this namespace are managed; absent: those of all namespaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_namespace: Option<String>,
    /// Name of that Lease. Default `eadt-actuator`.
    pub lease: String,
    /// Name of this actuator in the Lease, unique among them; absent: host name and process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Least time between two writes of a policy's status if only its figures changed, in seconds. 1 to 86,400. Default 300.
    pub status_seconds: f64,
    /// Figures that changed by less than this part are not written. 0 to 1. Default 0.05.
    pub status_change_ratio: f64,
    /// Telemetry counts as fresh for this long after the last window with a decision, in seconds. 1 to 86,400. Default 300.
    pub fresh_seconds: f64,
}

impl Default for KubernetesSettings {
    fn default() -> Self {
        Self {
            context: None,
            namespace: None,
            only_namespace: None,
            lease: "eadt-actuator".into(),
            identity: None,
            status_seconds: 300.0,
            status_change_ratio: 0.05,
            fresh_seconds: 300.0,
        }
    }
}

impl KubernetesSettings {
    /// Returns an error about the first value out of its range.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, low, high) in [
            ("status_seconds", self.status_seconds, 1.0, 86_400.0),
            ("status_change_ratio", self.status_change_ratio, 0.0, 1.0),
            ("fresh_seconds", self.fresh_seconds, 1.0, 86_400.0),
        ] {
            if !(low..=high).contains(&value) {
                return Err(format!("kubernetes.{name} is {value}, but must be within {low} and {high}"));
            }
        }
        if self.lease.is_empty() {
            return Err("kubernetes.lease must not be empty".into());
        }
        Ok(())
    }

    /// Returns the name of this process in the leader election.
    pub fn identity(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.identity.clone().unwrap_or_else(|| format!("{}-{}", host().trim(), std::process::id()))
    }
}
