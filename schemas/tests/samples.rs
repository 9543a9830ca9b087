//! A sample of every event of every released version is decodable for ever, and schema and decoder agree about it.

use std::fs;
use std::path::Path;

use eadt_schemas::decode::{DecodableEvent, DecodeError, MAX_ID_BYTES, MAX_NAME_BYTES};
use eadt_schemas::documents::{name_and_version, schema};
use eadt_schemas::{EventType, decode, v1};
use serde_json::Value;

/// Decodes as the reader of this event type does; gives back what a writer would write.
fn decode_as(kind: EventType, value: &[u8]) -> Result<Value, DecodeError> {
    fn through<T: DecodableEvent + serde::Serialize>(value: &[u8]) -> Result<Value, DecodeError> {
        decode::<T>(value).map(|event| serde_json::to_value(event).expect("events are plain JSON"))
    }
    macro_rules! decode_one {
        ($($event:ident)*) => {
            match kind {
                $(EventType::$event => through::<v1::$event>(value),)*
                other => panic!("{} has no schema", other.name()),
            }
        };
    }
    eadt_schemas::for_typed_events!(decode_one)
}

fn sample(kind: EventType, form: &str) -> Value {
    let (name, version) = name_and_version(kind);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("samples/{version}/{name}{form}.json"));
    let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; every event has a sample", path.display()));
    serde_json::from_slice(&text).unwrap()
}

fn validator(kind: EventType) -> jsonschema::Validator {
    jsonschema::draft202012::new(&schema(kind).unwrap()).unwrap()
}

#[test]
fn every_sample_file_is_of_a_known_event() {
    let known: Vec<String> = EventType::TYPED.iter().map(|kind| name_and_version(*kind).0.to_owned()).collect();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/v1")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let event = name.strip_suffix(".json").unwrap().trim_end_matches(".minimal");
        assert!(known.iter().any(|known| known == event), "{name} belongs to no event of version 1");
    }
}

#[test]
fn full_samples_come_out_as_they_went_in() {
    for kind in EventType::TYPED {
        let sample = sample(kind, "");
        let decoded = decode_as(kind, sample.to_string().as_bytes()).unwrap_or_else(|e| panic!("{}: {e}", kind.name()));
        assert_eq!(decoded, sample, "{}", kind.name());
        validator(kind).validate(&sample).unwrap_or_else(|e| panic!("{}: {e} at {}", kind.name(), e.instance_path()));
        for field in schema(kind).unwrap()["properties"].as_object().unwrap().keys() {
            assert!(sample.get(field).is_some(), "{}: the full sample lacks {field}", kind.name());
        }
    }
}

#[test]
fn schema_and_decoder_require_the_same_fields() {
    for kind in EventType::TYPED {
        let (validator, full, minimal) = (validator(kind), sample(kind, ""), sample(kind, ".minimal"));
        decode_as(kind, minimal.to_string().as_bytes()).unwrap_or_else(|e| panic!("{}: {e}", kind.name()));
        assert!(validator.is_valid(&minimal), "{}", kind.name());
        for field in full.as_object().unwrap().keys() {
            let mut without = full.clone();
            without.as_object_mut().unwrap().remove(field);
            let decoded = decode_as(kind, without.to_string().as_bytes());
            let required = minimal.get(field).is_some();
            assert_eq!(decoded.is_err(), required, "{}: without {field}: {decoded:?}", kind.name());
            assert_eq!(validator.is_valid(&without), !required, "{}: without {field}", kind.name());
        }
    }
}

/// Every place of a sample where a number, a text, a flag or an object is, as JSON pointers.
fn places(value: &Value, at: &str, into: &mut Vec<String>) {
    for (name, inner) in value.as_object().into_iter().flatten() {
        let path = format!("{at}/{name}");
        if inner.is_object() {
            places(inner, &path, into);
        }
        into.push(path);
    }
}

