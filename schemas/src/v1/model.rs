use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::EventTime;

/// A learned model, published for the processor. Key: the model's name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
#[schemars(extend("required" = ["time", "name", "version"]))]
pub struct Model {
    /// When it was published.
    #[serde(default = "EventTime::missing")]
    pub time: EventTime,
    /// The model's name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Version of the parameters; grows.
    #[schemars(length(min = 1, max = 253))]
    pub version: String,
    /// Fingerprint of the data that it was trained on.
    pub data_fingerprint: String,
    /// Quality on held-back data, with units in the names.
    #[serde(deserialize_with = "super::common::unique_numbers")]
    pub metrics: BTreeMap<String, f64>,
    /// The parameters, in the model's own versioned form.
    pub parameters: serde_json::Value,
}
