//! Services that are replaced one after the other by those of the next minor version, and back, while there is work. The events
//! of that version have fields at every level that this one does not know.

pub mod collector;
pub mod optimizer;
pub mod pipeline;
