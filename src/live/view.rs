//! The view: a pure function from figures and the user's position in it to a frame.

use eadt_report::states::{ChangeFate, decision_takes_back};
use eadt_report::{GPUS_WITHOUT_WORKLOAD, SavingVerdict, units};
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::{ChangeValidation, ControllerAction, Origin};
use eadt_service::redact;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout as Split, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use std::fmt::Write as _;

use super::frame::{DecidedChange, RunProgress, ViewFrame, WorkloadDetails};
use super::keys::{ViewPage, ViewStage, ViewState};
use super::{chart, decided_text, layout_text, table};

/// Lines of the details below the table; the table goes before.
const DETAILS: u16 = 14;

const HELP: [&str; 12] = [
    "↑ ↓  j k       move the cursor",
    "PgUp PgDn      a page; Home End  g G  first and last",
    "Enter          the selected workload alone; Enter, Esc or q back",
    "s              sort by the next: energy, power, J/sample, saved, state, name",
    "r              reverse the order",
    "/              search in names; Enter keeps it, Esc ends it",
    "p  space       pause the view, and resume; events are still counted",
    "?              this help",
    "q  Ctrl-C      end; a second Ctrl-C ends at once",
    "Ctrl-Z         to the shell; fg comes back",
    "",
    "saved of run: in per cent with the 90 % error, and of how much of the energy",
];

/// Draws everything. If there is no room for a part, that is shown; no figure is cut off.
pub fn draw(frame: &mut Frame<'_>, picture: &ViewFrame, state: &mut ViewState) {
    let area = frame.area();
    let below = if area.height >= 20 && !picture.rows.is_empty() { DETAILS.min(area.height / 2 - 1) } else { 0 };
    let [head, totals, table_area, details, foot] = Split::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(below),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(head_line(picture, state, head.width)), head);
    frame.render_widget(Paragraph::new(totals_line(picture, totals.width)), totals);
    match state.page {
        ViewPage::Details if picture.details.is_some() => {
            let whole = Rect { height: table_area.height + details.height, ..table_area };
            let details = picture.details.as_ref().expect("asked");
            draw_details(frame, details, whole, Some(&mut state.scroll), picture.partial);
        }
        _ => {
            draw_table(frame, picture, state, table_area);
            if let Some(selected) = &picture.details
                && below > 0
            {
                draw_details(frame, selected, details, None, picture.partial);
            }
        }
    }
    frame.render_widget(Paragraph::new(foot_line(picture, state, foot.width)), foot);
    if state.page == ViewPage::Help {
        draw_help(frame, area);
    }
}

/// Returns the note on the figures' origin that must not be missed, in one word.
fn badge(picture: &ViewFrame) -> Option<&'static str> {
    match picture.origin {
        Some(Origin::Simulated) => Some(" simulated "),
        Some(Origin::Imported) => Some(" imported "),
        None if picture.mixed => Some(" origins differ "),
        None if picture.simulated => Some(" simulated "),
        Some(Origin::Measured) | None => None,
    }
}

/// The badge comes before everything that may not fit.
fn head_line(picture: &ViewFrame, state: &ViewState, width: u16) -> Line<'static> {
    let mut spans = vec![" EADT ".bold().reversed()];
    if let Some(badge) = badge(picture) {
        spans.push(Span::styled(badge, Style::new().fg(Color::Black).bg(Color::Yellow).add_modifier(Modifier::BOLD)));
    }
    if picture.is_reading {
        spans.push(Span::styled(" reading the record ", Style::new().fg(Color::Black).bg(Color::Cyan)));
    }
    if state.paused {
        spans.push(Span::styled(" paused: p resumes ", Style::new().fg(Color::Black).bg(Color::Cyan)));
    }
    let used: usize = spans.iter().map(Span::width).sum();
    let room = usize::from(width).saturating_sub(used);
    let headline = redact::escape_line(&picture.headline);
    // An address is of use only if it is whole.
    let address = headline.split(" · ").next().filter(|first| first.starts_with("http")).map_or(0, |it| 2 + it.chars().count());
    let clocks = clock_forms(picture.now);
    let (bars, plain) = progress_forms(picture.progress);
    // Beside an address there is some form of the time, if there is a time.
    let timed = &clocks[..clocks.len().max(2) - 1];
    let choices = [(timed, &bars, address), (&clocks[..], &bars, 0), (&clocks[..], &plain, 0)];
    let fitting = choices.into_iter().find_map(|(clocks, forms, beside)| {
        let mut pairs = clocks.iter().flat_map(move |clock| forms.iter().map(move |form| (clock, form)));
        pairs.find(|(clock, form)| clock.chars().count() + form.room + beside <= room)
    });
    let mut taken = 0;
    if let Some((clock, form)) = fitting {
        taken = clock.chars().count() + form.room;
        spans.push(format!("{clock}{}", form.text).into());
    }
    let room = room.saturating_sub(taken + 2);
    if room >= 12 {
        spans.push(format!("  {}", headline_within(&headline, room)).dark_gray());
    }
    Line::from(spans)
}

