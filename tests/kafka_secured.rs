//! The program on a secured Apache Kafka: each service with exactly its rights, `eadt doctor`, and no secret in any of its outputs.

use crate::support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use eadt_bus::rights::{AclOperation, AclResource};
use eadt_bus::{Bus, ProducerRecord};
use eadt_nvml::fake::FakeLibrary;
use eadt_schemas::EventTime;
use eadt_schemas::v1::{DeviceIntent, DeviceSetting, Directive};
use eadt_tests::Kubernetes;
use eadt_tests::kafka::secured::{ADMIN, SecuredKafka, password, rights_of_parts};
use serde_json::{Value, json};
use support::budget::with_budget;
use support::ingest::{Certificate, V1, answer, certificate, create, progress, request, secret, tls, tokens};
use support::rollout::{decision, objects, percentage};
use support::{Running, agent_program, eadt, ends, signal, text};

/// The program as a user with a password.
fn as_user(kafka: &SecuredKafka, dir: &Path, user: &str, args: &[&str]) -> Command {
    let mut command = eadt(dir, args);
    identify(&mut command, kafka, user);
    command
}

/// The node agent of these GPUs, as a user with a password.
fn agent_as(kafka: &SecuredKafka, dir: &Path, user: &str, fake: &FakeLibrary) -> Command {
    let mut command = Command::new(agent_program());
    identify(&mut command, kafka, user);
    command
        .env("EADT_AGENT__NODE", "node-1")
        .env("EADT_AGENT__STATE_DIR", dir.join("agent-state"))
        .env("EADT_AGENT__LIBRARY_PATH", fake.library())
        .env("EADT_AGENT__CHECK_SECONDS", "0.1")
        .env("EADT_HTTP__ADDRESS", "127.0.0.1:0")
        .stdin(Stdio::null());
    command
}

fn identify(command: &mut Command, kafka: &SecuredKafka, user: &str) {
    command
        .env("KAFKA_BROKERS", kafka.brokers())
        .env("EADT_BUS__SECURITY__PROTOCOL", "sasl_ssl")
        .env("EADT_BUS__SECURITY__USERNAME", user)
        .env("EADT_BUS__SECURITY__PASSWORD_FILE", kafka.password_file(user).unwrap())
        .env("EADT_BUS__SECURITY__CA_FILE", kafka.authority.ca_file());
}

/// The program as the administrator, who has a certificate.
fn as_admin(kafka: &SecuredKafka, dir: &Path, args: &[&str]) -> Command {
    let (certificate, key) = kafka.authority.sign(ADMIN).unwrap();
    let mut command = eadt(dir, args);
    command
        .env("KAFKA_BROKERS", kafka.ssl_brokers())
        .env("EADT_BUS__SECURITY__PROTOCOL", "ssl")
        .env("EADT_BUS__SECURITY__CA_FILE", kafka.authority.ca_file())
        .env("EADT_BUS__SECURITY__CERTIFICATE_FILE", certificate)
        .env("EADT_BUS__SECURITY__KEY_FILE", key);
    command
}

fn succeeds(command: Command) -> String {
    let shown = format!("{command:?}");
    let (out, err, good) = text(command);
    assert!(good, "{shown}: {out}{err}");
    out
}

fn grant(kafka: &SecuredKafka, dir: &Path, user: &str, parts: &[&str]) {
    let principal = format!("User:{user}");
    let mut args = vec!["topics", "acls"];
    args.extend(parts);
    args.extend(["--grant", &principal]);
    let printed = succeeds(as_admin(kafka, dir, &args));
    assert!(printed.contains(&format!("allowed {principal}: ")), "{printed}");
}

/// Returns the rights of these parts that the user has not needed so far.
fn unneeded(kafka: &SecuredKafka, user: &str, parts: &[&str]) -> Vec<String> {
    let files = rights_of_parts().unwrap();
    let rights = parts.iter().flat_map(|part| files[*part].clone()).collect();
    kafka.unneeded(user, &rights).unwrap().iter().map(ToString::to_string).collect()
}

fn findings(kafka: &SecuredKafka, dir: &Path, user: &str, args: &[&str]) -> (bool, Vec<Value>) {
    let mut all = vec!["doctor", "--json"];
    all.extend(args);
    let (out, err, good) = text(as_user(kafka, dir, user, &all));
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(report["healthy"], good, "{out}{err}");
    (good, report["findings"].as_array().unwrap().clone())
}

