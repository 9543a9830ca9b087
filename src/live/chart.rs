//! A chart of characters: J/sample and power over linear time, with restarts, phases and decisions.

use eadt_report::{WindowRow, units};
use eadt_schemas::EventTime;
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of the scale at the left.
const SCALE: usize = 9;

/// Event of a workload that the chart marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChartMark {
    Changed,
    Kept,
    /// Judged to save nothing, and left or replaced.
    NoGain,
    Reverted,
    /// Recommended or refused: nothing was changed.
    NotMade,
}

impl ChartMark {
    const fn sign(self) -> char {
        match self {
            Self::Changed => '▼',
            Self::Kept => '✓',
            Self::NoGain => '○',
            Self::Reverted => '✗',
            Self::NotMade => '△',
        }
    }
}

/// Figures of one column.
#[derive(Debug, Clone, Copy, Default)]
struct ChartColumn {
    joules: f64,
    samples: f64,
    power: Option<f64>,
    phase: Option<u64>,
    restarted: bool,
}

impl ChartColumn {
    fn joules_per_sample(&self) -> Option<f64> {
        (self.samples > 0.0).then(|| self.joules / self.samples)
    }
}

/// Returns the lines of a chart that is `width` wide and `height` high; empty if there is no room or nothing to draw.
pub fn chart(rows: &[WindowRow], marks: &[(EventTime, ChartMark)], width: usize, height: usize) -> Vec<Line<'static>> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Vec::new() };
    let (from, to) = (first.window_start, last.window_end);
    let seconds = to.seconds_since(from);
    if width < SCALE + 20 || height < 5 || seconds <= 0.0 {
        return Vec::new();
    }
    let wide = width - SCALE;
    let at = |time: EventTime| ((time.seconds_since(from) / seconds * wide as f64) as usize).min(wide - 1);
    let columns = columns(rows, wide, &at);
    let bars = height - 4;
    let known: Vec<f64> = columns.iter().filter_map(ChartColumn::joules_per_sample).collect();
    let (low, high) = scale(&known);
    let mut lines = vec![marks_line(marks, wide, &at, from, to), power_line(&columns)];
    for row in (0..bars).rev() {
        let label = match row {
            _ if known.is_empty() => String::new(),
            row if row == bars - 1 => units::joules_per_sample(high),
            0 => units::joules_per_sample(low),
            _ => String::new(),
        };
        let mut spans = vec![Span::from(format!("{label:>width$} ", width = SCALE - 1))];
        for column in &columns {
            spans.push(bar(column, row, bars, low, high));
        }
        lines.push(Line::from(spans));
    }
    lines.push(phase_line(&columns));
    lines.push(time_line(from, to, wide));
    lines
}

fn columns(rows: &[WindowRow], wide: usize, at: &impl Fn(EventTime) -> usize) -> Vec<ChartColumn> {
    let mut columns = vec![ChartColumn::default(); wide];
    for row in rows {
        // A window covers every column that begins in it: fewer windows than columns leave no holes.
        let (first, last) = (at(row.window_start), at(row.window_end.plus_micros(-1)));
        for column in &mut columns[first..=last] {
            column.restarted |= row.restarted;
            column.phase = row.phase.or(column.phase);
            column.power = row.mean_power_watts.or(column.power);
            if let (Some(joules), Some(samples), false) = (row.joules_per_sample, row.samples, row.restarted) {
                column.joules += joules * samples;
                column.samples += samples;
            }
        }
    }
    columns
}

/// Returns the ends of the scale. Restarts are not in it; the lower end is written beside it, as it is not zero.
fn scale(known: &[f64]) -> (f64, f64) {
    let (low, high) = known.iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(*value), high.max(*value)));
    if known.is_empty() {
        return (0.0, 1.0);
    }
    let room = ((high - low) * 0.1).max(high * 0.01);
    ((low - room).max(0.0), high)
}

fn bar(column: &ChartColumn, row: usize, bars: usize, low: f64, high: f64) -> Span<'static> {
    if column.restarted {
        return Span::styled("╱", Style::new().fg(Color::Yellow));
    }
    let Some(value) = column.joules_per_sample() else { return Span::from(" ") };
    let eighths = ((value - low) / (high - low) * (bars * 8) as f64).round() as usize;
    let own = eighths.clamp(1, bars * 8).saturating_sub(row * 8).min(8);
    Span::styled(BLOCKS[own].to_string(), Style::new().fg(Color::Cyan))
}

fn marks_line(
    marks: &[(EventTime, ChartMark)],
    wide: usize,
    at: &impl Fn(EventTime) -> usize,
    from: EventTime,
    to: EventTime,
) -> Line<'static> {
    let mut signs = vec![' '; wide];
    for (time, mark) in marks.iter().filter(|(time, _)| (from..=to).contains(time)) {
        let sign = &mut signs[at(*time)];
        // A revert is never covered, and a change that was made is not covered by one that was not.
        if *sign != ChartMark::Reverted.sign() && (*mark != ChartMark::NotMade || *sign == ' ') {
            *sign = mark.sign();
        }
    }
    Line::from(format!("{:>width$} {}", "decided", signs.into_iter().collect::<String>(), width = SCALE - 1))
}

