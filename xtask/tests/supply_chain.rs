//! What deny.toml allows, checked against what cargo resolves. `cargo xtask deny` checks the same and advisories with
//! cargo-deny where that is installed; this needs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn deny() -> toml::Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Everything that is built on this platform, tests included.
fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let version = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let arguments = ["metadata", "--format-version=1", "--offline", "--filter-platform", host];
    let output = Command::new(cargo).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let uses: BTreeMap<&str, &Vec<Value>> =
        nodes.iter().map(|node| (node["id"].as_str().unwrap(), node["deps"].as_array().unwrap())).collect();
    let mut next: Vec<&str> = metadata["workspace_members"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    let mut reached = BTreeSet::new();
    while let Some(id) = next.pop() {
        if reached.insert(id) {
            next.extend(uses[id].iter().map(|used| used["pkg"].as_str().unwrap()));
        }
    }
    let packages = metadata["packages"].as_array().unwrap().iter();
    packages.filter(|package| reached.contains(package["id"].as_str().unwrap())).cloned().collect()
}

fn allowed(deny: &toml::Table) -> BTreeSet<String> {
    deny["licenses"]["allow"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Whether an SPDX expression can be satisfied with these licences. `/` is an old form of `OR`.
fn satisfiable(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let text = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ").replace(" WITH ", "\u{1}");
    let words: Vec<String> = text.split_whitespace().map(|word| word.replace('\u{1}', " WITH ")).collect();
    let mut rest = words.as_slice();
    let result = any_of(&mut rest, allowed);
    result && rest.is_empty()
}

fn any_of(rest: &mut &[String], allowed: &BTreeSet<String>) -> bool {
    let mut result = all_of(rest, allowed);
    while rest.first().is_some_and(|word| word == "OR") {
        *rest = &rest[1..];
        result |= all_of(rest, allowed);
    }
    result
}

fn all_of(rest: &mut &[String], allowed: &BTreeSet<String>) -> bool {
    let mut result = one(rest, allowed);
    while rest.first().is_some_and(|word| word == "AND") {
        *rest = &rest[1..];
        result &= one(rest, allowed);
    }
    result
}

fn one(rest: &mut &[String], allowed: &BTreeSet<String>) -> bool {
    let Some((word, after)) = rest.split_first() else { return false };
    *rest = after;
    if word != "(" {
        return allowed.contains(word);
    }
    let result = any_of(rest, allowed);
    if let Some((_, after)) = rest.split_first().filter(|(word, _)| *word == ")") {
        *rest = after;
    }
    result
}

#[test]
fn every_dependency_has_an_allowed_licence() {
    let allowed = allowed(&deny());
    // cargo tree knows what is really built; cargo metadata also lists what only an inactive feature would bring.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let arguments = ["tree", "--offline", "--workspace", "--prefix=none", "--format={p}\t{l}", "--edges=normal,build,dev"];
    let output = Command::new(cargo).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let built: BTreeSet<(&str, &str)> = text.lines().filter_map(|line| line.split_once('\t')).collect();
    assert!(built.len() > 100, "{}", built.len());
    let refused: Vec<_> = built.iter().filter(|(_, l)| !satisfiable(l.trim_end_matches(" (*)"), &allowed)).collect();
    assert!(refused.is_empty(), "licences that deny.toml does not allow: {refused:#?}");
}

#[test]
fn every_dependency_comes_from_the_registry_or_from_here() {
    let packages = packages();
    assert!(packages.len() > 100, "{}", packages.len());
    for package in packages {
        let source = package["source"].as_str();
        let registry = source.is_none_or(|source| source == "registry+https://github.com/rust-lang/crates.io-index");
        assert!(registry, "{} comes from {source:?}", package["name"]);
    }
}

#[test]
fn what_is_banned_is_not_used() {
    let deny = deny();
    let bans = deny["bans"]["deny"].as_array().unwrap();
    for package in packages() {
        for dependency in package["dependencies"].as_array().unwrap() {
            // Optional ones count when something turns them on; then they are resolved and stand in `packages`.
            let optional = dependency["optional"] == true && package["source"].is_string();
            let ban = bans.iter().find(|ban| ban["crate"].as_str() == dependency["name"].as_str());
            let Some(ban) = ban.filter(|_| !optional && dependency["kind"] != "dev") else { continue };
            let wrappers = ban.get("wrappers").and_then(toml::Value::as_array);
            let wrapped = wrappers.is_some_and(|list| list.iter().any(|name| name.as_str() == package["name"].as_str()));
            let active = dependency["target"].is_null() || package["source"].is_null();
            assert!(wrapped || !active, "{} uses {}: {}", package["name"], dependency["name"], ban["reason"]);
        }
    }
}

#[test]
fn licence_expressions_are_read_as_spdx_says() {
    let allowed: BTreeSet<String> = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("MIT AND ISC", true),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("GPL-3.0 AND (MIT OR ISC)", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("none given", false),
        ("", false),
    ] {
        assert_eq!(satisfiable(expression, &allowed), expected, "{expression}");
    }
}
