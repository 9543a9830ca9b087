//! `cargo xtask wheel`: the wheel of the Python package.
//!
//! In: `python/` and, unless `--pure`, the program's sources. Out: one `.whl`, which pip installs. `python/backend` builds it, as it does
//! for `pip install ./python`: with the program through maturin, without it, or with one that was built before, through setuptools.
//! Both are fetched from `PyPI`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use clap::Args;

use crate::{process, test};

#[derive(Debug, Args)]
pub struct Options {
    /// Without the program: of Python alone, for every platform.
    #[arg(long)]
    pure: bool,
    /// With this program, which was built before, instead of building it: of this version, and for machines like this one.
    #[arg(long, value_name = "FILE", conflicts_with = "pure")]
    program: Option<PathBuf>,
    /// Folder to write to [default: wheels, in cargo's target folder].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    let target = test::target_folder()?;
    let folder = options.out.clone().unwrap_or_else(|| target.join("wheels"));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "wheel", "--no-deps", "--disable-pip-version-check", "--wheel-dir"]);
    pip.arg(&folder).arg(process::root().join("python"));
    pip.env("EADT_WHEEL", if options.pure { "pure" } else { "program" }).env("CARGO_TARGET_DIR", &target);
    if let Some(program) = &options.program {
        pip.env("EADT_WHEEL_PROGRAM", program.canonicalize().with_context(|| format!("no program {}", program.display()))?);
    }
    process::run(&mut pip).context("python3 with pip makes the wheel (on Debian: apt-get install python3-pip)")?;
    let wheel = newest_wheel(&folder).with_context(|| format!("pip made no wheel in {}", folder.display()))?;
    let bytes = wheel.metadata().with_context(|| format!("cannot read {}", wheel.display()))?.len();
    println!("{}: {} kB", wheel.display(), bytes / 1000);
    Ok(())
}

fn newest_wheel(folder: &Path) -> Option<PathBuf> {
    let paths = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let wheels = paths.filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheels.max_by_key(|path| path.metadata().and_then(|metadata| metadata.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wheel_that_was_made_last_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest_wheel(folder.path()), None);
        for (name, second) in [("old.whl", 1), ("new.whl", 3), ("other.txt", 5)] {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(second)).unwrap();
        }
        assert_eq!(newest_wheel(folder.path()), Some(folder.path().join("new.whl")));
    }
}
