//! Texts for decisions in the terms of Kubernetes and NVML: the same in terminals, reports and on the web page.

use std::borrow::Cow;

use eadt_schemas::counts::counted;
use eadt_schemas::v1::{ChangeValidation, ControllerAction, Layout, Origin};

/// Returns the origin of figures, in a word.
pub const fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "measured",
        Origin::Imported => "imported",
        Origin::Simulated => "simulated",
    }
}

/// Returns the action of a decision as text: `lower power limit to 208 W`, `scale to 9 replicas`, `revert`.
///
/// A decision to maintain that confirms the change before is `keep`; one that finds no gain in it and leaves it is `no gain`.
/// `validation` is that of [`crate::states::verdict_of_action`]. A revert of nothing that failed has the words of its change.
pub fn action_text(action: ControllerAction, validation: ChangeValidation, from: &Layout, to: &Layout) -> Cow<'static, str> {
    match action {
        ControllerAction::Maintain => maintain_text(validation).into(),
        ControllerAction::Revert if validation == ChangeValidation::Failed => "revert".into(),
        ControllerAction::Revert => restored_text(from, to),
        ControllerAction::Decrease | ControllerAction::Increase => share_text(action, from, to),
        ControllerAction::ScaleReplicas => match to.replicas {
            Some(replicas) => format!("scale to {}", counted(replicas, "replica")).into(),
            None => "scale replicas".into(),
        },
        ControllerAction::SetPowerLimit => limit_text("power limit", "W", from.power_limit_watts, to.power_limit_watts),
        ControllerAction::SetClocks => limit_text("SM clock limit", "MHz", from.sm_clock_mhz, to.sm_clock_mhz),
        ControllerAction::SetPrecision => match to.precision {
            Some(precision) => format!("set precision to {precision}").into(),
            None => "reset precision".into(),
        },
        ControllerAction::FreezeLayers => match (from.frozen_prefix_layers.unwrap_or(0), to.frozen_prefix_layers.unwrap_or(0)) {
            (_, 0) => "unfreeze all layers".into(),
            (before, after) if after < before => format!("unfreeze all but {}", counted(after, "layer")).into(),
            (_, after) => format!("freeze {}", counted(after, "layer")).into(),
        },
    }
}

pub(crate) const fn maintain_text(validation: ChangeValidation) -> &'static str {
    match validation {
        ChangeValidation::Kept => "keep",
        ChangeValidation::Failed => "no gain",
        ChangeValidation::None | ChangeValidation::Pending => "maintain",
    }
}

/// Describes a change back to former settings, by the first that differs.
fn restored_text(from: &Layout, to: &Layout) -> Cow<'static, str> {
    let action = if from.replicas != to.replicas {
        ControllerAction::ScaleReplicas
    } else if from.mps_thread_percentage != to.mps_thread_percentage {
        // No percentage is all of the GPU.
        let percent = |layout: &Layout| layout.mps_thread_percentage.unwrap_or(u32::MAX);
        if percent(to) < percent(from) { ControllerAction::Decrease } else { ControllerAction::Increase }
    } else if from.power_limit_watts != to.power_limit_watts {
        ControllerAction::SetPowerLimit
    } else if from.sm_clock_mhz != to.sm_clock_mhz {
        ControllerAction::SetClocks
    } else {
        return "revert".into();
    };
    action_text(action, ChangeValidation::None, from, to)
}

/// Describes another SM share of each process. Without one, a process may use the whole GPU.
fn share_text(action: ControllerAction, from: &Layout, to: &Layout) -> Cow<'static, str> {
    let verb = if action == ControllerAction::Decrease { "lower" } else { "raise" };
    match (from.mps_thread_percentage, to.mps_thread_percentage) {
        (Some(_), None) => "end GPU sharing".into(),
        (before, Some(after)) if before != Some(after) => format!("{verb} SM share to {after} %").into(),
        _ => format!("{verb} SM share").into(),
    }
}

