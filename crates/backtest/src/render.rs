//! The table as text and as one HTML file with plots.

use eadt_html::{END, escape};
use eadt_schemas::counts::counted;
use eadt_schemas::figures::format_signed_percent;

use crate::{BacktestReport, BacktestRow, Contender};

macro_rules! put {
    ($out:expr, $($argument:tt)*) => { $out.push_str(&format!($($argument)*)) };
}

macro_rules! line {
    ($out:expr, $($argument:tt)*) => {{
        put!($out, $($argument)*);
        $out.push('\n');
    }};
}

/// Returns a table for a terminal.
pub fn text(report: &BacktestReport) -> String {
    let mut out = format!("simulated: {}; against the fixed layout, restarts included\n", length(report));
    let mut group = None;
    for row in &report.rows {
        let of = (&row.scenario, &row.workload, row.oversubscription);
        if group != Some(of) {
            group = Some(of);
            put!(
                out,
                "\n{} · {} · oversubscription {}\n{:<16}{:>10}{:>20}{:>9}{:>20}{:>28}{:>11}{:>14}\n",
                row.scenario,
                row.workload,
                row.oversubscription,
                "controller",
                "J/sample",
                "change mean (worst)",
                "spread",
                "throughput (worst)",
                "restarts/day (most in 24 h)",
                "turns/day",
                "all GPUs, W"
            );
        }
        let change = row.joules_per_sample_change;
        line!(
            out,
            "{:<16}{:>10.3}{:>20}{:>9}{:>20}{:>28}{:>11.1}{:>14}",
            row.controller,
            row.joules_per_sample.mean,
            format!("{} ({})", format_signed_percent(change.mean, 1), format_signed_percent(change.worst, 1)),
            change.deviation.map_or("–".to_owned(), |deviation| format!("{:.1} %", 100.0 * deviation)),
            format!("{:.3} ({:.3})", row.throughput_ratio.mean, row.throughput_ratio.worst),
            format!("{:.1} ({})", row.restarts_per_day.mean, row.restarts_worst_day),
            row.turns_per_day.mean,
            most_watts(row)
        );
    }
    out
}

/// Returns days and seeds in words.
fn length(report: &BacktestReport) -> String {
    format!("{}, {}", counted(report.days, "day"), counted(report.seeds, "seed"))
}

/// Returns the highest power of all GPUs; "–" if the run was too short for a window that counts.
fn most_watts(row: &BacktestRow) -> String {
    if row.cluster_power_watts_max > 0.0 { format!("{:.0}", row.cluster_power_watts_max) } else { "–".to_owned() }
}

/// Rules of the bars and dots.
pub(crate) const RULES: &str = ".less { fill: var(--good); } .more { fill: var(--bad); } rect { fill-opacity: .45; }
";

/// Returns one HTML file without anything from outside.
pub fn html(report: &BacktestReport) -> String {
    let title = "Backtest (simulated)";
    let mut out = eadt_html::begin(title, title, RULES);
    for (index, verdict) in comparisons(report).map(verdict).enumerate() {
        line!(out, "<p{}>simulated: {}</p>", if index == 0 { " class=\"verdict\"" } else { "" }, escape(&verdict));
    }
    line!(
        out,
        "<p>{}. Everything here is simulated, nothing measured. Compared with the fixed layout, same seed; \
         restarts, idle power and lost work are included. The oracle knows every phase at once and restarts for nothing.</p>",
        length(report)
    );
    for rows in comparisons(report) {
        let heading = heading(&rows[0]);
        line!(out, "<h2>{}</h2>", escape(&heading));
        plot(&mut out, &heading, rows);
        let cells = |row: &BacktestRow| {
            let change = row.joules_per_sample_change;
            [
                row.controller.to_string(),
                format!("{:.3}", row.joules_per_sample.mean),
                format_signed_percent(change.mean, 1),
                format_signed_percent(change.worst, 1),
                change.deviation.map_or("–".to_owned(), |deviation| format!("{:.1} %", 100.0 * deviation)),
                format!("{:.3}", row.throughput_ratio.mean),
                format!("{:.3}", row.throughput_ratio.worst),
                format!("{:.1}", row.restarts_per_day.mean),
                row.restarts_worst_day.to_string(),
                format!("{:.1}", row.turns_per_day.mean),
                most_watts(row),
            ]
        };
        out.push_str(&eadt_html::table(&heading, &HEAD, 1, rows.iter().map(cells)));
    }
    out.push_str(END);
    out
}