fn power_line(columns: &[ChartColumn]) -> Line<'static> {
    let most = columns.iter().filter_map(|column| column.power).fold(0.0, f64::max);
    let sign = |column: &ChartColumn| match column.power {
        Some(power) if most > 0.0 => BLOCKS[((power / most * 8.0).round() as usize).clamp(1, 8)],
        _ => ' ',
    };
    let text: String = columns.iter().map(sign).collect();
    Line::from(vec![
        Span::from(format!("{:>width$} ", units::format_watts(most), width = SCALE - 1)),
        Span::styled(text, Style::new().fg(Color::Magenta)),
    ])
}

/// Returns the number of the phase where it begins; `·` if it is unknown.
fn phase_line(columns: &[ChartColumn]) -> Line<'static> {
    let mut text = String::new();
    let mut before = None;
    for column in columns {
        text.push(match column.phase {
            None => '·',
            phase if phase == before => '─',
            Some(phase) => char::from_digit((phase % 10) as u32, 10).unwrap_or('?'),
        });
        before = column.phase;
    }
    Line::from(format!("{:>width$} {text}", "phase", width = SCALE - 1))
}

/// Returns whether a time of day between two times may be of several days.
pub fn is_of_days(from: EventTime, to: EventTime) -> bool {
    to.seconds_since(from) >= 86_400.0
}

/// Returns the month, day and minute of a time, or its time of day.
pub fn short_time(time: EventTime, with_date: bool) -> String {
    time.to_string()[if with_date { 5..16 } else { 11..19 }].replace('T', " ")
}

/// Returns the line with the record's start, middle and end.
fn time_line(from: EventTime, to: EventTime, wide: usize) -> Line<'static> {
    let text = |time: EventTime| short_time(time, is_of_days(from, to));
    let middle = text(from.plus_micros((to.micros() - from.micros()) / 2));
    let (first, last) = (text(from), text(to));
    let free = wide.saturating_sub(first.len() + middle.len() + last.len());
    let (left, right) = (" ".repeat(free / 2), " ".repeat(free - free / 2));
    let line = if free < 4 { format!("{first}…{last}") } else { format!("{first}{left}{middle}{right}{last}") };
    Line::from(format!("{:>width$} {line}", "UTC", width = SCALE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> EventTime {
        EventTime::from_micros(1_700_000_040_000_000 + minute * 60_000_000)
    }

    fn row(minute: i64, joules: f64, restarted: bool) -> WindowRow {
        WindowRow {
            window_start: at(minute),
            window_end: at(minute + 1),
            joules_per_sample: Some(joules),
            samples: Some(100.0),
            mean_power_watts: Some(400.0),
            phase: Some(if minute < 40 { 1 } else { 2 }),
            restarted,
            ..WindowRow::default()
        }
    }

    #[test]
    fn time_is_linear_a_restart_is_hatched_and_does_not_set_the_scale() {
        // A silence between minutes 20 and 60, a restart of 50 J/sample.
        let minutes = (0..20).chain(60..80);
        let rows: Vec<WindowRow> = minutes
            .map(|minute| row(minute, if minute == 10 { 50.0 } else { 5.0 + minute as f64 / 80.0 }, minute == 10))
            .collect();
        let marks = [(at(9), ChartMark::Changed), (at(79), ChartMark::Reverted)];
        let text: Vec<String> = chart(&rows, &marks, 89, 10).iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 10);
        assert!(text.iter().all(|line| line.chars().count() <= 89), "{text:#?}");
        let column = |line: &str, sign: char| line.chars().position(|c| c == sign).map(|at| at - SCALE);
        assert_eq!((column(&text[0], '▼'), column(&text[0], '✗')), (Some(9), Some(79)));
        let scale = text[2].trim_start().split(' ').next().unwrap();
        assert!((5.9..6.0).contains(&scale.parse::<f64>().unwrap()), "{text:#?}");
        for line in &text[2..8] {
            assert_eq!(column(line, '╱'), Some(10), "{text:#?}");
            assert!(line.chars().skip(SCALE + 20).take(40).all(|c| c == ' '), "the silence is empty: {text:#?}");
        }
        assert_eq!((column(&text[8], '1'), column(&text[8], '2')), (Some(0), Some(60)));
        assert!(text[9].contains("22:14:00") && text[9].ends_with("23:34:00"), "{}", text[9]);
        // The mark of a change that was not made covers no mark of one that was.
        let marks = [(at(9), ChartMark::Changed), (at(9), ChartMark::NotMade), (at(40), ChartMark::NotMade)];
        let text = chart(&rows, &marks, 89, 10)[0].to_string();
        assert_eq!((column(&text, '▼'), column(&text, '△')), (Some(9), Some(40)), "{text}");
        assert!(chart(&rows, &marks, 20, 10).is_empty() && chart(&[], &[], 89, 10).is_empty());
    }
}
