//! The record beside other runs, workload by workload.

use std::collections::BTreeMap;

use eadt_report::{
    DIFFERENT_WORK, EnergyReport, GPUS_WITHOUT_WORKLOAD, ReportComparison, ReportSettings, SavingSummary, WorkloadReport,
};
use eadt_schemas::v1::Origin;
use serde::{Deserialize, Serialize};

use super::fleet::InvalidQuery;
use super::workload::WorkloadState;
use super::{DEFAULT_ROWS, DashboardModel, rows_of_page};

/// Names of workloads that only one of two runs has: the first ones are shown, all are counted.
const MOST_NAMES: usize = 50;

/// Note for a careful reader.
const WHOLE_RUNS: &str =
    "whole runs are compared, restarts and trials included; that they did the same kind of work is not checked";

/// Another run that the record is compared with.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherRun {
    name: String,
    workloads: BTreeMap<String, WorkloadReport>,
    /// The report on GPUs without a workload.
    idle: Option<WorkloadReport>,
    /// Notes on unreadable records.
    notes: Vec<String>,
}

impl OtherRun {
    /// Takes the report on a run. The name is shown and appears in addresses.
    pub fn new(name: String, report: EnergyReport) -> Self {
        let EnergyReport { workloads, source_notes } = report.without_charts();
        let mut workloads: BTreeMap<String, WorkloadReport> =
            workloads.into_iter().map(|report| (report.workload.clone(), report)).collect();
        let idle = workloads.remove(GPUS_WITHOUT_WORKLOAD);
        Self { name, workloads, idle, notes: source_notes }
    }

    fn facts(&self) -> RunFacts {
        let sums = SavingSummary::of(self.workloads.values().chain(&self.idle));
        RunFacts {
            name: self.name.clone(),
            workloads: self.workloads.len(),
            energy_joules: sums.energy_joules,
            origin: sums.origin,
        }
    }
}

/// A run of the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunFacts {
    pub name: String,
    pub workloads: usize,
    /// With that of GPUs without a workload, as in the report.
    pub energy_joules: Option<f64>,
    /// The origin of all; absent if they differ.
    pub origin: Option<Origin>,
}

/// The runs that the record can be compared with.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunList {
    pub runs: Vec<RunFacts>,
}

impl RunList {
    /// Lists the runs in the order in which they were given.
    pub fn of(runs: &[OtherRun]) -> Self {
        Self { runs: runs.iter().map(OtherRun::facts).collect() }
    }
}

/// The run to compare with, and a selection of workloads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunQuery {
    /// The name of the other run.
    pub run: String,
    /// A part of the workload's name, in either case.
    pub q: String,
    /// Number of rows to skip, those with the most energy first.
    pub skip: usize,
    pub limit: Option<usize>,
}

/// A workload that both runs have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunRow {
    pub workload: String,
    pub this_origin: Option<Origin>,
    pub other_origin: Origin,
    /// `this` is the record of the page. Absent: `refusal` has the reason.
    pub figures: Option<ReportComparison>,
    pub refusal: Option<String>,
}

/// Workloads that only one of the two runs has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UnmatchedWorkloads {
    /// The first ones by name.
    pub names: Vec<String>,
    pub count: usize,
}

impl UnmatchedWorkloads {
    fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut found = Self::default();
        for name in names {
            found.count += 1;
            if found.names.len() < MOST_NAMES {
                found.names.push(name.to_owned());
            }
        }
        found
    }
}

/// The record beside another run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunPage {
    pub this: RunFacts,
    pub other: RunFacts,
    pub rows: Vec<RunRow>,
    /// Workloads of both runs that the query lets through.
    pub matching: usize,
    pub only_this: UnmatchedWorkloads,
    pub only_other: UnmatchedWorkloads,
    /// Notes for a careful reader.
    pub notes: Vec<String>,
}

impl DashboardModel {
    /// Compares the record with another run.
    pub fn compare_run(&self, runs: &[OtherRun], query: &RunQuery) -> Result<RunPage, InvalidQuery> {
        let run = runs.iter().find(|run| run.name == query.run).ok_or_else(|| no_run(runs, &query.run))?;
        let wanted = query.q.to_lowercase();
        let mut both: Vec<(&str, &WorkloadState, &WorkloadReport)> = self
            .workloads
            .iter()
            .filter_map(|(name, state)| Some((&**name, state, run.workloads.get(&**name)?)))
            .filter(|(name, ..)| name.to_lowercase().contains(&wanted))
            .collect();
        let energy = |state: &WorkloadState| state.figures.as_ref().and_then(|figures| figures.energy_joules).unwrap_or(-1.0);
        both.sort_by(|a, b| energy(b.1).total_cmp(&energy(a.1)).then_with(|| a.0.cmp(b.0)));
        let limit = rows_of_page(query.limit, DEFAULT_ROWS);
        let rows = both.iter().skip(query.skip).take(limit).map(|(name, state, other)| self.run_row(name, state, other));
        let rows: Vec<RunRow> = rows.collect();
        let differs = rows.iter().filter_map(|row| row.figures.as_ref()).any(ReportComparison::has_different_samples);
        Ok(RunPage {
            this: self.facts_of_this_run(),
            other: run.facts(),
            rows,
            matching: both.len(),
            only_this: UnmatchedWorkloads::of(
                self.workloads.keys().map(|name| &**name).filter(|name| !run.workloads.contains_key(*name)),
            ),
            only_other: UnmatchedWorkloads::of(
                run.workloads.keys().map(String::as_str).filter(|name| !self.workloads.contains_key(*name)),
            ),
            notes: std::iter::once(WHOLE_RUNS.to_owned())
                .chain(differs.then(|| DIFFERENT_WORK.to_owned()))
                .chain(run.notes.iter().map(|note| format!("the other run: {note}")))
                .collect(),
        })
    }

    fn facts_of_this_run(&self) -> RunFacts {
        let idle = self.idle_report();
        let sums = SavingSummary::of(self.workloads.values().filter_map(|state| state.figures.as_deref()).chain(&idle));
        RunFacts {
            name: self.source.place.clone(),
            workloads: self.workloads.len(),
            energy_joules: sums.energy_joules,
            origin: sums.origin,
        }
    }

    fn run_row(&self, name: &str, state: &WorkloadState, other: &WorkloadReport) -> RunRow {
        let report = if state.is_exact() { self.reporter.workload_report(name, &ReportSettings::default()) } else { None };
        let figures = report.filter(|report| report.windows > 0).map(|this| ReportComparison::of(&this, other));
        let refusal = match (&figures, state.is_exact()) {
            (Some(_), _) => None,
            (None, false) => Some(InvalidQuery::too_long(name).0),
            (None, true) => Some("no window of it has closed in this run".to_owned()),
        };
        RunRow { workload: name.to_owned(), this_origin: state.origin(), other_origin: other.origin, figures, refusal }
    }
}

fn no_run(runs: &[OtherRun], name: &str) -> InvalidQuery {
    if runs.is_empty() {
        return InvalidQuery("there is no other run here: start `eadt dashboard` with --compare OTHER".to_owned());
    }
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    InvalidQuery(format!("no run is named {name:?} here; there are: {}", names.join(", ")))
}
