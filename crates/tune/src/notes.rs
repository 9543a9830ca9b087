//! Notes for a careful reader of a table: findings that look wrong, but are no reason to refuse it.

use std::collections::{BTreeMap, BTreeSet};

use eadt_models::choose::{
    CAP_NOT_KEPT_RATIO, Glitch, SettingChoices, SettingMeasurement, TuningKnob, TuningKnobs, find_glitches,
};
use eadt_recordings::shell_quote;
use eadt_schemas::counts::counted_as;
use eadt_schemas::figures::format_signed_percent;
use serde::{Deserialize, Serialize};

use crate::error::quote;
use crate::points::{GroupKey, MixedColumn, PointGroup};

/// Kinds of notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteKind {
    /// Rows that the settings beside them contradict; they are left out of every choice.
    Glitch,
    /// The only run of a setting, on which a choice would have rested, contradicts the settings beside it; or that of the reference is in
    /// doubt.
    SingleRun,
    /// Time or power does not follow the knob.
    Irregular,
    /// The board drew more than its cap.
    CapNotKept,
    /// Groups with the same times to the last digit.
    SameTimes,
    /// Every setting has the same time: it may not be that of a fixed amount of work.
    ConstantTimes,
    /// Settings with the same time and energy, to the last digit.
    SamePoints,
    /// Energy and power × time disagree.
    EnergyAgainstPower,
    /// Rows are marked as simulated: nothing of these groups was measured.
    Simulated,
    /// Rows of a group differ in a column that is not used, and their figures with it.
    MixedRows,
}

/// One note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableNote {
    pub kind: NoteKind,
    /// The groups that it is about.
    pub groups: Vec<GroupKey>,
    /// Lines of the table.
    pub rows: Vec<u64>,
    pub text: String,
}

/// Energy and power × time that differ by more than this part are noted.
const AGREE_RATIO: f64 = 0.05;
/// Fewer equal times may be chance.
const SAME_SETTINGS: usize = 3;
/// Digits of all common times of two groups, from which equal times are no chance.
const SAME_DIGITS: usize = 9;
/// Digits of a time and a power together, from which equal figures of two settings are no chance.
const SAME_POINT_DIGITS: usize = 7;
/// Lines that a note lists before it counts.
const LINES: usize = 6;

/// Returns the notes on a table, by group and then by kind.
pub(crate) fn notes(groups: &BTreeMap<GroupKey, PointGroup>, knobs: TuningKnobs) -> Vec<TableNote> {
    let mut notes = Vec::new();
    for (key, group) in groups {
        let of = |kind, rows: Vec<u64>, text: String| TableNote { kind, groups: vec![key.clone()], rows, text };
        notes.extend(glitches(group, knobs).into_iter().map(|(kind, rows, text)| of(kind, rows, text)));
        if let Some((rows, text)) = caps_not_kept(group, knobs) {
            notes.push(of(NoteKind::CapNotKept, rows, text));
        }
        if let Some((rows, text)) = constant_times(&group.measurements) {
            notes.push(of(NoteKind::ConstantTimes, rows, text));
        }
        if let Some((rows, text)) = same_points(&group.measurements, knobs) {
            notes.push(of(NoteKind::SamePoints, rows, text));
        }
        if let Some((rows, text)) = energy_against_power(group) {
            notes.push(of(NoteKind::EnergyAgainstPower, rows, text));
        }
        notes.extend(group.mixed.iter().map(|mixed| of(NoteKind::MixedRows, Vec::new(), mixed_rows(key, mixed))));
    }
    notes.extend(same_times(groups));
    notes.extend(simulated(groups));
    notes
}

/// Returns the note on groups whose rows are simulated.
fn simulated(groups: &BTreeMap<GroupKey, PointGroup>) -> Option<TableNote> {
    let of: Vec<GroupKey> = groups.iter().filter(|(_, group)| group.is_simulated).map(|(key, _)| key.clone()).collect();
    let text = format!(
        "{} of {} simulated by the column origin: these figures were not measured",
        of.len(),
        counted_as(groups.len(), "group is", "groups are")
    );
    (!of.is_empty()).then_some(TableNote { kind: NoteKind::Simulated, groups: of, rows: Vec::new(), text })
}