fn wrong<'a>(findings: &'a [Value], check: &str) -> Vec<&'a str> {
    let wrong = findings.iter().filter(|finding| finding["check"] == check && finding["state"] == "wrong");
    wrong.map(|finding| finding["about"].as_str().unwrap()).collect()
}

#[test]
fn the_loop_closes_with_exactly_the_rights_of_each_part() {
    let users = ["maker", "processor", "archiver", "cluster", "reader", "collector", "nobody"];
    let kafka = SecuredKafka::start(&users).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    for (user, parts) in [
        ("maker", &["topics"] as &[&str]),
        ("processor", &["processor"]),
        ("archiver", &["archiver"]),
        ("cluster", &["actuator", "simulator"]),
        ("reader", &["reader"]),
        ("collector", &["collector"]),
    ] {
        grant(&kafka, dir, user, parts);
    }
    let mut fewer = as_user(&kafka, dir, "maker", &["topics", "apply"]);
    fewer.env("EADT_TOPICS__PARTITIONS", "2");
    succeeds(fewer);
    let other = BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]);
    kafka.admin().unwrap().alter_topic("eadt.decisions.v1", &other).unwrap();
    let printed = succeeds(as_user(&kafka, dir, "maker", &["topics", "apply"]));
    assert!(printed.contains("from 2 to 4 partitions") && printed.contains("change eadt.decisions.v1"), "{printed}");
    assert!(succeeds(as_user(&kafka, dir, "maker", &["topics", "apply"])).contains("match the settings"), "idempotent");

    // No other user gets access, and the error names the right.
    for service in ["processor", "archiver", "collector", "optimizer"] {
        let lacks = "Describe";
        let (_, err, good) = text(as_user(&kafka, dir, "nobody", &[service]));
        assert!(!good && err.contains(&format!("User:nobody lacks the right {lacks} on topic eadt.")), "{service}: {err}");
    }
    let (_, err, good) = text(as_user(&kafka, dir, "reader", &["processor"]));
    assert!(!good && err.contains("User:reader lacks the right Write on transactional id processor-0"), "{err}");
    let (_, err, good) = text(as_user(&kafka, dir, "collector", &["tail", "decisions", "--until-end"]));
    assert!(!good && err.contains("User:collector lacks the right"), "{err}");
    let (_, err, good) = text(as_user(&kafka, dir, "processor", &["topics", "acls", "processor", "--grant", "User:processor"]));
    assert!(!good && err.contains("denied"), "{err}");

    // The doctor reports the same before anything is started.
    let (good, found) = findings(&kafka, dir, "processor", &["processor"]);
    assert!(good, "{found:#?}");
    let clock = found.iter().find(|finding| finding["check"] == "clock").unwrap();
    assert_eq!(clock["state"], "ok", "{clock}");
    let alone = |finding: &Value| finding["state"] == "notice" && finding["about"].as_str().unwrap().contains("have one copy");
    assert!(found.iter().any(alone), "{found:#?}");
    let (good, found) = findings(&kafka, dir, "reader", &["processor"]);
    let missing = wrong(&found, "rights");
    for lacking in ["Write on topic eadt.decisions.v1", "Read on group processor", "Write on transactional id processor-"] {
        assert!(!good && missing.iter().any(|about| about.contains(lacking)), "{lacking}: {missing:#?}");
    }

    let simulated = |user: &str, args: &[&str]| {
        let mut command = as_user(&kafka, dir, user, args);
        command.env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off").stdout(Stdio::null());
        Running(command.spawn().unwrap())
    };
    // With its joint stages: one decides, the other one has no shared GPU and looks on.
    let page_of_processor = free_address();
    let mut processor = with_budget(as_user(&kafka, dir, "processor", &["processor"]));
    processor
        .env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off")
        .env("EADT_PROCESSOR__GPU_SHARING__ENABLED", "true")
        .env("EADT_HTTP__ADDRESS", &page_of_processor)
        .stdout(Stdio::null());
    let processor = Running(processor.spawn().unwrap());
    let archiver = simulated("archiver", &["archiver"]);
    publish(&kafka, record("gpu.telemetry.v1", "nobody", "{".into()));
    let cluster = simulated("cluster", &["actuator", "--speed", "max", "--duration", "40m"]);
    ends(cluster, Duration::from_mins(5));
    // The next one begins with the written records.
    ends(simulated("cluster", &["actuator", "--speed", "max", "--duration", "41m"]), Duration::from_mins(5));
    let began = Instant::now();
    loop {
        let out = succeeds(as_user(&kafka, dir, "reader", &["tail", "decisions", "--until-end", "--json"]));
        if out.lines().count() >= 2 * 35 {
            break;
        }
        assert!(began.elapsed() < Duration::from_mins(2), "{} decisions", out.lines().count());
        std::thread::sleep(Duration::from_millis(500));
    }
    let began = Instant::now();
    loop {
        let metrics = page(&page_of_processor, "/metrics").unwrap();
        let counted = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        let decided = counted("eadt_power_budget_decisions_total").is_some_and(|count| count >= 2.0 * 35.0);
        if decided && counted("eadt_gpu_sharing_active") == Some(1.0) {
            break;
        }
        assert!(began.elapsed() < Duration::from_mins(2), "{metrics}");
        std::thread::sleep(Duration::from_millis(100));
    }
    for process in [processor, archiver] {
        signal(&process.0, "-TERM");
        ends(process, Duration::from_mins(1));
    }
    // The next start reads the written records.
    let address = free_address();
    let mut again = as_user(&kafka, dir, "processor", &["processor"]);
    again.env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off").env("EADT_HTTP__ADDRESS", &address).stdout(Stdio::null());
    let again = Running(again.spawn().unwrap());
    let began = Instant::now();
    while !page(&address, "/metrics").is_some_and(|page| page.contains("eadt_processor_partitions 4")) {
        assert!(began.elapsed() < Duration::from_mins(1), "{:?}", page(&address, "/metrics"));
        std::thread::sleep(Duration::from_millis(100));
    }
    signal(&again.0, "-TERM");
    ends(again, Duration::from_mins(1));
    let report = support::json(eadt(dir, &["report", dir.to_str().unwrap(), "--json"]));
    assert_eq!(report["workloads"].as_array().unwrap().len(), 2, "{report}");

    for right in &rights_of_parts().unwrap()["reader"] {
        if let (AclOperation::Read, AclResource::Topic(name)) = (right.operation, &right.resource) {
            succeeds(as_user(&kafka, dir, "reader", &["tail", name.strip_prefix("eadt.").unwrap(), "--until-end"]));
        }
    }
    for (user, part) in [("maker", "topics"), ("reader", "reader"), ("archiver", "archiver"), ("processor", "processor")] {
        assert_eq!(unneeded(&kafka, user, &[part]), [""; 0], "{user}");
    }
    // The others are needed if there are agents, and jobs that are asked for something.
    let elsewhere = [
        "Write on topic eadt.dead-letters.v1",
        "Read on topic eadt.device-holders.v1",
        "Read on topic eadt.device-intents.v1",
        "Write on topic eadt.device-intents.v1",
        "Read on topic eadt.device-states.v1",
        "Write on topic eadt.directives.v1",
        "Read on topic eadt.training.progress.v1",
    ];
    assert_eq!(unneeded(&kafka, "cluster", &["actuator", "simulator"]), elsewhere);
}

