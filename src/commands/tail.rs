//! `eadt tail`: events as they arrive.

mod by_time;

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use eadt_bus::{Bus, ConsumerRecord, IsolationLevel, PollEvent, StartOffset, read_to_end};
use eadt_schemas::envelope::header;
use eadt_schemas::v1::dead_letter_header as h;
use eadt_schemas::{EventType, Topic};
use eadt_service::{Shutdown, redact};
use serde::Deserialize;

use super::{logged, meter_of_log, nearest_names, partitions, topic_of};
use crate::cli::{TailArgs, TailForm};
use crate::live::event_line;
use crate::output::is_read;
use crate::settings::{ProgramSettings, TopicSettings};
use by_time::TimeOrder;

/// After so long without an answer, partitions without records are no longer waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prints until interrupted, or with `--until-end` and on the embedded log up to the present end of every partition.
pub fn run(args: &TailArgs, bus: &dyn Bus, settings: &ProgramSettings, shutdown: &Shutdown) -> anyhow::Result<()> {
    let names = &settings.topics;
    // No other process can append to it meanwhile.
    let embedded = settings.bus.brokers.is_empty();
    if embedded && !args.from_start && !args.until_end {
        bail!(
            "the embedded log in {} belongs to one process at a time, so nothing new can come: --from-start shows what it holds",
            settings.bus.data_dir.display()
        );
    }
    let usual = [Topic::Decisions, Topic::Actuations];
    let topics = if args.topics.is_empty() { usual.to_vec() } else { args.topics.clone() };
    let is_from_start = args.from_start || args.until_end;
    let start = if is_from_start { StartOffset::Earliest } else { StartOffset::Latest };
    let from = partitions(bus, names, &topics, start)?;
    let mut open: HashSet<_> = from.iter().map(|(at, _)| at.clone()).collect();
    let mut reader = bus.reader(&from, IsolationLevel::ReadCommitted)?;
    let terminal = if std::io::stdout().is_terminal() { TailForm::Readable } else { TailForm::Raw };
    let form = args.output.unwrap_or(terminal);
    let (mut batch, mut out) = (Vec::new(), std::io::stdout().lock());
    let mut printer = RecordPrinter { args, form, prefix: &names.prefix, is_key_found: args.key.is_none() };
    let mut order = TimeOrder::of(from.iter().map(|(at, _)| at.clone()), is_from_start);
    let mut answered = Instant::now();
    while !shutdown.is_cancelled() && (!(args.until_end || embedded) || !open.is_empty()) {
        order.hold_back(&mut *reader)?;
        reader.poll(1000, Duration::from_millis(200), &mut batch)?;
        if !batch.is_empty() {
            answered = Instant::now();
        } else if answered.elapsed() > PATIENCE && order.has_waiting() {
            order.stop_waiting();
        }
        for polled in batch.drain(..) {
            match polled {
                PollEvent::Record(record) => order.add(record),
                PollEvent::End { at, .. } => {
                    order.end(&at);
                    open.remove(&at);
                }
                _ => {}
            }
        }
        while let Some(record) = order.next_record() {
            let Some(text) = printer.text(&record)? else { continue };
            if !is_read(writeln!(out, "{text}"))? {
                return Ok(());
            }
        }
        if !is_read(out.flush())? {
            return Ok(());
        }
    }
    match args.key.as_deref().filter(|_| !printer.is_key_found && !shutdown.is_cancelled()) {
        Some(key) => explain_absent_key(key, &topics, bus, names, shutdown),
        None => Ok(()),
    }
}

/// Selects records, and makes lines of them.
struct RecordPrinter<'a> {
    args: &'a TailArgs,
    form: TailForm,
    /// Prefix of the topics' names.
    prefix: &'a str,
    /// A record has the key that is asked for.
    is_key_found: bool,
}

