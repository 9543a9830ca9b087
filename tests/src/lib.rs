//! Shared parts of the tests on real parts: a real Apache Kafka and a real Kubernetes control plane on free ports of this
//! machine.
//!
//! In: `java` and `mvn`; Go (1.26 or newer, else one is fetched) and `python3`. Out: a running broker, a running control plane, gone
//! when the test process is gone, however it ends. What is fetched and built is kept in the user's cache folder, never in the tree.
//! It never skips: what is missing is an error that names how to get it.

pub mod cache;
pub mod kafka;
pub mod kubernetes;
pub mod ports;
pub mod python;

mod program;

pub use kafka::Kafka;
pub use kubernetes::Kubernetes;
pub use program::{agent_program, program, root};

const INSTALL: &str = "`cargo xtask test --install` installs what the tests need";
