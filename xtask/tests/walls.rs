//! The walls between the crates, as cargo sees them. docs/architecture.md explains what each is for.

use crate::support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;
use support::{cargo, host};

struct Workspace {
    /// Package id to name.
    names: BTreeMap<String, String>,
    /// Package id to the packages that it is built with (development dependencies apart).
    uses: BTreeMap<String, Vec<String>>,
    members: BTreeSet<String>,
    /// Package name, the package that its manifest names, and a feature that it asks of that one (tests included).
    features: BTreeSet<(String, String, String)>,
    /// Names of packages that name which native library they are linked with.
    links: BTreeSet<String>,
}

impl Workspace {
    fn load() -> Self {
        let json = cargo(&["metadata", "--format-version=1", "--filter-platform", &host()]);
        let metadata: Value = serde_json::from_str(&json).expect("cargo metadata prints JSON");
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let list = |value: &Value| value.as_array().expect("an array").clone();
        let names = list(&metadata["packages"]).iter().map(|p| (text(&p["id"]), text(&p["name"]))).collect();
        let used = |node: &Value| {
            let deps = list(&node["deps"]);
            let built_with = deps.iter().filter(|dep| list(&dep["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev"));
            built_with.map(|dep| text(&dep["pkg"])).collect()
        };
        let uses = list(&metadata["resolve"]["nodes"]).iter().map(|node| (text(&node["id"]), used(node))).collect();
        let members = list(&metadata["workspace_members"]).iter().map(text).collect();
        let links = list(&metadata["packages"]).iter().filter(|p| p["links"].is_string()).map(|p| text(&p["name"])).collect();
        let mut features = BTreeSet::new();
        for package in list(&metadata["packages"]).iter().filter(|package| package["source"].is_null()) {
            for dependency in list(&package["dependencies"]) {
                for feature in list(&dependency["features"]) {
                    features.insert((text(&package["name"]), text(&dependency["name"]), text(&feature)));
                }
            }
        }
        Self { names, uses, members, features, links }
    }

    fn id(&self, name: &str) -> &str {
        self.members.iter().find(|id| self.names[*id] == name).unwrap_or_else(|| panic!("no crate {name} in the workspace"))
    }

    /// Returns names of the packages that this crate is built with, directly.
    fn direct(&self, name: &str) -> BTreeSet<&str> {
        self.uses[self.id(name)].iter().map(|id| self.names[id].as_str()).collect()
    }

    /// Returns names of all packages that this crate is built with, through others, too.
    fn all(&self, name: &str) -> BTreeSet<&str> {
        let mut seen = BTreeSet::new();
        let mut next = VecDeque::from([self.id(name)]);
        while let Some(id) = next.pop_front() {
            for used in &self.uses[id] {
                if seen.insert(used.as_str()) {
                    next.push_back(used);
                }
            }
        }
        seen.into_iter().map(|id| self.names[id].as_str()).collect()
    }

    /// Returns names of the workspace's crates that use this package directly.
    fn users(&self, package: &str) -> BTreeSet<&str> {
        let members = self.members.iter().map(|id| self.names[id].as_str());
        members.filter(|member| self.direct(member).contains(package)).collect()
    }

    /// Returns names of the workspace's crates that ask for this feature of a package.
    fn users_with_feature(&self, package: &str, feature: &str) -> BTreeSet<&str> {
        let asking = self.features.iter().filter(|(_, asked, wanted)| asked == package && wanted == feature);
        asking.map(|(user, _, _)| user.as_str()).collect()
    }

    fn services(&self) -> BTreeSet<&str> {
        // Services are the crates below services/.
        let services = self.members.iter().filter(|id| id.contains("/services/"));
        services.map(|id| self.names[id].as_str()).collect()
    }
}

fn workspace() -> &'static Workspace {
    static WORKSPACE: OnceLock<Workspace> = OnceLock::new();
    WORKSPACE.get_or_init(Workspace::load)
}

/// Runtimes, transports, stores, clocks, chance, operating system: nothing of it where deciding happens.
const IMPURE: [&str; 19] = [
    "tokio",
    "rdkafka",
    "redb",
    "fjall",
    "chrono",
    "time",
    "rand",
    "getrandom",
    "kube",
    "nvml-wrapper",
    "axum",
    "hyper",
    "reqwest",
    "mio",
    "socket2",
    "rustix",
    "nix",
    "object_store",
    "async-std",
];

