//! The drawing of the crates in docs/architecture.md.
//!
//! In: `cargo metadata`, and the page with its table of crates, whose order the drawing follows as far as the dependencies allow. Out:
//! the page, with one row for each crate and the crates that it uses. Those that it also reaches through another one are left out.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::process;

pub const PAGE: &str = "docs/architecture.md";
/// The line before the drawing.
const MARK: &str = "<!-- Generated from `cargo metadata` by `cargo xtask generate`; a test fails if it is out of date. -->\n";

/// Returns the page with the drawing of the crates as they are.
pub fn page() -> anyhow::Result<String> {
    let output = process::cargo()
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .context("cannot start cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let page = fs::read_to_string(process::root().join(PAGE)).with_context(|| format!("cannot read {PAGE}"))?;
    with_drawing(&page, &drawing(&crates(&metadata, &page)))
}

/// A crate of the workspace.
#[derive(Debug)]
struct WorkspaceCrate {
    name: String,
    /// Crates for tests and developers first, then the order of the page's table.
    rank: (bool, usize),
    /// Crates of one group have no empty line between them.
    group: String,
    /// Names of the crates of the workspace that it is built with.
    uses: BTreeSet<String>,
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Returns the crates of the workspace, in the order of their ranks.
fn crates(metadata: &Value, page: &str) -> Vec<WorkspaceCrate> {
    let packages: Vec<&Value> = metadata["packages"].as_array().into_iter().flatten().collect();
    let names: BTreeSet<&str> = packages.iter().map(|package| text(package, "name")).collect();
    let root = format!("{}/", text(metadata, "workspace_root"));
    let rows: Vec<&str> = page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0)).collect();
    let read = |package: &&Value| {
        let manifest = text(package, "manifest_path");
        let folder = manifest.strip_prefix(&root).and_then(|path| path.strip_suffix("/Cargo.toml")).unwrap_or("src");
        let group = match folder.split('/').next().unwrap_or_default() {
            "xtask" => "tests",
            "schemas" => "crates",
            group => group,
        };
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let built_with = dependencies.filter(|dependency| dependency["kind"] != "dev").map(|dependency| text(dependency, "name"));
        WorkspaceCrate {
            name: text(package, "name").to_owned(),
            rank: (group != "tests", rows.iter().position(|row| row.trim_end_matches('/') == folder).unwrap_or(rows.len())),
            group: group.to_owned(),
            uses: built_with.filter(|name| names.contains(name)).map(str::to_owned).collect(),
        }
    };
    let mut crates: Vec<WorkspaceCrate> = packages.iter().map(read).collect();
    crates.sort_by(|a, b| (a.rank, &a.name).cmp(&(b.rank, &b.name)));
    crates
}

/// Returns the crates such that each comes before those that it uses, and otherwise in the order of their ranks.
fn ordered(crates: &[WorkspaceCrate]) -> Vec<&WorkspaceCrate> {
    let mut left: Vec<&WorkspaceCrate> = crates.iter().collect();
    let mut ordered = Vec::new();
    while let Some(next) = left.iter().position(|one| !left.iter().any(|user| user.uses.contains(&one.name))) {
        ordered.push(left.remove(next));
    }
    ordered
}

/// Returns the names of all crates that these ones use, directly and through others.
fn reached<'a>(crates: &'a [WorkspaceCrate], from: &'a BTreeSet<String>) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), from.iter().collect::<Vec<_>>());
    while let Some(name) = open.pop() {
        let found = crates.iter().filter(|one| one.name == *name);
        open.extend(found.flat_map(|one| &one.uses).filter(|used| reached.insert(used.as_str())));
    }
    reached
}

/// Returns the rows of the drawing.
fn drawing(crates: &[WorkspaceCrate]) -> String {
    let short = |name: &str| name.strip_prefix("eadt-").unwrap_or(name).to_owned();
    let ordered = ordered(crates);
    let width = ordered.iter().map(|one| short(&one.name).len()).max().unwrap_or_default();
    let mut rows = String::new();
    let mut group = "";
    for one in &ordered {
        if !group.is_empty() && group != one.group {
            rows.push('\n');
        }
        group = &one.group;
        let through = reached(crates, &one.uses);
        let direct = ordered.iter().filter(|other| one.uses.contains(&other.name) && !through.contains(other.name.as_str()));
        let direct: Vec<String> = direct.map(|other| short(&other.name)).collect();
        let row = format!("{:width$} ──▶ {}", short(&one.name), direct.join("  "));
        rows.push_str(if direct.is_empty() { row.split(' ').next().unwrap_or(&row) } else { &row });
        rows.push('\n');
    }
    rows
}

/// Replaces the code block after the mark.
fn with_drawing(page: &str, drawing: &str) -> anyhow::Result<String> {
    let (before, rest) = page.split_once(MARK).with_context(|| format!("{PAGE} has no line `{}`", MARK.trim_end()))?;
    let block = rest.strip_prefix("```\n").and_then(|rest| rest.split_once("```\n"));
    let (_, after) = block.with_context(|| format!("{PAGE} has no code block after `{}`", MARK.trim_end()))?;
    Ok(format!("{before}{MARK}```\n{drawing}```\n{after}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, folder: &str, uses: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> = uses.iter().map(|(name, kind)| json!({"name": name, "kind": kind})).collect();
        json!({"name": name, "manifest_path": format!("/r/{folder}Cargo.toml"), "dependencies": dependencies})
    }

    #[test]
    fn each_crate_has_a_row_above_those_that_it_uses_and_none_twice() {
        let metadata = json!({"workspace_root": "/r", "packages": [
            package("eadt-schemas", "schemas/", &[("serde", None)]),
            package("eadt-core", "crates/core/", &[("eadt-schemas", None)]),
            package("eadt-archiver", "services/archiver/", &[("eadt-schemas", None), ("eadt-core", Some("dev"))]),
            package("eadt-processor", "services/processor/", &[("eadt-core", None), ("eadt-schemas", None)]),
            package("eadt", "", &[("eadt-archiver", None), ("eadt-processor", None), ("eadt-core", None)]),
            package("eadt-chaos", "tests/chaos/", &[("eadt-processor", None)]),
        ]});
        let table =
            "| `src/` | |\n| `services/processor` | |\n| `services/archiver` | |\n| `schemas/` | |\n| `crates/core` | |\n";
        let rows = "chaos     ──▶ processor\n\
                    \n\
                    eadt      ──▶ processor  archiver\n\
                    \n\
                    processor ──▶ core\n\
                    archiver  ──▶ schemas\n\
                    \n\
                    core      ──▶ schemas\n\
                    schemas\n";
        assert_eq!(drawing(&crates(&metadata, table)), rows);
    }

    #[test]
    fn only_the_drawing_of_the_page_is_replaced() {
        let page = format!("# A\n```\na\n```\n{MARK}```\nold\n```\nafter\n```\nb\n```\n");
        let new = with_drawing(&page, "new\n").unwrap();
        assert_eq!(new, page.replace("old", "new"));
        assert_eq!(with_drawing(&new, "new\n").unwrap(), new);
        assert!(with_drawing("# A\n", "new\n").unwrap_err().to_string().contains("has no line"));
    }
}
