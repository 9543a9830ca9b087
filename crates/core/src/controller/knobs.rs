//! Layouts that the actions of the matrix lead to.

use std::cmp::Reverse;

use eadt_schemas::v1::{ControllerAction, Layout, LayoutBounds, Workload};

use super::ControllerSettings;

const DECREASE_POINTS: u32 = 10;
const SCALE_POINTS: u32 = 15;
const INCREASE_POINTS: u32 = 10;
/// Thread percentages of layouts that are tried are multiples of this.
const THREAD_STEP: u32 = 5;
const LITERAL_MIN: u32 = 25;
const LITERAL_PER_GPU: u32 = 4;
/// Backends that let several ranks share a GPU. NCCL does not since 2.5.
const SHARING_BACKENDS: [&str; 3] = ["gloo", "mpi", "ucc"];

/// The two knobs of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MatrixKnobs {
    pub replicas: u32,
    pub threads: u32,
}

impl MatrixKnobs {
    /// Returns the knobs of a layout, or why they cannot be turned.
    pub fn from_layout(layout: &Layout) -> Result<Self, String> {
        match (layout.replicas, layout.mps_thread_percentage) {
            (Some(replicas), Some(threads)) => Ok(Self { replicas, threads }),
            (None, _) => Err("the number of replicas is not known: nothing can be changed".into()),
            (_, None) => Err("no MPS thread percentage is set: nothing can be changed".into()),
        }
    }

    /// Returns this layout with the knobs so.
    pub fn in_layout(self, layout: &Layout, gpus: u32) -> Layout {
        Layout {
            replicas: Some(self.replicas),
            mps_thread_percentage: Some(self.threads),
            world_size: Some(self.replicas),
            local_world_size: Some(self.replicas / gpus.max(1)),
            ..layout.clone()
        }
    }

    /// Formats a change as `MPS 50 % → 40 %, 6 → 9 replicas`.
    pub fn change_to(self, to: Self) -> String {
        let mut parts = Vec::new();
        if to.replicas != self.replicas {
            parts.push(format!("{} → {} replicas", self.replicas, to.replicas));
        }
        if to.threads != self.threads {
            parts.push(format!("MPS {} % → {} %", self.threads, to.threads));
        }
        parts.join(", ")
    }
}

/// Returns the knobs by the formulas of the seed; explicit bounds of the workload still hold.
pub(super) fn literal_target(action: ControllerAction, from: MatrixKnobs, gpus: u32, bounds: &LayoutBounds) -> MatrixKnobs {
    let MatrixKnobs { replicas, threads } = from;
    let to = match action {
        ControllerAction::Decrease => MatrixKnobs { replicas, threads: threads.saturating_sub(DECREASE_POINTS).max(LITERAL_MIN) },
        ControllerAction::ScaleReplicas => MatrixKnobs {
            replicas: (replicas + gpus).min(LITERAL_PER_GPU * gpus),
            threads: threads.saturating_sub(SCALE_POINTS).max(LITERAL_MIN),
        },
        ControllerAction::Increase if threads + INCREASE_POINTS >= 100 => MatrixKnobs { replicas: gpus, threads: 100 },
        ControllerAction::Increase => MatrixKnobs { replicas, threads: threads + INCREASE_POINTS },
        _ => from,
    };
    let mut limits = KnobLimits::unlimited();
    limits.tighten(bounds);
    // A knob that the rule does not turn stays, even if it is outside the bounds.
    let replicas = if to.replicas == replicas { replicas } else { limits.clamp_replicas(to.replicas) };
    let per_gpu = replicas.div_ceil(gpus.max(1));
    MatrixKnobs { replicas, threads: if to.threads == threads { threads } else { limits.clamp_threads(to.threads, per_gpu) } }
}

