//! Switches of the chaos harness (`cargo xtask chaos`): mitigations that can be switched off to show that their fault bites, and
//! phases in which a process waits to be killed. A build without debug assertions, such as a release, has none of them.
//!
//! Each name is defined by the code that queries it.

use serde_json::{Value, json};

/// Whether this build has the switches.
pub const SWITCHES: bool = cfg!(debug_assertions);

/// Names of the promises that are switched off, separated by commas.
pub const OFF: &str = "EADT_CHAOS_OFF";
/// `PHASE:N:FILE`: from the Nth time on that a phase is reached, FILE is created, and the thread waits until `FILE.go` exists;
/// then both are removed, and the thread continues.
pub const WAIT: &str = "EADT_CHAOS_WAIT";

/// Set: the process plays the next minor version of itself.
pub const NEXT: &str = "EADT_CHAOS_NEXT";

/// A field that this version does not know.
pub const OF_THE_NEXT_VERSION: &str = "of_the_next_version";

/// The names in these are free, and their values of one type.
const FREE: [&str; 3] = ["evidence", "metrics", "controller_settings"];
/// One of several things, with what belongs to it under its name: a second name would be a second thing.
const ENUMERATIONS: [&str; 2] = ["field", "original"];

/// Makes an event what a later minor version may write: with fields, at every level, that this version does not know.
pub fn next_version(event: &mut Value) {
    match event {
        Value::Object(fields) => {
            let known =
                fields.iter_mut().filter(|(name, _)| !FREE.contains(&name.as_str()) && !ENUMERATIONS.contains(&name.as_str()));
            known.for_each(|(_, value)| next_version(value));
            fields.insert(OF_THE_NEXT_VERSION.into(), json!({"numbers": [1, 2.5, null], "text": "x"}));
        }
        Value::Array(items) => items.iter_mut().for_each(next_version),
        _ => {}
    }
}

/// Returns whether this process plays the next minor version of itself.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn is_next() -> bool {
    false
}

#[cfg(debug_assertions)]
pub fn is_next() -> bool {
    use std::sync::OnceLock;
    static IS_NEXT: OnceLock<bool> = OnceLock::new();
    *IS_NEXT.get_or_init(|| std::env::var_os(NEXT).is_some())
}

/// Returns a JSON text that this process stores elsewhere than in an event; with the switch on, as the next version would write
/// it.
pub fn written(text: String) -> String {
    match is_next().then(|| serde_json::from_str(&text)) {
        Some(Ok(mut value)) => {
            next_version(&mut value);
            value.to_string()
        }
        _ => text,
    }
}

/// Returns whether a record's value has fields that its reader does not know, and is not to be taken for that.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn is_refused(_: &[u8]) -> bool {
    false
}

#[cfg(debug_assertions)]
pub fn is_refused(value: &[u8]) -> bool {
    let name = OF_THE_NEXT_VERSION.as_bytes();
    is_off("unknown-fields") && value.windows(name.len()).any(|part| part == name)
}

/// Returns whether a promise is switched off.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn is_off(_: &str) -> bool {
    false
}

/// Notes that a phase is reached.
#[cfg(not(debug_assertions))]
#[inline]
pub const fn reach(_: &str) {}

#[cfg(debug_assertions)]
pub fn is_off(promise: &str) -> bool {
    use std::sync::OnceLock;
    static SWITCHED_OFF: OnceLock<String> = OnceLock::new();
    let off = SWITCHED_OFF.get_or_init(|| std::env::var(OFF).unwrap_or_default());
    off.split(',').any(|name| name == promise)
}

#[cfg(debug_assertions)]
pub fn reach(phase: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static WANTED: OnceLock<Option<(String, u64, String)>> = OnceLock::new();
    static REACHED: AtomicU64 = AtomicU64::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var(WAIT).ok()?;
        let mut parts = text.splitn(3, ':');
        let (phase, number, file) = (parts.next()?, parts.next()?, parts.next()?);
        Some((phase.to_owned(), number.parse().ok()?, file.to_owned()))
    });
    let Some((_, number, file)) = wanted.as_ref().filter(|(name, ..)| name == phase) else { return };
    if REACHED.fetch_add(1, Ordering::SeqCst) + 1 < *number {
        return;
    }
    if let Err(error) = std::fs::write(file, phase) {
        tracing::error!(%error, file, "cannot report to the chaos harness that a phase was reached");
        return;
    }
    let go = std::path::PathBuf::from(format!("{file}.go"));
    while !go.exists() {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    for signal in [std::path::Path::new(file), &go] {
        if let Err(error) = std::fs::remove_file(signal) {
            tracing::error!(%error, file, "cannot report to the chaos harness that a phase is left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_next_version_adds_changes_nothing_that_is_known() {
        let event = json!({
            "layout": {"replicas": 4}, "evidence": {"watts": 1.5}, "devices": [{"original": {"application": {"mhz": 5}}}],
        });
        let mut next = event.clone();
        next_version(&mut next);
        assert!(next["layout"][OF_THE_NEXT_VERSION].is_object() && next["devices"][0][OF_THE_NEXT_VERSION].is_object());
        assert_eq!((&next["evidence"], &next["devices"][0]["original"]), (&event["evidence"], &event["devices"][0]["original"]));
        assert_eq!(next["layout"]["replicas"], 4);
    }
}
