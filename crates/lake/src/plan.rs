//! Which columns a topic has, derived from its event type, so that no field can be forgotten.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use eadt_schemas::fast::Cursor;
use eadt_schemas::v1::{
    Actuation, Decision, DeviceHolders, DeviceIntent, DeviceState, Directive, EfficiencyWindow, GpuTelemetry, Model,
    TrainingProgress, Workload,
};
use eadt_schemas::{EventType, Topic};
use schemars::JsonSchema;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor, value::StrDeserializer};
use serde::{Serialize, forward_to_deserialize_any};
use serde_json::Value;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
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

impl Kind {
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
pub(crate) struct Column {
    pub name: String,
    pub kind: Kind,
    /// An explicit `null` means the same as absence.
    pub nullable: bool,
    /// A flag that producers leave out while it is false; the column says false then.
    pub false_when_absent: bool,
    pub description: String,
}

/// A field of an event.
#[derive(Debug)]
pub(crate) struct Member {
    pub name: String,
    pub node: Node,
    /// The name as it stands before a value: quoted, with the colon.
    label: Box<[u8]>,
}

impl Member {
    fn new(name: &str, node: Node) -> Self {
        Self { name: name.to_owned(), node, label: format!("\"{name}\":").into_bytes().into() }
    }
}

#[derive(Debug)]
pub(crate) enum Node {
    /// Index into the plan's columns.
    Column(usize),
    /// A nested object, flattened: `layout.replicas` becomes `layout_replicas`.
    Group { members: Members, optional: bool },
}

/// Fields in the order in which this program writes them.
#[derive(Debug, Default)]
pub(crate) struct Members {
    pub list: Vec<Member>,
    index: HashMap<String, usize>,
}

impl Members {
    fn push(&mut self, member: Member) {
        self.index.insert(member.name.clone(), self.list.len());
        self.list.push(member);
    }

    /// Takes a name and its colon where they come next; the position of the field. `hint`: where it is expected to be, or before.
    pub(crate) fn take(&self, cursor: &mut Cursor<'_>, hint: usize) -> Option<usize> {
        let ahead = self.list.get(hint..)?.iter().position(|member| cursor.take(&member.label));
        ahead.map(|ahead| hint + ahead)
    }

