//! Allocation of a power budget among the workloads that share it: the controller `power-budget`.
//!
//! In: the workloads that share the budget, with their layouts in force, and what is known of their throughput against power.
//! Out: decisions that set power caps. The sum over all GPUs of the highest cap that may come into force is never above the
//! budget: reductions are decided at once; a raise is given only what is left while every reduction that is not in force yet
//! counts as not made, and every raise that was given counts until it has expired, whether it was carried out or not.
//!
//! Watts go where another joule gives the most work (water-filling). Each workload's throughput against the power of a GPU is
//! made concave and divided into straight pieces. The pieces of all workloads are filled in the order of their slopes. Work is
//! counted in GPUs at full throughput, because samples of different jobs cannot be compared. No workload gets more than the cap
//! at which it takes least energy for a sample without being slower than it may be; none less than its bounds.

mod curve;
mod points;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::counts::counted_as;
use eadt_schemas::v1::{ControllerAction, Decision, UpdateMode, Workload};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::controller::ControllerName;
use curve::ConcavePowerCurve;
pub use points::CapMeasurements;

/// The controller's name in decisions.
pub const CONTROLLER: &str = ControllerName::PowerBudget.as_str();
/// Grows with every change of what it decides.
pub(crate) const VERSION: &str = "4";

/// How a budget is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetSettings {
    /// Power of the GPUs of all workloads whose controller is `power-budget`, together, in watts: the sum of the caps that may be
    /// in force is never raised above it. Absent: there is no budget. Above 0, at most 1,000,000,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_watts: Option<f64>,
    /// Lowest cap as a part of the board's limit, where the workload's bounds have none. 0.001 to 1. Default 0.3.
    pub power_limit_min_ratio: f64,
    /// Throughput that a workload may lose where there is power enough. 0 to 0.9. Default 0.07.
    pub max_slowdown_ratio: f64,
    /// Caps that differ by less than this part are left as they are, unless the budget is exceeded. 0 to 0.5. Default 0.02.
    pub cap_change_min_ratio: f64,
    /// A window with less known energy or progress than this part of its time does not count. 0 to 1. Default 0.9.
    pub coverage_min_ratio: f64,
    /// A workload without a window that counts for so long, in event time, is left as it is, and its cap counts in full, in
    /// seconds. Above 0, at most 86,400. Default 300.
    pub silence_seconds: f64,
    /// A decision that was not applied within this time is void, in seconds. Above 0, at most 86,400. Default 300.
    #[serde(rename = "expiry_seconds")]
    pub decision_expiry_seconds: f64,
    /// How much later than it expired a raise may still show up in `workloads.v1`, in seconds: clocks differ, and agents take
    /// their time. Until then it counts as if it were in force. 0 to 86,400. Default 60.
    pub settle_seconds: f64,
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self {
            budget_watts: None,
            power_limit_min_ratio: 0.3,
            max_slowdown_ratio: 0.07,
            cap_change_min_ratio: 0.02,
            coverage_min_ratio: 0.9,
            silence_seconds: 300.0,
            decision_expiry_seconds: 300.0,
            settle_seconds: 60.0,
        }
    }
}

impl BudgetSettings {
    /// Checks all fields; the error names the first that is out of its range, with the expected range.
    pub fn check(&self) -> Result<(), String> {
        const DAY: f64 = 86_400.0;
        let ranges = [
            ("budget_watts", self.budget_watts.unwrap_or(1.0), 1e-3, 1e9),
            ("power_limit_min_ratio", self.power_limit_min_ratio, 1e-3, 1.0),
            ("max_slowdown_ratio", self.max_slowdown_ratio, 0.0, 0.9),
            ("cap_change_min_ratio", self.cap_change_min_ratio, 0.0, 0.5),
            ("coverage_min_ratio", self.coverage_min_ratio, 0.0, 1.0),
            ("silence_seconds", self.silence_seconds, 1e-3, DAY),
            ("expiry_seconds", self.decision_expiry_seconds, 1e-3, DAY),
            ("settle_seconds", self.settle_seconds, 0.0, DAY),
        ];
        match ranges.iter().find(|(_, value, low, high)| !(*low..=*high).contains(value)) {
            Some((name, value, low, high)) => Err(format!("{name} is {value}, but must be within {low} and {high}")),
            None => Ok(()),
        }
    }

