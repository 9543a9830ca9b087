//! The programs that tests start as processes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The root of the repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in the root")
}

/// Returns the path of `eadt`. `EADT_TEST_PROGRAM` names one that is built already, as `cargo xtask test` does; without it the
/// workspace's programs are built first, so that no test runs an old one.
pub fn program() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        if let Some(built) = std::env::var_os("EADT_TEST_PROGRAM") {
            return built.into();
        }
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        // The whole workspace, so that its features are those of the tests.
        let built = Command::new(cargo).args(["build", "--quiet", "--workspace", "--bins"]).current_dir(root()).status();
        assert!(built.expect("cargo starts").success(), "the programs cannot be built");
        let test = std::env::current_exe().expect("a test has a path");
        test.parent().and_then(Path::parent).expect("a test lies in target/PROFILE/deps").join("eadt")
    });
    &PROGRAM
}

/// Returns the path of the node agent's program.
pub fn agent_program() -> PathBuf {
    program().with_file_name("eadt-agent")
}
