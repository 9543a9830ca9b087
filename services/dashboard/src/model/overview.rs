//! The fleet as a whole: a sentence, a few figures, power over time.

use std::collections::BTreeSet;

use eadt_report::liveness::PresentMoment;
use eadt_report::states::WorkloadStatus;
use eadt_report::{GPUS_WITHOUT_WORKLOAD, SavingSummary, SavingVerdict, WorkloadReport};
use eadt_schemas::EventTime;
use eadt_schemas::counts::counted;
use eadt_schemas::v1::Origin;
use serde::Serialize;

use super::stages::StageProgress;
use super::trace::{TraceNumber, WorkloadTimeline};
use super::workload::{DecisionRecord, LatestWindow, WorkloadState};
use super::{DashboardCounts, DashboardModel, NoticeKind, ReplayCheck, SourceFacts};

/// Workloads that have a layer of their own in the chart of power.
const LAYERS: usize = 8;
/// If the largest workloads take less of all power than this, namespaces have the layers.
const LEAST_SHOWN_RATIO: f64 = 0.25;
/// Points of that chart.
const POINTS: i64 = 180;
/// Marks of that chart, the newest ones.
const MOST_MARKS: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetOverview {
    pub source: SourceFacts,
    pub version: u64,
    pub now_ms: Option<i64>,
    /// Start of the oldest window.
    pub first_ms: Option<i64>,
    /// Absent if no replay was asked for.
    pub replay: Option<ReplayCheck>,
    /// Status in one sentence.
    pub status: String,
    /// Reason for waiting; absent once there is a window.
    pub waiting_for: Option<String>,
    /// Everything that was there at the start is taken in.
    pub caught_up: bool,
    /// Origin of all figures, those of GPUs without a workload included, if they agree.
    pub origin: Option<Origin>,
    pub mixed_origins: bool,
    pub workloads: usize,
    /// Number of workloads that are neither silent nor ended, and have a window.
    pub running: usize,
    pub needing_attention: usize,
    /// Power of all workloads that run, or ran at the end of a record, and whose power is known, in watts.
    pub power_watts: Option<f64>,
    pub power_known: usize,
    /// Power of GPUs without a workload, and of those whose job has ended, in watts.
    pub idle_power_watts: Option<f64>,
    pub idle_devices: usize,
    /// Energy of GPUs without a workload, in joules: a part of that of `totals`.
    pub energy_without_work_joules: Option<f64>,
    pub totals: FleetTotals,
    /// Workloads with a saving.
    pub saving_known: usize,
    /// Workloads whose newest change no actuator has answered.
    pub unanswered: usize,
    pub counts: DashboardCounts,
    pub dead_letters: Vec<(String, u64)>,
    pub stages: Vec<StageProgress>,
    /// The reason why the log cannot be read at present; absent if it can be.
    pub problem: Option<String>,
    /// The log's stamp of the newest record with a sample or a window; absent if there is none, or if no log was read.
    pub newest_figures_ms: Option<i64>,
}

/// The report's summary of all workloads, in figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetTotals {
    pub energy_joules: Option<f64>,
    /// Over the workloads whose saving is known.
    pub saving_joules: Option<f64>,
    pub saving_ratio: Option<f64>,
    /// Ends of the 90 % interval of `saving_ratio`.
    pub saving_ratio_low: Option<f64>,
    pub saving_ratio_high: Option<f64>,
    pub compared_energy_ratio: Option<f64>,
    pub saving_verdict: SavingVerdict,
    /// Whether the saving may be called that of all: nearly all of the energy is compared.
    pub saving_is_whole: bool,
    /// Workloads with unknown energy; they are in no sum.
    pub without_energy: usize,
    /// Part of the energy that lies in no window.
    pub unassigned_energy_joules: Option<f64>,
    /// Energy of the workloads' GPUs before their runs began and after they ended: in no other sum.
    pub outside_run_energy_joules: Option<f64>,
    /// The reason why no energy is known at all, if it is the same of all workloads.
    pub why_no_energy: Option<String>,
}

