//! Throughput and power of one layout in one phase, over the setting of the knob; and where it is best.
//!
//! Between measured points, both are straight lines in logarithms. That assumes nothing that was not measured, and as
//! throughput over power is concave, it is on the careful side. Throughput never falls with a higher setting: noise to the
//! contrary is averaged out (pool adjacent violators).

use serde::{Deserialize, Serialize};

use super::knob::SeekKnob;
use crate::controller::ControllerObjective;

/// Measured figures of one setting in one layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "PackedSetting", into = "PackedSetting")]
pub(super) struct MeasuredSetting {
    pub layout_key: LayoutKey,
    pub setting: f64,
    /// Mean of the limited reading: power of a GPU, or its clock.
    pub reading: f64,
    /// Power of the whole workload.
    pub watts: f64,
    pub samples_per_second: f64,
    pub windows: u32,
}

/// Compact JSON form: it is written with every window.
type PackedSetting = (u32, u32, f64, f64, f64, f64, u32);

impl From<PackedSetting> for MeasuredSetting {
    fn from((replicas, threads, setting, reading, watts, samples_per_second, windows): PackedSetting) -> Self {
        Self { layout_key: LayoutKey { replicas, threads }, setting, reading, watts, samples_per_second, windows }
    }
}

impl From<MeasuredSetting> for PackedSetting {
    fn from(p: MeasuredSetting) -> Self {
        (p.layout_key.replicas, p.layout_key.threads, p.setting, p.reading, p.watts, p.samples_per_second, p.windows)
    }
}

/// The part of a layout that only a restart changes; 0 if it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct LayoutKey {
    pub replicas: u32,
    pub threads: u32,
}

/// Means forget what lies further back than this many windows.
const MEMORY: u32 = 30;

impl MeasuredSetting {
    pub fn add(&mut self, reading: f64, watts: f64, samples_per_second: f64) {
        let weight = 1.0 / f64::from(self.windows.min(MEMORY - 1) + 1);
        let mean = |old: &mut f64, new: f64| *old = round_to_six_digits(*old + weight * (new - *old));
        mean(&mut self.reading, reading);
        mean(&mut self.watts, watts);
        mean(&mut self.samples_per_second, samples_per_second);
        self.windows = self.windows.saturating_add(1).min(9_999);
    }

    pub fn joules_per_sample(&self) -> f64 {
        self.watts / self.samples_per_second
    }

    pub fn score(&self, objective: ControllerObjective) -> f64 {
        objective.score(self.joules_per_sample(), 1.0 / self.samples_per_second)
    }
}

/// Rounds to six digits: enough for a figure with a noise of a per cent, and short in the state.
pub(super) fn round_to_six_digits(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let scale = 10_f64.powi(5 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// Two settings nearer than this, as a logarithm, are one.
const SAME: f64 = 0.025;
/// A measured point this near, as a logarithm, vouches for a setting.
const VOUCHES: f64 = 0.06;
/// The knob goes down by at most this part beyond the measured settings; further if throughput hardly changed.
const STRIDE: f64 = 0.85;
const LONG_STRIDE: f64 = 0.75;
const HARDLY: f64 = 0.25;
/// Least fall of the score's logarithm, towards the highest measured setting, from which a still higher setting is tried.
const WORTH_RISING: f64 = 0.01;
/// Scores within this factor of the least are ties.
const HAIR: f64 = 1.0002;
/// Distance of two settings that are compared, as a logarithm.
const GRID: f64 = 0.005;

#[derive(Debug, Clone, Copy)]
struct CurveNode {
    /// Logarithm of the setting in effect.
    at: f64,
    ln_rate: f64,
    ln_watts: f64,
    weight: f64,
}

#[derive(Debug, Clone)]
pub(super) struct SettingCurve<'a> {
    knob: &'a SeekKnob,
    /// Measured points by setting, ascending; at least one.
    nodes: Vec<CurveNode>,
    /// The setting from which on nothing is held back, as a logarithm, if that was measured.
    free: Option<f64>,
}

/// Expected throughput and power at a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SettingEstimate {
    pub samples_per_second: f64,
    pub watts: f64,
    /// True if lower and higher settings were measured.
    pub inside: bool,
}

