//! Learned models in force, as the log brought them: pure input of the controllers.
//!
//! In: events of `models.v1` in their merged order, which every partition gets. Out: what is in force for a workload on its
//! board, or why nothing is. A model in a form that this release does not know, one with impossible figures, and one that was
//! learned on another board say nothing, and are counted.

use std::collections::BTreeMap;

use eadt_models::published::{
    CAP_CURVE_PREFIX, CapCurveDocument, POWER_PREFIX, PowerDocument, Unusable, cap_curve_name, power_name,
};
use eadt_schemas::v1::Model;
use serde::Deserialize;

/// What became of a model event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    InForce,
    /// A newer one is in force.
    Older,
    Unusable(Unusable),
    /// No controller here looks at models of this name.
    Foreign,
}

#[derive(Debug, Clone, PartialEq)]
enum Learned {
    CapCurve(CapCurveDocument),
    Power(PowerDocument),
}

#[derive(Debug, Clone, PartialEq)]
struct Kept {
    event: Model,
    learned: Learned,
}

/// A model in force, with the name and version by which decisions tell it.
#[derive(Debug)]
pub struct InForce<'a, T> {
    pub name: &'a str,
    pub version: &'a str,
    pub document: &'a T,
}

// Derived, they would ask the document for the same.
impl<T> Clone for InForce<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for InForce<'_, T> {}

/// The models in force, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Models {
    kept: BTreeMap<String, Kept>,
}

fn read(event: &Model) -> Option<Result<Learned, Unusable>> {
    let format = event.parameters["format"].as_str();
    if event.name.starts_with(CAP_CURVE_PREFIX) {
        let parse = || CapCurveDocument::deserialize(&event.parameters).ok();
        return Some(CapCurveDocument::checked(format, parse).map(Learned::CapCurve));
    }
    if event.name.starts_with(POWER_PREFIX) {
        let parse = || PowerDocument::deserialize(&event.parameters).ok();
        return Some(PowerDocument::checked(format, parse).map(Learned::Power));
    }
    None
}

impl Models {
    /// Takes a model in. One that cannot be used leaves the one before it in force.
    pub fn put(&mut self, event: &Model) -> Taken {
        let learned = match read(event) {
            None => return Taken::Foreign,
            Some(Err(why)) => return Taken::Unusable(why),
            Some(Ok(learned)) => learned,
        };
        if self.kept.get(&event.name).is_some_and(|known| known.event.time > event.time) {
            return Taken::Older;
        }
        self.kept.insert(event.name.clone(), Kept { event: event.clone(), learned });
        Taken::InForce
    }

    /// A model was withdrawn; false where none of this name was in force.
    pub fn withdraw(&mut self, name: &str) -> bool {
        self.kept.remove(name).is_some()
    }

    /// The event that brought a model.
    pub fn event(&self, name: &str) -> Option<&Model> {
        self.kept.get(name).map(|kept| &kept.event)
    }

    /// Throughput of a workload against the power of its GPUs, on the board that it has.
    pub fn cap_curve(&self, workload: &str, gpu_model: Option<&str>) -> Option<Result<InForce<'_, CapCurveDocument>, Unusable>> {
        let kept = self.kept.get(&cap_curve_name(workload))?;
        let Learned::CapCurve(document) = &kept.learned else { return None };
        // Where either does not say, nobody can tell that it is the same board.
        let same = gpu_model.is_some() && document.gpu_model.as_deref() == gpu_model;
        let (name, version) = (kept.event.name.as_str(), kept.event.version.as_str());
        Some(if same { Ok(InForce { name, version, document }) } else { Err(Unusable::Gpu) })
    }

    /// Power of a board against what it does.
    pub fn power(&self, gpu_model: Option<&str>) -> Option<InForce<'_, PowerDocument>> {
        let kept = self.kept.get(&power_name(gpu_model?))?;
        let Learned::Power(document) = &kept.learned else { return None };
        Some(InForce { name: &kept.event.name, version: &kept.event.version, document })
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
        let mut models = Models::default();
        assert_eq!(models.put(&model(10, "1")), Taken::InForce);
        for (second, version, taken, in_force) in
            [(9, "0", Taken::Older, "1"), (10, "1b", Taken::InForce, "1b"), (11, "2", Taken::InForce, "2")]
        {
            assert_eq!(models.put(&model(second, version)), taken, "version {version}");
            assert_eq!(models.power(Some("A100")).map(|model| model.version), Some(in_force));
        }
        assert!(models.withdraw("power/A100") && !models.withdraw("power/A100"));
    }
}
