//! What the changes saved: an estimate by comparison before and after each change, or against a given figure.
//!
//! **Estimate.** The work of a job changes while it runs, and with it the J/sample of every layout; so J/sample from
//! before the first change says little about hours after it. Compared is therefore around each applied change, where
//! little time lies between: the last good windows before it with the good windows after it, by the medians that the
//! controller judged with and wrote into its decisions, else by the median of up to five windows before and the windows
//! that the change was validated by (three after a warm-up window, where nothing validates). That gives each change a
//! ratio of J/sample, and the layout in force the product R of the ratios of the changes that are in force. What the
//! starting layout would have taken for the samples of a window, and so what the window saved, is then
//!
//! - in a trial, that is from the moment a change is applied to its verdict, or, where it is taken back, to the first good
//!   window after that: J/sample before the change over R before it. Restarts, redone work and failed tries so count as
//!   cost;
//! - otherwise: the energy of the window over R. A restart or redone work while a changed layout is in force counts as cost,
//!   too, whatever caused it: there, J/sample of the last good window stand in for the window's own.
//!
//! A layout that is back at an earlier one has the R of that one; back at the start it saves nothing and costs nothing. A
//! change that nothing judges (`matrix-literal`) counts as kept. One that is replaced before there is a good window after
//! it is judged together with the next one.
//!
//! What the estimate cannot see: a change of the work inside a trial, which looks like an effect of the change, and a
//! ratio that holds in one phase of the job and not in another. Only a given baseline compares with a fixed figure.
//!
//! **Phases.** A controller that tells the phases of a job apart (`hybrid`, `power-cap`, `frequency`) turns its knobs exactly when the
//! work changes, where before and after cannot be compared. It says with each decision what the starting layout takes for a
//! sample in the present phase, as measured there, or inferred from other layouts where both were measured in another
//! phase. Then every window since the first change is compared with that; while nothing is said (a restart, a warm-up) the last
//! word holds; windows of a phase for which it is not known are left out, and counted.
//!
//! **Given baseline.** The J/sample that the user gives, for the whole run: all energy against all samples.
//!
//! Either way windows with energy covered to less than 90 %, or with unknown progress and no restart to explain it, would
//! flatter one side; they are left out, and the report says how many. So are, outside trials, windows without any progress
//! or with less than 90 % of it known.

use std::collections::HashMap;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Layout, Validation};

use crate::figures::per;
use crate::reporter::{Collected, Decided, Window, sum};

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Saving {
    /// J/sample.
    pub(crate) baseline: Option<f64>,
    pub(crate) joules: Option<f64>,
    pub(crate) ratio: Option<f64>,
    /// J/sample of the windows that are compared.
    pub(crate) compared: Option<f64>,
    /// Their part of the energy of the run's windows.
    pub(crate) compared_ratio: Option<f64>,
}

const GOOD_COVERAGE: f64 = 0.9;
/// Windows whose median is compared, where the controller has not said.
const BEFORE: usize = 5;
const AFTER: usize = 3;

const ESTIMATE: &str = "the saving is an estimate: J/sample before and after each applied change are compared, and the ratio \
     is taken to hold while the change is in force; a change of the work during a trial is not told apart from the effect \
     of the change. Only --baseline compares with a fixed figure";

const BY_PHASE: &str = "the saving is an estimate: each window is compared with what the starting layout took for a sample in the same \
     phase of the job, as the controller measured it there or inferred it from other phases";

pub(crate) fn saving(collected: &Collected, given: Option<f64>, notes: &mut Vec<String>) -> Saving {
    let windows: Vec<&Window> = collected.run().collect();
    if let Some(baseline) = given {
        return against(&windows, baseline, notes);
    }
    let changes = changes(collected);
    let Some(first) = changes.first() else { return Saving::default() };
    if collected.decisions.values().any(|decided| decided.reference.is_some()) {
        return by_phase(collected, first.at, &windows, notes);
    }
    let Some(stretches) = stretches(&changes, &windows, &verdicts(collected)) else {
        notes.push("no good window lies before the first change: the saving is not known without a given baseline".to_owned());
        return Saving::default();
    };
    let mut sums = Sums::default();
    let mut stretches = stretches.into_iter().peekable();
    let mut now = Stretch { from: first.at, state: State::Steady { ratio: 1.0, joules_per_sample: None } };
    for window in windows.iter().filter(|window| window.end > first.at) {
        while let Some(next) = stretches.next_if(|next| next.from < window.end) {
            now = next;
        }
        match now.state.expects(window) {
            Some(expected) => sums.add(window, expected),
            None => sums.left_out += 1,
        }
    }
    sums.note_left_out(notes);
    notes.push(ESTIMATE.to_owned());
    sums.saving(per(sums.expected, sums.samples), &windows)
}

