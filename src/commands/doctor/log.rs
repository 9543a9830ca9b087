//! The log: Kafka's brokers, topics and rights, or the embedded one.

use std::collections::BTreeMap;
use std::sync::Arc;

use eadt_bus::embedded::{IN_USE, StampSource};
use eadt_bus::kafka::KafkaBus;
use eadt_bus::rights::{AclEntry, AclResource};
use eadt_bus::{Bus, TopicPartition, TopicSpec, topics};
use eadt_service::ServiceClock;

use super::{Findings, clock, partitions};
use crate::progress::ProgressMeter;
use crate::rights::AclRole;
use crate::settings::ProgramSettings;

/// Parts that are checked if none is named.
const USUAL: [AclRole; 4] = [AclRole::Collector, AclRole::Processor, AclRole::Actuator, AclRole::Archiver];

/// Checks of a Kafka, of which the first waits for a broker: connection, topics, rights, their layout, clocks, keys.
const KAFKA_CHECKS: u64 = 6;

pub fn kafka(parts: &[AclRole], settings: &ProgramSettings, findings: &mut Findings) -> Option<Arc<dyn Bus>> {
    let meter = ProgressMeter::steps(KAFKA_CHECKS, "checks of Kafka");
    let bus = match crate::bus::kafka(settings) {
        Ok(bus) => bus,
        Err(error) => {
            let remedy =
                "check bus.brokers and bus.security, that Kafka runs there, and that the network lets this machine through";
            findings.wrong("broker", error.to_string(), remedy);
            return None;
        }
    };
    findings.ok("broker", format!("{} answers; this is {}", settings.bus.brokers, bus.principal()));
    meter.add(1);
    let existing = match bus.topics(&settings.topics.prefix) {
        Ok(existing) => existing,
        Err(error) => {
            // A right that is lacking is the cause.
            rights(&bus, parts, settings, &AbsentTopics::default(), findings);
            findings.wrong("topics", error.to_string(), "grant the right, or run it as a user that may describe topics");
            findings.unchecked("clock", "needs the topics");
            return Some(Arc::new(bus));
        }
    };
    let absent = AbsentTopics::among(&existing, settings, |topic| bus.missing_right(topic));
    if absent.is_everything(settings) {
        // Only this must be done first. Further problems can be seen afterwards.
        let remedy = format!("{} creates them; then run this again", command(settings, "topics apply"));
        findings.wrong("topics", absent.text(settings), &remedy);
        return None;
    }
    meter.add(1);
    rights(&bus, parts, settings, &absent, findings);
    meter.add(1);
    if !existing.is_empty() {
        check_replication(&existing, findings);
    }
    check_layout(&bus, &existing, &absent, settings, findings);
    meter.add(1);
    if absent.missing.is_empty() && absent.hidden.is_empty() {
        let limit = settings.processor.max_future_seconds.0;
        clock::compare(&bus, &settings.topics.prefix, &ServiceClock::machine(), limit, findings);
        meter.add(1);
        partitions::keys(&bus, settings, findings);
    } else {
        findings.unchecked("clock", "needs the topics");
    }
    Some(Arc::new(bus))
}

/// Returns a command as it is to be typed: on Kafka with the brokers, which it would else not find.
fn command(settings: &ProgramSettings, words: &str) -> String {
    match settings.bus.brokers.as_str() {
        "" => format!("`eadt {words}`"),
        brokers => format!("`eadt {words} --kafka {brokers}`"),
    }
}

/// Topics that are not seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct AbsentTopics {
    /// They do not exist: rights on them cannot be checked.
    missing: Vec<String>,
    /// This user may not see them, whether they exist or not.
    hidden: Vec<String>,
}

impl AbsentTopics {
    /// `denied` answers which right is lacking on a topic that is not seen.
    fn among(existing: &[TopicSpec], settings: &ProgramSettings, denied: impl Fn(&str) -> Option<String>) -> Self {
        let names = topics::desired(&settings.topics.prefix, 1, 1).into_iter().map(|topic| topic.name.to_string());
        let unseen = names.filter(|name| !existing.iter().any(|present| *present.name == **name));
        let (hidden, missing) = unseen.partition(|name| denied(name).is_some());
        Self { missing, hidden }
    }