fn now() -> EventTime {
    EventTime::from_seconds(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64())
}

/// Looks until it sees something.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begun.elapsed() < Duration::from_mins(2), "not within two minutes: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn publish(kafka: &SecuredKafka, record: ProducerRecord) {
    let mut producer = kafka.admin().unwrap().producer("test").unwrap();
    producer.send(record).unwrap();
    assert!(producer.flush(Duration::from_mins(1)).unwrap());
}

fn record(topic: &str, key: &'static str, value: Vec<u8>) -> ProducerRecord {
    let (key, value) = (Some(key.into()), Some(value.into()));
    ProducerRecord { topic: format!("eadt.{topic}").into(), partition: None, key, value, headers: Vec::new() }
}

/// A secured broker whose users are the parts, each with the rights of its own file.
struct Parts {
    kafka: SecuredKafka,
    dir: tempfile::TempDir,
}

impl Parts {
    fn start(parts: &[&str]) -> Self {
        let parts = [parts, &["topics", "reader"]].concat();
        let this = Self { kafka: SecuredKafka::start(&parts).unwrap(), dir: tempfile::tempdir().unwrap() };
        for part in parts {
            grant(&this.kafka, this.dir.path(), part, &[part]);
        }
        succeeds(this.as_part("topics", &["topics", "apply"]));
        this
    }

