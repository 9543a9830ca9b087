//! Other people's recordings, and our own event logs, as events.
//!
//! In: readers over the bytes of one run's files ([`import`]), or of an event log ([`LogReader`], [`LogChunks`]). Out: events of
//! [`eadt_schemas`] in event-time order over all sources, with a [`Report`] of what the files held, or an
//! [`ImportError`] that names file, line, column and remedy; and event logs written line by line ([`LogWriter`]).
//! What the labels of a Prometheus series say is in [`series`] and [`stays`], which the collector asks, too.
//! This crate never reads a clock, never opens a file, never fills in a value that the recording does not have, and
//! never drops a row without counting it. A damaged row costs that row.

pub mod absent;
mod assemble;
mod boards;
mod checks;
mod clock;
mod csv_table;
mod dcgmi;
mod duration;
mod encoding;
mod error;
mod fields;
mod fingerprint;
mod format;
mod identity;
mod interpolate;
mod lines;
mod log;
mod marks;
mod mlperf;
mod mlperf_inference;
mod nvidia_smi;
mod options;
mod overlap;
mod power_draw;
mod prometheus;
pub mod prometheus_text;
mod quantity;
mod recording;
mod report;
mod row_times;
mod rows;
pub mod series;
mod sketch;
pub mod stays;
mod table;
pub mod units;

use std::fmt;
use std::io::Read;

use eadt_schemas::EventTime;

pub use assemble::{Events, IMPORTS, Imported};
pub use checks::DEFAULT_POWER_GAP_SECONDS;
pub use clock::{TimeFormat, Zone};
pub use csv_table::shell_quote;
pub use duration::{parse_duration, parse_interval};
pub use encoding::Encoding;
pub use error::ImportError;
pub use fields::Field;
pub use format::Format;
pub use log::{Chunk, Compression, EventRef, LogChunks, LogError, LogReader, LogWriter, MAX_EVENT_BYTES};
pub use options::{Accept, FieldMap, FilesAre, InvalidOption, Options, SameTime, check_workload};
pub use power_draw::power_draw_is_average;
pub use quantity::{DecimalMark, Quantity};
pub use report::{Board, ColumnUse, CounterCheck, Explained, Gap, Merge, RefusedLines, Report, Skipped, TableUse};
pub use rows::TableRows;
pub use sketch::{Guess, TableSketch, guess, sketch_table};

/// One file of a recording.
pub struct Input<'a> {
    /// As the user knows it; errors name it, and devices without a name of their own are called after it.
    pub name: String,
    /// Its bytes; zstd is recognised and decompressed.
    pub reader: Box<dyn Read + 'a>,
}

impl<'a> Input<'a> {
    pub fn new(name: impl Into<String>, reader: impl Read + 'a) -> Self {
        Self { name: name.into(), reader: Box::new(reader) }
    }
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Returns what is to be said of power readings and a run, each from its first to its last moment, that have no moment in common, and the
/// difference of time zones that would explain it; `None` if they have one.
pub fn describe_apart(readings: (EventTime, EventTime), run: (EventTime, EventTime)) -> Option<String> {
    overlap::are_apart(readings, run).then(|| overlap::describe(readings, run))
}

/// Reads the files of one run.
///
/// Everything is read before the first event comes out, because the last event of each source says so. The
/// recording is held in memory: about 50 bytes a reading and 16 more a value.
pub fn import(format: Format, inputs: Vec<Input<'_>>, options: &Options) -> Result<Imported, ImportError> {
    options.check(format)?;
    if inputs.is_empty() {
        return Err(ImportError::whole("(no file)", "nothing to import", "name at least one file"));
    }
    let mut recording = recording::Recording::new(format, options);
    let mut files = Vec::with_capacity(inputs.len());
    for Input { name, reader } in inputs {
        let lines = lines::Lines::new(&name, reader)?;
        files.push((recording.add_file(&name, lines.fingerprint), lines));
    }
    match format {
        Format::Mlperf => mlperf::read(files, &mut recording)?,
        Format::MlperfInference => mlperf_inference::read(files, &mut recording, options)?,
        Format::Dcgmi => dcgmi::read(files, &mut recording, options)?,
        Format::NvidiaSmi => nvidia_smi::read(files, &mut recording, options)?,
        Format::Prometheus => prometheus::read(files, &mut recording, options)?,
        Format::Csv => csv_table::read(files, &mut recording, options)?,
    }
    assemble::assemble(recording, options)
}
