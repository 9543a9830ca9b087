//! Files and folders that commands write. One habit for all of them: what exists is refused, `--force` replaces it, a folder that
//! is not there is not made on the way, and a file is complete or not there. A link stays, and the file that it leads to is
//! written.

use std::fs::{File, Permissions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use eadt_recordings::Compression;
use tempfile::NamedTempFile;

/// A file on its way to its name.
pub struct AtomicFile {
    /// The file that is written; not a link.
    path: PathBuf,
    file: NamedTempFile,
    /// A file that has appeared under the name meanwhile stays.
    keep: bool,
}

/// Endings of event logs, and their compression.
const LOG_ENDINGS: [(&str, Compression); 2] = [(".jsonl", Compression::None), (".jsonl.zst", Compression::Zstd)];

/// Returns the compression of a log of this name.
pub fn log_compression(path: &Path) -> anyhow::Result<Compression> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let known = LOG_ENDINGS.iter().find(|(ending, _)| name.len() > ending.len() && name.ends_with(ending));
    let Some((_, compression)) = known else {
        bail!("{} is no name of an event log: end it in .jsonl, or in .jsonl.zst to have it compressed", path.display())
    };
    Ok(*compression)
}

impl AtomicFile {
    /// Creates an event log: its ending gives the compression; one that exists is replaced only if `forced`.
    pub fn event_log(path: &Path, inputs: &[PathBuf], forced: bool) -> anyhow::Result<(Self, Compression)> {
        let compression = log_compression(path)?;
        Ok((Self::create(path, inputs, forced)?, compression))
    }

    /// Refuses a path that is one of `inputs` or something else than a plain file; one that exists, too, unless `forced`.
    pub fn create(path: &Path, inputs: &[PathBuf], forced: bool) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            bail!("- is no file, and nothing is written to standard output: name a file (one of that name is ./-)");
        }
        let target = follow_links(path)?;
        let present = std::fs::metadata(&target).ok();
        if let Some(metadata) = &present {
            if !metadata.is_file() {
                return Err(no_plain_file(path));
            }
            let real = target.canonicalize()?;
            if inputs.iter().any(|input| input.canonicalize().is_ok_and(|input| input == real)) {
                bail!("{} is read and would be overwritten: name another output", path.display());
            }
            if !forced {
                bail!("{}", exists(path));
            }
        }
        let permissions = present.map(|metadata| metadata.permissions());
        let file = temporary_file(parent(&target)?, permissions).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: target, file, keep: !forced })
    }

    /// Makes the file visible under its name while it is written, for readers.
    pub fn show(self) -> anyhow::Result<File> {
        let path = self.path;
        let named = if self.keep { self.file.persist_noclobber(&path) } else { self.file.persist(&path) };
        named.map_err(|error| match error.error.kind() {
            std::io::ErrorKind::AlreadyExists => anyhow!("{}", exists(&path)),
            _ => anyhow::Error::from(error.error).context(format!("cannot write {}", path.display())),
        })
    }

    /// Writes a whole text.
    pub fn write(self, text: &str) -> anyhow::Result<()> {
        let mut writer = self.writer()?;
        writer.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.finish(writer)
    }

    pub fn writer(&self) -> anyhow::Result<BufWriter<File>> {
        Ok(BufWriter::new(self.file.reopen().with_context(|| format!("cannot write {}", self.path.display()))?))
    }

    /// Makes the written file durable and visible under its name.
    pub fn finish(self, mut writer: BufWriter<File>) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        writer.flush().with_context(cannot)?;
        writer.get_ref().sync_all().with_context(cannot)?;
        let no_clobber = self.keep;
        let named = if no_clobber { self.file.persist_noclobber(&self.path) } else { self.file.persist(&self.path) };
        match named {
            Err(error) if no_clobber && error.error.kind() == std::io::ErrorKind::AlreadyExists => {
                bail!("{}", exists(&self.path))
            }
            other => other.map(drop).with_context(cannot),
        }
    }
}

