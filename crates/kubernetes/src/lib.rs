//! Kubernetes behind the interface of `eadt-cluster`; the only crate that knows the Kubernetes client.
//!
//! In: the API server's objects (policies, workloads, their pods and nodes), and the actuator's fenced changes. Out: the workloads
//! that opted in, changes written with server-side apply, the state of every rollout, Events and status for people.
//! A call goes through read → plan → write: reading an object ([`object`]), planning a write ([`change`]) and judging a rollout
//! ([`rollout`]) are pure and tested without a cluster. Every write is fenced by the version of the read before it.
//!
//! Apart from that, [`pods`] says which workload a pod is of, and [`reviews`] whose a token is; they change nothing.
//!
//! It never decides what a workload should be like, never touches one that did not opt in, never forces a field that it does not
//! own, and changes no field but those that were taken over.

mod agents;
pub mod beforehand;
mod boards;
pub mod change;
mod client;
mod cluster;
mod defaults;
pub mod devices;
pub mod kinds;
pub mod lease;
pub mod managed;
mod nodes;
pub mod object;
pub mod owners;
pub mod pods;
pub mod policy;
pub mod record;
mod report;
pub mod reviews;
pub mod rollout;
mod rules;
mod settings;
pub mod state;
mod status;
mod tend;
pub mod terms;
mod watch;

pub use cluster::{Clock, ConnectError, KubernetesCluster, client};
pub use settings::Settings;
