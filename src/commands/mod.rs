//! One file a command. Each returns an error that names the remedy; `main` prints it.

pub mod acls;
pub mod archive;
pub mod backtest;
pub mod dashboard;
pub mod dataset;
pub mod doctor;
pub mod exporter;
pub mod get;
pub mod import;
pub mod man;
pub mod metrics;
pub mod optimizer;
pub mod partition;
pub mod policy;
pub mod profile;
pub mod publish;
pub mod record;
pub mod replay;
pub mod report;
pub mod tail;
pub mod token;
pub mod top;
pub mod topics;
pub mod training_config;
pub mod tune;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use eadt_bus::{Bus, BusError, ConsumerRecord, StartOffset, TopicPartition};
use eadt_lake::{Archive, ArchiveListing, IdentityGaps, LakeError};
use eadt_processor::codec::StructuredEvent;
use eadt_schemas::counts::{counted, list_first};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header;
use eadt_schemas::{EventTime, LoggedEvent, Topic};
use serde_json::value::RawValue;

use crate::progress::ProgressMeter;
use crate::settings::TopicSettings;

/// Returns every partition of these topics, from `start`.
pub fn partitions(
    bus: &dyn Bus,
    names: &TopicSettings,
    topics: &[Topic],
    start: StartOffset,
) -> anyhow::Result<Vec<(TopicPartition, StartOffset)>> {
    let existing = bus.topics(&names.prefix)?;
    let mut all = Vec::new();
    for topic in topics {
        let name: Arc<str> = format!("{}{topic}", names.prefix).into();
        let spec = existing.iter().find(|spec| spec.name == name).ok_or_else(|| missing_topic(bus, &name, *topic))?;
        all.extend((0..spec.partitions).map(|p| (TopicPartition { topic: name.clone(), partition: p }, start)));
    }
    Ok(all)
}

/// Returns the error for a topic that does not exist, with the prefixes under which it does.
fn missing_topic(bus: &dyn Bus, name: &str, topic: Topic) -> anyhow::Error {
    let listed = bus.topics("");
    if listed.as_ref().is_ok_and(Vec::is_empty) {
        return anyhow::anyhow!(
            "topic {name} does not exist, and no other does, so nothing was recorded there yet: `eadt up` and `eadt topics apply` make them"
        );
    }
    let (all, base) = (listed.unwrap_or_default(), topic.to_string());
    let prefixes = all.iter().filter_map(|spec| spec.name.strip_suffix(&*base));
    let others: Vec<String> =
        prefixes.filter(|prefix| prefix.is_empty() || prefix.ends_with('.')).map(|prefix| format!("{prefix:?}")).collect();
    let hint = if others.is_empty() { String::new() } else { format!(", or set EADT_TOPICS__PREFIX to {}", others.join(" or ")) };
    anyhow::anyhow!("topic {name} does not exist: run `eadt topics apply`{hint}")
}

/// Returns whether an error means that nothing was ever archived in a place, rather than that its archive cannot be read.
pub fn is_absent(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<LakeError>(), Some(LakeError::Absent { .. }))
}

/// Returns a bar of the records from these positions to the present end of the log.
pub fn meter_of_log(bus: &dyn Bus, from: &[(TopicPartition, StartOffset)]) -> Result<ProgressMeter, BusError> {
    Ok(ProgressMeter::steps(records_of_log(bus, from)?, "records"))
}

/// Returns the number of records from these positions to the present end of the log.
pub fn records_of_log(bus: &dyn Bus, from: &[(TopicPartition, StartOffset)]) -> Result<u64, BusError> {
    let mut records = 0;
    for (at, start) in from {
        let marks = bus.watermarks(at)?;
        let first = match start {
            StartOffset::At(offset) => (*offset).max(marks.low),
            StartOffset::Earliest => marks.low,
            StartOffset::Latest => marks.high,
        };
        records += u64::try_from(marks.high - first).unwrap_or(0);
    }
    Ok(records)
}

