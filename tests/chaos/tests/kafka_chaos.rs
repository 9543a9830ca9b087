//! A short run of every row of the table. `cargo xtask chaos` runs them at length.

use eadt_chaos::rows::ROWS;
use eadt_chaos::run::{Options, run, table};

#[test]
fn every_row_keeps_its_promise_and_bites_without_its_mitigation() {
    let mut bad = Vec::new();
    for row in ROWS {
        let begun = std::time::Instant::now();
        let options = Options { rounds: Some(row.short), seed: 1, state: None, resume: false };
        let state = run(&[row], &options).unwrap_or_else(|error| panic!("{error:#}"));
        println!("{:.0} s\n{}", begun.elapsed().as_secs_f64(), table(&[row], &state));
        let found = &state.rows[row.name];
        if !found.is_good() {
            bad.push(format!("{}: {}: {:#?}", row.name, found.verdict(), found.with.examples));
        }
    }
    assert!(bad.is_empty(), "{}\nrepeat one with: cargo xtask chaos ROW --seed 1", bad.join("\n"));
}
