//! The controller `sm-partition`: sets the partition that was chosen for workloads that share a GPU.
//!
//! In: the workloads of one GPU with their present layouts, at the end of a window. Out: decisions for those whose share changes.
//! Reductions are decided first, raises only once every reduction is in force and ready, so that the shares in force never sum to
//! more than before, or than 100 %. It decides about workloads with one GPU and one process on it: a workload with several GPUs
//! has one share for all of them, on which the others on each would have to agree.
//!
//! A partition is compared with the one before it, in normalised work per watt of the same workloads. If it gave less, or slows a
//! workload down by more than is allowed, it is reverted and not tried again, and the pause after it doubles. If a revert is
//! refused, or only a part of a partition came into force, the former shares are restored after the pause.

use std::collections::{BTreeMap, BTreeSet};

use eadt_schemas::EventTime;
use eadt_schemas::figures::{format_percent, format_signed_percent};
use eadt_schemas::v1::{ChangeValidation, ControllerAction, Decision, Layout, Origin, Workload};
use serde::{Deserialize, Serialize};

use crate::choose::{ObjectiveScale, choose_among};
use crate::co_runs::idle_of;
use crate::{
    ChoiceSettings, ChoiceVerdict, GpuTenants, PredictionError, ShareCandidate, ShareChoice, SharePredictor, SoloProfile,
};

pub use eadt_core::gpu_sharing::CONTROLLER;
/// Incremented with every change of its decisions.
pub(crate) const VERSION: &str = "5";
/// Partitions that did not help and are remembered of one GPU.
const MAX_FAILED: usize = 16;
/// Sets of workloads whose rests are remembered of one GPU.
const MAX_RESTS: usize = 16;
/// Longest rest after partitions that did not help.
const DAY_SECONDS: f64 = 86_400.0;

/// Settings of the rebalancing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RebalanceSettings {
    /// Settings for the choice of a partition. The least gain counts against the partition in force.
    pub choice: ChoiceSettings,
    /// Shares are multiples of this percentage. 1 to 50. Default 10.
    pub step_percentage: u32,
    /// Time without a change after a partition is in force or was given up, in seconds. At least 0. Default 3600.
    pub hold_seconds: f64,
    /// A partition that is not in force after this time is given up, in seconds. Above 0. Default 1800.
    pub give_up_seconds: f64,
    /// A decision that was not applied within this time is void, in seconds. Above 0. Default 300.
    pub decision_expiry_seconds: f64,
    /// A partition is compared with the one before it by the medians of this many windows of each workload. At least 1. Default
    /// 3.
    pub validation_windows: usize,
}

impl Default for RebalanceSettings {
    fn default() -> Self {
        Self {
            choice: ChoiceSettings::default(),
            step_percentage: 10,
            hold_seconds: 3600.0,
            give_up_seconds: 1800.0,
            decision_expiry_seconds: 300.0,
            validation_windows: 3,
        }
    }
}

/// A usable window of a workload beside others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WindowFigures {
    pub end: EventTime,
    /// Workloads on the GPU, this one included.
    pub tenants: u32,
    pub mps_thread_percentage: u32,
    pub samples_per_second: f64,
    /// Its part of the GPU's power.
    pub power_watts: f64,
}

/// One workload of the GPU.
#[derive(Debug, Clone, Copy)]
pub struct GpuSharer<'a> {
    /// Layout and bounds in force.
    pub workload: &'a Workload,
    /// Its measurements alone; `None` if unknown so far.
    pub profile: Option<&'a SoloProfile>,
    /// Its newest windows beside others, in order.
    pub figures: &'a [WindowFigures],
}

/// The predictor in use.
#[derive(Debug, Clone, Copy)]
pub struct ModelChoice<'a> {
    pub predictor: &'a dyn SharePredictor,
    /// Version of the learned model; `None` for [`crate::AdditivePredictor`].
    pub model_version: Option<&'a str>,
    /// Power of the GPU while its processes wait; `None` for the value with which the additive model fits the present
    /// partition.
    pub idle_watts: Option<f64>,
}

/// SM share of each workload.
type SmShares = BTreeMap<String, u32>;
/// Throughput of each workload, in samples per second.
type SampleRates = BTreeMap<String, f64>;

