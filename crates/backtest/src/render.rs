//! The table as text and as one HTML file with plots.

use crate::{Report, Row};

macro_rules! put {
    ($out:expr, $($argument:tt)*) => { $out.push_str(&format!($($argument)*)) };
}

macro_rules! line {
    ($out:expr, $($argument:tt)*) => {{
        put!($out, $($argument)*);
        $out.push('\n');
    }};
}

/// A table for a terminal.
pub fn text(report: &Report) -> String {
    let mut out =
        format!("simulated: {} days, {} seeds; against the fixed layout, restarts included\n", report.days, report.seeds);
    let mut group = None;
    for row in &report.rows {
        let of = (&row.scenario, &row.workload, row.oversubscription);
        if group != Some(of) {
            group = Some(of);
            put!(
                out,
                "\n{} · {} · oversubscription {}\n{:<16}{:>10}{:>20}{:>9}{:>20}{:>22}{:>10}{:>14}\n",
                row.scenario,
                row.workload,
                row.oversubscription,
                "controller",
                "J/sample",
                "change mean (worst)",
                "spread",
                "throughput (worst)",
                "restarts/day (worst)",
                "turns/day",
                "all GPUs, W"
            );
        }
        let change = row.joules_per_sample_change;
        line!(
            out,
            "{:<16}{:>10.3}{:>20}{:>9}{:>20}{:>22}{:>10.1}{:>14.0}",
            row.controller,
            row.joules_per_sample.mean,
            format!("{:+.1} % ({:+.1} %)", 100.0 * change.mean, 100.0 * change.worst),
            change.deviation.map_or("–".to_owned(), |deviation| format!("{:.1} %", 100.0 * deviation)),
            format!("{:.3} ({:.3})", row.throughput_ratio.mean, row.throughput_ratio.worst),
            format!("{:.1} ({})", row.restarts_per_day.mean, row.restarts_worst_day),
            row.turns_per_day.mean,
            row.cluster_power_watts_max
        );
    }
    out
}

pub(crate) const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#1b1f24;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #d8dee4}th:first-child,td:first-child{text-align:left}
.note{color:#57606a}text{font:12px system-ui,sans-serif;fill:#1b1f24}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}th,td{border-color:#30363d}.note{color:#9198a1}text{fill:#e6edf3}}";

/// One HTML file without anything from outside.
pub fn html(report: &Report) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Backtest (simulated)</title>\n\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\n\
         <h1>Backtest (simulated)</h1>\n<p class=\"note\">{} days, {} seeds. Everything here is simulated, nothing measured. Compared with the \
         layout that nobody touches, same seed; restarts, idle power and lost work are included. The oracle knows every phase at once and \
         restarts for nothing.</p>\n",
        report.days, report.seeds
    );
    for rows in report
        .rows
        .chunk_by(|a, b| (&a.scenario, &a.workload, a.oversubscription) == (&b.scenario, &b.workload, b.oversubscription))
    {
        let first = &rows[0];
        line!(
            out,
            "<h2>{} · {} · oversubscription {}</h2>",
            escape(&first.scenario),
            escape(&first.workload),
            first.oversubscription
        );
        plot(&mut out, rows);
        out.push_str(
            "<table><tr><th>controller</th><th>J/sample</th><th>change, mean</th><th>worst</th><th>spread</th>\
             <th>throughput, mean</th><th>worst</th><th>restarts/day</th><th>worst day</th><th>turns/day</th><th>all GPUs, W</th></tr>\n",
        );
        for row in rows {
            let change = row.joules_per_sample_change;
            line!(
                out,
                "<tr><td>{}</td><td>{:.3}</td><td>{:+.1} %</td><td>{:+.1} %</td><td>{}</td><td>{:.3}</td><td>{:.3}</td><td>{:.1}</td><td>{}</td><td>{:.1}</td><td>{:.0}</td></tr>",
                row.controller,
                row.joules_per_sample.mean,
                100.0 * change.mean,
                100.0 * change.worst,
                change.deviation.map_or("–".to_owned(), |deviation| format!("{:.1} %", 100.0 * deviation)),
                row.throughput_ratio.mean,
                row.throughput_ratio.worst,
                row.restarts_per_day.mean,
                row.restarts_worst_day,
                row.turns_per_day.mean,
                row.cluster_power_watts_max
            );
        }
        out.push_str("</table>\n");
    }
    out.push_str("</body></html>\n");
    out
}

/// A bar to the mean of each controller, and a dot for each seed.
fn plot(out: &mut String, rows: &[Row]) {
    const LEFT: f64 = 130.0;
    const WIDTH: f64 = 640.0;
    const LINE: f64 = 26.0;
    let values = || rows.iter().flat_map(|row| row.changes.iter().copied());
    let low = values().fold(-0.05, f64::min) * 1.05;
    let high = values().fold(0.02, f64::max) * 1.05;
    let x = |value: f64| LEFT + WIDTH * (value - low) / (high - low);
    let height = LINE * rows.len() as f64 + 30.0;
    line!(
        out,
        "<svg viewBox=\"0 0 800 {height}\" role=\"img\" aria-label=\"change of J/sample by controller\">\
         <line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{1}\" stroke=\"#8b949e\"/>",
        x(0.0),
        height - 22.0
    );
    for (row, index) in rows.iter().zip(0_u32..) {
        let y = LINE * f64::from(index) + 4.0;
        let mean = row.joules_per_sample_change.mean;
        let (from, to) = (x(mean.min(0.0)), x(mean.max(0.0)));
        let colour = if mean < 0.0 { "#2da44e" } else { "#cf222e" };
        put!(
            out,
            "<text x=\"0\" y=\"{:.1}\">{}</text><rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"16\" fill=\"{colour}\" fill-opacity=\".45\"/>",
            y + 13.0,
            row.controller,
            (to - from).max(0.5)
        );
        for change in &row.changes {
            put!(out, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.2\" fill=\"{colour}\"/>", x(*change), y + 8.0);
        }
        out.push('\n');
    }
    line!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">change of J/sample against the fixed layout, simulated: bar mean, dots seeds ({:+.0} % to {:+.0} %)</text></svg>",
        LEFT + WIDTH / 2.0,
        height - 6.0,
        100.0 * low,
        100.0 * high
    );
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
