//! Step 3: whether a planned change may and can be made. Pure; everything that cannot be done is refused here, before
//! anything is touched.

use eadt_bus::chaos;
use eadt_cluster::{JobRequest, ManagedWorkload, WorkloadChange};
use eadt_schemas::EventTime;
use eadt_schemas::v1::{
    ControllerAction, Decision, Layout, LayoutBounds, Precision, UpdateMode, Workload, is_older_than_ampere, refusal_reason,
};

use crate::ActuatorSettings;
use crate::plan::PlannedChange;

/// The reason why a decision is not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisionRefusal {
    /// Short and fixed, for metrics.
    pub kind: &'static str,
    /// Text for people.
    pub reason: String,
}

impl DecisionRefusal {
    pub fn new(kind: &'static str, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into() }
    }
}

/// A change that may be made: only this can be applied.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedChange {
    change: WorkloadChange,
}

impl CheckedChange {
    pub fn change(&self) -> &WorkloadChange {
        &self.change
    }

    /// Returns the same change, approved by this user.
    #[must_use]
    pub fn approved_by(mut self, by: Option<String>) -> Self {
        self.change.approved_by = by;
        self
    }
}

/// The result of the checks.
#[derive(Debug, Clone, PartialEq)]
pub enum CheckVerdict {
    Apply(CheckedChange),
    /// Mode `recommend`: it could be made, but people decide.
    Recommend,
}

/// Checks a planned change against the object as it is at `now`.
pub fn check(
    planned: &PlannedChange,
    decision: &Decision,
    managed: &ManagedWorkload,
    now: EventTime,
    settings: &ActuatorSettings,
) -> Result<CheckVerdict, DecisionRefusal> {
    let state = &managed.state;
    check_time(decision, managed, now, settings.max_ahead_seconds)?;
    check_permitted(state)?;
    check_base(decision, managed)?;
    if planned.layout == state.layout {
        return Err(DecisionRefusal::new("no_change", "the workload is laid out like this already"));
    }
    check_bounds(&planned.layout, state)?;
    check_feasible(planned, decision, managed, now)?;
    check_change_interval(managed, now, settings.change_interval_seconds)?;
    if state.mode == UpdateMode::Recommend {
        return Ok(CheckVerdict::Recommend);
    }
    Ok(CheckVerdict::Apply(CheckedChange {
        change: WorkloadChange {
            workload: state.workload.clone(),
            decision_id: decision.id.clone(),
            decision_time: decision.time,
            generation: state.generation,
            layout: planned.layout.clone(),
            restarts: planned.restarts,
            reverts: decision.action == ControllerAction::Revert,
            ready_within_seconds: settings.rollout_deadline_seconds,
            approved_by: None,
        },
    }))
}

fn refuse<T>(kind: &'static str, reason: String) -> Result<T, DecisionRefusal> {
    Err(DecisionRefusal { kind, reason })
}

fn check_time(
    decision: &Decision,
    managed: &ManagedWorkload,
    now: EventTime,
    max_ahead_seconds: f64,
) -> Result<(), DecisionRefusal> {
    // A decision without an expiry carries the default time.
    if decision.expires != EventTime::default() && now >= decision.expires {
        return refuse("expired", format!("it expired at {}, now is {now}", decision.expires));
    }
    // A decision from the future cannot be checked for expiry.
    if decision.time.seconds_since(now) > max_ahead_seconds {
        return refuse(
            "future",
            format!(
                "it is of {}, now is {now}: the clock of the job, of its GPUs or of the actuator is wrong by more than \
                 actuator.max_ahead_seconds",
                decision.time
            ),
        );
    }
    match &managed.applied {
        Some(applied) if decision.time <= applied.decision_time => refuse(
            "older",
            format!(
                "it is of {}, not newer than the decision {} of {}",
                decision.time, applied.decision_id, applied.decision_time
            ),
        ),
        _ => Ok(()),
    }
}

