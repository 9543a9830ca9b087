//! A `libnvidia-ml.so` of our own for tests, which the real binding uses like NVIDIA's.
//!
//! Its GPUs, four by default, behave as the file `scenario` defines. It is read again at every call: lines of GPU, key, value.
//! The keys are described at the top of `fake/nvml.c`. There is also a control program of MPS.

mod mps;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use mps::FakeMps;

/// The library, compiled into a folder of its own, which goes with this value.
#[derive(Debug)]
pub struct FakeLibrary {
    folder: tempfile::TempDir,
}

impl FakeLibrary {
    /// Compiles it; its GPUs start with `scenario`.
    pub fn new(scenario: &str) -> Self {
        Self::with_gpus(4, scenario)
    }

    /// Returns the same with this many GPUs.
    pub fn with_gpus(gpus: u32, scenario: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let fake = Self { folder };
        fake.set(scenario);
        let source = fake.folder().join("nvml.c");
        std::fs::write(&source, include_str!("../fake/nvml.c")).expect("the folder is writable");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror"])
            .arg(format!("-DGPUS={gpus}"))
            .arg(format!("-DFOLDER=\"{}\"", fake.folder().display()))
            .arg("-o")
            .arg(fake.library())
            .arg(source)
            .output()
            .expect("a C compiler, which building this project needs anyway");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fake
    }

    /// Returns the folder of the library and of everything that it reads and writes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of the library.
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
/// Settings of a GPU of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FakeSettings {
    pub power_milliwatts: u32,
    /// 0: not locked.
    pub lock_mhz: u32,
    pub memory_mhz: u32,
    pub graphics_mhz: u32,
}

impl Default for FakeSettings {
    fn default() -> Self {
        Self { power_milliwatts: 700_000, lock_mhz: 0, memory_mhz: 2619, graphics_mhz: 1755 }
    }
}

impl FakeLibrary {
    /// Returns the settings in force, from any writer.
    pub fn settings(&self, gpu: u32) -> FakeSettings {
        let Ok(text) = std::fs::read_to_string(self.folder().join(format!("settings-{gpu}"))) else {
            return FakeSettings::default();
        };
        let numbers: Vec<u32> = text.split_whitespace().map(|word| word.parse().expect("a number")).collect();
        let [power_milliwatts, lock_mhz, memory_mhz, graphics_mhz] = numbers[..] else { panic!("{text:?}") };
        FakeSettings { power_milliwatts, lock_mhz, memory_mhz, graphics_mhz }
    }

    /// Changes the settings like another program.
    pub fn change(&self, gpu: u32, settings: FakeSettings) {
        let FakeSettings { power_milliwatts, lock_mhz, memory_mhz, graphics_mhz } = settings;
        let next = self.folder().join("changed");
        let text = format!("{power_milliwatts} {lock_mhz} {memory_mhz} {graphics_mhz}\n");
        std::fs::write(&next, text).expect("the folder is writable");
        std::fs::rename(next, self.folder().join(format!("settings-{gpu}"))).expect("the folder is writable");
    }
}
