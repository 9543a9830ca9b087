//! The GPU model against measurements by others, and the page of their comparison. Skipped, with a message, if they are absent.

#[path = "support/sweeps.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod sweeps;

use std::path::{Path, PathBuf};

use eadt_simulator::calibration::parameter_tables;
use eadt_simulator::gpu::BoardModel;
use eadt_testing::shared_data;

fn data() -> Option<PathBuf> {
    shared_data("zeus-nsdi23")?;
    Some(shared_data("perseus-sosp24-freq")?.parent()?.to_owned())
}

#[test]
fn power_caps_of_a_v100() {
    let Some(data) = data() else { return };
    let (fits, mean) = sweeps::fits(BoardModel::V100, &sweeps::v100_caps(&data));
    println!("{mean:?}\n{fits:#?}");
    assert!(mean.rate_ratio <= sweeps::CAPS_ASKED.rate_ratio, "{mean:?}");
    assert!(mean.power_ratio <= sweeps::CAPS_ASKED.power_ratio, "{mean:?}");
}

#[test]
fn clocks_of_an_a100() {
    let Some(data) = data() else { return };
    let (fits, mean) = sweeps::fits(BoardModel::A100, &sweeps::a100_clocks(&data));
    println!("{mean:?}\n{fits:#?}");
    assert!(mean.rate_ratio <= sweeps::CLOCKS_ASKED.rate_ratio, "{mean:?}");
    assert!(mean.power_ratio <= sweeps::CLOCKS_ASKED.power_ratio, "{mean:?}");
}

/// Mean of 35 to 38 % over equal shares; the paper measured 35 % and, for the best workload, 60.6 %.
#[test]
fn pairs_gain_what_the_paper_measured() {
    let (mean, largest) = sweeps::pair_gains();
    println!("{mean} {largest}");
    assert!((0.35..=0.38).contains(&mean), "{mean}");
    assert!((0.55..0.70).contains(&largest), "{largest}");
}

#[test]
fn the_page_has_the_parameters_of_the_code() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence/calibration.md")).unwrap();
    assert!(page.ends_with(&parameter_tables()), "generate docs/evidence/calibration.md again; its first lines show how");
}
