//! May one schema follow another within a version?
//!
//! Readers are upgraded before writers: every event that the old schema allows must mean the same to a reader of
//! the new one. Fields, enum values and wider types may be added; nothing may go, get narrower or change its unit.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

/// A change that an event of the old schema does not survive.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{path}: {change}")]
pub struct BreakingChange {
    /// Path of field names: `layout.replicas`; empty for the event itself.
    pub path: String,
    pub change: SchemaChange,
}

/// Kind of change between two versions of a schema.
#[derive(Debug, Clone, PartialEq)]
pub enum SchemaChange {
    /// The field is gone, so its content in old events is lost.
    FieldRemoved,
    /// The field is gone, and one that differs in the unit only has appeared.
    UnitChanged { to: String },
    /// Old events may hold a type that is not read any more.
    TypeNarrowed { lost: BTreeSet<String> },
    /// Old events need not have the field.
    NewlyRequired,
    /// Old events may hold this value of an enum.
    ValueRemoved { value: String },
    /// Any value was allowed, now only the listed ones are.
    ValuesRestricted,
    /// Old events may hold a number or a length outside the new limits.
    LimitNarrowed { keyword: String, from: Option<f64>, to: f64 },
    /// Old events may hold a text of another form.
    PatternChanged,
    /// An absent field means something else than before.
    DefaultChanged { from: Value, to: Value },
    /// Old events may hold fields that are refused now.
    ClosedToUnknownFields,
}

impl fmt::Display for SchemaChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FieldRemoved => f.write_str("field removed"),
            Self::UnitChanged { to } => write!(f, "unit changed, the field is now {to}"),
            Self::TypeNarrowed { lost } => {
                write!(f, "type narrowed, no longer read: {}", lost.iter().cloned().collect::<Vec<_>>().join(", "))
            }
            Self::NewlyRequired => f.write_str("required, and was not before"),
            Self::ValueRemoved { value } => write!(f, "enum value {value} removed"),
            Self::ValuesRestricted => f.write_str("restricted to listed values"),
            Self::LimitNarrowed { keyword, from: Some(from), to } => write!(f, "{keyword} narrowed from {from} to {to}"),
            Self::LimitNarrowed { keyword, from: None, to } => write!(f, "{keyword} {to} added"),
            Self::PatternChanged => f.write_str("pattern changed"),
            Self::DefaultChanged { from, to } => write!(f, "absent meant {from} and now means {to}"),
            Self::ClosedToUnknownFields => f.write_str("unknown fields are refused, and were not before"),
        }
    }
}

/// Checks whether `new` may replace `old`: `Err` names every break, ordered by path.
///
/// Both are JSON Schema documents (draft 2020-12) of the subset that this crate generates: `type`, `enum`, `const`,
/// `properties`, `required`, `additionalProperties`, `items`, `anyOf`, `oneOf`, `$ref` into `$defs`, limits, `pattern`,
/// `default`.
pub fn compatible(old: &Value, new: &Value) -> Result<(), Vec<BreakingChange>> {
    let mut breaks = Vec::new();
    compare("", &ResolvedSchema::of(old, old), &ResolvedSchema::of(new, new), &SchemaPair { old, new }, &mut breaks);
    breaks.sort_by(|a, b| a.path.cmp(&b.path));
    if breaks.is_empty() { Ok(()) } else { Err(breaks) }
}

#[derive(Clone, Copy)]
struct SchemaPair<'a> {
    old: &'a Value,
    new: &'a Value,
}

/// Limits from below and from above; a missing one allows everything.
const LOWER: [&str; 5] = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
const UPPER: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];

/// A schema with references resolved and alternatives merged.
#[derive(Debug, Default)]
struct ResolvedSchema<'a> {
    /// Empty: any type.
    types: BTreeSet<&'a str>,
    /// `None`: any value.
    values: Option<BTreeSet<String>>,
    fields: BTreeMap<&'a str, &'a Value>,
    required: BTreeSet<&'a str>,
    limits: BTreeMap<&'a str, f64>,
    pattern: Option<&'a str>,
    default: Option<&'a Value>,
    closed: bool,
    additional: Option<&'a Value>,
    items: Option<&'a Value>,
}

impl<'a> ResolvedSchema<'a> {
    fn of(schema: &'a Value, document: &'a Value) -> Self {
        let mut shape = Self::default();
        shape.add(schema, document);
        shape
    }

