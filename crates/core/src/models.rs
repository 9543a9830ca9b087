//! Learned models in force, as the log brought them: pure input of the controllers.
//!
//! In: events of `models.v1` in their merged order, which every partition gets. Out: the model in force for a workload on its
//! board, or why none is. A model in a form that this release does not know, one with impossible figures, and one that was
//! learned on another board have no effect, and are counted.

use std::collections::BTreeMap;

use eadt_models::published::{
    CAP_CURVE_PREFIX, CapCurveDocument, POWER_PREFIX, PowerDocument, UnusableModel, cap_curve_name, power_name,
};
use eadt_schemas::v1::Model;
use serde::Deserialize;

/// Outcome of a model event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelOutcome {
    InForce,
    /// A newer one is in force.
    Older,
    Unusable(UnusableModel),
    /// No controller here looks at models of this name.
    Foreign,
}

#[derive(Debug, Clone, PartialEq)]
enum ModelDocument {
    CapCurve(CapCurveDocument),
    Power(PowerDocument),
}

#[derive(Debug, Clone, PartialEq)]
struct StoredModel {
    event: Model,
    learned: ModelDocument,
}

/// A model in force, with the name and version by which decisions refer to it.
#[derive(Debug)]
pub struct ModelInForce<'a, T> {
    pub name: &'a str,
    pub version: &'a str,
    pub document: &'a T,
}

// Derived, they would ask the document for the same.
impl<T> Clone for ModelInForce<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ModelInForce<'_, T> {}

/// The models in force, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ModelRegistry {
    models: BTreeMap<String, StoredModel>,
}

fn read(event: &Model) -> Option<Result<ModelDocument, UnusableModel>> {
    let format = event.parameters["format"].as_str();
    if event.name.starts_with(CAP_CURVE_PREFIX) {
        let parse = || CapCurveDocument::deserialize(&event.parameters).ok();
        return Some(CapCurveDocument::checked(format, parse).map(ModelDocument::CapCurve));
    }
    if event.name.starts_with(POWER_PREFIX) {
        let parse = || PowerDocument::deserialize(&event.parameters).ok();
        return Some(PowerDocument::checked(format, parse).map(ModelDocument::Power));
    }
    None
}

impl ModelRegistry {
    /// Takes a model in. One that cannot be used leaves the one before it in force.
    pub fn put(&mut self, event: &Model) -> ModelOutcome {
        let learned = match read(event) {
            None => return ModelOutcome::Foreign,
            Some(Err(why)) => return ModelOutcome::Unusable(why),
            Some(Ok(learned)) => learned,
        };
        if self.models.get(&event.name).is_some_and(|known| known.event.time > event.time) {
            return ModelOutcome::Older;
        }
        self.models.insert(event.name.clone(), StoredModel { event: event.clone(), learned });
        ModelOutcome::InForce
    }

    /// Withdraws a model; returns false if no model of this name was in force.
    pub fn withdraw(&mut self, name: &str) -> bool {
        self.models.remove(name).is_some()
    }

    /// Returns the event that brought a model.
    pub fn event(&self, name: &str) -> Option<&Model> {
        self.models.get(name).map(|model| &model.event)
    }

    /// Returns the throughput of a workload against the power of its GPUs, on the board that it has.
    pub fn cap_curve(
        &self,
        workload: &str,
        gpu_model: Option<&str>,
    ) -> Option<Result<ModelInForce<'_, CapCurveDocument>, UnusableModel>> {
        let model = self.models.get(&cap_curve_name(workload))?;
        let ModelDocument::CapCurve(document) = &model.learned else { return None };
        // If either board is not known, they may be different ones.
        let same = gpu_model.is_some() && document.gpu_model.as_deref() == gpu_model;
        let (name, version) = (model.event.name.as_str(), model.event.version.as_str());
        Some(if same { Ok(ModelInForce { name, version, document }) } else { Err(UnusableModel::Gpu) })
    }

    /// Returns the model of a board's power from its activity.
    pub fn power_model(&self, gpu_model: Option<&str>) -> Option<ModelInForce<'_, PowerDocument>> {
        let model = self.models.get(&power_name(gpu_model?))?;
        let ModelDocument::Power(document) = &model.learned else { return None };
        Some(ModelInForce { name: &model.event.name, version: &model.event.version, document })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_older_model_leaves_the_newer_one_in_force_and_one_of_the_same_time_replaces_it() {
        let model = |second: i64, version: &str| {
            let range = [[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]];
            let model = json!({
                "base_watts": 50.0, "compute_linear_watts": 100.0, "compute_cubic_watts": 150.0, "memory_watts": 60.0,
                "io_watts_per_gigabyte_per_second": 0.0, "range": range,
                "quality": {"r_squared": 0.99, "mape_ratio": 0.01, "count": 100},
            });
            Model {
                time: eadt_schemas::EventTime::from_micros(second),
                name: "power/A100".into(),
                version: version.into(),
                parameters: json!({"format": "eadt.power-model.v1", "clock_max_mhz": 1410.0, "model": model}),
                ..Model::default()
            }
        };
        let mut models = ModelRegistry::default();
        assert_eq!(models.put(&model(10, "1")), ModelOutcome::InForce);
        for (second, version, taken, in_force) in
            [(9, "0", ModelOutcome::Older, "1"), (10, "1b", ModelOutcome::InForce, "1b"), (11, "2", ModelOutcome::InForce, "2")]
        {
            assert_eq!(models.put(&model(second, version)), taken, "version {version}");
            assert_eq!(models.power_model(Some("A100")).map(|model| model.version), Some(in_force));
        }
        assert!(models.withdraw("power/A100") && !models.withdraw("power/A100"));
    }
}
