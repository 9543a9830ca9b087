use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// When and from what models are learned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OptimizerSettings {
    /// The archive to learn from: a folder or an object-store URL. Default: the archiver's.
    pub location: String,
    /// Seconds between two reads of the archive, 1 to 604,800; without new files nothing is trained. Default: 3600.
    pub interval_seconds: f64,
    /// Part of the windows, the latest ones, that is held back from training and used to evaluate every model, 0.05 to 0.5.
    /// Default: 0.25.
    pub held_back_ratio: f64,
    /// Least usable windows of a model's subject, 8 to 1,000,000. Default: 60.
    pub windows_min: usize,
    /// Largest number of windows of a model's subject that are used, the latest ones, up to 10,000,000: jobs change, and a curve
    /// over two of them fits neither. Models of shared GPUs have limits of their own. At least `windows_min`. Default: 1440.
    pub windows_max: usize,
    /// Part by which a model's error on held-back data must be smaller than that of the model in force, 0 to 0.5. Default: 0.02.
    pub margin_ratio: f64,
}

impl Default for OptimizerSettings {
    fn default() -> Self {
        Self {
            location: String::new(),
            interval_seconds: 3600.0,
            held_back_ratio: 0.25,
            windows_min: 60,
            windows_max: 1440,
            margin_ratio: 0.02,
        }
    }
}

impl OptimizerSettings {
    /// Returns an error about the first value out of its range.
    pub fn check(&self) -> Result<(), String> {
        if self.location.is_empty() {
            return Err("optimizer.location is empty: name a folder or an object-store URL".to_owned());
        }
        for (name, value, low, high) in [
            ("interval_seconds", self.interval_seconds, 1.0, 604_800.0),
            ("held_back_ratio", self.held_back_ratio, 0.05, 0.5),
            ("windows_min", self.windows_min as f64, 8.0, 1e6),
            ("windows_max", self.windows_max as f64, self.windows_min as f64, 1e7),
            ("margin_ratio", self.margin_ratio, 0.0, 0.5),
        ] {
            if !(low..=high).contains(&value) {
                return Err(format!("optimizer.{name} is {value}: give a number from {low} to {high}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let good = || OptimizerSettings { location: "archive".to_owned(), ..OptimizerSettings::default() };
        assert_eq!(good().check(), Ok(()));
        for (settings, name) in [
            (OptimizerSettings::default(), "location"),
            (OptimizerSettings { interval_seconds: 0.0, ..good() }, "interval_seconds"),
            (OptimizerSettings { held_back_ratio: f64::NAN, ..good() }, "held_back_ratio"),
            (OptimizerSettings { windows_min: 1, ..good() }, "windows_min"),
            (OptimizerSettings { windows_max: 59, ..good() }, "windows_max"),
            (OptimizerSettings { margin_ratio: 0.6, ..good() }, "margin_ratio"),
        ] {
            assert!(settings.check().unwrap_err().contains(name));
        }
    }
}
