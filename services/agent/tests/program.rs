//! The command line of the program: version, help, manual page, and the variables that name its settings file.

use std::path::Path;
use std::process::{Command, Output};

fn agent(arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut agent = Command::new(env!("CARGO_BIN_EXE_eadt-agent"));
    agent.env_clear().envs(variables.iter().copied()).args(arguments).output().unwrap()
}

#[test]
fn version_help_and_manual_page_are_complete() {
    let printed = |arguments: &[&str]| String::from_utf8(agent(arguments, &[]).stdout).unwrap();
    let version = printed(&["--version"]);
    let commit = version.trim_end().rsplit_once(" (").and_then(|(_, commit)| commit.strip_suffix(')')).unwrap();
    let is_commit = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(version.starts_with("eadt-agent 0.") && (is_commit || commit == "unknown"), "{version}");
    for flag in ["-h", "--help"] {
        let help = printed(&[flag]);
        assert!(help.contains("Example:\n  eadt-agent --kafka") && !help.contains("manual"), "{help}");
    }
    let dir = tempfile::tempdir().unwrap();
    let written = agent(&["man", dir.path().to_str().unwrap()], &[]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let page = std::fs::read_to_string(dir.path().join("eadt-agent.1")).unwrap();
    for part in [".SH NAME", "\\fBrestore\\fR", ".SH EXAMPLES\n.nf\neadt\\-agent \\-\\-kafka", ".SH \"EXIT STATUS\""] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("EXTRA"), "{page}");
}

#[test]
fn the_settings_file_is_that_of_the_variable_or_of_its_old_name() {
    let (new, old) = (Path::new("/nowhere/new.toml"), Path::new("/nowhere/old.toml"));
    for (variables, expected) in [
        (&[("EADT_CONFIG_FILE", new)][..], "/nowhere/new.toml"),
        (&[("EADT_CONFIG", old)], "/nowhere/old.toml"),
        (&[("EADT_CONFIG", old), ("EADT_CONFIG_FILE", new)], "/nowhere/new.toml"),
    ] {
        let refused = agent(&["show"], variables);
        let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && reason.contains(expected), "{variables:?}: {reason}");
    }
}
