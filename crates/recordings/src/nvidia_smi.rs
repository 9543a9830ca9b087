//! `nvidia-smi --query-gpu=timestamp,… --format=csv[,nounits]`, repeated headers allowed.
//!
//! Units are in the header (`power.draw [W]`) and, without `nounits`, in the cells, too (`62.35 W`). Times have no offset. A
//! board is known by its UUID or serial number, in any file; by its PCI bus id or index, which another node may have, too.
//! `power.draw` is an average over about a second on Ampere and later except GA100: it becomes `power_watts` if the name shows
//! that the board is older or GA100, else `power_average_watts`. If two columns are of one field, the better one counts in each
//! row that has it: not every board of a log has every value.

use std::collections::HashMap;

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::Meter;

use crate::absent::{is_absent_number, is_absent_text};
use crate::boards::several_boards_error;
use crate::clock::{ParsedTime, TimeParser};
use crate::decimal_mark::{DecimalMarkDetector, MARK_REMEDY};
use crate::error::quote;
use crate::foreign_text::line_label;
use crate::identity::{IdColumns, IdScope, driver_uuid, is_zero_uuid, plain_bus_id};
use crate::lines::LineReader;
use crate::names::event_name;
use crate::power_draw::power_draw_is_average;
use crate::quantity::QuantityCell;
use crate::recording::{FileId, RecordedDevice, Recording, RowError, SourceId, SourceKind};
use crate::report::{ColumnUse, TableUse};
use crate::row_times::RowTimes;
use crate::rows::{CUT, CUT_REMEDY};
use crate::table::{HeaderCriteria, RowCells, TableReader};
use crate::units::Unit;
use crate::{ImportError, ImportOptions, ReadingField, SameTimeRule};

/// Meaning of a column of the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueryColumn {
    Time,
    Index,
    Uuid,
    Serial,
    BusId,
    Name,
    /// `power.draw`: instant or average depends on the board.
    PowerDraw,
    Value(ReadingField),
    /// Counts in rows in which no other column has the field.
    Fallback(ReadingField),
}

impl QueryColumn {
    fn is_number(self) -> bool {
        matches!(self, Self::Value(_) | Self::Fallback(_) | Self::PowerDraw)
    }
}

fn known_column(name: &str) -> Option<QueryColumn> {
    Some(match name {
        "timestamp" => QueryColumn::Time,
        "index" => QueryColumn::Index,
        "uuid" | "gpu_uuid" => QueryColumn::Uuid,
        "serial" | "gpu_serial" => QueryColumn::Serial,
        "pci.bus_id" | "gpu_bus_id" => QueryColumn::BusId,
        "name" | "gpu_name" => QueryColumn::Name,
        "power.draw" => QueryColumn::PowerDraw,
        "power.draw.instant" => QueryColumn::Value(ReadingField::PowerWatts),
        "power.draw.average" => QueryColumn::Value(ReadingField::PowerAverageWatts),
        "enforced.power.limit" => QueryColumn::Value(ReadingField::PowerLimitWatts),
        "power.limit" => QueryColumn::Fallback(ReadingField::PowerLimitWatts),
        "utilization.gpu" => QueryColumn::Value(ReadingField::UtilizationRatio),
        "utilization.memory" => QueryColumn::Value(ReadingField::MemoryUtilizationRatio),
        "memory.used" => QueryColumn::Value(ReadingField::MemoryUsedBytes),
        "memory.total" => QueryColumn::Value(ReadingField::MemoryTotalBytes),
        "temperature.gpu" => QueryColumn::Value(ReadingField::TemperatureCelsius),
        "temperature.memory" => QueryColumn::Value(ReadingField::MemoryTemperatureCelsius),
        "clocks.sm" | "clocks.current.sm" => QueryColumn::Value(ReadingField::SmClockMhz),
        "clocks.mem" | "clocks.current.memory" => QueryColumn::Value(ReadingField::MemoryClockMhz),
        _ => return None,
    })
}

