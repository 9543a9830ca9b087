//! The files under deploy/ and docker-compose.yml fit each other, the Compose Specification and the program.
//! Nothing here starts a container.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    let mut value: Value = serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    merge(&mut value);
    value
}

/// Resolves `<<` keys that the parser leaves alone.
fn merge(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::Object(base)) = object.remove("<<") {
                for (key, inherited) in base {
                    object.entry(key).or_insert(inherited);
                }
            }
            object.values_mut().for_each(merge);
        }
        Value::Array(list) => list.iter_mut().for_each(merge),
        _ => {}
    }
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|word| word.as_str().expect("a word in quotes").to_owned()).collect()
}

/// A service that runs the program.
struct Own {
    name: String,
    command: Vec<String>,
    variables: Vec<(String, String)>,
}

fn own_services(compose: &Value) -> Vec<Own> {
    let services = compose["services"].as_object().unwrap();
    let own = services.iter().filter(|(_, service)| service["image"] == "eadt:local");
    own.map(|(name, service)| {
        let variables = service["environment"].as_object().into_iter().flatten();
        let variables = variables.map(|(k, v)| (k.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned)));
        Own { name: name.clone(), command: words(&service["command"]), variables: variables.collect() }
    })
    .collect()
}

/// Returns the built program: from where the test run sets, else built now.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("EADT_TEST_PROGRAM") {
        return path.into();
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status =
        Command::new(cargo).args(["build", "--quiet", "--workspace", "--bin", "eadt"]).current_dir(root()).status().unwrap();
    assert!(status.success(), "cargo build failed");
    // This test lies in the folder deps/ beside the program.
    std::env::current_exe().unwrap().parent().and_then(Path::parent).unwrap().join("eadt")
}

#[test]
fn compose_files_follow_the_compose_specification() {
    let schema: Value = serde_json::from_str(&text("xtask/tests/data/compose-spec.schema.json")).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    for path in ["docker-compose.yml", "deploy/compose.gpu.yml"] {
        let errors: Vec<String> = validator.iter_errors(&yaml(path)).map(|e| format!("{} at {}", e, e.instance_path())).collect();
        assert!(errors.is_empty(), "{path}: {errors:#?}");
    }
    let mut broken = yaml("docker-compose.yml");
    broken["services"]["kafka"]["imag"] = "x".into();
    assert!(!validator.is_valid(&broken), "the specification bites");
}

#[test]
fn compose_runs_every_part_once_the_topics_are_there() {
    let compose = yaml("docker-compose.yml");
    let own = own_services(&compose);
    let names: BTreeSet<&str> = own.iter().map(|own| own.name.as_str()).collect();
    assert_eq!(names, ["actuator", "archiver", "collector", "exporter", "optimizer", "processor", "topics"].into());
    for Own { name, command, .. } in &own {
        assert_eq!(&command[0], name, "a service is named after what it runs");
        let waits = &compose["services"][name]["depends_on"];
        let (on, until) =
            if name == "topics" { ("kafka", "service_healthy") } else { ("topics", "service_completed_successfully") };
        assert_eq!(waits[on]["condition"], until, "{name}");
        assert_eq!(compose["services"][name]["read_only"], true, "{name}");
    }
}

#[test]
fn images_have_a_version_and_ports_stay_on_this_machine() {
    let compose = yaml("docker-compose.yml");
    for (name, service) in compose["services"].as_object().unwrap() {
        let image = service["image"].as_str().unwrap();
        let (_, tag) = image.rsplit_once(':').unwrap_or_else(|| panic!("{name}: {image} has no version"));
        assert_ne!(tag, "latest", "{name}");
        for port in words(&service["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{name} publishes {port} to everybody");
        }
    }
    assert_eq!(compose["services"]["kafka"]["image"], "apache/kafka:4.3.1");
    for volume in compose["services"].as_object().unwrap().values().flat_map(|service| words(&service["volumes"])) {
        let source = volume.split(':').next().unwrap();
        let there = if source.starts_with('.') { root().join(source).exists() } else { compose["volumes"].get(source).is_some() };
        assert!(there, "volume {volume}: no {source}");
    }
}

#[test]
fn the_program_understands_every_command_and_every_variable() {
    let (program, compose, gpu) = (program(), yaml("docker-compose.yml"), yaml("deploy/compose.gpu.yml"));
    let mut seen = 0;
    for Own { name, command, mut variables } in own_services(&compose) {
        let added = gpu["services"][&name]["environment"].as_object().into_iter().flatten();
        variables.extend(added.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())));
        let run = |arguments: &[&str]| {
            let output = Command::new(&program).env_clear().envs(variables.clone()).args(arguments).output().unwrap();
            assert!(output.status.success(), "{name}: {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        let mut arguments: Vec<&str> = command.iter().map(String::as_str).collect();
        arguments.push("--help");
        run(&arguments);
        let settings = run(&["config", "show"]);
        for wanted in ["kafka:9092", "0.0.0.0:9464"] {
            assert!(settings.contains(wanted), "{name}: {wanted} is not in the settings in force:\n{settings}");
        }
        seen += 1;
    }
    assert_eq!(seen, 7);
}

