use std::sync::Arc;

use bytes::Bytes;
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::v1::{self, EfficiencyWindow, GpuTelemetry};
use eadt_schemas::{EventTime, EventType, Topic};
use eadt_testing::cases;
use proptest::collection::vec;
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{row, time};
use crate::canonical;
use crate::columns::RowBatchBuilder;
use crate::decode::{decode, general};
use crate::plan::{CommonColumn, plan};
use crate::{ArchiveRow, rebuild};

/// Through columns and back, without a file.
fn back(rows: &[ArchiveRow]) -> Vec<ArchiveRow> {
    let mut columns = RowBatchBuilder::new(rows[0].topic);
    for row in rows {
        columns.push(&row.view(), row.header_views());
    }
    let batch = columns.take();
    (0..rows.len()).map(|at| rebuild::row(rows[0].topic, &batch, at).unwrap()).collect()
}

trait Event: DecodableEvent + Serialize + Default + PartialEq + std::fmt::Debug + JsonSchema + DeserializeOwned {
    const TYPE: EventType;
}

macro_rules! events {
    ($($event:ident)*) => {
        $(impl Event for v1::$event { const TYPE: EventType = EventType::$event; })*
        fn for_each_event(visit: &mut dyn FnMut(&dyn Case)) {
            $(visit(&Of::<v1::$event>(std::marker::PhantomData));)*
        }
    };
}

eadt_schemas::for_typed_events!(events);

struct Of<T>(std::marker::PhantomData<T>);

trait Case {
    fn topic(&self) -> Topic;
    fn schema(&self) -> Value;
    /// Both decode to the same event, or are refused alike.
    fn same(&self, before: &[u8], after: &[u8]);
    /// Returns the canonical text of this event, if it is one.
    fn canonical(&self, value: &Value) -> Option<Vec<u8>>;
}

impl<T: Event> Case for Of<T> {
    fn topic(&self) -> Topic {
        T::TYPE.topic().expect("an event with a type has a topic")
    }

    fn schema(&self) -> Value {
        schemars::schema_for!(T).to_value()
    }

    fn same(&self, before: &[u8], after: &[u8]) {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        match (serde_json::from_slice::<T>(before), serde_json::from_slice::<T>(after)) {
            (Ok(a), Ok(b)) => assert_eq!(a, b, "{} became {}", text(before), text(after)),
            (Err(_), Err(_)) => {}
            (a, b) => panic!("{} became {}: {a:?}, {b:?}", text(before), text(after)),
        }
    }

    fn canonical(&self, value: &Value) -> Option<Vec<u8>> {
        let event: T = serde_json::from_value(value.clone()).ok()?;
        serde_json::to_vec(&event).ok()
    }
}

/// Returns a value with every property that a schema names, written without the crate's own reading of schemas.
fn full(root: &Value, schema: &Value) -> Value {
    if let Some(path) = schema["$ref"].as_str() {
        return full(root, root.pointer(path.trim_start_matches('#')).unwrap());
    }
    if let Some(any) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return full(root, any.iter().find(|one| one["type"] != "null").unwrap());
    }
    if let Some(value) = schema.get("const").or_else(|| schema["enum"].as_array().map(|all| &all[0])) {
        return value.clone();
    }
    if let Some(properties) = schema["properties"].as_object() {
        return properties.iter().map(|(name, property)| (name.clone(), full(root, property))).collect::<Map<_, _>>().into();
    }
    let types = schema["type"].as_array().cloned().unwrap_or_else(|| vec![schema["type"].clone()]);
    match types.iter().find_map(|name| name.as_str().filter(|name| *name != "null")) {
        Some("string") if schema["format"] == "date-time" => json!(time(1)),
        Some("string") => json!("a/b"),
        Some("integer") => json!(7),
        Some("number") => json!(0.5),
        Some("boolean") => json!(true),
        Some("array") => json!([full(root, &schema["items"])]),
        _ => json!({"a_watts": 1.5}),
    }
}