#[test]
fn what_decides_is_pure() {
    let workspace = workspace();
    for pure in [
        "eadt-core",
        "eadt-schemas",
        "eadt-html",
        "eadt-report",
        "eadt-recordings",
        "eadt-cluster",
        "eadt-gpu-sharing",
        "eadt-models",
        "eadt-tune",
    ] {
        let used = workspace.all(pure);
        let impure: Vec<_> = IMPURE.iter().filter(|package| used.contains(*package)).collect();
        assert!(impure.is_empty(), "{pure} is built with {impure:?}; it takes times and chance as parameters and does no I/O");
    }
}

#[test]
fn one_crate_knows_each_outside_thing() {
    let workspace = workspace();
    for (package, owner) in [
        ("rdkafka", "eadt-bus"),
        ("redb", "eadt-bus"),
        ("nvml-wrapper", "eadt-nvml"),
        ("arrow", "eadt-lake"),
        ("parquet", "eadt-lake"),
    ] {
        let users = workspace.users(package);
        let strangers: Vec<_> = users.iter().filter(|user| **user != owner).collect();
        assert!(strangers.is_empty(), "{strangers:?} use {package}; only {owner} may");
    }
    assert!(workspace.users("rdkafka").contains("eadt-bus"), "the wall is checked against what is really there");
    // The tests have a control plane of their own to talk to.
    let strangers: Vec<_> =
        workspace.users("kube").into_iter().filter(|user| !["eadt-kubernetes", "eadt-tests"].contains(user)).collect();
    assert!(strangers.is_empty(), "{strangers:?} use kube; only eadt-kubernetes may");
}

#[test]
fn only_the_node_agent_can_change_a_gpu() {
    let workspace = workspace();
    let users = workspace.users_with_feature("eadt-nvml", "set");
    // Its own tests, too.
    assert!(
        users.is_subset(&BTreeSet::from(["eadt-agent", "eadt-nvml"])),
        "{users:?} turn on the feature that changes settings of GPUs"
    );
    assert!(workspace.users("eadt-nvml").contains("eadt-collector"), "the wall is checked against what is really there");
}

#[test]
fn services_do_not_know_each_other() {
    let workspace = workspace();
    let services = workspace.services();
    assert!(services.len() >= 5, "{services:?}");
    for service in &services {
        let others: Vec<_> = workspace.all(service).intersection(&services).copied().collect();
        assert!(others.is_empty(), "{service} depends on {others:?}; services talk through topics only");
    }
}

