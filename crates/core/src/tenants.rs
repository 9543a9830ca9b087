//! Who takes how much of a partition's room: so that one who invents names fills his own share, and newcomers of others have theirs.

use std::collections::HashMap;
use std::fmt;

/// Whose a workload is: a namespace's; of a GPU without a workload, the collector's that named it first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tenant<'a> {
    Namespace(&'a str),
    Collector(&'a str),
}

impl<'a> Tenant<'a> {
    /// Of a workload, `namespace/name`.
    pub fn of_workload(name: &'a str) -> Self {
        Self::Namespace(name.split_once('/').map_or(name, |(namespace, _)| namespace))
    }
}

impl fmt::Display for Tenant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "namespace {name:?}"),
            Self::Collector(name) => write!(f, "collector {name:?}"),
        }
    }
}

/// What one of them has in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    pub workloads: usize,
    pub sources: usize,
    /// Of each workload its sources, times the stretches of its open windows: what they may come to hold sums of.
    pub sums: usize,
}

impl Held {
    /// What a workload takes.
    pub fn of(sources: usize, sums: usize) -> Self {
        Self { workloads: 1, sources, sums }
    }
}

/// All who have something in a partition; no more than there are workloads.
#[derive(Debug, Default)]
pub struct Tenants {
    namespaces: HashMap<Box<str>, Held>,
    collectors: HashMap<Box<str>, Held>,
}

impl Tenants {
    fn split<'a>(&mut self, tenant: Tenant<'a>) -> (&mut HashMap<Box<str>, Held>, &'a str) {
        match tenant {
            Tenant::Namespace(name) => (&mut self.namespaces, name),
            Tenant::Collector(name) => (&mut self.collectors, name),
        }
    }

    pub fn held(&self, tenant: Tenant<'_>) -> Held {
        let found = match tenant {
            Tenant::Namespace(name) => self.namespaces.get(name),
            Tenant::Collector(name) => self.collectors.get(name),
        };
        found.copied().unwrap_or_default()
    }

    /// A workload came, and takes this.
    pub fn came(&mut self, tenant: Tenant<'_>, taken: Held) {
        let (all, name) = self.split(tenant);
        let held = all.entry(name.into()).or_default();
        held.workloads += taken.workloads;
        held.sources += taken.sources;
        held.sums += taken.sums;
    }

    /// A workload takes more or less than before. Whose it is, is asked only then: this is called for every event.
    pub fn changed<'a>(&mut self, tenant: impl FnOnce() -> Tenant<'a>, before: Held, after: Held) {
        if before == after {
            return;
        }
        let (all, name) = self.split(tenant());
        if let Some(held) = all.get_mut(name) {
            held.sources = held.sources + after.sources - before.sources;
            held.sums = held.sums + after.sums - before.sums;
        }
    }

    /// A workload is forgotten, with what it still took.
    pub fn left(&mut self, tenant: Tenant<'_>, taken: Held) {
        let (all, name) = self.split(tenant);
        let Some(held) = all.get_mut(name) else { return };
        held.workloads -= taken.workloads;
        held.sources -= taken.sources;
        held.sums -= taken.sums;
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
        let mut tenants = Tenants::default();
        let (team, node) = (Tenant::of_workload("team/a"), Tenant::Collector("team"));
        assert_eq!(team, Tenant::Namespace("team"));
        tenants.came(team, Held::of(3, 6));
        tenants.came(Tenant::of_workload("team/b"), Held::of(0, 0));
        tenants.came(node, Held::of(1, 2));
        tenants.changed(|| team, Held::of(3, 6), Held::of(5, 50));
        assert_eq!(tenants.held(team), Held { workloads: 2, sources: 5, sums: 50 });
        assert_eq!(tenants.held(node), Held { workloads: 1, sources: 1, sums: 2 });
        tenants.changed(|| team, Held::of(5, 50), Held::of(1, 5));
        tenants.changed(|| team, Held::of(1, 5), Held::of(1, 4));
        tenants.left(team, Held::of(1, 4));
        assert_eq!(tenants.held(team), Held { workloads: 1, sources: 0, sums: 0 });
        tenants.left(team, Held::of(0, 0));
        tenants.left(node, Held::of(1, 2));
        assert_eq!((tenants.held(team), tenants.len()), (Held::default(), 0));
    }
}
