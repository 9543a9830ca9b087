//! Every relative link of every Markdown page leads to a file, and its fragment to a heading there.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the text without fenced code blocks.
fn without_blocks(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    prose
}

/// Returns the targets of the links of a page. Links in code are examples.
fn targets(text: &str) -> Vec<String> {
    let prose: String = without_blocks(text).split('`').step_by(2).collect();
    prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// Returns the fragment that GitHub gives to a heading.
fn fragment(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_')).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn fragments(text: &str) -> Vec<String> {
    let prose = without_blocks(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| fragment(line.trim_start_matches('#'))).collect()
}

/// Resolves `..` without asking the disk, so that a link through a folder that is not there is broken.
fn resolve(folder: &Path, target: &str) -> PathBuf {
    let mut resolved = PathBuf::new();
    for part in folder.join(target).components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            Component::CurDir => {}
            part => resolved.push(part),
        }
    }
    resolved
}

/// Returns the links of the page at `path` (relative to `root`) that lead nowhere.
pub fn broken(root: &Path, path: &Path, text: &str) -> Vec<String> {
    let leads_nowhere = |target: &String| {
        if target.contains("://") || target.starts_with("mailto:") {
            return false;
        }
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let to = if file.is_empty() { path.to_owned() } else { resolve(path.parent().unwrap_or(Path::new("")), file) };
        let to = root.join(to);
        if heading.is_empty() || to.extension().is_none_or(|extension| extension != "md") {
            return !to.exists();
        }
        fs::read_to_string(to).map_or(true, |text| !fragments(&text).iter().any(|known| known == heading))
    };
    targets(text).into_iter().filter(leads_nowhere).map(|target| format!("{}: {target}", path.display())).collect()
}

/// Returns the Markdown pages that git knows, relative to the root.
fn pages() -> Vec<PathBuf> {
    let list = Command::new("git").args(["ls-files", "-z", "*.md"]).current_dir(root()).output().expect("git lists the pages");
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let names = String::from_utf8(list.stdout).unwrap();
    let pages: Vec<_> = names.split_terminator('\0').map(PathBuf::from).filter(|path| root().join(path).exists()).collect();
    assert!(pages.len() > 30, "{pages:?}");
    pages
}

#[test]
fn every_page_of_the_documentation_opens_with_whom_it_is_for() {
    for path in pages().iter().filter(|path| path.starts_with("docs") && !path.starts_with("docs/adr")) {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let first = text.lines().find(|line| !(line.is_empty() || line.starts_with('#') || line.starts_with("<!--")));
        assert!(first.is_some_and(|line| line.starts_with("For ")), "{}: {first:?}", path.display());
    }
}

/// Folders at the top in which code is.
const CODE_FOLDERS: [&str; 9] = ["src", "crates", "services", "schemas", "tests", "xtask", "deploy", "configs", "python"];

/// Returns the paths of source code that a page names, and that are not there. A bare `name.rs` lies beside the path before it in
/// the same line.
fn missing_code(root: &Path, text: &str) -> Vec<String> {
    let is_source = |name: &str| !name.contains('/') && Path::new(name).extension().is_some_and(|extension| extension == "rs");
    let mut missing = Vec::new();
    for line in without_blocks(text).lines() {
        let mut folder: Option<PathBuf> = None;
        for word in line.split('`').skip(1).step_by(2) {
            let is_path = word.split_once('/').is_some_and(|(top, _)| CODE_FOLDERS.contains(&top)) && !word.contains([' ', '*']);
            let path = match &folder {
                _ if is_path => root.join(word),
                Some(folder) if is_source(word) => folder.join(word),
                _ => continue,
            };
            if !path.exists() {
                missing.push(word.to_owned());
            } else if is_path {
                folder = Some(if path.is_dir() { path } else { path.parent().unwrap_or(root).to_owned() });
            }
        }
    }
    missing
}

#[test]
fn every_file_that_the_pages_for_contributors_name_is_there() {
    for page in ["CONTRIBUTING.md", "docs/architecture.md"] {
        let missing = missing_code(root(), &fs::read_to_string(root().join(page)).unwrap());
        assert!(missing.is_empty(), "{page} names files that are not there: {missing:?}");
    }
    let text = "`crates/core/src/lib.rs`, `partition.rs`, `gone.rs`; `crates/gone/src/lib.rs`; `lone.rs` of `cargo xtask test`";
    assert_eq!(missing_code(root(), text), ["gone.rs", "crates/gone/src/lib.rs", "lone.rs"]);
}