impl SettingEstimate {
    pub fn joules_per_sample(&self) -> f64 {
        self.watts / self.samples_per_second
    }

    pub fn score(&self, objective: ControllerObjective) -> f64 {
        objective.score(self.joules_per_sample(), 1.0 / self.samples_per_second)
    }
}

/// Throughput and power that a setting may have at least and at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PossibleRange {
    pub samples_per_second: (f64, f64),
    pub watts: (f64, f64),
}

/// Further down throughput falls more steeply, never less: by this factor, and this much more.
const STEEPER: (f64, f64) = (1.3, 0.02);
/// Exponents within which throughput and power follow a setting beyond the measured ones.
const STEEPEST: f64 = 1.6;

/// The best setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BestSetting {
    pub setting: f64,
    pub expected: SettingEstimate,
    /// Throughput is enough.
    pub feasible: bool,
    /// It was measured nearby; else it is only the next to try.
    pub settled: bool,
}

impl<'a> SettingCurve<'a> {
    /// `None` without any point that can be used.
    pub fn fit<'p>(points: impl IntoIterator<Item = &'p MeasuredSetting>, knob: &'a SeekKnob) -> Option<Self> {
        let usable = |p: &&MeasuredSetting| p.samples_per_second > 0.0 && p.watts > 0.0 && p.windows > 0;
        let points: Vec<&MeasuredSetting> = points.into_iter().filter(usable).collect();
        let free = points.iter().find(|p| p.setting >= knob.top).map(|p| p.reading.min(knob.top).max(knob.least).ln());
        let mut nodes: Vec<CurveNode> = points
            .iter()
            .map(|p| CurveNode {
                at: if p.setting >= knob.top { free.unwrap_or(0.0) } else { p.setting.ln() },
                ln_rate: p.samples_per_second.ln(),
                ln_watts: p.watts.ln(),
                weight: f64::from(p.windows.min(MEMORY)),
            })
            .collect();
        nodes.sort_by(|a, b| a.at.total_cmp(&b.at));
        let mut merged: Vec<CurveNode> = Vec::with_capacity(nodes.len());
        for node in nodes {
            match merged.last_mut() {
                Some(last) if node.at - last.at < SAME => last.absorb(&node),
                _ => merged.push(node),
            }
        }
        make_monotonic(&mut merged);
        (!merged.is_empty()).then_some(Self { knob, nodes: merged, free })
    }

    /// Returns the logarithm of a setting; nothing is held back above the free one.
    fn log_setting(&self, setting: f64) -> f64 {
        let at = setting.ln();
        self.free.map_or(at, |free| at.min(free))
    }

    /// Returns the expected figures at a setting.
    pub fn estimate_at(&self, setting: f64) -> SettingEstimate {
        self.interpolate(self.log_setting(setting))
    }

    /// Returns the possible figures at a setting: one value between measured points, and beyond them whatever physics allows.
    pub fn possible_range(&self, setting: f64) -> PossibleRange {
        let at = self.log_setting(setting);
        let expected = self.interpolate(at);
        let (first, last) = (self.nodes[0], self.nodes[self.nodes.len() - 1]);
        let span = |from: &CurveNode| {
            let far = (STEEPEST * (at - from.at)).exp();
            let (rate, watts) = (from.ln_rate.exp(), from.ln_watts.exp());
            let ends = |value: f64| (value.min(value * far), value.max(value * far));
            PossibleRange { samples_per_second: ends(rate), watts: ends(watts) }
        };
        if at < first.at - SAME {
            span(&first)
        } else if at > last.at + SAME {
            span(&last)
        } else {
            let exactly = |value: f64| (value, value);
            PossibleRange { samples_per_second: exactly(expected.samples_per_second), watts: exactly(expected.watts) }
        }
    }

    fn interpolate(&self, at: f64) -> SettingEstimate {
        self.extrapolate(at, self.extrapolation_slopes(STEEPER))
    }

    /// Returns the expected figures at the logarithm `at` of a setting, with these slopes below the lowest point.
    fn extrapolate(&self, at: f64, (rate_slope, watts_slope): (f64, f64)) -> SettingEstimate {
        let (first, last) = (self.nodes[0], self.nodes[self.nodes.len() - 1]);
        let (ln_rate, ln_watts) = if at < first.at {
            (first.ln_rate + rate_slope * (at - first.at), first.ln_watts + watts_slope * (at - first.at))
        } else if at >= last.at {
            (last.ln_rate, last.ln_watts)
        } else {
            let above = self.nodes.partition_point(|node| node.at <= at);
            let (a, b) = (self.nodes[above - 1], self.nodes[above]);
            let part = (at - a.at) / (b.at - a.at);
            (a.ln_rate + part * (b.ln_rate - a.ln_rate), a.ln_watts + part * (b.ln_watts - a.ln_watts))
        };
        let inside = at >= first.at - SAME && (at <= last.at + SAME || self.free.is_some());
        SettingEstimate { samples_per_second: ln_rate.exp(), watts: ln_watts.exp(), inside }
    }

    /// Returns the exponents of throughput and power below the lowest point. They come from the lowest two points; the one of
    /// throughput is multiplied by `factor` and raised by `more`.
    fn extrapolation_slopes(&self, (factor, more): (f64, f64)) -> (f64, f64) {
        let prior = self.knob.prior_exponents();
        match self.nodes.as_slice() {
            [a, b, ..] => {
                let run = b.at - a.at;
                let rate = ((b.ln_rate - a.ln_rate) / run * factor + more).clamp(more, 2.0);
                (rate, ((b.ln_watts - a.ln_watts) / run).clamp(0.2, prior.1.max(1.0)))
            }
            _ => prior,
        }
    }

    /// Returns the setting of the least score among those with at least this throughput; also one that is a stride beyond the
    /// measured ones.
    pub fn best(&self, samples_per_second_min: f64, objective: ControllerObjective) -> BestSetting {
        self.minimize_score(samples_per_second_min, objective, true)
    }

    /// Returns the best setting among the measured ones.
    pub fn best_measured(&self, samples_per_second_min: f64, objective: ControllerObjective) -> BestSetting {
        self.minimize_score(samples_per_second_min, objective, false)
    }

    /// Returns the highest measured throughput, and the energy per sample there.
    pub fn fastest(&self) -> SettingEstimate {
        self.interpolate(self.nodes[self.nodes.len() - 1].at)
    }

    fn minimize_score(&self, samples_per_second_min: f64, objective: ControllerObjective, beyond: bool) -> BestSetting {
        let (first, last) = (self.nodes[0], self.nodes[self.nodes.len() - 1]);
        let least = self.knob.least.ln();
        // A single point gives no information on the way down, if there is any. For the products it is no reason not to look.
        let explored = self.nodes.len() > 1 || first.at <= least + SAME;
        let objective = if explored { objective } else { ControllerObjective::Energy };
        let stride = if self.extrapolation_slopes(STEEPER).0 < HARDLY { LONG_STRIDE } else { STRIDE };
        let low = if beyond { least.max(first.at + stride.ln()).min(first.at) } else { first.at };
        let high = self.free.unwrap_or(last.at);
        let steps = ((high - low) / GRID).ceil().max(1.0);
        let candidates = (0..=steps as u32).map(|step| low + (high - low) * f64::from(step) / steps);
        let enough = |expected: &SettingEstimate| expected.samples_per_second >= samples_per_second_min * (1.0 - 1e-9);
        let mut candidates = candidates.map(|at| (at, self.interpolate(at))).filter(|(_, expected)| enough(expected));
        // If throughput falls more steeply than it did, the products are soon worse, and the search would never find out. So the
        // steeper slope decides whether throughput is enough, and the measured slope whether a setting is worth a trial.
        let hoped = self.extrapolation_slopes(if objective.is_energy() { STEEPER } else { (1.0, 0.0) });
        let score = |at: f64| self.extrapolate(at, hoped).score(objective);
        let least_score = candidates.clone().map(|(at, _)| score(at)).reduce(f64::min);
        // Ties and what differs by less than a hair go to the higher setting.
        let best = least_score.and_then(|least| candidates.rfind(|(at, _)| score(*at) <= least * HAIR));
        let feasible = best.is_some();
        let (at, expected) = best.unwrap_or((high, self.interpolate(high)));
        let near = self.nodes.iter().any(|node| (node.at - at).abs() <= VOUCHES);
        let free = self.free.is_some_and(|free| at >= free - SAME);
        let setting = if free || !feasible { self.knob.top } else { self.knob.round_to_step(at.exp()) };
        if self.free.is_none() && self.knob.top.ln() > last.at + SAME {
            // Settings above the last point were never measured: the next one is tried if it may be needed, or better.
            if !feasible {
                let short = samples_per_second_min / last.ln_rate.exp();
                let setting = self.knob.round_to_step(1.02 * last.at.exp() * short.powi(2).max(1.05));
                return BestSetting { setting, expected, feasible, settled: false };
            }
            let below = self.nodes.iter().rev().nth(1).map(|node| (node.score(objective) / last.score(objective)).ln());
            if at >= last.at - SAME && below.is_some_and(|rises| rises > WORTH_RISING) {
                return BestSetting {
                    setting: self.knob.round_to_step((at - STRIDE.ln()).exp()),
                    expected,
                    feasible,
                    settled: false,
                };
            }
        }
        BestSetting { setting, expected, feasible, settled: near && (explored || !feasible) }
    }
}

