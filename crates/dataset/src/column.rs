use eadt_schemas::EventTime;
use serde::Serialize;

/// What a column may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Says which row it is.
    Key,
    /// Known at the row's time.
    Feature,
    /// What was decided at the row's time.
    Decision,
    /// What became of the decision: known later.
    Outcome,
    /// What is to be predicted: known later.
    Label,
}

/// The cells of a column, one a row; `None` is unknown.
#[derive(Debug, Clone, PartialEq)]
pub enum Cells {
    Text(Vec<Option<String>>),
    Time(Vec<Option<EventTime>>),
    Int(Vec<Option<i64>>),
    Float(Vec<Option<f64>>),
    Bool(Vec<Option<bool>>),
}

impl Cells {
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

    /// The type's name, as in the datasheet.
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
pub struct Column {
    pub name: &'static str,
    pub role: Role,
    /// What it means, units included.
    pub description: String,
    pub cells: Cells,
}

/// Columns of equal length.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// `windows` or `decisions`.
    pub name: &'static str,
    /// What one row is.
    pub row: &'static str,
    pub columns: Vec<Column>,
}

impl Table {
    pub fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.cells.len())
    }

    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// How a cell is read from a row `R`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Get<R> {
    Text(fn(&R) -> Option<String>),
    Time(fn(&R) -> Option<EventTime>),
    Int(fn(&R) -> Option<i64>),
    Float(fn(&R) -> Option<f64>),
    Bool(fn(&R) -> Option<bool>),
}

/// A column before it has rows.
#[derive(Debug)]
pub(crate) struct Spec<R> {
    pub name: &'static str,
    pub role: Role,
    pub about: About,
    pub get: Get<R>,
}

/// Where a column's description stands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum About {
    /// In the schema of the window event, under the column's own name.
    Window,
    /// In the schema of the decision event, under the column's own name.
    Decision,
    Text(&'static str),
}

pub(crate) fn table<R>(name: &'static str, row: &'static str, specs: &[Spec<R>], rows: &[R]) -> Table {
    let column = |spec: &Spec<R>| Column {
        name: spec.name,
        role: spec.role,
        description: crate::datasheet::describe(spec.about, spec.name),
        cells: match spec.get {
            Get::Text(get) => Cells::Text(rows.iter().map(get).collect()),
            Get::Time(get) => Cells::Time(rows.iter().map(get).collect()),
            Get::Int(get) => Cells::Int(rows.iter().map(get).collect()),
            // Not a number is unknown: no reader should meet it.
            Get::Float(get) => Cells::Float(rows.iter().map(|row| get(row).filter(|value| value.is_finite())).collect()),
            Get::Bool(get) => Cells::Bool(rows.iter().map(get).collect()),
        },
    };
    Table { name, row, columns: specs.iter().map(column).collect() }
}
