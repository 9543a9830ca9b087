//! A GPU that shares its SMs between training processes: how fast they run, what it draws, how warm it gets.
//!
//! In: a [`Board`], the [`Runner`]s on it, [`Limits`] and a temperature. Out: a [`Steady`] state. [`Thermal`],
//! [`EnergyMeter`] and [`Noise`] turn steady states into what an instrument would read over time. Everything is a pure
//! function of its arguments: no clock, no global randomness, the same bits for the same seed.
//!
//! Parameters are marked *measured* (fitted to published measurements), or *assumed*. All results are simulated.

mod board;
mod device;
mod noise;
mod phases;
mod profile;
pub(crate) mod solve;

pub use board::{Board, BoardModel};
pub use device::{EnergyMeter, Thermal};
pub use noise::{Channel, Noise};
pub use phases::{Phase, PhaseSchedule, llm_training_phases, vision_pretraining_phases};
pub use profile::WorkloadProfile;
pub use solve::{Limits, Runner, Solver, Steady, solve, synchronised_rate};
