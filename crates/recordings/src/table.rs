//! Tables of any writing: the separator, the header and the comments are found once, for all readers.
//!
//! The separator is `,`, `;`, a tab or `|`, as the header and the lines below it agree best. The header is the line that has the
//! wanted columns; lines above it are passed over. A row is a line, or several if a quoted cell has line breaks. Rows that begin with
//! a name of their own, for which the header has none, as R writes them, have a first column without a name.

use std::collections::{BTreeSet, VecDeque};

use crate::ImportError;
use crate::encoding::Encoding;
use crate::foreign_text::{ForeignText, LINES_OF_FOREIGN_TEXT, foreign_text};
use crate::lines::LineReader;
use crate::quantity::is_quantity;
use crate::recording::{FileId, Recording};
use crate::units::Unit;

/// Longest accepted row.
const MAX_ROW_BYTES: u64 = 1 << 20;
/// Lines in which the header is looked for, and by which the separator is chosen.
const HEAD_LINES: usize = 200;
/// Most lines of one row.
const MAX_ROW_LINES: usize = 100;
const SEPARATORS: [char; 4] = [',', ';', '\t', '|'];
/// Represents any number of blanks, which separate columns only if nothing else finds as many of the wanted names.
const BLANKS: char = ' ';
/// See [`BLANKS`], where a number and the unit behind it are one cell: `100 W`.
const BLANKS_BUT_UNITS: char = '\u{2007}';

/// Returns a line without the byte order mark at its begin, which the second of two files that were put together has.
fn without_mark(line: &str) -> &str {
    line.trim_start_matches('\u{feff}')
}

/// The cells of one row, in memory that is used again.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct RowCells {
    text: String,
    ends: Vec<usize>,
}

impl RowCells {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.text[start..end])
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
    }

    /// Puts a blank cell before the others.
    fn insert_blank(&mut self) {
        self.ends.insert(0, 0);
    }

    fn close(&mut self, start: usize) {
        // Blanks before the separator are no part of the cell.
        let length = self.text[start..].trim_end().len();
        self.text.truncate(start + length);
        self.ends.push(self.text.len());
    }

    /// Splits a row; `""` within quotes is a quote. Returns false if a quoted cell does not end.
    fn split(&mut self, row: &str, separator: Option<char>) -> bool {
        self.clear();
        let Some(separator) = separator else {
            self.text.push_str(row.trim().trim_matches('"'));
            self.ends.push(self.text.len());
            return true;
        };
        if separator == BLANKS || separator == BLANKS_BUT_UNITS {
            for cell in cells_between_blanks(row) {
                let cell = cell.trim_matches('"');
                let follows_number = || self.len().checked_sub(1).and_then(|last| self.get(last)).is_some_and(is_plain_number);
                if separator == BLANKS_BUT_UNITS && Unit::by_name(cell).is_some() && follows_number() {
                    self.ends.pop();
                    self.text.push(' ');
                }
                self.text.push_str(cell);
                self.ends.push(self.text.len());
            }
            return true;
        }
        if !row.contains('"') {
            for cell in row.split(separator) {
                self.text.push_str(cell.trim());
                self.ends.push(self.text.len());
            }
            return true;
        }
        let blank = |character: char| character.is_whitespace() && character != separator;
        let mut rest = row;
        loop {
            let start = self.text.len();
            rest = rest.trim_start_matches(blank);
            if let Some(quoted) = rest.strip_prefix('"') {
                rest = quoted;
                loop {
                    let Some(at) = rest.find('"') else { return false };
                    self.text.push_str(&rest[..at]);
                    rest = &rest[at + 1..];
                    match rest.strip_prefix('"') {
                        Some(after) => rest = after,
                        None => break,
                    }
                    self.text.push('"');
                }
            }
            let (cell, after) = rest.split_once(separator).map_or((rest, None), |(cell, after)| (cell, Some(after)));
            // A quoted cell with line breaks ends at a separator: a quote within a cell further down closes no torn one.
            if self.text[start..].contains('\n') && !cell.trim().is_empty() {
                return false;
            }
            self.text.push_str(cell);
            let Some(after) = after else {
                self.close(start);
                return true;
            };
            self.close(start);
            rest = after;
        }
    }
}

