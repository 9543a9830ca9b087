//! Names of rails and chips, whose power is a part of that of their board or module, and of the parts of superchips.

use std::collections::{HashMap, HashSet};

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
        () if is_gpu || has(&WHOLE_WORDS) && !has(&PARTS_OF_PROCESSORS) => BoardPart::Whole,
        () => BoardPart::Unknown,
    }
}

/// Part of a superchip, such as GH200, whose module has GPUs and a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SuperchipPart {
    /// All of it: `Module Power`.
    Module,
    /// The processor with its memory, inputs and outputs: `Grace Power`.
    Processor,
    /// Cores, memory, or inputs and outputs of the processor: `CPU Power`, `SysIO Power`.
    PartOfProcessor,
    Gpu,
}

/// Words of a module that has GPUs, unless it is by further words one of memory or of processors.
const SUPERCHIP_WORDS: [&str; 2] = ["module", "superchip"];
/// The name of NVIDIA's processor on such a module, which hosts have, too.
const PROCESSOR_NAME: &str = "grace";
/// Words of GPUs; `nvidia` may be of the module.
const SUPERCHIP_GPU_WORDS: [&str; 3] = ["accelerator", "gpu", "gpus"];
const PARTS_OF_PROCESSORS: [&str; 5] = ["cpu", "cpus", "dram", "memory", "sysio"];
/// The same in two words, as `SysIO` is.
const INPUTS_AND_OUTPUTS: [&str; 2] = ["sys", "io"];
/// Words that show nothing about which part a name is of.
const WORDS_BESIDE_PARTS: [&str; 7] = ["blackwell", "chip", "hopper", "nvidia", "socket", "sockets", "total"];

/// The name of a part of a superchip, or of all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SuperchipName {
    pub(super) part: SuperchipPart,
    /// The words of neither parts nor power, such as those of a host.
    scope: Vec<String>,
    /// Sorted, each once.
    numbers: Vec<String>,
    /// No more than `grace`: it may be a host.
    may_be_host: bool,
    /// Superchips only have such a part.
    is_distinctive: bool,
    /// Has the words of a GPU and of a module, see [`settle_modules_of_gpus`].
    is_module_of_gpu: bool,
}

impl SuperchipName {
    /// Returns `None` if the words name no such part. `is_silent` selects the words of energy and power, and numbers.
    pub(super) fn new(words: &[String], is_silent: impl Fn(&str) -> bool) -> Option<Self> {
        let has = |list: &[&str]| words.iter().any(|word| list.contains(&word.as_str()));
        let is_digits = |word: &String| word.bytes().all(|byte| byte.is_ascii_digit());
        let has_sys_io = words.windows(2).any(|pair| pair == INPUTS_AND_OUTPUTS);
        let has_socket = has(&["socket", "sockets"]);
        let has_gpu = has(&SUPERCHIP_GPU_WORDS);
        let names_processor = has(&[PROCESSOR_NAME]) && !has_gpu;
        let is_module = has(&SUPERCHIP_WORDS) && !has(&PARTS_OF_PROCESSORS);
        let part = match () {
            () if is_module && !has_gpu => SuperchipPart::Module,
            () if names_processor => SuperchipPart::Processor,
            () if has_gpu => SuperchipPart::Gpu,
            () if has_socket && has(&["total"]) => SuperchipPart::Processor,
            () if has_sys_io || has(&PARTS_OF_PROCESSORS) => SuperchipPart::PartOfProcessor,
            () => return None,
        };
        let is_known = |word: &str| {
            let lists =
                [&SUPERCHIP_WORDS[..], &SUPERCHIP_GPU_WORDS, &PARTS_OF_PROCESSORS, &WORDS_BESIDE_PARTS, &[PROCESSOR_NAME]];
            is_silent(word) || lists.iter().any(|list| list.contains(&word)) || has_sys_io && INPUTS_AND_OUTPUTS.contains(&word)
        };
        let scope = words.iter().filter(|word| !is_known(word)).cloned().collect();
        let mut numbers: Vec<String> = words.iter().filter(|word| is_digits(word)).cloned().collect();
        let is_electrical = words.iter().any(|word| is_silent(word) && !is_digits(word));
        let may_be_host = names_processor && !has_socket && !(is_electrical && numbers.is_empty());
        numbers.sort_unstable();
        numbers.dedup();
        let is_distinctive = part == SuperchipPart::Module || has_sys_io || has(&["sysio"]);
        Some(Self { part, scope, numbers, may_be_host, is_distinctive, is_module_of_gpu: is_module && has_gpu })
    }

    /// Returns whether superchips only have such a part. Then a `grace` among the names is none of a host.
    pub(super) const fn is_distinctive(&self) -> bool {
        self.is_distinctive
    }

