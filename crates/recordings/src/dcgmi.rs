//! The text of `dcgmi dmon`: blocks of rows below a repeated two-line header. Rows have no times: the k-th row of an
//! entity is at start + k × interval.

use std::collections::HashMap;

use crate::absent::is_absent_number;
use crate::error::quote;
use crate::lines::LineReader;
use crate::recording::{FileId, RecordedDevice, Recording, SourceId};
use crate::units::{Dimension, NumberCell, Unit, parse_cell};
use crate::{ImportError, ImportOptions, ReadingField};
use eadt_schemas::counts::counted;

/// The column's short name in dcgmi, our field, and dcgmi's unit where it is not ours.
const COLUMNS: &[(&str, ReadingField, &str)] = &[
    ("POWER", ReadingField::PowerWatts, "W"),
    ("TOTEC", ReadingField::EnergyJoulesTotal, "mJ"),
    ("GPUTL", ReadingField::UtilizationRatio, "%"),
    ("MCUTL", ReadingField::MemoryUtilizationRatio, "%"),
    ("GRACT", ReadingField::GraphicsActiveRatio, "ratio"),
    ("SMACT", ReadingField::SmActiveRatio, "ratio"),
    ("SMOCC", ReadingField::SmOccupancyRatio, "ratio"),
    ("TENSO", ReadingField::TensorActiveRatio, "ratio"),
    ("DRAMA", ReadingField::DramActiveRatio, "ratio"),
    ("FP32A", ReadingField::Fp32ActiveRatio, "ratio"),
    ("PCITX", ReadingField::PcieTransmitBytesPerSecond, "B/s"),
    ("PCIRX", ReadingField::PcieReceiveBytesPerSecond, "B/s"),
    ("FBUSD", ReadingField::MemoryUsedBytes, "MiB"),
    ("FBTTL", ReadingField::MemoryTotalBytes, "MiB"),
    ("SMCLK", ReadingField::SmClockMhz, "MHz"),
    ("MMCLK", ReadingField::MemoryClockMhz, "MHz"),
    ("TMPTR", ReadingField::TemperatureCelsius, "C"),
    ("MMTMP", ReadingField::MemoryTemperatureCelsius, "C"),
];

const RESTORE: &str = "restore the row or take it out";

pub(crate) fn read(
    files: Vec<(FileId, LineReader<'_>)>,
    recording: &mut Recording,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let interval = options.interval.unwrap_or_default().as_micros() as i64;
    let start = options.start.unwrap_or(ImportOptions::DEFAULT_START);
    for (name, field, _) in COLUMNS {
        recording.columns.insert(*field, (*name).to_owned());
    }
    recording.notes.push(format!("times are made from the row number: {start} + row × {} ms", interval as f64 / 1000.0));
    for (file, mut lines) in files {
        let mut header: Vec<Option<(ReadingField, Unit)>> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        let mut devices: HashMap<u32, (SourceId, i64)> = HashMap::new();
        let mut values = Vec::new();
        let mut first_instance = None;
        while let Some((line, text)) = lines.next_line()? {
            let trimmed = text.trim();
            if let Some(head) = trimmed.strip_prefix('#') {
                names = head.split_whitespace().skip(1).map(str::to_owned).collect();
                header = names.iter().map(|name| known_column(name)).collect();
                continue;
            }
            let mut cells = trimmed.split_whitespace();
            let (kind, id) = (cells.next(), cells.next());
            if kind.is_none() || kind == Some("Id") || kind == Some("ID") {
                continue;
            }
            let (Some("GPU"), Some(Ok(id))) = (kind, id.map(str::parse::<u32>)) else {
                match kind {
                    // A GPU instance, or a compute instance of it.
                    Some("GPU-I" | "GPU-CI" | "GPU_I" | "GPU_CI") => {
                        first_instance.get_or_insert(line);
                        recording.skip_line(file, line, "row of a MIG instance, not of its GPU");
                    }
                    Some("GPU") => {
                        recording.rows += 1;
                        let error = recording.error(file, line, format!("{} names no GPU", quote(trimmed)), RESTORE);
                        recording.refuse_row("id", error);
                    }
                    _ => recording.skip_line(file, line, "not a row of a GPU"),
                }
                continue;
            };
            recording.rows += 1;
            let (source, row) = devices.entry(id).or_insert_with(|| {
                let name = format!("{}:gpu-{id}", recording.board_file_name(file));
                (recording.add_device(file, RecordedDevice { name, gpu_index: Some(id), ..RecordedDevice::default() }), 0)
            });
            let (source, time) = (*source, start.plus_micros(interval.saturating_mul(*row)));
            *row += 1;
            recording.check_board_count(file, line)?;
            let cells: Vec<&str> = cells.collect();
            if cells.len() != header.len() {
                let problem = {
                    let (values, columns) = (counted(cells.len(), "value"), counted(header.len(), "column"));
                    format!("row has {values}, its header {columns}")
                };
                let remedy = "the file is truncated or damaged here: restore the row or take it out";
                let error = recording.error(file, line, problem, remedy);
                recording.refuse_row("cells", error);
                continue;
            }
            values.clear();
            let mut damaged = None;
            for ((text, column), name) in cells.iter().zip(&header).zip(&names) {
                let Some((field, unit)) = column else { continue };
                match parse_cell(text) {
                    NumberCell::Number(value) if is_absent_number(*field, value, recording.meter) => recording.absent += 1,
                    NumberCell::Number(value) => values.push((*field, unit.to_base_unit(value))),
                    NumberCell::Absent => recording.absent += 1,
                    NumberCell::Other => {
                        let problem = format!("{} is not a number", quote(text));
                        damaged = Some(recording.error(file, line, problem, RESTORE).with_column(name));
                    }
                }
            }
            match damaged {
                Some(error) => recording.refuse_row("number", error),
                None => recording.push(source, time, line, &values, None),
            }
        }
        if let (true, Some(line)) = (devices.is_empty(), first_instance) {
            let problem = "all rows are of MIG instances: power and energy are known of whole GPUs only";
            let remedy = "record the GPUs, too: dcgmi dmon -i 0,1,… with their numbers";
            return Err(recording.error(file, line, problem, remedy));
        }
        recording.note_drift(file, devices.values().map(|(_, rows)| *rows));
        for name in names.iter().filter(|name| known_column(name).is_none()) {
            recording.add_note(format!("column {name} has no field in the events and is left out"));
        }
    }
    recording.check_refusals()
}

fn known_column(name: &str) -> Option<(ReadingField, Unit)> {
    let (_, field, unit) = COLUMNS.iter().find(|(short, _, _)| *short == name)?;
    let unit = Unit::by_name(unit)?;
    debug_assert!(unit.dimension == field.dimension() || field.dimension() == Dimension::Count);
    Some((*field, unit))
}
