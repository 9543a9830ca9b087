//! Units of measurement as people write them, and numbers that may be absent.

use std::ops::Range;

use crate::absent::is_absent_text;
use crate::joined_units::{JoinedUnit, WORDS_IN_PREFIXES, joined_units, without_quantity};
use crate::quantity::split_unit;
pub(crate) use crate::words::{lowercase_words, word_places};

/// The measured quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dimension {
    Power,
    Energy,
    Ratio,
    Clock,
    Bytes,
    BytesPerSecond,
    Temperature,
    Duration,
    /// A plain number.
    Count,
}

/// value in our unit = value × scale + offset.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    pub name: &'static str,
    pub dimension: Dimension,
    scale: f64,
    offset: f64,
}

const fn unit(name: &'static str, dimension: Dimension, scale: f64) -> Unit {
    Unit { name, dimension, scale, offset: 0.0 }
}

use Dimension::{Bytes, BytesPerSecond, Clock, Duration, Energy, Power, Ratio, Temperature};

// The first of a dimension is our own. Letter case matters: mW is not MW.
const UNITS: &[Unit] = &[
    unit("W", Power, 1.0),
    unit("mW", Power, 1e-3),
    unit("uW", Power, 1e-6),
    unit("µW", Power, 1e-6),
    unit("kW", Power, 1e3),
    unit("MW", Power, 1e6),
    unit("J", Energy, 1.0),
    unit("mJ", Energy, 1e-3),
    unit("uJ", Energy, 1e-6),
    unit("µJ", Energy, 1e-6),
    unit("kJ", Energy, 1e3),
    unit("MJ", Energy, 1e6),
    unit("GJ", Energy, 1e9),
    unit("mWh", Energy, 3.6),
    unit("Wh", Energy, 3600.0),
    unit("kWh", Energy, 3.6e6),
    unit("MWh", Energy, 3.6e9),
    unit("ratio", Ratio, 1.0),
    unit("%", Ratio, 0.01),
    unit("MHz", Clock, 1.0),
    unit("Hz", Clock, 1e-6),
    unit("kHz", Clock, 1e-3),
    unit("GHz", Clock, 1e3),
    unit("B", Bytes, 1.0),
    unit("kB", Bytes, 1e3),
    unit("MB", Bytes, 1e6),
    unit("GB", Bytes, 1e9),
    unit("KiB", Bytes, 1024.0),
    unit("MiB", Bytes, 1_048_576.0),
    unit("GiB", Bytes, 1_073_741_824.0),
    unit("B/s", BytesPerSecond, 1.0),
    unit("kB/s", BytesPerSecond, 1e3),
    unit("MB/s", BytesPerSecond, 1e6),
    unit("GB/s", BytesPerSecond, 1e9),
    unit("KiB/s", BytesPerSecond, 1024.0),
    unit("MiB/s", BytesPerSecond, 1_048_576.0),
    unit("GiB/s", BytesPerSecond, 1_073_741_824.0),
    unit("C", Temperature, 1.0),
    Unit { name: "K", dimension: Temperature, scale: 1.0, offset: -273.15 },
    Unit { name: "F", dimension: Temperature, scale: 1.0 / 1.8, offset: -32.0 / 1.8 },
    unit("s", Duration, 1.0),
    unit("ms", Duration, 1e-3),
    unit("us", Duration, 1e-6),
    unit("µs", Duration, 1e-6),
    unit("ns", Duration, 1e-9),
    unit("min", Duration, 60.0),
    unit("h", Duration, 3600.0),
];

/// Further spellings, where letter case leaves no doubt: `mw` may be milliwatts or megawatts and is not one of them.
const SPELLINGS: &[(&str, &str)] = &[
    ("w", "W"),
    ("watt", "W"),
    ("Watt", "W"),
    ("WATTS", "W"),
    ("watts", "W"),
    ("Watts", "W"),
    ("kw", "kW"),
    ("KW", "kW"),
    ("Kw", "kW"),
    ("μW", "µW"),
    ("uw", "µW"),
    ("UW", "µW"),
    ("milliwatts", "mW"),
    ("kilowatts", "kW"),
    ("joule", "J"),
    ("Joule", "J"),
    ("joules", "J"),
    ("Joules", "J"),
    ("j", "J"),
    ("Ws", "J"),
    ("J/s", "W"),
    ("mJ/s", "mW"),
    ("kJ/s", "kW"),
    ("Wh/h", "W"),
    ("kWh/h", "kW"),
    ("kj", "kJ"),
    ("KJ", "kJ"),
    ("Kj", "kJ"),
    ("μJ", "µJ"),
    ("uj", "µJ"),
    ("UJ", "µJ"),
    ("wh", "Wh"),
    ("WH", "Wh"),
    ("kwh", "kWh"),
    ("KWH", "kWh"),
    ("KWh", "kWh"),
    ("Kwh", "kWh"),
    ("hz", "Hz"),
    ("HZ", "Hz"),
    ("khz", "kHz"),
    ("KHz", "kHz"),
    ("KHZ", "kHz"),
    ("mhz", "MHz"),
    ("Mhz", "MHz"),
    ("MHZ", "MHz"),
    ("ghz", "GHz"),
    ("Ghz", "GHz"),
    ("KB", "kB"),
    ("Byte", "B"),
    ("byte", "B"),
    ("Bytes", "B"),
    ("bytes", "B"),
    ("mib", "MiB"),
    ("gib", "GiB"),
    ("percent", "%"),
    ("pct", "%"),
    ("celsius", "C"),
    ("Celsius", "C"),
    ("degC", "C"),
    ("deg C", "C"),
    ("degrees C", "C"),
    ("ºC", "C"),
    ("°C", "C"),
    ("°F", "F"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("minutes", "min"),
    ("hours", "h"),
];

/// Units of power and energy in other languages, in small letters. Symbols in which letter case distinguishes milli from mega are
/// [`CYRILLIC_SYMBOLS`].
const FOREIGN_SPELLINGS: &[(&str, &str)] = &[
    ("vatio", "W"),
    ("vatios", "W"),
    ("vátio", "W"),
    ("vátios", "W"),
    ("wat", "W"),
    ("waty", "W"),
    ("watów", "W"),
    ("ватт", "W"),
    ("ватта", "W"),
    ("ватты", "W"),
    ("ваттах", "W"),
    ("βατ", "W"),
    ("瓦", "W"),
    ("瓦特", "W"),
    ("ワット", "W"),
    ("와트", "W"),
    ("miliwatt", "mW"),
    ("miliwatts", "mW"),
    ("milivatio", "mW"),
    ("milivatios", "mW"),
    ("milivátios", "mW"),
    ("miliwat", "mW"),
    ("miliwaty", "mW"),
    ("miliwatów", "mW"),
    ("милливатт", "mW"),
    ("милливатты", "mW"),
    ("милливаттах", "mW"),
    ("毫瓦", "mW"),
    ("毫瓦特", "mW"),
    ("ミリワット", "mW"),
    ("밀리와트", "mW"),
    ("microvatios", "uW"),
    ("микроватт", "uW"),
    ("微瓦", "uW"),
    ("マイクロワット", "uW"),
    ("kilowat", "kW"),
    ("kilowaty", "kW"),
    ("kilowatów", "kW"),
    ("kilovatio", "kW"),
    ("kilovatios", "kW"),
    ("quilowatt", "kW"),
    ("quilowatts", "kW"),
    ("quilovátios", "kW"),
    ("киловатт", "kW"),
    ("киловатты", "kW"),
    ("киловаттах", "kW"),
    ("квт", "kW"),
    ("千瓦", "kW"),
    ("千瓦特", "kW"),
    ("キロワット", "kW"),
    ("킬로와트", "kW"),
    ("megavatio", "MW"),
    ("megavatios", "MW"),
    ("megawat", "MW"),
    ("megawaty", "MW"),
    ("мегаватт", "MW"),
    ("мегаватты", "MW"),
    ("兆瓦", "MW"),
    ("百万瓦", "MW"),
    ("メガワット", "MW"),
    ("메가와트", "MW"),
    ("julios", "J"),
    ("joulen", "J"),
    ("джоуль", "J"),
    ("джоули", "J"),
    ("джоулях", "J"),
    ("焦", "J"),
    ("焦耳", "J"),
    ("ジュール", "J"),
    ("milijulios", "mJ"),
    ("миллиджоуль", "mJ"),
    ("миллиджоули", "mJ"),
    ("毫焦", "mJ"),
    ("毫焦耳", "mJ"),
    ("ミリジュール", "mJ"),
    ("kilojulios", "kJ"),
    ("килоджоуль", "kJ"),
    ("килоджоули", "kJ"),
    ("кдж", "kJ"),
    ("千焦", "kJ"),
    ("千焦耳", "kJ"),
    ("キロジュール", "kJ"),
    ("megajulios", "MJ"),
    ("мегаджоуль", "MJ"),
    ("мегаджоули", "MJ"),
    ("兆焦", "MJ"),
    ("メガジュール", "MJ"),
    ("vatios-hora", "Wh"),
    ("vatios hora", "Wh"),
    ("ватт-час", "Wh"),
    ("втч", "Wh"),
    ("вт·ч", "Wh"),
    ("вт*ч", "Wh"),
    ("вт⋅ч", "Wh"),
    ("瓦时", "Wh"),
    ("瓦時", "Wh"),
    ("瓦·时", "Wh"),
    ("瓦小时", "Wh"),
    ("ワット時", "Wh"),
    ("ワットアワー", "Wh"),
    ("와트시", "Wh"),
    ("kilovatio-hora", "kWh"),
    ("kilovatios-hora", "kWh"),
    ("kilovatio hora", "kWh"),
    ("kilovatios hora", "kWh"),
    ("киловатт-час", "kWh"),
    ("киловатт-часы", "kWh"),
    ("квтч", "kWh"),
    ("квт·ч", "kWh"),
    ("квт*ч", "kWh"),
    ("квт⋅ч", "kWh"),
    ("квт-ч", "kWh"),
    ("квт ч", "kWh"),
    ("квт·год", "kWh"),
    ("千瓦时", "kWh"),
    ("千瓦時", "kWh"),
    ("千瓦·时", "kWh"),
    ("千瓦小时", "kWh"),
    ("キロワット時", "kWh"),
    ("キロワットアワー", "kWh"),
    ("킬로와트시", "kWh"),
];

/// Symbols in Cyrillic letters, of which case matters.
const CYRILLIC_SYMBOLS: &[(&str, &str)] = &[
    ("Вт", "W"),
    ("вт", "W"),
    ("ВТ", "W"),
    ("мВт", "mW"),
    ("мкВт", "µW"),
    ("МВт", "MW"),
    ("Дж", "J"),
    ("дж", "J"),
    ("мДж", "mJ"),
    ("МДж", "MJ"),
];

/// Returns the name of a unit of another language.
fn name_of_foreign(spelling: &str) -> Option<&'static str> {
    if spelling.len() < 3 {
        return None;
    }
    let symbol = CYRILLIC_SYMBOLS.iter().find(|(symbol, _)| *symbol == spelling);
    let found = symbol.or_else(|| {
        let lower = spelling.to_lowercase();
        FOREIGN_SPELLINGS.iter().find(|(word, _)| *word == lower)
    });
    found.map(|(_, name)| *name)
}

