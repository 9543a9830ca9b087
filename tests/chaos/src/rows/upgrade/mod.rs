//! Services that are replaced one after the other by those of the next minor version, and back, while there is work. What that version
//! writes, events and what it keeps for itself, has fields at every level that this one does not know.

pub mod cluster;
pub mod collector;
pub mod optimizer;
pub mod pipeline;
