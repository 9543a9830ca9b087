//! eadt-simulator
