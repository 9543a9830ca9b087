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

    /// A workload came, with so many sources.
    pub fn came(&mut self, tenant: Tenant<'_>, sources: usize) {
        let (all, name) = self.split(tenant);
        let held = all.entry(name.into()).or_default();
        held.workloads += 1;
        held.sources += sources;
    }

    /// The sources of a workload became more or fewer.
    pub fn changed(&mut self, tenant: Tenant<'_>, before: usize, after: usize) {
        if before == after {
            return;
        }
        let (all, name) = self.split(tenant);
        if let Some(held) = all.get_mut(name) {
            held.sources = held.sources + after - before;
        }
    }

    /// A workload is forgotten, with what sources it still had.
    pub fn left(&mut self, tenant: Tenant<'_>, sources: usize) {
        let (all, name) = self.split(tenant);
        let Some(held) = all.get_mut(name) else { return };
        held.workloads -= 1;
        held.sources -= sources;
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
        tenants.came(team, 3);
        tenants.came(Tenant::of_workload("team/b"), 0);
        tenants.came(node, 1);
        tenants.changed(team, 3, 5);
        assert_eq!(tenants.held(team), Held { workloads: 2, sources: 5 });
        assert_eq!(tenants.held(node), Held { workloads: 1, sources: 1 });
        tenants.changed(team, 5, 1);
        tenants.left(team, 1);
        assert_eq!(tenants.held(team), Held { workloads: 1, sources: 0 });
        tenants.left(team, 0);
        tenants.left(node, 1);
        assert_eq!((tenants.held(team), tenants.len()), (Held::default(), 0));
    }
}
