//! The controller `sm-partition`: workloads that share a GPU get the partition that was chosen for them.
//!
//! In: the workloads of one GPU with their present layouts, at the end of a window. Out: decisions for those whose share is to
//! change. Reductions are decided first; raises only once every reduction is in force and ready, so that the shares in force never
//! sum to more than they did, or than 100 %. It decides about workloads with one GPU and one process on it: a workload with
//! several GPUs has one share for all of them, on which the others on each would have to agree.

use std::collections::BTreeMap;

use eadt_schemas::EventTime;
use eadt_schemas::v1::{Action, Decision, Layout, Origin, Workload};
use serde::{Deserialize, Serialize};

use crate::choose::Scale;
use crate::{Candidate, CannotTell, Choice, ChoiceSettings, Predictor, SoloProfile, Together, Verdict, choose};

/// The controller's name in decisions.
pub const CONTROLLER: &str = "sm-partition";
/// Grows with every change of what it decides.
const VERSION: &str = "1";

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
}

impl Default for RebalanceSettings {
    fn default() -> Self {
        Self {
            choice: ChoiceSettings::default(),
            step_percentage: 10,
            hold_seconds: 3600.0,
            give_up_seconds: 1800.0,
            expiry_seconds: 300.0,
        }
    }
}

/// One workload of the GPU.
#[derive(Debug, Clone, Copy)]
pub struct Sharer<'a> {
    /// Layout and bounds in force.
    pub workload: &'a Workload,
    /// What it does alone; `None`: not known yet.
    pub profile: Option<&'a SoloProfile>,
}

/// What predicts.
#[derive(Debug, Clone, Copy)]
pub struct Brain<'a> {
    pub predictor: &'a dyn Predictor,
    /// Version of the learned model; `None`: [`crate::Additive`].
    pub model_version: Option<&'a str>,
    /// Power of the GPU while its processes wait.
    pub idle_watts: f64,
}

/// A partition on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Wanted {
    shares: BTreeMap<String, u32>,
    since: EventTime,
    gain_ratio: f64,
    sure_gain_ratio: f64,
    power_watts: f64,
    model_version: Option<String>,
}

/// What is remembered of one GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuState {
    wanted: Option<Wanted>,
    hold_until: Option<EventTime>,
}

/// What became of a look at a GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Changes to make now.
    pub decisions: Vec<Decision>,
    /// Why these, or why none.
    pub reason: String,
}

impl Outcome {
    fn none(reason: impl Into<String>) -> Self {
        Self { decisions: Vec::new(), reason: reason.into() }
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
    if let Some(wanted) = &state.wanted {
        let same = wanted.shares.keys().map(String::as_str).eq(sharers.iter().map(|sharer| sharer.workload.workload.as_str()));
        let reached = same && sharers.iter().zip(&present).all(|(s, share)| wanted.shares[&s.workload.workload] == *share);
        if !same {
            *state = GpuState::default();
        } else if reached {
            state.wanted = None;
            state.hold_until = Some(time.plus_seconds(settings.hold_seconds));
            return Outcome::none("the partition is in force");
        } else if time.seconds_since(wanted.since) > settings.give_up_seconds {
            state.wanted = None;
            state.hold_until = Some(time.plus_seconds(settings.hold_seconds));
            return Outcome::none("the partition was not in force in time and is given up");
        }
    }
    if let Some(restarting) = sharers.iter().find(|sharer| sharer.workload.ready_time.is_none()) {
        return Outcome::none(format!("{} rolls out", restarting.workload.workload));
    }
    if state.wanted.is_none() {
        if let Some(until) = state.hold_until.filter(|until| time < *until) {
            return Outcome::none(format!("nothing is tried before {until}"));
        }
        match look(sharers, &present, brain, settings) {
            Ok(choice) => {
                let names = sharers.iter().map(|sharer| sharer.workload.workload.clone());
                state.wanted = Some(Wanted {
                    shares: names.zip(choice.candidate.mps_thread_percentages.iter().copied()).collect(),
                    since: time,
                    gain_ratio: choice.gain_ratio,
                    sure_gain_ratio: choice.sure_gain_ratio,
                    power_watts: choice.expected.power_watts,
                    model_version: brain.model_version.map(str::to_owned),
                });
            }
            Err(reason) => return Outcome::none(reason),
        }
    }
    let wanted = state.wanted.as_ref().expect("invariant a_partition_is_wanted: set above or before");
    step(wanted, time, sharers, &present, settings)
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
fn look(sharers: &[Sharer<'_>], present: &[u32], brain: &Brain<'_>, settings: &RebalanceSettings) -> Result<Choice, String> {
    let mut tenants: Vec<&SoloProfile> = Vec::with_capacity(sharers.len());
    for sharer in sharers {
        tenants.push(sharer.profile.ok_or_else(|| format!("{} was not measured alone yet", sharer.workload.workload))?);
    }
    let told = |error: CannotTell| error.to_string();
    let together = Together::new(tenants, brain.idle_watts).map_err(told)?;
    let inside = |candidate: &Candidate| {
        sharers.iter().zip(&candidate.mps_thread_percentages).all(|(sharer, share)| {
            let bounds = &sharer.workload.bounds;
            bounds.mps_thread_percentage_min.is_none_or(|least| *share >= least)
                && bounds.mps_thread_percentage_max.is_none_or(|most| *share <= most)
        })
    };
    let mut candidates = together.candidates(settings.step_percentage, &[None]).map_err(told)?;
    // The equal partition is what the others are compared with, even where bounds exclude it.
    let equal_is_inside = inside(&candidates[0]);
    let mut place = 0;
    candidates.retain(|candidate| {
        place += 1;
        place == 1 || inside(candidate)
    });
    let now = Candidate { mps_thread_percentages: present.to_vec(), sm_clock_mhz: None };
    candidates.push(now);
    let outlook = brain.predictor.outlook(&together, &candidates).map_err(told)?;
    let (last, now) = (candidates.len() - 1, outlook.means().last().cloned().expect("the present partition was added"));
    let choice = choose(&together, &candidates, &outlook, &settings.choice);
    if choice.verdict == Verdict::Infeasible {
        return Err("no partition keeps the limits".to_owned());
    }
    if choice.place == last || choice.candidate.mps_thread_percentages == present {
        return Err("the partition in force is the best".to_owned());
    }
    if choice.place == 0 && !equal_is_inside {
        return Err("no partition inside the bounds is better than equal shares".to_owned());
    }
    let scale = Scale::new(settings.choice.objective, &together);
    let worth = |expected: &crate::Expected| scale.worth(&expected.samples_per_second, expected.power_watts);
    let gain = worth(&choice.expected) / worth(&now) - 1.0;
    if gain < settings.choice.gain_min_ratio {
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
    Outcome { decisions, reason: reason.to_owned() }
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
        action: if to < share { Action::Decrease } else { Action::Increase },
        reason: format!("sharing the GPU with {}: {share} % → {to} % is part of {gain:+.1} % work per watt", others.join(", ")),
        from: workload.layout.clone(),
        to: Layout { mps_thread_percentage: Some(to), ..workload.layout.clone() },
        generation: Some(workload.generation),
        restarts: true,
        evidence: evidence.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        expires: time.plus_seconds(settings.expiry_seconds),
        model_version: wanted.model_version.clone(),
        ..Decision::default()
    }
}
