//! Columns of a topic, derived from its event type, so that no field can be forgotten.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use eadt_schemas::fast::JsonCursor;
use eadt_schemas::{EventType, Topic, v1};
use schemars::JsonSchema;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor, value::StrDeserializer};
use serde::{Serialize, forward_to_deserialize_any};
use serde_json::Value;

/// Type of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Text,
    /// Microseconds since the epoch, UTC.
    Time,
    Int,
    Float,
    Bool,
    /// A map, an array or anything else without columns of its own: its JSON text.
    Json,
    Bytes,
}

impl ColumnType {
    pub(crate) fn data_type(self) -> DataType {
        match self {
            Self::Text | Self::Json => DataType::Utf8,
            Self::Time => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Int => DataType::Int64,
            Self::Float => DataType::Float64,
            Self::Bool => DataType::Boolean,
            Self::Bytes => DataType::Binary,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct TopicColumn {
    pub name: String,
    pub kind: ColumnType,
    /// An explicit `null` means the same as absence.
    pub nullable: bool,
    /// A flag that producers leave out while it is false; the column contains false then.
    pub false_when_absent: bool,
    pub description: String,
}

/// A field of an event.
#[derive(Debug)]
pub(crate) struct EventField {
    pub name: String,
    pub node: FieldNode,
    /// The name as it is written before a value: quoted, with the colon.
    label: Box<[u8]>,
}

impl EventField {
    fn new(name: &str, node: FieldNode) -> Self {
        Self { name: name.to_owned(), node, label: format!("\"{name}\":").into_bytes().into() }
    }
}

#[derive(Debug)]
pub(crate) enum FieldNode {
    /// Index into the plan's columns.
    Column(usize),
    /// A nested object, flattened: `layout.replicas` becomes `layout_replicas`.
    Group { members: EventFields, optional: bool },
}

/// Fields in the order in which this program writes them.
#[derive(Debug, Default)]
pub(crate) struct EventFields {
    pub list: Vec<EventField>,
    index: HashMap<String, usize>,
}

impl EventFields {
    fn push(&mut self, member: EventField) {
        self.index.insert(member.name.clone(), self.list.len());
        self.list.push(member);
    }

    /// Takes a name and its colon if they come next; the position of the field. `hint`: where it is expected to be, or before.
    pub(crate) fn take(&self, cursor: &mut JsonCursor<'_>, hint: usize) -> Option<usize> {
        let ahead = self.list.get(hint..)?.iter().position(|member| cursor.take(&member.label));
        ahead.map(|ahead| hint + ahead)
    }

    /// Returns the position of a field. `hint`: where it is expected to be, or shortly before.
    pub(crate) fn find(&self, name: &str, hint: usize) -> Option<usize> {
        for (at, member) in self.list.iter().enumerate().skip(hint).take(12) {
            if member.name == name {
                return Some(at);
            }
        }
        self.index.get(name).copied()
    }
}

/// The columns of one topic.
#[derive(Debug)]
pub(crate) struct TopicColumns {
    /// The fields of the topic's event; empty for topics whose values stay bytes.
    pub members: EventFields,
    /// Event columns first, then the ones of [`COMMON`].
    pub columns: Vec<TopicColumn>,
    /// Number of event columns.
    pub event_columns: usize,
    /// Event columns that contain false if the event lacks the flag.
    pub flags: Vec<usize>,
    /// Dead letters only: header name and column of each header that has one.
    pub headers: Vec<(&'static str, usize)>,
    pub schema: SchemaRef,
}

impl TopicColumns {
    pub(crate) fn common(&self, column: CommonColumn) -> usize {
        self.event_columns + column as usize
    }
}

/// Columns that every topic has, in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CommonColumn {
    ExtraJson,
    Value,
    CeType,
    CeSource,
    CeId,
    CeTime,
    CeSubject,
    Topic,
    Partition,
    Offset,
    Key,
    KeyBytes,
    Stamp,
    Tombstone,
    HeadersJson,
}

const COMMON: [(&str, ColumnType, &str); 15] = [
    ("extra_json", ColumnType::Json, "fields that this version has no column for, as a JSON object"),
    ("value", ColumnType::Bytes, "the record's value, byte for byte, where it is not an object that the columns can hold"),
    ("ce_type", ColumnType::Text, "CloudEvents type"),
    ("ce_source", ColumnType::Text, "CloudEvents source"),
    ("ce_id", ColumnType::Text, "CloudEvents id"),
    ("ce_time", ColumnType::Time, "CloudEvents time: event time"),
    ("ce_subject", ColumnType::Text, "CloudEvents subject"),
    ("kafka_topic", ColumnType::Text, "topic without its prefix"),
    ("kafka_partition", ColumnType::Int, "partition"),
    ("kafka_offset", ColumnType::Int, "offset in the partition"),
    ("kafka_key", ColumnType::Text, "the record's key"),
    ("kafka_key_bytes", ColumnType::Bytes, "the record's key where it is not UTF-8"),
    ("kafka_timestamp", ColumnType::Time, "when the log appended the record"),
    ("kafka_tombstone", ColumnType::Bool, "the record deletes its key and has no value"),
    ("headers_json", ColumnType::Json, "other headers as [name, value] pairs; null: a CloudEvents header that the record lacks"),
];

const DEAD_LETTER: [(&str, &str, ColumnType, &str); 9] = {
    use eadt_schemas::v1::dead_letter_header as h;
    [
        (h::REASON, "reason", ColumnType::Text, "why it was refused"),
        (h::DETAIL, "detail", ColumnType::Text, "the reason in words"),
        (h::FIELD, "field", ColumnType::Text, "the offending field"),
        (h::ORIGIN_TOPIC, "origin_topic", ColumnType::Text, "topic of the refused record"),
        (h::ORIGIN_PARTITION, "origin_partition", ColumnType::Int, "partition of the refused record"),
        (h::ORIGIN_OFFSET, "origin_offset", ColumnType::Int, "offset of the refused record"),
        (h::ORIGIN_TIMESTAMP, "origin_timestamp", ColumnType::Time, "append time of the refused record"),
        (h::ORIGIN_KEY, "origin_key", ColumnType::Text, "key of the refused record"),
        (h::REFUSED_BY, "refused_by", ColumnType::Text, "the service that refused it"),
    ]
};

/// Returns the plan of a topic.
pub(crate) fn plan(topic: Topic) -> &'static TopicColumns {
    static PLANS: LazyLock<HashMap<Topic, TopicColumns>> =
        LazyLock::new(|| Topic::ALL.into_iter().map(|topic| (topic, build(topic))).collect());
    &PLANS[&topic]
}

fn build(topic: Topic) -> TopicColumns {
    let mut columns = Vec::new();
    let mut headers = Vec::new();
    macro_rules! fields_of_event {
        ($($event:ident)*) => {
            match topic.event_type() {
                $(EventType::$event => fields_of::<v1::$event>(&mut columns),)*
                EventType::DeadLetter => {
                    for (header, name, kind, description) in DEAD_LETTER {
                        headers.push((header, columns.len()));
                        columns.push(plain(name, kind, description));
                    }
                    EventFields::default()
                }
                EventType::ProcessorState | EventType::SimulatorState | EventType::Heartbeat => EventFields::default(),
            }
        };
    }
    let members = eadt_schemas::for_typed_events!(fields_of_event);
    let event_columns = columns.len();
    let flags = (0..event_columns).filter(|index| columns[*index].false_when_absent).collect();
    columns.extend(COMMON.map(|(name, kind, description)| plain(name, kind, description)));
    let fields: Vec<Field> = columns
        .iter()
        .map(|column| {
            // One entry only: a map of several would be written in a random order.
            let metadata = HashMap::from([("description".to_owned(), column.description.clone())]);
            Field::new(&column.name, column.kind.data_type(), true).with_metadata(metadata)
        })
        .collect();
    TopicColumns { members, columns, event_columns, flags, headers, schema: Schema::new(fields).into() }
}

fn plain(name: &str, kind: ColumnType, description: &str) -> TopicColumn {
    TopicColumn { name: name.to_owned(), kind, nullable: true, false_when_absent: false, description: description.to_owned() }
}

/// Returns the fields of an event type: names, types and nullability from its JSON Schema, order from serde.
fn fields_of<T: JsonSchema + DeserializeOwned + Serialize + Default>(columns: &mut Vec<TopicColumn>) -> EventFields {
    let schema = schemars::schema_for!(T).to_value();
    let written = serde_json::to_value(T::default()).expect("an event is JSON");
    let order = |path: &[&str]| field_order::<T>(path);
    members(&schema, &schema, &[], &written, &order, columns)
}

fn members(
    root: &Value,
    schema: &Value,
    path: &[&str],
    written: &Value,
    order: &dyn Fn(&[&str]) -> &'static [&'static str],
    columns: &mut Vec<TopicColumn>,
) -> EventFields {
    let properties = schema["properties"].as_object().expect("an event is an object");
    let fields = order(path);
    assert_eq!(fields.len(), properties.len(), "serde and schemars see the same fields of {path:?}");
    let mut members = EventFields::default();
    for name in fields {
        let property = &properties[*name];
        let (inner, mut nullable) = without_null(root, property);
        let mut here = path.to_vec();
        here.push(name);
        let node = if inner["properties"].is_object() {
            FieldNode::Group { members: self::members(root, inner, &here, &written[*name], order, columns), optional: nullable }
        } else {
            let kind = kind(inner);
            // The text of any JSON value, `null` included, is kept as it is.
            nullable &= kind != ColumnType::Json;
            let false_when_absent = kind == ColumnType::Bool && !nullable && written.get(*name).is_none();
            let description = description(property).or_else(|| description(inner)).unwrap_or_default();
            columns.push(TopicColumn { name: here.join("_"), kind, nullable, false_when_absent, description });
            FieldNode::Column(columns.len() - 1)
        };
        members.push(EventField::new(name, node));
    }
    members
}

fn description(schema: &Value) -> Option<String> {
    schema["description"].as_str().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the schema behind references, and whether `null` is allowed beside it.
fn without_null<'a>(root: &'a Value, schema: &'a Value) -> (&'a Value, bool) {
    let is_null = |schema: &Value| schema["type"] == "null";
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        return without_null(root, &root["$defs"][name]);
    }
    if let Some(any) = schema["anyOf"].as_array().filter(|any| any.iter().any(is_null)) {
        let inner = any.iter().find(|schema| !is_null(schema)).expect("an alternative to null");
        return (without_null(root, inner).0, true);
    }
    (schema, schema["type"].as_array().is_some_and(|types| types.iter().any(|name| name == "null")))
}

