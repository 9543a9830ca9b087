//! The documents that are generated from the types: a JSON Schema of every event, and the events page.
//!
//! A field's doc comment is its manual, its name carries the unit; both come out here. `cargo xtask generate`
//! writes what [`schema_files`] and [`events_page`] return; a test fails when the checked-in files differ.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::topics::CleanupPolicy;
use crate::v1::{self, DeadLetterReason, dead_letter_header};
use crate::{EventType, Topic};

/// Returns the short name and version of an event type: `io.eadt.gpu.telemetry.v1` is (`gpu.telemetry`, `v1`).
///
/// File names of schemas and samples are made of them.
pub fn name_and_version(kind: EventType) -> (&'static str, &'static str) {
    let name = kind.name();
    name.strip_prefix("io.eadt.").unwrap_or(name).rsplit_once('.').unwrap_or((name, "v1"))
}

/// Returns the JSON Schema (draft 2020-12) of an event's value; `None` if it has none, see [`EventType::TYPED`].
///
/// Beside the standard keywords each field whose name carries a unit has `x-unit`.
pub fn schema(kind: EventType) -> Option<Value> {
    macro_rules! schema_of {
        ($($event:ident)*) => {
            match kind {
                $(EventType::$event => schemars::schema_for!(v1::$event),)*
                EventType::DeadLetter | EventType::ProcessorState | EventType::SimulatorState | EventType::Heartbeat => return None,
            }
        };
    }
    let schema = for_typed_events!(schema_of);
    let mut schema = schema.to_value();
    let (name, version) = name_and_version(kind);
    schema["$id"] = json!(format!("urn:eadt:{name}:{version}"));
    tidy(&mut schema);
    Some(schema)
}

/// Adds units and the limits of integers; unwraps the texts that doc comments break over lines; a required field has no default.
fn tidy(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    if let Some(Value::String(text)) = object.get_mut("description") {
        let paragraphs: Vec<String> = text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        *text = paragraphs.join("\n\n");
    }
    let integers = [("uint32", u64::from(u32::MAX)), ("uint64", u64::MAX)];
    if let Some((_, most)) = integers.into_iter().find(|(format, _)| object.get("format").is_some_and(|f| f == format)) {
        object.entry("maximum").or_insert_with(|| json!(most));
    }
    let required: BTreeSet<String> = object
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(Into::into)
        .collect();
    if let Some(fields) = object.get_mut("properties").and_then(Value::as_object_mut) {
        for (name, field) in fields {
            if let (Some(unit), Some(field)) = (unit(name), field.as_object_mut()) {
                field.insert("x-unit".to_owned(), json!(unit));
            }
            if let Some(field) = field.as_object_mut().filter(|_| required.contains(name)) {
                field.remove("default");
            }
            tidy(field);
        }
    }
    for key in ["anyOf", "oneOf"] {
        object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().for_each(tidy);
    }
    if let Some(items) = object.get_mut("items") {
        tidy(items);
    }
    object.get_mut("$defs").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut).for_each(tidy);
}

/// Returns the unit of a field, by the last words of its name; `None` for counts, names and times.
pub fn unit(field: &str) -> Option<&'static str> {
    const UNITS: [(&str, &str); 18] = [
        ("_bytes_per_second", "B/s"),
        ("_per_second", "1/s"),
        ("joules_per_sample", "J"),
        ("joules_per_sample_running", "J"),
        ("_per_joule", "1/J"),
        ("carbon_grams_per_kwh", "g/kWh"),
        ("price_per_kwh", "currency/kWh"),
        ("_watts", "W"),
        ("_joules", "J"),
        ("_seconds", "s"),
        ("_ratio", "1"),
        ("_percentage", "%"),
        ("_mhz", "MHz"),
        ("_celsius", "°C"),
        ("_bytes", "B"),
        ("_grams", "g"),
        ("_kwh", "kWh"),
        ("cost", "currency"),
    ];
    let field = ["_total", "_min", "_max"].iter().find_map(|end| field.strip_suffix(end)).unwrap_or(field);
    UNITS.into_iter().find(|(end, _)| field.ends_with(end)).map(|(_, unit)| unit)
}

/// Returns the schema files: path below the schemas folder (`json/v1/gpu.telemetry.schema.json`) and content.
pub fn schema_files() -> Vec<(String, String)> {
    EventType::TYPED
        .into_iter()
        .filter_map(|kind| {
            let (name, version) = name_and_version(kind);
            let text = serde_json::to_string_pretty(&schema(kind)?).expect("a schema is plain JSON");
            Some((format!("json/{version}/{name}.schema.json"), text + "\n"))
        })
        .collect()
}