/// Returns names of the packages that cargo builds for this machine with these words.
fn built(words: &[&str]) -> BTreeSet<String> {
    let tree = ["tree", "--prefix=none", "--format={p}"];
    let output = cargo(&[&tree, words].concat());
    output.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn the_program_is_built_with_rust_a_c_and_a_cpp_compiler_and_make_alone() {
    // Packages that call another tool, or look for a library of the system.
    let needs_more = |built: &BTreeSet<String>| -> Vec<String> {
        let tools = [
            "autotools",
            "aws-lc-sys",
            "bindgen",
            "clang-sys",
            "cmake",
            "libnghttp2-sys",
            "nasm-rs",
            "openssl-src",
            "openssl-sys",
            "prost-build",
            "protobuf-src",
            "protoc-bin-vendored",
            "pyo3-build-config",
            "sasl2-sys",
        ];
        tools.iter().filter(|tool| built.contains(**tool)).map(ToString::to_string).collect()
    };
    // As `cargo run --release -- up` builds it, and what `cargo xtask test --fast` is built from.
    let program = built(&["--package=eadt", "--edges=normal,build"]);
    let fast = built(&["--workspace", "--no-default-features", "--edges=normal,build,dev"]);
    for built in [&program, &fast] {
        assert_eq!(needs_more(built), [""; 0]);
        // Each comes with its sources: C, C++ for the client library of Kafka, which is made by `make`; the last two link nothing.
        let native: BTreeSet<&str> = workspace().links.iter().map(String::as_str).filter(|name| built.contains(*name)).collect();
        let known = BTreeSet::from(["libz-sys", "rdkafka-sys", "ring", "zstd-sys", "k8s-openapi", "rayon-core"]);
        assert!(native.contains("rdkafka-sys") && native.is_subset(&known), "what does it need to be built? {native:?}");
    }
    assert!(program.contains("eadt-simulator-service") && program.contains("rdkafka-sys"), "{program:?}");
    let with_tls = built(&["--package=eadt", "--edges=normal,build", "--features=kafka-tls"]);
    assert!(needs_more(&with_tls).contains(&"openssl-src".to_owned()), "the check bites where perl is needed: {with_tls:?}");
}

/// Crates of tests that use several services.
const TESTS_OF_ALL: [&str; 4] = ["eadt-chaos", "eadt-fuzz", "eadt-fuzz-program", "eadt-tests"];

#[test]
fn only_the_program_and_the_tests_know_services() {
    let workspace = workspace();
    for service in workspace.services() {
        let users = workspace.users(service);
        let strangers: Vec<_> = users.iter().filter(|user| **user != "eadt" && !TESTS_OF_ALL.contains(*user)).collect();
        assert!(strangers.is_empty(), "{strangers:?} depend on {service}; only the program and the tests may");
    }
}

#[test]
fn shared_crates_do_not_know_what_is_above_them() {
    let workspace = workspace();
    for (crate_name, allowed) in [
        ("eadt-schemas", [].as_slice()),
        ("eadt-core", &["eadt-models", "eadt-schemas"]),
        ("eadt-faults", &[]),
        ("eadt-files", &[]),
        ("eadt-tasks", &[]),
        ("eadt-bus", &["eadt-faults", "eadt-files", "eadt-schemas", "eadt-tasks"]),
        ("eadt-lake", &["eadt-schemas"]),
        ("eadt-recordings", &["eadt-schemas"]),
        ("eadt-html", &["eadt-schemas"]),
        ("eadt-report", &["eadt-html", "eadt-models", "eadt-schemas"]),
        ("eadt-simulator", &["eadt-schemas", "eadt-cluster", "eadt-gpu-sharing"]),
        ("eadt-gpu-sharing", &["eadt-core", "eadt-html", "eadt-models", "eadt-schemas"]),
        ("eadt-backtest", &["eadt-schemas", "eadt-cluster", "eadt-core", "eadt-html", "eadt-report", "eadt-simulator"]),
        ("eadt-models", &[]),
        ("eadt-tune", &["eadt-html", "eadt-models", "eadt-recordings", "eadt-schemas"]),
        ("eadt-cluster", &["eadt-schemas"]),
        ("eadt-service", &["eadt-files", "eadt-schemas", "eadt-tasks"]),
        ("eadt-nvml", &["eadt-schemas"]),
    ] {
        let used = workspace.direct(crate_name);
        let ours: Vec<_> = used.iter().filter(|name| name.starts_with("eadt") && !allowed.contains(*name)).collect();
        assert!(ours.is_empty(), "{crate_name} uses {ours:?}; it may use {allowed:?}");
    }
}

#[test]
fn nothing_is_built_with_what_is_for_tests() {
    let workspace = workspace();
    assert!(!workspace.id("eadt-testing").is_empty());
    // The harness of the fault rows is a test that is a program, too, and nothing is built with it.
    assert!(workspace.users("eadt-chaos").is_empty());
    let mut users = workspace.users("eadt-testing");
    users.remove("eadt-chaos");
    assert!(users.is_empty(), "{users:?} are built with eadt-testing; only tests may use it");
}

#[test]
fn clippys_bans_hold_in_the_pure_crates_too() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let load = |path: &str| -> toml::Table {
        let text = std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.parse().unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let list = |table: &toml::Table, key: &str| table[key].as_array().unwrap().clone();
    let everywhere = load("clippy.toml");
    for pure in [
        "crates/core",
        "crates/html",
        "crates/report",
        "crates/recordings",
        "crates/simulator",
        "crates/cluster",
        "crates/gpu-sharing",
        "crates/models",
        "crates/tune",
        "crates/backtest",
        "schemas",
    ] {
        // Clippy reads the nearest file only.
        let own = load(&format!("{pure}/clippy.toml"));
        for key in ["disallowed-methods", "doc-valid-idents"] {
            let missing: Vec<_> = list(&everywhere, key).into_iter().filter(|ban| !list(&own, key).contains(ban)).collect();
            assert!(missing.is_empty(), "{pure}/clippy.toml lacks {missing:?} of the root's {key}");
        }
        let banned: Vec<String> =
            list(&own, "disallowed-methods").iter().map(|ban| ban["path"].as_str().unwrap().to_owned()).collect();
        for clock in ["std::time::SystemTime::now", "std::time::Instant::now"] {
            assert!(banned.iter().any(|path| path == clock), "{pure}/clippy.toml does not ban {clock}");
        }
    }
}

#[test]
fn every_integration_test_belongs_to_the_binary_of_its_package() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let children = |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let packages = [children(&root.join("crates")), children(&root.join("services"))].concat();
    let packages = packages.into_iter().chain(["schemas", "xtask"].map(|name| root.join(name)));
    let mut homes: Vec<(_, &[&str])> = packages.map(|package| (package.join("tests"), &["main.rs"][..])).collect();
    homes.push((root.join("tests"), &["program.rs", "real_parts.rs"]));
    let mut seen = 0;
    for (folder, crate_roots) in homes {
        let declared: String = crate_roots.iter().filter_map(|file| std::fs::read_to_string(folder.join(file)).ok()).collect();
        if declared.is_empty() {
            // Cargo finds the only file of a folder by itself.
            continue;
        }
        for path in children(&folder).iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
            let (file, module) = (path.file_name().unwrap().to_str().unwrap(), path.file_stem().unwrap().to_str().unwrap());
            let is_there = crate_roots.contains(&file) || declared.lines().any(|line| line == format!("mod {module};"));
            assert!(is_there, "{} is in no test binary: declare it in {}", path.display(), crate_roots.join(" or "));
            seen += 1;
        }
    }
    assert!(seen > 60, "only {seen} files were found");
}

