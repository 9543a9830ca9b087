//! Names of objects and policies, and the order of their versions. Pure.

use crate::objects::kinds::WorkloadKind;
use crate::objects::object::WorkloadObject;

/// Names an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
}

impl ObjectKey {
    pub fn of(observed: &WorkloadObject) -> Self {
        Self { kind: observed.kind.kind, namespace: observed.namespace.clone(), name: observed.name.clone() }
    }

    pub fn kind(&self) -> Option<&'static WorkloadKind> {
        crate::objects::kinds::WORKLOAD_KINDS.iter().find(|kind| kind.kind == self.kind)
    }
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Namespace and name of a policy.
pub type PolicyKey = (String, String);

/// Versions of one object grow; what cannot be compared is taken.
pub fn is_older_version(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}
