//! Names in events and on command lines.

use eadt_schemas::decode::MAX_NAME_BYTES;

use crate::fingerprint::Fingerprint;

/// Names that a message lists; of others it gives the count.
pub(crate) const NAMES_SHOWN: usize = 8;

/// Quotes an argument for a shell, if it needs it.
pub fn shell_quote(text: &str) -> String {
    let plain = |character: char| character.is_alphanumeric() || "_-./:=#+@%".contains(character);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// Returns a name of at most as many bytes as one in an event may have. What is cut off leaves its fingerprint.
pub(crate) fn event_name(name: &str) -> String {
    let plain: String = name.chars().map(|character| if character.is_control() { '-' } else { character }).collect();
    if plain.len() <= MAX_NAME_BYTES {
        return plain;
    }
    let end = plain.floor_char_boundary(MAX_NAME_BYTES - Fingerprint::DIGITS - 1);
    format!("{}-{}", &plain[..end], Fingerprint::of(name.as_bytes()))
}
