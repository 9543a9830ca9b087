//! What every format is read into before it becomes events.

use std::collections::BTreeMap;
use std::path::Path;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Meter, Phase};

use crate::report::Skipped;
use crate::stays::Portion;
use crate::{Field, Format, ImportError, Options};

/// Index into [`Recording::files`].
pub(crate) type FileId = usize;
/// Index into [`Recording::sources`].
pub(crate) type SourceId = usize;

#[derive(Debug)]
pub(crate) struct Recording {
    pub(crate) format: Format,
    pub(crate) files: Vec<String>,
    pub(crate) sources: Vec<Source>,
    /// What the file calls a field, for error messages.
    pub(crate) columns: BTreeMap<Field, String>,
    /// What device figures cover.
    pub(crate) meter: Meter,
    pub(crate) rows: u64,
    pub(crate) absent: u64,
    /// Rows found out of order before they became readings.
    pub(crate) out_of_order: u64,
    /// Rows put together before they became readings: repeated ones, and those with other values.
    pub(crate) duplicates: u64,
    pub(crate) same_stamp: u64,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) notes: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: FileId,
    /// From labels in the recording; used where the user names none.
    pub(crate) workload: Option<String>,
    /// Behind the workload's name, for what belongs to the run and not to its job; usually empty.
    pub(crate) suffix: &'static str,
    /// The recording says that it is of no workload.
    pub(crate) is_nobodys: bool,
    pub(crate) kind: SourceKind,
    pub(crate) readings: Vec<Reading>,
}

#[derive(Debug, Clone)]
pub(crate) enum SourceKind {
    Device(Device),
    Job {
        rank: u32,
        /// Rows come at any time, as in a log of phases: silence is no gap.
        irregular: bool,
    },
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) gpu_index: Option<u32>,
    pub(crate) gpu_model: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Reading {
    pub(crate) time: EventTime,
    pub(crate) line: u32,
    pub(crate) values: Box<[(Field, f64)]>,
    pub(crate) mark: Option<Box<Mark>>,
    /// Of a device that changes hands or is shared.
    pub(crate) portion: Option<Box<Portion>>,
}

/// What a job's log says beside numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) phase: Phase,
    /// The span that begins here; empty: none goes on.
    pub(crate) span: Option<String>,
}

impl Recording {
    pub(crate) fn new(format: Format, options: &Options) -> Self {
        let meter = match format {
            Format::Mlperf => Meter::Node,
            Format::MlperfInference => Meter::Wall,
            _ => Meter::Gpu,
        };
        Self {
            format,
            files: Vec::new(),
            sources: Vec::new(),
            columns: BTreeMap::new(),
            meter: options.meter.unwrap_or(meter),
            rows: 0,
            absent: 0,
            out_of_order: 0,
            duplicates: 0,
            same_stamp: 0,
            skipped: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(crate) fn add_file(&mut self, name: &str) -> FileId {
        self.files.push(name.to_owned());
        self.files.len() - 1
    }

    pub(crate) fn add_source(&mut self, file: FileId, workload: Option<String>, kind: SourceKind) -> SourceId {
        self.sources.push(Source { file, workload, suffix: "", is_nobodys: false, kind, readings: Vec::new() });
        self.sources.len() - 1
    }

    pub(crate) fn add_device(&mut self, file: FileId, device: Device) -> SourceId {
        self.add_source(file, None, SourceKind::Device(device))
    }

    /// Adds a reading; one without values and marks says nothing and is left out.
    pub(crate) fn push(&mut self, source: SourceId, time: EventTime, line: u64, values: &[(Field, f64)], mark: Option<Mark>) {
        if values.is_empty() && mark.is_none() {
            return;
        }
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        self.sources[source].readings.push(Reading {
            time,
            line,
            values: values.into(),
            mark: mark.map(Box::new),
            portion: None,
        });
    }

    /// Adds a reading of a device, or the portion of it that belongs to the source.
    pub(crate) fn push_portion(
        &mut self,
        source: SourceId,
        (time, line): (EventTime, u64),
        values: &[(Field, f64)],
        portion: Option<Portion>,
    ) {
        if !values.is_empty() {
            let (line, portion) = (u32::try_from(line).unwrap_or(u32::MAX), portion.map(Box::new));
            self.sources[source].readings.push(Reading { time, line, values: values.into(), mark: None, portion });
        }
    }

    /// Counts a line that becomes no event.
    pub(crate) fn skip(&mut self, file: FileId, line: u64, reason: &str) {
        let name = &self.files[file];
        match self.skipped.iter_mut().find(|skipped| skipped.reason == reason && skipped.file == *name) {
            Some(skipped) => skipped.lines += 1,
            None => self.skipped.push(Skipped { file: name.clone(), reason: reason.to_owned(), lines: 1, first_line: line }),
        }
    }

    pub(crate) fn error(&self, file: FileId, line: u64, problem: impl Into<String>, remedy: impl Into<String>) -> ImportError {
        ImportError::at(&self.files[file], line, problem, remedy)
    }

    /// A name made from a file's: without folder and ending, with nothing but letters, digits, `.`, `_` and `-`.
    pub(crate) fn stem(&self, file: FileId) -> String {
        let path = Path::new(&self.files[file]);
        let mut stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for ending in [".jsonl", ".json", ".csv", ".txt", ".log", ".prom"] {
            if let Some(short) = stem.strip_suffix(ending) {
                stem = short.to_owned();
            }
        }
        clean_name(&stem)
    }
}

/// At most 200 letters, digits, `.`, `_`, `-`; others become `-`.
pub(crate) fn clean_name(text: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
    let name: String = text.chars().map(keep).take(200).collect();
    if name.is_empty() { "recording".to_owned() } else { name }
}