/// Most links that lead from one to the next.
const MAX_LINKS: usize = 40;

/// Returns the file that links lead to, there or not. Returns an error if one leads to a device or to an open file of a process,
/// whose name must not be given to another file.
fn follow_links(path: &Path) -> anyhow::Result<PathBuf> {
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Some(name) = at.file_name() else { return Ok(at) };
        let Ok(folder) = folder_of(&at).canonicalize() else { return Ok(at) };
        let is_shared_memory = folder.starts_with("/dev/shm");
        if !is_shared_memory && ["/dev", "/proc", "/sys"].iter().any(|system| folder.starts_with(system)) {
            return Err(no_plain_file(path));
        }
        let place = folder.join(name);
        match std::fs::read_link(&place) {
            Ok(next) => at = folder.join(next),
            Err(_) => return Ok(place),
        }
    }
    bail!("{} is a link that leads to no file: name another output", path.display())
}

fn no_plain_file(path: &Path) -> anyhow::Error {
    anyhow!("{} is no plain file: name another output", path.display())
}

/// Creates a file that takes the place of one with these permissions. A new one (`None`) has those that the process gives its
/// files.
fn temporary_file(folder: &Path, permissions: Option<Permissions>) -> std::io::Result<NamedTempFile> {
    let Some(permissions) = permissions else {
        // The umask takes from it.
        return tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder);
    };
    let file = NamedTempFile::new_in(folder)?;
    file.as_file().set_permissions(permissions)?;
    Ok(file)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Returns the folder that an output lies in, which must be there: a slip in a path would leave folders behind.
fn parent(path: &Path) -> anyhow::Result<&Path> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        bail!("cannot write {}: there is no folder {}; make it, or name another output", path.display(), folder.display());
    }
    Ok(folder)
}

/// Makes a folder for an output, or takes an empty one. One that holds something is refused unless `forced`; then what is in it
/// is deleted, if it is nothing but what `is_own` knows as entries that the command writes.
pub fn create_folder(path: &Path, inputs: &[PathBuf], forced: bool, is_own: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let entries = check_folder(path, inputs, forced, is_own)?;
    if !path.exists() {
        return std::fs::create_dir(path).with_context(cannot);
    }
    for place in entries {
        if place.is_dir() { std::fs::remove_dir_all(&place) } else { std::fs::remove_file(&place) }.with_context(cannot)?;
    }
    Ok(())
}