fn check_permitted(state: &Workload) -> Result<(), DecisionRefusal> {
    if state.mode == UpdateMode::Observe {
        return refuse("mode", refusal_reason::OBSERVED.into());
    }
    if state.paused {
        return refuse("paused", refusal_reason::PAUSED.into());
    }
    Ok(())
}

fn check_base(decision: &Decision, managed: &ManagedWorkload) -> Result<(), DecisionRefusal> {
    let state = &managed.state;
    if let Some(applied) = managed.rolling_out() {
        return refuse("rollout", format!("the rollout of decision {} is still in progress", applied.decision_id));
    }
    if state.ready_time.is_none() {
        return refuse("rollout", format!("generation {} is not ready yet", state.generation));
    }
    match decision.generation {
        Some(generation) if generation == state.generation => {}
        Some(generation) => {
            return refuse("generation", format!("it was made for generation {generation}, in force is {}", state.generation));
        }
        None => return refuse("generation", "it names no generation".into()),
    }
    if decision.from != state.layout {
        return refuse(
            "layout",
            format!(
                "it was made for the layout {}, in force is {}",
                describe_layout(&decision.from),
                describe_layout(&state.layout)
            ),
        );
    }
    Ok(())
}

fn check_bounds(to: &Layout, state: &Workload) -> Result<(), DecisionRefusal> {
    let LayoutBounds { mps_thread_percentage_min, mps_thread_percentage_max, replicas_min, replicas_max, .. } = state.bounds;
    let now = &state.layout;
    let from_u32 = |value: Option<u32>| value.map(f64::from);
    for (name, to, now, low, high) in [
        (
            "mps_thread_percentage",
            from_u32(to.mps_thread_percentage),
            from_u32(now.mps_thread_percentage),
            from_u32(mps_thread_percentage_min).unwrap_or(1.0),
            from_u32(mps_thread_percentage_max).unwrap_or(100.0),
        ),
        (
            "replicas",
            from_u32(to.replicas),
            from_u32(now.replicas),
            from_u32(replicas_min).unwrap_or(1.0),
            from_u32(replicas_max).unwrap_or(f64::MAX),
        ),
        (
            "power_limit_watts",
            to.power_limit_watts,
            now.power_limit_watts,
            state.bounds.power_limit_watts_min.unwrap_or(f64::MIN_POSITIVE),
            min_bound(state.bounds.power_limit_watts_max, state.gpu_power_limit_watts),
        ),
        (
            "sm_clock_mhz",
            to.sm_clock_mhz,
            now.sm_clock_mhz,
            state.bounds.sm_clock_mhz_min.unwrap_or(f64::MIN_POSITIVE),
            state.bounds.sm_clock_mhz_max.unwrap_or(f64::MAX),
        ),
    ] {
        // Unchanged values are not checked: the user may have set them outside the bounds.
        if let Some(to) = to.filter(|to| Some(*to) != now && !(low..=high).contains(to)) {
            let side = if to < low { format!("below {low}") } else { format!("above {high}") };
            return refuse("bounds", format!("{name} {to} is {side}"));
        }
    }
    check_job_bounds(to, state)?;
    if let (Some(replicas), Some(percentage), Some(gpus)) = (to.replicas, to.mps_thread_percentage, state.gpus.filter(|n| *n > 0))
    {
        let sum = u64::from(replicas.div_ceil(gpus)) * u64::from(percentage);
        let allowed = u64::from(state.bounds.oversubscription_percentage_max.unwrap_or(100).clamp(100, 200));
        let before = now.replicas.zip(now.mps_thread_percentage).map(|(r, p)| u64::from(r.div_ceil(gpus)) * u64::from(p));
        // One process alone cannot be too many; and reducing a share that is not allowed any more is always allowed.
        if sum > allowed && before.is_none_or(|before| sum > before) {
            return refuse(
                "bounds",
                format!("the processes on one GPU would hold {sum} % of its threads, allowed are {allowed} %"),
            );
        }
    }
    Ok(())
}

