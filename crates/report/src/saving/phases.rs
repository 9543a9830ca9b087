//! Phases of a job's work, found in its windows alone.
//!
//! No controller is asked: its phases end where its own attention does. All windows of a run are known here, so a change of the
//! work is dated to the window in which it happened.
//!
//! 1. **Segments.** Windows in a row with the same setting are one segment while throughput, power and memory traffic per sample
//!    stay within the noise of the record. Two windows in a row that are apart from it begin another one; a single one belongs to
//!    none.
//! 2. **Phases.** A segment belongs to the phase that did the same at the same setting. At a setting that the phase has not run,
//!    what a sample needs decides: memory traffic and SM cycles, which hardly depend on caps, clocks and layouts. Right after a
//!    change of the setting the work is taken to be what it was before, unless these differ, or the last window before the change
//!    shows that it was other work already. Without such counters nothing else is recognised.

use eadt_schemas::EventTime;

/// Measured figures of one undisturbed window, as natural logarithms.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WindowObservation {
    pub start: EventTime,
    pub end: EventTime,
    /// Index of the setting: layout, power cap and clock together.
    pub setting: usize,
    /// Index of the part of the setting that only a restart changes.
    pub processes: usize,
    /// Power cap and SM clock; infinite without a limit.
    pub limits: [f64; 2],
    /// Samples per second.
    pub rate: f64,
    /// Power of the whole workload.
    pub watts: f64,
    /// Memory activity of a sample.
    pub memory: Option<f64>,
    /// SM cycles of a sample.
    pub cycles: Option<f64>,
    /// SM clock.
    pub clock: Option<f64>,
    /// In the window before or after it, the job did nothing.
    pub beside_pause: bool,
}

/// A gap of this many seconds ends a segment.
const SEGMENT_GAP_SECONDS: f64 = 600.0;
/// A change of the setting within this many seconds leaves the work as it was.
const CONTINUITY_SECONDS: f64 = 1800.0;
/// Windows of a segment that a further one is compared with.
const RECENT: usize = 20;
/// Least and greatest noise of one window that is believed.
const NOISE_RANGE: (f64, f64) = (0.004, 0.15);
const NOISE_ASSUMED: f64 = 0.02;
/// Difference of one window from its segment, and of two segments, that is none.
const SAME_WINDOW: f64 = 0.035;
const SAME_SEGMENT: f64 = 0.03;
/// Largest change of what a sample needs (memory traffic, SM cycles), as a logarithm: with the limits, and with the processes. SM
/// cycles that wait for memory fall with the clock.
const LIMITS_SHIFT: [f64; 2] = [0.03, 0.12];
const PROCESSES_SHIFT: [f64; 2] = [0.10, 0.30];

/// Difference in throughput, as a logarithm, of segments that are equally near to the work before a change.
const NEAREST_RATE: f64 = 0.1;
/// Windows around a single one in which its phase is looked for.
const NEAR: usize = 6;

const FIGURES: usize = 3;

impl WindowObservation {
    /// Returns the figures that depend on the setting: throughput, power, memory traffic.
    fn figures(&self) -> [Option<f64>; FIGURES] {
        [Some(self.rate), Some(self.watts), self.memory]
    }
}

/// Returns the phase of each observation, numbered from 0 in order of appearance; `None` if the work changes or no phase fits.
pub(super) fn assign_phases(all: &[WindowObservation]) -> Vec<Option<usize>> {
    let noise = estimate_noise(all);
    let mut found = vec![None; all.len()];
    let mut phases: Vec<PhaseProfile> = Vec::new();
    let summaries: Vec<(Vec<usize>, SegmentSummary)> = find_segments(all, &noise)
        .into_iter()
        .map(|segment| {
            let summary = SegmentSummary::of(&segment, all);
            (segment, summary)
        })
        .collect();
    let mut work = WorkBefore::default();
    for (place, (segment, summary)) in summaries.iter().enumerate() {
        work.enter(summary.setting);
        let at_setting = summaries[place..].iter().map(|(_, later)| later).take_while(|later| later.setting == summary.setting);
        let before = work.phase_that_goes_on(summary, at_setting);
        let index = match recognise(&phases, summary, before, &noise) {
            Some(index) => index,
            // A single window that fits nowhere is no phase, unless a change right at the start left no more.
            None if summary.count < 2.0 && !phases.is_empty() => {
                work.odd = Some(summary.clone());
                continue;
            }
            None => {
                phases.push(PhaseProfile::default());
                phases.len() - 1
            }
        };
        phases[index].add(summary);
        for window in segment {
            found[*window] = Some(index);
        }
        work.last = Some((summary.clone(), index));
        work.odd = None;
    }
    // Single windows, of a setting that was just about to be changed as the work did, now that all phases are known.
    let near = |found: &[Option<usize>], index: usize| {
        let before = found[..index].iter().rev().take(NEAR).flatten().next().copied();
        let after = found[index + 1..].iter().take(NEAR).flatten().next().copied();
        [after, before]
    };
    for index in 0..all.len() {
        if found[index].is_some() {
            continue;
        }
        let summary = SegmentSummary::of(&[index], all);
        let candidates = near(&found, index);
        let apart = |phase: &PhaseProfile| match phase.settings.iter().find(|known| known.setting == summary.setting) {
            Some(known) => Some(summary.distance_to(known, &noise)),
            None => phase.settings.iter().filter_map(|known| summary.needs_apart(known, &noise)).reduce(f64::min),
        };
        let fitting = candidates.into_iter().flatten().filter_map(|phase| Some((apart(&phases[phase])?, phase)));
        found[index] = fitting.filter(|(apart, _)| *apart <= 1.0).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, phase)| phase);
    }
    found
}

