//! Words of the names of columns, boards and rows: by separators, by capitals, and by lists of words that are written together.

use std::ops::Range;

use crate::joined_units::is_quantity;

/// Words of energy and power, which do not show the metered thing.
pub(crate) const ELECTRICAL_WORDS: [&str; 16] = [
    "consumed",
    "consumption",
    "draw",
    "energy",
    "joules",
    "kwh",
    "meter",
    "mw",
    "power",
    "pw",
    "pwr",
    "reading",
    "usage",
    "w",
    "watt",
    "watts",
];
/// Words of all of something, in names of columns, of boards and of rows.
pub(crate) const TOTAL_WORDS: [&str; 13] =
    ["aggregate", "all", "combined", "gesamt", "overall", "sum", "summe", "total", "totals", "合計", "合计", "总计", "總計"];
/// Parts of machines whose names are short for several words. In capitals, they end a word whatever follows: `GPUpower`.
const DEVICE_ACRONYMS: [&str; 10] = ["cpu", "dpu", "dram", "gpu", "ipu", "npu", "pdu", "psu", "soc", "tpu"];
/// Shorter words may be the end or the beginning of any other.
const SHORTEST_JOINED: usize = 3;
/// The letter of power before the name of a part: `PGPU`.
const POWER_LETTER: &str = "P";

/// Returns the words of a name in small letters, as [`word_places`] finds them.
pub(crate) fn lowercase_words(name: &str) -> Vec<String> {
    word_places(name).into_iter().map(|place| name[place].to_lowercase()).collect()
}

/// Returns where the words of a name are, of letters or of digits: `gpu`, `0`, `Power` and `Watts` of `gpu0PowerWatts`; `GPUs` and
/// `power` of `GPUs_power`; `gpu` and `power` of `gpupower`.
pub(crate) fn word_places(name: &str) -> Vec<Range<usize>> {
    let mut places: Vec<Range<usize>> = Vec::new();
    let mut is_within = false;
    for (place, letter) in name.char_indices() {
        if letter.is_alphanumeric() {
            let end = place + letter.len_utf8();
            match places.last_mut() {
                Some(word) if is_within && !begins_word(&name[word.start..place], &name[place..]) => word.end = end,
                _ => places.push(place..end),
            }
        }
        is_within = letter.is_alphanumeric();
    }
    places.into_iter().flat_map(|place| split_joined(name, place)).collect()
}

/// Returns whether the rest of a name begins another word than the one before it: `Power` in `gpuPower`, `GPUPower` and
/// `GPUpower`. An `s` alone is the plural of an acronym: `GPUs`.
fn begins_word(word: &str, rest: &str) -> bool {
    let mut letters = rest.chars();
    let (Some(before), Some(letter)) = (word.chars().next_back(), letters.next()) else { return true };
    let behind = letters.as_str();
    let is_small_behind = behind.starts_with(char::is_lowercase);
    if before.is_numeric() != letter.is_numeric() {
        return true;
    }
    if letter.is_uppercase() {
        let is_acronym = || ends_acronym(word, letter, behind);
        return before.is_lowercase() || before.is_uppercase() && is_small_behind && !is_acronym();
    }
    let is_plural = letter == 's' && !is_small_behind;
    before.is_uppercase()
        && letter.is_lowercase()
        && !is_plural
        && ends_acronym(&word[..word.len() - before.len_utf8()], before, rest)
}

/// Returns whether a letter ends an acronym of a part of a machine in capitals. The last letter of `GPUsage` begins a word of its
/// own.
fn ends_acronym(word: &str, letter: char, behind: &str) -> bool {
    let acronym: String = word.chars().chain([letter]).collect();
    let is_acronym = !acronym.contains(char::is_lowercase) && DEVICE_ACRONYMS.contains(&acronym.to_lowercase().as_str());
    let next_word = || [letter].into_iter().chain(behind.chars().take_while(|next| next.is_lowercase())).collect::<String>();
    is_acronym && !is_quantity(&next_word().to_lowercase())
}