/// Opens the archive that a command reads these topics of, as [`Archive::find`] does. Warns if it may be incomplete.
pub fn find_archive(path: &Path, topics: &[Topic]) -> Result<Archive, LakeError> {
    let (archive, listing) = Archive::find_listed(path)?;
    warn_unrecorded(archive.place(), &listing, topics);
    Ok(archive)
}

/// Places that [`warn_unrecorded`] has warned of: a command may read one several times.
static UNRECORDED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Warns if an archive has no record of the offsets that were archived of these topics, so that a missing first or last file
/// cannot be noticed.
pub fn warn_unrecorded(place: &str, listing: &ArchiveListing, topics: &[Topic]) {
    if let Some(about) = describe_unrecorded(listing, topics)
        && UNRECORDED.lock().unwrap_or_else(PoisonError::into_inner).insert(place.to_owned())
    {
        let remedy = "put _archived back from a copy, or let `eadt archive compact` record the files that are there";
        crate::output::note!("warning: {place} {about}, and what one held is in no figure; {remedy}");
    }
}

/// Partitions without a record that are named.
const UNRECORDED_SHOWN: usize = 5;

/// Returns a text about missing records of archived files; `None` if an archive has them all.
pub fn describe_unrecorded(listing: &ArchiveListing, topics: &[Topic]) -> Option<String> {
    const EFFECT: &str = "a missing first or last file cannot be noticed";
    if listing.lacks_records() {
        return Some(format!("has files and no folder _archived, which records what was archived: {EFFECT}"));
    }
    let partitions: Vec<String> = listing
        .unrecorded
        .iter()
        .filter(|(topic, _)| topics.contains(topic))
        .map(|(topic, partition)| format!("{topic} partition {partition}"))
        .collect();
    let named = list_first(&partitions, UNRECORDED_SHOWN);
    (!partitions.is_empty()).then(|| format!("has no record in its folder _archived of what was archived of {named}: {EFFECT}"))
}

/// Returns texts about gaps in the identity of an archive, as far as its files were read.
pub fn describe_identity(archive: &Archive, listing: &ArchiveListing) -> Vec<String> {
    let IdentityGaps { is_unrecorded, unidentified } = archive.identity_gaps();
    let mut gaps = Vec::new();
    // Without any record, that is described already.
    if is_unrecorded && !listing.lacks_records() {
        gaps.push("has no record of its id in its folder _archived: it is unknown whether all its files are its own".to_owned());
    }
    if let Some(first) = unidentified.first() {
        gaps.push(format!(
            "has {} of earlier versions, which wrote no id, such as {first}: it is unknown whether they are its own",
            counted(unidentified.len() as u64, "file")
        ));
    }
    gaps
}

/// Warns of records of types that their topic does not take: no figure counts them.
pub fn warn_passed_over(topic: Topic, passed_over: &BTreeMap<String, u64>) {
    for (kind, count) in passed_over {
        let records = counted(*count, "record");
        crate::output::note!("warning: {records} of {topic} passed over: their type is {kind:?}, which this topic does not take");
    }
}

/// Warns of ranges of offsets (topic, partition, first, last) that were archived and are not there any more.
pub fn warn_missing<'a>(missing: impl IntoIterator<Item = &'a (Topic, i32, i64, i64)>) {
    for (topic, partition, from, to) in missing {
        crate::output::note!(
            "warning: {topic} partition {partition} lacks offsets {from} to {to}: a file of the archive was removed"
        );
    }
}

/// Returns how many offsets are in such ranges.
pub fn missing_offsets<'a>(missing: impl IntoIterator<Item = &'a (Topic, i32, i64, i64)>) -> u64 {
    missing.into_iter().map(|(_, _, from, to)| u64::try_from(to - from + 1).unwrap_or(0)).sum()
}

/// Returns the topic behind a full name.
pub fn topic_of(record: &ConsumerRecord, prefix: &str) -> Option<Topic> {
    Topic::from_name(&record.at.topic, prefix)
}

