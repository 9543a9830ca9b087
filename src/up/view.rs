//! The live view: a pure function from the tally to a frame.

use eadt_schemas::v1::{Action, Layout, Origin, Validation};
use eadt_service::shown;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout as Split, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, Wrap};

use super::tally::{Saving, Tally, WorkloadTally};

/// Draws everything; text that does not fit is cut, never wrapped over other figures.
pub fn draw(frame: &mut Frame<'_>, tally: &Tally, headline: &str) {
    let table_height = tally.workloads.len().max(1) as u16 + 3;
    let [head, table, details, foot] =
        Split::vertical([Constraint::Length(1), Constraint::Length(table_height), Constraint::Min(3), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(head_line(tally, headline)), head);
    frame.render_widget(workloads(tally), table);
    draw_details(frame, tally, details);
    frame.render_widget(Paragraph::new(foot_line(tally)), foot);
}

fn head_line(tally: &Tally, headline: &str) -> Line<'static> {
    let mut spans = vec![" EADT ".bold().reversed(), format!(" {headline}").into()];
    if let Some(now) = tally.now {
        spans.push(format!("  {}", &now.to_string()[..19]).into());
    }
    match tally.origin() {
        Some(Origin::Simulated) => spans.push("  all figures are simulated".yellow()),
        Some(Origin::Imported) => spans.push("  all figures are imported".yellow()),
        None if tally.is_mixed() => spans.push("  figures of several origins: see the column".yellow()),
        Some(Origin::Measured) | None => {}
    }
    Line::from(spans)
}

fn foot_line(tally: &Tally) -> Line<'static> {
    Line::from(format!(
        " {} windows · {} decisions · {} changes · {} reverts · {} dead letters    Ctrl-C drains and reports, twice aborts",
        tally.windows, tally.decisions, tally.changes, tally.reverts, tally.dead_letters
    ))
    .style(Style::new().fg(Color::DarkGray))
}

fn workloads(tally: &Tally) -> Table<'static> {
    let mixed = tally.is_mixed();
    let mut titles = vec!["workload", "power W", "samples/s", "J/sample", "layout", "saved kJ", "saved %", "of run %", "state"];
    titles.extend(mixed.then_some("origin"));
    let header = Row::new(titles).bold().underlined();
    let rows = tally.workloads.iter().map(|(name, row)| {
        let saving = row.saving();
        let style = match saving.map(|saving| saving.ratio) {
            Some(ratio) if ratio > 0.0 => Style::new().fg(Color::Green),
            Some(ratio) if ratio < 0.0 => Style::new().fg(Color::Red),
            _ => Style::new(),
        };
        let mut cells = vec![
            Cell::from(shown::line(name).into_owned()),
            number(row.power_watts, 0),
            number(row.samples_per_second, 1),
            number(row.joules_per_sample, 3),
            Cell::from(row.layout.as_ref().map_or_else(|| "–".to_owned(), layout_text)),
            number(saving.map(|saving| saving.joules / 1e3), 1).style(style),
            Cell::from(saving.map_or_else(|| "–".to_owned(), saved_text)).style(style),
            number(saving.and_then(|saving| saving.compared_ratio).map(|ratio| ratio * 100.0), 0),
            Cell::from(row.state()),
        ];
        cells.extend(mixed.then(|| Cell::from(row.origin().map_or("–", origin_word))));
        Row::new(cells)
    });
    let mut widths = vec![
        Constraint::Min(18),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(26),
        Constraint::Length(9),
        Constraint::Length(12),
        Constraint::Length(8),
        Constraint::Length(14),
    ];
    widths.extend(mixed.then_some(Constraint::Length(9)));
    Table::new(rows, widths).header(header).block(Block::bordered().title(" workloads "))
}

fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "measured",
        Origin::Imported => "imported",
        Origin::Simulated => "simulated",
    }
}

/// A saving in per cent with its error: `12.3 ± 1.1`.
fn saved_text(saving: Saving) -> String {
    let ratio = 100.0 * saving.ratio;
    saving.ratio_error.map_or_else(|| format!("{ratio:.1}"), |error| format!("{ratio:.1} ± {:.1}", 100.0 * error))
}

fn number(value: Option<f64>, decimals: usize) -> Cell<'static> {
    Cell::from(value.map_or_else(|| "–".to_owned(), |v| format!("{v:.decimals$}")))
}

