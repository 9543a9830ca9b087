//! `FIELD=COLUMN[:UNIT]`: which column of a table holds a field.

use std::str::FromStr;

use eadt_recordings::units::{Dimension, Unit};

use crate::TableError;

/// `FIELD=COLUMN[:UNIT]`. Several columns are added up with `+`, as the energies of several GPUs: `energy_joules=gpu0+gpu1:mJ`.
/// A column is found by its name as the header has it, or by `#` and its number from 1. Without UNIT the header's own
/// (`Power [mW]`) or the field's is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldMap {
    pub(crate) field: String,
    pub(crate) columns: String,
}

/// A map that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--map {text:?} is not FIELD=COLUMN[:UNIT]; say for example --map duration_seconds=elapsed:ms")]
pub struct InvalidMap {
    text: String,
}

impl FromStr for FieldMap {
    type Err = InvalidMap;

    fn from_str(text: &str) -> Result<Self, InvalidMap> {
        let parts = text.split_once('=').map(|(field, columns)| (field.trim(), columns.trim()));
        match parts {
            Some((field, columns)) if !field.is_empty() && !columns.is_empty() => {
                Ok(Self { field: field.to_owned(), columns: columns.to_owned() })
            }
            _ => Err(InvalidMap { text: text.to_owned() }),
        }
    }
}

/// The header of a table.
#[derive(Debug)]
pub(crate) struct Header<'a> {
    file: &'a str,
    pub(crate) names: Vec<String>,
}

/// Where a number comes from.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    /// Added up.
    pub(crate) indices: Vec<usize>,
    pub(crate) unit: Option<Unit>,
    /// For messages.
    pub(crate) name: String,
}

impl<'a> Header<'a> {
    pub(crate) fn new(file: &'a str, record: &csv::StringRecord) -> Result<Self, TableError> {
        let clean = |name: &str| name.trim_start_matches('\u{feff}').trim().to_owned();
        let names: Vec<String> = record.iter().map(clean).collect();
        if names.iter().all(String::is_empty) {
            return Err(TableError::new(file, "the file is empty", "give a table whose first line names its columns"));
        }
        Ok(Self { file, names })
    }

    fn find(&self, name: &str) -> Option<usize> {
        let number =
            || name.strip_prefix('#').and_then(|n| n.parse::<usize>().ok()).filter(|n| (1..=self.names.len()).contains(n));
        self.names.iter().position(|head| head == name).or_else(|| number().map(|n| n - 1))
    }

    /// The column of a name, or an error that names the nearest.
    pub(crate) fn named(&self, name: &str, remedy: &str) -> Result<usize, TableError> {
        self.find(name).ok_or_else(|| self.missing(name, remedy))
    }

    pub(crate) fn missing(&self, name: &str, remedy: &str) -> TableError {
        let near = self.names.iter().filter(|head| !head.is_empty()).min_by_key(|head| strsim::levenshtein(head, name));
        let near = near.filter(|head| strsim::levenshtein(head, name) <= 1 + name.len() / 3);
        let near = near.map_or(String::new(), |head| format!(", did you mean {head:?}?"));
        let there = self.names.join(", ");
        TableError::new(self.file, format!("there is no column {name:?}{near} (there are: {there})"), remedy)
    }

    /// A field by its map, or under its own name; `None` where neither is there.
    pub(crate) fn field(&self, maps: &[FieldMap], field: &str, dimension: Dimension) -> Result<Option<Column>, TableError> {
        let Some(map) = maps.iter().rfind(|map| map.field == field) else {
            let own = self.find(field).map(|index| Column { indices: vec![index], unit: None, name: self.names[index].clone() });
            return Ok(own);
        };
        let remedy = format!("name it as --map {field}=COLUMN[:UNIT]");
        // The whole text may be a column's name; only then the last colon separates a unit.
        let (columns, unit) = match (self.find(&map.columns), map.columns.rsplit_once(':')) {
            (None, Some((columns, unit))) => (columns, Some(unit)),
            _ => (map.columns.as_str(), None),
        };
        let indices: Vec<usize> = match self.find(columns) {
            Some(index) => vec![index],
            None => columns.split('+').map(|name| self.named(name.trim(), &remedy)).collect::<Result<_, _>>()?,
        };
        let unit = match unit {
            Some(unit) => Some(unit.to_owned()),
            None => header_unit(&self.names[indices[0]]),
        };
        let unit = unit.map(|name| self.unit(field, &name, dimension)).transpose()?;
        Ok(Some(Column { indices, unit, name: columns.to_owned() }))
    }

    fn unit(&self, field: &str, name: &str, dimension: Dimension) -> Result<Unit, TableError> {
        Unit::named(name).filter(|unit| unit.dimension == dimension).ok_or_else(|| {
            let problem = format!("{name:?} is no unit of {field}");
            TableError::new(self.file, problem, format!("use one of {}", dimension.units()))
        })
    }
}

/// `Power [mW]` and `Power (mW)` say `mW`; anything else in brackets is part of a name.
fn header_unit(head: &str) -> Option<String> {
    let inside = |open: char, close: char| head.strip_suffix(close)?.rsplit_once(open).map(|(_, unit)| unit.trim().to_owned());
    inside('[', ']').or_else(|| inside('(', ')')).filter(|unit| Unit::named(unit).is_some())
}
