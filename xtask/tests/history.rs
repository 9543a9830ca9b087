//! The subjects of commits are short.

use std::path::Path;
use std::process::Command;

/// The last commit before the check of subjects existed.
const BEFORE: &str = "c996d6864a1e96f2dafa8ec356aba2621cf4b163";
const MAX_CHARACTERS: usize = 72;

#[test]
fn subjects_of_commits_have_at_most_72_characters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let range = format!("{BEFORE}..HEAD");
    let log = Command::new("git").args(["log", "--no-merges", "--format=%h %s", &range]).current_dir(root).output();
    let Some(log) = log.ok().filter(|log| log.status.success()) else {
        println!("skipped: the history does not go back to {BEFORE}");
        return;
    };
    let log = String::from_utf8_lossy(&log.stdout);
    let too_long = |line: &&str| line.split_once(' ').is_some_and(|(_, subject)| subject.chars().count() > MAX_CHARACTERS);
    let long: Vec<&str> = log.lines().filter(too_long).collect();
    assert!(long.is_empty(), "subjects of more than {MAX_CHARACTERS} characters:\n{}", long.join("\n"));
}