/// Returns the cells of a row between blanks, with their quotes. A quoted one may have blanks in it.
fn cells_between_blanks(row: &str) -> impl Iterator<Item = &str> {
    let mut rest = row.trim_start();
    std::iter::from_fn(move || {
        let ends_cell = |quote: &usize| rest[quote + 1..].chars().next().is_none_or(char::is_whitespace);
        let inside = rest.strip_prefix('"').unwrap_or_default();
        let quoted = inside.match_indices('"').map(|(at, _)| at + 1).find(ends_cell);
        let end = quoted.map_or_else(|| rest.find(char::is_whitespace).unwrap_or(rest.len()), |quote| quote + 1);
        let (cell, after) = rest.split_at(end);
        rest = after.trim_start();
        (!cell.is_empty()).then_some(cell)
    })
}

/// Returns an error if the first lines are of a text that is no table.
fn refuse_foreign_text(recording: &Recording, file: FileId, lines: &VecDeque<(u64, String)>) -> Result<(), ImportError> {
    for (line, text) in lines.iter().take(LINES_OF_FOREIGN_TEXT) {
        if let Some(ForeignText { what, remedy }) = foreign_text(text) {
            return Err(recording.error(file, *line, format!("it is {what}, and no table"), remedy));
        }
    }
    Ok(())
}

/// Returns whether a line rules off others, as in `|---|---|` and `+=====+`. Hyphens alone may mean no value.
fn is_rule(row: &str) -> bool {
    // Several runs, such as `-------- -----`, of which one is longer than any sign of no value.
    let is_of_hyphens = row.split_whitespace().count() >= 2
        && row.contains("------")
        && row.split_whitespace().all(|run| run.len() >= 3 && run.bytes().all(|byte| byte == b'-'));
    let is_ruled_off = is_of_hyphens || row.trim_start().starts_with('|') || row.contains(['+', '=', '─', '━', '┼']);
    let is_of_rule = |character: char| matches!(character, '-' | '=' | '+' | '|' | ':' | ' ' | '─' | '━' | '┼' | '│');
    is_ruled_off && row.chars().all(is_of_rule) && ["---", "===", "───", "━━━"].iter().any(|rule| row.contains(rule))
}

/// Criteria by which a reader finds the header.
pub(crate) struct HeaderCriteria<'f> {
    /// Returns how many of the wanted columns a row names.
    pub(crate) names: &'f dyn Fn(&RowCells) -> usize,
    /// Returns whether a row has readings where the wanted columns are, for tables without a header.
    pub(crate) is_data: &'f dyn Fn(&RowCells) -> bool,
}

pub(crate) struct TableReader<'a> {
    lines: LineReader<'a>,
    ahead: VecDeque<(u64, String)>,
    separator: Option<char>,
    /// Cells of the header.
    width: Option<usize>,
    /// The header as it is written, if it has no name for the first column.
    header_of_named_rows: Option<RowCells>,
    row: String,
    /// Rows so far, and the bytes of the shortest last cell among them.
    rows: u64,
    shortest_last_cell: usize,
    /// The row last returned is the last line, has no line end, and seems to be cut off.
    is_cut: bool,
}

/// The names of the columns, and the line that has them.
#[derive(Debug, Clone)]
pub(crate) struct HeaderRow {
    pub(crate) line: u64,
    /// Empty texts if the table has no header.
    pub(crate) names: RowCells,
    /// The first row has readings.
    pub(crate) is_data: bool,
}

/// Rows that must come before a last cell that is shorter than all above counts as cut off.
const ROWS_TO_TELL_A_CUT: u64 = 3;

impl<'a> TableReader<'a> {
    fn new(lines: LineReader<'a>, ahead: VecDeque<(u64, String)>, separator: Option<char>) -> Self {
        let row = String::new();
        let (width, header_of_named_rows, shortest_last_cell) = (None, None, usize::MAX);
        Self { lines, ahead, separator, width, header_of_named_rows, row, rows: 0, shortest_last_cell, is_cut: false }
    }