    fn add(&mut self, schema: &'a Value, document: &'a Value) {
        let Some(object) = schema.as_object() else { return };
        if let Some(target) = object.get("$ref").and_then(Value::as_str) {
            let target = target.strip_prefix('#').and_then(|pointer| document.pointer(pointer));
            self.add(target.expect("a reference of a generated schema points into its own $defs"), document);
        }
        for branch in ["anyOf", "oneOf"].iter().filter_map(|key| object.get(*key)?.as_array()).flatten() {
            self.add(branch, document);
        }
        match object.get("type") {
            Some(Value::String(one)) => drop(self.types.insert(one)),
            Some(Value::Array(several)) => self.types.extend(several.iter().filter_map(Value::as_str)),
            _ => {}
        }
        let listed = object.get("enum").and_then(Value::as_array).into_iter().flatten().chain(object.get("const"));
        for value in listed {
            self.values.get_or_insert_default().insert(value.to_string());
        }
        if let Some(fields) = object.get("properties").and_then(Value::as_object) {
            self.fields.extend(fields.iter().map(|(name, field)| (name.as_str(), field)));
        }
        self.required.extend(object.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str));
        for key in LOWER.into_iter().chain(UPPER) {
            if let Some(limit) = object.get(key).and_then(Value::as_f64) {
                self.limits.insert(key, limit);
            }
        }
        self.pattern = object.get("pattern").and_then(Value::as_str).or(self.pattern);
        self.default = object.get("default").or(self.default);
        match object.get("additionalProperties") {
            Some(Value::Bool(false)) => self.closed = true,
            Some(other) => self.additional = Some(other),
            None => {}
        }
        self.items = object.get("items").or(self.items);
    }

    fn reads(&self, kind: &str) -> bool {
        self.types.is_empty() || self.types.contains(kind) || kind == "integer" && self.types.contains("number")
    }
}

fn compare(
    path: &str,
    old: &ResolvedSchema<'_>,
    new: &ResolvedSchema<'_>,
    documents: &SchemaPair<'_>,
    breaks: &mut Vec<BreakingChange>,
) {
    let mut broken = |path: &str, change| breaks.push(BreakingChange { path: path.to_owned(), change });

    if old.types.is_empty() && !new.types.is_empty() {
        broken(path, SchemaChange::TypeNarrowed { lost: BTreeSet::from(["any".to_owned()]) });
    }
    let lost: BTreeSet<String> = old.types.iter().filter(|kind| !new.reads(kind)).map(ToString::to_string).collect();
    if !lost.is_empty() {
        broken(path, SchemaChange::TypeNarrowed { lost });
    }
    match (&old.values, &new.values) {
        (Some(old), Some(new)) => {
            for value in old.difference(new) {
                broken(path, SchemaChange::ValueRemoved { value: value.clone() });
            }
        }
        (None, Some(_)) => broken(path, SchemaChange::ValuesRestricted),
        (_, None) => {}
    }
    for (keyword, &to) in &new.limits {
        let from = old.limits.get(keyword).copied();
        let narrower = from.is_none_or(|from| if LOWER.contains(keyword) { to > from } else { to < from });
        if narrower {
            broken(path, SchemaChange::LimitNarrowed { keyword: (*keyword).to_owned(), from, to });
        }
    }
    if new.pattern.is_some() && new.pattern != old.pattern {
        broken(path, SchemaChange::PatternChanged);
    }
    if let Some((from, to)) = old.default.zip(new.default).filter(|(from, to)| from != to) {
        broken(path, SchemaChange::DefaultChanged { from: from.clone(), to: to.clone() });
    }
    if new.closed && !old.closed {
        broken(path, SchemaChange::ClosedToUnknownFields);
    }
    for name in new.required.difference(&old.required) {
        broken(&join(path, name), SchemaChange::NewlyRequired);
    }
    for (name, field) in &old.fields {
        let path = join(path, name);
        if let Some(other) = new.fields.get(name) {
            compare(
                &path,
                &ResolvedSchema::of(field, documents.old),
                &ResolvedSchema::of(other, documents.new),
                documents,
                breaks,
            );
        } else {
            let renamed = new.fields.keys().find(|other| !old.fields.contains_key(*other) && same_but_unit(name, other));
            let change = renamed.map_or(SchemaChange::FieldRemoved, |to| SchemaChange::UnitChanged { to: (*to).to_owned() });
            breaks.push(BreakingChange { path, change });
        }
    }
    for (part, old, new) in [("*", old.additional, new.additional), ("[]", old.items, new.items)] {
        if let Some(new) = new {
            let any = Value::Bool(true);
            let old = old.unwrap_or(&any);
            compare(
                &join(path, part),
                &ResolvedSchema::of(old, documents.old),
                &ResolvedSchema::of(new, documents.new),
                documents,
                breaks,
            );
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `power_watts` and `power_milliwatts` speak of the same thing; so do `power` and `power_watts`.
fn same_but_unit(old: &str, new: &str) -> bool {
    let stem = |name: &str| name.strip_suffix("_total").unwrap_or(name).rsplit_once('_').map(|(stem, _)| stem.to_owned());
    let (a, b) = (stem(old), stem(new));
    (a.is_some() && a == b) || b.as_deref() == Some(old) || a.as_deref() == Some(new)
}
