//! A control program as NVIDIA's, whose daemons keep their default in a file of their pipe folder.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// The program and one daemon, in a folder of their own, which is removed with this value.
///
/// With a file `hang` in the pipe folder the program never answers. With `slow` it sets a default only when that file is removed,
/// and creates a file `waits` until then. With `mute` it sets a default without an answer.
#[derive(Debug)]
pub struct FakeMps {
    folder: tempfile::TempDir,
}

impl FakeMps {
    /// Returns a daemon with this default.
    pub fn new(default: &str) -> Self {
        let fake = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        std::fs::create_dir(fake.pipe_directory()).expect("the folder is writable");
        std::fs::write(fake.pipe_directory().join("control"), "").expect("the folder is writable");
        fake.change(default);
        let script = "#!/bin/sh\n\
            [ -e \"$CUDA_MPS_PIPE_DIRECTORY/hang\" ] && sleep 60\n\
            [ -e \"$CUDA_MPS_PIPE_DIRECTORY/default\" ] || { echo 'Cannot find MPS control daemon process'; exit 1; }\n\
            read -r command value\n\
            case $command in\n\
            get_default_active_thread_percentage) cat \"$CUDA_MPS_PIPE_DIRECTORY/default\";;\n\
            set_default_active_thread_percentage) \
            while [ -e \"$CUDA_MPS_PIPE_DIRECTORY/slow\" ]; do : > \"$CUDA_MPS_PIPE_DIRECTORY/waits\"; sleep 0.02; done; \
            echo \"$value\" > \"$CUDA_MPS_PIPE_DIRECTORY/default\"; \
            echo \"$value\" >> \"$CUDA_MPS_PIPE_DIRECTORY/history\"; [ -e \"$CUDA_MPS_PIPE_DIRECTORY/mute\" ] && sleep 60; true;;\n\
            *) echo \"unknown command $command\"; exit 1;;\n\
            esac\n";
        std::fs::write(fake.program(), script).expect("the folder is writable");
        std::fs::set_permissions(fake.program(), std::fs::Permissions::from_mode(0o755)).expect("the folder is writable");
        fake
    }

    pub fn pipe_directory(&self) -> PathBuf {
        self.folder.path().join("pipe")
    }

    pub fn program(&self) -> PathBuf {
        self.folder.path().join("nvidia-cuda-mps-control")
    }

    /// Returns the default in force, from any writer.
    pub fn default(&self) -> String {
        let text = std::fs::read_to_string(self.pipe_directory().join("default")).expect("a daemon has a default");
        text.trim().to_owned()
    }

    /// Returns all defaults that the daemon was set to, oldest first.
    pub fn set_defaults(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.pipe_directory().join("history")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Changes the default like another program.
    pub fn change(&self, default: &str) {
        std::fs::write(self.pipe_directory().join("default"), format!("{default}\n")).expect("the folder is writable");
    }
}
