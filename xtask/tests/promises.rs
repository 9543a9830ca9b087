//! Every claim of SECURITY.md, every bound of who may do what there, and every promise of docs/evidence/promises.md names the test or the fault row that shows it, and that exists.

use std::collections::BTreeSet;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the parts of a text in backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the references `file::test` of a text.
fn tests(text: &str) -> Vec<(&str, &str)> {
    let references = code(text).filter_map(|code| code.split_once("::"));
    references.filter(|(file, _)| Path::new(file).extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Returns the fault rows that a text asks to run, but for the command itself.
fn rows(text: &str) -> Vec<&str> {
    let named = code(text).filter_map(|code| code.strip_prefix("cargo xtask chaos "));
    named.flat_map(str::split_whitespace).filter(|row| row.starts_with(|first: char| first.is_ascii_lowercase())).collect()
}

/// Returns the rows of the harness, by their declarations.
fn known_rows() -> BTreeSet<String> {
    let mut folders = vec![root().join("tests/chaos/src/rows")];
    let mut known = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(path).unwrap();
                let names = text.lines().filter_map(|line| line.trim().strip_prefix("name: \"")?.split('"').next());
                known.extend(names.map(str::to_owned));
            }
        }
    }
    known
}

/// Fails if a text names what is not there; how much it names.
fn check(text: &str, known: &BTreeSet<String>) -> usize {
    let (tests, rows) = (tests(text), rows(text));
    for (file, test) in &tests {
        assert!(read(file).contains(&format!("fn {test}(")), "{file} has no {test}: {text}");
    }
    for row in &rows {
        assert!(known.contains(*row), "there is no row {row}: {text}");
    }
    tests.len() + rows.len()
}

#[test]
fn every_claim_about_security_names_a_test_that_exists() {
    let text = read("SECURITY.md");
    let (_, rest) = text.split_once("## What holds").expect("the section with the claims");
    let (claims, _) = rest.split_once("\n## ").expect("a section after it");
    let claims: Vec<&str> = claims.split("\n- ").skip(1).collect();
    assert!(claims.len() >= 25, "{}", claims.len());
    let known = known_rows();
    for claim in claims {
        assert!(check(claim, &known) > 0, "no test is named: {claim}");
    }
}

#[test]
fn every_bound_of_who_may_do_what_names_a_test_that_exists() {
    let text = read("SECURITY.md");
    let (_, rest) = text.split_once("## Who may send what").expect("the section with the table");
    let (section, _) = rest.split_once("\n## What holds").expect("the claims come after it");
    let known = known_rows();
    let (table, tenant) = section.split_once("**A hostile tenant**").expect("the tenant comes after the table");
    let rows: Vec<&str> =
        table.lines().filter(|line| line.starts_with('|') && !line.starts_with("|---") && !line.starts_with("| who ")).collect();
    assert!(rows.len() >= 6, "{rows:#?}");
    for row in rows {
        let (_, shown) = row.trim_end_matches([' ', '|']).rsplit_once(" | ").expect("columns");
        assert!(check(shown, &known) > 0, "nothing is named: {row}");
    }
    let (within, clauses) = tenant.split_once("\n- ").expect("what he cannot do is a list");
    assert!(check(within, &known) > 0, "nothing is named: {within}");
    let clauses: Vec<&str> = clauses.split("\n- ").collect();
    assert!(clauses.len() >= 5, "{clauses:#?}");
    for clause in clauses {
        assert!(check(clause, &known) > 0, "nothing is named: {clause}");
    }
}

#[test]
fn every_promise_names_what_shows_it() {
    let (text, known) = (read("docs/evidence/promises.md"), known_rows());
    let promises: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("|---") && !line.starts_with("| promise "))
        .collect();
    assert!(promises.len() >= 30, "{}", promises.len());
    for promise in promises {
        let (_, shown) = promise.rsplit_once(" | ").expect("two columns");
        assert!(check(shown, &known) > 0, "nothing is named: {promise}");
    }
}

#[test]
fn the_readme_leads_to_the_promises_and_names_nothing_that_is_not_there() {
    let (text, known) = (read("README.md"), known_rows());
    assert!(text.contains("](docs/evidence/promises.md)"), "the README does not lead to docs/evidence/promises.md");
    assert_eq!(check(&text, &known), 0, "tests and fault rows belong into docs/evidence/promises.md");
    let words = text.split_whitespace().count();
    assert!(words <= 600, "the README has {words} words");
    assert_eq!(text.matches("](docs/images/").count(), 1, "the README has one picture; the others are in docs");
    let links = crate::links::broken(root(), Path::new("README.md"), &text);
    assert!(links.is_empty(), "{links:#?}");
    let commands: String = text.split("```").skip(1).step_by(2).collect();
    let files = commands.split_whitespace().filter(|word| word.starts_with("deploy/") || word.starts_with("docs/"));
    for file in files {
        assert!(root().join(file).exists(), "the README names {file}");
    }
}

/// Returns the commands of all code blocks of a text, without comments, each on one line.
fn commands(text: &str) -> Vec<String> {
    let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).collect();
    let joined = blocks.join("\n").replace("\\\n", " ");
    let without_comments = joined.lines().map(|line| line.split(" #").next().unwrap_or(line));
    without_comments.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_readmes_way_onto_a_cluster_is_the_tutorials() {
    let (readme, page) = (read("README.md"), commands(&read("docs/operate/kubernetes.md")));
    let (_, rest) = readme.split_once("## On a cluster").expect("the section");
    let (section, _) = rest.split_once("\n## ").expect("a section after it");
    let steps = commands(section);
    assert!(steps.len() >= 5, "{steps:#?}");
    for step in steps {
        assert!(page.contains(&step), "docs/operate/kubernetes.md has no `{step}`");
    }
}

#[test]
fn references_are_found_in_code_only() {
    let text = "- holds: `a/b.rs::one`,\n  `c.rs::two`; see `cargo xtask sbom`, `core::time` and d.rs::three; `cargo xtask chaos [ROW…]`";
    assert_eq!(tests(text), [("a/b.rs", "one"), ("c.rs", "two")]);
    assert_eq!(rows(text), Vec::<&str>::new());
    assert_eq!(rows("`cargo xtask chaos killed storm`, cargo xtask chaos zombie"), ["killed", "storm"]);
    let known = known_rows();
    assert!(known.len() > 25 && known.contains("killed"), "{known:?}");
}