/// Returns the page `docs/reference/events.md`.
pub fn events_page() -> String {
    let mut page = String::from(HEAD);
    page.push_str("| topic | key | kept | largest record | from | events |\n|---|---|---|---|---|---|\n");
    for topic in Topic::ALL {
        let retention = match topic.cleanup() {
            CleanupPolicy::Delete { retention_days } => format!("{retention_days} days"),
            CleanupPolicy::Compact => "the last of every key".to_owned(),
        };
        let kind = topic.event_type();
        let event =
            schema(kind).map_or_else(|| format!("`{}`", kind.name()), |_| format!("[`{0}`](#{1})", kind.name(), anchor(kind)));
        let largest = f64::from(topic.max_message_bytes()) / f64::from(1 << 20);
        let (key, from) = (topic.key(), topic.writers());
        writeln!(page, "| `{topic}` | {key} | {retention} | {largest:.0} MiB | {from} | {event} |").expect("writing to a String");
    }
    page.push_str(AFTER_TOPICS);
    for (name, meaning) in HEADERS {
        writeln!(page, "| `{name}` | {meaning} |").expect("writing to a String");
    }
    page.push_str("\nReasons:\n\n| reason | meaning |\n|---|---|\n");
    let reasons = schemars::schema_for!(DeadLetterReason).to_value();
    for (value, meaning) in values_of(&reasons) {
        writeln!(page, "| {value} | {} |", cell(&meaning)).expect("writing to a String");
    }
    let mut shared = Map::new();
    for kind in EventType::TYPED {
        let schema = schema(kind).expect("listed as having one");
        write!(page, "\n## {}\n\n", kind.name()).expect("writing to a String");
        let (name, version) = name_and_version(kind);
        let topic = kind.topic().expect("an event with a schema has a topic");
        writeln!(page, "{}\n", schema["description"].as_str().unwrap_or_default()).expect("writing to a String");
        writeln!(page, "Topic `{topic}`, schema `schemas/json/{version}/{name}.schema.json`.\n").expect("writing to a String");
        fields_table(&mut page, &schema);
        if let Some(definitions) = schema["$defs"].as_object() {
            shared.extend(definitions.clone());
        }
    }
    page.push_str("\n## Shared types\n");
    for (name, schema) in &mut shared {
        tidy(schema);
        let text = schema["description"].as_str().unwrap_or_default();
        write!(page, "\n### {name}\n\n{text}\n\n").expect("writing to a String");
        if schema.get("properties").is_some() {
            fields_table(&mut page, schema);
        } else {
            page.push_str("| value | meaning |\n|---|---|\n");
            for (value, meaning) in values_of(schema) {
                writeln!(page, "| {value} | {} |", cell(&meaning)).expect("writing to a String");
            }
        }
    }
    page
}

const HEAD: &str = "\
# Events

<!-- Generated by `cargo xtask generate` from the types in schemas/; a test fails if it is out of date. -->

For engineers who read events, or write their own.

Every event is a CloudEvents 1.0 event in Kafka binary mode: attributes are headers (`ce_specversion`, `ce_type`, `ce_source`,
`ce_id`, `ce_time`, `ce_subject`, `content-type: application/json`), the value is one JSON object. Units are in field names,
times are RFC 3339 in UTC with microseconds. Absent means unknown or not supported, never zero. Unknown fields are ignored; a known
field with an impossible value sends the event to the dead letters. A record without `ce_type` counts as the topic's own event type.
A record without `ce_type` whose value has a `specversion` is an event in structured mode (`application/cloudevents+json`): its `type` and
`data`, or `data_base64`, count. The header `eadt_sent_again` marks a record that its producer sent again because the log had not acknowledged
it: an event with it that is not newer than the last one of its source counts as a duplicate, not as stale.

Within a version nothing is removed, narrowed or given another unit; readers are upgraded before writers. A test compares the
schemas with those of the released version and refuses anything else.

## Topics

Names are prefixed (default `eadt.`). All topics have `message.timestamp.type=LogAppendTime`, the same number of partitions and the
JVM clients' partitioner (`murmur2_random`). `eadt topics apply` creates them.

";