    /// Finds separator and header. Returns no header if the file has no row.
    pub(crate) fn open(
        mut lines: LineReader<'a>,
        recording: &mut Recording,
        file: FileId,
        wanted: &HeaderCriteria<'_>,
    ) -> Result<(Self, Option<HeaderRow>), ImportError> {
        let mut ahead = VecDeque::new();
        while ahead.len() < HEAD_LINES {
            let Some((line, text)) = lines.next_line_within(MAX_ROW_BYTES)? else { break };
            if !text.trim().is_empty() {
                ahead.push_back((line, without_mark(&text).to_owned()));
            }
        }
        // Spreadsheets take a first line such as `sep=;` as this.
        let declared = ahead.front().and_then(|(_, text)| text.trim().trim_matches('"').strip_prefix("sep="));
        let declared = declared.and_then(|text| if text.is_empty() { None } else { text.chars().next() });
        if declared.is_some() {
            ahead.pop_front();
        }
        let found = find_header(ahead.make_contiguous(), declared, wanted);
        // Above a header, any line may be.
        let is_header = |found: &HeaderMatch| found.has_table(wanted) && foreign_text(&ahead[found.index].1).is_none();
        if !found.as_ref().is_some_and(is_header) {
            refuse_foreign_text(recording, file, &ahead)?;
        }
        let Some(found) = found else {
            return Ok((Self::new(lines, ahead, None), None));
        };
        for (line, text) in ahead.drain(..found.index) {
            let reason = if is_comment(&text) { "comment line" } else { "line above the header" };
            recording.skip_line(file, line, reason);
        }
        let line = ahead.front().map_or(1, |(line, _)| *line);
        let mut table = Self::new(lines, ahead, found.separator);
        let mut names = found.cells;
        if found.is_data {
            names = RowCells { text: String::new(), ends: vec![0; names.len()] };
        } else {
            // A quoted name may have a line break.
            let is_comment = table.ahead.front().is_some_and(|(_, text)| is_comment(text));
            if is_comment {
                table.ahead.pop_front();
            } else {
                table.next_cells(&mut names)?;
            }
        }
        if found.has_row_names {
            table.header_of_named_rows = Some(names.clone());
            names.insert_blank();
        }
        table.width = Some(names.len());
        Ok((table, Some(HeaderRow { line, names, is_data: found.is_data })))
    }

    pub(crate) fn separator(&self) -> Option<char> {
        self.separator.map(|separator| if separator == BLANKS_BUT_UNITS { BLANKS } else { separator })
    }

    pub(crate) fn encoding(&self) -> Encoding {
        self.lines.encoding
    }

    /// Calls `visit` with the rows that are read ahead.
    pub(crate) fn peek(&self, mut visit: impl FnMut(&RowCells)) {
        let mut cells = RowCells::default();
        for (_, text) in self.ahead.iter().filter(|(_, text)| !is_comment(text)) {
            if cells.split(text, self.separator) {
                visit(&cells);
            }
        }
    }

    /// Returns the line of a comment directly below the header, if it has as many cells, which it then splits: it may have the units
    /// of the columns. It stays where it is.
    pub(crate) fn split_comment_below_header(&self, cells: &mut RowCells) -> Option<u64> {
        let (line, text) = self.ahead.front().filter(|(_, text)| is_comment(text))?;
        // The sign of a comment may be a cell by itself, as in the header.
        let fits = [strip_comment(text), text.as_str()]
            .into_iter()
            .any(|text| cells.split(text, self.separator) && Some(cells.len()) == self.width);
        fits.then_some(*line)
    }

    /// Passes over the line directly below the header.
    pub(crate) fn skip_comment_below_header(&mut self) {
        self.ahead.pop_front();
    }

    /// Reads the next row and returns its line; comments and blank lines are passed over, the former counted.
    pub(crate) fn next_row(
        &mut self,
        recording: &mut Recording,
        file: FileId,
        cells: &mut RowCells,
    ) -> Result<Option<u64>, ImportError> {
        loop {
            let Some(line) = self.next_cells(cells)? else { return Ok(None) };
            if self.header_of_named_rows.as_ref().is_some_and(|header| header == cells) {
                cells.insert_blank();
            }
            if is_comment(&self.row) {
                recording.skip_line(file, line, "comment line");
            } else if is_rule(&self.row) {
                recording.skip_line(file, line, "rule between rows");
            } else if !self.row.trim().is_empty() {
                self.note_last_cell(line, cells);
                return Ok(Some(line));
            }
        }
    }

