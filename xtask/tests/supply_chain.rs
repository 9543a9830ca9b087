//! Checks the packages that cargo resolves against deny.toml. `cargo xtask deny` checks the same and advisories with
//! cargo-deny if that is installed; this needs nothing.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use support::{cargo, host};

fn deny() -> toml::Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deny.toml");
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// Returns everything that is built on this platform with any of the features, tests included.
fn packages() -> Vec<Value> {
    let json = cargo(&["metadata", "--format-version=1", "--all-features", "--filter-platform", &host()]);
    let metadata: Value = serde_json::from_str(&json).unwrap();
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

/// Crates that may have further licences, with these.
fn exceptions(deny: &toml::Table) -> BTreeMap<String, BTreeSet<String>> {
    let exceptions = deny["licenses"]["exceptions"].as_array().unwrap().iter();
    let text = |value: &toml::Value| value.as_str().unwrap().to_owned();
    exceptions.map(|one| (text(&one["crate"]), one["allow"].as_array().unwrap().iter().map(text).collect())).collect()
}

/// Returns whether an SPDX expression can be satisfied with these licences. `/` is an old form of `OR`.
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
    let deny = deny();
    let allowed = allowed(&deny);
    let exceptions = exceptions(&deny);
    // `cargo tree` lists only the packages that are built; `cargo metadata` also lists those that only an inactive feature
    // of others would bring.
    let tree = ["tree", "--workspace", "--all-features", "--prefix=none", "--format={p}\t{l}", "--edges=normal,build,dev"];
    let text = cargo(&tree);
    let built: BTreeSet<(&str, &str)> = text.lines().filter_map(|line| line.split_once('\t')).collect();
    assert!(built.len() > 100, "{}", built.len());
    for only_with_a_feature in ["libfuzzer-sys v", "redb v"] {
        assert!(
            built.iter().any(|(package, _)| package.starts_with(only_with_a_feature)),
            "{only_with_a_feature} is not looked at"
        );
    }
    let is_allowed = |package: &str, licence: &str| {
        let licence = licence.trim_end_matches(" (*)");
        let more = package.split(' ').next().and_then(|name| exceptions.get(name));
        satisfiable(licence, &allowed) || more.is_some_and(|more| satisfiable(licence, &allowed.union(more).cloned().collect()))
    };
    let refused: Vec<_> = built.iter().filter(|(package, licence)| !is_allowed(package, licence)).collect();
    assert!(refused.is_empty(), "licences that deny.toml does not allow: {refused:#?}");
    let shipped = ["tree", "--package=eadt", "--package=eadt-agent", "--all-features", "--prefix=none", "--format={p}"];
    let shipped = cargo(&[&shipped[..], &["--edges=normal,build"]].concat());
    let excepted: Vec<_> =
        shipped.lines().filter(|line| exceptions.keys().any(|name| line.starts_with(&format!("{name} ")))).collect();
    assert!(shipped.lines().count() > 100 && excepted.is_empty(), "exceptions are for what is not shipped: {excepted:?}");
}

#[test]
fn every_dependency_comes_from_the_registry_or_from_here() {
    // The lock file has every package, of whichever platform and feature.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
    let lock: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
    let locked = lock["package"].as_array().unwrap();
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--no-deps"])).unwrap();
    let own: BTreeSet<&str> =
        metadata["packages"].as_array().unwrap().iter().map(|package| package["name"].as_str().unwrap()).collect();
    assert!(locked.len() > 500 && own.len() > 20, "{} {}", locked.len(), own.len());
    let strangers: Vec<String> = locked.iter().filter_map(|package| stranger(package, &own)).collect();
    assert!(strangers.is_empty(), "{strangers:#?}");
    let packages = packages();
    let here: BTreeSet<&str> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let known: BTreeSet<&str> = locked.iter().map(|package| package["name"].as_str().unwrap()).collect();
    assert!(here.len() > 100 && here.is_subset(&known), "what is built is what is locked");
}

/// Returns the reason why a package of the lock file comes from a wrong source.
fn stranger(package: &toml::Value, own: &BTreeSet<&str>) -> Option<String> {
    let text = |key: &str| package.get(key).and_then(toml::Value::as_str);
    let name = text("name")?;
    match text("source") {
        None if own.contains(name) => None,
        None => Some(format!("{name} comes from a folder outside the workspace")),
        Some("registry+https://github.com/rust-lang/crates.io-index") if text("checksum").is_some() => None,
        Some(source) => Some(format!("{name} comes from {source}, checksum {:?}", text("checksum"))),
    }
}

#[test]
fn what_comes_from_elsewhere_is_found() {
    let own = BTreeSet::from(["eadt"]);
    let registry = "source = \"registry+https://github.com/rust-lang/crates.io-index\"";
    for (package, is_strange) in [
        ("name = \"eadt\"".to_owned(), false),
        (format!("name = \"a\"\n{registry}\nchecksum = \"c\""), false),
        (format!("name = \"a\"\n{registry}"), true),
        ("name = \"a\"".to_owned(), true),
        ("name = \"a\"\nsource = \"git+https://example.org/a#1\"".to_owned(), true),
        ("name = \"a\"\nsource = \"registry+https://example.org/index\"\nchecksum = \"c\"".to_owned(), true),
    ] {
        let package: toml::Table = package.parse().unwrap();
        assert_eq!(stranger(&toml::Value::Table(package.clone()), &own).is_some(), is_strange, "{package}");
    }
}

#[test]
fn what_is_banned_is_not_used() {
    let deny = deny();
    let bans = deny["bans"]["deny"].as_array().unwrap();
    for package in packages() {
        for dependency in package["dependencies"].as_array().unwrap() {
            // Optional ones count when something turns them on; then they are resolved and are in `packages`.
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
fn licence_expressions_are_read_as_spdx_defines() {
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
