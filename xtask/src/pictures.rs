//! `cargo xtask pictures`: the screenshots of README and docs, and beside them what they show as text.
//!
//! In: the program, Node, Chromium, and `script` of util-linux for the terminal. Out: `docs/images`. The same seed gives the same events, so
//! the same program gives the same text; pixels differ with the fonts of a machine, so nothing compares them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use clap::Args;

use crate::{process, test, web};

#[derive(Debug, Args)]
pub struct Options {
    /// Write nothing; fail with the differences if the pictures show something else than the program. The tests of the web page do it, too.
    #[arg(long)]
    check: bool,
    /// A built program [default: it is built as for the tests].
    #[arg(long, value_name = "FILE", env = "EADT_TEST_PROGRAM")]
    program: Option<PathBuf>,
}

/// Writes the pictures and their text, or fails if the text differs.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let Some(browser) = web::browser(false)? else {
        bail!("the pictures are taken by Chromium and Node, and this machine lacks one of them: see the line above")
    };
    let program = program(options.program.as_deref())?;
    let folder = web::folder();
    web::install(&folder)?;
    let mut command = Command::new("node");
    command.arg("test/pictures.mjs").args(options.check.then_some("--check")).current_dir(folder);
    process::run(command.env("EADT_TEST_PROGRAM", program).env("EADT_TEST_BROWSER", browser))
}

/// Returns the path of the program that is given, or of the one that it builds.
fn program(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return given.canonicalize().with_context(|| format!("cannot find the program {}", given.display()));
    }
    test::build_program()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The largest picture that may be in the repository, in bytes.
    const LARGEST: u64 = 160_000;

    #[test]
    fn every_picture_is_there_is_small_and_is_shown_by_a_page() {
        let root = process::root();
        let images = root.join("docs/images");
        let text = fs::read_to_string(images.join("pictures.txt")).unwrap();
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert!(names.len() >= 6, "{names:?}");
        let mut pages = fs::read_to_string(root.join("README.md")).unwrap();
        for page in fs::read_dir(root.join("docs/use")).unwrap() {
            let page = page.unwrap().path();
            if page.extension().is_some_and(|extension| extension == "md") {
                pages.push_str(&fs::read_to_string(page).unwrap());
            }
        }
        for name in &names {
            let bytes = fs::metadata(images.join(name)).unwrap().len();
            assert!((1..=LARGEST).contains(&bytes), "docs/images/{name} has {bytes} bytes");
            assert!(pages.contains(&format!("images/{name})")), "no page shows docs/images/{name}");
        }
        for file in fs::read_dir(&images).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let is_picture = Path::new(&name).extension().is_some_and(|extension| extension == "png");
            assert!(!is_picture || names.contains(&name.as_str()), "docs/images/{name} is not in docs/images/pictures.txt");
        }
    }
}
