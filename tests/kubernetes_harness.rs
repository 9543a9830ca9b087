//! The harness itself: a control plane starts, survives restarts of its parts with its data, and goes with its owner; pods do
//! what they are asked.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::{self, Component, Settings};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_mins(1);

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        if begun.elapsed() > WITHIN {
            bail!("not within {} s: {what}", WITHIN.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn stateful_set(name: &str, replicas: u32, gpus: u32, env: &Value, annotations: &Value) -> StatefulSet {
    object(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": annotations},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "train",
                        "image": "example.invalid/train:1",
                        "env": env,
                        "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}
                    }]
                }
            }
        }
    }))
}

async fn ready(sets: &Api<StatefulSet>, name: &str) -> Result<i32> {
    Ok(sets.get(name).await?.status.and_then(|status| status.ready_replicas).unwrap_or(0))
}

fn ready_condition(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    Some(conditions.iter().find(|condition| condition.type_ == "Ready")?.status.as_str())
}

#[tokio::test]
async fn parts_restart_with_their_data_and_leave_nothing_running() -> Result<()> {
    let settings = Settings { controllers: false, ..Settings::default() };
    let kubernetes = Kubernetes::start_with(&settings)?;
    let maps: Api<ConfigMap> = Api::namespaced(kubernetes.client().await?, "default");
    let map: ConfigMap = object(json!({"metadata": {"name": "kept"}, "data": {"a": "b"}}));
    eventually("the namespace default", async || Ok(maps.create(&PostParams::default(), &map).await.ok())).await?;
    for component in [Component::Etcd, Component::ApiServer] {
        let first = kubernetes.part(component).pid();
        kubernetes.kill(component)?;
        assert_eq!(kubernetes.part(component).pid(), None);
        kubernetes.start_again(component)?;
        assert_ne!(kubernetes.part(component).pid(), first);
    }
    kubernetes.stop(Component::ApiServer)?;
    maps.get("kept").await.unwrap_err();
    kubernetes.start_again(Component::ApiServer)?;
    assert_eq!(maps.get("kept").await?.data.unwrap()["a"], "b");

    let pids: Vec<u32> = [Component::Etcd, Component::ApiServer].iter().filter_map(|part| kubernetes.part(*part).pid()).collect();
    assert_eq!(pids.len(), 2);
    let (folder, logs) = (kubernetes.authority().parent().unwrap().to_owned(), kubernetes.logs().to_owned());
    drop(kubernetes);
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} outlives its owner");
    }
    assert!(!folder.exists(), "{} stays behind", folder.display());
    assert!(logs.join("kube-apiserver.log").exists());
    Ok(())
}

