//! Problems for which a policy permits nothing, for its conditions.

use std::fmt;

/// A reason as conditions have it: one word, fixed, for machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProblemReason {
    /// The target is not there.
    TargetNotFound,
    /// The target is of a kind that EADT does not know.
    UnsupportedKind,
    /// Several policies have the same target.
    TargetConflict,
    /// The target belongs to another policy's target, or the other way round.
    OwnerConflict,
    /// The schedule names a time zone that there is not.
    InvalidSchedule,
    /// The controller's settings are not such.
    InvalidSettings,
    /// Two fields contradict each other.
    Contradiction,
    /// A label or an annotation cannot be read.
    MalformedAnnotation,
    /// The object cannot be read as a policy.
    Unreadable,
}

impl ProblemReason {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TargetNotFound => "TargetNotFound",
            Self::UnsupportedKind => "UnsupportedKind",
            Self::TargetConflict => "TargetConflict",
            Self::OwnerConflict => "OwnerConflict",
            Self::InvalidSchedule => "InvalidSchedule",
            Self::InvalidSettings => "InvalidSettings",
            Self::Contradiction => "Contradiction",
            Self::MalformedAnnotation => "MalformedAnnotation",
            Self::Unreadable => "Unreadable",
        }
    }
}

impl fmt::Display for ProblemReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The reason why a policy permits nothing. While there is one, no workload is changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{message}")]
pub struct PolicyProblem {
    pub reason: ProblemReason,
    /// The problem, its object, and the remedy.
    pub message: String,
}

impl PolicyProblem {
    pub fn new(reason: ProblemReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}