/// Remedy for labels before lines.
const WITHOUT_LABELS: &str = "write the lines of each node or process into a file of its own, without the label, as sed -n 's/^node01: //p' \
                              does, and import these files in one call";

/// Returns the unit that nvidia-smi means if a table gives none.
fn usual_unit(field: ReadingField) -> Option<Unit> {
    Unit::by_name(match field {
        ReadingField::PowerWatts | ReadingField::PowerAverageWatts | ReadingField::PowerLimitWatts => "W",
        ReadingField::UtilizationRatio | ReadingField::MemoryUtilizationRatio => "%",
        ReadingField::MemoryUsedBytes | ReadingField::MemoryTotalBytes => "MiB",
        ReadingField::SmClockMhz | ReadingField::MemoryClockMhz => "MHz",
        _ => "C",
    })
}

#[derive(Debug)]
struct NamedColumn {
    text: String,
    /// Name without the unit.
    name: String,
    use_as: Option<QueryColumn>,
    unit: Option<Unit>,
}

#[derive(Debug)]
struct QueryColumns {
    all: Vec<NamedColumn>,
    has_id: bool,
    names: RowCells,
}

/// Prefix of column names that refer to the module around a GPU.
const MODULE: &str = "module.";

/// Returns the use of a column: with `--meter module` the power of the module, if the table has it, else that of the GPU.
fn metered_column(name: &str, takes_module: bool) -> Option<QueryColumn> {
    let is_electrical = |column: &QueryColumn| match column {
        QueryColumn::PowerDraw => true,
        QueryColumn::Value(field) | QueryColumn::Fallback(field) => field.dimension().is_electrical(),
        _ => false,
    };
    match name.strip_prefix(MODULE) {
        Some(of_module) => known_column(of_module).filter(|column| takes_module && is_electrical(column)),
        None => known_column(name).filter(|column| !(takes_module && is_electrical(column))),
    }
}

impl QueryColumns {
    fn new(recording: &mut Recording, file: FileId, line: u64, names: RowCells) -> Result<Self, ImportError> {
        let mut columns = Vec::new();
        let has_draw =
            |prefix: &str| names.iter().any(|text| text.to_ascii_lowercase().starts_with(&format!("{prefix}power.draw")));
        let takes_module = recording.meter == Meter::Module && has_draw(MODULE);
        if !takes_module && has_draw(MODULE) && !has_draw("") {
            let problem = "the power in it is that of modules, not of GPUs alone";
            return Err(recording.error(file, line, problem, "use --meter module"));
        }
        for text in names.iter() {
            let (name, unit) = name_and_unit(text);
            let use_as = metered_column(&name.to_ascii_lowercase(), takes_module);
            match use_as {
                Some(QueryColumn::Value(field)) => drop(recording.columns.insert(field, text.to_owned())),
                Some(QueryColumn::Fallback(field)) => drop(recording.columns.entry(field).or_insert_with(|| text.to_owned())),
                Some(QueryColumn::PowerDraw) => {
                    for field in [ReadingField::PowerWatts, ReadingField::PowerAverageWatts] {
                        recording.columns.entry(field).or_insert_with(|| text.to_owned());
                    }
                }
                _ => {}
            }
            columns.push(NamedColumn {
                text: text.to_owned(),
                name: name.to_owned(),
                use_as,
                unit: unit.and_then(Unit::by_name),
            });
        }
        let has_column = |wanted: QueryColumn| columns.iter().any(|column| column.use_as == Some(wanted));
        if !has_column(QueryColumn::Time) {
            let label = names.iter().find_map(|cell| line_label(cell, "timestamp"));
            if let Some(label) = label {
                let problem = format!("each line begins with {}, which another program has written before it", quote(label));
                return Err(recording.error(file, line, problem, WITHOUT_LABELS));
            }
            let problem = "the first row is not a header with a timestamp column";
            let remedy = "record with --query-gpu=timestamp,uuid,power.draw,… --format=csv (not noheader), or import as csv with the \
                          numbers of the columns, for example --map time=#1 --map device=#2 --map power_watts=#3:W";
            return Err(recording.error(file, line, problem, remedy));
        }
        let has_id = [QueryColumn::Uuid, QueryColumn::Serial, QueryColumn::BusId, QueryColumn::Index].into_iter().any(has_column);
        Ok(Self { all: columns, has_id, names })
    }