impl FleetTotals {
    /// Sums up workloads.
    pub fn of<'a>(workloads: impl IntoIterator<Item = &'a WorkloadReport, IntoIter: Clone>) -> Self {
        let workloads = workloads.into_iter();
        let sum = |of: fn(&WorkloadReport) -> Option<f64>| workloads.clone().filter_map(of).reduce(|sum, joules| sum + joules);
        let outside = sum(|report| report.outside_run_energy_joules);
        let unassigned = sum(|report| report.unassigned_energy_joules);
        let is_workload = |report: &&WorkloadReport| report.workload != GPUS_WITHOUT_WORKLOAD;
        let why = why_no_energy(workloads.clone().filter(is_workload).filter(|report| report.windows > 0));
        let summary = SavingSummary::of(workloads);
        let ratio = summary.saving_ratio();
        let ends = ratio.zip(summary.ratio_error());
        Self {
            energy_joules: summary.energy_joules,
            saving_joules: summary.saving_joules(),
            saving_ratio: ratio,
            saving_ratio_low: ends.map(|(ratio, error)| ratio - error),
            saving_ratio_high: ends.map(|(ratio, error)| ratio + error),
            compared_energy_ratio: summary.compared_ratio(),
            saving_verdict: summary.verdict(),
            saving_is_whole: summary.is_whole(),
            without_energy: summary.without_energy,
            unassigned_energy_joules: unassigned,
            outside_run_energy_joules: outside,
            why_no_energy: why,
        }
    }
}

/// Returns the reason why the energy of no workload is known; `None` if some is, or if the reasons differ. Reports with neither
/// energy nor a reason do not count.
fn why_no_energy<'a>(workloads: impl Iterator<Item = &'a WorkloadReport>) -> Option<String> {
    let mut workloads = workloads.filter(|report| report.energy_joules.is_some() || report.why_no_energy.is_some());
    let first = workloads.next()?.why_no_energy.as_ref()?;
    workloads.all(|report| report.why_no_energy.as_ref() == Some(first)).then(|| first.clone())
}

/// Power over time, the largest consumers apart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PowerHistory {
    /// Starts of the intervals; one more than there are figures.
    pub edges_ms: Vec<i64>,
    pub layers: Vec<PowerLayer>,
    /// Absent: no decision in that time names a power budget.
    pub budget: Option<PowerBudgetLine>,
    /// Changes, verdicts and refusals in that time, oldest first.
    pub marks: Vec<DecisionMark>,
    /// Older ones that are too many.
    pub marks_left_out: usize,
    /// Workloads, or namespaces, in the layer of others.
    pub others: usize,
}

/// The power budget over time, as the decisions of its stage name it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PowerBudgetLine {
    /// The budget that is in force last in each interval; `None` if none is in force.
    pub power_watts: Vec<Option<f64>>,
    /// Number of workloads that share it, by the newest decision. Power of others is not in it.
    pub workloads: Option<usize>,
}