/// Returns the places of the words that are written together in one without a capital between them: `gpu` and `power` of
/// `gpupower` and of `GPUPOWER`, `P` and `GPU` of `PGPU`. All of them must be known.
fn split_joined(name: &str, place: Range<usize>) -> Vec<Range<usize>> {
    let word = &name[place.clone()];
    let (lower, is_capitals) = (word.to_ascii_lowercase(), !word.contains(char::is_lowercase));
    if !word.is_ascii() || !is_capitals && word != lower {
        return vec![place];
    }
    let is_power_of_part = is_capitals
        && word.strip_prefix(POWER_LETTER).is_some_and(|part| DEVICE_ACRONYMS.contains(&part.to_lowercase().as_str()));
    let ends = if is_power_of_part { Some(vec![POWER_LETTER.len(), word.len()]) } else { ends_of_joined(&lower) };
    let mut start = place.start;
    let between = |end: usize| {
        let next = place.start + end;
        std::mem::replace(&mut start, next)..next
    };
    ends.map_or_else(|| vec![place.clone()], |ends| ends.into_iter().map(between).collect())
}

/// Returns where each word ends in a text that is a part of a machine and words of power or of totals; `None` if it is not.
fn ends_of_joined(text: &str) -> Option<Vec<usize>> {
    DEVICE_ACRONYMS.iter().filter_map(|part| text.strip_prefix(part)).find_map(|rest| {
        let plural = rest.strip_prefix('s');
        [Some(rest), plural].into_iter().flatten().find_map(|rest| {
            let of_rest = ends_of_words(rest).filter(|ends| !ends.is_empty())?;
            let part = text.len() - rest.len();
            Some([part].into_iter().chain(of_rest.into_iter().map(|end| part + end)).collect())
        })
    })
}

/// Returns where each word ends in a text of words of power and of totals; `None` if it has others.
fn ends_of_words(text: &str) -> Option<Vec<usize>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let mut known = ELECTRICAL_WORDS.iter().chain(&TOTAL_WORDS).filter(|word| word.len() >= SHORTEST_JOINED);
    known.find_map(|word| {
        let of_rest = ends_of_words(text.strip_prefix(*word)?)?;
        Some([word.len()].into_iter().chain(of_rest.into_iter().map(|end| word.len() + end)).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_at_separators_capitals_and_digits() {
        for (name, words) in [
            ("gpu0PowerWatts", &["gpu", "0", "Power", "Watts"][..]),
            ("GPUPower", &["GPU", "Power"]),
            ("DCGM_FI_DEV", &["DCGM", "FI", "DEV"]),
            ("GPUMHz", &["GPUM", "Hz"]),
            ("PDUKWh", &["PDUK", "Wh"]),
            ("Leistung größe", &["Leistung", "größe"]),
            ("", &[]),
        ] {
            let found: Vec<&str> = word_places(name).into_iter().map(|place| &name[place]).collect();
            assert_eq!(found, words, "{name}");
        }
    }

    #[test]
    fn acronyms_of_parts_end_a_word_whatever_follows() {
        for (name, words) in [
            ("GPUs", &["GPUs"][..]),
            ("all GPUs", &["all", "GPUs"]),
            ("TotalCPUs", &["Total", "CPUs"]),
            ("PSUs_2", &["PSUs", "2"]),
            ("GPUsPower", &["GPUs", "Power"]),
            ("GPUpower_W", &["GPU", "power", "W"]),
            ("CPUwatts", &["CPU", "watts"]),
            ("GPUsum", &["GPU", "sum"]),
            ("GPUmW", &["GPU", "m", "W"]),
            ("pGPU", &["p", "GPU"]),
            ("PGPU", &["P", "GPU"]),
            ("gpupower", &["gpu", "power"]),
            ("GPUPOWER", &["GPU", "POWER"]),
            ("psusum", &["psu", "sum"]),
            ("gpusall", &["gpus", "all"]),
            ("cpupowertotal", &["cpu", "power", "total"]),
            // No words of parts.
            ("GPUsage", &["GP", "Usage"]),
            ("UPSpeed", &["UP", "Speed"]),
            ("GPS", &["GPS"]),
            ("IDs", &["I", "Ds"]),
            ("pcpu", &["pcpu"]),
            ("gpunode", &["gpunode"]),
            ("cpuset", &["cpuset"]),
            ("socket", &["socket"]),
            ("gpus", &["gpus"]),
            ("gpupowerkw", &["gpupowerkw"]),
            ("POWERCPU", &["POWERCPU"]),
        ] {
            let found: Vec<&str> = word_places(name).into_iter().map(|place| &name[place]).collect();
            assert_eq!(found, words, "{name}");
        }
    }
}
