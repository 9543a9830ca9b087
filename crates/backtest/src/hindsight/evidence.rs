//! The evidence in a record: its usable windows by phase of the job and by layout.

use eadt_schemas::counts::counted;
use eadt_schemas::v1::{EfficiencyWindow, Layout};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

/// Windows that a layout needs in a phase before an estimate is given for it there: as many as a change is judged by.
pub const ENOUGH_WINDOWS: usize = 3;
/// Two windows are of one phase if the memory activity of a sample differs by no more than this logarithm.
const SAME_PHASE: f64 = 0.1;
/// Two caps or clocks count as the same if they differ by no more than this part of the larger one.
const SAME_SETTING: f64 = 0.02;
/// If J/sample of the same layout in the same phase spreads more than this part, something else was going on.
const MOST_SPREAD: f64 = 0.15;
const RESAMPLES: usize = 400;

/// An estimate and the interval that holds 90 % of what chance among the record's windows makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
    /// Part of the resamples in which it is below zero: energy is saved.
    pub confidence_saves_ratio: f64,
}

impl Estimate {
    /// Returns this estimate with an interval that holds both.
    pub(super) fn spanning(self, other: Self) -> Self {
        Self {
            value: self.value,
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            confidence_saves_ratio: f64::midpoint(self.confidence_saves_ratio, other.confidence_saves_ratio),
        }
    }
}

/// Power and throughput of a usable window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowMeasurement {
    pub watts: f64,
    pub samples_per_second: f64,
}

impl WindowMeasurement {
    /// Returns `None` if the window has no figures that could be compared.
    pub fn of(window: &EfficiencyWindow, coverage_min_ratio: f64) -> Option<Self> {
        let covered = window.energy_coverage_ratio >= coverage_min_ratio && window.progress_coverage_ratio >= coverage_min_ratio;
        let known = covered && !window.restarted && !window.gap;
        let watts = window.mean_power_watts.filter(|watts| known && *watts > 0.0)?;
        let samples_per_second = window.samples_per_second.filter(|rate| *rate > 0.0)?;
        Some(Self { watts, samples_per_second })
    }

    /// Returns the figures of the whole window, the downtime of a restart included.
    pub fn with_downtime(window: &EfficiencyWindow, coverage_min_ratio: f64) -> Option<Self> {
        let covered = window.energy_coverage_ratio >= coverage_min_ratio && !window.gap;
        let watts = window.mean_power_watts.filter(|watts| covered && *watts > 0.0)?;
        let seconds = window.window_end.seconds_since(window.window_start);
        let samples = window.samples.filter(|samples| *samples >= 0.0 && seconds > 0.0).unwrap_or(0.0);
        Some(Self { watts, samples_per_second: if samples > 0.0 { samples / seconds } else { 0.0 } })
    }

    fn joules_per_sample(self) -> f64 {
        self.watts / self.samples_per_second
    }
}

/// Returns true if the layouts are equal as far as energy and throughput are concerned. A cap at or above the board's own limit
/// is none.
pub fn same_layout(a: &Layout, b: &Layout, board_watts: Option<f64>) -> bool {
    let cap = |layout: &Layout| layout.power_limit_watts.filter(|watts| board_watts.is_none_or(|board| *watts < board - 0.5));
    let near = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= SAME_SETTING * a.abs().max(b.abs()),
        (a, b) => a == b,
    };
    let rest = |layout: &Layout| (layout.replicas, layout.mps_thread_percentage, layout.world_size, layout.local_world_size);
    rest(a) == rest(b) && near(cap(a), cap(b)) && near(a.sm_clock_mhz, b.sm_clock_mhz)
}

/// Usable windows of one layout in one phase.
#[derive(Debug)]
struct EvidenceGroup {
    phase: usize,
    layout: Layout,
    /// Places in the record.
    windows: Vec<usize>,
    figures: Vec<WindowMeasurement>,
}

/// The reason why the record gives no estimate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum InsufficientEvidence {
    /// No memory activity is known, so that phases of the job cannot be distinguished.
    NoPhase,
    /// The layout was never observed in this phase of the job for long enough.
    NeverObserved { phase: usize, windows: usize },
    /// Its windows in this phase disagree: something else than layout and phase made the difference.
    Inconsistent { phase: usize, spread_percent: u32 },
}

