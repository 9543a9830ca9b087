//! One Parquet file: batches to bytes, and back.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array};
use arrow::compute::interleave;
use arrow::datatypes::{Field, Int64Type, Schema, TimestampMicrosecondType};
use arrow::error::ArrowError;
use bytes::Bytes;
use eadt_schemas::{EventTime, Topic};
use parquet::arrow::ArrowWriter;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::{ColumnChunkMetaData, KeyValue, ParquetMetaData, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::Length;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnPath;

use crate::bounds::{self, LongTexts, Refusal};
use crate::checksum;
use crate::error::{LakeError, Result};
use crate::identity::{self, FileOwner};
use crate::layout::ArchiveFileName;
use crate::plan::{ColumnType, CommonColumn, TopicColumns, plan};
use crate::store::ParquetInput;

/// Rows in a row group: `DuckDB`'s own size, and small enough to skip by time.
pub(crate) const ROW_GROUP_ROWS: usize = 122_880;

/// The column of the offsets.
const OFFSET: &str = "kafka_offset";
const FORMAT: &str = "eadt.format";
const FORMAT_VERSION: &str = "1";
const PLACE: &str = "eadt.place";
/// Offsets inside the range that the log had deleted before they could be archived, as `[[from, to], …]`.
const DELETED: &str = "eadt.deleted";
/// The row with the greatest offset, as `[offset, microseconds of its append time]`: distinguishes the log of this file from
/// another one.
const NEWEST: &str = "eadt.newest";

/// `created_by` of files that always have a checksum, and the id of an archive that has one. Those of earlier versions have `eadt`
/// alone.
const CREATED_BY: &str = "eadt version 2";

/// Rows that are written at a time.
pub(crate) const WRITE_ROWS: usize = ROW_GROUP_ROWS / 4;

/// Facts that a footer states beside those about the rows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileOrigin<'a> {
    /// Id of the archive that the file is written for.
    pub archive_id: Option<&'a str>,
    /// See [`FileFooter::deleted`].
    pub deleted: &'a [(i64, i64)],
}

/// Returns the file's bytes: rows sorted by event time, then offset. Equal rows give equal bytes.
pub(crate) fn encode(name: &ArchiveFileName, batches: &[RecordBatch], origin: FileOrigin<'_>) -> Result<Bytes> {
    let plan = plan(name.topic);
    let order = RowOrder::of(plan, batches);
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    let mut writer = FileWriter::new(name, origin, order.facts, rows)?;
    if order.sorted {
        for batch in batches {
            writer.write(batch)?;
        }
    } else {
        for part in order.rows.chunks(WRITE_ROWS) {
            let places: Vec<(usize, usize)> = part.iter().map(|key| (key.batch as usize, key.row as usize)).collect();
            writer.write_rows(batches, &places)?;
        }
    }
    writer.finish()
}

/// Facts about the rows that the footer states before they are written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RowFacts {
    /// Every row has an event time.
    pub timed: bool,
    /// Offset and append time, in microseconds, of the row with the greatest offset.
    pub newest: Option<(i64, i64)>,
}

/// Writes rows, which come sorted by event time, then offset.
pub(crate) struct FileWriter {
    path: String,
    plan: &'static TopicColumns,
    writer: ArrowWriter<Vec<u8>>,
    /// Bytes of the texts so far.
    text_bytes: u64,
}

impl FileWriter {
    /// Builds the batch. `rows` is the largest number of rows.
    pub(crate) fn new(name: &ArchiveFileName, origin: FileOrigin<'_>, facts: RowFacts, rows: usize) -> Result<Self> {
        let (path, plan) = (name.path(), plan(name.topic));
        let sink = Vec::with_capacity(64 * rows.min(1 << 20));
        let properties = properties(plan, name, origin, facts);
        let writer = ArrowWriter::try_new(sink, plan.schema.clone(), Some(properties)).map_err(|e| not_encoded(&path, &e))?;
        Ok(Self { path, plan, writer, text_bytes: 0 })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.text_bytes += batch_text_bytes(batch);
        self.writer.write(batch).map_err(|error| not_encoded(&self.path, &error))
    }