/// One layer of the chart of power.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PowerLayer {
    pub kind: PowerLayerKind,
    /// Name of the workload; absent for the other kinds.
    pub workload: Option<String>,
    /// Absent for the other kinds.
    pub namespace: Option<String>,
    /// `None` if nothing is known.
    pub power_watts: Vec<Option<f32>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerLayerKind {
    Workload,
    /// All workloads of a namespace: if there are so many that the largest take little of all.
    Namespace,
    Others,
    /// GPUs without a workload, and those whose job has ended.
    Idle,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DecisionMark {
    pub time_ms: i64,
    pub workload: String,
    pub decision_id: String,
    pub kind: NoticeKind,
}

/// Returns a time as it is in sentences: `2026-01-01 00:20:00 UTC`.
pub(crate) fn time_text(time: EventTime) -> String {
    format!("{} UTC", time.to_string()[..19].replace('T', " "))
}

/// Workloads by how they are.
#[derive(Debug, Default)]
struct StatusCounts([usize; WorkloadStatus::ALL.len()]);

impl StatusCounts {
    fn of(&self, status: WorkloadStatus) -> usize {
        self.0[status as usize]
    }

    fn needing_attention(&self) -> usize {
        WorkloadStatus::ALL.into_iter().filter(|status| status.needs_attention()).map(|status| self.of(status)).sum()
    }

    /// Returns the number of workloads whose last window is of the present.
    fn running(&self) -> usize {
        let others = [WorkloadStatus::Waiting, WorkloadStatus::Silent, WorkloadStatus::Ended];
        self.0.iter().sum::<usize>() - others.map(|status| self.of(status)).iter().sum::<usize>()
    }
}

impl DashboardModel {
    /// Returns the fleet in a few figures.
    pub fn overview(&self) -> FleetOverview {
        let states = || self.workloads.values();
        let statuses = self.status_counts();
        let running = statuses.running();
        let needing_attention = statuses.needing_attention();
        let idle = self.idle_report();
        let mut origins = states().filter_map(WorkloadState::origin).chain(idle.as_ref().map(|idle| idle.origin));
        let origin = origins.next();
        let mixed_origins = origins.any(|other| Some(other) != origin);
        let (power_watts, power_known) = self.power();
        let figures = || states().filter_map(|state| state.figures.as_deref());
        let (idle_power_watts, idle_devices) = self.idle_power();
        FleetOverview {
            source: SourceFacts { window_seconds: self.window_seconds(), ..self.source.clone() },
            version: self.version,
            now_ms: self.now.map(EventTime::millis),
            first_ms: self.first.map(EventTime::millis),
            replay: self.replay.clone(),
            status: self.sentences(&statuses),
            waiting_for: self.waiting_for(),
            caught_up: self.caught_up,
            origin: origin.filter(|_| !mixed_origins),
            mixed_origins,
            workloads: self.workloads.len(),
            running,
            needing_attention,
            power_watts,
            power_known,
            idle_power_watts,
            idle_devices,
            unanswered: states().filter(|state| state.unanswered_since().is_some()).count(),
            energy_without_work_joules: idle.as_ref().and_then(|idle| idle.energy_joules),
            totals: FleetTotals::of(figures().chain(idle.as_ref())),
            saving_known: figures().filter(|figures| figures.saving_joules.is_some()).count(),
            counts: self.counts(),
            dead_letters: self.dead_letters.iter().map(|(reason, count)| (reason.clone(), *count)).collect(),
            stages: self.stages(),
            problem: self.problem.clone(),
            newest_figures_ms: self.times.figures.map(EventTime::millis),
        }
    }

    /// Returns the power of the newest windows of all workloads that run, and of how many it is known.
    pub(super) fn power(&self) -> (Option<f64>, usize) {
        let running = self.workloads.iter().filter_map(|(name, state)| self.running_window(name, state));
        let known: Vec<f64> = running.filter_map(|latest| latest.power_watts).collect();
        ((!known.is_empty()).then(|| known.iter().sum()), known.len())
    }

    /// Returns the newest window of a workload that runs, by its windows and by the samples of its GPUs.
    pub(super) fn running_window<'a>(&self, name: &str, state: &'a WorkloadState) -> Option<&'a LatestWindow> {
        state.running_window(self.moment()?).filter(|_| !self.devices.has_left(name))
    }

    /// Returns the power of devices without a workload and of those whose job has ended, and their number, including devices of
    /// unknown power. Devices whose newest windows are not of the present are left out.
    pub(super) fn idle_power(&self) -> (Option<f64>, usize) {
        let Some(moment) = self.moment() else { return (None, 0) };
        let without_workload = self.idle.newest.power_at(moment, |device| !self.has_workload(device));
        let (ended_watts, ended_devices) = self.idle_power_of_ended(moment);
        let watts = without_workload.power_watts.into_iter().chain(ended_watts).reduce(|sum, watts| sum + watts);
        (watts, without_workload.devices as usize + ended_devices)
    }

    /// Returns the same of devices whose job has ended. One that several such jobs shared counts once, and one that a running job
    /// shares does not count: only the part of its power that was theirs is idle.
    fn idle_power_of_ended(&self, moment: PresentMoment) -> (Option<f64>, usize) {
        let running = self.workloads.iter().filter_map(|(name, state)| self.running_window(name, state));
        let busy: BTreeSet<&String> = running.flat_map(|latest| latest.shared_devices.iter()).collect();
        let (mut watts, mut shared, mut unnamed) = (None, BTreeSet::new(), 0);
        for latest in self.workloads.values().filter_map(|state| state.idle_window(moment)) {
            let Some(known) = latest.power_watts else { continue };
            *watts.get_or_insert(0.0) += known;
            shared.extend(latest.shared_devices.iter().filter(|device| !busy.contains(device)));
            unnamed += latest.unnamed_devices();
        }
        (watts, shared.len() + unnamed)
    }

    /// Returns whether the newest samples of a device name a workload at work.
    fn has_workload(&self, device: &str) -> bool {
        self.devices.find(device).is_some_and(|device| self.workloads_of(device).next().is_some())
    }

    fn status_counts(&self) -> StatusCounts {
        let mut counts = StatusCounts::default();
        self.workloads.values().for_each(|workload| counts.0[self.state(workload) as usize] += 1);
        counts
    }

    /// Returns the status of the fleet, and what the record lacks.
    fn sentences(&self, statuses: &StatusCounts) -> String {
        let all = [Some(self.status(statuses)), self.unread_log_status(), self.incomplete.clone()];
        all.into_iter().flatten().collect::<Vec<_>>().join(". ")
    }

    /// Returns the sentence on a log beside the archive that could not be read; `None` if there is none.
    fn unread_log_status(&self) -> Option<String> {
        let end = self.now.map(|end| format!(" until {}", time_text(end)));
        self.goes_on.then(|| {
            format!(
                "Only what was archived{} is shown: the log beside it cannot be opened; if another process has it, its own page shows the \
                 rest",
                end.unwrap_or_default()
            )
        })
    }

    fn status(&self, statuses: &StatusCounts) -> String {
        let of = |status| statuses.of(status);
        let count = self.workloads.len();
        if self.has_ended() {
            return self.ended_status();
        }
        if count == 0 {
            return "No workload is known yet".to_owned();
        }
        if self.now.is_none() {
            return format!("{} known, and no window has closed yet", counted(count, "workload"));
        }
        let mut parts = Vec::new();
        for (state, words) in [
            (WorkloadStatus::Reverted, "had the last change reverted"),
            (WorkloadStatus::Refused, "could not be changed as decided"),
            (WorkloadStatus::RollingOut, "rolling out a change"),
            (WorkloadStatus::Validating, "checking a change"),
            (WorkloadStatus::Silent, "no longer reporting"),
            (WorkloadStatus::Ended, "ended"),
        ] {
            let number = of(state);
            if number > 0 {
                parts.push(format!("{number} {words}"));
            }
        }
        let others = [WorkloadStatus::Silent, WorkloadStatus::Waiting, WorkloadStatus::Ended].map(of);
        let well = count - statuses.needing_attention() - others.iter().sum::<usize>();
        if of(WorkloadStatus::Ended) == count {
            let all = format!("All {count} workloads have ended");
            return if count == 1 { "The only workload has ended".to_owned() } else { all };
        }
        let begin = match (well, count) {
            (1, 1) => "The only workload is well".to_owned(),
            (2, 2) => "Both workloads are well".to_owned(),
            (well, count) if well == count => format!("All {count} workloads are well"),
            (1, count) => format!("1 of {} is well", counted(count, "workload")),
            (well, count) => format!("{well} of {} are well", counted(count, "workload")),
        };
        if parts.is_empty() { begin } else { format!("{begin}: {}", parts.join(", ")) }
    }

    /// Returns the status text of a record that has ended.
    fn ended_status(&self) -> String {
        let workloads = counted(self.workloads.len(), "workload");
        match self.now {
            _ if self.workloads.is_empty() => "The record holds no workload".to_owned(),
            None => format!("The record of {workloads} holds no window"),
            Some(end) => format!("The record of {workloads} ended at {}", time_text(end)),
        }
    }

    fn waiting_for(&self) -> Option<String> {
        if self.now.is_some() || self.has_ended() {
            return None;
        }
        let length = self.source.window_seconds.map_or_else(String::new, |seconds| format!(" of {seconds:.0} s"));
        Some(if !self.caught_up {
            "Reading the existing records of the log".to_owned()
        } else if self.workloads.is_empty() {
            format!("Waiting for the first workload to report; figures appear when its first window{length} closes")
        } else {
            format!(
                "Waiting for the first window{length} to close: it does once every GPU and every rank has reported past its end"
            )
        })
    }

    /// Returns the power of the fleet in this range; without ends, over the whole record.
    pub fn power_history(&self, from: Option<EventTime>, to: Option<EventTime>) -> Option<PowerHistory> {
        let settled = self.settled()?;
        let begins = self.workloads.values().filter_map(|state| state.trace.begin());
        let first = begins.chain(self.idle_traces().filter_map(WorkloadTimeline::begin)).min()?;
        let (from, to) = (from.unwrap_or(first).max(first), to.unwrap_or(settled).min(settled));
        if to <= from {
            return None;
        }
        let grid = TimeGrid::of(first, from, to);
        let (mut layers, others) = self.power_layers(&grid);
        layers.extend(self.idle_layer(&grid));
        let (marks, marks_left_out) = self.marks(from, to);
        let budget = self.budget_line(&grid);
        Some(PowerHistory { edges_ms: grid.edges_ms(), layers, budget, marks, marks_left_out, others })
    }

    /// Returns the time up to which the power of all running workloads and of GPUs without work is known: while some windows are
    /// still open, the newest interval would look like a fall of power. For a record that has ended it is the end.
    fn settled(&self) -> Option<EventTime> {
        let Some(moment) = self.moment().filter(|_| !self.has_ended()) else { return self.now };
        let open = self.workloads.values().filter_map(|state| state.open_since(moment));
        open.chain(self.idle.newest.open_since(moment)).min().or(self.now)
    }

    /// Returns the layers of the largest workloads, or of the largest namespaces if those workloads take little of all, and of
    /// the others; and how many these are.
    fn power_layers(&self, grid: &TimeGrid) -> (Vec<PowerLayer>, usize) {
        let ranking = |kind| LayerRanking { kind, largest: Vec::new(), others: RemainderLayer::of(grid), sum: 0.0 };
        let (mut workloads, mut namespaces) = (ranking(PowerLayerKind::Workload), ranking(PowerLayerKind::Namespace));
        let (mut sums, mut power_watts) = (Vec::new(), Vec::new());
        // Names come in order: the workloads of a namespace follow each other.
        let mut namespace: Option<(&str, RemainderLayer)> = None;
        let mut count = 0;
        for (name, state) in &self.workloads {
            grid.mean(&state.trace, &mut sums, &mut power_watts);
            workloads.add(name, &power_watts);
            let own = name.split_once('/').map_or(&**name, |(namespace, _)| namespace);
            if namespace.as_ref().is_none_or(|(known, _)| *known != own) {
                count += 1;
                if let Some((known, sum)) = namespace.replace((own, RemainderLayer::of(grid))) {
                    namespaces.add(known, &sum.power_watts);
                }
            }
            if let Some((_, sum)) = &mut namespace {
                sum.add(&power_watts);
            }
        }
        if let Some((known, sum)) = namespace {
            namespaces.add(known, &sum.power_watts);
        }
        let is_little = workloads.others.count > 0 && workloads.largest_sum() < LEAST_SHOWN_RATIO * workloads.sum;
        if is_little && count > 1 { namespaces.into_layers() } else { workloads.into_layers() }
    }

    /// Returns the traces of GPUs without work: of those without a workload, and of those whose job has ended.
    fn idle_traces(&self) -> impl Iterator<Item = &WorkloadTimeline<f64>> {
        let finished = self.workloads.values().map(|state| &state.idle_trace);
        std::iter::once(&self.idle.trace).chain(finished).filter(|trace| !trace.is_empty())
    }

    /// Returns the layer of GPUs without work; `None` if nothing is known of any.
    fn idle_layer(&self, grid: &TimeGrid) -> Option<PowerLayer> {
        let mut idle = RemainderLayer::of(grid);
        let (mut sums, mut power_watts) = (Vec::new(), Vec::new());
        for trace in self.idle_traces() {
            grid.mean(trace, &mut sums, &mut power_watts);
            idle.add(&power_watts);
        }
        let is_known = idle.power_watts.iter().any(Option::is_some);
        is_known.then_some(PowerLayer {
            kind: PowerLayerKind::Idle,
            workload: None,
            namespace: None,
            power_watts: idle.power_watts,
        })
    }

    fn budget_line(&self, grid: &TimeGrid) -> Option<PowerBudgetLine> {
        let watts_in = |(from, to)| self.budget.watts_in(from, to);
        let power_watts: Vec<Option<f64>> = grid.intervals().map(watts_in).collect();
        let is_known = power_watts.iter().any(Option::is_some);
        is_known.then(|| PowerBudgetLine { power_watts, workloads: self.budget.workloads() })
    }

    /// Returns the newest marks in a range, oldest first, and how many are left out.
    fn marks(&self, from: EventTime, to: EventTime) -> (Vec<DecisionMark>, usize) {
        let mut marks = Vec::new();
        for (workload, state) in &self.workloads {
            for record in state.decisions() {
                let DecisionRecord { decision, actuations } = record;
                let kind = NoticeKind::of_decision(decision.action, decision.validation, decision.takes_back());
                let kind = kind.map(|kind| kind.if_not_made(record.fate()));
                let outcomes = actuations.iter().map(|actuation| (actuation.time, NoticeKind::of_fate(actuation.fate())));
                for (time, kind) in std::iter::once((decision.time, kind)).chain(outcomes) {
                    if let Some(kind) = kind.filter(|_| (from..=to).contains(&time)) {
                        marks.push((time.millis(), marks.len(), &**workload, &*decision.id, kind));
                    }
                }
            }
        }
        let left_out = marks.len().saturating_sub(MOST_MARKS);
        if left_out > 0 {
            marks.select_nth_unstable_by_key(left_out, |(time, place, ..)| (*time, *place));
            marks.drain(..left_out);
        }
        marks.sort_unstable_by_key(|(time, place, ..)| (*time, *place));
        let mark = |(time_ms, _, workload, id, kind): (i64, usize, &str, &str, NoticeKind)| DecisionMark {
            time_ms,
            workload: workload.to_owned(),
            decision_id: id.to_owned(),
            kind,
        };
        (marks.into_iter().map(mark).collect(), left_out)
    }
}

