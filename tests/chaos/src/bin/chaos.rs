//! `cargo xtask chaos`: runs rows of the table and prints what they found.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use eadt_chaos::row::Row;
use eadt_chaos::rows::ROWS;
use eadt_chaos::run::{self, Options};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask chaos", bin_name = "cargo xtask chaos", about = "Faults on the real parts")]
struct Arguments {
    /// Rows to run; none: all of them.
    rows: Vec<String>,
    /// Rounds of each row; without it as many as `--list` says, which takes hours.
    #[arg(long)]
    rounds: Option<u32>,
    /// Everything random follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write what was found as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Go on with the run that was interrupted.
    #[arg(long)]
    resume: bool,
    /// Print the rows and end.
    #[arg(long)]
    list: bool,
    /// Where what was found is kept after every batch.
    #[arg(long, default_value = "target/chaos/state.json")]
    state: PathBuf,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let arguments = Arguments::parse();
    if arguments.list {
        for row in ROWS {
            println!("{:16} {:>5} rounds  {}", row.name, row.full, row.fault);
        }
        return Ok(true);
    }
    let rows = chosen(&arguments.rows)?;
    let Arguments { rounds, seed, resume, .. } = arguments;
    let state = run::run(&rows, &Options { rounds, seed, state: Some(arguments.state), resume })?;
    if let Some(path) = arguments.json {
        std::fs::write(&path, serde_json::to_vec_pretty(&state)?).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{}", run::table(&rows, &state));
    let bad: Vec<_> = rows.iter().filter(|row| !state.rows.get(row.name).is_some_and(run::Found::is_good)).collect();
    for row in &bad {
        let Some(found) = state.rows.get(row.name) else { continue };
        eprintln!("{}: {}", row.name, found.verdict());
        found.with.examples.iter().for_each(|example| eprintln!("  {example}"));
    }
    Ok(bad.is_empty())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Row>> {
    if names.is_empty() {
        return Ok(ROWS.iter().collect());
    }
    let find = |name: &String| {
        let Some(row) = ROWS.iter().find(|row| row.name == *name) else {
            let known: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            bail!("there is no row {name}; there are {}", known.join(", "));
        };
        Ok(row)
    };
    names.iter().map(find).collect()
}