#[test]
fn every_field_of_every_event_has_a_column() {
    for_each_event(&mut |case| {
        let schema = case.schema();
        let value = serde_json::to_vec(&full(&schema, &schema)).unwrap();
        let decoded = decode(plan(case.topic()), &value, Vec::new()).expect("the schema's own example");
        assert_eq!(decoded.extra, None, "{}", case.topic());
        assert_eq!(decoded.cells.len(), plan(case.topic()).event_columns, "{}", case.topic());
    });
}

#[test]
fn what_this_program_writes_comes_back_byte_for_byte() {
    for_each_event(&mut |case| {
        let schema = case.schema();
        for value in [json!({}), full(&schema, &schema)] {
            let bytes = case.canonical(&value).unwrap();
            let mut row = row(case.topic(), 0, 1, 1, &json!({}));
            row.value = Some(bytes.into());
            assert_eq!(back(std::slice::from_ref(&row)), [row]);
        }
    });
}

#[test]
fn heartbeats_tombstones_and_odd_values_stay_what_they_are() {
    let mut rows = Vec::new();
    let values: [Option<&[u8]>; 14] = [
        None,
        Some(b"{}"),
        Some(b""),
        Some(b"not json"),
        Some(b"[1,2]"),
        Some(b"\xff\xfe"),
        Some(br#"{"device":"a","device":"b"}"#),
        Some(br#"{"power_watts":1e999}"#),
        Some(br#"{"power_watts":"250"}"#),
        Some(br#"{"device":null}"#),
        Some(br#"{"memory_used_bytes":18446744073709551615}"#),
        Some(br#"{"device":"a"} {"device":"b"}"#),
        Some(br#"{"device":"\ud800"}"#),
        Some(br#"{"memory_used_bytes":1.0}"#),
    ];
    for (at, value) in values.into_iter().enumerate() {
        let mut row = row(Topic::GpuTelemetry, 0, at as i64, 1, &json!({}));
        row.value = value.map(Bytes::from_static);
        rows.push(row);
    }
    assert_eq!(back(&rows), rows);
    let deep = format!("{{\"unknown\":{}{}}}", "[".repeat(5_000), "]".repeat(5_000));
    let long = format!("{{\"device\":\"{}\"}}", "x".repeat(1 << 20));
    for value in [deep, long] {
        let mut row = row(Topic::GpuTelemetry, 0, 0, 1, &json!({}));
        row.value = Some(value.into());
        assert_eq!(back(std::slice::from_ref(&row))[0].value, row.value);
    }
}

#[test]
fn unknown_fields_are_kept_beside_the_columns() {
    let value = r#"{"new":[1,{"a":null}],"time":"2026-01-02T00:00:01.000000Z","layout":{"replicas":2,"colour":"red"},"new":2}"#;
    let mut row = row(Topic::Workloads, 0, 0, 1, &json!({}));
    row.value = Some(Bytes::from_static(value.as_bytes()));
    let after = back(std::slice::from_ref(&row))[0].value.clone().unwrap();
    let text = std::str::from_utf8(&after).unwrap();
    assert!(text.contains(r#""layout":{"replicas":2,"colour":"red"}"#), "{text}");
    assert!(text.contains(r#""new":[1,{"a":null}]"#) && text.contains(r#""new":2"#), "{text}");
    // An empty object is not an absent one.
    row.topic = Topic::EfficiencyWindows;
    row.value = Some(Bytes::from_static(br#"{"id":"a","layout":{}}"#));
    let after = back(&[row])[0].value.clone().unwrap();
    let window: EfficiencyWindow = serde_json::from_slice(&after).unwrap();
    assert_eq!(window.layout, Some(eadt_schemas::v1::Layout::default()));
}

#[test]
fn a_flag_left_out_while_false_is_false_in_its_column() {
    use arrow::array::{Array, AsArray};
    let mut columns = RowBatchBuilder::new(Topic::GpuTelemetry);
    for value in [json!({"device": "a"}), json!({"device": "a", "last": true}), json!({})] {
        let row = row(Topic::GpuTelemetry, 0, 0, 1, &value);
        columns.push(&row.view(), row.header_views());
    }
    let batch = columns.take();
    let last = batch.column_by_name("last").unwrap().as_boolean();
    assert_eq!(last.iter().collect::<Vec<_>>(), [Some(false), Some(true), None]);
    assert!(!last.is_null(0));
    assert_eq!(plan(Topic::GpuTelemetry).schema.fields().len(), batch.num_columns());
    assert!(batch.column(plan(Topic::GpuTelemetry).common(CommonColumn::Value)).is_null(0));
}

#[test]
fn headers_and_keys_of_any_kind_come_back() {
    let headers = |pairs: &[(&str, &[u8])]| -> Vec<crate::RowHeader> {
        pairs.iter().map(|(name, value)| (Arc::from(*name), Bytes::copy_from_slice(value))).collect()
    };
    let mut bare = row(Topic::DeadLetters, 0, 0, 1, &json!("x"));
    bare.headers = headers(&[]);
    bare.key = None;
    let mut odd = row(Topic::DeadLetters, 0, 1, 1, &json!("x"));
    odd.headers = headers(&[
        ("ce_specversion", b"2.0"),
        ("ce_id", b"\xff"),
        ("ce_time", b"yesterday"),
        ("eadt_reason", b"late"),
        ("eadt_origin_offset", b"007"),
        ("eadt_origin_timestamp", b"1767312000123"),
        ("trace", b"\x00\x01"),
    ]);
    // A header that was written twice is read twice, in order.
    let mut twice = row(Topic::DeadLetters, 0, 3, 1, &json!("x"));
    let again = twice.headers.clone();
    twice.headers.extend(again);
    let mut differently = row(Topic::DeadLetters, 0, 4, 1, &json!("x"));
    differently.headers = headers(&[
        ("ce_specversion", b"2.0"),
        ("ce_specversion", b"1.0"),
        ("content-type", b"application/json"),
        ("content-type", b"text/plain"),
        ("content-type", b"application/json"),
        ("ce_time", b"yesterday"),
        ("ce_time", b"2026-01-02T00:00:00.123000Z"),
        ("ce_id", b"\xff"),
        ("ce_id", b"a"),
        ("ce_id", b"b"),
        ("eadt_origin_offset", b"007"),
        ("eadt_origin_offset", b"7"),
    ]);
    let mut later = row(Topic::DeadLetters, 0, 5, 1, &json!("x"));
    later.headers.extend(headers(&[("ce_time", b"2026-01-02T00:00:00.123000Z"), ("ce_specversion", b"2.0")]));
    odd.key = Some(Bytes::from_static(b"\xff\x00"));
    let mut full = row(Topic::DeadLetters, 0, 2, 1, &json!("x"));
    full.headers.extend(headers(&[
        ("eadt_reason", b"late"),
        ("eadt_detail", b"window closed"),
        ("eadt_origin_topic", b"gpu.telemetry.v1"),
        ("eadt_origin_partition", b"3"),
        ("eadt_origin_offset", b"17"),
        ("eadt_origin_timestamp", b"2026-01-02T00:00:00.123000Z"),
        ("traceparent", b"00-1"),
    ]));
    // A time that is not written as this program writes them stays as it is.
    let mut times = [
        "2026-01-02T00:00:00Z",
        "2026-01-02T01:00:00.000000+01:00",
        "2026-01-02T23:59:60.000000Z",
        "2026-01-02 00:00:00.000000Z",
    ];
    times.sort_unstable();
    let of_time = |(offset, time): (i64, &str)| {
        let mut row = row(Topic::DeadLetters, 0, offset, 1, &json!("x"));
        row.headers
            .iter_mut()
            .filter(|(name, _)| &**name == "ce_time")
            .for_each(|(_, value)| *value = Bytes::copy_from_slice(time.as_bytes()));
        row
    };
    let mut rows = vec![bare, odd, full, twice, differently, later];
    rows.extend((6..).zip(times).map(of_time));
    for (before, after) in rows.iter().zip(back(&rows)) {
        let sorted = |row: &ArchiveRow| {
            let mut headers = row.headers.clone();
            headers.sort_by(|a, b| a.0.cmp(&b.0));
            headers
        };
        assert_eq!(sorted(before), sorted(&after));
        assert_eq!((&before.key, &before.value), (&after.key, &after.value));
    }
}

/// Returns a value for a property: mostly of its type, sometimes anything.
fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u64..100).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter_map("finite", |value| value.is_finite().then(|| Value::from(value))),
        "[a-z\"\\\\é\n]{0,8}".prop_map(Value::from),
        any::<i64>().prop_map(|micros| json!(EventTime::from_micros(micros / 1_000))),
        vec(any::<f64>().prop_filter("finite", |x| x.is_finite()), 0..3).prop_map(|list| json!({"a": list})),
        Just(json!({})),
        Just(json!({"replicas": 3, "b": 1})),
    ]
}

proptest! {
    #![proptest_config(cases(150))]

    /// Any subset of fields with any values, unknown ones among them: the columns' event is the bytes' event.
    #[test]
    fn any_object_means_the_same_afterwards(
        picks in vec((any::<prop::sample::Index>(), any_value(), 0_u8..10), 0..12),
        unknown in vec(("[a-z]{1,3}", any_value()), 0..2),
    ) {
        for_each_event(&mut |case| {
            let schema = case.schema();
            let example = full(&schema, &schema);
            let example = example.as_object().unwrap();
            let names: Vec<&String> = example.keys().collect();
            let mut value = Map::new();
            for (pick, other, kind) in &picks {
                let name = names[pick.index(names.len())];
                // Mostly the right type, else nearly every object would be refused.
                value.insert(name.clone(), if *kind == 0 { other.clone() } else { example[name].clone() });
            }
            value.extend(unknown.iter().cloned());
            let mut row = row(case.topic(), 0, 0, 1, &value);
            let bytes = row.value.clone().unwrap();
            let after = back(std::slice::from_ref(&row))[0].value.clone().unwrap();
            case.same(&bytes, &after);
            if let Some(canonical) = case.canonical(&Value::Object(value)) {
                row.value = Some(canonical.into());
                assert_eq!(back(std::slice::from_ref(&row))[0].value, row.value);
            }
        });
    }

    /// Numbers and texts at the edges of the grammar: the fast way gives up or agrees with the general one.
    #[test]
    fn the_fast_way_agrees_with_the_general_one(
        numbers in vec("-?(0|[1-9][0-9]{0,20}|0[0-9])(\\.[0-9]{0,20})?([eE][+-]?[0-9]{0,3})?", 0..4),
        text in "[ -~é\t]{0,6}",
        cut in any::<prop::sample::Index>(),
    ) {
        let names = ["power_watts", "energy_joules_total", "memory_used_bytes", "gpu_index"];
        let fields = names.iter().zip(&numbers).map(|(name, number)| format!(",\"{name}\":{number}"));
        let whole = format!("{{\"device\":\"{text}\"{},\"last\":true}}", fields.collect::<String>());
        let plan = plan(Topic::GpuTelemetry);
        for bytes in [whole.as_bytes(), &whole.as_bytes()[..cut.index(whole.len())]] {
            if let Some(fast) = canonical::decode(plan, bytes, Vec::new()) {
                prop_assert_eq!(Some(fast), general(plan, bytes), "{}", whole);
            }
        }
    }

    #[test]
    fn doubles_come_back_bit_for_bit(bits in vec(any::<u64>(), 1..20)) {
        for value in bits.into_iter().map(f64::from_bits).filter(|value| value.is_finite()) {
            let event = GpuTelemetry { power_watts: Some(value), ..Default::default() };
            let row = row(Topic::GpuTelemetry, 0, 0, 1, &event);
            prop_assert_eq!(back(std::slice::from_ref(&row)), [row]);
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_change(value in vec(any::<u8>(), 0..64)) {
        let mut row = row(Topic::Decisions, 0, 0, 1, &json!({}));
        row.value = Some(value.into());
        prop_assert_eq!(&back(std::slice::from_ref(&row))[0].value, &row.value);
    }
}
