//! Rows for people and for programs: a table, a wide table, JSON or CSV. A table has figures with units; the others raw ones.

use std::borrow::Cow;

use clap::ValueEnum;
use eadt_report::units;
use serde_json::{Map, Value};

/// In which form rows are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    #[default]
    Table,
    /// A table with all columns.
    Wide,
    Json,
    Csv,
}

/// A column: its heading for people, its name for programs.
#[derive(Debug, Clone)]
pub struct OutputColumn {
    pub heading: Cow<'static, str>,
    pub name: &'static str,
    /// Shown only if there is room: in `wide`, JSON and CSV.
    pub wide: bool,
    pub right: bool,
}

impl OutputColumn {
    pub const fn text(heading: &'static str, name: &'static str) -> Self {
        Self { heading: Cow::Borrowed(heading), name, wide: false, right: false }
    }

    pub const fn figure(heading: &'static str, name: &'static str) -> Self {
        Self { heading: Cow::Borrowed(heading), name, wide: false, right: true }
    }

    pub const fn wide(mut self) -> Self {
        self.wide = true;
        self
    }

    /// Puts another text into the heading.
    pub fn headed(self, heading: impl Into<Cow<'static, str>>) -> Self {
        Self { heading: heading.into(), ..self }
    }
}

/// A cell as people read it, and as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputCell {
    pub shown: String,
    pub value: Value,
}

impl OutputCell {
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { shown: text.clone(), value: text.into() }
    }

    /// Returns a text that may be unknown: a dash for people, nothing in JSON and CSV.
    pub fn optional_text(text: Option<String>) -> Self {
        text.map_or_else(|| Self { shown: units::UNKNOWN.to_owned(), value: Value::Null }, Self::text)
    }

    pub fn figure(value: Option<f64>, shown: impl Fn(f64) -> String) -> Self {
        Self { shown: value.map_or_else(|| units::UNKNOWN.to_owned(), shown), value: value.into() }
    }

    pub fn count(value: Option<u64>) -> Self {
        Self { shown: value.map_or_else(|| units::UNKNOWN.to_owned(), |value| value.to_string()), value: value.into() }
    }
}

/// Begins of a text that spreadsheets take for a formula.
const FORMULA_BEGINS: [char; 10] = ['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠'];

/// Returns a cell of a CSV file. Names and reasons come from others, and a spreadsheet computes what looks like a formula: an
/// apostrophe before it makes it a text. Figures stay as they are.
pub fn csv_cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.starts_with(FORMULA_BEGINS) => format!("'{text}"),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Rows below a heading.
#[derive(Debug)]
pub struct OutputTable {
    pub columns: Vec<OutputColumn>,
    pub rows: Vec<Vec<OutputCell>>,
}

impl OutputTable {
    /// Returns the sheet in this form, for a terminal of so many columns; [`OutputFormat::Table`] leaves the wide columns out.
    pub fn render(&self, form: OutputFormat, width: Option<usize>) -> anyhow::Result<String> {
        match form {
            OutputFormat::Table => Ok(self.table(false, width)),
            OutputFormat::Wide => Ok(self.table(true, None)),
            OutputFormat::Json => Ok(format!("{}\n", serde_json::to_string_pretty(&self.objects())?)),
            OutputFormat::Csv => self.csv(),
        }
    }

    fn objects(&self) -> Vec<Map<String, Value>> {
        let object = |row: &Vec<OutputCell>| {
            let fields = self.columns.iter().zip(row).map(|(column, cell)| (column.name.to_owned(), cell.value.clone()));
            fields.collect()
        };
        self.rows.iter().map(object).collect()
    }