    /// The position of a field. `hint`: where it is expected to be, or shortly before.
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
pub(crate) struct Plan {
    /// The fields of the topic's event; empty for topics whose values stay bytes.
    pub members: Members,
    /// Event columns first, then the ones of [`COMMON`].
    pub columns: Vec<Column>,
    /// Number of event columns.
    pub event_columns: usize,
    /// Dead letters only: header name and column of each header that has one.
    pub headers: Vec<(&'static str, usize)>,
    pub schema: SchemaRef,
}

impl Plan {
    pub(crate) fn common(&self, column: Common) -> usize {
        self.event_columns + column as usize
    }
}

/// Columns that every topic has, in this order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Common {
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

const COMMON: [(&str, Kind, &str); 15] = [
    ("extra_json", Kind::Json, "fields that this version has no column for, as a JSON object"),
    ("value", Kind::Bytes, "the record's value, byte for byte, where it is not an object that the columns can hold"),
    ("ce_type", Kind::Text, "CloudEvents type"),
    ("ce_source", Kind::Text, "CloudEvents source"),
    ("ce_id", Kind::Text, "CloudEvents id"),
    ("ce_time", Kind::Time, "CloudEvents time: event time"),
    ("ce_subject", Kind::Text, "CloudEvents subject"),
    ("kafka_topic", Kind::Text, "topic without its prefix"),
    ("kafka_partition", Kind::Int, "partition"),
    ("kafka_offset", Kind::Int, "offset in the partition"),
    ("kafka_key", Kind::Text, "the record's key"),
    ("kafka_key_bytes", Kind::Bytes, "the record's key where it is not UTF-8"),
    ("kafka_timestamp", Kind::Time, "when the log appended the record"),
    ("kafka_tombstone", Kind::Bool, "the record deletes its key and has no value"),
    ("headers_json", Kind::Json, "other headers as [name, value] pairs; null: a CloudEvents header that the record lacks"),
];

const DEAD_LETTER: [(&str, &str, Kind, &str); 9] = {
    use eadt_schemas::v1::dead_letter_header as h;
    [
        (h::REASON, "reason", Kind::Text, "why it was refused"),
        (h::DETAIL, "detail", Kind::Text, "the reason in words"),
        (h::FIELD, "field", Kind::Text, "the offending field"),
        (h::ORIGIN_TOPIC, "origin_topic", Kind::Text, "topic of the refused record"),
        (h::ORIGIN_PARTITION, "origin_partition", Kind::Int, "partition of the refused record"),
        (h::ORIGIN_OFFSET, "origin_offset", Kind::Int, "offset of the refused record"),
        (h::ORIGIN_TIMESTAMP, "origin_timestamp", Kind::Time, "append time of the refused record"),
        (h::ORIGIN_KEY, "origin_key", Kind::Text, "key of the refused record"),
        (h::REFUSED_BY, "refused_by", Kind::Text, "the service that refused it"),
    ]
};

/// The plan of a topic.
pub(crate) fn plan(topic: Topic) -> &'static Plan {
    static PLANS: LazyLock<HashMap<Topic, Plan>> =
        LazyLock::new(|| Topic::ALL.into_iter().map(|topic| (topic, build(topic))).collect());
    &PLANS[&topic]
}

fn build(topic: Topic) -> Plan {
    let mut columns = Vec::new();
    let mut headers = Vec::new();
    let members = match topic.event_type() {
        EventType::GpuTelemetry => fields_of::<GpuTelemetry>(&mut columns),
        EventType::TrainingProgress => fields_of::<TrainingProgress>(&mut columns),
        EventType::Workload => fields_of::<Workload>(&mut columns),
        EventType::EfficiencyWindow => fields_of::<EfficiencyWindow>(&mut columns),
        EventType::Decision => fields_of::<Decision>(&mut columns),
        EventType::Actuation => fields_of::<Actuation>(&mut columns),
        EventType::Directive => fields_of::<Directive>(&mut columns),
        EventType::DeviceIntent => fields_of::<DeviceIntent>(&mut columns),
        EventType::DeviceState => fields_of::<DeviceState>(&mut columns),
        EventType::DeviceHolders => fields_of::<DeviceHolders>(&mut columns),
        EventType::Model => fields_of::<Model>(&mut columns),
        EventType::DeadLetter => {
            for (header, name, kind, description) in DEAD_LETTER {
                headers.push((header, columns.len()));
                columns.push(plain(name, kind, description));
            }
            Members::default()
        }
        EventType::ProcessorState | EventType::SimulatorState | EventType::Heartbeat => Members::default(),
    };
    let event_columns = columns.len();
    columns.extend(COMMON.map(|(name, kind, description)| plain(name, kind, description)));
    let fields: Vec<Field> = columns
        .iter()
        .map(|column| {
            // One entry only: a map of several would be written in a random order.
            let metadata = HashMap::from([("description".to_owned(), column.description.clone())]);
            Field::new(&column.name, column.kind.data_type(), true).with_metadata(metadata)
        })
        .collect();
    Plan { members, columns, event_columns, headers, schema: Schema::new(fields).into() }
}

fn plain(name: &str, kind: Kind, description: &str) -> Column {
    Column { name: name.to_owned(), kind, nullable: true, false_when_absent: false, description: description.to_owned() }
}

/// The fields of an event type: names, types and nullability from its JSON Schema, order from serde.
fn fields_of<T: JsonSchema + DeserializeOwned + Serialize + Default>(columns: &mut Vec<Column>) -> Members {
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
    columns: &mut Vec<Column>,
) -> Members {
    let properties = schema["properties"].as_object().expect("an event is an object");
    let fields = order(path);
    assert_eq!(fields.len(), properties.len(), "serde and schemars see the same fields of {path:?}");
    let mut members = Members::default();
    for name in fields {
        let property = &properties[*name];
        let (inner, mut nullable) = without_null(root, property);
        let mut here = path.to_vec();
        here.push(name);
        let node = if inner["properties"].is_object() {
            Node::Group { members: self::members(root, inner, &here, &written[*name], order, columns), optional: nullable }
        } else {
            let kind = kind(inner);
            // The text of any JSON value, `null` included, is kept as it is.
            nullable &= kind != Kind::Json;
            let false_when_absent = kind == Kind::Bool && !nullable && written.get(*name).is_none();
            let description = description(property).or_else(|| description(inner)).unwrap_or_default();
            columns.push(Column { name: here.join("_"), kind, nullable, false_when_absent, description });
            Node::Column(columns.len() - 1)
        };
        members.push(Member::new(name, node));
    }
    members
}

fn description(schema: &Value) -> Option<String> {
    schema["description"].as_str().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The schema behind references, and whether `null` is allowed beside it.
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

fn kind(schema: &Value) -> Kind {
    let named = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        other => other.as_str(),
    };
    match named {
        Some("string") if schema["format"] == "date-time" => Kind::Time,
        Some("string") => Kind::Text,
        Some("integer") => Kind::Int,
        Some("number") => Kind::Float,
        Some("boolean") => Kind::Bool,
        None if schema["oneOf"].as_array().is_some_and(|all| all.iter().all(|one| one["type"] == "string")) => Kind::Text,
        _ => Kind::Json,
    }
}

/// The fields of the struct at `path` inside `T`, in the order of their declaration, as its `Deserialize` names them.
fn field_order<T: DeserializeOwned>(path: &[&str]) -> &'static [&'static str] {
    match T::deserialize(Probe { path }) {
        Err(Probed::Fields(fields)) => fields,
        Err(Probed::Other(detail)) => panic!("no struct at {path:?}: {detail}"),
        Ok(_) => panic!("no struct at {path:?}"),
    }
}

/// Walks down `path` and stops at the struct there.
struct Probe<'p> {
    path: &'p [&'p str],
}

