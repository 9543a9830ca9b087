//! Command line of each component.

use std::path::Path;

use super::{Part, Settings};

/// The components in the order of `Component`, none running yet; `dir` has the keys and files that they need.
pub fn parts(program: &Path, settings: &Settings, ports: [u16; 6], dir: &Path, logs: &Path) -> Vec<Part> {
    let [api, etcd, peer, controllers, scheduler, kwok] = ports;
    let path = |name: &str| dir.join(name).display().to_string();
    let etcd_url = format!("http://127.0.0.1:{etcd}");
    let peer_url = format!("http://127.0.0.1:{peer}");
    let etcd_flags = [
        "--name=test".to_owned(),
        format!("--data-dir={}", path("etcd")),
        // The data outlive kill -9, not the machine.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
        format!("--listen-client-urls={etcd_url}"),
        format!("--advertise-client-urls={etcd_url}"),
        format!("--listen-peer-urls={peer_url}"),
        format!("--initial-advertise-peer-urls={peer_url}"),
        format!("--initial-cluster=test={peer_url}"),
    ];
    let mut api_flags = vec![
        format!("--etcd-servers={etcd_url}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={api}"),
        format!("--tls-cert-file={}", path("apiserver.crt")),
        format!("--tls-private-key-file={}", path("apiserver.key")),
        format!("--cert-dir={}", path("")),
        format!("--token-auth-file={}", path("tokens.csv")),
        "--authorization-mode=RBAC".to_owned(),
        "--anonymous-auth=true".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-signing-key-file={}", path("sa.key")),
        format!("--service-account-key-file={}", path("sa.key")),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--enable-priority-and-fairness=false".to_owned(),
        "--profiling=false".to_owned(),
        format!("--audit-policy-file={}", path("audit.yaml")),
        format!("--audit-log-path={}", path("audit.log")),
        "--audit-log-mode=blocking".to_owned(),
    ];
    api_flags.extend(settings.api_server_flags.iter().cloned());
    let controller_flags = [
        format!("--kubeconfig={}", path("controllers.kubeconfig")),
        "--use-service-account-credentials=true".to_owned(),
        "--kube-api-qps=500".to_owned(),
        "--kube-api-burst=1000".to_owned(),
        format!("--service-account-private-key-file={}", path("sa.key")),
        format!("--root-ca-file={}", path("ca.crt")),
        "--leader-elect=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={controllers}"),
        format!("--cert-dir={}", path("controllers")),
        "--profiling=false".to_owned(),
        format!("--flex-volume-plugin-dir={}", path("volumes")),
        "--authentication-skip-lookup=true".to_owned(),
        // Horizontal pod autoscalers act within seconds instead of within minutes.
        "--horizontal-pod-autoscaler-sync-period=1s".to_owned(),
        "--horizontal-pod-autoscaler-downscale-stabilization=1s".to_owned(),
    ];
    let scheduler_flags = [
        format!("--config={}", path("scheduler.yaml")),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={scheduler}"),
        format!("--cert-dir={}", path("scheduler")),
        "--authentication-skip-lookup=true".to_owned(),
    ];
    let kwok_flags = [
        format!("--config={}", path("stages.yaml")),
        format!("--kubeconfig={}", path("kwok.kubeconfig")),
        "--manage-all-nodes=true".to_owned(),
        "--node-lease-duration-seconds=40".to_owned(),
        "--node-ip=127.0.0.1".to_owned(),
        format!("--node-port={kwok}"),
        format!("--server-address=127.0.0.1:{kwok}"),
        "--cidr=10.1.0.1/16".to_owned(),
    ];
    let part = |name: &str, arguments: &[String]| Part::new(program, name, arguments.to_vec(), logs);
    vec![
        part("etcd", &etcd_flags),
        part("kube-apiserver", &api_flags),
        part("kube-controller-manager", &controller_flags),
        part("kube-scheduler", &scheduler_flags),
        part("kwok", &kwok_flags),
    ]
}
