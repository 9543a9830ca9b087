//! The chart, the plain manifests and the examples on the real API server, strictly.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use eadt_tests::Kubernetes;
use eadt_tests::kubernetes::rights::{Right, granted};
use eadt_tests::kubernetes::{chart, tools};
use serde_json::Value;

/// As the operators bring them, as far as the chart uses them.
const OTHERS: &str = include_str!("control-plane/other-definitions.yaml");
/// The page changes policies.
const CHANGES: &str = "--set=dashboard.changes=true";
const EVERYTHING: [&str; 26] = [
    "--set=agent.enabled=true",
    "--set=dashboard.enabled=true",
    "--set=dashboard.tokensSecretName=eadt-dashboard-tokens",
    "--set=dashboard.settings.hosts={eadt.example.org}",
    CHANGES,
    "--set=exporter.enabled=true",
    "--set=exporter.settings.workloads_max=50",
    "--set=exporter.authoritySecretName=otlp-ca",
    "--set=agent.mps.enabled=true",
    "--set=optimizer.enabled=true",
    "--set=collector.pods.enabled=true",
    "--set=collector.pods.processes=true",
    "--set=collector.progress.enabled=true",
    "--set=collector.progress.certificateSecretName=eadt-progress",
    "--set=collector.progress.tokensSecretName=eadt-progress-tokens",
    "--set=collector.progress.serviceAccounts.enabled=true",
    "--set=serviceMonitor.enabled=true",
    "--set=topics.strimzi.enabled=true",
    "--set=kafka.secretName=kafka",
    "--set=kafka.security.protocol=sasl_ssl",
    "--set=kafka.authoritySecretName=kafka-cluster-ca-cert",
    "--set=kafka.users.processor=eadt-processor",
    "--set=kafka.users.optimizer=eadt-optimizer",
    "--set=kafka.users.agent=eadt-agent",
    "--set=kafka.users.dashboard=eadt-reader",
    "--set=kafka.users.exporter=eadt-reader",
];

/// Jobs report with tokens of their service accounts, and nothing else is switched on.
const ACCOUNTS: [&str; 4] = [
    "--set=agent.enabled=true",
    "--set=collector.progress.enabled=true",
    "--set=collector.progress.certificateSecretName=eadt-progress",
    "--set=collector.progress.serviceAccounts.enabled=true",
];

fn root() -> PathBuf {
    eadt_tests::root().to_owned()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn helm(kubernetes: Option<&Kubernetes>, arguments: &[&str]) -> Output {
    let mut command = Command::new(tools().unwrap().helm);
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    let folder = tempfile::tempdir().unwrap();
    for name in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(name, folder.path());
    }
    if let Some(kubernetes) = kubernetes {
        command.env("KUBECONFIG", kubernetes.admin_kubeconfig());
    }
    command.output().unwrap()
}

fn objects(manifests: &str) -> Vec<Value> {
    let documents = manifests.split("\n---").map(str::trim).filter(|text| !text.is_empty());
    let objects = documents.map(|text| serde_saphyr::from_str::<Value>(text).unwrap_or_else(|error| panic!("{error}\n{text}")));
    objects.filter(serde_json::Value::is_object).collect()
}

fn cluster() -> &'static Kubernetes {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let kubernetes = Kubernetes::shared();
    ONCE.call_once(|| {
        kubernetes.define(OTHERS).unwrap();
        kubernetes.define(&text("deploy/crds/energypolicies.yaml")).unwrap();
        for namespace in ["eadt", "eadt-monitoring"] {
            kubernetes.kubectl(&["create", "namespace", namespace]).unwrap();
        }
    });
    kubernetes
}

#[test]
fn the_plain_manifests_are_the_charts() {
    let found = text("deploy/manifests/eadt.yaml");
    assert!(
        found == chart::manifests().unwrap(),
        "deploy/manifests/eadt.yaml is out of date: cargo run -p eadt-tests --bin manifests"
    );
}

