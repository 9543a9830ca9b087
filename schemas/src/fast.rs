//! Reads events in the form that this crate writes them, several times faster than a general parser.
//!
//! In: bytes, and an event whose texts' memory is used again. Out: that event, or `None` for anything in another form (other order, white space, escapes, non-ASCII text, null,
//! unknown fields, mistakes), which then goes to the general parser. It never accepts what that one refuses and never
//! reads a value differently; tests try both on the same bytes.

use crate::EventTime;
use crate::v1::{GpuTelemetry, Meter, Origin, Phase, Scope, ShareMethod, TrainingProgress};

/// What is left to read of a value, and the whole value, checked once to be UTF-8.
///
/// After a `None` it is of no use: the value is left to the general parser.
#[derive(Debug)]
pub struct Cursor<'a>(&'a [u8], &'a str);

/// Every byte of a word.
const EACH: u64 = 0x0101_0101_0101_0101;

/// How many bytes at the beginning are printable ASCII that JSON does not escape.
#[inline]
fn plain(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The high bit of each byte that equals `byte`; of those behind the first hit some may be wrong.
        let equal = |byte: u8| {
            let word = word ^ (EACH * u64::from(byte));
            word.wrapping_sub(EACH) & !word
        };
        let below = word.wrapping_sub(EACH * 0x20) & !word;
        let odd = (word | below | equal(b'"') | equal(b'\\') | equal(0x7f)) & (EACH * 0x80);
        if odd != 0 {
            return i * 8 + odd.trailing_zeros() as usize / 8;
        }
    }
    let is_plain = |byte: &&u8| matches!(byte, b' '..=b'!' | b'#'..=b'[' | b']'..=b'~');
    words.len() * 8 + rest.iter().take_while(is_plain).count()
}

impl<'a> Cursor<'a> {
    /// `None`: not UTF-8.
    #[inline]
    pub fn new(value: &'a [u8]) -> Option<Self> {
        Some(Self(value, std::str::from_utf8(value).ok()?))
    }

    /// Whether everything is read.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// A number that a field or the object follows, as `serde_json` reads it into a double.
    #[inline]
    pub fn float(&mut self) -> Option<f64> {
        f64::read(self)
    }

    /// A number without sign, fraction and exponent that a field or the object follows.
    #[inline]
    pub fn unsigned(&mut self) -> Option<u64> {
        u64::read(self)
    }

    #[inline]
    pub fn boolean(&mut self) -> Option<bool> {
        bool::read(self)
    }

    /// A time in the form in which times are written.
    #[inline]
    pub fn time(&mut self) -> Option<EventTime> {
        EventTime::read(self)
    }

    /// Takes `text` where it comes next.
    #[inline]
    pub fn take(&mut self, text: &[u8]) -> bool {
        // Most texts that do not come next differ early; a call to compare them all costs more than the first word.
        if let (Some(here), Some(wanted)) = (self.0.first_chunk::<4>(), text.first_chunk::<4>())
            && here != wanted
        {
            return false;
        }
        match self.0.strip_prefix(text) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    /// A text of printable ASCII without escapes.
    #[inline]
    pub fn text(&mut self) -> Option<&'a str> {
        let rest = self.0.strip_prefix(b"\"")?;
        let end = plain(rest);
        if *rest.get(end)? != b'"' {
            return None;
        }
        let from = self.1.len() - rest.len();
        self.0 = &rest[end + 1..];
        self.1.get(from..from + end)
    }

    /// Digits as JSON has them: no leading zero. The value is exact while there are at most 19.
    #[inline]
    fn digits(&mut self) -> Option<(u64, usize)> {
        let mut value = 0_u64;
        let mut count = 0;
        for byte in self.0 {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
            count += 1;
        }
        if count == 0 || (count > 1 && self.0[0] == b'0') {
            return None;
        }
        self.0 = &self.0[count..];
        Some((value, count))
    }

