//! The program on a secured Apache Kafka: each service with exactly its rights, `eadt doctor`, and no secret in anything it says.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use eadt_tests::kafka::secured::{ADMIN, SecuredKafka, password};
use serde_json::Value;
use support::{Running, eadt, ends, json, signal, text};

/// The program as a user with a password.
fn as_user(kafka: &SecuredKafka, dir: &Path, user: &str, args: &[&str]) -> Command {
    let mut command = eadt(dir, args);
    command
        .env("KAFKA_BROKERS", kafka.brokers())
        .env("EADT_BUS__SECURITY__PROTOCOL", "sasl_ssl")
        .env("EADT_BUS__SECURITY__USERNAME", user)
        .env("EADT_BUS__SECURITY__PASSWORD_FILE", kafka.password_file(user).unwrap())
        .env("EADT_BUS__SECURITY__CA_FILE", kafka.authority.ca_file());
    command
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
    let said = succeeds(as_admin(kafka, dir, &args));
    assert!(said.contains(&format!("allowed {principal}: ")), "{said}");
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
    succeeds(as_user(&kafka, dir, "maker", &["topics", "apply"]));
    assert!(succeeds(as_user(&kafka, dir, "maker", &["topics", "apply"])).contains("as they should be"), "idempotent");

    // Nobody else gets anywhere, and is told what for.
    for (service, lacks) in [("processor", "Describe"), ("archiver", "Describe"), ("collector", "Describe")] {
        let (_, err, good) = text(as_user(&kafka, dir, "nobody", &[service]));
        assert!(!good && err.contains(&format!("User:nobody lacks the right {lacks} on topic eadt.")), "{service}: {err}");
    }
    let (_, err, good) = text(as_user(&kafka, dir, "reader", &["processor"]));
    assert!(!good && err.contains("User:reader lacks the right Write on transactional id processor-0"), "{err}");
    let (_, err, good) = text(as_user(&kafka, dir, "collector", &["tail", "decisions", "--until-end"]));
    assert!(!good && err.contains("User:collector lacks the right"), "{err}");
    let (_, err, good) = text(as_user(&kafka, dir, "processor", &["topics", "acls", "processor", "--grant", "User:processor"]));
    assert!(!good && err.contains("denied"), "{err}");

    // The doctor says the same before anything is started.
    let (good, found) = findings(&kafka, dir, "processor", &["processor"]);
    assert!(good, "{found:#?}");
    let clock = found.iter().find(|finding| finding["check"] == "clock").unwrap();
    assert_eq!(clock["state"], "ok", "{clock}");
    let alone = |finding: &Value| finding["state"] == "notice" && finding["about"].as_str().unwrap().contains("have one copy");
    assert!(found.iter().any(alone), "{found:#?}");
    let (good, found) = findings(&kafka, dir, "reader", &["processor"]);
    let told = wrong(&found, "rights");
    for lacking in ["Write on topic eadt.decisions.v1", "Read on group processor", "Write on transactional id processor-"] {
        assert!(!good && told.iter().any(|about| about.contains(lacking)), "{lacking}: {told:#?}");
    }

    let simulated = |user: &str, args: &[&str]| {
        let mut command = as_user(&kafka, dir, user, args);
        command.env("EADT_PROCESSOR__MAX_FUTURE_SECONDS", "off").stdout(Stdio::null());
        Running(command.spawn().unwrap())
    };
    let (processor, archiver) = (simulated("processor", &["processor"]), simulated("archiver", &["archiver"]));
    let cluster = simulated("cluster", &["actuator", "--speed", "max", "--duration", "40m"]);
    ends(cluster, Duration::from_mins(5));
    let began = Instant::now();
    loop {
        let out = succeeds(as_user(&kafka, dir, "reader", &["tail", "decisions", "--until-end", "--json"]));
        if out.lines().count() >= 2 * 35 {
            break;
        }
        assert!(began.elapsed() < Duration::from_mins(2), "{} decisions", out.lines().count());
        std::thread::sleep(Duration::from_millis(500));
    }
    for process in [processor, archiver] {
        signal(&process.0, "-TERM");
        ends(process, Duration::from_mins(1));
    }
    // The next start looks at what was said.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
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
    let report = json(eadt(dir, &["report", dir.to_str().unwrap(), "--json"]));
    assert_eq!(report["workloads"].as_array().unwrap().len(), 2, "{report}");
}

/// Every text that a process has written, and what its page said.
struct Said(Vec<(String, String)>);

impl Said {
    fn run(&mut self, what: &str, mut command: Command) -> bool {
        let output = command.output().unwrap();
        for (stream, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            self.0.push((format!("{what} ({stream})"), String::from_utf8_lossy(bytes).into_owned()));
        }
        output.status.success()
    }
}