#[test]
fn everything_is_accepted_strictly() {
    let kubernetes = cluster();
    let dry = |path: &Path| {
        let path = path.to_str().unwrap();
        let what = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-n", "eadt", "-f", path];
        kubernetes.kubectl(&what).unwrap_or_else(|error| panic!("{path}: {error:#}"))
    };
    let everything = chart::template(&EVERYTHING).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &everything).unwrap();
    let accepted = dry(file.path());
    assert_eq!(accepted.lines().count(), objects(&everything).len(), "{accepted}");
    for kind in ["daemonset", "statefulset", "networkpolicy", "poddisruptionbudget", "servicemonitor", "kafkatopic", "job"] {
        assert!(accepted.contains(kind), "no {kind} in\n{accepted}");
    }
    let elsewhere =
        ["--set=archiver.storage.size=", "--set=archiver.location=s3://bucket/archive", "--set=optimizer.enabled=true"];
    let others = chart::template(&[&elsewhere[..], &["--set=actuator.onlyNamespace=eadt"]].concat()).unwrap();
    std::fs::write(file.path(), others).unwrap();
    assert!(dry(file.path()).contains("statefulset.apps/eadt-optimizer"));
    for example in ["deploy/examples/training.yaml", "deploy/examples/training-with-progress.yaml", "deploy/examples/policy.yaml"]
    {
        dry(&root().join(example));
    }
    std::fs::write(file.path(), chart::template(&ACCOUNTS).unwrap()).unwrap();
    assert!(dry(file.path()).contains("eadt-collector-reviews"));
    let page = text("docs/operate/collector.md");
    let shown = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    std::fs::write(file.path(), shown.replace("namespace: team-a", "namespace: eadt")).unwrap();
    assert!(shown.contains("serviceAccountToken") && dry(file.path()).contains("pod/llm-training"), "{shown}");
    let users = dry(&root().join("deploy/kafka/acls"));
    let files = std::fs::read_dir(root().join("deploy/kafka/acls")).unwrap().count();
    assert_eq!(users.lines().filter(|line| line.starts_with("kafkauser.kafka.strimzi.io/eadt-")).count(), files, "{users}");
    let kustomized = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-k"];
    for (folder, objects) in [("deploy/manifests", None), ("deploy/monitoring", Some(10))] {
        let path = root().join(folder);
        let accepted = kubernetes.kubectl(&[&kustomized[..], &[path.to_str().unwrap()]].concat()).unwrap();
        assert!(objects.is_none_or(|count| accepted.lines().count() == count), "{folder}: {accepted}");
    }

    std::fs::write(file.path(), everything.replace("serviceName:", "servceName:")).unwrap();
    let errors = format!(
        "{:#}",
        kubernetes.kubectl(&["apply", "--dry-run=server", "--validate=strict", "-f", file.path().to_str().unwrap()]).unwrap_err()
    );
    assert!(errors.contains("servceName"), "the check bites: {errors}");
}