    /// Writes the rows at these places: of a batch and in it.
    pub(crate) fn write_rows(&mut self, batches: &[RecordBatch], places: &[(usize, usize)]) -> Result<()> {
        let batch = pick(self.plan, batches, places).map_err(|error| not_encoded(&self.path, &error))?;
        self.write(&batch)
    }

    /// Returns the number of bytes of the texts so far.
    pub(crate) fn text_bytes(&self) -> u64 {
        self.text_bytes
    }

    /// Returns the bytes of the file.
    pub(crate) fn finish(self) -> Result<Bytes> {
        let mut bytes = self.writer.into_inner().map_err(|error| not_encoded(&self.path, &error))?;
        if !checksum::seal(&mut bytes) {
            return Err(not_encoded(&self.path, &"its footer has no place for the checksum"));
        }
        Ok(bytes.into())
    }
}

fn not_encoded(path: &str, error: &dyn std::fmt::Display) -> LakeError {
    LakeError::Encode { path: path.to_owned(), detail: error.to_string() }
}

/// Returns the rows at these places; columns without any value, of which there are many, cost nothing.
fn pick(plan: &TopicColumns, batches: &[RecordBatch], places: &[(usize, usize)]) -> Result<RecordBatch, ArrowError> {
    let arrays = plan.schema.fields().iter().enumerate().map(|(column, field)| {
        let arrays: Vec<&dyn Array> = batches.iter().map(|batch| &**batch.column(column)).collect();
        if arrays.iter().all(|array| array.null_count() == array.len()) {
            return Ok(new_null_array(field.data_type(), places.len()));
        }
        interleave(&arrays, places)
    });
    let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(plan.schema.clone(), arrays)
}

/// Sort key of rows: event time, or append time if there is none, and offset.
pub(crate) type RowKey = (i64, i64);

/// Returns the keys of a batch's rows.
pub(crate) fn row_keys(plan: &TopicColumns, batch: &RecordBatch) -> Vec<RowKey> {
    let time = batch.column(plan.common(CommonColumn::CeTime)).as_primitive::<TimestampMicrosecondType>();
    let stamp = batch.column(plan.common(CommonColumn::Stamp)).as_primitive::<TimestampMicrosecondType>();
    let offset = batch.column(plan.common(CommonColumn::Offset)).as_primitive::<Int64Type>();
    let time_of = |row| if time.is_null(row) { stamp.value(row) } else { time.value(row) };
    (0..batch.num_rows()).map(|row| (time_of(row), offset.value(row))).collect()
}

