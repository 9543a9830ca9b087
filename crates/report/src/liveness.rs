//! Time after which a workload or a GPU counts as silent: the same in terminals and on the web page.

/// A GPU is silent if its newest sample is so much older than the newest of all, in seconds; so is a workload by its windows.
pub const SILENT_SECONDS: f64 = 900.0;
/// A window of one workload closes so many seconds after those of others if a source of it is silent: a processor waits two
/// minutes by default, and a window begins and ends a minute later.
const OPEN_SECONDS: f64 = 180.0;

/// Returns how much older than the newest window of all a workload's newest window may be before the workload is silent, in
/// seconds. Windows of two workloads may end a whole window apart.
pub fn silence_limit_seconds(window_seconds: f64) -> f64 {
    SILENT_SECONDS.max(2.0 * window_seconds)
}

/// Returns how much older than the newest window of all a newest window may be while the next one is likely to be open still, in
/// seconds. GPUs without work have no other sign of their end: a later window is of a workload.
pub fn open_limit_seconds(window_seconds: f64) -> f64 {
    OPEN_SECONDS.max(2.0 * window_seconds)
}
