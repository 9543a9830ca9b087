//! The permissions for a workload, from policy, label and pause. Pure.

use eadt_schemas::v1::{Layout, LayoutBounds, UpdateMode};

/// The knobs that may be turned.
#[allow(clippy::struct_excessive_bools, reason = "each is a knob of its own")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllowedKnobs {
    pub mps_thread_percentage: bool,
    /// Includes `WORLD_SIZE` and `LOCAL_WORLD_SIZE`.
    pub replicas: bool,
    pub power_limit: bool,
    pub clocks: bool,
    pub precision: bool,
    pub frozen_layers: bool,
}

impl AllowedKnobs {
    /// Returns the first knob that a change turns although it may not.
    pub fn first_forbidden(self, from: &Layout, to: &Layout) -> Option<&'static str> {
        let world = |l: &Layout| (l.replicas, l.world_size, l.local_world_size);
        [
            ("mpsThreadPercentage", self.mps_thread_percentage, from.mps_thread_percentage != to.mps_thread_percentage),
            ("replicas", self.replicas, world(from) != world(to)),
            ("powerLimit", self.power_limit, from.power_limit_watts != to.power_limit_watts),
            ("clocks", self.clocks, from.sm_clock_mhz != to.sm_clock_mhz),
            ("precision", self.precision, from.precision != to.precision),
            ("frozenLayers", self.frozen_layers, from.frozen_prefix_layers != to.frozen_prefix_layers),
        ]
        .into_iter()
        .find_map(|(name, allowed, turned)| (turned && !allowed).then_some(name))
    }
}

/// Changes that are allowed on one workload.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EffectivePolicy {
    /// The policy's name, in the workload's namespace; `None` for the label, which only enables observation.
    pub policy: Option<String>,
    pub policy_uid: String,
    pub mode: UpdateMode,
    /// The field manager that set the mode; `None` if none is recorded, or there is no policy.
    pub mode_set_by: Option<String>,
    pub controller: Option<String>,
    pub controller_settings: Option<serde_json::Map<String, serde_json::Value>>,
    pub bounds: LayoutBounds,
    pub knobs: AllowedKnobs,
    /// The MPS default that is requested for the nodes of its pods.
    pub mps_default_thread_percentage: Option<u32>,
    /// The reason why no process may be restarted now; `None` if it may.
    pub no_restarts_now: Option<String>,
    pub backend: Option<String>,
    pub global_batch_size: Option<u32>,
    pub price_per_kwh: Option<f64>,
    pub carbon_grams_per_kwh: Option<f64>,
}

impl EffectivePolicy {
    /// Returns the same effective policy without permission for any change, whatever the policy allows.
    #[must_use]
    pub fn only_observed(self) -> Self {
        Self { mode: UpdateMode::Observe, mode_set_by: None, ..self }
    }

    /// Returns the bounds for events: a knob that may not be changed is limited to its present value, and nothing is requested
    /// from a job.
    pub fn bounds_for(&self, layout: &Layout) -> LayoutBounds {
        let mut bounds = self.bounds.clone();
        if !self.knobs.mps_thread_percentage {
            bounds.mps_thread_percentage_min = layout.mps_thread_percentage;
            bounds.mps_thread_percentage_max = layout.mps_thread_percentage;
        }
        if !self.knobs.replicas {
            bounds.replicas_min = layout.replicas;
            bounds.replicas_max = layout.replicas;
        }
        if !self.knobs.power_limit && layout.power_limit_watts.is_some() {
            bounds.power_limit_watts_min = layout.power_limit_watts;
            bounds.power_limit_watts_max = layout.power_limit_watts;
        }
        if !self.knobs.precision {
            bounds.precisions = Some(Vec::new());
        }
        if !self.knobs.frozen_layers {
            bounds.frozen_prefix_layers_max = Some(0);
        }
        bounds
    }
}
