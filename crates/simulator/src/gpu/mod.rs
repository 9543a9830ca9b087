//! A GPU that shares its SMs between training processes: how fast they run, what it draws, how warm it gets.
//!
//! In: a [`BoardParameters`], the [`GpuProcess`]s on it, [`OperatingLimits`] and a temperature. Out: a [`SteadyState`].
//! [`ThermalState`], [`EnergyMeter`] and [`SimulationNoise`] turn steady states into what an instrument would read over time.
//! Everything is a pure function of its arguments: no clock, no global randomness, the same bits for the same seed.
//!
//! Parameters are marked *measured* (fitted to published measurements), or *assumed*. All results are simulated.

mod board;
mod device;
mod noise;
mod phases;
mod profile;
pub(crate) mod solve;

pub use board::{BoardModel, BoardParameters};
pub use device::{EnergyMeter, ThermalState};
pub use noise::{NoiseChannel, SimulationNoise};
pub use phases::{PhaseSchedule, WorkloadPhase, llm_training_phases, vision_pretraining_phases};
pub use profile::WorkloadProfile;
pub use solve::{GpuProcess, OperatingLimits, SteadyState, SteadyStateCache, solve, synchronised_rate};
