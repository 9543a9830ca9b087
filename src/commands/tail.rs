//! `eadt tail`: events as they arrive.

use std::collections::{BTreeSet, HashSet};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use eadt_bus::{Bus, ConsumerRecord, IsolationLevel, PollEvent, StartOffset, read_to_end};
use eadt_schemas::Topic;
use eadt_schemas::v1::dead_letter_header as h;
use eadt_service::{Shutdown, redact};

use super::{logged, meter_of_log, nearest_names, partitions, topic_of};
use crate::cli::{TailArgs, TailForm};
use crate::live::event_line;
use crate::settings::{ProgramSettings, TopicSettings};

/// Prints until interrupted, or with `--until-end` and on the embedded log up to the present end of every partition.
pub fn run(args: &TailArgs, bus: &dyn Bus, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let names = &settings.topics;
    // Nobody can append to it meanwhile.
    let embedded = settings.bus.brokers.is_empty();
    if embedded && !args.from_start && !args.until_end {
        bail!(
            "the embedded log in {} belongs to one process at a time, so nothing new can come: --from-start shows what it holds",
            settings.bus.data_dir.display()
        );
    }
    let usual = [Topic::Decisions, Topic::Actuations];
    let topics = if args.topics.is_empty() { usual.to_vec() } else { args.topics.clone() };
    let start = if args.from_start || args.until_end { StartOffset::Earliest } else { StartOffset::Latest };
    let from = partitions(bus, names, &topics, start)?;
    let mut open: HashSet<_> = from.iter().map(|(at, _)| at.clone()).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let terminal = if std::io::stdout().is_terminal() { TailForm::Readable } else { TailForm::Raw };
    let form = args.output.unwrap_or(terminal);
    let (mut batch, mut out) = (Vec::new(), std::io::stdout().lock());
    let mut is_key_found = args.key.is_none();
    while !shutdown.is_cancelled() && (!(args.until_end || embedded) || !open.is_empty()) {
        reader.poll(1000, Duration::from_millis(200), &mut batch)?;
        for polled in batch.drain(..) {
            let record = match polled {
                PollEvent::Record(record) => record,
                PollEvent::End { at, .. } => {
                    open.remove(&at);
                    continue;
                }
                _ => continue,
            };
            let Some(topic) = topic_of(&record, &names.prefix) else { continue };
            let key = record.key.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            if args.key.as_deref().is_some_and(|wanted| wanted != key) {
                continue;
            }
            is_key_found = true;
            if args.changes && record.value.as_deref().is_some_and(|value| !event_line::is_news(topic, value)) {
                continue;
            }
            let written = if args.json {
                // A dead letter's value may be anything; its description is always JSON.
                if topic == Topic::DeadLetters {
                    writeln!(out, "{}", redact::line(&dead_letter(&record).to_string()))
                } else {
                    match logged(&record, topic) {
                        Some(event) => writeln!(out, "{}", redact::line(&serde_json::to_string(&event)?)),
                        None => continue,
                    }
                }
            } else {
                let readable = (form == TailForm::Readable).then(|| event_line::readable(topic, &record)).flatten();
                let readable = readable.map(|text| redact::line(&text).into_owned());
                writeln!(out, "{}", readable.unwrap_or_else(|| line(topic, &key, &record)))
            };
            match written {
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                other => other?,
            }
        }
        out.flush()?;
    }
    match args.key.as_deref().filter(|_| !is_key_found && !shutdown.is_cancelled()) {
        Some(key) => explain_absent_key(key, &topics, bus, names, shutdown),
        None => Ok(()),
    }
}

/// Topics whose keys are proposed for one that no record has: workloads and GPUs.
const NAMING_TOPICS: [Topic; 4] = [Topic::Workloads, Topic::EfficiencyWindows, Topic::Decisions, Topic::GpuTelemetry];

