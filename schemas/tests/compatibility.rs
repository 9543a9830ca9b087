//! Checks that released events stay readable: the current schemas may only add to the released ones.

use std::fs;
use std::path::Path;

use eadt_schemas::compat::{BreakingChange, SchemaChange, compatible};
use eadt_schemas::documents::{name_and_version, schema};
use eadt_schemas::{EventType, documents};
use serde_json::{Value, json};

#[test]
fn current_schemas_may_follow_the_released_ones() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("released");
    let mut compared = 0;
    for version in fs::read_dir(root).unwrap() {
        for file in fs::read_dir(version.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let released: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let id = released["$id"].as_str().unwrap();
            let kind = EventType::TYPED.into_iter().find(|kind| {
                let (name, version) = name_and_version(*kind);
                format!("urn:eadt:{name}:{version}") == id
            });
            let kind = kind.unwrap_or_else(|| panic!("{id} was released and is gone"));
            if let Err(breaks) = compatible(&released, &schema(kind).unwrap()) {
                let list: Vec<String> = breaks.iter().map(|b| format!("  {b}")).collect();
                panic!(
                    "{} breaks readers of what is already written:\n{}\nadd fields instead of changing them, or open version 2",
                    kind.name(),
                    list.join("\n")
                );
            }
            compared += 1;
        }
    }
    assert!(compared > 0, "no released schemas; `cargo xtask release-schemas` freezes them");
}

/// Applies a change to the released telemetry or decision schema and returns what the comparison finds.
fn breaks(kind: EventType, change: impl FnOnce(&mut Value)) -> Vec<(String, SchemaChange)> {
    let old = documents::schema(kind).unwrap();
    let mut new = old.clone();
    change(&mut new);
    assert_ne!(old, new, "the test changed nothing");
    compatible(&old, &new).err().unwrap_or_default().into_iter().map(|BreakingChange { path, change }| (path, change)).collect()
}

fn one(kind: EventType, change: impl FnOnce(&mut Value)) -> (String, SchemaChange) {
    let mut found = breaks(kind, change);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn remove(value: &mut Value, pointer: &str, name: &str) -> Value {
    value.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(name).unwrap()
}

#[test]
fn a_removed_field_bites() {
    let found = one(EventType::GpuTelemetry, |s| drop(remove(s, "/properties", "power_average_watts")));
    assert_eq!(found, ("power_average_watts".to_owned(), SchemaChange::FieldRemoved));
}

#[test]
fn a_removed_field_of_a_nested_type_bites_wherever_it_is_used() {
    let found = breaks(EventType::Decision, |s| drop(remove(s, "/$defs/Layout/properties", "replicas")));
    let paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, ["from.replicas", "to.replicas"]);
}

#[test]
fn a_changed_unit_bites() {
    let found = one(EventType::GpuTelemetry, |s| {
        let field = remove(s, "/properties", "energy_joules_total");
        s["properties"]["energy_millijoules_total"] = field;
    });
    assert_eq!(
        found,
        ("energy_joules_total".to_owned(), SchemaChange::UnitChanged { to: "energy_millijoules_total".to_owned() })
    );
}

#[test]
fn a_narrower_type_bites_and_a_wider_one_does_not() {
    let found = one(EventType::GpuTelemetry, |s| s["properties"]["power_watts"]["type"] = json!(["integer", "null"]));
    assert_eq!(found, ("power_watts".to_owned(), SchemaChange::TypeNarrowed { lost: ["number".to_owned()].into() }));
    let found = one(EventType::GpuTelemetry, |s| s["properties"]["power_watts"]["type"] = json!("number"));
    assert_eq!(found, ("power_watts".to_owned(), SchemaChange::TypeNarrowed { lost: ["null".to_owned()].into() }));
    let wider = breaks(EventType::GpuTelemetry, |s| s["properties"]["gpu_index"]["type"] = json!(["number", "null"]));
    assert_eq!(wider, []);
    let found = one(EventType::Model, |s| s["properties"]["parameters"] = json!({"type": "object"}));
    assert!(matches!(found.1, SchemaChange::TypeNarrowed { .. }));
    let found = one(EventType::Decision, |s| s["properties"]["evidence"]["additionalProperties"]["type"] = json!("integer"));
    assert_eq!(found.0, "evidence.*");
}

