//! The format of slowdown models in `models.v1`, and the models in force, by board.
//!
//! As for all models there: one in the format of another version or with impossible figures is ignored, and the previous one
//! stays.

use std::collections::BTreeMap;

use eadt_core::models::ModelOutcome;
use eadt_models::published::{PARTITION_PREFIX, UnusableModel};
use eadt_schemas::v1::Model;
use serde::{Deserialize, Serialize};

use crate::{PredictionError, SlowdownModel, SoloProfile};

const FORMAT: &str = "eadt.partition-model.v1";
/// Largest event that is taken, as JSON. Kafka's default for a record is 1,048,588 bytes, key and headers included.
const EVENT_BYTES_MAX: usize = 1_000_000;

/// The parameters of such an event, beside the training range and the origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharingModelDocument {
    format: String,
    pub model: SlowdownModel,
}

impl SharingModelDocument {
    pub fn new(model: SlowdownModel) -> Self {
        Self { format: FORMAT.to_owned(), model }
    }

    /// Returns the document of an event; `None` if it is of another kind.
    pub fn of(event: &Model) -> Option<Result<Self, UnusableModel>> {
        let board = event.name.strip_prefix(PARTITION_PREFIX)?;
        if event.parameters["format"].as_str() != Some(FORMAT) {
            return Some(Err(UnusableModel::Version));
        }
        let document = Self::deserialize(&event.parameters).ok().filter(|document| document.model.gpu_model() == board);
        Some(document.ok_or(UnusableModel::Damaged))
    }
}

/// A model in force.
#[derive(Debug, Clone, PartialEq)]
pub struct LearnedModel {
    event: Model,
    /// Name and version, as in decisions.
    version: String,
    model: SlowdownModel,
}

impl LearnedModel {
    pub fn version(&self) -> &str {
        &self.version
    }

    pub fn model(&self) -> &SlowdownModel {
        &self.model
    }

    /// Returns why it cannot predict these workloads.
    pub fn check<'a>(&self, profiles: impl IntoIterator<Item = &'a SoloProfile>) -> Result<(), PredictionError> {
        for profile in profiles {
            let expected = self.model.gpu_model();
            if profile.gpu_model() != expected {
                let (expected, found) = (expected.to_owned(), profile.gpu_model().to_owned());
                return Err(PredictionError::ModelGpu { expected, found });
            }
            let least = profile.points().map(|point| point.power_watts).fold(f64::INFINITY, f64::min);
            if self.model.idle_watts() >= least {
                let (workload, idle_watts) = (profile.workload().to_owned(), self.model.idle_watts());
                return Err(PredictionError::Idle { workload, idle_watts, least_watts: least });
            }
            if let Some(metric) = self.model.metrics().iter().find(|metric| !profile.has(**metric)) {
                return Err(PredictionError::Metric { workload: profile.workload().to_owned(), metric: metric.name() });
            }
        }
        Ok(())
    }
}

/// The models in force, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LearnedModels {
    models: BTreeMap<String, LearnedModel>,
}

impl LearnedModels {
    /// Takes a model in. One that cannot be used leaves the one before it in force.
    pub fn put(&mut self, event: &Model) -> ModelOutcome {
        let model = match SharingModelDocument::of(event) {
            None => return ModelOutcome::Foreign,
            Some(Err(why)) => return ModelOutcome::Unusable(why),
            Some(Ok(document)) => document.model,
        };
        // It becomes part of the state, whose topic does not take larger records.
        if serde_json::to_vec(event).map_or(usize::MAX, |bytes| bytes.len()) > EVENT_BYTES_MAX {
            return ModelOutcome::Unusable(UnusableModel::Damaged);
        }
        if self.models.get(&event.name).is_some_and(|known| known.event.time > event.time) {
            return ModelOutcome::Older;
        }
        let version = format!("{}@{}", event.name, event.version);
        self.models.insert(event.name.clone(), LearnedModel { event: event.clone(), version, model });
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

    /// Returns the model of a board.
    pub fn of(&self, gpu_model: &str) -> Option<&LearnedModel> {
        self.models.get(&eadt_models::published::partition_name(gpu_model))
    }
}
