use std::fmt::{self, Write};

use eadt_html::{END, escape, prose};

use super::columns::ReportTable;
use super::{NOTHING, ReportSection, SharedNote, chart, origin_mark, sections};
use crate::{EnergyReport, SavingSummary, WorkloadReport, units};

/// Rules of the charts.
const RULES: &str = "svg.defs { position: absolute; width: 0; height: 0; } svg.key { width: 36px; height: 8px; }
polyline { fill: none; stroke: var(--ink); stroke-width: 2; } circle { fill: var(--ink); }
.power { stroke: var(--power); } .baseline { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 6 4; }
.simulated { stroke-dasharray: 2 4; } .imported { stroke-dasharray: 8 3; }
.phase0 { fill: var(--shade); } .phase1 { fill: none; } .hatch { stroke: var(--mark); stroke-width: 1.5; }
.change { stroke: var(--mark); stroke-width: .7; stroke-dasharray: 2 3; }
";

pub(super) fn render(report: &EnergyReport, out: &mut String) -> fmt::Result {
    out.push_str(&eadt_html::begin("Energy report", "Energy report", RULES));
    if report.workloads.is_empty() {
        writeln!(out, "<p>{NOTHING}</p>")?;
    } else {
        write_lines(&report.headline(), out)?;
        write_contents(out, report)?;
        write_sections(sections(report), out)?;
        out.push_str(chart::PATTERN);
        for (index, workload) in report.by_energy().into_iter().enumerate() {
            write_workload(out, index, workload)?;
        }
    }
    out.push_str(END);
    Ok(())
}

/// Writes a page without charts.
pub(super) fn write_document(title: &str, lines: &[String], sections: Vec<ReportSection>, out: &mut String) -> fmt::Result {
    out.push_str(&eadt_html::begin(title, title, ""));
    write_lines(lines, out)?;
    write_sections(sections, out)?;
    out.push_str(END);
    Ok(())
}

/// Writes lines of which the first is the verdict.
fn write_lines(lines: &[String], out: &mut String) -> fmt::Result {
    for (index, line) in lines.iter().enumerate() {
        writeln!(out, "<p{}>{}</p>", if index == 0 { " class=\"verdict\"" } else { "" }, escape(line))?;
    }
    Ok(())
}

/// Writes tables with their headings and notes.
fn write_sections(sections: Vec<ReportSection>, out: &mut String) -> fmt::Result {
    for section in sections {
        let ReportTable { head, texts, rows, total } = &section.table;
        if !rows.is_empty() {
            writeln!(out, "<h2>{}</h2>", escape(&section.heading))?;
            out.push_str(&eadt_html::table_with_total(&section.heading, head, *texts, rows, total.as_deref()));
        }
        if !section.notes.is_empty() {
            out.push_str("<ul>\n");
            for SharedNote { about, text } in &section.notes {
                let about = if about.is_empty() { String::new() } else { format!("{}: ", escape(about)) };
                writeln!(out, "<li>{about}{}</li>", prose(text))?;
            }
            out.push_str("</ul>\n");
        }
    }
    Ok(())
}

/// Workloads from which on there is a list of them.
const CONTENTS: usize = 3;

fn write_contents(out: &mut String, report: &EnergyReport) -> fmt::Result {
    if report.workloads.len() < CONTENTS {
        return Ok(());
    }
    out.push_str("<nav aria-label=\"Workloads\"><h2>Workloads, those that used most energy first</h2>\n<ul>\n");
    for (index, workload) in report.by_energy().into_iter().enumerate() {
        let energy = workload.energy_joules.map_or_else(|| units::UNKNOWN.to_owned(), units::format_joules);
        writeln!(out, "<li><a href=\"#w{index}\">{}</a> {energy}</li>", escape(&workload.workload))?;
    }
    out.push_str("</ul></nav>\n");
    Ok(())
}

/// Writes the verdict on one workload, its chart and its decisions.
fn write_workload(out: &mut String, index: usize, workload: &WorkloadReport) -> fmt::Result {
    let name = escape(&workload.workload);
    let mark = origin_mark(workload.curve.iter().map(|point| point.origin));
    writeln!(out, "<section id=\"w{index}\" aria-labelledby=\"h{index}\">\n<h2 id=\"h{index}\">{name}{mark}</h2>")?;
    writeln!(out, "<p class=\"verdict\">{}</p>", escape(&SavingSummary::of([workload]).sentence()))?;
    chart::write(out, workload)?;
    out.push_str("</section>\n");
    Ok(())
}