/// Returns the facts for the footer of these rows.
pub(crate) fn row_facts(plan: &TopicColumns, batch: &RecordBatch) -> RowFacts {
    let time = batch.column(plan.common(CommonColumn::CeTime));
    let stamp = batch.column(plan.common(CommonColumn::Stamp)).as_primitive::<TimestampMicrosecondType>();
    let offset = batch.column(plan.common(CommonColumn::Offset)).as_primitive::<Int64Type>();
    let newest = (0..batch.num_rows()).map(|row| (offset.value(row), stamp.value(row))).max();
    RowFacts { timed: time.null_count() == 0, newest }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RowSortKey {
    key: RowKey,
    batch: u32,
    row: u32,
}

struct RowOrder {
    rows: Vec<RowSortKey>,
    sorted: bool,
    facts: RowFacts,
}

impl RowOrder {
    fn of(plan: &TopicColumns, batches: &[RecordBatch]) -> Self {
        let mut rows = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
        let mut facts = RowFacts { timed: true, newest: None };
        for (index, batch) in batches.iter().enumerate() {
            facts.extend(row_facts(plan, batch));
            let keys = row_keys(plan, batch).into_iter().enumerate();
            rows.extend(keys.map(|(row, key)| RowSortKey { key, batch: index as u32, row: row as u32 }));
        }
        let sorted = rows.is_sorted();
        if !sorted {
            rows.sort_unstable();
        }
        Self { rows, sorted, facts }
    }
}

impl RowFacts {
    /// Adds those of other rows.
    pub(crate) fn extend(&mut self, other: Self) {
        self.timed &= other.timed;
        self.newest = self.newest.max(other.newest);
    }
}

fn properties(plan: &TopicColumns, name: &ArchiveFileName, origin: FileOrigin<'_>, facts: RowFacts) -> WriterProperties {
    let mut metadata =
        vec![KeyValue::new(FORMAT.to_owned(), FORMAT_VERSION.to_owned()), KeyValue::new(PLACE.to_owned(), name.path())];
    metadata.push(KeyValue::new(checksum::KEY.to_owned(), checksum::UNKNOWN.to_owned()));
    if let Some(id) = origin.archive_id {
        metadata.push(KeyValue::new(identity::KEY.to_owned(), id.to_owned()));
    }
    if !origin.deleted.is_empty() {
        metadata.push(KeyValue::new(DELETED.to_owned(), serde_json::json!(origin.deleted).to_string()));
    }
    if let Some(newest) = facts.newest {
        metadata.push(KeyValue::new(NEWEST.to_owned(), serde_json::json!(newest).to_string()));
    }
    let by_time = SortingColumn { column_idx: plan.common(CommonColumn::CeTime) as i32, descending: false, nulls_first: false };
    let mut builder = WriterProperties::builder()
        .set_created_by(CREATED_BY.to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3).expect("3 is a level")))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(metadata))
        .set_sorting_columns(facts.timed.then(|| vec![by_time]));
    for (index, column) in plan.columns.iter().enumerate() {
        let path = ColumnPath::from(column.name.as_str());
        let unique = index == plan.common(CommonColumn::CeId);
        // People search rows by these columns. The least and greatest values of other texts cost much and skip nothing.
        let sought = index == plan.common(CommonColumn::Key) || matches!(column.name.as_str(), "workload" | "device");
        if matches!(column.kind, ColumnType::Text | ColumnType::Json | ColumnType::Bytes) && !sought {
            builder = builder.set_column_statistics_enabled(path.clone(), EnabledStatistics::None);
        }
        builder = match column.kind {
            ColumnType::Int | ColumnType::Time => builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED)
                .set_column_statistics_enabled(path, EnabledStatistics::Page),
            ColumnType::Float => {
                builder.set_column_dictionary_enabled(path.clone(), false).set_column_encoding(path, Encoding::BYTE_STREAM_SPLIT)
            }
            ColumnType::Text if unique => {
                builder.set_column_dictionary_enabled(path.clone(), false).set_column_encoding(path, Encoding::DELTA_BYTE_ARRAY)
            }
            ColumnType::Bytes => builder.set_column_dictionary_enabled(path, false),
            ColumnType::Text | ColumnType::Json | ColumnType::Bool => builder,
        };
    }
    builder.build()
}

/// Offset and append time of a newest row; `None` if its file does not record it.
pub type NewestRow = Option<(i64, EventTime)>;

/// The content of a file's footer.
#[derive(Debug)]
pub(crate) struct FileFooter {
    /// The archive that the file was written for.
    pub owner: FileOwner,
    pub deleted: Vec<(i64, i64)>,
    /// Offset and append time of the row with the greatest offset; files of older versions do not record it.
    pub newest: NewestRow,
    pub rows: u64,
    /// Every row has an event time, as far as is recorded.
    pub timed: bool,
    /// No row is of an earlier time; the least number if that is not recorded.
    pub least_time: i64,
}