/// Returns the layout that an action of the precise matrix leads to, or the reason why it must not be.
pub(super) fn precise_target(
    action: ControllerAction,
    from: MatrixKnobs,
    gpus: u32,
    workload: &Workload,
    settings: &ControllerSettings,
) -> Result<MatrixKnobs, String> {
    let mut limits = KnobLimits::from_settings(settings, gpus);
    limits.tighten(&workload.bounds);
    if limits.threads_min > limits.threads_max || limits.replicas_min > limits.replicas_max {
        return Err("the workload's bounds exclude every layout: correct them".into());
    }
    let MatrixKnobs { replicas, threads } = from;
    let per_gpu = |replicas: u32| replicas.div_ceil(gpus);
    let to = match action {
        ControllerAction::Decrease => {
            MatrixKnobs { replicas, threads: limits.clamp_threads(threads.saturating_sub(DECREASE_POINTS), per_gpu(replicas)) }
        }
        ControllerAction::ScaleReplicas => {
            let most = limits.replicas_max / gpus * gpus;
            let to = replicas.saturating_add(gpus).min(most.max(replicas));
            MatrixKnobs { replicas: to, threads: limits.clamp_threads(threads.saturating_sub(SCALE_POINTS), per_gpu(to)) }
        }
        ControllerAction::Increase => {
            let wanted = threads.saturating_add(INCREASE_POINTS).min(limits.threads_max);
            if wanted >= 100 && gpus >= limits.replicas_min {
                MatrixKnobs { replicas: gpus.min(replicas), threads: 100 }
            } else {
                MatrixKnobs { replicas, threads: limits.clamp_threads(wanted, per_gpu(replicas)) }
            }
        }
        _ => from,
    };
    check_room(action, from, to, gpus, &limits)?;
    if to.replicas != replicas {
        check_world(to.replicas, gpus, workload)?;
    }
    Ok(to)
}

/// Returns other layouts worth trying: each number of processes per GPU with as many threads as allowed, nearest numbers first.
pub(super) fn alternative_knobs(
    from: MatrixKnobs,
    gpus: u32,
    workload: &Workload,
    settings: &ControllerSettings,
) -> Vec<MatrixKnobs> {
    let mut limits = KnobLimits::from_settings(settings, gpus);
    limits.tighten(&workload.bounds);
    let here = from.replicas / gpus.max(1);
    let of = |per_gpu: u32| {
        let share = limits.oversubscription / per_gpu;
        let threads = if share >= 100 { 100 } else { share / THREAD_STEP * THREAD_STEP };
        MatrixKnobs { replicas: per_gpu.saturating_mul(gpus), threads: threads.min(limits.threads_max) }
    };
    let most = limits.replicas_max / gpus.max(1);
    let mut all: Vec<MatrixKnobs> = (1..=most.min(48)).map(of).collect();
    // More processes hide waiting, fewer never do: of two equally near numbers the larger comes first.
    all.sort_by_key(|to| (here.abs_diff(to.replicas / gpus.max(1)), Reverse(to.replicas)));
    all.retain(|to| {
        *to != from
            && to.threads >= limits.threads_min.max(1)
            && to.replicas >= limits.replicas_min
            && (to.replicas == from.replicas || check_world(to.replicas, gpus, workload).is_ok())
    });
    all
}

/// Checks that the change goes the way that the action means, ends inside the limits, and changes something.
fn check_room(
    action: ControllerAction,
    from: MatrixKnobs,
    to: MatrixKnobs,
    gpus: u32,
    limits: &KnobLimits,
) -> Result<(), String> {
    let forward = match action {
        ControllerAction::Decrease => to.threads < from.threads,
        ControllerAction::ScaleReplicas => to.threads <= from.threads && to.replicas >= from.replicas && to != from,
        ControllerAction::Increase => to.threads > from.threads || to.replicas < from.replicas,
        _ => false,
    };
    let per_gpu = to.replicas.div_ceil(gpus);
    let inside = (limits.threads_min..=limits.threads_max).contains(&to.threads)
        && (limits.replicas_min..=limits.replicas_max).contains(&to.replicas)
        && per_gpu.saturating_mul(to.threads) <= limits.oversubscription;
    if forward && inside {
        return Ok(());
    }
    let MatrixKnobs { replicas, threads } = from;
    let KnobLimits { threads_min, threads_max, replicas_max, oversubscription, .. } = limits;
    Err(match action {
        ControllerAction::Decrease => format!("MPS {threads} % cannot go lower (at least {threads_min} %)"),
        ControllerAction::ScaleReplicas => format!(
            "{replicas} replicas at MPS {threads} % leave no room to scale (at most {replicas_max} replicas, at least \
             {threads_min} %, {oversubscription} % a GPU in sum)"
        ),
        _ => format!(
            "MPS {threads} % for {replicas} replicas cannot go higher (at most {threads_max} %, {oversubscription} % a GPU in sum)"
        ),
    })
}

