//! FNV-1a with 64 bits: the same sum for the same bytes, on every machine and in every version. It is no proof against intent.

/// A sum that grows with the bytes it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fnv1a(u64);

impl Default for Fnv1a {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv1a {
    /// Returns the sum of some bytes.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::default();
        sum.write(bytes);
        sum.finish()
    }

    /// Adds bytes. The sum is that of all bytes so far, however they were divided.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }

    /// Returns the sum of all bytes so far.
    pub const fn finish(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_reference() {
        for (text, expected) in [("", 0xcbf2_9ce4_8422_2325_u64), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(Fnv1a::of(text.as_bytes()), expected, "{text:?}");
        }
        let mut parts = Fnv1a::default();
        parts.write(b"foo");
        parts.write(b"bar");
        assert_eq!(parts.finish(), Fnv1a::of(b"foobar"));
    }
}
