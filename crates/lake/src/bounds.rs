//! Limit of the memory that a file may take while it is read: a few kilobytes of Parquet can hold gigabytes.
//!
//! Sizes are taken from the headers of the pages, which the Parquet reader keeps to, before a page is unpacked; from
//! dictionaries, of which one long text may be in every row; and, if values share prefixes, from the lengths of these and of
//! the rest. No footer states how long texts are, and one that did could lie.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::{Encoding, Type as PhysicalType};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};

use crate::store::ParquetInput;
use crate::thrift::{I32, LIST, STRUCT, ThriftReader};

/// Rows in a batch, at most.
pub(crate) const BATCH_ROWS: usize = 1_024;
/// Texts and bytes of one batch, and thus of one row, at most. Records of Kafka have one MiB, unless a broker is set otherwise.
pub(crate) const BATCH_BYTES: u64 = 32 << 20;
/// Unpacked pages of all columns at a time: a dictionary and a page each. Writers fill pages up to one MiB.
const MAX_UNPACKED_PAGE_BYTES: u64 = 256 << 20;
/// Rows that a byte of a file may hold. Each row has an id, and takes some bytes.
const ROWS_PER_FILE_BYTE: u64 = 64;
/// Batches that wait for rows before them, in bytes: so many, or this multiple of their file.
const WAITING_BYTES: u64 = 256 << 20;
const WAITING_PER_FILE_BYTE: u64 = 256;
/// Bytes of the texts of all rows of a file: this multiple of the file; and so many of all files of an archive that have more than
/// that. A text of a dictionary may be in every row, and readers keep some of them. Rows of ours have some hundred bytes of texts,
/// and take a byte of the file at least.
const TEXT_BYTES: u64 = 512 << 20;
const TEXT_PER_FILE_BYTE: u64 = 1_024;
/// Columns that a footer may have, ours and those of later versions.
const MAX_COLUMNS: u64 = 4_096;
/// Numbers in a block of delta-packed ones, and the parts of such a block, at most. Writers have 128 or 256 in four parts.
const MAX_BLOCK: u64 = 1 << 20;
const MAX_BLOCK_PARTS: u64 = 4_096;

/// Returns rows that a file may have, by its length in bytes.
pub(crate) fn max_rows(file_bytes: u64) -> u64 {
    file_bytes.saturating_mul(ROWS_PER_FILE_BYTE)
}

/// Returns the number of bytes of batches that may wait for rows before them, by the length of their file.
pub(crate) fn max_waiting_bytes(file_bytes: u64) -> u64 {
    file_bytes.saturating_mul(WAITING_PER_FILE_BYTE).max(WAITING_BYTES)
}

/// Returns whether the texts of all rows of a file have more bytes than those of rows of ours in a file of its length.
pub(crate) fn are_texts_long(text_bytes: u64, file_bytes: u64) -> bool {
    text_bytes > file_bytes.saturating_mul(TEXT_PER_FILE_BYTE)
}

/// The bytes of the texts of an archive that were read, of each file with long ones. A file that is read twice is counted once.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongTexts(Arc<Mutex<BTreeMap<String, u64>>>);

impl LongTexts {
    /// Sets the bytes of a file so far. Returns the reason if those of all files are too many.
    pub(crate) fn count(&self, path: &str, text_bytes: u64, file_bytes: u64) -> Result<(), String> {
        if !are_texts_long(text_bytes, file_bytes) {
            return Ok(());
        }
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = files.entry(path.to_owned()).or_default();
        *bytes = text_bytes.max(*bytes);
        if files.values().copied().fold(0, u64::saturating_add) <= TEXT_BYTES {
            return Ok(());
        }
        let others = match files.len() - 1 {
            0 => String::new(),
            others => format!(" with those of {others} of the files before it"),
        };
        Err(format!("its rows{others} have more than {TEXT_BYTES} bytes of texts, and it has {file_bytes} bytes"))
    }
}

