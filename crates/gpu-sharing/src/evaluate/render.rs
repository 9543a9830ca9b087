//! Findings as a table for terminals and as a page.

use std::fmt::{self, Write};

use eadt_html::{END, escape};
use eadt_schemas::figures::{format_percent, format_signed_percent};

use super::{EvaluatedMethod, EvaluationFindings, FindingLine};

impl EvaluationFindings {
    /// Tables, one a split; ratios in percent.
    pub fn text(&self) -> String {
        let mut text = String::new();
        write_text(self, &mut text).expect("writing to a String cannot fail");
        text
    }

    /// Renders one self-contained page: the tables, and a bar for every workload. `notes` come below the heading.
    pub fn html(&self, heading: &str, notes: &[String]) -> String {
        let mut page = String::new();
        write_html(self, heading, notes, &mut page).expect("writing to a String cannot fail");
        page
    }

    /// Returns the lines of each split, in order.
    fn splits(&self) -> impl Iterator<Item = &[FindingLine]> {
        self.lines.chunk_by(|a, b| a.split == b.split)
    }
}

/// Header of a column, and its value.
type FindingColumn = (&'static str, fn(&FindingLine) -> Option<f64>);

const COLUMNS: [FindingColumn; 7] = [
    ("throughput error %", |line| line.score.throughput_error_ratio),
    ("power error %", |line| line.score.power_error_ratio),
    ("% of oracle", |line| Some(line.score.of_oracle_ratio)),
    ("mean gain %", |line| Some(line.score.gain_mean_ratio)),
    ("largest gain %", |line| Some(line.score.gain_max_ratio)),
    ("worse than equal %", |line| Some(line.score.worse_than_equal_ratio)),
    ("starves one %", |line| Some(line.score.starved_ratio)),
];

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{:.2}", value * 100.0))
}

fn write_text(findings: &EvaluationFindings, out: &mut String) -> fmt::Result {
    for lines in findings.splits() {
        let Some(first) = lines.first() else { continue };
        writeln!(out, "\n{} ({} choices)", first.split, first.score.choices)?;
        write!(out, "  {:<25}", "")?;
        for (head, _) in COLUMNS {
            write!(out, "{:>width$}", head, width = head.len() + 2)?;
        }
        writeln!(out)?;
        for line in lines {
            write!(out, "  {:<25}", line.method.title())?;
            for (head, value) in COLUMNS {
                write!(out, "{:>width$}", percent(value(line)), width = head.len() + 2)?;
            }
            writeln!(out)?;
        }
    }
    if let Some((mean, largest)) = findings.workload_gains() {
        writeln!(out, "\nEach workload unseen, its pairs' throughput per watt against equal shares")?;
        for line in &findings.workloads {
            let (gain, of_oracle) = (format_signed_percent(line.gain_ratio, 1), line.of_oracle_ratio * 100.0);
            writeln!(out, "  {:<25}{gain:>10}   {of_oracle:.2} % of the oracle", line.workload)?;
        }
        let [mean, largest] = [mean, largest].map(|ratio| format_signed_percent(ratio, 1));
        writeln!(out, "  {:<25}{mean:>10}   largest {largest}", "mean of the workloads")?;
    }
    Ok(())
}

/// Rules of the bars.
const RULES: &str = ".chosen { fill: var(--ink); } .equal { fill: var(--ink); fill-opacity: .4; }
";

fn write_html(findings: &EvaluationFindings, heading: &str, notes: &[String], out: &mut String) -> fmt::Result {
    out.push_str(&eadt_html::begin("Sharing a GPU", heading, RULES));
    if let Some(verdict) = verdict(findings) {
        writeln!(out, "<p class=\"verdict\">{}</p>", escape(&verdict))?;
    }
    for note in notes {
        writeln!(out, "<p>{}</p>", escape(note))?;
    }
    for lines in findings.splits() {
        let Some(first) = lines.first() else { continue };
        writeln!(out, "<h2>{}</h2>", escape(&first.split))?;
        let head: Vec<&str> = ["method"].into_iter().chain(COLUMNS.iter().map(|(head, _)| *head)).collect();
        let cells = |line: &FindingLine| -> Vec<String> {
            let figures = COLUMNS.iter().map(|(_, value)| percent(value(line)));
            [line.method.title().to_owned()].into_iter().chain(figures).collect()
        };
        out.push_str(&eadt_html::table(&first.split, &head, 1, lines.iter().map(cells)));
        writeln!(out, "<p>{} choices.</p>", first.score.choices)?;
    }
    write_bars(findings, out)?;
    out.push_str(END);
    Ok(())
}

/// Returns a sentence with the gain in work per watt of the chosen partitions over equal shares: for workloads that were not
/// trained on, else for the first split.
fn verdict(findings: &EvaluationFindings) -> Option<String> {
    if let Some((mean, largest)) = findings.workload_gains() {
        let workloads = findings.workloads.len();
        return Some(format!(
            "chosen partitions do {} work per watt against equal shares: the mean of {workloads} workloads that were not seen before; \
             largest {}",
            format_signed_percent(mean, 1),
            format_signed_percent(largest, 1)
        ));
    }
    let line = findings.lines.iter().find(|line| line.method == EvaluatedMethod::SlowdownMean)?;
    let (gain, of_oracle) = (format_signed_percent(line.score.gain_mean_ratio, 1), 100.0 * line.score.of_oracle_ratio);
    Some(format!("chosen partitions do {gain} work per watt against equal shares, {of_oracle:.1} % of the best ({})", line.split))
}

/// Writes throughput per watt as a part of the oracle's: the choice and equal shares.
fn write_bars(findings: &EvaluationFindings, out: &mut String) -> fmt::Result {
    const ROW: usize = 34;
    let Some((mean, largest)) = findings.workload_gains() else { return Ok(()) };
    out.push_str("<h2>Each workload unseen</h2>\n<p>Throughput per watt of its pairs as a part of the oracle's: ");
    writeln!(
        out,
        "the choice (dark) and equal shares (pale). Gain over equal shares on average {}, largest {}.</p>",
        format_percent(mean, 1),
        format_percent(largest, 1)
    )?;
    let height = findings.workloads.len() * ROW + 10;
    writeln!(out, "<svg viewBox=\"0 0 900 {height}\" role=\"img\" aria-label=\"gain of each workload\">")?;
    for (i, line) in findings.workloads.iter().enumerate() {
        let y = i * ROW + 5;
        let width = |ratio: f64| 550.0 * ratio.clamp(0.0, 1.1);
        writeln!(out, "<text x=\"0\" y=\"{}\">{}</text>", y + 17, escape(&line.workload))?;
        for (class, ratio, below) in [("chosen", line.of_oracle_ratio, 0), ("equal", line.equal_of_oracle_ratio, 13)] {
            writeln!(
                out,
                "<rect class=\"{class}\" x=\"200\" y=\"{}\" width=\"{:.1}\" height=\"12\"><title>{:.2} % of the oracle</title></rect>",
                y + below,
                width(ratio),
                ratio * 100.0
            )?;
        }
        writeln!(out, "<text x=\"820\" y=\"{}\">{}</text>", y + 17, format_signed_percent(line.gain_ratio, 1))?;
    }
    out.push_str("</svg>\n");
    Ok(())
}