/// Intervals of equal length; the first and the last one end with the record.
struct TimeGrid {
    from: i64,
    width: i64,
    count: i64,
    /// Begin of the record, and end of the shown part.
    begin: i64,
    end: i64,
}

/// Sums over an interval of a grid.
#[derive(Debug, Clone, Copy, Default)]
struct IntervalEnergy {
    joules: f64,
    known_seconds: f64,
    unknown_seconds: f64,
}

impl TimeGrid {
    /// Divides a range of a record that begins at `first` into intervals of at least a second.
    fn of(first: EventTime, from: EventTime, to: EventTime) -> Self {
        let span = to.micros() - from.micros();
        // Whole minutes if that is possible: no interval then holds more windows than its neighbour.
        let least = (span / POINTS).max(1_000_000);
        let width = if span >= 60_000_000 { (least + 59_999_999) / 60_000_000 * 60_000_000 } else { least };
        let from = from.micros().div_euclid(width) * width;
        let count = (to.micros() - from + width - 1).div_euclid(width).clamp(1, 2 * POINTS);
        Self { from, width, count, begin: first.micros(), end: to.micros() }
    }

    /// Returns the begin of an interval, in microseconds since the epoch. That of the one after the last is the end.
    fn edge(&self, index: i64) -> i64 {
        (self.from + index * self.width).max(self.begin).min(self.end)
    }

