//! Rows of the table, and the findings of their runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::verify::Findings;

/// How a row is run.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub seed: u64,
    /// How often the fault happens.
    pub rounds: u32,
    /// The promise's mitigation is switched off: the fault must bite.
    pub bites: bool,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    pub fault: &'static str,
    pub promise: &'static str,
    /// The mitigation that is switched off to prove that the fault bites.
    pub without: &'static str,
    /// Rounds of a full run, of a batch of them (after which a run can be resumed), and of the short run of the tests.
    pub full: u32,
    pub batch: u32,
    pub short: u32,
    /// Rounds without the mitigation, at most; the first batch with a violation is enough.
    pub off: u32,
    pub run: fn(Run) -> Result<Outcome>,
}

impl Row {
    pub fn words(&self) -> Words {
        Words { fault: self.fault.to_owned(), promise: self.promise.to_owned(), without: self.without.to_owned() }
    }
}

/// The text of a row when it was run: its figures are about that, whatever its text is today.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words {
    pub fault: String,
    pub promise: String,
    pub without: String,
}

/// Findings; outcomes of batches add up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub rounds: u32,
    pub lost: u64,
    pub duplicated: u64,
    pub wrong: u64,
    /// Things that were compared with what they should be.
    pub compared: u64,
    /// The first violations, in words.
    pub examples: Vec<String>,
    /// Times in seconds by what they are of, each round's.
    pub seconds: BTreeMap<String, Vec<f64>>,
    /// Figures that add up.
    pub counts: BTreeMap<String, u64>,
    /// Figures of which the largest counts.
    pub peaks: BTreeMap<String, f64>,
    /// Figures of which the smallest counts.
    #[serde(default)]
    pub lows: BTreeMap<String, f64>,
}

impl Outcome {
    pub fn violations(&self) -> u64 {
        self.lost + self.duplicated + self.wrong
    }

    pub fn take(&mut self, findings: Findings) {
        self.lost += findings.lost;
        self.duplicated += findings.duplicated;
        self.wrong += findings.wrong;
        self.compared += findings.compared;
        self.examples.extend(findings.examples);
        self.examples.truncate(5);
    }

    /// Something that must hold; a violation if it does not.
    pub fn check(&mut self, holds: bool, example: impl FnOnce() -> String) {
        self.compared += 1;
        if !holds {
            self.wrong += 1;
            if self.examples.len() < 5 {
                self.examples.push(example());
            }
        }
    }

    pub fn took(&mut self, what: &str, seconds: f64) {
        // Milliseconds: these are kept in a file.
        self.seconds.entry(what.to_owned()).or_default().push((seconds * 1e3).round() / 1e3);
    }

    pub fn count(&mut self, what: &str, count: u64) {
        *self.counts.entry(what.to_owned()).or_default() += count;
    }

    pub fn peak(&mut self, what: &str, value: f64) {
        let peak = self.peaks.entry(what.to_owned()).or_insert(value);
        *peak = peak.max(value);
    }

    pub fn low(&mut self, what: &str, value: f64) {
        let low = self.lows.entry(what.to_owned()).or_insert(value);
        *low = low.min(value);
    }

    pub fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.wrong += other.wrong;
        self.compared += other.compared;
        self.examples.extend(other.examples.iter().map(|example| placeless(example)));
        self.examples.truncate(5);
        for (what, seconds) in other.seconds {
            self.seconds.entry(what).or_default().extend(seconds);
        }
        for (what, count) in other.counts {
            *self.counts.entry(what).or_default() += count;
        }
        for (what, value) in other.peaks {
            self.peak(&what, value);
        }
        for (what, value) in other.lows {
            self.low(&what, value);
        }
    }

    /// With what `other` found in another part of the row. Switched off, each part must fail: nothing counts if one does not.
    #[must_use]
    pub fn with(mut self, other: Self, part: &str, bites: bool) -> Self {
        let is_dull = bites && (self.violations() == 0 || other.violations() == 0);
        if bites {
            self.count(&format!("violations {part}"), other.violations());
        }
        self.add(other);
        if is_dull {
            (self.lost, self.duplicated, self.wrong) = (0, 0, 0);
        }
        self
    }

    /// The figures in one line.
    pub fn figure(&self) -> String {
        let Self { rounds, lost, duplicated, wrong, compared, .. } = self;
        let mut text = format!("{rounds} rounds: lost {lost}, duplicated {duplicated}, wrong {wrong} of {compared} compared");
        for (what, seconds) in &self.seconds {
            let (half, most) = (percentile(seconds, 0.5), percentile(seconds, 0.99));
            write!(text, "; {what} p50 {half:.2} s, p99 {most:.2} s").expect("a string takes what is written");
        }
        for (what, count) in &self.counts {
            write!(text, "; {what} {count}").expect("a string takes what is written");
        }
        for (what, value) in self.peaks.iter().chain(&self.lows) {
            write!(text, "; {what} {value:.1}").expect("a string takes what is written");
        }
        text
    }
}

/// A text without the names of temporary folders, which mean nothing once these are gone.
fn placeless(text: &str) -> String {
    let folders = format!("{}/.tmp", std::env::temp_dir().display().to_string().trim_end_matches('/'));
    let mut parts = text.split(&folders);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let part = part.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric());
        kept.push_str(part.strip_prefix('/').unwrap_or(part));
    }
    kept
}

/// The least value that at least this part of all is not above.
pub fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let index = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_values_themselves() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.5), percentile(&values, 0.99), percentile(&[7.0], 0.99)), (50.0, 99.0, 7.0));
    }

    #[test]
    fn where_one_of_two_parts_does_not_bite_the_row_does_not() {
        let lost = |lost| Outcome { lost, ..Outcome::default() };
        for (one, other, bites, violations) in
            [(2, 3, true, 5), (2, 0, true, 0), (0, 3, true, 0), (2, 0, false, 2), (0, 3, false, 3)]
        {
            let both = lost(one).with(lost(other), "of the other", bites);
            assert_eq!(both.violations(), violations, "{one} {other} {bites}");
            assert_eq!(both.counts.get("violations of the other").copied(), bites.then_some(other));
        }
    }

    #[test]
    fn examples_are_kept_without_the_temporary_folders_of_their_run() {
        let dir = tempfile::tempdir().unwrap();
        let (place, shown) = (dir.path().join("archive/a.parquet"), dir.path().display());
        let mut batch = Outcome::default();
        batch.check(false, || format!("{} and {} overlap in {shown}", place.display(), place.display()));
        let mut kept = Outcome::default();
        kept.add(batch);
        assert_eq!(kept.examples, ["archive/a.parquet and archive/a.parquet overlap in "]);
        assert_eq!(placeless("nothing of /tmp in it"), "nothing of /tmp in it");
    }

    #[test]
    fn outcomes_add_up() {
        let mut outcome = Outcome { rounds: 2, lost: 1, ..Outcome::default() };
        outcome.took("recovery", 1.0);
        outcome.peak("memory", 5.0);
        outcome.low("share", 5.0);
        let mut other = Outcome { rounds: 3, ..Outcome::default() };
        other.took("recovery", 2.0);
        other.peak("memory", 4.0);
        other.low("share", 4.0);
        other.check(false, || "no".into());
        outcome.add(other);
        assert_eq!((outcome.rounds, outcome.violations()), (5, 2));
        assert_eq!((outcome.peaks["memory"], outcome.lows["share"]), (5.0, 4.0));
        assert!(outcome.figure().contains("recovery p50 1.00 s, p99 2.00 s"), "{}", outcome.figure());
    }
}