/// The reason why a file is not read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Damaged(String),
    Foreign(String),
    TooLarge(String),
}

/// Refuses a schema of columns within columns, which this program never writes and which the Parquet reader follows without an
/// end, or of too many. `end` is a footer and the eight bytes after it, or as much of a file's end; less is not looked at.
pub(crate) fn check_schema(end: &[u8]) -> Result<(), Refusal> {
    let Some((rest, [a, b, c, d, b'P', b'A', b'R', b'1'])) = end.split_last_chunk::<8>() else { return Ok(()) };
    let length = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
    let Some(footer) = rest.len().checked_sub(length).and_then(|start| rest.get(start..)) else { return Ok(()) };
    let mut problem = None;
    // The footer is read to its end: a second schema would count instead of the first.
    let read = ThriftReader::new(footer).each_field(|reader, field| {
        let is_schema = field.id == 2 && field.kind == LIST;
        if is_schema {
            read_schema(reader, &mut problem)?;
        }
        Some(is_schema)
    });
    match (problem, read) {
        (Some(problem), _) => Err(Refusal::Foreign(problem)),
        (None, None) => Err(Refusal::Damaged("its footer cannot be read".to_owned())),
        (None, Some(())) => Ok(()),
    }
}

/// Returns `None` if the schema cannot be read, or has a problem.
fn read_schema(reader: &mut ThriftReader<'_>, problem: &mut Option<String>) -> Option<()> {
    let (_, columns) = reader.list()?;
    if columns > MAX_COLUMNS {
        *problem = Some(format!("it has {columns} columns"));
        return None;
    }
    for column in 0..columns {
        let mut children = 0;
        reader.each_field(|reader, field| {
            let is_count = field.id == 5 && field.kind == I32;
            if is_count {
                children = reader.size()?;
            }
            Some(is_count)
        })?;
        if column > 0 && children > 0 {
            *problem = Some("it has columns within columns".to_owned());
            return None;
        }
    }
    Some(())
}

/// Refuses a file whose columns have more bytes than the file: some lie over others, and are unpacked again and again.
pub(crate) fn check_chunks(metadata: &ParquetMetaData, file_bytes: u64) -> Result<(), Refusal> {
    let chunks = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    // A negative size is too large for any file.
    let sizes = chunks.map(|chunk| u64::try_from(chunk.compressed_size()).unwrap_or(u64::MAX));
    if sizes.fold(0, u64::saturating_add) <= file_bytes {
        return Ok(());
    }
    Err(Refusal::TooLarge(format!("the pages of its columns have more than its {file_bytes} bytes")))
}

/// The page of a column, by its header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PageSize {
    kind: u64,
    unpacked_bytes: u64,
    packed_bytes: u64,
    values: u64,
    encoding: u64,
}

const DATA_PAGE: u64 = 0;
const DICTIONARY_PAGE: u64 = 2;
const DATA_PAGE_V2: u64 = 3;
const DELTA_LENGTH_BYTE_ARRAY: u64 = 6;
const DELTA_BYTE_ARRAY: u64 = 7;
/// The encodings by a dictionary, old and new.
const DICTIONARY_ENCODINGS: [u64; 2] = [2, 8];

/// Reads the header of a page. Returns `None` as well if it lacks its kind, a size or the header of its kind, or if a page of
/// values has none.
fn page_size(reader: &mut ThriftReader<'_>) -> Option<PageSize> {
    let (mut page, mut found) = (PageSize::default(), 0);
    reader.each_field(|reader, field| {
        match (field.id, field.kind) {
            (1, I32) => page.kind = reader.size()?,
            (2, I32) => page.unpacked_bytes = reader.size()?,
            (3, I32) => page.packed_bytes = reader.size()?,
            // The header of a page of values, of a dictionary, and of a page of values in version 2: only the page's own.
            (5 | 7 | 8, STRUCT) => {
                let own = match page.kind {
                    DATA_PAGE => 5,
                    DICTIONARY_PAGE => 7,
                    DATA_PAGE_V2 => 8,
                    _ => return None,
                };
                if field.id != own {
                    return None;
                }
                let encoding = if field.id == 8 { 4 } else { 2 };
                reader.each_field(|reader, inner| {
                    match (inner.id, inner.kind) {
                        (1, I32) => page.values = reader.size()?,
                        (id, I32) if id == encoding => page.encoding = reader.size()?,
                        _ => return Some(false),
                    }
                    Some(true)
                })?;
            }
            _ => return Some(false),
        }
        found += 1;
        Some(true)
    })?;
    // No field comes twice, and of the headers of kinds only its own.
    (found == 4 && (page.values > 0 || page.kind == DICTIONARY_PAGE)).then_some(page)
}