impl CurveNode {
    fn score(&self, objective: ControllerObjective) -> f64 {
        objective.score((self.ln_watts - self.ln_rate).exp(), (-self.ln_rate).exp())
    }

    fn absorb(&mut self, other: &Self) {
        let weight = self.weight + other.weight;
        let part = other.weight / weight;
        self.at += part * (other.at - self.at);
        self.ln_rate += part * (other.ln_rate - self.ln_rate);
        self.ln_watts += part * (other.ln_watts - self.ln_watts);
        self.weight = weight;
    }
}

/// Makes throughput rise with the setting.
fn make_monotonic(nodes: &mut [CurveNode]) {
    let mut blocks: Vec<(f64, f64, usize)> = Vec::with_capacity(nodes.len());
    for node in nodes.iter() {
        blocks.push((node.ln_rate, node.weight, 1));
        while let [.., (below, w1, n1), (above, w2, n2)] = blocks[..]
            && above < below
        {
            blocks.truncate(blocks.len() - 2);
            blocks.push(((below * w1 + above * w2) / (w1 + w2), w1 + w2, n1 + n2));
        }
    }
    let mut rest = nodes;
    for (ln_rate, _, count) in blocks {
        let (block, tail) = rest.split_at_mut(count);
        for node in block {
            node.ln_rate = ln_rate;
        }
        rest = tail;
    }
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::Workload;
    use proptest::prelude::*;

    use super::*;
    use crate::controller::ControllerSettings;

    /// 120 to 400 W in steps of 1 W.
    fn knob() -> SeekKnob {
        let workload = Workload { gpu_power_limit_watts: Some(400.0), ..Workload::default() };
        SeekKnob::power_limit(&workload, None, &ControllerSettings::default()).unwrap()
    }

    fn point(setting: f64, reading: f64, samples_per_second: f64) -> MeasuredSetting {
        MeasuredSetting {
            layout_key: LayoutKey::default(),
            setting,
            reading,
            watts: 3.0 * reading,
            samples_per_second,
            windows: 10,
        }
    }

    fn near(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-9
    }

    #[test]
    fn nothing_is_made_of_points_that_show_nothing() {
        let knob = knob();
        let good = point(200.0, 200.0, 80.0);
        for bad in [
            MeasuredSetting { samples_per_second: 0.0, ..good },
            MeasuredSetting { watts: 0.0, ..good },
            MeasuredSetting { windows: 0, ..good },
        ] {
            assert!(SettingCurve::fit([&bad], &knob).is_none(), "{bad:?}");
            let curve = SettingCurve::fit([&bad, &good], &knob).unwrap();
            assert!(near(curve.estimate_at(200.0).samples_per_second, 80.0), "{bad:?}");
        }
    }

    #[test]
    fn a_mean_forgets_what_lies_thirty_windows_back() {
        let mut mean = MeasuredSetting { windows: 0, watts: 0.0, reading: 0.0, ..point(300.0, 0.0, 0.0) };
        for (rate, expected) in [(10.0, 10.0), (20.0, 15.0), (30.0, 20.0)] {
            mean.add(100.0, 300.0, rate);
            assert!(near(mean.samples_per_second, expected), "{mean:?}");
        }
        for _ in 3..200 {
            mean.add(100.0, 300.0, 20.0);
        }
        mean.add(100.0, 300.0, 50.0);
        assert!((mean.samples_per_second - (20.0 + 30.0 / 30.0)).abs() < 1e-3, "{mean:?}");
        assert_eq!((mean.windows, mean.joules_per_sample() > 14.0), (201, true));
    }

    #[test]
    fn between_points_it_goes_on_straight_lines_in_logarithms_and_below_them_more_steeply() {
        let knob = knob();
        let curve = SettingCurve::fit([&point(200.0, 200.0, 80.0), &point(320.0, 320.0, 100.0)], &knob).unwrap();
        let middle = curve.estimate_at((200.0_f64 * 320.0).sqrt());
        assert!(
            near(middle.samples_per_second, 8000.0_f64.sqrt()) && near(middle.watts, 3.0 * 64_000.0_f64.sqrt()),
            "{middle:?}"
        );
        assert!(near(middle.joules_per_sample(), middle.watts / middle.samples_per_second) && middle.inside);
        // 80 to 100 over 200 to 320 is an exponent of 0.4748; further down 1.3 times that and 0.02.
        let exponent = 1.3 * (100.0_f64 / 80.0).ln() / (320.0_f64 / 200.0).ln() + 0.02;
        let below = curve.estimate_at(150.0);
        assert!(near(below.samples_per_second, 80.0 * 0.75_f64.powf(exponent)) && near(below.watts, 450.0), "{below:?}");
        assert!(!below.inside && !curve.estimate_at(400.0).inside);
        assert!(near(curve.estimate_at(400.0).samples_per_second, 100.0), "above the highest nothing is promised");
        assert!(near(curve.fastest().samples_per_second, 100.0));
        // The possible range there: at most the setting to the power of 1.6, and at least the former value.
        let range = curve.possible_range(400.0);
        let far = (400.0_f64 / 320.0).powf(1.6);
        assert!(near(range.samples_per_second.0, 100.0) && near(range.samples_per_second.1, 100.0 * far), "{range:?}");
        assert!(near(range.watts.0, 960.0) && near(range.watts.1, 960.0 * far), "{range:?}");
        let low = curve.possible_range(150.0);
        assert!(near(low.samples_per_second.0, 80.0 * 0.75_f64.powf(1.6)) && near(low.samples_per_second.1, 80.0), "{low:?}");
        let exact = curve.possible_range(320.0);
        assert_eq!(exact.watts.0.to_bits(), exact.watts.1.to_bits());
    }

    #[test]
    fn a_cap_that_holds_nothing_back_is_no_other_setting() {
        let knob = knob();
        let curve = SettingCurve::fit([&point(400.0, 330.0, 100.0), &point(250.0, 250.0, 90.0)], &knob).unwrap();
        // It draws 330 W by itself, so that 350 W do nothing.
        for setting in [330.0, 350.0, 400.0] {
            let at = curve.estimate_at(setting);
            assert!(near(at.samples_per_second, 100.0) && near(at.watts, 990.0) && at.inside, "{setting}: {at:?}");
        }
        assert_eq!(curve.best(99.0, ControllerObjective::Energy).setting.to_bits(), 400.0_f64.to_bits());
    }

    #[test]
    fn a_lower_setting_that_seems_faster_is_averaged_out() {
        let knob = knob();
        let heavy = MeasuredSetting { windows: 30, ..point(250.0, 250.0, 96.0) };
        let curve = SettingCurve::fit([&heavy, &point(300.0, 300.0, 92.0)], &knob).unwrap();
        let pooled = ((30.0 * 96.0_f64.ln() + 10.0 * 92.0_f64.ln()) / 40.0).exp();
        for setting in [250.0, 300.0] {
            assert!(
                near(curve.estimate_at(setting).samples_per_second, pooled),
                "{}",
                curve.estimate_at(setting).samples_per_second
            );
        }
        // Two that are one: by their windows.
        let one = SettingCurve::fit([&heavy, &point(253.0, 253.0, 100.0)], &knob).unwrap();
        assert!(near(one.estimate_at(260.0).samples_per_second, (0.75 * 96.0_f64.ln() + 0.25 * 100.0_f64.ln()).exp()));
    }

    #[test]
    fn one_point_leads_further_down_and_two_may_be_enough() {
        let knob = knob();
        let free = point(400.0, 380.0, 100.0);
        let first = SettingCurve::fit([&free], &knob).unwrap();
        for objective in [ControllerObjective::Energy, ControllerObjective::Edp, ControllerObjective::Ed2p] {
            let next = first.best(90.0, objective);
            // A stride of 15 %, as far as the prior lets throughput be enough: 0.9 is 0.81 of the watts.
            assert_eq!((next.setting, next.feasible, next.settled), (323.0, true, false), "{objective:?}");
        }
        assert!((first.best(95.0, ControllerObjective::Energy).setting - 380.0 * 0.95 * 0.95).abs() < 2.0);
        assert!(first.best_measured(90.0, ControllerObjective::Energy).setting >= 400.0, "what was not measured is out of reach");
        // Throughput hardly noticed: it goes on by a longer stride.
        let flat = point(328.0, 328.0, 99.5);
        assert_eq!(SettingCurve::fit([&free, &flat], &knob).unwrap().best(90.0, ControllerObjective::Energy).setting, 246.0);
        // It did reduce throughput, and more would be too slow: the measured setting is best.
        let slow = point(330.0, 330.0, 91.0);
        let best = SettingCurve::fit([&free, &slow], &knob).unwrap().best(90.5, ControllerObjective::Energy);
        assert!(best.settled && best.feasible && (best.setting - 330.0).abs() < 4.0, "{best:?}");
    }

    #[test]
    fn where_nothing_higher_was_measured_and_it_is_needed_it_comes_next() {
        let knob = knob();
        let curve = SettingCurve::fit([&point(200.0, 200.0, 80.0)], &knob).unwrap();
        let next = curve.best(88.0, ControllerObjective::Energy);
        // A tenth too slow: 1.02 times 1.1² of the watts.
        assert_eq!((next.setting, next.feasible, next.settled), ((200.0 * 1.02 * 1.21_f64).round(), false, false));
        assert_eq!(
            curve.best(80.5, ControllerObjective::Energy).setting,
            (200.0 * 1.02 * 1.05_f64).round(),
            "at least by a twentieth"
        );
        assert_eq!(curve.best(800.0, ControllerObjective::Energy).setting.to_bits(), 400.0_f64.to_bits(), "never above the top");
        // 200 to 260 W take 1.3 times the power for 1.4 times the throughput: higher may be better still.
        let rising = SettingCurve::fit([&point(200.0, 200.0, 80.0), &point(260.0, 260.0, 112.0)], &knob).unwrap();
        let next = rising.best(50.0, ControllerObjective::Energy);
        assert_eq!((next.setting, next.feasible, next.settled), ((260.0 / 0.85_f64).round(), true, false));
        // Energy rises with the cap here, and its product with time falls.
        let curve = SettingCurve::fit([&point(200.0, 200.0, 80.0), &point(260.0, 260.0, 96.0)], &knob).unwrap();
        assert!(curve.best(50.0, ControllerObjective::Energy).setting < 200.0);
        assert_eq!(curve.best(50.0, ControllerObjective::Edp).setting, (260.0 / 0.85_f64).round());
    }

    #[test]
    fn where_nothing_is_fast_enough_nothing_is_held_back() {
        let knob = knob();
        let curve = SettingCurve::fit([&point(400.0, 390.0, 100.0), &point(300.0, 300.0, 90.0)], &knob).unwrap();
        let best = curve.best(120.0, ControllerObjective::Energy);
        assert_eq!((best.setting, best.feasible, best.settled), (400.0, false, true));
    }

    #[test]
    fn six_digits_are_kept_and_what_is_no_figure_stays_as_it_is() {
        for (value, expected) in [
            (123_456.7, 123_457.0),
            (1_234_567.0, 1_234_570.0),
            (0.001_234_567_8, 0.001_234_57),
            (-98_765.43, -98_765.4),
            (100.0, 100.0),
            (0.0, 0.0),
            (f64::INFINITY, f64::INFINITY),
        ] {
            assert_eq!(round_to_six_digits(value), expected);
        }
        assert!(round_to_six_digits(f64::NAN).is_nan());
    }

    #[test]
    fn a_setting_as_good_as_measured_has_one_value_and_is_inside() {
        let knob = knob();
        let curve = SettingCurve::fit([&point(200.0, 200.0, 80.0), &point(320.0, 320.0, 100.0)], &knob).unwrap();
        // 2.5 % beyond the lowest and the highest are the same setting.
        for setting in [196.0, 200.0, 203.0, 250.0, 316.0, 320.0, 326.0] {
            let range = curve.possible_range(setting);
            assert_eq!(range.watts.0.to_bits(), range.watts.1.to_bits(), "{setting} W");
            assert!(near(range.watts.0, curve.estimate_at(setting).watts) && curve.estimate_at(setting).inside, "{setting} W");
        }
        for setting in [194.0, 329.0] {
            let range = curve.possible_range(setting);
            assert!(range.watts.1 > range.watts.0 * 1.01 && !curve.estimate_at(setting).inside, "{setting} W");
        }
    }

    #[test]
    fn below_what_was_measured_power_falls_as_between_the_lowest_two() {
        let knob = knob();
        // Half as fast as the setting, in logarithms; less than a fifth, and more than it.
        for (exponent, taken) in [(0.5_f64, 0.5), (0.1, 0.2), (1.5, 1.0)] {
            let higher = MeasuredSetting { watts: 600.0 * 1.5_f64.powf(exponent), ..point(300.0, 300.0, 95.0) };
            let curve = SettingCurve::fit([&point(200.0, 200.0, 80.0), &higher], &knob).unwrap();
            assert!(
                near(curve.estimate_at(150.0).watts, 600.0 * 0.75_f64.powf(taken)),
                "{exponent}: {:?}",
                curve.estimate_at(150.0)
            );
        }
    }

    #[test]
    fn a_single_point_at_the_lowest_setting_is_enough() {
        let knob = knob();
        let best =
            |setting: f64, objective| SettingCurve::fit([&point(setting, setting, 80.0)], &knob).unwrap().best(70.0, objective);
        for objective in [ControllerObjective::Energy, ControllerObjective::Edp] {
            // 121 W are as good as the 120 W below which no cap is.
            assert!(best(120.0, objective).settled && best(121.0, objective).settled, "{objective:?}");
            let next = best(140.0, objective);
            assert_eq!((next.setting, next.settled), (120.0, false), "{objective:?}");
        }
    }

    #[test]
    fn throughput_that_is_just_enough_is_enough() {
        let knob = knob();
        for rate in 50..150 {
            let rate = f64::from(rate);
            let curve = SettingCurve::fit([&point(200.0, 200.0, rate)], &knob).unwrap();
            assert!(curve.best_measured(rate, ControllerObjective::Energy).feasible, "{rate}");
            assert!(!curve.best_measured(rate * (1.0 + 1e-7), ControllerObjective::Energy).feasible, "{rate}");
        }
    }

    #[test]
    fn above_the_highest_it_looks_only_where_that_may_help() {
        let knob = knob();
        let of = |points: &[MeasuredSetting], floor: f64| {
            let best = SettingCurve::fit(points, &knob).unwrap().best(floor, ControllerObjective::Energy);
            (best.setting, best.feasible, best.settled)
        };
        // 395 W are as good as the 400 W of the board: no more is to be had.
        assert_eq!(of(&[point(395.0, 395.0, 90.0)], 100.0), (400.0, false, true));
        // The highest is needed, and took more than the one below it.
        let costly = [point(200.0, 200.0, 80.0), point(260.0, 260.0, 84.0)];
        assert_eq!(of(&costly, 83.99), (260.0, true, true));
        // 7.50 and 7.46 J/sample are the same, 7.50 and 7.35 J are not.
        let with = |rate| [point(200.0, 200.0, 80.0), point(260.0, 260.0, rate)];
        assert_eq!(of(&with(780.0 / 7.46), 50.0), (260.0, true, true));
        assert_eq!(of(&with(780.0 / 7.35), 50.0), ((260.0 / 0.85_f64).round(), true, false));
        // It was better than the one below it, and far from the best.
        let valley = [point(150.0, 150.0, 90.0), point(200.0, 200.0, 91.0), point(260.0, 260.0, 125.0)];
        assert!(of(&valley, 89.0).0 < 140.0);
    }

    #[test]
    fn three_that_fall_are_averaged_by_all_their_windows() {
        let knob = knob();
        let with = |setting: f64, rate: f64, windows| MeasuredSetting { windows, ..point(setting, setting, rate) };
        let curve = SettingCurve::fit([&with(200.0, 96.0, 10), &with(250.0, 94.0, 10), &with(300.0, 90.0, 30)], &knob).unwrap();
        let pooled = ((10.0 * 96.0_f64.ln() + 10.0 * 94.0_f64.ln() + 30.0 * 90.0_f64.ln()) / 50.0).exp();
        for setting in [200.0, 250.0, 300.0] {
            assert!(
                near(curve.estimate_at(setting).samples_per_second, pooled),
                "{setting} W: {}",
                curve.estimate_at(setting).samples_per_second
            );
        }
    }

    proptest! {
        /// Checks that throughput rises with the setting for any measurements, and that the choice has the least score of all
        /// fast enough settings and can be set.
        #[test]
        fn a_choice_is_the_best_of_what_is_fast_enough(
            measured in prop::collection::vec((120_u32..=400, 50.0_f64..150.0), 1..8),
            part in 0.5_f64..1.2,
            objective in prop::sample::select(vec![ControllerObjective::Energy, ControllerObjective::Edp, ControllerObjective::Ed2p]),
        ) {
            let knob = knob();
            let points: Vec<MeasuredSetting> = measured.iter().map(|(watts, rate)| point(f64::from(*watts), f64::from(*watts), *rate)).collect();
            let curve = SettingCurve::fit(&points, &knob).unwrap();
            let rates: Vec<f64> = (120..=400).map(|watts| curve.estimate_at(f64::from(watts)).samples_per_second).collect();
            prop_assert!(rates.windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - 1e-12)), "{rates:?}");
            let least = part * curve.fastest().samples_per_second;
            let best = curve.best_measured(least, objective);
            prop_assert!((120.0..=400.0).contains(&best.setting));
            prop_assert_eq!(best.feasible, part <= 1.0);
            if best.feasible {
                let [lowest, highest] = [0, curve.nodes.len() - 1].map(|n| curve.nodes[n].at.exp());
                let better = (0..=200).map(|n| curve.estimate_at(lowest + (highest - lowest) * f64::from(n) / 200.0)).find(|other| {
                    other.samples_per_second >= least && other.score(objective) < best.expected.score(objective) * 0.99
                });
                prop_assert!(better.is_none(), "{better:?} is better than {best:?}");
                prop_assert!(best.expected.samples_per_second >= least * (1.0 - 1e-6));
            }
        }
    }
}
