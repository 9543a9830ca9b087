//! Arrow columns back to rows: the same headers and, for values that this program writes, the same bytes.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, Topic};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::plan::{ColumnType, CommonColumn, EventFields, FieldNode, TopicColumns, plan};
use crate::row::{ArchiveRow, RowHeader};

/// Returns `[name, text]`, or `[name, {"base64": …}]` if the value is not UTF-8.
pub(crate) fn header_to_json(name: &str, value: &[u8]) -> serde_json::Value {
    match std::str::from_utf8(value) {
        Ok(text) => serde_json::json!([name, text]),
        Err(_) => serde_json::json!([name, { "base64": BASE64.encode(value) }]),
    }
}

/// Returns one row of a batch that has the plan's schema; `Err` with the reason if it is invalid.
pub(crate) fn row(topic: Topic, batch: &RecordBatch, at: usize) -> Result<ArchiveRow, String> {
    let plan = plan(topic);
    let view = BatchRow { plan, batch, at };
    let need = |column: CommonColumn| view.int(plan.common(column)).ok_or_else(|| format!("row {at} has no {column:?}"));
    let offset = need(CommonColumn::Offset)?;
    let partition = i32::try_from(need(CommonColumn::Partition)?).map_err(|error| format!("row {at}: partition: {error}"))?;
    let stamp = view.time(plan.common(CommonColumn::Stamp)).ok_or_else(|| format!("row {at} has no kafka_timestamp"))?;
    let key = match view.text(plan.common(CommonColumn::Key)) {
        Some(key) => Some(Bytes::copy_from_slice(key.as_bytes())),
        None => view.bytes(plan.common(CommonColumn::KeyBytes)).map(Bytes::copy_from_slice),
    };
    let value = if view.bool(plan.common(CommonColumn::Tombstone)) == Some(true) { None } else { Some(view.value()?) };
    Ok(ArchiveRow { topic, partition, offset, stamp, key, value, headers: view.headers()? })
}

#[derive(Clone, Copy)]
struct BatchRow<'a> {
    plan: &'static TopicColumns,
    batch: &'a RecordBatch,
    at: usize,
}

