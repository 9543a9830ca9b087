use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Headers of a dead letter beside the CloudEvents ones. Its value is the original record's value, byte for byte, or the beginning
/// of one that is too large for its topic.
pub mod dead_letter_header {
    /// A [`super::DeadLetterReason`] in snake case.
    pub const REASON: &str = "eadt_reason";
    /// The reason in words.
    pub const DETAIL: &str = "eadt_detail";
    /// The offending field, if one is to blame.
    pub const FIELD: &str = "eadt_field";
    pub const ORIGIN_TOPIC: &str = "eadt_origin_topic";
    pub const ORIGIN_PARTITION: &str = "eadt_origin_partition";
    pub const ORIGIN_OFFSET: &str = "eadt_origin_offset";
    pub const ORIGIN_TIMESTAMP: &str = "eadt_origin_timestamp";
    pub const ORIGIN_KEY: &str = "eadt_origin_key";
    /// Length and SHA-256 of the whole key, in decimal and in lower-case hexadecimal digits; only where it was cut off.
    pub const ORIGIN_KEY_BYTES: &str = "eadt_origin_key_bytes";
    pub const ORIGIN_KEY_SHA256: &str = "eadt_origin_key_sha256";
    /// The same of the value.
    pub const ORIGIN_VALUE_BYTES: &str = "eadt_origin_value_bytes";
    pub const ORIGIN_VALUE_SHA256: &str = "eadt_origin_value_sha256";
    /// The service that refused it.
    pub const REFUSED_BY: &str = "eadt_refused_by";
}

/// Why a record was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeadLetterReason {
    /// Not JSON, or JSON of another shape, or without a value.
    Malformed,
    /// A known field has an impossible value.
    InvalidValue,
    /// Event time lies further ahead of the log's stamp than allowed.
    FutureTime,
    /// Its window is closed.
    Late,
    /// Not newer than the source's last event.
    Stale,
    /// The cap on workloads, sources, spans or open windows is reached.
    StateLimit,
    /// The record's key is not the workload or device that it speaks of.
    WrongKey,
    /// An event type that does not belong into this topic.
    UnexpectedType,
}

impl DeadLetterReason {
    pub const ALL: [Self; 8] = [
        Self::Malformed,
        Self::InvalidValue,
        Self::FutureTime,
        Self::Late,
        Self::Stale,
        Self::StateLimit,
        Self::WrongKey,
        Self::UnexpectedType,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::InvalidValue => "invalid_value",
            Self::FutureTime => "future_time",
            Self::Late => "late",
            Self::Stale => "stale",
            Self::StateLimit => "state_limit",
            Self::WrongKey => "wrong_key",
            Self::UnexpectedType => "unexpected_type",
        }
    }
}
