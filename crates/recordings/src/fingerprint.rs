//! Short names of contents: the same for the same bytes, on every machine and in every version.

use std::fmt;

use eadt_schemas::fnv::Fnv1a;

/// Names some bytes: 32 bits of their FNV-1a sum, as eight hexadecimal digits. It distinguishes contents of the same name, and is
/// no proof against intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(u32);

impl Fingerprint {
    /// Bytes of its text.
    pub(crate) const DIGITS: usize = 8;

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let sum = Fnv1a::of(bytes);
        Self((sum ^ (sum >> 32)) as u32)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_the_same_in_every_version() {
        // Both halves of the reference's sums cbf29ce484222325, af63dc4c8601ec8c and 85944171f73967e8.
        for (text, expected) in [("", "4fd0bfc1"), ("a", "296230c0"), ("foobar", "72ad2699")] {
            let digits = Fingerprint::of(text.as_bytes()).to_string();
            assert_eq!((digits.as_str(), digits.len()), (expected, Fingerprint::DIGITS), "{text:?}");
        }
    }
}