impl FileFooter {
    /// Checks that the file is ours, and the one that its name states: the name under which it was written, and the partition and
    /// offsets of its rows.
    pub(crate) fn of(name: &ArchiveFileName, metadata: &ParquetMetaData) -> Result<Self> {
        let path = name.path();
        let entries = metadata.file_metadata().key_value_metadata();
        let entry =
            |key: &str| entries.into_iter().flatten().find(|entry| entry.key == key).and_then(|entry| entry.value.as_deref());
        match (entry(FORMAT), entry(PLACE)) {
            (Some(FORMAT_VERSION), Some(place)) if place == path => {}
            (Some(FORMAT_VERSION), Some(place)) => {
                return Err(LakeError::Misnamed { detail: format!("it was written as {place}"), path });
            }
            (Some(other), _) => return Err(LakeError::Newer { column: format!("format {other}"), path }),
            (None, _) => return Err(LakeError::Foreign { path, detail: "another program wrote it".to_owned() }),
        }
        if is_of_this_version(metadata) && entry(checksum::KEY).is_none() {
            return Err(damaged(&path, &NO_CHECKSUM));
        }
        let bounds = [
            (CommonColumn::Offset, "offsets", name.first..=name.last),
            (CommonColumn::Partition, "partitions", name.partition.into()..=name.partition.into()),
        ];
        for (column, what, allowed) in bounds {
            for (least, greatest) in ranges(name.topic, metadata, column) {
                if !allowed.contains(&least) || !allowed.contains(&greatest) {
                    let detail = format!("it has {what} {least} to {greatest}");
                    return Err(LakeError::Misnamed { path, detail });
                }
            }
        }
        let deleted = entry(DELETED).map(serde_json::from_str).transpose();
        let newest = entry(NEWEST).map(serde_json::from_str).transpose();
        let newest = newest.map_err(|error| damaged(&path, &error))?;
        let (least_time, timed) = times(name.topic, metadata);
        Ok(Self {
            owner: match entry(identity::KEY) {
                Some(id) => FileOwner::Archive(id.to_owned()),
                None if is_of_this_version(metadata) => FileOwner::NoArchive,
                None => FileOwner::Unknown,
            },
            rows: metadata.file_metadata().num_rows().try_into().unwrap_or(0),
            timed,
            least_time,
            deleted: deleted.map_err(|error| damaged(&path, &error))?.unwrap_or_default(),
            newest: newest.map(|(offset, stamp)| (offset, EventTime::from_micros(stamp))),
        })
    }
}

const NO_CHECKSUM: &str = "its footer lacks the checksum that its writer always writes";

/// Returns whether the version that wrote a file always writes a checksum, and the id of an archive that has one: a footer without a
/// checksum is damaged.
fn is_of_this_version(metadata: &ParquetMetaData) -> bool {
    metadata.file_metadata().created_by() == Some(CREATED_BY)
}

/// Returns the least and greatest value of a column of integers in each row group that records them.
fn ranges(topic: Topic, metadata: &ParquetMetaData, column: CommonColumn) -> impl Iterator<Item = (i64, i64)> {
    let plan = plan(topic);
    let name = &plan.columns[plan.common(column)].name;
    metadata.row_groups().iter().flat_map(parquet::file::metadata::RowGroupMetaData::columns).filter_map(move |chunk| match chunk
        .statistics()
    {
        Some(Statistics::Int64(values)) if chunk.column_path().string() == *name => {
            Some((*values.min_opt()?, *values.max_opt()?))
        }
        _ => None,
    })
}

/// Returns a time before which no row is, in microseconds, and whether every row has an event time, as far as that is recorded.
fn times(topic: Topic, metadata: &ParquetMetaData) -> (i64, bool) {
    let plan = plan(topic);
    let (mut least, mut timed) = (i64::MAX, true);
    for group in metadata.row_groups() {
        let statistics = |column: CommonColumn| {
            let name = &plan.columns[plan.common(column)].name;
            let chunk = group.columns().iter().find(|chunk| chunk.column_path().string() == *name)?;
            if let Some(Statistics::Int64(values)) = chunk.statistics() { Some(values) } else { None }
        };
        let time = statistics(CommonColumn::CeTime);
        let has_all = time.is_some_and(|values| values.null_count_opt() == Some(0));
        let of_event = time.and_then(|values| values.min_opt().copied());
        let of_append = || statistics(CommonColumn::Stamp).and_then(|values| values.min_opt().copied());
        // A group without any event time has no least one.
        let least_of_group = if has_all { of_event } else { of_append().map(|stamp| stamp.min(of_event.unwrap_or(stamp))) };
        let is_known = has_all || time.is_some();
        least = least.min(least_of_group.filter(|_| is_known).unwrap_or(i64::MIN));
        timed &= has_all;
    }
    (least, timed)
}