impl RecordPrinter<'_> {
    /// Returns the line of a record; `None` if it is not asked for.
    fn text(&mut self, record: &ConsumerRecord) -> anyhow::Result<Option<String>> {
        let Some(topic) = topic_of(record, self.prefix) else { return Ok(None) };
        let key = record.key.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
        if self.args.key.as_deref().is_some_and(|wanted| wanted != key && !is_of_device(topic, record, wanted)) {
            return Ok(None);
        }
        self.is_key_found = true;
        // A heartbeat only moves the time of its partition on.
        let is_heartbeat = record.header(header::TYPE) == Some(EventType::Heartbeat.name());
        let is_readable = self.form == TailForm::Readable && !self.args.json;
        if is_heartbeat && (is_readable || self.args.changes) {
            return Ok(None);
        }
        if self.args.changes && record.value.as_deref().is_some_and(|value| !event_line::is_news(topic, value)) {
            return Ok(None);
        }
        if self.args.json {
            // A dead letter's value may be anything; its description is always JSON.
            let json = match topic {
                Topic::DeadLetters => Some(dead_letter(record).to_string()),
                _ => logged(record, topic).map(|event| serde_json::to_string(&event)).transpose()?,
            };
            return Ok(json.map(|json| redact::escape_line(&json).into_owned()));
        }
        let readable = is_readable.then(|| event_line::readable(topic, record)).flatten();
        Ok(Some(readable.map_or_else(|| line(topic, &key, record), |text| redact::escape_line(&text).into_owned())))
    }
}

/// The part of a sample that names its GPU.
#[derive(Debug, Deserialize)]
struct SampledDevice<'a> {
    #[serde(borrow)]
    device: Cow<'a, str>,
}

/// Returns the GPU that a record is about, if its key may be that of a workload: samples of GPUs with one.
fn device_of(topic: Topic, record: &ConsumerRecord) -> Option<Cow<'_, str>> {
    let value = record.value.as_deref().filter(|_| topic == Topic::GpuTelemetry)?;
    serde_json::from_slice::<SampledDevice<'_>>(value).ok().map(|sample| sample.device)
}

fn is_of_device(topic: Topic, record: &ConsumerRecord, wanted: &str) -> bool {
    device_of(topic, record).is_some_and(|device| device == wanted)
}

