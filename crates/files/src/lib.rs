//! Reads files named by a user: whole, up to a bound. A device, an endless pipe or the wrong file is an error then, and does
//! not fill the memory.

pub mod pem;

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The most bytes of a settings file, a scenario, a table of prices or of measurements.
pub const TEXT_BYTES: u64 = 64 * 1024 * 1024;
/// The most bytes of a file with tokens, assignments or an intent.
pub const SMALL_BYTES: u64 = 16 * 1024 * 1024;

/// Reads a text of at most `max_bytes`.
pub fn read_text(path: &Path, max_bytes: u64) -> Result<String> {
    String::from_utf8(read_bytes(path, max_bytes)?).map_err(|_| Error::new(ErrorKind::InvalidData, "it is no UTF-8"))
}

/// Reads a file of at most `max_bytes`.
pub fn read_bytes(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        let text = format!("it has more than {}: check that this is the right file", describe_size(max_bytes));
        return Err(Error::new(ErrorKind::FileTooLarge, text));
    }
    Ok(bytes)
}

/// Returns a limit for a message, in the largest unit of which it is a multiple: `64 MiB`, `1000 bytes`.
pub fn describe_size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} bytes"), |(shift, name)| format!("{} {name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_described_in_its_largest_whole_unit() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1000, "1000 bytes"),
            (1025, "1025 bytes"),
            (1 << 10, "1 KiB"),
            (1536, "1536 bytes"),
            (3 << 19, "1536 KiB"),
            (TEXT_BYTES, "64 MiB"),
            (2 << 30, "2 GiB"),
        ] {
            assert_eq!(describe_size(bytes), text);
        }
    }

    #[test]
    fn endless_files_are_refused_and_those_at_the_bound_are_read() {
        let endless = read_bytes(Path::new("/dev/zero"), 1_000).unwrap_err();
        assert_eq!(endless.kind(), ErrorKind::FileTooLarge);
        assert!(endless.to_string().contains("more than 1000 bytes"), "{endless}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "1234").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "1234");
        assert_eq!(read_text(&path, 3).unwrap_err().kind(), ErrorKind::FileTooLarge);
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
