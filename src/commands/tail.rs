//! `eadt tail`: events as they arrive.

use std::collections::HashSet;
use std::io::Write;
use std::time::Duration;

use eadt_bus::{Bus, Isolation, Polled, Start};
use eadt_schemas::Topic;
use eadt_service::Shutdown;

use super::{logged, parse_topics, partitions, topic_of};
use crate::cli::Tail;
use crate::settings::TopicSettings;

/// Prints until interrupted, or with `--until-end` up to the present end of every partition.
pub fn run(args: &Tail, bus: &dyn Bus, names: &TopicSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let topics = parse_topics(&args.topics, &[Topic::Decisions, Topic::Actuations])?;
    let start = if args.from_start || args.until_end { Start::Earliest } else { Start::Latest };
    let from = partitions(bus, names, &topics, start)?;
    let mut open: HashSet<_> = from.iter().map(|(at, _)| at.clone()).collect();
    let mut reader = bus.reader(&from, Isolation::ReadCommitted)?;
    let (mut batch, mut out) = (Vec::new(), std::io::stdout().lock());
    while !shutdown.is_cancelled() && (!args.until_end || !open.is_empty()) {
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
                match logged(&record, topic) {
                    Some(event) => writeln!(out, "{}", serde_json::to_string(&event)?),
                    None => continue,
                }
            } else {
                let value = record.value.as_deref().map_or("(deleted)".into(), String::from_utf8_lossy);
                let value: String = value.chars().filter(|c| !c.is_control()).collect();
                writeln!(out, "{} {} {}@{} {key} {value}", record.stamp, topic, record.at.partition, record.offset)
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