fn page(address: &str, path: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn no_secret_is_ever_said() {
    let kafka = SecuredKafka::start(&["worker", "other"]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    grant(&kafka, dir, "worker", &["topics", "processor", "archiver", "collector", "reader"]);
    succeeds(as_user(&kafka, dir, "worker", &["topics", "apply"]));
    let secrets = [password("worker"), password("other"), "planted-key-password-91ab".to_owned(), "0123456789".to_owned()];
    let mut said = Said(Vec::new());
    let talkative = |command: &mut Command| {
        // Everything that the client library can be made to say, too.
        command.args(["--log", "trace"]).env("EADT_BUS__PROPERTIES__DEBUG", "all");
    };

    // Services at work, at the most verbose level.
    for (service, form) in [("processor", "text"), ("archiver", "json"), ("collector", "text")] {
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let log = dir.join(format!("{service}.log"));
        let mut command = as_user(&kafka, dir, "worker", &[service]);
        talkative(&mut command);
        // As a value of its own this time.
        command
            .env_remove("EADT_BUS__SECURITY__PASSWORD_FILE")
            .env("EADT_BUS__SECURITY__PASSWORD", password("worker"))
            .env("EADT_LOG__FORMAT", form)
            .env("EADT_HTTP__ADDRESS", &address)
            .env("EADT_COLLECTOR__PROGRESS__LISTEN", "127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        let process = Running(command.spawn().unwrap());
        let began = Instant::now();
        while !page(&address, "/readyz").is_some_and(|page| page.contains(" 200 ")) {
            assert!(began.elapsed() < Duration::from_mins(1), "{}", std::fs::read_to_string(&log).unwrap());
            std::thread::sleep(Duration::from_millis(100));
        }
        for path in ["/metrics", "/healthz", "/readyz"] {
            said.0.push((format!("{service} {path}"), page(&address, path).unwrap()));
        }
        signal(&process.0, "-TERM");
        ends(process, Duration::from_mins(1));
        let text = std::fs::read_to_string(&log).unwrap();
        assert!(text.contains("SASL") && text.contains("SCRAM"), "{service} was not talkative enough: {} bytes", text.len());
        said.0.push((format!("{service} log"), text));
    }

    // What shows settings, and what fails.
    for args in [&["config", "show"] as &[&str], &["config", "show", "--json"], &["doctor", "--json"], &["topics", "list"]] {
        let mut command = as_user(&kafka, dir, "worker", args);
        talkative(&mut command);
        command.env_remove("EADT_BUS__SECURITY__PASSWORD_FILE").env("EADT_BUS__SECURITY__PASSWORD", password("worker"));
        said.run(&args.join(" "), command);
    }
    let mut wrong = as_user(&kafka, dir, "worker", &["topics", "list"]);
    talkative(&mut wrong);
    wrong.env_remove("EADT_BUS__SECURITY__PASSWORD_FILE").env("EADT_BUS__SECURITY__PASSWORD", password("other"));
    assert!(!said.run("a wrong password", wrong));
    // A password that looks like a number stays what it is, and is wrong.
    let mut number = as_user(&kafka, dir, "worker", &["topics", "list"]);
    talkative(&mut number);
    number.env_remove("EADT_BUS__SECURITY__PASSWORD_FILE").env("EADT_BUS__SECURITY__PASSWORD", "0123456789");
    assert!(!said.run("a number as password", number));
    let mut both = as_user(&kafka, dir, "worker", &["topics", "list"]);
    both.env("EADT_BUS__SECURITY__PASSWORD", password("worker"));
    assert!(!said.run("two passwords", both));
    let mut key = as_admin(&kafka, dir, &["topics", "list"]);
    talkative(&mut key);
    key.env("EADT_BUS__SECURITY__KEY_PASSWORD", "planted-key-password-91ab");
    said.run("a key with a password", key);
    for (name, line) in [
        ("typed", "[bus.security]\npassword = \"planted-worker-7f3c1e\"\n"),
        ("property", "[bus.properties]\n\"sasl.password\" = \"planted-worker-7f3c1e\"\n"),
        ("key", "[bus.properties]\n\"ssl.key.password\" = \"planted-key-password-91ab\"\n"),
    ] {
        let file = dir.join(format!("{name}.toml"));
        std::fs::write(&file, line).unwrap();
        let command = as_user(&kafka, dir, "worker", &["config", "show", "--config", file.to_str().unwrap()]);
        assert!(!said.run(&format!("a secret in the settings file, {name}"), command));
        let (what, text) = said.0.last().unwrap();
        assert!(text.contains("is a secret") && text.contains("EADT_BUS__"), "{what}: {text}");
    }

    let shown = &said.0.iter().find(|(what, _)| what == "config show (stdout)").unwrap().1;
    assert!(shown.contains("worker") && shown.contains("password = \"…\""), "{shown}");
    for (what, text) in &said.0 {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{what} says {secret}");
        }
    }
    assert!(said.0.len() > 20, "{}", said.0.len());
}