/// Returns the note on rows that differ in a column that is not used, and in their figures.
fn mixed_rows(key: &GroupKey, mixed: &MixedColumn) -> String {
    let by: Vec<&str> = key.keys().map(String::as_str).chain([mixed.name.as_str()]).collect();
    format!(
        "the rows differ in column {} ({}), and their time or energy with it, by up to {:.0} % at the same setting: group by it (--by \
         {}), or keep the rows of one",
        quote(&mixed.name),
        mixed.values.join(", "),
        100.0 * mixed.difference_ratio,
        shell_quote(&by.join(","))
    )
}

fn lines(rows: &[u64]) -> String {
    let listed: Vec<String> = rows.iter().take(LINES).map(u64::to_string).collect();
    let more = rows.len().saturating_sub(LINES);
    let word = if rows.len() == 1 { "line" } else { "lines" };
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{word} {}{more}", listed.join(", "))
}

fn glitches(group: &PointGroup, knobs: TuningKnobs) -> Vec<(NoteKind, Vec<u64>, String)> {
    let checked = find_glitches(knobs.first, &group.measurements);
    if checked.irregular {
        let text = "more than a quarter of the settings lie outside of what the settings beside them leave: time or power does not \
                    follow the knob; measure them again, or group by what else differs (--by)";
        return vec![(NoteKind::Irregular, Vec::new(), text.to_owned())];
    }
    let note = |glitch: &Glitch| {
        let setting = knobs.words(glitch.setting, glitch.second_setting);
        let text = format!("line {}: {setting}: {}; left out of every choice", glitch.row, glitch.words());
        (NoteKind::Glitch, vec![glitch.row], text)
    };
    checked.glitches.iter().map(note).collect()
}

/// Returns the notes on the single runs that a group's choices would have rested on, and on a reference that no other run confirms.
pub(crate) fn single_runs(key: &GroupKey, choices: &SettingChoices, knobs: TuningKnobs) -> Vec<TableNote> {
    let note = |glitch: &Glitch, role: &str, remedy: &str| TableNote {
        kind: NoteKind::SingleRun,
        groups: vec![key.clone()],
        rows: vec![glitch.row],
        text: format!(
            "line {}: {} {role}, but {}, and no other run confirms it; {remedy}",
            glitch.row,
            knobs.words(glitch.setting, glitch.second_setting),
            glitch.words()
        ),
    };
    let is_reference = |glitch: &Glitch| {
        (glitch.setting, glitch.second_setting) == (choices.reference.setting, choices.reference.second_setting)
    };
    let left_out = |glitch: &Glitch| {
        let role = if is_reference(glitch) { "is the reference" } else { "would be chosen" };
        note(glitch, role, "left out of every choice: measure it again")
    };
    let in_doubt = |glitch: &Glitch| {
        let remedy = "a knee may lie between them, so it counts; every saving is measured against it: measure it again";
        note(glitch, "is the reference", remedy)
    };
    let single_runs = choices.glitches.iter().filter(|glitch| glitch.is_single_run).map(left_out);
    single_runs.chain(choices.doubtful_reference.as_ref().map(in_doubt)).collect()
}

/// Returns the cap of a row, if a knob is one.
fn cap_of(measurement: &SettingMeasurement, knobs: TuningKnobs) -> Option<f64> {
    match knobs {
        TuningKnobs { first: TuningKnob::PowerLimitWatts, .. } => Some(measurement.setting),
        TuningKnobs { second: Some(TuningKnob::PowerLimitWatts), .. } => measurement.second_setting,
        _ => None,
    }
}

