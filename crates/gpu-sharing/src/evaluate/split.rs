//! Division of the groups into those to learn from and those to test.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;

use super::score::CoRunGroup;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TrainTestSplit {
    pub training: Vec<usize>,
    pub testing: Vec<usize>,
}

/// Returns a random part of the groups; at least one on each side.
pub(super) fn by_ratio(groups: usize, ratio: f64, random: &mut Pcg64Mcg) -> TrainTestSplit {
    let mut order: Vec<usize> = (0..groups).collect();
    for i in (1..groups).rev() {
        let j = (u128::from(random.next_u64()) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
    let training = ((groups as f64 * ratio).round() as usize).clamp(1, groups.saturating_sub(1).max(1));
    let testing = order.split_off(training.min(order.len()));
    TrainTestSplit { training: order, testing }
}

/// Groups without this workload against groups with it.
pub(super) fn by_workload(groups: &[CoRunGroup<'_>], workload: &str) -> TrainTestSplit {
    let with = |group: &usize| groups[*group].together.tenants().iter().any(|tenant| tenant.workload() == workload);
    let (testing, training) = (0..groups.len()).partition(with);
    TrainTestSplit { training, testing }
}

#[cfg(test)]
mod tests {
    use rand_pcg::rand_core::SeedableRng;

    use super::*;

    #[test]
    fn every_group_is_on_exactly_one_side() {
        for seed in 0..20 {
            for (groups, ratio, training) in [(121, 0.1, 12), (121, 0.5, 61), (4, 0.01, 1), (4, 0.99, 3)] {
                let split = by_ratio(groups, ratio, &mut Pcg64Mcg::seed_from_u64(seed));
                assert_eq!(split.training.len(), training);
                let mut all = [split.training, split.testing].concat();
                all.sort_unstable();
                assert_eq!(all, (0..groups).collect::<Vec<_>>());
            }
        }
    }
}