/// Every window since the first change against what the controller said of its phase.
fn by_phase(collected: &Collected, first: EventTime, windows: &[&Window], notes: &mut Vec<String>) -> Saving {
    let mut said: Vec<_> = collected.decisions.values().filter_map(|decided| Some((decided.time, decided.reference?))).collect();
    said.sort_by_key(|(time, _)| *time);
    let mut said = said.into_iter().peekable();
    let (mut sums, mut reference) = (Sums::default(), None);
    for window in windows {
        while let Some((_, known)) = said.next_if(|(time, _)| *time <= window.end) {
            reference = known;
        }
        if window.end <= first {
            continue;
        }
        match reference.filter(|_| counts(window)) {
            Some(reference) => sums.add(window, window.samples.unwrap_or(0.0) * reference),
            None => sums.left_out += 1,
        }
    }
    let left_out = std::mem::take(&mut sums.left_out);
    if left_out > 0 {
        notes.push(format!(
            "the saving leaves out {left_out} window(s) without enough known energy or progress, or of a phase in which the \
             starting layout was never measured"
        ));
    }
    notes.push(BY_PHASE.to_owned());
    sums.saving(per(sums.expected, sums.samples), windows)
}

/// The whole run against a fixed figure.
fn against(windows: &[&Window], baseline: f64, notes: &mut Vec<String>) -> Saving {
    let mut sums = Sums::default();
    for window in windows {
        if counts(window) {
            sums.add(window, window.samples.unwrap_or(0.0) * baseline);
        } else {
            sums.left_out += 1;
        }
    }
    sums.note_left_out(notes);
    sums.saving(Some(baseline), windows)
}

#[derive(Debug, Default)]
struct Sums {
    samples: Option<f64>,
    /// What the starting layout would have taken.
    expected: Option<f64>,
    energy: Option<f64>,
    left_out: u64,
}

impl Sums {
    fn add(&mut self, window: &Window, expected: f64) {
        self.samples = sum([self.samples, window.samples].into_iter());
        self.expected = sum([self.expected, Some(expected)].into_iter());
        self.energy = sum([self.energy, energy(window)].into_iter());
    }

    fn note_left_out(&self, notes: &mut Vec<String>) {
        let left_out = self.left_out;
        if left_out > 0 {
            notes.push(format!("the saving leaves out {left_out} window(s) without enough known energy or progress"));
        }
    }

    fn saving(&self, baseline: Option<f64>, windows: &[&Window]) -> Saving {
        let expected = self.samples.and(self.expected);
        let joules = expected.zip(self.energy).map(|(expected, energy)| expected - energy).filter(|joules| joules.is_finite());
        Saving {
            baseline,
            joules,
            ratio: per(joules, expected),
            compared: per(self.energy, self.samples).filter(|_| joules.is_some()),
            compared_ratio: per(self.energy, sum(windows.iter().map(|window| energy(window)))).filter(|_| joules.is_some()),
        }
    }
}

/// From one moment to that of the next.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// Windows that end later belong to it.
    from: EventTime,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// The starting layout is taken to need this J/sample.
    Trial { baseline: f64 },
    /// The layout in force is taken to need `ratio` of what the starting layout would.
    Steady {
        ratio: f64,
        /// Of the last good window.
        joules_per_sample: Option<f64>,
    },
}

impl State {
    /// What the starting layout would have taken for what was done in this window; `None` where it cannot be compared.
    fn expects(&mut self, window: &Window) -> Option<f64> {
        if !counts(window) {
            return None;
        }
        match self {
            Self::Trial { baseline } => Some(window.samples.unwrap_or(0.0) * *baseline),
            Self::Steady { ratio, joules_per_sample } => {
                let own = energy(window)? / *ratio;
                if let Some(good) = good(window) {
                    *joules_per_sample = Some(good);
                    return Some(own);
                }
                match joules_per_sample {
                    _ if !(window.restarted || window.redone) => None,
                    // Not restarted by a change: the starting layout would have been, too.
                    _ if *ratio == 1.0 => Some(own),
                    Some(last) => Some(window.samples.unwrap_or(0.0) * *last / *ratio),
                    None => None,
                }
            }
        }
    }
}

/// An applied change.
#[derive(Debug)]
struct Change<'a> {
    id: &'a str,
    at: EventTime,
    ready: Option<EventTime>,
    rolled_back: Option<EventTime>,
    /// Absent: not on record.
    decided: Option<&'a Decided>,
}