    /// Returns the budget in watts; infinity if there is none.
    fn watts_or_unlimited(&self) -> f64 {
        self.budget_watts.unwrap_or(f64::INFINITY)
    }
}

/// Throughput of a workload at a power of each of its GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PowerPoint {
    pub watts: f64,
    pub samples_per_second: f64,
}

/// Kind of change that is allowed for a workload in one allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CapChangeState {
    /// Its cap may be turned.
    #[default]
    Open,
    /// It had no usable window for a while, so its loss or gain is unknown. A monitor that fails must slow no job, so its cap
    /// stays. If the budget is exceeded, it gives up watts like all others.
    Silent,
    /// Its last change is not in force yet: no other one would be accepted.
    Rolling,
}

/// One workload that shares the budget.
#[derive(Debug, Clone, Copy)]
pub struct BudgetedWorkload<'a> {
    /// Layout, bounds and board in force.
    pub workload: &'a Workload,
    /// Measured points, or those of a learned curve. If there are none, throughput is assumed to rise with the root of the power.
    pub points: &'a [PowerPoint],
    /// Name and version of the learned model that the points are from.
    pub model_version: Option<&'a str>,
    pub cap_change: CapChangeState,
    /// Power of all its GPUs together under what was in force before and may still be, in watts; 0: nothing is; `None`: it is not
    /// known.
    pub lingering_watts: Option<f64>,
}

impl<'a> BudgetedWorkload<'a> {
    /// Builds a workload whose cap may be turned and is in force as its layout shows.
    pub fn new(workload: &'a Workload, points: &'a [PowerPoint]) -> Self {
        Self { workload, points, model_version: None, cap_change: CapChangeState::Open, lingering_watts: Some(0.0) }
    }
}

/// A raise that may still come into force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PowerGrant {
    decision: String,
    time: EventTime,
    watts: f64,
    expires: EventTime,
}

/// The raises of each workload that may still come into force.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BudgetState {
    grants: BTreeMap<String, PowerGrants>,
}

/// Grants of one workload.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PowerGrants(Vec<PowerGrant>);

impl PowerGrants {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl BudgetState {
    /// Returns the grants of a workload, if there are any.
    pub fn grants_of(&self, workload: &str) -> Option<&PowerGrants> {
        self.grants.get(workload)
    }

    pub fn put(&mut self, workload: &str, grants: PowerGrants) {
        if grants.is_empty() {
            self.grants.remove(workload);
        } else {
            self.grants.insert(workload.to_owned(), grants);
        }
    }

    /// Notes that the decision was refused: it will not come into force.
    pub fn on_refused(&mut self, workload: &str, decision: &str) {
        self.retain(workload, |grant| grant.decision != decision);
    }

    /// Notes that a decision of this time is in force: no older one will be accepted.
    pub fn on_applied(&mut self, workload: &str, time: EventTime) {
        self.retain(workload, |grant| grant.time > time);
    }

    fn retain(&mut self, workload: &str, keep: impl FnMut(&PowerGrant) -> bool) {
        if let Some(grants) = self.grants.get_mut(workload) {
            grants.0.retain(keep);
            if grants.0.is_empty() {
                self.grants.remove(workload);
            }
        }
    }

    fn expire(&mut self, time: EventTime, settle_seconds: f64) {
        self.grants.retain(|_, grants| {
            grants.0.retain(|grant| grant.expires.plus_seconds(settle_seconds) > time);
            !grants.0.is_empty()
        });
    }

