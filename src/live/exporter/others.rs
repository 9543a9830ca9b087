//! Sums of workloads without series of their own.

use std::collections::BTreeMap;

use eadt_schemas::v1::Origin;

use super::WorkloadSeries;

/// Energy and savings on record of several workloads together, by origin. They have no other figures.
#[derive(Debug, Default)]
pub struct OtherWorkloads(BTreeMap<Origin, WorkloadSeries>);

impl OtherWorkloads {
    /// Adds what is on record of one workload, or of several.
    pub fn add(&mut self, of: &WorkloadSeries) {
        let sums = self.0.entry(of.origin).or_default();
        sums.origin = of.origin;
        for (sum, joules) in [
            (&mut sums.record_energy_joules, of.record_energy_joules),
            (&mut sums.saving_joules, of.saving_joules),
            (&mut sums.compared_joules, of.compared_joules),
            (&mut sums.expected_joules, of.expected_joules),
        ] {
            if let Some(joules) = joules {
                *sum.get_or_insert(0.0) += joules;
            }
        }
    }

    /// Returns the sums of each origin.
    pub fn sums(&self) -> impl Iterator<Item = &WorkloadSeries> {
        self.0.values()
    }
}
