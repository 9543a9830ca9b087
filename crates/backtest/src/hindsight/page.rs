//! Controllers in hindsight as one HTML file.

use eadt_html::{END, escape};
use eadt_report::words::origin_word;

use super::{Estimate, HindsightRow, interval, layout};

/// Changes and refusals of a row that are listed before the rest is counted.
const LISTED: usize = 50;

const HEAD: [&str; 11] = [
    "workload",
    "controller",
    "origin",
    "windows",
    "known",
    "J/sample, recorded",
    "change (90 % interval)",
    "saves, confidence",
    "changes",
    "restarts",
    "refused",
];

/// Returns one self-contained HTML file: the changes that each controller would have made, as far as the record shows.
pub fn hindsight_html(all: &[HindsightRow]) -> String {
    let title = "Controllers in hindsight";
    let mut out = eadt_html::begin(title, title, "");
    for (index, line) in verdicts(all).iter().enumerate() {
        out += if index == 0 { "<p class=\"verdict\">" } else { "<p>" };
        out.extend([format!("{}</p>\n", escape(line))]);
    }
    out += "<p>What the record shows of other decisions; nothing here was run.</p>\n";
    out += &eadt_html::table("Controllers on the record", &HEAD, 3, all.iter().map(cells));
    for row in all {
        push_row(&mut out, row);
    }
    out + END
}

/// Returns a line for each workload: which controller would have saved most, if the record shows that any would have saved.
fn verdicts(all: &[HindsightRow]) -> Vec<String> {
    let lines = all
        .chunk_by(|a, b| a.workload == b.workload)
        .map(|rows| format!("{} ({}): {}", rows[0].workload, origin_word(rows[0].origin), verdict(rows)));
    lines.collect()
}

/// Returns the verdict on the controllers of one workload. A controller saves only if its whole interval lies below zero.
fn verdict(rows: &[HindsightRow]) -> String {
    let mut known: Vec<(&HindsightRow, &Estimate)> =
        rows.iter().filter_map(|row| Some((row, row.joules_per_sample_change.as_ref()?))).collect();
    known.sort_by(|(_, a), (_, b)| a.value.total_cmp(&b.value));
    let Some((closest, least)) = known.first() else {
        return "the record does not show what any of these controllers would have changed".to_owned();
    };
    let Some((best, change)) = known.iter().find(|(_, change)| change.high < 0.0) else {
        let (name, change) = (closest.controller, interval(least));
        return format!("none of these controllers would clearly have saved energy; lowest estimate: {name}, {change} J/sample");
    };
    let others = known.iter().filter(|(row, other)| row.controller != best.controller && other.low < change.high);
    let not_less: Vec<String> = others.map(|(row, _)| row.controller.to_string()).collect();
    let (name, change) = (best.controller, interval(change));
    if not_less.is_empty() {
        format!("{name} would have saved most: {change} J/sample")
    } else {
        format!("{name} would have saved energy, but not clearly more than {}: {change} J/sample", not_less.join(", "))
    }
}

fn cells(row: &HindsightRow) -> [String; 11] {
    let unknown = || "–".to_owned();
    let percent = |ratio: f64| format!("{:.0} %", 100.0 * ratio);
    let change = row.joules_per_sample_change.as_ref();
    [
        row.workload.clone(),
        row.controller.to_string(),
        origin_word(row.origin).to_owned(),
        row.windows.to_string(),
        row.known_ratio.map_or_else(unknown, percent),
        row.recorded_joules_per_sample.map_or_else(unknown, |joules| format!("{joules:.4}")),
        change.map_or_else(unknown, interval),
        change.map_or_else(unknown, |change: &Estimate| percent(change.confidence_saves_ratio)),
        row.changes.len().to_string(),
        row.restarts.to_string(),
        row.refused.iter().map(|refused| refused.count).sum::<u64>().to_string(),
    ]
}

/// Appends the changes of a controller, and the effects that the record cannot show.
fn push_row(out: &mut String, row: &HindsightRow) {
    if row.changes.is_empty() && row.refused.is_empty() && row.notes.is_empty() {
        return;
    }
    out.extend([format!("<h2>{} · {} ({})</h2>\n<ul>\n", escape(&row.workload), row.controller, origin_word(row.origin))]);
    for change in row.changes.iter().take(LISTED) {
        let effect = change.effect.as_ref().map_or_else(|| "effect unknown".to_owned(), interval);
        let line = format!(
            "{} {} → {} in phase {}: {effect}: {}",
            change.time,
            layout(&change.from),
            layout(&change.to),
            change.phase,
            change.reason
        );
        out.extend([format!("<li>{}</li>\n", escape(&line))]);
    }
    for refused in row.refused.iter().take(LISTED) {
        let (from, to) = (layout(&refused.from), layout(&refused.to));
        let line = format!("refused ({}×, first {}): {from} → {to}: {}", refused.count, refused.time, refused.reason);
        out.extend([format!("<li>{}</li>\n", escape(&line))]);
    }
    let left_out = row.changes.len().saturating_sub(LISTED) + row.refused.len().saturating_sub(LISTED);
    if left_out > 0 {
        out.extend([format!("<li>{left_out} more: <code>--json</code> has all.</li>\n")]);
    }
    for note in &row.notes {
        out.extend([format!("<li>Note: {}</li>\n", escape(note))]);
    }
    *out += "</ul>\n";
}