impl Unit {
    /// Returns a unit by its name or another spelling of it.
    pub fn by_name(name: &str) -> Option<Self> {
        let name = SPELLINGS.iter().find(|(spelling, _)| *spelling == name).map_or(name, |(_, name)| *name);
        let of_name = |name: &str| UNITS.iter().copied().find(|unit| unit.name == name);
        of_name(name).or_else(|| of_name(name_of_foreign(name)?))
    }

    /// Returns whether values in both units are the same numbers: `Ws` and `J`.
    pub fn is_same(self, other: Self) -> bool {
        (self.dimension, self.scale, self.offset) == (other.dimension, other.scale, other.offset)
    }

    /// Returns whether it is the unit of the events.
    pub fn is_base(self) -> bool {
        (self.scale, self.offset) == (1.0, 0.0)
    }

    /// Returns a value of this unit in the unit of the events.
    pub fn to_base_unit(self, value: f64) -> f64 {
        // Division keeps 32402 mW at 32.402 W; a product with 1e-3 would not.
        let scaled = if self.scale < 1.0 { value / (1.0 / self.scale).round() } else { value * self.scale };
        if self.offset == 0.0 { scaled } else { value * self.scale + self.offset }
    }
}

impl Dimension {
    /// Returns whether it is power or energy, in whose units a false reading looks like a true one.
    pub const fn is_electrical(self) -> bool {
        matches!(self, Self::Power | Self::Energy)
    }

