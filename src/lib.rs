//! What of the program others may use: how it reads its settings and scenarios. The program itself is `main.rs`.

pub mod scenario;
pub mod settings;
