//! GPUs through NVML: the only crate that knows the library.
//!
//! In: indices of GPUs. Out: their readings ([`GpuDriver`], [`ReadableGpu`]), in the units of the events. With the feature `set`,
//! which only the node agent enables, their settings can be changed, too. It sets no time limit on a call (calls block and may
//! hang: each caller has a thread for each GPU), never invents a value and never decides anything.

mod driver;
#[cfg(feature = "fake")]
pub mod fake;
mod gpu;
#[cfg(feature = "set")]
pub mod set;

pub use driver::NvmlDriver;
pub use gpu::{FailedReading, GpuDriver, GpuIdentity, GpuLost, MigInstances, ReadableGpu};
