//! The fuzz target that needs the whole program. It is a crate of its own, so that the others in `tests/fuzz` are built without it.

use std::collections::HashMap;
use std::path::Path;

/// Settings as the program and the node agent read them, from files and variables, and scenarios. The first byte selects one.
pub fn settings(data: &[u8]) {
    let Some((what, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    // NAME=VALUE, a line each.
    let variables = || -> HashMap<String, String> {
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let (file, none) = (Path::new("eadt.toml"), HashMap::new());
    let agent = |file, variables| {
        if let Ok(settings) = eadt_agent::settings::read(file, variables, &[]) {
            drop((settings.address(), settings.validate("host")));
        }
    };
    match what % 5 {
        0 => drop(eadt::settings::read(Some((file, text)), &none, &[])),
        1 => drop(eadt::settings::read(None, &variables(), &[])),
        2 => agent(Some(text), &none),
        3 => agent(None, &variables()),
        _ => drop(eadt::scenario::read(file, text)),
    }
}
