//! Rights of a client on a Kafka, in Kafka's own terms.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An operation that an access list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AclOperation {
    Read,
    Write,
    Create,
    Alter,
    Describe,
    AlterConfigs,
    DescribeConfigs,
}

impl AclOperation {
    /// Returns whether a principal with the right `self` has `other`, too.
    pub fn implies(self, other: Self) -> bool {
        self == other
            || (other == Self::Describe && matches!(self, Self::Read | Self::Write | Self::Alter))
            || (other == Self::DescribeConfigs && self == Self::AlterConfigs)
    }
}

impl fmt::Display for AclOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Resource that an operation needs a right on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AclResource {
    Topic(String),
    Group(String),
    TransactionalId(String),
    Cluster,
}

impl AclResource {
    /// Returns its name; the cluster has a fixed one.
    pub fn name(&self) -> &str {
        match self {
            Self::Topic(name) | Self::Group(name) | Self::TransactionalId(name) => name,
            Self::Cluster => "kafka-cluster",
        }
    }

    /// Returns its kind, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Topic(_) => "topic",
            Self::Group(_) => "group",
            Self::TransactionalId(_) => "transactional id",
            Self::Cluster => "cluster",
        }
    }
}

impl fmt::Display for AclResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("the cluster"),
            named => write!(f, "{} {}", named.kind(), named.name()),
        }
    }
}

/// Way in which the name of a resource is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PatternType {
    Literal,
    /// Everything whose name starts so.
    #[serde(rename = "prefix")]
    Prefixed,
}

/// One entry of an access list: an operation that is allowed on a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AclEntry {
    pub resource: AclResource,
    pub pattern: PatternType,
    pub operation: AclOperation,
}

impl AclEntry {
    pub fn on(resource: AclResource, operation: AclOperation) -> Self {
        Self { resource, pattern: PatternType::Literal, operation }
    }

    pub fn on_prefix(resource: AclResource, operation: AclOperation) -> Self {
        Self { resource, pattern: PatternType::Prefixed, operation }
    }
}

impl fmt::Display for AclEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.operation, self.resource)?;
        if self.pattern == PatternType::Prefixed { f.write_str("*") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_named_in_kafkas_words() {
        let topic = AclResource::Topic("eadt.decisions.v1".into());
        assert_eq!(AclEntry::on(topic, AclOperation::Write).to_string(), "Write on topic eadt.decisions.v1");
        let ids = AclResource::TransactionalId("processor-".into());
        assert_eq!(AclEntry::on_prefix(ids, AclOperation::Write).to_string(), "Write on transactional id processor-*");
        assert_eq!(AclEntry::on(AclResource::Cluster, AclOperation::Create).to_string(), "Create on the cluster");
    }

    #[test]
    fn reading_and_writing_imply_describing_and_nothing_else() {
        use AclOperation::{Alter, AlterConfigs, Create, Describe, DescribeConfigs, Read, Write};
        for (one, other, implied) in [
            (Read, Describe, true),
            (Write, Describe, true),
            (Alter, Describe, true),
            (AlterConfigs, DescribeConfigs, true),
            (Create, Describe, false),
            (Read, Write, false),
            (Write, Read, false),
            (Describe, DescribeConfigs, false),
            (DescribeConfigs, Describe, false),
            (Read, Read, true),
        ] {
            assert_eq!(one.implies(other), implied, "{one} {other}");
        }
    }
}
