//! Models the power of a board from its activity.

use eadt_models::fit::{PowerModel, PowerObservation};
use eadt_models::published::{PowerDocument, activity};
use eadt_schemas::v1::EfficiencyWindow;
use serde::Deserialize;
use serde_json::Value;

use super::FittedParameters;

fn activities(window: &EfficiencyWindow) -> Option<(f64, f64, f64)> {
    Some((window.mean_sm_active_ratio?, window.mean_dram_active_ratio?, window.mean_sm_clock_mhz?))
}

pub(super) fn fit(windows: &[&EfficiencyWindow], _: Option<&str>) -> Result<FittedParameters, String> {
    let clocks = windows.iter().filter_map(|window| window.mean_sm_clock_mhz);
    let clock_max_mhz = clocks.fold(0.0, f64::max);
    if clock_max_mhz <= 0.0 {
        return Err("no window has the clocks of the GPUs".to_owned());
    }
    let observed = |window: &&EfficiencyWindow| {
        let watts = window.mean_power_per_gpu_watts.filter(|watts| *watts > 0.0)?;
        let (sm, dram, clock) = activities(window)?;
        Some(PowerObservation { activity: activity(sm, dram, clock, clock_max_mhz), watts })
    };
    let observations: Vec<_> = windows.iter().filter_map(observed).collect();
    if observations.is_empty() {
        return Err(
            "no window has SM activity, DRAM activity, clock and power together: their source lacks profiling metrics".to_owned()
        );
    }
    let model = PowerModel::fit(&observations).map_err(|error| error.to_string())?;
    Ok(FittedParameters {
        mape_ratio: model.quality.mape_ratio,
        r_squared: model.quality.r_squared,
        parameters: super::parameters(&PowerDocument::new(clock_max_mhz, model)),
    })
}

pub(super) fn predict(parameters: &Value, window: &EfficiencyWindow) -> Option<(f64, f64)> {
    let document = PowerDocument::checked(parameters["format"].as_str(), || PowerDocument::deserialize(parameters).ok()).ok()?;
    let truth = window.mean_power_per_gpu_watts.filter(|watts| *watts > 0.0)?;
    let (sm, dram, clock) = activities(window)?;
    Some((truth, document.expect(sm, dram, clock).watts))
}
