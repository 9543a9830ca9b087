//! Names of boards that are none of a board of their own: other figures of one, or parts of its machine. Counted beside it, they
//! would count its energy twice, or that of something else.

use std::collections::HashMap;

use eadt_schemas::v1::Meter;

use super::nested_meters::{MeterIndex, MeterName};
use super::rails::{BoardPart, SuperchipIndex, SuperchipName, SuperchipPart, board_part, choose_numbers, settle_modules_of_gpus};
use super::{LIMIT_WORDS, names_a_sum, names_power};
use crate::error::quote;
use crate::sum_of_devices::WORD_BEFORE_TOTALS;
use crate::words::{ELECTRICAL_WORDS, TOTAL_WORDS, word_places};

/// Words that state which figure of a board a name is of, beside the figure itself.
const FIGURE_WORDS: [&str; 17] = [
    "average", "avg", "cap", "last", "limit", "max", "maximum", "mean", "median", "min", "minimum", "peak", "process", "std",
    "stddev", "stdev", "tdp",
];
/// Words of figures from which energy follows best, the best first; it does not follow from others.
const BEST_FIGURES: [&[&str]; 3] = [&["average", "avg", "mean"], &["last"], &["median"]];
/// Words of which limit a name is of.
const WORDS_BESIDE_LIMITS: [&str; 2] = ["default", "enforced"];
/// Percentiles that are written behind a name, as `p95`.
const PERCENTILES: [&str; 5] = ["50", "75", "90", "95", "99"];
/// Words that show that a name is of a GPU.
const GPU_WORDS: [&str; 6] = ["accelerator", "card", "cuda", "gpu", "gpus", "nvidia"];
/// Words of other parts of a machine, and of all of it.
const PART_WORDS: [&str; 12] = ["cpu", "cpus", "disk", "dram", "fan", "fans", "memory", "package", "pck", "pkg", "ram", "soc"];
/// Words of parts that hosts have in their names, too: of a part beside a word of energy or power, as `Mem Power`.
const SENSOR_PART_WORDS: [&str; 5] = ["dimm", "hdd", "mem", "nvme", "ssd"];
const MACHINE_WORDS: [&str; 8] = ["chassis", "host", "machine", "node", "platform", "server", "sys", "system"];
/// The machine, in the names of its sensors: `System Board Pwr Consumption`, `PowerControl.PowerConsumedWatts`.
const MACHINE_PHRASES: [[&str; 2]; 2] = [["system", "board"], ["power", "control"]];
/// Words of power supplies: their consumers are behind them.
const SUPPLY_WORDS: [&str; 5] = ["ps", "psu", "psus", "supplies", "supply"];
/// A power supply, in the names of its sensors: `Power Module 1`. `Module Power` is of a superchip.
const SUPPLY_PHRASE: [&str; 2] = ["power", "module"];
/// Words for the input of a machine or a supply, and for the output of a supply: the same energy, less the supply's losses.
const INPUT_WORDS: [&str; 4] = ["ac", "in", "input", "pin"];
const OUTPUT_WORDS: [&str; 4] = ["dc", "out", "output", "pout"];

/// A name that is not of a board of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MisnamedBoard {
    /// Its place among the names.
    pub(crate) index: usize,
    /// Continues "it is".
    pub(crate) problem: String,
}

/// Finds the names, of several that differ, which are not of a board of their own: `gpu0_max` beside `gpu0`, and `cpu` beside
/// `gpu`. If what is metered is more than a board, or no name is of a GPU, these are the parts beside the whole, and what lies
/// behind power supplies. The module of a superchip is a whole of its GPUs, unless GPUs are metered.
pub(crate) fn find_misnamed_boards(names: &[&str], meter: Meter) -> Vec<MisnamedBoard> {
    let names = parse_names(names);
    let index = NameIndex::new(&names);
    let device = find_device(&names, meter);
    let supply = names.iter().find(|name| name.extent == Extent::Supply && !name.is_gpu);
    let counts_machines = matches!(meter, Meter::Node | Meter::Wall) || device.is_none();
    let counts_modules = counts_machines || device.is_some_and(BoardName::is_module);
    let whole = find_whole(&names, meter, false);
    let whole_of_parts = find_whole(&names, meter, true);
    let power = names.iter().find(|name| names_power(name.text) == Some(true) && !name.is_limit());
    let at = |place: Option<usize>| place.map(|place| &names[place]);
    let misnamed = |(place, name): (usize, &BoardName)| {
        let same_board = at(index.find_figure(place, name).or_else(|| index.find_input_of_total(name)));
        let module = at(index.find_module(name)).filter(|_| counts_modules);
        let is_of_machine = name.extent != Extent::Unknown || name.meter.is_some();
        let beside = device.filter(|device| is_of_machine && !name.is_same_kind(device));
        let beside = beside.or_else(|| at(index.find_gpu(name)).filter(|_| !counts_modules));
        let counted = beside.filter(|_| !counts_machines && module.is_none());
        let behind = match name.extent {
            Extent::Part => whole_of_parts.or(supply),
            Extent::Supply => whole,
            Extent::Unknown | Extent::Machine => None,
        };
        let behind = behind.or_else(|| at(index.find_machine(name))).filter(|_| counts_machines).or(module);
        let behind = behind.or_else(|| {
            let wholes = [index.find_meter(name), index.find_board(name)];
            at(wholes.into_iter().flatten().min())
        });
        let input = at(index.find_input(name));
        let problem = match (same_board, counted, behind, input) {
            (Some(other), ..) => format!("by its name another figure of what {} is of", quote(other.text)),
            (None, Some(other), ..) => {
                format!("by its name of another part of the machine than {}, or of all of it", quote(other.text))
            }
            (None, None, Some(other), _) => format!("by its name of a part of what {} is of", quote(other.text)),
            (None, None, None, Some(other)) => {
                format!("by its name the output of what {} is the input of", quote(other.text))
            }
            (None, None, None, None) => {
                let power = power.filter(|_| name.is_limit())?;
                format!("by its name a limit, and no power as {} is", quote(power.text))
            }
        };
        Some(MisnamedBoard { index: place, problem })
    };
    names.iter().enumerate().filter_map(misnamed).collect()
}

