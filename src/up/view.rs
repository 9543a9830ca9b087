//! The live view: a pure function from the tally to a frame.

use eadt_schemas::v1::{Action, Layout, Origin, Validation};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout as Split, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, Wrap};

use super::tally::{Tally, WorkloadTally};

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
    if tally.origin() == Some(Origin::Simulated) {
        spans.push("  all figures are simulated".yellow());
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
    let header = Row::new(["workload", "power W", "samples/s", "J/sample", "layout", "saved kJ", "saved %", "of run %", "state"])
        .bold()
        .underlined();
    let rows = tally.workloads.iter().map(|(name, row)| {
        let saving = row.saving();
        let style = match saving.map(|saving| saving.ratio) {
            Some(ratio) if ratio > 0.0 => Style::new().fg(Color::Green),
            Some(ratio) if ratio < 0.0 => Style::new().fg(Color::Red),
            _ => Style::new(),
        };
        Row::new([
            Cell::from(name.clone()),
            number(row.power_watts, 0),
            number(row.samples_per_second, 1),
            number(row.joules_per_sample, 3),
            Cell::from(row.layout.as_ref().map_or_else(|| "–".to_owned(), layout_text)),
            number(saving.map(|saving| saving.joules / 1e3), 1).style(style),
            number(saving.map(|saving| saving.ratio * 100.0), 2).style(style),
            number(saving.and_then(|saving| saving.compared_ratio).map(|ratio| ratio * 100.0), 0),
            Cell::from(row.state()),
        ])
    });
    let widths = [
        Constraint::Min(18),
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(9),
        Constraint::Length(26),
        Constraint::Length(9),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(14),
    ];
    Table::new(rows, widths).header(header).block(Block::bordered().title(" workloads "))
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
        let block = Block::bordered().title(format!(" {name} "));
        let inner = block.inner(*area);
        frame.render_widget(block, *area);
        let [text, spark] = Split::horizontal([Constraint::Min(40), Constraint::Length(34)]).areas(inner);
        frame.render_widget(Paragraph::new(decisions(row)).wrap(Wrap { trim: true }), text);
        let [label, chart] = Split::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(spark);
        frame.render_widget(Paragraph::new(" J/sample, latest right".dark_gray()), label);
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
                Span::from(decision.reason.clone()),
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