impl std::fmt::Display for InsufficientEvidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoPhase => f.write_str("memory activity (DRAM) is not on record, so phases of the job cannot be distinguished"),
            Self::NeverObserved { phase, windows: 0 } => write!(f, "the layout was never observed in phase {phase} of the job"),
            Self::NeverObserved { phase, windows } => {
                write!(
                    f,
                    "the layout was observed in phase {phase} of the job for {} only, {ENOUGH_WINDOWS} are needed",
                    counted(*windows, "window")
                )
            }
            Self::Inconsistent { phase, spread_percent } => {
                write!(f, "windows of the layout in phase {phase} of the job differ by {spread_percent} % among themselves")
            }
        }
    }
}

/// The usable windows of one workload's record.
#[derive(Debug)]
pub struct RecordEvidence {
    groups: Vec<EvidenceGroup>,
    /// Phase of each window of the record, if it is known. Phases are numbered from 1 in the order in which they appear.
    phases: Vec<Option<usize>>,
    board_watts: Option<f64>,
}

impl RecordEvidence {
    /// Builds the evidence. `layouts`: the layout in force in each window, `None` if it is not known.
    pub fn new(
        windows: &[&EfficiencyWindow],
        layouts: &[Option<Layout>],
        coverage_min_ratio: f64,
        board_watts: Option<f64>,
    ) -> Self {
        // Mean logarithm of a sample's memory activity, and number of windows, for each phase.
        let mut centres: Vec<(f64, f64)> = Vec::new();
        let mut this = Self { groups: Vec::new(), phases: Vec::with_capacity(windows.len()), board_watts };
        for (index, (window, layout)) in windows.iter().zip(layouts).enumerate() {
            let figures = WindowMeasurement::of(window, coverage_min_ratio);
            let active = window.mean_dram_active_ratio.filter(|ratio| *ratio > 0.0);
            let intensity =
                figures.zip(active).map(|(f, ratio)| (ratio * f64::from(window.gpus.max(1)) / f.samples_per_second).ln());
            let phase = intensity.map(|intensity| phase_of(intensity, &mut centres));
            this.phases.push(phase);
            if let (Some(figures), Some(phase), Some(layout)) = (figures, phase, layout) {
                let known = this.groups.iter().position(|g| g.phase == phase && same_layout(&g.layout, layout, board_watts));
                let group = known.unwrap_or_else(|| {
                    let group = EvidenceGroup { phase, layout: layout.clone(), windows: Vec::new(), figures: Vec::new() };
                    this.groups.push(group);
                    this.groups.len() - 1
                });
                this.groups[group].windows.push(index);
                this.groups[group].figures.push(figures);
            }
        }
        this
    }

    /// Returns the phase of the job in a window of the record.
    pub fn phase(&self, window: usize) -> Option<usize> {
        self.phases[window]
    }

    /// Returns the number of the group of windows that show the effect of a layout in a phase.
    pub fn find_group(&self, layout: &Layout, phase: Option<usize>) -> Result<usize, InsufficientEvidence> {
        let phase = phase.ok_or(InsufficientEvidence::NoPhase)?;
        let found = self.groups.iter().position(|g| g.phase == phase && same_layout(&g.layout, layout, self.board_watts));
        let Some(group) = found else { return Err(InsufficientEvidence::NeverObserved { phase, windows: 0 }) };
        let figures = &self.groups[group].figures;
        if figures.len() < ENOUGH_WINDOWS {
            return Err(InsufficientEvidence::NeverObserved { phase, windows: figures.len() });
        }
        let spread = spread(figures);
        if spread > MOST_SPREAD {
            return Err(InsufficientEvidence::Inconsistent { phase, spread_percent: (100.0 * spread).round() as u32 });
        }
        Ok(group)
    }

    /// Returns a window of a group, another one each time.
    pub fn window(&self, group: usize, turn: usize) -> usize {
        let windows = &self.groups[group].windows;
        windows[turn % windows.len()]
    }

    pub fn windows(&self, group: usize) -> usize {
        self.groups[group].windows.len()
    }

