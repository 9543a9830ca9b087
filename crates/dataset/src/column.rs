use std::collections::BTreeMap;
use std::sync::LazyLock;

use eadt_schemas::{EventTime, EventType, documents};
use serde::Serialize;

/// The use that a column may be put to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnRole {
    /// Identifies the row.
    Key,
    /// Known at the row's time.
    Feature,
    /// A decision at the row's time.
    Decision,
    /// A result of the decision: known later.
    Outcome,
    /// A value to predict: known later.
    Label,
}

/// The cells of a column, one a row; `None` is unknown.
#[derive(Debug, Clone, PartialEq)]
pub enum ColumnCells {
    Text(Vec<Option<String>>),
    Time(Vec<Option<EventTime>>),
    Int(Vec<Option<i64>>),
    Float(Vec<Option<f64>>),
    Bool(Vec<Option<bool>>),
}

impl ColumnCells {
    pub fn len(&self) -> usize {
        match self {
            Self::Text(cells) => cells.len(),
            Self::Time(cells) => cells.len(),
            Self::Int(cells) => cells.len(),
            Self::Float(cells) => cells.len(),
            Self::Bool(cells) => cells.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cells with a value.
    pub fn known(&self) -> usize {
        match self {
            Self::Text(cells) => cells.iter().flatten().count(),
            Self::Time(cells) => cells.iter().flatten().count(),
            Self::Int(cells) => cells.iter().flatten().count(),
            Self::Float(cells) => cells.iter().flatten().count(),
            Self::Bool(cells) => cells.iter().flatten().count(),
        }
    }

    /// Returns the type's name, as in the datasheet.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Time(_) => "time (UTC, µs)",
            Self::Int(_) => "integer",
            Self::Float(_) => "float",
            Self::Bool(_) => "boolean",
        }
    }
}

/// A column with its manual.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetColumn {
    pub name: &'static str,
    pub role: ColumnRole,
    /// The meaning, units included.
    pub description: String,
    pub cells: ColumnCells,
}

/// Columns of equal length.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetTable {
    /// `windows` or `decisions`.
    pub name: &'static str,
    /// Meaning of one row.
    pub row: &'static str,
    pub columns: Vec<DatasetColumn>,
}

impl DatasetTable {
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }

    pub fn column(&self, name: &str) -> Option<&DatasetColumn> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// Reads a cell from a row `R`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CellGetter<R> {
    Text(fn(&R) -> Option<String>),
    Time(fn(&R) -> Option<EventTime>),
    Int(fn(&R) -> Option<i64>),
    Float(fn(&R) -> Option<f64>),
    Bool(fn(&R) -> Option<bool>),
}

/// A column before it has rows.
#[derive(Debug)]
pub(crate) struct ColumnSpec<R> {
    pub name: &'static str,
    pub role: ColumnRole,
    pub about: DescriptionSource,
    pub get: CellGetter<R>,
}

/// The place of a column's description.
#[derive(Debug, Clone, Copy)]
pub(crate) enum DescriptionSource {
    /// The schema of the window event, under the column's own name.
    Window,
    /// The schema of the decision event, under the column's own name.
    Decision,
    Text(&'static str),
}

impl DescriptionSource {
    /// Returns the description of the column of this name.
    fn describe(self, name: &str) -> String {
        static WINDOW: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| field_descriptions(EventType::EfficiencyWindow));
        static DECISION: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| field_descriptions(EventType::Decision));
        let found = match self {
            Self::Window => &WINDOW,
            Self::Decision => &DECISION,
            Self::Text(text) => return text.to_owned(),
        };
        found.get(name).cloned().unwrap_or_else(|| panic!("{name} is described in its event's schema"))
    }
}

/// Returns the descriptions of an event's own fields, by name.
fn field_descriptions(kind: EventType) -> BTreeMap<String, String> {
    let schema = documents::schema(kind).expect("this event has a schema");
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields.filter_map(|(name, field)| Some((name.clone(), field["description"].as_str()?.to_owned()))).collect()
}

pub(crate) fn table<R>(name: &'static str, row: &'static str, specs: &[ColumnSpec<R>], rows: &[R]) -> DatasetTable {
    let column = |spec: &ColumnSpec<R>| DatasetColumn {
        name: spec.name,
        role: spec.role,
        description: spec.about.describe(spec.name),
        cells: match spec.get {
            CellGetter::Text(get) => ColumnCells::Text(rows.iter().map(get).collect()),
            CellGetter::Time(get) => ColumnCells::Time(rows.iter().map(get).collect()),
            CellGetter::Int(get) => ColumnCells::Int(rows.iter().map(get).collect()),
            // Not a number is unknown: no reader should meet it.
            CellGetter::Float(get) => {
                ColumnCells::Float(rows.iter().map(|row| get(row).filter(|value| value.is_finite())).collect())
            }
            CellGetter::Bool(get) => ColumnCells::Bool(rows.iter().map(get).collect()),
        },
    };
    DatasetTable { name, row, columns: specs.iter().map(column).collect() }
}
