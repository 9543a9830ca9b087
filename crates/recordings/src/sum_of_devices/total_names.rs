//! Names of totals: `Total kWh` beside `T1 kWh` and `T2 kWh`, or 1.8.0 beside 1.8.1 and 1.8.2 of OBIS. Only whole words count.

use crate::words::{ELECTRICAL_WORDS, TOTAL_WORDS, lowercase_words};

/// The short word of a total of rows. In names of columns it is the total of the rails of one module.
pub(crate) const SHORT_TOTAL_WORD: &str = "tot";
/// A word before those of a total, and of none by itself: `Grand Total`.
pub(crate) const WORD_BEFORE_TOTALS: &str = "grand";
/// The word of a total that begins other names, too: `all-reduce`.
const ALL: &str = "all";
/// The energy of all tariffs in one direction.
const ALL_TARIFFS: &str = "import";
/// Words of a total at the end of the name of a counter, where they may be of its running total.
const RUNNING_TOTAL_WORDS: [&str; 2] = ["total", "totals"];
/// Words that show nothing about which part of a meter a name is of, beside those of energy and power.
const FURTHER_SILENT_WORDS: [&str; 13] =
    ["active", "counter", "electricity", "gj", "gwh", "j", "kj", "kw", "mj", "mwh", "register", "uj", "wh"];
/// How names of totals in one word begin in German: `Gesamtverbrauch`.
const GERMAN_TOTAL: &str = "gesamt";
/// A shorter word is none that a plural is made of.
const SHORTEST_SINGULAR: usize = 3;
/// Letters before a unit, which capitals separate from it: `kWh`.
const UNIT_PREFIXES: [&str; 4] = ["g", "k", "m", "u"];
const PREFIXED_UNITS: [&str; 3] = ["j", "w", "wh"];
/// Time integrals and the present value of OBIS codes: energy and power.
const OBIS_KINDS: [u32; 3] = [7, 8, 9];
/// Distances from the code of all phases to those of L1, L2 and L3: 1.8.0 and 21.8.0.
const OBIS_PHASES: [u32; 3] = [20, 40, 60];

/// Returns the words of a name in lower case. `kWh` is one.
fn words_of(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in lowercase_words(name) {
        match words.last_mut() {
            Some(prefix) if UNIT_PREFIXES.contains(&prefix.as_str()) && PREFIXED_UNITS.contains(&word.as_str()) => {
                prefix.push_str(&word);
            }
            _ => words.push(word),
        }
    }
    words
}

fn is_silent(word: &str) -> bool {
    ELECTRICAL_WORDS.contains(&word) || FURTHER_SILENT_WORDS.contains(&word)
}

/// Returns whether a word is one of totals, whatever is beside it.
fn is_total_word(word: &str) -> bool {
    TOTAL_WORDS.contains(&word) || word.strip_prefix(GERMAN_TOTAL).is_some_and(|rest| rest.chars().count() >= SHORTEST_SINGULAR)
}

/// Returns whether a word is the plural of one of some words: `gpus` of `gpu`.
fn is_plural_of(word: &str, words: &[String]) -> bool {
    let singular = word.strip_suffix('s').filter(|singular| singular.len() >= SHORTEST_SINGULAR);
    singular.is_some_and(|singular| !words.iter().any(|other| other == word) && words.iter().any(|other| other == singular))
}

