//! Rows as they lie in their columns, and the events that there are many of read from there, without JSON in between.
//!
//! What the columns do not hold exactly is not read here: such a row is built first ([`StoredRow::row`]) and decoded like any
//! other. If this answers it answers what decoding the built row would.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};
use eadt_schemas::decode::{DecodableEvent, MAX_VALUE_BYTES};
use eadt_schemas::v1::{
    CounterScope, DeadLetterReason, GpuTelemetry, JobLifecycle, Meter, Origin, ShareMethod, TrainingProgress,
};
use eadt_schemas::{DecodeError, EventTime, EventType, Topic};
use serde::Deserialize;
use serde::de::value::{Error as NoSuchName, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::plan::{ColumnType, CommonColumn, TopicColumns, plan};
use crate::row::ArchiveRow;

/// A column of one batch.
#[derive(Debug)]
enum StoredColumn {
    /// The column has no value.
    Absent,
    Text(StringArray),
    Time(TimestampMicrosecondArray),
    Int(Int64Array),
    Float(Float64Array),
    Bool(BooleanArray),
    Bytes(BinaryArray),
}

impl StoredColumn {
    fn new(kind: ColumnType, array: &ArrayRef) -> Self {
        if array.null_count() == array.len() {
            return Self::Absent;
        }
        match kind {
            ColumnType::Text | ColumnType::Json => Self::Text(array.as_string::<i32>().clone()),
            ColumnType::Time => Self::Time(array.as_primitive::<TimestampMicrosecondType>().clone()),
            ColumnType::Int => Self::Int(array.as_primitive::<Int64Type>().clone()),
            ColumnType::Float => Self::Float(array.as_primitive::<Float64Type>().clone()),
            ColumnType::Bool => Self::Bool(array.as_boolean().clone()),
            ColumnType::Bytes => Self::Bytes(array.as_binary::<i32>().clone()),
        }
    }

    fn text(&self, at: usize) -> Option<&str> {
        if let Self::Text(array) = self { array.is_valid(at).then(|| array.value(at)) } else { None }
    }

    fn time(&self, at: usize) -> Option<EventTime> {
        let Self::Time(array) = self else { return None };
        array.is_valid(at).then(|| EventTime::from_micros(array.value(at)))
    }

    fn int(&self, at: usize) -> Option<i64> {
        if let Self::Int(array) = self { array.is_valid(at).then(|| array.value(at)) } else { None }
    }

    fn float(&self, at: usize) -> Option<f64> {
        if let Self::Float(array) = self { array.is_valid(at).then(|| array.value(at)) } else { None }
    }

    fn bool(&self, at: usize) -> Option<bool> {
        if let Self::Bool(array) = self { array.is_valid(at).then(|| array.value(at)) } else { None }
    }

    fn bytes(&self, at: usize) -> Option<&[u8]> {
        if let Self::Bytes(array) = self { array.is_valid(at).then(|| array.value(at)) } else { None }
    }
}

/// A batch with its columns at hand.
#[derive(Debug)]
pub(crate) struct StoredBatch {
    topic: Topic,
    plan: &'static TopicColumns,
    batch: RecordBatch,
    columns: Vec<StoredColumn>,
}

impl StoredBatch {
    /// The batch has the plan's columns.
    pub(crate) fn new(topic: Topic, batch: RecordBatch) -> Self {
        let plan = plan(topic);
        let columns =
            plan.columns.iter().zip(batch.columns()).map(|(column, array)| StoredColumn::new(column.kind, array)).collect();
        Self { topic, plan, batch, columns }
    }

    pub(crate) fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Returns the memory of the columns, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.batch.get_array_memory_size()
    }

    fn common(&self, column: CommonColumn) -> &StoredColumn {
        &self.columns[self.plan.common(column)]
    }
}

/// The place of a row in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPlace {
    pub partition: i32,
    pub offset: i64,
    pub stamp: EventTime,
}

impl StoredBatch {
    /// Returns `Err` with the problem if a column of the row is missing or wrong.
    pub(crate) fn place(&self, at: usize) -> Result<RowPlace, String> {
        let need = |column: CommonColumn| self.common(column).int(at).ok_or_else(|| format!("row {at} has no {column:?}"));
        let offset = need(CommonColumn::Offset)?;
        let partition = i32::try_from(need(CommonColumn::Partition)?).map_err(|error| format!("row {at}: partition: {error}"))?;
        let stamp = self.common(CommonColumn::Stamp).time(at).ok_or_else(|| format!("row {at} has no kafka_timestamp"))?;
        Ok(RowPlace { partition, offset, stamp })
    }

    fn key(&self, at: usize) -> Option<&[u8]> {
        let text = self.common(CommonColumn::Key).text(at).map(str::as_bytes);
        text.or_else(|| self.common(CommonColumn::KeyBytes).bytes(at))
    }

