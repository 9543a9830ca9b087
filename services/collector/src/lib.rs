//! eadt-collector