/// Returns the job settings that a layout requests and the bounds do not allow, also those that were requested before.
pub fn job_settings_beyond_bounds(layout: &Layout, bounds: &LayoutBounds) -> (Option<Precision>, Option<u32>) {
    let (precision, layers) = layout.asked_of_job();
    let allowed = |precision: &Precision| bounds.precisions.as_ref().is_none_or(|allowed| allowed.contains(precision));
    let most = bounds.frozen_prefix_layers_max.unwrap_or(u32::MAX);
    (precision.filter(|precision| !allowed(precision)), layers.filter(|layers| *layers > most))
}

fn check_job_bounds(to: &Layout, state: &Workload) -> Result<(), DecisionRefusal> {
    let (precision, layers) = job_settings_beyond_bounds(to, &state.bounds);
    if let Some(precision) = precision.filter(|_| to.precision != state.layout.precision) {
        let allowed = state.bounds.precisions.iter().flatten().map(|precision| precision.as_str()).collect::<Vec<_>>();
        let allowed = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
        return refuse("bounds", format!("precision {precision} is not among those that are allowed ({allowed})"));
    }
    match layers.filter(|_| to.frozen_prefix_layers != state.layout.frozen_prefix_layers) {
        Some(layers) => {
            let most = state.bounds.frozen_prefix_layers_max.unwrap_or(0);
            refuse("bounds", format!("frozen_prefix_layers {layers} is above {most}"))
        }
        None => Ok(()),
    }
}

fn min_bound(a: Option<f64>, b: Option<f64>) -> f64 {
    a.unwrap_or(f64::MAX).min(b.unwrap_or(f64::MAX))
}

fn check_feasible(
    planned: &PlannedChange,
    decision: &Decision,
    managed: &ManagedWorkload,
    now: EventTime,
) -> Result<(), DecisionRefusal> {
    let (to, state) = (&planned.layout, &managed.state);
    if let (Some(requested), Some(default)) = (to.mps_thread_percentage, managed.mps_default_thread_percentage)
        && requested > default
    {
        return refuse("mps_default", format!("the node's MPS default of {default} % is lower than the requested {requested} %"));
    }
    if let (Some(replicas), Some(world)) = (to.replicas, to.world_size)
        && replicas != world
    {
        return refuse("world_size", format!("a world of {world} needs {world} replicas, not {replicas}"));
    }
    if let Some(replicas) = to.replicas.filter(|_| to.replicas != state.layout.replicas) {
        check_replicas(replicas, to, state)?;
    }
    if let Some(request) = JobRequest::between(&state.layout, to) {
        if planned.restarts {
            let reason = format!(
                "it restarts the processes and requests {request} from the job: their effects could not be distinguished"
            );
            return refuse("two_at_once", reason);
        }
        if let Some(precision @ (Precision::Bf16 | Precision::Tf32)) = request.precision
            && let Some(model) = state.gpu_model.as_deref().filter(|model| is_older_than_ampere(model))
        {
            return refuse("precision", format!("{model} has no arithmetic for {precision}, which came with Ampere"));
        }
    }
    let day_ago = now.plus_seconds(-86_400.0);
    let recent = managed.restarts.iter().filter(|time| **time > day_ago).count() as u64;
    match state.bounds.restarts_per_day_max.map(u64::from) {
        // The number of restarts never blocks a revert.
        Some(max) if planned.restarts && decision.action != ControllerAction::Revert && recent >= max => {
            refuse("restart_budget", format!("{recent} restarts within 24 h, allowed are {max}"))
        }
        _ => Ok(()),
    }
}

