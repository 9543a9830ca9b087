//! Rows to Arrow columns.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, RecordBatch, StringBuilder,
    TimestampMicrosecondBuilder,
};
use eadt_schemas::envelope::header;
use eadt_schemas::{EventTime, Topic};

use crate::decode::{CellValue, decode};
use crate::plan::{ColumnType, CommonColumn, TopicColumns, plan};
use crate::row::RowView;

/// A column under construction. It lags behind the row count while nothing is appended: absent cells cost nothing.
#[derive(Debug)]
enum ColumnBuilder {
    Text(StringBuilder),
    Time(TimestampMicrosecondBuilder),
    Int(Int64Builder),
    Float(Float64Builder),
    Bool(BooleanBuilder),
    Bytes(BinaryBuilder),
}

/// Applies one expression to the builder, whatever its type.
macro_rules! each {
    ($builder:expr, $inner:ident => $body:expr) => {
        match $builder {
            ColumnBuilder::Text($inner) => $body,
            ColumnBuilder::Time($inner) => $body,
            ColumnBuilder::Int($inner) => $body,
            ColumnBuilder::Float($inner) => $body,
            ColumnBuilder::Bool($inner) => $body,
            ColumnBuilder::Bytes($inner) => $body,
        }
    };
}

impl ColumnBuilder {
    fn new(kind: ColumnType) -> Self {
        match kind {
            ColumnType::Text | ColumnType::Json => Self::Text(StringBuilder::new()),
            ColumnType::Time => Self::Time(TimestampMicrosecondBuilder::new().with_timezone("UTC")),
            ColumnType::Int => Self::Int(Int64Builder::new()),
            ColumnType::Float => Self::Float(Float64Builder::new()),
            ColumnType::Bool => Self::Bool(BooleanBuilder::new()),
            ColumnType::Bytes => Self::Bytes(BinaryBuilder::new()),
        }
    }

    #[cold]
    fn append_nulls(&mut self, count: usize) {
        each!(self, builder => builder.append_nulls(count));
    }

    /// Returns the column so far. The next one gets as much memory at once, because it will be like this one.
    fn finish(&mut self) -> ArrayRef {
        let array: ArrayRef = each!(self, builder => Arc::new(builder.finish()));
        let rows = if array.null_count() < array.len() { array.len() } else { 0 };
        match self {
            Self::Text(builder) => *builder = StringBuilder::with_capacity(rows, array.as_string::<i32>().value_data().len()),
            Self::Time(builder) => *builder = TimestampMicrosecondBuilder::with_capacity(rows).with_timezone("UTC"),
            Self::Int(builder) => *builder = Int64Builder::with_capacity(rows),
            Self::Float(builder) => *builder = Float64Builder::with_capacity(rows),
            Self::Bool(builder) => *builder = BooleanBuilder::with_capacity(rows),
            Self::Bytes(builder) => *builder = BinaryBuilder::with_capacity(rows, array.as_binary::<i32>().value_data().len()),
        }
        array
    }
}

/// Headers that have a column of their own.
const COLUMN_HEADERS: [(&str, CommonColumn); 5] = [
    (header::TYPE, CommonColumn::CeType),
    (header::SOURCE, CommonColumn::CeSource),
    (header::ID, CommonColumn::CeId),
    (header::TIME, CommonColumn::CeTime),
    (header::SUBJECT, CommonColumn::CeSubject),
];

/// A builder, and how many rows it has.
#[derive(Debug)]
struct PartialColumn {
    builder: ColumnBuilder,
    /// Kept here, because asking the builder costs more than appending to it.
    rows: usize,
}

impl PartialColumn {
    fn fill_to(&mut self, rows: usize) {
        if self.rows < rows {
            self.builder.append_nulls(rows - self.rows);
            self.rows = rows;
        }
    }
}