    fn note_last_cell(&mut self, line: u64, cells: &RowCells) {
        let length = cells.iter().last().map_or(0, str::len);
        let is_open = self.lines.open_line == Some(line);
        self.is_cut = is_open && self.rows >= ROWS_TO_TELL_A_CUT && length < self.shortest_last_cell;
        self.rows += 1;
        self.shortest_last_cell = self.shortest_last_cell.min(length);
    }

    /// Returns whether the row last returned seems to be cut off: its line is the last, has no end, and its last cell is shorter
    /// than in every row above.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn next_line(&mut self) -> Result<Option<(u64, String)>, ImportError> {
        match self.ahead.pop_front() {
            Some(ahead) => Ok(Some(ahead)),
            None => Ok(self.lines.next_line_within(MAX_ROW_BYTES)?.map(|(line, text)| (line, without_mark(&text).to_owned()))),
        }
    }

    fn next_cells(&mut self, cells: &mut RowCells) -> Result<Option<u64>, ImportError> {
        if self.ahead.is_empty() {
            let Some((line, text)) = self.lines.next_line_within(MAX_ROW_BYTES)? else { return Ok(None) };
            self.row.clear();
            self.row.push_str(without_mark(&text));
            if cells.split(&self.row, self.separator) {
                return Ok(Some(line));
            }
            return self.join_lines(line, cells);
        }
        let Some((line, text)) = self.next_line()? else { return Ok(None) };
        self.row = text;
        if cells.split(&self.row, self.separator) {
            return Ok(Some(line));
        }
        self.join_lines(line, cells)
    }

    /// Adds lines until the quoted cell ends. If that makes no row of the header's length, the first line is a row of its own,
    /// its quote left out.
    fn join_lines(&mut self, line: u64, cells: &mut RowCells) -> Result<Option<u64>, ImportError> {
        let mut whole = self.row.clone();
        let mut joined = Vec::new();
        while joined.len() < MAX_ROW_LINES && (whole.len() as u64) < MAX_ROW_BYTES {
            let Some((number, text)) = self.next_line()? else { break };
            whole.push('\n');
            whole.push_str(&text);
            joined.push((number, text));
            if cells.split(&whole, self.separator) {
                if self.width.is_some_and(|width| width != cells.len()) {
                    break;
                }
                self.row = whole;
                return Ok(Some(line));
            }
        }
        for back in joined.into_iter().rev() {
            self.ahead.push_front(back);
        }
        cells.split(&self.row.replace('"', ""), self.separator);
        Ok(Some(line))
    }
}

fn is_comment(text: &str) -> bool {
    let text = text.trim_start();
    text.starts_with('#') || text.starts_with("//")
}

/// Returns a comment without its sign: some programs write the header as one.
fn strip_comment(text: &str) -> &str {
    text.trim_start().trim_start_matches(['#', '/']).trim_start()
}

struct HeaderMatch {
    separator: Option<char>,
    /// Index of the header's line.
    index: usize,
    cells: RowCells,
    is_data: bool,
    /// Rows have a cell more, their name.
    has_row_names: bool,
}

impl HeaderMatch {
    /// Returns whether a line has wanted names, or readings where they would be. One name between blanks may be of a text.
    fn has_table(&self, wanted: &HeaderCriteria<'_>) -> bool {
        let names = (wanted.names)(&self.cells);
        let is_blank = matches!(self.separator, Some(BLANKS | BLANKS_BUT_UNITS));
        self.is_data || names >= NAMES_OF_A_HEADER || names > 0 && !is_blank
    }
}

/// Score of a separator: wanted names, lines of the header's length, cells that are plain.
type SeparatorScore = (usize, usize, usize);