/// Returns the files that [`create_folder`] would delete, or its refusal. Changes nothing.
pub fn check_folder(
    path: &Path,
    inputs: &[PathBuf],
    forced: bool,
    is_own: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<PathBuf>> {
    let cannot = || format!("cannot write {}", path.display());
    if !path.exists() {
        return parent(path).map(|_| Vec::new());
    }
    if !path.is_dir() {
        bail!("{} is not a folder: name another output", path.display());
    }
    let entries: Vec<std::fs::DirEntry> = std::fs::read_dir(path).and_then(Iterator::collect).with_context(cannot)?;
    let Some(first) = entries.first() else { return Ok(Vec::new()) };
    let real = path.canonicalize()?;
    let overlaps = |input: &PathBuf| input.canonicalize().is_ok_and(|input| input.starts_with(&real) || real.starts_with(&input));
    if inputs.iter().any(overlaps) {
        bail!("{} is read and would be overwritten: name another output", path.display());
    }
    if !forced {
        bail!(
            "{} exists and is not empty ({}, …): name another output, or use --force to replace it",
            path.display(),
            first.file_name().display()
        );
    }
    if let Some(foreign) = entries.iter().find(|entry| !entry.file_name().to_str().is_some_and(&is_own)) {
        bail!("{} holds {}, which is not such an output: name another folder", path.display(), foreign.file_name().display());
    }
    Ok(entries.iter().map(std::fs::DirEntry::path).collect())
}

fn exists(path: &Path) -> String {
    format!("{} exists: name another output, or use --force to replace it", path.display())
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
        let message = |path: &Path| {
            AtomicFile::create(path, std::slice::from_ref(&input), true).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert!(message(&same).contains("would be overwritten"), "{}", message(&same));
        assert!(message(Path::new("/dev/null")).contains("no plain file"));
        assert_eq!(std::fs::read_to_string(&input).unwrap(), "time,w");
    }

    #[test]
    fn a_link_stays_and_the_file_that_it_leads_to_is_replaced() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("folder")).unwrap();
        std::fs::write(at("folder/target"), "old").unwrap();
        symlink("folder/target", at("link")).unwrap();
        symlink(at("link"), at("far")).unwrap();
        for name in ["link", "far"] {
            let refused = AtomicFile::create(&at(name), &[], false).err().unwrap().to_string();
            assert!(refused.contains(&format!("{name} exists")), "{refused}");
            AtomicFile::create(&at(name), &[], true).unwrap().write(name).unwrap();
            assert!(at(name).is_symlink());
            assert_eq!(std::fs::read_to_string(at("folder/target")).unwrap(), name);
        }
        let input = AtomicFile::create(&at("far"), &[at("folder/target")], true).err().unwrap().to_string();
        assert!(input.contains("is read and would be overwritten"), "{input}");
        // One that leads nowhere yet, and one that never does.
        symlink("folder/new", at("early")).unwrap();
        AtomicFile::create(&at("early"), &[], false).unwrap().write("new").unwrap();
        assert!(at("early").is_symlink());
        assert_eq!(std::fs::read_to_string(at("folder/new")).unwrap(), "new");
        symlink("round", at("round")).unwrap();
        assert!(AtomicFile::create(&at("round"), &[], true).err().unwrap().to_string().contains("leads to no file"));
    }

    /// The name of an open file, such as /dev/stdout, is shared by all processes.
    #[test]
    fn the_name_of_an_open_file_is_never_given_to_another() {
        use std::os::fd::AsRawFd;
        let dir = tempfile::tempdir().unwrap();
        let open = File::create(dir.path().join("page")).unwrap();
        let name = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&name, &link).unwrap();
        for path in [name, PathBuf::from(format!("/dev/fd/{}", open.as_raw_fd())), link.clone(), PathBuf::from("/dev/stdout")] {
            for forced in [false, true] {
                let refused = AtomicFile::create(&path, &[], forced).err().unwrap().to_string();
                assert!(refused.contains("is no plain file"), "{refused}");
            }
        }
        assert!(link.is_symlink());
    }

    #[test]
    fn a_replaced_file_keeps_its_permissions_and_a_new_one_has_the_usual_ones() {
        let dir = tempfile::tempdir().unwrap();
        let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        std::fs::write(dir.path().join("usual"), "").unwrap();
        AtomicFile::create(&dir.path().join("new"), &[], false).unwrap().write("").unwrap();
        assert_eq!(mode("new"), mode("usual"));
        for kept in [0o600, 0o640, 0o664] {
            std::fs::set_permissions(dir.path().join("new"), Permissions::from_mode(kept)).unwrap();
            AtomicFile::create(&dir.path().join("new"), &[], true).unwrap().write("").unwrap();
            assert_eq!(mode("new"), kept);
            drop(AtomicFile::create(&dir.path().join("new"), &[], true).unwrap().show().unwrap());
            assert_eq!(mode("new"), kept);
        }
    }

    #[test]
    fn a_log_has_a_known_ending_and_is_not_replaced_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let message =
            |name: &str, forced| AtomicFile::event_log(&at(name), &[], forced).err().map(|e| e.to_string()).unwrap_or_default();
        for name in ["run.json", "run.zst", "run", "run.csv", ".jsonl", "run.jsonl.gz"] {
            assert!(message(name, true).contains("end it in .jsonl"), "{name}: {}", message(name, true));
        }
        for (name, compression) in
            [("a.jsonl", Compression::None), ("a.jsonl.zst", Compression::Zstd), ("A.JSONL.ZST", Compression::Zstd)]
        {
            assert_eq!(AtomicFile::event_log(&at(name), &[], false).unwrap().1, compression, "{name}");
        }
        std::fs::write(at("old.jsonl"), "mine").unwrap();
        assert!(
            message("old.jsonl", false).contains("exists: name another output, or use --force"),
            "{}",
            message("old.jsonl", false)
        );
        assert_eq!(std::fs::read_to_string(at("old.jsonl")).unwrap(), "mine");
        let (target, _) = AtomicFile::event_log(&at("old.jsonl"), &[], true).unwrap();
        let mut writer = target.writer().unwrap();
        writer.write_all(b"new").unwrap();
        target.finish(writer).unwrap();
        assert_eq!(std::fs::read_to_string(at("old.jsonl")).unwrap(), "new");
        // One that appears while the log is written stays, too.
        let (target, _) = AtomicFile::event_log(&at("race.jsonl"), &[], false).unwrap();
        let writer = target.writer().unwrap();
        std::fs::write(at("race.jsonl"), "theirs").unwrap();
        assert!(target.finish(writer).unwrap_err().to_string().contains("exists"));
        assert_eq!(std::fs::read_to_string(at("race.jsonl")).unwrap(), "theirs");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn no_folder_is_made_on_the_way_and_none_is_emptied_unasked() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let error = AtomicFile::create(&at("no/such/out.csv"), &[], false).err().unwrap().to_string();
        assert!(error.contains("there is no folder") && error.contains("make it, or name another output"), "{error}");
        let own = |name: &str| name.starts_with("topic=");
        let folder = |name: &str, forced| create_folder(&at(name), &[], forced, own).err().map(|error| error.to_string());
        assert!(folder("no/such", false).unwrap().contains("there is no folder"));
        assert!(!at("no").exists());
        assert_eq!((folder("out", false), folder("out", false)), (None, None), "new, then empty");
        std::fs::create_dir(at("out/topic=a")).unwrap();
        std::fs::write(at("out/topic=a/1.parquet"), "rows").unwrap();
        let refused = folder("out", false).unwrap();
        assert!(refused.contains("exists and is not empty (topic=a, …)") && refused.contains("use --force"), "{refused}");
        let input = create_folder(&at("out"), &[at("out/topic=a")], true, own).unwrap_err().to_string();
        assert!(input.contains("is read and would be overwritten"), "{input}");
        std::fs::write(at("out/thesis.tex"), "mine").unwrap();
        let refused = folder("out", true).unwrap();
        assert!(refused.contains("holds thesis.tex, which is not such an output"), "{refused}");
        std::fs::remove_file(at("out/thesis.tex")).unwrap();
        assert_eq!(folder("out", true), None);
        assert_eq!(std::fs::read_dir(at("out")).unwrap().count(), 0);
        std::fs::write(at("file"), "").unwrap();
        assert!(folder("file", true).unwrap().contains("is not a folder"));
    }

    #[test]
    fn a_file_that_is_shown_while_it_is_written_has_its_name_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("live.jsonl");
        let mut file = AtomicFile::create(&path, &[], false).unwrap().show().unwrap();
        assert!(path.exists());
        file.write_all(b"line\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line\n");
        assert!(AtomicFile::create(&path, &[], false).err().unwrap().to_string().contains("exists"));
        let target = AtomicFile::create(&dir.path().join("race.jsonl"), &[], false).unwrap();
        std::fs::write(dir.path().join("race.jsonl"), "theirs").unwrap();
        assert!(target.show().unwrap_err().to_string().contains("exists: name another output"));
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = AtomicFile::create(&dir.path().join("out.jsonl"), &[], false).unwrap();
        target.writer().unwrap().write_all(b"half").unwrap();
        drop(target);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
