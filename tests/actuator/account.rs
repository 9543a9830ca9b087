//! The actuator's service account, with exactly what the chart grants.

use std::time::{Duration, Instant};

use eadt_kubernetes::policy::EnergyPolicy;
use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::{chart, client};
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::Value;
use tokio::runtime::Runtime;

pub const NAME: &str = "eadt-actuator";
/// Rules that the chart grants in the namespaces that it manages.
pub const RULES: &str = include_str!("../../deploy/helm/eadt/files/actuator-rules.yaml");
/// Rules that it grants outside of namespaces.
pub const CLUSTER_RULES: &str = include_str!("../../deploy/helm/eadt/files/actuator-cluster-rules.yaml");
/// Rules that it grants in its own namespace.
pub const LEASE_RULES: &str = include_str!("../../deploy/helm/eadt/files/actuator-lease-rules.yaml");

/// Rules that the chart grants to a page that changes policies.
const PAGE_RULES: &str = include_str!("../../deploy/helm/eadt/files/dashboard-rules.yaml");
const PAGE_CLUSTER_RULES: &str = include_str!("../../deploy/helm/eadt/files/dashboard-cluster-rules.yaml");

/// The account of the page, with what the chart grants.
pub fn page_account(kubernetes: &Kubernetes, runtime: &Runtime, namespace: &str) -> Client {
    const PAGE: &str = "eadt-dashboard";
    let api = "apiVersion: rbac.authorization.k8s.io/v1";
    let name = format!("{PAGE}-{namespace}");
    let manifests = [
        format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {PAGE}}}\n"),
        format!("{api}\nkind: ClusterRole\nmetadata: {{name: {name}}}\nrules:\n{PAGE_RULES}{PAGE_CLUSTER_RULES}"),
        format!(
            "{api}\nkind: ClusterRoleBinding\nmetadata: {{name: {name}}}\nroleRef: {{apiGroup: rbac.authorization.k8s.io, kind: \
             ClusterRole, name: {name}}}\nsubjects: [{{kind: ServiceAccount, name: {PAGE}, namespace: {namespace}}}]\n"
        ),
    ];
    kubernetes.apply(namespace, &manifests.join("---\n")).unwrap();
    client_of(kubernetes, runtime, namespace, PAGE)
}

/// The account and its rights as the chart makes them by default, in all namespaces, but for the namespace of the account itself.
pub fn account_of_chart(kubernetes: &Kubernetes, runtime: &Runtime, namespace: &str) -> Client {
    let kinds = ["ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"];
    let mut manifests = String::new();
    for document in chart::template(&[]).unwrap().split("\n---") {
        let Ok(mut object) = serde_saphyr::from_str::<Value>(document) else { continue };
        let part = &object["metadata"]["labels"]["app.kubernetes.io/component"];
        if part != "actuator" || !kinds.iter().any(|kind| object["kind"] == *kind) {
            continue;
        }
        if object["metadata"]["namespace"].is_string() {
            object["metadata"]["namespace"] = namespace.into();
        }
        for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
            subject["namespace"] = namespace.into();
        }
        manifests.extend(["---\n", &object.to_string(), "\n"]);
    }
    kubernetes.apply(namespace, &manifests).unwrap();
    client_of(kubernetes, runtime, namespace, NAME)
}

/// Makes the account in a namespace of its own, and waits until its rights are in force.
pub fn account(kubernetes: &Kubernetes, runtime: &Runtime, namespace: &str) -> Client {
    let subject = format!("subjects: [{{kind: ServiceAccount, name: {NAME}, namespace: {namespace}}}]");
    let api = "apiVersion: rbac.authorization.k8s.io/v1";
    let reference =
        |kind: &str, name: &str| format!("roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {kind}, name: {name}}}");
    let cluster = format!("{NAME}-{namespace}");
    let manifests = [
        format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {NAME}}}\n"),
        format!("{api}\nkind: Role\nmetadata: {{name: {NAME}}}\nrules:\n{RULES}{LEASE_RULES}"),
        format!("{api}\nkind: RoleBinding\nmetadata: {{name: {NAME}}}\n{}\n{subject}\n", reference("Role", NAME)),
        format!("{api}\nkind: ClusterRole\nmetadata: {{name: {cluster}}}\nrules:\n{CLUSTER_RULES}"),
        format!(
            "{api}\nkind: ClusterRoleBinding\nmetadata: {{name: {cluster}}}\n{}\n{subject}\n",
            reference("ClusterRole", &cluster)
        ),
    ];
    kubernetes.apply(namespace, &manifests.join("---\n")).unwrap();
    client_of(kubernetes, runtime, namespace, NAME)
}

/// Waits until the rights of an account are in force.
fn client_of(kubernetes: &Kubernetes, runtime: &Runtime, namespace: &str, name: &str) -> Client {
    let kubeconfig = kubernetes.service_account(namespace, name).unwrap();
    runtime.block_on(async {
        let client = client(&kubeconfig).await.unwrap();
        let policies: Api<EnergyPolicy> = Api::namespaced(client.clone(), namespace);
        let begun = Instant::now();
        while let Err(error) = policies.list(&ListParams::default()).await {
            assert!(begun.elapsed() < Duration::from_mins(1), "the account has no rights: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        client
    })
}
