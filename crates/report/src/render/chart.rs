//! The chart of a workload: power above J/sample over time, phases, baseline, restarts, numbered decisions.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use eadt_html::escape;
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::Origin;

use super::origin_mark;
use crate::figures::{ChangeVerdict, DecidedChange, WindowPoint};
use crate::words::origin_word;
use crate::{WorkloadReport, units};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 890.0;
/// Top of the dotted line of a decision, below its number.
const MARKS: f64 = 26.0;
/// Top of the first panel, heights of power and J/sample, room between them, and room for the time below.
const TOP: f64 = 34.0;
const POWER: f64 = 60.0;
const ENERGY: f64 = 190.0;
const BETWEEN: f64 = 14.0;
const BELOW: f64 = 28.0;
/// Numbers nearer than this would cover each other; the list has all.
const APART: f64 = 15.0;

/// SVG pattern that the charts fill restarts with; once a page.
pub(super) const PATTERN: &str = "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" width=\"6\" height=\"6\" \
     patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\"/></pattern></defs></svg>\n";

/// A figure over time, from zero to its most.
struct Panel {
    top: f64,
    bottom: f64,
    most: f64,
}

impl Panel {
    /// Returns the height of a value; one above the scale is at its top.
    fn y(&self, value: f64) -> f64 {
        self.top + (self.bottom - self.top) * (1.0 - (value / self.most).min(1.0))
    }

    fn height(&self) -> f64 {
        self.bottom - self.top
    }
}

/// Panels of a chart: each is there if its figure is known in two windows.
struct Axes {
    from: EventTime,
    seconds: f64,
    power: Option<Panel>,
    /// J/sample.
    energy: Option<Panel>,
}

impl Axes {
    fn of(points: &[WindowPoint]) -> Option<Self> {
        let (first, last) = (points.first()?, points.last()?);
        let mut top = TOP;
        let mut panel = |of: fn(&WindowPoint) -> Option<f64>, most: f64, height: f64| {
            let is_known = points.iter().filter_map(of).count() >= 2 && most > 0.0;
            is_known.then(|| {
                let panel = Panel { top, bottom: top + height, most };
                top += height + BETWEEN;
                panel
            })
        };
        let power = panel(|point| point.power_watts, most_of(points.iter().map(|point| point.power_watts)), POWER);
        let energy = panel(|point| point.joules_per_sample, most_joules(points), ENERGY);
        let axes = Self { from: first.start, seconds: last.end.seconds_since(first.start), power, energy };
        (axes.seconds > 0.0 && (axes.power.is_some() || axes.energy.is_some())).then_some(axes)
    }

    fn x(&self, time: EventTime) -> f64 {
        LEFT + (RIGHT - LEFT) * (time.seconds_since(self.from) / self.seconds).clamp(0.0, 1.0)
    }

    /// Returns the last panel, which phases and restarts are drawn in.
    fn main(&self) -> Option<&Panel> {
        self.energy.as_ref().or(self.power.as_ref())
    }

    fn bottom(&self) -> f64 {
        self.main().map_or(TOP, |panel| panel.bottom)
    }
}

fn most_of(values: impl Iterator<Item = Option<f64>>) -> f64 {
    values.flatten().fold(0.0, f64::max)
}

/// Returns the top of the scale of J/sample: the largest one without restarts, if there is any.
fn most_joules(points: &[WindowPoint]) -> f64 {
    let running = most_of(points.iter().filter(|point| !point.restarted).map(|point| point.joules_per_sample));
    let highest = if running > 0.0 { running } else { most_of(points.iter().map(|point| point.joules_per_sample)) };
    highest.max(most_of(points.iter().map(|point| point.baseline))) * 1.05
}

fn format_time(time: EventTime) -> String {
    format!("{}Z", &time.to_string()[..19])
}

/// Writes the chart and the list of its decisions, each if there is something to show.
pub(super) fn write(out: &mut String, workload: &WorkloadReport) -> fmt::Result {
    if let Some(axes) = Axes::of(&workload.curve) {
        write_chart(out, workload, &axes)?;
    }
    write_decisions(out, workload)
}