/// Checks the time since the last change, so that contradictory decisions cannot change a workload back and forth. The object has
/// that time, so the check holds for every actuator and over restarts. A change with a future time is of a wrong clock, and
/// blocks nothing.
fn check_change_interval(managed: &ManagedWorkload, now: EventTime, interval_seconds: f64) -> Result<(), DecisionRefusal> {
    let Some(applied) = &managed.applied else { return Ok(()) };
    let last = applied.rolled_back.as_ref().map_or(applied.time, |back| back.time.max(applied.time));
    let ago = now.seconds_since(last);
    if !(0.0..interval_seconds).contains(&ago) || chaos::is_off("change-interval") {
        return Ok(());
    }
    let why = format!(
        "decision {} changed it {ago:.0} s ago, and at least {interval_seconds} s lie between changes (actuator.change_interval_seconds)",
        applied.decision_id
    );
    refuse("too_soon", why)
}

fn check_replicas(replicas: u32, to: &Layout, state: &Workload) -> Result<(), DecisionRefusal> {
    if replicas == 0 {
        return refuse("replicas", "at least one replica must stay".into());
    }
    if let Some(gpus) = state.gpus.filter(|gpus| *gpus > 0) {
        if replicas > gpus {
            match state.backend.as_deref() {
                None => {
                    let reason =
                        format!("{replicas} ranks on {gpus} GPUs: the backend is not declared, and NCCL allows one rank a GPU");
                    return refuse("backend", reason);
                }
                Some(backend) if backend.eq_ignore_ascii_case("nccl") => {
                    return refuse("backend", format!("{replicas} ranks on {gpus} GPUs: NCCL allows one rank a GPU"));
                }
                Some(_) => {}
            }
        }
        if let Some(local) = to.local_world_size
            && local.checked_mul(gpus) != Some(replicas)
        {
            return refuse("world_size", format!("{replicas} replicas on {gpus} GPUs do not make {local} a GPU"));
        }
    }
    match state.global_batch_size {
        Some(batch) if batch % replicas != 0 => {
            refuse("batch", format!("{replicas} replicas do not divide the global batch of {batch}"))
        }
        _ => Ok(()),
    }
}

/// Returns a layout in words, for a reason.
fn describe_layout(layout: &Layout) -> String {
    let mut parts = Vec::new();
    let mut add = |name: &str, value: Option<f64>, unit: &str| {
        if let Some(value) = value {
            parts.push(format!("{name} {value}{unit}"));
        }
    };
    add("replicas", layout.replicas.map(f64::from), "");
    add("threads", layout.mps_thread_percentage.map(f64::from), " %");
    add("world", layout.world_size.map(f64::from), "");
    add("per GPU", layout.local_world_size.map(f64::from), "");
    add("cap", layout.power_limit_watts, " W");
    add("clock", layout.sm_clock_mhz, " MHz");
    add("frozen layers", layout.frozen_prefix_layers.map(f64::from), "");
    parts.extend(layout.precision.map(|precision| format!("precision {precision}")));
    if parts.is_empty() { "unknown".into() } else { parts.join(", ") }
}

#[cfg(test)]
pub(crate) mod tests {
    use eadt_cluster::AppliedDecision;
    use proptest::prelude::*;

    use super::*;
    use crate::plan::{DecisionPlan, plan_decision};

    pub fn at(seconds: f64) -> EventTime {
        EventTime::from_seconds(1_767_225_600.0 + seconds)
    }

    pub fn layout(replicas: u32, percentage: u32) -> Layout {
        Layout {
            replicas: Some(replicas),
            mps_thread_percentage: Some(percentage),
            world_size: Some(replicas),
            local_world_size: Some(replicas / 3),
            ..Layout::default()
        }
    }

    pub fn managed() -> ManagedWorkload {
        ManagedWorkload {
            state: Workload {
                time: at(0.0),
                workload: "eadt/llm-training".into(),
                kind: "StatefulSet".into(),
                generation: 4,
                layout: layout(6, 50),
                mode: UpdateMode::Enforce,
                bounds: LayoutBounds { oversubscription_percentage_max: Some(200), ..LayoutBounds::default() },
                gpus: Some(3),
                gpu_power_limit_watts: Some(400.0),
                backend: Some("gloo".into()),
                global_batch_size: Some(576),
                ready_time: Some(at(0.0)),
                ..Workload::default()
            },
            applied: None,
            mps_default_thread_percentage: Some(100),
            restarts: vec![],
        }
    }