/// Returns the pages of a column in their order.
fn page_sizes(chunk: &[u8]) -> Option<Vec<PageSize>> {
    let (mut pages, mut at) = (Vec::new(), 0);
    while at < chunk.len() {
        let mut reader = ThriftReader::new(&chunk[at..]);
        let page = page_size(&mut reader)?;
        at = (chunk.len() - reader.remaining()).checked_add(usize::try_from(page.packed_bytes).ok()?)?;
        pages.push(page);
    }
    Some(pages)
}

/// Memory that the values of one column of a row group may take.
#[derive(Debug, Default)]
struct ColumnSize {
    /// The longest value that may be in every row.
    repeated_bytes: u64,
    /// Values and bytes of the pages whose values are there once.
    pages: Vec<(u64, u64)>,
    /// The largest dictionary and the largest page.
    unpacked_bytes: u64,
}

impl ColumnSize {
    fn bytes_of(&self, rows: u64) -> u64 {
        let longest = self.pages.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        let window = self.window_bytes(rows).min(longest.saturating_mul(rows));
        self.repeated_bytes.saturating_mul(rows).saturating_add(window)
    }

    /// Returns the bytes of the pages in which so many rows in sequence lie.
    fn window_bytes(&self, rows: u64) -> u64 {
        let (mut first, mut sum, mut inner, mut greatest) = (0, 0_u64, 0_u64, 0);
        for (last, (values, bytes)) in self.pages.iter().enumerate() {
            sum += bytes;
            // Rows of all pages but the first and the last; one row at least lies in each of these.
            while first < last && inner + 2 > rows {
                sum -= self.pages[first].1;
                first += 1;
                inner -= if first < last { self.pages[first].0 } else { 0 };
            }
            greatest = greatest.max(sum);
            inner += if first < last { *values } else { 0 };
        }
        greatest
    }
}

/// Returns the rows that a batch of a row group may have, if only the columns of these names are read.
pub(crate) fn batch_rows(
    input: &ParquetInput,
    metadata: &ParquetMetaData,
    group: usize,
    is_read: impl Fn(&str) -> bool,
) -> Result<usize, Refusal> {
    let chunks = metadata.row_group(group);
    let mut sizes = Vec::with_capacity(chunks.num_columns());
    for column in 0..chunks.num_columns() {
        let size = if is_read(&chunks.column(column).column_path().string()) {
            column_size(input, chunks, column)?
        } else {
            ColumnSize::default()
        };
        sizes.push(size);
    }
    rows_within(&sizes).map_err(|(column, bytes, what)| {
        let first: i64 = metadata.row_groups()[..group].iter().map(RowGroupMetaData::num_rows).sum();
        let name = chunks.column(column).column_path().string();
        Refusal::TooLarge(format!("column {name} has {what} of {bytes} bytes from row {first} on"))
    })
}