#[test]
fn a_new_required_field_bites_and_a_new_optional_one_does_not() {
    let found = one(EventType::GpuTelemetry, |s| s["required"].as_array_mut().unwrap().push(json!("node")));
    assert_eq!(found, ("node".to_owned(), SchemaChange::NewlyRequired));
    let found = one(EventType::GpuTelemetry, |s| {
        s["properties"]["rack"] = json!({"type": "string"});
        s["required"].as_array_mut().unwrap().push(json!("rack"));
    });
    assert_eq!(found, ("rack".to_owned(), SchemaChange::NewlyRequired));
    assert_eq!(breaks(EventType::GpuTelemetry, |s| s["properties"]["rack"] = json!({"type": ["string", "null"]})), []);
    assert_eq!(breaks(EventType::GpuTelemetry, |s| drop(s["required"].as_array_mut().unwrap().pop())), []);
}

#[test]
fn a_removed_enum_value_bites_and_a_new_one_does_not() {
    let found = one(EventType::GpuTelemetry, |s| drop(s["$defs"]["Origin"]["oneOf"].as_array_mut().unwrap().remove(1)));
    assert_eq!(found, ("origin".to_owned(), SchemaChange::ValueRemoved { value: "\"imported\"".to_owned() }));
    let added = json!({"const": "estimated", "type": "string"});
    assert_eq!(breaks(EventType::GpuTelemetry, |s| s["$defs"]["Origin"]["oneOf"].as_array_mut().unwrap().push(added)), []);
    let found = one(EventType::GpuTelemetry, |s| s["properties"]["node"]["enum"] = json!(["a", null]));
    assert_eq!(found, ("node".to_owned(), SchemaChange::ValuesRestricted));
}

#[test]
fn narrower_limits_bite_and_wider_ones_do_not() {
    let power = |key: &'static str, to: f64| move |s: &mut Value| s["properties"]["power_watts"][key] = json!(to);
    let found = one(EventType::GpuTelemetry, power("maximum", 1000.0));
    let narrowed = |keyword: &str, from, to| SchemaChange::LimitNarrowed { keyword: keyword.to_owned(), from, to };
    assert_eq!(found, ("power_watts".to_owned(), narrowed("maximum", Some(1e7), 1000.0)));
    assert_eq!(one(EventType::GpuTelemetry, power("minimum", 1.0)).1, narrowed("minimum", Some(0.0), 1.0));
    assert_eq!(breaks(EventType::GpuTelemetry, power("maximum", 1e8)), []);
    assert_eq!(breaks(EventType::GpuTelemetry, power("minimum", -1.0)), []);
    let found = one(EventType::TrainingProgress, |s| s["properties"]["loss"]["minimum"] = json!(0));
    assert_eq!(found, ("loss".to_owned(), narrowed("minimum", None, 0.0)));
    let found = one(EventType::GpuTelemetry, |s| s["properties"]["device"]["maxLength"] = json!(36));
    assert_eq!(found.1, narrowed("maxLength", Some(253.0), 36.0));
    let found = one(EventType::GpuTelemetry, |s| s["properties"]["device"]["pattern"] = json!("^GPU-"));
    assert_eq!(found.1, SchemaChange::PatternChanged);
}

#[test]
fn another_meaning_of_absence_bites() {
    let found = one(EventType::Workload, |s| s["properties"]["mode"]["default"] = json!("enforce"));
    assert_eq!(found, ("mode".to_owned(), SchemaChange::DefaultChanged { from: json!("recommend"), to: json!("enforce") }));
}

#[test]
fn refusing_unknown_fields_bites() {
    let found = one(EventType::Workload, |s| s["additionalProperties"] = json!(false));
    assert_eq!(found, (String::new(), SchemaChange::ClosedToUnknownFields));
}

#[test]
fn a_break_is_reported_with_its_place_and_kind() {
    let text = |path: &str, change| BreakingChange { path: path.to_owned(), change }.to_string();
    assert_eq!(text("power_watts", SchemaChange::FieldRemoved), "power_watts: field removed");
    assert_eq!(
        text("share", SchemaChange::LimitNarrowed { keyword: "maximum".to_owned(), from: Some(1.0), to: 0.5 }),
        "share: maximum narrowed from 1 to 0.5"
    );
}
