//! Time after which a workload or a GPU counts as silent: the same in terminals and on the web page.

/// A GPU is silent if its newest sample is so much older than the newest of all, in seconds; so is a workload by its windows.
pub const SILENT_SECONDS: f64 = 900.0;

/// Returns how much older than the newest window of all a workload's newest window may be before the workload is silent, in
/// seconds. Windows of two workloads may end a whole window apart.
pub fn silence_limit_seconds(window_seconds: f64) -> f64 {
    SILENT_SECONDS.max(2.0 * window_seconds)
}
