//! The optimizer: models from the archive, published for whoever decides.
//!
//! In: an [`eadt_lake::Archive`] (a folder or an object store) and the models in force. Out: events in `models.v1`, each
//! written to every partition, for a model that tells data it has not seen better than the one in force and better than a
//! constant; with version, training range, fingerprint of the data and figures. What cannot be fitted is said with its reason.
//! [`learn()`] is pure; the loop around it reads the archive on a schedule and never deletes or changes anything there.

pub mod learn;
pub mod metrics;
mod publish;
mod service;
mod settings;

pub use learn::{Proposal, Training, Verdict, learn};
pub use service::{Error, Round, Service, read, run};
pub use settings::Settings;
