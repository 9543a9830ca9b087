//! Tables of training runs: at which epoch a run reached a target.

use std::collections::BTreeMap;
use std::io::Read;

use eadt_models::choose::Epochs;
use eadt_recordings::units::{Cell, Dimension, cell};

use crate::error::quote;
use crate::map::{FieldMap, Header};
use crate::points::Key;
use crate::{Request, TableError};

/// The fields that `--map` may name beside those of the points.
pub const FIELDS: [&str; 3] = ["batch_size", "target_metric", "target_epoch"];

/// Runs by group and by target. Columns of `by` that the table lacks are left out of its keys.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Runs {
    pub by: Vec<String>,
    pub rows: Vec<(Key, f64, Epochs)>,
}

/// Reads a table with `batch_size`, `target_metric` and `target_epoch`; an epoch that is empty or `nan` was never reached.
pub fn read(file: &str, reader: impl Read, request: &Request) -> Result<Runs, TableError> {
    let mut table = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(reader);
    let unreadable = |error: &csv::Error| TableError::new(file, format!("cannot be read: {error}"), "give a CSV file in UTF-8");
    let header = Header::new(file, table.headers().map_err(|error| unreadable(&error))?)?;
    let column = |field: &str| {
        let found = header.field(&request.maps, field, Dimension::Count)?;
        match found {
            Some(column) => Ok(column.indices[0]),
            None => header.named(field, &format!("say which column it is: --map {field}=COLUMN")),
        }
    };
    let (batch, metric, epoch) = (column("batch_size")?, column("target_metric")?, column("target_epoch")?);
    let mapped =
        |by: &str| request.maps.iter().rfind(|map: &&FieldMap| map.field == by).map_or(by.to_owned(), |map| map.columns.clone());
    let keys: Vec<(String, usize)> = request
        .by
        .iter()
        .filter(|by| *by != "batch_size")
        .filter_map(|by| Some((by.clone(), header.names.iter().position(|head| *head == mapped(by))?)))
        .collect();
    let mut runs = Runs { by: keys.iter().map(|(name, _)| name.clone()).collect(), rows: Vec::new() };
    for record in table.records() {
        let record = record.map_err(|error| unreadable(&error))?;
        let line = record.position().map_or(0, csv::Position::line);
        let wrong = |index: usize, expected: &str| {
            let problem = format!("{} is not {expected}", quote(&record[index]));
            TableError::new(file, problem, "correct the cell, or take the row out").line(line).column(&header.names[index])
        };
        let Cell::Number(batch_size) = cell(&record[batch]) else { return Err(wrong(batch, "a batch size")) };
        if batch_size < 1.0 || batch_size.fract() != 0.0 {
            return Err(wrong(batch, "a batch size"));
        }
        let Cell::Number(target) = cell(&record[metric]) else { return Err(wrong(metric, "a target")) };
        let epochs = match cell(&record[epoch]) {
            Cell::Number(epochs) if epochs > 0.0 => Some(epochs),
            Cell::Absent => None,
            _ => return Err(wrong(epoch, "a number of epochs, and not empty")),
        };
        let key: Key = keys.iter().map(|(name, index)| (name.clone(), record[*index].to_owned())).collect();
        runs.rows.push((key, target, Epochs { batch_size: batch_size as u64, epochs }));
    }
    if runs.rows.is_empty() {
        return Err(TableError::new(file, "there is no row below the header", "name another file"));
    }
    Ok(runs)
}

impl Runs {
    /// Runs of a group to a target; the group may have more columns than this table.
    pub fn of(&self, key: &Key, target: f64) -> Vec<Epochs> {
        let same = |own: &Key| own.iter().all(|(column, value)| key.get(column) == Some(value));
        let close = |other: f64| (other - target).abs() <= 1e-9 * target.abs().max(1.0);
        self.rows.iter().filter(|(own, metric, _)| same(own) && close(*metric)).map(|(_, _, epochs)| *epochs).collect()
    }

    /// Every target that a group was trained to.
    pub fn targets(&self, key: &Key) -> Vec<f64> {
        let same = |own: &Key| own.iter().all(|(column, value)| key.get(column) == Some(value));
        let mut found: BTreeMap<u64, f64> = BTreeMap::new();
        for (_, metric, _) in self.rows.iter().filter(|(own, _, _)| same(own)) {
            found.insert(metric.to_bits(), *metric);
        }
        let mut targets: Vec<f64> = found.into_values().collect();
        targets.sort_by(f64::total_cmp);
        targets
    }
}
