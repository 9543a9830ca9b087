//! Rows of Slurm's jobs and of their steps, whose energy is that of whole nodes.
//!
//! The row of a job has the energy of all its steps. Two rows of one node and time have the same energy twice.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::counts::counted;
use eadt_schemas::v1::Meter;

use super::plan::{FieldSource, NumberColumn, TableMapping, ValueExpression};
use crate::ReadingField;
use crate::absent::is_absent_number;
use crate::quantity::{QuantityCell, parse_quantity};
use crate::table::RowCells;

/// Names of Slurm's columns of jobs, and of when and where they ran.
const JOB_NAMES: [&str; 2] = ["JobID", "JobIDRaw"];
const START_NAME: &str = "Start";
const END_NAME: &str = "End";
const NODES_NAME: &str = "NodeList";
/// Other clusters have other jobs and nodes of the same names.
const CLUSTER_NAME: &str = "Cluster";

/// Slurm's jobs whose rows have energy, which is that of all steps of the job.
#[derive(Debug, Default)]
pub(super) struct JobRows {
    with_energy: BTreeSet<String>,
    /// Lines of steps that came before the row of their job.
    steps: BTreeMap<String, BTreeSet<u64>>,
    /// Rows with energy, and when and where they ran.
    runs: Vec<JobRun>,
    /// Lines of steps with energy of which that is not known.
    unplaced: BTreeMap<String, Vec<u64>>,
}

/// Time and nodes of a job or a step.
#[derive(Debug, Clone)]
struct JobRun {
    line: u64,
    job: String,
    /// Both as Slurm writes them, in order as texts.
    start: String,
    end: String,
    nodes: BTreeSet<String>,
    joules: f64,
}

/// Rows of the same nodes and time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct JobOverlaps {
    /// Lines of steps that lie within another of their job.
    pub(super) within: BTreeSet<u64>,
    /// The lines of two rows that overlap otherwise, and how many do.
    first: Option<(u64, u64)>,
    count: usize,
    /// The line of a step that may overlap another of its job.
    unplaced: Option<u64>,
}

impl JobOverlaps {
    /// Describes the rows that overlap; `None` if there are none.
    pub(super) fn describe(&self) -> Option<String> {
        let Some((line, other)) = self.first else {
            return self.unplaced.map(|line| {
                format!(
                    "steps of one job, first that of line {line}, may have run at the same time on a node: Slurm has the energy of the whole \
                     node for each of them; add the columns {START_NAME}, {END_NAME} and {NODES_NAME}"
                )
            });
        };
        Some(format!(
            "{} run at the same time on a node as a row before, first that of line {line} as that of line {other}: Slurm has the energy of the \
             whole node for each of them, so that it counts twice; import the row of one of them, or the power of the nodes",
            counted(self.count, "row")
        ))
    }
}

