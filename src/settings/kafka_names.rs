//! Names that an installation has in Kafka: consumer groups, and the instances in them.

use std::collections::BTreeMap;

use eadt_archiver::ArchiverSettings;
use eadt_processor::JOINT_STAGES;
use eadt_service::redact;

use super::{ProgramSettings, TopicSettings};

/// Adds the prefix of the topics to the names of groups and instances: two installations on one cluster would take each other's
/// partitions, and end each other's processes. The names of the default prefix are as they are; `up` has its own rule.
pub fn carry_prefix(settings: &mut ProgramSettings) {
    let prefix = settings.topics.prefix.clone();
    if prefix == TopicSettings::default().prefix {
        return;
    }
    let mut defaults = ProgramSettings::default();
    let defaults = names(&mut defaults).map(|name| name.clone());
    for name in names(settings) {
        // A default name may begin like the prefix by chance.
        let is_carried = name.starts_with(&prefix) && !defaults.contains(name);
        // An empty name is refused; a name that was shown can be passed as an option again.
        if !name.is_empty() && !is_carried {
            name.insert_str(0, &prefix);
        }
    }
}

/// Longest name of a group or an instance. Parts add a suffix to some, and they are shown in tables and log lines.
const NAME_BYTES: usize = 249;

/// Keys of [`names`], in its order.
const KEYS: [&str; 8] = [
    "processor.group",
    "processor.instance",
    "archiver.group",
    "archiver.instance",
    "actuator.group",
    "actuator.instance",
    "simulator.group",
    "simulator.instance",
];

fn names(settings: &mut ProgramSettings) -> [&mut String; 8] {
    let ProgramSettings { processor, archiver, actuator, simulator, .. } = settings;
    [
        &mut processor.group,
        &mut processor.instance,
        &mut archiver.group,
        &mut archiver.instance,
        &mut actuator.group,
        &mut actuator.instance,
        &mut simulator.group,
        &mut simulator.instance,
    ]
}

/// Returns whether another installation, with the default prefix of topics, has the same names of groups and instances.
pub fn are_those_of_the_default(settings: &ProgramSettings) -> bool {
    let (mut own, mut defaults) = (settings.clone(), ProgramSettings::default());
    own.topics.prefix != defaults.topics.prefix
        && names(&mut own).iter().zip(names(&mut defaults)).any(|(own, other)| **own == *other)
}

/// Returns an error if a group or an instance has a name that cannot be shown or stored.
pub fn check_names(settings: &ProgramSettings) -> Result<(), String> {
    let mut own = settings.clone();
    for (key, name) in KEYS.iter().zip(names(&mut own)) {
        let shown = redact::escape_line(name);
        if shown != name.as_str() {
            return Err(format!("{key} is \"{shown}\": it has characters that are not visible; name it without them"));
        }
        if name.len() > NAME_BYTES {
            return Err(format!("{key} has {} bytes, prefix included: at most {NAME_BYTES}; give a shorter name", name.len()));
        }
    }
    ArchiverSettings::check_group(&settings.archiver.group)
}

/// Returns an error if names cannot be used, or two parts have one consumer group or one transactional id, also after
/// [`carry_prefix`].
pub fn check(settings: &ProgramSettings) -> Result<(), String> {
    let mut carried = settings.clone();
    carry_prefix(&mut carried);
    for settings in [settings, &carried] {
        check_names(settings)?;
        let ProgramSettings { processor, archiver, actuator, simulator, .. } = settings;
        let of_stages = |key: &str, name: &str| {
            JOINT_STAGES.map(|stage| (format!("{key} with the suffix -{}", stage.name), format!("{name}-{}", stage.name)))
        };
        let key = |key: &str, name: &str| (key.to_owned(), name.to_owned());
        let groups = [
            key("processor.group", &processor.group),
            key("archiver.group", &archiver.group),
            key("actuator.group", &actuator.group),
            key("simulator.group", &simulator.group),
        ];
        if let Some((one, other, name)) = first_equal(groups.into_iter().chain(of_stages("processor.group", &processor.group))) {
            return Err(format!(
                "{one} and {other} are both {name:?}, one consumer group: Kafka shares the partitions of a topic among all members \
                 of a group that read it, so that each part would miss some; give each a group of its own"
            ));
        }
        let ids = [
            key("processor.instance", &processor.instance),
            key("actuator.instance", &actuator.instance),
            key("simulator.instance", &simulator.instance),
        ];
        if let Some((one, other, name)) = first_equal(ids.into_iter().chain(of_stages("processor.instance", &processor.instance)))
        {
            return Err(format!(
                "{one} and {other} are both {name:?}, one transactional id: the parts would end each other; give each an instance \
                 name of its own"
            ));
        }
    }
    Ok(())
}