    fn is_everything(&self, settings: &ProgramSettings) -> bool {
        self.missing.len() == topics::desired(&settings.topics.prefix, 1, 1).len()
    }

    fn text(&self, settings: &ProgramSettings) -> String {
        let all = topics::desired(&settings.topics.prefix, 1, 1).len();
        if self.missing.len() == all {
            return format!("none of the {all} topics {}* exists", settings.topics.prefix);
        }
        format!("{} of the {all} topics are missing: {}", self.missing.len(), self.missing.join(", "))
    }
}

fn existing(bus: &dyn Bus, settings: &ProgramSettings, findings: &mut Findings) -> Option<Vec<TopicSpec>> {
    match bus.topics(&settings.topics.prefix) {
        Ok(existing) => Some(existing),
        Err(error) => {
            findings.wrong("topics", error.to_string(), "grant the right, or run it as a user that may describe topics");
            None
        }
    }
}

/// Topics that one broker alone has.
fn check_replication(existing: &[TopicSpec], findings: &mut Findings) {
    let alone = existing.iter().filter(|topic| topic.replication < 2).count();
    if alone > 0 {
        findings.notice(
            "topics",
            format!("{alone} of {} have one copy: what their broker's disk loses is gone, and a broker that is killed may leave a transaction open", existing.len()),
            "with three brokers: topics.replication = 3 before the topics are made; with one: docs/operate/operations.md, \"A transaction that stays open\"",
        );
    }
}

/// Each difference with what mends it: a plan that would refuse is no remedy.
fn check_layout(
    bus: &dyn Bus,
    existing: &[TopicSpec],
    absent: &AbsentTopics,
    settings: &ProgramSettings,
    findings: &mut Findings,
) {
    let names = &settings.topics;
    let before = findings.wrong_count();
    match (absent.missing.is_empty(), settings.bus.brokers.is_empty()) {
        (true, _) => {}
        (false, true) => findings.notice("topics", absent.text(settings), "`eadt up` makes them when it starts"),
        (false, false) => {
            findings.wrong("topics", absent.text(settings), &format!("{} makes them", command(settings, "topics apply")));
        }
    }
    let desired = topics::desired(&names.prefix, names.partitions, names.replication);
    let holds_data = |spec: &TopicSpec| {
        let mut partitions = (0..spec.partitions).map(|number| TopicPartition::new(Arc::clone(&spec.name), number));
        partitions.any(|at| bus.watermarks(&at).is_ok_and(|marks| marks.high > 0))
    };
    for (about, remedy) in partition_counts(existing, &desired, |words| command(settings, words), holds_data) {
        findings.wrong("topics", about, &remedy);
    }
    let mut others = crate::commands::topics::topic_differences(existing, names);
    others.retain(|wrong| !wrong.ends_with(" is missing") && !wrong.contains(" partitions instead of "));
    for wrong in others {
        let (shows, does) = (command(settings, "topics apply --dry-run"), command(settings, "topics apply"));
        findings.wrong("topics", wrong, &format!("{shows} shows what it would change, {does} does it"));
    }
    for topic in existing.iter().filter(|topic| topic.replication < 2 && settings.topics.replication > 1) {
        let about = format!("{} has {} copies instead of {}", topic.name, topic.replication, settings.topics.replication);
        findings.wrong(
            "topics",
            about,
            "add copies with Kafka's kafka-reassign-partitions; a topic's count is not changed by itself",
        );
    }
    if findings.wrong_count() == before && absent.hidden.is_empty() && absent.missing.is_empty() {
        findings.ok("topics", format!("all {} match the settings", desired.len()));
    }
}

