//! Kubernetes behind the interface of `eadt-cluster`; the only crate that knows the Kubernetes client.
//!
//! In: the API server's objects (policies, workloads, their pods and nodes), and the actuator's fenced changes. Out: the
//! workloads that opted in, changes written with server-side apply, the state of every rollout, Events and statuses for users. A
//! call goes through read → plan → write: reading an object ([`objects::object`]), planning a write ([`objects::change`]) and
//! checking a rollout ([`objects::rollout`]) are pure and tested without a cluster. Every write is fenced by the version of the
//! read before it.
//!
//! Apart from that, [`api::pods`] finds the workload of a pod, and [`api::reviews`] the bearer of a token; they change nothing.
//!
//! Modules, from the bottom up: `api` (requests), `objects` (reading and writing workload objects), `policy` (the custom
//! resource), `index` (an informer index of the watched objects), `devices` (targets for node agents), `status` (statuses and
//! Events for users), `reconcile` (the leader's control loops); `context` is the shared state of the tasks, `cluster` the
//! interface to the actuator.
//!
//! It never decides on a workload's settings, never touches a workload that did not opt in, never forces a field that it does not
//! own, and changes only fields that were taken over.

pub mod api;
mod cluster;
mod context;
pub mod devices;
pub mod index;
pub mod objects;
pub mod policy;
mod reconcile;
mod settings;
mod status;

pub use cluster::{ConnectError, KubernetesCluster, connect};
pub use context::ClockFn;
pub use settings::KubernetesSettings;
