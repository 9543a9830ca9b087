//! A table that fits: the most important columns first, no figure ever cut, names shortened in their middle.

use eadt_report::units;
use eadt_service::redact;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::frame::WorkloadRow;
use super::{origin_word, saving_text};

const GAP: usize = 2;
/// A name is not made shorter than this for another column.
const NAME: usize = 18;
const UNKNOWN: &str = units::UNKNOWN;

struct ViewColumn {
    title: &'static str,
    left: bool,
    text: fn(&WorkloadRow) -> String,
}

fn figure(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

const POWER: ViewColumn = ViewColumn { title: "power", left: false, text: |row| figure(row.power_watts, units::format_watts) };
const PER_SAMPLE: ViewColumn =
    ViewColumn { title: "J/sample", left: false, text: |row| figure(row.joules_per_sample, units::joules_per_sample) };
const SAVED: ViewColumn =
    ViewColumn { title: "saved of run", left: false, text: |row| row.saving.map_or_else(|| UNKNOWN.to_owned(), saving_text) };
fn known(text: Option<&str>) -> String {
    text.unwrap_or(UNKNOWN).to_owned()
}

const STATE: ViewColumn = ViewColumn { title: "state", left: true, text: |row| row.state.to_owned() };
const ORIGIN: ViewColumn =
    ViewColumn { title: "origin", left: true, text: |row| row.origin.map_or(UNKNOWN, origin_word).to_owned() };
const ENERGY: ViewColumn =
    ViewColumn { title: "energy", left: false, text: |row| figure(row.energy_joules, units::format_joules) };
const SAMPLES: ViewColumn =
    ViewColumn { title: "samples/s", left: false, text: |row| figure(row.samples_per_second, units::format_count) };
const LAYOUT: ViewColumn = ViewColumn { title: "layout", left: true, text: |row| known(row.layout.as_deref()) };
const GPUS: ViewColumn =
    ViewColumn { title: "GPUs", left: false, text: |row| row.gpus.map_or_else(|| UNKNOWN.to_owned(), |gpus| gpus.to_string()) };
const CHANGES: ViewColumn =
    ViewColumn { title: "changed/back", left: false, text: |row| format!("{}/{}", row.changes, row.reverts) };
const MODE: ViewColumn = ViewColumn { title: "mode", left: true, text: |row| known(row.mode.as_deref()) };

/// Returns the heading and the rows in `width` columns.
pub fn lines(rows: &[&WorkloadRow], mixed: bool, width: usize, selected: Option<&str>) -> Vec<Line<'static>> {
    let names: Vec<String> = rows.iter().map(|row| redact::escape_line(&row.name).into_owned()).collect();
    let longest = names.iter().map(|name| units::display_width(name)).max().unwrap_or(0).max("workload".len());
    // If origins differ, the origin comes before all other columns, and is never left out.
    let wanted: Vec<&ViewColumn> = mixed.then_some(&ORIGIN).into_iter().chain(WANTED.iter()).collect();
    let mut columns: Vec<(&ViewColumn, usize, Vec<String>)> = Vec::new();
    let mut left = width.saturating_sub(1);
    for column in wanted {
        let cells: Vec<String> = rows.iter().map(|row| (column.text)(row)).collect();
        let wide =
            cells.iter().map(|cell| units::display_width(cell)).chain([units::display_width(column.title)]).max().unwrap_or(0);
        // The name gives way to the first columns, and has all of itself before the others.
        let name = if columns.len() < 4 { NAME.min(longest) } else { longest.min(40) };
        if left >= wide + GAP + name {
            left -= wide + GAP;
            columns.push((column, wide, cells));
        }
    }
    let name = left.min(longest);
    let mut heading = format!(" {}", units::padded("workload", name));
    for (column, wide, _) in &columns {
        push(&mut heading, column.title, *wide, column.left);
    }
    let mut lines = vec![Line::styled(heading, Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED))];
    for (index, row) in rows.iter().enumerate() {
        let mut spans = vec![Span::from(format!(" {}", units::padded(&units::shortened(&names[index], name), name)))];
        for (column, wide, cells) in &columns {
            let mut text = String::new();
            push(&mut text, &cells[index], *wide, column.left);
            let colour = if column.title == SAVED.title { saving_colour(row) } else { None };
            spans.push(Span::styled(text, colour.map_or_else(Style::new, |colour| Style::new().fg(colour))));
        }
        let line = Line::from(spans);
        let here = selected == Some(row.name.as_str());
        lines.push(if here { line.style(Style::new().add_modifier(Modifier::REVERSED)) } else { line });
    }
    lines
}