/// Returns the rows of each comparison: one scenario, workload and oversubscription.
fn comparisons(report: &BacktestReport) -> impl Iterator<Item = &[BacktestRow]> {
    report.rows.chunk_by(|a, b| (&a.scenario, &a.workload, a.oversubscription) == (&b.scenario, &b.workload, b.oversubscription))
}

fn heading(row: &BacktestRow) -> String {
    format!("{} · {} · oversubscription {}", row.scenario, row.workload, row.oversubscription)
}

/// Returns a sentence with the J/sample of the best controller of a comparison against the fixed layout, and that of the oracle.
fn verdict(rows: &[BacktestRow]) -> String {
    let change = |row: &BacktestRow| row.joules_per_sample_change.mean;
    let is_controller = |row: &&BacktestRow| !matches!(row.controller, Contender::Fixed | Contender::Oracle);
    let best = rows.iter().filter(is_controller).min_by(|a, b| change(a).total_cmp(&change(b)));
    let Some(best) = best else { return format!("{}: no controller ran", heading(&rows[0])) };
    let words = if change(best) < 0.0 { "saves most" } else { "saves nothing, and is the best" };
    let oracle = rows.iter().find(|row| row.controller == Contender::Oracle);
    let oracle = oracle.map_or_else(String::new, |row| format!("; the oracle {}", format_signed_percent(change(row), 1)));
    format!(
        "{}: {} {words}: {} J/sample ({} in the worst seed) at {:.0} % of the throughput{oracle}",
        heading(best),
        best.controller,
        format_signed_percent(change(best), 1),
        format_signed_percent(best.joules_per_sample_change.worst, 1),
        100.0 * best.throughput_ratio.mean
    )
}

const HEAD: [&str; 11] = [
    "controller",
    "J/sample",
    "change, mean",
    "worst",
    "spread",
    "throughput, mean",
    "worst",
    "restarts/day",
    "most in 24 h",
    "turns/day",
    "all GPUs, W",
];

/// Draws a bar to the mean of each controller, and a dot for each seed.
fn plot(out: &mut String, heading: &str, rows: &[BacktestRow]) {
    const LEFT: f64 = 130.0;
    const WIDTH: f64 = 640.0;
    const LINE: f64 = 26.0;
    let values = || rows.iter().flat_map(|row| row.changes.iter().copied());
    let low = values().fold(-0.05, f64::min) * 1.05;
    let high = values().fold(0.02, f64::max) * 1.05;
    let x = |value: f64| LEFT + WIDTH * (value - low) / (high - low);
    let height = LINE * rows.len() as f64 + 48.0;
    let floor = height - 40.0;
    line!(
        out,
        "<svg viewBox=\"0 0 800 {height}\" role=\"img\" aria-label=\"change of J/sample by controller: {2}\">\
         <line class=\"axis\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{1}\"/>",
        x(0.0),
        floor,
        escape(heading)
    );
    line!(out, "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{floor}\" y2=\"{floor}\"/>", LEFT + WIDTH);
    for (value, label) in eadt_html::percent_ticks(low, high, 6) {
        let (at, below) = (x(value), floor + 15.0);
        put!(out, "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{floor}\" y2=\"{}\"/>", floor + 4.0);
        line!(out, "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{label}</text>");
    }
    for (row, index) in rows.iter().zip(0_u32..) {
        let y = LINE * f64::from(index) + 4.0;
        let mean = row.joules_per_sample_change.mean;
        let (from, to) = (x(mean.min(0.0)), x(mean.max(0.0)));
        let class = if mean < 0.0 { "less" } else { "more" };
        put!(
            out,
            "<text x=\"0\" y=\"{:.1}\">{}</text><rect class=\"{class}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"16\"/>",
            y + 13.0,
            row.controller,
            (to - from).max(0.5)
        );
        for change in &row.changes {
            put!(out, "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.2\"/>", x(*change), y + 8.0);
        }
        out.push('\n');
    }
    line!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">change of J/sample against the fixed layout, simulated: bar mean, dots seeds</text></svg>",
        LEFT + WIDTH / 2.0,
        height - 6.0
    );
}