    /// Returns the J/sample of group `to` over that of `from`, less 1: negative saves.
    pub fn effect(&self, from: usize, to: usize, seed: u64) -> Estimate {
        let ratio = |from: WindowMeasurement, to: WindowMeasurement| to.joules_per_sample() / from.joules_per_sample() - 1.0;
        let (from, to) = (&self.groups[from].figures, &self.groups[to].figures);
        estimate(ratio(mean(from), mean(to)), seed, |random| ratio(resampled(from, random), resampled(to, random)))
    }

    /// Returns the J/sample of windows as they were together with so many windows of some groups, over that of `recorded`, less
    /// 1.
    pub fn total_effect(
        &self,
        factual: &[WindowMeasurement],
        estimated: &[(usize, usize)],
        recorded: &[WindowMeasurement],
        seed: u64,
    ) -> Estimate {
        let base = sum(recorded).joules_per_sample();
        let as_they_were = sum(factual);
        let total = |of: &mut dyn FnMut(&[WindowMeasurement]) -> WindowMeasurement| {
            let mut all = as_they_were;
            for (group, windows) in estimated {
                let one = of(&self.groups[*group].figures);
                all.watts += one.watts * *windows as f64;
                all.samples_per_second += one.samples_per_second * *windows as f64;
            }
            all.joules_per_sample() / base - 1.0
        };
        let value = total(&mut mean);
        estimate(value, seed, |random| total(&mut |figures: &[WindowMeasurement]| resampled(figures, random)))
    }
}

/// Returns the nearest phase within reach, or a new one; numbered from 1.
fn phase_of(intensity: f64, centres: &mut Vec<(f64, f64)>) -> usize {
    let distance = |centre: &(f64, f64)| (centre.0 - intensity).abs();
    let nearest = (0..centres.len()).min_by(|a, b| distance(&centres[*a]).total_cmp(&distance(&centres[*b])));
    if let Some(nearest) = nearest.filter(|i| distance(&centres[*i]) <= SAME_PHASE) {
        let (centre, count) = &mut centres[nearest];
        *count += 1.0;
        *centre += (intensity - *centre) / *count;
        return nearest + 1;
    }
    centres.push((intensity, 1.0));
    centres.len()
}

fn sum(figures: &[WindowMeasurement]) -> WindowMeasurement {
    let zero = WindowMeasurement { watts: 0.0, samples_per_second: 0.0 };
    figures.iter().fold(zero, |sum, one| WindowMeasurement {
        watts: sum.watts + one.watts,
        samples_per_second: sum.samples_per_second + one.samples_per_second,
    })
}

fn mean(figures: &[WindowMeasurement]) -> WindowMeasurement {
    let (sum, count) = (sum(figures), figures.len() as f64);
    WindowMeasurement { watts: sum.watts / count, samples_per_second: sum.samples_per_second / count }
}

/// Returns the standard deviation of J/sample over its mean.
fn spread(figures: &[WindowMeasurement]) -> f64 {
    let values: Vec<f64> = figures.iter().map(|one| one.joules_per_sample()).collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt() / mean
}

/// Returns the mean of as many windows, drawn with replacement.
fn resampled(figures: &[WindowMeasurement], random: &mut Pcg64Mcg) -> WindowMeasurement {
    let drawn: Vec<WindowMeasurement> = (0..figures.len()).map(|_| figures[random.random_range(0..figures.len())]).collect();
    mean(&drawn)
}