fn parse_names<'n>(names: &[&'n str]) -> Vec<BoardName<'n>> {
    let mut names: Vec<BoardName<'n>> = names.iter().map(|name| BoardName::new(name)).collect();
    // `power_module` beside `power_gpu` is of a superchip.
    let begins_with_power =
        |name: &BoardName<'n>| name.superchip.is_some() && name.words.first().is_some_and(|word| word == "power");
    let are_supplies = !names.iter().any(|name| begins_with_power(name) && !names_power_module(&name.words));
    for name in names.iter_mut().filter(|name| are_supplies && names_power_module(&name.words)) {
        (name.extent, name.part, name.superchip) = (Extent::Supply, BoardPart::Unknown, None);
    }
    settle_modules_of_gpus(&mut names.iter_mut().filter_map(|name| name.superchip.as_mut()).collect::<Vec<_>>());
    let has_superchips = has_superchips(&names);
    let is_part = |name: &BoardName<'n>| name.superchip.as_ref().is_some_and(|own| own.is_part_of_machine(has_superchips));
    for name in names.iter_mut().filter(|name| name.extent == Extent::Unknown) {
        if is_part(name) {
            name.extent = Extent::Part;
        }
    }
    names
}

/// Returns whether one of some names is of what superchips only have.
fn has_superchips(names: &[BoardName<'_>]) -> bool {
    names.iter().filter_map(|name| name.superchip.as_ref()).any(SuperchipName::is_distinctive)
}

/// Returns the first name of what counts beside other parts of its machine and all of it: a module if modules are metered, else a
/// GPU.
fn find_device<'b, 'n>(names: &'b [BoardName<'n>], meter: Meter) -> Option<&'b BoardName<'n>> {
    let module = names.iter().find(|name| meter == Meter::Module && name.is_module());
    let gpu = || names.iter().find(|name| name.is_gpu && !name.is_module());
    module.or_else(gpu).or_else(|| names.iter().find(|name| name.is_gpu))
}

/// Finds two of several names, the first of which is of a part of what the second measures, as `core` of `package-0`: their
/// places.
pub(super) fn find_part_and_whole(names: &[&str]) -> Option<(usize, usize)> {
    let names = parse_names(names);
    let index = NameIndex::new(&names);
    names.iter().enumerate().find_map(|(part, name)| Some((part, index.find_meter(name)?)))
}

/// Finds two of several names, the first of which is of a rail or a chip of the board of the second, or of a part of its module:
/// their places.
pub(super) fn find_rail_and_board(names: &[&str]) -> Option<(usize, usize)> {
    let names = parse_names(names);
    let index = NameIndex::new(&names);
    let whole = |name: &BoardName<'_>| index.find_board(name).or_else(|| index.find_module(name));
    names.iter().enumerate().find_map(|(part, name)| Some((part, whole(name)?)))
}

/// Describes a zone of RAPL below another of these names: by its number it may be a part of that, or the memory beside it.
pub(super) fn describe_zone(names: &[&str]) -> Option<String> {
    let names = parse_names(names);
    let index = NameIndex::new(&names);
    let (zone, whole) = names.iter().find_map(|zone| Some((quote(zone.text), quote(names[index.find_zone(zone)?].text))))?;
    Some(format!(
        "{zone} is by its number a zone below {whole}: whether it is a part of that, such as the cores, or the memory beside it, the number \
         does not show; both count; if it is a part, leave it out, or name each zone by its domain (package-0, core, dram) in a column, and use \
         --map device=COLUMN"
    ))
}

