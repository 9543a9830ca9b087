//! eadt-report
