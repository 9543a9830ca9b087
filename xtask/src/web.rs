//! `cargo xtask web`: builds the dashboard's page from its sources into the files that the program embeds.
//!
//! The files are committed, so building the program needs no Node. Its packages are those of the lock file.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::{prerequisites, process};

#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub struct Options {
    /// Write nothing; fail if the committed files are not what the sources make, or are too large.
    #[arg(long)]
    pub check: bool,
}

/// Returns the folder of the page's sources.
pub fn folder() -> PathBuf {
    process::root().join("services/dashboard/web")
}

/// Returns whether Node and npm are on this machine.
pub fn has_node() -> bool {
    process::output("node", &["--version"]).is_some() && process::output("npm", &["--version"]).is_some()
}

/// Builds the page, or fails with the difference.
pub fn run(options: Options) -> anyhow::Result<()> {
    if !has_node() {
        bail!(
            "the page is built by Node, which this machine lacks: install nodejs and npm (on Debian: apt-get install nodejs npm)"
        );
    }
    let folder = folder();
    install(&folder)?;
    process::run(Command::new("npm").args(["run", "--silent", "check"]).current_dir(&folder))?;
    let build = ["build.mjs", "--check"];
    process::run(Command::new("node").args(&build[..=usize::from(options.check)]).current_dir(&folder))
}

/// The page as the real program serves it, in a real browser.
#[derive(Debug)]
pub struct BrowserTest {
    program: PathBuf,
    browser: PathBuf,
}

impl BrowserTest {
    /// Returns the test; `None` if this machine has no browser for it and none may be installed.
    pub fn find(program: &Path, install: bool) -> anyhow::Result<Option<Self>> {
        Ok(browser(install)?.map(|browser| Self { program: program.to_owned(), browser }))
    }

    /// Compares the committed files with their sources, then tests the page. The error has the failures, which the tests print to
    /// standard error at their end.
    pub fn run(&self) -> anyhow::Result<()> {
        run(Options { check: true })?;
        let mut command = Command::new("node");
        command.arg("test/page.mjs").current_dir(folder()).stdin(Stdio::null()).stdout(Stdio::inherit());
        command.env("EADT_TEST_PROGRAM", &self.program).env("EADT_TEST_BROWSER", &self.browser);
        let output = command.output().context("cannot start node")?;
        if !output.status.success() {
            bail!("the tests of the web page failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }
}

/// Returns the path of a browser for tests and pictures; `None` if this machine has none and none may be installed.
pub fn browser(install: bool) -> anyhow::Result<Option<PathBuf>> {
    Ok(prerequisites::browser(install)?.and_then(|name| in_path(&name)))
}

/// Returns the path of a program in `PATH`.
fn in_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Installs the packages of a lock file; nothing of them runs while they are installed.
pub fn install(folder: &Path) -> anyhow::Result<()> {
    let installed = folder.join("node_modules/.package-lock.json");
    let age = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    if age(&installed).is_some_and(|installed| Some(installed) >= age(&folder.join("package-lock.json"))) {
        return Ok(());
    }
    let words = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
    process::run(Command::new("npm").args(words).current_dir(folder))
}