/// Returns a name of the whole machine, beside which supplies do not count, or parts (`is_of_parts`).
fn find_whole<'b, 'n>(names: &'b [BoardName<'n>], meter: Meter, is_of_parts: bool) -> Option<&'b BoardName<'n>> {
    // Numbers are those of several machines.
    let has_several = matches!(meter, Meter::Node | Meter::Wall);
    let is_machine = |name: &&BoardName| name.extent == Extent::Machine && !name.is_gpu && !(name.has_number && has_several);
    // At a wall, a server and a fan may have a plug each. Names of totals or supplies are of one machine's sensors.
    let is_of_sensors = |name: &BoardName| name.extent == Extent::Supply || name.has_word(&TOTAL_WORDS);
    let may_be_plugs = meter == Meter::Wall && is_of_parts && !names.iter().any(is_of_sensors);
    let is_whole = |name: &&BoardName| is_machine(name) && !(may_be_plugs && name.has_word(&MACHINE_WORDS));
    // A sum is itself left out if a board is beside it that is none of its parts.
    let is_sum = |name: &BoardName| names_a_sum(name.text);
    let has_other_boards = names.iter().any(|name| name.extent == Extent::Unknown && !is_sum(name));
    names.iter().filter(is_whole).find(|name| !(has_other_boards && is_sum(name)))
}

/// The name of a board, by its words.
pub(super) struct BoardName<'n> {
    text: &'n str,
    words: Vec<String>,
    /// The words that are of the board itself, and not of a figure of it.
    board: Vec<String>,
    has_figure: bool,
    /// Rank of the figure: 0 if the name has no word of one, greater if less energy follows from it.
    figure: usize,
    has_number: bool,
    is_gpu: bool,
    extent: Extent,
    part: BoardPart,
    /// A part of a superchip.
    superchip: Option<SuperchipName>,
    /// A domain of RAPL, or a side of a power distribution unit.
    meter: Option<MeterName>,
}

/// Part of a machine that a name refers to, if its words show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    Unknown,
    Part,
    /// A power supply of the machine, one of several.
    Supply,
    Machine,
}

impl<'n> BoardName<'n> {
    pub(super) fn new(text: &'n str) -> Self {
        let places = word_places(text);
        let words: Vec<String> = places.iter().map(|place| text[place.clone()].to_lowercase()).collect();
        let has = |list: &[&str], word: &String| list.contains(&word.as_str());
        // The owner of the board, such as a namespace, is before a slash.
        let own = text.rfind('/').unwrap_or(0);
        let last = words.len().saturating_sub(1);
        let has_percentile = last > 0 && words[last - 1] == "p" && has(&PERCENTILES, &words[last]);
        let has_limit = words.iter().any(|word| word == "limit");
        let is_of_figure = |at: usize| {
            places[at].start >= own
                && (has(&FIGURE_WORDS, &words[at])
                    || has_limit && has(&WORDS_BESIDE_LIMITS, &words[at])
                    || has_percentile && at + 1 >= last)
        };
        let board: Vec<String> = (0..words.len()).filter(|at| !is_of_figure(*at)).map(|at| words[at].clone()).collect();
        let has_number = words.iter().any(|word| is_number(word));
        let is_gpu = words.iter().any(|word| has(&GPU_WORDS, word));
        let has_figure = board.len() < words.len();
        let rank_of = |at: usize| BEST_FIGURES.iter().position(|best| has(best, &words[at])).unwrap_or(BEST_FIGURES.len()) + 1;
        let figure = (0..words.len()).filter(|at| is_of_figure(*at)).map(rank_of).max().unwrap_or(0);
        let is_silent = |word: &str| is_number(word) || is_electrical(word);
        let (extent, part) = (extent_of(&words), board_part(&words, is_gpu, is_silent));
        let superchip = SuperchipName::new(&board, is_silent);
        Self { text, has_figure, figure, board, has_number, is_gpu, extent, part, superchip, meter: MeterName::new(text), words }
    }

    /// Returns whether it is of a whole module, which may have GPUs.
    fn is_module(&self) -> bool {
        self.superchip.as_ref().is_some_and(|name| name.part == SuperchipPart::Module)
    }

    /// Returns whether it is of a module or of a GPU, as another name is.
    fn is_same_kind(&self, device: &BoardName<'_>) -> bool {
        self.is_module() == device.is_module() && (self.is_gpu || device.is_module())
    }

    /// Returns how far a name is from that of the power of a whole board, and of its plain figure: the nearest is the least.
    pub(super) fn distance_from_board(&self) -> (u8, usize) {
        let is_of_part = self.part == BoardPart::Rail || self.extent == Extent::Part && !self.is_gpu;
        let distance = match () {
            () if is_of_part || self.extent == Extent::Supply => 2,
            () if self.part == BoardPart::Unknown => 1,
            () => 0,
        };
        (distance, self.figure)
    }

    fn has_word(&self, list: &[&str]) -> bool {
        self.words.iter().any(|word| list.contains(&word.as_str()))
    }

    /// Returns whether it is of a limit of power: `POWER_MGMT_LIMIT`, `power_limit_watts`.
    fn is_limit(&self) -> bool {
        let last = self.words.iter().rfind(|word| !is_electrical(word));
        last.is_some_and(|word| LIMIT_WORDS.contains(&word.as_str())) && names_power(self.text) == Some(true)
    }