/// Returns the interval by the bootstrap; the same seed gives the same.
fn estimate(value: f64, seed: u64, mut resample: impl FnMut(&mut Pcg64Mcg) -> f64) -> Estimate {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut values: Vec<f64> = (0..RESAMPLES).map(|_| resample(&mut random)).collect();
    values.sort_by(f64::total_cmp);
    let at = |part: f64| values[((RESAMPLES - 1) as f64 * part).round() as usize];
    let saves = values.iter().filter(|value| **value < 0.0).count() as f64 / RESAMPLES as f64;
    Estimate { value, low: at(0.05), high: at(0.95), confidence_saves_ratio: saves }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(replicas: u32, watts: Option<f64>) -> Layout {
        Layout { replicas: Some(replicas), power_limit_watts: watts, ..Layout::default() }
    }

    fn window(watts: f64, rate: f64, dram: f64) -> EfficiencyWindow {
        EfficiencyWindow {
            mean_power_watts: Some(watts),
            samples_per_second: Some(rate),
            mean_dram_active_ratio: Some(dram),
            energy_coverage_ratio: 1.0,
            progress_coverage_ratio: 1.0,
            gpus: 1,
            ..EfficiencyWindow::default()
        }
    }

    #[test]
    fn layouts_are_the_same_but_for_what_does_not_matter() {
        let same = |a, b| same_layout(&a, &b, Some(400.0));
        assert!(same(layout(6, Some(300.0)), layout(6, Some(303.0))));
        assert!(!same(layout(6, Some(300.0)), layout(6, Some(330.0))));
        assert!(same(layout(6, None), layout(6, Some(400.0))));
        assert!(!same(layout(6, None), layout(6, Some(300.0))));
        assert!(!same(layout(6, None), layout(9, None)));
    }

    #[test]
    fn a_layout_has_figures_only_of_phases_that_it_was_seen_in() {
        // Two phases that differ by memory activity a sample: 0.01 and 0.02.
        let mut windows = vec![window(300.0, 10.0, 0.1); 4];
        windows.extend(vec![window(200.0, 10.0, 0.1); 4]);
        windows.extend(vec![window(300.0, 10.0, 0.2); 4]);
        windows.extend(vec![window(200.0, 10.0, 0.2); 2]);
        windows.push(EfficiencyWindow { mean_dram_active_ratio: None, ..window(1.0, 1.0, 1.0) });
        let layouts: Vec<Option<Layout>> =
            (0..windows.len()).map(|i| Some(layout(if (4..8).contains(&i) || i >= 12 { 9 } else { 6 }, None))).collect();
        let windows: Vec<&EfficiencyWindow> = windows.iter().collect();
        let evidence = RecordEvidence::new(&windows, &layouts, 0.9, None);
        assert_eq!((evidence.phase(0), evidence.phase(9), evidence.phase(14)), (Some(1), Some(2), None));
        let group = |replicas, phase| evidence.find_group(&layout(replicas, None), phase);
        let (from, to) = (group(6, Some(1)).unwrap(), group(9, Some(1)).unwrap());
        let effect = evidence.effect(from, to, 1);
        assert!((effect.value + 1.0 / 3.0).abs() < 1e-9, "{effect:?}");
        assert_eq!((effect.low, effect.high, effect.confidence_saves_ratio), (effect.value, effect.value, 1.0));
        assert_eq!(group(9, Some(2)), Err(InsufficientEvidence::NeverObserved { phase: 2, windows: 2 }));
        assert_eq!(group(3, Some(2)), Err(InsufficientEvidence::NeverObserved { phase: 2, windows: 0 }));
        assert_eq!(group(6, None), Err(InsufficientEvidence::NoPhase));
    }

    #[test]
    fn windows_that_disagree_show_nothing_and_a_spread_shows_in_the_interval() {
        let uneven = [window(300.0, 10.0, 0.1), window(300.0, 5.0, 0.05), window(300.0, 20.0, 0.2)];
        let layouts = vec![Some(layout(6, None)); 3];
        let evidence = RecordEvidence::new(&uneven.iter().collect::<Vec<_>>(), &layouts, 0.9, None);
        assert!(matches!(
            evidence.find_group(&layout(6, None), Some(1)),
            Err(InsufficientEvidence::Inconsistent { phase: 1, .. })
        ));

        let noisy = |watts: f64, i: i32| window(watts * (1.0 + 0.05 * f64::from(i % 5 - 2)), 10.0, 0.1);
        let windows: Vec<EfficiencyWindow> = (0..10).map(|i| noisy(300.0, i)).chain((0..10).map(|i| noisy(298.0, i))).collect();
        let layouts: Vec<_> = (0..20).map(|i| Some(layout(if i < 10 { 6 } else { 9 }, None))).collect();
        let evidence = RecordEvidence::new(&windows.iter().collect::<Vec<_>>(), &layouts, 0.9, None);
        let effect = evidence.effect(0, 1, 7);
        assert!(effect.low < effect.value && effect.value < effect.high, "{effect:?}");
        assert!((0.4..0.9).contains(&effect.confidence_saves_ratio), "it may as well be chance: {effect:?}");
        assert_eq!(effect, evidence.effect(0, 1, 7));
    }
}
