//! The number of cases of a property test.
//!
//! In: the test's usual number. Out: proptest's settings with that number, or with that of the variable `PROPTEST_CASES`, so that
//! every property test can be run longer without an edit.

use proptest::test_runner::Config;

/// Returns settings with this many cases, or as many as `PROPTEST_CASES` has. proptest's own `Config::with_cases` would override
/// that variable.
#[must_use]
pub fn cases(usual: u32) -> Config {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    chosen(usual, asked.then(Config::default))
}

/// Returns the requested settings, as proptest read them, or the usual number.
fn chosen(usual: u32, asked: Option<Config>) -> Config {
    asked.unwrap_or_else(|| Config { cases: usual, ..Config::default() })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_asked_for_goes_before_what_is_usual() {
        assert_eq!(chosen(7, None).cases, 7);
        assert_eq!(chosen(7, Some(Config { cases: 5000, ..Config::default() })).cases, 5000);
    }

    /// Run in a process of its own, because variables belong to the whole process.
    #[test]
    #[ignore = "run by the_variable_is_read"]
    fn as_many_as_the_variable_sets() {
        println!("cases={}", cases(7).cases);
    }

    #[test]
    fn the_variable_is_read() {
        let output_with = |asked: Option<&str>| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["cases::tests::as_many_as_the_variable_sets", "--ignored", "--nocapture"]).env_remove("PROPTEST_CASES");
            command.envs(asked.map(|number| ("PROPTEST_CASES", number)));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(output_with(None).contains("cases=7"), "{}", output_with(None));
        assert!(output_with(Some("3")).contains("cases=3"), "{}", output_with(Some("3")));
        assert!(output_with(Some("30000")).contains("cases=30000"), "{}", output_with(Some("30000")));
    }
}
