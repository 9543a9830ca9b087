use std::collections::BTreeSet;
use std::fmt::{self, Write};

use eadt_schemas::v1::Origin;

use super::{NOTHING, Table, figure, one_line, origin_mark, origin_word, second, sections};
use crate::{Report, WorkloadReport};

const HEAD: &str = r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Energy report</title>
<style>
:root { color-scheme: light dark; --line: #8884; --ink: #06c; --mark: #c60; }
@media (prefers-color-scheme: dark) { :root { --ink: #6bf; --mark: #fa5; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left; }
.n { text-align: right; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor; }
polyline { fill: none; stroke: var(--ink); stroke-width: 2; } circle { fill: var(--ink); }
.simulated { stroke-dasharray: 2 4; } .imported { stroke-dasharray: 8 3; }
.axis { stroke: var(--line); } .change { stroke: var(--mark); stroke-dasharray: 4 3; }
</style>
</head>
<body>
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
        for section in sections(report) {
            writeln!(out, "<h2>{}</h2>", escape(&section.heading))?;
            write_table(out, &section.table)?;
            if !section.notes.is_empty() {
                out.push_str("<ul>\n");
                for note in section.notes {
                    writeln!(out, "<li>{}</li>", escape(&note))?;
                }
                out.push_str("</ul>\n");
            }
        }
        for workload in &report.workloads {
            write_chart(out, workload)?;
        }
    }
    out.push_str("</body>\n</html>\n");
    Ok(())
}

fn write_table(out: &mut String, table: &Table) -> fmt::Result {
    let class = |column: usize| if column < table.texts { "" } else { " class=\"n\"" };
    out.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
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

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 30.0;
const TOP: f64 = 12.0;

/// J/sample over time from zero up, broken where it is not known; dashed upright lines where changes were applied. Where origins
/// differ, the line is solid where it is measured, broken elsewhere, and a legend says so.
fn write_chart(out: &mut String, workload: &WorkloadReport) -> fmt::Result {
    let known: Vec<f64> = workload.curve.iter().filter_map(|point| point.joules_per_sample).collect();
    let (Some(first), Some(last)) = (workload.curve.first(), workload.curve.last()) else { return Ok(()) };
    let (first, last) = (&first.time, &last.time);
    let most = known.iter().copied().fold(0.0, f64::max);
    let seconds = last.seconds_since(*first);
    if known.len() < 2 || most <= 0.0 || seconds <= 0.0 {
        return Ok(());
    }
    let x = |time: eadt_schemas::EventTime| LEFT + (WIDTH - LEFT - 10.0) * time.seconds_since(*first) / seconds;
    let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / most);
    let origins: BTreeSet<Origin> = workload.curve.iter().map(|point| point.origin).collect();
    let mark = origin_mark(origins.iter().copied());
    let heading = format!("J/sample of {} over time{mark}", workload.workload);
    let heading = escape(&heading);
    writeln!(out, "<h2>{heading}</h2>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{heading}\">")?;
    let floor = y(0.0);
    writeln!(out, "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{floor:.1}\" x2=\"{WIDTH}\" y2=\"{floor:.1}\"/>")?;
    writeln!(out, "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{TOP}\" x2=\"{LEFT}\" y2=\"{floor:.1}\"/>")?;
    let at = LEFT - 8.0;
    for (value, label) in [(most, figure(Some(most))), (0.0, "0".to_owned())] {
        writeln!(out, "<text x=\"{at}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", y(value) + 4.0)?;
    }
    let below = HEIGHT - 8.0;
    writeln!(out, "<text x=\"{LEFT}\" y=\"{below}\">{}</text>", second(*first))?;
    writeln!(out, "<text x=\"{}\" y=\"{below}\" text-anchor=\"end\">{}</text>", WIDTH - 10.0, second(*last))?;
    for change in workload.changed.iter().filter(|change| (first..=last).contains(change)) {
        let at = x(*change);
        writeln!(out, "<line class=\"change\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{floor:.1}\"/>")?;
    }
    let class = |origin: Origin| match origin {
        _ if origins.len() < 2 => "",
        Origin::Measured => " class=\"measured\"",
        Origin::Imported => " class=\"imported\"",
        Origin::Simulated => " class=\"simulated\"",
    };
    for stretch in workload.curve.split(|point| point.joules_per_sample.is_none()) {
        for part in stretch.chunk_by(|a, b| a.origin == b.origin) {
            let class = class(part[0].origin);
            let points: Vec<String> = part
                .iter()
                .filter_map(|point| Some(format!("{:.1},{:.1}", x(point.time), y(point.joules_per_sample?))))
                .collect();
            match points.as_slice() {
                [] => {}
                [alone] => {
                    let (x, y) = alone.split_once(',').unwrap_or_default();
                    writeln!(out, "<circle{class} cx=\"{x}\" cy=\"{y}\" r=\"2\"/>")?;
                }
                _ => writeln!(out, "<polyline{class} points=\"{}\"/>", points.join(" "))?,
            }
        }
    }
    for (index, origin) in origins.iter().enumerate().filter(|_| origins.len() > 1) {
        let (from, y) = (LEFT + 12.0 + 140.0 * index as f64, TOP + 8.0);
        writeln!(out, "<polyline{} points=\"{from},{y} {},{y}\"/>", class(*origin), from + 36.0)?;
        writeln!(out, "<text x=\"{}\" y=\"{}\">{}</text>", from + 44.0, y + 4.0, origin_word(*origin))?;
    }
    out.push_str("</svg>\n");
    Ok(())
}

fn escape(text: &str) -> String {
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
