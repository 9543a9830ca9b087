/// Width of the vectors that the grower works with; rows are padded to a multiple of it.
pub(super) const LANES: usize = 8;

/// Largest magnitude of a value: differences and squares of single-precision numbers stay finite.
const LARGEST: f64 = 1e30;

/// Returns whether a forest can compare this value.
pub(super) fn is_usable(value: f64) -> bool {
    value.is_finite() && value.abs() <= LARGEST
}

/// The reason why samples are refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplesError {
    #[error("a forest needs at least one feature and two samples, but there are {features} features and {rows} samples")]
    Empty { features: usize, rows: usize },
    #[error("row {row} has {found} values, but there are {expected} features")]
    Width { row: usize, expected: usize, found: usize },
    #[error(
        "row {row}, feature {feature} is {value}: leave the row out or fill it in; only finite values up to 1e30 can be learned from"
    )]
    Value { row: usize, feature: String, value: f64 },
    #[error("row {row}, the target is {value}: leave the row out; only finite values up to 1e30 can be learned")]
    Target { row: usize, value: f64 },
    #[error("two features are called {name}: each needs a name of its own")]
    Names { name: String },
}

/// The training data of a forest: rows of features, each with a target. Rows are counted from 0.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingSamples {
    names: Vec<String>,
    values: Vec<f64>,
    targets: Vec<f64>,
}

impl TrainingSamples {
    /// Checks rows and targets. A value that is no number is refused with its row, never guessed.
    pub fn new<'a>(names: Vec<String>, rows: impl IntoIterator<Item = (&'a [f64], f64)>) -> Result<Self, SamplesError> {
        if let Some((_, name)) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
            return Err(SamplesError::Names { name: name.clone() });
        }
        let (mut values, mut targets) = (Vec::new(), Vec::new());
        for (row, (features, target)) in rows.into_iter().enumerate() {
            if features.len() != names.len() {
                return Err(SamplesError::Width { row, expected: names.len(), found: features.len() });
            }
            if let Some(place) = features.iter().position(|value| !is_usable(*value)) {
                return Err(SamplesError::Value { row, feature: names[place].clone(), value: features[place] });
            }
            if !is_usable(target) {
                return Err(SamplesError::Target { row, value: target });
            }
            values.extend_from_slice(features);
            targets.push(target);
        }
        if names.is_empty() || targets.len() < 2 {
            return Err(SamplesError::Empty { features: names.len(), rows: targets.len() });
        }
        Ok(Self { names, values, targets })
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn targets(&self) -> &[f64] {
        &self.targets
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Returns false: samples are refused if there are none.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns the features of one row.
    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.names.len()..][..self.names.len()]
    }

    /// Returns the samples in single precision, with rows padded by zeros, which never split.
    pub(super) fn packed(&self) -> PackedSamples<'_> {
        let width = self.names.len();
        let chunks = width.div_ceil(LANES);
        let mut rows = vec![[0.0; LANES]; chunks * self.targets.len()];
        for (row, values) in self.values.chunks_exact(width).enumerate() {
            for (i, value) in values.iter().enumerate() {
                rows[row * chunks + i / LANES][i % LANES] = *value as f32;
            }
        }
        PackedSamples { width, chunks, rows, targets: &self.targets }
    }
}

impl PackedSamples<'_> {
    /// Values of neighbouring features of a row.
    pub fn vector(&self, row: u32, chunk: usize) -> [f32; LANES] {
        self.rows[row as usize * self.chunks + chunk]
    }
}

/// Samples as the grower reads them.
#[derive(Debug)]
pub(super) struct PackedSamples<'a> {
    pub width: usize,
    /// Vectors a row.
    pub chunks: usize,
    pub rows: Vec<[f32; LANES]>,
    pub targets: &'a [f64],
}