    /// Returns the units of this dimension, for error messages.
    pub fn units(self) -> String {
        let names: Vec<&str> = UNITS.iter().filter(|unit| unit.dimension == self).map(|unit| unit.name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// Returns the text in the last brackets at the end of a column's name, without `in `.
fn last_brackets(name: &str) -> Option<&str> {
    let inside = name.trim_end().strip_suffix([']', ')', '）', '］', '】'])?;
    let inside = inside.rsplit_once(['[', '(', '（', '［', '【'])?.1.trim();
    Some(inside.strip_prefix("in ").unwrap_or(inside).trim())
}

/// Returns the unit in the last brackets of a column's name: `Power [mW]`, `Temperature (edge) (C)`, `Power (in mW)`,
/// `Energy (kW·h)`.
pub fn bracketed_unit(name: &str) -> Option<Unit> {
    let inside = last_brackets(name)?;
    Unit::by_name(inside).or_else(|| power_hours(inside)?.1)
}

/// Returns the end of a text that joins a unit of power and one of time, such as `kW·h`, with the unit of energy that they make.
/// Returns `None` if that unit is not known here. Seconds and minutes need a sign of a product, since `power_W_s` may state how
/// often.
fn power_hours(text: &str) -> Option<(&str, Option<Unit>)> {
    let text = text.trim();
    ["h", "hr", "hrs", "min", "s"].into_iter().find_map(|time| {
        let apart = text.strip_suffix(time)?;
        let before = apart.trim_end_matches([' ', '·', '⋅', '*', '.', '-', '_']);
        let is_product = time.starts_with('h') || apart[before.len()..].contains(['·', '⋅', '*']);
        let power = before.rsplit(|c: char| !c.is_alphanumeric()).next().filter(|_| before.len() < apart.len() && is_product)?;
        let unit = Unit::by_name(power).filter(|unit| unit.dimension == Power)?;
        let time = if time.starts_with('h') { "h" } else { time };
        Some((&text[before.len() - power.len()..], Unit::by_name(&format!("{}{time}", unit.name))))
    })
}

/// Returns the unit after the last separator of a column's name: `power_mW`, `Power, W`, `power.draw/W`, `energy in kWh`.
pub fn suffix_unit(name: &str) -> Option<Unit> {
    let name = name.trim();
    // Several words: `kilovatios hora`.
    let words = name.rsplit_once(',').map(|(_, unit)| unit.trim()).filter(|unit| unit.contains(' '));
    let of_words = || words.and_then(Unit::by_name).or_else(|| joined_foreign_unit(name));
    let (_, unit) = name.rsplit_once(UNIT_SEPARATORS).unwrap_or(("", name));
    let last = Unit::by_name(unit.trim()).filter(|_| unit.len() < name.len() && !is_mega_by_capitals(name, unit.trim()));
    last.or_else(of_words)
}

/// Characters that may be before the unit at the end of a column's name.
const UNIT_SEPARATORS: [char; 9] = ['_', ',', '/', '.', '-', ' ', '、', '，', '：'];

/// Numbers and prefixes of units in writings without separators.
const JOINED_PREFIXES: [char; 10] = ['十', '百', '千', '万', '萬', '億', '亿', '毫', '微', '兆'];

/// Returns the unit that ends a name in a writing without separators, `功率千瓦`, unless a prefix that is not known is before it.
fn joined_foreign_unit(name: &str) -> Option<Unit> {
    let is_joined = |word: &str| word.starts_with(|first: char| first >= '\u{2e80}');
    let ends = FOREIGN_SPELLINGS.iter().filter(|(word, _)| is_joined(word) && name.len() > word.len() && name.ends_with(*word));
    let (word, unit) = ends.max_by_key(|(word, _)| word.len())?;
    let before = &name[..name.len() - word.len()];
    let has_prefix = before.ends_with(JOINED_PREFIXES) || before.ends_with("キロ") || before.ends_with("ミリ");
    Unit::by_name(unit).filter(|_| !has_prefix)
}

/// Prefixes of thousands of units, in small letters.
const THOUSANDS_PREFIXES: [&str; 25] = [
    "kilo",
    "quilo",
    "milli",
    "mili",
    "mega",
    "micro",
    "mikro",
    "giga",
    "кило",
    "милли",
    "мега",
    "микро",
    "гига",
    "千",
    "万",
    "萬",
    "毫",
    "微",
    "兆",
    "キロ",
    "ミリ",
    "メガ",
    "킬로",
    "밀리",
    "메가",
];
/// The rest of a unit of power or energy after a prefix that is a word, in small letters, and how it begins.
const UNIT_RESTS: [&str; 8] = ["w", "j", "wh", "ws", "wat", "вт", "втч", "дж"];
const UNIT_STEMS: [&str; 12] = ["watt", "joule", "vatio", "vátio", "julio", "ват", "джоул", "瓦", "焦", "ワ", "ジ", "와"];
/// The same of other units that power may be given in, which are known in brackets only.
const RESTS_IN_BRACKETS: [&str; 8] = ["", "v", "va", "var", "volt", "volts", "voltamp", "voltampere"];
/// Beginnings of prefixed units in Cyrillic letters, in lower case.
const CYRILLIC_PREFIXED: [&str; 7] = ["квт", "мвт", "мквт", "гвт", "кдж", "мдж", "гдж"];

/// Returns the unknown unit in the last brackets of a name, or behind its last separator, if it begins with a
/// prefix of thousands: `kilo W` of `power [kilo W]`, `МВТ` of `мощность, МВТ`. A prefix alone is one in brackets only:
/// `power_giga` may be of a machine.
fn prefixed_unit(name: &str) -> Option<&str> {
    let brackets = last_brackets(name);
    let is_prefixed = |text: &&str| {
        let lower = text.to_lowercase();
        let rest_of = |prefix: &&str| lower.strip_prefix(*prefix).map(|rest| rest.trim_start_matches([' ', '-', '.', '·']));
        let is_unit = |rest: &str| {
            let word = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            UNIT_RESTS.contains(&word)
                || UNIT_STEMS.iter().any(|stem| word.starts_with(stem))
                || brackets.is_some() && RESTS_IN_BRACKETS.contains(&word)
        };
        THOUSANDS_PREFIXES.iter().filter_map(rest_of).any(is_unit)
            || CYRILLIC_PREFIXED.iter().any(|symbol| lower.starts_with(symbol))
    };
    let last = brackets.or_else(|| name.rsplit_once(UNIT_SEPARATORS).map(|(_, last)| last.trim())).unwrap_or(name);
    let joined = || JOINED_PREFIXES.iter().find_map(|prefix| Some(&name[name.rfind(*prefix)?..])).filter(|_| brackets.is_none());
    let is_unknown = |text: &&str| Unit::by_name(text).is_none() && spelled_units(text).is_empty();
    Some(last).filter(is_prefixed).or_else(|| joined().filter(is_prefixed)).filter(is_unknown)
}

/// Returns a power of ten by which a name states that its values are multiplied or divided: `*1000` of `power *1000`, `/1000` of
/// `power (/1000)`, `1e3` of `power [1e3]`.
fn bare_factor(name: &str) -> Option<&str> {
    let ending = || {
        let at = name.rfind(['*', '×', '÷', '/'])?;
        let text = name[at..].trim_end_matches([')', ']', ' ']);
        let mut letters = text.chars();
        // `node/10` may be a place.
        let is_sign = letters.next() != Some('/') || name[..at].ends_with(['(', '[', ' ']);
        (is_sign && is_power_of_ten(letters.as_str().trim())).then_some(text)
    };
    let has_exponent = |text: &&str| text.starts_with("10^") || text.starts_with("1e") || text.starts_with("1E");
    ending().or_else(|| last_brackets(name).filter(has_exponent).filter(|text| is_thousands(text)))
}

/// Returns whether a word may be milli as well as mega, since the name has capitals only: `POWER_MW`.
fn is_mega_by_capitals(name: &str, word: &str) -> bool {
    matches!(word, "MW" | "MJ") && name.trim() != word && !name.contains(char::is_lowercase)
}

/// Returns the unit that the last word of a name is, without a separator before it: `durationMs`, `smClockMHz`, `utilPct`.
/// `elapsedMin` may be the least one.
fn joined_suffix_unit(name: &str) -> Option<Unit> {
    let name = name.trim_end();
    let places = word_places(name);
    let joins = |at: usize| at > 0 && places[at - 1].end == places[at].start;
    let last = places.len().checked_sub(1).filter(|last| joins(*last) && places[*last].end == name.len())?;
    // `MHz` is `M` and `Hz`, `MiB` is `Mi` and `B`.
    let before = &name[places[last - 1].clone()];
    let is_prefix = before.len() == 1 && before.starts_with(char::is_alphabetic) || matches!(before, "Ki" | "Mi" | "Gi");
    let first = if is_prefix { last - 1 } else { last };
    let mut start = places[first].start;
    // `GPUMHz` is `GPUM` and `Hz`; the `k` of `clockHz` is the clock's.
    let is_word = WORDS_IN_PREFIXES.contains(&before.to_ascii_lowercase().as_str());
    if !is_prefix && !is_word && matches!(&name[start..], "Hz" | "B") && before.ends_with(['k', 'K', 'M', 'G']) {
        start -= 1;
    }
    let text = &name[start..];
    if !joins(first) || text.len() < 2 || text.eq_ignore_ascii_case("min") {
        return None;
    }
    Unit::by_name(text).or_else(|| Unit::by_name(&text.to_ascii_lowercase()))
}

/// Prefixes of units that are spelled out.
const SPELLED_PREFIXES: [(&str, &str); 12] = [
    ("pico", "p"),
    ("nano", "n"),
    ("micro", "u"),
    ("milli", "m"),
    ("centi", "c"),
    ("deci", "d"),
    ("deca", "da"),
    ("hecto", "h"),
    ("kilo", "k"),
    ("mega", "M"),
    ("giga", "G"),
    ("tera", "T"),
];

/// The longest unit that is spelled out, in words: `kilo watt hours`.
const LONGEST_SPELLING: usize = 3;

/// Returns the symbol of a unit that is spelled out in small letters: `kWh` of `kilowatthours`, `nJ` of `nanojoule`. A plain
/// `watt` or `joule` states no more than the field does, and is none.
fn spelled_symbol(text: &str) -> Option<String> {
    let prefixed = SPELLED_PREFIXES.iter().find_map(|(prefix, letter)| Some((*letter, text.strip_prefix(*prefix)?)));
    let (letter, base) = prefixed.unwrap_or(("", text));
    let symbol = match base {
        "watt" | "watts" if !letter.is_empty() => "W",
        "joule" | "joules" if !letter.is_empty() => "J",
        "watthour" | "watthours" | "wattshour" | "wattshours" | "watthr" | "watthrs" | "watth" | "wattstunde" | "wattstunden" => {
            "Wh"
        }
        "wattminute" | "wattminutes" => "Wmin",
        "wattsecond" | "wattseconds" | "wattssecond" | "wattsseconds" | "wattsec" | "wattsecs" => "Ws",
        _ => return None,
    };
    Some(format!("{letter}{symbol}"))
}

/// Endings of units whose prefix is a letter, and their symbols.
const SPELLED_BASES: [(&str, &str); 6] =
    [("watts", "W"), ("watt", "W"), ("joules", "J"), ("joule", "J"), ("whrs", "Wh"), ("whr", "Wh")];

/// Returns the symbol of a unit that is a letter before a word: `kW` of `kWatts`, `MWh` of `MWhr`; `mw`, which is none, of
/// `mwatts`. `is_joined`: a word is before it, so that a capital may be the hump's.
fn lettered_symbol(text: &str, is_joined: bool) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let (base, symbol) = SPELLED_BASES.iter().find(|(base, _)| lower.ends_with(base))?;
    let (letter, rest) = text.split_at_checked(text.len() - base.len())?;
    let has_case = rest.starts_with(char::is_uppercase) && rest.contains(char::is_lowercase);
    match letter {
        "" => base.starts_with("wh").then(|| (*symbol).to_owned()),
        "k" | "K" => Some(format!("k{symbol}")),
        "u" | "µ" | "μ" => Some(format!("u{symbol}")),
        "m" if has_case => Some(format!("m{symbol}")),
        "M" if has_case && !is_joined => Some(format!("M{symbol}")),
        "m" | "M" => Some(format!("m{symbol}").to_ascii_lowercase()),
        "d" => Some(format!("d{symbol}")),
        "c" | "h" | "n" | "da" | "G" if has_case => Some(format!("{letter}{symbol}")),
        _ => None,
    }
}

/// Returns the units of power and energy that a name spells out in one or several words (`powerMilliwatts`, `kilowatt-hours`):
/// the words, and the unit, if it is one of those known here.
fn spelled_units(name: &str) -> Vec<(&str, Option<Unit>)> {
    let places = word_places(name);
    let mut found = Vec::new();
    let mut first = 0;
    while first < places.len() {
        let joins = |at: usize| at > 0 && places[at - 1].end == places[at].start;
        let symbol_to = |last: usize| {
            let text: String = places[first..=last].iter().map(|place| &name[place.clone()]).collect();
            let lower = text.to_ascii_lowercase();
            let lettered = || {
                let is_one = (first + 1..=last).all(joins);
                let letter = without_quantity(&name[places[first].clone()]);
                let rest = &name[places[first].end..places[last].end];
                let is_joined = joins(first) || letter.len() < places[first].len();
                is_one.then(|| lettered_symbol(&format!("{letter}{rest}"), is_joined))?
            };
            spelled_symbol(if last == first { without_quantity(&lower) } else { &lower }).or_else(lettered)
        };
        let end = places.len().min(first + LONGEST_SPELLING);
        let longest = (first..end).rev().find_map(|last| Some((last, symbol_to(last)?)));
        let Some((last, symbol)) = longest else {
            first += 1;
            continue;
        };
        let start = places[first].end - without_quantity(&name[places[first].clone()]).len();
        found.push((&name[start..places[last].end], Unit::by_name(&symbol)));
        first = last + 1;
    }
    found
}

/// Returns the unit of a dimension that a column's name has outside of its last brackets: after the last separator or, of
/// power and energy, as the whole name or a word that cannot mean anything else (`power_mW_avg`, `powerMilliwatts`).
pub fn worded_unit(name: &str, dimension: Dimension) -> Option<Unit> {
    let fits = |unit: &Unit| unit.dimension == dimension;
    let is_electrical = dimension.is_electrical();
    let all_spelled = spelled_units(name);
    let mut spelled = all_spelled.iter().filter_map(|(_, unit)| *unit).filter(|unit| is_electrical && fits(unit));
    if let Some(first) = spelled.next() {
        return spelled.all(|other| other == first).then_some(first);
    }
    let whole = || Unit::by_name(name.trim()).filter(|_| is_electrical);
    let humped = || joined_suffix_unit(name).filter(|_| !is_electrical);
    if let Some(unit) =
        suffix_unit(name).filter(fits).or_else(humped).filter(fits).or_else(whole).or_else(|| power_hours(name)?.1).filter(fits)
    {
        return Some(unit);
    }
    // The `watt` of `watt_hours` is a part of another unit.
    let is_of_spelled = |word: &str| all_spelled.iter().any(|(text, _)| words(text).any(|part| part == word));
    // `W` and `J` may be anything, and are the units that a column without one is in.
    let written = words(name).filter(|word| word.chars().count() >= 2 && !is_of_spelled(word)).filter_map(Unit::by_name);
    let humped = joined_units(name).into_iter().filter_map(|found| match found {
        JoinedUnit::Known(_, unit) => Some(unit),
        JoinedUnit::Foreign(_) | JoinedUnit::Ambiguous(_) => None,
    });
    let mut units = written.chain(humped).filter(|unit| is_electrical && fits(unit));
    let first = units.next()?;
    units.all(|other| other == first).then_some(first)
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// Multiples of counts, as letters and as words.
const COUNT_LETTERS: [&str; 7] = ["k", "K", "M", "B", "G", "bn", "Mio"];
const COUNT_WORDS: [&str; 6] = ["thousand", "thousands", "million", "millions", "billion", "billions"];
/// The same in small letters, which have no other meaning directly behind a counted thing.
const SMALL_COUNT_LETTERS: [&str; 2] = ["m", "b"];
/// Words that a letter behind them makes a multiple of.
const COUNTED_WORDS: [&str; 7] = ["images", "samples", "sequences", "steps", "token", "tokens", "total"];
/// Words behind those, which distinguish nothing: `tokens_seen_m`, `tokens_so_far_b`.
const WORDS_BEHIND_COUNTED: [&str; 3] = ["far", "processed", "seen"];
/// Words that a letter behind them distinguishes: `samples_group_b`.
const LETTERED_WORDS: [&str; 27] = [
    "arm", "batch", "case", "class", "device", "expert", "fold", "gpu", "group", "head", "host", "job", "layer", "model", "node",
    "part", "phase", "rank", "replica", "run", "shard", "split", "stage", "top", "type", "variant", "worker",
];

/// Returns the letter at the end of a name in which something is counted, if it states a multiple: `M` of `tokens_M`,
/// `tokens_seen_M` and `tokensM`, `b` of `tokens_b`. That of `tokens_test_b` is of a test.
fn count_ending(name: &str) -> Option<&str> {
    let is_one = |list: &[&str], word: &str| list.iter().any(|known| word.eq_ignore_ascii_case(known));
    let name = name.trim_end();
    let places = word_places(name);
    let (last, before) = places.split_last().filter(|(last, _)| last.end == name.len())?;
    let letter = &name[last.clone()];
    let counts = before.iter().any(|place| is_one(&COUNTED_WORDS, &name[place.clone()]));
    let follows = |list: &[&str]| before.last().is_some_and(|place| is_one(list, &name[place.clone()]));
    let is_small = || SMALL_COUNT_LETTERS.contains(&letter) && (follows(&COUNTED_WORDS) || follows(&WORDS_BEHIND_COUNTED));
    let is_large = || COUNT_LETTERS.contains(&letter) && !follows(&LETTERED_WORDS);
    (counts && (is_large() || is_small())).then_some(letter)
}

/// Returns the multiple in which the name of a column states that it counts: `M` of `tokens (M)`, `tokens_M`, `Mtokens` and `M
/// tokens`, `millions` of `tokens in millions`, `1e6` of `tokens (1e6)`.
pub(crate) fn count_multiple(name: &str) -> Option<&str> {
    let is_one = |list: &[&str], word: &str| list.iter().any(|known| word.eq_ignore_ascii_case(known));
    let bracketed = last_brackets(name).filter(|inside| COUNT_LETTERS.contains(inside) || is_thousands(inside));
    // `M_tokens` is in millions; in `run_M_tokens` the letter may be of the run.
    let mut first = words(name);
    let leading = first.next().filter(|letter| COUNT_LETTERS.contains(letter));
    let leading = leading.filter(|_| first.next().is_some_and(|word| is_one(&COUNTED_WORDS, word)));
    let is_prefix = |word: &str, letter: &str| word.strip_prefix(letter).is_some_and(|rest| is_one(&COUNTED_WORDS, rest));
    // `btokens` may be those of a batch.
    let letters = || COUNT_LETTERS.into_iter().chain(["m"]);
    let prefix = || words(name).find_map(|word| letters().find(|letter| is_prefix(word, letter)));
    let worded = || words(name).find(|word| is_one(&COUNT_WORDS, word));
    bracketed.or_else(worded).or_else(|| count_ending(name)).or(leading).or_else(prefix)
}

/// Returns whether a text is a power of ten of at least a thousand: `x1000`, `1e6`, `10^9`, `1000s`.
fn is_thousands(text: &str) -> bool {
    let digits = text.trim_start_matches(['x', '×', '*', ' ']).trim_end_matches('s').replace([',', ' '], "");
    let of_ten = digits.strip_prefix("10^").or_else(|| digits.strip_prefix("1e")).or_else(|| digits.strip_prefix("1E"));
    match of_ten {
        Some(exponent) => exponent.parse::<u32>().is_ok_and(|exponent| exponent >= 3),
        None => digits.len() > 3 && is_power_of_ten(&digits),
    }
}

/// Units that are none of power or energy that is read here. `V` and `A` may name a feed or a phase as well.
pub(crate) const FOREIGN_UNITS: [&str; 49] = [
    "hp",
    "HP",
    "PS",
    "dBW",
    "horsepower",
    "dJ",
    "hJ",
    "dWh",
    "daWh",
    "daW",
    "Wmin",
    "kWmin",
    "cal",
    "calories",
    "therms",
    "BTU/h",
    "VA",
    "kVA",
    "var",
    "VAR",
    "kvar",
    "kVAR",
    "mV",
    "kV",
    "mA",
    "Ah",
    "dW",
    "cW",
    "hW",
    "nW",
    "GW",
    "dBm",
    "nJ",
    "cJ",
    "mWs",
    "kWs",
    "uWh",
    "µWh",
    "GWh",
    "BTU",
    "Btu",
    "kcal",
    "eV",
    "erg",
    "VAh",
    "kVAh",
    "mAh",
    "varh",
    "kvarh",
];

/// Units of quantities that no field has, as sensors of a machine and meters have them in a column of units, in any letter case.
const UNITS_OF_OTHERS: [&str; 27] = [
    "A",
    "Amp",
    "Ampere",
    "Amperes",
    "Amps",
    "CFM",
    "Cel",
    "LPM",
    "L/min",
    "PF",
    "Pa",
    "RPM",
    "V",
    "VA",
    "VAR",
    "Volt",
    "Volts",
    "deg F",
    "degrees F",
    "discrete",
    "kPa",
    "kV",
    "kVA",
    "mA",
    "mV",
    "revolutions",
    "unspecified",
];

/// Returns whether a text in a column of units is one of a quantity that no field has: `RPM`, `Volts`.
pub(crate) fn is_unit_of_others(text: &str) -> bool {
    UNITS_OF_OTHERS.iter().any(|unit| text.trim().eq_ignore_ascii_case(unit))
}

/// Units of [`FOREIGN_UNITS`] that mean something else outside of brackets: `power_PS` is of a power supply, `power_cal`
/// calibrated.
const UNITS_IN_BRACKETS: [&str; 2] = ["PS", "cal"];

/// Units of [`FOREIGN_UNITS`], in small letters, that mean something else unless letter case shows the unit: `powerVar` is a
/// variance, `power_hw` of the hardware, `power_gw` of a gateway, `power_ma` a moving average, `power_ev` of a vehicle.
const UNITS_BY_CASE: [&str; 9] = ["cal", "ev", "gw", "hw", "kwmin", "ma", "ps", "var", "wmin"];

/// Returns whether a word is one of [`FOREIGN_UNITS`] in any letter case.
fn is_foreign_in_any_case(word: &str) -> bool {
    let is_word = |list: &[&str]| list.iter().any(|unit| word.eq_ignore_ascii_case(unit));
    is_word(&FOREIGN_UNITS) && !is_word(&UNITS_BY_CASE)
}

/// Returns whether a name spells a unit of power or energy out, as `gpu_power_watts_hp` does: two letters at its end are a label then.
fn has_spelled_unit(name: &str) -> bool {
    let is_long = |word: &str| {
        word.chars().count() > 3 && Unit::by_name(&word.to_lowercase()).is_some_and(|unit| unit.dimension.is_electrical())
    };
    spelled_units(name).iter().any(|(_, unit)| unit.is_some()) || word_places(name).into_iter().any(|place| is_long(&name[place]))
}

/// Returns a unit of [`FOREIGN_UNITS`], in any letter case, that is the text in the last brackets of a name, or else its last word:
/// `va` of `power_va`, `Cw` of `powerCw`, `VA` of a name that is nothing else. Other names of two letters may be of a host.
fn foreign_ending(name: &str) -> Option<&str> {
    if let Some(inside) = last_brackets(name) {
        return Some(inside).filter(|inside| is_foreign_in_any_case(inside));
    }
    let segment = name.rsplit_once(UNIT_SEPARATORS).map(|(_, last)| last.trim());
    let places = word_places(name);
    let last = places.last().filter(|last| last.end == name.len()).map(|last| &name[last.clone()]);
    let is_alone = |word: &str| word.len() > 2 || word.eq_ignore_ascii_case("va");
    let last = last.filter(|word| places.len() > 1 || is_alone(word));
    let found = [segment, last].into_iter().flatten().find(|word| is_foreign_in_any_case(word));
    found.filter(|word| word.len() > 2 || !has_spelled_unit(name))
}

/// Words of energy before a number that is a factor of the unit behind it.
const WORDS_BEFORE_TENS: [&str; 3] = ["energie", "energy", "joule"];

/// Returns a unit of energy with a power of ten before it at the end of a name of energy: `10wh` of `energy_10wh`. In names of
/// power the number may be that of a board or of a limit.
fn tens_of_a_unit(name: &str) -> Option<&str> {
    let places = word_places(name);
    let [.., before, number, unit] = places.as_slice() else { return None };
    let word = |place: &Range<usize>| &name[place.clone()];
    let is_of_energy = WORDS_BEFORE_TENS.contains(&word(before).to_lowercase().as_str());
    let is_unit = Unit::by_name(word(unit)).is_some_and(|unit| unit.dimension == Energy);
    let is_joined = number.end == unit.start && unit.end == name.len();
    (is_of_energy && is_unit && is_joined && is_power_of_ten(word(number))).then(|| &name[number.start..])
}

/// Milli or mega: letter case has to show it, and does not.
pub(crate) const AMBIGUOUS_UNITS: [&str; 7] = ["mw", "Mw", "mj", "Mj", "mwh", "Mwh", "MWH"];

/// Returns the part of a column's name that forbids reading it as power or energy in a known unit. It may be another unit in the
/// last brackets, after the last separator or after a word (`Apparent power (VA)`, `power_dW`, `powerGW`). It may be a multiple
/// (`power (W x10)`, `power [0.1W]`, `tenths of a watt`, `energy_10wh`), a unit that is spelled out (`kilowatt_seconds`,
/// `dWatts`), or an [`ambiguous_unit`]. Letter case matters only where a unit may be another word.
pub fn unreadable_unit(name: &str) -> Option<&str> {
    let name = name.trim();
    let brackets = last_brackets(name);
    let last = brackets.or_else(|| name.rsplit_once(['_', ',', '/', '.', '-', ' ']).map(|(_, unit)| unit.trim()));
    let is_foreign = |unit: &&str| match brackets {
        Some(_) => FOREIGN_UNITS.contains(unit) || is_multiple(unit),
        // No other one has two small letters.
        None if *unit == "hp" => !has_spelled_unit(name),
        None => FOREIGN_UNITS.contains(unit) && !UNITS_IN_BRACKETS.contains(unit),
    };
    let is_readable = bracketed_unit(name).is_some();
    let hours = || power_hours(brackets.unwrap_or(name)).filter(|(_, unit)| unit.is_none()).map(|(text, _)| text);
    let spelled = || spelled_units(name).into_iter().find(|(_, unit)| unit.is_none()).map(|(text, _)| text);
    let humped =
        || joined_units(name).into_iter().find_map(|found| if let JoinedUnit::Foreign(text) = found { Some(text) } else { None });
    last.filter(is_foreign)
        .or_else(|| ambiguous_unit(name))
        .or_else(hours)
        .or_else(|| spelled().or_else(humped).or_else(|| factor(name)).or_else(|| worded_factor(name)).filter(|_| !is_readable))
        .or_else(|| bare_factor(name).or_else(|| prefixed_unit(name)).filter(|_| !is_readable))
        .or_else(|| foreign_ending(name).or_else(|| tens_of_a_unit(name)).filter(|_| !is_readable))
}

/// Returns the part of a column's name that may be read as two units of power or energy. It is letters that may be milli or mega
/// (`power_mw_avg`, `powerMw`), or the end of a word that may be a unit (`chipkW`).
pub fn ambiguous_unit(name: &str) -> Option<&str> {
    let humped = || {
        joined_units(name).into_iter().find_map(|found| if let JoinedUnit::Ambiguous(text) = found { Some(text) } else { None })
    };
    let capitals = || words(name).find(|word| is_mega_by_capitals(name, word));
    let unbracketed = || capitals().or_else(humped).filter(|_| bracketed_unit(name).is_none());
    words(name).find(|word| AMBIGUOUS_UNITS.contains(word)).or_else(unbracketed)
}

/// Returns whether a cell's unit is one that the [`ambiguous_unit`] of its header may be: `mW` or `MW` of `mw`; `kW` or `W` of
/// the `kW` in `chipkW`.
pub fn may_be_unit(ambiguous: &str, cell: Unit) -> bool {
    let base = Unit::by_name(ambiguous).map(|unit| if unit.dimension == Power { "W" } else { "J" });
    cell.name.eq_ignore_ascii_case(ambiguous) || base == Some(cell.name) && !AMBIGUOUS_UNITS.contains(&ambiguous)
}

/// Fractions that a name has in words.
const FRACTIONS: [&str; 8] =
    ["tenth", "tenths", "hundredth", "hundredths", "thousandth", "thousandths", "millionth", "millionths"];
/// Numbers that are factors beside a unit, and words before a number that is one.
const NUMBER_WORDS: [&str; 7] = ["ten", "tens", "hundred", "hundreds", "thousand", "thousands", "million"];
const FACTOR_WORDS: [&str; 4] = ["x", "times", "per", "factor"];
/// Words before a number that is a factor only behind a unit or one of the words after: `power_avg_over_10` is of ten seconds.
const LOOSE_FACTOR_WORDS: [&str; 2] = ["by", "over"];
const SCALE_WORDS: [&str; 3] = ["scaled", "divided", "multiplied"];

/// Returns a factor that a name has in words: `tenths` of `power in tenths of a watt`, `Hundredths` of `PowerHundredthsKW`,
/// `hundred` of `hundred watts`, `10` of `power_watts_times_10`.
fn worded_factor(name: &str) -> Option<&str> {
    let all: Vec<&str> = words(name).collect();
    let is_unit =
        |word: Option<&&str>| word.and_then(|word| Unit::by_name(word)).is_some_and(|unit| unit.dimension.is_electrical());
    let is_word = |list: &[&str], word: &str| list.contains(&word.to_ascii_lowercase().as_str());
    // The words before a number.
    let is_scaling = |before: &[&str]| match before {
        [.., word] if is_word(&FACTOR_WORDS, word) => true,
        [.., first, word] if is_word(&LOOSE_FACTOR_WORDS, word) => is_word(&SCALE_WORDS, first) || is_unit(Some(first)),
        _ => false,
    };
    let humped = || word_places(name).into_iter().map(|place| &name[place]).find(|word| is_word(&FRACTIONS, word));
    let separate = all.iter().enumerate().find_map(|(at, word)| {
        let lower = word.to_ascii_lowercase();
        let after = all.get(at + 1);
        let is_of_unit = is_unit(after) || at > 0 && is_unit(all.get(at - 1)) && after.is_none();
        let is_scale = is_scaling(&all[..at]) && (after.is_none() || is_unit(after));
        let is_number = is_power_of_ten(word) && is_scale;
        let is_factor = FRACTIONS.contains(&lower.as_str()) || NUMBER_WORDS.contains(&lower.as_str()) && is_of_unit || is_number;
        is_factor.then_some(*word)
    });
    separate.or_else(humped)
}

/// Returns whether digits are ten, a hundred and so on.
fn is_power_of_ten(digits: &str) -> bool {
    digits.len() > 1 && digits.strip_prefix('1').is_some_and(|zeros| zeros.bytes().all(|digit| digit == b'0'))
}

/// Returns a factor that a name has outside of brackets: `x10` of `power_x10`, `0.1W` of `power 0.1W`. `gpu_10W` may be of board
/// 10.
fn factor(name: &str) -> Option<&str> {
    let times_ten = || words(name).find(|word| word.strip_prefix('x').is_some_and(is_power_of_ten));
    let last = name.rsplit([' ', '_']).next().filter(|last| last.contains(['.', ',', 'x', '×', '*', '/']) && is_multiple(last));
    last.or_else(times_ten)
}

/// Returns whether a text is a unit of power or energy and a factor: `W x10`, `0.1 W`, `0.1W`, `W/10`, `10^-1 W`.
fn is_multiple(text: &str) -> bool {
    let is_factor = |part: &str| {
        part.contains(|c: char| c.is_numeric())
            && part.chars().all(|c| c.is_numeric() || matches!(c, '.' | ',' | '+' | '-' | '−' | '⁻' | 'e' | 'E'))
    };
    let (mut units, mut factors) = (0, 0);
    for part in text.split([' ', 'x', '×', '*', '·', '⋅', '/', '^']).filter(|part| !part.is_empty()) {
        let (number, unit) = if is_factor(part) { (part, "") } else { split_unit(part) };
        if !number.is_empty() && !is_factor(number) {
            return false;
        }
        factors += usize::from(!number.is_empty());
        if !unit.is_empty() {
            if Unit::by_name(unit).is_none_or(|unit| !unit.dimension.is_electrical()) {
                return false;
            }
            units += 1;
        }
    }
    units == 1 && factors > 0
}

/// The content of a cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NumberCell {
    Number(f64),
    /// The cell states that there is no value.
    Absent,
    /// Neither a number nor a known text for no value.
    Other,
}

/// Reads a cell without a unit. `NaN`, and text in brackets such as `[N/A]`, mean that there is no value.
pub fn parse_cell(text: &str) -> NumberCell {
    let text = text.trim();
    if is_absent_text(text) {
        return NumberCell::Absent;
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => NumberCell::Number(value),
        _ => NumberCell::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_multiple_of_a_count() {
        for (name, multiple) in [
            ("tokens (M)", Some("M")),
            ("tokens_M", Some("M")),
            ("samples [k]", Some("k")),
            ("tokens in millions", Some("millions")),
            ("Samples (thousands)", Some("thousands")),
            ("tokens_total_B", Some("B")),
            ("tokens_seen_M", Some("M")),
            ("tokensM", Some("M")),
            ("mtokens", Some("m")),
            ("tokens_b", Some("b")),
            ("tokens_processed_bn", Some("bn")),
            ("tokens_seen_m", Some("m")),
            ("samples_processed_m", Some("m")),
            ("tokens_total_b", Some("b")),
            ("tokens_so_far_b", Some("b")),
            ("samples_group_b", None),
            ("tokens_test_b", None),
            ("samples_set_b", None),
            ("samples_exp_b", None),
            ("tokens_user_m", None),
            ("tokens_plan_b", None),
            ("tokens_top_k", None),
            ("samples_GPU_B", None),
            ("tokens_to_m2", None),
            ("Mtokens", Some("M")),
            ("kSamples", Some("k")),
            ("train/Btokens_total", Some("B")),
            ("M tokens", Some("M")),
            ("k_samples", Some("k")),
            ("tokens (1e6)", Some("1e6")),
            ("samples [x1000]", Some("x1000")),
            ("samples (10^3)", Some("10^3")),
            ("tokens (1000s)", Some("1000s")),
            ("samples (1)", None),
            ("samples (100)", None),
            ("microsteps", None),
            ("tokens", None),
            ("top_k", None),
            ("samples_per_second", None),
            ("run_M_tokens", None),
        ] {
            assert_eq!(count_multiple(name), multiple, "{name}");
        }
    }

    #[test]
    fn converts_to_the_units_of_the_events() {
        let ours = |value: f64, unit: &str| Unit::by_name(unit).unwrap().to_base_unit(value);
        assert_eq!(ours(32402.0, "mW"), 32.402);
        assert_eq!(ours(152_162_756.0, "mJ"), 152_162.756);
        assert_eq!(ours(1.5, "kW"), 1500.0);
        assert_eq!(ours(2.0, "kWh"), 7.2e6);
        assert_eq!((ours(2.0, "MWh"), ours(2.0, "GJ")), (7.2e9, 2e9));
        assert_eq!(ours(87.0, "%"), 0.87);
        assert_eq!(ours(1.41, "GHz"), 1410.0);
        assert_eq!(ours(2.0, "MiB"), 2_097_152.0);
        assert!((ours(300.15, "K") - 27.0).abs() < 1e-9);
        assert!((ours(212.0, "F") - 100.0).abs() < 1e-9);
        assert_eq!(Unit::by_name("mw"), None, "mW or MW: not to be guessed");
    }

    #[test]
    fn finds_the_unit_in_a_name() {
        let name = |unit: Option<Unit>| unit.map_or("", |unit| unit.name);
        for (text, bracketed, suffix) in [
            ("Power [mW]", "mW", ""),
            ("Temperature (edge) (C)", "C", ""),
            ("power_mW", "", "mW"),
            ("energy in kWh", "", "kWh"),
            ("duration_ms", "", "ms"),
            ("power", "", ""),
            ("power_mw", "", ""),
            ("Power (mean)", "", ""),
        ] {
            assert_eq!((name(bracketed_unit(text)), name(suffix_unit(text))), (bracketed, suffix), "{text}");
        }
    }

    #[test]
    fn finds_a_unit_of_power_or_energy_wherever_it_is_in_a_name() {
        let name = |unit: Option<Unit>| unit.map_or("", |unit| unit.name);
        for (text, unit) in [
            ("power (in mW)", "mW"),
            ("milliwatts", "mW"),
            ("mW", "mW"),
            ("power_milliwatt", "mW"),
            ("power mW avg", "mW"),
            ("mW_total", "mW"),
            ("power (mW) [GPU]", "mW"),
            ("powerMilliwatts", "mW"),
            ("gpuPowerMilliWattsAvg", "mW"),
            ("Milliwatt (mean)", "mW"),
            ("energy_kilowatt_hours", ""),
            ("omega_watts", "W"),
            ("omegaWatts", ""),
            ("OMEGAWatts", ""),
            ("GPUMilliwatts", "mW"),
            ("gpu0milliwatts", "mW"),
            ("MILLIWATTS_avg", "mW"),
            ("power_milliwatt_hourly_mean", "mW"),
            ("power_milliwatt_1hour_mean", "mW"),
            ("milliwatts_of_kilojoules", "mW"),
            ("kilowatts or milliwatts", ""),
            ("power_kW_rack_7", "kW"),
            ("kW_or_mW_power", ""),
            ("power_avg", ""),
            ("W", "W"),
            ("kWh", ""),
            ("powerKW", "kW"),
            ("powerKw", "kW"),
            ("gpuPowerKWAvg", "kW"),
            ("powermW", "mW"),
            ("powermWAvg", "mW"),
            ("GPUmW", "mW"),
            ("gpu0mW", "mW"),
            ("gpu0PowerkW", "kW"),
            ("powerkw", "kW"),
            ("BOARDPOWERKW", "kW"),
            ("powermilliwatts", "mW"),
            ("POWERMILLIWATTS", "mW"),
            ("avgpowerkilowatts", "kW"),
            ("powerW", ""),
            ("systemW", ""),
            ("hbmW", ""),
            ("gpuW", ""),
            ("GPUW", ""),
            ("rackW", ""),
            ("powerWAvg", ""),
            ("omegawatts", ""),
            ("power mWatts", "mW"),
            ("power_mWatts", "mW"),
            ("mWatts", "mW"),
            ("powermWatts", "mW"),
            ("kWatts", "kW"),
            ("power_kWatt", "kW"),
            ("powerKWatts", "kW"),
            ("power_kwatts", "kW"),
            ("Power (kWatt)", "kW"),
            ("power_MWatts", "MW"),
            ("power uWatts", "uW"),
            ("systemWatts", ""),
            ("roomWatts", ""),
            ("gpuWatts", ""),
            ("GPUWatts", ""),
            ("pwatts", ""),
            ("chipmW", ""),
            ("powerMHz", ""),
            ("powerMax", ""),
            ("powerMW", ""),
            ("kw01_power", ""),
            ("kw3.power", ""),
            ("power_uw", "µW"),
            ("poweruw", "µW"),
            ("Мощность, кВт", "kW"),
            ("Мощность, Вт", "W"),
            ("Мощность (мВт)", "mW"),
            ("Мощность, МВт", "MW"),
            ("功率(千瓦)", "kW"),
            ("电力（kW）", "kW"),
            ("功率千瓦", "kW"),
            ("功率（毫瓦）", "mW"),
            ("消費電力 キロワット", "kW"),
            ("キロワット", "kW"),
            ("potencia_kilovatios", "kW"),
            ("Potencia (Milivatios)", "mW"),
            ("potencia, vatios", "W"),
            ("moc [kilowaty]", "kW"),
            ("watt_hours", ""),
            ("total_watt_hours", ""),
            ("watts_of_watt_hours", "W"),
        ] {
            let unit_of = bracketed_unit(text).or_else(|| worded_unit(text, Power));
            assert_eq!(name(unit_of), unit, "{text}");
        }
        for (text, unit) in [
            ("energy_kWh_total", "kWh"),
            ("energy in kilowatt-hours", "kWh"),
            ("energyKiloWattHours", "kWh"),
            ("Energy (kilowatt hours)", "kWh"),
            ("milliwatthours_total", "mWh"),
            ("watt_seconds_total", "J"),
            ("energy_megajoule", "MJ"),
            ("Energy [MWh]", "MWh"),
            ("energy_MWh_total", "MWh"),
            ("energyMWh", "MWh"),
            ("energy_megawatt_hours", "MWh"),
            ("Energy (MW·h)", "MWh"),
            ("energy_MW_h", "MWh"),
            ("Energy (giga joules)", "GJ"),
            ("heat [GJ]", "GJ"),
            ("Energy (kW·h)", "kWh"),
            ("Energy [kW h]", "kWh"),
            ("Energy (in kW · h)", "kWh"),
            ("kW-h", "kWh"),
            ("energy_kW_h", "kWh"),
            ("energy_h", ""),
            ("energyKWh", "kWh"),
            ("energyKwh", "kWh"),
            ("energyWh", "Wh"),
            ("energyWhTotal", "Wh"),
            ("energykWhTotal", "kWh"),
            ("energykwh", "kWh"),
            ("energywh", "Wh"),
            ("energyKJ", "kJ"),
            ("energymJ", "mJ"),
            ("energyJ", ""),
            ("energymillijoules", "mJ"),
            ("omega_joules", "J"),
            ("energy_milliwatts", ""),
            ("energy_uj", "µJ"),
            ("max_energy_range_uj", "µJ"),
            ("ENERGY_UJ", "µJ"),
            ("energyUJ", "µJ"),
            ("SYSTEMWh", "Wh"),
            ("GPUKWh", "kWh"),
            ("PDUKWh", ""),
            ("wh01_energy", ""),
            ("Энергия, кВт·ч", "kWh"),
            ("Энергия (кВтч)", "kWh"),
            ("用电量(千瓦时)", "kWh"),
            ("用电量千瓦时", "kWh"),
            ("電力量（キロワット時）", "kWh"),
            ("energía, kilovatios hora", "kWh"),
            ("Энергия, кДж", "kJ"),
            ("energy_Kj", "kJ"),
            ("watt_hours", "Wh"),
        ] {
            let unit_of = bracketed_unit(text).or_else(|| worded_unit(text, Energy));
            assert_eq!(name(unit_of), unit, "{text}");
        }
        assert_eq!(name(worded_unit("time_ms_max", Duration)), "", "of time only at the end");
        for (text, dimension, unit) in [
            ("elapsedMs", Duration, "ms"),
            ("durationMS", Duration, "ms"),
            ("elapsedSec", Duration, "s"),
            ("elapsedSeconds", Duration, "s"),
            ("elapsedMin", Duration, ""),
            ("elapsed", Duration, ""),
            ("Items", Duration, ""),
            ("smClockMHz", Clock, "MHz"),
            ("smClockGhz", Clock, "GHz"),
            ("GPUMHz", Clock, "MHz"),
            ("SMMHz", Clock, "MHz"),
            ("GFXMHz", Clock, "MHz"),
            ("GPUGHz", Clock, "GHz"),
            ("gpukHz", Clock, "kHz"),
            ("GPUHz", Clock, "Hz"),
            ("smClockHz", Clock, "Hz"),
            ("sm_clock_khz", Clock, "kHz"),
            ("sm_clock_hz", Clock, "Hz"),
            ("memUsedkB", Bytes, "kB"),
            ("gpu0Mhz", Clock, "MHz"),
            ("utilPct", Ratio, "%"),
            ("gpuUtilPercent", Ratio, "%"),
            ("memUsedMiB", Bytes, "MiB"),
            ("memUsedMB", Bytes, "MB"),
            ("tempC", Temperature, ""),
        ] {
            assert_eq!(name(worded_unit(text, dimension)), unit, "{text}");
        }
    }

    #[test]
    fn a_unit_that_cannot_be_read_is_found_and_one_that_can_is_not() {
        for (text, unit) in [
            ("Apparent power (VA)", Some("VA")),
            ("power_dW", Some("dW")),
            ("energy [MWh]", None),
            ("energy [GWh]", Some("GWh")),
            ("ENERGY_MWH", Some("MWH")),
            ("power (W x10)", Some("W x10")),
            ("power [0.1 W]", Some("0.1 W")),
            ("power_in_mw", Some("mw")),
            ("Power(mw)", Some("mw")),
            ("mw_total", Some("mw")),
            ("powerMw", Some("Mw")),
            ("gpuPowerMwAvg", Some("Mw")),
            ("powermw", Some("mw")),
            ("POWERMW", Some("MW")),
            ("energymj", Some("mj")),
            ("energyMwh", Some("Mwh")),
            ("chipmW", Some("mW")),
            ("chipkW", Some("kW")),
            ("chipkW [W]", None),
            ("powerGW", Some("GW")),
            ("apparentPowerVA", Some("VA")),
            ("energyMWh", None),
            ("power [0.1W]", Some("0.1W")),
            ("power (W/10)", Some("W/10")),
            ("power (1/10 W)", Some("1/10 W")),
            ("power (10^-1 W)", Some("10^-1 W")),
            ("power [W·10⁻¹]", Some("W·10⁻¹")),
            ("power [Wx10]", Some("Wx10")),
            ("power [0,1 W]", Some("0,1 W")),
            ("power_0.1W", Some("0.1W")),
            ("power_x10", Some("x10")),
            ("power_W_x100", Some("x100")),
            ("power W/10", Some("W/10")),
            ("gpu_10W", None),
            ("gpu 10 W", None),
            ("gpu_x1_power", None),
            ("systemW", None),
            ("hbmW", None),
            ("gpuW", None),
            ("GPUW", None),
            ("rackW", None),
            ("powermW", None),
            ("powerKW", None),
            ("powerMW", Some("MW")),
            ("gpuPowerMW", Some("MW")),
            ("POWER_MW", Some("MW")),
            ("POWER [MW]", None),
            ("power_MW", None),
            ("MW", None),
            ("energyMJ", Some("MJ")),
            ("TOTAL_ENERGY_MJ", Some("MJ")),
            ("PDUKWh", Some("KWh")),
            ("UPSKWh", Some("KWh")),
            ("DCMWh", Some("MWh")),
            ("SYSTEMWh", None),
            ("AVGWh", None),
            ("GPUKWh", None),
            ("powerdW", Some("dW")),
            ("energynJ", Some("nJ")),
            ("loadW", None),
            ("drawnW", None),
            ("kw01_power", None),
            ("powerVar", None),
            ("power (W)", None),
            ("power (max W)", None),
            ("power [W, 1s avg]", None),
            ("power (GPU 0)", None),
            ("power_mW", None),
            ("gpu_var_watts", None),
            ("energy_megawatt_hours", None),
            ("gigawatthours", Some("gigawatthours")),
            ("Energy (microwatthour)", Some("microwatthour")),
            ("kilowatt_seconds", Some("kilowatt_seconds")),
            ("energyMilliwattSeconds", Some("MilliwattSeconds")),
            ("energy_nanojoules", Some("nanojoules")),
            ("deciwatts_avg", Some("deciwatts")),
            ("Energy (giga joules)", None),
            ("Energy (giga watts)", Some("giga watts")),
            ("dWatts", Some("dWatts")),
            ("power_dWatts", Some("dWatts")),
            ("power (dWatts)", Some("dWatts")),
            ("powerdWatts", Some("dWatts")),
            ("power_cWatts", Some("cWatts")),
            ("power_mwatts", Some("mwatts")),
            ("powerMWatts", Some("MWatts")),
            ("MWATTS", Some("MWATTS")),
            ("energy_MWhr", None),
            ("energy Wmin", Some("Wmin")),
            ("energy_watt_minutes", Some("watt_minutes")),
            ("energy (W·min)", Some("W·min")),
            ("energy (kW·s)", Some("kW·s")),
            ("energy dJ", Some("dJ")),
            ("energy (cal)", Some("cal")),
            ("power_hp", Some("hp")),
            ("power (dBW)", Some("dBW")),
            ("power in tenths of a watt", Some("tenths")),
            ("power_tenth_watts", Some("tenth")),
            ("power (hundredths of W)", Some("hundredths")),
            ("hundred watts", Some("hundred")),
            ("power ten watts", Some("ten")),
            ("power_watts_times_10", Some("10")),
            ("power_watts_per_10", Some("10")),
            ("power x 10 watts", Some("10")),
            ("power (W, scaled by 10)", Some("10")),
            ("power_mWatts", None),
            ("power_kWatt", None),
            ("power_W_s", None),
            ("power (J/s)", None),
            ("power_by_10s", None),
            ("power_avg_over_10", None),
            ("power_watts_over_10", Some("10")),
            ("power_PS", None),
            ("power (PS)", Some("PS")),
            ("power_cal", None),
            ("power_watt_min", None),
            ("Power Watt Min", None),
            ("powerWattMin", None),
            ("power_wmin", None),
            ("powerWMin", None),
            ("power_mean_by_10_s", None),
            ("gpu_ten_power", None),
            ("ten", None),
            ("samples_per_10", Some("10")),
            ("energy kWhr", None),
            ("energy_watts_seconds", None),
            ("Energy (MW·h)", None),
            ("energy_MW_h", None),
            ("energy_gigajoules [J]", None),
            ("energy_kW_h", None),
            ("omega_watts", None),
            ("energy_kilowatt_hours", None),
            ("power [kilo W]", Some("kilo W")),
            ("power (kilo)", Some("kilo")),
            ("potencia [kilovolt]", Some("kilovolt")),
            ("мощность, МВТ", Some("МВТ")),
            ("мощность [мвт]", Some("мвт")),
            ("power *1000", Some("*1000")),
            ("power (*1000)", Some("*1000")),
            ("power*1000", Some("*1000")),
            ("power (/1000)", Some("/1000")),
            ("power [1e3]", Some("1e3")),
            ("node/10", None),
            ("power [kilo W] (W)", None),
            ("power (mean)", None),
            ("power_megatron", None),
            ("power_microvm", None),
            ("power_microwave", None),
            ("power.megavision", None),
            ("power_micro", None),
            ("power_giga", None),
            ("Leistung Mega", None),
            ("power (microwave)", None),
            ("power (mega)", Some("mega")),
            ("power_va", Some("va")),
            ("VA", Some("VA")),
            ("power_cw", Some("cw")),
            ("power_nw", Some("nw")),
            ("power_dw", Some("dw")),
            ("powerCw", Some("Cw")),
            ("power_dbm", Some("dbm")),
            ("power_btu", Some("btu")),
            ("Power (va)", Some("va")),
            ("energy_vah", Some("vah")),
            ("energy_varh", Some("varh")),
            ("charge_ah", Some("ah")),
            ("PowerHundredthsKW", Some("Hundredths")),
            ("EnergyTenthsOfKWh", Some("Tenths")),
            ("energy_10wh", Some("10wh")),
            ("energy_10s", None),
            ("energy_12wh", None),
            ("power_100w", None),
            ("va_node_power", None),
            ("nw", None),
            ("hp", None),
            ("power_va [W]", None),
            ("power_hw", None),
            ("power_gw", None),
            ("power_ma", None),
            ("power_ev", None),
            ("power_nw1", None),
            ("gpu_power_watts_hp", None),
            ("gpuPowerWattsHp", None),
            ("power_kilowatts_va", None),
            ("power_watts_VA", Some("VA")),
            ("power_watts_horsepower", Some("horsepower")),
            ("gpu_power_hp", Some("hp")),
            ("power_kW_hp", Some("hp")),
            ("leistung_mikrowatt", Some("mikrowatt")),
            ("potencia_milivatios", None),
            ("Мощность, кВт", None),
            ("功率(千瓦)", None),
            ("功率(万瓦)", Some("万瓦")),
            ("功率万瓦", Some("万瓦")),
            ("功率千瓦", None),
        ] {
            assert_eq!(unreadable_unit(text), unit, "{text}");
        }
    }

    #[test]
    fn distinguishes_absent_from_zero_and_from_nonsense() {
        for text in ["", " ", "[N/A]", "N/A", "[Not Supported]", "nan", "NaN", "-", "null", "[Unknown Error]"] {
            assert_eq!(parse_cell(text), NumberCell::Absent, "{text:?}");
        }
        assert_eq!(parse_cell(" 0 "), NumberCell::Number(0.0));
        assert_eq!(parse_cell("-1.5e3"), NumberCell::Number(-1500.0));
        for text in ["1e999", "inf", "12 W", "1,5", "abc"] {
            assert_eq!(parse_cell(text), NumberCell::Other, "{text:?}");
        }
    }
}
