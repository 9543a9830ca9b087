//! A short run of every row of the table. `cargo xtask chaos` runs them at length.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use eadt_chaos::row::Row;
use eadt_chaos::rows::ROWS;
use eadt_chaos::run::{Options, State, run, table};

/// Rows that run at once: most of the time they wait.
const AT_ONCE: usize = 3;

/// All rows, by how long their short runs take as far as the kept figures show, the longest first: a long one that begins last runs
/// alone.
fn longest_first() -> Vec<&'static Row> {
    let figures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence/reliability.json");
    let kept = State::read(&figures).unwrap_or_else(|error| panic!("{error:#}"));
    let seconds = |row: &Row| {
        // If a round is nothing, the start is what takes time: a tenth of a batch.
        let rounds = f64::from(row.short).max(f64::from(row.batch) / 10.0);
        // Rows that never ran at length have no known duration.
        kept.rows.get(row.name).map_or(f64::INFINITY, |found| found.wall_seconds * rounds / f64::from(found.with.rounds))
    };
    let mut rows: Vec<&Row> = ROWS.iter().collect();
    rows.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
    rows
}

/// The rows of this run: `EADT_TEST_ROWS=2/3` is the second of three parts of equal length; without it, all.
fn drawn() -> Vec<&'static Row> {
    let part = std::env::var("EADT_TEST_ROWS").unwrap_or_else(|_| "1/1".to_owned());
    let numbers =
        part.split_once('/').and_then(|(part, parts)| Some((part.parse::<usize>().ok()?, parts.parse::<usize>().ok()?)));
    let (part, parts) =
        numbers.filter(|(part, parts)| (1..=*parts).contains(part)).unwrap_or_else(|| panic!("EADT_TEST_ROWS={part}: give 2/3"));
    // Dealt like cards, forth and back: each part has its share of the long ones.
    let hand = |place: usize| if (place / parts).is_multiple_of(2) { place % parts } else { parts - 1 - place % parts };
    let rows: Vec<_> =
        longest_first().into_iter().enumerate().filter(|(place, _)| hand(*place) == part - 1).map(|(_, row)| row).collect();
    println!("rows of part {part} of {parts}: {}", rows.iter().map(|row| row.name).collect::<Vec<_>>().join(" "));
    rows
}

/// Returns the errors of a row.
fn wrong(row: &Row) -> Option<String> {
    let begun = Instant::now();
    let options = Options { rounds: Some(row.short), seed: 1, state: None, resume: false, across_builds: false };
    let state = match run(&[row], &options) {
        Ok(state) => state,
        Err(error) => return Some(format!("{}: {error:#}", row.name)),
    };
    println!("took: {} {:.1}\n{}", row.name, begun.elapsed().as_secs_f64(), table(&[row], &state));
    let found = &state.rows[row.name];
    (!found.is_good()).then(|| format!("{}: {}: {:#?}", row.name, found.verdict(), found.with.examples))
}

#[test]
fn each_row_keeps_its_promise_and_bites_without_its_mitigation() {
    let (rows, next) = (drawn(), AtomicUsize::new(0));
    let work = || -> Vec<String> {
        let taken = std::iter::from_fn(|| rows.get(next.fetch_add(1, Ordering::SeqCst)));
        taken.filter_map(|row| wrong(row)).collect()
    };
    let bad: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("rows do not panic")).collect()
    });
    assert!(bad.is_empty(), "{}\nrepeat one with: cargo xtask chaos ROW --seed 1", bad.join("\n"));
}
