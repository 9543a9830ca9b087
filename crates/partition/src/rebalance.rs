//! The controller `sm-partition`: workloads that share a GPU get the partition that was chosen for them.
//!
//! In: the workloads of one GPU with their present layouts, at the end of a window. Out: decisions for those whose share is to
//! change. Reductions are decided first; raises only once every reduction is in force and ready, so that the shares in force never
//! sum to more than they did, or than 100 %. It decides about workloads with one GPU and one process on it: a workload with
//! several GPUs has one share for all of them, on which the others on each would have to agree.
//!
//! What a partition gave is measured beside what the one before it gave, in normalised work per watt of the same workloads. One that
//! gave less, or slows somebody down by more than is allowed, is taken back and not tried again; the rest after it doubles.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Decision, Layout, Origin, Validation, Workload};
use serde::{Deserialize, Serialize};

use crate::choose::Scale;
use crate::{Candidate, CannotTell, Choice, ChoiceSettings, Predictor, SoloProfile, Together, Verdict, choose};

pub use eadt_core::sharing::CONTROLLER;
/// Grows with every change of what it decides.
pub(crate) const VERSION: &str = "2";
/// Partitions that did not help and are remembered of one GPU.
const MAX_FAILED: usize = 16;
/// Longest rest after partitions that did not help.
const DAY_SECONDS: f64 = 86_400.0;

/// How shared GPUs are rebalanced.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RebalanceSettings {
    /// What is chosen. The least gain counts against the partition in force.
    pub choice: ChoiceSettings,
    /// Shares are multiples of this percentage. 1 to 50. Default 10.
    pub step_percentage: u32,
    /// Nothing is changed for this long after a partition is in force or was given up, in seconds. At least 0. Default 3600.
    pub hold_seconds: f64,
    /// A partition that is not in force after this time is given up, in seconds. Above 0. Default 1800.
    pub give_up_seconds: f64,
    /// A decision that was not applied within this time is void, in seconds. Above 0. Default 300.
    pub expiry_seconds: f64,
    /// A partition is compared with the one before it by the medians of so many windows of each workload. At least 1. Default 3.
    pub validation_windows: usize,
}

impl Default for RebalanceSettings {
    fn default() -> Self {
        Self {
            choice: ChoiceSettings::default(),
            step_percentage: 10,
            hold_seconds: 3600.0,
            give_up_seconds: 1800.0,
            expiry_seconds: 300.0,
            validation_windows: 3,
        }
    }
}

/// A window of a workload that says what it did beside others.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figure {
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
pub struct Sharer<'a> {
    /// Layout and bounds in force.
    pub workload: &'a Workload,
    /// What it does alone; `None`: not known yet.
    pub profile: Option<&'a SoloProfile>,
    /// Its newest windows beside others, in order.
    pub figures: &'a [Figure],
}

/// What predicts.
#[derive(Debug, Clone, Copy)]
pub struct Brain<'a> {
    pub predictor: &'a dyn Predictor,
    /// Version of the learned model; `None`: [`crate::Additive`].
    pub model_version: Option<&'a str>,
    /// Power of the GPU while its processes wait; `None`: what the additive model needs to be right about the present partition.
    pub idle_watts: Option<f64>,
}

/// Of each workload its share.
type Shares = BTreeMap<String, u32>;

/// A partition on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Wanted {
    shares: Shares,
    since: EventTime,
    gain_ratio: f64,
    sure_gain_ratio: f64,
    power_watts: f64,
    model_version: Option<String>,
    /// What was in force, and the work per watt that it gave, where that was measured.
    before: Shares,
    before_worth: Option<f64>,
    /// It is the way back.
    back: bool,
}

/// A partition that is in force and has to show that it helps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Trial {
    shares: Shares,
    since: EventTime,
    before: Shares,
    before_worth: f64,
    expected_gain_ratio: f64,
}

/// What is remembered of one GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuState {
    wanted: Option<Wanted>,
    trial: Option<Trial>,
    hold_until: Option<EventTime>,
    /// Partitions that did not help, and how many in a row.
    failed: Vec<Shares>,
    failures: u32,
}