    fn highest_watts(&self, workload: &str) -> f64 {
        self.grants.get(workload).into_iter().flat_map(|grants| &grants.0).map(|grant| grant.watts).fold(0.0, f64::max)
    }
}

/// Result of one allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetOutcome {
    /// Changes to make now.
    pub decisions: Vec<Decision>,
    /// Power of all GPUs if every cap that may come into force did and were reached, in watts; `None`: a cap is not known.
    pub exposed_watts: Option<f64>,
    /// The sum of the lowest caps of the workloads is above the budget.
    pub infeasible: bool,
    /// The reason for these changes, or for none.
    pub reason: String,
}

/// Caps that are possible on one workload's GPUs, in watts.
#[derive(Debug, Clone)]
struct CapRange {
    gpus: f64,
    /// Caps of one GPU.
    least: f64,
    most: f64,
    in_force: f64,
    /// The highest cap that may be in force before the next evaluation.
    exposed: f64,
    curve: ConcavePowerCurve,
}

/// Watts that rounding may leave or take.
const EPSILON: f64 = 1e-6;

/// Caps of one GPU of each workload, in whole watts.
#[derive(Debug, Clone, PartialEq)]
struct AllocatedCaps {
    caps: Vec<f64>,
    /// Power that the lowest caps need, in watts, if it is above the budget.
    infeasible: Option<f64>,
}

/// A straight piece of a workload's curve.
struct CurveSegment {
    range_index: usize,
    watts: f64,
    slope: f64,
}

fn distribute_watts(ranges: &[CapRange], settings: &BudgetSettings) -> AllocatedCaps {
    let mut caps: Vec<f64> = ranges.iter().map(|range| range.least).collect();
    let need: f64 = ranges.iter().map(|range| range.gpus * range.least).sum();
    let mut left = settings.watts_or_unlimited() - need;
    if left < 0.0 {
        return AllocatedCaps { caps, infeasible: Some(need) };
    }
    let mut pieces: Vec<CurveSegment> = Vec::new();
    for (index, range) in ranges.iter().enumerate() {
        let wanted = range.curve.most_efficient_watts(1.0 - settings.max_slowdown_ratio);
        for pair in range.curve.knots.windows(2) {
            let ((w0, p0), (w1, p1)) = (pair[0], pair[1]);
            let watts = (w1.min(wanted) - w0).max(0.0);
            pieces.push(CurveSegment { range_index: index, watts, slope: (p1 - p0) / (w1 - w0) });
        }
    }
    // Stable: pieces of one workload stay in the order of the power, those of equal slope in the order of the workloads.
    pieces.sort_by(|a, b| b.slope.total_cmp(&a.slope));
    for piece in pieces {
        let range = &ranges[piece.range_index];
        let watts = piece.watts.min(left / range.gpus);
        caps[piece.range_index] += watts;
        left -= watts * range.gpus;
    }
    let whole = |(cap, range): (f64, &CapRange)| (cap + EPSILON).floor().clamp(range.least, range.most);
    AllocatedCaps { caps: caps.into_iter().zip(ranges).map(whole).collect(), infeasible: None }
}

