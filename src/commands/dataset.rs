//! `eadt dataset build`: tables for learning from an archive.

use std::path::Path;

use anyhow::Context;
use eadt_dataset::{ColumnCells, DatasetBuilder, DatasetColumn, DatasetTable};
use eadt_lake::{TableCells, TableColumn, visit_events, write_table};
use eadt_schemas::Topic;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow};
use serde_json::json;

use crate::atomic_file::create_folder;
use crate::cli::DatasetCommand;
use crate::output::print_line;
use crate::progress;

/// The machine-readable datasheet.
const MANIFEST: &str = "dataset.json";

pub fn run(command: &DatasetCommand) -> anyhow::Result<()> {
    let DatasetCommand::Build { archive, out, force, json } = command;
    let mut builder = DatasetBuilder::default();
    let topics = [Topic::EfficiencyWindows, Topic::Decisions, Topic::Actuations];
    let (events, meter) = progress::over_archive(super::find_archive(archive, &topics)?, &topics)?;
    let mut has_windows = false;
    let windows = visit_events::<EfficiencyWindow>(&events, Topic::EfficiencyWindows, |event| {
        has_windows = true;
        builder.window(event);
    })?;
    let decisions = visit_events::<Decision>(&events, Topic::Decisions, |event| builder.decision(event))?;
    let actuations = visit_events::<Actuation>(&events, Topic::Actuations, |event| builder.actuation(event))?;
    meter.finish();
    let missing = || windows.missing.iter().chain(&decisions.missing).chain(&actuations.missing);
    super::warn_missing(missing());
    for (topic, passed_over) in topics.into_iter().zip([&windows.passed_over, &decisions.passed_over, &actuations.passed_over]) {
        super::warn_passed_over(topic, passed_over);
    }
    builder.removed(super::missing_offsets(missing()));
    for (partition, offset, refusal) in windows.refused.iter().chain(&decisions.refused).chain(&actuations.refused) {
        crate::output::note!("warning: an event was left out, partition {partition} offset {offset}: {refusal}");
        builder.refused();
    }
    if !has_windows {
        anyhow::bail!("{} holds no windows: nothing can be learned from it", archive.display());
    }
    let dataset = builder.build();

    create_folder(out, std::slice::from_ref(archive), *force, is_own)?;
    let source = archive.display().to_string();
    for table in [&dataset.windows, &dataset.decisions] {
        write(&out.join(format!("{}.parquet", table.name)), table, &dataset.fingerprint)?;
    }
    let manifest = serde_json::to_string_pretty(&dataset.manifest(&source))? + "\n";
    for (name, text) in [("README.md", dataset.datasheet(&source)), (MANIFEST, manifest)] {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let (windows, decisions) = (dataset.windows.rows(), dataset.decisions.rows());
    if *json {
        print_line!(
            "{}",
            json!({"out": out, "windows": windows, "decisions": decisions, "fingerprint": dataset.fingerprint, "counts": dataset.counts})
        );
    } else {
        let origins: Vec<_> = dataset.counts.windows_by_origin.iter().map(|(origin, n)| format!("{n} {origin}")).collect();
        print_line!(
            "{}: {} ({}), {}",
            out.display(),
            counted(windows, "window"),
            origins.join(", "),
            counted(decisions, "decision")
        );
        print_line!("what is in it: {}", out.join("README.md").display());
    }
    Ok(())
}

/// Returns whether a former build left an entry of this name.
fn is_own(name: &str) -> bool {
    [MANIFEST, "README.md"].contains(&name) || Path::new(name).extension().is_some_and(|ending| ending == "parquet")
}

fn write(path: &Path, table: &DatasetTable, fingerprint: &str) -> anyhow::Result<()> {
    let columns: Vec<_> = table.columns.iter().map(parquet_column).collect();
    write_table(path, &columns, &[("eadt.dataset", "1"), ("eadt.fingerprint", fingerprint)])?;
    Ok(())
}

fn parquet_column(column: &DatasetColumn) -> TableColumn<'_> {
    let cells = match &column.cells {
        ColumnCells::Text(cells) => TableCells::Text(cells),
        ColumnCells::Time(cells) => TableCells::Time(cells),
        ColumnCells::Int(cells) => TableCells::Int(cells),
        ColumnCells::Float(cells) => TableCells::Float(cells),
        ColumnCells::Bool(cells) => TableCells::Bool(cells),
    };
    TableColumn { name: column.name, description: &column.description, cells }
}
