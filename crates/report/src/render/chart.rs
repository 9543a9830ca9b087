//! The chart of a workload: power above J/sample over time, phases, baseline, restarts, numbered decisions.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

use eadt_html::escape;
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::Origin;

use super::{origin_mark, origin_word};
use crate::figures::{ChangeVerdict, WindowPoint};
use crate::{WorkloadReport, units};

const WIDTH: f64 = 900.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 890.0;
/// Numbers of decisions, power, J/sample, and the time below them.
const MARKS: f64 = 26.0;
const POWER: (f64, f64) = (34.0, 94.0);
const ENERGY: (f64, f64) = (108.0, 298.0);
const HEIGHT: f64 = 326.0;
/// Numbers nearer than this would cover each other; the list has all.
const APART: f64 = 15.0;

/// What the charts fill restarts with; once a page.
pub(super) const PATTERN: &str = "<svg class=\"defs\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" width=\"6\" height=\"6\" \
     patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\"/></pattern></defs></svg>\n";

struct Axes {
    from: EventTime,
    seconds: f64,
    /// The largest J/sample without restarts.
    most: f64,
    most_power: f64,
}

impl Axes {
    fn of(points: &[WindowPoint]) -> Option<Self> {
        let (first, last) = (points.first()?, points.last()?);
        let seconds = last.end.seconds_since(first.start);
        let running = points.iter().filter(|point| !point.restarted).filter_map(|point| point.joules_per_sample);
        let any = points.iter().filter_map(|point| point.joules_per_sample);
        let most = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
        let (mut running, mut any) = (running, any);
        let highest = most(&mut running);
        let highest = if highest > 0.0 { highest } else { most(&mut any) };
        let baseline = most(&mut points.iter().filter_map(|point| point.baseline));
        let axes = Self {
            from: first.start,
            seconds,
            most: highest.max(baseline) * 1.05,
            most_power: most(&mut points.iter().filter_map(|point| point.power_watts)),
        };
        let known = points.iter().filter(|point| point.joules_per_sample.is_some()).count();
        (known >= 2 && axes.most > 0.0 && seconds > 0.0).then_some(axes)
    }

    fn x(&self, time: EventTime) -> f64 {
        LEFT + (RIGHT - LEFT) * (time.seconds_since(self.from) / self.seconds).clamp(0.0, 1.0)
    }

    /// What is above the scale is at its top.
    fn y(&self, value: f64) -> f64 {
        ENERGY.0 + (ENERGY.1 - ENERGY.0) * (1.0 - (value / self.most).min(1.0))
    }

    fn y_power(&self, value: f64) -> f64 {
        POWER.0 + (POWER.1 - POWER.0) * (1.0 - (value / self.most_power).min(1.0))
    }
}

fn format_time(time: EventTime) -> String {
    format!("{}Z", &time.to_string()[..19])
}

/// Writes the chart and the list of its decisions; nothing where there is nothing to draw.
pub(super) fn write(out: &mut String, workload: &WorkloadReport) -> fmt::Result {
    let points = &workload.curve;
    let Some(axes) = Axes::of(points) else { return Ok(()) };
    let origins: BTreeSet<Origin> = points.iter().map(|point| point.origin).collect();
    let heading = format!("J/sample of {} over time{}", workload.workload, origin_mark(origins.iter().copied()));
    let heading = escape(&heading);
    writeln!(out, "<h3>{heading}</h3>")?;
    let described = escape(&description(workload));
    writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{heading}. {described}\">")?;
    write_phases(out, points, &axes)?;
    write_restarts(out, points, &axes)?;
    write_axes(out, points, &axes)?;
    write_lines(out, points, &axes, &origins)?;
    write_marks(out, workload, &axes)?;
    out.push_str("</svg>\n");
    write_legend(out, &origins)?;
    write_decisions(out, workload)
}

