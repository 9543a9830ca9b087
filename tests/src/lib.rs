//! What the tests that need real parts share: a real Apache Kafka on free ports of this machine.
//!
//! In: `java` and `mvn`. Out: a running broker, gone when the test process is gone, however it ends. Jars are kept in the
//! user's cache folder, never in the tree. It never skips: what is missing is an error that says how to get it.

pub mod kafka;

pub use kafka::Kafka;
