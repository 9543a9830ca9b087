//! The few file operations that a folder needs, separate so that a test can lose unsynced writes.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, FileType};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::ParquetInput;

/// Something that a folder holds.
#[derive(Debug, Clone)]
pub struct FolderEntry {
    pub name: String,
    pub folder: bool,
    /// Kind of the entry if it is neither a file nor a folder.
    pub special: Option<&'static str>,
    pub bytes: u64,
}

/// A file system, as far as an archive needs one.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Creates a folder; returns true if it was not there before.
    fn make_folder(&self, path: &Path) -> io::Result<bool>;
    /// Creates or replaces.
    fn write(&self, path: &Path, bytes: &Bytes) -> io::Result<()>;
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Returns the entries of a folder by name, even if others write and delete there meanwhile.
    fn entries(&self, path: &Path) -> io::Result<Vec<FolderEntry>>;
    fn open(&self, path: &Path) -> io::Result<ParquetInput>;
}

/// The operating system's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OsDisk;

/// Longest time that a folder is read again if it changes each time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two readings of a folder.
const PAUSE: Duration = Duration::from_millis(10);
/// Names of so many bytes come in one system call, so that they are from one moment: half of the buffer of the C library.
const ONE_CALL: usize = 16 << 10;
/// Most bytes that a name takes there beside its own.
const BESIDE_NAME: usize = 27;
/// Two changes that are further apart have different times, even if the file system takes them from the timer's interrupts.
const TICK: Duration = Duration::from_millis(20);

/// Reads the names in a folder. Returns `None` if it takes several system calls and the folder changed meanwhile: what was
/// replaced between two of them may be missing, under its old name and its new one.
fn read_names(folder: &Path) -> io::Result<Option<Vec<OsString>>> {
    let names = list(folder)?;
    if names.iter().map(|name| name.len() + BESIDE_NAME).sum::<usize>() <= ONE_CALL {
        return Ok(Some(names));
    }
    let before = fs::metadata(folder)?.modified()?;
    // A further change right behind one would leave the time as it is. If the clocks differ, this waits in vain at most.
    let is_settled = SystemTime::now().duration_since(before).is_ok_and(|age| age > 5 * TICK);
    if !is_settled {
        std::thread::sleep(TICK);
    }
    let names = list(folder)?;
    Ok((fs::metadata(folder)?.modified()? == before).then_some(names))
}

fn list(folder: &Path) -> io::Result<Vec<OsString>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
}

/// Reads a folder. Returns `None` if it changed meanwhile: what was put in a deleted file's place may not be among the names.
fn read_folder(path: &Path) -> io::Result<Option<Vec<FolderEntry>>> {
    let Some(names) = read_names(path)? else { return Ok(None) };
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        let (file, name) = (path.join(&name), name.to_string_lossy().into_owned());
        match fs::metadata(&file) {
            Ok(metadata) => {
                let special = describe_special(metadata.file_type());
                entries.push(FolderEntry { name, folder: metadata.is_dir(), special, bytes: metadata.len() });
            }
            // Must not look as if the folder were absent, which holds nothing then.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !fs::symlink_metadata(&file).is_ok_and(|metadata| metadata.is_symlink()) {
                    return Ok(None);
                }
                // Editors lock files by such links.
                if !name.starts_with('.') {
                    return Err(io::Error::other(format!("{} is a link that leads nowhere", file.display())));
                }
            }
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", file.display()))),
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Some(entries))
}

/// Returns what something is that is neither a file nor a folder.
fn describe_special(kind: FileType) -> Option<&'static str> {
    match () {
        () if kind.is_fifo() => Some("a named pipe"),
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_block_device() || kind.is_char_device() => Some("a device"),
        () => None,
    }
}

/// Opens a file or a folder. A named pipe, a socket or a device is an error: to open or to read one may never end.
fn open_file(path: &Path) -> io::Result<File> {
    match describe_special(fs::metadata(path)?.file_type()) {
        None => File::open(path),
        Some(kind) => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {kind}, not a file"))),
    }
}

impl Disk for OsDisk {
    fn make_folder(&self, path: &Path) -> io::Result<bool> {
        match fs::create_dir(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn write(&self, path: &Path, bytes: &Bytes) -> io::Result<()> {
        File::create(path)?.write_all(bytes)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        open_file(path)?.sync_all()
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn entries(&self, path: &Path) -> io::Result<Vec<FolderEntry>> {
        let began = Instant::now();
        loop {
            if let Some(entries) = read_folder(path)? {
                return Ok(entries);
            }
            if began.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("{}: it changed each time that it was read", path.display())));
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn open(&self, path: &Path) -> io::Result<ParquetInput> {
        open_file(path).map(|file| ParquetInput::File(Arc::new(file)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn names(folder: &Path) -> io::Result<Vec<String>> {
        Ok(OsDisk.entries(folder)?.into_iter().map(|entry| entry.name).collect())
    }

    /// Reads a folder while a thread replaces a file in it, like a writer of extent records: the new file exists before the old
    /// one is deleted. There is a pause after every twenty.
    fn read_while_replaced(folder: &Path, reads: usize, pause: Duration) -> Vec<Vec<String>> {
        let is_over = AtomicBool::new(false);
        let file = |number: u64| folder.join(format!("record-{number}"));
        fs::write(file(0), "").unwrap();
        let read: Vec<_> = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..20 {
                        fs::write(file(number + 1), "").unwrap();
                        fs::remove_file(file(number)).unwrap();
                        number += 1;
                    }
                    std::thread::sleep(pause);
                }
                fs::remove_file(file(number)).unwrap();
            });
            let read = (0..reads).map(|_| names(folder)).collect();
            is_over.store(true, Ordering::Relaxed);
            read
        });
        read.into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn files_that_others_replace_meanwhile_hide_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "z"] {
            fs::write(folder.path().join(name), "content").unwrap();
        }
        let is_record = |name: &String| name.starts_with("record-");
        for names in read_while_replaced(folder.path(), 500, Duration::ZERO) {
            let (first, last) = (names.first().map(String::as_str), names.last().map(String::as_str));
            assert_eq!((first, last, names.iter().any(is_record)), (Some("a"), Some("z"), true), "{names:?}");
        }
        // More names than one system call returns.
        for number in 0..2000 {
            fs::write(folder.path().join(format!("file-{number}")), "").unwrap();
        }
        for names in read_while_replaced(folder.path(), 100, Duration::from_millis(50)) {
            let (records, others): (Vec<_>, Vec<_>) = names.iter().partition(|name| is_record(name));
            assert!(!records.is_empty() && others.len() == 2002, "{records:?} and {} others", others.len());
        }
    }

    #[test]
    fn only_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let special: Vec<_> = OsDisk.entries(folder.path()).unwrap().into_iter().map(|entry| entry.special).collect();
        assert_eq!(special, [Some("a socket")]);
        for (path, kind) in [(path.as_path(), "a socket"), (Path::new("/dev/null"), "a device")] {
            assert_eq!(OsDisk.open(path).unwrap_err().to_string(), format!("it is {kind}, not a file"));
        }
    }

    #[test]
    fn a_link_that_leads_nowhere_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join(".#lock")).unwrap();
        assert_eq!(names(folder.path()).unwrap(), ["a"]);
        let link = folder.path().join("date=2026-01-02");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let error = names(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), format!("{} is a link that leads nowhere", link.display()));
        assert_ne!(error.kind(), io::ErrorKind::NotFound);
    }
}
