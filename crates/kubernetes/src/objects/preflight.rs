//! Obstacles to a change that can be known before it is made: quotas and disruption budgets. Pure.
//!
//! Budgets bind evictions, not the controllers that replace pods. They are respected here because they define how many pods may
//! be unavailable at once.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::objects::kinds::{WorkloadKind, values_at};
use crate::objects::rollout::RolloutStrategy;

/// Returns a quantity of Kubernetes: `500m`, `1.5`, `2Gi`, `1e3`.
fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::String(text) => text.trim(),
        Value::Number(number) => return number.as_f64(),
        _ => return None,
    };
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter().zip(1..).map(|(suffix, power)| (suffix, 1024_f64.powi(power)));
    let decimal =
        [("n", 1e-9), ("u", 1e-6), ("m", 1e-3), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15), ("E", 1e18)];
    let scaled =
        binary.chain(decimal).find_map(|(suffix, factor)| Some(text.strip_suffix(suffix)?.parse::<f64>().ok()? * factor));
    scaled.or_else(|| text.parse().ok()).filter(|number| number.is_finite())
}

/// Returns these resources by the names that quotas use. A resource without a request counts with its limit.
fn flatten_resources(resources: &Value) -> BTreeMap<String, f64> {
    let mut requests = BTreeMap::new();
    for (group, name) in [("limits", "requests"), ("limits", "limits"), ("requests", "requests")] {
        for (resource, value) in resources[group].as_object().into_iter().flatten() {
            if let Some(value) = quantity(value) {
                requests.insert(format!("{name}.{resource}"), value);
            }
        }
    }
    requests
}

/// Returns the resources that a pod of this template requests, by the names that quotas use, as Kubernetes adds them up: with
/// init containers and sidecars, or as the pod-level resources.
fn pod_demand(template: &Value) -> BTreeMap<String, f64> {
    let spec = &template["spec"];
    let list = |name: &str| spec[name].as_array().into_iter().flatten();
    let add = |sum: &mut BTreeMap<String, f64>, requests: BTreeMap<String, f64>| {
        for (name, value) in requests {
            *sum.entry(name).or_default() += value;
        }
    };
    let (mut sidecars, mut before) = (BTreeMap::new(), BTreeMap::<String, f64>::new());
    for container in list("initContainers") {
        let own = flatten_resources(&container["resources"]);
        if container["restartPolicy"] == "Always" {
            add(&mut sidecars, own);
            continue;
        }
        // They run one after another, beside the sidecars that were started before them and keep running.
        let mut now = sidecars.clone();
        add(&mut now, own);
        for (name, value) in now {
            let most = before.entry(name).or_default();
            *most = most.max(value);
        }
    }
    let mut sum = sidecars;
    for container in list("containers") {
        add(&mut sum, flatten_resources(&container["resources"]));
    }
    for (name, value) in before {
        let most = sum.entry(name).or_default();
        *most = most.max(value);
    }
    let whole = &spec["resources"];
    for (name, value) in flatten_resources(whole) {
        let only_limited = name.strip_prefix("requests.").is_some_and(|resource| whole["requests"][resource].is_null());
        if only_limited {
            sum.entry(name).or_insert(value);
        } else {
            sum.insert(name, value);
        }
    }
    for resource in ["cpu", "memory"] {
        if let Some(value) = sum.get(&format!("requests.{resource}")).copied() {
            sum.insert(resource.to_owned(), value);
        }
    }
    sum.insert("pods".to_owned(), 1.0);
    sum.insert("count/pods".to_owned(), 1.0);
    sum
}

