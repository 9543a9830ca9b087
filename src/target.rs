//! Files that commands write: complete or not there, and never the file that is being read.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use eadt_recordings::Compression;
use tempfile::NamedTempFile;

/// A file on its way to its name.
pub struct Target {
    path: PathBuf,
    file: NamedTempFile,
    /// A file that has appeared under the name meanwhile stays.
    keep: bool,
}

/// Endings of event logs, and what they mean.
const LOG_ENDINGS: [(&str, Compression); 2] = [(".jsonl", Compression::None), (".jsonl.zst", Compression::Zstd)];

/// How a log of this name is written.
pub fn log_compression(path: &Path) -> anyhow::Result<Compression> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let known = LOG_ENDINGS.iter().find(|(ending, _)| name.len() > ending.len() && name.ends_with(ending));
    let Some((_, compression)) = known else {
        bail!("{} is no name of an event log: end it in .jsonl, or in .jsonl.zst to have it compressed", path.display())
    };
    Ok(*compression)
}

impl Target {
    /// An event log: its ending says how it is written; one that exists is replaced only where that is `forced`.
    pub fn event_log(path: &Path, inputs: &[PathBuf], forced: bool) -> anyhow::Result<(Self, Compression)> {
        let compression = log_compression(path)?;
        let target = Self::create(path, inputs)?;
        if !forced && path.exists() {
            bail!("{}", exists(path));
        }
        Ok((Self { keep: !forced, ..target }, compression))
    }

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
        Ok(Self { path: path.to_owned(), file, keep: false })
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
        let kept = self.keep;
        let named = if kept { self.file.persist_noclobber(&self.path) } else { self.file.persist(&self.path) };
        match named {
            Err(error) if kept && error.error.kind() == std::io::ErrorKind::AlreadyExists => bail!("{}", exists(&self.path)),
            other => other.map(drop).with_context(cannot),
        }
    }
}

fn exists(path: &Path) -> String {
    format!("{} exists: name another output, or say --force to replace it", path.display())
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
    fn a_log_has_a_known_ending_and_is_not_replaced_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let message =
            |name: &str, forced| Target::event_log(&at(name), &[], forced).err().map(|e| e.to_string()).unwrap_or_default();
        for name in ["run.json", "run.zst", "run", "run.csv", ".jsonl", "run.jsonl.gz"] {
            assert!(message(name, true).contains("end it in .jsonl"), "{name}: {}", message(name, true));
        }
        for (name, compression) in
            [("a.jsonl", Compression::None), ("a.jsonl.zst", Compression::Zstd), ("A.JSONL.ZST", Compression::Zstd)]
        {
            assert_eq!(Target::event_log(&at(name), &[], false).unwrap().1, compression, "{name}");
        }
        std::fs::write(at("old.jsonl"), "mine").unwrap();
        assert!(
            message("old.jsonl", false).contains("exists: name another output, or say --force"),
            "{}",
            message("old.jsonl", false)
        );
        assert_eq!(std::fs::read_to_string(at("old.jsonl")).unwrap(), "mine");
        let (target, _) = Target::event_log(&at("old.jsonl"), &[], true).unwrap();
        let mut writer = target.writer().unwrap();
        writer.write_all(b"new").unwrap();
        target.finish(writer).unwrap();
        assert_eq!(std::fs::read_to_string(at("old.jsonl")).unwrap(), "new");
        // One that appears while the log is written stays, too.
        let (target, _) = Target::event_log(&at("race.jsonl"), &[], false).unwrap();
        let writer = target.writer().unwrap();
        std::fs::write(at("race.jsonl"), "theirs").unwrap();
        assert!(target.finish(writer).unwrap_err().to_string().contains("exists"));
        assert_eq!(std::fs::read_to_string(at("race.jsonl")).unwrap(), "theirs");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
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
