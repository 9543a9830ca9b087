//! Reads events in the form that this crate writes them, several times faster than a general parser.
//!
//! In: bytes, and an event whose texts' memory is used again. Out: that event, or `None` for anything in another form (other
//! order, white space, escapes, non-ASCII text, null, unknown fields, mistakes), which then goes to the general parser. It never
//! accepts what that one refuses and never reads a value differently; tests try both on the same bytes.

use crate::EventTime;
use crate::v1::{CounterScope, GpuTelemetry, JobLifecycle, Meter, Origin, ShareMethod, TrainingProgress};

/// The rest of a value that is still to be read. Only ASCII is ever taken.
///
/// It is of no use after a `None`: the general parser reads the value instead.
#[derive(Debug)]
pub struct JsonCursor<'a>(&'a [u8]);

/// Every byte of a word.
const EACH: u64 = 0x0101_0101_0101_0101;

/// Returns the number of bytes at the beginning that are printable ASCII which JSON does not escape.
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

const WHOLE_TENS: [u64; 9] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];

/// Returns the number that the digits at the beginning of eight bytes are, and how many those are.
#[inline]
fn leading_digits(word: u64) -> (u64, usize) {
    // Digits become their values, all others more than 9; of the bytes behind the first of these some may be wrong.
    let digits = word ^ (EACH * u64::from(b'0'));
    let odd = (digits.wrapping_add(EACH * 0x76) | digits) & (EACH * 0x80);
    let count = odd.trailing_zeros() / 8;
    // With zeros before them, so that there are eight: pairs, then fours, then all.
    let eight = digits.checked_shl(64 - 8 * count).unwrap_or(0);
    let pairs = eight.wrapping_mul((10 << 8) + 1) >> 8 & 0x00ff_00ff_00ff_00ff;
    let fours = pairs.wrapping_mul((100 << 16) + 1) >> 16 & 0x0000_ffff_0000_ffff;
    (fours.wrapping_mul((10_000 << 32) + 1) >> 32, count as usize)
}

impl<'a> JsonCursor<'a> {
    #[inline]
    pub const fn new(value: &'a [u8]) -> Self {
        Self(value)
    }

    /// Returns whether everything is read.
    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a number that a field or the object follows, as `serde_json` reads it into a double.
    #[inline]
    pub fn float(&mut self) -> Option<f64> {
        f64::read(self)
    }

    /// Reads a number without sign, fraction and exponent that a field or the object follows.
    #[inline]
    pub fn unsigned(&mut self) -> Option<u64> {
        u64::read(self)
    }

    #[inline]
    pub fn boolean(&mut self) -> Option<bool> {
        bool::read(self)
    }

    /// Reads a time in the form in which times are written.
    #[inline]
    pub fn time(&mut self) -> Option<EventTime> {
        EventTime::read(self)
    }

    /// Takes `text` if it comes next.
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

    /// Like [`Self::take`], for a text whose length is known when this is compiled, so that it is compared without a call.
    #[inline]
    fn take_chunk<const N: usize>(&mut self, text: &[u8; N]) -> bool {
        match self.0.split_first_chunk() {
            Some((here, rest)) if here == text => {
                self.0 = rest;
                true
            }
            _ => false,
        }
    }

    /// Reads a text of printable ASCII without escapes.
    #[inline]
    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.ascii()?).ok()
    }

    /// Like [`Self::text`], as bytes.
    #[inline]
    fn ascii(&mut self) -> Option<&'a [u8]> {
        let rest = self.0.strip_prefix(b"\"")?;
        let (text, rest) = rest.split_at_checked(plain(rest))?;
        self.0 = rest.strip_prefix(b"\"")?;
        Some(text)
    }

    /// Appends digits to a number, which is exact while it has at most 19. Returns how many came.
    ///
    /// How many digits a number has differs from event to event: eight at a time go without a branch that depends on it.
    #[inline]
    fn append_digits(&mut self, number: &mut u64) -> usize {
        let before = self.0.len();
        while let Some(word) = self.0.first_chunk() {
            let (value, count) = leading_digits(u64::from_le_bytes(*word));
            *number = number.wrapping_mul(WHOLE_TENS[count]).wrapping_add(value);
            self.0 = &self.0[count..];
            if count < 8 {
                return before - self.0.len();
            }
        }
        while let Some(digit) = self.0.first().map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit <= 9) {
            *number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
            self.0 = &self.0[1..];
        }
        before - self.0.len()
    }

    /// Digits as JSON has them: no leading zero. The value is exact while there are at most 19.
    #[inline]
    fn digits(&mut self) -> Option<(u64, usize)> {
        let (mut value, first) = (0, self.0.first());
        let count = self.append_digits(&mut value);
        (count == 1 || (count > 1 && first != Some(&b'0'))).then_some((value, count))
    }

    /// Returns true if a value ends here. A number that goes on (`1.`, `1e5`, `0x1`) is not at its end.
    #[inline]
    fn at_end_of_value(&self) -> bool {
        matches!(self.0.first(), Some(b',' | b'}' | b']'))
    }
}