/// Returns the time in forms from the longest to none. At windows of a minute, the day and the seconds are of least use.
fn clock_forms(now: Option<EventTime>) -> Vec<String> {
    let Some(now) = now else { return vec![String::new()] };
    let text = now.to_string();
    vec![format!(" {}Z", &text[..19]), format!(" {}Z", &text[11..19]), format!(" {}Z", &text[11..16]), String::new()]
}

/// A form of the progress of a run.
struct ProgressForm {
    text: String,
    /// Columns that it is given, however long the time left is at present: nothing beside it comes and goes with that.
    room: usize,
}

/// Returns the forms of the progress with a bar and the time left, and those without a bar; the longest first.
fn progress_forms(progress: Option<RunProgress>) -> (Vec<ProgressForm>, Vec<ProgressForm>) {
    const PERCENT: usize = "100 %".len();
    const LEFT: usize = " 59 min 59 s left".len();
    const SHORT_LEFT: usize = " 59 min left".len();
    let Some(progress) = progress else { return (vec![ProgressForm { text: String::new(), room: 0 }], Vec::new()) };
    let percent = format!("{:.0} %", 100.0 * progress.part);
    let left = progress.left_seconds.map_or_else(String::new, |left| format!(" {} left", units::format_duration(left)));
    // `3 min 12 s` → `3 min`.
    let short_left = progress.left_seconds.map_or_else(String::new, |left| {
        let parts: Vec<String> = units::format_duration(left).split(' ').take(2).map(str::to_owned).collect();
        format!(" {} left", parts.join(" "))
    });
    let bar = |cells: usize| {
        let done = (progress.part * cells as f64).round().clamp(0.0, cells as f64) as usize;
        format!("{}{}", "█".repeat(done), "░".repeat(cells - done))
    };
    let with_bar = |cells: usize, left: &str, room: usize| ProgressForm {
        text: format!("  {} {percent}{left}", bar(cells)),
        room: 2 + cells + 1 + PERCENT + room,
    };
    let plain = |left: &str, room: usize| ProgressForm { text: format!("  {percent}{left}"), room: 2 + PERCENT + room };
    (
        vec![with_bar(10, &left, LEFT), with_bar(5, &left, LEFT), with_bar(5, &short_left, SHORT_LEFT)],
        vec![plain(&left, LEFT), plain(&short_left, SHORT_LEFT), plain("", 0)],
    )
}

/// Returns as many parts of the headline as fit: an address that is cut opens nothing.
fn headline_within(headline: &str, room: usize) -> String {
    let mut shown = String::new();
    for part in headline.split(" · ") {
        let separator = if shown.is_empty() { "" } else { " · " };
        if units::display_width(&shown) + units::display_width(separator) + units::display_width(part) <= room {
            shown.push_str(separator);
            shown.push_str(part);
        }
    }
    if shown.is_empty() { units::shortened(headline, room) } else { shown }
}

/// Returns as many of the sums as fit, the most important first.
fn totals_line(picture: &ViewFrame, width: u16) -> Line<'static> {
    let (summary, counts) = (&picture.summary, picture.counts);
    let mut parts = picture.load().to_vec();
    parts.extend(saved_parts(picture));
    parts.push(format!("{} {}", counted(counts.changes, "change"), counted(counts.reverts, "revert")));
    if let Some(energy) = summary.energy_joules {
        parts.push(format!("{} ({}) used", units::format_joules(energy), units::kilowatt_hours(energy)));
    }
    parts.push(format!("{} {}", counted(counts.windows, "window"), counted(counts.decisions, "decision")));
    // A dead letter is news wherever there is one.
    parts.insert(if counts.dead_letters > 0 { 2 } else { parts.len() }, counted(counts.dead_letters, "dead letter"));
    let mut text = String::new();
    for part in parts {
        if text.chars().count() + 3 + part.chars().count() > usize::from(width) {
            continue;
        }
        text.push_str(if text.is_empty() { " " } else { " · " });
        text.push_str(&part);
    }
    Line::from(text).bold()
}

