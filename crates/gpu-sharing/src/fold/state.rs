//! Writes and reads the stage's state of a commit, beside that of the other stages in partition 0 of the state topic.

use eadt_core::state::{GPU_SHARING_PREFIX, from_json, json};
use eadt_core::{StateError, StateRecord};

use super::GpuSharingFold;

const MEMBER: &str = "#gpu//member//";
const DEVICE: &str = "#gpu//device//";
const MODEL: &str = "#gpu//model//";

/// Returns the records of everything that changed since the last call.
pub fn take_changes(stage: &mut GpuSharingFold) -> Vec<StateRecord> {
    let mut records = vec![StateRecord { key: GPU_SHARING_PREFIX.to_owned(), value: Some(json(&stage.head)) }];
    for name in std::mem::take(&mut stage.changed_models) {
        let value = stage.models.event(&name).map(json);
        records.push(StateRecord { key: format!("{MODEL}{name}"), value });
    }
    for name in std::mem::take(&mut stage.changed) {
        records.push(StateRecord { key: format!("{MEMBER}{name}"), value: stage.members.get(&name).map(json) });
    }
    for device in std::mem::take(&mut stage.changed_shared) {
        records.push(StateRecord { key: format!("{DEVICE}{device}"), value: stage.shared.get(&device).map(json) });
    }
    records
}

/// Takes in the newest record of each key; those of other stages are passed over.
pub fn restore<K: AsRef<str>, V: AsRef<[u8]>>(
    mut stage: GpuSharingFold,
    records: impl IntoIterator<Item = (K, Option<V>)>,
) -> Result<GpuSharingFold, StateError> {
    for (key, value) in records {
        let (key, Some(value)) = (key.as_ref(), value) else { continue };
        if key == GPU_SHARING_PREFIX {
            stage.head = from_json(key, value.as_ref())?;
        } else if let Some(name) = key.strip_prefix(MEMBER) {
            stage.members.insert(name.to_owned(), from_json(key, value.as_ref())?);
        } else if let Some(device) = key.strip_prefix(DEVICE) {
            stage.shared.insert(device.to_owned(), from_json(key, value.as_ref())?);
        } else if key.starts_with(MODEL) {
            stage.models.put(&from_json(key, value.as_ref())?);
        } else if key.starts_with(GPU_SHARING_PREFIX) {
            return Err(StateError::NewKind { key: key.to_owned() });
        }
    }
    Ok(stage)
}