    fn left_out(&self) -> Vec<String> {
        self.all.iter().filter(|column| column.use_as.is_none()).map(|column| column.text.clone()).collect()
    }
}

fn name_and_unit(text: &str) -> (&str, Option<&str>) {
    match text.split_once('[') {
        Some((name, unit)) => (name.trim(), Some(unit.trim_end_matches(']').trim())),
        None => (text.trim(), None),
    }
}

fn known_names(cells: &RowCells) -> usize {
    cells
        .iter()
        .filter(|text| {
            let name = name_and_unit(text).0.to_ascii_lowercase();
            known_column(name.strip_prefix(MODULE).unwrap_or(&name)).is_some()
        })
        .count()
}

fn is_header(cells: &RowCells) -> bool {
    cells.iter().any(|text| text.eq_ignore_ascii_case("timestamp"))
}

pub(crate) fn read(
    files: Vec<(FileId, LineReader<'_>)>,
    recording: &mut Recording,
    options: &ImportOptions,
) -> Result<(), ImportError> {
    let clock = TimeParser::new(options.time_format.clone(), options.time_zone.clone());
    let mut boards = BoardSources::default();
    let mut before = None;
    for (file, lines) in files {
        let wanted = HeaderCriteria { names: &known_names, is_data: &|_| false };
        let (mut table, header) = TableReader::open(lines, recording, file, &wanted)?;
        let Some(header) = header else { continue };
        let columns = QueryColumns::new(recording, file, header.line, header.names)?;
        let numbers = columns.all.iter().enumerate();
        let numbers = numbers.filter(|(_, column)| column.use_as.is_some_and(QueryColumn::is_number));
        let numbers: Vec<usize> = numbers.map(|(index, _)| index).collect();
        let marks = DecimalMarkDetector::new(&table, &numbers, options.decimal);
        let mut reader = FileReader {
            file,
            columns,
            clock: &clock,
            decimal_marks: marks,
            times: RowTimes::following(before.take(), options),
            models: IdColumns::new(std::iter::once((0, "device name"))),
        };
        let mut cells = RowCells::default();
        while let Some(line) = table.next_row(recording, file, &mut cells)? {
            if is_header(&cells) {
                if cells != reader.columns.names {
                    reader.columns = QueryColumns::new(recording, file, line, cells.clone())?;
                }
                recording.skip_line(file, line, "repeated header");
                continue;
            }
            recording.rows += 1;
            if table.is_cut() {
                recording.count_if_damaged(Err(RowError::damaged("cut off", recording.error(file, line, CUT, CUT_REMEDY))))?;
                continue;
            }
            let row = reader.read_row(recording, &mut boards, line, &cells);
            recording.count_if_damaged(row)?;
        }
        before = reader.times.file_end(recording);
        reader.finish(recording, &table, header.line, options)?;
    }
    recording.check_refusals()
}

struct FileReader<'c> {
    file: FileId,
    columns: QueryColumns,
    clock: &'c TimeParser,
    decimal_marks: DecimalMarkDetector,
    times: RowTimes,
    /// The models in rows without an id.
    models: IdColumns,
}

const RESTORE: &str = "restore the row or take it out";

