use std::fmt::{self, Write};

use eadt_html::{END, escape, prose};

use super::{NOTHING, ReportTable, chart, origin_mark, sections};
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
        for (index, line) in report.headline().iter().enumerate() {
            writeln!(out, "<p{}>{}</p>", if index == 0 { " class=\"verdict\"" } else { "" }, escape(line))?;
        }
        write_contents(out, report)?;
        for section in sections(report) {
            writeln!(out, "<h2>{}</h2>", escape(&section.heading))?;
            let ReportTable { head, texts, rows } = &section.table;
            out.push_str(&eadt_html::table(&section.heading, head, *texts, rows));
            if !section.notes.is_empty() {
                out.push_str("<ul>\n");
                for note in section.notes {
                    writeln!(out, "<li>{}: {}</li>", escape(&note.about), prose(&note.text))?;
                }
                out.push_str("</ul>\n");
            }
        }
        out.push_str(chart::PATTERN);
        for (index, workload) in report.by_energy().into_iter().enumerate() {
            write_workload(out, index, workload)?;
        }
    }
    out.push_str(END);
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

/// The verdict on one workload, its chart and its decisions.
fn write_workload(out: &mut String, index: usize, workload: &WorkloadReport) -> fmt::Result {
    let name = escape(&workload.workload);
    let mark = origin_mark(workload.curve.iter().map(|point| point.origin));
    writeln!(out, "<section id=\"w{index}\" aria-labelledby=\"h{index}\">\n<h2 id=\"h{index}\">{name}{mark}</h2>")?;
    writeln!(out, "<p class=\"verdict\">{}</p>", escape(&SavingSummary::of([workload]).sentence()))?;
    chart::write(out, workload)?;
    out.push_str("</section>\n");
    Ok(())
}
