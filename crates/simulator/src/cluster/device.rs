use eadt_schemas::EventTime;
use eadt_schemas::v1::{GpuTelemetry, Meter, Origin};
use serde::{Deserialize, Serialize};

use super::FastForwardTotals;
use crate::gpu::{BoardParameters, EnergyMeter, NoiseChannel, SimulationNoise, SteadyState, ThermalState};

/// Name of the collector in everything that the simulator reports.
pub(super) const COLLECTOR: &str = "simulator";

/// One simulated GPU with its sensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SimulatedGpu {
    /// UUID.
    pub name: String,
    node: String,
    index: u32,
    /// Stream of its noise.
    stream: u64,
    pub thermal: ThermalState,
    meter: EnergyMeter,
}

/// Load of the processes on a GPU in one interval.
pub(super) enum GpuLoad<'a> {
    /// They compute.
    Running { steady: &'a SteadyState, processes: u32, memory_gib: f64 },
    /// They are gone, or start, or wait for the others.
    Waiting,
}

impl SimulatedGpu {
    pub fn new(seed: u64, node: &str, index: u32, stream: u64, ambient_celsius: f64) -> Self {
        Self {
            name: uuid(seed, stream),
            node: node.to_owned(),
            index,
            stream,
            thermal: ThermalState::at_ambient(ambient_celsius),
            meter: EnergyMeter::default(),
        }
    }

    /// Returns the power that it really draws.
    fn watts(&self, board: &BoardParameters, load: &GpuLoad<'_>) -> f64 {
        match load {
            GpuLoad::Running { steady, .. } => steady.power_watts,
            GpuLoad::Waiting => board.waiting_watts_at(self.thermal.celsius),
        }
    }

    /// Goes on by `seconds`. The sensor's gain is in the counter, too: both come from the same shunt.
    pub fn advance(
        &mut self,
        board: &BoardParameters,
        noise: &SimulationNoise,
        load: &GpuLoad<'_>,
        ambient_celsius: f64,
        seconds: f64,
    ) {
        let watts = self.watts(board, load);
        self.meter.advance(watts * noise.gain(self.stream), seconds);
        self.thermal.advance(board, watts, ambient_celsius, seconds);
    }

    /// Goes on by `seconds` and adds up what happens, as an instrument sees it that is read once in that time.
    #[allow(clippy::too_many_arguments, reason = "the same as for a sample, and where it goes")]
    pub fn fast_forward(
        &mut self,
        board: &BoardParameters,
        noise: &SimulationNoise,
        load: &GpuLoad<'_>,
        ambient_celsius: f64,
        begin: EventTime,
        seconds: f64,
        into: &mut FastForwardTotals,
    ) {
        let watts = self.watts(board, load);
        let reading = |channel| noise.reading(channel, self.stream, begin.micros());
        into.energy_joules += watts * seconds;
        into.metered_joules += watts * noise.gain(self.stream) * reading(NoiseChannel::Power) * seconds;
        if let GpuLoad::Running { steady, .. } = load {
            into.sm_active_seconds += steady.sm_active_ratio * reading(NoiseChannel::SmActive) * seconds;
            into.dram_active_seconds += steady.dram_active_ratio * reading(NoiseChannel::DramActive) * seconds;
            into.clock_mhz_seconds += steady.clock_mhz * seconds;
            into.busy_seconds += seconds;
        }
        self.advance(board, noise, load, ambient_celsius, seconds);
        into.celsius_max = into.celsius_max.max(self.thermal.celsius);
    }

    pub fn reset_counter(&mut self) {
        self.meter.reset();
    }

    /// Returns the sample that a collector reads at `time`.
    pub fn read(
        &self,
        board: &BoardParameters,
        noise: &SimulationNoise,
        load: &GpuLoad<'_>,
        workload: &str,
        power_limit: Option<f64>,
        time: EventTime,
    ) -> GpuTelemetry {
        let reading = |channel| noise.reading(channel, self.stream, time.micros());
        let ratio = |value: f64, channel| Some(rounded((value * reading(channel)).clamp(0.0, 1.0), 1e4));
        let average = self.watts(board, load) * noise.gain(self.stream);
        let (steady, processes, memory_gib) = match load {
            GpuLoad::Running { steady, processes, memory_gib } => (Some(*steady), *processes, *memory_gib),
            GpuLoad::Waiting => (None, 0, 0.0),
        };
        let active = |of: fn(&SteadyState) -> f64, channel| ratio(steady.map_or(0.0, of), channel);
        GpuTelemetry {
            time,
            workload: Some(workload.to_owned()),
            device: self.name.clone(),
            collector: COLLECTOR.into(),
            meter: Meter::Gpu,
            origin: Origin::Simulated,
            node: Some(self.node.clone()),
            gpu_index: Some(self.index),
            gpu_model: Some(board.name.into()),
            tenure: Some(1),
            power_watts: Some(rounded((average * reading(NoiseChannel::Power)).max(0.0), 1e3)),
            power_average_watts: Some(rounded(average, 1e3)),
            energy_joules_total: Some(self.meter.joules()),
            utilization_ratio: active(|s| s.busy_ratio, NoiseChannel::Utilization),
            sm_active_ratio: active(|s| s.sm_active_ratio, NoiseChannel::SmActive),
            sm_occupancy_ratio: active(|s| s.sm_occupancy_ratio, NoiseChannel::Occupancy),
            tensor_active_ratio: active(|s| s.tensor_active_ratio, NoiseChannel::TensorActive),
            dram_active_ratio: active(|s| s.dram_active_ratio, NoiseChannel::DramActive),
            memory_used_bytes: Some(
                ((memory_gib * f64::from(1_u32 << 30)) as u64 * u64::from(processes)).min(board.memory_bytes),
            ),
            memory_total_bytes: Some(board.memory_bytes),
            sm_clock_mhz: Some(rounded(steady.map_or(board.clock_min_mhz, |s| s.clock_mhz), 1.0)),
            memory_clock_mhz: Some(board.memory_clock_mhz),
            temperature_celsius: Some(rounded(self.thermal.celsius, 1.0)),
            power_limit_watts: Some(power_limit.unwrap_or(board.power_limit_watts)),
            throttle_reasons: Some(
                match steady {
                    Some(steady) if steady.power_capped => "sw_power_cap",
                    Some(_) => "none",
                    None => "gpu_idle",
                }
                .into(),
            ),
            processes: Some(processes),
            mig_enabled: Some(false),
            mps_enabled: Some(true),
            ..GpuTelemetry::default()
        }
    }
}

/// Rounds a value as an instrument shows it: `per_unit` steps a unit.
fn rounded(value: f64, per_unit: f64) -> f64 {
    (value * per_unit).round() / per_unit
}

/// Returns a UUID in the driver's form; the same for the same seed and place.
fn uuid(seed: u64, stream: u64) -> String {
    let mut words = [0_u64; 2];
    let mut state = seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95);
    for word in &mut words {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        *word = z ^ (z >> 31);
    }
    let [a, b] = words;
    format!("GPU-{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}", a >> 32, (a >> 16) & 0xffff, a & 0xfff, b >> 52, b & 0xffff_ffff_ffff)
}
