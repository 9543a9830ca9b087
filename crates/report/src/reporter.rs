use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use eadt_schemas::EventTime;
use eadt_schemas::counts::{counted, counted_as};
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, Decision, EfficiencyWindow, EnergyMethod, Layout, Meter,
    Origin, WindowKind,
};

use crate::figures::{ChangeVerdict, DecidedChange, JOULES_PER_KWH, WindowPoint, compared_part, divide_known};
use crate::frozen_blocks::FewerStepsControl;
use crate::grid_data::GridTotal;
use crate::render::meter_word;
use crate::saving::{SavingEstimate, WindowBaseline, estimate_saving};
use crate::states::{HOLD_OUT, is_change_or_verdict, takes_back, verdict_of_action};
use crate::stored::StoredWindows;
use crate::units;
use crate::window_sums::{MatchedTotals, RunSpan, RunSums, WindowSums};
use crate::words;
use crate::words::origin_word;
use crate::{EnergyReport, ReportBreakdown, ReportSettings, SpanRow, WindowRow, WorkloadReport};

/// Collects events and reports on what it has at any time.
///
/// Events may come in any order; a repeated one (same id) replaces the one before. Keeps about 50 bytes for a window and as many
/// for a decision that changes nothing, and a few hundred for any other; a report takes some 300 bytes a window of its workload
/// while it is made.
#[derive(Debug, Default, Clone)]
pub struct Reporter {
    workloads: BTreeMap<String, StoredEvents>,
}

/// Controllers' reasons have less.
const LONG_REASON_BYTES: usize = 1_024;

/// The events of a workload as they are kept.
#[derive(Debug, Default, Clone)]
struct StoredEvents {
    windows: StoredWindows,
    /// Sums of all windows, if none of its events is kept any more.
    sums: Option<Box<WindowSums>>,
    spans: BTreeMap<(EventTime, String), SpanRow>,
    /// Decisions by id, without those in `maintained`.
    decisions: BTreeMap<Box<str>, ReportDecision>,
    /// Reasons of decisions that only maintain, by time and the end of their id: a controller makes one for each window.
    maintained: BTreeMap<(EventTime, Arc<str>), Arc<str>>,
    /// Reasons of [`LONG_REASON_BYTES`] and more, each once: a file of some kilobytes can have one of a megabyte in every row.
    long_reasons: BTreeSet<Arc<str>>,
    /// Actuations by the decision's id.
    actuations: BTreeMap<Box<str>, ActuationSummary>,
    unlimited: [Option<f64>; 2],
    fewer_steps: Option<FewerStepsControl>,
    actuated: bool,
    origin: Option<Origin>,
    meter: Option<Meter>,
}

/// The events of a workload as a report is made of them.
#[derive(Debug, Default)]
pub(crate) struct WorkloadEvents<'a> {
    /// Windows by start and id.
    windows: Vec<ReportWindow>,
    spans: Vec<&'a SpanRow>,
    /// `maintain` decisions by time.
    maintained: Vec<(EventTime, &'a str)>,
    /// Decisions by id, without those in `maintained`.
    pub(crate) decisions: Cow<'a, BTreeMap<Box<str>, ReportDecision>>,
    /// Actuations by the decision's id.
    pub(crate) actuations: Cow<'a, BTreeMap<Box<str>, ActuationSummary>>,
    /// Power cap and SM clock at which nothing is held back, if a controller reported them: a limit this high is none.
    pub(crate) unlimited: [Option<f64>; 2],
    /// The newest comparison of frozen blocks with training for fewer steps.
    fewer_steps: Option<FewerStepsControl>,
    /// An actuator has reported, so `actuations` is complete.
    pub(crate) actuated: bool,
    origin: Option<Origin>,
    meter: Option<Meter>,
}

/// The part of a decision that a report needs.
#[derive(Debug, Clone)]
pub(crate) struct ReportDecision {
    pub(crate) time: EventTime,
    pub(crate) action: ControllerAction,
    validation: ChangeValidation,
    is_hold_out: bool,
    reason: Arc<str>,
    /// The decision that this one is about, of changes and verdicts.
    pub(crate) concerns: Option<Box<str>>,
    /// Layouts before and after, for changes and verdicts.
    pub(crate) layouts: Option<Box<(Layout, Layout)>>,
}

impl ReportDecision {
    /// Returns the verdict on the change that the decision concerns; `None` if it has none.
    fn verdict(&self) -> Option<ChangeVerdict> {
        match (self.action, self.validation) {
            _ if self.takes_back() => Some(ChangeVerdict::Reverted),
            (_, ChangeValidation::Failed) => Some(ChangeVerdict::NoGain),
            (_, ChangeValidation::Kept) => Some(ChangeVerdict::Kept),
            _ => None,
        }
    }

    /// Returns the verdict that its action follows from.
    fn verdict_of_action(&self) -> ChangeValidation {
        verdict_of_action(self.validation, self.is_hold_out)
    }

    /// Returns whether it takes back a change that failed.
    fn takes_back(&self) -> bool {
        takes_back(self.action, self.verdict_of_action())
    }

    /// Returns its action as text.
    fn text(&self) -> Cow<'static, str> {
        let validation = self.verdict_of_action();
        match self.layouts.as_deref() {
            Some((from, to)) => words::action_text(self.action, validation, from, to),
            None => words::action_text(self.action, validation, &Layout::default(), &Layout::default()),
        }
    }
}

/// A change that was decided, or a verdict on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangeRecord {
    pub time: EventTime,
    pub action: ControllerAction,
    pub validation: ChangeValidation,
    /// It takes back a change that failed.
    pub takes_back: bool,
    /// It was recommended or refused, and not made.
    pub is_not_made: bool,
}

/// Outcome of a decision to change something.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ActuationSummary {
    /// Written as a recommendation, and nothing was touched.
    recommended: bool,
    refused: bool,
    pub(crate) applied: Option<EventTime>,
    pub(crate) ready: Option<EventTime>,
    pub(crate) rolled_back: Option<EventTime>,
}

/// The part of a tumbling window that a report needs.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "four facts of a window, independent of each other")]
pub(crate) struct ReportWindow {
    pub(crate) start: EventTime,
    pub(crate) end: EventTime,
    pub(crate) origin: Origin,
    pub(crate) meter: Meter,
    /// The job has reported when its run began or ended.
    pub(crate) declared: bool,
    /// First and last moment at which a device or rank was observed.
    pub(crate) observed: Option<(EventTime, EventTime)>,
    pub(crate) run_seconds: f64,
    pub(crate) run_energy: Option<f64>,
    /// J/sample, downtime included.
    pub(crate) energy_per_sample: Option<f64>,
    /// Device time in which a counter contradicts power or the board.
    pub(crate) contradicted_seconds: f64,
    /// Energy is unknown in that time, as power is, too; `None` if it is so in an unknown part of that time.
    pub(crate) contradicted_unknown: Option<bool>,
    /// Joules of a counter less those of power, where power counts instead of it.
    pub(crate) counter_difference: f64,
    pub(crate) run_coverage: f64,
    /// Mean power of the whole window, as the event has it.
    pub(crate) mean_power: Option<f64>,
    /// All devices over those with known energy; 1 if all have.
    pub(crate) devices_per_known: f64,
    /// Energy is known in the window, be it outside of the run.
    pub(crate) has_energy: bool,
    /// Energy of the window before the run began and after it ended.
    pub(crate) outside_energy: Option<f64>,
    /// The longest stretch without known energy, in s.
    pub(crate) largest_gap: f64,
    /// Telemetry and progress events.
    pub(crate) events: u64,
    /// Sources of progress.
    pub(crate) ranks: u32,
    pub(crate) unassigned: f64,
    /// Samples and tokens of which no window is.
    pub(crate) unassigned_progress: (f64, f64),
    pub(crate) samples: Option<f64>,
    pub(crate) tokens: Option<f64>,
    pub(crate) progress_coverage: f64,
    /// Cost of the part inside the run.
    pub(crate) cost: Option<f64>,
    pub(crate) co2: Option<f64>,
    /// The layout changed, rolled out or restarted in it.
    pub(crate) restarted: bool,
    /// Processes restarted, not only settings changed.
    pub(crate) has_restart: bool,
    /// Some of its work had been done before.
    pub(crate) redone: bool,
    /// Samples of that work.
    pub(crate) samples_redone: f64,
    /// Time of ranks that were silent while others reported, over that of all ranks.
    pub(crate) progress_silent: f64,
    pub(crate) gap: bool,
    pub(crate) generation: Option<u64>,
    pub(crate) layout: Option<Arc<Layout>>,
    pub(crate) gpus: u32,
    pub(crate) sm_active: Option<f64>,
    pub(crate) dram_active: Option<f64>,
    pub(crate) sm_clock_mhz: Option<f64>,
    /// Other workloads were on its GPUs, too.
    pub(crate) shared: bool,
    pub(crate) late: u64,
    pub(crate) stale: u64,
}