#[test]
fn the_chart_is_clean_and_its_values_are_checked() {
    let linted = helm(None, &["lint", "--strict", "deploy/helm/eadt"]);
    assert!(linted.status.success(), "{}", String::from_utf8_lossy(&linted.stdout));
    for (wrong, field) in [
        ("kafka.brokers=nowhere", "brokers"),
        ("processor.replicas=0", "replicas"),
        ("processor.controller=magic", "controller"),
        ("processr.replicas=1", "processr"),
        ("agent.stateDirectory=here", "stateDirectory"),
        ("collector.pods.socketDirectory=here", "socketDirectory"),
        ("optimizer.enabled=true,archiver.enabled=false", "no archive to learn from"),
        ("collector.progress.enabled=true", "certificateSecretName"),
        ("collector.progress.enabled=true,collector.progress.certificateSecretName=c", "tokensSecretName"),
        ("collector.progress.serviceAccounts.audience=", "audience"),
        ("dashboard.enabled=true", "dashboard.tokensSecretName"),
    ] {
        let refused = chart::template(&[&format!("--set={wrong}")]).unwrap_err().to_string();
        assert!(refused.contains(field), "{wrong}: {refused}");
    }
    let values: Value = serde_saphyr::from_str(&text("deploy/helm/eadt/values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&text("deploy/helm/eadt/values.schema.json")).unwrap();
    let mut undescribed = vec![];
    describe("", &values, &schema, &mut undescribed);
    assert!(undescribed.is_empty(), "values without a description: {undescribed:?}");
}

fn describe(at: &str, values: &Value, schema: &Value, undescribed: &mut Vec<String>) {
    for (name, value) in values.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        let Some(field) = schema["properties"].get(name) else {
            undescribed.push(at);
            continue;
        };
        if field["description"].as_str().is_none_or(str::is_empty) {
            undescribed.push(at.clone());
        }
        if field.get("properties").is_some() && name != "resources" {
            describe(&at, value, field, undescribed);
        }
    }
}

#[test]
fn every_pod_is_locked_down() {
    assert_eq!(locked_down(&[], false, false), [""; 0], "nobody is root unless it is switched on");
    assert_eq!(locked_down(&["--set=agent.enabled=true"], false, false), ["eadt-agent"]);
    assert_eq!(locked_down(&ACCOUNTS, false, true), ["eadt-agent"]);
    assert_eq!(locked_down(&EVERYTHING, true, true), ["eadt-agent", "eadt-collector"]);
}

/// `asks`: the collector asks which pods hold GPUs, and the agent may change MPS defaults. `reviews`: the collector asks whose tokens are.
/// Who runs as root.
fn locked_down(flags: &[&str], asks: bool, reviews: bool) -> Vec<String> {
    let (mut seen, mut rooted) = (0, BTreeSet::new());
    for object in objects(&chart::template(flags).unwrap()) {
        let kind = object["kind"].as_str().unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let spec = if kind == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
        let Some(containers) = spec["containers"].as_array() else { continue };
        let agent = name == "eadt-agent";
        let asking = asks && name == "eadt-collector";
        let root = agent || asking;
        assert_eq!(spec["hostPID"] == true, asking, "{name}: sees the node's processes");
        assert_eq!(spec["hostIPC"] == true, agent && asks, "{name}: speaks with MPS daemons");
        let pod = &spec["securityContext"];
        if pod["runAsUser"].as_u64().is_none_or(|user| user == 0) {
            rooted.insert(name.to_owned());
        }
        assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault", "{name}");
        assert_eq!(pod["runAsNonRoot"] == true && pod["runAsUser"].as_u64() > Some(0), !root, "{name}: root");
        let speaks = spec["automountServiceAccountToken"] == true;
        let reviewing = reviews && name == "eadt-collector";
        let changing = name == "eadt-dashboard" && flags.contains(&CHANGES);
        assert_eq!(speaks, name == "eadt-actuator" || asking || reviewing || changing, "{name}: speaks to the API server");
        assert!(
            kind != "StatefulSet" && kind != "DaemonSet" || spec["serviceAccountName"] == name,
            "{name} has an account of its own"
        );
        for container in containers {
            let security = &container["securityContext"];
            assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(security["capabilities"]["drop"][0], "ALL", "{name}");
            let added = agent.then(|| serde_json::json!(["SYS_ADMIN"]));
            assert_eq!(security["capabilities"].get("add"), added.as_ref(), "{name}");
            assert!(security.get("runAsUser").is_none(), "{name}: the pod sets as whom");
            assert!(security.get("privileged").is_none(), "{name}");
            assert!(container["resources"]["requests"]["memory"].is_string(), "{name}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
            if ["StatefulSet", "DaemonSet", "Deployment"].contains(&kind) {
                for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                    let port = &container[probe]["httpGet"]["port"];
                    assert!(port.is_string() && *port == container["ports"][0]["name"], "{name} has no {probe}");
                }
            }
        }
        let paths: Vec<_> =
            spec["volumes"].as_array().into_iter().flatten().filter_map(|v| v["hostPath"]["path"].as_str()).collect();
        assert_eq!(!paths.is_empty(), root, "{name}: has a folder of the node: {paths:?}");
        let mounts = spec["containers"][0]["volumeMounts"].as_array().into_iter().flatten();
        let writable = mounts.filter(|mount| mount["readOnly"] != true).count();
        assert!(!asking || writable == 0, "{name} reads the folder only");
        seen += 1;
    }
    let readers = ["--set=exporter.enabled=true", "--set=dashboard.enabled=true"];
    let switched_on = usize::from(rooted.contains("eadt-agent")) + readers.iter().filter(|flag| flags.contains(flag)).count();
    assert_eq!(seen, 6 + switched_on, "four services, the topics or the optimizer, the test, and what is switched on");
    rooted.into_iter().collect()
}

/// Roles and bindings of the page.
fn chart_roles_of_page(flags: &[&str]) -> Vec<Value> {
    let of_page = |object: &Value| object["metadata"]["labels"]["app.kubernetes.io/component"] == "dashboard";
    let found = objects(&chart::template(flags).unwrap());
    found.into_iter().filter(|object| object["kind"].as_str().unwrap().contains("Role") && of_page(object)).collect()
}

#[test]
fn a_page_that_changes_policies_may_pause_every_kind_that_the_actuator_changes() {
    let reading = ["--set=dashboard.enabled=true", "--set=dashboard.tokensSecretName=tokens"];
    let changing = [reading[0], reading[1], CHANGES];
    assert!(chart_roles_of_page(&reading).is_empty(), "it only reads");
    let roles = chart_roles_of_page(&changing);
    let kinds = |roles: &[Value]| roles.iter().map(|role| role["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let [wide, bound] = ["ClusterRole", "ClusterRoleBinding"];
    assert_eq!(kinds(&roles), [wide, wide, bound, bound]);
    let narrow = [changing[0], changing[1], changing[2], "--set=actuator.onlyNamespace=team-a"];
    let narrow = chart_roles_of_page(&narrow);
    assert_eq!(kinds(&narrow), [wide, bound, "Role", "RoleBinding"], "where the actuator looks, and nowhere else");
    assert_eq!(
        (&narrow[2]["metadata"]["namespace"], &narrow[0]["rules"][0]["verbs"]),
        (&"team-a".into(), &serde_json::json!(["get"]))
    );
    let rules = |text: &str| -> BTreeMap<String, BTreeSet<String>> {
        let rules: Vec<Value> = serde_saphyr::from_str(text).unwrap();
        let mut verbs = BTreeMap::<String, BTreeSet<String>>::new();
        let words =
            |value: &Value| value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>();
        for rule in &rules {
            for resource in words(&rule["resources"]) {
                verbs.entry(format!("{}/{resource}", words(&rule["apiGroups"])[0])).or_default().extend(words(&rule["verbs"]));
            }
        }
        verbs
    };
    let page = rules(&text("deploy/helm/eadt/files/dashboard-rules.yaml"));
    let actuator = rules(&text("deploy/helm/eadt/files/actuator-rules.yaml"));
    let patched = |rules: &BTreeMap<String, BTreeSet<String>>| -> BTreeSet<String> {
        let patched = rules.iter().filter(|(name, verbs)| verbs.contains("patch") && !name.starts_with("eadt.dev/"));
        patched.map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(patched(&page), patched(&actuator));
    let verbs: BTreeSet<_> = page.values().flatten().map(String::as_str).collect();
    assert_eq!(verbs, BTreeSet::from(["get", "list", "patch"]), "it makes and deletes nothing");
    let objects = objects(&chart::template(&changing).unwrap());
    let part = objects.iter().find(|o| o["kind"] == "Deployment" && o["metadata"]["name"] == "eadt-dashboard").unwrap();
    assert_eq!(part["spec"]["template"]["spec"]["containers"][0]["args"], serde_json::json!(["dashboard", "--kubernetes"]));
}

#[test]
fn every_port_that_a_part_opens_is_let_in_and_has_a_name() {
    let objects = objects(&chart::template(&EVERYTHING).unwrap());
    let of = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    let names = |ports: &Value, field: &str| -> BTreeSet<String> {
        ports.as_array().into_iter().flatten().map(|port| port[field].as_str().unwrap().to_owned()).collect()
    };
    let selects = |selector: &Value, pod: &Value| {
        selector.as_object().unwrap().iter().all(|(name, value)| pod["metadata"]["labels"][name] == *value)
    };
    let mut opened = BTreeMap::new();
    for part in of("StatefulSet").chain(of("DaemonSet")).chain(of("Deployment")) {
        let (name, pod) = (part["metadata"]["name"].as_str().unwrap(), &part["spec"]["template"]);
        let mut own = BTreeSet::new();
        for container in pod["spec"]["containers"].as_array().unwrap() {
            own.extend(names(&container["ports"], "name"));
        }
        let mut led = BTreeSet::new();
        for service in of("Service").filter(|service| selects(&service["spec"]["selector"], pod)) {
            led.extend(names(&service["spec"]["ports"], "targetPort"));
        }
        assert_eq!(own, led, "{name}: what it opens, and where services lead");
        let mut let_in = BTreeSet::new();
        for policy in of("NetworkPolicy").filter(|policy| selects(&policy["spec"]["podSelector"]["matchLabels"], pod)) {
            for rule in policy["spec"]["ingress"].as_array().unwrap() {
                assert!(!rule["from"].as_array().unwrap().is_empty(), "{name}: from whom");
                let_in.extend(names(&rule["ports"], "port"));
            }
        }
        assert_eq!(own, let_in, "{name}: what it opens, and what is let in");
        opened.insert(name, own);
    }
    assert!(opened["eadt-collector"].contains("progress"), "{opened:?}");

    // The collector's settings match its port, its files and its folders.
    let collector = of("DaemonSet").find(|part| part["metadata"]["name"] == "eadt-collector").unwrap();
    let container = &collector["spec"]["template"]["spec"]["containers"][0];
    let setting = |name: &str| {
        let variables = container["env"].as_array().unwrap().iter();
        let mut found = variables.filter(|variable| variable["name"] == format!("EADT_COLLECTOR__PROGRESS__{name}"));
        found.next().unwrap()["value"].as_str().unwrap().to_owned()
    };
    let port = container["ports"].as_array().unwrap().iter().find(|port| port["name"] == "progress").unwrap();
    assert_eq!(setting("LISTEN"), format!("0.0.0.0:{}", port["containerPort"]));
    let mounts: BTreeSet<&str> =
        container["volumeMounts"].as_array().unwrap().iter().map(|mount| mount["mountPath"].as_str().unwrap()).collect();
    for (file, name) in [("CERTIFICATE", "tls.crt"), ("KEY", "tls.key"), ("TOKENS_FILE", "tokens.json")] {
        let path = setting(file);
        let (folder, last) = path.rsplit_once('/').unwrap();
        assert!(last == name && mounts.contains(folder), "{path}");
    }
    assert_eq!((setting("SERVICE_ACCOUNTS__ENABLED"), setting("SERVICE_ACCOUNTS__AUDIENCE")), ("true".into(), "eadt".into()));
}

#[test]
fn the_collector_may_review_tokens_where_service_accounts_report_and_only_there() {
    // Role bindings of the collector's account, and whether it may leave its pod for the API server.
    let of = |flags: &[&str]| {
        let objects = objects(&chart::template(flags).unwrap());
        let named = |kind: &str, name: &str| {
            let mut found = objects.iter().filter(|object| object["kind"] == kind && object["metadata"]["name"] == name);
            let one = found.next().unwrap_or_else(|| panic!("no {kind} {name}"));
            assert!(found.next().is_none(), "two of {kind} {name}");
            one
        };
        let mut rights = BTreeSet::new();
        for binding in
            objects.iter().filter(|object| ["ClusterRoleBinding", "RoleBinding"].contains(&object["kind"].as_str().unwrap()))
        {
            if binding["subjects"].as_array().unwrap().iter().any(|subject| subject["name"] == "eadt-collector") {
                let role = named(binding["roleRef"]["kind"].as_str().unwrap(), binding["roleRef"]["name"].as_str().unwrap());
                rights.extend(granted(&role["rules"].to_string()));
            }
        }
        let policy = named("NetworkPolicy", "eadt-collector");
        let leaves = policy["spec"]["egress"]
            .as_array()
            .unwrap()
            .iter()
            .any(|rule| rule["ports"].as_array().is_some_and(|ports| ports.iter().any(|port| port["port"] == 6443)));
        let volumes = &named("DaemonSet", "eadt-collector")["spec"]["template"]["spec"]["volumes"];
        let tokens = volumes.as_array().unwrap().iter().any(|volume| volume["name"] == "progress-tokens");
        (rights, leaves, tokens)
    };
    let reviews = || granted(&text("deploy/helm/eadt/files/collector-review-rules.yaml"));
    let pods = granted(&text("deploy/helm/eadt/files/collector-rules.yaml"));
    assert_eq!(reviews(), BTreeSet::from([("authentication.k8s.io", "tokenreviews", "create")].map(own)));
    assert_eq!(of(&[]), (BTreeSet::new(), false, false));
    assert_eq!(of(&ACCOUNTS), (reviews(), true, false));
    assert_eq!(of(&["--set=collector.progress.serviceAccounts.enabled=true"]), (BTreeSet::new(), false, false), "nobody reports");
    assert_eq!(of(&["--set=collector.pods.enabled=true"]), (pods.clone(), true, false));
    assert_eq!(of(&EVERYTHING), (&pods | &reviews(), true, true));
}

fn own((group, resource, verb): (&str, &str, &str)) -> Right {
    (group.to_owned(), resource.to_owned(), verb.to_owned())
}

#[test]
fn the_manifests_beside_the_chart_fit_it() {
    let objects = objects(&chart::template(&EVERYTHING).unwrap());
    let ports: BTreeMap<&str, u64> = objects
        .iter()
        .filter(|object| object["kind"] == "Service" && object["spec"]["ports"][0]["name"] == "metrics")
        .map(|service| (service["metadata"]["name"].as_str().unwrap(), service["spec"]["ports"][0]["port"].as_u64().unwrap()))
        .collect();
    let scraped: Value = serde_saphyr::from_str(&text("deploy/monitoring/prometheus.yml")).unwrap();
    let mut found = BTreeMap::new();
    for job in scraped["scrape_configs"].as_array().unwrap() {
        for discovery in job["dns_sd_configs"].as_array().into_iter().flatten() {
            for name in discovery["names"].as_array().unwrap() {
                if let Some(service) = name.as_str().unwrap().strip_suffix(".eadt.svc") {
                    found.insert(service.to_owned(), discovery["port"].as_u64().unwrap());
                }
            }
        }
    }
    let expected: BTreeMap<String, u64> = ports.into_iter().map(|(name, port)| (name.to_owned(), port)).collect();
    assert_eq!(found, expected, "every service is scraped, at its port");
    let provider = "deploy/grafana/provisioning/dashboards/eadt.yml";
    assert_eq!(text("deploy/monitoring/dashboards.yml"), text(provider));
    let compose = text("docker-compose.yml");
    for part in ["prometheus", "grafana"] {
        let manifest = text(&format!("deploy/monitoring/{part}.yaml"));
        let image = manifest.lines().find_map(|line| line.trim().strip_prefix("image: ")).unwrap();
        assert!(compose.contains(image), "{image} is not that of docker-compose.yml");
    }
}

#[test]
fn the_chart_is_installed_and_leaves_nothing_behind() {
    let kubernetes = cluster();
    let namespace = kubernetes.namespace("install").unwrap();
    kubernetes
        .apply(&namespace, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia}\nhandler: nvidia\n")
        .unwrap();
    let run = |arguments: &[&str]| {
        let output = helm(Some(kubernetes), &[arguments, &["-n", &namespace]].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    // No provisioner here would give the archiver a volume.
    let settings = [
        "--set=agent.enabled=true",
        "--set=optimizer.enabled=true",
        "--set=archiver.storage.size=",
        "--set=archiver.location=s3://bucket/archive",
        "--set=exporter.enabled=true",
        "--set=dashboard.enabled=true",
        "--set=dashboard.tokensSecretName=tokens",
    ];
    kubernetes
        .kubectl(&["create", "secret", "generic", "tokens", "-n", &namespace, "--from-literal=tokens=0123456789abcdef"])
        .unwrap();
    let notes =
        run(&[&["install", "eadt", "deploy/helm/eadt", "--skip-crds", "--wait", "--timeout=180s"], &settings[..]].concat());
    assert!(notes.contains("changes nothing yet") && notes.contains("eadt policy explain"), "{notes}");
    assert!(notes.contains("svc/eadt-dashboard 9580"), "{notes}");
    let ready = kubernetes.kubectl(&["get", "sts,ds,deploy", "-n", &namespace, "-o", "name"]).unwrap();
    assert_eq!(ready.lines().count(), 8, "{ready}");
    run(&[&["upgrade", "eadt", "deploy/helm/eadt", "--skip-crds", "--set=processor.replicas=3"], &settings[..]].concat());
    run(&["uninstall", "eadt", "--wait", "--timeout=180s"]);
    let left = kubernetes
        .kubectl(&[
            "get",
            "sts,ds,deploy,svc,cm,sa,netpol,pdb,role,rolebinding",
            "-n",
            &namespace,
            "-l",
            "app.kubernetes.io/name=eadt",
            "-o",
            "name",
        ])
        .unwrap();
    assert_eq!(left, "");
    let roles = kubernetes
        .kubectl(&["get", "clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/instance=eadt", "-o", "name"])
        .unwrap();
    assert!(!roles.contains(&namespace), "{roles}");
}
