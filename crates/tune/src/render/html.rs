use std::fmt::{self, Write};

use eadt_html::{END, escape};
use eadt_models::choose::TuningKnobs;
use eadt_schemas::counts::counted;

use super::{CLAIMS, cap_curve, limits, note_line, origin, percent, rows, source};
use crate::{TuningGroup, TuningResult, points};

/// Rules of the plots.
const RULES: &str = ".source { opacity: .85; font-size: 13px; }
.limit { stroke: var(--mark); stroke-dasharray: 4 3; }
.front { fill: none; stroke: var(--ink); stroke-width: 1.5; }
.point { fill: var(--line); } .pareto { fill: var(--ink); } .chosen { fill: none; stroke: var(--good); stroke-width: 2.5; }
.least { fill: none; stroke: var(--mark); stroke-width: 2; }
";

pub(super) fn render(tuning: &TuningResult) -> String {
    let mut out = eadt_html::begin("Tuning report", "Tuning report", RULES);
    write(tuning, &mut out).expect("a String takes every write");
    out
}

fn write(tuning: &TuningResult, out: &mut String) -> fmt::Result {
    let unit = tuning.knob.unit();
    let knobs = tuning.knobs();
    let knob = knobs.all().map(eadt_models::choose::TuningKnob::name).collect::<Vec<_>>().join(" × ");
    let source_of = &tuning.source;
    let file = escape(&source_of.file);
    writeln!(out, "<p>{} of {file}, knob {knob}, method {}.</p>", counted(source_of.rows, "row"), escape(&source_of.method))?;
    writeln!(out, "<h2>Unconstrained against constrained</h2>")?;
    let head = ["group", "limit", "least energy", "saving", "slowdown", "within limits", "saving", "slowdown", "feasible"];
    let cells = |group: &TuningGroup| {
        let mut cells = vec![points::name(&group.by), percent(group.max_slowdown_ratio)];
        for choice in [&group.choices.min_energy, &group.choices.constrained] {
            let (saving, slowdown) = (percent(choice.saving_ratio), percent(choice.slowdown_ratio));
            cells.extend([knobs.words(choice.setting, choice.second_setting), saving, slowdown]);
        }
        cells.push(if group.choices.feasible { "yes" } else { "no" }.to_owned());
        cells
    };
    out.push_str(&eadt_html::table("Unconstrained against constrained", &head, 2, tuning.groups.iter().map(cells)));
    if let Some([least, within]) = tuning.mean_savings() {
        writeln!(
            out,
            "<p>Mean saving: {} unconstrained, {} within the limits. {}</p>",
            percent(least),
            percent(within),
            escape(CLAIMS)
        )?;
    }
    if !tuning.notes.is_empty() {
        out.push_str("<h2>Notes on the table</h2>\n<ul>\n");
        for note in &tuning.notes {
            writeln!(out, "<li>{}</li>", escape(&note_line(note)))?;
        }
        out.push_str("</ul>\n");
    }
    if !tuning.skipped.is_empty() {
        out.push_str("<h2>Skipped</h2>\n<ul>\n");
        for skipped in &tuning.skipped {
            writeln!(out, "<li>{}: {}</li>", escape(&points::name(&skipped.by)), escape(&skipped.reason))?;
        }
        out.push_str("</ul>\n");
    }
    for found in &tuning.energy_to_accuracy {
        writeln!(out, "<h2>{}: energy to {}</h2>\n<ul>", escape(&points::name(&found.by)), found.target)?;
        for (what, best) in [("least energy", &found.result.min_energy), ("fastest", &found.result.min_duration)] {
            let Some(best) = best else { continue };
            writeln!(
                out,
                "<li>{what}: batch size {} at {} {unit}, {:.1} kJ in {:.0} s ({:.1} epochs, mean of {})</li>",
                best.batch_size,
                best.setting,
                best.energy_joules / 1000.0,
                best.duration_seconds,
                best.epochs,
                counted(best.runs, "run")
            )?;
        }
        for excluded in &found.result.excluded {
            writeln!(out, "<li>batch size {} left out: {}</li>", excluded.batch_size, escape(&excluded.reason))?;
        }
        out.push_str("</ul>\n");
    }
    for group in &tuning.groups {
        write_group(tuning, group, out)?;
    }
    out.push_str(END);
    Ok(())
}

fn write_group(tuning: &TuningResult, group: &TuningGroup, out: &mut String) -> fmt::Result {
    let name = escape(&points::name(&group.by));
    let mark = group.mark();
    writeln!(out, "<h2>{name}{mark}</h2>\n<p>{}. Limits: {}.</p>", escape(&group.choices.reason), escape(&limits(group)))?;
    write_plot(group, &name, tuning.knobs(), out)?;
    let head = ["choice", "setting", "time", "energy", "saving", "at least", "fitted", "slowdown", "at most", "fitted"];
    let optional = |ratio: Option<f64>| ratio.map_or("–".to_owned(), percent);
    let cells = rows(group).into_iter().map(|(what, choice)| {
        [
            what.to_owned(),
            tuning.knobs().words(choice.setting, choice.second_setting),
            format!("{:.3} s", choice.duration_seconds),
            format!("{:.1} J", choice.energy_joules),
            percent(choice.saving_ratio),
            optional(choice.saving_lower_ratio),
            optional(choice.fitted_saving_ratio),
            percent(choice.slowdown_ratio),
            optional(choice.slowdown_upper_ratio),
            optional(choice.fitted_slowdown_ratio),
        ]
    });
    out.push_str(&eadt_html::table(&format!("Choices of {}", points::name(&group.by)), &head, 1, cells));
    if let Some(curve) = cap_curve(group) {
        writeln!(out, "<p>{}</p>", escape(&curve))?;
    }
    writeln!(out, "<p class=\"source\">Source: {}</p>", escape(&source(tuning, group)))
}

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 40.0;

