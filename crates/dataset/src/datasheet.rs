//! The datasheet: a data set's description of itself.

use std::collections::BTreeMap;
use std::fmt::Write;

use eadt_schemas::v1::EfficiencyWindow;
use eadt_schemas::{EventTime, documents};
use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::builder::Dataset;
use crate::column::{ColumnCells, ColumnRole, DatasetTable};
use crate::words::word;

/// Counts of the dataset's rows, and of known gaps.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DatasetCounts {
    /// Counts by workload.
    pub workloads: BTreeMap<String, WorkloadCounts>,
    /// Windows by where their figures come from.
    pub windows_by_origin: BTreeMap<String, u64>,
    /// Windows of named spans (epochs, training blocks): they overlap the tumbling ones.
    pub spans_left_out: u64,
    /// Events that were in the record more than once; each counts once.
    pub repeated_events: u64,
    /// Records that are no valid events.
    pub refused_events: u64,
    /// Offsets that the archive had and no file has now: their events are in no row.
    pub removed_offsets: u64,
    /// Answers to decisions that the record does not have.
    pub actuations_without_decision: u64,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct WorkloadCounts {
    pub windows: u64,
    /// Windows that means and medians are made of.
    pub usable_windows: u64,
    /// Windows whose inputs log retention had deleted.
    pub gap_windows: u64,
    /// Intervals without any window between the first and the last.
    pub holes: u64,
    pub first: Option<EventTime>,
    pub last: Option<EventTime>,
}

impl DatasetCounts {
    pub(crate) fn workload<'a>(
        &mut self,
        name: &str,
        windows: impl Iterator<Item = &'a EfficiencyWindow>,
        usable: fn(&EfficiencyWindow) -> bool,
    ) {
        let mut counts = WorkloadCounts::default();
        for window in windows {
            *self.windows_by_origin.entry(word(window.origin)).or_default() += 1;
            counts.windows += 1;
            counts.usable_windows += u64::from(usable(window));
            counts.gap_windows += u64::from(window.gap);
            counts.holes += u64::from(counts.last.is_some_and(|last| last < window.window_start));
            counts.first = counts.first.or(Some(window.window_start));
            counts.last = Some(window.window_end);
        }
        self.workloads.insert(name.to_owned(), counts);
    }
}

/// Returns a fingerprint: equal cells under equal names give equal ones.
pub(crate) fn fingerprint(tables: &[&DatasetTable]) -> String {
    let micros = |time: Option<EventTime>| time.map_or(0, EventTime::micros);
    let mut hash = Sha256::new();
    for column in tables.iter().flat_map(|table| &table.columns) {
        hash.update(column.name.as_bytes());
        hash.update([0]);
        let mut cell = |known: bool, bytes: &[u8]| {
            hash.update([u8::from(known)]);
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        match &column.cells {
            ColumnCells::Text(cells) => cells.iter().for_each(|c| cell(c.is_some(), c.as_deref().unwrap_or_default().as_bytes())),
            ColumnCells::Time(cells) => cells.iter().for_each(|c| cell(c.is_some(), &micros(*c).to_le_bytes())),
            ColumnCells::Int(cells) => cells.iter().for_each(|c| cell(c.is_some(), &c.unwrap_or(0).to_le_bytes())),
            ColumnCells::Float(cells) => cells.iter().for_each(|c| cell(c.is_some(), &c.unwrap_or(0.0).to_le_bytes())),
            ColumnCells::Bool(cells) => cells.iter().for_each(|c| cell(c.is_some(), &[u8::from(c.unwrap_or(false))])),
        }
    }
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

const ROLES: [(ColumnRole, &str); 5] = [
    (ColumnRole::Key, "identifies the row"),
    (ColumnRole::Feature, "known at the row's time: from nothing later than the window's end, or the decision's time"),
    (ColumnRole::Decision, "what was decided at the row's time"),
    (ColumnRole::Outcome, "what became of the decision: known later, never a feature"),
    (ColumnRole::Label, "what is to be predicted: known later, never a feature"),
];

impl Dataset {
    /// Returns the data set's manual in Markdown: provenance, counts, known gaps, and every column with role, type and meaning.
    pub fn datasheet(&self, source: &str) -> String {
        let mut text = String::from("# Data set\n\n");
        let origins: Vec<_> = self.counts.windows_by_origin.iter().map(|(origin, n)| format!("{n} {origin}")).collect();
        let origins = if origins.is_empty() { "none".to_owned() } else { origins.join(", ") };
        let mut line = |args: std::fmt::Arguments<'_>| writeln!(text, "{args}").expect("a String takes everything");
        line(format_args!(
            "Windows, decisions and what came of them, joined for learning. Made by `eadt dataset build` from `{source}`.\n"
        ));
        line(format_args!("- rows: {} windows ({origins}), {} decisions", self.windows.rows(), self.decisions.rows()));
        line(format_args!("- fingerprint (SHA-256 of all cells): `{}`", self.fingerprint));
        line(format_args!("- left out: {} windows of named spans, which overlap the tumbling ones", self.counts.spans_left_out));
        line(format_args!("- counted once: {} events that the record has again", self.counts.repeated_events));
        line(format_args!("- not readable as events: {}", self.counts.refused_events));
        line(format_args!("- removed from the archive, and in no row: {} offsets", self.counts.removed_offsets));
        line(format_args!("- answers to decisions that are not in the record: {}\n", self.counts.actuations_without_decision));
        line(format_args!(
            "`usable` windows have 90 % of energy and progress covered, no restart, no lost input and a known J/sample.\n"
        ));
        line(format_args!("| workload | windows | usable | lost inputs | holes | from | to |\n|---|---|---|---|---|---|---|"));
        for (name, counts) in &self.counts.workloads {
            let time = |time: Option<EventTime>| time.map_or_else(|| "-".to_owned(), |time| time.to_string());
            line(format_args!(
                "| `{}` | {} | {} | {} | {} | {} | {} |",
                name.replace('|', "\\|"),
                counts.windows,
                counts.usable_windows,
                counts.gap_windows,
                counts.holes,
                time(counts.first),
                time(counts.last)
            ));
        }
        line(format_args!("\n## Roles\n"));
        for (role, meaning) in ROLES {
            line(format_args!("- **{}**: {meaning}", word(role)));
        }
        for table in [&self.windows, &self.decisions] {
            line(format_args!("\n## `{}.parquet`: {}\n", table.name, table.row));
            line(format_args!("| column | role | type | known | meaning |\n|---|---|---|---|---|"));
            for column in &table.columns {
                let meaning = column.description.replace("\n\n", " ").replace('|', "\\|");
                let (role, kind, known) = (word(column.role), column.cells.kind(), column.cells.known());
                line(format_args!("| `{}` | {role} | {kind} | {known} | {meaning} |", column.name));
            }
        }
        text
    }

    /// Returns the same for programs.
    pub fn manifest(&self, source: &str) -> Value {
        let columns = |table: &DatasetTable| -> Vec<Value> {
            let column = |c: &crate::DatasetColumn| json!({"name": c.name, "role": c.role, "type": c.cells.kind(), "unit": documents::unit(c.name), "known": c.cells.known(), "description": c.description});
            table.columns.iter().map(column).collect()
        };
        json!({
            "format": "eadt.dataset.v1",
            "source": source,
            "fingerprint": self.fingerprint,
            "counts": self.counts,
            "tables": {
                "windows": {"file": "windows.parquet", "rows": self.windows.rows(), "columns": columns(&self.windows)},
                "decisions": {"file": "decisions.parquet", "rows": self.decisions.rows(), "columns": columns(&self.decisions)},
            }
        })
    }
}
