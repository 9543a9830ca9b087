//! Two runs side by side: every workload that both have, the sums of these, and the names of all others.

use eadt_schemas::counts::{counted, list_first};
use serde::Serialize;

use crate::comparison::FigurePair;
use crate::figures::GPUS_WITHOUT_WORKLOAD;
use crate::render::NAMES_SHOWN;
use crate::{EnergyReport, ReportComparison, SavingSummary, WorkloadReport};

/// A workload in both runs.
#[derive(Debug, Clone)]
pub struct WorkloadPair<'a> {
    pub this: &'a WorkloadReport,
    pub other: &'a WorkloadReport,
    pub figures: ReportComparison,
}

/// Sums over the workloads of both runs whose energy is known in both. A sum of cost or CO₂ is absent if a part of it is not known,
/// and a change if that of a workload is refused.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RunTotals {
    pub energy_joules: FigurePair,
    /// Workloads in the sums of energy, cost and CO₂: those whose energy is known in both runs, without GPUs that were without work
    /// for a different time.
    pub energy_workloads: usize,
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

    /// Returns the names of the workloads that are in no sum: their energy is not known in one of the runs.
    pub fn without_energy(&self) -> Vec<&'a str> {
        self.pairs.iter().filter(|pair| !has_energy(pair)).map(|pair| pair.this.workload.as_str()).collect()
    }

    /// Returns a note on workloads that are in no sum; `None` if there are none, or if they are all.
    pub fn energy_note(&self) -> Option<String> {
        let notes: Vec<String> = [self.unknown_energy_note(), self.idle_energy_note()].into_iter().flatten().collect();
        (!notes.is_empty()).then(|| notes.join("; "))
    }

    /// Returns a note on GPUs without work that are in no sum although their energy is known; `None` if there are none.
    fn idle_energy_note(&self) -> Option<String> {
        let known = self.pairs.iter().filter(|pair| has_energy(pair)).count();
        (self.summed().len() < known).then(|| {
            format!(
                "GPUs were without work for a different time in the other run, so that no sum of energy, cost or CO₂ has the energy of \
                 {GPUS_WITHOUT_WORKLOAD}"
            )
        })
    }

    /// Returns a note on workloads with unknown energy; `None` if there are none, or if they are all.
    fn unknown_energy_note(&self) -> Option<String> {
        let names = self.without_energy();
        (!names.is_empty() && names.len() < self.pairs.len()).then(|| {
            format!(
                "the energy of {} of {} is not known in one of the runs, so that no sum of energy, cost or CO₂ has it: {}",
                names.len(),
                counted(self.pairs.len(), "workload"),
                list_first(&names, NAMES_SHOWN)
            )
        })
    }

    /// Returns whether a workload did different numbers of samples in the two runs.
    pub fn has_different_samples(&self) -> bool {
        self.pairs.iter().any(|pair| pair.figures.has_different_samples())
    }

    /// Returns the pairs that are summed up: those with known energy. GPUs that were without work for a different time are left out
    /// unless they are alone: the work of the others decides whether a sum compares.
    fn summed(&self) -> Vec<&WorkloadPair<'a>> {
        let known = || self.pairs.iter().filter(|pair| has_energy(pair));
        let has_others = known().any(|pair| !is_without_work(pair));
        let is_left_out = |pair: &WorkloadPair<'_>| has_others && is_without_work(pair) && pair.figures.is_refused_by_work;
        known().filter(|pair| !is_left_out(pair)).collect()
    }

    /// Returns the sums over the workloads of both runs.
    pub fn totals(&self) -> RunTotals {
        let summed = self.summed();
        let this = SavingSummary::of(summed.iter().map(|pair| pair.this));
        let other = SavingSummary::of(summed.iter().map(|pair| pair.other));
        // No decision changes GPUs without work: beside others, the same energy of them is no sign of a replay.
        let has_others = summed.iter().any(|pair| !is_without_work(pair));
        let is_passed_over = |pair: &WorkloadPair<'_>| has_others && is_without_work(pair) && pair.figures.is_refused_as_equal;
        let is_sum_refused = summed.iter().any(|pair| !pair.figures.refusals.is_empty() && !is_passed_over(pair));
        let pair = |of: fn(&SavingSummary) -> Option<f64>, is_refused: bool| FigurePair::of(of(&this), of(&other), is_refused);
        let (same_work, workloads) = self.same_work();
        RunTotals {
            same_work_joules: same_work,
            same_work_workloads: workloads,
            energy_joules: pair(|sums| sums.energy_joules, is_sum_refused),
            energy_workloads: summed.len(),
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

fn has_energy(pair: &WorkloadPair<'_>) -> bool {
    pair.this.energy_joules.and(pair.other.energy_joules).is_some()
}

fn is_without_work(pair: &WorkloadPair<'_>) -> bool {
    pair.this.workload == GPUS_WITHOUT_WORKLOAD
}

fn find<'a>(run: &'a EnergyReport, name: &str) -> Option<&'a WorkloadReport> {
    run.workloads.iter().find(|it| it.workload == name)
}

/// Returns the names of a run's workloads that the other one lacks.
fn names_missing<'a>(run: &'a EnergyReport, other: &EnergyReport) -> Vec<&'a str> {
    run.workloads.iter().map(|it| it.workload.as_str()).filter(|name| find(other, name).is_none()).collect()
}
