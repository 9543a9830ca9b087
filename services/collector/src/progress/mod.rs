//! Training progress: reported by jobs over HTTP, or scraped from them.

pub mod directives;
pub mod http;
pub mod job;
mod job_runs;
pub mod kubeflow;
mod precision;
mod rate;
pub mod reviews;
mod secrets;
pub mod serve;
pub mod service_accounts;
pub mod sources;
pub mod tokens;
pub mod wire;
