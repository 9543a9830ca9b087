//! The checked-in documents are those of the types.

use std::fs;
use std::path::Path;

use eadt_schemas::EventType;
use eadt_schemas::documents::{events_page, schema, schema_files};
use serde_json::Value;

fn compare(path: &Path, wanted: &str) {
    let found = fs::read_to_string(path).unwrap_or_default();
    let place =
        found.lines().zip(wanted.lines()).position(|(a, b)| a != b).unwrap_or(found.lines().count().min(wanted.lines().count()));
    assert!(
        found == wanted,
        "{} differs from the types at line {}; run `cargo xtask generate` and commit what changes",
        path.display(),
        place + 1
    );
}

#[test]
fn checked_in_documents_are_up_to_date() {
    let schemas = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = schema_files();
    for (path, content) in &files {
        compare(&schemas.join(path), content);
    }
    compare(&schemas.join("../docs/reference/events.md"), &events_page());

    let mut known: Vec<_> = files.iter().map(|(path, _)| schemas.join(path)).collect();
    known.sort();
    let mut there: Vec<_> = fs::read_dir(schemas.join("json/v1")).unwrap().map(|entry| entry.unwrap().path()).collect();
    there.sort();
    assert_eq!(there, known, "a schema file without an event; remove it");
}

#[test]
fn schemas_are_valid_and_every_field_has_a_description() {
    for kind in EventType::TYPED {
        let schema = schema(kind).unwrap();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        jsonschema::draft202012::meta::validate(&schema).unwrap_or_else(|error| panic!("{}: {error}", kind.name()));
        let mut objects = vec![&schema];
        objects.extend(schema["$defs"].as_object().into_iter().flat_map(|defs| defs.values()));
        for object in objects {
            assert!(object["description"].is_string(), "{}: {object} has no description", kind.name());
            for (name, field) in object["properties"].as_object().into_iter().flatten() {
                let text = field["description"].as_str().unwrap_or_default();
                assert!(text.len() > 5, "{}: field {name} has no doc comment", kind.name());
            }
            for value in object["oneOf"].as_array().into_iter().flatten() {
                assert!(value["description"].is_string(), "{}: {value} has no doc comment", kind.name());
            }
            assert!(object.get("enum").is_none(), "{}: values without doc comments: {}", kind.name(), object["enum"]);
        }
    }
}

#[test]
fn a_number_has_a_unit_or_is_a_known_count() {
    const PLAIN: &[&str] = &[
        "share",
        "tenants",
        "gpu_index",
        "tenure",
        "processes",
        "rank",
        "samples_total",
        "tokens_total",
        "steps_total",
        "loss",
        "epoch",
        "steps_remaining",
        "global_batch_size",
        "world_size",
        "local_world_size",
        "overflow_skips_total",
        "gradient_norm",
        "replicas",
        "replicas_min",
        "replicas_max",
        "restarts_per_day_max",
        "generation",
        "gpus",
        "ranks",
        "events",
        "late",
        "stale",
        "duplicates",
        "late_tables",
        "samples",
        "samples_redone",
        "tokens",
        "steps",
        "mean_loss",
        "layers",
        "learning_rate",
        "loss_scale",
        "validation_loss",
        "frozen_prefix_layers",
        "frozen_prefix_layers_max",
        "unassigned_samples",
        "unassigned_tokens",
        "unassigned_steps",
    ];
    for kind in EventType::TYPED {
        let schema = schema(kind).unwrap();
        let mut objects = vec![&schema];
        objects.extend(schema["$defs"].as_object().into_iter().flat_map(|defs| defs.values()));
        for (name, field) in objects.iter().flat_map(|object| object["properties"].as_object().into_iter().flatten()) {
            let number = |kind: &Value| kind == "number" || kind == "integer";
            let number = number(&field["type"]) || field["type"].as_array().is_some_and(|kinds| kinds.iter().any(number));
            assert!(
                !number || field.get("x-unit").is_some() || PLAIN.contains(&name.as_str()),
                "{}: {name} is a number whose name ends in no unit; name it with its unit",
                kind.name()
            );
        }
    }
}
