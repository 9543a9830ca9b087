//! Statuses of policies and Kubernetes Events.

pub mod content;
pub mod events;
pub mod notify;
pub mod statuses;
pub mod write;
