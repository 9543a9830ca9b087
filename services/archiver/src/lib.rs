//! eadt-archiver
