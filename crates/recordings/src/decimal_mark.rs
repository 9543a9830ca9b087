//! The decimal mark of a table, by all of its numbers.

use crate::error::quote;
use crate::quantity::{DecimalMark, QuantityCell, is_quantity, parse_quantity, proven_mark};
use crate::table::TableReader;

/// Remedy for an error of [`DecimalMarkDetector::read`].
pub(crate) const MARK_REMEDY: &str = "use --decimal point or --decimal comma";

/// The decimal mark of one table: as the user states it, else as the numbers show.
#[derive(Debug)]
pub(crate) struct DecimalMarkDetector {
    is_explicit: bool,
    mark: Option<DecimalMark>,
    /// Numbers of both marks are among the rows read ahead.
    mixed: bool,
    /// It is open whether `1.200` is a thousand and more: columns are separated as in files with a comma as the decimal mark.
    point_is_open: bool,
    /// The first row with a number that has either reading.
    guessed: Option<u64>,
}

impl DecimalMarkDetector {
    /// Finds the mark by the rows that are read ahead, first by the numbers in `columns`.
    pub(crate) fn new(table: &TableReader<'_>, columns: &[usize], stated: Option<DecimalMark>) -> Self {
        let marks = |mark| Self { is_explicit: stated.is_some(), mark, mixed: false, point_is_open: false, guessed: None };
        if stated.is_some() {
            return marks(stated);
        }
        let (mut points, mut commas, mut either_point, mut either_comma) = (false, false, false, false);
        let (mut table_points, mut table_commas) = (false, false);
        table.peek(|cells| {
            for mark in cells.iter().filter_map(proven_mark) {
                table_points |= mark == DecimalMark::Point;
                table_commas |= mark == DecimalMark::Comma;
            }
            for cell in columns.iter().filter_map(|column| cells.get(*column)) {
                match proven_mark(cell) {
                    Some(DecimalMark::Point) => points = true,
                    Some(DecimalMark::Comma) => commas = true,
                    None if is_quantity(cell) => {
                        either_point |= cell.contains('.');
                        either_comma |= cell.contains(',');
                    }
                    None => {}
                }
            }
        });
        let separator = table.separator();
        match (points, commas) {
            (true, true) => Self { mixed: true, ..marks(None) },
            (true, false) => marks(Some(DecimalMark::Point)),
            (false, true) => marks(Some(DecimalMark::Comma)),
            // `1.200` beside `85,5` in a column that is not mapped: a table has one decimal mark.
            (false, false) if (either_point || either_comma) && table_commas && !table_points && separator != Some(',') => {
                marks(Some(DecimalMark::Comma))
            }
            (false, false) if either_point && table_points && !table_commas => marks(Some(DecimalMark::Point)),
            (false, false) if !either_comma => Self { point_is_open: separator == Some(';'), ..marks(None) },
            (false, false) if either_point => marks(None),
            // `1,234` alone: a file that separates columns with a comma has no decimal comma.
            (false, false) if separator == Some(',') => marks(Some(DecimalMark::Point)),
            (false, false) if separator == Some(';') => marks(Some(DecimalMark::Comma)),
            (false, false) => marks(None),
        }
    }

    pub(crate) fn mark(&self) -> Option<DecimalMark> {
        self.mark
    }

    /// Reads a cell. Returns an error if it has two readings, or proves another mark than numbers above were read with.
    pub(crate) fn read(&mut self, line: u64, text: &str) -> Result<QuantityCell, String> {
        let found = parse_quantity(text, self.mark);
        let open = || format!("{} may be a thousand and more, or one and a fraction", quote(text));
        match found {
            QuantityCell::Ambiguous => return Err(open()),
            QuantityCell::Number(..) if !self.is_explicit && text.contains([',', '.']) => {}
            _ => return Ok(found),
        }
        match proven_mark(text) {
            None if self.point_is_open && self.mark.is_none() && text.contains('.') => Err(open()),
            None => {
                self.guessed.get_or_insert(line);
                Ok(found)
            }
            Some(mark) => {
                if self.point_is_open {
                    self.mark.get_or_insert(mark);
                }
                match self.guessed {
                    Some(first) if !self.mixed && self.mark.unwrap_or(DecimalMark::Point) != mark => {
                        Err(format!("{} has another decimal mark than line {first}", quote(text)))
                    }
                    _ => Ok(found),
                }
            }
        }
    }
}
