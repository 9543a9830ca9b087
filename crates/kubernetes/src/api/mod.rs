//! Requests to the API server: the kubeconfig, the client and its errors, the leader election, and lookups of pods and tokens.

pub mod client;
pub mod kubeconfig;
pub mod lease;
pub mod pods;
pub mod reviews;
