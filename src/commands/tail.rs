//! `eadt tail`: events as they arrive.

use std::collections::HashSet;
use std::io::Write;
use std::time::Duration;

use anyhow::bail;
use eadt_bus::{Bus, Isolation, Polled, Record, Start};
use eadt_schemas::Topic;
use eadt_schemas::v1::dead_letter_header as h;
use eadt_service::Shutdown;

use super::{logged, parse_topics, partitions, topic_of};
use crate::cli::Tail;
use crate::settings::Settings;

/// Prints until interrupted, or with `--until-end` and on the embedded log up to the present end of every partition.
pub fn run(args: &Tail, bus: &dyn Bus, settings: &Settings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let names = &settings.topics;
    // Nobody can append to it meanwhile.
    let embedded = settings.bus.brokers.is_empty();
    if embedded && !args.from_start && !args.until_end {
        bail!(
            "the embedded log in {} belongs to one process at a time, so nothing new can come: --from-start shows what it holds",
            settings.bus.data_dir.display()
        );
    }
    let topics = parse_topics(&args.topics, &[Topic::Decisions, Topic::Actuations])?;
    let start = if args.from_start || args.until_end { Start::Earliest } else { Start::Latest };
    let from = partitions(bus, names, &topics, start)?;
    let mut open: HashSet<_> = from.iter().map(|(at, _)| at.clone()).collect();
    let mut reader = bus.reader(&from, Isolation::ReadCommitted)?;
    let (mut batch, mut out) = (Vec::new(), std::io::stdout().lock());
    while !shutdown.is_cancelled() && (!(args.until_end || embedded) || !open.is_empty()) {
        reader.poll(1000, Duration::from_millis(200), &mut batch)?;
        for polled in batch.drain(..) {
            let record = match polled {
                Polled::Record(record) => record,
                Polled::End { at, .. } => {
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
            let written = if args.json {
                // A dead letter's value may be anything; what is said about it is always JSON.
                if topic == Topic::DeadLetters {
                    writeln!(out, "{}", dead_letter(&record))
                } else {
                    match logged(&record, topic) {
                        Some(event) => writeln!(out, "{}", serde_json::to_string(&event)?),
                        None => continue,
                    }
                }
            } else {
                let value = record.value.as_deref().map_or("(deleted)".into(), String::from_utf8_lossy);
                let value: String = value.chars().filter(|c| !c.is_control()).collect();
                let why = why(&record);
                writeln!(out, "{} {} {}@{} {key} {why}{value}", record.stamp, topic, record.at.partition, record.offset)
            };
            match written {
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                other => other?,
            }
        }
        out.flush()?;
    }
    Ok(())
}

/// Why a dead letter was refused, in the words of its headers.
fn why(record: &Record) -> String {
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
fn dead_letter(record: &Record) -> serde_json::Value {
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
