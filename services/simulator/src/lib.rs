//! eadt-simulator-service
