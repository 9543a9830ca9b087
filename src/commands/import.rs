//! `eadt import`: other people's recordings into an event log.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use eadt_recordings::{
    AcceptedFinding, DecimalMark, DetailedImportReport, DetectedFormat, FileSetKind, ImportOptions, ImportedRecording,
    InvalidOption, LogWriter, NamedTimeZone, RecordingFile, RecordingFormat, SameTimeRule,
};
use eadt_schemas::v1::Meter;

use crate::atomic_file::AtomicFile;
use crate::cli::{FormatOrFile, ImportArgs, ImportFilesAre, ReadingArgs};
use crate::output::print_line;
use crate::progress::{MeteredReader, ProgressMeter};
use crate::usage_error;

pub fn run(args: &ImportArgs) -> anyhow::Result<()> {
    let (format, files) = format_and_files(args)?;
    let options = options(args, format);
    if args.explain {
        return explain(args, format, &files, &options);
    }
    let out = args.out.as_deref().context("--out names the event log to write")?;
    let (target, compression) = AtomicFile::event_log(out, &files, args.force)?;
    let imported = import(format, &files, &options)?;
    let cannot = || format!("cannot write {}", out.display());
    let mut log = LogWriter::new(target.writer()?, compression)?;
    for event in imported.events() {
        log.write(&event).with_context(cannot)?;
    }
    target.finish(log.finish().with_context(cannot)?)?;
    if args.json {
        print_line!("{}", serde_json::to_string(&imported.report)?);
    } else {
        crate::output::print(&imported.report.to_string())?;
        print_line!("written to {}", out.display());
    }
    Ok(imported.report.check_refused()?)
}

fn open(path: &Path) -> anyhow::Result<BufReader<File>> {
    Ok(BufReader::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?))
}

fn input(path: &Path) -> anyhow::Result<RecordingFile<'static>> {
    Ok(RecordingFile::new(path.display().to_string(), open(path)?))
}

fn import(format: RecordingFormat, files: &[PathBuf], options: &ImportOptions) -> anyhow::Result<ImportedRecording> {
    let meter = ProgressMeter::over_files(files);
    let input = |path: &PathBuf| {
        let reader = MeteredReader::new(open(path)?, &meter);
        anyhow::Ok(RecordingFile::new(path.display().to_string(), reader))
    };
    let inputs = files.iter().map(input).collect::<anyhow::Result<_>>()?;
    let imported = eadt_recordings::import(format, inputs, options);
    meter.finish();
    Ok(imported?)
}

