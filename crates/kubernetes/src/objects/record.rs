//! EADT's annotations on a workload's object: the last change, and the record of taken-over fields. Pure.

use eadt_cluster::AppliedDecision;
use eadt_schemas::EventTime;
use eadt_schemas::v1::Precision;
use serde::{Deserialize, Serialize};

/// The annotation with the last change.
pub const APPLIED: &str = "eadt.dev/applied";
/// The annotation with the fields that were taken over, their former values and owners.
pub const TAKEN_OVER: &str = "eadt.dev/taken-over";

/// Restarts that are remembered: as many as the largest budget of a policy.
const MAX_RESTARTS: usize = 1000;
const DAY_SECONDS: f64 = 86_400.0;

/// The mark that changes leave on the object.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeAnnotation {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied: Option<AppliedDecision>,
    /// The id of the policy that allowed it, as in [`TakeOverRecord`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub policy_uid: String,
    /// The leadership under which it was written; an actuator of an earlier one writes nothing any more.
    pub term: u64,
    /// Added to the object's own generation: changes that the object's fields do not show, less those of annotations alone and
    /// those of EADT's own that belong to the change before.
    pub generation_offset: i64,
    /// The spec at the time of this write, for kinds whose annotations raise the generation: while it is the same, annotations
    /// alone caused later generations. Absent if the write changes the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<SpecVersion>,
    /// Times at which a change restarted processes, oldest first.
    pub restarts: Vec<EventTime>,
    /// The change replaces all pods at once: processes of different worlds never meet.
    pub together: bool,
    /// It was suspended for the change, and is resumed once its pods are gone.
    pub resume: bool,
    /// Power cap of each GPU in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_watts: Option<f64>,
    /// Upper bound of the SM clock in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<f64>,
    /// Precision that is requested from the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Frozen layers that are requested from the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frozen_prefix_layers: Option<u32>,
}

/// A spec and the generation of the object that had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecVersion {
    pub hash: u64,
    pub generation: i64,
}

impl ChangeAnnotation {
    /// Notes a restart and forgets those that are too old to matter.
    pub fn note_restart(&mut self, at: EventTime) {
        self.restarts.push(at);
        self.restarts.retain(|time| at.seconds_since(*time) < DAY_SECONDS);
        let extra = self.restarts.len().saturating_sub(MAX_RESTARTS);
        self.restarts.drain(..extra);
    }
}

/// The take-over of a workload's fields.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TakeOverRecord {
    pub time: EventTime,
    /// Name of the policy that allowed it.
    pub policy: String,
    /// The uid of that policy: a policy that is created again under the same name has another one. Empty in records of older
    /// versions.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub policy_uid: String,
    pub fields: Vec<FormerField>,
}

/// A field as it was before EADT took it over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerField {
    pub field: ManagedField,
    /// Its value; `None` if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The field managers that owned it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<FieldOwner>,
}

/// A field manager.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FieldOwner {
    pub manager: String,
    /// `Apply` or `Update`.
    pub operation: String,
}

/// A field that EADT may own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ManagedField {
    Replicas,
    Variable {
        /// Path of the pod template, `spec.template`.
        template: String,
        container: String,
        name: String,
    },
}

impl std::fmt::Display for ManagedField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Replicas => f.write_str("replicas"),
            Self::Variable { container, name, .. } => write!(f, "{name} of container {container}"),
        }
    }
}

/// Reads one of the two annotations; the error is for people.
pub fn read_annotation<T: serde::de::DeserializeOwned>(name: &str, text: Option<&str>) -> Result<Option<T>, String> {
    let Some(text) = text else { return Ok(None) };
    serde_json::from_str(text)
        .map(Some)
        .map_err(|error| format!("annotation {name} cannot be read ({error}): restore it, or delete it to drop its record"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_survive_and_malformed_ones_are_named() {
        let mut mark = ChangeAnnotation { term: 3, generation_offset: -1, together: true, ..ChangeAnnotation::default() };
        mark.note_restart(EventTime::from_seconds(1e9));
        let text = serde_json::to_string(&mark).unwrap();
        assert_eq!(read_annotation::<ChangeAnnotation>(APPLIED, Some(&text)), Ok(Some(mark)));
        assert_eq!(read_annotation::<ChangeAnnotation>(APPLIED, None), Ok(None));
        let error = read_annotation::<ChangeAnnotation>(APPLIED, Some("{\"term\": -1}")).unwrap_err();
        assert!(error.contains(APPLIED) && error.contains("delete it"), "{error}");
    }

    #[test]
    fn restarts_are_remembered_for_a_day_and_bounded() {
        let mut mark = ChangeAnnotation::default();
        for minute in 0..1400 {
            mark.note_restart(EventTime::from_seconds(f64::from(minute) * 60.0));
        }
        assert_eq!(mark.restarts.len(), MAX_RESTARTS);
        mark.note_restart(EventTime::from_seconds(1e6));
        assert_eq!(mark.restarts, [EventTime::from_seconds(1e6)]);
    }
}
