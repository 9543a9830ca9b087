use crate::gpu::solve::{
    BANDWIDTH_CLOCK, BANDWIDTH_EFFICIENCY, CONTENTION_EXPONENT, HOST_CROWDING, IO_MEGABYTES_PER_SECOND, ROOF, STALL_COST,
};
use crate::gpu::{BoardModel, BoardParameters, SimulationNoise, WorkloadProfile};

/// Source of a parameter's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterOrigin {
    /// Published by the vendor, reported by a device, or measured by others.
    Measured,
    /// Chosen so that the model comes nearest to measurements.
    Fitted,
    /// Plausible; no measurement holds it.
    Assumed,
}

impl ParameterOrigin {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Fitted => "fitted",
            Self::Assumed => "assumed",
        }
    }
}

/// A parameter of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelParameter {
    /// Owner of the parameter: a board, a workload, the model.
    pub of: String,
    /// Name, with its unit.
    pub name: &'static str,
    pub value: String,
    pub origin: ParameterOrigin,
    pub source: &'static str,
}

const SHEET: &str = "vendor's data sheet, nvidia-smi";
const STUDY: &str = "study of the equations, to sweeps of the sources above";

/// Returns every parameter of the boards, the workloads, the instruments and the equations.
pub fn parameters() -> Vec<ModelParameter> {
    let mut all = Vec::new();
    for model in [BoardModel::V100, BoardModel::A100, BoardModel::H100, BoardModel::H200] {
        board(model, &mut all);
    }
    for (name, profile) in [
        ("compute", WorkloadProfile::COMPUTE),
        ("memory", WorkloadProfile::MEMORY),
        ("host", WorkloadProfile::HOST),
        ("mid", WorkloadProfile::MID),
    ] {
        workload(&format!("workload {name}"), &profile, &|_| (ParameterOrigin::Assumed, "a typical training job"), &mut all);
    }
    for shared in crate::sharing::paper_suite() {
        // The four CUDA samples that are bound by the memory.
        let memory_bound = shared.profile.dram_ratio > 0.5;
        let of = format!("{} of the paper's suite", shared.name);
        let origin = |name: &str| match name {
            "dram_ratio" => (ParameterOrigin::Measured, "paper on SM allocation, Table 1"),
            "host_ratio" => (ParameterOrigin::Fitted, "to SM active of the paper's Table 1, with the assumed coverage"),
            "samples_per_second" | "sensitivity" => (ParameterOrigin::Fitted, "to the paper's gains over equal shares"),
            "bandwidth_saturation_ratio" if memory_bound => (ParameterOrigin::Fitted, "to the paper's gains over equal shares"),
            _ => (ParameterOrigin::Assumed, "no source"),
        };
        workload(&of, &shared.profile, &origin, &mut all);
        all.push(ModelParameter {
            of,
            name: "fp32_ratio",
            value: shared.fp32_ratio.to_string(),
            origin: ParameterOrigin::Assumed,
            source: "no source",
        });
    }
    let SimulationNoise { seed: _, power_ratio, gain_ratio, activity_ratio, throughput_ratio, throughput_seconds } =
        SimulationNoise::default();
    let mut instrument = |name, value: f64| all.push(assumed("instruments", name, value));
    instrument("power_ratio", power_ratio);
    instrument("gain_ratio", gain_ratio);
    instrument("activity_ratio", activity_ratio);
    instrument("throughput_ratio", throughput_ratio);
    instrument("throughput_seconds", throughput_seconds);
    for (name, value) in [
        ("exponent that joins compute and memory time", f64::from(ROOF)),
        ("part of the nominal bandwidth that memory delivers", BANDWIDTH_EFFICIENCY),
        ("part of the highest clock that saturates the memory", BANDWIDTH_CLOCK),
        ("exponent of the slowdown by others", CONTENTION_EXPONENT),
        ("longer host time for each further process", HOST_CROWDING),
        ("cost of a stalled SM cycle", STALL_COST),
        ("PCIe bandwidth in MB/s", IO_MEGABYTES_PER_SECOND),
    ] {
        all.push(assumed("equations", name, value));
    }
    all
}

fn assumed(of: &str, name: &'static str, value: f64) -> ModelParameter {
    ModelParameter { of: of.into(), name, value: value.to_string(), origin: ParameterOrigin::Assumed, source: "no source" }
}

