//! The setting that each window ran at, and the windows that a change disturbed.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{ControllerAction, Layout};

use super::power_and_rate;
use crate::reporter::{ReportDecision, ReportWindow, WorkloadEvents};

/// The setting of one window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct WindowSetting {
    /// Index of layout, power cap and clock together.
    pub index: usize,
    /// Index of the part that only a restart changes.
    pub processes: usize,
    /// Power cap and SM clock; infinite without a limit.
    pub limits: [f64; 2],
    /// Index of the starting setting that it is compared with.
    pub start: usize,
    /// It is the starting setting.
    pub is_start: bool,
    /// A change was applied in it, rolled out, or was just done.
    pub disturbed: bool,
}

#[derive(Debug, Default)]
pub(super) struct SettingTimeline {
    /// One for each window.
    pub settings: Vec<WindowSetting>,
    /// Any window ran at another than the starting setting, or was disturbed.
    pub changed: bool,
}

/// A limit of this part of the one at which nothing is held back is none.
const NO_LIMIT: f64 = 0.995;
/// Throughput below this part of its former value means that processes were away.
const AWAY: f64 = 0.7;

impl SettingTimeline {
    pub fn of(collected: &WorkloadEvents<'_>, windows: &[&ReportWindow]) -> Self {
        let changes = applied_changes(collected);
        let mut known = DistinctSettings { unlimited: collected.unlimited, ..DistinctSettings::default() };
        let mut settings = Vec::with_capacity(windows.len());
        let mut in_force = SettingTracker::default();
        let mut changes = changes.into_iter().peekable();
        let decided = decided_layouts(collected);
        let mut start = None;
        let mut last: Option<(usize, Option<u64>)> = None;
        let mut last_rate: Option<f64> = None;
        let (mut rolling, mut was_away, mut changed) = (false, false, false);
        let mut layout: Option<&Layout> = None;
        for window in windows {
            let mut acted = false;
            while let Some(change) = changes.next_if(|change| change.at < window.end) {
                // The setting before a change right at the start was not measured.
                if settings.is_empty() && start.is_none() && !change.undoes {
                    let before = match change.from {
                        Some(layout) => known.index_of(layout),
                        None => known.of_name("start"),
                    };
                    start = Some(before.0);
                }
                acted = true;
                in_force.apply_change(&change, &mut known);
            }
            // The first layout that is on record was there before, too, unless something was changed.
            let appears = layout.is_none() && window.layout.is_some() && in_force.stack.is_empty();
            layout = window.layout.as_deref().or(layout.filter(|_| !acted));
            let (index, processes, limits) = match (layout, collected.actuated, window.generation) {
                (Some(layout), ..) => known.index_of(layout),
                (None, false, Some(generation)) => known.of_name(&format!("generation {generation}")),
                (None, ..) => in_force.setting.unwrap_or_else(|| known.of_name("start")),
            };
            if appears && !acted {
                (start, last) = (None, None);
            }
            let other = last.is_some_and(|(before, _)| before != index);
            let decided_before = |layout: &Layout| decided.iter().any(|(known, at)| *known == layout && *at <= window.end);
            let ours = acted || layout.is_none_or(decided_before);
            // A layout that is set from outside is the starting setting from then on.
            if start.is_none() || (other && collected.actuated && !ours && start != Some(index)) {
                start = Some(index);
            }
            let start = start.unwrap_or(index);
            let turned = last.is_some_and(|(_, generation)| generation.is_some() && generation != window.generation);
            let caused = acted || other || (window.restarted && (turned || rolling));
            let rate = power_and_rate(window).1;
            let mut disturbed = caused;
            if caused {
                let away = window.progress_coverage < super::GOOD_COVERAGE || window.samples.is_none() || window.redone;
                let slow = last_rate.is_some_and(|before| rate < AWAY * before);
                was_away = was_away && rolling || away || slow;
                rolling = true;
            } else if rolling {
                // The first window after a restart warms up.
                disturbed = was_away;
                (rolling, was_away) = (false, false);
            }
            if !disturbed && !window.restarted && rate > 0.0 {
                last_rate = Some(rate);
            }
            changed |= disturbed || index != start;
            settings.push(WindowSetting { index, processes, limits, start, is_start: index == start, disturbed });
            last = Some((index, window.generation));
        }
        Self { settings, changed }
    }
}

/// Index of a setting, index of its processes, and its limits.
type SettingIndex = (usize, usize, [f64; 2]);