/// Returns the standard deviation of one window's figures, from the differences of neighbours with the same setting.
fn estimate_noise(all: &[WindowObservation]) -> [f64; FIGURES] {
    let neighbours = || all.windows(2).filter(|pair| pair[0].setting == pair[1].setting && are_adjacent(&pair[0], &pair[1]));
    let of = |figure: usize| {
        let apart = |pair: &[WindowObservation]| Some((pair[1].figures()[figure]? - pair[0].figures()[figure]?).abs());
        let mut differences: Vec<f64> = neighbours().filter_map(apart).filter(|value| value.is_finite()).collect();
        if differences.len() < 8 {
            return NOISE_ASSUMED;
        }
        // Of the differences, those at changes of the work and at pauses are the largest: the lower quartile has none of them.
        let place = differences.len() / 4;
        let quartile = *differences.select_nth_unstable_by(place, f64::total_cmp).1;
        // 3.1383 holds for a normal distribution. A difference has twice the variance of one figure.
        (3.1383 * quartile / std::f64::consts::SQRT_2).clamp(NOISE_RANGE.0, NOISE_RANGE.1)
    };
    std::array::from_fn(of)
}

fn are_adjacent(before: &WindowObservation, after: &WindowObservation) -> bool {
    after.start.seconds_since(before.end) <= SEGMENT_GAP_SECONDS
}