/// Topics whose keys are proposed for a key without records: workloads and GPUs.
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
            let device = device_of(topic, &record);
            if of_record == key || device.as_deref() == Some(key) {
                holders.insert(topic.to_string());
            }
            let naming_key = Some(&*of_record).filter(|_| NAMING_TOPICS.contains(&topic));
            for name in naming_key.into_iter().chain(device.as_deref()) {
                if !known.contains(name) {
                    known.insert(name.to_owned());
                }
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

/// Returns a record in one line. Key, headers and value are another program's: nothing in them steers the terminal.
fn line(topic: Topic, key: &str, record: &ConsumerRecord) -> String {
    let value = record.value.as_deref().map_or("(deleted)".into(), String::from_utf8_lossy);
    let text =
        format!("{} {} {}@{} {key} {}{value}", record.stamp, topic, record.at.partition, record.offset, refusal_text(record));
    redact::escape_line(&text).into_owned()
}

/// Returns the reason why a dead letter was refused, from its headers.
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

/// Returns a dead letter with its headers, and the value as text with invalid UTF-8 replaced.
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
    use eadt_schemas::v1::{Actuation, ActuationOutcome, ControllerAction, Decision, Layout};

    use super::*;

    fn record(topic: &str, headers: &[(&str, &str)], value: Option<Vec<u8>>) -> ConsumerRecord {
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| ((*name).into(), Bytes::copy_from_slice(value.as_bytes()))).collect();
        ConsumerRecord {
            at: TopicPartition::new(topic, 1),
            offset: 7,
            stamp: EventTime::from_millis(60_000),
            key: None,
            value: value.map(Bytes::from),
            headers: headers.into(),
        }
    }

    /// Returns the line of a record in a form; `None` if it has none.
    fn printed(form: TailForm, changes: bool, record: &ConsumerRecord) -> Option<String> {
        let args = TailArgs {
            topics: Vec::new(),
            from_start: true,
            until_end: false,
            key: None,
            changes,
            output: Some(form),
            json: false,
        };
        RecordPrinter { args: &args, form, prefix: "eadt.", is_key_found: false }.text(record).unwrap()
    }

    #[test]
    fn a_heartbeat_is_no_line_for_people_and_a_dead_letter_is_one() {
        let kind = [(header::TYPE, EventType::Heartbeat.name())];
        let heartbeat = record("eadt.gpu.telemetry.v1", &kind, Some(b"{}".to_vec()));
        assert_eq!(printed(TailForm::Readable, false, &heartbeat), None);
        assert_eq!(printed(TailForm::Raw, true, &heartbeat), None, "it changes nothing");
        assert!(printed(TailForm::Raw, false, &heartbeat).is_some_and(|line| line.ends_with("{}")), "the raw form has all");
        let headers = [
            (h::REASON, "future_time"),
            (h::DETAIL, "3600 s ahead of the log"),
            (h::ORIGIN_TOPIC, "eadt.gpu.telemetry.v1"),
            (h::ORIGIN_PARTITION, "2"),
            (h::ORIGIN_OFFSET, "40"),
            (h::ORIGIN_KEY, "GPU-1"),
            (h::REFUSED_BY, "processor"),
        ];
        // A refused tombstone has no value.
        for value in [Some(br#"{"time": 1}"#.to_vec()), None] {
            let line = printed(TailForm::Readable, false, &record("eadt.dead-letters.v1", &headers, value)).unwrap();
            let wanted = "1970-01-01T00:01:00Z  GPU-1  refused: future time         3600 s ahead of the log; by processor, at \
                          eadt.gpu.telemetry.v1 partition 2 offset 40";
            assert_eq!(line, wanted);
        }
    }

    #[test]
    fn a_key_selects_the_samples_of_a_gpu_whatever_workload_has_it() {
        let of = |topic: &str, key: &str, value: &str| ConsumerRecord {
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            ..record(topic, &[], Some(value.as_bytes().to_vec()))
        };
        let records = [
            of("eadt.gpu.telemetry.v1", "team/a", r#"{"device": "GPU-1", "workload": "team/a"}"#),
            of("eadt.gpu.telemetry.v1", "GPU-1", r#"{"device": "GPU-1"}"#),
            of("eadt.gpu.telemetry.v1", "team/a", r#"{"device": "GPU-2", "workload": "team/a"}"#),
            of("eadt.gpu.telemetry.v1", "team/a", "no JSON"),
            of("eadt.decisions.v1", "team/a", r#"{"device": "GPU-1"}"#),
        ];
        for (key, expected) in
            [("GPU-1", [true, true, false, false, false]), ("team/a", [true, false, true, true, true]), ("GPU-3", [false; 5])]
        {
            let args = TailArgs {
                topics: Vec::new(),
                from_start: true,
                until_end: false,
                key: Some(key.to_owned()),
                changes: false,
                output: Some(TailForm::Raw),
                json: false,
            };
            let mut printer = RecordPrinter { args: &args, form: TailForm::Raw, prefix: "eadt.", is_key_found: false };
            let shown = records.each_ref().map(|record| printer.text(record).unwrap().is_some());
            assert_eq!((shown, printer.is_key_found), (expected, expected.contains(&true)), "{key}");
        }
    }

    #[test]
    fn what_follows_an_action_is_one_column() {
        let layout = |watts| Layout { replicas: Some(6), power_limit_watts: watts, ..Layout::default() };
        let decision = |action, from, to| {
            let (id, workload, reason) = ("d".to_owned(), "a/b".to_owned(), "a reason".to_owned());
            let decision = Decision { id, workload, reason, action, from: layout(from), to: layout(to), ..Decision::default() };
            record("eadt.decisions.v1", &[], Some(serde_json::to_vec(&decision).unwrap()))
        };
        let rolled_back = Actuation {
            id: "d/1".into(),
            decision_id: "d".into(),
            workload: "a/b".into(),
            outcome: ActuationOutcome::RolledBack,
            layout: layout(None),
            ..Actuation::default()
        };
        let records = [
            decision(ControllerAction::SetPowerLimit, Some(354.0), Some(323.0)),
            decision(ControllerAction::SetPowerLimit, Some(354.0), Some(1023.0)),
            decision(ControllerAction::Revert, Some(323.0), None),
            record("eadt.actuations.v1", &[], Some(serde_json::to_vec(&rolled_back).unwrap())),
        ];
        let column = |record: &ConsumerRecord| {
            let line = printed(TailForm::Readable, false, record).unwrap();
            line.find("6 replicas").unwrap_or_else(|| panic!("{line}"))
        };
        let columns: Vec<usize> = records.iter().map(column).collect();
        assert!(columns.iter().all(|column| *column == columns[0]), "{columns:?}");
    }

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
        for text in
            [line(Topic::DeadLetters, hostile, &record), redact::escape_line(&dead_letter(&record).to_string()).into_owned()]
        {
            let steers = |c: char| c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}');
            assert!(!text.chars().any(steers), "{text:?}");
            assert!(text.contains("\\u001b]0;title") && text.contains("\\u202egpj\\u200b"), "{text}");
        }
    }
}