fn write_chart(out: &mut String, workload: &WorkloadReport, axes: &Axes) -> fmt::Result {
    let points = &workload.curve;
    let origins: BTreeSet<Origin> = points.iter().map(|point| point.origin).collect();
    let figure = if axes.energy.is_some() { "J/sample" } else { "Power" };
    let heading = format!("{figure} of {} over time{}", workload.workload, origin_mark(origins.iter().copied()));
    let heading = escape(&heading);
    writeln!(out, "<h3>{heading}</h3>")?;
    let described = escape(&description(workload));
    let height = axes.bottom() + BELOW;
    writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{heading}. {described}\">")?;
    if let Some(panel) = axes.main() {
        write_phases(out, points, axes, panel)?;
        write_restarts(out, points, axes, panel)?;
    }
    write_axes(out, points, axes)?;
    write_power(out, points, axes)?;
    write_energy(out, points, axes, &origins)?;
    write_marks(out, workload, axes)?;
    out.push_str("</svg>\n");
    write_legend(out, axes, &origins)
}

/// Returns the chart as text, for readers who cannot see it.
fn description(workload: &WorkloadReport) -> String {
    let restarts = workload.curve.iter().filter(|point| point.restarted).count();
    let joules = workload.joules_per_sample.map(|joules| format!("{} J/sample over all", units::joules_per_sample(joules)));
    let joules = joules.unwrap_or_else(|| "J/sample not known".to_owned());
    let (restarts, decisions) = (counted(restarts, "window"), counted(workload.decided.len(), "decision"));
    format!("{joules}, {restarts} with a restart, {decisions} below")
}

/// Returns the runs of points that have something in common and follow each other without a gap, each from its start to its end.
fn runs_by<T: PartialEq>(points: &[WindowPoint], of: impl Fn(&WindowPoint) -> T) -> impl Iterator<Item = (T, &[WindowPoint])> {
    let mut rest = points;
    std::iter::from_fn(move || {
        let first = of(rest.first()?);
        let ends = |pair: &[WindowPoint]| of(&pair[1]) != first || pair[1].start > pair[0].end;
        let end = rest.windows(2).position(ends).map_or(rest.len(), |last| last + 1);
        let (run, left) = rest.split_at(end);
        rest = left;
        Some((first, run))
    })
}

fn write_phases(out: &mut String, points: &[WindowPoint], axes: &Axes, panel: &Panel) -> fmt::Result {
    for (phase, run) in runs_by(points, |point| point.phase) {
        let (Some(phase), Some(last)) = (phase, run.last()) else { continue };
        let (from, to) = (axes.x(run[0].start), axes.x(last.end));
        let shade = phase % 2;
        writeln!(
            out,
            "<rect class=\"phase{shade}\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"/>",
            panel.top,
            to - from,
            panel.height()
        )?;
        if to - from > 52.0 {
            writeln!(out, "<text class=\"small\" x=\"{:.1}\" y=\"{}\">phase {phase}</text>", from + 3.0, panel.bottom - 5.0)?;
        }
    }
    Ok(())
}

fn write_restarts(out: &mut String, points: &[WindowPoint], axes: &Axes, panel: &Panel) -> fmt::Result {
    for (restarted, run) in runs_by(points, |point| point.restarted) {
        let Some(last) = run.last().filter(|_| restarted) else { continue };
        let (from, to) = (axes.x(run[0].start), axes.x(last.end));
        let high = panel.height();
        writeln!(
            out,
            "<rect fill=\"url(#hatch)\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{high}\"/>",
            panel.top,
            to - from
        )?;
    }
    Ok(())
}