fn saved_parts(picture: &ViewFrame) -> Vec<String> {
    let summary = &picture.summary;
    if picture.partial {
        return vec!["savings need the whole record: leave --since out".to_owned()];
    }
    let (Some(ratio), Some(part)) = (summary.saving_ratio(), summary.compared_ratio()) else { return Vec::new() };
    let error = summary.ratio_error().map_or_else(String::new, |error| format!(" ±{:.1}", 100.0 * error));
    let unclear = if summary.verdict() == SavingVerdict::Unclear { " (unclear)" } else { "" };
    let saved = if ratio < 0.0 {
        format!("used {:.1} %{error} more{unclear}", -100.0 * ratio)
    } else {
        format!("saved {}{error}{unclear}", format_signed_percent(ratio, 1))
    };
    if summary.is_whole() {
        return vec![saved];
    }
    vec![format!("{saved} of {:.0} %, rest not known", 100.0 * part)]
}

fn draw_table(frame: &mut Frame<'_>, picture: &ViewFrame, state: &mut ViewState, area: Rect) {
    if picture.rows.is_empty() {
        let text = "nothing yet: a workload shows when it is declared, its figures when its first window closes";
        frame.render_widget(Paragraph::new(text.dark_gray()), area);
        return;
    }
    // Heading, and the number of hidden rows.
    let fitting = usize::from(area.height).saturating_sub(2);
    let (rows, top, all) = state.arrange(picture, fitting);
    let mut lines = table::lines(&rows, picture.mixed, area.width.into(), state.selected.as_deref());
    while lines.len() < usize::from(area.height).saturating_sub(1) && rows.len() < fitting && rows.len() < all {
        lines.push(Line::default());
    }
    let order = if state.reversed { ", reversed" } else { "" };
    let mut note = format!(" rows {} to {} of {all}", (top + 1).min(all), top + rows.len());
    if all > rows.len() {
        write!(note, ", {} not shown", all - rows.len()).expect("writing to a String");
    }
    write!(note, " · by {}{order}", state.sort.title()).expect("writing to a String");
    if !state.search.is_empty() || state.searching {
        write!(note, " · /{}{}", redact::escape_line(&state.search), if state.searching { "▏" } else { "" })
            .expect("writing to a String");
        write!(note, " hides {}", picture.rows.len() - all).expect("writing to a String");
    }
    lines.push(Line::from(note).dark_gray());
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_details(frame: &mut Frame<'_>, details: &WorkloadDetails, area: Rect, scroll: Option<&mut usize>, partial: bool) {
    let width = usize::from(area.width).saturating_sub(4);
    let title = format!(" {} ", units::shortened(&redact::escape_line(&details.name), width.saturating_sub(2)));
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let width = usize::from(inner.width);
    let alone = scroll.is_some();
    let mut lines = Vec::new();
    if alone {
        let sentence = if partial {
            "savings need the whole record: leave --since out".to_owned()
        } else {
            eadt_report::SavingSummary::of([&details.report]).sentence()
        };
        lines.extend(wrapped(&sentence, width).into_iter().map(Line::from));
        lines.push(Line::from(format!("layout {}", details.layout.as_deref().unwrap_or(units::UNKNOWN))).dark_gray());
    }
    let rows = details.report.by_window.as_deref().unwrap_or_default();
    let high = usize::from(inner.height);
    let chart_height = if alone { (high / 2).min(16) } else { high.saturating_sub(3).min(9) };
    lines.extend(chart::chart(rows, &details.marks, width, chart_height));
    let with_date = is_of_days(details);
    let lines_of = |it: &DecidedChange| decision(it, width, alone, with_date);
    let decisions: Vec<Vec<Line<'static>>> = details.decisions.iter().rev().map(lines_of).collect();
    if decisions.is_empty() {
        let is_of_workload = details.name != GPUS_WITHOUT_WORKLOAD;
        let why = if is_of_workload { "no decision yet: the first window is still open" } else { "no workload, so no decisions" };
        lines.push(Line::from(why).dark_gray());
    }
    let room = high.saturating_sub(lines.len());
    let earlier = details.earlier_line(details.decisions.len()).filter(|_| alone);
    let earlier = earlier.map(|line| Line::from(line).dark_gray());
    let all: Vec<Line<'static>> = decisions.into_iter().flatten().chain(earlier).collect();
    let from = scroll.map_or(0, |scroll| {
        *scroll = (*scroll).min(all.len().saturating_sub(room));
        *scroll
    });
    let below = all.len().saturating_sub(from + room);
    let mut shown: Vec<Line<'static>> = all.into_iter().skip(from).take(room).collect();
    if alone && below > 0 && room > 1 {
        shown.pop();
        shown.push(Line::from(format!("{} more lines: ↓", below + 1)).dark_gray());
    }
    lines.extend(shown);
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Returns whether the decisions and windows of a workload are of more than a day.
fn is_of_days(details: &WorkloadDetails) -> bool {
    let windows = details.report.by_window.as_deref().unwrap_or_default();
    let ends = windows.first().into_iter().chain(windows.last()).flat_map(|window| [window.window_start, window.window_end]);
    let times = || details.decisions.iter().map(|decided| decided.decision.time).chain(ends.clone());
    times().min().zip(times().max()).is_some_and(|(from, to)| chart::is_of_days(from, to))
}

/// Breaks a text between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("one");
        if !line.is_empty() && units::display_width(line) + 1 + units::display_width(word) > width {
            lines.push(word.to_owned());
        } else {
            line.push_str(if line.is_empty() { "" } else { " " });
            line.push_str(word);
        }
    }
    lines
}

