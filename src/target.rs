//! Files that commands write: complete or not there, and never the file that is being read.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tempfile::NamedTempFile;

/// A file on its way to its name.
pub struct Target {
    path: PathBuf,
    file: NamedTempFile,
}

impl Target {
    /// Refuses a path that is one of `inputs`, or something else than a plain file.
    pub fn create(path: &Path, inputs: &[PathBuf]) -> anyhow::Result<Self> {
        if let Ok(metadata) = std::fs::metadata(path) {
            if !metadata.is_file() {
                bail!("{} is no plain file: name another output", path.display());
            }
            let real = path.canonicalize()?;
            if inputs.iter().any(|input| input.canonicalize().is_ok_and(|input| input == real)) {
                bail!("{} is read and would be overwritten: name another output", path.display());
            }
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
        let cannot = || format!("cannot write {}", path.display());
        std::fs::create_dir_all(folder).with_context(cannot)?;
        let file = NamedTempFile::new_in(folder).with_context(cannot)?;
        Ok(Self { path: path.to_owned(), file })
    }

    pub fn writer(&self) -> anyhow::Result<BufWriter<File>> {
        Ok(BufWriter::new(self.file.reopen().with_context(|| format!("cannot write {}", self.path.display()))?))
    }

    /// Makes what was written durable and visible under its name.
    pub fn finish(self, mut writer: BufWriter<File>) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        writer.flush().with_context(cannot)?;
        writer.get_ref().sync_all().with_context(cannot)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // Temporary files are private; a result is as readable as any other file.
            std::fs::set_permissions(self.file.path(), std::fs::Permissions::from_mode(0o644)).with_context(cannot)?;
        }
        self.file.persist(&self.path).with_context(cannot)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_and_a_device_are_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let input = dir.path().join("a.csv");
        std::fs::write(&input, "time,w").unwrap();
        let same = dir.path().join(".").join("a.csv");
        let message =
            |path: &Path| Target::create(path, std::slice::from_ref(&input)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(message(&same).contains("would be overwritten"), "{}", message(&same));
        assert!(message(Path::new("/dev/null")).contains("no plain file"));
        assert_eq!(std::fs::read_to_string(&input).unwrap(), "time,w");
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::create(&dir.path().join("out.jsonl"), &[]).unwrap();
        target.writer().unwrap().write_all(b"half").unwrap();
        drop(target);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
