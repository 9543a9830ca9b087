//! The joint stage of GPU sharing: decides about all workloads of a GPU together, for those whose controller is `sm-partition`.
//!
//! In: efficiency windows, workloads and actuations, in the order of the log. Out: decisions of the workloads that name this
//! controller, its *members*; their windows come from the first stage, which leaves the decisions to this one. It reads no clock,
//! never awaits, does no I/O.
//!
//! **Evaluations** are made as in the joint stage of the power budget ([`eadt_core::power_budget`]): at the end of every window
//! that any member has, once, with the windows before it and the layouts up to it. A member's decision is published with its own
//! window of that end.
//!
//! **Which workloads share a GPU** is known from the windows: each has the shared devices of its workload, and the number of
//! workloads there. A GPU's partition is changed only if members account for all of them. Only the names in windows of other
//! workloads are used.
//!
//! **Profiles** are gathered from windows without other tenants. A job seldom runs alone at several shares by itself, so a member
//! that has its GPU to itself is measured at some ([`GpuSharingSettings::probe_percentages`]), by changes of its layout like any
//! other, and restored. A workload that is never alone is never measured, and its GPU's partition stays as it is.
//!
//! **Mutual slowdown** is predicted by the last model of the board in the log ([`crate::published`]). If there is none, or it
//! needs a value that a profile lacks, the additive model decides.

mod member;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use eadt_core::gpu_sharing::GpuSharingSettings;
use eadt_core::joint::{JointFold, LATE_SECONDS};
use eadt_core::models::ModelOutcome;
use eadt_core::partition::ModelsIgnored;
use eadt_core::{FoldSettings, StateError, StateRecord};
use eadt_models::published::UnusableModel;
use eadt_schemas::EventTime;
use eadt_schemas::decode::DecodeError;
use eadt_schemas::v1::{
    Actuation, ActuationOutcome, ChangeValidation, ControllerAction, DeadLetterReason, Decision, EfficiencyWindow, Model,
    UpdateMode, WindowKind, Workload,
};
use serde::{Deserialize, Serialize};

use crate::published::LearnedModels;
use crate::rebalance::{GpuSharer, ModelChoice, RebalanceSettings, RebalanceState, rebalance};
use crate::{AdditivePredictor, ChoiceSettings, ProfileError, SoloProfile};
use member::{SharingMemberState, draft};

/// Other workloads that are remembered of one GPU, for their names.
const MAX_STRANGERS: usize = 64;

const DAY_SECONDS: f64 = 86_400.0;

/// The reason for giving back a share at which a workload was measured, when other workloads come.
const NOT_ALONE: &str = "it is not alone on its GPU any more";

/// Counts over the life of this value, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuSharingTally {
    pub evaluations: u64,
    /// Events that came after the evaluation that they belonged to.
    pub late: u64,
    /// GPUs that several workloads share, one of them a member at least, at the last evaluation.
    pub shared_gpus: u64,
    /// Number of members with a complete profile, at the last evaluation.
    pub measured: u64,
    /// Learned models that came into force.
    pub models: u64,
    pub models_ignored: ModelsIgnored,
}

/// State that belongs to no member and no GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct GpuSharingHead {
    /// Time of the last evaluation.
    #[serde(rename = "looked")]
    evaluated: Option<EventTime>,
    /// The earliest time of events that came since the last evaluation and belonged to an earlier one.
    late: Option<EventTime>,
    /// The last time at which unshared GPUs were dropped.
    swept: Option<EventTime>,
}

/// A shared GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
struct SharedGpu {
    state: RebalanceState,
    /// The last evaluation at which members shared it.
    shared: Option<EventTime>,
    /// Workloads of other controllers on it.
    strangers: BTreeMap<String, UnmanagedTenant>,
}

/// A workload of another controller: ends of the two newest windows that show it on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct UnmanagedTenant {
    newest: EventTime,
    before: Option<EventTime>,
}

impl UnmanagedTenant {
    /// Returns whether it was there shortly before an evaluation. Whose window of that evaluation's time comes first makes no
    /// difference.
    fn is_there(&self, time: EventTime, silence_seconds: f64) -> bool {
        let last = if self.newest < time { Some(self.newest) } else { self.before };
        last.is_some_and(|last| time.seconds_since(last) <= silence_seconds)
    }

    fn is_forgotten(&self, time: EventTime, silence_seconds: f64) -> bool {
        time.seconds_since(self.newest) > silence_seconds
    }
}