impl FileReader<'_> {
    fn text<'c>(&self, cells: &'c RowCells, wanted: QueryColumn) -> Option<&'c str> {
        let index = self.columns.all.iter().position(|column| column.use_as == Some(wanted))?;
        cells.get(index).filter(|text| !is_absent_text(text))
    }

    fn read_row(
        &mut self,
        recording: &mut Recording,
        boards: &mut BoardSources,
        line: u64,
        cells: &RowCells,
    ) -> Result<(), RowError> {
        let file = self.file;
        let width = self.columns.all.len();
        let surplus = (width..cells.len()).any(|index| cells.get(index).is_some_and(|cell| !cell.is_empty()));
        if cells.len() < width || surplus {
            let problem = format!("row has {}, its header {width}", counted(cells.len(), "cell"));
            let remedy = "the file is truncated or damaged here: restore the row or take it out";
            return Err(RowError::damaged("cells", recording.error(file, line, problem, remedy)));
        }
        let stamp = self.text(cells, QueryColumn::Time).unwrap_or_default();
        let stamp = self.clock.read(stamp).map_err(|problem| {
            let problem = format!("{} is {problem}", quote(stamp));
            RowError::damaged("time", recording.error(file, line, problem, RESTORE).with_column("timestamp"))
        })?;
        let model = self.text(cells, QueryColumn::Name);
        let mut values = Vec::with_capacity(width);
        let mut fallbacks = Vec::new();
        let mut absent = 0;
        for (column, text) in self.columns.all.iter().zip(cells.iter()) {
            let (field, values) = match column.use_as {
                Some(QueryColumn::Value(field)) => (field, &mut values),
                Some(QueryColumn::Fallback(field)) => (field, &mut fallbacks),
                Some(QueryColumn::PowerDraw) if model.is_none_or(power_draw_is_average) => {
                    (ReadingField::PowerAverageWatts, &mut fallbacks)
                }
                Some(QueryColumn::PowerDraw) => (ReadingField::PowerWatts, &mut fallbacks),
                _ => continue,
            };
            let refused = |kind, problem: String| {
                RowError::damaged(kind, recording.error(file, line, problem, RESTORE).with_column(column.name.as_str()))
            };
            let quantity = self.decimal_marks.read(line, text).map_err(|problem| {
                RowError::stop(recording.error(file, line, problem, MARK_REMEDY).with_column(column.name.as_str()))
            })?;
            let (value, unit) = match quantity {
                QuantityCell::Absent => {
                    absent += 1;
                    continue;
                }
                QuantityCell::Number(value, unit) => (value, unit.or(column.unit).or_else(|| usual_unit(field))),
                QuantityCell::UnknownUnit => return Err(refused("unit", format!("{} has an unknown unit", quote(text)))),
                QuantityCell::Ambiguous | QuantityCell::NotANumber => {
                    return Err(refused("number", format!("{} is not a number", quote(text))));
                }
            };
            let Some(unit) = unit.filter(|unit| unit.dimension == field.dimension()) else {
                return Err(refused("unit", format!("{} is not in a unit of {}", quote(text), field.name())));
            };
            if is_absent_number(field, value, recording.meter) {
                absent += 1;
            } else {
                values.push((field, unit.to_base_unit(value)));
            }
        }
        for (field, value) in fallbacks {
            if values.iter().all(|(known, _)| *known != field) {
                values.push((field, value));
            }
        }
        recording.absent += absent;
        let uuid = self.text(cells, QueryColumn::Uuid);
        let id = BoardId {
            unique: uuid.filter(|id| !is_zero_uuid(id)).or_else(|| self.text(cells, QueryColumn::Serial)).filter(|id| *id != "0"),
            bus_id: self.text(cells, QueryColumn::BusId),
            index: self.text(cells, QueryColumn::Index),
            placeholder: uuid.filter(|id| is_zero_uuid(id)),
        };
        if self.columns.has_id && id.is_empty() && id.placeholder.is_none() {
            let problem = "row has no id of a board".to_owned();
            return Err(RowError::damaged("id", recording.error(file, line, problem, RESTORE)));
        }
        let latest = match stamp {
            ParsedTime::Absolute(time) | ParsedTime::Local(time) | ParsedTime::Ambiguous { second: time, .. } => time,
        };
        let source = boards.source(recording, (file, latest), &id, model);
        recording.check_board_count(file, line).map_err(RowError::stop)?;
        self.times.begin_with(recording, source);
        let time = self.times.resolve_time(source, line, stamp).map_err(|unsettled| {
            RowError::stop(recording.error(file, line, unsettled.problem, unsettled.remedy).with_column("timestamp"))
        })?;
        if id.is_empty() {
            self.models.observe(source, time, line, |_| model);
        }
        recording.push_from(file, source, time, line, &values, None);
        Ok(())
    }

    fn finish(
        self,
        recording: &mut Recording,
        table: &TableReader<'_>,
        header_line: u64,
        options: &ImportOptions,
    ) -> Result<(), ImportError> {
        self.times
            .check()
            .map_err(|unsettled| recording.error(self.file, unsettled.line, unsettled.problem, unsettled.remedy))?;
        if options.same_time.is_none()
            && let Some(found) = self.models.several_boards(&[IdScope::Board])
        {
            let remedy = "record with --query-gpu=timestamp,uuid,…, or import as csv with --map device=name if no two boards are of one model";
            return Err(several_boards_error(recording, self.file, &found, "name", remedy));
        }
        let field = |column: QueryColumn| match column {
            QueryColumn::Time => "time".to_owned(),
            QueryColumn::Index | QueryColumn::Uuid | QueryColumn::Serial | QueryColumn::BusId => "device".to_owned(),
            QueryColumn::Name => "gpu_model".to_owned(),
            QueryColumn::PowerDraw => "power_watts or power_average_watts, as the model's power.draw is".to_owned(),
            QueryColumn::Value(field) => field.name().to_owned(),
            QueryColumn::Fallback(field) => format!("{}, in rows in which no better column has it", field.name()),
        };
        let left_out = self.columns.left_out();
        if !self.columns.has_id && options.same_time != Some(SameTimeRule::Boards) {
            recording.add_note(
                "neither uuid, serial, pci.bus_id nor index is recorded: all rows of a file count as one board".to_owned(),
            );
        }
        recording.note_left_out(&left_out);
        let has_local_times = self.times.has_local_times();
        if has_local_times {
            recording.note_local_times(options);
        }
        let uses = self.columns.all.iter().filter_map(|column| {
            let unit = match column.use_as? {
                QueryColumn::Value(field) | QueryColumn::Fallback(field) => column.unit.or_else(|| usual_unit(field)),
                QueryColumn::PowerDraw => column.unit.or_else(|| Unit::by_name("W")),
                _ => None,
            };
            let unit = unit.map(|unit| unit.name.to_owned());
            Some(ColumnUse { column: column.text.clone(), field: field(column.use_as?), unit })
        });
        let zone = options.time_zone.as_ref().map_or("UTC".to_owned(), ToString::to_string);
        recording.tables.push(TableUse {
            file: recording.files[self.file].clone(),
            encoding: table.encoding(),
            separator: table.separator(),
            decimal: self.decimal_marks.mark(),
            header_line: Some(header_line),
            columns: uses.collect(),
            left_out,
            time_zone: has_local_times.then_some(zone),
        });
        Ok(())
    }
}

