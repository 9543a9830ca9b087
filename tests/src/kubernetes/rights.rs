//! Rights that roles grant.

use std::collections::BTreeSet;

use serde_json::Value;

/// Group, resource and verb.
pub type Right = (String, String, String);

/// Returns the rights that these rules grant.
pub fn granted(rules: &str) -> BTreeSet<Right> {
    let rules: Value = serde_saphyr::from_str(rules).unwrap();
    let words = |value: &Value| -> Vec<String> {
        value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    for rule in rules.as_array().unwrap() {
        for (group, resource) in
            words(&rule["apiGroups"]).iter().flat_map(|g| words(&rule["resources"]).into_iter().map(move |r| (g.clone(), r)))
        {
            rights.extend(words(&rule["verbs"]).into_iter().map(|verb| (group.clone(), resource.clone(), verb)));
        }
    }
    rights
}