/// Returns the rows of a batch, or the column that takes most of the memory, how much, and for what.
fn rows_within(sizes: &[ColumnSize]) -> Result<usize, (usize, u64, &'static str)> {
    let sum = |bytes: &dyn Fn(&ColumnSize) -> u64| sizes.iter().map(bytes).fold(0, u64::saturating_add);
    let largest = |bytes: &dyn Fn(&ColumnSize) -> u64| {
        sizes.iter().map(bytes).enumerate().max_by_key(|(_, bytes)| *bytes).unwrap_or_default()
    };
    let unpacked = |size: &ColumnSize| size.unpacked_bytes;
    if sum(&unpacked) > MAX_UNPACKED_PAGE_BYTES {
        let (column, bytes) = largest(&unpacked);
        return Err((column, bytes, "a dictionary and a page"));
    }
    let mut rows = BATCH_ROWS;
    while sum(&|size| size.bytes_of(rows as u64)) > BATCH_BYTES {
        if rows == 1 {
            let (column, bytes) = largest(&|size| size.bytes_of(1));
            return Err((column, bytes, "values"));
        }
        rows /= 2;
    }
    Ok(rows)
}

fn column_size(input: &ParquetInput, group: &RowGroupMetaData, column: usize) -> Result<ColumnSize, Refusal> {
    let chunk = group.column(column);
    let wrong = |what: &dyn std::fmt::Display| Refusal::Damaged(format!("column {}: {what}", chunk.column_path()));
    let pages = chunk_bytes(input, chunk).map_err(|what| wrong(&what))?;
    let pages = page_sizes(&pages).ok_or_else(|| wrong(&"the header of a page cannot be read"))?;
    let greatest = |dictionary: bool| {
        let of = pages.iter().filter(|page| (page.kind == DICTIONARY_PAGE) == dictionary);
        of.map(|page| page.unpacked_bytes).max().unwrap_or(0)
    };
    let mut size = ColumnSize { unpacked_bytes: greatest(true) + greatest(false), ..ColumnSize::default() };
    if chunk.column_type() != PhysicalType::BYTE_ARRAY || size.unpacked_bytes > MAX_UNPACKED_PAGE_BYTES {
        return Ok(size);
    }
    if pages.iter().skip(1).any(|page| page.kind == DICTIONARY_PAGE) {
        return Err(wrong(&"a dictionary comes after a page"));
    }
    let reader = || SerializedPageReader::new(Arc::new(input.clone()), chunk, group.num_rows() as usize, None);
    let has_lengths =
        |page: &&PageSize| page.kind != DICTIONARY_PAGE && [DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY].contains(&page.encoding);
    if let Some(most) = pages.iter().filter(has_lengths).map(|page| page.values).max() {
        if most > u64::try_from(group.num_rows()).unwrap_or(0) {
            return Err(wrong(&"a page has more values than there are rows"));
        }
        let mut reader = reader().map_err(|error| wrong(&error))?;
        size.repeated_bytes = longest_with_prefix(&mut reader, chunk).map_err(|error| wrong(&error))?;
    }
    // A dictionary that would be small even in every row is not measured.
    let dictionary = greatest(true);
    let longest = if dictionary * BATCH_ROWS as u64 > BATCH_BYTES / 64 {
        let mut reader = reader().map_err(|error| wrong(&error))?;
        longest_in_dictionary(&mut reader).map_err(|error| wrong(&error))?
    } else {
        dictionary
    };
    size.repeated_bytes = size.repeated_bytes.max(longest);
    let is_stored_once = |page: &&PageSize| {
        page.kind != DICTIONARY_PAGE && page.encoding != DELTA_BYTE_ARRAY && !DICTIONARY_ENCODINGS.contains(&page.encoding)
    };
    size.pages = pages.iter().filter(is_stored_once).map(|page| (page.values, page.unpacked_bytes)).collect();
    Ok(size)
}

/// Returns the packed pages of a column.
fn chunk_bytes(input: &ParquetInput, chunk: &ColumnChunkMetaData) -> Result<bytes::Bytes, String> {
    let start = chunk.dictionary_page_offset().unwrap_or_else(|| chunk.data_page_offset());
    let (start, length) = (u64::try_from(start), u64::try_from(chunk.compressed_size()));
    let outside = || "its pages lie outside the file".to_owned();
    let (Ok(start), Ok(length)) = (start, length) else { return Err(outside()) };
    if start.checked_add(length).is_none_or(|end| end > Length::len(input)) {
        return Err(outside());
    }
    let length = usize::try_from(length).map_err(|_| outside())?;
    input.get_bytes(start, length).map_err(|error| error.to_string())
}

