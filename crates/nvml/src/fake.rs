//! A `libnvidia-ml.so` of our own for tests: the real binding speaks to it as to NVIDIA's.
//!
//! Four GPUs behave as the file `scenario` says, which is read again at every call: lines of GPU, key, value. The keys
//! stand at the head of `fake/nvml.c`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, compiled into a folder of its own, which goes with this value.
#[derive(Debug)]
pub struct FakeLibrary {
    folder: tempfile::TempDir,
}

impl FakeLibrary {
    /// Compiles it; the GPUs begin as `scenario` says.
    pub fn new(scenario: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fake = Self { folder };
        fake.set(scenario);
        let source = fake.folder().join("nvml.c");
        std::fs::write(&source, include_str!("../fake/nvml.c")).expect("the folder is writable");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror"])
            .arg(format!("-DFOLDER=\"{}\"", fake.folder().display()))
            .arg("-o")
            .arg(fake.library())
            .arg(source)
            .output()
            .expect("a C compiler, which building this project needs anyway");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fake
    }

    /// The folder of the library and of everything that it reads and writes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Path of the library.
    pub fn library(&self) -> PathBuf {
        self.folder().join("libnvidia-ml.so")
    }

    /// Replaces the scenario; in force from the next call on.
    pub fn set(&self, scenario: &str) {
        // Replaced as a whole, so that no call sees half of it.
        let next = self.folder().join("next");
        std::fs::write(&next, scenario).expect("the folder is writable");
        std::fs::rename(next, self.folder().join("scenario")).expect("the folder is writable");
    }
}