/// Slowdown to the right, energy against the reference upwards; measured points, the Pareto set, and the choices.
fn write_plot(group: &TuningGroup, name: &str, knobs: TuningKnobs, out: &mut String) -> fmt::Result {
    let reference = &group.choices.reference;
    let (seconds, joules) = (reference.duration_seconds, reference.energy_joules);
    let second = |index: usize| group.point_second_settings.get(index).copied();
    let measured: Vec<(f64, f64, String)> = group
        .points
        .iter()
        .enumerate()
        .map(|(index, [setting, s, j])| (s / seconds - 1.0, j / joules, knobs.words(*setting, second(index))))
        .collect();
    let of = |choice: &eadt_models::choose::SettingChoice| (choice.slowdown_ratio, 1.0 - choice.saving_ratio);
    let all: Vec<(f64, f64)> = measured
        .iter()
        .map(|(x, y, _)| (*x, *y))
        .chain(group.choices.pareto.iter().map(of))
        .chain([of(&group.choices.constrained), (group.max_slowdown_ratio, 1.0)])
        .collect();
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let margin = 0.04 * (high - low).max(1e-3);
        (low - margin, high + margin)
    };
    let (left, right) = range(&mut all.iter().map(|point| point.0));
    let (low, high) = range(&mut all.iter().map(|point| point.1));
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (value - left) / (right - left);
    let y = |value: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (value - low) / (high - low));
    let label = format!("Energy against time of {name}");
    writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">")?;
    let floor = HEIGHT - BOTTOM;
    writeln!(out, "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{floor}\" x2=\"{WIDTH}\" y2=\"{floor}\"/>")?;
    writeln!(out, "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{TOP}\" x2=\"{LEFT}\" y2=\"{floor}\"/>")?;
    for (time, label) in eadt_html::percent_ticks(left, right, 5) {
        writeln!(out, "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>", x(time), floor + 16.0)?;
    }
    for (energy, label) in eadt_html::percent_ticks(low, high, 5) {
        writeln!(out, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>", LEFT - 6.0, y(energy) + 4.0)?;
    }
    writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">slowdown against {}; upwards: energy, 100 % is its energy</text>",
        f64::midpoint(LEFT, WIDTH),
        HEIGHT - 6.0,
        knobs.words(reference.setting, reference.second_setting)
    )?;
    let limit = x(group.max_slowdown_ratio);
    writeln!(
        out,
        "<line class=\"limit\" x1=\"{limit:.1}\" y1=\"{TOP}\" x2=\"{limit:.1}\" y2=\"{floor}\"><title>limit</title></line>"
    )?;
    let origin = origin(group);
    for (time, energy, setting) in &measured {
        writeln!(
            out,
            "<circle class=\"point\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"><title>{origin}: {setting}</title></circle>",
            x(*time),
            y(*energy)
        )?;
    }
    let front: Vec<String> =
        group.choices.pareto.iter().map(of).map(|(time, energy)| format!("{:.1},{:.1}", x(time), y(energy))).collect();
    writeln!(out, "<polyline class=\"front\" points=\"{}\"/>", front.join(" "))?;
    for choice in &group.choices.pareto {
        let (time, energy) = of(choice);
        let setting = knobs.words(choice.setting, choice.second_setting);
        let at = format!("cx=\"{:.1}\" cy=\"{:.1}\"", x(time), y(energy));
        writeln!(out, "<circle class=\"pareto\" {at} r=\"2.5\"><title>Pareto set: {setting}</title></circle>")?;
    }
    let least = &group.choices.min_energy;
    for (class, choice, what) in [("least", least, "least energy"), ("chosen", &group.choices.constrained, "within the limits")] {
        let (time, energy) = of(choice);
        let (cx, cy, setting) = (x(time), y(energy), knobs.words(choice.setting, choice.second_setting));
        writeln!(
            out,
            "<circle class=\"{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"8\"><title>{what}: {setting}</title></circle>"
        )?;
        let anchor = if cx > 0.8 * WIDTH { "end" } else { "start" };
        let shift = if anchor == "end" { -12.0 } else { 12.0 };
        let above = if class == "chosen" { -8.0 } else { 16.0 };
        writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{what}: {setting}</text>",
            cx + shift,
            (cy + above).clamp(TOP + 10.0, floor - 4.0)
        )?;
    }
    out.push_str("</svg>\n");
    Ok(())
}
