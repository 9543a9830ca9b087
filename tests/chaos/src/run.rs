//! Runs rows, keeps what they found, prints the table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::row::{Outcome, Row, Run, Words};
use crate::surroundings::Surroundings;

/// How the rows are to be run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rounds of each row; `None`: as many as a full run has.
    pub rounds: Option<u32>,
    pub seed: u64,
    /// File for the findings, written after every batch.
    pub state: Option<PathBuf>,
    /// Resume from the kept state.
    pub resume: bool,
    /// Add to rows of other builds, too, if these have the same text; without it they begin anew.
    pub across_builds: bool,
}

/// Findings of a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub with: Outcome,
    /// Without the mitigation.
    pub without: Outcome,
    pub wall_seconds: f64,
    /// With and without are both complete.
    pub complete: bool,
    /// With what, and where, of every run that added to it.
    #[serde(default)]
    pub surroundings: BTreeSet<Surroundings>,
    /// The row's text when it was run. `None` if that was not kept.
    #[serde(default)]
    pub words: Option<Words>,
}

impl Found {
    /// Kept, and it bites.
    pub fn is_good(&self) -> bool {
        self.complete && self.with.violations() == 0 && self.without.violations() > 0
    }

    /// Returns the text of the row: the one of its run, or today's if that was not kept.
    pub fn words(&self, row: &Row) -> Words {
        self.words.clone().unwrap_or_else(|| row.words())
    }

    /// Whether it is what was written, which may know the words of its row besides: these were not always kept.
    fn is(&self, written: &Self) -> bool {
        let words = self.words.as_ref().or(written.words.as_ref()).cloned();
        Self { words, ..self.clone() } == *written
    }

    /// Of how many builds the figures are.
    pub fn builds(&self) -> usize {
        self.surroundings.iter().map(|of| &of.eadt).collect::<BTreeSet<_>>().len()
    }

    pub fn verdict(&self) -> &'static str {
        match (self.with.violations(), self.without.violations()) {
            (0, 0) => "does not bite",
            (0, _) => "kept",
            _ => "broken",
        }
    }
}

/// Whether a row that is to go on has figures of a build, or of a way to read, that is not this one.
fn is_of_another_build(found: &Found, here: &Surroundings) -> bool {
    found.surroundings.iter().any(|of| of.eadt != here.eadt || of.fetch != here.fetch)
}

/// Why a row that is to go on begins anew; `None`: it goes on.
fn begins_anew(row: &Row, found: &Found, here: &Surroundings, across_builds: bool) -> Option<String> {
    // Figures of two promises add up to none.
    if found.words.as_ref().is_some_and(|words| *words != row.words()) {
        return Some("what is kept of it is of a row with another text".to_owned());
    }
    if across_builds || !is_of_another_build(found, here) {
        return None;
    }
    let of: Vec<&str> = found.surroundings.iter().map(|of| of.eadt.as_str()).collect();
    let (of, is) = (of.join(" and "), &here.eadt);
    Some(format!("what is kept of it is of EADT {of}, and this is {is} (--across-builds adds to it all the same)"))
}

/// State that is kept between runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    pub seed: u64,
    pub rows: BTreeMap<String, Found>,
}

impl State {
    /// Reads the kept findings.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = fs::read(path).with_context(|| format!("no run is kept in {}", path.display()))?;
        serde_json::from_slice(&bytes).with_context(|| format!("{} is not a kept run", path.display()))
    }

    /// The same; `None` if there is no file.
    pub fn read_if_there(path: &Path) -> Result<Option<Self>> {
        path.exists().then(|| Self::read(path)).transpose()
    }

    /// The first row that was run from a tree with changes, and is not among those written already: it could not be repeated,
    /// so no page may name it.
    pub fn unrepeatable(&self, written: Option<&Self>) -> Option<&str> {
        let written = |name: &str| written.and_then(|written| written.rows.get(name));
        let is_new = |name: &str, found: &Found| !written(name).is_some_and(|written| found.is(written));
        let is_changed = |found: &Found| found.surroundings.iter().any(Surroundings::is_changed);
        self.rows.iter().find(|(name, found)| is_changed(found) && is_new(name, found)).map(|(name, _)| name.as_str())
    }

    /// With the rows that are written already and are not among these, or are the same.
    #[must_use]
    pub fn beside(mut self, written: Self) -> Self {
        for (name, found) in written.rows {
            if self.rows.get(&name).is_none_or(|new| new.is(&found)) {
                self.rows.insert(name, found);
            }
        }
        self
    }

    fn load(path: &Path, seed: u64) -> Result<Self> {
        let state = Self::read(path)?;
        if state.seed != seed {
            bail!("{} was run with --seed {}, not {seed}: name that seed, or do not resume", path.display(), state.seed);
        }
        Ok(state)
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let fresh = path.with_extension("new");
        fs::write(&fresh, serde_json::to_vec_pretty(self)?)?;
        Ok(fs::rename(fresh, path)?)
    }
}

