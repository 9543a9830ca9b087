//! Measured points of throughput against power of a workload at its caps, from its windows.

use eadt_schemas::EventTime;
use eadt_schemas::v1::{EfficiencyWindow, Layout};
use serde::{Deserialize, Serialize};

use super::PowerPoint;

/// Age in seconds beyond which a measurement is no evidence of the job's present behaviour.
const SEEN_SECONDS: f64 = 3.0 * 3600.0;
/// Means forget what lies further back than this many windows.
const SEEN_WINDOWS: u32 = 10;
/// Most caps that are remembered; the one that was seen longest ago goes.
const MAX_CAPS: usize = 32;

/// Throughput and power of a job at a cap.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct MeasuredCap {
    cap_watts: f64,
    point: PowerPoint,
    windows: u32,
    last: EventTime,
}

/// Means of power and throughput at the caps of the last hours, of one layout.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CapMeasurements {
    /// The layout without its cap: throughput in another one cannot be compared.
    layout: Option<Layout>,
    #[serde(rename = "seen")]
    caps: Vec<MeasuredCap>,
}

impl CapMeasurements {
    /// Takes in a window in which nothing changed. `layout` and `board_watts` are those in force; windows without power
    /// or progress are ignored.
    pub fn add_window(&mut self, window: &EfficiencyWindow, layout: &Layout, board_watts: Option<f64>) {
        let cap = layout.power_limit_watts.or(board_watts);
        let (Some(cap_watts), Some(watts), Some(rate)) = (cap, window.mean_power_per_gpu_watts, window.samples_per_second) else {
            return;
        };
        let shape = Layout { power_limit_watts: None, ..layout.clone() };
        if self.layout.as_ref() != Some(&shape) {
            *self = Self { layout: Some(shape), caps: Vec::new() };
        }
        self.caps.retain(|measured| window.window_end.seconds_since(measured.last) < SEEN_SECONDS);
        let now = PowerPoint { watts, samples_per_second: rate };
        if let Some(measured) = self.caps.iter_mut().find(|measured| (measured.cap_watts - cap_watts).abs() < 0.5) {
            measured.windows = (measured.windows + 1).min(SEEN_WINDOWS);
            let part = 1.0 / f64::from(measured.windows);
            measured.point.watts += part * (now.watts - measured.point.watts);
            measured.point.samples_per_second += part * (now.samples_per_second - measured.point.samples_per_second);
            measured.last = window.window_end;
            return;
        }
        if self.caps.len() >= MAX_CAPS
            && let Some(oldest) = (0..self.caps.len()).min_by_key(|i| self.caps[*i].last)
        {
            self.caps.remove(oldest);
        }
        self.caps.push(MeasuredCap { cap_watts, point: now, windows: 1, last: window.window_end });
    }

    pub fn points(&self) -> Vec<PowerPoint> {
        self.caps.iter().map(|measured| measured.point).collect()
    }
}
