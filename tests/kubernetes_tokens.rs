//! Jobs report with tokens of their service accounts: the real program asks a real API server whose they are, with exactly the
//! rights that the chart grants for it.

use crate::support;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use eadt_kubernetes::api::reviews::TokenReviews;
use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::rights::{Right, granted};
use eadt_tests::kubernetes::{Component, Settings};
use serde_json::{Value, json};
use support::ingest::{Ingest, PAUSE, V1, certificate, create, progress, secret};

const NAME: &str = "eadt-collector";
const RULES: &str = include_str!("../deploy/helm/eadt/files/collector-review-rules.yaml");
/// The API server remembers what it found for ten seconds, too.
const WITHIN: Duration = Duration::from_mins(2);

struct Cluster(Kubernetes);

impl Cluster {
    /// Keys, etcd and the API server, which is all that accounts and tokens need.
    fn start() -> Self {
        Self(Kubernetes::start_with(&Settings { controllers: false, ..Settings::default() }).unwrap())
    }

    /// A namespace with an account.
    fn namespace(&self, prefix: &str, account: &str) -> String {
        let namespace = self.0.namespace(prefix).unwrap();
        self.0.apply(&namespace, &format!("apiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: {account}}}\n")).unwrap();
        namespace
    }

    /// As a kubelet asks for the token of a projected volume.
    fn token(&self, namespace: &str, more: &[&str]) -> String {
        let made = self.0.kubectl(&[&["create", "token", "train", "-n", namespace], more].concat()).unwrap();
        made.trim().to_owned()
    }

    /// Binds the collector's account to what the chart grants.
    fn bind(&self, namespace: &str) {
        let api = "apiVersion: rbac.authorization.k8s.io/v1";
        let manifests = [
            format!("{api}\nkind: ClusterRole\nmetadata: {{name: {NAME}-reviews}}\nrules:\n{RULES}"),
            format!(
                "{api}\nkind: ClusterRoleBinding\nmetadata: {{name: {NAME}-reviews}}\n\
                 roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {NAME}-reviews}}\n\
                 subjects: [{{kind: ServiceAccount, name: {NAME}, namespace: {namespace}}}]\n"
            ),
        ];
        self.0.apply(namespace, &manifests.join("---\n")).unwrap();
    }
}

/// The same token with something else in its payload, so that the signature is of another one.
fn forged(token: &str, name: &str, value: Value) -> String {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let parts: Vec<&str> = token.split('.').collect();
    let mut payload: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
    payload[name] = value;
    format!("{}.{}.{}", parts[0], URL_SAFE_NO_PAD.encode(payload.to_string()), parts[2])
}

