//! One tree. All features of a node are looked at together: two passes over its rows, each a vector of features wide.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::samples::{LANES, PackedSamples};
use super::{ForestSettings, LEAF, TreeNode};

/// The state that trees grown after one another share: its buffers.
#[derive(Debug)]
pub(super) struct TreeGrower<'a> {
    data: &'a PackedSamples<'a>,
    /// Rows, those of a node side by side.
    order: Vec<u32>,
    /// Right-hand rows while a node is split.
    spare: Vec<u32>,
    /// Targets of a node's rows, relative to their mean.
    centred: Vec<f32>,
    low: Vec<[f32; LANES]>,
    high: Vec<[f32; LANES]>,
    cut: Vec<[f32; LANES]>,
    /// The gain of each feature's cut, or [`REFUSED`].
    score: Vec<[f32; LANES]>,
    /// Features in the order in which a draw takes them.
    drawn: Vec<u32>,
}

/// A stretch of `order` that becomes a node.
#[derive(Debug, Clone, Copy)]
struct PendingNode {
    start: usize,
    end: usize,
    /// The split whose right child this is.
    parent: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct NodeSplit {
    feature: u32,
    cut: f32,
}

/// Below every score.
const REFUSED: f32 = -1.0;

impl<'a> TreeGrower<'a> {
    pub fn new(data: &'a PackedSamples<'a>) -> Self {
        let vectors = || vec![[0.0; LANES]; data.chunks];
        Self {
            data,
            order: Vec::with_capacity(data.targets.len()),
            spare: Vec::with_capacity(data.targets.len()),
            centred: Vec::with_capacity(data.targets.len()),
            low: vectors(),
            high: vectors(),
            cut: vectors(),
            score: vectors(),
            drawn: Vec::with_capacity(data.width),
        }
    }

    /// Returns the tree of this number: it depends on nothing that another tree did.
    pub fn tree(&mut self, settings: &ForestSettings, tried: u32, number: u32) -> Vec<TreeNode> {
        let rows = self.data.targets.len();
        let mut random = Pcg64Mcg::seed_from_u64(mixed(settings.seed, number));
        self.order.clear();
        self.order.extend(0..rows as u32);
        let mut nodes: Vec<TreeNode> = Vec::with_capacity(2 * rows / settings.leaf_min.max(1) as usize);
        let mut tasks = vec![PendingNode { start: 0, end: rows, parent: None }];
        while let Some(task) = tasks.pop() {
            let at = nodes.len();
            if let Some(parent) = task.parent {
                nodes[parent].right = at as u32;
            }
            let mean = self.centre(task);
            let split = mean.varies.then(|| self.best_split(task, settings.leaf_min, tried, &mut random)).flatten();
            let Some(split) = split else {
                nodes.push(TreeNode { value: mean.value as f32, feature: LEAF, right: 0 });
                continue;
            };
            nodes.push(TreeNode { value: split.cut, feature: split.feature, right: 0 });
            let middle = self.part(task, split);
            tasks.push(PendingNode { start: middle, end: task.end, parent: Some(at) });
            tasks.push(PendingNode { start: task.start, end: middle, parent: None });
        }
        nodes
    }

    /// Returns the mean target of a node; fills `centred`.
    fn centre(&mut self, task: PendingNode) -> TargetMean {
        let rows = &self.order[task.start..task.end];
        let targets = self.data.targets;
        let first = targets[rows[0] as usize];
        let (mut sum, mut varies) = (0.0, false);
        for row in rows {
            let target = targets[*row as usize];
            sum += target;
            varies |= target != first;
        }
        let value = if varies { sum / rows.len() as f64 } else { first };
        self.centred.clear();
        if varies {
            self.centred.extend(rows.iter().map(|row| (targets[*row as usize] - value) as f32));
        }
        TargetMean { value, varies }
    }

    /// Draws one random cut per feature and returns the one that reduces variance most; if several do, one of them at random.
    /// `None` if no feature varies or every cut leaves too few rows on a side.
    fn best_split(&mut self, task: PendingNode, leaf_min: u32, tried: u32, random: &mut Pcg64Mcg) -> Option<NodeSplit> {
        if task.end - task.start == 2 && leaf_min == 1 {
            return self.split_of_two(task, random);
        }
        let rows = &self.order[task.start..task.end];
        let (data, total, least) = (self.data, rows.len() as f32, leaf_min as f32);
        for chunk in 0..data.chunks {
            let mut low = data.vector(rows[0], chunk);
            let mut high = low;
            for row in &rows[1..] {
                let values = data.vector(*row, chunk);
                for lane in 0..LANES {
                    low[lane] = if values[lane] < low[lane] { values[lane] } else { low[lane] };
                    high[lane] = if values[lane] > high[lane] { values[lane] } else { high[lane] };
                }
            }
            let mut cut = [0.0; LANES];
            for pair in 0..LANES / 2 {
                let word = random.next_u64();
                for (half, bits) in [word as u32, (word >> 32) as u32].into_iter().enumerate() {
                    let lane = 2 * pair + half;
                    cut[lane] = cut_between(low[lane], high[lane], bits);
                }
            }
            let (mut sum, mut count) = ([0.0_f32; LANES], [0.0_f32; LANES]);
            for (row, target) in rows.iter().zip(&self.centred) {
                let (values, target) = (data.vector(*row, chunk), *target);
                // Products instead of branches: this becomes vector instructions.
                for lane in 0..LANES {
                    let left = f32::from(u8::from(values[lane] <= cut[lane]));
                    sum[lane] += left * target;
                    count[lane] += left;
                }
            }
            let mut score = [0.0; LANES];
            for lane in 0..LANES {
                let (left, right) = (count[lane], total - count[lane]);
                // Variance that the cut takes away, times the number of rows; the sums are relative to the mean.
                let gain = sum[lane] * sum[lane] * (total / (left * right));
                let allowed = left >= least && right >= least && low[lane] < high[lane];
                score[lane] = if allowed { gain } else { REFUSED };
            }
            (self.low[chunk], self.high[chunk], self.cut[chunk], self.score[chunk]) = (low, high, cut, score);
        }
        if tried as usize == data.width {
            self.best_of(0..tried, random)
        } else {
            self.draw(tried, random);
            let drawn = std::mem::take(&mut self.drawn);
            let best = self.best_of(drawn.iter().copied(), random);
            self.drawn = drawn;
            best
        }
    }