struct BoardId<'c> {
    /// UUID or serial number.
    unique: Option<&'c str>,
    bus_id: Option<&'c str>,
    index: Option<&'c str>,
    /// A UUID of zeros: it distinguishes rows that have it from those of the other boards of their file.
    placeholder: Option<&'c str>,
}

impl BoardId<'_> {
    /// Returns whether the row has no id, or a placeholder only.
    fn is_empty(&self) -> bool {
        self.unique.is_none() && self.bus_id.is_none() && self.index.is_none()
    }
}

#[derive(Default)]
struct BoardSources {
    sources: HashMap<(Option<FileId>, String), SourceId>,
    /// Boards with an id by their index in a file, for rows that have the index only.
    by_index: HashMap<(FileId, String), SourceId>,
}

impl BoardSources {
    /// Returns the source of a board: of all files if its id is unique, else of its file. `latest` is the latest time that the
    /// row may have.
    fn source(
        &mut self,
        recording: &mut Recording,
        (file, latest): (FileId, EventTime),
        id: &BoardId<'_>,
        model: Option<&str>,
    ) -> SourceId {
        let index = id.index.and_then(|text| text.parse::<u32>().ok());
        let has_more = id.unique.is_some() || id.bus_id.is_some();
        if let (Some(index), false) = (id.index, has_more)
            && let Some(source) = self.by_index.get(&(file, index.to_owned()))
        {
            return *source;
        }
        let key = match id {
            BoardId { unique: Some(unique), .. } => (None, driver_uuid(unique).into_owned()),
            BoardId { bus_id: Some(bus_id), .. } => (Some(file), plain_bus_id(bus_id)),
            BoardId { index: Some(index), .. } => (Some(file), format!("gpu-{index}")),
            _ => (Some(file), id.placeholder.map_or_else(String::new, |zeros| driver_uuid(zeros).into_owned())),
        };
        let known = self.sources.get(&key).copied();
        let is_of_file = |source: SourceId| {
            let last = recording.sources[source].readings.last();
            last.is_some_and(|last| last.file as usize == file)
        };
        let before = match known {
            Some(known) if is_of_file(known) => None,
            _ => self.take_partly_named(recording, (file, latest), id),
        };
        let source = match (known, before) {
            (Some(known), None) => known,
            (Some(known), Some(before)) => {
                let mut readings = std::mem::take(&mut recording.sources[before].readings);
                recording.sources[known].readings.append(&mut readings);
                recording.sources[known].readings.sort_by_key(|reading| (reading.file, reading.line));
                known
            }
            (None, before) => {
                let device = device(recording, file, (&key, index), model);
                let source = match before {
                    Some(before) => {
                        recording.sources[before].kind = SourceKind::Device(device);
                        before
                    }
                    None => recording.add_device(file, device),
                };
                self.sources.insert(key, source);
                source
            }
        };
        if let (Some(index), true) = (id.index, has_more) {
            let of_index = self.by_index.entry((file, index.to_owned())).or_insert(source);
            if before.is_some() {
                *of_index = source;
            }
        }
        source
    }

