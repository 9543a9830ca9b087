use std::fmt::Write;

use eadt_schemas::counts::counted;

use super::{CLAIMS, cap_curve, fitted, limits, note_line, percent, rows, source};
use crate::{TuningResult, points};

pub(super) fn render(tuning: &TuningResult) -> String {
    let mut out = String::new();
    write(tuning, &mut out).expect("a String takes every write");
    out
}

fn write(tuning: &TuningResult, out: &mut String) -> std::fmt::Result {
    let (unit, knobs) = (tuning.knob.unit(), tuning.knobs());
    for group in &tuning.groups {
        let mark = if group.is_simulated() { "simulated; " } else { "" };
        writeln!(out, "{} ({mark}{})", points::name(&group.by), limits(group))?;
        let width = if knobs.second.is_some() { 30 } else { 12 };
        writeln!(out, "  {:<28} {:>width$} {:>9} {:>9}", "", "setting", "saving", "slowdown")?;
        for (name, choice) in rows(group) {
            let setting = knobs.words(choice.setting, choice.second_setting);
            let reference = &group.choices.reference;
            let is_reference = (choice.setting, choice.second_setting) == (reference.setting, reference.second_setting);
            let bound = match (choice.saving_lower_ratio, choice.slowdown_upper_ratio) {
                (Some(saving), Some(slowdown)) if !is_reference => {
                    format!("   at least {}, at most {}{}", percent(saving), percent(slowdown), fitted(choice))
                }
                _ => String::new(),
            };
            let (saving, slowdown) = (percent(choice.saving_ratio), percent(choice.slowdown_ratio));
            writeln!(out, "  {name:<28} {setting:>width$} {saving:>9} {slowdown:>9}{bound}")?;
        }
        let set = &group.choices.pareto;
        let pareto: Vec<String> = match knobs.second {
            None => set.iter().map(|choice| choice.setting.to_string()).collect(),
            Some(_) => set.iter().map(|choice| format!("({})", knobs.words(choice.setting, choice.second_setting))).collect(),
        };
        let unit = if knobs.second.is_none() { format!(" {unit}") } else { String::new() };
        writeln!(out, "  Pareto set, fastest first: {}{unit}", pareto.join(", "))?;
        writeln!(out, "  {}", group.choices.reason)?;
        if let Some(curve) = cap_curve(group) {
            writeln!(out, "  {curve}")?;
        }
        writeln!(out, "  from {}\n", source(tuning, group))?;
    }
    for found in &tuning.energy_to_accuracy {
        writeln!(out, "{}: energy to {}", points::name(&found.by), found.target)?;
        match &found.result.min_energy {
            Some(best) => writeln!(
                out,
                "  batch size {} at {} {unit}: {:.1} kJ in {:.0} s ({:.1} epochs, {})",
                best.batch_size,
                best.setting,
                best.energy_joules / 1000.0,
                best.duration_seconds,
                best.epochs,
                counted(best.runs, "run")
            )?,
            None => writeln!(out, "  no batch size is eligible")?,
        }
        if let Some(fast) = &found.result.min_duration {
            writeln!(
                out,
                "  fastest: batch size {} at {} {unit}: {:.1} kJ in {:.0} s",
                fast.batch_size,
                fast.setting,
                fast.energy_joules / 1000.0,
                fast.duration_seconds
            )?;
        }
        for excluded in &found.result.excluded {
            writeln!(out, "  batch size {} left out: {}", excluded.batch_size, excluded.reason)?;
        }
        writeln!(out)?;
    }
    for skipped in &tuning.skipped {
        writeln!(out, "skipped: {}: {}", points::name(&skipped.by), skipped.reason)?;
    }
    if let Some([least, within]) = tuning.mean_savings() {
        let infeasible = tuning.groups.iter().filter(|group| !group.choices.feasible).count();
        writeln!(
            out,
            "{}: mean saving {} unconstrained, {} within the limits; {infeasible} infeasible, {} skipped",
            counted(tuning.groups.len(), "group"),
            percent(least),
            percent(within),
            tuning.skipped.len()
        )?;
        writeln!(out, "{CLAIMS}")?;
    }
    for note in &tuning.notes {
        writeln!(out, "note: {}", note_line(note))?;
    }
    Ok(())
}