fn write_axes(out: &mut String, points: &[WindowPoint], axes: &Axes) -> fmt::Result {
    let mut line = |x1: f64, y1: f64, x2: f64, y2: f64| {
        writeln!(out, "<line class=\"axis\" x1=\"{x1}\" y1=\"{y1:.1}\" x2=\"{x2}\" y2=\"{y2:.1}\"/>")
    };
    for panel in axes.power.iter().chain(&axes.energy) {
        line(LEFT, panel.top, LEFT, panel.bottom)?;
        line(LEFT, panel.bottom, RIGHT, panel.bottom)?;
    }
    let mut labels = Vec::new();
    if let Some(panel) = &axes.power {
        labels.extend([(panel.top + 10.0, units::format_watts(panel.most)), (panel.bottom + 4.0, "0".to_owned())]);
    }
    if let Some(panel) = &axes.energy {
        labels.extend([(panel.top + 10.0, units::joules_per_sample(panel.most)), (panel.top + 24.0, "J/sample".to_owned())]);
        labels.push((panel.bottom + 4.0, "0".to_owned()));
    }
    let at = LEFT - 8.0;
    for (y, label) in labels {
        writeln!(out, "<text x=\"{at}\" y=\"{y:.1}\" text-anchor=\"end\">{label}</text>")?;
    }
    let below = axes.bottom() + BELOW - 8.0;
    let last = points.last().map_or(axes.from, |point| point.end);
    let middle = axes.from.plus_seconds(axes.seconds / 2.0);
    for (x, anchor, time) in [(LEFT, "start", axes.from), (f64::midpoint(LEFT, RIGHT), "middle", middle), (RIGHT, "end", last)] {
        writeln!(out, "<text x=\"{x}\" y=\"{below}\" text-anchor=\"{anchor}\">{}</text>", format_time(time))?;
    }
    Ok(())
}

/// Returns the line of an origin: solid if it is measured, broken elsewhere, if origins differ.
fn line_class(origin: Origin, origins: &BTreeSet<Origin>) -> &'static str {
    match origin {
        _ if origins.len() < 2 => "",
        Origin::Measured => " class=\"measured\"",
        Origin::Imported => " class=\"imported\"",
        Origin::Simulated => " class=\"simulated\"",
    }
}

fn midpoint(point: &WindowPoint) -> EventTime {
    point.start.plus_micros((point.end.micros() - point.start.micros()) / 2)
}

/// Writes the power line, with breaks at unknown values.
fn write_power(out: &mut String, points: &[WindowPoint], axes: &Axes) -> fmt::Result {
    let Some(panel) = &axes.power else { return Ok(()) };
    for (is_known, run) in runs_by(points, |point| point.power_watts.is_some()) {
        let Some(last) = run.last().filter(|_| is_known) else { continue };
        let place = |point: &WindowPoint| Some((axes.x(midpoint(point)), panel.y(point.power_watts?)));
        let mut places: Vec<(f64, f64)> = run.iter().filter_map(place).collect();
        if let [(_, y)] = places[..] {
            // One window alone, over its whole time.
            places = vec![(axes.x(last.start), y), (axes.x(last.end), y)];
        }
        writeln!(out, "<polyline class=\"power\" points=\"{}\"/>", path_points(&places))?;
    }
    Ok(())
}

