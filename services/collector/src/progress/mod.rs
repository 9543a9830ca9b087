//! Training progress: reported by jobs over HTTP, or scraped from them.

pub mod http;
pub mod job;
pub mod kubeflow;
pub mod sources;
