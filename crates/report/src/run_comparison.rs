//! Two runs side by side: every workload that both have, the sums of these, and the names of all others.

use serde::Serialize;

use crate::comparison::FigurePair;
use crate::{EnergyReport, ReportComparison, SavingSummary, WorkloadReport};

/// A workload in both runs.
#[derive(Debug, Clone)]
pub struct WorkloadPair<'a> {
    pub this: &'a WorkloadReport,
    pub other: &'a WorkloadReport,
    pub figures: ReportComparison,
}

/// Sums over the workloads that both runs have. A sum is absent if a part of it is not known, and a change if that of a
/// workload is refused.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunTotals {
    pub energy_joules: FigurePair,
    /// Energy of the samples of this run, at the J/sample of each of the two: what compares if they did different work.
    pub same_work_joules: FigurePair,
    /// Workloads in that sum: those whose J/sample compares.
    pub same_work_workloads: usize,
    pub cost: FigurePair,
    pub co2_grams: FigurePair,
}

/// Two runs, compared workload by workload.
#[derive(Debug, Clone)]
pub struct RunComparison<'a> {
    /// Those that used most energy in this run come first.
    pub pairs: Vec<WorkloadPair<'a>>,
    /// Names of the workloads that only this run has.
    pub only_this: Vec<&'a str>,
    /// Names of the workloads that only the other run has.
    pub only_other: Vec<&'a str>,
    /// Notes on unreadable records, each with its run.
    pub source_notes: Vec<String>,
}

impl<'a> RunComparison<'a> {
    /// Compares a run with another one.
    pub fn of(this: &'a EnergyReport, other: &'a EnergyReport) -> Self {
        let pair = |this: &'a WorkloadReport| {
            let other = find(other, &this.workload)?;
            Some(WorkloadPair { this, other, figures: ReportComparison::of(this, other) })
        };
        let pairs = this.by_energy().into_iter().filter_map(pair).collect();
        let notes_of = |run: &EnergyReport, name: &str| -> Vec<String> {
            run.source_notes.iter().map(|note| format!("{name}: {note}")).collect()
        };
        Self {
            pairs,
            only_this: names_missing(this, other),
            only_other: names_missing(other, this),
            source_notes: [notes_of(this, "this run"), notes_of(other, "the other run")].concat(),
        }
    }

    /// Returns whether a workload did different work in the two runs.
    pub fn is_of_different_work(&self) -> bool {
        self.pairs.iter().any(|pair| pair.figures.is_of_different_work())
    }

    /// Returns the sums over the workloads of both runs.
    pub fn totals(&self) -> RunTotals {
        let this = SavingSummary::of(self.pairs.iter().map(|pair| pair.this));
        let other = SavingSummary::of(self.pairs.iter().map(|pair| pair.other));
        let is_refused = self.pairs.iter().any(|pair| !pair.figures.refusals.is_empty());
        let is_sum_refused = is_refused || self.is_of_different_work();
        let pair = |of: fn(&SavingSummary) -> Option<f64>, is_refused: bool| FigurePair::of(of(&this), of(&other), is_refused);
        let (same_work, workloads) = self.same_work();
        RunTotals {
            same_work_joules: same_work,
            same_work_workloads: workloads,
            energy_joules: pair(|sums| sums.energy_joules.filter(|_| !sums.lacks_energy), is_sum_refused),
            cost: pair(|sums| sums.cost, is_sum_refused || this.currency != other.currency),
            co2_grams: pair(|sums| sums.co2_grams, is_sum_refused),
        }
    }

    /// Returns the energy of the samples of this run at the J/sample of each run, and of how many workloads: those whose J/sample
    /// compares.
    fn same_work(&self) -> (FigurePair, usize) {
        let of = |pair: &WorkloadPair<'_>| {
            let FigurePair { this, other, change_ratio } = pair.figures.joules_per_sample;
            change_ratio?;
            Some([this? * pair.this.samples?, other? * pair.this.samples?])
        };
        let compared: Vec<[f64; 2]> = self.pairs.iter().filter_map(of).collect();
        let sum = |at: usize| (!compared.is_empty()).then(|| compared.iter().map(|joules| joules[at]).sum::<f64>());
        (FigurePair::of(sum(0), sum(1), false), compared.len())
    }
}

fn find<'a>(run: &'a EnergyReport, name: &str) -> Option<&'a WorkloadReport> {
    run.workloads.iter().find(|it| it.workload == name)
}

/// Returns the names of a run's workloads that the other one lacks.
fn names_missing<'a>(run: &'a EnergyReport, other: &EnergyReport) -> Vec<&'a str> {
    run.workloads.iter().map(|it| it.workload.as_str()).filter(|name| find(other, name).is_none()).collect()
}