    fn best_of(&self, features: impl Iterator<Item = u32>, random: &mut Pcg64Mcg) -> Option<NodeSplit> {
        let (mut best, mut most, mut ties) = (None, REFUSED, 1_u32);
        for feature in features {
            let score = self.score[feature as usize / LANES][feature as usize % LANES];
            if score > most {
                (best, most, ties) = (Some(feature), score, 1);
            } else if score == most && best.is_some() {
                ties += 1;
                if below(ties, random) == 0 {
                    best = Some(feature);
                }
            }
        }
        best.map(|feature| NodeSplit { feature, cut: self.cut[feature as usize / LANES][feature as usize % LANES] })
    }

    /// Splits two rows, which is about a third of all splits: every cut of every feature that separates them is equally good.
    fn split_of_two(&mut self, task: PendingNode, random: &mut Pcg64Mcg) -> Option<NodeSplit> {
        let [one, two] = [self.order[task.start], self.order[task.start + 1]];
        let value = |row: u32, feature: u32| self.data.vector(row, feature as usize / LANES)[feature as usize % LANES];
        self.drawn.clear();
        self.drawn.extend((0..self.data.width as u32).filter(|feature| value(one, *feature) != value(two, *feature)));
        if self.drawn.is_empty() {
            return None;
        }
        let feature = self.drawn[below(self.drawn.len() as u32, random) as usize];
        let (a, b) = (value(one, feature), value(two, feature));
        Some(NodeSplit { feature, cut: cut_between(a.min(b), a.max(b), random.next_u32()) })
    }

    fn varies(&self, feature: u32) -> bool {
        let (chunk, lane) = (feature as usize / LANES, feature as usize % LANES);
        self.low[chunk][lane] < self.high[chunk][lane]
    }

    /// Draws features that vary in the node.
    fn draw(&mut self, tried: u32, random: &mut Pcg64Mcg) {
        let mut drawn = std::mem::take(&mut self.drawn);
        drawn.clear();
        drawn.extend((0..self.data.width as u32).filter(|feature| self.varies(*feature)));
        let tried = (tried as usize).min(drawn.len());
        for i in 0..tried {
            let j = i + below((drawn.len() - i) as u32, random) as usize;
            drawn.swap(i, j);
        }
        drawn.truncate(tried);
        self.drawn = drawn;
    }

    /// Puts a node's rows in the order left, right; gives where right begins.
    fn part(&mut self, task: PendingNode, split: NodeSplit) -> usize {
        let (chunk, lane) = (split.feature as usize / LANES, split.feature as usize % LANES);
        self.spare.clear();
        let mut middle = task.start;
        for i in task.start..task.end {
            let row = self.order[i];
            if self.data.vector(row, chunk)[lane] <= split.cut {
                self.order[middle] = row;
                middle += 1;
            } else {
                self.spare.push(row);
            }
        }
        self.order[middle..task.end].copy_from_slice(&self.spare);
        middle
    }
}

#[derive(Debug, Clone, Copy)]
struct TargetMean {
    value: f64,
    varies: bool,
}

/// Returns a cut from `low`, included, to `high`, excluded.
fn cut_between(low: f32, high: f32, bits: u32) -> f32 {
    // 24 bits: every part of [0, 1) that is drawn is exact.
    let part = (bits >> 8) as f32 * (1.0 / 16_777_216.0);
    let cut = low + part * (high - low);
    // Rounding may reach the upper end, behind which nothing would be left.
    if cut < high { cut } else { low }
}

/// Returns a whole number below `limit`, by multiplication; the bias for so few is below 1e-6.
fn below(limit: u32, random: &mut Pcg64Mcg) -> u32 {
    ((u64::from(random.next_u32()) * u64::from(limit)) >> 32) as u32
}

// SplitMix64's finaliser over seed and number: neighbouring trees are unrelated.
fn mixed(seed: u64, number: u32) -> u64 {
    let mut z = seed.wrapping_add((u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
