//! Owners of fields by `metadata.managedFields`, and the transfer of fields to another owner. Pure.
//!
//! Applying the same value as another manager only adds a second owner, and the next different value would be a conflict. So a
//! take-over rewrites the list of owners once, as `kubectl` does when it migrates from client-side apply. This changes no value,
//! and nothing is ever forced.

use serde_json::{Map, Value, json};

use crate::objects::kinds::{WorkloadKind, WriteMethod};
use crate::objects::record::{FieldOwner, FormerField, ManagedField, TakeOverRecord};

/// The manager of the fields that EADT turns and of its marks.
pub const MANAGER: &str = "eadt-actuator";
/// The field manager of the record of taken-over fields.
pub const RECORDER: &str = "eadt-takeover";

/// A field that was taken over, and the others who own it by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenBackField {
    pub field: ManagedField,
    pub owners: Vec<FieldOwner>,
}

/// Managers whose entries belong to EADT.
pub fn is_ours(manager: &str) -> bool {
    manager == MANAGER || manager == RECORDER
}

/// Returns the owners of a field other than EADT.
pub fn field_owners(managed_fields: &Value, kind: &WorkloadKind, field: &ManagedField) -> Vec<FieldOwner> {
    let path = managed_path(kind, field);
    let mut owners: Vec<_> = managed_entries(managed_fields)
        .filter(|entry| entry["manager"].as_str().is_some_and(|manager| !is_ours(manager)))
        .filter(|entry| find_field(&entry["fieldsV1"], &path).is_some())
        .filter_map(entry_owner)
        .collect();
    owners.sort();
    owners.dedup();
    owners
}

/// Returns the manager that wrote a field last, by the field's path in the object; `None` if no manager is recorded.
pub fn last_manager(managed_fields: &Value, path: &[&str]) -> Option<String> {
    let path: Vec<_> = path.iter().map(|name| ManagedPathPart::Field((*name).to_owned())).collect();
    let owners = managed_entries(managed_fields).filter(|entry| find_field(&entry["fieldsV1"], &path).is_some());
    // Times of one format and zone: the newest is the last in order of text.
    let last = owners.max_by_key(|entry| entry["time"].as_str().unwrap_or_default().to_owned())?;
    Some(last["manager"].as_str()?.to_owned())
}

/// Returns the taken-over fields that others own by now.
pub fn taken_back(managed_fields: &Value, kind: &WorkloadKind, take_over: &TakeOverRecord) -> Vec<TakenBackField> {
    // For other kinds no write is fenced by owners.
    let fields = take_over.fields.iter().filter(|_| kind.write_method == WriteMethod::ServerSideApply);
    let owned = fields
        .map(|former| TakenBackField { field: former.field.clone(), owners: field_owners(managed_fields, kind, &former.field) });
    owned.filter(|back| !back.owners.is_empty()).collect()
}