/// A layout in one line: `6×50 % world 6 ≤300 W`.
pub fn layout_text(layout: &Layout) -> String {
    let mut parts = Vec::new();
    match (layout.replicas, layout.mps_thread_percentage) {
        (Some(replicas), Some(percent)) => parts.push(format!("{replicas}×{percent} %")),
        (Some(replicas), None) => parts.push(format!("{replicas} replicas")),
        (None, Some(percent)) => parts.push(format!("{percent} %")),
        (None, None) => {}
    }
    if let (Some(world), Some(local)) = (layout.world_size, layout.local_world_size) {
        parts.push(format!("world {world}/{local}"));
    }
    if let Some(watts) = layout.power_limit_watts {
        parts.push(format!("≤{watts:.0} W"));
    }
    if let Some(clock) = layout.sm_clock_mhz {
        parts.push(format!("≤{clock:.0} MHz"));
    }
    parts.extend(layout.precision.map(|precision| precision.to_string()));
    if let Some(layers) = layout.frozen_prefix_layers {
        parts.push(format!("{layers} layers frozen"));
    }
    if parts.is_empty() { "–".to_owned() } else { parts.join(" ") }
}

fn draw_details(frame: &mut Frame<'_>, tally: &Tally, area: Rect) {
    let count = tally.workloads.len().max(1) as u32;
    let areas = Split::vertical(vec![Constraint::Ratio(1, count); count as usize]).split(area);
    for ((name, row), area) in tally.workloads.iter().zip(areas.iter()) {
        let block = Block::bordered().title(format!(" {} ", shown::line(name)));
        let inner = block.inner(*area);
        frame.render_widget(block, *area);
        let [text, spark] = Split::horizontal([Constraint::Min(40), Constraint::Length(34)]).areas(inner);
        frame.render_widget(Paragraph::new(decisions(row)).wrap(Wrap { trim: true }), text);
        let [label, chart] = Split::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(spark);
        frame.render_widget(Paragraph::new(" J/sample, restarts left out".dark_gray()), label);
        frame.render_widget(Sparkline::default().data(row.sparkline(chart.width.into())).cyan(), chart);
    }
}

fn decisions(row: &WorkloadTally) -> Vec<Line<'static>> {
    if row.recent.is_empty() {
        return vec![Line::from("no decision yet: the first window is still open".dark_gray())];
    }
    row.recent
        .iter()
        .rev()
        .map(|decision| {
            let (word, colour) = action_word(decision.action, decision.validation);
            Line::from(vec![
                Span::from(decision.time.to_string()[11..19].to_owned()).dark_gray(),
                Span::from(format!(" {word} ")).style(Style::new().fg(colour).add_modifier(Modifier::BOLD)),
                Span::from(shown::line(&decision.reason).into_owned()),
            ])
        })
        .collect()
}

