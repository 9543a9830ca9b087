//! The driver of the simulated cluster: it is the cluster's clock, its sensors and its API server.
//!
//! In: a [`SimulatorSettings`] with a scenario, `decisions.v1`, `actuations.v1` and `workloads.v1` (only to know what was
//! answered), and the actuator's calls on the [`SimulatedCluster`] handle. Out: `gpu.telemetry.v1`, `training.progress.v1`, and
//! the whole state in `simulator-state.v1`. Everything that one step of simulated time brings about is one atomic step of the
//! bus. A call of the actuator is answered only after such a step, so kill -9 loses and doubles nothing.
//!
//! Simulated time never passes the moment at which something is owed (see [`gate`]), so the same seed gives the same
//! events, byte for byte, however fast the host is. It never decides, never measures, and closes no window when it stops.

mod clock;
mod driver;
mod follow;
pub mod gate;
mod handle;
pub mod metrics;
mod records;
mod settings;

pub use clock::SimClock;
pub use driver::{SimulationDriver, SimulationEnd, SimulatorError};
pub use eadt_simulator::{Fault, JobSuspension, Scenario, ScenarioError, WorkloadScenario};
pub use follow::ClusterMirror;
pub use handle::SimulatedCluster;
pub use settings::{SimulationSpeed, SimulatorSettings};
