//! `eadt sql`: queries over an archive or a data set.

use anyhow::Context;

use crate::cli::Sql;

#[cfg(feature = "sql")]
pub fn run(args: &Sql) -> anyhow::Result<()> {
    use crate::cli::SqlFormat;

    let answer = eadt_sql::query(&args.path, &text(args)?)?;
    let shown = match args.format {
        _ if args.json => answer.json()?,
        SqlFormat::Text => answer.text()?,
        SqlFormat::Json => answer.json()?,
        SqlFormat::Csv => answer.csv()?,
    };
    crate::output::print(&shown)
}

#[cfg(not(feature = "sql"))]
pub fn run(args: &Sql) -> anyhow::Result<()> {
    let query = text(args)?;
    anyhow::bail!(
        "this program was built without the SQL engine, which takes minutes to build: cargo build --release --features sql; \
         or ask DuckDB, which reads {} as it stands: {query:?}",
        args.path.display()
    )
}

fn text(args: &Sql) -> anyhow::Result<String> {
    match (&args.query, &args.file) {
        (Some(query), _) => Ok(query.clone()),
        (None, Some(file)) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read the query in {}", file.display()))
        }
        (None, None) => unreachable!("the command line asks for one of them"),
    }
}
