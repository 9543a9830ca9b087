//! Throughput and power of one layout in one phase, over the setting of the knob; and where it is best.
//!
//! Between what was measured, both go on straight lines in logarithms. That says nothing that was not measured, and as
//! throughput over power is concave, it is on the careful side. Throughput never falls with a higher setting: what noise
//! says to the contrary is averaged out (pool adjacent violators).

use serde::{Deserialize, Serialize};

use super::knob::Knob;

/// What was measured at one setting in one layout.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(from = "Packed", into = "Packed")]
pub(super) struct Point {
    pub spot: Spot,
    pub setting: f64,
    /// Mean of what the setting limits: power of a GPU, or its clock.
    pub reading: f64,
    /// Power of the whole workload.
    pub watts: f64,
    pub samples_per_second: f64,
    pub windows: u32,
}

/// As JSON, short: it is written with every window.
type Packed = (u32, u32, f64, f64, f64, f64, u32);

impl From<Packed> for Point {
    fn from((replicas, threads, setting, reading, watts, samples_per_second, windows): Packed) -> Self {
        Self { spot: Spot { replicas, threads }, setting, reading, watts, samples_per_second, windows }
    }
}

impl From<Point> for Packed {
    fn from(p: Point) -> Self {
        (p.spot.replicas, p.spot.threads, p.setting, p.reading, p.watts, p.samples_per_second, p.windows)
    }
}

/// The part of a layout that only a restart changes; 0 where it is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Spot {
    pub replicas: u32,
    pub threads: u32,
}

/// Means forget what lies further back than this many windows.
const MEMORY: u32 = 30;

impl Point {
    pub fn add(&mut self, reading: f64, watts: f64, samples_per_second: f64) {
        let weight = 1.0 / f64::from(self.windows.min(MEMORY - 1) + 1);
        let mean = |old: &mut f64, new: f64| *old = six_digits(*old + weight * (new - *old));
        mean(&mut self.reading, reading);
        mean(&mut self.watts, watts);
        mean(&mut self.samples_per_second, samples_per_second);
        self.windows = self.windows.saturating_add(1).min(9_999);
    }

    pub fn joules_per_sample(&self) -> f64 {
        self.watts / self.samples_per_second
    }
}

/// Enough for a figure with a noise of a per cent, and short in the state.
pub(super) fn six_digits(value: f64) -> f64 {
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
/// The knob goes down by at most this part beyond what was measured; further where throughput hardly noticed.
const STRIDE: f64 = 0.85;
const LONG_STRIDE: f64 = 0.75;
const HARDLY: f64 = 0.25;
/// Where energy per sample fell by at least this, as a logarithm, towards the highest measured setting, a higher one may be
/// better still.
const WORTH_RISING: f64 = 0.01;
/// Distance of two settings that are compared, as a logarithm.
const GRID: f64 = 0.005;

#[derive(Debug, Clone, Copy)]
struct Node {
    /// Logarithm of the setting in effect.
    at: f64,
    ln_rate: f64,
    ln_watts: f64,
    weight: f64,
}

#[derive(Debug, Clone)]
pub(super) struct Curve<'a> {
    knob: &'a Knob,
    /// By setting, ascending; at least one.
    nodes: Vec<Node>,
    /// The setting from which on nothing is held back, as a logarithm, where that was measured.
    free: Option<f64>,
}

/// What a setting is expected to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Expected {
    pub samples_per_second: f64,
    pub watts: f64,
    /// Measured on both sides.
    pub inside: bool,
}

impl Expected {
    pub fn joules_per_sample(&self) -> f64 {
        self.watts / self.samples_per_second
    }
}

/// What is possible at a setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    pub samples_per_second: (f64, f64),
    pub watts: (f64, f64),
}

/// Exponents within which throughput and power follow a setting beyond what was measured.
const STEEPEST: f64 = 1.6;

/// The best setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Best {
    pub setting: f64,
    pub expected: Expected,
    /// Throughput is enough.
    pub feasible: bool,
    /// It was measured nearby; else it is only the next to try.
    pub settled: bool,
}