#[test]
fn prometheus_scrapes_every_service_on_its_port() {
    let compose = yaml("docker-compose.yml");
    let prometheus = yaml("deploy/prometheus/prometheus.yml");
    let targets: BTreeSet<String> = words(&prometheus["scrape_configs"][0]["static_configs"][0]["targets"]).into_iter().collect();
    let wanted = own_services(&compose).into_iter().filter(|own| own.name != "topics").map(|Own { name, variables, .. }| {
        let address = variables.into_iter().find(|(key, _)| key == "EADT_HTTP__ADDRESS").expect("every service has metrics").1;
        format!("{name}:{}", address.rsplit_once(':').unwrap().1)
    });
    assert_eq!(targets, wanted.collect());
}

/// Returns the metrics in a query: those of the program.
fn metrics_of(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("eadt_"))
}

#[test]
fn the_dashboards_and_rules_use_metrics_that_exist() {
    let source = yaml("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"][0].clone();
    let documented = text("docs/reference/metrics.md");
    let mut metrics = 0;
    let mut check = |place: &str, query: &str| {
        for word in metrics_of(query) {
            let name = word.trim_end_matches("_bucket");
            assert!(documented.contains(&format!("`{name}`")), "{place}: docs/reference/metrics.md has no {name}");
            metrics += 1;
        }
    };
    for board in ["gpus", "energy", "sharing", "pipeline"] {
        let dashboard: Value = serde_json::from_str(&text(&format!("deploy/grafana/dashboards/{board}.json"))).unwrap();
        // Another Grafana offers its own sources; ours is chosen at first.
        let variable = &dashboard["templating"]["list"][0];
        assert_eq!((&variable["query"], &variable["current"]["value"]), (&source["type"], &source["uid"]), "{board}");
        let chosen = format!("${{{}}}", variable["name"].as_str().unwrap());
        for panel in dashboard["panels"].as_array().unwrap() {
            assert_eq!(panel["datasource"]["uid"], *chosen, "{}", panel["title"]);
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap();
                check(&panel["title"].to_string(), query);
                // A variable is only ever a value that a label is matched with.
                let mut rest = query.replace("$__rate_interval", "");
                for variable in ["namespace", "workload"] {
                    rest = rest.replace(&format!("{variable}=~\"${variable}\""), "");
                }
                assert!(!rest.contains('$'), "{}: {query}", panel["title"]);
            }
        }
        for annotation in dashboard["annotations"]["list"].as_array().unwrap() {
            assert_eq!(annotation["datasource"]["uid"], *chosen, "{}", annotation["name"]);
            check(board, annotation["expr"].as_str().unwrap());
        }
    }
    for group in yaml("deploy/prometheus/rules.yml")["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            check(&rule.to_string(), rule["expr"].as_str().unwrap());
        }
    }
    assert!(metrics >= 60, "{metrics}");
    let mounted = yaml("deploy/grafana/provisioning/dashboards/eadt.yml")["providers"][0]["options"]["path"].clone();
    let volumes = words(&yaml("docker-compose.yml")["services"]["grafana"]["volumes"]);
    assert!(volumes.iter().any(|volume| *volume == format!("./deploy/grafana/dashboards:{}:ro", mounted.as_str().unwrap())));
}

/// Each alert fires on its cause and is silent otherwise, in Prometheus' own engine.
#[test]
fn promtool_is_content_with_the_rules_and_settings() {
    let promtool = |arguments: &[&str]| {
        let output = Command::new("promtool").current_dir(root()).args(arguments).output();
        let output =
            output.unwrap_or_else(|error| panic!("promtool: {error}; `cargo xtask test --install` brings Debian's prometheus"));
        let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "promtool {arguments:?}: {printed}");
    };
    promtool(&["check", "rules", "deploy/prometheus/rules.yml"]);
    promtool(&["check", "config", "deploy/prometheus/prometheus.yml"]);
    promtool(&["test", "rules", "deploy/prometheus/rules.test.yml"]);
}

#[test]
fn the_image_runs_as_nobody_in_particular_and_is_built_with_a_rust_that_is_new_enough() {
    let dockerfile = text("deploy/Dockerfile");
    let lines: Vec<&str> = dockerfile.lines().collect();
    let stages: Vec<&&str> = lines.iter().filter(|line| line.starts_with("FROM ")).collect();
    assert_eq!(stages.len(), 2, "one stage builds, one runs");
    let user = lines.iter().rposition(|line| line.starts_with("USER ")).expect("a USER line");
    assert!(
        lines[user].trim_start_matches("USER ").split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)),
        "{}",
        lines[user]
    );
    let last_stage = lines.iter().rposition(|line| line.starts_with("FROM ")).unwrap();
    assert!(user > last_stage, "the stage that runs sets the user");
    let manifest: toml::Table = text("Cargo.toml").parse().unwrap();
    let wanted = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    assert!(stages[0].contains(&format!("rust:{wanted}-")), "the image builds with {wanted}, the oldest Rust that is promised");
}
