//! eadt-lake