#[test]
fn what_ends_by_itself_is_started_again_and_what_was_stopped_is_not() {
    let kubernetes = Kubernetes::start().unwrap();
    let pid = |component| kubernetes.part(component).pid();
    let kwok = pid(Component::Kwok).unwrap();
    kubernetes.kill(Component::Scheduler).unwrap();
    assert!(std::process::Command::new("kill").args(["-9", &kwok.to_string()]).status().unwrap().success());
    let begun = std::time::Instant::now();
    while pid(Component::Kwok).is_none_or(|now| now == kwok) {
        assert!(begun.elapsed() < std::time::Duration::from_mins(2), "kwok stays away");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(pid(Component::Scheduler), None, "it was stopped on purpose");
}

#[test]
fn what_cannot_start_reports_why() {
    let flags = vec!["--no-such-flag".to_owned()];
    let settings = Settings { api_server_flags: flags, controllers: false, ..Settings::default() };
    let error = format!("{:#}", Kubernetes::start_with(&settings).unwrap_err());
    assert!(error.contains("kube-apiserver ended") && error.contains("no-such-flag"), "{error}");
}

#[tokio::test]
async fn pods_with_gpus_run_and_wait_where_gpus_are_short() -> Result<()> {
    let kubernetes = Kubernetes::shared();
    let client = kubernetes.client().await?;
    let namespace = kubernetes.namespace("gpus")?;
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    sets.create(&PostParams::default(), &stateful_set("w", 2, 1, &json!([]), &json!({}))).await?;
    eventually("two ready pods", async || Ok((ready(&sets, "w").await? == 2).then_some(()))).await?;
    // More than a node has.
    sets.create(&PostParams::default(), &stateful_set("large", 1, 9, &json!([]), &json!({}))).await?;
    let why = eventually("a pod that waits for GPUs", async || {
        let pod = pods.get_opt("large-0").await?;
        let conditions = pod.and_then(|pod| pod.status).and_then(|status| status.conditions).unwrap_or_default();
        Ok(conditions.into_iter().find(|condition| condition.type_ == "PodScheduled").and_then(|condition| condition.message))
    })
    .await?;
    assert!(why.contains("Insufficient nvidia.com/gpu"), "{why}");
    Ok(())
}

#[tokio::test]
async fn a_world_is_ready_when_its_pods_agree() -> Result<()> {
    let kubernetes = Kubernetes::shared();
    let client = kubernetes.client().await?;
    let namespace = kubernetes.namespace("worlds")?;
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let size = |size: &str| json!([{"name": "WORLD_SIZE", "value": size}]);
    sets.create(&PostParams::default(), &stateful_set("w", 3, 1, &size("3"), &json!({}))).await?;
    eventually("a ready world", async || Ok((ready(&sets, "w").await? == 3).then_some(()))).await?;

    // A rolling change replaces the last pod, and then nothing becomes ready any more.
    let template = stateful_set("w", 3, 1, &size("6"), &json!({})).spec.unwrap().template;
    let patch = json!({"spec": {"template": template}});
    sets.patch("w", &PatchParams::default(), &Patch::Merge(&patch)).await?;
    eventually("a mixed world", async || {
        let listed = pods.list(&ListParams::default()).await?;
        let mixed = listed.items.len() == 3 && listed.items.iter().all(|pod| ready_condition(pod) != Some("True"));
        Ok(mixed.then_some(()))
    })
    .await?;
    for pod in ["w-0", "w-1"] {
        pods.delete(pod, &kube::api::DeleteParams::default()).await?;
    }
    eventually("a new world", async || Ok((ready(&sets, "w").await? == 3).then_some(()))).await?;
    Ok(())
}

#[tokio::test]
async fn pods_crash_wait_and_take_their_time_as_their_annotations_ask() -> Result<()> {
    let kubernetes = Kubernetes::shared();
    let client = kubernetes.client().await?;
    let namespace = kubernetes.namespace("stages")?;
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let env = |value: &str| json!([{"name": "KNOB", "value": value}]);
    let crash = json!({"test.eadt.dev/crash-when": "KNOB=3"});
    let never = json!({"test.eadt.dev/never-ready-when": "KNOB=3"});
    let slow = json!({"test.eadt.dev/ready-after": "1s"});
    for (name, value, annotations) in
        [("crash", "3", &crash), ("well", "35", &crash), ("never", "3", &never), ("fine", "35", &never), ("slow", "3", &slow)]
    {
        sets.create(&PostParams::default(), &stateful_set(name, 1, 1, &env(value), annotations)).await?;
    }
    let waiting = eventually("a crash loop", async || {
        let pod = pods.get_opt("crash-0").await?.and_then(|pod| pod.status);
        let container = pod.and_then(|status| status.container_statuses).and_then(|list| list.into_iter().next());
        Ok(container.and_then(|container| container.state).and_then(|state| state.waiting).and_then(|waiting| waiting.reason))
    })
    .await?;
    assert_eq!(waiting, "CrashLoopBackOff");
    for name in ["well", "fine", "slow"] {
        eventually(name, async || Ok((ready(&sets, name).await? == 1).then_some(()))).await?;
    }
    let slow = pods.get("slow-0").await?;
    let conditions = slow.status.and_then(|status| status.conditions).unwrap_or_default();
    let since = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind)?.last_transition_time.clone();
    assert!(since("Ready") > since("PodScheduled"), "{conditions:?}");
    let never = pods.get("never-0").await?;
    assert_eq!(never.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Running"));
    assert_eq!(ready_condition(&never), Some("False"));
    Ok(())
}

#[tokio::test]
async fn service_accounts_have_their_roles_and_are_noted() -> Result<()> {
    let kubernetes = Kubernetes::shared();
    let admin = kubernetes.client().await?;
    let namespace = kubernetes.namespace("roles")?;
    let post = PostParams::default();
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), &namespace);
    accounts.create(&post, &object(json!({"metadata": {"name": "reader"}}))).await?;
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
    let role: Role = object(json!({"metadata": {"name": "reader"}, "rules": rules}));
    Api::<Role>::namespaced(admin.clone(), &namespace).create(&post, &role).await?;
    let binding: RoleBinding = object(json!({
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
    }));
    Api::<RoleBinding>::namespaced(admin, &namespace).create(&post, &binding).await?;

    let kubeconfig = kubernetes.service_account(&namespace, "reader")?;
    let maps: Api<ConfigMap> = Api::namespaced(kubernetes::client(&kubeconfig).await?, &namespace);
    eventually("the role in force", async || Ok(maps.get_opt("kube-root-ca.crt").await.ok().flatten())).await?;
    let refused = maps.delete("kube-root-ca.crt", &kube::api::DeleteParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");

    let account = format!("{namespace}/reader");
    let requests = kubernetes.requests()?;
    let own = requests.iter().filter(|request| request.account == account);
    let own: Vec<_> = own.map(|request| (request.verb.as_str(), request.resource.as_str(), request.code)).collect();
    assert!(own.contains(&("get", "configmaps", 200)) && own.contains(&("delete", "configmaps", 403)), "{own:?}");
    Ok(())
}

#[test]
fn kubectl_speaks_to_it() -> Result<()> {
    let kubernetes = Kubernetes::shared();
    let nodes = kubernetes.kubectl(&["get", "nodes", "-o", "name"])?;
    assert_eq!(nodes.lines().count(), 4, "{nodes}");
    let error = format!("{:#}", kubernetes.kubectl(&["get", "nonsense"]).unwrap_err());
    assert!(error.contains("nonsense"), "{error}");
    Ok(())
}
