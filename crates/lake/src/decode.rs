//! Decoding of a record's JSON to cells, without the typed event in between.
//!
//! What the columns cannot hold exactly is not held by them: the caller then keeps the original bytes.

use std::borrow::Cow;
use std::fmt;

use eadt_schemas::EventTime;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::plan::{ColumnType, EventFields, FieldNode, TopicColumns};

#[derive(Debug, PartialEq)]
pub(crate) enum CellValue<'a> {
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Microseconds since the epoch.
    Time(i64),
    Text(Cow<'a, str>),
    Json(&'a str),
}

/// One decoded value. `extra` is the text of a JSON object with the fields that have no column.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DecodedValue<'a> {
    pub cells: Vec<(usize, CellValue<'a>)>,
    pub columns_set: ColumnSet,
    pub extra: Option<String>,
}

/// Returns `None` if the value is no object of this type, so that only its bytes represent it. `cells` is memory to use.
pub(crate) fn decode<'a>(plan: &TopicColumns, value: &'a [u8], cells: Vec<(usize, CellValue<'a>)>) -> Option<DecodedValue<'a>> {
    let mut decoded = crate::canonical::decode(plan, value, cells).or_else(|| general(plan, value))?;
    if !decoded.cells.is_empty() {
        let absent = plan.flags.iter().filter(|index| !decoded.columns_set.contains(**index));
        decoded.cells.extend(absent.map(|index| (*index, CellValue::Bool(false))));
    }
    Some(decoded)
}

/// Decodes any JSON object.
pub(crate) fn general<'a>(plan: &TopicColumns, value: &'a [u8]) -> Option<DecodedValue<'a>> {
    let mut deserializer = serde_json::Deserializer::from_slice(value);
    let mut decoded = DecodedValue::default();
    let mut extra = String::new();
    let DecodedValue { cells, columns_set, .. } = &mut decoded;
    let object = ObjectVisitor { plan, members: &plan.members, into: cells, extra: &mut extra, columns_set };
    object.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    if !extra.is_empty() {
        decoded.extra = Some(format!("{{{extra}}}"));
    }
    Some(decoded)
}

/// Columns that the present value has set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ColumnSet([u64; 4]);

impl ColumnSet {
    fn contains(&self, index: usize) -> bool {
        self.0[index / 64] & (1 << (index % 64)) != 0
    }

    /// Returns false if it was there already.
    pub(crate) fn insert(&mut self, index: usize) -> bool {
        let fresh = !self.contains(index);
        self.0[index / 64] |= 1 << (index % 64);
        fresh
    }
}

struct ObjectVisitor<'p, 's, 'a> {
    plan: &'p TopicColumns,
    members: &'p EventFields,
    into: &'s mut Vec<(usize, CellValue<'a>)>,
    extra: &'s mut String,
    columns_set: &'s mut ColumnSet,
}

impl<'a> DeserializeSeed<'a> for ObjectVisitor<'_, '_, 'a> {
    /// Whether a column was set.
    type Value = bool;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'a> Visitor<'a> for ObjectVisitor<'_, '_, 'a> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<bool, A::Error> {
        let before = self.into.len();
        let mut hint = 0;
        let mut groups = 0_u64;
        while let Some(FieldName(name)) = map.next_key()? {
            let Some(at) = self.members.find(&name, hint) else {
                let value = map.next_value::<&RawValue>()?;
                extra(self.extra, &name, value.get());
                continue;
            };
            hint = at + 1;
            match &self.members.list[at].node {
                FieldNode::Column(index) => {
                    if !self.columns_set.insert(*index) {
                        return Err(A::Error::duplicate_field("a known field"));
                    }
                    let column = &self.plan.columns[*index];
                    if let Some(cell) = map.next_value_seed(ValueVisitor { kind: column.kind, nullable: column.nullable })? {
                        self.into.push((*index, cell));
                    }
                }
                FieldNode::Group { members, optional } => {
                    if groups & (1 << at) != 0 {
                        return Err(A::Error::duplicate_field("a known field"));
                    }
                    groups |= 1 << at;
                    let mut inner = String::new();
                    let object = ObjectVisitor {
                        plan: self.plan,
                        members,
                        into: self.into,
                        extra: &mut inner,
                        columns_set: self.columns_set,
                    };
                    let set = map.next_value_seed(NullableVisitor { object, nullable: *optional })?;
                    // An object that is there but sets nothing differs from one that is not there.
                    if !inner.is_empty() || (set == Some(false) && *optional) {
                        extra(self.extra, &name, &format!("{{{inner}}}"));
                    }
                }
            }
        }
        Ok(self.into.len() > before)
    }
}

