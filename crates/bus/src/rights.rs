//! What a client may be allowed to do on a Kafka, in Kafka's own words.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An operation that an access list names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operation {
    Read,
    Write,
    Create,
    Alter,
    Describe,
    AlterConfigs,
    DescribeConfigs,
}

impl Operation {
    /// Whether who may do `self` may do `other`, too, without a right of its own.
    pub fn implies(self, other: Self) -> bool {
        self == other
            || (other == Self::Describe && matches!(self, Self::Read | Self::Write | Self::Alter))
            || (other == Self::DescribeConfigs && self == Self::AlterConfigs)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What an operation is done to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    Topic(String),
    Group(String),
    TransactionalId(String),
    Cluster,
}

impl Resource {
    /// Its name; the cluster has a fixed one.
    pub fn name(&self) -> &str {
        match self {
            Self::Topic(name) | Self::Group(name) | Self::TransactionalId(name) => name,
            Self::Cluster => "kafka-cluster",
        }
    }

    /// Its kind, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Topic(_) => "topic",
            Self::Group(_) => "group",
            Self::TransactionalId(_) => "transactional id",
            Self::Cluster => "cluster",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("the cluster"),
            named => write!(f, "{} {}", named.kind(), named.name()),
        }
    }
}

/// How the name of a resource is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    Literal,
    /// Everything whose name starts so.
    #[serde(rename = "prefix")]
    Prefixed,
}

/// One entry of an access list: an operation that is allowed on a resource.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Right {
    pub resource: Resource,
    pub pattern: Pattern,
    pub operation: Operation,
}

impl Right {
    pub fn on(resource: Resource, operation: Operation) -> Self {
        Self { resource, pattern: Pattern::Literal, operation }
    }

    pub fn on_prefix(resource: Resource, operation: Operation) -> Self {
        Self { resource, pattern: Pattern::Prefixed, operation }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.operation, self.resource)?;
        if self.pattern == Pattern::Prefixed { f.write_str("*") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_said_in_kafkas_words() {
        let topic = Resource::Topic("eadt.decisions.v1".into());
        assert_eq!(Right::on(topic, Operation::Write).to_string(), "Write on topic eadt.decisions.v1");
        let ids = Resource::TransactionalId("processor-".into());
        assert_eq!(Right::on_prefix(ids, Operation::Write).to_string(), "Write on transactional id processor-*");
        assert_eq!(Right::on(Resource::Cluster, Operation::Create).to_string(), "Create on the cluster");
    }

    #[test]
    fn reading_and_writing_imply_describing_and_nothing_else() {
        use Operation::{Alter, AlterConfigs, Create, Describe, DescribeConfigs, Read, Write};
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