/// A file of the archive, opened and recognised.
#[derive(Debug)]
pub(crate) struct ArchiveFileReader {
    topic: Topic,
    path: String,
    owner: FileOwner,
    input: ParquetInput,
    metadata: ArrowReaderMetadata,
    /// It has a checksum, and its bytes are those that were written.
    is_verified: bool,
    long_texts: LongTexts,
}

impl ArchiveFileReader {
    /// `long_texts`: those of the files of the archive that were read before.
    pub(crate) fn open(name: &ArchiveFileName, input: ParquetInput, long_texts: LongTexts) -> Result<Self> {
        let path = name.path();
        let is_verified = checksum::verify(&input).map_err(|detail| damaged(&path, &detail))?;
        let footer = checksum::footer(&input).map_err(|detail| damaged(&path, &detail))?;
        bounds::check_schema(&footer).map_err(|refusal| refused(&path, refusal))?;
        let metadata = ArrowReaderMetadata::load(&input, ArrowReaderOptions::new()).map_err(|error| damaged(&path, &error))?;
        let owner = FileFooter::of(name, metadata.metadata())?.owner;
        // The key may be there and its value of another form.
        if !is_verified && is_of_this_version(metadata.metadata()) {
            return Err(damaged(&path, &NO_CHECKSUM));
        }
        let reader = Self { topic: name.topic, path, owner, input, metadata, is_verified, long_texts };
        let groups = reader.metadata.metadata().row_groups();
        let in_groups = groups.iter().map(|group| u64::try_from(group.num_rows()).unwrap_or(0)).fold(0, u64::saturating_add);
        reader.check_rows(reader.rows().max(in_groups))?;
        let chunks = bounds::check_chunks(reader.metadata.metadata(), reader.file_bytes());
        chunks.map_err(|refusal| refused(&reader.path, refusal))?;
        Ok(reader)
    }

    /// Returns the archive that the file was written for.
    pub(crate) fn owner(&self) -> &FileOwner {
        &self.owner
    }

    pub(crate) fn rows(&self) -> u64 {
        self.metadata.metadata().file_metadata().num_rows().try_into().unwrap_or(0)
    }

    fn file_bytes(&self) -> u64 {
        Length::len(&self.input)
    }

    fn check_rows(&self, rows: u64) -> Result<()> {
        if rows <= bounds::max_rows(self.file_bytes()) {
            return Ok(());
        }
        let detail = format!("it has more than {} rows in {} bytes", bounds::max_rows(self.file_bytes()), self.file_bytes());
        Err(LakeError::TooLarge { path: self.path.clone(), detail })
    }

    /// Returns only the offsets, in the order of the file.
    pub(crate) fn offsets(&self) -> Result<Vec<i64>> {
        let (reader, path) = (self, &self.path);
        check_columns(reader.topic, path, reader.metadata.schema())?;
        let mask = ProjectionMask::columns(reader.metadata.parquet_schema(), [OFFSET]);
        // A group without rows need not have pages.
        let groups = reader.metadata.metadata().row_groups().iter().enumerate();
        let groups: Vec<usize> = groups.filter(|(_, group)| group.num_rows() != 0).map(|(group, _)| group).collect();
        for &group in &groups {
            let rows = bounds::batch_rows(&reader.input, reader.metadata.metadata(), group, |name| name == OFFSET);
            rows.map_err(|refusal| refused(path, refusal))?;
        }
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(reader.input.clone(), reader.metadata.clone());
        let mut offsets = Vec::new();
        let batches = builder.with_row_groups(groups).with_projection(mask).build().map_err(|error| damaged(path, &error))?;
        for batch in batches {
            let batch = batch.map_err(|error| damaged(path, &error))?;
            let column = batch.columns().first().and_then(|column| column.as_primitive_opt::<Int64Type>());
            let column = column.ok_or_else(|| damaged(path, &"kafka_offset is not a column of integers"))?;
            if column.null_count() > 0 {
                return Err(damaged(path, &"a row has no offset"));
            }
            offsets.extend_from_slice(column.values());
            // The footer may declare less than there is.
            reader.check_rows(offsets.len() as u64)?;
        }
        check_row_count(path, offsets.len() as u64, reader.rows())?;
        Ok(offsets)
    }

