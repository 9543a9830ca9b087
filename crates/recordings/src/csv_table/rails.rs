//! Names of rails and chips, whose power is a part of that of their board or module.

use crate::units::lowercase_words;

/// Part of a board or module that a name refers to, if its words show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BoardPart {
    Unknown,
    /// All of a board.
    Whole,
    /// Input of a module, by the rail: `VDD_IN`.
    Input,
    /// The same as a tool adds it up: `TOT`.
    Total,
    /// A rail, a chip or a connector.
    Rail,
}

/// Words of rails, which name nothing else.
const RAIL_WORDS: [&str; 17] = [
    "fbvdd", "fbvddq", "hvpwr", "msvdd", "mvdd", "mvddc", "mvddq", "nvvdd", "pom", "vdd", "vddc", "vddci", "vddcr", "vddgfx",
    "vddq", "vddrq", "vin",
];
/// Words of parts that hosts and models have in their names, too: of a part beside a word of power in the name of a GPU.
const CHIP_WORDS: [&str; 15] =
    ["chip", "core", "cores", "die", "dram", "hbm", "mem", "memory", "pin", "rail", "rails", "ram", "slot", "soc", "vram"];
/// Words that name all of a board, beside those of GPUs.
const WHOLE_WORDS: [&str; 2] = ["board", "module"];

/// Returns which part of a board a name of such words is of. `is_gpu`: it names a GPU; `is_silent` selects the words of energy and
/// power, and numbers.
pub(super) fn board_part(words: &[String], is_gpu: bool, is_silent: impl Fn(&str) -> bool) -> BoardPart {
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    let is_electrical = words.iter().any(|word| is_silent(word) && !word.bytes().all(|byte| byte.is_ascii_digit()));
    // `VDD_IN`, and `POM_5V_IN` of older modules.
    let is_input = words.windows(2).any(|pair| pair[1] == "in" && (pair[0] == "vdd" || pair[0] == "v" && has(&["pom"])));
    let is_total = has(&["tot"]) && words.iter().all(|word| word == "tot" || is_silent(word));
    match () {
        () if is_input => BoardPart::Input,
        () if is_total => BoardPart::Total,
        () if has(&RAIL_WORDS) || is_gpu && is_electrical && has(&CHIP_WORDS) => BoardPart::Rail,
        () if is_gpu || has(&WHOLE_WORDS) => BoardPart::Whole,
        () => BoardPart::Unknown,
    }
}

/// Words of the rails of a module of NVIDIA's Jetson.
const MODULE_WORDS: [&str; 5] = ["pom", "vdd", "vddq", "vddrq", "vin"];

/// Returns whether a column is by its name of a rail of a module, such as `Power VDD_IN`.
pub(crate) fn names_rail_of_module(name: &str) -> bool {
    lowercase_words(name).iter().any(|word| MODULE_WORDS.contains(&word.as_str()))
}

/// Returns whether a column is by its name the total of the rails of a module, if it has rails: `Power TOT`.
pub(crate) fn names_total_of_rails(name: &str) -> bool {
    lowercase_words(name).iter().any(|word| word == "tot")
}
