//! Faults on the real parts: Apache Kafka, and the services as processes that are killed, stopped and cut off.
//!
//! In: a row of the table in `docs/evidence/reliability.md`, a seed, a number of rounds. Out: what was promised against what was found, and
//! whether the fault bites once the promise's mitigation is switched off. A [`story`] derives events and everything that must
//! become of them from the seed; a [`world`] runs the parts; [`verify`] compares. Nothing here is part of the product, and no
//! row judges by how fast this machine is.

pub mod chance;
pub mod disk;
pub mod feeder;
pub mod page;
pub mod part;
pub mod proxy;
pub mod row;
pub mod rows;
pub mod run;
pub mod site;
pub mod story;
pub mod surroundings;
pub mod verify;
pub mod world;