impl ActuationSummary {
    /// Returns whether the change was made, if it was taken back later, too.
    fn was_applied(&self) -> bool {
        self.applied.or(self.ready).or(self.rolled_back).is_some()
    }

    /// Returns whether an actuator recommended or refused the change, and it was not made later.
    fn is_not_made(&self) -> bool {
        (self.recommended || self.refused) && !self.was_applied()
    }
}

impl From<&EfficiencyWindow> for ReportWindow {
    fn from(event: &EfficiencyWindow) -> Self {
        // Price and carbon are known for the window as a whole.
        let inside = divide_known(event.run_energy_joules, event.energy_joules);
        let part = |whole: Option<f64>| whole.zip(inside).map(|(whole, part)| whole * part);
        Self {
            start: event.window_start,
            end: event.window_end,
            origin: event.origin,
            meter: event.meter,
            declared: event.run_declared,
            observed: event.observed_start.zip(event.observed_end),
            run_seconds: event.run_seconds,
            run_energy: event.run_energy_joules,
            energy_per_sample: event.energy_per_sample(),
            contradicted_seconds: event.counter_contradicted_seconds,
            contradicted_unknown: contradicted_unknown(event),
            counter_difference: event.counter_difference_joules,
            run_coverage: event.run_coverage_ratio,
            mean_power: event.mean_power_watts,
            devices_per_known: devices_per_known(event),
            has_energy: event.energy_joules.is_some(),
            outside_energy: outside_energy(event),
            largest_gap: event.energy_largest_gap_seconds,
            events: event.events,
            ranks: event.ranks,
            unassigned: event.unassigned_energy_joules,
            unassigned_progress: (event.unassigned_samples, event.unassigned_tokens),
            samples: event.samples,
            tokens: event.tokens,
            progress_coverage: event.progress_coverage_ratio,
            cost: part(event.cost),
            co2: part(event.co2_grams),
            restarted: event.restarted,
            has_restart: event.has_restart(),
            redone: event.samples_redone > 0.0,
            samples_redone: event.samples_redone,
            progress_silent: event.progress_silent_ratio,
            gap: event.gap,
            generation: event.generation,
            layout: event.layout.clone().map(Arc::new),
            gpus: event.gpus,
            sm_active: event.mean_sm_active_ratio,
            dram_active: event.mean_dram_active_ratio,
            sm_clock_mhz: event.mean_sm_clock_mhz,
            shared: event.tenants.is_some_and(|tenants| tenants > 1),
            late: event.late,
            stale: event.stale,
        }
    }
}

impl ReportWindow {
    /// Returns whether the layout `to` is in force here and was not `before`; if no layout is on record, whether the generation
    /// is another one.
    fn adopts_layout(&self, before: Option<&Self>, to: &Layout) -> bool {
        match &self.layout {
            Some(layout) => **layout == *to && before.is_none_or(|before| before.layout.as_deref() != Some(to)),
            None => before.and_then(|before| before.generation).zip(self.generation).is_some_and(|(old, new)| old != new),
        }
    }

    /// Returns the seconds of it inside the run; if the job has reported nothing about its run, inside the observed time.
    fn seconds_in_run(&self, observed: EventTimeRange) -> f64 {
        RunSpan::of(self).seconds_in(observed)
    }

    /// Returns whether the run goes on while nothing is observed: it neither begins nor ends between the first and the last
    /// event here. The work of a job that reports nothing about its run is one run.
    pub(crate) fn runs_on(&self) -> bool {
        let whole = self.run_seconds + 1e-3 >= self.end.seconds_since(self.start);
        let observed_seconds = self.observed.map_or(f64::INFINITY, |(from, to)| to.seconds_since(from));
        !self.declared || whole || self.run_seconds > observed_seconds + 1.0
    }

    /// Returns the energy of a span that holds all of its known progress, as in its own J/sample: that of the run, or more if
    /// energy is known for clearly less time than progress.
    pub(crate) fn energy_of_progress(&self) -> Option<f64> {
        let known = self.run_energy?;
        let samples = self.samples.map(|samples| self.with_silent_ranks(samples));
        let own = self.energy_per_sample.zip(samples).map_or(known, |(joules, samples)| joules * samples);
        // A difference by rounding does not count.
        Some(if own > known * (1.0 + 1e-9) { own } else { known })
    }

    /// Extrapolates progress to the ranks that were silent while others reported.
    pub(crate) fn with_silent_ranks(&self, progress: f64) -> f64 {
        if self.progress_silent > 0.0 && self.progress_coverage > 0.0 {
            progress * (self.progress_coverage + self.progress_silent) / self.progress_coverage
        } else {
            progress
        }
    }

    /// Returns the seconds of known energy, of a mean device.
    pub(crate) fn covered_seconds(&self) -> f64 {
        self.run_seconds * self.run_coverage
    }

    /// Returns the seconds in which the energy of its known devices is known, of a mean one of them.
    pub(crate) fn powered_seconds(&self) -> f64 {
        (self.covered_seconds() * self.devices_per_known).min(self.run_seconds)
    }

    /// Returns the mean power inside the run: each device's energy over its own covered time, summed. A device without known
    /// energy adds nothing.
    fn run_power(&self) -> Option<f64> {
        if self.run_seconds + 1e-6 >= self.end.seconds_since(self.start) && self.run_energy.is_some() && self.mean_power.is_some()
        {
            return self.mean_power;
        }
        divide_known(self.run_energy, Some(self.powered_seconds()))
    }

    /// Returns whether something is known of all of it, from its start to its end.
    fn is_observed_whole(&self) -> bool {
        self.observed.is_some_and(|(from, to)| from <= self.start && to >= self.end)
    }

    pub(crate) fn progress_seconds(&self) -> f64 {
        self.end.seconds_since(self.start) * self.progress_coverage
    }
}

pub(crate) type EventTimeRange = (EventTime, EventTime);

/// Returns a part of some seconds; if the two come from different clocks of the same time, never more than all of it.
pub(crate) fn part_of(part: f64, seconds: f64) -> f64 {
    divide_known(Some(part), Some(seconds)).map_or(0.0, |ratio| ratio.min(1.0))
}

impl Reporter {
    pub fn add_window(&mut self, event: &EfficiencyWindow) {
        let collected = self.workloads.entry(event.workload.clone()).or_default();
        collected.origin = Some(collected.origin.map_or(event.origin, |origin| origin.max(event.origin)));
        if event.energy_joules.is_some() || event.unassigned_energy_joules != 0.0 {
            // A meter at the wall covers the node, and a node's meter its GPUs: the widest one applies to the energy.
            collected.meter = Some(collected.meter.map_or(event.meter, |meter| meter.max(event.meter)));
        }
        if event.kind == WindowKind::Span {
            if collected.sums.is_none() {
                collected.spans.insert((event.window_start, event.id.clone()), span_row(event));
            }
            return;
        }
        let window = ReportWindow::from(event);
        match &mut collected.sums {
            Some(sums) => sums.add(&window),
            None => collected.windows.insert(&event.workload, &event.id, &window),
        }
    }

