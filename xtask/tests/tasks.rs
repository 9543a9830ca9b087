//! Checks that every task that runs beside its caller is in the table of crates/tasks, and that the page agrees with
//! the table.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Up to the module of tests, which is the last of a file.
fn without_tests(text: &str) -> &str {
    let is_module = |after: &str| after.lines().skip(1).take(2).any(|line| line.contains("mod ") && line.ends_with('{'));
    text.match_indices("#[cfg(test)]").find(|(at, _)| is_module(&text[*at..])).map_or(text, |(at, _)| &text[..at])
}

/// Returns whether a file has nothing but tests.
fn is_of_tests(path: &Path) -> bool {
    path.file_stem().and_then(|name| name.to_str()).is_some_and(|name| name == "tests" || name.ends_with("_tests"))
}

/// Returns the sources of the program and of every crate, without their tests.
fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![root().join("src")];
    for parent in ["crates", "services"] {
        folders.extend(fs::read_dir(root().join(parent)).unwrap().map(|entry| entry.unwrap().path().join("src")));
    }
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !is_of_tests(&path) {
                let text = fs::read_to_string(&path).unwrap();
                sources.push((path.strip_prefix(root()).unwrap().to_owned(), without_tests(&text).to_owned()));
            }
        }
    }
    sources
}

/// Calls that start something beside their caller: with the file, the line and what is before and after the name.
fn starts<'a>(file: &'a Path, code: &'a str) -> impl Iterator<Item = (&'a Path, usize, &'a str, &'a str)> {
    code.match_indices("spawn").filter_map(move |(at, _)| {
        let line = code[..at].matches('\n').count();
        let begin = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let (before, after) = (&code[begin..at], &code[at..]);
        let name = after.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next()?;
        let called = after[name.len()..].starts_with('(') || after[name.len()..].starts_with("::<");
        let defined = before.trim_end().ends_with("fn") || before.contains("//");
        let ours =
            ["spawn", "spawn_blocking", "spawn_local", "spawn_thread", "spawn_scoped", "spawn_with_handle"].contains(&name);
        (called && !defined && ours).then_some((file, line + 1, before, after))
    })
}

/// Sets of tasks whose every end is looked at: where they are, and the entry that looks at it.
const SETS: [(&str, &str); 6] = [
    ("crates/kubernetes/src/cluster.rs", "KUBERNETES.failed("),
    ("services/collector/src/kubelet/mod.rs", "POD_FACTS.failed("),
    ("crates/service/src/connections.rs", "CONNECTION.failed("),
    ("services/dashboard/src/log.rs", "CONNECTION.watch("),
    ("src/live/dashboard_log.rs", "answer.unwrap_or_else("),
    ("src/commands/dashboard.rs", "checked(loading.await)"),
];

#[test]
fn nothing_is_started_without_its_entry() {
    let sources = sources();
    assert!(sources.len() > 200, "{}", sources.len());
    let mut seen = 0;
    for (file, code) in &sources {
        // Here starting is done, for entries.
        if file.starts_with("crates/tasks") || file.ends_with("crates/service/src/supervise.rs") {
            continue;
        }
        for (file, line, before, after) in starts(file, code) {
            seen += 1;
            let with_entry = after.starts_with("spawn(&tasks::") || after.starts_with("spawn_thread(&tasks::");
            // Tables of what is started name the entry of each.
            let source = after.starts_with("spawn(source.task(),") || after.starts_with("spawn_thread((stage.task)(),");
            // Another process, which its starter waits for; a scope ends when its threads have, and panics with them.
            let other = after.starts_with("spawn()") || before.trim_end().ends_with("scope.");
            // Waited for at once: its panic is the caller's.
            let statement = after.split(';').next().unwrap();
            let waited =
                after.starts_with("spawn_blocking(") && (statement.contains(").await") || code.contains("= resume_panic("));
            let stage = before.contains("|stage| tokio::") && code.contains("tasks::STAGE.failed(");
            let of_set = SETS.iter().any(|(path, looked_at)| file == Path::new(path) && code.contains(looked_at));
            assert!(
                with_entry || source || other || waited || stage || of_set,
                "{}:{line} starts something that crates/tasks does not know: `{}`; start it with an entry of the table \
                 (Task::thread, Supervisor::spawn, supervise::spawn_detached)",
                file.display(),
                statement.lines().next().unwrap()
            );
        }
        assert!(!code.contains("thread::Builder"), "{} makes a thread; Task::thread does it with an entry", file.display());
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn a_call_is_found_and_what_only_looks_like_one_is_not() {
    let code = "// spawn(one)\nfn spawn(x: u8) {}\n    std::thread::spawn(move || ());\n let spawned = spawn_collector(a);\n set.spawn(two);";
    let found: Vec<_> = starts(Path::new("x.rs"), code).map(|(_, line, before, _)| (line, before.trim())).collect();
    assert_eq!(found, [(3, "std::thread::"), (5, "set.")]);
}

#[test]
fn every_entry_is_used() {
    let code: String =
        sources().into_iter().filter(|(file, _)| !file.starts_with("crates/tasks")).map(|(_, code)| code).collect();
    let table = fs::read_to_string(root().join("crates/tasks/src/table.rs")).unwrap();
    let entries: Vec<&str> = table
        .lines()
        .filter_map(|line| line.trim().split_once(" \"").map(|(name, _)| name))
        .filter(|name| name.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_'))
        .collect();
    assert_eq!(entries.len(), eadt_tasks::ALL.len(), "{entries:?}");
    for entry in entries {
        let used = ["::", " ", "&", "{", "("]
            .iter()
            .any(|before| [".", ",", ")", "\n"].iter().any(|after| code.contains(&format!("{before}{entry}{after}"))));
        assert!(used, "{entry} is in the table, and nothing is started as it");
    }
}

#[test]
fn the_page_is_the_table() {
    let page = fs::read_to_string(root().join("docs/reference/tasks.md")).unwrap();
    assert_eq!(page, eadt_tasks::page(), "run `cargo xtask generate`");
}