    fn csv(&self) -> anyhow::Result<String> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(self.columns.iter().map(|column| column.name))?;
        for row in &self.rows {
            writer.write_record(row.iter().map(|cell| csv_cell(&cell.value)))?;
        }
        Ok(String::from_utf8(writer.into_inner()?)?)
    }

    /// The last column is a text that may be long: it is shortened at the terminal's edge.
    fn table(&self, wide: bool, width: Option<usize>) -> String {
        let columns: Vec<usize> = (0..self.columns.len()).filter(|index| wide || !self.columns[*index].wide).collect();
        // As it is printed, so that what would steer the terminal does not shift the columns either.
        let shown = |row: &[OutputCell], index: usize| eadt_service::redact::escape_line(&row[index].shown).into_owned();
        let widest = |index: &usize| {
            let cells = self.rows.iter().map(|row| units::display_width(&shown(row, *index)));
            cells.chain([units::display_width(&self.columns[*index].heading)]).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = columns.iter().map(widest).collect();
        let names = columns.iter().zip(&mut widths).rev().skip(1).filter(|(index, _)| !self.columns[**index].right);
        names.for_each(|(_, wide)| *wide = (*wide).min(MOST_NAME));
        if let Some(width) = width {
            fit_names(&mut widths, width, |position| self.columns[columns[position]].right);
        }
        let mut text = String::new();
        let mut line = |cell: &dyn Fn(usize) -> String| {
            let mut line = String::new();
            for (position, (index, wide)) in columns.iter().zip(&widths).enumerate() {
                let last = position + 1 == columns.len();
                let mut cell = cell(*index);
                if last
                    && !self.columns[*index].right
                    && let Some(width) = width
                {
                    let room = width.saturating_sub(units::display_width(&line)).max(LEAST_LAST);
                    if units::display_width(&cell) > room {
                        cell = format!("{}…", units::first_cells(&cell, room - 1));
                    }
                }
                let pad = " ".repeat(wide.saturating_sub(units::display_width(&cell)));
                let parts = if self.columns[*index].right { [&*pad, &*cell] } else { [&*cell, &*pad] };
                line.extend(parts);
                line += "   ";
            }
            text.push_str(line.trim_end());
            text.push('\n');
        };
        line(&|index| self.columns[index].heading.clone().into_owned());
        for row in &self.rows {
            line(&|index| {
                let position = columns.iter().position(|column| *column == index).unwrap_or(0);
                // The last column is cut where the terminal ends. Beside no terminal a long name is whole, and moves its own row only.
                let is_whole = width.is_none() || position + 1 == columns.len();
                let room = if is_whole { usize::MAX } else { widths[position] };
                units::shortened(&shown(row, index), room)
            });
        }
        text
    }
}

/// Width of a column of names, at most: one long name would widen every row.
const MOST_NAME: usize = 60;

/// Width of the last column, at least.
const LEAST_LAST: usize = 20;

