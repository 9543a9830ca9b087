//! One event as one line that people can read.

use eadt_bus::ConsumerRecord;
use eadt_report::states::is_change_or_verdict;
use eadt_report::units;
use eadt_schemas::v1::dead_letter_header as refusal;
use eadt_schemas::v1::{
    Actuation, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, GpuTelemetry, TrainingProgress, Workload,
};
use eadt_schemas::{EventTime, Topic, decode};

use super::{decision_text, layout_text, origin_word, wire_name};

/// Returns whether a decision does or judges anything.
pub fn is_change(decision: &Decision) -> bool {
    is_change_or_verdict(decision.action, decision.validation)
}

/// Returns whether an event changed or judged something; what cannot be read is always shown.
pub fn is_news(topic: Topic, value: &[u8]) -> bool {
    match topic {
        Topic::Decisions => decode::<Decision>(value).map_or(true, |decision| is_change(&decision)),
        Topic::EfficiencyWindows => decode::<EfficiencyWindow>(value).map_or(true, |window| window.restarted || window.gap),
        Topic::GpuTelemetry => decode::<GpuTelemetry>(value).map_or(true, |sample| sample.last),
        Topic::TrainingProgress => {
            decode::<TrainingProgress>(value).map_or(true, |progress| wire_name(&progress.phase) != "progress")
        }
        _ => true,
    }
}

fn figure(value: Option<f64>, text: fn(f64) -> String) -> String {
    value.map_or_else(|| units::UNKNOWN.to_owned(), text)
}

/// Width of the action's text: most actions fit, so that the next column is aligned.
const WORD: usize = 27;

fn line(time: EventTime, of: &str, origin: &str, text: &str) -> String {
    format!("{}Z  {of}  {text}  [{origin}]", &time.to_string()[..19])
}

/// Returns a readable line; `None` if the record holds no event of a topic with a form of its own.
pub fn readable(topic: Topic, record: &ConsumerRecord) -> Option<String> {
    if topic == Topic::DeadLetters {
        return Some(dead_letter(record));
    }
    let value = record.value.as_deref()?;
    match topic {
        Topic::Decisions => decode::<Decision>(value).ok().map(|it| {
            let change =
                if it.from == it.to { String::new() } else { format!("{} → {}: ", layout_text(&it.from), layout_text(&it.to)) };
            let text = format!("{:WORD$}  {change}{}", decision_text(&it), it.reason);
            line(it.time, &it.workload, origin_word(it.origin), &text)
        }),
        Topic::Actuations => decode::<Actuation>(value).ok().map(|it| {
            let reason = if it.reason.is_empty() { String::new() } else { format!(": {}", it.reason) };
            let text = format!("{:WORD$}  {}{reason}", wire_name(&it.outcome).replace('_', " "), layout_text(&it.layout));
            line(it.time, &it.workload, origin_word(it.origin), &text)
        }),
        Topic::EfficiencyWindows => decode::<EfficiencyWindow>(value).ok().map(|it| {
            let text = format!(
                "{:WORD$}  {}  {} J/sample  {} samples/s{}",
                it.span.as_deref().unwrap_or("window"),
                figure(it.mean_power_watts, units::format_watts),
                figure(it.energy_per_sample(), units::joules_per_sample),
                figure(it.samples_per_second, units::format_count),
                match (it.has_restart(), it.restarted) {
                    (true, _) => "  restart",
                    (false, true) => "  settings changed",
                    (false, false) => "",
                },
            );
            line(it.window_end, &it.workload, origin_word(it.origin), &text)
        }),
        Topic::Workloads => decode::<Workload>(value).ok().map(|it| {
            let paused = if it.paused { ", paused" } else { "" };
            let text = format!("{:WORD$}  {}, {}{paused}", "workload", layout_text(&it.layout), wire_name(&it.mode));
            line(it.time, &it.workload, origin_word(it.origin), &text)
        }),
        Topic::GpuTelemetry => decode::<GpuTelemetry>(value).ok().map(|it| {
            let text = format!(
                "{:WORD$}  {}  {}  {} busy",
                "sample",
                it.device,
                figure(it.power_watts.or(it.power_average_watts), units::format_watts),
                figure(it.utilization_ratio, |ratio| format!("{:.0} %", 100.0 * ratio)),
            );
            line(it.time, it.workload.as_deref().unwrap_or("no workload"), origin_word(it.origin), &text)
        }),
        Topic::TrainingProgress => decode::<TrainingProgress>(value).ok().map(|it| {
            let text = format!("{:WORD$}  {} samples", wire_name(&it.phase), figure(it.samples_total, units::format_count));
            line(it.time, &it.workload, origin_word(it.origin), &text)
        }),
        _ => None,
    }
}

/// Returns the line of a dead letter: the service that refused the event, the reason, and its place. Its value may be anything:
/// the raw form has it.
fn dead_letter(record: &ConsumerRecord) -> String {
    let text = |name: &str| record.header(name).unwrap_or(units::UNKNOWN);
    let refused = format!("refused: {}", text(refusal::REASON).replace('_', " "));
    let detail = record.header(refusal::DETAIL).map_or_else(String::new, |detail| format!("{detail}; "));
    format!(
        "{}Z  {}  {refused:WORD$}  {detail}by {}, at {} partition {} offset {}",
        &record.stamp.to_string()[..19],
        text(refusal::ORIGIN_KEY),
        text(refusal::REFUSED_BY),
        text(refusal::ORIGIN_TOPIC),
        text(refusal::ORIGIN_PARTITION),
        text(refusal::ORIGIN_OFFSET),
    )
}

/// Returns a decision in one word. Whether a change was applied is not known here.
pub const fn outcome_of(decision: &Decision) -> &'static str {
    match (decision.action, decision.validation) {
        (ControllerAction::Maintain, ChangeValidation::Kept) => "kept",
        (ControllerAction::Maintain, _) => "maintain",
        _ => "decided",
    }
}