/// Rows of one topic, as columns.
#[derive(Debug)]
pub(crate) struct RowBatchBuilder {
    plan: &'static TopicColumns,
    topic: Topic,
    columns: Vec<PartialColumn>,
    rows: usize,
    bytes: usize,
    /// Memory for the cells of the next row.
    cells: Vec<(usize, CellValue<'static>)>,
}

impl RowBatchBuilder {
    pub(crate) fn new(topic: Topic) -> Self {
        let plan = plan(topic);
        let columns = plan.columns.iter().map(|column| PartialColumn { builder: ColumnBuilder::new(column.kind), rows: 0 });
        Self { plan, topic, columns: columns.collect(), rows: 0, bytes: 0, cells: Vec::new() }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Returns about the memory that the rows take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push<'a>(&mut self, row: &RowView<'_>, headers: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
        assert_eq!(row.topic, self.topic, "a batch has one topic");
        let plan = self.plan;
        if let Some(value) = row.value {
            self.value(value);
        }
        self.headers(headers);
        self.text(plan.common(CommonColumn::Topic), row.topic.base_name());
        self.int(plan.common(CommonColumn::Partition), i64::from(row.partition));
        self.int(plan.common(CommonColumn::Offset), row.offset);
        match row.key.map(|key| (std::str::from_utf8(key), key)) {
            Some((Ok(key), _)) => self.text(plan.common(CommonColumn::Key), key),
            Some((Err(_), key)) => self.raw(plan.common(CommonColumn::KeyBytes), key),
            None => {}
        }
        self.time(plan.common(CommonColumn::Stamp), row.stamp.micros());
        self.bool(plan.common(CommonColumn::Tombstone), row.value.is_none());
        self.rows += 1;
    }

    fn value(&mut self, value: &[u8]) {
        let plan = self.plan;
        let cells = emptied(std::mem::take(&mut self.cells));
        let decoded = if plan.members.list.is_empty() { None } else { decode(plan, value, cells) };
        let Some(mut decoded) = decoded else { return self.raw(plan.common(CommonColumn::Value), value) };
        for (index, cell) in decoded.cells.drain(..) {
            match cell {
                CellValue::Bool(value) => self.bool(index, value),
                CellValue::Int(value) => self.int(index, value),
                CellValue::Float(value) => self.float(index, value),
                CellValue::Time(value) => self.time(index, value),
                CellValue::Text(value) => self.text(index, &value),
                CellValue::Json(value) => self.text(index, value),
            }
        }
        if let Some(extra) = decoded.extra {
            self.text(plan.common(CommonColumn::ExtraJson), &extra);
        }
        self.cells = emptied(decoded.cells);
    }

    fn headers<'a>(&mut self, headers: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
        let plan = self.plan;
        let mut set: u32 = 0;
        let mut first = |bit: usize| {
            let fresh = set & (1 << bit) == 0;
            set |= 1 << bit;
            fresh
        };
        let mut others: Vec<serde_json::Value> = Vec::new();
        // Headers that the file implies and does not contain.
        let (mut version, mut content, mut time) = (None, None, None);
        for (name, value) in headers {
            let text = std::str::from_utf8(value).ok();
            let column = COLUMN_HEADERS.iter().find(|(known, _)| known.as_bytes() == name).map(|(_, column)| *column);
            match (column, text) {
                // A second header of the same name stays behind the first one.
                _ if has_header(&others, name) => {}
                (Some(CommonColumn::CeTime), Some(text)) => {
                    let parsed = text.parse::<EventTime>().ok();
                    if let Some(parsed) = parsed.filter(|_| first(CommonColumn::CeTime as usize)) {
                        self.time(plan.common(CommonColumn::CeTime), parsed.micros());
                        if is_canonical(text) {
                            time = Some(text);
                            continue;
                        }
                    }
                }
                (Some(column), Some(text)) if first(column as usize) => {
                    self.text(plan.common(column), text);
                    continue;
                }
                (None, Some("1.0")) if name == header::SPEC_VERSION.as_bytes() && version.is_none() => {
                    version = text;
                    continue;
                }
                (None, Some("application/json")) if name == header::CONTENT_TYPE.as_bytes() && content.is_none() => {
                    content = text;
                    continue;
                }
                (None, Some(text)) => {
                    let known = plan.headers.iter().find(|(header, _)| header.as_bytes() == name);
                    if let Some(&(_, index)) = known.filter(|(_, index)| first(16 + index))
                        && self.known_header(index, text)
                    {
                        continue;
                    }
                }
                _ => {}
            }
            others.push(crate::rebuild::header_to_json(&String::from_utf8_lossy(name), value));
        }
        // A header that every event has is written only if it is absent, or if it came twice.
        for (name, value) in [(header::SPEC_VERSION, version), (header::CONTENT_TYPE, content), (header::TIME, time)] {
            // A time that is absent is so in its column.
            if value.map_or(name != header::TIME, |_| has_header(&others, name.as_bytes())) {
                others.insert(0, serde_json::json!([name, value]));
            }
        }
        if !others.is_empty() {
            let text = serde_json::Value::Array(others).to_string();
            self.text(plan.common(CommonColumn::HeadersJson), &text);
        }
    }