/// Narrows the columns of names, which lose their middle, if the others would not fit beside them. No figure is narrowed, nor
/// is the last column.
fn fit_names(widths: &mut [usize], width: usize, is_figure: impl Fn(usize) -> bool) {
    let most = (width / 3).max(20);
    let Some(last) = widths.len().checked_sub(1) else { return };
    // The last column is cut at the terminal's edge, if it is a text.
    let least_last = if is_figure(last) { widths[last] } else { widths[last].min(LEAST_LAST) };
    for position in (0..last).filter(|position| !is_figure(*position)) {
        let over = (widths[..last].iter().map(|wide| wide + 3).sum::<usize>() + least_last).saturating_sub(width);
        widths[position] = widths[position].min(most.max(widths[position].saturating_sub(over)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_cuts_no_name_that_fits() {
        let uuid = "GPU-5c3e9f1a-0b7d-4d2e-9a61-7f3b2c1d0e4f";
        let columns =
            vec![OutputColumn::text("GPU", "gpu"), OutputColumn::figure("W", "w"), OutputColumn::text("REASON", "reason")];
        let row = vec![OutputCell::text(uuid), OutputCell::count(Some(300)), OutputCell::text("because ".repeat(40))];
        let sheet = OutputTable { columns, rows: vec![row] };
        for width in [100, 72] {
            let text = sheet.render(OutputFormat::Table, Some(width)).unwrap();
            assert!(text.contains(uuid) && text.lines().all(|line| line.chars().count() <= width), "{text}");
        }
        assert!(!sheet.render(OutputFormat::Table, Some(60)).unwrap().contains(uuid));
    }

    #[test]
    fn names_with_wide_characters_move_no_figure() {
        let columns = vec![OutputColumn::text("WORKLOAD", "workload"), OutputColumn::figure("W", "w")];
        let row = |name: &str| vec![OutputCell::text(name), OutputCell::count(Some(300))];
        let sheet = OutputTable { columns, rows: ["研究チーム/大規模", "e\u{301}/a", "lab/b"].map(row).to_vec() };
        let text = sheet.render(OutputFormat::Table, Some(80)).unwrap();
        assert!(text.lines().all(|line| units::display_width(line) == 17 + 3 + 3), "{text}");
    }

    #[test]
    fn one_long_name_widens_no_other_row() {
        let columns = vec![OutputColumn::text("WORKLOAD", "workload"), OutputColumn::figure("W", "w")];
        let long = format!("lab/{}", "a".repeat(249));
        let row = |name: &str| vec![OutputCell::text(name), OutputCell::count(Some(300))];
        let sheet = OutputTable { columns, rows: [long.as_str(), "lab/b"].map(row).to_vec() };
        for (form, width) in [(OutputFormat::Table, None), (OutputFormat::Table, Some(400)), (OutputFormat::Wide, Some(400))] {
            let text = sheet.render(form, width).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[2].chars().count(), MOST_NAME + 3 + 3, "{text}");
            let is_cut = form == OutputFormat::Table && width.is_some();
            assert!(lines[1].contains(&long) != is_cut && lines[1].ends_with("   300"), "{text}");
        }
        assert!(sheet.render(OutputFormat::Csv, None).unwrap().contains(&long));
    }

    #[test]
    fn a_name_is_no_formula_and_a_negative_figure_is_one_still() {
        let columns = vec![OutputColumn::text("WORKLOAD", "workload"), OutputColumn::figure("SAVED", "saving_ratio")];
        let row = |name: &str| vec![OutputCell::text(name), OutputCell::figure(Some(-0.5), |ratio| ratio.to_string())];
        let sheet = OutputTable { columns, rows: ["=1+1/b", "@SUM/y", "-2+3/z", "a/=b"].map(row).to_vec() };
        let csv = sheet.render(OutputFormat::Csv, None).unwrap();
        assert_eq!(csv, "workload,saving_ratio\n'=1+1/b,-0.5\n'@SUM/y,-0.5\n'-2+3/z,-0.5\na/=b,-0.5\n");
        assert!(sheet.render(OutputFormat::Json, None).unwrap().contains("\"=1+1/b\""));
    }

    #[test]
    fn one_sheet_has_four_forms() {
        let columns = vec![
            OutputColumn::text("WORKLOAD", "workload"),
            OutputColumn::figure("POWER", "power_watts"),
            OutputColumn::figure("GPUS", "gpus").wide(),
            OutputColumn::text("REASON", "reason"),
        ];
        let row = |name: &str, power: Option<f64>, reason: &str| {
            vec![
                OutputCell::text(name),
                OutputCell::figure(power, eadt_report::units::format_watts),
                OutputCell::count(Some(4)),
                OutputCell::text(reason),
            ]
        };
        let sheet =
            OutputTable { columns, rows: vec![row("a/b", Some(31_200.5), "slow, so back"), row("a/\u{1b}long-name", None, "")] };
        let render = |form, width| sheet.render(form, width).unwrap();
        assert_eq!(
            render(OutputFormat::Table, None),
            "WORKLOAD              POWER   REASON\na/b                 31.2 kW   slow, so back\na/\\u001blong-name         –\n"
        );
        assert!(render(OutputFormat::Wide, None).contains("GPUS"));
        assert_eq!(
            render(OutputFormat::Csv, None),
            "workload,power_watts,gpus,reason\na/b,31200.5,4,\"slow, so back\"\na/\u{1b}long-name,,4,\n"
        );
        let json: Value = serde_json::from_str(&render(OutputFormat::Json, None)).unwrap();
        assert_eq!((&json[0]["power_watts"], &json[1]["power_watts"]), (&31_200.5.into(), &Value::Null));
        let long = format!("lab/{}", "a".repeat(249));
        let with_long = OutputTable { columns: sheet.columns.clone(), rows: vec![row(&long, Some(31_200.5), "slow, so back")] };
        let on_terminal = with_long.render(OutputFormat::Table, Some(80)).unwrap();
        assert!(on_terminal.contains("lab/aaa") && on_terminal.contains("a…a"), "{on_terminal}");
        assert!(on_terminal.contains("31.2 kW   slow, so back\n"), "{on_terminal}");
        assert!(on_terminal.lines().all(|line| line.chars().count() <= 80), "{on_terminal}");
        assert!(with_long.render(OutputFormat::Table, None).unwrap().contains(&long), "a pipe has the whole name");
        let narrow = render(OutputFormat::Table, Some(40));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    }
}