    pub fn add_decision(&mut self, event: &Decision) {
        let collected = self.workloads.entry(event.workload.clone()).or_default();
        if collected.sums.is_some() {
            return;
        }
        collected.origin = Some(collected.origin.map_or(event.origin, |origin| origin.max(event.origin)));
        collected.fewer_steps = FewerStepsControl::newer(collected.fewer_steps, FewerStepsControl::of(event));
        // Without a limit in force the setting of a knob is its top.
        let tops = [(event.from.power_limit_watts, "power_limit_watts"), (event.from.sm_clock_mhz, "sm_clock_limit_mhz")];
        for (known, (limit, name)) in collected.unlimited.iter_mut().zip(tops) {
            let top = event.evidence.get(name).copied().filter(|top| limit.is_none() && top.is_finite() && *top > 0.0);
            *known = known.map_or(top, |known| Some(top.map_or(known, |top| known.max(top))));
        }
        let verdict = event.concerns.is_some() && event.validation != ChangeValidation::Pending;
        let has_layouts = event.action != ControllerAction::Maintain || verdict;
        // A verdict may name no change.
        let is_kept = has_layouts || is_change_or_verdict(event.action, event.validation);
        let usual = usual_end(event);
        if let Some(end) = usual.filter(|_| !is_kept) {
            collected.decisions.remove(event.id.as_str());
            collected.maintain(event.time, end, &event.reason);
            return;
        }
        if let Some(end) = usual {
            collected.maintained.remove(&(event.time, end.into()));
        }
        let decided = ReportDecision {
            time: event.time,
            action: event.action,
            validation: event.validation,
            is_hold_out: event.evidence.contains_key(HOLD_OUT),
            reason: collected.shared_reason(&event.reason),
            concerns: event.concerns.as_deref().filter(|_| has_layouts).map(Box::from),
            layouts: has_layouts.then(|| Box::new((event.from.clone(), event.to.clone()))),
        };
        collected.decisions.insert(event.id.as_str().into(), decided);
    }

    pub fn add_actuation(&mut self, event: &Actuation) {
        let collected = self.workloads.entry(event.workload.clone()).or_default();
        if collected.sums.is_some() {
            return;
        }
        collected.actuated = true;
        let mut fate = collected.actuations.get(event.decision_id.as_str()).copied().unwrap_or_default();
        let time = match event.outcome {
            ActuationOutcome::Applied => Some(&mut fate.applied),
            ActuationOutcome::Ready => Some(&mut fate.ready),
            ActuationOutcome::RolledBack => Some(&mut fate.rolled_back),
            ActuationOutcome::Recommended => {
                fate.recommended = true;
                None
            }
            ActuationOutcome::Refused => {
                fate.refused = true;
                None
            }
            ActuationOutcome::Failed => return,
        };
        if let Some(time) = time {
            *time = Some(time.map_or(event.time, |known| known.min(event.time)));
        }
        collected.actuations.insert(event.decision_id.as_str().into(), fate);
    }

    /// Returns the report on one workload so far; `None` if there is no such workload.
    pub fn report_of(&self, workload: &str, settings: &ReportSettings) -> Option<WorkloadReport> {
        self.workloads.get(workload).map(|collected| collected.workload_report(workload, settings))
    }

    /// Returns the report on everything so far.
    pub fn build_report(&self, settings: &ReportSettings) -> EnergyReport {
        let of = |(name, collected): (&String, &StoredEvents)| collected.workload_report(name, settings);
        EnergyReport { workloads: self.workloads.iter().map(of).collect(), source_notes: Vec::new() }
    }

    /// Returns the same on one workload, without the chart that HTML has; `None` if nothing is known of it.
    pub fn workload_report(&self, name: &str, settings: &ReportSettings) -> Option<WorkloadReport> {
        let report = self.workloads.get(name)?.workload_report(name, settings);
        Some(WorkloadReport { curve: Vec::new(), decided: Vec::new(), ..report })
    }

    /// Returns the report on the part of a workload's record from `from` to `to`: windows that lie within it, and the decisions
    /// in it. Without a saving, which compares with the start of the record; `None` if nothing is known of the workload.
    pub fn workload_between(
        &self,
        name: &str,
        from: EventTime,
        to: EventTime,
        settings: &ReportSettings,
    ) -> Option<WorkloadReport> {
        let part = self.workloads.get(name)?.events().between(from, to);
        let report = part.figures(name, settings, SavingEstimate::default(), Vec::new());
        Some(WorkloadReport { curve: Vec::new(), decided: Vec::new(), ..report })
    }

    /// Returns every change that was decided for a workload, and every verdict on one, by time; empty if nothing is known of it.
    pub fn changes_of(&self, name: &str) -> Vec<ChangeRecord> {
        let Some(collected) = self.workloads.get(name) else { return Vec::new() };
        let all = collected.decisions.iter().filter(|(_, decided)| is_change_or_verdict(decided.action, decided.validation));
        let mut changes: Vec<ChangeRecord> = all
            .map(|(id, decided)| ChangeRecord {
                time: decided.time,
                action: decided.action,
                validation: decided.validation,
                takes_back: decided.takes_back(),
                is_not_made: collected.actuations.get(id).is_some_and(ActuationSummary::is_not_made),
            })
            .collect();
        changes.sort_by_key(|change| change.time);
        changes
    }

    /// Drops the events of a workload and keeps sums of its windows, so that its memory stays bounded. Later windows are added to
    /// the sums: each may come once, and in the order of their starts. Its report has energy, samples, tokens, J/sample and
    /// duration as before, and no saving. If no energy is known, the reason is that of the dropped windows.
    pub fn keep_sums(&mut self, name: &str) {
        let collected = self.workloads.entry(name.to_owned()).or_default();
        if collected.sums.is_none() {
            let sums = WindowSums::of(&collected.windows.to_vec()).with_why_no_energy(collected.why_no_energy());
            let sums = Some(Box::new(sums));
            *collected = StoredEvents { sums, origin: collected.origin, meter: collected.meter, ..StoredEvents::default() };
        }
    }

    /// Forgets a workload, so that a caller that follows a log for weeks can bound its memory.
    pub fn forget(&mut self, name: &str) {
        self.workloads.remove(name);
    }
}

/// Returns the end of a decision's id if its begin is the one that the processor gives, which is not kept then.
fn usual_end(event: &Decision) -> Option<&str> {
    let rest = event.id.strip_prefix(&event.workload)?.strip_prefix('@')?;
    let (time, _) = rest.split_once('/')?;
    (time == event.time.to_string()).then(|| &rest[time.len()..])
}

/// Returns the devices of a window over those with known energy, by its mean power, which is of the latter alone; 1 if the
/// event does not show it.
fn devices_per_known(event: &EfficiencyWindow) -> f64 {
    let covered = event.window_end.seconds_since(event.window_start) * event.energy_coverage_ratio;
    let known = divide_known(event.energy_joules, event.mean_power_watts);
    divide_known(known, Some(covered)).filter(|ratio| *ratio > 0.0).unwrap_or(1.0)
}

/// Returns the energy of a window before the run began and after it ended. A difference by rounding is none.
fn outside_energy(event: &EfficiencyWindow) -> Option<f64> {
    let energy = event.energy_joules.filter(|_| event.run_declared)?;
    Some(energy - event.run_energy_joules.unwrap_or(0.0)).filter(|outside| *outside > 1e-6 * energy)
}

