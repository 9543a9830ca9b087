//! Adds up what libtest says, binary by binary.

/// Counts over all test binaries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Totals {
    pub passed: u64,
    pub failed: u64,
    /// Ignored ones, and those that said "skipped: …" and why.
    pub skipped: u64,
    /// In the order in which they failed.
    pub failures: Vec<Failure>,
    /// Why tests were skipped.
    pub reasons: Vec<String>,
}

/// A failed test.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failure {
    pub name: String,
    /// How its panic begins; empty where it said nothing.
    pub said: Vec<String>,
}

/// Of a panic's message as many lines stand in the summary, of as many characters.
const SAID_LINES: usize = 8;
const SAID_CHARACTERS: usize = 300;

/// Reads the lines of `cargo test … -- --show-output`; says which of them a person wants to see.
#[derive(Debug, Default)]
pub struct Reader {
    totals: Totals,
    in_successes: bool,
    /// The passed test whose output is being read has said that it was skipped.
    said_skipped: bool,
    /// The failed test whose panic is being read, by its place among the failures.
    panicked: Option<usize>,
    /// The failed test whose output is being read, and has not panicked yet.
    read: Option<usize>,
    /// Failures of the binaries before this one.
    before: usize,
}

impl Reader {
    /// Takes one line. True: show it. Outputs of passed tests are hidden, but for the reason why one was skipped.
    pub fn line(&mut self, line: &str) -> bool {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            (self.read, self.panicked, self.before) = (None, None, self.totals.failures.len());
            self.add(counts);
            return true;
        }
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.totals.failures.push(Failure { name: name.to_owned(), said: Vec::new() });
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
            self.failed(line);
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

    /// A line of what failed tests said.
    fn failed(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            let of_this_binary = self.totals.failures.iter().enumerate().skip(self.before);
            self.read = of_this_binary.filter(|(_, failure)| failure.name == name).map(|(place, _)| place).next();
            self.panicked = None;
        } else if line.starts_with("thread '") && line.contains(" panicked at ") {
            // A second panic is a consequence of the first.
            self.panicked = self.read.take();
        } else if line.is_empty() || line.starts_with("stack backtrace:") || line.starts_with("note: ") {
            self.panicked = None;
        } else if let Some(place) = self.panicked {
            let said = &mut self.totals.failures[place].said;
            if said.len() < SAID_LINES {
                said.push(line.chars().take(SAID_CHARACTERS).collect());
            }
        }
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
noise of a failed test

thread 'bad' (7) panicked at tests/a.rs:1:2:
skipped: not a skip, for it failed
  left: 1
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

thread 'helper' (8) panicked at tests/a.rs:3:4:
a consequence

failures:
    bad

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.25s
";

    fn names(totals: &Totals) -> Vec<&str> {
        totals.failures.iter().map(|failure| &*failure.name).collect()
    }

    #[test]
    fn the_beginning_of_the_first_panic_stands_in_the_summary() {
        let (totals, _) = read(TWO_BINARIES);
        assert_eq!(totals.failures[0].said, ["skipped: not a skip, for it failed", "  left: 1"]);
        let long = format!("test bad ... FAILED\n---- bad stdout ----\nthread 'bad' panicked at a:\n{}", "é\n".repeat(20));
        assert_eq!(read(&long).0.failures[0].said.len(), SAID_LINES);
        let wide = format!("test bad ... FAILED\n---- bad stdout ----\nthread 'bad' panicked at a:\n{}", "é".repeat(999));
        assert_eq!(read(&wide).0.failures[0].said, ["é".repeat(SAID_CHARACTERS)]);
    }

    #[test]
    fn tests_of_one_name_in_two_binaries_each_say_their_own() {
        let binary = |said: &str| {
            format!(
                "test bad ... FAILED\nfailures:\n---- bad stdout ----\nthread 'bad' panicked at a:\n{said}\n\ntest result: FAILED. 0 passed; 1 failed\n"
            )
        };
        let text = binary("one") + &binary("two");
        let said: Vec<_> = read(&text).0.failures.into_iter().flat_map(|failure| failure.said).collect();
        assert_eq!(said, ["one", "two"]);
    }

    #[test]
    fn adds_up_binaries_and_counts_skipped_tests_once() {
        let (totals, _) = read(TWO_BINARIES);
        assert_eq!(totals.line(), "2 passed, 1 failed, 2 skipped");
        assert_eq!(names(&totals), ["bad"]);
        assert_eq!(totals.reasons, ["skipped: no recordings in ../shared/data"]);
    }

    #[test]
    fn shows_failures_and_reasons_but_not_the_noise_of_passed_tests() {
        let (_, shown) = read(TWO_BINARIES);
        assert!(shown.contains(&"skipped: no recordings in ../shared/data"));
        assert!(shown.contains(&"skipped: not a skip, for it failed"));
        assert!(!shown.contains(&"noise of a passed test"));
        assert_eq!(shown.iter().filter(|line| line.starts_with("test result")).count(), 2);
    }

    #[test]
    fn totals_of_several_runs_add_up() {
        let (totals, _) = read(TWO_BINARIES);
        let both = totals.clone().plus(totals);
        assert_eq!(both.line(), "4 passed, 2 failed, 4 skipped");
        assert_eq!(names(&both), ["bad", "bad"]);
    }
}