    pub fn decision() -> Decision {
        Decision {
            id: "d-60".into(),
            workload: "eadt/llm-training".into(),
            time: at(60.0),
            action: ControllerAction::Decrease,
            from: layout(6, 50),
            to: layout(6, 40),
            generation: Some(4),
            restarts: true,
            expires: at(360.0),
            ..Decision::default()
        }
    }

    pub fn applied() -> AppliedDecision {
        AppliedDecision {
            decision_id: "d-0".into(),
            decision_time: at(0.0),
            generation: 4,
            time: at(10.0),
            layout: layout(6, 50),
            before: layout(6, 60),
            ready_by: at(610.0),
            ready_time: Some(at(40.0)),
            rolled_back: None,
            approved_by: None,
        }
    }

    fn verdict(decision: &Decision, managed: &ManagedWorkload, now: EventTime) -> Result<CheckVerdict, DecisionRefusal> {
        match plan_decision(decision, managed) {
            DecisionPlan::Change(planned) => check(&planned, decision, managed, now, &ActuatorSettings::default()),
            other => panic!("not a change: {other:?}"),
        }
    }

    #[test]
    fn a_good_change_is_fenced_by_decision_and_generation() {
        let Ok(CheckVerdict::Apply(checked)) = verdict(&decision(), &managed(), at(70.0)) else { panic!("refused") };
        let change = checked.change();
        assert_eq!((change.decision_id.as_str(), change.generation, change.restarts), ("d-60", 4, true));
        assert_eq!(change.layout, layout(6, 40));
    }

    #[test]
    fn gpus_without_bf16_are_known_by_their_names() {
        for older in [
            "Tesla V100-SXM2-16GB",
            "Tesla P4",
            "Tesla P40",
            "Tesla T4",
            "NVIDIA GeForce RTX 2080 Ti",
            "NVIDIA TITAN RTX",
            "Quadro RTX 6000",
            "Quadro P5000",
        ] {
            assert!(is_older_than_ampere(older), "{older}");
        }
        for newer in [
            "NVIDIA A100-SXM4-40GB",
            "NVIDIA H100 PCIe",
            "NVIDIA RTX 2000 Ada Generation",
            "NVIDIA RTX 6000 Ada Generation",
            "NVIDIA GeForce RTX 4090",
            "NVIDIA T400",
            "NVIDIA L4",
        ] {
            assert!(!is_older_than_ampere(newer), "{newer}");
        }
    }

    #[test]
    fn what_the_job_is_asked_for_is_within_bounds_possible_and_nothing_else_at_once() {
        let why = |layout: &dyn Fn(&mut Layout), change: &dyn Fn(&mut ManagedWorkload)| {
            let (mut managed, mut decision) = (managed(), decision());
            managed.state.bounds.precisions = Some(vec![Precision::Bf16, Precision::Tf32]);
            managed.state.bounds.frozen_prefix_layers_max = Some(12);
            decision.to = decision.from.clone();
            layout(&mut decision.to);
            change(&mut managed);
            verdict(&decision, &managed, at(70.0)).map(|_| ()).map_err(|refusal| refusal.reason)
        };
        let bf16 = |to: &mut Layout| to.precision = Some(Precision::Bf16);
        assert_eq!(why(&bf16, &|_| {}), Ok(()));
        assert_eq!(why(&|to| to.frozen_prefix_layers = Some(12), &|_| {}), Ok(()));
        let refused =
            |result: Result<(), String>, word: &str| assert!(result.as_ref().is_err_and(|why| why.contains(word)), "{result:?}");
        refused(why(&|to| to.precision = Some(Precision::Fp16), &|_| {}), "bf16, tf32");
        refused(why(&|to| to.frozen_prefix_layers = Some(13), &|_| {}), "above 12");
        refused(why(&bf16, &|m| m.state.gpu_model = Some("Tesla V100".into())), "Ampere");
        refused(why(&bf16, &|m| m.state.bounds.precisions = Some(vec![])), "none");
        let both = |to: &mut Layout| {
            bf16(to);
            to.mps_thread_percentage = Some(40);
        };
        refused(why(&both, &|_| {}), "requests precision bf16 from the job");
        // Settings that were requested before are not checked again.
        let before = |m: &mut ManagedWorkload| {
            m.state.layout.precision = Some(Precision::Fp32);
            m.state.bounds.precisions = Some(vec![]);
        };
        let (mut managed, mut decision) = (managed(), decision());
        before(&mut managed);
        decision.from.precision = Some(Precision::Fp32);
        assert!(verdict(&decision, &managed, at(70.0)).is_ok());
    }

