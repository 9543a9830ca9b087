//! The queries of `docs/sql` mean the same to the engine of `eadt sql` and to `DuckDB`.

mod support;

use std::path::Path;

use serde_json::{Map, Value};
use support::{eadt, json};

fn rows(text: &str) -> Vec<Map<String, Value>> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Equal numbers within rounding, equal texts; times by their first 19 characters, as each engine writes them in its own way.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
        }
        (Value::String(a), Value::String(b)) => a == b || a.replace('T', " ").get(..19) == b.replace('T', " ").get(..19),
        _ => a == b,
    }
}

#[test]
fn documented_queries_mean_the_same_to_datafusion_and_duckdb() {
    let data = tempfile::tempdir().unwrap();
    json(eadt(
        data.path(),
        &["up", "--speed", "max", "--duration", "2h", "--seed", "7", "--controller", "matrix", "--no-view", "--json"],
    ));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut asked = 0;
    for entry in std::fs::read_dir(root.join("docs/sql")).unwrap() {
        let file = entry.unwrap().path();
        let query = std::fs::read_to_string(&file).unwrap();
        let ours = rows(&eadt_sql::query(data.path(), &query).unwrap().json().unwrap());
        let archive = data.path().join("archive");
        let script = root.join("tests/python/ask_duckdb.py");
        let theirs = rows(&eadt_tests::python::script(&script, &[&archive, &file]).unwrap());
        assert!(!ours.is_empty(), "{}: no rows", file.display());
        assert_eq!(ours.len(), theirs.len(), "{}", file.display());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            for (column, value) in theirs {
                assert!(same(&ours[column], value), "{}: {column}: {ours:?} and {theirs:?}", file.display());
            }
            assert_eq!(ours.len(), theirs.len(), "{}", file.display());
        }
        asked += 1;
    }
    assert!(asked >= 4, "only {asked} queries");

    // A data set is asked in the same way; nothing is ever written; mistakes name the tables.
    let out = tempfile::tempdir().unwrap();
    let (place, to) = (data.path().display().to_string(), out.path().join("ds"));
    json(eadt(data.path(), &["dataset", "build", &place, "--out", &to.display().to_string(), "--json"]));
    let answer = eadt_sql::query(&to, "SELECT count(*) AS n FROM decisions WHERE action <> 'maintain'").unwrap();
    assert!(rows(&answer.json().unwrap())[0]["n"].as_u64().unwrap() > 0);
    assert_eq!(eadt_sql::query(&to, "SELECT 1 AS a, 'x,y' AS b").unwrap().csv().unwrap(), "a,b\n1,\"x,y\"\n");
    let error = |place: &Path, query: &str| eadt_sql::query(place, query).unwrap_err().to_string();
    assert!(error(&to, "SELECT * FROM nothing").ends_with("tables are: windows, decisions"));
    for statement in ["CREATE TABLE t AS SELECT 1", "COPY windows TO '/tmp/never.csv'", "DROP TABLE windows"] {
        assert!(error(&to, statement).contains("not supported"), "{statement}: {}", error(&to, statement));
    }
    assert!(error(&out.path().join("nowhere"), "SELECT 1").contains("name a data folder"));
}

#[cfg(not(feature = "sql"))]
#[test]
fn a_program_without_the_engine_says_so() {
    let data = tempfile::tempdir().unwrap();
    let (_, error, ok) = support::text(eadt(data.path(), &["sql", "somewhere", "SELECT 1"]));
    assert!(!ok && error.contains("--features sql") && error.contains("DuckDB"), "{error}");
}
