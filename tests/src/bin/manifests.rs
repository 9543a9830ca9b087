//! Writes the plain manifests, which come from the chart.

use std::path::Path;

use eadt_tests::kubernetes::chart;

fn main() -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests/eadt.yaml");
    std::fs::write(&path, chart::manifests()?)?;
    println!("written: {}", path.display());
    Ok(())
}
