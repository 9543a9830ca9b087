//! eadt-tests
