//! Throughput of a workload against the power of its GPUs.

use std::collections::BTreeMap;

use eadt_models::fit::{CapCurve, CapCurveVerdict, CapPoint};
use eadt_models::published::{CapCurveDocument, LayoutShape};
use eadt_schemas::counts::counted_as;
use eadt_schemas::v1::{EfficiencyWindow, Layout};
use serde::Deserialize;
use serde_json::Value;

use super::FittedParameters;

/// Returns everything of a layout but what limits the power.
fn shape(layout: &Layout) -> LayoutShape {
    [layout.replicas, layout.mps_thread_percentage, layout.world_size, layout.local_world_size]
}

/// Returns the windows of the layout that has most of them (ties: the smaller one): throughput of different layouts is no
/// function of power.
pub(super) fn comparable<'a>(windows: impl Iterator<Item = &'a EfficiencyWindow>) -> Vec<&'a EfficiencyWindow> {
    let mut by_shape: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for window in windows {
        by_shape.entry(window.layout.as_ref().map(shape)).or_default().push(window);
    }
    by_shape.into_values().rev().max_by_key(Vec::len).unwrap_or_default()
}

fn point(window: &EfficiencyWindow) -> Option<CapPoint> {
    let watts = window.mean_power_per_gpu_watts.filter(|watts| *watts > 0.0)?;
    Some(CapPoint { watts, throughput: window.samples_per_second.filter(|rate| *rate > 0.0)? })
}

pub(super) fn fit(windows: &[&EfficiencyWindow], gpu_model: Option<&str>) -> Result<FittedParameters, String> {
    let caps: std::collections::BTreeSet<_> =
        windows.iter().map(|w| w.layout.as_ref().and_then(|layout| layout.power_limit_watts).map(f64::to_bits)).collect();
    if caps.len() < 3 {
        return Err(format!(
            "{} in force; 3 are needed to estimate the cost of a cap: let power-cap or hybrid decide for a while",
            counted_as(caps.len(), "power cap was", "power caps were")
        ));
    }
    let points: Vec<_> = windows.iter().filter_map(|window| point(window)).collect();
    let curve = CapCurve::fit(&points).map_err(|error| error.to_string())?;
    if let CapCurveVerdict::NoInformation(reason) = &curve.verdict {
        return Err(reason.clone());
    }
    Ok(FittedParameters {
        mape_ratio: curve.offset_power_law.mape_ratio,
        r_squared: curve.offset_power_law.r_squared,
        parameters: super::parameters(&CapCurveDocument::new(
            gpu_model.map(str::to_owned),
            windows.first().and_then(|window| window.layout.as_ref()).map(shape),
            curve,
        )),
    })
}

pub(super) fn predict(parameters: &Value, window: &EfficiencyWindow) -> Option<(f64, f64)> {
    let document =
        CapCurveDocument::checked(parameters["format"].as_str(), || CapCurveDocument::deserialize(parameters).ok()).ok()?;
    if document.layout != window.layout.as_ref().map(shape) {
        return None;
    }
    let CapPoint { watts, throughput } = point(window)?;
    Some((throughput, document.curve.throughput(watts)?))
}
