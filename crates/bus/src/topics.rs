//! Topic layout.
