//! `nvidia-smi --query-gpu=timestamp,… --format=csv[,nounits]`, repeated headers allowed.
//!
//! Units stand in the header (`power.draw [W]`) and, without `nounits`, in the cells, too (`62.35 W`). Local times are
//! read as UTC. `power.draw` is an average over about a second on Ampere and later except GA100: it becomes
//! `power_watts` where the name says that the board is older or GA100, else `power_average_watts`.

use std::collections::HashMap;

use crate::error::quote;
use crate::lines::Lines;
use crate::recording::{Device, FileId, Recording, SourceId};
use crate::units::{Cell, Unit, cell};
use crate::{Field, ImportError, Options};

/// What a column of the query is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Time,
    Index,
    Uuid,
    Name,
    /// `power.draw`: instant or average depends on the board.
    PowerDraw,
    Value(Field),
}

fn known(name: &str) -> Option<Column> {
    Some(match name {
        "timestamp" => Column::Time,
        "index" => Column::Index,
        "uuid" | "gpu_uuid" => Column::Uuid,
        "name" | "gpu_name" => Column::Name,
        "power.draw" => Column::PowerDraw,
        "power.draw.instant" => Column::Value(Field::PowerWatts),
        "power.draw.average" => Column::Value(Field::PowerAverageWatts),
        "enforced.power.limit" => Column::Value(Field::PowerLimitWatts),
        "utilization.gpu" => Column::Value(Field::UtilizationRatio),
        "utilization.memory" => Column::Value(Field::MemoryUtilizationRatio),
        "memory.used" => Column::Value(Field::MemoryUsedBytes),
        "memory.total" => Column::Value(Field::MemoryTotalBytes),
        "temperature.gpu" => Column::Value(Field::TemperatureCelsius),
        "temperature.memory" => Column::Value(Field::MemoryTemperatureCelsius),
        "clocks.sm" | "clocks.current.sm" => Column::Value(Field::SmClockMhz),
        "clocks.mem" | "clocks.current.memory" => Column::Value(Field::MemoryClockMhz),
        _ => return None,
    })
}

/// The unit that nvidia-smi means where a table says none.
fn usual_unit(field: Field) -> Option<Unit> {
    Unit::named(match field {
        Field::PowerWatts | Field::PowerAverageWatts | Field::PowerLimitWatts => "W",
        Field::UtilizationRatio | Field::MemoryUtilizationRatio => "%",
        Field::MemoryUsedBytes | Field::MemoryTotalBytes => "MiB",
        Field::SmClockMhz | Field::MemoryClockMhz => "MHz",
        _ => "C",
    })
}

/// Boards older than Ampere, and GA100: their `power.draw` is the present value.
fn draws_instantly(model: &str) -> bool {
    ["A100", "A800", "A30", "CMP 170", "V100", "P100", "P40", "P4", "T4", "TITAN", "GTX", "RTX 20", "Quadro", "K80", "M60"]
        .iter()
        .any(|part| model.contains(part))
        // RTX A3000 and its like are GA10x.
        && !model.contains("RTX A")
        && !model.contains("A300")
}

#[derive(Debug)]
struct Header {
    columns: Vec<(String, Option<Column>, Option<Unit>)>,
}

fn header(recording: &mut Recording, file: FileId, line: u64, cells: &[&str]) -> Result<Header, ImportError> {
    let mut columns = Vec::new();
    for text in cells {
        let (name, unit) = match text.split_once('[') {
            Some((name, unit)) => (name.trim(), Unit::named(unit.trim_end_matches(']').trim())),
            None => (text.trim(), None),
        };
        let mut column = known(name);
        // The limit in force is asked for under two names; where both are there, one is enough.
        if name == "power.limit" && !cells.iter().any(|other| other.trim().starts_with("enforced.power.limit")) {
            column = Some(Column::Value(Field::PowerLimitWatts));
        }
        // The present value is worth more than one of unknown kind.
        if column == Some(Column::PowerDraw) && cells.iter().any(|other| other.trim().starts_with("power.draw.instant")) {
            column = None;
        }
        match column {
            None => {
                let note = format!("column {name:?} is left out");
                if !recording.notes.contains(&note) {
                    recording.notes.push(note);
                }
            }
            Some(Column::Value(field)) => {
                recording.columns.insert(field, (*text).to_owned());
            }
            Some(Column::PowerDraw) => {
                recording.columns.insert(Field::PowerWatts, (*text).to_owned());
                recording.columns.insert(Field::PowerAverageWatts, (*text).to_owned());
            }
            Some(_) => {}
        }
        columns.push((name.to_owned(), column, unit));
    }
    if !columns.iter().any(|(_, column, _)| *column == Some(Column::Time)) {
        let problem = "the first row is not a header with a timestamp column";
        let remedy =
            "record with --query-gpu=timestamp,uuid,power.draw,… --format=csv (not noheader), or import as csv with --map";
        return Err(recording.error(file, line, problem, remedy));
    }
    if !columns.iter().any(|(_, column, _)| matches!(column, Some(Column::Uuid | Column::Index))) {
        let note = "neither uuid nor index is recorded: all rows of a file count as one board".to_owned();
        if !recording.notes.contains(&note) {
            recording.notes.push(note);
        }
    }
    Ok(Header { columns })
}