fn board(model: BoardModel, all: &mut Vec<ModelParameter>) {
    // All fields by name: one that is added and has no origin does not compile.
    let BoardParameters {
        name,
        sm_count,
        clock_min_mhz,
        clock_max_mhz,
        clock_step_mhz,
        memory_clock_mhz,
        voltage_knee_mhz,
        voltage_slope: [linear, quadratic],
        static_watts,
        clock_watts,
        sm_watts,
        memory_watts,
        io_watts,
        power_limit_watts,
        power_limit_min_watts,
        thermal_resistance,
        thermal_seconds,
        memory_bytes,
    } = model.board();
    let mut add = |name, value: f64, origin, source| {
        all.push(ModelParameter { of: format!("board {model:?}"), name, value: value.to_string(), origin, source });
    };
    let sheet = ParameterOrigin::Measured;
    add("sm_count", f64::from(*sm_count), sheet, SHEET);
    add("clock_min_mhz", *clock_min_mhz, sheet, SHEET);
    add("clock_max_mhz", *clock_max_mhz, sheet, SHEET);
    add("clock_step_mhz", *clock_step_mhz, sheet, SHEET);
    add("memory_clock_mhz", *memory_clock_mhz, sheet, SHEET);
    add("power_limit_watts", *power_limit_watts, sheet, SHEET);
    add("power_limit_min_watts", *power_limit_min_watts, sheet, SHEET);
    add("memory_gib", *memory_bytes as f64 / f64::from(1 << 30), sheet, SHEET);
    let (origin, source) = match model {
        BoardModel::V100 | BoardModel::A100 => (ParameterOrigin::Fitted, STUDY),
        BoardModel::H100 | BoardModel::H200 => (ParameterOrigin::Assumed, "near the A100's; no sweep at hand"),
    };
    add("voltage_knee_mhz", *voltage_knee_mhz, origin, source);
    add("voltage_slope, linear", *linear, origin, source);
    add("voltage_slope, quadratic", *quadratic, origin, source);
    let split = "split of the power limit over its parts";
    add("static_watts", *static_watts, ParameterOrigin::Assumed, split);
    add("clock_watts", *clock_watts, ParameterOrigin::Assumed, split);
    add("sm_watts", *sm_watts, ParameterOrigin::Assumed, split);
    add("memory_watts", *memory_watts, ParameterOrigin::Assumed, split);
    add("io_watts", *io_watts, ParameterOrigin::Assumed, split);
    add("thermal_resistance in K/W", *thermal_resistance, ParameterOrigin::Assumed, "usual operating temperatures");
    add("thermal_seconds", *thermal_seconds, ParameterOrigin::Assumed, "usual operating temperatures");
    let leakage = model.board().static_watts_at(51.0) / static_watts - 1.0;
    add("leakage per kelvin", (leakage * 1e6).round() / 1e6, ParameterOrigin::Assumed, "no source");
    let waiting = model.board().waiting_watts_at(50.0) / static_watts;
    add("waiting over static power", (waiting * 1e6).round() / 1e6, ParameterOrigin::Assumed, "no source");
    all.push(ModelParameter {
        of: format!("board {model:?}"),
        name: "name",
        value: (*name).to_owned(),
        origin: ParameterOrigin::Measured,
        source: "as the driver names it",
    });
}

fn workload(
    of: &str,
    profile: &WorkloadProfile,
    origin: &dyn Fn(&str) -> (ParameterOrigin, &'static str),
    all: &mut Vec<ModelParameter>,
) {
    let WorkloadProfile {
        samples_per_second,
        host_ratio,
        sm_coverage_ratio,
        dram_ratio,
        energy_intensity,
        sensitivity,
        bandwidth_saturation_ratio,
        pcie_megabytes_per_sample,
        burst_ratio,
        occupancy_ratio,
        tensor_ratio,
        memory_gib,
    } = *profile;
    for (name, value) in [
        ("samples_per_second", samples_per_second),
        ("host_ratio", host_ratio),
        ("sm_coverage_ratio", sm_coverage_ratio),
        ("dram_ratio", dram_ratio),
        ("energy_intensity", energy_intensity),
        ("sensitivity", sensitivity),
        ("bandwidth_saturation_ratio", bandwidth_saturation_ratio),
        ("pcie_megabytes_per_sample", pcie_megabytes_per_sample),
        ("burst_ratio", burst_ratio),
        ("occupancy_ratio", occupancy_ratio),
        ("tensor_ratio", tensor_ratio),
        ("memory_gib", memory_gib),
    ] {
        let (origin, source) = origin(name);
        let value = ((value * 1e4).round() / 1e4).to_string();
        all.push(ModelParameter { of: of.into(), name, value, origin, source });
    }
}
