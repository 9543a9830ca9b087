//! One tree. All features of a node are looked at together: two passes over its rows, each a vector of features wide.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use super::samples::{LANES, Packed};
use super::{ForestSettings, LEAF, Node};

/// The state that trees grown after one another share: its buffers.
#[derive(Debug)]
pub(super) struct Grower<'a> {
    data: &'a Packed<'a>,
    /// Rows, those of a node side by side.
    order: Vec<u32>,
    /// Right-hand rows while a node is split.
    spare: Vec<u32>,
    /// Targets of a node's rows, relative to their mean.
    centred: Vec<f32>,
    low: Vec<[f32; LANES]>,
    high: Vec<[f32; LANES]>,
    cut: Vec<[f32; LANES]>,
    /// Sum of the centred targets that go left, and their number.
    sum: Vec<[f32; LANES]>,
    count: Vec<[f32; LANES]>,
    /// Features in the order in which a draw takes them.
    drawn: Vec<u32>,
}

/// A stretch of `order` that becomes a node.
#[derive(Debug, Clone, Copy)]
struct Task {
    start: usize,
    end: usize,
    /// The split whose right child this is.
    parent: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Split {
    feature: u32,
    cut: f32,
    score: f32,
}

impl<'a> Grower<'a> {
    pub fn new(data: &'a Packed<'a>) -> Self {
        let vectors = || vec![[0.0; LANES]; data.chunks];
        Self {
            data,
            order: Vec::with_capacity(data.targets.len()),
            spare: Vec::with_capacity(data.targets.len()),
            centred: Vec::with_capacity(data.targets.len()),
            low: vectors(),
            high: vectors(),
            cut: vectors(),
            sum: vectors(),
            count: vectors(),
            drawn: Vec::with_capacity(data.width),
        }
    }

    /// The tree of this number: it depends on nothing that another tree did.
    pub fn tree(&mut self, settings: &ForestSettings, tried: u32, number: u32) -> Vec<Node> {
        let rows = self.data.targets.len();
        let mut random = Pcg64Mcg::seed_from_u64(mixed(settings.seed, number));
        self.order.clear();
        self.order.extend(0..rows as u32);
        let mut nodes: Vec<Node> = Vec::with_capacity(2 * rows / settings.leaf_min.max(1) as usize);
        let mut tasks = vec![Task { start: 0, end: rows, parent: None }];
        while let Some(task) = tasks.pop() {
            let at = nodes.len();
            if let Some(parent) = task.parent {
                nodes[parent].right = at as u32;
            }
            let mean = self.centre(task);
            let split = mean.varies.then(|| self.best_split(task, settings.leaf_min, tried, &mut random)).flatten();
            let Some(split) = split else {
                nodes.push(Node { value: mean.value as f32, feature: LEAF, right: 0 });
                continue;
            };
            nodes.push(Node { value: split.cut, feature: split.feature, right: 0 });
            let middle = self.part(task, split);
            tasks.push(Task { start: middle, end: task.end, parent: Some(at) });
            tasks.push(Task { start: task.start, end: middle, parent: None });
        }
        nodes
    }

    /// The mean target of a node; fills `centred`.
    fn centre(&mut self, task: Task) -> Mean {
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
        Mean { value, varies }
    }

    /// Of one random cut a feature the one that takes away most variance; `None` where no feature varies or every cut leaves
    /// too few on a side.
    fn best_split(&mut self, task: Task, leaf_min: u32, tried: u32, random: &mut Pcg64Mcg) -> Option<Split> {
        let rows = &self.order[task.start..task.end];
        let (data, total) = (self.data, rows.len() as f32);
        for chunk in 0..data.chunks {
            let mut low = data.rows[rows[0] as usize * data.chunks + chunk];
            let mut high = low;
            for row in &rows[1..] {
                let values = &data.rows[*row as usize * data.chunks + chunk];
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
                    // 24 bits: every value of [0, 1) that is drawn is exact.
                    let part = (bits >> 8) as f32 * (1.0 / 16_777_216.0);
                    let drawn = low[lane] + part * (high[lane] - low[lane]);
                    // Rounding may reach the upper end, behind which nothing would be left.
                    cut[lane] = if drawn < high[lane] { drawn } else { low[lane] };
                }
            }
            let (mut sum, mut count) = ([0.0_f32; LANES], [0.0_f32; LANES]);
            for (row, target) in rows.iter().zip(&self.centred) {
                let values = &data.rows[*row as usize * data.chunks + chunk];
                for lane in 0..LANES {
                    let left = values[lane] <= cut[lane];
                    sum[lane] += if left { *target } else { 0.0 };
                    count[lane] += if left { 1.0 } else { 0.0 };
                }
            }
            (self.low[chunk], self.high[chunk], self.cut[chunk]) = (low, high, cut);
            (self.sum[chunk], self.count[chunk]) = (sum, count);
        }
        let least = leaf_min as f32;
        let mut best: Option<Split> = None;
        let mut consider = |grower: &Self, feature: u32| {
            let (chunk, lane) = (feature as usize / LANES, feature as usize % LANES);
            let (sum, left) = (grower.sum[chunk][lane], grower.count[chunk][lane]);
            if left >= least && total - left >= least {
                // Variance that the cut takes away, times the number of rows; the sums are relative to the mean.
                let score = sum * sum * (1.0 / left + 1.0 / (total - left));
                if best.is_none_or(|best| score > best.score) {
                    best = Some(Split { feature, cut: grower.cut[chunk][lane], score });
                }
            }
        };
        if tried as usize == data.width {
            (0..tried).filter(|feature| self.varies(*feature)).for_each(|feature| consider(self, feature));
        } else {
            self.draw(tried, random);
            self.drawn.iter().for_each(|feature| consider(self, *feature));
        }
        best
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
            // Lemire's multiply-shift; its bias for so few features is below 1e-8.
            let j = i + ((u64::from(random.next_u32()) * (drawn.len() - i) as u64) >> 32) as usize;
            drawn.swap(i, j);
        }
        drawn.truncate(tried);
        self.drawn = drawn;
    }

    /// Puts a node's rows in the order left, right; gives where right begins.
    fn part(&mut self, task: Task, split: Split) -> usize {
        let (chunk, lane) = (split.feature as usize / LANES, split.feature as usize % LANES);
        self.spare.clear();
        let mut middle = task.start;
        for i in task.start..task.end {
            let row = self.order[i];
            if self.data.rows[row as usize * self.data.chunks + chunk][lane] <= split.cut {
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
struct Mean {
    value: f64,
    varies: bool,
}

// SplitMix64's finaliser over seed and number: neighbouring trees are unrelated.
fn mixed(seed: u64, number: u32) -> u64 {
    let mut z = seed.wrapping_add((u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
