//! Changed settings and their original values, on disk: written before a setting is changed, removed when it is put back.
//!
//! One JSON file per device, replaced as a whole (written to a temporary file, synced, renamed, the folder synced), so that a
//! crash or a power cut at any point leaves the old text or the new one. Only one process at a time can use the folder.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use eadt_bus::chaos;
use eadt_nvml::set::ApplicationClocks;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::decide::OriginalValue;

/// A setting that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry<O = u32> {
    /// The original value, which is put back.
    pub original: O,
    /// Every value that may be in force because of the agent; the last one is the one wished for.
    pub ours: Vec<u32>,
}

/// A setting that another program changed after the agent had: the value requested then is not set again, by a later process
/// either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalSetting {
    #[serde(rename = "asked")]
    pub requested: u32,
    /// The value that others set; `None` if it cannot be read.
    pub theirs: Option<u32>,
}

/// The record of one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedSetting<O> {
    pub entry: Option<LedgerEntry<O>>,
    pub left_alone: Option<ExternalSetting>,
}

/// The former bound of the SM clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockOriginal {
    /// Locked clocks cannot be distinguished from unlocked ones; unlocked is put back.
    Unlocked,
    Application {
        memory_mhz: u32,
        graphics_mhz: u32,
    },
}

impl ClockOriginal {
    /// Returns the clocks for [`eadt_nvml::set::SettableGpu::restore_clock`].
    pub fn clocks(self) -> Option<ApplicationClocks> {
        match self {
            Self::Unlocked => None,
            Self::Application { memory_mhz, graphics_mhz } => Some(ApplicationClocks { memory_mhz, graphics_mhz }),
        }
    }
}

impl OriginalValue for ClockOriginal {
    fn value(&self) -> Option<u32> {
        self.clocks().map(|clocks| clocks.graphics_mhz)
    }
}

/// Everything that was changed on one device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LedgerRecord {
    /// Version of this form.
    pub version: u32,
    /// The GPU's UUID, or `mps:` and the pipe folder of an MPS daemon.
    pub unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_milliwatts: Option<LedgerEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_mhz: Option<LedgerEntry<ClockOriginal>>,
    /// Default in thousandths of a percent, so that the daemon's value is restored exactly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_default_millipercent: Option<LedgerEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_limit_left_alone: Option<ExternalSetting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_clock_left_alone: Option<ExternalSetting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps_default_left_alone: Option<ExternalSetting>,
}

impl LedgerRecord {
    /// Returns whether something is changed, and its original to be put back.
    pub fn is_changed(&self) -> bool {
        self.power_limit_milliwatts.is_some() || self.sm_clock_mhz.is_some() || self.mps_default_millipercent.is_some()
    }

    fn is_empty(&self) -> bool {
        let left_alone = [self.power_limit_left_alone, self.sm_clock_left_alone, self.mps_default_left_alone];
        !self.is_changed() && left_alone.iter().all(Option::is_none)
    }
}

/// The ledger cannot be used, or not for this device.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("another agent has the state folder: stop it first, folder={folder:?}")]
    Taken { folder: PathBuf },
    #[error("cannot {what}: {source}, path={path:?}")]
    Disk { what: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "a record of original settings cannot be read: {detail}; restore the device by hand and remove the file, path={path:?}"
    )]
    Unreadable { path: PathBuf, detail: String },
    #[error(
        "a record of original settings has form {form}, and this agent reads up to {VERSION}: a newer agent wrote it; start that one, \
         which puts the device back, and leave the file as it is, path={path:?}"
    )]
    Newer { path: PathBuf, form: u64 },
}

/// Time limit for starting a program.
const STARTING: Duration = Duration::from_secs(1);
/// Time limit of the wait for programs of an earlier agent.
const PROGRAMS: Duration = Duration::from_secs(6);
const VERSION: u32 = 1;
const EXTENSION: &str = "json";

/// The folder. Clones share it.
#[derive(Debug, Clone)]
pub struct Ledger {
    folder: Arc<Path>,
    // Held as long as any clone lives; the kernel releases it when the process dies.
    _lock: Option<Arc<File>>,
    // The same for the programs that the process has started; released when these have ended, too.
    _programs: Option<Arc<File>>,
}

fn disk(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LedgerError {
    let path = path.to_owned();
    move |source| LedgerError::Disk { what, path, source }
}

/// Returns false if another process holds the lock for the whole time.
fn lock_within(file: &File, time: Duration) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if began.elapsed() >= time => return Ok(false),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Waits for control programs of a killed agent. Such a program keeps running and sets its value later, so a value that is read
/// before it ends is not final. Programs therefore inherit this lock.
fn wait_for_programs(folder: &Path) -> Result<File, LedgerError> {
    let path = folder.join("programs");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(disk("open the lock of control programs", &path))?;
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty())
        .map_err(|error| disk("pass on the lock of control programs", &path)(error.into()))?;
    if !lock_within(&file, PROGRAMS).map_err(disk("lock out control programs", &path))? {
        // Restoring as much as possible is better than waiting for a program that hangs.
        tracing::warn!(
            "a control program that an earlier agent started still runs; a later change by it is treated as one of another program"
        );
    }
    Ok(file)
}

