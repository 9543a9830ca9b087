use std::fmt::{self, Write};
use std::ops::Range;

use super::columns::ReportTable;
use super::{NOTHING, ReportSection, one_line, sections};
use crate::units::display_width;
use crate::{EnergyReport, units};

pub(super) fn render(report: &EnergyReport, width: Option<usize>, out: &mut String) -> fmt::Result {
    if report.workloads.is_empty() {
        return writeln!(out, "{NOTHING}");
    }
    write_document(&report.headline(), sections(report), width, out)
}

/// Writes lines, then tables with their headings and notes.
pub(super) fn write_document(
    lines: &[String],
    sections: Vec<ReportSection>,
    width: Option<usize>,
    out: &mut String,
) -> fmt::Result {
    for line in lines {
        for part in wrap_line(&one_line(line), width) {
            writeln!(out, "{part}")?;
        }
    }
    for section in sections {
        if !out.is_empty() {
            out.push('\n');
        }
        if !section.table.rows.is_empty() {
            out.push_str(&one_line(&section.heading));
            out.push('\n');
            write_table(out, &section.table, width);
        }
        for note in section.notes {
            for part in wrap_line(&one_line(&format!("note: {note}")), width) {
                writeln!(out, "{part}")?;
            }
        }
    }
    Ok(())
}

/// Breaks a line between its words, with later parts indented.
fn wrap_line(line: &str, width: Option<usize>) -> Vec<String> {
    let width = width.unwrap_or(usize::MAX);
    let mut parts = vec![String::new()];
    for word in line.split(' ') {
        let part = parts.last_mut().expect("one");
        if part.trim().is_empty() {
            part.push_str(word);
        } else if display_width(part) + 1 + display_width(word) <= width {
            part.push(' ');
            part.push_str(word);
        } else {
            parts.push(format!("  {word}"));
        }
    }
    parts
}

const GAP: usize = 2;
/// The first column keeps so many cells on a terminal of any width: a time is not cut.
const NAME_LEAST: usize = 30;

fn write_table(out: &mut String, table: &ReportTable, width: Option<usize>) {
    // A name that fills the line would be alone in each part.
    let room = width.map_or(usize::MAX, |width| (width / 2).max(NAME_LEAST));
    let cell = |(column, cell): (usize, &String)| {
        let cell = one_line(cell);
        if column == 0 { units::shortened(&cell, room) } else { cell }
    };
    let all = table.rows.iter().chain(&table.total);
    let rows: Vec<Vec<String>> = all.map(|row| row.iter().enumerate().map(cell).collect()).collect();
    let wide = |column: usize| {
        let cells = rows.iter().map(|row| display_width(&row[column]));
        cells.chain([display_width(&table.head[column])]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.head.len()).map(wide).collect();
    for (part, columns) in split_columns(&widths, width).into_iter().enumerate() {
        // The first column identifies the row.
        let columns: Vec<usize> = (part > 0).then_some(0).into_iter().chain(columns).collect();
        if part > 0 {
            out.push('\n');
        }
        let mut line = |cell_of: &dyn Fn(usize) -> String| {
            let mut text = String::new();
            for column in &columns {
                let cell = cell_of(*column);
                let pad = " ".repeat(widths[*column].saturating_sub(display_width(&cell)));
                text.push_str(&" ".repeat(GAP));
                if *column < table.texts {
                    text.push_str(&cell);
                    text.push_str(&pad);
                } else {
                    text.push_str(&pad);
                    text.push_str(&cell);
                }
            }
            out.push_str(text.trim_end());
            out.push('\n');
        };
        line(&|column| table.head[column].to_string());
        for row in &rows {
            line(&|column| row[column].clone());
        }
    }
}

/// Returns the columns of the parts that a table is broken into, those after the first part without the first column. Each has at
/// least one: what is wider than the terminal alone is left to it.
fn split_columns(widths: &[usize], width: Option<usize>) -> Vec<Range<usize>> {
    let width = width.unwrap_or(usize::MAX);
    let (mut parts, mut start, mut used) = (Vec::new(), 0, 0);
    for (column, wide) in widths.iter().enumerate() {
        if column > start.max(1) && used + GAP + wide > width {
            parts.push(start..column);
            (start, used) = (column, GAP + widths[0]);
        }
        used += GAP + wide;
    }
    parts.push(start..widths.len());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_leaves_room_for_figures() {
        let name = format!("lab/{}", "a".repeat(249));
        let (head, row) = (vec!["workload".into(), "energy J".into()], vec![name.clone(), "24357.5".to_owned()]);
        let table = ReportTable { head, rows: vec![row], texts: 1, total: None };
        let render = |width| {
            let mut out = String::new();
            write_table(&mut out, &table, width);
            out
        };
        assert!(render(None).contains(&name), "a file has the whole name");
        let narrow = render(Some(80));
        assert!(narrow.contains("lab/aaa") && narrow.contains("a…a") && narrow.ends_with("24357.5\n"), "{narrow}");
        assert!(narrow.lines().count() == 2 && narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    }

    #[test]
    fn names_with_wide_characters_move_no_figure() {
        let row = |name: &str| vec![name.to_owned(), "24357.5".to_owned()];
        let rows = [row("研究チーム/大規模"), row("e\u{301}/a"), row("team/llm")].to_vec();
        let table = ReportTable { head: vec!["workload".into(), "energy J".into()], rows, texts: 1, total: None };
        let mut out = String::new();
        write_table(&mut out, &table, Some(80));
        let widths: Vec<usize> = out.lines().map(display_width).collect();
        assert_eq!(widths, [29; 4], "{out}");
    }

    #[test]
    fn a_wide_table_is_broken_between_columns() {
        assert_eq!(split_columns(&[10, 5, 5], None), std::slice::from_ref(&(0..3)));
        assert_eq!(split_columns(&[10, 5, 5], Some(26)), std::slice::from_ref(&(0..3)));
        assert_eq!(split_columns(&[10, 5, 5], Some(25)), [0..2, 2..3]);
        assert_eq!(split_columns(&[10, 5, 5, 5, 5], Some(26)), [0..3, 3..5]);
        // Narrower than any two columns: one beside the first, all the same.
        assert_eq!(split_columns(&[10, 5, 5], Some(4)), [0..2, 2..3]);
        assert_eq!(split_columns(&[10], Some(4)), std::slice::from_ref(&(0..1)));
    }
}