fn find_header(lines: &[(u64, String)], declared: Option<char>, wanted: &HeaderCriteria<'_>) -> Option<HeaderMatch> {
    let mut best: Option<(SeparatorScore, HeaderMatch)> = None;
    let candidates: Vec<Option<char>> = match declared {
        Some(separator) => vec![Some(separator)],
        None => [None].into_iter().chain(SEPARATORS.into_iter().chain([BLANKS, BLANKS_BUT_UNITS]).map(Some)).collect(),
    };
    for separator in candidates {
        let (names, index, cells) = line_with_names(lines, separator, wanted)?;
        let (mut consistent, mut plain) = count_matching(&lines[index + 1..], separator, cells.len());
        let is_data = names == 0 && (wanted.is_data)(&cells);
        let has_row_names = !is_data && has_row_names(&lines[index..], separator, &cells);
        if has_row_names {
            (consistent, plain) = count_matching(&lines[index + 1..], separator, cells.len() + 1);
        }
        let score = (names, consistent, plain);
        let is_blank = matches!(separator, Some(BLANKS | BLANKS_BUT_UNITS));
        let is_better = |most: &SeparatorScore| if is_blank { names > most.0 && consistent > 0 } else { score > *most };
        // Rows without a unit, as one that is all N/A, are as long either way.
        let joins_more = |most: &SeparatorScore, found: &HeaderMatch| {
            (separator, found.separator) == (Some(BLANKS_BUT_UNITS), Some(BLANKS)) && names == most.0 && consistent > most.1
        };
        if best.as_ref().is_none_or(|(most, found)| is_better(most) || joins_more(most, found)) {
            best = Some((score, HeaderMatch { separator, index, cells, is_data, has_row_names }));
        }
    }
    best.map(|(_, found)| found)
}

/// A line with so many wanted names is the header of the rows below it, not a title that has one of them.
const NAMES_OF_A_HEADER: usize = 2;

/// Returns the first line with most of the wanted names; the first line that is no comment if none has any. A line below the rows
/// of a header is the header of another table, even if it has more of them.
fn line_with_names(
    lines: &[(u64, String)],
    separator: Option<char>,
    wanted: &HeaderCriteria<'_>,
) -> Option<(usize, usize, RowCells)> {
    let mut best: Option<(usize, usize, RowCells)> = None;
    let mut cells = RowCells::default();
    for (index, (_, text)) in lines.iter().enumerate() {
        let comment = is_comment(text);
        if let Some((names, _, header)) = &best
            && *names >= NAMES_OF_A_HEADER
            && cells.split(text, separator)
            && cells.len() == header.len()
            && (wanted.names)(&cells) == 0
            && cells.iter().any(is_quantity)
        {
            break;
        }
        for text in [Some(text.as_str()), comment.then(|| strip_comment(text))].into_iter().flatten() {
            cells.split(text, separator);
            let names = (wanted.names)(&cells);
            let better = match &best {
                // The sign of a comment may be a cell by itself, as in `# gpu  pwr`.
                Some((most, at, whole)) if names == *most && *at == index => {
                    let rows = |width: usize| count_matching(&lines[index + 1..], separator, width).0;
                    rows(cells.len()) > rows(whole.len())
                }
                Some((most, ..)) => names > *most,
                None => names > 0 || !comment,
            };
            if better {
                best = Some((names, index, cells.clone()));
            }
        }
    }
    best.or_else(|| {
        let (_, text) = lines.first()?;
        cells.split(text, separator);
        Some((0, 0, cells))
    })
}

/// Rows below a header that are looked at.
const ROWS_TO_MATCH: usize = 50;

/// Returns whether each row below a header has one cell more than it, and the first is a name of the row, as R writes it. Such a
/// name is quoted like the header and unique, or it is the number of the row, from 0 or 1. Between commas, where the cell more
/// may be of a decimal comma, it must be a quoted number.
fn has_row_names(lines: &[(u64, String)], separator: Option<char>, header: &RowCells) -> bool {
    let is_quoted = |text: &str| text.trim_start().starts_with('"');
    let Some(((_, first), below)) = lines.split_first() else { return false };
    let rows = below.iter().map(|(_, text)| text.as_str()).filter(|text| !is_comment(text) && *text != first);
    let rows: Vec<&str> = rows.take(ROWS_TO_MATCH).collect();
    let mut cells = RowCells::default();
    // A number and its unit are no two cells.
    let units = separator.filter(|separator| *separator == BLANKS).map(|_| BLANKS_BUT_UNITS);
    let (mut names, mut are_numbers_behind): (Vec<String>, bool) = (Vec::new(), true);
    for row in &rows {
        let is_longer = |cells: &RowCells| cells.len() == header.len() + 1 && cells.iter().last() != Some("");
        let fits = [separator, units.or(separator)].into_iter().all(|separator| cells.split(row, separator) && is_longer(&cells));
        let Some(name) = cells.get(0).filter(|_| fits) else { return false };
        names.push(name.to_owned());
        are_numbers_behind &= cells.get(1).is_some_and(is_plain_number);
    }
    let numbers: Option<Vec<u32>> = names.iter().map(|name| name.parse().ok()).collect();
    let numbers = numbers.unwrap_or_default();
    let grows = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    let is_numbered =
        numbers.len() > 1 && numbers[0] <= 1 && (numbers[0]..).zip(&numbers).all(|(place, number)| place == *number);
    let are_quoted = is_quoted(first) && rows.iter().all(|row| is_quoted(row));
    let are_distinct = || names.iter().collect::<BTreeSet<_>>().len() == names.len();
    let begins_with_time =
        header.get(0).is_some_and(|name| ["time", "date"].iter().any(|word| name.to_lowercase().contains(word)));
    let are_times = || begins_with_time && names.iter().any(|name| name.contains([':', '-', '/']));
    // Else the first column may be what the header names, and the last one has no name.
    let is_measured = numbers.len() > 2 && header.get(0).is_some_and(names_a_measurement);
    let is_time_behind = begins_with_time && !are_numbers_behind;
    match (separator, are_quoted) {
        (None, _) => false,
        // A number behind the first one may be the whole part of a decimal comma.
        (Some(','), _) => are_quoted && grows && !numbers.is_empty() && (is_measured || !are_numbers_behind),
        (_, true) => !names.is_empty() && are_distinct() && !are_times(),
        (_, false) => is_numbered && (is_measured || is_time_behind),
    }
}

