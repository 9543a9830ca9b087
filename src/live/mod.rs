//! Views of a running or recorded pipeline, for people at a terminal: gathered from events, drawn, and as plain lines.

pub mod chart;
pub mod dashboard_log;
pub mod event_line;
pub mod exporter;
pub mod follow;
pub mod frame;
pub mod gpus;
pub mod keys;
pub mod line_view;
pub mod log_lines;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(test)]
mod power_tests;
pub mod screen;
pub mod source;
pub mod table;
pub mod tally;
pub mod view;

use std::borrow::Cow;

use eadt_report::states::{ChangeFate, HOLD_OUT, verdict_of_action};
pub use eadt_report::words::origin_word;
use eadt_report::{units, words};
use eadt_schemas::counts::counted;
use eadt_schemas::figures::format_signed_percent;
use eadt_schemas::v1::{ControllerAction, Decision, Layout};
use frame::DecidedChange;

/// Returns the name of a plain enum value on the wire.
pub fn wire_name<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Returns the action of a decision as text: `lower power limit to 208 W`.
pub fn decision_text(decision: &Decision) -> Cow<'static, str> {
    let verdict = verdict_of_action(decision.validation, decision.evidence.contains_key(HOLD_OUT));
    words::action_text(decision.action, verdict, &decision.from, &decision.to)
}

/// Returns the same with what became of it, if it was not made as decided: `lower power limit to 208 W (recommended)`.
pub fn decided_text(decided: &DecidedChange) -> Cow<'static, str> {
    let text = decision_text(&decided.decision);
    let is_change = decided.decision.action != ControllerAction::Maintain;
    match decided.fate.and_then(ChangeFate::note).filter(|_| is_change) {
        Some(note) => format!("{text} ({note})").into(),
        None => text,
    }
}

/// Returns a layout in one line: `6×50 % world 6 ≤300 W`; a dash if nothing is set in it.
pub fn layout_text(layout: &Layout) -> String {
    layout_words(layout).unwrap_or_else(|| units::UNKNOWN.to_owned())
}

/// Returns a layout in one line; `None` if nothing is set in it.
pub fn layout_words(layout: &Layout) -> Option<String> {
    let mut parts = Vec::new();
    match (layout.replicas, layout.mps_thread_percentage) {
        (Some(replicas), Some(percent)) => parts.push(format!("{replicas}×{percent} %")),
        (Some(replicas), None) => parts.push(counted(replicas, "replica")),
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
        parts.push(format!("{} frozen", counted(layers, "layer")));
    }
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// Returns a saving with its error and the part that it is of: `+16.9 ±1.2 of 98 %`.
pub fn saving_text(saving: tally::WorkloadSaving) -> String {
    let ratio = format_signed_percent(saving.ratio, 1);
    let error = saving.ratio_error.map_or_else(String::new, |error| format!(" ±{:.1}", 100.0 * error));
    let of = saving.compared_ratio.map_or_else(String::new, |part| format!(" of {:.0} %", 100.0 * part));
    format!("{ratio}{error}{of}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saving_that_rounds_to_zero_has_no_sign() {
        let text = |ratio: f64| {
            let saving = tally::WorkloadSaving { joules: -1.0, ratio, ratio_error: Some(0.012), compared_ratio: None };
            saving_text(saving)
        };
        assert_eq!([-0.000_4, 0.000_4, 0.169].map(text), ["0.0 % ±1.2", "0.0 % ±1.2", "+16.9 % ±1.2"]);
    }
}
