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

/// The reason why a file of UTF-32 text is not read.
pub(crate) const UTF_32: &str = "it is UTF-32 text";

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
        return Err(io::Error::new(io::ErrorKind::Unsupported, UTF_32));
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

/// Reads UTF-16 as UTF-8, line by line; what is no UTF-16 becomes U+FFFD. Lines that another program has added in an encoding of
/// single bytes are handed on as they are.
struct Utf16Reader<R> {
    inner: R,
    big_endian: bool,
    /// Bytes that are not decoded yet.
    pending: Vec<u8>,
    /// Width of the code units in the line that begins in `pending`, or continues there.
    line: Option<CodeUnitWidth>,
    high_surrogate: Option<u16>,
    utf8: Vec<u8>,
    position: usize,
    ended: bool,
}

/// Bytes of a character, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodeUnitWidth {
    One,
    Two,
}

/// Bytes of a line that decide its width.
const WIDTH_BYTES: usize = 4096;

/// Returns the width of the line that `bytes` begin with; `None` if more bytes are needed to decide.
///
/// A line of UTF-16 has a separator, a digit or its end, of which one byte is 0.
fn line_width(bytes: &[u8], big_endian: bool, is_all: bool) -> Option<CodeUnitWidth> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let line = &bytes[..end.unwrap_or(bytes.len())];
    if line.contains(&0) {
        return Some(CodeUnitWidth::Two);
    }
    let ascii = line.iter().filter(|byte| byte.is_ascii()).count();
    let end_is_known = end.is_some() || is_all || line.len() >= WIDTH_BYTES;
    if end_is_known && std::str::from_utf8(line).is_err() && ascii * 8 < line.len() * 7 {
        return Some(CodeUnitWidth::Two);
    }
    match end.map(|end| bytes.get(end + 1)) {
        Some(Some(0)) if !big_endian => Some(CodeUnitWidth::Two),
        Some(Some(_)) => Some(CodeUnitWidth::One),
        Some(None) if big_endian || is_all => Some(CodeUnitWidth::One),
        None if is_all || line.len() >= WIDTH_BYTES => Some(CodeUnitWidth::One),
        Some(None) | None => None,
    }
}

impl<R: Read> Utf16Reader<R> {
    fn new(inner: R, big_endian: bool) -> Self {
        let (pending, utf8) = (Vec::new(), Vec::new());
        Self { inner, big_endian, pending, line: None, high_surrogate: None, utf8, position: 0, ended: false }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.utf8.clear();
        self.position = 0;
        let mut bytes = [0_u8; 8192];
        let count = self.inner.read(&mut bytes)?;
        self.pending.extend_from_slice(&bytes[..count]);
        self.ended = count == 0;
        let pending = std::mem::take(&mut self.pending);
        let mut rest = pending.as_slice();
        while !rest.is_empty() {
            let Some(line) = self.line.or_else(|| line_width(rest, self.big_endian, self.ended)) else { break };
            self.line = Some(line);
            let consumed = if line == CodeUnitWidth::One { self.take_bytes(rest) } else { self.take_units(rest) };
            rest = &rest[consumed..];
            if consumed == 0 {
                break;
            }
        }
        self.pending = rest.to_vec();
        if self.ended && (self.high_surrogate.take().is_some() || !self.pending.is_empty()) {
            self.pending.clear();
            self.push(char::REPLACEMENT_CHARACTER);
        }
        Ok(())
    }

    /// Takes bytes to the end of the line.
    fn take_bytes(&mut self, bytes: &[u8]) -> usize {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        self.utf8.extend_from_slice(&bytes[..end]);
        if bytes[..end].ends_with(b"\n") {
            self.line = None;
        }
        end
    }