/// Returns whether a quota counts pods of this template: all its scopes hold for them. A scope that is not known counts none.
fn quota_counts_pod(quota: &Value, template: &Value, requests: &BTreeMap<String, f64>) -> bool {
    let spec = &template["spec"];
    let holds = |scope: &Value, operator: &str, values: &Value| {
        let among = |value: &Value| values.as_array().is_some_and(|values| values.contains(value));
        match scope.as_str()? {
            "Terminating" => Some(!spec["activeDeadlineSeconds"].is_null()),
            "NotTerminating" => Some(spec["activeDeadlineSeconds"].is_null()),
            "BestEffort" => Some(is_best_effort(requests)),
            "NotBestEffort" => Some(!is_best_effort(requests)),
            "PriorityClass" => {
                let class = &spec["priorityClassName"];
                let named = class.as_str().is_some_and(|name| !name.is_empty());
                match operator {
                    "In" => Some(named && among(class)),
                    "NotIn" => Some(!among(class)),
                    "DoesNotExist" => Some(!named),
                    _ => Some(named),
                }
            }
            "CrossNamespacePodAffinity" => Some(reaches_other_namespaces(&spec["affinity"])),
            _ => None,
        }
    };
    let named = quota["spec"]["scopes"].as_array().into_iter().flatten().map(|scope| holds(scope, "Exists", &Value::Null));
    let selected = quota["spec"]["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    let selected = selected.map(|of| holds(&of["scopeName"], of["operator"].as_str().unwrap_or("Exists"), &of["values"]));
    named.chain(selected).all(|holds| holds == Some(true))
}

/// Returns true for the quality of service of pods that request no CPU and no memory. Other resources do not count.
fn is_best_effort(requests: &BTreeMap<String, f64>) -> bool {
    let asks = |name: &&str| requests.get(*name).is_some_and(|value| *value > 0.0);
    !["requests.cpu", "requests.memory", "limits.cpu", "limits.memory"].iter().any(asks)
}

/// Terms of pod affinity that name namespaces, or select them.
fn reaches_other_namespaces(affinity: &Value) -> bool {
    let of = |rules: &Value| {
        let list = |name: &str| rules[name].as_array().cloned().unwrap_or_default();
        let required = list("requiredDuringSchedulingIgnoredDuringExecution");
        let preferred = list("preferredDuringSchedulingIgnoredDuringExecution");
        required.into_iter().chain(preferred.into_iter().map(|weighted| weighted["podAffinityTerm"].clone())).any(|term| {
            term["namespaces"].as_array().is_some_and(|names| !names.is_empty()) || !term["namespaceSelector"].is_null()
        })
    };
    of(&affinity["podAffinity"]) || of(&affinity["podAntiAffinity"])
}

/// Returns the quota that does not allow this many more pods of a template, as text.
fn exceeded_quota(quotas: &[Value], template: &Value, more: u32) -> Option<String> {
    if more == 0 {
        return None;
    }
    let requests = pod_demand(template);
    quotas.iter().filter(|quota| quota_counts_pod(quota, template, &requests)).find_map(|quota| {
        let (hard, used) = (quota["status"]["hard"].as_object()?, &quota["status"]["used"]);
        hard.iter().find_map(|(resource, hard)| {
            let needed = requests.get(resource)? * f64::from(more);
            let (allowed, in_use) = (quantity(hard)?, quantity(&used[resource])?);
            // Sums of decimal fractions are not exact.
            (in_use + needed > allowed * (1.0 + 1e-9)).then(|| {
                let name = quota["metadata"]["name"].as_str().unwrap_or_default();
                let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                format!(
                    "quota {name} allows {} of {resource}, {} are in use, and {more} more pods do not fit",
                    text(hard),
                    text(&used[resource])
                )
            })
        })
    })
}

/// The pods that a change needs or removes in the namespace during its rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutDemand {
    /// Pods that are away at once.
    pub pods_away: u32,
    /// Pods beside those there are.
    pub pods_added: u32,
}