/// A partition on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct PendingShares {
    shares: SmShares,
    since: EventTime,
    gain_ratio: f64,
    sure_gain_ratio: f64,
    power_watts: f64,
    model_version: Option<String>,
    /// The shares before it, their work per watt and the throughput of each workload, if these were measured.
    before: SmShares,
    before_worth: Option<f64>,
    #[serde(default)]
    before_rates: SampleRates,
    /// It is a revert.
    back: bool,
    /// It restores the shares before a partition that was given up when a part of it was in force.
    #[serde(default)]
    half_way: bool,
}

impl PendingShares {
    /// Returns the request that remains if it is given up: the former shares, if a part of it is in force.
    fn way_back(self) -> Self {
        if self.back {
            return self;
        }
        let (shares, before) = (self.before, self.shares);
        Self {
            shares,
            before,
            before_worth: None,
            before_rates: SampleRates::new(),
            model_version: None,
            back: true,
            half_way: true,
            ..self
        }
    }

    /// Returns the validation that its decisions have of the partition before it.
    fn validation(&self) -> ChangeValidation {
        if self.back && !self.half_way { ChangeValidation::Failed } else { ChangeValidation::None }
    }

    /// Returns whether the shares in force are a mixture of those before it and its own, so that they were not set from outside.
    fn is_on_its_way(&self, in_force: &SmShares) -> bool {
        let complete = *in_force == self.shares || (self.half_way && *in_force == self.before);
        !complete && in_force.iter().all(|(name, share)| [self.shares.get(name), self.before.get(name)].contains(&Some(share)))
    }
}

/// A partition that is in force and has to show that it helps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct SharesTrial {
    shares: SmShares,
    since: EventTime,
    before: SmShares,
    before_worth: f64,
    #[serde(default)]
    before_rates: SampleRates,
    expected_gain_ratio: f64,
}

/// The rest of one set of workloads: another one on the same GPU has its own.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Cooldown {
    workloads: BTreeSet<String>,
    until: Option<EventTime>,
    /// Partitions in a row that did not help.
    failures: u32,
}

/// State of one GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RebalanceState {
    wanted: Option<PendingShares>,
    trial: Option<SharesTrial>,
    /// A way back that has still to be taken after the rest.
    retreat: Option<PendingShares>,
    /// Partitions that did not help.
    failed: Vec<SmShares>,
    /// The newest last.
    rests: Vec<Cooldown>,
}

impl RebalanceState {
    /// Notes that the wanted partition was refused or rolled back.
    pub fn give_up(&mut self, time: EventTime, settings: &RebalanceSettings) {
        if let Some(wanted) = self.wanted.take() {
            self.rest(&wanted.shares, time, settings);
            self.retreat = Some(wanted.way_back());
        }
    }

    /// Returns whether a change of these workloads, by their names in order, is in progress or being validated, or has to be
    /// reverted.
    pub fn is_busy(&self, workloads: &[&str]) -> bool {
        let wanted = [&self.wanted, &self.retreat].into_iter().flatten().map(|wanted| &wanted.shares);
        wanted.chain(self.trial.as_ref().map(|trial| &trial.shares)).any(|shares| shares.keys().eq(workloads))
    }

    /// Returns the time until which nothing is tried with the workloads of these shares.
    fn rests_until(&self, of: &SmShares) -> Option<EventTime> {
        self.rests.iter().find(|rest| rest.workloads.iter().eq(of.keys()))?.until
    }

    fn rest_of(&mut self, of: &SmShares) -> &mut Cooldown {
        let rest = match self.rests.iter().position(|rest| rest.workloads.iter().eq(of.keys())) {
            Some(place) => self.rests.remove(place),
            None => Cooldown { workloads: of.keys().cloned().collect(), ..Cooldown::default() },
        };
        if self.rests.len() >= MAX_RESTS {
            self.rests.remove(0);
        }
        self.rests.push(rest);
        self.rests.last_mut().expect("invariant a_rest_is_there: pushed above")
    }

    fn rest(&mut self, of: &SmShares, time: EventTime, settings: &RebalanceSettings) {
        let rest = self.rest_of(of);
        let doubled = settings.hold_seconds * f64::from(1_u32 << rest.failures.min(16));
        rest.until = Some(time.plus_seconds(doubled.min(DAY_SECONDS.max(settings.hold_seconds))));
    }
}

/// The result of evaluating a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct RebalanceOutcome {
    /// Changes to make now.
    pub decisions: Vec<Decision>,
    /// The reason for these decisions, or for none.
    pub reason: String,
    /// State of the validation of the last partition.
    pub validation: ChangeValidation,
    /// Version of the learned model that was used.
    pub model_version: Option<String>,
}