    /// Returns the numbers of the name, each once.
    fn numbers(&self) -> Vec<&str> {
        self.numbers.iter().map(String::as_str).collect()
    }

    /// Returns whether a name is, beside those of GPUs, of another part of their machine and of nothing else.
    pub(super) fn is_part_of_machine(&self, has_superchips: bool) -> bool {
        self.part != SuperchipPart::Gpu && self.scope.is_empty() && (has_superchips || !self.may_be_host)
    }
}

/// Takes the module of a GPU for that of a superchip if one of its GPUs has a name of its own, as `gpu0` beside `gpu0 module`; else it
/// is a GPU.
pub(super) fn settle_modules_of_gpus(names: &mut [&mut SuperchipName]) {
    let is_whole: Vec<bool> = {
        let gpus = names.iter().filter(|name| name.part == SuperchipPart::Gpu && !name.is_module_of_gpu);
        let chosen = gpus.flat_map(|gpu| choose_numbers(gpu.numbers()).map(move |numbers| (gpu.scope.as_slice(), numbers)));
        let of_gpus: HashSet<(&[String], Vec<&str>)> = chosen.collect();
        let is_of_gpus = |name: &SuperchipName| of_gpus.contains(&(name.scope.as_slice(), name.numbers()));
        names.iter().map(|name| name.is_module_of_gpu && is_of_gpus(name)).collect()
    };
    for (name, _) in names.iter_mut().zip(is_whole).filter(|(_, is_whole)| *is_whole) {
        (name.part, name.is_distinctive) = (SuperchipPart::Module, true);
    }
}

/// The first place of each part of a superchip by what its own parts have in common with it.
#[derive(Debug, Default)]
pub(super) struct SuperchipIndex<'n> {
    has_superchips: bool,
    of_numbers: HashMap<(SuperchipPart, &'n [String], Vec<&'n str>), usize>,
    of_scope: HashMap<(SuperchipPart, &'n [String]), usize>,
}

impl<'n> SuperchipIndex<'n> {
    /// Builds an index without names. `has_superchips`: one of the names is of what superchips only have.
    pub(super) fn new(has_superchips: bool) -> Self {
        Self { has_superchips, ..Self::default() }
    }

    /// Adds a name. Places must rise.
    pub(super) fn add(&mut self, place: usize, name: &'n SuperchipName) {
        if name.may_be_host && !self.has_superchips {
            return;
        }
        let scope = name.scope.as_slice();
        self.of_numbers.entry((name.part, scope, name.numbers())).or_insert(place);
        self.of_scope.entry((name.part, scope)).or_insert(place);
    }

    /// Finds the module or processor in which the part of a name is: one that has no number that the name lacks. GPUs may have other
    /// numbers than their module.
    pub(super) fn find_whole(&self, name: &SuperchipName) -> Option<usize> {
        let wholes: &[SuperchipPart] = match name.part {
            SuperchipPart::Module => &[],
            SuperchipPart::Processor | SuperchipPart::Gpu => &[SuperchipPart::Module],
            SuperchipPart::PartOfProcessor => &[SuperchipPart::Module, SuperchipPart::Processor],
        };
        wholes.iter().find_map(|whole| self.find(*whole, name))
    }

    fn find(&self, whole: SuperchipPart, name: &SuperchipName) -> Option<usize> {
        let scope = name.scope.as_slice();
        let numbered =
            choose_numbers(name.numbers()).filter_map(|chosen| self.of_numbers.get(&(whole, scope, chosen)).copied()).min();
        let is_of_any = scope.is_empty() && (name.part == SuperchipPart::Gpu || name.numbers.is_empty());
        numbered.or_else(|| self.of_scope.get(&(whole, scope)).copied().filter(|_| is_of_any))
    }

    /// Finds a GPU beside which the other part of a name lies, as `node1 gpu0` of `node1 module0`.
    pub(super) fn find_gpu(&self, name: &SuperchipName) -> Option<usize> {
        let is_other = name.part != SuperchipPart::Gpu && (self.has_superchips || !name.may_be_host);
        self.of_scope.get(&(SuperchipPart::Gpu, name.scope.as_slice())).copied().filter(|_| is_other)
    }
}

/// Numbers of a part's name that are compared; those of boards have one or two.
const MOST_NUMBERS: usize = 8;

/// Returns each choice of the numbers of a name: none of them, some and all.
pub(super) fn choose_numbers(mut numbers: Vec<&str>) -> impl Iterator<Item = Vec<&str>> {
    numbers.truncate(MOST_NUMBERS);
    (0..1_usize << numbers.len()).map(move |choice| {
        numbers.iter().enumerate().filter(|(bit, _)| (choice >> bit) & 1 == 1).map(|(_, number)| *number).collect()
    })
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