/// Checks topics whose partition count differs from the settings, grouped by remedy.
fn partition_counts(
    existing: &[TopicSpec],
    desired: &[TopicSpec],
    command: impl Fn(&str) -> String,
    holds_data: impl Fn(&TopicSpec) -> bool,
) -> Vec<(String, String)> {
    let mut found: BTreeMap<(i32, i32, String), Vec<&str>> = BTreeMap::new();
    for topic in desired {
        let Some(present) = existing.iter().find(|present| present.name == topic.name) else { continue };
        let (is, should_be) = (present.partitions, topic.partitions);
        let remedy = if is == should_be {
            continue;
        } else if is > should_be {
            "a topic cannot shrink: set topics.partitions to what is there, or use another topics.prefix".to_owned()
        } else if holds_data(present) {
            let apply = command("topics apply --repartition");
            format!("set topics.partitions to what is there; or {apply}, which leaves the history of keys behind")
        } else {
            format!("{} adds them", command("topics apply"))
        };
        found.entry((is, should_be, remedy)).or_default().push(&topic.name);
    }
    let text = |is, should_be, names: &[&str]| match names {
        [name] => format!("{name} has {is} partitions instead of {should_be}"),
        _ => format!("{} topics have {is} partitions instead of {should_be}: {}", names.len(), names.join(", ")),
    };
    found.into_iter().map(|((is, should_be, remedy), names)| (text(is, should_be, &names), remedy)).collect()
}

/// Finds the rights that each part lacks. Topics that do not exist are left out.
fn rights(bus: &KafkaBus, parts: &[AclRole], settings: &ProgramSettings, absent: &AbsentTopics, findings: &mut Findings) {
    let names = topics::desired(&settings.topics.prefix, 1, 1).into_iter().map(|topic| topic.name.to_string());
    let names: Vec<String> = names.filter(|name| !absent.missing.contains(name)).collect();
    for part in if parts.is_empty() { &USUAL } else { parts } {
        let mut wanted: Vec<AclEntry> = part.rights(settings);
        wanted.retain(|right| !matches!(&right.resource, AclResource::Topic(name) if absent.missing.contains(name)));
        match bus.missing_rights(&wanted, &names) {
            Ok(lacking) if lacking.is_empty() => {
                findings.ok("rights", format!("{} has all {} of the {}", bus.principal(), wanted.len(), part.name()));
            }
            Ok(lacking) => {
                let (who, name) = (bus.principal(), part.name());
                let grant = command(settings, &format!("topics acls {name} --grant {who}"));
                let look = command(settings, &format!("doctor {name}"));
                let remedy = format!(
                    "{grant} as a user who may alter the cluster, or apply deploy/kafka/acls/{name}.yaml; name only the parts that \
                     this user runs ({look})"
                );
                for right in lacking {
                    findings.wrong("rights", format!("the {name} needs {right}, and {who} may not"), &remedy);
                }
            }
            Err(error) => findings.unchecked("rights", format!("of the {}: {error}", part.name())),
        }
    }
}

pub fn embedded(settings: &ProgramSettings, findings: &mut Findings) -> Option<Arc<dyn Bus>> {
    let dir = &settings.bus.data_dir;
    if !dir.join("log").exists() {
        findings.notice(
            "log",
            format!("{} holds no embedded log yet", dir.display()),
            "`eadt up` makes it; for Kafka give --kafka",
        );
        return None;
    }
    let log = match crate::bus::open_embedded(settings, StampSource::Wall) {
        Ok(log) => log,
        Err(error) => {
            let message = format!("{error:#}");
            if message.contains(IN_USE) {
                findings.unchecked("log", format!("{}: {IN_USE}; stop that one to look closer", dir.display()));
            } else {
                let remedy = "see docs/operate/operations.md for replacing a damaged or newer log by a copy";
                findings.wrong("log", message, remedy);
            }
            return None;
        }
    };
    match records(&log, settings) {
        Ok((topics, records)) => findings.ok("log", format!("{}: {topics} topics, {records} offsets", dir.display())),
        Err(error) => {
            findings.wrong("log", error.to_string(), "put back a copy of the whole data folder, or begin with a new one");
        }
    }
    if let Some(existing) = existing(&log, settings, findings) {
        let absent = AbsentTopics::among(&existing, settings, |_| None);
        check_layout(&log, &existing, &absent, settings, findings);
        if absent.missing.is_empty() {
            partitions::keys(&log, settings, findings);
        }
    }
    Some(Arc::new(log))
}