const WANTED: [ViewColumn; 10] = [POWER, PER_SAMPLE, SAVED, STATE, ENERGY, SAMPLES, LAYOUT, GPUS, CHANGES, MODE];

/// Returns green or red if the interval leaves zero out; the sign shows the same.
fn saving_colour(row: &WorkloadRow) -> Option<Color> {
    let saving = row.saving?;
    let clear = saving.ratio.abs() > saving.ratio_error.unwrap_or(0.0);
    clear.then_some(if saving.ratio > 0.0 { Color::Green } else { Color::Red })
}

fn push(line: &mut String, cell: &str, wide: usize, left: bool) {
    let pad = " ".repeat(wide.saturating_sub(units::display_width(cell)));
    line.push_str(&" ".repeat(GAP));
    if left {
        line.push_str(cell);
        line.push_str(&pad);
    } else {
        line.push_str(&pad);
        line.push_str(cell);
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::Origin;

    use super::*;
    use crate::live::tally::WorkloadSaving;

    fn row(name: &str) -> WorkloadRow {
        let saving = WorkloadSaving { joules: 33e3, ratio: 0.169, ratio_error: Some(0.012), compared_ratio: Some(0.98) };
        WorkloadRow {
            name: name.to_owned(),
            power_watts: Some(123_456.0),
            samples_per_second: Some(1234.5),
            joules_per_sample: Some(5.974),
            energy_joules: Some(8.59e9),
            saving: Some(saving),
            gpus: Some(1024),
            layout: Some("6×50 % world 6/2 ≤300 W".into()),
            state: "rolling out",
            mode: Some("enforce".into()),
            changes: 12,
            reverts: 3,
            origin: Some(Origin::Measured),
        }
    }

    #[test]
    fn names_with_wide_characters_move_no_figure() {
        let rows = [row("研究チーム/大規模言語モデルの事前学習と評価の実験"), row("e\u{301}/a"), row("b/c")];
        let rows: Vec<&WorkloadRow> = rows.iter().collect();
        for width in 30..=220 {
            let lines = lines(&rows, false, width, None);
            let widths: Vec<usize> = lines.iter().map(Line::width).collect();
            assert!(widths.iter().all(|wide| *wide <= width && *wide == widths[0]), "{width}: {widths:?} {lines:#?}");
            let text = lines[1].to_string();
            assert!(text.contains("123 kW") || !lines[0].to_string().contains("power"), "{width}: {text}");
        }
    }

    #[test]
    fn no_figure_is_cut_at_any_width_and_a_long_name_keeps_its_end() {
        let rows = [row(&format!("team-a/{}-017", "x".repeat(240))), row("b/c")];
        let rows: Vec<&WorkloadRow> = rows.iter().collect();
        for width in 30..=220 {
            for mixed in [false, true] {
                let text: Vec<String> = lines(&rows, mixed, width, None).iter().map(ToString::to_string).collect();
                let heading = &text[0];
                for (title, figure) in [
                    ("power", "123 kW"),
                    ("J/sample", "5.974"),
                    ("saved of run", "+16.9 % ±1.2 of 98 %"),
                    ("energy", "8.59 GJ"),
                    ("samples/s", "1.23 k"),
                    ("layout", "6×50 % world 6/2 ≤300 W"),
                    ("changed/back", "12/3"),
                ] {
                    assert_eq!(heading.contains(title), text[2].contains(figure), "{width} {title}: {text:#?}");
                }
                assert!(text.iter().all(|line| line.chars().count() <= width), "{width}: {text:#?}");
                assert!(width < 60 || text[1].contains("-017 ") && text[1].contains('…'), "{width}: {text:#?}");
                assert_eq!(heading.contains("origin"), mixed, "{width}: {heading}");
                assert!(width < 80 || heading.contains("saved of run") && (mixed || heading.contains("state")), "{width}");
            }
        }
    }
}