/// Returns whether a column is by its name of a measurement, whose values do not count the rows.
fn names_a_measurement(name: &str) -> bool {
    const MEASURED: [&str; 14] = [
        "current",
        "energy",
        "joule",
        "mem",
        "memory",
        "power",
        "pwr",
        "temp",
        "temperature",
        "util",
        "utilization",
        "volt",
        "voltage",
        "watt",
    ];
    const COUNTED: [&str; 19] = [
        "batch", "count", "date", "elapsed", "epoch", "id", "idx", "index", "iter", "n", "no", "nr", "number", "row", "run",
        "sample", "sec", "step", "time",
    ];
    let name = name.to_lowercase();
    let has = |words: &[&str]| name.split(|c: char| !c.is_alphanumeric()).any(|word| words.contains(&word.trim_end_matches('s')));
    (has(&MEASURED) || name == "w") && !has(&COUNTED)
}

/// Returns how many lines have as many cells as the header, and how many of their cells are numbers, times or plain words.
fn count_matching(lines: &[(u64, String)], separator: Option<char>, width: usize) -> (usize, usize) {
    if width < 2 {
        return (0, 0);
    }
    let (mut consistent, mut plain) = (0, 0);
    let mut cells = RowCells::default();
    for (_, text) in lines.iter().filter(|(_, text)| !is_comment(text)).take(ROWS_TO_MATCH) {
        if cells.split(text, separator) && cells.len() == width {
            consistent += 1;
            plain += cells.iter().filter(|cell| is_plain(cell)).count();
        }
    }
    (consistent, plain)
}

fn is_plain_number(cell: &str) -> bool {
    cell.parse::<f64>().is_ok_and(f64::is_finite)
}

