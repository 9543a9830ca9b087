use std::fmt::{self, Write};

use super::{NOTHING, Table, one_line, sections};
use crate::Report;

pub(super) fn render(report: &Report, out: &mut String) -> fmt::Result {
    if report.workloads.is_empty() {
        return writeln!(out, "{NOTHING}");
    }
    for section in sections(report) {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&one_line(&section.heading));
        out.push('\n');
        write_table(out, &section.table);
        for note in section.notes {
            writeln!(out, "note: {}", one_line(&note))?;
        }
    }
    Ok(())
}

fn write_table(out: &mut String, table: &Table) {
    let rows: Vec<Vec<String>> = table.rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([table.head[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.head.len()).map(width).collect();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (column, cell) in cells.enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            text.push_str("  ");
            if column < table.texts {
                text.push_str(cell);
                text.push_str(&pad);
            } else {
                text.push_str(&pad);
                text.push_str(cell);
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&mut table.head.iter().copied());
    for row in &rows {
        line(&mut row.iter().map(String::as_str));
    }
}