/// Reads the name of a topic, with its version or without.
pub fn topic(name: &str) -> Result<Topic, String> {
    let known = Topic::from_base_name(name).or_else(|| Topic::from_base_name(&format!("{name}.v1")));
    known.ok_or_else(|| format!("no topic is named {name:?}; {}", near(name)))
}

/// Returns the topics with similar names; all, if none is similar.
fn near(name: &str) -> String {
    let name = name.to_lowercase();
    let distance = |topic: Topic| {
        let whole = topic.base_name().trim_end_matches(".v1");
        let parts = whole.split(['.', '-']).chain([whole, topic.base_name()]);
        parts.map(|part| strsim::damerau_levenshtein(part, &name)).min().unwrap_or(usize::MAX)
    };
    let least = Topic::ALL.into_iter().map(distance).min().unwrap_or_default();
    if least > 1 + name.len() / 4 {
        return format!("there are {}", Topic::ALL.map(|topic| topic.base_name().trim_end_matches(".v1")).join(", "));
    }
    let nearest = Topic::ALL.into_iter().filter(|topic| distance(*topic) == least).map(Topic::base_name);
    format!("did you mean {}?", nearest.map(|name| name.trim_end_matches(".v1")).collect::<Vec<_>>().join(" or "))
}

/// Names that are listed if none is near.
const NAMES_LISTED: usize = 5;

/// Returns the known names that are similar; the first few of all, if none is similar. Names of workloads count with and
/// without their namespace.
pub fn nearest_names<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let name = name.to_lowercase();
    let distance = |known: &str| {
        let known = known.to_lowercase();
        let forms = known.split_once('/').map(|(_, short)| short).into_iter().chain([known.as_str()]);
        forms.map(|form| strsim::damerau_levenshtein(form, &name)).min().unwrap_or(usize::MAX)
    };
    let mut known: Vec<(usize, &str)> = known.into_iter().map(|known| (distance(known), known)).collect();
    known.sort_unstable();
    known.dedup();
    let limit = 1 + name.chars().count() / 4;
    let near: Vec<&str> = known.iter().filter(|(far, _)| *far <= limit).map(|(_, near)| *near).take(NAMES_LISTED).collect();
    if !near.is_empty() {
        return format!("did you mean {}?", near.join(" or "));
    }
    match known.len() {
        0 => "there is none".to_owned(),
        count => {
            known.sort_unstable_by_key(|(_, name)| *name);
            let listed: Vec<&str> = known.iter().map(|(_, name)| *name).take(NAMES_LISTED).collect();
            let more = if count > NAMES_LISTED { format!(" and {} more", count - NAMES_LISTED) } else { String::new() };
            format!("there are {}{more}", listed.join(", "))
        }
    }
}