fn extra(into: &mut String, name: &str, value: &str) {
    if !into.is_empty() {
        into.push(',');
    }
    into.push_str(&serde_json::to_string(name).expect("a string is JSON"));
    into.push(':');
    into.push_str(value);
}

/// A field's name, borrowed if it has no escapes.
struct FieldName<'a>(Cow<'a, str>);

impl<'a> Deserialize<'a> for FieldName<'a> {
    fn deserialize<D: Deserializer<'a>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor).map(FieldName)
    }
}

struct TextVisitor;

impl<'a> Visitor<'a> for TextVisitor {
    type Value = Cow<'a, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'a str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

struct NullableVisitor<'p, 's, 'a> {
    object: ObjectVisitor<'p, 's, 'a>,
    nullable: bool,
}

impl<'a> DeserializeSeed<'a> for NullableVisitor<'_, '_, 'a> {
    /// `None` for null, else whether a column was set.
    type Value = Option<bool>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.nullable { deserializer.deserialize_option(self) } else { self.object.deserialize(deserializer).map(Some) }
    }
}

impl<'a> Visitor<'a> for NullableVisitor<'_, '_, 'a> {
    type Value = Option<bool>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        self.object.deserialize(deserializer).map(Some)
    }
}

#[derive(Clone, Copy)]
struct ValueVisitor {
    kind: ColumnType,
    nullable: bool,
}

impl<'a> DeserializeSeed<'a> for ValueVisitor {
    type Value = Option<CellValue<'a>>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if self.kind == ColumnType::Json {
            return <&RawValue>::deserialize(deserializer).map(|raw| Some(CellValue::Json(raw.get())));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for ValueVisitor {
    type Value = Option<CellValue<'a>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a value of kind {:?}", self.kind)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        if self.nullable { Ok(None) } else { Err(E::custom("null")) }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        if self.kind == ColumnType::Bool { Ok(Some(CellValue::Bool(value))) } else { Err(E::custom("a boolean")) }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        match self.kind {
            ColumnType::Float => Ok(Some(CellValue::Float(value as f64))),
            ColumnType::Int => i64::try_from(value).map(|value| Some(CellValue::Int(value))).map_err(E::custom),
            _ => Err(E::custom("a number")),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        match self.kind {
            ColumnType::Float => Ok(Some(CellValue::Float(value as f64))),
            ColumnType::Int => Ok(Some(CellValue::Int(value))),
            _ => Err(E::custom("a number")),
        }
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        if self.kind == ColumnType::Float {
            Ok(Some(CellValue::Float(value)))
        } else {
            Err(E::custom("a number with a fraction"))
        }
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Self::Value, E> {
        match self.kind {
            ColumnType::Text => Ok(Some(CellValue::Text(Cow::Borrowed(text)))),
            _ => self.visit_str(text),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match self.kind {
            ColumnType::Text => Ok(Some(CellValue::Text(Cow::Owned(text.to_owned())))),
            ColumnType::Time => text.parse().map(|time: EventTime| Some(CellValue::Time(time.micros()))).map_err(E::custom),
            _ => Err(E::custom("a string")),
        }
    }
}
