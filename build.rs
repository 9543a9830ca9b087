//! The commit that a program was built from, for `eadt --version` and `eadt-agent --version`.
//!
//! `SOURCE_COMMIT` if it is set, as in an image built without the repository; else that of the working tree's repository; else `unknown`.
//! It is run again only after a commit or a checkout.

use std::fs;
use std::path::{Path, PathBuf};

/// As many digits as name a commit for certain.
const DIGITS: usize = 12;

fn main() {
    println!("cargo:rerun-if-env-changed=SOURCE_COMMIT");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    // Tests of other packages link the node agent's library: a commit must not have all of them built anew.
    let is_followed = variable("CARGO_PKG_NAME") == "eadt" || variable("PROFILE") == "release";
    let given = std::env::var("SOURCE_COMMIT").ok().filter(|commit| is_commit(commit));
    let commit = given.or_else(|| is_followed.then(workspace)?.and_then(|folder| head(&repository(&folder.join(".git"))?)));
    let commit = commit.map_or_else(|| "unknown".to_owned(), |commit| commit[..DIGITS].to_owned());
    println!("cargo:rustc-env=SOURCE_COMMIT={commit}");
}

fn is_commit(text: &str) -> bool {
    text.len() >= DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the folder of the workspace, which has the lock file.
fn workspace() -> Option<PathBuf> {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).map(Path::to_owned)
}

/// Returns the folder of a working tree's repository. In a linked working tree `.git` is a file that names it.
fn repository(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let text = fs::read_to_string(path).ok()?;
    Some(path.parent()?.join(text.strip_prefix("gitdir:")?.trim()))
}

/// Returns the commit that is checked out, and has the script run again when that changes.
fn head(folder: &Path) -> Option<String> {
    // Grows by a line with every commit and checkout.
    for file in ["HEAD", "logs/HEAD"].map(|name| folder.join(name)) {
        // Of a file that does not exist, cargo would run the script at each build.
        if file.exists() {
            println!("cargo:rerun-if-changed={}", file.display());
        }
    }
    let text = fs::read_to_string(folder.join("HEAD")).ok()?;
    let Some(name) = text.strip_prefix("ref:").map(str::trim) else {
        return Some(text.trim().to_owned()).filter(|commit| is_commit(commit));
    };
    // Branches of a linked working tree are kept in the repository that it belongs to.
    let common = fs::read_to_string(folder.join("commondir")).map_or(folder.to_owned(), |text| folder.join(text.trim()));
    let loose = fs::read_to_string(common.join(name)).ok();
    let packed = || {
        let text = fs::read_to_string(common.join("packed-refs")).ok()?;
        let line = text.lines().find(|line| line.ends_with(&format!(" {name}")))?;
        line.split(' ').next().map(str::to_owned)
    };
    loose.or_else(packed).map(|commit| commit.trim().to_owned()).filter(|commit| is_commit(commit))
}