    /// Finds the rows whose whole record is in the columns of this type's event, and nothing beside them: those of `plain` that
    /// stay true, of which the first is row `from`.
    fn keep_plain(&self, kind: EventType, from: usize, plain: &mut [bool]) {
        if self.topic.event_type() != kind {
            return plain.fill(false);
        }
        let mut keep = |column: CommonColumn, is_plain: fn(&StoredColumn, usize) -> bool| {
            let column = self.common(column);
            if !matches!(column, StoredColumn::Absent) {
                plain.iter_mut().enumerate().for_each(|(i, plain)| *plain &= is_plain(column, from + i));
            }
        };
        keep(CommonColumn::Tombstone, |column, at| column.bool(at) != Some(true));
        keep(CommonColumn::Value, |column, at| column.bytes(at).is_none());
        keep(CommonColumn::ExtraJson, |column, at| column.text(at).is_none());
        keep(CommonColumn::HeadersJson, |column, at| column.text(at).is_none());
        let types = self.common(CommonColumn::CeType);
        plain.iter_mut().enumerate().for_each(|(i, plain)| *plain &= types.text(from + i) == Some(kind.name()));
    }
}

/// Reads the events of the rows from `from` on into the events given. Returns which rows hold a good event in the plain form.
fn read_events<E: DecodableEvent>(
    batch: &StoredBatch,
    kind: EventType,
    from: usize,
    events: &mut [&mut E],
    read: fn(&mut [&mut E], &StoredBatch, usize, &mut [bool]),
) -> Vec<bool> {
    let mut plain = vec![true; events.len()];
    batch.keep_plain(kind, from, &mut plain);
    if plain.contains(&true) {
        read(events, batch, from, &mut plain);
    }
    for (event, plain) in events.iter().zip(&mut plain) {
        *plain = *plain && event.check().is_ok();
    }
    plain
}

/// Rows one after another, not taken out of their columns yet.
#[derive(Debug, Clone)]
pub struct StoredRun {
    batch: Arc<StoredBatch>,
    /// The first row in the batch.
    from: usize,
    places: Vec<RowPlace>,
}

impl StoredRun {
    pub(crate) fn new(batch: &Arc<StoredBatch>, from: usize, places: Vec<RowPlace>) -> Self {
        Self { batch: Arc::clone(batch), from, places }
    }

    pub fn topic(&self) -> Topic {
        self.batch.topic
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the rows one by one.
    pub fn rows(&self) -> impl Iterator<Item = StoredRow> {
        (0..self.len()).filter_map(|at| self.row(at))
    }

    pub(crate) fn row(&self, at: usize) -> Option<StoredRow> {
        let place = *self.places.get(at)?;
        Some(StoredRow { batch: Arc::clone(&self.batch), at: self.from + at, place })
    }

    /// Reads as many samples as there are events, column by column, into these events, whose memory is used again. False if a
    /// row holds no good event of this type in the plain form: the content of its event is of no use, and only
    /// [`crate::StoredRuns::row`] gives more.
    pub fn telemetry(&self, events: &mut [&mut GpuTelemetry]) -> Vec<bool> {
        let count = events.len().min(self.len());
        read_events(&self.batch, EventType::GpuTelemetry, self.from, &mut events[..count], gpu_telemetry)
    }

    /// Like [`Self::telemetry`].
    pub fn progress(&self, events: &mut [&mut TrainingProgress]) -> Vec<bool> {
        let count = events.len().min(self.len());
        read_events(&self.batch, EventType::TrainingProgress, self.from, &mut events[..count], training_progress)
    }
}

/// A row of the archive, not taken out of its columns yet.
#[derive(Debug, Clone)]
pub struct StoredRow {
    batch: Arc<StoredBatch>,
    at: usize,
    place: RowPlace,
}

impl StoredRow {
    pub fn topic(&self) -> Topic {
        self.batch.topic
    }

    pub fn partition(&self) -> i32 {
        self.place.partition
    }

    pub fn offset(&self) -> i64 {
        self.place.offset
    }

    /// Returns the log's append time.
    pub fn stamp(&self) -> EventTime {
        self.place.stamp
    }

    pub fn key(&self) -> Option<&[u8]> {
        self.batch.key(self.at)
    }

    /// Returns the reason if the headers that no column has are longer than an event may have: as long as its value.
    pub(crate) fn check_headers(&self) -> Result<(), DecodeError> {
        let bytes = self.batch.common(CommonColumn::HeadersJson).text(self.at).map_or(0, str::len);
        if bytes <= MAX_VALUE_BYTES {
            return Ok(());
        }
        let detail = format!("headers of {bytes} bytes are longer than {MAX_VALUE_BYTES}");
        Err(DecodeError { reason: DeadLetterReason::Malformed, field: None, detail })
    }

    /// Returns the record as it was, with those headers that were read.
    pub(crate) fn row(&self) -> Result<ArchiveRow, String> {
        crate::rebuild::row(self.batch.topic, &self.batch.batch, self.at)
    }

    /// Reads a sample into an event, whose memory is used again. False: the row holds no good event of this type in the
    /// plain form, and the content of the event is of no use; only [`crate::StoredRows::row`] gives more.
    pub fn telemetry(&self, event: &mut GpuTelemetry) -> bool {
        read_events(&self.batch, EventType::GpuTelemetry, self.at, &mut [event], gpu_telemetry) == [true]
    }

