//! Parts of the program that others may use: reading settings and scenarios. The program itself is `main.rs`.

pub mod scenario;
pub mod settings;
