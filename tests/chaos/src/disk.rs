//! A disk of a process that can be full.

use std::path::Path;

use anyhow::Result;

use crate::part::Part;

/// Its size if it is not full.
const BYTES: u64 = 256 << 20;

/// A file system of its own if this process may mount one, which then is full as any is. Elsewhere files that may not grow:
/// what is written fails at the same places, with another error.
#[derive(Debug)]
pub struct Disk {
    mounted: Option<eadt_testing::Disk>,
}

impl Disk {
    /// In this folder, which is made.
    pub fn new(place: &Path) -> Result<Self> {
        std::fs::create_dir_all(place)?;
        let mounted = eadt_testing::Disk::mount(place, BYTES);
        // The summary of the tests has it: what the row shows here is less than it promises.
        let mounted = mounted
            .map_err(|error| eprintln!("skipped: no file system of its own can be mounted ({error}): no file may grow instead"))
            .ok();
        Ok(Self { mounted })
    }

    /// Whether it can really be full.
    pub fn is_mounted(&self) -> bool {
        self.mounted.is_some()
    }

    /// From now on this process can write so many bytes more, rounded up to pages, if the disk is mounted; if it is not, to
    /// each of its files.
    pub fn fill_but(&self, bytes: u64, part: &Part) -> Result<()> {
        let Some(disk) = &self.mounted else { return part.limit_files(Some(bytes)) };
        // Written meanwhile it may have less room than it needs for what it holds, which is refused.
        for _ in 0..100 {
            if disk.resize(disk.used_bytes()? + bytes).is_ok() {
                return Ok(());
            }
        }
        Ok(disk.resize(BYTES)?)
    }

    /// There is room again.
    pub fn clear(&self, part: &Part) -> Result<()> {
        match &self.mounted {
            Some(disk) => Ok(disk.resize(BYTES)?),
            None => part.limit_files(None),
        }
    }
}
