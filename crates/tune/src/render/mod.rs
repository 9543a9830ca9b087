//! A [`TuningResult`] for people.

mod html;
mod text;

use crate::{TableNote, TuningGroup, TuningResult, points};
use eadt_schemas::counts::counted;

/// Shown wherever a saving could be compared with the documents that this program comes from.
const CLAIMS: &str = "The EADT and frequency-plan documents claim savings of 33–37 % and 20–40 %; these are their authors' claims, \
                      unverified. The figures above come from your table alone.";

impl TuningResult {
    /// Tables in plain text.
    pub fn text(&self) -> String {
        text::render(self)
    }

    /// Returns one HTML file with plots; it loads nothing from elsewhere.
    pub fn html(&self) -> String {
        html::render(self)
    }

    /// Returns the mean measured saving without and with the limits, over the groups; `None` if there is none.
    pub fn mean_savings(&self) -> Option<[f64; 2]> {
        let count = self.groups.len() as f64;
        let mean = |of: fn(&TuningGroup) -> f64| self.groups.iter().map(of).sum::<f64>() / count;
        (count > 0.0).then(|| [mean(|g| g.choices.min_energy.saving_ratio), mean(|g| g.choices.constrained.saving_ratio)])
    }
}

/// Returns a note with the group that it is about.
fn note_line(note: &TableNote) -> String {
    match note.groups.as_slice() {
        [group] => format!("{}: {}", points::name(group), note.text),
        _ => note.text.clone(),
    }
}

/// Returns the saving and slowdown of a choice by the fitted curves; empty if unknown.
fn fitted(choice: &eadt_models::choose::SettingChoice) -> String {
    match (choice.fitted_saving_ratio, choice.fitted_slowdown_ratio) {
        (Some(saving), Some(slowdown)) => format!("; fitted {} at {}", percent(saving), percent(slowdown)),
        _ => String::new(),
    }
}

fn percent(ratio: f64) -> String {
    // No "-0.0 %".
    let rounded = (1000.0 * ratio).round() / 10.0;
    format!("{:.1} %", if rounded == 0.0 { 0.0 } else { rounded })
}

/// Returns rows of the choices of a group: name and choice.
fn rows(group: &TuningGroup) -> [(&'static str, &eadt_models::choose::SettingChoice); 6] {
    let choices = &group.choices;
    [
        ("reference", &choices.reference),
        ("least energy, unconstrained", &choices.min_energy),
        ("within the limits", &choices.constrained),
        ("EDP", &choices.min_edp),
        ("ED²P", &choices.min_ed2p),
        ("knee", &choices.knee),
    ]
}

fn limits(group: &TuningGroup) -> String {
    let floor = group.min_ratio.map_or(String::new(), |ratio| format!(", setting at least {} of the highest", percent(ratio)));
    format!("slowdown at most {}{floor}", percent(group.max_slowdown_ratio))
}

/// Returns the origin of a group's points.
fn origin(group: &TuningGroup) -> &'static str {
    if group.is_simulated() { "simulated" } else { "measured" }
}

/// Returns the source of the group's figures.
fn source(tuning: &TuningResult, group: &TuningGroup) -> String {
    let rows = match (group.rows.iter().min(), group.rows.iter().max()) {
        (Some(first), Some(last)) => format!("{} in lines {first} to {last}", counted(group.rows.len(), "row")),
        _ => "no rows".to_owned(),
    };
    let kind = origin(group);
    let how = match &group.choices.fits {
        None => format!("medians of the {kind} points"),
        Some(fits) => {
            let dropped = match fits.dropped_rows.as_slice() {
                [] => String::new(),
                dropped => {
                    let lines: Vec<String> = dropped.iter().map(u64::to_string).collect();
                    format!("; left out as too far from the curve: line {}", lines.join(", "))
                }
            };
            let left_out =
                if fits.left_out.is_empty() { String::new() } else { format!("; no curve: {}", fits.left_out.join("; ")) };
            format!(
                "medians of the {kind} points, bounded by fitted curves (time: R² {}, mean error {}; power: R² {}, mean error {}), bounds at {} from {} resamples, seed {}{dropped}{left_out}",
                fits.duration.r_squared.map_or("–".to_owned(), |r| format!("{r:.3}")),
                percent(fits.duration.mape_ratio),
                fits.power.r_squared.map_or("–".to_owned(), |r| format!("{r:.3}")),
                percent(fits.power.mape_ratio),
                percent(fits.confidence),
                fits.resamples,
                fits.seed
            )
        }
    };
    format!("{}: {rows}, {how}", tuning.source.file)
}

/// Returns the result of throughput against power, in a sentence.
fn cap_curve(group: &TuningGroup) -> Option<String> {
    use eadt_models::fit::CapCurveVerdict;
    let curve = group.cap_curve.as_ref()?;
    if let CapCurveVerdict::NoInformation(reason) = &curve.verdict {
        return Some(format!("throughput against power carries no information: {reason}"));
    }
    let r = |r: Option<f64>| r.map_or("–".to_owned(), |r| format!("{r:.3}"));
    let (plain, offset) = (&curve.power_law, &curve.offset_power_law);
    let peak = match (offset.peak_watts, offset.peak_measured) {
        (Some(watts), true) => format!("throughput per watt peaks at {watts:.0} W"),
        (Some(watts), false) => format!("its peak at {watts:.0} W lies outside what was measured"),
        (None, _) => "no peak".to_owned(),
    };
    Some(format!(
        "throughput = a·P^{:.3} (R² {}), a·(P − {:.1} W)^{:.3} (R² {}): {peak}",
        plain.b,
        r(plain.r_squared),
        offset.offset_watts,
        offset.b,
        r(offset.r_squared)
    ))
}