/// Returns the first two keys with one name, and the name. Empty names are refused elsewhere.
fn first_equal(names: impl Iterator<Item = (String, String)>) -> Option<(String, String, String)> {
    let mut keys = BTreeMap::new();
    for (key, name) in names.filter(|(_, name)| !name.is_empty()) {
        if let Some(other) = keys.insert(name.clone(), key.clone()) {
            return Some((other, key, name));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> ProgramSettings {
        let mut settings = ProgramSettings::default();
        for (key, value) in pairs {
            if *key == "topics.prefix" {
                (*value).clone_into(&mut settings.topics.prefix);
            }
            for (_, name) in KEYS.iter().zip(names(&mut settings)).filter(|(own, _)| *own == key) {
                (*value).clone_into(name);
            }
        }
        settings
    }

    #[test]
    fn no_two_parts_have_one_group_or_one_transactional_id() {
        assert_eq!(check(&ProgramSettings::default()), Ok(()));
        // The archiver has no transactional id.
        let names = KEYS.into_iter().filter(|key| *key != "archiver.instance");
        for one in names.clone() {
            for other in names.clone().filter(|other| *other != one) {
                let is_shared = one.split_once('.').unwrap().1 == other.split_once('.').unwrap().1;
                let error = check(&with(&[(one, "team"), (other, "team")])).err();
                assert_eq!(error.is_some(), is_shared, "{one} and {other}: {error:?}");
                assert!(error.is_none_or(|error| error.contains(one) && error.contains(other) && error.contains("\"team\"")));
            }
        }
        assert_eq!(check(&with(&[("archiver.instance", "team"), ("processor.instance", "team")])), Ok(()));
        let error = check(&with(&[("archiver.group", "processor-cluster")])).unwrap_err();
        assert!(error.contains("processor.group with the suffix -cluster") && error.contains("archiver.group"), "{error}");
        assert!(check(&with(&[("actuator.instance", "processor-0-cluster")])).is_err());
        // One of them has the prefix, and the other one gets it.
        let error = check(&with(&[("topics.prefix", "lab."), ("processor.group", "lab.archiver")])).unwrap_err();
        assert!(error.contains("\"lab.archiver\""), "{error}");
    }

    #[test]
    fn names_that_cannot_be_shown_or_stored_are_refused_with_their_key() {
        for key in KEYS {
            for (name, part) in [
                ("a\u{202e}b", "a\\u202eb"),
                ("a\nb", "a\\u000ab"),
                ("a\u{200b}", "not visible"),
                (&*"a".repeat(250), "250 bytes"),
            ] {
                let error = check(&with(&[(key, name)])).unwrap_err();
                assert!(error.contains(key) && error.contains(part) && !error.contains('\u{202e}'), "{error}");
            }
            assert_eq!(check(&with(&[(key, "Größe 東京/a:b")])), Ok(()));
        }
        let error = check(&with(&[("archiver.group", &"é".repeat(42))])).unwrap_err();
        assert!(error.contains("archiver.group") && error.contains("252 bytes"), "{error}");
        // The prefix counts, too.
        let long = "a".repeat(195);
        assert_eq!(check(&with(&[("archiver.group", &long)])), Ok(()));
        let error = check(&with(&[("topics.prefix", "laboratory."), ("archiver.group", &long)])).unwrap_err();
        assert!(error.contains("archiver.group") && error.contains("206 bytes"), "{error}");
    }

    #[test]
    fn names_carry_a_prefix_that_they_only_happen_to_begin_with_and_once_only() {
        let defaults = names(&mut ProgramSettings::default()).map(|name| name.clone());
        let beginnings = defaults.iter().flat_map(|name| (1..=name.len()).map(|length| &name[..length]));
        for prefix in beginnings.chain(["lab."]) {
            let mut settings = with(&[("topics.prefix", prefix)]);
            carry_prefix(&mut settings);
            let once = names(&mut settings).map(|name| name.clone());
            assert_eq!(once, defaults.clone().map(|name| format!("{prefix}{name}")));
            assert!(!are_those_of_the_default(&settings), "{prefix}");
            assert_eq!(check(&settings), Ok(()), "{prefix}");
            carry_prefix(&mut settings);
            assert_eq!(names(&mut settings).map(|name| name.clone()), once, "{prefix}");
        }
        assert!(are_those_of_the_default(&with(&[("topics.prefix", "")])));
        assert!(!are_those_of_the_default(&ProgramSettings::default()));
    }
}
