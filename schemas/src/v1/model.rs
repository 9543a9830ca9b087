use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::EventTime;

/// A learned model, published for the processor. Key: the model's name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Model {
    pub time: EventTime,
    pub name: String,
    pub version: String,
    /// Fingerprint of the data that it was trained on.
    pub data_fingerprint: String,
    /// Quality on held-back data, with units in the names.
    pub metrics: BTreeMap<String, f64>,
    /// The parameters, in the model's own versioned form.
    pub parameters: serde_json::Value,
}