/// Writes J/sample and its baseline. The line has breaks at unknown values, and at restarts, which are hatched.
fn write_energy(out: &mut String, points: &[WindowPoint], axes: &Axes, origins: &BTreeSet<Origin>) -> fmt::Result {
    let Some(panel) = &axes.energy else { return Ok(()) };
    for (baseline, run) in runs_by(points, |point| point.baseline.map(f64::to_bits)) {
        let (Some(baseline), Some(last)) = (baseline.map(f64::from_bits), run.last()) else { continue };
        let (from, to, y) = (axes.x(run[0].start), axes.x(last.end), panel.y(baseline));
        writeln!(out, "<line class=\"baseline\" x1=\"{from:.1}\" y1=\"{y:.1}\" x2=\"{to:.1}\" y2=\"{y:.1}\"/>")?;
    }
    for (origin, run) in runs_by(points, |point| point.joules_per_sample.filter(|_| !point.restarted).map(|_| point.origin)) {
        let Some(class) = origin.map(|origin| line_class(origin, origins)) else { continue };
        let place = |point: &WindowPoint| Some((axes.x(midpoint(point)), panel.y(point.joules_per_sample?)));
        match run.iter().filter_map(place).collect::<Vec<_>>().as_slice() {
            [(x, y)] => writeln!(out, "<circle{class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"/>")?,
            places => writeln!(out, "<polyline{class} points=\"{}\"/>", path_points(places))?,
        }
    }
    Ok(())
}

fn path_points(places: &[(f64, f64)]) -> String {
    places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

fn write_marks(out: &mut String, workload: &WorkloadReport, axes: &Axes) -> fmt::Result {
    let mut labelled = f64::MIN;
    for (index, decided) in workload.decided.iter().enumerate() {
        let x = axes.x(decided.time);
        writeln!(out, "<line class=\"change\" x1=\"{x:.1}\" y1=\"{MARKS}\" x2=\"{x:.1}\" y2=\"{}\"/>", axes.bottom())?;
        if x - labelled >= APART {
            labelled = x;
            let sign = match (decided.reverted, decided.takes_back) {
                (true, _) => "✗",
                (false, true) => "←",
                (false, false) => "",
            };
            writeln!(
                out,
                "<text class=\"small\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}{sign}</text>",
                MARKS - 8.0,
                index + 1
            )?;
        }
    }
    Ok(())
}

fn write_legend(out: &mut String, axes: &Axes, origins: &BTreeSet<Origin>) -> fmt::Result {
    out.push_str("<p class=\"legend\">Numbers: decisions, listed below; ✗: reverted; ←: a revert. ");
    out.push_str(match (axes.power.is_some(), axes.energy.is_some()) {
        (true, true) => "Above: power. Below: J/sample, from zero; ",
        (true, false) => "Power, from zero; J/sample is not known; ",
        (false, _) => "J/sample, from zero; power is not known; ",
    });
    if axes.energy.is_some() {
        out.push_str("dashed: what the starting layout takes in this phase; ");
    }
    out.push_str("shaded: phases of the work; hatched: restarts");
    if axes.energy.is_some() {
        out.push_str(", whose J/sample is not in the scale");
    }
    out.push_str(". No line: nothing is known of that time.");
    if origins.len() > 1 {
        for origin in origins {
            write!(
                out,
                " <svg class=\"key\" viewBox=\"0 0 36 8\" aria-hidden=\"true\"><polyline{} points=\"0,4 36,4\"/></svg> <span>{}</span>",
                line_class(*origin, origins),
                origin_word(*origin)
            )?;
        }
    }
    out.push_str("</p>\n");
    Ok(())
}

/// Decisions listed before the rest is counted.
const LISTED: usize = 100;

fn write_decisions(out: &mut String, workload: &WorkloadReport) -> fmt::Result {
    if workload.decided.is_empty() {
        return Ok(());
    }
    out.push_str("<details open><summary>Decisions, with reason and verdict</summary>\n<ol>\n");
    for (index, decided) in workload.decided.iter().enumerate().take(LISTED) {
        writeln!(
            out,
            "<li>{} <strong>{}</strong>: {}.{}</li>",
            format_time(decided.time),
            decided.text,
            escape(&decided.reason),
            verdict_text(&workload.decided, index)
        )?;
    }
    out.push_str("</ol>\n");
    if workload.decided.len() > LISTED {
        writeln!(out, "<p>{} more decisions: <code>eadt get decisions</code> lists them.</p>", workload.decided.len() - LISTED)?;
    }
    out.push_str("</details>\n");
    Ok(())
}

/// Returns the recorded verdict on a decision, as text. A verdict is on all changes in force at its time: a later change without
/// one of its own was judged with it.
fn verdict_text(all: &[DecidedChange], index: usize) -> String {
    let decided = &all[index];
    let number = |place: usize| (place + 1).to_string();
    let Some((time, verdict, reason)) = &decided.verdict else {
        let before = all[..index].iter().rposition(|other| other.verdict.as_ref().is_some_and(|(time, ..)| *time > decided.time));
        let with = before.map_or_else(String::new, |other| format!(": judged together with decision {}", number(other)));
        return format!(" <strong>No verdict of its own</strong>{with}.");
    };
    let word = match verdict {
        ChangeVerdict::Kept => "Kept",
        ChangeVerdict::NoGain => "No gain",
        ChangeVerdict::Reverted => "Reverted",
    };
    let later = all[index + 1..].iter().take_while(|other| other.time < *time).zip(index + 1..);
    let later: Vec<String> = later.filter(|(other, _)| other.verdict.is_none()).map(|(_, place)| number(place)).collect();
    let with = if later.is_empty() { String::new() } else { format!(", together with decision {}", later.join(" and ")) };
    format!(" <strong>{word}</strong> at {}{with}: {}", format_time(*time), escape(reason))
}