impl JobRows {
    /// Notes the job of a row that has its energy; returns whether the row is of a step, such as `101.batch`, of a noted one.
    pub(super) fn note_row(&mut self, plan: &TableMapping, line: u64, cells: &RowCells, meter: Meter) -> bool {
        let energy = plan.figures.iter().find(|figure| figure.adds && figure.field == ReadingField::EnergyJoulesTotal);
        let Some(FieldSource { take: ValueExpression::Columns(columns), .. }) = energy else { return false };
        let cell = |names: &[&str]| {
            let is_wanted = |name: &String| names.iter().any(|wanted| name.eq_ignore_ascii_case(wanted));
            plan.names.iter().position(is_wanted).and_then(|column| cells.get(column))
        };
        let Some(id) = cell(&JOB_NAMES) else { return false };
        let cluster = cell(&[CLUSTER_NAME]).filter(|cluster| !cluster.is_empty());
        let of_cluster = |name: &str| cluster.map_or_else(|| name.to_owned(), |cluster| format!("{cluster}/{name}"));
        let job = id.split_once('.').map(|(job, _)| of_cluster(job));
        let (id, job) = (of_cluster(id), job.as_deref());
        if job.is_some_and(|job| self.with_energy.contains(job)) {
            return true;
        }
        let energies: Vec<f64> = columns.iter().filter_map(|column| energy_of(*column, cells, meter)).collect();
        let joules = (!energies.is_empty()).then(|| energies.iter().sum::<f64>());
        match job {
            Some(job) => {
                self.steps.entry(job.to_owned()).or_default().insert(line);
            }
            None if joules.is_some() => {
                self.with_energy.insert(id.clone());
            }
            None => {}
        }
        if let (Some(joules), Some(start), Some(end), Some(nodes)) =
            (joules, cell(&[START_NAME]), cell(&[END_NAME]), cell(&[NODES_NAME]))
            && is_time(start)
            && is_time(end)
        {
            let (start, end, nodes) = (start.to_owned(), end.to_owned(), expand_nodes(nodes));
            let nodes = nodes.into_iter().map(|node| of_cluster(&node)).collect();
            self.runs.push(JobRun { line, job: job.unwrap_or(&id).to_owned(), start, end, nodes, joules });
        } else if let Some(job) = job.filter(|_| joules.is_some()) {
            self.unplaced.entry(job.to_owned()).or_default().push(line);
        }
        false
    }

    /// Returns the lines of steps whose job has a row with energy, below them.
    pub(super) fn steps_of_jobs_with_energy(&self) -> BTreeSet<u64> {
        let of_jobs = self.steps.iter().filter(|(job, _)| self.with_energy.contains(*job));
        of_jobs.flat_map(|(_, lines)| lines).copied().collect()
    }

    /// Returns the rows of the same nodes and time, apart from the steps whose job has a row.
    pub(super) fn overlaps(&self) -> JobOverlaps {
        let passed_over = self.steps_of_jobs_with_energy();
        let mut runs: Vec<&JobRun> = self.runs.iter().filter(|run| !passed_over.contains(&run.line)).collect();
        // The longest of several runs that begin together comes first.
        runs.sort_by(|a, b| a.start.cmp(&b.start).then(b.end.cmp(&a.end)).then(b.joules.total_cmp(&a.joules)));
        let unplaced = self.unplaced.iter().find(|(job, lines)| lines.len() > 1 && !self.with_energy.contains(*job));
        let unplaced = unplaced.and_then(|(_, lines)| lines.first().copied());
        let mut overlaps = JobOverlaps { unplaced, ..JobOverlaps::default() };
        let mut open: Vec<&JobRun> = Vec::new();
        for run in runs {
            open.retain(|other| other.end > run.start);
            let mut together = open.iter().filter(|other| !other.nodes.is_disjoint(&run.nodes)).peekable();
            let Some(first) = together.peek().copied() else {
                open.push(run);
                continue;
            };
            if together.any(|other| run.is_within(other)) {
                overlaps.within.insert(run.line);
                continue;
            }
            overlaps.count += 1;
            overlaps.first.get_or_insert((run.line, first.line));
            open.push(run);
        }
        overlaps
    }
}

impl JobRun {
    /// Returns whether its energy is in that of another step of the same job.
    fn is_within(&self, other: &Self) -> bool {
        let is_in_time = self.start >= other.start && self.end <= other.end;
        self.job == other.job && is_in_time && self.nodes.is_subset(&other.nodes) && self.joules <= other.joules
    }
}

/// Returns the energy in a cell, if it is above 0; one that can be read in two ways is some.
fn energy_of(column: NumberColumn, cells: &RowCells, meter: Meter) -> Option<f64> {
    match parse_quantity(cells.get(column.index).unwrap_or_default(), None) {
        QuantityCell::Number(joules, _) => {
            Some(joules).filter(|joules| *joules > 0.0 && !is_absent_number(ReadingField::EnergyJoulesTotal, *joules, meter))
        }
        QuantityCell::Ambiguous => Some(0.0),
        QuantityCell::Absent | QuantityCell::UnknownUnit | QuantityCell::NotANumber => None,
    }
}