fn kind(schema: &Value) -> ColumnType {
    let named = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        other => other.as_str(),
    };
    match named {
        Some("string") if schema["format"] == "date-time" => ColumnType::Time,
        Some("string") => ColumnType::Text,
        Some("integer") => ColumnType::Int,
        Some("number") => ColumnType::Float,
        Some("boolean") => ColumnType::Bool,
        None if schema["oneOf"].as_array().is_some_and(|all| all.iter().all(|one| one["type"] == "string")) => ColumnType::Text,
        _ => ColumnType::Json,
    }
}

/// Returns the fields of the struct at `path` inside `T`, in the order of their declaration, as its `Deserialize` names them.
fn field_order<T: DeserializeOwned>(path: &[&str]) -> &'static [&'static str] {
    match T::deserialize(FieldOrderProbe { path }) {
        Err(ProbeOutcome::Fields(fields)) => fields,
        Err(ProbeOutcome::Other(detail)) => panic!("no struct at {path:?}: {detail}"),
        Ok(_) => panic!("no struct at {path:?}"),
    }
}

/// Walks down `path` and stops at the struct there.
struct FieldOrderProbe<'p> {
    path: &'p [&'p str],
}

/// Outcome of the walk; an error, because that ends a deserialisation.
#[derive(Debug)]
enum ProbeOutcome {
    Fields(&'static [&'static str]),
    Other(String),
}