/// Returns the caps that are possible. `pressed`: the caps in force exceed the budget, so that all workloads have to give.
fn cap_range(
    consumer: &BudgetedWorkload<'_>,
    state: &BudgetState,
    settings: &BudgetSettings,
    pressed: bool,
) -> Result<CapRange, String> {
    let Workload { workload, layout, bounds, gpus, gpu_power_limit_watts, .. } = consumer.workload;
    let gpus = gpus.filter(|gpus| *gpus > 0).ok_or_else(|| format!("the number of GPUs of {workload} is not known"))?;
    let board = gpu_power_limit_watts.filter(|watts| *watts > 0.0);
    let unlimited = || format!("neither a cap nor the board's power limit of {workload} is known: its highest power is unknown");
    // A workload that is paused or only observed has no cap in force: its GPUs are back at the board's limit, or on their way
    // there.
    let held = !consumer.workload.paused && consumer.workload.mode != UpdateMode::Observe;
    let in_force = layout.power_limit_watts.filter(|_| held).or(board).ok_or_else(unlimited)?;
    let lingering = consumer.lingering_watts.ok_or_else(|| {
        format!("a change of {workload} is not ready yet, and the cap before it is not known: its highest power is unknown")
    })?;
    let top = [board, bounds.power_limit_watts_max].into_iter().flatten().reduce(f64::min);
    let known_top = top.is_some();
    let top = top.unwrap_or(in_force);
    let least = bounds.power_limit_watts_min.unwrap_or(settings.power_limit_min_ratio * board.unwrap_or(top)).ceil().min(top);
    // A workload that must not be changed keeps its cap, and counts. So does one without a known highest cap: measured against
    // itself it would only ever fall.
    let turns = consumer.workload.mode == UpdateMode::Enforce && !consumer.workload.paused && known_top;
    let (least, most) = match consumer.cap_change {
        CapChangeState::Open if turns => (least, top),
        CapChangeState::Silent if turns && pressed => (least.min(in_force), in_force),
        CapChangeState::Open | CapChangeState::Silent | CapChangeState::Rolling => (in_force, in_force),
    };
    let gpus = f64::from(gpus);
    // If the workload had more GPUs before, the others may still run.
    let exposed = in_force.max(lingering / gpus).max(state.highest_watts(workload));
    Ok(CapRange { gpus, least, most, in_force, exposed, curve: ConcavePowerCurve::from_points(consumer.points, least, most) })
}

fn total_exposed_watts(ranges: &[CapRange]) -> f64 {
    ranges.iter().map(|range| range.exposed * range.gpus).sum()
}

