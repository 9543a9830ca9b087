//! Settings that were renamed. The old key is still read, with a warning.

use super::{ENV_PREFIX, EnvVariables, SettingsError};

/// Old key, new key. A key represents all that is below it.
const RENAMED: [(&str, &str); 3] = [
    ("processor.sm_partition", "processor.gpu_sharing"),
    ("processor.foreign_partitions", "processor.misplaced_records"),
    ("processor.power_budget.turn_min_ratio", "processor.power_budget.cap_change_min_ratio"),
];

/// Moves what a settings file has under an old key to the new one. Returns a warning for each.
pub(super) fn rename_in_file(table: &mut toml::Table, from: &str) -> Result<Vec<String>, SettingsError> {
    let mut warnings = Vec::new();
    for (old, new) in RENAMED {
        let (section, old_name) = old.rsplit_once('.').unwrap_or(("", old));
        let new_name = new.rsplit_once('.').map_or(new, |(_, name)| name);
        let mut place = Some(&mut *table);
        for step in section.split('.').filter(|step| !step.is_empty()) {
            place = place.and_then(|table| table.get_mut(step)?.as_table_mut());
        }
        let Some((table, value)) = place.and_then(|table| table.remove(old_name).map(|value| (table, value))) else {
            continue;
        };
        if table.insert(new_name.to_owned(), value).is_some() {
            return Err(both_set_error(old, new, from));
        }
        warnings.push(warning(old, new, from));
    }
    Ok(warnings)
}

/// Gives variables of an old key the name of the new one. Returns a warning for each.
pub(super) fn rename_variables(variables: &mut EnvVariables) -> Result<Vec<String>, SettingsError> {
    let mut warnings = Vec::new();
    for (old, new) in RENAMED {
        let variable = |key: &str| format!("{ENV_PREFIX}_{}", key.replace('.', "__").to_uppercase());
        let (before, after) = (variable(old), variable(new));
        let is_of = |name: &str| name.strip_prefix(&*before).is_some_and(|rest| rest.is_empty() || rest.starts_with("__"));
        let mut names: Vec<String> = variables.keys().filter(|name| is_of(name)).cloned().collect();
        names.sort_unstable();
        for name in names {
            let renamed = format!("{after}{}", &name[before.len()..]);
            let value = variables.remove(&name).unwrap_or_default();
            if variables.insert(renamed.clone(), value).is_some() {
                return Err(both_set_error(&name, &renamed, "the environment"));
            }
            warnings.push(warning(&name, &renamed, "the environment"));
        }
    }
    Ok(warnings)
}

fn warning(old: &str, new: &str, from: &str) -> String {
    format!("setting {old} from {from} is now called {new}: rename it, the old name will go in a later version")
}

fn both_set_error(old: &str, new: &str, from: &str) -> SettingsError {
    SettingsError::Refused(format!("{old} from {from} is the old name of {new}, which is set there, too: remove {old}"))
}

#[cfg(test)]
mod tests {
    use super::super::{ProgramSettings, read};
    use super::*;

    fn from_file(text: &str) -> Result<ProgramSettings, SettingsError> {
        read(Some((std::path::Path::new("eadt.toml"), text)), &EnvVariables::new(), &[])
    }

    #[test]
    fn an_old_key_is_read_with_a_warning() {
        let new = from_file("[processor.gpu_sharing]\nenabled = true\n").unwrap();
        assert!(new.processor.gpu_sharing.enabled && new.warnings.is_empty());
        for text in ["[processor.sm_partition]\nenabled = true\n", "processor.sm_partition.enabled = true\n"] {
            let old = from_file(text).unwrap();
            assert_eq!(old.processor, new.processor);
            let expected = "setting processor.sm_partition from eadt.toml is now called processor.gpu_sharing";
            assert!(old.warnings.len() == 1 && old.warnings[0].starts_with(expected), "{:?}", old.warnings);
        }
        let variables = EnvVariables::from([("EADT_PROCESSOR__SM_PARTITION__ENABLED".to_owned(), "true".to_owned())]);
        let old = read(None, &variables, &[]).unwrap();
        assert!(old.processor.gpu_sharing.enabled);
        assert!(old.warnings[0].contains("EADT_PROCESSOR__GPU_SHARING__ENABLED"), "{:?}", old.warnings);
    }

    #[test]
    fn an_old_key_of_one_value_is_read_with_a_warning() {
        let text = "[processor]\nforeign_partitions = \"dead_letter\"\n[processor.power_budget]\nturn_min_ratio = 0.04\n";
        let old = from_file(text).unwrap();
        let new = text.replace("foreign_partitions", "misplaced_records").replace("turn_min_ratio", "cap_change_min_ratio");
        let new = from_file(&new).unwrap();
        assert!(old.processor == new.processor && new.warnings.is_empty() && old.warnings.len() == 2, "{:?}", old.warnings);
        let keys = ["EADT_PROCESSOR__FOREIGN_PARTITIONS", "EADT_PROCESSOR__POWER_BUDGET__TURN_MIN_RATIO"];
        let variables = keys.into_iter().zip(["dead_letter", "0.04"]).map(|(key, value)| (key.to_owned(), value.to_owned()));
        let old = read(None, &variables.collect(), &[]).unwrap();
        assert_eq!((&old.processor, old.warnings.len()), (&new.processor, 2));
    }

    #[test]
    fn a_key_under_both_names_is_refused() {
        let both = "[processor.sm_partition]\nenabled = true\n[processor.gpu_sharing]\nenabled = false\n";
        assert!(from_file(both).unwrap_err().to_string().contains("remove processor.sm_partition"));
        let name = |key: &str| format!("EADT_PROCESSOR__{key}__ENABLED");
        let variables = EnvVariables::from(["SM_PARTITION", "GPU_SHARING"].map(|key| (name(key), "true".to_owned())));
        assert!(read(None, &variables, &[]).unwrap_err().to_string().contains("is set there, too"));
    }

    #[test]
    fn an_unknown_key_below_an_old_one_is_refused() {
        let error = from_file("[processor.sm_partition]\nenable = true\n").unwrap_err().to_string();
        assert!(error.contains("unknown setting processor.gpu_sharing.enable"), "{error}");
    }
}
