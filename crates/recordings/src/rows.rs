//! Tables for other readers than the importer's: the same encodings, separators, headers, comments and numbers.

use crate::decimal_mark::{DecimalMarkDetector, MARK_REMEDY};
use crate::lines::LineReader;
use crate::quantity::{DecimalMark, QuantityCell};
use crate::recording::{FileId, Recording};
use crate::table::{HeaderCriteria, RowCells, TableReader};
use crate::{ImportError, ImportOptions, RecordingFile, RecordingFormat};

/// The rows of a table that has a header.
#[allow(missing_debug_implementations, reason = "holds a reader")]
pub struct TableRows<'a> {
    table: TableReader<'a>,
    recording: Recording,
    file: FileId,
    names: Vec<String>,
    header_line: u64,
    cells: RowCells,
    line: u64,
    decimal_marks: Option<DecimalMarkDetector>,
}

impl<'a> TableRows<'a> {
    /// Opens a table. Its header is the line that has most names for which `is_wanted` returns true, else the first. Returns
    /// `None` if the file has no row.
    pub fn open(input: RecordingFile<'a>, is_wanted: &dyn Fn(&str) -> bool) -> Result<Option<Self>, ImportError> {
        let mut recording = Recording::new(RecordingFormat::Csv, &ImportOptions::default());
        let lines = LineReader::new(&input.name, input.reader)?;
        let file = recording.add_file(&input.name, lines.fingerprint);
        let names = |cells: &RowCells| cells.iter().filter(|cell| is_wanted(cell)).count();
        let (table, header) =
            TableReader::open(lines, &mut recording, file, &HeaderCriteria { names: &names, is_data: &|_| false })?;
        Ok(header.map(|header| Self {
            table,
            recording,
            file,
            names: header.names.iter().map(str::to_owned).collect(),
            header_line: header.line,
            cells: RowCells::default(),
            line: header.line,
            decimal_marks: None,
        }))
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn header_line(&self) -> u64 {
        self.header_line
    }

    /// Finds the decimal mark by the columns that hold numbers, or takes the one that is asked for.
    pub fn set_numbers(&mut self, columns: &[usize], stated: Option<DecimalMark>) {
        self.decimal_marks = Some(DecimalMarkDetector::new(&self.table, columns, stated));
    }

    /// Reads the next row and returns its line. Comments, blank lines and repeated headers are passed over.
    pub fn next_row(&mut self) -> Result<Option<u64>, ImportError> {
        while let Some(line) = self.table.next_row(&mut self.recording, self.file, &mut self.cells)? {
            if self.cells.iter().eq(self.names.iter().map(String::as_str)) {
                continue;
            }
            self.line = line;
            if self.table.is_cut() {
                return Err(ImportError::in_line(&self.recording.files[self.file], line, CUT, CUT_REMEDY));
            }
            return Ok(Some(line));
        }
        Ok(None)
    }

    /// Cells of the row. Blank ones beyond the header's are not counted.
    pub fn cell_count(&self) -> usize {
        let blank = |index: &usize| self.cells.get(*index).is_some_and(str::is_empty);
        let surplus = (self.names.len()..self.cells.len()).rev().take_while(blank).count();
        self.cells.len() - surplus
    }

    /// Returns the text of a cell of the row.
    pub fn text(&self, column: usize) -> &str {
        self.cells.get(column).unwrap_or_default()
    }

    /// Returns the number in a cell of the row.
    pub fn number(&mut self, column: usize) -> Result<QuantityCell, ImportError> {
        let text = self.cells.get(column).unwrap_or_default();
        let marks = self.decimal_marks.get_or_insert_with(|| DecimalMarkDetector::new(&self.table, &[], None));
        marks.read(self.line, text).map_err(|problem| {
            let name = self.names.get(column).map_or("", String::as_str);
            ImportError::in_line(&self.recording.files[self.file], self.line, problem, MARK_REMEDY).with_column(name)
        })
    }
}

/// Fault of a row for which [`TableReader::is_cut`] returns true.
pub(crate) const CUT: &str =
    "the last line has no line end, and its last cell is shorter than in every row above: it may be cut off";
pub(crate) const CUT_REMEDY: &str = "end the line if it is whole, else restore the row or take it out";
