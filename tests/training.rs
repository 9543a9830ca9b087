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

#[test]
fn every_test_module_of_the_package_is_run() {
    let named = [include_str!("training.rs"), include_str!("python_training.rs")].concat();
    for group in ["core", "torch"] {
        let folder = eadt_tests::root().join("python/tests").join(group);
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(module) = name.strip_suffix(".py").filter(|name| name.starts_with("test_")) {
                assert!(named.contains(&format!("\"tests.{group}.{module}\"")), "{name} of {group} is run by no test");
            }
        }
    }
}