    fn as_part(&self, part: &str, args: &[&str]) -> Command {
        as_user(&self.kafka, self.dir.path(), part, args)
    }

    /// Returns the events of a topic, as the reader sees them.
    fn events(&self, topic: &str) -> Vec<Value> {
        let out = succeeds(self.as_part("reader", &["tail", topic, "--until-end", "--json"]));
        out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["data"].clone()).collect()
    }

    /// Sends a record in the name of a part that does not run here.
    fn publish(&self, record: ProducerRecord) {
        publish(&self.kafka, record);
    }
}

fn runs(mut command: Command) -> Running {
    Running(command.stdout(Stdio::null()).spawn().unwrap())
}

fn stops(process: Running) {
    signal(&process.0, "-TERM");
    ends(process, Duration::from_mins(1));
}

#[test]
fn what_touches_gpus_jobs_and_models_works_with_exactly_its_rights() {
    let parts = Parts::start(&["collector", "agent", "optimizer"]);
    let (dir, fake) = (parts.dir.path(), FakeLibrary::new(""));

    // The collector reads GPUs and takes a job's progress.
    let asked = Directive {
        time: now(),
        workload: "lab/bert".into(),
        decision_id: "d-1".into(),
        frozen_prefix_layers: Some(1),
        ..Directive::default()
    };
    parts.publish(record("directives.v1", "lab/bert", serde_json::to_vec(&asked).unwrap()));
    let address = free_address();
    let start = || {
        let mut collector = parts.as_part("collector", &["collector"]);
        collector
            .env("EADT_COLLECTOR__NVML__ENABLED", "true")
            .env("EADT_COLLECTOR__NVML__LIBRARY_PATH", fake.library())
            .env("EADT_COLLECTOR__PROGRESS__LISTEN", &address);
        runs(collector)
    };
    let collector = start();
    let progress = json!({"time": now(), "workload": "lab/bert", "rank": 0, "samples_total": 1024}).to_string();
    let accepted = eventually("progress is taken", || ask(&address, "POST", "/v1/progress", &progress));
    assert!(accepted.starts_with("HTTP/1.1 2"), "{accepted}");
    eventually("both are in the log", || {
        let gpus = parts.events("gpu.telemetry.v1").iter().any(|event| event["device"] == "GPU-fake-0");
        let jobs = parts.events("training.progress.v1").iter().any(|event| event["workload"] == "lab/bert");
        (gpus && jobs).then_some(())
    });
    stops(collector);
    // The next one reads when the job began. Which pods hold GPUs is the kubelet's word, and there is none here.
    let collector = start();
    let directive = || ask(&address, "GET", "/v1/directives/lab/bert", "").filter(|answer| answer.starts_with("HTTP/1.1 200"));
    eventually("the directives are read", directive);
    let unneeded = |part: &str| unneeded(&parts.kafka, part, &[part]);
    eventually("the collector needs all other rights", || {
        (unneeded("collector") == ["Write on topic eadt.device-holders.v1"]).then_some(())
    });
    stops(collector);

    // The agent follows an intent, reports it, and puts everything back.
    let agent = runs(agent_as(&parts.kafka, dir, "agent", &fake));
    let intent = DeviceIntent {
        time: now(),
        node: "node-1".into(),
        decision_id: "d-1".into(),
        time_to_live_seconds: 600.0,
        devices: Some(vec![DeviceSetting { power_limit_watts: Some(400.0), ..DeviceSetting::default() }]),
        ..DeviceIntent::default()
    };
    parts.publish(record("device-intents.v1", "node-1", "{".into()));
    eventually("what is no intent is put aside", || (!parts.events("dead-letters.v1").is_empty()).then_some(()));
    parts.publish(record("device-intents.v1", "node-1", serde_json::to_vec(&intent).unwrap()));
    let watts = || fake.settings(0).power_milliwatts / 1000;
    eventually("the intent is held", || (watts() == 400).then_some(()));
    let is_held = |state: &Value| state["node"] == "node-1" && state["devices"][0]["power_limit_outcome"] == "held";
    eventually("and reported as held", || parts.events("device-states.v1").iter().any(is_held).then_some(()));
    stops(agent);
    assert_eq!(watts(), 700);
    assert_eq!(parts.events("device-states.v1").last().unwrap()["stopped"], true);

    // The optimizer learns from an archive, and publishes.
    let simulated = dir.join("simulated");
    succeeds(eadt(&simulated, &["up", "--speed", "max", "--duration", "3h", "--no-view"]));
    let mut optimizer = parts.as_part("optimizer", &["optimizer"]);
    optimizer.env("EADT_OPTIMIZER__LOCATION", simulated.join("archive"));
    let optimizer = runs(optimizer);
    let models = eventually("models are published", || Some(parts.events("models.v1")).filter(|models| !models.is_empty()));
    assert!(models.iter().all(|model| model["version"] == "1"), "{models:#?}");
    stops(optimizer);
    // The next one compares with what is in force.
    let mut optimizer = parts.as_part("optimizer", &["optimizer"]);
    optimizer.env("EADT_OPTIMIZER__LOCATION", simulated.join("archive"));
    let optimizer = runs(optimizer);
    eventually("the optimizer needs all of its rights", || unneeded("optimizer").is_empty().then_some(()));
    stops(optimizer);
    assert_eq!(unneeded("agent"), [""; 0]);
}

