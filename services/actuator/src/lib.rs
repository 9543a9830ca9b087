//! eadt-actuator