/// What the walk found; an error, because that ends a deserialisation.
#[derive(Debug)]
enum Probed {
    Fields(&'static [&'static str]),
    Other(String),
}

impl fmt::Display for Probed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Probed {}

impl de::Error for Probed {
    fn custom<M: fmt::Display>(message: M) -> Self {
        Self::Other(message.to_string())
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Probed;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Probed> {
        Err(Probed::Other("a plain value".to_owned()))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Probed> {
        visitor.visit_some(self)
    }

    /// A type behind a reader that takes nothing but objects.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Probed> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Probed> {
        match self.path.split_first() {
            None => Err(Probed::Fields(fields)),
            Some((first, rest)) => visitor.visit_map(One { field: Some(first), rest }),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct enum identifier ignored_any
    }
}

struct One<'p> {
    field: Option<&'p str>,
    rest: &'p [&'p str],
}

impl<'de> de::MapAccess<'de> for One<'_> {
    type Error = Probed;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Probed> {
        self.field.take().map(|field| seed.deserialize(StrDeserializer::new(field))).transpose()
    }

    fn next_value_seed<V: de::DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Probed> {
        seed.deserialize(Probe { path: self.rest })
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
        let kind = |plan: &Plan, name: &str| plan.columns.iter().find(|c| c.name == name).map(|c| c.kind);
        assert_eq!(kind(telemetry, "time"), Some(Kind::Time));
        assert_eq!(kind(telemetry, "power_watts"), Some(Kind::Float));
        assert_eq!(kind(telemetry, "memory_used_bytes"), Some(Kind::Int));
        assert_eq!(kind(telemetry, "meter"), Some(Kind::Text));
        assert_eq!(kind(telemetry, "last"), Some(Kind::Bool));
        let decision = plan(Topic::Decisions);
        assert_eq!(kind(decision, "from_replicas"), Some(Kind::Int));
        assert_eq!(kind(decision, "evidence"), Some(Kind::Json));
        assert_eq!(kind(decision, "hold_until"), Some(Kind::Time));
        assert_eq!(kind(plan(Topic::EfficiencyWindows), "layout_power_limit_watts"), Some(Kind::Float));
        assert_eq!(kind(plan(Topic::Models), "parameters"), Some(Kind::Json));
        assert_eq!(kind(plan(Topic::DeadLetters), "origin_offset"), Some(Kind::Int));
        for topic in Topic::ALL {
            for column in &plan(topic).columns {
                assert!(!column.description.is_empty(), "{topic}: {} says nothing about itself", column.name);
            }
        }
    }
}
