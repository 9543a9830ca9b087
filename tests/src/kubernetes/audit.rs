//! Requests of service accounts to the API server.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// A request of a service account, as the audit log has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// `namespace/name` of the service account.
    pub account: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// API group, empty for the core.
    pub group: String,
    /// With the subresource: `pods/status`; the path if it is not a resource: `/version`.
    pub resource: String,
    /// Empty for what is in no namespace, and for all namespaces.
    pub namespace: String,
    /// The status code of the answer.
    pub code: u16,
}

/// All different requests so far.
pub fn read(log: &Path) -> Result<BTreeSet<Request>> {
    let text = std::fs::read_to_string(log).with_context(|| format!("reading {}", log.display()))?;
    // The last line may be half written.
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(events.filter_map(|event| request(&event)).collect())
}

fn request(event: &Value) -> Option<Request> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let account = event["user"]["username"].as_str()?.strip_prefix("system:serviceaccount:")?.replacen(':', "/", 1);
    let object = &event["objectRef"];
    let resource = match (object["resource"].as_str(), object["subresource"].as_str()) {
        (Some(resource), Some(subresource)) => format!("{resource}/{subresource}"),
        (Some(resource), None) => resource.to_owned(),
        (None, _) => event["requestURI"].as_str()?.split('?').next()?.to_owned(),
    };
    Some(Request {
        account,
        verb: word(&event["verb"]),
        group: word(&object["apiGroup"]),
        resource,
        namespace: word(&object["namespace"]),
        code: event["responseStatus"]["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_of_the_log_becomes_a_request() {
        let event = json!({
            "verb": "patch", "requestURI": "/apis/apps/v1/namespaces/n/statefulsets/w/status?x=y",
            "user": {"username": "system:serviceaccount:eadt:actuator"},
            "objectRef": {"resource": "statefulsets", "subresource": "status", "apiGroup": "apps", "namespace": "n"},
            "responseStatus": {"code": 200}
        });
        let wanted = Request {
            account: "eadt/actuator".to_owned(),
            verb: "patch".to_owned(),
            group: "apps".to_owned(),
            resource: "statefulsets/status".to_owned(),
            namespace: "n".to_owned(),
            code: 200,
        };
        assert_eq!(request(&event), Some(wanted));
        assert_eq!(request(&json!({"user": {"username": "admin"}})), None);
    }
}
