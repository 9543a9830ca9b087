//! Quota of each owner in a partition: an owner that invents names fills its own share only, and newcomers of others keep theirs.

use std::collections::HashMap;
use std::fmt;

/// The owner of a workload: its namespace. Of a GPU without a workload: the collector that named it first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaOwner<'a> {
    Namespace(&'a str),
    Collector(&'a str),
}

impl<'a> QuotaOwner<'a> {
    /// Returns the owner of the workload `namespace/name`.
    pub fn of_workload(name: &'a str) -> Self {
        Self::Namespace(name.split_once('/').map_or(name, |(namespace, _)| namespace))
    }
}

impl fmt::Display for QuotaOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "namespace {name:?}"),
            Self::Collector(name) => write!(f, "collector {name:?}"),
        }
    }
}

/// Number of entries that one owner has in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnerUsage {
    pub workloads: usize,
    pub sources: usize,
    /// Largest number of sums: for each workload its sources times the slices of its open windows.
    pub sums: usize,
}

impl OwnerUsage {
    /// Returns the usage of one workload.
    pub fn of(sources: usize, sums: usize) -> Self {
        Self { workloads: 1, sources, sums }
    }
}

/// All owners with an entry in a partition; no more than there are workloads.
#[derive(Debug, Default)]
pub struct UsageByOwner {
    namespaces: HashMap<Box<str>, OwnerUsage>,
    collectors: HashMap<Box<str>, OwnerUsage>,
}

impl UsageByOwner {
    fn map_and_name<'a>(&mut self, tenant: QuotaOwner<'a>) -> (&mut HashMap<Box<str>, OwnerUsage>, &'a str) {
        match tenant {
            QuotaOwner::Namespace(name) => (&mut self.namespaces, name),
            QuotaOwner::Collector(name) => (&mut self.collectors, name),
        }
    }

    pub fn usage_of(&self, tenant: QuotaOwner<'_>) -> OwnerUsage {
        let found = match tenant {
            QuotaOwner::Namespace(name) => self.namespaces.get(name),
            QuotaOwner::Collector(name) => self.collectors.get(name),
        };
        found.copied().unwrap_or_default()
    }

    /// Adds a workload with this usage.
    pub fn add_workload(&mut self, tenant: QuotaOwner<'_>, usage: OwnerUsage) {
        let (all, name) = self.map_and_name(tenant);
        let held = all.entry(name.into()).or_default();
        held.workloads += usage.workloads;
        held.sources += usage.sources;
        held.sums += usage.sums;
    }

    /// Updates the usage of a workload. The owner is looked up only then: this is called for every event.
    pub fn update_workload<'a>(&mut self, tenant: impl FnOnce() -> QuotaOwner<'a>, before: OwnerUsage, after: OwnerUsage) {
        if before == after {
            return;
        }
        let (all, name) = self.map_and_name(tenant());
        if let Some(held) = all.get_mut(name) {
            held.sources = held.sources + after.sources - before.sources;
            held.sums = held.sums + after.sums - before.sums;
        }
    }

    /// Removes a workload, with the usage that it still had.
    pub fn remove_workload(&mut self, tenant: QuotaOwner<'_>, usage: OwnerUsage) {
        let (all, name) = self.map_and_name(tenant);
        let Some(held) = all.get_mut(name) else { return };
        held.workloads -= usage.workloads;
        held.sources -= usage.sources;
        held.sums -= usage.sums;
        if held.workloads == 0 {
            all.remove(name);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.namespaces.len() + self.collectors.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_what_came_and_has_not_left_and_nobody_is_remembered_for_nothing() {
        let mut tenants = UsageByOwner::default();
        let (team, node) = (QuotaOwner::of_workload("team/a"), QuotaOwner::Collector("team"));
        assert_eq!(team, QuotaOwner::Namespace("team"));
        tenants.add_workload(team, OwnerUsage::of(3, 6));
        tenants.add_workload(QuotaOwner::of_workload("team/b"), OwnerUsage::of(0, 0));
        tenants.add_workload(node, OwnerUsage::of(1, 2));
        tenants.update_workload(|| team, OwnerUsage::of(3, 6), OwnerUsage::of(5, 50));
        assert_eq!(tenants.usage_of(team), OwnerUsage { workloads: 2, sources: 5, sums: 50 });
        assert_eq!(tenants.usage_of(node), OwnerUsage { workloads: 1, sources: 1, sums: 2 });
        tenants.update_workload(|| team, OwnerUsage::of(5, 50), OwnerUsage::of(1, 5));
        tenants.update_workload(|| team, OwnerUsage::of(1, 5), OwnerUsage::of(1, 4));
        tenants.remove_workload(team, OwnerUsage::of(1, 4));
        assert_eq!(tenants.usage_of(team), OwnerUsage { workloads: 1, sources: 0, sums: 0 });
        tenants.remove_workload(team, OwnerUsage::of(0, 0));
        tenants.remove_workload(node, OwnerUsage::of(1, 2));
        assert_eq!((tenants.usage_of(team), tenants.len()), (OwnerUsage::default(), 0));
    }
}
