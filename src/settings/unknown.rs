//! Finds the first key that no setting has, and the nearest known one.

use serde_json::Value;

/// Key paths of all settings, and of the free maps among them.
struct SettingKeys {
    pub keys: Vec<String>,
    maps: Vec<String>,
}

fn known(schema: &Value) -> SettingKeys {
    let mut found = SettingKeys { keys: Vec::new(), maps: Vec::new() };
    walk(schema, schema, "", &mut found);
    found
}

/// Returns the schema that a `$ref` (also inside `allOf`/`anyOf` of an optional field) points to.
pub fn resolve<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
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

fn walk(root: &Value, schema: &Value, path: &str, found: &mut SettingKeys) {
    let schema = resolve(root, schema);
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, child) in properties {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            walk(root, child, &path, found);
            found.keys.push(path);
        }
    } else if schema.get("type").and_then(Value::as_str) == Some("object") {
        found.maps.push(path.to_owned());
    } else if let Some(items) = schema.get("items") {
        walk(root, items, &format!("{path}[]"), found);
    }
}

/// Returns the first unknown key of `tree`, depth first, and advice: the nearest known key if one is near, else the
/// keys beside it.
pub fn find_unknown_key(tree: &Value, schema: &Value) -> Option<(String, String)> {
    let known = known(schema);
    let mut keys = Vec::new();
    leaves(tree, "", "", &known, &mut keys);
    let (shown, unknown) = keys.into_iter().find(|(_, key)| !known.keys.contains(key))?;
    let nearest = known
        .keys
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(candidate, &unknown), candidate))
        .min()
        .filter(|(distance, _)| *distance <= 1 + unknown.len() / 4);
    let advice = match nearest {
        Some((_, candidate)) => format!("did you mean {candidate}?"),
        None => format!("known {}", section_keys(&unknown, &known)),
    };
    Some((shown, advice))
}

/// Returns the keys of the deepest known section that `unknown` lies in.
fn section_keys(unknown: &str, known: &SettingKeys) -> String {
    let mut section = unknown;
    while let Some((above, _)) = section.rsplit_once('.') {
        section = above;
        if known.keys.iter().any(|key| key == section.trim_end_matches("[]")) {
            let start = format!("{section}.");
            let inside = known.keys.iter().filter_map(|key| key.strip_prefix(&start)).filter(|rest| !rest.contains('.'));
            return format!("in {section} are {}", inside.collect::<Vec<_>>().join(", "));
        }
    }
    let sections = known.keys.iter().filter(|key| !key.contains('.'));
    format!("sections are {}", sections.map(String::as_str).collect::<Vec<_>>().join(", "))
}

/// Each leaf, as shown (`endpoints[1].url`) and as known (`endpoints[].url`).
fn leaves(tree: &Value, shown: &str, path: &str, known: &SettingKeys, keys: &mut Vec<(String, String)>) {
    if known.maps.iter().any(|map| map == path) {
        return;
    }
    let below = |parent: &str, name: &str| if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
    match tree {
        Value::Object(map) if !map.is_empty() => {
            for (name, child) in map {
                leaves(child, &below(shown, name), &below(path, name), known, keys);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (i, child) in list.iter().enumerate() {
                leaves(child, &format!("{shown}[{i}]"), &format!("{path}[]"), known, keys);
            }
        }
        // An element that is no object has no key of its own.
        _ if path.ends_with("[]") => {}
        _ if !path.is_empty() => keys.push((shown.to_owned(), path.to_owned())),
        _ => {}
    }
}
