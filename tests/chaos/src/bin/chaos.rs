//! `cargo xtask chaos`: runs rows of the table and prints what they found.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use eadt_chaos::page::page;
use eadt_chaos::row::Row;
use eadt_chaos::rows::ROWS;
use eadt_chaos::run::{self, Options, State};
use eadt_chaos::surroundings::Surroundings;

const HELP: &str = "EADT_CHAOS_LOGS=DIR keeps what the processes say, EADT_CHAOS_LOG=FILTER says how much that is (info).";

#[derive(Debug, Parser)]
#[command(name = "cargo xtask chaos", bin_name = "cargo xtask chaos", about = "Faults on the real parts", after_help = HELP)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
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
    /// Go on with the run that was interrupted. A row that is not complete, and was begun by another build (commit, optimisation),
    /// begins anew.
    #[arg(long)]
    resume: bool,
    /// With --resume: rows of other builds are added to all the same. Their figures are then of several, which the page names.
    #[arg(long, requires = "resume")]
    across_builds: bool,
    /// Print the rows and end.
    #[arg(long)]
    list: bool,
    /// Write docs/reliability.md from what is kept, where something is, beside the rows that are there already, and end. A full run
    /// does so by itself. What is kept must be of a commit, not of a tree with changes.
    #[arg(long)]
    page: bool,
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
    if arguments.page {
        write_page(&arguments.state)?;
        return Ok(true);
    }
    let rows = chosen(&arguments.rows)?;
    let whole = arguments.rows.is_empty() && arguments.rounds.is_none();
    let Arguments { rounds, seed, resume, across_builds, .. } = arguments;
    let kept = Some(arguments.state.clone());
    if whole && Surroundings::here().is_changed() {
        eprintln!("the tree has changes that no commit names: docs/reliability.md will not be written");
    }
    let state = run::run(&rows, &Options { rounds, seed, state: kept, resume, across_builds })?;
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
    if whole {
        write_page(&arguments.state)?;
    }
    Ok(bad.is_empty())
}

/// Adds what is kept to the figures of the documentation, and writes its page.
fn write_page(kept: &Path) -> Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let figures = docs.join("reliability.json");
    let before = figures.exists().then(|| State::read(&figures)).transpose()?;
    if kept.exists() {
        let new = State::read(kept)?;
        let written = |name: &str| before.as_ref().and_then(|before| before.rows.get(name));
        // Nobody could repeat it.
        for (name, found) in new.rows.iter().filter(|(name, found)| written(name) != Some(*found)) {
            if found.surroundings.iter().any(Surroundings::is_changed) {
                bail!("row {name} was run from a tree with changes, which no commit names: commit them, and run it again");
            }
        }
    }
    let state = match (kept.exists(), before) {
        (false, Some(before)) => before,
        (_, None) => State::read(kept)?,
        (true, Some(before)) => {
            let mut state = State::read(kept)?;
            if before.seed != state.seed {
                bail!("{} has seed {}, what is kept has {}", figures.display(), before.seed, state.seed);
            }
            for (name, found) in before.rows {
                state.rows.entry(name).or_insert(found);
            }
            state
        }
    };
    state.save(&figures)?;
    std::fs::write(docs.join("reliability.md"), page(&state))?;
    Ok(())
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
