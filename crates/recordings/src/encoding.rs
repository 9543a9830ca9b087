//! Text encodings, recognised by the first bytes of a file and read as UTF-8.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read};

use serde::Serialize;

/// The encoding of a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Encoding {
    #[serde(rename = "UTF-8")]
    Utf8,
    #[serde(rename = "UTF-16LE")]
    Utf16Le,
    #[serde(rename = "UTF-16BE")]
    Utf16Be,
    /// A line is no UTF-8.
    #[serde(rename = "windows-1252")]
    Windows1252,
}

impl Encoding {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Utf8 => "UTF-8",
            Self::Utf16Le => "UTF-16LE",
            Self::Utf16Be => "UTF-16BE",
            Self::Windows1252 => "windows-1252",
        }
    }
}

/// Bytes that are looked at to find the encoding.
const HEAD_BYTES: u64 = 256;

/// Returns a reader of UTF-8 without a byte-order mark, and the encoding of `reader`.
///
/// Without a mark, a file is UTF-16 if most bytes at odd, or at even, places of its head are 0. Returns an error if it is UTF-32.
pub(crate) fn decode<'a>(mut reader: Box<dyn BufRead + 'a>) -> io::Result<(Box<dyn BufRead + 'a>, Encoding)> {
    // A source may hand out its first bytes one at a time.
    let mut head = Vec::new();
    (&mut reader).take(HEAD_BYTES).read_to_end(&mut head)?;
    let (encoding, mark_bytes) = detect(&head)?;
    let rest = io::Cursor::new(head.split_off(mark_bytes)).chain(reader);
    let big_endian = match encoding {
        Encoding::Utf8 | Encoding::Windows1252 => return Ok((Box::new(rest), encoding)),
        Encoding::Utf16Le => false,
        Encoding::Utf16Be => true,
    };
    Ok((Box::new(BufReader::with_capacity(1 << 16, Utf16Reader::new(rest, big_endian))), encoding))
}

/// Returns the encoding, and the length of its byte-order mark.
fn detect(head: &[u8]) -> io::Result<(Encoding, usize)> {
    if head.starts_with(&[0xff, 0xfe, 0, 0]) || head.starts_with(&[0, 0, 0xfe, 0xff]) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is UTF-32 text, which is not read: save it as UTF-8"));
    }
    for (mark, encoding) in [
        (&[0xef, 0xbb, 0xbf][..], Encoding::Utf8),
        (&[0xff, 0xfe][..], Encoding::Utf16Le),
        (&[0xfe, 0xff][..], Encoding::Utf16Be),
    ] {
        if head.starts_with(mark) {
            return Ok((encoding, mark.len()));
        }
    }
    let pairs = head.len() / 2;
    let zeros = |first: usize| head.iter().skip(first).step_by(2).filter(|byte| **byte == 0).count();
    let (even, odd) = (zeros(0), zeros(1));
    let encoding = match () {
        () if pairs >= 4 && odd * 4 >= pairs * 3 && even * 4 < pairs => Encoding::Utf16Le,
        () if pairs >= 4 && even * 4 >= pairs * 3 && odd * 4 < pairs => Encoding::Utf16Be,
        () => Encoding::Utf8,
    };
    Ok((encoding, 0))
}

/// Reads UTF-16 as UTF-8; what is no UTF-16 becomes U+FFFD.
struct Utf16Reader<R> {
    inner: R,
    big_endian: bool,
    /// The first byte of a unit whose second is not read yet.
    half_unit: Option<u8>,
    high_surrogate: Option<u16>,
    utf8: Vec<u8>,
    position: usize,
    ended: bool,
}