/// Checks that a new number of replicas fits GPUs, batch and backend.
fn check_world(replicas: u32, gpus: u32, workload: &Workload) -> Result<(), String> {
    if !replicas.is_multiple_of(gpus) {
        return Err(format!("{replicas} replicas do not spread evenly over {gpus} GPUs"));
    }
    match workload.global_batch_size {
        None => {
            return Err(format!("the global batch size is not declared, so {replicas} replicas cannot be checked against it"));
        }
        Some(batch) if !batch.is_multiple_of(replicas) => {
            return Err(format!("{replicas} replicas do not divide the global batch of {batch}"));
        }
        Some(_) => {}
    }
    let backend = workload.backend.as_deref();
    let shares = backend.is_some_and(|name| SHARING_BACKENDS.iter().any(|known| known.eq_ignore_ascii_case(name)));
    if replicas > gpus && !shares {
        let backend = backend.map_or_else(|| "nccl (none is declared)".into(), |name| format!("{name:?}"));
        return Err(format!("{replicas} replicas on {gpus} GPUs need the backend gloo, mpi or ucc, and this is {backend}"));
    }
    Ok(())
}

/// The range within which each knob may be set.
#[derive(Debug, Clone, Copy, PartialEq)]
struct KnobLimits {
    threads_min: u32,
    threads_max: u32,
    replicas_min: u32,
    replicas_max: u32,
    oversubscription: u32,
}

impl KnobLimits {
    const fn unlimited() -> Self {
        Self { threads_min: 1, threads_max: 100, replicas_min: 1, replicas_max: u32::MAX, oversubscription: u32::MAX }
    }

    fn from_settings(settings: &ControllerSettings, gpus: u32) -> Self {
        Self {
            threads_min: settings.thread_percentage_min,
            replicas_max: settings.replicas_per_gpu_max.saturating_mul(gpus),
            oversubscription: settings.oversubscription_percentage_max,
            ..Self::unlimited()
        }
    }

    /// Replaces each limit for which the bounds hold a value.
    fn tighten(&mut self, bounds: &LayoutBounds) {
        let set = |limit: &mut u32, bound: Option<u32>| *limit = bound.unwrap_or(*limit);
        set(&mut self.threads_min, bounds.mps_thread_percentage_min.map(|percent| percent.max(1)));
        set(&mut self.threads_max, bounds.mps_thread_percentage_max.map(|percent| percent.min(100)));
        set(&mut self.replicas_min, bounds.replicas_min.map(|replicas| replicas.max(1)));
        set(&mut self.replicas_max, bounds.replicas_max);
        set(&mut self.oversubscription, bounds.oversubscription_percentage_max.map(|percent| percent.min(200)));
    }

    fn clamp_threads(&self, wanted: u32, per_gpu: u32) -> u32 {
        let share = self.oversubscription / per_gpu.max(1);
        wanted.max(self.threads_min).min(share.max(1)).min(self.threads_max)
    }

