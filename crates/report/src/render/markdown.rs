use std::fmt::{self, Write};

use super::columns::ReportTable;
use super::{NOTHING, ReportSection, one_line, sections};
use crate::EnergyReport;

pub(super) fn render(report: &EnergyReport, out: &mut String) -> fmt::Result {
    let lines = if report.workloads.is_empty() { vec![NOTHING.to_owned()] } else { report.headline() };
    let sections = if report.workloads.is_empty() { Vec::new() } else { sections(report) };
    write_document("Energy report", &lines, sections, out)
}

/// Writes a title, lines of which the first is the verdict, and tables with their headings and notes.
pub(super) fn write_document(title: &str, lines: &[String], sections: Vec<ReportSection>, out: &mut String) -> fmt::Result {
    writeln!(out, "# {title}")?;
    if let Some((first, others)) = lines.split_first() {
        let first = escape(first);
        // Without a table there is no verdict.
        if sections.is_empty() {
            writeln!(out, "\n{first}")?;
        } else {
            writeln!(out, "\n**{first}**\n")?;
        }
        for line in others {
            writeln!(out, "- {}", escape(line))?;
        }
    }
    for section in sections {
        if !section.table.rows.is_empty() {
            writeln!(out, "\n## {}\n", escape(&section.heading))?;
            write_table(out, &section.table)?;
        }
        if !section.notes.is_empty() {
            out.push('\n');
        }
        for note in section.notes {
            writeln!(out, "- {}", escape(&note.to_string()))?;
        }
    }
    Ok(())
}

fn write_table(out: &mut String, table: &ReportTable) -> fmt::Result {
    let heads: Vec<String> = table.head.iter().map(|head| escape(head)).collect();
    write!(out, "| {} |\n|", heads.join(" | "))?;
    for column in 0..table.head.len() {
        out.push_str(if column < table.texts { "---|" } else { "---:|" });
    }
    out.push('\n');
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(|cell| escape(cell)).collect();
        writeln!(out, "| {} |", cells.join(" | "))?;
    }
    if let Some(total) = &table.total {
        let bold = |cell: &String| if cell.is_empty() { String::new() } else { format!("**{}**", escape(cell)) };
        writeln!(out, "| {} |", total.iter().map(bold).collect::<Vec<_>>().join(" | "))?;
    }
    Ok(())
}

/// Escapes a name, so that nothing in it becomes markup, a new cell or HTML.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '!' | '~' => {
                out.push('\\');
                out.push(c);
            }
            _ => out.push(c),
        }
    }
    out
}
