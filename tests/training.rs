//! The Python package without any framework: against the real program, and against servers that do it harm.

use std::path::Path;

use eadt_tests::python::package_tests;

/// Some 25 s, most of which is waiting.
#[test]
fn the_package_reports_to_the_program_and_survives_harmful_servers() {
    let program = [("EADT_TEST_PROGRAM", eadt_tests::program())];
    let modules = [
        "tests.core.test_client",
        "tests.core.test_run",
        "tests.core.test_backend",
        "tests.core.test_slurm",
        "tests.core.test_up",
    ];
    package_tests(Path::new("python3"), &modules, &program).unwrap();
}