fn caps_not_kept(group: &PointGroup, knobs: TuningKnobs) -> Option<(Vec<u64>, String)> {
    // The cap holds for each of several boards whose energies were added up.
    let boards = group.boards.max(1) as f64;
    let mut above: Vec<(f64, f64, u64)> = Vec::new();
    let mut settings = BTreeSet::new();
    for m in &group.measurements {
        let cap = cap_of(m, knobs)?;
        settings.insert(cap.to_bits());
        let watts = m.energy_joules / m.duration_seconds / boards;
        if watts > cap * (1.0 + CAP_NOT_KEPT_RATIO) {
            above.push((cap, watts, m.row));
        }
    }
    let mut rows: Vec<u64> = above.iter().map(|(_, _, row)| *row).collect();
    rows.sort_unstable();
    let off: BTreeSet<u64> = above.iter().map(|(cap, _, _)| cap.to_bits()).collect();
    if off.is_empty() {
        return None;
    }
    if off.len() == settings.len() {
        let text = "the mean power is above the cap at every setting: it is of several GPUs (add their energies up with --map \
                    energy_joules=gpu0+gpu1), or no cap was in force";
        return Some((rows, text.to_owned()));
    }
    above.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
    above.dedup_by_key(|(cap, _, _)| *cap);
    let each: Vec<String> = above.iter().map(|(cap, watts, _)| format!("{watts:.0} W at {cap} W")).collect();
    let text =
        format!("the cap was not kept: the board drew {}; these settings were not in force ({})", each.join(", "), lines(&rows));
    Some((rows, text))
}

fn constant_times(measurements: &[SettingMeasurement]) -> Option<(Vec<u64>, String)> {
    let settings: BTreeSet<(u64, Option<u64>)> =
        measurements.iter().map(|m| (m.setting.to_bits(), m.second_setting.map(f64::to_bits))).collect();
    let first = measurements.first()?.duration_seconds;
    if settings.len() < SAME_SETTINGS || measurements.iter().any(|m| m.duration_seconds != first) {
        return None;
    }
    let text = format!(
        "every setting took {first} s to the last digit: the times may be of a fixed time, not of a fixed amount of work, and then \
         show no slowdown"
    );
    Some((Vec::new(), text))
}

/// Returns the settings that took the same time and the same energy, both in so many digits that it is no chance.
fn same_points(measurements: &[SettingMeasurement], knobs: TuningKnobs) -> Option<(Vec<u64>, String)> {
    let mut by_figures: BTreeMap<(u64, u64), Vec<&SettingMeasurement>> = BTreeMap::new();
    for m in measurements {
        by_figures.entry((m.duration_seconds.to_bits(), m.energy_joules.to_bits())).or_default().push(m);
    }
    // Runs of one setting may well be the same.
    let settings = |same: &[&SettingMeasurement]| {
        let mut settings = Vec::new();
        for setting in same.iter().map(|m| (m.setting, m.second_setting)) {
            if !settings.contains(&setting) {
                settings.push(setting);
            }
        }
        settings
    };
    let same = by_figures.into_values().filter(|same| {
        let (seconds, joules) = (same[0].duration_seconds, same[0].energy_joules);
        // The table has energy or power; the other one is computed, with more digits.
        let written = digits(seconds) + digits(joules).min(digits(joules / seconds));
        let count = settings(same).len();
        count >= SAME_SETTINGS || count > 1 && written >= SAME_POINT_DIGITS
    });
    let same: Vec<Vec<&SettingMeasurement>> = same.collect();
    if same.is_empty() {
        return None;
    }
    let words = |same: &Vec<&SettingMeasurement>| {
        let settings = settings(same).into_iter().map(|(setting, second)| knobs.words(setting, second));
        settings.collect::<Vec<String>>().join(", ")
    };
    let mut rows: Vec<u64> = same.iter().flatten().map(|m| m.row).collect();
    rows.sort_unstable();
    let text = format!(
        "the same time and energy to the last digit at {}: one measurement, copied, or settings that were not in force ({})",
        same.iter().map(words).collect::<Vec<_>>().join("; at "),
        lines(&rows)
    );
    Some((rows, text))
}