    /// What follows a value; a number that goes on (`1.`, `1e5`, `0x1`) is not at its end.
    #[inline]
    fn at_end_of_value(&self) -> bool {
        matches!(self.0.first(), Some(b',' | b'}' | b']'))
    }
}

/// A value of a field.
trait Value: Default {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self>;

    /// As [`Self::read`], into memory that is there already.
    #[inline]
    fn read_into(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        *self = Self::read(cursor)?;
        Some(())
    }

    /// What serde fills in for an absent field.
    #[inline]
    fn reset(&mut self) {
        *self = Self::default();
    }
}

impl Value for String {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        cursor.text().map(str::to_owned)
    }

    #[inline]
    fn read_into(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        let text = cursor.text()?;
        self.clear();
        self.push_str(text);
        Some(())
    }

    #[inline]
    fn reset(&mut self) {
        self.clear();
    }
}

impl Value for EventTime {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        Self::from_canonical(cursor.text()?.as_bytes())
    }

    #[inline]
    fn reset(&mut self) {
        *self = Self::missing();
    }
}

impl Value for bool {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        if cursor.take(b"true") { Some(true) } else { cursor.take(b"false").then_some(false) }
    }
}

impl Value for u64 {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let (value, count) = cursor.digits()?;
        (count <= 19 && cursor.at_end_of_value()).then_some(value)
    }
}

impl Value for u32 {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        u64::read(cursor)?.try_into().ok()
    }
}

/// Powers of ten that a double holds exactly.
const TENS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21,
    1e22,
];

impl Value for f64 {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let text = cursor.0;
        let negative = cursor.take(b"-");
        let (whole, mut count) = cursor.digits()?;
        let (mut mantissa, mut places) = (whole, 0);
        if cursor.take(b".") {
            let before = cursor.0.len();
            while let Some(digit) = cursor.0.first().map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9) {
                mantissa = mantissa.wrapping_mul(10).wrapping_add(u64::from(digit));
                cursor.0 = &cursor.0[1..];
            }
            places = before - cursor.0.len();
            count += places;
            if places == 0 {
                return None;
            }
        }
        if cursor.at_end_of_value() && count <= 19 && mantissa <= 1 << 53 && places < TENS.len() {
            // Both are exact, so one division rounds correctly.
            let value = mantissa as f64 / TENS[places];
            return Some(if negative { -value } else { value });
        }
        if matches!(cursor.0.first(), Some(b'e' | b'E')) {
            cursor.0 = &cursor.0[1..];
            if !cursor.take(b"+") {
                cursor.take(b"-");
            }
            // Unlike the whole part, an exponent may begin with zeros.
            let length = cursor.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
            cursor.0 = &cursor.0[length..];
            if length == 0 {
                return None;
            }
        }
        let number = &text[..text.len() - cursor.0.len()];
        let value: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
        (cursor.at_end_of_value() && value.is_finite()).then_some(value)
    }
}

impl<T: Value> Value for Option<T> {
    #[inline]
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        T::read(cursor).map(Some)
    }

    #[inline]
    fn read_into(&mut self, cursor: &mut Cursor<'_>) -> Option<()> {
        if let Some(value) = self {
            value.read_into(cursor)
        } else {
            *self = Some(T::read(cursor)?);
            Some(())
        }
    }
}

/// An entry of a list.
trait Item: Sized {
    fn read_item(cursor: &mut Cursor<'_>) -> Option<Self>;
}

impl Item for String {
    fn read_item(cursor: &mut Cursor<'_>) -> Option<Self> {
        Self::read(cursor)
    }
}

impl Item for Option<f64> {
    fn read_item(cursor: &mut Cursor<'_>) -> Option<Self> {
        if cursor.take(b"null") { Some(None) } else { f64::read(cursor).map(Some) }
    }
}

impl<T: Item> Value for Vec<T> {
    fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut list = Self::new();
        if !cursor.take(b"[") {
            return None;
        }
        if cursor.take(b"]") {
            return Some(list);
        }
        loop {
            list.push(T::read_item(cursor)?);
            if cursor.take(b"]") {
                return Some(list);
            }
            if !cursor.take(b",") {
                return None;
            }
        }
    }
}