    /// Returns false if the column cannot hold exactly this text.
    fn known_header(&mut self, index: usize, text: &str) -> bool {
        match self.plan.columns[index].kind {
            ColumnType::Int => {
                let number = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
                number.map(|number| self.int(index, number)).is_some()
            }
            ColumnType::Time => {
                let time = text.parse::<EventTime>().ok().filter(|time| time.to_string() == text);
                time.map(|time| self.time(index, time.micros())).is_some()
            }
            _ => {
                self.text(index, text);
                true
            }
        }
    }

    fn text(&mut self, index: usize, value: &str) {
        self.bytes += value.len() + 5;
        if let ColumnBuilder::Text(builder) = self.column(index) {
            builder.append_value(value);
        }
    }

    fn raw(&mut self, index: usize, value: &[u8]) {
        self.bytes += value.len() + 5;
        if let ColumnBuilder::Bytes(builder) = self.column(index) {
            builder.append_value(value);
        }
    }

    fn int(&mut self, index: usize, value: i64) {
        self.bytes += 9;
        if let ColumnBuilder::Int(builder) = self.column(index) {
            builder.append_value(value);
        }
    }

    fn float(&mut self, index: usize, value: f64) {
        self.bytes += 9;
        if let ColumnBuilder::Float(builder) = self.column(index) {
            builder.append_value(value);
        }
    }

    fn time(&mut self, index: usize, value: i64) {
        self.bytes += 9;
        if let ColumnBuilder::Time(builder) = self.column(index) {
            builder.append_value(value);
        }
    }

    fn bool(&mut self, index: usize, value: bool) {
        self.bytes += 1;
        if let ColumnBuilder::Bool(builder) = self.column(index) {
            builder.append_value(value);
        }
    }

    /// Returns the column to which the present row's cell is appended.
    fn column(&mut self, index: usize) -> &mut ColumnBuilder {
        let column = &mut self.columns[index];
        column.fill_to(self.rows);
        column.rows = self.rows + 1;
        &mut column.builder
    }

    /// Returns the rows so far as one batch; none are left.
    pub(crate) fn take(&mut self) -> RecordBatch {
        let rows = self.rows;
        let arrays = self
            .columns
            .iter_mut()
            .map(|column| {
                column.fill_to(rows);
                column.rows = 0;
                column.builder.finish()
            })
            .collect();
        (self.rows, self.bytes) = (0, 0);
        RecordBatch::try_new(self.plan.schema.clone(), arrays).expect("the builders follow the plan")
    }
}

/// Returns the memory of cells of another row.
fn emptied<'a>(mut cells: Vec<(usize, CellValue<'_>)>) -> Vec<(usize, CellValue<'a>)> {
    cells.clear();
    // Collecting takes the vector over as it is; nothing is in it.
    cells.into_iter().map(|(index, _)| (index, CellValue::Bool(false))).collect()
}

/// Returns whether `headers_json` has a header of this name.
fn has_header(others: &[serde_json::Value], name: &[u8]) -> bool {
    others.iter().any(|header| header[0] == *String::from_utf8_lossy(name))
}

/// Returns whether a text that is a time is written as this program writes times.
fn is_canonical(text: &str) -> bool {
    let text = text.as_bytes();
    // A leap second is read as the second before it.
    text.len() == 27 && [text[10], text[19], text[26]] == *b"T.Z" && text[17] != b'6'
}
