//! How many cases a property test runs.
//!
//! In: the number that a test usually runs. Out: proptest's settings with that number, or with the one that the variable
//! `PROPTEST_CASES` asks for, so that every property test can be run for longer without being edited.

use proptest::test_runner::Config;

/// So many cases, or as many as `PROPTEST_CASES` asks for. proptest's own `Config::with_cases` goes before that variable.
#[must_use]
pub fn cases(usual: u32) -> Config {
    let asked = std::env::var_os("PROPTEST_CASES").is_some();
    chosen(usual, asked.then(Config::default))
}

/// What was asked for, as proptest read it.
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
    #[ignore = "asked by the_variable_is_heard"]
    fn as_many_as_the_variable_says() {
        println!("cases={}", cases(7).cases);
    }

    #[test]
    fn the_variable_is_heard() {
        let said = |asked: Option<&str>| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["cases::tests::as_many_as_the_variable_says", "--ignored", "--nocapture"]).env_remove("PROPTEST_CASES");
            command.envs(asked.map(|number| ("PROPTEST_CASES", number)));
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(said(None).contains("cases=7"), "{}", said(None));
        assert!(said(Some("3")).contains("cases=3"), "{}", said(Some("3")));
        assert!(said(Some("30000")).contains("cases=30000"), "{}", said(Some("30000")));
    }
}