    /// Returns the numbers of a name, each once.
    fn numbers(&self) -> Vec<&str> {
        let mut numbers: Vec<&str> = self.words.iter().map(String::as_str).filter(|word| is_number(word)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    /// Returns the words of a machine or a supply without those of energy and power and of its sides, if these are as given: it has
    /// words of what goes into it, and of what comes out.
    fn source(&self, sides: (bool, bool)) -> Option<Vec<&str>> {
        let is_machine = matches!(self.extent, Extent::Machine | Extent::Supply);
        let is_left_out =
            |word: &str| [&INPUT_WORDS[..], &OUTPUT_WORDS, &ELECTRICAL_WORDS].iter().any(|list| list.contains(&word));
        (is_machine && (self.has_word(&INPUT_WORDS), self.has_word(&OUTPUT_WORDS)) == sides)
            .then(|| self.words.iter().map(String::as_str).filter(|word| !is_left_out(word)).collect())
    }
}

/// Ranks of figures, see [`BoardName::figure`].
const FIGURE_RANKS: usize = BEST_FIGURES.len() + 2;

/// Index of names to their first places, so that comparing many names takes linear time.
#[derive(Default)]
struct NameIndex<'b> {
    /// Names without words of a figure, by their words; `gpu0` by its number, too.
    plain: HashMap<&'b [String], usize>,
    /// Names with words of a figure, by the words of their board and the rank of the figure.
    figures: HashMap<&'b [String], [Option<usize>; FIGURE_RANKS]>,
    /// Names of a machine, by their words.
    machines: HashMap<&'b [String], usize>,
    /// Names with a number, by their words.
    numbered: HashMap<&'b [String], usize>,
    /// Names of the input of a machine or a supply, by [`BoardName::source`].
    inputs: HashMap<Vec<&'b str>, usize>,
    /// Names of all of a board, by [`BoardName::numbers`].
    boards: HashMap<Vec<&'b str>, usize>,
    /// The input of a module by its rail, and by its rail or as a tool adds it up.
    module_input: Option<usize>,
    module: Option<usize>,
    superchips: SuperchipIndex<'b>,
    meters: MeterIndex<'b>,
}

impl<'b> NameIndex<'b> {
    fn new(names: &'b [BoardName<'_>]) -> Self {
        let mut index = Self { superchips: SuperchipIndex::new(has_superchips(names)), ..Self::default() };
        for (place, name) in names.iter().enumerate() {
            index.add(place, name);
        }
        index
    }

    fn add(&mut self, place: usize, name: &'b BoardName<'_>) {
        let words = name.words.as_slice();
        if name.has_figure {
            let of_board = self.figures.entry(name.board.as_slice()).or_default();
            of_board[name.figure].get_or_insert(place);
        } else {
            self.plain.entry(words).or_insert(place);
            if let Some((_, number)) = words.split_first().filter(|(first, _)| *first == "gpu") {
                self.plain.entry(number).or_insert(place);
            }
        }
        if name.extent == Extent::Machine {
            self.machines.entry(words).or_insert(place);
        }
        if name.has_number {
            self.numbered.entry(words).or_insert(place);
        }
        if let Some(source) = name.source((true, false)) {
            self.inputs.entry(source).or_insert(place);
        }
        if name.part == BoardPart::Whole {
            self.boards.entry(name.numbers()).or_insert(place);
        }
        if name.part == BoardPart::Input {
            self.module_input.get_or_insert(place);
        }
        if matches!(name.part, BoardPart::Input | BoardPart::Total) {
            self.module.get_or_insert(place);
        }
        if let Some(superchip) = &name.superchip {
            self.superchips.add(place, superchip);
        }
        if let Some(meter) = &name.meter {
            self.meters.add(place, meter);
        }
    }

    /// Finds the name of which another is a figure: the same without the words of a figure, or with those of a better one, as `gpu0
    /// mean` of `gpu0 max`. The number alone of the latter may be of a pod.
    fn find_figure(&self, place: usize, name: &BoardName<'_>) -> Option<usize> {
        if !name.has_figure {
            return None;
        }
        let board = name.board.as_slice();
        let plain = self.plain.get(board).copied();
        let is_specific = board.iter().any(|word| names_gpu(word) || is_electrical(word));
        let figures = self.figures.get(board).filter(|_| is_specific).into_iter().flatten().enumerate();
        let better = figures.filter_map(|(figure, first)| first.filter(|first| (figure, *first) < (name.figure, place)));
        better.chain(plain).min()
    }

    /// Finds the input of a module, if a name is of what a tool adds up.
    fn find_input_of_total(&self, name: &BoardName<'_>) -> Option<usize> {
        self.module_input.filter(|_| name.part == BoardPart::Total)
    }

    /// Finds the machine of which a name is of a part, as `node0` of `node0 gpu0`.
    fn find_machine(&self, name: &BoardName<'_>) -> Option<usize> {
        if self.machines.is_empty() {
            return None;
        }
        let is_part = |word: &String| names_gpu(word) || PART_WORDS.contains(&word.as_str());
        let last = name.words.iter().rposition(is_part)?;
        (0..=last).filter_map(|end| self.machines.get(&name.words[..end]).copied()).min()
    }