pub(crate) fn read(files: Vec<(FileId, Lines<'_>)>, recording: &mut Recording, options: &Options) -> Result<(), ImportError> {
    let clock = options.time_format.clone().unwrap_or_default();
    // Files that were rotated go on with the same boards.
    let mut devices: HashMap<String, SourceId> = HashMap::new();
    for (file, mut lines) in files {
        let mut head: Option<Header> = None;
        while let Some((line, text)) = lines.next_line()? {
            if text.trim().is_empty() {
                continue;
            }
            let cells: Vec<&str> = text.split(',').map(str::trim).collect();
            if head.is_none() {
                head = Some(header(recording, file, line, &cells)?);
                continue;
            }
            if cells.contains(&"timestamp") {
                head = Some(header(recording, file, line, &cells)?);
                recording.skip(file, line, "repeated header");
                continue;
            }
            let Some(head) = &head else { continue };
            recording.rows += 1;
            read_row(recording, file, line, head, &cells, &clock, &mut devices)?;
        }
    }
    Ok(())
}

fn read_row(
    recording: &mut Recording,
    file: FileId,
    line: u64,
    head: &Header,
    cells: &[&str],
    clock: &crate::TimeFormat,
    devices: &mut HashMap<String, SourceId>,
) -> Result<(), ImportError> {
    if cells.len() != head.columns.len() {
        let problem = format!("row has {} cell(s), its header {}", cells.len(), head.columns.len());
        let remedy = "the file is truncated or damaged here: restore the row or take it out";
        return Err(recording.error(file, line, problem, remedy));
    }
    let text_of = |wanted: Column| {
        let found = head.columns.iter().zip(cells).find(|((_, column, _), _)| *column == Some(wanted));
        found.map(|(_, text)| *text).filter(|text| !text.is_empty() && !text.starts_with('['))
    };
    let stamp = text_of(Column::Time).unwrap_or_default();
    let time = clock.parse(stamp).map_err(|problem| {
        recording
            .error(file, line, format!("{} is {problem}", quote(stamp)), "restore the row or take it out")
            .column("timestamp")
    })?;
    let model = text_of(Column::Name);
    let index = text_of(Column::Index).and_then(|text| text.parse::<u32>().ok());
    let device = text_of(Column::Uuid).map(str::to_owned).or_else(|| index.map(|index| format!("gpu-{index}")));
    let device = device.unwrap_or_else(|| recording.stem(file));
    let mut values = Vec::with_capacity(head.columns.len());
    for ((name, column, unit), text) in head.columns.iter().zip(cells) {
        let field = match column {
            Some(Column::Value(field)) => *field,
            Some(Column::PowerDraw) if model.is_some_and(draws_instantly) => Field::PowerWatts,
            Some(Column::PowerDraw) => Field::PowerAverageWatts,
            _ => continue,
        };
        let wrong = |recording: &Recording, problem: String| {
            recording.error(file, line, problem, "restore the row or take it out").column(name.as_str())
        };
        // "62.35 W"; "[N/A]" has no unit.
        let (number, unit) = match text.rsplit_once(' ') {
            Some((number, suffix)) if !text.starts_with('[') => match Unit::named(suffix) {
                Some(unit) => (number, Some(unit)),
                None => return Err(wrong(recording, format!("{} has an unknown unit", quote(text)))),
            },
            _ => (*text, unit.or_else(|| usual_unit(field))),
        };
        match (cell(number), unit.filter(|unit| unit.dimension == field.dimension())) {
            (Cell::Number(value), Some(unit)) => values.push((field, unit.to_ours(value))),
            (Cell::Number(_), None) => {
                return Err(wrong(recording, format!("{} is not in a unit of {}", quote(text), field.name())));
            }
            (Cell::Absent, _) => recording.absent += 1,
            (Cell::Other, _) => return Err(wrong(recording, format!("{} is not a number", quote(text)))),
        }
    }
    let source = *devices.entry(device.clone()).or_insert_with(|| {
        let device = Device { name: device, gpu_index: index, gpu_model: model.map(str::to_owned), ..Device::default() };
        recording.add_device(file, device)
    });
    recording.push(source, time, line, &values, None);
    Ok(())
}
