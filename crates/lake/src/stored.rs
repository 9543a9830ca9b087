//! Rows as they lie in their columns, and the events that there are many of read from there, without JSON in between.
//!
//! What the columns do not hold exactly is not read here: such a row is built first ([`StoredRow::row`]) and decoded like any
//! other. Where this answers it answers what decoding the built row would.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};
use eadt_schemas::decode::DecodableEvent;
use eadt_schemas::v1::{CounterScope, GpuTelemetry, JobLifecycle, Meter, Origin, ShareMethod, TrainingProgress};
use eadt_schemas::{EventTime, EventType, Topic};
use serde::Deserialize;
use serde::de::value::{Error as NoSuchName, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::plan::{ColumnType, CommonColumn, TopicColumns, plan};
use crate::row::ArchiveRow;

/// A column of one batch.
#[derive(Debug)]
enum StoredColumn {
    /// Not a single value.
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

    /// Memory of the columns.
    pub(crate) fn bytes(&self) -> usize {
        self.batch.get_array_memory_size()
    }

    fn common(&self, column: CommonColumn) -> &StoredColumn {
        &self.columns[self.plan.common(column)]
    }
}

/// A row of the archive, not taken out of its columns yet.
#[derive(Debug, Clone)]
pub struct StoredRow {
    opened: Arc<StoredBatch>,
    at: usize,
    partition: i32,
    offset: i64,
    stamp: EventTime,
}

impl StoredRow {
    /// Returns `Err` with the problem if a column of the row is missing or wrong.
    pub(crate) fn new(opened: &Arc<StoredBatch>, at: usize) -> Result<Self, String> {
        let need = |column: CommonColumn| opened.common(column).int(at).ok_or_else(|| format!("row {at} has no {column:?}"));
        let offset = need(CommonColumn::Offset)?;
        let partition = i32::try_from(need(CommonColumn::Partition)?).map_err(|error| format!("row {at}: partition: {error}"))?;
        let stamp = opened.common(CommonColumn::Stamp).time(at).ok_or_else(|| format!("row {at} has no kafka_timestamp"))?;
        Ok(Self { opened: Arc::clone(opened), at, partition, offset, stamp })
    }

    pub fn topic(&self) -> Topic {
        self.opened.topic
    }

    pub fn partition(&self) -> i32 {
        self.partition
    }

    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// The log's append time.
    pub fn stamp(&self) -> EventTime {
        self.stamp
    }

    pub fn key(&self) -> Option<&[u8]> {
        let text = self.opened.common(CommonColumn::Key).text(self.at).map(str::as_bytes);
        text.or_else(|| self.opened.common(CommonColumn::KeyBytes).bytes(self.at))
    }

    /// The record as it was.
    pub(crate) fn row(&self) -> Result<ArchiveRow, String> {
        crate::rebuild::row(self.opened.topic, &self.opened.batch, self.at)
    }

    /// Reads a sample into an event, whose memory is used again. False: the row holds no good event of this type in the
    /// plain form, and the content of the event is of no use; only [`crate::StoredRows::row`] gives more.
    pub fn telemetry(&self, event: &mut GpuTelemetry) -> bool {
        self.is_plain(EventType::GpuTelemetry) && gpu_telemetry(event, &self.opened, self.at).is_some() && event.check().is_ok()
    }

    /// As [`Self::telemetry`].
    pub fn progress(&self, event: &mut TrainingProgress) -> bool {
        self.is_plain(EventType::TrainingProgress)
            && training_progress(event, &self.opened, self.at).is_some()
            && event.check().is_ok()
    }

    /// Whether the whole record is in the columns of this type's event, and nothing beside them.
    fn is_plain(&self, kind: EventType) -> bool {
        let (opened, at) = (&*self.opened, self.at);
        opened.topic.event_type() == kind
            && opened.common(CommonColumn::CeType).text(at) == Some(kind.name())
            && opened.common(CommonColumn::Tombstone).bool(at) != Some(true)
            && opened.common(CommonColumn::Value).bytes(at).is_none()
            && [CommonColumn::ExtraJson, CommonColumn::HeadersJson].iter().all(|column| opened.common(*column).text(at).is_none())
    }
}

/// A field of an event.
trait ReadColumn {
    /// `None`: the column holds what the field cannot.
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

/// All fields, in the order of the columns.
macro_rules! fields {
    ($function:ident, $event:ident, $($field:ident),+ $(,)?) => {
        fn $function(event: &mut $event, opened: &StoredBatch, at: usize) -> Option<()> {
            let mut columns = opened.columns.iter();
            $(event.$field.read(columns.next()?, at)?;)+
            Some(())
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
    fn fields_stand_in_the_order_of_the_columns() {
        let telemetry: &[&str] = eadt_schemas::gpu_telemetry_fields!(names);
        let progress: &[&str] = eadt_schemas::training_progress_fields!(names);
        for (topic, names) in [(Topic::GpuTelemetry, telemetry), (Topic::TrainingProgress, progress)] {
            let plan = plan(topic);
            let columns: Vec<&str> = plan.columns[..plan.event_columns].iter().map(|column| column.name.as_str()).collect();
            assert_eq!(columns, names);
        }
    }
}
