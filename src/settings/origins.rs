//! Finds the origin of a setting, so that an error can name it.

use std::path::Path;

use eadt_schemas::secret_names::is_secret_name;
use serde_json::Value;

use super::renamed::OldName;
use super::{BROKERS, ENV_PREFIX, EnvVariables, ProgramSettings, SettingsError, is_setting};

/// Everything that was merged, last first.
pub(super) struct SettingSources<'a> {
    pub file: Option<(&'a toml::Table, &'a Path)>,
    pub variables: &'a EnvVariables,
    pub overrides: &'a [(&'a str, toml::Value)],
    /// Variables here have their new names.
    pub old_names: &'a [OldName],
}

impl SettingSources<'_> {
    /// ` from …`; empty for a default.
    pub fn of(&self, key: &str) -> String {
        if self.overrides.iter().any(|(overridden, _)| *overridden == key) {
            return " from a flag".to_owned();
        }
        if key == "bus.brokers" && self.variables.contains_key(BROKERS) {
            return format!(" from {BROKERS}");
        }
        let means = |name: &&String| {
            let path = name.strip_prefix(ENV_PREFIX).and_then(|rest| rest.strip_prefix('_')).unwrap_or_default();
            is_setting(name) && path.to_lowercase().replace("__", ".") == key
        };
        if let Some(name) = self.variables.keys().find(means) {
            let written = self.old_names.iter().find(|old_name| old_name.new == *name).map_or(name, |old_name| &old_name.old);
            return format!(" from {written}");
        }
        match self.file {
            Some((table, path)) if lies_in(table, key) => format!(" from {}", path.display()),
            _ => String::new(),
        }
    }

    /// Returns why the merged settings could not be read: which key, its value, its origin, and what would be possible.
    pub fn explain(&self, tree: &Value, error: &config::ConfigError) -> SettingsError {
        // The settings' library does not report what is possible, and the key only at times. It converts more than JSON does, so
        // JSON may stumble over something else, which then explains nothing.
        let Err(json) = serde_path_to_error::deserialize::<_, ProgramSettings>(tree) else {
            return SettingsError::Refused(error.to_string());
        };
        let key = json.path().to_string();
        if !error.to_string().contains(key.rsplit('.').next().unwrap_or(&key)) {
            return SettingsError::Refused(error.to_string());
        }
        let detail = plain(&json.into_inner().to_string());
        if key.starts_with("bus.properties") || is_secret_name(&key) {
            // The value may be a secret, and the library's words quote it.
            let expected = detail.rsplit_once(", expected ").map_or("it cannot be used", |(_, expected)| expected);
            let advice = "properties are set one by one, as EADT_BUS__PROPERTIES__LINGER__MS for linger.ms";
            let detail = format!("expected {expected}, and the value is not shown; {advice}");
            return SettingsError::Invalid { from: self.of(&key), key, detail };
        }
        let value = steps(&key).try_fold(tree, |value, step| match step.parse::<usize>() {
            Ok(index) => value.get(index),
            Err(_) => value.get(step),
        });
        let shown = value.map(|value| format!("={value}")).unwrap_or_default();
        SettingsError::Invalid { from: self.of(&key), key: format!("{key}{shown}"), detail }
    }
}

/// `collector.jobs[1].rank` as `collector`, `jobs`, `1`, `rank`.
fn steps(key: &str) -> impl Iterator<Item = &str> {
    key.split(['.', '[', ']']).filter(|step| !step.is_empty())
}

fn lies_in(table: &toml::Table, key: &str) -> bool {
    let mut steps = steps(key);
    let first = steps.next().and_then(|step| table.get(step));
    let found = steps.try_fold(first, |value, step| {
        let value = value?;
        Some(match step.parse::<usize>() {
            Ok(index) => value.as_array().and_then(|list| list.get(index)),
            Err(_) => value.get(step),
        })
    });
    found.flatten().is_some()
}

/// Without the names of Rust's types.
fn plain(detail: &str) -> String {
    let mut text = detail.to_owned();
    let words: [(&[&str], &str); 3] = [
        (&["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize"], "a whole number"),
        (&["f32", "f64"], "a number"),
        (&["path string"], "a path"),
    ];
    for (types, word) in words {
        for name in types {
            if let Some(head) = text.strip_suffix(&format!("expected {name}")) {
                text = format!("{head}expected {word}");
            }
        }
    }
    text
}
