//! Every claim of SECURITY.md names the test that shows it, and that test exists.

use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The references `file::test` of a text.
fn references(text: &str) -> Vec<(&str, &str)> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| code.split_once("::"))
        .filter(|(file, _)| Path::new(file).extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

#[test]
fn every_claim_names_a_test_that_exists() {
    let text = std::fs::read_to_string(root().join("SECURITY.md")).unwrap();
    let (_, rest) = text.split_once("## What holds").expect("the section with the claims");
    let (claims, _) = rest.split_once("\n## ").expect("a section after it");
    let claims: Vec<&str> = claims.split("\n- ").skip(1).collect();
    assert!(claims.len() >= 25, "{}", claims.len());
    for claim in claims {
        let references = references(claim);
        assert!(!references.is_empty(), "no test is named: {claim}");
        for (file, test) in references {
            let source = std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {test}(")), "{file} has no {test}: {claim}");
        }
    }
}

#[test]
fn references_are_found_in_code_only() {
    let text = "- holds: `a/b.rs::one`,\n  `c.rs::two`; see `cargo xtask sbom`, `core::time` and d.rs::three";
    assert_eq!(references(text), [("a/b.rs", "one"), ("c.rs", "two")]);
}