/// Returns a record as an event log has it; `None` if its value is not JSON (a dead letter of a malformed event, state).
pub fn logged(record: &ConsumerRecord, topic: Topic) -> Option<LoggedEvent> {
    let event = record.value.as_deref().filter(|_| record.header(header::TYPE).is_none()).and_then(StructuredEvent::parse);
    let attribute = |name: &str, structured: fn(&StructuredEvent<'_>) -> String| {
        let own = event.as_ref().map(structured).filter(|text| !text.is_empty());
        record.header(name).map(str::to_owned).or(own)
    };
    let kind = attribute(header::TYPE, |event| event.kind.to_string());
    let kind = kind.unwrap_or_else(|| topic.event_type().name().to_owned());
    let value = match &event {
        Some(event) => event.data(),
        None => record.value.as_deref().map(std::str::from_utf8).transpose().ok()?.map(Cow::Borrowed),
    };
    let data = value.map(|value| RawValue::from_string(value.into_owned())).transpose().ok()?;
    let time = record.header(header::TIME).and_then(|text| text.parse::<EventTime>().ok());
    let time = time.or_else(|| event.as_ref()?.time).unwrap_or(record.stamp);
    Some(LoggedEvent {
        specversion: "1.0".to_owned(),
        kind,
        source: attribute(header::SOURCE, |event| event.source.to_string()).unwrap_or_else(|| "/unknown".to_owned()),
        id: attribute(header::ID, |event| event.id.to_string()).unwrap_or_else(|| format!("{}@{}", record.at, record.offset)),
        time,
        subject: attribute(header::SUBJECT, |event| event.subject.to_string()).unwrap_or_default(),
        datacontenttype: "application/json".to_owned(),
        key: record.key.as_ref().and_then(|key| std::str::from_utf8(key).ok()).map(str::to_owned),
        topic: Some(topic),
        partition: Some(record.at.partition),
        offset: Some(record.offset),
        stamp: Some(record.stamp),
        is_sent_again: record.headers.get(header::SENT_AGAIN).is_some(),
        input_positions: record.header(header::INPUT_POSITIONS).map(str::to_owned),
        settings: record.header(header::SETTINGS).map(str::to_owned),
        reason: record.header(dead_letter_header::REASON).map(str::to_owned),
        detail: record.header(dead_letter_header::DETAIL).map(str::to_owned),
        data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_without_its_records_is_described() {
        use eadt_lake::{ArchiveFile, ArchiveFileName};
        let file = |partition| ArchiveFile {
            name: ArchiveFileName { topic: Topic::Decisions, partition, first: 0, last: 9, date: "2026-01-02".to_owned() },
            bytes: 1,
        };
        let listing = |unrecorded: &[i32]| ArchiveListing {
            files: (0..8).map(file).collect(),
            unrecorded: unrecorded.iter().map(|partition| (Topic::Decisions, *partition)).collect(),
            ..ArchiveListing::default()
        };
        let all = [Topic::Decisions, Topic::EfficiencyWindows];
        for (unrecorded, topics, part) in [
            (&[][..], &all[..], None),
            (&[3][..], &all[1..], None),
            (&[3][..], &all[..], Some("of decisions.v1 partition 3: a missing")),
            (&[0, 1, 2, 3, 4, 5, 6][..], &all[..], Some("partition 4 and 2 more: a missing")),
            (&[0, 1, 2, 3, 4, 5, 6, 7][..], &all[1..], Some("no folder _archived")),
        ] {
            let about = describe_unrecorded(&listing(unrecorded), topics);
            assert_eq!(about.is_some(), part.is_some(), "{unrecorded:?}");
            assert!(about.unwrap_or_default().contains(part.unwrap_or_default()), "{unrecorded:?}");
        }
        assert_eq!(describe_unrecorded(&ArchiveListing::default(), &all), None, "nothing is archived yet");
    }

    #[test]
    fn an_unknown_topic_is_reported_with_those_that_are_near() {
        let error = |name: &str| topic(name).unwrap_err();
        for (name, near) in [
            ("decisons", "did you mean decisions?"),
            ("windows", "did you mean efficiency.windows?"),
            ("telemetry.v1", "did you mean gpu.telemetry?"),
            ("Progress", "did you mean training.progress?"),
            ("device", "did you mean device-intents or device-states or device-holders?"),
            ("deadletters", "did you mean dead-letters?"),
        ] {
            assert_eq!(error(name), format!("no topic is named {name:?}; {near}"));
        }
        let far = error("energy-of-the-sun");
        assert!(far.contains("there are ") && far.contains("gpu.telemetry, ") && far.contains("models"), "{far}");
        assert_eq!(topic("decisions"), Ok(Topic::Decisions));
    }

    #[test]
    fn an_unknown_name_is_reported_with_those_that_are_near() {
        let known = ["team/llm", "team/vision", "lab/llm"];
        assert_eq!(nearest_names("lml", known), "did you mean lab/llm or team/llm?");
        assert_eq!(nearest_names("team/visoin", known), "did you mean team/vision?");
        assert_eq!(nearest_names("something else", known), "there are lab/llm, team/llm, team/vision");
        assert_eq!(nearest_names("nix", []), "there is none");
        let many: Vec<String> = (0..7).map(|number| format!("team/job-{number}")).collect();
        let listed = nearest_names("x", many.iter().map(String::as_str));
        assert!(listed.ends_with("team/job-4 and 2 more"), "{listed}");
    }
}