/// Returns whether a word is one of some words, or the plural of one.
fn is_word_of(word: &str, words: &[String]) -> bool {
    words.iter().any(|other| other == word) || is_plural_of(word, words)
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a word of a name is one of a total, if its parts lack it. `T` is one if nothing follows it, as the number of a tariff does.
fn is_of_total(word: &str, words: &[String]) -> bool {
    let has_total = || words.iter().any(|other| is_total_word(other));
    is_total_word(word)
        || word == ALL_TARIFFS
        || word == WORD_BEFORE_TOTALS && has_total()
        || word == "t" && words.iter().all(|other| other == "t" || is_silent(other))
}

/// Returns whether a name has no word but those of totals, and of energy and power: `Total kWh`, `Energy`.
fn names_no_part(words: &[String]) -> bool {
    !words.is_empty() && words.iter().all(|word| is_silent(word) || is_of_total(word, words))
}

/// Returns the numbers C, D and E of an OBIS code: 1.8.0 of `1-0:1.8.0*255`, of `1.0.1.8.0.255` and of `energy_1_8_0`.
fn obis_code(name: &str) -> Option<[u32; 3]> {
    let dotted = if name.contains('.') { name.to_owned() } else { name.replace('_', ".") };
    let runs = dotted.split(|letter: char| letter != '.' && !letter.is_ascii_digit());
    let code_of = |run: &str| {
        let numbers: Vec<u32> = run.trim_matches('.').split('.').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        match *numbers.as_slice() {
            [kind, integral, tariff] | [_, _, kind, integral, tariff, _] => Some([kind, integral, tariff]),
            _ => None,
        }
    };
    runs.filter_map(code_of).find(|[kind, integral, _]| *kind > 0 && OBIS_KINDS.contains(integral))
}

/// Returns whether a name has the word at a place of another name, or the singular of it. A number must be behind the same word:
/// `node1 total` is of no `node2 gpu1`.
fn has_word_at(part: &[String], words: &[String], place: usize) -> bool {
    let word = &words[place];
    let before = place.checked_sub(1).map(|before| &words[before]);
    let is_free = before.is_some_and(|before| is_silent(before) || is_of_total(before, words));
    if !is_number(word) || is_free {
        return is_word_of(word, part);
    }
    (0..part.len()).any(|at| part[at] == *word && at.checked_sub(1).map(|at| &part[at]) == before)
}

/// Returns whether a name is of a part of what another is the total of: by its OBIS code, or as it has all words of the total but
/// those of totals, such as `meter 5 T1` of `meter 5 total`, and `node1 gpu0` of `node1 total gpus` and of `node1 GPUs`.
pub(super) fn names_part_of(total: &str, part: &str) -> bool {
    let (words, of_part) = (words_of(total), words_of(part));
    let is_own = |place: &usize| !is_silent(&words[*place]) && !is_of_total(&words[*place], &words);
    let mut own = (0..words.len()).filter(is_own).peekable();
    let has_own_words = own.peek().is_some() && own.all(|place| has_word_at(&of_part, &words, place));
    let is_total = |word: &String| is_of_total(word, &words) || is_plural_of(word, &of_part);
    is_code_of_total(total, part) || has_own_words && words.iter().any(is_total)
}

/// Returns whether an OBIS code is of all tariffs or phases, and another name has the code of one of them.
fn is_code_of_total(total: &str, part: &str) -> bool {
    let (Some([kind, integral, 0]), Some(part)) = (obis_code(total), obis_code(part)) else { return false };
    let is_tariff = part[0] == kind && part[2] > 0;
    let is_phase = part[2] == 0 && part[0].checked_sub(kind).is_some_and(|distance| OBIS_PHASES.contains(&distance));
    part[1] == integral && (is_tariff || is_phase)
}

/// Returns whether a name may be one of a total, beside some names of parts.
pub(super) fn may_name_total(name: &str) -> bool {
    let words = words_of(name);
    obis_code(name).is_some_and(|[.., tariff]| tariff == 0)
        || names_no_part(&words)
        || words.iter().any(|word| is_of_total(word, &words) || may_be_plural(word))
}

fn may_be_plural(word: &str) -> bool {
    word.ends_with('s') && word.len() > SHORTEST_SINGULAR
}

/// Returns whether a name has the plural of a word of each part, and no word that one of them lacks: `node1 GPUs` beside `node1
/// gpu0` and `node1 gpu1`.
fn is_plural_of_all(words: &[String], of_parts: &[Vec<String>]) -> bool {
    let is_plural = |word: &String| of_parts.iter().all(|part| is_plural_of(word, part));
    let is_known = |word: &String| is_silent(word) || is_plural(word) || of_parts.iter().all(|part| part.contains(word));
    !of_parts.is_empty() && words.iter().any(is_plural) && words.iter().all(is_known)
}

/// Returns whether a word of totals that parts have, too, is one of what they are together: each part has a word or number that the name
/// lacks, and the name has none that one of them lacks (`total_act` beside `a_total_act`), or the parts are numbered and the name
/// is not (`site total` beside `rack1 total`).
fn is_total_of_totals(words: &[String], of_parts: &[Vec<String>]) -> bool {
    let is_own = |word: &&String, of: &[String]| !is_silent(word) && !is_of_total(word, of);
    let own: Vec<&String> = words.iter().filter(|word| is_own(word, words)).collect();
    let further = |part: &[String]| -> Vec<String> {
        part.iter().filter(|word| is_own(word, part) && !words.contains(*word)).cloned().collect()
    };
    let of_parts_alone: Vec<Vec<String>> = of_parts.iter().map(|part| further(part)).collect();
    let is_shared = own.iter().all(|word| of_parts.iter().all(|part| part.contains(*word)));
    let labels = |part: &Vec<String>| -> Vec<String> { part.iter().filter(|word| !is_number(word)).cloned().collect() };
    let has_label = of_parts_alone.first().is_some_and(|first| !labels(first).is_empty());
    let is_numbered = |part: &Vec<String>| {
        part.iter().any(|word| is_number(word)) && of_parts_alone.first().is_some_and(|first| labels(first) == labels(part))
    };
    let are_numbered = has_label && !own.iter().any(|word| is_number(word)) && of_parts_alone.iter().all(is_numbered);
    of_parts.len() > 1 && of_parts_alone.iter().all(|part| !part.is_empty()) && (is_shared || are_numbered)
}

/// Returns whether all words of a name beside `all` are silent, of totals, or of a part: `rack-all` beside `rack-a`, and `all gpus`
/// beside `gpu-0`.
fn is_all_of(words: &[String], of_parts: &[Vec<String>]) -> bool {
    let is_known =
        |word: &String| is_silent(word) || is_of_total(word, words) || of_parts.iter().any(|of_part| is_word_of(word, of_part));
    words.iter().all(is_known)
}

/// Returns whether a name is one of the total of some parts: it has a word of totals that no part has, or that distinguishes it as
/// the total of their totals, and no number that a part lacks; or it names no part, and each of the others names one by more than a
/// number; or it has the plural of what each part is.
pub(super) fn names_total_of(name: &str, parts: &[&str]) -> bool {
    let words = words_of(name);
    let of_parts: Vec<Vec<String>> = parts.iter().map(|part| words_of(part)).collect();
    let is_shared = |word: &str| of_parts.iter().any(|part| is_of_total(word, part) && part.iter().any(|other| other == word));
    let is_distinctive = |word: &str| !is_shared(word) || is_total_of_totals(&words, &of_parts);
    let is_of_all = |number: &String| of_parts.iter().all(|part| part.contains(number));
    let has_own_number = words.iter().filter(|word| is_number(word)).any(|number| !is_of_all(number));
    let is_own_word =
        |word: &String| is_of_total(word, &words) && is_distinctive(word) && (word != ALL || is_all_of(&words, &of_parts));
    let has_own_word = !has_own_number && words.iter().any(is_own_word);
    let names_part = |words: &Vec<String>| {
        let is_of_part = |word: &String| !is_number(word) && !is_silent(word) && !is_of_total(word, words);
        words.iter().any(is_of_part)
    };
    has_own_word
        || names_no_part(&words) && of_parts.iter().all(names_part)
        || is_plural_of_all(&words, &of_parts)
        || parts.iter().all(|part| is_code_of_total(name, part))
}

/// Returns the place of a column whose name is one of a total and of nothing else, such as `Total kWh`, if no other name has that
/// word. `total` at the end of the name of a counter may be its running total.
pub(crate) fn find_plain_total(columns: &[&str], is_counter: bool) -> Option<usize> {
    let words: Vec<Vec<String>> = columns.iter().map(|column| words_of(column)).collect();
    let is_plain = |place: &usize| {
        let own = words[*place].as_slice();
        let ends_as_counter = |last: &String, before: &[String]| {
            is_counter && RUNNING_TOTAL_WORDS.contains(&last.as_str()) && before.last().is_some_and(|before| is_silent(before))
        };
        let own = match own.split_last() {
            Some((last, before)) if ends_as_counter(last, before) => before,
            _ => own,
        };
        let is_of_others = |word: &String| words.iter().enumerate().any(|(other, have)| other != *place && have.contains(word));
        let is_sure = |word: &String| is_total_word(word) && !is_of_others(word);
        names_no_part(own) && own.iter().any(is_sure)
    };
    (0..columns.len()).find(is_plain).filter(|_| columns.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_of_a_total_by_whole_words_and_codes() {
        for (name, parts, is_total) in [
            ("Total kWh", ["T1 kWh", "T2 kWh"], true),
            ("total", ["gpu0", "gpu1"], true),
            ("Import Total", ["Import T1", "Import T2"], true),
            ("Import kWh", ["Import T1 kWh", "Import T2 kWh"], true),
            ("import", ["t1", "t2"], true),
            ("overall", ["a", "b"], true),
            ("Grand Total kWh", ["A kWh", "B kWh"], true),
            ("combined", ["a", "b"], true),
            ("Gesamt kWh", ["T1 kWh", "T2 kWh"], true),
            ("合计", ["gpu0", "gpu1"], true),
            ("rack-all", ["rack-a", "rack-b"], true),
            ("all", ["a", "b"], true),
            ("all gpus", ["gpu-0", "gpu-1"], true),
            ("Total all boards", ["a", "b"], true),
            ("T kWh", ["T1 kWh", "T2 kWh"], true),
            ("kWh", ["kWh T1", "kWh T2"], true),
            ("1.8.0", ["1.8.1", "1.8.2"], true),
            ("1-0:1.8.0*255", ["1-0:1.8.1*255", "1-0:1.8.2*255"], true),
            ("1.0.1.8.0.255", ["1.0.1.8.1.255", "1.0.1.8.2.255"], true),
            ("energy_1_8_0_kWh", ["energy_1_8_1_kWh", "energy_1_8_2_kWh"], true),
            ("1.8.0", ["21.8.0", "41.8.0"], true),
            ("dgx01/all GPUs", ["dgx01/gpu0", "dgx01/gpu1"], true),
            ("dgx01_total_gpus", ["dgx01_gpu0", "dgx01_gpu1"], true),
            ("GPUs", ["gpu0", "gpu1"], true),
            ("node1 GPUs power", ["node1 gpu0 power", "node1 gpu1 power"], true),
            ("site total", ["rack1 total", "rack2 total"], true),
            ("total_act_energy", ["a_total_act_energy", "b_total_act_energy"], true),
            ("Gesamtverbrauch", ["Verbrauch HT", "Verbrauch NT"], true),
            // Of none.
            ("gpus", ["gpus", "gpu1"], false),
            ("GPUs", ["gpu0", "cpu0"], false),
            ("node2 GPUs", ["node1 gpu0", "node1 gpu1"], false),
            ("bus", ["bu", "bu 2"], false),
            ("pods", ["node1", "node2"], false),
            ("c total", ["a total", "b total"], false),
            ("gpu total", ["cpu total", "dram total"], false),
            ("rack3 total", ["rack1 total", "rack2 total"], false),
            ("c", ["a", "b"], false),
            ("allreduce-node", ["node-1", "node-2"], false),
            ("all-reduce", ["worker-a", "worker-b"], false),
            ("all to all", ["worker-a", "worker-b"], false),
            ("sumit-3", ["sumit-1", "sumit-2"], false),
            ("alloy", ["brass", "steel"], false),
            ("grand-1", ["petit-1", "petit-2"], false),
            ("gpu-all-2", ["gpu-0", "gpu-1"], false),
            ("meter 5 total", ["meter 5 T1", "meter 5 T2"], true),
            ("gpu2_energy_total", ["gpu0_energy_total", "gpu1_energy_total"], false),
            ("kWh", ["kWh 1", "kWh 2"], false),
            ("T3", ["T1", "T2"], false),
            ("node-t", ["node-a", "node-b"], false),
            ("1.8.1", ["1.8.0", "1.8.2"], false),
            ("2.8.0", ["1.8.1", "1.8.2"], false),
            ("10.0.0.0", ["10.0.0.1", "10.0.0.2"], false),
        ] {
            assert_eq!(names_total_of(name, &parts), is_total, "{name} of {parts:?}");
            assert!(may_name_total(name) || !is_total, "{name}");
        }
    }

    #[test]
    fn parts_have_the_other_words_of_their_total() {
        for (total, part, is_part) in [
            ("meter 5 total", "meter 5 T1", true),
            ("A total", "A T1", true),
            ("1.8.0", "1.8.2", true),
            ("dgx01/total_gpus", "dgx01/gpu3", true),
            ("dgx01 all GPUs", "dgx01 gpu3", true),
            ("node1 GPUs", "node1 gpu3", true),
            ("r05c02_all_gpus", "r05c02_gpu0", true),
            ("power 5 total", "energy 5", true),
            ("r05c02_all_gpus", "r02c05_gpu0", false),
            ("node1/total_gpus", "node2/gpu1", false),
            ("dgx01/total_gpus", "dgx02/gpu01", false),
            ("A total", "B T1", false),
            ("total", "T1", false),
            ("node", "node a", false),
            ("1.8.0", "2.8.1", false),
        ] {
            assert_eq!(names_part_of(total, part), is_part, "{part} of {total}");
        }
    }

    #[test]
    fn a_column_of_nothing_but_a_total_is_found() {
        for (columns, is_counter, place) in [
            (&["T1 kWh", "T2 kWh", "Total kWh"][..], true, Some(2)),
            (&["sum", "a", "b"], true, Some(0)),
            (&["Power Total [W]", "gpu0 [W]"], false, Some(0)),
            (&["a kWh", "Grand Total kWh"], true, Some(1)),
            (&["a kWh", "Combined"], true, Some(1)),
            (&["Grand kWh", "Petit kWh"], true, None),
            (&["Total", "Total.1"], true, None),
            (&["Energy Total", "Energy 2"], true, None),
            (&["kWh total", "kWh T1"], true, None),
            (&["total rack 1", "rack 2"], true, None),
            (&["Import kWh", "Export kWh"], true, None),
            (&["alloy", "sumit"], false, None),
            (&["Total kWh"], true, None),
            (&[], true, None),
        ] {
            assert_eq!(find_plain_total(columns, is_counter), place, "{columns:?}");
        }
    }
}