/// Returns the length of the longest text that shares a prefix with the one before. Refuses lengths that are more than their page has
/// values: the Parquet reader makes room for as many as they declare.
fn longest_with_prefix(pages: &mut impl PageReader, chunk: &ColumnChunkMetaData) -> Result<u64, String> {
    let mut longest = 0;
    while let Some(page) = pages.get_next_page().map_err(|error| error.to_string())? {
        let has_prefixes = match (page.is_dictionary_page(), page.encoding()) {
            (false, Encoding::DELTA_LENGTH_BYTE_ARRAY) => false,
            (false, Encoding::DELTA_BYTE_ARRAY) => true,
            _ => continue,
        };
        let values = values_of(&page, chunk).ok_or("the levels of a page cannot be read")?;
        let read = |bytes| {
            read_lengths(bytes, page.num_values().into())
                .ok_or("the lengths of a page cannot be read, or are more than its values")
        };
        let (lengths, rest) = read(values)?;
        if has_prefixes {
            let (suffixes, _) = read(rest)?;
            let sums = lengths.into_iter().zip(suffixes).map(|(prefix, suffix)| u64::from(prefix) + u64::from(suffix));
            longest = sums.max().unwrap_or(0).max(longest);
        }
    }
    Ok(longest)
}

/// Returns the part of a page of values after its levels.
fn values_of<'a>(page: &'a Page, chunk: &ColumnChunkMetaData) -> Option<&'a [u8]> {
    let column = chunk.column_descr();
    match page {
        Page::DataPage { .. } if column.max_rep_level() > 0 => None,
        Page::DataPage { buf, .. } if column.max_def_level() == 0 => Some(&buf[..]),
        Page::DataPage { buf, def_level_encoding: Encoding::RLE, .. } => {
            let (length, rest) = buf.split_first_chunk::<4>()?;
            rest.get(u32::from_le_bytes(*length) as usize..)
        }
        Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. } => {
            buf.get(def_levels_byte_len.checked_add(*rep_levels_byte_len)? as usize..)
        }
        Page::DataPage { .. } | Page::DictionaryPage { .. } => None,
    }
}

/// Reads delta-packed lengths; returns them and the bytes behind. `None` if there are more than `most`, or if they cannot be read.
fn read_lengths(bytes: &[u8], most: u64) -> Option<(Vec<u32>, &[u8])> {
    let mut reader = ThriftReader::new(bytes);
    let (block, parts, numbers) = (reader.unsigned()?, reader.unsigned()?, reader.unsigned()?);
    // The first number, which no block holds.
    let mut number = reader.signed()?;
    if numbers > most || !(1..=MAX_BLOCK).contains(&block) || !(1..=MAX_BLOCK_PARTS).contains(&parts) {
        return None;
    }
    let in_part = block / parts;
    if in_part * parts != block || !in_part.is_multiple_of(32) {
        return None;
    }
    let (numbers, mut lengths) = (usize::try_from(numbers).ok()?, Vec::new());
    if numbers > 0 {
        lengths.push(u32::try_from(number).ok()?);
    }
    while lengths.len() < numbers {
        let least = reader.signed()?;
        for bits in reader.take(parts)? {
            // Parts behind the last number take no bytes, for any widths.
            if lengths.len() == numbers {
                break;
            }
            if *bits > 32 {
                return None;
            }
            let packed = reader.take(in_part / 8 * u64::from(*bits))?;
            let count = (numbers - lengths.len()).min(usize::try_from(in_part).ok()?);
            for index in 0..count {
                let difference = least.checked_add(unpack(packed, index, usize::from(*bits)))?;
                number = number.checked_add(difference)?;
                lengths.push(u32::try_from(number).ok()?);
            }
        }
    }
    Some((lengths, reader.take(reader.remaining() as u64)?))
}

