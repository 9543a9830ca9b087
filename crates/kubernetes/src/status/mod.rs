//! Statuses of policies and Kubernetes Events.

pub mod content;
pub mod events;
pub mod notify;
pub mod outbox;
pub mod write;
