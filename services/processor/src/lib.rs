//! eadt-processor