#[test]
fn a_service_account_reports_for_its_own_namespace_as_long_as_the_api_server_knows_it() {
    let cluster = Cluster::start();
    let kubernetes = &cluster.0;
    let (team_a, team_b) = (cluster.namespace("team-a", "train"), cluster.namespace("team-b", "train"));
    let own = cluster.namespace("eadt", NAME);
    let kubeconfig = kubernetes.service_account(&own, NAME).unwrap();
    let eadt = ["--audience=eadt", "--duration=1h"];
    let (a, b) = (cluster.token(&team_a, &eadt), cluster.token(&team_b, &eadt));

    let dir = tempfile::tempdir().unwrap();
    let trusted = certificate(dir.path());
    let (_, of_file) = create(dir.path(), &["--namespace", "team-c"]);
    let more = [("SERVICE_ACCOUNTS__ENABLED", "true"), ("SERVICE_ACCOUNTS__REMEMBER_SECONDS", "2")];
    let mut ingest = Ingest::start_with(dir, &more, |command| {
        command.env("KUBECONFIG", &kubeconfig);
    });
    assert!(ingest.stderr.so_far.last().unwrap().contains("service_accounts=true"), "{:?}", ingest.stderr.so_far.last());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let once = |token: &str, path: &str, body: &str| runtime.block_on(ingest.post(&trusted, Some(token), path, body));
    // The API server of a busy machine may not answer in time, which is reported, and another time it does.
    let unchecked = |status: u16, answer: &Value| {
        status == 503 && answer["error"].as_str().is_some_and(|error| error.contains("cannot be checked now"))
    };
    let until_checked = |token: &str, path: &str, body: &str| {
        let begun = Instant::now();
        loop {
            let (status, answer) = once(token, path, body);
            if !unchecked(status, &answer) || begun.elapsed() > WITHIN {
                return (status, answer);
            }
            std::thread::sleep(PAUSE);
        }
    };
    let post = |token: &str, workload: &str| until_checked(token, V1, &progress(workload));
    let eventually = |what: &str, token: &str, workload: &str, status: u16, meanwhile: u16| {
        let begun = Instant::now();
        loop {
            let (got, answer) = once(token, V1, &progress(workload));
            if got == status {
                return answer;
            }
            assert!((got == meanwhile || unchecked(got, &answer)) && begun.elapsed() < WITHIN, "{what}: {got}: {answer}");
            std::thread::sleep(PAUSE);
        }
    };
    let (of_a, of_b) = (format!("{team_a}/x"), format!("{team_b}/x"));

    // Without the right to ask, no token can be accepted.
    let (status, answer) = once(&a, V1, &progress(&of_a));
    assert!(status == 503 && answer["error"].as_str().unwrap().contains("cannot be checked now"), "{status}: {answer}");
    assert_eq!(post(&of_file, "team-c/x").0, 202);
    cluster.bind(&own);
    eventually("the right is in force", &a, &of_a, 202, 503);

    assert_eq!(post(&b, &of_b).0, 202);
    let (status, answer) = post(&a, &of_b);
    assert_eq!((status, &answer["field"]), (403, &json!("workload")), "{answer}");
    assert!(answer["error"].as_str().unwrap().contains(&format!("system:serviceaccount:{team_a}:train")), "{answer}");
    let trainer = |namespace: &str| format!("/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/j/status");
    let update = r#"{"trainerStatus":{"progressPercentage":0}}"#;
    let update = |namespace: &str| until_checked(&a, &trainer(namespace), update).0;
    assert_eq!((update(&team_a), update(&team_b)), (200, 403));

    // For another audience, of another issuer, or no token.
    let (api_servers, vaults) = (cluster.token(&team_a, &[]), cluster.token(&team_a, &["--audience=vault"]));
    let both = cluster.token(&team_a, &["--audience=vault", "--audience=eadt"]);
    assert_eq!(post(&both, &of_a).0, 202);
    let claimed = [
        forged(&b, "sub", json!(format!("system:serviceaccount:{team_a}:train"))),
        forged(&vaults, "aud", json!(["eadt"])),
        forged(&a, "exp", json!(4_000_000_000_u64)),
        format!("{}.{}", a.rsplit_once('.').unwrap().0, b.rsplit_once('.').unwrap().1),
    ];
    let worthless =
        [api_servers.as_str(), &vaults, "garbage", "a.b.c", "", &a[1..], &a[..a.len() - 6], &of_file[..of_file.len() - 1]];
    for bad in claimed.iter().map(String::as_str).chain(worthless) {
        let (status, answer) = post(bad, &of_a);
        assert!(status == 401, "{bad}: {status}: {answer}");
    }
    // The API server refuses it, too, if the token's own claims are not looked at.
    runtime.block_on(async {
        let reviews = TokenReviews::new(kubernetes.client().await.unwrap());
        for (token, audience, found) in [
            (&vaults, "eadt", false),
            (&vaults, "vault", true),
            (&api_servers, "eadt", false),
            (&a, "eadt", true),
            (&a, "vault", false),
        ] {
            let begun = Instant::now();
            let bearer = loop {
                match reviews.review(token, audience).await {
                    Ok(bearer) => break bearer,
                    Err(error) => assert!(begun.elapsed() < WITHIN, "{error}"),
                }
                tokio::time::sleep(PAUSE).await;
            };
            let seen = bearer.map(|bearer| (bearer.user, bearer.audiences));
            let whose = || (format!("system:serviceaccount:{team_a}:train"), vec![audience.to_owned()]);
            assert_eq!(seen, found.then(whose), "{audience}");
        }
    });

    // A token of a pod ends with the pod, all of an account with the account.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0"},
        "spec": {"serviceAccountName": "train", "containers": [{"name": "train", "image": "example.invalid/train:1"}]}
    });
    kubernetes.apply(&team_b, &pod.to_string()).unwrap();
    let of_pod = cluster.token(&team_b, &["--audience=eadt", "--bound-object-kind=Pod", "--bound-object-name=train-0"]);
    assert_eq!(post(&of_pod, &of_b).0, 202);
    kubernetes.kubectl(&["delete", "pod", "train-0", "-n", &team_b, "--force", "--grace-period=0"]).unwrap();
    eventually("the pod is gone", &of_pod, &of_b, 401, 202);
    kubernetes.kubectl(&["delete", "serviceaccount", "train", "-n", &team_a]).unwrap();
    for token in [&a, &both] {
        eventually("the account is gone", token, &of_a, 401, 202);
    }
    assert_eq!(post(&b, &of_b).0, 202, "the other one is still there");

    // Without an API server: remembered tokens, tokens of the file, and no others.
    let new = cluster.token(&team_b, &eadt);
    kubernetes.kill(Component::ApiServer).unwrap();
    let answer = eventually("what was remembered is over", &b, &of_b, 503, 202);
    assert!(answer["error"].as_str().unwrap().contains("the API server does not answer"), "{answer}");
    assert_eq!(once(&new, V1, &progress(&of_b)).0, 503);
    assert_eq!(post(&of_file, "team-c/x").0, 202);
    assert_eq!(post("garbage", &of_b).0, 401);
    kubernetes.start_again(Component::ApiServer).unwrap();
    for token in [&b, &new] {
        eventually("the API server is back", token, &of_b, 202, 503);
    }

    support::signal(&ingest.child.0, "-INT");
    assert!(ingest.child.0.wait().unwrap().success());
    ingest.stderr.drain();
    let logged = ingest.stderr.so_far.join("\n");
    assert!(logged.contains("tokens of service accounts cannot be checked") && logged.contains("checked again"), "{logged}");
    assert!(logged.contains("verb create for tokenreviews"), "what was missing: {logged}");
    assert!(logged.contains("/apis/authentication.k8s.io/v1/tokenreviews"), "the client logs all it has");
    let collectors: Value = serde_json::from_slice(&std::fs::read(&kubeconfig).unwrap()).unwrap();
    let collectors = collectors["users"][0]["user"]["token"].as_str().unwrap();
    for token in [&a, &b, &both, &vaults, &api_servers, &of_pod, &new].map(String::as_str).into_iter().chain([collectors]) {
        let (signed, signature) = token.rsplit_once('.').unwrap();
        assert!(!logged.contains(signature) && !logged.contains(signed.rsplit_once('.').unwrap().1), "a token is in the logs");
    }
    assert!(!logged.contains(secret(&of_file)), "a secret is in the logs");

    let account = format!("{own}/{NAME}");
    let requests: Vec<_> = kubernetes.requests().unwrap().into_iter().filter(|request| request.account == account).collect();
    let right = |request: &eadt_tests::kubernetes::audit::Request| -> Right {
        (request.group.clone(), request.resource.clone(), request.verb.clone())
    };
    let used: BTreeSet<Right> = requests.iter().filter(|request| request.code < 300).map(right).collect();
    assert_eq!(granted(RULES), used, "granted, and used");
    let asked: BTreeSet<Right> = requests.iter().map(right).collect();
    assert_eq!(asked, used, "not granted, but asked for");
}