#[test]
fn the_actuator_changes_a_workload_on_kubernetes_with_exactly_its_rights() {
    let parts = Parts::start(&["actuator"]);
    let kubernetes = Kubernetes::shared();
    kubernetes.define(include_str!("../deploy/crds/energypolicies.yaml")).unwrap();
    let namespace = kubernetes.namespace("rights").unwrap();
    for object in objects() {
        kubernetes.apply(&namespace, &object.to_string()).unwrap();
    }
    // Its own records can be read, even without any position.
    for topic in ["device-intents.v1", "directives.v1"] {
        parts.publish(record(topic, "nobody", "{".into()));
    }
    let address = free_address();
    let start = || {
        let mut actuator = parts.as_part("actuator", &["actuator", "--kubernetes"]);
        actuator
            .env("EADT_HTTP__ADDRESS", &address)
            .env("KUBECONFIG", kubernetes.admin_kubeconfig())
            .env("EADT_KUBERNETES__NAMESPACE", &namespace)
            .env("EADT_KUBERNETES__ONLY_NAMESPACE", &namespace)
            .env("EADT_ACTUATOR__CHANGE_INTERVAL_SECONDS", "0");
        runs(actuator)
    };
    let actuator = start();
    let present = eventually("the workload is reported as ready", || {
        let last = parts.events("workloads.v1").pop().filter(|last| last["ready_time"].is_string())?;
        Some(serde_json::from_value(last).unwrap())
    });
    parts.publish(record("decisions.v1", "nobody", "{".into()));
    eventually("what is no decision is put aside", || (!parts.events("dead-letters.v1").is_empty()).then_some(()));
    parts.publish(decision("d-1", present, 45));
    eventually("45 % is in force", || {
        let set = kubernetes.kubectl(&["-n", &namespace, "get", "statefulset", "llm", "-o", "json"]).unwrap();
        (percentage(&serde_json::from_str(&set).unwrap()) == Some("45")).then_some(())
    });
    let ready = |event: &Value| event["decision_id"] == "d-1" && event["outcome"] == "ready";
    eventually("what came of it is reported", || parts.events("actuations.v1").iter().any(ready).then_some(()));
    stops(actuator);
    // The next one begins with what was written. No agent follows intents here, no job is asked for anything, and no broker forgets
    // a part of a step.
    let actuator = start();
    eventually("the next one is ready", || page(&address, "/readyz").filter(|page| page.contains(" 200 ")));
    let elsewhere = [
        "Read on topic eadt.actuations.v1",
        "Write on topic eadt.device-intents.v1",
        "Write on topic eadt.directives.v1",
        "Read on topic eadt.training.progress.v1",
    ];
    let begun = Instant::now();
    loop {
        let unneeded = unneeded(&parts.kafka, "actuator", &["actuator"]);
        if unneeded == elsewhere {
            break;
        }
        assert!(begun.elapsed() < Duration::from_mins(2), "the actuator needs all rights but {unneeded:#?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    stops(actuator);
}

/// Every text that a process has written, and what its page returned.
struct Texts(Vec<(String, String)>);

impl Texts {
    fn run(&mut self, what: &str, mut command: Command) -> bool {
        let output = command.output().unwrap();
        for (stream, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            self.0.push((format!("{what} ({stream})"), String::from_utf8_lossy(bytes).into_owned()));
        }
        output.status.success()
    }
}

fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn page(address: &str, path: &str) -> Option<String> {
    ask(address, "GET", path, "")
}

fn ask(address: &str, method: &str, path: &str, body: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    let length = body.len();
    let head = "host: x\r\nconnection: close\r\ncontent-type: application/json";
    write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Status and body of a report over TLS.
fn post(address: &str, trusted: &Certificate, token: &str) -> (u16, String) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (status, body) = runtime.block_on(async {
        let stream = tls(address, trusted).await.unwrap();
        answer(stream, &request(Some(token), V1, &progress("team-a/x"))).await
    });
    (status, body.to_string())
}

#[test]
fn no_output_contains_a_secret() {
    let kafka = SecuredKafka::start(&["worker", "other"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let parts = ["topics", "processor", "archiver", "collector", "actuator", "simulator", "optimizer", "agent", "reader"];
    grant(&kafka, dir, "worker", &parts);
    succeeds(as_user(&kafka, dir, "worker", &["topics", "apply"]));
    // Of the progress endpoint: its key, line by line, a token that it takes, one that it does not know, and one of a service account,
    // whose last part is a signature; and of an object store.
    let trusted = certificate(dir);
    let key = std::fs::read_to_string(dir.join("tls.key")).unwrap();
    let (id, known) = create(dir, &["--namespace", "team-a"]);
    let unknown = format!("eadt_{id}_{}", "planted_Unknown-Token_5d20c7".repeat(2).split_at(43).0);
    let account = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJwbGFudGVkIn0.cGxhbnRlZC1zaWduYXR1cmUtM2U4YQ".to_owned();
    let store = "planted/object+store/credential/b07f";
    let mut secrets =
        vec![password("worker"), password("other"), "planted-key-password-91ab".to_owned(), "0123456789".to_owned()];
    secrets.extend(key.lines().filter(|line| !line.starts_with("-----")).map(str::to_owned));
    secrets.extend([&known, &unknown].map(|token| secret(token).to_owned()));
    secrets.extend([account.rsplit_once('.').unwrap().1.to_owned(), store.to_owned()]);
    let mut texts = Texts(Vec::new());
    let talkative = |command: &mut Command| {
        // Everything that the client library can be made to log, too.
        command.env("EADT_LOG__FILTER", "trace").env("EADT_BUS__PROPERTIES__DEBUG", "all");
        command.env("AWS_ACCESS_KEY_ID", "eadt").env("AWS_SECRET_ACCESS_KEY", store).env("AZURE_STORAGE_ACCOUNT_KEY", store);
    };
    let listen = free_address();
    let with_endpoint = |command: &mut Command| {
        command
            .env("EADT_COLLECTOR__PROGRESS__LISTEN", &listen)
            .env("EADT_COLLECTOR__PROGRESS__CERTIFICATE", dir.join("tls.crt"))
            .env("EADT_COLLECTOR__PROGRESS__KEY", dir.join("tls.key"))
            .env("EADT_COLLECTOR__PROGRESS__TOKENS_FILE", tokens(dir));
    };
    let fake = FakeLibrary::new("");
    let empty = dir.join("empty-archive");
    std::fs::create_dir_all(&empty).unwrap();

    // Services at work, at the most verbose level.
    let services = [
        ("processor", "text"),
        ("archiver", "json"),
        ("collector", "text"),
        ("actuator", "json"),
        ("optimizer", "text"),
        ("agent", "json"),
    ];
    for (service, form) in services {
        let address = free_address();
        let log = dir.join(format!("{service}.log"));
        let mut command = if service == "agent" {
            agent_as(&kafka, dir, "worker", &fake)
        } else {
            // Not the agent's: it refuses settings of others.
            let mut command = as_user(&kafka, dir, "worker", &[service]);
            with_endpoint(&mut command);
            command.env("EADT_OPTIMIZER__LOCATION", &empty);
            command
        };
        talkative(&mut command);
        // As a value of its own this time.
        command
            .env_remove("EADT_BUS__SECURITY__PASSWORD_FILE")
            .env("EADT_BUS__SECURITY__PASSWORD", password("worker"))
            .env("EADT_LOG__FORMAT", form)
            .env("EADT_HTTP__ADDRESS", &address)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        let process = Running(command.spawn().unwrap());
        let began = Instant::now();
        while !page(&address, "/readyz").is_some_and(|page| page.contains(" 200 ")) {
            assert!(began.elapsed() < Duration::from_mins(3), "{}", std::fs::read_to_string(&log).unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
        if service == "collector" {
            for (token, expected) in [(&known, 202), (&unknown, 401), (&account, 401)] {
                let (status, body) = post(&listen, &trusted, token);
                assert_eq!(status, expected, "{body}");
                texts.0.push((format!("an answer with status {status}"), body));
            }
        }
        for path in ["/metrics", "/healthz", "/readyz"] {
            texts.0.push((format!("{service} {path}"), page(&address, path).unwrap()));
        }
        signal(&process.0, "-TERM");
        ends(process, Duration::from_mins(1));
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains("SASL") && text.contains("SCRAM"), "{service} was not talkative enough: {} bytes", text.len());
        texts.0.push((format!("{service} log"), text));
    }

    // Commands that show settings, and commands that fail.
    for args in [
        &["config", "show"] as &[&str],
        &["config", "show", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["topics", "list"],
        &["token", "list"],
    ] {
        let mut command = as_user(&kafka, dir, "worker", args);
        talkative(&mut command);
        with_endpoint(&mut command);
        command.env_remove("EADT_BUS__SECURITY__PASSWORD_FILE").env("EADT_BUS__SECURITY__PASSWORD", password("worker"));
        texts.run(&args.join(" "), command);
    }
    let mut wrong = as_user(&kafka, dir, "worker", &["topics", "list"]);
    talkative(&mut wrong);
    wrong.env_remove("EADT_BUS__SECURITY__PASSWORD_FILE").env("EADT_BUS__SECURITY__PASSWORD", password("other"));
    assert!(!texts.run("a wrong password", wrong));
    // A password that looks like a number stays what it is, and is wrong.
    let mut number = as_user(&kafka, dir, "worker", &["topics", "list"]);
    talkative(&mut number);
    number.env_remove("EADT_BUS__SECURITY__PASSWORD_FILE").env("EADT_BUS__SECURITY__PASSWORD", "0123456789");
    assert!(!texts.run("a number as password", number));
    // The program of the tests is built without object stores.
    let mut elsewhere = as_user(&kafka, dir, "worker", &["archiver"]);
    talkative(&mut elsewhere);
    elsewhere.env("EADT_ARCHIVER__LOCATION", "s3://eadt/archive");
    assert!(!texts.run("an archive in an object store", elsewhere));
    let mut both = as_user(&kafka, dir, "worker", &["topics", "list"]);
    both.env("EADT_BUS__SECURITY__PASSWORD", password("worker"));
    assert!(!texts.run("two passwords", both));
    let mut key = as_admin(&kafka, dir, &["topics", "list"]);
    talkative(&mut key);
    key.env("EADT_BUS__SECURITY__KEY_PASSWORD", "planted-key-password-91ab");
    texts.run("a key with a password", key);
    for (name, line) in [
        ("typed", "[bus.security]\npassword = \"planted-worker-7f3c1e\"\n"),
        ("property", "[bus.properties]\n\"sasl.password\" = \"planted-worker-7f3c1e\"\n"),
        ("key", "[bus.properties]\n\"ssl.key.password\" = \"planted-key-password-91ab\"\n"),
    ] {
        let file = dir.join(format!("{name}.toml"));
        std::fs::write(&file, line).unwrap();
        let command = as_user(&kafka, dir, "worker", &["config", "show", "--config", file.to_str().unwrap()]);
        assert!(!texts.run(&format!("a secret in the settings file, {name}"), command));
        let (what, text) = texts.0.last().unwrap();
        assert!(text.contains("is a secret") && text.contains("EADT_BUS__"), "{what}: {text}");
    }

    let shown = &texts.0.iter().find(|(what, _)| what == "config show (stdout)").unwrap().1;
    assert!(shown.contains("worker") && shown.contains("password = \"…\""), "{shown}");
    for (what, text) in &texts.0 {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{what} has {secret}");
        }
    }
    assert!(texts.0.len() > 35, "{}", texts.0.len());
}