/// Distinct settings in order of appearance.
#[derive(Debug, Default)]
struct DistinctSettings {
    unlimited: [Option<f64>; 2],
    layouts: Vec<Layout>,
    names: Vec<String>,
    processes: Vec<Layout>,
}

impl DistinctSettings {
    fn index_of(&mut self, layout: &Layout) -> SettingIndex {
        let limits = [(layout.power_limit_watts, self.unlimited[0]), (layout.sm_clock_mhz, self.unlimited[1])];
        let limits = limits.map(|(limit, top)| limit.filter(|limit| top.is_none_or(|top| *limit < NO_LIMIT * top)));
        let layout = &Layout { power_limit_watts: limits[0], sm_clock_mhz: limits[1], ..layout.clone() };
        let limits = limits.map(|limit| limit.unwrap_or(f64::INFINITY));
        let bare = Layout { power_limit_watts: None, sm_clock_mhz: None, ..layout.clone() };
        let processes = self.processes.iter().position(|known| *known == bare).unwrap_or_else(|| {
            self.processes.push(bare);
            self.processes.len() - 1
        });
        let index = self.layouts.iter().rposition(|known| known == layout).unwrap_or_else(|| {
            self.layouts.push(layout.clone());
            self.layouts.len() - 1
        });
        (index, processes, limits)
    }

    /// Returns a setting that is only known to differ from others.
    fn of_name(&mut self, name: &str) -> SettingIndex {
        let place = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        // Far above any index of a layout, so that both kinds of index stay distinct.
        let index = usize::MAX / 2 + place;
        (index, index, [f64::INFINITY; 2])
    }
}

/// The setting in force according to the applied changes, if windows do not record it.
#[derive(Debug, Default)]
struct SettingTracker {
    setting: Option<SettingIndex>,
    /// Changes in force, each with the setting before it.
    stack: Vec<(String, Option<SettingIndex>)>,
}

impl SettingTracker {
    fn apply_change(&mut self, change: &AppliedChange<'_>, known: &mut DistinctSettings) {
        if change.undoes {
            let last = self.stack.len().checked_sub(1);
            let place = change.concerns.map_or(last, |id| self.stack.iter().rposition(|(known, _)| known == id));
            if let Some(place) = place {
                self.setting = self.stack[place].1;
                self.stack.truncate(place);
            }
            return;
        }
        self.stack.push((change.id.to_owned(), self.setting));
        self.setting = Some(known.of_name(change.id));
    }
}

/// An applied change, or the end of one.
#[derive(Debug)]
struct AppliedChange<'a> {
    id: &'a str,
    at: EventTime,
    undoes: bool,
    /// The change that is undone.
    concerns: Option<&'a str>,
    /// The layout before it, if it is on record.
    from: Option<&'a Layout>,
}

/// Returns everything that an actuator did, in order of time.
fn applied_changes<'a>(collected: &'a WorkloadEvents<'_>) -> Vec<AppliedChange<'a>> {
    let mut changes = Vec::new();
    for (id, fate) in &*collected.actuations {
        let decided = collected.decisions.get(id);
        let reverts = decided.is_some_and(|decided| decided.action == ControllerAction::Revert);
        // A revert that was itself rolled back changes nothing.
        let void = fate.rolled_back.is_some() && reverts;
        if let Some(at) = fate.applied.or(fate.ready).filter(|_| !void) {
            let concerns = decided.filter(|_| reverts).and_then(|decided| decided.concerns.as_deref());
            let from = decided.and_then(|decided| decided.layouts.as_deref()).map(|(from, _)| from);
            let from = from.filter(|from| **from != Layout::default());
            changes.push(AppliedChange { id, at, undoes: reverts, concerns, from });
        }
        if let Some(at) = fate.rolled_back.filter(|_| !void) {
            changes.push(AppliedChange { id, at, undoes: true, concerns: Some(id), from: None });
        }
    }
    changes.sort_by_key(|change| change.at);
    changes
}

/// Layouts that a decision went from or to, and when that was decided first.
fn decided_layouts<'a>(collected: &'a WorkloadEvents<'_>) -> Vec<(&'a Layout, EventTime)> {
    let mut all: Vec<(&Layout, EventTime)> = Vec::new();
    for ReportDecision { time, layouts, .. } in collected.decisions.values() {
        for layout in layouts.iter().flat_map(|pair| [&pair.0, &pair.1]) {
            match all.iter_mut().find(|(known, _)| *known == layout) {
                Some((_, first)) => *first = (*first).min(*time),
                None => all.push((layout, *time)),
            }
        }
    }
    all
}