/// Returns the links of the page at `path` that lead to source code. Settings, manifests and scripts to install are none.
fn links_to_code(path: &Path, text: &str) -> Vec<String> {
    const SOURCES: [&str; 6] = ["src", "crates", "services", "tests", "xtask", "python"];
    let is_code = |target: &String| {
        let to = resolve(path.parent().unwrap_or(Path::new("")), target.split('#').next().unwrap_or_default());
        let is_page = to.extension().is_some_and(|extension| extension == "md");
        let is_manifest = to == Path::new("Cargo.toml") || to == Path::new("build.rs");
        !target.contains("://") && (is_manifest || !is_page && SOURCES.iter().any(|folder| to.starts_with(folder)))
    };
    targets(text).into_iter().filter(is_code).map(|target| format!("{}: {target}", path.display())).collect()
}

#[test]
fn no_link_of_the_documentation_leads_to_source_code() {
    let documents = pages().into_iter().filter(|path| path.starts_with("docs") && path != Path::new("docs/architecture.md"));
    let read = |path: PathBuf| links_to_code(&path, &fs::read_to_string(root().join(&path)).unwrap());
    let links: Vec<String> = documents.flat_map(read).collect();
    assert!(links.is_empty(), "links to source code:\n{}", links.join("\n"));
    let text = "[a](../../Cargo.toml) [b](../../python/README.md) [c](../../crates/core/src/lib.rs#L1) [d](../../configs/a.toml) [e](../use)";
    assert_eq!(
        links_to_code(Path::new("docs/use/a.md"), text),
        ["docs/use/a.md: ../../Cargo.toml", "docs/use/a.md: ../../crates/core/src/lib.rs#L1"]
    );
}

#[test]
fn every_relative_link_of_every_page_leads_somewhere() {
    let read = |path: &PathBuf| broken(root(), path, &fs::read_to_string(root().join(path)).unwrap());
    let links: Vec<String> = pages().iter().flat_map(read).collect();
    assert!(links.is_empty(), "links that lead nowhere:\n{}", links.join("\n"));
}

#[test]
fn a_link_without_a_file_or_a_heading_is_found() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("docs/use")).unwrap();
    fs::write(folder.path().join("docs/use/a.md"), "# One, two: `three`\n\n```\n# no heading\n```\n").unwrap();
    let links = |text: &str| broken(folder.path(), Path::new("docs/b.md"), text);
    for whole in [
        "[a](use/a.md)",
        "[a](use/a.md#one-two-three)",
        "[a](../docs/use)",
        "[a](https://example.org/x)",
        "`[a](no.md)`",
        "```\n[a](no.md)\n```\n",
        "# Here\n[a](use/)",
    ] {
        assert_eq!(links(whole), Vec::<String>::new(), "{whole}");
    }
    for (text, target) in [
        ("[a](no.md)", "no.md"),
        ("[a](use/a.md#two)", "use/a.md#two"),
        ("[a](use/a.md#no-heading)", "use/a.md#no-heading"),
        ("[a](a.md)", "a.md"),
        ("[a](no/../use/b.md)", "no/../use/b.md"),
        ("one [a](use/a.md), two [b](../README.md)", "../README.md"),
    ] {
        assert_eq!(links(text), [format!("docs/b.md: {target}")], "{text}");
    }
}

#[test]
fn the_glossary_has_every_topic() {
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let rows: String = glossary.lines().filter(|line| line.starts_with("| ")).collect();
    let missing = eadt_schemas::Topic::ALL.into_iter().filter(|topic| !rows.contains(&format!("`{topic}`")));
    let missing: Vec<_> = missing.collect();
    assert!(missing.is_empty(), "topics without a term in docs/glossary.md: {missing:?}");
}

#[test]
fn every_file_that_a_recipe_names_exists() {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let (_, recipes) = text.split_once("\n## Recipes").expect("the recipes");
    let (recipes, _) = recipes.split_once("\n## ").expect("a section after them");
    let named: Vec<&str> =
        recipes.split('`').skip(1).step_by(2).filter(|code| code.contains('/') && !code.contains(' ')).collect();
    assert!(named.len() >= 40, "{named:?}");
    for path in named {
        assert!(root().join(path).exists(), "CONTRIBUTING.md names {path}");
    }
}
