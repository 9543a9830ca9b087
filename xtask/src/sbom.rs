//! `cargo xtask sbom`: what the shipped binaries are made of, as a `CycloneDX` document.
//!
//! In: `cargo metadata` of the locked dependencies and the checksums of Cargo.lock. Out: JSON. The same tree gives the same bytes:
//! there is no time and no random serial number in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::process;

/// The packages whose binaries are shipped.
const SHIPPED: [&str; 2] = ["eadt", "eadt-agent"];

#[derive(Debug, Args)]
pub struct Options {
    /// File to write [default: standard output].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Features that the binaries are built with.
    #[arg(long, value_delimiter = ',', default_value = "kafka-tls")]
    features: Vec<String>,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let document = document(&options.features)?;
    let text = format!("{}\n", serde_json::to_string_pretty(&document)?);
    if let Some(path) = &options.out {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    } else {
        print!("{text}");
        Ok(())
    }
}

fn document(features: &[String]) -> anyhow::Result<Value> {
    let version = process::output("rustc", &["-vV"]).context("rustc does not run")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc does not print its host")?.to_owned();
    let mut cargo = process::cargo();
    cargo.args(["metadata", "--format-version=1", "--locked", "--filter-platform", &host]);
    if !features.is_empty() {
        cargo.args(["--features", &features.join(",")]);
    }
    let output = cargo.output().context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let lock = std::fs::read_to_string(process::root().join("Cargo.lock")).context("cannot read Cargo.lock")?;
    Ok(from_metadata(&metadata, &checksums(&lock)))
}

/// Returns the name and version to SHA-256.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
        line.and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
    };
    let packages = lock.split("[[package]]").skip(1);
    packages
        .filter_map(|package| Some(((value(package, "name")?, value(package, "version")?), value(package, "checksum")?)))
        .collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn from_metadata(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let packages: BTreeMap<&str, &Value> =
        metadata["packages"].as_array().into_iter().flatten().map(|package| (text(package, "id"), package)).collect();
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    // Crates that only tests need are not shipped.
    let uses: BTreeMap<&str, BTreeSet<&str>> = nodes
        .map(|node| {
            let shipped =
                node["deps"].as_array().into_iter().flatten().filter(|dependency| {
                    dependency["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"] != "dev")
                });
            (text(node, "id"), shipped.map(|dependency| text(dependency, "pkg")).collect())
        })
        .collect();
    let mut seen: BTreeSet<&str> =
        packages.iter().filter(|(_, package)| SHIPPED.contains(&text(package, "name"))).map(|(id, _)| *id).collect();
    let mut next: VecDeque<&str> = seen.iter().copied().collect();
    while let Some(id) = next.pop_front() {
        next.extend(uses.get(id).into_iter().flatten().filter(|used| seen.insert(used)));
    }
    let reference = |id: &str| {
        let package = packages[id];
        format!("pkg:cargo/{}@{}", text(package, "name"), text(package, "version"))
    };
    let component = |id: &&str| {
        let package = packages[*id];
        let (name, version) = (text(package, "name"), text(package, "version"));
        let shipped = SHIPPED.contains(&name);
        let mut component = json!({
            "type": if shipped { "application" } else { "library" }, "bom-ref": reference(id), "name": name, "version": version,
            "purl": reference(id),
        });
        if let Some(licence) = package["license"].as_str() {
            // The registry's old way of writing OR.
            component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
        }
        if let Some(checksum) = checksums.get(&(name.to_owned(), version.to_owned())) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        component
    };
    let dependency = |id: &&str| {
        let used: Vec<String> = uses.get(*id).into_iter().flatten().map(|used| reference(used)).collect();
        json!({"ref": reference(id), "dependsOn": used})
    };
    json!({
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "components": seen.iter().map(component).collect::<Vec<_>>(),
        "dependencies": seen.iter().map(dependency).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_is_listed_once_with_licence_and_checksum() {
        let document = document(&["kafka-tls".to_owned()]).unwrap();
        let components = document["components"].as_array().unwrap();
        let names: Vec<&str> = components.iter().map(|component| text(component, "name")).collect();
        for shipped in ["eadt", "eadt-agent", "eadt-core", "rdkafka-sys", "openssl-src", "fjall", "kube", "parquet"] {
            assert!(names.contains(&shipped), "{shipped}");
        }
        for only_for_tests in ["eadt-tests", "proptest", "rcgen", "xtask"] {
            assert!(!names.contains(&only_for_tests), "{only_for_tests}");
        }
        let references: BTreeSet<&str> = components.iter().map(|component| text(component, "bom-ref")).collect();
        assert_eq!(references.len(), components.len());
        for component in components {
            let foreign = !text(component, "name").starts_with("eadt");
            assert!(component["licenses"].is_array(), "{component}");
            assert_eq!(component["hashes"].is_array(), foreign, "{component}");
        }
        for dependency in document["dependencies"].as_array().unwrap() {
            for used in dependency["dependsOn"].as_array().unwrap() {
                assert!(references.contains(used.as_str().unwrap()), "{used}");
            }
        }
    }

    #[test]
    fn checksums_are_read_from_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"00ff\"\n\n[[package]]\nname = \"b\"\nversion = \"2.0.0\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([(("a".to_owned(), "1.0.0".to_owned()), "00ff".to_owned())]));
    }
}