macro_rules! names {
    ($kind:ty, $($name:literal => $value:ident),+) => {
        impl Value for $kind {
            #[inline]
            fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
                match cursor.text()? {
                    $($name => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
}

names!(Meter, "gpu" => Gpu, "module" => Module, "node" => Node, "wall" => Wall);
names!(Origin, "measured" => Measured, "imported" => Imported, "simulated" => Simulated);
names!(
    ShareMethod,
    "process_utilization" => ProcessUtilization,
    "profiling" => Profiling,
    "mps_percentage" => MpsPercentage,
    "mig_slices" => MigSlices,
    "equal" => Equal,
    "assigned" => Assigned
);
names!(Phase, "started" => Started, "progress" => Progress, "finished" => Finished);
names!(Scope, "global" => Global, "rank" => Rank);

/// Fields in the order in which they are written; each may be absent, none may come twice.
macro_rules! fields {
    ($function:ident, $event:ident, $($field:ident),+ $(,)?) => {
        /// Where it answers `None`, parts of the event are overwritten.
        pub fn $function(event: &mut $event, value: &[u8]) -> Option<()> {
            let mut cursor = Cursor::new(value)?;
            if !cursor.take(b"{\"") {
                return None;
            }
            let mut ended = false;
            $(
                if !ended && cursor.take(concat!(stringify!($field), "\":").as_bytes()) {
                    event.$field.read_into(&mut cursor)?;
                    if !cursor.take(b",\"") {
                        if cursor.0 != b"}" {
                            return None;
                        }
                        ended = true;
                    }
                } else {
                    event.$field.reset();
                }
            )+
            // Else there is a field that is unknown, or not at its place.
            ended.then_some(())
        }
    };
}

crate::gpu_telemetry_fields!(fields);
crate::training_progress_fields!(fields);

#[cfg(test)]
mod tests {
    use eadt_testing::cases;
    use proptest::prelude::*;
    use serde::Serialize;
    use serde::de::DeserializeOwned;

    use super::*;

    fn gpu_telemetry(value: &[u8]) -> Option<GpuTelemetry> {
        // Into an event that is full: nothing of it may stay.
        let mut event = serde_json::from_str(TELEMETRY).unwrap();
        super::gpu_telemetry(&mut event, value).map(|()| event)
    }

    fn training_progress(value: &[u8]) -> Option<TrainingProgress> {
        let mut event = serde_json::from_str(PROGRESS).unwrap();
        super::training_progress(&mut event, value).map(|()| event)
    }

    #[test]
    fn plain_text_ends_where_any_other_byte_stands() {
        for length in 0..20 {
            for byte in 0..=255_u8 {
                let mut bytes = vec![b'a'; 20];
                bytes[length] = byte;
                let expected = if matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\' { 20 } else { length };
                assert_eq!(plain(&bytes), expected, "{byte} at {length}");
            }
        }
    }

    const TELEMETRY: &str = include_str!("../samples/v1/gpu.telemetry.json");
    const PROGRESS: &str = include_str!("../samples/v1/training.progress.json");

    fn written<T: DeserializeOwned + Serialize>(sample: &str) -> (T, Vec<u8>) {
        let event: T = serde_json::from_str(sample).unwrap();
        let bytes = serde_json::to_vec(&event).unwrap();
        (event, bytes)
    }

    #[test]
    fn every_field_has_its_place() {
        // The full samples have every field, so one that is missing above sends them to the general parser.
        let (event, bytes) = written::<GpuTelemetry>(TELEMETRY);
        assert_eq!(gpu_telemetry(&bytes), Some(event));
        let (event, bytes) = written::<TrainingProgress>(PROGRESS);
        assert_eq!(training_progress(&bytes), Some(event));
    }

    #[test]
    fn other_forms_are_left_to_the_general_parser() {
        for other in [
            r#"{"device":"d","time":"2026-01-02T03:04:05.000000Z"}"#,
            r#"{ "device":"d"}"#,
            r#"{"device":"d"} "#,
            r#"{"device":"\u0064"}"#,
            r#"{"device":"é"}"#,
            r#"{"device":"d","device":"d"}"#,
            r#"{"power_watts":null}"#,
            r#"{"power_watts":1e999}"#,
            r#"{"power_watts":01}"#,
            r#"{"power_watts":1.}"#,
            r#"{"power_watts":.5}"#,
            r#"{"power_watts":+1}"#,
            r#"{"power_watts":NaN}"#,
            r#"{"power_watts":inf}"#,
            r#"{"power_watts":1e}"#,
            r#"{"gpu_index":4294967296}"#,
            r#"{"gpu_index":-1}"#,
            r#"{"gpu_index":1.0}"#,
            r#"{"tenure":18446744073709551615}"#,
            r#"{"rack":1}"#,
            r#"{"meter":"moon"}"#,
            r#"{"time":"2026-01-02T03:04:05Z"}"#,
            "{}",
            "{",
            "",
        ] {
            assert_eq!(gpu_telemetry(other.as_bytes()), None, "{other}");
        }
        assert!(gpu_telemetry(br#"{"device":"d"}"#).is_some());
    }

    fn same<T: DeserializeOwned + Serialize>(fast: Option<&T>, bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Some(fast) = fast {
            let slow: T = serde_json::from_slice(bytes).map_err(|e| TestCaseError::fail(format!("serde refuses: {e}")))?;
            // As bytes, so that -0 and 0 differ.
            prop_assert_eq!(serde_json::to_string(fast).unwrap(), serde_json::to_string(&slow).unwrap());
        }
        Ok(())
    }

    fn number() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<f64>().prop_map(|n| n.to_string()),
            any::<f64>().prop_map(|n| format!("{n:e}")),
            (-1e7..1e7_f64).prop_map(|n| n.to_string()),
            (any::<i64>(), 0..25_usize).prop_map(|(n, places)| format!("{n}.{:0places$}1", 0)),
            (0..10_u64.pow(17), 0..25_usize).prop_map(|(n, places)| format!("0.{:0places$}{n}", 0)),
            "-?[0-9]{1,22}(\\.[0-9]{0,22})?([eE][+-]?[0-9]{0,3})?",
            "[-+0-9.eE]{1,6}",
        ]
    }

    /// Bytes changed, inserted or removed in a written event.
    fn changed(bytes: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
        let any_byte = prop_oneof![any::<u8>(), prop::sample::select(b"{}[],:\"\\0123456789.eE-+tfn ".to_vec())];
        prop::collection::vec((0..bytes.len(), any_byte, 0..3_u8), 0..4).prop_map(move |changes| {
            let mut bytes = bytes.clone();
            for (at, byte, how) in changes {
                let at = at.min(bytes.len() - 1);
                match how {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => drop(bytes.remove(at)),
                }
            }
            bytes
        })
    }

    proptest! {
        #![proptest_config(cases(4000))]
        #[test]
        fn numbers_are_read_as_serde_reads_them(number in number(), field in prop::sample::select(vec!["power_watts", "gpu_index", "tenure"])) {
            let bytes = format!("{{\"device\":\"d\",\"{field}\":{number}}}").into_bytes();
            // Order of declaration: tenure stands after gpu_index, power_watts after both.
            same(gpu_telemetry(&bytes).as_ref(), &bytes)?;
        }

        #[test]
        fn changed_events_are_never_read_differently(telemetry in changed(written::<GpuTelemetry>(TELEMETRY).1), progress in changed(written::<TrainingProgress>(PROGRESS).1)) {
            same(gpu_telemetry(&telemetry).as_ref(), &telemetry)?;
            same(training_progress(&progress).as_ref(), &progress)?;
        }
    }
}