    fn clamp_replicas(&self, wanted: u32) -> u32 {
        wanted.max(self.replicas_min).min(self.replicas_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(bounds: LayoutBounds) -> Workload {
        Workload { bounds, backend: Some("gloo".into()), global_batch_size: Some(576), ..Workload::default() }
    }

    #[test]
    fn bounds_may_leave_one_layout_but_not_none() {
        let settings = ControllerSettings::default();
        let decrease = |bounds: LayoutBounds| {
            precise_target(ControllerAction::Decrease, MatrixKnobs { replicas: 6, threads: 50 }, 3, &workload(bounds), &settings)
                .map(|to| (to.replicas, to.threads))
        };
        let threads = |min, max| LayoutBounds {
            mps_thread_percentage_min: Some(min),
            mps_thread_percentage_max: Some(max),
            ..LayoutBounds::default()
        };
        let replicas = |min, max| LayoutBounds { replicas_min: Some(min), replicas_max: Some(max), ..LayoutBounds::default() };
        assert_eq!(decrease(threads(45, 45)), Ok((6, 45)));
        assert_eq!(decrease(replicas(6, 6)), Ok((6, 40)));
        for excluded in [threads(46, 45), replicas(7, 6)] {
            assert!(decrease(excluded).unwrap_err().contains("exclude every layout"));
        }
    }

    #[test]
    fn a_change_goes_the_way_that_its_action_means() {
        let limits = KnobLimits { threads_min: 25, replicas_max: 12, oversubscription: 200, ..KnobLimits::unlimited() };
        let goes = |action, from: (u32, u32), to: (u32, u32)| {
            let knobs = |(replicas, threads)| MatrixKnobs { replicas, threads };
            check_room(action, knobs(from), knobs(to), 3, &limits).is_ok()
        };
        assert!(
            goes(ControllerAction::ScaleReplicas, (6, 50), (9, 35)) && goes(ControllerAction::ScaleReplicas, (12, 50), (12, 35))
        );
        // A layout under the least threads is no reason to give each process more while scaling.
        assert!(
            !goes(ControllerAction::ScaleReplicas, (6, 20), (9, 25)) && !goes(ControllerAction::ScaleReplicas, (6, 50), (3, 35))
        );
        assert!(goes(ControllerAction::Increase, (6, 50), (6, 60)) && goes(ControllerAction::Increase, (6, 100), (3, 100)));
        assert!(!goes(ControllerAction::Increase, (6, 50), (6, 50)) && !goes(ControllerAction::Increase, (6, 50), (9, 50)));
        assert!(goes(ControllerAction::Decrease, (6, 50), (6, 40)) && !goes(ControllerAction::Decrease, (6, 50), (6, 50)));
    }

    #[test]
    fn other_layouts_are_the_nearest_first_and_only_such_as_may_be() {
        let settings = ControllerSettings::default();
        let of = |from: (u32, u32), workload: &Workload| {
            let from = MatrixKnobs { replicas: from.0, threads: from.1 };
            alternative_knobs(from, 3, workload, &settings).into_iter().map(|to| (to.replicas, to.threads)).collect::<Vec<_>>()
        };
        assert_eq!(of((6, 50), &workload(LayoutBounds::default())), [(9, 30), (3, 100), (12, 25)]);
        let least_threads = LayoutBounds { mps_thread_percentage_min: Some(30), ..LayoutBounds::default() };
        assert_eq!(of((6, 50), &workload(least_threads)), [(9, 30), (3, 100)]);
        let least_replicas = LayoutBounds { replicas_min: Some(9), ..LayoutBounds::default() };
        assert_eq!(of((6, 50), &workload(least_replicas)), [(9, 30), (12, 25)]);
        // 9 processes do not divide a batch of 48, and NCCL lets no two share a GPU; as many as there are need neither.
        let batch = Workload { global_batch_size: Some(48), ..workload(LayoutBounds::default()) };
        assert_eq!(of((6, 60), &batch), [(6, 50), (3, 100), (12, 25)]);
        let nccl = Workload { backend: None, ..workload(LayoutBounds::default()) };
        assert_eq!(of((6, 60), &nccl), [(6, 50), (3, 100)]);
    }
}
