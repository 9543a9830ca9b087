//! `eadt tune aggregate`: raw profiling series into operating points.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eadt_recordings::RecordingFormat;
use eadt_schemas::counts::{counted, counted_as};
use eadt_tune::TableError;
use eadt_tune::aggregate::{FileNamePattern, OperatingPoints, RunProfile, points, read, to_csv};
use serde::Serialize;

use crate::cli::ReadingArgs;
use crate::commands::import::reading_options;
use crate::output::{print, print_line};
use crate::progress::ProgressMeter;

#[derive(Debug, Args)]
pub struct TuneAggregateArgs {
    /// Files, or folders that are searched.
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Pattern of the file names, without their ending: literal text and `{column}`s.
    #[arg(long, value_name = "PATTERN", default_value = "{gpu_model}-{workload}-{sm_clock_mhz}-{run}", value_parser = FileNamePattern::new)]
    pub pattern: FileNamePattern,
    /// Format of the files.
    #[arg(long, value_enum)]
    pub format: SeriesFormat,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Table to write.
    #[arg(long, value_name = "POINTS.csv")]
    pub out: PathBuf,
    /// Replace the output if it exists.
    #[arg(long)]
    pub force: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SeriesFormat {
    Dcgmi,
    NvidiaSmi,
    Csv,
}

/// Outcome for the files.
#[derive(Debug, Serialize)]
struct AggregateSummary {
    files: usize,
    /// Files that the pattern does not fit.
    not_matching: Vec<String>,
    /// Files that could not be read, and why.
    bad: Vec<String>,
    /// Files of which something was refused, and what.
    incomplete: Vec<String>,
    /// Runs that are in no operating point.
    #[serde(flatten)]
    result: OperatingPoints,
}

pub fn run(args: &TuneAggregateArgs) -> anyhow::Result<()> {
    let pattern = &args.pattern;
    let knob = pattern.knob().context("the pattern has no knob")?.to_owned();
    let format = match args.format {
        SeriesFormat::Dcgmi => RecordingFormat::Dcgmi,
        SeriesFormat::NvidiaSmi => RecordingFormat::NvidiaSmi,
        SeriesFormat::Csv => RecordingFormat::Csv,
    };
    let options = reading_options(&args.reading, format);
    let mut files = Vec::new();
    for path in &args.paths {
        find(path, &mut files)?;
    }
    files.sort();
    files.dedup();
    let mut not_matching = Vec::new();
    let mut matching = Vec::new();
    for file in &files {
        match file.file_stem().and_then(|stem| pattern.read(&stem.to_string_lossy())) {
            Some(columns) => matching.push((file, columns)),
            None => not_matching.push(file.display().to_string()),
        }
    }
    if matching.is_empty() {
        let example = not_matching.first().map_or("there is no file".to_owned(), |name| format!("for example {name}"));
        bail!("no file of {} fits --pattern {:?}: {example}", files.len(), args.pattern.text());
    }
    // Each thread takes every n-th file: the order of the results does not depend on how many there are.
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(matching.len());
    let meter = ProgressMeter::steps(matching.len() as u64, "files");
    let one = |(file, columns): &(&PathBuf, eadt_tune::points::GroupKey)| -> Result<RunProfile, TableError> {
        let name = file.display().to_string();
        let reader = std::fs::File::open(file).map_err(|error| TableError {
            file: name.clone(),
            line: None,
            column: None,
            problem: format!("cannot be read: {error}"),
            remedy: "check its rights".to_owned(),
        })?;
        let profile = read(&name, std::io::BufReader::new(reader), columns.clone(), format, &options);
        meter.add(1);
        profile
    };
    let results: Vec<Result<RunProfile, TableError>> = std::thread::scope(|scope| {
        let (one, matching) = (&one, &matching);
        let workers: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || matching.iter().skip(first).step_by(threads).map(one).collect::<Vec<_>>()))
            .collect();
        let done = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        done.collect::<Result<Vec<_>, _>>().map(|all| all.into_iter().flatten().collect())
    })
    .map_err(|_| anyhow::anyhow!("reading the files failed: a worker panicked"))?;
    meter.finish();
    let mut bad: Vec<String> = Vec::new();
    let mut profiles = Vec::new();
    for result in results {
        match result {
            Ok(profile) => profiles.push(profile),
            Err(error) => bad.push(error.to_string()),
        }
    }
    bad.sort();
    let count = profiles.len();
    let refused = |profile: &RunProfile| Some(format!("{}: {}", profile.file, profile.refused.as_ref()?));
    let incomplete: Vec<String> = profiles.iter().filter_map(refused).collect();
    let result = points(profiles, &knob);
    if result.points.is_empty() {
        let of = counted(matching.len(), "file");
        if let Some(first) = bad.first() {
            bail!("none of {of} could be read: {first}");
        }
        bail!("no setting of {of} has a run to go by: record the runs again");
    }
    super::write(&args.out, &files, &to_csv(&result.points)?, args.force)?;
    let summary = AggregateSummary { files: count, not_matching, bad, incomplete, result };
    if args.json {
        print_line!("{}", serde_json::to_string_pretty(&summary)?);
        return Ok(());
    }
    for error in &summary.bad {
        crate::output::note!("warning: skipped: {error}");
    }
    for error in &summary.incomplete {
        crate::output::note!("warning: {error}");
    }
    for left in &summary.result.dropped {
        crate::output::note!("warning: {}: run left out: {:?}", left.file, left.why);
    }
    if !summary.not_matching.is_empty() {
        crate::output::note!(
            "warning: {} not fit the pattern, for example {}",
            counted_as(summary.not_matching.len(), "file does", "files do"),
            summary.not_matching[0]
        );
    }
    print(&format!(
        "{} from {} written to {}; {} skipped, {} left out\n",
        counted(summary.result.points.len(), "operating point"),
        counted(summary.files, "file"),
        args.out.display(),
        counted(summary.bad.len(), "bad file"),
        counted(summary.result.dropped.len(), "run")
    ))
}

/// Finds every plain file under a path.
fn find(path: &Path, into: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let cannot = || format!("cannot read {}", path.display());
    if !path.is_dir() {
        std::fs::metadata(path).with_context(cannot)?;
        into.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        let kind = entry.file_type().with_context(cannot)?;
        // Links are not followed: a folder may hold itself.
        if kind.is_dir() {
            find(&entry.path(), into)?;
        } else if kind.is_file() {
            into.push(entry.path());
        }
    }
    Ok(())
}