    fn edges_ms(&self) -> Vec<i64> {
        (0..=self.count).map(|index| self.edge(index).div_euclid(1000)).collect()
    }

    /// Returns the begin and the end of each interval.
    fn intervals(&self) -> impl Iterator<Item = (EventTime, EventTime)> {
        let edge = move |index: i64| EventTime::from_micros(self.edge(index));
        (0..self.count).map(move |index| (edge(index), edge(index + 1)))
    }

    /// Writes the mean power over each interval into `mean`; `sums` is room to count in. Before its begin, after its end, and
    /// between two runs a workload takes nothing, so that the means of all add up. Time of which nothing is known counts as the
    /// rest of its interval.
    fn mean<N: TraceNumber>(&self, trace: &WorkloadTimeline<N>, sums: &mut Vec<IntervalEnergy>, mean: &mut Vec<Option<f32>>) {
        sums.clear();
        sums.resize(self.count as usize, IntervalEnergy::default());
        // They come in order, so that the interval of one is not far from that of the one before it.
        let mut first = 0;
        for energy in trace.energies() {
            while first < self.count && self.edge(first + 1) <= energy.from {
                first += 1;
            }
            for (index, sum) in (first..).zip(sums.iter_mut().skip(first as usize)) {
                let overlap = energy.to.min(self.edge(index + 1)) - energy.from.max(self.edge(index));
                if overlap <= 0 {
                    break;
                }
                let part = overlap as f64 / (energy.to - energy.from) as f64;
                sum.joules += energy.joules * part;
                sum.known_seconds += energy.known_seconds * part;
                sum.unknown_seconds += energy.unknown_seconds * part;
            }
        }
        mean.clear();
        mean.extend((0..).zip(sums.iter()).map(|(index, sum)| {
            let seconds = (self.edge(index + 1) - self.edge(index)) as f64 / 1e6 - sum.unknown_seconds;
            (sum.known_seconds > 0.0).then(|| (sum.joules / seconds.max(sum.known_seconds)) as f32)
        }));
    }
}

