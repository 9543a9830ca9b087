//! Units of power and energy that follow a word without a separator: `powerKW`, `gpuPowerMwAvg`, `powermW`, `powerkw`.

use crate::units::{AMBIGUOUS_UNITS, FOREIGN_UNITS, Unit, word_places};

/// A unit that follows a word, as it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum JoinedUnit<'n> {
    Known(&'n str, Unit),
    /// One of those that are not read.
    Foreign(&'n str),
    /// Milli or mega; or `kW` of `chipkW`, where the `k` may be of the word before.
    Ambiguous(&'n str),
}

/// Words that a unit follows in the names of columns.
const QUANTITY_WORDS: [&str; 33] = [
    "power",
    "energy",
    "draw",
    "drawn",
    "usage",
    "used",
    "consumption",
    "consumed",
    "load",
    "limit",
    "cap",
    "gpu",
    "gpus",
    "cpu",
    "board",
    "card",
    "device",
    "node",
    "host",
    "server",
    "total",
    "avg",
    "average",
    "mean",
    "max",
    "min",
    "current",
    "instant",
    "input",
    "output",
    "in",
    "out",
    "measured",
];

/// Words that end with a letter that may be the prefix of a unit.
pub(crate) const WORDS_IN_PREFIXES: [&str; 33] = [
    "system", "maximum", "minimum", "sum", "ram", "vram", "dram", "hbm", "sm", "mem", "platform", "rack", "peak", "bank", "link",
    "nvlink", "network", "disk", "task", "clock", "block", "chunk", "gpu", "cpu", "npu", "tpu", "dpu", "ipu", "psu", "pdu",
    "soc", "from", "clk",
];

/// Units as names in small or in capital letters only have them, the longest first.
const LETTERS_OF_UNITS: [&str; 11] = ["kwh", "mwh", "gwh", "kw", "mw", "gw", "kj", "mj", "wh", "uw", "uj"];

/// Returns a word without the words of quantities that it begins with, if there is more in it: `milliwatts` of `powermilliwatts`.
pub(crate) fn without_quantity(word: &str) -> &str {
    let lower = word.to_ascii_lowercase();
    let longest = QUANTITY_WORDS.iter().filter(|quantity| lower.starts_with(**quantity)).map(|quantity| quantity.len()).max();
    longest.and_then(|length| word.get(length..)).filter(|rest| !rest.is_empty()).map_or(word, without_quantity)
}

/// Returns whether a word consists of words of quantities.
pub(crate) fn is_quantity(word: &str) -> bool {
    QUANTITY_WORDS.contains(&without_quantity(word).to_ascii_lowercase().as_str())
}

/// Returns the units that follow a word, or that another word follows, without a separator.
pub(crate) fn joined_units(name: &str) -> Vec<JoinedUnit<'_>> {
    let places = word_places(name);
    let word = |at: usize| &name[places[at].clone()];
    let joins = |at: usize| at > 0 && at < places.len() && places[at - 1].end == places[at].start;
    // `kw01` is a node.
    let goes_on = |at: usize| joins(at + 1) && word(at + 1).starts_with(char::is_alphabetic);
    let mut found = Vec::new();
    for at in 0..places.len() {
        let text = word(at);
        let is_symbol = matches!(text, "W" | "J" | "Wh" | "WH" | "Ws");
        let unit = if is_symbol && joins(at) {
            let before = word(at - 1);
            let prefix = before.chars().next_back().unwrap_or_default();
            let start = places[at - 1].end - prefix.len_utf8();
            let whole = &name[start..places[at].end];
            let stem = &name[places[at - 1].start..start];
            // `GPUm` is `GPU` and `m`, `CARDm` is `CAR` and `Dm`.
            let is_joined = at > 1 && joins(at - 1) && word(at - 2).len() > 1;
            let is_end_of_capitals = is_joined && (stem.chars().count() == 1 || stem.is_empty() && is_quantity(word(at - 2)));
            let stem = if is_end_of_capitals { &name[places[at - 2].start..start] } else { stem };
            match () {
                () if matches!(prefix, 'd' | 'c' | 'n' | 'h') && is_quantity(stem) && !is_quantity(before) => read(whole),
                () if !matches!(prefix, 'k' | 'K' | 'm' | 'M' | 'u' | 'µ' | 'μ' | 'G') => read(text),
                () if stem.is_empty() || is_quantity(stem) => read(whole),
                () if WORDS_IN_PREFIXES.contains(&before.to_ascii_lowercase().as_str()) || is_quantity(before) => read(text),
                // `PDUKWh`: without further facts, the letter may belong to either.
                () => Some(JoinedUnit::Ambiguous(whole)),
            }
        } else if joins(at) && matches!(text, "MW" | "MJ") {
            // Capitals of the hump, or of the unit.
            Some(JoinedUnit::Ambiguous(text))
        } else if joins(at) || goes_on(at) {
            // One of no meaning here may be a part of any word, unless it is the last.
            read(text).filter(|unit| !matches!(unit, JoinedUnit::Foreign(_)) || at + 1 == places.len())
        } else {
            after_quantity(text)
        };
        found.extend(unit);
    }
    found
}

/// Reads a symbol. `W` and `J` state no more than the field does.
fn read(symbol: &str) -> Option<JoinedUnit<'_>> {
    if symbol.chars().count() < 2 {
        return None;
    }
    if AMBIGUOUS_UNITS.contains(&symbol) {
        return Some(JoinedUnit::Ambiguous(symbol));
    }
    if let Some(unit) =
        Unit::by_name(symbol).filter(|unit| unit.dimension.is_electrical()).filter(|_| is_spelled_by_symbol(symbol))
    {
        return Some(JoinedUnit::Known(symbol, unit));
    }
    FOREIGN_UNITS.contains(&symbol).then_some(JoinedUnit::Foreign(symbol))
}

/// Returns whether a unit is written by its symbol: `watts` states no more than the field does.
fn is_spelled_by_symbol(text: &str) -> bool {
    text.len() <= 4 && text.contains(['W', 'J', 'w', 'j']) && !text.eq_ignore_ascii_case("watt")
}

/// Reads a unit at the end of a word whose letters are all small or all capitals, after a quantity: `powerkw`, `POWERMW`.
fn after_quantity(word: &str) -> Option<JoinedUnit<'_>> {
    let lower = word.to_ascii_lowercase();
    if lower != word && word.to_ascii_uppercase() != word {
        return None;
    }
    let (stem, symbol) = LETTERS_OF_UNITS.iter().find_map(|unit| Some((lower.strip_suffix(unit)?, *unit)))?;
    if stem.is_empty() || !is_quantity(stem) {
        return None;
    }
    let text = &word[stem.len()..];
    match symbol {
        // Letter case has to show it, and the name has one only.
        "mw" | "mj" | "mwh" => Some(JoinedUnit::Ambiguous(text)),
        "gw" | "gwh" => Some(JoinedUnit::Foreign(text)),
        _ => Unit::by_name(symbol).map(|unit| JoinedUnit::Known(text, unit)),
    }
}
