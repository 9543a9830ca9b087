use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The boards that the model knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
pub enum BoardModel {
    V100,
    #[default]
    A100,
    H100,
    H200,
}

impl BoardModel {
    /// Returns the parameters of this board.
    pub const fn board(self) -> &'static BoardParameters {
        match self {
            Self::V100 => &V100,
            Self::A100 => &A100,
            Self::H100 => &H100,
            Self::H200 => &H200,
        }
    }
}

/// Parameters of a GPU board.
///
/// The voltage curves of V100 and A100 are fitted to published measurements (power-cap curves of a V100, clock sweeps
/// of an A100); those of H100 and H200, all thermal values and the split of power over its parts are assumed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BoardParameters {
    /// Name that the driver gives.
    pub name: &'static str,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// Lowest SM clock in MHz.
    pub clock_min_mhz: f64,
    /// Highest SM clock in MHz.
    pub clock_max_mhz: f64,
    /// Distance of two SM clocks that can be locked, in MHz.
    pub clock_step_mhz: f64,
    /// Clock of the memory in MHz; it does not change.
    pub memory_clock_mhz: f64,
    /// SM clock in MHz up to which the voltage is constant.
    pub voltage_knee_mhz: f64,
    /// Linear and quadratic coefficient of the relative voltage above the knee.
    pub voltage_slope: [f64; 2],
    /// Power that is drawn whatever runs, in watts at 50 °C.
    pub static_watts: f64,
    /// Power of the clock tree while a kernel runs, in watts at the highest clock and knee voltage.
    pub clock_watts: f64,
    /// Power of all SMs issuing without a stall, in watts at the highest clock and knee voltage.
    pub sm_watts: f64,
    /// Power of the memory at full bandwidth in watts.
    pub memory_watts: f64,
    /// Power of PCIe at full bandwidth in watts.
    pub io_watts: f64,
    /// Default power limit in watts.
    pub power_limit_watts: f64,
    /// Lowest power limit that can be set, in watts.
    pub power_limit_min_watts: f64,
    /// Temperature above ambient per watt, in K/W.
    pub thermal_resistance: f64,
    /// Time constant of the temperature in seconds.
    pub thermal_seconds: f64,
    /// Size of the memory in bytes.
    pub memory_bytes: u64,
}

/// Static power grows by this part per kelvin (leakage); assumed.
const LEAKAGE_PER_KELVIN: f64 = 0.006;
/// A GPU whose processes wait with their contexts open draws this many times its static power; assumed.
const WAITING_FACTOR: f64 = 1.4;

impl BoardParameters {
    /// Returns the power in watts at `celsius` that is drawn whatever runs.
    pub fn static_watts_at(&self, celsius: f64) -> f64 {
        self.static_watts * (1.0 + LEAKAGE_PER_KELVIN * (celsius - 50.0))
    }

    /// Returns the power in watts at `celsius` while processes hold the GPU without computing: starting, loading, writing a
    /// checkpoint.
    pub fn waiting_watts_at(&self, celsius: f64) -> f64 {
        WAITING_FACTOR * self.static_watts_at(celsius)
    }

    /// Returns the relative voltage at an SM clock; 1 at and below the knee.
    pub(crate) fn voltage(&self, clock_mhz: f64) -> f64 {
        let x = ((clock_mhz - self.voltage_knee_mhz) / (self.clock_max_mhz - self.voltage_knee_mhz)).max(0.0);
        let [a, b] = self.voltage_slope;
        1.0 + a * x + b * x * x
    }

    /// Returns the highest clock that can be locked and is not above `clock_mhz`; the lowest one if there is none.
    pub fn clock_at_most(&self, clock_mhz: f64) -> f64 {
        let below_max = (self.clock_max_mhz - clock_mhz).max(0.0) / self.clock_step_mhz;
        (self.clock_max_mhz - (below_max - 1e-9).ceil() * self.clock_step_mhz).max(self.clock_min_mhz)
    }
}

const GIB: u64 = 1 << 30;

static V100: BoardParameters = BoardParameters {
    name: "Tesla V100-PCIE-32GB",
    sm_count: 80,
    clock_min_mhz: 405.0,
    clock_max_mhz: 1380.0,
    clock_step_mhz: 7.5,
    memory_clock_mhz: 877.0,
    voltage_knee_mhz: 1034.0,
    voltage_slope: [0.095, 0.164],
    static_watts: 26.0,
    clock_watts: 8.0,
    sm_watts: 105.0,
    memory_watts: 40.0,
    io_watts: 6.0,
    power_limit_watts: 250.0,
    power_limit_min_watts: 100.0,
    thermal_resistance: 0.17,
    thermal_seconds: 60.0,
    memory_bytes: 32 * GIB,
};

static A100: BoardParameters = BoardParameters {
    name: "NVIDIA A100-SXM4-40GB",
    sm_count: 108,
    clock_min_mhz: 510.0,
    clock_max_mhz: 1410.0,
    clock_step_mhz: 15.0,
    memory_clock_mhz: 1215.0,
    voltage_knee_mhz: 1083.0,
    voltage_slope: [0.155, 0.112],
    static_watts: 50.0,
    clock_watts: 15.0,
    sm_watts: 235.0,
    memory_watts: 60.0,
    io_watts: 8.0,
    power_limit_watts: 400.0,
    power_limit_min_watts: 100.0,
    thermal_resistance: 0.11,
    thermal_seconds: 50.0,
    memory_bytes: 40 * GIB,
};

static H100: BoardParameters = BoardParameters {
    name: "NVIDIA H100 80GB HBM3",
    sm_count: 132,
    clock_min_mhz: 345.0,
    clock_max_mhz: 1980.0,
    clock_step_mhz: 15.0,
    memory_clock_mhz: 2619.0,
    voltage_knee_mhz: 1300.0,
    voltage_slope: [0.15, 0.10],
    static_watts: 70.0,
    clock_watts: 25.0,
    sm_watts: 380.0,
    memory_watts: 85.0,
    io_watts: 10.0,
    power_limit_watts: 700.0,
    power_limit_min_watts: 200.0,
    thermal_resistance: 0.065,
    thermal_seconds: 45.0,
    memory_bytes: 80 * GIB,
};

static H200: BoardParameters = BoardParameters {
    name: "NVIDIA H200",
    memory_clock_mhz: 3201.0,
    static_watts: 75.0,
    memory_watts: 105.0,
    memory_bytes: 141 * GIB,
    ..H100
};