/// The largest of some layers, and the sum of the others.
struct LayerRanking {
    kind: PowerLayerKind,
    /// The largest first, with the sum of its figures; a layer that falls behind is added to the others.
    largest: Vec<(f64, PowerLayer)>,
    others: RemainderLayer,
    /// Sum of the figures of all.
    sum: f64,
}

impl LayerRanking {
    fn add(&mut self, name: &str, power_watts: &[Option<f32>]) {
        let sum: f64 = power_watts.iter().flatten().map(|watts| f64::from(*watts)).sum();
        self.sum += sum;
        if self.largest.len() == LAYERS && self.largest.last().is_some_and(|(least, _)| sum <= *least) {
            self.others.add(power_watts);
            return;
        }
        let place = self.largest.partition_point(|(other, _)| *other >= sum);
        let is_workload = self.kind == PowerLayerKind::Workload;
        let layer = PowerLayer {
            kind: self.kind,
            workload: is_workload.then(|| name.to_owned()),
            namespace: (!is_workload).then(|| name.to_owned()),
            power_watts: power_watts.to_vec(),
        };
        self.largest.insert(place, (sum, layer));
        if self.largest.len() > LAYERS
            && let Some((_, least)) = self.largest.pop()
        {
            self.others.add(&least.power_watts);
        }
    }

    fn largest_sum(&self) -> f64 {
        self.largest.iter().map(|(sum, _)| sum).sum()
    }

    /// Returns the layers, and how many are in that of the others.
    fn into_layers(self) -> (Vec<PowerLayer>, usize) {
        let Self { largest, others: RemainderLayer { count, power_watts }, .. } = self;
        let others = PowerLayer { kind: PowerLayerKind::Others, workload: None, namespace: None, power_watts };
        let layers = largest.into_iter().map(|(_, layer)| layer).chain((count > 0).then_some(others));
        (layers.collect(), count)
    }
}

/// The sum of those that have no layer of their own.
struct RemainderLayer {
    count: usize,
    power_watts: Vec<Option<f32>>,
}

impl RemainderLayer {
    fn of(grid: &TimeGrid) -> Self {
        Self { count: 0, power_watts: vec![None; grid.count as usize] }
    }

    fn add(&mut self, power_watts: &[Option<f32>]) {
        self.count += 1;
        for (sum, watts) in self.power_watts.iter_mut().zip(power_watts) {
            if let Some(watts) = watts {
                *sum = Some(sum.unwrap_or(0.0) + watts);
            }
        }
    }
}
