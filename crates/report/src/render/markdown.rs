use std::fmt::{self, Write};

use super::{NOTHING, ReportTable, one_line, sections};
use crate::EnergyReport;

pub(super) fn render(report: &EnergyReport, out: &mut String) -> fmt::Result {
    out.push_str("# Energy report\n");
    if report.workloads.is_empty() {
        writeln!(out, "\n{NOTHING}")?;
        return Ok(());
    }
    let (first, others) =
        report.headline().split_first().map(|(first, others)| (first.clone(), others.to_vec())).unwrap_or_default();
    writeln!(out, "\n**{}**\n", escape(&first))?;
    for line in others {
        writeln!(out, "- {}", escape(&line))?;
    }
    for section in sections(report) {
        writeln!(out, "\n## {}\n", escape(&section.heading))?;
        write_table(out, &section.table)?;
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
    Ok(())
}

/// Nothing in a name becomes markup, a new cell or HTML.
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
