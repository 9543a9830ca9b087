//! The log: Kafka's brokers, topics and rights, or the embedded one.

use std::sync::Arc;

use eadt_bus::embedded::Stamps;
use eadt_bus::kafka::KafkaBus;
use eadt_bus::rights::Right;
use eadt_bus::{Bus, TopicPartition, TopicSpec, topics};
use eadt_service::Clock;

use super::{Findings, clock, partitions};
use crate::rights::Part;
use crate::settings::Settings;

/// Who is asked about where nobody is named.
const USUAL: [Part; 4] = [Part::Collector, Part::Processor, Part::Actuator, Part::Archiver];

pub fn kafka(parts: &[Part], settings: &Settings, findings: &mut Findings) -> Option<Arc<dyn Bus>> {
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
    rights(&bus, parts, settings, findings);
    let existing = existing(&bus, settings, findings);
    if let Some(existing) = &existing {
        copies(existing, findings);
    }
    if existing.is_some_and(|existing| layout(&existing, settings, findings)) {
        let limit = settings.processor.max_future_seconds.0;
        clock::compare(&bus, &settings.topics.prefix, &Clock::wall(), limit, findings);
        partitions::keys(&bus, settings, findings);
    } else {
        findings.unchecked("clock", "needs the topics");
    }
    Some(Arc::new(bus))
}

fn existing(bus: &dyn Bus, settings: &Settings, findings: &mut Findings) -> Option<Vec<TopicSpec>> {
    match bus.topics(&settings.topics.prefix) {
        Ok(existing) => Some(existing),
        Err(error) => {
            findings.wrong("topics", error.to_string(), "grant the right, or ask as a user who may look at topics");
            None
        }
    }
}

/// Topics that one broker alone has.
fn copies(existing: &[TopicSpec], findings: &mut Findings) {
    let alone = existing.iter().filter(|topic| topic.replication < 2).count();
    if alone > 0 {
        findings.notice(
            "topics",
            format!("{alone} of {} have one copy: what their broker's disk loses is gone, and a broker that is killed may leave a transaction open", existing.len()),
            "with three brokers: topics.replication = 3 before the topics are made; with one: docs/operations.md, \"A transaction that stays open\"",
        );
    }
}

/// Whether the topics are there, at least.
fn layout(existing: &[TopicSpec], settings: &Settings, findings: &mut Findings) -> bool {
    let names = &settings.topics;
    let desired = topics::desired(&names.prefix, names.partitions, names.replication);
    let wrong = crate::commands::topics::wrong(existing, names);
    for wrong in &wrong {
        findings.wrong(
            "topics",
            wrong.clone(),
            "`eadt topics apply --dry-run` shows what it would change, `eadt topics apply` does it",
        );
    }
    for topic in existing.iter().filter(|topic| topic.replication < 2 && settings.topics.replication > 1) {
        let about = format!("{} has {} copies instead of {}", topic.name, topic.replication, settings.topics.replication);
        findings.wrong(
            "topics",
            about,
            "add copies with Kafka's kafka-reassign-partitions; a topic's count is not changed by itself",
        );
    }
    if wrong.is_empty() {
        findings.ok("topics", format!("all {} are as they should be", desired.len()));
    }
    desired.iter().all(|topic| existing.iter().any(|present| present.name == topic.name))
}

fn rights(bus: &KafkaBus, parts: &[Part], settings: &Settings, findings: &mut Findings) {
    let names: Vec<String> = topics::desired(&settings.topics.prefix, 1, 1).iter().map(|topic| topic.name.to_string()).collect();
    for part in if parts.is_empty() { &USUAL } else { parts } {
        let wanted: Vec<Right> = part.rights(settings);
        match bus.lacking(&wanted, &names) {
            Ok(lacking) if lacking.is_empty() => {
                findings.ok("rights", format!("{} has all {} of the {}", bus.principal(), wanted.len(), part.name()));
            }
            Ok(lacking) => {
                let (who, name) = (bus.principal(), part.name());
                let remedy = format!(
                    "`eadt topics acls {name} --grant {who}` as a user who may alter the cluster, or apply deploy/kafka/acls/{name}.yaml; \
                     name only the parts that this user runs (`eadt doctor {name}`)"
                );
                for right in lacking {
                    findings.wrong("rights", format!("the {name} needs {right}, and {who} may not"), &remedy);
                }
            }
            Err(error) => findings.unchecked("rights", format!("of the {}: {error}", part.name())),
        }
    }
}

pub fn embedded(settings: &Settings, findings: &mut Findings) -> Option<Arc<dyn Bus>> {
    let dir = &settings.bus.data_dir;
    if !dir.join("log").exists() {
        findings.notice(
            "log",
            format!("{} holds no embedded log yet", dir.display()),
            "`eadt up` makes it; for Kafka give --kafka",
        );
        return None;
    }
    let log = match crate::up::open_embedded(settings, Stamps::Wall) {
        Ok(log) => log,
        Err(error) => {
            let said = format!("{error:#}");
            if said.contains("another process has it open") {
                findings
                    .unchecked("log", format!("{}: another process has it open; stop that one to look closer", dir.display()));
            } else {
                let remedy = "docs/operations.md says how a damaged or newer log is replaced by a copy";
                findings.wrong("log", said, remedy);
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
    if existing(&log, settings, findings).is_some_and(|existing| layout(&existing, settings, findings)) {
        partitions::keys(&log, settings, findings);
    }
    Some(Arc::new(log))
}

fn records(bus: &dyn Bus, settings: &Settings) -> eadt_bus::Result<(usize, i64)> {
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