impl Ledger {
    /// Takes the folder, which is made if it is missing.
    pub fn open(folder: &Path) -> Result<Self, LedgerError> {
        std::fs::create_dir_all(folder).map_err(disk("make the state folder", folder))?;
        let path = folder.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(disk("open the lock of the state folder", &path))?;
        // A program that a killed agent was just starting holds the agent's locks until it runs.
        if !lock_within(&file, STARTING).map_err(disk("lock the state folder", &path))? {
            return Err(LedgerError::Taken { folder: folder.to_owned() });
        }
        let programs = wait_for_programs(folder)?;
        Ok(Self { folder: folder.into(), _lock: Some(Arc::new(file)), _programs: Some(Arc::new(programs)) })
    }

    /// Opens the ledger for reading only.
    pub fn open_read_only(folder: &Path) -> Self {
        Self { folder: folder.into(), _lock: None, _programs: None }
    }

    fn path(&self, unit: &str) -> PathBuf {
        let mut name = String::new();
        for byte in unit.bytes() {
            if byte.is_ascii_alphanumeric() || byte == b'-' {
                name.push(char::from(byte));
            } else {
                write!(name, "%{byte:02X}").expect("writing to a String");
            }
        }
        self.folder.join(format!("{name}.{EXTENSION}"))
    }

    /// Loads the record of a device; empty if nothing was changed.
    pub fn load(&self, unit: &str) -> Result<LedgerRecord, LedgerError> {
        let path = self.path(unit);
        match std::fs::read(&path) {
            Ok(text) => read(&path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(LedgerRecord { version: VERSION, unit: unit.to_owned(), ..LedgerRecord::default() })
            }
            Err(error) => Err(disk("read a record of original settings", &path)(error)),
        }
    }

    /// Returns once it would survive a power cut. An empty record is removed.
    pub fn store(&self, record: &LedgerRecord) -> Result<(), LedgerError> {
        let path = self.path(&record.unit);
        if record.is_empty() {
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(disk("remove a record of original settings", &path)(error)),
            }
        } else {
            let next = path.with_extension("next");
            let text = chaos::written(serde_json::to_string_pretty(record).expect("a record is plain JSON"));
            let write = || {
                let mut file = File::create(&next)?;
                file.write_all(text.as_bytes())?;
                file.sync_all()?;
                std::fs::rename(&next, &path)
            };
            write().map_err(disk("write a record of original settings", &path))?;
        }
        File::open(&*self.folder).and_then(|folder| folder.sync_all()).map_err(disk("sync the state folder", &self.folder))
    }

    /// Returns every record of something that is changed, and every one that cannot be read.
    pub fn changed(&self) -> Result<Vec<Result<LedgerRecord, LedgerError>>, LedgerError> {
        let list = match std::fs::read_dir(&*self.folder) {
            Ok(list) => list,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(disk("list the state folder", &self.folder)(error)),
        };
        let mut records = Vec::new();
        for entry in list {
            let path = entry.map_err(disk("list the state folder", &self.folder))?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION) {
                let text = std::fs::read(&path).map_err(disk("read a record of original settings", &path));
                records.extend(match text.and_then(|text| read(&path, &text)) {
                    Ok(record) if !record.is_changed() => None,
                    record => Some(record),
                });
            }
        }
        Ok(records)
    }
}