/// A value of a field.
trait JsonField: Default {
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self>;

    /// Like [`Self::read`], into memory that is there already.
    #[inline]
    fn read_into(&mut self, cursor: &mut JsonCursor<'_>) -> Option<()> {
        *self = Self::read(cursor)?;
        Some(())
    }

    /// Like [`Self::read_into`], for an optional field.
    #[inline]
    fn read_option_into(slot: &mut Option<Self>, cursor: &mut JsonCursor<'_>) -> Option<()> {
        *slot = Some(Self::read(cursor)?);
        Some(())
    }

    /// Sets the value that serde fills in for an absent field.
    #[inline]
    fn reset(&mut self) {
        *self = Self::default();
    }
}

impl JsonField for String {
    #[inline]
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        cursor.text().map(str::to_owned)
    }

    #[inline]
    fn read_into(&mut self, cursor: &mut JsonCursor<'_>) -> Option<()> {
        let text = cursor.ascii()?;
        // Most texts of an event are those of the one before.
        if text != self.as_bytes() {
            self.clear();
            self.push_str(std::str::from_utf8(text).ok()?);
        }
        Some(())
    }

    #[inline]
    fn read_option_into(slot: &mut Option<Self>, cursor: &mut JsonCursor<'_>) -> Option<()> {
        slot.get_or_insert_default().read_into(cursor)
    }

    #[inline]
    fn reset(&mut self) {
        self.clear();
    }
}

impl JsonField for EventTime {
    #[inline]
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        Self::from_canonical(cursor.ascii()?)
    }

    #[inline]
    fn reset(&mut self) {
        *self = Self::missing();
    }
}

impl JsonField for bool {
    #[inline]
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        if cursor.take_chunk(b"true") { Some(true) } else { cursor.take_chunk(b"false").then_some(false) }
    }
}

impl JsonField for u64 {
    #[inline]
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        let (value, count) = cursor.digits()?;
        (count <= 19 && cursor.at_end_of_value()).then_some(value)
    }
}

impl JsonField for u32 {
    #[inline]
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        u64::read(cursor)?.try_into().ok()
    }
}

/// Powers of ten that a double holds exactly.
const TENS: [f64; 23] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21,
    1e22,
];

