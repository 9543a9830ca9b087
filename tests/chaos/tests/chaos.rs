//! A short run of every row of the table. `cargo xtask chaos` runs them at length.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use eadt_chaos::row::Row;
use eadt_chaos::rows::ROWS;
use eadt_chaos::run::{Options, run, table};

/// Rows that run at once: most of the time they wait.
const AT_ONCE: usize = 3;

/// What is wrong with a row.
fn wrong(row: &Row) -> Option<String> {
    let begun = Instant::now();
    let options = Options { rounds: Some(row.short), seed: 1, state: None, resume: false, across_builds: false };
    let state = match run(&[row], &options) {
        Ok(state) => state,
        Err(error) => return Some(format!("{}: {error:#}", row.name)),
    };
    println!("{:.0} s\n{}", begun.elapsed().as_secs_f64(), table(&[row], &state));
    let found = &state.rows[row.name];
    (!found.is_good()).then(|| format!("{}: {}: {:#?}", row.name, found.verdict(), found.with.examples))
}

#[test]
fn every_row_keeps_its_promise_and_bites_without_its_mitigation() {
    let next = AtomicUsize::new(0);
    let work = || -> Vec<String> {
        // Those on Kubernetes first: they take longest.
        let rows = std::iter::from_fn(|| ROWS.iter().rev().nth(next.fetch_add(1, Ordering::SeqCst)));
        rows.filter_map(wrong).collect()
    };
    let bad: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("rows do not panic")).collect()
    });
    assert!(bad.is_empty(), "{}\nrepeat one with: cargo xtask chaos ROW --seed 1", bad.join("\n"));
}