fn read(path: &Path, text: &[u8]) -> Result<LedgerRecord, LedgerError> {
    let unreadable = |detail: String| LedgerError::Unreadable { path: path.to_owned(), detail };
    let failed = |error: serde_json::Error| unreadable(error.to_string());
    // All that is looked at of a form that is not known.
    let fields: Map<String, Value> = serde_json::from_slice(text).map_err(failed)?;
    match fields.get("version").and_then(Value::as_u64) {
        Some(form) if form > u64::from(VERSION) => Err(LedgerError::Newer { path: path.to_owned(), form }),
        Some(1..) => serde_json::from_slice(text).map_err(failed),
        _ => Err(unreadable("it lacks its format version".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(unit: &str) -> LedgerRecord {
        LedgerRecord {
            version: VERSION,
            unit: unit.into(),
            power_limit_milliwatts: Some(LedgerEntry { original: 700_000, ours: vec![300_000] }),
            sm_clock_mhz: Some(LedgerEntry { original: ClockOriginal::Unlocked, ours: vec![1410] }),
            ..LedgerRecord::default()
        }
    }

    #[test]
    fn what_is_stored_is_loaded_and_what_is_empty_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&folder.path().join("state")).unwrap();
        let (gpu, mps) = (record("GPU-a"), record("mps:/run/mps pipe"));
        ledger.store(&gpu).unwrap();
        ledger.store(&mps).unwrap();
        assert_eq!((ledger.load("GPU-a").unwrap(), ledger.load("mps:/run/mps pipe").unwrap()), (gpu.clone(), mps));
        assert_eq!(Ledger::open_read_only(&folder.path().join("state")).changed().unwrap().len(), 2);
        let nothing = LedgerRecord { power_limit_milliwatts: None, sm_clock_mhz: None, ..gpu };
        let left =
            LedgerRecord { sm_clock_left_alone: Some(ExternalSetting { requested: 1410, theirs: None }), ..nothing.clone() };
        ledger.store(&left).unwrap();
        assert_eq!((ledger.load("GPU-a").unwrap(), ledger.changed().unwrap().len()), (left, 1), "kept, but nothing to put back");
        ledger.store(&nothing).unwrap();
        assert!(ledger.load("GPU-a").unwrap().is_empty() && !ledger.path("GPU-a").exists());
        assert_eq!(ledger.changed().unwrap().len(), 1);
    }

    #[test]
    fn one_agent_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = Ledger::open(folder.path()).unwrap();
        let error = Ledger::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("another agent has the state folder: stop it first"), "{error}");
        drop(first);
        Ledger::open(folder.path()).unwrap();
    }

    #[test]
    fn a_record_that_cannot_be_read_is_never_taken_for_none() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        for text in
            ["", "{", "{}", "[]", "[1]", "{\"version\":0}", "{\"version\":1,", "{\"version\":1,\"power_limit_milliwatts\":7}"]
        {
            std::fs::write(folder.path().join("GPU-a.json"), text).unwrap();
            let error = ledger.load("GPU-a").unwrap_err().to_string();
            assert!(error.contains("restore the device by hand") && error.contains("GPU-a.json"), "{text}: {error}");
        }
    }

    #[test]
    fn a_record_of_a_newer_agent_is_left_to_that_one_whatever_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        for text in [r#"{"version":2}"#, r#"{"version":2,"power_limit_milliwatts":{"gpu":1}}"#, r#"{"version":5000000000}"#] {
            std::fs::write(folder.path().join("GPU-a.json"), text).unwrap();
            let errors = [ledger.load("GPU-a").unwrap_err(), ledger.changed().unwrap().remove(0).unwrap_err()];
            for error in errors {
                assert!(matches!(error, LedgerError::Newer { .. }), "{text}: {error}");
                let error = error.to_string();
                assert!(error.contains("a newer agent wrote it; start that one") && error.contains("GPU-a.json"), "{error}");
                assert!(!error.contains("by hand") && !error.contains("remove"), "{error}");
            }
        }
    }

    /// The first and the present format of a record: the first one got more fields since.
    #[test]
    fn what_was_ever_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(folder.path()).unwrap();
        let power = Some(LedgerEntry { original: 700_000, ours: vec![300_000, 250_000] });
        let application = ClockOriginal::Application { memory_mhz: 1593, graphics_mhz: 1410 };
        let first = LedgerRecord {
            version: 1,
            unit: "GPU-a".into(),
            power_limit_milliwatts: power.clone(),
            sm_clock_mhz: Some(LedgerEntry { original: application, ours: vec![1200] }),
            ..LedgerRecord::default()
        };
        let more = LedgerRecord {
            sm_clock_mhz: Some(LedgerEntry { original: ClockOriginal::Unlocked, ours: vec![1410] }),
            mps_default_millipercent: Some(LedgerEntry { original: 100_000, ours: vec![40_000] }),
            power_limit_left_alone: Some(ExternalSetting { requested: 300_000, theirs: Some(650_000) }),
            sm_clock_left_alone: Some(ExternalSetting { requested: 1410, theirs: None }),
            mps_default_left_alone: Some(ExternalSetting { requested: 40, theirs: Some(50) }),
            ..first.clone()
        };
        for (text, record) in
            [(include_str!("../tests/ledger/v1.first.json"), first), (include_str!("../tests/ledger/v1.json"), more)]
        {
            std::fs::write(folder.path().join("GPU-a.json"), text).unwrap();
            assert_eq!(ledger.load("GPU-a").unwrap(), record);
        }
    }

    #[test]
    fn a_failed_disk_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        let ledger = Ledger::open(&state).unwrap();
        std::fs::remove_dir_all(&state).unwrap();
        let error = ledger.store(&record("GPU-a")).unwrap_err().to_string();
        assert!(error.starts_with("cannot write a record of original settings"), "{error}");
    }
}
