//! eadt-recordings
