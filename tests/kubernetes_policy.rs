//! Tests `EnergyPolicy` on the real API server: refusals and their messages, defaults, and the view of users.

use std::sync::Once;

use anyhow::Result;
use eadt_kubernetes::policy::{
    self, ConditionStatus, ConditionType, EnergyPolicy, EnergyPolicyStatus, PolicyMode, RestartBudget, set_condition,
};
use eadt_schemas::EventTime;
use eadt_tests::Kubernetes;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// The control plane with the definition in force.
fn kubernetes() -> &'static Kubernetes {
    static ONCE: Once = Once::new();
    let kubernetes = Kubernetes::shared();
    ONCE.call_once(|| {
        kubernetes.define(&policy::crd_yaml()).unwrap();
    });
    kubernetes
}

fn manifest(name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "metadata": {"name": name},
        "spec": {"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm"}},
    });
    for (key, value) in spec.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    object
}

#[test]
fn the_schema_is_structural_and_in_force() -> Result<()> {
    let kubernetes = kubernetes();
    let conditions =
        kubernetes.kubectl(&["get", "crd", "energypolicies.eadt.dev", "-o", "jsonpath={.status.conditions[*].type}"])?;
    let types: Vec<_> = conditions.split_whitespace().collect();
    assert!(types.contains(&"Established") && types.contains(&"NamesAccepted"), "{types:?}");
    assert!(!types.contains(&"NonStructuralSchema"), "{types:?}");
    let explained = kubernetes.kubectl(&["explain", "epol.spec.bounds.powerLimitWatts"])?;
    assert!(explained.contains("Power cap of a GPU"), "{explained}");
    Ok(())
}

#[test]
fn the_short_name_is_nobody_elses() -> Result<()> {
    // `ep` is that of Endpoints, which kubectl prefers; a second `ep` makes kubectl warn every user of it.
    let listed = kubernetes().kubectl(&["api-resources", "--no-headers"])?;
    let own = policy::crd_definition().spec.names.short_names.unwrap_or_default();
    assert!(!own.is_empty());
    for name in own {
        let users: Vec<_> = listed
            .lines()
            .filter(|line| line.split_whitespace().nth(1).is_some_and(|names| names.split(',').any(|n| n == name)))
            .collect();
        assert!(users.len() == 1 && users[0].starts_with("energypolicies"), "{name}: {users:?}");
    }
    Ok(())
}