/// Returns a text with these fields and their owners; `None` if there are none.
pub fn describe_taken_back(taken_back: &[TakenBackField]) -> Option<String> {
    let one = |TakenBackField { field, owners }: &TakenBackField| {
        let owners: Vec<_> = owners.iter().map(|owner| owner.manager.as_str()).collect();
        format!("{field} (by {})", owners.join(", "))
    };
    let all: Vec<_> = taken_back.iter().map(one).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Returns the fields of a record that are new since the one `before`, which another manager may own by now. Missing fields
/// have no owner.
pub fn fields_to_take(before: Option<&TakeOverRecord>, record: &TakeOverRecord) -> Vec<ManagedField> {
    let known = |field: &ManagedField| before.iter().flat_map(|before| &before.fields).any(|former| former.field == *field);
    let there = record.fields.iter().filter(|former| former.value.is_some() && !known(&former.field));
    there.map(|former| former.field.clone()).collect()
}

/// Returns the list of owners after EADT took these fields over.
pub fn entries_after_take_over(managed_fields: &Value, kind: &WorkloadKind, fields: &[ManagedField], time: &str) -> Value {
    let mut list: Vec<Value> = managed_entries(managed_fields).filter(|entry| entry.is_object()).cloned().collect();
    let mut mine =
        list.iter().find(|entry| is_entry_of(entry, MANAGER, "Apply")).map_or_else(|| json!({}), |e| e["fieldsV1"].clone());
    list.retain(|entry| !is_entry_of(entry, MANAGER, "Apply"));
    for field in fields {
        let path = managed_path(kind, field);
        for entry in &mut list {
            remove_field(&mut entry["fieldsV1"], &path);
        }
        insert_field(&mut mine, &path);
    }
    list.retain(|entry| entry["fieldsV1"].as_object().is_none_or(|fields| !fields.is_empty()));
    list.push(json!({
        "manager": MANAGER, "operation": "Apply", "apiVersion": kind.api_version(), "time": time,
        "fieldsType": "FieldsV1", "fieldsV1": mine,
    }));
    list.into()
}

/// Returns the list of owners after EADT has released everything: the former owners own the fields again.
pub fn entries_after_return(managed_fields: &Value, kind: &WorkloadKind, former: &[FormerField], time: &str) -> Value {
    let mut list: Vec<Value> =
        managed_entries(managed_fields).filter(|entry| !entry["manager"].as_str().is_some_and(is_ours)).cloned().collect();
    for FormerField { field, value, owners } in former {
        // Fields that another manager owns by now stay with it, and missing fields have no owner.
        if value.is_none() || !field_owners(managed_fields, kind, field).is_empty() {
            continue;
        }
        let path = managed_path(kind, field);
        for owner in owners {
            let place = list.iter_mut().position(|entry| is_entry_of(entry, &owner.manager, &owner.operation));
            let place = place.unwrap_or_else(|| {
                list.push(json!({
                    "manager": owner.manager, "operation": owner.operation, "apiVersion": kind.api_version(), "time": time,
                    "fieldsType": "FieldsV1", "fieldsV1": {},
                }));
                list.len() - 1
            });
            insert_field(&mut list[place]["fieldsV1"], &path);
        }
    }
    list.into()
}

fn managed_entries(managed_fields: &Value) -> impl Iterator<Item = &Value> {
    managed_fields.as_array().into_iter().flatten()
}

fn entry_owner(entry: &Value) -> Option<FieldOwner> {
    Some(FieldOwner { manager: entry["manager"].as_str()?.to_owned(), operation: entry["operation"].as_str()?.to_owned() })
}

fn is_entry_of(entry: &Value, manager: &str, operation: &str) -> bool {
    entry["manager"] == manager && entry["operation"] == operation && entry["subresource"].as_str().is_none_or(str::is_empty)
}

/// Returns a field's path in `fieldsV1`. Keys of list items hold JSON, so they are compared as such.
fn managed_path(kind: &WorkloadKind, field: &ManagedField) -> Vec<ManagedPathPart> {
    let name = |name: &str| ManagedPathPart::Field(name.to_owned());
    match field {
        ManagedField::Replicas => kind.scaled.unwrap_or_default().iter().map(|step| name(step)).collect(),
        ManagedField::Variable { template, container, name: variable } => {
            let mut path: Vec<_> = template.split('.').map(name).collect();
            path.extend([name("spec"), name("containers"), ManagedPathPart::Item(container.clone())]);
            path.extend([name("env"), ManagedPathPart::Item(variable.clone()), name("value")]);
            path
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum ManagedPathPart {
    Field(String),
    /// An item of a list that merges by name.
    Item(String),
}

impl ManagedPathPart {
    fn is(&self, key: &str) -> bool {
        match self {
            Self::Field(name) => key.strip_prefix("f:") == Some(name),
            Self::Item(name) => {
                key.strip_prefix("k:").and_then(|key| serde_json::from_str::<Value>(key).ok()) == Some(json!({"name": name}))
            }
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Item(name) => format!("k:{}", json!({"name": name})),
        }
    }
}

fn find_field<'a>(fields: &'a Value, path: &[ManagedPathPart]) -> Option<&'a Value> {
    let Some((first, rest)) = path.split_first() else { return Some(fields) };
    let (_, below) = fields.as_object()?.iter().find(|(key, _)| first.is(key))?;
    find_field(below, rest)
}

/// Removes a field, and the maps on its path that become empty.
fn remove_field(fields: &mut Value, path: &[ManagedPathPart]) {
    let (Some((first, rest)), Some(map)) = (path.split_first(), fields.as_object_mut()) else { return };
    let Some(key) = map.keys().find(|key| first.is(key)).cloned() else { return };
    let below = &mut map[&key];
    remove_field(below, rest);
    // A list item that was owned for this value only: its key and its existence go with it.
    let only_itself = |map: &Map<String, Value>| map.keys().all(|key| key == "." || key == "f:name");
    let empty = match below.as_object() {
        Some(map) if matches!(first, ManagedPathPart::Item(_)) && rest.len() == 1 => only_itself(map),
        Some(map) => map.is_empty() && !rest.is_empty(),
        None => false,
    };
    if rest.is_empty() || empty {
        map.remove(&key);
    }
}

fn insert_field(fields: &mut Value, path: &[ManagedPathPart]) {
    if !fields.is_object() {
        *fields = json!({});
    }
    let (Some((first, rest)), Some(map)) = (path.split_first(), fields.as_object_mut()) else { return };
    let key = map.keys().find(|key| first.is(key)).cloned().unwrap_or_else(|| first.key());
    let below = map.entry(key).or_insert_with(|| json!({}));
    if matches!(first, ManagedPathPart::Item(_)) {
        below["."] = json!({});
        below["f:name"] = json!({});
    }
    insert_field(below, rest);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::object::{MPS_PERCENTAGE, WORLD_SIZE};

    fn kind() -> &'static WorkloadKind {
        WorkloadKind::find("apps/v1", "StatefulSet").unwrap()
    }

    fn variable(name: &str) -> ManagedField {
        ManagedField::Variable { template: "spec.template".into(), container: "train".into(), name: name.into() }
    }

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "apps/v1", "fieldsType": "FieldsV1",
            "time": "2026-01-01T00:00:00Z", "fieldsV1": fields})
    }

    fn variables(names: &[&str]) -> Value {
        let items = names.iter().map(|n| (format!("k:{{\"name\":\"{n}\"}}"), json!({".": {}, "f:name": {}, "f:value": {}})));
        let mut env: Map<String, Value> = items.collect();
        env.insert(".".into(), json!({}));
        json!({"f:spec": {"f:containers": {"k:{\"name\":\"train\"}": {".": {}, "f:name": {}, "f:image": {}, "f:env": env}}}})
    }

    fn managed() -> Value {
        let kubectl = json!({"f:spec": {"f:replicas": {}, "f:template": variables(&["DATA", MPS_PERCENTAGE, WORLD_SIZE])}});
        let mut status = entry("kube-controller-manager", "Update", &json!({"f:status": {"f:replicas": {}}}));
        status["subresource"] = json!("status");
        json!([
            entry("kubectl-client-side-apply", "Update", &kubectl),
            entry("hpa", "Update", &json!({"f:spec": {"f:replicas": {}}})),
            status
        ])
    }

    #[test]
    fn owners_are_found_by_field() {
        let names = |field: &ManagedField| {
            field_owners(&managed(), kind(), field).into_iter().map(|owner| owner.manager).collect::<Vec<_>>()
        };
        assert_eq!(names(&variable(MPS_PERCENTAGE)), ["kubectl-client-side-apply"]);
        assert_eq!(names(&ManagedField::Replicas), ["hpa", "kubectl-client-side-apply"]);
        assert_eq!(names(&variable("OTHER")), Vec::<String>::new());
    }

    #[test]
    fn taking_over_takes_exactly_the_fields_and_returning_gives_them_back() {
        let fields = [ManagedField::Replicas, variable(MPS_PERCENTAGE), variable(WORLD_SIZE)];
        let former: Vec<_> = fields
            .iter()
            .map(|field| FormerField {
                field: field.clone(),
                value: Some("6".into()),
                owners: field_owners(&managed(), kind(), field),
            })
            .collect();
        let after = entries_after_take_over(&managed(), kind(), &fields, "2026-02-02T00:00:00Z");
        for field in &fields {
            assert_eq!(field_owners(&after, kind(), field), [], "{field} has no other owner");
            let mine = managed_entries(&after).find(|entry| is_entry_of(entry, MANAGER, "Apply")).unwrap();
            assert!(find_field(&mine["fieldsV1"], &managed_path(kind(), field)).is_some(), "{field} is EADT's");
        }
        assert_eq!(field_owners(&after, kind(), &variable("DATA"))[0].manager, "kubectl-client-side-apply", "the rest stays");
        assert!(!managed_entries(&after).any(|entry| entry["manager"] == "hpa"), "who owned nothing else is no owner any more");
        assert!(managed_entries(&after).any(|entry| entry["subresource"] == "status"));
        assert_eq!(entries_after_take_over(&after, kind(), &fields, "2026-02-02T00:00:00Z"), after, "once more is no change");

        let back = entries_after_return(&after, kind(), &former, "2026-01-01T00:00:00Z");
        for former in &former {
            assert_eq!(field_owners(&back, kind(), &former.field), former.owners);
        }
        let sorted = |list: &Value| {
            let mut all: Vec<_> = managed_entries(list).map(ToString::to_string).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&back), sorted(&managed()));
    }

    #[test]
    fn what_somebody_took_back_stays_theirs() {
        let former = [FormerField {
            field: ManagedField::Replicas,
            value: Some("6".into()),
            owners: field_owners(&managed(), kind(), &ManagedField::Replicas),
        }];
        let mut after = entries_after_take_over(&managed(), kind(), &[ManagedField::Replicas], "2026-02-02T00:00:00Z");
        after.as_array_mut().unwrap().push(entry("flux", "Apply", &json!({"f:spec": {"f:replicas": {}}})));
        let back = entries_after_return(&after, kind(), &former, "2026-02-02T00:00:00Z");
        assert_eq!(
            field_owners(&back, kind(), &ManagedField::Replicas).into_iter().map(|o| o.manager).collect::<Vec<_>>(),
            ["flux"]
        );
    }

    #[test]
    fn who_took_fields_back_is_found() {
        let fields = [ManagedField::Replicas, variable(MPS_PERCENTAGE)];
        let former = |field: &ManagedField| FormerField { field: field.clone(), value: Some("6".into()), owners: vec![] };
        let record = TakeOverRecord { fields: fields.iter().map(former).collect(), ..TakeOverRecord::default() };
        let mut list = entries_after_take_over(&managed(), kind(), &fields, "2026-02-02T00:00:00Z");
        assert_eq!(taken_back(&list, kind(), &record), []);
        let mut scale = entry("kube-controller-manager", "Update", &json!({"f:spec": {"f:replicas": {}}}));
        scale["subresource"] = json!("scale");
        list.as_array_mut().unwrap().push(scale);
        let owners = vec![FieldOwner { manager: "kube-controller-manager".into(), operation: "Update".into() }];
        assert_eq!(taken_back(&list, kind(), &record), [TakenBackField { field: ManagedField::Replicas, owners }]);
        // A knob that is enabled later takes its own field only.
        let before = TakeOverRecord { fields: vec![former(&ManagedField::Replicas)], ..TakeOverRecord::default() };
        assert_eq!(fields_to_take(Some(&before), &record), [variable(MPS_PERCENTAGE)]);
    }

    #[test]
    fn hostile_lists_do_no_harm() {
        for list in [json!(null), json!("x"), json!([1, {"manager": 3}, {"manager": "m", "fieldsV1": [1]}])] {
            assert_eq!(field_owners(&list, kind(), &ManagedField::Replicas), []);
            let after = entries_after_take_over(&list, kind(), &[ManagedField::Replicas], "2026-02-02T00:00:00Z");
            assert!(managed_entries(&after).any(|entry| is_entry_of(entry, MANAGER, "Apply")));
        }
    }
}
