//! A fast way to read lines in exactly the form that [`super::LogWriter`] gives them. Anything else is left to
//! `serde_json`; where this answers, it answers the same.

use std::borrow::Cow;

use eadt_schemas::{EventTime, Topic};

use super::EventRef;

/// Parses an event; returns `None` if it is not in that form, which does not show whether it is an event.
pub(super) fn parse(line: &[u8]) -> Option<EventRef<'_>> {
    let (event, rest) = parse_envelope(line)?;
    let (data, rest) = optional(rest, ",\"data\":", object)?;
    (rest == "}").then_some(EventRef { data: data.map(Cow::Borrowed), ..event })
}

/// Like [`parse`], but with everything up to the line's last brace as the value: an event only if that is one JSON object.
pub(super) fn parse_unchecked_value(line: &[u8]) -> Option<EventRef<'_>> {
    let (event, rest) = parse_envelope(line)?;
    let data = rest.strip_prefix(",\"data\":")?.strip_suffix('}')?;
    Some(EventRef { data: Some(Cow::Borrowed(data)), ..event })
}

/// Returns everything before the value, and the rest of the line.
fn parse_envelope(line: &[u8]) -> Option<(EventRef<'_>, &str)> {
    let line = std::str::from_utf8(line).ok()?.trim_ascii_end();
    let (kind, rest) = text(line.strip_prefix("{\"specversion\":\"1.0\",\"type\":\"")?)?;
    let (source, rest) = text(rest.strip_prefix(",\"source\":\"")?)?;
    let (id, rest) = text(rest.strip_prefix(",\"id\":\"")?)?;
    let (time, rest) = instant(rest.strip_prefix(",\"time\":\"")?)?;
    let (subject, rest) = optional(rest, ",\"subject\":\"", text)?;
    let (_, rest) = optional(rest, ",\"datacontenttype\":\"", text)?;
    let (key, rest) = optional(rest, ",\"partitionkey\":\"", text)?;
    let (topic, rest) = optional(rest, ",\"eadttopic\":\"", |rest| {
        let (name, rest) = text(rest)?;
        Some((Topic::from_base_name(name)?, rest))
    })?;
    let (partition, rest) = optional(rest, ",\"eadtpartition\":", integer)?;
    let (offset, rest) = optional(rest, ",\"eadtoffset\":", integer)?;
    let (stamp, rest) = optional(rest, ",\"eadtstamp\":\"", instant)?;
    let event = EventRef {
        kind: Cow::Borrowed(kind),
        source: Cow::Borrowed(source),
        id: Cow::Borrowed(id),
        time,
        subject: Cow::Borrowed(subject.unwrap_or_default()),
        key: key.map(Cow::Borrowed),
        topic,
        partition: partition.map(i32::try_from).transpose().ok()?,
        offset,
        stamp,
        is_sent_again: false,
        input_positions: None,
        settings: None,
        reason: None,
        detail: None,
        data: None,
    };
    Some((event, rest))
}

type ParsedPrefix<'a, T> = Option<(T, &'a str)>;

/// Returns the value behind the label, or nothing if the label does not come next.
fn optional<'a, T>(rest: &'a str, label: &str, read: impl Fn(&'a str) -> ParsedPrefix<'a, T>) -> Option<(Option<T>, &'a str)> {
    match rest.strip_prefix(label) {
        None => Some((None, rest)),
        Some(rest) => read(rest).map(|(value, rest)| (Some(value), rest)),
    }
}

/// Returns a text without escapes, behind its opening quote.
fn text(rest: &str) -> ParsedPrefix<'_, &str> {
    let end = unescaped(rest.as_bytes())?;
    (rest.as_bytes()[end] == b'"').then(|| (&rest[..end], &rest[end + 1..]))
}

/// Returns the position of the first quote, backslash or control character.
fn unescaped(bytes: &[u8]) -> Option<usize> {
    /// Every byte of a word.
    const EACH: u64 = 0x0101_0101_0101_0101;
    let (words, _) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The high bit of each byte that equals `byte`, or is below it; of those behind the first hit some may be wrong.
        let equal = |byte: u8| {
            let word = word ^ (EACH * u64::from(byte));
            word.wrapping_sub(EACH) & !word
        };
        let below = word.wrapping_sub(EACH * 0x20) & !word;
        let found = (below | equal(b'"') | equal(b'\\')) & (EACH * 0x80);
        if found != 0 {
            return Some(i * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let from = words.len() * 8;
    bytes[from..].iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).map(|at| from + at)
}

fn instant(rest: &str) -> ParsedPrefix<'_, EventTime> {
    let (text, rest) = text(rest)?;
    Some((text.parse().ok()?, rest))
}

