use std::fmt::{self, Write};

use super::{NOTHING, Table, chart, one_line, origin_mark, sections};
use crate::{Report, Summary, WorkloadReport, units};

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Energy report</title>
<style>
:root { color-scheme: light dark; --paper: #fff; --text: #1a1a1a; --line: #8886; --ink: #0b5cad; --mark: #a34a00; --power: #7a2f8f; --shade: #8882; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --text: #e8e8e8; --ink: #6bb5ff; --mark: #ffab5c; --power: #d79be8; --shade: #fff1; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 0; background: var(--paper); color: var(--text); }
main { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } h3 { font-size: 1rem; }
a { color: var(--ink); }
.verdict { font-size: 1.15rem; font-weight: 600; border-left: .3rem solid var(--ink); padding-left: .8rem; }
.legend, .small { opacity: .85; } .legend { font-size: .85rem; }
nav ul { columns: 18rem; padding-left: 1.2rem; }
.scroll { overflow-x: auto; max-width: 100%; } .scroll:focus-visible { outline: 2px solid var(--ink); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { padding: .25rem .45rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: bottom; }
td:first-child { overflow-wrap: anywhere; min-width: 8rem; }
th { font-weight: 600; } tfoot td { font-weight: 600; }
.n { text-align: right; white-space: nowrap; } th.n { white-space: normal; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor; } svg .small { font-size: 11px; }
svg.defs { position: absolute; width: 0; height: 0; } svg.key { width: 36px; height: 8px; }
polyline { fill: none; stroke: var(--ink); stroke-width: 2; } circle { fill: var(--ink); }
.power { stroke: var(--power); } .baseline { stroke: currentColor; stroke-width: 1.5; stroke-dasharray: 6 4; }
.simulated { stroke-dasharray: 2 4; } .imported { stroke-dasharray: 8 3; }
.phase0 { fill: var(--shade); } .phase1 { fill: none; } .hatch { stroke: var(--mark); stroke-width: 1.5; }
.axis { stroke: var(--line); } .change { stroke: var(--mark); stroke-width: .7; stroke-dasharray: 2 3; }
@media print { body { background: none; } .scroll { overflow: visible; } section { break-inside: avoid-page; } }
</style>
</head>
<body>
<main>
<h1>Energy report</h1>
"#;

pub(super) fn render(report: &Report, out: &mut String) -> fmt::Result {
    out.push_str(HEAD);
    if report.workloads.is_empty() {
        writeln!(out, "<p>{NOTHING}</p>")?;
    } else {
        for (index, line) in report.headline().iter().enumerate() {
            writeln!(out, "<p{}>{}</p>", if index == 0 { " class=\"verdict\"" } else { "" }, escape(line))?;
        }
        write_contents(out, report)?;
        for section in sections(report) {
            let heading = escape(&section.heading);
            writeln!(out, "<h2>{heading}</h2>")?;
            write_table(out, &section.table, &heading)?;
            if !section.notes.is_empty() {
                out.push_str("<ul>\n");
                for note in section.notes {
                    writeln!(out, "<li>{}</li>", escape(&note))?;
                }
                out.push_str("</ul>\n");
            }
        }
        out.push_str(chart::PATTERN);
        for (index, workload) in report.by_energy().into_iter().enumerate() {
            write_workload(out, index, workload)?;
        }
    }
    out.push_str("</main>\n</body>\n</html>\n");
    Ok(())
}

/// Workloads from which on there is a list of them.
const CONTENTS: usize = 3;

fn write_contents(out: &mut String, report: &Report) -> fmt::Result {
    if report.workloads.len() < CONTENTS {
        return Ok(());
    }
    out.push_str("<nav aria-label=\"Workloads\"><h2>Workloads, those that used most energy first</h2>\n<ul>\n");
    for (index, workload) in report.by_energy().into_iter().enumerate() {
        let energy = workload.energy_joules.map_or_else(|| units::UNKNOWN.to_owned(), units::joules);
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
    writeln!(out, "<p class=\"verdict\">{}</p>", escape(&Summary::of([workload]).sentence()))?;
    chart::write(out, workload)?;
    out.push_str("</section>\n");
    Ok(())
}

fn write_table(out: &mut String, table: &Table, name: &str) -> fmt::Result {
    let class = |column: usize| if column < table.texts { "" } else { " class=\"n\"" };
    // Who has no mouse scrolls it with the keys.
    write!(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{name}\"><table>\n<thead><tr>")?;
    for (column, head) in table.head.iter().enumerate() {
        write!(out, "<th scope=\"col\"{}>{}</th>", class(column), escape(head))?;
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            write!(out, "<td{}>{}</td>", class(column), escape(cell))?;
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table></div>\n");
    Ok(())
}

pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in one_line(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}