/// A member on a GPU.
struct SharingMember<'a> {
    workload: &'a Workload,
    member: &'a SharingMemberState,
    profile: Option<Result<SoloProfile, ProfileError>>,
}

impl SharingMember<'_> {
    fn sharer(&self) -> GpuSharer<'_> {
        let profile = self.profile.as_ref().and_then(|profile| profile.as_ref().ok());
        GpuSharer { workload: self.workload, profile, figures: self.member.figures() }
    }
}

/// Returns the reason why no partition of a GPU is searched for. `tenants`: number of workloads on it, members or not.
fn find_obstacle(
    gpu: &SharedGpu,
    time: EventTime,
    tenants: usize,
    members: &[SharingMember<'_>],
    own: &GpuSharingSettings,
) -> Option<String> {
    if members.len() < tenants {
        let there = gpu.strangers.iter().filter(|(_, stranger)| stranger.is_there(time, own.silence_seconds));
        let strangers: Vec<&str> = there.map(|(name, _)| name.as_str()).collect();
        let who = match strangers[..] {
            [] => "the others have no new windows".to_owned(),
            [one] => format!("{one} does not use the controller sm-partition"),
            _ => format!("{} do not use the controller sm-partition", strangers.join(", ")),
        };
        return Some(format!("{tenants} workloads share the GPU: {who}"));
    }
    let names: Vec<&str> = members.iter().map(|sharing| sharing.workload.workload.as_str()).collect();
    let busy = gpu.state.is_busy(&names);
    members.iter().find_map(|SharingMember { workload, member, profile }| {
        let name = &workload.workload;
        if workload.mode != UpdateMode::Enforce {
            return Some(format!("{name} is not in mode enforce, and a partition is changed as a whole or not at all"));
        }
        if member.is_silent(time, own) {
            return Some(format!("{name} had no usable window in the last {:.0} s", own.silence_seconds));
        }
        if let Some(Err(error)) = profile {
            return Some(format!("{name} was not measured enough while it was alone: {error}"));
        }
        let spent = !busy && member.restarts_left(workload, own) < 2;
        spent.then(|| format!("{name} has no restart left in 24 h, except for one that is reserved for a revert"))
    })
}

/// State of the stage.
#[derive(Debug)]
pub struct GpuSharingFold {
    settings: FoldSettings,
    own: GpuSharingSettings,
    head: GpuSharingHead,
    members: BTreeMap<String, SharingMemberState>,
    /// GPUs by UUID.
    shared: BTreeMap<String, SharedGpu>,
    models: LearnedModels,
    /// Names of members, GPUs and models that came, changed or went since the last commit.
    changed: BTreeSet<String>,
    changed_shared: BTreeSet<String>,
    changed_models: BTreeSet<String>,
    tally: GpuSharingTally,
}

impl GpuSharingFold {
    /// Creates the fold. If it is not enabled, it has no members.
    pub fn new(settings: FoldSettings) -> Self {
        Self {
            own: settings.gpu_sharing.clone().unwrap_or_default(),
            settings,
            head: GpuSharingHead::default(),
            members: BTreeMap::new(),
            shared: BTreeMap::new(),
            models: LearnedModels::default(),
            changed: BTreeSet::new(),
            changed_shared: BTreeSet::new(),
            changed_models: BTreeSet::new(),
            tally: GpuSharingTally::default(),
        }
    }

    fn rebalance_settings(&self) -> RebalanceSettings {
        let own = &self.own;
        RebalanceSettings {
            choice: ChoiceSettings {
                // Uncertainty is resolved by a trial: a partition that does not help is reverted.
                risk_quantile: None,
                floor_ratio: Some(own.floor_ratio),
                slowdown_max_ratio: own.max_slowdown_ratio,
                gain_min_ratio: own.gain_min_ratio,
                ..ChoiceSettings::default()
            },
            step_percentage: own.step_percentage,
            hold_seconds: own.hold_seconds,
            give_up_seconds: own.give_up_seconds,
            decision_expiry_seconds: own.decision_expiry_seconds,
            validation_windows: own.validation_windows,
        }
    }

    fn note_late(&mut self, time: EventTime) {
        if self.head.evaluated.is_some_and(|evaluated| time <= evaluated) {
            self.tally.late += 1;
            self.head.late = Some(self.head.late.map_or(time, |late| late.min(time)));
        }
    }

    /// Makes room: of the workloads that are gone, forgets the oldest measurements.
    fn forget_oldest(&mut self) -> bool {
        let idle = self.members.iter().filter(|(_, member)| member.is_idle(&self.settings));
        let Some(name) = idle.min_by_key(|(_, member)| member.through()).map(|(name, _)| name.clone()) else { return false };
        self.members.remove(&name);
        self.changed.insert(name);
        true
    }

    /// Notes a window of a workload with another controller.
    fn on_unmanaged_window(&mut self, window: &EfficiencyWindow) {
        // Without members there are no evaluations, although GPUs come and go.
        let swept = *self.head.swept.get_or_insert(window.window_end);
        if window.window_end.seconds_since(swept) > self.own.silence_seconds {
            self.drop_unshared(window.window_end);
        }
        for device in &window.shared_devices {
            let strangers = &mut self.shared.entry(device.clone()).or_default().strangers;
            let known = strangers.get(&window.workload).map(|stranger| stranger.newest);
            if known.is_none_or(|newest| newest < window.window_end) && (known.is_some() || strangers.len() < MAX_STRANGERS) {
                strangers.insert(window.workload.clone(), UnmanagedTenant { newest: window.window_end, before: known });
            }
            self.changed_shared.insert(device.clone());
        }
    }

    /// Evaluates the state at `time`.
    fn decide_at(&mut self, time: EventTime, out: &mut Vec<Decision>) {
        let mut refused = BTreeSet::new();
        let retention = self.settings.retention as f64 / 1e6;
        let forgotten: Vec<String> = self
            .members
            .iter_mut()
            .filter_map(|(name, member)| {
                out.extend(member.pending_decision.take_overdue());
                if member.advance(time, &self.own) {
                    refused.insert(name.clone());
                }
                let old = member.through().is_none_or(|through| time.seconds_since(through) > retention);
                (member.is_idle(&self.settings) && old).then(|| name.clone())
            })
            .collect();
        for name in forgotten {
            self.members.remove(&name);
            self.changed.insert(name);
        }
        let mut sharing: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut decisions: BTreeMap<String, Decision> = BTreeMap::new();
        let mut measured = 0;
        for (name, member) in &mut self.members {
            let Some(workload) = member.present(&self.settings).cloned() else {
                decisions.extend(member.leaves(time, &self.own).map(|decision| (name.clone(), decision)));
                continue;
            };
            measured += u64::from(member.profile(name, &self.own).is_some_and(|profile| profile.is_ok()));
            let seat = member.seat(time, &self.settings).cloned();
            let stay = |reason: String| draft(&workload, time, &self.own, reason);
            let decision = match seat.as_ref().map(|seat| (seat.tenants, &seat.devices[..])) {
                None => member.unseen(time, &workload, &self.own),
                Some((..=1, _)) => member.alone(time, name, &workload, &self.own),
                Some((_, [device])) => {
                    sharing.entry(device.clone()).or_default().insert(name.clone());
                    continue;
                }
                Some((_, devices)) => {
                    let count = if devices.is_empty() { "more than 64".to_owned() } else { devices.len().to_string() };
                    let back = member.restore_share(time, &workload, &self.own, NOT_ALONE).ok().flatten();
                    back.unwrap_or_else(|| {
                        stay(format!(
                            "it shares {count} GPUs, and has one share for all of them: it cannot be changed on one GPU alone"
                        ))
                    })
                }
            };
            decisions.insert(name.clone(), decision);
        }
        for (device, names) in &sharing {
            let rebalance = self.rebalance_settings();
            let gpu = self.shared.entry(device.clone()).or_default();
            gpu.shared = Some(time);
            gpu.strangers.retain(|_, stranger| !stranger.is_forgotten(time, self.own.silence_seconds));
            if names.iter().any(|name| refused.contains(name)) {
                gpu.state.give_up(time, &rebalance);
            }
            decisions.extend(self.decide_for_gpu(time, device, names));
            self.changed_shared.insert(device.clone());
        }
        self.tally.shared_gpus = sharing.len() as u64;
        self.tally.measured = measured;
        self.drop_unshared(time);
        let late = self.head.late.map(|late| (LATE_SECONDS.to_owned(), time.seconds_since(late)));
        for (name, mut decision) in decisions {
            let Some(member) = self.members.get_mut(&name) else { continue };
            decision.origin = decision.origin.max(member.origin());
            // A replay, which merges by time, may have evaluated otherwise from then on.
            decision.evidence.extend(late.clone());
            if decision.action != ControllerAction::Maintain {
                member.on_decision(&decision);
            }
            // Windows of workloads with another controller by now are not this stage's.
            let is_awaited = member.present(&self.settings).is_some() && member.is_awaited(time, &self.own);
            out.extend(member.pending_decision.queue_decision(decision, is_awaited));
        }
        self.head = GpuSharingHead { evaluated: Some(time), late: None, swept: self.head.swept };
        self.changed.extend(self.members.keys().cloned());
        self.tally.evaluations += 1;
    }

    /// Returns the decisions about the members on one GPU.
    fn decide_for_gpu(&mut self, time: EventTime, device: &str, names: &BTreeSet<String>) -> BTreeMap<String, Decision> {
        let rebalance_settings = self.rebalance_settings();
        let own = &self.own;
        let Some(gpu) = self.shared.get_mut(device) else { return BTreeMap::new() };
        let mut workloads: Vec<Workload> = Vec::with_capacity(names.len());
        for name in names {
            workloads.extend(self.members.get(name).and_then(|member| member.present(&self.settings)).cloned());
        }
        let tenants = names.iter().filter_map(|name| self.members.get(name)?.seat(time, &self.settings)).map(|seat| seat.tenants);
        let tenants = tenants.max().unwrap_or(0) as usize;
        let mut decisions = BTreeMap::new();
        let mut waits = None;
        for workload in &workloads {
            let Some(member) = self.members.get_mut(&workload.workload) else { continue };
            match member.restore_share(time, workload, own, NOT_ALONE) {
                Ok(back) => decisions.extend(back.map(|decision| (workload.workload.clone(), decision))),
                Err(reason) => waits = waits.or_else(|| Some(format!("{}: {reason}", workload.workload))),
            }
        }
        let members: Vec<SharingMember<'_>> = workloads
            .iter()
            .filter_map(|workload| {
                let member = self.members.get(&workload.workload)?;
                Some(SharingMember { workload, member, profile: member.profile(&workload.workload, own) })
            })
            .collect();
        let hindered = if decisions.is_empty() {
            waits.or_else(|| find_obstacle(gpu, time, tenants, &members, own))
        } else {
            Some("a workload that was measured alone first gets its share back".to_owned())
        };
        let mut model_version = None;
        let (reason, validation) = if let Some(reason) = hindered {
            (reason, ChangeValidation::None)
        } else {
            let sharers: Vec<GpuSharer<'_>> = members.iter().map(SharingMember::sharer).collect();
            let learned = workloads.first().and_then(|workload| self.models.of(workload.gpu_model.as_deref()?));
            let refused = learned.map(|learned| learned.check(sharers.iter().filter_map(|sharer| sharer.profile)));
            let brain = match learned.filter(|_| refused == Some(Ok(()))) {
                Some(learned) => ModelChoice {
                    predictor: learned.model(),
                    model_version: Some(learned.version()),
                    idle_watts: Some(learned.model().idle_watts()),
                },
                None => ModelChoice { predictor: &AdditivePredictor, model_version: None, idle_watts: None },
            };
            let outcome = rebalance(&mut gpu.state, time, &sharers, &brain, &rebalance_settings);
            let unasked = match (learned, refused) {
                (Some(learned), Some(Err(why))) => format!("; {} is not used: {why}", learned.version()),
                _ => String::new(),
            };
            decisions.extend(outcome.decisions.into_iter().map(|mut decision| {
                decision.reason += &unasked;
                (decision.workload.clone(), decision)
            }));
            let reason = outcome.reason + &unasked;
            model_version = outcome.model_version;
            (reason, outcome.validation)
        };
        for workload in &workloads {
            let others: Vec<&str> = names.iter().filter(|name| **name != workload.workload).map(String::as_str).collect();
            let with = if others.is_empty() { String::new() } else { format!(" with {}", others.join(", ")) };
            let stay = || Decision {
                validation,
                model_version: model_version.clone(),
                ..draft(workload, time, own, format!("sharing {device}{with}: {reason}"))
            };
            let decision = decisions.entry(workload.workload.clone()).or_insert_with(stay);
            decision.evidence.insert("workloads".into(), tenants as f64);
        }
        decisions
    }

    /// Drops the state of GPUs that no members have shared for a day; until then they may return.
    fn drop_unshared(&mut self, time: EventTime) {
        self.head.swept = Some(time);
        let silence = self.own.silence_seconds;
        let changed = &mut self.changed_shared;
        self.shared.retain(|device, gpu| {
            gpu.strangers.retain(|_, stranger| !stranger.is_forgotten(time, silence));
            let keeps = !gpu.strangers.is_empty() || gpu.shared.is_some_and(|shared| time.seconds_since(shared) <= DAY_SECONDS);
            if !keeps {
                changed.insert(device.clone());
            }
            keeps
        });
    }
}

impl JointFold for GpuSharingFold {
    type Tally = GpuSharingTally;

    fn restore<K: AsRef<str>, V: AsRef<[u8]>>(
        settings: FoldSettings,
        records: impl IntoIterator<Item = (K, Option<V>)>,
    ) -> Result<Self, StateError> {
        state::restore(Self::new(settings), records)
    }

    fn on_window(&mut self, window: &EfficiencyWindow, out: &mut Vec<Decision>) {
        let (name, end) = (&window.workload, window.window_end);
        if window.kind != WindowKind::Tumbling {
            return;
        }
        let is_member = self.members.get(name).is_some_and(|member| member.is_shared(&self.settings));
        let is_due = self.head.evaluated.is_none_or(|evaluated| evaluated < end);
        if !is_member {
            if is_due && self.members.get(name).is_some_and(SharingMemberState::must_restore) {
                self.decide_at(end, out);
            }
            self.on_unmanaged_window(window);
            return;
        }
        if is_due {
            self.decide_at(end, out);
        } else if self.head.evaluated > Some(end) {
            self.note_late(end);
        }
        let Some(member) = self.members.get_mut(name) else { return };
        member.add_window(window, &self.own);
        out.extend(member.decision_for(window, &self.own, "this window came after the evaluation at its end"));
        self.changed.insert(name.clone());
    }

    fn on_workload(&mut self, event: &Workload) -> Result<(), DecodeError> {
        let name = &event.workload;
        let known = self.members.contains_key(name);
        if !known && !self.settings.shares_gpus(event) {
            return Ok(());
        }
        if !known && self.members.len() >= self.settings.max_workloads && !self.forget_oldest() {
            let detail = format!(
                "workload {name:?} is refused: the cap of {} workloads of the controller sm-partition is reached \
                 (processor.max_workloads)",
                self.settings.max_workloads
            );
            return Err(DecodeError { reason: DeadLetterReason::StateLimit, field: None, detail });
        }
        self.note_late(event.time);
        self.members.entry(name.clone()).or_default().set_layout(event);
        self.changed.insert(name.clone());
        Ok(())
    }

    fn on_actuation(&mut self, event: &Actuation) {
        if matches!(event.outcome, ActuationOutcome::Ready | ActuationOutcome::Recommended)
            || !self.members.contains_key(&event.workload)
        {
            return;
        }
        self.note_late(event.time);
        if let Some(member) = self.members.get_mut(&event.workload) {
            member.on_answer(event);
            self.changed.insert(event.workload.clone());
        }
    }

    fn on_model(&mut self, event: &Model) {
        let ignored = &mut self.tally.models_ignored;
        match self.models.put(event) {
            ModelOutcome::InForce => {
                self.tally.models += 1;
                self.note_late(event.time);
                self.changed_models.insert(event.name.clone());
            }
            ModelOutcome::Older => ignored.older += 1,
            ModelOutcome::Unusable(UnusableModel::Version) => ignored.version += 1,
            ModelOutcome::Unusable(UnusableModel::Damaged | UnusableModel::Gpu) => ignored.damaged += 1,
            // An event of the first stage, or of no member.
            ModelOutcome::Foreign => {}
        }
    }

    fn on_workload_gone(&mut self, name: &str) {
        if let Some(member) = self.members.get_mut(name) {
            member.leave();
            self.changed.insert(name.to_owned());
        }
    }

    fn on_model_gone(&mut self, name: &str) {
        if self.models.withdraw(name) {
            self.changed_models.insert(name.to_owned());
        }
    }

    fn max_future(&self) -> Option<i64> {
        self.settings.max_future
    }

    fn take_changes(&mut self) -> Vec<StateRecord> {
        state::take_changes(self)
    }

    fn member_count(&self) -> usize {
        self.members.len()
    }

    fn tally(&self) -> GpuSharingTally {
        self.tally
    }
}