#[test]
fn a_wrong_policy_is_refused_with_its_field() -> Result<()> {
    let kubernetes = kubernetes();
    let namespace = kubernetes.namespace("wrong")?;
    let bounds = json!({"replicas": {"max": 9}});
    let mut failures = vec![];
    for (spec, field, why) in [
        (json!({"updateMode": "Enforce"}), "spec.bounds", "Enforce needs bounds"),
        (json!({"updateMode": "Enforce", "bounds": {}}), "spec.bounds", "Enforce needs bounds"),
        (json!({"updateMode": "Enforce", "bounds": {"replicas": null}}), "spec.bounds", "Enforce needs bounds"),
        (json!({"updateMode": "Enforce", "mpsDefaultThreadPercentage": null}), "spec.bounds", "Enforce needs bounds"),
        (
            json!({"updateMode": "Enforce", "bounds": {"maxOversubscriptionPercentage": 150}}),
            "spec.bounds",
            "Enforce needs bounds",
        ),
        (json!({"updateMode": "Enforce", "bounds": bounds, "knobs": ["PowerLimit"]}), "spec.knobs", "bounds.powerLimitWatts"),
        (json!({"updateMode": "Enforce", "bounds": bounds, "knobs": ["Clocks"]}), "spec.knobs", "bounds.smClockMegahertz"),
        (
            json!({"updateMode": "Enforce", "bounds": bounds, "knobs": ["MpsThreadPercentage"]}),
            "spec.knobs",
            "bounds.mpsThreadPercentage",
        ),
        (
            json!({"updateMode": "Enforce", "bounds": {"powerLimitWatts": {"min": 200}}, "knobs": ["Replicas"]}),
            "spec.knobs",
            "bounds.replicas",
        ),
        (json!({"updateMode": "Enforce", "bounds": bounds, "knobs": ["Precision"]}), "spec.knobs", "bounds.precisions"),
        (
            json!({"updateMode": "Enforce", "bounds": bounds, "knobs": ["FrozenLayers"]}),
            "spec.knobs",
            "bounds.maxFrozenPrefixLayers",
        ),
        (json!({"bounds": {"precisions": []}}), "spec.bounds.precisions", "at least 1"),
        (json!({"bounds": {"precisions": ["bf16", "bf16"]}}), "spec.bounds.precisions", "duplicate"),
        (json!({"bounds": {"precisions": ["fp8"]}}), "spec.bounds.precisions[0]", "supported values"),
        (json!({"bounds": {"maxFrozenPrefixLayers": 0}}), "spec.bounds.maxFrozenPrefixLayers", "greater than or equal to 1"),
        (json!({"mpsDefaultThreadPercentage": 101}), "spec.mpsDefaultThreadPercentage", "less than or equal to 100"),
        (
            json!({"mpsDefaultThreadPercentage": 40, "bounds": {"mpsThreadPercentage": {"max": 50}}}),
            "spec.mpsDefaultThreadPercentage",
            "needs a max that is not greater than mpsDefaultThreadPercentage",
        ),
        (
            json!({"mpsDefaultThreadPercentage": 40, "bounds": {"mpsThreadPercentage": {"min": 20}}}),
            "spec.mpsDefaultThreadPercentage",
            "needs a max that is not greater than mpsDefaultThreadPercentage",
        ),
        (json!({"updateMode": "Auto"}), "spec.updateMode", "supported values"),
        (json!({"bounds": {"replicas": {"min": 9, "max": 3}}}), "spec.bounds.replicas.min", "min must not be greater than max"),
        (
            json!({"bounds": {"powerLimitWatts": {"min": 400.5, "max": 400}}}),
            "spec.bounds.powerLimitWatts.min",
            "greater than max",
        ),
        (json!({"bounds": {"replicas": {}}}), "spec.bounds.replicas", "name min, max or both"),
        (json!({"bounds": {"replicas": {"min": 0}}}), "spec.bounds.replicas.min", "greater than or equal to 1"),
        (
            json!({"bounds": {"mpsThreadPercentage": {"min": 0}}}),
            "spec.bounds.mpsThreadPercentage.min",
            "greater than or equal to 1",
        ),
        (
            json!({"bounds": {"mpsThreadPercentage": {"max": 101}}}),
            "spec.bounds.mpsThreadPercentage.max",
            "less than or equal to 100",
        ),
        (json!({"bounds": {"mpsThreadPercentage": {"max": "50%"}}}), "spec.bounds.mpsThreadPercentage.max", "expected numeric"),
        (json!({"bounds": {"maxOversubscriptionPercentage": 99}}), "spec.bounds.maxOversubscriptionPercentage", "100"),
        (json!({"bounds": {"replica": {"max": 9}}}), "spec.bounds.replica", "not declared in schema"),
        (json!({"knobs": ["Fans"]}), "spec.knobs[0]", "supported values"),
        (json!({"knobs": ["Clocks", "Clocks"]}), "spec.knobs", "duplicate"),
        (json!({"controller": {"name": "magic"}}), "spec.controller.name", "supported values"),
        (json!({"objective": {"minimize": "Time"}}), "spec.objective.minimize", "supported values"),
        (json!({"objective": {"maxSlowdownPercent": 95}}), "spec.objective.maxSlowdownPercent", "less than or equal to 90"),
        (json!({"cooldown": "soon"}), "spec.cooldown", "should match"),
        (json!({"restartBudget": {"perDay": 1001}}), "spec.restartBudget.perDay", "less than or equal to 1000"),
        (json!({"schedule": {"restartWindows": []}}), "spec.schedule.restartWindows", "at least 1"),
        (
            json!({"schedule": {"restartWindows": [{"start": "24:00", "end": "06:00"}]}}),
            "spec.schedule.restartWindows[0].start",
            "should match",
        ),
        (
            json!({"schedule": {"restartWindows": [{"days": ["Someday"], "start": "22:00", "end": "06:00"}]}}),
            "spec.schedule.restartWindows[0].days[0]",
            "supported values",
        ),
        (json!({"priceAndCarbon": {"carbonGramsPerKilowattHour": -1}}), "spec.priceAndCarbon.carbonGramsPerKilowattHour", "0"),
        (json!({"training": {"globalBatchSize": 0}}), "spec.training.globalBatchSize", "greater than or equal to 1"),
        (json!({"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet"}}), "spec.targetRef.name", "Required value"),
        (json!({"targetRef": {"apiVersion": "apps/v1", "kind": "", "name": "w"}}), "spec.targetRef.kind", "at least 1"),
    ] {
        let refused = kubernetes.apply(&namespace, &manifest("p", &spec).to_string());
        match refused {
            Ok(done) => failures.push(format!("{spec} was accepted: {done}")),
            Err(error) => {
                let message = error.to_string();
                if !message.contains(field) || !message.to_lowercase().contains(&why.to_lowercase()) {
                    failures.push(format!("{spec}: {field:?} and {why:?} should be in the message, not: {message}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

#[test]
fn a_policy_that_is_too_large_is_refused_with_its_field() -> Result<()> {
    let kubernetes = kubernetes();
    let namespace = kubernetes.namespace("large")?;
    let text = "x".repeat(100_000);
    let window = json!({"start": "22:00", "end": "06:00"});
    let named = |number: usize| (0..number).map(|i| (format!("setting_{i}"), json!(i))).collect::<serde_json::Map<_, _>>();
    let target = |field: &str| {
        let mut target = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "llm"});
        target[field] = json!(text);
        json!({"targetRef": target})
    };
    for (spec, field, why) in [
        (target("apiVersion"), "spec.targetRef.apiVersion", "may not be more than 253"),
        (target("kind"), "spec.targetRef.kind", "may not be more than 63"),
        (target("name"), "spec.targetRef.name", "may not be more than 253"),
        (json!({"cooldown": text}), "spec.cooldown", "may not be more than 32"),
        (json!({"training": {"backend": text}}), "spec.training.backend", "may not be more than 63"),
        (
            json!({"schedule": {"timeZone": text, "restartWindows": [window]}}),
            "spec.schedule.timeZone",
            "may not be more than 64",
        ),
        (
            json!({"schedule": {"restartWindows": vec![window; 5000]}}),
            "spec.schedule.restartWindows",
            "must have at most 64 items",
        ),
        (json!({"knobs": vec!["Clocks"; 5000]}), "spec.knobs", "must have at most 6 items"),
        (json!({"bounds": {"precisions": vec!["bf16"; 5000]}}), "spec.bounds.precisions", "must have at most 4 items"),
        (json!({"controller": {"settings": named(5000)}}), "spec.controller.settings", "must have at most 64"),
        (
            json!({"controller": {"settings": {"seek_windows": text}}}),
            "spec.controller.settings.seek_windows",
            "may not be more than 64",
        ),
        (
            json!({"controller": {"settings": {"seek_windows": [text]}}}),
            "spec.controller.settings.seek_windows",
            "must have at most 0",
        ),
        (
            json!({"controller": {"settings": {"seek_windows": {"a": text}}}}),
            "spec.controller.settings.seek_windows",
            "must have at most 0",
        ),
    ] {
        // Made on the server: what kubectl keeps of it in an annotation has a limit of its own.
        let file = tempfile::Builder::new().suffix(".json").tempfile()?;
        std::fs::write(file.path(), manifest("p", &spec).to_string())?;
        let made = kubernetes.kubectl(&["-n", &namespace, "create", "-f", file.path().to_str().unwrap_or_default()]);
        let message = made.expect_err(field).to_string().to_lowercase();
        let start = &message[..message.len().min(2000)];
        assert!(
            message.contains(&field.to_lowercase()) && message.contains(why),
            "{field:?} and {why:?} should be in the message, not: {start}"
        );
    }
    // Written settings stay possible.
    let settings = json!({"controller": {"name": "hybrid", "settings": {"seek_windows": 4, "max_slowdown_ratio": 0.05}}});
    kubernetes.apply(&namespace, &manifest("p", &settings).to_string())?;
    Ok(())
}

#[tokio::test]
async fn defaults_are_filled_in_and_the_target_stays() -> Result<()> {
    let kubernetes = kubernetes();
    let namespace = kubernetes.namespace("defaults")?;
    let policies: Api<EnergyPolicy> = Api::namespaced(kubernetes.client().await?, &namespace);
    kubernetes.apply(
        &namespace,
        &manifest("p", &json!({"schedule": {"restartWindows": [{"start": "22:00", "end": "06:00"}]}})).to_string(),
    )?;
    let made = policies.get("p").await?;
    assert_eq!((made.spec.update_mode, made.spec.cooldown.as_str()), (PolicyMode::Recommend, "5m"));
    assert_eq!(made.spec.restart_budget, RestartBudget { per_day: 8 });
    assert_eq!(made.spec.schedule.as_ref().map(|schedule| schedule.time_zone.as_str()), Some("UTC"));
    let stored = kubernetes.kubectl(&[
        "get",
        "epol",
        "p",
        "-n",
        &namespace,
        "-o",
        "jsonpath={.spec.updateMode} {.spec.restartBudget.perDay}",
    ])?;
    assert_eq!(stored, "Recommend 8", "the API server fills them in, not the reader");

    let other = json!({"targetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "other"}});
    let message = kubernetes.apply(&namespace, &manifest("p", &other).to_string()).unwrap_err().to_string();
    assert!(message.contains("spec.targetRef") && message.contains("delete the policy and create another one"), "{message}");
    kubernetes.apply(&namespace, &manifest("p", &json!({"updateMode": "Observe"})).to_string())?;
    Ok(())
}

#[tokio::test]
async fn the_status_is_its_own_and_shows_in_columns() -> Result<()> {
    let kubernetes = kubernetes();
    let namespace = kubernetes.namespace("status")?;
    let policies: Api<EnergyPolicy> = Api::namespaced(kubernetes.client().await?, &namespace);
    // An author of the specification cannot write the status.
    let mut sneaky = manifest("p", &json!({}));
    sneaky["status"] = json!({"effect": {"summary": "99 %"}});
    policies.create(&PostParams::default(), &serde_json::from_value(sneaky)?).await?;
    assert_eq!(policies.get("p").await?.status, None);

    let now: EventTime = "2026-01-02T03:04:05.000000Z".parse()?;
    let mut status: EnergyPolicyStatus = serde_json::from_value(json!({
        "observedGeneration": 1,
        "current": {"settings": {"replicas": 6, "mpsThreadPercentage": 50}, "joulesPerSample": 1.25, "origin": "simulated"},
        "recommendation": {
            "decisionId": "d-60", "time": now, "expires": now, "summary": "threads 50 % → 40 %",
            "reason": "it draws much and gets little done", "restarts": true,
            "from": {"mpsThreadPercentage": 50}, "to": {"mpsThreadPercentage": 40},
        },
        "effect": {"summary": "12.3 % (simulated)", "savingPercent": 12.3},
    }))?;
    for kind in ConditionType::ALL {
        set_condition(&mut status.conditions, kind, ConditionStatus::True, "Tested", "as a test", Some(1), now);
    }
    let patch = json!({"apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "status": status});
    policies.patch_status("p", &PatchParams::apply("eadt-actuator").force(), &Patch::Apply(&patch)).await?;
    let written = policies.get("p").await?;
    assert_eq!(written.status, Some(status));
    assert_eq!(written.metadata.generation, Some(1), "a status is no new generation");

    let shown = kubernetes.kubectl(&["get", "epol", "-n", &namespace, "-o", "wide"])?;
    let mut lines = shown.lines();
    let head: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
    let columns = ["NAME", "TARGET", "MODE", "J/SAMPLE", "RECOMMENDATION", "SAVING", "AGE", "READY", "KIND", "CONTROLLER"];
    assert_eq!(head, columns);
    let row = lines.next().unwrap_or_default();
    for cell in ["p ", "llm", "Recommend", "1.25", "threads 50 % → 40 %", "12.3 % (simulated)", "True", "StatefulSet"] {
        assert!(row.contains(cell), "{cell:?} is not in {row:?}");
    }
    assert!(
        kubernetes.kubectl(&["get", "eadt", "-n", &namespace, "-o", "name"])?.contains("energypolicy.eadt.dev/p"),
        "category"
    );

    // Conditions merge by type: another writer's own is kept.
    let ours = json!({"type": "Audited", "status": "True", "reason": "Tested", "message": "", "lastTransitionTime": now});
    let more = json!({"apiVersion": "eadt.dev/v1alpha1", "kind": "EnergyPolicy", "status": {"conditions": [ours]}});
    policies.patch_status("p", &PatchParams::apply("somebody"), &Patch::Apply(&more)).await?;
    let conditions = policies.get("p").await?.status.unwrap_or_default().conditions;
    assert_eq!(conditions.len(), ConditionType::ALL.len() + 1);

    let odd = json!({"type": "Ready", "status": "Maybe", "reason": "Tested", "message": "", "lastTransitionTime": now});
    let wrong = json!({"status": {"conditions": [odd]}});
    let message = policies.patch_status("p", &PatchParams::default(), &Patch::Merge(&wrong)).await.unwrap_err().to_string();
    assert!(message.contains("status.conditions[0].status") && message.contains("Unsupported value"), "{message}");
    Ok(())
}
