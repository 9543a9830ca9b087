//! Two runs side by side: every workload that both have, the sums of these, and the names of all others.

use serde::Serialize;

use crate::comparison::FigurePair;
use crate::{EnergyReport, ReportComparison, SavingSummary, WorkloadReport};

/// Most by which the samples of one workload differ in two runs of the same work, as a part of them.
const SAMPLES_APART: f64 = 0.01;

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
    /// Notes on what could not be read, each with its run.
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

    /// Returns whether a workload did different work in the two: its samples differ by more than 1 %.
    pub fn is_of_different_work(&self) -> bool {
        let differs = |pair: &WorkloadPair<'_>| {
            let samples = pair.this.samples.zip(pair.other.samples);
            samples.is_some_and(|(this, other)| (this - other).abs() > SAMPLES_APART * this.max(other))
        };
        self.pairs.iter().any(differs)
    }

    /// Returns the sums over the workloads of both runs.
    pub fn totals(&self) -> RunTotals {
        let this = SavingSummary::of(self.pairs.iter().map(|pair| pair.this));
        let other = SavingSummary::of(self.pairs.iter().map(|pair| pair.other));
        let is_refused = self.pairs.iter().any(|pair| !pair.figures.refusals.is_empty());
        let pair = |of: fn(&SavingSummary) -> Option<f64>, is_refused: bool| FigurePair::of(of(&this), of(&other), is_refused);
        let for_same_work = |joules_per_sample: fn(&ReportComparison) -> Option<f64>| {
            let of = |pair: &WorkloadPair<'_>| Some(joules_per_sample(&pair.figures)? * pair.this.samples?);
            self.pairs.iter().map(of).sum::<Option<f64>>()
        };
        let same_work =
            [for_same_work(|figures| figures.joules_per_sample.this), for_same_work(|figures| figures.joules_per_sample.other)];
        let is_work_refused = self.pairs.iter().any(|pair| pair.figures.joules_per_sample.change_ratio.is_none());
        RunTotals {
            same_work_joules: FigurePair::of(same_work[0], same_work[1], is_work_refused),
            energy_joules: pair(|sums| sums.energy_joules.filter(|_| !sums.lacks_energy), is_refused),
            cost: pair(|sums| sums.cost, is_refused || this.currency != other.currency),
            co2_grams: pair(|sums| sums.co2_grams, is_refused),
        }
    }
}

fn find<'a>(run: &'a EnergyReport, name: &str) -> Option<&'a WorkloadReport> {
    run.workloads.iter().find(|it| it.workload == name)
}

/// Returns the names of a run's workloads that the other one lacks.
fn names_missing<'a>(run: &'a EnergyReport, other: &EnergyReport) -> Vec<&'a str> {
    run.workloads.iter().map(|it| it.workload.as_str()).filter(|name| find(other, name).is_none()).collect()
}