fn energy_against_power(group: &PointGroup) -> Option<(Vec<u64>, String)> {
    let off: Vec<&(u64, f64)> = group.power_ratios.iter().filter(|(_, ratio)| (ratio - 1.0).abs() > AGREE_RATIO).collect();
    let worst = off.iter().map(|(_, ratio)| ratio - 1.0).max_by(|a, b| a.abs().total_cmp(&b.abs()))?;
    let rows: Vec<u64> = off.iter().map(|(row, _)| *row).collect();
    let used = if group.energy_is_used { "energy" } else { "power" };
    let text = format!(
        "power × time differs from the energy by up to {} ({} of {} rows, {}): the {used} is used; they are of different spans or \
         different meters",
        format_signed_percent(worst, 1),
        off.len(),
        group.power_ratios.len(),
        lines(&rows)
    );
    Some((rows, text))
}

/// Digits of a number as it is written, without leading zeros.
fn digits(value: f64) -> usize {
    let text = format!("{value}");
    text.chars().filter(char::is_ascii_digit).collect::<String>().trim_start_matches('0').len()
}

type SettingDurations = BTreeMap<(u64, Option<u64>), Vec<u64>>;

/// Durations by setting, each in order.
fn times(group: &PointGroup) -> SettingDurations {
    let mut times = SettingDurations::new();
    for m in &group.measurements {
        let place = (m.setting.to_bits(), m.second_setting.map(f64::to_bits));
        times.entry(place).or_default().push(m.duration_seconds.to_bits());
    }
    for runs in times.values_mut() {
        runs.sort_unstable();
    }
    times
}

/// Returns whether two groups have the same times at all settings that both have, and so many that it is no chance.
fn are_copies(a: &SettingDurations, b: &SettingDurations) -> bool {
    let common: Vec<(&Vec<u64>, &Vec<u64>)> = a.iter().filter_map(|(place, runs)| Some((runs, b.get(place)?))).collect();
    let distinct: BTreeSet<u64> = common.iter().flat_map(|(runs, _)| runs.iter().copied()).collect();
    let written: usize = distinct.iter().map(|bits| digits(f64::from_bits(*bits))).sum();
    common.len() >= SAME_SETTINGS
        && distinct.len() >= SAME_SETTINGS
        && written >= SAME_DIGITS
        && common.iter().all(|(own, other)| own == other)
}

/// Groups whose times are those of another one: one measurement, copied.
fn same_times(groups: &BTreeMap<GroupKey, PointGroup>) -> Vec<TableNote> {
    let all: Vec<(&GroupKey, SettingDurations)> = groups.iter().map(|(key, group)| (key, times(group))).collect();
    let mut is_reported = vec![false; all.len()];
    let mut notes = Vec::new();
    // Only groups with an equal longest time can be copies: no need to compare all pairs.
    let mut buckets: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, (_, times)) in all.iter().enumerate() {
        for bits in times.values().flatten().copied().collect::<BTreeSet<u64>>() {
            buckets.entry(bits).or_default().push(index);
        }
    }
    for first in 0..all.len() {
        if is_reported[first] {
            continue;
        }
        let near: BTreeSet<usize> = all[first]
            .1
            .values()
            .flatten()
            .filter_map(|bits| buckets.get(bits))
            .flatten()
            .copied()
            .filter(|other| *other > first)
            .collect();
        let copies: Vec<usize> =
            near.into_iter().filter(|other| !is_reported[*other] && are_copies(&all[first].1, &all[*other].1)).collect();
        if copies.is_empty() {
            continue;
        }
        let members: Vec<usize> = std::iter::once(first).chain(copies).collect();
        for member in &members {
            is_reported[*member] = true;
        }
        let names: Vec<String> = members.iter().map(|index| crate::points::name(all[*index].0)).collect();
        let shown = if names.len() > LINES {
            format!("{} and {} more", names[..LINES].join("; "), names.len() - LINES)
        } else {
            names.join("; ")
        };
        let rows = members.iter().flat_map(|index| groups[all[*index].0].measurements.iter().map(|m| m.row)).collect();
        notes.push(TableNote {
            kind: NoteKind::SameTimes,
            groups: members.iter().map(|index| all[*index].0.clone()).collect(),
            rows,
            text: format!(
                "{} groups have the same times to the last digit ({shown}): one measurement, copied; at most one of them was measured",
                members.len()
            ),
        });
    }
    notes
}