/// Indices of the windows of each segment, in order of time.
fn find_segments(all: &[WindowObservation], noise: &[f64; FIGURES]) -> Vec<Vec<usize>> {
    let mut segments: Vec<Vec<usize>> = Vec::new();
    let mut present: Vec<usize> = Vec::new();
    let together = |a: usize, b: usize| all[a].setting == all[b].setting && are_adjacent(&all[a], &all[b]);
    let fits = |index: usize, others: &[usize]| {
        let recent = &others[others.len().saturating_sub(RECENT)..];
        let mean = |figure: usize| {
            let values: Vec<f64> = recent.iter().filter_map(|other| all[*other].figures()[figure]).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        (0..FIGURES).all(|figure| {
            let (Some(value), Some(mean)) = (all[index].figures()[figure], mean(figure)) else { return true };
            let tolerance = (3.5 * noise[figure] * (1.0 + 1.0 / recent.len() as f64).sqrt()).max(SAME_WINDOW);
            (value - mean).abs() <= tolerance
        })
    };
    for index in 0..all.len() {
        let Some(last) = present.last().copied() else {
            present.push(index);
            continue;
        };
        if !together(last, index) {
            segments.push(std::mem::take(&mut present));
            present.push(index);
            continue;
        }
        if fits(index, &present) {
            present.push(index);
            continue;
        }
        let next = (index + 1 < all.len()).then_some(index + 1).filter(|next| together(index, *next));
        match next {
            // The work was another one for a moment, or it is noise.
            Some(next) if fits(next, &present) => {}
            // It holds some of both.
            Some(next) if !fits(next, &[index]) => segments.push(std::mem::take(&mut present)),
            _ => {
                segments.push(std::mem::take(&mut present));
                present.push(index);
            }
        }
    }
    segments.push(present);
    segments.retain(|segment| !segment.is_empty());
    segments
}

/// Means over a segment, or over all of a phase's segments with one setting.
#[derive(Debug, Clone, PartialEq)]
struct SegmentSummary {
    setting: usize,
    processes: usize,
    limits: [f64; 2],
    start: EventTime,
    end: EventTime,
    count: f64,
    rate: f64,
    watts: f64,
    memory: Option<f64>,
    cycles: Option<f64>,
    clock: Option<f64>,
    /// Of its last window.
    beside_pause: bool,
}

impl SegmentSummary {
    fn of(segment: &[usize], all: &[WindowObservation]) -> Self {
        let (first, last) = (&all[segment[0]], &all[segment[segment.len() - 1]]);
        let mean = |of: fn(&WindowObservation) -> Option<f64>| {
            let values: Vec<f64> = segment.iter().filter_map(|index| of(&all[*index])).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        Self {
            setting: first.setting,
            processes: first.processes,
            limits: first.limits,
            start: first.start,
            end: last.end,
            count: segment.len() as f64,
            beside_pause: last.beside_pause,
            rate: mean(|it| Some(it.rate)).unwrap_or(0.0),
            watts: mean(|it| Some(it.watts)).unwrap_or(0.0),
            memory: mean(|it| it.memory),
            cycles: mean(|it| it.cycles),
            clock: mean(|it| it.clock),
        }
    }

    fn figures(&self) -> [Option<f64>; FIGURES] {
        [Some(self.rate), Some(self.watts), self.memory]
    }

    fn absorb(&mut self, other: &Self) {
        let part = other.count / (self.count + other.count);
        let mean = |old: f64, new: f64| old + part * (new - old);
        let both = |old: Option<f64>, new: Option<f64>| match (old, new) {
            (Some(old), Some(new)) => Some(mean(old, new)),
            (old, new) => old.or(new),
        };
        (self.rate, self.watts) = (mean(self.rate, other.rate), mean(self.watts, other.watts));
        (self.memory, self.cycles) = (both(self.memory, other.memory), both(self.cycles, other.cycles));
        self.clock = both(self.clock, other.clock);
        self.count += other.count;
        self.end = self.end.max(other.end);
    }

    /// Returns the distance from the same setting of a phase; above 1 it is not the same work.
    fn distance_to(&self, known: &Self, noise: &[f64; FIGURES]) -> f64 {
        let part = (1.0 / self.count + 1.0 / known.count).sqrt();
        let apart = |figure: usize| {
            let (Some(here), Some(there)) = (self.figures()[figure], known.figures()[figure]) else { return 0.0 };
            (here - there).abs() / (3.0 * noise[figure] * part).max(SAME_SEGMENT)
        };
        (0..FIGURES).map(apart).fold(0.0, f64::max)
    }

    /// Returns the distance in what a sample needs from another setting of a phase; above 1 it is not the same work. `None`
    /// without counters.
    fn needs_apart(&self, known: &Self, noise: &[f64; FIGURES]) -> Option<f64> {
        let shift = if self.processes == known.processes { LIMITS_SHIFT } else { PROCESSES_SHIFT };
        let part = (1.0 / self.count + 1.0 / known.count).sqrt();
        let memory = self.memory.zip(known.memory).map(|(a, b)| (a - b).abs() / (shift[0] + 2.0 * noise[2] * part));
        let slower = self.clock.zip(known.clock).map_or(0.0, |(a, b)| a - b);
        let outside = |apart: f64| (apart - apart.clamp(slower.min(0.0), slower.max(0.0))).abs();
        let cycles = self.cycles.zip(known.cycles).map(|(a, b)| outside(a - b) / (shift[1] + 2.0 * noise[2] * part));
        memory.map(|memory| cycles.map_or(memory, |cycles| cycles.max(memory)))
    }

    /// Returns false if lower limits come with higher throughput or power.
    fn is_possible(&self, known: &Self, noise: &[f64; FIGURES]) -> bool {
        if self.processes != known.processes {
            return true;
        }
        let part = (1.0 / self.count + 1.0 / known.count).sqrt();
        let slack = |figure: usize| (3.0 * noise[figure] * part).max(SAME_SEGMENT);
        let below = |lower: &Self, upper: &Self| lower.rate <= upper.rate + slack(0) && lower.watts <= upper.watts + slack(1);
        let lower = |a: [f64; 2], b: [f64; 2]| a[0] <= b[0] && a[1] <= b[1];
        (!lower(self.limits, known.limits) || below(self, known)) && (!lower(known.limits, self.limits) || below(known, self))
    }
}

/// Profile of a phase: one summary for each setting.
#[derive(Debug, Clone, PartialEq, Default)]
struct PhaseProfile {
    settings: Vec<SegmentSummary>,
}

impl PhaseProfile {
    fn add(&mut self, summary: &SegmentSummary) {
        match self.settings.iter_mut().find(|known| known.setting == summary.setting) {
            Some(known) => known.absorb(summary),
            None => self.settings.push(summary.clone()),
        }
    }
}

/// The work before the newest change of the setting.
#[derive(Debug, Default)]
struct WorkBefore {
    setting: Option<usize>,
    /// The newest segment with a phase.
    last: Option<(SegmentSummary, usize)>,
    /// A window after it that fits no phase.
    odd: Option<SegmentSummary>,
    /// Both as they were at the change.
    at_change: Option<(SegmentSummary, usize)>,
    odd_at_change: Option<SegmentSummary>,
}

impl WorkBefore {
    fn enter(&mut self, setting: usize) {
        if self.setting.replace(setting).is_some_and(|before| before != setting) {
            self.at_change.clone_from(&self.last);
            self.odd_at_change = self.odd.take();
        }
    }

    /// Returns the phase before the change, if a segment is what goes on of it. `at_setting`: this segment and those that follow it at
    /// this setting.
    ///
    /// It is one whose throughput is nearest to that of before, of more than one window if there are such. None goes on if the last window before the change
    /// was of other work already, and the segment is like that.
    fn phase_that_goes_on<'a>(
        &self,
        segment: &SegmentSummary,
        at_setting: impl Iterator<Item = &'a SegmentSummary>,
    ) -> Option<usize> {
        let (before, phase) = self.at_change.as_ref()?;
        let in_time = |summary: &SegmentSummary| summary.start.seconds_since(before.end) <= CONTINUITY_SECONDS;
        let apart = |summary: &SegmentSummary| (summary.rate - before.rate).abs();
        let candidates: Vec<&SegmentSummary> = at_setting.filter(|summary| in_time(summary)).collect();
        let nearest = candidates.iter().map(|summary| apart(summary)).fold(f64::INFINITY, f64::min);
        let longest = candidates
            .iter()
            .filter(|summary| apart(summary) <= nearest + NEAREST_RATE)
            .map(|summary| summary.count)
            .fold(0.0, f64::max);
        let is_chosen = in_time(segment) && apart(segment) <= nearest + NEAREST_RATE && segment.count >= longest.min(2.0);
        let resembles = |odd: &SegmentSummary| {
            let figure = |of: fn(&SegmentSummary) -> f64| (of(segment) - of(odd)).abs() < (of(segment) - of(before)).abs();
            // A pause lowers throughput. Of the same throughput with other power it is none, unless power rises or falls for one.
            let same_rate = (odd.rate - before.rate).abs() <= SAME_WINDOW;
            if same_rate { !odd.beside_pause && figure(|it| it.watts) } else { figure(|it| it.rate) }
        };
        (is_chosen && !self.odd_at_change.as_ref().is_some_and(resembles)).then_some(*phase)
    }
}

/// Returns the phase that a segment belongs to. `before`: the phase of the windows before a change of the setting.
fn recognise(phases: &[PhaseProfile], summary: &SegmentSummary, before: Option<usize>, noise: &[f64; FIGURES]) -> Option<usize> {
    let mut measured: Option<(f64, usize)> = None;
    let mut by_needs: Option<(f64, usize)> = None;
    let mut goes_on = None;
    for (index, phase) in phases.iter().enumerate() {
        if let Some(known) = phase.settings.iter().find(|known| known.setting == summary.setting) {
            let apart = summary.distance_to(known, noise);
            if apart <= 1.0 && measured.is_none_or(|(least, _)| apart < least) {
                measured = Some((apart, index));
            }
            continue;
        }
        if !phase.settings.iter().all(|known| summary.is_possible(known, noise)) {
            continue;
        }
        // Settings with the same processes are the best evidence.
        let alike = phase.settings.iter().filter(|known| known.processes == summary.processes);
        let needs = alike.filter_map(|known| summary.needs_apart(known, noise)).reduce(f64::min);
        let needs =
            needs.or_else(|| phase.settings.iter().filter_map(|known| summary.needs_apart(known, noise)).reduce(f64::min));
        if before == Some(index) && needs.is_none_or(|needs| needs <= 1.0) {
            goes_on = Some(index);
        }
        if let Some(needs) = needs.filter(|needs| *needs <= 1.0)
            && by_needs.is_none_or(|(least, _)| needs < least)
        {
            by_needs = Some((needs, index));
        }
    }
    let index = |(_, index): (f64, usize)| index;
    measured.map(index).or(goes_on).or(by_needs.map(index))
}