/// Returns an error if no record of the log has the key, in whatever topic; those of other topics are named in a note.
fn explain_absent_key(
    key: &str,
    topics: &[Topic],
    bus: &dyn Bus,
    names: &TopicSettings,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let (mut known, mut holders) = (BTreeSet::new(), BTreeSet::new());
    let there: BTreeSet<Arc<str>> = bus.topics(&names.prefix)?.into_iter().map(|spec| spec.name).collect();
    let there: Vec<Topic> = Topic::ALL.into_iter().filter(|topic| there.contains(&*format!("{}{topic}", names.prefix))).collect();
    let from = partitions(bus, names, &there, StartOffset::Earliest)?;
    let meter = meter_of_log(bus, &from)?;
    read_to_end(
        bus,
        &from,
        || shutdown.is_cancelled(),
        |record: ConsumerRecord| {
            meter.add(1);
            let (Some(topic), Some(of_record)) = (topic_of(&record, &names.prefix), record.key.as_deref()) else {
                return anyhow::Ok(());
            };
            let of_record = String::from_utf8_lossy(of_record);
            if of_record == key {
                holders.insert(topic.to_string());
            }
            if NAMING_TOPICS.contains(&topic) && !known.contains(&*of_record) {
                known.insert(of_record.into_owned());
            }
            anyhow::Ok(())
        },
    )?;
    meter.finish();
    if shutdown.is_cancelled() {
        bail!("interrupted while other topics were searched for the key {key:?}");
    }
    if holders.is_empty() {
        bail!("no record has the key {key:?}; {}", nearest_names(key, known.iter().map(String::as_str)));
    }
    let topics: Vec<String> = topics.iter().map(Topic::to_string).collect();
    let holders: Vec<String> = holders.into_iter().collect();
    crate::output::note!("no record of {} has the key {key}; {} have it", topics.join(", "), holders.join(", "));
    Ok(())
}

/// A record in one line. Key, headers and value are another program's: nothing in them steers the terminal.
fn line(topic: Topic, key: &str, record: &ConsumerRecord) -> String {
    let value = record.value.as_deref().map_or("(deleted)".into(), String::from_utf8_lossy);
    let text =
        format!("{} {} {}@{} {key} {}{value}", record.stamp, topic, record.at.partition, record.offset, refusal_text(record));
    redact::line(&text).into_owned()
}

/// Why a dead letter was refused, in the words of its headers.
fn refusal_text(record: &ConsumerRecord) -> String {
    let text = |name: &str| record.header(name).unwrap_or_default().to_owned();
    match record.header(h::REASON) {
        Some(reason) => format!(
            "{reason} ({}, from {} partition {} offset {}): ",
            text(h::DETAIL),
            text(h::ORIGIN_TOPIC),
            text(h::ORIGIN_PARTITION),
            text(h::ORIGIN_OFFSET)
        ),
        None => String::new(),
    }
}

/// A dead letter with its headers; the value as text, with what is no UTF-8 replaced.
fn dead_letter(record: &ConsumerRecord) -> serde_json::Value {
    let headers: serde_json::Map<String, serde_json::Value> = record
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value).into_owned().into()))
        .collect();
    serde_json::json!({
        "stamp": record.stamp, "partition": record.at.partition, "offset": record.offset, "headers": headers,
        "value": record.value.as_deref().map(String::from_utf8_lossy),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use eadt_bus::TopicPartition;
    use eadt_schemas::EventTime;

    use super::*;

    #[test]
    fn nothing_that_another_program_wrote_steers_the_terminal() {
        let hostile = "a\u{1b}]0;title\u{7}\u{9b}31m\u{202e}gpj\u{200b}\r\nnext";
        let bytes = || Bytes::copy_from_slice(hostile.as_bytes());
        let names = [h::REASON, h::DETAIL, h::ORIGIN_TOPIC, h::ORIGIN_PARTITION, h::ORIGIN_OFFSET];
        let headers: Vec<_> = names.iter().map(|name| ((*name).into(), bytes())).collect();
        let record = ConsumerRecord {
            at: TopicPartition::new("eadt.dead-letters.v1", 0),
            offset: 7,
            stamp: EventTime::from_millis(0),
            key: Some(bytes()),
            value: Some(bytes()),
            headers: headers.into(),
        };
        for text in [line(Topic::DeadLetters, hostile, &record), redact::line(&dead_letter(&record).to_string()).into_owned()] {
            let steers = |c: char| c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}');
            assert!(!text.chars().any(steers), "{text:?}");
            assert!(text.contains("\\u001b]0;title") && text.contains("\\u202egpj\\u200b"), "{text}");
        }
    }
}