/// The chart in words, for who does not see it.
fn description(workload: &WorkloadReport) -> String {
    let restarts = workload.curve.iter().filter(|point| point.restarted).count();
    let joules = workload.joules_per_sample.map_or_else(|| units::UNKNOWN.to_owned(), units::joules_per_sample);
    let (restarts, decisions) = (counted(restarts, "window"), counted(workload.decided.len(), "decision"));
    format!("{joules} J/sample over all, {restarts} with a restart, {decisions} below")
}

/// A run of points that have something in common, from its start to its end.
fn runs_by<T: PartialEq>(points: &[WindowPoint], of: impl Fn(&WindowPoint) -> T) -> impl Iterator<Item = (T, &[WindowPoint])> {
    let mut rest = points;
    std::iter::from_fn(move || {
        let first = of(rest.first()?);
        let end = rest.iter().position(|point| of(point) != first).unwrap_or(rest.len());
        let (run, left) = rest.split_at(end);
        rest = left;
        Some((first, run))
    })
}

fn write_phases(out: &mut String, points: &[WindowPoint], axes: &Axes) -> fmt::Result {
    for (phase, run) in runs_by(points, |point| point.phase) {
        let (Some(phase), Some(last)) = (phase, run.last()) else { continue };
        let (from, to) = (axes.x(run[0].start), axes.x(last.end));
        let shade = phase % 2;
        writeln!(
            out,
            "<rect class=\"phase{shade}\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"/>",
            ENERGY.0,
            to - from,
            ENERGY.1 - ENERGY.0
        )?;
        if to - from > 52.0 {
            writeln!(out, "<text class=\"small\" x=\"{:.1}\" y=\"{}\">phase {phase}</text>", from + 3.0, ENERGY.1 - 5.0)?;
        }
    }
    Ok(())
}

fn write_restarts(out: &mut String, points: &[WindowPoint], axes: &Axes) -> fmt::Result {
    for (restarted, run) in runs_by(points, |point| point.restarted) {
        let Some(last) = run.last().filter(|_| restarted) else { continue };
        let (from, to) = (axes.x(run[0].start), axes.x(last.end));
        let high = ENERGY.1 - ENERGY.0;
        writeln!(
            out,
            "<rect fill=\"url(#hatch)\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{high}\"/>",
            ENERGY.0,
            to - from
        )?;
    }
    Ok(())
}

fn write_axes(out: &mut String, points: &[WindowPoint], axes: &Axes) -> fmt::Result {
    let mut line = |x1: f64, y1: f64, x2: f64, y2: f64| {
        writeln!(out, "<line class=\"axis\" x1=\"{x1}\" y1=\"{y1:.1}\" x2=\"{x2}\" y2=\"{y2:.1}\"/>")
    };
    line(LEFT, POWER.0, LEFT, POWER.1)?;
    line(LEFT, POWER.1, RIGHT, POWER.1)?;
    line(LEFT, ENERGY.0, LEFT, ENERGY.1)?;
    line(LEFT, ENERGY.1, RIGHT, ENERGY.1)?;
    let at = LEFT - 8.0;
    let most = units::joules_per_sample(axes.most);
    for (y, label) in [
        (ENERGY.0 + 10.0, most),
        (ENERGY.0 + 24.0, "J/sample".to_owned()),
        (ENERGY.1 + 4.0, "0".to_owned()),
        (POWER.0 + 10.0, units::format_watts(axes.most_power)),
        (POWER.1 + 4.0, "0".to_owned()),
    ] {
        writeln!(out, "<text x=\"{at}\" y=\"{y:.1}\" text-anchor=\"end\">{label}</text>")?;
    }
    let below = HEIGHT - 8.0;
    let last = points.last().map_or(axes.from, |point| point.end);
    let middle = axes.from.plus_seconds(axes.seconds / 2.0);
    for (x, anchor, time) in [(LEFT, "start", axes.from), (f64::midpoint(LEFT, RIGHT), "middle", middle), (RIGHT, "end", last)] {
        writeln!(out, "<text x=\"{x}\" y=\"{below}\" text-anchor=\"{anchor}\">{}</text>", format_time(time))?;
    }
    Ok(())
}