impl<R: Read> Utf16Reader<R> {
    fn new(inner: R, big_endian: bool) -> Self {
        Self { inner, big_endian, half_unit: None, high_surrogate: None, utf8: Vec::new(), position: 0, ended: false }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.utf8.clear();
        self.position = 0;
        let mut bytes = [0_u8; 8192];
        let count = self.inner.read(&mut bytes)?;
        let mut units: Vec<u16> = self.high_surrogate.take().into_iter().collect();
        for byte in &bytes[..count] {
            match self.half_unit.take() {
                None => self.half_unit = Some(*byte),
                Some(first) if self.big_endian => units.push(u16::from_be_bytes([first, *byte])),
                Some(first) => units.push(u16::from_le_bytes([first, *byte])),
            }
        }
        if count == 0 {
            self.ended = true;
            if self.half_unit.take().is_some() {
                units.push(0xfffd);
            }
        } else if units.last().is_some_and(|unit| (0xd800..0xdc00).contains(unit)) {
            self.high_surrogate = units.pop();
        }
        let mut buffer = [0; 4];
        for decoded in char::decode_utf16(units) {
            let character = decoded.unwrap_or(char::REPLACEMENT_CHARACTER);
            self.utf8.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
        }
        Ok(())
    }
}

impl<R: Read> Read for Utf16Reader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.position == self.utf8.len() && !self.ended {
            self.fill()?;
        }
        let count = into.len().min(self.utf8.len() - self.position);
        into[..count].copy_from_slice(&self.utf8[self.position..self.position + count]);
        self.position += count;
        Ok(count)
    }
}

/// Returns a line as text, and whether it is Windows-1252, which every line is taken for that is no UTF-8.
pub(crate) fn line_text(line: &[u8]) -> (Cow<'_, str>, bool) {
    match std::str::from_utf8(line) {
        Ok(text) => (Cow::Borrowed(text), false),
        Err(_) => (Cow::Owned(line.iter().map(|byte| windows_1252(*byte)).collect()), true),
    }
}

fn windows_1252(byte: u8) -> char {
    /// 0x80 to 0x9f.
    const SPECIAL: [u16; 32] = [
        0x20ac, 0xfffd, 0x201a, 0x0192, 0x201e, 0x2026, 0x2020, 0x2021, 0x02c6, 0x2030, 0x0160, 0x2039, 0x0152, 0xfffd, 0x017d,
        0xfffd, 0xfffd, 0x2018, 0x2019, 0x201c, 0x201d, 0x2022, 0x2013, 0x2014, 0x02dc, 0x2122, 0x0161, 0x203a, 0x0153, 0xfffd,
        0x017e, 0x0178,
    ];
    match byte {
        0x80..=0x9f => char::from_u32(u32::from(SPECIAL[usize::from(byte - 0x80)])).unwrap_or(char::REPLACEMENT_CHARACTER),
        _ => char::from(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> (String, Encoding) {
        // Sources may hand out a byte at a time.
        struct Trickle<'a>(&'a [u8]);
        impl Read for Trickle<'_> {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                let count = self.0.len().min(into.len()).min(1);
                into[..count].copy_from_slice(&self.0[..count]);
                self.0 = &self.0[count..];
                Ok(count)
            }
        }
        let (mut reader, encoding) = decode(Box::new(BufReader::new(Trickle(bytes)))).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        (text, encoding)
    }

    #[test]
    fn decodes_utf_16_of_both_orders_with_and_without_a_mark() {
        let text = "time,Power [µW]\r\n2025-02-03 10:00:00,100\r\n𝄞";
        let little = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        let big = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
        let marked = format!("\u{feff}{text}");
        for (bytes, encoding) in [
            (little(&marked), Encoding::Utf16Le),
            (big(&marked), Encoding::Utf16Be),
            (little(text), Encoding::Utf16Le),
            (big(text), Encoding::Utf16Be),
            (marked.clone().into_bytes(), Encoding::Utf8),
            (text.as_bytes().to_vec(), Encoding::Utf8),
        ] {
            assert_eq!(read(&bytes), (text.to_owned(), encoding));
        }
        let cut = little(&marked);
        assert_eq!(read(&cut[..9]).0, "tim\u{fffd}", "a unit is cut in half");
        let long = "a".repeat(20_000) + "𝄞";
        assert_eq!(read(&little(&long)).0, long);
        assert!(decode(Box::new(&[0xff, 0xfe, 0, 0, 65, 0, 0, 0][..])).is_err());
    }

    #[test]
    fn reads_a_line_that_is_no_utf_8_as_windows_1252() {
        assert_eq!(line_text("Power [µW]".as_bytes()), ("Power [µW]".into(), false));
        assert_eq!(line_text(b"Temp [\xb0C] \x80"), ("Temp [°C] €".into(), true));
    }
}
