//! SQL over an archive or a data set, by [DataFusion](https://datafusion.apache.org).
//!
//! In: a folder with Parquet of EADT and a query. Out: an [`Answer`], as a table for people, JSON or CSV. Every topic of an archive
//! is a table (`efficiency_windows_v1` for `efficiency.windows.v1`, with the folder's `date` as a column), and so is every
//! Parquet file of a data set (`windows`, `decisions`). It reads only: statements that would write or create are refused.
//! Only this crate knows `DataFusion`, which brings Arrow of its own.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::arrow::util::pretty::pretty_format_batches_with_schema;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::error::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::{SessionConfig, SessionContext};
use eadt_lake::{Archive, LakeError};

/// A query that has no answer.
#[derive(Debug, thiserror::Error)]
pub enum SqlError {
    #[error(
        "{place} holds neither an archive nor a data set: name a data folder, an archive or the output of `eadt dataset build`"
    )]
    Nothing { place: String },
    #[error(transparent)]
    Lake(#[from] LakeError),
    #[error("{detail}; tables are: {tables}")]
    Query { detail: String, tables: String },
    #[error("no threads for the query: {0}")]
    Runtime(#[from] std::io::Error),
}

/// The rows that a query gave.
#[derive(Debug)]
pub struct Answer {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

/// Runs one query; blocks, so call it from a thread that runs no async tasks.
pub fn query(place: &Path, sql: &str) -> Result<Answer, SqlError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(answer(place, sql))
}

async fn answer(place: &Path, sql: &str) -> Result<Answer, SqlError> {
    let config = SessionConfig::new().with_information_schema(true);
    let context = SessionContext::new_with_config(config);
    let tables = register(&context, place).await?;
    let failed = |error: DataFusionError| SqlError::Query { detail: error.strip_backtrace(), tables: tables.join(", ") };
    let read_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let frame = context.sql_with_options(sql, read_only).await.map_err(failed)?;
    let schema = Arc::clone(frame.schema().inner());
    let batches = frame.collect().await.map_err(failed)?;
    Ok(Answer { schema, batches })
}

/// The name of a topic or file as a table.
fn table_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

async fn register(context: &SessionContext, place: &Path) -> Result<Vec<String>, SqlError> {
    let mut found = Vec::new();
    if place.join("dataset.json").exists() {
        for name in ["windows", "decisions"] {
            found.push((name.to_owned(), place.join(format!("{name}.parquet")), false));
        }
    } else {
        let root = if place.join("archive").is_dir() { place.join("archive") } else { place.to_owned() };
        let listing = Archive::folder(&root)?.files()?;
        let mut topics: Vec<_> = listing.files.iter().map(|file| file.name.topic).collect();
        topics.dedup();
        for topic in topics {
            found.push((table_name(topic.base_name()), root.join(format!("topic={topic}")), true));
        }
    }
    if found.is_empty() {
        return Err(SqlError::Nothing { place: place.display().to_string() });
    }
    let names: Vec<String> = found.iter().map(|(name, ..)| name.clone()).collect();
    let failed = |error: DataFusionError| SqlError::Query { detail: error.strip_backtrace(), tables: names.join(", ") };
    for (name, path, dated) in &found {
        let absolute = path.canonicalize()?;
        let slash = if *dated { "/" } else { "" };
        let url = ListingTableUrl::parse(format!("{}{slash}", absolute.display())).map_err(failed)?;
        let mut options = ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension(".parquet");
        if *dated {
            options = options.with_table_partition_cols(vec![("date".to_owned(), DataType::Utf8)]);
        }
        // Files of older versions lack newer columns: the schemas of all are merged.
        let config =
            ListingTableConfig::new(url).with_listing_options(options).infer_schema(&context.state()).await.map_err(failed)?;
        let table = ListingTable::try_new(config).map_err(failed)?;
        context.register_table(name.as_str(), Arc::new(table)).map_err(failed)?;
    }
    Ok(names)
}

impl Answer {
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// A table with borders.
    pub fn text(&self) -> Result<String, SqlError> {
        let table = pretty_format_batches_with_schema(Arc::clone(&self.schema), &self.batches).map_err(unshown)?;
        Ok(format!("{table}\n"))
    }

    /// A JSON array of objects; null cells are written.
    pub fn json(&self) -> Result<String, SqlError> {
        let mut writer = datafusion::arrow::json::WriterBuilder::new()
            .with_explicit_nulls(true)
            .build::<_, datafusion::arrow::json::writer::JsonArray>(Vec::new());
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        writer.write_batches(&batches).map_err(unshown)?;
        writer.finish().map_err(unshown)?;
        let text = String::from_utf8(writer.into_inner()).expect("JSON is UTF-8");
        Ok(if text.is_empty() { "[]\n".to_owned() } else { text + "\n" })
    }

    /// Comma-separated, with a header; unknown cells are empty.
    pub fn csv(&self) -> Result<String, SqlError> {
        let quoted = |cell: &str| {
            if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
        };
        let header: Vec<_> = self.schema.fields().iter().map(|field| quoted(field.name())).collect();
        let mut text = header.join(",") + "\n";
        for batch in &self.batches {
            let columns: Vec<_> = batch
                .columns()
                .iter()
                .map(|column| ArrayFormatter::try_new(column, &FormatOptions::default()))
                .collect::<Result<_, _>>()
                .map_err(unshown)?;
            for row in 0..batch.num_rows() {
                let cells: Vec<_> = columns.iter().map(|column| quoted(&column.value(row).to_string())).collect();
                writeln!(text, "{}", cells.join(",")).expect("a String takes everything");
            }
        }
        Ok(text)
    }
}

fn unshown(error: impl std::fmt::Display) -> SqlError {
    SqlError::Query { detail: format!("the answer cannot be shown: {error}"), tables: "unchanged".to_owned() }
}