/// Returns whether a text is a time as Slurm writes it, `2025-02-03T10:00:00`: such texts are in the order of their times.
fn is_time(text: &str) -> bool {
    text.len() == 19 && text.as_bytes()[10] == b'T' && text.starts_with(|first: char| first.is_ascii_digit())
}

/// A list of more nodes is taken as it is.
const MOST_NODES: usize = 4096;

/// Returns the nodes of a list such as `n[1-3,7],gpu01`.
fn expand_nodes(text: &str) -> BTreeSet<String> {
    let (mut depth, mut nodes) = (0_i32, BTreeSet::new());
    let parts = text.split(|c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        match expand_range(part) {
            Some(range) if range.len() + nodes.len() <= MOST_NODES => nodes.extend(range),
            _ => {
                nodes.insert(part.to_owned());
            }
        }
    }
    nodes
}

/// Returns the nodes of `n[01-03,7]`; `None` if it has no such range, or more than one.
fn expand_range(text: &str) -> Option<Vec<String>> {
    let (prefix, rest) = text.split_once('[')?;
    let (ranges, suffix) = rest.split_once(']')?;
    if suffix.contains('[') {
        return None;
    }
    let mut nodes = Vec::new();
    for range in ranges.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (from.parse().ok()?, to.parse().ok()?);
        if last.checked_sub(first)? >= MOST_NODES {
            return None;
        }
        nodes.extend((first..=last).map(|number| format!("{prefix}{number:0width$}{suffix}", width = from.len())));
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_expanded() {
        for (text, nodes) in [
            ("n1", &["n1"][..]),
            ("n[1-3],gpu01", &["gpu01", "n1", "n2", "n3"]),
            ("n[01-02,7]-ib", &["n01-ib", "n02-ib", "n7-ib"]),
            ("r[1-2]n[1-2]", &["r[1-2]n[1-2]"]),
            ("", &[]),
        ] {
            assert_eq!(expand_nodes(text).iter().map(String::as_str).collect::<Vec<_>>(), nodes, "{text}");
        }
    }

    #[test]
    fn rows_of_one_node_and_time_overlap() {
        let run = |line: u64, job: &str, minutes: [u32; 2], nodes: &str, joules: f64| {
            let [start, end] = minutes.map(|minute| format!("2025-02-03T10:{minute:02}:00"));
            JobRun { line, job: job.to_owned(), start, end, nodes: expand_nodes(nodes), joules }
        };
        for (what, runs, within, count) in [
            ("one after the other", vec![run(2, "1", [0, 10], "n1", 9.0), run(3, "1", [10, 20], "n1", 9.0)], vec![], 0),
            ("on two nodes", vec![run(2, "1", [0, 10], "n1", 9.0), run(3, "1", [0, 10], "n2", 9.0)], vec![], 0),
            ("within another", vec![run(2, "1", [5, 10], "n1", 4.0), run(3, "1", [0, 10], "n[1-2]", 9.0)], vec![2], 0),
            ("at the same time", vec![run(2, "1", [0, 10], "n1", 9.0), run(3, "1", [0, 10], "n1", 8.9)], vec![3], 0),
            ("in part", vec![run(2, "1", [0, 10], "n1", 9.0), run(3, "1", [5, 15], "n1", 9.0)], vec![], 1),
            ("two jobs", vec![run(2, "1", [0, 10], "n1", 9.0), run(3, "2", [2, 8], "n1", 5.0)], vec![], 1),
            ("more than what contains it", vec![run(2, "1", [0, 10], "n1", 3.0), run(3, "1", [2, 8], "n1", 5.0)], vec![], 1),
        ] {
            let rows = JobRows { runs, ..JobRows::default() };
            let found = rows.overlaps();
            assert_eq!((found.within.iter().copied().collect::<Vec<u64>>(), found.count), (within, count), "{what}");
            assert_eq!(found.describe().is_some(), count > 0, "{what}");
        }
    }
}