    /// Finds the domain or side in which that of a name is, as `package-0` of `core`.
    fn find_meter(&self, name: &BoardName<'_>) -> Option<usize> {
        self.meters.find_whole(name.meter.as_ref()?)
    }

    /// Finds the board or module of which a name is of a rail or a chip, as `Board Power` of `GPU Chip Power`: one that has no number
    /// that the name lacks.
    fn find_board(&self, name: &BoardName<'_>) -> Option<usize> {
        if name.part != BoardPart::Rail {
            return None;
        }
        let boards = choose_numbers(name.numbers()).filter_map(|chosen| self.boards.get(chosen.as_slice()).copied());
        boards.chain(self.module).min()
    }

    /// Finds the module or processor of a superchip in which that of a name is, as `Module Power` of `GPU Power`.
    fn find_module(&self, name: &BoardName<'_>) -> Option<usize> {
        self.superchips.find_whole(name.superchip.as_ref()?)
    }

    /// Finds the GPU beside which a name is of another part of a superchip, or of all of it.
    fn find_gpu(&self, name: &BoardName<'_>) -> Option<usize> {
        self.superchips.find_gpu(name.superchip.as_ref()?)
    }

    /// Finds the input of what a name is the output of, as `PSU1 Input Power` of `PSU1 Output Power`.
    fn find_input(&self, name: &BoardName<'_>) -> Option<usize> {
        self.inputs.get(name.source((false, true))?.as_slice()).copied()
    }