impl fmt::Display for ProbeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for ProbeOutcome {}

impl de::Error for ProbeOutcome {
    fn custom<M: fmt::Display>(message: M) -> Self {
        Self::Other(message.to_string())
    }
}

impl<'de> Deserializer<'de> for FieldOrderProbe<'_> {
    type Error = ProbeOutcome;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ProbeOutcome> {
        Err(ProbeOutcome::Other("a plain value".to_owned()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeOutcome> {
        visitor.visit_some(self)
    }

    /// Visits a type behind a reader that takes only objects.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeOutcome> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeOutcome> {
        match self.path.split_first() {
            None => Err(ProbeOutcome::Fields(fields)),
            Some((first, rest)) => visitor.visit_map(SingleFieldMap { field: Some(first), rest }),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct enum identifier ignored_any
    }
}

struct SingleFieldMap<'p> {
    field: Option<&'p str>,
    rest: &'p [&'p str],
}

impl<'de> de::MapAccess<'de> for SingleFieldMap<'_> {
    type Error = ProbeOutcome;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ProbeOutcome> {
        self.field.take().map(|field| seed.deserialize(StrDeserializer::new(field))).transpose()
    }

    fn next_value_seed<V: de::DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, ProbeOutcome> {
        seed.deserialize(FieldOrderProbe { path: self.rest })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_topic_has_columns_with_distinct_names_that_no_folder_uses() {
        for topic in Topic::ALL {
            let plan = plan(topic);
            let names: BTreeSet<&str> = plan.columns.iter().map(|column| column.name.as_str()).collect();
            assert_eq!(names.len(), plan.columns.len(), "{topic}");
            assert!(!names.contains("topic") && !names.contains("date"), "{topic}");
        }
    }

    /// A field that a writer emits has a column, and the kinds are those that analysts expect.
    #[test]
    fn columns_follow_the_types() {
        let telemetry = plan(Topic::GpuTelemetry);
        let kind = |plan: &TopicColumns, name: &str| plan.columns.iter().find(|c| c.name == name).map(|c| c.kind);
        assert_eq!(kind(telemetry, "time"), Some(ColumnType::Time));
        assert_eq!(kind(telemetry, "power_watts"), Some(ColumnType::Float));
        assert_eq!(kind(telemetry, "memory_used_bytes"), Some(ColumnType::Int));
        assert_eq!(kind(telemetry, "meter"), Some(ColumnType::Text));
        assert_eq!(kind(telemetry, "last"), Some(ColumnType::Bool));
        let decision = plan(Topic::Decisions);
        assert_eq!(kind(decision, "from_replicas"), Some(ColumnType::Int));
        assert_eq!(kind(decision, "evidence"), Some(ColumnType::Json));
        assert_eq!(kind(decision, "hold_until"), Some(ColumnType::Time));
        assert_eq!(kind(plan(Topic::EfficiencyWindows), "layout_power_limit_watts"), Some(ColumnType::Float));
        assert_eq!(kind(plan(Topic::Models), "parameters"), Some(ColumnType::Json));
        assert_eq!(kind(plan(Topic::DeadLetters), "origin_offset"), Some(ColumnType::Int));
        for topic in Topic::ALL {
            for column in &plan(topic).columns {
                assert!(!column.description.is_empty(), "{topic}: {} has no description", column.name);
            }
        }
    }
}