impl RebalanceOutcome {
    fn none(reason: impl Into<String>) -> Self {
        Self { decisions: Vec::new(), reason: reason.into(), validation: ChangeValidation::None, model_version: None }
    }
}

/// Evaluates one GPU at the end of a window. `sharers` are all its workloads, in the order of their names.
pub fn rebalance(
    state: &mut RebalanceState,
    time: EventTime,
    sharers: &[GpuSharer<'_>],
    brain: &ModelChoice<'_>,
    settings: &RebalanceSettings,
) -> RebalanceOutcome {
    if sharers.len() < 2 {
        *state = RebalanceState::default();
        return RebalanceOutcome::none("the GPU is not shared");
    }
    let present = match present_shares(sharers) {
        Ok(present) => present,
        Err(reason) => return RebalanceOutcome::none(reason),
    };
    let named = |shares: &[u32]| -> SmShares {
        sharers.iter().map(|s| s.workload.workload.clone()).zip(shares.iter().copied()).collect()
    };
    let in_force = named(&present);
    let others = |shares: &SmShares| !shares.keys().eq(in_force.keys());
    // Other workloads: a change or validation of the former ones does not apply to them. A due restoration waits.
    if let Some(wanted) = state.wanted.take_if(|wanted| others(&wanted.shares)) {
        state.retreat = Some(wanted.way_back());
    }
    state.trial.take_if(|trial| others(&trial.shares));
    if let Some(wanted) = state.wanted.take_if(|wanted| wanted.shares == in_force) {
        return on_shares_in_force(state, wanted, time, settings);
    }
    if state.wanted.as_ref().is_some_and(|wanted| time.seconds_since(wanted.since) > settings.give_up_seconds) {
        state.give_up(time, settings);
        return RebalanceOutcome::none("the partition was not in force in time and is given up");
    }
    if let Some(restarting) = sharers.iter().find(|sharer| sharer.workload.ready_time.is_none()) {
        return RebalanceOutcome::none(format!("the last change of {} is not ready yet", restarting.workload.workload));
    }
    if let Some(trial) = state.trial.take() {
        if trial.shares != in_force {
            state.rest(&in_force, time, settings);
            return RebalanceOutcome::none("the partition under validation was changed from outside");
        }
        if let Some(outcome) = assess_trial(state, trial, time, sharers, settings) {
            return outcome;
        }
    }
    if state.wanted.is_none() {
        let is_stale = |back: &mut PendingShares| !back.is_on_its_way(&in_force) || !inside_bounds(sharers, back.shares.values());
        state.retreat.take_if(|back| !others(&back.shares) && is_stale(back));
        if let Some(until) = state.rests_until(&in_force).filter(|until| time < *until) {
            return RebalanceOutcome::none(format!("no change before {until}"));
        }
        state.wanted = Some(if let Some(back) = state.retreat.take_if(|back| !others(&back.shares)) {
            PendingShares { since: time, ..back }
        } else {
            // The result of any predictor is validated against this.
            let Some(medians) = together(sharers, None, settings) else {
                let count = settings.validation_windows;
                return RebalanceOutcome::none(format!("{count} windows of each workload are needed at the shares in force"));
            };
            let choice = match search_shares(sharers, &present, &medians, brain, settings, &state.failed) {
                Ok(choice) => choice,
                Err(NoChange { reason, used_predictor: asked }) => {
                    let model_version = brain.model_version.filter(|_| asked).map(str::to_owned);
                    return RebalanceOutcome { model_version, ..RebalanceOutcome::none(reason) };
                }
            };
            PendingShares {
                shares: named(&choice.candidate.mps_thread_percentages),
                since: time,
                gain_ratio: choice.gain_ratio,
                sure_gain_ratio: choice.sure_gain_ratio,
                power_watts: choice.expected.power_watts,
                model_version: brain.model_version.map(str::to_owned),
                before_worth: shares_worth(sharers, &medians),
                before_rates: in_force.keys().cloned().zip(medians.iter().map(|(rate, _)| *rate)).collect(),
                before: in_force,
                back: false,
                half_way: false,
            }
        });
    }
    let wanted = state.wanted.as_ref().expect("invariant a_partition_is_wanted: set above or before");
    next_decisions(wanted, time, sharers, &present, settings)
}

/// Notes that the wanted partition is in force.
fn on_shares_in_force(
    state: &mut RebalanceState,
    wanted: PendingShares,
    time: EventTime,
    settings: &RebalanceSettings,
) -> RebalanceOutcome {
    state.rest(&wanted.shares, time, settings);
    let Some(before_worth) = wanted.before_worth.filter(|_| !wanted.back) else {
        return RebalanceOutcome::none(if wanted.back {
            "the former partition is in force again"
        } else {
            "the partition is in force"
        });
    };
    let expected_gain_ratio = wanted.gain_ratio;
    let PendingShares { shares, before, before_rates, .. } = wanted;
    state.trial = Some(SharesTrial { shares, since: time, before, before_worth, before_rates, expected_gain_ratio });
    RebalanceOutcome {
        validation: ChangeValidation::Pending,
        ..RebalanceOutcome::none("the partition is in force and is being validated")
    }
}

/// Returns the verdict on a partition; `None` if it is to be reverted.
fn assess_trial(
    state: &mut RebalanceState,
    trial: SharesTrial,
    time: EventTime,
    sharers: &[GpuSharer<'_>],
    settings: &RebalanceSettings,
) -> Option<RebalanceOutcome> {
    let Some((medians, after)) = together(sharers, Some(trial.since), settings)
        .and_then(|medians| shares_worth(sharers, &medians).map(|worth| (medians, worth)))
    else {
        if time.seconds_since(trial.since) > settings.give_up_seconds {
            return Some(RebalanceOutcome::none("too few windows to validate the partition: it stays"));
        }
        let reason = format!("no change until {} windows of each workload validate the partition", settings.validation_windows);
        state.trial = Some(trial);
        return Some(RebalanceOutcome { validation: ChangeValidation::Pending, ..RebalanceOutcome::none(reason) });
    };
    let gain = after / trial.before_worth - 1.0;
    let slowed = settings.choice.slowdown_max_ratio.and_then(|limit| {
        let too_slow = |(sharer, rate): &(&GpuSharer<'_>, f64)| {
            let before = trial.before_rates.get(&sharer.workload.workload);
            // If it was as slow before, reverting the partition does not help it.
            before.is_none_or(|before| *rate < (1.0 - settings.choice.gain_min_ratio) * before)
                && sharer.profile.is_some_and(|profile| *rate < (1.0 - limit) * profile.whole().samples_per_second)
        };
        sharers.iter().zip(medians.iter().map(|(rate, _)| *rate)).find(too_slow)
    });
    if gain >= 0.0 && slowed.is_none() {
        state.rest_of(&trial.shares).failures = 0;
        let reason = format!(
            "the partition gives {} work per watt against the one before it ({} was expected): kept",
            format_signed_percent(gain, 1),
            format_signed_percent(trial.expected_gain_ratio, 1)
        );
        return Some(RebalanceOutcome { validation: ChangeValidation::Kept, ..RebalanceOutcome::none(reason) });
    }
    state.rest_of(&trial.shares).failures += 1;
    if state.failed.len() >= MAX_FAILED {
        state.failed.remove(0);
    }
    state.failed.push(trial.shares.clone());
    state.wanted = Some(PendingShares {
        shares: trial.before,
        since: time,
        gain_ratio: gain,
        sure_gain_ratio: gain,
        power_watts: medians.iter().map(|(_, watts)| watts).sum(),
        model_version: None,
        before: trial.shares,
        before_worth: None,
        before_rates: SampleRates::new(),
        back: true,
        half_way: false,
    });
    None
}

/// Returns the medians of each workload's throughput and power in its newest windows at its share beside all the others; `None`
/// if there are too few.
fn together(sharers: &[GpuSharer<'_>], since: Option<EventTime>, settings: &RebalanceSettings) -> Option<Vec<(f64, f64)>> {
    let of = |sharer: &GpuSharer<'_>| {
        let fits = |figure: &&WindowFigures| {
            figure.tenants as usize == sharers.len()
                && Some(figure.mps_thread_percentage) == sharer.workload.layout.mps_thread_percentage
                && since.is_none_or(|since| figure.end > since)
        };
        let newest: Vec<&WindowFigures> =
            sharer.figures.iter().rev().take_while(fits).take(settings.validation_windows).collect();
        let median = |value: fn(&WindowFigures) -> f64| {
            let mut values: Vec<f64> = newest.iter().map(|figure| value(figure)).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let enough = newest.len() >= settings.validation_windows.max(1);
        enough.then(|| (median(|figure| figure.samples_per_second), median(|figure| figure.power_watts)))
    };
    sharers.iter().map(of).collect()
}

/// Returns the work per watt: throughputs as parts of those alone on the whole GPU, over the power of all.
fn shares_worth(sharers: &[GpuSharer<'_>], medians: &[(f64, f64)]) -> Option<f64> {
    let mut work = 0.0;
    for (sharer, (rate, _)) in sharers.iter().zip(medians) {
        work += rate / sharer.profile?.whole().samples_per_second;
    }
    let watts: f64 = medians.iter().map(|(_, watts)| watts).sum();
    (watts > 0.0).then(|| work / watts)
}

/// Returns the shares in force, or why they cannot be turned.
fn present_shares(sharers: &[GpuSharer<'_>]) -> Result<Vec<u32>, String> {
    let share = |sharer: &GpuSharer<'_>| {
        let Workload { workload, layout, gpus, paused, .. } = sharer.workload;
        if *paused {
            return Err(format!("{workload} is paused"));
        }
        if *gpus != Some(1) || layout.replicas != Some(1) {
            return Err(format!(
                "{workload} has not exactly one GPU and one process: its share cannot be changed on one GPU alone"
            ));
        }
        layout.mps_thread_percentage.ok_or_else(|| format!("{workload} has no MPS thread percentage: nothing can be changed"))
    };
    sharers.iter().map(share).collect()
}

/// Returns whether each workload's bounds allow its share.
fn inside_bounds<'a>(sharers: &[GpuSharer<'_>], shares: impl Iterator<Item = &'a u32>) -> bool {
    sharers.iter().zip(shares).all(|(sharer, share)| {
        let bounds = &sharer.workload.bounds;
        bounds.mps_thread_percentage_min.is_none_or(|least| *share >= least)
            && bounds.mps_thread_percentage_max.is_none_or(|most| *share <= most)
    })
}

/// The reason why the partition in force stays, and whether the predictor was used.
struct NoChange {
    reason: String,
    used_predictor: bool,
}

impl From<String> for NoChange {
    fn from(reason: String) -> Self {
        Self { reason, used_predictor: false }
    }
}

/// Returns a better partition than the one in force, for which `medians` has the measurements, or why there is none.
fn search_shares(
    sharers: &[GpuSharer<'_>],
    present: &[u32],
    medians: &[(f64, f64)],
    brain: &ModelChoice<'_>,
    settings: &RebalanceSettings,
    failed: &[SmShares],
) -> Result<ShareChoice, NoChange> {
    let mut tenants: Vec<&SoloProfile> = Vec::with_capacity(sharers.len());
    for sharer in sharers {
        tenants.push(sharer.profile.ok_or_else(|| format!("{} was not measured alone yet", sharer.workload.workload))?);
    }
    let error_text = |error: PredictionError| error.to_string();
    // If the shares sum to more than the GPU, no workload gets its throughput alone.
    let fits = present.iter().sum::<u32>() <= 100;
    let idle_watts = match brain.idle_watts {
        Some(watts) => watts,
        None => idle_of(&tenants, present, medians.iter().map(|(_, watts)| watts).sum())
            .map_err(|place| format!("{} was not measured alone at {} % or less", tenants[place].workload(), present[place]))?,
    };
    let together = GpuTenants::new(tenants, idle_watts).map_err(error_text)?;
    let inside = |candidate: &ShareCandidate| inside_bounds(sharers, candidate.mps_thread_percentages.iter());
    // Names are compared, since other workloads may have had the same shares.
    let has_failed = |candidate: &ShareCandidate| {
        let named = || sharers.iter().map(|sharer| &sharer.workload.workload).zip(&candidate.mps_thread_percentages);
        failed.iter().any(|shares| shares.iter().eq(named()))
    };
    let mut candidates = together.candidates(settings.step_percentage, &[None]).map_err(error_text)?;
    // The other partitions are compared with the equal one, even if it is not allowed itself.
    let equal_is_allowed = inside(&candidates[0]) && !has_failed(&candidates[0]);
    let mut place = 0;
    candidates.retain(|candidate| {
        place += 1;
        place == 1 || (inside(candidate) && !has_failed(candidate))
    });
    let in_force = ShareCandidate { mps_thread_percentages: present.to_vec(), sm_clock_mhz: None };
    // One that failed is compared with, but must not stay.
    let may_stay = fits && !has_failed(&in_force);
    if fits {
        candidates.push(in_force);
    }
    let predictor = brain.predictor;
    let outlook = match settings.choice.risk_quantile {
        Some(_) => predictor.predict(&together, &candidates),
        None => predictor.predict_means(&together, &candidates),
    };
    let outlook = outlook.map_err(error_text)?;
    let stay = |reason: String| Err(NoChange { reason, used_predictor: true });
    let last = candidates.len() - 1;
    let compared = if fits { outlook.means().last() } else { outlook.means().next() };
    let now = compared.cloned().expect("the equal partition comes first");
    let is_allowed = |place: usize| match place {
        0 => equal_is_allowed,
        _ if fits && place == last => may_stay,
        _ => true,
    };
    let choice = choose_among(&together, &candidates, &outlook, &settings.choice, &is_allowed);
    if choice.verdict == ChoiceVerdict::Infeasible {
        return stay("no partition satisfies the limits".to_owned());
    }
    if (fits && choice.place == last) || choice.candidate.mps_thread_percentages == present {
        return stay("the partition in force is the best".to_owned());
    }
    let scale = ObjectiveScale::new(settings.choice.objective, &together);
    let worth = |expected: &crate::ExpectedFigures| scale.worth(&expected.samples_per_second, expected.power_watts);
    let gain = worth(&choice.expected) / worth(&now) - 1.0;
    if may_stay && gain < settings.choice.gain_min_ratio {
        return stay(format!("another partition would gain {} only", format_percent(gain, 1)));
    }
    Ok(ShareChoice { gain_ratio: gain, ..choice })
}

/// Returns the changes that may be made now.
fn next_decisions(
    wanted: &PendingShares,
    time: EventTime,
    sharers: &[GpuSharer<'_>],
    present: &[u32],
    settings: &RebalanceSettings,
) -> RebalanceOutcome {
    let of = |sharer: &GpuSharer<'_>| wanted.shares[&sharer.workload.workload];
    let pairs = || sharers.iter().zip(present).filter(|(sharer, share)| of(sharer) != **share);
    let reductions = pairs().any(|(sharer, share)| of(sharer) < *share);
    let now = pairs().filter(|(sharer, share)| !reductions || of(sharer) < **share);
    let decisions: Vec<Decision> = now.map(|(sharer, share)| decision(wanted, time, sharer.workload, *share, settings)).collect();
    let reason = if reductions { "reductions are made first" } else { "all reductions are in force: raises follow" };
    let model_version = wanted.model_version.clone();
    RebalanceOutcome { decisions, reason: reason.to_owned(), validation: wanted.validation(), model_version }
}

fn decision(wanted: &PendingShares, time: EventTime, workload: &Workload, share: u32, settings: &RebalanceSettings) -> Decision {
    let to = wanted.shares[&workload.workload];
    let gain = format_signed_percent(wanted.gain_ratio, 1);
    let others = wanted.shares.iter().filter(|(name, _)| **name != workload.workload);
    let others: Vec<String> = others.map(|(name, share)| format!("{name} {share} %")).collect();
    let mut evidence = vec![("workloads", wanted.shares.len() as f64)];
    if !wanted.half_way {
        evidence.extend([
            ("expected_gain_ratio", wanted.gain_ratio),
            ("sure_gain_over_equal_ratio", wanted.sure_gain_ratio),
            ("expected_power_watts", wanted.power_watts),
        ]);
    }
    Decision {
        id: format!("{}@{time}/{CONTROLLER}", workload.workload),
        workload: workload.workload.clone(),
        time,
        origin: Origin::max(workload.origin, Origin::Measured),
        controller: CONTROLLER.to_owned(),
        controller_version: VERSION.to_owned(),
        action: match (wanted.back, to < share) {
            (true, _) => ControllerAction::Revert,
            (false, true) => ControllerAction::Decrease,
            (false, false) => ControllerAction::Increase,
        },
        reason: if wanted.half_way {
            format!(
                "sharing the GPU with {}: the partition came into force only in part and is reverted, {share} % → {to} %",
                others.join(", ")
            )
        } else if wanted.back {
            format!(
                "sharing the GPU with {}: the partition changed work per watt by {gain} and is reverted, {share} % → {to} %",
                others.join(", ")
            )
        } else {
            let model = wanted.model_version.as_deref().unwrap_or("the additive model");
            format!(
                "sharing the GPU with {}: {share} % → {to} % is part of {gain} work per watt, as predicted by {model}",
                others.join(", ")
            )
        },
        from: workload.layout.clone(),
        to: Layout { mps_thread_percentage: Some(to), ..workload.layout.clone() },
        generation: Some(workload.generation),
        restarts: true,
        evidence: evidence.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        expires: time.plus_seconds(settings.decision_expiry_seconds),
        validation: wanted.validation(),
        model_version: wanted.model_version.clone(),
        ..Decision::default()
    }
}
