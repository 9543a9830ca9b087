//! Names of boards that are none of a board of their own: other figures of one, or parts of its machine. Counted beside it, they
//! would count its energy twice, or that of something else.

use eadt_schemas::v1::Meter;

use crate::error::quote;
use crate::units::word_places;

/// Words that say which figure of a board a name is of, beside the figure itself.
const FIGURE_WORDS: [&str; 19] = [
    "average",
    "avg",
    "cap",
    "default",
    "enforced",
    "limit",
    "max",
    "maximum",
    "mean",
    "median",
    "min",
    "minimum",
    "peak",
    "percentile",
    "process",
    "std",
    "stddev",
    "stdev",
    "tdp",
];
/// Words that say that a name is of a GPU.
const GPU_WORDS: [&str; 6] = ["accelerator", "card", "cuda", "gpu", "gpus", "nvidia"];
/// Words of other parts of a machine, and of all of it.
const PART_WORDS: [&str; 10] = ["cpu", "cpus", "disk", "dram", "fan", "package", "pkg", "psu", "ram", "soc"];
const MACHINE_WORDS: [&str; 7] = ["chassis", "host", "machine", "node", "platform", "server", "system"];
/// Words of energy and power, which say nothing about what they are of.
const ELECTRICAL_WORDS: [&str; 12] =
    ["consumed", "consumption", "draw", "energy", "joules", "kwh", "mw", "power", "usage", "w", "watt", "watts"];

/// A name that is not of a board of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MisnamedBoard {
    /// Its place among the names.
    pub(crate) index: usize,
    /// Continues "it is".
    pub(crate) problem: String,
}

/// Finds the names, of several that differ, which are not of a board of their own: `gpu0_max` beside `gpu0`, and `cpu` beside
/// `gpu`, unless what is metered is more than a board.
pub(crate) fn find_misnamed_boards(names: &[&str], meter: Meter) -> Vec<MisnamedBoard> {
    let names: Vec<BoardName> = names.iter().map(|name| BoardName::new(name)).collect();
    let gpu = names.iter().find(|name| name.is_gpu);
    let part = names.iter().find(|name| name.extent == Extent::Part);
    let misnamed = |(index, name): (usize, &BoardName)| {
        let others = || names.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other);
        let same_board = || others().filter(|other| other.board == name.board).min_by_key(|other| other.has_figure);
        let counts_parts = matches!(meter, Meter::Node | Meter::Wall);
        let counted = match name.extent {
            _ if name.is_gpu => None,
            Extent::Unknown => None,
            Extent::Part => gpu.filter(|_| !counts_parts),
            Extent::Machine => gpu.or(part),
        };
        let problem = match (name.has_figure.then(same_board).flatten(), counted) {
            (Some(other), _) => format!("by its name another figure of what {} is of", quote(other.text)),
            (None, Some(other)) => {
                format!("by its name of another part of the machine than {}, or of all of it", quote(other.text))
            }
            (None, None) => return None,
        };
        Some(MisnamedBoard { index, problem })
    };
    names.iter().enumerate().filter_map(misnamed).collect()
}

/// The name of a board, by its words.
struct BoardName<'n> {
    text: &'n str,
    /// The words that are of the board itself.
    board: Vec<String>,
    has_figure: bool,
    is_gpu: bool,
    extent: Extent,
}

/// How much of a machine a name is of, if its words say so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Unknown,
    Part,
    Machine,
}

impl<'n> BoardName<'n> {
    fn new(text: &'n str) -> Self {
        let words: Vec<String> = word_places(text).into_iter().map(|place| text[place].to_lowercase()).collect();
        let has = |list: &[&str], word: &String| list.contains(&word.as_str());
        // `p95`, a percentile.
        let is_number = |at: usize| words.get(at).is_some_and(|word| word.len() == 2 && word.bytes().all(|b| b.is_ascii_digit()));
        let is_of_percentile =
            |at: usize| words[at] == "p" && is_number(at + 1) || at > 0 && words[at - 1] == "p" && is_number(at);
        let is_of_figure = |at: usize| has(&FIGURE_WORDS, &words[at]) || is_of_percentile(at);
        let is_of_board = |at: &usize| !is_of_figure(*at) && !has(&GPU_WORDS, &words[*at]);
        let board = (0..words.len()).filter(is_of_board).map(|at| words[at].clone()).collect();
        let has_figure = (0..words.len()).any(is_of_figure);
        let is_gpu = words.iter().any(|word| has(&GPU_WORDS, word));
        Self { text, board, has_figure, is_gpu, extent: extent_of(&words) }
    }
}

/// Returns how much of a machine a name of such words is of.
fn extent_of(words: &[String]) -> Extent {
    let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
    let is_number = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit());
    let is_known = |word: &String| {
        let lists = [&PART_WORDS[..], &MACHINE_WORDS, &ELECTRICAL_WORDS];
        is_number(word) || lists.iter().any(|list| list.contains(&word.as_str()))
    };
    match () {
        () if words.is_empty() || !words.iter().all(is_known) => Extent::Unknown,
        () if has(&MACHINE_WORDS) => Extent::Machine,
        () if has(&PART_WORDS) => Extent::Part,
        // Of energy and power only, without a number, is the sum.
        () if !words.iter().any(is_number) => Extent::Machine,
        () => Extent::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_and_parts_of_the_machine_are_no_boards() {
        for (names, meter, misnamed) in [
            (&["gpu0", "gpu1"][..], Meter::Gpu, &[][..]),
            (&["gpu0", "gpu0_max", "gpu0_min"], Meter::Gpu, &[1, 2]),
            (&["0_power", "0_power_limit", "1_power"], Meter::Gpu, &[1]),
            (&["0.powerWatts", "0.powerWatts__MAX", "process.0.powerWatts"], Meter::Gpu, &[1, 2]),
            (&["gpu0", "process.0"], Meter::Gpu, &[1]),
            (&["gpu0_min", "gpu0_max"], Meter::Gpu, &[0, 1]),
            (&["gpu0 p95", "gpu0 p50", "gpu1"], Meter::Gpu, &[0, 1]),
            (&["cpu", "gpu", "dram", "node"], Meter::Gpu, &[0, 2, 3]),
            (&["cpu", "gpu", "dram", "node"], Meter::Node, &[3]),
            (&["node0 gpu0", "node0"], Meter::Gpu, &[1]),
            (&["gpu_energy", "energy_consumed"], Meter::Gpu, &[1]),
            (&["node1", "node2", "login1"], Meter::Gpu, &[]),
            (&["PSU1", "PSU2", "System"], Meter::Wall, &[2]),
            (&["system", "node"], Meter::Wall, &[]),
            (&["cpu0", "cpu1"], Meter::Gpu, &[]),
            (&["0_power", "1_power"], Meter::Gpu, &[]),
            (&["gpu-max-1", "gpu-max-2"], Meter::Gpu, &[]),
            (&["gpu0", "GH200"], Meter::Gpu, &[]),
        ] {
            let found: Vec<usize> = find_misnamed_boards(names, meter).into_iter().map(|found| found.index).collect();
            assert_eq!(found, misnamed, "{names:?} {meter:?}");
        }
    }
}