impl Change<'_> {
    fn reverts(&self) -> bool {
        self.decided.is_some_and(|decided| decided.action == Action::Revert)
    }

    fn reverts_that(&self, id: &str) -> bool {
        self.reverts() && self.decided.is_some_and(|decided| decided.concerns.as_deref() == Some(id))
    }

    /// From and to which layout, where these differ.
    fn layouts(&self) -> Option<(&Layout, &Layout)> {
        let (from, to) = self.decided?.layouts.as_deref()?;
        (from != to).then_some((from, to))
    }
}

/// When the workload began to run otherwise: by the actuator's word, or, where no actuator has spoken, by the generation in
/// the windows. In order of time.
fn changes(collected: &Collected) -> Vec<Change<'_>> {
    if collected.actuated {
        let changes = collected.fates.iter().filter_map(|(id, fate)| {
            let decided = collected.decisions.get(id);
            // A revert that was itself rolled back changes nothing.
            let void = fate.rolled_back.is_some() && decided.is_some_and(|decided| decided.action == Action::Revert);
            let at = fate.applied.or(fate.ready).filter(|_| !void)?;
            Some(Change { id, at, ready: fate.ready, rolled_back: fate.rolled_back, decided })
        });
        let mut changes: Vec<Change<'_>> = changes.collect();
        changes.sort_by_key(|change| change.at);
        return changes;
    }
    let mut known = None;
    let differs = |window: &&Window| {
        let before = window.generation.and_then(|generation| known.replace(generation));
        before.is_some_and(|before| Some(before) != window.generation)
    };
    let change = |window: &Window| Change { id: "", at: window.start, ready: None, rolled_back: None, decided: None };
    collected.windows.values().filter(differs).map(change).collect()
}

/// What was said about a change after it was applied.
#[derive(Debug, Default, Clone, Copy)]
struct Said<'a> {
    /// Kept, failed, or (`Validation::None`) that it will not be judged: the first word of these.
    verdict: Option<&'a Decided>,
    pending: bool,
}

fn verdicts(collected: &Collected) -> HashMap<&str, Said<'_>> {
    let mut all: HashMap<&str, Said<'_>> = HashMap::new();
    for decided in collected.decisions.values() {
        let Some(concerns) = decided.concerns.as_deref() else { continue };
        let said = all.entry(concerns).or_default();
        if decided.validation == Validation::Pending {
            said.pending = true;
        } else if decided.validation == Validation::None && decided.action != Action::Maintain {
            // A change beside it, not a word about it.
        } else if said.verdict.is_none_or(|known| decided.time < known.time) {
            said.verdict = Some(decided);
        }
    }
    all
}

