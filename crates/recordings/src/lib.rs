//! Recordings of other tools, and our own event logs, as events.
//!
//! In: readers over the bytes of one run's files ([`import`]), or of an event log ([`LogReader`], [`LogChunks`]). Out: events of
//! [`eadt_schemas`] in event-time order over all sources, with a [`ImportReport`] of what the files held, or an
//! [`ImportError`] that names file, line, column and remedy; and event logs written line by line ([`LogWriter`]).
//! The labels of a Prometheus series are read by [`series`] and [`tenancy`], which the collector uses, too.
//! This crate never reads a clock, never opens a file, never fills in a value that the recording does not have, and
//! never drops a row without counting it. A damaged row costs that row.

pub mod absent;
mod assemble;
mod boards;
mod checks;
mod clock;
mod counter_wraps;
mod csv_table;
mod dcgmi;
mod decimal_mark;
mod detect;
mod duration;
mod encoding;
mod error;
mod fields;
mod fingerprint;
mod foreign_text;
mod format;
mod identity;
mod interpolate;
mod joined_units;
mod lines;
mod log;
mod median;
mod mlperf;
mod mlperf_inference;
mod names;
mod nvidia_smi;
mod options;
mod overlap;
mod power_draw;
mod prometheus;
pub mod prometheus_text;
mod quantity;
mod recording;
mod report;
mod rounds;
mod row_times;
mod rows;
pub mod series;
mod sum_of_devices;
mod sums;
mod table;
pub mod tenancy;
mod totals;
pub mod units;
mod words;

use std::fmt;
use std::io::Read;

use eadt_schemas::EventTime;

pub use assemble::{IMPORTS, ImportedEvents, ImportedRecording};
pub use checks::DEFAULT_POWER_GAP_SECONDS;
pub use clock::{NamedTimeZone, TimeFormat};
pub use detect::{DetectedFormat, TablePreview, detect_format, sketch_table};
pub use duration::{parse_duration, parse_interval};
pub use encoding::Encoding;
pub use error::ImportError;
pub use fields::ReadingField;
pub use format::RecordingFormat;
/// Date of `--date`.
pub use jiff::civil::Date;
pub use log::{Compression, EventRef, LogChunk, LogChunks, LogError, LogReader, LogWriter, MAX_EVENT_BYTES};
pub use names::shell_quote;
pub use options::{
    AcceptedFinding, FieldMap, FileSetKind, ImportOptions, InvalidOption, SameTimeRule, check_workload, parse_day,
};
pub use power_draw::power_draw_is_average;
pub use quantity::{DecimalMark, QuantityCell};
pub use report::{
    BoardSummary, ColumnUse, CounterComparison, DetailedImportReport, DroppedLines, ImportReport, RefusedLines, RowMerge,
    SourceGap, TableUse,
};
pub use rows::TableRows;

/// One file of a recording.
pub struct RecordingFile<'a> {
    /// Name that the user knows; errors name it, and devices without a name of their own are called after it.
    pub name: String,
    /// Its bytes; zstd is recognised and decompressed.
    pub reader: Box<dyn Read + 'a>,
}

impl<'a> RecordingFile<'a> {
    pub fn new(name: impl Into<String>, reader: impl Read + 'a) -> Self {
        Self { name: name.into(), reader: Box::new(reader) }
    }
}

impl fmt::Debug for RecordingFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingFile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Describes power readings and a run that have no moment in common, and the difference of time zones that would explain it. Each
/// range is from the first to the last moment. Returns `None` if they have a moment in common.
pub fn describe_apart(readings: (EventTime, EventTime), run: (EventTime, EventTime)) -> Option<String> {
    overlap::are_apart(readings, run).then(|| overlap::describe(readings, run))
}

/// Reads the files of one run.
///
/// Everything is read before the first event comes out, because the last event of each source is marked as the last. The
/// recording is held in memory: about 50 bytes a reading and 16 more a value.
pub fn import(
    format: RecordingFormat,
    inputs: Vec<RecordingFile<'_>>,
    options: &ImportOptions,
) -> Result<ImportedRecording, ImportError> {
    options.check(format)?;
    if inputs.is_empty() {
        return Err(ImportError::in_file("(no file)", "nothing to import", "name at least one file"));
    }
    let mut recording = recording::Recording::new(format, options);
    let mut files = Vec::with_capacity(inputs.len());
    for RecordingFile { name, reader } in inputs {
        let lines = lines::LineReader::new(&name, reader)?;
        files.push((recording.add_file(&name, lines.fingerprint), lines));
    }
    match format {
        RecordingFormat::Mlperf => mlperf::read(files, &mut recording)?,
        RecordingFormat::MlperfInference => mlperf_inference::read(files, &mut recording, options)?,
        RecordingFormat::Dcgmi => dcgmi::read(files, &mut recording, options)?,
        RecordingFormat::NvidiaSmi => nvidia_smi::read(files, &mut recording, options)?,
        RecordingFormat::Prometheus => prometheus::read(files, &mut recording, options)?,
        RecordingFormat::Csv => csv_table::read(files, &mut recording, options)?,
    }
    assemble::assemble(recording, options)
}