/// Returns a number of up to 32 bits out of packed ones; the first bits are the lowest.
fn unpack(packed: &[u8], index: usize, bits: usize) -> i64 {
    let first = index * bits;
    let bytes = packed[first / 8..].iter().take(5).rev().fold(0_u64, |bytes, byte| bytes << 8 | u64::from(*byte));
    (bytes >> (first % 8) & ((1 << bits) - 1)).cast_signed()
}

/// Returns the length of the longest text of a dictionary, which is the first page.
fn longest_in_dictionary(reader: &mut impl PageReader) -> Result<u64, String> {
    let Some(Page::DictionaryPage { buf, .. }) = reader.get_next_page().map_err(|error| error.to_string())? else {
        return Err("its first page is no dictionary".to_owned());
    };
    let (mut rest, mut longest) = (&buf[..], 0);
    while let Some((length, values)) = rest.split_first_chunk() {
        let length = u32::from_le_bytes(*length);
        rest = values.get(length as usize..).ok_or("a text of its dictionary is cut short")?;
        longest = longest.max(u64::from(length));
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};

    use super::*;

    #[test]
    fn a_batch_is_counted_by_the_pages_that_it_may_touch() {
        let size = ColumnSize { pages: vec![(10, 100), (1, 1000), (1, 1000), (10, 100)], ..ColumnSize::default() };
        let bytes: Vec<u64> = [1, 2, 3, 4, 24].iter().map(|rows| size.bytes_of(*rows)).collect();
        assert_eq!(bytes, [1000, 2000, 2100, 2200, 2200]);
        let size = ColumnSize { repeated_bytes: 50, ..ColumnSize::default() };
        assert_eq!((size.bytes_of(1), size.bytes_of(1024)), (50, 51_200));
    }

    #[test]
    fn batches_shrink_with_the_values_down_to_one_row() {
        let repeated = |bytes| ColumnSize { repeated_bytes: bytes, ..ColumnSize::default() };
        assert_eq!(rows_within(&[repeated(253), repeated(253)]), Ok(1024));
        assert_eq!(rows_within(&[repeated(1 << 20), repeated(253)]), Ok(16));
        assert_eq!(rows_within(&[repeated(BATCH_BYTES)]), Ok(1));
        assert_eq!(rows_within(&[repeated(1), repeated(BATCH_BYTES)]), Err((1, BATCH_BYTES, "values")));
        let unpacked = |bytes| ColumnSize { unpacked_bytes: bytes, ..ColumnSize::default() };
        let (most, half) = (i32::MAX as u64, MAX_UNPACKED_PAGE_BYTES / 2);
        assert_eq!(rows_within(&[unpacked(1), unpacked(most)]), Err((1, most, "a dictionary and a page")));
        assert_eq!(rows_within(&[unpacked(half), unpacked(half)]), Ok(1024));
        assert_eq!(rows_within(&[unpacked(half), unpacked(1), unpacked(half)]), Err((2, half, "a dictionary and a page")));
    }

    #[test]
    fn a_page_is_measured_by_its_header() {
        // A dictionary of 3 packed and 2^31 - 1 unpacked bytes, and a page of values that share prefixes.
        let dictionary = [0x15, 4, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f, 0x15, 6, 0x4c, 0x15, 2, 0x15, 0, 0, 0, 1, 2, 3];
        let values = [0x15, 0, 0x15, 8, 0x15, 2, 0x2c, 0x15, 20, 0x15, 14, 0x15, 6, 0x15, 6, 0, 0, 9];
        let pages = page_sizes(&[&dictionary[..], &values].concat()).unwrap();
        let of = |kind, unpacked_bytes, packed_bytes, values, encoding| PageSize {
            kind,
            unpacked_bytes,
            packed_bytes,
            values,
            encoding,
        };
        assert_eq!(pages, [of(DICTIONARY_PAGE, i32::MAX as u64, 3, 1, 0), of(0, 4, 1, 10, DELTA_BYTE_ARRAY)]);
        // A header of another kind of page beside its own.
        let both = [0x15, 0, 0x15, 8, 0x15, 2, 0x2c, 0x15, 20, 0x15, 14, 0, 0x3c, 0x15, 20, 0x35, 0, 0, 0, 9];
        assert_eq!(page_sizes(&both), None);
        // A negative size.
        assert_eq!(page_sizes(&[0x15, 4, 0x15, 3, 0x15, 6, 0]), None);
    }

    #[test]
    fn a_header_without_what_its_page_needs_is_refused() {
        let whole = [0x15, 0, 0x15, 8, 0x15, 2, 0x2c, 0x15, 20, 0x15, 14, 0, 0, 9];
        assert!(page_sizes(&whole).is_some());
        let headers: [(&str, &[u8]); 6] = [
            ("kind", &[0x25, 8, 0x15, 2, 0x2c, 0x15, 20, 0x15, 14, 0, 0, 9]),
            ("unpacked size", &[0x15, 0, 0x25, 2, 0x2c, 0x15, 20, 0x15, 14, 0, 0, 9]),
            ("packed size", &[0x15, 0, 0x15, 8, 0x3c, 0x15, 20, 0x15, 14, 0, 0]),
            ("own header", &[0x15, 0, 0x15, 8, 0x15, 2, 0, 9]),
            ("count", &[0x15, 0, 0x15, 8, 0x15, 2, 0x2c, 0x25, 14, 0, 0, 9]),
            ("values", &[0x15, 0, 0x15, 8, 0x15, 2, 0x2c, 0x15, 0, 0x15, 14, 0, 0, 9]),
        ];
        for (lacking, header) in headers {
            assert_eq!(page_sizes(header), None, "{lacking}");
        }
    }

    #[test]
    fn delta_packed_lengths_are_read_if_they_are_no_more_than_the_values() {
        // Three numbers in a block of 128: one part of four bytes, and widths of parts that hold nothing.
        let three = [0x80, 1, 4, 3, 10, 0, 1, 99, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(read_lengths(&three, 3), Some((vec![5; 3], &[9][..])));
        assert_eq!(read_lengths(&three, 2), None);
        assert_eq!(read_lengths(&three[..12], 3), None);
        assert_eq!(read_lengths(&[0x80, 1, 4, 0, 0, 9], 0), Some((vec![], &[9][..])));
        // 5, 6, 4, 11: differences of 3, 0 and 9 above the least one, -2, in four bits each.
        let packed = [0x80, 1, 4, 4, 10, 3, 4, 0, 0, 0, 0x03, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(read_lengths(&packed, 4), Some((vec![5, 6, 4, 11], &[9][..])));
        let headers: [(&str, &[u8]); 5] = [
            ("a block of 0", &[0, 4, 1, 0]),
            ("a block of 2^21", &[0x80, 0x80, 0x80, 1, 4, 1, 0]),
            ("no parts", &[0x80, 1, 0, 1, 0]),
            ("parts of 16", &[0x80, 1, 8, 1, 0]),
            ("33 bits", &[0x80, 1, 4, 3, 10, 0, 33, 0, 0, 0]),
        ];
        for (wrong, bytes) in headers {
            let bytes = [bytes, &[0; 256]].concat();
            assert_eq!(read_lengths(&bytes, 1024), None, "{wrong}");
        }
    }

    #[test]
    fn columns_that_lie_over_each_other_are_refused() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
        let batch = RecordBatch::try_from_iter([("a", numbers)]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        let file = bytes::Bytes::from(writer.into_inner().unwrap());
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).unwrap();
        assert_eq!(check_chunks(metadata.metadata(), file.len() as u64), Ok(()));
        assert!(matches!(check_chunks(metadata.metadata(), 10), Err(Refusal::TooLarge(_))));
    }
}