fn is_plain(cell: &str) -> bool {
    let time = cell.bytes().all(|byte| byte.is_ascii_digit() || b"-/.:T Z+,".contains(&byte));
    is_quantity(cell) || time || !cell.contains(SEPARATORS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ImportOptions, RecordingFormat};

    /// Header and rows, with `|` between cells, and the lines passed over.
    fn rows(text: &str, names: &[&str]) -> (Option<char>, Vec<String>, u64) {
        let mut recording = Recording::new(RecordingFormat::Csv, &ImportOptions::default());
        let lines = LineReader::new("t", text.as_bytes()).unwrap();
        let file = recording.add_file("t", lines.fingerprint);
        let found = |cells: &RowCells| names.iter().filter(|name| cells.iter().any(|cell| cell == **name)).count();
        let is_data = |cells: &RowCells| cells.iter().all(is_plain) && cells.iter().any(is_quantity);
        let wanted = HeaderCriteria { names: &found, is_data: &is_data };
        let (mut table, header) = TableReader::open(lines, &mut recording, file, &wanted).unwrap();
        let mut rows = vec![header.unwrap().names.iter().collect::<Vec<_>>().join("|")];
        let mut cells = RowCells::default();
        while table.next_row(&mut recording, file, &mut cells).unwrap().is_some() {
            rows.push(cells.iter().collect::<Vec<_>>().join("|"));
        }
        (table.separator(), rows, recording.skipped.iter().map(|skipped| skipped.lines).sum())
    }

    #[test]
    fn finds_separators_headers_and_comments() {
        for (text, separator, expected, skipped) in [
            ("time,w\n1,2\n", Some(','), vec!["time|w", "1|2"], 0),
            ("time;w\n1;2,5\n", Some(';'), vec!["time|w", "1|2,5"], 0),
            ("time      w\n---- ------\n1         2\n3         4\n", Some(' '), vec!["time|w", "1|2", "3|4"], 1),
            ("time;w, all\n1;2,5\n3;4,5\n", Some(';'), vec!["time|w, all", "1|2,5", "3|4,5"], 0),
            ("time\tw\r\n1\t2\r\n", Some('\t'), vec!["time|w", "1|2"], 0),
            ("time|w\n1|2\n", Some('|'), vec!["time|w", "1|2"], 0),
            ("sep=;\ntime;w\n1;2\n", Some(';'), vec!["time|w", "1|2"], 0),
            ("# a, b\n# c\n\ntime,w\n# d\n1,2\n\n", Some(','), vec!["time|w", "1|2"], 3),
            ("# time,w\n1,2\n", Some(','), vec!["time|w", "1|2"], 0),
            ("Device: X;;\nSerial;5\ntime;w\n1;2\n", Some(';'), vec!["time|w", "1|2"], 2),
            ("\"time\" , \"w \"\"x\"\"\"\n\"1\",\"2,5\"\n", Some(','), vec!["time|w \"x\"", "1|2,5"], 0),
            ("time,w\n1,\"two\nlines\"\n3,4\n", Some(','), vec!["time|w", "1|two\nlines", "3|4"], 0),
            ("time,w\n1,\"torn\n3,4\n", Some(','), vec!["time|w", "1|torn", "3|4"], 0),
            ("time,w\n1,\"torn\n3,4\n5,\"6\n7,8\n", Some(','), vec!["time|w", "1|torn", "3|4", "5|6", "7|8"], 0),
            ("time   w\n1      2\n3\t4\n", Some(' '), vec!["time|w", "1|2", "3|4"], 0),
            // A number and its unit are one cell, where only then the rows are as long as the header.
            ("time   w  t\n1    2 W  40 C\n3\t4.5 W  N/A\n", Some(' '), vec!["time|w|t", "1|2 W|40 C", "3|4.5 W|N/A"], 0),
            ("time   w  t\n1      2  C\n3      4  C\n", Some(' '), vec!["time|w|t", "1|2|C", "3|4|C"], 0),
            (
                "time  w   t\n1  2 W  40 C\n3  N/A  N/A\n4  5 W  N/A\n",
                Some(' '),
                vec!["time|w|t", "1|2 W|40 C", "3|N/A|N/A", "4|5 W|N/A"],
                0,
            ),
            ("# time   w\n# s      W\n  1      2\n  3      4\n", Some(' '), vec!["time|w", "1|2", "3|4"], 1),
            ("w\n200\n", None, vec!["w", "200"], 0),
            ("w\n200,5\n", None, vec!["w", "200,5"], 0),
            ("\u{feff}time,w\n1,2\n", Some(','), vec!["time|w", "1|2"], 0),
            ("\u{feff}time,w\n1,2\n\u{feff}time,w\n3,4\n", Some(','), vec!["time|w", "1|2", "time|w", "3|4"], 0),
        ] {
            assert_eq!(
                rows(text, &["time", "w"]),
                (separator, expected.iter().map(|row| (*row).to_owned()).collect(), skipped),
                "{text:?}"
            );
        }
        let (_, without_header, _) = rows("2025/02/03 10:00:00,0,120\n2025/02/03 10:00:01,0,120\n", &[]);
        assert_eq!(without_header.len(), 3, "{without_header:?}");
        assert_eq!(without_header[0], "||");
    }

    #[test]
    fn rows_with_names_of_their_own_have_a_column_without_a_name() {
        let of = |text: &str| {
            let (_, rows, _) = rows(text, &["time", "w"]);
            rows
        };
        for (what, text, expected) in [
            (
                "blanks",
                "\"time\" \"w\"\n\"1\" \"2025-02-03 10:00:00\" 2\n\"2\" \"2025-02-03 10:00:01\" NA\n",
                ["|time|w", "1|2025-02-03 10:00:00|2", "2|2025-02-03 10:00:01|NA"],
            ),
            ("tabs", "\"time\"\t\"w\"\n\"a\"\t\"x y\"\t2\n\"b\"\t\"z\"\t3\n", ["|time|w", "a|x y|2", "b|z|3"]),
            ("commas", "\"time\",\"w\"\n\"1\",\"x\",2\n\"2\",\"y\",3\n", ["|time|w", "1|x|2", "2|y|3"]),
            ("semicolons", "\"time\";\"w\"\n\"1\";\"x\";2,5\n\"2\";\"y\";3,5\n", ["|time|w", "1|x|2,5", "2|y|3,5"]),
            ("without quotes", "time w\n1 x 2\n2 y 3\n", ["|time|w", "1|x|2", "2|y|3"]),
            ("indented", " time  w\n0   x  2\n1   y  3\n", ["|time|w", "0|x|2", "1|y|3"]),
            (
                "times as names",
                "\"w\" \"x\"\n\"2025-02-03\" 2 1\n\"2025-02-04\" 3 1\n",
                ["|w|x", "2025-02-03|2|1", "2025-02-04|3|1"],
            ),
        ] {
            assert_eq!(of(text), expected, "{what}");
        }
        let numbers = of("power w\n0 252.9 60\n1 251.4 61\n2 255.9 62\n");
        assert_eq!(numbers, ["|power|w", "0|252.9|60", "1|251.4|61", "2|255.9|62"]);
        let repeated = of("\"time\" \"w\"\n\"1\" 5 2\n\"time\" \"w\"\n\"2\" 6 3\n");
        assert_eq!(repeated, ["|time|w", "1|5|2", "|time|w", "2|6|3"]);
        for (what, text) in [
            ("decimal commas", "time,w\n2025-02-03T10:00:00Z,1,5\n2025-02-03T10:00:01Z,2,5\n"),
            ("decimal commas of steps", "time,w\n1,250,5\n2,251,3\n"),
            ("decimal commas of quoted times", "\"time\",\"w\"\n\"2025-02-03 10:00:00\",1,5\n\"2025-02-03 10:00:01\",2,5\n"),
            ("units", "time w\n1 100 W\n2 200 W\n"),
            ("separators at the end", "time;w\n1;2;\n2;3;\n"),
            ("settings and a last column without a name", "w x\n100 250 3\n200 260 4\n"),
            ("a last column without a name", "time w\n1 250 70\n2 251 71\n"),
            ("steps and a last column without a name", "step w\n0 257.5 60\n1 292.2 60\n2 264.7 60\n"),
            ("steps between tabs", "n\tw\n0\t257.5\t60\n1\t292.2\t60\n2\t264.7\t60\n"),
            ("a step, a state", "step w temp\n1 251 60 P0\n2 252 60 P0\n3 253 60 P0\n"),
            ("seconds", "sec w\n0 250 0\n1 251 3\n2 252 6\n"),
            ("a count before the time", "n time w\n0 1738576800 250 61\n1 1738576801 251 61\n2 1738576802 252 61\n"),
            ("boards", "gpu w\n0 250 60\n1 251 60\n2 252 60\n"),
            ("quoted decimal commas", "\"n\",\"w\"\n\"1\",\"250\",5\n\"2\",\"250\",5\n\"3\",\"250\",5\n"),
            ("two dates and times", "time w\n20250203 10:00:00 5\n20250204 10:00:00 6\n"),
        ] {
            assert!(!of(text)[0].starts_with('|'), "{what}");
        }
    }

    #[test]
    fn an_endless_line_is_refused_with_its_number() {
        let mut recording = Recording::new(RecordingFormat::Csv, &ImportOptions::default());
        let wanted = HeaderCriteria { names: &|_| 0, is_data: &|_| false };
        let text = std::io::Read::chain("time,w\n".as_bytes(), std::io::repeat(b'7'));
        let lines = LineReader::new("t", text).unwrap();
        let file = recording.add_file("t", lines.fingerprint);
        let error = TableReader::open(lines, &mut recording, file, &wanted).err().unwrap().to_string();
        assert!(error.starts_with("t:2: line is longer than 1 MiB"), "{error}");
    }
}
