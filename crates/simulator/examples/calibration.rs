//! Prints `docs/evidence/calibration.md`: the GPU model held against measurements by others.

#[path = "../tests/support/sweeps.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod sweeps;

use std::path::PathBuf;

fn main() {
    let data = std::env::args_os().nth(1).map(PathBuf::from).expect("the folder with measurements by others as the argument");
    print!("{}", eadt_simulator::calibration::page(&sweeps::checks(&data)));
}
