//! Records of the state of the joint stage of the power budget: writing and reading them.
//!
//! It lies in the state topic beside the first stage's, in the partition of number 0. No key of a workload begins like these, so
//! that either stage passes over the other's records.

use serde::{Deserialize, Serialize};

use super::{BudgetMember, PowerBudgetFold};
use crate::power_budget::allocation::PowerGrants;
use crate::state::{POWER_BUDGET_PREFIX, StateError, StateRecord, from_json, json};

const MEMBER: &str = "#cluster//member//";
const MODEL: &str = "#cluster//model//";

/// A member and its grants.
#[derive(Serialize)]
struct StoredMemberRef<'a> {
    member: &'a BudgetMember,
    #[serde(skip_serializing_if = "Option::is_none")]
    grants: Option<&'a PowerGrants>,
}

#[derive(Deserialize)]
struct StoredMember {
    member: BudgetMember,
    #[serde(default)]
    grants: PowerGrants,
}

/// Returns the records of everything that changed since the last call.
pub fn take_changes(fold: &mut PowerBudgetFold) -> Vec<StateRecord> {
    let mut records = vec![StateRecord { key: POWER_BUDGET_PREFIX.to_owned(), value: Some(json(&fold.head)) }];
    for name in std::mem::take(&mut fold.changed_models) {
        let value = fold.models.event(&name).map(json);
        records.push(StateRecord { key: format!("{MODEL}{name}"), value });
    }
    for name in std::mem::take(&mut fold.changed) {
        let record = fold.members.get(&name).map(|member| StoredMemberRef { member, grants: fold.grants.grants_of(&name) });
        records.push(StateRecord { key: format!("{MEMBER}{name}"), value: record.as_ref().map(json) });
    }
    records
}

/// Takes in the newest record of each key; those of other stages are passed over.
pub fn restore<K: AsRef<str>, V: AsRef<[u8]>>(
    mut fold: PowerBudgetFold,
    records: impl IntoIterator<Item = (K, Option<V>)>,
) -> Result<PowerBudgetFold, StateError> {
    for (key, value) in records {
        let (key, Some(value)) = (key.as_ref(), value) else { continue };
        if key == POWER_BUDGET_PREFIX {
            fold.head = from_json(key, value.as_ref())?;
        } else if let Some(name) = key.strip_prefix(MEMBER) {
            let StoredMember { member, grants } = from_json(key, value.as_ref())?;
            fold.grants.put(name, grants);
            fold.members.insert(name.to_owned(), member);
        } else if key.starts_with(MODEL) {
            fold.models.put(&from_json(key, value.as_ref())?);
        } else if key.starts_with(POWER_BUDGET_PREFIX) {
            return Err(StateError::NewKind { key: key.to_owned() });
        }
    }
    Ok(fold)
}