    /// Takes over the board of earlier rows that had only the bus id or the index of this row, if it is the first row of its
    /// board. Its UUID, or bus id, was not known yet. Others are another board's, as in logs of two nodes behind one another.
    fn take_partly_named(
        &mut self,
        recording: &Recording,
        (file, latest): (FileId, EventTime),
        id: &BoardId<'_>,
    ) -> Option<SourceId> {
        if id.unique.is_none() && id.bus_id.is_none() {
            return None;
        }
        let bus_id = id.bus_id.filter(|_| id.unique.is_some()).map(plain_bus_id);
        let index = id.index.map(|index| format!("gpu-{index}"));
        let of_rows_above = |own: String| {
            let key = (Some(file), own);
            let source = *self.sources.get(&key)?;
            let last = recording.sources[source].readings.last();
            last.is_none_or(|last| last.time < latest).then_some((key, source))
        };
        let (key, source) = bus_id.into_iter().chain(index).find_map(of_rows_above)?;
        self.sources.remove(&key);
        Some(source)
    }
}

/// Returns a board by its key in [`BoardSources::sources`] and its index.
fn device(
    recording: &Recording,
    file: FileId,
    ((scope, own), index): (&(Option<FileId>, String), Option<u32>),
    model: Option<&str>,
) -> RecordedDevice {
    let name = match (scope, own.as_str()) {
        (None, own) => own.to_owned(),
        (Some(_), "") => recording.board_file_name(file),
        (Some(_), own) => format!("{}:{own}", recording.board_file_name(file)),
    };
    RecordedDevice {
        name: event_name(&name),
        gpu_index: index,
        gpu_model: model.map(str::to_owned),
        is_anonymous: own.is_empty() || is_zero_uuid(own),
        is_unique: scope.is_none(),
        // Rows without an id are of one board, whose id is empty.
        local_id: Some(own.clone()).filter(|_| scope.is_some()),
        ..RecordedDevice::default()
    }
}
