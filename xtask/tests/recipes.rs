//! The recipes of CONTRIBUTING.md name every file that a new instance touches: one instance of each is followed through the sources.

use std::fs;
use std::path::Path;
use std::process::Command;

/// A recipe, and what names one of its instances in the sources.
struct Instance {
    recipe: &'static str,
    names: &'static [&'static str],
    /// Files and folders that name it for another reason.
    others: &'static [&'static str],
}

const INSTANCES: [Instance; 6] = [
    Instance {
        recipe: "Add a collector source",
        names: &["progress::job", "JobMetricsSource", "JOB \"job\"", "collector.jobs", "settings.jobs", "nvml|dcgm"],
        others: &[
            // Their keys are examples of any setting, and of any name.
            "src/settings/mod.rs",
            "src/settings/origins.rs",
        ],
    },
    Instance {
        recipe: "Add a controller",
        names: &["MatrixLiteral", "matrix-literal", "literal::decide"],
        // An example of a name.
        others: &["schemas/src/v1/decision.rs"],
    },
    Instance {
        recipe: "Add a joint stage",
        names: &[
            "GpuSharingStage",
            "GpuSharingFold",
            "GpuSharingMetrics",
            "GpuSharingSettings",
            "GPU_SHARING",
            "processor.gpu_sharing",
        ],
        others: &[
            // Its own crate.
            "crates/gpu-sharing/",
            // A former name, and the name of a test.
            "src/settings/renamed.rs",
            "services/processor/src/joint/stage.rs",
        ],
    },
    Instance {
        recipe: "Add a topic",
        names: &["DeviceStates", "device-states", "DeviceState = ", "for DeviceState", "struct DeviceState "],
        // An example of a name.
        others: &["src/commands/mod.rs"],
    },
    Instance { recipe: "Add a metric", names: &["IDLE_ENERGY", "idle_energy_joules"], others: &[] },
    Instance { recipe: "Add a recording format", names: &["Dcgmi", "dcgmi"], others: &[] },
];

/// Documents that are generated, tests, and what tells of the past.
const LEFT_OUT: [&str; 16] = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "deploy/crds/",
    "deploy/grafana/",
    "deploy/helm/eadt/crds/",
    "deploy/helm/eadt/files/",
    "deploy/kafka/",
    "deploy/monitoring/",
    "deploy/prometheus/",
    "docs/adr/",
    "docs/evidence/",
    "docs/reference/",
    "docs/use/sql/",
    "services/dashboard/web/dist/",
    "schemas/json/",
    "schemas/released/",
];
const EXTENSIONS: [&str; 7] = ["rs", "md", "ts", "tsx", "json", "yaml", "txt"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn is_source(path: &str) -> bool {
    let folders = ["tests", "benches", "examples", "python"];
    let path = Path::new(path);
    !LEFT_OUT.iter().any(|left| path.to_str().unwrap().starts_with(left))
        && !path.components().any(|part| folders.iter().any(|folder| part.as_os_str() == *folder))
        && path.file_name().is_some_and(|name| name != "tests.rs")
        && path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}

/// Returns the sources that git knows, with their texts.
fn sources() -> Vec<(String, String)> {
    let list = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output().expect("git lists the files");
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let names = String::from_utf8(list.stdout).unwrap();
    let names = names.split_terminator('\0').filter(|name| is_source(name));
    names.filter_map(|name| Some((name.to_owned(), fs::read_to_string(root().join(name)).ok()?))).collect()
}

#[test]
fn each_recipe_names_every_file_of_an_instance() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let sources = sources();
    assert!(sources.len() > 500, "only {} files", sources.len());
    let mut missing = Vec::new();
    for Instance { recipe, names, others } in INSTANCES {
        let (_, rest) = page.split_once(&format!("\n### {recipe}\n")).unwrap_or_else(|| panic!("no recipe {recipe:?}"));
        let recipe_text = rest.split("\n##").next().unwrap();
        let touched = sources.iter().filter(|(_, text)| names.iter().any(|name| text.contains(name)));
        let touched: Vec<&String> =
            touched.map(|(path, _)| path).filter(|path| !others.iter().any(|other| path.starts_with(other))).collect();
        assert!(touched.len() >= 4, "{recipe}: {touched:?}");
        let unnamed = touched.into_iter().filter(|path| !recipe_text.contains(&format!("`{path}`")));
        missing.extend(unnamed.map(|path| format!("{recipe}: {path}")));
    }
    assert!(missing.is_empty(), "files that the recipes of CONTRIBUTING.md do not name:\n{}", missing.join("\n"));
}