impl RolloutDemand {
    /// Returns the demand of a change with the same number of processes, by how the kind's controller replaces `pods` of them.
    /// Defaults are those of its API.
    pub fn of_rollout(kind: &WorkloadKind, object: &Value, pods: u32) -> Self {
        let spec = &object["spec"];
        match (RolloutStrategy::read(kind, object), kind.kind) {
            (RolloutStrategy::Rolling { .. }, "StatefulSet") => {
                let away = percentage_up(&spec["updateStrategy"]["rollingUpdate"]["maxUnavailable"], pods);
                Self { pods_away: away.unwrap_or(1).clamp(1, pods.max(1)), pods_added: 0 }
            }
            (RolloutStrategy::Rolling { .. }, "Deployment") => {
                let rolling = &spec["strategy"]["rollingUpdate"];
                let away = percentage_down(&rolling["maxUnavailable"], pods).unwrap_or(pods / 4);
                let surge = percentage_up(&rolling["maxSurge"], pods).unwrap_or(pods.div_ceil(4));
                // If no pod may be unavailable, one is added before one is removed; if none may be added either, one is removed
                // first.
                if away == 0 && surge == 0 {
                    Self { pods_away: 1, pods_added: 0 }
                } else {
                    Self { pods_away: away, pods_added: u32::from(away == 0) }
                }
            }
            (RolloutStrategy::Rolling { .. }, _) => {
                let rolling = &spec["rolloutStrategy"]["rollingUpdateConfiguration"];
                let size = kind.group_size.and_then(|place| values_at(object, place).first().and_then(|(_, size)| size.as_u64()));
                let size = u32::try_from(size.unwrap_or(1).max(1)).unwrap_or(u32::MAX);
                let away = percentage_down(&rolling["maxUnavailable"], pods / size).unwrap_or(1).saturating_mul(size);
                Self { pods_away: away, pods_added: if away == 0 { size } else { 0 } }
            }
            _ => Self { pods_away: pods, pods_added: 0 },
        }
    }

    /// Returns the quota or budget that blocks the change, as text. A budget does not block a revert, as it does not block a
    /// rollback; a quota that leaves no room for the pods does.
    pub fn find_obstacle(
        self,
        quotas: &[Value],
        budgets: &[Value],
        template: &Value,
        pods: u32,
        reverts: bool,
    ) -> Option<String> {
        let budget = || exceeded_disruption_budget(budgets, template, self.pods_away, pods);
        exceeded_quota(quotas, template, self.pods_added).or_else(|| if reverts { None } else { budget() })
    }
}

/// Returns the disruption budget that does not allow this many of `pods` pods of a template to be unavailable at once, as text.
fn exceeded_disruption_budget(budgets: &[Value], template: &Value, needed: u32, pods: u32) -> Option<String> {
    let labels = &template["metadata"]["labels"];
    budgets.iter().filter(|budget| label_selector_matches(&budget["spec"]["selector"], labels)).find_map(|budget| {
        let spec = &budget["spec"];
        let away = match (percentage_up(&spec["maxUnavailable"], pods), percentage_up(&spec["minAvailable"], pods)) {
            (Some(away), _) => away,
            (None, Some(stay)) => pods.saturating_sub(stay),
            (None, None) => return None,
        };
        (away < needed).then(|| {
            let name = budget["metadata"]["name"].as_str().unwrap_or_default();
            let would = if needed == pods { "all of them".to_owned() } else { needed.to_string() };
            format!("PodDisruptionBudget {name} lets {away} of {pods} pods be away at once, and {would} would be")
        })
    })
}

/// Returns a number of pods, or a percentage of them, which Kubernetes rounds up.
fn percentage_up(value: &Value, pods: u32) -> Option<u32> {
    number_or_percentage(value, |percent| (u64::from(pods) * percent).div_ceil(100))
}

/// Like [`percentage_up`], rounded down, as Kubernetes does for pods that may be unavailable in a rollout.
fn percentage_down(value: &Value, pods: u32) -> Option<u32> {
    number_or_percentage(value, |percent| u64::from(pods) * percent / 100)
}

fn number_or_percentage(value: &Value, of: impl Fn(u64) -> u64) -> Option<u32> {
    let number = match value {
        Value::Number(number) => number.as_u64()?,
        Value::String(text) => of(text.strip_suffix('%')?.parse().ok()?),
        _ => return None,
    };
    Some(number.try_into().unwrap_or(u32::MAX))
}

