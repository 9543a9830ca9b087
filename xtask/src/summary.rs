//! Adds up what libtest says, binary by binary.

/// Counts over all test binaries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    pub passed: u64,
    pub failed: u64,
    /// Ignored ones, and those that said "skipped: …" and why.
    pub skipped: u64,
    /// Names of failed tests, and reasons of skipped ones.
    pub failures: Vec<String>,
    pub reasons: Vec<String>,
}

/// Reads the lines of `cargo test … -- --show-output`; says which of them a person wants to see.
#[derive(Debug, Default)]
pub struct Reader {
    totals: Totals,
    in_successes: bool,
    /// The passed test whose output is being read has said that it was skipped.
    said_skipped: bool,
}

impl Reader {
    /// Takes one line. True: show it. Outputs of passed tests are hidden, but for the reason why one was skipped.
    pub fn line(&mut self, line: &str) -> bool {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.add(counts);
            return true;
        }
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.totals.failures.push(name.to_owned());
        }
        match line {
            "successes:" => {
                self.in_successes = true;
                return false;
            }
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if !self.in_successes {
            return true;
        }
        if line.starts_with("---- ") {
            self.said_skipped = false;
        }
        let skipped = line.trim_start().starts_with("skipped: ");
        if skipped && !self.said_skipped {
            self.said_skipped = true;
            self.totals.passed = self.totals.passed.wrapping_sub(1);
            self.totals.skipped += 1;
            self.totals.reasons.push(line.trim().to_owned());
        }
        skipped
    }

    /// `ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
    fn add(&mut self, counts: &str) {
        for part in counts.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(Ok(count)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) else { continue };
            match what {
                // Skipped tests of this binary were taken off before.
                "passed" => self.totals.passed = self.totals.passed.wrapping_add(count),
                "failed" => self.totals.failed += count,
                "ignored" => self.totals.skipped += count,
                _ => {}
            }
        }
    }

    pub fn totals(self) -> Totals {
        self.totals
    }
}

impl Totals {
    /// `5 passed, 0 failed, 1 skipped`
    pub fn line(&self) -> String {
        format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }

    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.reasons.extend(other.reasons);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Totals, Vec<&str>) {
        let mut reader = Reader::default();
        let shown = text.lines().filter(|line| reader.line(line)).collect();
        (reader.totals(), shown)
    }

    const TWO_BINARIES: &str = "\
     Running unittests src/lib.rs (target/debug/deps/a-1)

running 3 tests
test one ... ok
test two ... ok
test slow ... ignored

successes:

---- two stdout ----
skipped: no recordings in ../shared/data
skipped: none there either


successes:
    one
    two

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 2 tests
test good ... ok
test bad ... FAILED

successes:

---- good stdout ----
noise of a passed test


successes:
    good

failures:

---- bad stdout ----
thread 'bad' panicked: skipped: not a skip, for it failed

failures:
    bad

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.25s
";

    #[test]
    fn adds_up_binaries_and_counts_skipped_tests_once() {
        let (totals, _) = read(TWO_BINARIES);
        assert_eq!(totals.line(), "2 passed, 1 failed, 2 skipped");
        assert_eq!(totals.failures, ["bad"]);
        assert_eq!(totals.reasons, ["skipped: no recordings in ../shared/data"]);
    }

    #[test]
    fn shows_failures_and_reasons_but_not_the_noise_of_passed_tests() {
        let (_, shown) = read(TWO_BINARIES);
        assert!(shown.contains(&"skipped: no recordings in ../shared/data"));
        assert!(shown.contains(&"thread 'bad' panicked: skipped: not a skip, for it failed"));
        assert!(!shown.contains(&"noise of a passed test"));
        assert_eq!(shown.iter().filter(|line| line.starts_with("test result")).count(), 2);
    }

    #[test]
    fn totals_of_several_runs_add_up() {
        let (totals, _) = read(TWO_BINARIES);
        let both = totals.clone().plus(totals);
        assert_eq!(both.line(), "4 passed, 2 failed, 4 skipped");
        assert_eq!(both.failures, ["bad", "bad"]);
    }
}