    /// Takes units of two bytes to the end of the line.
    fn take_units(&mut self, bytes: &[u8]) -> usize {
        let mut consumed = 0;
        for pair in bytes.chunks_exact(2) {
            consumed += 2;
            let pair = [pair[0], pair[1]];
            let unit = if self.big_endian { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) };
            let before = self.high_surrogate.take();
            if (0xd800..0xdc00).contains(&unit) {
                self.high_surrogate = Some(unit);
                if before.is_some() {
                    self.push(char::REPLACEMENT_CHARACTER);
                }
                continue;
            }
            for decoded in char::decode_utf16(before.into_iter().chain([unit])) {
                self.push(decoded.unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            if unit == u16::from(b'\n') {
                self.line = None;
                break;
            }
        }
        consumed
    }

    fn push(&mut self, character: char) {
        // A byte-order mark within a file begins appended text.
        if character != '\u{feff}' {
            self.utf8.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
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

/// Returns the text of a line of UTF-16 in a file of single bytes, which another program has appended; `None` if it is none.
///
/// Lines are split at the byte of the line feed: the rest of the feed is the first byte of the next line if the order is
/// little-endian.
fn appended_utf16(line: &[u8]) -> Option<String> {
    const LEAST_PAIRS: usize = 4;
    // Most characters of a log are ASCII: one byte of each pair is 0.
    let units = |line: &[u8], mark: [u8; 2], read: fn([u8; 2]) -> u16| {
        let pairs = line.strip_prefix(&mark).unwrap_or(line).as_chunks::<2>().0;
        let ascii = pairs.iter().filter(|pair| (1..0x100).contains(&read(**pair))).count();
        (ascii >= LEAST_PAIRS && ascii * 4 >= pairs.len() * 3).then(|| pairs.iter().map(|pair| read(*pair)).collect::<Vec<_>>())
    };
    let little = |line| units(line, [0xff, 0xfe], u16::from_le_bytes);
    // The line begins with the second byte of the line feed before it.
    let tail = line.strip_prefix(&[0]).filter(|tail| tail.first() != Some(&0));
    let units = little(line).or_else(|| tail.and_then(little)).or_else(|| units(line, [0xfe, 0xff], u16::from_be_bytes))?;
    Some(String::from_utf16_lossy(&units).trim_end_matches(['\r', '\0']).to_owned())
}

/// Returns a line as text, and whether it is Windows-1252, which every line is taken for that is no UTF-8.
pub(crate) fn line_text(line: &[u8]) -> (Cow<'_, str>, bool) {
    if line == [0] {
        // The second byte of a line feed in UTF-16.
        return (Cow::Borrowed(""), false);
    }
    if memchr::memchr(0, line).is_some()
        && let Some(text) = appended_utf16(line)
    {
        return (Cow::Owned(text), false);
    }
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
    fn reads_lines_that_were_appended_in_another_encoding() {
        let little = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
        let big = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
        let wide = "\u{feff}time,功率\r\n2025-02-03 10:00:00,100\r\n";
        let (plain, odd, tail) = ("2025-02-03 10:00:01,200\n", "2025-02-03 10:00:02,30\r\n", "2025-02-03 10:00:03,4");
        let expected = format!("{}{plain}{odd}{}{tail}", wide.trim_start_matches('\u{feff}'), "功率\n");
        for wide_bytes in [little, big] {
            let bytes = [wide_bytes(wide), plain.into(), odd.into(), wide_bytes("\u{feff}功率\n"), tail.into()].concat();
            assert_eq!(read(&bytes).0, expected);
        }
        // The other way round: lines are split at the byte of the line feed.
        let text = "time,w\n2025-02-03 10:00:00,100\r\n";
        for wide_bytes in [little, big] {
            let bytes = [text.as_bytes(), &wide_bytes(&wide.replace("功率", "w")), plain.as_bytes()].concat();
            let lines: Vec<String> =
                bytes.split(|byte| *byte == b'\n').map(|line| line_text(line).0.trim_end().to_owned()).collect();
            let lines: Vec<&str> = lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
            assert_eq!(lines[..4], ["time,w", "2025-02-03 10:00:00,100", "time,w", "2025-02-03 10:00:00,100"]);
            assert!(lines[4].ends_with("2025-02-03 10:00:01,200"), "{lines:?}");
        }
        assert_eq!(line_text(b"\0\0\0\0\0\0\0\0\0\0\0\x002025,1").0.len(), 18, "what a crash leaves is no UTF-16");
    }

    #[test]
    fn reads_a_line_that_is_no_utf_8_as_windows_1252() {
        assert_eq!(line_text("Power [µW]".as_bytes()), ("Power [µW]".into(), false));
        assert_eq!(line_text(b"Temp [\xb0C] \x80"), ("Temp [°C] €".into(), true));
    }
}