    #[test]
    fn mode_recommend_only_recommends() {
        let mut managed = managed();
        managed.state.mode = UpdateMode::Recommend;
        assert_eq!(verdict(&decision(), &managed, at(70.0)), Ok(CheckVerdict::Recommend));
    }

    /// Checks each refusal of the design: the error, and a word of the required reason.
    #[test]
    fn everything_that_may_not_be_done_is_refused_with_its_reason() {
        type Spoil = fn(&mut Decision, &mut ManagedWorkload, &mut EventTime);
        let cases: [(&str, &str, Spoil); 22] = [
            ("expired", "expired", |_, _, now| *now = at(360.0)),
            ("future", "clock", |_, _, now| *now = at(-61.0)),
            ("older", "d-0", |d, m, _| {
                m.applied = Some(AppliedDecision { decision_time: d.time, ..applied() });
            }),
            ("mode", "observe", |_, m, _| m.state.mode = UpdateMode::Observe),
            ("paused", "paused", |_, m, _| m.state.paused = true),
            ("rollout", "d-0", |_, m, _| m.applied = Some(AppliedDecision { ready_time: None, ..applied() })),
            ("rollout", "not ready", |_, m, _| m.state.ready_time = None),
            ("generation", "generation 3", |d, _, _| d.generation = Some(3)),
            ("generation", "names no", |d, _, _| d.generation = None),
            ("layout", "threads 60 %", |d, _, _| d.from.mps_thread_percentage = Some(60)),
            ("no_change", "already", |d, _, _| d.to = d.from.clone()),
            ("bounds", "below 45", |_, m, _| m.state.bounds.mps_thread_percentage_min = Some(45)),
            ("bounds", "above 6", |d, m, _| {
                m.state.bounds.replicas_max = Some(6);
                d.to = layout(9, 35);
            }),
            ("bounds", "105 %", |d, m, _| {
                m.state.bounds.oversubscription_percentage_max = None;
                d.to = layout(9, 35);
            }),
            ("bounds", "above 400", |d, _, _| d.to.power_limit_watts = Some(450.0)),
            ("mps_default", "default of 30 %", |_, m, _| m.mps_default_thread_percentage = Some(30)),
            ("world_size", "world of 6", |d, _, _| d.to.replicas = Some(9)),
            ("backend", "NCCL", |d, m, _| {
                m.state.backend = Some("NCCL".into());
                d.to = layout(9, 35);
            }),
            ("backend", "not declared", |d, m, _| {
                m.state.backend = None;
                d.to = layout(9, 35);
            }),
            ("batch", "576", |d, _, _| d.to = layout(15, 25)),
            ("too_soon", "5 s ago", |_, m, _| m.applied = Some(AppliedDecision { time: at(65.0), ..applied() })),
            ("restart_budget", "2 restarts", |_, m, _| {
                m.state.bounds.restarts_per_day_max = Some(2);
                m.restarts = vec![at(-86_400.0), at(-3600.0), at(-60.0)];
            }),
        ];
        for (kind, word, spoil) in cases {
            let (mut decision, mut managed, mut now) = (decision(), managed(), at(70.0));
            spoil(&mut decision, &mut managed, &mut now);
            match verdict(&decision, &managed, now) {
                Err(refusal) => assert!(refusal.kind == kind && refusal.reason.contains(word), "{kind} {word}: {refusal:?}"),
                other => panic!("{kind} {word}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_way_back_is_not_barred_by_the_restart_budget() {
        let (mut decision, mut managed) = (decision(), managed());
        managed.state.bounds.restarts_per_day_max = Some(0);
        decision.action = ControllerAction::Revert;
        assert!(matches!(verdict(&decision, &managed, at(70.0)), Ok(CheckVerdict::Apply(_))));
    }

    proptest! {
        /// An hour of deciders that contradict each other.
        #[test]
        fn contradictory_decisions_change_a_workload_at_most_so_often(
            decided in proptest::collection::vec((0_u32..3600, 1_u32..=100, any::<bool>()), 0..400), interval in 1_u32..600,
        ) {
            let settings = ActuatorSettings { change_interval_seconds: f64::from(interval), ..ActuatorSettings::default() };
            let (mut decided, mut managed, mut changes) = (decided, managed(), 0_u32);
            decided.sort_unstable();
            for (number, (second, percentage, revert)) in decided.into_iter().enumerate() {
                let (now, state) = (at(f64::from(second)), &managed.state);
                let decision = Decision {
                    id: format!("d-{number}"),
                    time: now,
                    action: if revert { ControllerAction::Revert } else { ControllerAction::Decrease },
                    from: state.layout.clone(),
                    to: layout(6, percentage),
                    generation: Some(state.generation),
                    expires: now.plus_seconds(300.0),
                    ..decision()
                };
                let DecisionPlan::Change(planned) = plan_decision(&decision, &managed) else { continue };
                let Ok(CheckVerdict::Apply(checked)) = check(&planned, &decision, &managed, now, &settings) else { continue };
                changes += 1;
                let (before, generation) = (managed.state.layout.clone(), managed.state.generation + 1);
                managed.state.layout = checked.change().layout.clone();
                managed.state.generation = generation;
                managed.applied = Some(AppliedDecision {
                    decision_id: decision.id, decision_time: now, generation, time: now, layout: managed.state.layout.clone(), before,
                    ready_time: Some(now), ..applied()
                });
            }
            prop_assert!(changes <= 3600_u32.div_ceil(interval), "{changes} changes, {interval} s apart");
        }

        /// Checks that any accepted decision is inside the bounds and can run.
        #[test]
        fn what_passes_is_inside_the_bounds(
            replicas in 0_u32..40, percentage in 1_u32..=100, low in 1_u32..60, high in 40_u32..=100, batch in 1_u32..800,
            over in 100_u32..=200, gloo: bool,
        ) {
            let (mut decision, mut managed) = (decision(), managed());
            managed.state.bounds.mps_thread_percentage_min = Some(low);
            managed.state.bounds.mps_thread_percentage_max = Some(high);
            managed.state.bounds.oversubscription_percentage_max = Some(over);
            managed.state.global_batch_size = Some(batch);
            managed.state.backend = gloo.then(|| "gloo".into());
            decision.to = layout(replicas, percentage);
            if let Ok(CheckVerdict::Apply(checked)) = verdict(&decision, &managed, at(70.0)) {
                let to = &checked.change().layout;
                prop_assert!(percentage == 50 || (low..=high).contains(&percentage));
                prop_assert!(replicas > 0 && replicas % 3 == 0);
                prop_assert!(replicas == 6 || batch % replicas == 0);
                prop_assert!(replicas <= 6 || gloo);
                let sum = replicas.div_ceil(3) * percentage;
                prop_assert!(sum <= over.max(100), "{to:?}");
            }
        }
    }
}
