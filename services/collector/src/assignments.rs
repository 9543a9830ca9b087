//! The workloads that a GPU works for, as set by the operator or by a file.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use eadt_recordings::series::is_workload;
use eadt_schemas::v1::ShareMethod;
use eadt_service::{Shutdown, files};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::files::WatchedFiles;
use crate::metrics::CollectorMetrics;
use crate::tenancy::BoardTenant;

/// One statement: this device works for this workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GpuAssignment {
    /// UUID of the GPU, its index on this node, or `*` for every GPU that no other assignment names.
    pub device: String,
    /// `namespace/name`.
    pub workload: String,
    /// Part of the GPU's power attributed to it, above 0 to 1; default: an equal part among the GPU's workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

/// Refuses what cannot be meant: no workload, a workload twice, shares above the whole.
pub(crate) fn check(assignments: &[GpuAssignment]) -> Result<(), String> {
    let mut sums: HashMap<&str, (f64, Vec<&str>)> = HashMap::new();
    for a in assignments {
        if a.device.is_empty() {
            return Err(format!("no device is named for workload={}", a.workload));
        }
        if !is_workload(&a.workload) {
            return Err(format!("{:?} is not namespace/name, device={}", a.workload, a.device));
        }
        if let Some(share) = a.share.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
            return Err(format!("share={share} is not above 0 and at most 1, device={}", a.device));
        }
        let (sum, workloads) = sums.entry(&a.device).or_default();
        *sum += a.share.unwrap_or(0.0);
        if *sum > 1.0 + 1e-9 {
            return Err(format!("the shares sum to {sum}, more than the whole, device={}", a.device));
        }
        if workloads.contains(&a.workload.as_str()) {
            return Err(format!("workload={} is named twice, device={}", a.workload, a.device));
        }
        workloads.push(&a.workload);
    }
    Ok(())
}

fn grouped(assignments: &[GpuAssignment]) -> HashMap<String, Arc<[BoardTenant]>> {
    let mut by_device: HashMap<&str, Vec<&GpuAssignment>> = HashMap::new();
    for a in assignments {
        by_device.entry(&a.device).or_default().push(a);
    }
    by_device
        .into_iter()
        .map(|(device, list)| {
            let assigned: f64 = list.iter().filter_map(|a| a.share).sum();
            let open = list.iter().filter(|a| a.share.is_none()).count();
            let tenants = list.iter().map(|a| {
                let equal = (list.len() > 1).then(|| (1.0 - assigned).max(0.0) / open as f64);
                let method = if a.share.is_some() { Some(ShareMethod::Assigned) } else { equal.map(|_| ShareMethod::Equal) };
                BoardTenant { workload: a.workload.clone(), share: a.share.or(equal), method }
            });
            (device.to_owned(), tenants.collect())
        })
        .collect()
}

/// The assignments in force. Clones share them.
#[derive(Debug, Clone)]
pub struct AssignmentTable(Arc<AssignmentMaps>);

#[derive(Debug)]
struct AssignmentMaps {
    fixed: HashMap<String, Arc<[BoardTenant]>>,
    filed: RwLock<HashMap<String, Arc<[BoardTenant]>>>,
}

impl AssignmentTable {
    /// Creates assignments that hold unless a file overrides them.
    pub fn new(fixed: &[GpuAssignment]) -> Self {
        Self(Arc::new(AssignmentMaps { fixed: grouped(fixed), filed: RwLock::default() }))
    }

    /// Returns the workloads of a GPU; `None` if it has no assignment.
    pub fn of(&self, uuid: &str, index: Option<u32>) -> Option<Arc<[BoardTenant]>> {
        let index = index.map(|index| index.to_string());
        let filed = self.0.filed.read().unwrap_or_else(PoisonError::into_inner);
        [&*filed, &self.0.fixed]
            .into_iter()
            .find_map(|map| map.get(uuid).or_else(|| index.as_ref().and_then(|index| map.get(index))).or_else(|| map.get("*")))
            .cloned()
    }

    fn replace(&self, assignments: &[GpuAssignment]) {
        *self.0.filed.write().unwrap_or_else(PoisonError::into_inner) = grouped(assignments);
    }

    /// Reads the file now. The former content stays in force if the new one is invalid.
    pub fn load(&self, path: &Path) -> Result<usize, String> {
        let list = read(&files::read_bytes(path, files::SMALL_BYTES).map_err(|error| format!("cannot read it: {error}"))?)?;
        self.replace(&list);
        Ok(list.len())
    }

    /// Follows the file until `shutdown`.
    pub(crate) async fn follow(self, path: PathBuf, metrics: CollectorMetrics, shutdown: Shutdown) {
        let mut files = WatchedFiles::new([path]);
        loop {
            let in_force = files.reload_if_changed(|[path]| {
                let count = self.load(path)?;
                tracing::info!(path = %path.display(), count, "assignments read");
                Ok(())
            });
            metrics.assignments_failed.set(i64::from(!in_force));
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
        }
    }
}

/// Returns the content of an assignments file.
pub fn read(text: &[u8]) -> Result<Vec<GpuAssignment>, String> {
    let list: Vec<GpuAssignment> =
        serde_json::from_slice(text).map_err(|error| format!("not a JSON array of assignments: {error}"))?;
    check(&list)?;
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a(device: &str, workload: &str, share: Option<f64>) -> GpuAssignment {
        GpuAssignment { device: device.into(), workload: workload.into(), share }
    }

    #[test]
    fn the_more_specific_statement_holds_and_open_shares_split_the_rest() {
        let all = [a("*", "n/rest", None), a("0", "n/a", Some(0.5)), a("0", "n/b", None), a("0", "n/c", None)];
        check(&all).unwrap();
        let of = AssignmentTable::new(&all);
        let shares: Vec<_> = of.of("GPU-x", Some(0)).unwrap().iter().map(|t| (t.workload.clone(), t.share)).collect();
        assert_eq!(shares, [("n/a".into(), Some(0.5)), ("n/b".into(), Some(0.25)), ("n/c".into(), Some(0.25))]);
        assert_eq!(of.of("GPU-y", Some(1)).unwrap()[0].share, None);
        assert!(AssignmentTable::new(&[]).of("GPU-y", Some(1)).is_none());
    }

    #[test]
    fn a_file_that_cannot_be_used_leaves_the_last_one_in_force() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = AssignmentTable::new(&[a("*", "n/fixed", None)]);
        std::fs::write(file.path(), r#"[{"device":"GPU-x","workload":"n/a"}]"#).unwrap();
        assert_eq!(of.load(file.path()), Ok(1));
        for bad in ["", "{}", r#"[{"device":"0","workload":"a"}]"#, r#"[{"device":"0","workload":"n/a","share":2}]"#] {
            std::fs::write(file.path(), bad).unwrap();
            assert!(of.load(file.path()).is_err(), "{bad}");
        }
        assert_eq!(of.of("GPU-x", None).unwrap()[0].workload, "n/a");
        assert_eq!(of.of("GPU-y", None).unwrap()[0].workload, "n/fixed");
    }

    #[test]
    fn shares_above_the_whole_are_refused() {
        assert!(check(&[a("0", "n/a", Some(0.6)), a("0", "n/b", Some(0.6))]).is_err());
        assert!(check(&[a("0", "n/a", None), a("0", "n/a", None)]).is_err());
        assert!(check(&[a("0", "n/a", Some(f64::NAN))]).is_err());
    }
}