/// The time since the first change, cut where something begins to hold; `None` where J/sample before it is not known.
fn stretches(changes: &[Change<'_>], windows: &[&Window], said: &HashMap<&str, Said<'_>>) -> Option<Vec<Stretch>> {
    let start = changes.first().and_then(Change::layouts).map(|(from, _)| from);
    let mut stretches = Vec::with_capacity(2 * changes.len());
    // Of the layout in force; of each change in force, that before it.
    let (mut ratio, mut stack) = (1.0, Vec::new());
    // Good windows of the layout in force begin here; J/sample where there is none.
    let (mut usable_from, mut fallback) = (EventTime::MIN, None);
    // The baseline of a trial that is not over.
    let mut open: Option<f64> = None;
    for (index, change) in changes.iter().enumerate() {
        let next = changes.get(index + 1);
        let until = next.map_or(EventTime::MAX, |next| next.at);
        let said = said.get(change.id).copied().unwrap_or_default();
        let first_known = || {
            let own = change.decided.filter(|_| !change.reverts());
            let noted = said.verdict.and_then(|verdict| verdict.before).or(own.and_then(|own| own.before));
            noted.or_else(|| last_before(windows, usable_from, change.at)).or(fallback)
        };
        let baseline = open.or_else(|| first_known().map(|before| before / ratio))?;
        stretches.push(Stretch { from: change.at, state: State::Trial { baseline } });
        let settled = |from| settled(windows, from, until).map(|end| Judged { end, usable_from: end, after: None });
        let judged = if change.reverts() {
            let concerned = change.decided.and_then(|decided| decided.concerns.as_deref());
            let last = || stack.len().checked_sub(1);
            let position = concerned.map_or_else(last, |concerned| stack.iter().rposition(|(id, _)| *id == concerned));
            if let Some(position) = position {
                ratio = stack[position].1;
                stack.truncate(position);
            }
            settled(change.ready.unwrap_or(change.at))
        } else if let Some(undone) = undone(change, said) {
            settled(undone)
        } else {
            stack.push((change.id, ratio));
            let judged = judge(change, next, said, windows);
            if let Some(after) = judged.and_then(|judged| judged.after) {
                let back = change.layouts().is_some_and(|(_, to)| Some(to) == start);
                ratio = if back { 1.0 } else { after / baseline };
            }
            judged
        };
        open = judged.is_none().then_some(baseline);
        if let Some(judged) = judged {
            usable_from = judged.usable_from;
            fallback = judged.after.or(Some(baseline * ratio));
            stretches.push(Stretch { from: judged.end, state: State::Steady { ratio, joules_per_sample: fallback } });
        }
    }
    Some(stretches)
}

/// When a change was undone without a decision to revert it: by the actuator, or from outside.
fn undone(change: &Change<'_>, said: Said<'_>) -> Option<EventTime> {
    let from_outside = || {
        let verdict = said.verdict.filter(|it| it.validation != Validation::Kept && it.action == Action::Maintain)?;
        let (from, _) = change.layouts()?;
        (verdict.layouts.as_deref()?.0 == *from).then_some(verdict.time)
    };
    change.rolled_back.or_else(from_outside)
}

/// The end of a trial.
#[derive(Debug, Clone, Copy)]
struct Judged {
    end: EventTime,
    /// Good windows of the layout begin here.
    usable_from: EventTime,
    /// J/sample after the change.
    after: Option<f64>,
}

/// How a change turned out; `None` while, or because, that is not known.
fn judge(change: &Change<'_>, next: Option<&Change<'_>>, said: Said<'_>, windows: &[&Window]) -> Option<Judged> {
    let until = next.map_or(EventTime::MAX, |next| next.at);
    let reverted = next.is_some_and(|next| next.reverts_that(change.id));
    match said.verdict {
        // The trial goes on until it is taken back.
        Some(verdict) if verdict.validation == Validation::Failed && reverted => None,
        Some(verdict) if verdict.validation != Validation::None => {
            let end = verdict.time.min(until);
            let warm = warm(windows, change.at, end);
            let last = &warm[warm.len().saturating_sub(AFTER)..];
            let after = verdict.after.or_else(|| median(last))?;
            Some(Judged { end, usable_from: last.first().map_or(end, |(window, _)| window.start), after: Some(after) })
        }
        None if reverted => None,
        // Until the verdict, or what comes in its place.
        None if said.pending => {
            next?;
            let warm = warm(windows, change.at, until);
            let last = &warm[warm.len().saturating_sub(AFTER)..];
            let after = median(last)?;
            Some(Judged { end: until, usable_from: last[0].0.start, after: Some(after) })
        }
        // Nothing judges it.
        verdict => {
            let from = verdict.map_or(change.at, |verdict| verdict.time.max(change.at));
            let mut warm = warm(windows, from, until);
            warm.truncate(AFTER);
            let after = median(&warm)?;
            let end = if warm.len() == AFTER { warm[AFTER - 1].0.end } else { next.map(|next| next.at)? };
            Some(Judged { end, usable_from: warm[0].0.start, after: Some(after) })
        }
    }
}

type Good<'a> = (&'a Window, f64);

/// The good windows between two moments, but for the one in which the job warms up.
fn warm<'a>(windows: &[&'a Window], from: EventTime, to: EventTime) -> Vec<Good<'a>> {
    let mut good: Vec<Good<'a>> = within(windows, from, to).collect();
    if good.len() > 1 {
        good.remove(0);
    }
    good
}

fn within<'a>(windows: &[&'a Window], from: EventTime, to: EventTime) -> impl DoubleEndedIterator<Item = Good<'a>> {
    let begin = windows.partition_point(|window| window.start < from);
    let end = windows.partition_point(|window| window.end <= to).max(begin);
    windows[begin..end].iter().filter_map(|window| Some((*window, good(window)?)))
}

fn last_before(windows: &[&Window], from: EventTime, to: EventTime) -> Option<f64> {
    median(&within(windows, from, to).rev().take(BEFORE).collect::<Vec<_>>())
}

/// The end of the first good window.
fn settled(windows: &[&Window], from: EventTime, until: EventTime) -> Option<EventTime> {
    within(windows, from, until).next().map(|(window, _)| window.end)
}

fn median(windows: &[Good<'_>]) -> Option<f64> {
    let mut values: Vec<f64> = windows.iter().map(|(_, value)| *value).collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

/// J/sample of a window that can be compared with others of its layout.
fn good(window: &Window) -> Option<f64> {
    let known = counts(window) && !window.restarted && !window.redone && window.progress_coverage >= GOOD_COVERAGE;
    per(window.run_energy, window.samples).filter(|value| known && *value > 0.0)
}

fn energy(window: &Window) -> Option<f64> {
    window.run_energy.map(|energy| energy + window.unassigned)
}

fn counts(window: &Window) -> bool {
    let known = window.run_energy.is_some() && window.run_coverage >= GOOD_COVERAGE && !window.gap;
    known && (window.samples.is_some() || window.restarted)
}