/// Seeds of batches lie far apart.
fn batch_seed(seed: u64, done: u32) -> u64 {
    seed.wrapping_add(u64::from(done).wrapping_mul(1_000_003))
}

fn go_on(row: &Row, found: &mut Found, options: &Options, mut keep: impl FnMut(&Found) -> Result<()>) -> Result<()> {
    let rounds = options.rounds.unwrap_or(row.full);
    let begun = Instant::now();
    let before = found.wall_seconds;
    while found.with.rounds < rounds {
        let seed = batch_seed(options.seed, found.with.rounds);
        let run = Run { seed, rounds: row.batch.min(rounds - found.with.rounds), bites: false };
        let outcome = (row.run)(run).with_context(|| format!("row {}, seed {seed}", row.name))?;
        found.with.add(outcome);
        found.wall_seconds = before + begun.elapsed().as_secs_f64();
        keep(found)?;
        eprintln!("{}: {}", row.name, found.with.figure());
    }
    while found.without.violations() == 0 && found.without.rounds < row.off {
        let run = Run { seed: batch_seed(options.seed, found.without.rounds), rounds: row.batch.min(row.off), bites: true };
        let outcome = (row.run)(run).with_context(|| format!("row {} without {}", row.name, row.without))?;
        found.without.add(outcome);
        found.wall_seconds = before + begun.elapsed().as_secs_f64();
        keep(found)?;
        eprintln!("{} without {}: {}", row.name, row.without, found.without.figure());
    }
    found.complete = true;
    keep(found)
}

/// Why no page can be written of a full run, known before its hours begin. `kept` is what it goes on from, `written` what the page is
/// of by now.
pub fn why_no_page(
    rows: &[&Row],
    here: &Surroundings,
    kept: Option<State>,
    written: Option<&State>,
    across_builds: bool,
) -> Option<String> {
    if here.is_changed() {
        return Some("the tree has changes that no commit names".to_owned());
    }
    let mut kept = kept?;
    let is_done = |row: &Row, found: &Found| found.complete && found.with.rounds >= row.full;
    // Others begin anew, from this tree.
    kept.rows.retain(|name, found| {
        let row = rows.iter().find(|row| row.name == *name);
        row.is_none_or(|row| is_done(row, found) || begins_anew(row, found, here, across_builds).is_none())
    });
    let name = kept.unrepeatable(written)?;
    Some(format!("row {name}, which is kept, was run from a tree with changes that no commit names"))
}

/// Runs these rows one after the other; a row that cannot be run is an error, and what was found so far is kept.
pub fn run(rows: &[&Row], options: &Options) -> Result<State> {
    if !eadt_faults::SWITCHES {
        bail!("this build has no debug assertions, so that no promise can be switched off in it: build it without --release");
    }
    let mut state = State { seed: options.seed, rows: BTreeMap::new() };
    if options.resume {
        let path = options.state.as_ref().context("there is no place to resume from")?;
        state = State::load(path, options.seed)?;
    }
    let here = Surroundings::here();
    for row in rows {
        let mut found = state.rows.remove(row.name).unwrap_or_default();
        let wanted = options.rounds.unwrap_or(row.full);
        if !(found.complete && found.with.rounds >= wanted) {
            if let Some(why) = begins_anew(row, &found, &here, options.across_builds) {
                eprintln!("{}: begins anew: {why}", row.name);
                found = Found::default();
            }
            if found == Found::default() {
                found.words = Some(row.words());
            }
            found.complete = false;
            found.surroundings.insert(here.clone());
            let mut state = state.clone();
            go_on(row, &mut found, options, |found| {
                let Some(path) = &options.state else { return Ok(()) };
                state.rows.insert(row.name.to_owned(), found.clone());
                state.save(path)
            })?;
        }
        state.rows.insert(row.name.to_owned(), found);
    }
    Ok(state)
}