fn records(bus: &dyn Bus, settings: &ProgramSettings) -> eadt_bus::Result<(usize, i64)> {
    let topics = bus.topics(&settings.topics.prefix)?;
    let mut records = 0;
    for topic in &topics {
        for partition in 0..topic.partitions {
            let marks = bus.watermarks(&TopicPartition::new(Arc::clone(&topic.name), partition))?;
            records += marks.high - marks.low;
        }
    }
    Ok((topics.len(), records))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<TopicSpec> {
        topics::desired("eadt.", 4, 1)
    }

    #[test]
    fn a_topic_that_does_not_exist_is_distinguished_from_one_that_may_not_be_seen() {
        let settings = ProgramSettings::default();
        let hidden = |topic: &str| topic.ends_with("decisions.v1").then(|| "denied".to_owned());
        let none = AbsentTopics::among(&[], &settings, |_| None);
        assert!(none.is_everything(&settings) && none.text(&settings).starts_with("none of the "), "{none:?}");
        let mut existing = all();
        existing.retain(|topic| !["eadt.decisions.v1", "eadt.models.v1"].contains(&&*topic.name));
        let some = AbsentTopics::among(&existing, &settings, hidden);
        assert_eq!(some, AbsentTopics { missing: vec!["eadt.models.v1".into()], hidden: vec!["eadt.decisions.v1".into()] });
        assert!(!some.is_everything(&settings) && some.text(&settings).ends_with("topics are missing: eadt.models.v1"));
        // Without the right to see topics, none is reported as missing.
        let denied = AbsentTopics::among(&[], &settings, |_| Some("denied".into()));
        assert!(!denied.is_everything(&settings) && denied.missing.is_empty());
        assert_eq!(AbsentTopics::among(&all(), &settings, |_| None), AbsentTopics::default());
    }

    #[test]
    fn topics_that_a_start_makes_are_no_fault_of_a_log_that_has_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = ProgramSettings::default();
        settings.bus.data_dir = dir.path().to_owned();
        drop(crate::bus::open_embedded(&settings, StampSource::Wall).unwrap());
        let mut findings = Findings::default();
        assert!(embedded(&settings, &mut findings).is_some());
        assert_eq!(findings.wrong_count(), 0, "{findings:?}");
        let remedies: Vec<_> = findings.0.iter().filter_map(|finding| finding.remedy.as_deref()).collect();
        assert_eq!(remedies, ["`eadt up` makes them when it starts"]);
    }

    #[test]
    fn a_command_on_kafka_names_its_brokers() {
        let mut settings = ProgramSettings::default();
        assert_eq!(command(&settings, "topics apply"), "`eadt topics apply`");
        settings.bus.brokers = "k:1,l:1".to_owned();
        assert_eq!(command(&settings, "topics apply"), "`eadt topics apply --kafka k:1,l:1`");
    }

    #[test]
    fn the_remedy_for_a_partition_count_is_one_that_is_not_refused() {
        let on_kafka = |words: &str| format!("`eadt {words} --kafka k:1`");
        let findings = |is: i32, should_be: i32, holds_data: bool| {
            let (existing, desired) = (topics::desired("eadt.", is, 1), topics::desired("eadt.", should_be, 1));
            partition_counts(&existing, &desired, on_kafka, |_| holds_data)
        };
        assert!(findings(4, 4, true).is_empty());
        for (is, should_be, holds_data, remedy) in [
            (4, 8, false, "`eadt topics apply --kafka k:1` adds them"),
            (4, 8, true, "`eadt topics apply --repartition --kafka k:1`"),
            (8, 4, false, "cannot shrink"),
            (8, 4, true, "cannot shrink"),
        ] {
            let found = findings(is, should_be, holds_data);
            assert_eq!(found.len(), 1, "one finding for all: {found:?}");
            let (about, advice) = &found[0];
            assert!(
                about.contains(&format!("have {is} partitions instead of {should_be}")) && advice.contains(remedy),
                "{found:?}"
            );
        }
        let one = partition_counts(&all()[..1], &topics::desired("eadt.", 8, 1), on_kafka, |_| false);
        assert!(one[0].0.contains(" has 4 partitions instead of 8"), "{one:?}");
    }
}
