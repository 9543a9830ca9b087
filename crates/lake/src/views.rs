//! The archive in SQL: the statements that make one view for each topic, for `DuckDB`.

use eadt_schemas::Topic;

use crate::plan::{ColumnType, plan};

/// Columns in a line of a statement.
const COLUMNS_IN_LINE: usize = 4;

/// Returns the SQL that makes one view for each topic of the archive at this location, for `DuckDB` from 2.0 on.
///
/// The view of `device-intents.v1` is `device_intents_v1`. A view has all columns that this version writes, also if the files of a
/// topic lack a column, or the archive has no file of the topic, and `date` and `topic` from the names of the folders.
pub fn views(location: &str) -> String {
    Topic::ALL.into_iter().map(|topic| view(topic, location)).collect()
}

fn view(topic: Topic, location: &str) -> String {
    let name = topic.base_name().replace(['.', '-'], "_");
    let location = location.trim_end_matches('/').replace('\'', "''");
    let columns = plan(topic).columns.iter().map(|column| (column.name.as_str(), sql_type(column.kind)));
    // If there is no file, `read_parquet` has one column of this name.
    let others = [("date", "DATE"), ("topic", "VARCHAR"), ("empty", "BOOLEAN")];
    let columns: Vec<String> = columns.chain(others).map(|(name, kind)| format!("NULL::{kind} AS \"{name}\"")).collect();
    let lines: Vec<String> = columns.chunks(COLUMNS_IN_LINE).map(|line| line.join(", ")).collect();
    format!(
        "CREATE OR REPLACE VIEW {name} AS\n\
         SELECT * EXCLUDE (empty) FROM (\n\
         SELECT {}\n\
         WHERE false\n\
         UNION ALL BY NAME\n\
         SELECT * FROM read_parquet('{location}/topic={topic}/*/*.parquet',\n\
         \x20 hive_partitioning = true, union_by_name = true, allow_empty = true)\n\
         );\n",
        lines.join(",\n  ")
    )
}

/// Returns the type that `DuckDB` reads a column as.
fn sql_type(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::Text | ColumnType::Json => "VARCHAR",
        ColumnType::Time => "TIMESTAMPTZ",
        ColumnType::Int => "BIGINT",
        ColumnType::Float => "DOUBLE",
        ColumnType::Bool => "BOOLEAN",
        ColumnType::Bytes => "BLOB",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_topic_has_one_view_with_all_its_columns() {
        let text = views("an archive/");
        let head = |line: &str| Some(line.strip_prefix("CREATE OR REPLACE VIEW ")?.strip_suffix(" AS")?.to_owned());
        let made: Vec<String> = text.lines().filter_map(head).collect();
        assert_eq!(made, Topic::ALL.map(|topic| topic.base_name().replace(['.', '-'], "_")));
        for (topic, statement) in Topic::ALL.into_iter().zip(text.split("CREATE OR REPLACE VIEW ").skip(1)) {
            for column in &plan(topic).columns {
                let defined = format!("::{} AS \"{}\"", sql_type(column.kind), column.name);
                assert!(column.name != "empty" && statement.contains(&defined), "{topic}: {}", column.name);
            }
            assert!(statement.contains(&format!("'an archive/topic={topic}/*/*.parquet'")), "{statement}");
        }
    }

    #[test]
    fn a_quote_in_the_location_does_not_end_the_text() {
        assert!(views("it's").contains("read_parquet('it''s/topic=gpu.telemetry.v1/"));
    }
}
