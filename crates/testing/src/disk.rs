use std::ffi::CString;
use std::io::Result;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

/// A file system of its own, in memory, which can be as full as any. It goes with this value.
#[derive(Debug)]
pub struct Disk {
    place: PathBuf,
}

impl Disk {
    /// Mounts a file system in this folder, with room for this many bytes. Fails if this process may not mount one; usually only
    /// root may.
    pub fn mount(place: &Path, bytes: u64) -> Result<Self> {
        mount(c"eadt-test", place, c"tmpfs", MountFlags::empty(), &*sized(bytes))?;
        Ok(Self { place: place.to_owned() })
    }

    pub fn resize(&self, bytes: u64) -> Result<()> {
        Ok(mount_remount(&self.place, MountFlags::empty(), &*sized(bytes))?)
    }

    pub fn used_bytes(&self) -> Result<u64> {
        let held = statvfs(&self.place)?;
        Ok((held.f_blocks - held.f_bfree) * held.f_frsize)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.place, UnmountFlags::DETACH) {
            eprintln!("{} stays mounted: {error}", self.place.display());
        }
    }
}

fn sized(bytes: u64) -> CString {
    CString::new(format!("size={bytes}")).expect("digits have no NUL")
}