/// Line of an origin: solid where it is measured, broken elsewhere, if origins differ.
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

fn write_lines(out: &mut String, points: &[WindowPoint], axes: &Axes, origins: &BTreeSet<Origin>) -> fmt::Result {
    for run in points.split(|point| point.power_watts.is_none()) {
        let line: Vec<String> = run
            .iter()
            .filter_map(|point| Some(format!("{:.1},{:.1}", axes.x(midpoint(point)), axes.y_power(point.power_watts?))))
            .collect();
        if axes.most_power > 0.0 && line.len() > 1 {
            writeln!(out, "<polyline class=\"power\" points=\"{}\"/>", line.join(" "))?;
        }
    }
    for (baseline, run) in runs_by(points, |point| point.baseline.map(f64::to_bits)) {
        let (Some(baseline), Some(last)) = (baseline.map(f64::from_bits), run.last()) else { continue };
        let (from, to, y) = (axes.x(run[0].start), axes.x(last.end), axes.y(baseline));
        writeln!(out, "<line class=\"baseline\" x1=\"{from:.1}\" y1=\"{y:.1}\" x2=\"{to:.1}\" y2=\"{y:.1}\"/>")?;
    }
    // The line is broken where nothing is known, and at restarts, which are hatched.
    for stretch in points.split(|point| point.joules_per_sample.is_none() || point.restarted) {
        for part in stretch.chunk_by(|a, b| a.origin == b.origin) {
            let class = line_class(part[0].origin, origins);
            let places: Vec<(f64, f64)> =
                part.iter().filter_map(|point| Some((axes.x(midpoint(point)), axes.y(point.joules_per_sample?)))).collect();
            match places.as_slice() {
                [(x, y)] => writeln!(out, "<circle{class} cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2\"/>")?,
                places => {
                    let texts: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                    writeln!(out, "<polyline{class} points=\"{}\"/>", texts.join(" "))?;
                }
            }
        }
    }
    Ok(())
}

fn write_marks(out: &mut String, workload: &WorkloadReport, axes: &Axes) -> fmt::Result {
    let mut labelled = f64::MIN;
    for (index, decided) in workload.decided.iter().enumerate() {
        let x = axes.x(decided.time);
        writeln!(out, "<line class=\"change\" x1=\"{x:.1}\" y1=\"{MARKS}\" x2=\"{x:.1}\" y2=\"{}\"/>", ENERGY.1)?;
        if x - labelled >= APART {
            labelled = x;
            let sign = if decided.reverted { "✗" } else { "" };
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

fn write_legend(out: &mut String, origins: &BTreeSet<Origin>) -> fmt::Result {
    out.push_str(
        "<p class=\"legend\">Numbers: decisions, listed below; ✗: reverted. Above: power. Below: J/sample, from zero; dashed: what the starting \
         layout takes in this phase; shaded: phases of the work; hatched: restarts, whose J/sample is not in the scale.",
    );
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
    for decided in workload.decided.iter().take(LISTED) {
        let verdict = decided.verdict.as_ref().map_or_else(String::new, |(time, verdict, reason)| {
            let word = match verdict {
                ChangeVerdict::Kept => "Kept",
                ChangeVerdict::NoGain => "No gain",
                ChangeVerdict::Reverted => "Reverted",
            };
            format!(" <strong>{word}</strong> at {}: {}", format_time(*time), escape(reason))
        });
        writeln!(
            out,
            "<li>{} <strong>{}</strong>: {}.{verdict}</li>",
            format_time(decided.time),
            decided.text,
            escape(&decided.reason)
        )?;
    }
    out.push_str("</ol>\n");
    if workload.decided.len() > LISTED {
        writeln!(out, "<p>{} more decisions: <code>eadt get decisions</code> lists them.</p>", workload.decided.len() - LISTED)?;
    }
    out.push_str("</details>\n");
    Ok(())
}