impl<'a> BatchRow<'a> {
    fn array(self, index: usize) -> Option<&'a dyn Array> {
        let array = self.batch.column(index);
        array.is_valid(self.at).then_some(&**array)
    }

    fn text(self, index: usize) -> Option<&'a str> {
        self.array(index).map(|array| array.as_string::<i32>().value(self.at))
    }

    fn bytes(self, index: usize) -> Option<&'a [u8]> {
        self.array(index).map(|array| array.as_binary::<i32>().value(self.at))
    }

    fn int(self, index: usize) -> Option<i64> {
        self.array(index).map(|array| array.as_primitive::<Int64Type>().value(self.at))
    }

    fn float(self, index: usize) -> Option<f64> {
        self.array(index).map(|array| array.as_primitive::<Float64Type>().value(self.at))
    }

    fn time(self, index: usize) -> Option<EventTime> {
        self.array(index).map(|array| EventTime::from_micros(array.as_primitive::<TimestampMicrosecondType>().value(self.at)))
    }

    fn bool(self, index: usize) -> Option<bool> {
        self.array(index).and_then(|array| array.as_any().downcast_ref::<BooleanArray>()).map(|array| array.value(self.at))
    }

    fn value(self) -> Result<Bytes, String> {
        if let Some(bytes) = self.bytes(self.plan.common(CommonColumn::Value)) {
            return Ok(Bytes::copy_from_slice(bytes));
        }
        let extra = self.text(self.plan.common(CommonColumn::ExtraJson));
        let extra = extra.map(pairs).transpose().map_err(|error| format!("row {}: extra_json: {error}", self.at))?;
        let mut out = Vec::with_capacity(512);
        self.object(&self.plan.members, extra.as_deref().unwrap_or_default(), true, &mut out);
        Ok(out.into())
    }

    /// Returns whether any column of these members is set.
    fn any(self, members: &EventFields) -> bool {
        members.list.iter().any(|member| match &member.node {
            FieldNode::Column(index) => self.array(*index).is_some(),
            FieldNode::Group { members, .. } => self.any(members),
        })
    }

    fn object(self, members: &EventFields, extra: &[(String, &RawValue)], top: bool, out: &mut Vec<u8>) {
        out.push(b'{');
        // `{}` stays `{}`; an event writes its required objects even when they are empty.
        let event = !top || self.any(members);
        for member in &members.list {
            let beside = extra.iter().find(|(name, _)| *name == member.name).map(|(_, value)| *value);
            match &member.node {
                FieldNode::Column(index) => self.field(&member.name, *index, out),
                FieldNode::Group { members, optional } => {
                    if self.any(members) || beside.is_some() || (event && !*optional) {
                        name(&member.name, out);
                        let inner = beside.and_then(|value| pairs(value.get()).ok()).unwrap_or_default();
                        self.object(members, &inner, false, out);
                    }
                }
            }
        }
        for (key, value) in extra.iter().filter(|(key, _)| members.find(key, 0).is_none()) {
            name(key, out);
            out.extend_from_slice(value.get().as_bytes());
        }
        out.push(b'}');
    }

    fn field(self, key: &str, index: usize, out: &mut Vec<u8>) {
        let column = &self.plan.columns[index];
        if self.array(index).is_none() || (column.false_when_absent && self.bool(index) == Some(false)) {
            return;
        }
        name(key, out);
        match column.kind {
            ColumnType::Text => json(&self.text(index), out),
            ColumnType::Time => json(&self.time(index), out),
            ColumnType::Int => json(&self.int(index), out),
            ColumnType::Float => json(&self.float(index), out),
            ColumnType::Bool => json(&self.bool(index), out),
            ColumnType::Json => out.extend_from_slice(self.text(index).unwrap_or("null").as_bytes()),
            ColumnType::Bytes => unreachable!("no field of an event is bytes"),
        }
    }

    fn headers(self) -> Result<Vec<RowHeader>, String> {
        let plan = self.plan;
        let wrong = |detail: String| format!("row {}: headers_json: {detail}", self.at);
        let others: Vec<(String, serde_json::Value)> = match self.text(plan.common(CommonColumn::HeadersJson)) {
            None => Vec::new(),
            Some(text) => serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?,
        };
        let has_header = |name: &str| others.iter().any(|(other, _)| other == name);
        let mut headers: Vec<RowHeader> = Vec::with_capacity(7 + others.len());
        let mut add = |name: &str, value: &[u8]| headers.push((Arc::from(name), Bytes::copy_from_slice(value)));
        if !has_header(header::SPEC_VERSION) {
            add(header::SPEC_VERSION, b"1.0");
        }
        for (name, column) in
            [(header::TYPE, CommonColumn::CeType), (header::SOURCE, CommonColumn::CeSource), (header::ID, CommonColumn::CeId)]
        {
            if let Some(text) = self.text(plan.common(column)) {
                add(name, text.as_bytes());
            }
        }
        if let Some(time) = self.time(plan.common(CommonColumn::CeTime)).filter(|_| !has_header(header::TIME)) {
            add(header::TIME, time.to_string().as_bytes());
        }
        if let Some(text) = self.text(plan.common(CommonColumn::CeSubject)) {
            add(header::SUBJECT, text.as_bytes());
        }
        if !has_header(header::CONTENT_TYPE) {
            add(header::CONTENT_TYPE, b"application/json");
        }
        for &(name, index) in &plan.headers {
            let text = match plan.columns[index].kind {
                ColumnType::Int => self.int(index).map(|number| number.to_string()),
                ColumnType::Time => self.time(index).map(|time| time.to_string()),
                _ => self.text(index).map(str::to_owned),
            };
            if let Some(text) = text {
                add(name, text.as_bytes());
            }
        }
        for (name, value) in &others {
            match value {
                serde_json::Value::Null => {}
                serde_json::Value::String(text) => add(name, text.as_bytes()),
                other => {
                    let text = other["base64"].as_str().ok_or_else(|| wrong(format!("{name} is neither text nor base64")))?;
                    add(name, &BASE64.decode(text).map_err(|error| wrong(error.to_string()))?);
                }
            }
        }
        Ok(headers)
    }
}

fn name(key: &str, out: &mut Vec<u8>) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    json(&key, out);
    out.push(b':');
}

fn json(value: &impl serde::Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("writing to memory cannot fail");
}

/// Returns the members of a JSON object in their order, with unchanged values.
fn pairs(text: &str) -> serde_json::Result<Vec<(String, &RawValue)>> {
    struct PairsVisitor;
    impl<'de> Visitor<'de> for PairsVisitor {
        type Value = Vec<(String, &'de RawValue)>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut pairs = Vec::new();
            while let Some(pair) = map.next_entry()? {
                pairs.push(pair);
            }
            Ok(pairs)
        }
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let pairs = deserializer.deserialize_map(PairsVisitor)?;
    deserializer.end()?;
    Ok(pairs)
}
