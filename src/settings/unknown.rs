//! Finds the first key that no setting has, and the nearest known one.

use serde_json::Value;

/// Key paths of all settings, and of the free maps among them.
pub(super) struct Known {
    pub keys: Vec<String>,
    maps: Vec<String>,
}

pub(super) fn known(schema: &Value) -> Known {
    let mut found = Known { keys: Vec::new(), maps: Vec::new() };
    walk(schema, schema, "", &mut found);
    found
}

/// The schema that a `$ref` (also inside `allOf`/`anyOf` of an optional field) points to.
pub(super) fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..16 {
        if let Some(pointer) = schema.get("$ref").and_then(Value::as_str) {
            schema = root.pointer(pointer.trim_start_matches('#')).unwrap_or(&Value::Null);
        } else if let Some(inner) = ["allOf", "anyOf"]
            .iter()
            .filter_map(|k| schema.get(*k)?.as_array())
            .find_map(|list| list.iter().find(|s| s.get("type").and_then(Value::as_str) != Some("null")))
            .filter(|_| schema.get("properties").is_none())
        {
            schema = inner;
        } else {
            break;
        }
    }
    schema
}

fn walk(root: &Value, schema: &Value, path: &str, found: &mut Known) {
    let schema = resolve(root, schema);
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, child) in properties {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            walk(root, child, &path, found);
            found.keys.push(path);
        }
    } else if schema.get("type").and_then(Value::as_str) == Some("object") {
        found.maps.push(path.to_owned());
    }
}

/// The first unknown key of `tree`, depth first, with the nearest known key where one is near.
pub(super) fn first(tree: &Value, schema: &Value) -> Option<(String, Option<String>)> {
    let known = known(schema);
    let mut keys = Vec::new();
    leaves(tree, "", &known, &mut keys);
    let unknown = keys.into_iter().find(|key| !known.keys.contains(key))?;
    let nearest = known
        .keys
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(candidate, &unknown), candidate))
        .min()
        .filter(|(distance, _)| *distance <= 1 + unknown.len() / 4)
        .map(|(_, candidate)| candidate.clone());
    Some((unknown, nearest))
}

fn leaves(tree: &Value, path: &str, known: &Known, keys: &mut Vec<String>) {
    if known.maps.iter().any(|map| map == path) {
        return;
    }
    match tree {
        Value::Object(map) if !map.is_empty() => {
            for (name, child) in map {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(child, &path, known, keys);
            }
        }
        _ if !path.is_empty() => keys.push(path.to_owned()),
        _ => {}
    }
}