/// Returns true if a selector matches these labels; an empty selector matches everything, none nothing.
fn label_selector_matches(selector: &Value, labels: &Value) -> bool {
    let Some(selector) = selector.as_object() else { return false };
    let equal = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let expressions = selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten();
    equal.into_iter().all(|(name, value)| labels[name] == *value)
        && expressions.into_iter().all(|expression| {
            let label = expression["key"].as_str().map_or(&Value::Null, |key| &labels[key]);
            let among = expression["values"].as_array().is_some_and(|values| values.contains(label));
            match expression["operator"].as_str() {
                Some("In") => among,
                Some("NotIn") => !among,
                Some("Exists") => !label.is_null(),
                Some("DoesNotExist") => label.is_null(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template() -> Value {
        json!({
            "metadata": {"labels": {"app": "llm", "team": "a"}},
            "spec": {
                "containers": [
                    {"name": "logs", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}},
                    {"name": "train", "resources": {"limits": {"nvidia.com/gpu": "2", "cpu": 4}}},
                ],
                "initContainers": [{"name": "fetch", "resources": {"requests": {"cpu": "6"}}}],
            },
        })
    }

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, value) in
            [("500m", 0.5), ("1.5", 1.5), ("2Gi", 2.0 * 1024.0 * 1024.0 * 1024.0), ("3k", 3000.0), ("1e3", 1000.0)]
        {
            assert_eq!(quantity(&json!(text)), Some(value), "{text}");
        }
        assert_eq!((quantity(&json!(8)), quantity(&json!("much")), quantity(&Value::Null)), (Some(8.0), None, None));
    }

    #[test]
    fn a_pod_asks_for_what_its_containers_ask_for_together() {
        let asked = pod_demand(&template());
        let expected = [
            ("count/pods", 1.0),
            // The fetching container requests more than the others together.
            ("cpu", 6.0),
            ("limits.cpu", 4.0),
            ("limits.memory", 128.0 * 1024.0 * 1024.0),
            ("limits.nvidia.com/gpu", 2.0),
            ("memory", 64.0 * 1024.0 * 1024.0),
            ("pods", 1.0),
            ("requests.cpu", 6.0),
            ("requests.memory", 64.0 * 1024.0 * 1024.0),
            ("requests.nvidia.com/gpu", 2.0),
        ];
        assert_eq!(asked, expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
    }

    #[test]
    fn what_runs_beside_counts_with_the_others_and_what_the_pod_sets_goes_before() {
        let mut template = template();
        template["spec"]["initContainers"] = json!([
            {"name": "proxy", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
            {"name": "fetch", "resources": {"requests": {"cpu": "4"}}},
        ]);
        let cpu = |template: &Value| pod_demand(template)["requests.cpu"];
        assert_eq!(cpu(&template), 5.25, "1 beside 4.25; 1 beside 4 before that");
        template["spec"]["resources"] = json!({"requests": {"cpu": "8"}, "limits": {"cpu": "10", "memory": "1Gi"}});
        let asked = pod_demand(&template);
        let memory = (asked["requests.memory"], asked["limits.memory"]);
        assert_eq!((cpu(&template), asked["limits.cpu"], asked["requests.nvidia.com/gpu"]), (8.0, 10.0, 2.0));
        assert_eq!(memory, (64.0 * 1024.0 * 1024.0, 1024.0 * 1024.0 * 1024.0), "a request that its containers make counts");
        let whole = json!({"spec": {"containers": [{}], "resources": {"limits": {"memory": "1Gi"}}}});
        assert!(!is_best_effort(&pod_demand(&whole)) && is_best_effort(&pod_demand(&json!({"spec": {"containers": [{}]}}))));
    }

    #[test]
    fn a_quota_that_is_too_small_is_named_with_its_figures() {
        let quota = |resource: &str, hard: &str, used: &str| json!({"metadata": {"name": "team"}, "spec": {}, "status": {"hard": {resource: hard}, "used": {resource: used}}});
        let over = |quota: Value, more| exceeded_quota(&[quota], &template(), more);
        let message = over(quota("requests.nvidia.com/gpu", "16", "12"), 3).unwrap();
        for word in ["quota team", "16", "requests.nvidia.com/gpu", "12", "3 more pods"] {
            assert!(message.contains(word), "{word}: {message}");
        }
        assert_eq!(over(quota("requests.nvidia.com/gpu", "16", "12"), 2), None, "just enough");
        assert_eq!(over(quota("requests.nvidia.com/gpu", "16", "12"), 0), None);
        assert_eq!(over(quota("configmaps", "1", "1"), 3), None, "it asks for none");
        assert!(over(quota("limits.cpu", "5900m", "2"), 1).is_some());
        let uncounted = json!({"metadata": {"name": "new"}, "spec": {"hard": {"pods": "1"}}, "status": {}});
        assert_eq!(over(uncounted, 1), None, "nothing was counted yet");
    }

    #[test]
    fn a_quota_with_scopes_counts_the_pods_for_which_all_hold() {
        let plain = template();
        let mut bounded = template();
        bounded["spec"]["activeDeadlineSeconds"] = json!(3600);
        bounded["spec"]["priorityClassName"] = json!("batch");
        bounded["spec"]["affinity"] = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "namespaceSelector": {}}},
        ]}});
        let effortless = json!({"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "0"}}}]}});
        let counted = |spec: Value| {
            let quota = json!({"spec": spec});
            [&plain, &bounded, &effortless].map(|template| quota_counts_pod(&quota, template, &pod_demand(template)))
        };
        let scopes = |names: &[&str]| counted(json!({"scopes": names}));
        assert_eq!(counted(json!({})), [true, true, true]);
        assert_eq!((scopes(&["Terminating"]), scopes(&["NotTerminating"])), ([false, true, false], [true, false, true]));
        assert_eq!((scopes(&["BestEffort"]), scopes(&["NotBestEffort"])), ([false, false, true], [true, true, false]));
        assert_eq!(
            (scopes(&["PriorityClass"]), scopes(&["CrossNamespacePodAffinity"])),
            ([false, true, false], [false, true, false])
        );
        assert_eq!(scopes(&["NotTerminating", "NotBestEffort"]), [true, false, false]);
        assert_eq!(scopes(&["VolumeAttributesClass"]), [false; 3], "it counts no pods");
        let class = |operator: &str, values: &[&str]| {
            counted(json!({"scopeSelector": {"matchExpressions": [
                {"scopeName": "PriorityClass", "operator": operator, "values": values},
            ]}}))
        };
        assert_eq!((class("In", &["batch"]), class("In", &["high"])), ([false, true, false], [false; 3]));
        assert_eq!((class("NotIn", &["batch"]), class("NotIn", &["high"])), ([true, false, true], [true; 3]));
        assert_eq!((class("Exists", &[]), class("DoesNotExist", &[])), ([false, true, false], [true, false, true]));
    }

    #[test]
    fn a_budget_that_keeps_pods_here_is_named() {
        let budget = |spec: Value| {
            let mut budget = json!({"metadata": {"name": "calm"}, "spec": {"selector": {"matchLabels": {"app": "llm"}}}});
            budget["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            budget
        };
        let over = |budget: Value, pods| exceeded_disruption_budget(&[budget], &template(), pods, pods);
        for (spec, away) in [
            (json!({"maxUnavailable": 1}), 1),
            (json!({"maxUnavailable": "34%"}), 3),
            (json!({"minAvailable": 5}), 1),
            (json!({"minAvailable": "50%"}), 3),
        ] {
            let message = over(budget(spec.clone()), 6).unwrap();
            assert!(message.contains("calm") && message.contains(&format!("lets {away} of 6 pods")), "{spec}: {message}");
        }
        for spec in [json!({"maxUnavailable": 6}), json!({"maxUnavailable": "100%"}), json!({"minAvailable": 0}), json!({})] {
            assert_eq!(over(budget(spec.clone()), 6), None, "{spec}");
        }
        assert_eq!(over(budget(json!({"maxUnavailable": 1, "selector": {"matchLabels": {"app": "other"}}})), 6), None);
    }

    #[test]
    fn a_change_needs_as_many_pods_away_as_its_controller_replaces_at_once() {
        let demand = |kind: &str, spec: Value, pods| {
            let kind = crate::objects::kinds::WORKLOAD_KINDS.iter().find(|known| known.kind == kind).unwrap();
            let RolloutDemand { pods_away: away, pods_added: more } =
                RolloutDemand::of_rollout(kind, &json!({"spec": spec}), pods);
            (away, more)
        };
        let deployment = |unavailable: Value, surge: Value| json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}}});
        for (kind, spec, pods, expected) in [
            ("StatefulSet", json!({}), 6, (1, 0)),
            ("StatefulSet", json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": "40%"}}}), 6, (3, 0)),
            ("Deployment", json!({"strategy": {"type": "Recreate"}}), 6, (6, 0)),
            // A quarter, rounded down, may be away; else one more comes first.
            ("Deployment", json!({}), 6, (1, 0)),
            ("Deployment", json!({}), 3, (0, 1)),
            ("Deployment", deployment(json!("50%"), json!(1)), 5, (2, 0)),
            ("Deployment", deployment(json!(0), json!(2)), 6, (0, 1)),
            ("Deployment", deployment(json!(0), json!(0)), 6, (1, 0)),
            ("PyTorchJob", json!({}), 4, (4, 0)),
            ("MPIJob", json!({}), 4, (4, 0)),
            ("LeaderWorkerSet", json!({"leaderWorkerTemplate": {"size": 3}}), 6, (3, 0)),
            (
                "LeaderWorkerSet",
                json!({
                    "leaderWorkerTemplate": {"size": 3},
                    "rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": 0, "maxSurge": 1}},
                }),
                6,
                (0, 3),
            ),
        ] {
            assert_eq!(demand(kind, spec.clone(), pods), expected, "{kind} {spec}");
        }
        let keeps_all = json!({"metadata": {"name": "calm"}, "spec": {"maxUnavailable": 0, "selector": {}}});
        let message = exceeded_disruption_budget(&[keeps_all], &template(), 1, 6).unwrap();
        assert!(message.contains("lets 0 of 6 pods be away at once, and 1 would be"), "{message}");
    }

    #[test]
    fn a_way_back_is_barred_by_a_quota_only() {
        let quota = json!({
            "metadata": {"name": "team"}, "spec": {},
            "status": {"hard": {"requests.nvidia.com/gpu": "16"}, "used": {"requests.nvidia.com/gpu": "12"}},
        });
        let calm = json!({"metadata": {"name": "calm"}, "spec": {"maxUnavailable": 0, "selector": {}}});
        let barred = |more, reverts| {
            let (quotas, budgets) = (std::slice::from_ref(&quota), std::slice::from_ref(&calm));
            RolloutDemand { pods_away: 6, pods_added: more }
                .find_obstacle(quotas, budgets, &template(), 6, reverts)
                .unwrap_or_default()
        };
        assert!(barred(0, false).contains("PodDisruptionBudget calm") && barred(0, true).is_empty());
        assert!(barred(3, false).contains("quota team") && barred(3, true).contains("quota team"));
    }

    #[test]
    fn selectors_select_as_kubernetes_selectors_do() {
        let labels = json!({"app": "llm", "team": "a"});
        let expression = |key: &str, operator: &str, values: &[&str]| {
            label_selector_matches(&json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}), &labels)
        };
        assert!(label_selector_matches(&json!({}), &labels) && !label_selector_matches(&Value::Null, &labels));
        assert!(expression("team", "In", &["a", "b"]) && !expression("team", "In", &["b"]));
        assert!(
            expression("team", "NotIn", &["b"]) && expression("none", "NotIn", &["b"]) && !expression("team", "NotIn", &["a"])
        );
        assert!(expression("team", "Exists", &[]) && !expression("none", "Exists", &[]));
        assert!(expression("none", "DoesNotExist", &[]) && !expression("team", "DoesNotExist", &[]));
        assert!(!expression("team", "Near", &["a"]));
    }
}
