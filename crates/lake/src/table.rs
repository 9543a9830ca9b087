//! Writes plain tables as Parquet files, for data derived from an archive.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{Field, Schema};
use eadt_schemas::EventTime;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

use crate::error::{LakeError, Result};
use crate::file::ROW_GROUP_ROWS;

/// The cells of a column; `None` becomes null.
#[derive(Debug, Clone, Copy)]
pub enum TableCells<'a> {
    Text(&'a [Option<String>]),
    /// UTC, in microseconds.
    Time(&'a [Option<EventTime>]),
    Int(&'a [Option<i64>]),
    Float(&'a [Option<f64>]),
    Bool(&'a [Option<bool>]),
}

/// A column of a table; all of one table are equally long.
#[derive(Debug, Clone, Copy)]
pub struct TableColumn<'a> {
    pub name: &'a str,
    /// Kept as the field's metadata `description`.
    pub description: &'a str,
    pub cells: TableCells<'a>,
}

impl TableColumn<'_> {
    fn array(&self) -> ArrayRef {
        match self.cells {
            TableCells::Text(cells) => Arc::new(cells.iter().map(Option::as_deref).collect::<StringArray>()),
            TableCells::Time(cells) => {
                let micros: TimestampMicrosecondArray = cells.iter().map(|time| time.map(EventTime::micros)).collect();
                Arc::new(micros.with_timezone("UTC"))
            }
            TableCells::Int(cells) => Arc::new(cells.iter().copied().collect::<Int64Array>()),
            TableCells::Float(cells) => Arc::new(cells.iter().copied().collect::<Float64Array>()),
            TableCells::Bool(cells) => Arc::new(cells.iter().copied().collect::<BooleanArray>()),
        }
    }
}

/// Writes zstd Parquet at `path`, replacing what is there. The file appears whole or not at all; equal tables give equal bytes.
pub fn write_table(path: &Path, columns: &[TableColumn<'_>], metadata: &[(&str, &str)]) -> Result<()> {
    let shown = path.display().to_string();
    let refused = |error: &dyn std::fmt::Display| LakeError::Encode { path: shown.clone(), detail: error.to_string() };
    let arrays: Vec<ArrayRef> = columns.iter().map(TableColumn::array).collect();
    let field = |(column, array): (&TableColumn<'_>, &ArrayRef)| {
        let about = HashMap::from([("description".to_owned(), column.description.to_owned())]);
        Field::new(column.name, array.data_type().clone(), true).with_metadata(about)
    };
    let schema = Arc::new(Schema::new(columns.iter().zip(&arrays).map(field).collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema.clone(), arrays).map_err(|error| refused(&error))?;
    let entries = metadata.iter().map(|(key, value)| KeyValue::new((*key).to_owned(), (*value).to_owned())).collect();
    let properties = WriterProperties::builder()
        .set_created_by("eadt".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3).expect("3 is a level")))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_key_value_metadata(Some(entries))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties)).map_err(|error| refused(&error))?;
    writer.write(&batch).map_err(|error| refused(&error))?;
    let bytes = writer.into_inner().map_err(|error| refused(&error))?;
    replace(path, &bytes).map_err(|source| LakeError::Store { action: "write", path: shown, source })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    #[test]
    fn a_table_comes_back_with_types_nulls_and_descriptions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.parquet");
        let columns = [
            TableColumn { name: "name", description: "who", cells: TableCells::Text(&[Some("ä".to_owned()), None]) },
            TableColumn { name: "time", description: "when", cells: TableCells::Time(&[None, Some(EventTime::from_micros(7))]) },
            TableColumn { name: "count", description: "n", cells: TableCells::Int(&[Some(-1), None]) },
            TableColumn { name: "power_watts", description: "W", cells: TableCells::Float(&[Some(0.1), None]) },
            TableColumn { name: "flag", description: "?", cells: TableCells::Bool(&[None, Some(true)]) },
        ];
        write_table(&path, &columns, &[("eadt.fingerprint", "abc")]).unwrap();
        let first = fs::read(&path).unwrap();
        write_table(&path, &columns, &[("eadt.fingerprint", "abc")]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first, "equal tables are equal files");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");

        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
        let entries = builder.metadata().file_metadata().key_value_metadata().unwrap().clone();
        assert!(entries.iter().any(|entry| entry.key == "eadt.fingerprint" && entry.value.as_deref() == Some("abc")));
        assert_eq!(builder.schema().field(3).metadata()["description"], "W");
        let batch = builder.build().unwrap().next().unwrap().unwrap();
        assert_eq!(batch.column(0).as_string::<i32>().value(0), "ä");
        assert!(batch.column(0).is_null(1) && batch.column(1).is_null(0) && batch.column(4).is_null(0));
        let watts = batch.column(3).as_primitive::<arrow::datatypes::Float64Type>();
        assert_eq!(watts.value(0).to_bits(), 0.1_f64.to_bits());
    }

    #[test]
    fn columns_of_different_lengths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.parquet");
        let columns = [
            TableColumn { name: "a", description: "", cells: TableCells::Int(&[Some(1)]) },
            TableColumn { name: "b", description: "", cells: TableCells::Int(&[]) },
        ];
        assert!(matches!(write_table(&path, &columns, &[]), Err(LakeError::Encode { .. })));
        assert!(!path.exists());
    }
}