    /// Returns the batches, with exactly the columns of this version. None has more than [`bounds::BATCH_BYTES`] of texts.
    pub(crate) fn batches(self) -> Result<FileBatches> {
        self.batches_of(ReadColumns::All)
    }

    /// Like [`Self::batches`]; columns that are not read are null.
    pub(crate) fn batches_of(self, columns: ReadColumns) -> Result<FileBatches> {
        check_columns(self.topic, &self.path, self.metadata.schema())?;
        let stated_rows = self.rows();
        let Self { topic, path, input, metadata, is_verified, long_texts, .. } = self;
        let skipped = columns.skipped(plan(topic));
        let trusts_counts = is_verified && columns != ReadColumns::All;
        Ok(FileBatches {
            topic,
            path,
            input,
            metadata,
            skipped,
            trusts_counts,
            next_group: 0,
            reader: None,
            rows: 0,
            stated_rows,
            text_bytes: 0,
            long_texts,
        })
    }
}

/// The columns that are read of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadColumns {
    All,
    /// All but those of the envelope, of which the type is read.
    WithoutEnvelope,
}

impl ReadColumns {
    /// Returns the names of the columns that are not read.
    fn skipped(self, plan: &TopicColumns) -> Vec<&str> {
        let envelope =
            [CommonColumn::CeSource, CommonColumn::CeId, CommonColumn::CeTime, CommonColumn::CeSubject, CommonColumn::Topic];
        match self {
            Self::All => Vec::new(),
            Self::WithoutEnvelope => envelope.iter().map(|column| plan.columns[plan.common(*column)].name.as_str()).collect(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct FileBatches {
    topic: Topic,
    path: String,
    input: ParquetInput,
    metadata: ArrowReaderMetadata,
    skipped: Vec<&'static str>,
    /// A column of which the footer counts nulls only is not read. Without a checksum the footer may be wrong.
    pub(crate) trusts_counts: bool,
    next_group: usize,
    /// Reader of the row group before the next one.
    reader: Option<ParquetRecordBatchReader>,
    /// Rows so far.
    rows: u64,
    /// Rows that the footer states.
    stated_rows: u64,
    /// Bytes of the texts so far.
    text_bytes: u64,
    long_texts: LongTexts,
}

impl FileBatches {
    /// Returns the number of bytes of the file.
    pub(crate) fn file_bytes(&self) -> u64 {
        Length::len(&self.input)
    }

    /// Counts a batch. Returns an error if the texts of the archive so far are more than its files may have.
    fn count(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        self.text_bytes += batch_text_bytes(batch);
        let counted = self.long_texts.count(&self.path, self.text_bytes, self.file_bytes());
        counted.map_err(|detail| LakeError::TooLarge { path: self.path.clone(), detail })
    }

    fn open_group(&self, group: usize) -> Result<ParquetRecordBatchReader> {
        let chunks = self.metadata.metadata().row_group(group);
        let is_null = |chunk: &ColumnChunkMetaData| {
            let nulls = chunk.statistics().and_then(Statistics::null_count_opt);
            self.trusts_counts && nulls.is_some_and(|nulls| u64::try_from(chunks.num_rows()) == Ok(nulls))
        };
        let read: BTreeSet<String> = chunks
            .columns()
            .iter()
            .filter(|chunk| !is_null(chunk))
            .map(|chunk| chunk.column_path().string())
            .filter(|name| !self.skipped.contains(&name.as_str()))
            .collect();
        let rows = bounds::batch_rows(&self.input, self.metadata.metadata(), group, |name| read.contains(name));
        let rows = rows.map_err(|refusal| refused(&self.path, refusal))?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(self.input.clone(), self.metadata.clone());
        let mask = ProjectionMask::columns(self.metadata.parquet_schema(), read.iter().map(String::as_str));
        let reader = builder.with_row_groups(vec![group]).with_projection(mask).with_batch_size(rows).build();
        reader.map_err(|error| damaged(&self.path, &error))
    }
}

impl Iterator for FileBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.reader.as_mut().and_then(Iterator::next) {
                let batch = batch.map_err(|error| damaged(&self.path, &error));
                return Some(batch.and_then(|batch| {
                    self.count(&batch)?;
                    conform(self.topic, &self.path, &batch)
                }));
            }
            if self.next_group >= self.metadata.metadata().num_row_groups() {
                let is_end = self.next_group < usize::MAX;
                self.next_group = usize::MAX;
                self.reader = None;
                return if is_end { check_row_count(&self.path, self.rows, self.stated_rows).err().map(Err) } else { None };
            }
            self.next_group += 1;
            match self.open_group(self.next_group - 1) {
                Ok(reader) => self.reader = Some(reader),
                Err(error) => {
                    self.next_group = usize::MAX;
                    self.reader = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Returns the bytes of the values of a column of texts or bytes; 0 for other columns.
/// Bytes of the texts of a batch.
pub(crate) fn batch_text_bytes(batch: &RecordBatch) -> u64 {
    batch.columns().iter().map(text_bytes).sum()
}

fn text_bytes(column: &ArrayRef) -> u64 {
    let of = |offsets: &[i32]| match offsets {
        [first, .., last] => u64::try_from(last - first).unwrap_or(0),
        _ => 0,
    };
    if let Some(texts) = column.as_string_opt::<i32>() {
        return of(texts.value_offsets());
    }
    column.as_binary_opt::<i32>().map_or(0, |bytes| of(bytes.value_offsets()))
}

pub(crate) fn refused(path: &str, refusal: Refusal) -> LakeError {
    let path = path.to_owned();
    match refusal {
        Refusal::Damaged(detail) => LakeError::Damaged { path, detail },
        Refusal::Foreign(detail) => LakeError::Foreign { path, detail },
        Refusal::TooLarge(detail) => LakeError::TooLarge { path, detail },
    }
}

/// Refuses a file that has another number of rows than its footer states: some were lost, or are of another file.
fn check_row_count(path: &str, rows: u64, stated: u64) -> Result<()> {
    if rows == stated { Ok(()) } else { Err(damaged(path, &format!("it has {rows} rows, and its footer states {stated}"))) }
}

/// Refuses columns that this version does not know, or knows as others.
fn check_columns(topic: Topic, path: &str, there: &Schema) -> Result<()> {
    let plan = plan(topic);
    let mut names = BTreeSet::new();
    for field in there.fields() {
        let Ok(known) = plan.schema.field_with_name(field.name()) else {
            return Err(LakeError::Newer { path: path.to_owned(), column: field.name().clone() });
        };
        let detail = if known.data_type() != field.data_type() {
            format!("column {} is {}, not {}", field.name(), field.data_type(), known.data_type())
        } else if !names.insert(field.name()) {
            format!("column {} is there twice", field.name())
        } else {
            continue;
        };
        return Err(LakeError::Foreign { path: path.to_owned(), detail });
    }
    Ok(())
}

/// Columns that an older version did not have are null; the others are those of [`check_columns`].
fn conform(topic: Topic, path: &str, batch: &RecordBatch) -> Result<RecordBatch> {
    let plan = plan(topic);
    let column = |field: &Arc<Field>| match batch.column_by_name(field.name()) {
        None => new_null_array(field.data_type(), batch.num_rows()),
        Some(array) => Arc::clone(array),
    };
    let arrays: Vec<ArrayRef> = plan.schema.fields().iter().map(column).collect();
    RecordBatch::try_new(plan.schema.clone(), arrays).map_err(|error| damaged(path, &error))
}

pub(crate) fn damaged(path: &str, error: &dyn std::fmt::Display) -> LakeError {
    LakeError::Damaged { path: path.to_owned(), detail: error.to_string() }
}