const AFTER_TOPICS: &str = "
Quiet input partitions get a heartbeat (`io.eadt.heartbeat.v1`, value `{}`) every 10 seconds, so that log time goes on.
`processor-state.v1` and `simulator-state.v1` hold what their owners need to go on after a restart; their form is private and may
change with any release.

## Dead letters

The value is the refused record's value, byte for byte. Of a record that is too large for this topic, as one may be that its sender
compressed, the value, the key and the detail are cut off after 64 KiB each; the length of a value or key that was is a header. Beside the CloudEvents headers:

| header | meaning |
|---|---|
";

const HEADERS: [(&str, &str); 13] = [
    (dead_letter_header::REASON, "one of the reasons below"),
    (dead_letter_header::DETAIL, "the reason in words"),
    (dead_letter_header::FIELD, "the offending field, where one is to blame"),
    (dead_letter_header::ORIGIN_TOPIC, "topic of the refused record, prefix included"),
    (dead_letter_header::ORIGIN_PARTITION, "its partition"),
    (dead_letter_header::ORIGIN_OFFSET, "its offset"),
    (dead_letter_header::ORIGIN_TIMESTAMP, "its log-append time, RFC 3339"),
    (dead_letter_header::ORIGIN_KEY, "its key, where it had one"),
    (dead_letter_header::ORIGIN_KEY_BYTES, "length of the whole key, where it was cut off"),
    (dead_letter_header::ORIGIN_KEY_SHA256, "SHA-256 of the whole key in hexadecimal digits, where it was cut off"),
    (dead_letter_header::ORIGIN_VALUE_BYTES, "length of the whole value, where it was cut off"),
    (dead_letter_header::ORIGIN_VALUE_SHA256, "SHA-256 of the whole value in hexadecimal digits, where it was cut off"),
    (
        dead_letter_header::REFUSED_BY,
        "the service that refused it, with the stage where it is a second one (`processor/cluster`)",
    ),
];

fn anchor(kind: EventType) -> String {
    kind.name().replace('.', "")
}

fn fields_table(page: &mut String, schema: &Value) {
    let required: BTreeSet<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    page.push_str("| field | type | unit | meaning |\n|---|---|---|---|\n");
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let need = if required.contains(name.as_str()) { " **required**" } else { "" };
        let unit = field["x-unit"].as_str().unwrap_or_default();
        let text = field["description"].as_str().unwrap_or_default();
        let (kind, range) = (kind_of(field), range_of(field));
        writeln!(page, "| `{name}`{need} | {kind} | {unit} | {}{range} |", cell(text)).expect("writing to a String");
    }
}

fn kind_of(field: &Value) -> String {
    if let Some(name) = field["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(some) = field["anyOf"].as_array().and_then(|branches| branches.iter().find(|b| b["type"] != "null")) {
        return kind_of(some);
    }
    if field["format"] == "date-time" {
        return "time".to_owned();
    }
    match &field["type"] {
        _ if field["items"].is_object() => format!("list of {}", kind_of(&field["items"])),
        Value::String(one) if one == "object" => format!("object of {}", kind_of(&field["additionalProperties"])),
        Value::String(one) => one.clone(),
        Value::Array(several) => {
            several.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect::<Vec<_>>().join(" or ")
        }
        _ => "any JSON".to_owned(),
    }
}

fn range_of(field: &Value) -> String {
    // Counters and free numbers have technical limits only; those would be noise here.
    let limit = |key: &str| field[key].as_f64().filter(|limit| limit.abs() < 1e9);
    match (limit("minimum"), limit("maximum")) {
        (Some(low), Some(high)) => format!(" Range: {low} to {high}."),
        (Some(low), None) if field["type"] != "integer" && low != 0.0 => format!(" At least {low}."),
        _ => String::new(),
    }
}

fn values_of(schema: &Value) -> Vec<(String, String)> {
    let described = schema["oneOf"].as_array().into_iter().flatten().flat_map(|branch| {
        let text = branch["description"].as_str().unwrap_or_default();
        let values = branch["enum"].as_array().into_iter().flatten().chain(branch.get("const"));
        values.map(move |value| (format!("`{}`", value.as_str().unwrap_or_default()), text.to_owned()))
    });
    let plain = schema["enum"].as_array().into_iter().flatten();
    let plain = plain.map(|value| (format!("`{}`", value.as_str().unwrap_or_default()), String::new()));
    described.chain(plain).collect()
}

/// Returns a text as one cell of a Markdown table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