impl JsonField for f64 {
    #[inline]
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        let text = cursor.0;
        let negative = cursor.take_chunk(b"-");
        let (mut mantissa, mut count) = cursor.digits()?;
        let mut places = 0;
        if cursor.take_chunk(b".") {
            places = cursor.append_digits(&mut mantissa);
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
            if !cursor.take_chunk(b"+") {
                cursor.take_chunk(b"-");
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

impl<T: JsonField> JsonField for Option<T> {
    #[inline]
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        T::read(cursor).map(Some)
    }

    #[inline]
    fn read_into(&mut self, cursor: &mut JsonCursor<'_>) -> Option<()> {
        T::read_option_into(self, cursor)
    }
}

/// An entry of a list.
trait JsonElement: Sized {
    fn read_item(cursor: &mut JsonCursor<'_>) -> Option<Self>;
}

impl JsonElement for String {
    fn read_item(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        Self::read(cursor)
    }
}

impl JsonElement for Option<f64> {
    fn read_item(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        if cursor.take_chunk(b"null") { Some(None) } else { f64::read(cursor).map(Some) }
    }
}

impl<T: JsonElement> JsonField for Vec<T> {
    fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
        let mut list = Self::new();
        if !cursor.take_chunk(b"[") {
            return None;
        }
        if cursor.take_chunk(b"]") {
            return Some(list);
        }
        loop {
            list.push(T::read_item(cursor)?);
            if cursor.take_chunk(b"]") {
                return Some(list);
            }
            if !cursor.take_chunk(b",") {
                return None;
            }
        }
    }
}

macro_rules! names {
    ($kind:ty, $($name:literal => $value:ident),+) => {
        impl JsonField for $kind {
            #[inline]
            fn read(cursor: &mut JsonCursor<'_>) -> Option<Self> {
                let name = cursor.ascii()?;
                $(
                    if name == $name.as_bytes() {
                        return Some(Self::$value);
                    }
                )+
                None
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
names!(JobLifecycle, "started" => Started, "progress" => Progress, "finished" => Finished);
names!(CounterScope, "global" => Global, "rank" => Rank);

/// The name of a field as it is written, up to its value.
macro_rules! name {
    ($field:ident) => {{
        const NAME: &str = concat!(stringify!($field), "\":");
        const BYTES: &[u8; NAME.len()] = NAME.as_bytes().first_chunk().expect("a text is as long as it is");
        BYTES
    }};
}

/// Fields in the order in which they are written; each may be absent, none may come twice.
macro_rules! fields {
    ($function:ident, $event:ident, $($field:ident),+ $(,)?) => {
        /// Reads `value` into `event`. If it returns `None`, parts of the event are overwritten.
        pub fn $function(event: &mut $event, value: &[u8]) -> Option<()> {
            let mut cursor = JsonCursor::new(value);
            if !cursor.take_chunk(b"{\"") {
                return None;
            }
            let mut ended = false;
            $(
                if !ended && cursor.take_chunk(name!($field)) {
                    event.$field.read_into(&mut cursor)?;
                    if !cursor.take_chunk(b",\"") {
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
    use crate::decode::DecodableEvent;

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
    fn digits_are_a_number_up_to_the_first_other_byte() {
        for number in [0_u64, 7, 42, 999, 1_234, 90_009, 123_456, 7_654_321, 99_999_999, 10_000_000] {
            let text = number.to_string();
            assert_eq!(leading_digits(u64::from_le_bytes(*b"00000000")), (0, 8));
            for byte in (0..=255_u8).filter(|byte| !byte.is_ascii_digit()) {
                let mut bytes = [byte; 8];
                bytes[..text.len()].copy_from_slice(text.as_bytes());
                assert_eq!(leading_digits(u64::from_le_bytes(bytes)), (number, text.len()), "{text} before {byte}");
                if text.len() < 7 {
                    bytes[text.len() + 1] = b'5';
                    assert_eq!(leading_digits(u64::from_le_bytes(bytes)), (number, text.len()), "{text} before {byte} and 5");
                }
            }
        }
        for text in ["12345678901234567890,", "123456789,12345678", "1,", "12345678", ",123", ""] {
            let (mut cursor, mut number) = (JsonCursor::new(text.as_bytes()), 0);
            let expected = text.bytes().take_while(u8::is_ascii_digit).count();
            assert_eq!(cursor.append_digits(&mut number), expected, "{text}");
            assert_eq!((number, cursor.0), (text[..expected].parse().unwrap_or(0), &text.as_bytes()[expected..]), "{text}");
        }
    }

    #[test]
    fn plain_text_ends_at_any_other_byte() {
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

    fn same<T: DecodableEvent + Serialize>(fast: Option<&T>, bytes: &[u8]) -> Result<(), TestCaseError> {
        if let Some(fast) = fast {
            prop_assert_eq!(fast.check_plain(), fast.check());
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
            // Order of declaration: tenure is after gpu_index, power_watts after both.
            same(gpu_telemetry(&bytes).as_ref(), &bytes)?;
        }

        #[test]
        fn changed_events_are_never_read_differently(telemetry in changed(written::<GpuTelemetry>(TELEMETRY).1), progress in changed(written::<TrainingProgress>(PROGRESS).1)) {
            same(gpu_telemetry(&telemetry).as_ref(), &telemetry)?;
            same(training_progress(&progress).as_ref(), &progress)?;
        }
    }
}