/// Returns whether energy is unknown in the time in which a counter is contradicted: nothing is known by power in the whole
/// window, or nothing is missing in it. `None` if it is so in a part of that time.
fn contradicted_unknown(event: &EfficiencyWindow) -> Option<bool> {
    match event.energy_method {
        EnergyMethod::Counter | EnergyMethod::None => Some(true),
        EnergyMethod::Integral | EnergyMethod::Mixed => (event.energy_coverage_ratio >= 1.0 - 1e-6).then_some(false),
    }
}

/// Notes the part of the totals that belongs to no window.
fn note_unassigned(joules: Option<f64>, samples: Option<f64>, tokens: Option<f64>, notes: &mut Vec<String>) {
    let parts = [
        joules.map(units::format_joules),
        samples.map(|count| format!("{count:.0} samples")),
        tokens.map(|count| format!("{count:.0} tokens")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if !parts.is_empty() {
        notes.push(format!(
            "{} of the totals are of no window, so in no power, J/sample or saving: a counter rose by them over a silence or \
             a long wait, or they came when their window was closed",
            parts.join(", ")
        ));
    }
}

fn span_row(event: &EfficiencyWindow) -> SpanRow {
    SpanRow {
        span: event.span.clone().unwrap_or_default(),
        start: event.window_start,
        end: event.window_end,
        origin: event.origin,
        duration_seconds: event.window_end.seconds_since(event.window_start),
        energy_joules: event.energy_joules,
        samples: event.samples,
        tokens: event.tokens,
        joules_per_sample: event.energy_per_sample(),
        mean_power_watts: event.mean_power_watts,
        coverage_ratio: event.energy_coverage_ratio,
    }
}

/// Energy of a job for a sample while it had its GPUs to itself, and while it shared them.
#[derive(Debug, Default)]
struct SharingComparison {
    alone: Option<f64>,
    shared: Option<f64>,
    /// Part of the energy that was used while it shared.
    part: Option<f64>,
}

impl SharingComparison {
    /// Returns sharing figures: unknown for a workload that never shared.
    fn of(collected: &WorkloadEvents<'_>) -> Self {
        let windows = |shared: bool| collected.run().filter(move |window| window.shared == shared);
        let energy = |shared: bool| sum_known(windows(shared).map(|window| window.run_energy));
        let per_sample = |shared: bool| MatchedTotals::of(windows(shared), |window| window.samples).joules_per();
        if !collected.run().any(|window| window.shared) {
            return Self::default();
        }
        let all = sum_known([energy(false), energy(true)].into_iter());
        Self { alone: per_sample(false), shared: per_sample(true), part: divide_known(energy(true), all) }
    }
}

/// Returns how many there are of each kind, such as `3 gpu, 1 wall`; `None` if all are of one kind.
fn describe_mix<K: Ord + Copy>(kinds: impl Iterator<Item = K>, word: fn(K) -> &'static str) -> Option<String> {
    let mut counts: BTreeMap<K, usize> = BTreeMap::new();
    kinds.for_each(|kind| *counts.entry(kind).or_default() += 1);
    let of: Vec<String> = counts.iter().map(|(kind, count)| format!("{count} {}", word(*kind))).collect();
    (of.len() > 1).then(|| of.join(", "))
}

/// Begins the note on why no energy of a run is known, and what changes that.
const NO_ENERGY: &str = "no energy is known: ";

/// The default of `processor.power_gap_seconds`, and the most that it can be set to.
const POWER_GAP_SECONDS: f64 = 120.0;
const MOST_POWER_GAP_SECONDS: f64 = 86_400.0;

/// A counter that differs from the power that counts instead of it is noted from this share of all energy on, and from so many times the
/// largest difference of one window on: a step of the counter that lies at an edge is none.
const DIFFERENCE_RATIO: f64 = 0.05;
const STEPS_OF_DIFFERENCE: f64 = 2.0;

/// Note if spans are requested but there are none.
pub(crate) const NO_SPANS: &str = "the job named no spans (epochs, training blocks): there is nothing to break down by";

/// Returns the sum of the known values; `None` if there are none.
pub(crate) fn sum_known(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    values.flatten().fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

impl StoredEvents {
    /// Keeps the reason of a decision that only maintains. Most have the end of the id of the one before, and often its reason.
    fn maintain(&mut self, time: EventTime, end: &str, reason: &str) {
        let last = self.maintained.last_key_value();
        let same = |known: &Arc<str>, text: &str| (**known == *text).then(|| known.clone());
        let end = last.and_then(|((_, known), _)| same(known, end)).unwrap_or_else(|| end.into());
        let reason = last.and_then(|(_, known)| same(known, reason)).unwrap_or_else(|| self.shared_reason(reason));
        self.maintained.insert((time, end), reason);
    }

    /// Returns a reason to keep: a long one that is kept already is shared.
    fn shared_reason(&mut self, reason: &str) -> Arc<str> {
        if reason.len() < LONG_REASON_BYTES {
            return reason.into();
        }
        if let Some(known) = self.long_reasons.get(reason) {
            return known.clone();
        }
        let kept: Arc<str> = reason.into();
        self.long_reasons.insert(kept.clone());
        kept
    }

    /// Returns the reason why no energy is known; `None` if some is, or if there are no windows.
    fn why_no_energy(&self) -> Option<String> {
        let events = self.events();
        events.lacks_energy().then(|| events.why_no_energy())
    }

    fn workload_report(&self, name: &str, settings: &ReportSettings) -> WorkloadReport {
        match &self.sums {
            Some(sums) => sums.report(name, self.origin.unwrap_or_default(), self.meter),
            None => self.events().workload_report(name, settings),
        }
    }

    /// Returns the events with the windows before the job's start taken out of the run.
    ///
    /// A window that closes before a job reports its start cannot know that it lies before the run; those after it do.
    fn events(&self) -> WorkloadEvents<'_> {
        let mut windows = self.windows.to_vec();
        if windows.iter().any(|window| window.declared) {
            for window in windows.iter_mut().filter(|window| !window.declared) {
                window.outside_energy = window.run_energy;
                (window.run_seconds, window.run_coverage, window.run_energy) = (0.0, 0.0, None);
                window.energy_per_sample = None;
            }
        }
        WorkloadEvents {
            windows,
            spans: self.spans.values().collect(),
            maintained: self.maintained.iter().map(|((time, _), reason)| (*time, &**reason)).collect(),
            decisions: Cow::Borrowed(&self.decisions),
            actuations: Cow::Borrowed(&self.actuations),
            unlimited: self.unlimited,
            fewer_steps: self.fewer_steps,
            actuated: self.actuated,
            origin: self.origin,
            meter: self.meter,
        }
    }
}

impl WorkloadEvents<'_> {
    /// Returns the first and the last moment at which a device or rank was observed; windows that do not report them count whole.
    fn observed_range(&self) -> EventTimeRange {
        let ends = self.windows.iter().map(|window| window.observed.unwrap_or((window.start, window.end)));
        ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap_or_default()
    }

    /// Returns windows that overlap the run.
    pub(crate) fn run(&self) -> impl Iterator<Item = &ReportWindow> {
        self.windows.iter().filter(|window| window.run_seconds > 0.0)
    }

    /// Returns the energy before the run began and after it ended, and the seconds of the windows in which it was taken.
    fn outside_run(&self) -> Option<(f64, f64)> {
        let outside = |window: &ReportWindow| {
            let seconds = window.end.seconds_since(window.start) - window.run_seconds;
            window.outside_energy.map(|joules| (joules, seconds))
        };
        self.windows.iter().filter_map(outside).reduce(|(sum, total), (joules, seconds)| (sum + joules, total + seconds))
    }

    /// Returns the seconds of the run that lie between two windows: of a long silence no window is written.
    fn silent_seconds(&self) -> f64 {
        let mut silent = 0.0;
        let mut before: Option<&ReportWindow> = None;
        for window in self.run() {
            if let Some(last) = before.filter(|last| last.end < window.start && last.runs_on() && window.runs_on()) {
                silent += window.start.seconds_since(last.end);
            }
            before = before.filter(|last| last.end >= window.end).or(Some(window));
        }
        silent
    }

    /// Leaves only the events within an interval.
    fn between(mut self, from: EventTime, to: EventTime) -> Self {
        let within = |start: EventTime, end: EventTime| start >= from && end <= to;
        self.windows.retain(|window| within(window.start, window.end));
        self.spans.retain(|span| within(span.start, span.end));
        self.maintained.retain(|(time, _)| (from..to).contains(time));
        let decisions = self.decisions.iter().filter(|(_, decided)| (from..to).contains(&decided.time));
        self.decisions = Cow::Owned(decisions.map(|(id, decided)| (id.clone(), decided.clone())).collect());
        self
    }

    fn workload_report(&self, name: &str, settings: &ReportSettings) -> WorkloadReport {
        let mut notes = Vec::new();
        let saving = estimate_saving(self, settings.baselines.get(name).copied(), &mut notes);
        self.figures(name, settings, saving, notes)
    }

    /// Returns everything but the saving, which comes with its notes.
    fn figures(&self, name: &str, settings: &ReportSettings, saving: SavingEstimate, of_saving: Vec<String>) -> WorkloadReport {
        let mut notes = Vec::new();
        let sums = WindowSums::of(&self.windows);
        let (in_windows, unassigned, energy) = {
            let energy = sums.run().energy;
            (energy.in_windows, energy.unassigned(), energy.total())
        };
        let observed = self.observed_range();
        // Devices without a workload have a window each: the time of one interval counts once.
        let mut intervals = BTreeMap::<EventTime, f64>::new();
        for window in self.run() {
            let seconds = intervals.entry(window.start).or_default();
            *seconds = seconds.max(window.seconds_in_run(observed));
        }
        let in_intervals = sum_known(intervals.into_values().map(Some));
        let in_devices = self.run().map(|window| window.seconds_in_run(observed)).sum::<f64>();
        let silent = self.silent_seconds();
        let duration = in_intervals.map(|seconds| seconds + silent);
        // The number of silent devices is taken to be the usual number.
        let device_seconds = in_devices + silent * divide_known(Some(in_devices), in_intervals).unwrap_or(1.0);
        if silent > 0.0 {
            notes.push(format!(
                "{silent:.0} s of the duration lie in silences for which no window was written: they count as not covered, and how power and \
                 progress ran in them is not known"
            ));
        }
        let coverage = self.run().next().map(|_| part_of(self.run().map(ReportWindow::covered_seconds).sum(), device_seconds));
        let (samples, unassigned_samples) = (sums.samples.total(), sums.samples.unassigned());
        let (tokens, unassigned_tokens) = (sums.tokens.total(), sums.tokens.unassigned());
        note_unassigned(unassigned, unassigned_samples, unassigned_tokens, &mut notes);
        let outside = self.outside_run();
        if let Some((joules, seconds)) = outside {
            notes.push(format!(
                "{} more were taken before its run began or after it ended, in {}: they are in none of its figures",
                units::format_joules(joules),
                units::format_duration(seconds)
            ));
        }
        let RunSums { of_samples, of_tokens, .. } = *sums.run();
        let kwh = energy.map(|joules| joules / JOULES_PER_KWH);

        // Energy in no window has the mean price of that in windows.
        let whole = divide_known(energy, in_windows);
        let priced = |rate_per_kwh: Option<f64>, of: fn(&ReportWindow) -> Option<f64>| match rate_per_kwh {
            Some(per_kwh) => kwh.map(|kwh| kwh * per_kwh),
            None => self.sum_if_complete(of).zip(whole).map(|(known, whole)| known * whole),
        };
        let by_time = |priced: GridTotal, notes: &mut Vec<String>| {
            notes.push(priced.note);
            priced.sum.zip(whole).map(|(known, whole)| known * whole)
        };
        let cost = match &settings.prices {
            Some(prices) if settings.price_per_kwh.is_none() && whole.is_some() => {
                by_time(prices.total_cost(&self.energy_by_time()), &mut notes)
            }
            _ => priced(settings.price_per_kwh, |window| window.cost),
        };
        let co2_grams = match &settings.carbon {
            Some(carbon) if settings.carbon_grams_per_kwh.is_none() && whole.is_some() => {
                by_time(carbon.total_grams(&self.energy_by_time()), &mut notes)
            }
            _ => priced(settings.carbon_grams_per_kwh, |window| window.co2),
        };

        notes.extend(of_saving);
        let SavingEstimate {
            baseline,
            joules,
            ratio,
            interval,
            throughput_ratio,
            compared_joules,
            expected_joules,
            compared,
            lacks_baseline,
            windows: comparisons,
        } = saving;
        notes.extend(ratio.and_then(|_| self.note_frozen_blocks()));
        let sharing = SharingComparison::of(self);
        let why_no_energy = self.lacks_energy().then(|| self.why_no_energy());
        self.add_notes(why_no_energy.as_deref(), &mut notes);
        if let (Some(alone), Some(shared)) = (sharing.alone, sharing.shared) {
            notes.push(format!(
                "while it shared its GPUs with other workloads a sample took {shared:.4} J, while it had them alone {alone:.4} J: that is \
                 what sharing costs or spares this job, and no part of the saving"
            ));
        }
        if settings.by == Some(ReportBreakdown::Span) && self.spans.is_empty() {
            notes.push(NO_SPANS.to_owned());
        }
        let currency = settings.currency.clone().or_else(|| settings.prices.as_ref()?.currency.clone());
        if cost.is_some() && currency.is_none() {
            notes.push(
                "the cost is in the currency of the prices, which has no name: `eadt report --currency CODE` sets it".to_owned(),
            );
        }
        let changes = self.applied_changes();
        let decided = self.by_time();
        let mut comparisons = comparisons.into_iter();
        let rows: Vec<WindowRow> = self
            .windows
            .iter()
            .map(|window| {
                let compared = (window.run_seconds > 0.0).then(|| comparisons.next()).flatten().unwrap_or_default();
                window_row(window, observed, &decided, compared)
            })
            .collect();
        WorkloadReport {
            workload: name.to_owned(),
            energy_joules: energy,
            energy_kwh: kwh,
            samples,
            tokens,
            joules_per_sample: of_samples.joules_per(),
            samples_per_joule: of_samples.per_joule(),
            tokens_per_joule: of_tokens.per_joule(),
            duration_seconds: duration,
            mean_power_watts: self.mean_power(),
            coverage_ratio: coverage,
            windows: self.windows.len() as u64,
            decisions: (self.decisions.len() + self.maintained.len()) as u64,
            decided_changes: self.decided_changes().len() as u64,
            recommendations: self.recommendation_count(),
            changes: changes.len() as u64,
            reverts: changes.iter().filter(|change| change.takes_back).count() as u64,
            origin: self.origin.unwrap_or_default(),
            meter: self.meter.filter(|_| energy.is_some()),
            cost,
            currency: currency.filter(|_| cost.is_some()),
            co2_grams,
            saving_joules: joules,
            saving_ratio: ratio,
            saving_ratio_low: interval.map(|(low, _)| low),
            saving_ratio_high: interval.map(|(_, high)| high),
            throughput_kept_ratio: throughput_ratio,
            baseline_joules_per_sample: baseline,
            compared_joules_per_sample: compared,
            compared_energy_joules: compared_joules,
            expected_energy_joules: expected_joules,
            compared_energy_ratio: compared_part(compared_joules, energy),
            alone_joules_per_sample: sharing.alone,
            shared_joules_per_sample: sharing.shared,
            shared_energy_ratio: sharing.part,
            unassigned_energy_joules: unassigned,
            outside_run_energy_joules: outside.map(|(joules, _)| joules),
            unassigned_samples,
            unassigned_tokens,
            samples_redone: self.samples_redone(),
            why_no_energy,
            notes,
            lacks_baseline,
            curve: rows.iter().map(window_point).collect(),
            decided: changes,
            by_window: (settings.by == Some(ReportBreakdown::Window)).then_some(rows),
            by_span: (settings.by == Some(ReportBreakdown::Span)).then(|| self.spans.iter().copied().cloned().collect()),
        }
    }

    /// Decisions to change something with their ids, by time, whether or not they were applied.
    fn decided_changes(&self) -> Vec<(&str, &ReportDecision)> {
        let all = self.decisions.iter().filter(|(_, decided)| decided.action != ControllerAction::Maintain);
        let mut all: Vec<(&str, &ReportDecision)> = all.map(|(id, decided)| (&**id, decided)).collect();
        all.sort_by_key(|(_, decided)| decided.time);
        all
    }

    /// Returns the number of changes that were written as recommendations and not made, neither then nor later.
    fn recommendation_count(&self) -> u64 {
        let recommended = |id: &str| self.actuations.get(id).is_some_and(|fate| fate.recommended && !fate.was_applied());
        self.decided_changes().iter().filter(|(id, _)| recommended(id)).count() as u64
    }

    /// Returns the changes that took effect, by time, with the verdict on them. An actuator reports what it applied. If the
    /// record has no actuator, a change took effect if a window up to the next one has the layout that it led to, or, without
    /// layouts, another generation.
    fn applied_changes(&self) -> Vec<DecidedChange> {
        let mut verdicts: BTreeMap<&str, &ReportDecision> = BTreeMap::new();
        for decided in self.decisions.values() {
            if let Some(concerned) = &decided.concerns
                && decided.layouts.is_some()
                && decided.verdict().is_some()
            {
                verdicts.insert(concerned, decided);
            }
        }
        let all = self.decided_changes();
        let windows: Vec<&ReportWindow> = if self.actuated { Vec::new() } else { self.windows.iter().collect() };
        let shown = |decided: &ReportDecision, until: EventTime| {
            let Some((_, to)) = decided.layouts.as_deref() else { return false };
            let first = windows.partition_point(|window| window.end <= decided.time);
            let before = first.checked_sub(1).map(|last| windows[last]);
            let after = windows[first..].iter().take_while(|window| window.end <= until);
            after.into_iter().any(|window| window.adopts_layout(before, to))
        };
        let applied = |place: usize| {
            let (id, decided) = all[place];
            if self.actuated {
                return self.actuations.get(id).is_some_and(ActuationSummary::was_applied);
            }
            let next = all[place + 1..].iter().map(|(_, next)| next.time).find(|time| *time > decided.time);
            shown(decided, next.unwrap_or(EventTime::MAX))
        };
        (0..all.len())
            .filter(|place| applied(*place))
            .map(|place| {
                let (id, decided) = all[place];
                let verdict = verdicts.get(id).and_then(|it| Some((it.time, it.verdict()?, it.reason.to_string())));
                let reverted = verdict.as_ref().is_some_and(|(_, verdict, _)| *verdict == ChangeVerdict::Reverted);
                DecidedChange {
                    time: decided.time,
                    takes_back: decided.takes_back(),
                    text: decided.text(),
                    reason: decided.reason.to_string(),
                    reverted,
                    verdict,
                }
            })
            .collect()
    }

    /// Returns the mean power in the run over the time in which it is known, in W. Each interval counts with the power of all its
    /// windows together, weighted by the longest of their covered times. Devices without a workload have one window each.
    fn mean_power(&self) -> Option<f64> {
        let mut intervals = BTreeMap::<EventTime, (f64, f64)>::new();
        for window in self.run() {
            if let Some(watts) = divide_known(window.run_energy, Some(window.powered_seconds())) {
                let (sum, seconds) = intervals.entry(window.start).or_default();
                *sum += watts;
                *seconds = seconds.max(window.powered_seconds());
            }
        }
        let joules = sum_known(intervals.values().map(|(watts, seconds)| Some(watts * seconds)));
        divide_known(joules, sum_known(intervals.values().map(|(_, seconds)| Some(*seconds))))
    }

    /// Returns the energy of each window of the run, spread evenly over the window.
    fn energy_by_time(&self) -> Vec<eadt_models::energy::EnergyInterval> {
        let instant = |time: EventTime| jiff::Timestamp::from_microsecond(time.micros()).unwrap_or(jiff::Timestamp::MAX);
        let interval = |window: &ReportWindow| {
            let joules = window.run_energy.filter(|joules| *joules > 0.0)?;
            Some(eadt_models::energy::EnergyInterval { from: instant(window.start), to: instant(window.end), joules })
        };
        self.run().filter_map(interval).collect()
    }

    /// Returns the sum, if every window with energy has the figure: a part of the cost is not the cost.
    fn sum_if_complete(&self, of: fn(&ReportWindow) -> Option<f64>) -> Option<f64> {
        let with_energy = || self.run().filter(|window| window.run_energy.is_some_and(|joules| joules > 0.0));
        with_energy().all(|window| of(window).is_some()).then(|| sum_known(with_energy().map(of))).flatten()
    }

    /// Returns whether nothing is known of the run's energy.
    fn lacks_energy(&self) -> bool {
        !self.windows.is_empty() && self.run().all(|window| window.run_energy.is_none() && window.unassigned <= 0.0)
    }

    fn add_notes(&self, why_no_energy: Option<&str>, notes: &mut Vec<String>) {
        if let Some(origins) = describe_mix(self.windows.iter().map(|window| window.origin), origin_word) {
            notes.push(format!("the totals mix windows of different origins: {origins}"));
        }
        let with_energy = self.run().filter(|window| window.run_energy.is_some());
        if let Some(meters) = describe_mix(with_energy.map(|window| window.meter), meter_word) {
            notes.push(format!("the totals mix windows whose energy is of different meters: {meters}"));
        }
        let gaps = self.windows.iter().filter(|window| window.gap).count();
        if gaps > 0 {
            notes.push(format!("{} inputs that the log no longer has", counted_as(gaps, "window lacks", "windows lack")));
        }
        // A window with events of its first moment only lacks nothing.
        let observed = self.observed_range();
        let unknown = self.run().filter(|window| window.run_energy.is_none() && window.seconds_in_run(observed) > 0.0).count();
        if let Some(why) = why_no_energy {
            notes.push(format!("{NO_ENERGY}{why}"));
        } else if unknown > 0 {
            let progress = self.run().any(|window| window.run_energy.is_none() && window.samples.is_some());
            let samples = if progress { ", and J/sample the samples there" } else { "" };
            // What a counter rose by over such windows is in the total.
            let but = if self.run().any(|window| window.unassigned > 0.0) { ", but for what counters rose by" } else { "" };
            notes.push(format!("the total leaves out {} without known energy{but}{samples}", counted(unknown, "window")));
        }
        let energy_only = self.run().filter(|window| window.run_energy.is_some() && window.samples.is_none()).count();
        if energy_only > 0 && self.run().any(|window| window.samples.is_some()) {
            notes.push(format!(
                "{} energy but no known progress: J/sample counts the energy all the same",
                counted_as(energy_only, "window has", "windows have")
            ));
        }
        self.note_contradicted(notes);
        notes.extend(self.note_counter_difference());
        notes.extend(self.note_late_devices());
        notes.extend(self.note_early_devices());
        notes.extend(self.note_silent_ranks());
        notes.extend(self.note_redone());
        let late: u64 = self.windows.iter().map(|window| window.late).sum();
        if late > 0 {
            notes.push(format!(
                "{} in no window",
                counted_as(
                    late,
                    "event came after its window was closed and is",
                    "events came after their window was closed and are"
                )
            ));
        }
        let stale: u64 = self.windows.iter().map(|window| window.stale).sum();
        if stale > 0 {
            notes.push(format!(
                "{} in no window",
                counted_as(
                    stale,
                    "event was not newer than the last one of its source and is",
                    "events were not newer than the last one of their source and are"
                )
            ));
        }
    }

    /// Returns a note if devices joined the run while its layout stayed: before, a window expects those alone that it knows. Windows that
    /// are not observed from start to end do not count, since devices are found within seconds of each other.
    fn note_late_devices(&self) -> Option<String> {
        /// Least part of the device time that is missing.
        const LEAST_MISSING: f64 = 0.01;
        let mut most: Option<&ReportWindow> = None;
        let (mut seconds, mut missing, mut found) = (0.0, 0.0, None);
        for window in self.run().filter(|window| window.gpus > 0 && window.is_observed_whole()) {
            let is_same = |before: &&ReportWindow| {
                let is_same_layout = window.generation == before.generation && window.layout == before.layout;
                is_same_layout && window.meter == before.meter && !window.restarted
            };
            match most.filter(is_same) {
                Some(before) if window.gpus > before.gpus => {
                    missing += seconds * f64::from(window.gpus - before.gpus);
                    found = found.or(Some((before.gpus, window)));
                    most = Some(window);
                }
                Some(_) => {}
                None => (most, seconds) = (Some(window), 0.0),
            }
            seconds += window.run_seconds;
        }
        let (before, from) = found?;
        let known: f64 = self.run().map(|window| window.run_seconds * f64::from(window.gpus)).sum();
        (missing > LEAST_MISSING * (known + missing)).then(|| {
            format!(
                "energy is of {} until {} and of {} then, without a restart or a change of the layout: if the job ran on all of them \
                 before, too, J/sample is too low, and coverage does not show it",
                counted(u64::from(before), "device"),
                from.start,
                from.gpus
            )
        })
    }

    /// Returns a note if devices of an imported log end before the others: nothing follows in such a log that shows whether they went
    /// on. A live device that falls silent is expected, and coverage shows it.
    fn note_early_devices(&self) -> Option<String> {
        /// Least part of the device time that is missing.
        const LEAST_MISSING: f64 = 0.01;
        let mut most: Option<&ReportWindow> = None;
        let (mut missing, mut known, mut found) = (0.0, 0.0, None);
        let is_imported = |window: &&ReportWindow| window.origin == Origin::Imported && window.gpus > 0;
        for window in self.run().filter(|window| is_imported(window) && window.is_observed_whole()) {
            known += window.run_seconds * f64::from(window.gpus);
            let is_same = |before: &&ReportWindow| {
                let is_same_layout = window.generation == before.generation && window.layout == before.layout;
                is_same_layout && window.meter == before.meter && !window.restarted
            };
            match most.filter(is_same) {
                Some(before) if window.gpus < before.gpus => {
                    missing += window.run_seconds * f64::from(before.gpus - window.gpus);
                    found = found.or(Some((before.gpus, window)));
                }
                Some(before) if window.gpus == before.gpus => {}
                _ => most = Some(window),
            }
        }
        let (before, from) = found?;
        (missing > LEAST_MISSING * (known + missing)).then(|| {
            format!(
                "energy is of {} until {} and of {} then, without a restart or a change of the layout: if the job went on on all of \
                 them, J/sample is too low, and coverage does not show it",
                counted(u64::from(before), "device"),
                from.start,
                from.gpus
            )
        })
    }

    /// Returns a note if ranks were silent while others reported.
    fn note_silent_ranks(&self) -> Option<String> {
        let silent: Vec<&ReportWindow> = self.run().filter(|window| window.progress_silent > 0.0).collect();
        let first = silent.first()?;
        let most = silent.iter().max_by(|a, b| a.progress_silent.total_cmp(&b.progress_silent))?;
        let ranks = (most.progress_silent * f64::from(most.ranks)).round().max(1.0);
        Some(format!(
            "in {} from {} on, {ranks:.0} of {} reported no progress while the others did: samples have nothing of theirs, and J/sample \
             takes them to be as fast as the others",
            counted(silent.len(), "window"),
            first.start,
            counted(u64::from(most.ranks), "rank")
        ))
    }

    /// Returns the samples that were done again; `None` if there are none.
    fn samples_redone(&self) -> Option<f64> {
        Some(self.windows.iter().map(|window| window.samples_redone).sum::<f64>()).filter(|samples| *samples > 0.0)
    }

    /// Returns a note if much of the work was done again, as of a job that begins anew and does not report it.
    fn note_redone(&self) -> Option<String> {
        /// Least part of all samples: a restart from a checkpoint repeats less.
        const LEAST_REDONE: f64 = 0.1;
        let redone = self.samples_redone()?;
        let new: f64 = self.windows.iter().filter_map(|window| window.samples).sum();
        let from = self.windows.iter().find(|window| window.redone)?.start;
        (redone > LEAST_REDONE * (redone + new)).then(|| {
            format!(
                "{redone:.0} samples from {from} on were done again, since their counter fell: their energy counts, and they are in no \
                 total. If another job began there, have it report `\"phase\": \"started\"` with its counters at 0"
            )
        })
    }

    /// Returns why no window of the run has energy, as far as the windows show it, and what would change it.
    fn why_no_energy(&self) -> String {
        const MAP: &str = "`--map power_watts=COLUMN:W` or `--map energy_joules_total=COLUMN:J`";
        let total = |of: fn(&ReportWindow) -> u64| self.run().map(of).sum::<u64>();
        if self.windows.iter().any(|window| window.has_energy) {
            return "what is known lies outside of the run, which the job's `started` and `finished` bound. Compare the clocks and time zones \
                    (`--time-zone` of `eadt import`) of power and progress"
                .to_owned();
        }
        if self.windows.iter().all(|window| window.gpus == 0) {
            return format!(
                "no device that is assigned to it reported. For a live job, have a collector read its GPUs and name it for them (`eadt up \
                 --gpus nvml --workload`, or `collector.assignments`; `--gpus none` reads none). For an imported one, import its power \
                 log, too ({MAP}, and the same `--workload`)"
            );
        }
        if self.run().any(|window| window.contradicted_seconds > 0.0) {
            return format!(
                "its energy counter cannot be believed, and no power is on record beside it. Map or collect power, too ({MAP})"
            );
        }
        let (from, to) = self.observed_range();
        let seconds = to.seconds_since(from);
        if seconds <= 0.0 {
            return "its devices reported at one moment only, and energy is known from two readings on. Record for longer, and more often"
                .to_owned();
        }
        let no_power = format!(
            "no two readings of its devices have an energy counter that can be used, or power no further apart than \
             processor.power_gap_seconds, {POWER_GAP_SECONDS:.0} by default: absent values such as [N/A], and power that no such device \
             can draw, count as none. Map or collect one of the two ({MAP})"
        );
        let replay = |seconds: &str| format!("replay with EADT_PROCESSOR__POWER_GAP_SECONDS={seconds}");
        let gap = |apart: &str, remedy: &str| {
            format!(
                "readings of its devices are {apart} apart. Power is not known between two readings further apart than \
                 processor.power_gap_seconds, {POWER_GAP_SECONDS:.0} by default: if they have power, {remedy}"
            )
        };
        // Steps are clipped to their window: only shorter ones show their length.
        let shorter = |window: &&ReportWindow| window.largest_gap < window.end.seconds_since(window.start) - 1e-3;
        let whole: Vec<&ReportWindow> = self.run().filter(|window| window.is_observed_whole() && window.gpus > 0).collect();
        let steps = whole.iter().map(|window| window.largest_gap).fold(0.0, f64::max);
        if seconds <= POWER_GAP_SECONDS || !whole.is_empty() && whole.iter().all(shorter) && steps <= POWER_GAP_SECONDS {
            return no_power;
        }
        let devices = self.run().map(|window| window.gpus).max().unwrap_or(1);
        let between = total(|window| window.events).saturating_sub(u64::from(devices));
        if total(|window| u64::from(window.ranks)) > 0 || between == 0 {
            // Events of progress are among them.
            let apart = format!("{POWER_GAP_SECONDS:.0} s or more");
            return format!("either {}; or {no_power}", gap(&apart, &replay("SECONDS")));
        }
        let apart = seconds * f64::from(devices) / between as f64;
        if apart <= POWER_GAP_SECONDS {
            return no_power;
        }
        let wanted = (1.1 * apart).ceil();
        let remedy = if wanted > MOST_POWER_GAP_SECONDS {
            format!("{MOST_POWER_GAP_SECONDS:.0} is the most that it can be: record more often, or an energy counter")
        } else {
            replay(&format!("{wanted:.0}"))
        };
        gap(&format!("about {apart:.0} s"), &remedy)
    }

    /// Notes in how many windows a counter is contradicted, and which energy is there.
    fn note_contradicted(&self, notes: &mut Vec<String>) {
        let energies = [
            (Some(false), "energy is the integral of power", "contradicted it"),
            (None, "energy is the integral of power, and unknown where no power is on record", "contradicted it"),
            (
                Some(true),
                "energy is not known, for no power is on record beside the energy counter (`--map power_watts=COLUMN:W`)",
                "cannot be believed there",
            ),
        ];
        for (unknown, energy, verdict) in energies {
            let windows = || self.run().filter(|it| it.contradicted_seconds > 0.0 && it.contradicted_unknown == unknown);
            let count = windows().count();
            if count > 0 {
                let seconds: f64 = windows().map(|window| window.contradicted_seconds).sum();
                notes.push(format!(
                    "in {}, for {seconds:.0} s of device time, {energy}: an energy counter {verdict} (stood still, fell, or \
                     rose by what the board cannot draw)",
                    counted(count, "window")
                ));
            }
        }
    }

    /// Returns a note if blocks were frozen in a part of the run.
    fn note_frozen_blocks(&self) -> Option<String> {
        let is_frozen = |window: &&ReportWindow| {
            let layers = window.layout.as_ref().and_then(|layout| layout.frozen_prefix_layers);
            layers.is_some_and(|layers| layers > 0)
        };
        let joules =
            |windows: &mut dyn Iterator<Item = &ReportWindow>| windows.filter_map(|window| window.run_energy).sum::<f64>();
        let (frozen, all) = (joules(&mut self.run().filter(is_frozen)), joules(&mut self.run()));
        (frozen > 0.0).then(|| FewerStepsControl::note(self.fewer_steps, frozen / all))
    }

    /// Describes an energy counter that differs from the power that counts instead of it; `None` if the steps of the counter explain it.
    fn note_counter_difference(&self) -> Option<String> {
        let differences = || self.run().map(|window| window.counter_difference);
        let (sum, largest) = (differences().sum::<f64>(), differences().fold(0.0, |most: f64, joules| most.max(joules.abs())));
        let energy: f64 = self.run().filter_map(|window| window.run_energy).sum();
        let is_off = sum.abs() > DIFFERENCE_RATIO * energy && sum.abs() > STEPS_OF_DIFFERENCE * largest;
        is_off.then(|| {
            let (joules, more) = (units::format_joules(sum.abs()), if sum > 0.0 { "more" } else { "less" });
            format!(
                "energy is the integral of power where an energy counter rises seldom, and the counter gives {joules} {more}, of {} in all: \
                 one of the two is wrong",
                units::format_joules(energy)
            )
        })
    }

    /// Returns the decision at each time; of several, the one that changes a setting.
    fn by_time(&self) -> BTreeMap<EventTime, WindowDecision<'_>> {
        let maintained = self.maintained.iter().map(|&(time, reason)| (time, WindowDecision { decided: None, reason }));
        let mut all: BTreeMap<EventTime, WindowDecision<'_>> = maintained.collect();
        for decided in self.decisions.values() {
            let it = WindowDecision { decided: Some(decided), reason: &decided.reason };
            let entry = all.entry(decided.time).or_insert(it);
            if entry.action() == ControllerAction::Maintain {
                *entry = it;
            }
        }
        all
    }
}

