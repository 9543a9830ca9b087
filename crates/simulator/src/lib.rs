//! eadt-simulator

pub mod gpu;