    /// Like [`Self::telemetry`].
    pub fn progress(&self, event: &mut TrainingProgress) -> bool {
        read_events(&self.batch, EventType::TrainingProgress, self.at, &mut [event], training_progress) == [true]
    }
}

/// A field of an event.
trait ReadColumn {
    /// Reads a column; returns `None` if it holds a value that the field cannot.
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()>;
}

impl ReadColumn for String {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        self.clear();
        self.push_str(column.text(at).unwrap_or_default());
        Some(())
    }
}

impl ReadColumn for Option<String> {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        match (column.text(at), &mut *self) {
            (Some(text), Some(old)) => {
                old.clear();
                old.push_str(text);
            }
            (text, _) => *self = text.map(str::to_owned),
        }
        Some(())
    }
}

impl ReadColumn for Option<f64> {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = column.float(at);
        self.is_none_or(f64::is_finite).then_some(())
    }
}

impl ReadColumn for EventTime {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        // Events without a time are read elsewhere.
        *self = column.time(at)?;
        Some(())
    }
}

impl ReadColumn for Option<EventTime> {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = column.time(at);
        Some(())
    }
}

impl ReadColumn for bool {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = column.bool(at).unwrap_or_default();
        Some(())
    }
}

impl ReadColumn for Option<bool> {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = column.bool(at);
        Some(())
    }
}

impl ReadColumn for u32 {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = column.int(at).unwrap_or_default().try_into().ok()?;
        Some(())
    }
}

impl ReadColumn for Option<u32> {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = column.int(at).map(u32::try_from).transpose().ok()?;
        Some(())
    }
}

impl ReadColumn for Option<u64> {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = column.int(at).map(u64::try_from).transpose().ok()?;
        Some(())
    }
}

/// Lists are stored in their columns as JSON.
impl<T: DeserializeOwned> ReadColumn for Option<Vec<T>> {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = match column.text(at) {
            None => None,
            Some(text) => Some(serde_json::from_str(text).ok()?),
        };
        Some(())
    }
}

fn named<'a, T: Deserialize<'a>>(name: &'a str) -> Option<T> {
    let name: StrDeserializer<'a, NoSuchName> = name.into_deserializer();
    T::deserialize(name).ok()
}

macro_rules! names {
    ($($kind:ty),+) => {
        $(
            impl ReadColumn for $kind {
                fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
                    *self = column.text(at).map_or_else(|| Some(Self::default()), named)?;
                    Some(())
                }
            }
        )+
    };
}

names!(Meter, Origin, JobLifecycle, CounterScope);

impl ReadColumn for Option<ShareMethod> {
    fn read(&mut self, column: &StoredColumn, at: usize) -> Option<()> {
        *self = match column.text(at) {
            None => None,
            Some(name) => Some(named(name)?),
        };
        Some(())
    }
}

/// Reads a column into a field of each event; false from the first row on that the field cannot hold.
fn read_column<E, F: ReadColumn>(
    column: &StoredColumn,
    from: usize,
    events: &mut [&mut E],
    good: &mut [bool],
    field: impl Fn(&mut E) -> &mut F,
) {
    let mut read_all = |column: &StoredColumn| {
        for (i, (event, good)) in events.iter_mut().zip(&mut *good).enumerate() {
            *good &= field(event).read(column, from + i).is_some();
        }
    };
    // Most columns of an event are absent in all rows: the compiler sees that there is nothing to look up.
    if matches!(column, StoredColumn::Absent) { read_all(&StoredColumn::Absent) } else { read_all(column) }
}

/// All fields, in the order of the columns.
macro_rules! fields {
    ($function:ident, $event:ident, $($field:ident),+ $(,)?) => {
        fn $function(events: &mut [&mut $event], batch: &StoredBatch, from: usize, good: &mut [bool]) {
            let mut columns = batch.columns.iter();
            $(match columns.next() {
                Some(column) => read_column(column, from, events, good, |event| &mut event.$field),
                None => good.fill(false),
            })+
        }
    };
}

eadt_schemas::gpu_telemetry_fields!(fields);
eadt_schemas::training_progress_fields!(fields);

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! names {
        ($function:ident, $event:ident, $($field:ident),+ $(,)?) => {
            &[$(stringify!($field)),+]
        };
    }

    #[test]
    fn fields_are_in_the_order_of_the_columns() {
        let telemetry: &[&str] = eadt_schemas::gpu_telemetry_fields!(names);
        let progress: &[&str] = eadt_schemas::training_progress_fields!(names);
        for (topic, names) in [(Topic::GpuTelemetry, telemetry), (Topic::TrainingProgress, progress)] {
            let plan = plan(topic);
            let columns: Vec<&str> = plan.columns[..plan.event_columns].iter().map(|column| column.name.as_str()).collect();
            assert_eq!(columns, names);
        }
    }
}