impl<'a> Curve<'a> {
    /// `None` without any point that can be used.
    pub fn of<'p>(points: impl IntoIterator<Item = &'p Point>, knob: &'a Knob) -> Option<Self> {
        let usable = |p: &&Point| p.samples_per_second > 0.0 && p.watts > 0.0 && p.windows > 0;
        let points: Vec<&Point> = points.into_iter().filter(usable).collect();
        let free = points.iter().find(|p| p.setting >= knob.top).map(|p| p.reading.min(knob.top).max(knob.least).ln());
        let mut nodes: Vec<Node> = points
            .iter()
            .map(|p| Node {
                at: if p.setting >= knob.top { free.unwrap_or(0.0) } else { p.setting.ln() },
                ln_rate: p.samples_per_second.ln(),
                ln_watts: p.watts.ln(),
                weight: f64::from(p.windows.min(MEMORY)),
            })
            .collect();
        nodes.sort_by(|a, b| a.at.total_cmp(&b.at));
        let mut merged: Vec<Node> = Vec::with_capacity(nodes.len());
        for node in nodes {
            match merged.last_mut() {
                Some(last) if node.at - last.at < SAME => last.absorb(&node),
                _ => merged.push(node),
            }
        }
        pool(&mut merged);
        (!merged.is_empty()).then_some(Self { knob, nodes: merged, free })
    }

    /// Logarithm of a setting; nothing is held back above the free one.
    fn place(&self, setting: f64) -> f64 {
        let at = setting.ln();
        self.free.map_or(at, |free| at.min(free))
    }

    /// What is expected at a setting.
    pub fn at(&self, setting: f64) -> Expected {
        self.expected(self.place(setting))
    }

    /// What is possible at a setting: one value between measured points, and beyond them whatever physics allows.
    pub fn range(&self, setting: f64) -> Range {
        let at = self.place(setting);
        let expected = self.expected(at);
        let (first, last) = (self.nodes[0], self.nodes[self.nodes.len() - 1]);
        let span = |from: &Node| {
            let far = (STEEPEST * (at - from.at)).exp();
            let (rate, watts) = (from.ln_rate.exp(), from.ln_watts.exp());
            let ends = |value: f64| (value.min(value * far), value.max(value * far));
            Range { samples_per_second: ends(rate), watts: ends(watts) }
        };
        if at < first.at - SAME {
            span(&first)
        } else if at > last.at + SAME {
            span(&last)
        } else {
            let exactly = |value: f64| (value, value);
            Range { samples_per_second: exactly(expected.samples_per_second), watts: exactly(expected.watts) }
        }
    }

    fn expected(&self, at: f64) -> Expected {
        let (first, last) = (self.nodes[0], self.nodes[self.nodes.len() - 1]);
        let (ln_rate, ln_watts) = if at < first.at {
            let (rate_slope, watts_slope) = self.slopes();
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
        Expected { samples_per_second: ln_rate.exp(), watts: ln_watts.exp(), inside }
    }

    /// How throughput and power fall below the lowest point, as exponents.
    fn slopes(&self) -> (f64, f64) {
        let prior = self.knob.prior();
        match self.nodes.as_slice() {
            [a, b, ..] => {
                let run = b.at - a.at;
                // Further down it is steeper, never flatter.
                let rate = ((b.ln_rate - a.ln_rate) / run * 1.3 + 0.02).clamp(0.02, 2.0);
                (rate, ((b.ln_watts - a.ln_watts) / run).clamp(0.2, prior.1.max(1.0)))
            }
            _ => prior,
        }
    }

    /// The setting of least energy per sample among those with at least this throughput; also one that is a stride beyond what
    /// was measured.
    pub fn best(&self, samples_per_second_min: f64) -> Best {
        self.least(samples_per_second_min, true)
    }

    /// The same among what was measured.
    pub fn best_measured(&self, samples_per_second_min: f64) -> Best {
        self.least(samples_per_second_min, false)
    }

    /// The highest measured throughput, and the energy per sample there.
    pub fn fastest(&self) -> Expected {
        self.expected(self.nodes[self.nodes.len() - 1].at)
    }

    fn least(&self, samples_per_second_min: f64, beyond: bool) -> Best {
        let (first, last) = (self.nodes[0], self.nodes[self.nodes.len() - 1]);
        let least = self.knob.least.ln();
        let stride = if self.nodes.len() > 1 && self.slopes().0 < HARDLY { LONG_STRIDE } else { STRIDE };
        let low = if beyond { least.max(first.at + stride.ln()).min(first.at) } else { first.at };
        let high = self.free.unwrap_or(last.at);
        let steps = ((high - low) / GRID).ceil().max(1.0);
        let candidates = (0..=steps as u32).map(|step| low + (high - low) * f64::from(step) / steps);
        // Ties and what differs by less than a hair go to the higher setting.
        let mut best: Option<(f64, Expected)> = None;
        for at in candidates {
            let expected = self.expected(at);
            let enough = expected.samples_per_second >= samples_per_second_min * (1.0 - 1e-9);
            if enough && best.is_none_or(|(_, best)| expected.joules_per_sample() <= best.joules_per_sample() * 1.0002) {
                best = Some((at, expected));
            }
        }
        let feasible = best.is_some();
        let (at, expected) = best.unwrap_or((high, self.expected(high)));
        let near = self.nodes.iter().any(|node| (node.at - at).abs() <= VOUCHES);
        let free = self.free.is_some_and(|free| at >= free - SAME);
        let setting = if free || !feasible { self.knob.top } else { self.knob.settable(at.exp()) };
        // A single point says nothing about the way down, unless there is none.
        let explored = self.nodes.len() > 1 || first.at <= least + SAME;
        if self.free.is_none() && self.knob.top.ln() > last.at + SAME {
            // What lies above was never measured: where it may be needed, or better, it comes next.
            if !feasible {
                let short = samples_per_second_min / last.ln_rate.exp();
                let setting = self.knob.settable(1.02 * last.at.exp() * short.powi(2).max(1.05));
                return Best { setting, expected, feasible, settled: false };
            }
            let below =
                self.nodes.iter().rev().nth(1).map(|node| (node.ln_watts - node.ln_rate) - (last.ln_watts - last.ln_rate));
            if at >= last.at - SAME && below.is_some_and(|rises| rises > WORTH_RISING) {
                return Best { setting: self.knob.settable((at - STRIDE.ln()).exp()), expected, feasible, settled: false };
            }
        }
        Best { setting, expected, feasible, settled: near && (explored || !feasible) }
    }
}

impl Node {
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
fn pool(nodes: &mut [Node]) {
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