fn integer(rest: &str) -> ParsedPrefix<'_, i64> {
    let end = rest.bytes().position(|byte| !byte.is_ascii_digit() && byte != b'-')?;
    let digits = rest[..end].strip_prefix('-').unwrap_or(&rest[..end]);
    // JSON has no leading zeros, and serde_json reads -0 as a float.
    if digits.starts_with('0') && rest[..end].len() > 1 {
        return None;
    }
    Some((rest[..end].parse().ok()?, &rest[end..]))
}

/// Takes an object, from its opening brace to the closing one.
fn object(rest: &str) -> ParsedPrefix<'_, &str> {
    let bytes = rest.as_bytes();
    if bytes.first() != Some(&b'{') {
        return None;
    }
    let (mut at, mut depth) = (1, 1_u32);
    while depth > 0 {
        match *bytes.get(at)? {
            b'"' => {
                at += 1;
                loop {
                    match *bytes.get(at)? {
                        b'"' => break,
                        b'\\' => at += 2,
                        _ => at += 1,
                    }
                }
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    Some((&rest[..at], &rest[at..]))
}

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;

    use super::*;

    const LINE: &str = concat!(
        r#"{"specversion":"1.0","type":"io.eadt.gpu.telemetry.v1","source":"/collector/n1","id":"n1:7","#,
        r#""time":"2023-11-14T22:13:20.000000Z","subject":"lab/bert","datacontenttype":"application/json","#,
        r#""partitionkey":"lab/bert","eadttopic":"gpu.telemetry.v1","eadtpartition":3,"eadtoffset":7,"#,
        r#""eadtstamp":"2023-11-14T22:13:20.000000Z","data":{"power_watts":250.25,"node":"a\"}","x":[{}]}}"#
    );

    fn slow(line: &[u8]) -> Option<EventRef<'_>> {
        serde_json::from_slice(line).ok()
    }

    #[test]
    fn reads_what_the_writer_writes() {
        let event = parse(LINE.as_bytes()).expect("the canonical form");
        assert_eq!(Some(&event), slow(LINE.as_bytes()).as_ref());
        assert_eq!(event.value(), Some(br#"{"power_watts":250.25,"node":"a\"}","x":[{}]}"#.as_slice()));
        let bare = r#"{"specversion":"1.0","type":"t","source":"s","id":"i","time":"2023-11-14T22:13:20.000000Z"}"#;
        assert_eq!(parse(bare.as_bytes()), slow(bare.as_bytes()));
        assert!(parse(bare.as_bytes()).is_some());
    }

    #[test]
    fn finds_the_end_of_a_text() {
        for length in 0..40_usize {
            for byte in 0..=255_u8 {
                for at in 0..length {
                    let mut bytes = vec![b'a'; length];
                    bytes[at] = byte;
                    let expected = matches!(byte, b'"' | b'\\' | 0..=0x1f).then_some(at);
                    assert_eq!(unescaped(&bytes), expected, "{byte} at {at} of {length}");
                    // The first counts, whatever follows.
                    bytes[length - 1] = b'"';
                    assert_eq!(unescaped(&bytes), expected.or(Some(length - 1)), "{byte} at {at} of {length}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(cases(4000))]

        #[test]
        fn agrees_with_serde_json_about_changed_lines(
            at in 0..LINE.len(),
            cut in 0..12_usize,
            put in prop_oneof![Just(String::new()), "[ -~]{1,3}", Just("\\\"".to_owned()), Just("\"".to_owned()), Just("{}".to_owned()),
                Just(",\"data\":{}".to_owned()), Just("-0".to_owned()), Just("99999999999".to_owned()), Just("null".to_owned())],
        ) {
            let end = (at + cut).min(LINE.len());
            let line = [&LINE[..at], &put, &LINE[end..]].concat();
            // A likely event is certain once its value is one object.
            if let Some(likely) = parse_unchecked_value(line.as_bytes()) {
                let whole = likely.data.as_deref().filter(|data| data.starts_with('{') && serde_json::from_str::<serde_json::Value>(data).is_ok());
                if whole.is_some() {
                    prop_assert_eq!(Some(likely), slow(line.as_bytes()), "{}", line);
                }
            }
            if let Some(fast) = parse(line.as_bytes()) {
                match slow(line.as_bytes()) {
                    Some(slow) => prop_assert_eq!(fast, slow),
                    // Only errors inside the value may be left to the decoder.
                    None => prop_assert!(
                        serde_json::from_str::<serde_json::Value>(fast.data.as_deref().unwrap_or("{}")).is_err(), "{}", line
                    ),
                }
            }
        }
    }
}
