//! Power of a board from what it does.

use eadt_models::fit::{Activity, Observation, PowerModel};
use eadt_schemas::v1::EfficiencyWindow;
use serde_json::{Value, json};

use super::Fitted;

const FORMAT: &str = "eadt.power-model.v1";

/// Means over a window stand for its moments; PCIe traffic is in no window and counts as none.
fn activity(window: &EfficiencyWindow, clock_max_mhz: f64) -> Option<Activity> {
    Some(Activity {
        sm_active_ratio: window.mean_sm_active_ratio?.min(1.0),
        clock_ratio: (window.mean_sm_clock_mhz? / clock_max_mhz).min(1.0),
        dram_active_ratio: window.mean_dram_active_ratio?.min(1.0),
        io_gigabytes_per_second: 0.0,
    })
}

pub(super) fn fit(windows: &[&EfficiencyWindow]) -> Result<Fitted, String> {
    let clocks = windows.iter().filter_map(|window| window.mean_sm_clock_mhz);
    let clock_max_mhz = clocks.fold(0.0, f64::max);
    if clock_max_mhz <= 0.0 {
        return Err("no window says at which clocks the GPUs ran".to_owned());
    }
    let observed = |window: &&EfficiencyWindow| {
        let watts = window.mean_power_per_gpu_watts.filter(|watts| *watts > 0.0)?;
        Some(Observation { activity: activity(window, clock_max_mhz)?, watts })
    };
    let observations: Vec<_> = windows.iter().filter_map(observed).collect();
    if observations.is_empty() {
        return Err(
            "no window has SM activity, DRAM activity, clock and power together: their source lacks profiling metrics".to_owned()
        );
    }
    let model = PowerModel::fit(&observations).map_err(|error| error.to_string())?;
    Ok(Fitted {
        mape_ratio: model.quality.mape_ratio,
        r_squared: model.quality.r_squared,
        parameters: json!({"format": FORMAT, "clock_max_mhz": clock_max_mhz, "model": model}),
    })
}

pub(super) fn predict(parameters: &Value, window: &EfficiencyWindow) -> Option<(f64, f64)> {
    if parameters["format"] != FORMAT {
        return None;
    }
    let model: PowerModel = serde_json::from_value(parameters["model"].clone()).ok()?;
    let truth = window.mean_power_per_gpu_watts.filter(|watts| *watts > 0.0)?;
    Some((truth, model.predict(&activity(window, parameters["clock_max_mhz"].as_f64()?)?).watts))
}
