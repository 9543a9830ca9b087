//! Parts that every service has: supervised tasks, a drain in two signals, `/metrics`, `/healthz`, `/readyz`, logs, a clock to
//! inject.
//!
//! In: named tasks. Out: their end, reported once. It never exits the process and never decides what a service does.

pub mod address;
pub mod clock;
pub mod connections;
pub mod http;
pub mod logs;
pub mod readiness;
pub mod redact;
pub mod supervise;

pub use clock::{MonotonicClock, ServiceClock};
pub use eadt_files as files;
pub use eadt_tasks as tasks;
pub use http::{HealthRegistry, MetricsRegistry, serve};
pub use supervise::{Supervisor, TaskFailure};
pub use tokio_util::sync::CancellationToken as Shutdown;