/// The decision at the end of a window.
#[derive(Debug, Clone, Copy)]
struct WindowDecision<'a> {
    /// `None` for `maintain`, which assesses nothing.
    decided: Option<&'a ReportDecision>,
    reason: &'a str,
}

impl WindowDecision<'_> {
    fn action(&self) -> ControllerAction {
        self.decided.map_or(ControllerAction::Maintain, |decided| decided.action)
    }

    fn text(&self) -> Cow<'static, str> {
        match self.decided {
            Some(decided) => decided.text(),
            None => words::maintain_text(ChangeValidation::None).into(),
        }
    }
}

fn window_point(row: &WindowRow) -> WindowPoint {
    WindowPoint {
        start: row.window_start,
        end: row.window_end,
        joules_per_sample: row.joules_per_sample,
        power_watts: row.mean_power_watts,
        baseline: divide_known(row.baseline_energy_joules, row.baseline_samples),
        phase: row.phase,
        restarted: row.restarted,
        origin: row.origin,
    }
}

fn window_row(
    window: &ReportWindow,
    observed: EventTimeRange,
    decided: &BTreeMap<EventTime, WindowDecision<'_>>,
    compared: WindowBaseline,
) -> WindowRow {
    let decision = decided.get(&window.end);
    let seconds = window.seconds_in_run(observed);
    // Progress is known for the window as a whole.
    let progress_seconds = if window.declared { window.end.seconds_since(window.start) } else { seconds };
    WindowRow {
        window_start: window.start,
        window_end: window.end,
        origin: window.origin,
        duration_seconds: seconds,
        energy_joules: window.run_energy,
        samples: window.samples,
        tokens: window.tokens,
        joules_per_sample: window.energy_per_sample,
        restarted: window.has_restart,
        mean_power_watts: window.mean_power.or_else(|| window.run_power()),
        run_mean_power_watts: window.run_power(),
        coverage_ratio: part_of(window.covered_seconds(), seconds),
        progress_coverage_ratio: part_of(window.progress_seconds(), progress_seconds),
        phase: compared.phase.map(|phase| phase as u64 + 1),
        baseline_energy_joules: compared.baseline_joules,
        baseline_samples: compared.baseline_samples,
        action: decision.map(WindowDecision::action),
        action_text: decision.map(WindowDecision::text),
        reason: decision.map(|decision| decision.reason.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_reason_is_kept_once_however_many_decisions_have_it() {
        let mut reporter = Reporter::default();
        let reasons = ["a", "b", "short"].map(|text| text.repeat(if text.len() == 1 { 1 << 20 } else { 1 }));
        for (number, reason) in reasons.iter().cycle().take(300).enumerate() {
            let time = EventTime::from_seconds(number as f64);
            let id = if number % 2 == 0 { format!("lab/a@{time}/matrix") } else { format!("d-{number}") };
            let decision = Decision { id, workload: "lab/a".into(), time, reason: reason.clone(), ..Decision::default() };
            reporter.add_decision(&decision);
        }
        let kept = &reporter.workloads["lab/a"];
        assert_eq!((kept.maintained.len(), kept.decisions.len(), kept.long_reasons.len()), (150, 150, 2));
        let texts = kept.maintained.values().chain(kept.decisions.values().map(|decided| &decided.reason));
        let places: BTreeSet<*const u8> = texts.filter(|text| text.len() > 5).map(|text| text.as_ptr()).collect();
        assert_eq!(places.len(), 2);
    }
}