/// Prints what would be made of the files, refused rows included, which are no error here. A table without a map is only looked
/// at.
fn explain(args: &ImportArgs, format: RecordingFormat, files: &[PathBuf], options: &ImportOptions) -> anyhow::Result<()> {
    if format == RecordingFormat::Csv && options.maps.is_empty() {
        for path in files {
            crate::output::print(&eadt_recordings::sketch_table(input(path)?)?.to_string())?;
        }
        return Ok(());
    }
    let report = import(format, files, options)?.report;
    if args.json {
        print_line!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    crate::output::print(&DetailedImportReport(&report).to_string())?;
    print_line!("nothing is written");
    Ok(())
}

fn format_and_files(args: &ImportArgs) -> anyhow::Result<(RecordingFormat, Vec<PathBuf>)> {
    let format = match &args.format {
        FormatOrFile::File(first) => {
            let files: Vec<PathBuf> = std::iter::once(first).chain(&args.files).cloned().collect();
            return Ok((guess_format(args, first, &files)?, files));
        }
        FormatOrFile::Format(format) => *format,
    };
    if args.files.is_empty() {
        return Err(usage_error::impossible(format_args!("no file to import: name the files of one run after {format}")));
    }
    Ok((format, args.files.clone()))
}

fn guess_format(args: &ImportArgs, first: &Path, files: &[PathBuf]) -> anyhow::Result<RecordingFormat> {
    let known = RecordingFormat::names();
    if !args.explain && !first.exists() {
        return Err(usage_error::impossible(format_args!("{} is neither a format ({known}) nor a file", first.display())));
    }
    let first_guess = eadt_recordings::detect_format(input(first)?)?;
    let DetectedFormat::Recording(format) = first_guess else {
        bail!("{} is an event log, not a recording to import: run `eadt replay {0} --out DIR`", first.display());
    };
    if args.explain {
        if !args.json {
            print_line!("format: {format}, as the first lines look");
        }
        return Ok(format);
    }
    let names = files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ");
    bail!(
        "the format goes first, one of {known}: {} looks like {format}, so use `eadt import {format} {names} …`",
        first.display()
    )
}

fn options(args: &ImportArgs, format: RecordingFormat) -> ImportOptions {
    ImportOptions {
        workload: args.workload.clone(),
        files_are: args.files_are.map(|files_are| match files_are {
            ImportFilesAre::Nodes => FileSetKind::Nodes,
            ImportFilesAre::Parts => FileSetKind::Parts,
        }),
        ..reading_options(&args.reading, format)
    }
}

/// Returns the options for reading recordings. Options of imports alone keep their defaults.
pub fn reading_options(args: &ReadingArgs, format: RecordingFormat) -> ImportOptions {
    ImportOptions {
        maps: args.map.clone(),
        time_format: args.time_format.clone(),
        time_zone: time_zone(args.time_zone.as_ref(), format),
        date: args.date,
        interval: args.interval,
        meter: args.meter.map(Meter::from),
        decimal: args.decimal.map(DecimalMark::from),
        same_time: args.same_time.map(SameTimeRule::from),
        accept: args.accept.iter().copied().map(AcceptedFinding::from).collect(),
        ..ImportOptions::default()
    }
}

/// Returns the zone of local times: `--time-zone`, else the environment's `TZ` if the format has local times.
fn time_zone(requested: Option<&NamedTimeZone>, format: RecordingFormat) -> Option<NamedTimeZone> {
    if requested.is_some() || !matches!(format, RecordingFormat::Csv | RecordingFormat::NvidiaSmi) {
        return requested.cloned();
    }
    let text = std::env::var("TZ").ok().filter(|text| !text.trim().is_empty())?;
    let zone = NamedTimeZone::new(text.trim_start_matches(':'), zone_file);
    if zone.is_err() {
        tracing::warn!(TZ = %text, "unknown time zone: times without an offset are read as UTC; --time-zone sets another");
    }
    zone.ok()
}

/// Reads `--time-zone`.
pub fn zone(text: &str) -> Result<NamedTimeZone, InvalidOption> {
    NamedTimeZone::new(text, zone_file)
}

/// Folder in which systems keep the time zone database.
const ZONE_FOLDERS: [&str; 4] = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];

/// Reads the file of a zone in the time zone database.
fn zone_file(name: &str) -> Option<Vec<u8>> {
    let plain = |part: &str| !part.is_empty() && !part.starts_with('.');
    if !name.split('/').all(plain) {
        return None;
    }
    let folders = std::env::var_os("TZDIR").into_iter().map(PathBuf::from).chain(ZONE_FOLDERS.map(PathBuf::from));
    folders.into_iter().find_map(|folder| std::fs::read(folder.join(name)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_names_the_gap_that_a_replay_allows() {
        let processor = eadt_processor::ProcessorSettings::default();
        assert_eq!(processor.power_gap_seconds, eadt_recordings::DEFAULT_POWER_GAP_SECONDS);
    }

    #[test]
    fn zones_are_read_from_the_database() {
        if !Path::new("/usr/share/zoneinfo/Europe/Berlin").exists() {
            eprintln!("skipped: no time zone database");
            return;
        }
        assert_eq!(NamedTimeZone::new("Europe/Berlin", zone_file).unwrap().to_string(), "Europe/Berlin");
        for name in ["Europe/Nowhere", "../zoneinfo/UTC2", "/etc/passwd", "Europe", ""] {
            assert!(NamedTimeZone::new(name, zone_file).is_err(), "{name}");
        }
    }
}