/// The table in Markdown.
pub fn table(rows: &[&Row], state: &State) -> String {
    let mut text = String::from("| row | fault | promise | figure | without | then | verdict |\n|---|---|---|---|---|---|---|\n");
    for row in rows {
        let Some(found) = state.rows.get(row.name) else { continue };
        let (with, without, verdict) = (found.with.figure(), found.without.figure(), found.verdict());
        let (name, Words { fault, promise, without: off }) = (row.name, found.words(row));
        writeln!(text, "| `{name}` | {fault} | {promise} | {with} | {off} | {without} | {verdict} |")
            .expect("a string takes what is written");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(run: fn(Run) -> Result<Outcome>) -> Row {
        Row { name: "row", fault: "f", promise: "p", without: "w", full: 10, batch: 4, short: 1, off: 8, run }
    }

    #[allow(clippy::unnecessary_wraps, reason = "a row's run may fail")]
    fn one_violation_when_off(run: Run) -> Result<Outcome> {
        Ok(Outcome { rounds: run.rounds, lost: u64::from(run.bites), ..Outcome::default() })
    }

    #[allow(clippy::unnecessary_wraps, reason = "a row's run may fail")]
    fn never_bites(run: Run) -> Result<Outcome> {
        Ok(Outcome { rounds: run.rounds, ..Outcome::default() })
    }

    fn fails_in_the_third_batch(run: Run) -> Result<Outcome> {
        if run.rounds < 4 {
            bail!("no")
        }
        never_bites(run)
    }

    #[test]
    fn a_row_that_does_not_bite_is_not_good() {
        let options = Options { rounds: None, seed: 1, state: None, resume: false, across_builds: false };
        let good = run(&[&row(one_violation_when_off)], &options).unwrap();
        assert!(good.rows["row"].is_good());
        assert_eq!((good.rows["row"].with.rounds, good.rows["row"].without.rounds), (10, 4));
        let dull = run(&[&row(never_bites)], &options).unwrap();
        assert_eq!(
            (dull.rows["row"].is_good(), dull.rows["row"].verdict(), dull.rows["row"].without.rounds),
            (false, "does not bite", 8)
        );
    }

    #[test]
    fn an_interrupted_run_goes_on_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept/state.json");
        let mut options = Options { rounds: None, seed: 1, state: Some(path.clone()), resume: false, across_builds: false };
        run(&[&row(fails_in_the_third_batch)], &options).unwrap_err();
        assert_eq!(State::load(&path, 1).unwrap().rows["row"].with.rounds, 8);
        assert!(State::load(&path, 2).unwrap_err().to_string().contains("--seed 1"));
        options.resume = true;
        let state = run(&[&row(one_violation_when_off)], &options).unwrap();
        assert_eq!(state.rows["row"].with.rounds, 10);
        assert!(table(&[&row(never_bites)], &state).contains("| kept |"));
    }

    #[test]
    fn a_row_keeps_its_text_of_when_it_was_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let mut options = Options { rounds: Some(8), seed: 1, state: Some(path.clone()), resume: true, across_builds: true };
        let first = row(one_violation_when_off);
        State { seed: 1, ..State::default() }.save(&path).unwrap();
        let found = run(&[&first], &options).unwrap().rows["row"].clone();
        assert_eq!((found.words(&first), found.builds()), (first.words(), 1));

        // Complete, it stays what it is; and if it is to go on, figures of another promise are not added to.
        let other = Row { promise: "more than p", ..first };
        let state = run(&[&other], &options).unwrap();
        assert_eq!(state.rows["row"], found);
        let page = table(&[&other], &state);
        assert!(page.contains("| p |") && !page.contains("more than p"), "{page}");
        options.rounds = Some(12);
        let anew = run(&[&other], &options).unwrap().rows["row"].clone();
        assert_eq!((anew.with.rounds, anew.words(&first).promise.as_str()), (12, "more than p"));
        options.rounds = Some(14);
        let longer = run(&[&other], &options).unwrap().rows["row"].clone();
        assert_eq!((longer.with.rounds, longer.words), (14, anew.words));

        let mut old = serde_json::to_value(&found).unwrap();
        old.as_object_mut().unwrap().remove("words");
        let old: Found = serde_json::from_value(old).unwrap();
        assert_eq!((&old.words, old.words(&first)), (&None, first.words()), "it was not kept");
    }

    #[test]
    fn the_page_is_of_new_rows_and_of_those_that_are_written_already() {
        let words = row(never_bites).words();
        let found = |rounds: u32, words: Option<&Words>| Found {
            with: Outcome { rounds, ..Outcome::default() },
            words: words.cloned(),
            ..Found::default()
        };
        let of = |rows: &[(&str, Found)]| State {
            seed: 1,
            rows: rows.iter().map(|(name, found)| ((*name).to_owned(), found.clone())).collect(),
        };
        let written =
            of(&[("same", found(1, Some(&words))), ("longer", found(1, Some(&words))), ("old", found(1, Some(&words)))]);
        let kept = of(&[("same", found(1, None)), ("longer", found(2, None)), ("new", found(3, Some(&words)))]);
        let page = kept.beside(written).rows;
        assert_eq!(page["same"], found(1, Some(&words)), "what is known of it stays known");
        assert_eq!((&page["longer"], page["new"].with.rounds, page["old"].with.rounds), (&found(2, None), 3, 1));
        assert_eq!(page.len(), 4);
    }

    #[test]
    fn that_no_page_can_be_written_is_known_before_the_run() {
        let of = |eadt: &str| Surroundings { eadt: eadt.into(), ..Surroundings::default() };
        let (clean, changed) = (of("0.0.1 (a)"), of("0.0.1 (a, changed)"));
        let row = row(never_bites);
        let kept = |complete: bool, rounds: u32, of: &Surroundings| {
            let with = Outcome { rounds, ..Outcome::default() };
            let found = Found { with, complete, surroundings: [of.clone()].into(), ..Found::default() };
            State { seed: 1, rows: [("row".to_owned(), found)].into() }
        };
        let why = |here: &Surroundings, kept: Option<State>, written: Option<&State>, across: bool| {
            why_no_page(&[&row], here, kept, written, across)
        };
        assert!(why(&changed, None, None, false).unwrap().contains("the tree has changes"));
        assert_eq!(why(&clean, None, None, false), None);
        assert_eq!(why(&clean, Some(kept(true, 10, &clean)), None, false), None);
        let done = kept(true, 10, &changed);
        assert!(why(&clean, Some(done.clone()), None, false).unwrap().contains("row row, which is kept"));
        assert_eq!(why(&clean, Some(done.clone()), Some(&done), false), None, "the page has it already");
        for part in [kept(false, 10, &changed), kept(true, 9, &changed)] {
            assert_eq!(why(&clean, Some(part.clone()), None, false), None, "it begins anew");
            assert!(why(&clean, Some(part), None, true).is_some(), "it is added to");
        }
        assert_eq!(done.unrepeatable(None), Some("row"));
        assert_eq!((done.unrepeatable(Some(&done)), kept(true, 10, &clean).unrepeatable(None)), (None, None));
    }

    #[test]
    fn a_row_of_another_build_is_added_to_only_where_that_is_asked_for() {
        #[allow(clippy::unnecessary_wraps, reason = "a row's run may fail")]
        fn timed(run: Run) -> Result<Outcome> {
            let mut outcome = Outcome { rounds: run.rounds, lost: u64::from(run.bites), ..Outcome::default() };
            outcome.took("stall", 1.0);
            Ok(outcome)
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        let mut kept = Found {
            surroundings: [Surroundings { eadt: "0.0.1 (of old)".into(), ..Surroundings::default() }].into(),
            ..Found::default()
        };
        kept.with.rounds = 8;
        kept.with.took("stall", 100.0);
        let resumed = |kept: &Found, across_builds: bool| {
            State { seed: 1, rows: [("row".to_owned(), kept.clone())].into() }.save(&path).unwrap();
            let options = Options { rounds: None, seed: 1, state: Some(path.clone()), resume: true, across_builds };
            let state = run(&[&row(timed)], &options).unwrap();
            let found = state.rows["row"].clone();
            (found.with.rounds, found.with.seconds["stall"].clone(), found.surroundings.len())
        };
        assert_eq!(resumed(&kept, false), (10, vec![1.0; 3], 1), "one build's alone");
        assert_eq!(resumed(&kept, true), (10, vec![100.0, 1.0], 2));
        let complete = Found { with: Outcome { rounds: 10, ..kept.with.clone() }, complete: true, ..kept.clone() };
        assert_eq!(resumed(&complete, false), (10, vec![100.0], 1), "nothing is added to it");
    }
}