/// Returns the folder of a workspace member below the root, by the path in its id.
fn folder_of(id: &str) -> Option<&str> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::to_str).expect("a path of text");
    id.split_once(root)?.1.split('#').next().map(|folder| folder.trim_start_matches('/'))
}

fn drawn(name: &str) -> &str {
    name.strip_prefix("eadt-").unwrap_or(name)
}

#[test]
fn the_architecture_names_every_crate_and_draws_dependencies_downwards() {
    let workspace = workspace();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/architecture.md");
    let page = std::fs::read_to_string(page).expect("docs/architecture.md");
    let (_, rest) = page.split_once("Dependencies point downwards only.").expect("the drawing");
    let drawing = rest.split("```").nth(1).expect("a code block");
    // A row begins with its crate.
    let rows: Vec<&str> = drawing.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let row_of = |name: &str| rows.iter().position(|row| *row == drawn(name));
    for id in &workspace.members {
        let name = &workspace.names[id];
        let row = row_of(name).unwrap_or_else(|| panic!("{name} is not in the drawing"));
        let folder = folder_of(id).unwrap_or_else(|| panic!("no folder in {id}"));
        if let Some((parent, last)) = folder.rsplit_once('/') {
            assert!(page.contains(&format!("| `{parent}/{}` |", drawn(last))), "the table has no {folder}");
        }
        for used in workspace.direct(name) {
            if workspace.members.iter().any(|member| workspace.names[member] == used) {
                assert!(row_of(used) > Some(row), "{name} uses {used}, which is not drawn below it");
            }
        }
    }
}

/// The page of the architecture names functions with their files: each is there.
#[test]
fn functions_that_the_architecture_names_are_in_their_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/architecture.md")).expect("docs/architecture.md");
    let mut named = 0;
    for line in page.lines() {
        let parts: Vec<&str> = line.split('`').collect();
        // Code is between every other pair: a file, a colon, and a function.
        for at in (1..parts.len().saturating_sub(2)).step_by(2) {
            let (file, between, function) = (parts[at], parts[at + 1], parts[at + 2]);
            if between != ": " || Path::new(file).extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let code = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let is_there = [format!("fn {function}("), format!("fn {function}<")].iter().any(|text| code.contains(text.as_str()));
            assert!(is_there, "docs/architecture.md names `{function}` of {file}, which has no such function");
            named += 1;
        }
    }
    assert!(named >= 6, "only {named} functions are named");
}
