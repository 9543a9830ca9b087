//! A disk of a process that can be full.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::statvfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use crate::part::Part;

/// What it has where it is not full.
const BYTES: u64 = 256 << 20;

/// A file system of its own where this process may mount one, which then is full as any is. Elsewhere files that may not grow: what
/// is written fails at the same places, with another error.
#[derive(Debug)]
pub struct Disk {
    place: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// In this folder, which is made.
    pub fn new(place: &Path) -> Result<Self> {
        std::fs::create_dir_all(place)?;
        let is_mounted = mount(c"eadt-chaos", place, c"tmpfs", MountFlags::empty(), &*sized(BYTES)).is_ok();
        Ok(Self { place: place.to_owned(), is_mounted })
    }

    /// Whether it can really be full.
    pub fn is_mounted(&self) -> bool {
        self.is_mounted
    }

    /// From now on this process can write so many bytes more, rounded up to pages, where the disk is mounted; where it is not, to each of its files.
    pub fn fill_but(&self, bytes: u64, part: &Part) -> Result<()> {
        if !self.is_mounted {
            return part.limit_files(Some(bytes));
        }
        // Written meanwhile it may have less room than it needs for what it holds, which is refused.
        for _ in 0..100 {
            let held = statvfs(&self.place)?;
            let used = (held.f_blocks - held.f_bfree) * held.f_frsize;
            if self.resize(used + bytes).is_ok() {
                return Ok(());
            }
        }
        self.resize(BYTES)
    }

    /// There is room again.
    pub fn clear(&self, part: &Part) -> Result<()> {
        if self.is_mounted { self.resize(BYTES) } else { part.limit_files(None) }
    }

    fn resize(&self, bytes: u64) -> Result<()> {
        Ok(mount_remount(&self.place, MountFlags::empty(), &*sized(bytes))?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = unmount(&self.place, UnmountFlags::DETACH)
        {
            eprintln!("{} stays mounted: {error}", self.place.display());
        }
    }
}

fn sized(bytes: u64) -> CString {
    CString::new(format!("size={bytes}")).expect("digits have no NUL")
}
