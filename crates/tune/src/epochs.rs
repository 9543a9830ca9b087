//! Tables of training runs: at which epoch a run reached a target.

use std::collections::BTreeMap;
use std::io::Read;

use eadt_models::choose::EpochsToTarget;
use eadt_recordings::units::Dimension;
use eadt_schemas::counts::counted;

use crate::error::quote;
use crate::map::{FieldColumn, FieldMap, TableHeader, open, set_numbers};
use crate::points::GroupKey;
use crate::{TableError, TuningRequest};

/// The fields that `--map` may name beside those of the points.
pub const FIELDS: [&str; 3] = ["batch_size", "target_metric", "target_epoch"];

/// Runs by group and by target. Columns of `by` that the table lacks are left out of its keys.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TrainingRuns {
    pub by: Vec<String>,
    pub rows: Vec<(GroupKey, f64, EpochsToTarget)>,
}

/// Reads a table with `batch_size`, `target_metric` and `target_epoch`; an epoch that is empty or `nan` was never reached.
pub fn read(file: &str, reader: impl Read, request: &TuningRequest) -> Result<TrainingRuns, TableError> {
    let mut table = open(file, reader, &request.maps, &request.by, &FIELDS)?;
    let header = TableHeader::new(file, table.names());
    let column = |field: &str| {
        let found = header.field(&request.maps, field, Dimension::Count)?;
        found.ok_or_else(|| header.missing(field, &format!("name its column: --map {field}=COLUMN")))
    };
    let (batch, metric, epoch) = (column("batch_size")?, column("target_metric")?, column("target_epoch")?);
    set_numbers(&mut table, &[&batch, &metric, &epoch], request.decimal);
    let mut keys: Vec<(String, usize)> = Vec::new();
    for by in request.by.iter().filter(|by| *by != "batch_size") {
        let mapped =
            request.maps.iter().rfind(|map: &&FieldMap| map.field == *by).map_or(by.as_str(), |map| map.columns.as_str());
        if header.has(mapped)? {
            keys.push((by.clone(), header.named(mapped, "")?));
        }
    }
    let mut runs = TrainingRuns { by: keys.iter().map(|(name, _)| name.clone()).collect(), rows: Vec::new() };
    while let Some(line) = table.next_row()? {
        if table.cell_count() != header.names.len() {
            let problem = format!("the row has {}, its header {}", counted(table.cell_count(), "cell"), header.names.len());
            return Err(TableError::new(file, problem, "restore the row or take it out").line(line));
        }
        let mut number = |column: &FieldColumn, expected: &str| {
            let wrong = |problem, remedy| TableError::new(file, problem, remedy).line(line).column(&column.name);
            let index = column.indices[0];
            match column.number(&mut table, index) {
                Ok(value) => Ok(value),
                Err((problem, _)) if problem.ends_with("is not a number") => {
                    let text = quote(table.text(index));
                    Err(wrong(format!("{text} is not {expected}"), "correct the cell, or take the row out".to_owned()))
                }
                Err((problem, remedy)) => Err(wrong(problem, remedy)),
            }
        };
        let (batch_size, target) = (number(&batch, "a batch size")?, number(&metric, "a target")?);
        let epochs = number(&epoch, "a number of epochs, and not empty")?;
        let wrong = |column: &FieldColumn, expected: &str| {
            let problem = format!("{} is not {expected}", quote(table.text(column.indices[0])));
            TableError::new(file, problem, "correct the cell, or take the row out").line(line).column(&column.name)
        };
        let batch_size = batch_size.filter(|size| *size >= 1.0 && size.fract() == 0.0);
        let batch_size = batch_size.ok_or_else(|| wrong(&batch, "a batch size"))?;
        let target = target.ok_or_else(|| wrong(&metric, "a target"))?;
        if epochs.is_some_and(|epochs| epochs <= 0.0) {
            return Err(wrong(&epoch, "a number of epochs, and not empty"));
        }
        let key: GroupKey = keys.iter().map(|(name, index)| (name.clone(), table.text(*index).to_owned())).collect();
        runs.rows.push((key, target, EpochsToTarget { batch_size: batch_size as u64, epochs }));
    }
    if runs.rows.is_empty() {
        return Err(TableError::new(file, "there is no row below the header", "name another file"));
    }
    Ok(runs)
}

impl TrainingRuns {
    /// Runs of a group to a target; the group may have more columns than this table.
    pub fn of(&self, key: &GroupKey, target: f64) -> Vec<EpochsToTarget> {
        let same = |own: &GroupKey| own.iter().all(|(column, value)| key.get(column) == Some(value));
        let close = |other: f64| (other - target).abs() <= 1e-9 * target.abs().max(1.0);
        self.rows.iter().filter(|(own, metric, _)| same(own) && close(*metric)).map(|(_, _, epochs)| *epochs).collect()
    }

    /// Returns every target that a group was trained to.
    pub fn targets(&self, key: &GroupKey) -> Vec<f64> {
        let same = |own: &GroupKey| own.iter().all(|(column, value)| key.get(column) == Some(value));
        let mut found: BTreeMap<u64, f64> = BTreeMap::new();
        for (_, metric, _) in self.rows.iter().filter(|(own, _, _)| same(own)) {
            found.insert(metric.to_bits(), *metric);
        }
        let mut targets: Vec<f64> = found.into_values().collect();
        targets.sort_by(f64::total_cmp);
        targets
    }
}