/// Returns one line if there are others beside it, as many as it takes where it is alone.
fn decision(decided: &DecidedChange, width: usize, alone: bool, with_date: bool) -> Vec<Line<'static>> {
    let decision = &decided.decision;
    let colour = match (decision.action, decision.validation) {
        (ControllerAction::Maintain, ChangeValidation::Kept) => Color::Green,
        (ControllerAction::Maintain, ChangeValidation::Failed) => Color::Yellow,
        (ControllerAction::Maintain, _) => Color::DarkGray,
        _ if decided.fate.is_some_and(ChangeFate::is_as_asked) => Color::DarkGray,
        _ if decision_takes_back(decision) => Color::Red,
        _ => Color::Yellow,
    };
    let word = decided_text(decided);
    let time = chart::short_time(decision.time, with_date);
    let mut reason = redact::escape_line(&decision.reason).into_owned();
    if alone && decision.from != decision.to {
        reason = format!("{} → {}: {reason}", layout_text(&decision.from), layout_text(&decision.to));
    }
    let indent = time.len() + units::display_width(&word) + 2;
    let room = width.saturating_sub(indent).max(10);
    let mut parts = wrapped(&reason, room);
    if !alone && parts.len() > 1 {
        parts.truncate(1);
        parts[0] = format!("{}…", units::first_cells(&parts[0], room - 1));
    }
    let head = |part: String| {
        Line::from(vec![
            Span::from(time.clone()).dark_gray(),
            Span::styled(format!(" {word} "), Style::new().fg(colour).add_modifier(Modifier::BOLD)),
            Span::from(part),
        ])
    };
    let mut lines = Vec::new();
    for part in parts {
        lines.push(if lines.is_empty() { head(part) } else { Line::from(format!("{}{part}", " ".repeat(indent))) });
    }
    lines
}

fn foot_line(picture: &ViewFrame, state: &ViewState, width: u16) -> Line<'static> {
    let keys = if state.stage == ViewStage::Ending {
        "ending: what is under way is finished first · Ctrl-C ends at once"
    } else if state.searching {
        "type to search · Enter keep · Esc end"
    } else if state.page == ViewPage::Details {
        "↑↓ scroll · Enter Esc back · ? help · q table"
    } else {
        "↑↓ select · Enter details · s sort · / search · p pause · ? help · q end"
    };
    let mut text = format!(" {keys}");
    if let Some(since) = picture.since {
        let since = format!("figures since {}Z", &since.to_string()[..16]);
        let room = usize::from(width).saturating_sub(text.chars().count() + since.len() + 1);
        if room > 1 {
            write!(text, "{}{since}", " ".repeat(room)).expect("writing to a String");
        }
    }
    Line::from(text).style(Style::new().fg(Color::DarkGray))
}

/// Draws the keys over everything but the first line, which shows whose figures these are.
fn draw_help(frame: &mut Frame<'_>, screen: Rect) {
    let area = Rect { y: 1, height: screen.height.saturating_sub(1), ..screen };
    let wide = HELP.iter().map(|line| line.chars().count()).max().unwrap_or(0) as u16 + 4;
    let (width, height) = (wide.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let at = Rect { x: (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    frame.render_widget(Clear, at);
    let lines: Vec<Line<'static>> = HELP.iter().map(|line| Line::from(format!(" {line}"))).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" keys ")), at);
}

#[cfg(test)]
mod tests;