#[test]
fn schema_and_decoder_refuse_the_same_values() {
    let long = "x".repeat(254);
    let slashed = format!("{}/{}", "n".repeat(126), "w".repeat(127));
    let tries: Vec<Value> = [
        "-1e19",
        "-1e7",
        "-1e6",
        "-101",
        "-100",
        "-1",
        "-0.001",
        "0",
        "0.5",
        "1",
        "1.05",
        "1.06",
        "2",
        "100",
        "100.5",
        "101",
        "300",
        "301",
        "100000",
        "110000",
        "10000000",
        "11000000",
        "31536000",
        "31536001",
        "1000000000",
        "1100000000",
        "4294967296",
        "1000000000000",
        "1000000000000000000",
        "1100000000000000000",
        "1e300",
        "true",
        "\"\"",
        "\"x\"",
        "\"a/b\"",
        "\"a/b/c\"",
        "\"/b\"",
        "\"measured\"",
        "[]",
        "{}",
        "null",
        "[1]",
        "{\"x\":-1}",
        "\"2026-01-01T00:00:00Z\"",
        "\"yesterday\"",
    ]
    .into_iter()
    .map(|text| serde_json::from_str(text).unwrap())
    .chain([Value::from(long), Value::from(slashed)])
    .collect();
    let mut refused = 0;
    for kind in EventType::TYPED {
        let sample = sample(kind, "");
        let validator = jsonschema::draft202012::options().should_validate_formats(true).build(&schema(kind).unwrap()).unwrap();
        let mut all = Vec::new();
        places(&sample, "", &mut all);
        for place in all {
            // Two rules that a JSON Schema cannot express: windows end after they start; model parameters may have any
            // form.
            if place.starts_with("/parameters") || place.starts_with("/window_") {
                continue;
            }
            for value in &tries {
                let mut changed = sample.clone();
                *changed.pointer_mut(&place).unwrap() = value.clone();
                let decoded = decode_as(kind, changed.to_string().as_bytes());
                let valid = validator.is_valid(&changed);
                assert_eq!(decoded.is_ok(), valid, "{} {place} = {value}: decoder returns {decoded:?}", kind.name());
                refused += usize::from(!valid);
            }
        }
    }
    assert!(refused > 1000, "only {refused} values refused");
}

/// Every place of an id of EADT, in lists too, as JSON pointers.
fn id_places(value: &Value, at: &str, into: &mut Vec<String>) {
    for (index, inner) in value.as_array().into_iter().flatten().enumerate() {
        id_places(inner, &format!("{at}/{index}"), into);
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let place = format!("{at}/{name}");
        id_places(inner, &place, into);
        if matches!(name.as_str(), "id" | "concerns") || name.ends_with("_id") {
            into.push(place);
        }
    }
}

#[test]
fn an_id_of_the_longest_names_is_accepted_wherever_it_is_repeated() {
    let mut tried = 0;
    for kind in EventType::TYPED {
        let (sample, validator) = (sample(kind, ""), validator(kind));
        let mut all = Vec::new();
        id_places(&sample, "", &mut all);
        for place in all.iter().filter(|place| !place.starts_with("/parameters")) {
            // Of ASCII, which is read by another path, and of other characters.
            for (letter, bytes, expected) in [
                ("x", MAX_NAME_BYTES + 1, Some(true)),
                ("x", MAX_ID_BYTES, Some(true)),
                ("\u{e9}", MAX_ID_BYTES, Some(true)),
                ("x", MAX_ID_BYTES + 1, None),
            ] {
                let mut changed = sample.clone();
                *changed.pointer_mut(place).unwrap() = letter.repeat(bytes / letter.len()).into();
                let decoded = decode_as(kind, changed.to_string().as_bytes());
                let what = format!("{} {place} with {bytes} bytes: {decoded:?}", kind.name());
                assert_eq!(decoded.is_ok(), expected.unwrap_or_else(|| validator.is_valid(&changed)), "{what}");
                assert!(expected.is_none() || validator.is_valid(&changed), "{what}");
                tried += 1;
            }
        }
    }
    assert!(tried >= 48, "{tried}");
}
