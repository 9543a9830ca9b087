//! `eadt man`: the manual pages, made from the command line's own descriptions.

use std::path::Path;

use anyhow::{Context, bail};

use crate::output::say;

/// Writes a page for each command into a folder that exists.
pub fn run(folder: &Path) -> anyhow::Result<()> {
    if !folder.is_dir() {
        bail!("{} is no folder: make it first, or name another", folder.display());
    }
    clap_mangen::generate_to(crate::help::command(), folder).with_context(|| format!("cannot write to {}", folder.display()))?;
    say!("the manual pages are in {0}: man -l {0}/eadt.1", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_options_and_example() {
        let dir = tempfile::tempdir().unwrap();
        run(dir.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        for name in ["eadt.1", "eadt-up.1", "eadt-topics-apply.1", "eadt-man.1"] {
            assert!(page(name).starts_with(".ie"), "{name}");
        }
        let up = page("eadt-up.1");
        assert!(up.contains("topic\\-prefix") && up.contains("eadt up \\-\\-speed max"), "{up}");
        assert!(run(&dir.path().join("none")).unwrap_err().to_string().contains("is no folder"));
    }
}
