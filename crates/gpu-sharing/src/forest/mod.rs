//! Extremely randomised trees for regression (Geurts, Ernst and Wehenkel, Machine Learning 63, 2006).
//!
//! In: [`TrainingSamples`], checked. Out: a [`Forest`] whose trees predict one by one, because their spread shows how certain the
//! forest is. The same samples, settings and seed give the same forest, bit for bit, with any number of threads.

mod document;
mod grow;
mod samples;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

pub use document::DocumentError;
pub use samples::{SamplesError, TrainingSamples};

use document::ForestDocument;
use grow::TreeGrower;

/// Settings of a forest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ForestSettings {
    /// Number of trees. 1 to 10,000. Default 100.
    pub trees: u32,
    /// Features tried at each split, drawn for each split; absent: all, which is best for regression.
    pub features_per_split: Option<u32>,
    /// Least number of samples in a leaf. At least 1. Default 1.
    pub leaf_min: u32,
    /// Seed of all that is drawn. Default 0.
    pub seed: u64,
}

impl Default for ForestSettings {
    fn default() -> Self {
        Self { trees: 100, features_per_split: None, leaf_min: 1, seed: 0 }
    }
}

/// Settings of which no forest can be grown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, but must be within {low} and {high}")]
pub struct SettingsError {
    name: &'static str,
    value: u32,
    low: u32,
    high: u32,
}

/// A row that a forest cannot predict.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RowError {
    #[error("a row has {found} values, but the forest was grown from {expected} features")]
    Width { expected: usize, found: usize },
    #[error("feature {feature} is {value}: only finite values up to 1e30 can be judged")]
    Value { feature: String, value: f64 },
}

/// A node of a tree; nodes lie in pre-order, so the left child follows its parent.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TreeNode {
    /// In a split: values up to this go left. In a leaf: its value.
    value: f32,
    /// [`LEAF`], or the feature that is compared.
    feature: u32,
    /// Place of the right child.
    right: u32,
}

const LEAF: u32 = u32::MAX;

/// A grown forest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ForestDocument", into = "ForestDocument")]
pub struct Forest {
    features: Vec<String>,
    trees: Vec<Vec<TreeNode>>,
}

impl Forest {
    /// Grows a forest; in parallel if rayon has threads, to the same result.
    pub fn grow(samples: &TrainingSamples, settings: &ForestSettings) -> Result<Self, SettingsError> {
        let features = samples.names().len() as u32;
        let tried = settings.features_per_split.unwrap_or(features);
        for (name, value, low, high) in [
            ("trees", settings.trees, 1, 10_000),
            ("features_per_split", tried, 1, features),
            ("leaf_min", settings.leaf_min, 1, u32::MAX),
        ] {
            if !(low..=high).contains(&value) {
                return Err(SettingsError { name, value, low, high });
            }
        }
        let data = samples.packed();
        let trees = (0..settings.trees)
            .into_par_iter()
            .map_init(|| TreeGrower::new(&data), |grower, tree| grower.tree(settings, tried, tree))
            .collect();
        Ok(Self { features: samples.names().to_vec(), trees })
    }

    /// Returns the names of the features, in the order of a row's values.
    pub fn features(&self) -> &[String] {
        &self.features
    }

    /// Returns the number of trees.
    pub fn trees(&self) -> usize {
        self.trees.len()
    }

    /// Returns the number of nodes of all trees: what size and memory grow with.
    pub fn nodes(&self) -> usize {
        self.trees.iter().map(Vec::len).sum()
    }

    /// Returns all values that the trees may predict.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = f32> {
        self.trees.iter().flatten().filter(|node| node.feature == LEAF).map(|node| node.value)
    }

    /// Returns the prediction of each tree for each row. `rows` holds the rows one after another.
    pub fn predict_trees(&self, rows: &[f64]) -> Result<TreePredictions, RowError> {
        let width = self.features.len();
        if !rows.len().is_multiple_of(width) {
            return Err(RowError::Width { expected: width, found: rows.len() % width });
        }
        if let Some(place) = rows.iter().position(|value| !samples::is_usable(*value)) {
            return Err(RowError::Value { feature: self.features[place % width].clone(), value: rows[place] });
        }
        let rows: Vec<f32> = rows.iter().map(|value| *value as f32).collect();
        let count = rows.len() / width;
        let mut values = Vec::with_capacity(count * self.trees.len());
        for tree in &self.trees {
            values.extend(rows.chunks_exact(width).map(|row| leaf(tree, row)));
        }
        Ok(TreePredictions { rows: count, values })
    }

    /// Returns the mean of the trees for one row.
    pub fn predict(&self, row: &[f64]) -> Result<f64, RowError> {
        if row.len() != self.features.len() {
            return Err(RowError::Width { expected: self.features.len(), found: row.len() });
        }
        Ok(self.predict_trees(row)?.mean(0))
    }
}

fn leaf(tree: &[TreeNode], row: &[f32]) -> f32 {
    let mut at = 0;
    loop {
        let node = &tree[at];
        if node.feature == LEAF {
            return node.value;
        }
        at = if row[node.feature as usize] <= node.value { at + 1 } else { node.right as usize };
    }
}

/// The predictions of each tree of a forest for each row.
#[derive(Debug, Clone, PartialEq)]
pub struct TreePredictions {
    rows: usize,
    /// Tree by tree.
    values: Vec<f32>,
}

impl TreePredictions {
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn trees(&self) -> usize {
        self.values.len() / self.rows.max(1)
    }

    /// Returns the prediction of one tree for a row.
    pub fn of(&self, tree: usize, row: usize) -> f64 {
        f64::from(self.values[tree * self.rows + row])
    }

    /// Returns the mean of the trees.
    pub fn mean(&self, row: usize) -> f64 {
        (0..self.trees()).map(|tree| self.of(tree, row)).sum::<f64>() / self.trees() as f64
    }
}
