//! One line of an event log: a CloudEvents 1.0 JSON object with what the log knew beside it.
//!
//! The extension attributes are `partitionkey` (the CloudEvents extension of that name) and `eadttopic`,
//! `eadtpartition`, `eadtoffset`, `eadtstamp`, and for some events `eadtsentagain`. Everything but `type`, `time` and `data` may be absent in a
//! hand-written log.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{EventTime, EventType, Topic};

/// An event with its place in the log, as event logs and archives keep it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoggedEvent {
    pub specversion: String,
    /// `ce_type`.
    #[serde(rename = "type")]
    pub kind: String,
    pub source: String,
    pub id: String,
    pub time: EventTime,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub subject: String,
    #[serde(default = "json", skip_serializing_if = "String::is_empty")]
    pub datacontenttype: String,
    /// The record's key.
    #[serde(rename = "partitionkey", default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Topic without prefix; absent: the one that the type belongs to.
    #[serde(rename = "eadttopic", default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<Topic>,
    #[serde(rename = "eadtpartition", default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    #[serde(rename = "eadtoffset", default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// The log's append time.
    #[serde(rename = "eadtstamp", default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<EventTime>,
    /// The record has the header `envelope::header::SENT_AGAIN`.
    #[serde(rename = "eadtsentagain", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_sent_again: bool,
    /// Positions of the processor's inputs, for outputs of the processor (header `envelope::header::INPUT_POSITIONS`).
    #[serde(rename = "eadtinputpositions", default, skip_serializing_if = "Option::is_none")]
    pub input_positions: Option<String>,
    /// Settings of the processor, for outputs of the processor (header `envelope::header::SETTINGS`).
    #[serde(rename = "eadtsettings", default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<String>,
    /// Reason of a dead letter: a `DeadLetterReason` in snake case.
    #[serde(rename = "eadtreason", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Text of a dead letter's reason.
    #[serde(rename = "eadtdetail", default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The record's value; absent: a tombstone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

/// Returns the value of an event whose data is in `data_base64`, as client libraries write bytes of any kind; empty, which is no
/// JSON, if it is damaged.
pub fn value_of_base64(data: &str) -> String {
    STANDARD.decode(data).ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default()
}

fn json() -> String {
    "application/json".to_owned()
}

impl LoggedEvent {
    /// Returns the topic that this event belongs to, `None` if neither topic nor type is known.
    pub fn topic(&self) -> Option<Topic> {
        self.topic.or_else(|| EventType::from_name(&self.kind).and_then(EventType::topic))
    }
}