/// Allocates the budget at the end of a window. `consumers` are all workloads whose power counts, in the order of their names.
///
/// If a cap is unknown, no workload gets more, because the remaining watts are unknown; those with known caps still give up the
/// watts above the budget. `unknown`: the reason why the cap of a workload outside of `consumers` is unknown.
pub fn allocate(
    state: &mut BudgetState,
    time: EventTime,
    consumers: &[BudgetedWorkload<'_>],
    settings: &BudgetSettings,
    mut unknown: Option<String>,
) -> BudgetOutcome {
    state.expire(time, settings.settle_seconds);
    let mut known: Vec<&BudgetedWorkload<'_>> = Vec::with_capacity(consumers.len());
    let mut ranges: Vec<CapRange> = Vec::with_capacity(consumers.len());
    for consumer in consumers {
        match cap_range(consumer, state, settings, false) {
            Ok(range) => {
                known.push(consumer);
                ranges.push(range);
            }
            Err(reason) => unknown = unknown.or(Some(reason)),
        }
    }
    let over = total_exposed_watts(&ranges) > settings.watts_or_unlimited() + EPSILON;
    if ranges.iter().map(|range| range.in_force * range.gpus).sum::<f64>() > settings.watts_or_unlimited() + EPSILON {
        ranges = known.iter().filter_map(|consumer| cap_range(consumer, state, settings, true).ok()).collect();
    }
    let shared = distribute_watts(&ranges, settings);
    let expires = time.plus_seconds(settings.decision_expiry_seconds);
    let apart = |a: f64, b: f64| (a - b).abs() >= (settings.cap_change_min_ratio * b).max(1.0) || (over && (a - b).abs() >= 1.0);
    let mut decisions = Vec::new();
    // Reductions first; what they free counts once it is in force. If a cap is unknown, freed watts are not given to any
    // workload.
    if unknown.is_none() || over {
        for (i, range) in ranges.iter().enumerate() {
            if shared.caps[i] < range.in_force && apart(shared.caps[i], range.in_force) {
                decisions.push(decision(known[i], range, shared.caps[i], time, expires, settings));
            }
        }
    }
    for i in (0..ranges.len()).filter(|_| unknown.is_none()) {
        let CapRange { in_force, exposed, gpus, .. } = ranges[i];
        let others = total_exposed_watts(&ranges) - exposed * gpus;
        let fits = ((settings.watts_or_unlimited() - others) / gpus + EPSILON).floor();
        let watts = shared.caps[i].min(fits);
        if watts >= exposed.max(in_force) && apart(watts, in_force) {
            ranges[i].exposed = watts;
            let decision = decision(known[i], &ranges[i], watts, time, expires, settings);
            let grants = state.grants.entry(decision.workload.clone()).or_default();
            grants.0.push(PowerGrant { decision: decision.id.clone(), time, watts, expires });
            decisions.push(decision);
        }
    }
    let (exposed_watts, budget_watts) = (total_exposed_watts(&ranges), settings.watts_or_unlimited());
    let reason = match (&unknown, shared.infeasible) {
        (Some(unknown), _) => unknown.clone(),
        (None, Some(need)) => format!(
            "the budget of {budget_watts:.0} W cannot be held: the workloads' lowest caps need {need:.0} W; every cap goes to its lowest"
        ),
        (None, None) if decisions.is_empty() => format!("{exposed_watts:.0} of {budget_watts:.0} W are allocated"),
        (None, None) => {
            let changes = counted_as(decisions.len(), "cap changes", "caps change");
            format!("{changes}; {exposed_watts:.0} of {budget_watts:.0} W may be drawn")
        }
    };
    BudgetOutcome {
        decisions,
        exposed_watts: unknown.is_none().then_some(exposed_watts),
        infeasible: shared.infeasible.is_some(),
        reason,
    }
}

fn decision(
    consumer: &BudgetedWorkload<'_>,
    range: &CapRange,
    watts: f64,
    time: EventTime,
    expires: EventTime,
    settings: &BudgetSettings,
) -> Decision {
    let what = if watts < range.in_force { "gives up" } else { "gets" };
    let gpus = if range.gpus > 1.0 { format!("each of its {:.0} GPUs", range.gpus) } else { "its GPU".to_owned() };
    let reason = format!(
        "{what} {:.0} W of {gpus}, {:.0} → {watts:.0} W: the budget of {:.0} W goes where a joule does most work",
        (watts - range.in_force).abs(),
        range.in_force,
        settings.watts_or_unlimited()
    );
    let mut decision = draft(consumer.workload, time, settings, reason);
    decision.action = ControllerAction::SetPowerLimit;
    decision.to.power_limit_watts = Some(watts);
    decision.expires = expires;
    decision.model_version = consumer.model_version.map(str::to_owned);
    decision.evidence.insert("power_limit_min_watts".into(), range.least);
    decision.evidence.insert("measured_points".into(), consumer.points.len() as f64);
    decision
}

/// Returns a decision to leave a workload as it is.
pub(crate) fn maintain(workload: &Workload, time: EventTime, settings: &BudgetSettings, reason: String) -> Decision {
    draft(workload, time, settings, reason)
}

/// Drafts a decision that maintains, unless changed.
fn draft(workload: &Workload, time: EventTime, settings: &BudgetSettings, reason: String) -> Decision {
    let in_force = workload.layout.power_limit_watts.or(workload.gpu_power_limit_watts);
    let evidence =
        [("budget_watts", settings.budget_watts), ("gpus", workload.gpus.map(f64::from)), ("power_limit_watts", in_force)];
    Decision {
        id: format!("{}@{time}/{CONTROLLER}", workload.workload),
        workload: workload.workload.clone(),
        time,
        origin: workload.origin,
        controller: CONTROLLER.into(),
        controller_version: VERSION.into(),
        reason,
        from: workload.layout.clone(),
        to: workload.layout.clone(),
        generation: Some(workload.generation),
        evidence: evidence.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect(),
        expires: time.plus_seconds(settings.decision_expiry_seconds),
        ..Decision::default()
    }
}

/// Returns the time of the decision of this id, if it is of this controller.
pub(crate) fn decided_at(workload: &str, id: &str) -> Option<EventTime> {
    id.strip_prefix(workload)?.strip_prefix('@')?.strip_suffix(CONTROLLER)?.strip_suffix('/')?.parse().ok()
}