impl GpuState {
    /// Somebody refused the partition that is wanted, or took it back.
    pub fn give_up(&mut self, time: EventTime, settings: &RebalanceSettings) {
        if self.wanted.take().is_some() {
            self.rest(time, settings);
        }
    }

    /// Whether a change is on its way or being judged.
    pub fn is_busy(&self) -> bool {
        self.wanted.is_some() || self.trial.is_some()
    }

    fn rest(&mut self, time: EventTime, settings: &RebalanceSettings) {
        let doubled = settings.hold_seconds * f64::from(1_u32 << self.failures.min(16));
        self.hold_until = Some(time.plus_seconds(doubled.min(DAY_SECONDS.max(settings.hold_seconds))));
    }
}

/// What became of a look at a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Changes to make now.
    pub decisions: Vec<Decision>,
    /// Why these, or why none.
    pub reason: String,
    /// Where the judgement of the last partition stands.
    pub validation: Validation,
}

impl Outcome {
    fn none(reason: impl Into<String>) -> Self {
        Self { decisions: Vec::new(), reason: reason.into(), validation: Validation::None }
    }
}

/// Looks at one GPU at the end of a window. `sharers` are all its workloads, in the order of their names.
pub fn rebalance(
    state: &mut GpuState,
    time: EventTime,
    sharers: &[Sharer<'_>],
    brain: &Brain<'_>,
    settings: &RebalanceSettings,
) -> Outcome {
    if sharers.len() < 2 {
        *state = GpuState::default();
        return Outcome::none("the GPU is not shared");
    }
    let present = match present(sharers) {
        Ok(present) => present,
        Err(reason) => return Outcome::none(reason),
    };
    let named =
        |shares: &[u32]| -> Shares { sharers.iter().map(|s| s.workload.workload.clone()).zip(shares.iter().copied()).collect() };
    let in_force = named(&present);
    let others = |shares: &Shares| !shares.keys().eq(in_force.keys());
    if state.wanted.as_ref().is_some_and(|wanted| others(&wanted.shares))
        || state.trial.as_ref().is_some_and(|t| others(&t.shares))
    {
        // Other workloads: what was learned of these ones does not hold for them.
        *state = GpuState::default();
    }
    if let Some(wanted) = state.wanted.take_if(|wanted| wanted.shares == in_force) {
        return arrived(state, wanted, time, settings);
    }
    if state.wanted.as_ref().is_some_and(|wanted| time.seconds_since(wanted.since) > settings.give_up_seconds) {
        state.wanted = None;
        state.rest(time, settings);
        return Outcome::none("the partition was not in force in time and is given up");
    }
    if let Some(restarting) = sharers.iter().find(|sharer| sharer.workload.ready_time.is_none()) {
        return Outcome::none(format!("{} rolls out", restarting.workload.workload));
    }
    if let Some(trial) = state.trial.take() {
        if trial.shares != in_force {
            state.rest(time, settings);
            return Outcome::none("somebody else changed the partition that was being judged");
        }
        if let Some(outcome) = judge(state, trial, time, sharers, settings) {
            return outcome;
        }
    }
    if state.wanted.is_none() {
        if let Some(until) = state.hold_until.filter(|until| time < *until) {
            return Outcome::none(format!("nothing is tried before {until}"));
        }
        match look(sharers, &present, brain, settings, &state.failed) {
            Ok(choice) => {
                state.wanted = Some(Wanted {
                    shares: named(&choice.candidate.mps_thread_percentages),
                    since: time,
                    gain_ratio: choice.gain_ratio,
                    sure_gain_ratio: choice.sure_gain_ratio,
                    power_watts: choice.expected.power_watts,
                    model_version: brain.model_version.map(str::to_owned),
                    before_worth: together(sharers, None, settings).and_then(|medians| worth(sharers, &medians)),
                    before: in_force,
                    back: false,
                });
            }
            Err(reason) => return Outcome::none(reason),
        }
    }
    let wanted = state.wanted.as_ref().expect("invariant a_partition_is_wanted: set above or before");
    step(wanted, time, sharers, &present, settings)
}

/// The partition that was wanted is in force.
fn arrived(state: &mut GpuState, wanted: Wanted, time: EventTime, settings: &RebalanceSettings) -> Outcome {
    state.rest(time, settings);
    let Some(before_worth) = wanted.before_worth.filter(|_| !wanted.back) else {
        return Outcome::none(if wanted.back { "the former partition is in force again" } else { "the partition is in force" });
    };
    let expected_gain_ratio = wanted.gain_ratio;
    let Wanted { shares, before, .. } = wanted;
    state.trial = Some(Trial { shares, since: time, before, before_worth, expected_gain_ratio });
    Outcome { validation: Validation::Pending, ..Outcome::none("the partition is in force, and has to show that it helps") }
}

/// What came of a partition; `None`: it is taken back.
fn judge(
    state: &mut GpuState,
    trial: Trial,
    time: EventTime,
    sharers: &[Sharer<'_>],
    settings: &RebalanceSettings,
) -> Option<Outcome> {
    let Some((medians, after)) =
        together(sharers, Some(trial.since), settings).and_then(|medians| worth(sharers, &medians).map(|worth| (medians, worth)))
    else {
        if time.seconds_since(trial.since) > settings.give_up_seconds {
            return Some(Outcome::none("too few windows tell whether the partition helps: it stays"));
        }
        let reason =
            format!("until {} windows of each tell whether the partition helps, nothing is changed", settings.validation_windows);
        state.trial = Some(trial);
        return Some(Outcome { validation: Validation::Pending, ..Outcome::none(reason) });
    };
    let gain = after / trial.before_worth - 1.0;
    let slowed = settings.choice.slowdown_max_ratio.and_then(|limit| {
        let too_slow = |(sharer, rate): &(&Sharer<'_>, f64)| {
            sharer.profile.is_some_and(|profile| *rate < (1.0 - limit) * profile.whole().samples_per_second)
        };
        sharers.iter().zip(medians.iter().map(|(rate, _)| *rate)).find(too_slow)
    });
    if gain >= 0.0 && slowed.is_none() {
        state.failures = 0;
        let expected = trial.expected_gain_ratio * 100.0;
        let reason = format!(
            "the partition gives {:+.1} % work per watt against the one before it ({expected:+.1} % was expected): kept",
            gain * 100.0
        );
        return Some(Outcome { validation: Validation::Kept, ..Outcome::none(reason) });
    }
    state.failures += 1;
    if state.failed.len() >= MAX_FAILED {
        state.failed.remove(0);
    }
    state.failed.push(trial.shares);
    state.wanted = Some(Wanted {
        shares: trial.before.clone(),
        since: time,
        gain_ratio: gain,
        sure_gain_ratio: gain,
        power_watts: medians.iter().map(|(_, watts)| watts).sum(),
        model_version: None,
        before: trial.before,
        before_worth: None,
        back: true,
    });
    None
}

/// Of each workload the medians of throughput and power in its newest windows at its share beside all the others; `None`: they are
/// too few.
fn together(sharers: &[Sharer<'_>], since: Option<EventTime>, settings: &RebalanceSettings) -> Option<Vec<(f64, f64)>> {
    let of = |sharer: &Sharer<'_>| {
        let fits = |figure: &&Figure| {
            figure.tenants as usize == sharers.len()
                && Some(figure.mps_thread_percentage) == sharer.workload.layout.mps_thread_percentage
                && since.is_none_or(|since| figure.end > since)
        };
        let newest: Vec<&Figure> = sharer.figures.iter().rev().take_while(fits).take(settings.validation_windows).collect();
        let median = |value: fn(&Figure) -> f64| {
            let mut values: Vec<f64> = newest.iter().map(|figure| value(figure)).collect();
            values.sort_unstable_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let enough = newest.len() >= settings.validation_windows.max(1);
        enough.then(|| (median(|figure| figure.samples_per_second), median(|figure| figure.power_watts)))
    };
    sharers.iter().map(of).collect()
}

/// Work per watt: throughputs as parts of those alone on the whole GPU, over the power of all.
fn worth(sharers: &[Sharer<'_>], medians: &[(f64, f64)]) -> Option<f64> {
    let mut work = 0.0;
    for (sharer, (rate, _)) in sharers.iter().zip(medians) {
        work += rate / sharer.profile?.whole().samples_per_second;
    }
    let watts: f64 = medians.iter().map(|(_, watts)| watts).sum();
    (watts > 0.0).then(|| work / watts)
}

/// The idle power with which the additive model says of the present partition what was measured.
fn implied_idle_watts(
    tenants: &[&SoloProfile],
    present: &[u32],
    sharers: &[Sharer<'_>],
    settings: &RebalanceSettings,
) -> Result<f64, String> {
    let medians = together(sharers, None, settings)
        .ok_or_else(|| format!("{} windows of each are needed at the shares in force", settings.validation_windows))?;
    let mut alone = 0.0;
    let mut least = f64::INFINITY;
    for (tenant, share) in tenants.iter().zip(present) {
        let point = tenant
            .expected_at(*share, None)
            .ok_or_else(|| format!("{} was not measured alone at {share} % or less", tenant.workload()))?;
        alone += point.power_watts;
        least = tenant.points().map(|point| point.power_watts).fold(least, f64::min);
    }
    let measured: f64 = medians.iter().map(|(_, watts)| watts).sum();
    // What contention saves, or noise adds, must not make a board that draws nothing, or more than its processes.
    Ok(((alone - measured) / (tenants.len() as f64 - 1.0)).clamp(1.0_f64.min(0.5 * least), 0.95 * least))
}

/// The shares in force, or why they cannot be turned.
fn present(sharers: &[Sharer<'_>]) -> Result<Vec<u32>, String> {
    let share = |sharer: &Sharer<'_>| {
        let Workload { workload, layout, gpus, paused, .. } = sharer.workload;
        if *paused {
            return Err(format!("{workload} is paused"));
        }
        if *gpus != Some(1) || layout.replicas != Some(1) {
            return Err(format!(
                "{workload} has not exactly one GPU and one process: its share cannot be turned on one GPU alone"
            ));
        }
        layout.mps_thread_percentage.ok_or_else(|| format!("{workload} has no MPS thread percentage: nothing can be changed"))
    };
    sharers.iter().map(share).collect()
}

/// A better partition than the one in force, or why there is none.
fn look(
    sharers: &[Sharer<'_>],
    present: &[u32],
    brain: &Brain<'_>,
    settings: &RebalanceSettings,
    failed: &[Shares],
) -> Result<Choice, String> {
    let mut tenants: Vec<&SoloProfile> = Vec::with_capacity(sharers.len());
    for sharer in sharers {
        tenants.push(sharer.profile.ok_or_else(|| format!("{} was not measured alone yet", sharer.workload.workload))?);
    }
    let told = |error: CannotTell| error.to_string();
    // Where the shares together are more than the GPU, nobody gets what they had alone.
    let fits = present.iter().sum::<u32>() <= 100;
    let idle_watts = match brain.idle_watts {
        Some(watts) => watts,
        None => implied_idle_watts(&tenants, present, sharers, settings)?,
    };
    let together = Together::new(tenants, idle_watts).map_err(told)?;
    let inside = |candidate: &Candidate| {
        sharers.iter().zip(&candidate.mps_thread_percentages).all(|(sharer, share)| {
            let bounds = &sharer.workload.bounds;
            bounds.mps_thread_percentage_min.is_none_or(|least| *share >= least)
                && bounds.mps_thread_percentage_max.is_none_or(|most| *share <= most)
        })
    };
    let mut candidates = together.candidates(settings.step_percentage, &[None]).map_err(told)?;
    let has_failed =
        |candidate: &Candidate| failed.iter().any(|shares| shares.values().eq(candidate.mps_thread_percentages.iter()));
    // The equal partition is what the others are compared with, even where bounds exclude it.
    let equal_is_inside = inside(&candidates[0]);
    let mut place = 0;
    candidates.retain(|candidate| {
        place += 1;
        place == 1 || (inside(candidate) && !has_failed(candidate))
    });
    if fits {
        candidates.push(Candidate { mps_thread_percentages: present.to_vec(), sm_clock_mhz: None });
    }
    let outlook = brain.predictor.outlook(&together, &candidates).map_err(told)?;
    let last = candidates.len() - 1;
    let compared = if fits { outlook.means().last() } else { outlook.means().next() };
    let now = compared.cloned().expect("the equal partition comes first");
    let choice = choose(&together, &candidates, &outlook, &settings.choice);
    if choice.verdict == Verdict::Infeasible {
        return Err("no partition keeps the limits".to_owned());
    }
    if (fits && choice.place == last) || choice.candidate.mps_thread_percentages == present {
        return Err("the partition in force is the best".to_owned());
    }
    if choice.place == 0 && (!equal_is_inside || has_failed(&choice.candidate)) {
        return Err("no partition inside the bounds is better than equal shares".to_owned());
    }
    let scale = Scale::new(settings.choice.objective, &together);
    let worth = |expected: &crate::Expected| scale.worth(&expected.samples_per_second, expected.power_watts);
    let gain = worth(&choice.expected) / worth(&now) - 1.0;
    if fits && gain < settings.choice.gain_min_ratio {
        return Err(format!("another partition would gain {:.1} % only", gain * 100.0));
    }
    Ok(Choice { gain_ratio: gain, ..choice })
}

/// The changes that may be made now.
fn step(wanted: &Wanted, time: EventTime, sharers: &[Sharer<'_>], present: &[u32], settings: &RebalanceSettings) -> Outcome {
    let of = |sharer: &Sharer<'_>| wanted.shares[&sharer.workload.workload];
    let pairs = || sharers.iter().zip(present).filter(|(sharer, share)| of(sharer) != **share);
    let reductions = pairs().any(|(sharer, share)| of(sharer) < *share);
    let now = pairs().filter(|(sharer, share)| !reductions || of(sharer) < **share);
    let decisions: Vec<Decision> = now.map(|(sharer, share)| decision(wanted, time, sharer.workload, *share, settings)).collect();
    let reason = if reductions { "reductions first" } else { "every reduction is in force: raises" };
    let validation = if wanted.back { Validation::Failed } else { Validation::None };
    Outcome { decisions, reason: reason.to_owned(), validation }
}

fn decision(wanted: &Wanted, time: EventTime, workload: &Workload, share: u32, settings: &RebalanceSettings) -> Decision {
    let to = wanted.shares[&workload.workload];
    let gain = wanted.gain_ratio * 100.0;
    let others = wanted.shares.iter().filter(|(name, _)| **name != workload.workload);
    let others: Vec<String> = others.map(|(name, share)| format!("{name} {share} %")).collect();
    let evidence = [
        ("expected_gain_ratio", wanted.gain_ratio),
        ("sure_gain_over_equal_ratio", wanted.sure_gain_ratio),
        ("expected_power_watts", wanted.power_watts),
        ("workloads", wanted.shares.len() as f64),
    ];
    Decision {
        id: format!("{}@{time}/{CONTROLLER}", workload.workload),
        workload: workload.workload.clone(),
        time,
        origin: Origin::max(workload.origin, Origin::Measured),
        controller: CONTROLLER.to_owned(),
        controller_version: VERSION.to_owned(),
        action: match (wanted.back, to < share) {
            (true, _) => Action::Revert,
            (false, true) => Action::Decrease,
            (false, false) => Action::Increase,
        },
        reason: if wanted.back {
            format!(
                "sharing the GPU with {}: the partition changed work per watt by {gain:+.1} % and is taken back, {share} % → {to} %",
                others.join(", ")
            )
        } else {
            let model = wanted.model_version.as_deref().unwrap_or("the additive model");
            format!(
                "sharing the GPU with {}: {share} % → {to} % is part of {gain:+.1} % work per watt, says {model}",
                others.join(", ")
            )
        },
        from: workload.layout.clone(),
        to: Layout { mps_thread_percentage: Some(to), ..workload.layout.clone() },
        generation: Some(workload.generation),
        restarts: true,
        evidence: evidence.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        expires: time.plus_seconds(settings.expiry_seconds),
        validation: if wanted.back { Validation::Failed } else { Validation::None },
        model_version: wanted.model_version.clone(),
        ..Decision::default()
    }
}