    /// Finds the zone of RAPL below which that of a name is, as `intel-rapl:0` of `intel-rapl:0:0`.
    fn find_zone(&self, name: &BoardName<'_>) -> Option<usize> {
        let (number, whole) = name.words.split_last()?;
        let is_zone = is_number(number) && name.has_word(&["rapl"]);
        self.numbered.get(whole).copied().filter(|_| is_zone)
    }
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_electrical(word: &str) -> bool {
    ELECTRICAL_WORDS.contains(&word)
}

pub(super) fn names_gpu(word: &str) -> bool {
    GPU_WORDS.contains(&word)
}

/// Returns whether a word in the name of a column states no more than that it is of power or of a GPU.
pub(super) fn names_no_part(word: &str) -> bool {
    is_electrical(word) || names_gpu(word)
}

/// Returns whether words name a supply as a module of power, and no more than its number and its side.
fn names_power_module(words: &[String]) -> bool {
    let is_side = |word: &str| [INPUT_WORDS, OUTPUT_WORDS].iter().any(|list| list.contains(&word));
    let is_known = |word: &String| word == "module" || is_number(word) || is_electrical(word) || is_side(word);
    words.windows(2).any(|pair| pair == SUPPLY_PHRASE) && words.iter().all(is_known)
}

/// Returns how much of a machine a name of such words is of.
fn extent_of(words: &[String]) -> Extent {
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some(at) = words.windows(2).position(|pair| MACHINE_PHRASES.iter().any(|phrase| pair == phrase)) {
        // The first word of the phrase is one of a machine, or of power, by itself.
        words.remove(at + 1);
    }
    let has = |list: &[&str]| words.iter().any(|word| list.contains(word));
    let sensor_parts = if has(&ELECTRICAL_WORDS) { &SENSOR_PART_WORDS[..] } else { &[] };
    let is_known = |word: &&str| {
        let of = [&GPU_WORDS[..], &PART_WORDS, sensor_parts, &MACHINE_WORDS, &SUPPLY_WORDS, &TOTAL_WORDS];
        let of_none = [&ELECTRICAL_WORDS[..], &INPUT_WORDS, &OUTPUT_WORDS];
        let is_before_total = *word == WORD_BEFORE_TOTALS && has(&TOTAL_WORDS);
        is_number(word) || is_before_total || of.iter().chain(&of_none).any(|list| list.contains(word))
    };
    match () {
        () if words.is_empty() || !words.iter().all(is_known) => Extent::Unknown,
        () if has(&SUPPLY_WORDS) => Extent::Supply,
        () if has(&MACHINE_WORDS) => Extent::Machine,
        () if has(sensor_parts) || has(&PART_WORDS) || has(&GPU_WORDS) => Extent::Part,
        // A name of energy and power only, without a number, is the sum.
        () if !words.iter().any(|word| is_number(word)) => Extent::Machine,
        () => Extent::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Comparing each with each of them would take minutes.
    #[test]
    fn many_names_are_compared() {
        let names: Vec<String> = (0..5_000).flat_map(|board| [format!("gpu{board}"), format!("gpu{board} max")]).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let found: Vec<usize> = find_misnamed_boards(&names, Meter::Gpu).into_iter().map(|found| found.index).collect();
        assert!(found.iter().copied().eq((1..10_000).step_by(2)));
        assert_eq!((describe_zone(&names), find_part_and_whole(&names), find_rail_and_board(&names)), (None, None, None));
    }

    #[test]
    fn the_first_of_several_is_named() {
        let problem = |names: &[&str], meter| find_misnamed_boards(names, meter).pop().unwrap().problem;
        for (names, meter, other) in [
            (&["gpu0 mean", "gpu0", "gpu0 max"][..], Meter::Gpu, "gpu0 mean"),
            (&["gpu0 last", "gpu0 mean", "gpu0 max"], Meter::Gpu, "gpu0 last"),
            (&["node2", "node2 node3", "node2 node3 gpu1"], Meter::Node, "node2"),
            (&["psys", "package-1", "package-0", "package-0 core"], Meter::Node, "psys"),
            (&["GPU 1 Power", "GPU 0 Power", "GPU Power", "GPU 0 NVVDD Power"], Meter::Gpu, "GPU 0 Power"),
        ] {
            assert!(problem(names, meter).ends_with(&format!("{} is of", quote(other))), "{names:?}: {}", problem(names, meter));
        }
    }

    #[test]
    fn figures_and_parts_of_the_machine_are_no_boards() {
        for (names, meter, misnamed) in [
            (&["gpu0", "gpu1"][..], Meter::Gpu, &[][..]),
            (&["gpu0", "gpu0_max", "gpu0_min"], Meter::Gpu, &[1, 2]),
            (&["0_power", "0_power_limit", "1_power"], Meter::Gpu, &[1]),
            (&["DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_POWER_MGMT_LIMIT"], Meter::Gpu, &[1]),
            (&["enforced_power_limit_watts", "power_draw_watts", "power_limit"], Meter::Gpu, &[0, 2]),
            (&["power (cap 250)", "power (cap 300)"], Meter::Gpu, &[]),
            (&["0.powerWatts", "0.powerWatts__MAX", "process.0.powerWatts"], Meter::Gpu, &[1, 2]),
            (&["gpu0", "process.0"], Meter::Gpu, &[1]),
            (&["gpu0 p95", "gpu0", "gpu0 p50", "gpu1"], Meter::Gpu, &[0, 2]),
            (&["0_power", "0_default_power_limit", "0_enforced_power_limit"], Meter::Gpu, &[1, 2]),
            (&["default/gpu0-max", "default/gpu0"], Meter::Gpu, &[0]),
            // Not of the figure, but names that boards, pods and ports have.
            (&["P01", "P02"], Meter::Gpu, &[]),
            (&["Tesla P40", "Tesla"], Meter::Gpu, &[]),
            (&["default/gpu0", "gpu0"], Meter::Gpu, &[]),
            (&["peak-0", "min-0", "process-0"], Meter::Gpu, &[]),
            (&["default-0", "0"], Meter::Gpu, &[]),
            // Hosts and sockets.
            (&["gpu01", "gpu02", "node01"], Meter::Node, &[]),
            (&["server", "gpu-server"], Meter::Wall, &[]),
            (&["node0", "node0 gpu0"], Meter::Node, &[1]),
            (&["node1", "node12 gpu0"], Meter::Node, &[]),
            (&["cpu", "gpu", "dram", "node"], Meter::Gpu, &[0, 2, 3]),
            (&["cpu", "gpu", "dram", "node"], Meter::Node, &[0, 1, 2]),
            (&["cpu", "gpu", "dram"], Meter::Node, &[]),
            // Plurals of acronyms, and words behind acronyms without a capital or a separator.
            (&["GPUs", "CPUs"], Meter::Gpu, &[1]),
            (&["GPUs Power", "CPUs Power"], Meter::Gpu, &[1]),
            (&["System", "PSUs"], Meter::Node, &[1]),
            (&["System", "PSU"], Meter::Node, &[1]),
            (&["GPUpower", "CPUpower"], Meter::Gpu, &[1]),
            (&["GPUpower_W", "CPUpower_W"], Meter::Gpu, &[1]),
            (&["GPUwatts", "CPUwatts"], Meter::Gpu, &[1]),
            (&["GPUdraw", "CPUdraw"], Meter::Gpu, &[1]),
            (&["gpupower", "cpupower"], Meter::Gpu, &[1]),
            (&["GPUPOWER", "DRAMPOWER"], Meter::Gpu, &[1]),
            (&["PGPU", "PCPU"], Meter::Gpu, &[1]),
            (&["gpu1", "pcpu1"], Meter::Gpu, &[]),
            (&["gpunode1", "cpunode1"], Meter::Gpu, &[]),
            (&["gpuserver", "cpuserver"], Meter::Node, &[]),
            (&["PSU1 Input Power", "PSU2 Input Power", "Pwr Consumption"], Meter::Node, &[0, 1]),
            (&["PS1 Input Power", "PS2 Input Power", "CPU_Power"], Meter::Node, &[2]),
            (&["SystemInputPower", "TotalGPUPower", "TotalCPUPower", "TotalFanPower"], Meter::Node, &[1, 2, 3]),
            (&["SystemInputPower", "TotalGPUPower", "TotalCPUPower"], Meter::Gpu, &[0, 2]),
            (&["gpu0", "gpu1", "Total Power"], Meter::Gpu, &[2]),
            (&["ps0", "ps1", "worker0"], Meter::Node, &[]),
            (&["rack1", "rack2", "rack1-psu1"], Meter::Wall, &[]),
            (&["gpu-node-1", "gpu-node-2"], Meter::Node, &[]),
            (&["gpu1", "gpu2", "login"], Meter::Node, &[]),
            (&["node0 gpu0", "node0"], Meter::Gpu, &[1]),
            (&["gpu_energy", "energy_consumed"], Meter::Gpu, &[1]),
            (&["node1", "node2", "login1"], Meter::Gpu, &[]),
            (&["PSU1", "PSU2", "System"], Meter::Wall, &[0, 1]),
            (&["system", "node"], Meter::Wall, &[]),
            // A mean is no whole.
            (&["mean power", "psu1", "psu2"], Meter::Wall, &[]),
            (&["average", "cpu", "gpu"], Meter::Node, &[0]),
            // Sensors of a BMC, as their makers name them.
            (&["System Board Pwr Consumption", "PSU1 Input Power", "PSU2 Input Power"], Meter::Node, &[1, 2]),
            (&["PwrMeter Output", "PS 1 Output", "PS 2 Output"], Meter::Node, &[1, 2]),
            (&["Power Meter", "Power Supply 1", "Power Supply 2"], Meter::Node, &[1, 2]),
            (&["PW Consumption", "PSU1 Input Power", "PSU1 Output Power"], Meter::Node, &[1, 2]),
            (&["Sys Power", "CPU Power", "Mem Power", "Fan Power"], Meter::Node, &[1, 2, 3]),
            (&["PSU1 Input Power", "PSU1 Output Power", "PSU2 Input Power", "PSU2 Output Power"], Meter::Node, &[1, 3]),
            (&["PSU 1 AC In Pwr", "PSU 1 DC Out Pwr"], Meter::Node, &[1]),
            (&["PSU0_PIN", "PSU1_PIN", "PSU0_POUT", "PSU1_POUT"], Meter::Node, &[2, 3]),
            (&["System Input Power", "System Output Power"], Meter::Node, &[1]),
            (&["PSU1 Output Power", "PSU2 Output Power"], Meter::Node, &[]),
            (&["PSU1 Input Power", "PSU2 Output Power"], Meter::Node, &[]),
            (&["board 1", "board 2"], Meter::Gpu, &[]),
            (&["gpu0", "mem01"], Meter::Gpu, &[]),
            (&["node", "nvme1", "mem01"], Meter::Node, &[]),
            (&["meter 1", "meter 2"], Meter::Wall, &[]),
            (&["rack in", "rack out"], Meter::Wall, &[]),
            (&["total", "cpu", "gpu"], Meter::Node, &[1, 2]),
            (&["total", "cpu", "gpu", "rack"], Meter::Node, &[]),
            // All of a machine; a mean of its parts is none of it.
            (&["Grand Total", "cpu", "gpu"], Meter::Node, &[1, 2]),
            (&["Gesamt", "cpu", "gpu"], Meter::Node, &[1, 2]),
            (&["grand", "petit", "cpu"], Meter::Node, &[]),
            (&["mean", "cpu", "gpu"], Meter::Node, &[0]),
            // Plugs of a wall.
            (&["Server", "PC", "Fan"], Meter::Wall, &[]),
            (&["server", "gpu 1", "gpu 2"], Meter::Wall, &[]),
            (&["total", "cpu", "fan"], Meter::Wall, &[1, 2]),
            (&["SystemInputPower", "TotalGPUPower", "TotalCPUPower"], Meter::Wall, &[1, 2]),
            // A part of one of several machines.
            (&["node1", "node2", "cpu"], Meter::Gpu, &[2]),
            (&["total_power", "fan"], Meter::Gpu, &[1]),
            (&["cpu0", "cpu1"], Meter::Gpu, &[]),
            (&["0_power", "1_power"], Meter::Gpu, &[]),
            (&["gpu-max-1", "gpu-max-2"], Meter::Gpu, &[]),
            (&["gpu0", "GH200"], Meter::Gpu, &[]),
            // Domains of RAPL, and sides of a power distribution unit.
            (&["package-0", "core", "uncore", "dram", "psys"], Meter::Node, &[0, 1, 2, 3]),
            (&["package-0", "package-1", "core", "dram"], Meter::Gpu, &[2]),
            (&["gpu0", "package-0", "core", "psys"], Meter::Gpu, &[1, 2, 3]),
            (&["intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1"], Meter::Node, &[]),
            (&["inlet", "outlet1", "outlet2", "phase L1"], Meter::Wall, &[1, 2, 3]),
            (&["outlet1", "outlet2"], Meter::Wall, &[]),
            (&["L1", "L2", "L3"], Meter::Wall, &[]),
            // Figures of one board, of which none is plain.
            (
                &[
                    "cuda:0 (gpu:0)/power_usage (W)/min",
                    "cuda:0 (gpu:0)/power_usage (W)/mean",
                    "cuda:1 (gpu:1)/power_usage (W)/last",
                ],
                Meter::Gpu,
                &[0],
            ),
            (&["Average Power", "Peak Power", "Minimum Power"], Meter::Wall, &[1, 2]),
            (&["Peak Power", "Minimum Power"], Meter::Wall, &[1]),
            (&["gpu-max-1", "gpu-min-1"], Meter::Gpu, &[1]),
            // Rails, chips and connectors of a board, and parts of a machine in other tools' words.
            (
                &["GPU Power", "GPU Core (NVVDD) Input Power (avg)", "GPU FBVDD Input Power", "GPU 16-pin HVPWR Power"],
                Meter::Gpu,
                &[1, 2, 3],
            ),
            (&["GPU Chip Power Draw", "Board Power Draw"], Meter::Gpu, &[0]),
            (&["gpu0 power", "gpu1 power", "gpu0 memory power"], Meter::Gpu, &[2]),
            (&["gpu1 power", "gpu0 chip power"], Meter::Gpu, &[]),
            (&["GPU Core Power", "GPU Memory Power"], Meter::Gpu, &[]),
            (&["gpu-1", "core-1", "chip-1"], Meter::Node, &[]),
            (&["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC", "TOT"], Meter::Module, &[1, 2, 3]),
            (&["Power VDD_CPU_CV", "Power VDD_GPU_SOC", "Power VDD_SYS_5V0", "Power TOT"], Meter::Module, &[0, 1, 2]),
            (&["POM_5V_IN", "POM_5V_GPU", "POM_5V_CPU"], Meter::Module, &[1, 2]),
            (&["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"], Meter::Module, &[]),
            // Modules of superchips and their parts.
            (&["Module Power", "GPU Power"], Meter::Module, &[1]),
            (&["Module Power", "GPU Power"], Meter::Node, &[1]),
            (&["Module Power", "GPU Power"], Meter::Gpu, &[0]),
            (&["GPU", "Module"], Meter::Module, &[0]),
            (&["GPU Power Draw W", "Module Power Draw W"], Meter::Gpu, &[1]),
            (&["Module Power", "GPU Power", "CPU Power", "SysIO Power"], Meter::Module, &[1, 2, 3]),
            (&["Module Power", "GPU Power", "CPU Power", "SysIO Power"], Meter::Gpu, &[0, 2, 3]),
            (&["Grace Power Socket 0", "CPU Power Socket 0", "SysIO Power Socket 0"], Meter::Node, &[1, 2]),
            (&["Module", "Grace", "CPU", "SysIO", "GPU"], Meter::Gpu, &[0, 1, 2, 3]),
            (&["Module", "Grace", "CPU", "SysIO", "GPU"], Meter::Module, &[1, 2, 3, 4]),
            (&["System Power", "Module Power", "GPU Power"], Meter::Node, &[1, 2]),
            (&["module 0", "module 1", "gpu 0", "gpu 1", "gpu 2", "gpu 3"], Meter::Module, &[2, 3, 4, 5]),
            (&["node1 module", "node2 gpu0", "node1 gpu0"], Meter::Wall, &[2]),
            (&["a module power", "a gpu power"], Meter::Gpu, &[0]),
            (&["gpu0 power", "gpu0 module power"], Meter::Gpu, &[1]),
            (&["gpu module 0", "gpu module 1"], Meter::Gpu, &[]),
            (&["module-1", "module-2"], Meter::Node, &[]),
            // Modules of memory, of processors and of GPUs, and power supplies.
            (&["GPU 0 Power", "GPU 1 Power", "CPU 0 Power", "Memory Module Power"], Meter::Node, &[]),
            (&["GPU 0 Power", "GPU 1 Power", "CPU 0 Power", "Memory Module Power"], Meter::Gpu, &[2, 3]),
            (&["GPU 0", "GPU 1", "CPU Module 0"], Meter::Node, &[]),
            (&["GPU Core Power", "Memory Module Power"], Meter::Node, &[]),
            (&["GPU Module 0", "GPU Module 1", "CPU Power"], Meter::Node, &[]),
            (&["GPU 0", "GPU 1", "GPU Module Power"], Meter::Node, &[0, 1]),
            (&["Module Power", "Module GPU Power", "Module CPU Power"], Meter::Node, &[1, 2]),
            (&["Power Module 1", "Power Module 2"], Meter::Node, &[]),
            (&["Power Module 1 Input Power", "Power Module 1 Output Power"], Meter::Node, &[1]),
            (&["Power Module 1", "System Power", "Power Module 2"], Meter::Node, &[0, 2]),
            (&["power_gpu_w", "power_module_w"], Meter::Module, &[0]),
            // Hosts.
            (&["gpu01", "grace01", "cpu01"], Meter::Node, &[]),
            (&["gpu01", "grace01"], Meter::Gpu, &[]),
            (&["grace-1 power", "gpu-1 power"], Meter::Node, &[]),
            (&["DC_NODE_POWER_W", "PCK_POWER_W", "GPU0_POWER_W"], Meter::Gpu, &[0, 1]),
            (
                &["PowerControl.PowerConsumedWatts", "PowerSupplies.0.PowerInputWatts", "PowerSupplies.1.PowerInputWatts"],
                Meter::Wall,
                &[1, 2],
            ),
        ] {
            let found: Vec<usize> = find_misnamed_boards(names, meter).into_iter().map(|found| found.index).collect();
            assert_eq!(found, misnamed, "{names:?} {meter:?}");
        }
    }
}
