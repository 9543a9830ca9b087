//! Of a running workload: which phase it is in, and at which clock to run it.

mod governor;
mod phase;

pub use governor::{Clocks, Governor, GovernorSettings, InvalidSettings, Order, Reading};
pub use phase::{InvalidThresholds, Phase, PhaseDetector, Thresholds, literal_phase};
