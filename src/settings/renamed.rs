//! Settings that were renamed. The old key is still read, with a warning.

use super::{ENV_PREFIX, EnvVariables, SettingsError};

/// Old key, new key. A key represents all that is below it.
const RENAMED: [(&str, &str); 3] = [
    ("processor.sm_partition", "processor.gpu_sharing"),
    ("processor.foreign_partitions", "processor.misplaced_records"),
    ("processor.power_budget.turn_min_ratio", "processor.power_budget.cap_change_min_ratio"),
];

/// A key, or the name of a variable, that the user wrote in its old form.
#[derive(Debug)]
pub(super) struct OldName {
    pub old: String,
    pub new: String,
    /// The file, or `the environment`.
    from: String,
}

impl OldName {
    pub fn warning(&self) -> String {
        let Self { old, new, from } = self;
        format!("setting {old} from {from} is now called {new}: rename it, the old name will go in a later version")
    }

    /// Returns a note for a message that calls the setting by its new name.
    fn note(&self, message: &str) -> Option<String> {
        let variable = self.new.strip_prefix(ENV_PREFIX).and_then(|rest| rest.strip_prefix('_'));
        let key = variable.map_or_else(|| self.new.clone(), |rest| rest.to_lowercase().replace("__", "."));
        let Self { old, new, from } = self;
        message.contains(&key).then(|| format!(" ({old} from {from} is the old name of {new})"))
    }

    fn both_set_error(&self) -> SettingsError {
        let Self { old, new, from } = self;
        SettingsError::Refused(format!("{old} from {from} is the old name of {new}, which is set there, too: remove {old}"))
    }
}

/// Moves the value of an old key of a settings file to the new key.
pub(super) fn rename_in_file(table: &mut toml::Table, from: &str, renamed: &mut Vec<OldName>) -> Result<(), SettingsError> {
    for (old, new) in RENAMED {
        let (section, old_key) = old.rsplit_once('.').unwrap_or(("", old));
        let new_key = new.rsplit_once('.').map_or(new, |(_, key)| key);
        let mut place = Some(&mut *table);
        for step in section.split('.').filter(|step| !step.is_empty()) {
            place = place.and_then(|table| table.get_mut(step)?.as_table_mut());
        }
        let Some((table, value)) = place.and_then(|table| table.remove(old_key).map(|value| (table, value))) else {
            continue;
        };
        let name = OldName { old: old.to_owned(), new: new.to_owned(), from: from.to_owned() };
        if table.insert(new_key.to_owned(), value).is_some() {
            return Err(name.both_set_error());
        }
        renamed.push(name);
    }
    Ok(())
}

/// Gives variables of an old key the name of the new one.
pub(super) fn rename_variables(variables: &mut EnvVariables, renamed: &mut Vec<OldName>) -> Result<(), SettingsError> {
    for (old, new) in RENAMED {
        let variable = |key: &str| format!("{ENV_PREFIX}_{}", key.replace('.', "__").to_uppercase());
        let (before, after) = (variable(old), variable(new));
        let is_of = |name: &str| name.strip_prefix(&*before).is_some_and(|rest| rest.is_empty() || rest.starts_with("__"));
        let mut names: Vec<String> = variables.keys().filter(|name| is_of(name)).cloned().collect();
        names.sort_unstable();
        for old in names {
            let new = format!("{after}{}", &old[before.len()..]);
            let value = variables.remove(&old).unwrap_or_default();
            let name = OldName { old, new: new.clone(), from: "the environment".to_owned() };
            if variables.insert(new, value).is_some() {
                return Err(name.both_set_error());
            }
            renamed.push(name);
        }
    }
    Ok(())
}

/// Returns the error with the names that the user wrote, and with the warnings about all old names.
pub(super) fn with_old_names(error: SettingsError, renamed: &[OldName]) -> SettingsError {
    if renamed.is_empty() {
        return error;
    }
    let message = error.to_string();
    let notes = renamed.iter().filter_map(|name| name.note(&message)).collect();
    SettingsError::UnderOldNames { error: Box::new(error), notes, warnings: renamed.iter().map(OldName::warning).collect() }
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

    #[test]
    fn a_refusal_has_the_name_that_the_user_wrote_and_all_warnings() {
        const FILE: &str = "processor.sm_partition from eadt.toml is the old name of processor.gpu_sharing";
        const RATIO: &str = "EADT_PROCESSOR__POWER_BUDGET__TURN_MIN_RATIO";
        for (text, variables, part, warnings) in [
            ("", &[(RATIO, "much")][..], "cap_change_min_ratio=\"much\" from EADT_PROCESSOR__POWER_BUDGET__TURN_MIN_RATIO: ", 1),
            ("[processor.sm_partition]\nenable = true\n", &[], FILE, 1),
            ("[processor.sm_partition]\nwindows_min = \"x\"\n", &[], FILE, 1),
            // Refused by the part's own check, which knows no origin.
            ("[processor.sm_partition]\nwindows_min = 0\n", &[], FILE, 1),
            ("[processor]\nforeign_partitions = \"refuse\"\n", &[], "processor.foreign_partitions from eadt.toml", 1),
            ("", &[(RATIO, "-1")], "(EADT_PROCESSOR__POWER_BUDGET__TURN_MIN_RATIO from the environment is the old name of ", 1),
            ("[processor.sm_partition]\nenable = true\n", &[(RATIO, "0.04")], FILE, 2),
            // A refused setting has no old name: nothing is added to its message.
            ("[topics]\npartitions = 0\n[processor.sm_partition]\nenabled = true\n", &[], "it is not between 1 and 1000", 1),
            ("[topics]\npartitions = 0\n", &[], "it is not between 1 and 1000", 0),
        ] {
            let variables: EnvVariables =
                variables.iter().map(|(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned())).collect();
            let error = read(Some((std::path::Path::new("eadt.toml"), text)), &variables, &[]).unwrap_err();
            let message = error.to_string();
            assert!(message.contains(part), "{text:?} {variables:?}: {message}");
            assert_eq!(error.warnings().len(), warnings, "{text:?} {variables:?}: {:?}", error.warnings());
            assert!(!part.ends_with("1000") || message.ends_with(part), "{message}");
        }
    }
}