fn action_word(action: Action, validation: Validation) -> (&'static str, Color) {
    match (action, validation) {
        (Action::Maintain, Validation::Kept) => ("keep", Color::Green),
        (Action::Maintain, _) => ("maintain", Color::DarkGray),
        (Action::Revert, _) => ("revert", Color::Red),
        (Action::Decrease, _) => ("decrease", Color::Yellow),
        (Action::ScaleReplicas, _) => ("scale", Color::Yellow),
        (Action::Increase, _) => ("increase", Color::Yellow),
        (Action::SetPowerLimit, _) => ("power cap", Color::Yellow),
        (Action::SetClocks, _) => ("clocks", Color::Yellow),
        (Action::SetPrecision, _) => ("precision", Color::Yellow),
        (Action::FreezeLayers, _) => ("freeze", Color::Yellow),
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::{Actuation, Decision, EfficiencyWindow, Outcome, Workload};
    use eadt_schemas::{EventTime, Topic};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    const NAME: &str = "eadt/llm-training";

    fn at(minute: i64) -> EventTime {
        EventTime::from_micros(1_700_000_040_000_000 + minute * 60_000_000)
    }

    fn take(tally: &mut Tally, topic: Topic, event: &impl serde::Serialize) {
        tally.take(topic, &serde_json::to_vec(event).unwrap());
    }

    fn window(minute: i64, joules: f64) -> EfficiencyWindow {
        EfficiencyWindow {
            id: format!("{NAME}/{minute}"),
            workload: NAME.into(),
            window_start: at(minute),
            window_end: at(minute + 1),
            origin: Origin::Simulated,
            energy_joules: Some(joules),
            energy_coverage_ratio: 1.0,
            run_seconds: 60.0,
            run_energy_joules: Some(joules),
            run_coverage_ratio: 1.0,
            samples: Some(6000.0),
            progress_coverage_ratio: 1.0,
            mean_power_watts: Some(joules / 60.0),
            samples_per_second: Some(100.0),
            joules_per_sample: Some(joules / 6000.0),
            ..EfficiencyWindow::default()
        }
    }

    /// The lines of the view.
    fn shown(tally: &Tally) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(140, 20)).unwrap();
        terminal.draw(|frame| draw(frame, tally, "simulated cluster")).unwrap();
        let buffer = terminal.backend().buffer();
        buffer.content().chunks(140).map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
    }

    #[test]
    fn it_shows_power_samples_energy_a_sample_layout_savings_and_the_reasons_of_decisions() {
        let mut tally = Tally::default();
        let layout = Layout { replicas: Some(6), mps_thread_percentage: Some(50), ..Layout::default() };
        let told = Workload {
            time: at(0),
            workload: NAME.into(),
            origin: Origin::Simulated,
            kind: "StatefulSet".into(),
            layout,
            ..Workload::default()
        };
        take(&mut tally, Topic::Workloads, &told);
        let before = shown(&tally).join("\n");
        assert!(before.contains("no decision yet") && !before.contains("J/sample  6"), "{before}");

        // 600 W, then 480 W for as many samples.
        for minute in 0..3 {
            take(&mut tally, Topic::EfficiencyWindows, &window(minute, 36_000.0));
        }
        let decision = Decision {
            id: "d3".into(),
            workload: NAME.into(),
            time: at(3),
            origin: Origin::Simulated,
            action: Action::SetPowerLimit,
            reason: "a lower cap costs no throughput".into(),
            ..Decision::default()
        };
        take(&mut tally, Topic::Decisions, &decision);
        let applied = Actuation {
            id: "a3".into(),
            decision_id: "d3".into(),
            workload: NAME.into(),
            time: at(3),
            outcome: Outcome::Applied,
            ..Actuation::default()
        };
        take(&mut tally, Topic::Actuations, &applied);
        for minute in 4..6 {
            take(&mut tally, Topic::EfficiencyWindows, &window(minute, 28_800.0));
        }
        assert_eq!(tally.unreadable, 0);
        tally.refresh();
        let lines = shown(&tally);
        let all = lines.join("\n");
        assert!(lines[0].contains("all figures are simulated"), "{all}");
        let row = lines.iter().find(|line| line.contains(NAME)).unwrap_or_else(|| panic!("{all}"));
        let figures: Vec<&str> = row.trim_matches('│').split_whitespace().collect();
        // 14.4 kJ of the 180 that as many samples would have taken, with an error.
        assert_eq!(figures[..9], [NAME, "480", "100.0", "4.800", "6×50", "%", "14.4", "8.0", "±"], "{all}");
        assert!(lines.iter().any(|line| line.contains("power cap a lower cap costs no throughput")), "{all}");
        assert!(lines.last().is_some_and(|line| line.contains("5 windows · 1 decisions · 1 changes")), "{all}");
    }

    #[test]
    fn the_origin_of_the_rows_decides_what_they_are_called() {
        use Origin::{Imported, Measured, Simulated};

        let workload = |name: &str, origin| Workload { time: at(0), workload: name.into(), origin, ..Workload::default() };
        let of = |name: &str, origin| EfficiencyWindow { workload: name.into(), origin, ..window(0, 36_000.0) };
        for (rows, head, column) in [
            (&[(Measured, Measured)][..], None, false),
            // Declared by a simulation, measured all the same.
            (&[(Simulated, Measured)], None, false),
            (&[(Measured, Simulated)], Some("all figures are simulated"), false),
            (&[(Imported, Imported)], Some("all figures are imported"), false),
            (&[(Measured, Measured), (Simulated, Simulated)], Some("several origins"), true),
            (&[(Measured, Measured), (Measured, Measured)], None, false),
        ] {
            let mut tally = Tally::default();
            for (number, (declared, windows)) in rows.iter().enumerate() {
                let name = format!("team/job-{number}");
                take(&mut tally, Topic::Workloads, &workload(&name, *declared));
                take(&mut tally, Topic::EfficiencyWindows, &of(&name, *windows));
            }
            let lines = shown(&tally);
            assert_eq!(head.is_some_and(|head| lines[0].contains(head)), head.is_some(), "{rows:?}: {}", lines[0]);
            assert!(head.is_some() || !lines[0].contains("figures"), "{rows:?}: {}", lines[0]);
            let measured = lines.iter().find(|line| line.contains("team/job-0")).unwrap();
            assert_eq!(measured.contains("measured"), column, "{rows:?}: {measured}");
            assert!(!measured.contains("simulated"), "{rows:?}: {measured}");
        }
    }

    #[test]
    fn a_hostile_name_does_not_reorder_the_view() {
        let mut tally = Tally::default();
        take(&mut tally, Topic::EfficiencyWindows, &EfficiencyWindow { workload: "a/\u{202e}b".into(), ..window(0, 36_000.0) });
        let all = shown(&tally).join("\n");
        assert!(!all.contains('\u{202e}') && all.contains("a/\\u202eb"), "{all}");
    }
}
