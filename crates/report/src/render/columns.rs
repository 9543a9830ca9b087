//! A table in the making, column by column: the figures of a column have one prefix and one number of decimals.

use std::borrow::Cow;

use super::UNKNOWN;
use crate::units::{ColumnScale, ColumnUnit};

/// A table whose first columns are texts and whose others are figures.
#[derive(Debug)]
pub(super) struct ReportTable {
    pub(super) head: Vec<Cow<'static, str>>,
    /// Number of text columns at the left.
    pub(super) texts: usize,
    pub(super) rows: Vec<Vec<String>>,
    /// The last row, below the others.
    pub(super) total: Option<Vec<String>>,
}

/// Footer of a column of figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ColumnTotal {
    /// Figures of different workloads that add up to nothing.
    Blank,
    Figure(Option<f64>),
}

/// Builds a table from its rows.
#[derive(Debug)]
pub(super) struct TableColumns<'a, R> {
    rows: &'a [R],
    table: ReportTable,
}

impl<'a, R> TableColumns<'a, R> {
    /// Begins a table; one `with_total` has a row below the others.
    pub(super) fn new(rows: &'a [R], with_total: bool) -> Self {
        let table = ReportTable {
            head: Vec::new(),
            texts: 0,
            rows: rows.iter().map(|_| Vec::new()).collect(),
            total: with_total.then(Vec::new),
        };
        Self { rows, table }
    }

    /// Adds a column of texts at the left; none may follow a column of figures.
    pub(super) fn text(&mut self, head: impl Into<Cow<'static, str>>, total: &str, of: impl Fn(&R) -> String) {
        self.table.texts += 1;
        self.cells(head, total, of);
    }

    /// Adds a column of cells as they are.
    pub(super) fn cells(&mut self, head: impl Into<Cow<'static, str>>, total: &str, of: impl Fn(&R) -> String) {
        self.table.head.push(head.into());
        for (cells, row) in self.table.rows.iter_mut().zip(self.rows) {
            cells.push(of(row));
        }
        if let Some(cells) = &mut self.table.total {
            cells.push(total.to_owned());
        }
    }

    /// Adds a column of figures.
    pub(super) fn figures(
        &mut self,
        head: impl Into<Cow<'static, str>>,
        unit: ColumnUnit,
        total: ColumnTotal,
        of: impl Fn(&R) -> Option<f64>,
    ) {
        let mut values: Vec<Option<f64>> = self.rows.iter().map(&of).collect();
        self.add_total(&mut values, total);
        self.scaled(head, ColumnScale::of(unit, &values), total, of);
    }

    /// Adds two columns of figures that have one scale.
    pub(super) fn figure_pair(
        &mut self,
        heads: [String; 2],
        unit: ColumnUnit,
        totals: [ColumnTotal; 2],
        of: impl Fn(&R) -> [Option<f64>; 2],
    ) {
        let mut values: Vec<Option<f64>> = self.rows.iter().flat_map(&of).collect();
        for total in totals {
            self.add_total(&mut values, total);
        }
        let scale = ColumnScale::of(unit, &values);
        for (index, (head, total)) in heads.into_iter().zip(totals).enumerate() {
            self.scaled(head, scale, total, |row| of(row)[index]);
        }
    }

    /// Adds the figure of the total row, if there is one.
    fn add_total(&self, values: &mut Vec<Option<f64>>, total: ColumnTotal) {
        if let ColumnTotal::Figure(total) = total
            && self.table.total.is_some()
        {
            values.push(total);
        }
    }

    fn scaled(
        &mut self,
        head: impl Into<Cow<'static, str>>,
        scale: ColumnScale,
        total: ColumnTotal,
        of: impl Fn(&R) -> Option<f64>,
    ) {
        let shown = |value: Option<f64>| value.map_or_else(|| UNKNOWN.to_owned(), |value| scale.format(value));
        let total = match total {
            ColumnTotal::Blank => String::new(),
            ColumnTotal::Figure(total) => shown(total),
        };
        self.cells(head, &total, |row| shown(of(row)));
    }

    pub(super) fn finish(self) -> ReportTable {
        self.table
    }
}
