//! The fast way for what this program's own producers write: one flat object without spaces, escapes or nested values.
//!
//! Anything else, valid or not, is left to [`crate::decode`]; where both decode a value, they agree.

use std::borrow::Cow;

use eadt_schemas::EventTime;

use crate::decode::{Cell, Decoded, Seen};
use crate::plan::{Kind, Node, Plan};

/// `None`: not of that form.
pub(crate) fn decode<'a>(plan: &Plan, value: &'a [u8]) -> Option<Decoded<'a>> {
    let mut scan = Scan { text: std::str::from_utf8(value).ok()?, at: 0 };
    let mut cells = Vec::with_capacity(plan.event_columns);
    let mut seen = Seen::default();
    let mut hint = 0;
    scan.expect(b'{')?;
    loop {
        let name = scan.string()?;
        scan.expect(b':')?;
        let at = plan.members.find(name, hint)?;
        hint = at + 1;
        let Node::Column(index) = plan.members.list[at].node else { return None };
        if !seen.insert(index) {
            return None;
        }
        let cell = match plan.columns[index].kind {
            Kind::Text => Cell::Text(Cow::Borrowed(scan.string()?)),
            Kind::Time => Cell::Time(scan.string()?.parse::<EventTime>().ok()?.micros()),
            Kind::Int => Cell::Int(scan.number()?.parse().ok()?),
            Kind::Float => Cell::Float(scan.number()?.parse().ok().filter(|value: &f64| value.is_finite())?),
            Kind::Bool => Cell::Bool(scan.boolean()?),
            Kind::Json | Kind::Bytes => return None,
        };
        cells.push((index, cell));
        match scan.next()? {
            b',' => {}
            b'}' if scan.at == value.len() => break,
            _ => return None,
        }
    }
    Some(Decoded { cells, seen, extra: None })
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn next(&mut self) -> Option<u8> {
        let byte = self.text.as_bytes().get(self.at).copied();
        self.at += 1;
        byte
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().position(|byte| *byte == b'"' || *byte == b'\\' || *byte < 0x20)?;
        if rest[length] != b'"' {
            return None;
        }
        let start = self.at;
        self.at += length + 1;
        // The ends are at ASCII bytes, so this never fails.
        self.text.get(start..start + length)
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    /// The text of a JSON number.
    fn number(&mut self) -> Option<&'a str> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let number = self.text.get(start..self.at)?;
        // An integer of its own kind in JSON, which only the other way tells apart.
        (number != "-0").then_some(number)
    }

    fn boolean(&mut self) -> Option<bool> {
        let rest = self.text.get(self.at..)?;
        let value = rest.starts_with("true");
        if !value && !rest.starts_with("false") {
            return None;
        }
        self.at += if value { 4 } else { 5 };
        Some(value)
    }
}