/// Describes another limit. An unlimited value is `None`.
fn limit_text(name: &'static str, unit: &'static str, from: Option<f64>, to: Option<f64>) -> Cow<'static, str> {
    let verb = match (from, to) {
        (Some(_), None) => return format!("remove {name}").into(),
        (None, None) => return format!("set {name}").into(),
        (Some(before), Some(after)) if after < before => "lower",
        (Some(before), Some(after)) if after > before => "raise",
        (_, Some(_)) => "set",
    };
    format!("{verb} {name} to {:.0} {unit}", to.unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use eadt_schemas::v1::Precision;

    use super::*;

    fn layout(change: impl FnOnce(&mut Layout)) -> Layout {
        let mut layout = Layout::default();
        change(&mut layout);
        layout
    }

    #[test]
    fn a_decision_reads_as_an_order_with_its_value() {
        use ControllerAction::{
            Decrease, FreezeLayers, Increase, Maintain, Revert, ScaleReplicas, SetClocks, SetPowerLimit, SetPrecision,
        };
        let watts = |watts: f64| layout(|layout| layout.power_limit_watts = Some(watts));
        let clock = |mhz: f64| layout(|layout| layout.sm_clock_mhz = Some(mhz));
        let share = |percent: u32| layout(|layout| layout.mps_thread_percentage = Some(percent));
        let replicas = |count: u32| layout(|layout| layout.replicas = Some(count));
        let frozen = |count: u32| layout(|layout| layout.frozen_prefix_layers = Some(count));
        let none = Layout::default;
        for (action, from, to, text) in [
            (SetPowerLimit, watts(264.0), watts(207.6), "lower power limit to 208 W"),
            (SetPowerLimit, watts(198.0), watts(226.0), "raise power limit to 226 W"),
            (SetPowerLimit, none(), watts(352.0), "set power limit to 352 W"),
            (SetPowerLimit, watts(352.0), watts(352.0), "set power limit to 352 W"),
            (SetPowerLimit, watts(352.0), none(), "remove power limit"),
            (SetPowerLimit, none(), none(), "set power limit"),
            (SetClocks, clock(1410.0), clock(1200.0), "lower SM clock limit to 1200 MHz"),
            (SetClocks, clock(1200.0), none(), "remove SM clock limit"),
            (Decrease, share(100), share(50), "lower SM share to 50 %"),
            (Decrease, none(), share(50), "lower SM share to 50 %"),
            (Increase, share(50), share(65), "raise SM share to 65 %"),
            (Increase, share(50), none(), "end GPU sharing"),
            (Increase, none(), none(), "raise SM share"),
            (ScaleReplicas, replicas(6), replicas(9), "scale to 9 replicas"),
            (ScaleReplicas, replicas(2), replicas(1), "scale to 1 replica"),
            (ScaleReplicas, none(), none(), "scale replicas"),
            (FreezeLayers, none(), frozen(1), "freeze 1 layer"),
            (FreezeLayers, frozen(4), frozen(8), "freeze 8 layers"),
            (FreezeLayers, frozen(8), frozen(4), "unfreeze all but 4 layers"),
            (FreezeLayers, frozen(8), none(), "unfreeze all layers"),
            (SetPrecision, none(), layout(|layout| layout.precision = Some(Precision::Bf16)), "set precision to bf16"),
            (SetPrecision, none(), none(), "reset precision"),
            (Revert, clock(1325.0), none(), "remove SM clock limit"),
            (Revert, watts(300.0), watts(400.0), "raise power limit to 400 W"),
            (Revert, share(30), share(50), "raise SM share to 50 %"),
            (Revert, share(30), none(), "end GPU sharing"),
            (Revert, replicas(9), replicas(6), "scale to 6 replicas"),
            (Revert, none(), none(), "revert"),
            (Maintain, watts(300.0), watts(300.0), "maintain"),
        ] {
            assert_eq!(action_text(action, ChangeValidation::None, &from, &to), text);
        }
        assert_eq!(action_text(Revert, ChangeValidation::Failed, &watts(300.0), &watts(400.0)), "revert");
        let judged = [ChangeValidation::Kept, ChangeValidation::Failed, ChangeValidation::Pending];
        let texts = judged.map(|validation| action_text(Maintain, validation, &none(), &none()));
        assert_eq!(texts, ["keep", "no gain", "maintain"]);
    }
}
