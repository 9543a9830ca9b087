//! `cargo xtask chaos`: runs rows of the table and prints what they found.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use eadt_bus::kafka::FetchPath;
use eadt_chaos::page::page;
use eadt_chaos::row::Row;
use eadt_chaos::rows::ROWS;
use eadt_chaos::run::{self, Options, State};
use eadt_chaos::surroundings::Surroundings;
use eadt_tests::kafka::choose_fetch_path;

const HELP: &str = "EADT_CHAOS_LOGS=DIR keeps the logs of the processes, EADT_CHAOS_LOG=FILTER sets how much that is (info).";

/// Beside the page that is made of it.
const FIGURES: &str = "reliability.json";

#[derive(Debug, Parser)]
#[command(name = "cargo xtask chaos", bin_name = "cargo xtask chaos", about = "Faults on the real parts", after_help = HELP)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own")]
struct Arguments {
    /// Rows to run; none: all of them.
    rows: Vec<String>,
    /// Rounds of each row; without it as many as `--list` shows, which takes hours.
    #[arg(long)]
    rounds: Option<u32>,
    /// Everything random follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// By what the harness and everything that it starts read from Kafka (`bus.fetch`): native or librdkafka.
    #[arg(long)]
    fetch: Option<FetchPath>,
    /// Write what was found as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Go on with the run that was interrupted. A row that is not complete, and was begun by another build (commit, optimisation),
    /// begins anew.
    #[arg(long)]
    resume: bool,
    /// With --resume: rows of other builds are added to all the same, unless the row's text changed since. Their figures are then
    /// of several, which the page names.
    #[arg(long, requires = "resume")]
    across_builds: bool,
    /// Print the rows and end.
    #[arg(long)]
    list: bool,
    /// Write docs/evidence/reliability.md from what is kept, where something is, beside the rows that are there already, and end. A full run
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
    if let Some(path) = arguments.fetch {
        choose_fetch_path(path)?;
    }
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
    let mut writes = whole;
    if whole {
        let kept = if resume { State::read_if_there(&arguments.state)? } else { None };
        let written = State::read_if_there(&docs().join(FIGURES))?;
        if let Some(why) = run::why_no_page(&rows, &Surroundings::here(), kept, written.as_ref(), across_builds) {
            eprintln!("{why}: docs/evidence/reliability.md will not be written");
            writes = false;
        }
    }
    let kept = Some(arguments.state.clone());
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
    if writes {
        write_page(&arguments.state)?;
    }
    Ok(bad.is_empty())
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence")
}

/// Adds what is kept to the figures of the documentation, and writes its page.
fn write_page(kept: &Path) -> Result<()> {
    let figures = docs().join(FIGURES);
    let before = State::read_if_there(&figures)?;
    let new = State::read_if_there(kept)?;
    if let Some(name) = new.as_ref().and_then(|new| new.unrepeatable(before.as_ref())) {
        bail!("row {name} was run from a tree with changes, which no commit names: commit them, and run it again");
    }
    let state = match (new, before) {
        (None, Some(before)) => before,
        (None, None) => State::read(kept)?,
        (Some(new), None) => new,
        (Some(new), Some(before)) => {
            if before.seed != new.seed {
                bail!("{} has seed {}, what is kept has {}", figures.display(), before.seed, new.seed);
            }
            new.beside(before)
        }
    };
    state.save(&figures)?;
    std::fs::write(docs().join("reliability.md"), page(&state))?;
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
